"""Random numbers from explicit keys: the same key gives the same numbers, on every engine and machine.

Bits come from Threefry-2x32 as `rng_bit_generator` defines it (the algorithm is pinned); a key is two ui64, a secret
and a counter. Nothing here has hidden state: use each key once, and `split` it for more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from smelt.dtype import DType, dtype, integer_range, ui32, ui64
from smelt.shape import Shape
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import Axis, find_axis, shape_of
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import concatenate, relabel, zeros
from smelt.tensor.ops.reduce import argmax
from smelt.tensor.record import constant, emit, emit_all, operand
from smelt.tensor.source import refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

_KEY = Shape.of(ui64, (2,))


@with_argument_errors
def key(seed: int) -> Tensor:
    """A key from a number."""
    return el.leaf(np.array([seed % (1 << 64), 0], np.uint64))


def _check_key(what: str, given: Tensor) -> Tensor:
    if given.dtype is not ui64 or given.shape.sizes != (2,):
        refuse(f"{what}: not a key", operand("key", given), remedy="smelt.random.key(seed)")
    return relabel(given, None)


@with_argument_errors
def bits(source: Tensor, shape: Shape | str) -> Tensor:
    """Random bits in every element of an integer shape."""
    wanted = shape_of(shape)
    source = _check_key("bits", source)
    if not wanted.element.is_integer:
        refuse(f"bits: integers hold bits, not {wanted.element}")
    _, made = emit_all(
        "rng_bit_generator",
        (source,),
        (None, wanted.names),
        results=(_KEY, Shape.of(wanted.dtype, wanted.sizes)),
        rng_algorithm="THREE_FRY",
    )
    return made


@with_argument_errors
def split(source: Tensor, count: int = 2) -> list[Tensor]:
    """New keys, as independent of each other and of this one as the algorithm makes them."""
    secrets = bits(source, Shape.of(ui64, (count,)))
    zero = zeros(Shape.of(ui64, (1,)))
    return [concatenate([secrets[i : i + 1], zero], 0) for i in range(count)]


@with_argument_errors
def uniform(source: Tensor, shape: Shape | str, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Floats in [low, high), each as likely as any."""
    wanted = shape_of(shape)
    element = wanted.element
    if not element.is_float:
        refuse(f"uniform: floats, not {element}", remedy="smelt.random.integers")
    digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(element.name)
    if digits is None:
        refuse(f"uniform: not for {element}", remedy='draw f32 and cast: .to("…")')
    word = ui64 if element.name == "f64" else ui32
    drawn = bits(source, Shape.of(word, wanted.sizes, wanted.names))
    kept = el.cast(el.shift_right(drawn, word.bits - digits), element)
    unit = el.multiply(kept, 2.0**-digits)
    if (low, high) == (0.0, 1.0):
        return unit
    return el.add(el.multiply(unit, high - low), low)


@with_argument_errors
def normal(source: Tensor, shape: Shape | str, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Floats from the normal distribution: the inverse of its integral, of uniform numbers."""
    wanted = shape_of(shape)
    wide = Shape.of(dtype("f64") if wanted.element.name == "f64" else dtype("f32"), wanted.sizes, wanted.names)
    smallest = 2.0**-54 if wide.element.name == "f64" else 2.0**-25
    unit = el.add(uniform(source, wide), smallest)  # in the middle of its interval, so never 0
    drawn = el.multiply(el.function("erf_inv", el.subtract(el.multiply(unit, 2.0), 1.0)), math.sqrt(2.0))
    return el.cast(el.add(el.multiply(drawn, std), mean), wanted.element)


@with_argument_errors
def integers(source: Tensor, shape: Shape | str, low: int, high: int) -> Tensor:
    """Integers in [low, high). Of 64 random bits the remainder is taken, so that no number is noticeably likelier."""
    wanted = shape_of(shape)
    element = wanted.element
    if not element.is_integer:
        refuse(f"integers: not for {element}", remedy='"i32[…]"')
    least, most = integer_range(element)
    if not (least <= low < high <= most + 1):
        refuse(f"integers: [{low}, {high}) is no range of {element}")
    drawn = bits(source, Shape.of(ui64, wanted.sizes, wanted.names))
    rest = emit("remainder", drawn, _fill(high - low, ui64, drawn), names=wanted.names)
    return el.add(el.cast(rest, element), low)


def _fill(value: int, element: DType, like: Tensor) -> Tensor:
    return el.spread(constant(value, element), Shape.of(element, like.shape.sizes, like.shape.names), ())


@with_argument_errors
def bernoulli(source: Tensor, shape: Shape | str, probability: float = 0.5) -> Tensor:
    """Booleans that hold with a probability; the shape's element type is i1."""
    wanted = shape_of(shape)
    return el.less(uniform(source, wanted.with_dtype(dtype("f32"))), probability)


@with_argument_errors
def categorical(source: Tensor, logits: Tensor, axis: Axis) -> Tensor:
    """Indices along an axis with probabilities softmax(logits): the argmax of logits plus Gumbel noise."""
    find_axis("categorical", operand("logits", logits), axis)
    noise = uniform(source, logits.shape.with_dtype(dtype("f32")))
    gumbel = el.negative(el.function("log", el.negative(el.function("log", el.add(noise, 2.0**-25)))))
    return argmax(el.add(el.cast(logits, dtype("f32")), gumbel), axis)
