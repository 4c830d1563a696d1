"""Every op of the front end as a case: the op on tensors, the same on NumPy arrays, and the shapes it is tried on.

`test_values` runs each case on random sizes and element types: on data, traced over symbols, and some compiled
natively.
The oracles are NumPy's in double precision, SciPy-like functions JAX's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import smelt
from smelt.dtype import dtype as dtype_of
from smelt.tensor import atan2, complex_from

FLOATS = ("f32", "f64", "bf16", "f16")
INTEGERS = ("i8", "i32", "i64", "ui8", "ui32")
SIGNED = ("i8", "i32", "i64")
NUMBERS = ("f32", "f64", "bf16", "i32", "i8", "ui8")
REAL = ("f32", "f64", "i32", "ui8")


@dataclass(frozen=True)
class Case:
    """One op: `inputs` are shapes without element types; `least` are sizes below which it has no value."""

    name: str
    op: Callable[..., Any]
    oracle: Callable[..., Any]
    inputs: tuple[str, ...]
    types: tuple[str, ...] = ("f32", "f64")
    least: dict[str, int] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    draw: Callable[..., Any] | None = None  # replaces the random inputs
    exact: bool = False
    native: bool = True


def wide(array: np.ndarray) -> np.ndarray:
    """The array in the type in which an oracle computes."""
    if array.dtype == ml_dtypes.bfloat16 or array.dtype.kind == "f":
        return array.astype(np.float64)
    return array


def positive(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [(np.abs(wide(a)) + 0.5).astype(a.dtype) for a in arrays]


def inside_one(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [(np.tanh(wide(a)) * 0.9).astype(a.dtype) for a in arrays]


def above_one(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [(np.abs(wide(a)) + 1.25).astype(a.dtype) for a in arrays]


def no_zero(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    first, second = arrays
    return [first, np.where(second == 0, np.ones_like(second), second).astype(second.dtype)]


def shifts(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0], (np.abs(arrays[1].astype(np.int64)) % 7).astype(arrays[1].dtype)]


def by_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's function in double precision, compiled as one: each operation alone would be compiled for each size."""
    whole = jax.jit(function)

    def oracle(*arrays: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(whole(*arrays))

    return oracle


AB = ("[a=A, b=B]",)
TWO = ("[a=A, b=B]", "[a=A, b=B]")
INNER = ("[a=A, b=B]", "[b=B]")
CASES: list[Case] = []
function: Any


def case(
    name: str, op: Callable[..., Any], oracle: Callable[..., Any], inputs: tuple[str, ...], **options: Any
) -> None:
    CASES.append(Case(name, op, oracle, inputs, **options))


# ---- elementwise ----

case("add", lambda x, y: x + y, np.add, TWO, types=NUMBERS)
case("add inner", lambda x, y: x + y, np.add, INNER, types=NUMBERS)
case("add front", lambda x, y: x + y, lambda x, y: x + y[:, None], ("[a=A, b=B]", "[a=A]"), types=NUMBERS)
case("add turned", lambda x, y: x + y, lambda x, y: x + y.T, ("[a=A, b=B]", "[b=B, a=A]"), types=NUMBERS)
case("subtract", lambda x, y: x - y, np.subtract, TWO, types=NUMBERS)
case("multiply", lambda x, y: x * y, np.multiply, TWO, types=NUMBERS)
case("divide", lambda x, y: x / y, np.divide, TWO, types=FLOATS, draw=no_zero)
case("floor_divide", lambda x, y: x // y, np.floor_divide, TWO, types=("i32", "i8", "ui8"), draw=no_zero)
case("remainder", lambda x, y: x % y, np.remainder, TWO, types=("i32", "i8", "ui8", "f64"), draw=no_zero)
case("power", lambda x, y: x**y, np.power, TWO, types=("f32", "f64"), draw=positive)
case("cube", lambda x: x**3, lambda x: x * x * x, AB, types=("f32", "i32"))
case("scalar", lambda x: 2 * x + 1 - x / 4, lambda x: 2 * x + 1 - x / 4, AB, types=FLOATS)
case("reversed scalar", lambda x: 1 - x, lambda x: (1 - x).astype(x.dtype), AB, types=("f32", "i32", "i8"))
case("negative", lambda x: -x, np.negative, AB, types=("f32", "i32", "i8", "bf16"))
case("abs", abs, np.abs, AB, types=("f32", "i32", "ui8", "f16"))
case("sign", lambda x: x.sign(), np.sign, AB, types=("f32", "i32"))
case("maximum", lambda x, y: x.maximum(y), np.maximum, INNER, types=NUMBERS)
case("minimum", lambda x, y: x.minimum(y), np.minimum, INNER, types=NUMBERS)
case("clamp", lambda x: x.clamp(-1, 1), lambda x: np.clip(x, -1, 1), AB, types=("f32", "i32"))
case("outer", lambda x, y: smelt.outer("*", x, y), np.multiply.outer, ("[a=A]", "[b=B]"), types=NUMBERS)
COMPARISONS = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater}
for symbol, function in (COMPARISONS | {">=": np.greater_equal}).items():
    case(symbol, eval(f"lambda x, y: x {symbol} y"), function, TWO, types=NUMBERS)
for symbol, function in (("&", np.bitwise_and), ("|", np.bitwise_or), ("^", np.bitwise_xor)):
    case(symbol, eval(f"lambda x, y: x {symbol} y"), function, TWO, types=(*INTEGERS, "i1"))
case("~", lambda x: ~x, np.invert, AB, types=(*INTEGERS, "i1"))
case("<<", lambda x, y: x << y, np.left_shift, TWO, types=("i32", "ui32"), draw=shifts)
case(">>", lambda x, y: x >> y, np.right_shift, TWO, types=("i32", "ui32", "i8"), draw=shifts)
case(
    "logical",
    lambda x, y: x.logical_and(y).logical_or(~x).logical_xor(y),
    lambda x, y: ((x & y) | ~x) ^ y,
    TWO,
    types=("i1",),
)
case(
    "where",
    lambda x, y: smelt.where(x > y, x, y * 2),
    lambda x, y: np.where(x > y, x, y * 2),
    INNER,
    types=("f32", "i32"),
)
case("where scalar", lambda x: smelt.where(x > 0, x, 0), lambda x: np.where(x > 0, x, 0), AB, types=("f32", "i32"))
case("atan2", lambda x, y: atan2(x, y), np.arctan2, TWO)
case("popcount", lambda x: x.popcount(), np.bitwise_count, AB, types=("ui8", "ui32"))
case("count_leading_zeros", lambda x: x.count_leading_zeros(), by_jax(jax.lax.clz), AB, types=("i32", "ui8"))
case("isfinite", lambda x: (x / 0.0).isfinite(), lambda x: np.isfinite(x / 0.0), AB)
case("isinf", lambda x: (x / 0.0).isinf(), lambda x: np.isinf(x / 0.0), AB)
case("isnan", lambda x: (x / 0.0).isnan(), lambda x: np.isnan(x / 0.0), AB)
case("square", lambda x: x.square(), np.square, AB, types=("f32", "i32"))
case("reciprocal", lambda x: x.reciprocal(), np.reciprocal, AB, draw=positive)
case("trunc", lambda x: x.trunc(), np.trunc, AB)

for name, function in (
    ("exp", np.exp), ("expm1", np.expm1), ("sin", np.sin), ("cos", np.cos), ("tan", np.tan), ("atan", np.arctan),
    ("sinh", np.sinh), ("cosh", np.cosh), ("tanh", np.tanh), ("asinh", np.arcsinh), ("floor", np.floor),
    ("ceil", np.ceil), ("round", np.round), ("cbrt", np.cbrt),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x))), ("erf", by_jax(jax.scipy.special.erf)),
    ("erfc", by_jax(jax.scipy.special.erfc)), ("softplus", lambda x: np.logaddexp(x, 0)),
    ("log_sigmoid", lambda x: -np.logaddexp(-x, 0)), ("softsign", lambda x: x / (1 + np.abs(x))),
    ("relu", lambda x: np.maximum(x, 0)), ("relu6", lambda x: np.clip(x, 0, 6)),
    ("silu", by_jax(jax.nn.silu)), ("mish", by_jax(jax.nn.mish)), ("selu", by_jax(jax.nn.selu)),
    ("hard_sigmoid", by_jax(jax.nn.hard_sigmoid)), ("hard_swish", by_jax(jax.nn.hard_swish)),
    ("elu", by_jax(jax.nn.elu)), ("celu", by_jax(jax.nn.celu)), ("leaky_relu", by_jax(jax.nn.leaky_relu)),
):  # fmt: skip
    case(name, eval(f"lambda x: x.{name}()"), function, AB, types=("f32", "f64"))
