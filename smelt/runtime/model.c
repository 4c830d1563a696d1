/* The C API of models (api.h) over executables. Messages have the words of smelt's Python errors. It uses no stdio, so
 * that it also runs without a C library. */
#define _GNU_SOURCE
#include "model.h"

#include <stdint.h>
#include <string.h>

struct smelt_model {
  const Description *description;
  const Version *version;
  Executable *executable;
  Heap *heap; /* NULL: the system's memory */
  const unsigned char *mapped; /* weights in a file */
  smelt_model *general; /* for sizes that this program refuses; or NULL */
};

/* ------------------------------------------------------------------------------------------ messages */

#ifdef SMELT_BARE
enum { TEXT = 512 };
#else
enum { TEXT = 2048 };
#endif
enum { SPIN = 30000 }; /* nanoseconds that an idle helper spins */
static SMELT_THREAD_LOCAL char text[TEXT];
static SMELT_THREAD_LOCAL i64 length;

static void say(const char *words) {
  while (*words && length < TEXT - 1) text[length++] = *words++;
  text[length] = 0;
}

static void say_number(i64 number) {
  char digits[24], *at = digits + sizeof digits - 1;
  unsigned long long rest = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
  *at = 0;
  do *--at = (char)('0' + rest % 10);
  while (rest /= 10);
  if (number < 0) *--at = '-';
  say(at);
}

static void begin(const char *words) {
  length = 0;
  say(words);
}

static void line(const char *label, const char *words) {
  say("\n  ");
  say(label);
  for (size_t width = strlen(label); width < 9; width++) say(" ");
  say(words);
}

const char *smelt_error(void) { return text; }

static const char *const dtype_names[] = {
    "nothing", "i1", "i2", "i4", "i8", "i16", "i32", "i64", "index", "ui2", "ui4", "ui8", "ui16", "ui32", "ui64",
    "f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E3M4", "f8E4M3", "f8E4M3FN", "f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2",
    "f8E5M2FNUZ", "f8E8M0FNU", "bf16", "f16", "f32", "f64", "complex<f32>", "complex<f64>"};

const char *smelt_dtype_name(int32_t dtype) {
  i64 known = sizeof dtype_names / sizeof *dtype_names;
  return dtype > 0 && dtype < known ? dtype_names[dtype] : "an unknown type";
}

static void say_sizes(const int64_t *sizes, i64 rank) {
  say("[");
  for (i64 d = 0; d < rank; d++) {
    if (d) say(", ");
    say_number(sizes[d]);
  }
  say("]");
}

static void say_symbols(const Slot *slot, const Variant *variant) {
  for (i64 i = 0; i < slot->executable->symbols; i++) {
    if (i) say(", ");
    say(variant->symbols[i]);
    say(" = ");
    say_number(slot->symbols[i]);
  }
}

/* ------------------------------------------------------------------------------------------ making a model */

static void destroy_model(smelt_model *model) {
  if (model->general) destroy_model(model->general);
  if (model->executable) {
    smelt_unregister(model->executable);
    smelt_close(model->executable);
    smelt_return(model->heap, model->executable, model->executable->bytes);
  }
  if (model->mapped) smelt_unmap_file((void *)(uintptr_t)model->mapped, model->description->weight_bytes);
  smelt_return(model->heap, model, sizeof *model);
}

static int open_weights(const Description *description, const char *path, const unsigned char **mapped) {
  int failed = path ? description->open(path, description->weight_bytes, description->checksum, mapped) : WEIGHTS_MISSING;
  if (!failed) return 0;
  begin(failed == WEIGHTS_MISSING ? "the weights cannot be read" : "the weights are damaged, or of another model");
  line("expected", "a file of ");
  say_number(description->weight_bytes);
  say(" bytes that was built with this model");
  line("got", path ? path : "no path");
  return SMELT_BAD_FILE;
}

