"""The text form: what stablehlo-opt and JAX print is read, what we print is what they print, and broken text is shown.

The expected spellings were printed by MLIR itself; where jaxlib is installed its parser judges our output once more.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.errors import (
    FileError,
    Location,
    MissingPackageError,
    ParseError,
    ShapeError,
    SmeltError,
    UnsupportedError,
    VerifyError,
)
from smelt.ir.attributes import (
    Constant,
    DialectAttr,
    Dict,
    GatherDims,
    Int,
    ScatterDims,
    Unit,
)
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.structure import difference
from smelt.ir.text import parse, print_func, print_op, print_program
from smelt.ir.text.bytecode import read_bytecode, write_bytecode
from smelt.shape import Shape
from tests.unit.ir.texts import body, constant, first_op, round_trip

# ---- formats: one line of each op, as MLIR prints it ----

ARGS = """%arg0: tensor<4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<i32>, %arg3: tensor<i1>, %arg4: !stablehlo.token,
%arg5: tensor<4x4xf32>, %arg6: tensor<1xi64>, %arg7: tensor<2xui64>, %arg8: tensor<f32>,
%arg9: tuple<tensor<4xf32>, tensor<i32>>, %arg10: tensor<f32>, %arg11: tensor<?xf32>, %arg12: tensor<4xcomplex<f32>>,
%arg13: tensor<1x8x8x207xf32>, %arg14: tensor<3x3x207x16xf32>, %arg15: tensor<4xi1>, %arg16: tensor<f64>"""

LINES = r"""
%c = stablehlo.constant {foo = 1 : i32} dense<1> : tensor<4xi8>
%0 = stablehlo.iota dim = 0 {foo} : tensor<4xi8>
%0 = stablehlo.create_token : !stablehlo.token
%0 = stablehlo.exponential %arg0 {result_accuracy = #stablehlo.result_accuracy<ulps = 10, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4xf32>
%0 = stablehlo.exponential %arg0 : tensor<4xf32>
%0 = stablehlo.is_finite %arg0 : (tensor<4xf32>) -> tensor<4xi1>
%0 = stablehlo.compare LT, %arg0, %arg1, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
%0 = stablehlo.compare LT, %arg0, %arg1 {x} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
%0 = stablehlo.clamp %arg8, %arg0, %arg8 : (tensor<f32>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
%0 = stablehlo.clamp %arg0, %arg0, %arg0 : tensor<4xf32>
%0 = stablehlo.select %arg15, %arg0, %arg1 : tensor<4xi1>, tensor<4xf32>
%0 = stablehlo.complex %arg0, %arg0 : tensor<4xcomplex<f32>>
%0 = stablehlo.real %arg12 : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
%0 = stablehlo.convert %arg0 : (tensor<4xf32>) -> tensor<4xbf16>
%0 = stablehlo.add %arg0, %arg1 : tensor<4xf32>
%0 = stablehlo.concatenate %arg0, %arg1, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
%0 = stablehlo.broadcast %arg0, sizes = [2] : (tensor<4xf32>) -> tensor<2x4xf32>
%0 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
%0 = stablehlo.dynamic_broadcast_in_dim %arg0, %arg6, dims = [0] {known_expanding_dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<1xi64>) -> tensor<4xf32>
%0 = stablehlo.reshape %arg0 : (tensor<4xf32>) -> tensor<2x2xf32>
%0 = stablehlo.bitcast_convert %arg0 : (tensor<4xf32>) -> tensor<4xi32>
%0 = stablehlo.slice %arg5 [0:4, 1:4:2] : (tensor<4x4xf32>) -> tensor<4x2xf32>
%0 = stablehlo.slice %arg10 [] : (tensor<f32>) -> tensor<f32>
%0 = stablehlo.dynamic_slice %arg5, %arg2, %arg2, sizes = [1, 2] : (tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
%0 = stablehlo.dynamic_update_slice %arg5, %arg5, %arg2, %arg2 : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
%0 = stablehlo.dot %arg5, %arg5, precision = [HIGH, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
%0 = stablehlo.dot_general %arg5, %arg5, contracting_dims = [] x [] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4x4x4xf32>
%0 = stablehlo.dot_general %arg5, %arg5, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [HIGH, DEFAULT] {foo} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4xf32>
%0 = stablehlo.get_tuple_element %arg9[0] : (tuple<tensor<4xf32>, tensor<i32>>) -> tensor<4xf32>
%0 = stablehlo.tuple %arg0, %arg2 : tuple<tensor<4xf32>, tensor<i32>>
%0 = stablehlo.get_dimension_size %arg0, dim = 0 : (tensor<4xf32>) -> tensor<i32>
%0 = stablehlo.pad %arg0, %arg10, low = [0], high = [-1], interior = [2] : (tensor<4xf32>, tensor<f32>) -> tensor<9xf32>
%0 = stablehlo.transpose %arg5, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
%0 = stablehlo.reverse %arg5, dims = [1, 0] : tensor<4x4xf32>
%0 = stablehlo.rng %arg10, %arg10, %arg6, distribution = NORMAL : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>
%output_state, %output = stablehlo.rng_bit_generator %arg7, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
%0 = stablehlo.cholesky %arg5, lower = true : tensor<4x4xf32>
%0 = stablehlo.cholesky %arg5 : tensor<4x4xf32>
%0 = "stablehlo.triangular_solve"(%arg5, %arg5) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
%0 = stablehlo.fft %arg12, type = FFT, length = [4] : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
%0 = stablehlo.custom_call @"foo.bar baz"(%arg0) {backend_config = "x\00", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]} : (tensor<4xf32>) -> tensor<4xf32>
%0 = stablehlo.custom_call @foo(%arg0) {api_version = 4 : i32, backend_config = {a = 1 : i32}, operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = [dense<0> : tensor<1xindex>]} : (tensor<4xf32>) -> tensor<4xf32>
stablehlo.custom_call @foo() : () -> ()
%0 = stablehlo.after_all %arg4, %arg4 : !stablehlo.token
%0 = stablehlo.after_all  : !stablehlo.token
%0:2 = stablehlo.optimization_barrier %arg0, %arg2 : tensor<4xf32>, tensor<i32>
stablehlo.optimization_barrier()
%0 = stablehlo.partition_id : tensor<ui32>
%0 = stablehlo.replica_id {foo} : tensor<ui32>
%0 = stablehlo.reduce_precision %arg0, format = e5m10 : tensor<4xf32>
%0 = stablehlo.reduce(%arg0 init: %arg10) applies stablehlo.add across dimensions = [0] {foo} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
%0 = stablehlo.convolution(%arg13, %arg14) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1], pad = [[1, 1], [1, 0]], lhs_dilate = [1, 2], rhs_dilate = [2, 1], reverse = [true, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision HIGH>]} : (tensor<1x8x8x207xf32>, tensor<3x3x207x16xf32>) -> tensor<1x3x14x16xf32>
%0 = "stablehlo.all_gather"(%arg5) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4x4xf32>) -> tensor<4x8xf32>
%0 = chlo.erf %arg0 : tensor<4xf32> -> tensor<4xf32>
%0 = chlo.is_inf %arg0 : tensor<4xf32> -> tensor<4xi1>
%0 = chlo.next_after %arg0, %arg0 : tensor<4xf32>, tensor<4xf32> -> tensor<4xf32>
%0 = chlo.broadcast_add %arg0, %arg5 {broadcast_dimensions = array<i64: 1>} : (tensor<4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
%values, %indices = chlo.top_k(%arg5, k = 2) : tensor<4x4xf32> -> (tensor<4x2xf32>, tensor<4x2xi32>)
%0 = stablehlo.add %arg0, %arg1 {a = 1 : i64, b = -1 : i8, c = 1.000000e+00 : f64, d = 0x7FC00000 : f32, e = "s\22\0A\\\C3\A9", f = [1, 2 : i32], g = {x = 1 : i64}, h = @foo::@bar, i, k = true, l = i32, m = tensor<?x4xf32>, n = array<i64>, o = array<f32: 1.000000e+00, 2.000000e+00>, p = array<i1: true>, q = dense<0> : tensor<1xindex>, r = (i32) -> i32, s = none, "v w" = 1 : i64, w = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, y = strided<[1]>, z = 5 : si32} : tensor<4xf32>
""".strip().splitlines()  # noqa: E501

OWN_LINES = """
check.expect_eq %arg0, %arg1 : tensor<4xf32>
check.expect_eq_const %arg2, dense<3> : tensor<i32>
check.expect_almost_eq %arg0, %arg1 : tensor<4xf32>
check.expect_almost_eq %arg16, %arg16, tolerance = 1.000000e-01 : tensor<f64>
check.expect_almost_eq_const %arg16, dense<5.100000e+00> : tensor<f64> {tolerance = 1.000000e-01 : f64}
check.expect_close %arg0, %arg1, max_ulp_difference = 7 : tensor<4xf32>, tensor<4xf32>
check.expect_serialized_eq %arg0, probe_id = "p", iter = 1 : tensor<4xf32>
interpreter.print %arg0 : tensor<4xf32>
%0 = interpreter.probe %arg0, probe_id = "a\\22b" : tensor<4xf32>
%0 = stablehlo.uniform_quantize %arg0 : (tensor<4xf32>) -> tensor<4x!quant.uniform<u8:f32, 0.1:128>>
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES + OWN_LINES)
def test_a_line_prints_as_it_was_read(line: str):
    printed = print_program(parse(body(line, ARGS))).splitlines()
    assert printed[2].strip() == line


