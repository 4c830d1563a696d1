"""Types as text: `tensor<?x3xf32>`, tokens, tuples, futures, function types and quantised element types, both ways.

A `?` is read as `UNKNOWN`; sizes that are formulas are written in our own encoding, as in
`tensor<?x3xf32, #smelt.sizes<B, 3>>`, or (for export) as a plain `?`. Called by everything else here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

from smelt.dim import Poly, Size, parse_size
from smelt.dtype import DTYPES, DType, ElementType, Quantized, i64, integer_range
from smelt.errors import ShapeError
from smelt.ir.attributes import DialectType
from smelt.ir.core import FuncType, Future, Token, Tuple, Type
from smelt.ir.ops.definition import UNKNOWN
from smelt.ir.text.lexer import BANG, FLOAT, ID, INTEGER, Aliases, Cursor
from smelt.shape import Shape

_SCALARS = {name: row for name, row in DTYPES.items() if not row.is_complex}
_SIMPLE = re.compile(r"tensor<((?:[0-9]+x)*+)([a-z][A-Za-z0-9]*+)>", re.ASCII)
_ENCODED = re.compile(r'tensor<[\dx?a-zA-Z]+, #smelt\.sizes<[^<>"#]*>>', re.ASCII)  # read once, then found by its text
_SIZES = re.compile(r"((?:(?:[0-9]++|\?)[ \t\r\n]*+x[ \t\r\n]*+)*+)", re.ASCII)
_BOUNDS = re.compile(r"bounds\s*=\s*\[([^\[\]]*)\]")
_ONE_SIZE = re.compile(r"[0-9]+|\?")
_STORAGE = re.compile(r"(?:u|ui|i)[0-9]+", re.ASCII)
_ODD = re.compile(r"[su]?i[1-9][0-9]{0,6}|f80|f128|tf32|none", re.ASCII)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*+"|\bfloordiv\b|//')

MAX_RANK = 32  # what all of NumPy takes
MAX_SIZE = (1 << 63) - 1


class Types:
    """Reads types; remembers those it has read by their text, and the aliases (`!t = …`) by their place."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.aliases = Aliases("!")
        self._simple: dict[str, Shape] = {}

    def value(self) -> Type:
        """The type of a value."""
        cursor = self.cursor
        if cursor.token == "tensor":
            return self._tensor()
        start = cursor.start
        type = self.any()
        if isinstance(type, Shape | Token | Tuple | Future):
            return type
        cursor.refuse(
            "a value of this type", at=start, expected="a tensor, a token, a tuple or a future", got=show(type)
        )

    def any(self) -> Type | DialectType:
        """A type of any sort; what smelt has no record for is kept as text."""
        cursor = self.cursor
        if cursor.token == "tensor" and cursor.kind == ID:
            return self._tensor()
        if cursor.kind == BANG:
            return self._dialect()
        with cursor.deeper():
            if cursor.token == "(":
                return self.function()
            if cursor.kind != ID:
                cursor.fail("unexpected text", expected="a type")
            start = cursor.start
            if cursor.accept("tuple"):
                return Tuple(tuple(self.value() for _ in cursor.read_list("<", ">")))
            word = cursor.token
            if word in ("complex", "memref", "vector"):
                cursor.advance()
                cursor.read_balanced()
                return DialectType(cursor.since(start))
            if word in _SCALARS or _ODD.fullmatch(word):
                cursor.advance()
                return DialectType(word)
            cursor.fail("unknown type", expected="a type")

    def function(self) -> FuncType:
        """`(a, b) -> c` or `(a) -> (b, c)`."""
        inputs = self.read_list()
        self.cursor.expect("->")
        return FuncType(inputs, self.results())

    def results(self) -> tuple[Type, ...]:
        """One type, or any number in parentheses."""
        if self.cursor.token == "(":
            return self.read_list()
        return (self.attribute_type(),)

    def read_list(self) -> tuple[Type, ...]:
        """`(a, b)`"""
        return tuple([self.attribute_type() for _ in self.cursor.read_list("(", ")")])

    def row(self) -> list[Type]:
        """`a, b`"""
        types = [self.value()]
        while self.cursor.accept(","):
            types.append(self.value())
        return types

    def attribute_type(self) -> Type:
        """A type inside a function type: of an attribute it may be one that no value has."""
        if self.cursor.token == "tensor":
            return self._tensor()
        return self.any()  # type: ignore[return-value]

    def scalar(self) -> DType | DialectType:
        """The type of a number in an attribute: `i64`, `f32`; one smelt has no record for is kept as text."""
        cursor = self.cursor
        known = _SCALARS.get(cursor.token) if cursor.kind == ID else None
        if known is not None:
            cursor.advance()
            return known
        type = self.any()
        if isinstance(type, DialectType):
            return type
        cursor.fail("unexpected type", expected="the type of a number", got=show(type))

    # -- tensors --

    def _tensor(self) -> Shape:
        cursor = self.cursor
        simple = _SIMPLE.match(cursor.text, cursor.start)
        if simple is not None:
            text = simple[0]
            shape = self._simple.get(text)
            if shape is None:
                element = _SCALARS.get(simple[2])
                if element is not None:
                    sizes = [self._size(size) for size in simple[1].split("x")[:-1]]
                    shape = self._simple[text] = self._make_shape(element, sizes, cursor.start)
            if shape is not None:
                cursor.seek(simple.end())
                return shape
        encoded = _ENCODED.match(cursor.text, cursor.start)
        known = self._simple.get(encoded[0]) if encoded is not None else None
        if encoded is not None and known is not None:
            cursor.seek(encoded.end())
            return known
        with cursor.deeper():
            shape = self._full_tensor()
        if encoded is not None and not cursor.text[encoded.end() : cursor.start].strip():
            self._simple[encoded[0]] = shape
        return shape

    def _full_tensor(self) -> Shape:
        cursor = self.cursor
        start = cursor.start
        cursor.advance()
        if cursor.token != "<":
            cursor.fail("unexpected text", expected="'<'")
        cursor.seek(cursor.end)
        if cursor.token == "*":
            cursor.refuse(
                "a tensor whose rank is unknown", at=start, expected="a ranked tensor", remedy="state its sizes"
            )
        dims = _SIZES.match(cursor.text, cursor.start)
        assert dims is not None  # it may match nothing
        sizes = [self._size(size) for size in _ONE_SIZE.findall(dims[1])]
        cursor.seek(dims.end())
        element = self.element()
        bounds: tuple[int | None, ...] | None = None
        if cursor.accept(","):
            sizes, bounds = self._encoding(sizes)
        cursor.expect(">")
        return self._make_shape(element, sizes, start, bounds)

    def _size(self, text: str) -> Size:
        if text == "?":
            return UNKNOWN
        if len(text) > 19 or int(text) > MAX_SIZE:
            self.cursor.fail("a size is too large", at=self.cursor.start, expected=f"at most {MAX_SIZE}", got=text[:40])
        return int(text)

    def _make_shape(
        self, element: ElementType, sizes: list[Size], start: int, bounds: tuple[int | None, ...] | None = None
    ) -> Shape:
        if len(sizes) > MAX_RANK:
            self.cursor.refuse("a tensor with too many axes", at=start, expected=f"at most {MAX_RANK}", got=len(sizes))
        if isinstance(element, Quantized) and element.axis is not None:
            axis = element.axis
            if axis >= len(sizes) or (isinstance(sizes[axis], int) and sizes[axis] != len(element.scales)):
                size = sizes[axis] if axis < len(sizes) else f"no axis {axis}"
                self.cursor.fail(
                    "one scale per slice of the quantised axis", at=start, expected=len(element.scales), got=size
                )
        return Shape.of(element, sizes, None, bounds)

    def _encoding(self, sizes: list[Size]) -> tuple[list[Size], tuple[int | None, ...] | None]:
        """`#stablehlo.bounds<4, ?>`, or our own `#smelt.sizes<B, 3>`, which may end in `bounds = [4, ?]`."""
        cursor = self.cursor
        start, name = cursor.start, cursor.token
        if name not in ("#stablehlo.bounds", "#stablehlo.type_extensions", "#smelt.sizes"):
            cursor.refuse("a tensor with this encoding", got=name, expected="#stablehlo.bounds<…>")
        cursor.advance()
        body = cursor.read_balanced()
        if name == "#smelt.sizes":
            body, _, tail = body.partition("; bounds = ")
            shape = self.sizes(Shape.of(i64, sizes), body, start)
            bounds = self._bounds(tail.strip().removeprefix("[").removesuffix("]"), len(sizes), start) if tail else None
            return list(shape.sizes), bounds
        if name == "#stablehlo.type_extensions":
            spelled = _BOUNDS.fullmatch(body.strip())
            if spelled is None:
                cursor.fail(
                    "a type extension that is no list of bounds", at=start, expected="bounds = […]", got=body[:60]
                )
            body = spelled[1]
        bounds = self._bounds(body, len(sizes), start)
        if all(bound is None for bound in bounds):  # another type to MLIR than the one without
            cursor.refuse("bounds that bound nothing", at=start, got=body, remedy="leave them out")
        if any(bound is not None and size != UNKNOWN for size, bound in zip(sizes, bounds, strict=True)):
            cursor.fail("only a dynamic size has a bound", at=start, expected=sizes, got=body)
        return sizes, bounds

    def _bounds(self, body: str, rank: int, start: int) -> tuple[int | None, ...]:
        words = [word.strip() for word in body.split(",")] if body.strip() else []
        if len(words) != rank or any(not _ONE_SIZE.fullmatch(word) or len(word) > 19 for word in words):
            self.cursor.fail("one bound per axis", at=start, expected=f"{rank} numbers or ?", got=body)
        return tuple(None if word == "?" else int(word) for word in words)

    def sizes(self, shape: Shape, body: str, start: int) -> Shape:
        """A shape whose dynamic dimensions are given separately, as `B, 3`."""
        formulas = self._formulas(body, start)
        if len(formulas) != shape.rank or any(
            a not in (UNKNOWN, b) for a, b in zip(shape.sizes, formulas, strict=True)
        ):
            self.cursor.fail("sizes that are not those of the type", at=start, expected=show(shape), got=body[:60])
        return Shape.of(shape.dtype, formulas, None, shape.bounds)

    def _formulas(self, body: str, start: int) -> list[Size]:
        try:
            text = _WORD.sub(lambda match: "//" if match[0] == "floordiv" else match[0], body)
            sizes = [parse_size(part) for part in split_formulas(text)] if text.strip() else []
        except ShapeError as error:
            raise self.cursor.with_location(error, start) from None
        for size in sizes:
            if isinstance(size, int) and not 0 <= size <= MAX_SIZE:
                self.cursor.fail("a size is out of range", at=start, got=size)
        return sizes

    # -- element types --

    def element(self) -> ElementType:
        """What a tensor holds."""
        cursor = self.cursor
        start = cursor.start
        if cursor.kind == ID:
            known = _SCALARS.get(cursor.token)
            if known is not None:
                cursor.advance()
                return known
            if cursor.accept("complex"):
                cursor.expect("<")
                part = cursor.advance()
                cursor.expect(">")
                pair = DTYPES.get(f"complex<{part}>")
                if pair is None:
                    cursor.refuse("complex numbers of this type", at=start, expected="f32 or f64", got=part)
                return pair
        if cursor.kind == BANG:
            if cursor.token == "!quant.uniform":
                cursor.advance()
                return self._parse_quantized(start)
            if cursor.token[1:] in self.aliases.places:
                found: ElementType = self.aliases.resolve(cursor, cursor.advance()[1:], self.element)
                return found
        cursor.refuse("a tensor of this element type", got=cursor.token[:40], expected="one of " + ", ".join(DTYPES))

    def _parse_quantized(self, start: int) -> Quantized:
        """`<i8<-128:127>:f32:0, {0.1:-30, 0.5}>`"""
        cursor = self.cursor
        cursor.expect("<")
        spelled = cursor.word()
        if not _STORAGE.fullmatch(spelled):
            cursor.fail("unexpected storage type", at=start, expected="i8, u8, …", got=spelled)
        storage = DTYPES.get("ui" + spelled.lstrip("ui") if spelled[0] == "u" else spelled)
        if storage is None or storage.kind == "bool":
            cursor.refuse("quantised storage of this type", at=start, got=spelled)
        low, high = integer_range(storage)
        least, most = low, high
        if cursor.accept("<"):
            least = cursor.integer()
            cursor.expect(":")
            most = cursor.integer()
            cursor.expect(">")
            if not low <= least < most <= high:
                cursor.fail("storage limits out of range", at=start, expected=f"{low}:{high}", got=f"{least}:{most}")
        cursor.expect(":")
        word = cursor.word()
        expressed = DTYPES.get(word)
        if expressed is None or not expressed.is_float:
            cursor.fail("unexpected expressed type", at=start, expected="a floating-point type", got=word)
        axis: int | None = None
        if cursor.accept(":"):
            if cursor.token == "{":
                cursor.refuse("quantisation per block", at=start, expected="one scale per tensor or per axis")
            axis = cursor.integer()
        cursor.expect(",")
        if axis is None:
            pairs = [self._scale(least, most, start)]
        else:
            pairs = [self._scale(least, most, start) for _ in cursor.read_list("{", "}")]
        cursor.expect(">")
        if axis is not None and axis < 0:
            cursor.fail("a negative axis", at=start, got=axis)
        scales, zeros = zip(*pairs, strict=True) if pairs else ((), ())
        return Quantized(storage, expressed, scales, zeros, axis, least, most)

    def _scale(self, least: int, most: int, start: int) -> tuple[float, int]:
        cursor = self.cursor
        if cursor.token == "-":
            cursor.fail("a scale must be positive")
        if cursor.kind not in (FLOAT, INTEGER):
            cursor.fail("unexpected text", expected="a scale")
        token = cursor.advance()
        scale = float(token) if not token.startswith("0x") and len(token) < 400 else 0.0
        zero = cursor.integer() if cursor.accept(":") else 0
        if not (scale > 0 and isfinite(scale)):
            cursor.fail("a scale must be positive and finite", at=start, got=token[:40])
        if not least <= zero <= most:
            cursor.fail("a zero point is outside the storage type", at=start, expected=f"{least} to {most}", got=zero)
        return scale, zero

    # -- dialect types and aliases --

    def _dialect(self) -> Type | DialectType:
        cursor = self.cursor
        start, name = cursor.start, cursor.token[1:]
        if name == "stablehlo.token":
            cursor.advance()
            return Token()
        if name == "stablehlo.future":
            cursor.advance()
            with cursor.deeper():
                return Future(tuple(self.value() for _ in cursor.read_list("<", ">")))
        cursor.advance()
        if name in self.aliases.places:
            found: Type | DialectType = self.aliases.resolve(cursor, name, self.any)
            return found
        if "." not in name and cursor.token != "<":
            cursor.fail("an alias that is not defined", at=start, got=f"!{name}")
        if cursor.token == "<" and cursor.start == start + len(name) + 1:
            cursor.read_balanced()
        return DialectType(cursor.since(start))


