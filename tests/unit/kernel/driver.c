/* Runs generated programs for a sanitizer: `driver folder count` runs program i on folder/i.case and writes its results
 * to folder/i.results. Every buffer is a block of its own, of exactly its size; a loop on cores is cut into up to four
 * pieces, each of which gets a thread of its own whatever it costs, so that a sanitizer sees them as different threads.
 * bare.py writes the cases and the table of programs. */
#include "smelt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECES = 4 };

extern const Run bare_runs[];
extern const Measure bare_measures[];

static FILE *opened(const char *folder, int i, const char *ending, const char *mode) {
  char name[4096];
  snprintf(name, sizeof name, "%s/%d.%s", folder, i, ending);
  FILE *file = fopen(name, mode);
  if (!file) exit(2);
  return file;
}

static i64 number(FILE *file) {
  i64 value;
  if (fread(&value, sizeof value, 1, file) != 1) exit(3);
  return value;
}

typedef struct { Body body; void *env; i64 begin, end, worker; } Piece;

static void *work(void *given) {
  Piece *piece = given;
  piece->body(piece->env, piece->begin, piece->end, piece->worker);
  return NULL;
}

static void parallel(const Runtime *rt, Context *ctx, Body body, void *env, i64 count, i64 chunk) {
  (void)rt, (void)ctx;
  pthread_t threads[PIECES];
  Piece pieces[PIECES];
  i64 units = count / chunk, used = units < PIECES ? units : PIECES;
  if (count <= 0) return;
  if (used < 2) {
    body(env, 0, count, 0);
    return;
  }
  for (i64 i = 0; i < used; i++) {
    i64 end = i + 1 == used ? count : (i + 1) * (units / used) * chunk;
    pieces[i] = (Piece){body, env, i * (units / used) * chunk, end, i};
    if (pthread_create(&threads[i], NULL, work, &pieces[i])) exit(6);
  }
  for (i64 i = 0; i < used; i++) pthread_join(threads[i], NULL);
}

static void *grow(Context *ctx, i64 bytes) {
  (void)ctx, (void)bytes; /* no size depends on data */
  return NULL;
}

static const Runtime runtime = {1, PIECES, parallel, grow};

static int one(const char *folder, int which) {
  FILE *file = opened(folder, which, "case", "rb");
  i64 symbol_count = number(file), *symbols = malloc((size_t)symbol_count * 8 + 8);
  for (i64 i = 0; i < symbol_count; i++) symbols[i] = number(file);
  i64 buffers = number(file), first = number(file), last = number(file);
  void **table = malloc((size_t)buffers * sizeof(void *) + 8);
  i64 *sizes = malloc((size_t)buffers * 8 + 8);
  for (i64 i = 0; i < buffers; i++) {
    sizes[i] = number(file);
    table[i] = malloc((size_t)sizes[i]);
    if (sizes[i] && fread(table[i], (size_t)sizes[i], 1, file) != 1) return 3;
  }
  fclose(file);
  static i64 out[1000];
  if (bare_measures[which](symbols, out) || out[0]) return 4; /* all temporaries are buffers of their own */
  static int never;
  Context context = {.cancel = &never};
  if (bare_runs[which](&runtime, &context, table, symbols)) return 5;
  file = opened(folder, which, "results", "wb");
  for (i64 i = first; i < last; i++)
    if (sizes[i]) fwrite(table[i], (size_t)sizes[i], 1, file);
  fclose(file);
  for (i64 i = 0; i < buffers; i++) free(table[i]);
  free(table), free(sizes), free(symbols);
  return 0;
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  for (int i = 0; i < atoi(arguments[2]); i++) {
    fprintf(stderr, "program %d\n", i);
    int failed = one(arguments[1], i);
    if (failed) return failed;
  }
  return 0;
}
