"""Every pass, in order, on one screen: what happens to a program between a front end and an engine.

`run(program)` applies them. With `SMELT_DEBUG=passes` (or `debug=True`) the verifier runs after each pass and the
program is printed where it changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TextIO

from smelt.ir.core import Program
from smelt.ir.rewrite import Edit, Rule, rewrite
from smelt.ir.text import print_program
from smelt.ir.verify import verify
from smelt.passes.attend import attend_rules
from smelt.passes.canonicalise import CANONICALISE
from smelt.passes.channels_last import channels_last
from smelt.passes.common_subexpressions import common_subexpressions
from smelt.passes.fold import fold
from smelt.passes.hoist import hoist
from smelt.passes.inline import inline
from smelt.passes.join_processes import join_processes
from smelt.passes.lower import lower
from smelt.passes.lower_bf16 import bf16_rules
from smelt.passes.lower_called import lower_called
from smelt.passes.lower_qdot import QUANTISING, SPREADING, qdot_rules
from smelt.passes.lower_quantised import lower_quantised
from smelt.passes.lower_random import lower_random
from smelt.passes.pack import pack_rules
from smelt.passes.recognise import recognise
from smelt.passes.refine import defer, refine
from smelt.passes.round_bytes import ROUNDING
from smelt.passes.simplify import SIMPLIFY
from smelt.passes.split_prepare import split_prepare


@dataclass(frozen=True, slots=True)
class Pass:
    """A step from program to program; `why` says what it is for."""

    name: str
    run: Callable[[Program], Program]
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What one pass did: milliseconds, and how many ops the program had before and after."""

    name: str
    milliseconds: float
    before: int
    after: int


def per_function(change: Callable[[Edit], int]) -> Callable[[Program], Program]:
    """A pass from something that edits one function."""

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
    """A pass from a list of rules."""
    return per_function(lambda edit: rewrite(edit, rules, inexact=inexact))


def until_stable(*changes: Callable[[Edit], int]) -> Callable[[Program], Program]:
    """A pass that repeats changes, in order, until none of them finds anything; dead ops go with the first."""

    def change(edit: Edit) -> int:
        total = 0
        while count := sum(each(edit) for each in changes):
            total += count
        return total

    return per_function(change)


LOWERING = (
    Pass("lower_called", lower_called, "ops where JAX had none for open sizes"),
    Pass("lower_quantised", lower_quantised, "integers and floats where types were quantised"),
    Pass("lower_random", lower_random, "random numbers from bits and a state"),
    Pass("lower", per_function(lower), "ops that a kernel knows"),
)


def passes(
    *,
    composites: Container[str] = (),
    inexact: bool = False,
    width: int = 0,
    pairs: bool = False,
    lowered: bool = False,
) -> list[Pass]:
    """All passes in order, for an engine that knows these composites and multiplies panels of `width` columns.

    `pairs`: it multiplies pairs of bf16. `lowered`: it has kernels for plain ops on plain types only.
    """

    def simplify(edit: Edit) -> int:
        return rewrite(edit, CANONICALISE + SIMPLIFY, inexact=inexact)

    tidy = until_stable(simplify, fold, common_subexpressions)

    def taken_apart(program: Program) -> Program:
        """What quantises was kept whole so far, and has not been simplified."""
        kept = {op.attrs["name"] for op in program.main.body.ops if op.name == "stablehlo.composite"}
        return tidy(rules(SPREADING)(inline(program))) if kept & QUANTISING else inline(program)

    def widened(edit: Edit) -> int:
        count = rewrite(edit, bf16_rules(pairs=pairs))
        return count + common_subexpressions(edit) if count else 0  # products that share an operand share its rounding

    joining = Pass("join_processes", lambda program: join_processes(program, composites), "one process instead of many")
    attending = (
        Pass("attend", rules(attend_rules(width)), "scores of attention are never all there"),
        Pass("lower_qdot", rules(qdot_rules(width)), "quantised products are products of bytes"),
        Pass("inline", taken_apart, "composites without a kernel as the ops they are made of"),
        Pass("lower_bf16", per_function(widened), "products of bf16 in pairs, or of f32"),
        Pass("round_bytes", until_stable(lambda edit: rewrite(edit, ROUNDING)), "rounding to bytes is one op"),
    )
    return [
        *((joining,) if lowered else ()),
        Pass("inline", lambda program: inline(program, composites), "one function to look at"),
        Pass("refine", refine, "sizes as well known as they can be"),
        Pass("canonicalise", rules(CANONICALISE), "one spelling for each thing"),
        *(LOWERING if lowered else ()),
        Pass("simplify", tidy, "no op that is known, equal or idle"),
        Pass("defer", per_function(defer), "sizes that no op can have fail when the run gets there"),
        Pass("recognise", lambda program: recognise(program, composites), "what an engine knows as one kernel"),
        *(attending if width else ()),
        *(
            (Pass("channels_last", per_function(channels_last), "images whose channels lie side by side"),)
            if width
            else ()
        ),
        Pass("pack", rules(pack_rules(width)) if width else lambda program: program, "products read panels"),
        *((Pass("hoist", hoist, "loops compute once what does not change"),) if width else ()),
        Pass("split_prepare", split_prepare, "what depends on weights alone runs once"),
    ]


def run(
    program: Program,
    *,
    composites: Container[str] = (),
    inexact: bool = False,
    width: int = 0,
    pairs: bool = False,
    lowered: bool = False,
    debug: bool | None = None,
    until: str | None = None,
    log: TextIO | None = None,
) -> tuple[Program, list[Report]]:
    """Apply every pass (up to and including `until`); gives the program and what each pass did."""
    if debug is None:
        debug = "passes" in os.environ.get("SMELT_DEBUG", "").split(",")
    reports = []
    for step in passes(composites=composites, inexact=inexact, width=width, pairs=pairs, lowered=lowered):
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
    """The ops in the bodies of all functions, what is inside regions not counted."""
    return sum(len(func.body.ops) for func in program.funcs.values())
