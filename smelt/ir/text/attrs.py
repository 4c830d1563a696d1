"""Attributes as text: numbers, strings, symbols, lists, dictionaries, elements and dialect attributes, both ways.

In: a cursor before an attribute. Out: the nodes of `ir.attributes`. What only its dialect understands keeps its text,
so that it survives a round trip. Called by the parser and the printer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from smelt.dtype import DTYPES, DType, dtype, f64, i64
from smelt.errors import Location
from smelt.ir.attributes import (
    Constant,
    DenseArray,
    DialectAttr,
    DialectType,
    Dict,
    Float,
    Int,
    Raw,
    Symbol,
    Unit,
)
from smelt.ir.core import FuncType, Future, Token, Tuple
from smelt.ir.text import elements, lexer, types
from smelt.ir.text.lexer import BANG, FLOAT, HASH, ID, INTEGER, STRING, Aliases, Cursor, quote
from smelt.shape import Shape

_RAW = frozenset({"affine_map", "affine_set", "strided", "opaque"})
_BARE = re.compile(r"[A-Za-z_][\w$.]*", re.ASCII)


class Attributes:
    """Reads attributes, with the types and aliases of one text."""

    def __init__(self, cursor: Cursor, of: types.Types) -> None:
        self.cursor = cursor
        self.types = of
        self.aliases = Aliases("#")
        self.resources: dict[str, bytes] = {}

    def any(self) -> Any:
        """One attribute."""
        cursor = self.cursor
        match cursor.kind:
            case lexer.FLOAT | lexer.INTEGER:
                return self._number(cursor.start)
            case lexer.STRING:
                return self._string()
            case lexer.HASH:
                return self._hash()
            case lexer.AT:
                return self._symbol()
            case lexer.ID if (read := _WORDS.get(cursor.token)) is not None:
                return read(self)
            case lexer.PUNCTUATION if cursor.token == "-":
                return self._number(cursor.start)
        with cursor.deeper():
            if cursor.token == "[":
                return tuple([self.any() for _ in cursor.read_list("[", "]")])
            if cursor.token == "{":
                return Dict(tuple(self.dictionary().items()))
        if cursor.kind in (ID, BANG) or cursor.token == "(":
            return self.types.any()
        cursor.fail("unexpected text", expected="an attribute")

    def dictionary(self) -> dict[str, Any]:
        """`{a = 1 : i64, b}`: names in their order."""
        cursor = self.cursor
        items: dict[str, Any] = {}
        for _ in cursor.read_list("{", "}"):
            start = cursor.start
            name = cursor.string() if cursor.kind == STRING else cursor.word()
            if name in items:
                cursor.fail("an attribute is given twice", at=start, got=name)
            items[name] = self.any() if cursor.accept("=") else Unit()
        return items

    def properties(self) -> dict[str, Any]:
        """`<{…}>` if it comes next."""
        cursor = self.cursor
        if cursor.token != "<" or cursor.kind == STRING:
            return {}
        cursor.advance()
        found = self.dictionary()
        cursor.expect(">")
        return found

    # -- numbers --

    def _number(self, start: int) -> Any:
        cursor = self.cursor
        negative = cursor.accept("-")
        kind = cursor.kind
        if kind not in (FLOAT, INTEGER):
            cursor.fail("unexpected text", expected="a number")
        digits = cursor.advance()
        of: DType | DialectType = f64 if kind == FLOAT else i64
        if cursor.accept(":"):
            of = self.types.scalar()
        if isinstance(of, DialectType):
            return Raw(cursor.since(start))
        if of.is_float:
            return Float(self._float(digits, negative, kind, of, start), of)
        if kind == FLOAT or of.kind not in ("int", "uint", "bool"):
            cursor.fail("a number that does not fit its type", at=start, expected=of, got=digits[:40])
        value = cursor.number(digits)
        value = -value if negative else value
        low = 0 if of.kind == "uint" else -(1 << (of.bits - 1))
        if not low <= value < 1 << of.bits:
            cursor.fail("an integer out of range for its type", at=start, expected=of, got=value)
        if of.kind == "int" and value >= 1 << (of.bits - 1):
            value -= 1 << of.bits
        return Int(value, of)

    def _float(self, digits: str, negative: bool, kind: int, of: DType, start: int) -> float:
        if kind == FLOAT:
            self.cursor.check_length(digits)
            value = float(digits)
            return elements.round_to(-value if negative else value, of)
        if negative or not digits.startswith("0x") or len(digits) > 40 or int(digits, 16) >> of.bits:
            self.cursor.fail(
                "not a float", at=start, expected=f"a dot, or {of.bits} bits in hexadecimal", got=digits[:40]
            )
        return elements.float_from_bits(int(digits, 16), of)

    def floating(self) -> float:
        """A float without a type, as formats have them."""
        cursor = self.cursor
        start = cursor.start
        negative = cursor.accept("-")
        kind = cursor.kind
        if kind not in (FLOAT, INTEGER):
            cursor.fail("unexpected text", expected="a number")
        return self._float(cursor.advance(), negative, kind, f64, start)

    # -- words --

    def _truth(self) -> bool:
        return self.cursor.advance() == "true"

    def _unit(self) -> Unit:
        self.cursor.advance()
        return Unit()

    def _string(self) -> str:
        text = self.cursor.string()
        if self.cursor.accept(":"):  # a string may have a type, which has no meaning
            self.types.any()
        return text

    def _dense(self) -> Any:
        cursor = self.cursor
        start = cursor.start
        cursor.advance()
        literal_at = cursor.start
        if cursor.text[cursor.end : cursor.end + 1] == '"' and cursor.text[cursor.end : cursor.end + 3] != '"0x':
            cursor.read_balanced()  # strings: no dialect of ours has such elements
            cursor.expect(":")
            self.types.any()
            return Raw(cursor.since(start))
        body = elements.stretch(cursor)
        if body.startswith('"') and not body.startswith('"0x'):
            cursor.refuse("elements that are strings", at=start)
        cursor.expect(":")
        return self._elements(body, literal_at)

    def _elements(self, body: str, at: int) -> Constant:
        cursor = self.cursor
        type_at = cursor.start
        shape = self.types.value()
        if not isinstance(shape, Shape):
            cursor.fail("a literal of this type", at=type_at, expected="a tensor type")
        try:
            return elements.read_elements(body, shape)
        except elements.ElementsError as error:
            cursor.fail(str(error), at=at, expected=error.expected, got=error.got)

    def _resource(self) -> Constant:
        cursor = self.cursor
        start = cursor.start
        cursor.advance()
        cursor.expect("<")
        name = cursor.string() if cursor.kind == STRING else cursor.word()
        cursor.expect(">")
        cursor.expect(":")
        shape = self.types.value()
        if name not in self.resources:
            cursor.fail("a resource that is not there", at=start, expected="an entry in dialect_resources", got=name)
        if not isinstance(shape, Shape) or not shape.is_static or not isinstance(shape.dtype, DType):
            cursor.fail("a resource of this type", at=start, expected="a tensor of known size", got=types.show(shape))
        try:
            return Constant.of(elements.from_bytes(self.resources[name], shape.dtype, shape.numbers()), shape.dtype)
        except (elements.ElementsError, ValueError) as error:
            cursor.fail(str(error), at=start, got=name)

    def _array(self) -> DenseArray:
        cursor = self.cursor
        start = cursor.start
        cursor.advance()
        cursor.expect("<")
        of = DTYPES.get(cursor.word())
        if of is None or of.is_complex or (of.bits % 8 and of.kind != "bool"):
            cursor.fail("an array of this type", at=start, expected="array<i64: …>")
        values: list[int | float | bool] = []
        if cursor.accept(":"):
            while True:
                values.append(self._array_item(of))
                if not cursor.accept(","):
                    break
        cursor.expect(">")
        return DenseArray(of, tuple(values))

    def _array_item(self, of: DType) -> int | float | bool:
        cursor = self.cursor
        start = cursor.start
        if of.kind == "bool" and cursor.token in ("true", "false"):
            return cursor.advance() == "true"
        negative = cursor.accept("-")
        kind = cursor.kind
        if kind not in (FLOAT, INTEGER):
            cursor.fail("unexpected text", expected=of)
        digits = cursor.advance()
        if of.is_float:
            return self._float(digits, negative, kind, of, start)
        value = cursor.number(digits) if kind == INTEGER else 1 << 300
        value = -value if negative else value
        low = 0 if of.kind == "uint" else -(1 << (of.bits - 1))
        if not low <= value < 1 << of.bits:
            cursor.fail("a number that does not fit its type", at=start, expected=of, got=digits[:40])
        if of.kind == "bool":
            return bool(value)
        return value - (1 << of.bits) if of.kind == "int" and value >= 1 << (of.bits - 1) else value

    def _raw(self) -> Raw:
        """A word and its brackets, kept as text."""
        cursor = self.cursor
        start = cursor.start
        cursor.advance()
        cursor.read_balanced()
        return Raw(cursor.since(start))

    def _sparse(self) -> Raw:
        cursor = self.cursor
        start = cursor.start
        self._raw()
        cursor.expect(":")
        self.types.any()
        return Raw(cursor.since(start))

    def _distinct(self) -> Raw:
        cursor = self.cursor
        start = cursor.start
        cursor.advance()
        cursor.read_balanced()
        cursor.read_balanced()
        return Raw(cursor.since(start))

    # -- symbols, dialects and aliases --

    def _symbol(self) -> Symbol:
        cursor = self.cursor
        path = [cursor.symbol()]
        while cursor.accept("::"):
            path.append(cursor.symbol())
        return Symbol(tuple(path))

    def _hash(self) -> Any:
        cursor = self.cursor
        start, name = cursor.start, cursor.token[1:]
        cursor.advance()
        opened = cursor.token == "<" and cursor.start == start + 1 + len(name)
        if "." not in name and not opened:
            return self.aliases.resolve(cursor, name, self.any)
        dialect, _, mnemonic = name.partition(".")
        return DialectAttr(dialect, mnemonic, cursor.read_balanced() if opened else "")

    # -- locations --

    def location(self) -> Location | None:
        """`loc(…)`; None where the text says it is unknown."""
        cursor = self.cursor
        if cursor.token != "loc":
            cursor.fail("unexpected text", expected="loc(…)")
        cursor.advance()
        cursor.expect("(")
        found = self.place()
        cursor.expect(")")
        return found

    def place(self) -> Location | None:
        """The content of `loc(…)`: the innermost file position, with the outermost name."""
        cursor = self.cursor
        with cursor.deeper():
            if cursor.kind == HASH:
                name = cursor.advance()[1:]
                if name in self.aliases.places or "." not in name:
                    found: Location | None = self.aliases.resolve(cursor, name, self.aliased_place)
                    return found
                if cursor.token == "<":
                    cursor.read_balanced()
                return None
            if cursor.token == "loc" and cursor.kind == ID:
                return self.location()
            if cursor.accept("unknown"):
                return None
            if cursor.accept("callsite"):
                cursor.expect("(")
                callee = self.place()
                cursor.expect("at")
                caller = self.place()
                cursor.expect(")")
                return callee or caller
            if cursor.accept("fused"):
                if cursor.token == "<":
                    cursor.read_balanced()
                parts = [self.place() for _ in cursor.read_list("[", "]")]
                return next((part for part in parts if part is not None), None)
            return self._file_or_name()

    def aliased_place(self) -> Location | None:
        """The location of an alias."""
        return self.location() if self.cursor.token == "loc" else self.place()

    def _file_or_name(self) -> Location:
        cursor = self.cursor
        text = cursor.string()
        if cursor.accept(":"):
            line = self._line_number()
            cursor.expect(":")
            column = self._line_number()
            if cursor.accept("to"):  # a range: its beginning is the place
                if cursor.kind == INTEGER:
                    cursor.advance()
                cursor.expect(":")
                cursor.integer()
            return Location(text, line, column)
        if cursor.accept("("):
            inner = self.place()
            cursor.expect(")")
            if inner is not None:
                return Location(inner.path, inner.line, inner.column, text)
        return Location("", name=text)

    def _line_number(self) -> int:
        cursor = self.cursor
        if cursor.kind != INTEGER or len(cursor.token) > 18 or cursor.token.startswith("0x"):
            cursor.fail("unexpected text", expected="a line or column number")
        return int(cursor.advance())

    def _location_as_text(self) -> Raw:
        start = self.cursor.start
        self.cursor.advance()
        self.cursor.read_balanced()
        return Raw(self.cursor.since(start))


_WORDS: dict[str, Callable[[Attributes], Any]] = {
    "true": Attributes._truth,
    "false": Attributes._truth,
    "unit": Attributes._unit,
    "dense": Attributes._dense,
    "dense_resource": Attributes._resource,
    "array": Attributes._array,
    "sparse": Attributes._sparse,
    "distinct": Attributes._distinct,
    "loc": Attributes._location_as_text,
    **dict.fromkeys(_RAW, Attributes._raw),
}


# ---- printing ----


def show(node: Any, *, export: bool = False, inside: bool = False) -> str:
    """An attribute as text; inside a list the types that numbers have anyway are left out."""
    match node:
        case bool():
            return "true" if node else "false"
        case str():
            return quote(node)
        case Unit():
            return "unit"
        case Int():
            return str(node.value) if inside and node.type == i64 else f"{node.value} : {node.type}"
        case Float():
            text = elements.show_float(node.value, node.type)
            return text if inside and node.type == f64 and not text.startswith("0x") else f"{text} : {node.type}"
        case int():
            return show(Int(int(node)), export=export, inside=inside)
        case float():
            return show(Float(float(node)), export=export, inside=inside)
        case Symbol():
            return "::".join(map(show_symbol, node.path))
        case Dict():
            return show_dictionary(dict(node.items), export=export)
        case DenseArray():
            return _show_array(node)
        case DialectAttr():
            return _show_dialect(node)
        case Raw():
            return node.text
        case Constant():
            return f"dense<{elements.show_elements(node)}> : {types.show(_literal_type(node), export=export)}"
        case tuple() | list():
            return "[" + ", ".join(show(item, export=export, inside=True) for item in node) + "]"
        case Shape() | Token() | Tuple() | Future() | FuncType() | DialectType():
            return types.show(node, export=export)
        case DType():
            return node.name
        case np.ndarray():
            return show(Constant.of(node, dtype(node.dtype)), export=export)
    raise AssertionError(f"no text for the attribute {node!r}")


def _literal_type(constant: Constant) -> Shape:
    element = constant.dtype
    return Shape.of(element if isinstance(element, DType) else element.storage, constant.array.shape)


def _show_array(node: DenseArray) -> str:
    if not node.values:
        return f"array<{node.type}>"
    if node.type.is_float:
        items = [elements.show_float(value, node.type) for value in node.values]
    elif node.type.kind == "bool":
        items = ["true" if value else "false" for value in node.values]
    else:
        items = [str(int(value)) for value in node.values]
    return f"array<{node.type}: {', '.join(items)}>"


def _show_dialect(node: DialectAttr) -> str:
    name = f"#{node.dialect}.{node.mnemonic}" if node.mnemonic else f"#{node.dialect}"
    bare = not node.body and node.mnemonic and node.dialect not in ("stablehlo", "chlo")
    return name if bare else f"{name}<{node.body}>"


def show_symbol(name: str) -> str:
    """`@name`, quoted where it is no plain word."""
    return f"@{name}" if _BARE.fullmatch(name) else "@" + quote(name)


def show_dictionary(items: Mapping[str, Any], *, export: bool = False) -> str:
    """`{a = 1 : i64, b}`"""
    return "{" + ", ".join(_show_item(name, node, export) for name, node in items.items()) + "}"


def _show_item(name: str, node: Any, export: bool) -> str:
    key = name if _BARE.fullmatch(name) else quote(name)
    return key if isinstance(node, Unit) else f"{key} = {show(node, export=export)}"


def show_location(location: Location | None) -> str:
    """`loc(…)`"""
    if location is None or not (location.path or location.name):
        return "loc(unknown)"
    place = f"{quote(location.path)}:{location.line}:{location.column}" if location.path else ""
    if not location.name:
        return f"loc({place})"
    return f"loc({quote(location.name)}({place}))" if place else f"loc({quote(location.name)})"
