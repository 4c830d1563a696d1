"""The reference semantics of each composite, from its name and attributes alone, in float64 NumPy.

Written from the table in `smelt/ir/composites.py` and not from any decomposition: the tests hold the two against each
other, so that an engine which trusts the attributes computes what the program says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from smelt.ir.composites import decode
from smelt.ir.core import Func, Program, Region
from smelt.ir.interpret import run

Array = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def meaning(name: str, said: dict[str, Any], operands: Sequence[Array], like: Sequence[Array]) -> list[Array]:
    """The results of a composite; `like` are arrays of the results' types."""
    wide = [x if x.dtype == bool else x.astype(np.int64 if x.dtype.kind in "iu" else np.float64) for x in operands]
    return _MEANINGS[name](said, wide, like)


def check_meanings(program: Program, args: Sequence[Array]) -> None:
    """Every composite of a program gives what its attributes say, within f32's rounding or one step of an integer."""
    found = [op for op in program.main.body.ops if op.name == "stablehlo.composite"]
    shown = [value for op in found for value in (*op.operands, *op.results)]
    body = program.main.body
    probe = Func("main", Region(body.args, body.ops, tuple(shown)))
    arrays = iter(run(program.replace(probe), args))
    for op in found:
        operands = [next(arrays) for _ in op.operands]
        results = [next(arrays) for _ in op.results]
        said = meaning(op.attrs["name"], decode(op), operands, results)
        for have, want in zip(results, said, strict=True):
            step = 1 if have.dtype.kind in "iu" and have.dtype.itemsize == 1 else 0
            assert have.shape == want.shape
            np.testing.assert_allclose(have, want, rtol=2e-5, atol=step or 2e-5, err_msg=op.attrs["name"])


# ---- layouts ----


def split(layout: str) -> tuple[list[list[str]], list[str]]:
    """Words of a layout as lists of axes, each a string of letters."""
    left, right = layout.split("->")
    words = [[each.strip("()").replace(".", "") for each in re.findall(r"\([^)]*\)|.", w)] for w in left.split(",")]
    return words, [each.strip("()").replace(".", "") for each in re.findall(r"\([^)]*\)|.", right)]


def letter_sizes(words: Sequence[Sequence[str]], arrays: Sequence[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    pairs = [pair for word, array in zip(words, arrays, strict=True) for pair in zip(word, array.shape, strict=True)]
    for _ in range(len(pairs) + 1):
        for axis, size in pairs:
            open_letters = [letter for letter in axis if letter not in sizes]
            if len(open_letters) == 1:
                known = math.prod(sizes[letter] for letter in axis if letter in sizes)
                assert size % known == 0
                sizes[open_letters[0]] = size // known
    for axis, size in pairs:
        assert math.prod(sizes[letter] for letter in axis) == size, (axis, size, sizes)
    return sizes


def apart(array: Array, word: Sequence[str], sizes: dict[str, int]) -> tuple[Array, str]:
    """An array with one axis per letter."""
    letters = "".join(word)
    return array.reshape([sizes[letter] for letter in letters]), letters


def onto(array: Array, letters: str, wanted: str) -> Array:
    """An array so that it broadcasts against one with the wanted letters."""
    assert set(letters) <= set(wanted), (letters, wanted)
    ordered = array.transpose([letters.index(each) for each in wanted if each in letters])
    sizes = iter(ordered.shape)
    return ordered.reshape([next(sizes) if each in letters else 1 for each in wanted])


# ---- the table ----


def _softmax(said: dict[str, Any], operands: list[Array], like: Sequence[Array]) -> list[Array]:
    (x,) = operands
    return [_soft(x, (said["axis"],))]


def _soft(x: Array, axes: tuple[int, ...]) -> Array:
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(axes, keepdims=True))
        return powers / powers.sum(axes, keepdims=True)


def _norm(centred: bool) -> Callable[..., list[Array]]:
    def run(said: dict[str, Any], operands: list[Array], like: Sequence[Array]) -> list[Array]:
        x, *extra = operands
        axes = said["axes"]
        top = x - x.mean(axes, keepdims=True) if centred else x
        y = top / np.sqrt((top**2).mean(axes, keepdims=True) + said["epsilon"])
        for each, apply in zip(extra, (np.multiply, np.add)[: len(extra)], strict=True):
            sizes = [size if d in axes else 1 for d, size in enumerate(x.shape)]
            y = apply(y, each.reshape(sizes))
        return [y]

    return run


def _gelu(said: dict[str, Any], operands: list[Array], like: Sequence[Array]) -> list[Array]:
    (x,) = operands
    if said["approximate"]:
        return [0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))]
    return [0.5 * x * (1 + _erf(x / math.sqrt(2)))]


