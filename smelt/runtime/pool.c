/* The thread pool of the process. The thread that starts a parallel region is its worker 0. Helper threads may enter
 * while the region is open. The owner closes it when all work is taken and returns when the last helper has left. It
 * never waits for a helper that has not entered, so a sleeping or preempted helper costs nothing.
 *
 * [0, count) is divided into one contiguous range per worker. Each range has an atomic cursor. A worker takes chunks
 * from its own range, then steals chunks from the other ranges. */
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
#ifdef __x86_64__
#include <cpuid.h>
#endif

enum { STEPS = 8, STACK = 2 << 20, POLL = 20000000 }; /* steps: how often a worker takes work from its range */
#define OPEN 0x80000000u

typedef struct { _Alignas(64) _Atomic i64 next; i64 end; } Range;

/* The current region. Its owner writes it while the region is closed and no helper is inside. */
static struct {
  Body body;
  void *env;
  i64 count, chunk, units, ranges, grain, limit;
} job;
static Range ranges[MAX_THREADS];

static _Alignas(64) atomic_uint generation; /* counts regions; idle helpers wait for it to change */
static _Alignas(64) atomic_uint inside;     /* number of helpers inside the region, plus OPEN while they may enter */
static _Alignas(64) atomic_int busy;        /* a region runs, or the pool is being changed */
static atomic_int sleepers, waiting, stopping, started;
static _Atomic i64 spin_limit;              /* nanoseconds to spin before sleeping */
static pthread_t helpers[MAX_THREADS];

static _Thread_local i64 this_worker; /* 0 in every thread that is not a helper */
static _Thread_local int in_region;

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

/* ------------------------------------------------------------------------------------------ working */

static void drain_range(i64 which) {
  Range *range = &ranges[which];
  while (atomic_load_explicit(&range->next, memory_order_relaxed) < range->end) {
    i64 first = atomic_fetch_add_explicit(&range->next, job.grain, memory_order_relaxed);
    if (first >= range->end) return;
    i64 last = first + job.grain < range->end ? first + job.grain : range->end;
    job.body(job.env, first * job.chunk, last == job.units ? job.count : last * job.chunk, this_worker);
  }
}

static void work(void) {
  in_region = 1;
  for (i64 i = 0; i < job.ranges; i++) drain_range((this_worker + i) % job.ranges);
  in_region = 0;
}

static int enter(void) {
  unsigned seen = atomic_load_explicit(&inside, memory_order_relaxed);
  while (seen & OPEN)
    if (atomic_compare_exchange_weak_explicit(&inside, &seen, seen + 1, memory_order_acquire, memory_order_relaxed))
      return 1;
  return 0;
}

static void leave(void) {
  if (atomic_fetch_sub(&inside, 1) == 1 && atomic_load(&waiting)) unpark(&inside, 1);
}

static void set_default_arithmetic(void) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(0x1F80); /* a new thread inherits its creator's mode, which may flush denormals to zero */
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, xzr");
#endif
}

static void *help(void *number) {
  this_worker = (i64)(intptr_t)number;
  set_default_arithmetic();
  unsigned seen = atomic_load(&generation) - 1;
  for (;;) {
    unsigned current = atomic_load(&generation);
    if (current == seen) {
      if (!spin(&generation, seen)) {
        atomic_fetch_add(&sleepers, 1);
        park(&generation, seen, 0);
        atomic_fetch_sub(&sleepers, 1);
      }
      continue;
    }
    seen = current;
    if (atomic_load(&stopping)) return NULL;
    if (enter()) {
      if (this_worker < job.limit) work();
      leave();
    }
  }
}

/* Called with `busy` held. Uses fewer helpers if the system refuses a thread. */
static void start_helpers(void) {
  i64 wanted = __atomic_load_n(&smelt_runtime.threads, __ATOMIC_RELAXED) - 1, made = 0;
  while (made < wanted && !smelt_start_thread(&helpers[made], STACK, 0, help, (void *)(intptr_t)(made + 1))) made++;
  atomic_store(&started, made ? (int)made : -1);
}

static void stop_helpers(void) {
  int count = atomic_load(&started);
  atomic_store(&stopping, 1);
  atomic_fetch_add(&generation, 1);
  unpark(&generation, MAX_THREADS);
  for (int i = 0; i < count; i++) pthread_join(helpers[i], NULL);
  atomic_store(&stopping, 0);
  atomic_store(&started, 0);
}

