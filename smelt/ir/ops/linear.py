"""Linear algebra: dot products, einsum, Cholesky, triangular solves and Fourier transforms.

In: calls and arrays of the op table. Out: types and values; sums of products are exact for integers; of floats, short
ones round at every step and long ones once, from double. `ir.ops.window` uses the same accumulators for convolutions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, DType, ElementType, Quantized, complex_of, dtype
from smelt.ir import special
from smelt.ir.attributes import (
    BOOL,
    DOT,
    DOT_ALGORITHM,
    FFT_TYPE,
    INTS,
    PRECISION,
    RAGGED_DOT,
    STRING,
    TRANSPOSE,
    DotAlgorithm,
    DotDims,
    RaggedDotDims,
    array_of,
    enum,
)
from smelt.ir.cast import cast
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.quantize import baseline, check_axis, dequantize, quantize
from smelt.ir.ops.reduce import SHORT
from smelt.shape import Shape

# ---- sums of products ----


def accumulator(lhs: DType, rhs: DType, depth: int, result: DType) -> np.dtype[Any]:
    """The type to sum `depth` products in: an exact one, one that wraps alike, the result's own, or double."""
    if depth <= SHORT and result.name in ("f32", "complex<f32>"):
        return result.numpy
    if "complex" in (lhs.kind, rhs.kind, result.kind):
        return np.dtype(np.complex128)
    if "float" in (lhs.kind, rhs.kind, result.kind):
        return np.dtype(np.float64)
    exact = lhs.bits + rhs.bits + depth.bit_length() <= 53
    return np.dtype(np.float64 if exact else np.int64)


def from_accumulator(total: Array, result: DType) -> Array:
    """A sum in its accumulator, as elements of the result. Sums of booleans are `or`."""
    if result.is_integer and total.dtype == np.float64:
        total = total.astype(np.int64)  # whole and below 2**53: see `accumulator`
    return cast(total, result)


def matmul(lhs: Array, rhs: Array, result: DType) -> Array:
    """`lhs[b, m, k] * rhs[b, k, n]`, summed over k."""
    depth = lhs.shape[-1]
    wide = accumulator(dtype(lhs.dtype), dtype(rhs.dtype), depth, result)
    left, right = lhs.astype(wide, order="C"), rhs.astype(wide, order="C")  # strides decide how NumPy sums
    if depth > SHORT or result.kind not in ("float", "complex"):
        return from_accumulator(np.matmul(left, right), result)
    return from_accumulator(_short_product(left, right), result)


def _short_product(left: Array, right: Array) -> Array:
    """The same, one k after another, rounded as on XLA's CPU: reals are fused, the parts of complex numbers are not."""
    if left.dtype.kind == "c":
        total = np.empty((*left.shape[:-1], right.shape[-1]), left.dtype)
        total.real = _in_steps(left.real, right.real) - _in_steps(left.imag, right.imag)
        total.imag = _in_steps(left.real, right.imag) + _in_steps(left.imag, right.real)
        return total
    total = np.zeros((*left.shape[:-1], right.shape[-1]), left.dtype)
    for k in range(left.shape[-1]):
        total = special.fma(left[..., k, None], right[..., None, k, :], total)
    return total


def _in_steps(left: Array, right: Array) -> Array:
    total = np.zeros((*left.shape[:-1], right.shape[-1]), left.dtype)
    for k in range(left.shape[-1]):
        total += left[..., k, None] * right[..., None, k, :]
    return total


