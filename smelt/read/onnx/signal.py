"""Fourier transforms and what is built on them."""

from __future__ import annotations

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, f32, f64, i64
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.registry import Ints, onnx_op
from smelt.read.onnx.tensors import element_type


def _complex(g: Graph, x: Value) -> Value:
    """[..., 2] or [..., 1] as complex numbers."""
    parts = x.shape.sizes[-1]
    element = x.shape.element
    wide = x if element in (f32, f64) else g.convert(x, f32)
    sizes = x.shape.sizes[:-1]
    last = x.shape.rank - 1
    real = g.reshape(g.slice_axis(wide, last, 0, 1), sizes)
    imag = g.like(0, real) if parts == 1 else g.reshape(g.slice_axis(wide, last, 1, 2), sizes)
    made: Value = g.b.complex(real, imag)
    return made


def _pairs(g: Graph, z: Value) -> Value:
    parts = [g.expand_dims(g.unary(part, z), (z.shape.rank,)) for part in ("real", "imag")]
    return g.concat(parts, z.shape.rank)


def _fit(g: Graph, z: Value, axis: int, length: int) -> Value:
    """Cut off or padded with zeros to a length."""
    size = z.shape.sizes[axis]
    if not isinstance(size, int):
        raise UnsupportedError("a Fourier transform of a size that is not fixed", got=z.shape)
    if size > length:
        return g.slice_axis(z, axis, 0, length)
    high = [length - size if i == axis else 0 for i in range(z.shape.rank)]
    return g.pad(z, g.b.constant(0, z.shape.element), (0,) * z.shape.rank, high)


def _transform(g: Graph, x: Value, axis: int, length: int | None, inverse: bool, onesided: bool) -> Value:
    element = x.shape.element
    if x.shape.rank < 2 or x.shape.sizes[-1] not in (1, 2):
        raise ShapeError("DFT: the last dimension holds the parts of a complex number", expected="1 or 2", got=x.shape)
    z = _complex(g, x)
    size = z.shape.sizes[axis]
    rank = z.shape.rank
    if not isinstance(size, int):
        raise UnsupportedError("DFT of a size that is not fixed", got=x.shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    if onesided and inverse:
        whole = 2 * (size - 1) if length is None else length
        moved = g.transpose(_fit(g, z, axis, whole // 2 + 1), order)
        y: Value = g.b.fft(moved, fft_type="IRFFT", fft_length=(whole,))
        return g.convert(g.expand_dims(g.transpose(y, back), (rank,)), element)
    whole = size if length is None else length
    moved = g.transpose(_fit(g, z, axis, whole), order)
    made: Value = g.b.fft(moved, fft_type="IFFT" if inverse else "FFT", fft_length=(whole,))
    if onesided:
        made = g.slice_axis(made, rank - 1, 0, whole // 2 + 1)
    return g.convert(_pairs(g, g.transpose(made, back)), element)


@onnx_op("DFT", since=20)
def dft(
    g: Graph,
    input: Value,
    dft_length: Ints | None = None,
    axis: Ints | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Value:
    place = axis_of(-2 if axis is None else axis[0], input.shape.rank)
    if place == input.shape.rank - 1:
        raise ShapeError("DFT: axis must not be the last one", got=axis)
    return _transform(g, input, place, None if dft_length is None else dft_length[0], bool(inverse), bool(onesided))


@onnx_op("DFT", since=17)
def dft_17(
    g: Graph, input: Value, dft_length: Ints | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Value:
    return dft(g, input, dft_length, (axis,), inverse=inverse, onesided=onesided)


@onnx_op("STFT", since=17)
def stft(
    g: Graph,
    signal: Value,
    frame_step: Ints,
    window: Value | None = None,
    frame_length: Ints | None = None,
    *,
    onesided: int = 1,
) -> Value:
    if signal.shape.rank != 3:
        raise ShapeError("STFT takes [batch, length, parts]", got=signal.shape)
    length = frame_length[0] if frame_length is not None else None if window is None else window.shape.sizes[0]
    if not isinstance(length, int):
        raise ShapeError("STFT: frame_length or window must be given")
    step = frame_step[0]
    size = signal.shape.sizes[1]
    frames: Size = (size - length) // step + 1
    starts = g.times(g.iota(i64, (frames, length), 0), step)
    framed = g.take(signal, g.binary("add", starts, g.iota(i64, (frames, length), 1)), 1)
    if window is not None:
        framed = g.binary("multiply", framed, g.reshape(window, (length, 1)))
    return _transform(g, framed, 2, None, False, bool(onesided))


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
    bins = int(num_mel_bins.reshape(-1)[0])
    length, rate = int(dft_length.reshape(-1)[0]), float(sample_rate.reshape(-1)[0])
    low, high = (2595 * np.log10(1 + float(edge.reshape(-1)[0]) / 700) for edge in (lower_edge_hertz, upper_edge_hertz))
    if bins < 1 or length < 1 or bins * length > 1 << 26:
        raise ShapeError("MelWeightMatrix: impossible sizes", got=[bins, length])
    spectrum = length // 2 + 1
    mel = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    edges = ((length + 1) * (700 * (np.power(10, mel / 2595) - 1)) // rate).astype(int)
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
