# ruff: noqa: F722  # shapes are no forward references
"""What a proof rests on: sizes of at least 0, divisors of at least 1, and no symbol that nothing tells.

Each program here was once called proven and failed at some size, or its facts were never checked.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import Shaped, Tensor, TensorError
from smelt.dim import Facts, symbol
from smelt.errors import RunError, ShapeError, SizeError, SmeltError
from smelt.tensor import check, fori_loop, iota, nn, trace
from smelt.tensor.axes import shape_of
from smelt.tensor.ops import random

N = "f32[n=N]"
NM = ("f32[n=N]", "f32[m=M]")

# (function, shapes of its arguments, a fact that makes it right)
OBLIGATIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "zeros": (lambda x, y: smelt.zeros("f32[n=M - N]"), NM, "N <= M"),
    "concatenate": (lambda x, y: smelt.concatenate([x, smelt.zeros("f32[n=M - N]")], "n"), NM, "N <= M"),
    "arange": (lambda x: smelt.arange(x.size("n") - 2, "i"), (N,), "N >= 2"),
    "iota": (lambda x: iota("f32[n=N - 1]"), (N,), "N >= 1"),
    "broadcast": (lambda x: x.broadcast(b=x.size("n") - 3), (N,), "N >= 3"),
    "one_hot": (lambda x: x.to("i32").one_hot("N - 2", "k"), (N,), "N >= 2"),
    "top_k": (lambda x: x.top_k(x.size("n") - 4, "n")[0], (N,), "N >= 4"),
    "chunk": (lambda x: x.chunk("n", [x.size("n") - 1, 1])[0], (N,), "N >= 1"),
    "split": (lambda x: x.split("n", a="N - 2", b="N - 2"), ("f32[n=N*N - 4*N + 4]", N), "N >= 2"),
    "reshape": (lambda x, y: x.reshape(a="N - 3", b="N - 3"), ("f32[n=N*N - 6*N + 9]", N), "N >= 3"),
    "repeat": (lambda x: x.repeat("n", x.size("n") - 1), (N,), "N >= 1"),
    "random": (lambda x: random.uniform(random.key(1), "f32[n=N - 1]"), (N,), "N >= 1"),
    "divisor of a shape": (lambda x, y: smelt.zeros("f32[n=N//M]"), NM, "M >= 1"),
    "divisor in arithmetic": (lambda x, y: x * (x.size("n") // y.size("m")), NM, "M >= 1"),
    "divisor of a start": (lambda x, y: x.pad(n=(2, 2)).dynamic_slice(n=(x.size("n") // y.size("m"), 2)), NM, "M >= 1"),
    "divisor of a branch": (lambda x, y: x if x.size("n") % y.size("m") == 0 else x + 1.0, NM, "M >= 1"),
}


@pytest.mark.parametrize("name", OBLIGATIONS)
def test_every_size_and_divisor_is_proven(name: str):
    function, shapes, fact = OBLIGATIONS[name]
    if len(shapes) > 1 and function.__code__.co_argcount == 1:
        function = _ignoring(function)
    given = [shape_of(shape) for shape in shapes]
    errors = check(function, *given).errors
    assert errors
    assert isinstance(errors[0], TensorError)
    assert errors[0].missing == fact
    assert check(function, *given, facts=[fact]).errors == ()


def _ignoring(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, _: function(x)


def test_a_negative_number_is_no_size():
    with pytest.raises(SmeltError, match="negative"):
        smelt.arange(-3)


def test_arguments_determine_the_symbols_of_their_sizes():
    def shorter(x: Shaped[Tensor, "f32[n=N - 2]"]) -> Shaped[Tensor, "f32[n=2*N - 4]"]:
        return smelt.concatenate([x, x], "n")

    assert check(shorter).errors == ()  # N >= 2, because x is there

    def heads(x: Shaped[Tensor, "f32[d=H*K]"], y: Shaped[Tensor, "f32[h=H]"]) -> Shaped[Tensor, "f32[h=H, k=K]"]:
        return x.split("d", h="H", k="K")

    traced = trace(heads)
    assert [str(fact) for fact in traced.facts] == ["H >= 1"]  # else nothing tells K
    assert traced(np.ones(6, np.float32), np.ones(2, np.float32), engine="reference").shape == (2, 3)


# ---- symbols ----


def double(x: Shaped[Tensor, "f32[n=N]"]) -> Shaped[Tensor, "f32[q=Q]"]:
    return x.split("n", q="Q", two=2).sum("two") + smelt.zeros("f32[q=Q]")


def test_a_symbol_that_a_fact_names_is_solved_for_and_checked():
    traced = trace(double, facts=["N == 2*Q"])
    assert str(traced.facts) == str(smelt.dim.Facts.of("N % 2 == 0"))
    for engine in ("reference", "native"):
        assert traced(np.ones(6, np.float32), engine=engine).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(SizeError, match="fact does not hold"):
            traced(np.ones(5, np.float32), engine=engine)

    def groups(x: Shaped[Tensor, "f32[h=H]"], y: Shaped[Tensor, "f32[g=G]"]) -> Shaped[Tensor, "f32[g=G, r=R]"]:
        smelt.assume("H == G*R")
        return x.split("h", g="G", r="R")

    traced = trace(groups)
    assert traced(np.ones(6, np.float32), np.ones(2, np.float32), engine="reference").shape == (2, 3)
    with pytest.raises(SizeError, match="G divides H"):
        traced(np.ones(5, np.float32), np.ones(2, np.float32), engine="reference")


def test_facts_of_a_model_are_checked_for_its_numbers():
    class Net(smelt.Model):
        H: int
        w: Shaped[Tensor, "f32[d=D]"]

        def forward(self, x: Shaped[Tensor, "f32[d=D]"]) -> Tensor:
            smelt.assume("H divides D")
            return (x * self.w).split("d", h="H", k=None)

    traced = trace(Net(H=3).forward)
    assert traced(np.ones(6, np.float32), np.ones(6, np.float32), engine="reference").shape == (3, 2)
    with pytest.raises(SizeError, match="fact does not hold"):
        traced(np.ones(5, np.float32), np.ones(5, np.float32), engine="reference")


def _refusal(function: Callable[..., Any], *shapes: str, facts: tuple[str, ...] = ()) -> str:
    (error,) = check(function, *map(shape_of, shapes), facts=facts).errors
    return error.message


def test_a_symbol_that_nothing_determines_is_refused():
    assert "names M, which no argument determines" in _refusal(lambda x: x, N, facts=("N <= M",))
    assert "names Q, which no argument determines" in _refusal(lambda x: x, N, facts=("N == Q*Q",))
    assert "size Q is not known" in _refusal(lambda x: smelt.zeros("f32[q=Q]"), N)
    assert "size Q is not known" in _refusal(lambda x: smelt.arange("Q"), N)
    assert "do not determine P, Q" in _refusal(lambda x: x, "f32[n=P*Q]")

    def assumed(x: Tensor) -> Tensor:
        smelt.assume("M <= N")
        return x

    assert "names M" in _refusal(assumed, N)

    def half(x: Shaped[Tensor, "f32[n=N]"]) -> Shaped[Tensor, "f32[n=Q//2]"]:
        return x

    assert "Q//2 does not determine Q" in _refusal(half, N)

    def both(x: Shaped[Tensor, "f32[n=N]"]) -> tuple[Shaped[Tensor, "f32[n=Q//2]"], Shaped[Tensor, "f32[n=Q]"]]:
        return x, x

    assert "a size is N, not N//2" in _refusal(both, N)


def test_facts_that_contradict_each_other_are_reported():
    assert "contradict" in _refusal(lambda x: x, N, facts=("N >= 3", "N <= 2"))
    assert "contradict" in _refusal(lambda x: x, N, facts=("N == 2*Q", "N == 2*R + 1"))

    def later(x: Shaped[Tensor, "f32[n=N]"]) -> Tensor:
        smelt.assume("N == 4")
        return x

    assert "contradict" in _refusal(later, N, facts=("N == 3",))


def test_what_a_checked_function_assumes_is_about_its_own_symbols():
    @smelt.checked
    def pairs(x: Shaped[Tensor, "f32[n=N]"]) -> Tensor:
        smelt.assume("2 divides N")
        return x.split("n", m="N//2", two=2)

    def outer(a: Shaped[Tensor, "f32[n=N]"], b: Shaped[Tensor, "f32[m=M]"]) -> Tensor:
        return pairs(b.rename(m="n"))

    traced = trace(outer)
    assert traced(np.ones(3, np.float32), np.ones(4, np.float32), engine="reference").shape == (2, 2)
    with pytest.raises(SizeError, match="M % 2 == 0"):
        traced(np.ones(4, np.float32), np.ones(3, np.float32), engine="reference")

    @smelt.checked
    @smelt.assume("N <= LIMIT")
    def bounded(x: Shaped[Tensor, "f32[n=N]"]) -> Tensor:
        return x

    with pytest.raises(TensorError, match="names LIMIT"):
        bounded(smelt.symbolic("f32[n=S]"))


def test_facts_about_undetermined_symbols_prove_nothing():
    with smelt.assume("S <= LIMIT", "LIMIT <= 4"), pytest.raises(TensorError):
        trace(lambda x: x.pad(s=(0, 4 - x.size("s"))), smelt.Shape("f32", s="S"))


def test_a_size_has_no_hash():
    def few(x: Shaped[Tensor, "f32[n=N]"]) -> Tensor:
        return x + 1.0 if x.size("n") in {3, 4} else x

    assert "no hash" in _refusal(few, N)
    assert len(trace(lambda x: x + 1.0 if x.size("n") in (3, 4) else x, smelt.Shape("f32", n="N")).paths) > 1


def test_a_model_with_symbolic_numbers_runs_once_they_have_values():
    layer = nn.MultiHeadAttention(d="D", heads="H")
    assert check(layer, smelt.Shape("f32", b="B", s="S", d="D")).errors == ()
    with pytest.raises(ShapeError, match="no argument determines H"):
        smelt.compile(layer, "f32[b=B, s=S, d=D]", engine="reference")


# ---- positions ----


def step(
    cache: Shaped[Tensor, "f32[t=T, d=D]"], new: Shaped[Tensor, "f32[t=S, d=D]"], position: Shaped[Tensor, "i32[]"]
) -> tuple[Tensor, Tensor]:
    smelt.assume("S <= T")
    return cache.update(new, t=position), (cache + 1.0).update(new, t=position)


@pytest.mark.parametrize("engine", ["reference", "native", "pjrt"])
def test_a_part_beyond_the_end_is_an_error_when_it_is_written(engine: str):
    if engine == "pjrt":
        pytest.importorskip("jaxlib")
    executable = smelt.compile(step, engine=engine)
    cache, new = np.zeros((4, 2), np.float32), np.ones((2, 2), np.float32)
    assert executable(cache, new, np.array(2, np.int32))[0].numpy()[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    for position in (3, -1, 2**31 - 1):
        with pytest.raises(RunError, match=f"starts at {position}, and at most at 2"):
            executable(cache, new, np.array(position, np.int32))[0].numpy()


def test_equal_requirements_are_checked_once_and_proven_ones_not_at_all():
    checks = [op for op in trace(step).program.main.body.ops if op.name == "stablehlo.custom_call"]
    assert len(checks) == 1

    def proven(cache: Tensor, past: Tensor, new: Tensor) -> Tensor:
        return cache.update(new, t=past.size("t"))

    shapes = [shape_of(f"f32[t={name}]") for name in "TPS"]
    assert check(proven, *shapes).errors[0].missing is not None  # type: ignore[attr-defined]
    traced = trace(proven, *shapes, facts=["P + S <= T"])
    assert not any(op.name == "stablehlo.custom_call" for op in traced.program.main.body.ops)


@pytest.mark.parametrize("engine", ["reference", "native", "pjrt"])
def test_a_position_in_a_loop_is_checked(engine: str):
    if engine == "pjrt":
        pytest.importorskip("jaxlib")

    def fill(cache: Shaped[Tensor, "f32[t=T]"], new: Shaped[Tensor, "f32[t=1]"], k: Shaped[Tensor, "i32[]"]) -> Tensor:
        smelt.assume("T >= 1")
        return fori_loop(k, lambda i, c: c.update(new, t=i), cache)

    executable = smelt.compile(fill, engine=engine)
    cache, new = np.zeros(4, np.float32), np.ones(1, np.float32)
    assert executable(cache, new, np.array(3, np.int32)).numpy().tolist() == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(RunError, match="starts at 4"):
        executable(cache, new, np.array(5, np.int32)).numpy()


# ---- remedies ----


@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        ("0 <= 2*((Y + 1)//2) - 1", "Y >= 1"),
        ("Y//2 >= 1", "Y >= 2"),
        ("M*N >= 1", "M >= 1 and N >= 1"),
        ("A//B*B + C//D*D == A + C", "B divides A and D divides C"),
        ("N//K >= 1", "K >= 1 and K <= N"),
        ("M <= N", "M <= N"),
        ("B*D*S + B*S == B*D*S", None),
        ("N - min(N, 1) == N", None),
    ],
)
def test_the_simplest_facts_that_prove_a_claim_are_named(claim: str, missing: str | None):
    (fact,) = Facts.of(claim)
    ask = Facts().equal if fact.relation == "==" else Facts().at_most
    assert ask(fact.left, fact.right).missing == missing
    if missing is not None:
        known = Facts.of(*missing.split(" and "))
        assert known.equal(fact.left, fact.right) if fact.relation == "==" else known.at_most(fact.left, fact.right)


def test_long_chains_of_facts_are_followed():
    names = [symbol(f"A{i}") for i in range(61)]
    chain = [f"A{i} <= A{i + 1} + 1" for i in range(60)]
    assert Facts.of(*chain).at_most(names[0], names[60] + 60)
    assert not Facts.of(*chain).at_most(names[0], names[60] + 59)
    assert Facts.of(*chain, "A60 <= A0 - 61").contradictory


def _remedy(function: Callable[..., Any], *shapes: smelt.Shape) -> str:
    return str(check(function, *shapes).errors[0].remedy)


def test_a_transpose_is_suggested_before_a_fact():
    x, y = smelt.Shape("f32", "B", "S"), smelt.Shape("f32", "S", "B")
    assert _remedy(lambda x, y: x + y, x, y).startswith("put the axes in the same order: .transpose(1, 0)")
    assert "transpose it: .transpose()" in _remedy(lambda x, y: x @ y, x, smelt.Shape("f32", "F", "S"))

    def turned(x: Shaped[Tensor, "f32[b=B, s=S]"]) -> Shaped[Tensor, "f32[b=B, s=S]"]:
        return x.rename(b="s", s="b").transpose("b s")

    assert '.rename(s="b", b="s").transpose("b s")' in _remedy(turned)


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp", "norm", "std", "var", "mean"])
def test_messages_name_the_op_that_was_called(op: str):
    assert _refusal(lambda x: getattr(x, op)("z"), N).startswith(f"{op}: ")


def test_a_count_never_wraps():
    big = smelt.symbolic("i8[n=65536, m=65536]")
    with pytest.raises(TensorError, match="4294967296 does not fit i32"):
        big.count()
    traced = trace(lambda x: x.count(None, "ui8"), smelt.Shape("f32", n="N"))
    for engine in ("reference", "native"):
        assert traced(np.ones(255, np.float32), engine=engine) == 255
        with pytest.raises(RunError, match="256 does not fit ui8"):
            traced(np.ones(256, np.float32), engine=engine)
    sure = trace(lambda x: x.count(None, "ui8"), smelt.Shape("f32", n="N"), facts=["N <= 255"])
    assert not any(op.name == "stablehlo.custom_call" for op in sure.program.main.body.ops)
