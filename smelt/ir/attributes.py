"""Attribute values: the nodes that text carries, the records that ops hold, the kinds that map one to the other.

A declared attribute has a `Kind`: `read` turns a parsed node into a Python value, `write` turns it back into a node.
Attributes the op table does not declare stay nodes, so that `sdy.sharding` and friends survive untouched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from smelt.dtype import Array, DType, ElementType, Quantized, f32, f64, i32, i64, index
from smelt.errors import ParseError
from smelt.frozen import Frozen
from smelt.ir.core import Type
from smelt.shape import Shape

# ---- nodes: what the text form can say. str, bool and Type stand for themselves, tuple for an array. ----


class Unit(Frozen):
    """An attribute that is just there."""


class Int(Frozen):
    """`5 : i64`"""

    value: int
    type: DType = i64


class Float(Frozen):
    """`5.0 : f64`"""

    value: float
    type: DType = f64

    def __eq__(self, other: object) -> bool:  # nan equals itself, -0.0 is not 0.0
        return isinstance(other, Float) and self.type == other.type and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.type))


class Symbol(Frozen):
    """`@main` or `@mesh::@inner`"""

    path: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path[-1]


class Dict(Frozen):
    """`{a = 1 : i64, b}`"""

    items: tuple[tuple[str, Any], ...]

    def get(self, name: str, default: Any = None) -> Any:
        return dict(self.items).get(name, default)


class DenseArray(Frozen):
    """`array<i64: 1, 2>`"""

    type: DType
    values: tuple[int | float | bool, ...]


class DialectAttr(Frozen):
    """`#stablehlo.dot<...>` or `#stablehlo<precision DEFAULT>`: dialect, mnemonic (or "") and the text between <>."""

    dialect: str
    mnemonic: str
    body: str = ""


class DialectType(Frozen):
    """A type of a dialect that smelt does not know, kept as text."""

    text: str


class Raw(Frozen):
    """An attribute that is kept as text (affine maps, distinct, …)."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Elements of a tensor: a read-only array (a splat is a broadcast view of one element), compared by digest."""

    array: Array
    dtype: ElementType
    _digest: list[bytes] = field(default_factory=list, repr=False)

    @staticmethod
    def of(array: Array, dtype: ElementType) -> Constant:
        assert array.dtype == dtype.numpy, f"{array.dtype} is not {dtype}"
        if not _is_spread(array) and _is_uniform(array):
            array = np.broadcast_to(array.reshape(-1)[:1].reshape(()), array.shape)
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        return Constant(array, dtype)

    @property
    def shape(self) -> Shape:
        return Shape.of(self.dtype, self.array.shape)

    @property
    def is_splat(self) -> bool:
        """Whether one element fills it."""
        return self.array.size > 0 and _is_spread(self.array)

    @property
    def digest(self) -> bytes:
        if not self._digest:
            head = f"{self.dtype}{self.array.shape}".encode()
            splat = self.is_splat
            body = self.array.reshape(-1)[:1].tobytes() if splat else np.ascontiguousarray(self.array).tobytes()
            self._digest.append(hashlib.blake2b(head + (b"s" if splat else b"d") + body, digest_size=16).digest())
        return self._digest[0]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Constant) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)


def _is_spread(array: Array) -> bool:
    """Whether strides show that there is one element at most."""
    return all(stride == 0 or size <= 1 for stride, size in zip(array.strides, array.shape, strict=True))


def _is_uniform(array: Array) -> bool:
    """Whether all elements have the same bits."""
    if not array.size:
        return False
    if array.reshape(-1)[0].tobytes() != array[(-1,) * array.ndim].tobytes():
        return False
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((flat == flat[0]).all())


Node: TypeAlias = (
    str
    | bool
    | Unit
    | Int
    | Float
    | Symbol
    | Dict
    | DenseArray
    | DialectAttr
    | DialectType
    | Raw
    | Constant
    | Type
    | tuple[Any, ...]
)


# ---- records: the structured attributes of StableHLO and CHLO ----


