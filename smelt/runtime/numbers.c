/* JSON arrays of numbers → tensors, for the server. Only the common case is handled here. Everything else (an empty or
 * ragged array, a string, a number that needs exact arithmetic) returns -1; `serve/tensors.py` then reads the text
 * again, with proper messages. */
#include <stdint.h>
#include <string.h>
#if defined(__SSE4_1__) && defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_DEPTH = 32, MAX_DIGITS = 19, MAX_POWER = 22 }; /* 10^19 < 2^64; 10^22 is exact in a double */

typedef struct {
  uint64_t digits; /* the value is ±digits · 10^exponent */
  int exponent, negative, is_integer;
} Decimal;

static const char *skip(const char *at, const char *end) {
  while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
  return at;
}

static int is_digit(const char *at, const char *end) { return at < end && (unsigned char)(*at - '0') < 10; }

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
enum { WORD = 8 };

/* Eight digits, one per byte, the first in the lowest: pairs, then fours, then all. */
static uint64_t join_digits(uint64_t digits) {
  digits = digits * 10 + (digits >> 8);
  return ((digits & 0x000000ff000000ffu) * 0x000f424000000064u +
          ((digits >> 16) & 0x000000ff000000ffu) * 0x0000271000000001u) >> 32;
}

#if defined(__SSE4_1__) && defined(__x86_64__)
/* Appends sixteen digits to `*value`; 0 if there are fewer. Doubles are mostly printed with more. */
static int read_sixteen(const char *at, const char *end, uint64_t *value) {
  if (end - at < 16) return 0;
  __m128i digits = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)at), _mm_set1_epi8('0'));
  if (_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(digits, _mm_set1_epi8(10)), digits))) return 0;
  __m128i pairs = _mm_maddubs_epi16(digits, _mm_set1_epi16(0x010a)); /* 10, 1 */
  __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x00010064)); /* 100, 1 */
  fours = _mm_packus_epi32(fours, fours);
  __m128i eights = _mm_madd_epi16(fours, _mm_set1_epi32(0x00012710)); /* 10000, 1 */
  uint64_t both = (uint64_t)_mm_cvtsi128_si64(eights);
  *value = *value * 10000000000000000u + (both & 0xffffffff) * 100000000 + (both >> 32);
  return 1;
}
#else
static int read_sixteen(const char *at, const char *end, uint64_t *value) {
  (void)at, (void)end, (void)value;
  return 0;
}
#endif

/* Appends the digits at `at` to `*value`, word by word. Whole words are a branch that is easily predicted; the last digits are
 * counted, since a branch for their number would not be. */
static const char *read_words(const char *at, const char *end, uint64_t *value) {
  static const uint64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
  if (read_sixteen(at, end, value)) at += 16;
  while (end - at >= WORD) {
    uint64_t word;
    memcpy(&word, at, WORD);
    uint64_t digits = word - 0x3030303030303030u; /* borrows and carries reach later characters only */
    uint64_t others = ((word + 0x4646464646464646u) | digits) & 0x8080808080808080u;
    if (!others) {
      *value = *value * 100000000 + join_digits(digits);
      at += WORD;
      continue;
    }
    int count = __builtin_ctzll(others) >> 3, half = 4 * (WORD - count);
    *value = *value * powers[count] + join_digits(digits << half << half); /* zeros in front */
    return at + count;
  }
  return at;
}
#else
static const char *read_words(const char *at, const char *end, uint64_t *value) {
  (void)end, (void)value;
  return at;
}
#endif

/* Appends digits to `*value`. The caller counts them: more than MAX_DIGITS wrap around. */
static const char *read_digits(const char *at, const char *end, uint64_t *value) {
  at = read_words(at, end, value);
  for (; is_digit(at, end); at++) *value = *value * 10 + (uint64_t)(*at - '0');
  return at;
}

/* Reads a number of JSON's grammar; NULL if it is none, or has too many digits. */
static const char *read_number(const char *at, const char *end, Decimal *number) {
  uint64_t digits = 0;
  int negative = at < end && *at == '-', exponent = 0, is_integer = 1;
  at += negative;
  const char *first = at;
  for (; is_digit(at, end); at++) digits = digits * 10 + (uint64_t)(*at - '0');
  int64_t count = at - first;
  if (!count || (count > 1 && *first == '0')) return NULL;
  if (at < end && *at == '.') {
    const char *point = ++at;
    at = read_digits(at, end, &digits);
    if (at == point || at - point > 64) return NULL;
    exponent = -(int)(at - point);
    is_integer = 0;
    count += at - point;
    if (count > MAX_DIGITS && *first == '0') { /* zeros in front are no digits of the value */
      count--;
      for (; count && *point == '0'; point++) count--;
    }
  }
  if (count > MAX_DIGITS) return NULL;
  if (at < end && (*at == 'e' || *at == 'E')) {
    at++;
    int sign = at < end && *at == '-' ? -1 : 1, power = 0;
    if (at < end && (*at == '-' || *at == '+')) at++;
    if (!is_digit(at, end)) return NULL;
    for (; is_digit(at, end); at++)
      if ((power = power * 10 + (*at - '0')) > 1000) return NULL;
    exponent += sign * power;
    is_integer = 0;
  }
  *number = (Decimal){digits, exponent, negative, is_integer};
  return at;
}

