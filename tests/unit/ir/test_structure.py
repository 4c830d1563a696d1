"""Structure: what counts as the same program."""

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import f32
from smelt.errors import Location
from smelt.ir.attributes import Constant, Float
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Op, Program, Region, Value
from smelt.ir.structure import difference, fingerprint, op_key, same
from smelt.shape import Shape

F = Shape("f32", 4)


def two_adds(name="main", names=("", ""), swap=False, constant=1.0, sizes=(4,), location=None):
    f = FuncBuilder(name, [Shape("f32", *sizes)] * 2, names)
    f.location = location
    x, y = f.args
    first = f.add(x, y)
    second = f.add(y if swap else x, first)
    f.constant(np.float32(constant))
    return f.func(second)


def test_names_and_places_do_not_count():
    a = two_adds(names=("x", "y"), location=Location("a.mlir", 3))
    b = two_adds(name="other", names=("p", "q"))
    assert same(a, b)
    assert difference(a, b) is None
    assert fingerprint(a) == fingerprint(b)


@pytest.mark.parametrize(
    "change",
    [
        {"swap": True},
        {"constant": 2.0},
        {"constant": -0.0},
        {"sizes": (5,)},
        {"sizes": (symbol("N"),)},
        {"sizes": (4, 1)},
    ],
)
def test_operands_constants_and_sizes_count(change):
    a, b = two_adds(constant=0.0), two_adds(**{"constant": 0.0} | change)
    assert not same(a, b)
    assert difference(a, b)
    assert fingerprint(a) != fingerprint(b)


def test_a_difference_names_both_places():
    here, there = (two_adds(swap=swap, location=Location("a.mlir", 3 + swap)) for swap in (False, True))
    first, second = str(difference(here, there)).splitlines()
    assert first.startswith("first : ")
    assert "a.mlir:3" in first
    assert "stablehlo.add" in first
    assert second.startswith("second: ")
    assert "a.mlir:4" in second
    first, second = str(difference(two_adds(), two_adds(swap=True))).splitlines()
    assert " at " not in first
    more = Program.of(two_adds(), two_adds(name="second"))
    assert "first : nothing more" in str(difference(Program.of(two_adds()), more))
    assert "second: nothing more" in str(difference(more, Program.of(two_adds())))


def test_symbols_count_by_name():
    assert not same(two_adds(sizes=(symbol("N"),)), two_adds(sizes=(symbol("M"),)))
    assert same(two_adds(sizes=(symbol("N"),)), two_adds(sizes=(symbol("N"),)))


def test_a_program_counts_function_names_and_attributes():
    func = two_adds()
    assert same(Program.of(func), Program.of(two_adds()))
    assert not same(Program.of(func), Program.of(two_adds(name="other")))
    assert not same(Program.of(func, name="m"), Program.of(func))
    assert not same(Program.of(func), Program.of(func, two_adds(name="second")))
    assert not same(Program.of(func, attrs={"mhlo.num_replicas": 1}), Program.of(func, attrs={"mhlo.num_replicas": 2}))


def branches(deep, outside):
    """An `if` whose branch uses its own value or one from outside."""
    f = FuncBuilder("main", [Shape("i1"), F, F])
    p, x, y = f.args
    with f.region() as yes:
        inner = yes.add(x, x)
        yes.result(inner if not outside else (y if deep else x))
    with f.region() as no:
        no.result(no.add(y, y))
    return f.func(f.if_(p, regions=(yes.body, no.body), result=F))


def test_regions_and_what_they_capture_count():
    assert same(branches(False, True), branches(False, True))
    assert not same(branches(True, True), branches(False, True))
    assert not same(branches(False, False), branches(False, True))


def test_the_order_of_regions_counts():
    f = branches(False, True)
    op = f.body.ops[-1]
    flipped = Op(op.name, op.operands, [v.type for v in op.results], op.attrs, reversed(op.regions))
    g = Func(f.name, Region(f.args, (*f.body.ops[:-1], flipped), flipped.results))
    assert not same(f, g)