static Executable *make(const Version *version, const unsigned char *weights, Heap *heap) {
  const Variant *variant = version->variant;
  i64 bound = variant->layout[1], constants = variant->layout[4], bytes = (2 + bound + constants) * (i64)sizeof(void *);
  void **pointers = smelt_obtain(heap, bytes);
  if (!pointers) return NULL;
  memcpy(&pointers[0], &version->run, sizeof version->run);
  memcpy(&pointers[1], &version->measure, sizeof version->measure);
  for (i64 i = 0; i < bound + constants; i++) pointers[2 + i] = (void *)(uintptr_t)(weights + variant->offsets[i]);
  Executable *executable = smelt_make(variant->layout, variant->numbers, pointers, heap);
  if (executable) executable->view_bytes = 1;
  smelt_return(heap, pointers, bytes);
  return executable;
}

static int no_memory(i64 bytes) {
  begin("no memory left");
  line("got", "");
  say_number(bytes);
  say(" bytes requested");
  line("try", "use smaller sizes");
  return SMELT_OUT_OF_MEMORY;
}

/* Makes a model of a description; `mapped`: the weights, where they are not in the program. */
static smelt_model *make_model(const Description *description, const unsigned char *mapped, Heap *heap) {
  smelt_model *model = smelt_obtain(heap, sizeof *model);
  if (!model) return NULL;
  memset(model, 0, sizeof *model);
  model->heap = heap, model->description = description;
  const Version *version = description->versions;
  for (i64 has = smelt_features(); version->features & ~has;) version++; /* the last one needs nothing */
  model->version = version;
  model->executable = make(version, mapped ? mapped : description->weights, heap);
  if (model->executable) smelt_register(model->executable);
  if (model->executable && description->general)
    model->general = make_model(description->general, mapped, heap);
  if (model->executable && (model->general || !description->general)) return model;
  destroy_model(model);
  return NULL;
}

static void use_threads(int32_t wanted) {
  i64 cores = smelt_cores(), threads = wanted > 0 ? wanted : cores;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  if (smelt_runtime.threads != threads && (wanted > 0 || smelt_runtime.threads == 1))
    smelt_set_threads(threads, threads <= cores ? SPIN : 0);
}

int smelt_model_create(const Description *description, const smelt_options *options, smelt_model **made) {
  static const smelt_options defaults;
  if (!options) options = &defaults;
  *made = NULL;
  use_threads(options->threads);
  Heap *heap = options->memory ? smelt_open_heap(options->memory, options->memory_bytes) : NULL;
  if (options->memory && !heap) return no_memory(sizeof *heap);
  const unsigned char *mapped = NULL;
  int failed = description->weights ? 0 : open_weights(description, options->weights, &mapped);
  if (failed) return failed;
  smelt_model *model = make_model(description, mapped, heap);
  if (!model) {
    if (mapped) smelt_unmap_file((void *)(uintptr_t)mapped, description->weight_bytes);
    return no_memory(sizeof *model);
  }
  model->mapped = mapped;
  *made = model;
  return SMELT_OK;
}

void smelt_model_destroy(smelt_model *model) {
  if (model) destroy_model(model);
}

const smelt_signature *smelt_model_signature(const smelt_model *model) { return &model->description->signature; }

const char *smelt_model_version(const smelt_model *model) { return model->version->name; }

void smelt_model_cancel(smelt_model *model) {
  for (; model; model = model->general) smelt_cancel(model->executable);
}

/* ------------------------------------------------------------------------------------------ checks of tensors */

/* The bytes of an array; -1 if they overflow. */
static i64 tensor_bytes(const int64_t *sizes, i64 rank, i64 itemsize) {
  i64 bytes = itemsize;
  int overflow = 0;
  for (i64 d = 0; d < rank; d++) overflow |= __builtin_mul_overflow(bytes, (i64)sizes[d], &bytes);
  for (i64 d = 0; d < rank; d++)
    if (!sizes[d]) return 0;
  return overflow ? -1 : bytes;
}