def check_products(call: Call, lhs: Shape, rhs: Shape, result: ElementType, first: int) -> None:
    """Element types of dot_general (`first` = 13) and convolutions (27): the constraints differ only in number."""
    name = call.name.rpartition(".")[2]

    def label(number: int) -> str:
        return f"{name}_c{number - 13 + first}"

    left, right = lhs.dtype, rhs.dtype
    for shape in (lhs, rhs):
        check_axis(call, shape)
    if not isinstance(left, Quantized) and not isinstance(right, Quantized) and not isinstance(result, Quantized):
        # Upstream and XLA multiply different 8-bit floats.
        mixed = name == "dot_general" and all(each.is_float and each.bits <= 8 for each in (left, right))
        if not mixed:
            call.same_dtype(left, right, label(13), "lhs and rhs must have the same element type")
        kinds = {"float": ("float",), "complex": ("complex",)}.get(left.kind, ("bool", "int", "uint", "float"))
        call.require(
            result.kind in kinds, "", "products of lhs and rhs cannot give that result", expected=left, got=result
        )
        return
    if not isinstance(right, Quantized) or isinstance(left, Quantized) != isinstance(result, Quantized):
        call.fail(
            label(14), "rhs must be quantised, and lhs if and only if the result is", got=f"{left}, {right}, {result}"
        )
    if not isinstance(left, Quantized) or not isinstance(result, Quantized):
        call.same_dtype(right.expressed, left, label(20), "lhs must have the type that rhs expresses")
        call.same_dtype(right.expressed, result, label(20), "the result must have the type that rhs expresses")
        return
    call.require(left.axis is None, f"{name}_i1", "lhs must be quantised per tensor", got=left)
    call.same_dtype(left.storage, right.storage, label(17), "lhs and rhs must have the same storage type")
    call.same_dtype(left.expressed, right.expressed, label(18), "lhs and rhs must express the same type")
    call.same_dtype(left.expressed, result.expressed, label(18), "lhs and the result must express the same type")
    per_tensor = right.axis is not None or result.axis is None
    call.require(per_tensor, label(19), "the result of per-tensor quantised operands must be so too", got=result)


def result_element(call: Call, lhs: Shape) -> ElementType:
    """The element type of a product: what is declared, else that of lhs."""
    if call.declared is None and not isinstance(lhs.dtype, Quantized):
        return lhs.dtype
    return call.declared_shape().dtype


def in_floats(op: Op, compute: Callable[..., Array], *operands: Array) -> Array:
    """`compute(*operands, result type)` on what the operands express, quantised again where the result is."""
    types = [value.shape.dtype for value in op.operands[: len(operands)]]  # dynamic_conv has one more
    values = [dequantize(x, of) if isinstance(of, Quantized) else x for x, of in zip(operands, types, strict=True)]
    to = op.result.shape.dtype
    if isinstance(to, Quantized):
        return quantize(compute(*values, to.expressed), to)
    return compute(*values, to)


def check_precision(call: Call, label: str) -> None:
    """One precision per operand; upstream's parser takes fewer, too."""
    config = call.attrs.get("precision_config") or ()
    call.require(len(config) <= 2, label, "precision_config has one entry per operand", expected=2, got=len(config))


# ---- dot_general ----

_F8 = ("f8E3M4", "f8E4M3", "f8E4M3FN", "f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2", "f8E5M2FNUZ")
# (type of lhs and rhs, accumulation type) → (components of lhs and rhs, primitive operations) that hardware has. The
# specification counts the components of a decomposed input, upstream's verifier always says one: both are read.
_ALGORITHMS = {
    ("f16", "f16"): ((1, 1),),
    ("f16", "f32"): ((1, 1),),
    ("bf16", "bf16"): ((1, 1),),
    ("bf16", "f32"): ((1, 1), (1, 3), (1, 6), (1, 9), (2, 3), (3, 6), (3, 9)),
    ("tf32", "f32"): ((1, 1), (1, 3), (2, 3)),
    ("f32", "f32"): ((1, 1),),
    ("f64", "f64"): ((1, 1),),
    ("f8", "f32"): ((1, 1),),
}


def _infer_dot_general(call: Call) -> list[Type]:
    check_precision(call, "dot_general_c11")
    result = _product_type(call, call.attrs["dot_dimension_numbers"])
    algorithm = call.attrs.get("algorithm")
    if algorithm is not None:
        _check_algorithm(call, algorithm)
    return [result]


def _product_type(call: Call, dims: DotDims) -> Shape:
    """The type of a dot_general, or of an op that is another spelling of one."""
    lhs, rhs = call.shapes
    check_dot_dims(call, lhs, rhs, dims, "dot_general")
    element = result_element(call, lhs)
    check_products(call, lhs, rhs, element, 13)
    if isinstance(rhs.dtype, Quantized):
        zeros = all(zero == 0 for zero in rhs.dtype.zero_points)
        call.require(zeros, "dot_general_c15", "the zero points of rhs must be 0", got=rhs.dtype)
        contracted = rhs.dtype.axis in dims.rhs_contracting_dimensions
        call.require(
            not contracted, "dot_general_c16", "rhs may not be quantised along a contracted axis", got=rhs.dtype
        )
    result = Shape.of(element, dot_sizes(lhs, rhs, dims))  # dot_general_c12
    check_axis(call, result)
    return result


