"""The verifier: every violation that a finished program can hold, and none in a valid one."""

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.errors import VerifyError
from smelt.ir.attributes import Constant
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Op, Program, Region, Value
from smelt.ir.text import parse
from smelt.ir.verify import callees, verify, verify_all
from smelt.shape import Shape

F, N = Shape("f32", 4), symbol("N")


def func(name, args, ops, results):
    return Func(name, Region(tuple(args), tuple(ops), tuple(results)))


def test_a_valid_program_has_no_violation_and_no_assumption():
    f = FuncBuilder("main", [F, Shape("f32", N)])
    x, y = f.args
    program = Program.of(f.func(f.add(x, x), f.add(y, y)))
    assert verify(program) == []
    assert verify_all(program) == []


def test_use_before_definition():
    x = Value(F)
    first = Op("stablehlo.negate", [x], [F])
    second = Op("stablehlo.negate", first.results, [F])
    verify(Program.of(func("main", [x], [first, second], second.results)))
    with pytest.raises(VerifyError, match="before it is defined"):
        verify(Program.of(func("main", [x], [second, first], second.results)))


def test_a_value_of_another_function():
    x, y = Value(F), Value(F)
    with pytest.raises(VerifyError, match="defined"):
        verify(Program.of(func("main", [x], [Op("stablehlo.negate", [y], [F])], [])))
    with pytest.raises(VerifyError, match="result 0 of @main"):
        verify(Program.of(func("main", [x], [], [y])))


def test_values_do_not_cross_sibling_regions():
    f = FuncBuilder("main", [Shape("i1"), F])
    with f.region() as yes:
        inside = yes.negate(f.args[1])
        yes.result(inside)
    with f.region() as no:
        no.result(inside)
    op = f.op("stablehlo.if", f.args[0], regions=(yes.body, no.body))
    with pytest.raises(VerifyError, match="outside the region"):
        verify(Program.of(f.func(op.result)))


def test_values_do_not_leave_their_region():
    f = FuncBuilder("main", [Shape("i1"), F])
    with f.region() as yes:
        inside = yes.negate(f.args[1])
        yes.result(inside)
    f.op("stablehlo.if", f.args[0], regions=(yes.body, yes.body))
    with pytest.raises(VerifyError):
        verify(Program.of(f.func(f.negate(inside))))


def test_regions_may_use_what_stands_outside():
    f = FuncBuilder("main", [Shape("i1"), F])
    outer = f.negate(f.args[1])
    with f.region() as yes:
        with f.region() as inner:
            inner.result(inner.negate(outer))
        with f.region() as other:
            other.result(outer)
        yes.result(yes.op("stablehlo.if", f.args[0], regions=(inner.body, other.body)).result)
    with f.region() as no:
        no.result(outer)
    op = f.op("stablehlo.if", f.args[0], regions=(yes.body, no.body))
    assert verify(Program.of(f.func(op.result))) == []


def test_recorded_types_are_inferred_again():
    x = Value(F)
    for wrong in (Shape("f32", 5), Shape("f64", 4), Shape("f32", 4, 1)):
        op = Op("stablehlo.negate", [x], [wrong])
        with pytest.raises(VerifyError, match="negate"):
            verify(Program.of(func("main", [x], [op], op.results)))
    two = Op("stablehlo.negate", [x], [F, F])
    with pytest.raises(VerifyError, match="number of results"):
        verify(Program.of(func("main", [x], [two], [])))
    none = Op("stablehlo.add", [x], [F])
    with pytest.raises(VerifyError, match="number of operands"):
        verify(Program.of(func("main", [x], [none], [])))


def test_the_same_op_twice():
    x = Value(F)
    op = Op("stablehlo.negate", [x], [F])
    with pytest.raises(VerifyError, match="twice"):
        verify(Program.of(func("main", [x], [op, op], [])))
    with pytest.raises(VerifyError, match="twice"):
        verify(Program.of(func("main", [x, x], [], [])))


def test_every_violation_is_listed():
    x = Value(F)
    bad = Op("stablehlo.negate", [x], [Shape("f32", 5)])
    lost = Op("stablehlo.negate", [Value(F)], [F])
    fine = Op("stablehlo.negate", [x], [F])
    errors = verify_all(Program.of(func("main", [x], [bad, fine, lost], []), func("f", [x], [], [])))
    assert [error.message for error in errors] == [
        "stablehlo.negate: a declared result size is not the inferred one",
        "stablehlo.negate: operand 0 is used before it is defined",
        "%0 is defined twice",
    ]


def test_unknown_ops_are_violations():
    op = Op("stablehlo.nonsense", [], [])
    assert "nonsense" in str(verify_all(Program.of(func("main", [], [op], [])))[0])


# ---- calls ----


def calling(name, *callees):
    f = FuncBuilder(name, [])
    for callee in callees:
        f.ops.append(Op("func.call", [], [], {"callee": callee}))
    return f.func()


