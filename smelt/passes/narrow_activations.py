"""Precision "bf16_activations": what kernels exchange is stored in bf16; sums, norms and softmax stay f32 inside them.

In: a program whose weight matmuls and convolutions take bf16 (`quantise`), with attention found. Out: StableHLO.
Rounded are the values that these products read, sums of two activations (residuals), and what attention reads and
writes. Called by `quantise`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from smelt.dtype import bf16, f32
from smelt.ir.clone import clone_op, clone_region
from smelt.ir.core import Func, Op, Program, Region, Value
from smelt.ir.ops import OPS
from smelt.ir.rewrite import Edit
from smelt.passes import pipeline

FOUND = frozenset({"smelt.attention", "smelt.softmax"})
PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution")
# A minimax polynomial: off by 2.5e-5 at most, a hundredth of what rounding GELU's result to bf16 costs.
ERF_REACH = 3.0
ERF = (
    1.12838718,
    -0.375771179,
    0.111666349,
    -0.0254640264,
    0.00435749889,
    -0.000534963548,
    4.37712597e-05,
    -2.10949056e-06,
    4.48927574e-08,
)


def find_attention(program: Program) -> Program:
    """The program with attention as composites."""
    found, _ = pipeline.run(program, composites=FOUND, until="recognise")
    return found


def narrow_attention(program: Program) -> Program:
    """Attention of bf16 with a bf16 result; its decomposition is that of f32 between conversions."""
    made: dict[str, Func] = {}
    signatures = {name: func.type for name, func in program.funcs.items()}
    edit = Edit(program.main, signatures)
    for op in [each for each in edit.ops() if _is_attention(each)]:
        name = op.attrs["decomposition"]
        if name not in made:
            made[name] = _narrow_function(program.funcs[name])
            edit.signatures[made[name].name] = made[name].type
        build = edit.before(op)
        operands = edit.operands(op)
        operands[:3] = [build.convert(each, result=each.shape.with_dtype(bf16)) for each in operands[:3]]
        attrs = {**op.attrs, "decomposition": made[name].name}
        result = build.op(op.name, *operands, result=op.result.shape.with_dtype(bf16), **attrs).result
        edit.replace(op.result, build.convert(result, result=op.result.shape))
        edit.erase(op)
    return program.replace(edit.freeze(), *made.values()) if made else program


def _is_attention(op: Op) -> bool:
    plain = op.name == "stablehlo.composite" and op.attrs["name"] == "smelt.attention"
    return plain and all(value.shape.dtype == f32 for value in (*op.operands[:3], *op.results))


def _narrow_function(func: Func) -> Func:
    """The same function of bf16 queries, keys and values."""
    args = tuple(
        Value(arg.shape.with_dtype(bf16) if i < 3 else arg.type, None, i, arg.name) for i, arg in enumerate(func.args)
    )
    wide = [Op("stablehlo.convert", [arg], [func.args[i].type]) for i, arg in enumerate(args[:3])]
    values: dict[Value, Value] = dict(zip(func.args, (*(op.result for op in wide), *args[3:]), strict=True))
    body = [clone_op(op, values) for op in func.body.ops]
    (found,) = (values[value] for value in func.body.results)
    last = Op("stablehlo.convert", [found], [found.shape.with_dtype(bf16)])
    return Func(f"{func.name}.bf16", Region(args, (*wide, *body, last), (last.result,)), "private")


def narrow_activations(edit: Edit, is_fixed: Callable[[Value], bool]) -> None:
    """Round what several kernels read. `is_fixed`: whether a value depends on weights and constants alone."""
    for op in [*edit.ops()]:
        if op not in edit:
            continue
        if op.name == "stablehlo.convert" and op.result.shape.dtype == bf16:
            _share(edit, op)
        elif op.name == "stablehlo.divide" and op.result.shape.dtype == f32 and is_fixed(edit.operands(op)[1]):
            _multiply_instead(edit, op)
        elif op.name == "chlo.erf" and op.result.shape.dtype == f32:
            _approximate_erf(edit, op)
        elif op.name == "stablehlo.reduce_window" and len(op.operands) == 2:
            value = edit.operands(op)[0]
            if (maker := edit.maker(value)) is not None and value.shape.dtype == f32 and not is_fixed(value):
                _use_rounded(edit, value, maker)
        elif op.name == "stablehlo.add" and op.result.shape.dtype == f32 and op.result.shape.rank > 1:
            operands = edit.operands(op)
            if not any(map(is_fixed, operands)) and all(not _is_spread(edit, value) for value in operands):
                _narrow_sum(edit, op)


def _multiply_instead(edit: Edit, op: Op) -> None:
    """A division by what is fixed, as a product by its reciprocal: a GPU divides much more slowly."""
    x, by = edit.operands(op)
    maker = edit.maker(by)
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        maker = edit.maker(edit.operands(maker)[0])
    if maker is None or maker.name != "stablehlo.constant" or not maker.attrs["value"].is_splat:
        return
    number = float(maker.attrs["value"].array.flat[0])
    if number and isfinite(1 / number):
        build = edit.before(op)
        edit.replace(op.result, build.multiply(x, build.full(1 / number, by.shape)))
        edit.erase(op)


def _approximate_erf(edit: Edit, op: Op) -> None:
    """erf(x) = x p(x²) up to ERF_REACH, and ±1 from there on."""
    build, shape = edit.before(op), op.result.shape
    x = build.minimum(edit.operands(op)[0], build.full(ERF_REACH, shape))
    x = build.maximum(x, build.full(-ERF_REACH, shape))
    square, total = build.multiply(x, x), build.full(ERF[-1], shape)
    for number in reversed(ERF[:-1]):
        total = build.add(build.multiply(total, square), build.full(number, shape))
    edit.replace(op.result, build.multiply(x, total))
    edit.erase(op)


def _share(edit: Edit, narrow: Op) -> None:
    """Other users of a value that is rounded take the rounded one, too."""
    value = edit.operands(narrow)[0]
    maker = edit.maker(value)
    if maker is None or value.shape.dtype != f32 or maker.name == "stablehlo.convert" or len(maker.results) > 1:
        return
    others = [user for user in edit.users(value) if user is not narrow and not _rounds(user)]
    if others or edit.is_returned(value):
        _use_rounded(edit, value, maker)


def _narrow_sum(edit: Edit, op: Op) -> None:
    """A sum of two activations: rounded where it is read more than once. Of two products one is stored: both are."""
    operands = edit.operands(op)
    if all(_ends_product(edit, value) for value in operands):
        for value in dict.fromkeys(operands):
            if (maker := edit.maker(value)) is not None:
                _use_rounded(edit, value, maker)
    if len(edit.users(op.result)) > 1:
        _use_rounded(edit, op.result, op)


def _use_rounded(edit: Edit, value: Value, maker: Op) -> None:
    """All users of a value take it rounded."""
    build = edit.before(maker)
    regions = [clone_region(region, {}) for region in maker.regions]
    copy = build.op(maker.name, *edit.operands(maker), result=value.type, regions=regions, **maker.attrs).result
    narrow = build.convert(copy, result=value.shape.with_dtype(bf16))
    for user in [*edit.users(value)]:
        if _rounds(user):
            edit.replace(user.result, narrow)
            edit.erase(user)
    edit.replace(value, build.convert(narrow, result=value.shape))
    edit.erase(maker)


def _rounds(op: Op) -> bool:
    return op.name == "stablehlo.convert" and op.result.shape.dtype == bf16


def _is_spread(edit: Edit, value: Value) -> bool:
    maker = edit.maker(value)
    return maker is not None and maker.name == "stablehlo.broadcast_in_dim"


def _ends_product(edit: Edit, value: Value) -> bool:
    """Whether a value is a product, perhaps with a bias: no other op stands between."""
    maker = edit.maker(value)
    while maker is not None and maker.name not in PRODUCTS:
        plain = OPS[maker.name].elementwise and maker.name != "stablehlo.convert"
        if not plain and maker.name not in ("stablehlo.reshape", "stablehlo.transpose"):
            return False
        large = [each for each in edit.operands(maker) if not _is_spread(edit, each) and each.shape.rank]
        if len(large) != 1:
            return False
        maker = edit.maker(large[0])
    return maker is not None