def check_dot_dims(call: Call, lhs: Shape, rhs: Shape, dims: DotDims | RaggedDotDims, name: str) -> None:
    """Batching and contracting dimensions pair up, exist, are distinct, and have equal sizes."""
    batch = dims.lhs_batching_dimensions, dims.rhs_batching_dimensions
    contract = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    for number, what, (left, right) in ((1, "batching", batch), (2, "contracting", contract)):
        message = f"lhs and rhs must have the same number of {what} dimensions"
        call.require(len(left) == len(right), f"{name}_c{number}", message, expected=len(left), got=len(right))
    for number, side, shape, left, right in (
        (5, "lhs", lhs, batch[0], contract[0]),
        (7, "rhs", rhs, batch[1], contract[1]),
    ):
        call.check_dims(left, shape.rank, f"{name}_c{number}", f"{side}_batching_dimensions", unique=False)
        call.check_dims(right, shape.rank, f"{name}_c{number + 1}", f"{side}_contracting_dimensions", unique=False)
        both = "batching and contracting dimensions"
        call.check_dims([*left, *right], shape.rank, f"{name}_c{3 if side == 'lhs' else 4}", f"{side} {both}")
    for number, what, (left, right) in ((9, "batching", batch), (10, "contracting", contract)):
        for i, j in zip(left, right, strict=True):
            message = f"{what} dimensions {i} of lhs and {j} of rhs must have the same size"
            call.same_size(lhs.sizes[i], rhs.sizes[j], f"{name}_c{number}", message)


def dot_sizes(lhs: Shape, rhs: Shape, dims: DotDims | RaggedDotDims) -> list[Size]:
    """Batching dimensions, then what is left of lhs and of rhs."""
    return [
        *(lhs.sizes[d] for d in dims.lhs_batching_dimensions),
        *(lhs.sizes[d] for d in _free(lhs.rank, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions)),
        *(rhs.sizes[d] for d in _free(rhs.rank, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions)),
    ]


def _free(rank: int, *taken: Sequence[int]) -> list[int]:
    return [d for d in range(rank) if not any(d in dims for dims in taken)]


def _check_algorithm(call: Call, algorithm: DotAlgorithm) -> None:
    default = all(precision == "DEFAULT" for precision in call.attrs.get("precision_config") or ())
    call.require(default, "dot_general_c21", "with an algorithm, precision_config must be DEFAULT")
    counts = algorithm.lhs_component_count, algorithm.rhs_component_count, algorithm.num_primitive_operations
    for number, what, count in zip(
        (22, 23, 24), ("lhs components", "rhs components", "operations"), counts, strict=True
    ):
        call.require(count > 0, f"dot_general_c{number}", f"the number of {what} must be positive", got=count)
    left, right = algorithm.lhs_precision_type, algorithm.rhs_precision_type
    family = "f8" if left in _F8 and right in _F8 else left if left == right else ""
    known = _ALGORITHMS.get((family, algorithm.accumulation_type), ())
    imprecise = algorithm.allow_imprecise_accumulation and family != "f8"
    if imprecise or counts[0] != counts[1] or (counts[0], counts[2]) not in known:
        call.fail("", "no hardware has such an algorithm", expected="a known dot algorithm", got=algorithm)


def dot_general(lhs: Array, rhs: Array, dims: DotDims | RaggedDotDims, result: DType) -> Array:
    """Products of slices of `lhs` and `rhs`, summed over the contracting dimensions."""
    left = _free(lhs.ndim, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions)
    right = _free(rhs.ndim, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions)
    batch = [lhs.shape[d] for d in dims.lhs_batching_dimensions]
    rows, columns = [lhs.shape[d] for d in left], [rhs.shape[d] for d in right]
    depth = prod(lhs.shape[d] for d in dims.lhs_contracting_dimensions)
    a = lhs.transpose([*dims.lhs_batching_dimensions, *left, *dims.lhs_contracting_dimensions])
    b = rhs.transpose([*dims.rhs_batching_dimensions, *dims.rhs_contracting_dimensions, *right])
    product = matmul(a.reshape(prod(batch), prod(rows), depth), b.reshape(prod(batch), depth, prod(columns)), result)
    return product.reshape([*batch, *rows, *columns])


def _dot_general(_: Frame, op: Op, lhs: Array, rhs: Array) -> Array:
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    return in_floats(op, lambda a, b, to: dot_general(a, b, dims, to), lhs, rhs)


# ---- dot: vectors and matrices ----


