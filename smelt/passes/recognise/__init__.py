"""Pattern matching: softmax, norms, activations, attention and quantised matmuls, in any spelling, become composites.

A finder takes one op as the root of a pattern and returns the pattern's inputs. The ops between become the
decomposition of a `stablehlo.composite`, so an engine without that composite computes the same as before.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from smelt.ir.composites import COMPOSITES
from smelt.ir.core import Op, Program, Region, walk
from smelt.ir.rewrite import Edit
from smelt.passes.recognise.activations import gelu, hard_swish, silu
from smelt.passes.recognise.attention import attention
from smelt.passes.recognise.matcher import Finder, Matcher
from smelt.passes.recognise.norms import norm
from smelt.passes.recognise.outline import Outlines
from smelt.passes.recognise.quantised import qdot
from smelt.passes.recognise.softmax import align_row_maximum, softmax

# Stages in order. Within one, ops are visited from the last to the first, and the first finder that matches wins.
STAGES: tuple[tuple[Finder, ...], ...] = (
    (qdot,),
    (softmax, norm, gelu, silu, hard_swish),
    (attention,),
)
_ENTERED = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})  # bodies that may hold patterns


def recognise(program: Program, names: Container[str] = COMPOSITES) -> Program:
    """The same program with composites of these names where a finder matches, outermost pattern first.

    The finder of attention needs its softmax, that of quantised matmuls `smelt.quantize` and `smelt.dequantize`, so an
    engine that asks for the former also asks for the latter.
    """
    if not any(name in names for name in COMPOSITES):
        return program
    outlines = Outlines(program)
    signatures = {name: func.type for name, func in program.funcs.items()}
    decompositions = {
        op.attrs["decomposition"]
        for func in program.funcs.values()
        for op in walk(func.body)
        if op.name == "stablehlo.composite"
    }
    edited = []
    for func in program.funcs.values():
        if func.name in decompositions:
            continue
        edit = Edit(func, signatures)
        for region in _regions(func.body):
            for op in list(edit.ops(region)):
                if op in edit:
                    align_row_maximum(edit, op)
            local = set(edit.ops(region))
            for finders in STAGES:
                for op in reversed(list(edit.ops(region))):
                    if op in edit:
                        _try(edit, local, op, finders, names, outlines)
        edited.append(edit.freeze())
    return program.replace(*edited, *outlines.made.values()) if outlines.made else program


def _regions(body: Region) -> Iterator[Region]:
    yield body
    for op in walk(body):
        if op.name in _ENTERED:
            yield from op.regions


def _try(
    edit: Edit, local: set[Op], root: Op, finders: Sequence[Finder], names: Container[str], outlines: Outlines
) -> None:
    matcher = Matcher(edit)
    for finder in finders:
        for found in finder(matcher, root):
            if found.name in names and outlines.outline(edit, local, root, found):
                return
