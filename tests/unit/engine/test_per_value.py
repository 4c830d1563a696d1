"""Programs per value of compile-time inputs, and programs behind others: what is compiled, kept, evicted, closed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from smelt.bundle.stored import StoredModel
from smelt.dtype import Array
from smelt.engine_api import Closing, KernelUse, Port, Signature
from smelt.errors import CancelledError, MemoryLimitError, RunError, SizeError, UnsupportedError
from smelt.run import per_value
from smelt.run.per_value import DynamicSizes, Fallback, MissingValuesError, PerValue, key_of
from smelt.shape import Shape
from smelt.stop import Cancel, Stop

SIGNATURE = Signature((Port("x", Shape("f32", "N")), Port("k", Shape("i64"))), (Port("y", Shape("f32", "N")),))
X = np.array([1, 2], np.float32)


class Scale(Closing):
    """x · k; x must have `size` elements where that is given."""

    def __init__(self, k: int, size: int | None = None, names: tuple[str, ...] = ("x",)) -> None:
        self.signature = Signature(tuple(each for each in SIGNATURE.inputs if each.name in names), SIGNATURE.outputs)
        self.k, self.size, self.trimmed, self.is_closed = k, size, 0, False
        self.weights: Any = None
        self.kernels = (KernelUse("map", (f"by {k}",), 1),)

    def prepare(self, weights: Any) -> Scale:
        self.weights = weights
        return self

    def __call__(self, *inputs: Array, stop: Stop | None = None) -> tuple[Array, ...]:
        x = inputs[0]
        if self.size is not None and len(x) != self.size:
            raise SizeError("sizes differ", expected=f"N == {self.size}", got=len(x), remedy="another")
        return (x * self.k,)

    def to_stored(self, targets: Any = ()) -> StoredModel:
        return StoredModel("model", self.signature, (), (), static=(), by_size=False)

    def trim(self) -> None:
        self.trimmed += 1

    def close(self) -> None:
        self.is_closed = True


class Build:
    """Programs for values of k; `room`: how many there may be at once; `more`: what is asked for first."""

    def __init__(self, room: int = 100, more: MissingValuesError | None = None) -> None:
        self.room, self.more, self.made, self.asked = room, more, list[Scale](), list[tuple[Any, Any]]()

    def __call__(self, values: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> Any:
        self.asked.append(({name: array.tolist() for name, array in values.items()}, dict(shapes)))
        if self.more is not None and not (self.more.names and "k" in values) and not (self.more.sizes and shapes):
            raise self.more
        if sum(not each.is_closed for each in self.made) >= self.room:
            raise MemoryLimitError("no room")
        self.made.append(Scale(int(values.get("k", np.array(1)))))
        return self.made[-1]


def test_a_value_is_compiled_once(caplog: pytest.LogCaptureFixture) -> None:
    build = Build()
    model = PerValue(SIGNATURE, ("k",), False, build)
    k = np.array(3)
    assert not model.knows((X, k))
    with caplog.at_level(logging.INFO, "smelt"):
        for _ in range(2):
            assert model(X, k)[0].tolist() == [3, 6]
    assert [each.message for each in caplog.records] == ["compiled for new values of compile-time inputs: k=[3]"]
    k[...] = 4  # the caller's own array
    assert model(X, k)[0].tolist() == [4, 8]
    assert [each.k for each in build.made] == [3, 4]
    assert (model.knows((X, np.array(3))), model.knows((X, np.array(5)))) == (True, False)
    assert model.prepare(None) is model  # type: ignore[arg-type]
    model.trim()
    assert [each.trimmed for each in build.made] == [1, 1]
    model.close()
    assert [each.is_closed for each in build.made] == [True, True]
    with pytest.raises(RunError, match="the executable is closed"):
        model(X, k)


@pytest.mark.parametrize("sizes", [True, False])
def test_what_has_to_be_known_is_found_by_calls(sizes: bool) -> None:
    build = Build(more=MissingValuesError(() if sizes else ("k",), sizes))
    model = PerValue(SIGNATURE, (), False, build)
    model(X, np.array(2))
    assert (model.static, model.by_size) == ((), True) if sizes else (("k",), False)
    assert build.asked[0] == ({}, {})
    assert build.asked[1] == (({}, {"x": (2,), "k": ()}) if sizes else ({"k": 2}, {}))
    model(X[:1], np.array(2))
    assert len(build.made) == 1 + sizes


def test_what_can_be_given_no_further_is_raised() -> None:
    def build(values: Any, shapes: Any) -> Any:
        raise MissingValuesError(("k",), False) from UnsupportedError("no such k")

    with pytest.raises(UnsupportedError, match="no such k"):
        PerValue(SIGNATURE, ("k",), False, build)(X, np.array(1))


def test_the_oldest_program_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_value, "LIMIT", 2)
    build = Build()
    model = PerValue(SIGNATURE, ("k",), False, build)
    for k in (1, 2, 1, 3):
        model(X, np.array(k))
    assert {each.k: each.is_closed for each in build.made} == {1: False, 2: True, 3: False}


def test_programs_share_a_limit_of_memory() -> None:
    build = Build(room=2)
    model = PerValue(SIGNATURE, ("k",), False, build)
    for k in (1, 2, 3):
        model(X, np.array(k))
    assert {each.k: each.is_closed for each in build.made} == {1: True, 2: False, 3: False}
    with pytest.raises(MemoryLimitError, match="no room"):
        PerValue(SIGNATURE, ("k",), False, Build(room=0))(X, np.array(1))


def test_mistakes() -> None:
    model = PerValue(SIGNATURE, ("k",), False, Build())
    with pytest.raises(RunError, match="wrong number of inputs") as caught:
        model(X)
    assert (caught.value.expected, caught.value.got) == (["x", "k"], 1)
    with pytest.raises(UnsupportedError, match="no program is compiled yet"):
        model.to_stored()
    token = Cancel()
    token.cancel()
    with pytest.raises(CancelledError):
        model(X, np.array(1), stop=Stop(None, token))


def test_keys_tell_values_types_and_shapes_apart() -> None:
    values = [np.array([1, 2]), np.array([[1, 2]]), np.array([1, 2], np.int32), np.array([1, 3])]
    keys = {key_of({"k": each}, {}) for each in values} | {key_of({"j": values[0]}, {}), key_of({}, {"x": (2,)})}
    assert len(keys) == 6
    known = Scale(7)
    model = PerValue(SIGNATURE, ("k",), False, Build(), [({"k": np.array(7)}, {}, known)])
    assert model(X, np.array(7))[0].tolist() == [7, 14]
    assert model.kernels == known.kernels


def test_sizes_that_break_an_assumption_get_a_program_of_their_own() -> None:
    dynamic, build = Scale(10, size=2, names=("x", "k")), Build(more=MissingValuesError((), True))
    fixed = PerValue(SIGNATURE, ("k",), False, build)
    model = DynamicSizes(dynamic, fixed, lambda targets: ())
    assert model.signature is dynamic.signature
    assert model(X, np.array(5))[0].tolist() == [10, 20]
    assert build.made == []
    assert model(X[:1], np.array(5))[0].tolist() == [5]
    assert model(X[:1], np.array(5))[0].tolist() == [5]
    assert len(build.made) == 1
    assert model.kernels == dynamic.kernels + build.made[0].kernels
    model.trim()
    assert (dynamic.trimmed, build.made[0].trimmed) == (1, 1)
    assert model.prepare("weights") is not model  # type: ignore[arg-type]
    assert dynamic.weights == "weights"
    assert model.to_stored().programs == ()
    model.close()
    assert dynamic.is_closed
    assert build.made[0].is_closed


def test_a_fallback_is_linked_when_it_is_needed() -> None:
    first, other, linked = Scale(2, size=2), Scale(3, size=1), list[int]()

    def link() -> Scale:
        linked.append(1)
        return other

    model = Fallback(first, link, ())
    assert model(X)[0].tolist() == [2, 4]
    assert (linked, model.kernels) == ([], first.kernels)
    for _ in range(2):
        assert model(X[:1])[0].tolist() == [3]
    assert (linked, model.kernels) == ([1], first.kernels + other.kernels)
    with pytest.raises(SizeError) as caught:
        model(X[:0])
    assert (caught.value.expected, caught.value.got, caught.value.remedy) == (
        "N == 2, or sizes that broadcast", 0, "another"
    )  # fmt: skip
    model.trim()
    assert (first.trimmed, other.trimmed) == (1, 1)
    bound = model.prepare("weights")  # type: ignore[arg-type]
    bound(X[:1])
    assert (first.weights, other.weights) == ("weights", "weights")
    assert model.to_stored().programs == ()
    model.close()
    assert (first.is_closed, other.is_closed) == (True, True)
