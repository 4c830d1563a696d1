/* Tensors as JSON: nested arrays of numbers and booleans; NaN, Infinity and -Infinity as Python writes them. */
#include "front.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------ numbers */

static uint16_t to_half(double number) {
  union { double f; uint64_t u; } bits = {number};
  uint16_t sign = (uint16_t)(bits.u >> 48 & 0x8000);
  double magnitude = fabs(number);
  if (number != number) return (uint16_t)(sign | 0x7e00);
  if (magnitude >= 65520) return (uint16_t)(sign | 0x7c00);
  int exponent;
  frexp(magnitude, &exponent);
  int scale = exponent < -13 ? -24 : exponent - 11; /* of the last bit */
  double units = nearbyint(ldexp(magnitude, -scale));
  return (uint16_t)(sign | (scale == -24 ? (uint16_t)units : (uint16_t)((scale + 24) * 1024 + units)));
}

static double from_half(uint16_t half) {
  int exponent = half >> 10 & 31, fraction = half & 1023;
  double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                    : ldexp(fraction, -24);
  return half & 0x8000 ? -magnitude : magnitude;
}

static uint16_t to_bfloat(float number) {
  union { float f; uint32_t u; } bits = {number};
  if (number != number) return 0x7fc0;
  return (uint16_t)((bits.u + 0x7fff + (bits.u >> 16 & 1)) >> 16);
}

static float from_bfloat(uint16_t bits) {
  union { uint32_t u; float f; } wide = {(uint32_t)bits << 16};
  return wide.f;
}

/* Stores a number; 0 if the type cannot hold it or has no JSON. */
static int store(const char *text, char **end, int dtype, void *place) {
  errno = 0;
  switch (dtype) {
  case SMELT_BOOL:
    if (!strncmp(text, "true", 4)) return *(uint8_t *)place = 1, *end = (char *)text + 4, 1;
    if (!strncmp(text, "false", 5)) return *(uint8_t *)place = 0, *end = (char *)text + 5, 1;
    return 0;
  case SMELT_F32: return *(float *)place = strtof(text, end), *end != text;
  case SMELT_F64: return *(double *)place = strtod(text, end), *end != text;
  case SMELT_F16: return *(uint16_t *)place = to_half(strtod(text, end)), *end != text;
  case SMELT_BF16: return *(uint16_t *)place = to_bfloat(strtof(text, end)), *end != text;
  case SMELT_UI64: return *(uint64_t *)place = strtoull(text, end, 10), *end != text && *text != '-' && !errno;
  default: break;
  }
  long long number = strtoll(text, end, 10);
  if (*end == text || errno || **end == '.' || **end == 'e') return 0;
  switch (dtype) {
  case SMELT_I8: return *(int8_t *)place = (int8_t)number, number == (int8_t)number;
  case SMELT_I16: return *(int16_t *)place = (int16_t)number, number == (int16_t)number;
  case SMELT_I32: return *(int32_t *)place = (int32_t)number, number == (int32_t)number;
  case SMELT_INDEX: case SMELT_I64: return *(int64_t *)place = number, 1;
  case SMELT_UI8: return *(uint8_t *)place = (uint8_t)number, number == (uint8_t)number;
  case SMELT_UI16: return *(uint16_t *)place = (uint16_t)number, number == (uint16_t)number;
  case SMELT_UI32: return *(uint32_t *)place = (uint32_t)number, number == (uint32_t)number;
  default: return 0;
  }
}

/* ------------------------------------------------------------------------------------------ reading */

typedef struct {
  const char *at;
  int depth, rank;
  int64_t sizes[SMELT_MAX_RANK], counts[SMELT_MAX_RANK], room, have;
  char *data;
} Reader;

static void skip(Reader *reader) {
  while (*reader->at && strchr(" \t\r\n", *reader->at)) reader->at++;
}

static int keep(Reader *reader, const smelt_port *port) {
  if (reader->rank < 0) reader->rank = reader->depth;
  if (reader->rank != reader->depth) return 0;
  if (reader->have == reader->room) {
    reader->room = reader->room ? reader->room * 2 : 1024;
    char *larger = take_block((size_t)(reader->room * port->itemsize));
    if (larger && reader->have) memcpy(larger, reader->data, (size_t)(reader->have * port->itemsize));
    give_block(reader->data);
    reader->data = larger;
    if (!larger) return 0;
  }
  char *end;
  if (!store(reader->at, &end, port->dtype, reader->data + reader->have * port->itemsize)) return 0;
  reader->at = end, reader->have++;
  return 1;
}

/* Ends an array: its length must be that of its neighbours. */
static int close_array(Reader *reader) {
  int d = --reader->depth;
  if (reader->rank < 0) reader->rank = d + 1; /* an empty array */
  if (d + 1 > reader->rank) return 0;
  if (reader->sizes[d] >= 0 && reader->sizes[d] != reader->counts[d]) return 0;
  reader->sizes[d] = reader->counts[d];
  return 1;
}

static int read_value(Reader *reader, const smelt_port *port) {
  do {
    skip(reader);
    if (*reader->at == '[') {
      if (reader->depth == SMELT_MAX_RANK) return 0;
      reader->counts[reader->depth++] = 0, reader->at++;
      skip(reader);
      if (*reader->at != ']') continue;
    } else if (!keep(reader, port)) return 0;
    for (skip(reader); reader->depth; skip(reader)) { /* after a value or at the end of an empty array */
      int is_empty = *reader->at == ']' && !reader->counts[reader->depth - 1] && reader->at[-1] == '[';
      if (!is_empty) reader->counts[reader->depth - 1]++;
      if (*reader->at == ',') {
        reader->at++;
        break;
      }
      if (*reader->at++ != ']' || !close_array(reader)) return 0;
    }
  } while (reader->depth);
  return 1;
}

