"""`smelt.paged_attention`: the op, its decomposition and the native kernel mean what JAX computes over gathered pages;
a query's bits depend on neither batch nor block; nothing that does not fit is accepted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from smelt.device import cpu
from smelt.dim import symbol
from smelt.dtype import Array, dtype
from smelt.engine.compile import plan_program
from smelt.engine.native import compile_all
from smelt.errors import DeviceError, SmeltError, VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.composites import encode
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse, print_program
from smelt.kernel.loops import parallelise
from smelt.kernel.loops.grammar import Amount, For
from smelt.kernel.plan.plan import Launch, walk
from smelt.shape import Shape
from smelt.size import evaluate, symbols
from smelt.target import tile_shape

# heads, groups, depth, values, page, window, softcap, sinks, element type of the pages
CASES: dict[str, tuple[int, int, int, int, int, int, float, bool, str]] = {
    "grouped": (6, 2, 8, 8, 4, 0, 0.0, False, "f32"),
    "window, softcap": (3, 3, 20, 12, 8, 5, 2.0, False, "f32"),
    "many heads of one group, sinks": (70, 1, 5, 8, 4, 3, 0.0, True, "f16"),
    "pages of 64": (4, 2, 16, 16, 64, 0, 0.0, True, "bf16"),
    "whole vectors of f16": (2, 1, 5, 32, 16, 0, 0.0, False, "f16"),
    "int8": (6, 2, 12, 20, 16, 0, 0.0, False, "i8"),
    "int8, many heads, window, softcap, sinks": (50, 1, 8, 16, 32, 21, 2.0, True, "i8"),
}

ORDERS = (0, 2, 3, 1), (0, 2, 1, 3)  # of pages [page, position, group, element]: keys, values


def program(case: tuple[Any, ...], width: int = 16) -> Program:
    heads, groups, depth, values, page, window, softcap, sinks, element = case
    n, p, b, m = (symbol(name) for name in "NPBM")
    keys = (depth // 4 + 2, page, 4) if element == "i8" else (depth, page)
    shapes = [Shape("f32", n, heads, depth), Shape(element, p, groups, *keys)]
    rows = (page // 4, values, 4) if element == "i8" else (page, values)
    shapes += [Shape(element, p, groups, *rows), Shape("i32", b, m), Shape("i32", n), Shape("i32", n)]
    f = FuncBuilder("main", [*shapes, Shape("f32", heads)] if sinks else shapes)
    said = encode("smelt.paged_attention", {"scale": 0.3, "softcap": softcap, "window": window})
    return Program.of(f.func(f.op("smelt.paged_attention", *f.args, composite_attributes=said, width=width).result))


def inputs(case: tuple[Any, ...], seed: int) -> list[Array]:
    """Three sequences, with queries at their beginning, in the middle and over the end of a page; one not there."""
    heads, groups, depth, values, page, _, _, sinks, element = case
    random = np.random.default_rng(seed)
    counts, starts = (3, 7, 2 * page + 1, 1), (2 * page + 1, 0, page - 1, -1)
    sequence = np.repeat([0, 1, 2, 1], counts).astype(np.int32)
    position = np.concatenate([np.arange(n) + at for n, at in zip(counts, starts, strict=True)]).astype(np.int32)
    table = random.permutation(19)[:15].reshape(3, 5).astype(np.int32)
    pools = [random.standard_normal((19, page, groups, size)) for size in (depth, values)]
    pools = [np.ascontiguousarray(each.transpose(order)) for each, order in zip(pools, ORDERS, strict=True)]
    pools = pack_int8(*pools) if element == "i8" else [each.astype(dtype(element).numpy) for each in pools]
    given: list[Array] = [random.standard_normal((len(sequence), heads, depth)).astype(np.float32), *pools]
    given += [table, sequence, position]
    return [*given, random.standard_normal(heads).astype(np.float32)] if sinks else given


def pack_int8(keys: Array, values: Array) -> list[Array]:
    """Pages of i8 of keys [p, g, k, s] and values [p, g, s, e]."""
    keys = keys.swapaxes(2, 3)
    scales = [(np.abs(each).max(-1) / 127).astype(np.float32) for each in (keys, values)]
    codes = [np.rint(x / scale[..., None]).astype(np.int8) for x, scale in zip((keys, values), scales, strict=True)]
    rows = np.concatenate([codes[0], *(each[..., None].view(np.int8) for each in scales)], -1)  # [p, g, s, k + 8]
    words = rows.reshape(*rows.shape[:3], -1, 4).transpose(0, 1, 3, 2, 4)
    positions = codes[1].reshape(*words.shape[:2], -1, 4, values.shape[3]).swapaxes(3, 4)
    return [np.ascontiguousarray(words), np.ascontiguousarray(positions)]


def open_int8(q: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
    """What pages of i8 hold, and queries as they are rounded."""
    rows = keys.transpose(0, 1, 3, 2, 4).reshape(*keys.shape[:2], keys.shape[3], -1)
    values = values.swapaxes(3, 4).reshape(*values.shape[:2], -1, values.shape[3])
    scales = [np.ascontiguousarray(rows[..., at : at + 4]).view(np.float32) for at in rows.shape[3] - np.array([8, 4])]
    step = np.abs(q).max(-1, keepdims=True) / np.float32(127)
    return np.rint(q * (1 / step)) * step, (rows[..., :-8] * scales[0]).swapaxes(2, 3), values * scales[1]


def expected(case: tuple[Any, ...], given: list[Array]) -> Array:
    """Query by query, over keys that stand in a row, by JAX."""
    q, keys, values, table, sequence, position = given[:6]
    if keys.dtype == np.int8:
        q, keys, values = open_int8(q, keys, values)
    keys, values = keys.transpose(0, 3, 1, 2), values.transpose(0, 2, 1, 3)
    window, softcap, sinks = case[5:8]
    rows = []
    for n in range(len(q)):
        flat = [np.concatenate(list(pool[table[sequence[n]]])).astype(np.float32) for pool in (keys, values)]
        k, v = (jnp.repeat(each, q.shape[1] // each.shape[1], 1) for each in flat)
        scores = jnp.einsum("hk,thk->ht", q[n], k) * 0.3
        scores = jnp.tanh(scores / softcap) * softcap if softcap else scores
        behind = position[n] - np.arange(len(k))
        seen = (behind >= 0) & ((behind < window) if window else True)
        scores = jnp.where(seen, scores, -jnp.inf)
        if sinks:
            scores = jnp.concatenate([scores, jnp.asarray(given[6])[:, None]], 1)
        weights = jax.nn.softmax(scores, axis=1)[:, : len(k)] if seen.any() else jnp.zeros_like(scores)[:, : len(k)]
        rows.append(np.asarray(jnp.einsum("ht,the->he", weights, v)))
    return np.stack(rows)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_it_is_attention_over_pages(case: tuple[Any, ...], seed: int) -> None:
    given = inputs(case, seed)
    (got,) = run(parse(print_program(program(case))), given)
    np.testing.assert_allclose(got, expected(case, given), rtol=2e-5, atol=2e-6)


@pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")
@pytest.mark.parametrize("name", ["native", "plain"])
def test_bits_of_a_query_are_its_own(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread and on several, alone and among others, in any block."""
    try:
        target = cpu.target(name)
    except DeviceError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(parallelise, "ELEMENTS_PER_CORE", 16)
    width = tile_shape(target).columns
    all_made = compile_all([program(case, width) for case in CASES.values()], target)
    for case, made in zip(CASES.values(), all_made, strict=True):
        assert not isinstance(made, SmeltError), made
        given = inputs(case, seed)
        got = np.asarray(made(*given)[0])
        rounding = 2e-6 if case[8] != "i8" else 5 * case[4] / 131070  # each of a page's weights is rounded to 16 bits
        np.testing.assert_allclose(got, expected(case, given), rtol=2e-5, atol=rounding)
        for start in range(0, len(got), 5):
            part = [each[start : start + 5] if i in (0, 4, 5) else each for i, each in enumerate(given)]
            assert (np.asarray(made(*part)[0]) == got[start : start + 5]).all()
        wild = [np.array(each) for each in given]
        wild[3][:], wild[4][:], wild[5][:] = 1 << 30, -7, 1 << 30  # indices are clamped: nothing outside is read
        made(*wild)


