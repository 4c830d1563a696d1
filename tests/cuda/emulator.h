// Runs generated CUDA on the processor, block after block. Threads of a block are fibers: each runs until it waits for
// others, so barriers and shuffles work, and a kernel that waits in a way a GPU would not allow is found (a deadlock).
#undef _FORTIFY_SOURCE
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // headers of C without those of C++, which take longer than a kernel to compile
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
struct Index { unsigned x; };
static Index threadIdx, blockIdx, gridDim, blockDim;

enum { WARP = 32, MOST = 2048, CLUSTER = 8, STACK = 256 << 10 };
struct Barrier { int waiting, generation, before, behind; };
static ucontext_t begun, entry;
static jmp_buf scheduler, fibers[MOST];  // a fiber's first step needs a context, later ones a jump, which is no system call
static char *stacks[MOST];
static bool finished[MOST];
static int current, threads_here, first_block, moved;
static bool backwards = true;  // every other turn begins with the last thread, so that a missing barrier shows
static Barrier warp_barriers[MOST / WARP], block_barriers[CLUSTER], threads_barriers[CLUSTER], cluster_barrier;
static int cluster_here;  // blocks that run at the same time
static unsigned exchanged[MOST];
static void (*kernel_here)(const long long *);
static const long long *arguments_here;
#ifdef SMELT_RACES
#include "races.h"
#else
#define UNSEEN
static void enter_barrier(int *) {}
static void open_barrier(int *, int *) {}
static void leave_barrier(const int *) {}
static void release_at(const void *) {}
static void acquire_at(const void *) {}
static void count_at(const void *) {}
static void begin_read(const void *, size_t) {}
static void begin_write(void *, size_t) {}
static void begin_run(void) {}
static void watch_shared(const void *, size_t) {}
static void touch_atomically(const void *, size_t) {}
static void await_launches(void) {}
static void copy_bytes(void *to, const void *from, size_t count) { memcpy(to, from, count); }
static void write_zeros(void *to, size_t count) { memset(to, 0, count); }
static unsigned *snapshot(void) { return 0; }
static int begin_engine(const void *, unsigned *, int) { return 0; }
static void publish(void) {}
static int acting;
static bool by_tensor_cores, copying;
#endif

// What is under way, the oldest first. (The compiler takes longer to read <vector> than all of this file.)
template <class T> struct Queue {
  T *items;
  size_t count, room;
  void push_back(const T &item) {
    if (count == room) items = (T *)realloc(items, (room = room ? 2 * room : 16) * sizeof(T));
    items[count++] = item;
  }
  void drop(size_t oldest) {
    count -= oldest;
    memmove(items, items + oldest, count * sizeof(T));
  }
  size_t size() const { return count; }
  T &operator[](size_t at) { return items[at]; }
  T *begin() { return items; }
  T *end() { return items + count; }
};

static int block_here(void) { return current / threads_here; }
static void enter_fiber(void) {
  threadIdx.x = current % threads_here;
  blockIdx.x = first_block + block_here();
}
static void pause_fiber(void) {
  if (!_setjmp(fibers[current])) _longjmp(scheduler, 1);
  enter_fiber();
}
static void wait_at(Barrier *barrier, int members, bool orders = true) {  // orders: accesses to memory
  moved++;
  const int generation = barrier->generation;
  if (orders) enter_barrier(&barrier->before);
  if (++barrier->waiting == members) {
    barrier->waiting = 0;
    barrier->generation++;
    if (orders) open_barrier(&barrier->before, &barrier->behind);
  }
  while (barrier->generation == generation) pause_fiber();
  if (orders) leave_barrier(&barrier->behind);
}
static int warp_members(void) {
  const int rest = threads_here - current % threads_here / WARP * WARP;
  return rest < WARP ? rest : WARP;
}
static void __syncwarp(unsigned mask = 0xffffffffu) { wait_at(&warp_barriers[current / WARP], warp_members()); }
static void meet_warp(void) { wait_at(&warp_barriers[current / WARP], warp_members(), false); }
static void __syncthreads(void) { wait_at(&block_barriers[block_here()], threads_here); }
template <int N> static void smelt_threads_sync() { wait_at(&threads_barriers[block_here()], N); }
static void smelt_cluster_begin(void) {}
static void smelt_cluster_arrive(void) {}
static void smelt_cluster_wait(void) { wait_at(&cluster_barrier, cluster_here * threads_here); }
static unsigned exchange(unsigned value, int from) {
  exchanged[current] = value;
  meet_warp();
  const unsigned found = exchanged[current / WARP * WARP + (from >= 0 && from < WARP ? from : current % WARP)];
  meet_warp();
  return found;
}
static unsigned __shfl_sync(unsigned, unsigned value, int lane) { return exchange(value, lane); }
static unsigned __shfl_down_sync(unsigned, unsigned value, int by) { return exchange(value, current % WARP + by); }
static unsigned __shfl_xor_sync(unsigned, unsigned value, int by) { return exchange(value, (current % WARP) ^ by); }