def test_a_long_chain_does_not_recurse():
    def chain(length):
        x = Value(F)
        value, ops = x, []
        for _ in range(length):
            ops.append(Op("stablehlo.negate", [value], [F]))
            value = ops[-1].results[0]
        return Func("main", Region((x,), tuple(ops), (value,)))

    long = chain(50_000)
    assert same(long, chain(50_000))
    assert not same(long, chain(49_999))
    assert fingerprint(long) != fingerprint(chain(49_999))


def test_deep_regions_do_not_recurse():
    x = Value(F)
    region = Region((), (), (x,))
    for _ in range(5_000):
        op = Op("stablehlo.optimization_barrier", [], [F], {}, [region])
        region = Region((), (op,), (op.results[0],))
    func = Func("main", Region((x,), region.ops, region.results))
    assert same(func, func)
    assert fingerprint(func) == fingerprint(func)


def test_shared_values_do_not_explode():
    f = FuncBuilder("main", [F])
    value = f.args[0]
    for _ in range(200):
        value = f.add(value, value)
    assert same(f.func(value), f.func(value))


def test_op_keys_follow_the_numbers_of_the_operands():
    f = FuncBuilder("main", [F, F])
    x, y = f.args
    a, b, c = f.op("stablehlo.add", x, y), f.op("stablehlo.add", x, y), f.op("stablehlo.add", y, x)
    numbers = {x: 0, y: 1}
    assert op_key(a, numbers.__getitem__) == op_key(b, numbers.__getitem__)
    assert op_key(a, numbers.__getitem__) != op_key(c, numbers.__getitem__)
    numbers[y] = 0
    assert op_key(a, numbers.__getitem__) == op_key(c, numbers.__getitem__)
    assert len({op_key(op, numbers.__getitem__) for op in (a, b, c)}) == 1


def test_op_keys_see_into_regions():
    numbers = {}

    def key(func):
        op = func.body.ops[-1]
        for i, value in enumerate(func.args):
            numbers[value] = i
        return op_key(op, numbers.__getitem__)

    assert key(branches(False, False)) == key(branches(False, False))
    assert key(branches(False, True)) != key(branches(True, True))


def test_attributes_compare_by_value():
    def with_attribute(value):
        f = FuncBuilder("main", [F])
        op = Op("stablehlo.negate", f.args, [F], {"note": value})
        return Func("main", Region(f.args, (op,), op.results))

    assert same(with_attribute((1, 2)), with_attribute((1, 2)))
    assert not same(with_attribute((1, 2)), with_attribute((1, 3)))
    assert not same(with_attribute(1), with_attribute(True))
    assert not same(with_attribute(0.0), with_attribute(-0.0))
    assert same(with_attribute(float("nan")), with_attribute(float("nan")))


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (1, 1), ()])
def test_constants_of_one_element_are_splats_however_they_lie(sizes):
    plain = np.full(sizes, 2.5, np.float32)
    partly = np.broadcast_to(np.full(sizes[-1:], 2.5, np.float32), sizes)
    assert Constant.of(plain, f32).is_splat
    assert Constant.of(plain, f32) == Constant.of(partly, f32)


def test_constants_of_different_bits_are_no_splats():
    assert not Constant.of(np.array([0.0, -0.0, 0.0], np.float32), f32).is_splat
    assert not Constant.of(np.array([1, 2, 1], np.float32), f32).is_splat
    assert not Constant.of(np.zeros((0, 3), np.float32), f32).is_splat


def test_floats_as_attributes_are_equal_by_their_bits_and_type():
    """nan is itself, -0.0 is not 0.0, and a type counts."""
    assert Float(float("nan")) == Float(float("nan"))
    assert Float(1.5, f32) == Float(1.5, f32)
    assert len({Float(0.0), Float(-0.0), Float(0.0, f32), Float(1.0), 0.0}) == 5
