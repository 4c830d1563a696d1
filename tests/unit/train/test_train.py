"""Optimisers against PyTorch's formulas, losses against JAX's, the compiled step, batches, and checkpoints."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smelt
from smelt import Tensor, train
from smelt.engine.native import NativeEngine
from smelt.read import safetensors

Array = np.ndarray
START = np.array([[0.5, -1.0], [2.0, 0.1]])
RNG = np.random.default_rng(3)
GRADIENTS = [RNG.normal(size=(2, 2)) for _ in range(4)]


def run_optimiser(optimiser: train.Optimiser) -> Array:
    """Parameters after four steps with given gradients, in f64."""
    parameters = {"w": smelt.tensor(START, "a b")}
    state = optimiser.init(parameters)
    for g in GRADIENTS:
        parameters, state = optimiser.update({"w": smelt.tensor(g, "a b")}, state, parameters)
    assert state["step"].item() == len(GRADIENTS)
    assert parameters["w"].axes == ("a", "b")
    return parameters["w"].numpy()


def by_hand(step: Callable[[Array, Array, dict[str, Any], int], Array]) -> Array:
    w, memory = START.copy(), {"m": np.zeros((2, 2)), "v": np.zeros((2, 2))}
    for count, g in enumerate(GRADIENTS, 1):
        w = step(w, g, memory, count)
    return w


def momentum(nesterov: bool) -> Callable[..., Array]:
    def step(w: Array, g: Array, memory: dict[str, Any], count: int) -> Array:
        g = g + 0.01 * w
        memory["m"] = 0.9 * memory["m"] + g
        return w - 0.1 * (g + 0.9 * memory["m"] if nesterov else memory["m"])

    return step


def adam(decay: float) -> Callable[..., Array]:
    def step(w: Array, g: Array, memory: dict[str, Any], count: int) -> Array:
        memory["m"] = 0.9 * memory["m"] + 0.1 * g
        memory["v"] = 0.999 * memory["v"] + 0.001 * g * g
        mean, square = memory["m"] / (1 - 0.9**count), memory["v"] / (1 - 0.999**count)
        return w * (1 - 0.1 * decay) - 0.1 * mean / (np.sqrt(square) + 1e-8)

    return step


def lion(w: Array, g: Array, memory: dict[str, Any], count: int) -> Array:
    direction = np.sign(0.9 * memory["m"] + 0.1 * g)
    memory["m"] = 0.99 * memory["m"] + 0.01 * g
    return w - 0.1 * (direction + 0.02 * w)


def rmsprop(w: Array, g: Array, memory: dict[str, Any], count: int) -> Array:
    memory["v"] = 0.99 * memory["v"] + 0.01 * g * g
    memory["m"] = 0.5 * memory["m"] + g / (np.sqrt(memory["v"]) + 1e-8)
    return w - 0.1 * memory["m"]


OPTIMISERS = {
    "sgd": (train.sgd(0.1), lambda w, g, memory, count: w - 0.1 * g),
    "momentum": (train.sgd(0.1, momentum=0.9, weight_decay=0.01), momentum(False)),
    "nesterov": (train.sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.01), momentum(True)),
    "adam": (train.adam(0.1), adam(0.0)),
    "adamw": (train.adamw(0.1, weight_decay=0.05), adam(0.05)),
    "lion": (train.lion(0.1, weight_decay=0.02), lion),
    "rmsprop": (train.rmsprop(0.1, momentum=0.5), rmsprop),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_follows_its_formula(name: str):
    optimiser, step = OPTIMISERS[name]
    np.testing.assert_allclose(run_optimiser(optimiser), by_hand(step), rtol=3e-6)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam", "adamw", "rmsprop"])
def test_an_optimiser_agrees_with_pytorch(name: str):
    torch = pytest.importorskip("torch")
    w = torch.tensor(START, requires_grad=True)
    kinds = {
        "momentum": lambda: torch.optim.SGD([w], 0.1, momentum=0.9, weight_decay=0.01),
        "nesterov": lambda: torch.optim.SGD([w], 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        "adam": lambda: torch.optim.Adam([w], 0.1),
        "adamw": lambda: torch.optim.AdamW([w], 0.1, weight_decay=0.05),
        "rmsprop": lambda: torch.optim.RMSprop([w], 0.1, momentum=0.5),
    }
    theirs = kinds[name]()
    for g in GRADIENTS:
        w.grad = torch.tensor(g)
        theirs.step()
    np.testing.assert_allclose(run_optimiser(OPTIMISERS[name][0]), w.detach().numpy(), rtol=3e-6)


def test_schedules_and_clipping():
    rate = train.cosine(0.4, 110, warmup=10, final=0.1)
    found = [float(rate(smelt.tensor(np.float32(step))).item()) for step in (0, 5, 10, 60, 110, 200)]
    np.testing.assert_allclose(found, [0, 0.2, 0.4, 0.25, 0.1, 0.1], rtol=1e-5, atol=1e-6)
    clipped = train.clip(train.sgd(1.0), 0.5)
    state = clipped.init({"w": smelt.tensor([3.0, 4.0])})
    moved, _ = clipped.update({"w": smelt.tensor([3.0, 4.0])}, state, {"w": smelt.tensor([0.0, 0.0])})
    np.testing.assert_allclose(moved["w"].numpy(), [-0.3, -0.4], rtol=1e-5)
    with pytest.raises(smelt.SmeltError, match="beta1 is out of range"):
        train.adam(0.1, beta1=2.0)


def test_losses_agree_with_jax():
    logits, labels = RNG.normal(size=(5, 4)).astype(np.float32), np.array([0, 3, 1, 1, 2])
    x, y = smelt.tensor(logits, "b c"), smelt.tensor(labels, "b")
    weights = np.array([1, 0, 1, 1, 0], np.float32)
    each = -np.asarray(jax.nn.log_softmax(logits))[np.arange(5), labels]
    np.testing.assert_allclose(train.cross_entropy(x, y, "c").item(), each.mean(), rtol=1e-6)
    weighted = train.cross_entropy(x, y, "c", smelt.tensor(weights, "b")).item()
    np.testing.assert_allclose(weighted, (each * weights).sum() / 3, rtol=1e-6)
    targets = RNG.uniform(0, 1, (5, 4)).astype(np.float32)
    t = smelt.tensor(targets, "b c")
    np.testing.assert_allclose(train.mse(x, t).item(), np.mean((logits - targets) ** 2), rtol=1e-6)
    masked = train.mse(x, t, smelt.tensor(weights, "b")).item()
    np.testing.assert_allclose(masked, np.mean((logits - targets)[weights > 0] ** 2), rtol=1e-6)
    binary = -(targets * jax.nn.log_sigmoid(logits) + (1 - targets) * jax.nn.log_sigmoid(-logits)).mean()
    np.testing.assert_allclose(train.binary_cross_entropy(x, t).item(), binary, rtol=1e-6)
    error = jnp.abs(logits - targets)
    wanted = jnp.where(error <= 0.7, 0.5 * error**2, 0.7 * (error - 0.35)).mean()
    np.testing.assert_allclose(train.huber(x, t, 0.7).item(), wanted, rtol=1e-6)
    with pytest.raises(smelt.SmeltError, match="labels are integers"):
        train.cross_entropy(x, t, "c")


def test_batches_cover_every_row_once_and_fill_up_with_rows_that_do_not_count():
    rows = np.arange(10)
    made = list(train.batches([rows, rows * 2.0], 4, seed=5, epoch=2))
    assert [len(batch[0]) for batch in made] == [4, 4, 4]
    counted = np.concatenate([batch[0][batch[2] > 0] for batch in made])
    assert sorted(counted.tolist()) == rows.tolist()
    assert all((batch[1] == 2 * batch[0]).all() for batch in made)
    again = list(train.batches([rows, rows * 2.0], 4, seed=5, epoch=2, start=2))
    assert again[0][0].tolist() == made[2][0].tolist()
    assert made[0][0].tolist() != next(train.batches([rows], 4, seed=5, epoch=3))[0].tolist()
    with pytest.raises(smelt.SmeltError, match="arrays of one length"):
        next(train.batches([rows, rows[1:]], 4, seed=1))


IMAGES = RNG.normal(size=(22, 6)).astype(np.float32)
LABELS = np.asarray(IMAGES.sum(1) > 0, np.int32)


def network() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    up, down = (np.asarray(rng.normal(size=sizes), np.float32) for sizes in ((6, 8), (8, 2)))
    return {"up": smelt.tensor(up, "d f"), "more": [smelt.tensor(down, "f c")]}


def loss(p: dict[str, Any], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    return train.cross_entropy(x.dot(p["up"], "d").tanh().dot(p["more"][0], "f"), y, "c", weights)


def trainer(engine: str = "native", **options: Any) -> train.Trainer:
    shapes = "f32[b=8, d=6]", "i32[b=8]", "f32[b=8]"
    return train.Trainer(loss, network(), train.adam(0.05), *shapes, engine=engine, **options)


def arrays_of(made: train.Trainer) -> list[bytes]:
    return [made.parameters["up"].numpy().tobytes(), made.parameters["more"][0].numpy().tobytes()]


def test_a_compiled_step_is_the_step_in_the_open():
    """And what fills up a batch counts for nothing, whatever it holds."""
    made = trainer("reference")
    batch = next(train.batches([IMAGES, LABELS], 8, seed=1))
    p = network()
    flat = {"up": p["up"], "more.0": p["more"][0]}
    optimiser = train.adam(0.05)
    value, slopes = smelt.value_and_grad(loss)(
        p, smelt.tensor(batch[0], "b d"), smelt.tensor(batch[1], "b"), smelt.tensor(batch[2], "b")
    )
    moved, _ = optimiser.update({"up": slopes["up"], "more.0": slopes["more"][0]}, optimiser.init(flat), flat)
    assert made.step(*batch) == pytest.approx(value.item(), rel=1e-6)
    np.testing.assert_allclose(made.parameters["up"].numpy(), moved["up"].numpy(), rtol=1e-5, atol=1e-6)
    assert made.parameters["up"].axes == ("d", "f")
    assert made.steps == 1
    *_, last = train.batches([IMAGES, LABELS], 8, seed=1)
    other = [each.copy() for each in last]
    other[0][other[2] == 0] = 1e3
    first, second = trainer("reference"), trainer("reference")
    assert first.step(*last) == second.step(*other)
    assert arrays_of(first) == arrays_of(second)


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path):
    whole = trainer()
    mean = whole.fit([IMAGES, LABELS], epochs=3, batch=8, seed=9)
    path = tmp_path / "run.safetensors"
    stopped = trainer()
    batches = list(train.batches([IMAGES, LABELS], 8, seed=9))
    stopped.step(*batches[0])
    stopped.step(*batches[1])
    stopped.save(path)  # in the middle of an epoch
    resumed = trainer()
    said: list[int] = []
    assert resumed.fit(
        [IMAGES, LABELS], epochs=3, batch=8, seed=9, checkpoint=path, report=lambda epoch, _: said.append(epoch)
    ) == pytest.approx(mean, rel=0)
    assert said == [0, 1, 2]
    assert arrays_of(resumed) == arrays_of(whole)
    assert os.listdir(tmp_path) == ["run.safetensors"]
    assert mean < 0.5 * trainer().step(*batches[0])


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "run.safetensors"
    made = trainer("reference")
    made.save(path)
    other = train.Trainer(
        lambda p, x: (x.dot(p["w"], "d")).mean(), {"w": smelt.tensor(IMAGES[0], "d")}, train.sgd(0.1), "f32[b=8, d=6]",
        engine="reference",
    )  # fmt: skip
    with pytest.raises(smelt.SmeltError, match="of other parameters or of another optimiser"):
        other.load(path)
    safetensors.write(path, {"w": IMAGES})
    with pytest.raises(smelt.SmeltError, match="no checkpoint of a trainer"):
        made.load(path)


def test_bad_parameters_and_losses_are_refused():
    with pytest.raises(smelt.SmeltError, match="the parameter n has no gradient"):
        train.Trainer(lambda p: p["n"].sum(), {"n": smelt.tensor([1, 2])}, train.sgd(0.1))
    with pytest.raises(smelt.SmeltError, match="no parameters"):
        train.Trainer(lambda p: p, {}, train.sgd(0.1))
    with pytest.raises(smelt.SmeltError, match="the loss must be a scalar"):
        train.Trainer(lambda p: p["w"], {"w": smelt.tensor([1.0])}, train.sgd(0.1), engine="reference")
    diverging = train.Trainer(
        lambda p: p["w"].exp().exp().sum(),
        {"w": smelt.tensor([6.0])},
        train.sgd(1.0),
        engine="reference",
        debug_nans=True,
    )
    with pytest.raises(smelt.SmeltError, match="the loss of step 0 is inf") as caught:
        diverging.step()
    assert "exponential" in str(caught.value)  # the op
    assert "test_train.py" in str(caught.value)  # and its line
    assert "1 infinite of 1 elements" in str(caught.value)


def test_paths_without_a_derivative_are_refused():
    def make(loss: Callable[..., Tensor], **more: Tensor) -> train.Trainer:
        start = {"w": smelt.tensor([1.0, 2.0], "d"), **more}
        return train.Trainer(loss, start, train.sgd(0.1), engine="reference")

    for loss in (lambda p: p["w"].round().sum(), lambda p: p["w"].argmax("d").to("f32")):
        with pytest.raises(
            smelt.SmeltError, match="the parameter w only through ops whose derivative is zero"
        ) as caught:
            make(loss)
        assert "test_train.py" in str(caught.value)
    with pytest.raises(smelt.SmeltError, match="the number of its iterations is not known") as caught:
        make(lambda p: smelt.while_loop(lambda x: x.sum() < 100.0, lambda x: x * 2.0, p["w"]).sum())
    assert "test_train.py" in str(caught.value)
    through = make(lambda p: (p["w"] + smelt.stop_gradient(p["w"].round() - p["w"])).sum())
    through.step()
    np.testing.assert_allclose(through.parameters["w"].numpy(), [0.9, 1.9], rtol=1e-6)
    make(lambda p: p["w"].sum(), unused=smelt.tensor([1.0])).step()


def test_a_nan_is_traced_to_the_tensor_that_made_it():
    """The batch itself; the gradient of a loss that is finite; and a parameter that grew step by step."""
    shapes = "f32[b=2, d=2]"

    def fresh() -> train.Trainer:
        return train.Trainer(
            lambda p, x: (x * p["w"]).abs().sqrt().sum(),
            {"w": smelt.tensor([1.0, 2.0], "d")},
            train.sgd(0.1),
            shapes,
            engine="reference",
            debug_nans=True,
        )

    roots = fresh()
    good = np.ones((2, 2), np.float32)
    roots.step(good)
    with pytest.raises(smelt.SmeltError, match="the loss of step 1 is nan") as caught:
        roots.step(good * np.float32("nan"))
    assert "4 nan of 4 elements" in str(caught.value)
    with pytest.raises(smelt.SmeltError, match=r"step 0 made parameters\.w infinite or nan"):
        fresh().step(good * 0)  # the root has no slope at 0


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_a_step_works_in_the_memory_of_the_last_one():
    """Parameters and optimiser state stay where they are, and a step allocates far less than they take."""
    wide = {"w": smelt.tensor(np.ones((256, 256), np.float32), "d c")}
    made = train.Trainer(
        lambda p, x: x.dot(p["w"], "d").square().mean(), wide, train.adam(1e-3), "f32[b=4, d=256]", engine="native"
    )
    x = np.ones((4, 256), np.float32)
    for _ in range(2):
        made.step(x)
    places = {path: array.ctypes.data for path, array in made._arrays().items()}
    tracemalloc.start()
    try:
        made.step(x)
        made.step(x)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    moved = [path for path, array in made._arrays().items() if array.ctypes.data != places[path]]
    assert not [path for path in moved if "w" in path]
    assert peak < 256 * 256 * 4 / 2
