"""Functions whose gradients are compared with JAX's: one row each, for every rule of the table that JAX can reach.

A case is a JAX function and its inputs. JAX lowers it to StableHLO, which smelt differentiates, and differentiates it
itself. Shapes are drawn; `d(…)` draws an array, `Draw.sizes` sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = np.ndarray


class Draw:
    """Random inputs for one case."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def __call__(self, *sizes: int, low: float = -1.5, high: float = 1.5) -> Array:
        return np.asarray(self.random.uniform(low, high, sizes))

    def distinct(self, *sizes: int) -> Array:
        """Numbers that are well apart, so that no small step changes their order."""
        count = int(np.prod(sizes))
        return (self.random.permutation(count) / max(count, 1) + self.random.uniform(0, 0.1)).reshape(sizes)

    def complex(self, *sizes: int) -> Array:
        return np.asarray(self(*sizes) + 1j * self(*sizes))

    def integers(self, low: int, high: int, *sizes: int) -> Array:
        return self.random.integers(low, high, sizes)

    def sizes(self, count: int, low: int = 1, high: int = 4) -> tuple[int, ...]:
        return tuple(int(size) for size in self.random.integers(low, high + 1, count))

    def positive(self, *sizes: int) -> Array:
        return self(*sizes, low=0.3, high=2.5)

    def inside(self, *sizes: int) -> Array:
        return self(*sizes, low=-0.8, high=0.8)


@dataclass(frozen=True)
class Case:
    """`fn` on the arrays that `inputs` draws."""

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[Draw], tuple[Array, ...]]
    tags: frozenset[str] = field(default=frozenset())


CASES: list[Case] = []


def case(name: str, inputs: Callable[[Draw], tuple[Array, ...]], fn: Callable[..., Any], *tags: str) -> None:
    CASES.append(Case(name, fn, inputs, frozenset(tags)))


def _shape(d: Draw) -> tuple[int, ...]:
    return d.sizes(2)


# ---- elementwise ----

for _name, _fn in {
    "abs": lax.abs, "cbrt": lax.cbrt, "cos": lax.cos, "exp": lax.exp, "expm1": lax.expm1, "logistic": lax.logistic,
    "neg": lax.neg, "sin": lax.sin, "tan": lax.tan, "tanh": lax.tanh, "asinh": lax.asinh, "atan": lax.atan,
    "cosh": lax.cosh, "sinh": lax.sinh, "erf": lax.erf, "erfc": lax.erfc, "square": lax.square, "floor": lax.floor,
    "ceil": lax.ceil, "round": lax.round, "sign": lax.sign, "integer_pow": lambda x: x**3, "one_half": lambda x: x / 2,
}.items():  # fmt: skip
    case(_name, lambda d: (d(*_shape(d)),), _fn)
case("reduce_precision", lambda d: (d(3),), lambda x: lax.reduce_precision(x, 8, 23), "rounds")
for _name, _fn in {
    "log": lax.log, "log1p": lax.log1p, "rsqrt": lax.rsqrt, "sqrt": lax.sqrt, "lgamma": lax.lgamma,
    "digamma": lax.digamma, "acosh": lambda x: lax.acosh(x + 1.0),
}.items():  # fmt: skip
    case(_name, lambda d: (d.positive(*_shape(d)),), _fn)
for _name, _fn in {"asin": lax.asin, "acos": lax.acos, "atanh": lax.atanh, "erf_inv": lax.erf_inv}.items():
    case(_name, lambda d: (d.inside(*_shape(d)),), _fn)


def _pair(d: Draw) -> tuple[Array, Array]:
    sizes = _shape(d)
    return d.positive(*sizes), d.positive(*sizes)


for _name, _pairwise in {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "pow": lax.pow, "atan2": lax.atan2,
    "rem": lax.rem, "max": lax.max, "min": lax.min,
    "polygamma": lambda x, y: lax.polygamma(jnp.full_like(x, 2.0), y) + x,
}.items():  # fmt: skip
    case(_name, _pair, _pairwise)
