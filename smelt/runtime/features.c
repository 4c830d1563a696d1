/* What this processor can do beyond the baseline ISA of its machine. */
#define _GNU_SOURCE
#include "runtime.h"

#ifdef __x86_64__
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

/* CPU features that the operating system enables, one bit each, in the order of FEATURES in device/runtime.py. */
i64 smelt_features(void) {
#ifdef __x86_64__
  unsigned a, b, c, d, low, high, enabled = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  if (c >> 27 & 1) {
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    enabled = low;
  }
  i64 avx = (enabled & 0x06) == 0x06, avx512 = (enabled & 0xE6) == 0xE6;
  i64 found = avx * ((i64)(c >> 12 & 1) | (i64)(c >> 29 & 1) << 1);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  unsigned leaves = a;
  found |= avx * (i64)(b >> 5 & 1) << 2;
  found |= avx512 * ((i64)(b >> 16 & 1) << 3 | (i64)(b >> 30 & 1) << 4 | (i64)(b >> 31 & 1) << 5);
  found |= avx512 * ((i64)(c >> 11 & 1) << 6 | (i64)(b >> 17 & 1) << 8);
  if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    found |= avx512 * ((i64)(a >> 5 & 1) << 7) | avx * ((i64)(a >> 4 & 1) << 9);
  return found;
#elif defined(__linux__) && defined(__aarch64__)
  return (i64)(getauxval(AT_HWCAP) >> 20 & 1) << 10 | (i64)(getauxval(AT_HWCAP2) >> 13 & 1) << 11;
#elif defined(__linux__) && defined(__riscv)
  return (i64)(getauxval(AT_HWCAP) >> ('v' - 'a') & 1) << 12;
#else
  return 0;
#endif
}