def _infer_dot(call: Call) -> list[Type]:
    lhs, rhs = call.shapes
    check_precision(call, "dot")
    if not (1 <= lhs.rank <= 2 and 1 <= rhs.rank <= 2):
        call.fail("dot", "lhs and rhs must be vectors or matrices", got=f"{lhs}, {rhs}")
    return [_product_type(call, dot_dims(lhs.rank))]


def dot_dims(rank: int) -> DotDims:
    """`dot` as a dot_general, for a lhs of that rank: its last dimension against the first of rhs."""
    return DotDims((), (), (rank - 1,), (0,))


def _dot(_: Frame, op: Op, lhs: Array, rhs: Array) -> Array:
    return in_floats(op, lambda a, b, to: dot_general(a, b, dot_dims(lhs.ndim), to), lhs, rhs)


# ---- einsum ----

_TERM = re.compile(r"[a-zA-Z]*(?:\.\.\.[a-zA-Z]*)?")


def _infer_einsum(call: Call) -> list[Type]:
    shapes = call.shapes
    terms, result = _einsum_terms(call, shapes)
    sizes: dict[str, Size] = {}
    for shape, labels in zip(shapes, terms, strict=True):
        for label, size in zip(labels, shape.sizes, strict=True):
            call.same_size(sizes.setdefault(label, size), size, "einsum", f"every {label} must have the same size")
    if len(set(result)) != len(result) or any(label not in sizes for label in result):
        call.fail("einsum", "the result names every label once, and only labels of the operands", got=result)
    element = result_element(call, shapes[0])
    if len(shapes) == 2:
        check_products(call, shapes[0], shapes[1], element, 13)
    if any(isinstance(each, Quantized) for each in (element, *(shape.dtype for shape in shapes))):
        call.fail("einsum", "it takes no quantised tensors", got=shapes)
    kind, wanted = element.kind, shapes[0].dtype.kind
    call.require(kind == wanted or len(shapes) == 2, "einsum", "the result must be of the operand's kind", got=element)
    return [Shape.of(element, [sizes[label] for label in result])]


