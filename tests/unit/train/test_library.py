"""Adafactor, Muon, averages, schedules, losses and metrics against formulas, PyTorch, scikit-learn and enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import Tensor, train
from smelt.tensor.model import build, parameters_of

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))
Array = np.ndarray
RNG = np.random.default_rng(8)
MATRIX, VECTOR = RNG.normal(size=(3, 4)), RNG.normal(size=5)
STEPS = [(RNG.normal(size=(3, 4)), RNG.normal(size=5)) for _ in range(4)]


def run_optimiser(optimiser: train.Optimiser, **extra: Any) -> tuple[dict[str, Array], Any]:
    """A matrix and a vector after four steps, in f64."""
    parameters: Any = {"m": smelt.tensor(MATRIX, "a b"), "v": smelt.tensor(VECTOR, "c")}
    state = optimiser.init(parameters)
    for m, v in STEPS:
        parameters, state = optimiser.update(
            {"m": smelt.tensor(m, "a b"), "v": smelt.tensor(v, "c")}, state, parameters
        )
    assert parameters["m"].axes == ("a", "b")
    return {name: value.numpy() for name, value in parameters.items()}, state


def adafactor_by_hand(rate: float, decay: float) -> list[Array]:
    results = []
    for start, place in ((MATRIX, 0), (VECTOR, 1)):
        w, row, column, square = start.copy(), 0.0, 0.0, 0.0
        for count, step in enumerate(STEPS, 1):
            g = step[place]
            fresh = count**-0.8
            size = max(1e-3, np.sqrt((w**2).mean())) * min(rate, count**-0.5)
            w = w * (1 - rate * decay)
            if g.ndim == 2:
                row = row + fresh * ((g**2).mean(1, keepdims=True) - row)
                column = column + fresh * ((g**2).mean(0, keepdims=True) - column)
                mean = row * column / row.mean()
            else:
                mean = square = square + fresh * (g**2 - square)
            u = g / np.sqrt(np.maximum(mean, 1e-14))
            w = w - size / max(1.0, np.sqrt((u**2).mean())) * u
        results.append(w)
    return results


def test_adafactor_follows_its_formula():
    found, state = run_optimiser(train.adafactor(0.05, weight_decay=0.1))
    for ours, theirs in zip(found.values(), adafactor_by_hand(0.05, 0.1), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=3e-6)
    assert state["row"]["m"].sizes == (3, 1)  # not a whole matrix
    assert state["column"]["m"].sizes == (1, 4)


def test_adafactor_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(start, requires_grad=True) for start in (MATRIX, VECTOR)]
    theirs = torch.optim.Adafactor(tensors, lr=0.05, weight_decay=0.1)
    for step in STEPS:
        for tensor, g in zip(tensors, step, strict=True):
            tensor.grad = torch.tensor(g)
        theirs.step()
    found, _ = run_optimiser(train.adafactor(0.05, weight_decay=0.1))
    for ours, tensor in zip(found.values(), tensors, strict=True):
        np.testing.assert_allclose(ours, tensor.detach().numpy(), rtol=3e-6)


def orthogonal_by_hand(x: Array) -> Array:
    if x.shape[0] > x.shape[1]:
        return orthogonal_by_hand(x.T).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_muon_follows_its_formula():
    w, mean = MATRIX.copy(), np.zeros((3, 4))
    for g, _ in STEPS:
        mean = 0.95 * mean + 0.05 * g
        w = w * (1 - 0.02 * 0.1) - 0.02 * orthogonal_by_hand(0.05 * g + 0.95 * mean)
    found, state = run_optimiser(train.muon(0.02))
    np.testing.assert_allclose(found["m"], w, rtol=3e-6)
    alone, _ = run_optimiser(train.adamw(0.02))
    np.testing.assert_allclose(found["v"], alone["v"], rtol=1e-12)  # vectors go to AdamW
    assert state["step"].item() == 4
    tall = smelt.tensor(RNG.normal(size=(12, 5)))
    moved, _ = train.muon(1.0, weight_decay=0.0, momentum=0.0).update(
        {"w": tall}, train.muon().init({"w": tall}), {"w": tall * 0.0}
    )
    singular = np.linalg.svd(moved["w"].numpy())[1] / math.sqrt(12 / 5)
    assert (singular > 0.6).all()
    assert (singular < 1.3).all()


def test_an_average_follows_the_parameters():
    plain = {"m": MATRIX, "v": VECTOR}
    state: Any = None
    parameters: Any = {name: smelt.tensor(value) for name, value in plain.items()}
    optimiser = train.average(train.sgd(0.1), 0.9)
    state = optimiser.init(parameters)
    w, mean = MATRIX.copy(), MATRIX.copy()
    for m, v in STEPS:
        parameters, state = optimiser.update({"m": smelt.tensor(m), "v": smelt.tensor(v)}, state, parameters)
        w = w - 0.1 * m
        mean = 0.9 * mean + 0.1 * w
    np.testing.assert_allclose(state["average"]["m"].numpy(), mean, rtol=1e-6)
    line = {"slope": smelt.tensor([0.0], "d")}
    loss: Callable[..., Tensor] = lambda p, x, y: train.mse(x.dot(p["slope"], "d"), y)  # noqa: E731
    trainer = train.Trainer(loss, line, optimiser, "f32[b=4, d=1]", "f32[b=4]", engine="reference")
    x = np.arange(4, dtype=np.float32)
    for _ in range(3):
        trainer.step(x[:, None], 3 * x)
    assert 0 < trainer.averaged["slope"].item() < trainer.parameters["slope"].item()
    bare = train.Trainer(loss, line, train.sgd(0.1), "f32[b=4, d=1]", "f32[b=4]", engine="reference")
    with pytest.raises(smelt.SmeltError, match="keeps no average"):
        _ = bare.averaged


def rates(schedule: Callable[[Tensor], Tensor], steps: int) -> list[float]:
    return [float(schedule(smelt.tensor(np.float32(step))).item()) for step in range(steps)]


def test_schedules():
    np.testing.assert_allclose(
        rates(train.linear(1.0, 6, warmup=2, final=0.2), 8), [0, 0.5, 1, 0.8, 0.6, 0.4, 0.2, 0.2], 1e-5
    )
    np.testing.assert_allclose(rates(train.step_decay(2.0, 2, 0.5), 6), [2, 2, 1, 1, 0.5, 0.5], 1e-5)
    np.testing.assert_allclose(rates(train.warm_up(0.4, 4), 6), [0, 0.1, 0.2, 0.3, 0.4, 0.4], 1e-5, 1e-7)
    cycle = rates(train.one_cycle(1.0, 20, rise=0.3), 20)
    np.testing.assert_allclose([cycle[0], cycle[5], cycle[19]], [1 / 25, 1.0, 1 / 25e4], rtol=1e-3)
    assert np.argmax(cycle) == 5
    with pytest.raises(smelt.SmeltError, match="steps is out of range"):
        train.linear(1.0, 3, warmup=5)


def test_schedules_agree_with_pytorch():
    torch = pytest.importorskip("torch")
    from torch.optim import lr_scheduler

    def theirs(make: Callable[[Any], Any]) -> list[float]:
        optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.5)
        schedule, found = make(optimiser), []
        for _ in range(20):
            found.append(optimiser.param_groups[0]["lr"])
            optimiser.step()
            schedule.step()
        return found

    pairs = [
        (train.one_cycle(0.5, 20), lambda o: lr_scheduler.OneCycleLR(o, 0.5, 20)),
        (train.step_decay(0.5, 7, 0.3), lambda o: lr_scheduler.StepLR(o, 7, 0.3)),
        (train.cosine(0.5, 20), lambda o: lr_scheduler.CosineAnnealingLR(o, 20)),
    ]
    for ours, make in pairs:
        np.testing.assert_allclose(rates(ours, 20), theirs(make), rtol=1e-4, atol=1e-6)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_label_smoothing():
    logits, labels = RNG.normal(size=(5, 4)), np.array([0, 3, 1, 1, 2])
    logp = log_softmax(logits)
    wanted = -(0.9 * logp[np.arange(5), labels] + 0.1 * logp.mean(1)).mean()
    found = train.cross_entropy(smelt.tensor(logits, "b c"), smelt.tensor(labels, "b"), "c", smoothing=0.1)
    np.testing.assert_allclose(found.item(), wanted, rtol=1e-6)


def test_triplet_and_contrastive():
    a, p, n = (RNG.normal(size=(4, 6)) for _ in range(3))
    distance = lambda x, y: np.linalg.norm(x - y + 1e-6, axis=1)  # noqa: E731
    wanted = np.maximum(0, distance(a, p) - distance(a, n) + 0.7).mean()
    ours: Any = [smelt.tensor(x, "b d") for x in (a, p, n)]
    np.testing.assert_allclose(train.triplet(ours[0], ours[1], ours[2], "d", 0.7).item(), wanted, rtol=1e-6)
    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, p))
    wanted = -np.diag(log_softmax(q @ k.T / 0.2)).mean()
    np.testing.assert_allclose(train.contrastive(ours[0], ours[1], "d", "b", 0.2).item(), wanted, rtol=1e-6)
    plain: Any = [smelt.tensor(x) for x in (a, p)]
    np.testing.assert_allclose(train.contrastive(plain[0], plain[1], 1, 0, 0.2).item(), wanted, rtol=1e-6)
    same = smelt.tensor(a, "b d")
    slope = smelt.grad(lambda x: train.triplet(x, same, smelt.tensor(n, "b d"), "d"))(same)
    assert np.isfinite(slope.numpy()).all()


LABELS = np.array([[1, 2, 0], [1, 1, 2], [2, 0, 0]], np.int32)
LENGTHS, FRAMES = np.array([2, 3, 1], np.int32), np.array([5, 5, 3], np.int32)
SPEECH = RNG.normal(size=(3, 5, 3))


def enumerate_paths(logp: Array, labels: Array) -> float:
    """log p of labels: the sum over all paths of classes that spell them."""
    total = -math.inf
    for path in itertools.product(range(logp.shape[1]), repeat=len(logp)):
        if [mark for mark, _ in itertools.groupby(path) if mark] == labels.tolist():
            total = np.logaddexp(total, sum(logp[t, mark] for t, mark in enumerate(path)))
    return float(total)


def test_ctc_counts_every_alignment():
    logp = log_softmax(SPEECH)
    each = [-enumerate_paths(logp[i, : FRAMES[i]], LABELS[i, : LENGTHS[i]]) / LENGTHS[i] for i in range(3)]
    given: Any = [smelt.tensor(x) for x in (LABELS, FRAMES, LENGTHS)]
    np.testing.assert_allclose(train.ctc(smelt.tensor(SPEECH), *given).item(), np.mean(each), rtol=1e-6)
    masked = train.ctc(smelt.tensor(SPEECH), *given, weights=smelt.tensor(np.array([1.0, 0.0, 1.0])))
    np.testing.assert_allclose(masked.item(), (each[0] + each[2]) / 2, rtol=1e-6)
    turned = smelt.tensor(SPEECH.transpose(1, 0, 2), "t b c")
    np.testing.assert_allclose(
        train.ctc(turned, given[0], given[1], given[2], ("b", "t", "c")).item(), np.mean(each), rtol=1e-6
    )
    slope = smelt.grad(lambda x: train.ctc(x, *given))(smelt.tensor(SPEECH)).numpy()
    moved = SPEECH.copy()
    moved[1, 2, 1] += 1e-5
    risen = train.ctc(smelt.tensor(moved), *given).item() - np.mean(each)
    np.testing.assert_allclose(slope[1, 2, 1], risen / 1e-5, rtol=1e-3)
    assert not slope[2, 3:].any()  # frames that do not count
    with pytest.raises(smelt.SmeltError, match="integer labels"):
        train.ctc(smelt.tensor(SPEECH), smelt.tensor(SPEECH[:, 0]), *given[1:])


def test_metrics_agree_with_scikit_learn():
    from sklearn import metrics

    logits, labels = RNG.normal(size=(40, 5)), RNG.integers(0, 4, 40)  # class 4 never occurs
    x, y = smelt.tensor(logits, "b c"), smelt.tensor(labels, "b")
    predicted = logits.argmax(1)
    np.testing.assert_allclose(train.accuracy(x, y, "c").item(), metrics.accuracy_score(labels, predicted), rtol=1e-6)
    wanted = metrics.top_k_accuracy_score(labels, logits, k=2, labels=range(5))
    np.testing.assert_allclose(train.top_k_accuracy(x, y, "c", 2).item(), wanted, rtol=1e-6)
    np.testing.assert_allclose(
        train.top_k_accuracy(smelt.tensor(logits), smelt.tensor(labels), 1, 2).item(), wanted, rtol=1e-6
    )
    matrix = train.confusion(smelt.tensor(predicted, "b"), y, 5)
    np.testing.assert_array_equal(matrix.numpy(), metrics.confusion_matrix(labels, predicted, labels=range(5)))
    for kind in ("macro", "micro"):
        wanted = metrics.f1_score(labels, predicted, labels=range(5), average=kind, zero_division=0)
        np.testing.assert_allclose(train.f1(matrix, average=kind).item(), wanted, rtol=1e-6)
    np.testing.assert_allclose(
        train.perplexity(x, y, "c").item(), np.exp(-log_softmax(logits)[np.arange(40), labels].mean()), rtol=1e-6
    )
    weights = (RNG.random(40) < 0.5).astype(np.float32)
    kept = weights > 0
    weighted = train.confusion(smelt.tensor(predicted, "b"), y, 5, smelt.tensor(weights, "b")).numpy()
    np.testing.assert_array_equal(weighted, metrics.confusion_matrix(labels[kept], predicted[kept], labels=range(5)))


def test_adapters_change_nothing_until_they_are_trained_and_the_model_stays():
    class Net(smelt.Model):
        first, second = smelt.nn.Linear(d=3, f=4), smelt.nn.Linear(f=4, d=3)

        def __call__(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).tanh())

    shapes = {name: spec.shape.numbers() for name, spec in parameters_of(Net).items()}
    net = build(Net, {name: RNG.normal(size=sizes).astype(np.float32) for name, sizes in shapes.items()})
    adapters = train.lora(net, 2, lambda path: path.startswith("first"))
    assert list(adapters) == ["first.weight"]  # a bias is no matrix
    x, y = (RNG.normal(size=(8, 3)).astype(np.float32) for _ in range(2))
    given = smelt.tensor(x, "b d")
    np.testing.assert_array_equal(train.adapt(net, adapters)(given).numpy(), net(given).numpy())

    def loss(adapters: Any, net: Net, x: Tensor, y: Tensor) -> Tensor:
        return train.mse(train.adapt(net, adapters, 0.5)(x), y)

    before = net.first.weight.numpy().copy()
    shape = "f32[b=8, d=3]"
    trainer = train.Trainer(loss, adapters, train.adam(0.05), shape, shape, engine="reference", frozen=net)
    losses = [trainer.step(x, y) for _ in range(8)]
    assert losses[-1] < losses[0]
    found = trainer.parameters
    np.testing.assert_array_equal(net.first.weight.numpy(), before)
    delta = found["first.weight"]["up"].numpy() @ found["first.weight"]["down"].numpy()
    changed = train.adapt(net, found, 0.5).first.weight
    np.testing.assert_allclose(changed.numpy(), before + 0.5 * delta, rtol=1e-5, atol=1e-6)
    with pytest.raises(smelt.SmeltError, match="no matrix of the model was chosen"):
        train.lora(net, 2, lambda path: False)


def test_an_imported_program_is_a_function_of_tensors():
    """Its results are those of the engine, and its gradients those of finite differences."""
    program, weights = smelt.read(DIGITS)
    model = train.Imported(program, weights)
    held: Any = model.weights
    assert sorted(held) == ["b1", "b2", "b3", "w1", "w2", "w3"]  # small ones, too, which the reader folds
    x = RNG.random((3, 64)).astype(np.float32)
    found = model(held, smelt.tensor(x))["probabilities"]
    np.testing.assert_allclose(found.numpy(), smelt.load(DIGITS, engine="reference")(x)["probabilities"], rtol=1e-5)

    def loss(held: Any) -> Tensor:
        return -model(held, smelt.tensor(x))["probabilities"][0, 3].log()

    slope = smelt.grad(loss)(held)["b2"].numpy()
    at = int(np.abs(slope).argmax())
    sides = []
    for step in (1e-2, -1e-2):
        moved = held["b2"].numpy().copy()
        moved[at] += step
        sides.append(loss({**held, "b2": smelt.tensor(moved)}).item())
    np.testing.assert_allclose(slope[at], (sides[0] - sides[1]) / 2e-2, rtol=2e-2)
    with pytest.raises(smelt.SmeltError, match="in order"):
        model(held)
    with pytest.raises(smelt.SmeltError, match="no weight 'w1'"):
        model({name: value for name, value in held.items() if name != "w1"}, smelt.tensor(x))
