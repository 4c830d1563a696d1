/* A model as an executable: tensors in by files, stdin or JSON, one call, tensors out. The model is behind the C API. */
#define _GNU_SOURCE
#include "front.h"

#include <stdlib.h>
#include <string.h>

int MODEL_CREATE(const smelt_options *options, smelt_model **model); /* the model's own function */

enum { ERROR = 1, USAGE = 2 }; /* exit codes, as of `smelt` */

int refuse(const char *message, const char *what, const char *expected, const char *got, const char *remedy) {
  fprintf(stderr, "error %s%s%s\n", message, what ? " " : "", what ? what : "");
  if (expected) fprintf(stderr, "  expected %s\n", expected);
  if (got) fprintf(stderr, "  got      %s\n", got);
  if (remedy) fprintf(stderr, "  try      %s\n", remedy);
  return 0;
}

int refuse_call(void) {
  fprintf(stderr, "error %s\n", smelt_error());
  return 0;
}

/* ------------------------------------------------------------------------------------------ the command line */

typedef struct {
  const char **inputs, **outputs; /* one text per port, or NULL */
  const char *listen, *weights;
  double bench; /* seconds; 0: none */
  int threads, help, selftest;
} Request;

static int find_port(const smelt_port *ports, int count, const char *text, size_t length) {
  for (int i = 0; i < count; i++)
    if (strlen(ports[i].name) == length && !memcmp(ports[i].name, text, length)) return i;
  return -1;
}

static void print_names(const smelt_port *ports, int count, FILE *file) {
  for (int i = 0; i < count; i++) fprintf(file, "  %s: %s\n", ports[i].name, ports[i].shape);
}

static int print_help(const smelt_signature *signature) {
  printf("Runs the model %s once.\n\ninputs\n", signature->name);
  print_names(signature->ports, signature->inputs, stdout);
  printf("outputs\n");
  print_names(signature->ports + signature->inputs, signature->outputs, stdout);
  printf("\noptions\n"
         "  --input NAME=VALUE     FILE.npy, FILE.json, raw bytes in any other FILE (FILE:2x3 gives sizes), - for stdin, or\n"
         "                         JSON such as [1, 2]\n"
         "  --output NAME=FILE     .npy, .json, or raw bytes; - for .npy on stdout. Outputs without a file are printed\n"
         "  --threads N            threads, the caller included; default: one per processor\n"
         "  --listen PATH          serve requests of the Open Inference Protocol (JSON over HTTP) on a Unix socket\n"
         "  --bench SECONDS        call it again and again; without --input on what was recorded at build time\n"
         "  --selftest             repeat the call that was recorded at build time, and compare\n"
         "  --weights FILE         the weights, of a model built with --weights separate\n"
         "  --help                 this text\n");
  return 1;
}

/* Assigns NAME=VALUE, or VALUE where there is one port. */
static int assign(const char *option, const char *text, const smelt_port *ports, int count, const char **texts) {
  const char *equals = strchr(text, '=');
  int port = equals ? find_port(ports, count, text, (size_t)(equals - text)) : count == 1 ? 0 : -1;
  if (port < 0) {
    refuse(option, "is not understood", "NAME=FILE with one of the names below", text, NULL);
    print_names(ports, count, stderr);
    return 0;
  }
  texts[port] = equals ? equals + 1 : text;
  return 1;
}

static int is_option(const char *text, const char *name, const char *letter) {
  return !strcmp(text, name) || (letter && !strcmp(text, letter));
}

/* Options that are no tensors. They are known before the model is there, which tells the names of tensors. */
static int parse_settings(int count, char **arguments, Request *request) {
  for (int i = 1; i < count; i++) {
    const char *option = arguments[i];
    if (is_option(option, "--help", "-h")) request->help = 1;
    else if (is_option(option, "--selftest", NULL)) request->selftest = 1;
    else if (i + 1 == count) return refuse(option, "is unknown, or needs a value", NULL, NULL, "--help");
    else {
      const char *value = arguments[++i];
      char *end = "";
      if (is_option(option, "--threads", NULL)) {
        long threads = strtol(value, &end, 10);
        if (*end || threads < 1 || threads > 256) return refuse(option, "is out of range", "1 to 256", value, NULL);
        request->threads = (int)threads;
      } else if (is_option(option, "--bench", NULL)) {
        request->bench = strtod(value, &end);
        if (*end || !(request->bench > 0)) return refuse(option, "is not understood", "seconds", value, NULL);
      } else if (is_option(option, "--listen", NULL)) request->listen = value;
      else if (is_option(option, "--weights", NULL)) request->weights = value;
      else if (!is_option(option, "--input", "-i") && !is_option(option, "--output", "-o"))
        return refuse("unknown option", option, NULL, NULL, "--help");
    }
  }
  return 1;
}

