"""FFT kernels against NumPy's, in double: every kind, lengths of all sorts, dynamic dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.shape import Shape

FEW = [1, 2, 5, 8, 17, 60]
LENGTHS = [*FEW, 3, 4, 7, 12, 13, 16, 34, 121, 256, 1033, 2310]


def numbers(random: np.random.Generator, *sizes: int, real: bool = False) -> Array:
    values = random.standard_normal(sizes)
    return values if real else values + 1j * random.standard_normal(sizes)


def close(got: Array, want: Array) -> None:
    """Within a few units of the largest element: rounding spreads over a whole row."""
    assert got.shape == want.shape
    if want.size:
        unit = np.finfo(got.real.dtype).eps * max(np.abs(want).max(), 1e-300)
        assert np.abs(got - want).max() <= 8 * unit


def one_axis(kind: str, x: Array, length: int) -> Array:
    match kind:
        case "FFT":
            return np.fft.fft(x)
        case "IFFT":
            return np.fft.ifft(x)
        case "RFFT":
            return np.fft.rfft(x)
    return np.fft.irfft(x, length)


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_every_length(kind: str, seed: int) -> None:
    """Small factors, powers, large primes and their multiples, as the results of one program."""
    random = np.random.default_rng(seed)
    halved = kind == "IRFFT"
    lengths = LENGTHS if kind == "FFT" else FEW
    args = [numbers(random, 3, n // 2 + 1 if halved else n, real=kind == "RFFT") for n in lengths]
    element = "f64" if kind == "RFFT" else "complex<f64>"
    f = FuncBuilder("main", [Shape(element, *x.shape) for x in args])
    results = [f.fft(arg, fft_type=kind, fft_length=(n,)) for arg, n in zip(f.args, lengths, strict=True)]
    for n, x, got in zip(lengths, args, NativeEngine().compile(Program.of(f.func(*results)))(*args), strict=True):
        close(got, one_axis(kind, x, n))


@pytest.mark.parametrize("lengths", [(4, 6), (3, 1, 10), (17, 2), (2, 3, 19)])
def test_several_axes(lengths: tuple[int, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    axes = tuple(range(-len(lengths), 0))
    full, real = numbers(random, 2, *lengths), numbers(random, 2, *lengths, real=True).astype(np.float32)
    half = numbers(random, 2, *lengths[:-1], lengths[-1] // 2 + 1)
    types = [Shape("complex<f64>", *full.shape), Shape("f32", *real.shape), Shape("complex<f64>", *half.shape)]
    f = FuncBuilder("main", types)
    kinds = (("FFT", 0), ("IFFT", 0), ("RFFT", 1), ("IRFFT", 2))
    results = [f.fft(f.args[i], fft_type=kind, fft_length=lengths) for kind, i in kinds]
    forward, back, from_real, to_real = NativeEngine().compile(Program.of(f.func(*results)))(full, real, half)
    close(forward, np.fft.fftn(full, axes=axes))
    close(back, np.fft.ifftn(full, axes=axes))
    assert from_real.dtype == np.complex64
    close(from_real, np.fft.rfftn(real.astype(np.float64), axes=axes))
    close(to_real, np.fft.irfftn(half, s=lengths, axes=axes))


def test_single_precision_is_rounded_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    x = numbers(random, 5, 2048).astype(np.complex64)
    f = FuncBuilder("main", [Shape("complex<f32>", 5, 2048)])
    program = Program.of(f.func(f.fft(*f.args, fft_type="FFT", fft_length=(2048,))))
    (got,) = NativeEngine().compile(program)(x)
    want = np.fft.fft(x.astype(np.complex128))
    for part, exact in ((got.real, want.real), (got.imag, want.imag)):
        assert (np.abs(part - exact) <= 0.5001 * np.spacing(np.abs(exact).astype(np.float32))).all()


@pytest.mark.parametrize("kind", ["FFT", "IFFT"])
def test_dynamic_dimensions(kind: str, seed: int) -> None:
    """The batch, and a length that only a call decides."""
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("complex<f64>", "B", "N", 3)])
    program = Program.of(f.func(f.fft(*f.args, fft_type=kind, fft_length=(8, 3))))
    run = NativeEngine().compile(program)
    for batch, length in ((0, 4), (1, 1), (2, 2), (2, 11), (1, 64), (1, 101), (2, 0)):
        x = numbers(random, batch, length, 3)
        (got,) = run(x)
        oracle = np.fft.fftn if kind == "FFT" else np.fft.ifftn
        close(got, oracle(x, axes=(1, 2)) if x.size else x)
