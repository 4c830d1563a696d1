"""Programs that are refused, each with the right diagnosis, and programs that are accepted, for all sizes at once.

A counterexample is taken at its word: the same mistake is made in NumPy at those sizes, and must fail there.
"""

from collections.abc import Callable
from functools import partial
from operator import sub
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import Tensor, TensorError, assume, concatenate, symbolic
from smelt.dim import Size, product, symbol
from smelt.shape import Shape
from smelt.tensor import check, trace


def expect_refusal(run: Callable[[], Any]) -> TensorError:
    with pytest.raises(TensorError) as caught:
        run()
    error = caught.value
    assert error.source, "the user's line is shown"
    assert "^" in error.source, "with carets"
    return error


def zeros(shape: Shape, numbers: dict[str, int]) -> np.ndarray:
    return np.zeros(shape.numbers(numbers), np.float32)


# ---- refused ----


def test_contraction_over_an_axis_that_one_side_lacks():
    x, w = symbolic("f32[b=B, s=S, d=D]"), symbolic("f32[f=F, g=F]")
    error = expect_refusal(lambda: x.dot(w, "d"))
    assert error.message == 'dot over "d": the right operand has no such axis'
    assert [operand.label for operand in error.operands] == ["left", "right"]


def test_short_form_with_a_repeated_symbol_has_no_names():
    x, w = symbolic(Shape("f32", b="B", s="S", d="D")), symbolic("f32[F, F]")
    error = expect_refusal(lambda: x.dot(w, "d"))
    assert error.message == 'dot over "d": the right operand has no such axis'
    assert error.remedy is not None
    assert ".named" in error.remedy


def test_a_reshape_that_loses_an_axis_shows_both_counts():
    x = symbolic("f32[b=B, s=S, d=D]")
    error = expect_refusal(lambda: x.reshape(b="B", d="D"))
    assert "number of elements" in error.message
    numbers = error.counterexample
    assert numbers
    have, want = x.shape.count, symbolic("f32[b=B, d=D]").shape
    with pytest.raises(ValueError, match="reshape"):
        zeros(x.shape, numbers).reshape(want.numbers(numbers))
    assert ("elements", f"{zeros(x.shape, numbers).size} there, {zeros(want, numbers).size} wanted") in error.details
    assert have is not None


def test_reshape_that_scrambles():
    x = symbolic("f32[b=B, s=S, d=H*K]")
    error = expect_refusal(lambda: x.reshape(b="B", h="H", s="S", k="K"))
    assert "scramble" in error.message
    assert "transpose" in (error.remedy or "")
    expect_refusal(lambda: symbolic("f32[b=B, s=512, d=512]").reshape(b="B", d=512, s=512))
    expect_refusal(lambda: symbolic("f32[6, 4]").reshape(4, 6))
    expect_refusal(lambda: symbolic("f32[b=B, h=H, s=S, k=K]").merge("h k", "d"))


def test_reshape_by_a_fact_leaves_the_neighbours_alone():
    with smelt.assume("D == H*K"):
        wide, heads = symbolic("f32[b=B, d=D, s=S]"), symbolic("f32[b=B, h=H, k=K, s=S]")
        assert wide.reshape(b="B", h="H", k="K", s="S").shape == heads.shape
        assert heads.reshape(b="B", d="D", s="S").shape == wide.shape
        expect_refusal(lambda: wide.reshape(b="B", s="S", h="H", k="K"))


def test_reshape_lets_axes_of_size_one_stand_anywhere():
    x = symbolic("f32[a=K, b=1, c=1, d=B]")
    assert x.reshape(n=1, a="K", b=1, m=1, d="B").shape.names == ("n", "a", "b", "m", "d")
    assert x.reshape(c=1, d="K*B").shape.names == ("c", "d")
    expect_refusal(lambda: x.reshape(d="K", a="B"))


def test_heads_without_a_fact():
    x = symbolic("f32[b=B, s=S, d=D]")
    for run in (lambda: x.split("d", h="H", k="D//H"), lambda: x.split("d", h="H", k=None)):
        error = expect_refusal(run)
        assert error.missing == "H divides D"
        assert 'smelt.assume("H divides D")' in (error.remedy or "")
        numbers = error.counterexample
        assert numbers is not None
        assert numbers["H"] == 0 or numbers["D"] % numbers["H"]


def test_broadcasting_both_operands():
    for left, right in (
        (symbolic(Shape("f32", "B", 1)), symbolic(Shape("f32", "B"))),
        (symbolic("f32[B, 1]"), symbolic("f32[B]")),
    ):
        error = expect_refusal(partial(sub, left, right))
        assert "both operands would have to be repeated" in error.message


