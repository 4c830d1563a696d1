/* Tensors from and to files: .npy, .json, and raw bytes in C order. */
#define _GNU_SOURCE
#include "front.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

int64_t count_elements(const smelt_tensor *tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor->rank; d++) count *= tensor->sizes[d];
  return count;
}

static int ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

/* ------------------------------------------------------------------------------------------ files */

char *read_file(const char *path, int64_t *bytes) {
  int is_stdin = !strcmp(path, "-");
#ifdef _WIN32
  if (is_stdin) _setmode(0, _O_BINARY);
#endif
  FILE *file = is_stdin ? stdin : fopen(path, "rb");
  if (!file) return refuse("cannot read", path, NULL, strerror(errno), NULL), NULL;
  size_t room = 1 << 16, have = 0, got;
  if (!is_stdin && !fseek(file, 0, SEEK_END)) {
    long end = ftell(file);
    if (end > 0) room = (size_t)end + 2; /* so that the last read sees the end */
    rewind(file);
  }
  char *content = take_block(room);
  while (content && (got = fread(content + have, 1, room - 1 - have, file)) > 0) {
    have += got;
    if (have < room - 1) continue;
    char *larger = take_block(room * 2);
    if (larger) memcpy(larger, content, have);
    give_block(content);
    content = larger, room *= 2;
  }
  int failed = ferror(file);
  if (!is_stdin) fclose(file);
  if (!content || failed) return give_block(content), refuse("cannot read", path, NULL, strerror(errno), NULL), NULL;
  content[have] = 0;
  *bytes = (int64_t)have;
  return content;
}

static int write_file(const char *path, const void *head, size_t head_bytes, const void *bytes, size_t count) {
  int is_stdout = !strcmp(path, "-");
#ifdef _WIN32
  if (is_stdout) _setmode(1, _O_BINARY);
#endif
  FILE *file = is_stdout ? stdout : fopen(path, "wb");
  if (!file) return refuse("cannot write", path, NULL, strerror(errno), NULL);
  int done = fwrite(head, 1, head_bytes, file) == head_bytes && fwrite(bytes, 1, count, file) == count;
  done &= !(is_stdout ? fflush(file) : fclose(file));
  return done ? 1 : refuse("cannot write", path, NULL, strerror(errno), NULL);
}

/* ------------------------------------------------------------------------------------------ .npy */

static const struct { int dtype; const char *code; } npy_types[] = {
    {SMELT_BOOL, "|b1"}, {SMELT_I8, "|i1"}, {SMELT_I16, "<i2"}, {SMELT_I32, "<i4"}, {SMELT_I64, "<i8"},
    {SMELT_INDEX, "<i8"}, {SMELT_UI8, "|u1"}, {SMELT_UI16, "<u2"}, {SMELT_UI32, "<u4"}, {SMELT_UI64, "<u8"},
    {SMELT_F16, "<f2"}, {SMELT_F32, "<f4"}, {SMELT_F64, "<f8"}, {SMELT_COMPLEX64, "<c8"}, {SMELT_COMPLEX128, "<c16"},
};

/* NumPy's code of an element type; types that it lacks are bytes without a meaning ("<V2"). */
static const char *npy_code(int dtype, int64_t itemsize) {
  for (size_t i = 0; i < sizeof npy_types / sizeof *npy_types; i++)
    if (npy_types[i].dtype == dtype) return npy_types[i].code;
  return itemsize == 1 ? "|V1" : "<V2";
}

/* The value behind a key of the header, which is a Python dictionary. */
static const char *npy_value(const char *header, const char *key) {
  const char *at = strstr(header, key);
  at = at ? strchr(at + strlen(key), ':') : NULL;
  if (!at) return NULL;
  for (at++; *at == ' '; at++) {}
  return at;
}

