"""The assembly formats of ops: how each reads and how each prints, side by side.

A format is a line of parts: words and punctuation stand for themselves; `%` is an operand, `%*` all that are left, `%*,`
the same with a comma after each; `$name` an attribute in its short spelling, `@name` a string spelled as a symbol;
`[name … ]` a part that is there when the attribute is; `{}` the other attributes; `:…` the types. Ops whose format says more
have a class of their own. An op without a format is written generically.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from smelt.dtype import complex_of, dtype, i64
from smelt.ir.attributes import Constant, ConvDims, DenseArray, DialectAttr, Float, Int, Kind, Symbol, print_conv_dims
from smelt.ir.core import FuncType, Op, Region, Tuple, Type, Value
from smelt.ir.ops.definition import OpDef
from smelt.ir.text import attrs as text_attrs
from smelt.ir.text import types as text_types
from smelt.ir.text.attrs import Attributes, show_symbol
from smelt.ir.text.lexer import AT, FLOAT, ID, INTEGER, STRING, VALUE, Cursor, quoted
from smelt.ir.text.types import Types
from smelt.shape import Shape


@dataclass(slots=True)
class Draft:
    """An op while it is being read. Attributes are nodes still; types are None until the text has said them."""

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

    def operand_name(self) -> str:
        """`%name` of an argument that is being defined."""

    def region(self, draft: Draft, args: Sequence[tuple[str, Type]] | None = None) -> Region:
        """`{…}` with arguments in its text, or given here."""

    def simple_region(self, draft: Draft, name: str, args: Sequence[Type]) -> Region:
        """A region of one op on its arguments."""

    def add_attrs(self, draft: Draft, items: dict[str, Any], start: int) -> None:
        """Attributes from a dictionary; none may be there already."""

    def generic(self, draft: Draft) -> None:
        """The generic form, after the name."""


class Writer(Protocol):
    """What formats ask of the printer."""

    export: bool

    def name(self, value: Value) -> str:
        """`%0`"""

    def fresh(self, region: Region) -> None:
        """Name the arguments of a region about to be printed."""

    def type(self, type: Type) -> str:
        """A type as text."""

    def region(self, region: Region, args: bool = True) -> str:
        """`{…}` on several lines, with a line for its arguments or without."""

    def others(self, op: Op, shown: Iterable[str]) -> str:
        """The dictionary of the attributes not in `shown`, or nothing."""

    def newline(self) -> str:
        """A line break and the indentation of the op being printed."""


class Format(Protocol):
    """A way to read and to print an op, from after its name on."""

    def read(self, reader: Reader, draft: Draft) -> None:
        """Fill the draft."""

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        """The text after the op's name, beginning with its blank."""


# ---- parts of lines ----


class Line:
    """A format given as a line of parts."""

    def __init__(self, text: str) -> None:
        self.parts = text.split()
        self.named = tuple(part[1:] for part in self.parts if part[0] in "$@" and len(part) > 1)

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor, skipping = reader.cursor, False
        parts = self.parts
        for i, part in enumerate(parts):
            if part == "]" and "[" in [p[0] for p in parts[:i]] and skipping is not None:
                skipping = False
                continue
            if skipping:
                continue
            first = part[0]
            if part == "%":
                draft.operands.append(reader.operand())
            elif first == "%":
                _read_operands(reader, draft, trailing=part == "%*,")
            elif first == "$" or (first == "@" and len(part) > 1):
                draft.attrs[part[1:]] = read_short(reader, draft.definition, part[1:])
            elif first == "[" and len(part) > 1:
                skipping = not (cursor.token == parts[i + 1] and _next_word_fits(cursor, parts[i + 2]))
            elif part == "{}":
                read_dictionary(reader, draft)
            elif first == ":" and len(part) > 1:
                cursor.expect(":")
                TYPES[part].read(reader, draft)
            else:
                cursor.expect(part)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        left = list(op.operands)
        out, skipping = "", False
        for part in self.parts:
            if part == "]" and skipping is not None and not out.endswith(("[", "[,")):
                pass
            first = part[0]
            if first == "[" and len(part) > 1:
                skipping = not is_told(op, definition, part[1:])
                continue
            if part == "]":
                skipping = False
                continue
            if skipping:
                continue
            if part == "%":
                out += " " + writer.name(left.pop(0)) if not out.endswith("(") else writer.name(left.pop(0))
            elif part == "%*":
                names = ", ".join(map(writer.name, left))
                out += names if out.endswith("(") else f" {names}" if names else ""
            elif part == "%*,":
                out += "".join(f" {writer.name(value)}," for value in left)
            elif first in "$@" and len(part) > 1:
                text = show_short(writer, op, definition, part[1:], symbol=first == "@")
                out += text if out.endswith("(") else f" {text}"
            elif part == "{}":
                out += writer.others(op, self.named)
            elif first == ":" and len(part) > 1:
                out += f" : {TYPES[part].show(writer, op)}"
            elif part in ("<", ">"):  # brackets of an index
                out += "[" if part == "<" else "]"
            else:
                out += part if part in (",", ")", "(") else f" {part}"
        return out
