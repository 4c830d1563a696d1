/* Classifies two images with libdigits.a. All memory of the model comes from a static array. */
#include "digits.h"

#include <stdio.h>

static char memory[1 << 18];

static int fail(void) {
  fprintf(stderr, "error %s\n", smelt_error());
  return 1;
}

int main(void) {
  smelt_options options = {0};
  smelt_model *model;
  options.memory = memory, options.memory_bytes = sizeof memory;
  if (digits_create(&options, &model)) return fail();

  static float pixels[2][64]; /* the second one is a vertical stroke */
  for (int row = 0; row < 8; row++) pixels[1][row * 8 + 3] = pixels[1][row * 8 + 4] = 15;
  float results[2][10];
  smelt_tensor input = {0}, output = {0};
  input.dtype = SMELT_F32, input.rank = 2, input.sizes[0] = 2, input.sizes[1] = 64;
  input.data = pixels, input.bytes = sizeof pixels;
  output.data = results, output.bytes = sizeof results;
  if (smelt_model_call(model, &input, &output)) return fail();
  for (int i = 0; i < 2; i++) {
    int best = 0;
    for (int d = 1; d < 10; d++)
      if (results[i][d] > results[i][best]) best = d;
    printf("image %d: %d (%.3f)\n", i, best, (double)results[i][best]);
  }

  input.sizes[1] = 63; /* too narrow */
  int status = smelt_model_call(model, &input, &output);
  printf("status %d: %s\n", status, smelt_error());
  smelt_model_destroy(model);
  return status == SMELT_BAD_ARGUMENT ? 0 : 1;
}
