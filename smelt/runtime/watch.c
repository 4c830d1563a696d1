/* Ending calls early: by cancellation, by a deadline, or because a signal handler raised an exception. Programs poll a
 * cancel flag and call `smelt_stop` when it is set. The watch thread sets the flag: periodically for calls of the main
 * thread, which alone handles signals, and at deadlines. It sleeps while no such call runs. The process-wide lock and
 * the clock are in this file too. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <time.h>

#define TICK ((i64)40000000) /* nanoseconds between two checks for signals */
enum { IDLE_TICKS = 50, WATCH_STACK = 128 << 10 };

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ticking, freed;
static Slot *watched; /* calls of the main thread, and calls with a deadline or a cancellation token */
static int watching, dormant;
static i64 recent, wakes; /* wakes: when the watch thread looks next, unless it is dormant */
static _Thread_local int thread_kind; /* 1: the main thread; 2: another; 0: not known yet */

int (*smelt_signals)(Slot *slot);

/* ------------------------------------------------------------------------------------------ the lock and the clock */

void smelt_lock(void) { pthread_mutex_lock(&lists); }

void smelt_unlock(void) { pthread_mutex_unlock(&lists); }

i64 smelt_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (i64)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The time of the watch thread's last tick or of one of the last 16 calls: precise enough for timeouts of seconds, and
 * cheaper than reading the clock at every call. With the lock held. */
i64 smelt_recent(void) {
  static unsigned calls;
  if (calls++ % 16 == 0) recent = smelt_now();
  return recent;
}

static void make_conditions(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
#ifndef __APPLE__
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
  pthread_cond_init(&ticking, &attributes);
  pthread_cond_init(&freed, &attributes);
  pthread_condattr_destroy(&attributes);
}

__attribute__((constructor)) static void start_watch(void) { make_conditions(); }

static void wait_for(pthread_cond_t *condition, i64 nanoseconds) {
#ifdef __APPLE__
  struct timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  pthread_cond_timedwait_relative_np(condition, &lists, &time);
#else
  i64 end = smelt_now() + nanoseconds;
  struct timespec time = {end / 1000000000, end % 1000000000};
  pthread_cond_timedwait(condition, &lists, &time);
#endif
}

void smelt_wait_for_memory(void) { wait_for(&freed, TICK); }

void smelt_signal_memory(void) { pthread_cond_broadcast(&freed); }

/* ------------------------------------------------------------------------------------------ the watching thread */

static void alarm_slot(Slot *slot) { __atomic_store_n(&slot->cancel, 1, __ATOMIC_SEQ_CST); }

static void *keep_watch(void *nothing) {
  (void)nothing;
  smelt_name_thread("smelt-watch");
  smelt_lock();
  for (int idle = 0;;) {
    if (!watched && ++idle > IDLE_TICKS) {
      dormant = 1;
      while (!watched) pthread_cond_wait(&ticking, &lists);
      dormant = 0;
    }
    if (watched) idle = 0;
    i64 now = smelt_now(), wait = TICK;
    for (Slot *slot = watched; slot; slot = slot->next_watched) {
      i64 left = slot->deadline ? slot->deadline - now : TICK;
      if (left < wait) wait = left > 0 ? left : wait;
    }
    wakes = now + wait;
    wait_for(&ticking, wait);
    now = recent = smelt_now();
    for (Slot *slot = watched; slot; slot = slot->next_watched)
      if (slot->on_main || (slot->deadline && slot->deadline <= now)) alarm_slot(slot);
  }
  return NULL;
}

static void start_thread(void) {
  pthread_t thread;
  watching = !smelt_start_thread(&thread, WATCH_STACK, 1, keep_watch, NULL);
}

static int on_main(void) {
  if (!thread_kind) thread_kind = smelt_is_main_thread() ? 1 : 2;
  return thread_kind == 1;
}

/* Waking the watch thread takes longer than a short call: only for a deadline that it would miss. */
static void wake_watch(const Slot *slot) {
  if (dormant || (slot->deadline && slot->deadline < wakes)) pthread_cond_signal(&ticking);
}

static void watch(Slot *slot) {
  slot->watched = 1;
  slot->next_watched = watched;
  watched = slot;
  if (!watching) start_thread();
  else wake_watch(slot);
}

/* ------------------------------------------------------------------------------------------ calls */

/* With the lock held, when a call takes a slot. */
void smelt_enter(Slot *slot) {
  slot->deadline = 0, slot->token = NULL, slot->cancelled = 0, slot->stopped = 0, slot->watched = 0;
  __atomic_store_n(&slot->cancel, 0, __ATOMIC_RELAXED);
  slot->thread = &thread_kind; /* the address of a thread-local identifies the thread */
  slot->on_main = on_main();
  if (slot->on_main && smelt_signals) watch(slot);
}

/* With the lock held, when the call has ended. */
void smelt_leave(Slot *slot) {
  if (!slot->watched) return;
  Slot **link = &watched;
  while (*link != slot) link = &(*link)->next_watched;
  *link = slot->next_watched;
  slot->watched = 0;
}

int smelt_is_own(const Slot *slot) { return slot->thread == &thread_kind; }

/* The call ends at the deadline (a time of smelt_now, 0: none), or after `*token` was set and smelt_alarm called. */
void smelt_limit(Slot *slot, i64 deadline, const volatile int *token) {
  smelt_lock();
  slot->deadline = deadline, slot->token = token;
  if (slot->watched) wake_watch(slot);
  else watch(slot);
  alarm_slot(slot); /* the deadline may have passed */
  smelt_unlock();
}

void smelt_alarm(void) {
  smelt_lock();
  for (Slot *slot = watched; slot; slot = slot->next_watched) alarm_slot(slot);
  smelt_unlock();
}

int smelt_stop(Context *ctx) {
  Slot *slot = ctx->owner;
  if (__atomic_load_n(&slot->stopped, __ATOMIC_RELAXED)) return 1;
  int own = smelt_is_own(slot), reason = 0;
  if (own) __atomic_store_n(&slot->cancel, 0, __ATOMIC_SEQ_CST); /* before the checks: a later event sets it again */
  if (__atomic_load_n(&slot->cancelled, __ATOMIC_SEQ_CST) || (slot->token && *slot->token)) reason = SMELT_CANCELLED;
  else if (slot->deadline && smelt_now() >= slot->deadline) reason = SMELT_TIMED_OUT;
  else if (own && slot->on_main && smelt_signals && smelt_signals(slot)) reason = SMELT_INTERRUPTED;
  if (!reason) return 0;
  int none = 0;
  __atomic_compare_exchange_n(&slot->stopped, &none, reason, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot->cancel, 1, __ATOMIC_SEQ_CST);
  return 1;
}

/* In the child only the forking thread exists, and it is the main thread. */
void smelt_forked(void) {
  Slot **link = &watched;
  while (*link)
    if (smelt_is_own(*link)) link = &(*link)->next_watched;
    else (*link)->watched = 0, *link = (*link)->next_watched;
  watching = dormant = thread_kind = 0;
  make_conditions();
}
