"""FlashAttention on tensor cores, run by the emulator, against float64: masks, shared heads, types, ragged sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

from smelt.device.cuda import TARGETS
from smelt.dtype import Array, dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.build import attention_simt, paged_attention_simt
from tests.cuda.emulated import EmulatedCuda
from tests.unit.ir import test_paged_attention_op as paged

jax = pytest.importorskip("jax")
jnp = jax.numpy
BF16, F16 = dtype("bf16").numpy, np.dtype(np.float16)
F32 = np.dtype(np.float32)
MACHINES = ("sm_90", "sm_80")  # wgmma, mma.sync
Masks = Callable[[Any, Any, Any], Any]  # scores, positions of queries and of keys → scores


def attend(np: Any, q: Any, k: Any, v: Any, masks: Masks, wide: Any, guarded: bool = False) -> Any:
    """Attention of q [batch, query, head, size] with heads of k and v that several heads of q share."""
    batch, count, heads, size = q.shape
    groups = k.shape[2]
    q = q.reshape(batch, count, groups, heads // groups, size).astype(wide)
    scores = np.einsum("bqgrd,bkgd->bgrqk", q, k.astype(wide)) * size**-0.5
    scores = masks(scores, np.arange(count)[:, None], np.arange(k.shape[1])[None])
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    if guarded:
        weights = np.where(np.isnan(weights), 0, weights)
    return np.einsum("bgrqk,bkgd->bqgrd", weights, v.astype(wide)).reshape(batch, count, heads, v.shape[-1])


def causal(scores: Any, at: Any, key: Any) -> Any:
    return (jnp if hasattr(scores, "aval") else np).where(at >= key, scores, -inf)


def window(scores: Any, at: Any, key: Any) -> Any:
    return (jnp if hasattr(scores, "aval") else np).where((at >= key) & (at - key < 70), scores, -inf)


def finite(scores: Any, at: Any, key: Any) -> Any:
    """The first rows see nothing: all of their weights are the same."""
    return (jnp if hasattr(scores, "aval") else np).where(at - 5 >= key, scores, np.float32(-3.4e38))


def biased(scores: Any, at: Any, key: Any) -> Any:
    return scores + abs(at - key) * -0.125


def capped(scores: Any, at: Any, key: Any) -> Any:
    return 2 * (jnp if hasattr(scores, "aval") else np).tanh(scores / 2)


def plain(scores: Any, at: Any, key: Any) -> Any:
    return scores


# queries, keys, heads of both, sizes of a key and of a value, types of q, k, v and the result
CASES: dict[str, tuple[Masks, tuple[int, ...], tuple[Any, ...]]] = {
    "causal": (causal, (200, 200, 4, 2, 64, 64), (BF16,) * 4),
    "window": (window, (140, 300, 1, 1, 128, 128), (BF16,) * 4),
    "finite": (finite, (70, 130, 2, 1, 32, 32), (BF16,) * 4),
    "biased": (biased, (65, 90, 2, 2, 80, 48), (BF16,) * 4),
    "capped": (capped, (64, 64, 1, 1, 64, 64), (BF16,) * 4),
    "long": (causal, (70, 1100, 1, 1, 64, 64), (BF16,) * 4),
    "deep": (plain, (64, 140, 1, 1, 256, 256), (BF16,) * 4),
    "odd": (plain, (66, 65, 1, 1, 36, 20), (BF16,) * 4),
    "f32": (causal, (130, 130, 2, 1, 64, 64), (F32,) * 4),
    "f32 queries": (plain, (64, 600, 1, 1, 128, 128), (F32, BF16, BF16, F32)),
    "f32 result": (window, (64, 100, 1, 1, 32, 64), (BF16, BF16, BF16, F32)),
    "f16": (biased, (64, 100, 1, 1, 32, 32), (F16,) * 4),
}


def make(name: str, batch: int, random: np.random.Generator) -> tuple[Program, list[Array], Array]:
    """A program, arguments, and the result in float64."""
    masks, (count, keys, heads, groups, size, wide), types = CASES[name]
    shapes = (batch, count, heads, size), (batch, keys, groups, size), (batch, keys, groups, wide)
    given = [random.standard_normal(each).astype(kind) for each, kind in zip(shapes, types, strict=False)]

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(jnp, q, k, v, masks, jnp.float32).astype(types[3])

    program = parse(jax.jit(function).lower(*given).as_text())
    q, k, v = given
    return program, given, attend(np, q, k, v, masks, np.float64)


def source(program: Program, machine: str) -> str:
    return "".join(emit_source([plan_program(program, TARGETS[machine])]).texts(1))


@pytest.mark.parametrize("machine", MACHINES)
def test_attention_is_close_to_float64(machine: str, emulated: EmulatedCuda, seed: int) -> None:
    random = np.random.default_rng(seed)
    made = [make(name, 1, random) for name in CASES]
    compiled = compile_all([program for program, *_ in made], TARGETS[machine])
    for name, (program, given, want), run in zip(CASES, made, compiled, strict=True):
        assert not isinstance(run, SmeltError), run
        assert "smelt_attend<" in source(program, machine), name
        got, kind = run(*given)[0].numpy().astype(np.float64), CASES[name][2][3]
        if kind == F32:
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, err_msg=name)
        else:  # weights are rounded as results are
            unit = 2.0**-11 if kind == F16 else 2.0**-8
            np.testing.assert_allclose(got, want, rtol=unit, atol=unit * np.abs(want).max(), err_msg=name)


@pytest.mark.parametrize("machine", MACHINES)
def test_bits_of_a_row_do_not_depend_on_the_batch(machine: str, emulated: EmulatedCuda, seed: int) -> None:
    (program, several, _), (alone, _, _) = (make("window", batch, np.random.default_rng(seed)) for batch in (3, 1))
    both = compile_all([program, alone], TARGETS[machine])
    assert not any(isinstance(each, SmeltError) for each in both)
    whole: Any = both[0](*several)[0].numpy()  # type: ignore[operator]
    one: Any = both[1](*(each[1:2] for each in several))[0].numpy()  # type: ignore[operator]
    np.testing.assert_array_equal(whole[1:2].view(np.uint16), one.view(np.uint16))


def test_tiles_that_masks_hide_are_not_read(emulated: EmulatedCuda, seed: int) -> None:
    """What is not a number there does no harm; a tile that some query sees has it."""
    program, (q, k, v), want = make("causal", 1, np.random.default_rng(seed))
    v[:, 128:] = np.nan
    (run,) = compile_all([program], emulated.target())
    assert not isinstance(run, SmeltError)
    got = run(q, k, v)[0].numpy().astype(np.float32)
    np.testing.assert_allclose(got[:, :64], want[:, :64], rtol=2e-2, atol=2e-2)
    assert np.isnan(got[:, 128:]).all()


@pytest.mark.races
@pytest.mark.parametrize("guarded", [True, False])
def test_queries_that_see_no_key(guarded: bool, emulated: EmulatedCuda, seed: int) -> None:
    random = np.random.default_rng(seed)
    q, k, v = given = [random.standard_normal((1, 100, 2, 32)).astype(BF16) for _ in range(3)]
    seen = random.random((1, 1, 1, 100, 100)) < 0.5
    seen[:, :, :, 30:90] = False

    def masks(np: Any) -> Masks:
        return lambda scores, at, key: np.where(seen, scores, -inf)

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(jnp, q, k, v, masks(jnp), jnp.float32, guarded).astype(BF16)

    program = parse(jax.jit(function).lower(*given).as_text())
    assert "smelt_attend<" in source(program, "sm_90")
    (run,) = compile_all([program], emulated.target())
    assert not isinstance(run, SmeltError)
    got = run(*given)[0].numpy().astype(np.float64)
    with np.errstate(invalid="ignore"):
        want = attend(np, q, k, v, masks(np), np.float64, guarded)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want).any() != guarded
    np.testing.assert_allclose(got, want, rtol=2**-7, atol=2**-7)


# heads, groups, depth, values, page, window, softcap, sinks, element type of the pages
PAGED = {
    "shared heads": (4, 2, 64, 32, 64, 0, 0.0, False, "bf16"),
    "window, softcap": (2, 2, 128, 64, 64, 50, 2.0, False, "bf16"),
}


# queries and heads that share keys, keys, sizes of a key and of a value, positions in use
FEW = {
    "a cache": (1, 4, 384, 128, 128, 130),
    "one position": (1, 1, 128, 64, 64, 1),
    "a tail": (1, 8, 300, 32, 128, 300),
    "several queries": (5, 3, 272, 256, 256, 200),
    "rows of 96 and 192": (1, 2, 200, 96, 192, 150),
    "rows of 16": (1, 4, 300, 16, 16, 280),
    "rows of 80 and 96": (2, 4, 200, 80, 96, 200),
    "rows of 112 and 48": (1, 3, 256, 112, 48, 256),
}


def few(name: str, batch: int, random: np.random.Generator) -> tuple[Program, list[Array], Array]:
    """Queries at the end of what a cache holds; a position in use for each of them. What is not in use is no number."""
    count, shared, keys, size, wide, used = FEW[name]
    shapes = (batch, count, 2 * shared, size), (batch, keys, 2, size), (batch, keys, 2, wide)
    kinds = (F32, BF16, BF16)
    q, k, v = given = [random.standard_normal(each).astype(kind) for each, kind in zip(shapes, kinds, strict=True)]
    at = np.int32(used - count)
    k[:, used:], v[:, -(-used // 16) * 16 :] = np.nan, np.nan  # of 16 keys all are read where one is seen

    def masks(np: Any, at: Any) -> Masks:
        return lambda scores, query, key: np.where(query + at >= key, scores, -inf)

    def function(q: Any, k: Any, v: Any, at: Any) -> Any:
        return attend(jnp, q, k, v, masks(jnp, at), jnp.float32)

    program = parse(jax.jit(function).lower(*given, at).as_text())
    return program, [*given, np.asarray(at)], attend(np, q, k[:, :used], v[:, :used], masks(np, at), np.float64)


@pytest.mark.parametrize("name", FEW)
def test_a_few_queries(name: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch; close to float64; bits depend neither on the batch nor on which blocks have which chunks, nor on who
    combines them."""
    program, given, want = few(name, 2, np.random.default_rng(seed))
    text = source(program, "sm_90")
    assert "smelt_decode<" in text
    assert not re.search(r"attention\d+_1\(", text)
    alone, _, _ = few(name, 1, np.random.default_rng(seed))
    runs = [*compile_all([program, alone], emulated.target())]
    for share in (0, 1, 2, 3):
        monkeypatch.setattr(attention_simt, "choose_share", lambda *_, share=share: share)
        runs += compile_all([program], emulated.target())
    monkeypatch.setattr(attention_simt, "AT_ONCE", 1)
    monkeypatch.setattr(attention_simt, "choose_share", lambda *_: 0)
    runs += compile_all([program], emulated.target())
    assert not any(isinstance(each, SmeltError) for each in runs), runs
    got, one, *others = (
        run(*(each[1:] if each.ndim and run is runs[1] else each for each in given))[0].numpy()  # type: ignore[operator]
        for run in runs
    )
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(got[1:].view(np.uint32), one.view(np.uint32))
    for other in others:
        np.testing.assert_array_equal(got.view(np.uint32), other.view(np.uint32))


