"""What assembly formats are made of: the parts of a line, each of which can read and print itself.

`Line("% , dims = $permutation {} :function")` is a format. Words and punctuation stand for themselves; `%` is an
operand, `%*` are all that are left, `%*,` the same with a comma after each; `$name` is an attribute in its short
spelling, `@name` a string spelled as a symbol; `(?name` … `?)` is there when the attribute is; `{}` are the other
attributes; `:…` the types. The table of all formats is in `formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from smelt.dtype import DType, i64, integer_range
from smelt.frozen import Frozen
from smelt.ir.attributes import DenseArray, DialectAttr, Float, Int, Symbol
from smelt.ir.core import FuncType, Op, Region, Tuple, Type, Value
from smelt.ir.ops.definition import OpDef
from smelt.ir.text import attrs as text_attrs
from smelt.ir.text.attrs import Attributes, show_symbol
from smelt.ir.text.lexer import AT, FLOAT, ID, INTEGER, STRING, VALUE, Cursor
from smelt.ir.text.types import Types
from smelt.shape import Shape


@dataclass(slots=True)
class Draft:
    """An op under construction. Its attributes are nodes; `operand_types` is None until they are parsed."""

    name: str
    definition: OpDef
    start: int
    operands: list[Value] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    operand_types: Sequence[Type] | None = None
    results: Sequence[Type] = ()


class Reader(Protocol):
    """What formats ask of the parser."""

    cursor: Cursor
    types: Types
    attributes: Attributes

    def operand(self) -> Value:
        """`%name`, looked up."""

    def argument(self) -> tuple[str, Type]:
        """`%name: type` of a region, with an optional location."""

    def region(self, draft: Draft, args: Sequence[tuple[str, Type]] | None = None) -> Region:
        """`{…}` with arguments that its text names, or that are given here."""

    def one_op_region(self, draft: Draft, name: str, args: Sequence[Type]) -> Region:
        """A region that returns one op of all its arguments."""

    def dictionary(self, draft: Draft) -> None:
        """`{…}` if it comes next: attributes, none of which may be there already."""

    def generic(self, draft: Draft) -> None:
        """The generic form, from its operands on."""


class Writer(Protocol):
    """What formats ask of the printer."""

    def name(self, value: Value) -> str:
        """`%0`"""

    def type(self, type: Type) -> str:
        """A type as text."""

    def function_type(self, op: Op) -> str:
        """`(a, b) -> c`"""

    def argument(self, value: Value) -> str:
        """`%arg0: type`"""

    def enter(self, *regions: Region) -> None:
        """Name the arguments of regions; a further region's arguments get the names of the first one's."""

    def region(self, region: Region, *, args: bool) -> str:
        """`{…}` on several lines, with a line for its arguments where asked."""

    def dictionary(self, op: Op, shown: Collection[str], keyword: str = "") -> str:
        """The attributes that are not in `shown` and not at their defaults, with a blank before them; or nothing."""

    def generic(self, op: Op) -> str:
        """The generic form, from its operands on."""

    def newline(self) -> str:
        """A line break, and the indentation of the op being printed."""


class Part(Protocol):
    """A part of a format."""

    def read(self, reader: Reader, draft: Draft) -> None:
        """Read it into the draft."""

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        """Print it, with a blank before it where there is one."""


# ---- parts of lines ----


class _Literal(Frozen):
    text: str
    space: bool

    def read(self, reader: Reader, draft: Draft) -> None:
        reader.cursor.expect(self.text)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        return f" {self.text}" if self.space else self.text


class _Operand(Frozen):
    index: int
    space: bool

    def read(self, reader: Reader, draft: Draft) -> None:
        draft.operands.append(reader.operand())

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        name = writer.name(op.operands[self.index])
        return f" {name}" if self.space else name


class Operands(Frozen):
    """All operands from `index` on."""

    index: int
    space: bool
    trailing: bool  # whether a comma follows the last one

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        if cursor.kind != VALUE:
            if self.trailing and self.index:
                cursor.accept(",")
            return
        while cursor.kind == VALUE:
            draft.operands.append(reader.operand())
            if not cursor.accept(","):
                if self.trailing:
                    cursor.fail("unexpected text", expected="','")
                return
        if not self.trailing:
            cursor.fail("unexpected text", expected="an operand")

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        names = [writer.name(value) for value in op.operands[self.index :]]
        if self.trailing:
            return "".join(f" {name}," for name in names)
        text = ", ".join(names)
        return f" {text}" if self.space else text


class _Attribute(Frozen):
    name: str
    space: bool
    symbol: bool

    def read(self, reader: Reader, draft: Draft) -> None:
        if self.symbol and reader.cursor.kind != AT:
            reader.cursor.fail("unexpected text", expected="@name")
        draft.attrs[self.name] = _read_short(reader, draft.definition, self.name)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        value = op.attrs[self.name]
        kind = definition.by_name.get(self.name)
        node = value if kind is None else kind.kind.write(value)
        if self.symbol:
            text = show_symbol(value)
        else:
            text = value if isinstance(value, str) and isinstance(node, Int) else _show_short(node)
        return f" {text}" if self.space else text


class _Optional(Frozen):
    """Parts that are there when an attribute is. The first two are literals, and determine what follows."""

    name: str
    parts: tuple[Part, ...]

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        first, second = self.parts[0], self.parts[1]
        assert isinstance(first, _Literal)
        if cursor.token != first.text:
            return
        back = cursor.start
        if isinstance(second, _Literal):
            cursor.advance()
            if cursor.token != second.text:
                cursor.seek(back)
                return
            cursor.seek(back)
        for part in self.parts:
            part.read(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        if not is_printed(op, definition, self.name):
            return ""
        return "".join(part.show(writer, op, definition) for part in self.parts)


class _Dictionary(Frozen):
    shown: tuple[str, ...]

    def read(self, reader: Reader, draft: Draft) -> None:
        reader.dictionary(draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        return writer.dictionary(op, self.shown)


class _Types(Frozen):
    how: str

    def read(self, reader: Reader, draft: Draft) -> None:
        reader.cursor.expect(":")
        _READ_TYPES[self.how](reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        return " : " + _SHOW_TYPES[self.how](writer, op)


class Line:
    """A format given as a line of parts."""

    def __init__(self, text: str) -> None:
        self.parts = _compile(text)

    def read(self, reader: Reader, draft: Draft) -> None:
        for part in self.parts:
            part.read(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        return "".join(part.show(writer, op, definition) for part in self.parts)


def _compile(text: str) -> tuple[Part, ...]:
    words = text.split()
    shown = tuple(word[1:] for word in words if word[0] in "$@")
    parts: list[Part] = []
    outer: list[Part] = parts
    operands, space = 0, True
    for word in words:
        if word == "%":
            parts.append(_Operand(operands, space))
            operands += 1
        elif word[0] == "%":
            parts.append(Operands(operands, space, word == "%*,"))
        elif word[0] in "$@":
            parts.append(_Attribute(word[1:], space, word[0] == "@"))
        elif word.startswith("(?"):
            group: list[Part] = []
            optional = word[2:]
            parts = group
        elif word == "?)":
            outer.append(_Optional(optional, tuple(parts)))
            parts = outer
        elif word == "{}":
            parts.append(_Dictionary(shown))
        elif word[0] == ":":
            parts.append(_Types(word))
        else:
            parts.append(_Literal(word, word not in (",", "(", ")", "[", "]")))
        space = word not in ("(", "[")
    return tuple(outer)


def is_printed(op: Op, definition: OpDef, name: str) -> bool:
    """Whether an attribute must be printed: it is present and not the default."""
    if name not in op.attrs or op.attrs[name] is None:
        return False
    declared = definition.by_name.get(name)
    return declared is None or declared.default is None or op.attrs[name] != declared.default


# ---- attributes in their short spelling ----


def _read_short(reader: Reader, definition: OpDef, name: str) -> Any:
    """A node from `3`, `[1, 2]`, `WORD`, `"text"`, `@name`, `true` or a typed literal, as its kind wants."""
    cursor = reader.cursor
    declared = definition.by_name.get(name)
    kind = "" if declared is None else declared.kind.name
    if cursor.kind == STRING:
        return cursor.string()
    if cursor.kind == AT:
        return Symbol((cursor.symbol(),)) if kind == "symbol" else cursor.symbol()
    if cursor.token == "[" and declared is not None and kind.startswith("array"):
        return declared.kind.write(read_list(reader, words=True))
    if cursor.token == "[":
        return read_list(reader)
    if cursor.kind == FLOAT or kind == "float":
        return Float(reader.attributes.floating())
    if cursor.kind == INTEGER or cursor.token == "-":
        node = Int(0) if kind != "int" or declared is None else declared.kind.write(0)
        return Int(_integer(cursor, node.type), node.type)
    if cursor.kind == ID and cursor.token not in ("dense", "dense_resource"):
        word = cursor.advance()
        if word in ("true", "false"):
            return word == "true"
        return word if declared is None else declared.kind.write(word)
    return reader.attributes.any()


def read_list(reader: Reader, *, words: bool = False) -> Any:
    """`[0, 1]` or `[HIGH, DEFAULT]`"""
    cursor = reader.cursor
    if words:
        return tuple([cursor.word() for _ in cursor.read_list("[", "]")])
    return DenseArray(i64, tuple([_integer(cursor, i64) for _ in cursor.read_list("[", "]")]))


def _integer(cursor: Cursor, of: DType) -> int:
    start, value = cursor.start, cursor.integer()
    low, high = integer_range(of)
    if not low <= value <= high:
        cursor.fail("an integer out of range for its type", at=start, expected=of, got=value)
    return value


def _show_short(node: Any) -> str:
    match node:
        case DenseArray():
            return bracket(node.values)
        case Int():
            return str(node.value)
        case Float():
            return text_attrs.show(node, inside=True)
        case DialectAttr(_, "", body):
            return body.rpartition(" ")[2]
        case tuple():
            return "[" + ", ".join(_show_short(item) for item in node) + "]"
        case _:
            return text_attrs.show(node)


def bracket(values: Sequence[Any]) -> str:
    return "[" + ", ".join(str(int(value)) for value in values) + "]"


# ---- types ----


def _from_function(reader: Reader, draft: Draft, type: FuncType, start: int) -> None:
    if len(type.inputs) != len(draft.operands):
        reader.cursor.fail(
            "wrong number of operand types", at=start, expected=len(draft.operands), got=len(type.inputs)
        )
    draft.operand_types, draft.results = type.inputs, type.results


def read_function(reader: Reader, draft: Draft) -> None:
    """`(a, b) -> c`"""
    start = reader.cursor.start
    if reader.cursor.token != "(":
        reader.cursor.fail("unexpected text", expected="a function type")
    _from_function(reader, draft, reader.types.function(), start)


def read_same(reader: Reader, draft: Draft) -> None:
    if reader.cursor.token == "(":
        read_function(reader, draft)
        return
    type = reader.types.value()
    draft.operand_types, draft.results = [type] * len(draft.operands), [type]


def show_same(writer: Writer, op: Op) -> str:
    result = op.results[0].type
    return writer.type(result) if all(value.type == result for value in op.operands) else writer.function_type(op)


def _read_result(reader: Reader, draft: Draft) -> None:
    draft.results = [reader.types.value()]


def _read_operand(reader: Reader, draft: Draft) -> None:
    draft.operand_types = [reader.types.value()] * len(draft.operands)


def _read_operands(reader: Reader, draft: Draft) -> None:
    start = reader.cursor.start
    types = reader.types.row()
    if len(types) != len(draft.operands):
        reader.cursor.fail("wrong number of operand types", at=start, expected=len(draft.operands), got=len(types))
    draft.operand_types = types


def read_pairwise(reader: Reader, draft: Draft) -> None:
    _read_operands(reader, draft)
    assert draft.operand_types is not None
    draft.results = draft.operand_types


def show_row(writer: Writer, op: Op) -> str:
    return ", ".join(writer.type(value.type) for value in op.operands)


def _read_arrow(reader: Reader, draft: Draft) -> None:
    """`a, b -> c`"""
    start = reader.cursor.start
    inputs = tuple(reader.types.row())
    reader.cursor.expect("->")
    _from_function(reader, draft, FuncType(inputs, reader.types.results()), start)


def _show_arrow(writer: Writer, op: Op) -> str:
    results = ", ".join(writer.type(value.type) for value in op.results)
    return f"{show_row(writer, op)} -> {results if len(op.results) == 1 else f'({results})'}"


def _read_complex(reader: Reader, draft: Draft) -> None:
    """Of complex numbers only the result's type is said; the parts have its parts' type."""
    if reader.cursor.token == "(":
        read_function(reader, draft)
        return
    start = reader.cursor.start
    type = reader.types.value()
    if not isinstance(type, Shape) or not isinstance(type.dtype, DType) or not type.dtype.is_complex:
        reader.cursor.fail("unexpected type", at=start, expected="a tensor of complex numbers")
    draft.operand_types, draft.results = [type.with_dtype(type.dtype.part)] * len(draft.operands), [type]


def _show_complex(writer: Writer, op: Op) -> str:
    result = op.results[0].shape
    part = result.with_dtype(result.element.part)
    return writer.type(result) if all(value.type == part for value in op.operands) else writer.function_type(op)


def _read_select(reader: Reader, draft: Draft) -> None:
    if reader.cursor.token == "(":
        read_function(reader, draft)
        return
    start = reader.cursor.start
    types = reader.types.row()
    if len(types) != 2 or len(draft.operands) != 3:
        reader.cursor.fail("unexpected types", at=start, expected="the predicate's type and the result's")
    draft.operand_types, draft.results = [types[0], types[1], types[1]], [types[1]]


def _show_select(writer: Writer, op: Op) -> str:
    result = op.results[0].type
    if any(value.type != result for value in op.operands[1:]):
        return writer.function_type(op)
    return f"{writer.type(op.operands[0].type)}, {writer.type(result)}"


def _read_tuple(reader: Reader, draft: Draft) -> None:
    start = reader.cursor.start
    type = reader.types.value()
    if not isinstance(type, Tuple):
        reader.cursor.fail("unexpected type", at=start, expected="a tuple")
    _from_function(reader, draft, FuncType(type.types, (type,)), start)


_READ_TYPES: dict[str, Callable[[Reader, Draft], None]] = {
    ":function": read_function,
    ":same": read_same,
    ":result": _read_result,
    ":operand": _read_operand,
    ":operands": _read_operands,
    ":pairwise": read_pairwise,
    ":arrow": _read_arrow,
    ":complex": _read_complex,
    ":select": _read_select,
    ":tuple": _read_tuple,
}
_SHOW_TYPES: dict[str, Callable[[Writer, Op], str]] = {
    ":function": lambda writer, op: writer.function_type(op),
    ":same": show_same,
    ":result": lambda writer, op: writer.type(op.results[0].type),
    ":operand": lambda writer, op: writer.type(op.operands[0].type),
    ":operands": show_row,
    ":pairwise": show_row,
    ":arrow": _show_arrow,
    ":complex": _show_complex,
    ":select": _show_select,
    ":tuple": lambda writer, op: writer.type(op.results[0].type),
}
