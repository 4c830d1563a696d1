"""Block-quantised weights that the copy engine brings, for up to eight rows: `smelt_block_stream`.

`blocks_cuda` adds it to a text that calls it, behind the units and sums that it uses.
"""

STREAM = """\
// The same where the copy engine brings the weights: a ring of STAGES turns in shared memory, behind the sums and rows.
// A turn is a chunk of each share, which are adjacent: memory is read in long pieces. The last warp that has read one
// fetches another into its place. The ring outlives a tile: while sums are added, the weights of the next tile come.
struct smelt_block_panels { const ui8 *from; bool both; };  // of a tile; both: there are two
struct smelt_block_ring {
  int slot, phase;  // of the turn that is used next
  bool begun;
  const i8 *held;  // the row that is in shared memory
};
// Rows in shared memory: integers, scales, totals. One row alone is every column of the right operand.
template <class U, int ROWS> struct smelt_block_held {
  typedef smelt_block_left<U, ROWS> Left;
  const char *q, *scale, *total;
  int pitch;
  inline void load(Left &to, int i) const {
    to.q[0] = *(const smelt_two_words *)(q + i * 32);
#pragma unroll
    for (int e = 0; e < Left::SIDES; e++) {
      to.scale[0][e] = *(const ui32 *)(scale + e * pitch + i * 4);
#pragma unroll
      for (int p = 0; p < U::GROUPS; p++)
        if (U::MINIMUM) to.total[0][e][p] = *(const ui32 *)(total + e * pitch + (i * U::GROUPS + p) * 4);
    }
  }
  inline void advance(int units) {
    q += units * 32;
    scale += units * 4;
    total += units * (U::GROUPS * 4);
  }
};
template <class U, int ROWS> inline smelt_block_held<U, ROWS> smelt_start_held(int unit, int lane, const char *held,
    int pitch, int units) {
  const int group = ROWS == 1 ? 0 : lane % 32 / 4, member = lane % 4;
  const char *const scale = held + (ROWS == 1 ? 0 : 2 * member * pitch) + units * 32;
  return {held + group * pitch + unit * 32 + 8 * member, scale + unit * 4,
      scale + units * 4 + unit * (U::GROUPS * 4), pitch};
}
// All of them are on their way at once. EXACT: they have a multiple of four units.
inline void smelt_hold_words(int lane, int threads, f32 *to, const f32 *from, int count, bool exact) {
#pragma unroll 1  // short code, as everything that runs once
  for (int i = lane; exact && i < count / 4; i += threads) smelt_copy_async(to + 4 * i, from + 4 * i, 16);
#pragma unroll 1
  for (int i = lane; !exact && i < count; i += threads) to[i] = from[i];
}
template <class U, bool EXACT> inline void smelt_hold_rows(int lane, int threads, char *held, int pitch, int rows,
    int units, const i8 *q, i64 q_row, const f32 *scale, i64 scale_row, const f32 *total, i64 total_row) {
#pragma unroll 1
  for (int r = 0; r < rows; r++) {
    f32 *const to = (f32 *)(held + r * pitch);
    smelt_hold_words(lane, threads, to, (const f32 *)(q + r * q_row), units * 8, true);
    smelt_hold_words(lane, threads, to + units * 8, scale + r * scale_row, units, EXACT);
    if (U::MINIMUM)
      smelt_hold_words(lane, threads, to + units * 9, total + r * total_row, units * U::GROUPS, EXACT);
  }
  smelt_copy_commit();
  smelt_copy_wait<0>();
}
// The sums of a share, from its chunks in the ring. `fetch` fills the slot of a turn that all have read with one that
// is STAGES later. AHEAD: units that rows are read ahead.
template <class U, int ROWS, int AHEAD, int STAGES, int SHARES, bool EXACT, class R, class F> inline void
smelt_block_chunks(int share, int lane, const char *stages, ui64 *full, smelt_block_ring &ring, int turns, int units,
    bool both, R &at_rows, const F &fetch, smelt_block_sums<U, ROWS> &sums) {
  enum { UNITS = U::UNITS, PANEL = SHARES * U::BYTES };
  const int group = lane % 32 / 4, member = lane % 4;
  ui32 *const readers = (ui32 *)(full + STAGES);
  smelt_block_left<U, ROWS> x[AHEAD ? AHEAD : 1] = {};
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (i < units) at_rows.load(x[i], i);
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    const char *const here = stages + ring.slot * (2 * PANEL) + share * U::BYTES + (group < 4 || !both ? 0 : PANEL);
    const int left = units - turn * UNITS;
    typename U::At at_weights;
    typename U::Head head;
    at_weights.start((const ui8 *)here, member, group % 4);
    while (!smelt_barrier_passed(full + ring.slot, ring.phase)) {}
    if (left > 0) {
      head.template take<ROWS == 1>((const ui8 *)here, group % 4, member);
#pragma unroll
      for (int i = 0; i < UNITS; i++) {
        if (!EXACT && i >= left) break;
        U y;
        y.take(at_weights, i, member);
        auto &now = x[AHEAD ? i % (AHEAD ? AHEAD : 1) : 0];
        if (!AHEAD) at_rows.load(now, i);
        smelt_block_multiply<U, ROWS>(y, head, now, member, sums);
        const int next = i + AHEAD;
        if (AHEAD && ((EXACT && next < UNITS) || next < left))
          at_rows.load(now, next < UNITS ? next : next + (SHARES - 1) * UNITS);
      }
      at_rows.advance(SHARES * UNITS);
    }
    __syncwarp();
    if (lane % 32 == 0 && smelt_count_readers(readers + ring.slot) == SHARES - 1) {
      readers[ring.slot] = 0;
      fetch(ring.slot, turn + STAGES);
    }
    if (++ring.slot == STAGES) ring.slot = 0, ring.phase ^= 1;
  }
}
// A tile of all of `tiles`, of which a block has every gridDim.x-th; `panels_of`: the weights of one. HELD: rows that
// there is shared memory for, PITCH bytes each. A multiprocessor sends requests in order, so rows would wait for all
// weights that were requested before them: until they are there, the first warp requests one turn at a time.
template <class U, int MOST, int STAGES, int SHARES, bool EXACT, int HELD, int PITCH, class W, class A>
inline void
smelt_block_stream(int lane, char *shared, smelt_block_ring &ring, i64 tile, i64 tiles, const W &panels_of, i64 rows,
    const i8 *q, i64 q_row, const f32 *scale, i64 scale_row, const f32 *total, i64 total_row, i64 panel, i64 blocks,
    f32 *acc, i64 width, i64 columns, const A &aside) {
  enum { UNITS = U::UNITS, PANEL = SHARES * U::BYTES, THREADS = 32 * SHARES };
  const ui32 flip = smelt_sign_bits();
  const int share = lane / 32, units = smelt_count_units<U, SHARES>(share, blocks);
  const int turns = (int)((blocks + SHARES * U::RECORDS - 1) / (SHARES * U::RECORDS));
  f32 *const part = (f32 *)shared;
  char *const held = shared + SHARES * MOST * 128, *const stages = held + HELD * PITCH;
  ui64 *const full = (ui64 *)(stages + STAGES * 2 * PANEL);
  volatile ui32 *const there = (volatile ui32 *)(full + STAGES) + STAGES;  // whether the rows are
  const i64 after = tile + gridDim.x;
  const smelt_block_panels now = panels_of(tile);
  const auto fetch = [&](int slot, int turn) {  // of this tile or of a later one
    i64 of = tile;
    for (; turn >= turns; turn -= turns) of += gridDim.x;
    if (of >= tiles) return;
    const smelt_block_panels panels = of == tile ? now : panels_of(of);
    const i64 first = (i64)turn * PANEL, left = blocks * (U::BYTES / U::RECORDS) - first;
    const int bytes = left < PANEL ? (int)left : PANEL;
    char *const to = stages + slot * (2 * PANEL);
    smelt_bulk_expect(full + slot, panels.both ? 2 * bytes : bytes);
    smelt_bulk_copy(to, panels.from + first, bytes, full + slot);
    if (panels.both) smelt_bulk_copy(to + PANEL, panels.from + panel + first, bytes, full + slot);
  };
  const bool both = columns > 16, holds = HELD >= MOST || (HELD && rows == 1), fresh = holds && ring.held != q;
  const int all = (int)blocks * (UNITS / U::RECORDS);
  const auto hold = [&](int member, int threads) {
    smelt_hold_rows<U, EXACT && UNITS % 4 == 0>(
        member, threads, held, PITCH, (int)rows, all, q, q_row, scale, scale_row, total, total_row);
  };
  if (!ring.begun) {
    if (lane == 0) {
      for (int i = 0; i < STAGES; i++) {
        smelt_barrier_init(full + i, 1);
        ((ui32 *)(full + STAGES))[i] = 0;
      }
      *there = 0;
      smelt_barrier_publish();
#pragma unroll 1
      for (int i = 0; i < STAGES && turns; i++) {  // of weights, which no launch writes
        if (i > 0 && tile + (i - 1) / turns * (i64)gridDim.x < tiles)
          while (!*there && !smelt_barrier_passed(full + i - 1, 0)) {}
        fetch(i, i);
      }
    }
    __syncwarp();
    smelt_await();
    if (share > 0) {
      if (fresh) hold(lane - 32, THREADS - 32);
      *there = 1;
    }
    __syncthreads();
  } else if (fresh) {
    hold(lane, THREADS);
    __syncthreads();
  }
  ring.begun = true;
  ring.held = q;
  if (holds && (MOST == 1 || rows == 1)) {
    auto at_rows = smelt_start_held<U, 1>(share * UNITS, lane, held, PITCH, all);
    smelt_block_sums<U, 1> sums = {{}, flip};
    smelt_block_chunks<U, 1, 0, STAGES, SHARES, EXACT>(
        share, lane, stages, full, ring, turns, units, both, at_rows, fetch, sums);
    smelt_keep_share<U, 1>(share, lane, part, rows, sums);
  } else {
    smelt_block_sums<U, MOST> sums = {{}, flip};
    if (HELD >= MOST) {
      auto at_rows = smelt_start_held<U, MOST>(share * UNITS, lane, held, PITCH, all);
      smelt_block_chunks<U, MOST, 0, STAGES, SHARES, EXACT>(
          share, lane, stages, full, ring, turns, units, both, at_rows, fetch, sums);
    } else {
      auto at_rows = smelt_start_rows<U, MOST>(share, lane, rows, q, q_row, scale, scale_row, total, total_row);
      smelt_block_chunks<U, MOST, (UNITS < 4 ? 1 : SHARES > 8 ? 4 : 2), STAGES, SHARES, EXACT>(
          share, lane, stages, full, ring, turns, units, both, at_rows, fetch, sums);
    }
    smelt_keep_share<U, MOST>(share, lane, part, rows, sums);
  }
  if (share == SHARES - 1) aside(lane % 32);
  __syncthreads();
  if (after >= tiles && lane == 0)
    for (int i = 0; i < STAGES; i++) smelt_barrier_end(full + i);
  smelt_add_shares<SHARES>(lane, THREADS, part, rows, acc, width, columns);
}
"""
