"""The interpreter's own business: entry checks, sizes that are learned, lanes, probes, errors that say where."""

import warnings
from typing import Any

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.errors import Location, RunError, SizeError, SmeltError, VerifyError
from smelt.ir.attributes import Constant
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Op, Program, Region, Token, Value
from smelt.ir.interpret import Frame, World, run
from smelt.ir.ops.definition import Process
from smelt.ir.text import parse
from smelt.shape import Shape

F, N = Shape("f32", 3), symbol("N")


def test_arguments_are_checked_on_entry():
    f = FuncBuilder("main", [F])
    program = Program.of(f.func(f.negate(f.args[0])))
    assert run(program, [np.ones(3, np.float32)])[0].tolist() == [-1, -1, -1]
    for wrong in ([], [np.ones(3)], [np.ones(4, np.float32)], [np.ones((3, 1), np.float32)], [[1.0, 2.0, 3.0]], [None]):
        with pytest.raises(RunError, match="@main"):
            run(program, wrong)


def test_sizes_come_from_the_arguments():
    f = FuncBuilder("main", [Shape("f32", N, 2 * N)])
    program = Program.of(f.func(f.add(f.args[0], f.args[0])))
    assert run(program, [np.ones((2, 4), np.float32)])[0].shape == (2, 4)
    with pytest.raises(SmeltError, match="@main"):
        run(program, [np.ones((2, 5), np.float32)])


def test_an_assumed_equality_is_checked_while_running():
    f = FuncBuilder("main", [Shape("f32", N), Shape("f32", symbol("M"))])
    g = Op("stablehlo.custom_call", f.args, [Shape("f32", N)], {"call_target_name": "second"})
    f.ops.append(g)
    program = Program.of(f.func(g.result))
    x, y = np.ones(2, np.float32), np.ones(5, np.float32)
    assert run(program, [x, x], callbacks={"second": lambda a, b: b})[0].shape == (2,)
    with pytest.raises(RunError, match="promised"):
        run(program, [x, y], callbacks={"second": lambda a, b: b})


def test_symbols_of_several_results_are_learned_together():
    f = FuncBuilder("main", [])
    a, b = symbol("a"), symbol("b")
    types = [Shape("f32", a + b), Shape("f32", a), Shape("f32", a)]
    op = f.op("stablehlo.custom_call", call_target_name="t", result=types)
    program = Program.of(f.func(*op.results))

    def give(*sizes):
        return run(program, callbacks={"t": lambda: tuple(np.zeros(n, np.float32) for n in sizes)})

    assert [x.shape for x in give(5, 2, 2)] == [(5,), (2,), (2,)]
    with pytest.raises(RunError, match="promised"):
        give(5, 2, 3)


def test_a_symbol_that_a_loop_introduces_is_bound_in_every_iteration():
    f = FuncBuilder("main", [])
    I = Shape("i64")  # noqa: E741
    with f.region(I) as cond:
        cond.result(cond.compare(cond.args[0], cond.constant(3, "i64"), comparison_direction="LT"))
    with f.region(I) as body:
        made = body.op(
            "stablehlo.custom_call", body.args[0], call_target_name="t", result=[Shape("f32", symbol("?"))]
        ).result
        body.negate(made)
        body.result(body.add(body.args[0], body.constant(1, "i64")))
    out = f.op("stablehlo.while", f.constant(0, "i64"), regions=(cond.body, body.body)).result
    program = Program.of(f.func(out))
    assert run(program, callbacks={"t": lambda n: np.zeros(int(n) + 1, np.float32)})[0] == 3


def test_lanes_agree_with_one_call_per_lane():
    f = FuncBuilder("main", [])
    S = Shape("f32")
    with f.region(S, S) as fast:
        fast.result(fast.add(fast.multiply(*fast.args), fast.constant(1.0, "f32")), fast.args[1])
    with f.region(S, S) as slow:  # the reshape keeps it from running on all lanes at once
        product = slow.reshape(slow.multiply(*slow.args), result=Shape("f32", 1))
        one = slow.reshape(slow.constant(1.0, "f32"), result=Shape("f32", 1))
        slow.result(slow.reshape(slow.add(product, one), result=S), slow.args[1])
    func = f.func()
    frame = Frame(World(Program.of(func), {}), func, Process())
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.array(3, np.float32)
    for region in (fast.body, slow.body):
        a, b = frame.lanes(region, x, y)
        assert np.array_equal(a, x * 3 + 1)
        assert np.array_equal(b, np.full((2, 3), 3))


def test_errors_say_where():
    f = FuncBuilder("main", [F, F])
    f.location = Location("model.mlir", 7, 3)
    f.op("stablehlo.custom_call", *f.args, call_target_name="check.expect_eq", result=[])
    with pytest.raises(RunError) as caught:
        run(Program.of(f.func()), [np.zeros(3, np.float32), np.ones(3, np.float32)])
    assert "model.mlir:7:3" in str(caught.value)


