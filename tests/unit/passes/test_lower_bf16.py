"""bf16 matmuls with f32 results: as bf16 GEMM or as f32 GEMM, with the same numbers either way."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.device import cpu
from smelt.dtype import Array, bf16
from smelt.engine.compile import emit_plan, link_executable, plan_lowered
from smelt.engine.signature import signature_of
from smelt.ir.attributes import ConvDims, DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.kernel.emit.c import Source
from smelt.kernel.plan.plan import Launch, walk
from smelt.passes import pipeline
from smelt.passes.fuse_attention import COMPOSITES
from smelt.passes.split_prepare import WEIGHT
from smelt.run.executable import NativeExecutable
from smelt.shape import Shape
from smelt.target import tile_shape
from smelt.weights import Weights
from tests.packed import op_names

MATRIX = DotDims((), (), (1,), (0,))
CHANNELS_FIRST = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))


def lowered(program: Program, *, pairs: bool) -> Program:
    return pipeline.run(program, composites=COMPOSITES, target=cpu.target().replace(has_pairs=pairs))[0]


def compiled(program: Program, *, pairs: bool) -> NativeExecutable:
    """For this processor, whether it has an instruction for pairs or not."""
    planned = plan_lowered(lowered(program, pairs=pairs), signature_of(program.main), cpu.target())
    source = Source(tile_shape(cpu.target()))
    emit_plan(planned, source, "smelt0")
    return link_executable(cpu.build(source.text()), "smelt0", planned)


def product(rows: int, depth: int, columns: int, *, weight: bool = True) -> Program:
    """x @ w of numbers that are rounded to bf16."""
    marks: list[dict[str, Any]] = [{}, {WEIGHT: "w"} if weight else {}]
    f = FuncBuilder("main", [Shape("f32", rows, depth), Shape("f32", depth, columns)], ["x", "w"], marks)
    a, b = (f.convert(each, result=each.shape.with_dtype(bf16)) for each in f.args)
    return Program.of(f.func(f.dot_general(a, b, dot_dimension_numbers=MATRIX, result=Shape("f32", rows, columns))))


def convolution(channels: int, features: int, groups: int = 1) -> Program:
    shapes = [Shape("f32", 2, channels, 10, 9), Shape("f32", features, channels // groups, 3, 3)]
    f = FuncBuilder("main", shapes, ["x", "w"], [{}, {WEIGHT: "w"}])
    a, b = (f.convert(each, result=each.shape.with_dtype(bf16)) for each in f.args)
    made = f.convolution(
        a,
        b,
        padding=((1, 1), (1, 1)),
        dimension_numbers=CHANNELS_FIRST,
        feature_group_count=groups,
        batch_group_count=1,
        result=Shape("f32", 2, features, 10, 9),
    )
    return Program.of(f.func(f.maximum(made, f.full(0.0, made.shape))))


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("weight", [False, True])
def test_bf16_matmul_against_jax(pairs: bool, weight: bool, seed: int) -> None:
    jax = pytest.importorskip("jax")
    program = product(9, 301, 70, weight=weight)
    wanted = {"smelt.relayout", "smelt.packed_dot bf16" if pairs else "smelt.packed_dot f32"}
    assert wanted <= op_names(lowered(program, pairs=pairs))
    x, w = normal(seed, 9, 301), normal(seed + 1, 301, 70)
    a, b = (jax.numpy.asarray(each, jax.numpy.bfloat16) for each in (x, w))
    expected = np.asarray(jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=np.float32))
    made = compiled(program, pairs=pairs)
    (found,) = made.prepare(Weights.of({"w": w}))(x) if weight else made(x, w)
    np.testing.assert_allclose(found, expected, rtol=0, atol=301 * 2.0**-24 * np.abs(x).max() * np.abs(w).sum(0).max())


def test_bf16_gemm_keeps_weights_in_bf16() -> None:
    """With an instruction for pairs, and without: then the f32 GEMM widens them."""
    sizes = {}
    for pairs in (False, True):
        planned = plan_lowered(
            lowered(product(4, 256, 128), pairs=pairs), signature_of(product(4, 256, 128).main), cpu.target()
        )
        (bound, _) = planned.main[0].of_kind("argument")
        sizes[pairs] = bound.bytes
    assert (sizes[False], sizes[True]) == (2 * 256 * 128, 2 * 256 * 128)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(("channels", "features", "groups"), [(64, 32, 1), (12, 10, 1), (16, 24, 2), (9, 6, 3)])
def test_bf16_convolutions(channels: int, features: int, groups: int, pairs: bool, seed: int) -> None:
    """Winograd's form is for f32 alone; odd numbers of channels go there as well."""
    jax = pytest.importorskip("jax")
    program = convolution(channels, features, groups)
    found = op_names(lowered(program, pairs=pairs))
    assert ("smelt.packed_conv bf16" in found) == (pairs and channels // groups % 2 == 0)
    assert ("smelt.winograd_conv" in found) == (not pairs and channels == 64)
    x, w = normal(seed, 2, channels, 10, 9), normal(seed + 1, features, channels // groups, 3, 3)
    with jax.enable_x64(True):
        given = [each.astype(ml_dtypes.bfloat16).astype(np.float64) for each in (x, w)]
        exact, reach = (
            np.asarray(jax.lax.conv_general_dilated(*each, (1, 1), "SAME", feature_group_count=groups))
            for each in (given, [np.abs(each) for each in given])
        )
    (result,) = compiled(program, pairs=pairs).prepare(Weights.of({"w": w}))(x)
    assert (np.abs(result - np.maximum(exact, 0)) <= 9 * channels // groups * 2.0**-24 * reach).all()


@pytest.mark.parametrize("pairs", [False, True])
def test_one_kernel_writes_f32_and_bf16(pairs: bool, seed: int) -> None:
    """A residual reads the sum as it is, the next product reads it rounded."""
    marks: list[dict[str, Any]] = [{}, {WEIGHT: "w"}]
    f = FuncBuilder("main", [Shape("f32", 5, 64), Shape("f32", 64, 64)], ["x", "w"], marks)
    x, w = f.args
    b = f.convert(w, result=Shape("bf16", 64, 64))
    for _ in range(3):
        a = f.convert(x, result=Shape("bf16", 5, 64))
        made = f.dot_general(a, b, dot_dimension_numbers=MATRIX, result=Shape("f32", 5, 64))
        x = f.tanh(f.add(made, x))
    program = Program.of(f.func(x))
    planned = plan_lowered(lowered(program, pairs=pairs), signature_of(program.main), cpu.target())
    launches = [step for step in walk(planned.main[0].steps) if isinstance(step, Launch)]
    assert [len(step.writes) for step in launches] == [1, 2, 2, 1], "the input is rounded by itself"
    given = normal(seed, 5, 64), normal(seed + 1, 64, 64) / 8
    expected = given[0].astype(np.float64)
    wide = given[1].astype(ml_dtypes.bfloat16).astype(np.float64)
    for _ in range(3):
        narrow = expected.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
        expected = np.tanh(narrow @ wide + expected)
    (found,) = compiled(program, pairs=pairs).prepare(Weights.of({"w": given[1]}))(given[0])
    # Where a sum is between two numbers of bf16, its last bit decides to which of them it is rounded.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-8)
    assert np.abs(found - expected).mean() < 2.0**-14