case("bessel_i1e", lambda d: (np.concatenate([[0.0], d(6, low=-9, high=9), d(4, low=25, high=90)]),), lax.bessel_i1e)
case("max of equals", lambda d: (np.ones((2, 3)),) * 2, lambda x, y: (lax.max(x, y), lax.min(x, y)), "kink")
case("abs of zero", lambda d: (np.zeros(3),), lax.abs, "kink")
case("pow of zero", lambda d: (np.zeros(2), np.array([2.0, 1.0])), lambda x, y: lax.pow(x, y), "kink")
case("clamp", lambda d: (d(4, 3),), lambda x: lax.clamp(-0.5, x, 0.7))
case("clamp bounds", lambda d: (d(3, 2), d(3, 2), d(3, 2)), lambda x, y, z: lax.clamp(lax.min(x, y), z, lax.max(x, y)))
case("select", lambda d: (d(3, 4), d(3, 4)), lambda x, y: jnp.where(x > 0.2, x * y, y))
case("scalar select", lambda d: (d(3), d(3)), lambda x, y: lax.select(jnp.array(True), x * 2, y))
case(
    "convert",
    lambda d: (d(3, 4),),
    lambda x: lax.convert_element_type(x.astype(jnp.float32), jnp.float64) * x,
    "rounds",
)
case("to integers", lambda d: (d(3, 4),), lambda x: x.astype(jnp.int32).astype(jnp.float64) + x)
case("bitcast", lambda d: (d(3),), lambda x: lax.bitcast_convert_type(x, jnp.int64).astype(jnp.float64) * 0 + x)

# ---- complex numbers ----

for _name, _fn in {
    "exp": lax.exp, "sin": lax.sin, "tanh": lax.tanh, "log": lax.log, "sqrt": lax.sqrt, "conj": lax.conj,
    "real": lax.real, "imag": lax.imag, "abs": lax.abs, "square": lax.square, "expm1": lax.expm1,
    "log1p": lax.log1p, "rsqrt": lax.rsqrt, "cosh": lax.cosh, "to real": lambda x: lax.abs(x * x) ** 2,
}.items():  # fmt: skip
    case(f"complex {_name}", lambda d: (d.complex(*_shape(d)),), _fn, "complex")
case("complex", lambda d: (d(3), d(3)), lambda x, y: lax.complex(x, y * x) ** 2, "complex")
case("complex mul", lambda d: (d.complex(3), d.complex(3)), lambda x, y: x * y / (y + 2), "complex")
case("complex dot", lambda d: (d.complex(3, 2), d.complex(2, 4)), lambda x, y: x @ y, "complex")
case("complex sum", lambda d: (d.complex(3, 2),), lambda x: jnp.sum(x * x, 0), "complex")
case("complex pow", lambda d: (d.complex(3), d.complex(3)), lambda x, y: lax.pow(x, y), "complex")

# ---- shapes ----

case("broadcast", lambda d: (d(3), d(2, 1)), lambda x, y: x + y)
case("broadcast to more", lambda d: (d(3, 1),), lambda x: jnp.broadcast_to(x, (4, 3, 5)))
case("broadcast in dim", lambda d: (d(1, 4),), lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 2)))
case("broadcast of nothing", lambda d: (d(1, 0),), lambda x: jnp.broadcast_to(x, (3, 0)))
case("reshape", lambda d: (d(2, 3, 2),), lambda x: x.reshape(4, 3) * 2)
case("transpose", lambda d: (d(2, 3, 4),), lambda x: x.transpose(2, 0, 1))
case("slice", lambda d: (d(5, 7),), lambda x: x[1:4, ::2])
case("strided slice", lambda d: (d(9, 7),), lambda x: lax.slice(x, (1, 2), (8, 7), (3, 2)))
case("empty slice", lambda d: (d(5),), lambda x: x[2:2])
case("reverse", lambda d: (d(3, 4),), lambda x: lax.rev(x, (0,)) * x)
case("pad", lambda d: (d(3, 4), d()), lambda x, v: lax.pad(x, v, [(1, 2, 0), (0, 1, 2)]))
case("negative pad", lambda d: (d(5, 4), d()), lambda x, v: lax.pad(x, v, [(-1, 2, 1), (1, -2, 0)]))
case("concatenate", lambda d: (d(2, 3), d(4, 3), d(0, 3)), lambda *xs: lax.concatenate(xs, 0))
case("barrier", lambda d: (d(2, 3),), lambda x: lax.optimization_barrier(x * 2) * x)
case("identity", lambda d: (d(2),), lambda x: x)
case("unused", lambda d: (d(2), d(3)), lambda x, y: x * 2)
case("several results", lambda d: (d(3, 2),), lambda x: (x, x.sum(), x * x, x.astype(jnp.int32)))
case("stop_gradient", lambda d: (d(3),), lambda x: x * jnp.floor(x) + jnp.round(x))