static unsigned left_words[MOST][4], right_words[MOST][2];
static float bf16(unsigned word, int half) {
  const unsigned bits = half ? word & 0xffff0000u : word << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static float smelt_widen_half(unsigned x) { _Float16 h; memcpy(&h, &x, 2); return h; }
static float f16(unsigned word, int half) { return smelt_widen_half(half ? word >> 16 : word); }
static float tf32(unsigned bits) {  // tensor cores do not read the other bits
  bits &= 0xffffe000u;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static float e4m3(unsigned char bits) {
  const int exponent = bits >> 3 & 15, rest = bits & 7;
  const float size = (bits & 127) == 127 ? NAN : exponent ? ldexpf(8 + rest, exponent - 10) : ldexpf(rest, -9);
  return bits >> 7 ? -size : size;
}
static float e5m2(unsigned char bits) { return f16((unsigned)bits << 8, 0); }
typedef float (*Eight)(unsigned char);
template <Eight ELEMENT> static float in_table(unsigned char bits) {
  static float table[256];
  static bool filled;
  for (int i = 0; i < 256 && !filled; i++) table[i] = ELEMENT(i);
  filled = true;
  return table[bits];
}
static double power_of_two(int exponent) {
  const unsigned long long bits = (unsigned long long)(1023 + exponent) << 52;
  double x;
  memcpy(&x, &bits, 8);
  return x;
}
// A sum of products of fp8, as Hopper's tensor cores have it: addends are cut to 14 bits of the largest one.
static float add_cut(float sum, const float *more, int count) {
  float largest = fabsf(sum);
  bool numbers = sum == sum;
  for (int i = 0; i < count; i++) {
    const float size = fabsf(more[i]);
    numbers &= size == size;
    largest = size > largest ? size : largest;
  }
  if (!numbers || largest == INFINITY) {
    for (int i = 0; i < count; i++) sum += more[i];
    return sum;
  }
  if (!largest) return 0;
  const double wide = largest;  // in which no f32 is subnormal
  unsigned long long bits;
  memcpy(&bits, &wide, 8);
  const int exponent = (int)(bits >> 52) - 1023;
  const double steps = power_of_two(13 - exponent);
  int total = (int)(sum * steps);
  for (int i = 0; i < count; i++) total += (int)(more[i] * steps);
  return (float)(total * power_of_two(exponent - 13));
}
// mma.sync.m16n8k16: who holds which element is NVIDIA's (PTX ISA, matrix fragments).
template <float (*ELEMENT)(unsigned, int)> static void multiply_fragments(float *c, const unsigned *a, const unsigned *b) {
  memcpy(left_words[current], a, 16);
  memcpy(right_words[current], b, 8);
  meet_warp();
  const int first = current / WARP * WARP, group = current % WARP / 4, member = current % 4;
  for (int e = 0; e < 4; e++) {
    const int row = group + e / 2 * 8, column = 2 * member + e % 2;
    for (int k = 0; k < 16; k++) {
      const unsigned x = left_words[first + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
      const unsigned y = right_words[first + column * 4 + k % 8 / 2][k / 8];
      c[e] += ELEMENT(x, k % 2) * ELEMENT(y, k % 2);
    }
  }
  meet_warp();
}
static void smelt_mma_sync(float *c, const unsigned *a, const unsigned *b) { multiply_fragments<bf16>(c, a, b); }
static void smelt_mma_sync_f16(float *c, const unsigned *a, const unsigned *b) { multiply_fragments<f16>(c, a, b); }

static void smelt_mma_sync_tf32(float *c, const unsigned *a, const unsigned *b) {  // m16n8k8
  memcpy(left_words[current], a, 16);
  memcpy(right_words[current], b, 8);
  meet_warp();
  const int first = current / WARP * WARP, group = current % WARP / 4, member = current % 4;
  for (int e = 0; e < 4; e++) {
    const int row = group + e / 2 * 8, column = 2 * member + e % 2;
    for (int k = 0; k < 8; k++) {
      const unsigned x = left_words[first + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2];
      c[e] += tf32(x) * tf32(right_words[first + column * 4 + k % 4][k / 4]);
    }
  }
  meet_warp();
}
static void multiply_eight(float *c, const unsigned *a, const unsigned *b, Eight left, Eight right) {  // m16n8k32
  memcpy(left_words[current], a, 16);
  memcpy(right_words[current], b, 8);
  meet_warp();
  const int first = current / WARP * WARP, group = current % WARP / 4, member = current % 4;
  for (int e = 0; e < 4; e++) {
    const int row = group + e / 2 * 8, column = 2 * member + e % 2;
    float more[32];
    for (int k = 0; k < 32; k++) {
      const unsigned x = left_words[first + row % 8 * 4 + k % 16 / 4][row / 8 + k / 16 * 2];
      const unsigned y = right_words[first + column * 4 + k % 16 / 4][k / 16];
      more[k] = left(x >> k % 4 * 8) * right(y >> k % 4 * 8);
    }
    c[e] = add_cut(c[e], more, 32);
  }
  meet_warp();
}
#define SMELT_EIGHT(L, R) \
  static void smelt_mma_sync_##L##_##R(float *c, const unsigned *a, const unsigned *b) { \
    multiply_eight(c, a, b, in_table<L>, in_table<R>); \
  }
SMELT_EIGHT(e4m3, e4m3)
SMELT_EIGHT(e4m3, e5m2)
SMELT_EIGHT(e5m2, e4m3)
SMELT_EIGHT(e5m2, e5m2)
#undef SMELT_EIGHT

// mma.sync.m16n8k32 of bytes, without sums to add to: the left ones may have a sign, the right ones do.
template <bool SIGNED> static void smelt_mma_bytes(int *c, const unsigned *a, const unsigned *b) {
  memcpy(left_words[current], a, 16);
  memcpy(right_words[current], b, 8);
  meet_warp();
  const int first = current / WARP * WARP, group = current % WARP / 4, member = current % 4;
  for (int e = 0; e < 4; e++) {
    const int row = group + e / 2 * 8, column = 2 * member + e % 2;
    c[e] = 0;
    for (int k = 0; k < 32; k++) {
      const unsigned x = left_words[first + row % 8 * 4 + k % 16 / 4][row / 8 + k / 16 * 2] >> k % 4 * 8;
      const unsigned y = right_words[first + column * 4 + k % 16 / 4][k / 16];
      c[e] += (SIGNED ? (int)(signed char)x : (int)(unsigned char)x) * (signed char)(y >> k % 4 * 8);
    }
  }
  meet_warp();
}
template <bool SIGNED> static void smelt_mma_more_bytes(int *c, const unsigned *a, const unsigned *b) {
  int more[4];
  smelt_mma_bytes<SIGNED>(more, a, b);
  for (int e = 0; e < 4; e++) c[e] += more[e];
}
static void smelt_mma_sync_int8(int *c, const unsigned *a, const unsigned *b) {
  int more[4];
  smelt_mma_bytes<false>(more, a, b);
  for (int e = 0; e < 4; e++) c[e] += more[e];
}
struct smelt_two_words;
template <class W = smelt_two_words> static W smelt_read_pair(const void *from) { return *(const W *)from; }
static unsigned smelt_touch(const void *from) { return *(const volatile unsigned char *)from; }
static void smelt_touched(unsigned) {}
static unsigned smelt_read_word(const void *from) { return *(const unsigned *)from; }
template <class T> static T smelt_now(const T *from) { return *from; }
static float smelt_inverse(float x) { return 1.0f / x; }
static int smelt_nearest(float x) { return x == x ? (int)rintf(x) : 0; }
static int smelt_byte(unsigned word, int at) { return (signed char)(word >> 8 * at); }
static unsigned smelt_sign_bits(void) { return 0x80808080u; }
static unsigned smelt_rotate(unsigned word, int by) { return word << (by & 31) | word >> (-by & 31); }
static unsigned __byte_perm(unsigned x, unsigned y, unsigned places) {
  const unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned found = 0;
  for (int i = 0; i < 4; i++) found |= (unsigned)(both >> 8 * (places >> 4 * i & 7) & 255) << 8 * i;
  return found;
}

// Asynchronous copies and products are done when a thread waits for them: what reads or overwrites too early is found.
static char shared_memory[CLUSTER][232448] __attribute__((aligned(1024)));  // of a launch that asks for it
static char *own_shared(void) { return shared_memory[block_here()]; }
static void smelt_cluster_write(float *to, int block, float x) {
  if (block < 0 || block >= cluster_here) abort();
  *(float *)(shared_memory[block] + ((const char *)to - own_shared())) = x;
}
struct smelt_words;
struct Copied { void *to; const void *from; int used; };
static void finish_copy(const Copied &copied) {
  copying = true;
  write_zeros((char *)copied.to + copied.used, 16 - copied.used);
  copy_bytes(copied.to, copied.from, copied.used);
  copying = false;
}
static Queue<Copied> copies[MOST];
static Queue<int> copy_groups[MOST];  // how many copies each group has, the oldest first
static unsigned smelt_cycles() {  // as if every look at the clock took long: nothing is waited for
  static unsigned now;
  return now += 1 << 16;
}
static unsigned smelt_shared_address(const void *at) { return (unsigned)((const char *)at - own_shared()); }
static void smelt_copy_async(void *to, const void *from, int used) {
  if ((size_t)to % 16 || (used && (size_t)from % 16) || used < 0 || used > 16) {
    fprintf(stderr, "an asynchronous copy is not aligned\n");
    abort();
  }
  begin_read(from, used);
  begin_write(to, 16);
  copies[current].push_back({to, from, used});
}
static void smelt_copy_commit() {
  int open = copies[current].size();
  for (int count : copy_groups[current]) open -= count;
  copy_groups[current].push_back(open);
}
template <int N> static void smelt_copy_wait() {
  auto &all = copies[current];
  auto &groups = copy_groups[current];
  while ((int)groups.size() > N) {
    for (int i = 0; i < groups[0]; i++) finish_copy(all[i]);
    all.drop(groups[0]);
    groups.drop(1);
  }
}
static void smelt_await() { await_launches(); }
static void smelt_prefetch(const void *) {}
static void smelt_share_writes() {}
UNSEEN static unsigned smelt_count(unsigned *counter) {
  count_at(counter);
  return (*counter)++;
}
UNSEEN static unsigned smelt_count_readers(unsigned *counter) {
  acquire_at(counter);
  release_at(counter);
  return (*counter)++;
}
#define SMELT_ATOMIC(NAME, RESULT) \
  template <class T> UNSEEN static void atomic##NAME(T *at, T x) { \
    touch_atomically(at, sizeof *at); \
    *at = RESULT; \
  }
SMELT_ATOMIC(Add, *at + x)
SMELT_ATOMIC(And, *at & x)
SMELT_ATOMIC(Or, *at | x)
SMELT_ATOMIC(Xor, *at ^ x)
SMELT_ATOMIC(Min, x < *at ? x : *at)
SMELT_ATOMIC(Max, x > *at ? x : *at)
#undef SMELT_ATOMIC
static float smelt_read_shared(const float *from) { return *from; }
template <class W = smelt_words> static W smelt_read(const void *from) { return *(const W *)from; }
template <class W = smelt_words> static W smelt_stream(const void *from) { return *(const W *)from; }
#ifdef SMELT_WGMMA
// A place in a matrix in shared memory that a descriptor names, `byte` bytes along K. K-major: without a swizzle, or
// with one of 64 or 128 bytes.
static const char *place_of(unsigned long long form, int row, int byte) {
  const unsigned start = (form & 0x3fff) << 4, leading = (form >> 16 & 0x3fff) << 4, stride = (form >> 32 & 0x3fff) << 4;
  if (form >> 62 == 0) return own_shared() + start + byte / 16 * leading + row / 8 * stride + row % 8 * 16 + byte % 16;
  if (form >> 62 == 3) abort();
  const int wide = form >> 62 == 1 ? 128 : 64;
  const unsigned at = start + row / 8 * stride + row % 8 * wide + byte;
  return own_shared() + (at ^ (at >> 7 & (wide / 16 - 1)) << 4);
}
// An element of 16 bits; `across`: rows are adjacent (MN-major), with a swizzle of 128 bytes.
static float described(
    unsigned long long form, int row, int k, float (*element)(unsigned, int) = bf16, bool across = false) {
  const unsigned start = (form & 0x3fff) << 4, leading = (form >> 16 & 0x3fff) << 4, stride = (form >> 32 & 0x3fff) << 4;
  const char *place;
  if (across) {
    if (form >> 62 != 1) abort();
    const unsigned at = start + row / 64 * leading + row % 64 * 2 + k / 8 * stride + k % 8 * 128;
    place = own_shared() + (at ^ (at >> 7 & 7) << 4);
  } else {
    place = place_of(form, row, 2 * k);
  }
  unsigned short x;
  memcpy(&x, place, 2);
  return element(x, 0);
}
struct Product {
  float *d;
  int columns;
  unsigned long long a, b;
  bool replaces, in_registers, across;
  unsigned left[4];
  float (*element)(unsigned, int) = bf16;
  bool words = false;  // of tf32
  Eight eight[2] = {};  // types of fp8
};
static Queue<Product> products[MOST];
static Queue<int> product_groups[MOST];
static void smelt_wgmma_fence() {}
static void smelt_publish() { publish(); }
template <int COUNT> static void smelt_wgmma(float (&d)[COUNT], unsigned long long a, unsigned long long b) {
  products[current].push_back({d, 2 * COUNT, a, b});
}
template <int COUNT> static void smelt_wgmma_f16(float (&d)[COUNT], unsigned long long a, unsigned long long b) {
  products[current].push_back({d, 2 * COUNT, a, b, false, false, false, {}, f16});
}
template <int COUNT> static void smelt_wgmma_tf32(float (&d)[COUNT], unsigned long long a, unsigned long long b) {
  products[current].push_back({d, 2 * COUNT, a, b, false, false, false, {}, bf16, true});
}
#define SMELT_EIGHT(L, R) \
  template <int COUNT> static void smelt_wgmma_##L##_##R( \
      float (&d)[COUNT], unsigned long long a, unsigned long long b, int more) { \
    products[current].push_back({d, 2 * COUNT, a, b, !more, false, false, {}, bf16, false, {in_table<L>, in_table<R>}}); \
  }
