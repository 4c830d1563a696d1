"""Random inputs for measurements: sizes of pictures, numbers of every type, and indices within their tables."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.engine.sample import PICTURE, default_sizes, random_array, sample_inputs
from smelt.errors import RunError
from smelt.ir.attributes import GatherDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.shape import Shape


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (Shape("f32", "N", 3, "H", "W"), {"N": 1, "H": PICTURE, "W": PICTURE}),
        (Shape("f32", "N", 4, "H", "W"), {"N": 1, "H": PICTURE, "W": PICTURE}),
        (Shape("f16", "N", 1, "H", "H"), {"N": 1, "H": PICTURE}),
        (Shape("f32", "N", "H", "W", 3), {"N": 1, "H": PICTURE, "W": PICTURE}),
        (Shape("f32", "N", 2, "H", "W"), {"N": 1, "H": 1, "W": 1}),
        (Shape("f32", "N", 5, "H", "W"), {"N": 1, "H": 1, "W": 1}),
        (Shape("i32", "N", 3, "H", "W"), {"N": 1, "H": 1, "W": 1}),
        (Shape("f32", 3, "H", "W"), {"H": 1, "W": 1}),
        (Shape("f32", "N", 3, "H", "W", 1), {"N": 1, "H": 1, "W": 1}),
    ],
)
def test_pictures_have_sizes_of_pictures(shape: Shape, sizes: dict[str, int]) -> None:
    assert default_sizes([shape]) == sizes
    assert default_sizes([shape, Shape("f32", "H")]) == sizes | {"H": sizes["H"]}


@pytest.mark.parametrize("name", ["i1", "i2", "i4", "ui4", "i8", "ui8", "i64", "f16", "bf16", "f32", "c64"])
def test_numbers_of_a_usual_range(name: str) -> None:
    found = random_array(Shape(name, "N", 50), {"N": 40}, np.random.default_rng(1))
    assert (found.shape, found.dtype) == ((40, 50), dtype(name).numpy)
    if dtype(name).is_integer:
        numbers = {int(each) for each in found.astype(np.int64).reshape(-1)}
        assert numbers == set(range({"i2": 2, "i4": 8, "ui4": 8}.get(name, 10)))
    elif name == "i1":
        assert set(found.reshape(-1).tolist()) == {False, True}
    else:
        real = found.astype(np.complex128)
        for part in (real.real, real.imag) if name == "c64" else (real.real,):
            assert abs(part.mean()) < 0.1
            assert 0.9 < part.std() < 1.1


def look_up(f: FuncBuilder, table: Value, at: Value) -> Value:
    dims = GatherDims((1,), (0,), (), (), (0,), 1)
    return f.op("stablehlo.gather", table, at, dimension_numbers=dims, slice_sizes=(1, 3)).results[0]


def test_indices_are_within_the_smallest_table() -> None:
    """Also those that are moved or computed first; what indexes nothing is a flag, and a dynamic table has two rows."""
    shapes = [Shape("f32", 7, 3), Shape("f32", 5, 3), Shape("f32", "T", 3)]
    f = FuncBuilder("main", [*shapes, *(Shape("i32", 4, 100) for _ in range(4))])
    one, two, dynamic, a, b, c, _ = f.args
    flat = [f.reshape(each, result=Shape("i32", 400, 1)) for each in (a, b, c)]
    found = [look_up(f, one, flat[0]), look_up(f, one, flat[1]), look_up(f, two, f.add(flat[1], flat[1]))]
    inputs = sample_inputs(Program.of(f.func(*found, look_up(f, dynamic, flat[2]))), {"T": 9}, seed=3)
    assert [int(array.max()) for array in inputs[3:]] == [6, 4, 1, 1]
    assert all(array.min() == 0 for array in inputs[3:])
    assert [array.shape for array in inputs[:3]] == [(7, 3), (5, 3), (9, 3)]
    again = sample_inputs(Program.of(f.func(*found)), {}, seed=3)
    np.testing.assert_array_equal(again[3], inputs[3])
    assert again[2].shape == (1, 3)


@pytest.mark.parametrize(("dim", "most"), [(0, 6), (1, 2)])
def test_the_axis_that_is_selected_from_bounds_indices(dim: int, most: int) -> None:
    f = FuncBuilder("main", [Shape("f32", 7, 3), Shape("i32", 200)])
    result = Shape("f32", 200, 3) if dim == 0 else Shape("f32", 7, 200)
    out = f.op("stablehlo.torch_index_select", *f.args, dim=dim, batch_dims=0, result=result).result
    _, indices = sample_inputs(Program.of(f.func(out)), {})
    assert (int(indices.min()), int(indices.max())) == (0, most)


def test_inputs_larger_than_memory_are_refused() -> None:
    f = FuncBuilder("main", [Shape("f32", symbol("N"), 64)])
    program = Program.of(f.func(f.args[0]))
    for size in (10**15, 1 << 70):
        with pytest.raises(RunError, match="no memory for random inputs") as caught:
            sample_inputs(program, {"N": size})
        assert caught.value.got == f"f32[N, 64] at N={size}"
