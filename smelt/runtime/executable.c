/* Running programs. Each call uses a slot, which later calls reuse, so calls with repeated sizes allocate nothing.
 * Several threads may call one executable; each call has its own slot. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdint.h>
#include <string.h>

#define MUCH ((i64)1 << 20) /* only larger blocks are shrunk */

/* A block from `grow`. Blocks that a call used stay for the next call; unused ones are freed. */
struct Grown {
  Grown *next;
  i64 bytes;
  int used;
  _Alignas(64) char data[];
};

static i64 align64(i64 bytes) { return (bytes + 63) / 64 * 64; }

/* ------------------------------------------------------------------------------------------ making an executable */

void *smelt_obtain(Heap *heap, i64 bytes) {
  return heap ? smelt_heap_allocate(heap, bytes) : smelt_allocate(bytes);
}

void smelt_return(Heap *heap, void *block, i64 bytes) {
  if (heap) smelt_heap_release(heap, block);
  else smelt_release(block, bytes);
}

Executable *smelt_make(const i64 *layout, i64 numbers, void *const *pointers, Heap *heap) {
  i64 symbols = layout[0], bound = layout[1], inputs = layout[2], results = layout[3], constants = layout[4];
  i64 buffers = bound + inputs + results + constants, ports = inputs + results;
  i64 bytes = (i64)sizeof(Executable) + numbers * 8 + ports * (i64)sizeof(Port) + buffers * (i64)sizeof(void *);
  Executable *e = smelt_obtain(heap, bytes);
  if (!e) return NULL;
  memset(e, 0, (size_t)bytes);
  e->heap = heap, e->bytes = bytes, e->symbols = symbols, e->bound = bound, e->inputs = inputs, e->results = results;
  e->constants = constants, e->quick = (int)layout[5];
  memcpy(&e->run, &pointers[0], sizeof e->run);
  memcpy(&e->measure, &pointers[1], sizeof e->measure);
  i64 *copy = (i64 *)(e + 1);
  Port *port = (Port *)(copy + numbers);
  e->ports = port;
  e->buffers = (void **)(port + ports);
  memcpy(copy, layout, (size_t)numbers * sizeof(i64));
  e->preset = copy += 6;
  e->extents = copy += symbols;
  copy += bound;
  for (i64 i = 0; i < ports; i++, port++) {
    port->kind = copy[0], port->itemsize = copy[1], port->align = copy[2], port->rank = copy[3];
    port->donated = copy[4];
    port->dims = (const Dim *)(copy += 5);
    if (i < inputs) copy += 3 * port->rank;
    else e->dims += port->rank;
  }
  if (bound) memcpy(e->buffers, pointers + 2, (size_t)bound * sizeof(void *));
  if (constants) memcpy(e->buffers + bound + ports, pointers + 2 + bound, (size_t)constants * sizeof(void *));
  return e;
}

/* ------------------------------------------------------------------------------------------ sizes */

int smelt_fit_dim(Dim dim, i64 size, i64 *symbols) {
  i64 rest = size - dim.offset;
  if (dim.symbol < 0) return !rest;
  i64 *symbol = &symbols[dim.symbol];
  if (*symbol < 0) {
    if (rest % dim.scale || rest / dim.scale < 0) return 0;
    *symbol = rest / dim.scale;
  }
  return *symbol <= (i64)1 << 40 && dim.scale * *symbol == rest;
}

int smelt_all_known(const Slot *slot) {
  for (i64 i = 0; i < slot->executable->symbols; i++)
    if (slot->symbols[i] < 0) return 0;
  return 1;
}

i64 smelt_new_bytes(const Slot *slot) {
  Executable *e = slot->executable;
  const i64 *sizes = slot->measured + 2;
  i64 sum = 0;
  for (i64 r = 0; r < e->results; r++) {
    const Port *port = &e->ports[e->inputs + r];
    i64 bytes = port->itemsize;
    for (i64 d = 0; d < port->rank; d++) bytes *= sizes[d];
    if (!port->donated && bytes > 0) sum += bytes;
    sizes += port->rank;
  }
  return sum;
}

int smelt_overlaps(const void *a, i64 a_bytes, const void *b, i64 b_bytes) {
  return (uintptr_t)a < (uintptr_t)b + (uintptr_t)b_bytes && (uintptr_t)b < (uintptr_t)a + (uintptr_t)a_bytes;
}

/* ------------------------------------------------------------------------------------------ slots */

