"""Lowering against the interpreter: every rule on random programs, quantised programs, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array, Quantized, dtype, integer_range
from smelt.engine.native import NativeEngine
from smelt.ir.attributes import ConvDims, DotDims, Float, RaggedDotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Tuple, Type, Value, walk
from smelt.ir.interpret import run
from smelt.ir.rewrite import Edit, Rule
from smelt.ir.verify import verify
from smelt.passes.lower import LOWER, REDUCTIONS, SCANS, is_pointwise, lower
from smelt.passes.lower_quantised_types import lower_quantised_types
from smelt.shape import Shape
from tests.unit.passes.recipes import Draw
from tests.unit.passes.test_rewrite_rules import rule_id, same_bits

WANTED, TRIES = 6, 60
Recipe = Callable[[Draw], Sequence[Value]]
RECIPES: dict[str, Recipe] = {}
# Spelled out, a normalisation rounds at every step.
ROUNDED = {"f64": 1e-11, "f32": 1e-4, "bf16": 0.02, "f16": 0.004}


def recipe(*names: str) -> Callable[[Recipe], Recipe]:
    def register(build: Recipe) -> Recipe:
        RECIPES.update(dict.fromkeys(names, build))
        return build

    return register


@recipe("stablehlo.batch_norm_inference", "stablehlo.batch_norm_training", "stablehlo.batch_norm_grad")
def _(d: Draw) -> Sequence[Value]:
    kind = str(d.random.choice(list(ROUNDED)))
    sizes = [int(n) for n in d.random.integers(1, 5, int(d.random.integers(1, 4)))]
    feature = int(d.random.integers(0, len(sizes)))
    whole, row = Shape(kind, *sizes), Shape(kind, sizes[feature])
    types = {
        "inference": [whole, row, row, row, row],
        "training": [whole, row, row],
        "grad": [whole, row, row, row, whole],
    }[d.op.rpartition("_")[2]]
    d.start(*types)
    numpy = dtype(kind).numpy
    d.args = [d.random.standard_normal(type.numbers()).astype(numpy) for type in types]
    if len(types) == 5:
        variance = 3 if d.op.endswith("grad") else 4
        d.args[variance] = (np.abs(d.args[variance].astype(np.float64)) + 0.25).astype(numpy)
    return d.f.op(d.op, *d.f.args, epsilon=0.125, feature_index=feature).results


@recipe("stablehlo.einsum")
def _(d: Draw) -> Sequence[Value]:
    sizes = dict(zip("abcd", (int(n) for n in d.random.integers(0, 4, 4)), strict=True))
    config = str(d.random.choice(["ab,bc->ac", "abc,cd->dab", "ab,ab->ba", "a,b->ba", "abc,abc->a"]))
    terms = config.partition("->")[0].split(",")
    d.start(*(Shape("i32", *(sizes[label] for label in term)) for term in terms))
    return d.f.op(d.op, *d.f.args, einsum_config=config).results


@recipe("chlo.ragged_dot")
def _(d: Draw) -> Sequence[Value]:
    batch, m, k, n = (int(size) for size in d.random.integers(1, 4, 4))
    lhs, rhs, groups = d.start(Shape("i32", batch, m, k), Shape("i32", batch, k, n), Shape("i32", 2))
    dims = RaggedDotDims((0,), (0,), (2,), (1,), (0,), ())
    return d.f.op(d.op, lhs, rhs, groups, ragged_dot_dimension_numbers=dims).results


def alone(d: Draw, attrs: dict[str, Any], *, computes: bool = False) -> Sequence[Value]:
    (x,) = d.start(d.shape("f32", "i32", "bf16", rank=2))
    regions = []
    if computes:
        element = "f64" if x.shape.element.is_float else "i64"
        element = element if d.random.random() < 0.5 and d.op != "stablehlo.collective_reduce" else x.shape.element.name
        with d.f.region(Shape(element), Shape(element)) as r:
            r.result(r.multiply(*r.args))
        regions = [r.body]
        declared = x.shape.with_dtype(dtype(element))
        return d.f.op(d.op, x, replica_groups=((0,),), regions=regions, result=declared, **attrs).results
    return d.f.op(d.op, x, replica_groups=((0,),), **attrs).results


@recipe("stablehlo.all_reduce", "stablehlo.collective_reduce", "stablehlo.reduce_scatter")
def _(d: Draw) -> Sequence[Value]:
    return alone(d, {"scatter_dimension": 1} if d.op.endswith("scatter") else {}, computes=True)


@recipe("stablehlo.all_gather", "stablehlo.all_to_all", "stablehlo.collective_broadcast", "stablehlo.cross-replica-sum")
def _(d: Draw) -> Sequence[Value]:
    attrs: dict[str, dict[str, Any]] = {
        "stablehlo.all_gather": {"all_gather_dim": 1},
        "stablehlo.all_to_all": {"split_dimension": 0, "concat_dimension": 1, "split_count": 1},
    }
    return alone(d, attrs.get(d.op, {}))


@recipe("stablehlo.collective_permute")
def _(d: Draw) -> Sequence[Value]:
    pairs = ((0, 0),) if d.random.random() < 0.5 else ()
    return d.f.op(d.op, x, source_target_pairs=pairs).results if (x := d.tensor("f32", "i8")) else ()


@recipe("stablehlo.partition_id", "stablehlo.replica_id")
def _(d: Draw) -> Sequence[Value]:
    d.start()
    return d.f.op(d.op).results


@recipe("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
def _(d: Draw) -> Sequence[Value]:
    x = d.tensor()
    attrs = {"allowed_direction": "BOTH"} if d.op.endswith("barrier") else {"sharding": ()}
    return d.f.op(d.op, x, **attrs).results


@recipe("sdy.sharding_group")
def _(d: Draw) -> Sequence[Value]:
    x = d.tensor()
    d.f.op(d.op, x)
    return [x]


@recipe("stablehlo.get_tuple_element")
def _(d: Draw) -> Sequence[Value]:
    x, y = d.start(d.shape(), d.shape())
    both = d.f.op("stablehlo.tuple", x, d.f.op("stablehlo.tuple", y, x).result).result
    inner = d.f.op(d.op, both, index=1).result
    assert isinstance(inner.type, Tuple)
    return [d.f.op(d.op, both, index=0).result, *(d.f.op(d.op, inner, index=i).result for i in (0, 1))]


@recipe("stablehlo.async_done")
def _(d: Draw) -> Sequence[Value]:
    x = d.tensor("f32")
    with d.f.region(x.type) as r:
        gathered = r.op("stablehlo.cross-replica-sum", *r.args, replica_groups=((0,),)).result
        r.result(r.negate(gathered))
    future = d.f.op("stablehlo.async_start", x, regions=[r.body]).result
    return d.f.op(d.op, future).results


@recipe("chlo.constant_like")
def _(d: Draw) -> Sequence[Value]:
    return d.f.op(d.op, x, value=Float(1.5, dtype("f32"))).results if (x := d.tensor("f32")) else ()


@recipe("chlo.scan")
def _(d: Draw) -> Sequence[Value]:
    """The body looks at neighbours: a row is turned around before it is added."""
    dimension = int(d.random.integers(0, 2))
    sizes = [int(n) for n in d.random.integers(1, 5, 2)]
    row = Shape("i32", sizes[1 - dimension])
    x, start = d.start(Shape("i32", *sizes), row)
    with d.f.region(row, row) as r:
        total = r.add(r.args[0], r.reverse(r.args[1], dimensions=(0,)))
        r.result(r.negate(total), total)
    reverse = bool(d.random.random() < 0.5)
    return d.f.op(d.op, x, start, dimension=dimension, is_reverse=reverse, regions=[r.body]).results


def test_every_rule_has_a_recipe() -> None:
    assert {rule.pattern.op for rule in LOWER} == set(RECIPES)


def lowered(program: Program) -> Program:
    edit = Edit(program.main)
    lower(edit)
    changed = program.replace(edit.freeze())
    verify(changed)
    return changed


@pytest.mark.parametrize("rule", LOWER, ids=map(rule_id, LOWER))
def test_rule_keeps_results(rule: Rule, seed: int) -> None:
    random = np.random.default_rng(seed)
    fired = 0
    for _ in range(TRIES):
        draw = Draw(random, rule.pattern.op)
        results = RECIPES[rule.pattern.op](draw)
        program = Program.of(draw.f.func(*results))
        changed = lowered(program)
        if any(op.name == rule.pattern.op for op in walk(changed.main.body)):
            continue
        fired += 1
        for before, after in zip(run(program, draw.args), run(changed, draw.args), strict=True):
            assert agree(rule.pattern.op, before, after), (before, after)
        if fired >= WANTED:
            return
    assert fired >= WANTED


def agree(name: str, before: Array, after: Array) -> bool:
    if "batch_norm" not in name:
        return same_bits(before, after)
    a, b = before.astype(np.float64), after.astype(np.float64)
    room = ROUNDED[dtype(before.dtype).name]
    return before.dtype == after.dtype and np.allclose(a, b, rtol=room, atol=room * max(np.abs(a).max(initial=0), 1))


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        (((0, 0),), []),
        ((), ["stablehlo.constant", "stablehlo.broadcast_in_dim"]),
        (((0, 1),), ["stablehlo.collective_permute"]),
    ],
)
def test_one_process_sends_to_itself_alone(pairs: tuple[tuple[int, int], ...], left: list[str]) -> None:
    f = FuncBuilder("main", [Shape("f32", 2)])
    program = Program.of(f.func(f.op("stablehlo.collective_permute", *f.args, source_target_pairs=pairs).result))
    assert [op.name for op in lowered(program).main.body.ops] == left


def test_groups_of_several_processes_stay() -> None:
    f = FuncBuilder("main", [Shape("f32", 2)])
    value = f.op("stablehlo.all_gather", *f.args, all_gather_dim=0, replica_groups=((0, 1),)).result
    program = Program.of(f.func(value))
    assert [op.name for op in lowered(program).main.body.ops] == ["stablehlo.all_gather"]


@pytest.mark.parametrize("dimension", [0, 1])
def test_scans_over_dynamic_sizes(dimension: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = ("T", "B") if dimension == 0 else ("B", "T")
    f = FuncBuilder("main", [Shape("i32", *sizes, 3), Shape("i32", "B", 3)])
    with f.region(f.args[1].type, f.args[1].type) as r:
        total = r.add(r.args[0], r.reverse(r.args[1], dimensions=(1,)))
        r.result(r.negate(total), total)
    results = f.op("chlo.scan", *f.args, dimension=dimension, is_reverse=dimension == 1, regions=[r.body]).results
    program = Program.of(f.func(*results))
    changed = lowered(program)
    assert any(op.name == "stablehlo.while" for op in changed.main.body.ops)
    for t, b in ((4, 2), (1, 1), (0, 3), (3, 0)):
        rows = (t, b, 3) if dimension == 0 else (b, t, 3)
        arrays = [random.integers(-9, 9, each).astype(np.int32) for each in (rows, (b, 3))]
        for before, after in zip(run(program, arrays), run(changed, arrays), strict=True):
            np.testing.assert_array_equal(before, after)


def test_pointwise_scans_stay_for_their_kernel(seed: int) -> None:
    """Sums and running extremes side by side, forwards and backwards, against NumPy."""
    random = np.random.default_rng(seed)
    f = FuncBuilder("main", [Shape("i32", "N", 3), Shape("i32", 3)])
    results: list[Value] = []
    for reverse in (False, True):
        with f.region(Shape("i32", 3), Shape("i32", 3), Shape("i32", 3)) as r:
            added, larger = r.add(r.args[0], r.args[1]), r.maximum(r.args[0], r.args[2])
            r.result(added, larger, added, larger)
        assert is_pointwise(r.body)
        operands = (f.args[0], f.args[1], f.args[1])
        results += f.op("chlo.scan", *operands, dimension=0, is_reverse=reverse, regions=[r.body]).results
    program = Program.of(f.func(*results))
    assert any(op.name == "chlo.scan" for op in lowered(program).main.body.ops)
    compiled = NativeEngine().compile(program)
    for length in (0, 1, 2, 50):
        x, start = random.integers(-9, 9, (length, 3)).astype(np.int32), np.array([1, -2, 3], np.int32)
        got = compiled(x, start)
        for rows, part in ((x, got[:4]), (x[::-1], got[4:])):
            sums = start + np.cumsum(rows, axis=0)
            most = np.maximum.accumulate(np.vstack([start[None], rows]), axis=0)[1:]
            order = slice(None) if rows is x else slice(None, None, -1)
            np.testing.assert_array_equal(part[0], sums[order])
            np.testing.assert_array_equal(part[1], most[order])
            np.testing.assert_array_equal(part[2], sums[-1] if length else start)
            np.testing.assert_array_equal(part[3], most[-1] if length else start)


# ---- quantised types ----


def quantised(
    random: np.random.Generator, storage: str, expressed: str, axis: int | None = None, count: int = 1
) -> Quantized:
    of = dtype(storage)
    low, high = integer_range(of)
    scales = tuple(float(x) for x in random.uniform(0.05, 2, count if axis is not None else 1))
    zeros = tuple(int(z) for z in random.integers(max(low, -9), min(high, 9), len(scales)))
    return Quantized(of, dtype(expressed), scales, zeros, axis, low, high)


def stored(random: np.random.Generator, of: Quantized, *sizes: int) -> Array:
    low, high = max(of.storage_min, -128), min(of.storage_max, 255)
    return random.integers(low, high, sizes, endpoint=True).astype(of.storage.numpy)


def check_quantised(f: FuncBuilder, results: Sequence[Value], args: Sequence[Array]) -> Program:
    """No quantised type is left, and every bit is the same."""
    program = Program.of(f.func(*results))
    changed = lower_quantised_types(program)
    verify(changed)
    types: list[Type] = [arg.type for arg in changed.main.args]
    types += [value.type for op in walk(changed.main.body) for value in op.results]
    assert not any(isinstance(type, Shape) and isinstance(type.dtype, Quantized) for type in types)
    for before, after in zip(run(program, args), run(changed, args), strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype
    return program


UNARY = ["negate", "abs", "tanh", "exponential", "sqrt", "floor", "sign", "logistic"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "atan2"]


@pytest.mark.parametrize("storage", ["i8", "ui8", "i4", "i16", "i32"])
@pytest.mark.parametrize("expressed", ["f32", "f64", "bf16"])
def test_quantised_elementwise(storage: str, expressed: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    types = [quantised(random, storage, expressed) for _ in range(3)]
    x, y = (Shape(each, 3, 4) for each in types[:2])
    out = Shape(types[2], 3, 4)
    f = FuncBuilder("main", [x, y, Shape(expressed, 3, 4), Shape("i1", 3, 4)])
    a, b, floats, flags = f.args
    results = [f.op(f"stablehlo.{name}", a, result=out).result for name in UNARY]
    results += [f.op(f"stablehlo.{name}", a, b, result=out).result for name in BINARY]
    results += [
        f.uniform_quantize(floats, result=out),
        f.uniform_quantize(a, result=out),
        f.uniform_dequantize(a),
        f.compare(a, b, comparison_direction="LT"),
        f.select(flags, a, b, result=out),
        f.clamp(a, b, a, result=out),
        f.op("stablehlo.iota", iota_dimension=1, result=out).result,
        f.is_finite(a),
    ]
    values = (random.standard_normal((3, 4)) * 30).astype(dtype(expressed).numpy)
    values.reshape(-1)[:3] = [np.nan, np.inf, -np.inf]
    args = [stored(random, each, 3, 4) for each in types[:2]] + [values, random.random((3, 4)) < 0.5]
    with np.errstate(all="ignore"):
        check_quantised(f, results, args)


def test_quantised_per_axis_and_data_movement(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, plain = quantised(random, "i8", "f32", 0, 3), quantised(random, "i8", "f32")
    columns = rows.replace(axis=1)
    f = FuncBuilder("main", [Shape(rows, 3, 4), Shape(rows, 3, 4), Shape(plain, 3, 4), Shape("f32", 3, 4)])
    a, b, c, floats = f.args
    results = [
        f.add(a, b, result=Shape(rows, 3, 4)),
        f.transpose(a, permutation=(1, 0), result=Shape(columns, 4, 3)),
        f.uniform_quantize(floats, result=Shape(rows, 3, 4)),
        f.uniform_dequantize(a),
        f.slice(c, start_indices=(0, 1), limit_indices=(3, 4), strides=(2, 1)),
        f.concatenate(c, c, dimension=1),
        f.bitcast_convert(c, result=Shape("i8", 3, 4)),
        f.reshape(c, result=Shape(plain, 12)),
    ]
    args = [stored(random, rows, 3, 4) for _ in range(3)] + [random.standard_normal((3, 4)).astype(np.float32)]
    check_quantised(f, results, args)


def test_quantised_contractions_and_bodies(seed: int) -> None:
    """Products on floats, and bodies that add quantised numbers, on the native engine, too."""
    random = np.random.default_rng(seed)
    left, out = quantised(random, "i8", "f32"), Quantized(dtype("i8"), dtype("f32"), (0.8,), (3,), None, -128, 127)
    right = Quantized(dtype("i8"), dtype("f32"), (0.5,), (0,), None, -127, 127)
    f = FuncBuilder("main", [Shape(left, 4, 6), Shape(right, 6, 5), Shape(left, 1, 5, 5, 2), Shape(right, 3, 3, 2, 4)])
    a, b, image, kernel = f.args
    dims = DotDims((), (), (1,), (0,))
    places = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    with f.region(Shape(left), Shape(left)) as r:
        r.result(r.add(*r.args, result=Shape(left)))
    zero = f.op("stablehlo.uniform_quantize", f.constant(0.0, "f32"), result=Shape(left)).result
    options: dict[str, Any] = {"dimension_numbers": places, "feature_group_count": 1, "batch_group_count": 1}
    results = [
        f.dot_general(a, b, dot_dimension_numbers=dims, result=Shape(out, 4, 5)),
        f.convolution(image, kernel, result=Shape(out, 1, 3, 3, 4), **options),
        f.reduce(a, zero, dimensions=(1,), regions=[r.body], result=Shape(left, 4)),
    ]
    args = [
        stored(random, left, 4, 6) // 8,
        np.maximum(stored(random, right, 6, 5), -127),
        stored(random, left, 1, 5, 5, 2) // 8,
        np.maximum(stored(random, right, 3, 3, 2, 4), -127),
    ]
    program = check_quantised(f, results, args)
    for got, want in zip(NativeEngine().compile(program)(*args), run(program, args), strict=True):
        assert got.dtype == want.dtype
        assert np.abs(got.astype(int) - want).max() <= 1  # a sum that is rounded otherwise may fall on the other side
        assert (got == want).mean() > 0.9


def test_quantised_values_through_control_flow(seed: int) -> None:
    random = np.random.default_rng(seed)
    of = quantised(random, "i8", "f32")
    f = FuncBuilder("main", [Shape(of, 3), Shape("i32")])
    types = [Shape(of, 3), Shape("i32")]
    with f.region(*types) as condition:
        condition.result(condition.compare(condition.args[1], condition.constant(0, "i32"), comparison_direction="GT"))
    with f.region(*types) as body:
        one = body.constant(1, "i32")
        body.result(body.negate(body.args[0], result=Shape(of, 3)), body.subtract(body.args[1], one))
    value, _ = f.while_(*f.args, regions=[condition.body, body.body])
    check_quantised(f, [value], [stored(random, of, 3), np.array(3, np.int32)])


def test_a_program_without_quantised_types_is_unchanged() -> None:
    f = FuncBuilder("main", [Shape("f32", 3)])
    program = Program.of(f.func(f.negate(*f.args)))
    assert lower_quantised_types(program) is program


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_reductions_in_parts(rank: int, reverse: bool, seed: int) -> None:
    """For engines that compute whole arrays; a body may use numbers and the carry before each element."""
    random = np.random.default_rng(seed)
    for length in (0, 1, 2, 3, 4, 7, 16, 33):
        for name in sorted(REDUCTIONS):
            around = [2, 3][:rank]
            axis = int(random.integers(0, rank + 1))
            row, whole = Shape("i32", *around), Shape("i32", *around[:axis], length, *around[axis:])
            f = FuncBuilder("main", [whole, whole, row])
            with f.region(row, row, row) as r:
                carry = r.op(f"stablehlo.{name}", r.args[2], r.args[1]).result
                two = r.full(2, row)
                r.result(r.multiply(carry, two), r.subtract(r.args[0], r.args[2]), carry)
            made = f.op("chlo.scan", *f.args, dimension=axis, is_reverse=reverse, regions=[r.body])
            program = Program.of(f.func(*made.results))
            edit = Edit(program.main)
            lower(edit, SCANS)
            changed = program.replace(edit.freeze())
            verify(changed)
            if length:
                assert not any(op.name in ("chlo.scan", "stablehlo.while") for op in changed.main.body.ops)
            arrays = [random.integers(-9, 9, each.numbers()).astype(np.int32) for each in (whole, whole, row)]
            for before, after in zip(run(program, arrays), run(changed, arrays), strict=True):
                np.testing.assert_array_equal(before, after)


def test_running_reductions_in_parts_are_linear() -> None:
    """Whatever is put together: no more than a few times the elements."""
    length = 100_000
    f = FuncBuilder("main", [Shape("f32", length), Shape("f32")])
    with f.region(Shape("f32"), Shape("f32")) as r:
        total = r.add(r.args[0], r.args[1])
        r.result(total, total)
    program = Program.of(f.func(*f.op("chlo.scan", *f.args, dimension=0, regions=[r.body]).results))
    edit = Edit(program.main)
    lower(edit, SCANS)
    ops = edit.freeze().body.ops
    assert len(ops) < 14 * length.bit_length()
    assert sum(op.results[0].shape.numbers()[0] for op in ops if op.results[0].shape.rank) < 20 * length
