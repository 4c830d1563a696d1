"""Random ONNX graphs with dynamic dimensions: many operators, shared sub-results, several opsets.

A dimension is a number, or a tuple of what it is in each of the two assignments that a graph is tried with. What comes
out is a model that onnxruntime accepts, and inputs for both assignments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from smelt.dtype import Array

Dim: TypeAlias = int | tuple[int, int]
SIZES: dict[str, tuple[int, int]] = {
    "batch": (1, 3),
    "height": (9, 12),
    "width": (8, 11),
    "length": (5, 7),
    "n": (2, 1),
}
OPSETS = (11, 13, 17, 18, 21, 22)
IR = {11: 6, 13: 7, 17: 8, 18: 8, 21: 10, 22: 10}


@dataclass(frozen=True, slots=True)
class Ref:
    """A float tensor of the graph."""

    name: str
    dims: tuple[Dim, ...]
    exact: bool = False  # to the bit, on every engine: what is rounded to integers or decides may be made of it

    @property
    def rank(self) -> int:
        return len(self.dims)


def both(f: Callable[..., int], *dims: Dim) -> Dim:
    """A function of dimensions, in each assignment."""
    if all(isinstance(dim, int) for dim in dims):
        return f(*dims)
    a, b = (f(*(dim if isinstance(dim, int) else dim[i] for dim in dims)) for i in range(2))
    return a, b


def least(dim: Dim) -> int:
    return dim if isinstance(dim, int) else min(dim)


def is_static(dim: Dim) -> bool:
    return isinstance(dim, int)


@dataclass(slots=True)
class Graph:
    """A graph that grows at random."""

    random: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    inputs: list[tuple[str, tuple[int | str, ...]]] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    count: int = 0
    odd: bool = False  # names of dimensions that are no identifiers
    used: list[Ref] = field(default_factory=list)  # by the step at hand

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.random.integers(len(options)))]

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.random.random() < p)

    def any(self, fits: Callable[[Ref], bool] = lambda ref: True) -> Ref:
        """A tensor that fits, more often a late one."""
        found = [ref for ref in self.refs if fits(ref)]
        if not found:
            raise MisfitError
        chosen: Ref = self.pick(found[-3:]) if self.chance(0.6) else self.pick(found)
        self.used.append(chosen)
        return chosen

    def name(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_{self.count}"

    def weight(self, *sizes: int, positive: bool = False) -> str:
        scale = 1 / np.sqrt(max(1, np.prod(sizes[1:], dtype=int)))
        array = self.random.standard_normal(sizes) * scale
        return self.const(np.abs(array) + 0.5 if positive else array)

    def const(self, array: Any, kind: Any = np.float32) -> str:
        name = self.name("w")
        self.weights.append(numpy_helper.from_array(np.asarray(array).astype(kind), name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.const(np.array(numbers, np.int64), np.int64)

    def emit(self, op: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes: Any) -> list[str]:
        names = [self.name(op.lower()) for _ in range(outputs)]
        kept = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op, list(inputs), names, name=names[0], domain=domain, **kept))
        return names

    def one(self, op: str, inputs: Sequence[str], dims: Sequence[Dim], **attributes: Any) -> Ref:
        return Ref(self.emit(op, inputs, **attributes)[0], tuple(dims))

    def axes(self, op: str, source: str, axes: Sequence[int], since: int, **attributes: Any) -> str:
        """A node whose axes were an attribute, and are an input since an opset."""
        if self.opset >= since:
            return self.emit(op, [source, self.ints(*axes)], **attributes)[0]
        return self.emit(op, [source], axes=list(axes), **attributes)[0]

    def order(self, rank: int) -> list[int]:
        return [int(i) for i in self.random.permutation(rank)]


class MisfitError(Exception):
    """No tensor of the graph suits an operator."""


Step: TypeAlias = Callable[[Graph], Ref | list[Ref]]
STEPS: list[Step] = []
MOVES: set[Step] = set()  # what they give is exact where their operands are
ROUNDS: set[Step] = set()  # a difference in the last bit of an operand may become a large one


def step(times: int = 1, *, moves: bool = False, rounds: bool = False) -> Callable[[Step], Step]:
    def add(function: Step) -> Step:
        STEPS.extend([function] * times)
        MOVES.update([function] if moves else ())
        ROUNDS.update([function] if rounds else ())
        return function

    return add


def _big(ref: Ref) -> int:
    return int(np.prod([max(dim) if isinstance(dim, tuple) else dim for dim in ref.dims], dtype=np.int64))


# ---- elementwise ----


@step(3)
def unary(g: Graph) -> Ref:
    x = g.any()
    op = g.pick(["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "LeakyRelu", "HardSigmoid", "Clip", "Elu", "Sin"])
    if op == "Clip":
        return g.one(op, [x.name, g.const(np.float32(-0.8)), g.const(np.float32(0.9))], x.dims)
    return g.one(op, [x.name], x.dims)


@step(3)
def binary(g: Graph) -> Ref:
    x = g.any()
    op = g.pick(["Add", "Mul", "Sub", "Max", "Min"])
    kind = g.number(0, 3)
    if kind == 0:
        other = g.any(lambda ref: ref.dims == x.dims).name
    elif kind == 1 and x.rank and is_static(x.dims[-1]):
        other = g.weight(least(x.dims[-1]))
    elif kind == 2:
        other = g.const(np.float32(g.random.standard_normal()))
    else:
        y = g.any(
            lambda ref: (
                ref.rank <= x.rank and all(a in (1, b) for a, b in zip(ref.dims[::-1], x.dims[::-1], strict=False))
            )
        )
        other = y.name
    return g.one(op, [x.name, other] if g.chance() else [other, x.name], x.dims)


@step(rounds=True)
def where(g: Graph) -> Ref:
    x = g.any()
    y = g.any(lambda ref: ref.dims == x.dims)
    (mask,) = g.emit("Greater", [x.name, g.const(np.float32(0.1))])
    return g.one("Where", [mask, x.name, y.name], x.dims)


@step(rounds=True)
def casts(g: Graph) -> Ref:
    x = g.any()
    (scaled,) = g.emit("Mul", [x.name, g.const(np.float32(4))])
    (there,) = g.emit("Cast", [scaled], to=g.pick([TensorProto.INT32, TensorProto.INT64]))
    return g.one("Cast", [there], x.dims, to=TensorProto.FLOAT)


# ---- convolutions and pools ----


def _image(ref: Ref) -> bool:
    return ref.rank in (3, 4) and is_static(ref.dims[1]) and 0 < least(ref.dims[1]) <= 48


def _window(g: Graph, x: Ref, dilate: bool = True) -> tuple[list[int], list[int], list[int], list[int]]:
    space = x.dims[2:]
    kernel = [g.pick([1, 3, 3, 2, 5]) for _ in space]
    dilations = [g.pick([1, 1, 2]) if dilate else 1 for _ in space]
    strides = [g.pick([1, 1, 2, 3]) for _ in space]
    low, high = ([g.number(0, (k - 1) // 2) if g.chance() else (k - 1) // 2 for k in kernel] for _ in range(2))
    for size, k, d, a, b in zip(space, kernel, dilations, low, high, strict=True):
        if least(size) + a + b < d * (k - 1) + 1:
            raise MisfitError
    return kernel, dilations, strides, [*low, *high]


def _slid(
    x: Ref, kernel: list[int], dilations: list[int], strides: list[int], pads: list[int], ceil: bool = False
) -> list[Dim]:
    n = len(kernel)

    def out(size: int, i: int) -> int:
        room = size + pads[i] + pads[n + i] - dilations[i] * (kernel[i] - 1) - 1
        many = -(-room // strides[i]) + 1 if ceil else room // strides[i] + 1
        if ceil and (many - 1) * strides[i] >= size + pads[i]:  # opsets differ about a window that is all padding
            raise MisfitError
        return many

    return [both(lambda size, i=i: out(size, i), dim) for i, dim in enumerate(x.dims[2:])]


@step(4)
def conv(g: Graph) -> Ref:
    x = g.any(_image)
    kernel, dilations, strides, pads = _window(g, x)
    channels = least(x.dims[1])
    groups = g.pick([1, 1, channels, *(k for k in (2, 4) if channels % k == 0)])
    out = groups * g.pick([1, 2]) if groups > 1 else g.pick([1, 4, 8, 16, 24])
    operands = [x.name, g.weight(out, channels // groups, *kernel)]
    if g.chance():
        operands.append(g.weight(out))
    padding: dict[str, Any] = {"pads": pads}
    space = _slid(x, kernel, dilations, strides, pads)
    if g.chance(0.15) and set(dilations) == {1}:
        padding = {"auto_pad": g.pick(["SAME_UPPER", "SAME_LOWER"])}
        space = [both(lambda size, s=s: -(-size // s), dim) for dim, s in zip(x.dims[2:], strides, strict=True)]
    return g.one(
        "Conv", operands, (x.dims[0], out, *space), group=groups, dilations=dilations, strides=strides, **padding
    )


@step(2)
def conv_transpose(g: Graph) -> Ref:
    x = g.any(_image)
    kernel = [g.pick([1, 2, 3, 4]) for _ in x.dims[2:]]
    strides = [g.pick([1, 2, 2, 3]) for _ in kernel]
    pads = [g.number(0, (k - 1) // 2) for k in kernel] * 2
    more = [g.number(0, s - 1) if g.chance(0.3) else 0 for s in strides]
    channels = least(x.dims[1])
    groups = g.pick([1, 1, channels])
    out = g.pick([1, 4, 8]) if groups == 1 else 1
    operands = [x.name, g.weight(channels, out, *kernel)]
    if g.chance():
        operands.append(g.weight(out * groups))
    space = [
        both(lambda size, i=i: strides[i] * (size - 1) + more[i] + kernel[i] - 2 * pads[i], dim)
        for i, dim in enumerate(x.dims[2:])
    ]
    if any(least(dim) < 1 for dim in space):
        raise MisfitError
    return g.one(
        "ConvTranspose", operands, (x.dims[0], out * groups, *space),
        group=groups, strides=strides, pads=pads, output_padding=more,
    )  # fmt: skip


@step(2)
def pool(g: Graph) -> Ref:
    x = g.any(_image)
    kernel, dilations, strides, pads = _window(g, x, dilate=False)
    if any(p >= k for p, k in zip(pads, kernel * 2, strict=True)):
        raise MisfitError
    op = g.pick(["MaxPool", "AveragePool"])
    ceil = g.chance(0.3)
    extra = {"count_include_pad": g.number(0, 1)} if op == "AveragePool" and not ceil else {}
    return g.one(
        op, [x.name], (*x.dims[:2], *_slid(x, kernel, dilations, strides, pads, ceil)),
        kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=int(ceil), **extra,
    )  # fmt: skip


@step()
def global_pool(g: Graph) -> Ref:
    x = g.any(lambda ref: _image(ref) and ref.rank == 4)
    return g.one(g.pick(["GlobalAveragePool", "GlobalMaxPool"]), [x.name], (*x.dims[:2], 1, 1))


@step()
def resize(g: Graph) -> Ref:
    x = g.any(lambda ref: _image(ref) and ref.rank == 4 and _big(ref) < 20_000)
    mode = g.pick(["nearest", "linear"])
    scales = [1.0, 1.0, float(g.pick([1, 2])), 2.0]
    space = [both(lambda size, s=s: int(size * s), dim) for dim, s in zip(x.dims[2:], scales[2:], strict=True)]
    way = g.pick(["asymmetric", "half_pixel", "align_corners"])
    return g.one(
        "Resize", [x.name, g.const(np.zeros(0)), g.const(np.array(scales))], (*x.dims[:2], *space),
        mode=mode, coordinate_transformation_mode=way, nearest_mode="floor",
    )  # fmt: skip


@step(moves=True)
def depth_space(g: Graph) -> Ref:
    x = g.any(lambda ref: _image(ref) and ref.rank == 4 and least(ref.dims[1]) % 4 == 0)
    n, c, h, w = x.dims
    space = [both(lambda size: 2 * size, dim) for dim in (h, w)]
    return g.one("DepthToSpace", [x.name], (n, least(c) // 4, *space), blocksize=2, mode=g.pick(["DCR", "CRD"]))


# ---- norms ----


@step()
def batch_norm(g: Graph) -> Ref:
    x = g.any(_image)
    c = least(x.dims[1])
    parts = [g.weight(c), g.weight(c), g.weight(c), g.weight(c, positive=True)]
    return g.one("BatchNormalization", [x.name, *parts], x.dims)


@step()
def instance_norm(g: Graph) -> Ref:
    x = g.any(_image)
    c = least(x.dims[1])
    return g.one("InstanceNormalization", [x.name, g.weight(c), g.weight(c)], x.dims, epsilon=1e-2)


@step(2)
def group_norm(g: Graph) -> Ref:
    x = g.any(lambda ref: _image(ref) and g.opset >= 21)
    c = least(x.dims[1])
    groups = g.pick([1, c, *(k for k in (2, 4) if c % k == 0)])
    return g.one("GroupNormalization", [x.name, g.weight(c), g.weight(c)], x.dims, num_groups=groups, epsilon=1e-2)


@step(2)
def layer_norm(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 2 and is_static(ref.dims[-1]) and least(ref.dims[-1]) > 1)
    size = least(x.dims[-1])
    if g.opset >= 17 and g.chance():
        return g.one("LayerNormalization", [x.name, g.weight(size), g.weight(size)], x.dims, axis=-1, epsilon=1e-2)
    mean = g.axes("ReduceMean", x.name, [-1], 18, keepdims=1)
    (centred,) = g.emit("Sub", [x.name, mean])
    (square,) = g.emit("Mul", [centred, centred])
    variance = g.axes("ReduceMean", square, [-1], 18, keepdims=1)
    (moved,) = g.emit("Add", [variance, g.const(np.float32(1e-2))])
    (root,) = g.emit("Sqrt", [moved])
    out = g.one("Div", [centred, root], x.dims)
    return g.one("Mul", [out.name, g.weight(size)], x.dims) if g.chance() else out


@step(2)
def softmax(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1 and (g.opset >= 13 or ref.rank <= 4))
    axis = -1 if g.chance(0.6) else g.number(0, x.rank - 1)
    return g.one(g.pick(["Softmax", "Softmax", "LogSoftmax"]), [x.name], x.dims, axis=axis)


# ---- matrix multiplication ----


@step(3)
def project(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 2 and is_static(ref.dims[-1]) and 0 < least(ref.dims[-1]) <= 256)
    out = g.pick([1, 4, 16, 24, 33])
    if x.rank == 2 and g.chance():
        weight = g.weight(out, least(x.dims[-1]))
        return g.one("Gemm", [x.name, weight, g.weight(out)], (x.dims[0], out), transB=1, alpha=0.5)
    return g.one("MatMul", [x.name, g.weight(least(x.dims[-1]), out)], (*x.dims[:-1], out))


@step(2)
def gram(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 2 and _big(ref) < 4000)
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    (turned,) = g.emit("Transpose", [x.name], perm=order)
    return g.one("MatMul", [x.name, turned], (*x.dims[:-1], x.dims[-2]))


@step(2)
def attention(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank == 3 and is_static(ref.dims[2]) and 0 < least(ref.dims[2]) <= 64)
    batch, length, _ = x.dims
    heads, width = g.pick([(1, 8), (2, 8), (4, 4)])

    def part() -> str:
        (flat,) = g.emit("MatMul", [x.name, g.weight(least(x.dims[2]), heads * width)])
        (cut,) = g.emit("Reshape", [flat, g.ints(0, 0, heads, width)])
        return g.emit("Transpose", [cut], perm=[0, 2, 1, 3])[0]

    q, k, v = part(), part(), part()
    (turned,) = g.emit("Transpose", [k], perm=[0, 1, 3, 2])
    (scores,) = g.emit("MatMul", [q, turned])
    (scaled,) = g.emit("Mul", [scores, g.const(np.float32(width**-0.5))])
    (weights,) = g.emit("Softmax", [scaled], axis=-1 if g.opset >= 13 else 3)
    (mixed,) = g.emit("MatMul", [weights, v])
    (back,) = g.emit("Transpose", [mixed], perm=[0, 2, 1, 3])
    return g.one("Reshape", [back, g.ints(0, 0, heads * width)], (batch, length, heads * width))


# ---- shapes ----


@step(3, moves=True)
def transpose(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 2)
    order = g.order(x.rank)
    return g.one("Transpose", [x.name], [x.dims[d] for d in order], perm=order)


@step(3, moves=True)
def merge(g: Graph) -> Ref:
    """Two dimensions become one."""
    x = g.any(lambda ref: ref.rank >= 2)
    d = g.number(0, x.rank - 2)
    dims = [*x.dims[:d], both(lambda a, b: a * b, x.dims[d], x.dims[d + 1]), *x.dims[d + 2 :]]
    target = [0 if i < d else -1 if i == d else least(size) for i, size in enumerate(dims)]
    if all(is_static(size) for size in dims[d + 1 :]):
        return g.one("Reshape", [x.name, g.ints(*target)], dims)
    (shape,) = g.emit("Shape", [x.name])
    parts = [
        g.ints(-1) if i == d else g.emit("Gather", [shape, g.ints(i if i < d else i + 1)])[0] for i in range(len(dims))
    ]
    (wanted,) = g.emit("Concat", parts, axis=0) if len(parts) > 1 else parts
    return g.one("Reshape", [x.name, wanted], dims)


@step(2, moves=True)
def cut(g: Graph) -> Ref:
    """One dimension becomes two."""
    x = g.any(lambda ref: 0 < ref.rank < 5)
    places = [
        d for d, dim in enumerate(x.dims) if all(n % 2 == 0 and n for n in (dim if isinstance(dim, tuple) else (dim,)))
    ]
    if not places:
        raise MisfitError
    d = g.pick(places)
    half = both(lambda n: n // 2, x.dims[d])
    dims = [*x.dims[:d], half, 2, *x.dims[d + 1 :]] if g.chance() else [*x.dims[:d], 2, half, *x.dims[d + 1 :]]
    if sum(not is_static(dim) for dim in dims[d:]) > 1:
        raise MisfitError
    target = [0 if i < d else -1 if not is_static(dim) else least(dim) for i, dim in enumerate(dims)]
    return g.one("Reshape", [x.name, g.ints(*target)], dims)


@step(2, moves=True)
def tokens(g: Graph) -> Ref:
    """A feature map as a sequence of its pixels, and back where both are there: what vision transformers do."""
    x = g.any(lambda ref: _image(ref) and ref.rank == 4)
    n, c, h, w = x.dims
    pixels = both(lambda a, b: a * b, h, w)
    (flat,) = g.emit("Reshape", [x.name, g.ints(0, 0, -1)])
    return g.one("Transpose", [flat], (n, pixels, c), perm=[0, 2, 1])


@step(2)
def mixed_tokens(g: Graph) -> list[Ref]:
    """Pixels as tokens, read by a product and, as a feature map again, by a convolution: what SegFormer does."""
    x = g.any(lambda ref: _image(ref) and ref.rank == 4)
    n, c, h, w = x.dims
    (shape,) = g.emit("Shape", [x.name])
    (active,) = g.emit(g.pick(["Relu", "Tanh"]), [x.name])
    (flat,) = g.emit("Reshape", [active, g.ints(0, 0, -1)])
    (rows,) = g.emit("Transpose", [flat], perm=[0, 2, 1])
    (columns,) = g.emit("Transpose", [rows], perm=[0, 2, 1])
    (image,) = g.emit("Reshape", [columns, shape])
    kernel, stride, pads = g.pick([(1, 1, 0), (2, 2, 0), (3, 1, 1), (3, 2, 1)])
    if min(least(dim) for dim in (h, w)) < kernel:
        raise MisfitError
    space = [both(lambda size: (size + 2 * pads - kernel) // stride + 1, dim) for dim in (h, w)]
    weight = g.weight(8, least(c), kernel, kernel)
    reduced = g.one("Conv", [image, weight], (n, 8, *space), strides=[stride] * 2, pads=[pads] * 4)
    mixed = g.one("MatMul", [rows, g.weight(least(c), 12)], (n, both(lambda a, b: a * b, h, w), 12))
    back = g.emit("Reshape", [reduced.name, g.ints(0, 0, -1)])[0]
    tokens = g.one("Transpose", [back], (n, both(lambda a, b: a * b, *space), 8), perm=[0, 2, 1])
    return [reduced, mixed, tokens]


@step(moves=True)
def flatten(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    axis = g.number(0, x.rank)

    def product(*sizes: int) -> int:
        return int(np.prod(sizes, dtype=int))

    return g.one("Flatten", [x.name], (both(product, *x.dims[:axis]), both(product, *x.dims[axis:])), axis=axis)


@step(moves=True)
def squeeze(g: Graph) -> Ref:
    x = g.any(lambda ref: 1 in ref.dims)
    d = g.pick([d for d, dim in enumerate(x.dims) if dim == 1])
    return Ref(g.axes("Squeeze", x.name, [d], 13), (*x.dims[:d], *x.dims[d + 1 :]))


@step(moves=True)
def unsqueeze(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank < 4)
    d = g.number(0, x.rank)
    return Ref(g.axes("Unsqueeze", x.name, [d], 13), (*x.dims[:d], 1, *x.dims[d:]))


@step(2, moves=True)
def concat(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    d = g.number(0, x.rank - 1)
    y = g.any(
        lambda ref: (
            ref.rank == x.rank and all(a == b for i, (a, b) in enumerate(zip(ref.dims, x.dims, strict=True)) if i != d)
        )
    )
    whole = both(lambda a, b: a + b, x.dims[d], y.dims[d])
    return g.one("Concat", [x.name, y.name], (*x.dims[:d], whole, *x.dims[d + 1 :]), axis=d - g.pick([0, x.rank]))


@step(2, moves=True)
def split(g: Graph) -> list[Ref]:
    x = g.any(lambda ref: any(is_static(dim) and least(dim) > 1 for dim in ref.dims))
    d = g.pick([d for d, dim in enumerate(x.dims) if is_static(dim) and least(dim) > 1])
    size = least(x.dims[d])
    if g.opset >= 18 and g.chance():
        chunk = -(-size // 2)
        sizes = [chunk, size - chunk]
        names = g.emit("Split", [x.name], 2, axis=d, num_outputs=2)
    else:
        first = g.number(1, size - 1)
        sizes = [first, size - first]
        given: dict[str, Any] = {"split": sizes} if g.opset < 13 else {}
        names = g.emit("Split", [x.name] if given else [x.name, g.ints(*sizes)], 2, axis=d, **given)
    return [Ref(name, (*x.dims[:d], n, *x.dims[d + 1 :])) for name, n in zip(names, sizes, strict=True)]


@step(2, moves=True)
def slice_(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    d = g.number(0, x.rank - 1)
    start, stop, stride = g.pick(
        [(0, -1, 1), (1, 1 << 40, 1), (1, 1 << 40, 2), (-3, 1 << 40, 1), (-1, -(1 << 40), -1), (0, 2, 1)]
    )
    dim = both(lambda n: len(range(n)[slice(start, None if abs(stop) > 1 << 30 else stop, stride)]), x.dims[d])
    if least(dim) < 1:
        raise MisfitError
    return g.one(
        "Slice", [x.name, g.ints(start), g.ints(stop), g.ints(d), g.ints(stride)], (*x.dims[:d], dim, *x.dims[d + 1 :])
    )


@step(moves=True)
def pad(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1 and all(least(dim) > 1 for dim in ref.dims))
    d = g.number(0, x.rank - 1)
    mode = g.pick(["constant", "reflect", "edge"])
    pads = [0] * (2 * x.rank)
    pads[d], pads[x.rank + d] = g.number(0, 1), 1
    dim = both(lambda n: n + pads[d] + 1, x.dims[d])
    return g.one("Pad", [x.name, g.ints(*pads)], (*x.dims[:d], dim, *x.dims[d + 1 :]), mode=mode)


@step(moves=True)
def tile(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1 and _big(ref) < 2000)
    times = [g.pick([1, 1, 2]) for _ in x.dims]
    return g.one(
        "Tile",
        [x.name, g.ints(*times)],
        [both(lambda n, t=t: n * t, dim) for dim, t in zip(x.dims, times, strict=True)],
    )


@step(moves=True)
def expand(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1 and 1 in ref.dims and _big(ref) < 2000)
    y = g.any(
        lambda ref: (
            ref.rank == x.rank and all(a in (1, b) for a, b in zip(x.dims, ref.dims, strict=True)) and _big(ref) < 5000
        )
    )
    (shape,) = g.emit("Shape", [y.name])
    return g.one("Expand", [x.name, shape], y.dims)


# ---- reductions and order ----


@step(2)
def reduce(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    axes = sorted(g.order(x.rank)[: g.number(1, x.rank)])
    keep = g.number(0, 1)
    op = g.pick(["ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "ReduceMin", "ReduceSumSquare"])
    name = g.axes(op, x.name, axes, 13 if op == "ReduceSum" else 18, keepdims=keep)
    return Ref(name, tuple(1 if d in axes else dim for d, dim in enumerate(x.dims) if keep or d not in axes))


@step()
def cumsum(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    axis = g.const(np.int64(g.number(0, x.rank - 1)), np.int64)
    return g.one("CumSum", [x.name, axis], x.dims, exclusive=g.number(0, 1), reverse=g.number(0, 1))


@step(moves=True)
def topk(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1 and all(least(dim) >= 1 for dim in ref.dims))
    d = g.number(0, x.rank - 1)
    k = g.number(1, min(3, least(x.dims[d])))
    values, _ = g.emit("TopK", [x.name, g.ints(k)], 2, axis=d)
    return Ref(values, (*x.dims[:d], k, *x.dims[d + 1 :]))


# ---- indices ----


def _indices(g: Graph, size: int, *sizes: int) -> str:
    return g.const(g.random.integers(-size, size, sizes), g.pick([np.int64, np.int32]))


@step(2, moves=True)
def gather(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    d = g.number(0, x.rank - 1)
    if g.chance(0.3) and x.rank >= 2:
        (at,) = g.emit("ArgMax", [x.name], axis=d, keepdims=1)  # indices that only data tells
        return g.one("GatherElements", [x.name, at], [1 if i == d else dim for i, dim in enumerate(x.dims)], axis=d)
    many = g.pick([(), (1,), (3,), (2, 2)])
    return g.one(
        "Gather", [x.name, _indices(g, least(x.dims[d]), *many)], (*x.dims[:d], *many, *x.dims[d + 1 :]), axis=d
    )


@step(moves=True)
def gather_nd(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    depth = g.number(1, x.rank)
    columns = [g.random.integers(-least(dim), least(dim), 3) for dim in x.dims[:depth]]
    return g.one("GatherND", [x.name, g.const(np.stack(columns, 1), np.int64)], (3, *x.dims[depth:]))


@step(moves=True)
def scatter(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    d = g.number(0, x.rank - 1)
    shape = [g.number(1, 2) if i == d else 1 for i in range(x.rank)]
    if least(x.dims[d]) < 2:
        raise MisfitError
    places = g.order(least(x.dims[d]))[: shape[d]]
    at = g.const(np.array(places).reshape(shape), np.int64)
    return g.one("ScatterElements", [x.name, at, g.weight(*shape)], x.dims, axis=d)


@step(moves=True)
def scatter_nd(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1 and all(is_static(dim) for dim in ref.dims[1:]) and _big(ref) < 4000)
    at = g.const([[g.number(-least(x.dims[0]), least(x.dims[0]) - 1)]], np.int64)
    return g.one("ScatterND", [x.name, at, g.weight(1, *(least(dim) for dim in x.dims[1:]))], x.dims)


# ---- quantised ----


@step(rounds=True)
def fake_quantise(g: Graph) -> Ref:
    x = g.any()
    scale, zero = g.const(np.float32(0.05)), g.const(np.uint8(120), np.uint8)
    (there,) = g.emit("QuantizeLinear", [x.name, scale, zero])
    return g.one("DequantizeLinear", [there, scale, zero], x.dims)


@step(2, rounds=True)
def integer_product(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 2 and is_static(ref.dims[-1]) and 0 < least(ref.dims[-1]) <= 128)
    q, scale, zero = g.emit("DynamicQuantizeLinear", [x.name], 3)
    out = g.pick([4, 16, 33])
    kind = g.pick([np.int8, np.uint8])
    weight = g.const(g.random.integers(0, 100, (least(x.dims[-1]), out)), kind)
    operands = [q, weight, zero, *([g.const(kind(g.pick([0, 3])), kind)] if g.chance() else ())]
    (whole,) = g.emit("MatMulInteger", operands)
    (there,) = g.emit("Cast", [whole], to=TensorProto.FLOAT)
    (scaled,) = g.emit("Mul", [there, scale])
    return g.one("Mul", [scaled, g.const(np.float32(0.01))], (*x.dims[:-1], out))


@step(2, rounds=True)
def integer_conv(g: Graph) -> Ref:
    x = g.any(lambda ref: _image(ref) and ref.rank == 4)
    kernel, _, strides, pads = _window(g, x, dilate=False)
    q, scale, zero = g.emit("DynamicQuantizeLinear", [x.name], 3)
    c = least(x.dims[1])
    groups = g.pick([1, 1, c])
    out = groups if groups > 1 else g.pick([4, 8])
    weight = g.const(g.random.integers(0, 100, (out, c // groups, *kernel)), np.uint8)
    operands = [q, weight, zero, *([g.const(np.uint8(g.pick([0, 3])), np.uint8)] if g.chance(0.7) else ())]
    (whole,) = g.emit("ConvInteger", operands, strides=strides, pads=pads, group=groups)
    (there,) = g.emit("Cast", [whole], to=TensorProto.FLOAT)
    (scaled,) = g.emit("Mul", [there, scale])
    dims = (x.dims[0], out, *_slid(x, kernel, [1] * len(kernel), strides, pads))
    return g.one("Mul", [scaled, g.const(np.float32(0.01))], dims)


@step(rounds=True)
def qlinear_conv(g: Graph) -> Ref:
    x = g.any(lambda ref: _image(ref) and ref.rank == 4)
    kernel, _, strides, pads = _window(g, x, dilate=False)
    c = least(x.dims[1])
    groups = g.pick([1, 1, c])
    out = groups if groups > 1 else g.pick([4, 8])
    scale, zero = g.const(np.float32(0.05)), g.const(np.uint8(120), np.uint8)
    (q,) = g.emit("QuantizeLinear", [x.name, scale, zero])
    weight = g.const(g.random.integers(-100, 100, (out, c // groups, *kernel)), np.int8)
    each = g.chance()
    scales = g.const(g.random.uniform(0.001, 0.01, out) if each else np.float32(0.005))
    zeros = g.const(np.zeros(out if each else ()), np.int8)
    bias = [g.const(g.random.integers(-50, 50, out), np.int32)] if g.chance() else []
    (made,) = g.emit(
        "QLinearConv", [q, scale, zero, weight, scales, zeros, scale, zero, *bias],
        strides=strides, pads=pads, group=groups,
    )  # fmt: skip
    dims = (x.dims[0], out, *_slid(x, kernel, [1] * len(kernel), strides, pads))
    return g.one("DequantizeLinear", [made, scale, zero], dims)


# ---- recurrence ----


@step()
def recurrent(g: Graph) -> Ref:
    x = g.any(
        lambda ref: ref.rank == 3 and is_static(ref.dims[2]) and 0 < least(ref.dims[2]) <= 48 and _big(ref) < 5000
    )
    length, batch, width = x.dims
    op, gates = g.pick([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    hidden = g.pick([4, 8])
    ways, direction = g.pick([(1, "forward"), (1, "reverse"), (2, "bidirectional")])
    operands = [x.name, g.weight(ways, gates * hidden, least(width)), g.weight(ways, gates * hidden, hidden)]
    if g.chance():
        operands.append(g.weight(ways, 2 * gates * hidden))
    (out,) = g.emit(op, operands, hidden_size=hidden, direction=direction)
    if ways == 1:
        return Ref(g.axes("Squeeze", out, [1], 13), (length, batch, hidden))
    (turned,) = g.emit("Transpose", [out], perm=[0, 2, 1, 3])
    return g.one("Reshape", [turned, g.ints(0, 0, -1)], (length, batch, ways * hidden))


@step(rounds=True)
def branch(g: Graph) -> Ref:
    x = g.any(lambda ref: ref.rank >= 1)
    most = g.axes("ReduceMax", x.name, list(range(x.rank)), 18, keepdims=0)
    (test,) = g.emit("Greater", [most, g.const(np.float32(2))])

    def body(op: str) -> onnx.GraphProto:
        out = g.name("branch")
        return helper.make_graph(
            [helper.make_node(op, [x.name], [out])], op, [], [helper.make_value_info(out, onnx.TypeProto())]
        )

    return g.one("If", [test], x.dims, then_branch=body("Relu"), else_branch=body("Neg"))


INPUTS: dict[str, tuple[int | str, ...]] = {
    "image": ("batch", 3, "height", "width"),
    "map": ("batch", 8, 7, "width"),
    "sequence": ("batch", "length", 16),
    "signal": ("batch", 4, "length"),
    "table": ("n", 24),
    "fixed": (2, 8, 6, 6),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its inputs in both assignments."""

    model: onnx.ModelProto
    feeds: tuple[dict[str, Array], dict[str, Array]]