SMELT_EIGHT(e4m3, e4m3)
SMELT_EIGHT(e4m3, e5m2)
SMELT_EIGHT(e5m2, e4m3)
SMELT_EIGHT(e5m2, e5m2)
#undef SMELT_EIGHT
static float raw(unsigned word, int) { return word; }  // stands for bytes
template <int COUNT> static void smelt_wgmma_int8(int (&d)[COUNT], unsigned long long a, unsigned long long b) {
  products[current].push_back({(float *)d, 2 * COUNT, a, b, false, false, false, {}, raw});
}
template <int ADJACENT, int COUNT> static void smelt_wgmma_scores(
    float (&d)[COUNT], unsigned long long a, unsigned long long b, int more) {
  products[current].push_back({d, 2 * COUNT, a, b, !more, false, ADJACENT});
}
template <int COUNT> static void smelt_wgmma_values(
    float (&d)[COUNT], const unsigned *a, unsigned long long b, int more) {
  products[current].push_back({d, 2 * COUNT, 0, b, !more, true, true, {a[0], a[1], a[2], a[3]}});
}
template <int COUNT> static void smelt_wgmma_done(float (&)[COUNT]) {}
template <int N> static void smelt_registers_up() {}
template <int N> static void smelt_registers_down() {}
static void smelt_wgmma_commit() {
  int open = products[current].size();
  for (int count : product_groups[current]) open -= count;
  product_groups[current].push_back(open);
}
static float operand(const Product &of, bool right, int row, int k) {
  const unsigned long long form = right ? of.b : of.a;
  if (of.words) return tf32(*(const unsigned *)place_of(form, row, 4 * k));
  if (of.eight[0]) return of.eight[right](*place_of(form, row, k));
  if (of.element == raw) return right ? (signed char)*place_of(form, row, k) : (unsigned char)*place_of(form, row, k);
  return described(form, row, k, of.element, right && of.across);
}
// The elements of a product, the p-th of its group, that this thread holds: in two rows, a pair in every 8 columns.
static void multiply_product(const Product &of, int p) {
  static float x[2][32], y[64][32];
  const bool bytes = of.element == raw, eight = of.eight[0];
  const int depth = of.words ? 8 : eight || bytes ? 32 : 16;
  for (int half = 0; half < 2; half++)
    for (int k = 0; k < depth; k++) {
      const int row = current % WARP / 4 + 8 * half, holder = current / WARP * WARP + row % 8 * 4 + k % 8 / 2;
      x[half][k] = of.in_registers ? bf16(products[holder][p].left[half + k / 8 * 2], k % 2)
                                   : operand(of, false, current % 128 / WARP * 16 + row, k);
    }
  for (int j = 0; j < of.columns / 4; j++)
    for (int k = 0; k < depth; k++) y[j][k] = operand(of, true, j / 2 * 8 + current % 4 * 2 + j % 2, k);
  for (int i = 0; i < of.columns / 2; i++) {
    const float *left = x[i / 2 % 2], *right = y[i / 4 * 2 + i % 2];
    if (bytes) {
      for (int k = 0; k < depth; k++) ((int *)of.d)[i] += (int)left[k] * (int)right[k];
      continue;
    }
    float sum = of.replaces ? 0 : of.d[i], more[32];
    for (int k = 0; k < depth; k++) more[k] = left[k] * right[k];
    for (int k = 0; k < depth && !eight; k++) sum += more[k];
    of.d[i] = eight ? add_cut(sum, more, depth) : sum;
  }
}
template <int N> static void smelt_wgmma_wait() {
  auto &all = products[current];
  auto &groups = product_groups[current];
  meet_warp();  // others have begun the same products
  while ((int)groups.size() > N) {
    by_tensor_cores = true;
    for (int p = 0; p < groups[0]; p++) multiply_product(all[p], p);
    by_tensor_cores = false;
    meet_warp();
    all.drop(groups[0]);
    groups.drop(1);
    __syncwarp();  // they are done for all threads of the warp
  }
}
static Barrier group_barriers[MOST / 128];
static void smelt_group_sync(int group) { wait_at(&group_barriers[group], 128); }
#else
template <int N> static void smelt_registers_up() {}
template <int N> static void smelt_registers_down() {}
static void smelt_publish() { publish(); }
static void smelt_group_sync(int) { __syncwarp(); }
#endif

