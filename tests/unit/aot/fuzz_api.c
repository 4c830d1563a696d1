/* Calls a model with random tensors: wrong element types, ranks, sizes, lengths, missing data. Built with sanitizers. A
 * call must be refused with a message, or succeed with finite results. Arguments: the seed, the number of calls. */
#include "digits.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t draw(uint64_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % below;
}

static const int64_t odd_sizes[] = {0, 1, 2, 3, 63, 64, 65, -1, INT64_MAX, INT64_MIN, 1LL << 40, 1LL << 62};

static void disturb(smelt_tensor *tensor) {
  switch (draw(6)) {
  case 0: tensor->dtype = (int32_t)draw(40) - 4; break;
  case 1: tensor->rank = (int32_t)draw(24) - 4; break;
  case 2: tensor->sizes[draw(SMELT_MAX_RANK)] = odd_sizes[draw(12)]; break;
  case 3: tensor->bytes = (int64_t)draw(600) - 20; break;
  case 4: tensor->data = NULL; break;
  default: tensor->data = (char *)tensor->data + 1; break;
  }
}

int main(int count, char **arguments) {
  state = count > 1 ? strtoull(arguments[1], NULL, 10) * 2 + 1 : 1;
  int64_t calls = count > 2 ? atoll(arguments[2]) : 1000, refused = 0;
  char *memory = malloc(1 << 17);
  for (int64_t i = 0; i < calls; i++) {
    smelt_options options = {.threads = 1 + (int)draw(3)};
    if (draw(2)) options.memory = memory + draw(70), options.memory_bytes = (int64_t)draw(1 << 16);
    smelt_model *model;
    if (digits_create(&options, &model)) {
      if (model || !*smelt_error()) return puts("no message"), 1;
      continue;
    }
    for (int call = 0; call < 8; call++) {
      int64_t rows = (int64_t)draw(5), bytes = rows * 256;
      float *pixels = calloc(1, (size_t)bytes + 1), *room = malloc((size_t)rows * 40 + 1);
      smelt_tensor input = {SMELT_F32, 2, {rows, 64}, pixels, bytes}, output = {0};
      if (draw(2)) output.data = room, output.bytes = rows * 40;
      int is_disturbed = draw(3) > 0;
      if (is_disturbed && draw(4)) disturb(&input);
      else if (is_disturbed && output.data) disturb(&output);
      if (input.sizes[0] > 4 || input.bytes > bytes) input.bytes = bytes; /* the caller does not lie about its memory */
      if (output.data && output.bytes > rows * 40) output.bytes = rows * 40;
      if (output.data && output.data != room) output.bytes -= output.bytes > 0;
      if (input.data && input.data != pixels) input.bytes = bytes;
      void *given = output.data;
      int status = smelt_model_call(model, &input, &output);
      refused += status != 0;
      if (status && !*smelt_error()) return puts("no message"), 1;
      if (!status) {
        for (int64_t j = 0; j < output.sizes[0] * 10; j++)
          if (!(((float *)output.data)[j] <= 1)) return puts("a wrong result"), 1;
        if (!given) smelt_tensor_release(model, &output);
      }
      free(pixels), free(room);
    }
    smelt_model_destroy(model);
  }
  free(memory);
  printf("%lld refused\n", (long long)refused);
  return 0;
}
