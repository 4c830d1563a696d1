"""Control flow, calls and tokens, built by hand and run on NumPy."""

from typing import Any

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.errors import RunError, SmeltError, UnsupportedError, VerifyError
from smelt.ir.attributes import Dict, Int
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Future, Program, Token
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.ir.verify import verify
from smelt.shape import Shape

I1, I32, I64, F = Shape("i1"), Shape("i32"), Shape("i64"), Shape("f32", 3)
N, M = symbol("N"), symbol("M")


def i64(value):
    return np.array(value, np.int64)


def single(f, *results):
    program = Program.of(f.func(*results))
    verify(program)
    return program


# ---- if, case ----


def choice(kind, branches, operand_type):
    f = FuncBuilder("main", [operand_type, I64])
    regions = []
    for i in range(branches):
        with f.region() as r:
            r.result(r.add(f.args[1], r.constant(10 * i, "i64")), f.args[1])
        regions.append(r.body)
    return single(f, *f.op(f"stablehlo.{kind}", f.args[0], regions=regions).results)


@pytest.mark.parametrize(("pred", "want"), [(True, 5), (False, 15)])
def test_if_runs_one_branch(pred, want):
    result, captured = run(choice("if", 2, I1), [np.array(pred), i64(5)])
    assert (result, captured) == (want, 5)


@pytest.mark.parametrize(
    ("index", "want"), [(0, 0), (1, 10), (2, 20), (3, 20), (-1, 20), (2**31 - 1, 20), (-(2**31), 20)]
)
def test_case_takes_the_last_branch_outside_its_range(index, want):
    result, _ = run(choice("case", 3, I32), [np.array(index, np.int32), i64(0)])
    assert result == want


def test_only_the_chosen_branch_runs():
    f = FuncBuilder("main", [I1])
    with f.region() as yes:
        yes.op("stablehlo.custom_call", call_target_name="boom", result=[])
        yes.result()
    with f.region() as no:
        no.result()
    f.op("stablehlo.if", f.args[0], regions=(yes.body, no.body))
    program = single(f)
    assert run(program, [np.array(False)]) == ()
    with pytest.raises(UnsupportedError, match="boom"):
        run(program, [np.array(True)])


def test_branches_must_agree():
    f = FuncBuilder("main", [I1, I64, F])
    _, x, y = f.args
    with f.region() as a:
        a.result(x)
    with f.region() as b:
        b.result(y)
    with f.region() as c:
        c.result(x, x)
    with f.region(I64) as d:
        d.result(x)
    for regions in ((a, b), (a, c), (a, d), (a,), (a, a, a)):
        with pytest.raises(VerifyError):
            f.op("stablehlo.if", f.args[0], regions=[r.body for r in regions])
    with pytest.raises(VerifyError, match="case_c1"):
        f.op("stablehlo.case", f.constant(0, "i32"), regions=())
    with pytest.raises(VerifyError, match="boolean"):
        f.op("stablehlo.if", x, regions=(a.body, a.body))


def test_a_size_that_differs_between_branches_is_a_new_symbol_of_the_if():
    f = FuncBuilder("main", [I1, Shape("f32", 2), Shape("f32", 5)])
    p, x, y = f.args
    with f.region() as a:
        a.result(x)
    with f.region() as b:
        b.result(y)
    with pytest.raises(VerifyError, match="if_c2"):
        f.op("stablehlo.if", p, regions=(a.body, b.body))
    out = f.op("stablehlo.if", p, regions=(a.body, b.body), result=Shape("f32", symbol("?"))).result
    assert not out.shape.is_static
    program = single(f, f.add(out, out))
    args = [np.ones(2, np.float32), np.ones(5, np.float32)]
    assert [run(program, [np.array(p), *args])[0].shape for p in (True, False)] == [(2,), (5,)]


# ---- while ----


def counting(limit):
    f = FuncBuilder("main", [I64, I64])
    with f.region(I64, I64) as cond:
        cond.result(cond.compare(cond.args[0], cond.constant(limit, "i64"), comparison_direction="LT"))
    with f.region(I64, I64) as body:
        body.result(
            body.add(body.args[0], body.constant(1, "i64")), body.multiply(body.args[1], body.constant(3, "i64"))
        )
    return single(f, *f.op("stablehlo.while", *f.args, regions=(cond.body, body.body)).results)


