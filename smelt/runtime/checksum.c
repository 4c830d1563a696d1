/* A 64-bit checksum at the speed of memory: what a file is compared with before its bytes are used. It finds damage,
 * not malice; whoever can choose the bytes can choose the checksum. Eight lanes of words, each step a bijection of the
 * lane for every word, so that a change of one word always shows. */
#define _GNU_SOURCE
#include "runtime.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { PIECE = 1 << 20, LANES_OF_SUM = 8 };

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

unsigned long long smelt_checksum(const void *bytes, i64 count) {
  u64 lanes[LANES_OF_SUM];
  char rest[8 * LANES_OF_SUM] = {0};
  const char *at = bytes;
  const i64 whole_steps = count / (i64)sizeof rest;
  for (int i = 0; i < LANES_OF_SUM; i++) lanes[i] = 0x9e3779b97f4a7c15ULL * (u64)(i + 1);
  for (i64 i = 0; i < whole_steps; i++, at += sizeof rest) step(lanes, at);
  memcpy(rest, at, (size_t)(count % (i64)sizeof rest));
  step(lanes, rest);
  u64 sum = mixed((u64)count);
  for (int i = 0; i < LANES_OF_SUM; i++) sum = mixed(turned(sum, 7) + lanes[i]);
  return sum;
}

/* Writes the checksum of every piece of 1 MiB, the first of them at `offset`, without mapping the file, so that weights
 * that nobody uses need no memory. 0, or the number of an error; -1: the file ends too early. */
int smelt_checksum_file(i64 file, i64 offset, i64 count, unsigned long long *sums) {
  char *piece = smelt_allocate(PIECE);
  int failed = piece ? 0 : ENOMEM;
  while (count > 0 && !failed) {
    const i64 wanted = count < PIECE ? count : PIECE;
    for (i64 have = 0; have < wanted && !failed;) {
      const ssize_t got = pread((int)file, piece + have, (size_t)(wanted - have), (off_t)(offset + have));
      if (got > 0) have += got;
      else if (got == 0) failed = -1;
      else if (errno != EINTR) failed = errno;
    }
    if (!failed) *sums++ = smelt_checksum(piece, wanted);
    offset += wanted, count -= wanted;
  }
  if (piece) smelt_release(piece, PIECE);
  return failed;
}
