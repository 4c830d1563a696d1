"""A single row by block-quantised weights on a GPU: `smelt_block_single`, whose warps have roles.

One warp has the copy engine bring weights, eight multiply, one adds the sums of the shares of K and runs the epilogue,
so that no barrier holds all of them up. `blocks_cuda` adds it to a text that calls it, behind the units that it uses.
"""

SINGLE = """\
// Where a thread reads the row. It has two of four columns at a time: members 0 and 1 first the left two, the others
// first the right two, so that no bank of shared memory is read twice. So the first product of a unit has lines 0 and 1
// of the left columns and lines 2 and 3 of the right ones; a column of its right operand is the row for one of these
// pairs (`near_q`) and zeros for the other. The second product has the rest, and the opposite zeros (`far_q`).
template <class U> struct smelt_single_row {
  const char *near_q, *far_q, *scale, *total;
  int near_step, far_step;
  inline void advance(int units) {
    near_q += near_step * units;
    far_q += far_step * units;
    scale += 4 * units;
    total += 4 * U::GROUPS * units;
  }
};
template <class U> inline void smelt_single_multiply(const U &weights, const typename U::Head &head,
    const smelt_single_row<U> &row, int i, int member, ui32 flip, f32 &sum) {
  enum { PARTS = U::GROUPS };
  const smelt_two_words near = *(const smelt_two_words *)(row.near_q + 32 * i);
  const smelt_two_words far = *(const smelt_two_words *)(row.far_q + 32 * i);
  const f32 scale = *(const f32 *)(row.scale + 4 * i);
  ui32 low[4], high[4];
  weights.codes(member, flip, low, high);
  const ui32 first[4] = {low[0], low[1], high[0], high[1]}, second[4] = {low[2], low[3], high[2], high[3]};
  i32 c[PARTS][4];
  smelt_mma_bytes<U::SIGNED>(c[0], first, near.x);
  if (PARTS == 1) smelt_mma_more_bytes<U::SIGNED>(c[0], second, far.x);
  else smelt_mma_bytes<U::SIGNED>(c[PARTS - 1], second, far.x);
  i32 part[PARTS];  // sums of the pair of lines that the first product has of the column, and of the other pair
#pragma unroll
  for (int p = 0; p < PARTS; p++) part[p] = member % 2 ? c[p][2] : c[p][0];
  i32 whole = part[0];
  if (PARTS > 1) {
    whole = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) whole += weights.integer(p, member) * (p == member / 2 ? part[0] : part[PARTS - 1]);
  }
  sum = fmaf(weights.template factor<true>(head, member) * scale, (f32)whole, sum);
  if (U::MINIMUM)
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const f32 less = weights.template less<true>(head, p, member);
      sum = fmaf(U::SUBTRACTS ? -less : less, *(const f32 *)(row.total + 4 * (PARTS * i + p)), sum);
    }
}
// The tiles of a block, for its last warp: the sums of one are in `acc` after `wait`.
template <int SHARES, int PARTS> struct smelt_single_tiles {
  const f32 *part;
  f32 *acc;
  ui64 *done, *free;  // of two sets of sums, which alternate
  i64 tile;
  int lane, turn;
  inline i64 next() { return tile += turn ? gridDim.x : 0; }
  inline void wait() {
    __syncwarp();  // all have read the tile in front
#pragma unroll
    for (int p = 0; p < PARTS; p++, turn++) {
      const int set = turn % 2, phase = turn / 2 % 2;
      while (!smelt_barrier_passed(done + set, phase)) {}
      const f32 *const from = part + set * (SHARES * 32) + lane;
      f32 sum = from[0];
#pragma unroll
      for (int s = 1; s < SHARES; s++) sum += from[32 * s];
      acc[32 * p + lane] = sum;
      __syncwarp();
      if (lane == 0) smelt_barrier_arrive(free + set);
    }
  }
};
// Of all `tiles` a block has every gridDim.x-th; `panels_of`: the weights of one. A tile of a pair has two PARTS, one
// after the other, whose weights are `apart` bytes from each other. A warp multiplies by a share of K; a turn is a
// chunk of each share. `finish` is run by the last warp, which waits for the sums of one tile after another.
template <class U, int STAGES, int SHARES, int PARTS, bool EXACT, int PITCH, class W, class F>
inline void smelt_block_single(int thread, char *shared, i64 tiles, const W &panels_of, const i8 *q, const f32 *scale,
    const f32 *total, i64 panel, i64 apart, i64 blocks, f32 *acc, const F &finish) {
  enum { UNITS = U::UNITS, PANEL = SHARES * U::BYTES, THREADS = 32 * SHARES, ZEROS = 32 * UNITS };
  const int warp = thread / 32, lane = thread % 32;
  const int turns = (int)((blocks + SHARES * U::RECORDS - 1) / (SHARES * U::RECORDS));
  f32 *const part = (f32 *)(shared + 128 * PARTS);  // behind the sums of a tile
  char *const zeros = (char *)(part + 2 * SHARES * 32), *const held = zeros + ZEROS;
  char *const stages = zeros + ((ZEROS + PITCH + 127) & ~127);  // whole lines are written
  ui64 *const full = (ui64 *)(stages + STAGES * 2 * PANEL), *const empty = full + STAGES, *const done = empty + STAGES;
  ui64 *const free = done + 2;
  volatile ui32 *const there = (volatile ui32 *)(free + 2);  // whether the row is
  const i64 begin = blockIdx.x;
  if (warp == SHARES && lane == 0) {
    for (int i = 0; i < STAGES; i++) {
      smelt_barrier_init(full + i, 1);
      smelt_barrier_init(empty + i, SHARES);
    }
    for (int i = 0; i < 2; i++) {
      smelt_barrier_init(done + i, SHARES);
      smelt_barrier_init(free + i, 1);
    }
    *there = 0;
    smelt_barrier_publish();
  }
  __syncthreads();
  if (warp == SHARES) {  // weights, which no launch writes
    if (lane == 0) {
      int slot = 0, round = 0, before = 0;
#pragma unroll 1
      for (i64 tile = begin; tile < tiles; tile += gridDim.x) {
        const smelt_block_panels panels = panels_of(tile);
#pragma unroll 1
        for (int at = 0; at < PARTS * turns; at++) {
          // A multiprocessor sends requests in order: the row would wait for all weights that were requested before.
          if (round == 0 && slot > 0)
            while (!*there && !smelt_barrier_passed(full + before, 0)) {}
          if (round > 0)
            while (!smelt_barrier_passed(empty + slot, (round - 1) & 1)) {}
          const bool other = PARTS > 1 && at >= turns;
          const i64 first = (i64)(other ? at - turns : at) * PANEL, left = blocks * (U::BYTES / U::RECORDS) - first;
          const int bytes = left < PANEL ? (int)left : PANEL;
          const ui8 *const from = panels.from + first + (other ? apart : 0);
          char *const to = stages + slot * (2 * PANEL);
          smelt_bulk_expect(full + slot, panels.both ? 2 * bytes : bytes);
          smelt_bulk_copy(to, from, bytes, full + slot);
          if (panels.both) smelt_bulk_copy(to + PANEL, from + panel, bytes, full + slot);
          before = slot;
          if (++slot == STAGES) slot = 0, round++;
        }
      }
    }
  } else if (warp > SHARES) {
    smelt_await();
    finish(smelt_single_tiles<SHARES, PARTS>{part, acc, done, free, begin, lane, 0});
  } else {
    const int group = lane / 4, member = lane % 4, all = (int)blocks * (UNITS / U::RECORDS);
    const int unit = warp * UNITS, units = smelt_count_units<U, SHARES>(warp, blocks);
    const char *const own = held + unit * 32 + 8 * member, *const none = zeros + 8 * member;
    for (int i = thread; i < ZEROS / 4; i += THREADS) ((ui32 *)zeros)[i] = 0;
    smelt_await();
    smelt_hold_rows<U, EXACT && UNITS % 4 == 0>(thread, THREADS, held, PITCH, 1, all, q, 0, scale, 0, total, 0);
    *there = 1;
    smelt_threads_sync<THREADS>();
    const bool near_here = (group < 4) == (member < 2);
    const ui32 flip = smelt_sign_bits();
    int slot = 0, phase = 0, count = 0;
#pragma unroll 1
    for (i64 tile = begin; tile < tiles; tile += ++count % PARTS ? 0 : gridDim.x) {
      smelt_single_row<U> row = {near_here ? own : none, near_here ? none : own, held + all * 32 + unit * 4,
          held + all * 36 + unit * (4 * U::GROUPS), near_here ? 32 : 0, near_here ? 0 : 32};
      const ui8 *const chunk =
          (const ui8 *)stages + (group < 4 || !panels_of(tile).both ? 0 : PANEL) + warp * U::BYTES;
      f32 sum = 0;
#pragma unroll 1
      for (int turn = 0; turn < turns; turn++) {
        const ui8 *const here = chunk + slot * (2 * PANEL);
        const int left = units - turn * UNITS;
        typename U::At at_weights;
        typename U::Head head;
        at_weights.start(here, member, group % 4);
        while (!smelt_barrier_passed(full + slot, phase)) {}
        if (left > 0) {
          head.template take<true>(here, group % 4, member);
#pragma unroll
          for (int i = 0; i < UNITS; i++) {
            if (!EXACT && i >= left) break;
            U y;
            y.take_halves(at_weights, i, member / 2 * 8);
            smelt_single_multiply<U>(y, head, row, i, member, flip, sum);
          }
          row.advance(SHARES * UNITS);
        }
        __syncwarp();
        if (lane == 0) smelt_barrier_arrive(empty + slot);
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
      const int set = count % 2;
      if (count >= 2)
        while (!smelt_barrier_passed(free + set, (count / 2 - 1) & 1)) {}
      part[(set * SHARES + warp) * 32 + lane] = sum * U::shrink();
      __syncwarp();
      if (lane == 0) smelt_barrier_arrive(done + set);
    }
  }
}
"""
