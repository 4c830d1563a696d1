/* The executable around a model: what its files share. Functions that can fail print a message and return 0. */
#ifndef SMELT_FRONT_H
#define SMELT_FRONT_H

#include "api.h"

#include <stdio.h>

/* Prints "error" and a message in the form of smelt's errors; got, expected and remedy may be NULL. Returns 0. */
int refuse(const char *message, const char *what, const char *expected, const char *got, const char *remedy);

/* files.c */
char *read_file(const char *path, int64_t *bytes); /* "-": stdin; ends with a zero byte; NULL: refused */
int read_tensor(const char *text, const smelt_port *port, smelt_tensor *tensor);
int write_tensor(const char *path, const smelt_tensor *tensor, int64_t itemsize);
int write_file(const char *path, const void *head, size_t head_bytes, const void *bytes, size_t count);
int64_t count_elements(const smelt_tensor *tensor);

/* json.c */
int parse_json(const char *text, const char *where, const smelt_port *port, smelt_tensor *tensor, const char **end);
int print_json(FILE *file, const smelt_tensor *tensor);

#endif
