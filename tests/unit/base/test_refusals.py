"""What sizes, shapes, element types, structures and borrowed arrays refuse: message, what was expected, what came."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import TensorError
from smelt.device.dlpack import export_array, import_array
from smelt.dtype import DTYPES, dtype, f32, f64
from smelt.engine.pjrt_buckets import check_buckets
from smelt.errors import RunError, ShapeError, UnsupportedError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.ops.shape import bitcast
from smelt.ir.text.types import split_formulas
from smelt.shape import Shape
from smelt.size import parse_size, symbol
from smelt.structure import zip_leaves


@pytest.mark.parametrize("given", [-1, 1.5, None, True, [2]])
def test_a_shape_of_something_else(given: Any) -> None:
    with pytest.raises(ShapeError, match="not a size") as caught:
        Shape("f32", given)
    assert caught.value.got == repr(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N M", "a size should end before 'M'"),
        ("max(N, 2", "expected ')' in a size, got ''"),
        ("max(N)", "expected ',' in a size, got ')'"),
        ("(N", "expected ')' in a size, got ''"),
        ("N +", ""),
        ("", ""),
        ("9" * 40, ""),
        ("N" * 100_000, "the text of a size is too long"),
    ],
)
def test_texts_that_are_no_size(text: str, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        parse_size(text)
    assert caught.value.message.startswith(message)
    assert caught.value.expected == "names, numbers, + - * // % ( ) max(,) min(,)"


def test_values_do_not_change() -> None:
    for value, message in (
        (f32, "a DType is immutable"),
        (Shape("f32", 2), "a Shape is immutable"),
        (symbol("N"), "a size is immutable"),
        (smelt.tensor([1.0]), "a Tensor is immutable"),
    ):
        with pytest.raises(AttributeError, match=message):
            value.name = "other"
    with pytest.raises(AttributeError, match="a DType has no 'colour'"):
        f32.colour  # type: ignore[attr-defined]  # noqa: B018
    for each in DTYPES.values():
        assert pickle.loads(pickle.dumps(each)) is each
        assert copy.deepcopy(each) is each
        assert dtype(each.name) is each


@pytest.mark.parametrize(
    ("pattern", "given", "message", "expected", "got"),
    [
        ((1, 2), (1,), "x has another structure", None, None),
        ((1, 2), (1, 2, 3), "x has another structure", "2 items", "3 items"),
        ({"a": 1}, {"a": 1, "b": 2}, "x has unexpected entries", "a", ["b"]),
        ({"a": 1, "b": 2}, {"a": 1}, "x has another structure", None, None),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "x.a has another structure", "2 items", "3 items"),
    ],
)
def test_other_structures(pattern: Any, given: Any, message: str, expected: str | None, got: Any) -> None:
    def is_leaf(value: Any) -> bool:
        return isinstance(value, int)

    assert [(a, b) for _, a, b in zip_leaves(pattern, pattern, is_leaf, "x")]
    with pytest.raises(ShapeError) as caught:
        list(zip_leaves(pattern, given, is_leaf, "x"))
    assert caught.value.message == message
    if expected is not None:
        assert (caught.value.expected, caught.value.got) == (expected, got)


def test_arrays_by_dlpack() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    capsule = array.__dlpack__()
    found = import_array(capsule, "x")
    assert (found.address, found.sizes, found.element) == (array.ctypes.data, (2, 3), f32)
    with pytest.raises(RunError, match="x: the DLPack capsule was used already"):
        import_array(capsule, "x")
    with pytest.raises(RunError, match="x is not contiguous"):
        import_array(array.T.__dlpack__(), "x")
    assert import_array(array[:, :0].__dlpack__(), "x").sizes == (2, 0)  # of no element any order is right
    assert import_array(array[1:].__dlpack__(), "x").address == array.ctypes.data + 12
    kinds: dict[str, Any] = {"i8": np.int8, "ui16": np.uint16, "f64": np.float64, "complex<f32>": np.complex64}
    for name, kind in (kinds | {"i1": np.bool_}).items():
        assert import_array(np.zeros(3, kind).__dlpack__(), "x").element.name == name
    for each in (f32, dtype("bf16"), dtype("i1"), dtype("complex<f64>"), dtype("ui16")):
        again = import_array(export_array(4096, (2, 3), each, 5, array), "x")
        assert (again.address, again.sizes, again.element) == (4096, (2, 3), each)
    with pytest.raises(RunError, match="DLPack has no type for"):
        export_array(4096, (), _Strange(), 0, array)  # type: ignore[arg-type]


class _Strange:
    """An element type of no kind that DLPack has."""

    name = kind = "strange"


def test_bits_that_make_up_no_element() -> None:
    """`bitcast_convert` where only a call knows the last size."""
    with pytest.raises(RunError, match="the last dimension does not make up one element") as caught:
        bitcast(np.zeros((2, 3), np.uint8), dtype("ui8"), f32)
    assert caught.value.got == [2, 3]
    assert bitcast(np.zeros((2, 4), np.uint8), dtype("ui8"), f32).shape == (2,)
    assert bitcast(np.zeros((2, 16), dtype("i4").numpy), dtype("i4"), f64).shape == (2,)


def test_formulas_are_split_at_outer_commas() -> None:
    assert split_formulas("B, max(S, 2)") == ["B", " max(S, 2)"]
    assert split_formulas('"a,b", c') == ['"a,b"', " c"]
    assert split_formulas(r'"a\",b", (1, (2, 3)), "d,e"') == [r'"a\",b"', " (1, (2, 3))", ' "d,e"']
    assert split_formulas("") == [""]


def test_buckets() -> None:
    f = FuncBuilder("main", [Shape("f32", "N", 3)])
    program = Program.of(f.func(f.negate(*f.args)))
    assert check_buckets(program, {"N": [8, 2, 4]}) == {"N": (2, 4, 8)}
    wrong: Any
    for wrong in ({"M": [1]}, {"N": []}, {"N": [4, 0]}):
        with pytest.raises(RunError, match="invalid buckets") as caught:
            check_buckets(program, wrong)
        assert caught.value.expected == "sizes for one of N"
    f = FuncBuilder("main", [Shape("f32", "N")])
    with f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.multiply(*r.args))
    whole = Program.of(f.func(f.reduce(*f.args, f.constant(2.0, "f32"), dimensions=(0,), regions=[r.body])))
    with pytest.raises(UnsupportedError, match="padding along N would change results") as refused:
        check_buckets(whole, {"N": [4]})
    assert refused.value.remedy == "leave N out of the buckets"


def test_losses_of_other_ranks() -> None:
    from smelt.train.ctc import ctc
    from smelt.train.losses import contrastive

    three, two = smelt.tensor(np.zeros((2, 3, 4), np.float32)), smelt.tensor(np.zeros((2, 3), np.int32))
    for logits, labels in ((two, two), (three, three), (three, two.to("f32"))):
        with pytest.raises(TensorError, match=r"ctc: logits \[batch, time, class\]"):
            ctc(logits, labels, two, two)
    with pytest.raises(TensorError, match="contrastive: vectors in one batch"):
        contrastive(three, three, 2)


def test_the_package_lists_its_public_names() -> None:
    assert dir(smelt) == sorted(smelt.__all__)
