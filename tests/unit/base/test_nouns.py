"""Element types, shapes, buffers, weights and errors: the nouns of the base."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from smelt.buffer import HostBuffer, check_array, check_shape
from smelt.dim import symbol
from smelt.dtype import DTYPES, Quantized, complex_of, dtype, f32, i8, integer_range
from smelt.errors import FileError, Location, ShapeError, SmeltError
from smelt.shape import Shape
from smelt.weights import MappedFile, Stored, Weights

INTEGERS = [f"{sign}{bits}" for sign in ("i", "ui") for bits in (2, 4, 8, 16, 32, 64)]
SMALL_FLOATS = ["f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E3M4", "f8E4M3", "f8E4M3FN", "f8E4M3FNUZ", "f8E4M3B11FNUZ"]
SMALL_FLOATS += ["f8E5M2", "f8E5M2FNUZ", "f8E8M0FNU"]
SPECIFIED = ["i1", *INTEGERS, *SMALL_FLOATS, "bf16", "f16", "f32", "f64", "complex<f32>", "complex<f64>"]


def test_every_element_type_of_the_specification_is_there() -> None:
    assert set(SPECIFIED) | {"index"} == set(DTYPES)


@pytest.mark.parametrize("name", SPECIFIED)
def test_element_types_map_to_numpy_and_back(name: str) -> None:
    record = dtype(name)
    assert dtype(record.numpy) is record
    assert np.zeros(1, record.numpy).dtype == record.numpy
    assert record.bits <= 8 * record.numpy.itemsize


@pytest.mark.parametrize(("name", "low", "high"), [("i2", -2, 1), ("i8", -128, 127), ("ui4", 0, 15), ("i1", 0, 1)])
def test_integer_ranges(name: str, low: int, high: int) -> None:
    assert integer_range(dtype(name)) == (low, high)


def test_aliases_and_unknown_names() -> None:
    assert dtype("bool") is dtype("i1")
    assert dtype("u16").name == "ui16"
    assert complex_of(f32).part is f32
    for wrong in ("f31", "object", object()):
        with pytest.raises(ShapeError, match="unknown element type"):
            dtype(wrong)  # type: ignore[arg-type]


def test_quantized_types_print_as_mlir_does() -> None:
    plain = Quantized(i8, f32, (0.5,), (0,), None, -128, 127)
    narrow = Quantized(i8, f32, (0.1, 0.5), (-30, 0), 1, -127, 127)
    assert str(plain) == "!quant.uniform<i8:f32, 0.5>"
    assert str(narrow) == "!quant.uniform<i8<-127:127>:f32:1, {0.1:-30, 0.5}>"


def test_shapes_compare_by_value_and_never_change() -> None:
    shape = Shape("f32", "B", 4)
    assert shape == Shape("f32", symbol("B"), 4)
    assert hash(shape) == hash(Shape("f32", "B", 4))
    assert shape != Shape("f64", "B", 4)
    assert shape != Shape("f32", b="B", d=4)
    assert pickle.loads(pickle.dumps(shape)) == shape
    with pytest.raises(AttributeError, match="immutable"):
        shape.sizes = ()
    assert shape.numbers({"B": 3}) == (3, 4)
    assert shape.substitute({"B": 2}) == Shape("f32", 2, 4)
    assert (shape.rank, shape.count, shape.symbols) == (2, 4 * symbol("B"), frozenset({"B"}))


@pytest.mark.parametrize("wrong", [-1, True, "2 +", 1.5])
def test_wrong_sizes_are_refused(wrong: object) -> None:
    with pytest.raises(ShapeError):
        Shape("f32", wrong)  # type: ignore[arg-type]


def test_named_and_unnamed_axes_do_not_mix() -> None:
    with pytest.raises(ShapeError, match="not both"):
        Shape("f32", 3, b=4)


def test_host_buffers_know_what_they_own() -> None:
    array = np.zeros((2, 3), np.float32)
    assert not HostBuffer.of(array).owns
    assert HostBuffer.of(array).numpy() is array
    assert HostBuffer.of([1, 2], "bf16").owns
    assert HostBuffer.of(array, copy=True).owns


def test_arrays_that_do_not_fit_say_why() -> None:
    shape = Shape("f32", "B", 4)
    check_array(np.zeros((7, 4), np.float32), shape, "x")
    for wrong in (np.zeros((7, 5), np.float32), np.zeros((7, 4)), np.zeros(4, np.float32)):
        with pytest.raises(ShapeError) as caught:
            check_array(wrong, shape, "the input 'x'")
        assert caught.value.expected == shape
        assert str(list(wrong.shape))[1:-1] in str(caught.value.got)


def test_buffers_that_do_not_fit_are_refused() -> None:
    """A wrong type alone, a wrong rank alone, a wrong size alone; a symbol matches any size."""
    wanted = Shape.of(f32, (2, symbol("N")))
    for sizes in ((2, 0), (2, 1), (2, 7)):
        check_shape(Shape.of(f32, sizes), wanted, "x")
    for given in (Shape.of(i8, (2, 7)), Shape.of(f32, (2,)), Shape.of(f32, (2, 7, 1)), Shape.of(f32, (3, 7))):
        with pytest.raises(ShapeError, match="x does not fit") as caught:
            check_shape(given, wanted, "x")
        assert (caught.value.expected, caught.value.got) == (wanted, given)


def test_weights_are_lazy_and_suggest_similar_names() -> None:
    loaded: list[str] = []

    def load() -> np.ndarray:
        loaded.append("w")
        return np.ones(3, np.float32)

    weights = Weights({"layer.weight": Stored(Shape("f32", 3), load)}, {"format": "pt"}, "memory")
    assert list(weights) == ["layer.weight"]
    assert weights.shape("layer.weight") == Shape("f32", 3)
    assert weights.nbytes == 12
    assert loaded == []
    assert weights["layer.weight"].numpy().sum() == 3
    assert loaded == ["w"]
    with pytest.raises(FileError, match=r"did you mean layer\.weight"):
        weights["layer.wieght"]


def test_mapped_files_check_bounds_before_they_allocate(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    mapped = MappedFile(path)
    np.testing.assert_array_equal(mapped.array(4, f32, (3,)), [1, 2, 3])
    for offset, sizes in ((4, (4,)), (-4, (1,)), (0, (1 << 60, 1 << 60)), (0, (-1,))):
        with pytest.raises(FileError, match="outside the file"):
            mapped.array(offset, f32, sizes)
    with pytest.raises(FileError, match="cannot read"):
        MappedFile(tmp_path / "missing")
    (tmp_path / "empty").touch()
    assert MappedFile(tmp_path / "empty").array(0, f32, (0, 3)).shape == (0, 3)


def test_errors_have_one_form() -> None:
    error = SmeltError("bad axis", expected="d", got="f", where=Location("m.py", 3, 7, "node"), remedy="rename")
    assert str(error).splitlines() == ["m.py:3:7 (node): bad axis", "  expected d", "  got      f", "  try      rename"]
    assert error.record() == {
        "error": "SmeltError",
        "message": "bad axis",
        "expected": "d",
        "got": "f",
        "where": "m.py:3:7 (node)",
        "remedy": "rename",
    }


@pytest.mark.parametrize("array", [np.zeros(3, np.int8), np.zeros(3, np.uint16), np.zeros(3), np.zeros(3, bool)])
def test_numbers_of_another_type_can_be_cast(array: np.ndarray) -> None:
    with pytest.raises(ShapeError, match="x does not fit") as caught:
        check_array(array, Shape("f32", "N"), "x")
    assert caught.value.remedy == ".astype('float32')"
    with pytest.raises(ShapeError, match="x does not fit") as caught:
        check_array(array.tolist(), Shape("f32", "N"), "x")
    assert caught.value.remedy == "numpy.array(…, 'float32')"


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.zeros((2, 2), np.int8), np.zeros(2, complex)])
def test_what_no_cast_mends_has_no_such_remedy(array: np.ndarray) -> None:
    with pytest.raises(ShapeError, match="x does not fit") as caught:
        check_array(array, Shape("f32", "N"), "x")
    assert caught.value.remedy == "an array such as numpy.zeros((1,), 'float32')"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((3, 4), (1, 3, 4)),
        ((3, 4), (3, 4, 1)),
        ((1, 3, 4), (3, 4)),
        ((3, 4), (4, 3)),
        ((2, 5, 6, 3), (2, 3, 5, 6)),
        ((2, 3, 5, 6), (2, 5, 6, 3)),
        ((2, 3, 5, 6), ("N", "H", "W", 3)),
        ((7,), (3, "N")),
    ],
)
def test_advice_about_a_shape_helps(given: tuple[int, ...], wanted: tuple[int | str, ...]):
    """What the error says is done to the array: then it fits."""
    array, shape = np.zeros(given, np.float32), Shape("f32", *wanted)
    with pytest.raises(ShapeError, match="x does not fit") as caught:
        check_array(array, shape, "x")
    remedy = caught.value.remedy or ""
    assert remedy.startswith("an array such as ") == (given == (7,)), "of the array that was given, if there is a way"
    remedy = remedy.removeprefix("an array such as ")
    assert check_array(eval(remedy, {"array": array, "numpy": np}), shape, "x").ndim == len(wanted)