int parse_json(const char *text, const char *where, const smelt_port *port, smelt_tensor *tensor, const char **end) {
  Reader reader = {.at = text, .rank = -1};
  for (int d = 0; d < SMELT_MAX_RANK; d++) reader.sizes[d] = -1;
  if (!read_value(&reader, port)) {
    char got[48];
    snprintf(got, sizeof got, "%.40s", reader.at);
    give_block(reader.data);
    return refuse("cannot read JSON:", where, port->shape, got, NULL);
  }
  *end = reader.at;
  tensor->dtype = port->dtype, tensor->rank = reader.rank;
  for (int d = 0; d < reader.rank; d++) tensor->sizes[d] = reader.sizes[d] < 0 ? 0 : reader.sizes[d];
  tensor->data = reader.data, tensor->bytes = reader.have * port->itemsize;
  return 1;
}

/* ------------------------------------------------------------------------------------------ writing */

/* The shortest decimal that reads back as the same number. */
static void print_float(FILE *file, double number, int digits, int widest, int is_float) {
  char text[40];
  if (number != number || fabs(number) > 1.7976931348623157e308) {
    fputs(number != number ? "NaN" : number > 0 ? "Infinity" : "-Infinity", file);
    return;
  }
  for (int precision = digits; precision <= widest; precision++) {
    snprintf(text, sizeof text, "%.*g", precision, number);
    if (is_float ? strtof(text, NULL) == (float)number : strtod(text, NULL) == number) break;
  }
  fputs(text, file);
  if (!strpbrk(text, ".e")) fputs(".0", file);
}

static int print_element(FILE *file, int dtype, const void *place) {
  switch (dtype) {
  case SMELT_BOOL: return fputs(*(const uint8_t *)place ? "true" : "false", file), 1;
  case SMELT_I8: return fprintf(file, "%d", *(const int8_t *)place), 1;
  case SMELT_I16: return fprintf(file, "%d", *(const int16_t *)place), 1;
  case SMELT_I32: return fprintf(file, "%ld", (long)*(const int32_t *)place), 1;
  case SMELT_INDEX: case SMELT_I64: return fprintf(file, "%lld", (long long)*(const int64_t *)place), 1;
  case SMELT_UI8: return fprintf(file, "%u", *(const uint8_t *)place), 1;
  case SMELT_UI16: return fprintf(file, "%u", *(const uint16_t *)place), 1;
  case SMELT_UI32: return fprintf(file, "%lu", (unsigned long)*(const uint32_t *)place), 1;
  case SMELT_UI64: return fprintf(file, "%llu", (unsigned long long)*(const uint64_t *)place), 1;
  case SMELT_F16: return print_float(file, from_half(*(const uint16_t *)place), 3, 9, 1), 1;
  case SMELT_BF16: return print_float(file, (double)from_bfloat(*(const uint16_t *)place), 2, 9, 1), 1;
  case SMELT_F32: return print_float(file, (double)*(const float *)place, 6, 9, 1), 1;
  case SMELT_F64: return print_float(file, *(const double *)place, 15, 17, 0), 1;
  default: return 0;
  }
}

double number_at(const smelt_tensor *tensor, int64_t itemsize, int64_t i) {
  const void *place = (const char *)tensor->data + i * itemsize;
  switch (tensor->dtype) {
  case SMELT_F16: return from_half(*(const uint16_t *)place);
  case SMELT_BF16: return (double)from_bfloat(*(const uint16_t *)place);
  case SMELT_F32: return (double)*(const float *)place;
  case SMELT_F64: return *(const double *)place;
  case SMELT_I16: return *(const int16_t *)place;
  case SMELT_I32: return *(const int32_t *)place;
  case SMELT_INDEX: case SMELT_I64: return (double)*(const int64_t *)place;
  case SMELT_UI16: return *(const uint16_t *)place;
  case SMELT_UI32: return *(const uint32_t *)place;
  case SMELT_UI64: return (double)*(const uint64_t *)place;
  case SMELT_COMPLEX64: return (double)((const float *)place)[0] + (double)((const float *)place)[1];
  case SMELT_COMPLEX128: return ((const double *)place)[0] + ((const double *)place)[1];
  default: return tensor->dtype == SMELT_I8 ? *(const int8_t *)place : *(const uint8_t *)place;
  }
}

static int64_t size_of(int dtype) {
  switch (dtype) {
  case SMELT_BOOL: case SMELT_I8: case SMELT_UI8: return 1;
  case SMELT_I16: case SMELT_UI16: case SMELT_F16: case SMELT_BF16: return 2;
  case SMELT_I32: case SMELT_UI32: case SMELT_F32: return 4;
  default: return 8;
  }
}

static int print_axis(FILE *file, const smelt_tensor *tensor, int d, const char **at) {
  if (d == tensor->rank) {
    const char *place = *at;
    *at += size_of(tensor->dtype);
    return print_element(file, tensor->dtype, place);
  }
  fputc('[', file);
  for (int64_t i = 0; i < tensor->sizes[d]; i++) {
    if (i) fputs(", ", file);
    if (!print_axis(file, tensor, d + 1, at)) return 0;
  }
  fputc(']', file);
  return 1;
}

int print_json(FILE *file, const smelt_tensor *tensor) {
  const char *at = tensor->data;
  if (print_axis(file, tensor, 0, &at)) return 1;
  return refuse("no JSON for elements of type", smelt_dtype_name(tensor->dtype), NULL, NULL, "--output NAME=FILE.npy");
}
