"""The assembly formats of ops: how each reads and how each prints, side by side.

A format is a line of parts. Words and punctuation stand for themselves; `%` is an operand, `%*` are all that are left, `%*,`
the same with a comma after each; `$name` is an attribute in its short spelling and `@name` a string spelled as a symbol;
`(?name` … `?)` is there when the attribute is; `{}` are the other attributes; `:…` the types. Ops whose format says
more have a class of their own. An op without a format is written generically.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from smelt.dtype import DType, dtype, i64
from smelt.ir.attributes import Constant, DenseArray, DialectAttr, Dict, Float, Int, Symbol, print_conv_dims
from smelt.ir.core import FuncType, Op, Region, Tuple, Type, Value
from smelt.ir.ops.definition import OpDef
from smelt.ir.text import attrs as text_attrs
from smelt.ir.text.attrs import Attributes, show_symbol
from smelt.ir.text.lexer import AT, FLOAT, ID, INTEGER, STRING, VALUE, Cursor
from smelt.ir.text.types import Types
from smelt.shape import Shape


@dataclass(slots=True)
class Draft:
    """An op while it is being read. Its attributes are nodes; `operand_types` is None until the text has said them."""

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
    """A piece of a format."""

    def read(self, reader: Reader, draft: Draft) -> None:
        """Read it into the draft."""

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        """Print it, with a blank before it where there is one."""


# ---- parts of lines ----


@dataclass(frozen=True, slots=True)
class _Literal:
    text: str
    space: bool

    def read(self, reader: Reader, draft: Draft) -> None:
        reader.cursor.expect(self.text)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        return f" {self.text}" if self.space else self.text


@dataclass(frozen=True, slots=True)
class _Operand:
    index: int
    space: bool

    def read(self, reader: Reader, draft: Draft) -> None:
        draft.operands.append(reader.operand())

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        name = writer.name(op.operands[self.index])
        return f" {name}" if self.space else name


@dataclass(frozen=True, slots=True)
class _Operands:
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


@dataclass(frozen=True, slots=True)
class _Attribute:
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
        text = show_symbol(value) if self.symbol else _show_short(value if kind is None else kind.kind.write(value))
        return f" {text}" if self.space else text


@dataclass(frozen=True, slots=True)
class _Optional:
    """Parts that are there when an attribute is. The first two are literals, and tell by themselves what follows."""

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
        if not is_told(op, definition, self.name):
            return ""
        return "".join(part.show(writer, op, definition) for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Dictionary:
    shown: tuple[str, ...]

    def read(self, reader: Reader, draft: Draft) -> None:
        reader.dictionary(draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        return writer.dictionary(op, self.shown)


@dataclass(frozen=True, slots=True)
class _Types:
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
            parts.append(_Operands(operands, space, word == "%*,"))
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


def is_told(op: Op, definition: OpDef, name: str) -> bool:
    """Whether the text must say an attribute: it is there, and not what it is by default."""
    if name not in op.attrs or op.attrs[name] is None:
        return False
    declared = definition.by_name.get(name)
    return declared is None or declared.default is None or op.attrs[name] != declared.default


# ---- attributes in their short spelling ----


def _read_short(reader: Reader, definition: OpDef, name: str) -> Any:
    """A node from `3`, `[1, 2]`, `WORD`, `"text"`, `@name`, `true` or a typed literal, as the attribute's kind wants it."""
    cursor = reader.cursor
    declared = definition.by_name.get(name)
    kind = "" if declared is None else declared.kind.name
    if cursor.kind == STRING:
        return cursor.string()
    if cursor.kind == AT:
        return Symbol((cursor.symbol(),)) if kind == "symbol" else cursor.symbol()
    if cursor.token == "[":
        return read_list(reader, words=kind.startswith("array"))
    if cursor.kind == FLOAT or kind == "float":
        return Float(reader.attributes.floating())
    if cursor.kind == INTEGER or cursor.token == "-":
        value = cursor.integer()
        return Int(value) if kind != "int" or declared is None else declared.kind.write(value)
    if cursor.kind == ID and cursor.token not in ("dense", "dense_resource"):
        word = cursor.advance()
        return word == "true" if word in ("true", "false") else word
    return reader.attributes.any()


