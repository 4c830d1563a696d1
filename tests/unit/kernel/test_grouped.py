"""Grouped GEMM: rows that are sorted by group, each group with its own matrix (mixtures of experts)."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt.dim import symbol
from smelt.dtype import Array, DType, dtype, f32, i32, ui8
from smelt.engine.native import compile_all
from smelt.errors import DeviceError
from smelt.ir.attributes import RaggedDotDims
from smelt.ir.blocks import BLOCKS, TABLE, Block
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.passes.lower_blocks import round_activations
from smelt.passes.pipeline import run as run_passes
from smelt.shape import Shape
from smelt.tensor.model import make_parameter
from tests.unit.kernel.test_block_dot import Sketch, names, random_weights, same_bits
from tests.unit.kernel.test_int8_gemm import target_of

GROUPS = 5
# Rows and the rows of each group: empty groups, rows that no group has, more rows than there are, none at all.
SIZES = (
    *((0, [0] * 5), (1, [0, 0, 0, 1, 0]), (9, [2, 0, 4, 3, 0]), (12, [0, 5, 0, 0, 1])),
    *((7, [3, 0, 9, 2, 1]), (230, [1, 0, 205, 4, 20])),
)


class Experts(smelt.Model):
    weight: smelt.Tensor

    def __init__(self, element: DType) -> None:
        self.weight = make_parameter({"e": GROUPS, "f": 70, "d": 96}, element)

    def __call__(self, x: smelt.Tensor, sizes: smelt.Tensor) -> smelt.Tensor:
        return x.ragged_dot(self.weight.to("f32"), sizes, "d")


def multiply(x: Array, w: Array, sizes: list[int]) -> Array:
    """In doubles; w is [group, column, k]."""
    made, begin = np.zeros((len(x), w.shape[1])), 0
    for matrix, size in zip(w, sizes, strict=True):
        rows = slice(begin, begin + size)
        made[rows] = x[rows].astype(np.float64) @ matrix.T.astype(np.float64)
        begin += size
    return made


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("stored", ["f32", "bf16", "f16"])
def test_each_group_multiplies_its_rows(engine: str, stored: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    w = random.standard_normal((GROUPS, 70, 96), np.float32).astype(dtype(stored).numpy)
    weights = smelt.Weights.of({"weight": w})
    model = smelt.instantiate(Experts, weights, element=dtype(stored))
    bound = smelt.compile(model.__call__, "f32[r=R, d=96]", f"i32[e={GROUPS}]", engine=engine).prepare(weights)
    for rows, sizes in SIZES:
        x = random.standard_normal((rows, 96), np.float32)
        got = bound(x, np.array(sizes, np.int32)).numpy()
        np.testing.assert_allclose(got, multiply(x, w, sizes), rtol=0, atol=2e-5)


def test_a_row_has_the_same_bits_in_any_group_of_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, w = random.standard_normal((40, 96), np.float32), random.standard_normal((2, 70, 96), np.float32)

    def product(x: smelt.Tensor, w: smelt.Tensor, sizes: smelt.Tensor) -> smelt.Tensor:
        return x.ragged_dot(w, sizes, "d")

    made = smelt.compile(product, "f32[r=R, d=96]", "f32[e=2, f=70, d=96]", "i32[e=2]", engine="native")
    together = made(x, w, np.array([0, 40], np.int32)).numpy()
    for row in (0, 17, 39):
        alone = made(x[row : row + 1], w, np.array([0, 1], np.int32)).numpy()
        same_bits(alone, together[row : row + 1])


def grouped_blocks(row: Block, blocks: int, columns: int) -> Program:
    """x[R, k] by an unblocked w[group, column, k]."""
    rows, depth = symbol("R"), blocks * row.length
    sketch = Sketch(
        Shape.of(f32, (rows, depth)), Shape.of(ui8, (GROUPS, columns, blocks, row.bytes)), Shape.of(i32, (GROUPS,))
    )
    x, w, sizes = sketch.f.args
    dims = RaggedDotDims((), (), (1,), (2,), (0,), (0,))
    made = sketch.f.op("chlo.ragged_dot", x, sketch.unblock(row, w), sizes, ragged_dot_dimension_numbers=dims)
    return sketch.program(made.result)


@pytest.mark.parametrize("name", ["native", "avx512", "avx2", "plain"])
def test_every_format_gives_the_bits_of_the_decomposition(name: str, seed: int) -> None:
    target = target_of(name)
    formats = TABLE if name == "native" else [BLOCKS[each] for each in ("q4_0", "q4_1", "q6_k")]
    cases = [(row, 3 if row.length == 32 else 1, 21) for row in formats]
    programs = [round_activations(grouped_blocks(*case)) for case in cases]
    random = np.random.default_rng(seed)
    for (row, blocks, columns), program, made in zip(cases, programs, compile_all(programs, target), strict=True):
        if isinstance(made, DeviceError) and "cannot run code" in str(made):
            pytest.skip(str(made))
        assert not isinstance(made, Exception), made
        assert names(program).count("smelt.block_ragged_dot") == 1
        w = random_weights(row, GROUPS, columns, blocks, seed=seed)
        for rows, sizes in SIZES[:5]:
            x = random.standard_normal((rows, blocks * row.length), np.float32)
            given = [x, w, np.array(sizes, np.int32)]
            (want,), (got,) = run(program, given), made(*given)
            same_bits(np.asarray(got), want)


def test_bytes_are_bound_packed_and_multiplied_in_groups() -> None:
    program = round_activations(grouped_blocks(BLOCKS["q4_0"], 2, 16))
    lowered, _ = run_passes(program, composites={"smelt.unblock", "smelt.block_ragged_dot"}, target=target_of("avx2"))
    assert "smelt.grouped_block_dot" in names(lowered)
    assert "chlo.ragged_dot" not in names(lowered)


@pytest.mark.parametrize(
    ("shapes", "axis", "message"),
    [
        (("f32[r=4, d=8]", "f32[e=3, f=2, d=8]", "f32[e=3]"), "d", "integer sizes"),
        (("f32[r=4, d=8]", "f32[e=3, f=2, d=8]", "i32[e=2]"), "d", 'the axis "e" has different sizes, 2 and 3'),
        (("f32[r=4, d=8]", "f32[e=3, f=2, d=9]", "i32[e=3]"), "d", 'the axis "d" has different sizes, 8 and 9'),
        (("f32[r=4, d=8]", "f32[g=3, f=2, d=8]", "i32[e=3]"), "d", 'the right operand has no axis "e"'),
        (("f32[r=4, k=8]", "f32[e=3, f=2, d=8]", "i32[e=3]"), "d", 'the left operand has no axis "d"'),
    ],
)
def test_operands_that_do_not_fit(shapes: tuple[str, str, str], axis: str, message: str) -> None:
    x, w, sizes = map(smelt.symbolic, shapes)
    with pytest.raises(smelt.SmeltError, match=message):
        x.ragged_dot(w, sizes, axis)