def _attention(said: dict[str, Any], operands: list[Array], like: Sequence[Array]) -> list[Array]:
    words, result = split(said["layout"])
    sizes = letter_sizes([*words, result], [*operands, *like])
    roles = said["operands"].split()
    parts = [apart(x, word, sizes) for x, word in zip(operands, words, strict=True)]
    (q, ql), (k, kl), (v, vl) = parts[:3]
    assert roles[:3] == ["q", "k", "v"]
    shown = "".join(result)
    contracted = {each for each in ql if each in kl and each not in shown}
    keys = [each for each in kl if each not in ql and each not in shown]
    letters = "".join(
        dict.fromkeys(each for each in (*ql, *kl, *"".join(w for _, w in parts[3:])) if each not in contracted)
    )
    whole = "".join(each for each in letters if each in ql or each in kl)
    scores = onto(np.einsum(f"{ql},{kl}->{whole}", q, k), whole, letters) * said["scale"]
    if said["softcap"]:
        scores = said["softcap"] * np.tanh(scores / said["softcap"])
    fill = iter(said["fill"])
    for role, (mask, own) in zip(roles[3:], parts[3:], strict=True):
        mask = onto(mask, own, letters)
        if role == "add":
            scores = scores + mask
        else:
            scores = np.where(mask == (role == "where"), scores, next(fill))
    weights = _soft(scores, tuple(letters.index(each) for each in keys))
    if said["guarded"]:
        weights = np.where(np.isnan(weights), 0.0, weights)
    weights = np.broadcast_to(weights, [sizes[each] for each in letters])
    return [np.einsum(f"{letters},{vl}->{shown}", weights, v).reshape(like[0].shape)]


def _rounded(x: Array, scale: Array | float, zero: Array | int, like: Array) -> Array:
    limits = np.iinfo(like.dtype)
    return np.clip(np.round(x / scale) + zero, limits.min, limits.max)


def _elementwise(quantize: bool) -> Callable[..., list[Array]]:
    def run(said: dict[str, Any], operands: list[Array], like: Sequence[Array]) -> list[Array]:
        words, result = split(said["layout"])
        sizes = letter_sizes(words, operands)
        named = {
            role: onto(*apart(x, word, sizes), "".join(result))
            for role, x, word in zip(said["operands"].split(), operands, words, strict=True)
        }
        zero = named.get("zero", 0)
        if quantize:
            y = _rounded(named["x"], named["scale"], zero, like[0])
        else:
            y = (named["x"] - zero) * named["scale"]
        return [y.reshape(like[0].shape)]

    return run


def _qdot(said: dict[str, Any], operands: list[Array], like: Sequence[Array]) -> list[Array]:
    words, result = split(said["layout"])
    roles = said["operands"].split()
    window = "strides" in said
    named: dict[str, list[tuple[Array, str]]] = {}
    sizes = {} if window else letter_sizes([*words, result], [*operands, *like])
    for role, x, word in zip(roles, operands, words, strict=True):
        own = {each: n for n, each in zip(x.shape, word, strict=True) if each} if window else sizes
        named.setdefault(role, []).append(apart(x, word, own))
    sides = []
    for side in ("lhs", "rhs"):
        ((x, letters),) = named[side]
        zero = [onto(*each, letters) for each in named.get(f"{side}_zero", [])]
        sides.append((x - sum(zero, np.int64(0)), letters))
    shown = "".join(result)
    total = (
        _windowed(said, sides, shown, like[0])
        if window
        else np.einsum(f"{sides[0][1]},{sides[1][1]}->{shown}", *(x for x, _ in sides))
    )
    biases = [(onto(*each, shown), np.issubdtype(each[0].dtype, np.integer)) for each in named.get("bias", [])]
    for bias, whole in biases:
        if whole and "bias_scale" not in named:
            total = total + bias
    y = total.astype(np.float64)
    for scale in named.get("scale", []):
        y = y * onto(*scale, shown)
    for bias, whole in biases:
        if "bias_scale" in named:
            y = y + bias * onto(*named["bias_scale"][0], shown)
        elif not whole:
            y = y + bias
    if like[0].dtype.itemsize == 1:
        step = onto(*named["result_scale"][0], shown) if "result_scale" in named else 1.0
        y = _rounded(y, step, onto(*named["result_zero"][0], shown) if "result_zero" in named else 0, like[0])
    return [y.reshape(like[0].shape)]