# ---- products ----

case("matmul", lambda d: (d(3, 4), d(4, 5)), jnp.matmul)
case("vectors", lambda d: (d(4), d(4)), jnp.dot)
case("batched", lambda d: (d(2, 3, 4), d(2, 4, 5)), jnp.matmul)
case("outer", lambda d: (d(3), d(2)), jnp.outer)
case("einsum", lambda d: (d(2, 3, 4), d(3, 5, 2, 4)), lambda x, y: jnp.einsum("abc,bdac->dab", x, y))
case(
    "two contracted",
    lambda d: (d(3, 4, 2), d(2, 5, 3)),
    lambda x, y: lax.dot_general(x, y, (((0, 2), (2, 0)), ((), ()))),
)
case("empty product", lambda d: (d(3, 0), d(0, 2)), jnp.matmul)
case(
    "f32 to f64",
    lambda d: (d(3, 4), d(4, 2)),
    lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float64),
)


def _conv(d: Draw) -> tuple[Array, ...]:
    return d(2, 4, 7, 6), d(6, 4, 3, 2)


def convolution(**options: Any) -> Callable[..., Any]:
    options = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), **options}
    return lambda x, w: lax.conv_general_dilated(x, w, **options)


case("convolution", _conv, convolution())
case("padded", _conv, convolution(padding=((1, 2), (0, 3))))
case("cropped", _conv, convolution(padding=((-1, 2), (1, -1))))
case("strided", _conv, convolution(window_strides=(2, 3), padding=((1, 1), (2, 0))))
case("dilated", _conv, convolution(rhs_dilation=(2, 3), padding=((1, 1), (2, 0))))
case("input dilated", _conv, convolution(lhs_dilation=(2, 3), padding=((1, 1), (2, 0))))
case(
    "all dilated",
    _conv,
    convolution(window_strides=(2, 1), lhs_dilation=(3, 2), rhs_dilation=(2, 1), padding=((2, 1), (0, 2))),
)
case("grouped", lambda d: (d(2, 4, 7, 6), d(6, 2, 3, 2)), convolution(feature_group_count=2, window_strides=(2, 1)))
case(
    "depthwise", lambda d: (d(2, 4, 5, 6), d(4, 1, 3, 2)), convolution(feature_group_count=4, padding=((1, 1), (1, 0)))
)
case("batch groups", lambda d: (d(4, 3, 5, 6), d(6, 3, 3, 2)), convolution(batch_group_count=2, window_strides=(1, 2)))
case(
    "channels last",
    lambda d: (d(2, 5, 6, 4), d(3, 2, 2, 6)),
    convolution(
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2, padding="SAME", window_strides=(2, 2)
    ),
)
case("one dimension", lambda d: (d(2, 3, 8), d(4, 3, 3)), lambda x, w: lax.conv_general_dilated(x, w, (2,), [(1, 1)]))
case("no batch", lambda d: (d(0, 4, 7, 6), d(6, 4, 3, 2)), convolution())

# ---- reductions ----

