"""smelt in miniature: a whole model compiler in one file that needs NumPy and a C compiler, to be read from the top.

    python docs/from_scratch.py

A Python function is run once on tensors that hold no data (1, 2). What it did is a graph (3). The graph is cut into a
few loops, each of which fuses as much as it can (4). The loops are printed as C (5), compiled and called
through ctypes (6). Sizes stay symbols until the call, so that one compiled function serves every batch. smelt does the
same with more words: `smelt/tensor` is 1 and 2, `smelt/ir` is 3, `smelt/kernel` is 4 and 5, `smelt/device` is 6.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

# ---- 1. Shapes: an axis is a name and a size, and a size is a number or a symbol ----

Size = int | str
Axes = dict[str, Size]  # in memory order


class ShapeError(Exception):
    """A mistake that is found before anything runs, and for all sizes at once."""


def show(axes: Axes) -> str:
    return f"[{', '.join(f'{name}={size}' for name, size in axes.items())}]"


def parse(text: str) -> Axes:
    """`"b=B, d=784"` as axes."""
    pairs = [part.strip().split("=") for part in text.split(",") if part.strip()]
    return {name: int(size) if size.isdigit() else size for name, size in pairs}


def align(what: str, left: Axes, right: Axes, outer: bool = False) -> Axes:
    """The axes in which two operands meet. One name is one axis, so it has one size; equal sizes prove nothing else."""
    for name in left.keys() & right.keys():
        if left[name] != right[name]:
            raise ShapeError(f'{what}: the axis "{name}" has two sizes: {show(left)} and {show(right)}')
    if not outer and not (left.keys() <= right.keys() or right.keys() <= left.keys()):
        raise ShapeError(f"{what}: neither {show(left)} nor {show(right)} has all axes of the other")
    wide, narrow = (left, right) if len(left) >= len(right) else (right, left)
    return {**wide, **narrow}


# ---- 2. Tensors: operations are not computed but written down ----


@dataclass(eq=False)
class Tensor:
    """A value that is not computed yet: what it is made from, and the axes it will have.

    There are five kinds: `input`, `number`, `rename`, `map` (one element from one element of each operand: `text` is C
    with {0} and {1} for them) and `reduce` (many elements into one: `text` combines {0}, so far, with {1}).
    """

    kind: str
    axes: Axes
    operands: tuple[Tensor, ...] = ()
    text: str = ""
    start: str = "0"
    names: dict[str, str] = field(default_factory=dict)  # of a rename: new name → old name

    def __add__(self, other: Tensor | float) -> Tensor:
        return binary("+", "({0} + {1})", self, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return binary("-", "({0} - {1})", self, other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return binary("*", "({0} * {1})", self, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return binary("/", "({0} / {1})", self, other)

    def relu(self) -> Tensor:
        return binary("relu", "({0} > {1} ? {0} : {1})", self, 0.0)

    def exp(self) -> Tensor:
        return Tensor("map", self.axes, (self,), "expf({0})")

    def sum(self, axis: str) -> Tensor:
        return reduce("sum", self, axis, "{0} + {1}", "0.0f")

    def max(self, axis: str) -> Tensor:
        return reduce("max", self, axis, "{0} > {1} ? {0} : {1}", "-INFINITY")

    def softmax(self, axis: str) -> Tensor:
        grown = (self - self.max(axis)).exp()
        return grown / grown.sum(axis)

    def dot(self, other: Tensor, axis: str) -> Tensor:
        """Products, summed over an axis of both. That is all a matrix product is: fusion makes one loop of the two."""
        for side, operand in (("left", self), ("right", other)):
            if axis not in operand.axes:
                raise ShapeError(f'dot over "{axis}": the {side} operand {show(operand.axes)} has no such axis')
        return binary("dot", "({0} * {1})", self, other, outer=True).sum(axis)

    def rename(self, **names: str) -> Tensor:
        """Axes under other names: the same numbers, with another meaning."""
        new = {names.get(name, name): size for name, size in self.axes.items()}
        if len(new) != len(self.axes) or not names.keys() <= self.axes.keys():
            raise ShapeError(f"rename: {names} does not fit {show(self.axes)}")
        return Tensor("rename", new, (self,), names={names.get(name, name): name for name in self.axes})


def binary(what: str, text: str, left: Tensor, right: Tensor | float, outer: bool = False) -> Tensor:
    if not isinstance(right, Tensor):
        right = Tensor("number", {}, text=f"{float(right)!r}f")
    return Tensor("map", align(what, left.axes, right.axes, outer), (left, right), text)


def reduce(what: str, operand: Tensor, axis: str, text: str, start: str) -> Tensor:
    if axis not in operand.axes:
        raise ShapeError(f'{what}: {show(operand.axes)} has no axis "{axis}"')
    rest = {name: size for name, size in operand.axes.items() if name != axis}
    return Tensor("reduce", rest, (operand,), text, start)


# ---- 3. The graph: what a result was made from, everything after what it needs ----


def graph(result: Tensor) -> list[Tensor]:
    order: list[Tensor] = []
    done: set[int] = set()
    stack = [(result, False)]
    while stack:  # not recursive: models are deep
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in done:
            done.add(id(node))
            stack.append((node, True))
            stack += [(operand, False) for operand in reversed(node.operands)]
    return order


# ---- 4. Fusion: which values are kept in memory, and which exist for one turn of a loop only ----


def materialised_values(order: list[Tensor]) -> list[Tensor]:
    """The values that get a loop nest and a buffer of their own; all others are computed where they are used.

    Whatever is used twice is stored, and so is a sum that would be computed again and again because its user goes over
    more axes. Everything else is fused: products into sums, activations behind them, chains of maps into one loop.
    """
    users: dict[int, list[Tensor]] = {id(node): [] for node in order}
    for node in order:
        for operand in node.operands:
            users[id(operand)].append(node)
    computed = [node for node in order if node.kind in ("map", "reduce")]
    keep = {id(node) for node in computed if len(users[id(node)]) > 1}
    keep.add(id(order[-1]))
    for node in computed:
        if node.kind == "reduce" and id(node) not in keep:
            inner = node
            while id(inner) not in keep:
                (user,) = users[id(inner)]
                if user.kind == "reduce":
                    break
                if len(user.axes) > len(node.axes):
                    keep.add(id(node))
                    break
                inner = user
    return [node for node in order if id(node) in keep]


# ---- 5. C: one loop nest for each stored value ----


class Printer:
    """Writes C. `buffers`: the buffers of stored values and inputs; `places` where a size is among the arguments."""

    def __init__(self, buffers: dict[int, str], places: dict[str, int]) -> None:
        self.buffers = buffers
        self.places = places
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open_loop(self, size: Size) -> str:
        """Starts a loop and gives the name of its counter."""
        self.count += 1
        counter = f"i{self.count}"
        self.line(f"for (long {counter} = 0; {counter} < {self.size(size)}; {counter}++) {{")
        self.depth += 1
        return counter

    def close_loops(self, number: int) -> None:
        for _ in range(number):
            self.depth -= 1
            self.line("}")

    def size(self, size: Size) -> str:
        return str(size) if isinstance(size, int) else f"n[{self.places[size]}]"

    def element(self, node: Tensor, at: dict[str, str]) -> str:
        """The place of an element in a buffer: axes are in order, the last one contiguous."""
        index = ""
        for name, size in node.axes.items():
            index = f"({index}) * {self.size(size)} + {at[name]}" if index else at[name]
        return f"{self.buffers[id(node)]}[{index or 0}]"

    def value(self, node: Tensor, at: dict[str, str]) -> str:
        """C for one element of a value, at these counters. A sum inside writes its own loop first."""
        if id(node) in self.buffers:
            return self.element(node, at)
        return self.compute(node, at)

    def compute(self, node: Tensor, at: dict[str, str]) -> str:
        match node.kind:
            case "number":
                return node.text
            case "rename":
                return self.value(node.operands[0], {node.names[name]: at[name] for name in node.axes})
            case "map":
                parts = [self.value(each, {name: at[name] for name in each.axes}) for each in node.operands]
                return node.text.format(*parts)
        self.count += 1
        total = f"t{self.count}"
        (operand,) = node.operands
        self.line(f"float {total} = {node.start};")
        (axis,) = operand.axes.keys() - node.axes.keys()
        counter = self.open_loop(operand.axes[axis])
        self.line(f"{total} = {node.text.format(total, self.value(operand, {**at, axis: counter}))};")
        self.close_loops(1)
        return total

    def kernel(self, node: Tensor) -> None:
        """The loops over all axes of a stored value."""
        at = {name: self.open_loop(size) for name, size in node.axes.items()}
        text = self.compute(node, at)
        self.line(f"{self.element(node, at)} = {text};")
        self.close_loops(len(at))


def source(order: list[Tensor], inputs: list[Tensor], symbols: list[str]) -> tuple[str, list[Tensor]]:
    """The C function, and the values for which it needs buffers; the last of these is the result."""
    kept = materialised_values(order)
    buffers = {id(node): f"b[{place}]" for place, node in enumerate([*inputs, *kept])}
    printer = Printer(buffers, {name: place for place, name in enumerate(symbols)})
    for node in kept:
        printer.line(f"// {node.kind} {show(node.axes)}")
        printer.kernel(node)
    body = "\n".join(printer.lines)
    return f"#include <math.h>\nvoid run(float **b, const long *n) {{\n{body}\n}}\n", kept


# ---- 6. Machine code ----


def compiler() -> list[str]:
    """A C compiler: $CC, one of the system's, or the one in the `ziglang` package."""
    found = next((path for name in ("cc", "clang", "gcc") if (path := shutil.which(name))), None)
    if os.environ.get("CC") or found:
        return (os.environ.get("CC") or str(found)).split()
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise RuntimeError("no C compiler: set CC, or pip install ziglang")


