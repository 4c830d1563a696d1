/* Random and damaged texts for numbers.c. Each ends where a page without access begins, and so do the results: a byte too
 * many ends the process. Numbers that are read are compared with strtod's. Arguments:
 * seed, texts. */
#define _GNU_SOURCE
#include "numbers.c"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 4096, MOST = 6 };

static uint64_t state;

static unsigned draw(unsigned below) { /* splitmix64 */
  uint64_t word = state += 0x9e3779b97f4a7c15u;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
  word = (word ^ word >> 27) * 0x94d049bb133111ebu;
  return (unsigned)((word ^ word >> 31) >> 33) % below;
}

static char draw_character(void) {
  static const char all[] = "[[[]]]0123456789012345678900000..,,,,eE+- \n\t\"x\xff{}:"; /* and its NUL */
  return all[draw(sizeof all)];
}

static char *add_digits(char *at, unsigned count) {
  while (count--) *at++ = draw(4) ? (char)('0' + draw(10)) : '0';
  return at;
}

static char *add_number(char *at) {
  if (draw(2)) *at++ = '-';
  if (draw(20)) *at++ = (char)('0' + draw(10)); /* 0 begins a fraction, or a number that JSON does not have */
  if (at[-1] != '0' || !draw(20)) at = add_digits(at, draw(draw(8) ? 4 : 40));
  if (draw(2)) *at++ = '.', at = add_digits(at, draw(draw(8) ? 12 : 90));
  if (!draw(3)) at += sprintf(at, "%c%s%u", draw(2) ? 'e' : 'E', draw(2) ? "-" : draw(2) ? "+" : "", draw(1u << draw(31)));
  return at;
}

/* An array of numbers, damaged in some places. */
static int make_text(char *text, int count) {
  char *at = text;
  int depth = 1 + (int)draw(draw(8) ? 3 : 40);
  for (int i = 0; i < depth; i++) *at++ = '[';
  for (int i = 0; i < count; i++) {
    if (i) at += sprintf(at, "%s", draw(2) ? "," : " , ");
    at = add_number(at);
  }
  for (int i = 0; i < depth; i++) *at++ = ']';
  int length = (int)(at - text);
  for (unsigned i = draw(4); i > 1; i--) {
    int place = (int)draw((unsigned)length);
    if (!draw(3)) length = place + 1;
    else text[place] = draw_character();
  }
  return length;
}

/* The end of some memory, where a page without access begins. */
static char *make_guarded(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (ROOM + page - 1) / page * page;
  char *base = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED || mprotect(base + room, page, PROT_NONE)) exit(2);
  return base + room;
}

/* An integer's zero has no sign. */
static int is_same(char **at, float found) {
  while (**at && **at != '-' && (unsigned char)(**at - '0') > 9) ++*at;
  char *begin = *at;
  float want = (float)strtod(begin, at);
  if (strspn(begin, "-0") == (size_t)(*at - begin)) want = 0;
  return !memcmp(&want, &found, sizeof found);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  state = strtoull(arguments[1], NULL, 10);
  char *text_end = make_guarded(), *result_end = make_guarded(), made[ROOM];
  long read = 0;
  for (long texts = atol(arguments[2]); texts; texts--) {
    int numbers = 1 + (int)draw(MOST), wanted = draw(4) ? numbers : 1 + (int)draw(MOST);
    int length = make_text(made, numbers), integers = !draw(3);
    char *text = text_end - length, *result = result_end - wanted * (integers ? 8 : 4);
    memcpy(text, made, (size_t)length);
    if (smelt_read_numbers(text, length, 0, integers, wanted, result) >= 0) {
      char *at = made;
      made[length] = 0, read++;
      for (int i = 0; i < wanted && !integers; i++)
        if (!is_same(&at, ((float *)(void *)result)[i])) return printf("another number: %s\n", made), 1;
    }
    for (int i = 0; i < length; i++) {
      int64_t end = text[i] == '[' ? smelt_array_end(text, length, i) : -1;
      if (end > length || (end >= 0 && (end <= i || text[end - 1] != ']'))) return printf("another end: %s\n", made), 1;
    }
  }
  printf("%ld\n", read);
  return 0;
}
