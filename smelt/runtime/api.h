/* The C API of compiled models. `smelt compile --standalone` writes it at the head of every model's header.
 *
 * All functions may be called from any thread, and several threads may call one model at once. A function that can fail
 * returns 0 or a status below, and smelt_error() gives the text for this thread. Results never depend on the number of
 * threads. */
#ifndef SMELT_API_H
#define SMELT_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef SMELT_API
#define SMELT_API
#endif

enum { SMELT_MAX_RANK = 16 };

enum smelt_status {
  SMELT_OK = 0,
  SMELT_BAD_ARGUMENT = 1, /* a tensor of the wrong element type, rank or size */
  SMELT_BAD_SIZE = 2,     /* sizes that break an assumption of the model */
  SMELT_FAILED = 3,       /* a check of data failed while the model ran */
  SMELT_OUT_OF_MEMORY = 4,
  SMELT_STOPPED = 5,      /* by smelt_model_cancel */
  SMELT_BAD_FILE = 6      /* weights that are missing, damaged or of another model */
};

/* Element types; ui is unsigned. Types below 8 bits take one byte per element. */
enum smelt_dtype {
  SMELT_BOOL = 1, SMELT_I2, SMELT_I4, SMELT_I8, SMELT_I16, SMELT_I32, SMELT_I64, SMELT_INDEX,
  SMELT_UI2, SMELT_UI4, SMELT_UI8, SMELT_UI16, SMELT_UI32, SMELT_UI64,
  SMELT_F4E2M1FN, SMELT_F6E2M3FN, SMELT_F6E3M2FN, SMELT_F8E3M4, SMELT_F8E4M3, SMELT_F8E4M3FN, SMELT_F8E4M3FNUZ,
  SMELT_F8E4M3B11FNUZ, SMELT_F8E5M2, SMELT_F8E5M2FNUZ, SMELT_F8E8M0FNU,
  SMELT_BF16, SMELT_F16, SMELT_F32, SMELT_F64, SMELT_COMPLEX64, SMELT_COMPLEX128
};

/* An array in C order. `bytes` is the room behind `data`: of an input at least its elements' bytes. */
typedef struct {
  int32_t dtype, rank;
  int64_t sizes[SMELT_MAX_RANK];
  void *data;
  int64_t bytes;
} smelt_tensor;

/* An input or output: its name, its shape as text ("f32[N, 64]"), and each size, -1 where it is dynamic. */
typedef struct {
  const char *name, *shape;
  int32_t dtype, rank;
  int64_t itemsize;
  const int64_t *sizes;
} smelt_port;

typedef struct {
  const char *name;
  int32_t inputs, outputs;
  const smelt_port *ports; /* inputs, then outputs */
} smelt_signature;

/* Zeros are the defaults. */
typedef struct {
  int32_t threads;      /* of the whole process, the caller included; 0: one per processor */
  const char *weights;  /* the file, for a model whose weights are beside it */
  void *memory;         /* for everything that the model allocates; NULL: the system's memory */
  int64_t memory_bytes;
} smelt_options;

typedef struct smelt_model smelt_model;

/* A model's own header declares NAME_create, which makes a model. */

SMELT_API void smelt_model_destroy(smelt_model *model); /* after its last call has ended */

SMELT_API const smelt_signature *smelt_model_signature(const smelt_model *model);

/* From the inputs' sizes: the outputs' types and sizes (-1 where they depend on data), and the bytes that a call
 * allocates beside its outputs. Data is not read. `bytes` may be NULL. */
SMELT_API int smelt_model_measure(smelt_model *model, const smelt_tensor *inputs, smelt_tensor *outputs, int64_t *bytes);

/* Runs the model. An output with `data` and `bytes` is written there; one without gets memory of the model, which
 * smelt_tensor_release frees. Its type and sizes are set. Inputs are never written; outputs must not overlap them. */
SMELT_API int smelt_model_call(smelt_model *model, const smelt_tensor *inputs, smelt_tensor *outputs);

/* Stops the calls that run now; they return SMELT_STOPPED. */
SMELT_API void smelt_model_cancel(smelt_model *model);

/* Frees an output that a call allocated. */
SMELT_API void smelt_tensor_release(smelt_model *model, smelt_tensor *tensor);

/* What went wrong last in this thread: what was expected and what came, in lines. */
SMELT_API const char *smelt_error(void);

SMELT_API const char *smelt_dtype_name(int32_t dtype);

#ifdef __cplusplus
}
#endif
#endif
