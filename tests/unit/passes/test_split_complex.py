"""Complex programs as programs over pairs: every rule, against NumPy's complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value, walk
from smelt.ir.interpret import run
from smelt.passes.split_complex import is_complex, split_complex
from smelt.shape import Shape

# Zeros, real and imaginary numbers, each quadrant, and parts whose squares overflow.
X = np.array([0, 1, -2, 3j, -4j, 1 + 2j, -3 + 1j, 2 - 5j, -1 - 1j, 3e30 + 2e30j], np.complex64)
Y = np.array([1 + 1j, 2, -1j, 3 - 4j, 1, 2j, -2 - 1j, 5, 0.5 + 1j, 1e30 - 2e30j], np.complex64)
Make = Callable[[FuncBuilder, Value, Value], Value]
S = Shape("c64", 10)
R = Shape("f32", 10)
DOT = DotDims((), (), (0,), (0,))


def chlo(name: str) -> Make:
    return lambda f, x, y: f.op(f"chlo.{name}", x).result


CASES: dict[str, tuple[Make, Callable[[Any, Any], Any]]] = {
    "add": (lambda f, x, y: f.add(x, y), np.add),
    "subtract": (lambda f, x, y: f.subtract(x, y), np.subtract),
    "multiply": (lambda f, x, y: f.multiply(x, y), np.multiply),
    "divide": (lambda f, x, y: f.divide(x, y), np.divide),
    "negate": (lambda f, x, y: f.negate(x), lambda x, y: -x),
    "abs": (lambda f, x, y: f.abs(x), lambda x, y: np.abs(x)),
    "exponential": (lambda f, x, y: f.exponential(x), lambda x, y: np.exp(x)),
    "log": (lambda f, x, y: f.log(y), lambda x, y: np.log(y)),
    "sqrt": (lambda f, x, y: f.sqrt(x), lambda x, y: np.sqrt(x)),
    "sine": (lambda f, x, y: f.sine(x), lambda x, y: np.sin(x)),
    "cosine": (lambda f, x, y: f.cosine(x), lambda x, y: np.cos(x)),
    "real": (lambda f, x, y: f.real(x), lambda x, y: x.real),
    "imag": (lambda f, x, y: f.imag(x), lambda x, y: x.imag),
    "complex": (lambda f, x, y: f.complex(f.imag(x), f.real(y)), lambda x, y: x.imag + 1j * y.real),
    "conj": (chlo("conj"), lambda x, y: x.conj()),
    "square": (chlo("square"), lambda x, y: x * x),
    "wider": (lambda f, x, y: f.convert(x, result=Shape("c128", 10)), lambda x, y: x.astype(np.complex128)),
    "from real": (lambda f, x, y: f.convert(f.imag(x), result=S), lambda x, y: x.imag.astype(np.complex64)),
    "to real": (lambda f, x, y: f.convert(x, result=R), lambda x, y: x.real),
    "equal": (lambda f, x, y: f.compare(x, y, comparison_direction="EQ"), np.equal),
    "unequal": (lambda f, x, y: f.compare(x, y, comparison_direction="NE"), np.not_equal),
    "constant": (lambda f, x, y: f.add(x, f.constant(Y)), lambda x, y: x + Y),
    "iota": (lambda f, x, y: f.add(y, f.iota(iota_dimension=0, result=S)), lambda x, y: y + np.arange(10)),
    "reverse": (lambda f, x, y: f.reverse(x, dimensions=(0,)), lambda x, y: x[::-1]),
    "reshape": (lambda f, x, y: f.reshape(x, result=Shape("c64", 2, 5)), lambda x, y: x.reshape(2, 5)),
    "concatenate": (lambda f, x, y: f.concatenate(x, y, dimension=0), lambda x, y: np.concatenate([x, y])),
    "select": (
        lambda f, x, y: f.select(f.compare(x, y, comparison_direction="NE"), y, x),
        lambda x, y: np.where(x != y, y, x),
    ),
    "dot": (
        lambda f, x, y: f.dot_general(x, y, dot_dimension_numbers=DOT, result=Shape("c64")), lambda x, y: (x * y).sum()
    ),
}  # fmt: skip


def as_pairs(x: Array) -> Array:
    return np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x


@pytest.mark.parametrize("name", CASES)
def test_pairs_are_what_numpy_computes(name: str) -> None:
    make, numpy = CASES[name]
    f = FuncBuilder("main", [S, S])
    program = Program.of(f.func(make(f, *f.args)))
    split = split_complex(program)
    ops = list(walk(split.main.body))
    assert not any(is_complex(value.type) for op in ops for value in op.results), "no complex value is left"
    large = name in ("multiply", "exponential", "sine", "cosine", "square", "dot")
    x, y = (np.where(np.abs(each) > 1e20, 1, each).astype(np.complex64) if large else each for each in (X, Y))
    if name in ("equal", "unequal"):
        x = np.where([True, False] * 5, y, np.where([True] * 5 + [False] * 5, y.conj(), -y.conj())).astype(np.complex64)
    with np.errstate(all="ignore"):
        want = as_pairs(np.asarray(numpy(x, y)))
    (got,) = run(split, [as_pairs(x), as_pairs(y)])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    (whole,) = run(program, [x, y])
    np.testing.assert_allclose(got, as_pairs(np.asarray(whole)), rtol=1e-5, atol=1e-6)


def test_real_programs_dynamic_ports_and_complex_weights_stay() -> None:
    f = FuncBuilder("main", [R])
    real = Program.of(f.func(f.tanh(f.args[0])))
    assert split_complex(real) is real
    f = FuncBuilder("main", [Shape("c64", "N")])
    dynamic = Program.of(f.func(f.exponential(f.args[0])))
    assert split_complex(dynamic) is dynamic
    f = FuncBuilder("main", [R])
    inner = Program.of(f.func(f.real(f.exponential(f.complex(f.args[0], f.args[0])))))
    assert [arg.type for arg in split_complex(inner).main.args] == [R]


FFTS: dict[str, Callable[..., Any]] = {
    "FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn,
}  # fmt: skip


@pytest.mark.parametrize("lengths", [(1,), (4,), (5,), (2, 3), (3, 4), (2, 3, 6), (1, 2)])
@pytest.mark.parametrize("kind", FFTS)
def test_fourier_transforms_are_those_of_numpy(kind: str, lengths: tuple[int, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = (2, *lengths[:-1], lengths[-1] // 2 + 1 if kind == "IRFFT" else lengths[-1])
    axes = tuple(range(-len(lengths), 0))
    x = random.standard_normal(sizes) + (0 if kind == "RFFT" else 1j * random.standard_normal(sizes))
    if kind == "IRFFT":  # of what is no transform of a real signal, libraries make different things
        x = np.fft.rfftn(random.standard_normal((2, *lengths)), axes=axes)
    f = FuncBuilder("main", [Shape("f64" if kind == "RFFT" else "c128", *sizes)])
    split = split_complex(Program.of(f.func(f.fft(f.args[0], fft_type=kind, fft_length=lengths))))
    assert not any(op.name == "stablehlo.fft" or is_complex(v.type) for op in walk(split.main.body) for v in op.results)
    (got,) = run(split, [as_pairs(x)])
    np.testing.assert_allclose(got, as_pairs(FFTS[kind](x, s=lengths, axes=axes)), rtol=1e-12, atol=1e-12)


def test_long_and_dynamic_transforms_stay() -> None:
    for shape, stays in ((Shape("f32", 1024), False), (Shape("f32", 1025), True), (Shape("f32", "N", 8), True)):
        f = FuncBuilder("main", [shape])
        made = f.fft(f.args[0], fft_type="RFFT", fft_length=shape.sizes[-1:])
        program = Program.of(f.func(f.real(made)))
        assert any(op.name == "stablehlo.fft" for op in walk(split_complex(program).main.body)) == stays


def test_complex_values_through_loops_and_branches() -> None:
    """z = z² + c, six times at most while |z| < 2; then one of two branches."""
    f = FuncBuilder("main", [Shape("c64"), Shape("i1")])
    c, flag = f.args
    number = f.constant(0, "i32")
    with f.region(c.type, number.type) as test:
        small = test.compare(test.abs(test.args[0]), test.constant(2.0, "f32"), comparison_direction="LT")
        early = test.compare(test.args[1], test.constant(6, "i32"), comparison_direction="LT")
        test.result(test.and_(small, early))
    with f.region(c.type, number.type) as step:
        z, i = step.args
        step.result(step.add(step.multiply(z, z), c), step.add(i, step.constant(1, "i32")))
    loop = f.op("stablehlo.while", c, number, regions=[test.body, step.body])
    with f.region() as yes:
        yes.result(yes.negate(loop.results[0]), loop.results[1])
    with f.region() as no:
        no.result(loop.results[0], no.add(loop.results[1], loop.results[1]))
    chosen = f.op("stablehlo.if", flag, regions=[yes.body, no.body])
    program = Program.of(f.func(*chosen.results))
    split = split_complex(program)
    assert not any(is_complex(value.type) for op in walk(split.main.body) for value in op.results)
    for start in (0.1 + 0.2j, 1 + 1j, -1.2j):
        want, count = complex(start), 0
        while abs(want) < 2 and count < 6:
            want, count = want * want + start, count + 1
        for which in (True, False):
            pair, found = run(split, [as_pairs(np.array(start, np.complex64)), np.array(which)])
            np.testing.assert_allclose(pair, as_pairs(np.array(-want if which else want)), rtol=1e-5)
            assert found == (count if which else 2 * count)
