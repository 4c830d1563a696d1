"""Programs from a line of text, and the round trip of text, for the tests of the text form."""

import numpy as np

from smelt.ir.core import Program
from smelt.ir.structure import difference
from smelt.ir.text import parse, print_program


def body(text: str, args: str = "") -> str:
    return f"func.func @f({args}) {{\n{text}\n  return\n}}"


def first_op(text: str, args: str = ""):
    return parse(body(text, args)).funcs["f"].body.ops[0]


def constant(literal: str) -> np.ndarray:
    return first_op(f"  %0 = stablehlo.constant {literal}").attrs["value"].array


def round_trip(program: Program) -> None:
    for generic in (False, True):
        for locations in (False, True):
            text = print_program(program, generic=generic, locations=locations)
            again = parse(text)
            assert difference(program, again) is None, text
            assert print_program(again, generic=generic, locations=locations) == text