def test_no_warning_escapes():
    f = FuncBuilder("main", [F, F])
    program = Program.of(f.func(f.divide(*f.args), f.log(f.args[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quotient, logarithm = run(program, [np.array([0, 1, -1], np.float32), np.zeros(3, np.float32)])
    assert np.isnan(quotient[0])
    assert quotient[1:].tolist() == [np.inf, -np.inf]
    assert logarithm[0] == -np.inf


def test_numpy_error_state_is_left_alone():
    f = FuncBuilder("main", [Shape("i64")])
    with f.region(Shape("i64"), Shape("i64")) as r:
        r.result(r.add(*r.args))
    g = f.func(f.op("stablehlo.all_reduce", f.args[0], regions=[r.body], replica_groups=((0, 1),)).result)
    m = FuncBuilder("main", [Shape("i64")])
    m.signatures["g"] = g.type
    op = m.op("interpreter.run_parallel", m.args[0], m.args[0], programs=(("g",), ("g",)))
    before = np.geterr()
    program = Program.of(m.func(*op.results), type(g)("g", g.body))
    assert [int(x) for x in run(program, [np.array(2, np.int64)])] == [4, 4]
    assert np.geterr() == before


def test_deep_nesting_is_an_error_not_a_crash():
    x = Value(F)
    p = Value(Shape("i1"))
    region = Region((), (), (x,))
    for _ in range(1_000):
        op = Op("stablehlo.if", [p], [F], {}, [region, Region((), (), (x,))])
        region = Region((), (op,), op.results)
    f = FuncBuilder("main", [])
    func = type(f.func())("main", Region((p, x), region.ops, region.results))
    with pytest.raises(RunError, match="nested"):
        run(Program.of(func), [np.array(True), np.ones(3, np.float32)])


# ---- probes and checks ----


def probed(values, probe_id="p", iteration=0):
    f = FuncBuilder("main", [F, F])
    out = f.op("interpreter.probe", f.args[0], probe_id=probe_id).result
    f.op("interpreter.probe", f.args[1], probe_id=probe_id)
    f.op("check.expect_serialized_eq", f.constant(np.array(values, np.float32)), probe_id="p", iter=iteration)
    return Program.of(f.func(out))


def test_probes_keep_every_value_in_order():
    args = [np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)]
    assert run(probed([1, 2, 3]), args)[0].tolist() == [1, 2, 3]
    run(probed([4, 5, 6], iteration=1), args)
    for program in (probed([4, 5, 6]), probed([1, 2, 3], iteration=2), probed([1, 2, 3], probe_id="q")):
        with pytest.raises(RunError, match="expect_serialized_eq"):
            run(program, args)


@pytest.mark.parametrize(
    ("name", "actual", "expected", "attrs", "holds"),
    [
        ("expect_eq", [1.0, np.nan, 0.0], [1.0, np.nan, -0.0], {}, True),
        ("expect_eq", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0000002], {}, False),
        ("expect_almost_eq", [5.0, 0, 0], [5.00009, 0, 0], {}, True),
        ("expect_almost_eq", [5.0, 0, 0], [5.0002, 0, 0], {}, False),
        ("expect_almost_eq", [5.0, 0, 0], [5.09, 0, 0], {"tolerance": 0.1}, True),
        ("expect_close", [1.0, 1.0, 1.0], [1 + 3 * 2**-23, 1.0, 1.0], {}, True),
        ("expect_close", [1.0, 1.0, 1.0], [1 + 4 * 2**-23, 1.0, 1.0], {}, False),
        ("expect_close", [1.0, 1.0, 1.0], [1 + 2**-23] * 3, {"min_ulp_difference": 1, "max_ulp_difference": 1}, True),
        ("expect_close", [1.0, 1.0, 1.0], [1 + 2**-23, 1, 1], {"min_ulp_difference": 1}, False),
    ],
)
def test_checks(name, actual, expected, attrs, holds):
    f = FuncBuilder("main", [F, F])
    f.op(f"check.{name}", *f.args, **attrs)
    programs = [Program.of(f.func())]
    if name != "expect_close":
        g = FuncBuilder("main", [F, F])
        value = Constant.of(np.array(expected, np.float32), dtype("f32"))
        g.op(f"check.{name}_const", g.args[0], value=value, **attrs)
        programs.append(Program.of(g.func()))
    for program in programs:
        args = [np.array(actual, np.float32), np.array(expected, np.float32)]
        if holds:
            run(program, args)
        else:
            with pytest.raises(RunError, match="differ"):
                run(program, args)


def test_checks_refuse_other_types():
    f = FuncBuilder("main", [F, Shape("f32", 4), Shape("i32", 3), Token()])
    for name, a, b, message in (
        ("expect_eq", 0, 1, "different types"),
        ("expect_eq", 0, 2, "different types"),
        ("expect_close", 2, 2, "only floats"),
        ("expect_almost_eq", 2, 2, "only floats"),
        ("expect_eq", 3, 3, "must be a tensor"),
    ):
        with pytest.raises(VerifyError, match=message):
            f.op(f"check.{name}", f.args[a], f.args[b])
    with pytest.raises(VerifyError, match="the expected value has another type"):
        f.op("check.expect_eq_const", f.args[1], value=Constant.of(np.zeros(3, np.float32), dtype("f32")))
    wrong: list[dict[str, Any]] = [
        {"max_ulp_difference": -1},
        {"min_ulp_difference": -1},
        {"max_ulp_difference": 2**64},
    ]
    for limits in wrong:
        with pytest.raises(SmeltError, match="ui64"):
            f.op("check.expect_close", f.args[0], f.args[0], **limits)


def test_print_writes_a_value_and_its_type_to_stderr(capsys):
    f = FuncBuilder("main", [Shape("f32", 3)])
    f.op("interpreter.print", f.args[0])
    run(Program.of(f.func(f.args[0])), [np.array([1, 2.5, np.inf], np.float32)])
    out, err = capsys.readouterr()
    assert not out
    assert "f32[3]" in err
    assert "[1. , 2.5, inf]" in err


ROW, TABLE = "tensor<?xf32>", "tensor<?x?xf32>"
# Arguments; the op; sizes that it does not take; the nearest ones that it takes; what the error says.
SIZED: dict[str, tuple[str, str, list[tuple[int, ...]], list[tuple[int, ...]], str]] = {
    "operands of one shape": (
        f"%x: {ROW}, %y: {ROW}", f"stablehlo.add %x, %y : {ROW}", [(2,), (3,)], [(3,), (3,)], "d0 == d1"),
    "a bound of the operand's shape": (
        f"%x: {ROW}, %y: {ROW}", f"stablehlo.clamp %x, %y, %x : {ROW}", [(2,), (3,)], [(3,), (3,)], "d1 == d0"),
    "a slice that fits": (
        f"%x: {ROW}, %i: tensor<i32>",
        f"stablehlo.dynamic_slice %x, %i, sizes = [3] : ({ROW}, tensor<i32>) -> tensor<3xf32>", [(2,), ()], [(3,), ()],
        "d0 >= 3"),
    "a limit that is inside": (
        f"%x: {ROW}", f"stablehlo.slice %x [0:3] : ({ROW}) -> tensor<3xf32>", [(2,)], [(3,)], "d0 >= 3"),
    "k elements": (
        f"%x: {ROW}", f"chlo.top_k(%x, k = 3) : {ROW} -> (tensor<3xf32>, tensor<3xi32>)", [(2,)], [(3,)], "d0 >= 3"),
    "an update that fits": (
        f"%x: {ROW}, %y: {ROW}, %i: tensor<i32>",
        f"stablehlo.dynamic_update_slice %x, %y, %i : ({ROW}, {ROW}, tensor<i32>) -> {ROW}", [(2,), (3,), ()],
        [(3,), (3,), ()], "d1 <= d0"),
    "rows of one length": (
        f"%x: {TABLE}, %y: {TABLE}", f"stablehlo.concatenate %x, %y, dim = 0 : ({TABLE}, {TABLE}) -> {TABLE}",
        [(2, 2), (2, 3)], [(2, 3), (1, 3)], "d1 == d3"),
    "what is contracted": (
        f"%x: {TABLE}, %y: {TABLE}",
        f"stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({TABLE}, {TABLE}) -> {TABLE}",
        [(2, 2), (3, 3)], [(2, 3), (3, 1)], "d1 == d2"),
    "as many elements": (
        f"%x: {ROW}", f"stablehlo.reshape %x : ({ROW}) -> tensor<2x2xf32>", [(5,)], [(4,)], "d0 == 4"),
    "no negative size": (
        f"%x: {ROW}, %v: tensor<f32>",
        f"stablehlo.pad %x, %v, low = [-3], high = [0], interior = [0] : ({ROW}, tensor<f32>) -> {ROW}", [(2,), ()],
        [(3,), ()], "d0 - 3 >= 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_an_op_does_not_take_are_refused_before_it_runs(name: str) -> None:
    args, op, wrong, right, fact = SIZED[name]
    names = "%0:2" if "top_k" in op else "%0"
    program = parse(f"func.func @main({args}) {{\n  {names} = {op}\n  return\n}}\n")
    kinds = [np.int32 if each.endswith("i32>") else np.float32 for each in args.split(", ")]
    run(program, [np.zeros(sizes, kind) for sizes, kind in zip(right, kinds, strict=True)])
    with pytest.raises(SizeError) as caught:
        run(program, [np.zeros(sizes, kind) for sizes, kind in zip(wrong, kinds, strict=True)])
    assert str(caught.value.expected) == fact
    assert caught.value.where is not None
