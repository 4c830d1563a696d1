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

static int refuse_call(void) {
  fprintf(stderr, "error %s\n", smelt_error());
  return 0;
}

/* ------------------------------------------------------------------------------------------ the command line */

typedef struct {
  const char **inputs, **outputs; /* one text per port, or NULL */
  int threads, help;
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

static int parse(int count, char **arguments, const smelt_signature *signature, Request *request) {
  for (int i = 1; i < count; i++) {
    const char *option = arguments[i];
    if (!strcmp(option, "--help") || !strcmp(option, "-h")) {
      request->help = 1;
      continue;
    }
    int is_input = !strcmp(option, "--input") || !strcmp(option, "-i");
    int is_output = !strcmp(option, "--output") || !strcmp(option, "-o"), is_threads = !strcmp(option, "--threads");
    if (!is_input && !is_output && !is_threads) return refuse("unknown option", option, "see --help", NULL, NULL);
    if (++i == count) return refuse(option, "needs a value", NULL, NULL, "--help");
    if (is_threads) {
      char *end;
      long threads = strtol(arguments[i], &end, 10);
      if (*end || threads < 1 || threads > 256) return refuse(option, "", "1 to 256", arguments[i], NULL);
      request->threads = (int)threads;
    } else if (!assign(option, arguments[i], signature->ports + (is_input ? 0 : signature->inputs),
                       is_input ? signature->inputs : signature->outputs, is_input ? request->inputs : request->outputs))
      return 0;
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

static void print_string(const char *text) {
  putchar('"');
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    if ((unsigned char)*text < 32) printf("\\u%04x", *text);
    else putchar(*text);
  }
  putchar('"');
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
    print_string(ports[r].name);
    fputs(": ", stdout);
    if (!print_json(stdout, &outputs[r])) return 0;
  }
  if (printed) puts("}");
  return fflush(stdout) ? refuse("cannot write", "stdout", NULL, NULL, NULL) : 1;
}

static int run(smelt_model *model, const Request *request, smelt_tensor *inputs, smelt_tensor *outputs) {
  const smelt_signature *signature = smelt_model_signature(model);
  if (!read_inputs(signature, request, inputs)) return 0;
  if (smelt_model_call(model, inputs, outputs)) return refuse_call();
  return write_outputs(signature, request, outputs);
}

static int threads_of(int count, char **arguments) {
  for (int i = 1; i + 1 < count; i++)
    if (!strcmp(arguments[i], "--threads")) return atoi(arguments[i + 1]);
  return 0;
}

int main(int count, char **arguments) {
  smelt_options options = {.threads = threads_of(count, arguments)};
  smelt_model *model = NULL;
  if (MODEL_CREATE(&options, &model)) return refuse_call(), ERROR;
  const smelt_signature *signature = smelt_model_signature(model);
  size_t ports = (size_t)(signature->inputs + signature->outputs) + 1;
  smelt_tensor *tensors = calloc(ports, sizeof *tensors);
  const char **texts = calloc(ports, sizeof *texts);
  if (!tensors || !texts) return refuse("no memory left", NULL, NULL, NULL, NULL), ERROR;
  Request request = {.inputs = texts, .outputs = texts + signature->inputs};
  if (!parse(count, arguments, signature, &request)) return USAGE;
  if (request.help) return print_help(signature) ? 0 : ERROR;
  int done = run(model, &request, tensors, tensors + signature->inputs);
  smelt_model_destroy(model);
  return done ? 0 : ERROR;
}
