"""The front end's ops for random programs: how each is drawn, what it is on tensors, and what it is on NumPy arrays.

The NumPy side knows places, not names; it never broadcasts by itself and fails where sizes do not agree, so that it can
judge what a changed program does at given sizes. Its numbers do not matter, its shapes do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import smelt
from smelt.dim import ceildiv, maximum, product, symbol
from smelt.dtype import i32
from smelt.tensor import arange, atan2, complex_from, fori_loop, full, iota
from smelt.tensor.ops import random
from tests.property.tensor_programs import Array, Draw, need, op

# ---- elementwise ----

UNARY = (
    *("exp", "log1p", "sqrt", "rsqrt", "cbrt", "sin", "cos", "tan", "atan", "sinh", "tanh", "asinh", "sigmoid", "erf"),
    *("erfc", "ceil", "round", "floor", "trunc", "abs", "sign", "square", "reciprocal", "relu", "selu", "silu"),
    *("hard_sigmoid", "hard_swish", "softplus", "log_sigmoid", "softsign", "mish", "leaky_relu", "elu", "celu", "gelu"),
    *("lgamma", "digamma", "expm1", "log", "__neg__", "__pos__", "__abs__", "clamp", "conj", "real", "relu6"),
)


@op("unary", lambda p, x: getattr(x, p["function"])(), lambda p, x: x * 1)
def _unary(d: Draw) -> None:
    d.step("unary", d.axes, function=d.one_of(UNARY))


TESTS = ("isnan", "isfinite", "isinf")


@op("test", lambda p, x: getattr(x, p["function"])().logical_not().to("f32"), lambda p, x: np.isnan(x) * np.float32(1))
def _test(d: Draw) -> None:
    d.step("test", d.axes, function=d.one_of(TESTS))


@op("bits", lambda p, x: ((x.to("i32") & 7) << 1 | 1 ^ ~x.to("i32")).popcount().to("f32"), lambda p, x: x * 1)
def _bits(d: Draw) -> None:
    d.step("bits", d.axes)


@op("number", lambda p, x: (2.0 - x) / 3.0 + x**2 - 1.5 * x // 2.0 % 5.0, lambda p, x: x + 1)
def _number(d: Draw) -> None:
    d.step("number", d.axes)


BINARY: dict[str, Callable[..., Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "max": smelt.maximum,
    "min": smelt.minimum,
    "atan2": atan2,
    "where <": lambda x, y: smelt.where(x < y, x, y),
    "where ==": lambda x, y: smelt.where((x == y) | (x >= y), x, y),
    "complex": lambda x, y: complex_from(x, y).imag(),
    "clamp": lambda x, y: x.clamp(0.0, y),
}


def _binary_on_arrays(p: Mapping[str, Any], x: Array, y: Array) -> Array:
    order = p["order"]
    need(max(order, default=-1) < x.ndim and y.ndim == len(order), "other axes")
    if not p["named"] and 1 in (*x.shape, *y.shape):
        return x + y  # a plain 1 may be repeated where axes have no names
    need(list(y.shape) == [x.shape[i] for i in order], f"{y.shape} is not {[x.shape[i] for i in order]}")
    back = [order.index(i) for i in sorted(order)]
    return x + y.transpose(back).reshape([x.shape[i] if i in order else 1 for i in range(x.ndim)])


@op("binary", lambda p, x, y: BINARY[p["function"]](x, y), _binary_on_arrays)
def _binary(d: Draw) -> None:
    """With an input that has some of the axes: in any order where they have names, the last ones where not."""
    rank = len(d.axes)
    if d.named:
        keep = [i for i in range(rank) if d.rng.random() < 0.7]
        order = [int(i) for i in d.rng.permutation(keep)] if keep else []
    else:
        order = list(range(d.number(0, rank), rank))
    other = d.take_input(tuple(d.axes[i] for i in order))
    d.step("binary", d.axes, other, function=d.one_of(list(BINARY)), order=order, named=d.named)


@op("outer", lambda p, x, y: smelt.outer("*", x, y), lambda p, x, y: np.multiply.outer(x, y))
def _outer(d: Draw) -> None:
    if d.named and d.axes:
        new = d.new_axis()
        other = d.take_input((new,))
        d.step("outer", (*d.axes, new), other)


# ---- along axes ----

REDUCE = ("sum", "prod", "max", "min", "mean", "var", "std", "norm", "logsumexp")


@op("reduce", lambda p, x: getattr(x, p["function"])(p["axis"]), lambda p, x: x.sum(p["place"]))
def _reduce(d: Draw) -> None:
    if len(d.axes) > 1:
        place = d.place()
        d.step("reduce", d.changed(place), function=d.one_of(REDUCE), axis=d.key(place), place=place)


def _kept_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    return x.max(p["axis"], keep=True).squeeze(p["axis"])


@op("kept", _kept_on_tensors, lambda p, x: x.sum(p["place"], keepdims=True).squeeze(p["place"]))
def _kept(d: Draw) -> None:
    if len(d.axes) > 1:
        place = d.place()
        d.step("kept", d.changed(place), axis=d.key(place), place=place)


@op("every", lambda p, x: (x > 0.0).all(p["axis"]).to("f32"), lambda p, x: x.all(p["place"]) * np.float32(1))
def _every(d: Draw) -> None:
    if len(d.axes) > 1:
        place = d.place()
        d.step("every", d.changed(place), axis=d.key(place), place=place)


ALONG = ("softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "sort", "flip")


def _same_axis(p: Mapping[str, Any], x: Array) -> Array:
    need(p["place"] < x.ndim, "no such axis")
    return x


@op("along", lambda p, x: getattr(x, p["function"])(p["axis"]), _same_axis)
def _along(d: Draw) -> None:
    if d.axes:
        place = d.place()
        d.step("along", d.axes, function=d.one_of(ALONG), axis=d.key(place), place=place)


@op("argsort", lambda p, x: x.argsort(p["axis"]).to("f32"), _same_axis)
def _argsort(d: Draw) -> None:
    if d.axes:
        place = d.place()
        d.step("argsort", d.axes, axis=d.key(place), place=place)


@op("arg", lambda p, x: getattr(x, p["function"])(p["axis"]).to("f32"), lambda p, x: np.argmax(x, p["place"]) * 1.0)
def _arg(d: Draw) -> None:
    if len(d.axes) > 1:
        place = d.place()
        if not d.claim(f"{d.axes[place][1]} >= 1"):
            return
        d.step("arg", d.changed(place), function=d.one_of(("argmax", "argmin")), axis=d.key(place), place=place)


def _top_k_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    need(p["k"] <= x.shape[p["place"]], "too few elements")
    return np.sort(x, p["place"]).take(range(p["k"]), p["place"])


@op("top_k", lambda p, x: x.top_k(p["k"], p["axis"])[0], _top_k_on_arrays)
def _top_k(d: Draw) -> None:
    if d.axes:
        place, k = d.place(), d.number(1, 3)
        if not d.claim(f"{d.axes[place][1]} >= {k}"):
            return
        d.step("top_k", d.changed(place, (d.axes[place][0], k)), k=k, axis=d.key(place), place=place)


@op("count", lambda p, x: x * x.count(p["axis"], "f32") + x.size(p["axis"]), _same_axis)
def _count(d: Draw) -> None:
    if d.axes:
        place = d.place()
        d.step("count", d.axes, axis=d.key(place), place=place)


# ---- products and windows ----


def _dot_on_tensors(p: Mapping[str, Any], x: Any, y: Any) -> Any:
    return x.dot(y, p["axis"]) if isinstance(p["axis"], str) else x.dot(y, (p["axis"], p["at"]))


@op("dot", _dot_on_tensors, lambda p, x, y: np.tensordot(x, y, ((p["place"],), (p["at"],))))
def _dot(d: Draw) -> None:
    if d.axes:
        place, out, at = d.place(), d.new_axis(), d.number(0, 1)
        axes = (d.axes[place], out) if at == 0 else (out, d.axes[place])
        other = d.take_input(axes)
        d.step("dot", (*d.changed(place), out), other, axis=d.key(place), place=place, at=at)


def _matmul_on_arrays(p: Mapping[str, Any], x: Array, y: Array) -> Array:
    need(x.shape[-1] == y.shape[0], "columns and rows")
    return x @ y


@op("matmul", lambda p, x, y: x @ y, _matmul_on_arrays)
def _matmul(d: Draw) -> None:
    if d.axes:
        out = d.new_axis()
        other = d.take_input((d.axes[-1], out))
        d.step("matmul", (*d.axes[:-1], out), other)


def _attention_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    keys = x.rename(**{p["axis"]: p["other"]})
    return x.dot(keys, p["over"]).softmax(p["other"]).dot(keys, p["other"]).transpose(*x.shape.names)


@op("attention", _attention_on_tensors, lambda p, x: _same_axis(p, x) * 1)
def _attention(d: Draw) -> None:
    """Scores of every place with every other one, batched over the rest, and back."""
    if d.named and len(d.axes) > 1:
        s, over = (int(i) for i in d.rng.permutation(len(d.axes))[:2])
        d.step("attention", d.axes, axis=d.key(s), place=s, over=d.key(over), other=d.new_name())


def _conv_on_tensors(p: Mapping[str, Any], x: Any, w: Any) -> Any:
    pads = {p["axis"]: (p["before"], p["after"])}
    return x.conv(w, p["axis"], features=(p["features"], p["out"]), strides=p["stride"], padding=pads)


def _conv_on_arrays(p: Mapping[str, Any], x: Array, w: Array) -> Array:
    wide = x.shape[p["place"]] + p["before"] + p["after"]
    need(x.shape[p["at"]] == w.shape[1], "features")
    need(w.shape[2] <= wide or not x.shape[p["place"]], "the window does not fit")
    sizes = list(x.shape)
    sizes[p["place"]] = max((wide - w.shape[2]) // p["stride"] + 1, 0)
    sizes[p["at"]] = w.shape[0]
    return np.zeros(sizes, x.dtype)


@op("conv", _conv_on_tensors, _conv_on_arrays)
def _conv(d: Draw) -> None:
    if not d.named or len(d.axes) not in (2, 3):
        return
    place, at = (int(i) for i in d.rng.permutation(len(d.axes))[:2])
    out, window, stride, before, after = d.new_axis(), *(d.number(*pair) for pair in ((1, 3), (1, 2), (0, 1), (0, 1)))
    (name, size), features = d.axes[place], d.axes[at]
    if not d.claim(f"{size} >= {window}"):
        return
    other = d.take_input((out, features, (name, window)))
    new = list(d.axes)
    new[place] = name, (size + before + after - window) // stride + 1
    new[at] = out
    params = {"stride": stride, "before": before, "after": after, "place": place, "at": at}
    d.step("conv", tuple(new), other, axis=name, features=features[0], out=out[0], **params)


def _pool_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    size = x.shape[p["place"]]
    need(p["window"] <= size or not size, "the window does not fit")
    return np.repeat(x.sum(p["place"], keepdims=True), max((size - p["window"]) // p["stride"] + 1, 0), p["place"])


def _pool_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    return getattr(x, p["function"])({p["axis"]: p["window"]}, {p["axis"]: p["stride"]})


@op("pool", _pool_on_tensors, _pool_on_arrays)
def _pool(d: Draw) -> None:
    if d.named and d.axes:
        place, window, stride = d.place(), d.number(1, 3), d.number(1, 3)
        name, size = d.axes[place]
        if not d.claim(f"{size} >= {window}"):
            return
        function = d.one_of(("max_pool", "sum_pool", "mean_pool"))
        new = d.changed(place, (name, (size - window) // stride + 1))
        d.step("pool", new, function=function, axis=name, place=place, window=window, stride=stride)


# ---- moving ----


@op("transpose", lambda p, x: x.transpose(*p["axes"]), lambda p, x: x.transpose(p["order"]))
def _transpose(d: Draw) -> None:
    if d.axes:
        order = [int(i) for i in d.rng.permutation(len(d.axes))]
        d.step("transpose", tuple(d.axes[i] for i in order), axes=[d.key(i) for i in order], order=order)


@op("rename", lambda p, x: x.rename(**{p["axis"]: p["new"]}), lambda p, x: x * 1)
def _rename(d: Draw) -> None:
    if d.named and d.axes:
        place, new = d.place(), d.new_name()
        d.step("rename", d.changed(place, (new, d.axes[place][1])), axis=d.key(place), new=new)


@op("names", lambda p, x: x.unnamed().named(*p["names"]), lambda p, x: np.reshape(x, x.shape[: len(p["names"])]))
def _names(d: Draw) -> None:
    if d.named and d.axes:
        names = [d.new_name() for _ in d.axes]
        d.step("names", tuple((name, size) for name, (_, size) in zip(names, d.axes, strict=True)), names=names)


def _merge_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    place = p["place"]
    need(place + 1 < x.ndim, "no such axes")
    return x.reshape(*x.shape[:place], x.shape[place] * x.shape[place + 1], *x.shape[place + 2 :])


@op("merge", lambda p, x: x.merge(p["axes"], p["into"]), _merge_on_arrays)
def _merge(d: Draw) -> None:
    if len(d.axes) > 1:
        place = d.number(0, len(d.axes) - 2)
        (_, m), (_, n) = d.axes[place : place + 2]
        name = d.new_name()
        new = (*d.axes[:place], (name, m * n), *d.axes[place + 2 :])
        keys = [d.key(place), d.key(place + 1)]
        d.step("merge", new, axes=keys, place=place, into=name if d.named else None)


@op("flatten", lambda p, x: x.flatten(p["into"]), lambda p, x: x.reshape(-1) if x.size else x.reshape(x.size))
def _flatten(d: Draw) -> None:
    if len(d.axes) > 1:
        name = d.new_name()
        axes = ((name, product(size for _, size in d.axes)),)
        d.step("flatten", axes, into=name if d.named else None)


def _blocks_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    whole = x.pad({p["axis"]: (0, -x.size(p["axis"]) % p["k"])})
    parts = {p["outer"]: None, p["inner"]: p["k"]} if p["outer"] else None
    return whole.split(p["axis"], **parts) if parts else whole.split(p["axis"], None, p["k"])


def _blocks_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    place, k = p["place"], p["k"]
    more = -x.shape[place] % k
    whole = np.pad(x, [(0, more if i == place else 0) for i in range(x.ndim)])
    return whole.reshape(*x.shape[:place], (x.shape[place] + more) // k, k, *x.shape[place + 1 :])


@op("blocks", _blocks_on_tensors, _blocks_on_arrays)
def _blocks(d: Draw) -> None:
    """Padded to a multiple, then split."""
    if d.axes:
        place, k = d.place(), d.number(2, 4)
        outer, inner = d.new_name(), d.new_name()
        new = d.changed(place, (outer, ceildiv(d.axes[place][1], k)), (inner, k))
        names = {"outer": outer, "inner": inner} if d.named else {"outer": None, "inner": None}
        d.step("blocks", new, axis=d.key(place), place=place, k=k, **names)


def _heads_on_tensors(p: Mapping[str, Any], x: Any, y: Any) -> Any:
    return x.split(p["axis"], **{p["head"]: y.size(p["head"]), p["rest"]: None}) * y


def _heads_on_arrays(p: Mapping[str, Any], x: Array, y: Array) -> Array:
    place = p["place"]
    parts = x.reshape(*x.shape[:place], len(y), x.shape[place] // len(y), *x.shape[place + 1 :])
    return parts * y.reshape([len(y) if i == place else 1 for i in range(parts.ndim)])


@op("heads", _heads_on_tensors, _heads_on_arrays)
def _heads(d: Draw) -> None:
    """Splits an axis by a fact."""
    if d.named and d.axes:
        place = d.place()
        name, size = d.axes[place]
        if isinstance(size, int) or len(str(size)) > 3:
            return
        head, rest = d.new_name(), d.new_name()
        h = symbol(head.upper())
        if not d.claim(f"{h} divides {size}"):
            return
        other = d.take_input(((head, h),))
        new = d.changed(place, (head, h), (rest, size // h))
        d.step("heads", new, other, axis=name, place=place, head=head, rest=rest)


def _reshape_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    return x.reshape(**dict(zip(p["names"], p["sizes"], strict=True))) if p["names"] else x.reshape(*p["sizes"])


@op("reshape", _reshape_on_tensors, lambda p, x: x.reshape(p["sizes"]))
def _reshape(d: Draw) -> None:
    if d.axes:
        place = d.place()
        new = d.changed(place, (d.new_name(), 1), d.axes[place])
        d.step("reshape", new, names=[name for name, _ in new] if d.named else [], sizes=[size for _, size in new])


@op("insert", lambda p, x: x.insert(p["axis"], p["place"]), lambda p, x: np.expand_dims(x, p["place"]))
def _insert(d: Draw) -> None:
    place, name = d.number(0, len(d.axes)), d.new_name()
    new = (*d.axes[:place], (name, 1), *d.axes[place:])
    d.step("insert", new, axis=name if d.named else place, place=place)


def _broadcast_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    return x.broadcast(**{p["name"]: p["size"]}) if p["name"] else x.broadcast(p["size"], *x.sizes)


@op("broadcast", _broadcast_on_tensors, lambda p, x: np.broadcast_to(x, (p["size"], *x.shape)))
def _broadcast(d: Draw) -> None:
    """To a size that an input tells, so that it is known when the program runs."""
    sizes = [size for shape in d.inputs for size in shape.sizes]
    if sizes:
        new = d.new_name(), d.one_of(sizes)
        d.step("broadcast", (new, *d.axes), name=new[0] if d.named else None, size=new[1])


@op("repeat", lambda p, x: x.repeat(p["axis"], p["times"]), lambda p, x: np.repeat(x, p["times"], p["place"]))
def _repeat(d: Draw) -> None:
    if d.axes:
        place, times = d.place(), d.number(1, 3)
        name, size = d.axes[place]
        d.step("repeat", d.changed(place, (name, size * times)), axis=d.key(place), place=place, times=times)


def _tile_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    need(p["place"] < x.ndim, "no such axis")
    return np.tile(x, [p["times"] if i == p["place"] else 1 for i in range(x.ndim)])


@op("tile", lambda p, x: x.tile(p["axis"], p["times"]), _tile_on_arrays)
def _tile(d: Draw) -> None:
    if d.axes:
        place, times = d.place(), d.number(1, 3)
        name, size = d.axes[place]
        d.step("tile", d.changed(place, (name, size * times)), axis=d.key(place), place=place, times=times)


def _cut(p: Mapping[str, Any]) -> slice:
    return slice(p["start"], None, p["stride"])


def _cut_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    if isinstance(p["axis"], str):
        return x.slice(**{p["axis"]: _cut(p)})
    return x[tuple(_cut(p) if i == p["axis"] else slice(None) for i in range(x.rank))]


def _cut_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    need(p["place"] < x.ndim, "no such axis")
    return x[tuple(_cut(p) if i == p["place"] else slice(None) for i in range(x.ndim))]


@op("cut", _cut_on_tensors, _cut_on_arrays)
def _cut_draw(d: Draw) -> None:
    if d.axes:
        place, start, stride = d.place(), d.number(0, 2), d.number(1, 3)
        name, size = d.axes[place]
        new = d.changed(place, (name, ceildiv(maximum(size - start, 0), stride)))
        d.step("cut", new, axis=d.key(place), place=place, start=start, stride=stride)


def _pick_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    if isinstance(p["axis"], str):
        return x.slice(**{p["axis"]: p["index"]})
    return x[tuple(p["index"] if i == p["axis"] else slice(None) for i in range(x.rank))]


def _pick_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    need(p["place"] < x.ndim, "no such axis")
    return x[tuple(p["index"] if i == p["place"] else slice(None) for i in range(x.ndim))]


@op("pick", _pick_on_tensors, _pick_on_arrays)
def _pick(d: Draw) -> None:
    if len(d.axes) > 1:
        place, index = d.place(), d.number(-2, 2)
        if not d.claim(f"{d.axes[place][1]} >= {index + 1 if index >= 0 else -index}"):
            return
        d.step("pick", d.changed(place), axis=d.key(place), place=place, index=index)


def _roll_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    need(p["shift"] <= x.shape[p["place"]], "a shift beyond the axis")
    return np.roll(x, p["shift"], p["place"])


@op("roll", lambda p, x: x.roll(p["axis"], p["shift"]), _roll_on_arrays)
def _roll(d: Draw) -> None:
    if d.axes:
        place, shift = d.place(), d.number(0, 2)
        if not d.claim(f"{d.axes[place][1]} >= {shift}"):
            return
        d.step("roll", d.axes, axis=d.key(place), place=place, shift=shift)


def _pad_on_arrays(p: Mapping[str, Any], x: Array) -> Array:
    need(p["place"] < x.ndim, "no such axis")
    return np.pad(x, [(p["before"], p["after"]) if i == p["place"] else (0, 0) for i in range(x.ndim)])


@op("pad", lambda p, x: x.pad({p["axis"]: (p["before"], p["after"])}, value=1.0), _pad_on_arrays)
def _pad(d: Draw) -> None:
    if d.axes:
        place, before, after = d.place(), d.number(0, 2), d.number(0, 2)
        name, size = d.axes[place]
        new = d.changed(place, (name, size + before + after))
        d.step("pad", new, axis=d.key(place), place=place, before=before, after=after)


def _joined_on_arrays(p: Mapping[str, Any], x: Array, y: Array) -> Array:
    return np.concatenate([x, y], p["place"])


@op("concatenate", lambda p, x, y: smelt.concatenate([x, y], p["axis"]), _joined_on_arrays)
def _concatenate(d: Draw) -> None:
    if d.axes:
        place = d.place()
        name, size = d.axes[place]
        _, more = d.new_axis()
        other = d.take_input(d.changed(place, (name, more)))
        d.step("concatenate", d.changed(place, (name, size + more)), other, axis=d.key(place), place=place)


@op("stack", lambda p, x, y: smelt.stack([x, y], p["axis"]), lambda p, x, y: np.stack([x, y]))
def _stack(d: Draw) -> None:
    name = d.new_name()
    other = d.take_input(d.axes)
    d.step("stack", ((name, 2), *d.axes), other, axis=name if d.named else 0)


def _chunk_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    first, *rest = x.chunk(p["axis"], p["parts"])
    for part in rest:
        first = first + part
    return first


@op("chunk", _chunk_on_tensors, lambda p, x: sum(np.split(x, p["parts"], p["place"])))  # type: ignore[arg-type, return-value]
def _chunk(d: Draw) -> None:
    if d.axes:
        place, parts = d.place(), d.number(2, 3)
        name, size = d.axes[place]
        if not d.claim(f"{parts} divides {size}"):
            return
        d.step("chunk", d.changed(place, (name, size // parts)), axis=d.key(place), place=place, parts=parts)


def _made_on_tensors(p: Mapping[str, Any], x: Any) -> Any:
    makers = {
        "zeros": lambda: smelt.zeros(x.shape),
        "full": lambda: full(x.shape, 2.0),
        "iota": lambda: iota(x.shape, p["axis"]),
        "arange": lambda: arange(x.size(p["axis"]), p["axis"] if isinstance(p["axis"], str) else None, "f32"),
        "random": lambda: random.uniform(random.key(1), x.shape),
    }
    made = makers[p["function"]]()
    return x + made if p["function"] != "arange" or isinstance(p["axis"], str) else x + made.sum()


@op("made", _made_on_tensors, _same_axis)
def _made(d: Draw) -> None:
    if d.axes:
        place = d.place()
        function = d.one_of(("zeros", "full", "iota", "arange", "random"))
        d.step("made", d.axes, function=function, axis=d.key(place), place=place)


# ---- looking up ----


def _take_on_arrays(p: Mapping[str, Any], x: Array, i: Array) -> Array:
    return np.zeros((*x.shape[: p["place"]], *i.shape, *x.shape[p["place"] :][1:]), x.dtype)


@op("take", lambda p, x, i: x.take(i, p["axis"]), _take_on_arrays)
def _take(d: Draw) -> None:
    if d.axes:
        place, new = d.place(), d.new_axis()
        other = d.take_input((new,), i32)
        d.step("take", d.changed(place, new), other, axis=d.key(place), place=place)


def _along_on_arrays(p: Mapping[str, Any], x: Array, i: Array) -> Array:
    others = [(a, b) for at, (a, b) in enumerate(zip(x.shape, i.shape, strict=True)) if at != p["place"]]
    need(all(a == b for a, b in others), "other sizes")
    return np.zeros(i.shape, x.dtype)


@op("take_along", lambda p, x, i: x.take_along(i, p["axis"]), _along_on_arrays)
def _take_along(d: Draw) -> None:
    if d.axes:
        place = d.place()
        new = d.changed(place, (d.axes[place][0], d.new_axis()[1]))
        other = d.take_input(new, i32)
        d.step("take_along", new, other, axis=d.key(place), place=place)


def _scatter_on_arrays(p: Mapping[str, Any], x: Array, i: Array, y: Array) -> Array:
    place = p["place"]
    need(y.shape == (*x.shape[:place], *i.shape, *x.shape[place + 1 :]), "other updates")
    return x * 1


@op("scatter", lambda p, x, i, y: x.scatter(i, y, p["axis"], p["how"]), _scatter_on_arrays)
def _scatter(d: Draw) -> None:
    if d.axes:
        place, new = d.place(), d.new_axis()
        indices = d.take_input((new,), i32)
        updates = d.take_input(d.changed(place, new))
        how = d.one_of(("set", "add", "max"))
        d.step("scatter", d.axes, indices, updates, axis=d.key(place), place=place, how=how)


@op("one_hot", lambda p, x: x.to("i32").one_hot(p["k"], p["name"]), lambda p, x: np.zeros((*x.shape, p["k"]), x.dtype))
def _one_hot(d: Draw) -> None:
    name, k = d.new_name(), d.number(2, 4)
    d.step("one_hot", (*d.axes, (name, k)), name=name if d.named else None, k=k)


def _window_on_arrays(p: Mapping[str, Any], x: Array, start: Array) -> Array:
    need(p["length"] <= x.shape[p["place"]], "the window does not fit")
    return x.take(range(p["length"]), p["place"])


@op("window", lambda p, x, s: x.dynamic_slice({p["axis"]: (s, p["length"])}), _window_on_arrays)
def _window(d: Draw) -> None:
    if d.axes:
        place, length = d.place(), d.number(1, 3)
        name, size = d.axes[place]
        if not d.claim(f"{size} >= {length}"):
            return
        start = d.take_input((), i32)
        d.step("window", d.changed(place, (name, length)), start, axis=d.key(place), place=place, length=length)


def _update_on_arrays(p: Mapping[str, Any], x: Array, y: Array) -> Array:
    others = [(a, b) for at, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if at != p["place"]]
    need(all(a == b for a, b in others) and y.shape[p["place"]] <= x.shape[p["place"]], "the part does not fit")
    return x * 1


@op("update", lambda p, x, y: x.update(y, {p["axis"]: 0}), _update_on_arrays)
def _update(d: Draw) -> None:
    if d.axes:
        place = d.place()
        name, size = d.axes[place]
        part = symbol(d.new_name().upper())
        if not d.claim(f"{part} <= {size}"):
            return
        other = d.take_input(d.changed(place, (name, part)))
        d.step("update", d.axes, other, axis=d.key(place), place=place)


# ---- control flow ----


def _same_shape(p: Mapping[str, Any], x: Array, y: Array) -> Array:
    need(x.shape == y.shape, "other shapes")
    return x * 1


LOOPS: dict[str, Callable[..., Any]] = {
    "while": lambda x, y: smelt.while_loop(lambda z: z.sum() < 9.0, lambda z: z + y, x),
    "fori": lambda x, y: fori_loop(3, lambda i, z: z * y + i.to("f32"), x),
    "cond": lambda x, y: smelt.cond(x.sum() > 0.0, lambda: x, lambda: y),
}


@op("loop", lambda p, x, y: LOOPS[p["function"]](x, y), _same_shape)
def _loop(d: Draw) -> None:
    other = d.take_input(d.axes)
    d.step("loop", d.axes, other, function=d.one_of(list(LOOPS)))


def _scan_on_tensors(p: Mapping[str, Any], x: Any, start: Any) -> Any:
    both = "both" if isinstance(p["axis"], str) else 0

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        return smelt.stack([carry, row], both).sum(both), carry * 2.0

    return smelt.scan(step, start, x, p["axis"])[1]


def _scan_on_arrays(p: Mapping[str, Any], x: Array, start: Array) -> Array:
    front = np.moveaxis(x, p["place"], 0)
    need(front.shape[1:] == start.shape, "rows and carry differ")
    return front


@op("scan", _scan_on_tensors, _scan_on_arrays)
def _scan(d: Draw) -> None:
    if d.axes:
        place = d.place()
        rest = d.changed(place)
        start = d.take_input(rest)
        d.step("scan", (d.axes[place], *rest), start, axis=d.key(place), place=place)
