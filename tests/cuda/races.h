// Races of emulated kernels: accesses to the same memory, one of them a write, that nothing orders. Included by
// emulator.h where SMELT_RACES is defined; the compiler's instrumentation for -fsanitize=thread calls what is below.
//
// A thread has a vector of clocks: what it knows of all threads of the blocks that run together. Barriers, mbarriers and
// counters hand it on; shuffles, votes and mma.sync do not, as they order no memory. Blocks run one after another, and
// know of each other by counters in device memory alone. Bulk copies are actors of their own, which know what the thread
// knew that began them, and which waits for their mbarrier tell of.
#include <stdarg.h>

#define UNSEEN __attribute__((no_sanitize("thread"), optimize("O2")))
enum { ENGINES = 64, ACTORS = MOST + ENGINES, SEEN = 4, FIELDS = 512, LINE = 16, RUNS = 1 << 16, COUNTERS = 4096 };
enum Kind { NOTHING, READ, WRITE, ATOMIC, COPY };
struct Seen { unsigned clock, run, place; unsigned short actor; unsigned char mask, kind; };
struct Cell { Seen seen[SEEN]; };  // of 8 bytes
struct Region { char *low, *high; Cell *cells; unsigned char *dirty; bool shared; };
static Region *regions;
static int region_count, region_room, last_region;
static unsigned (*clocks)[ACTORS];
static unsigned *snapshots[RUNS];  // by run: what the thread knew that counted last
static bool known[RUNS];           // runs that this one knows of
static unsigned run_here;
static bool copying;  // asynchronously, what needs not be published
static bool by_tensor_cores;  // or the copy engine: what threads stored must have been published to them
static unsigned published[ACTORS], *published_to[ACTORS];  // by a thread: its clock; what it knew
static int acting = -1;  // in whose name something is done; -1: the current thread's
static bool overlaps_here, awaited[MOST], any_awaited, watching;
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;
static char report[4096];
static int report_size, reports;
struct Field { const void *at; unsigned *clocks; };
static Field fields[FIELDS];  // mbarriers and counters
static int field_count;