class DotDims(Frozen):
    """`#stablehlo.dot<...>`"""

    lhs_batching_dimensions: tuple[int, ...] = ()
    rhs_batching_dimensions: tuple[int, ...] = ()
    lhs_contracting_dimensions: tuple[int, ...] = ()
    rhs_contracting_dimensions: tuple[int, ...] = ()


class RaggedDotDims(Frozen):
    """`#chlo.ragged_dot<...>`"""

    lhs_batching_dimensions: tuple[int, ...] = ()
    rhs_batching_dimensions: tuple[int, ...] = ()
    lhs_contracting_dimensions: tuple[int, ...] = ()
    rhs_contracting_dimensions: tuple[int, ...] = ()
    lhs_ragged_dimensions: tuple[int, ...] = ()
    rhs_group_dimensions: tuple[int, ...] = ()


class GatherDims(Frozen):
    """`#stablehlo.gather<...>`"""

    offset_dims: tuple[int, ...] = ()
    collapsed_slice_dims: tuple[int, ...] = ()
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()
    start_index_map: tuple[int, ...] = ()
    index_vector_dim: int = 0


class ScatterDims(Frozen):
    """`#stablehlo.scatter<...>`"""

    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = ()
    input_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    index_vector_dim: int = 0


class ConvDims(Frozen):
    """`#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`: which dimension of each tensor plays which part."""

    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: tuple[int, ...]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: tuple[int, ...]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: tuple[int, ...]


class ChannelHandle(Frozen):
    """`#stablehlo.channel_handle<handle = 1, type = 0>`"""

    handle: int = 0
    type: int = 0


class DotAlgorithm(Frozen):
    """`#stablehlo.dot_algorithm<...>`; the precision types are names, because tf32 is no element type."""

    lhs_precision_type: str
    rhs_precision_type: str
    accumulation_type: str
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


class ResultAccuracy(Frozen):
    """`#stablehlo.result_accuracy<ulps = 10, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>`"""

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0
    mode: str = "DEFAULT"


class OutputOperandAlias(Frozen):
    """`#stablehlo.output_operand_alias<...>`"""

    output_tuple_indices: tuple[int, ...] = ()
    operand_index: int = 0
    operand_tuple_indices: tuple[int, ...] = ()


# ---- kinds ----


class Kind(Frozen):
    """How a declared attribute is read from a node and written to one; `read` raises ValueError(what it expects)."""

    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def _plain(expected: str, *types: type) -> Callable[[Any], Any]:
    def read(node: Any) -> Any:
        if not isinstance(node, types):
            raise ValueError(expected)
        return node

    return read


def int_of(element: DType) -> Callable[[Any], int]:
    """`3 : i64` of one type."""

    def read(node: Any) -> int:
        if isinstance(node, Int) and node.type == element:
            return node.value
        raise ValueError(f"an integer of type {element}")

    return read


def _float_of(element: DType) -> Callable[[Any], float]:
    """`1.0 : f32` of one type."""

    def read(node: Any) -> float:
        if isinstance(node, Float) and node.type == element:
            return float(node.value)
        raise ValueError(f"a number of type {element}")

    return read


def _read_unit(node: Any) -> bool:
    if isinstance(node, Unit):
        return True
    raise ValueError("its name alone")


def ints_of(element: DType) -> Callable[[Any], tuple[int, ...]]:
    """`array<i64: 1, 2>` of one type."""

    def read(node: Any) -> tuple[int, ...]:
        if isinstance(node, DenseArray) and node.type == element:
            return tuple(int(value) for value in node.values)
        raise ValueError(f"array<{element}: …>")

    return read


def read_row(node: Any) -> tuple[int, ...]:
    """`dense<[1, 0]> : tensor<2xindex>`, as layouts are."""
    if isinstance(node, Constant) and node.array.ndim == 1 and node.dtype == index and node.array.size <= 4096:
        return tuple(int(value) for value in node.array)
    raise ValueError("dense<[…]> : tensor<Nxindex>")


