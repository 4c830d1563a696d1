"""Attributes and element types that few programs have, many of them as the results of one program: the native engine
gives the bits of the interpreter, whose ops tests/unit/ir compares with NumPy and JAX."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.ir.attributes import ConvDims, DotDims, RaggedDotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.shape import Shape
from tests.unit.kernel.agreement import combine, disagreement, draw

BITS = ("i4", "ui8", "f16", "i32", "f32", "f64")


class Cases:
    """Arguments of a program under construction, drawn one after another."""

    def __init__(self, seed: int, shapes: Sequence[Shape]) -> None:
        self.random = np.random.default_rng(seed)
        self.f = FuncBuilder("main", shapes)
        self.given: list[Array] = [self.draw(shape) for shape in shapes]
        self.results: list[Value] = []

    def draw(self, shape: Shape) -> Array:
        if str(shape.dtype) in ("i32", "i64") and shape.rank < 2:
            return self.random.integers(-2, 7, shape.numbers()).astype(shape.dtype.numpy)
        return draw(self.random, str(shape.dtype), *shape.numbers(), few=True)

    def check(self, *, signs: bool = True) -> None:
        """Without `signs` a zero may have another sign: sums of no term, and of complex terms, begin with either."""
        program = Program.of(self.f.func(*self.results))
        assert disagreement(program, [self.given], 0.0 if signs else 1e-300) == ""


def test_rows_selected_along_any_dimension(seed: int) -> None:
    """Dimensions from the front and from the back, with and without a batch; indices outside are clamped."""
    cases = Cases(seed, [Shape("f32", 4, 5, 3), Shape("i64", 4, 6), Shape("i32", 6), Shape("f32", 0, 3)])
    x, pairs, list_, none = cases.f.args
    for dim in (0, 1, 2, -1, -2, -3):
        cases.results.append(cases.f.torch_index_select(x, list_, dim=dim, batch_dims=0))
    for dim, batch in ((1, 1), (2, 1), (-1, 1), (-2, 1), (1, -1), (-1, -1)):
        cases.results.append(cases.f.torch_index_select(x, pairs, dim=dim, batch_dims=batch))
    cases.results.append(cases.f.torch_index_select(none, list_, dim=1, batch_dims=0))
    cases.check()


def test_bits_as_other_types(seed: int) -> None:
    """Narrower and wider elements, which are a last dimension."""
    pairs = list(product(BITS, BITS))
    shapes = [
        Shape(a, 5, *((dtype(b).bits // dtype(a).bits,) if dtype(b).bits > dtype(a).bits else ())) for a, b in pairs
    ]
    cases = Cases(seed, shapes)
    for value, (a, b) in zip(cases.f.args, pairs, strict=True):
        left, right = dtype(a).bits, dtype(b).bits
        sizes: Any = (5, left // right) if left > right else (5,)
        cases.results.append(cases.f.bitcast_convert(value, result=Shape(b, *sizes)))
    cases.check()


def test_scans_both_ways(seed: int) -> None:
    """Along the first and the last axis, of two inputs and carries of their own types."""
    cases = Cases(seed, [Shape("f32", 4, 5), Shape("i32", 4, 5), Shape("f32", 4), Shape("i32", 4), Shape("f32", 5),
                         Shape("i32", 5)])  # fmt: skip
    f = cases.f
    for back, dimension in product((True, False), (0, 1)):
        starts = f.args[4:6] if dimension == 0 else f.args[2:4]
        kinds = [Shape("f32", *starts[0].shape.sizes), Shape("i32", *starts[0].shape.sizes)]
        with f.region(*kinds, *kinds) as r:
            x, n, total, count = r.args
            more, steps = r.add(x, total), r.maximum(n, count)
            r.result(r.negate(more), steps, more, steps)
        made = f.op("chlo.scan", *f.args[:2], *starts, dimension=dimension, is_reverse=back, regions=[r.body])
        cases.results += made.results
    cases.check()


def test_ragged_matmuls_of_other_types(seed: int) -> None:
    """Groups of rows and of terms; complex numbers and integers are summed in their own types."""
    kinds = ("complex<f64>", "i32", "f64")
    shapes = [Shape(kind, *sizes) for kind in kinds for sizes in ((6, 5), (3, 5, 2), (2, 4, 9), (2, 9, 3))]
    cases = Cases(seed, [*shapes, Shape("i64", 3), Shape("i64", 2, 3)])
    cases.given[-2:] = np.array([1, 0, 4]), np.array([[2, 0, 7], [1, 3, 2]])
    f = cases.f
    rows, terms = RaggedDotDims((), (), (1,), (1,), (0,), (0,)), RaggedDotDims((0,), (0,), (2,), (1,), (2,), ())
    for i in range(len(kinds)):
        a, b, c, d = f.args[4 * i : 4 * i + 4]
        cases.results += f.op("chlo.ragged_dot", a, b, f.args[-2], ragged_dot_dimension_numbers=rows).results
        cases.results += f.op("chlo.ragged_dot", c, d, f.args[-1], ragged_dot_dimension_numbers=terms).results
    cases.check(signs=False)


def test_reductions_of_other_types(seed: int) -> None:
    """Along each axis and two of them: few elements in a row, and more than a vector has; narrow types wrap."""
    kinds = {
        "i1": ("and", "or", "xor"), "i4": ("add", "maximum"), "i8": ("multiply", "minimum"), "ui8": ("add", "maximum"),
        "i64": ("add", "minimum", "xor"), "ui64": ("maximum", "and"), "f16": ("maximum", "minimum"),
        "complex<f32>": ("add",),
    }  # fmt: skip
    cases = Cases(seed, [each for kind in kinds for each in (Shape(kind, 3, 40, 5), Shape(kind))])
    for i, (kind, names) in enumerate(kinds.items()):
        x, start = cases.f.args[2 * i : 2 * i + 2]
        for name, dims in product(names, ((0,), (1,), (2,), (0, 2))):
            cases.results.append(cases.f.reduce(x, start, dimensions=dims, regions=[combine(cases.f, name, kind)]))
    cases.check()


def test_matmuls_without_rows_columns_or_terms(seed: int) -> None:
    """Empty operands of every kind of matmul give nothing, or zeros."""
    kinds = ("f32", "bf16", "i8", "complex<f32>", "f64")
    sizes = [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0))]
    pairs = [(kind, a, b) for kind in kinds for a, b in sizes]
    cases = Cases(seed, [Shape(kind, *each) for kind, a, b in pairs for each in (a, b)])
    dims = DotDims((), (), (1,), (0,))
    for i, (kind, a, b) in enumerate(pairs):
        left, right = cases.f.args[2 * i : 2 * i + 2]
        shape = Shape("i32" if kind == "i8" else kind, a[0], b[1])
        cases.results.append(cases.f.dot_general(left, right, dot_dimension_numbers=dims, result=shape))
    cases.check(signs=False)


@pytest.mark.parametrize("dynamic", [(1,), (2,), (0, 1, 2)])
def test_convolutions_with_some_dynamic_sizes(dynamic: tuple[int, ...], seed: int) -> None:
    """Any of batch, rows and columns; weights are constants, so that they are packed."""
    random = np.random.default_rng(seed)
    sizes = [f"S{d}" if d in dynamic else size for d, size in enumerate((2, 9, 16, 8))]
    f = FuncBuilder("main", [Shape("f32", *sizes)])
    dims = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    made = f.convolution(
        f.args[0], f.constant(draw(random, "f32", 3, 3, 8, 20, few=True)), dimension_numbers=dims,
        feature_group_count=1, batch_group_count=1, window_strides=(2, 1), padding=((1, 1), (1, 1)),
    )  # fmt: skip
    shapes = [tuple(n if d in dynamic else s for d, s in enumerate((2, 9, 16, 8))) for n in (1, 5, 21)]
    calls = [(draw(random, "f32", *shape, few=True),) for shape in shapes]
    assert disagreement(Program.of(f.func(made)), calls, 1e-300) == ""