def test_calls_resolve():
    verify(Program.of(calling("main", "a", "a"), calling("a", "b"), calling("b")))
    with pytest.raises(VerifyError, match="no function @b"):
        verify(Program.of(calling("main", "a"), calling("a", "b")))


@pytest.mark.parametrize("path", [["main"], ["main", "a"], ["main", "a", "b"]])
def test_recursion_is_refused(path):
    funcs = [calling(name, "leaf", path[(i + 1) % len(path)]) for i, name in enumerate(path)]
    with pytest.raises(VerifyError, match="calls itself"):
        verify(Program.of(*funcs, calling("leaf")))


def test_recursion_through_a_region_is_refused():
    f = FuncBuilder("main", [Shape("i1")])
    inner = Region((), (Op("func.call", [], [], {"callee": "main"}),), ())
    f.ops.append(Op("stablehlo.if", f.args, [], {}, [inner, Region((), (), ())]))
    program = Program.of(f.func())
    assert any("calls itself" in str(error) for error in verify_all(program))


def test_callees_are_found_in_every_attribute():
    op = Op("interpreter.run_parallel", [], [], {"programs": (("a", "b"), ("c", "d")), "infeed": ("e",)})
    assert list(callees(op)) == ["a", "b", "c", "d", "e"]


# ---- symbols ----


def test_an_unproven_equality_is_an_assumed_fact():
    f = FuncBuilder("main", [Shape("f32", N), Shape("f32", symbol("M"))])
    (fact,) = verify(Program.of(f.func(f.add(*f.args))))
    assert "N" in fact
    assert "M" in fact


def test_a_symbol_from_nowhere_is_refused():
    x = Value(Shape("f32", N))
    op = Op("stablehlo.negate", [x], [Shape("f32", symbol("Q"))])
    with pytest.raises(VerifyError, match="Q"):
        verify(Program.of(func("main", [x], [op], op.results)))
    custom = Op(
        "stablehlo.custom_call",
        [],
        [Shape("f32", symbol("Q") + 1)],
        {"call_target_name": "t", "called_computations": ()},
    )
    with pytest.raises(VerifyError, match="Q"):
        verify(Program.of(func("main", [], [custom], [])))


def test_a_call_gives_birth_to_the_sizes_its_callee_found():
    g = FuncBuilder("g", [])
    callee = g.func(g.op("stablehlo.custom_call", call_target_name="t", result=[Shape("f32", symbol("?"))]).result)
    f = FuncBuilder("main", [])
    f.signatures["g"] = callee.type
    a, b = (f.op("func.call", callee="g").result for _ in range(2))
    assert a.type != b.type
    program = Program.of(f.func(a, b), callee)
    assert verify(program) == []


def test_an_unknown_size_is_refused():
    x = Value(Shape("f32", symbol("?")))
    with pytest.raises(VerifyError, match="not known"):
        verify(Program.of(func("main", [x], [], [x])))


# ---- scale ----


def test_a_long_chain_can_be_verified():
    x = Value(F)
    value, ops = x, []
    for _ in range(20_000):
        ops.append(Op("stablehlo.negate", [value], [F]))
        value = ops[-1].results[0]
    verify(Program.of(func("main", [x], ops, [value])))


def test_deep_nesting_does_not_recurse():
    p, x = Value(Shape("i1")), Value(F)
    region = Region((), (), (x,))
    for _ in range(3_000):
        op = Op("stablehlo.if", [p], [F], {}, [region, Region((), (), (x,))])
        region = Region((), (op,), op.results)
    verify(Program.of(func("main", [p, x], region.ops, region.results)))


def test_a_long_chain_of_calls_does_not_recurse():
    names = [f"f{i}" for i in range(3_000)]
    funcs = [calling(name, *names[i + 1 : i + 2]) for i, name in enumerate(names)]
    verify(Program.of(*funcs))


def test_constants_are_checked_against_their_type():
    value = Constant.of(np.zeros(3, np.float32), dtype("f32"))
    wrong = Op("stablehlo.constant", [], [Shape("f32", 4)], {"value": value})
    with pytest.raises(VerifyError):
        verify(Program.of(func("main", [], [wrong], [])))


@pytest.mark.parametrize(
    ("size", "fact"),
    [("N", "N == M or N == 1"), ("min(M, 512)", "M <= 512"), ("min(M, 1)", "min(M, 1) == M or min(M, 1) == 1")],
)
def test_a_broadcast_of_a_dynamic_dimension_is_an_assumption(size: str, fact: str) -> None:
    old, new = (f"tensor<?xf32, #smelt.sizes<{each}>>" for each in (size, "M"))
    program = parse(f"""func.func @main(%x: {old}, %n: tensor<?xf32, #smelt.sizes<N>>, %m: {new}) -> {new} {{
      %0 = stablehlo.broadcast_in_dim %x, dims = [0] : ({old}) -> {new}
      return %0 : {new}
    }}""")
    assert verify(program) == [f"{fact} (stablehlo.broadcast_in_dim: a dynamic dimension is repeated or kept)"]
