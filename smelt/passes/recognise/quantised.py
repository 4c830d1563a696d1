"""The finder of quantised matmuls and convolutions: on dequantised floats (QDQ), or on integers and scaled afterwards.

In: `smelt.dequantize`, `smelt.quantize` and integer `smelt.qdot`, which readers emit, or integer `dot_general` and
`convolution` of other front ends. Out: one `smelt.qdot` with scales, zero points, bias and requantisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from smelt.dtype import DType
from smelt.frozen import Frozen
from smelt.ir.attributes import ConvDims
from smelt.ir.composites import decode, window_attributes
from smelt.ir.core import Op, Value
from smelt.passes.recognise.attention import matmul_views
from smelt.passes.recognise.axes import Atoms, Axes, Letters, View
from smelt.passes.recognise.matcher import Matcher, is_float
from smelt.passes.recognise.outline import Found

_ORDER = ("transpose", "reshape")
_LAST = ("composite", "add", "multiply", "dot_general", "convolution", "convert")


class _Operand(Frozen):
    """An operand of a quantised matmul: its role and axes."""

    role: str
    view: View


class _Product(Frozen):
    """The match so far, from the matmul on upwards."""

    operands: tuple[_Operand, ...]
    window: dict[str, object] | None = None
    copied: frozenset[Op] = frozenset()

    def plus(self, *operands: _Operand, copied: frozenset[Op] = frozenset()) -> _Product:
        return self.replace(operands=(*self.operands, *operands), copied=self.copied | copied)

    def has(self, *roles: str) -> bool:
        return any(operand.role in roles for operand in self.operands)


def qdot(matcher: Matcher, root: Op) -> Iterator[Found]:
    """A quantised matmul or convolution, with its scales if there are any; else the integer matmul alone."""
    if len(root.results) != 1 or root.name.partition(".")[2] not in _LAST:
        return
    if root.name == "stablehlo.composite" and root.attrs["name"] != "smelt.quantize":
        return
    for plain in (False, True):
        search = _Search(matcher)
        whole = search.atoms.of(root.results[0])
        found = search.match_integers(whole) if plain else search.match_requantised(whole)
        if found is not None:
            yield search.describe(found, whole.axes)


@dataclass(slots=True)
class _Search:
    matcher: Matcher
    atoms: Atoms = field(default_factory=Atoms)
    places: dict[int, str] = field(default_factory=dict)  # letters of spatial axes

    def describe(self, found: _Product, result: Axes) -> Found:
        letters = Letters(self.atoms)
        if found.window is not None:
            letters.names |= self.places
        kept = {atom for axis in self.atoms.now(result) for atom in axis}
        lhs, rhs = (operand.view.axes for operand in found.operands[:2])
        for own, wanted in ((lhs, "m"), (rhs, "n")):
            inner = self.atoms.now(own)
            letters.give(tuple(tuple(a for a in axis if a not in kept) for axis in inner), "k")
            other = {a for axis in self.atoms.now(rhs if own is lhs else lhs) for a in axis}
            letters.give(tuple(tuple(a for a in axis if a not in other) for axis in inner), wanted)
            letters.give(inner, "b")
        letters.give(result, "")
        attributes: dict[str, object] = {
            "operands": " ".join(operand.role for operand in found.operands),
            "layout": letters.layout([operand.view.axes for operand in found.operands], result),
            **(found.window or {}),
        }
        return Found("smelt.qdot", tuple(operand.view.value for operand in found.operands), attributes, found.copied)

    # -- from the result down --

    def match_requantised(self, view: View) -> _Product | None:
        """A scaled matmul, requantised or not."""
        op = self.composite(view.value, "smelt.quantize")
        if op is None:
            return self.match_biased(view)
        parts = self.roles_of(op, view)
        inner = None if parts is None else self.match_biased(parts[0].view)
        if parts is None or inner is None:
            return None
        roles = {"scale": "result_scale", "zero": "result_zero"}
        return inner.plus(*(each.replace(role=roles[each.role]) for each in parts[1:]))

    def match_biased(self, view: View) -> _Product | None:
        """A scaled matmul plus a bias that is broadcast along some axis; an integer bias if it was quantised."""
        view = self.skip_moves(view, (*_ORDER, "convert"))
        for x, y in self.matcher.orders(view.value, "add"):
            bias = self.skip_broadcasts(View(y, view.axes))
            if not is_float(y) or (bias.value.shape.rank >= len(view.axes) and all(self.atoms.now(bias.axes))):
                continue
            product = self.match_scaled(self.skip_moves(View(x, view.axes), _ORDER))
            if product is None or product.has("bias"):
                continue
            whole = self.composite(bias.value, "smelt.dequantize")
            parts = None if whole is None else self.roles_of(whole, bias)
            if whole is None or parts is None or not all(self.is_zero(each.view.value) for each in parts[2:]):
                return product.plus(_Operand("bias", bias))
            number, scale = parts[:2]
            return product.plus(
                number.replace(role="bias"), scale.replace(role="bias_scale"), copied=frozenset((whole,))
            )
        return self.match_scaled(view)

    def match_scaled(self, view: View) -> _Product | None:
        """A matmul of dequantised tensors, or an integer matmul times scales."""
        for x, y in self.matcher.orders(view.value, "multiply"):
            inner = self.matcher.under(x, "convert")
            if inner is None or is_float(inner):
                continue
            product = self.match_integer_bias(View(inner, view.axes))
            if product is not None:
                scales = [self.skip_broadcasts(View(each, view.axes)) for each in self.scale_factors(y)]
                return product.plus(*(_Operand("scale", each) for each in scales))
        return self.match_dequantised(view)

    def scale_factors(self, value: Value) -> list[Value]:
        """The factors of a scale that have its shape."""
        product = self.matcher.pair(value, "multiply")
        return [value] if product is None else [*product]

    def match_dequantised(self, view: View) -> _Product | None:
        sides = self.operands_of(view)
        if sides is None:
            return None
        window, views = sides
        operands: list[_Operand] = []
        scales: list[_Operand] = []
        copied: set[Op] = set()
        for role, side in zip(("lhs", "rhs"), views, strict=True):
            moved = side if window is not None else self.skip_moves(side, (*_ORDER, "convert"))
            op = self.composite(moved.value, "smelt.dequantize")
            parts = None if op is None else self.roles_of(op, moved)
            if op is None or parts is None or parts[0].view.value.shape.element.bits > 8:
                return None
            copied |= {op, *self.ops_between(side.value, moved.value)}
            for each in parts:
                if each.role == "scale":
                    scales.append(each)
                else:
                    operands.append(each.replace(role={"x": role, "zero": f"{role}_zero"}[each.role]))
        operands.sort(key=lambda each: each.role.endswith("zero"))
        kept = {atom for axis in self.atoms.now(view.axes) for atom in axis}
        for scale in scales:
            if any(atom not in kept for axis in self.atoms.now(scale.view.axes) for atom in axis):
                return None  # a scale that varies along K
        return _Product((*operands, *scales), window, frozenset(copied))

    def match_integer_bias(self, view: View) -> _Product | None:
        """An integer matmul plus an integer bias."""
        view = self.skip_moves(view, _ORDER)
        for x, y in self.matcher.orders(view.value, "add"):
            product = self.match_integers(self.skip_moves(View(x, view.axes), _ORDER))
            if product is not None:
                return product.plus(_Operand("bias", self.skip_broadcasts(View(y, view.axes))))
        return self.match_integers(view)

    def match_integers(self, view: View) -> _Product | None:
        """An int8 matmul: a reader's `smelt.qdot`, or `dot_general` and `convolution` themselves."""
        op = self.composite(view.value, "smelt.qdot")
        if op is None:
            return self.match_integer_matmul(view)
        said = decode(op)
        roles = said["operands"].split()
        if "scale" in roles or "bias" in roles or "result_zero" in roles:
            return None
        window = {key: value for key, value in said.items() if key not in ("operands", "layout")} or None
        views = self.from_layout(said["layout"], self.matcher.operands(op), view, window is not None)
        if views is None:
            return None
        operands = tuple(_Operand(role, each) for role, each in zip(roles, views, strict=True))
        return _Product(operands, window)

    def match_integer_matmul(self, view: View) -> _Product | None:
        """A matmul of integers of at most 8 bits with wider results."""
        sides = self.operands_of(view)
        if sides is None or is_float(view.value):
            return None
        window, views = sides
        operands = []
        zeros = []
        copied: set[Op] = set()
        for role, side in zip(("lhs", "rhs"), views, strict=True):
            narrow = side
            moved = self.matcher.pair(side.value, "subtract")
            if moved is not None and window is None:  # a zero point: constant along K, as lowering checks
                zeros.append(_Operand(f"{role}_zero", self.skip_broadcasts(View(moved[1], side.axes))))
                copied |= {op for op in (self.matcher.op(side.value, "subtract"),) if op is not None}
                narrow = View(moved[0], side.axes)
            inner = self.matcher.under(narrow.value, "convert")
            if inner is not None:
                copied |= {op for op in (self.matcher.op(narrow.value, "convert"),) if op is not None}
                narrow = View(inner, side.axes)
            element = narrow.value.shape.dtype
            if not isinstance(element, DType) or not element.is_integer or element.bits > 8:
                return None
            operands.append(_Operand(role, narrow))
        return _Product((*operands, *zeros), window, frozenset(copied))

    # -- parts --

    def composite(self, value: Value, name: str) -> Op | None:
        op = self.matcher.op(value, "composite")
        return op if op is not None and op.attrs["name"] == name else None

    def is_zero(self, value: Value) -> bool:
        op = self.matcher.op(value, "constant")
        return op is not None and not op.attrs["value"].array.any()

    def roles_of(self, op: Op, view: View) -> list[_Operand] | None:
        """The operands of an elementwise composite, with their axes."""
        said = decode(op)
        views = self.from_layout(said["layout"], self.matcher.operands(op), view, False)
        return (
            None
            if views is None
            else [_Operand(role, each) for role, each in zip(said["operands"].split(), views, strict=True)]
        )

    def from_layout(self, layout: str, operands: Sequence[Value], result: View, window: bool) -> list[View] | None:
        """The operands of a composite whose result has these axes."""
        if "(" in layout:
            return None  # block-quantised
        words, _, last = layout.partition("->")
        known: dict[str, tuple[int, ...]] = dict(zip(last, result.axes, strict=True))
        found = []
        for word, value in zip(words.split(","), operands, strict=True):
            axes = []
            for letter, size in zip(word, value.shape.sizes, strict=True):
                if window and letter not in "bo":  # spatial and channel axes of both operands differ in size
                    known_here = self.atoms.new(size)
                    for atom in known_here:
                        self.places[atom] = letter
                    axes.append(known_here)
                    continue
                if letter not in known:
                    known[letter] = self.atoms.new(size)
                axes.append(() if letter == "." else known[letter])
            found.append(View(value, tuple(axes)))
        if window:
            for letter, axis in zip(last, result.axes, strict=True):
                self.places |= dict.fromkeys(axis, letter)
        return found

    def operands_of(self, view: View) -> tuple[dict[str, object] | None, tuple[View, View]] | None:
        """Both operands of a matmul or convolution, and the window of the latter."""
        dot = self.matcher.op(view.value, "dot_general")
        if dot is not None:
            dims = dot.attrs["dot_dimension_numbers"]
            return None, matmul_views(self.atoms, self.matcher.operands(dot), dims, view.axes)
        op = self.matcher.op(view.value, "convolution")
        if op is None or any(op.attrs.get("window_reversal") or ()):
            return None
        lhs, rhs, last = _window_words(op.attrs["dimension_numbers"], len(view.axes))
        views = self.from_layout(f"{lhs},{rhs}->{last}", self.matcher.operands(op), view, True)
        return None if views is None else (window_attributes(op), (views[0], views[1]))

    def skip_moves(self, view: View, through: tuple[str, ...]) -> View:
        while (before := self.atoms.back(self.matcher, view, through)) is not None:
            if is_float(before.value) != is_float(view.value):
                break
            view = before
        return view

    def skip_broadcasts(self, view: View) -> View:
        """The scale or bias behind its broadcasts."""
        while (before := self.atoms.back(self.matcher, view, (*_ORDER, "broadcast_in_dim"))) is not None:
            view = before
        return view

    def ops_between(self, value: Value, source: Value) -> set[Op]:
        """The unary ops between a value and its source."""
        found: set[Op] = set()
        while (value := self.matcher.edit.value(value)) is not source:
            op = self.matcher.edit.maker(value)
            assert op is not None
            found.add(op)
            (value,) = self.matcher.operands(op)
        return found


def _window_words(dims: ConvDims, rank: int) -> tuple[str, str, str]:
    """The letters of both operands and the result of a convolution."""
    places = "xyzuvw"
    lhs, rhs, last = ([""] * rank for _ in range(3))
    lhs[dims.input_batch_dimension], lhs[dims.input_feature_dimension] = "b", "f"
    rhs[dims.kernel_output_feature_dimension], rhs[dims.kernel_input_feature_dimension] = "o", "i"
    last[dims.output_batch_dimension], last[dims.output_feature_dimension] = "b", "o"
    for word, where in (
        (lhs, dims.input_spatial_dimensions),
        (rhs, dims.kernel_spatial_dimensions),
        (last, dims.output_spatial_dimensions),
    ):
        for letter, axis in zip(places, where, strict=False):
            word[axis] = letter
    return "".join(lhs), "".join(rhs), "".join(last)