case("sum", lambda d: (d(3, 4, 2),), lambda x: jnp.sum(x, (0, 2)))
case("sum of all", lambda d: (d(3, 4),), jnp.sum)
case("sum of nothing", lambda d: (d(3, 0),), lambda x: jnp.sum(x, 1))
case("mean", lambda d: (d(3, 4),), lambda x: jnp.mean(x * x, 0))
case("max over axes", lambda d: (d(3, 4, 2),), lambda x: jnp.max(x, (0, 2)))
case("min over axes", lambda d: (d(3, 4, 2),), lambda x: jnp.min(x, 1))
case(
    "ties", lambda d: (np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]),), lambda x: (jnp.max(x, 1), jnp.min(x, 0)), "kink"
)
case("prod", lambda d: (d(3, 4),), lambda x: jnp.prod(x, 1))
case(
    "prod of zeros",
    lambda d: (np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 2.0], [1.0, 2.0, 3.0]]),),
    lambda x: jnp.prod(x, 1),
)
case("prod of all", lambda d: (d(3, 2, 2),), jnp.prod)
case("logsumexp", lambda d: (d(3, 4),), lambda x: jax.nn.logsumexp(x, 1))
case("any", lambda d: (d(3, 4),), lambda x: jnp.any(x > 0, 1) * x[:, 0])
case("argmax", lambda d: (d(3, 4),), lambda x: jnp.argmax(x, 1) * x[:, 0])
case(
    "own body",
    lambda d: (d.positive(5, 2),),
    lambda x: lax.reduce(x, np.float64(0.0), lambda a, b: a * b + a + b, (0,)),
    "own",
)
case("cumsum", lambda d: (d(3, 5),), lambda x: jnp.cumsum(x, 1))
case("cumprod", lambda d: (d(3, 5),), lambda x: jnp.cumprod(x, 0))
case("cummax", lambda d: (d.distinct(3, 5),), lambda x: lax.cummax(x, 1))
case("cumlogsumexp", lambda d: (d(3, 5),), lambda x: lax.cumlogsumexp(x, 1, reverse=True))

# ---- windows ----


def window(body: Callable[..., Any], init: float, **options: Any) -> Callable[..., Any]:
    options = {"window_dimensions": (1, 3, 2), "window_strides": (1, 2, 1), "padding": ((0, 0),) * 3, **options}
    return lambda x: lax.reduce_window(x, np.float64(init), body, **options)


_ROOM = ((0, 0), (1, 2), (2, 0))
case("sum pool", lambda d: (d(2, 7, 5),), window(lax.add, 0.0))
case("padded sum", lambda d: (d(2, 7, 5),), window(lax.add, 0.0, padding=_ROOM))
case("dilated sum", lambda d: (d(2, 7, 5),), window(lax.add, 0.0, padding=_ROOM, window_dilation=(1, 2, 3)))
case("spread sum", lambda d: (d(2, 7, 5),), window(lax.add, 0.0, padding=_ROOM, base_dilation=(1, 2, 3)))
case("max pool", lambda d: (d.distinct(2, 7, 5),), window(lax.max, -np.inf))
case("padded max", lambda d: (d.distinct(2, 7, 5),), window(lax.max, -np.inf, padding=_ROOM))
case("min pool", lambda d: (d.distinct(2, 7, 5),), window(lax.min, np.inf, padding=_ROOM))
case("max pool ties", lambda d: (np.ones((1, 7, 5)),), window(lax.max, -np.inf), "kink", "reverse")
case("dilated max", lambda d: (d.distinct(2, 7, 5),), window(lax.max, -np.inf, window_dilation=(1, 2, 2)), "own")
case("product pool", lambda d: (d.positive(2, 7, 5),), window(lax.mul, 1.0, padding=_ROOM), "own")
case("own window", lambda d: (d.positive(1, 5, 4),), window(lambda a, b: a + b * b, 0.0), "own")

# ---- indices ----