UNSEEN static int actors_here(void) { return cluster_here * threads_here + ENGINES; }
UNSEEN static int actor_here(void) { return acting >= 0 ? acting : current; }
UNSEEN static void join_clocks(unsigned *to, const unsigned *from) {
  const int count = actors_here();
  for (int i = 0; i < count; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}
UNSEEN static void tell(const char *form, ...) {
  va_list given;
  va_start(given, form);
  if (reports++ < 8) report_size += vsnprintf(report + report_size, sizeof report - report_size, form, given);
  if (report_size >= (int)sizeof report) report_size = sizeof report - 1;
  va_end(given);
}
UNSEEN static bool is_ordered(const Region &region, const Seen &one, const unsigned *mine) {
  if (one.run == run_here) return mine[one.actor] >= one.clock;
  if (region.shared) return true;  // of a block before
  return known[one.run] && snapshots[one.run] && snapshots[one.run][one.actor] >= one.clock;
}
UNSEEN static Region *region_of(const char *at) {
  if (last_region < region_count && at >= regions[last_region].low && at < regions[last_region].high)
    return regions + last_region;
  int low = 0, high = region_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (at >= regions[middle].high) low = middle + 1;
    else high = middle;
  }
  if (low == region_count || at < regions[low].low) return 0;
  last_region = low;
  return regions + low;
}
UNSEEN static void touch_cell(Region &region, const char *at, unsigned char mask, Kind kind, unsigned place) {
  static const char *const names[] = {"", "read", "written", "changed atomically", "written by a copy"};
  static unsigned turn;
  const int actor = actor_here();
  const unsigned *mine = clocks[actor];
  Cell &cell = region.cells[(at - region.low) / 8];
  int slot = -1;
  for (int i = 0; i < SEEN; i++) {
    Seen &one = cell.seen[i];
    if (one.kind == NOTHING) {
      if (slot < 0) slot = i;
      continue;
    }
    if (by_tensor_cores && region.shared && one.run == run_here && one.kind == WRITE && (one.mask & mask) &&
        one.actor < cluster_here * threads_here && published[one.actor] < one.clock &&
        !(published_to[actor] && published_to[actor][one.actor] >= one.clock)) {
      tell("shared memory %ld: written by thread %d of run %u (at %x), and not published to what reads or writes it then\n",
          (long)(at - region.low), one.actor, one.run, one.place);
      one.kind = NOTHING;
      continue;
    }
    const bool same = one.actor == actor && one.run == run_here, ordered = same || is_ordered(region, one, mine);
    if (!ordered && (one.mask & mask) && (kind != READ || one.kind != READ) && !(kind == ATOMIC && one.kind == ATOMIC)) {
      tell("%s memory %ld: %s by thread %d of run %u (at %x), then %s by thread %d of run %u (at %x)\n",
          region.shared ? "shared" : "device", (long)(at - region.low), names[one.kind], one.actor, one.run, one.place,
          names[kind], actor, run_here, place);
      one.kind = NOTHING;
    } else if (ordered && (mask & one.mask) == one.mask && (kind != READ || one.kind == READ)) {
      slot = i;  // what comes after this one need not be compared with that one
    }
  }
  if (slot < 0) slot = turn++ % SEEN;
  cell.seen[slot] = {mine[actor], run_here, place, (unsigned short)actor, mask, (unsigned char)kind};
}
UNSEEN static unsigned place_of_call(const void *caller) {
  return (unsigned)((const char *)caller - 1 - &__ehdr_start);  // as addr2line takes it
}
// Before the launch in front has ended nothing may be written, and nothing read that one in front writes.
UNSEEN static void check_early(const Region &region, const char *at, size_t count, Kind kind, unsigned place) {
  if (region.shared || !overlaps_here || awaited[current]) return;
  const long first = at - region.low, last = first + (long)count - 1;
  if (kind != READ) {
    tell("device memory %ld is written (at %x) before the launch in front has ended\n", first, place);
    return;
  }
  for (long i = first / LINE; region.dirty && i <= last / LINE; i++)
    if (region.dirty[i]) {
      tell("device memory %ld of %ld is read (at %x) before the launch in front has ended, which may write it\n", first,
          (long)(region.high - region.low), place);
      return;
    }
}
UNSEEN static void begin_read(const void *from, size_t count) {  // of an asynchronous copy
  Region *region = watching && count ? region_of((const char *)from) : 0;
  if (region) check_early(*region, (const char *)from, count, READ, 0);
}
UNSEEN static void touch(const void *from, size_t count, Kind kind, const void *caller) {
  const char *at = (const char *)from, *const end = at + count;
  Region *region = watching && count ? region_of(at) : 0;
  if (!region) return;
  const unsigned place = place_of_call(caller);
  if (acting < 0) check_early(*region, at, count, kind, place);
  if (kind != READ && region->dirty)
    memset(region->dirty + (at - region->low) / LINE, 1, (end - 1 - region->low) / LINE - (at - region->low) / LINE + 1);
  while (at < end && at < region->high) {
    const size_t first = (at - region->low) % 8;
    size_t some = 8 - first;
    if (some > (size_t)(end - at)) some = end - at;
    touch_cell(*region, at - first, (unsigned char)(((1u << some) - 1) << first), kind, place);
    at += some;
  }
}
int arity_base;

// A GPU has no accesses to addresses that are no multiple of their size.
UNSEEN static void touch_aligned(const void *at, size_t count, Kind kind, const void *caller) {
  if ((size_t)at % count && watching && region_of((const char *)at))
    tell("an access of %d bytes (at %x) is not aligned\n", (int)count, place_of_call(caller));
  touch(at, count, kind, caller);
}
#define SMELT_TOUCH(SIZE) \
  extern "C" UNSEEN void __tsan_read##SIZE(void *at) { touch_aligned(at, SIZE, READ, __builtin_return_address(0)); } \
  extern "C" UNSEEN void __tsan_write##SIZE(void *at) { touch_aligned(at, SIZE, WRITE, __builtin_return_address(0)); } \
  extern "C" UNSEEN void __tsan_unaligned_read##SIZE(void *at) { touch(at, SIZE, READ, __builtin_return_address(0)); } \
  extern "C" UNSEEN void __tsan_unaligned_write##SIZE(void *at) { touch(at, SIZE, WRITE, __builtin_return_address(0)); } \
  extern "C" UNSEEN void __tsan_volatile_read##SIZE(void *) {} /* flags, by intent */ \
  extern "C" UNSEEN void __tsan_volatile_write##SIZE(void *) {} \
  extern "C" UNSEEN void __tsan_unaligned_volatile_read##SIZE(void *) {} \
  extern "C" UNSEEN void __tsan_unaligned_volatile_write##SIZE(void *) {}
