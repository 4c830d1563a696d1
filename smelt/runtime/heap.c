/* Memory from one block that the caller provides: first fit, neighbours are joined again. For models whose memory is
 * given, and for machines without an allocator. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdint.h>

/* In front of every block; blocks are multiples of 64 bytes. */
typedef struct Block Block;
struct Block {
  _Alignas(64) i64 bytes; /* with this header */
  Block *next;            /* the next free block, at a higher address */
};

static i64 whole_lines(i64 bytes) { return (bytes + 63) / 64 * 64; }

static void lock(Heap *heap) {
  while (atomic_flag_test_and_set_explicit(&heap->busy, memory_order_acquire)) {}
}

static void unlock(Heap *heap) { atomic_flag_clear_explicit(&heap->busy, memory_order_release); }

Heap *smelt_open_heap(void *memory, i64 bytes) {
  i64 head = (i64)(-(uintptr_t)memory & 63), own = whole_lines(sizeof(Heap));
  if (bytes < head + own + (i64)sizeof(Block)) return NULL;
  Heap *heap = (Heap *)((char *)memory + head);
  Block *block = (Block *)((char *)heap + own);
  block->bytes = (bytes - head - own) / 64 * 64, block->next = NULL;
  heap->free = block, heap->used = heap->peak = 0;
  atomic_flag_clear(&heap->busy);
  return heap;
}

void *smelt_heap_allocate(Heap *heap, i64 bytes) {
  if (bytes < 0 || bytes > (i64)1 << 46) return NULL;
  i64 wanted = whole_lines(bytes) + (i64)sizeof(Block);
  lock(heap);
  Block **link = (Block **)&heap->free;
  while (*link && (*link)->bytes < wanted) link = &(*link)->next;
  Block *block = *link;
  if (block) {
    Block *rest = (Block *)((char *)block + wanted);
    if (block->bytes - wanted >= (i64)sizeof(Block)) {
      rest->bytes = block->bytes - wanted, rest->next = block->next;
      block->bytes = wanted, *link = rest;
    } else *link = block->next;
    heap->used += block->bytes;
    if (heap->used > heap->peak) heap->peak = heap->used;
  }
  unlock(heap);
  return block ? block + 1 : NULL;
}

/* Joins a free block with the one behind it, if they touch. */
static void join(Block *block) {
  Block *next = block->next;
  if (next && (char *)block + block->bytes == (char *)next) block->bytes += next->bytes, block->next = next->next;
}

void smelt_heap_release(Heap *heap, void *memory) {
  if (!memory) return;
  Block *block = (Block *)memory - 1, *before = NULL;
  lock(heap);
  heap->used -= block->bytes;
  for (Block *each = heap->free; each && each < block; each = each->next) before = each;
  block->next = before ? before->next : heap->free;
  if (before) before->next = block;
  else heap->free = block;
  join(block);
  if (before) join(before);
  unlock(heap);
}