case("take", lambda d: (d(5, 3),), lambda x: x[jnp.array([0, 4, 4, 2])])
case("take out of range", lambda d: (d(5, 3),), lambda x: x.at[jnp.array([0, 7, -1])].get(mode="clip"))
case("take fill", lambda d: (d(5, 3),), lambda x: x.at[jnp.array([0, 7, 2])].get(mode="fill", fill_value=0.0))
case("take along", lambda d: (d(3, 5),), lambda x: jnp.take_along_axis(x, jnp.array([[1, 1], [0, 4], [2, 3]]), 1))
case("take pairs", lambda d: (d(3, 5, 2),), lambda x: x[jnp.array([0, 2, 2]), jnp.array([4, 1, 1])])
case(
    "take windows",
    lambda d: (d(6, 5),),
    lambda x: lax.gather(
        x, jnp.array([[1, 0], [3, 2], [9, 9]]), lax.GatherDimensionNumbers((1, 2), (), (0, 1)), (2, 3), mode="clip"
    ),
)
case("put", lambda d: (d(5, 3), d(2, 3)), lambda x, y: x.at[jnp.array([1, 3])].set(y))
case("put twice", lambda d: (d(5, 3), d(3, 3)), lambda x, y: x.at[jnp.array([1, 3, 1])].set(y))
case("put unique", lambda d: (d(5, 3), d(2, 3)), lambda x, y: x.at[jnp.array([1, 3])].set(y, unique_indices=True))
case("add at", lambda d: (d(5, 3), d(3, 3)), lambda x, y: x.at[jnp.array([1, 3, 1])].add(y))
case("add out of range", lambda d: (d(5, 3), d(3, 3)), lambda x, y: x.at[jnp.array([1, 9, -9])].add(y, mode="drop"))
case("multiply at", lambda d: (d(5, 3), d(2, 3)), lambda x, y: x.at[jnp.array([1, 3])].multiply(y, unique_indices=True))
case(
    "multiply twice",
    lambda d: (d(5, 3), np.where(d.integers(0, 3, 4, 3) == 0, 0.0, d(4, 3))),
    lambda x, y: x.at[jnp.array([1, 3, 1, 9])].multiply(y, mode="drop"),
    "own",
    "unlike",
)
case("max at", lambda d: (d(5, 3), d(3, 3)), lambda x, y: x.at[jnp.array([1, 3, 1])].max(y))
case(
    "min at ties", lambda d: (np.ones((4, 2)), np.ones((3, 2))), lambda x, y: x.at[jnp.array([1, 3, 1])].min(y), "kink"
)
case(
    "add windows",
    lambda d: (d(6, 5), d(3, 2, 3)),
    lambda x, y: lax.scatter_add(
        x, jnp.array([[1, 0], [3, 2], [9, 9]]), y, lax.ScatterDimensionNumbers((1, 2), (), (0, 1)), mode="drop"
    ),
)
case("dynamic slice", lambda d: (d(5, 6),), lambda x: lax.dynamic_slice(x, (jnp.array(3), jnp.array(9)), (2, 3)))
case(
    "dynamic update",
    lambda d: (d(5, 6), d(2, 3)),
    lambda x, y: lax.dynamic_update_slice(x, y, (jnp.array(9), jnp.array(1))),
)
case("sort", lambda d: (d(3, 5),), lambda x: jnp.sort(x, 1))
case("sort two", lambda d: (d.distinct(4, 3), d(4, 3)), lambda x, y: lax.sort((x, y), dimension=0, num_keys=1))
case("top_k", lambda d: (d.distinct(3, 6),), lambda x: lax.top_k(x, 2)[0])
case("median", lambda d: (d.distinct(7),), jnp.median)

# ---- matrices and transforms ----


def _definite(d: Draw, *sizes: int) -> Array:
    a = d(*sizes)
    return a @ np.swapaxes(a, -1, -2) + 3 * np.eye(sizes[-1])


case("cholesky", lambda d: (_definite(d, 2, 3, 3),), lax.linalg.cholesky)
case("complex cholesky", lambda d: (_definite(d, 3, 3) + 0j,), lax.linalg.cholesky, "complex")
for _left in (True, False):
    for _lower in (True, False):
        for _turn in (True, False):
            case(
                f"solve {_left} {_lower} {_turn}",
                lambda d: (d(2, 3, 3) + 3 * np.eye(3), d(2, 3, 3)),
                lambda a, b, left=_left, lower=_lower, turn=_turn: lax.linalg.triangular_solve(
                    a, b, left_side=left, lower=lower, transpose_a=turn
                ),
            )