SMELT_TOUCH(1)
SMELT_TOUCH(2)
SMELT_TOUCH(4)
SMELT_TOUCH(8)
SMELT_TOUCH(16)
#undef SMELT_TOUCH
extern "C" UNSEEN void __tsan_read_range(void *at, size_t n) { touch(at, n, READ, __builtin_return_address(0)); }
extern "C" UNSEEN void __tsan_write_range(void *at, size_t n) { touch(at, n, WRITE, __builtin_return_address(0)); }
extern "C" UNSEEN void __tsan_init(void) {}
extern "C" UNSEEN void __tsan_func_entry(void *) {}
extern "C" UNSEEN void __tsan_func_exit(void) {}
extern "C" UNSEEN void __tsan_vptr_update(void *, void *) {}
UNSEEN static void copy_bytes(void *to, const void *from, size_t n) {
  touch(from, n, READ, __builtin_return_address(0));
  touch(to, n, copying ? COPY : WRITE, __builtin_return_address(0));
  __builtin_memcpy(to, from, n);
}
UNSEEN static void begin_write(void *to, size_t n) {  // of an asynchronous copy, which may be done at once
  touch(to, n, COPY, __builtin_return_address(0));
}
UNSEEN static void write_zeros(void *to, size_t n) {
  touch(to, n, copying ? COPY : WRITE, __builtin_return_address(0));
  __builtin_memset(to, 0, n);
}

