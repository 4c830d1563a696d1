/* Memory for arenas, scratch and packed weights: 64-byte aligned; huge pages from 2 MiB on. Every block that the runtime
 * takes from the system is taken here and counted, so that a test can see that repeated calls take none. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE ((i64)2 << 20)
#define MAPPED ((i64)128 << 10) /* from here on pages of their own: what is given back is the system's at once */

static _Atomic i64 allocations, allocated;

static i64 whole(i64 bytes, i64 unit) { return (bytes + unit - 1) / unit * unit; }

i64 smelt_span(i64 bytes) { return bytes >= HUGE ? whole(bytes, HUGE) : bytes; }

static void *map_pages(i64 bytes) {
  void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base == MAP_FAILED ? NULL : base;
}

/* Maps more than is needed and cuts off both ends, for mmap promises pages and not huge ones. */
static void *map_huge(i64 bytes) {
  i64 wanted = whole(bytes, HUGE), mapped = wanted + HUGE;
  char *base = map_pages(mapped);
  if (!base) return NULL;
  i64 head = (i64)(-(uintptr_t)base & (uintptr_t)(HUGE - 1));
  if (head) munmap(base, (size_t)head);
  if (HUGE - head) munmap(base + head + wanted, (size_t)(HUGE - head));
#ifdef MADV_HUGEPAGE
  madvise(base + head, (size_t)wanted, MADV_HUGEPAGE); /* a wish: small pages serve as well */
#endif
  return base + head;
}

/* The bytes of memory that this machine has: a block of more would be promised, and the process ended when it is used. */
i64 smelt_machine_memory(void) {
  static _Atomic i64 known;
  i64 bytes = atomic_load_explicit(&known, memory_order_relaxed);
  if (!bytes) {
    i64 pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    bytes = pages > 0 && page > 0 ? pages * page : (i64)1 << 46;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
  }
  return bytes;
}

void *smelt_allocate(i64 bytes) {
  if (bytes < 0 || bytes > smelt_machine_memory()) return NULL;
  void *block = NULL;
  if (bytes >= HUGE) block = map_huge(bytes);
  else if (bytes >= MAPPED) block = map_pages(bytes);
  else if (posix_memalign(&block, 64, (size_t)(bytes ? bytes : 1))) block = NULL;
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
  if (bytes >= HUGE) munmap(block, (size_t)whole(bytes, HUGE));
  else if (bytes >= MAPPED) munmap(block, (size_t)bytes);
  else free(block);
  atomic_fetch_sub_explicit(&allocated, bytes, memory_order_relaxed);
}

i64 smelt_allocations(void) { return atomic_load(&allocations); }

i64 smelt_allocated(void) { return atomic_load(&allocated); }
