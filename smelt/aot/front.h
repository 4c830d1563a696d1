/* The executable around a model: what its files share. Functions that can fail print a message and return 0. */
#ifndef SMELT_FRONT_H
#define SMELT_FRONT_H

#include "api.h"

#include <stdio.h>
#include <stdlib.h>

/* Memory of tensors: 64-byte aligned. */
#ifdef _WIN32
#include <malloc.h>
static inline void *take_block(size_t bytes) { return _aligned_malloc(bytes + 1, 64); }
static inline void give_block(void *block) { _aligned_free(block); }
#else
static inline void *take_block(size_t bytes) { return aligned_alloc(64, bytes / 64 * 64 + 64); }
static inline void give_block(void *block) { free(block); }
#endif

const char *smelt_model_version(const smelt_model *model); /* the code version in use; of model.c */

/* main.c */

/* Prints "error" and a message in the form of smelt's errors; all but the message may be NULL. Returns 0. */
int refuse(const char *message, const char *what, const char *expected, const char *got, const char *remedy);
int refuse_call(void); /* the same with the text of the model's last error */
void print_string(FILE *file, const char *text);

/* files.c */
char *read_file(const char *path, int64_t *bytes); /* "-": stdin; ends with a zero byte; NULL: refused */
int read_tensor(const char *text, const smelt_port *port, smelt_tensor *tensor);
int write_tensor(const char *path, const smelt_tensor *tensor, int64_t itemsize);
int64_t count_elements(const smelt_tensor *tensor);

/* json.c */
int parse_json(const char *text, const char *where, const smelt_port *port, smelt_tensor *tensor, const char **end);
int print_json(FILE *file, const smelt_tensor *tensor);
double number_at(const smelt_tensor *tensor, int64_t itemsize, int64_t i); /* an element as a number */

/* The inputs and outputs of a call that were recorded when the model was built; none where they are large. */
typedef struct {
  int count; /* inputs and outputs */
  const smelt_tensor *tensors;
} Sample;
extern const Sample recorded;

/* measure.c */
int selftest(smelt_model *model);
int bench(smelt_model *model, const smelt_tensor *inputs, double seconds);

/* listen.c */
int listen_on(smelt_model *model, const char *path);

#endif
