/* Weights beside a model: mapped, so that processes share them, after a comparison with the checksum of the build. */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>

enum { PIECE = 1 << 20 }; /* bytes under one checksum */

int smelt_open_weights(const char *path, i64 bytes, unsigned long long checksum, const unsigned char **weights) {
  i64 found = 0, count = (bytes + PIECE - 1) / PIECE, file = smelt_open_file(path, &found);
  if (file < 0) return WEIGHTS_MISSING;
  int status = found == bytes ? 0 : WEIGHTS_OTHER;
  if (!status) {
    unsigned long long *sums = smelt_allocate(count * 8);
    int failed = sums ? smelt_checksum_file(file, 0, bytes, sums) : ENOMEM;
    if (failed || smelt_checksum(sums, count * 8) != checksum) status = WEIGHTS_OTHER;
    smelt_release(sums, count * 8);
  }
  if (!status && !(*weights = smelt_map_file(file, bytes))) status = WEIGHTS_MISSING;
  smelt_close_file(file);
  return status;
}