def test_regions_print_as_they_were_read():
    text = """module @m {
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<4xf32>, %arg2: tensor<f32>) -> tensor<i32> {
    %0 = stablehlo.while(%iterArg = %arg0) : tensor<i32> attributes {foo}
    cond {
      %4 = stablehlo.compare LT, %iterArg, %arg0 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %4 = func.call @g(%iterArg) : (tensor<i32>) -> tensor<i32>
      stablehlo.return %4 : tensor<i32>
    }
    %1:2 = stablehlo.reduce(%arg1 init: %arg2), (%arg1 init: %arg2) across dimensions = [0] : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
     reducer(%arg3: tensor<f32>, %arg4: tensor<f32>) (%arg5: tensor<f32>, %arg6: tensor<f32>)  {
      %4 = stablehlo.subtract %arg3, %arg5 : tensor<f32>
      stablehlo.return %4, %arg6 : tensor<f32>, tensor<f32>
    }
    %2:2 = chlo.scan(%arg1) inits (%arg2) dimension=0 attributes {is_reverse = true} {
    ^bb0(%input: tensor<f32>, %carry: tensor<f32>):
      %4 = stablehlo.add %input, %carry : tensor<f32>
      stablehlo.return %4, %4 : tensor<f32>, tensor<f32>
    } : (tensor<4xf32>, tensor<f32>) -> (tensor<4xf32>, tensor<f32>)
    %3 = "stablehlo.case"(%0) ({
      %4 = call @g(%0) : (tensor<i32>) -> tensor<i32>
      stablehlo.return %4 : tensor<i32>
    }, {
      stablehlo.return %arg0 : tensor<i32>
    }) : (tensor<i32>) -> tensor<i32>
    return %3 : tensor<i32>
  }
  func.func private @g(%arg0: tensor<i32>) -> tensor<i32> {
    return %arg0 : tensor<i32>
  }
}
"""  # noqa: E501
    program = parse(text)
    assert print_program(program) == text.replace("= call @g(%0)", "= func.call @g(%0)")
    round_trip(program)


