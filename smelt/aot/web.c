/* A model for JavaScript (web.js): one model per instance of the module. The loader writes the arguments of a call into
 * the table of tensors, and the weights, where they are not in the module, into memory from `smelt_web_weights`. */
#include "model.h"

#include <stddef.h>

#define EXPORT(name) __attribute__((export_name(#name))) name

/* web.js reads and writes this layout. */
_Static_assert(sizeof(smelt_tensor) == 152 && offsetof(smelt_tensor, sizes) == 8, "layout of web.js");
_Static_assert(offsetof(smelt_tensor, data) == 136 && offsetof(smelt_tensor, bytes) == 144, "layout of web.js");

enum { PIECE = 1 << 20 }; /* bytes under one checksum, as in weights.c */

int MODEL_CREATE(const smelt_options *options, smelt_model **model);

static smelt_model *model;
static smelt_tensor *tensors; /* inputs, then outputs */
static unsigned char *weights;
static i64 weight_bytes;

void *EXPORT(smelt_web_allocate)(uint32_t bytes) { return smelt_allocate(bytes); }

void EXPORT(smelt_web_release)(void *block, uint32_t bytes) { smelt_release(block, bytes); }

/* Where the loader writes the weights; NULL: no memory. */
void *EXPORT(smelt_web_weights)(uint32_t bytes) {
  weight_bytes = bytes;
  return weights = smelt_allocate(bytes);
}

int smelt_open_weights(const char *path, i64 bytes, unsigned long long checksum, const unsigned char **opened) {
  (void)path;
  if (!weights) return WEIGHTS_MISSING;
  if (weight_bytes != bytes) return WEIGHTS_OTHER;
  i64 count = (bytes + PIECE - 1) / PIECE;
  unsigned long long *sums = smelt_allocate(count * 8);
  if (!sums) return WEIGHTS_MISSING;
  for (i64 i = 0; i < count; i++) {
    i64 rest = bytes - i * PIECE;
    sums[i] = smelt_checksum(weights + i * PIECE, rest < PIECE ? rest : PIECE);
  }
  int is_other = smelt_checksum(sums, count * 8) != checksum;
  smelt_release(sums, count * 8);
  *opened = weights;
  return is_other ? WEIGHTS_OTHER : 0;
}

/* Makes the model; `name`: what the weights were read from. */
int EXPORT(smelt_web_create)(const char *name) {
  smelt_options options = {.weights = name};
  int failed = MODEL_CREATE(&options, &model);
  if (failed) return failed;
  const smelt_signature *signature = smelt_model_signature(model);
  tensors = smelt_allocate_zeroed((i64)sizeof *tensors * (signature->inputs + signature->outputs + 1));
  return tensors ? SMELT_OK : SMELT_OUT_OF_MEMORY;
}

smelt_tensor *EXPORT(smelt_web_tensors)(void) { return tensors; }

int EXPORT(smelt_web_call)(void) { return smelt_model_call(model, tensors, tensors + smelt_model_signature(model)->inputs); }

/* Frees the outputs of the last call, after the loader has copied them. */
void EXPORT(smelt_web_forget)(void) {
  const smelt_signature *signature = smelt_model_signature(model);
  for (int r = 0; r < signature->outputs; r++) smelt_tensor_release(model, &tensors[signature->inputs + r]);
}

const char *EXPORT(smelt_web_error)(void) { return smelt_error(); }
