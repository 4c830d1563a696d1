"""Lazy tensors become arrays: dead parts never run, equal graphs share one program, views share memory."""

import copy
import itertools
import pickle
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import smelt
from smelt import Tensor, custom_call, realize, tensor
from smelt.errors import UnsupportedError
from smelt.ir.core import Func
from smelt.ir.structure import fingerprint
from smelt.tensor import engine, trace
from smelt.tensor.jit.function import Resources
from smelt.tensor.jit.realise import CACHE, graph_key
from smelt.tensor.record import Recorded
from tests.unit.tensor.programs import Draw


@pytest.fixture(autouse=True)
def fresh_cache() -> None:
    """What other tests left would be forgotten to make room, and the count would stay."""
    CACHE.clear()


def test_nothing_runs_before_a_value_is_read():
    calls = []

    def note(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return x

    x = tensor([1.0, 2.0])
    wanted, dead = custom_call(note, "f32[2]", x) + 1.0, custom_call(note, "f32[2]", x * 5.0)
    assert calls == []
    assert wanted.numpy().tolist() == [2, 3]
    assert len(calls) == 1, "the dead part never ran"
    wanted.numpy()
    assert len(calls) == 1, "what was computed is kept"
    assert dead.numpy().tolist() == [5, 10]


def test_what_was_realised_is_an_input_of_what_follows():
    calls = []

    def note(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return x + 1

    x = custom_call(note, "f32[2]", tensor([1.0, 2.0]))
    y, z = x * 2.0, x - 1.0
    assert x.numpy().tolist() == [2, 3]
    assert (y + z).numpy().tolist() == [5, 8]
    assert len(calls) == 1


def test_several_tensors_are_one_program():
    x = tensor([3.0, 4.0])
    a, b = x.sum(), x.prod()
    before = len(CACHE)
    realize(a, b)
    assert len(CACHE) == before + 1
    assert (a.item(), b.item()) == (7, 12)


def test_equal_graphs_share_an_entry():
    def run(data: list[float], scale: float) -> float:
        return float((tensor(data, "s") * scale).tanh().sum("s").item())

    run([1.0, 2.0, 3.0], 1.5)
    before = len(CACHE)
    run([4.0, 5.0, 6.0], 1.5)
    assert len(CACHE) == before, "data is an argument"
    run([4.0, 5.0], 1.5)
    run([4.0, 5.0, 6.0], 2.5)
    assert len(CACHE) == before + 2, "sizes and numbers in the code are not"


def test_keys_agree_with_fingerprints(seed: int):
    """Graphs have equal keys exactly where the IR says that they are equal."""
    programs = []
    for number in range(60):
        rng = np.random.default_rng([seed, number % 40])  # the last ones come twice
        program = Draw(rng).finish(3)
        programs.append(trace(program.tensors, *program.inputs, facts=program.facts).program.main)
    bare = [Func("main", main.body) for main in programs]
    keys, prints = [graph_key(main.body) for main in bare], [fingerprint(main) for main in bare]
    assert len(set(prints)) <= 40
    for i in range(60):
        for j in range(i):
            assert (keys[i] == keys[j]) == (prints[i] == prints[j])


@pytest.mark.slow
def test_a_repeated_graph_is_compiled():
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)

    def run() -> Tensor:
        return (tensor(x, "a b") * 0.75).exp().sum("b")

    want = run().numpy()
    deadline = time.monotonic() + 60
    entry = CACHE.entries()[-1]
    while entry.compiled is None and entry.refused is None and time.monotonic() < deadline:
        run().numpy()
        time.sleep(0.05)
    assert entry.compiled is not None
    np.testing.assert_allclose(run().numpy(), want, rtol=1e-6)


@pytest.mark.slow
def test_a_large_graph_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("smelt.tensor.jit.realise.LARGE", 1)
    x = np.linspace(0, 1, 6, dtype=np.float32)
    got = (tensor(x) * 0.3125).tanh().numpy()
    assert CACHE.entries()[-1].compiled is not None
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64) * 0.3125), rtol=1e-6)


def test_views_share_memory():
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = tensor(data, "a b c")
    base = x.numpy()
    for view in (
        x.transpose("c a b"),
        x.merge("a b", "n"),
        x.slice(b=slice(1, None)),
        x.slice(c=0),
        x.insert("z"),
        x.flip("a"),
    ):
        assert np.shares_memory(view.numpy(), base), view
    assert not np.shares_memory(base, data), "a tensor never changes, whatever happens to the array it came from"
    shared = tensor(data, copy=False)
    assert np.shares_memory(shared.numpy(), data)