static void release_grown(Slot *slot, int all) {
  Grown **link = &slot->grown;
  while (*link) {
    Grown *block = *link;
    if (all || !block->used) {
      *link = block->next;
      smelt_return(slot->executable->heap, block, (i64)sizeof(Grown) + block->bytes);
    } else {
      block->used = 0;
      link = &block->next;
    }
  }
}

/* Frees the memory that a slot holds between calls. */
static void release_blocks(Slot *slot) {
  Heap *heap = slot->executable->heap;
  release_grown(slot, 1);
  smelt_return(heap, slot->context.arena, slot->arena_bytes);
  smelt_return(heap, slot->context.scratch, slot->scratch_bytes);
  slot->context.arena = slot->context.scratch = NULL;
  slot->arena_bytes = slot->scratch_bytes = slot->needed_arena = slot->needed_scratch = 0;
}

static void destroy_slot(Slot *slot) {
  if (slot->executable->forget) slot->executable->forget(slot);
  release_blocks(slot);
  smelt_return(slot->executable->heap, slot, slot->bytes);
}

static Slot *create_slot(Executable *e) {
  i64 symbols = align64(e->symbols * 8), sizes = align64((2 + e->dims) * 8);
  i64 buffers = align64((e->bound + e->inputs + e->results + e->constants) * (i64)sizeof(void *));
  i64 views = align64((e->inputs + e->results) * e->view_bytes), shapes = align64(e->results * (i64)sizeof(void *));
  i64 head = align64((i64)sizeof(Slot)), bytes = head + 2 * symbols + 2 * sizes + buffers + views + shapes;
  char *block = smelt_obtain(e->heap, bytes);
  if (!block) return NULL;
  memset(block, 0, (size_t)bytes);
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
  slot->context.stop = smelt_stop;
  return slot;
}

static void unlink_slot(Executable *e, Slot *slot) {
  Slot **link = &e->slots;
  while (*link != slot) link = &(*link)->next;
  *link = slot->next;
}

/* Updates the account with the memory that a slot holds. With the lock held. */
static void settle(Slot *slot) {
  Account *account = slot->executable->account;
  if (!account) return;
  i64 holds = smelt_span(slot->arena_bytes) + smelt_span(slot->scratch_bytes) + slot->results + slot->outside;
  for (Grown *block = slot->grown; block; block = block->next) holds += smelt_span((i64)sizeof(Grown) + block->bytes);
  account->used += holds - slot->charged;
  if (holds < slot->charged && account->waiting) smelt_signal_memory();
  slot->charged = holds;
}

/* Unlinks the idle slots last used before a time and prepends them to the list `idle`. With the lock held. */
static Slot *take_idle(Executable *e, i64 before, Slot *idle) {
  for (Slot **link = &e->free; *link;) {
    Slot *slot = *link;
    if (slot->taken >= before) {
      link = &slot->next_free;
      continue;
    }
    *link = slot->next_free;
    unlink_slot(e, slot);
    if (e->account) e->account->used -= slot->charged, slot->charged = 0;
    slot->next_free = idle, idle = slot;
  }
  return idle;
}

static void destroy_all(Slot *idle) {
  while (idle) {
    Slot *next = idle->next_free;
    destroy_slot(idle);
    idle = next;
  }
}

/* ------------------------------------------------------------------------------------------ idle memory */

#define KEEP ((i64)3000000000)  /* nanoseconds after which idle memory is freed */
#define SWEEP ((i64)1000000000) /* nanoseconds between two searches for it */

static Executable *registered;
static i64 swept;

void smelt_register(Executable *e) {
  smelt_lock();
  e->next = registered, registered = e;
  smelt_unlock();
}

void smelt_unregister(Executable *e) {
  smelt_lock();
  for (Executable **link = &registered; *link; link = &(*link)->next)
    if (*link == e) {
      *link = e->next;
      break;
    }
  smelt_unlock();
}

/* Unlinks the slots that were idle for a while. With the lock held. */
static Slot *sweep(i64 now) {
  if (now - swept < SWEEP) return NULL;
  swept = now;
  Slot *idle = NULL;
  for (Executable *e = registered; e; e = e->next) idle = take_idle(e, now - KEEP, idle);
  return idle;
}

/* Frees the memory of all idle slots of an account. The slots stay, because freeing their objects needs the GIL. With
 * the lock held. 0 if there was nothing to free. */
