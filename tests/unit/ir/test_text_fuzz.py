"""Broken text: whatever is deleted, doubled, swapped or cut off, only a SmeltError comes out.

SMELT_SEED chooses the mutations; the seed and the text are in the failure. SMELT_FUZZ_COUNT sets how many are tried;
with SMELT_SUITES the suites' programs are mutated as well.
"""

import os
import random
import re
from pathlib import Path

import pytest

from smelt.errors import ParseError, SmeltError, UnsupportedError
from smelt.ir.structure import difference, same
from smelt.ir.text import parse, print_program

COUNT = int(os.environ.get("SMELT_FUZZ_COUNT", "1500"))

SAMPLES = [
    """
#loc = loc("model.py":3:4)
!t = tensor<4xf32>
module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: !t) -> (tensor<4xf32> {jax.result_info = "y"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32> loc(#loc)
    %1 = call @twice(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.compare LT, %0, %1, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %3 = stablehlo.select %2, %0, %1 : tensor<4xi1>, !t
    return %3 : tensor<4xf32>
  }
  func.func private @twice(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
""",  # noqa: E501
    """
func.func @loop(%n: tensor<i64>) -> (tensor<i64>, tensor<2x2xf64>) {
  %c = stablehlo.constant dense<[[1.0, 0x7FF0000000000000], [-2.5e-3, 4.0]]> : tensor<2x2xf64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %r:2 = stablehlo.while(%i = %n, %x = %c) : tensor<i64>, tensor<2x2xf64>
  cond {
    %p = stablehlo.compare LT, %i, %one, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i64>
    %y = "stablehlo.transpose"(%x) <{permutation = array<i64: 1, 0>}> : (tensor<2x2xf64>) -> tensor<2x2xf64>
    stablehlo.return %j, %y : tensor<i64>, tensor<2x2xf64>
  }
  return %r#0, %r#1 : tensor<i64>, tensor<2x2xf64>
}
""",
    """
func.func @shapes(%a: tensor<?x6xf32, #smelt.sizes<B, 6>>, %q: tensor<2x!quant.uniform<i8<-100:100>:f32:0, {0.1:-30, 0.5}>>, %t: !stablehlo.token) -> tensor<?x3xf32> {
  %0 = stablehlo.reshape %a : (tensor<?x6xf32>) -> tensor<?x3xf32, #smelt.sizes<2*B, 3>>
  %1 = stablehlo.slice %a [0:1, 0:6:2] : (tensor<?x6xf32>) -> tensor<1x3xf32>
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1], precision = [HIGH, DEFAULT] : (tensor<?x3xf32>, tensor<1x3xf32>) -> tensor<?x1xf32>
  %3 = stablehlo.uniform_dequantize %q : (tensor<2x!quant.uniform<i8<-100:100>:f32:0, {0.1:-30, 0.5}>>) -> tensor<2xf32>
  %4 = stablehlo.after_all %t, %t : !stablehlo.token
  %5 = stablehlo.tuple %3, %4 : tuple<tensor<2xf32>, !stablehlo.token>
  %6 = stablehlo.get_tuple_element %5[0] : (tuple<tensor<2xf32>, !stablehlo.token>) -> tensor<2xf32>
  stablehlo.custom_call @check.expect_eq(%6, %3) {has_side_effect = true, backend_config = "a\\22b"} : (tensor<2xf32>, tensor<2xf32>) -> ()
  return %0 : tensor<?x3xf32>
}
""",  # noqa: E501
    """
module {
  func.func @conv(%x: tensor<1x8x8x4xf32>, %k: tensor<3x3x4x16xf32>) -> tensor<1x8x8x16xf32> {
    %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x4xf32>, tensor<3x3x4x16xf32>) -> tensor<1x8x8x16xf32>
    %i = stablehlo.constant dense<[0, 1, 2]> : tensor<3xi32>
    %1 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [0, 1, 2], start_index_map = [0, 1, 2], index_vector_dim = 0>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<1x8x8x4xf32>, tensor<3xi32>) -> tensor<4xf32>
    %2:2 = "stablehlo.sort"(%1, %1) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
      %p = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }) {dimension = 0 : i64, is_stable = true} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %3 = chlo.erf %2#1 : tensor<4xf32> -> tensor<4xf32>
    %values, %indices = chlo.top_k(%3, k = 2) : tensor<4xf32> -> (tensor<2xf32>, tensor<2xi32>)
    return %0 : tensor<1x8x8x16xf32>
  }
}
""",  # noqa: E501
    """
"builtin.module"() <{sym_name = "g"}> ({
  "func.func"() <{function_type = (tensor<2xi32>) -> tensor<2xi32>, sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<2xi32>):
    %0 = "stablehlo.constant"() <{value = dense_resource<blob> : tensor<2xi32>}> : () -> tensor<2xi32>
    %1 = "stablehlo.add"(%arg0, %0) {note = [1, 2.0 : f32, @a::@b, {x = unit}, "s"]} : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
    "func.return"(%1) : (tensor<2xi32>) -> ()
  }) : () -> ()
}) : () -> ()
{-# dialect_resources: { builtin: { blob: "0x040000000100000002000000" } } #-}
""",  # noqa: E501
]