def test_a_scan_that_a_builder_made_is_read_again() -> None:
    """It has no segment sizes, which the text form says."""
    f = FuncBuilder("main", [Shape("f32", 3), Shape("f32")])
    with f.region(Shape("f32"), Shape("f32")) as r:
        total = r.add(*r.args)
        r.result(total, total)
    made = f.op("chlo.scan", *f.args, dimension=0, is_reverse=True, regions=[r.body]).results
    program = Program.of(f.func(*made))
    again = parse(print_program(program))
    assert print_program(again) == print_program(program)
    given = [np.arange(3, dtype=np.float32), np.ones((), np.float32)]
    np.testing.assert_array_equal(run(again, given)[0], run(program, given)[0])


# ---- modules, functions, aliases, resources ----


def test_the_outline_of_a_module():
    program = parse("""
#loc = loc(unknown)
!vec = tensor<4xf32>
#note = {a = 1 : i64}
module @"a module" attributes {mhlo.num_partitions = 1 : i32, x.note = #note} {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(%arg0: !vec {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, smelt.weight} loc("x"))
      -> (!vec {jax.result_info = "y"}) attributes {x.inline = true} {
    %0 = call @"my f"(%arg0) : (!vec) -> tensor<4xf32>  // defined below
    return %0 : !vec loc(#loc)
  } loc(#loc)
  func.func private @"my f"(%arg0: !vec) -> !vec {
    return %arg0 : !vec
  }
} loc(#loc)
""")
    assert program.name == "a module"
    assert program.attrs["mhlo.num_partitions"] == Int(1, dtype("i32"))
    assert program.attrs["x.note"] == Dict((("a", Int(1)),))
    [mesh] = program.declarations
    assert (mesh.name, mesh.attrs["sym_name"]) == ("sdy.mesh", "mesh")
    main, other = program.funcs.values()
    assert (main.name, main.visibility, other.name, other.visibility) == ("main", "public", "my f", "private")
    assert main.arg_attrs[0]["sdy.sharding"] == DialectAttr("sdy", "sharding", '@mesh, [{"x"}]')
    assert main.arg_attrs[0]["smelt.weight"] == Unit()
    assert main.result_attrs[0]["jax.result_info"] == "y"
    assert main.attrs["x.inline"] is True
    assert main.args[0].type == Shape("f32", 4)
    text = print_program(program)
    assert 'sdy.mesh @mesh = <["x"=2, "y"=4]>' in text
    assert '#sdy.sharding<@mesh, [{"x"}]>' in text
    assert 'call @"my f"(%arg0)' in text
    round_trip(program)