def test_results_cannot_be_written_to():
    x = tensor([1.0, 2.0])
    for array in (x.numpy(), (x + 1.0).numpy()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_the_array_it_was_made_from_may_change():
    data = np.ones(3, np.float32)
    x = tensor(data)
    data[:] = 7
    assert x.numpy().tolist() == [1, 1, 1]


def test_dlpack_in_both_directions():
    source = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
    x = smelt.from_dlpack(source, "a b")
    assert (x + 1.0).numpy().tolist() == (source + 1).tolist()
    assert np.shares_memory(x.numpy(), np.asarray(source))
    assert np.from_dlpack(x * 2.0).tolist() == (source * 2).tolist()


def test_data_of_all_kinds():
    assert (str(tensor(1.5).shape), str(tensor(1).shape), str(tensor(True).shape)) == ("f32[]", "i32[]", "i1[]")
    assert str(tensor([[1, 2]]).shape) == "i32[1, 2]"
    assert str(tensor(np.zeros(2)).shape) == "f64[2]"
    assert str(tensor([1, 2], dtype="bf16").shape) == "bf16[2]"
    assert str(tensor(np.zeros((0, 3), np.int8), "a b").shape) == "i8[a=0, b=3]"
    assert tensor(tensor([1.0], "a")).shape.names == ("a",)
    assert np.asarray(tensor([1.0, 2.0])).tolist() == [1, 2]
    for data in (2**40, "text", [[1], [2, 3]]):
        with pytest.raises((smelt.SmeltError, ValueError)):
            tensor(data)


def test_mixing_with_numpy_keeps_types():
    x = tensor([1.0, 2.0])
    assert str((x + np.float32(2)).dtype) == "f32"
    assert str((x * np.array([1, 2], np.int32)).dtype) == "f32"
    assert str((np.array([1.0, 2.0], np.float32) - x).dtype) == "f32"
    assert str((x + 1).dtype) == "f32"


def test_python_in_the_middle_runs_on_the_reference_engine_only():
    def double(x: np.ndarray) -> np.ndarray:
        return 2 * x

    x = tensor([1.0, 2.0], "s")
    y = custom_call(double, "f32[s=2]", x)
    with pytest.raises(UnsupportedError, match="reference engine only"), engine("native"):
        y.numpy()
    assert y.numpy().tolist() == [2, 4]
    a, b = custom_call(lambda x: (x.sum(), x > 1), ("f32[]", "i1[s=2]"), x)
    assert (a.item(), b.numpy().tolist(), b.shape.names) == (3, [False, True], ("s",))


def test_a_long_chain_needs_no_stack():
    x = tensor([1.0])
    for _ in range(5000):
        x = x + 1.0
    with engine("reference"):
        assert x.item() == 5001


def test_a_tensor_is_immutable():
    x = tensor([1.0])
    with pytest.raises(AttributeError, match="immutable"):
        x.shape = x.shape
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    assert isinstance((x + 1.0).value.op, Recorded)


def test_copies_and_pickles():
    x = tensor(np.arange(3), "s", dtype="bf16") + 1
    assert copy.copy(x) is x
    assert copy.deepcopy({"x": x})["x"] is x
    again = pickle.loads(pickle.dumps(x))
    assert (again.shape, again.numpy().tolist()) == (x.shape, [1, 2, 3])


def test_the_package_is_not_loaded_before_it_is_used():
    probe = "import sys, smelt; before = 'smelt.tensor' in sys.modules; smelt.Tensor; assert not before"
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_python_sees_a_tensor():
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(x) == 2
    assert [row.numpy().tolist() for row in x] == [[1, 2], [3, 4]]
    assert bool(tensor(1.0) > 0)
    assert (x.rank, x.axes, x.sizes, x.size(1)) == (2, None, (2, 2), 2)
    assert x.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(smelt.TensorError, match="4 elements, not one"):
        x.item()


class Freed:
    """Something that is closed or deleted: how many times."""

    def __init__(self) -> None:
        self.times = 0

    def close(self) -> None:
        self.times += 1

    delete = close


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_programs_and_buffers_are_freed_once_with_their_last_user(order: tuple[int, ...]) -> None:
    """An executable, one with a bound argument that runs the same programs, and one with weights that runs its own."""
    program, prepared, argument, weight = (Freed() for _ in range(4))
    whole = Resources((SimpleNamespace(compiled=program),))  # type: ignore[arg-type]
    bound = Resources(whole.paths, (argument,), whole.share())
    own = Resources((SimpleNamespace(compiled=prepared),), (weight,), whole.share())  # type: ignore[arg-type]
    users: list[tuple[Resources, list[Any]]] = [(whole, []), (bound, [argument]), (own, [prepared, weight])]
    left = {0, 1, 2}
    for number in order:
        users[number][0].release()
        left.remove(number)
        for each, (_, freed) in enumerate(users):
            assert [one.times for one in freed] == [int(each not in left)] * len(freed)
        assert program.times == int(not left)


def test_clones_share_what_is_freed_with_the_last_of_them() -> None:
    program, buffer = Freed(), Freed()
    held = Resources((SimpleNamespace(compiled=program),), (buffer,))  # type: ignore[arg-type]
    assert held.share() is held
    held.release()
    assert (program.times, buffer.times) == (0, 0)
    held.release()
    assert (program.times, buffer.times) == (1, 1)
