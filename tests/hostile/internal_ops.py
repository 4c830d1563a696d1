"""Programs of one op of the kernels' own dialect, with attributes, types and sizes that no pass of ours would choose.

`draw(name, random)` gives the text of one that inference accepts, or None. The sizes of a program fit each other, since
most of what does not fit is refused before kernels see it. Used by `test_internal_ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.dim import Size, ceildiv, floordiv
from smelt.dtype import dtype
from smelt.errors import SmeltError
from smelt.ir.attributes import Dict, Float, Int
from smelt.ir.block_layout import COLUMNS
from smelt.ir.block_layout import Layout as BlockLayout
from smelt.ir.blocks import BLOCKS
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.text import print_program
from smelt.layout import SCALES, WORD, Layout, panels
from smelt.shape import Shape

FLOATS = ("f32", "f64", "f16", "bf16", "f8E4M3FN", "f8E5M2", "f4E2M1FN", "f8E8M0FNU")
# What passes pack on one target or another: the types of a product, and the steps of k that are adjacent.
PASSES = (
    ("f32", "f32", "f32", 1),
    ("f32", "f32", "f32", 4),
    ("f32", "f16", "f32", 1),
    ("f32", "bf16", "f32", 1),
    ("f32", "bf16", "f32", 8),
    ("bf16", "bf16", "f32", 2),
    ("bf16", "bf16", "f32", 8),
    ("f16", "f16", "f32", 8),
    ("ui8", "i8", "i32", 4),
    ("ui8", "i8", "i32", 16),
    ("f8E4M3FN", "f8E5M2", "f32", 16),
)
INTEGERS = ("i32", "i64", "ui8", "i8", "i16", "ui64", "i4", "ui4")


class NoProgramError(Exception):
    """What was drawn makes no program."""


class Draw:
    """Random choices for one program."""

    def __init__(self, random: np.random.Generator, columns: int) -> None:
        self.random = random
        self.columns = columns  # of a target's register tile
        self.symbols = 0

    def one(self, *of: Any) -> Any:
        return of[int(self.random.integers(len(of)))]

    def often(self, usual: Any, *others: Any) -> Any:
        return usual if not others or self.random.random() < 0.7 else self.one(*others)

    def maybe(self, chance: float) -> bool:
        return bool(self.random.random() < chance)

    def size(self, *more: int) -> Size:
        """A number, or now and then a symbol."""
        if self.maybe(0.12):
            self.symbols += 1
            return Shape("f32", f"s{self.symbols}").sizes[0]
        return int(self.one(0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, *more))

    def number(self, *more: int) -> int:
        return int(self.one(1, 1, 2, 3, 4, 5, 7, 8, 16, 24, 32, 48, 64, *more))

    def float(self) -> str:
        return str(self.often("f32", *FLOATS))

    def narrow(self) -> str:
        return str(self.often(self.one("f32", "f16", "bf16"), *FLOATS))

    def product(self) -> tuple[tuple[str, str, str], str]:
        """The types of both operands of a product and of its result, and the layout of the right one."""
        *types, pack = self.one(*PASSES)
        if self.maybe(0.6):
            return tuple(types), panels(self.columns, pack)
        alike = self.float()
        types = self.often(types, [alike] * 3)
        return tuple(types), self.panels(self.often(pack, 1, 2, 3, 4, 8, 16))

    def panels(self, pack: int) -> str:
        """The layout of a matrix [group, k, column]: the usual one with any width, or its digits in any order."""
        width = self.often(self.columns, 16, self.number(6, 12, 96, 128, 1000))
        columns = ["n"] if width == 1 or self.maybe(0.1) else [f"n/{width}", f"n%{width}"]
        steps = ["k"] if pack == 1 else [f"k/{pack}", f"k%{pack}"]
        if self.maybe(0.8) and len(columns) == 2:
            return f"gkn->g {columns[0]} {steps[0]} ({' '.join([columns[1], *steps[1:]])})"
        digits = [str(each) for each in self.random.permutation(columns + steps)]
        if self.maybe(0.1):
            digits[-1] = digits[-1].replace("/", "%")
        axes = ["g"]
        while digits:
            many = int(self.random.integers(1, len(digits) + 1))
            axes.append(f"({' '.join(digits[:many])})" if many > 1 or self.maybe(0.1) else digits[0])
            del digits[:many]
        return " ".join(["gkn->" + axes[0], *axes[1:]])


Make = Callable[[Draw], tuple[list[Shape], dict[str, Any], list[Shape]]]
Op = tuple[list[Shape], dict[str, Any], list[Shape]]  # operands, attributes, results


def _stored(layout: str, sizes: Sequence[Size]) -> tuple[Size, ...]:
    try:
        return Layout.parse(layout).stored_sizes(sizes)
    except ValueError as error:
        raise NoProgramError from error


def _relayout(d: Draw) -> Op:
    layout, element = d.panels(d.one(1, 2, 3, 4, 16)), d.one(*FLOATS, *INTEGERS, "i1", "complex<f32>")
    sizes = tuple(d.size() for _ in range(3))
    return [Shape(element, *sizes)], {"layout": layout}, [Shape(element, *_stored(layout, sizes))]


def _packed_dot(d: Draw) -> Op:
    (left, right, total), layout = d.product()
    groups, rows, depth, columns = d.often(1, 2, d.size()), d.size(48, 100, 300), d.size(48, 96, 128), d.size(96, 128)
    stored = _stored(layout, (d.one(1, groups), depth, columns))
    shapes = [Shape(left, groups, rows, depth), Shape(right, *stored)]
    return shapes, {"layout": layout}, [Shape(total, groups, rows, columns)]


def _grouped_dot(d: Draw) -> Op:
    (left, right, total), layout = d.product()
    groups, rows, depth, columns = d.size(), d.size(48, 100), d.size(48, 96, 128), d.size(96, 128)
    shapes = [Shape(left, 1, rows, depth), Shape(right, *_stored(layout, (groups, depth, columns)))]
    return [*shapes, Shape(d.often("i32", *INTEGERS), groups)], {"layout": layout}, [Shape(total, 1, rows, columns)]


def _taps(d: Draw, rank: int) -> tuple[list[Size], list[int], dict[str, Any], list[Size]]:
    """Sizes of images, windows, the other attributes and sizes of results."""
    sizes = [d.size() for _ in range(rank)]
    window = [int(d.one(1, 1, 2, 3, 3, 5, 7, 0)) for _ in range(rank)]
    strides, dilations = ([int(d.often(1, 2, 3, 9)) for _ in range(rank)] for _ in range(2))
    padding = [(int(d.often(0, 1, 2)), int(d.often(0, 1, 3))) for _ in range(rank)]
    attrs: dict[str, Any] = {"strides": tuple(strides), "dilations": tuple(dilations)}
    if d.maybe(0.5):
        attrs["padding"] = tuple(padding)
    else:
        padding = [(0, 0)] * rank
    each = zip(sizes, window, strides, dilations, padding, strict=True)
    out = [
        ceildiv(size + low + high - max(0, (taps - 1) * hole + 1) + 1, step)
        for size, taps, step, hole, (low, high) in each
    ]
    return sizes, window, attrs, [max(0, size) if isinstance(size, int) else size for size in out]


def _packed_conv(d: Draw) -> Op:
    (left, right, total), layout = d.product()
    sizes, window, attrs, out = _taps(d, int(d.often(2, 1, 3, 4)))
    groups, depth, features = d.often(1, 2, d.size()), d.size(), d.size()
    stored = _stored(layout, (groups, depth * int(np.prod(window)), features))
    batch = d.size()
    shapes = [Shape(left, batch, *sizes, groups * depth), Shape(right, *stored)]
    return shapes, {**attrs, "layout": layout, "window": tuple(window)}, [Shape(total, batch, *out, groups * features)]


def _depthwise_conv(d: Draw) -> Op:
    element, (sizes, window, attrs, out) = d.float(), _taps(d, int(d.often(2, 1, 3)))
    attrs.pop("padding", None)
    each = zip(sizes, window, attrs["strides"], attrs["dilations"], strict=True)
    out = [ceildiv(size - max(0, (taps - 1) * hole + 1) + 1, step) for size, taps, step, hole in each]
    out = [max(0, size) if isinstance(size, int) else size for size in out]
    batch, channels = d.size(), d.size()
    shapes = [Shape(element, batch, *sizes, channels), Shape(element, *window, channels)]
    return shapes, attrs, [Shape(element, batch, *out, channels)]


def _winograd_conv(d: Draw) -> Op:
    element, (batch, high, wide, channels, features) = d.float(), (d.size() for _ in range(5))
    width = d.often(d.columns, 6, 96, d.number())
    panels = Shape(element, ceildiv(features, width), 16, channels, width)
    images = Shape(element, batch, high, wide, channels)
    return [images, panels], {}, [Shape(element, batch, high - 2, wide - 2, features)]


def _round_rows(d: Draw) -> Op:
    sizes = [d.size(256) for _ in range(int(d.one(1, 2, 3)))]
    element = d.one("f8E4M3FN", "f8E5M2")
    numbers = (0.0, 1.0, -1.0, 1e-30, float("inf"), float("nan"), 0.1)
    attrs = {"element": element, "factor": np.float32(d.one(*numbers)), "least": np.float32(d.one(*numbers))}
    return [Shape("f32", *sizes)], attrs, [Shape(element, *sizes), Shape("f32", *sizes[:-1])]


def _round_blocks(d: Draw) -> Op:
    group, zero, depth = d.one(16, 32), d.often(0, 8, 128, 1, 77), 32 * d.one(0, 1, 2, 3, 4, 9)
    lead = d.size(), d.size()
    totals = Shape("i32" if zero else "f32", *lead, depth // group)
    results = [Shape("i8", *lead, depth), Shape("f32", *lead, depth // 32), totals]
    return [Shape("f32", *lead, depth)], {"group": group, "zero": zero}, results


def _rounded(d: Draw, layout: BlockLayout, groups: Size) -> tuple[list[Shape], Size, Size]:
    rows, blocks = d.size(), d.one(0, 1, 2, 3, 4, d.size())
    depth = blocks * layout.length
    numbers = floordiv(depth, layout.group)
    return (
        [
            Shape("i8", groups, rows, depth),
            Shape("f32", groups, rows, floordiv(depth, 32)),
            Shape("i32" if layout.zero else "f32", groups, rows, numbers),
        ],
        rows,
        blocks,
    )


def _block_dot(d: Draw, grouped: bool) -> Op:
    format, groups, columns = d.one(*BLOCKS), d.often(1, 2, d.size()), d.size(96)
    layout = BlockLayout.of(format)
    shapes, rows, blocks = _rounded(d, layout, 1 if grouped else groups)
    held = groups if grouped else d.one(1, groups)
    shapes.append(Shape("ui8", held, ceildiv(columns, COLUMNS), blocks, layout.record))
    if grouped:
        shapes.append(Shape(d.often("i32", *INTEGERS), groups))
    return shapes, {"format": format}, [Shape("f32", 1 if grouped else groups, rows, columns)]


def _attention(d: Draw) -> Op:
    letters = {each: d.often(d.number(), d.size()) if each in "de" else d.size() for each in "bghqkde"}
    words, shown = d.one(
        (("bhqd", "bhkd", "bhke"), "bhqe"), (("bghqd", "bgkd", "bgke"), "bghqe"), (("qd", "kd", "ke"), "qe"),
        (("bqhd", "bkhd", "bkhe"), "bqhe"), (("qd", "dk", "ek"), "eq"), (("q", "k", "k"), "q"), (("d", "d", ""), ""),
        (("bqd", "kd", "kbe"), "qbe"), (("bd", "bd", "be"), "be"), (("qd", "kd", "k"), "q"),
    )  # fmt: skip
    roles, fill = ["q", "k", "v"], []
    words, elements = list(words), [d.narrow()] * 3 if d.maybe(0.5) else [d.narrow() for _ in range(3)]
    for _ in range(int(d.often(0, 1, 2))):
        roles.append(d.one("add", "where", "unless"))
        inside = "".join(each for each in dict.fromkeys("".join((*words[:2], shown))) if each not in "de")
        words.append("".join(each for each in inside if d.maybe(0.6)))
        elements.append(d.float() if roles[-1] == "add" else "i1")
        fill += [] if roles[-1] == "add" else [d.one(-1e9, float("-inf"), 0.0, 1e300)]
    spelled = ",".join(words) + "->" + shown
    f64 = dtype("f64")
    said = Dict(tuple({
        "operands": " ".join(roles), "layout": spelled, "scale": Float(d.often(1.0, 0.0, -3.0, 1e300), f64),
        "softcap": Float(d.often(0.0, 30.0, -1.0, 1e-300), f64), "fill": tuple(Float(each, f64) for each in fill),
        "guarded": Int(d.one(0, 1), dtype("i64")),
    }.items()))  # fmt: skip
    shapes = [Shape(e, *(letters[each] for each in word)) for word, e in zip(words, elements, strict=True)]
    attrs = {"composite_attributes": said, "width": d.often(64, 1, 8, 16, 3, 48, 1000, 1 << 40)}
    return shapes, attrs, [Shape(d.often(elements[0], d.narrow()), *(letters[each] for each in shown))]


def _paged_attention(d: Draw) -> Op:
    groups, depth, deep = (d.often(d.number(), d.size(), 96, 128, 513) for _ in range(3))
    page, heads = d.often(16, d.size(128), 128), groups * d.number()
    count, pool, table = d.size(), d.size(), (d.size(), d.size())
    f64 = dtype("f64")
    shapes = [Shape(d.narrow(), count, heads, depth)]
    if d.maybe(0.4):
        depth = d.number() * WORD
        shapes[0] = Shape(shapes[0].dtype, count, heads, depth)
        keys = pool, groups, floordiv(depth, WORD) + SCALES, page, WORD
        shapes += [Shape("i8", *keys), Shape("i8", pool, groups, floordiv(page, WORD), deep, WORD)]
    else:
        element = d.narrow()
        values = Shape(d.often(element, d.narrow()), pool, groups, page, deep)
        shapes += [Shape(element, pool, groups, depth, page), values]
    shapes += [Shape(d.often("i32", *INTEGERS), *sizes) for sizes in (table, (count,), (count,))]
    if d.maybe(0.3):
        shapes.append(Shape(d.float(), heads))
    said = Dict(tuple({
        "scale": Float(d.often(1.0, 0.0, -3.0, 1e300), f64), "softcap": Float(d.often(0.0, 30.0, -1.0, 1e-300), f64),
        "window": Int(d.often(0, 1, 5, 1 << 40, (1 << 63) - 1), dtype("i64")),
    }.items()))  # fmt: skip
    attrs = {"composite_attributes": said, "width": d.often(d.columns, 8, 16, 32, 1, 3, 48, 1000, 1 << 40)}
    return shapes, attrs, [Shape(shapes[0].dtype, count, heads, deep)]


def _round_to_byte(d: Draw) -> Op:
    sizes = [d.size() for _ in range(int(d.one(0, 1, 2, 3)))]
    element = d.one("i8", "ui8")
    low, high = (-128, 127) if element == "i8" else (0, 255)
    least, greatest = sorted(int(d.one(low, high, 0, 3)) for _ in range(2))
    return [Shape("f32", *sizes)] * 3, {"least": least, "greatest": greatest}, [Shape(element, *sizes)]


OPS: dict[str, Make] = {
    "smelt.relayout": _relayout,
    "smelt.packed_dot": _packed_dot,
    "smelt.packed_conv": _packed_conv,
    "smelt.winograd_conv": _winograd_conv,
    "smelt.depthwise_conv": _depthwise_conv,
    "smelt.round_rows": _round_rows,
    "smelt.round_blocks": _round_blocks,
    "smelt.packed_block_dot": lambda d: _block_dot(d, grouped=False),
    "smelt.grouped_dot": _grouped_dot,
    "smelt.grouped_block_dot": lambda d: _block_dot(d, grouped=True),
    "smelt.attention": _attention,
    "smelt.paged_attention": _paged_attention,
    "smelt.round_to_byte": _round_to_byte,
}


def draw(name: str, random: np.random.Generator, columns: int) -> str | None:
    """The text of a program, or None where what was drawn is refused. `columns`: usual ones of a panel."""
    try:
        operands, attrs, results = OPS[name](Draw(random, columns))
        f = FuncBuilder("main", operands)
        made = f.op(name, *f.args, result=results, **attrs)
        return print_program(Program.of(f.func(*made.results)), generic=True)
    except (NoProgramError, SmeltError):
        return None
