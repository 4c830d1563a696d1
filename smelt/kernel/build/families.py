"""The kernel families: every module with rules for ops, in one list. Importing this module completes the tables.

In: nothing. Out: `PULLS`, `SINKS`, `UPDATES` and what they say about operands, complete. Called by `kernel.plan`.
"""

from __future__ import annotations

from smelt.kernel.build import (
    attention,
    attention_simt,
    blocks,
    blocks_simt,
    conv,
    conv_simt,
    depthwise,
    elementwise,
    fft,
    gather_scatter,
    gemm,
    gemm_simt,
    grouped,
    grouped_simt,
    linalg,
    paged_attention,
    paged_attention_simt,
    quantise,
    random,
    reduce,
    relayout,
    scan,
    scan_simt,
    scatter_simt,
    select_and_scatter,
    sort,
    sort_simt,
    window,
    window_simt,
    winograd,
)
from smelt.kernel.build.sinks import ADDRESSED, ANCHORS, IN_RUNS, SINKS, UPDATES
from smelt.kernel.loops.nest import PULLS

FAMILIES = (
    *(elementwise, quantise, gather_scatter, reduce, window, select_and_scatter, scan, sort),
    *(gemm_simt, conv_simt, blocks_simt, grouped_simt, attention_simt, paged_attention_simt, sort_simt, scan_simt),
    *(scatter_simt, window_simt),
    *(gemm, relayout, blocks, grouped, conv, depthwise, winograd, attention, paged_attention, linalg, fft, random),
)

__all__ = ["ADDRESSED", "ANCHORS", "FAMILIES", "IN_RUNS", "PULLS", "SINKS", "UPDATES"]
