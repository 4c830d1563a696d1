/* Running programs: a slot for every call under way, kept for the next one, so that calls of repeating sizes take no
 * memory. Several threads may call one executable; each gets a slot of its own. */
#define _GNU_SOURCE
#include "runtime.h"

#include <string.h>

/* A block that `grow` gave. Blocks that a call used stay for the next call; those it left alone are given back. */
struct Grown {
  Grown *next;
  i64 bytes;
  int used;
  _Alignas(64) char data[];
};

static i64 aligned(i64 bytes) { return (bytes + 63) / 64 * 64; }

/* ------------------------------------------------------------------------------------------ slots */

static void release_grown(Slot *slot, int all) {
  Grown **link = &slot->grown;
  while (*link) {
    Grown *block = *link;
    if (all || !block->used) {
      *link = block->next;
      smelt_release(block, (i64)sizeof(Grown) + block->bytes);
    } else {
      block->used = 0;
      link = &block->next;
    }
  }
}

static void destroy(Slot *slot) {
  if (slot->executable->forget) slot->executable->forget(slot);
  release_grown(slot, 1);
  smelt_release(slot->context.arena, slot->arena_bytes);
  smelt_release(slot->context.scratch, slot->scratch_bytes);
  smelt_release(slot, slot->bytes);
}

static Slot *create(Executable *e) {
  i64 symbols = aligned(e->symbols * 8), sizes = aligned((2 + e->dims) * 8);
  i64 buffers = aligned((e->bound + e->inputs + e->results + e->constants) * (i64)sizeof(void *));
  i64 views = aligned((e->inputs + e->results) * e->view_bytes), shapes = aligned(e->results * (i64)sizeof(void *));
  i64 head = aligned((i64)sizeof(Slot)), bytes = head + 2 * symbols + 2 * sizes + buffers + views + shapes;
  char *block = smelt_allocate_zeroed(bytes);
  if (!block) return NULL;
  Slot *slot = (Slot *)block;
  slot->bytes = bytes, slot->executable = e;
  atomic_flag_clear(&slot->growing);
  slot->symbols = (i64 *)(block += head);
  slot->measured_for = (i64 *)(block += symbols);
  slot->measured = (i64 *)(block += symbols);
  slot->late = (i64 *)(block += sizes);
  slot->buffers = (void **)(block += sizes);
  slot->views = block += buffers;
  slot->shapes = (PyObject **)(block += views);
  memcpy(slot->buffers, e->buffers, (size_t)(e->bound + e->inputs + e->results + e->constants) * sizeof(void *));
  slot->context.cancel = &slot->cancel, slot->context.owner = slot, slot->context.late = slot->late;
  return slot;
}

Slot *smelt_take(Executable *e) {
  smelt_lock();
  Slot *slot = e->free;
  if (slot) e->free = slot->next_free, slot->used = 1, __atomic_store_n(&slot->cancel, 0, __ATOMIC_RELAXED);
  smelt_unlock();
  if (slot || !(slot = create(e))) return slot;
  slot->used = 1;
  smelt_lock();
  slot->next = e->slots, e->slots = slot;
  smelt_unlock();
  return slot;
}

static void unlink_slot(Executable *e, Slot *slot) {
  Slot **link = &e->slots;
  while (*link != slot) link = &(*link)->next;
  *link = slot->next;
}

void smelt_give(Slot *slot) {
  Executable *e = slot->executable;
  if (slot->ran && slot->grown) release_grown(slot, 0);
  slot->ran = 0;
  smelt_lock();
  slot->used = 0;
  int closed = e->closed;
  if (closed) unlink_slot(e, slot);
  else slot->next_free = e->free, e->free = slot;
  smelt_unlock();
  if (closed) destroy(slot);
}

void smelt_trim(Executable *e) {
  smelt_lock();
  Slot *idle = e->free;
  e->free = NULL;
  for (Slot *slot = idle; slot; slot = slot->next_free) unlink_slot(e, slot);
  smelt_unlock();
  while (idle) {
    Slot *next = idle->next_free;
    destroy(idle);
    idle = next;
  }
}

void smelt_close(Executable *e) {
  smelt_lock();
  e->closed = 1; /* slots in use go when their calls end */
  smelt_unlock();
  smelt_trim(e);
}

void smelt_cancel(Executable *e) {
  smelt_lock();
  for (Slot *slot = e->slots; slot; slot = slot->next)
    if (slot->used) __atomic_store_n(&slot->cancel, 1, __ATOMIC_RELAXED);
  smelt_unlock();
}

/* Bytes of arenas, scratch and slots, and the number of slots: an estimate where calls are under way. */
void smelt_usage(Executable *e, i64 *out) {
  out[0] = out[1] = out[2] = 0;
  smelt_lock();
  for (Slot *slot = e->slots; slot; slot = slot->next)
    out[0] += slot->arena_bytes, out[1] += slot->scratch_bytes, out[2]++;
  smelt_unlock();
}

/* ------------------------------------------------------------------------------------------ memory of a call */

