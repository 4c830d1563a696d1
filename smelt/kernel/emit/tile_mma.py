"""CUDA micro-kernels on tensor cores. Panels hold 16 bytes of a column: 8 steps of bf16 (`k_pack` 8).

| function | rows of a block | how |
|---|---|---|
| `smelt_tile_FORM` | 128 | `cp.async` fills a ring of stages in shared memory; `wgmma` on sm_90, else `mma.sync` |
| `smelt_few`, `smelt_stream` | up to 32, up to 64 | weights are read at the speed of memory (`tile_few.py`) |
| `smelt_decode` | up to 8 | attention: products with keys and with values (`decode_cuda.py`) |

The sum does not depend on which steps of K an instruction combines, so a thread loads 8 adjacent steps of one row and
of one column: 16 bytes each, the operands of two `mma.sync`. f32 rows are split into three bf16 values, which together
hold all of their bits. Device functions before `LOADS` have counterparts in the tests' emulator.
"""

from __future__ import annotations

import re

from smelt.kernel.emit.attention_cuda import WEIGHTS, attend_functions
from smelt.kernel.emit.decode_cuda import decode_functions
from smelt.kernel.emit.tile_dense import MULTIPLY, PAD, SHARE, TILE, fp8_texts, kinds_of, wgmma_texts
from smelt.kernel.emit.tile_few import FEW, STREAM

