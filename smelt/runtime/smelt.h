/* The contract between generated programs and the runtime library. Programs repeat these declarations textually: a
 * program includes nothing, calls nothing but what `Runtime` offers, and keeps no state of its own.
 *
 * Who guarantees what:
 *   buffers   [0, arguments) the arguments (bound ones first, then inputs), then the results, then the constants. A
 *             program never writes to constants, nor to arguments but those that the engine knows to be donated; a
 *             donated argument may be a result as well, at the same address. Argument and result pointers are aligned to their
 *             element type only, constants to 64 bytes. An array without elements may have any pointer, NULL included.
 *   symbols   the entry symbols' values, in the order that the engine gave; each is at least 0.
 *   measure   runs before `run` with the same symbols and decides whether they fit the program at all. It writes
 *             out[0] = bytes of the arena, out[1] = bytes of scratch per worker, then the sizes of all dimensions of all
 *             results in order. A size that only data tells is written as -1; such a result is called late.
 *   late      For a late result `buffers` holds NULL at entry. The program takes memory for it with `grow`, puts the
 *             pointer into `buffers`, and writes its sizes to `ctx->late`, which has one number for every dimension of
 *             every result, in the order of measure's out + 2 and with those values at entry. The runtime copies the
 *             elements before it takes the memory back. Other results' entries stay as they are.
 *   cancel    Programs look at `*ctx->cancel` between steps and between iterations of long loops. Where it is not zero,
 *             something may have happened (a signal, a deadline, a cancellation): `ctx->stop(ctx)` finds out. Where
 *             that gives 0 the program goes on; else it returns SMELT_CANCELLED at once. Any worker may ask.
 *   status    0: all results are complete. SMELT_CANCELLED: `stop` said so. SMELT_NO_MEMORY: `grow` refused;
 *             record[0] may hold the bytes. Positive: the program's own failures; `record` says more.
 */
#ifndef SMELT_H
#define SMELT_H

typedef long long i64;
typedef struct Runtime Runtime;
typedef struct Context Context;
typedef void (*Body)(void *env, i64 begin, i64 end, i64 worker);

struct Runtime {
  i64 version; /* 2 */
  i64 threads; /* workers, the caller included: a hint, for it may change while a program runs */
  /* Calls body over [0, count) and returns when all is done. Pieces start at multiples of `chunk` and hold at least
   * `chunk` elements (all, where count < chunk). Two pieces that run at once see different `worker` numbers, each less
   * than the number of scratch areas. Runs inline, as one piece, where the pool is busy, count <= chunk or there is one
   * thread. A body may open a step of its own, which then shares the worker's scratch with it: as a rule that finds the
   * pool busy, but it need not. How [0, count) is split differs from run to run: results must not depend on it. */
  void (*parallel)(const Runtime *rt, Context *ctx, Body body, void *env, i64 count, i64 chunk);
  /* 64-byte aligned memory whose size only data tells; taken back when the call ends; NULL if refused. Any worker may
   * call it. */
  void *(*grow)(Context *ctx, i64 bytes);
};

struct Context {
  const volatile int *cancel; /* non-zero: ask `stop` */
  char *arena;                /* temporaries, 64-byte aligned */
  char *scratch;              /* per worker: scratch + worker * scratch_stride, 64-byte aligned */
  i64 scratch_stride;
  i64 record[8];              /* what went wrong: filled by the program on a non-zero status; zeros at entry */
  void *owner;                /* the runtime's own */
  i64 *late;                  /* sizes of late results, see above */
  int (*stop)(Context *ctx);  /* whether the call has to end now */
};

/* Of programs; the runtime tells its callers more: a deadline, a signal, a limit on memory (record: bytes needed, limit). */
enum { SMELT_CANCELLED = -1, SMELT_NO_MEMORY = -2, SMELT_TIMED_OUT = -3, SMELT_INTERRUPTED = -4, SMELT_OVER_LIMIT = -5 };

/* Every generated program NAME exports these two. run: 0 = ok. measure: 0 = ok, else 1 + the failed size check. */
typedef int (*Run)(const Runtime *rt, Context *ctx, void **buffers, const i64 *symbols);
typedef int (*Measure)(const i64 *symbols, i64 *out);

#endif
