"""All passes, in order, on one screen: from the program that a front end built to the one that an engine compiles.

`run(program)` applies them. With `SMELT_DEBUG=passes` (or `debug=True`) the verifier runs after each pass and the
program is printed where it changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container, Sequence
from typing import TextIO

from smelt.frozen import Frozen
from smelt.ir.core import Program
from smelt.ir.ops.packed import OCTET, PAIR, QUAD, SIXTEEN
from smelt.ir.rewrite import Edit, Rule, rewrite
from smelt.ir.text import print_program
from smelt.ir.verify import verify
from smelt.passes.canonicalise import CANONICALISE
from smelt.passes.channels_last import channels_last
from smelt.passes.common_subexpressions import common_subexpressions
from smelt.passes.defer_factors import defer_factors
from smelt.passes.fold_constants import fold_constants
from smelt.passes.fuse_attention import attention_rules
from smelt.passes.fuse_quantise import FUSE_QUANTISE
from smelt.passes.hoist_loop_invariants import hoist_loop_invariants
from smelt.passes.inline import inline
from smelt.passes.join_processes import join_processes
from smelt.passes.lower import lower
from smelt.passes.lower_bf16 import bf16_rules
from smelt.passes.lower_blocks import lower_blocks, merge_block_dots
from smelt.passes.lower_custom_calls import lower_custom_calls
from smelt.passes.lower_fp8 import fp8_rules, round_rows
from smelt.passes.lower_int8 import QUANTISING, SPREADING, Panel, int8_rules
from smelt.passes.lower_quantised_types import lower_quantised_types
from smelt.passes.lower_random import lower_random
from smelt.passes.merge_dots import merge_dots
from smelt.passes.merge_scans import merge_scans
from smelt.passes.pack_weights import pack_rules
from smelt.passes.recognise import recognise
from smelt.passes.refine_shapes import defer_shape_errors, refine_shapes
from smelt.passes.rematerialise import rematerialise
from smelt.passes.simplify import SIMPLIFY
from smelt.passes.split_prepare import split_prepare
from smelt.target import FP8, Target, tile_shape


class Pass(Frozen):
    """A step from program to program; `why` says what it is for."""

    name: str
    run: Callable[[Program], Program]
    why: str


class Report(Frozen):
    """What one pass did: milliseconds, and how many ops the program had before and after."""

    name: str
    milliseconds: float
    before: int
    after: int


def per_function(change: Callable[[Edit], int]) -> Callable[[Program], Program]:
    """A pass over programs from a function that edits one `Func` and returns the number of changes."""

    def run(program: Program) -> Program:
        signatures = {name: func.type for name, func in program.funcs.items()}
        edited = []
        for func in program.funcs.values():
            edit = Edit(func, signatures)
            change(edit)
            edited.append(edit.freeze())
        unchanged = all(new is program.funcs[new.name] for new in edited)
        return program if unchanged else program.replace(*edited)

    return run


def rules(rules: Sequence[Rule], *, inexact: bool = False) -> Callable[[Program], Program]:
    """A pass from a list of rewrite rules."""
    return per_function(lambda edit: rewrite(edit, rules, inexact=inexact))


def until_stable(*changes: Callable[[Edit], int]) -> Callable[[Program], Program]:
    """A pass that repeats the changes, in order, until none applies. The first one also erases dead ops."""

    def change(edit: Edit) -> int:
        total = 0
        while count := sum(each(edit) for each in changes):
            total += count
        return total

    return per_function(change)


LOWERING = (
    Pass("lower_custom_calls", lower_custom_calls, "replace JAX' custom calls for dynamic shapes by ops"),
    Pass("lower_quantised_types", lower_quantised_types, "replace quantised types by their storage integers"),
    Pass("lower_random", lower_random, "compute random numbers from random bits and an explicit state"),
    Pass("lower", per_function(lower), "rewrite ops without a kernel as ops that have one"),
)


def passes(
    *,
    composites: Container[str] = (),
    inexact: bool = False,
    target: Target | None = None,
) -> list[Pass]:
    """All passes in order, for an engine that knows these composites.

    `target`: of an engine with packed GEMMs and with kernels for StableHLO ops on ordinary types only; None: the engine
    runs StableHLO as it is.
    """
    width = 0 if target is None else tile_shape(target).columns  # of a packed panel

    def simplify(edit: Edit) -> int:
        return rewrite(edit, CANONICALISE + SIMPLIFY, inexact=inexact)

    tidy = until_stable(simplify, fold_constants, common_subexpressions)

    def inline_composites(program: Program) -> Program:
        """Inline, then simplify if a composite of `QUANTISING` was inlined: its body was not simplified yet."""
        kept = {op.attrs["name"] for op in program.main.body.ops if op.name == "stablehlo.composite"}
        return tidy(rules(SPREADING)(inline(program))) if kept & (QUANTISING | {"smelt.unblock"}) else inline(program)

    def lower_bf16(edit: Edit) -> int:
        pack = 0 if target is None or not target.has_pairs else OCTET if target.kind == "simt" else PAIR
        count = rewrite(edit, bf16_rules(pack))
        return count + common_subexpressions(edit) if count else 0  # matmuls that share an operand share its conversion

    def lower_fp8(edit: Edit) -> int:
        assert target is not None
        count = round_rows(edit) if FP8 in target.features else 0
        return count + rewrite(edit, fp8_rules(fp8=FP8 in target.features, pairs=target.has_pairs))

    def blocks(edit: Edit) -> int:
        count = lower_blocks(edit, any_zero=not simt)  # a GPU multiplies by decoded weights where codes are not centred
        count += common_subexpressions(edit) if count else 0  # products of the same rows round them once
        return count + (merge_block_dots(edit) if count and not simt else 0)

    def defer(edit: Edit) -> int:
        count = defer_factors(edit)
        return count + common_subexpressions(edit) if count else 0

    def join(program: Program) -> Program:
        return join_processes(program, composites)

    def fuse_quantise(edit: Edit) -> int:
        return rewrite(edit, FUSE_QUANTISE)

    simt = target is not None and target.kind == "simt"
    pack = pack_rules(width, simt=simt)
    bytes_of_panel = Panel(width, SIXTEEN if simt else QUAD)
    packed = (
        Pass("channels_last", per_function(channels_last), "convolve feature maps in NHWC layout"),
        Pass("pack_weights", rules(pack), "pack the B operands of GEMMs and convolutions into panels"),
        *(
            (
                Pass("merge_dots", per_function(merge_dots), "multiply the same rows by several weights at once"),
                Pass("defer_factors", per_function(defer), "multiply rows by their norms' factors behind products"),
            )
            if simt
            else ()
        ),
        Pass("hoist_loop_invariants", hoist_loop_invariants, "move loop-invariant work in front of the loop"),
        Pass("rematerialise", rematerialise, "compute what a backward pass reads again, where that takes less memory"),
    )
    on_blocks = Pass("lower_blocks", per_function(blocks), "multiply by packed block-quantised weights")
    fused = (
        Pass(
            "fuse_attention", rules(attention_rules(width, not simt)), "FlashAttention: scores are never materialised"
        ),
        on_blocks,
        Pass(
            "lower_int8",
            rules(int8_rules(bytes_of_panel)),
            "compute quantised matmuls and convolutions as int8 GEMM",
        ),
        Pass("inline", inline_composites, "decompose composites that have no kernel"),
        Pass("lower_fp8", per_function(lower_fp8), "compute fp8 matmuls as fp8 GEMM, or in bf16 or f32"),
        Pass("lower_bf16", per_function(lower_bf16), "compute bf16 matmuls as bf16 GEMM, or in f32"),
        Pass("fuse_quantise", until_stable(fuse_quantise), "fuse scale, zero point, rounding and clamp into one op"),
    )
    return [
        *((Pass("join_processes", join, "merge all SPMD processes into one program"),) if target else ()),
        Pass("inline", lambda program: inline(program, composites), "inline all calls"),
        Pass("refine_shapes", refine_shapes, "infer every size again, from the arguments on"),
        Pass("canonicalise", rules(CANONICALISE), "rewrite legacy and implicit forms as one canonical form"),
        *(LOWERING if target else ()),
        Pass("simplify", tidy, "fold constants, merge common subexpressions, remove ops without effect"),
        Pass("merge_scans", per_function(merge_scans), "scans with the same operands and body are one"),
        Pass("defer_shape_errors", per_function(defer_shape_errors), "leave impossible sizes to fail at run time"),
        Pass("recognise", lambda program: recognise(program, composites), "find softmax, norms, attention, qdot"),
        *((*fused, *packed) if target else ()),
        Pass("split_prepare", split_prepare, "move what depends on weights alone into `prepare`"),
    ]


def run(
    program: Program,
    *,
    composites: Container[str] = (),
    inexact: bool = False,
    target: Target | None = None,
    debug: bool | None = None,
    until: str | None = None,
    log: TextIO | None = None,
) -> tuple[Program, list[Report]]:
    """Apply every pass (up to and including `until`). Returns the program and a report per pass."""
    if debug is None:
        debug = "passes" in os.environ.get("SMELT_DEBUG", "").split(",")
    reports = []
    for step in passes(composites=composites, inexact=inexact, target=target):
        before = count_ops(program)
        start = time.perf_counter()
        after = step.run(program)
        reports.append(Report(step.name, 1e3 * (time.perf_counter() - start), before, count_ops(after)))
        if debug:
            verify(after)
            if after is not program:
                print(f"// after {step.name}: {step.why}\n{print_program(after)}", file=log or sys.stderr)
        program = after
        if step.name == until:
            break
    return program, reports


def count_ops(program: Program) -> int:
    """The number of ops in the bodies of all functions, without those inside regions."""
    return sum(len(func.body.ops) for func in program.funcs.values())
