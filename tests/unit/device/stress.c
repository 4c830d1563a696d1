/* The pool and the slots under load, for sanitizers: several callers of one executable, with and without a limit on memory,
 * the number of threads changing, calls being cancelled, memory being trimmed, a fork. Exits with 0 when every sum was right. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLERS = 6, ROUNDS = 80, BLOCK = 64 };

static Executable executable;
static Account account = {.limit = 5000}; /* for two or three calls at once: others wait in its queue */
static const Port ports[2] = {{.itemsize = 4}, {.itemsize = 4}};
static atomic_int finished, wrong;

typedef struct { const i64 *values; i64 *parts; i64 count; Context *ctx; const Runtime *rt; } Env;

static void inner(void *env, i64 begin, i64 end, i64 worker) {
  (void)worker; /* runs in parallel where the outer step was inline */
  for (i64 i = begin; i < end; i++) atomic_fetch_add((_Atomic i64 *)env, 1);
}

static void body(void *given, i64 begin, i64 end, i64 worker) {
  Env *env = given;
  i64 *scratch = (i64 *)(env->ctx->scratch + worker * env->ctx->scratch_stride);
  for (i64 block = begin; block < end; block++) {
    i64 last = (block + 1) * BLOCK < env->count ? (block + 1) * BLOCK : env->count;
    *scratch = 0;
    for (i64 i = block * BLOCK; i < last; i++) *scratch += env->values[i];
    _Atomic i64 nested = 0;
    env->rt->parallel(env->rt, env->ctx, inner, &nested, 10, 1);
    env->parts[block] = *scratch + nested - 10;
  }
}

static int run(const Runtime *rt, Context *ctx, void **buffers, const i64 *symbols) {
  i64 blocks = (symbols[0] + BLOCK - 1) / BLOCK, *grown = rt->grow(ctx, 8);
  Env env = {buffers[0], (i64 *)ctx->arena, symbols[0], ctx, rt};
  if (!grown) return SMELT_NO_MEMORY;
  rt->parallel(rt, ctx, body, &env, blocks, 2);
  if (__atomic_load_n(ctx->cancel, __ATOMIC_RELAXED) && ctx->stop(ctx)) return SMELT_CANCELLED;
  *grown = 0;
  for (i64 i = 0; i < blocks; i++) *grown += env.parts[i];
  *(i64 *)buffers[1] = *grown;
  return 0;
}

static int measure(const i64 *symbols, i64 *out) {
  out[0] = (symbols[0] + BLOCK - 1) / BLOCK * 8;
  out[1] = 8;
  return 0;
}

static void call_once(i64 count) {
  i64 result = -1, *values = malloc((size_t)count * 8);
  for (i64 i = 0; i < count; i++) values[i] = i;
  Slot *slot = smelt_take(&executable);
  slot->symbols[0] = count;
  if (smelt_measure(slot)) wrong++;
  slot->buffers[0] = values;
  slot->buffers[1] = &result;
  int status = smelt_execute(slot);
  int refused = status == SMELT_CANCELLED || (executable.account && status == SMELT_OVER_LIMIT);
  if (!refused && (status || result != count * (count - 1) / 2)) wrong++;
  smelt_give(slot);
  free(values);
}

static void *caller(void *seed) {
  for (i64 i = 0; i < ROUNDS; i++) call_once((i64)(intptr_t)seed * 1000 + i * 37 + 1);
  finished++;
  return NULL;
}

static int fork_and_call(void) {
  pid_t child = fork();
  if (!child) {
    call_once(5000);
    _exit(wrong != 0 || smelt_started() == 0);
  }
  int status;
  return waitpid(child, &status, 0) != child || status;
}

static void call_from_threads(void) {
  pthread_t threads[CALLERS];
  finished = 0;
  smelt_set_threads(4, 1000);
  for (i64 i = 0; i < CALLERS; i++) pthread_create(&threads[i], NULL, caller, (void *)(i + 1));
  for (i64 round = 0; finished < CALLERS; round++) {
    if (smelt_set_threads(1 + round % 5, round % 2 * 1000)) wrong++;
    if (round % 3 == 0) smelt_cancel(&executable);
    if (round % 4 == 0) smelt_trim(&executable);
    usleep(500);
  }
  for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
  void *buffers[2] = {0};
  executable.ports = ports, executable.run = run, executable.measure = measure;
  executable.symbols = executable.inputs = executable.results = 1;
  executable.buffers = buffers;
  smelt_register(&executable);
  call_from_threads();
  smelt_trim(&executable);
  executable.account = &account;
  call_from_threads();
  smelt_trim(&executable);
  if (account.used || account.running || account.waiting || account.first || account.last) wrong++;
  executable.account = NULL;
  smelt_set_threads(3, 1000);
  call_once(10000);
  if (argc > 1 && !strcmp(argv[1], "fork") && fork_and_call()) wrong++;
  smelt_close(&executable);
  smelt_unregister(&executable);
  smelt_set_threads(1, 0);
  if (smelt_allocated()) wrong++;
  printf("%d wrong\n", wrong);
  return wrong != 0;
}
