/* The ABI between generated programs and the runtime library. Generated programs contain a copy of these declarations.
 * They include no headers, call only the functions of `Runtime`, and have no state of their own.
 *
 * Contract:
 *   buffers   The arguments (bound ones first, then inputs), then the results, then the constants. A program writes
 *             neither to constants nor to arguments, except donated arguments; a donated argument may be a result too,
 *             at the same address. Arguments and results are aligned to their element type, constants to 64 bytes. The
 *             pointer of an empty array is arbitrary, NULL included.
 *   symbols   Values of the entry symbols, in the engine's order; each is at least 0.
 *   measure   Runs before `run` with the same symbols and checks the program's assumptions about sizes. It writes
 *             out[0] = bytes of the arena, out[1] = bytes of scratch per worker, then the sizes of all dimensions of all
 *             results in order. A data-dependent size is written as -1; such a result is called late.
 *   late      The buffer of a late result is NULL at entry. The program allocates it with `grow`, stores the pointer in
 *             `buffers`, and writes its sizes to `ctx->late`: one number per dimension of every result, in the order of
 *             measure's out + 2, initialised with those values. The runtime copies the elements before it frees the
 *             memory. Entries of other results are not changed.
 *   cancel    Programs read `*ctx->cancel` between steps and between iterations of long loops. If it is not 0 (a signal,
 *             a deadline or a cancellation is possible) they call `ctx->stop(ctx)`. If that returns 0 the program
 *             continues; else it returns SMELT_CANCELLED at once. Any worker may call `stop`.
 *   status    0: all results are complete. SMELT_CANCELLED: `stop` returned non-zero. SMELT_NO_MEMORY: `grow` returned
 *             NULL; record[0] may hold the bytes. Positive: a failed run-time check; `record` has its values.
 */
#ifndef SMELT_H
#define SMELT_H

typedef long long i64;
typedef struct Runtime Runtime;
typedef struct Context Context;
typedef void (*Body)(void *env, i64 begin, i64 end, i64 worker);

struct Runtime {
  i64 version; /* 2 */
  i64 threads; /* workers, the caller included: a hint, because it may change while a program runs */
  /* Parallel for over [0, count); returns when all calls of body have returned. Each call gets a range that starts at a
   * multiple of `chunk` and holds at least `chunk` elements (all, if count < chunk). Concurrent calls have different
   * `worker` numbers, each less than the number of scratch areas. Runs inline, as one range, if count <= chunk or there is
   * one thread. Calls of other threads may run at the same time: workers are shared among them. A body may start a nested
   * parallel for, which runs inline and shares the worker's scratch with it; it runs in parallel if the outer one was
   * inline. The split differs between runs: results must not depend on it. */
  void (*parallel)(const Runtime *rt, Context *ctx, Body body, void *env, i64 count, i64 chunk);
  /* 64-byte aligned memory of data-dependent size; freed when the call ends; NULL if refused. Any worker may call it. */
  void *(*grow)(Context *ctx, i64 bytes);
};

struct Context {
  const volatile int *cancel; /* non-zero: call `stop` */
  char *arena;                /* temporaries, 64-byte aligned */
  char *scratch;              /* per worker: scratch + worker * scratch_stride, 64-byte aligned */
  i64 scratch_stride;
  i64 record[8];              /* details of a failure: set by the program with a non-zero status; 0 at entry */
  void *owner;                /* the runtime's own */
  i64 *late;                  /* sizes of late results, see above */
  int (*stop)(Context *ctx);  /* whether the call must end now */
};

/* Programs return the first two. The runtime adds a deadline, a signal and a memory limit (record: bytes needed, limit). */
enum { SMELT_CANCELLED = -1, SMELT_NO_MEMORY = -2, SMELT_TIMED_OUT = -3, SMELT_INTERRUPTED = -4, SMELT_OVER_LIMIT = -5 };

/* Positive statuses: the number of a failed check, added to one of these. */
enum { SMELT_BROKEN = 1 << 20 /* of data */, SMELT_UNFIT = 1 << 21 /* of sizes */, SMELT_TOO_LARGE = 1 << 22 };

/* Every generated program NAME exports these two. run: 0 = ok. measure: 0 = ok, else 1 + the failed size check. */
typedef int (*Run)(const Runtime *rt, Context *ctx, void **buffers, const i64 *symbols);
typedef int (*Measure)(const i64 *symbols, i64 *out);

#endif
