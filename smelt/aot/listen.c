/* --listen PATH: the model behind a Unix socket, with the Open Inference Protocol over HTTP in its JSON form, as
 * `smelt serve` speaks it. One connection at a time; between requests the process sleeps. */
#define _GNU_SOURCE
#include "front.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32) || defined(__wasm__)

int listen_on(smelt_model *model, const char *path) {
  (void)model;
  return refuse("no Unix sockets on this system:", path, NULL, NULL, "--input and --output");
}

#else

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { HEAD = 1 << 14, BODY = 1 << 30 }; /* the most bytes of a request's head and body */

static const struct { int dtype; const char *name; } protocol_types[] = {
    {SMELT_BOOL, "BOOL"}, {SMELT_UI8, "UINT8"}, {SMELT_UI16, "UINT16"}, {SMELT_UI32, "UINT32"}, {SMELT_UI64, "UINT64"},
    {SMELT_I8, "INT8"}, {SMELT_I16, "INT16"}, {SMELT_I32, "INT32"}, {SMELT_I64, "INT64"}, {SMELT_INDEX, "INT64"},
    {SMELT_F16, "FP16"}, {SMELT_F32, "FP32"}, {SMELT_F64, "FP64"}, {SMELT_BF16, "BF16"},
};

static const char *protocol_type(int dtype) {
  for (size_t i = 0; i < sizeof protocol_types / sizeof *protocol_types; i++)
    if (protocol_types[i].dtype == dtype) return protocol_types[i].name;
  return "UNKNOWN";
}

/* ------------------------------------------------------------------------------------------ JSON objects */

static const char *skip(const char *at) {
  while (*at && strchr(" \t\r\n", *at)) at++;
  return at;
}

static const char *end_of_string(const char *at) {
  for (at++; *at && *at != '"'; at++)
    if (*at == '\\' && at[1]) at++;
  return *at ? at + 1 : NULL;
}

/* The end of any value; NULL if there is none. */
static const char *end_of_value(const char *at) {
  int depth = 0;
  do {
    at = skip(at);
    if (*at == '"') {
      if (!(at = end_of_string(at))) return NULL;
    } else if (*at == '[' || *at == '{') depth++, at++;
    else if (*at == ']' || *at == '}') depth--, at++;
    else if (*at == ',' || *at == ':') at++;
    else if (*at) at += strcspn(at, ",]} \t\r\n:");
    else return NULL;
  } while (depth > 0);
  return at;
}

/* The value of a key in an object; NULL: absent. Keys with escapes are not found. */
static const char *member(const char *object, const char *key) {
  const char *at = skip(object);
  if (*at++ != '{') return NULL;
  for (;;) {
    at = skip(at);
    if (*at != '"') return NULL;
    const char *name = at + 1, *end = end_of_string(at);
    if (!end) return NULL;
    at = skip(end);
    if (*at++ != ':') return NULL;
    if ((size_t)(end - 1 - name) == strlen(key) && !memcmp(name, key, strlen(key))) return skip(at);
    at = end_of_value(at);
    if (!at) return NULL;
    at = skip(at);
    if (*at++ != ',') return NULL;
  }
}

static int string_is(const char *at, const char *text) {
  return at && *at == '"' && !strncmp(at + 1, text, strlen(text)) && at[1 + strlen(text)] == '"';
}

/* ------------------------------------------------------------------------------------------ requests */

static void free_inputs(const smelt_signature *signature, smelt_tensor *inputs) {
  for (int i = 0; i < signature->inputs; i++) give_block(inputs[i].data);
}

/* The message behind a refusal, for the answer. */
static char problem[512];

static int object(const char *message, const char *what) {
  snprintf(problem, sizeof problem, "%s%s%s", message, what ? " " : "", what ? what : "");
  return 0;
}

