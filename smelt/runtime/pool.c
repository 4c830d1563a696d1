/* The thread pool of the process, shared by all calls. The thread that starts a parallel region is its worker 0. Helper
 * threads may enter while the region is open. The owner closes it when all work is taken and returns when the last helper
 * has left. It never waits for a helper that has not entered, so a sleeping or preempted helper costs nothing.
 *
 * Several regions may be open at once, one per call. Each call has its own thread, so helpers work only while helpers and
 * running calls together are no more than the threads. A helper enters the region with the fewest helpers. After each
 * chunk it checks whether to leave: there are more workers than threads, or another region has fewer helpers. A call that
 * finds all helpers busy starts alone and gets helpers as they become free.
 *
 * [0, count) is divided into one contiguous range per worker. Each range has an atomic cursor. A worker takes chunks
 * from its own range, then steals chunks from the other ranges. The last chunks of a range are smaller. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { STEPS = 8, REGIONS = 64, STACK = 2 << 20, POLL = 20000000 }; /* steps: how often a worker takes work from its range */
#define OPEN 0x80000000u

typedef unsigned long long u64;
typedef struct { _Alignas(64) _Atomic i64 next; i64 end; } Range;

/* A parallel region. Its owner writes the fields that are not atomic while it is closed and no helper is inside. */
typedef struct {
  _Alignas(64) atomic_uint inside; /* number of helpers inside, plus OPEN while they may enter */
  atomic_uint wanted;              /* helpers that it has work for */
  atomic_int waiting;              /* the owner sleeps until the last helper has left */
  Body body;
  void *env;
  i64 count, chunk, units, parts, grain, limit;
  Range ranges[MAX_THREADS];
} Region;

static Region regions[REGIONS];
static _Alignas(64) _Atomic u64 taken;      /* bit mask of the regions in use */
static _Alignas(64) atomic_uint generation; /* counts events that idle helpers wait for: a region opens, a call ends */
static _Alignas(64) atomic_int helping;     /* helpers that work in regions */
static _Alignas(64) atomic_int calls;       /* running calls, each with its own thread */
static atomic_int sleepers, stopping, started;
static atomic_int changing;                 /* helpers are being started or stopped */
static _Atomic i64 spin_limit;              /* nanoseconds to spin before sleeping */
static pthread_t helpers[MAX_THREADS];

static _Thread_local i64 this_worker; /* 0 in every thread that is not a helper */
static _Thread_local int in_region;
static _Thread_local u64 own_region;  /* bit of the region that this thread owns */
static _Thread_local int own_calls;   /* running calls of this thread: more than 1 in signal handlers */
static _Thread_local i64 own_limit;   /* most workers of this thread's calls; 0: no limit of its own */

/* ------------------------------------------------------------------------------------------ waiting */

/* park: sleeps while the word is `expected`, for at most `most` nanoseconds (0: no limit); may wake early. */

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#ifdef __linux__
static void park(atomic_uint *word, unsigned expected, i64 most) {
  struct timespec time = {most / 1000000000, most % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, most ? &time : NULL, NULL, 0);
}

static void unpark(atomic_uint *word, int count) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }

static void renew_parking(void) {}
#else
static pthread_mutex_t parking = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t parked = PTHREAD_COND_INITIALIZER;

static void park(atomic_uint *word, unsigned expected, i64 most) {
  pthread_mutex_lock(&parking);
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  time.tv_nsec += most; /* less than a second */
  time.tv_sec += time.tv_nsec / 1000000000, time.tv_nsec %= 1000000000;
  if (atomic_load(word) != expected) {
  } else if (most) pthread_cond_timedwait(&parked, &parking, &time);
  else pthread_cond_wait(&parked, &parking);
  pthread_mutex_unlock(&parking);
}

static void unpark(atomic_uint *word, int count) {
  (void)word, (void)count; /* one condition serves both words: every thread checks its own */
  pthread_mutex_lock(&parking);
  pthread_cond_broadcast(&parked);
  pthread_mutex_unlock(&parking);
}

static void renew_parking(void) {
  pthread_mutex_init(&parking, NULL);
  pthread_cond_init(&parked, NULL);
}
#endif