void *smelt_grow(Context *ctx, i64 bytes) {
  if (bytes < 0) return NULL;
  Slot *slot = ctx->owner;
  while (atomic_flag_test_and_set_explicit(&slot->growing, memory_order_acquire)) {}
  Grown *best = NULL;
  for (Grown *block = slot->grown; block; block = block->next)
    if (!block->used && block->bytes >= bytes && (!best || block->bytes < best->bytes)) best = block;
  if (!best && bytes < (i64)1 << 46 && (best = smelt_allocate((i64)sizeof(Grown) + bytes)))
    best->bytes = bytes, best->next = slot->grown, slot->grown = best;
  if (best) best->used = 1;
  atomic_flag_clear_explicit(&slot->growing, memory_order_release);
  return best ? best->data : NULL;
}

/* A block that has to grow again and again (a sequence that gets longer by one) grows by a quarter at least. */
static int reserve(char **block, i64 *held, i64 bytes) {
  if (bytes <= *held) return 0;
  i64 ample = *held && bytes < *held + *held / 4 ? *held + *held / 4 : bytes;
  smelt_release(*block, *held);
  *block = smelt_allocate(ample);
  *held = *block ? ample : 0;
  return *block ? 0 : SMELT_NO_MEMORY;
}

/* Whether the arena and the results of a call are more than the machine has; late results are not counted. */
static int is_too_much(Slot *slot) {
  Executable *e = slot->executable;
  const i64 *sizes = slot->measured + 2;
  i64 total = slot->measured[0];
  int overflow = 0;
  for (i64 r = 0; r < e->results; r++) {
    const Port *port = &e->ports[e->inputs + r];
    i64 bytes = port->itemsize;
    int counted = !port->donated;
    for (i64 d = 0; d < port->rank; d++, sizes++) {
      counted &= *sizes >= 0;
      if (counted) overflow |= __builtin_mul_overflow(bytes, *sizes, &bytes);
    }
    if (counted) overflow |= __builtin_add_overflow(total, bytes, &total);
  }
  slot->context.record[0] = total;
  return overflow || total > smelt_machine_memory();
}

int smelt_measure(Slot *slot) {
  Executable *e = slot->executable;
  size_t bytes = (size_t)e->symbols * sizeof(i64);
  if (slot->known && !memcmp(slot->symbols, slot->measured_for, bytes)) return 0;
  slot->known = 0;
  if (e->forget) e->forget(slot);
  int failed = e->measure(slot->symbols, slot->measured);
  if (!failed && is_too_much(slot)) failed = SMELT_NO_MEMORY;
  if (failed) return failed;
  memcpy(slot->measured_for, slot->symbols, bytes);
  slot->known = 1;
  return 0;
}

static int reserve_all(Slot *slot) {
  i64 arena = slot->measured[0], scratch = slot->measured[1];
  slot->context.record[0] = arena;
  if (arena < 0 || scratch < 0 || scratch > (i64)1 << 40) return SMELT_NO_MEMORY;
  slot->workers = __atomic_load_n(&smelt_runtime.threads, __ATOMIC_RELAXED);
  slot->context.scratch_stride = aligned(scratch);
  if (reserve(&slot->context.arena, &slot->arena_bytes, arena)) return SMELT_NO_MEMORY;
  slot->context.record[0] = slot->context.scratch_stride * slot->workers;
  return reserve(&slot->context.scratch, &slot->scratch_bytes, slot->context.scratch_stride * slot->workers);
}

/* ------------------------------------------------------------------------------------------ running */

#if defined(__x86_64__)
typedef unsigned Mode;
static Mode arithmetic(void) { return __builtin_ia32_stmxcsr(); }
static void set_arithmetic(Mode mode) { __builtin_ia32_ldmxcsr(mode); }
static int is_plain(Mode mode) { return (mode & ~0x3Fu) == 0x1F80; } /* the low bits only remember what happened */
#define PLAIN 0x1F80u
#elif defined(__aarch64__)
typedef unsigned long Mode;
static Mode arithmetic(void) { Mode mode; __asm__ volatile("mrs %0, fpcr" : "=r"(mode)); return mode; }
static void set_arithmetic(Mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
static int is_plain(Mode mode) { return mode == 0; }
#define PLAIN 0ul
#else
typedef int Mode;
static Mode arithmetic(void) { return 0; }
static void set_arithmetic(Mode mode) { (void)mode; }
static int is_plain(Mode mode) { (void)mode; return 1; }
#define PLAIN 0
#endif

/* The caller may have told its thread to flush small numbers to zero or to round otherwise: programs never do. */
int smelt_execute(Slot *slot) {
  Executable *e = slot->executable;
  int status = reserve_all(slot);
  if (status) return status;
  memset(slot->context.record, 0, sizeof slot->context.record);
  memcpy(slot->late, slot->measured + 2, (size_t)e->dims * sizeof(i64));
  slot->ran = 1;
  Mode mode = arithmetic();
  if (!is_plain(mode)) set_arithmetic(PLAIN);
  status = e->run(&smelt_runtime, &slot->context, slot->buffers, slot->symbols);
  if (!is_plain(mode)) set_arithmetic(mode);
  return status;
}