static void call_helpers(i64 wanted) {
  atomic_store(&inside, OPEN);
  atomic_fetch_add(&generation, 1);
  int asleep = atomic_load(&sleepers);
  i64 missing = wanted - (atomic_load(&started) - asleep); /* spinning helpers see the new generation */
  if (asleep && missing > 0) unpark(&generation, (int)missing);
}

/* While it waits, the calling thread polls whether the call must end: only this thread can handle a signal. */
static void close_region(Context *ctx) {
  unsigned left = atomic_fetch_and(&inside, ~OPEN) & ~OPEN;
  while (left) {
    if (!spin(&inside, left)) {
      atomic_store(&waiting, 1);
      park(&inside, left, POLL);
      atomic_store(&waiting, 0);
      in_region = 1; /* a signal handler may run a program */
      if (ctx && *ctx->cancel) ctx->stop(ctx);
      in_region = 0;
    }
    left = atomic_load(&inside);
  }
}

static void parallel(const Runtime *rt, Context *ctx, Body body, void *env, i64 count, i64 chunk) {
  if (count <= 0) return;
  if (chunk < 1) chunk = 1;
  i64 limit = __atomic_load_n(&rt->threads, __ATOMIC_RELAXED), units = count / chunk;
  if (ctx && ctx->owner && *(i64 *)ctx->owner < limit) limit = *(i64 *)ctx->owner;
  i64 parts = units < limit ? units : limit;
  if (parts <= 1 || atomic_load_explicit(&busy, memory_order_relaxed) || atomic_exchange(&busy, 1)) {
    body(env, 0, count, this_worker);
    return;
  }
  if (!atomic_load(&started)) start_helpers();
  i64 steps = parts * STEPS;
  job.body = body, job.env = env, job.count = count, job.chunk = chunk, job.units = units;
  job.ranges = parts, job.grain = units > steps ? units / steps : 1, job.limit = limit;
  for (i64 i = 0, first = 0; i < parts; i++) {
    i64 size = units / parts + (i < units % parts);
    atomic_store_explicit(&ranges[i].next, first, memory_order_relaxed);
    ranges[i].end = first += size;
  }
  call_helpers(parts - 1);
  work();
  close_region(ctx);
  atomic_store_explicit(&busy, 0, memory_order_release);
}

/* ------------------------------------------------------------------------------------------ the process */

/* In the child only the forking thread exists: no helpers, and no region of another thread. */
static void after_fork(void) {
  atomic_store(&started, 0);
  atomic_store(&sleepers, 0);
  atomic_store(&waiting, 0);
  atomic_store(&stopping, 0);
  atomic_store(&inside, 0);
  atomic_store(&busy, in_region);
  renew_parking();
  smelt_forked();
  smelt_unlock();
}

__attribute__((constructor)) static void watch_forks(void) { smelt_watch_forks(smelt_lock, smelt_unlock, after_fork); }

int smelt_set_threads(i64 threads, i64 spin_time) {
  if (threads < 1 || threads > MAX_THREADS || in_region) return 1;
  while (atomic_exchange(&busy, 1)) sched_yield();
  if (atomic_load(&started)) stop_helpers();
  __atomic_store_n(&smelt_runtime.threads, threads, __ATOMIC_RELAXED);
  atomic_store(&spin_limit, spin_time);
  atomic_store(&busy, 0);
  return 0;
}

i64 smelt_started(void) {
  int count = atomic_load(&started);
  return count > 0 ? count : 0;
}

/* CPU features that the operating system enables, one bit each, in the order of FEATURES in device/runtime.py. */
i64 smelt_features(void) {
#ifdef __x86_64__
  unsigned a, b, c, d, low, high, enabled = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  if (c >> 27 & 1) {
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    enabled = low;
  }
  i64 avx = (enabled & 0x06) == 0x06, avx512 = (enabled & 0xE6) == 0xE6;
  i64 found = avx * ((i64)(c >> 12 & 1) | (i64)(c >> 29 & 1) << 1);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  unsigned leaves = a;
  found |= avx * (i64)(b >> 5 & 1) << 2;
  found |= avx512 * ((i64)(b >> 16 & 1) << 3 | (i64)(b >> 30 & 1) << 4 | (i64)(b >> 31 & 1) << 5);
  found |= avx512 * ((i64)(c >> 11 & 1) << 6 | (i64)(b >> 17 & 1) << 8);
  if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    found |= avx512 * ((i64)(a >> 5 & 1) << 7) | avx * ((i64)(a >> 4 & 1) << 9);
  return found;
#else
  return 0;
#endif
}

void *smelt_grow(Context *ctx, i64 bytes);

Runtime smelt_runtime = {2, 1, parallel, smelt_grow};
