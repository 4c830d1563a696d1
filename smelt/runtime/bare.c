/* system.c, memory.c and features.c for machines without an operating system and without a C library: all memory comes
 * from the block that a model is given (heap.c). */
#include "runtime.h"

#include <stddef.h>

i64 smelt_features(void) { return 0; }
i64 smelt_cores(void) { return 1; }

void *smelt_allocate(i64 bytes) { return (void)bytes, NULL; }
void smelt_release(void *block, i64 bytes) { (void)block, (void)bytes; }
i64 smelt_span(i64 bytes) { return bytes; }
i64 smelt_machine_memory(void) { return (i64)1 << 31; }
void smelt_unmap_file(void *base, i64 bytes) { (void)base, (void)bytes; }

/* What compilers call by themselves. The empty asm keeps them from turning these loops into calls of the functions. */
#define WEAK __attribute__((weak))
#define OPAQUE(pointer) __asm__("" : "+r"(pointer))

WEAK void *memcpy(void *restrict to, const void *restrict from, size_t count) {
  char *at = to;
  const char *source = from;
  for (char *end = at + count; at < end; *at++ = *source++) OPAQUE(source);
  return to;
}

WEAK void *memmove(void *to, const void *from, size_t count) {
  if ((char *)to <= (const char *)from) return memcpy(to, from, count);
  char *at = (char *)to + count;
  const char *source = (const char *)from + count;
  while (at > (char *)to) {
    OPAQUE(source);
    *--at = *--source;
  }
  return to;
}

WEAK void *memset(void *to, int byte, size_t count) {
  char *at = to;
  for (char *end = at + count; at < end; *at++ = (char)byte) OPAQUE(end);
  return to;
}

WEAK int memcmp(const void *a, const void *b, size_t count) {
  const unsigned char *x = a, *y = b;
  for (; count; count--, x++, y++)
    if (*x != *y) return *x - *y;
  return 0;
}

WEAK size_t strlen(const char *text) {
  const char *end = text;
  while (*end) {
    OPAQUE(end);
    end++;
  }
  return (size_t)(end - text);
}