@pytest.mark.parametrize("turns", [0, 1, 7])
def test_while(turns):
    counted, power = run(counting(turns), [i64(0), i64(1)])
    assert (counted, power) == (turns, 3**turns)


def test_while_needs_matching_regions():
    f = FuncBuilder("main", [I64])
    with f.region(I64) as cond:
        cond.result(cond.constant(True, "i1"))
    with f.region(I64) as number:
        number.result(number.args[0])
    with f.region(I64) as body:
        body.result(body.add(body.args[0], body.args[0]))
    with f.region(I64) as wrong:
        wrong.result(wrong.constant(1.0, "f32"))
    with f.region(F) as other:
        other.result(other.constant(True, "i1"))
    with f.region() as empty:
        empty.result()
    for regions in ((number, body), (cond, wrong), (other, body), (cond, empty), (empty, body), (cond,)):
        with pytest.raises(VerifyError):
            f.op("stablehlo.while", f.args[0], regions=[r.body for r in regions])


def test_a_loop_may_grow_a_tensor():
    f = FuncBuilder("main", [I64, Shape("f32", N)])
    state = [I64, Shape("f32", M)]
    with f.region(*state) as cond:
        cond.result(cond.compare(cond.args[0], cond.constant(3, "i64"), comparison_direction="LT"))
    with f.region(*state) as body:
        grown = body.concatenate(body.args[1], body.args[1], dimension=0)
        body.result(body.add(body.args[0], body.constant(1, "i64")), grown)
    _, out = f.op("stablehlo.while", *f.args, regions=(cond.body, body.body)).results
    assert not out.shape.symbols & {"N", "M"}
    program = single(f, out)
    (result,) = run(program, [i64(0), np.arange(2, dtype=np.float32)])
    assert result.tolist() == [0, 1] * 8


def test_a_loop_that_keeps_a_size_says_so():
    f = FuncBuilder("main", [Shape("f32", N)])
    with f.region(Shape("f32", M)) as cond:
        cond.result(cond.constant(False, "i1"))
    with f.region(Shape("f32", M)) as body:
        body.result(body.add(body.args[0], body.args[0]))
    out = f.op("stablehlo.while", *f.args, regions=(cond.body, body.body)).result
    assert out.type == Shape("f32", N)


# ---- calls ----


def double(name="double", size=N):
    g = FuncBuilder(name, [Shape("f32", size)])
    return g.func(g.concatenate(g.args[0], g.args[0], dimension=0))


def test_a_call_is_polymorphic_in_sizes():
    callee = double()
    f = FuncBuilder("main", [Shape("f32", 3), Shape("f32", M)])
    f.signatures["double"] = callee.type
    a = f.op("func.call", f.args[0], callee="double").result
    b = f.op("func.call", f.args[1], callee="double").result
    assert a.type == Shape("f32", 6)
    assert b.type == Shape("f32", 2 * M)
    program = Program.of(f.func(a, b), callee)
    verify(program)
    x, y = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)
    got = run(program, [x, y])
    assert [r.tolist() for r in got] == [[0, 1, 2, 0, 1, 2], [*range(5), *range(5)]]


def test_a_call_binds_multiples():
    g = FuncBuilder("half", [Shape("f32", 2 * N), Shape("i32", N)])
    callee = g.func(g.args[1])
    f = FuncBuilder("main", [Shape("f32", 6 * M), Shape("i32", 3 * M), Shape("i32", M)])
    f.signatures["half"] = callee.type
    assert f.op("func.call", f.args[0], f.args[1], callee="half").result.type == Shape("i32", 3 * M)


@pytest.mark.parametrize(
    ("args", "callee"),
    [([], "double"), ([0, 0], "double"), ([1], "double"), ([2], "double"), ([0], "missing"), ([3], "double")],
)
def test_a_call_must_fit(args, callee):
    f = FuncBuilder("main", [Shape("f32", 3), Shape("f32", 3, 3), Shape("f64", 3), Token()])
    f.signatures["double"] = double().type
    with pytest.raises(VerifyError):
        f.op("func.call", *(f.args[i] for i in args), callee=callee)


def test_equal_sizes_of_a_callee_are_checked():
    g = FuncBuilder("g", [Shape("f32", N), Shape("f32", N)])
    f = FuncBuilder("main", [Shape("f32", 3), Shape("f32", 4)])
    f.signatures["g"] = g.func(g.add(*g.args)).type
    with pytest.raises(VerifyError, match="@g"):
        f.op("func.call", *f.args, callee="g")


