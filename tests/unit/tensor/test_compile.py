# ruff: noqa: F722  # shapes are no forward references
"""`smelt.compile` and the Executable on every engine: structures, binding, calls, donation, callbacks, files, end."""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import smelt
from smelt import Shaped, Tensor
from smelt.activity import QUEUE
from smelt.buffer import HostBuffer
from smelt.device import pjrt
from smelt.dtype import Array
from smelt.errors import DeviceError, FileError, RunError, ShapeError, SizeError, SmeltError, UnsupportedError
from smelt.tensor.jit.compile import _is_weights
from smelt.weights import Weights

ENGINES = [
    "reference",
    "native",
    pytest.param("pjrt", marks=pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")),
]
every_engine = pytest.mark.parametrize("engine", ENGINES)


class MLP(smelt.Model):
    up: Shaped[Tensor, "f32[d=D, f=F]"]
    down: Shaped[Tensor, "f32[f=F, c=C]"]

    def forward(self, x: Shaped[Tensor, "f32[b=B, d=D]"]) -> Shaped[Tensor, "f32[b=B, c=C]"]:
        return x.dot(self.up, "d").relu().dot(self.down, "f")


def arrays(seed: int, d: int = 5, f: int = 7, c: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "up": rng.standard_normal((d, f)).astype(np.float32),
        "down": rng.standard_normal((f, c)).astype(np.float32),
    }


def compute_expected(weights: dict[str, Array], x: Array) -> Array:
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    return np.maximum(x.astype(np.float64) @ wide["up"], 0) @ wide["down"]


def inputs(seed: int, b: int = 2, d: int = 5) -> Array:
    return np.random.default_rng(seed + 100).standard_normal((b, d)).astype(np.float32)


# ---- binding and calling ----


@every_engine
def test_a_method_is_compiled_prepared_and_called(engine: str, seed: int) -> None:
    weights = arrays(seed)
    mlp = smelt.instantiate(MLP, Weights.of(weights))
    executable = smelt.compile(mlp.forward, engine=engine)
    assert list(executable.inputs) == ["up", "down", "x"]
    bound = executable.prepare(Weights.of(weights))
    assert str(bound.inputs["x"]) == "f32[b=B, d=5]", "the weights tell the symbols that they have"
    for b in (1, 4):
        x = inputs(seed, b)
        np.testing.assert_allclose(bound(x).numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(bound(x=x).numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5)


@every_engine
def test_weights_may_be_tensors_buffers_arrays_or_a_mapping(engine: str, seed: int) -> None:
    weights, x = arrays(seed), inputs(seed)
    executable = smelt.compile(MLP.forward, smelt.instantiate(MLP, Weights.of(weights)), engine=engine)
    where = smelt.platform(engine=engine)
    forms: list[Any] = [
        MLP().replace(weights),
        Weights.of(weights).to_device(MLP(), where),
        weights,
        {name: HostBuffer.of(array) for name, array in weights.items()},
    ]
    for form in forms:
        np.testing.assert_allclose(
            executable.prepare(form)(x).numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5
        )
    given_along = executable(forms[0], x)
    np.testing.assert_allclose(given_along.numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5)


@every_engine
def test_prepared_executables_are_independent(engine: str, seed: int) -> None:
    x = inputs(seed)
    one, two = arrays(seed), arrays(seed + 1)
    executable = smelt.compile(MLP().forward, engine=engine)
    first, second = executable.prepare(one), executable.prepare(two)
    np.testing.assert_allclose(first(x).numpy(), compute_expected(one, x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(second(x).numpy(), compute_expected(two, x), rtol=1e-5, atol=1e-5)
    first.close()
    first.close()
    np.testing.assert_allclose(second(x).numpy(), compute_expected(two, x), rtol=1e-5, atol=1e-5)
    with pytest.raises(RunError, match="closed"):
        first(x)
    third = executable.prepare(one)
    executable.close()
    np.testing.assert_allclose(third(x).numpy(), compute_expected(one, x), rtol=1e-5, atol=1e-5)
    with pytest.raises(RunError, match="closed"):
        executable.prepare(one)


@every_engine
def test_a_clone_outlives_the_other(engine: str, seed: int) -> None:
    weights, x = arrays(seed), inputs(seed)
    bound = smelt.compile(MLP().forward, engine=engine).prepare(weights)
    clone = bound.clone()
    bound.close()
    np.testing.assert_allclose(clone(x).numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5)
    clone.close()
    with pytest.raises(RunError, match="closed"):
        clone(x)


def in_use(engine: str) -> int:
    gc.collect()
    if engine == "pjrt":
        return int(smelt.platform(engine=engine).stats()["bytes_in_use"])
    return tracemalloc.get_traced_memory()[0]


@every_engine
def test_closing_gives_the_weights_memory_back(engine: str, seed: int) -> None:
    executable = smelt.compile(MLP().forward, engine=engine)
    executable.prepare(arrays(seed))(inputs(seed)).numpy()  # whatever a first call keeps for good is there now
    tracemalloc.start()
    try:
        before = in_use(engine)
        weights = arrays(seed, 500, 1000, 500)
        size = sum(array.nbytes for array in weights.values())
        bound = executable.prepare(weights)
        del weights
        bound(inputs(seed, 1, 500)).numpy()
        assert in_use(engine) >= before + size
        bound.close()
        assert in_use(engine) < before + size / 10
    finally:
        tracemalloc.stop()


def test_parameters_are_bound_one_after_the_other(seed: int) -> None:
    def shift(model: MLP, table: Tensor, x: Tensor, scale: float) -> Tensor:
        return model.forward(x) * scale + table

    weights, x = arrays(seed), inputs(seed)
    table = np.arange(3, dtype=np.float32)
    mlp = smelt.instantiate(MLP, Weights.of(weights))
    executable = smelt.compile(shift, mlp, "f32[c=3]", "f32[b=B, d=5]", 2.0, engine="reference")
    want = compute_expected(weights, x) * 2 + table
    bound: Any = executable.prepare(mlp.replace(weights)).prepare(table)
    np.testing.assert_allclose(bound(x).numpy(), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bound(x, 2.0).numpy(), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bound.prepare(x)().numpy(), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(RunError, match="part of the program"):
        bound(x, 3.0)
    with pytest.raises(RunError, match="bound already"):
        bound.prepare(x).prepare(2.0).prepare(1)


class Pair(NamedTuple):
    total: Any
    rows: Any


@dataclass(frozen=True)
class State:
    mean: Any
    parts: dict[str, Any]


@every_engine
def test_arguments_and_results_keep_their_structure(engine: str, seed: int) -> None:
    def step(state: State, pair: Pair, more: list[Tensor]) -> dict[str, Any]:
        both = pair.total + pair.rows
        return {"next": (state.mean + both, [more[0] * state.parts["k"], both]), "pair": Pair(both, more[1])}

    row = "f32[n=N]"
    shapes = (State(row, {"k": row}), Pair(row, row), [row, row])
    executable = smelt.compile(step, *shapes, engine=engine)
    a, b, c, d, e, f = np.random.default_rng(seed).standard_normal((6, 3)).astype(np.float32)
    made: Any = executable(State(a, {"k": b}), Pair(c, HostBuffer.of(d)), [e, f])
    assert isinstance(made["pair"], Pair)
    got = [made["next"][0], *made["next"][1], made["pair"].total, made["pair"].rows]
    for mine, other in zip(got, (a + c + d, e * b, c + d, c + d, f), strict=True):
        np.testing.assert_allclose(mine.numpy(), other, rtol=1e-6)
    with pytest.raises(ShapeError, match="another structure"):
        executable(State(a, {"q": b}), Pair(c, d), [e, f])
    with pytest.raises(ShapeError, match="another structure"):
        executable(State(a, {"k": b}), Pair(c, d), [e])


def test_weights_are_those_of_a_model_or_of_the_object_of_a_method() -> None:
    class Layer(smelt.Model):
        w: Tensor

    state = State(smelt.ones("f32[n=2]"), {})
    layer = Layer(w=smelt.ones("f32[n=2]"))
    for example, place, donated, wanted in (
        *((layer, place, (), True) for place in (0, 1)), (layer, 0, ("x",), False),
        (state, 0, (), True), (state, 1, (), False), (object(), 0, (), False),
        (state.mean, 0, (), False), ((state,), 0, (), False), ({"a": state}, 0, (), False),
    ):  # fmt: skip
        assert _is_weights(example, place, "x", donated) is wanted, (example, place)


def test_weights_in_named_tuples_have_paths_by_field(seed: int) -> None:
    a, b, x = np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32)

    class Scaled:
        def __init__(self) -> None:
            self.pair = Pair(smelt.tensor(a, "n"), [smelt.tensor(b, "n")])

        def forward(self, x: Shaped[Tensor, "f32[n=4]"]) -> Tensor:
            total: Tensor = x * self.pair.total + self.pair.rows[0]
            return total

    executable = smelt.compile(Scaled().forward, engine="reference")
    found: Any = executable.prepare({"pair.total": a, "pair.rows.0": b})(x)
    np.testing.assert_allclose(found.numpy(), x * a + b, rtol=1e-6)


@every_engine
def test_wrong_calls_are_named(engine: str, seed: int) -> None:
    weights, x = arrays(seed), inputs(seed)
    executable = smelt.compile(smelt.instantiate(MLP, Weights.of(weights)).forward, engine=engine)
    with pytest.raises(RunError, match="weights are not bound"):
        executable(x)
    bound = executable.prepare(weights)
    with pytest.raises(ShapeError, match="x does not fit") as caught:
        bound(x.astype(np.float64))
    assert "f32[b=B, d=5]" in str(caught.value)
    with pytest.raises(ShapeError, match="x does not fit"):
        bound(np.zeros((2, 6), np.float32))
    with pytest.raises(RunError, match="the arguments do not fit"):
        bound(x, x)
    with pytest.raises(RunError, match="the arguments do not fit"):
        bound(y=x)
    with pytest.raises(ShapeError, match="down does not fit"):
        executable.prepare({**weights, "down": np.zeros((7, 4), np.float32)})
    with pytest.raises(SmeltError, match="down"):
        executable.prepare({"up": weights["up"]})
    open_model = smelt.compile(MLP().forward, engine=engine)
    with pytest.raises(SizeError, match="do not fit together"):
        open_model.prepare({**weights, "down": np.zeros((8, 3), np.float32)})


@every_engine
def test_calls_that_went_well_before_are_checked_all_the_same(engine: str, seed: int) -> None:
    weights, x = arrays(seed), inputs(seed)
    bound = smelt.compile(smelt.instantiate(MLP, Weights.of(weights)).forward, engine=engine).prepare(weights)
    for _ in range(3):
        np.testing.assert_allclose(bound(x).numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match=r"MLP.forward: x does not fit") as caught:
        bound(x.astype(np.float64))
    assert "f32[b=B, d=5]" in str(caught.value)
    with pytest.raises(ShapeError, match="x does not fit"):
        bound(x[:, :4])
    other = inputs(seed + 1, 3)
    np.testing.assert_allclose(bound(other[::-1]).numpy(), compute_expected(weights, other[::-1]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bound(other[::-1]).numpy(), compute_expected(weights, other[::-1]), rtol=1e-5, atol=1e-5)
    one, two = bound(x), bound(x)
    assert not np.shares_memory(one.numpy(), two.numpy())
    bound.close()
    with pytest.raises(RunError, match="closed"):
        bound(x)


@pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
def test_buffers_of_another_device_are_refused(seed: int) -> None:
    placed = smelt.platform(engine="pjrt").put(HostBuffer.of(inputs(seed)))
    bound = smelt.compile(MLP().forward, engine="reference").prepare(arrays(seed))
    with pytest.raises(DeviceError, match="is on another device"):
        bound(placed)


@every_engine
def test_tied_weights_are_one(engine: str, seed: int) -> None:
    class Tied(smelt.Model):
        def __init__(self) -> None:
            self.table = smelt.symbolic("f32[v=4, d=3]")
            self.head = self.table

        def forward(self, x: Shaped[Tensor, "f32[b=B, d=3]"]) -> Tensor:
            return x.dot(self.table, "d").dot(self.head, "v")

    tied = Tied()
    executable = smelt.compile(tied.forward, engine=engine)
    assert list(executable.inputs) == ["table", "x"]
    table, x = inputs(seed, 4, 3), inputs(seed, 2, 3)
    np.testing.assert_allclose(executable.prepare({"table": table})(x).numpy(), x @ table.T @ table, rtol=1e-4)
    other = Tied()
    other.table = table  # type: ignore[assignment]
    other.head = table.copy()  # type: ignore[assignment]
    with pytest.raises(ShapeError, match="tied"):
        executable.prepare(other)


@every_engine
def test_branches_on_sizes_and_facts(engine: str) -> None:
    def halves(x: Shaped[Tensor, "f32[n=N]"]) -> Tensor:
        return x.sum("n") if x.size("n") <= 2 else x.max("n")

    executable = smelt.compile(halves, engine=engine)
    for values in ([1, 5], [1, 5, 2]):
        want = sum(values) if len(values) <= 2 else max(values)
        assert executable(np.array(values, np.float32)).numpy() == want
    with pytest.raises(UnsupportedError, match="several programs"):
        executable.serialize()

    def cut(x: Shaped[Tensor, "f32[n=N]"], y: Shaped[Tensor, "f32[m=M]"]) -> Tensor:
        return x[: y.size("m")]

    written = smelt.compile(cut, facts=["M <= N"], engine=engine)
    assert written(np.arange(4, dtype=np.float32), np.zeros(2, np.float32)).numpy().tolist() == [0, 1]
    with pytest.raises(SizeError, match="M <= N"):
        written(np.arange(2, dtype=np.float32), np.zeros(3, np.float32))


def test_encode_and_decode_speak_the_users_types(seed: int) -> None:
    @dataclass
    class Question:
        words: list[float]

    @dataclass
    class Answer:
        numbers: list[float]

    executable = smelt.compile(
        MLP().forward,
        engine="reference",
        encode=lambda question: np.array([question.words], np.float32),
        decode=lambda result: Answer(result.numpy()[0].tolist()),
    )
    weights = arrays(seed)
    bound: Any = executable.prepare(weights)
    answer = bound(Question([1, 2, 3, 4, 5]))
    assert isinstance(answer, Answer)
    np.testing.assert_allclose(answer.numbers, compute_expected(weights, np.array([[1, 2, 3, 4, 5]]))[0], rtol=1e-5)


# ---- donation ----


def accumulate(state: Shaped[Tensor, "f32[n=N]"], x: Shaped[Tensor, "f32[n=N]"]) -> tuple[Tensor, Tensor]:
    total = state + x
    return total, total * 2.0


@every_engine
def test_a_donated_buffer_is_used_up(engine: str) -> None:
    executable = smelt.compile(accumulate, donate="state", engine=engine)
    x = np.arange(4, dtype=np.float32)
    state: Any = smelt.platform(engine=engine).put(HostBuffer.of(np.zeros(4, np.float32), copy=True))
    first = state
    for _ in range(3):
        state, double = executable(state, x)
    assert state.numpy().tolist() == [0, 3, 6, 9]
    assert double.numpy().tolist() == [0, 6, 12, 18]
    with pytest.raises(RunError, match="was donated as the input 'state'"):
        first.numpy()
    with pytest.raises(RunError, match="was donated as the input 'state'"):
        executable(first, x)
    kept, _ = executable(state, x, keep=True)
    assert state.numpy().tolist() == [0, 3, 6, 9]
    assert kept.numpy().tolist() == [0, 4, 8, 12]
    with pytest.raises(RunError, match="given twice"):
        executable(state, state)


@every_engine
def test_arrays_of_the_caller_are_never_written(engine: str) -> None:
    executable = smelt.compile(accumulate, donate=["state"], engine=engine)
    state, x = np.ones(4, np.float32), np.ones(4, np.float32)
    view = HostBuffer.of(state)
    assert executable(state, x)[0].numpy().tolist() == [2] * 4
    assert executable(view, x)[0].numpy().tolist() == [2] * 4
    assert state.tolist() == [1] * 4


def test_what_cannot_be_donated_is_named() -> None:
    with pytest.raises(RunError, match="can be donated") as caught:
        smelt.compile(accumulate, donate="states", engine="reference")
    assert "state, x" in str(caught.value)


# ---- Python in the middle ----


def sort_rows(rows: Array, data: float = 0.0) -> Array:
    return np.sort(rows, axis=1) + np.float32(data)


def with_callback(x: Shaped[Tensor, "f32[b=B, d=D]"], w: Shaped[Tensor, "f32[d=D]"]) -> Tensor:
    ordered = smelt.custom_call(sort_rows, "f32[b=B, d=D]", x * w)
    return ordered * 2.0 + x


@every_engine
def test_programs_call_python_and_data_is_bound(engine: str, seed: int) -> None:
    x, w = inputs(seed, 3, 4), inputs(seed + 1, 1, 4)[0]
    executable = smelt.compile(with_callback, engine=engine)
    want = np.sort(x * w, axis=1) * 2 + x
    np.testing.assert_allclose(executable(x, w).numpy(), want, rtol=1e-5, atol=1e-6)
    bound = executable.bind(sort_rows, 10.0)
    np.testing.assert_allclose(bound(x, w).numpy(), want + 20, rtol=1e-5)
    np.testing.assert_allclose(executable(x, w).numpy(), want, rtol=1e-5, atol=1e-6)
    bound.close()
    executable.close()
    with pytest.raises(RunError, match="closed"):
        executable(x, w)


@every_engine
def test_weights_go_to_python_too(engine: str, seed: int) -> None:
    class Sorted(smelt.Model):
        by: Shaped[Tensor, "f32[b=2, d=3]"]
        scale: Shaped[Tensor, "f32[d=3]"]

        def forward(self, x: Shaped[Tensor, "f32[b=2, d=3]"]) -> Tensor:
            return smelt.custom_call(sort_rows, "f32[b=2, d=3]", self.by) + x * self.scale

    by, scale, x = inputs(seed, 2, 3), inputs(seed + 1, 1, 3)[0], inputs(seed + 2, 2, 3)
    executable = smelt.compile(Sorted().forward, engine=engine).prepare({"by": by, "scale": scale})
    np.testing.assert_allclose(executable(x).numpy(), np.sort(by, 1) + x * scale, rtol=1e-5, atol=1e-6)


def in_a_loop(x: Shaped[Tensor, "f32[b=2, d=3]"]) -> Tensor:
    return smelt.fori_loop(2, lambda i, y: smelt.custom_call(sort_rows, "f32[b=2, d=3]", -y), x)


def test_python_inside_a_loop_runs_on_the_reference_engine(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnsupportedError, match="loop or branch"):
        smelt.compile(in_a_loop, engine="native")
    with caplog.at_level(logging.WARNING, "smelt"):
        executable = smelt.compile(in_a_loop)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "reference engine, which is slow" in said
    assert "\n" not in said
    x = np.array([[3, 1, 2], [9, 7, 8]], np.float32)
    assert executable(x).numpy().tolist() == [[1, 2, 3], [7, 8, 9]]


# ---- calls that take long ----


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_long_calls_return_at_once(engine: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.tensor.jit.executable.LONG", 0)
    weights, x = arrays(seed), inputs(seed)
    bound = smelt.compile(MLP().forward, engine=engine).prepare(weights)
    want = compute_expected(weights, x)
    running = [bound(x) for _ in range(5)]
    x[:] = 0  # the calls have their own copy
    for result in running:
        assert str(result.shape) == "f32[2, 3]"
        np.testing.assert_allclose(result.wait().numpy(), want, rtol=1e-5, atol=1e-5)
    assert QUEUE.activity.sample()[0] == 0


def test_an_asynchronous_failure_is_raised_when_a_result_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rows: Array) -> Array:
        raise RunError("the function gave up")

    monkeypatch.setattr("smelt.tensor.jit.executable.LONG", 0)
    executable = smelt.compile(lambda x: smelt.custom_call(fail, "f32[n=N]", x), "f32[n=N]", engine="reference")
    result = executable(np.zeros(3, np.float32))
    with pytest.raises(RunError, match="gave up"):
        result.wait()
    with pytest.raises(RunError, match="gave up"):
        result.numpy()


@every_engine
def test_results_can_be_awaited(engine: str, seed: int) -> None:
    weights, x = arrays(seed), inputs(seed)
    bound = smelt.compile(MLP().forward, engine=engine).prepare(weights)

    async def main() -> Any:
        return await asyncio.gather(*(_value(bound(x)) for _ in range(3)))

    for result in asyncio.run(main()):
        np.testing.assert_allclose(result.numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5)


async def _value(buffer: Any) -> Any:
    return await buffer


# ---- weights ----


@every_engine
def test_compiling_while_loading(engine: str, seed: int, tmp_path: Path) -> None:
    weights, x = arrays(seed), inputs(seed)
    path = tmp_path / "mlp.safetensors"
    from safetensors.numpy import save_file

    save_file(weights, path)
    opened = smelt.open(path)
    mlp = smelt.instantiate(MLP, opened)
    told: list[tuple[int, int]] = []
    executable, buffers = smelt.compile_and_load(
        mlp.forward, opened, engine=engine, progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (opened.nbytes, opened.nbytes)
    assert isinstance(buffers, MLP)
    np.testing.assert_array_equal(buffers.up.numpy(), weights["up"])
    np.testing.assert_allclose(
        executable.prepare(buffers)(x).numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5
    )
    again, more = asyncio.run(smelt.compile_and_load_async(mlp.forward, opened, engine=engine))
    np.testing.assert_allclose(again.prepare(more)(x).numpy(), compute_expected(weights, x), rtol=1e-5, atol=1e-5)
    short = Weights.of({"up": weights["up"]})
    with pytest.raises(FileError, match="down"):
        smelt.compile_and_load(mlp.forward, short, engine=engine)
    with pytest.raises(UnsupportedError, match="method of a model"):
        smelt.compile_and_load(accumulate, opened)


def test_weights_of_another_shape_are_not_loaded(seed: int) -> None:
    mlp = smelt.instantiate(MLP, Weights.of(arrays(seed)))
    with pytest.raises(ShapeError, match="does not fit the model"):
        Weights.of(arrays(seed, 6)).to_device(mlp, smelt.platform(engine="reference"))


# ---- files ----


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_serialised_executables_are_restored(engine: str, seed: int, tmp_path: Path) -> None:
    weights, x = arrays(seed), inputs(seed)
    executable = smelt.compile(smelt.instantiate(MLP, Weights.of(weights)).forward, "f32[b=2, d=5]", engine=engine)
    want = executable.prepare(weights)(x).numpy()
    back = smelt.deserialize(executable.serialize())
    assert [port.name for port in back.signature.weights] == ["up", "down"]
    np.testing.assert_array_equal(np.asarray(back.prepare(Weights.of(weights))(x)[0]), want)
    path = tmp_path / "mlp.smelt"
    executable.save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["mlp.smelt"]
    loaded: Any = smelt.load(path)
    if engine == "pjrt":
        np.testing.assert_array_equal(np.asarray(loaded.prepare(Weights.of(weights))(x)[0]), want)
    else:
        bound = executable.prepare(weights)
        bound.save(path)
        model = smelt.load(path)
        np.testing.assert_array_equal(model(x=x)["result"], want)


@pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
def test_another_version_is_refused(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = smelt.compile(accumulate, "f32[n=3]", "f32[n=3]", engine="pjrt").serialize()
    monkeypatch.setattr(pjrt.Client, "version", "jaxlib 99")
    with pytest.raises(DeviceError, match="another version"):
        smelt.deserialize(data)


def test_the_reference_engine_saves_nothing(tmp_path: Path) -> None:
    executable = smelt.compile(accumulate, engine="reference")
    with pytest.raises(UnsupportedError, match="cannot be saved"):
        executable.save(tmp_path / "x.smelt")
    assert not list(tmp_path.iterdir())


# ---- costs ----


@every_engine
def test_memory_and_cost_are_counted(engine: str, seed: int) -> None:
    bound = smelt.compile(
        smelt.instantiate(MLP, Weights.of(arrays(seed))).forward, "f32[b=2, d=5]", engine=engine
    ).prepare(arrays(seed))
    bound(inputs(seed))
    memory, cost = bound.memory(), bound.cost()
    assert memory.outputs == 2 * 3 * 4
    assert memory.arguments >= 2 * 5 * 4
    assert memory.aliased == 0
    products = 2 * 2 * (5 * 7 + 7 * 3)
    assert products <= cost.flops <= products + 2 * 7 * 4


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(UnsupportedError, match="unknown engine"):
        smelt.compile(accumulate, engine="nativ")


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_a_look_up_in_an_empty_table_gives_zeros(engine: str) -> None:
    """`take` is defined for every size: an index is clamped, and a table without rows gives zeros."""

    def embed(
        table: Shaped[Tensor, "f32[v=V, d=D]"], ids: Shaped[Tensor, "i32[t=T]"], last: Shaped[Tensor, "i32[t=T]"]
    ) -> Tensor:
        return table.take(ids, "v") + table.sum("d").take(last, "v")

    compiled = smelt.compile(embed, engine=engine)
    ids, last = np.array([1, 0, 5], np.int32), np.array([0, -3, 2], np.int32)
    table = np.arange(3 * 20, dtype=np.float32).reshape(3, 20)
    expected = table[ids.clip(0, 2)] + table.sum(1)[last.clip(0, 2)][:, None]
    np.testing.assert_array_equal(compiled(table, ids, last), expected)
    np.testing.assert_array_equal(compiled(table[:0], ids, last), np.zeros((3, 20), np.float32))
    assert np.asarray(compiled(table[:0], ids[:0], last[:0])).shape == (0, 20)
