"""Hostile StableHLO: mutated programs, and texts made to break a reader. Only SmeltErrors may come out, and in time."""

from random import Random

import pytest

import tests.hostile.endure as endure_module
from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError
from smelt.ir.ops import OPS
from smelt.ir.structure import fingerprint, same
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.read.stablehlo import read
from tests.hostile.endure import attack, endure, limits, programs
from tests.hostile.mutate import MUTATIONS, Text, mutate
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


def check(texts, count, seed):
    outcomes, escapes = attack(texts, count, seed)
    shown = "\n\n".join(f"{escape.kind}\n{escape.error}\n{escape.text}" for escape in escapes[:3])
    assert not escapes, f"{len(escapes)} escaped\n{shown}"
    assert outcomes["refused"] > count // 3
    assert outcomes["ran"] > 0


@pytest.mark.timeout(300)
def test_mutated_samples(seed):
    check(list(SAMPLES.values()), 8000, seed)


@pytest.mark.timeout(300)
def test_mutated_suites(suites, seed):
    check(programs([suites]), 2000, seed)


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
    "nothing but quotes": '"' * 10**6,
    "a string without end": '"' + "\\" * 10**6,
    "opening brackets": "(" * 10**6,
    "opening braces": "module " + "{" * 10**6,
    "tensors of tensors": "tensor<" * 10**5,
    "nothing but #": "#" * 10**6,
    "nothing but %": "%" * 10**6,
    "digits": "1" * 10**6,
    "a zero byte": function("return") + "\0",
    "a byte order mark": "\ufeff" + function("return"),
    "lone surrogates": function("return") + "\udc80\ud800",
    "a size of many digits": function("return", f"%a: tensor<{'9' * 10**5}xf32>"),
    "a size beyond 64 bits": function("return", f"%a: tensor<{1 << 63}xf32>"),
    "many axes": function("return", f"%a: tensor<{'1x' * 10**5}f32>"),
    "tuples of tuples": function("return", f"%a: {'tuple<' * 5000}tensor<f32>{'>' * 5000}"),
    "lists of lists": f"module attributes {{a.b = {'[' * 10**5}{']' * 10**5}}} {{}}",
    "dictionaries of dictionaries": f"module attributes {{a.b = {'{a = ' * 5000}1{'}' * 5000}}} {{}}",
    "attributes that double": doubled("#", "[1]", "[{0}, {0}]") + "module attributes {a.b = #a59} {}",
    "types that double": doubled("!", "tensor<f32>", "tuple<{0}, {0}>") + function("return", "%a: !a59"),
    "an alias of itself": "#a = [#a]\nmodule attributes {a.b = #a} {}",
    "an alias that is missing": "module attributes {a.b = #missing} {}",
    "a literal with too many elements": constant("[1, 2, 3]", "tensor<2xi32>"),
    "a literal with too few elements": constant("[1]", "tensor<900000000000000xi32>"),
    "a ragged literal": constant("[[1, 2], [3]]", "tensor<2x2xi32>"),
    "an empty literal": constant("", "tensor<2xi32>"),
    "elements where there are none": constant("[[1], [2]]", "tensor<2x0xi32>"),
    "half a byte": constant('"0x0"', "tensor<1xi8>"),
    "bytes that do not fill the type": constant('"0x000000"', "tensor<2xi32>"),
    "bytes that are none": constant('"0xZZ"', "tensor<1xi8>"),
    "a literal beyond all memory": constant("1", "tensor<9000000000000000000xi32>"),
    "a resource that is missing": function("%0 = stablehlo.constant dense_resource<a> : tensor<2xi8>\nreturn"),
    "a resource that is no blob": function("return") + '\n{-# dialect_resources: { builtin: { a: "0x0" } } #-}',
    "an unknown op": function('%0 = "stablehlo.unheard_of"() : () -> tensor<f32>\nreturn'),
    "an unknown dialect": function("%0 = arith.constant 1 : i32\nreturn"),
    "a million results": function('%0:1000000 = "stablehlo.custom_call"() {call_target_name = "x"} : () -> ()\nreturn'),
    "a size deep in parentheses": function("return", f"%a: tensor<?xf32, #smelt.sizes<{'(' * 9999}B{')' * 9999}>>"),
    "a size that explodes": function("return", f"%a: tensor<?xf32, #smelt.sizes<{'*'.join(['(A+B+C+1)'] * 60)}>>"),
    "a size with a huge exponent": function("return", "%a: tensor<?xf32, #smelt.sizes<B**1000000>>"),
    "functions that call each other": function("call @main() : () -> ()\nreturn"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_refused_at_once(name):
    with limits(5), pytest.raises(SmeltError) as caught:
        parse(HOSTILE[name])
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
    with pytest.raises(SmeltError):
        read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileError):
        read(tmp_path / "missing.mlir")
    with pytest.raises(FileError):
        read(tmp_path)