TOKEN = re.compile(r'"[^"\n]*"|[%@#!^]?[\w.$]+|->|\s+|.', re.DOTALL)
BRACKETS = "()[]{}<>"
NUMBERS = [
    "0",
    "1",
    "-1",
    "2",
    "7",
    "64",
    "4294967296",
    "9223372036854775807",
    "99999999999999999999",
    "1000000000000000",
    "0x1F",
    "?",
]
WORDS = [
    *[
        "tensor<?x?xf32>",
        "tensor<*xf32>",
        "tensor<0xi8>",
        "tensor<f8E4M3FN>",
        "tuple<>",
        "!stablehlo.token",
        "complex<f64>",
        "1000000000",
    ],
    *[
        "dense<>",
        "dense<[]>",
        "array<i64>",
        "loc(unknown)",
        "{",
        "}",
        ":",
        ",",
        "->",
        "//",
        "%0",
        "@main",
        "#loc",
        "stablehlo.add",
        "stablehlo.return",
        "return",
    ],
    *['"', "é", "\x01", "\n", "(" * 300, "[" * 300, "tuple<" * 300],
]


def mutate(text: str, dice: random.Random) -> str:
    """A few small changes to the tokens of a text."""
    tokens = TOKEN.findall(text)
    for _ in range(dice.randint(1, 3)):
        if not tokens:
            break
        i, j = dice.randrange(len(tokens)), dice.randrange(len(tokens))
        match dice.randrange(8):
            case 0:
                del tokens[i]
            case 1:
                tokens.insert(i, tokens[j])
            case 2:
                tokens[i], tokens[j] = tokens[j], tokens[i]
            case 3:
                tokens[i] = re.sub(r"\d+", lambda _: dice.choice(NUMBERS), tokens[i])
            case 4:
                tokens[i] = "".join(dice.choice(BRACKETS) if char in BRACKETS else char for char in tokens[i])
            case 5:
                tokens[i] = dice.choice(WORDS)
            case 6:
                tokens = tokens[: max(1, i)]
            case _:
                numbers = [k for k, token in enumerate(tokens) if token[:1].isdigit() or token[1:2].isdigit()]
                if numbers:
                    k = dice.choice(numbers)
                    tokens[k] = re.sub(r"\d+", lambda _: dice.choice(NUMBERS), tokens[k], count=1)
    return "".join(tokens)


def survives(text: str) -> bool:
    """Whether the text is a program; anything but a program or a SmeltError is the failure this file looks for."""
    try:
        program = parse(text)
    except SmeltError as error:
        str(error)
        error.record()
        return False
    again = parse(print_program(program))
    assert same(program, again), difference(program, again)
    return True