def test_composite_means_its_decomposition():
    callee = double("impl")
    f = FuncBuilder("main", [Shape("f32", 2)])
    f.signatures["impl"] = callee.type
    attributes = Dict((("n", Int(2)),))
    made = f.op(
        "stablehlo.composite", f.args[0], name="my.double", decomposition="impl", composite_attributes=attributes
    )
    assert made.attrs["version"] == 0
    program = Program.of(f.func(made.result), callee)
    assert run(program, [np.array([1, 2], np.float32)])[0].tolist() == [1, 2, 1, 2]
    with pytest.raises(VerifyError, match="composite_c1"):
        f.op("stablehlo.composite", f.args[0], name="double", decomposition="impl")


# ---- custom calls ----


def custom(target, args, result):
    f = FuncBuilder("main", args)
    op = f.op("stablehlo.custom_call", *f.args, call_target_name=target, result=result)
    return single(f, *op.results)


def test_a_callback_answers_a_custom_call():
    program = custom("mine", [F], [F])
    x = np.array([1, 2, 3], np.float32)
    assert run(program, [x], callbacks={"mine": lambda a: a * 2})[0].tolist() == [2, 4, 6]
    with pytest.raises(UnsupportedError, match="mine"):
        run(program, [x])
    for wrong in (lambda a: (), lambda a: a.astype(np.float64), lambda a: a[:2], lambda a: (a, a)):
        with pytest.raises(RunError, match="mine"):
            run(program, [x], callbacks={"mine": wrong})


def test_placement_is_the_identity():
    program = custom("Sharding", [F], [F])
    assert run(program, [np.ones(3, np.float32)])[0].tolist() == [1, 1, 1]


def test_layouts_of_custom_calls_are_permutations():
    f = FuncBuilder("main", [Shape("f32", 2, 3)])
    keywords: dict[str, Any] = {"call_target_name": "t", "result": [Shape("f32", 4)]}
    f.op("stablehlo.custom_call", *f.args, **keywords, operand_layouts=((0, 1),), result_layouts=((0,),))
    for operand_layouts, result_layouts in [(((0, 0),), ((0,),)), (((0, 1),), ()), (((0, 1),), None), (None, ((0,),))]:
        with pytest.raises(VerifyError):
            f.op(
                "stablehlo.custom_call",
                *f.args,
                **keywords,
                operand_layouts=operand_layouts,
                result_layouts=result_layouts,
            )


CHECKED = [
    ("check.expect_close", "f32", [1.0, np.inf, np.nan], [1.0 + 3 * 2**-23, np.inf, np.nan], True),
    ("check.expect_close", "f32", [1.0, np.inf, np.nan], [1.0 + 4 * 2**-23, np.inf, np.nan], False),
    ("check.expect_close", "f32", [np.inf], [np.finfo(np.float32).max], False),
    ("check.expect_close", "f32", [np.nan], [1.0], False),
    ("check.expect_close", "f32", [0.0, 2.0**-149], [-0.0, -(2.0**-149)], True),
    ("check.expect_close", "f32", [2 * 2.0**-149], [-(2 * 2.0**-149)], False),
    ("check.expect_close", "bf16", [1.0], [1.0234375], True),
    ("check.expect_close", "bf16", [1.0], [1.03125], False),
    ("check.expect_close", "complex<f32>", [1 + 1j], [1 + (1 + 2**-22) * 1j], True),
    ("check.expect_close", "complex<f32>", [1 + 1j], [1 + (1 + 2**-20) * 1j], False),
    ("check.expect_almost_eq", "f32", [1.0, np.nan, -np.inf], [1.0005, np.nan, -np.inf], True),
    ("check.expect_almost_eq", "f32", [1.0], [1.002], False),
    ("check.expect_almost_eq", "f32", [np.inf], [-np.inf], False),
    ("check.expect_almost_eq", "f32", [np.inf], [1.0], False),
    ("check.expect_almost_eq", "f32", [np.nan], [1.0], False),
    ("check.expect_almost_eq", "complex<f64>", [1 + 1j], [1 + 1.01j], False),
    ("check.expect_eq", "f32", [0.0, np.nan], [-0.0, np.nan], True),
    ("check.expect_eq", "f32", [1.0], [1.0 + 2**-23], False),
    ("check.expect_eq", "bf16", [1.0, np.nan], [1.0, np.nan], True),
    ("check.expect_eq", "i4", [-8, 7], [-8, 6], False),
    ("check.expect_eq", "i1", [True], [True], True),
    ("check.expect_eq", "ui64", [2**64 - 1], [2**64 - 2], False),
    ("check.expect_eq", "complex<f32>", [1 + 2j], [1 + 3j], False),
]


