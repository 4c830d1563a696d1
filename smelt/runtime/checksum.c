/* A 64-bit checksum at the speed of memory: what a file is compared with before its bytes are used. It finds damage,
 * not malice; whoever can choose the bytes can choose the checksum. Eight lanes of words, each step a bijection of the
 * lane for every word, so that a change of one word always shows. */
#define _GNU_SOURCE
#include "runtime.h"

#include <errno.h>
#include <string.h>

typedef unsigned long long u64;
enum { PIECE = 1 << 20, AT_ONCE = 1 << 16, LANES_OF_SUM = 8, STEP = 8 * LANES_OF_SUM };

static u64 turned(u64 word, int by) { return word << by | word >> (64 - by); }

static u64 mixed(u64 word) {
  word = (word ^ word >> 32) * 0xd6e8feb86659fd93ULL;
  word = (word ^ word >> 32) * 0xd6e8feb86659fd93ULL;
  return word ^ word >> 32;
}

static void step(u64 *lanes, const char *bytes) {
  u64 words[LANES_OF_SUM];
  memcpy(words, bytes, sizeof words);
  for (int i = 0; i < LANES_OF_SUM; i++) lanes[i] = turned(lanes[i] ^ words[i], 29) * 0xa0761d6478bd642fULL;
}

static void begin(u64 *lanes) {
  for (int i = 0; i < LANES_OF_SUM; i++) lanes[i] = 0x9e3779b97f4a7c15ULL * (u64)(i + 1);
}

/* Takes all whole steps of `count` bytes; gives the place of what is left of them. */
static const char *take(u64 *lanes, const char *at, i64 count) {
  for (i64 i = 0; i < count / STEP; i++, at += STEP) step(lanes, at);
  return at;
}

/* The sum of `count` bytes, of which those behind the last whole step lie at `rest`. */
static u64 ended(u64 *lanes, const char *rest, i64 count) {
  char last[STEP] = {0};
  memcpy(last, rest, (size_t)(count % STEP));
  step(lanes, last);
  u64 sum = mixed((u64)count);
  for (int i = 0; i < LANES_OF_SUM; i++) sum = mixed(turned(sum, 7) + lanes[i]);
  return sum;
}

unsigned long long smelt_checksum(const void *bytes, i64 count) {
  u64 lanes[LANES_OF_SUM];
  begin(lanes);
  return ended(lanes, take(lanes, bytes, count), count);
}

/* Reads exactly `count` bytes. 0, or an errno; -1: the file ends too early. */
static int fill(i64 file, i64 offset, char *bytes, i64 count) {
  for (i64 got; count > 0; bytes += got, offset += got, count -= got) {
    int failed = smelt_read_at(file, offset, bytes, count, &got);
    if (failed) return failed;
    if (!got) return -1;
  }
  return 0;
}

/* Writes the checksum of every piece of 1 MiB, the first of them at `offset`, without mapping the file, so that weights
 * that nobody uses need no memory. 0, or the number of an error; -1: the file ends too early. */
int smelt_checksum_file(i64 file, i64 offset, i64 count, unsigned long long *sums) {
  char *bytes = smelt_allocate(AT_ONCE);
  int failed = bytes ? 0 : ENOMEM;
  while (count > 0 && !failed) {
    const i64 piece = count < PIECE ? count : PIECE;
    const char *rest = bytes;
    u64 lanes[LANES_OF_SUM];
    begin(lanes);
    for (i64 have = 0, some; have < piece && !failed; have += some) {
      some = piece - have < AT_ONCE ? piece - have : AT_ONCE;
      failed = fill(file, offset + have, bytes, some);
      if (!failed) rest = take(lanes, bytes, some);
    }
    if (!failed) *sums++ = ended(lanes, rest, piece);
    offset += piece, count -= piece;
  }
  if (bytes) smelt_release(bytes, AT_ONCE);
  return failed;
}