def fuzz(texts: list[str], count: int, seed: int) -> None:
    dice = random.Random(seed)
    valid = 0
    for _ in range(count):
        text = mutate(dice.choice(texts), dice)
        try:
            valid += survives(text)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} came out; SMELT_SEED={seed}\n{text}") from error
    assert 0 < valid < count, f"{valid} of {count} mutations are programs: the mutations are too weak or too strong"


@pytest.mark.parametrize("text", SAMPLES)
def test_the_samples_themselves_are_programs(text: str):
    assert survives(text)


def test_only_smelt_errors_come_out(seed: int):
    fuzz(SAMPLES, COUNT, seed)


def test_only_smelt_errors_come_out_of_the_suites(suites: Path, seed: int):
    files = sorted(path for part in ("testdata", "interpret") for path in (suites / part).glob("*.mlir"))
    texts = [path.read_text("utf-8") for path in random.Random(seed).sample(files, min(len(files), 300))]
    small = [text for text in texts if len(text) < 6000]
    fuzz(small, COUNT, seed)


@pytest.mark.parametrize("text", SAMPLES)
def test_a_text_that_breaks_off_is_refused(text: str):
    """Cut where a brace is open, a sample is no program."""
    for cut in range(1, len(text), 7):
        if text[:cut].count("{") > text[:cut].count("}"):
            assert not survives(text[:cut]), text[:cut]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module {", "a module is never closed"),
        ("(" * 100_000, "unexpected text"),
        ("module attributes {a = " + "[" * 5000 + "]" * 5000 + "} {}", "nested too deeply"),
        ("func.func @f(%a: " + "tuple<" * 5000 + ">" * 5000 + ") { return }", "nested too deeply"),
        ("func.func @f() {" + '"stablehlo.case"(%0) ({' * 1000, "a brace is never closed"),
        ("func.func @f(%a: tensor<" + "1x" * 100 + "f32>) { return }", "too many axes"),
        ("func.func @f(%a: tensor<99999999999999999999999xf32>) { return }", "a size is too large"),
        (
            "func.func @f() { %0 = stablehlo.constant dense<[1, 2]> : tensor<1000000000000000xi8> return }",
            "another number of elements",
        ),
        (
            "func.func @f() { %0 = stablehlo.constant dense<1> : tensor<4611686018427387904x9xi8> return }",
            "too large to address",
        ),
        ("module attributes {a = " + "9" * 100_000 + " : i64} {}", "too many digits"),
        ("#a = #b\n#b = #a\nmodule attributes {x.y = #a} {}", "an alias that stands for itself"),
        ("#loc = loc(#loc)\nfunc.func @f() { return loc(#loc) }", "an alias that stands for itself"),
        (
            "\n".join(["!t0 = tuple<tensor<f32>>"] + [f"!t{i} = tuple<!t{i - 1}, !t{i - 1}>" for i in range(1, 64)])
            + "\nfunc.func @f(%a: !t63) { return }",
            "an alias that expands to too much",
        ),
        (
            "func.func @f() { call @g() : () -> () return }\nfunc.func @g() { call @f() : () -> () return }",
            "a function that calls itself",
        ),
        ("func.func @f() { call @f() : () -> () return }", "a function that calls itself"),
        ('"' * 1001, "unexpected text"),
        ("\ufeffmodule {}", "a character that has no place here"),
        ("module {}\0", "this is no text"),
    ],
)
def test_hostile_text_is_refused(text: str, message: str):
    with pytest.raises((ParseError, UnsupportedError), match=message):
        parse(text)


def test_no_text_is_a_program_without_functions():
    assert not parse("").funcs


def test_a_splat_of_a_petabyte_is_one_element():
    type = "tensor<1000000000000000xi8>"
    program = parse(f"func.func @f() -> {type} {{ %0 = stablehlo.constant dense<7> : {type}\n return %0 : {type} }}")
    assert "dense<7>" in print_program(program)
