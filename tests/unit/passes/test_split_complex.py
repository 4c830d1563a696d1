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