case("gelu", lambda x: x.gelu(), by_jax(lambda x: jax.nn.gelu(x, approximate=False)), AB)
case("gelu tanh", lambda x: x.gelu(True), by_jax(lambda x: jax.nn.gelu(x, approximate=True)), AB)
POSITIVE = {
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "log1p": np.log1p,
    "lgamma": by_jax(jax.scipy.special.gammaln),
    "digamma": by_jax(jax.scipy.special.digamma),
}
for name, function in POSITIVE.items():
    case(name, eval(f"lambda x: x.{name}()"), function, AB, draw=positive)
BOUNDED = {"asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh, "erf_inv": by_jax(jax.scipy.special.erfinv)}
for name, function in BOUNDED.items():
    case(name, eval(f"lambda x: x.{name}()"), function, AB, draw=inside_one)
case("acosh", lambda x: x.acosh(), np.arccosh, AB, draw=above_one)
case(
    "complex",
    lambda x, y: complex_from(x, y).conj().imag() + x,
    lambda x, y: -y + x,
    TWO,
    types=("f32", "f64"),
)
case(
    "complex product",
    lambda x, y: (complex_from(x, y) * complex_from(y, x)).real(),
    lambda x, y: x * y - y * x,
    TWO,
    types=("f64",),
)
for target in ("f32", "f16", "i32", "ui8", "i1", "f64"):
    case(
        f"to {target}",
        eval(f"lambda x: x.abs().to('{target}')"),
        lambda x, target=target: np.abs(x).astype(dtype_of(target).numpy),
        AB,
        types=("f32", "i32", "ui8"),
    )
case(
    "bitcast", lambda x: x.bitcast("i32"), lambda x: x.astype(np.float32).view(np.int32), AB, types=("f32",), exact=True
)

# ---- reductions ----

for name, function in (("sum", np.sum), ("prod", np.prod)):
    case(
        name,
        eval(f"lambda x: x.{name}('a')"),
        lambda x, f=function: f(x, 0, dtype=x.dtype),
        AB,
        types=("f32", "f64", "i32", "i8"),
    )
    case(
        f"{name} all",
        eval(f"lambda x: x.{name}()"),
        lambda x, f=function: f(x, dtype=x.dtype),
        AB,
        types=("f32", "f64", "i32"),
    )
case(
    "sum keep",
    lambda x: x.sum("b", keep=True),
    lambda x: x.sum(1, keepdims=True, dtype=x.dtype),
    AB,
    types=("f32", "i32"),
)
case("sum two", lambda x: x.sum("a c"), lambda x: x.sum((0, 2)), ("[a=A, b=B, c=C]",))
for name, function in (("max", np.max), ("min", np.min)):
    case(name, eval(f"lambda x: x.{name}('b')"), lambda x, f=function: f(x, 1), AB, types=NUMBERS, least={"B": 1})
    case(
        f"{name} keep",
        eval(f"lambda x: x.{name}('a', keep=True)"),
        lambda x, f=function: f(x, 0, keepdims=True),
        AB,
        least={"A": 1},
    )
case("all", lambda x: (x > 0).all("b"), lambda x: (x > 0).all(1), AB)
case("any", lambda x: (x > 0).any("a"), lambda x: (x > 0).any(0), AB)
case("mean", lambda x: x.mean("b"), lambda x: x.mean(1), AB, types=FLOATS, least={"B": 1})
case("mean all", lambda x: x.mean(), lambda x: np.mean(x), AB, least={"A": 1, "B": 1})
case("var", lambda x: x.var("b"), lambda x: x.var(1), AB, least={"B": 1})
case("std corrected", lambda x: x.std("b", correction=1), lambda x: x.std(1, ddof=1), AB, least={"B": 2})
case("norm", lambda x: x.norm("a"), lambda x: np.sqrt((x * x).sum(0)), AB)
case("logsumexp", lambda x: x.logsumexp("b"), by_jax(lambda x: jax.scipy.special.logsumexp(x, 1)), AB, least={"B": 1})
case("softmax", lambda x: x.softmax("b"), by_jax(lambda x: jax.nn.softmax(x, 1)), AB, types=("f32", "f64"))
case("softmax front", lambda x: x.softmax("a"), by_jax(lambda x: jax.nn.softmax(x, 0)), AB)
case("log_softmax", lambda x: x.log_softmax("b"), by_jax(lambda x: jax.nn.log_softmax(x, 1)), AB)
case(
    "argmax",
    lambda x: x.argmax("b"),
    lambda x: np.argmax(x, 1).astype(np.int32),
    AB,
    types=REAL,
    least={"B": 1},
    facts=("B >= 1",),
    exact=True,
)
case(
    "argmin",
    lambda x: x.argmin("a", keep=True),
    lambda x: np.argmin(x, 0, keepdims=True).astype(np.int32),
    AB,
    types=REAL,
    least={"A": 1},
    facts=("A >= 1",),
    exact=True,
)
for name, function in (
    ("cumsum", np.cumsum),
    ("cumprod", np.cumprod),
    ("cummax", np.maximum.accumulate),
    ("cummin", np.minimum.accumulate),
):
    case(
        name,
        eval(f"lambda x: x.{name}('b')"),
        lambda x, f=function: f(x, 1, dtype=x.dtype),
        AB,
        types=("f32", "f64", "i32"),
    )
case(
    "cumsum back",
    lambda x: x.cumsum("a", reverse=True),
    lambda x: np.cumsum(x[::-1], 0, dtype=x.dtype)[::-1],
    AB,
    types=("f32", "i32"),
)
case("sort", lambda x: x.sort("b"), lambda x: np.sort(x, 1), AB, types=REAL, exact=True)
case(
    "sort down", lambda x: x.sort("a", descending=True), lambda x: -np.sort(-x, 0), AB, types=("f32", "i32"), exact=True
)
case(
    "argsort",
    lambda x: x.argsort("b"),
    lambda x: np.argsort(x, 1, kind="stable").astype(np.int32),
    AB,
    types=REAL,
    exact=True,
)
case(
    "top_k",
    lambda x: x.top_k(2, "b"),
    by_jax(lambda x: jax.lax.top_k(x, 2)[0]),
    AB,
    types=("f32", "i32"),
    least={"B": 2},
    facts=("B >= 2",),
    exact=True,
)
case(
    "top_k front",
    lambda x: x.top_k(1, "a")[1],
    by_jax(lambda x: jax.lax.top_k(x.T, 1)[1].T),
    AB,
    types=("f32", "i32"),
    least={"A": 1},
    facts=("A >= 1",),
    exact=True,
)

# ---- moving ----

ABC = ("[a=A, b=B, c=C]",)
MOVED: dict[str, Any] = {"types": ("f32", "i32", "i1"), "exact": True}
case("transpose", lambda x: x.transpose("c a b"), lambda x: x.transpose(2, 0, 1), ABC, **MOVED)
case("reversed axes", lambda x: x.transpose(), lambda x: x.T, ABC, **MOVED)
case("rename", lambda x: x.rename(a="z"), lambda x: x, ABC, **MOVED)
case("merge", lambda x: x.merge("a b", "ab"), lambda x: x.reshape(x.shape[0] * x.shape[1], x.shape[2]), ABC, **MOVED)
case(
    "split",
    lambda x: x.split("a", y=x.size("a") // 3, x=3),
    lambda x: x.reshape(-1, 3, *x.shape[1:]) if x.size else x.reshape(x.shape[0] // 3, 3, *x.shape[1:]),
    ("[a=3*A, b=B]",),
    **MOVED,
)
case(
    "split open",
    lambda x: x.split("a", y=None, x=3),
    lambda x: x.reshape(x.shape[0] // 3, 3, *x.shape[1:]),
    ("[a=3*A, b=B]",),
    **MOVED,
)
case(
    "reshape",
    lambda x: x.reshape(a=x.size("a"), bc=x.size("b") * x.size("c")),
    lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2]),
    ABC,
    **MOVED,
)
case("insert", lambda x: x.insert("z", 1), lambda x: x[:, None], ABC, **MOVED)
case("squeeze", lambda x: x.squeeze("b"), lambda x: x[:, 0], ("[a=A, b=1]",), **MOVED)
case("broadcast", lambda x: x.broadcast(n=3), lambda x: np.broadcast_to(x, (3, *x.shape)), AB, **MOVED)
case("repeat", lambda x: x.repeat("a", 3), lambda x: np.repeat(x, 3, 0), AB, **MOVED)
case("tile", lambda x: x.tile("b", 2), lambda x: np.tile(x, (1, 2)), AB, **MOVED)
case("flip", lambda x: x.flip("b"), lambda x: x[:, ::-1], AB, **MOVED)
for text in ("1:", ":-1", "::2", "1::2", "-2:", ":3", "2:1", "::-1", "1:4:2", "-3:-1"):
    case(f"[{text}]", eval(f"lambda x: x[{text}]"), eval(f"lambda x: x[{text}]"), AB, **MOVED)
case("[:, 1:]", lambda x: x[:, 1:], lambda x: x[:, 1:], AB, **MOVED)
case("[..., ::2]", lambda x: x[..., ::2], lambda x: x[..., ::2], ABC, **MOVED)
case("[-1]", lambda x: x[-1], lambda x: x[-1], AB, least={"A": 1}, facts=("A >= 1",), **MOVED)
case(
    "slice by name",
    lambda x: x.slice(b=slice(1, None), a=0),
    lambda x: x[0, 1:],
    AB,
    least={"A": 1},
    facts=("A >= 1",),
    **MOVED,
)
case(
    "pad",
    lambda x: x.pad(b=(1, 2), value=7),
    lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=7),
    AB,
    types=("f32", "i32"),
    exact=True,
)
case(
    "pad to 8",
    lambda x: x.pad(a=(0, -x.size("a") % 8)),
    lambda x: np.pad(x, ((0, -len(x) % 8), (0, 0))),
    AB,
    types=("f32", "i32"),
    exact=True,
)
case(
    "pad and split",
    lambda x: x.pad(a=(0, -x.size("a") % 4)).split("a", n=None, k=4),
    lambda x: np.pad(x, ((0, -len(x) % 4), (0, 0))).reshape(-(-len(x) // 4), 4, x.shape[1]),
    AB,
    types=("f32",),
    exact=True,
)
case(
    "pad inside",
    lambda x: x.pad(a=(1, 0, 1)),
    lambda x: np.pad(_holes(x), ((1, 0), (0, 0))),
    AB,
    types=("f32",),
    exact=True,
)
case(
    "concatenate",
    lambda x, y: smelt.concatenate([x, y], "a"),
    lambda x, y: np.concatenate([x, y]),
    ("[a=A, b=B]", "[a=C, b=B]"),
    **MOVED,
)
case(
    "concatenate turned",
    lambda x, y: smelt.concatenate([x, y], "a"),
    lambda x, y: np.concatenate([x, y.T]),
    ("[a=A, b=B]", "[b=B, a=C]"),
    **MOVED,
)
case("stack", lambda x, y: smelt.stack([x, y, x], "n"), lambda x, y: np.stack([x, y, x]), TWO, **MOVED)
case("chunk", lambda x: x.chunk("a", 2)[1], lambda x: x[len(x) // 2 :], ("[a=2*A, b=B]",), **MOVED)
case("roll", lambda x: x.roll("a", 1), lambda x: np.roll(x, 1, 0), AB, least={"A": 1}, facts=("A >= 1",), **MOVED)
case(
    "iota",
    lambda x: x + smelt.iota(x.shape, "b"),
    lambda x: x + np.arange(x.shape[1], dtype=x.dtype),
    AB,
    types=("f32", "i32"),
    exact=True,
)
case(
    "arange",
    lambda x: x + smelt.arange(x.size("b"), "b", "i32"),
    lambda x: x + np.arange(x.shape[1], dtype=np.int32),
    AB,
    types=("i32",),
    exact=True,
)


def _holes(x: np.ndarray) -> np.ndarray:
    wide = np.zeros((max(2 * len(x) - 1, 0), x.shape[1]), x.dtype)
    wide[::2] = x
    return wide


# ---- matrix multiplication ----

case("dot", lambda x, y: x.dot(y, "k"), lambda x, y: x @ y, ("[a=A, k=K]", "[k=K, b=B]"), types=("f32", "f64", "i32"))
case("dot turned", lambda x, y: x.dot(y, "k"), lambda x, y: x.T @ y.T, ("[k=K, a=A]", "[b=B, k=K]"))
case(
    "dot batched",
    lambda x, y: x.dot(y, "k"),
    lambda x, y: np.einsum("nak,kbn->nab", x, y),
    ("[n=N, a=A, k=K]", "[k=K, b=B, n=N]"),
)
case(
    "dot two",
    lambda x, y: x.dot(y, "k l"),
    lambda x, y: np.einsum("akl,lkb->ab", x, y),
    ("[a=A, k=K, l=L]", "[l=L, k=K, b=B]"),
)
case("dot all", lambda x, y: x.dot(y, "a b"), lambda x, y: np.sum(x * y), TWO)
case("@", lambda x, y: x @ y, lambda x, y: x @ y, ("[a=A, k=K]", "[k=K, b=B]"))
case("@ unnamed", lambda x, y: x @ y, lambda x, y: x @ y, ("[2*A, K]", "[K, 2*B]"))
case("@ vector", lambda x, y: x @ y, lambda x, y: x @ y, ("[2*A, K+1]", "[K+1]"))
case("@ batched", lambda x, y: x @ y, lambda x, y: x @ y, ("[2, A, K]", "[2, K, B]"))
case("@ rows", lambda x, y: x @ y, lambda x, y: x @ y, ("[2*A, K]", "[2, K, B]"))
case(
    "attention",
    lambda q, k, v: (q.dot(k, "d") * 0.5).softmax("t").dot(v, "t"),
    by_jax(lambda q, k, v: jax.nn.softmax(jnp.einsum("nsd,ntd->nst", q, k) * 0.5, -1) @ v),
    ("[n=N, s=S, d=D]", "[n=N, t=T, d=D]", "[n=N, t=T, e=E]"),
)
IMAGE = ("[n=N, c=2, y=Y+3, x=X+3]", "[o=4, c=2, y=3, x=2]")


def conv_of(
    strides: tuple[int, int] = (1, 1), padding: Any = "VALID", dilation: tuple[int, int] = (1, 1), **more: Any
) -> Any:
    def run(x: Any, k: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, k, strides, padding, rhs_dilation=dilation, dimension_numbers=("NCHW", "OIHW", "NCHW"), **more
        )

    return by_jax(run)


case("conv", lambda x, k: x.conv(k, "y x"), conv_of(), IMAGE)
case(
    "conv strided",
    lambda x, k: x.conv(k, "y x", strides=2, padding=[(1, 1), (0, 1)]),
    conv_of((2, 2), [(1, 1), (0, 1)]),
    IMAGE,
)
case("conv same", lambda x, k: x.conv(k, "y x", padding="same"), conv_of(padding="SAME"), IMAGE)
case(
    "conv dilated",
    lambda x, k: x.conv(k, "x", dilation=2),
    by_jax(
        lambda x, k: jax.lax.conv_general_dilated(
            x, k, (1,), "VALID", rhs_dilation=(2,), dimension_numbers=("NCH", "OIH", "NCH")
        )
    ),
    ("[n=N, c=3, x=X+3]", "[o=2, c=3, x=2]"),
)
case(
    "conv transposed",
    lambda x, k: x.conv(k, "y x", input_dilation=2, padding=[(2, 2), (1, 1)], flip=True),
    by_jax(
        lambda x, k: jax.lax.conv_general_dilated(
            x,
            k[:, :, ::-1, ::-1],
            (1, 1),
            [(2, 2), (1, 1)],
            lhs_dilation=(2, 2),
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )
    ),
    IMAGE,
)
case(
    "conv groups",
    lambda x, k: x.conv(k, "y x", groups=2),
    conv_of(feature_group_count=2),
    ("[n=N, c=4, y=Y+3, x=X+3]", "[o=6, c=2, y=3, x=2]"),
)
case(
    "conv last",
    lambda x, k: x.conv(k, "y x"),
    by_jax(
        lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    ),
    ("[n=N, y=Y+2, x=X+2, c=3]", "[y=2, x=2, c=3, o=4]"),
)
case(
    "conv alone",
    lambda x, k: x.conv(k, "x"),
    by_jax(
        lambda x, k: jax.lax.conv_general_dilated(x[None], k, (1,), "VALID", dimension_numbers=("NCH", "OIH", "NCH"))[0]
    ),
    ("[c=3, x=X+3]", "[o=2, c=3, x=2]"),
)
POOL = ("[n=N, y=Y+2, x=X+3]",)
case(
    "max_pool",
    lambda x: x.max_pool({"y": 2, "x": 3}, {"y": 1, "x": 2}),
    by_jax(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 3), (1, 1, 2), "VALID")),
    POOL,
)
case(
    "sum_pool",
    lambda x: x.sum_pool({"y": 2}, padding=[(1, 1)]),
    by_jax(lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 1), (1, 2, 1), [(0, 0), (1, 1), (0, 0)])),
    POOL,
)
case(
    "mean_pool",
    lambda x: x.mean_pool({"y": 2, "x": 2}, padding={"y": (1, 0), "x": (0, 1)}),
    by_jax(
        lambda x: (
            jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2), (1, 2, 2), [(0, 0), (1, 0), (0, 1)])
            / jax.lax.reduce_window(jnp.ones_like(x), 0.0, jax.lax.add, (1, 2, 2), (1, 2, 2), [(0, 0), (1, 0), (0, 1)])
        )
    ),
    POOL,
)