static int release_idle(Account *account) {
  int found = 0;
  for (Executable *e = registered; e; e = e->next)
    for (Slot *slot = e->account == account ? e->free : NULL; slot; slot = slot->next_free)
      if (slot->charged) release_blocks(slot), settle(slot), found = 1;
  return found;
}

/* ------------------------------------------------------------------------------------------ taking and giving slots */

Slot *smelt_take(Executable *e) {
  smelt_lock();
  Slot *slot = e->free, *idle = NULL;
  if (slot) {
    e->free = slot->next_free, slot->used = 1, slot->taken = smelt_recent();
    smelt_enter(slot);
    idle = sweep(slot->taken);
  }
  smelt_unlock();
  if (idle) destroy_all(idle);
  if (slot || !(slot = create_slot(e))) return slot;
  smelt_lock();
  slot->used = 1, slot->taken = smelt_recent();
  smelt_enter(slot);
  slot->next = e->slots, e->slots = slot;
  idle = sweep(slot->taken);
  smelt_unlock();
  if (idle) destroy_all(idle);
  return slot;
}

void smelt_give(Slot *slot) {
  Executable *e = slot->executable;
  Account *account = e->account;
  if (slot->ran && slot->grown) release_grown(slot, 0);
  slot->ran = 0;
  smelt_lock();
  slot->used = 0;
  smelt_leave(slot);
  if (account) {
    slot->results = slot->outside = 0;
    account->running -= slot->counted, slot->counted = 0;
    settle(slot);
    if (account->waiting) smelt_signal_memory();
  }
  int closed = e->closed;
  if (closed) {
    unlink_slot(e, slot);
    if (account) account->used -= slot->charged;
  } else slot->next_free = e->free, e->free = slot;
  smelt_unlock();
  if (closed) destroy_slot(slot);
}

void smelt_trim(Executable *e) {
  smelt_lock();
  Slot *idle = take_idle(e, INT64_MAX, NULL);
  if (e->account && e->account->waiting) smelt_signal_memory();
  smelt_unlock();
  destroy_all(idle);
}

void smelt_close(Executable *e) {
  smelt_lock();
  e->closed = 1; /* slots in use are freed when their calls end */
  smelt_unlock();
  smelt_trim(e);
}

void smelt_cancel(Executable *e) {
  smelt_lock();
  for (Slot *slot = e->slots; slot; slot = slot->next)
    if (slot->used) {
      __atomic_store_n(&slot->cancelled, 1, __ATOMIC_SEQ_CST);
      __atomic_store_n(&slot->cancel, 1, __ATOMIC_SEQ_CST);
    }
  smelt_unlock();
}

void smelt_forget_calls(void) {
  for (Executable *e = registered; e; e = e->next) {
    for (Slot *slot = e->slots; slot; slot = slot->next) {
      slot->queued = 0;
      if (!slot->used || smelt_is_own(slot)) continue;
      release_blocks(slot);
      slot->results = slot->outside = 0;
      if (e->account) e->account->running -= slot->counted;
      slot->counted = 0;
      settle(slot);
    }
    if (e->account) e->account->first = e->account->last = NULL, e->account->waiting = 0;
  }
}

/* Bytes of arenas and of scratch, and the number of slots: an estimate while calls run. */
void smelt_usage(Executable *e, i64 *out) {
  out[0] = out[1] = out[2] = 0;
  smelt_lock();
  for (Slot *slot = e->slots; slot; slot = slot->next)
    out[0] += slot->arena_bytes, out[1] += slot->scratch_bytes, out[2]++;
  smelt_unlock();
}

/* ------------------------------------------------------------------------------------------ limits on memory */

int smelt_charge(Account *account, i64 bytes) {
  smelt_lock();
  int failed = 0;
  if (bytes > 0) {
    while ((failed = account->used + bytes > account->limit) && release_idle(account)) {}
    if (failed && account->fixed + bytes <= account->limit && account->running > account->waiting) failed = 2;
  }
  if (!failed) account->fixed += bytes, account->used += bytes;
  if (bytes < 0 && account->waiting) smelt_signal_memory();
  smelt_unlock();
  return failed;
}

static void enqueue(Account *account, Slot *slot) {
  slot->queued = 1, slot->next_queued = NULL;
  if (account->last) account->last->next_queued = slot;
  else account->first = slot;
  account->last = slot;
}