def test_named_operands_neither_of_which_contains_the_other():
    error = expect_refusal(lambda: symbolic("f32[b=B, s=S]") + symbolic("f32[b=B, t=S]"))
    assert "neither operand has all axes" in error.message
    assert 'rename(t="s")' in (error.remedy or "")
    assert "outer" in (error.remedy or "")


def test_concatenating_different_axes():
    error = expect_refusal(lambda: concatenate([symbolic("[S, D]".join(["f32", ""])), symbolic("f32[T, E]")], "s"))
    assert 'no axis "s"' in error.message
    error = expect_refusal(lambda: concatenate([symbolic("f32[s=S, d=D]"), symbolic("f32[s=T, d=E]")], "s"))
    assert error.message == 'concatenate: "d" has different sizes, D and E'
    numbers = error.counterexample
    assert numbers
    with pytest.raises(ValueError, match="dimension"):
        np.concatenate([np.zeros((2, numbers["D"])), np.zeros((3, numbers["E"]))])


def test_even_and_odd_elements_of_an_odd_size():
    x = symbolic("f32[s=S]")
    error = expect_refusal(lambda: x[::2] + x[1::2])
    numbers = error.counterexample
    assert numbers is not None
    assert numbers["S"] % 2 == 1
    assert error.missing == "S % 2 == 0"
    with assume("2 divides S"):
        assert str((x[::2] + x[1::2]).shape.names) == "('s',)"


def test_a_cache_write_that_may_not_fit():
    cache, new = symbolic("f32[b=B, c=C, d=D]"), symbolic("f32[b=B, c=S, d=D]")
    position = symbolic("i32[]")
    error = expect_refusal(lambda: cache.update(new, c=position))
    assert error.missing == "S <= C"
    numbers = error.counterexample
    assert numbers is not None
    assert numbers["S"] > numbers["C"]
    with assume("S <= C"):
        assert cache.update(new, c=position).shape == cache.shape


def test_contracted_wrongly_although_the_sizes_are_equal():
    x, w = symbolic("f32[b=B, d=512]"), symbolic("f32[f=512, d=512]")
    error = expect_refusal(lambda: x @ w)
    assert "different axes" in error.message
    assert error.remedy == '.dot(w, "d")'
    error = expect_refusal(lambda: x.dot(w, "f"))
    assert error.message == 'dot over "f": the left operand has no such axis'
    assert x.dot(w, "d").shape.names == ("b", "f")


def test_a_mistake_in_one_branch_only():
    def f(x: Tensor, y: Tensor) -> Tensor:
        if x.size("s") > 4:
            return x + y
        return x

    outcome = check(f, Shape("f32", s="S"), Shape("f32", s="T"))
    assert outcome.path_count == 2
    [error] = outcome.errors
    assert isinstance(error, TensorError)
    assert error.under == ("S >= 5",)
    assert error.counterexample is not None
    assert error.counterexample["S"] >= 5
    assert error.counterexample["S"] != error.counterexample["T"]


def test_an_index_that_is_not_always_inside():
    x = symbolic("f32[s=S]")
    error = expect_refusal(lambda: x[0])
    assert error.counterexample == {"S": 0}
    assert error.missing == "S >= 1"
    assert expect_refusal(lambda: symbolic("f32[s=3]")[3]).message.startswith("index 3")


def test_windows_that_do_not_fit():
    image, kernel = symbolic("f32[n=N, c=3, x=X]"), symbolic("f32[o=8, c=3, x=5]")
    error = expect_refusal(lambda: image.conv(kernel, "x"))
    assert error.counterexample is not None
    assert error.counterexample["X"] < 5
    assert expect_refusal(lambda: image.conv(symbolic("f32[o=8, c=4, x=1]"), "x", padding="same")).message.startswith(
        "conv:"
    )
    expect_refusal(lambda: image.max_pool({"x": 2}))


def test_axes_of_size_one_are_not_repeated_by_name():
    x = symbolic("f32[b=B, d=D]")
    error = expect_refusal(lambda: x - x.mean("d", keep=True))
    assert "keep=True" in (error.remedy or "")
    assert (x - x.mean("d")).shape == x.shape


def test_names_are_proven_too():
    x = symbolic("f32[b=B, d=D]")
    assert "no axis" in expect_refusal(lambda: x.sum("s")).message
    assert "two axes" in expect_refusal(lambda: x.rename(b="d")).message
    assert "would be lost" in expect_refusal(lambda: x.transpose("d")).message
    assert "given by name" in expect_refusal(lambda: x.sum(0)).message
    hints = [expect_refusal(partial(x.sum, place)).remedy for place in range(-3, 3)]
    assert hints == ["say its name", 'say "b"', 'say "d"', 'say "b"', 'say "d"', "say its name"]
    assert "has no axis" in expect_refusal(lambda: symbolic(Shape("f32", 2, 3)).sum("b")).message


