/* --selftest: the call that was recorded at build time, compared. --bench: time, CPU time and energy per call. */
#define _GNU_SOURCE
#include "front.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOLERANCE 1e-3 /* of floats, relative to the largest number of an output */

/* ------------------------------------------------------------------------------------------ selftest */

/* The largest difference of two arrays, relative to the largest recorded number; INFINITY where kinds or sizes differ. */
static double difference(const smelt_tensor *got, const smelt_tensor *want, int64_t itemsize, int *is_equal) {
  int64_t count = count_elements(want);
  *is_equal = 0;
  if (got->rank != want->rank || memcmp(got->sizes, want->sizes, (size_t)want->rank * sizeof *want->sizes)) return INFINITY;
  *is_equal = !count || !memcmp(got->data, want->data, (size_t)(count * itemsize));
  double scale = 0, largest = 0;
  for (int64_t i = 0; i < count; i++) {
    double a = number_at(got, itemsize, i), b = number_at(want, itemsize, i), apart = fabs(a - b);
    if ((a != a) != (b != b)) return INFINITY;
    if (isfinite(b) && fabs(b) > scale) scale = fabs(b);
    if (a == b || a != a) continue;
    if (!isfinite(apart)) return INFINITY;
    if (apart > largest) largest = apart;
  }
  return largest == 0 ? 0 : scale > 0 ? largest / scale : INFINITY;
}

int selftest(smelt_model *model) {
  const smelt_signature *signature = smelt_model_signature(model);
  if (!recorded.count) return refuse("no call was recorded when this model was built", NULL, NULL, NULL, NULL);
  smelt_tensor *outputs = calloc((size_t)signature->outputs + 1, sizeof *outputs);
  if (!outputs) return refuse("no memory left", NULL, NULL, NULL, NULL);
  if (smelt_model_call(model, recorded.tensors, outputs)) return refuse_call();
  int failed = 0;
  for (int r = 0; r < signature->outputs; r++) {
    const smelt_port *port = &signature->ports[signature->inputs + r];
    int is_equal = 0;
    double apart = difference(&outputs[r], &recorded.tensors[signature->inputs + r], port->itemsize, &is_equal);
    int is_wrong = !(apart <= TOLERANCE);
    failed |= is_wrong;
    printf("%s: %s", port->name, is_equal ? "equal" : is_wrong ? "WRONG" : "close");
    if (!is_equal) printf(", largest difference %.2g of its scale", apart);
    putchar('\n');
    smelt_tensor_release(model, &outputs[r]);
  }
  free(outputs);
  return failed ? refuse("the selftest failed", NULL, "the outputs that were recorded at build time", NULL, NULL) : 1;
}

/* ------------------------------------------------------------------------------------------ bench */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Joules that the processor's package has used so far; -1 where that cannot be read. */
static double joules(void) {
#ifdef __linux__
  FILE *file = fopen("/sys/class/powercap/intel-rapl:0/energy_uj", "r");
  char text[32] = "";
  if (!file) return -1;
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  return *text ? 1e-6 * (double)strtoll(text, NULL, 10) : -1;
#else
  return -1;
#endif
}

/* Shellsort: the C library's qsort is larger than all of this file. */
static void sort(double *numbers, int count) {
  for (int gap = count / 2; gap; gap /= 2)
    for (int i = gap; i < count; i++) {
      double number = numbers[i];
      int at = i;
      for (; at >= gap && numbers[at - gap] > number; at -= gap) numbers[at] = numbers[at - gap];
      numbers[at] = number;
    }
}

int bench(smelt_model *model, const smelt_tensor *inputs, double seconds) {
  enum { MOST = 100000 };
  const smelt_signature *signature = smelt_model_signature(model);
  smelt_tensor *outputs = calloc((size_t)signature->outputs + 1, sizeof *outputs);
  double *times = malloc(MOST * sizeof *times);
  if (!outputs || !times) return refuse("no memory left", NULL, NULL, NULL, NULL);
  double first = now();
  if (smelt_model_call(model, inputs, outputs)) return refuse_call(); /* its outputs are used again */
  first = now() - first;
  int count = 0;
  double energy = joules(), begin = now();
  clock_t processor = clock();
  for (double last = begin; count < MOST && (count < 3 || last - begin < seconds); count++) {
    if (smelt_model_call(model, inputs, outputs)) return refuse_call();
    double at = now();
    times[count] = at - last, last = at;
  }
  double used = (double)(clock() - processor) / CLOCKS_PER_SEC / count, joule = joules();
  sort(times, count);
  printf("{\"version\": \"%s\", \"calls\": %d, \"first_ms\": %.4f, \"p10_ms\": %.4f, \"median_ms\": %.4f, \"p90_ms\": %.4f, \"cpu_ms\": %.4f",
         smelt_model_version(model), count, 1e3 * first, 1e3 * times[count / 10], 1e3 * times[count / 2], 1e3 * times[count * 9 / 10], 1e3 * used);
  if (energy >= 0 && joule >= energy) printf(", \"joules\": %.6f", (joule - energy) / count);
  puts("}");
  for (int r = 0; r < signature->outputs; r++) smelt_tensor_release(model, &outputs[r]);
  free(times), free(outputs);
  return 1;
}