// mbarrier: arrivals that are missing, arrivals of a phase, the parity of the phase, and bytes that are missing.
UNSEEN static void smelt_barrier_init(unsigned long long *at, int count) { *at = (unsigned long long)count << 16 | count; }
UNSEEN static void barrier_moves(unsigned long long *at, int arrivals, int bytes) {
  moved++;
  if ((int)(*at & 0xffff) < arrivals) abort();
  *at = *at - arrivals + ((unsigned long long)(long long)bytes << 33);
  if (!(*at & 0xffff) && !(*at >> 33)) *at = (*at ^ 1ull << 32) | (*at >> 16 & 0xffff);
}
UNSEEN static void smelt_barrier_arrive(unsigned long long *at) {
  release_at(at);
  barrier_moves(at, 1, 0);
}
static void smelt_barrier_publish() {}
UNSEEN static void smelt_barrier_end(unsigned long long *at) {
  if ((*at & 0xffff) != (*at >> 16 & 0xffff)) abort();  // somebody has arrived that nobody waited for
}
UNSEEN static void smelt_bulk_expect(unsigned long long *at, unsigned bytes) {
  release_at(at);
  barrier_moves(at, 1, bytes);
}
// Copies with an arrival, and those of the copy engine, are done when some thread waits for a barrier.
struct Arrival { size_t copies; unsigned long long *at; };
static Queue<Arrival> arrivals[MOST];
struct Bulk { char *to; const void *from; unsigned bytes; unsigned long long *at; unsigned *known; int by; };
static Queue<Bulk> bulks;
static void smelt_bulk_copy(void *to, const void *from, unsigned bytes, unsigned long long *at) {
  if ((size_t)to % 16 || (size_t)from % 16 || bytes % 16) abort();
  begin_read(from, bytes);
  bulks.push_back({(char *)to, from, bytes, at, snapshot(), current});
}
static void smelt_copy_arrive(unsigned long long *at) { arrivals[current].push_back({copies[current].size(), at}); }
UNSEEN static bool smelt_barrier_passed(unsigned long long *at, int parity) {
  if ((int)(*at >> 32 & 1) != parity) {
    acquire_at(at);
    return true;
  }
  for (int i = 0; i < threads_here; i++) {
    size_t done = 0;
    for (Arrival each : arrivals[i]) {
      acting = i;
      for (; done < each.copies; done++) finish_copy(copies[i][done]);
      smelt_barrier_arrive(each.at);
    }
    copies[i].drop(done);
    arrivals[i].count = 0;
  }
  for (Bulk each : bulks) {
    acting = begin_engine(each.at, each.known, each.by);
    by_tensor_cores = true;
    copy_bytes(each.to, each.from, each.bytes);
    by_tensor_cores = false;
    release_at(each.at);
    barrier_moves(each.at, 0, -(int)each.bytes);
  }
  bulks.count = 0;
  acting = -1;
  pause_fiber();
  return false;
}
static const void *matrix_rows[MOST];
template <bool TRANSPOSED> static void smelt_load_matrices(unsigned *to, const void *row) {
  matrix_rows[current] = row;
  meet_warp();
  const int first = current / WARP * WARP, group = current % WARP / 4, member = current % 4;
  for (int m = 0; m < 4; m++) {
    unsigned short pair[2];
    for (int e = 0; e < 2; e++) {
      const int at = TRANSPOSED ? 2 * member + e : group, column = TRANSPOSED ? group : 2 * member + e;
      pair[e] = ((const unsigned short *)matrix_rows[first + 8 * m + at])[column];
    }
    to[m] = pair[0] | (unsigned)pair[1] << 16;
  }
  meet_warp();
}
static bool held[MOST];
static int smelt_first_lane(bool holds) {
  held[current] = holds;
  meet_warp();
  int lane = 0;
  while (lane < WARP && !held[current / WARP * WARP + lane]) lane++;
  meet_warp();
  return lane;
}
static unsigned __ballot_sync(unsigned, bool holds) {
  held[current] = holds;
  meet_warp();
  unsigned lanes = 0;
  for (int lane = 0; lane < WARP; lane++) lanes |= (unsigned)held[current / WARP * WARP + lane] << lane;
  meet_warp();
  return lanes;
}
static float smelt_exp2(float x) { return exp2f(x); }
static float smelt_most(float x, float y) { return x != x ? x : y > x || y != y ? y : x; }
static int __ffs(unsigned x) { return __builtin_ffs(x); }
static unsigned smelt_pack(float low, float high) {
  unsigned short half[2];
  const float both[2] = {low, high};
  for (int i = 0; i < 2; i++) {
    unsigned x;
    memcpy(&x, &both[i], 4);
    half[i] = both[i] != both[i] ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
  }
  return half[0] | (unsigned)half[1] << 16;
}