def _read_bools(node: Any) -> tuple[bool, ...]:
    if isinstance(node, DenseArray) and node.type.kind == "bool":
        return tuple(bool(value) for value in node.values)
    raise ValueError("array<i1: …>")


def _read_matrix(node: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(node, Constant) and node.array.ndim == 2 and node.dtype == i64 and node.array.size <= 1 << 20:
        return tuple(tuple(int(value) for value in row) for row in node.array)
    raise ValueError("dense<[[…], …]> : tensor<NxMxi64>")


def _write_matrix(columns: int) -> Callable[[tuple[tuple[int, ...], ...]], Constant]:
    def write(rows: tuple[tuple[int, ...], ...]) -> Constant:
        width = len(rows[0]) if rows else columns
        return Constant.of(np.array(rows, np.int64).reshape(len(rows), width), i64)

    return write


def _write_bools(values: tuple[bool, ...]) -> DenseArray:
    return DenseArray(_BOOL, tuple(values))


_BOOL = Shape("i1").element

INT = Kind("int", int_of(i64), Int)
INT32 = Kind("int", int_of(i32), lambda value: Int(value, i32))
FLOAT32 = Kind("float", _float_of(f32), lambda value: Float(value, f32))
FLOAT64 = Kind("float", _float_of(f64), Float)
BOOL = Kind("bool", _plain("true or false", bool), bool)
UNIT = Kind("unit", _read_unit, lambda _: Unit())  # present or absent; False is never written
STRING = Kind("string", _plain("a string", str), str)
INTS = Kind("ints", ints_of(i64), lambda values: DenseArray(i64, tuple(values)))
BOOLS = Kind("bools", _read_bools, _write_bools)
PAIRS = Kind("pairs", _read_matrix, _write_matrix(2))  # padding, source_target_pairs
MATRIX = Kind("matrix", _read_matrix, _write_matrix(0))  # replica_groups
CONSTANT = Kind("constant", _plain("dense<…>", Constant), lambda value: value)
SYMBOL = Kind("symbol", lambda node: _plain("@name", Symbol)(node).name, lambda name: Symbol((name,)))
DICT = Kind("dict", _plain("{…}", Dict), lambda value: value)
ANY = Kind("any", lambda node: node, lambda value: value)
LIST = Kind("list", _plain("[…]", tuple), lambda value: value)
TYPE = Kind("type", _plain("a type", Shape), lambda value: value)


def enum(mnemonic: str, *values: str, dialect: str = "stablehlo") -> Kind:
    """`#stablehlo<comparison_direction EQ>`, held as the string `EQ`."""
    expected = f"#{dialect}<{mnemonic} {' | '.join(values)}>"

    def read(node: Any) -> str:
        if isinstance(node, DialectAttr) and node.dialect == dialect:
            head, word = node.mnemonic, node.body
            if not head:  # `#stablehlo<mnemonic WORD>`
                head, _, word = " ".join(node.body.split()).partition(" ")
            if head == mnemonic and word.strip() in values:
                return word.strip()
        raise ValueError(expected)

    return Kind(mnemonic, read, lambda value: DialectAttr(dialect, "", f"{mnemonic} {value}"))


def enum_of(name: str, *values: str) -> Kind:
    """An enumeration that the generic form writes as a number of type i32, held as its word."""

    def read(node: Any) -> str:
        if isinstance(node, Int) and node.type == i32 and 0 <= node.value < len(values):
            return values[node.value]
        raise ValueError(" | ".join(values))

    def write(word: str) -> Int:
        return Int(values.index(word) if word in values else len(values), i32)

    return Kind(name, read, write)


def array_of(kind: Kind) -> Kind:
    """`[…]` of attributes of one kind."""

    def read(node: Any) -> tuple[Any, ...]:
        if not isinstance(node, tuple):
            raise ValueError(f"[…] of {kind.name}")
        return tuple(kind.read(item) for item in node)

    return Kind(f"array of {kind.name}", read, lambda values: tuple(kind.write(value) for value in values))


_FIELD = re.compile(r"\s*(\w+)\s*=\s*(\[[^\[\]]*\]|#?[\w.]+<[^<>]*>|[^,<>\[\]]+?)\s*(?:,|$)")


def record(
    cls: type[Frozen], mnemonic: str, dialect: str = "stablehlo", *, whole: bool = False, ordered: bool = False
) -> Kind:
    """`#stablehlo.gather<offset_dims = [2], index_vector_dim = 1>`: a record of ints, lists, bools and words.

    MLIR leaves out what has its default value, except in records that it wants `whole`; some it wants `ordered`.
    """
    known = {name: str(hint) for name, hint in cls.__annotations__.items()}
    expected = f"#{dialect}.{mnemonic}<{', '.join(known)}>"

    def read(node: Any) -> Any:
        if isinstance(node, cls):
            return node
        if not isinstance(node, DialectAttr) or (node.dialect, node.mnemonic) != (dialect, mnemonic):
            raise ValueError(expected)
        values: dict[str, Any] = {}
        at = 0
        while at < len(node.body.rstrip()):
            match = _FIELD.match(node.body, at)
            if match is None or match[1] not in known or match[1] in values:
                raise ValueError(expected)
            values[match[1]] = _field_value(match[2], known[match[1]], expected)
            at = match.end()
        in_order = list(values) == [name for name in known if name in values]
        missing = known.keys() - values.keys() if whole else {"mode"} & (known.keys() - values.keys())
        trailing = (whole or ordered) and node.body.rstrip().endswith(",")
        if missing or trailing or (ordered and not in_order):
            raise ValueError(expected)
        try:
            return cls(**values)
        except TypeError:
            raise ValueError(expected) from None

    def write(value: Any) -> DialectAttr:
        parts = []
        for name in known:
            item = getattr(value, name)
            if name in cls.field_defaults and item == cls.field_defaults[name] and not whole and name != "mode":
                continue
            if isinstance(item, tuple):
                text = "[" + ", ".join(map(str, item)) + "]"
            elif isinstance(item, bool):
                text = "true" if item else "false"
            elif name == "mode":
                text = f"#stablehlo.result_accuracy_mode<{item}>"
            else:
                text = repr(item) if isinstance(item, float) else str(item)
            parts.append(f"{name} = {text}")
        return DialectAttr(dialect, mnemonic, ", ".join(parts))

    return Kind(mnemonic, read, write)


def _field_value(text: str, annotation: str, expected: str) -> Any:
    try:
        if annotation.startswith("tuple"):
            if not text.startswith("["):
                raise ValueError(expected)
            return tuple(_number(item) for item in text[1:-1].split(",")) if text[1:-1].strip() else ()
        if annotation == "bool":
            return {"true": True, "false": False}[text]
        if annotation == "int":
            return _number(text)
        if annotation == "float" and _FLOAT.fullmatch(text):
            return float(text)
    except (ValueError, KeyError):
        raise ValueError(expected) from None
    if not text.startswith("#"):
        return text
    if not text.startswith("#stablehlo.result_accuracy_mode<"):
        raise ValueError(expected)
    return text[text.index("<") + 1 : -1]


_FLOAT = re.compile(r"-?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?", re.ASCII)
_INTEGER = re.compile(r"\s*(-?)(0x[0-9a-fA-F]{1,16}|[0-9]{1,19})\s*", re.ASCII)


def _number(text: str) -> int:
    """An integer of 64 bits."""
    match = _INTEGER.fullmatch(text)
    value = int(match[1] + match[2], 0 if match[2].startswith("0x") else 10) if match else 1 << 63
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(text)
    return value


_CONV = re.compile(r"\s*\[([^\]]*)\]\s*x\s*\[([^\]]*)\]\s*->\s*\[([^\]]*)\]\s*$")


def parse_conv_dims(body: str) -> ConvDims:
    """`[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`; `?` stands for a dimension that plays no part."""
    match = _CONV.match(body)
    if match is None:
        raise ValueError("[b, 0, f]x[0, i, o]->[b, 0, f]")

    def places(text: str, first: str, second: str) -> tuple[int, int, tuple[int, ...]]:
        labels = [label.strip() for label in text.split(",")]
        spatial = sorted((label for label in labels if label.isdigit()), key=int)
        known = {first, second, "?", *spatial}
        if spatial != [str(i) for i in range(len(spatial))] or any(label not in known for label in labels):
            raise ValueError(f"the labels {first}, {second}, 0, 1, …")
        if labels.count(first) != 1 or labels.count(second) != 1:
            raise ValueError(f"one {first} and one {second}")
        return labels.index(first), labels.index(second), tuple(labels.index(label) for label in spatial)

    batch, feature, spatial = places(match[1], "b", "f")
    inputs, outputs, kernel = places(match[2], "i", "o")
    out_batch, out_feature, out_spatial = places(match[3], "b", "f")
    return ConvDims(batch, feature, spatial, inputs, outputs, kernel, out_batch, out_feature, out_spatial)


def print_conv_dims(dims: ConvDims) -> str:
    """The inverse of `parse_conv_dims`."""

    def labels(first: str, at_first: int, second: str, at_second: int, spatial: Sequence[int]) -> str:
        by_place = {at_first: first, at_second: second} | {at: str(i) for i, at in enumerate(spatial)}
        return "[" + ", ".join(by_place.get(i, "?") for i in range(max(by_place) + 1)) + "]"

    d = dims
    return (
        labels("b", d.input_batch_dimension, "f", d.input_feature_dimension, d.input_spatial_dimensions)
        + "x"
        + labels(
            "i", d.kernel_input_feature_dimension, "o", d.kernel_output_feature_dimension, d.kernel_spatial_dimensions
        )
        + "->"
        + labels("b", d.output_batch_dimension, "f", d.output_feature_dimension, d.output_spatial_dimensions)
    )


def _read_conv(node: Any) -> ConvDims:
    if isinstance(node, DialectAttr) and node.mnemonic == "conv":
        if "=" in node.body:  # the spelled-out form
            dims: ConvDims = record(ConvDims, "conv").read(node)
            return dims
        return parse_conv_dims(node.body)
    raise ValueError("#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>")


CONV = Kind("conv", _read_conv, lambda dims: DialectAttr("stablehlo", "conv", print_conv_dims(dims)))
DOT = record(DotDims, "dot")
RAGGED_DOT = record(RaggedDotDims, "ragged_dot", "chlo")
GATHER = record(GatherDims, "gather")
SCATTER = record(ScatterDims, "scatter")
CHANNEL = record(ChannelHandle, "channel_handle", whole=True)
DOT_ALGORITHM = record(DotAlgorithm, "dot_algorithm", whole=True, ordered=True)
RESULT_ACCURACY = record(ResultAccuracy, "result_accuracy", ordered=True)
ALIAS = record(OutputOperandAlias, "output_operand_alias", whole=True, ordered=True)
PRECISION = array_of(enum("precision", "DEFAULT", "HIGH", "HIGHEST"))
COMPARISON = enum("comparison_direction", "EQ", "NE", "GE", "GT", "LE", "LT")
COMPARE_TYPE = enum("comparison_type", "NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")
FFT_TYPE = enum("fft_type", "FFT", "IFFT", "RFFT", "IRFFT")
TRANSPOSE = enum("transpose", "TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
RNG_ALGORITHM = enum("rng_algorithm", "DEFAULT", "THREE_FRY", "PHILOX")
RNG_DISTRIBUTION = enum("rng_distribution", "UNIFORM", "NORMAL")


def elements(dtype: ElementType) -> DType:
    """The type in which an element is stored."""
    return dtype.storage if isinstance(dtype, Quantized) else dtype


def read_attr(kind: Kind, node: Any, owner: str, name: str, where: object = None) -> Any:
    """`kind.read` with an error that names the op and the attribute."""
    try:
        return kind.read(node)
    except ValueError as error:
        raise ParseError(f"{owner}: attribute {name!r}", expected=str(error), got=node, where=where) from None