def split_formulas(body: str) -> list[str]:
    """`B, max(S, 2)` at its outer commas."""
    parts, depth, quote, begin = [], 0, False, 0
    for i, char in enumerate(body):
        if char == '"' and (i == 0 or body[i - 1] != "\\"):
            quote = not quote
        elif quote:
            continue
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(body[begin:i])
            begin = i + 1
    return [*parts, body[begin:]]


# ---- printing ----


def show(type: Type | DialectType, *, export: bool = False) -> str:
    """A type as text. With `export`, sizes that are formulas become `?` without more."""
    match type:
        case Shape():
            return _show_tensor(type, export)
        case Token():
            return "!stablehlo.token"
        case Tuple():
            return f"tuple<{', '.join(show(inner, export=export) for inner in type.types)}>"
        case Future():
            return f"!stablehlo.future<{', '.join(show(inner, export=export) for inner in type.types)}>"
        case FuncType():
            return show_function(type.inputs, type.results, export=export)
        case DialectType():
            return type.text


def show_function(inputs: Sequence[Type], results: Sequence[Type], *, export: bool = False) -> str:
    """`(a, b) -> c`, parentheses around any other number of results than one tensor."""
    left = ", ".join(show(type, export=export) for type in inputs)
    right = ", ".join(show(type, export=export) for type in results)
    bare = len(results) == 1 and not isinstance(results[0], FuncType)
    return f"({left}) -> {right}" if bare else f"({left}) -> ({right})"