static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }

static void run_fiber(void) {
  if (!_setjmp(fibers[current])) swapcontext(&entry, &begun);
  enter_fiber();
  kernel_here(arguments_here);
  finished[current] = true;
  _longjmp(scheduler, 1);
}
static void run_blocks(int threads) {  // of a cluster
  begin_run();
  for (int i = 0; i < threads; i++) {
    if (!stacks[i]) stacks[i] = (char *)malloc(STACK);
    current = i;
    getcontext(&entry);
    entry.uc_stack.ss_sp = stacks[i];
    entry.uc_stack.ss_size = STACK;
    entry.uc_link = 0;
    makecontext(&entry, run_fiber, 0);
    swapcontext(&begun, &entry);
    finished[i] = false;
  }
  memset(warp_barriers, 0, sizeof warp_barriers);
  memset(block_barriers, 0, sizeof block_barriers);
  memset(threads_barriers, 0, sizeof threads_barriers);
  memset(&cluster_barrier, 0, sizeof cluster_barrier);
#ifdef SMELT_WGMMA
  memset(group_barriers, 0, sizeof group_barriers);
#endif
  for (volatile int left = threads; left;) {
    const volatile int before = left, moves = moved;
    backwards = !backwards;
    for (volatile int at = 0; at < threads; at++) {
      const int i = backwards ? threads - 1 - at : at;
      if (finished[i]) continue;
      current = i;
      if (!_setjmp(scheduler)) _longjmp(fibers[i], 1);
      left -= finished[current];
    }
    if (left == before && moved == moves) {
      fprintf(stderr, "deadlock: threads of a block wait for each other\n");
      abort();
    }
  }
}
// Static shared memory of a launch: every array that a thread of it came by, once.
static const void *static_arrays[64];
static int static_count, static_bytes;
static void count_static(const void *array, int bytes) {
  for (int i = 0; i < static_count; i++)
    if (static_arrays[i] == array) return;
  if (static_count == 64) abort();
  static_arrays[static_count++] = array;
  watch_shared(array, bytes);
  static_bytes += bytes;
}
// Returns the bytes of static shared memory.
static int emulate(
    void (*kernel)(const long long *), bool waits, int cluster, int blocks, int threads, const long long *arguments) {
  static_count = static_bytes = 0;
  watch_shared(shared_memory, cluster * sizeof shared_memory[0]);
  kernel_here = kernel;
  arguments_here = arguments;
  threads_here = threads;
  cluster_here = cluster;
  gridDim.x = blocks;
  blockDim.x = threads;
  if (cluster > CLUSTER || cluster * threads > MOST || blocks % cluster || (cluster > 1 && threads % WARP)) abort();
  for (first_block = 0; first_block < blocks; first_block += cluster) {
    if (waits) {
      run_blocks(cluster * threads);
    } else {
      current = 0;
      begin_run();
      for (; current < threads; current++) {
        enter_fiber();
        kernel(arguments);
      }
    }
  }
  return static_bytes;
}