@pytest.mark.parametrize(("target", "element", "actual", "expected", "holds"), CHECKED)
def test_checks_as_custom_calls(target, element, actual, expected, holds):
    shape = Shape(element, len(actual))
    program = custom(target, [shape, shape], [])
    args = [np.array(each).astype(shape.dtype.numpy) for each in (actual, expected)]
    if holds:
        assert run(program, args) == ()
    else:
        with pytest.raises(RunError, match=r"differ, the worst at \[0\]|the worst at \[1\]"):
            run(program, args)


def test_a_failed_check_shows_the_worst_element():
    shape = Shape("f32", 2, 2)
    program = custom("check.expect_almost_eq", [shape, shape], [])
    with pytest.raises(RunError) as caught:
        run(program, [np.array([[1, 2], [3, 9]], np.float32), np.array([[1, 2.5], [3, 4]], np.float32)])
    assert "2 of 4" in str(caught.value)
    assert "[1, 1]" in str(caught.value)
    assert "9.0" in str(caught.value.got)
    assert "4.0" in str(caught.value.expected)


# ---- order, futures, sharding ----


def test_tokens_and_barriers():
    f = FuncBuilder("main", [F, I64])
    token = f.op("stablehlo.after_all").result
    other = f.op("stablehlo.create_token").result
    joined = f.op("stablehlo.after_all", token, other).result
    assert joined.type == Token()
    x, n, t = f.op("stablehlo.optimization_barrier", *f.args, joined).results
    got = run(single(f, n, x, t), [np.ones(3, np.float32), i64(4)])
    assert got[0] == 4
    assert got[2] is None
    with pytest.raises(VerifyError, match="token"):
        f.op("stablehlo.after_all", f.args[0])


def test_async():
    f = FuncBuilder("main", [F])
    with f.region(F) as r:
        r.result(r.add(r.args[0], r.args[0]), r.args[0])
    future = f.op("stablehlo.async_start", f.args[0], regions=[r.body]).result
    assert future.type == Future((F, F))
    a, b = f.op("stablehlo.async_done", future).results
    got = run(single(f, a, b), [np.ones(3, np.float32)])
    assert [x.tolist() for x in got] == [[2, 2, 2], [1, 1, 1]]
    with pytest.raises(VerifyError):
        f.op("stablehlo.async_done", f.args[0])


def test_sharding_is_the_identity_on_one_process():
    f = FuncBuilder("main", [F])
    x = f.op("sdy.sharding_constraint", f.args[0], sharding="any").result
    x = f.op("sdy.reshard", x, sharding="any").result
    assert run(single(f, x), [np.ones(3, np.float32)])[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "name", ["if", "case", "while", "async_start", "async_done", "after_all", "composite", "custom_call"]
)
@pytest.mark.parametrize("regions", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [Token(), I1, F])
def test_malformed_ops_raise_our_own_errors(name, regions, kind):
    f = FuncBuilder("main", [kind, I64])
    with f.region(I64, F) as r:
        r.result(f.args[1])
    for operands in (f.args[:0], f.args[:1], f.args):
        attrs: dict[str, Any] = {"name": "a.b", "decomposition": "x"} if name == "composite" else {}
        try:
            f.op(f"stablehlo.{name}", *operands, regions=[r.body] * regions, **attrs)
        except SmeltError:
            continue
        assert name == "after_all"


def test_sharding_hints_change_nothing():
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      sdy.sharding_group %x group_id=3 : tensor<2xf32>
      %0 = "sdy.propagation_barrier"(%x) {allowed_direction = 0 : i32} : (tensor<2xf32>) -> tensor<2xf32>
      check.expect_almost_eq_const %0, dense<[1.0, 2.0]> : tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    program = parse(text)
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(run(program, [x])[0], x)
    with pytest.raises(RunError):
        run(program, [x + 1])