static int misfit(const smelt_port *port, const char *what, const smelt_tensor *given) {
  begin("the ");
  say(what);
  say(" '");
  say(port->name);
  say("' does not fit");
  line("expected", port->shape);
  line("got", smelt_dtype_name(given->dtype));
  say_sizes(given->sizes, given->rank < 0 ? 0 : given->rank > SMELT_MAX_RANK ? SMELT_MAX_RANK : given->rank);
  return SMELT_BAD_ARGUMENT;
}

static int check_input(const smelt_port *port, const smelt_tensor *given) {
  int fits = given->dtype == port->dtype && given->rank == port->rank;
  for (i64 d = 0; fits && d < port->rank; d++)
    fits = given->sizes[d] >= 0 && (port->sizes[d] < 0 || port->sizes[d] == given->sizes[d]);
  return fits ? 0 : misfit(port, "input", given);
}

static int check_data(const smelt_port *port, const char *what, const void *data, i64 align, i64 room, i64 needed) {
  if (needed <= 0) return 0;
  if (data && room >= needed && (uintptr_t)data % (uintptr_t)align == 0) return 0;
  begin("the memory of the ");
  say(what);
  say(" '");
  say(port->name);
  say("' does not fit");
  line("expected", "");
  say_number(needed);
  say(" bytes, aligned to ");
  say_number(align);
  line("got", "");
  if (!data) say("no data");
  else {
    say_number(room);
    say(room >= needed ? " bytes at another alignment" : " bytes");
  }
  return SMELT_BAD_ARGUMENT;
}

static int say_mismatch(const smelt_model *model, const smelt_tensor *inputs) {
  const smelt_signature *signature = &model->description->signature;
  begin("the inputs' sizes do not fit together");
  line("expected", "");
  for (i64 i = 0; i < signature->inputs; i++) {
    if (i) say(", ");
    say(signature->ports[i].name), say(": "), say(signature->ports[i].shape);
  }
  line("got", "");
  for (i64 i = 0; i < signature->inputs; i++) {
    if (i) say(", ");
    say(signature->ports[i].name), say(": "), say_sizes(inputs[i].sizes, inputs[i].rank);
  }
  line("try", "give the dimensions that share a name the same size");
  return SMELT_BAD_ARGUMENT;
}

/* Solves the symbols and measures the call. */
static int fit_inputs(smelt_model *model, Slot *slot, const smelt_tensor *inputs) {
  const smelt_signature *signature = &model->description->signature;
  Executable *e = slot->executable;
  for (i64 i = 0; i < signature->inputs; i++) {
    int failed = check_input(&signature->ports[i], &inputs[i]);
    if (failed) return failed;
  }
  memcpy(slot->symbols, e->preset, (size_t)e->symbols * sizeof(i64));
  for (i64 i = 0; i < e->inputs; i++)
    for (i64 d = 0; d < e->ports[i].rank; d++)
      if (!smelt_fit_dim(e->ports[i].dims[d], inputs[i].sizes[d], slot->symbols)) return say_mismatch(model, inputs);
  int failed = smelt_measure(slot);
  if (!failed) return 0;
  if (failed < 0) return no_memory(slot->context.record[0]);
  const Variant *variant = model->version->variant;
  if (failed == SMELT_TOO_LARGE) begin("a size is too large for any machine");
  else {
    begin(variant->size_checks[failed - 1].why);
    line("expected", variant->size_checks[failed - 1].expected);
  }
  line("got", "");
  say_symbols(slot, variant);
  return SMELT_BAD_SIZE;
}

/* ------------------------------------------------------------------------------------------ calls */