def test_heads_of_one_sequence_are_on_several_cores() -> None:
    case = CASES["grouped"]
    target = cpu.target("plain")
    plan, _ = plan_program(program(case, tile_shape(target).columns), target).plans["main"]
    (kernel,) = [step.kernel for step in walk(plan.steps) if isinstance(step, Launch)]
    (loop,) = [each for each in kernel.body if isinstance(each, For)]
    assert (loop.level, loop.vector) == ("core", "none")
    assert loop.chunks is not None
    assert loop.chunks.polls
    assert isinstance(loop.extent, Amount)
    queries, keys = (program(case).main.args[i].shape.sizes for i in (0, 1))
    (name,) = symbols(queries[0])
    groups = keys[1]
    assert isinstance(groups, int)
    counts = {count: evaluate(loop.extent.size, {name: count}) for count in (1, 8, 64, 65, 512)}
    assert counts == {1: groups, 8: 8, 64: 64, 65: 65 * groups, 512: 512 * groups}  # a few sequences: whole pages


@pytest.mark.parametrize(
    ("place", "shape"),
    [
        (0, Shape("f32", symbol("N"), 5, 8)),
        (1, Shape("f32", symbol("P"), 2, 9, 4)),
        (2, Shape("f32", symbol("P"), 2, 3, 8)),
        (3, Shape("f32", symbol("B"), symbol("M"))),
        (4, Shape("i32", symbol("N"), 1)),
    ],
)
def test_what_does_not_fit_is_refused(place: int, shape: Shape) -> None:
    shapes = [arg.shape for arg in program(CASES["grouped"]).main.args]
    shapes[place] = shape
    f = FuncBuilder("main", shapes)
    said = encode("smelt.paged_attention", {"scale": 0.3, "softcap": 0.0, "window": 0})
    with pytest.raises(VerifyError):
        f.op("smelt.paged_attention", *f.args, composite_attributes=said, width=8)


def test_bad_attributes_are_refused() -> None:
    f = FuncBuilder("main", [arg.shape for arg in program(CASES["grouped"]).main.args])
    bad = encode("smelt.paged_attention", {"scale": 0.3, "softcap": 0.0, "window": -1})
    with pytest.raises(VerifyError, match="attributes"):
        f.op("smelt.paged_attention", *f.args, composite_attributes=bad, width=8)