def test_a_text_without_a_module_and_in_generic_form():
    plain = parse("func.func @f(%a: tensor<i8>) -> tensor<i8> { return %a : tensor<i8> }")
    generic = parse("""
"builtin.module"() ({
  "func.func"() <{function_type = (tensor<i8>) -> tensor<i8>, sym_name = "f"}> ({
  ^bb0(%x: tensor<i8>):
    "func.return"(%x) : (tensor<i8>) -> ()
  }) : () -> ()
}) : () -> ()
""")
    assert difference(plain, generic) is None
    assert parse("").funcs == {}


def test_resources():
    program = parse("""
func.func @f() -> tensor<2xi32> {
  %0 = stablehlo.constant dense_resource<blob> : tensor<2xi32>
  return %0 : tensor<2xi32>
}
{-# dialect_resources: { builtin: { blob: "0x0400000001000000FFFFFFFF" } } #-}
""")
    assert program.main.body.ops[0].attrs["value"].array.tolist() == [1, -1]
    with pytest.raises(ParseError, match="resource"):
        constant("dense_resource<other> : tensor<2xi32>")


def test_functions_are_known_before_they_are_read_and_dynamic_sizes_come_from_the_callee():
    program = parse("""
func.func @main(%x: tensor<?x3xf32>) -> tensor<?xf32> {
  %0 = call @sum(%x) : (tensor<?x3xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
func.func @sum(%x: tensor<?x3xf32>) -> tensor<?xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1] : (tensor<?x3xf32>, tensor<f32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
""")  # noqa: E501
    assert list(program.funcs) == ["main", "sum"]
    assert program.main.args[0].type == Shape("f32", "d0", 3)
    assert program.main.results[0].type == Shape("f32", "d0")
    for rows in (2, 5):
        [out] = run(program, [np.ones((rows, 3), np.float32)])
        assert out.tolist() == [3.0] * rows


@pytest.mark.parametrize(
    "text",
    [
        "func.func @a() { call @a() : () -> () return }",
        "func.func @a() { call @b() : () -> () return }\nfunc.func @b() { call @a() : () -> () return }",
    ],
)
def test_recursion_is_refused(text: str):
    with pytest.raises(UnsupportedError, match="calls itself"):
        parse(text)


def test_a_custom_call_may_be_named_like_the_function_it_stands_in():
    parse("func.func @a() { stablehlo.custom_call @a() {has_side_effect = true} : () -> () return }")


def test_a_function_without_a_body_is_refused():
    with pytest.raises(UnsupportedError, match="without a body"):
        parse("func.func private @g(tensor<4xf32>) -> tensor<4xf32>")