def read_list(reader: Reader, *, words: bool = False) -> Any:
    """`[0, 1]` or `[HIGH, DEFAULT]`"""
    cursor = reader.cursor
    if words:
        return tuple([cursor.word() for _ in cursor.listed("[", "]")])
    return DenseArray(i64, tuple([cursor.integer() for _ in cursor.listed("[", "]")]))


def _show_short(node: Any) -> str:
    match node:
        case DenseArray():
            return _bracketed(node.values)
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


def _bracketed(values: Sequence[Any]) -> str:
    return "[" + ", ".join(str(int(value)) for value in values) + "]"


# ---- types ----


def _from_function(reader: Reader, draft: Draft, type: FuncType, start: int) -> None:
    if len(type.inputs) != len(draft.operands):
        reader.cursor.fail("wrong number of operand types", at=start, expected=len(draft.operands), got=len(type.inputs))
    draft.operand_types, draft.results = type.inputs, type.results


def read_function(reader: Reader, draft: Draft) -> None:
    """`(a, b) -> c`"""
    start = reader.cursor.start
    if reader.cursor.token != "(":
        reader.cursor.fail("unexpected text", expected="a function type")
    _from_function(reader, draft, reader.types.function(), start)


def _read_same(reader: Reader, draft: Draft) -> None:
    if reader.cursor.token == "(":
        read_function(reader, draft)
        return
    type = reader.types.value()
    draft.operand_types, draft.results = [type] * len(draft.operands), [type]


def _show_same(writer: Writer, op: Op) -> str:
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


def _read_pairwise(reader: Reader, draft: Draft) -> None:
    _read_operands(reader, draft)
    assert draft.operand_types is not None
    draft.results = draft.operand_types


def _show_row(writer: Writer, op: Op) -> str:
    return ", ".join(writer.type(value.type) for value in op.operands)


def _read_arrow(reader: Reader, draft: Draft) -> None:
    """`a, b -> c`"""
    start = reader.cursor.start
    inputs = tuple(reader.types.row())
    reader.cursor.expect("->")
    _from_function(reader, draft, FuncType(inputs, reader.types.results()), start)


def _show_arrow(writer: Writer, op: Op) -> str:
    results = ", ".join(writer.type(value.type) for value in op.results)
    return f"{_show_row(writer, op)} -> {results if len(op.results) == 1 else f'({results})'}"


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


_READ_TYPES = {
    ":function": read_function,
    ":same": _read_same,
    ":result": _read_result,
    ":operand": _read_operand,
    ":operands": _read_operands,
    ":pairwise": _read_pairwise,
    ":arrow": _read_arrow,
    ":complex": _read_complex,
    ":select": _read_select,
    ":tuple": _read_tuple,
}
_SHOW_TYPES = {
    ":function": lambda writer, op: writer.function_type(op),
    ":same": _show_same,
    ":result": lambda writer, op: writer.type(op.results[0].type),
    ":operand": lambda writer, op: writer.type(op.operands[0].type),
    ":operands": _show_row,
    ":pairwise": _show_row,
    ":arrow": _show_arrow,
    ":complex": _show_complex,
    ":select": _show_select,
    ":tuple": lambda writer, op: writer.type(op.results[0].type),
}


# ---- formats of their own ----


class _ConstantFormat:
    """`{…} dense<…> : type`, or the generic form where the result is of another type than the literal."""

    def read(self, reader: Reader, draft: Draft) -> None:
        if reader.cursor.token == "(":
            reader.generic(draft)
            return
        reader.dictionary(draft)
        value = draft.attrs["value"] = reader.attributes.any()
        if not isinstance(value, Constant):
            reader.cursor.fail("unexpected attribute", at=draft.start, expected="dense<…>", got=value)
        draft.operand_types, draft.results = [], [value.shape]

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        value = op.attrs["value"]
        if not isinstance(value.dtype, DType) or op.results[0].type != value.shape:
            return writer.generic(op)
        return f"{writer.dictionary(op, ('value',))} {text_attrs.show(value)}"


