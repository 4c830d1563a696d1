"""Element types that meet: the table is what it says, never loses a value's kind, and never makes an f64 by itself."""

import numpy as np
import pytest

import smelt
from smelt.dtype import DTYPES, dtype
from smelt.tensor.promotion import PROMOTION

TABLE = """
f32 f32 f32
i1 i1 i1
i1 i8 i8
i1 bf16 bf16
i8 i32 i32
ui8 ui32 ui32
ui8 i16 i16
ui8 i8 None
ui32 i32 None
i64 f32 f32
i64 bf16 bf16
bf16 f32 f32
f16 f64 f64
bf16 f16 None
f8E5M2 f32 None
i32 f8E5M2 None
f32 complex<f32> complex<f32>
f64 complex<f32> None
complex<f32> complex<f64> complex<f64>
"""
NAMES = [name for name in DTYPES if name != "index"]


def promoted_type(a: str, b: str) -> str | None:
    found = PROMOTION.get((dtype(a), dtype(b)))
    return None if found is None else found.name


def test_the_table():
    for line in TABLE.strip().splitlines():
        a, b, result = line.split()
        assert str(promoted_type(a, b)) == result, line


def test_order_does_not_matter_and_nothing_gets_narrower():
    for a in NAMES:
        assert promoted_type(a, a) == a
        for b in NAMES:
            result = promoted_type(a, b)
            assert result == promoted_type(b, a)
            assert result in (a, b, None), "a promotion gives one of the two types"


def test_f64_comes_from_f64_alone():
    made = {(a, b) for a in NAMES for b in NAMES if promoted_type(a, b) in ("f64", "complex<f64>")}
    assert all({"f64", "complex<f64>"} & {a, b} for a, b in made)


@pytest.mark.parametrize("element", ["f32", "bf16", "f16", "i32", "ui8", "i64"])
def test_python_numbers_take_the_tensors_type(element: str):
    x = smelt.tensor([1, 2, 3], dtype=element)
    assert (x + 1).dtype.name == element
    assert (2 * x).dtype.name == element
    assert (x * True).dtype.name == element
    if x.dtype.is_float:
        assert (x * 0.5).dtype.name == element
        assert x.mean().dtype.name == element
        assert x.exp().dtype.name == element


def test_values_are_converted_before_the_op():
    x, y = smelt.tensor([100, 100], dtype="i8"), smelt.tensor([100, 1000], dtype="i32")
    assert (x + y).numpy().tolist() == [200, 1100]
    assert (smelt.tensor([True, False]) * y).numpy().tolist() == [100, 0]
    assert (smelt.tensor([1.5], dtype="bf16") + smelt.tensor([0.25])).numpy().tolist() == [1.75]
    assert smelt.where(smelt.tensor([True, False]), smelt.tensor([1, 2]), smelt.tensor([0.5, 0.5])).tolist() == [1, 0.5]
    assert smelt.concatenate([smelt.tensor([1]), smelt.tensor([0.5])], 0).dtype.name == "f32"


def test_casts_round_toward_zero_and_keep_what_fits():
    x = np.array([-1.75, 0.5, 2.999], np.float32)
    assert smelt.tensor(x).to("i32").numpy().tolist() == [-1, 0, 2]
    with pytest.raises(smelt.TensorError, match="complex numbers do not become"):
        smelt.tensor([1j]).to("f32")