static int explain(const smelt_model *model, const Slot *slot, int status) {
  const Variant *variant = model->version->variant;
  const i64 *record = slot->context.record;
  if (status == SMELT_NO_MEMORY || status == SMELT_OVER_LIMIT) return no_memory(record[0]);
  if (status < 0) return begin("the call was cancelled"), SMELT_STOPPED;
  if (status >= SMELT_UNFIT) {
    begin(variant->size_checks[status - SMELT_UNFIT].why);
    line("expected", variant->size_checks[status - SMELT_UNFIT].expected);
    line("got", "");
    say_number(record[0]), say(" and "), say_number(record[1]);
    return SMELT_BAD_SIZE;
  }
  if (status < SMELT_BROKEN) {
    begin("the compiled program reported a failure");
    line("got", "");
    say_number(status);
    return SMELT_FAILED;
  }
  const DataCheck *check = &variant->data_checks[status - SMELT_BROKEN];
  begin("");
  for (const char *at = check->message; *at; at++) {
    if (at[0] == '{' && at[1] >= '0' && at[1] <= '7' && at[2] == '}') say_number(record[at[1] - '0']), at += 2;
    else say((char[]){*at, 0});
  }
  return check->of_sizes ? SMELT_BAD_SIZE : SMELT_FAILED;
}

static int allocate_output(Heap *heap, smelt_tensor *output, i64 bytes) {
  output->data = smelt_obtain(heap, bytes);
  output->bytes = bytes;
  return output->data ? 0 : no_memory(bytes);
}

void smelt_tensor_release(smelt_model *model, smelt_tensor *tensor) {
  smelt_return(model->heap, tensor->data, tensor->bytes);
  tensor->data = NULL, tensor->bytes = 0;
}

static void describe_output(const smelt_port *port, const i64 *sizes, smelt_tensor *output) {
  output->dtype = port->dtype, output->rank = port->rank;
  for (i64 d = 0; d < port->rank; d++) output->sizes[d] = sizes[d];
}

static int is_late(const i64 *sizes, i64 rank) {
  for (i64 d = 0; d < rank; d++)
    if (sizes[d] < 0) return 1;
  return 0;
}

/* Whether an output overlaps an input, the weights or another output. */
static int is_apart(const Slot *slot, const smelt_tensor *inputs, const smelt_tensor *outputs, i64 which) {
  Executable *e = slot->executable;
  const smelt_tensor *output = &outputs[which];
  for (i64 i = 0; i < e->inputs; i++)
    if (smelt_overlaps(output->data, output->bytes, inputs[i].data, inputs[i].bytes)) return 0;
  for (i64 i = 0; i < which; i++)
    if (smelt_overlaps(output->data, output->bytes, outputs[i].data, outputs[i].bytes)) return 0;
  for (i64 i = 0; i < e->bound; i++)
    if (smelt_overlaps(output->data, output->bytes, slot->buffers[i], e->extents[i])) return 0;
  return 1;
}

static int place_output(Slot *slot, const smelt_port *port, const smelt_tensor *inputs, smelt_tensor *outputs, i64 r) {
  Executable *e = slot->executable;
  smelt_tensor *output = &outputs[r];
  i64 bytes = tensor_bytes(output->sizes, output->rank, port->itemsize);
  if (bytes < 0) return no_memory(bytes);
  if (!output->data) return allocate_output(e->heap, output, bytes);
  int failed = check_data(port, "output", output->data, e->ports[e->inputs + r].align, output->bytes, bytes);
  if (failed || is_apart(slot, inputs, outputs, r)) return failed;
  begin("the output '"), say(port->name), say("' shares memory with an input or another output");
  line("try", "give each its own array");
  return SMELT_BAD_ARGUMENT;
}

static int take_late(Slot *slot, const smelt_port *port, i64 r, const i64 *sizes, smelt_tensor *output) {
  Executable *e = slot->executable;
  describe_output(port, sizes, output);
  i64 bytes = tensor_bytes(output->sizes, output->rank, port->itemsize);
  int failed = output->data ? check_data(port, "output", output->data, 1, output->bytes, bytes)
                            : allocate_output(e->heap, output, bytes);
  if (!failed && bytes) memcpy(output->data, slot->buffers[e->bound + e->inputs + r], (size_t)bytes);
  return failed;
}