def library(text: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.c")
        path.write_text(text)
        out = path.with_suffix(".so")
        command = [*compiler(), "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-o", str(out), str(path), "-lm"]
        subprocess.run(command, check=True, capture_output=True)
        return ctypes.CDLL(str(out))  # mapped: the file may go


class Compiled:
    """A function on NumPy arrays. Sizes come from the arguments and are checked; the code serves all of them."""

    def __init__(self, shapes: dict[str, Axes], text: str, kept: list[Tensor], symbols: list[str]) -> None:
        self.shapes, self.text, self.kept, self.symbols = shapes, text, kept, symbols
        self.run = library(text).run
        self.run.restype = None

    def __call__(self, **given: np.ndarray) -> np.ndarray:
        sizes: dict[str, int] = {}
        arrays = []
        for name, axes in self.shapes.items():
            array = np.ascontiguousarray(given[name], np.float32)
            if array.ndim != len(axes):
                raise ShapeError(f"{name} has {array.ndim} axes, not {show(axes)}")
            for size, number in zip(axes.values(), array.shape, strict=True):
                if number != (size if isinstance(size, int) else sizes.setdefault(size, number)):
                    raise ShapeError(f"{name} is {list(array.shape)}, not {show(axes)} with {sizes}")
            arrays.append(array)
        for node in self.kept:
            shape = [size if isinstance(size, int) else sizes[size] for size in node.axes.values()]
            arrays.append(np.empty(shape, np.float32))
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        self.run(pointers, (ctypes.c_long * max(len(self.symbols), 1))(*(sizes[name] for name in self.symbols)))
        return arrays[-1]


def compile_model(function: Callable[..., Tensor], **shapes: str) -> Compiled:
    """The whole way: trace the function on symbolic tensors, order what it did, fuse, print, compile."""
    axes = {name: parse(text) for name, text in shapes.items()}
    inputs = {name: Tensor("input", each) for name, each in axes.items()}
    result = function(**inputs)
    if result.kind not in ("map", "reduce"):
        result = result + 0.0  # an input or a renamed one: copied
    symbols = sorted({size for each in axes.values() for size in each.values() if isinstance(size, str)})
    text, kept = source(graph(result), list(inputs.values()), symbols)
    return Compiled(axes, text, kept, symbols)


# ---- a model ----


def attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """Every place of a sequence looks at every other one; the scores are a tensor of their own axes, s and t."""
    q, k, v = x.dot(wq, "d"), x.dot(wk, "d").rename(s="t"), x.dot(wv, "d").rename(s="t")
    return q.dot(k, "h").softmax("t").dot(v, "t").relu() + 1.0


SHAPES = {"x": "b=B, s=S, d=8", "wq": "d=8, h=4", "wk": "d=8, h=4", "wv": "d=8, o=O"}


def reference(x: np.ndarray, wq: np.ndarray, wk: np.ndarray, wv: np.ndarray) -> np.ndarray:
    scores = np.exp((x @ wq) @ (x @ wk).swapaxes(1, 2))
    mixed: np.ndarray = scores / scores.sum(-1, keepdims=True) @ (x @ wv)
    return np.maximum(mixed, 0) + 1


def main() -> None:
    model = compile_model(attention, **SHAPES)
    print(model.text)
    rng = np.random.default_rng(0)
    for b, s, o in ((2, 3, 5), (1, 7, 2)):  # the same machine code
        sizes = {"x": (b, s, 8), "wq": (8, 4), "wk": (8, 4), "wv": (8, o)}
        arrays = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
        error = np.abs(model(**arrays) - reference(**arrays)).max()
        print(f"B={b} S={s} O={o}: {len(model.kept)} loops, largest difference from NumPy {error:.1e}")
    try:
        compile_model(lambda x, w: x.dot(w, "d"), x="b=B, d=8", w="f=8, g=8")
    except ShapeError as error:
        print(f"refused before anything ran: {error}")


if __name__ == "__main__":
    main()
