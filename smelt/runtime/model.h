/* What `smelt/aot/describe.py` writes about a model: constant data that `smelt_model_create` reads. */
#ifndef SMELT_MODEL_H
#define SMELT_MODEL_H

#include "api.h"
#include "runtime.h"

typedef struct { const char *expected, *why; } SizeCheck;
typedef struct { const char *message; int of_sizes; } DataCheck; /* `{0}` is the first number of the record */

/* A program for one layout of packed weights. */
typedef struct {
  const i64 *layout;          /* as for smelt_make */
  i64 numbers;                /* in it */
  const i64 *offsets;         /* in the weights: bound arguments, then constants */
  const char *const *symbols; /* names */
  const SizeCheck *size_checks;
  const DataCheck *data_checks;
} Variant;

/* Its machine code for one kind of processor. Versions are listed from the best to the baseline. */
typedef struct {
  const char *name;
  i64 features; /* bits of smelt_features that it needs */
  const Variant *variant;
  Run run;
  Measure measure;
} Version;

typedef struct Description Description;
struct Description {
  smelt_signature signature;
  const Description *general; /* the same model for sizes that this one refuses; or NULL */
  i64 count;                  /* of versions */
  const Version *versions;
  const unsigned char *weights; /* NULL: in a file that `open` maps */
  int (*open)(const char *path, i64 bytes, unsigned long long checksum, const unsigned char **weights);
  i64 weight_bytes;
  unsigned long long checksum;  /* of the weights */
};

int smelt_model_create(const Description *description, const smelt_options *options, smelt_model **model);
/* weights.c; not in builds without files */
enum { WEIGHTS_MISSING = 1, WEIGHTS_OTHER = 2 }; /* cannot be opened; damaged, or of another model */
int smelt_open_weights(const char *path, i64 bytes, unsigned long long checksum, const unsigned char **weights);

const char *smelt_model_version(const smelt_model *model); /* the name of the code version in use */

#endif