static int read_input(const char *entry, const smelt_port *port, smelt_tensor *tensor) {
  const char *shape = member(entry, "shape"), *data = member(entry, "data"), *end;
  if (!shape || *shape != '[' || !data) return object("an input needs shape and data:", port->name);
  if (!string_is(member(entry, "datatype"), protocol_type(port->dtype)))
    return object("wrong datatype, expected", protocol_type(port->dtype));
  if (!parse_json(data, port->name, port, tensor, &end)) return object("the data cannot be read:", port->name);
  int64_t count = 1, have = count_elements(tensor);
  tensor->rank = 0;
  for (shape = skip(shape + 1); *shape && *shape != ']'; shape = skip(*skip(shape) == ',' ? skip(shape) + 1 : shape)) {
    char *after;
    int64_t size = strtoll(shape, &after, 10);
    if (after == shape || size < 0 || tensor->rank == SMELT_MAX_RANK || __builtin_mul_overflow(count, size, &count))
      return object("a shape cannot be read:", port->name);
    tensor->sizes[tensor->rank++] = size;
    shape = after;
  }
  return count == have ? 1 : object("the data has another number of elements than the shape:", port->name);
}

static int read_request(const char *body, const smelt_signature *signature, smelt_tensor *inputs) {
  const char *list = member(body, "inputs");
  if (!list || *list != '[') return object("the request has no inputs", NULL);
  for (int i = 0; i < signature->inputs; i++) {
    const char *at = skip(list + 1), *found = NULL;
    while (at && *at == '{' && !found) {
      if (string_is(member(at, "name"), signature->ports[i].name)) found = at;
      at = end_of_value(at);
      if (at) at = skip(at);
      if (at && *at == ',') at = skip(at + 1);
    }
    if (!found) return object("an input is missing:", signature->ports[i].name);
    if (!read_input(found, &signature->ports[i], &inputs[i])) return 0;
  }
  return 1;
}

static void print_shape(FILE *file, const int64_t *sizes, int rank) {
  fputc('[', file);
  for (int d = 0; d < rank; d++) fprintf(file, d ? ", %lld" : "%lld", (long long)sizes[d]);
  fputc(']', file);
}

static int infer(smelt_model *model, const char *body, FILE *answer) {
  const smelt_signature *signature = smelt_model_signature(model);
  smelt_tensor *tensors = calloc((size_t)(signature->inputs + signature->outputs) + 1, sizeof *tensors);
  if (!tensors) return object("no memory left", NULL);
  smelt_tensor *outputs = tensors + signature->inputs;
  int done = read_request(body, signature, tensors);
  if (done && smelt_model_call(model, tensors, outputs)) done = object(smelt_error(), NULL);
  if (done) {
    fputs("{\"model_name\": ", answer);
    print_string(answer, signature->name);
    fputs(", \"outputs\": [", answer);
    for (int r = 0; r < signature->outputs; r++) {
      fputs(r ? ", {\"name\": " : "{\"name\": ", answer);
      print_string(answer, signature->ports[signature->inputs + r].name);
      fprintf(answer, ", \"datatype\": \"%s\", \"shape\": ", protocol_type(outputs[r].dtype));
      print_shape(answer, outputs[r].sizes, outputs[r].rank);
      fputs(", \"data\": ", answer);
      smelt_tensor flat = outputs[r];
      flat.rank = 1, flat.sizes[0] = count_elements(&outputs[r]);
      if (!print_json(answer, &flat)) done = object("an output has no JSON:", signature->ports[signature->inputs + r].name);
      fputc('}', answer);
      smelt_tensor_release(model, &outputs[r]);
    }
    fputs("]}", answer);
  }
  free_inputs(signature, tensors);
  free(tensors);
  return done;
}

static void describe(const smelt_signature *signature, FILE *answer) {
  fputs("{\"name\": ", answer);
  print_string(answer, signature->name);
  fputs(", \"platform\": \"smelt\"", answer);
  for (int kind = 0; kind < 2; kind++) {
    int first = kind ? signature->inputs : 0, count = kind ? signature->outputs : signature->inputs;
    fputs(kind ? ", \"outputs\": [" : ", \"inputs\": [", answer);
    for (int i = 0; i < count; i++) {
      const smelt_port *port = &signature->ports[first + i];
      fputs(i ? ", {\"name\": " : "{\"name\": ", answer);
      print_string(answer, port->name);
      fprintf(answer, ", \"datatype\": \"%s\", \"shape\": ", protocol_type(port->dtype));
      print_shape(answer, port->sizes, port->rank);
      fputc('}', answer);
    }
    fputc(']', answer);
  }
  fputc('}', answer);
}

/* ------------------------------------------------------------------------------------------ HTTP */