def _einsum_terms(call: Call, shapes: Sequence[Shape]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand's dimensions and of the result's; those under `...` are numbered from the right."""
    config: str = call.attrs["einsum_config"]
    left, arrow, right = config.replace(" ", "").partition("->")
    terms = left.split(",")
    form = "ab,bc->ac" if len(shapes) == 2 else "ab->a"
    if not arrow or len(terms) != len(shapes) or not all(_TERM.fullmatch(term) for term in (*terms, right)):
        call.fail("einsum", "not a configuration", expected=f"such as {form!r}", got=repr(config))
    ranks = [shape.rank for shape in shapes]
    for term, rank in zip(terms, ranks, strict=True):
        named = len(term.replace("...", ""))
        if named > rank or (named < rank and "..." not in term):
            call.fail("einsum", "a term has one label per dimension", expected=f"rank {rank}", got=repr(term))
    return einsum_labels(config, ranks)


def einsum_labels(config: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The labels of the dimensions of operands of these ranks, and of the result's."""
    left, _, right = config.replace(" ", "").partition("->")
    hidden = 0
    operands = []
    for term, rank in zip(left.split(","), ranks, strict=True):
        before, dots, after = term.partition("...")
        under = rank - len(before) - len(after)
        if dots:
            hidden = max(hidden, under)
        operands.append([*before, *_dots(under), *after])
    before, dots, after = right.partition("...")
    return operands, [*before, *(_dots(hidden) if dots else ()), *after]


def _dots(count: int) -> list[str]:
    return [f"...{i}" for i in reversed(range(count))]


def _einsum(_: Frame, op: Op, *operands: Array) -> Array:
    element = op.result.shape.element
    types = [dtype(x.dtype) for x in operands]
    wide = accumulator(types[0], types[-1], prod(x.size for x in operands), element)
    total = np.einsum(op.attrs["einsum_config"], *(x.astype(wide, order="C") for x in operands), optimize=True)
    return from_accumulator(np.asarray(total), element)


# ---- cholesky and triangular_solve ----


def _check_floats(call: Call, shape: Shape, label: str) -> None:
    element = shape.dtype
    quantized = isinstance(element, Quantized) and element.axis is None
    message = "it takes floats, complex numbers or per-tensor quantised tensors"
    call.require(quantized or element.is_float or element.is_complex, label, message, got=shape)


def _like(call: Call, shape: Shape, label: str) -> Shape:
    """The operand's type; a quantised result may have a scale of its own."""
    if not isinstance(shape.dtype, Quantized) or call.declared is None:
        return shape
    wanted = call.declared_shape().dtype
    if not isinstance(wanted, Quantized) or baseline(wanted) != baseline(shape.dtype):
        call.fail(label, "the result must be quantised as the operand is", expected=shape.dtype, got=wanted)
    return shape.with_dtype(wanted)


def _infer_cholesky(call: Call) -> list[Type]:
    a = call.shape(0)
    _check_floats(call, a, "cholesky_i1")
    call.require(a.rank >= 2, "cholesky_c2", "a must have at least 2 dimensions", got=a)
    call.same_size(a.sizes[-2], a.sizes[-1], "cholesky_c3", "the last two sizes must be equal")
    return [_like(call, a, "cholesky_c1")]


def _cholesky(_: Frame, op: Op, a: Array) -> Array:
    return in_floats(op, lambda x, to: cholesky(x, op.attrs["lower"], to), a)


def cholesky(a: Array, lower: bool, result: DType) -> Array:
    """L with `L @ L^H == a` (or its adjoint, where not `lower`), from one triangle of `a`; the other triangle is 0.

    Where `a` is not positive definite, nan comes out.
    """
    wide = a.astype(result.wide)
    source = wide if lower else wide.swapaxes(-1, -2).conj()
    factor = np.zeros(source.shape, result.wide)
    for j in range(source.shape[-1]):
        row = factor[..., j, :j]
        pivot = np.sqrt((source[..., j, j] - (row * row.conj()).sum(axis=-1)).real)
        below = source[..., j + 1 :, j] - (factor[..., j + 1 :, :j] @ row.conj()[..., None])[..., 0]
        factor[..., j, j] = pivot
        factor[..., j + 1 :, j] = below / pivot[..., None]
    return cast(factor if lower else factor.swapaxes(-1, -2).conj(), result)


def _infer_triangular_solve(call: Call) -> list[Type]:
    a, b = call.shapes
    for shape, label in ((a, "triangular_solve_i1"), (b, "triangular_solve_i2")):
        _check_floats(call, shape, label)
    if isinstance(a.dtype, Quantized) and isinstance(b.dtype, Quantized):
        same = baseline(a.dtype) == baseline(b.dtype)
        call.require(same, "triangular_solve_c1", "a and b must be quantised alike", expected=a.dtype, got=b.dtype)
    else:
        call.same_dtype(a.dtype, b.dtype, "triangular_solve_c1", "a and b must have the same element type")
    call.require(2 <= a.rank == b.rank, "triangular_solve_c2", "a and b have one rank, of at least 2", got=f"{a}, {b}")
    call.same_size(a.sizes[-2], a.sizes[-1], "triangular_solve_c3", "a must hold square matrices")
    call.same_sizes(a.sizes[:-2], b.sizes[:-2], "triangular_solve_c3", "a and b must have the same batch dimensions")
    side = b.sizes[-2] if call.attrs["left_side"] else b.sizes[-1]
    call.same_size(a.sizes[-1], side, "triangular_solve_c3", "a must fit the side of b")
    if call.attrs["transpose_a"] == "TRANSPOSE_INVALID":
        call.fail("triangular_solve_i6", "transpose_a is invalid", expected="NO_TRANSPOSE, TRANSPOSE or ADJOINT")
    return [_like(call, b, "triangular_solve_c4")]


def _triangular_solve(_: Frame, op: Op, a: Array, b: Array) -> Array:
    def compute(x: Array, y: Array, to: DType) -> Array:
        return triangular_solve(
            x,
            y,
            left_side=op.attrs["left_side"],
            lower=op.attrs["lower"],
            unit_diagonal=op.attrs["unit_diagonal"],
            transpose_a=op.attrs["transpose_a"],
            result=to,
        )

    return in_floats(op, compute, a, b)


def triangular_solve(
    a: Array, b: Array, *, left_side: bool, lower: bool, unit_diagonal: bool, transpose_a: str, result: DType
) -> Array:
    """x with `op(a) @ x == b`, or `x @ op(a) == b`. Of `a` only one triangle is read, and no diagonal that is unit."""
    matrix, right = a.astype(result.wide), b.astype(result.wide)
    if transpose_a == "ADJOINT":
        matrix = matrix.conj()
    turned = (transpose_a != "NO_TRANSPOSE") != (not left_side)  # x @ m == b is m^T @ x^T == b^T
    if turned:
        matrix = matrix.swapaxes(-1, -2)
    if not left_side:
        right = right.swapaxes(-1, -2)
    size = matrix.shape[-1]
    forward = lower != turned
    solved = np.zeros(right.shape, result.wide)
    for i in range(size) if forward else reversed(range(size)):
        known = slice(0, i) if forward else slice(i + 1, size)
        rest = right[..., i, :] - (matrix[..., i, None, known] @ solved[..., known, :])[..., 0, :]
        solved[..., i, :] = rest if unit_diagonal else rest / matrix[..., i, i, None]
    return cast(solved if left_side else solved.swapaxes(-1, -2), result)


# ---- fft ----


def _infer_fft(call: Call) -> list[Type]:
    operand = call.shape(0)
    kind: str = call.attrs["fft_type"]
    length: tuple[int, ...] = tuple(call.attrs["fft_length"])
    call.require(1 <= len(length) <= 3, "fft_c3", "fft_length has 1 to 3 entries", got=length)
    call.require(
        len(length) <= operand.rank, "fft_c1", "fft_length has more entries than the operand dimensions", got=length
    )
    call.require(min(length) >= 0, "fft_i3", "no entry of fft_length is negative", got=length)
    element = operand.dtype
    outer, inner = operand.sizes[: -len(length)], operand.sizes[-len(length) :]
    if kind == "RFFT":
        if not isinstance(element, DType) or element.name not in ("f32", "f64"):
            call.fail("fft_c2", "RFFT takes f32 or f64", got=operand)
        call.same_sizes(length, inner, "fft_c4", "the operand's last sizes must be fft_length")
        return [Shape.of(complex_of(element), [*outer, *length[:-1], _half_length(length[-1])])]
    if not isinstance(element, DType) or not element.is_complex:
        call.fail("fft_c2", f"{kind} takes complex numbers", got=operand)
    if kind != "IRFFT":
        return [operand]
    call.same_sizes(length[:-1], inner[:-1], "fft_c4", "the operand's last sizes but one must be fft_length")
    call.same_size(
        _half_length(length[-1]), inner[-1], "fft_c5", "the operand's last size must be that of fft_length, halved"
    )
    return [Shape.of(element.part, [*outer, *length])]


def _half_length(length: int) -> int:
    """How many complex numbers describe the transform of `length` real ones."""
    return length // 2 + 1 if length else 0


def _fft(_: Frame, op: Op, operand: Array) -> Array:
    kind, length = op.attrs["fft_type"], op.attrs["fft_length"]
    element = op.result.shape.element
    if 0 in operand.shape:  # NumPy transforms nothing that is empty, and fft_c5 leaves the result empty, too
        last = () if kind in ("FFT", "IFFT") else (_half_length(length[-1]) if kind == "RFFT" else length[-1],)
        return np.zeros(operand.shape[: operand.ndim - len(last)] + last, element.numpy)
    axes = tuple(range(operand.ndim - len(length), operand.ndim))
    wide = operand.astype(np.float64 if kind == "RFFT" else np.complex128)
    out: Array
    match kind:
        case "FFT":
            out = np.fft.fftn(wide, axes=axes)
        case "IFFT":
            out = np.fft.ifftn(wide, axes=axes)
        case "RFFT":
            out = np.fft.rfftn(wide, axes=axes)
        case _:
            out = np.fft.irfftn(wide, s=length, axes=axes)
    return cast(np.asarray(out), element)


# ---- ragged_dot ----


def ragged_mode(dims: RaggedDotDims) -> str:
    """What kind of dimension of lhs is ragged."""
    ragged = dims.lhs_ragged_dimensions[0]
    if ragged in dims.lhs_batching_dimensions:
        return "batch"
    return "contracting" if ragged in dims.lhs_contracting_dimensions else "free"


def ragged_prefix(rank: int, dims: RaggedDotDims) -> list[int]:
    """The dimensions of lhs outside the ragged one, for which group_sizes may differ."""
    ragged = dims.lhs_ragged_dimensions[0]
    batch, contract = list(dims.lhs_batching_dimensions), list(dims.lhs_contracting_dimensions)
    match ragged_mode(dims):
        case "batch":
            return batch[: batch.index(ragged)]
        case "contracting":
            return batch + contract[: contract.index(ragged)]
        case _:
            return batch + [d for d in _free(rank, batch, contract) if d < ragged]


def grouped_axes(op: Op) -> tuple[tuple[int], tuple[int]] | None:
    """(group, column) axes of the right operand of a grouped GEMM: rows [row, k], sorted by group, by one matrix for
    each group. None for other ragged products."""
    dims: RaggedDotDims = op.attrs["ragged_dot_dimension_numbers"]
    lhs, rhs, sizes = (value.shape for value in op.operands)
    plain = (lhs.rank, rhs.rank, sizes.rank) == (2, 3, 1) and not dims.lhs_batching_dimensions
    if not plain or dims.lhs_contracting_dimensions != (1,) or ragged_mode(dims) != "free":
        return None
    (group,), (summed,) = dims.rhs_group_dimensions, dims.rhs_contracting_dimensions
    return (group,), (3 - group - summed,)


def _infer_ragged_dot(call: Call) -> list[Type]:
    lhs, rhs, groups = call.shapes
    dims: RaggedDotDims = call.attrs["ragged_dot_dimension_numbers"]
    check_precision(call, "ragged_dot")
    check_dot_dims(call, lhs, rhs, dims, "ragged_dot")
    call.require(len(dims.lhs_ragged_dimensions) == 1, "ragged_dot", "lhs has exactly one ragged dimension", got=dims)
    call.check_dims(dims.lhs_ragged_dimensions, lhs.rank, "ragged_dot", "lhs_ragged_dimensions")
    taken = (*dims.rhs_batching_dimensions, *dims.rhs_contracting_dimensions)
    call.check_dims(
        (*dims.rhs_group_dimensions, *taken), rhs.rank, "ragged_dot", "rhs_group_dimensions and the others of rhs"
    )
    call.require(groups.dtype.is_integer and groups.rank >= 1, "ragged_dot", "group_sizes are integers", got=groups)
    if groups.rank > 1:
        outer = [lhs.sizes[d] for d in ragged_prefix(lhs.rank, dims)]
        call.same_sizes(
            outer, groups.sizes[:-1], "ragged_dot", "group_sizes must fit the dimensions outside the ragged one"
        )
    mode = ragged_mode(dims)
    wanted = 1 if mode == "free" else 0
    if len(dims.rhs_group_dimensions) != wanted:
        message = "rhs has a group dimension if and only if the ragged dimension is neither batching nor contracting"
        call.fail("ragged_dot", message, expected=wanted, got=len(dims.rhs_group_dimensions))
    sizes = dot_sizes(lhs, rhs.with_sizes(_ungroup(rhs.sizes, dims)), inner_dims(dims))
    if mode == "contracting":
        sizes = [groups.sizes[-1], *sizes]
    if mode == "free":
        count = rhs.sizes[dims.rhs_group_dimensions[0]]
        call.same_size(groups.sizes[-1], count, "ragged_dot", "rhs must have one slice per group")
    element = result_element(call, lhs)
    check_products(call, lhs, rhs, element, 13)
    call.require(not isinstance(lhs.dtype, Quantized), "ragged_dot", "it takes no quantised tensors", got=lhs)
    call.require(not isinstance(rhs.dtype, Quantized), "ragged_dot", "it takes no quantised tensors", got=rhs)
    return [Shape.of(element, sizes)]


def _ungroup(sizes: Sequence[Size], dims: RaggedDotDims) -> list[Size]:
    return [size for d, size in enumerate(sizes) if d not in dims.rhs_group_dimensions]


def inner_dims(dims: RaggedDotDims) -> DotDims:
    """The dimension numbers once the group dimension of rhs is gone."""

    def renumber(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(d - sum(group < d for group in dims.rhs_group_dimensions) for d in numbers)

    return DotDims(
        dims.lhs_batching_dimensions,
        renumber(dims.rhs_batching_dimensions),
        dims.lhs_contracting_dimensions,
        renumber(dims.rhs_contracting_dimensions),
    )


def _ragged_dot(_: Frame, op: Op, lhs: Array, rhs: Array, group_sizes: Array) -> Array:
    dims: RaggedDotDims = op.attrs["ragged_dot_dimension_numbers"]
    element = op.result.shape.element
    inner = inner_dims(dims)
    match ragged_mode(dims):
        case "batch":
            return dot_general(lhs, rhs, inner, element)
        case "contracting":
            zero = np.zeros((), lhs.dtype), np.zeros((), rhs.dtype)
            into = dict(zip(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions, strict=True))
            into |= dict(zip(dims.lhs_batching_dimensions, dims.rhs_batching_dimensions, strict=True))
            parts = []
            for axes, mask in _groups(lhs.shape, dims, group_sizes):
                left = np.where(_align_mask(mask, axes, lhs.ndim), lhs, zero[0])
                right = np.where(_align_mask(mask, [into[d] for d in axes], rhs.ndim), rhs, zero[1])
                parts.append(dot_general(left, right, inner, element))
            empty = dot_general(lhs, rhs, inner, element)[None][:0]
            return np.stack(parts) if parts else empty
        case _:
            group = dims.rhs_group_dimensions[0]
            batch, contract = dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions
            order = [*batch, *_free(lhs.ndim, batch, contract)]  # the first dimensions of the result
            total = np.zeros(_product_shape(lhs, rhs, dims), element.numpy)
            for i, (axes, mask) in enumerate(_groups(lhs.shape, dims, group_sizes)):
                part = dot_general(lhs, np.take(rhs, i, group), inner, element)
                total = np.where(_align_mask(mask, [order.index(d) for d in axes], part.ndim), part, total)
            return total


def _product_shape(lhs: Array, rhs: Array, dims: RaggedDotDims) -> list[int]:
    left = [
        *dims.lhs_batching_dimensions,
        *_free(lhs.ndim, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
    ]
    taken = dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions, dims.rhs_group_dimensions
    return [*(lhs.shape[d] for d in left), *(rhs.shape[d] for d in _free(rhs.ndim, *taken))]


def _groups(shape: tuple[int, ...], dims: RaggedDotDims, group_sizes: Array) -> list[tuple[list[int], Array]]:
    """For each group, dimensions of lhs and a mask over them: which positions of the ragged dimension belong to it."""
    ragged = dims.lhs_ragged_dimensions[0]
    axes = [*ragged_prefix(len(shape), dims), ragged]
    sizes = np.asarray(group_sizes).astype(np.int64)
    if sizes.ndim == 1:
        axes = [ragged]
    ends = np.cumsum(sizes, axis=-1)[..., None]
    positions = np.arange(shape[ragged])
    inside = (positions >= ends - sizes[..., None]) & (positions < ends)  # [outer..., group, position]
    return [(axes, inside[..., i, :]) for i in range(sizes.shape[-1])]


def _align_mask(mask: Array, axes: Sequence[int], rank: int) -> Array:
    """A mask whose dimensions are `axes`, shaped to broadcast against an array of that rank."""
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    around = [1] * rank
    for axis, size in zip(axes, mask.shape, strict=True):
        around[axis] = size
    return mask.transpose(order).reshape(around)


_CHLO_PRECISION = array_of(enum("precision", "DEFAULT", "HIGH", "HIGHEST", dialect="chlo"))

ROWS: list[OpDef] = [
    OpDef(
        "stablehlo.dot_general",
        "lhs rhs",
        _infer_dot_general,
        _dot_general,
        (
            Attr("dot_dimension_numbers", DOT),
            Attr("precision_config", PRECISION, None),
            Attr("algorithm", DOT_ALGORITHM, None),
        ),
    ),
    OpDef("stablehlo.dot", "lhs rhs", _infer_dot, _dot, (Attr("precision_config", PRECISION, None),)),
    OpDef("stablehlo.einsum", "lhs rhs", _infer_einsum, _einsum, (Attr("einsum_config", STRING),)),
    OpDef("stablehlo.unary_einsum", "operand", _infer_einsum, _einsum, (Attr("einsum_config", STRING),)),
    OpDef("stablehlo.cholesky", "a", _infer_cholesky, _cholesky, (Attr("lower", BOOL, False),)),
    OpDef(
        "stablehlo.triangular_solve",
        "a b",
        _infer_triangular_solve,
        _triangular_solve,
        (
            Attr("left_side", BOOL),
            Attr("lower", BOOL),
            Attr("unit_diagonal", BOOL),
            Attr("transpose_a", TRANSPOSE),
        ),
    ),
    OpDef("stablehlo.fft", "operand", _infer_fft, _fft, (Attr("fft_type", FFT_TYPE), Attr("fft_length", INTS))),
    OpDef(
        "chlo.ragged_dot",
        "lhs rhs group_sizes",
        _infer_ragged_dot,
        _ragged_dot,
        (Attr("ragged_dot_dimension_numbers", RAGGED_DOT), Attr("precision_config", _CHLO_PRECISION, None)),
    ),
]
