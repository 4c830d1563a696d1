"""Elements of tensors as text: `dense<…>` in every spelling, and the blobs behind `dense_resource`, both ways.

In: the stretch of text between the brackets and the tensor type that follows it. Out: a `Constant`; a splat stays one
element however large its type is. Numbers are read in bulk; only lists with hexadecimal or odd spellings go one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from smelt.dtype import Array, DType
from smelt.ir.attributes import Constant
from smelt.ir.cast import cast
from smelt.ir.text.lexer import Cursor
from smelt.shape import Shape

_BODY = re.compile(r"((?:[^>/]++|//[^\n]*+|/)*+)>")
_COMMENT = re.compile(r"//[^\n]*")
_BLANK = " \t\r\n"
_DECIMAL = b"0123456789-, \t\r\n"
_FLOATS = b"0123456789+-.eE, \t\r\n"
_ALL_BUT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[],")
_BESIDE_BRACKET = re.compile(
    r"\][ \t\r\n]*+[^\], \t\r\n]|[^\[, \t\r\n][ \t\r\n]*\["
)  # an element that belongs to no list
_PAIR = re.compile(r"\(\s*([^(),\[\]]*),([^(),\[\]]*)\)")
_ODD_FLOAT = re.compile(rb"(?<![eE])\+|(?<![0-9])\.")  # spellings that Python takes and MLIR does not
_FLOAT = re.compile(r"(-?)\s*([0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?)", re.ASCII)
_INTEGER = re.compile(r"(-?)\s*(0x[0-9a-fA-F]+|[0-9]+)", re.ASCII)

HEX_FROM = 101  # as many elements as this are printed as one hexadecimal blob
MAX_BYTES = 1 << 62


class ElementsError(ValueError):
    """A literal that does not fit its type: message, expected, got."""

    def __init__(self, message: str, expected: object = None, got: object = None) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got


def stretch(cursor: Cursor) -> str:
    """What stands between `<` and `>` of a literal whose word was just passed; the cursor goes on after it."""
    if cursor.token != "<":
        cursor.fail("unexpected text", expected="'<'")
    match = _BODY.match(cursor.text, cursor.end)
    if match is None:
        cursor.fail("a literal is never closed", at=cursor.start)
    cursor.seek(match.end())
    body = match[1]
    return (_COMMENT.sub("", body) if "//" in body else body).strip(_BLANK)


def read_elements(body: str, shape: Shape) -> Constant:
    """The literal `dense<body> : shape`; raises ElementsError."""
    if not isinstance(shape.dtype, DType):
        raise ElementsError(
            "a literal of quantised elements", expected=f"its storage type {shape.dtype.storage}", got=shape
        )
    if not shape.is_static:
        raise ElementsError("a literal needs a type of known size", got=shape)
    element, sizes = shape.dtype, shape.numbers()
    if prod(size or 1 for size in sizes) * element.numpy.itemsize >= MAX_BYTES:
        raise ElementsError("a literal too large to address", got=shape)
    if body.startswith('"'):
        return Constant.of(_from_hex(body, element, sizes), element)
    if not body:
        if prod(sizes):
            raise ElementsError("a literal without elements", expected=f"{prod(sizes)} elements", got="dense<>")
        return Constant.of(np.zeros(sizes, element.numpy), element)
    if not body.startswith("["):
        return Constant.of(np.broadcast_to(_numbers([body], element, body).reshape(()), sizes), element)
    if 0 in sizes[:-1]:
        raise ElementsError("a list cannot show the axes inside an empty one", expected="dense<>", got=body[:60])
    flat, skeleton, count = body.replace("[", "").replace("]", ""), body, prod(sizes)
    if element.is_complex:
        pairs = _PAIR.findall(body)
        skeleton, flat = _PAIR.sub("x", body), ",".join(f"{real},{imag}" for real, imag in pairs)
        bare = skeleton.replace("[", "").replace("]", "").split(",") if count else []
        if any(item.strip(_BLANK) != "x" for item in bare):
            raise ElementsError("complex elements", expected="(real, imaginary)", got=body[:60])
    tokens = flat.split(",") if flat.strip(_BLANK) or count else []
    parts = 2 if element.is_complex else 1
    if len(tokens) != count * parts and count:
        raise ElementsError(
            "a literal with another number of elements than its type", expected=count, got=len(tokens) // parts
        )
    structure = skeleton.encode("utf-8", "replace").translate(None, _ALL_BUT_STRUCTURE)
    if len(structure) != _skeleton_length(sizes) or structure != _skeleton(sizes) or _BESIDE_BRACKET.search(skeleton):
        raise ElementsError("the lists of a literal are not those of its type", expected=list(sizes), got=body[:60])
    if not count:
        if flat.replace(",", "").strip(_BLANK):
            raise ElementsError("a literal with elements for a type that has none", expected=list(sizes), got=body[:60])
        return Constant.of(np.zeros(sizes, element.numpy), element)
    return Constant.of(_numbers(tokens, element, flat).reshape(sizes), element)


def _skeleton_length(sizes: Sequence[int]) -> int:
    """How long a skeleton is, which hostile sizes could make longer than memory."""
    length = 0
    for size in reversed(sizes):
        length = 2 + size * length + size - 1 if size else 2
    return length


def _skeleton(sizes: Sequence[int]) -> bytes:
    """The brackets and commas of nested lists of these sizes; sizes inside an empty axis are not visible."""
    inner = b""
    for size in reversed(sizes):
        inner = b"[" + b",".join([inner] * size) + b"]" if size else b"[]"
    return inner


def _numbers(tokens: list[str], element: DType, flat: str) -> Array:
    """Tokens as elements; of a complex type two tokens make one."""
    if element.is_complex:
        if len(tokens) == 1:
            match = _PAIR.fullmatch(tokens[0].strip(_BLANK))
            if match is None:
                raise ElementsError("a complex element", expected="(real, imaginary)", got=tokens[0][:60])
            tokens = [match[1], match[2]]
            flat = ",".join(tokens)
        return _numbers(tokens, element.part, flat).view(element.numpy)
    raw = flat.encode("utf-8", "replace")
    try:
        if element.is_float:
            if not raw.translate(None, _FLOATS) and raw.count(b".") == len(tokens) and not _ODD_FLOAT.search(raw):
                return cast(np.fromiter(map(float, tokens), np.float64, len(tokens)), element)
        elif b"-0" not in raw and not raw.translate(None, _DECIMAL):
            return _wrap(np.fromiter(map(int, tokens), np.int64, len(tokens)), element)
    except (ValueError, OverflowError):
        pass  # the careful way finds out which token it is
    if element.is_float:
        return _floats(tokens, element)
    return _integers(tokens, element)


def _wrap(values: Array, element: DType) -> Array:
    """Integers as elements: a type without sign takes both -1 and 255 in eight bits."""
    low = 0 if element.kind == "uint" else -(1 << (element.bits - 1))
    high = (1 << element.bits) - 1 if element.name != "index" else (1 << 63) - 1
    if values.size and (int(values.min()) < low or int(values.max()) > high):
        bad = int(values.min()) if int(values.min()) < low else int(values.max())
        raise ElementsError("an integer out of range for its type", expected=f"{low} to {high}", got=bad)
    if element.kind == "bool":
        return (values & 1).astype(np.bool_)
    if element.bits == 64:
        return values.astype(element.numpy)
    narrow = values.astype(np.int8 if element.kind == "int" else np.uint8) if element.bits < 8 else values
    return narrow.astype(element.numpy)


def _integers(tokens: list[str], element: DType) -> Array:
    low = 0 if element.kind == "uint" else -(1 << (element.bits - 1))
    high = (1 << element.bits) - 1
    values = []
    for token in (token.strip(_BLANK) for token in tokens):
        if token in ("true", "false") and element.kind == "bool":
            values.append(int(token == "true"))
            continue
        match = _INTEGER.fullmatch(token)
        if match is None or len(token) > 40:
            raise ElementsError("not an element of this type", expected=element, got=token[:60])
        value = int(match[1] + match[2], 16 if match[2].startswith("0x") else 10)
        if not low <= value <= high or (match[1] and not value):  # MLIR has no -0 either
            raise ElementsError("an integer out of range for its type", expected=f"{low} to {high}", got=token)
        values.append(value)
    if element.bits == 64:
        mask = (1 << 64) - 1
        return np.array([value & mask for value in values], np.uint64).view(element.numpy)
    return _wrap(np.array(values, np.int64), element)


def _floats(tokens: list[str], element: DType) -> Array:
    """Floats, and integers in hexadecimal that are the bits of floats."""
    values = np.zeros(len(tokens), np.float64)
    bits: dict[int, int] = {}
    for i, token in enumerate(token.strip(_BLANK) for token in tokens):
        match = _FLOAT.fullmatch(token)
        if match is not None:
            values[i] = float(match[1] + match[2])
        elif re.fullmatch(r"0x[0-9a-fA-F]+", token) and len(token) <= 40:
            bits[i] = int(token, 16)
            if bits[i] >> element.bits:
                raise ElementsError(
                    "a hexadecimal float out of range for its type", expected=f"{element.bits} bits", got=token
                )
        elif _INTEGER.fullmatch(token):
            raise ElementsError(
                "a whole number where a float is wanted", expected="a dot, or bits such as 0x7F800000", got=token[:60]
            )
        else:
            raise ElementsError("not an element of this type", expected=element, got=token[:60])
    result = np.array(cast(values, element))
    raw = result.view(f"u{element.numpy.itemsize}")
    for i, pattern in bits.items():
        raw[i] = pattern
    return result


# ---- bytes ----


def _from_hex(body: str, element: DType, sizes: tuple[int, ...]) -> Array:
    if not (body.startswith('"0x') and body.endswith('"') and len(body) >= 4):
        raise ElementsError("a string where elements are wanted", expected='"0x…"', got=body[:60])
    try:
        raw = bytes.fromhex(body[3:-1])
    except ValueError:
        raise ElementsError("not hexadecimal", expected='"0x…" with two digits a byte', got=body[:60]) from None
    if any(char in _BLANK for char in body):
        raise ElementsError("not hexadecimal", expected="digits without blanks", got=body[:60])
    return from_bytes(raw, element, sizes)


def from_bytes(raw: bytes, element: DType, sizes: tuple[int, ...]) -> Array:
    """Little-endian elements, a byte at least for each; one element alone fills the tensor. Booleans may be packed."""
    count, width = prod(sizes), element.numpy.itemsize
    if element.kind == "bool":
        return _booleans(raw, sizes)
    if len(raw) not in (count * width, width) or (count == 0 and len(raw) not in (0, width)):
        raise ElementsError("the bytes of a literal do not fill its type", expected=count * width, got=len(raw))
    values = np.frombuffer(raw, np.uint8 if element.bits < 8 else element.numpy)
    if element.bits < 8:
        values = values & np.uint8((1 << element.bits) - 1)
        if element.is_integer:
            values = _wrap(values.astype(np.int64), element)
        else:
            values = values.view(element.numpy)
    if count == 0:
        return np.zeros(sizes, element.numpy)
    return values.reshape(sizes) if len(values) == count else np.broadcast_to(values.reshape(()), sizes)


def _booleans(raw: bytes, sizes: tuple[int, ...]) -> Array:
    """A byte for each, or (older text) a bit for each."""
    count = prod(sizes)
    values = np.frombuffer(raw, np.uint8)
    if len(raw) == count:
        return (values & 1).astype(np.bool_).reshape(sizes)
    if len(raw) == 1 and raw[0] in (0, 1, 0xFF):
        return np.broadcast_to(np.bool_(raw[0] & 1), sizes)
    if len(raw) == -(-count // 8):
        return np.unpackbits(values, count=count, bitorder="little").astype(np.bool_).reshape(sizes)
    raise ElementsError("the bytes of a literal do not fill its type", expected=count, got=len(raw))


# ---- printing ----


def show_elements(constant: Constant) -> str:
    """What stands between the brackets of `dense<…>`."""
    array, element = constant.array, constant.dtype
    of = element if isinstance(element, DType) else element.storage
    if array.size == 0:
        return ""
    if constant.is_splat or _is_one_value(array):
        return _show(array[(0,) * array.ndim], of)
    if array.size >= HEX_FROM:
        return f'"0x{_bytes(array).hex().upper()}"'
    return _show_list(array, of)


def _is_one_value(array: Array) -> bool:
    flat = np.ascontiguousarray(array).reshape(-1)
    raw = flat.view(np.uint8).reshape(flat.size, -1)
    return bool((raw == raw[0]).all())


def _bytes(array: Array) -> bytes:
    little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
    return np.ascontiguousarray(little).tobytes()


def _show_list(array: Array, element: DType) -> str:
    if array.ndim == 0:
        return _show(array[()], element)
    return "[" + ", ".join(_show_list(row, element) for row in array) + "]"


def _show(value: Any, element: DType) -> str:
    match element.kind:
        case "bool":
            return "true" if value else "false"
        case "int" | "uint":
            return str(int(value))
        case "float":
            return show_float(value, element)
        case "complex":
            part = element.part
            return f"({show_float(part.numpy.type(value.real), part)},{show_float(part.numpy.type(value.imag), part)})"


def show_float(value: Any, element: DType) -> str:
    """A float as MLIR spells it: six digits where they are enough, then all that its type has, then its bits."""
    scalar = np.asarray(value, element.numpy)
    wide = float(scalar)
    if np.isfinite(wide):
        head, _, exponent = f"{wide:.5e}".partition("e")
        for text in (f"{head}0e{exponent}", _all_digits(wide, element)):
            if "." in text and cast(np.array([float(text)]), element).tobytes() == scalar.tobytes():
                return text
    bits = int(scalar.view(f"u{element.numpy.itemsize}"))
    return f"0x{bits:0{element.numpy.itemsize * 2}X}"


def _all_digits(value: float, element: DType) -> str:
    """As many digits as distinguish the values of a type; with an exponent instead of more than three zeros."""
    mantissa = int(ml_dtypes.finfo(element.numpy).nmant)  # type: ignore[no-untyped-call]
    precision = 2 + (mantissa + 1) * 59 // 196
    sign = "-" if value < 0 else ""
    head, _, tail = f"{abs(value):.{precision - 1}e}".partition("e")
    digits = head.replace(".", "").rstrip("0") or "0"
    first = int(tail)  # the power of ten of the first digit
    last = first - len(digits) + 1
    if last > 3 or (last >= 0 and len(digits) + last > precision) or first < -3:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{first:+d}"
    if last >= 0:
        return f"{sign}{digits}{'0' * last}"
    if first >= 0:
        return f"{sign}{digits[: first + 1]}.{digits[first + 1 :]}"
    return f"{sign}0.{'0' * (-first - 1)}{digits}"


def float_from_bits(bits: int, element: DType) -> float:
    """The value of a hexadecimal float."""
    raw = np.array([bits], f"u{element.numpy.itemsize}")
    return float(raw.view(element.numpy)[0])


def round_to(value: float, element: DType) -> float:
    """A number as the type can hold it."""
    return float(cast(np.array([value], np.float64), element)[0]) if element.is_float else value
