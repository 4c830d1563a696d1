"""Recognise: softmax, norms, activations and attention, put back together from what exporters made of them.

A finder looks at one op as the last of a computation and says which values go in. The ops between become the
decomposition of a `stablehlo.composite`, so an engine that does not know the name computes exactly what it did before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.ir.attributes import Constant, Dict, Float, Int
from smelt.ir.clone import clone_op
from smelt.ir.composites import COMPOSITES
from smelt.ir.core import Func, Op, Program, Region, Value
from smelt.ir.rewrite import Edit, has_effect
from smelt.ir.structure import fingerprint
from smelt.shape import Shape


def recognise(program: Program, names: Container[str] = COMPOSITES) -> Program:
    """The same program with composites of these names where a finder saw one, the outermost op first.

    Attention is found around its softmax, so it needs that name too.
    """
    if not any(name in names for name in COMPOSITES):
        return program
    decompositions: dict[bytes, Func] = {}
    signatures = {name: func.type for name, func in program.funcs.items()}
    edited = []
    for func in program.funcs.values():
        edit = Edit(func, signatures)
        for finders in (BLOCKS, ATTENTION):
            for op in reversed(list(edit.ops())):
                if op in edit:
                    _try(edit, op, finders, names, decompositions, program)
        edited.append(edit.freeze())
    return program.replace(*edited, *decompositions.values()) if decompositions else program


def _try(
    edit: Edit,
    root: Op,
    finders: Sequence[Finder],
    names: Container[str],
    made: dict[bytes, Func],
    program: Program,
) -> None:
    for finder in finders:
        found = finder(Look(edit), root)
        if found is not None and found.name not in names:
            continue
        inside = None if found is None else _between(edit, root, found.inputs)
        if found is not None and inside is not None:
            _outline(edit, root, found, inside, made, program)
            return


# ---- looking at values ----


@dataclass(frozen=True, slots=True)
class Found:
    """A computation that a finder saw: its name, its attributes and what goes in."""

    name: str
    inputs: tuple[Value, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A value that repeats another along some of its axes: `axes[d]` is the source's axis behind axis d, or None."""

    source: Value
    axes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """Questions about values as they are now in an edit."""

    edit: Edit

    def op(self, value: Value, *names: str) -> Op | None:
        """The op that makes a value, if it is one of these."""
        maker = self.edit.maker(value)
        return maker if maker is not None and maker.name.partition(".")[2] in names else None

    def operands(self, op: Op) -> list[Value]:
        return self.edit.operands(op)

    def pair(self, value: Value, name: str) -> tuple[Value, Value] | None:
        """The two operands of a binary op."""
        maker = self.op(value, name)
        if maker is None:
            return None
        x, y = self.operands(maker)
        return x, y

    def under(self, value: Value, name: str) -> Value | None:
        """The operand of a unary op."""
        maker = self.op(value, name)
        return None if maker is None else self.operands(maker)[0]

    def number(self, value: Value) -> float | None:
        """The number that fills a constant, also through broadcasts."""
        maker = self.op(self.row(value).source, "constant")
        constant: Constant | None = None if maker is None else maker.attrs["value"]
        if constant is None or constant.array.size == 0 or constant.dtype.kind != "float":
            return None
        flat = constant.array.reshape(-1)
        if not constant.is_splat and not bool((flat == flat[0]).all()):
            return None
        return float(flat[0])

    def row(self, value: Value) -> Row:
        """What a value repeats, through broadcasts and reshapes that insert or drop axes of size one."""
        axes: tuple[int | None, ...] = tuple(range(value.shape.rank))
        while (maker := self.op(value, "broadcast_in_dim", "reshape")) is not None:
            (source,) = self.operands(maker)
            if maker.name == "stablehlo.reshape":
                moved = _squeezed(value.shape, source.shape)
                if moved is None:
                    break
            else:
                moved = [None] * value.shape.rank
                for i, d in enumerate(maker.attrs["broadcast_dimensions"]):
                    moved[d] = None if source.shape.sizes[i] == 1 else i
            axes = tuple(None if axis is None else moved[axis] for axis in axes)
            value = source
        return Row(value, axes)

    def factors(self, value: Value) -> tuple[float, list[Value]]:
        """A value as a number times other values, through products, quotients by numbers and negations."""
        number, rest, work = 1.0, [], [value]
        while work:
            part = work.pop()
            constant = self.number(part)
            if constant is not None:
                number *= constant
            elif (product := self.pair(part, "multiply")) is not None:
                work += product
            elif (negated := self.under(part, "negate")) is not None:
                number = -number
                work.append(negated)
            elif (quotient := self.pair(part, "divide")) is not None and self.number(quotient[1]):
                number /= self.number(quotient[1]) or 1.0
                work.append(quotient[0])
            elif (square := self._square(part)) is not None:
                work += square
            else:
                rest.append(part)
        return number, rest

    def _square(self, value: Value) -> list[Value] | None:
        """x, n times, for x to the power of a small whole number."""
        if (base := self.under(value, "square")) is not None:
            return [base, base]
        power = self.pair(value, "power")
        exponent = None if power is None else self.number(power[1])
        return [power[0]] * int(exponent) if power is not None and exponent in (2.0, 3.0) else None

    def plus_number(self, value: Value) -> tuple[Value, float] | None:
        """x + number, in either order."""
        pair = self.pair(value, "add")
        for x, y in (pair, pair[::-1]) if pair is not None else ():
            constant = self.number(y)
            if constant is not None:
                return x, constant
        return None

    def reduced(self, value: Value, body: str) -> tuple[Value, tuple[int, ...]] | None:
        """What a plain sum or maximum reduces, and along which axes."""
        maker = self.op(value, "reduce")
        if maker is None or len(maker.results) != 1:
            return None
        ops = maker.regions[0].ops
        if len(ops) != 1 or ops[0].name != f"stablehlo.{body}" or set(ops[0].operands) != set(maker.regions[0].args):
            return None
        x, start = self.operands(maker)
        neutral = self.number(start)
        if neutral is None or not (neutral == 0.0 if body == "add" else neutral == -math.inf or neutral < -1e37):
            return None
        return x, tuple(sorted(maker.attrs["dimensions"]))

    def spread(self, value: Value, like: Value, axes: Sequence[int]) -> Value | None:
        """The value with one element per row of `like`, if this one repeats it along `axes` and nowhere else."""
        row = self.row(value)
        kept = [d for d in range(like.shape.rank) if d not in axes]
        if len(row.axes) != like.shape.rank or row.source.shape.rank not in (len(kept), like.shape.rank):
            return None
        wanted = [row.axes[d] for d in kept]
        fits = all(axis is not None or like.shape.sizes[d] == 1 for d, axis in zip(kept, wanted, strict=True))
        ordered = [axis for axis in wanted if axis is not None]
        return row.source if fits and ordered == sorted(ordered) and all(row.axes[d] is None for d in axes) else None

    def mean(self, value: Value) -> tuple[Value, tuple[int, ...]] | None:
        """What a value is the mean of, and along which axes."""
        number, rest = self.factors(self.row(value).source)
        found = self.reduced(self.row(rest[0]).source, "add") if len(rest) == 1 else None
        if found is None:
            return None
        sizes = [found[0].shape.sizes[axis] for axis in found[1]]
        if not all(isinstance(size, int) for size in sizes):
            return None
        count = math.prod(size for size in sizes if isinstance(size, int))
        return found if count and _near(number * count, 1.0) else None


