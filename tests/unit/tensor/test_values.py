"""Every op's value and shape rule against NumPy and JAX, at random sizes (0 and 1 among them) and element types.

Each case runs on data, then traced over symbols and run at the same sizes, on the reference and compiled natively.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt
from smelt import TensorError
from smelt.dtype import dtype as dtype_of
from smelt.engine.native import compile_all
from smelt.errors import RunError, SmeltError
from smelt.shape import Shape
from smelt.tensor import engine, trace
from smelt.tensor.axes import parse_shape
from tests.unit.tensor.cases import CASES, Case, wide

LARGEST = 4


def shape_of(text: str, element: str) -> Shape:
    _, sizes, names = parse_shape(text)
    return Shape.of(dtype_of(element), sizes, names)


def random_array(rng: np.random.Generator, sizes: tuple[int, ...], element: str) -> np.ndarray:
    dtype = dtype_of(element)
    if dtype.kind == "bool":
        return rng.random(sizes) < 0.5
    if dtype.is_integer:
        low = 0 if dtype.kind == "uint" else -5
        return rng.integers(low, 6, sizes).astype(dtype.numpy)
    return rng.standard_normal(sizes).astype(dtype.numpy)


def symbols_in(shapes: list[Shape]) -> list[str]:
    return sorted({name for shape in shapes for name in shape.symbols})


def draw_case(
    case: Case, rng: np.random.Generator, element: str, few: dict[str, int] | None = None
) -> tuple[list[np.ndarray], list[Shape]]:
    """Arrays for a case at random sizes, or at the least ones plus `more`, and their shapes with symbols."""
    shapes = [shape_of(text, element) for text in case.inputs]
    numbers = {
        name: case.least.get(name, 0) + (int(rng.integers(LARGEST + 1)) if few is None else few.get(name, 2))
        for name in symbols_in(shapes)
    }
    arrays = [random_array(rng, shape.numbers(numbers), element) for shape in shapes]
    if case.draw is not None:
        arrays = [np.asarray(array) for array in case.draw(rng, arrays)]
        shapes = [shape.with_dtype(dtype_of(array.dtype)) for shape, array in zip(shapes, arrays, strict=True)]
    return arrays, shapes


def compute_expected(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(case.oracle(*(wide(array) if not case.exact else array for array in arrays)))


def first_result(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def check_agreement(case: Case, got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape, f"{case.name}: {got.shape} for {want.shape}"
    if case.exact or got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want.astype(got.dtype) if got.dtype.kind in "biu" else want)
        return
    tolerance = {2: 2e-2 if got.dtype == ml_dtypes.bfloat16 else 3e-3, 4: 1e-5, 8: 1e-10}[got.dtype.itemsize]
    np.testing.assert_allclose(wide(got), want.astype(np.float64), rtol=tolerance, atol=tolerance)


def as_tensor(array: np.ndarray, shape: Shape) -> smelt.Tensor:
    return smelt.tensor(array, shape.names) if shape.names else smelt.tensor(array)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_value_and_shape(case: Case, seed: int):
    rng = np.random.default_rng([seed, len(case.name), sum(map(ord, case.name))])
    for element in case.types:
        for _ in range(3):
            arrays, shapes = draw_case(case, rng, element)
            want = compute_expected(case, arrays)
            with engine("reference"):
                result = first_result(
                    case.op(*(as_tensor(array, shape) for array, shape in zip(arrays, shapes, strict=True)))
                )
                got = result.numpy()
            check_agreement(case, got, want)
            assert result.shape.sizes == got.shape, "the inferred shape is the array's"
            assert result.dtype.numpy == got.dtype


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_traced_for_all_sizes(case: Case, seed: int):
    rng = np.random.default_rng([seed, 7, sum(map(ord, case.name))])
    arrays, shapes = draw_case(case, rng, case.types[0])
    traced = trace(lambda *args: first_result(case.op(*args)), *shapes, facts=case.facts)
    for _ in range(3):
        check_agreement(case, traced(*arrays, engine="reference"), compute_expected(case, arrays))
        arrays, _ = draw_case(case, rng, case.types[0])


@pytest.mark.parametrize("start", [-2, 4, 2**31 - 1])
def test_an_update_outside_of_the_operand_is_refused(start: int):
    cache, part = smelt.zeros("f32[a=5, b=2]"), smelt.ones("f32[a=2, b=2]")
    with pytest.raises(TensorError, match=f"2 elements from {start} on do not always fit"):
        cache.update(part, a=start)
    with engine("reference"), pytest.raises(RunError, match=f"starts at {start}, and at most at 3"):
        cache.update(part, a=smelt.tensor(np.int32(start))).numpy()


def test_every_case_on_the_native_engine(seed: int):
    """Traced over symbols and compiled in one go, then run at several sizes, the least ones together and one by one."""
    rng = np.random.default_rng(seed)
    traces = []
    for case in CASES:
        _, shapes = draw_case(case, rng, case.types[0])
        traces.append(trace(lambda *args, case=case: first_result(case.op(*args)), *shapes, facts=case.facts))
    for case, made in zip(CASES, compile_all([each.program for each in traces]), strict=True):
        assert not isinstance(made, SmeltError), f"{case.name}: {made}"
        names = symbols_in([shape_of(text, case.types[0]) for text in case.inputs])
        small = [dict.fromkeys(names, 0), dict.fromkeys(names, 1), *({name: 0} for name in names)]
        for few in (None, None, None, *small):
            arrays, _ = draw_case(case, rng, case.types[0], few)
            check_agreement(case, made(*arrays)[0], compute_expected(case, arrays))
