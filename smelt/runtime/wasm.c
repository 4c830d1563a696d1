/* system.c for WebAssembly: one linear memory that only grows, no files, no threads. Blocks come from the C library's
 * allocator, which uses memory.grow, so a module imports nothing. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdlib.h>

void *smelt_take_block(i64 bytes) {
  void *block;
  return posix_memalign(&block, 64, (size_t)bytes) ? NULL : block;
}

void smelt_give_block(void *block) { free(block); }

void *smelt_map_pages(i64 bytes) { return smelt_take_block(bytes); }
void *smelt_map_huge(i64 bytes) { return smelt_take_block(bytes); }

void smelt_unmap(void *base, i64 bytes) {
  (void)bytes;
  free(base);
}

void smelt_unmap_file(void *base, i64 bytes) { smelt_unmap(base, bytes); }

i64 smelt_physical_memory(void) { return ((i64)1 << 32) - 1; } /* of 32-bit addresses */

i64 smelt_cores(void) { return 1; }