static int send_all(int connection, const char *bytes, size_t count) {
  for (ssize_t sent; count; bytes += sent, count -= (size_t)sent) {
    sent = send(connection, bytes, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) sent = 0;
    else if (sent <= 0) return 0;
  }
  return 1;
}

static int answer_with(int connection, const char *status, const char *body, size_t bytes) {
  char head[160];
  int length = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                        status, bytes);
  return send_all(connection, head, (size_t)length) && send_all(connection, body, bytes);
}

static int handle(smelt_model *model, int connection, const char *head, const char *body) {
  const smelt_signature *signature = smelt_model_signature(model);
  char path[512], *text = NULL;
  size_t bytes = 0;
  FILE *answer = open_memstream(&text, &bytes);
  if (!answer) return 0;
  snprintf(path, sizeof path, " /v2/models/%s", signature->name);
  const char *status = "200 OK", *target = strchr(head, ' ');
  size_t length = target ? strcspn(target + 1, " \r\n") + 1 : 0, own = strlen(path);
  int is_own = length >= own && !memcmp(target, path, own);
  if (is_own && length == own + 6 && !memcmp(target + own, "/infer", 6)) {
    if (strncmp(head, "POST ", 5)) status = "405 Method Not Allowed", object("use POST", NULL);
    else if (!infer(model, body, answer)) status = "400 Bad Request";
  } else if ((is_own && length == own) || (length == 4 && !memcmp(target, " /v2", 4))) describe(signature, answer);
  else if (length == 17 && !memcmp(target, " /v2/health/ready", 17)) fputs("{\"ready\": true}", answer);
  else status = "404 Not Found", object("unknown path, expected", path + 1);
  if (status[0] != '2') {
    rewind(answer);
    fputs("{\"error\": ", answer);
    print_string(answer, problem);
    fputc('}', answer);
  }
  long end = ftell(answer); /* an error is shorter than what was written before it */
  fclose(answer);
  int done = text && end >= 0 && answer_with(connection, status, text, (size_t)end);
  free(text);
  return done;
}

/* Reads one request and answers it; 0 at the end of the connection. */
static int serve_request(smelt_model *model, int connection) {
  char *request = malloc(HEAD + 1);
  size_t have = 0;
  char *body = NULL;
  while (request && !body && have < HEAD) {
    ssize_t got = recv(connection, request + have, HEAD - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    request[have += (size_t)got] = 0;
    body = strstr(request, "\r\n\r\n");
  }
  if (!body) {
    if (have == HEAD) answer_with(connection, "431 Request Header Fields Too Large", "{}", 2);
    return free(request), 0;
  }
  body[2] = 0, body += 4;
  const char *named = strcasestr(request, "\r\nContent-Length:");
  long long length = named ? atoll(named + 17) : 0;
  if (length < 0 || length > BODY || (size_t)length < have - (size_t)(body - request)) {
    answer_with(connection, length > BODY ? "413 Content Too Large" : "400 Bad Request", "{}", 2);
    return free(request), 0;
  }
  size_t head = (size_t)(body - request), total = head + (size_t)length;
  char *whole = realloc(request, total + 1);
  if (!whole) return free(request), 0;
  while (have < total) {
    ssize_t got = recv(connection, whole + have, total - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return free(whole), 0;
    have += (size_t)got;
  }
  whole[total] = 0;
  int done = handle(model, connection, whole, whole + head);
  int closes = strcasestr(whole, "\r\nConnection: close") != NULL;
  free(whole);
  return done && !closes;
}

static const char *socket_path;

static void stop(int signal) {
  (void)signal;
  unlink(socket_path);
  _exit(0);
}

int listen_on(smelt_model *model, const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) return refuse("the path is too long:", path, NULL, NULL, NULL);
  strcpy(address.sun_path, path);
  int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16))
    return refuse("cannot listen on", path, "a path that does not exist yet", strerror(errno), NULL);
  socket_path = path;
  signal(SIGINT, stop), signal(SIGTERM, stop);
  fprintf(stderr, "listening on %s\n", path);
  for (;;) {
    int connection = accept(listener, NULL, NULL);
    if (connection < 0 && errno == EINTR) continue;
    if (connection < 0) return refuse("cannot accept on", path, NULL, strerror(errno), NULL);
    while (serve_request(model, connection)) {}
    close(connection);
  }
}

#endif