def _show_tensor(shape: Shape, export: bool) -> str:
    element = show_element(shape.dtype)
    if shape.is_static and shape.bounds is None:
        return f"tensor<{''.join(f'{size}x' for size in shape.sizes)}{element}>"
    dims = "".join(f"{size}x" if isinstance(size, int) else "?x" for size in shape.sizes)
    bounds = ", ".join("?" if bound is None else str(bound) for bound in shape.bounds or ())
    unknown = all(size == UNKNOWN for size in shape.sizes if isinstance(size, Poly))
    if export or unknown:
        encoding = f", #stablehlo.bounds<{bounds}>" if bounds else ""
    else:
        tail = f"; bounds = [{bounds}]" if bounds else ""
        encoding = f", #smelt.sizes<{', '.join(map(_show_size, shape.sizes))}{tail}>"
    return f"tensor<{dims}{element}{encoding}>"


def _show_size(size: Size) -> str:
    """A formula; `//` would begin a comment here, so it is spelled `floordiv`, and a symbol of that name is quoted."""
    text = _WORD.sub(lambda match: '"floordiv"' if match[0] == "floordiv" else match[0], str(size))
    return _WORD.sub(lambda match: " floordiv " if match[0] == "//" else match[0], text)


def show_element(element: ElementType) -> str:
    """An element type; quantised storage is spelled `u8`, not `ui8`."""
    if isinstance(element, Quantized) and element.storage.kind == "uint":
        return element.name.replace("<ui", "<u", 1)
    return element.name
