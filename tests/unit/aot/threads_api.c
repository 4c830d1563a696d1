/* Several threads call one model at once, with different batches, while another one cancels now and then. Every call that
 * ends well gives what a single thread gave, bit for bit; every other one was cancelled. */
#include "digits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 4, CALLS = 300, MOST = 48 };

static smelt_model *model;
static float pixels[MOST][64], wanted[MOST][10];
static atomic_int running = THREADS, cancelled, wrong;

static int call(int rows, float (*results)[10]) {
  smelt_tensor input = {SMELT_F32, 2, {rows, 64}, pixels, rows * 256}, output = {0};
  output.data = results, output.bytes = rows * 40;
  return smelt_model_call(model, &input, &output);
}

static void *work(void *number) {
  float results[MOST][10];
  for (int i = 0; i < CALLS; i++) {
    int rows = 1 + (i * 7 + (int)(size_t)number) % MOST, status = call(rows, results);
    if (status == SMELT_STOPPED) cancelled++;
    else if (status || memcmp(results, wanted, (size_t)rows * 40)) wrong++;
  }
  running--;
  return NULL;
}

int main(void) {
  smelt_options options = {.threads = 3};
  if (digits_create(&options, &model)) return puts(smelt_error()), 1;
  for (int i = 0; i < MOST * 64; i++) pixels[0][i] = (float)(i * 37 % 101) / 6;
  if (call(MOST, wanted)) return puts(smelt_error()), 1;
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(size_t)i);
  while (running) smelt_model_cancel(model);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  smelt_model_destroy(model);
  printf("%d cancelled, %d wrong\n", cancelled, wrong);
  return wrong != 0;
}
