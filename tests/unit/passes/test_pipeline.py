"""The passes together, and each of the larger ones, on random programs against the interpreter."""

from __future__ import annotations

import io

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import Array
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Program, Value
from smelt.ir.interpret import run
from smelt.ir.structure import same
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.split_prepare import BOUND, WEIGHT, split_prepare
from smelt.shape import Shape
from tests.programs import random_program


def same_results(before: tuple[Array, ...], after: tuple[Array, ...]) -> None:
    for old, new in zip(before, after, strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
        np.testing.assert_array_equal(np.signbit(old), np.signbit(new))


def run_split(program: Program, original: Func, args: list[Array]) -> tuple[Array, ...]:
    """Run a program that split_prepare may have divided."""
    marked = [WEIGHT in attrs for attrs in original.arg_attrs]
    if "prepare" not in program.funcs:
        return run(program, args)
    bound = run(program, [array for array, mark in zip(args, marked, strict=True) if mark], func="prepare")
    return run(program, [*bound, *(array for array, mark in zip(args, marked, strict=True) if not mark)])


@pytest.mark.parametrize("which", range(40))
def test_the_pipeline_keeps_every_bit(which: int, seed: int) -> None:
    program, args = random_program(np.random.default_rng([seed, which]))
    verify(program)
    optimised, reports = pipeline.run(program, debug=True, log=io.StringIO())
    assert [report.name for report in reports] == [step.name for step in pipeline.passes()]
    same_results(run(program, args), run_split(optimised, program.main, args))
    again, _ = pipeline.run(optimised)
    assert same(again, optimised), "a second run changed something"


@pytest.mark.parametrize("which", range(20))
def test_random_programs_survive_text(which: int, seed: int) -> None:
    program, _ = random_program(np.random.default_rng([seed, which]))
    for generic in (False, True):
        assert same(parse(print_program(program, generic=generic)), program)


def test_debug_prints_only_what_changed() -> None:
    f = FuncBuilder("main", [Shape("f32", 2)])
    plain = Program.of(f.func(f.tanh(f.args[0])))
    log = io.StringIO()
    pipeline.run(plain, debug=True, log=log)
    assert log.getvalue() == ""
    g = FuncBuilder("main", [Shape("f32", 2)])
    log = io.StringIO()
    pipeline.run(Program.of(g.func(g.negate(g.negate(g.args[0])))), debug=True, log=log)
    assert log.getvalue().count("// after simplify") == 1


def test_calls_are_inlined_with_the_callers_sizes() -> None:
    text = """
    module {
      func.func public @main(%x: tensor<?x3xf32, #smelt.sizes<B, 3>>) -> tensor<?x3xf32, #smelt.sizes<B, 3>> {
        %0 = call @twice(%x) : (tensor<?x3xf32, #smelt.sizes<B, 3>>) -> tensor<?x3xf32, #smelt.sizes<B, 3>>
        return %0 : tensor<?x3xf32, #smelt.sizes<B, 3>>
      }
      func.func private @twice(%x: tensor<?x3xf32, #smelt.sizes<N, 3>>) -> tensor<?x3xf32, #smelt.sizes<N, 3>> {
        %0 = call @once(%x) : (tensor<?x3xf32, #smelt.sizes<N, 3>>) -> tensor<?x3xf32, #smelt.sizes<N, 3>>
        %1 = call @once(%0) : (tensor<?x3xf32, #smelt.sizes<N, 3>>) -> tensor<?x3xf32, #smelt.sizes<N, 3>>
        return %1 : tensor<?x3xf32, #smelt.sizes<N, 3>>
      }
      func.func private @once(%x: tensor<?x3xf32, #smelt.sizes<M, 3>>) -> tensor<?x3xf32, #smelt.sizes<M, 3>> {
        %0 = stablehlo.add %x, %x : tensor<?x3xf32, #smelt.sizes<M, 3>>
        return %0 : tensor<?x3xf32, #smelt.sizes<M, 3>>
      }
    }
    """
    program = parse(text)
    inlined, _ = pipeline.run(program, until="inline")
    verify(inlined)
    assert list(inlined.funcs) == ["main"]
    assert [op.name for op in inlined.main.body.ops] == ["stablehlo.add"] * 2
    assert {str(op.result.type) for op in inlined.main.body.ops} == {"f32[B, 3]"}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(inlined, [x])[0], 4 * x)


def test_functions_of_multiples_are_inlined_with_the_callers_sizes() -> None:
    """Where a symbol of the function stands in no size alone, as in rows that are pairs of a token and an expert."""
    n, m = symbol("N"), symbol("M")
    g = FuncBuilder("g", [Shape("f32", 2 * n)])
    callee = g.func(g.add(g.args[0], g.full(1.0, Shape("f32", 2 * n))))
    f = FuncBuilder("main", [Shape("f32", m)])
    f.signatures["g"] = callee.type
    wide = f.concatenate(*[f.args[0]] * 6, dimension=0)
    program = Program.of(f.func(f.op("func.call", wide, callee="g").result), callee)
    inlined, _ = pipeline.run(program, until="inline")
    verify(inlined)
    assert {str(op.result.type) for op in inlined.main.body.ops} == {"f32[]", "f32[6*M]"}
    x = np.arange(3, dtype=np.float32)
    for each in (program, inlined):
        np.testing.assert_array_equal(run(each, [x])[0], np.tile(x + 1, 6))


