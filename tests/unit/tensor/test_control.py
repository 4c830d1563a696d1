"""Loops, branches and scans that data decides: their values against Python's own, and what they refuse."""

import numpy as np
import pytest

import smelt
from smelt import Tensor, TensorError, cond, fori_loop, scan, tensor, while_loop
from smelt.shape import Shape
from smelt.tensor import trace


def test_while_loop_with_a_structure_for_state():
    def collatz(n: int) -> tuple[int, int]:
        steps = 0
        while n != 1:
            n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
        return n, steps

    for n in (1, 6, 7):
        out = while_loop(
            lambda state: state["n"] != 1,
            lambda state: {
                "n": smelt.where(state["n"] % 2 == 0, state["n"] // 2, state["n"] * 3 + 1),
                "steps": state["steps"] + 1,
            },
            {"n": tensor(n), "steps": tensor(0)},
        )
        assert (out["n"].item(), out["steps"].item()) == collatz(n)


def test_loops_capture_what_is_outside():
    step = tensor([1.0, 2.0], "s")
    out = fori_loop(4, lambda i, x: x + step * i.to("f32"), tensor([0.0, 0.0], "s"))
    assert out.numpy().tolist() == [6, 12]


def test_nested_loops():
    def inner(i: Tensor, total: Tensor) -> Tensor:
        return fori_loop(i + 1, lambda j, t: t + j, total)

    assert fori_loop(5, inner, tensor(0)).item() == sum(sum(range(i + 1)) for i in range(5))


def test_cond_runs_one_branch():
    ran = []

    def seen(name: str):
        def note(x: np.ndarray) -> np.ndarray:
            ran.append(name)
            return x

        return note

    x = tensor([1.0, 2.0])
    out = cond(
        x.sum() > 2.0,
        lambda: smelt.custom_call(seen("then"), "f32[2]", x * 2.0),
        lambda: smelt.custom_call(seen("else"), "f32[2]", x * 3.0),
    )
    assert out.numpy().tolist() == [2, 4]
    assert ran == ["then"]
    assert cond(x.sum() > 5.0, lambda y: y, lambda y: -y, x).numpy().tolist() == [-1, -2]


def test_scan_over_an_axis():
    x = tensor(np.arange(6, dtype=np.float32).reshape(2, 3), "b t")
    last, all_of_them = scan(lambda carry, row: (carry + row, carry * row), smelt.zeros("f32[b=2]"), x, "t")
    carry, rows = np.zeros(2), []
    for t in range(3):
        row = x.numpy()[:, t]
        carry, row = carry + row, carry * row
        rows.append(row)
    assert last.numpy().tolist() == carry.tolist()
    assert all_of_them.shape.names == ("t", "b")
    assert all_of_them.numpy().tolist() == np.array(rows).tolist()


def test_scan_with_weights_from_outside_over_any_length(seed: int):
    rng = np.random.default_rng(seed)

    def rnn(w: Tensor, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = (h.dot(w, "h").rename(g="h") + x).tanh()
            return h, h

        out: tuple[Tensor, Tensor] = scan(step, h, x, "t")
        return out

    traced = trace(rnn, Shape("f32", h="H", g="H"), Shape("f32", b="B", h="H"), Shape("f32", t="T", b="B", h="H"))
    assert [str(tensor.shape) for tensor in traced.results] == ["f32[b=B, h=H]", "f32[t=T, b=B, h=H]"]
    for t, b, h in ((4, 2, 3), (0, 1, 2), (1, 0, 2)):
        w, start, x = (rng.standard_normal(sizes).astype(np.float32) for sizes in ((h, h), (b, h), (t, b, h)))
        state, states = start.astype(np.float64), []
        for row in x:
            state = np.tanh(state @ w + row)
            states.append(state)
        last, every = traced(w, start, x, engine="reference")
        np.testing.assert_allclose(last, state, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(every, np.array(states).reshape(t, b, h), rtol=1e-5, atol=1e-6)


def test_backwards_and_without_outputs():
    x = tensor([1.0, 2.0, 3.0], "t")
    last, ys = scan(lambda c, v: (c * 2.0 + v, c), tensor(0.0), x, "t", reverse=True)
    assert last.item() == (3.0 * 2 + 2.0) * 2 + 1.0
    assert ys.numpy().tolist() == [8, 3, 0]
    last, nothing = scan(lambda c, v: (c + v, None), tensor(0.0), x, "t")
    assert (last.item(), nothing) == (6, None)


def test_symbolic_loops():
    traced = trace(lambda x: fori_loop(3, lambda i, y: y + x, x), Shape("f32", b="B"))
    assert traced(np.ones(4, np.float32), engine="reference").tolist() == [4, 4, 4, 4]
    choose = trace(lambda x: cond(x.sum() > 0, lambda: x * 2.0, lambda: x), Shape("f32", b="B"))
    assert choose(np.array([1.0, -3.0], np.float32), engine="reference").tolist() == [1, -3]


REFUSED = [
    (lambda x: while_loop(lambda y: y.sum() < 5, lambda y: smelt.concatenate([y, y], "s"), x), "changes a size"),
    (lambda x: while_loop(lambda y: y.sum() < 5, lambda y: y.sum("s"), x), "changes its axes"),
    (lambda x: while_loop(lambda y: y.sum() < 5, lambda y: y.to("f64"), x), "changes its element type"),
    (lambda x: while_loop(lambda y: y < 5, lambda y: y, x), "a condition is one boolean"),
    (lambda x: cond(x.sum() > 0, lambda: x, lambda: x.sum()), "differs between the branches"),
    (lambda x: cond(x.sum() > 0, lambda: x, lambda: (x, x)), "different structures"),
    (lambda x: scan(lambda c, v: (c.to("i32"), v), tensor(0.0), x, "s"), "changes its element type"),
]


@pytest.mark.parametrize(("run", "message"), REFUSED)
def test_what_is_refused(run, message: str):
    with pytest.raises(TensorError, match=message) as caught:
        run(smelt.symbolic("f32[s=S + 1]"))
    assert caught.value.source is not None


def test_a_tensor_may_not_leave_the_body_it_was_made_in():
    kept = []

    def body(y: Tensor) -> Tensor:
        kept.append(y * 2.0)
        return y + 1.0

    while_loop(lambda y: y < 3.0, body, tensor(0.0))
    with pytest.raises(TensorError, match="from inside the body"):
        kept[0].numpy()
