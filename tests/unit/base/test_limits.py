"""Limits of sizes and of MLIR text are inclusive: what reaches one is taken, one more is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest

from smelt.dtype import i32
from smelt.errors import ParseError, ShapeError
from smelt.ir.attributes import Constant
from smelt.ir.text import parse
from smelt.ir.text.elements import show_elements
from smelt.size import Size, floordiv, mod, parse_size, symbol

N, M = symbol("N"), symbol("M")


def sum_of_symbols(count: int) -> Size:
    return reduce(add, (symbol(f"x{i}") for i in range(count)))


def grid(count: int) -> Size:
    """The first terms of the polynomial whose terms are N**i * M**j, i and j below 8, then N**8."""
    return reduce(add, [*(N**i * M**j for i in range(8) for j in range(8)), N**8][:count])


def nested_remainders(depth: int) -> Size:
    size: Size = N
    for _ in range(depth):
        size = mod(size + N, M)
    return size


def quotient_of_length(length: int) -> Size:
    """A quotient whose text has so many characters: (a… + b… + …)//7."""
    names = [f"{chr(97 + i)}" + "_" * 199 for i in range(20)]
    left = length - len("()//7") - 20 * 200 - 19 * len(" + ")
    made = floordiv(reduce(add, (symbol(name + "_" * (left if i == 0 else 0)) for i, name in enumerate(names))), 7)
    assert len(str(made)) == length
    return made


def attribute(text: str) -> Any:
    return parse(f"module attributes {{test.a = {text}}} {{\n  func.func @main() {{\n    return\n  }}\n}}\n")


SIZES: dict[str, tuple[Callable[[int], Any], int]] = {
    "characters of a name": (lambda count: symbol("n" * count), 256),
    "characters of a name in a text": (lambda count: parse_size("n" * count), 256),
    "an exponent": (lambda count: N**count, 64),
    "an exponent in a text": (lambda count: parse_size(f"N**{count}"), 64),
    "factors": (lambda count: N ** (count - 1) * M, 64),
    "terms": (sum_of_symbols, 256),
    "terms of two factors": (lambda count: grid(64) * grid(count), 64),
    "a coefficient": (lambda count: N * count, 10**36),
    "a negative coefficient": (lambda count: N * -count, 10**36),
    "a number in a text": (lambda count: parse_size(str(count)), 10**36),
    "operations inside each other": (nested_remainders, 48),
    "characters of a quotient": (quotient_of_length, 4096),
    "characters of a text": (lambda count: parse_size("N" + " " * (count - 1)), 1 << 16),
    "parentheses": (lambda count: parse_size("(" * count + "N" + ")" * count), 48),
}


@pytest.mark.parametrize(("make", "most"), SIZES.values(), ids=SIZES)
def test_limits_of_sizes(make: Callable[[int], Any], most: int) -> None:
    make(most)
    with pytest.raises(ShapeError):
        make(most + 1)


@pytest.mark.parametrize("exponent", [-1, 65, 1000])
def test_exponents_out_of_range_are_named(exponent: int) -> None:
    with pytest.raises(ShapeError, match="exponent out of range") as caught:
        N**exponent
    assert (caught.value.expected, caught.value.got) == ("0 to 64", exponent)
    assert N**0 == 1
    assert N**1 == N


def literal(size: int) -> Any:
    text = "func.func @main() -> T {\n  %0 = stablehlo.constant dense<1> : T\n  return %0 : T\n}\n"
    return parse(text.replace("T", f"tensor<{size}xi8>"))


def argument(sizes: str) -> Any:
    return parse(f"func.func @main(%x: tensor<{sizes}xi8>) {{\n  return\n}}\n")


TEXTS: dict[str, tuple[Callable[[int], Any], int, str]] = {
    "a size": (lambda size: argument(str(size)), 2**63 - 1, "a size is too large"),
    "bytes of a literal": (lambda size: literal(size), 2**62 - 1, "too large to address"),
    "digits": (lambda count: attribute("0" * (count - 1) + "7 : i64"), 400, "too many digits"),
    "levels": (lambda depth: attribute("[" * depth + "]" * depth), 200, "nested too deeply"),
}


@pytest.mark.parametrize(("make", "most", "message"), TEXTS.values(), ids=TEXTS)
def test_limits_of_texts(make: Callable[[int], Any], most: int, message: str) -> None:
    make(most)
    with pytest.raises(ParseError, match=message):
        make(most + 1)


def test_literals_of_many_elements_are_one_hexadecimal_number() -> None:
    """As MLIR prints them: lists up to 100 elements."""
    few, many = (show_elements(Constant.of(np.arange(count, dtype=np.int32), i32)) for count in (100, 101))
    assert few == "[" + ", ".join(map(str, range(100))) + "]"
    assert many == '"0x' + np.arange(101, dtype="<i4").tobytes().hex().upper() + '"'