# ---- looking places up ----


def places(limit_of: int, axis: int) -> Any:
    """Makes the last input places along an axis of input `limit_of`."""

    def draw(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
        size = arrays[limit_of].shape[axis]
        return [*arrays[:-1], rng.integers(0, size, arrays[-1].shape).astype(np.int32)]

    return draw


def placed_second(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    order = rng.permutation(arrays[0].shape[0])[: arrays[1].shape[0]]
    return [arrays[0], order.astype(np.int32), arrays[2]]


LOOK: dict[str, Any] = {"types": ("f32", "i32"), "least": {"V": 1}, "exact": True}
case("take", lambda t, i: t.take(i, "v"), lambda t, i: t[i], ("[v=V, d=D]", "[b=B, s=S]"), draw=places(0, 0), **LOOK)
case(
    "take inner", lambda t, i: t.take(i, "v"), lambda t, i: t[:, i], ("[d=D, v=V]", "[s=S]"), draw=places(0, 1), **LOOK
)
case(
    "take batched",
    lambda t, i: t.take(i, "v"),
    lambda t, i: np.take_along_axis(t, i[:, :, None], 1),
    ("[b=B, v=V, d=D]", "[b=B, s=S]"),
    draw=places(0, 1),
    **LOOK,
)
case(
    "take_along",
    lambda t, i: t.take_along(i, 1),
    lambda t, i: np.take_along_axis(t, i, 1),
    ("[2*B, V]", "[2*B, 3]"),
    draw=places(0, 1),
    **LOOK,
)


def _scatter(how: Any) -> Any:
    def oracle(t: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
        out = t.copy()
        how(out, i, u)
        return out

    return oracle


SCATTER: dict[str, Any] = {"types": ("f32", "i32"), "draw": placed_second, "facts": ("S <= V",), "least": {"V": 5}}
SCATTERED = ("[v=V, d=D]", "[s=S]", "[s=S, d=D]")
case(
    "scatter",
    lambda t, i, u: t.scatter(i, u, "v"),
    _scatter(lambda o, i, u: o.__setitem__(i, u)),
    SCATTERED,
    **SCATTER,
)
case(
    "scatter add",
    lambda t, i, u: t.scatter(i, u, "v", "add"),
    _scatter(lambda o, i, u: np.add.at(o, i, u)),
    SCATTERED,
    **SCATTER,
)
case(
    "scatter max",
    lambda t, i, u: t.scatter(i, u, "v", "max"),
    _scatter(lambda o, i, u: np.maximum.at(o, i, u)),
    SCATTERED,
    **SCATTER,
)
case(
    "one_hot",
    lambda i: i.one_hot(4, "k"),
    lambda i: np.eye(4, dtype=np.float32)[i],
    ("[a=A, b=B]",),
    types=("i32",),
    draw=lambda rng, arrays: [np.abs(arrays[0]) % 4],
    exact=True,
)


def _start(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [*arrays[:-1], np.array(rng.integers(-2, 9), np.int32)]


def _clamp(x: np.ndarray, start: Any, size: int) -> slice:
    first = min(max(int(start), 0), x.shape[0] - size)
    return slice(first, first + size)


case(
    "dynamic_slice",
    lambda x, i: x.dynamic_slice(a=(i, 2)),
    lambda x, i: x[_clamp(x, i, 2)],
    ("[a=A, b=B]", "[]"),
    types=("f32",),
    draw=_start,
    least={"A": 2},
    facts=("A >= 2",),
    exact=True,
)
case(
    "dynamic_slice symbolic",
    lambda x, y, i: x.dynamic_slice(a=(i, y.size("c"))),
    lambda x, y, i: x[_clamp(x, i, len(y))],
    ("[a=A, b=B]", "[c=C]", "[]"),
    types=("f32",),
    draw=_start,
    least={"A": 5},
    facts=("C <= A",),
    exact=True,
)


def _update(x: np.ndarray, y: np.ndarray, i: Any) -> np.ndarray:
    out = x.copy()
    out[int(i) : int(i) + len(y)] = y
    return out


def _start_inside(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    x, y, _ = arrays
    return [x, y, np.array(rng.integers(0, len(x) - len(y) + 1), np.int32)]


case(
    "update",
    lambda x, y, i: x.update(y, a=i),
    _update,
    ("[a=A, b=B]", "[a=C, b=B]", "[]"),
    types=("f32",),
    draw=_start_inside,
    least={"A": 5},
    facts=("C <= A",),
    exact=True,
)
