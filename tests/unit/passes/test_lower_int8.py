"""Quantised matmuls as int8 GEMM: all signs, zero points and windows, against integers of NumPy and JAX."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array, i32
from smelt.engine.compile import lower
from smelt.engine.native import NativeEngine, compile_all
from smelt.ir.attributes import ConvDims, DotDims
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.composites import encode
from smelt.ir.core import Program, Value
from smelt.shape import Shape
from smelt.weights import Weights
from tests.packed import op_names


def integers(seed: int, kind: str, *shape: int) -> Array:
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, kind, endpoint=True)


def shifted(b: Builder, value: Value, zero: Value | None, axes: tuple[int, ...]) -> Value:
    """`i32(value) - zero`, as front ends write it."""
    wide: Value = b.convert(value, result=value.shape.with_dtype(i32))
    if zero is None:
        return wide
    point = b.convert(zero, result=zero.shape.with_dtype(i32))
    moved: Value = b.subtract(wide, b.broadcast_in_dim(point, broadcast_dimensions=axes, result=wide.shape))
    return moved


def names(program: Program) -> set[str]:
    return op_names(lower(program))


@pytest.mark.parametrize(
    ("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]
)
def test_int8_gemm_signs_and_zero_points(left: str, right: str, seed: int) -> None:
    """Zero points that are not there, one for all, or one for each row of the left and each column of the right."""
    rows, depth, columns = 5, 39, 67
    a, w = integers(seed, left, 2, rows, depth), integers(seed + 1, right, depth, columns)
    programs, cases = [], []
    for left_zero, right_zero in product((None, (), (2, rows)), (None, (), (columns,))):
        p = None if left_zero is None else integers(seed + 2, left, *left_zero)
        q = None if right_zero is None else integers(seed + 3, right, *right_zero)
        given = [each for each in (a, w, p, q) if each is not None]
        f = FuncBuilder("main", [Shape(_name(each), *each.shape) for each in given])
        args = iter(f.args)
        x, y = next(args), next(args)
        x = shifted(f, x, None if p is None else next(args), (0, 1) if left_zero else ())
        y = shifted(f, y, None if q is None else next(args), (1,) if right_zero else ())
        result = Shape("i32", 2, rows, columns)
        made = f.dot_general(x, y, dot_dimension_numbers=DotDims((), (), (2,), (0,)), result=result)
        programs.append(Program.of(f.func(made)))
        assert "smelt.packed_dot ui8" in names(programs[-1])
        exact = a.astype(np.int64) - (0 if p is None else p.astype(np.int64)[..., None])
        exact = exact @ (w.astype(np.int64) - (0 if q is None else q.astype(np.int64)))
        cases.append((given, exact.astype(np.int32)))
    for executable, (given, expected) in zip(compile_all(programs), cases, strict=True):
        assert not isinstance(executable, Exception), executable
        np.testing.assert_array_equal(executable(*given)[0], expected)


def test_a_zero_point_along_k_is_not_lowered(seed: int) -> None:
    """It changes along the sum, so no sum of rows or columns puts it right."""
    a, w, p = integers(seed, "int8", 3, 20), integers(seed, "int8", 20, 4), integers(seed, "int8", 20)
    f = FuncBuilder("main", [Shape("i8", *each.shape) for each in (a, w, p)])
    x, y = shifted(f, f.args[0], f.args[2], (1,)), shifted(f, f.args[1], None, ())
    made = f.dot_general(x, y, dot_dimension_numbers=DotDims((), (), (1,), (0,)), result=Shape("i32", 3, 4))
    program = Program.of(f.func(made))
    expected = (a.astype(np.int64) - p) @ w.astype(np.int64)
    np.testing.assert_array_equal(NativeEngine().compile(program)(a, w, p)[0], expected.astype(np.int32))


WINDOWS: dict[str, dict[str, Any]] = {
    "three by three": {},
    "one by one": {"window": (1, 1), "padding": 0},
    "strides and holes": {"strides": (2, 3), "dilations": (2, 1)},
    "few channels": {"channels": 3, "window": (5, 3)},
    "an image with holes": {"base": (2, 3), "padding": 0},
    "groups": {"channels": 8, "groups": 2, "features": 6},
    "groups of few channels": {"channels": 6, "groups": 2, "features": 6},
    "depthwise": {"channels": 8, "groups": 8, "features": 8},
}


@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_convolutions(left: str, seed: int) -> None:
    lax = pytest.importorskip("jax").lax
    programs, cases = [], []
    for case in WINDOWS.values():
        chosen: dict[str, Any] = {
            "channels": 8,
            "features": 70,
            "groups": 1,
            "window": (3, 3),
            "padding": 1,
            "strides": (1, 1),
        } | case
        channels, groups, padding = chosen["channels"], chosen["groups"], chosen["padding"]
        x = integers(seed, left, 2, channels, 9, 11)
        w = integers(seed + 1, "int8", chosen["features"], channels // groups, *chosen["window"])
        taps = {"rhs_dilation": chosen.get("dilations", (1, 1)), "lhs_dilation": chosen.get("base", (1, 1))}
        taps["feature_group_count"] = groups
        edges = ((padding, padding),) * 2
        whole = (x.astype(np.int32), w.astype(np.int32))
        expected = np.asarray(lax.conv_general_dilated(*whole, chosen["strides"], edges, **taps))
        f = FuncBuilder("main", [Shape(_name(each), *each.shape) for each in (x, w)])
        made = f.convolution(
            *(shifted(f, each, None, ()) for each in f.args),
            window_strides=chosen["strides"],
            padding=edges,
            dimension_numbers=ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3)),
            batch_group_count=1,
            result=Shape("i32", *expected.shape),
            **taps,
        )
        programs.append(Program.of(f.func(made)))
        known = {"smelt.packed_dot ui8", "smelt.packed_conv ui8", "smelt.packed_conv f32", "smelt.depthwise_conv"}
        assert names(programs[-1]) & known, case
        cases.append(((x, w), expected))
    for name, executable, (given, expected) in zip(WINDOWS, compile_all(programs), cases, strict=True):
        assert not isinstance(executable, Exception), executable
        np.testing.assert_array_equal(executable(*given)[0], expected, err_msg=name)


def _name(array: Array) -> str:
    return {"int8": "i8", "uint8": "ui8"}[array.dtype.name]


@pytest.mark.parametrize(
    ("layout", "is_gemm"),
    [("mk,kn->mn", True), ("mk,nk->nm", True), ("bmk,bkn->bmn", True), ("mkl,kn->mn", False), ("mk,knl->mn", False)],
)
def test_layouts_of_a_quantised_matmul(layout: str, is_gemm: bool, seed: int) -> None:
    """A GEMM sums what both operands have: an axis that one of them has alone is left to the decomposition."""
    sizes = dict(zip("mknlb", (3, 8, 5, 2, 2), strict=True))
    words, _, result = layout.partition("->")
    left, right = words.split(",")
    a, w = (integers(seed + i, kind, *(sizes[each] for each in word))
            for i, (kind, word) in enumerate((("uint8", left), ("int8", right))))  # fmt: skip
    shapes = [Shape("ui8", *a.shape), Shape("i8", *w.shape)]
    inner = FuncBuilder("decomposition", shapes)
    wide = [inner.convert(arg, result=arg.shape.with_dtype(i32)) for arg in inner.args]
    shape = Shape("i32", *(sizes[each] for each in result))
    made = inner.op("stablehlo.einsum", *wide, einsum_config=f"{words}->{result}", result=shape).result
    f = FuncBuilder("main", shapes)
    f.signatures["decomposition"] = inner.func(made, visibility="private").type
    attrs = encode("smelt.qdot", {"operands": "lhs rhs", "layout": layout})
    found = f.op("stablehlo.composite", *f.args, name="smelt.qdot", composite_attributes=attrs,
                 decomposition="decomposition").result  # fmt: skip
    program = Program.of(f.func(found), inner.func(made, visibility="private"))
    assert ("smelt.packed_dot ui8" in names(program)) == is_gemm
    (have,) = NativeEngine().compile(program).prepare(Weights.of({}))(a, w)
    np.testing.assert_array_equal(have, np.einsum(f"{words}->{result}", a.astype(np.int64), w.astype(np.int64)))
