"""Control flow on generated C against the interpreter: loops, branches, tokens, what they carry."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.ir.text import parse
from tests.unit.kernel.agreement import disagreement

LOOP = """func.func @main(%n: tensor<i32>, %x: tensor<3xf32>, %y: tensor<3xf32>) -> ({results}) {{
  %i0 = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %half = stablehlo.constant dense<0.5> : tensor<3xf32>
  %w = stablehlo.multiply %x, %half : tensor<3xf32>
  %r:3 = stablehlo.while(%i = %i0, %a = %x, %b = %y) : tensor<i32>, tensor<3xf32>, tensor<3xf32>
  cond {{
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %j = stablehlo.add %i, %one : tensor<i32>
    {body}
  }}
  {end}
}}"""
THREE = "tensor<i32>, tensor<3xf32>, tensor<3xf32>"
BODIES = {
    "swap": f"stablehlo.return %j, %b, %a : {THREE}",
    "rotate": f"%t = stablehlo.add %a, %b : tensor<3xf32>\n stablehlo.return %j, %b, %t : {THREE}",
    "captured": f"%t = stablehlo.add %a, %w : tensor<3xf32>\n stablehlo.return %j, %t, %b : {THREE}",
    "the same twice": f"%t = stablehlo.add %a, %b : tensor<3xf32>\n stablehlo.return %j, %t, %t : {THREE}",
    "a constant": f"stablehlo.return %j, %half, %a : {THREE}",
    "reversed": f"%t = stablehlo.reverse %a, dims = [0] : tensor<3xf32>\n stablehlo.return %j, %t, %a : {THREE}",
    "captured alone": f"stablehlo.return %j, %w, %x : {THREE}",
}


@pytest.mark.parametrize("name", BODIES)
def test_what_a_loop_carries(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    end = "return %r#0, %r#1, %r#2, %w : tensor<i32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>"
    program = parse(LOOP.format(results=f"{THREE}, tensor<3xf32>", body=BODIES[name], end=end))
    x, y = random.standard_normal((2, 3)).astype(np.float32)
    assert not disagreement(program, [(np.int32(turns), x, y) for turns in (0, 1, 2, 5, -3)])


NESTED = """func.func @main(%n: tensor<i32>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %a = %x, %count = %zero) : tensor<i32>, tensor<4xf32>, tensor<i32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %s:2 = stablehlo.while(%k = %zero, %b = %a) : tensor<i32>, tensor<4xf32>
    cond {
      %c = stablehlo.compare LT, %k, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %odd = stablehlo.remainder %k, %two : tensor<i32>
      %flag = stablehlo.compare EQ, %odd, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %d = "stablehlo.if"(%flag) ({
        %e = stablehlo.add %b, %x : tensor<4xf32>
        stablehlo.return %e : tensor<4xf32>
      }, {
        %e = stablehlo.reverse %b, dims = [0] : tensor<4xf32>
        stablehlo.return %e : tensor<4xf32>
      }) : (tensor<i1>) -> tensor<4xf32>
      %m = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %m, %d : tensor<i32>, tensor<4xf32>
    }
    %j = stablehlo.add %i, %one : tensor<i32>
    %total = stablehlo.add %count, %s#0 : tensor<i32>
    stablehlo.return %j, %s#1, %total : tensor<i32>, tensor<4xf32>, tensor<i32>
  }
  return %r#1, %r#2 : tensor<4xf32>, tensor<i32>
}"""


def test_loops_and_branches_inside_loops(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(4).astype(np.float32)
    assert not disagreement(parse(NESTED), [(np.int32(turns), x) for turns in (0, 1, 2, 3, 6)])


CASE = """func.func @main(%which: tensor<i32>, %x: tensor<2x3xf32>, %y: tensor<2x3xf32>)
    -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) {
  %u = stablehlo.exponential %x : tensor<2x3xf32>
  %r:3 = "stablehlo.case"(%which) ({
    stablehlo.return %x, %y, %u : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
  }, {
    %a = stablehlo.add %x, %u : tensor<2x3xf32>
    stablehlo.return %a, %a, %y : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
  }, {
    %z = stablehlo.constant dense<7.0> : tensor<2x3xf32>
    stablehlo.return %u, %z, %x : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
  }) : (tensor<i32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
  %s = stablehlo.subtract %r#0, %r#2 : tensor<2x3xf32>
  return %r#0, %r#1, %s : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
}"""


def test_a_case_takes_the_last_branch_for_any_other_number(seed: int) -> None:
    x, y = np.random.default_rng(seed).standard_normal((2, 2, 3)).astype(np.float32)
    calls = [(np.int32(which), x, y) for which in (0, 1, 2, 3, -1, 2**31 - 1)]
    assert not disagreement(parse(CASE), calls, rounding=1e-6)


TOKENS = """func.func @main(%n: tensor<i32>, %x: tensor<2xi32>) -> tensor<2xi32> {
  %token = stablehlo.create_token : !stablehlo.token
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = "stablehlo.while"(%zero, %token, %x) ({
  ^bb0(%i: tensor<i32>, %t: !stablehlo.token, %a: tensor<2xi32>):
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %t: !stablehlo.token, %a: tensor<2xi32>):
    %u = stablehlo.after_all %t : !stablehlo.token
    %j = stablehlo.add %i, %one : tensor<i32>
    %b = stablehlo.add %a, %a : tensor<2xi32>
    %v:2 = stablehlo.optimization_barrier %b, %u : tensor<2xi32>, !stablehlo.token
    stablehlo.return %j, %v#1, %v#0 : tensor<i32>, !stablehlo.token, tensor<2xi32>
  }) : (tensor<i32>, !stablehlo.token, tensor<2xi32>) -> (tensor<i32>, !stablehlo.token, tensor<2xi32>)
  %flag = stablehlo.compare GT, %n, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %s:2 = "stablehlo.if"(%flag) ({
    stablehlo.return %r#1, %r#2 : !stablehlo.token, tensor<2xi32>
  }, {
    %d = stablehlo.negate %r#2 : tensor<2xi32>
    stablehlo.return %token, %d : !stablehlo.token, tensor<2xi32>
  }) : (tensor<i1>) -> (!stablehlo.token, tensor<2xi32>)
  return %s#1 : tensor<2xi32>
}"""


def test_tokens_order_nothing_here() -> None:
    assert not disagreement(parse(TOKENS), [(np.int32(turns), np.array([3, -5], np.int32)) for turns in (0, 1, 4)])


SAME = """func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
  %0:2 = stablehlo.optimization_barrier %x, %x : tensor<3xf32>, tensor<3xf32>
  %1 = stablehlo.custom_call @Sharding(%0#1) : (tensor<3xf32>) -> tensor<3xf32>
  %2 = stablehlo.add %1, %0#0 : tensor<3xf32>
  return %1, %x, %2 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
}"""


def test_what_only_says_where_a_value_lives_leaves_it_as_it_is() -> None:
    assert not disagreement(parse(SAME), [(np.array([1, 2, 3], np.float32),)])


TUPLES = """func.func @main(%n: tensor<i32>, %x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.tuple %n, %x : tuple<tensor<i32>, tensor<2xf32>>
  %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<i32>, tensor<2xf32>>) -> tensor<2xf32>
  %2 = stablehlo.add %1, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}"""


def test_tuples_are_taken_apart() -> None:
    assert not disagreement(parse(TUPLES), [(np.int32(1), np.array([1, 2], np.float32))])


SPLATS = """func.func @main(%n: tensor<i32>, %w: tensor<8x40xf32>) -> (tensor<5x40xf32>, tensor<5x40xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %half = stablehlo.constant dense<0.5> : tensor<f32>
  %a = stablehlo.broadcast_in_dim %half, dims = [] : (tensor<f32>) -> tensor<5x8xf32>
  %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
    : (tensor<5x8xf32>, tensor<8x40xf32>) -> tensor<5x40xf32>
  %r:2 = stablehlo.while(%i = %zero, %s = %b) : tensor<i32>, tensor<5x40xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.constant dense<2.0> : tensor<5x8xf32>
    %u = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0]
      : (tensor<5x8xf32>, tensor<8x40xf32>) -> tensor<5x40xf32>
    %v = stablehlo.add %s, %u : tensor<5x40xf32>
    stablehlo.return %j, %v : tensor<i32>, tensor<5x40xf32>
  }
  return %r#1, %b : tensor<5x40xf32>, tensor<5x40xf32>
}"""


def test_gemm_of_a_splat_without_a_buffer(seed: int) -> None:
    w = np.random.default_rng(seed).integers(-4, 5, (8, 40)).astype(np.float32)
    assert not disagreement(parse(SPLATS), [(np.int32(turns), w) for turns in (0, 3)])
