"""Composites of a file with our names: attributes, operands and sizes are the file's, and a composite that is not what
its name says is its decomposition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from smelt.device import cpu, cuda, registry
from smelt.engine.compile import COMPOSITES, emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.composite_check import fits
from smelt.ir.text import parse
from smelt.run.executable import NativeExecutable

TARGETS = {"plain": cpu.TARGETS["plain"], "avx512": cpu.TARGETS["avx512"], "sm_90": cuda.TARGETS["sm_90"]}


def composite(name: str, operands: str, result: str, attrs: str) -> str:
    """A program of one composite, which is ones."""
    types = [f"tensor<{each}>" for each in operands.split()]
    args = ", ".join(f"%a{i}: {each}" for i, each in enumerate(types))
    values = ", ".join(f"%a{i}" for i in range(len(types)))
    element = result.rpartition("x")[2]
    return f"""func.func private @ones({args}) -> tensor<{result}> {{
  %0 = stablehlo.constant dense<1> : tensor<i8>
  %1 = stablehlo.convert %0 : (tensor<i8>) -> tensor<{element}>
  %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<{element}>) -> tensor<{result}>
  return %2 : tensor<{result}>
}}
func.func @main({args}) -> tensor<{result}> {{
  %0 = stablehlo.composite "{name}" {values} {{composite_attributes = {{{attrs}}}, decomposition = @ones}}
    : ({", ".join(types)}) -> tensor<{result}>
  return %0 : tensor<{result}>
}}
"""


WINDOW = (
    "strides = [1 : i64], padding = [0 : i64, 0 : i64], lhs_dilation = [1 : i64], rhs_dilation = [1 : i64],"
    " groups = 1 : i64, batch_groups = 1 : i64"
)
SCORES = "scale = 1.0 : f64, softcap = 0.0 : f64"
# (operands, result, attributes) that are what the name says.
RIGHT: dict[str, tuple[str, str, str]] = {
    "smelt.softmax": ("2x3xf32", "2x3xf32", "axis = 1 : i64"),
    "smelt.attention": (
        "2x4xf32 3x4xf32 3x5xf32", "2x5xf32",
        f'operands = "q k v", layout = "qd,kd,ke->qe", {SCORES}, fill = [], guarded = 0 : i64'),
    "smelt.paged_attention": (
        "3x4x16xf32 5x2x16x16xf32 5x2x16x16xf32 2x3xi32 3xi32 3xi32", "3x4x16xf32", f"{SCORES}, window = 0 : i64"),
    "smelt.quantize": ("2x3xf32 f32", "2x3xi8", 'operands = "x scale", layout = "ab,->ab"'),
    "smelt.dequantize": ("2x3xi8 3xf32", "2x3xf32", 'operands = "x scale", layout = "ab,b->ab"'),
    "smelt.qdot": ("2x3xui8 3x4xi8 4xf32", "2x4xf32", 'operands = "lhs rhs scale", layout = "ab,bc,c->ac"'),
    "smelt.unblock": ("4x2x18xui8", "4x64xf32", 'format = "q4_0"'),
    "smelt.block_dot": ("1x2x64xf32 1x4x2x18xui8", "1x2x4xf32", 'format = "q4_0"'),
    "smelt.block_ragged_dot": ("2x64xf32 3x4x2x18xui8 3xi32", "2x4xf32", 'format = "q4_0"'),
}  # fmt: skip
CONVOLUTION = ("2x5x3xui8 3x3x4xi8", "2x3x4xi32", f'operands = "lhs rhs", layout = "bxf,xio->bxo", {WINDOW}')
OPERANDS = ("", "4x4xf32", "2x64xf32 4x2x18xui8", "1x2x64xf32 1x4x36xui8", "4x4xf32 4x4xf32 4x4xf32", "f32 f32 f32",
            "1x2x63xf32 1x4x2x18xui8", "4x4xi8 4x4xui8", "2x5x3xui8 3x3x4xi8")  # fmt: skip
ATTRIBUTES = (
    "", "axis = 7 : i64", "axis = -1 : i64", 'axis = "x"', 'format = "nope"', "format = 3 : i64", 'format = "iq1_s"',
    'operands = "lhs rhs", layout = "ab"',
    'operands = 7 : i64, layout = "ab,bc->ac"', 'operands = "x", layout = "(a->"',
    'operands = "q k v", layout = "ab,bc,cd->ad"', 'operands = "x scale", layout = "ab,cd->efg"',
)  # fmt: skip


def wrong(name: str) -> Iterator[tuple[str, str, str]]:
    operands, result, attrs = RIGHT[name]
    yield from ((each, result, attrs) for each in OPERANDS if each != operands)
    yield from ((operands, result, each) for each in ATTRIBUTES)
    yield operands, "1x1x1x1x2xf32", attrs
    yield operands, "f32", attrs
    if name == "smelt.qdot":
        yield from (
            (*CONVOLUTION[:2], CONVOLUTION[2].replace(*each))
            for each in (
                ("strides = [1 : i64]", "strides = []"),
                ("strides = [1 : i64]", "strides = [0 : i64]"),
                ("padding = [0 : i64, ", "padding = ["),
                ("lhs_dilation = [1 : i64], ", ""),
                ("groups = 1", "groups = -1"),
                ("groups = 1 : i64", 'groups = "one"'),
                ("bxf", "bxy"),
                ("xio", "xi(op)"),
            )
        )


@pytest.mark.parametrize("name", RIGHT)
def test_a_composite_that_is_not_what_it_says_is_its_decomposition(name: str) -> None:
    texts = [composite(name, *each) for each in wrong(name)]
    programs = [parse(text) for text in texts]
    for program, text in zip(programs, texts, strict=True):
        op = next(op for op in program.main.body.ops if op.name == "stablehlo.composite")
        if fits(op):  # ours for other operands, too
            continue
        for target in TARGETS.values():
            emit_source([plan_program(program, target)]).texts(1)
        (made,) = compile_all([program], registry.find_device("cpu").target())
        assert isinstance(made, NativeExecutable), (made, text)
        (found,) = made(*(np.zeros(arg.shape.numbers(), arg.shape.element.numpy) for arg in program.main.args))
        assert (np.asarray(found) == 1).all(), text


@pytest.mark.parametrize("name", RIGHT)
def test_no_composite_breaks_the_compiler(name: str) -> None:
    """Also those that fit, whose decomposition is another one."""
    for each in (RIGHT[name], *wrong(name)):
        for target in TARGETS.values():
            try:
                emit_source([plan_program(parse(composite(name, *each)), target)]).texts(1)
            except SmeltError as error:
                raise AssertionError(composite(name, *each)) from error


def test_composites_that_are_what_they_say_are_kept() -> None:
    assert RIGHT.keys() == COMPOSITES
    for name, said in (*RIGHT.items(), ("smelt.qdot", CONVOLUTION)):
        (op,) = (op for op in parse(composite(name, *said)).main.body.ops if op.name == "stablehlo.composite")
        assert fits(op), name