class _OptionalOperands:
    """`%a, %b : a, b`, or `()` for none."""

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        reader.dictionary(draft)
        if cursor.accept("("):
            cursor.expect(")")
            draft.operand_types = []
            return
        _Operands(0, True, False).read(reader, draft)
        cursor.expect(":")
        _read_pairwise(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        head = writer.dictionary(op, ())
        if not op.operands:
            return f"{head}()"
        return f"{head} {', '.join(map(writer.name, op.operands))} : {_show_row(writer, op)}"


class _Slice:
    """`%0 [0:4, 1:8:2] : …`"""

    NAMES = ("start_indices", "limit_indices", "strides")

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands.append(reader.operand())
        ranges = []
        for _ in cursor.listed("[", "]"):
            start = cursor.integer()
            cursor.expect(":")
            limit = cursor.integer()
            ranges.append((start, limit, cursor.integer() if cursor.accept(":") else 1))
        for i, name in enumerate(self.NAMES):
            draft.attrs[name] = DenseArray(i64, tuple(each[i] for each in ranges))
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        bounds = zip(*(op.attrs[name] for name in self.NAMES), strict=True)
        ranges = ", ".join(f"{start}:{limit}" + (f":{stride}" if stride != 1 else "") for start, limit, stride in bounds)
        head = f" {writer.name(op.operands[0])} [{ranges}]{writer.dictionary(op, self.NAMES)}"
        return f"{head} : {writer.function_type(op)}"


class _ReducePrecision:
    """`%0, format = e5m10 : …`"""

    NAMES = ("exponent_bits", "mantissa_bits")
    WORD = re.compile(r"e([0-9]{1,9})m([0-9]{1,9})", re.ASCII)

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands.append(reader.operand())
        for literal in (",", "format", "="):
            cursor.expect(literal)
        start = cursor.start
        match = self.WORD.fullmatch(cursor.word())
        if match is None:
            cursor.fail("unexpected text", at=start, expected="a format such as e5m10")
        for name, digits in zip(self.NAMES, match.groups(), strict=True):
            draft.attrs[name] = Int(int(digits), dtype("i32"))
        reader.dictionary(draft)
        cursor.expect(":")
        _read_same(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        exponent, mantissa = (op.attrs[name] for name in self.NAMES)
        head = f" {writer.name(op.operands[0])}, format = e{exponent}m{mantissa}{writer.dictionary(op, self.NAMES)}"
        return f"{head} : {_show_same(writer, op)}"


class _DotGeneral:
    """`%0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : …`"""

    NAMES = ("dot_dimension_numbers", "precision_config", "algorithm")

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands.append(reader.operand())
        cursor.expect(",")
        draft.operands.append(reader.operand())
        numbers: dict[str, Sequence[Any]] = {}
        while cursor.accept(","):
            start, word = cursor.start, cursor.word()
            cursor.expect("=")
            if word in numbers or _DOT_PARTS.get(word, "") in draft.attrs:
                cursor.fail("given twice", at=start, got=word)
            if word in ("batching_dims", "contracting_dims"):
                left = read_list(reader).values
                cursor.expect("x")
                numbers[word] = (left, read_list(reader).values)
            elif word == "precision":
                draft.attrs["precision_config"] = read_list(reader, words=True)
            elif word == "algorithm":
                draft.attrs["algorithm"] = DialectAttr("stablehlo", "dot_algorithm", cursor.balanced())
            else:
                cursor.fail("unexpected text", at=start, expected="contracting_dims, precision or algorithm")
        draft.attrs["dot_dimension_numbers"] = DialectAttr("stablehlo", "dot", _dot_body(numbers))
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        dims = op.attrs["dot_dimension_numbers"]
        text = f" {writer.name(op.operands[0])}, {writer.name(op.operands[1])}"
        if dims.lhs_batching_dimensions or dims.rhs_batching_dimensions:
            text += f", batching_dims = {_bracketed(dims.lhs_batching_dimensions)} x "
            text += _bracketed(dims.rhs_batching_dimensions)
        text += f", contracting_dims = {_bracketed(dims.lhs_contracting_dimensions)} x "
        text += _bracketed(dims.rhs_contracting_dimensions)
        if is_told(op, definition, "precision_config"):
            text += f", precision = [{', '.join(op.attrs['precision_config'])}]"
        if is_told(op, definition, "algorithm"):
            text += f", algorithm = <{definition.by_name['algorithm'].kind.write(op.attrs['algorithm']).body}>"
        return f"{text}{writer.dictionary(op, self.NAMES)} : {writer.function_type(op)}"


_DOT_PARTS = {"precision": "precision_config", "algorithm": "algorithm"}


def _dot_body(numbers: dict[str, Sequence[Any]]) -> str:
    fields = []
    for word, name in (("batching_dims", "batching"), ("contracting_dims", "contracting")):
        for side, values in zip(("lhs", "rhs"), numbers.get(word, ((), ())), strict=True):
            fields.append(f"{side}_{name}_dimensions = {_bracketed(values)}")
    return ", ".join(fields)


class _Convolution:
    """`(%0, %1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[0, 0]]} {…} : …`"""

    WINDOW = (
        ("stride", "window_strides"),
        ("pad", "padding"),
        ("lhs_dilate", "lhs_dilation"),
        ("rhs_dilate", "rhs_dilation"),
        ("reverse", "window_reversal"),
    )
    NAMES = ("dimension_numbers", *(name for _, name in WINDOW))

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        cursor.expect("(")
        _Operands(0, True, False).read(reader, draft)
        for literal in (")", "dim_numbers", "="):
            cursor.expect(literal)
        start = cursor.start
        cursor.balanced()
        cursor.expect("x")
        cursor.balanced()
        cursor.expect("->")
        cursor.balanced()
        draft.attrs["dimension_numbers"] = DialectAttr("stablehlo", "conv", cursor.since(start))
        for literal in (",", "window", "="):
            cursor.expect(literal)
        names = dict(self.WINDOW)
        for _ in cursor.listed("{", "}"):
            start, word = cursor.start, cursor.word()
            name = names.get(word)
            if name is None or name in draft.attrs:
                cursor.fail("unexpected text", at=start, expected="one of " + ", ".join(names))
            cursor.expect("=")
            draft.attrs[name] = self._window_value(reader, word)
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)

    def _window_value(self, reader: Reader, word: str) -> Any:
        cursor = reader.cursor
        if word == "reverse":
            return DenseArray(dtype("i1"), tuple([_truth(cursor) for _ in cursor.listed("[", "]")]))
        if word != "pad":
            return read_list(reader)
        start = cursor.start
        rows = [read_list(reader).values for _ in cursor.listed("[", "]")]
        if any(len(row) != 2 or any(abs(n) >= 1 << 63 for n in row) for row in rows):
            cursor.fail("unexpected padding", at=start, expected="[[low, high], …]", got=rows)
        return Constant.of(np.array(rows, np.int64).reshape(len(rows), 2), i64)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        window = []
        for word, name in self.WINDOW:
            if is_told(op, definition, name):
                window.append(f"{word} = {self._show_window(word, op.attrs[name])}")
        operands = ", ".join(map(writer.name, op.operands))
        head = f"({operands}) dim_numbers = {print_conv_dims(op.attrs['dimension_numbers'])}, window = {{{', '.join(window)}}}"
        return f"{head}{writer.dictionary(op, self.NAMES)} : {writer.function_type(op)}"

    @staticmethod
    def _show_window(word: str, value: Sequence[Any]) -> str:
        if word == "reverse":
            return "[" + ", ".join("true" if each else "false" for each in value) + "]"
        if word == "pad":
            return "[" + ", ".join(_bracketed(row) for row in value) + "]"
        return _bracketed(value)


def _truth(cursor: Cursor) -> bool:
    if cursor.token in ("true", "false") and cursor.kind == ID:
        return cursor.advance() == "true"
    return bool(cursor.integer())


class _Reduce:
    """`(%0 init: %1) applies stablehlo.add across dimensions = [0] : …`, or with `reducer(…) {…}` at the end."""

    COMMUTATIVE = frozenset(f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor"))

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        inits: list[Value] = []
        while cursor.accept("("):
            draft.operands.append(reader.operand())
            cursor.expect("init")
            cursor.expect(":")
            inits.append(reader.operand())
            cursor.expect(")")
            if not cursor.accept(","):
                break
        inputs = len(inits)
        draft.operands += inits
        inner = ""
        if cursor.accept("applies"):
            start = cursor.start
            inner = cursor.string() if cursor.kind == STRING else cursor.word()
            if inner not in self.COMMUTATIVE or inputs != 1:
                cursor.fail("unexpected reduction", at=start, expected="one commutative op of two operands", got=inner)
        for literal in ("across", "dimensions", "="):
            cursor.expect(literal)
        draft.attrs["dimensions"] = read_list(reader)
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)
        if inner:
            first = draft.operands[0].type
            scalar = Shape.of(first.dtype, ()) if isinstance(first, Shape) else first
            draft.regions.append(reader.one_op_region(draft, inner, [scalar, scalar]))
            return
        cursor.expect("reducer")
        args, accumulators = [], []
        while cursor.accept("("):
            args.append(reader.argument())
            cursor.expect(",")
            accumulators.append(reader.argument())
            cursor.expect(")")
        draft.regions.append(reader.region(draft, [*args, *accumulators]))

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        half = len(op.operands) // 2
        pairs = zip(op.operands[:half], op.operands[half:], strict=False)
        text = ", ".join(f"({writer.name(value)} init: {writer.name(init)})" for value, init in pairs)
        inner = self._inner(op)
        if inner:
            text += f" applies {inner}"
        text += f" across dimensions = {_bracketed(op.attrs['dimensions'])}{writer.dictionary(op, ('dimensions',))}"
        text += f" : {writer.function_type(op)}"
        if inner:
            return text
        body = op.regions[0]
        writer.enter(body)
        count = len(body.args) // 2
        args = zip(body.args[:count], body.args[count:], strict=False)
        reducer = " ".join(f"({writer.argument(value)}, {writer.argument(accumulator)})" for value, accumulator in args)
        return f"{text}{writer.newline()} reducer{reducer}  {writer.region(body, args=False)}"

    def _inner(self, op: Op) -> str:
        """The op that the body consists of, where the short form says it all."""
        body = op.regions[0]
        if len(body.ops) != 1 or len(op.operands) != 2 or not isinstance(op.operands[0].type, Shape):
            return ""
        inner, scalar = body.ops[0], Shape.of(op.operands[0].type.dtype, ())
        plain = inner.name in self.COMMUTATIVE and inner.operands == body.args and body.results == inner.results
        types = [value.type for value in (*body.args, *inner.results)]
        return inner.name if plain and not inner.attrs and all(type == scalar for type in types) else ""


class _While:
    """`(%iter = %0, …) : types cond {…} do {…}`"""

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        names = []
        for _ in cursor.listed("(", ")"):
            names.append(cursor.expect_kind(VALUE, "%name"))
            cursor.expect("=")
            draft.operands.append(reader.operand())
        draft.operand_types = []
        if names:
            cursor.expect(":")
            _read_pairwise(reader, draft)
        if cursor.accept("attributes"):
            reader.dictionary(draft)
        args = list(zip(names, draft.results, strict=True))
        for word in ("cond", "do"):
            cursor.expect(word)
            draft.regions.append(reader.region(draft, args))

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        cond, body = op.regions
        writer.enter(body, cond)
        args = zip(body.args, op.operands, strict=True)
        text = "(" + ", ".join(f"{writer.name(arg)} = {writer.name(operand)}" for arg, operand in args) + ")"
        if op.operands:
            text += f" : {_show_row(writer, op)}"
        text += writer.dictionary(op, (), "attributes ")
        head = f"{text}{writer.newline()}cond {writer.region(cond, args=False)}"
        return f"{head} do {writer.region(body, args=False)}"


class _Scan:
    """`(%0) inits (%1) dimension=0 attributes {…} {…} : …`"""

    SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
    NAMES = ("dimension", *SEGMENTS)

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands += [reader.operand() for _ in cursor.listed("(", ")")]
        inputs = len(draft.operands)
        cursor.expect("inits")
        draft.operands += [reader.operand() for _ in cursor.listed("(", ")")]
        cursor.expect("dimension")
        cursor.expect("=")
        draft.attrs["dimension"] = Int(cursor.integer())
        if cursor.accept("attributes"):
            reader.dictionary(draft)
        draft.regions.append(reader.region(draft))
        cursor.expect(":")
        read_function(reader, draft)
        inits = len(draft.operands) - inputs
        counts = ((inputs, inits), (len(draft.results) - inits, inits))
        for name, sizes in zip(self.SEGMENTS, counts, strict=True):
            draft.attrs[name] = DenseArray(dtype("i32"), sizes)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        segments = op.attrs.get("operandSegmentSizes")
        if segments is None:
            return writer.generic(op)
        writer.enter(op.regions[0])
        inputs = ", ".join(map(writer.name, op.operands[: segments[0]]))
        inits = ", ".join(map(writer.name, op.operands[segments[0] :]))
        text = f"({inputs}) inits ({inits}) dimension={op.attrs['dimension']}{writer.dictionary(op, self.NAMES, 'attributes ')}"
        return f"{text} {writer.region(op.regions[0], args=True)} : {writer.function_type(op)}"


class _Sharded:
    """`%0 <@mesh, [{"x"}]> : type`"""

    def read(self, reader: Reader, draft: Draft) -> None:
        draft.operands.append(reader.operand())
        draft.attrs["sharding"] = DialectAttr("sdy", "sharding", reader.cursor.balanced())
        reader.dictionary(draft)
        reader.cursor.expect(":")
        _read_same(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        sharding = op.attrs["sharding"]
        if not isinstance(sharding, DialectAttr):
            return writer.generic(op)
        head = f" {writer.name(op.operands[0])} <{sharding.body}>{writer.dictionary(op, ('sharding',))}"
        return f"{head} : {_show_same(writer, op)}"


_UNARY = (
    "abs cbrt ceil convert cosine count_leading_zeros exponential exponential_minus_one floor imag log log_plus_one logistic "
    "negate not popcnt real round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh uniform_dequantize uniform_quantize"
)
_BINARY = (
    "add and atan2 divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic shift_right_logical "
    "subtract xor"
)
_CHLO_UNARY = (
    "acos acosh _asin_acos_kernel asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc is_inf is_neg_inf "
    "is_pos_inf lgamma sinh square tan"
)
_CHLO_BROADCAST = (
    "add and atan2 compare complex divide maximum minimum multiply next_after or polygamma power remainder shift_left "
    "shift_right_arithmetic shift_right_logical subtract xor zeta"
)

FORMATS: dict[str, Part] = {
    **{f"stablehlo.{name}": Line("% {} :same") for name in _UNARY.split()},
    **{f"stablehlo.{name}": Line("% , % {} :same") for name in _BINARY.split()},
    **{f"chlo.{name}": Line("% {} :arrow") for name in _CHLO_UNARY.split()},
    **{f"chlo.{name}": Line("% , % {} :arrow") for name in ("mulhi", "next_after", "polygamma", "zeta")},
    **{f"chlo.broadcast_{name}": Line("% , % {} :function") for name in _CHLO_BROADCAST.split()},
    "chlo.broadcast_select": Line("% , % , % {} :function"),
    "chlo.constant": _ConstantFormat(),
    "chlo.scan": _Scan(),
    "chlo.top_k": Line("( % , k = $k ) {} :arrow"),
    "stablehlo.after_all": Line("%* {} :same"),
    "stablehlo.bitcast_convert": Line("%* {} :function"),
    "stablehlo.broadcast": Line("% , sizes = $broadcast_sizes {} :function"),
    "stablehlo.broadcast_in_dim": Line("% , dims = $broadcast_dimensions {} :function"),
    "stablehlo.cholesky": Line("% (?lower , lower = $lower ?) {} :same"),
    "stablehlo.clamp": Line("% , % , % {} :same"),
    "stablehlo.compare": Line("$comparison_direction , % , % (?compare_type , $compare_type ?) {} :function"),
    "stablehlo.complex": Line("% , % {} :complex"),
    "stablehlo.composite": Line("$name %* {} :function"),
    "stablehlo.concatenate": Line("%*, dim = $dimension {} :function"),
    "stablehlo.constant": _ConstantFormat(),
    "stablehlo.convolution": _Convolution(),
    "stablehlo.create_token": Line("{} :result"),
    "stablehlo.custom_call": Line("@call_target_name ( %* ) {} :function"),
    "stablehlo.dot": Line("% , % (?precision_config , precision = $precision_config ?) {} :function"),
    "stablehlo.dot_general": _DotGeneral(),
    "stablehlo.dynamic_broadcast_in_dim": Line("% , % , dims = $broadcast_dimensions {} :function"),
    "stablehlo.dynamic_iota": Line("% , dim = $iota_dimension {} :function"),
    "stablehlo.dynamic_pad": Line("%* {} :function"),
    "stablehlo.dynamic_reshape": Line("%* {} :function"),
    "stablehlo.dynamic_slice": Line("% , %*, sizes = $slice_sizes {} :function"),
    "stablehlo.dynamic_update_slice": Line("%* {} :function"),
    "stablehlo.einsum": Line("% , % , config = $einsum_config {} :function"),
    "stablehlo.fft": Line("% , type = $fft_type , length = $fft_length {} :function"),
    "stablehlo.get_dimension_size": Line("% , dim = $dimension {} :function"),
    "stablehlo.get_tuple_element": Line("% [ $index ] {} :function"),
    "stablehlo.iota": Line("dim = $iota_dimension {} :result"),
    "stablehlo.is_finite": Line("% {} :function"),
    "stablehlo.optimization_barrier": _OptionalOperands(),
    "stablehlo.pad": Line(
        "% , % , low = $edge_padding_low , high = $edge_padding_high , interior = $interior_padding {} :function"
    ),
    "stablehlo.partition_id": Line("{} :result"),
    "stablehlo.real_dynamic_slice": Line("%* {} :function"),
    "stablehlo.reduce": _Reduce(),
    "stablehlo.reduce_precision": _ReducePrecision(),
    "stablehlo.replica_id": Line("{} :result"),
    "stablehlo.reshape": Line("%* {} :function"),
    "stablehlo.reverse": Line("% , dims = $dimensions {} :same"),
    "stablehlo.rng": Line("% , % , % , distribution = $rng_distribution {} :function"),
    "stablehlo.rng_bit_generator": Line("% , algorithm = $rng_algorithm {} :function"),
    "stablehlo.select": Line("% , % , % {} :select"),
    "stablehlo.set_dimension_size": Line("% , % , dim = $dimension {} :function"),
    "stablehlo.slice": _Slice(),
    "stablehlo.transpose": Line("% , dims = $permutation {} :function"),
    "stablehlo.tuple": Line("%* {} :tuple"),
    "stablehlo.unary_einsum": Line("% , config = $einsum_config {} :function"),
    "stablehlo.while": _While(),
    "func.call": Line("@callee ( %* ) {} :function"),
    "check.expect_eq": Line("% , % {} :operand"),
    "check.expect_eq_const": Line("% , $value {}"),
    "check.expect_almost_eq": Line("% , % (?tolerance , tolerance = $tolerance ?) {} :operand"),
    "check.expect_almost_eq_const": Line("% , $value {}"),
    "check.expect_close": Line(
        "% , % (?max_ulp_difference , max_ulp_difference = $max_ulp_difference ?) "
        "(?min_ulp_difference , min_ulp_difference = $min_ulp_difference ?) {} :operands"
    ),
    "check.expect_serialized_eq": Line(
        "% , probe_id = $probe_id (?iter , iter = $iter ?) (?iteration , iteration = $iteration ?) {} :operand"
    ),
    "interpreter.print": Line("% {} :same"),
    "interpreter.probe": Line("% , probe_id = $probe_id {} :same"),
    "sdy.propagation_barrier": Line("% allowed_direction = $allowed_direction {} :same"),
    "sdy.reshard": _Sharded(),
    "sdy.sharding_constraint": _Sharded(),
    "sdy.sharding_group": Line("% group_id = $group_id {} :operand"),
}

__all__ = ["FORMATS", "Dict", "Draft", "Part", "Reader", "Writer", "is_told"]