INSTRUCTIONS = """\
struct __align__(16) smelt_words { ui32 x[4]; };
#ifdef __CUDACC__
inline void smelt_mma_sync(f32 *c, const ui32 *a, const ui32 *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
inline void smelt_mma_sync_f16(f32 *c, const ui32 *a, const ui32 *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
inline void smelt_mma_sync_int8(i32 *c, const ui32 *a, const ui32 *b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};" : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
inline void smelt_mma_sync_tf32(f32 *c, const ui32 *a, const ui32 *b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FP8_TEXT
#if __CUDA_ARCH__ >= 900
inline void smelt_await() { asm volatile("griddepcontrol.wait;" ::: "memory"); }  // for what earlier launches write
#else
inline void smelt_await() {}
#endif
inline ui32 smelt_cycles() {
  ui32 now;
  asm volatile("mov.u32 %0, %clock;" : "=r"(now));
  return now;
}
inline ui32 smelt_shared_address(const void *at) { return (ui32)__cvta_generic_to_shared(at); }
inline void smelt_copy_async(void *to, const void *from, int used) {  // 16 bytes, of which those not used are 0
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
      :: "r"(smelt_shared_address(to)), "l"(from), "r"(used) : "memory");
}
inline void smelt_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> inline void smelt_copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
inline void smelt_barrier_init(ui64 *at, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(smelt_shared_address(at)), "r"(count) : "memory");
}
inline void smelt_barrier_arrive(ui64 *at) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }"
      :: "r"(smelt_shared_address(at)) : "memory");
}
inline bool smelt_barrier_passed(ui64 *at, int phase) {
  ui32 done;
#if __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(smelt_shared_address(at)), "r"(phase) : "memory");
#else
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(smelt_shared_address(at)), "r"(phase) : "memory");
#endif
  return done;
}
inline void smelt_copy_arrive(ui64 *at) {  // once the copies that this thread has begun are there
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(smelt_shared_address(at)) : "memory");
}
inline smelt_words smelt_stream(const void *from) {  // 16 bytes that are read once
  smelt_words to;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to.x[0]), "=r"(to.x[1]), "=r"(to.x[2]), "=r"(to.x[3]) : "l"(from));
  return to;
}
inline smelt_words smelt_read(const void *from) {  // 16 bytes, now: no compiler moves it to where they are used
  smelt_words to;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to.x[0]), "=r"(to.x[1]), "=r"(to.x[2]), "=r"(to.x[3]) : "l"(from) : "memory");
  return to;
}
template <int N> inline void smelt_threads_sync() {  // of the first N
  asm volatile("bar.sync 4, %0;" :: "n"(N) : "memory");
}
#if __CUDA_ARCH__ >= 900
inline void smelt_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
inline void smelt_barrier_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
inline void smelt_barrier_end(ui64 *at) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(smelt_shared_address(at)) : "memory");
}
inline void smelt_bulk_expect(ui64 *at, ui32 bytes) {  // an arrival, and bytes that will be there in this phase
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
      :: "r"(smelt_shared_address(at)), "r"(bytes) : "memory");
}
inline void smelt_bulk_copy(void *to, const void *from, ui32 bytes, ui64 *at) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :: "r"(smelt_shared_address(to)), "l"(from), "r"(bytes), "r"(smelt_shared_address(at)) : "memory");
}
#else
inline void smelt_publish() {}
#endif
inline void smelt_share_writes() { __threadfence(); }  // with other blocks
inline ui32 smelt_count(ui32 *counter) { return atomicAdd(counter, 1u); }
inline f32 smelt_read_shared(const f32 *from) {  // what another block wrote
  f32 to;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(to) : "l"(from) : "memory");
  return to;
}
inline void smelt_prefetch(const void *from) { asm volatile("prefetch.global.L2 [%0];" :: "l"(from)); }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SMELT_WGMMA 1
inline void smelt_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void smelt_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> inline void smelt_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
template <int N> inline void smelt_wgmma_done(f32 (&d)[N]) {  // the compiler must not read sums before they are there
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
WGMMA_TEXT
#endif
#endif
"""
LOADS = """\
inline ui32 smelt_join(ui32 even, ui32 odd) { return even >> 16 | (odd & 0xffff0000u); }
// f32 = high + middle + low, each a bf16 in the upper half of a word, with the same sign. Infinities and NaN are high.
// What is left to middle and low is never 0 but 2^-40 of high, so that an infinite weight gives no NaN.
inline void smelt_split(f32 x, ui32 *to) {
  const ui32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
  to[0] = size > 0x7f800000u ? 0x7fc00000u : bits & 0xffff0000u;
  const ui32 tiny = size >= 41u << 23 ? (bits & 0xff800000u) - (40u << 23) : 0;
  const f32 rest = size >= 0x7f800000u ? 0.0f : x - __uint_as_float(to[0]);
  const ui32 middle = __float_as_uint(rest) & 0xffff0000u;
  const ui32 low = __float_as_uint(rest - __uint_as_float(middle));
  to[1] = middle & 0x7fff0000u ? middle : tiny;
  to[2] = low & 0x7fff0000u ? low : tiny;
}
// Left operands: bf16 that an element becomes; adjacent steps of K; steps whose sum is added to the others' (0: all).
template <class L> struct smelt_left;
struct smelt_tf32 { f32 x; };  // with 10 bits of mantissa
struct smelt_fp8 { ui8 x; };  // of one of both types
template <> struct smelt_left<smelt_tf32> {
  enum { PARTS = 1, PACK = 4, BLOCK = 0 };
  typedef smelt_tf32 Right;
  typedef f32 Total;
};
template <> struct smelt_left<smelt_fp8> {
  enum { PARTS = 1, PACK = 16, BLOCK = 128 };
  typedef smelt_fp8 Right;
  typedef f32 Total;
};
template <> struct smelt_left<ui8> {
  enum { PARTS = 1, PACK = 16, BLOCK = 0 };
  typedef i8 Right;
  typedef i32 Total;
};
template <> struct smelt_left<ui16> {
  enum { PARTS = 1, PACK = 8, BLOCK = 0 };
  typedef ui16 Right;
  typedef f32 Total;
  static void words(const ui16 *from, smelt_words *to) { to[0] = *(const smelt_words *)from; }
  static void parts(const smelt_words *raw, smelt_words *to) { to[0] = raw[0]; }
  static void some(const ui16 *from, i64 used, smelt_words *to) {  // the first of 16 bytes
    for (int i = 0; i < 4; i++)
      to[0].x[i] = (2 * i < used ? (ui32)from[2 * i] : 0) | (2 * i + 1 < used ? (ui32)from[2 * i + 1] << 16 : 0);
  }
};
template <> struct smelt_left<f32> {
  enum { PARTS = 3, PACK = 8, BLOCK = 0 };
  typedef ui16 Right;
  typedef f32 Total;
  static void parts(const smelt_words *raw, smelt_words *to) {
    for (int i = 0; i < 4; i++) {
      ui32 even[3], odd[3];
      smelt_split(__uint_as_float(raw[i / 2].x[i % 2 * 2]), even);
      smelt_split(__uint_as_float(raw[i / 2].x[i % 2 * 2 + 1]), odd);
      for (int p = 0; p < 3; p++) to[p].x[i] = smelt_join(even[p], odd[p]);
    }
  }
  static void words(const f32 *from, smelt_words *to) { parts((const smelt_words *)from, to); }
  static void some(const f32 *from, i64 used, smelt_words *to) {  // the first of 16 bytes
    for (int i = 0; i < 4; i++) to[0].x[i] = i < used ? __float_as_uint(from[i]) : 0;
  }
};
"""


def tensor_kernels(text: str) -> str:
    """The functions that a text calls."""
    tile, few, stream = (f"smelt_{name}<" in text for name in ("tile", "few", "stream"))
    flash, decode = attend_functions(text), decode_functions(text)
    if not (tile or few or stream or decode or flash or re.search("smelt_(block_|round_row)", text)):
        return ""
    kinds = kinds_of(text)
    instructions = INSTRUCTIONS.replace("WGMMA_TEXT\n", wgmma_texts(kinds) if tile or stream else "")
    instructions = instructions.replace("FP8_TEXT\n", fp8_texts(kinds))
    return "".join(
        [
            *(instructions, LOADS, WEIGHTS if flash or decode else "", flash, decode),
            *([FEW] if few else []),
            *([SHARE] if tile or stream else []),
            *([MULTIPLY] if tile or stream else []),
            *([PAD, TILE] if tile else []),
            *([STREAM] if stream else []),
        ]
    )