def test_equal_ops_are_computed_once_but_not_across_regions() -> None:
    f = FuncBuilder("main", [Shape("i1"), Shape("f32", 2)])
    predicate, x = f.args
    regions = []
    for _ in range(2):
        with f.region() as r:
            r.result(r.tanh(x))
        regions.append(r.body)
    chosen = f.if_(predicate, regions=regions)
    outside = f.add(f.tanh(x), f.tanh(x))
    program = Program.of(f.func(chosen, outside))
    optimised, _ = pipeline.run(program)
    names = [op.name for op in optimised.main.body.ops]
    assert names.count("stablehlo.tanh") == 1
    args = [np.array(True), np.array([0.5, 2], np.float32)]
    same_results(run(program, args), run(optimised, args))


def test_split_prepare() -> None:
    f = FuncBuilder("main", [Shape("f32", 4, 4), Shape("f32", "B", 4)], arg_attrs=[{WEIGHT: "w"}, {}])
    weight, x = f.args
    folded = f.multiply(f.transpose(weight, permutation=(1, 0)), f.full(2.0, weight.shape))
    bias = f.broadcast_in_dim(_first_row(f, folded), broadcast_dimensions=(1,), result=x.shape)
    program = Program.of(f.func(f.add(x, bias)))
    split = split_prepare(program)
    verify(split)
    assert {op.name for op in split.funcs["prepare"].body.ops} >= {"stablehlo.transpose", "stablehlo.multiply"}
    late = [op.name for op in split.main.body.ops]
    assert late.count("stablehlo.broadcast_in_dim") == 1, "a broadcast is cheaper to repeat than to store"
    assert "stablehlo.multiply" not in late
    assert [BOUND in attrs for attrs in split.main.arg_attrs] == [True, False]


def test_split_prepare_of_an_op_with_an_unused_result() -> None:
    f = FuncBuilder("main", [Shape("f32", 3), Shape("i32", 3)], arg_attrs=[{WEIGHT: "w"}, {}])
    weight, x = f.args
    with f.region(*[Shape("f32")] * 2, *[Shape("i32")] * 2) as r:
        r.result(r.compare(r.args[0], r.args[1], comparison_direction="LT"))
    places = f.iota(iota_dimension=0, result=Shape("i32", 3))
    _, order = f.sort(weight, places, dimension=0, regions=[r.body])
    program = Program.of(f.func(f.add(x, order)))
    split = split_prepare(program)
    verify(split)
    assert "stablehlo.sort" not in [op.name for op in split.main.body.ops]
    args = [np.array([3, 1, 2], np.float32), np.zeros(3, np.int32)]
    np.testing.assert_array_equal(run_split(split, program.main, args)[0], [1, 2, 0])


def _first_row(f: FuncBuilder, value: Value) -> Value:
    row = f.slice(value, start_indices=(0, 0), limit_indices=(1, 4), strides=(1, 1))
    flat: Value = f.reshape(row, result=Shape("f32", 4))
    return flat


def test_folding_is_bounded() -> None:
    f = FuncBuilder("main", [])
    small = f.add(f.constant([1.0, 2.0], "f32"), f.constant([3.0, 4.0], "f32"))
    large = f.broadcast_in_dim(f.constant(1.0, "f32"), broadcast_dimensions=(), result=Shape("f32", 1000))
    optimised, _ = pipeline.run(Program.of(f.func(small, large)))
    kept = [op.name for op in optimised.main.body.ops]
    assert kept.count("stablehlo.broadcast_in_dim") == 1
    assert "stablehlo.add" not in kept
    np.testing.assert_array_equal(run(optimised)[0], np.array([4, 6], np.float32))


def test_long_chains_are_no_problem() -> None:
    f = FuncBuilder("main", [Shape("f32")])
    value = f.args[0]
    for i in range(5_000):
        value = f.add(value, f.constant(float(i % 7), "f32"))
    optimised, _ = pipeline.run(Program.of(f.func(value)))
    assert run(optimised, [np.array(1.0, np.float32)])[0] == 1 + sum(i % 7 for i in range(5_000))


def test_the_body_of_a_scan_shares_nothing_with_what_is_around_it() -> None:
    """Its constant equals one outside: merged, the body would use a value from outside, which a scan's may not."""
    program = parse(
        """func.func @main(%x: tensor<3xf32>, %start: tensor<f32>) -> (tensor<3xf32>, tensor<f32>) {
      %one = stablehlo.constant dense<1.0> : tensor<f32>
      %first = stablehlo.add %start, %one : tensor<f32>
      %0:2 = "chlo.scan"(%x, %first) <{dimension = 0 : i64}> ({
      ^bb0(%row: tensor<f32>, %sum: tensor<f32>):
        %same = stablehlo.constant dense<1.0> : tensor<f32>
        %1 = stablehlo.subtract %same, %row : tensor<f32>
        %2 = stablehlo.add %sum, %1 : tensor<f32>
        stablehlo.return %2, %2 : tensor<f32>, tensor<f32>
      }) : (tensor<3xf32>, tensor<f32>) -> (tensor<3xf32>, tensor<f32>)
      return %0#0, %0#1 : tensor<3xf32>, tensor<f32>
    }"""
    )
    optimised, _ = pipeline.run(program)
    verify(optimised)