static void dequeue(Account *account, Slot *slot) {
  Slot *before = NULL;
  for (Slot *each = account->first; each != slot; each = each->next_queued) before = each;
  if (before) before->next_queued = slot->next_queued;
  else account->first = slot->next_queued;
  if (account->last == slot) account->last = before;
  slot->queued = 0;
}

/* Whether a call may take memory before the queue is empty: if it is the first one, or if the queue may wait for memory
 * that the outer call of this thread holds. */
static int is_first(const Account *account, const Slot *slot) {
  return !account->first || account->first == slot || smelt_is_nested();
}

/* With the lock held. `running`: the program has begun, and its core is free while it waits. */
static void wait_for_memory(Account *account, int running) {
  account->waiting++;
  smelt_signal_memory(); /* a waiting call that holds memory checks whether all calls wait now */
  if (running) smelt_end_call();
  smelt_wait_for_memory();
  if (running) smelt_begin_call();
  account->waiting--;
}

/* Charges `more` bytes to a slot's account and waits for other calls to free memory, in the order of arrival. A call that
 * holds memory is served before the queue. To avoid a deadlock, it is refused when all other calls wait too. */
static int charge(Slot *slot, i64 more) {
  Account *account = slot->executable->account;
  int empty = !slot->charged;
  smelt_lock();
  account->running += !slot->counted, slot->counted = 1;
  int status = 0;
  for (;;) {
    int first = !empty || is_first(account, slot);
    if (first && account->used + more <= account->limit) break;
    if (first && release_idle(account)) continue;
    int never = account->fixed + slot->charged + more > account->limit;
    if (never || (!empty && account->waiting + 1 >= account->running)) {
      slot->context.record[0] = slot->charged + more, slot->context.record[1] = account->limit - account->fixed;
      status = SMELT_OVER_LIMIT;
      break;
    }
    if (empty && !slot->queued) enqueue(account, slot);
    wait_for_memory(account, slot->ran);
    smelt_unlock();
    int stopped = smelt_stop(&slot->context);
    smelt_lock();
    if (stopped) {
      status = SMELT_CANCELLED;
      break;
    }
  }
  if (slot->queued) {
    dequeue(account, slot);
    smelt_signal_memory(); /* for the next in the queue */
  }
  if (!status) account->used += more, slot->charged += more;
  smelt_unlock();
  return status;
}

/* Charges the memory that `measure` computed. If that and the slot's memory exceed the limit, the latter is freed first. */
static int admit(Slot *slot, i64 arena, i64 scratch) {
  Executable *e = slot->executable;
  i64 before = slot->charged;
  i64 larger_arena = slot->arena_bytes > arena ? slot->arena_bytes : arena;
  i64 larger_scratch = slot->scratch_bytes > scratch ? slot->scratch_bytes : scratch;
  i64 grown = before - smelt_span(slot->arena_bytes) - smelt_span(slot->scratch_bytes);
  i64 wanted = smelt_span(larger_arena) + smelt_span(larger_scratch) + grown + slot->results + slot->outside;
  smelt_lock();
  int fits = is_first(e->account, slot) && e->account->used - before + wanted <= e->account->limit;
  if (fits) {
    e->account->used += wanted - before, slot->charged = wanted;
    e->account->running += !slot->counted, slot->counted = 1;
  }
  smelt_unlock();
  if (fits) return 0;
  release_blocks(slot);
  smelt_lock();
  e->account->used -= before, slot->charged = 0;
  if (e->account->waiting) smelt_signal_memory();
  smelt_unlock();
  return charge(slot, smelt_span(arena) + smelt_span(scratch) + slot->results + slot->outside);
}

/* ------------------------------------------------------------------------------------------ memory of a call */

void *smelt_grow(Context *ctx, i64 bytes) {
  if (bytes < 0) return NULL;
  Slot *slot = ctx->owner;
  while (atomic_flag_test_and_set_explicit(&slot->growing, memory_order_acquire)) {}
  Grown *best = NULL;
  for (Grown *block = slot->grown; block; block = block->next)
    if (!block->used && block->bytes >= bytes && (!best || block->bytes < best->bytes)) best = block;
  i64 whole = (i64)sizeof(Grown) + bytes;
  if (!best && bytes < (i64)1 << 46) {
    int refused = slot->executable->account ? charge(slot, smelt_span(whole)) : 0;
    if (refused == SMELT_OVER_LIMIT) slot->over = 1;
    if (!refused && (best = smelt_obtain(slot->executable->heap, whole))) best->bytes = bytes, best->next = slot->grown, slot->grown = best;
  }
  if (best) best->used = 1;
  atomic_flag_clear_explicit(&slot->growing, memory_order_release);
  return best ? best->data : NULL;
}

