"""Tensor: an immutable, lazy value with named axes. Its methods call the functions in `ops/`.

A Tensor is a Shape and an IR value. `numpy`, `item` and `realize` compute it; until then ops are only recorded. Shapes
are proven when an op is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn, final

import numpy as np

from smelt.dtype import Array, DType
from smelt.ir.core import Value
from smelt.shape import Shape
from smelt.tensor import grad as differentiating
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import Axis, Dim, SizeLike, dim, find_axis
from smelt.tensor.ops import contract as contracting
from smelt.tensor.ops import elementwise
from smelt.tensor.ops import index as indexing
from smelt.tensor.ops import move as moving
from smelt.tensor.ops import reduce as reducing
from smelt.tensor.ops.contract import Padding, Precision
from smelt.tensor.ops.elementwise import TensorLike
from smelt.tensor.ops.reduce import Axes
from smelt.tensor.record import HOOKS, Leaf, data_of, is_known, operand, tensor_of
from smelt.tensor.recovery import guard_methods, is_poison
from smelt.tensor.source import here, refuse

SHOWN = 6  # elements of a row, and rows, that a tensor shows of itself


@final
class Tensor:
    """A value with a Shape: data from `smelt.tensor`, the result of an op, or an argument of a traced function.

    >>> from smelt.tensor import tensor
    >>> x = tensor([[1.0, 2.0], [3.0, 4.0]], "b d")
    >>> (x * 2.0).sum("d").numpy().tolist()
    [6.0, 14.0]
    """

    __slots__ = ("shape", "value")
    __array_ufunc__ = None  # NumPy leaves mixed arithmetic to us
    __hash__ = None  # type: ignore[assignment]  # == compares elements

    shape: Shape  # with the axes' names
    value: Value  # in the IR, where axes have none; `jit.realise` puts a computed array in its place

    def __init__(self, value: Value, shape: Shape) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "shape", shape)

    def __setattr__(self, name: str, _: object) -> NoReturn:
        raise AttributeError(f"a Tensor is immutable: {name!r} cannot be set")

    # ---- properties ----

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.shape.element

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self.shape.rank

    @property
    def axes(self) -> tuple[str, ...] | None:
        """The names of the axes; None where they have none."""
        return self.shape.names

    @with_argument_errors
    def size(self, axis: Axis) -> int | Dim:
        """The size of an axis: a number, or a Dim (a dynamic dimension) for arithmetic and comparisons."""
        if is_poison(self):
            return self.sizes[0]
        return dim(self.shape.sizes[find_axis("size", operand("operand", self), axis)])

    @property
    def sizes(self) -> tuple[int | Dim, ...]:
        """The sizes of all axes."""
        return tuple(dim(size) for size in self.shape.sizes)

    def __repr__(self) -> str:
        array = data_of(self.value)
        return f"Tensor({self.shape}, {'lazy' if array is None else f'[{_format_row(array.flat)}]'})"

    def _repr_html_(self) -> str:
        """For notebooks: the shape and, where the tensor is computed, the first rows."""
        from html import escape

        array = data_of(self.value)
        flat = np.zeros(0) if array is None else np.atleast_1d(array)
        rows = [flat[index] for index in islice(np.ndindex(flat.shape[:-1]), SHOWN)]
        lines = [_format_row(row) for row in rows if row.size] + ["…"] * (flat.size > sum(row.size for row in rows))
        cells = "".join(f"<tr><td><code>{escape(line)}</code></td></tr>" for line in lines)
        return f"<table><caption>{escape(f'Tensor({self.shape})')}</caption>{cells}</table>"

    def __len__(self) -> int:
        if not self.shape.rank:
            raise TypeError("a scalar has no length")
        size = self.shape.sizes[0]
        return size if isinstance(size, int) else int(Dim(size))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        if not is_known(self.value):
            refuse(
                "the truth of a tensor depends on its data, which a trace does not have",
                operand("operand", self),
                remedy="smelt.where(…) for elements, smelt.cond(…) for a branch",
            )
        return bool(self.item())

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, _: Any) -> Tensor:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.numpy(), self.shape)

    # ---- numbers ----

    def numpy(self) -> Array:
        """The elements as a read-only NumPy array. Views share its memory."""
        HOOKS.realise(self)
        array = data_of(self.value)
        assert array is not None
        return array

    def item(self) -> Any:
        """The only element, as a Python number."""
        array = self.numpy()
        if array.size != 1:
            refuse(f"item: {array.size} elements, not one", operand("operand", self))
        return array.reshape(()).item()

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    # ---- derivatives ----

    def grad(self, parameters: Any) -> Any:
        """The gradient of this scalar by every tensor of a structure, in the same structure.

        >>> from smelt.tensor import tensor
        >>> x = tensor([1.0, 2.0], "d")
        >>> (x * x).sum().grad(x).tolist()
        [2.0, 4.0]
        """
        return differentiating.grad_of(self, parameters)

    # ---- operators ----

    def __add__(self, other: TensorLike) -> Tensor:
        return elementwise.add(self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return elementwise.add(other, self)

    def __sub__(self, other: TensorLike) -> Tensor:
        return elementwise.subtract(self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return elementwise.subtract(other, self)

    def __mul__(self, other: TensorLike) -> Tensor:
        return elementwise.multiply(self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return elementwise.multiply(other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return elementwise.divide(self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return elementwise.divide(other, self)

    def __floordiv__(self, other: TensorLike) -> Tensor:
        return elementwise.floor_divide(self, other)

    def __rfloordiv__(self, other: TensorLike) -> Tensor:
        return elementwise.floor_divide(other, self)

    def __mod__(self, other: TensorLike) -> Tensor:
        return elementwise.remainder(self, other)

    def __rmod__(self, other: TensorLike) -> Tensor:
        return elementwise.remainder(other, self)

    def __pow__(self, other: TensorLike) -> Tensor:
        return elementwise.power(self, other)

    def __rpow__(self, other: TensorLike) -> Tensor:
        return elementwise.power(other, self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return contracting.matmul(self, other)

    def __neg__(self) -> Tensor:
        return elementwise.negative(self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return elementwise.absolute(self)

    def __invert__(self) -> Tensor:
        return elementwise.bitwise_not(self)

    def __and__(self, other: TensorLike) -> Tensor:
        return elementwise.bitwise_and(self, other)

    def __rand__(self, other: TensorLike) -> Tensor:
        return elementwise.bitwise_and(other, self)

    def __or__(self, other: TensorLike) -> Tensor:
        return elementwise.bitwise_or(self, other)

    def __ror__(self, other: TensorLike) -> Tensor:
        return elementwise.bitwise_or(other, self)

    def __xor__(self, other: TensorLike) -> Tensor:
        return elementwise.bitwise_xor(self, other)

    def __rxor__(self, other: TensorLike) -> Tensor:
        return elementwise.bitwise_xor(other, self)

    def __lshift__(self, other: TensorLike) -> Tensor:
        return elementwise.shift_left(self, other)

    def __rshift__(self, other: TensorLike) -> Tensor:
        return elementwise.shift_right(self, other)

    def __eq__(self, other: TensorLike) -> Tensor:  # type: ignore[override]
        return elementwise.equal(self, other)

    def __ne__(self, other: TensorLike) -> Tensor:  # type: ignore[override]
        return elementwise.not_equal(self, other)

    def __lt__(self, other: TensorLike) -> Tensor:
        return elementwise.less(self, other)

    def __le__(self, other: TensorLike) -> Tensor:
        return elementwise.less_equal(self, other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return elementwise.greater(self, other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return elementwise.greater_equal(self, other)

    def __getitem__(self, index: Any) -> Tensor:
        return moving.getitem(self, index)

    # ---- elementwise ----

    def exp(self) -> Tensor:
        """e to the power of x."""
        return elementwise.function("exp", self)

    def expm1(self) -> Tensor:
        """exp(x) - 1, exact near 0."""
        return elementwise.function("expm1", self)

    def log(self) -> Tensor:
        """The natural logarithm."""
        return elementwise.function("log", self)

    def log1p(self) -> Tensor:
        """log(1 + x), exact near 0."""
        return elementwise.function("log1p", self)

    def sqrt(self) -> Tensor:
        """The square root."""
        return elementwise.function("sqrt", self)

    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)"""
        return elementwise.function("rsqrt", self)

    def cbrt(self) -> Tensor:
        """The cube root."""
        return elementwise.function("cbrt", self)

    def sin(self) -> Tensor:
        """The sine."""
        return elementwise.function("sin", self)

    def cos(self) -> Tensor:
        """The cosine."""
        return elementwise.function("cos", self)

    def tan(self) -> Tensor:
        """The tangent."""
        return elementwise.function("tan", self)

    def asin(self) -> Tensor:
        """The inverse of sin."""
        return elementwise.function("asin", self)

    def acos(self) -> Tensor:
        """The inverse of cos."""
        return elementwise.function("acos", self)

    def atan(self) -> Tensor:
        """The inverse of tan."""
        return elementwise.function("atan", self)

    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
        return elementwise.function("sinh", self)

    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
        return elementwise.function("cosh", self)

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        return elementwise.function("tanh", self)

    def asinh(self) -> Tensor:
        """The inverse of sinh."""
        return elementwise.function("asinh", self)

    def acosh(self) -> Tensor:
        """The inverse of cosh."""
        return elementwise.function("acosh", self)

    def atanh(self) -> Tensor:
        """The inverse of tanh."""
        return elementwise.function("atanh", self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))"""
        return elementwise.function("sigmoid", self)

    def erf(self) -> Tensor:
        """The error function."""
        return elementwise.function("erf", self)

    def erfc(self) -> Tensor:
        """1 - erf(x)"""
        return elementwise.function("erfc", self)

    def erf_inv(self) -> Tensor:
        """The inverse of erf."""
        return elementwise.function("erf_inv", self)

    def lgamma(self) -> Tensor:
        """The logarithm of |gamma(x)|."""
        return elementwise.function("lgamma", self)

    def digamma(self) -> Tensor:
        """The derivative of lgamma."""
        return elementwise.function("digamma", self)

    def ceil(self) -> Tensor:
        """Rounded up."""
        return elementwise.function("ceil", self)

    def round(self) -> Tensor:
        """Rounded to the nearest integer, halves to even."""
        return elementwise.function("round", self)

    def isfinite(self) -> Tensor:
        """Whether elements are neither infinite nor nan."""
        return elementwise.function("isfinite", self)

    def isinf(self) -> Tensor:
        """Whether elements are infinite."""
        return elementwise.function("isinf", self)

    def popcount(self) -> Tensor:
        """How many bits are 1."""
        return elementwise.function("popcount", self)

    def count_leading_zeros(self) -> Tensor:
        """How many bits are 0 before the first 1."""
        return elementwise.function("count_leading_zeros", self)

    def real(self) -> Tensor:
        """The real part."""
        return elementwise.function("real", self)

    def imag(self) -> Tensor:
        """The imaginary part."""
        return elementwise.function("imag", self)

    def floor(self) -> Tensor:
        """Rounded down."""
        return elementwise.floor(self)

    def trunc(self) -> Tensor:
        """Rounded toward zero."""
        return elementwise.trunc(self)

    def isnan(self) -> Tensor:
        """Whether elements are not numbers."""
        return elementwise.isnan(self)

    def abs(self) -> Tensor:
        """|x|"""
        return elementwise.absolute(self)

    def sign(self) -> Tensor:
        """-1, 0 or 1."""
        return elementwise.sign(self)

    def square(self) -> Tensor:
        """x * x"""
        return elementwise.square(self)

    def reciprocal(self) -> Tensor:
        """1 / x"""
        return elementwise.reciprocal(self)

    def conj(self) -> Tensor:
        """The complex conjugate."""
        return elementwise.conj(self)

    def relu(self) -> Tensor:
        """max(x, 0)"""
        return elementwise.relu(self)

    def relu6(self) -> Tensor:
        """Held between 0 and 6."""
        return elementwise.relu6(self)

    def selu(self) -> Tensor:
        """The self-normalising ELU."""
        return elementwise.selu(self)

    def silu(self) -> Tensor:
        """x * sigmoid(x)"""
        return elementwise.silu(self)

    def hard_sigmoid(self) -> Tensor:
        """x / 6 + 1 / 2 held between 0 and 1."""
        return elementwise.hard_sigmoid(self)

    def hard_swish(self) -> Tensor:
        """x * hard_sigmoid(x)"""
        return elementwise.hard_swish(self)

    def softplus(self) -> Tensor:
        """log(1 + exp(x))"""
        return elementwise.softplus(self)

    def log_sigmoid(self) -> Tensor:
        """log(sigmoid(x))"""
        return elementwise.log_sigmoid(self)

    def softsign(self) -> Tensor:
        """x / (1 + |x|)"""
        return elementwise.softsign(self)

    def mish(self) -> Tensor:
        """x * tanh(softplus(x))"""
        return elementwise.mish(self)

    def logical_not(self) -> Tensor:
        """The opposite of booleans."""
        return elementwise.logical_not(self)

    def logical_and(self, other: Tensor) -> Tensor:
        """Both of two booleans."""
        return elementwise.logical_and(self, other)

    def logical_or(self, other: Tensor) -> Tensor:
        """At least one of two booleans."""
        return elementwise.logical_or(self, other)

    def logical_xor(self, other: Tensor) -> Tensor:
        """Exactly one of two booleans."""
        return elementwise.logical_xor(self, other)

    def maximum(self, other: TensorLike) -> Tensor:
        """The larger of each two elements."""
        return elementwise.maximum(self, other)

    def minimum(self, other: TensorLike) -> Tensor:
        """The smaller of each two elements."""
        return elementwise.minimum(self, other)

    def clamp(self, low: TensorLike | None = None, high: TensorLike | None = None) -> Tensor:
        """Held between low and high."""
        return elementwise.clamp(self, low, high)

    def leaky_relu(self, slope: float = 0.01) -> Tensor:
        """x, times the slope where it is negative."""
        return elementwise.leaky_relu(self, slope)

    def elu(self, alpha: float = 1.0) -> Tensor:
        """x, or alpha * (exp(x) - 1) where it is negative."""
        return elementwise.elu(self, alpha)

    def celu(self, alpha: float = 1.0) -> Tensor:
        """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)"""
        return elementwise.celu(self, alpha)

    def gelu(self, approximate: bool = False) -> Tensor:
        """x * Phi(x), Phi the normal distribution function."""
        return elementwise.gelu(self, approximate)

    def to(self, element: str | DType) -> Tensor:
        """The elements converted to another type."""
        return elementwise.to(self, element)

    def bitcast(self, element: str | DType) -> Tensor:
        """The same bits read as another type of the same width."""
        return elementwise.bitcast(self, element)

    # ---- along axes ----

    def sum(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """Added up."""
        return reducing.sum(self, axes, keep=keep)

    def prod(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """Multiplied."""
        return reducing.prod(self, axes, keep=keep)

    def max(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """The largest element."""
        return reducing.max(self, axes, keep=keep)

    def min(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """The smallest element."""
        return reducing.min(self, axes, keep=keep)

    def all(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """Whether all hold."""
        return reducing.all(self, axes, keep=keep)

    def any(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """Whether one holds."""
        return reducing.any(self, axes, keep=keep)

    def mean(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """The average, of floats."""
        return reducing.mean(self, axes, keep=keep)

    def norm(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """The Euclidean length."""
        return reducing.norm(self, axes, keep=keep)

    def logsumexp(self, axes: Axes = None, *, keep: bool = False) -> Tensor:
        """log(sum(exp(x)))"""
        return reducing.logsumexp(self, axes, keep=keep)

    def var(self, axes: Axes = None, *, keep: bool = False, correction: int = 0) -> Tensor:
        """The average square of the distance from the average."""
        return reducing.var(self, axes, keep=keep, correction=correction)

    def std(self, axes: Axes = None, *, keep: bool = False, correction: int = 0) -> Tensor:
        """The square root of the variance."""
        return reducing.std(self, axes, keep=keep, correction=correction)

    def count(self, axes: Axes = None, element: str | DType = "i32") -> Tensor:
        """The number of elements along axes, as a scalar tensor."""
        return reducing.count(self, axes, element)

    def softmax(self, axes: Axes) -> Tensor:
        """exp(x) / sum(exp(x)) along axes."""
        return reducing.softmax(self, axes)

    def log_softmax(self, axes: Axes) -> Tensor:
        """The logarithm of softmax."""
        return reducing.log_softmax(self, axes)

    def argmax(self, axis: Axis | None = None, *, keep: bool = False) -> Tensor:
        """The index of the first largest element of an axis."""
        return reducing.argmax(self, axis, keep=keep)

    def argmin(self, axis: Axis | None = None, *, keep: bool = False) -> Tensor:
        """The index of the first smallest element of an axis."""
        return reducing.argmin(self, axis, keep=keep)

    def cumsum(self, axis: Axis, *, reverse: bool = False) -> Tensor:
        """Sums of all elements up to each one."""
        return reducing.cumsum(self, axis, reverse=reverse)

    def cumprod(self, axis: Axis, *, reverse: bool = False) -> Tensor:
        """Products of all elements up to each one."""
        return reducing.cumprod(self, axis, reverse=reverse)

    def cummax(self, axis: Axis, *, reverse: bool = False) -> Tensor:
        """The largest of all elements up to each one."""
        return reducing.cummax(self, axis, reverse=reverse)

    def cummin(self, axis: Axis, *, reverse: bool = False) -> Tensor:
        """The smallest of all elements up to each one."""
        return reducing.cummin(self, axis, reverse=reverse)

    def sort(self, axis: Axis, *, descending: bool = False) -> Tensor:
        """In order along an axis."""
        return reducing.sort(self, axis, descending=descending)

    def argsort(self, axis: Axis, *, descending: bool = False) -> Tensor:
        """The indices that sort an axis."""
        return reducing.argsort(self, axis, descending=descending)

    def top_k(self, k: SizeLike, axis: Axis) -> tuple[Tensor, Tensor]:
        """The k largest elements of an axis, and their indices."""
        return reducing.top_k(self, k, axis)

    # ---- contraction, convolution, pooling ----

    def dot(
        self,
        other: Tensor,
        axes: str | Sequence[Any],
        *,
        result: str | DType | None = None,
        precision: Precision = "default",
    ) -> Tensor:
        """Contract the named axes (a matmul); other axes that both have are batch axes.

        `precision="high"` or `"highest"` (StableHLO's `precision_config`): the operands are not rounded to fp8 where a
        program is compiled with `precision="fp8"`.
        """
        return contracting.dot(self, other, axes, result=result, precision=precision)

    def ragged_dot(self, other: Tensor, sizes: Tensor, axis: str) -> Tensor:
        """A grouped GEMM: rows that are sorted by group, each group with its own matrix.

        `[row, k]` by `[group, column, k]` with `sizes` `[group]`, the rows of each group. Rows behind the last group
        give zeros.

        >>> import smelt
        >>> x, w = smelt.symbolic("f32[r=R, d=4]"), smelt.symbolic("f32[e=3, f=8, d=4]")
        >>> x.ragged_dot(w, smelt.symbolic("i32[e=3]"), "d").shape
        f32[r=R, f=8]
        """
        return contracting.ragged_dot(self, other, sizes, axis)

    def conv(
        self,
        kernel: Tensor,
        spatial: str | Sequence[str],
        *,
        features: tuple[str, str] = ("c", "o"),
        strides: int | Mapping[str, int] | Sequence[int] = 1,
        padding: Padding = "valid",
        dilation: int | Mapping[str, int] | Sequence[int] = 1,
        input_dilation: int | Mapping[str, int] | Sequence[int] = 1,
        groups: int = 1,
        flip: bool = False,
    ) -> Tensor:
        """A convolution over named axes."""
        return contracting.conv(
            self,
            kernel,
            spatial,
            features=features,
            strides=strides,
            padding=padding,
            dilation=dilation,
            input_dilation=input_dilation,
            groups=groups,
            flip=flip,
        )

    def max_pool(
        self, window: Mapping[str, int], strides: Mapping[str, int] | None = None, padding: Padding = "valid"
    ) -> Tensor:
        """The largest element of each window."""
        return contracting.max_pool(self, window, strides, padding)

    def sum_pool(
        self, window: Mapping[str, int], strides: Mapping[str, int] | None = None, padding: Padding = "valid"
    ) -> Tensor:
        """The sum of each window."""
        return contracting.sum_pool(self, window, strides, padding)

    def mean_pool(
        self,
        window: Mapping[str, int],
        strides: Mapping[str, int] | None = None,
        padding: Padding = "valid",
        *,
        count_padding: bool = False,
    ) -> Tensor:
        """The average of each window."""
        return contracting.mean_pool(self, window, strides, padding, count_padding=count_padding)

    # ---- layout: reshape, transpose, slice, pad ----

    def transpose(self, *axes: Axis) -> Tensor:
        """The axes in another order: `x.transpose("b h s k")`."""
        return moving.transpose(self, *axes)

    def rename(self, /, **names: str) -> Tensor:
        """Axes under other names: `x.rename(s="t")`."""
        return moving.rename(self, **names)

    def named(self, *names: str) -> Tensor:
        """Names for all axes, in order: `x.named("b s d")`."""
        return moving.named(self, *names)

    def unnamed(self) -> Tensor:
        """The same tensor without names."""
        return moving.unnamed(self)

    def split(self, axis: Axis, /, *sizes: SizeLike | None, **parts: SizeLike | None) -> Tensor:
        """One axis as several: `x.split("d", h="H", k=None)`."""
        return moving.split(self, axis, parts or sizes)

    def merge(self, axes: str | Sequence[Axis], into: str | None = None) -> Tensor:
        """Neighbouring axes as one: `x.merge("h k", "d")`."""
        return moving.merge(self, axes, into)

    def reshape(self, /, *sizes: SizeLike, **named_sizes: SizeLike) -> Tensor:
        """Another shape with the same elements in the same order."""
        return moving.reshape(self, *sizes, **named_sizes)

    def flatten(self, into: str | None = None) -> Tensor:
        """All axes as one."""
        return moving.flatten(self, into)

    def insert(self, axis: Axis, place: int = 0) -> Tensor:
        """A new axis of size 1."""
        return moving.insert(self, axis, place)

    def squeeze(self, axes: Axis | Sequence[Axis]) -> Tensor:
        """Axes of size 1 left out."""
        return moving.squeeze(self, axes)

    def broadcast(self, /, *sizes: SizeLike, **named_sizes: SizeLike) -> Tensor:
        """Repeated along new axes in front: `x.broadcast(b="B")`."""
        return moving.broadcast(self, *sizes, **named_sizes)

    def broadcast_to(self, shape: Shape | str) -> Tensor:
        """Repeated to a shape that has all of its axes."""
        return moving.broadcast_to(self, shape)

    def repeat(self, axis: Axis, times: SizeLike) -> Tensor:
        """Every element along an axis repeated that many times."""
        return moving.repeat(self, axis, times)

    def tile(self, axis: Axis, times: SizeLike) -> Tensor:
        """The whole axis repeated that many times."""
        return moving.tile(self, axis, times)

    def slice(self, /, **slices: Any) -> Tensor:
        """Slices and indices by name: `x.slice(s=slice(1, None), b=0)`."""
        return moving.slice_named(self, _merge_axes(None, slices))

    def flip(self, axes: Axes = None) -> Tensor:
        """Elements in reverse order along axes."""
        return moving.flip(self, axes)

    def roll(self, axis: Axis, shift: SizeLike) -> Tensor:
        """Elements shifted along an axis; those shifted past the end reappear at the front."""
        return moving.roll(self, axis, shift)

    def pad(self, amounts: Mapping[Axis, Any] | None = None, /, value: Any = 0, **named_amounts: Any) -> Tensor:
        """Elements added around: `x.pad(s=(0, 3), value=0.0)`, or `{axis: (before, after)}`."""
        return moving.pad(self, _merge_axes(amounts, named_amounts), value)

    def chunk(self, axis: Axis, sizes: int | Sequence[SizeLike]) -> list[Tensor]:
        """Chunks along an axis."""
        return moving.chunk(self, axis, sizes)

    # ---- gather, scatter, update ----

    def take(self, indices: Tensor, axis: Axis) -> Tensor:
        """Gather elements of an axis at `indices`."""
        return indexing.take(self, indices, axis)

    def take_along(self, indices: Tensor, axis: Axis) -> Tensor:
        """Gather along one axis, with indices for each position of all other axes."""
        return indexing.take_along(self, indices, axis)

    def scatter(
        self, indices: Tensor, updates: Tensor, axis: Axis, how: str = "set", *, paired: bool = False
    ) -> Tensor:
        """Updates written at positions of an axis: set, add, multiply, max or min."""
        return indexing.scatter(self, indices, updates, axis, how, paired=paired)

    def one_hot(self, size: SizeLike, axis: str | None = None, element: str | DType = "f32") -> Tensor:
        """1 at the position that each integer names along a new last axis, else 0."""
        return indexing.one_hot(self, size, axis, element)

    def dynamic_slice(
        self, slices: Mapping[Axis, tuple[Any, Any]] | None = None, /, **named_slices: tuple[Any, Any]
    ) -> Tensor:
        """A slice whose start is a tensor: `x.dynamic_slice(s=(start, 4))`."""
        return indexing.dynamic_slice(self, _merge_axes(slices, named_slices))

    def update(self, part: Tensor, starts: Mapping[Axis, Any] | None = None, /, **named_starts: Any) -> Tensor:
        """With a part of it overwritten: `cache.update(new, s=position)`."""
        return indexing.update(self, part, _merge_axes(starts, named_starts))


HOOKS.tensor = Tensor
_VALUES = {"dtype", "rank", "axes", "size", "sizes", "numpy", "item", "tolist"}  # what is no op
_OPERATORS = {
    f"__{name}__"
    for name in (
        *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
        *("pow", "rpow", "matmul", "neg", "abs", "invert", "and", "rand", "or", "ror", "xor", "rxor", "lshift"),
        *("rshift", "eq", "ne", "lt", "le", "gt", "ge", "getitem"),
    )
}
_METHODS = {name for name in vars(Tensor) if name[0] != "_"} - {*Tensor.__slots__, *_VALUES}
guard_methods(Tensor, _METHODS | _OPERATORS)


def _format_row(row: Any) -> str:
    """The first elements of a vector, or of an array's iterator."""
    return ", ".join([*map(str, row[:SHOWN].tolist()), *(["…"] if len(row) > SHOWN else [])])


def _restore(array: Array, shape: Shape) -> Tensor:
    """A tensor from what a pickle holds."""
    array.flags.writeable = False
    return tensor_of(Leaf(Shape.of(shape.dtype, array.shape), array, place=here()), shape.names)


def _merge_axes(by_axis: Mapping[Axis, Any] | None, by_name: Mapping[str, Any]) -> dict[Axis, Any]:
    """Arguments for axes, from a mapping and from keywords."""
    joined: dict[Axis, Any] = dict(by_axis or {})
    joined.update(by_name)
    return joined
