/* A 64-bit checksum at memory bandwidth, to verify bundles before use. It detects damage, not attacks: it is not
 * cryptographic. It has eight lanes of 64-bit words. Each step is a bijection of the lane for every word, so the change
 * of one word always changes the checksum. */
#define _GNU_SOURCE
#include "runtime.h"

#include <errno.h>
#include <string.h>

typedef unsigned long long u64;
enum { BLOCK = 1 << 20, READ_BYTES = 1 << 16, SUM_LANES = 8, STEP = 8 * SUM_LANES };

static u64 rotate_left(u64 word, int bits) { return word << bits | word >> (64 - bits); }

static u64 mix(u64 word) {
  word = (word ^ word >> 32) * 0xd6e8feb86659fd93ULL;
  word = (word ^ word >> 32) * 0xd6e8feb86659fd93ULL;
  return word ^ word >> 32;
}

static void step(u64 *lanes, const char *bytes) {
  u64 words[SUM_LANES];
  memcpy(words, bytes, sizeof words);
  for (int i = 0; i < SUM_LANES; i++) lanes[i] = rotate_left(lanes[i] ^ words[i], 29) * 0xa0761d6478bd642fULL;
}

static void begin(u64 *lanes) {
  for (int i = 0; i < SUM_LANES; i++) lanes[i] = 0x9e3779b97f4a7c15ULL * (u64)(i + 1);
}

/* Processes all whole steps of `count` bytes; returns a pointer to the remainder. */
static const char *take(u64 *lanes, const char *at, i64 count) {
  for (i64 i = 0; i < count / STEP; i++, at += STEP) step(lanes, at);
  return at;
}

/* The checksum of `count` bytes; `rest` points to the bytes behind the last whole step. */
static u64 finish(u64 *lanes, const char *rest, i64 count) {
  char last[STEP] = {0};
  memcpy(last, rest, (size_t)(count % STEP));
  step(lanes, last);
  u64 sum = mix((u64)count);
  for (int i = 0; i < SUM_LANES; i++) sum = mix(rotate_left(sum, 7) + lanes[i]);
  return sum;
}

unsigned long long smelt_checksum(const void *bytes, i64 count) {
  u64 lanes[SUM_LANES];
  begin(lanes);
  return finish(lanes, take(lanes, bytes, count), count);
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

/* Writes the checksum of every block of 1 MiB, from `offset` on. It reads instead of mapping the file, so that unused
 * weights need no memory. 0, or an errno; -1: the file ends too early. */
int smelt_checksum_file(i64 file, i64 offset, i64 count, unsigned long long *sums) {
  char *bytes = smelt_allocate(READ_BYTES);
  int failed = bytes ? 0 : ENOMEM;
  while (count > 0 && !failed) {
    const i64 block = count < BLOCK ? count : BLOCK;
    const char *rest = bytes;
    u64 lanes[SUM_LANES];
    begin(lanes);
    for (i64 have = 0, some; have < block && !failed; have += some) {
      some = block - have < READ_BYTES ? block - have : READ_BYTES;
      failed = fill(file, offset + have, bytes, some);
      if (!failed) rest = take(lanes, bytes, some);
    }
    if (!failed) *sums++ = finish(lanes, rest, block);
    offset += block, count -= block;
  }
  if (bytes) smelt_release(bytes, READ_BYTES);
  return failed;
}