/* Spins until the word is no longer `old`; 0 if the time limit was reached first. */
static int spin(atomic_uint *word, unsigned old) {
  i64 limit = atomic_load_explicit(&spin_limit, memory_order_relaxed), end = limit ? smelt_now() + limit : 0;
  for (int i = 1;; i++) {
    if (atomic_load_explicit(word, memory_order_acquire) != old) return 1;
    if (!limit) return 0;
    relax();
    if (i % 32 == 0 && smelt_now() > end) return 0;
  }
}

/* ------------------------------------------------------------------------------------------ sharing */

static int thread_count(void) { return (int)__atomic_load_n(&smelt_runtime.threads, __ATOMIC_RELAXED); }

/* Counts this thread as a working helper; 0 if calls and helpers already use all threads. */
static int start_helping(void) {
  int count = atomic_load(&helping);
  while (count + atomic_load(&calls) < thread_count())
    if (atomic_compare_exchange_weak(&helping, &count, count + 1)) return 1;
  return 0;
}

/* 1 if there are more workers than threads; then this helper is no longer counted. */
static int is_surplus(void) {
  int count = atomic_load(&helping);
  while (count + atomic_load(&calls) > thread_count())
    if (atomic_compare_exchange_weak(&helping, &count, count - 1)) return 1;
  return 0;
}

/* The open region of a set with the fewest helpers, fewer than `most`, that has work for another one; -1: none. */
static int find_region(u64 set, unsigned most) {
  int best = -1;
  for (; set; set &= set - 1) {
    int i = __builtin_ctzll(set);
    unsigned seen = atomic_load_explicit(&regions[i].inside, memory_order_relaxed), count = seen & ~OPEN;
    if (seen & OPEN && count < most && count < atomic_load_explicit(&regions[i].wanted, memory_order_relaxed))
      best = i, most = count;
  }
  return best;
}

/* Whether a helper must leave a region that has work left. `*counted` becomes 0 if it is no longer counted. */
static int must_leave(Region *region, int *counted) {
  if (atomic_load_explicit(&stopping, memory_order_relaxed)) return 1;
  if (is_surplus()) return *counted = 0, 1;
  u64 set = atomic_load_explicit(&taken, memory_order_relaxed);
  if (!(set & (set - 1))) return 0;
  unsigned count = atomic_load_explicit(&region->inside, memory_order_relaxed) & ~OPEN;
  return count > 1 && find_region(set, count - 1) >= 0;
}

void smelt_begin_call(void) { atomic_fetch_add(&calls, 1), own_calls++; }

/* The core is free now: wakes a helper for another call's region. */
void smelt_end_call(void) {
  atomic_fetch_sub(&calls, 1), own_calls--;
  if (atomic_load_explicit(&taken, memory_order_relaxed) && atomic_load_explicit(&sleepers, memory_order_relaxed)) {
    atomic_fetch_add(&generation, 1);
    unpark(&generation, 1);
  }
}

int smelt_is_nested(void) { return own_calls > 0; }

/* ------------------------------------------------------------------------------------------ working */

/* Takes `grain` units of a range, at its end fewer: half of what is left, so that workers end at the same time. */
static int take_units(Range *range, i64 grain, i64 *first, i64 *last) {
  i64 next = atomic_load_explicit(&range->next, memory_order_relaxed), size;
  do {
    i64 left = range->end - next;
    if (left <= 0) return 0;
    size = left > 2 * grain ? grain : (left + 1) / 2;
  } while (!atomic_compare_exchange_weak_explicit(
      &range->next, &next, next + size, memory_order_relaxed, memory_order_relaxed));
  *first = next, *last = next + size;
  return 1;
}

/* 1 if the worker left early. `counted`: NULL for the owner, which stays. */
static int drain_range(Region *region, i64 which, int *counted) {
  Range *range = &region->ranges[which];
  for (i64 first, last; take_units(range, region->grain, &first, &last);) {
    i64 end = last == region->units ? region->count : last * region->chunk;
    region->body(region->env, first * region->chunk, end, this_worker);
    if (counted && must_leave(region, counted)) return 1;
  }
  return 0;
}

/* 1 if no work is left. */
static int work(Region *region, int *counted) {
  int left_early = 0;
  in_region = 1;
  for (i64 i = 0; i < region->parts && !left_early; i++)
    left_early = drain_range(region, (this_worker + i) % region->parts, counted);
  in_region = 0;
  return !left_early;
}