def _squeezed(shape: Shape, source: Shape) -> list[int | None] | None:
    """Which axis of the source is behind each axis of a reshape that only inserts or drops axes of size one."""
    big = [i for i, size in enumerate(source.sizes) if size != 1]
    axes: list[int | None] = [None if size == 1 else -1 for size in shape.sizes]
    places = [i for i, axis in enumerate(axes) if axis is not None]
    if [shape.sizes[i] for i in places] != [source.sizes[i] for i in big]:
        return None
    for place, axis in zip(places, big, strict=True):
        axes[place] = axis
    return axes


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=2e-3)


Finder = Callable[[Look, Op], Found | None]


# ---- finders ----


def softmax(look: Look, root: Op) -> Found | None:
    if root.name != "stablehlo.divide":
        return None
    powers, total = look.operands(root)
    shifted = look.under(powers, "exponential")
    found = look.reduced(look.row(total).source, "add")
    if shifted is None or found is None or found[0] is not powers or look.spread(total, powers, found[1]) is None:
        return None
    difference = look.pair(shifted, "subtract")
    if difference is None or len(found[1]) != 1:
        return None
    x, peak = difference
    highest = look.spread(peak, x, found[1])
    if highest is None:
        return None
    floor = look.pair(highest, "maximum")  # JAX takes the maximum with -inf once more
    for bound, other in (floor, floor[::-1]) if floor is not None else ():
        if look.number(bound) == -math.inf:
            highest = look.row(other).source
    return (
        Found("smelt.softmax", (x,), {"axis": found[1][0]})
        if look.reduced(highest, "maximum") == (x, found[1])
        else None
    )