/* Rewrites an array in Fortran order. */
static char *reorder(const char *data, const smelt_tensor *tensor, int64_t itemsize) {
  int64_t count = count_elements(tensor);
  char *made = take_block((size_t)(count * itemsize));
  for (int64_t i = 0; made && i < count; i++) {
    int64_t rest = i, offset = 0, stride = 1, index[SMELT_MAX_RANK];
    for (int d = tensor->rank - 1; d >= 0; d--) index[d] = rest % tensor->sizes[d], rest /= tensor->sizes[d];
    for (int d = 0; d < tensor->rank; d++) offset += index[d] * stride, stride *= tensor->sizes[d];
    memcpy(made + i * itemsize, data + offset * itemsize, (size_t)itemsize);
  }
  return made;
}

/* The element type behind a code of NumPy, with the port's where the code has no meaning of its own. */
static int npy_dtype(const char *code, size_t length, const smelt_port *port) {
  const char *own = npy_code(port->dtype, port->itemsize);
  if (length == strlen(own) && !memcmp(own + 1, code + 1, length - 1) && (code[0] == own[0] || strchr("<|=", code[0])))
    return port->dtype;
  for (size_t i = 0; i < sizeof npy_types / sizeof *npy_types; i++)
    if (strlen(npy_types[i].code) == length && !memcmp(npy_types[i].code, code, length)) return npy_types[i].dtype;
  return 0;
}

static int broken_npy(const char *path) {
  return refuse("cannot read", path, "a .npy file", "another or a damaged file", "numpy.save(path, array)");
}

static int parse_npy(const char *path, char *content, int64_t bytes, const smelt_port *port, smelt_tensor *tensor) {
  if (bytes < 12 || memcmp(content, "\x93NUMPY", 6)) return broken_npy(path);
  const unsigned char *raw = (const unsigned char *)content;
  int64_t start = raw[6] == 1 ? 10 : 12, length = raw[8] | raw[9] << 8;
  if (start == 12) length |= (int64_t)raw[10] << 16 | (int64_t)raw[11] << 24;
  if (length < 1 || start + length > bytes) return broken_npy(path);
  char *header = content + start, *data = header + length;
  char last = data[-1];
  data[-1] = 0; /* the header ends with a newline */
  const char *code = npy_value(header, "'descr'"), *order = npy_value(header, "'fortran_order'");
  const char *shape = npy_value(header, "'shape'");
  if (last != '\n' || !code || *code != '\'' || !order || !shape || *shape != '(') return broken_npy(path);
  const char *code_end = strchr(++code, '\'');
  if (!code_end) return broken_npy(path);
  tensor->dtype = npy_dtype(code, (size_t)(code_end - code), port);
  if (!tensor->dtype) {
    char got[32];
    snprintf(got, sizeof got, "%.*s", (int)(code_end - code), code);
    return refuse("the file has another element type:", path, port->shape, got, "array.astype");
  }
  tensor->rank = 0;
  int64_t count = 1;
  for (char *at = (char *)shape + 1, *end; *at && *at != ')'; at = end) {
    if (tensor->rank == SMELT_MAX_RANK) return refuse("too many axes:", path, port->shape, NULL, NULL);
    int64_t size = strtoll(at, &end, 10);
    if (end == at || size < 0 || __builtin_mul_overflow(count, size, &count)) return broken_npy(path);
    tensor->sizes[tensor->rank++] = size;
    while (*end == ',' || *end == ' ') end++;
  }
  int64_t needed;
  if (tensor->dtype != port->dtype) { /* the call says what was expected */
    tensor->data = data, tensor->bytes = bytes - (data - content);
    return 1;
  }
  if (__builtin_mul_overflow(count, port->itemsize, &needed) || needed > bytes - (data - content)) return broken_npy(path);
  tensor->bytes = needed;
  if (*order == 'T' && tensor->rank > 1) tensor->data = reorder(data, tensor, port->itemsize);
  else {
    memmove(content, data, (size_t)needed); /* to the aligned beginning */
    tensor->data = content;
  }
  return tensor->data ? 1 : refuse("no memory left for", path, NULL, NULL, NULL);
}

