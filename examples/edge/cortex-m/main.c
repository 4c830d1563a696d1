/* Handwritten digits on a Cortex-M4F: classifies two images of 8 x 8 pixels, and shows the text of an error. */
#include "digits.h"

void print(const char *text);

/* Two images of the test set: ink from 0 to 16. */
static const unsigned char images[2][64] = {
    {0, 4,  16, 15, 2,  0,  0,  0, 0, 11, 15, 15, 7,  0,  0,  0, 0, 9,  10, 6,  14, 0,  0,  0, 0, 0,  0,  7,  15, 0,  0,  0,
     0, 0,  0,  13, 10, 0,  0,  0, 0, 0,  1,  16, 7,  2,  2,  0, 0, 1,  12, 16, 15, 16, 15, 0, 0, 4,  16, 16, 16, 12, 11, 0},
    {0, 1,  12, 15, 5,  0,  0,  0, 0, 4,  15, 8,  15, 3,  0,  0, 0, 0,  3,  1,  14, 4,  0,  0, 0, 0,  4,  14, 16, 1,  0,  0,
     0, 0,  1,  10, 14, 15, 4,  0, 0, 0,  0,  0,  0,  12, 8,  0, 0, 4,  8,  4,  10, 16, 4,  0, 0, 2,  12, 16, 13, 6,  0,  0},
};

static void print_number(int number) {
  char digits[12], *at = digits + sizeof digits - 1;
  *at = 0;
  do *--at = (char)('0' + number % 10);
  while (number /= 10);
  print(at);
}

int main(void) {
  static float pixels[64], probabilities[10];
  smelt_model *model;
  if (digits_create(0, &model)) return print(smelt_error()), 1;
  smelt_tensor in = {SMELT_F32, 2, {1, 64}, pixels, sizeof pixels};
  smelt_tensor out = {.data = probabilities, .bytes = sizeof probabilities};
  for (int i = 0; i < 2; i++) {
    for (int p = 0; p < 64; p++) pixels[p] = images[i][p] / 16.0f;
    if (smelt_model_call(model, &in, &out)) return print(smelt_error()), 1;
    int best = 0;
    for (int d = 1; d < 10; d++)
      if (probabilities[d] > probabilities[best]) best = d;
    print("image "), print_number(i), print(": "), print_number(best), print(" (");
    print_number((int)(100 * probabilities[best] + 0.5f)), print(" %)\n");
  }
  in.sizes[1] = 63;
  if (!smelt_model_call(model, &in, &out)) return 1;
  print(smelt_error()), print("\n");
  smelt_model_destroy(model);
  return 0;
}