static int enter(Region *region) {
  unsigned seen = atomic_load_explicit(&region->inside, memory_order_relaxed);
  while (seen & OPEN)
    if (atomic_compare_exchange_weak_explicit(
            &region->inside, &seen, seen + 1, memory_order_acquire, memory_order_relaxed))
      return 1;
  return 0;
}

static void leave(Region *region) {
  if (atomic_fetch_sub(&region->inside, 1) == 1 && atomic_load(&region->waiting)) unpark(&region->inside, 1);
}

static void set_default_arithmetic(void) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(0x1F80); /* a new thread inherits its creator's mode, which may flush denormals to zero */
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, xzr");
#endif
}

/* Works in one region after another until none has work for this helper. 1 if there were too many workers. */
static int help_regions(void) {
  u64 done = 0;
  for (int which; (which = find_region(atomic_load(&taken) & ~done, ~0u)) >= 0;) {
    Region *region = &regions[which];
    int counted = 1, is_done = 1;
    if (!start_helping()) return 1;
    if (enter(region)) {
      if (this_worker < region->limit) is_done = work(region, &counted);
      leave(region);
    }
    if (is_done) done |= (u64)1 << which;
    if (!counted) return 1;
    atomic_fetch_sub(&helping, 1);
    if (atomic_load_explicit(&stopping, memory_order_relaxed)) return 0;
  }
  return 0;
}

/* An idle helper spins only if a core is free for it. */
static int spin_for_work(unsigned seen) {
  int awake = atomic_load(&started) - atomic_load(&sleepers);
  return awake + atomic_load(&calls) <= thread_count() && spin(&generation, seen);
}

static void *help(void *number) {
  this_worker = (i64)(intptr_t)number;
  set_default_arithmetic();
  unsigned seen = atomic_load(&generation) - 1;
  for (int refused = 0;;) {
    unsigned current = atomic_load(&generation);
    if (current != seen) {
      seen = current;
      if (atomic_load(&stopping)) return NULL;
      refused = help_regions();
    } else if (!spin_for_work(seen)) {
      atomic_fetch_add(&sleepers, 1);
      /* A call that ended before this line did not count this helper as a sleeper. */
      int again = refused && atomic_load(&helping) + atomic_load(&calls) < thread_count();
      if (again) seen--;
      else park(&generation, seen, 0);
      atomic_fetch_sub(&sleepers, 1);
    }
  }
}

/* Uses fewer helpers if the system refuses a thread, and none while another thread changes the pool. */
static void start_helpers(void) {
  if (atomic_exchange(&changing, 1)) return;
  if (!atomic_load(&started)) {
    i64 wanted = thread_count() - 1, made = 0;
    while (made < wanted && !smelt_start_thread(&helpers[made], STACK, 0, help, (void *)(intptr_t)(made + 1))) made++;
    atomic_store(&started, made ? (int)made : -1);
  }
  atomic_store(&changing, 0);
}

/* Called with `changing` held. Helpers leave their regions after the current chunk; the owners do the rest. */
static void stop_helpers(void) {
  int count = atomic_load(&started);
  atomic_store(&stopping, 1);
  atomic_fetch_add(&generation, 1);
  unpark(&generation, MAX_THREADS);
  for (int i = 0; i < count; i++) pthread_join(helpers[i], NULL);
  atomic_store(&stopping, 0);
  atomic_store(&started, 0);
}

static void open_region(Region *region, int wanted) {
  atomic_store_explicit(&region->wanted, (unsigned)wanted, memory_order_relaxed);
  atomic_store(&region->inside, OPEN);
  atomic_fetch_add(&generation, 1);
  int asleep = atomic_load(&sleepers);
  if (!asleep) return;
  int busy = atomic_load(&helping), room = thread_count() - atomic_load(&calls) - busy;
  int spinning = atomic_load(&started) - asleep - busy; /* these see the new generation */
  int missing = (wanted < room ? wanted : room) - spinning;
  if (missing > 0) unpark(&generation, missing);
}

