"""Random bits: `rng_bit_generator`, bit for bit as `smelt.ir.ops.random` has it. Registered in `sinks.SINKS`.

Counter-based generators: blocks of counters run on cores and lanes. `passes.lower_random` turns `stablehlo.rng` into
random bits and arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import Size, ceildiv, product
from smelt.dtype import DType, dtype, i1, i64, ui8, ui32, ui64
from smelt.ir.core import Op
from smelt.ir.ops.random import GROUP_KEY, MULTIPLIERS, ROTATIONS, STEPS, split_axis
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import TRUE, Amount, Bitcast, Expr, Number, add, scale
from smelt.kernel.loops.nest import Nest, flat, tensor

HALF = Number(32, ui64)


@sink("stablehlo.rng_bit_generator")
def rng_bit_generator(nest: Nest, op: Op, output: Output) -> None:
    state, shape = op.operands[0], tensor(op.results[1])
    words = [nest.pull(state, (Number(i),)) for i in range(int(str(tensor(state).sizes[0])))]
    if op.attrs["rng_algorithm"] == "THREE_FRY":
        _three_fry(nest, output, words, shape.sizes, shape.element)
    else:
        _philox(nest, output, words, shape.count, shape.element)


def _element(nest: Nest, word: Expr, element: DType) -> Expr:
    """The low bits of a word as an element."""
    if element.is_integer:
        return nest.convert(word, element)
    bits = {16: dtype("ui16"), 32: ui32, 64: ui64}.get(element.bits, ui8)
    low = nest.convert(word, bits)
    if element.bits < 8:
        low = nest.apply("and", low, Number((1 << element.bits) - 1, ui8))
    return nest.let(Bitcast(low, element))


def _combine_words(nest: Nest, low: Expr, high: Expr) -> Expr:
    upper = nest.apply("shift_left", nest.convert(high, ui64), HALF)
    return nest.apply("or", nest.convert(low, ui64), upper)


def _halves(nest: Nest, word: Expr) -> tuple[Expr, Expr]:
    """The low and the high 32 bits of a word of 64."""
    return nest.convert(word, ui32), nest.convert(nest.apply("shift_right_logical", word, HALF), ui32)


# ---- Threefry ----


def _three_fry(nest: Nest, output: Output, state: Sequence[Expr], sizes: Sequence[Size], element: DType) -> None:
    """One counter for each element of 64 bits, or for each two narrower ones that are neighbours along an axis."""
    key, counter = state
    target = output.targets[1]
    if element.bits == 64:
        with nest.loop(product(sizes)) as at:
            pair = threefry(nest, key, _later(nest, counter, at))
            nest.store(target, at, _element(nest, _combine_words(nest, *pair), element))
        _keep_state(nest, output, [key, _later(nest, counter, Amount(product(sizes)))])
        return
    used: Expr = Number(0)
    for axis, chosen in _axes(nest, sizes):
        half = [ceildiv(size, 2) if d == axis else size for d, size in enumerate(sizes)]
        if chosen == TRUE:
            _pairs(nest, target, key, counter, sizes, half, axis, element)
            used = Amount(product(half))
        else:
            with nest.guard(chosen):
                _pairs(nest, target, key, counter, sizes, half, axis, element)
            used = nest.apply("select", chosen, Amount(product(half)), used, dtype=i64)
    _keep_state(nest, output, [key, _later(nest, counter, used)])


def _axes(nest: Nest, sizes: Sequence[Size]) -> list[tuple[int, Expr]]:
    """The axis along which pairs are adjacent; with dynamic sizes every axis, and the condition that it is the one."""
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes):
        return [(split_axis(known), TRUE)]

    def even(size: Size) -> Expr:
        return nest.apply("EQ", Amount(size % 2), Number(0), dtype=i1)

    none_even = nest.both(*(nest.apply("not", even(size)) for size in sizes))
    found: list[tuple[int, Expr]] = []
    for axis, size in enumerate(sizes):
        first = nest.both(even(size), *(nest.apply("not", even(each)) for each in sizes[:axis]))
        longer = [nest.apply("GT", Amount(size), Amount(each), dtype=i1) for each in sizes[:axis]]
        longest = [nest.apply("GE", Amount(size), Amount(each), dtype=i1) for each in sizes[axis + 1 :]]
        found.append((axis, nest.apply("or", first, nest.both(none_even, *longer, *longest))))
    return found


def _pairs(
    nest: Nest,
    target: int,
    key: Expr,
    counter: Expr,
    sizes: Sequence[Size],
    half: Sequence[Size],
    axis: int,
    element: DType,
) -> None:
    with nest.loops(half) as index:
        first, second = threefry(nest, key, _later(nest, counter, flat(index, half)))
        if not sizes:
            nest.store(target, Number(0), _element(nest, first, element))
            return
        at = scale(index[axis], 2)
        places = [(*index[:axis], place, *index[axis + 1 :]) for place in (at, add(at, 1))]
        nest.store(target, flat(places[0], sizes), _element(nest, first, element))
        value = _element(nest, second, element)
        if isinstance(size := sizes[axis], int) and size % 2 == 0:
            nest.store(target, flat(places[1], sizes), value)
            return
        with nest.guard(nest.less(nest.let(add(at, 1)), Amount(size))):
            nest.store(target, flat(places[1], sizes), value)


def _later(nest: Nest, counter: Expr, steps: Expr) -> Expr:
    return nest.apply("add", counter, nest.convert(steps, ui64))


def _keep_state(nest: Nest, output: Output, state: Sequence[Expr]) -> None:
    for i, word in enumerate(state):
        nest.store(output.targets[0], Number(i), word)


def threefry(nest: Nest, key: Expr, counter: Expr) -> tuple[Expr, Expr]:
    """Threefry-2x32 in 20 rounds."""

    def plus(a: Expr, b: Expr) -> Expr:
        return nest.apply("add", a, b)

    low, high = _halves(nest, key)
    keys = [low, high, nest.apply("xor", nest.apply("xor", low, high), Number(GROUP_KEY, ui32))]
    x, y = _halves(nest, counter)
    x, y = plus(x, keys[0]), plus(y, keys[1])
    for group in range(5):
        for places in ROTATIONS[group % 2]:
            x = plus(x, y)
            left = nest.apply("shift_left", y, Number(places, ui32))
            right = nest.apply("shift_right_logical", y, Number(32 - places, ui32))
            y = nest.apply("xor", nest.apply("or", left, right), x)
        x = plus(x, keys[(group + 1) % 3])
        y = plus(plus(y, keys[(group + 2) % 3]), Number(group + 1, ui32))
    return x, y


# ---- Philox ----


def _philox(nest: Nest, output: Output, state: Sequence[Expr], count: Size, element: DType) -> None:
    """One 128-bit counter per four words. The key is the upper half of a state of two words."""
    key, low = state[:2]
    high = state[2] if len(state) == 3 else key
    wide = element.bits == 64
    blocks = ceildiv(count * (2 if wide else 1), 4)
    per_block = 2 if wide else 4
    with nest.loop(blocks) as block:
        words = philox(nest, key, *_plus(nest, low, high, block))
        if wide:
            words = [_combine_words(nest, words[0], words[1]), _combine_words(nest, words[2], words[3])]
        for i, word in enumerate(words):
            place = add(scale(block, per_block), i)
            value = _element(nest, word, element)
            if i == 0 or (isinstance(count, int) and count % per_block == 0):
                nest.store(output.targets[1], place, value)
                continue
            with nest.guard(nest.less(nest.let(place), Amount(count))):
                nest.store(output.targets[1], place, value)
    _keep_state(nest, output, [key, *_plus(nest, low, high, Amount(blocks))[: len(state) - 1]])


def _plus(nest: Nest, low: Expr, high: Expr, steps: Expr) -> tuple[Expr, Expr]:
    """A 128-bit number plus `steps`."""
    after = _later(nest, low, steps)
    carry = nest.convert(nest.less(after, low), ui64)
    return after, nest.apply("add", high, carry)


def philox(nest: Nest, key: Expr, low: Expr, high: Expr) -> list[Expr]:
    """Philox-4x32 in 10 rounds."""
    (key0, key1), (x0, x1), (x2, x3) = (_halves(nest, word) for word in (key, low, high))

    def product_of(x: Expr, multiplier: int) -> tuple[Expr, Expr]:
        return _halves(nest, nest.apply("multiply", nest.convert(x, ui64), Number(multiplier, ui64)))

    def mix(*words: Expr) -> Expr:
        return nest.apply("xor", nest.apply("xor", words[0], words[1]), words[2])

    for _ in range(10):
        (low0, high0), (low1, high1) = product_of(x0, MULTIPLIERS[0]), product_of(x2, MULTIPLIERS[1])
        x0, x1, x2, x3 = mix(high1, x1, key0), low1, mix(high0, x3, key1), low0
        key0, key1 = (
            nest.apply("add", each, Number(step, ui32)) for each, step in zip((key0, key1), STEPS, strict=True)
        )
    return [x0, x1, x2, x3]