case(
    "unit solve",
    lambda d: (d(3, 3), d(3, 2)),
    lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True, unit_diagonal=True),
)
case(
    "adjoint solve",
    lambda d: (d.complex(3, 3) + 3 * np.eye(3), d.complex(3, 2)),
    lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True, transpose_a=True, conjugate_a=True),
    "complex",
)
case("fft", lambda d: (d.complex(2, 6),), jnp.fft.fft, "complex")
case("ifft 2d", lambda d: (d.complex(3, 4),), jnp.fft.ifft2, "complex")
case("rfft", lambda d: (d(2, 6),), jnp.fft.rfft, "complex")
case("rfft odd", lambda d: (d(3, 5),), jnp.fft.rfft2, "complex")
case("irfft", lambda d: (d.complex(2, 4),), jnp.fft.irfft, "complex")
case("irfft odd", lambda d: (d.complex(2, 3),), lambda x: jnp.fft.irfft(x, 5), "complex")

# ---- control flow ----

case("cond", lambda d: (d(3),), lambda x: lax.cond(x[0] > 0, lambda: x * x, lambda: jnp.sin(x)))
case(
    "switch",
    lambda d: (d(3), d(3)),
    lambda x, y: (
        lax.switch(
            1,
            [lambda: x, lambda: x * y, lambda: y],
        )
        + x
    ),
)
case(
    "data switch",
    lambda d: (d(3),),
    lambda x: lax.switch((x[0] > 9).astype(int) + 1, [lambda: x, lambda: x * x, lambda: -x]),
)
case("fori", lambda d: (d(3),), lambda x: lax.fori_loop(0, 4, lambda i, s: jnp.sin(s) * x + i, x))
case(
    "countdown",
    lambda d: (d(2),),
    lambda x: lax.while_loop(lambda s: s[0] > 2, lambda s: (s[0] - 2, s[1] * x), (9, x))[1],
    "forward",
)
case(
    "while",
    lambda d: (d.positive(2),),
    lambda x: lax.while_loop(lambda s: s.sum() < 50.0, lambda s: s * 2 + x, x),
    "forward",
)
case("scan", lambda d: (d(4, 3), d(3)), lambda xs, c: lax.scan(lambda s, x: (jnp.tanh(s + x), s * x), c, xs))
case(
    "reverse scan",
    lambda d: (d(4, 3), d(3), d(3, 3)),
    lambda xs, c, w: lax.scan(lambda s, x: (jnp.tanh(s @ w + x), s * x), c, xs, reverse=True),
)
case("empty scan", lambda d: (d(0, 3), d(3)), lambda xs, c: lax.scan(lambda s, x: (s * x, s), c, xs))
case(
    "scan in scan",
    lambda d: (d(3, 2), d(2)),
    lambda xs, c: lax.scan(lambda s, x: (lax.scan(lambda t, y: (t * y + 1, t), s, xs)[0], x), c, xs),
)
case(
    "cond in scan",
    lambda d: (d(4, 3), d(3)),
    lambda xs, c: lax.scan(lambda s, x: (lax.cond(x[0] > 0, lambda: s * x, lambda: s + x), s), c, xs),
)
case("map", lambda d: (d(4, 3),), lambda xs: lax.map(lambda x: x * x.sum(), xs))
case("associative scan", lambda d: (d(5, 2),), lambda xs: lax.associative_scan(jnp.multiply, xs))

# ---- networks in small ----


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / 2.0
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1), v)


def _norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _network(x: Any, w: Any, v: Any) -> Any:
    h = jax.nn.gelu(lax.conv_general_dilated(x, w, (1, 1), "SAME"))
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID").reshape(x.shape[0], -1)
    return -jnp.mean(jax.nn.log_softmax(h @ v)[jnp.arange(x.shape[0]), jnp.array([1, 0])])


case("attention", lambda d: (d(2, 3, 4), d(2, 5, 4), d(2, 5, 4)), _attention, "network")
case("layer norm", lambda d: (d(3, 5), d(5)), _norm, "network")
case("network", lambda d: (d(2, 1, 4, 4), d(3, 1, 3, 3), d(12, 2)), _network, "network")
case(
    "gru",
    lambda d: (d(4, 2, 3), d(2, 3), d(3, 3)),
    lambda xs, c, w: lax.scan(lambda s, x: ((z := jax.nn.sigmoid(x @ w)) * s + (1 - z) * jnp.tanh(s @ w), s), c, xs),
    "network",
)
