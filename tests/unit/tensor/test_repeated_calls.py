# ruff: noqa: F722  # shapes are no forward references
"""Calls that go like one before, which take a short way: structures, donated caches, and what does not fit after all.

NumPy says what comes out; a hand-written model in JAX is the oracle for the example that decodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import smelt
from smelt import Shaped, Tensor
from smelt.buffer import HostBuffer
from smelt.device import pjrt
from smelt.errors import RunError, ShapeError, SizeError
from smelt.tensor.jit.outline import Outline

NEEDS_XLA = pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
ENGINES = ["reference", "native", pytest.param("pjrt", marks=NEEDS_XLA)]


class Made(NamedTuple):
    total: Any
    caches: Any


class Scaled(smelt.Model):
    weight: Shaped[Tensor, "f32[d=4]"]

    def step(self, x: Shaped[Tensor, "f32[d=4]"], caches: Any) -> Made:
        after = [(a + x * self.weight, {"b": c["b"] - x}) for a, c in caches]
        return Made(x + after[0][0], after)


PART = "f32[d=4]"
CACHES = [(PART, {"b": PART}), (PART, {"b": PART})]


def arrays(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [(random.random(4, np.float32), {"b": random.random(4, np.float32)}) for _ in range(2)]


def compile_step(engine: str, donate: tuple[str, ...] = ()) -> Any:
    executable = smelt.compile(Scaled().step, PART, CACHES, engine=engine, donate=donate)
    return executable.prepare({"weight": np.array([1, 2, 3, 4], np.float32)})


def place_caches(executable: Any, caches: Any) -> Any:
    put = executable.platform.put
    return [(put(HostBuffer.of(a)), {"b": put(HostBuffer.of(c["b"]))}) for a, c in caches]


@pytest.mark.parametrize("donate", [(), ("caches",)])
@pytest.mark.parametrize("engine", ENGINES)
def test_results_become_arguments_of_the_next_call(engine: str, donate: tuple[str, ...], seed: int) -> None:
    executable, weight = compile_step(engine, donate), np.array([1, 2, 3, 4], np.float32)
    wanted = arrays(seed)
    caches = place_caches(executable, wanted)
    for i in range(4):
        x = np.full(4, i, np.float32)
        made = executable(x, caches)
        wanted = [(a + x * weight, {"b": c["b"] - x}) for a, c in wanted]
        assert type(made) is Made
        np.testing.assert_allclose(made.total.numpy(), x + wanted[0][0], rtol=1e-6)
        used, caches = caches, made.caches
        if donate:
            with pytest.raises(RunError, match="was donated"):
                used[0][0].numpy()
    for (a, c), (b, d) in zip(caches, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-6)
        np.testing.assert_allclose(c["b"].numpy(), d["b"], rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_does_not_fit_is_named_after_calls_that_did(engine: str, seed: int) -> None:
    executable = compile_step(engine)
    x, caches = np.ones(4, np.float32), arrays(seed)
    first = executable(x, caches).total.numpy()
    first = executable(x, caches).total.numpy()
    wrong = [(np.ones(5, np.float32), caches[0][1]), caches[1]]
    with pytest.raises(ShapeError, match=r"caches\.0\.0 does not fit"):
        executable(x, wrong)
    with pytest.raises(ShapeError, match="x does not fit"):
        executable(np.ones(4, np.float64), caches)
    with pytest.raises(ShapeError, match="another structure"):
        executable(x, caches[:1])
    with pytest.raises(ShapeError, match="another structure"):
        executable(x, [(caches[0][0], {"c": x}), caches[1]])
    with pytest.raises(RunError, match="arguments do not fit"):
        executable(x, caches, x)
    tuples = tuple(list(each) for each in caches)  # which the function could have been given as well
    np.testing.assert_array_equal(executable(x, tuples).total.numpy(), first)


@NEEDS_XLA
def test_a_buffer_may_be_given_twice_unless_it_is_donated(seed: int) -> None:
    executable = compile_step("pjrt", ("caches",))
    caches = place_caches(executable, arrays(seed))
    executable(np.ones(4, np.float32), place_caches(executable, arrays(seed)))
    same = [(caches[0][0], {"b": caches[0][0]}), caches[1]]
    with pytest.raises(RunError, match="donated and given twice"):
        executable(np.ones(4, np.float32), same)
    with pytest.raises(RunError, match="donated and given twice"):
        executable(caches[0][0], caches)

    def two(a: Any, b: Any, state: Any) -> Any:
        return a + b, state + a

    both = smelt.compile(two, PART, PART, PART, engine="pjrt", donate="state")
    x = both.platform.put(HostBuffer.of(np.ones(4, np.float32)))
    for _ in range(2):
        total, _state = both(x, x, both.platform.put(HostBuffer.of(np.ones(4, np.float32))))
        assert total.numpy().tolist() == [2, 2, 2, 2]


@NEEDS_XLA
def test_a_weight_that_is_donated_or_deleted_is_named() -> None:
    executable = smelt.compile(Scaled().step, PART, CACHES, engine="pjrt", donate="caches")
    weight = executable.platform.put(HostBuffer.of(np.ones(4, np.float32)))
    bound: Any = executable.prepare({"weight": weight})
    x = np.ones(4, np.float32)
    caches = place_caches(executable, arrays(0))
    with pytest.raises(RunError, match="donated and given twice"):
        bound(x, [(weight, caches[0][1]), caches[1]])
    bound(x, place_caches(executable, arrays(0)))
    weight.delete()
    with pytest.raises(RunError, match="the buffer was deleted"):
        bound(x, caches)


@NEEDS_XLA
@pytest.mark.parametrize("kind", ["f32", "bf16", "i1", "ui8", "i64", "complex<f32>", "f8E4M3FN"])
@pytest.mark.parametrize("sizes", [(), (0, 2), (3, 2)])
def test_a_copy_made_on_the_device_is_another_buffer(kind: str, sizes: tuple[int, ...], seed: int) -> None:
    shape = smelt.Shape(kind, *sizes)
    array = np.random.default_rng(seed).integers(0, 2, sizes).astype(shape.dtype.numpy)
    client = pjrt.client("cpu")
    first = client.put(array, shape)
    second = client.copy(first)
    first.delete()
    np.testing.assert_array_equal(second.numpy(), array)
    assert second.shape == shape


@pytest.mark.parametrize("engine", ENGINES)
def test_dynamic_dimensions_are_checked_at_every_call(engine: str) -> None:
    def join(pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]

    executable: Any = smelt.compile(join, ("f32[b=B]", "f32[b=B]"), engine=engine)
    for size in (2, 3, 2, 3, 4):
        x = np.arange(size, dtype=np.float32)
        assert executable((x, x)).numpy().tolist() == (x + x).tolist()
    with pytest.raises(SizeError, match="do not fit together"):
        executable((np.ones(2, np.float32), np.ones(3, np.float32)))


def test_structures_with_more_than_tensors_have_no_outline() -> None:
    x = smelt.symbolic(PART)
    assert Outline.of(x) is None
    assert Outline.of((x, 3)) is None
    assert Outline.of([x, Scaled]) is None
    outline = Outline.of(Made(x, [x, (x, x)]))
    assert outline is not None
    assert outline.flatten(Made(1, [2, (3, 4)])) == [1, 2, 3, 4]
    assert outline.flatten((1, [2, (3, 4)])) is None
    assert outline.flatten(Made(1, [2, (3,)])) is None
    assert outline.build([5, 6, 7, 8]) == Made(5, [6, (7, 8)])


@NEEDS_XLA
@pytest.mark.slow
def test_the_example_that_decodes_agrees_with_jax(tmp_path: Any) -> None:
    pytest.importorskip("jax")
    from bench.llama_gpu import Twin
    from examples.llama_gpu import Llama, Sizes, compiled_step, empty_caches, write_weights

    sizes = Sizes(layers=1, d=64, f=96, heads=4, kv_heads=2, v=256, places=8)
    path = tmp_path / "weights.safetensors"
    write_weights(path, sizes)
    where = smelt.platform("cpu", "pjrt")
    weights = smelt.open(path)
    model = smelt.instantiate(Llama, weights, sizes=sizes)
    buffers = weights.to_device(model, where)
    twin = Twin(buffers, sizes, as_filed=False)
    bound = compiled_step(model, sizes, 2, where).prepare(buffers)
    caches, theirs = empty_caches(where, sizes, 2), twin.empty(2)
    for at in range(4):
        tokens = np.array([[at], [100 + at]], np.int32)
        made = bound(tokens, caches, np.int32(at))
        caches = made.caches
        _, logits, theirs, _ = twin.step(twin.weights, tokens, theirs, np.int32(at))
        ours = made.logits.numpy().astype(np.float64).ravel()
        want = np.asarray(logits).astype(np.float64).ravel()
        assert np.linalg.norm(ours - want) < 0.02 * np.linalg.norm(want)  # bf16 keeps three digits