static int write_npy(const char *path, const smelt_tensor *tensor, int64_t itemsize) {
  char header[512];
  int at = snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                    npy_code(tensor->dtype, itemsize));
  for (int d = 0; d < tensor->rank; d++)
    at += snprintf(header + 10 + at, sizeof header - 10 - (size_t)at, d ? " %lld," : "%lld,", (long long)tensor->sizes[d]);
  if (tensor->rank > 1) at--; /* "(2,)" but "(2, 3)" */
  at += snprintf(header + 10 + at, sizeof header - 10 - (size_t)at, "), }");
  int end = (10 + at + 1 + 63) / 64 * 64;
  memset(header + 10 + at, ' ', (size_t)(end - 10 - at));
  header[end - 1] = '\n';
  memcpy(header, "\x93NUMPY\x01", 8); /* version 1, 0 */
  header[8] = (char)((end - 10) & 255), header[9] = (char)((end - 10) >> 8);
  return write_file(path, header, (size_t)end, tensor->data, (size_t)(count_elements(tensor) * itemsize));
}

/* ------------------------------------------------------------------------------------------ raw bytes */

/* Sizes of a raw file: those of the port; one dynamic dimension is found from the bytes. "FILE:2x3" states all. */
static int parse_raw(const char *path, char *content, int64_t bytes, const char *sizes, const smelt_port *port,
                     smelt_tensor *tensor) {
  int64_t known = port->itemsize;
  int dynamic = -1;
  tensor->dtype = port->dtype, tensor->rank = port->rank, tensor->data = content, tensor->bytes = bytes;
  for (int d = 0; d < port->rank; d++) {
    int64_t size = port->sizes[d];
    if (sizes) {
      char *end;
      size = strtoll(sizes, &end, 10);
      if (end == sizes || (*end && *end != 'x')) return refuse("cannot read the sizes of", path, "FILE:2x3", sizes, NULL);
      sizes = *end ? end + 1 : end;
    }
    tensor->sizes[d] = size;
    if (size < 0 && dynamic >= 0)
      return refuse("several sizes are dynamic:", path, port->shape, "raw bytes", "append them to the name: FILE.raw:2x3");
    if (size < 0) dynamic = d;
    else if (__builtin_mul_overflow(known, size, &known)) return refuse("too large:", path, port->shape, NULL, NULL);
  }
  if (dynamic >= 0) tensor->sizes[dynamic] = known ? bytes / known : 0, known *= tensor->sizes[dynamic];
  if (known == bytes) return 1;
  char expected[64], got[64];
  snprintf(expected, sizeof expected, "%lld bytes", (long long)known);
  snprintf(got, sizeof got, "%lld bytes", (long long)bytes);
  return refuse("the bytes do not fit:", path, expected, got, NULL);
}

/* ------------------------------------------------------------------------------------------ any */

int read_tensor(const char *text, const smelt_port *port, smelt_tensor *tensor) {
  const char *end;
  if (strchr("[-0123456789", text[0]) && strcmp(text, "-")) return parse_json(text, "--input", port, tensor, &end);
  char path[4096];
  const char *colon = strrchr(text, ':'), *sizes = colon && colon[1] >= '0' && colon[1] <= '9' ? colon + 1 : NULL;
  snprintf(path, sizeof path, "%.*s", (int)(sizes ? (size_t)(colon - text) : strlen(text)), text);
  int64_t bytes = 0;
  char *content = read_file(path, &bytes);
  if (!content) return 0;
  if (bytes >= 6 && !memcmp(content, "\x93NUMPY", 6)) return parse_npy(path, content, bytes, port, tensor);
  if (ends_with(path, ".npy")) return broken_npy(path);
  if (ends_with(path, ".json") || (!strcmp(path, "-") && bytes && content[0] == '['))
    return parse_json(content, path, port, tensor, &end);
  return parse_raw(path, content, bytes, sizes, port, tensor);
}

int write_tensor(const char *path, const smelt_tensor *tensor, int64_t itemsize) {
  if (ends_with(path, ".json")) {
    FILE *file = fopen(path, "wb");
    if (!file) return refuse("cannot write", path, NULL, strerror(errno), NULL);
    int done = print_json(file, tensor);
    return fclose(file) ? refuse("cannot write", path, NULL, strerror(errno), NULL) : done;
  }
  if (ends_with(path, ".npy") || !strcmp(path, "-")) return write_npy(path, tensor, itemsize);
  return write_file(path, "", 0, tensor->data, (size_t)(count_elements(tensor) * itemsize));
}
