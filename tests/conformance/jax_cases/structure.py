"""Moving elements, folding them, products, convolutions, indexing and order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.conformance.jax_cases.case import (
    ALL,
    BOOL,
    C64,
    CLOSE,
    COMPLEXES,
    EXACT,
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    INTS,
    NARROW,
    REALS,
    SAMPLE,
    SIGNED,
    SUM,
    UNSIGNED,
    Array,
    Case,
    Tolerance,
    anything,
    between,
    distinct,
    few,
    given,
    kind,
    one,
    ordinary,
    types,
)

# ---- moving elements ----


def moves() -> Iterator[Case]:
    pads = [
        (((1, 2, 0), (0, 1, 0)), "edges"),
        (((-1, 1, 0), (2, -2, 0)), "negative"),
        (((0, 0, 2), (1, 0, 1)), "interior"),
        (((-2, -1, 1), (-3, 4, 2)), "both"),
        (((0, 0, 0), (-3, -1, 0)), "empty"),
    ]
    for (config, name), dtype in product(pads, SAMPLE):
        yield one(f"pad_{name}_{dtype}", partial(pad, config=config), ((3, 4), dtype, anything), ((), dtype, anything))
    for dtype in ALL:
        a = ((4, 5, 6), dtype, anything)
        yield one(f"slice_{dtype}", lambda x: lax.slice(x, (1, 0, 2), (4, 5, 6), (2, 1, 3)), a)
        yield one(f"reverse_{dtype}", lambda x: lax.rev(x, (0, 2)), a)
        yield one(f"transpose_{dtype}", lambda x: lax.transpose(x, (2, 0, 1)), a)
        yield one(f"reshape_{dtype}", lambda x: lax.reshape(x, (6, 20)), a)
        yield one(f"reshape_dims_{dtype}", lambda x: lax.reshape(x, (6, 20), (2, 0, 1)), a)
        yield one(f"concatenate_{dtype}", lambda x: lax.concatenate([x, x[:, 1:3], x[:, :0]], 1), a)
        yield one(f"broadcast_{dtype}", lambda x: lax.broadcast_in_dim(x[:, :1], (2, 4, 5, 6), (1, 2, 3)), a)
        yield one(f"squeeze_{dtype}", lambda x: lax.squeeze(x[:1, :, 2:3], (0, 2)), a)
        yield one(f"expand_{dtype}", lambda x: lax.expand_dims(x, (1, -1)), a)
        yield one(f"roll_{dtype}", lambda x: jnp.roll(x, (1, -2), (0, 2)), a)
        yield one(f"tile_{dtype}", lambda x: jnp.tile(x, (2, 1, 2)), a)
        yield one(f"tril_{dtype}", lambda x: jnp.tril(x, -1), a)
        yield one(f"repeat_{dtype}", lambda x: jnp.repeat(x, 3, axis=1), a)
        yield one(f"stack_{dtype}", lambda x: jnp.stack([x, x], 1), a)
        yield one(f"constant_{dtype}", partial(constant, dtype), ((), dtype, anything))
        yield one(f"splat_{dtype}", partial(lambda dtype, x: jnp.full((3, 2), 1, dtype) + x, dtype), ((), dtype, few))
        where = (((4, 5, 6), BOOL, anything), a, a)
        yield one(f"select_{dtype}", lax.select, *where)
        yield one(f"select_scalar_{dtype}", lax.select, ((), BOOL, anything), a, a)
        start = ((3,), I32, between(-3, 8))
        yield one(f"dynamic_slice_{dtype}", lambda x, s: lax.dynamic_slice(x, (s[0], s[1], s[2]), (2, 5, 3)), a, start)
        yield one(
            f"dynamic_update_slice_{dtype}",
            lambda x, u, s: lax.dynamic_update_slice(x, u, (s[0], s[1], s[2])),
            a,
            ((2, 5, 3), dtype, anything),
            start,
        )
    for index in (*SIGNED, *UNSIGNED):
        draw = anything
        yield one(
            f"dynamic_slice_by_{index}",
            lambda x, s: lax.dynamic_slice(x, (s,), (3,)),
            ((9,), F32, few),
            ((), index, draw),
        )
        yield one(
            f"dynamic_update_by_{index}",
            lambda x, s: lax.dynamic_update_slice(x, x[:3] + 1, (s,)),
            ((9,), F32, few),
            ((), index, draw),
        )
    for dtype in [*REALS, *COMPLEXES]:
        for axis in (0, 1):
            yield one(f"iota_{axis}_{dtype}", partial(lambda d, a: lax.broadcasted_iota(d, (4, 5), a), dtype, axis))
    for dtype in REALS:
        three = (((3, 4), dtype, anything),) * 3
        yield one(f"clamp_{dtype}", lax.clamp, ((3, 4), dtype, between(0, 3)), three[0], ((3, 4), dtype, between(4, 9)))
        yield one(f"clamp_scalar_{dtype}", lax.clamp, ((), dtype, between(0, 3)), three[0], ((), dtype, between(4, 9)))
        yield one(f"clip_{dtype}", lambda x: jnp.clip(x, 1, 5), three[0])
    for count, dtype in product((2, 3, 5), SAMPLE[:6]):
        which = ((3, 4), I32, between(0, count - 1))
        yield one(f"select_{count}_{dtype}", lax.select_n, which, *[((3, 4), dtype, anything)] * count)


def pad(x: Array, value: Array, config: Sequence[tuple[int, int, int]]) -> Array:
    return lax.pad(x, value, config)


def constant(dtype: np.dtype[Any], x: Array) -> Array:
    """A constant of many different elements, the ends of the type among them."""
    return jnp.asarray(anything(np.random.default_rng(7), (5, 30), dtype)) == x


# ---- folds ----


def folds() -> Iterator[Case]:
    a = (4, 5, 6)
    for dtype in ALL:
        x = (a, dtype, few)
        if dtype != BOOL:
            yield one(f"sum_{dtype}", lambda x: lax.reduce_sum_p.bind(x, axes=(0, 2), out_sharding=None), x)
            yield one(f"cumsum_{dtype}", lambda x: lax.cumsum(x, 1), x)
            yield one(f"cumsum_reverse_{dtype}", lambda x: lax.cumsum(x, 2, reverse=True), x)
            yield one(f"prod_{dtype}", lambda x: jnp.prod(x[:, :2, 0], 0, dtype=x.dtype), x)
            signless = CLOSE if dtype in COMPLEXES else EXACT
            yield one(f"cumprod_{dtype}", lambda x: lax.cumprod(x[:, :2], 0), x, tolerance=signless)
            yield one(f"window_sum_{dtype}", lambda x: window(x, 0, lax.add), x)
        if dtype not in COMPLEXES:
            y = (a, dtype, anything if dtype not in FLOATS else few)
            yield one(f"max_{dtype}", lambda x: jnp.max(x, (0, 1)), y)
            yield one(f"min_{dtype}", lambda x: jnp.min(x, 2), y)
            yield one(f"argmax_{dtype}", lambda x: lax.argmax(x, 1, np.int32), (a, dtype, anything))
            yield one(f"argmin_{dtype}", lambda x: lax.argmin(x, 2, np.int64), (a, dtype, anything))
            if dtype != BOOL:
                yield one(f"cummax_{dtype}", lambda x: lax.cummax(x, 1), y)
                yield one(f"cummin_{dtype}", lambda x: lax.cummin(x, 0, reverse=True), y)
                yield one(f"window_max_{dtype}", lambda x: lax.reduce_window_max_p.bind(x, **WINDOW), y)
                yield one(f"window_min_{dtype}", lambda x: lax.reduce_window_min_p.bind(x, **WINDOW), y)
    for dtype in (BOOL, *INTS):
        for name, function in (("and", lax.reduce_and), ("or", lax.reduce_or), ("xor", lax.reduce_xor)):
            yield one(f"reduce_{name}_{dtype}", partial(lambda f, x: f(x, (1,)), function), (a, dtype, anything))
    for dtype in FLOATS:
        close = Tolerance(32, 16)
        yield one(f"cumlogsumexp_{dtype}", lambda x: lax.cumlogsumexp(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"logsumexp_{dtype}", lambda x: jax.nn.logsumexp(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"softmax_{dtype}", lambda x: jax.nn.softmax(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"log_softmax_{dtype}", lambda x: jax.nn.log_softmax(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"mean_{dtype}", lambda x: jnp.mean(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"var_{dtype}", lambda x: jnp.var(x, (0, 1)), (a, dtype, ordinary), tolerance=close)
        yield one(f"norm_{dtype}", lambda x: jnp.linalg.norm(x, axis=1), (a, dtype, ordinary), tolerance=close)
        yield one(f"standardize_{dtype}", lambda x: jax.nn.standardize(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"max_pool_gradient_{dtype}", jax.grad(lambda x: (max_pool(x) * 2).sum()), (a, dtype, distinct))
        yield one(
            f"select_and_gather_add_{dtype}",
            lambda x: jax.jvp(max_pool, (x,), (x + 1,)),
            (a, dtype if dtype != F64 else F32, distinct),
        )
    shapes = [
        ("same", {"padding": ((0, 1), (1, 1), (0, 0))}),
        ("strided", {"window_strides": (2, 1, 3)}),
        ("base_dilated", {"base_dilation": (2, 1, 3), "padding": ((1, 0), (0, 0), (2, 1))}),
        ("window_dilated", {"window_dilation": (1, 3, 2)}),
        ("negative_pad", {"padding": ((-1, 0), (0, -1), (1, 1))}),
        ("all", {"window_strides": (2, 1, 2), "base_dilation": (1, 2, 2), "window_dilation": (2, 1, 2)}),
    ]
    computations = {"add": (lax.add, 0), "max": (lax.max, -9), "min": (lax.min, 9), "mul": (lax.mul, 1)}
    for (name, rest), (which, (body, init)), dtype in product(shapes, computations.items(), (I32, F32)):
        yield one(f"window_{which}_{name}_{dtype}", partial(window, init=init, body=body, **rest), (a, dtype, few))
    yield one(
        "window_general",
        lambda x: lax.reduce_window(x, np.float32(1), lambda p, q: p * 2 + q, (1, 2, 3), (1, 1, 1), "VALID"),
        (a, F32, few),
    )
    yield one(
        "window_pairs",
        lambda x, y: lax.reduce_window(
            (x, y), (np.float32(-99), np.int32(0)), first_of_larger, (1, 2, 3), (1, 2, 1), "SAME"
        ),
        (a, F32, distinct),
        (a, I32, ordinary),
    )
    yield one(
        "reduce_pairs",
        lambda x, y: lax.reduce((x, y), (np.float32(-99), np.int32(0)), first_of_larger, (0, 2)),
        (a, F32, distinct),
        (a, I32, ordinary),
    )
    yield one("reduce_general", lambda x: lax.reduce(x, np.int32(3), lambda p, q: p * 3 + q, (1,)), (a, I32, ordinary))
    yield one("reduce_nothing", lambda x: lax.reduce(x[:, :0], np.int32(3), lax.add, (1,)), (a, I32, ordinary))
    yield one("associative_scan", lambda x: lax.associative_scan(jnp.add, x, axis=1), (a, I32, ordinary))
    yield one("ptp", lambda x: jnp.ptp(x, 1), (a, F32, ordinary))
    yield one("all_any", lambda x: (jnp.all(x > 0, 1), jnp.any(x > 2, (0, 2))), (a, F32, ordinary))
    yield one("count_nonzero", lambda x: jnp.count_nonzero(x, 1), (a, I32, few))
    yield one("nanmax", lambda x: (jnp.nanmax(x, 1), jnp.nanargmin(x, 1), jnp.nansum(x > 1)), (a, F32, anything))


WINDOW: dict[str, Any] = {
    "window_dimensions": (2, 1, 3),
    "window_strides": (1, 2, 2),
    "padding": ((1, 0), (0, 0), (0, 2)),
    "base_dilation": (1, 1, 1),
    "window_dilation": (1, 1, 1),
}


def window(
    x: Array,
    init: int,
    body: Callable[[Array, Array], Array],
    window_strides: tuple[int, ...] = (1, 1, 1),
    padding: Any = "VALID",
    base_dilation: tuple[int, ...] = (1, 1, 1),
    window_dilation: tuple[int, ...] = (1, 1, 1),
) -> Array:
    first = jnp.asarray(init, x.dtype)
    return lax.reduce_window(x, first, body, (2, 2, 2), window_strides, padding, base_dilation, window_dilation)


def max_pool(x: Array) -> Array:
    return lax.reduce_window(x, -np.inf, lax.max, (2, 3, 2), (1, 2, 2), "SAME")


def first_of_larger(a: Sequence[Array], b: Sequence[Array]) -> tuple[Array, Array]:
    keep = a[0] >= b[0]
    return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])


# ---- matrix multiplication ----


def products() -> Iterator[Case]:
    for case in (*dots(), *convolutions()):
        yield replace(case, tolerance=SUM)


def dots() -> Iterator[Case]:
    dims: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
        "matrix": ((((1,), (0,)), ((), ())), (4, 3), (3, 5)),
        "transposed": ((((0,), (1,)), ((), ())), (3, 4), (5, 3)),
        "outer": ((((), ()), ((), ())), (2, 3), (4,)),
        "vectors": ((((0,), (0,)), ((), ())), (6,), (6,)),
        "batch": ((((2,), (1,)), ((0,), (0,))), (2, 4, 3), (2, 3, 5)),
        "batches": ((((1, 3), (3, 0)), ((0, 2), (1, 2))), (2, 3, 4, 5), (5, 2, 4, 3)),
        "batch_only": ((((), ()), ((0,), (0,))), (3,), (3,)),
        "empty": ((((1,), (0,)), ((), ())), (4, 0), (0, 5)),
    }
    for (name, (numbers, left, right)), dtype in product(dims.items(), ALL):
        yield one(
            f"dot_{name}_{dtype}",
            partial(lax.dot_general, dimension_numbers=numbers),
            (left, dtype, few),
            (right, dtype, few),
        )
    pairs = product(ALL, ALL)
    for left_type, right_type in pairs:
        if left_type != right_type:
            yield one(
                f"dot_{left_type}_{right_type}",
                partial(lax.dot_general, dimension_numbers=dims["matrix"][0]),
                ((4, 3), left_type, few),
                ((3, 5), right_type, few),
            )
    for dtype, wanted in [
        *product(types("int8 uint8 int16"), types("int32 int64 float32")),
        *product(types("bfloat16 float16"), types("float32 float64")),
        *product(NARROW[2:4], types("float32 bfloat16")),
        (C64, np.dtype(np.complex128)),
    ]:
        yield one(
            f"dot_{dtype}_to_{wanted}",
            partial(lax.dot_general, dimension_numbers=dims["matrix"][0], preferred_element_type=wanted),
            ((4, 3), dtype, few),
            ((3, 5), dtype, few),
        )
    for precision in ("default", "high", "highest", "BF16_BF16_F32", "F32_F32_F32"):
        yield one(
            f"dot_{precision}",
            partial(
                lax.dot_general,
                dimension_numbers=dims["matrix"][0],
                precision=precision.lower() if precision[0].islower() else lax.DotAlgorithmPreset[precision],
            ),
            ((4, 3), F32, few),
            ((3, 5), F32, few),
        )
    yield one("ragged_dot", lax.ragged_dot, ((7, 3), F32, few), ((4, 3, 5), F32, few), ((4,), I32, given([2, 0, 3, 2])))
    for equation, left, right in [
        ("ij,jk->ik", (2, 3), (3, 4)), ("ij,ij->", (2, 3), (2, 3)), ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
        ("ij,k->kij", (2, 3), (4,)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), ("ii,i->i", (3, 3), (3,)),
    ]:  # fmt: skip
        yield one(f"einsum_{equation}", partial(jnp.einsum, equation), (left, F32, few), (right, F32, few))


def convolutions() -> Iterator[Case]:
    def conv(name: str, left: tuple[int, ...], right: tuple[int, ...], dtype: Any = F32, **rest: Any) -> Case:
        options = {"window_strides": (1,) * (len(left) - 2), "padding": "VALID"} | rest
        function = partial(lax.conv_general_dilated, **options)
        return one(f"conv_{name}_{dtype}", function, (left, dtype, few), (right, dtype, few))

    for dtype in [*REALS, *COMPLEXES]:
        yield conv("plain", (2, 3, 9, 10), (4, 3, 3, 5), dtype)
    layouts = [
        "NCHW OIHW NCHW",
        "NHWC HWIO NHWC",
        "NHWC HWOI NCHW",
        "NCHW HWIO NHWC",
        "HWNC OHWI HNWC",
        "CHWN IHWO CHWN",
    ]
    for layout in layouts:
        left, right, out = layout.split()
        sizes, kernel = dict(zip("NCHW", (2, 3, 7, 8), strict=True)), dict(zip("OIHW", (4, 3, 3, 2), strict=True))
        yield conv(
            "layout_" + layout.replace(" ", "_"),
            tuple(sizes[c] for c in left),
            tuple(kernel[c] for c in right),
            dimension_numbers=(left, right, out),
        )
    a, b = (2, 4, 7, 8), (6, 4, 3, 2)
    yield conv("strides", a, b, window_strides=(2, 3))
    yield conv("same", a, b, padding="SAME")
    yield conv("same_lower_strided", a, b, padding="SAME_LOWER", window_strides=(2, 2))
    yield conv("padding", a, b, padding=((3, 1), (0, 2)))
    yield conv("negative_padding", a, b, padding=((-1, 1), (2, -2)))
    yield conv("left_dilation", a, b, lhs_dilation=(2, 3), padding=((1, 2), (0, 1)))
    yield conv("right_dilation", a, b, rhs_dilation=(2, 3))
    yield conv(
        "both_dilations",
        a,
        b,
        rhs_dilation=(1, 2),
        lhs_dilation=(3, 1),
        window_strides=(2, 1),
        padding=((2, 2), (1, -1)),
    )
    yield conv("feature_groups", a, (6, 2, 3, 2), feature_group_count=2)
    yield conv("depthwise", a, (8, 1, 3, 2), feature_group_count=4)
    yield conv("batch_groups", (6, 4, 7, 8), (6, 4, 3, 2), batch_group_count=3)
    yield conv("batch_groups_2", (4, 3, 5, 5), (4, 3, 2, 2), batch_group_count=2, padding="SAME")
    yield conv("groups_i32", a, (6, 2, 3, 2), I32, feature_group_count=2)
    yield conv("window_larger_than_input", (1, 1, 2, 2), (1, 1, 3, 3))
    yield conv("no_batch", (0, 3, 5, 5), (2, 3, 2, 2))
    yield conv("no_features", (2, 0, 5, 5), (2, 0, 2, 2))
    yield conv("0d", (3, 4), (5, 4))
    yield conv("1d", (2, 3, 9), (4, 3, 3), window_strides=(2,), padding=((1, 2),))
    yield conv("3d", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), padding="SAME")
    yield conv("1d_nwc", (2, 9, 3), (3, 3, 4), dimension_numbers=("NWC", "WIO", "NWC"), rhs_dilation=(2,))
    for dtype, wanted in product(types("int8 bfloat16 float16"), types("int32 float32 float64")):
        if (kind(dtype), wanted) != ("float", I32):
            yield conv(f"to_{wanted}", a, b, dtype, preferred_element_type=wanted)
    yield one("conv_gradients", jax.grad(dilated_loss, (0, 1)), (a, F32, few), (b, F32, few))
    yield one(
        "conv_gradients_grouped", jax.grad(partial(grouped_loss, 2), (0, 1)), (a, F32, few), ((6, 2, 3, 2), F32, few)
    )
    yield one(
        "conv_vmap", jax.vmap(lambda x, w: lax.conv(x, w, (1, 1), "VALID")), ((3, *a), F32, few), ((3, *b), F32, few)
    )
    yield one(
        "conv_transpose",
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        ((1, 4, 4, 2), F32, few),
        ((3, 3, 2, 3), F32, few),
    )
    yield one("conv_patches", lambda x: lax.conv_general_dilated_patches(x, (2, 3), (1, 2), "VALID"), (a, F32, few))


def dilated_loss(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2)).sum()


def grouped_loss(groups: int, x: Array, w: Array) -> Array:
    return (lax.conv_general_dilated(x, w, (1, 2), ((1, 0), (0, 1)), feature_group_count=groups) * 2).sum()


# ---- sums of many elements ----


def sums() -> Iterator[Case]:
    """Long enough for every way of summing to be taken; the error may grow with the length."""
    x, near = (70, 130), Tolerance(8, 64)
    for dtype in [*FLOATS, *COMPLEXES]:
        rows: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
            "rows": (lambda x: lax.reduce(x, x.dtype.type(0), lax.add, (1,)), [x]),
            "columns": (lambda x: lax.reduce(x, x.dtype.type(0), lax.add, (0,)), [x]),
            "all": (lambda x: lax.reduce(x, x.dtype.type(0), lax.add, (0, 1)), [x]),
            "middle": (lambda x: lax.reduce(x, x.dtype.type(0), lax.add, (1,)), [(3, 200, 5)]),
            "of_transposed": (lambda x: lax.reduce(x.T, x.dtype.type(0), lax.add, (0,)), [x]),
            "of_repeated": (lambda x: jnp.broadcast_to(x[:, :1], (70, 300)).sum(1, dtype=x.dtype), [x]),
            "of_constants": (lambda x: (jnp.full((300,), 0.1, x.dtype).sum(dtype=x.dtype) + x, 1)[0], [(3,)]),
            "cumulative": (lambda x: lax.cumsum(x, 0), [(300, 3)]),
            "windows": (lambda x: lax.reduce_window(x, x.dtype.type(0), lax.add, (7, 9), (2, 1), "SAME"), [(40, 41)]),
            "product": (lambda x, y: x @ y, [(20, 300), (300, 30)]),
            "products": (lambda x, y: jnp.einsum("bij,kjb->bik", x, y), [(3, 20, 150), (30, 150, 3)]),
            "convolution": (lambda x, y: lax.conv(x, y, (1, 1), "SAME"), [(1, 8, 20, 20), (8, 8, 3, 3)]),
            "mean_and_variance": (lambda x: (jnp.mean(x, 0), jnp.var(x, 1)), [x]),
            "softmax": (lambda x: jax.nn.softmax(x.real, 1), [x]),
            "segments": (lambda x: jax.ops.segment_sum(x, jnp.arange(70) % 3, 3), [x]),
        }
        for name, (function, shapes) in rows.items():
            args = [(shape, dtype, between(0.1, 1)) for shape in shapes]
            yield one(f"{name}_{dtype}", function, *args, tolerance=near)


# ---- indexing and order ----


def indexing() -> Iterator[Case]:
    index = between(-4, 6)
    modes = ("clip", "fill", "promise_in_bounds")
    for dtype, mode in product(SAMPLE, modes):
        draw = index if mode != "promise_in_bounds" else between(0, 3)
        yield one(f"take_{mode}_{dtype}", partial(take, mode), ((4, 5), dtype, anything), ((6,), I32, draw))
        yield one(f"gather_{mode}_{dtype}", partial(gather, mode), ((4, 5, 6), dtype, anything), ((3, 2), I64, draw))
    for dtype, mode, (name, function) in product(
        SAMPLE,
        ("clip", "drop"),
        {"set": "set", "add": "add", "mul": "multiply", "min": "min", "max": "max"}.items(),
    ):
        if (dtype == BOOL and name != "set") or (dtype == C64 and name in ("min", "max")):
            continue
        unique = name == "set"
        yield one(
            f"scatter_{name}_{mode}_{dtype}",
            partial(scatter, function, mode),
            ((4, 5, 6), dtype, few),
            ((3, 2), I32, given([[0, 3], [2, 7], [-1, 0]], [[9, 1], [3, 4], [1, 1]]) if unique else index),
            ((3, 6), dtype, few),
        )
    for kind_of_index in (*SIGNED, *UNSIGNED):
        yield one(
            f"take_by_{kind_of_index}", partial(take, "clip"), ((4, 5), F32, few), ((6,), kind_of_index, between(0, 9))
        )
    a = ((5, 6, 7), I32, anything)
    i = ((3, 2), I32, between(-5, 4))
    indexed: dict[str, Callable[..., Any]] = {
        "row": lambda x, i: x[i],
        "two": lambda x, i: x[i, i],
        "split": lambda x, i: x[i, :, i],
        "sliced": lambda x, i: x[1:4, i, ::2],
        "negative_step": lambda x, i: x[::-2, ..., i],
        "newaxis": lambda x, i: x[:, None, i, 0],
        "scalar": lambda x, i: x[i[0, 0], 2, i[1, 1]],
        "take_along": lambda x, i: jnp.take_along_axis(x, (x % 5), 1),
        "put_along": lambda x, i: x.at[i, :, 0].add(3),
        "at_slice": lambda x, i: x.at[1:3, ::2].set(5),
        "at_get_fill": lambda x, i: x.at[i * 3].get(mode="fill", fill_value=-7),
        "compress_where": lambda x, i: jnp.where(x > 3, x, -x),
        "nonzero": lambda x, i: jnp.nonzero(x[0] > 3, size=9, fill_value=-1),
        "searchsorted": lambda x, i: jnp.searchsorted(jnp.sort(x[0, 0]), i),
        "bincount": lambda x, i: jnp.bincount((x % 7).ravel(), length=7),
        "diagonal": lambda x, i: jnp.diagonal(x, 1, 0, 2),
        "unique": lambda x, i: jnp.unique(x % 5, size=9, fill_value=77, return_counts=True),
        "segment_sum": lambda x, i: jax.ops.segment_sum(x, jnp.array([0, 2, 2, 1, 9]), 4),
        "gradient_of_gather": lambda x, i: jax.grad(lambda y: (y[i] * 3).sum())(x.astype(np.float32) % 5),
        "batched": lambda x, i: jax.vmap(lambda r, j: r[j])(x, (x[:, 0, :3] % 6)),
        "batched_update": lambda x, i: jax.vmap(lambda r, j: r.at[j].add(2))(x, (x[:, 0, :3] % 6)),
        "batched_dynamic_slice": lambda x, i: jax.vmap(lambda r, s: lax.dynamic_slice(r, (s, s), (2, 3)))(
            x, x[:, 0, 0]
        ),
        "argsort": lambda x, i: jnp.argsort(x, axis=1),
        "lexsort": lambda x, i: jnp.lexsort((x[0, 0] % 3, x[0, 1] % 2)),
        "median": lambda x, i: jnp.median(x.astype(np.float32), axis=1),
        "partition": lambda x, i: jnp.sort(jnp.partition(x, 2, axis=0), axis=0),
    }
    for name, function in indexed.items():
        yield one(f"at_{name}", function, a, i)
    for dtype in ALL:
        for stable in (True, False):
            yield one(
                f"sort_{stable}_{dtype}",
                partial(lax.sort, dimension=1, is_stable=stable),
                ((4, 30), dtype, anything if dtype not in COMPLEXES else few),
                tolerance=EXACT if stable else Tolerance(1),  # -0.0 and 0.0 are equal, so that their order is open
            )
        if dtype not in COMPLEXES:
            yield one(f"sort_pair_{dtype}", sort_pair, ((30,), dtype, anything), ((30,), I32, ordinary))
        if dtype not in (BOOL, *COMPLEXES):
            yield one(f"top_k_{dtype}", lambda x: lax.top_k(x, 4), ((3, 20), dtype, anything))
    for keys in (1, 2, 3):
        yield one(
            f"sort_{keys}_keys",
            lambda x, y, z, keys=keys: lax.sort((x, y, z), num_keys=keys, dimension=0, is_stable=True),
            ((40, 2), I32, few),
            ((40, 2), F32, few),
            ((40, 2), np.dtype(np.uint8), few),
        )
    yield one("sort_empty", lambda x: lax.sort(x[:, :0], dimension=1), ((4, 3), F32, few))
    yield one(
        "percentile",
        lambda x: jnp.percentile(x, jnp.array([5.0, 50.0, 90.0]), axis=0),
        ((20, 3), F64, ordinary),
        tolerance=CLOSE,
    )


def take(mode: str, x: Array, i: Array) -> Array:
    return x.at[i].get(mode=mode)


def gather(mode: str, x: Array, i: Array) -> Array:
    numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(1,), start_index_map=(2, 0))
    return lax.gather(x, i, numbers, (3, 1, 2), mode=mode)


def scatter(function: str, mode: str, x: Array, i: Array, u: Array) -> Array:
    return getattr(x.at[i[:, 0], i[:, 1]], function)(u, mode=mode)


def sort_pair(x: Array, y: Array) -> Any:
    return lax.sort((x, y), num_keys=1, is_stable=True)