# ---- values and scopes ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%0 = stablehlo.add %x, %a : tensor<f32>", "not defined"),
        ("%0 = stablehlo.add %a, %a : tensor<f32>\n%0 = stablehlo.add %a, %a : tensor<f32>", "defined twice"),
        ("%a = stablehlo.add %a, %a : tensor<f32>", "defined twice"),
        ("%0 = stablehlo.add %a#1, %a : tensor<f32>", "has 1 results"),
        ("%0:2 = stablehlo.add %a, %a : tensor<f32>", "number of results"),
        ("%0 = stablehlo.add %a, %a : tensor<f64>", "another type"),
        ("%0 = stablehlo.add %a, %a : tensor<2xf32>", "another type"),
        ("%0 = stablehlo.add %a : tensor<f32>", "unexpected text"),
        ("%0 = stablehlo.nothing %a : tensor<f32>", "unknown op"),
        ("%0 = stablehlo.gather %a : tensor<f32>", "no short form"),
        ('"stablehlo.add"(%a, %a) : (tensor<f32>) -> tensor<f32>', "operand types"),
        ("sdy.return %a : tensor<f32>", "wrong return"),
        ("%0 = stablehlo.reduce(%v init: %a) applies stablehlo.divide across dimensions = [0]", "reduction"),
        ("^bb1:", "several blocks"),
    ],
)
def test_mistakes_are_named(text: str, message: str):
    with pytest.raises(SmeltError, match=message):
        parse(body(text, "%a: tensor<f32>, %v: tensor<4xf32>"))


def test_what_a_region_defines_is_not_seen_outside_and_may_be_defined_again_beside_it():
    branch = "{ %x = stablehlo.add %a, %a : tensor<f32> stablehlo.return %x : tensor<f32> }"
    text = f'%0 = "stablehlo.if"(%p) ({branch}, {branch}) : (tensor<i1>) -> tensor<f32>'
    args = "%a: tensor<f32>, %p: tensor<i1>"
    round_trip(parse(body(text, args)))
    with pytest.raises(ParseError, match="not defined"):
        parse(body(text + "\n%1 = stablehlo.add %x, %x : tensor<f32>", args))
    with pytest.raises(ParseError, match="defined twice"):
        parse(body(text.replace("%x", "%a"), args))


def test_results_by_name_and_by_number():
    text = "%v, %i = chlo.top_k(%a, k = 1) : tensor<4xf32> -> (tensor<1xf32>, tensor<1xi32>)"
    grouped = parse(
        body(text.replace("%v, %i", "%r:2") + "\n%0 = stablehlo.add %r#1, %r#1 : tensor<1xi32>", "%a: tensor<4xf32>")
    )
    named = parse(body(text + "\n%0 = stablehlo.add %i, %i : tensor<1xi32>", "%a: tensor<4xf32>"))
    assert difference(grouped, named) is None
    assert "%r:2 = " in print_program(grouped)
    assert "%v, %i = " in print_program(named)


def test_a_dynamic_size_stays_dynamic_in_the_text():
    text = """func.func @f(%a: tensor<4xf32>, %s: tensor<1xi64>) -> {} {{
  %c = stablehlo.constant dense<4> : tensor<1xi64>
  %0 = stablehlo.dynamic_reshape %a, %c : (tensor<4xf32>, tensor<1xi64>) -> tensor<?xf32>
  %1 = stablehlo.abs %0 : {}
  return %1 : tensor<?xf32>
}}"""
    assert parse(text.format("tensor<?xf32>", "tensor<?xf32>")).main.results[0].type == Shape("f32", 4)
    with pytest.raises(ParseError, match="operand 0 was defined with another type"):
        parse(text.format("tensor<?xf32>", "tensor<4xf32>"))
    with pytest.raises(VerifyError):
        parse(text.format("tensor<4xf32>", "tensor<?xf32>"))


# ---- places and errors ----


def test_locations():
    program = parse(
        """#loc1 = loc("model.py":3:4)
func.func @f(%a: tensor<f32> loc("a")) -> tensor<f32> {
  %0 = stablehlo.abs %a : tensor<f32> loc("layer/abs"(#loc1))
  %1 = stablehlo.abs %0 : tensor<f32> loc(callsite("inner.py":1:2 to :9 at #loc2))
  %2 = stablehlo.abs %1 : tensor<f32> loc(fused<"note">[unknown, "b.py":7:8])
  %3 = stablehlo.abs %2 : tensor<f32> loc("just a name")
  %4 = stablehlo.abs %3 : tensor<f32> loc(unknown)
    %5 = stablehlo.abs %4 : tensor<f32>
  return %5 : tensor<f32>
} loc(#loc2)
#loc2 = loc("outer.py":5:6)
""",
        "given.mlir",
    )
    assert program.main.location == Location("outer.py", 5, 6)
    assert [op.location for op in program.main.body.ops] == [
        Location("model.py", 3, 4, "layer/abs"),
        Location("inner.py", 1, 2),
        Location("b.py", 7, 8),
        Location("", name="just a name"),
        Location("given.mlir", 7, 3),
        Location("given.mlir", 8, 5),
    ]
    again = parse(print_program(program, locations=True))
    assert [op.location for op in again.main.body.ops] == [op.location for op in program.main.body.ops]
    assert again.main.location == program.main.location


