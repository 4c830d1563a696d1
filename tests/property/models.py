"""Small models with dynamic dimensions that use every kind of kernel: programs, weights and inputs for given sizes.

`MODELS` names them; each is built with sizes that are symbols or numbers, so that one open program can be held
against programs for fixed sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array
from smelt.ir.attributes import ConvDims, DotDims, GatherDims, ScatterDims
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Program, Region, Value
from smelt.ir.ops.window import window_count
from smelt.shape import Shape
from smelt.weights import Weights

PLANES = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
Body = Callable[["Layers", Mapping[str, Size]], tuple[Value, ...]]


@dataclass(frozen=True)
class Small:
    """A model: input shapes with dynamic dimensions, weight shapes, its body, and sizes to try it with."""

    inputs: Callable[[Mapping[str, Size]], list[Shape]]
    weights: dict[str, tuple[int, ...]]
    body: Body
    tried: list[dict[str, int]]
    by_row: bool = True  # whether a row of the batch is computed without looking at others
    highest: int = 2  # of integer inputs, exclusive

    def program(self, sizes: Mapping[str, Size]) -> Program:
        shapes = [Shape("f32", *each) for each in self.weights.values()] + self.inputs(sizes)
        marks = [MappingProxyType({"smelt.weight": name}) for name in self.weights]
        f = FuncBuilder("main", shapes, arg_attrs=[*marks, *[MappingProxyType[str, Any]({})] * len(self.inputs(sizes))])
        layers = Layers(f, dict(zip(self.weights, f.args, strict=False)), f.args[len(self.weights) :])
        return Program.of(f.func(*self.body(layers, sizes)))

    def dynamic_program(self) -> Program:
        return self.program({name: _symbol(name) for name in self.tried[0]})

    def values(self, seed: int) -> Weights:
        random = np.random.default_rng(seed)
        return Weights.of(
            {
                name: (random.standard_normal(sizes) / np.sqrt(np.prod(sizes[1:]) or 1)).astype(np.float32)
                for name, sizes in self.weights.items()
            }
        )

    def arguments(self, random: np.random.Generator, sizes: Mapping[str, int]) -> tuple[Array, ...]:
        result = []
        for shape in self.inputs(sizes):
            numbers = shape.numbers({})
            if shape.dtype.kind == "int":
                result.append(random.integers(0, self.highest, numbers).astype(shape.dtype.numpy))
            else:
                result.append(random.standard_normal(numbers).astype(np.float32))
        return tuple(result)


def _symbol(name: str) -> Size:
    return Shape("f32", name).sizes[0]


@dataclass(frozen=True)
class Layers:
    """Layers over a builder: `weights` by name, `inputs` in order."""

    f: Builder
    weights: Mapping[str, Value]
    inputs: Sequence[Value]

    def spread(self, x: Value, like: Value, *dims: int) -> Value:
        return self.f.broadcast_in_dim(x, broadcast_dimensions=dims, result=like.shape)

    def dense(self, x: Value, name: str) -> Value:
        """[…, k] x [n, k] + [n]"""
        weight, last = self.weights[name], x.shape.rank - 1
        result = Shape("f32", *x.shape.sizes[:-1], weight.shape.sizes[0])
        product = self.f.dot_general(x, weight, dot_dimension_numbers=DotDims((), (), (last,), (1,)), result=result)
        return self.f.add(product, self.spread(self.weights[f"{name}.bias"], product, last))

    def relu(self, x: Value) -> Value:
        return self.f.maximum(x, self.f.full(0.0, x.shape))

    def gelu(self, x: Value) -> Value:
        scaled = self.f.multiply(x, self.f.full(0.7071067811865476, x.shape))
        bell = self.f.add(self.f.op("chlo.erf", scaled).result, self.f.full(1.0, x.shape))
        return self.f.multiply(self.f.multiply(x, bell), self.f.full(0.5, x.shape))

    def reduce(self, x: Value, name: str, start: float, *dims: int) -> Value:
        return self.f.reduce(x, self.f.constant(start, "f32"), dimensions=dims, regions=[combine(self.f, name)])

    def softmax(self, x: Value) -> Value:
        outer = tuple(range(x.shape.rank - 1))
        peak = self.spread(self.reduce(x, "maximum", -np.inf, x.shape.rank - 1), x, *outer)
        raised = self.f.exponential(self.f.subtract(x, peak))
        total = self.spread(self.reduce(raised, "add", 0.0, x.shape.rank - 1), x, *outer)
        return self.f.divide(raised, total)

    def norm(self, x: Value, name: str) -> Value:
        last = x.shape.rank - 1
        outer, width = tuple(range(last)), x.shape.sizes[-1]
        assert isinstance(width, int)

        def mean(y: Value) -> Value:
            total = self.reduce(y, "add", 0.0, last)
            return self.spread(self.f.multiply(total, self.f.full(1 / width, total.shape)), x, *outer)

        centred = self.f.subtract(x, mean(x))
        spread = self.f.add(mean(self.f.multiply(centred, centred)), self.f.full(1e-5, x.shape))
        scaled = self.f.multiply(
            self.f.multiply(centred, self.f.rsqrt(spread)), self.spread(self.weights[name], x, last)
        )
        return self.f.add(scaled, self.spread(self.weights[f"{name}.bias"], x, last))

    def conv(self, x: Value, name: str, *, stride: int = 1, groups: int = 1) -> Value:
        """Same padding for odd windows."""
        weight = self.weights[name]
        window = weight.shape.sizes[2:]
        edges = tuple((size // 2, size // 2) for size in window if isinstance(size, int))
        image = x.shape.sizes[2:]
        out = [window_count(a, pad, 1, w, 1, stride) for a, pad, w in zip(image, edges, window, strict=True)]
        return self.f.convolution(
            x,
            weight,
            dimension_numbers=PLANES,
            window_strides=(stride, stride),
            padding=edges,
            feature_group_count=groups,
            batch_group_count=1,
            result=Shape("f32", x.shape.sizes[0], weight.shape.sizes[0], *out),
        )

    def heads(self, x: Value, count: int) -> Value:
        batch, length, width = x.shape.sizes
        parted = self.f.reshape(x, result=Shape("f32", batch, length, count, width // count))
        return self.f.transpose(parted, permutation=(0, 2, 1, 3))

    def attention(self, x: Value, name: str, count: int) -> Value:
        q, k, v = (self.heads(self.dense(x, f"{name}.{part}"), count) for part in "qkv")
        batch, _, length, width = q.shape.sizes
        scores = self.f.dot_general(
            q,
            k,
            dot_dimension_numbers=DotDims((0, 1), (0, 1), (3,), (3,)),
            result=Shape("f32", batch, count, length, length),
        )
        chances = self.softmax(self.f.multiply(scores, self.f.full(width**-0.5, scores.shape)))  # type: ignore[operator]
        mixed = self.f.dot_general(
            chances, v, dot_dimension_numbers=DotDims((0, 1), (0, 1), (3,), (2,)), result=q.shape
        )
        joined = self.f.reshape(self.f.transpose(mixed, permutation=(0, 2, 1, 3)), result=x.shape)
        return self.dense(joined, f"{name}.o")


def combine(f: Builder, name: str) -> Region:
    with f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.op(f"stablehlo.{name}", *r.args).result)
    return r.body


def _perceptron(layers: Layers, sizes: Mapping[str, Size]) -> tuple[Value, ...]:
    x = layers.relu(layers.dense(layers.inputs[0], "first"))
    return (layers.softmax(layers.dense(layers.relu(layers.dense(x, "second")), "third")),)


def _convolutions(layers: Layers, sizes: Mapping[str, Size]) -> tuple[Value, ...]:
    """A strided convolution, a depthwise one, a residual block and global average pooling."""
    x = layers.relu(layers.conv(layers.inputs[0], "stem", stride=2))
    y = layers.conv(layers.relu(layers.conv(x, "deep", groups=16)), "point")
    x = layers.relu(layers.f.add(x, layers.conv(layers.relu(y), "back")))
    total = layers.reduce(x, "add", 0.0, 2, 3)
    return layers.dense(total, "head"), x


def _encoder(layers: Layers, sizes: Mapping[str, Size]) -> tuple[Value, ...]:
    table, (ids,) = layers.weights["words"], layers.inputs
    x = layers.f.gather(
        table, ids, dimension_numbers=GatherDims((2,), (0,), (), (), (0,), 2), slice_sizes=(1, table.shape.sizes[1])
    )
    for i in range(2):
        x = layers.norm(layers.f.add(x, layers.attention(x, f"{i}.attention", 4)), f"{i}.norm")
        x = layers.norm(
            layers.f.add(x, layers.dense(layers.gelu(layers.dense(x, f"{i}.up")), f"{i}.down")), f"{i}.last"
        )
    return (x,)


def _rest(layers: Layers, sizes: Mapping[str, Size]) -> tuple[Value, ...]:
    """What the others do not use: sorts, scatters, loops, pooling, full reductions, concatenations, other types."""
    f, (x, at) = layers.f, layers.inputs
    with f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.compare(*r.args, comparison_direction="LT"))
    ordered = f.sort(x, dimension=1, is_stable=True, regions=[r.body])
    scattered = f.scatter(
        x,
        at,
        ordered,
        scatter_dimension_numbers=ScatterDims((1,), (0,), (), (), (0,), 1),
        regions=[combine(f, "add")],
    )
    joined = f.concatenate(scattered, ordered, f.reverse(x, dimensions=(0,)), dimension=0)
    pooled = f.reduce_window(
        joined,
        f.constant(-np.inf, "f32"),
        window_dimensions=(2, 3),
        window_strides=(1, 2),
        padding=((1, 0), (1, 1)),
        regions=[combine(f, "maximum")],
    )
    total = layers.reduce(f.multiply(joined, joined), "add", 0.0, 0, 1)
    half = f.convert(pooled, result=pooled.shape.with_dtype(Shape("bf16").dtype))
    return ordered, scattered, pooled, total, half, _doubled(f, x)


def _doubled(f: Builder, x: Value) -> Value:
    """Twice the value, three times, in a loop."""
    scalar = Shape("i32")
    with f.region(scalar, x.shape) as test:
        test.result(test.compare(test.args[0], test.constant(3, "i32"), comparison_direction="LT"))
    with f.region(scalar, x.shape) as turn:
        turn.result(turn.add(turn.args[0], turn.constant(1, "i32")), turn.add(turn.args[1], turn.args[1]))
    loop = f.op("stablehlo.while", f.constant(0, "i32"), x, regions=[test.body, turn.body])
    return loop.results[1]


def _dense(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {name: (outputs, inputs), f"{name}.bias": (outputs,)}


def _block(i: int, width: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for part in "qkvo":
        found |= _dense(f"{i}.attention.{part}", width, width)
    found |= _dense(f"{i}.up", 3 * width, width) | _dense(f"{i}.down", width, 3 * width)
    return found | {f"{i}.{name}{end}": (width,) for name in ("norm", "last") for end in ("", ".bias")}


MODELS = {
    "perceptron": Small(
        lambda n: [Shape("f32", n["B"], 40)],
        _dense("first", 67, 40) | _dense("second", 64, 67) | _dense("third", 10, 64),
        _perceptron,
        [{"B": each} for each in (7, 1, 0, 2, 12, 13, 33, 100)],
    ),
    "convolutions": Small(
        lambda n: [Shape("f32", n["B"], 3, n["H"], n["W"])],
        {"stem": (16, 3, 3, 3), "deep": (16, 1, 3, 3), "point": (24, 16, 1, 1), "back": (16, 24, 5, 5)}
        | _dense("head", 10, 16),
        _convolutions,
        [
            dict(zip("BHW", each, strict=True))
            for each in ((3, 12, 17), (1, 12, 17), (1, 1, 1), (2, 33, 8), (0, 4, 4), (1, 5, 64))
        ],
    ),
    "encoder": Small(
        lambda n: [Shape("i64", n["B"], n["S"])],
        {"words": (50, 64)} | _block(0, 64) | _block(1, 64),
        _encoder,
        [dict(zip("BS", each, strict=True)) for each in ((3, 17), (1, 17), (1, 1), (2, 32), (1, 70), (0, 3), (5, 2))],
        highest=50,
    ),
    "rest": Small(
        lambda n: [Shape("f32", n["B"], 33), Shape("i64", n["B"])],
        {},
        _rest,
        [{"B": each} for each in (9, 1, 2, 40, 0)],
        by_row=False,
    ),
}