/* Makes a block large enough. It grows by a quarter at least (sequences grow by one token a call), unless memory is
 * limited. A block that was much too large for a while shrinks. */
static int reserve(Heap *heap, char **block, i64 *held, i64 bytes, int ample, i64 needed) {
  int shrink = needed >= 0 && *held > MUCH && *held / 2 > needed;
  if (bytes <= *held && !shrink) return 0;
  i64 wanted = shrink ? needed : ample && *held && bytes < *held + *held / 4 ? *held + *held / 4 : bytes;
  smelt_return(heap, *block, *held);
  *block = smelt_obtain(heap, wanted);
  *held = *block ? wanted : 0;
  return *block ? 0 : SMELT_NO_MEMORY;
}

/* Whether arena and results exceed the machine's memory; late results are not counted. */
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
  slot->workers = smelt_threads();
  slot->context.scratch_stride = align64(scratch);
  scratch = slot->context.scratch_stride * slot->workers;
  Heap *heap = slot->executable->heap;
  int limited = slot->executable->account || heap;
  int status = slot->executable->account ? admit(slot, arena, scratch) : 0;
  if (status) return status;
  if (arena > slot->needed_arena) slot->needed_arena = arena;
  if (scratch > slot->needed_scratch) slot->needed_scratch = scratch;
  i64 now = slot->taken, needed_arena = -1, needed_scratch = -1;
  if (now - slot->since > KEEP) {
    needed_arena = slot->needed_arena, needed_scratch = slot->needed_scratch;
    slot->needed_arena = arena, slot->needed_scratch = scratch, slot->since = now;
  }
  if (reserve(heap, &slot->context.arena, &slot->arena_bytes, arena, !limited, needed_arena)) return SMELT_NO_MEMORY;
  slot->context.record[0] = scratch;
  return reserve(heap, &slot->context.scratch, &slot->scratch_bytes, scratch, !limited, needed_scratch);
}

/* ------------------------------------------------------------------------------------------ running */

#if defined(__x86_64__)
typedef unsigned Mode;
static Mode arithmetic(void) { return __builtin_ia32_stmxcsr(); }
static void set_arithmetic(Mode mode) { __builtin_ia32_ldmxcsr(mode); }
static int is_default(Mode mode) { return (mode & ~0x3Fu) == 0x1F80; } /* the low bits are sticky exception flags */
#define DEFAULT_MODE 0x1F80u
#elif defined(__aarch64__)
typedef unsigned long Mode;
static Mode arithmetic(void) { Mode mode; __asm__ volatile("mrs %0, fpcr" : "=r"(mode)); return mode; }
static void set_arithmetic(Mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
static int is_default(Mode mode) { return mode == 0; }
#define DEFAULT_MODE 0ul
#else
typedef int Mode;
static Mode arithmetic(void) { return 0; }
static void set_arithmetic(Mode mode) { (void)mode; }
static int is_default(Mode mode) { (void)mode; return 1; }
#define DEFAULT_MODE 0
#endif

static int run_program(Slot *slot) {
  Executable *e = slot->executable;
  int status = reserve_all(slot);
  if (status) return status;
  memset(slot->context.record, 0, sizeof slot->context.record);
  memcpy(slot->late, slot->measured + 2, (size_t)e->dims * sizeof(i64));
  slot->ran = 1;
  smelt_begin_call();
  status = e->run(&smelt_runtime, &slot->context, slot->buffers, slot->symbols);
  smelt_end_call();
  return status;
}

/* Programs run in the default mode; the caller's thread may flush denormals to zero or use another rounding mode. */
int smelt_execute(Slot *slot) {
  Mode mode = arithmetic();
  slot->over = 0;
  if (!is_default(mode)) set_arithmetic(DEFAULT_MODE);
  int status = run_program(slot);
  if (!is_default(mode)) set_arithmetic(mode);
  int stopped = __atomic_load_n(&slot->stopped, __ATOMIC_SEQ_CST);
  if (stopped && (status == 0 || status == SMELT_CANCELLED || status == SMELT_NO_MEMORY)) return stopped;
  return slot->over && status == SMELT_NO_MEMORY ? SMELT_OVER_LIMIT : status;
}
