"""The finder of attention around a softmax: matmuls in any layout, the scale anywhere, masks added or selected.

Transposes, reshapes and repeated heads (grouped-query attention) of queries, keys, values and masks become part of the
composite's layout, so its operands are those that projections and KV caches produce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from smelt.frozen import Frozen
from smelt.ir.attributes import DotDims
from smelt.ir.composites import decode
from smelt.ir.core import Op, Value
from smelt.ir.layouts import parse, sizes_of
from smelt.passes.recognise.axes import Atoms, Axes, Letters, View
from smelt.passes.recognise.matcher import Matcher, is_float
from smelt.passes.recognise.outline import Found

_ORDER = ("transpose", "reshape", "convert")
_MOVES = (*_ORDER, "broadcast_in_dim")
_MOST_MASKS = 6


def attention(matcher: Matcher, root: Op) -> Iterator[Found]:
    """softmax(q k^T * scale + masks) v; the softmax is a composite already."""
    if root.name not in ("stablehlo.dot_general", "stablehlo.transpose", "stablehlo.convert"):
        return
    for scaled in (True, False):  # absorb a scale on q or k, unless the scaled value has other users
        for side in (0, 1):
            found = _Search(matcher, scaled).find(root, side)
            if found is not None:
                yield found


class _Scores(Frozen):
    """What is between the softmax and the matmul of queries and keys."""

    view: View
    scale: float = 1.0
    softcap: float = 0.0
    masks: tuple[tuple[str, View], ...] = ()  # outermost first
    fill: tuple[float, ...] = ()


class _Guard(Frozen):
    """Whether fully masked rows give zeros; the mask whose maximum along axes selects these rows."""

    is_there: bool = False
    mask: Value | None = None
    axes: tuple[int, ...] = ()


@dataclass(slots=True)
class _Search:
    matcher: Matcher
    scaled: bool
    atoms: Atoms = field(default_factory=Atoms)

    def find(self, root: Op, side: int) -> Found | None:
        whole = self.atoms.of(root.results[0])
        result = self.skip_moves(whole, _ORDER)
        sides = self.matmul_operands(result)
        if sides is None:
            return None
        weights, values = sides[side], sides[1 - side]
        guard, softmax = self.match_softmax(weights)
        if softmax is None:
            return None
        scores = self.match_scores(softmax, 0)
        if scores is None:
            return None
        pair = self.matmul_operands(scores.view)
        if pair is None:
            return None
        key_atoms = self.keys(weights, result)
        queries, keys = pair if not self.has(pair[0], key_atoms) else (pair[1], pair[0])
        if self.has(queries, key_atoms) or not self.has(keys, key_atoms) or not self.fits(guard, scores, key_atoms):
            return None
        scale, queries = self.strip_scales(queries)
        other, keys = self.strip_scales(keys)
        main = (queries, keys, self.skip_moves(values, _MOVES))
        return self.describe(scores, main, whole, scale * other * scores.scale, int(guard.is_there))

    def describe(
        self, scores: _Scores, main: tuple[View, View, View], whole: View, scale: float, guarded: int
    ) -> Found | None:
        """The composite; None where the layout cannot be expressed: heads merged with their elements everywhere."""
        result = whole.axes
        queries, keys, values = main
        letters = Letters(self.atoms)
        shown = {atom for axis in self.atoms.now(result) for atom in axis}
        contracted = self._all(queries) - shown
        letters.give(self._keep_axes(keys, lambda atom: atom in contracted), "d")
        letters.give(self._keep_axes(keys, lambda atom: atom not in shown), "k")
        letters.give(self._keep_axes(values, lambda atom: atom in shown and atom not in self._all(queries)), "e")
        batch = self._all(queries) & (self._all(keys) | self._all(values))
        letters.give(self._keep_axes(queries, lambda atom: atom in batch), "bhnm")
        letters.give(queries.axes, "qg")
        letters.give(result, "")
        masks = scores.masks[::-1]
        for _, mask in masks:
            letters.give(mask.axes, "")
        operands = [*main, *(mask for _, mask in masks)]
        layout = letters.layout([each.axes for each in operands], result)
        parsed, shapes = parse(layout), [each.value.shape.sizes for each in (*operands, whole)]
        if parsed is None or sizes_of(zip((*parsed[0], parsed[1]), shapes, strict=True)) is None:
            return None
        attributes = {
            "operands": " ".join(("q", "k", "v", *(role for role, _ in masks))),
            "layout": layout,
            "scale": float(scale),
            "softcap": float(scores.softcap),
            "fill": scores.fill[::-1],
            "guarded": guarded,
        }
        return Found("smelt.attention", tuple(each.value for each in operands), attributes)

    # -- steps --

    def skip_moves(self, view: View, through: tuple[str, ...], *, keep_depth: bool = False) -> View:
        """The value behind all moves of data and conversions between floats. `keep_depth`: not behind a reshape that
        makes the last axis of several (the halves of rotary positions)."""
        while True:
            if keep_depth and self.joins_depth(view):
                return view
            before = self.atoms.back(self.matcher, view, through)
            if before is None or is_float(before.value) != is_float(view.value):
                return view
            view = before

    def joins_depth(self, view: View) -> bool:
        op = self.matcher.op(view.value, "reshape")
        if op is None or not view.value.shape.rank:
            return False
        last, before = view.value.shape.sizes[-1], self.matcher.operands(op)[0].shape.sizes
        return isinstance(last, int) and bool(before) and isinstance(before[-1], int) and before[-1] < last

    def matmul_operands(self, view: View) -> tuple[View, View] | None:
        """Both operands of a matmul whose result has these axes."""
        op = self.matcher.op(view.value, "dot_general")
        if op is None:
            return None
        return matmul_views(self.atoms, self.matcher.operands(op), op.attrs["dot_dimension_numbers"], view.axes)

    def keys(self, weights: View, result: View) -> set[int]:
        return self._all(weights) - self._all(result)

    def has(self, view: View, atoms: set[int]) -> bool:
        return bool(self._all(view) & {a for atom in atoms for a in self.atoms.now(((atom,),))[0]})

    def match_softmax(self, weights: View) -> tuple[_Guard, View | None]:
        """The operand of the softmax behind the weights, and the guard of fully masked rows."""
        guard = _Guard()
        while True:
            weights = self.skip_moves(weights, _ORDER)
            chosen = self.matcher.op(weights.value, "select")
            found = None if chosen is None or guard.is_there else self.match_guard(chosen)
            if found is None:
                break
            guard, weights = found[0], View(found[1], weights.axes)
        op = self.matcher.op(weights.value, "composite")
        if op is None or op.attrs["name"] != "smelt.softmax" or not weights.axes[decode(op)["axis"]]:
            return guard, None
        return guard, View(self.matcher.operands(op)[0], weights.axes)

    def match_guard(self, chosen: Op) -> tuple[_Guard, Value] | None:
        """x of select(row is fully masked, 0, x): where x is nan, or the mask is -inf along the whole row."""
        condition, yes, no = self.matcher.operands(chosen)
        for x, zero, same in ((no, yes, False), (yes, no, True)):
            if self.matcher.number(zero) != 0.0:
                continue
            compared = self.matcher.op(self.matcher.row(condition).source, "compare")
            if compared is None:
                return None
            a, b = self.matcher.operands(compared)
            direction = compared.attrs["comparison_direction"]
            itself = a is b and self.matcher.skip_conversions(a) is self.matcher.skip_conversions(x)
            if itself and direction == ("EQ" if same else "NE"):
                return _Guard(True), x
            most = self.matcher.reduction(self.matcher.row(a).source, "maximum")
            if most is not None and self.matcher.number(b) == -math.inf and direction == ("NE" if same else "EQ"):
                return _Guard(True, *most), x
        return None

    def fits(self, guard: _Guard, scores: _Scores, keys: set[int]) -> bool:
        """Whether a guard tests an added mask, along the keys."""
        if guard.mask is None:
            return True
        whole = {atom for key in keys for atom in self.atoms.now(((key,),))[0]}
        for role, mask in scores.masks:
            if role == "add" and mask.value is guard.mask:
                return {a for axis in guard.axes for a in self.atoms.now((mask.axes[axis],))[0]} == whole
        return False

    def match_scores(self, view: View, depth: int) -> _Scores | None:
        """From the softmax through scales and masks down to the matmul."""
        view = self.skip_moves(view, _ORDER)
        if self.matcher.op(view.value, "dot_general") is not None:
            return _Scores(view)
        if depth == _MOST_MASKS:
            return None
        scaled = self.match_scale(view)
        if scaled is not None:
            number, inner = scaled
            found = self.match_softcap(number, inner, depth) or self.match_scores(inner, depth + 1)
            if found is None or found.masks:
                return None  # a scale after a mask is another formula
            return found if found.softcap else found.replace(scale=found.scale * number)
        for x, y in self.matcher.orders(view.value, "add"):
            found = self.match_scores(View(x, view.axes), depth + 1)
            if found is not None:
                return found.replace(masks=(("add", self.skip_broadcasts(View(y, view.axes))), *found.masks))
        return self.match_select(view, depth)

    def match_select(self, view: View, depth: int) -> _Scores | None:
        chosen = self.matcher.op(view.value, "select")
        if chosen is None:
            return None
        condition, yes, no = self.matcher.operands(chosen)
        for role, x, y in (("where", yes, no), ("unless", no, yes)):
            fill = self.matcher.number(y)
            found = None if fill is None else self.match_scores(View(x, view.axes), depth + 1)
            if found is not None and fill is not None and condition.shape.rank == len(view.axes):
                mask = (role, self.skip_broadcasts(View(condition, view.axes)))
                return found.replace(masks=(mask, *found.masks), fill=(fill, *found.fill))
        return None

    def match_softcap(self, number: float, view: View, depth: int) -> _Scores | None:
        """number * tanh(scores / number)."""
        inner = self.matcher.under(view.value, "tanh")
        found = None if inner is None else self.match_scores(View(inner, view.axes), depth + 1)
        if found is None or found.masks or found.softcap:
            return None
        return found.replace(scale=found.scale * number, softcap=number)

    def match_scale(self, view: View) -> tuple[float, View] | None:
        """A constant factor and the other factor."""
        for x, y in self.matcher.orders(view.value, "multiply"):
            number = self.matcher.number(y)
            if number is not None:
                return number, View(x, view.axes)
        quotient = self.matcher.pair(view.value, "divide")
        number = None if quotient is None else self.matcher.number(quotient[1])
        return (1 / number, View(quotient[0], view.axes)) if quotient is not None and number else None

    def strip_scales(self, view: View) -> tuple[float, View]:
        """The queries or keys behind moves and scales, and the scale."""
        scale = 1.0
        while True:
            view = self.skip_moves(view, _MOVES, keep_depth=True)
            found = self.match_scale(view) if self.scaled else None
            if found is None:
                return scale, view
            scale, view = scale * found[0], found[1]

    def skip_broadcasts(self, view: View) -> View:
        """The mask behind its broadcasts, and behind transposes that leave its keys adjacent.

        A bias that is looked up as [query, key, head] is read several times by every layer, and transposed once.
        """
        while (before := self.atoms.back(self.matcher, view, ("broadcast_in_dim", "reshape", "transpose"))) is not None:
            scatters = self.matcher.op(view.value, "transpose") is not None and before.axes[-1] != view.axes[-1]
            if scatters and view.axes[-1]:
                break
            view = before
        return view

    # -- atoms --

    def _all(self, view: View) -> set[int]:
        return {atom for axis in self.atoms.now(view.axes) for atom in axis}

    def _keep_axes(self, view: View, holds: Callable[[int], bool]) -> Axes:
        return tuple(tuple(atom for atom in axis if holds(atom)) for axis in self.atoms.now(view.axes))


def matmul_views(atoms: Atoms, operands: list[Value], dims: DotDims, result: Axes) -> tuple[View, View]:
    """Both operands of a `dot_general` whose result has these axes: batch axes first, then the free axes of each."""
    lhs, rhs = operands
    left: dict[int, tuple[int, ...]] = {}
    right: dict[int, tuple[int, ...]] = {}
    rest = iter(result)
    for i, j in zip(dims.lhs_batching_dimensions, dims.rhs_batching_dimensions, strict=True):
        left[i] = right[j] = next(rest)
    for i, j in zip(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions, strict=True):
        left[i] = right[j] = atoms.new(lhs.shape.sizes[i])
    for known, value in ((left, lhs), (right, rhs)):
        for i in range(value.shape.rank):
            if i not in known:
                known[i] = next(rest)
    return tuple(  # type: ignore[return-value]
        View(value, tuple(known[i] for i in range(value.shape.rank))) for known, value in ((left, lhs), (right, rhs))
    )