# ---- accepted ----


def test_a_residual_block():
    x, up, down = symbolic("f32[b=B, s=S, d=D]"), symbolic("f32[d=D, f=F]"), symbolic("f32[f=F, d=D]")
    assert (x + x.dot(up, "d").gelu().dot(down, "f")).shape == x.shape


def test_heads_with_a_fact():
    x = symbolic("f32[b=B, s=S, d=D]")
    with assume("H divides D"):
        heads = x.split("d", h="H", k=None)
        assert str(heads.shape) == "f32[b=B, s=S, h=H, k=D//H]"
        assert (heads.merge("h k", "d") + x).shape.names == ("b", "s", "d")
        turned = heads.transpose("b h s k").transpose("b s h k").merge("h k", "d")
        assert (x + turned).rank == 3


def test_padding_to_a_multiple():
    x = symbolic("f32[s=S, d=D]")
    blocks = x.pad(s=(0, -x.size("s") % 8)).split("s", n=None, k=8)
    assert blocks.shape.sizes[1] == 8
    back = blocks.merge("n k", "s").slice(s=slice(0, x.size("s")))
    assert (back + x).shape.names == ("s", "d")


def test_concatenation_adds_sizes():
    joined = concatenate([symbolic("f32[s=S, d=D]"), symbolic("f32[s=T, d=D]")], "s")
    assert str(joined.shape) == "f32[s=S + T, d=D]"
    (first, second) = joined.chunk("s", ["S", "T"])
    assert (str(first.shape), str(second.shape)) == ("f32[s=S, d=D]", "f32[s=T, d=D]")


def test_same_convolutions_keep_any_size():
    image, kernel = symbolic("f32[n=N, c=4, y=Y, x=X]"), symbolic("f32[o=4, c=4, y=3, x=3]")
    out = image.conv(kernel, "y x", padding="same").rename(o="c")
    assert (out + image).shape.names == ("n", "c", "y", "x")
    for size in (0, 1, 2, 5):
        assert out.shape.numbers({"N": 1, "Y": size, "X": size}) == (1, 4, size, size)


def test_outer_is_explicit():
    i, j = smelt.arange("S", "s"), smelt.arange("T", "t")
    assert str((smelt.outer("-", i, j) >= 0).shape) == "i1[s=S, t=T]"


def test_slices_have_the_sizes_that_python_gives():
    x = symbolic("f32[s=S]")
    for index in (slice(1, None), slice(None, -1), slice(2, 5), slice(-3, None), slice(None, None, 3), slice(1, 9, 4)):
        for size in range(12):
            expected = len(range(size)[index])
            assert x[index].shape.numbers({"S": size}) == (expected,), (index, size)


def test_any_slice_has_the_size_that_python_gives(seed: int):
    rng = np.random.default_rng(seed)
    x = symbolic("f32[s=S]")
    for _ in range(300):
        start, stop = (None if rng.random() < 0.2 else int(rng.integers(-6, 7)) for _ in range(2))
        index = slice(start, stop, int(rng.integers(1, 4)))
        sizes = x[index].shape
        for size in range(9):
            assert sizes.numbers({"S": size}) == (len(range(size)[index]),), (index, size)


