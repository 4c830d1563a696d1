"""Hostile StableHLO: mutated programs, and texts made to break a reader. Only SmeltErrors may come out, and in time."""

from itertools import product
from random import Random

import numpy as np
import pytest

import tests.hostile.endure as endure_module
from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError
from smelt.ir.ops import OPS
from smelt.ir.structure import fingerprint, same
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.read.stablehlo import read
from tests.hostile.endure import Trial, attack, endure, limits, programs, rewritable
from tests.hostile.mutate import MUTATIONS, VALID, Text, mutate
from tests.hostile.samples import SAMPLES

# ---- the samples and the mutations ----


def test_every_op_has_a_sample():
    text = "\n".join(SAMPLES.values())
    assert not [name for name in OPS if name not in text and name != "func.call"]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_valid(name):
    assert endure(SAMPLES[name]) != "refused"


def test_tokens_join_to_the_text():
    for text in SAMPLES.values():
        assert "".join(Text(text).tokens) == text


def test_a_seed_says_what_is_mutated():
    texts = list(SAMPLES.values())
    first, second = ([mutate(text, Random(7)) for text in texts] for _ in range(2))
    assert first == second
    assert sum(mutant.text != text for mutant, text in zip(first, texts, strict=True)) > len(texts) // 2


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_finds_something_to_change(name):
    changed = [MUTATIONS[name](Text(text), Random(1)) for text in SAMPLES.values()]
    assert any(new is not None and new != old for new, old in zip(changed, SAMPLES.values(), strict=True))


# ---- attacks ----


def check(texts, count, seed, **more):
    outcomes, escapes = attack(texts, count, seed, **more)
    shown = "\n\n".join(f"{escape.kind}\n{escape.error}\n{escape.text}" for escape in escapes[:3])
    assert not escapes, f"{len(escapes)} escaped\n{shown}"
    assert outcomes["refused"] > count // 3
    assert outcomes["ran"] > 0


@pytest.mark.timeout(300)
def test_mutated_samples(seed):
    check(list(SAMPLES.values()), 3000, seed)


@pytest.mark.timeout(300)
def test_mutated_suites(suites, seed):
    check(programs([suites]), 1500, seed)


@pytest.mark.timeout(300)
def test_mutated_rewrites(seed):
    check(rewritable(seed), 2500, seed, only=VALID, vary=True)


# ---- passes ----


def unary_twice(name, element):
    type = f"tensor<64x{element}>"
    ops = f'%0 = "{name}"(%x) : ({type}) -> {type}\n  %1 = "{name}"(%0) : ({type}) -> {type}'
    return f"func.func @main(%x: {type}) -> {type} {{\n  {ops}\n  return %1 : {type}\n}}"


def of_itself(name, element):
    type = f"tensor<64x{element}>"
    return f"func.func @main(%x: {type}) -> {type} {{\n  %0 = {name} %x, %x : {type}\n  return %0 : {type}\n}}"


RESCALED = """
!a = tensor<1x!quant.uniform<i8:f32:0,{0.5}>>
!b = tensor<2x!quant.uniform<i8:f32:0,{0.5,0.5}>>
!c = tensor<3x2x!quant.uniform<i8:f32:1,{0.25,1.0}>>
func.func @main(%x: !a) -> !c {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0] : (!a) -> !b
  %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (!b) -> !c
  return %1 : !c
}"""
STRICT = {
    "a float type without a sign": unary_twice("stablehlo.negate", "f8E8M0FNU"),
    "saturated twice": unary_twice("stablehlo.negate", "!quant.uniform<i8:f32,0.5:-3>"),
    "rounded twice": unary_twice("stablehlo.abs", "!quant.uniform<i32:f32,0.5>"),
    "more digits than the expressed type": of_itself("stablehlo.maximum", "!quant.uniform<i32:f32,0.5>"),
    "scales that change on the way": RESCALED,
}


@pytest.mark.parametrize("name", STRICT)
def test_rules_leave_alone_what_would_change(name):
    assert Trial(STRICT[name], np.random.default_rng(1)).endure() == "ran"


PRODUCTS = ["f32", "i8", "f16"] + [
    f"!quant.uniform<i8:f32{rest}>" for rest in (",0.5", ",0.5:17", ":0,{0.5,0.25}", ":1,{0.5,0.25}", ":1,{0.5,0.25:3}")
]