/* While it waits, the calling thread polls whether the call must end: only this thread can handle a signal. */
static void close_region(Region *region, Context *ctx) {
  unsigned left = atomic_fetch_and(&region->inside, ~OPEN) & ~OPEN;
  while (left) {
    if (!spin(&region->inside, left)) {
      atomic_store(&region->waiting, 1);
      park(&region->inside, left, POLL);
      atomic_store(&region->waiting, 0);
      in_region = 1; /* a signal handler may run a program */
      if (ctx && __atomic_load_n(ctx->cancel, __ATOMIC_RELAXED)) ctx->stop(ctx);
      in_region = 0;
    }
    left = atomic_load(&region->inside);
  }
}

/* NULL if all regions are in use. */
static Region *take_region(void) {
  u64 set = atomic_load_explicit(&taken, memory_order_relaxed);
  while (~set) {
    u64 bit = ~set & (set + 1);
    if (atomic_compare_exchange_weak_explicit(&taken, &set, set | bit, memory_order_acquire, memory_order_relaxed))
      return own_region = bit, &regions[__builtin_ctzll(bit)];
  }
  return NULL;
}

static void give_region(void) {
  atomic_fetch_and_explicit(&taken, ~own_region, memory_order_release);
  own_region = 0;
}

static void parallel(const Runtime *rt, Context *ctx, Body body, void *env, i64 count, i64 chunk) {
  if (count <= 0) return;
  if (chunk < 1) chunk = 1;
  i64 threads = __atomic_load_n(&rt->threads, __ATOMIC_RELAXED), limit = threads, units = count / chunk;
  if (ctx && ctx->owner && *(i64 *)ctx->owner < limit) limit = *(i64 *)ctx->owner;
  if (own_limit && own_limit < limit) limit = own_limit;
  i64 most = units < limit ? units : limit;
  Region *region = most > 1 && !in_region ? take_region() : NULL;
  if (!region) {
    body(env, 0, count, this_worker);
    return;
  }
  if (!atomic_load(&started)) start_helpers();
  i64 others = atomic_load_explicit(&calls, memory_order_relaxed) - 1, idle = threads - (others > 0 ? others : 0);
  i64 parts = idle < 1 ? 1 : idle < most ? idle : most, steps = parts * STEPS; /* more workers may come: they steal */
  region->body = body, region->env = env, region->count = count, region->chunk = chunk, region->units = units;
  region->parts = parts, region->grain = units > steps ? units / steps : 1, region->limit = limit;
  for (i64 i = 0, first = 0; i < parts; i++) {
    i64 size = units / parts + (i < units % parts);
    atomic_store_explicit(&region->ranges[i].next, first, memory_order_relaxed);
    region->ranges[i].end = first += size;
  }
  open_region(region, (int)most - 1);
  work(region, NULL);
  close_region(region, ctx);
  give_region();
}

/* ------------------------------------------------------------------------------------------ the process */

/* In the child only the forking thread exists: no helpers, and no region or call of another thread. */
static void after_fork(void) {
  atomic_store(&started, 0);
  atomic_store(&sleepers, 0);
  atomic_store(&stopping, 0);
  atomic_store(&changing, 0);
  atomic_store(&helping, 0);
  atomic_store(&calls, own_calls);
  atomic_store(&taken, own_region);
  for (int i = 0; i < REGIONS; i++) {
    atomic_store(&regions[i].inside, 0);
    atomic_store(&regions[i].waiting, 0);
  }
  renew_parking();
  smelt_forked();
  smelt_forget_calls();
  smelt_unlock();
}

__attribute__((constructor)) static void watch_forks(void) { smelt_watch_forks(smelt_lock, smelt_unlock, after_fork); }

int smelt_set_threads(i64 threads, i64 spin_time) {
  if (threads < 1 || threads > MAX_THREADS || in_region) return 1;
  while (atomic_exchange(&changing, 1)) sched_yield();
  if (atomic_load(&started)) stop_helpers();
  __atomic_store_n(&smelt_runtime.threads, threads, __ATOMIC_RELAXED);
  atomic_store(&spin_limit, spin_time);
  atomic_store(&changing, 0);
  return 0;
}

void smelt_limit_thread(i64 most) { own_limit = most; }

i64 smelt_started(void) {
  int count = atomic_load(&started);
  return count > 0 ? count : 0;
}

void *smelt_grow(Context *ctx, i64 bytes);

Runtime smelt_runtime = {2, 1, parallel, smelt_grow};