def test_slices_by_other_sizes_mean_what_python_means(seed: int):
    """An end whose sign depends on sizes counts from the front or from the back, as it turns out to be."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        s, t = x.size("s"), y.size("t")
        return x[-t:], x[: s - t], x[t - 2 :], x[t : s - 1], x[s - t :]

    traced = trace(f, Shape("f32", s="S"), Shape("f32", t="T"))
    for s in range(6):
        for t in range(6):
            x = np.arange(s, dtype=np.float32)
            want = x[-t:], x[: s - t], x[t - 2 :], x[t : s - 1], x[s - t :]
            got = traced(x, np.zeros(t, np.float32), engine="reference")
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                np.testing.assert_array_equal(a, b, f"slice {i} for S={s}, T={t}")


def test_an_index_by_a_size():
    error = refused_by_check(lambda x: x[x.size("s") - 1], Shape("f32", s="S"))
    assert error.counterexample == {"S": 0}
    with assume("S >= 1"):
        traced = trace(lambda x: x[x.size("s") - 1], Shape("f32", s="S"))
    assert traced(np.array([1.0, 5.0], np.float32), engine="reference") == 5


def refused_by_check(function: Callable[..., Any], *shapes: Shape) -> TensorError:
    [error] = check(function, *shapes).errors
    assert isinstance(error, TensorError)
    return error


def test_repeating_by_a_size(seed: int):
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.repeat("s", y.size("t")), x.tile("s", y.size("t"))

    traced = trace(f, Shape("f32", s="S"), Shape("f32", t="T"))
    assert [str(result.shape) for result in traced.results] == ["f32[s=S*T]"] * 2
    x = np.arange(3, dtype=np.float32)
    for t in range(3):
        repeated, tiled = traced(x, np.zeros(t, np.float32), engine="reference")
        np.testing.assert_array_equal(repeated, np.repeat(x, t))
        np.testing.assert_array_equal(tiled, np.tile(x, t))


def test_a_reshape_that_only_splits_and_merges_is_accepted(seed: int):
    rng = np.random.default_rng(seed)
    factors: list[Size] = [symbol("A"), symbol("B"), symbol("C"), 2, 3, 5, 1, 0]

    def grouped(parts: list[Size]) -> list[Size]:
        """Neighbours multiplied, at random."""
        out: list[Size] = []
        while parts:
            count = int(rng.integers(1, 4))
            out.append(product(parts[:count]))
            parts = parts[count:]
        return out

    for _ in range(500):
        parts = [factors[int(i)] for i in rng.integers(0, len(factors), int(rng.integers(1, 7)))]
        x, wanted = symbolic(Shape("f32", *grouped(parts))), grouped(parts)
        assert x.reshape(*wanted).shape.sizes == tuple(wanted)


def test_splitting_and_merging_by_numbers():
    x = symbolic("f32[a=A, b=12]")
    assert str(x.reshape(a="A", y=3, x=4).shape) == "f32[a=A, y=3, x=4]"
    assert str(x.reshape(n="12*A").shape) == "f32[n=12*A]"
    assert str(symbolic("f32[2*A, 6]").reshape(-1, 2).shape) == "f32[6*A, 2]"
    assert str(symbolic("f32[a=A, b=1]").reshape(a="A").shape) == "f32[a=A]"


# ---- facts ----


def test_facts_are_checked_when_the_function_runs():
    @assume("S <= C")
    def write(cache: Tensor, new: Tensor) -> Tensor:
        return cache.update(new, s=0)

    traced = trace(write, Shape("f32", s="C"), Shape("f32", s="S"))
    out = traced(np.zeros(3, np.float32), np.ones(2, np.float32), engine="reference")
    assert out.tolist() == [1, 1, 0]
    with pytest.raises(smelt.SmeltError, match="a fact does not hold"):
        traced(np.zeros(3, np.float32), np.ones(4, np.float32), engine="reference")


def test_assume_as_a_statement_holds_in_the_function_only():
    def write(cache: Tensor, new: Tensor) -> Tensor:
        smelt.assume("S <= C")
        return cache.update(new, s=0)

    traced = trace(write, Shape("f32", s="C"), Shape("f32", s="S"))
    with pytest.raises(smelt.SmeltError, match="a fact does not hold"):
        traced(np.zeros(1, np.float32), np.ones(4, np.float32), engine="reference")
    error = expect_refusal(lambda: symbolic("f32[s=C]").update(symbolic("f32[s=S]"), s=0))
    assert error.missing == "S <= C"


def test_a_fact_that_cannot_be_read():
    with pytest.raises(TensorError, match="not a fact"):
        assume("S is even")


def test_what_is_proven_is_not_assumed_by_the_ir():
    """Sizes that were proven under facts stay checks of the program: they hold wherever the facts do."""
    with assume("H divides D"):
        traced = trace(lambda x: x.split("d", h="H", k=None).merge("h k", "d") + x, Shape("f32", b="H", d="D"))
    array = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert traced(array, engine="reference").tolist() == (2 * array).tolist()


def test_facts_are_checked_on_every_path():
    """Two paths, chosen by a size: the fact that does not hold is named on both."""

    def write(cache: Tensor, new: Tensor) -> Tensor:
        smelt.assume("S <= C")
        return cache.update(new, s=0) + (1.0 if cache.size("s") >= 3 else 0.0)

    executable = smelt.compile(write, "f32[s=C]", "f32[s=S]", engine="reference")
    for c, want in ((2, [1, 0]), (3, [2, 1, 1])):
        found = executable(np.zeros(c, np.float32), np.ones(1, np.float32))
        assert found.numpy().tolist() == want
        with pytest.raises(smelt.SmeltError, match=rf"a fact does not hold\n +expected S <= C\n +got .*'S': {c + 1}"):
            executable(np.zeros(c, np.float32), np.ones(c + 1, np.float32))