def _inverse_root(look: Look, value: Value) -> tuple[Value, float] | None:
    """v and epsilon of 1 / sqrt(v + epsilon), in the ways it is written."""
    inner = look.under(value, "rsqrt")
    if inner is None and (quotient := look.pair(value, "divide")) is not None and look.number(quotient[0]) == 1.0:
        inner = look.under(look.row(quotient[1]).source, "sqrt")
    if inner is None and (power := look.pair(value, "power")) is not None and look.number(power[1]) == -0.5:
        inner = power[0]
    return None if inner is None else look.plus_number(inner)


def _normalised(look: Look, value: Value) -> tuple[Value, Value, float] | None:
    """n, v and epsilon of n / sqrt(v + epsilon)."""
    product = look.pair(value, "multiply")
    for x, factor in (product, product[::-1]) if product is not None else ():
        found = _inverse_root(look, look.row(factor).source)
        if found is not None:
            return x, found[0], found[1]
    quotient = look.pair(value, "divide")
    root = None if quotient is None else look.under(look.row(quotient[1]).source, "sqrt")
    found = None if root is None else look.plus_number(root)
    return (quotient[0], *found) if quotient is not None and found is not None else None


def _variance(look: Look, value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """The value whose squares' mean this is, and the axes."""
    mean = look.mean(value)
    if mean is None:
        return None
    number, parts = look.factors(mean[0])
    return (parts[0], mean[1]) if number == 1.0 and len(parts) == 2 and parts[0] is parts[1] else None


def _centre(look: Look, value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """x and the axes, for x minus its mean."""
    pair = look.pair(value, "subtract")
    mean = None if pair is None else look.mean(pair[1])
    return mean if pair is not None and mean is not None and mean[0] is pair[0] else None


def norm(look: Look, root: Op) -> Found | None:
    """Layer and RMS norm, with as much of scale and bias as is there."""
    value, extra = root.results[0] if len(root.results) == 1 else None, []
    if value is None or not isinstance(value.type, Shape) or not value.type.dtype.is_float:
        return None
    plain = _plain_norm(look, value)
    if plain is None and (total := look.pair(value, "add")) is not None:
        for scaled, bias in (total, total[::-1]):
            product = look.pair(scaled, "multiply")
            for inner, scale in (product, product[::-1]) if product is not None else ():
                candidate = _plain_norm(look, inner)
                if candidate is not None and _along(look, (scale, bias), candidate):
                    plain, extra = candidate, [scale, bias]
    if plain is None and (product := look.pair(value, "multiply")) is not None:
        for inner, scale in (product, product[::-1]):
            candidate = _plain_norm(look, inner)
            if candidate is not None and _along(look, (scale,), candidate):
                plain, extra = candidate, [scale]
    if plain is None:
        return None
    inputs = (plain.inputs[0], *(look.row(each).source for each in extra))
    return Found(plain.name, inputs, plain.attributes)


def _along(look: Look, values: Sequence[Value], plain: Found) -> bool:
    """Whether scale and bias repeat along every axis but the normalised ones."""
    axes = plain.attributes["axes"]
    for value in values:
        row = look.row(value)
        if any(axis is not None for d, axis in enumerate(row.axes) if d not in axes):
            return False
    return True


def _plain_norm(look: Look, value: Value) -> Found | None:
    found = _normalised(look, value)
    if found is None:
        return None
    top, variance, epsilon = found
    squares = _variance(look, variance)
    if squares is None or squares[0] is not top:
        return None
    attributes = {"axes": squares[1], "epsilon": epsilon}
    centred = _centre(look, top)
    if centred is not None and centred[1] == squares[1]:
        return Found("smelt.layer_norm", (centred[0],), attributes)
    return Found("smelt.rms_norm", (top,), attributes)


def gelu(look: Look, root: Op) -> Found | None:
    number, parts = look.factors(root.results[0]) if root.name == "stablehlo.multiply" else (0.0, [])
    if len(parts) != 2 or not _near(number, 0.5):
        return None
    for x, gate in (parts, parts[::-1]):
        one_more = look.plus_number(gate)
        if one_more is None or one_more[1] != 1.0:
            continue
        inner = look.under(one_more[0], "erf")
        if inner is not None:
            scale, rest = look.factors(inner)
            if rest == [x] and _near(scale, math.sqrt(0.5)):
                return Found("smelt.gelu", (x,), {"approximate": 0})
        inner = look.under(one_more[0], "tanh")
        if inner is not None and _tanh_argument(look, inner, x):
            return Found("smelt.gelu", (x,), {"approximate": 1})
    return None


def _tanh_argument(look: Look, value: Value, x: Value) -> bool:
    """sqrt(2 / pi) * (x + 0.044715 x^3), or with x taken out of the sum."""
    scale, rest = look.factors(value)
    sums = [part for part in rest if part is not x]
    outside = len(rest) - len(sums)
    if not _near(scale, math.sqrt(2 / math.pi)) or len(sums) != 1 or outside > 1:
        return False
    if outside and (shifted := look.plus_number(sums[0])) is not None:
        cubic, powers = look.factors(shifted[0])
        return shifted[1] == 1.0 and powers == [x, x] and _near(cubic, 0.044715)
    pair = look.pair(sums[0], "add")
    for linear, other in (pair, pair[::-1]) if pair is not None else ():
        cubic, powers = look.factors(other)
        if linear is x and powers == [x, x, x] and _near(cubic, 0.044715):
            return True
    return False


def silu(look: Look, root: Op) -> Found | None:
    if root.name not in ("stablehlo.multiply", "stablehlo.divide"):
        return None
    x, other = look.operands(root)
    if root.name == "stablehlo.divide":
        return Found("smelt.silu", (x,)) if _one_plus_power(look, other) is x else None
    for value, gate in ((x, other), (other, x)):
        if _logistic(look, gate) is value:
            return Found("smelt.silu", (value,))
    return None


def _logistic(look: Look, value: Value) -> Value | None:
    """x of logistic(x), also as 1 / (1 + exp(-x))."""
    quotient = look.pair(value, "divide")
    if quotient is not None and look.number(quotient[0]) == 1.0:
        return _one_plus_power(look, quotient[1])
    return look.under(value, "logistic")


def _one_plus_power(look: Look, value: Value) -> Value | None:
    """x of 1 + exp(-x)."""
    total = look.plus_number(value)
    power = look.under(total[0], "exponential") if total is not None and total[1] == 1.0 else None
    return None if power is None else look.under(power, "negate")


def hard_swish(look: Look, root: Op) -> Found | None:
    """x * clamp(x + 3, 0, 6) / 6, or x * clamp(x / 6 + 1 / 2, 0, 1)."""
    number, parts = (
        look.factors(root.results[0]) if root.name in ("stablehlo.multiply", "stablehlo.divide") else (0.0, [])
    )
    if len(parts) != 2:
        return None
    for x, gate in (parts, parts[::-1]):
        limits = _clamped(look, gate)
        if limits is None or limits[1] != 0.0:
            continue
        inner, _, high = limits
        shifted = look.plus_number(inner)
        scale, rest = look.factors(shifted[0]) if shifted is not None else (0.0, [])
        if shifted is None or rest != [x] or not _near(shifted[1], high / 2):
            continue
        if _near(scale * number, 1 / 6) and _near(high * number, 1.0):
            return Found("smelt.hard_swish", (x,))
    return None


def _clamped(look: Look, value: Value) -> tuple[Value, float, float] | None:
    """x, low and high of a clamp, or of a minimum of a maximum."""
    maker = look.op(value, "clamp")
    if maker is not None:
        low, x, high = look.operands(maker)
        bounds = look.number(low), look.number(high)
        return None if bounds[0] is None or bounds[1] is None else (x, bounds[0], bounds[1])
    outer = look.pair(value, "minimum")
    for inner, high in (outer, outer[::-1]) if outer is not None else ():
        pair = look.pair(inner, "maximum")
        for x, low in (pair, pair[::-1]) if pair is not None else ():
            bounds = look.number(low), look.number(high)
            if bounds[0] is not None and bounds[1] is not None:
                return x, bounds[0], bounds[1]
    return None


def attention(look: Look, root: Op) -> Found | None:
    """softmax(q k^T * scale + mask) v; the softmax is a composite already."""
    if root.name != "stablehlo.dot_general":
        return None
    for at, other in (look.operands(root), look.operands(root)[::-1]):
        weights = look.op(at, "composite")
        if weights is None or weights.attrs["name"] != "smelt.softmax":
            continue
        scores, mask = look.operands(weights)[0], None
        total = look.pair(scores, "add")
        for inner, added in (total, total[::-1]) if total is not None else ():
            if mask is None and _product(look, inner) is not None:
                scores, mask = inner, look.row(added).source
        product = _product(look, scores)
        if product is None or product[1].shape.rank != scores.shape.rank or product[2].shape.rank != scores.shape.rank:
            continue
        scale, q, k = product
        inputs = (q, k, other) if mask is None else (q, k, other, mask)
        return Found("smelt.attention", inputs, {"scale": scale})
    return None


def _product(look: Look, value: Value) -> tuple[float, Value, Value] | None:
    """scale, q and k of a scaled product; a scale on q or k alone counts."""
    scale, parts = look.factors(value)
    dot = look.op(parts[0], "dot_general") if len(parts) == 1 else None
    if dot is None:
        return None
    sides = [look.factors(side) for side in look.operands(dot)]
    if any(len(rest) != 1 for _, rest in sides):
        return scale, *look.operands(dot)  # type: ignore[return-value]
    return scale * sides[0][0] * sides[1][0], sides[0][1][0], sides[1][1][0]


BLOCKS: tuple[Finder, ...] = (softmax, norm, gelu, silu, hard_swish)
ATTENTION: tuple[Finder, ...] = (attention,)


# ---- outlining ----


def _between(edit: Edit, root: Op, inputs: Sequence[Value]) -> list[Op] | None:
    """The ops from the inputs to the root, in order; None if one of them is needed elsewhere too.

    Constants, and moves of constants and inputs, are copied, so they may have other users.
    """
    stop = {edit.value(value) for value in inputs}
    inside: dict[Op, None] = {}
    work = [root]
    while work:
        op = work.pop()
        if op in inside:
            continue
        if has_effect(op):
            return None
        inside[op] = None
        for operand in edit.operands(op):
            if operand in stop:
                continue
            if operand.op is None:
                return None  # an argument that is not among the inputs
            work.append(operand.op)
    ordered = [op for op in edit.ops() if op in inside]
    if len(ordered) != len(inside):
        return None  # some stand in another region
    cheap: set[Op] = set()
    for op in ordered:
        if op.name in _MOVES and all(value in stop or value.op in cheap for value in edit.operands(op)):
            cheap.add(op)
        elif op is not root:
            for value in op.results:
                if edit.is_returned(value) or any(user not in inside for user in edit.users(value)):
                    return None
    return ordered


_MOVES = frozenset({"stablehlo.constant", "stablehlo.broadcast_in_dim", "stablehlo.reshape"})


def _outline(edit: Edit, root: Op, found: Found, inside: list[Op], made: dict[bytes, Func], program: Program) -> None:
    assert found.name in COMPOSITES
    assert set(found.attributes) == set(COMPOSITES[found.name].attributes)
    inputs = [edit.value(value) for value in found.inputs]
    args = tuple(Value(value.type, None, i, value.name) for i, value in enumerate(inputs))
    values: dict[Value, Value] = dict(zip(inputs, args, strict=True))
    ops = []
    for op in inside:
        current = Op(
            op.name,
            edit.operands(op),
            [value.type for value in op.results],
            op.attrs,
            op.regions,
            op.location,
            [value.name for value in op.results],
        )
        copy = clone_op(current, values)
        values.update(zip(op.results, copy.results, strict=True))
        ops.append(copy)
    body = Region(args, tuple(ops), tuple(values[value] for value in root.results))
    draft = Func("decomposition", body, "private")
    key = fingerprint(draft) + found.name.encode()
    if key not in made:
        number = sum(func.name.startswith(found.name) for func in (*made.values(), *program.funcs.values()))
        made[key] = Func(f"{found.name}.{number}", body, "private")
        edit.signatures[made[key].name] = made[key].type
    builder = edit.before(root)
    attributes = Dict(tuple((name, _node(value)) for name, value in found.attributes.items()))
    composite = builder.op(
        "stablehlo.composite",
        *inputs,
        name=found.name,
        composite_attributes=attributes,
        decomposition=made[key].name,
        result=[value.type for value in root.results],
    )
    for old, new in zip(root.results, composite.results, strict=True):
        edit.replace(old, new)
    for op in reversed(inside):
        if op in edit:
            edit.erase_if_dead(op)


def _node(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(Int(item) for item in value)
    return Float(value) if isinstance(value, float) else Int(value)