static int parse_tensors(int count, char **arguments, const smelt_signature *signature, Request *request) {
  for (int i = 1; i + 1 < count; i++) {
    const char *option = arguments[i];
    int is_input = is_option(option, "--input", "-i");
    if (!is_input && !is_option(option, "--output", "-o")) continue;
    const smelt_port *ports = signature->ports + (is_input ? 0 : signature->inputs);
    int known = is_input ? signature->inputs : signature->outputs;
    if (!assign(option, arguments[++i], ports, known, is_input ? request->inputs : request->outputs)) return 0;
  }
  return 1;
}

/* ------------------------------------------------------------------------------------------ one call */

static int read_inputs(const smelt_signature *signature, const Request *request, smelt_tensor *inputs) {
  for (int i = 0; i < signature->inputs; i++) {
    const smelt_port *port = &signature->ports[i];
    if (!request->inputs[i]) return refuse("an input is missing:", port->name, port->shape, NULL, "--input NAME=FILE");
    if (!read_tensor(request->inputs[i], port, &inputs[i])) return 0;
  }
  return 1;
}

void print_string(FILE *file, const char *text) {
  fputc('"', file);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', file);
    if ((unsigned char)*text < 32) fprintf(file, "\\u%04x", *text);
    else fputc(*text, file);
  }
  fputc('"', file);
}

/* Writes outputs that have a file there, and prints the others as one JSON object. */
static int write_outputs(const smelt_signature *signature, const Request *request, const smelt_tensor *outputs) {
  const smelt_port *ports = signature->ports + signature->inputs;
  int printed = 0;
  for (int r = 0; r < signature->outputs; r++) {
    if (request->outputs[r]) {
      if (!write_tensor(request->outputs[r], &outputs[r], ports[r].itemsize)) return 0;
      continue;
    }
    fputs(printed++ ? ", " : "{", stdout);
    print_string(stdout, ports[r].name);
    fputs(": ", stdout);
    if (!print_json(stdout, &outputs[r])) return 0;
  }
  if (printed) puts("}");
  return fflush(stdout) ? refuse("cannot write", "stdout", NULL, NULL, NULL) : 1;
}

static int run(smelt_model *model, const Request *request, smelt_tensor *inputs, smelt_tensor *outputs) {
  const smelt_signature *signature = smelt_model_signature(model);
  if (request->help) return print_help(signature);
  if (request->selftest) return selftest(model);
  if (request->listen) return listen_on(model, request->listen);
  int is_recorded = request->bench > 0 && !request->inputs[0] && recorded.count;
  if (!is_recorded && !read_inputs(signature, request, inputs)) return 0;
  if (request->bench > 0) return bench(model, is_recorded ? recorded.tensors : inputs, request->bench);
  if (smelt_model_call(model, inputs, outputs)) return refuse_call();
  return write_outputs(signature, request, outputs);
}

/* The path of the weights beside this program. */
static const char *weights_beside(const char *program) {
  size_t length = strlen(program);
  char *path = malloc(length + sizeof ".weights");
  if (!path) return NULL;
  memcpy(path, program, length);
  memcpy(path + length, ".weights", sizeof ".weights");
  return path;
}

int main(int count, char **arguments) {
  Request request = {0};
  if (!parse_settings(count, arguments, &request)) return USAGE;
  smelt_options options = {.threads = request.threads, .weights = request.weights};
  if (!options.weights) options.weights = weights_beside(arguments[0]);
  smelt_model *model = NULL;
  if (MODEL_CREATE(&options, &model)) return refuse_call(), ERROR;
  const smelt_signature *signature = smelt_model_signature(model);
  size_t ports = (size_t)(signature->inputs + signature->outputs) + 1;
  smelt_tensor *tensors = calloc(ports, sizeof *tensors);
  const char **texts = calloc(ports, sizeof *texts);
  if (!tensors || !texts) return refuse("no memory left", NULL, NULL, NULL, NULL), ERROR;
  request.inputs = texts, request.outputs = texts + signature->inputs;
  if (!parse_tensors(count, arguments, signature, &request)) return USAGE;
  int done = run(model, &request, tensors, tensors + signature->inputs);
  smelt_model_destroy(model);
  return done ? 0 : ERROR;
}
