"""Signals: Fourier transforms, alone and in frames, window functions and the matrix of the mel scale.

A transform of fixed length is `stablehlo.fft`; one whose length is a symbol is a product with the matrix of its roots
of unity, which the program makes. Imported by `read.onnx.model`.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

from smelt.dim import Size, floordiv, minimum
from smelt.dtype import Array, c64, c128, f32, f64, i64
from smelt.errors import ShapeError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of
from smelt.read.onnx.file.tensors import element_type
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.registry import Ints, Sizes, onnx_op

# ---- Fourier transforms ----


def _complex(g: Graph, x: Value) -> Value:
    """[..., 2] or [..., 1] as complex numbers."""
    wide = x if x.shape.element in (f32, f64) else g.convert(x, f32)
    sizes = x.shape.sizes[:-1]
    last = x.shape.rank - 1
    real = g.reshape(g.slice_axis(wide, last, 0, 1), sizes)
    imag = g.like(0, real) if x.shape.sizes[-1] == 1 else g.reshape(g.slice_axis(wide, last, 1, 2), sizes)
    return g.b.complex(real, imag)


def _pairs(g: Graph, z: Value) -> Value:
    parts = [g.expand_dims(g.unary(part, z), (z.shape.rank,)) for part in ("real", "imag")]
    return g.concat(parts, z.shape.rank)


def _fit(g: Graph, z: Value, axis: int, length: Size) -> Value:
    """Cut off or padded with zeros to a length."""
    size = z.shape.sizes[axis]
    if size == length:
        return z
    z = g.slice_axis(z, axis, 0, minimum(size, length))
    high = [length - z.shape.sizes[axis] if i == axis else 0 for i in range(z.shape.rank)]
    return g.pad(z, g.b.constant(0, z.shape.element), (0,) * z.shape.rank, high)


def _transform(g: Graph, x: Value, axis: int, length: Size | None, inverse: bool, onesided: bool) -> Value:
    """The transform of [..., parts] along an axis. One side of a spectrum is that of real numbers."""
    if x.shape.rank < 2 or x.shape.sizes[-1] not in (1, 2):
        raise ShapeError("DFT: the last dimension holds the parts of a complex number", expected="1 or 2", got=x.shape)
    if onesided and (x.shape.sizes[-1] == 1) == inverse:
        expected = "complex numbers" if inverse else "real numbers"
        raise ShapeError("DFT: attribute 'onesided' does not fit the input", expected=expected, got=x.shape)
    z = _complex(g, x)
    rank = z.shape.rank
    size = z.shape.sizes[axis]
    whole = length if length is not None else 2 * (size - 1) if onesided and inverse else size
    if isinstance(whole, int) and whole < 1:
        raise ShapeError("DFT: impossible length", got=whole)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    if onesided and inverse:
        moved = g.transpose(_fit(g, z, axis, floordiv(whole, 2) + 1), order)
        real = g.transpose(_inverse_of_half(g, moved, whole), back)
        return g.convert(g.expand_dims(real, (rank,)), x.shape.element)
    moved = g.transpose(_fit(g, z, axis, whole), order)
    made = _spectrum(g, moved, whole, inverse)
    if onesided:
        made = g.slice_axis(made, rank - 1, 0, floordiv(whole, 2) + 1)
    return g.convert(_pairs(g, g.transpose(made, back)), x.shape.element)


def _spectrum(g: Graph, z: Value, length: Size, inverse: bool) -> Value:
    """The transform along the last axis."""
    if isinstance(length, int):
        return g.b.fft(z, fft_type="IFFT" if inverse else "FFT", fft_length=(length,))
    roots = _roots(g, length, 1 if inverse else -1, z)
    product = g.dot(z, roots, ((z.shape.rank - 1,), (0,)))
    return _scale_inverse(g, product, length) if inverse else product


def _inverse_of_half(g: Graph, z: Value, length: Size) -> Value:
    """Real numbers from the half of their spectrum that is given."""
    if isinstance(length, int):
        return g.b.fft(z, fft_type="IRFFT", fft_length=(length,))
    last = z.shape.rank - 1
    half = z.shape.sizes[last]
    rest = length - half  # what the other half adds: the conjugate, backwards, without the ends
    mirrored = g.reverse(g.slice_axis(z, last, 1, rest + 1), (last,))
    conjugate = g.b.complex(g.unary("real", mirrored), g.unary("negate", g.unary("imag", mirrored)))
    # The ends of a real signal's spectrum are real, whatever is given.
    return g.unary("real", _spectrum(g, g.concat([z, conjugate], last), length, True))


def _roots(g: Graph, length: Size, sign: int, like: Value) -> Value:
    """[length, length]: e^(±2πi jk / length), from the remainder of jk so that angles stay exact."""
    sizes = (length, length)
    turns = g.binary("multiply", g.iota(i64, sizes, 0), g.iota(i64, sizes, 1))
    total = g.size(length)
    part = g.convert(g.binary("remainder", turns, total), f64)
    angle = g.times(g.binary("divide", part, g.convert(total, f64)), sign * 2 * pi)
    narrow = f64 if like.shape.element == c128 else f32
    made = g.b.complex(g.convert(g.unary("cosine", angle), narrow), g.convert(g.unary("sine", angle), narrow))
    assert made.shape.element in (c64, c128)
    return made


def _scale_inverse(g: Graph, z: Value, length: Size) -> Value:
    parts = [g.unary(part, z) for part in ("real", "imag")]
    count = g.convert(g.size(length), parts[0].shape.element)
    return g.b.complex(*(g.binary("divide", part, count) for part in parts))


@onnx_op("DFT", since=20, single=("dft_length", "axis"))
def dft(
    g: Graph,
    input: Value,
    dft_length: Sizes | None = None,
    axis: Ints | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Value:
    place = axis_of(-2 if axis is None else axis[0], input.shape.rank)
    if place == input.shape.rank - 1:
        raise ShapeError("DFT: axis must not be the last one", got=axis)
    return _transform(g, input, place, None if dft_length is None else dft_length[0], bool(inverse), bool(onesided))


@onnx_op("DFT", since=17, single=("dft_length",))
def dft_17(
    g: Graph, input: Value, dft_length: Sizes | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Value:
    return dft(g, input, dft_length, (axis,), inverse=inverse, onesided=onesided)


@onnx_op("STFT", since=17, ranks={"window": "1"}, single=("frame_step", "frame_length"))
def stft(
    g: Graph,
    signal: Value,
    frame_step: Ints,
    window: Value | None = None,
    frame_length: Sizes | None = None,
    *,
    onesided: int = 1,
) -> Value:
    if signal.shape.rank not in (2, 3):
        raise ShapeError("STFT takes [batch, length, parts]", got=signal.shape)
    x = signal if signal.shape.rank == 3 else g.expand_dims(signal, (2,))
    step, size = frame_step[0], x.shape.sizes[1]
    length = frame_length[0] if frame_length is not None else size if window is None else window.shape.sizes[0]
    if step < 1 or (isinstance(length, int) and length < 1):
        raise ShapeError("STFT: impossible frames", expected="a step and a length of at least 1", got=[step, length])
    if isinstance(size, int) and isinstance(length, int) and size < length:
        raise ShapeError("STFT: a frame longer than the signal", expected=f"at most {size}", got=length)
    frames = floordiv(size - length, step) + 1
    starts = g.times(g.iota(i64, (frames, length), 0), step)
    framed = g.take(x, g.binary("add", starts, g.iota(i64, (frames, length), 1)), 1)
    if window is not None:
        framed = g.binary("multiply", framed, g.reshape(window, (length, 1)))
    return _transform(g, framed, 2, None, False, bool(onesided))


# ---- windows ----


def _window(name: str, weights: tuple[float, ...]) -> None:
    """A sum of cosines: w₀ - w₁ cos(2πn/N) + w₂ cos(4πn/N)."""

    @onnx_op(name, since=17)
    def window(g: Graph, size: Sizes, *, output_datatype: int = 1, periodic: int = 1) -> Tensor | Value:
        element = element_type(output_datatype, g.location)
        count = size[0]
        around = count if periodic else count - 1
        if isinstance(count, int) and isinstance(around, int):
            if count < 0 or count > 1 << 26:
                raise ShapeError(f"{name}: impossible size", got=count)
            turns = np.arange(count) * (2 * pi / around if around else np.nan)
            known: Any = sum((-1) ** k * weight * np.cos(k * turns) for k, weight in enumerate(weights))
            return Tensor.constant(known.astype(element.numpy))
        angle = g.binary("divide", g.times(g.iota(f64, (count,), 0), 2 * pi), g.convert(g.size(around), f64))
        total = g.like(weights[0], angle)
        for k, weight in enumerate(weights[1:], 1):
            wave = g.times(g.unary("cosine", g.times(angle, k)), weight)
            total = g.binary("subtract" if k % 2 else "add", total, wave)
        return g.convert(total, element)


_window("HannWindow", (0.5, 0.5))
_window("HammingWindow", (25 / 46, 21 / 46))
_window("BlackmanWindow", (0.42, 0.5, 0.08))


# ---- the mel scale ----


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    g: Graph,
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Tensor:
    """Triangles over the frequencies of half a spectrum, evenly spaced on the mel scale."""
    bins = int(num_mel_bins.reshape(-1)[0])
    length, rate = int(dft_length.reshape(-1)[0]), float(sample_rate.reshape(-1)[0])
    low, high = (2595 * np.log10(1 + float(edge.reshape(-1)[0]) / 700) for edge in (lower_edge_hertz, upper_edge_hertz))
    if bins < 1 or length < 1 or bins * length > 1 << 26 or rate <= 0:
        raise ShapeError("MelWeightMatrix: impossible sizes", got=[bins, length, rate])
    spectrum = length // 2 + 1
    mel = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    edges = ((length + 1) * (700 * (np.power(10, mel / 2595) - 1)) // rate).astype(int)
    if edges.min() < 0 or edges[:-1].max() >= spectrum or edges[-1] > spectrum:
        raise ShapeError(
            "MelWeightMatrix: frequencies outside the spectrum", expected=f"0 to {rate / 2}", got=edges.max()
        )
    weights = np.zeros((spectrum, bins))
    for i in range(bins):
        lower, centre, upper = edges[i : i + 3]
        if centre == lower:
            weights[centre, i] = 1
        else:
            rising = np.arange(lower, centre + 1)
            weights[rising, i] = (rising - lower) / (centre - lower)
        if upper > centre:
            falling = np.arange(centre, upper)
            weights[falling, i] = (upper - falling) / (upper - centre)
    return Tensor.constant(weights.astype(element_type(output_datatype, g.location).numpy))