# Few queries over pages on tensor cores.
DECODED = {
    "shared heads": (4, 2, 64, 128, 64, 0, 0.0, False, "bf16"),
    "many heads, window, softcap, sinks": (20, 1, 32, 64, 16, 50, 2.0, True, "bf16"),
    "rows of 96": (4, 4, 96, 96, 32, 0, 0.0, False, "bf16"),
    "rows of 80 and 16": (6, 1, 80, 16, 64, 0, 0.0, False, "bf16"),
    "rows of 48 and 112": (8, 2, 48, 112, 16, 70, 0.0, True, "bf16"),
}


@pytest.mark.parametrize("name", DECODED)
def test_a_few_queries_over_pages(
    name: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries of three sequences, of which some are short; bits of a query do not depend on those beside it, nor on how
    many blocks share its keys."""
    case = DECODED[name]
    program = paged.program(case)
    assert "smelt_decode<" in source(program, "sm_90")
    (run,) = compile_all([program], emulated.target())
    assert not isinstance(run, SmeltError), run
    given = paged.inputs(case, seed)
    want, found = paged.expected(case, given), {}
    for start, end in ((0, 20), (11, 16)):
        some = [each[start:end] if i in (0, 4, 5) else each for i, each in enumerate(given)]
        found[start] = run(*some)[0].numpy()
        np.testing.assert_allclose(found[start], want[start:end], rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(found[0][11:16].view(np.uint32), found[11].view(np.uint32))
    monkeypatch.setattr(paged_attention_simt, "LEAST_HEADS", 1)  # a block for each query
    (run,) = compile_all([program], emulated.target())
    assert not isinstance(run, SmeltError), run
    whole = run(*(each[:20] if i in (0, 4, 5) else each for i, each in enumerate(given)))[0].numpy()
    np.testing.assert_array_equal(found[0].view(np.uint32), whole.view(np.uint32))


@pytest.mark.races
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", PAGED)
def test_many_queries_over_pages(machine: str, name: str, emulated: EmulatedCuda, seed: int) -> None:
    """Queries of three sequences; bits of a query do not depend on those beside it."""
    case = PAGED[name]
    program = paged.program(case)
    assert "smelt_attend<" in source(program, machine)
    (run,) = compile_all([program], TARGETS[machine])
    assert not isinstance(run, SmeltError), run
    given = paged.inputs(case, seed)
    want, found = paged.expected(case, given), []
    for start in (0, 5):
        found.append(run(*(each[start:] if i in (0, 4, 5) else each for i, each in enumerate(given)))[0].numpy())
        np.testing.assert_allclose(found[-1], want[start:], rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(found[0][5:].view(np.uint32), found[1].view(np.uint32))
