"""The typed interface of the builders, generated from the op table: `python -m tests.builder_stub` writes it.

In: the rows of `smelt.ir.ops`. Out: `smelt/ir/builders.pyi`. `tests/unit/ir/test_builders.py` checks that it is fresh.
"""

from __future__ import annotations

import keyword
from pathlib import Path

import smelt.ir.builders
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import REQUIRED, Attr, OpDef

FILE = Path(smelt.ir.builders.__file__).with_suffix(".pyi")
HEAD = """# Generated from the op table: python -m tests.builder_stub

from collections.abc import Sequence
from typing import Any, overload

from smelt.dim import Size
from smelt.ir.core import Op, Region, Type, Value

class OpMethods:
    def op(
        self,
        name: str,
        /,
        *operands: Value,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region] = (),
        **attrs: Any,
    ) -> Op: ...
"""
OWN = {"constant"}  # methods that `Builder` writes out
COUNTS = {"batch_norm_training": 3, "batch_norm_grad": 3, "rng_bit_generator": 2}  # results where that is not 1
# Ops with as many results as their operands, regions or declared types say.
VARIADIC = {
    *("all_gather", "all_reduce", "all_to_all", "async_done", "case", "collective_broadcast", "collective_reduce"),
    *("composite", "custom_call", "if", "infeed", "optimization_barrier", "outfeed", "recv", "reduce"),
    *("reduce_window", "scatter", "send", "sort", "while"),
}
ALONE = {"reduce": 2, "reduce_window": 2, "scatter": 3, "sort": 1, "optimization_barrier": 1}  # operands for one result
RESULTS = "Type | Sequence[Type]"
TYPES = {"int": "int", "ints": "tuple[Size, ...]", "bool": "bool", "float": "float", "string": "str"}


def method(row: OpDef, operands: list[str], result: str) -> str:
    """The signature of an op's method, laid out as the formatter does."""
    name = row.name.partition(".")[2]
    name += "_" * keyword.iskeyword(name)
    parameters = ["self", *operands, *([] if any("*" in each for each in operands) else ["*"])]
    parameters += [*map(parameter, row.attrs), f"result: {'Type' if result == 'Value' else RESULTS} | None = None"]
    parameters += [] if row.regions == 0 else ["regions: Sequence[Region]"]
    parameters += ["**attrs: Any"] if name == "custom_call" else []  # each target has attributes of its own
    listed = ", ".join(parameters)
    short, medium = f"    def {name}({listed}) -> {result}: ...\n", f"        {listed}\n"
    if len(short) <= 121:
        return short
    if len(medium) > 121 or "**attrs" in listed:
        medium = "".join(f"        {each},\n" for each in parameters)
    return f"    def {name}(\n{medium}    ) -> {result}: ...\n"


def parameter(attr: Attr) -> str:
    """An attribute. One with a default, or that may be absent, may be None."""
    type = TYPES.get(attr.kind.name, "Any")
    optional = "" if type == "Any" else " | None"
    return f"{attr.name}: {type}" if attr.default is REQUIRED else f"{attr.name}: {type}{optional} = None"


def operands_of(row: OpDef) -> list[str]:
    names = row.operands.split()
    if any(name.endswith("*") for name in names[:-1]):
        return ["*operands: Value"]
    single = [f"{name}: Value" for name in names if not name.endswith("*")]
    variadic = [f"*{name[:-1]}: Value" for name in names if name.endswith("*")]
    return [*single, *(["/"] if single else []), *variadic]


def results_of(name: str) -> str:
    if name in VARIADIC:
        return "Any"
    return f"tuple[{', '.join(['Value'] * COUNTS[name])}]" if name in COUNTS else "Value"


def stub() -> str:
    """The text of `builders.pyi`."""
    text = HEAD
    for full, row in sorted(OPS.items()):
        dialect, _, name = full.partition(".")
        if dialect != "stablehlo" or name in OWN or not name.isidentifier():
            continue
        if name in ALONE:
            operands = [*(f"x{i}: Value" for i in range(ALONE[name])), "/"]
            text += f"    @overload\n{method(row, operands, 'Value')}    @overload\n"
        text += method(row, operands_of(row), results_of(name))
    return text


if __name__ == "__main__":
    FILE.write_text(stub())