@pytest.mark.parametrize("lhs", PRODUCTS)
def test_a_dot_that_is_accepted_is_a_dot_general(lhs):
    outcomes = set()
    for rhs, result in product(PRODUCTS, PRODUCTS):
        types = [f"tensor<2x2x{element}>" for element in (lhs, rhs, result)]
        text = (
            f"func.func @main(%a: {types[0]}, %b: {types[1]}) -> {types[2]} {{\n"
            f'  %0 = "stablehlo.dot"(%a, %b) : ({types[0]}, {types[1]}) -> {types[2]}\n  return %0 : {types[2]}\n}}'
        )
        outcomes.add(endure(text))
    assert "refused" in outcomes
    assert outcomes <= {"refused", "ran"}


# The op, its operands, the type of its result, attributes; %n is [3], %big [7] and %m [-6], but only folding tells.
IMPOSSIBLE = {
    "real_dynamic_slice": ("%x, %n, %one, %one", "tensor<?xf32>", ""),
    "dynamic_reshape": ("%x, %n", "tensor<?xf32>", ""),
    "dynamic_broadcast_in_dim": ("%x, %n", "tensor<?xf32>", "broadcast_dimensions = array<i64: 0>"),
    "dynamic_iota": ("%m", "tensor<?xf32>", "iota_dimension = 0 : i64"),
    "dynamic_pad": ("%x, %z, %m, %m, %one", "tensor<?xf32>", ""),
    "set_dimension_size": ("%x, %s", "tensor<?xf32>", "dimension = 0 : i64"),
    "dynamic_gather": (
        "%x, %i, %big",
        "tensor<2x?xf32>",
        "dimension_numbers = #stablehlo.gather<offset_dims = [1], start_index_map = [0], index_vector_dim = 1>",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_sizes_that_turn_out_impossible_are_left_to_the_run(name):
    operands, result, attributes = IMPOSSIBLE[name]
    types = {"%x": "tensor<4xf32>", "%z": "tensor<f32>", "%i": "tensor<2x1xi64>", "%s": "tensor<i32>"}
    listed = ", ".join(types.get(each, "tensor<1xi64>") for each in operands.split(", "))
    text = f"""func.func @main(%x: tensor<4xf32>, %z: tensor<f32>, %i: tensor<2x1xi64>) -> {result} {{
  %one = stablehlo.constant dense<1> : tensor<1xi64>
  %c = stablehlo.constant dense<[[7], [127], [5]]> : tensor<3x1xi64>
  %0 = stablehlo.slice %c [0:1, 0:1] : (tensor<3x1xi64>) -> tensor<1x1xi64>
  %1 = stablehlo.slice %c [1:2, 0:1] : (tensor<3x1xi64>) -> tensor<1x1xi64>
  %2 = stablehlo.slice %c [2:3, 0:1] : (tensor<3x1xi64>) -> tensor<1x1xi64>
  %3 = stablehlo.reshape %0 : (tensor<1x1xi64>) -> tensor<1xi64>
  %4 = stablehlo.reshape %1 : (tensor<1x1xi64>) -> tensor<1xi64>
  %5 = stablehlo.reshape %2 : (tensor<1x1xi64>) -> tensor<1xi64>
  %n = stablehlo.popcnt %3 : tensor<1xi64>
  %big = stablehlo.popcnt %4 : tensor<1xi64>
  %m = stablehlo.not %5 : tensor<1xi64>
  %6 = stablehlo.convert %m : (tensor<1xi64>) -> tensor<1xi32>
  %s = stablehlo.reshape %6 : (tensor<1xi32>) -> tensor<i32>
  %r = "stablehlo.{name}"({operands}) <{{{attributes}}}> : ({listed}) -> {result}
  return %r : {result}
}}"""
    assert endure(text) == "failed"


# ---- the attack itself ----


def test_the_attack_notices_a_crash(monkeypatch):
    def broken(text):
        raise IndexError("broken on purpose")

    monkeypatch.setattr(endure_module, "parse", broken)
    outcomes, escapes = attack([SAMPLES["pretty"]], 3, 1)
    assert outcomes["escaped"] == 3
    assert "IndexError" in escapes[0].kind


def test_the_attack_notices_a_crash_that_was_caught_while_running(monkeypatch):
    def broken(frame, op, *operands):
        raise IndexError("broken on purpose")

    row = OPS["stablehlo.multiply"]
    monkeypatch.setitem(OPS, row.name, type(row)(row.name, row.operands, row.infer, broken, effect=True))
    with pytest.raises(IndexError):
        endure(SAMPLES["pretty"])


def test_the_attack_notices_what_takes_too_long(monkeypatch):
    def endless(text):
        while True:
            pass

    monkeypatch.setattr(endure_module, "parse", endless)
    monkeypatch.setattr(endure_module, "READING", 0.1)
    assert attack([SAMPLES["pretty"]], 1, 1)[0]["escaped"] == 1


# ---- texts made to break a reader ----


def function(body, arguments="", results=""):
    arrow = f" -> {results}" if results else ""
    return f"func.func @main({arguments}){arrow} {{\n{body}\n}}"


def constant(literal, type):
    return function(f"%0 = stablehlo.constant dense<{literal}> : {type}\nreturn")


def doubled(sigil, start, step):
    lines = [f"{sigil}a0 = {start}"] + [f"{sigil}a{i} = {step.format(f'{sigil}a{i - 1}')}" for i in range(1, 60)]
    return "\n".join(lines) + "\n"


HOSTILE = {
    "nothing but quotes": ('"' * 10**6, "unexpected text"),
    "a string without end": ('"' + "\\" * 10**6, "a string is never closed or has a bad escape"),
    "opening brackets": ("(" * 10**6, "unexpected text"),
    "opening braces": ("module " + "{" * 10**6, "unexpected text"),
    "tensors of tensors": ("tensor<" * 10**5, "unexpected text"),
    "nothing but #": ("#" * 10**6, "a character that has no place here"),
    "nothing but %": ("%" * 10**6, "a character that has no place here"),
    "digits": ("1" * 10**6, "unexpected text"),
    "a zero byte": (function("return") + "\0", "this is no text"),
    "a byte order mark": ("\ufeff" + function("return"), "a character that has no place here"),
    "lone surrogates": (function("return") + "\udc80\ud800", "a character that has no place here"),
    "a size of many digits": (function("return", f"%a: tensor<{'9' * 10**5}xf32>"), "a size is too large"),
    "a size beyond 64 bits": (function("return", f"%a: tensor<{1 << 63}xf32>"), "a size is too large"),
    "many axes": (function("return", f"%a: tensor<{'1x' * 10**5}f32>"), "a tensor with too many axes"),
    "tuples of tuples": (function("return", f"%a: {'tuple<' * 5000}tensor<f32>{'>' * 5000}"), "nested too deeply"),
    "lists of lists": (f"module attributes {{a.b = {'[' * 10**5}{']' * 10**5}}} {{}}", "nested too deeply"),
    "dictionaries of dictionaries": (
        f"module attributes {{a.b = {'{a = ' * 5000}1{'}' * 5000}}} {{}}",
        "nested too deeply",
    ),
    "attributes that double": (
        doubled("#", "[1]", "[{0}, {0}]") + "module attributes {a.b = #a59} {}",
        "an alias that expands to too much",
    ),
    "types that double": (
        doubled("!", "tensor<f32>", "tuple<{0}, {0}>") + function("return", "%a: !a59"),
        "an alias that expands to too much",
    ),
    "an alias of itself": ("#a = [#a]\nmodule attributes {a.b = #a} {}", "an alias that stands for itself"),
    "an alias that is missing": ("module attributes {a.b = #missing} {}", "an alias that is not defined"),
    "a literal with too many elements": (
        constant("[1, 2, 3]", "tensor<2xi32>"),
        "a literal with another number of elements than its type",
    ),
    "a literal with too few elements": (
        constant("[1]", "tensor<900000000000000xi32>"),
        "a literal with another number of elements than its type",
    ),
    "a ragged literal": (
        constant("[[1, 2], [3]]", "tensor<2x2xi32>"),
        "a literal with another number of elements than its type",
    ),
    "an empty literal": (constant("", "tensor<2xi32>"), "a literal without elements"),
    "elements where there are none": (
        constant("[[1], [2]]", "tensor<2x0xi32>"),
        "a literal with elements for a type that has none",
    ),
    "half a byte": (constant('"0x0"', "tensor<1xi8>"), "not hexadecimal"),
    "bytes that do not fill the type": (
        constant('"0x000000"', "tensor<2xi32>"),
        "the bytes of a literal do not fill its type",
    ),
    "bytes that are none": (constant('"0xZZ"', "tensor<1xi8>"), "not hexadecimal"),
    "a literal beyond all memory": (constant("1", "tensor<9000000000000000000xi32>"), "a literal too large to address"),
    "a resource that is missing": (
        function("%0 = stablehlo.constant dense_resource<a> : tensor<2xi8>\nreturn"),
        "a resource that is not there",
    ),
    "a resource that is no blob": (
        function("return") + '\n{-# dialect_resources: { builtin: { a: "0x0" } } #-}',
        "a resource that is no blob",
    ),
    "an unknown op": (
        function('%0 = "stablehlo.unheard_of"() : () -> tensor<f32>\nreturn'),
        "unknown op stablehlo.unheard_of",
    ),
    "an unknown dialect": (function("%0 = arith.constant 1 : i32\nreturn"), "unknown op arith.constant"),
    "a million results": (
        function('%0:1000000 = "stablehlo.custom_call"() {call_target_name = "x"} : () -> ()\nreturn'),
        "unexpected text",
    ),
    "a size deep in parentheses": (
        function("return", f"%a: tensor<?xf32, #smelt.sizes<{'(' * 9999}B{')' * 9999}>>"),
        "a size is nested too deeply",
    ),
    "a size that explodes": (
        function("return", f"%a: tensor<?xf32, #smelt.sizes<{'*'.join(['(A+B+C+1)'] * 60)}>>"),
        "a size became too large an expression",
    ),
    "a size with a huge exponent": (
        function("return", "%a: tensor<?xf32, #smelt.sizes<B**1000000>>"),
        "an exponent is a small number",
    ),
    "functions that call each other": (function("call @main() : () -> ()\nreturn"), "a function that calls itself"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_refused_at_once(name):
    text, message = HOSTILE[name]
    with limits(5), pytest.raises(SmeltError) as caught:
        parse(text)
    assert caught.value.message == message
    assert len(str(caught.value)) < 5000


def test_comments_and_blanks_may_be_long():
    with limits(10):
        assert not parse(" " * 10**6 + "//\n" * 10**5).funcs


def nested(levels):
    """Branches inside branches."""
    lines = [f'%v{i} = "stablehlo.if"(%p) ({{' for i in range(levels)]
    lines.append("stablehlo.return %a : tensor<f32>")
    for i in reversed(range(levels)):
        lines.append("}, { stablehlo.return %a : tensor<f32> }) : (tensor<i1>) -> tensor<f32>")
        lines.append(f"stablehlo.return %v{i} : tensor<f32>")
    return function("\n".join(lines), "%a: tensor<f32>, %p: tensor<i1>", "tensor<f32>")


def test_two_hundred_regions_inside_each_other_are_fine():
    assert endure(nested(200)) == "ran"
    with pytest.raises(ParseError, match="nested"):
        parse(nested(5000))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", ["stablehlo.add {0}, %a : tensor<4xf32>", "stablehlo.tanh {0} : tensor<4xf32>"])
def test_long_chains(line):
    count = 20_000
    ops = [f"%v{i} = " + line.format(f"%v{i - 1}" if i else "%a") for i in range(count)]
    text = function("\n".join([*ops, f"return %v{count - 1} : tensor<4xf32>"]), "%a: tensor<4xf32>", "tensor<4xf32>")
    program = parse(text)
    verify(program)
    again = parse(print_program(program))
    assert same(program, again)
    assert fingerprint(program) == fingerprint(again)
    verify(pipeline.run(program)[0])
    assert len(parse(text.replace("\n", " ")).main.body.ops) == count  # the same on one line


def test_calls_that_double_are_refused_before_they_are_inlined():
    lines = []
    for i in range(40):
        calls = [f"%{k + 1} = call @f{i + 1}(%{k}) : (tensor<f32>) -> tensor<f32>" for k in (0, 1)]
        lines += [f"func.func @f{i}(%0: tensor<f32>) -> tensor<f32> {{", *calls, "return %2 : tensor<f32>", "}"]
    last = function("%0 = stablehlo.tanh %a : tensor<f32>\nreturn %0 : tensor<f32>", "%a: tensor<f32>", "tensor<f32>")
    doubling = parse("\n".join([*lines, last.replace("@main", "@f40")]))
    with limits(20), pytest.raises(UnsupportedError, match="too many ops"):
        pipeline.run(doubling)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe" + b"f\0u\0n\0c\0", b"\0" * 100, b"// \xe9", b"ML\xefR" + bytes(range(256))]
)
def test_files_that_are_no_programs(tmp_path, content):
    path = tmp_path / "program.mlir"
    path.write_bytes(content)
    with pytest.raises((FileError, ParseError)):
        read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileError):
        read(tmp_path / "missing.mlir")
    with pytest.raises(FileError):
        read(tmp_path)
