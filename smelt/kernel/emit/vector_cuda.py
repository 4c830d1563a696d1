"""Vector loads and stores in CUDA, up to 16 bytes, as source text. `kernel_cuda` prints loops over adjacent elements of
one thread (`For.level` `vector`) with them, `rows_cuda` rows of a block; `loops.adjacent` finds what is adjacent.
"""

from __future__ import annotations

LANE = "smelt_lane"  # a thread's number in its group
# A compiler may take a copy of a structure apart: these are whole instructions. Equal reads may become one, and come
# before what a thread stores: it reads no element that it has stored.
PACK = """\
template <class T, int N> struct __align__(sizeof(T) * N < 16 ? sizeof(T) * N : 16) smelt_vector { T x[N]; };
template <class P> inline P smelt_get_pack(const void *from) {
  P to;
#ifdef __CUDACC__
  if (sizeof(P) % 16 == 0) {
    ui32 w[sizeof(P) / 4];
#pragma unroll
    for (int i = 0; i < (int)sizeof(P) / 16; i++)
      asm("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]), "=r"(w[4 * i + 3])
          : "l"((const char *)from + 16 * i));
    memcpy(&to, w, sizeof(P));
    return to;
  }
#endif
  to = *(const P *)from;
  return to;
}
template <class P> inline void smelt_put_pack(void *to, const P &x) {
#ifdef __CUDACC__
  if (sizeof(P) % 16 == 0) {
    ui32 w[sizeof(P) / 4];
    memcpy(w, &x, sizeof(P));
#pragma unroll
    for (int i = 0; i < (int)sizeof(P) / 16; i++)
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
          :: "l"((char *)to + 16 * i), "r"(w[4 * i]), "r"(w[4 * i + 1]), "r"(w[4 * i + 2]), "r"(w[4 * i + 3])
          : "memory");
    return;
  }
  if (sizeof(P) == 8) {
    ui32 w[2];
    memcpy(w, &x, 8);
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(to), "r"(w[0]), "r"(w[1]) : "memory");
    return;
  }
  if (sizeof(P) == 4) {
    ui32 w;
    memcpy(&w, &x, 4);
    asm volatile("st.global.u32 [%0], %1;" :: "l"(to), "r"(w) : "memory");
    return;
  }
#endif
  *(P *)to = x;
}
"""