def _windowed(said: dict[str, Any], sides: list[tuple[Array, str]], shown: str, like: Array) -> Array:
    (x, xl), (w, wl) = sides
    places = [each for each in "xyzuvw" if each in wl or each in xl or each in shown]
    x = onto(x, xl, "bf" + "".join(places)) if set(xl) <= set("bf" + "".join(places)) else x
    w = onto(w, wl, "oi" + "".join(places))
    assert set(said["lhs_dilation"]) <= {1}
    assert said["batch_groups"] == 1
    pads = [(said["padding"][2 * i], said["padding"][2 * i + 1]) for i in range(len(places))]
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    groups, outputs, inputs = said["groups"], w.shape[0], w.shape[1]
    steps, spread = said["strides"], said["rhs_dilation"]
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], spread, strict=True)]
    counts = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, steps, strict=True)]
    y = np.zeros((x.shape[0], outputs, *counts), np.int64)
    for o, at in product(range(outputs), product(*map(range, w.shape[2:]))):
        first = (o // (outputs // groups)) * inputs
        cut = tuple(
            slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in zip(at, spread, counts, steps, strict=True)
        )
        part = x[(slice(None), slice(first, first + inputs), *cut)]
        y[:, o] += np.einsum("bi...,i->b...", part, np.moveaxis(w, (0, 1), (-2, -1))[at][o])
    kept = "bo" + "".join(places)
    return y.reshape([n for n, each in zip(y.shape, kept, strict=True) if each in shown])


# ---- recurrence ----

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def _recurrent(kind: str) -> Callable[..., list[Array]]:
    def run(said: dict[str, Any], operands: list[Array], like: Sequence[Array]) -> list[Array]:
        named = dict(zip(said["operands"].split(), operands, strict=True))
        x, h = named["x"], named["h"]
        states = [h, named["c"]] if kind == "lstm" else [h]
        lengths = named.get("lengths", np.full(x.shape[1], len(x)))
        y = np.zeros((len(x), *h.shape))
        functions = [_ACTIVATIONS[each] for each in said["activations"].split()]

        def gate(k: int, value: Array) -> Array:
            return functions[k](np.clip(value, -said["clip"], said["clip"]) if said["clip"] else value)

        for t in reversed(range(len(x))) if said["reverse"] else range(len(x)):
            new = _STEPS[kind](said, named, x[t], states, gate)
            alive = (t < lengths)[:, None]
            states = [np.where(alive, a, b) for a, b in zip(new, states, strict=True)]
            y[t] = np.where(alive, new[0], 0)
        return [y, *states]

    return run


def _biases(named: dict[str, Array], gates: int) -> tuple[list[Array], list[Array]]:
    size = named["r"].shape[1]
    both = named.get("b", np.zeros(2 * gates * size)).reshape(2, gates, size)
    return list(both[0]), list(both[1])


def _rnn_step(said: Any, named: Any, x: Array, states: list[Array], gate: Any) -> list[Array]:
    (wb,), (rb,) = _biases(named, 1)
    return [gate(0, x @ named["w"].T + states[0] @ named["r"].T + wb + rb)]


def _gru_step(said: Any, named: Any, x: Array, states: list[Array], gate: Any) -> list[Array]:
    (h,) = states
    (wz, wr, wh), (rz, rr, rh) = (np.split(named[each], 3) for each in "wr")
    (bz, br, bh), (cz, cr, ch) = _biases(named, 3)
    z = gate(0, x @ wz.T + h @ rz.T + bz + cz)
    r = gate(0, x @ wr.T + h @ rr.T + br + cr)
    again = r * (h @ rh.T + ch) if said["linear_before_reset"] else (r * h) @ rh.T + ch
    return [(1 - z) * gate(1, x @ wh.T + bh + again) + z * h]


def _lstm_step(said: Any, named: Any, x: Array, states: list[Array], gate: Any) -> list[Array]:
    h, c = states
    w, r = np.split(named["w"], 4), np.split(named["r"], 4)
    b, d = _biases(named, 4)
    i, o, f, g = (x @ w[k].T + h @ r[k].T + b[k] + d[k] for k in range(4))
    pi, po, pf = np.split(named.get("p", np.zeros(3 * h.shape[1])), 3)
    i = gate(0, i + pi * c)
    f = 1 - i if said["input_forget"] else gate(0, f + pf * c)
    new = f * c + i * gate(1, g)
    out = _ACTIVATIONS[said["activations"].split()[2]](new)
    return [gate(0, o + po * new) * out, new]


_STEPS: dict[str, Callable[..., list[Array]]] = {"rnn": _rnn_step, "gru": _gru_step, "lstm": _lstm_step}

_MEANINGS: dict[str, Callable[[dict[str, Any], list[Array], Sequence[Array]], list[Array]]] = {
    "smelt.softmax": _softmax,
    "smelt.layer_norm": _norm(True),
    "smelt.rms_norm": _norm(False),
    "smelt.gelu": _gelu,
    "smelt.silu": lambda said, operands, like: [operands[0] / (1 + np.exp(-operands[0]))],
    "smelt.hard_swish": lambda said, operands, like: [operands[0] * np.clip(operands[0] / 6 + 0.5, 0, 1)],
    "smelt.attention": _attention,
    "smelt.quantize": _elementwise(True),
    "smelt.dequantize": _elementwise(False),
    "smelt.qdot": _qdot,
    "smelt.rnn": _recurrent("rnn"),
    "smelt.gru": _recurrent("gru"),
    "smelt.lstm": _recurrent("lstm"),
}