def test_an_error_shows_the_line():
    with pytest.raises(ParseError) as caught:
        parse("func.func @f() {\n  %0 = stablehlo.iota dim : tensor<4xi32>\n  return\n}", "model.mlir")
    error = caught.value
    assert error.where == Location("model.mlir", 2, 27)
    assert error.source == "2 |   %0 = stablehlo.iota dim : tensor<4xi32>\n" + " " * 30 + "^"
    assert (error.expected, error.got) == ("'='", "':'")


def test_an_error_of_verification_shows_the_line_too():
    with pytest.raises(VerifyError) as caught:
        parse(body("  %0 = stablehlo.reshape %a : (tensor<2x3xf32>) -> tensor<7xf32>", "%a: tensor<2x3xf32>"))
    assert caught.value.where == Location("<text>", 2, 3)
    assert "stablehlo.reshape %a" in (caught.value.source or "")


def test_a_long_line_is_shown_in_part():
    blob = "00" * 5000
    with pytest.raises(ParseError) as caught:
        parse(f'func.func @f() {{ %0 = stablehlo.constant dense<"0x{blob}"> : tensor<4xi8>\n return }}')
    assert len(caught.value.source or "") < 300


# ---- sizes that are formulas, and export ----

SYMBOLIC = """
func.func @main(%a: tensor<?x6xf32, #smelt.sizes<B, 6>>, %b: tensor<?xf32, #smelt.sizes<2*S + 1>>) -> (tensor<?x?xf32>, tensor<?xi32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %a : (tensor<?x6xf32>) -> tensor<?x3xf32, #smelt.sizes<2*B, 3>>
  %i = stablehlo.iota dim = 0 : tensor<?x3xf32, #smelt.sizes<2*B, 3>>
  %1 = stablehlo.add %0, %i : tensor<?x3xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [1] : (tensor<?x3xf32>, tensor<f32>) -> tensor<?xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<?xf32>) -> tensor<?x?xf32, #smelt.sizes<(S - 3*B) floordiv 2 + max(S, B) + (B + 1) % 3 + 2*B, 2*B>>
  %n = stablehlo.constant dense<0> : tensor<i32>
  %4:2 = stablehlo.while(%k = %n, %x = %n) : tensor<i32>, tensor<i32>
  cond {
    %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %j = stablehlo.iota dim = 0 : tensor<?xi32, #smelt.sizes<S>>
    %m = stablehlo.reduce(%j init: %n) applies stablehlo.maximum across dimensions = [0] : (tensor<?xi32>, tensor<i32>) -> tensor<i32>
    stablehlo.return %m, %m : tensor<i32>, tensor<i32>
  }
  %5 = stablehlo.iota dim = 0 : tensor<?xi32, #smelt.sizes<min(S, B)>>
  return %3, %5 : tensor<?x?xf32>, tensor<?xi32>
}
"""  # noqa: E501


def test_formulas_survive_our_own_text():
    program = parse(SYMBOLIC)
    S, B = symbol("S"), symbol("B")
    assert program.main.results[0].shape.sizes[1] == 2 * B
    assert program.main.args[1].type == Shape("f32", 2 * S + 1)
    text = print_program(program)
    assert "floordiv" in text
    assert "//" not in text
    round_trip(program)