UNSEEN static void clear_field(Field *field) {
  if (!field->clocks) field->clocks = (unsigned *)malloc(ACTORS * sizeof(unsigned));
  memset(field->clocks, 0, actors_here() * sizeof(unsigned));
}
UNSEEN static Field *field_of(const void *at) {
  for (int i = 0; i < field_count; i++)
    if (fields[i].at == at) return fields + i;
  if (field_count == FIELDS) abort();
  Field *made = fields + field_count++;
  made->at = at;
  clear_field(made);
  return made;
}
UNSEEN static void hand_over(unsigned *to) {  // what the actor knows, which is done with what it did before
  const int actor = actor_here();
  join_clocks(to, clocks[actor]);
  clocks[actor][actor]++;
}
UNSEEN static void release_at(const void *at) { hand_over(field_of(at)->clocks); }
UNSEEN static void acquire_at(const void *at) { join_clocks(clocks[actor_here()], field_of(at)->clocks); }
// A counter in device memory, which blocks share: it is kept from one run to the next.
struct Counter { const void *at; unsigned count, runs[4096]; };
static Counter counters[COUNTERS];
static int counter_count;
UNSEEN static void count_at(const void *at) {
  Counter *counter = 0;
  for (int i = 0; i < counter_count; i++)
    if (counters[i].at == at) counter = counters + i;
  if (!counter) {
    if (counter_count == COUNTERS) abort();
    counter = counters + counter_count++;
    counter->at = at;
    counter->count = 0;
  }
  if (!watching) return;
  for (unsigned i = 0; i < counter->count; i++) known[counter->runs[i]] = true;
  if (counter->count < 4096) counter->runs[counter->count++] = run_here;
  const size_t size = actors_here() * sizeof(unsigned);
  snapshots[run_here] = (unsigned *)realloc(snapshots[run_here], size);
  memcpy(snapshots[run_here], clocks[current], size);
  clocks[current][current]++;
}
UNSEEN static unsigned *snapshot(void) {
  unsigned *made = (unsigned *)malloc(ACTORS * sizeof(unsigned));
  memcpy(made, clocks[current], actors_here() * sizeof(unsigned));
  clocks[current][current]++;
  return made;
}
// The actor that is the copy engine for an mbarrier, which knows what the thread knew that began the copy.
UNSEEN static int begin_engine(const void *at, unsigned *known_then, int by) {
  const int engine = cluster_here * threads_here + (int)((field_of(at) - fields) % ENGINES);
  const unsigned turn = clocks[engine][engine] + 1;
  memcpy(clocks[engine], known_then, actors_here() * sizeof(unsigned));
  clocks[engine][engine] = turn;
  free(known_then);
  published_to[engine] = published_to[by];
  return engine;
}
UNSEEN static void publish(void) {  // a proxy fence
  published[current] = clocks[current][current]++;
  if (!published_to[current]) published_to[current] = (unsigned *)malloc(ACTORS * sizeof(unsigned));
  memcpy(published_to[current], clocks[current], actors_here() * sizeof(unsigned));
}
UNSEEN static void await_launches(void) { awaited[current] = any_awaited = true; }
UNSEEN static void touch_atomically(const void *at, size_t count) {
  touch(at, count, ATOMIC, __builtin_return_address(0));
}
// What comes behind a barrier knows what came before it. `before`, `behind`: of this turn of the barrier.
UNSEEN static void enter_barrier(int *before) {
  if (!*before) *before = (int)(field_of(before) - fields) + 1;
  hand_over(fields[*before - 1].clocks);
}
UNSEEN static void open_barrier(int *before, int *behind) {
  if (!*before) return;
  if (!*behind) *behind = (int)(field_of(behind) - fields) + 1;
  unsigned *const known_before = fields[*before - 1].clocks;
  fields[*before - 1].clocks = fields[*behind - 1].clocks;
  fields[*behind - 1].clocks = known_before;
  clear_field(fields + *before - 1);
}
UNSEEN static void leave_barrier(const int *behind) {
  if (*behind) join_clocks(clocks[current], fields[*behind - 1].clocks);
}
UNSEEN static void begin_run(void) {
  const int count = actors_here();
  if (!clocks) clocks = (unsigned (*)[ACTORS])calloc(ACTORS, sizeof *clocks);
  for (int i = 0; i < count; i++) {
    memset(clocks[i], 0, count * sizeof(unsigned));
    clocks[i][i] = 1;
  }
  watching = watching && ++run_here < RUNS;
  memset(known, 0, sizeof known);
  memset(awaited, 0, sizeof awaited);
  memset(published, 0, sizeof published);
  for (int i = 0; i < count; i++) {
    if (i >= cluster_here * threads_here) published_to[i] = 0;  // engines have what a thread knew
    if (published_to[i]) memset(published_to[i], 0, count * sizeof(unsigned));
  }
  field_count = 0;
}
UNSEEN static void add_region(char *low, size_t count, unsigned char *dirty, bool shared) {
  if (region_count == region_room)
    regions = (Region *)realloc(regions, (region_room = region_room ? 2 * region_room : 64) * sizeof(Region));
  int at = region_count++;
  for (; at > 0 && regions[at - 1].low > low; at--) regions[at] = regions[at - 1];
  regions[at] = {low, low + count, (Cell *)calloc(count / 8 + 2, sizeof(Cell)), dirty, shared};
  last_region = 0;
}
UNSEEN static void watch_shared(const void *low, size_t count) {
  if (watching) add_region((char *)low, count, 0, true);
}
extern "C" UNSEEN void watch_memory(char *low, long long count, unsigned char *dirty) {
  if (count > 0) add_region(low, count, dirty, false);
}
extern "C" UNSEEN const char *end_watch(void) {
  for (int i = 0; i < region_count; i++) free(regions[i].cells);
  region_count = 0;
  watching = false;
  if (overlaps_here && !any_awaited) tell("a launch that may begin early never waits for the one in front\n");
  static char said[4096];
  memcpy(said, report, sizeof said);
  report[0] = report_size = reports = 0;
  return said;
}
extern "C" UNSEEN void begin_watch(int overlaps) {
  overlaps_here = overlaps;
  any_awaited = false;
  watching = true;
  run_here = counter_count = 0;
}
