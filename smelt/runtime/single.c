/* What pool.c and watch.c are in a build without threads of its own: parallel loops run inline, calls end by cancellation
 * alone. Calls of several threads are still safe where the system has threads (SMELT_LOCKS). */
#define _GNU_SOURCE
#include "runtime.h"

#ifdef SMELT_LOCKS
#include <pthread.h>

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
void smelt_lock(void) { pthread_mutex_lock(&lists); }
void smelt_unlock(void) { pthread_mutex_unlock(&lists); }
#else
void smelt_lock(void) {}
void smelt_unlock(void) {}
#endif

/* Idle memory is not freed by time: there is no clock. */
i64 smelt_now(void) { return 0; }
i64 smelt_recent(void) { return 0; }

void smelt_wait_for_memory(void) {}
void smelt_signal_memory(void) {}

void smelt_enter(Slot *slot) {
  slot->cancelled = slot->stopped = slot->watched = 0;
  __atomic_store_n(&slot->cancel, 0, __ATOMIC_RELAXED);
}

void smelt_leave(Slot *slot) { (void)slot; }

int smelt_is_own(const Slot *slot) { return slot->used; }

int smelt_stop(Context *ctx) {
  Slot *slot = ctx->owner;
  if (!__atomic_load_n(&slot->cancelled, __ATOMIC_SEQ_CST)) return 0;
  slot->stopped = SMELT_CANCELLED;
  return 1;
}

static void run_inline(const Runtime *rt, Context *ctx, Body body, void *env, i64 count, i64 chunk) {
  (void)rt, (void)ctx, (void)chunk;
  if (count > 0) body(env, 0, count, 0);
}

void smelt_begin_call(void) {}
void smelt_end_call(void) {}
int smelt_is_nested(void) { return 0; }
int smelt_set_threads(i64 threads, i64 spin) { return (void)spin, threads != 1; }
i64 smelt_started(void) { return 0; }

void *smelt_grow(Context *ctx, i64 bytes);

Runtime smelt_runtime = {2, 1, run_inline, smelt_grow};