static int run(smelt_model *model, Slot *slot, const smelt_tensor *inputs, smelt_tensor *outputs) {
  const smelt_signature *signature = &model->description->signature;
  const smelt_port *results = signature->ports + signature->inputs;
  Executable *e = slot->executable;
  int failed = fit_inputs(model, slot, inputs);
  for (i64 i = 0; i < e->inputs && !failed; i++) {
    const smelt_port *port = &signature->ports[i];
    i64 bytes = tensor_bytes(inputs[i].sizes, inputs[i].rank, port->itemsize);
    failed = bytes < 0 ? no_memory(bytes)
                       : check_data(port, "input", inputs[i].data, e->ports[i].align, inputs[i].bytes, bytes);
    slot->buffers[e->bound + i] = inputs[i].data;
  }
  const i64 *sizes = slot->measured + 2;
  for (i64 r = 0; r < e->results && !failed; sizes += results[r++].rank) {
    void **place = &slot->buffers[e->bound + e->inputs + r];
    *place = NULL;
    if (is_late(sizes, results[r].rank)) continue;
    describe_output(&results[r], sizes, &outputs[r]);
    i64 donated = e->ports[e->inputs + r].donated;
    if (donated) outputs[r].data = inputs[donated - 1].data, outputs[r].bytes = inputs[donated - 1].bytes;
    else failed = place_output(slot, &results[r], inputs, outputs, r);
    *place = outputs[r].data;
  }
  if (failed) return failed;
  int status = smelt_execute(slot);
  if (status) return explain(model, slot, status);
  const i64 *late = slot->late;
  sizes = slot->measured + 2;
  for (i64 r = 0; r < e->results && !failed; late += results[r].rank, sizes += results[r++].rank)
    if (is_late(sizes, results[r].rank)) failed = take_late(slot, &results[r], r, late, &outputs[r]);
  return failed;
}

int smelt_model_call(smelt_model *model, const smelt_tensor *inputs, smelt_tensor *outputs) {
  Slot *slot = smelt_take(model->executable);
  if (!slot) return no_memory(0);
  Executable *e = model->executable;
  char *own = slot->views; /* one byte per result: the call allocates it */
  for (i64 r = 0; r < e->results; r++) own[r] = !outputs[r].data && !e->ports[e->inputs + r].donated;
  int failed = run(model, slot, inputs, outputs), is_general = failed == SMELT_BAD_SIZE && model->general && !slot->ran;
  for (i64 r = 0; failed && r < e->results; r++)
    if (own[r]) smelt_tensor_release(model, &outputs[r]);
  smelt_give(slot);
  return is_general ? smelt_model_call(model->general, inputs, outputs) : failed;
}

int smelt_model_measure(smelt_model *model, const smelt_tensor *inputs, smelt_tensor *outputs, int64_t *bytes) {
  const smelt_signature *signature = &model->description->signature;
  Slot *slot = smelt_take(model->executable);
  if (!slot) return no_memory(0);
  int failed = fit_inputs(model, slot, inputs);
  const i64 *sizes = slot->measured + 2;
  for (i64 r = 0; r < signature->outputs && !failed; r++) {
    const smelt_port *port = &signature->ports[signature->inputs + r];
    describe_output(port, sizes, &outputs[r]);
    sizes += port->rank;
  }
  if (!failed && bytes) *bytes = slot->measured[0] + (slot->measured[1] + 63) / 64 * 64 * smelt_runtime.threads;
  smelt_give(slot);
  if (failed == SMELT_BAD_SIZE && model->general) return smelt_model_measure(model->general, inputs, outputs, bytes);
  return failed;
}
