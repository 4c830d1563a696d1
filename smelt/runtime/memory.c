/* Memory for arenas, scratch and packed weights: 64-byte aligned, in huge pages from 2 MiB on. Every allocation is
 * counted, so that tests can check that repeated calls allocate nothing. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdint.h>
#include <string.h>

#ifdef SMELT_SMALL /* a build for little memory: no huge pages, which round blocks up */
#define HUGE_BLOCK ((i64)1 << 60)
#else
#define HUGE_BLOCK ((i64)2 << 20)
#endif
#define MAPPED ((i64)128 << 10) /* blocks from this size on are mapped: releasing them returns pages to the system */

/* The largest block: with what huge pages add it fits the address space, which has 32 bits on some machines. */
#define MAX_BLOCK (sizeof(size_t) < sizeof(i64) ? (i64)UINT32_MAX - ((i64)4 << 20) : INT64_MAX - ((i64)4 << 20))

static _Atomic i64 allocations, allocated;

static i64 round_up(i64 bytes, i64 unit) { return (bytes + unit - 1) / unit * unit; }

i64 smelt_span(i64 bytes) { return bytes >= HUGE_BLOCK ? round_up(bytes, HUGE_BLOCK) : bytes; }

/* The physical memory, or the container's limit that the caller has set. Larger blocks are refused here: Linux
 * overcommits, so it would grant them and kill the process when they are used. */
static _Atomic i64 known;

void smelt_set_machine_memory(i64 bytes) { atomic_store_explicit(&known, bytes, memory_order_relaxed); }

i64 smelt_machine_memory(void) {
  i64 bytes = atomic_load_explicit(&known, memory_order_relaxed);
  if (!bytes) {
    bytes = smelt_physical_memory();
    if (!bytes) bytes = (i64)1 << 46;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
  }
  return bytes;
}

void *smelt_allocate(i64 bytes) {
  if (bytes < 0 || bytes > MAX_BLOCK || bytes > smelt_machine_memory()) return NULL;
  void *block = bytes >= HUGE_BLOCK ? smelt_map_huge(round_up(bytes, HUGE_BLOCK))
                : bytes >= MAPPED ? smelt_map_pages(bytes)
                                  : smelt_take_block(bytes ? bytes : 1);
  if (block) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&allocated, bytes, memory_order_relaxed);
  }
  return block;
}

void *smelt_allocate_zeroed(i64 bytes) {
  void *block = smelt_allocate(bytes);
  if (block) memset(block, 0, (size_t)bytes);
  return block;
}

void smelt_release(void *block, i64 bytes) {
  if (!block) return;
  if (bytes >= HUGE_BLOCK) smelt_unmap(block, round_up(bytes, HUGE_BLOCK));
  else if (bytes >= MAPPED) smelt_unmap(block, bytes);
  else smelt_give_block(block);
  atomic_fetch_sub_explicit(&allocated, bytes, memory_order_relaxed);
}

i64 smelt_allocations(void) { return atomic_load(&allocations); }

i64 smelt_allocated(void) { return atomic_load(&allocated); }