def random_case(random: np.random.Generator, steps: int = 8, *, exact: bool = True) -> Case:
    """A graph of some steps over one or two inputs; what nothing reads is an output.

    `exact`: integers and decisions are made of exact numbers only, so that engines agree within a tolerance.
    """
    g = Graph(random, int(random.choice(OPSETS)), odd=bool(random.random() < 0.3))
    for name in [str(each) for each in random.permutation(list(INPUTS))[: g.number(1, 2)]]:
        sizes = INPUTS[name]
        g.inputs.append((name, sizes))
        g.refs.append(Ref(name, tuple(size if isinstance(size, int) else SIZES[size] for size in sizes), True))
    made = 0
    for _ in range(20 * steps):
        if made == steps:
            break
        before = len(g.nodes), len(g.weights)
        results = _grown(g, exact)
        if not results:
            del g.nodes[before[0] :], g.weights[before[1] :]
            continue
        g.refs += results
        made += 1
    return Case(_model(g), (_feed(g, 0), _feed(g, 1)))


def _grown(g: Graph, exact: bool) -> list[Ref]:
    """What one step makes; nothing where it does not fit."""
    chosen: Step = g.pick(STEPS)
    g.used.clear()
    try:
        found = chosen(g)
    except MisfitError:
        return []
    known = all(ref.exact for ref in g.used)
    results = found if isinstance(found, list) else [found]
    if (exact and chosen in ROUNDS and not known) or any(
        not 0 < _big(ref) <= 60_000 or ref.rank > 6 for ref in results
    ):
        return []
    return [replace(ref, exact=known and chosen in MOVES) for ref in results]


def _feed(g: Graph, which: int) -> dict[str, Array]:
    return {
        name: g.random.standard_normal([s if isinstance(s, int) else SIZES[s][which] for s in sizes]).astype(np.float32)
        for name, sizes in g.inputs
    }


def _model(g: Graph) -> onnx.ModelProto:
    used = {name for node in g.nodes for name in node.input}
    used |= {name for node in g.nodes for a in node.attribute if a.HasField("g") for n in a.g.node for name in n.input}
    refs = [ref for ref in g.refs if ref.name not in used and ref.name not in dict(g.inputs)] or g.refs[-1:]
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, [f"{size}/2 + 1" if g.odd and size in SIZES else size for size in sizes]
        )
        for name, sizes in g.inputs
    ]
    outputs = [helper.make_tensor_value_info(ref.name, TensorProto.FLOAT, None) for ref in refs]
    graph = helper.make_graph(g.nodes, "random", inputs, outputs, g.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", g.opset)], ir_version=IR[g.opset])