/* The number as a double that was rounded to float; 0 if the rounding is not certain. `value` is within three units in
 * the last place: it was rounded at most three times, each time by at most 2^-53 of itself (the integer, the power, the
 * product). Rounding to float is then certain unless the midpoint of two floats is that near. */
static int to_float(const Decimal *number, float *result) {
  static const double powers[] = {1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11,
                                  1e-10, 1e-9,  1e-8,  1e-7,  1e-6,  1e-5,  1e-4,  1e-3,  1e-2,  1e-1,  1e0,   1e1,
                                  1e2,   1e3,   1e4,   1e5,   1e6,   1e7,   1e8,   1e9,   1e10,  1e11,  1e12,  1e13,
                                  1e14,  1e15,  1e16,  1e17,  1e18,  1e19,  1e20,  1e21,  1e22};
  double value = (double)number->digits;
  int exponent = number->digits ? number->exponent : 0;
  if (exponent < -2 * MAX_POWER || exponent > MAX_POWER) return 0;
  if (exponent >= -MAX_POWER)
    value *= powers[MAX_POWER + exponent];
  else /* positive powers are exact */
    value = value / 1e22 / powers[-exponent];
  if (value != 0 && !(value >= 1.1754943508222875e-38 && value < 3.4028234663852886e38)) return 0;
  uint64_t bits;
  memcpy(&bits, &value, 8);
  int64_t beyond = (int64_t)(bits & 0x1fffffff) - 0x10000000; /* of a float's mantissa */
  if (beyond >= -4 && beyond <= 4) return 0;
  *result = number->negative && !(number->is_integer && !number->digits) ? -(float)value : (float)value;
  return 1;
}

static int to_integer(const Decimal *number, int64_t *result) {
  if (!number->is_integer || number->digits > INT64_MAX) return 0;
  *result = number->negative ? -(int64_t)number->digits : (int64_t)number->digits;
  return 1;
}

/* The end of an array that begins at `start` and holds no strings, found by its brackets alone; -1: there is none. */
int64_t smelt_array_end(const char *text, int64_t length, int64_t start) {
  int64_t depth = 0;
  for (const char *at = text + start, *end = text + length;;) {
    const char *close = at < end ? memchr(at, ']', (size_t)(end - at)) : NULL;
    if (!close) return -1;
    for (; at < close && (at = memchr(at, '[', (size_t)(close - at))); at++) depth++;
    at = close + 1;
    if (--depth <= 0) return at - text;
  }
}

/* Reads numbers with commas between them, up to the bracket that ends their array: `*count` at most, which becomes how many
 * there were. Returns where the bracket is; NULL where another reader is needed. */
static inline __attribute__((always_inline)) const char *read_run(const char *at, const char *end, int integers, void *result, int64_t *count) {
  for (int64_t done = 0; done < *count;) {
    Decimal number;
    if (!(at = read_number(at, end, &number))) return NULL;
    if (!(integers ? to_integer(&number, (int64_t *)result + done) : to_float(&number, (float *)result + done))) return NULL;
    done++;
    at = skip(at, end);
    if (at == end) return NULL;
    if (*at == ']') {
      *count = done;
      return at;
    }
    if (*at != ',') return NULL;
    at = skip(at + 1, end);
  }
  return NULL;
}

static const char *read_floats(const char *at, const char *end, float *result, int64_t *count) {
  return read_run(at, end, 0, result, count);
}

static const char *read_integers(const char *at, const char *end, int64_t *result, int64_t *count) {
  return read_run(at, end, 1, result, count);
}

/* Reads the array of numbers that begins at `start`, flat or nested with equal lengths on every level, into `count` elements
 * of `result`: floats, or 64-bit integers. Returns where it ends, or -1 where another reader is needed. */
int64_t smelt_read_numbers(const char *text, int64_t length, int64_t start, int integers, int64_t count, void *result) {
  const char *at = text + start, *end = text + length;
  int64_t lengths[MAX_DEPTH], counts[MAX_DEPTH], done = 0;
  int depth = 0, leaf = 0; /* `leaf`: the depth of the numbers, when it is known */
  for (;; at++) {
    at = skip(at, end);
    if (at == end) return -1;
    if (*at == '[') {
      if (depth == (leaf ? leaf : MAX_DEPTH)) return -1;
      if (!leaf) lengths[depth] = -1;
      counts[depth++] = 0;
      continue;
    }
    if (!leaf) leaf = depth;
    if (!depth || depth != leaf) return -1;
    int64_t run = count - done;
    at = integers ? read_integers(at, end, (int64_t *)result + done, &run) : read_floats(at, end, (float *)result + done, &run);
    if (!at) return -1;
    done += run;
    counts[depth - 1] = run;
    do { /* behind every array that ends here */
      if (*at != ']') return -1;
      depth--;
      if (lengths[depth] < 0) lengths[depth] = counts[depth];
      if (lengths[depth] != counts[depth]) return -1;
      if (!depth) return done == count ? at + 1 - text : -1;
      counts[depth - 1]++;
      at = skip(at + 1, end);
      if (at == end) return -1;
    } while (*at != ',');
  }
}