@pytest.mark.parametrize("name", ["B", "floordiv", "a b", "x//y", 'q"', "max", "é"])
def test_any_symbol_has_a_spelling(name: str):
    f = FuncBuilder("f", [Shape.of(dtype("f32"), [symbol(name) // 2 + 1])])
    program = Program.of(f.func(f.args[0]))
    assert difference(program, parse(print_program(program))) is None


def test_the_exported_program_computes_the_same():
    program = parse(SYMBOLIC)
    text = print_program(program, export=True)
    assert "#smelt" not in text
    assert not re.search(r"stablehlo\.(reshape|broadcast_in_dim|iota)\b[^\n]*-> [^\n]*\?", text)
    again = parse(text)
    for rows, size in ((2, 3), (5, 1), (1, 4)):
        args = [np.arange(rows * 6, dtype=np.float32).reshape(rows, 6), np.zeros(2 * size + 1, np.float32)]
        for want, got in zip(run(program, args), run(again, args), strict=True):
            assert want.shape == got.shape
            assert (want == got).all()


def test_a_size_that_no_axis_determines_cannot_be_exported():
    program = parse(
        "func.func @f(%a: tensor<?xf32, #smelt.sizes<A*B>>) -> tensor<?x?xf32> {\n"
        "  %0 = stablehlo.reshape %a : (tensor<?xf32>) -> tensor<?x?xf32, #smelt.sizes<A, B>>\n"
        "  return %0 : tensor<?x?xf32>\n}"
    )
    with pytest.raises(UnsupportedError, match="no axis determines"):
        print_program(program, export=True)


@pytest.mark.parametrize(
    ("number", "fits"), [(2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)]
)
def test_numbers_in_exported_sizes_have_64_bits(number: int, fits: bool):
    """Plain StableHLO computes sizes in i64."""
    size = symbol("B") + number
    f = FuncBuilder("f", [Shape("f32", symbol("B"))])
    made = f.iota(iota_dimension=0, result=Shape("f32", size))
    program = Program.of(f.func(made, visibility="public"))
    if fits:
        assert f"dense<{number}> : tensor<i64>" in print_program(program, export=True)
    else:
        with pytest.raises(ShapeError, match=rf"does not fit 64 bits\n +expected less than 2\^63\n +got +{number}"):
            print_program(program, export=True)


def test_a_program_without_formulas_exports_as_it_is():
    program = parse(body("%0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<2x2xf32>", "%a: tensor<4xf32>"))
    assert print_program(program, export=True) == print_program(program)


# ---- one op, one function ----


def test_one_op_and_one_function():
    program = parse(
        body("%y = stablehlo.add %a, %a : tensor<f32>\n%z = stablehlo.negate %y : tensor<f32>", "%a: tensor<f32>")
    )
    func = program.funcs["f"]
    assert print_op(func.body.ops[1]) == "%z = stablehlo.negate %y : tensor<f32>"
    assert (
        print_op(func.body.ops[0], generic=True)
        == '%y = "stablehlo.add"(%a, %a) : (tensor<f32>, tensor<f32>) -> tensor<f32>'
    )
    assert difference(Program.of(func), parse(print_func(func))) is None


# ---- other people's parsers and printers ----


@pytest.fixture(scope="session")
def mlir():
    """jaxlib's parser: text in, its own print out."""
    pytest.importorskip("jax")
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir

    context = jax_mlir.make_ir_context()

    def reprint(text: str) -> str:
        with context:
            module = ir.Module.parse(text)
            assert module.operation.verify()
            return str(module.operation.get_asm())

    return reprint


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("generic", [False, True])
def test_mlir_reads_what_we_print(line: str, generic: bool, mlir):
    text = body(line, ARGS)
    ours = mlir(print_program(parse(text), generic=generic, export=True))
    assert re.sub(r" \{smelt\.sizes = [^}]*\}", "", ours) == mlir(text)


def test_mlir_reads_an_exported_program(mlir):
    mlir(print_program(parse(SYMBOLIC), export=True))
    mlir(print_program(parse(SYMBOLIC), export=True, generic=True, locations=True))


def test_programs_that_jax_prints(mlir):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def model(x, w):
        def step(carry, row):
            carry = jnp.tanh(carry @ w + row)
            return carry, jnp.argmax(carry)

        last, best = jax.lax.scan(step, jnp.zeros(4), x)
        return jnp.sort(last)[::-1], best, jnp.where(x > 0, x, jnp.pi).sum(axis=0)

    x, w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), np.eye(4, dtype=np.float32) * 0.5
    lowered = jax.jit(model).lower(x, w)
    for debug in (False, True):
        program = parse(lowered.as_text(debug_info=debug))
        round_trip(program)
        for got, want in zip(run(program, [x, w]), lowered.compile()(x, w), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-6)


def test_symbolic_programs_that_jax_exports(mlir):
    jax = pytest.importorskip("jax")
    from jax import export

    jnp = jax.numpy
    [rows] = export.symbolic_shape("rows")

    def model(x):
        return jnp.sum(jnp.concatenate([x, x]).reshape(-1, 3), axis=1) + jnp.arange(x.shape[0] * 2)

    exported = export.export(jax.jit(model))(jax.ShapeDtypeStruct((rows, 3), jnp.float32))
    program = parse(exported.mlir_module())
    for size in (2, 5):
        x = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
        [got] = run(program, [x])
        np.testing.assert_allclose(got, np.asarray(model(x)), rtol=1e-6)


def test_bytecode(mlir):
    program = parse(SYMBOLIC)
    data = write_bytecode(program)
    assert data.startswith(b"ML\xefR")
    again = read_bytecode(data)
    args = [np.ones((2, 6), np.float32), np.zeros(7, np.float32)]
    for want, got in zip(run(program, args), run(again, args), strict=True):
        assert (want == got).all()
    static = parse(body("%0 = stablehlo.add %a, %a : tensor<4xf32>", "%a: tensor<4xf32>"))
    assert difference(static, read_bytecode(write_bytecode(static))) is None


@pytest.mark.parametrize("data", [b"", b"ML", b"module {}", b"ML\xefR", b"ML\xefR" + bytes(100)])
def test_bytes_that_are_no_bytecode(data: bytes, mlir):
    with pytest.raises(FileError, match=r"this is no MLIR bytecode|jaxlib cannot read this bytecode"):
        read_bytecode(data)


def test_without_jaxlib_bytecode_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib.mlir", None)
    with pytest.raises(MissingPackageError) as caught:
        read_bytecode(b"ML\xefR")
    assert caught.value.remedy == 'pip install "smelt[xla]"'


# ---- the suites ----


def programs(suites: Path) -> list[Path]:
    return sorted(path for part in ("testdata", "interpret") for path in (suites / part).glob("*.mlir"))


@pytest.mark.slow
def test_the_suites_round_trip(suites: Path):
    failed = []
    for path in programs(suites):
        try:
            program = parse(path.read_text("utf-8"), path.name)
            for generic in (False, True):
                found = difference(program, parse(print_program(program, generic=generic)))
                assert found is None, found
        except (SmeltError, AssertionError) as error:
            failed.append(f"{path.name}: {error}")
    assert not failed, f"{len(failed)} programs\n" + "\n".join(failed[:10])


@pytest.mark.slow
def test_mlir_sees_the_same_suite_programs_in_our_text(suites: Path, mlir):
    """Apart from literals without elements, whose value is not observable."""
    compared = 0
    for path in programs(suites)[::7]:
        text = path.read_text("utf-8")
        if re.search(r" check\.|interpreter\.|!quant|x0x|<0x", text):
            continue
        assert mlir(print_program(parse(text))) == mlir(text), path.name
        compared += 1
    assert compared > 100


def test_constants_keep_their_digest():
    value = first_op("  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>").attrs["value"]
    assert value == Constant.of(np.array([1, 2], np.int32), dtype("i32"))


def test_parts_of_attributes_that_a_text_leaves_out():
    """MLIR does not print empty lists, zeros and defaults: such a text means them."""
    gather = parse("""func.func @main(%x: tensor<4xf32>, %i: tensor<1xi32>) -> tensor<1xf32> {
      %0 = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [0], start_index_map = [0]>,
        slice_sizes = array<i64: 1>} : (tensor<4xf32>, tensor<1xi32>) -> tensor<1xf32>
      return %0 : tensor<1xf32>
    }""").main.body.ops[0]
    assert gather.attrs["dimension_numbers"] == GatherDims((0,), (), (), (), (0,), 0)
    scatter = parse("""func.func @main(%x: tensor<4xf32>, %i: tensor<1xi32>, %u: tensor<1xf32>) -> tensor<4xf32> {
      %0 = "stablehlo.scatter"(%x, %i, %u) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        stablehlo.return %b : tensor<f32>
      }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], scatter_dims_to_operand_dims = [0]>}
        : (tensor<4xf32>, tensor<1xi32>, tensor<1xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }""").main.body.ops[0]
    assert scatter.attrs["scatter_dimension_numbers"] == ScatterDims((0,), (), (), (), (0,), 0)
