"""A Program to MLIR text, in the formats that stablehlo-opt prints.

In: a program, a function or an op. Out: text that `parse` reads back as the same program. Values keep the names they
came with where these are free; everything that stems from a file is escaped, so no name can break the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from smelt.ir.attributes import Unit
from smelt.ir.core import Func, Op, Program, Region, Type, Value, used_values
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import OpDef
from smelt.ir.text import types
from smelt.ir.text.assembly import is_printed
from smelt.ir.text.attrs import show, show_dictionary, show_location, show_symbol
from smelt.ir.text.export import lower
from smelt.ir.text.formats import FORMATS

_NAME = re.compile(r"[A-Za-z$._-][\w$.-]*", re.ASCII)
_ODD = re.compile(r"[^\w$.-]", re.ASCII)
_STEP = "  "


def print_program(program: Program, *, generic: bool = False, locations: bool = False, export: bool = False) -> str:
    """A program as text.

    `generic` writes every op in MLIR's generic form, `locations` adds `loc(…)`. `export` writes plain MLIR, for other
    parsers: sizes become `?`, and the ops that need them get them from `get_dimension_size`.
    """
    if export:
        program = lower(program)
    printer = _Printer(generic, locations, export)
    return printer.program(program)


def print_func(func: Func, *, generic: bool = False, locations: bool = False, export: bool = False) -> str:
    """One function as text; see `print_program`."""
    if export:
        func = lower(Program.of(func)).funcs[func.name]
    return _Printer(generic, locations, export).func(func) + "\n"


def print_op(op: Op, *, generic: bool = False, locations: bool = False, export: bool = False) -> str:
    """One op as text, for messages and logs; operands that have no name of their own are numbered."""
    printer = _Printer(generic, locations, export)
    for value in dict.fromkeys(used_values(op)):
        printer.define(value, value.name)
    return printer.op(op)


class _Printer:
    """Prints one function after the other. Names are free again at the end of the region that defines them."""

    def __init__(self, generic: bool, locations: bool, export: bool) -> None:
        self.is_generic = generic
        self.locations = locations
        self.export = export
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.next_value = self.next_argument = 0
        self.depth = self.nested = 0
        self._types: dict[Type, str] = {}
        self._undo: list[str] = []

    # ---- modules and functions ----

    def program(self, program: Program) -> str:
        attrs = dict(sorted(program.attrs.items()))
        self.depth = 1
        inside = [self._declaration(op) for op in program.declarations]
        inside += [self.func(func) for func in program.funcs.values()]
        body = "".join(f"{_STEP}{text}\n" for text in inside)
        self.depth = 0
        if self.is_generic:
            properties = f" <{{sym_name = {show(program.name)}}}>" if program.name else ""
            tail = f" {show_dictionary(attrs, export=self.export)}" if attrs else ""
            body = body or "^bb0:\n"  # without anything in it, a region has no block
            return f'"builtin.module"(){properties} ({{\n{body}}}){tail} : () -> ()\n'
        name = f" {show_symbol(program.name)}" if program.name else ""
        tail = f" attributes {show_dictionary(attrs, export=self.export)}" if attrs else ""
        return f"module{name}{tail} {{\n{body}}}\n"

    def _declaration(self, op: Op) -> str:
        attrs = dict(op.attrs)
        if self.is_generic or op.name != "sdy.mesh":
            return f'"{op.name}"() <{show_dictionary(attrs)}> : () -> ()'
        mesh, name = attrs.pop("mesh"), attrs.pop("sym_name")
        others = f" {show_dictionary(attrs)}" if attrs else ""
        return f"{op.name} {show_symbol(name)} = <{mesh.body}>{others}"

    def func(self, func: Func) -> str:
        self.names, self.taken, self._types = {}, set(), {}
        self.next_value = self.next_argument = 0
        self._arguments(func.args)
        where = f" {show_location(func.location)}" if self.locations else ""
        if self.is_generic:
            return self._generic_func(func) + where
        visibility = f"{func.visibility} " if func.visibility else ""
        args = ", ".join(
            self.argument(arg) + self._optional(attrs) for arg, attrs in zip(func.args, func.arg_attrs, strict=True)
        )
        results = self._results(func)
        attrs = (
            f" attributes {show_dictionary(dict(sorted(func.attrs.items())), export=self.export)}" if func.attrs else ""
        )
        return f"func.func {visibility}{show_symbol(func.name)}({args}){results}{attrs} {self._body(func)}{where}"

    def _results(self, func: Func) -> str:
        if not func.results:
            return ""
        types_ = [self.type(value.type) for value in func.results]
        if len(types_) == 1 and not func.result_attrs[0]:
            return f" -> {types_[0]}"
        listed = (type + self._optional(attrs) for type, attrs in zip(types_, func.result_attrs, strict=True))
        return f" -> ({', '.join(listed)})"

    def _optional(self, attrs: Any) -> str:
        return f" {show_dictionary(dict(sorted(attrs.items())), export=self.export)}" if attrs else ""

    def _generic_func(self, func: Func) -> str:
        type = types.show_function(
            [arg.type for arg in func.args], [value.type for value in func.results], export=self.export
        )
        properties = []
        if any(func.arg_attrs):
            properties.append(
                f"arg_attrs = [{', '.join(self._optional(each).strip() or '{}' for each in func.arg_attrs)}]"
            )
        properties.append(f"function_type = {type}")
        if any(func.result_attrs):
            properties.append(
                f"res_attrs = [{', '.join(self._optional(each).strip() or '{}' for each in func.result_attrs)}]"
            )
        properties.append(f"sym_name = {show(func.name)}")
        if func.visibility:
            properties.append(f"sym_visibility = {show(func.visibility)}")
        attrs = self._optional(func.attrs)
        return f'"func.func"() <{{{", ".join(properties)}}}> ({self._body(func)}){attrs} : () -> ()'

    def _body(self, func: Func) -> str:
        return self._block(func.body, "func.return" if self.is_generic else "return", args=self.is_generic)

    # ---- regions ----

    def _block(self, region: Region, terminator: str, *, args: bool) -> str:
        """`{…}`; the region's arguments have names already."""
        lines = ["{"]
        pad = _STEP * (self.depth + 1)
        if args and region.args:
            lines.append(f"{_STEP * self.depth}^bb0({', '.join(map(self.argument, region.args))}):")
        self.depth += 1
        heads = [self._result_names(op) for op in region.ops]  # before what is inside the ops, as MLIR numbers them
        for head, op in zip(heads, region.ops, strict=True):
            lines.append(pad + head + self._without_names(op))
        lines.append(pad + self._terminator(terminator, region.results))
        self.depth -= 1
        lines.append(_STEP * self.depth + "}")
        return "\n".join(lines)

    def _terminator(self, name: str, values: Sequence[Value]) -> str:
        names = ", ".join(map(self.name, values))
        listed = ", ".join(self.type(value.type) for value in values)
        if self.is_generic:
            return f'"{name}"({names}) : ({listed}) -> ()'
        return f"{name} {names} : {listed}" if values else name

    def region(self, region: Region, *, args: bool) -> str:
        with self._names_inside():
            return self._block(region, "stablehlo.return", args=args)

    @contextmanager
    def _names_inside(self) -> Iterator[None]:
        """What is named inside is free again afterwards."""
        undo, number, argument = self._undo, self.next_value, self.next_argument
        self._undo = []
        self.nested += 1
        yield
        self.nested -= 1
        self.taken.difference_update(self._undo)
        self._undo, self.next_value, self.next_argument = undo, number, argument

    def enter(self, *regions: Region) -> None:
        first = regions[0]
        self._arguments(first.args)
        for other in regions[1:]:
            for mine, theirs in zip(other.args, first.args, strict=True):
                self.names[mine] = self.names[theirs]

    # ---- ops ----

    def op(self, op: Op) -> str:
        return self._result_names(op) + self._without_names(op)

    def _without_names(self, op: Op) -> str:
        """An op without the names of its results."""
        definition = OPS.get(op.name)
        with self._arguments_inside():
            if self.is_generic or definition is None or op.name not in FORMATS:
                text = f'"{op.name}"{self.generic(op)}'
            else:
                text = self._short(op, definition)
        return f"{text} {show_location(op.location)}" if self.locations else text

    @contextmanager
    def _arguments_inside(self) -> Iterator[None]:
        """Arguments of an op's regions are named before the regions are printed, and free after them."""
        undo, argument = self._undo, self.next_argument
        self._undo = []
        yield
        self.taken.difference_update(self._undo)
        self._undo, self.next_argument = undo, argument

    def _short(self, op: Op, definition: OpDef) -> str:
        name = "call" if op.name == "func.call" and not self.nested else op.name
        return name + FORMATS[op.name].show(self, op, definition)

    def _result_names(self, op: Op) -> str:
        results = op.results
        if not results:
            return ""
        if len(results) == 1:
            return f"{self.define(results[0], results[0].name)} = "
        hints = [value.name for value in results]
        if all(hints) and len(set(hints)) == len(hints):
            return ", ".join(self.define(value, value.name) for value in results) + " = "
        name = self.define(results[0], hints[0])
        for i, value in enumerate(results):
            self.names[value] = f"{name}#{i}"
        return f"{name}:{len(results)} = "

    def generic(self, op: Op) -> str:
        definition = OPS.get(op.name)
        own, others = self._split(op, definition)
        text = f"({', '.join(map(self.name, op.operands))})"
        if own:
            text += f" <{show_dictionary(own, export=self.export)}>"
        if op.regions:
            parts = []
            for region in op.regions:
                with self._arguments_inside():
                    self.enter(region)
                    parts.append(self.region(region, args=True))
            text += f" ({', '.join(parts)})"
        if others:
            text += f" {show_dictionary(others, export=self.export)}"
        return f"{text} : {self.function_type(op)}"

    def _split(self, op: Op, definition: OpDef | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The attributes that the op declares, and those it does not, as nodes in order of their names."""
        own: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name in sorted(op.attrs):
            value = op.attrs[name]
            declared = None if definition is None else definition.by_name.get(name)
            if declared is None:
                others[name] = value
            elif definition is not None and is_printed(op, definition, name):
                node = declared.kind.write(value)
                if value is not False or not isinstance(node, Unit):
                    own[name] = node
        return own, others

    def dictionary(self, op: Op, shown: Collection[str], keyword: str = "") -> str:
        if not op.attrs:
            return ""
        own, others = self._split(op, OPS.get(op.name))
        items = {name: node for name, node in sorted((own | others).items()) if name not in shown}
        return f" {keyword}{show_dictionary(items, export=self.export)}" if items else ""

    # ---- names and types ----

    def name(self, value: Value) -> str:
        name = self.names.get(value)
        if name is None:  # a value from elsewhere: a program that is not whole still prints
            name = self.define(value, value.name or "undefined")
        return name

    def define(self, value: Value, hint: str) -> str:
        name = self._free(hint)
        if name is None:
            name = str(self.next_value)
            while name in self.taken:
                self.next_value += 1
                name = str(self.next_value)
            self.next_value += 1
        return self._take(value, name)

    def _arguments(self, values: Sequence[Value]) -> None:
        for value in values:
            name = self._free(value.name)
            while name is None:
                name = self._free(f"arg{self.next_argument}", exact=True)
                self.next_argument += 1
            self._take(value, name)

    def _take(self, value: Value, name: str) -> str:
        self.taken.add(name)
        self._undo.append(name)
        self.names[value] = f"%{name}"
        return f"%{name}"

    def _free(self, hint: str, *, exact: bool = False) -> str | None:
        """An unused name from a hint: the hint, or with a number added; None if it is no name."""
        if not hint:
            return None
        name = _ODD.sub("_", hint)
        if not _NAME.fullmatch(name):
            name = "_" + name
        if name not in self.taken:
            return name
        if exact:
            return None
        count = 0
        while f"{name}_{count}" in self.taken:
            count += 1
        return f"{name}_{count}"

    def argument(self, value: Value) -> str:
        return f"{self.name(value)}: {self.type(value.type)}"

    def type(self, type: Type) -> str:
        text = self._types.get(type)
        if text is None:
            text = self._types[type] = types.show(type, export=self.export)
        return text

    def function_type(self, op: Op) -> str:
        inputs = ", ".join([self.type(value.type) for value in op.operands])
        results = ", ".join([self.type(value.type) for value in op.results])
        return f"({inputs}) -> {results}" if len(op.results) == 1 else f"({inputs}) -> ({results})"

    def newline(self) -> str:
        return "\n" + _STEP * self.depth
