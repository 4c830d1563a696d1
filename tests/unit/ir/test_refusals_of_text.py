"""One text for each mistake that the parser names: the message, and the line and column that it points at."""

from __future__ import annotations

from typing import Any

import pytest

from smelt.dtype import DTYPES, DType, integer_range
from smelt.errors import SmeltError
from smelt.ir.text import parse
from smelt.ir.text.lexer import Cursor, one_line

F = "tensor<2xf32>"


def lines(*inner: str, args: str = f"%x: {F}", end: str = "return") -> str:
    return "\n".join([f"func.func @main({args}) {{", *(f"  {line}" for line in inner), f"  {end}", "}", ""])


def constant(literal: str, type: str) -> str:
    return lines(f"%0 = stablehlo.constant dense<{literal}> : {type}")


# Text; the message; what else it says.
WRONG: dict[str, tuple[str, str, str]] = {
    "one type for a function's": (
        lines(f"%0 = stablehlo.custom_call @f(%x) : {F}"), "unexpected text", "a function type"),
    "an unknown place": (lines(f"%0 = stablehlo.abs %x : {F} loc(#loc7)"), "#loc7", "loc7"),
    "complex of floats": (
        lines(f"%0 = stablehlo.complex %x, %x : {F}"), "unexpected type", "a tensor of complex numbers"),
    "select with one type": (
        lines(f"%0 = stablehlo.select %x, %x, %x : {F}"), "unexpected types", "the predicate's type and the result's"),
    "a tuple of no tuple": (lines(f"%0 = stablehlo.tuple %x : {F}"), "unexpected type", "a tuple"),
    "an attribute of an unknown type": (
        lines(f'%0 = "stablehlo.custom_call"(%x) {{call_target_name = "a", b = 0x1 : f8}} : ({F}) -> {F}'),
        "unknown type", "a type"),
    "a float without a dot": (
        lines(f'%0 = "stablehlo.custom_call"(%x) {{call_target_name = "a", b = 3 : f32}} : ({F}) -> {F}'),
        "not a float", "a dot, or 32 bits in hexadecimal"),
    "strings in a list": (constant('["a"]', "tensor<1xi8>"), "not an element of this type", "i8"),
    "quantised elements": (
        constant("1", "tensor<2x!quant.uniform<i8:f32, 0.5>>"), "a literal of quantised elements", "storage type i8"),
    "elements of unknown size": (constant("1", "tensor<?xi8>"), "a literal needs a type of known size", "i8["),
    "no elements": (constant("", "tensor<2xi8>"), "a literal without elements", "2 elements"),
    "an empty axis outside": (
        constant("[]", "tensor<0x2xi8>"), "a list cannot show the axes inside an empty one", "dense<>"),
    "floats for complex ones": (
        constant("[1.0, 2.0]", "tensor<2xcomplex<f32>>"), "complex elements", "(real, imaginary)"),
    "a float for a complex one": (
        constant("1.0", "tensor<2xcomplex<f32>>"), "a complex element", "(real, imaginary)"),
    "too few elements": (
        constant("[1, 2]", "tensor<3xi8>"), "another number of elements than its type", "3"),
    "too few complex elements": (
        constant("[(1.0, 2.0)]", "tensor<3xcomplex<f32>>"), "another number of elements than its type", "3"),
    "an unclosed literal": (
        "func.func @main() {\n  %0 = stablehlo.constant dense<1 : tensor<i8>\n  return\n}", "unexpected text", "':'"),
    "a constant that is a number": (
        lines("%0 = stablehlo.constant 3 : i32"), "unexpected attribute", "dense<…>"),
    "padding of three": (
        lines(f"%0 = stablehlo.convolution(%x, %x) dim_numbers = [b, f]x[o, i]->[b, f], window = {{pad = [[1, 2, 3]]}}"
              f" : ({F}, {F}) -> {F}"), "unexpected padding", "[[low, high], …]"),
    "padding that no machine has": (
        lines(f"%0 = stablehlo.convolution(%x, %x) dim_numbers = [b, f]x[o, i]->[b, f],"
              f" window = {{pad = [[{-(1 << 63)}, 0]]}} : ({F}, {F}) -> {F}"), "unexpected padding",
        "[[low, high], …]"),
    "a reduction that does not commute": (
        lines(f"%0 = stablehlo.reduce(%x init: %x) applies stablehlo.subtract across dimensions = [0] : ({F}, {F})"
              f" -> {F}"),
        "unexpected reduction", "one commutative op"),
    "brackets that do not match": (
        lines(f'%0 = "stablehlo.custom_call"(%x) {{a = #foo.bar<(]>}} : ({F}) -> {F}'), "brackets do not match", ""),
    "a bracket that is never closed": (
        lines('%0 = "stablehlo.custom_call"(%x) {a = #foo.bar<(', end=""), "a brace is never closed", ""),
    "two modules": ("module {\n}\nmodule {\n}\n", "several modules in one text", "one module"),
    "a module after a function": (lines() + "module {\n}\n", "several modules in one text", "one module"),
    "text after a module": ("module {\n}\n%x\n", "text after the module", "an alias, resources or the end"),
    "an alias with a dot": ("#a.b = 1 : i64\n" + lines(), "an alias may not have a dot in its name", "a.b"),
    "a module's attribute without a dialect": (
        "module attributes {a = 1 : i32} {\n}\n", "an attribute without a dialect", "dialect.name"),
    "a module called 3": (
        '"builtin.module"() <{sym_name = 3 : i32}> ({\n^bb0:\n}) : () -> ()\n', "a module with this name", "a string"),
    "a generic module without a block": (
        '"builtin.module"() ({\n}) : () -> ()\n', "a module without a block", "^bb0:"),
    "no return": ("func.func @main() {\n}\n", "a region without a return at its end", "return"),
    "the wrong return": (
        lines('%0 = "stablehlo.map"(%x) ({', "^bb0(%a: tensor<f32>):", "func.return %a : tensor<f32>",
              f"}}) {{dimensions = array<i64: 0>}} : ({F}) -> {F}"),
        "the wrong return for this place", "stablehlo.return"),
    "text after a return": (
        lines("return"), "text after a return", "'}'"),
    "two blocks of a function": (lines("^bb1:"), "a function with several blocks", "an op"),
    "two blocks of a region": (
        lines('%0 = "stablehlo.map"(%x) ({', "^bb0(%a: tensor<f32>):", "%b = stablehlo.add %a, %a : tensor<f32>",
              "^bb1:", f"}}) {{dimensions = array<i64: 0>}} : ({F}) -> {F}"),
        "a region with several blocks", "one block"),
    "properties of an op without": (
        lines(f'%0 = "stablehlo.add"(%x, %x) <{{a = 1 : i32}}> : ({F}, {F}) -> {F}'), "has no properties", "a"),
    "an attribute twice": (
        lines(f'%0 = "stablehlo.iota"() <{{iota_dimension = 0 : i64}}> {{iota_dimension = 0 : i64}} : () -> {F}'),
        "an attribute is given twice", "iota_dimension"),
    "a tensor where a number is typed": (
        lines(f'%0 = "stablehlo.iota"() {{iota_dimension = 0 : {F}}} : () -> {F}'),
        "unexpected type", "the type of a number"),
    "too few bounds": (
        lines(args="%x: tensor<?x?xf32, #stablehlo.bounds<3>>"), "one bound per axis", "2 numbers or ?"),
    "a long bound": (
        lines(args=f"%x: tensor<?xf32, #stablehlo.bounds<{'9' * 20}>>"), "one bound per axis", "1 numbers or ?"),
    "bounds of nothing": (
        lines(args="%x: tensor<?xf32, #stablehlo.bounds<?>>"), "bounds that bound nothing", "leave them out"),
    "a bound of a known size": (
        lines(args="%x: tensor<?x3xf32, #stablehlo.bounds<3, 3>>"), "only a dynamic size has a bound", "3, 3"),
    "an unknown element": (lines(args="%x: tensor<2xf31>"), "a tensor of this element type", "one of i1, "),
    "storage in floats": (
        lines(args="%x: tensor<2x!quant.uniform<f8:f32, 0.5>>"), "unexpected storage type", "i8, u8, …"),
    "storage in bits": (
        lines(args="%x: tensor<2x!quant.uniform<i1:f32, 0.5>>"), "quantised storage of this type", "i1"),
    "limits the wrong way": (
        lines(args="%x: tensor<2x!quant.uniform<i8<5:5>:f32, 0.5>>"), "storage limits out of range", "-128:127"),
    "limits too far": (
        lines(args="%x: tensor<2x!quant.uniform<i8<-129:5>:f32, 0.5>>"), "storage limits out of range", "-129:5"),
    "an integer behind a quantised type": (
        lines(args="%x: tensor<2x!quant.uniform<i8:i32, 0.5>>"), "unexpected expressed type", "a floating-point type"),
    "scales per block": (
        lines(args="%x: tensor<2x!quant.uniform<i8:f32:{0:1}, {0.5}>>"), "quantisation per block", "per axis"),
    "a negative word": (
        lines(f'%0 = "stablehlo.custom_call"(%x) {{call_target_name = "a", b = -true}} : ({F}) -> {F}'),
        "unexpected text", "a number"),
    "a scale that is a word": (
        lines(args="%x: tensor<2x!quant.uniform<i8:f32, half>>"), "unexpected text", "a scale"),
    "a literal of a token": (
        lines("%0 = stablehlo.constant dense<1> : !stablehlo.token"), "a literal of this type", "a tensor type"),
    "a resource of unknown size": (
        lines("%0 = stablehlo.constant dense_resource<a> : tensor<?xf32>")
        + '{-# dialect_resources: { builtin: { a: "0x0400000001000000" } } #-}\n',
        "a resource of this type", "a tensor of known size"),
    "a resource that is not there": (
        lines("%0 = stablehlo.constant dense_resource<a> : tensor<1xf32>"), "a resource that is not there",
        "an entry in dialect_resources"),
    "elements where there are none": (
        constant("[[1], []]", "tensor<2x0xi8>"), "a literal with elements for a type that has none", "[2, 0]"),
    "blanks between digits": (
        constant('"0x00 01"', "tensor<2xi8>"), "not hexadecimal", "digits without blanks"),
    "half a byte": (constant('"0x001"', "tensor<2xi8>"), "not hexadecimal", "two digits a byte"),
    "too few bytes": (constant('"0x000102"', "tensor<4xi8>"), "do not fill its type", "4"),
    "too few bytes of booleans": (constant('"0x0202"', "tensor<24xi1>"), "do not fill its type", "24"),
    "one odd byte for booleans": (constant('"0x02"', "tensor<24xi1>"), "do not fill its type", "24"),
    "a format without a mantissa": (
        lines(f"%0 = stablehlo.reduce_precision %x, format = e5 : {F}"), "unexpected text", "a format such as e5m10"),
    "dimensions twice": (
        lines("%0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0], contracting_dims = [0] x [0]"
              f" : ({F}, {F}) -> tensor<f32>"), "given twice", "contracting_dims"),
    "a precision twice": (
        lines("%0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT],"
              f" precision = [DEFAULT, DEFAULT] : ({F}, {F}) -> tensor<f32>"), "given twice", "precision"),
    "an unknown part of a product": (
        lines(f"%0 = stablehlo.dot_general %x, %x, dims = [0] x [0] : ({F}, {F}) -> tensor<f32>"), "unexpected text",
        "contracting_dims, precision or algorithm"),
    "an alias twice": ("#a = 1 : i64\n#a = 2 : i64\n" + lines(), "an alias is defined twice", "#a"),
    "a module inside a module": ("module {\n  module {\n  }\n}\n", "a module inside a module", ""),
    "a function twice": (lines() + lines(), "a function or mesh is defined twice", "@main"),
    "a mesh called as a function": (
        'sdy.mesh @main = <["x"=2]>\n' + lines(), "a function or mesh is defined twice", "@main"),
    "a mesh without a name": (
        '"sdy.mesh"() <{mesh = #sdy.mesh<["x"=2]>}> : () -> ()\n' + lines(), "a mesh without a name or axes",
        "sdy.mesh"),
    "a generic function without a type": (
        '"func.func"() <{sym_name = "main"}> ({\n^bb0:\n  "func.return"() : () -> ()\n}) : () -> ()\n',
        "a function without a name or type", "sym_name and function_type"),
    "attributes of other arguments": (
        '"func.func"() <{sym_name = "main", function_type = () -> (), arg_attrs = [{}]}> ({\n^bb0:\n'
        '  "func.return"() : () -> ()\n}) : () -> ()\n', "one dictionary for each argument or result", "0"),
    "a result of no type of ours": (
        lines('%0 = "stablehlo.custom_call"(%x) {call_target_name = "a"} : (tensor<2xf32>) -> i32'),
        "a value of this type", "a tensor, a token, a tuple or a future"),
    "too few types": (
        lines(f'%0 = "stablehlo.add"(%x, %x) : ({F}) -> {F}'), "wrong number of operand types", "2"),
    "too many names": (
        lines(f"%0:2 = stablehlo.abs %x : {F}"), "has another number of results", "1"),
    "too much returned": (
        lines(end=f"return %x : {F}"), "@main returns another number of values", "0"),
    "a type extension of another kind": (
        lines(args="%x: tensor<?xf32, #stablehlo.type_extensions<strides = [3]>>"),
        "a type extension that is no list of bounds", "bounds = […]"),
    "a negative size": (
        lines(args="%x: tensor<?xf32, #smelt.sizes<-1>>"), "a size is out of range", "-1"),
    "sizes of another rank": (
        lines(args="%x: tensor<?xf32, #smelt.sizes<N, 3>>"), "sizes that are not those of the type", "N, 3"),
    "sizes of another type": (
        lines(args="%x: tensor<2xf32, #smelt.sizes<3>>"), "sizes that are not those of the type", "3"),
    "a size that the op does not give": (
        lines("%0 = stablehlo.iota dim = 0 : tensor<?xf32>"), "needs a result of known size", "tensor<?xf32>"),
    "scales along a negative axis": (
        lines(args="%x: tensor<2x!quant.uniform<i8:f32:-1, {0.5}>>"), "a negative axis", "-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named_where_it_is(name: str) -> None:
    text, message, more = WRONG[name]
    with pytest.raises(SmeltError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert more in str(caught.value)
    where: Any = caught.value.where
    assert 1 <= where.line <= text.count("\n") + 1


@pytest.mark.parametrize("of", [each for each in DTYPES.values() if each.is_integer and each.name != "index"], ids=str)
def test_integers_of_a_literal_fit_their_type(of: DType) -> None:
    """As MLIR has them: a signed type takes the bits of unsigned numbers, too."""
    low, high = integer_range(of)
    most = (1 << of.bits) - 1

    def parsed(number: int, form: str) -> Any:
        made = parse(constant(form.format(number), f"tensor<2x{of.name}>")).main.body.ops[0].attrs["value"]
        return made.array.astype(object).tolist()

    for form in ("{0}", "[{0}, {0}]"):
        for number in (low, high, most, 0, 1):
            want = number - (most + 1) if number > high else number
            assert parsed(number, form) == [want, want]
        for number in (low - 1, most + 1):
            with pytest.raises(SmeltError, match="out of range for its type") as caught:
                parsed(number, form)
            assert caught.value.expected == f"{low} to {most}"
        with pytest.raises(SmeltError, match="not an element of this type"):
            parsed(0, form.replace("{0}", "true"))


def test_booleans_of_bytes_and_of_bits() -> None:
    """A byte for each, a bit for each, or one byte for all."""

    def parsed(digits: str, count: int) -> Any:
        return parse(constant(f'"0x{digits}"', f"tensor<{count}xi1>")).main.body.ops[0].attrs["value"].array.tolist()

    assert parsed("010001", 3) == [True, False, True]
    assert parsed("0502", 10) == [True, False, True, *[False] * 6, True]
    for digits, wanted in (("00", False), ("01", True), ("FF", True)):
        assert parsed(digits, 24) == [wanted] * 24


@pytest.mark.parametrize(
    ("number", "value"), [("1." + "0" * 398, 1.0), ("9" * 400, None), ("0." + "0" * 397 + "1", 0.0)]
)
def test_numbers_are_as_long_as_the_page_of_limits_says(number: str, value: float | None) -> None:
    def text(digits: str) -> str:
        kind = "f64" if "." in digits else "i64"
        attrs = f'{{call_target_name = "a", b = {digits} : {kind}}}'
        return lines(f'%0 = "stablehlo.custom_call"(%x) {attrs} : ({F}) -> {F}')

    if value is not None:
        assert parse(text(number)).main.body.ops[0].attrs["b"].value == value
    with pytest.raises(SmeltError, match="a number has too many digits") as caught:
        parse(text(number + "0"))
    assert caught.value.expected == "at most 400"


@pytest.mark.parametrize("wrong", [b"func.func", 3, None])
def test_what_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(SmeltError, match="this is no text") as caught:
        parse(wrong)
    assert caught.value.got == type(wrong).__name__
    assert caught.value.remedy == "smelt.read(path) reads files"


def test_places_of_other_dialects_are_skipped() -> None:
    made = parse(lines(f"%0 = stablehlo.abs %x : {F} loc(#di.scope<a = [1, <b>]>)", f"%1 = stablehlo.abs %0 : {F}"))
    assert [op.name for op in made.main.body.ops] == ["stablehlo.abs"] * 2


@pytest.mark.parametrize("length", [1, 99, 100, 101, 300])
def test_the_caret_is_below_its_character(length: int) -> None:
    """Of a long line a part of 100 characters is shown, with the place in the middle where both sides are long."""
    text = "".join(chr(0x4E00 + i) for i in range(length))
    cursor = Cursor(f"x\n{text}\ny", "file")
    for column in range(1, length + 1):
        shown, caret = cursor.caret_line(cursor.place(2 + column - 1)).split("\n")
        assert shown[caret.index("^")] == text[column - 1]
        excerpt = shown.removeprefix("2 | ").removeprefix("…")
        first = max(0, min(column - 51, length - 100))
        assert excerpt == text[first : first + 100]
        assert shown.startswith("2 | …") == (first > 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" a b ", "a b"),
        ("a   b\t c\n d", "a b c d"),
        ("a // b\nc", "a c"),
        ('"a  // b"   c', '"a  // b" c'),
        ("a // b", "a"),
    ],
)
def test_one_line(text: str, wanted: str) -> None:
    assert one_line(text) == wanted


CALLED = """func.func @main(%x: tensor<?x?xf32>, %s: tensor<2xui64>, %k: tensor<i64>, %n: tensor<2xi64>) {{
  %d = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x?xf32>) -> tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i64>
  %sizes = stablehlo.constant dense<[3, 4]> : tensor<2xi64>
  %0:2 = stablehlo.custom_call @stablehlo.dynamic_{name}({operands}) : ({types}) -> ({results})
  return
}}
"""
TOP_K, BITS = "tensor<?x?xf32>, tensor<i64>", "tensor<2xui64>, tensor<2xi64>"


@pytest.mark.parametrize(
    ("name", "operands", "types", "declared", "found"),
    [
        ("top_k", "%x, %three", TOP_K, "tensor<?x?xf32>, tensor<?x?xi32>", ("f32[d0, 3]", "i32[d0, 3]")),
        ("top_k", "%x, %three", TOP_K, "tensor<?x3xf32>, tensor<?x3xi32>", ("f32[d0, 3]", "i32[d0, 3]")),
        ("top_k", "%x, %k", TOP_K, "tensor<?x?xf32>, tensor<?x?xi32>", ("f32[d0, a]", "i32[d0, b]")),
        ("rng_bit_generator", "%s, %sizes", BITS, "tensor<2xui64>, tensor<?x?xui32>", ("ui64[2]", "ui32[3, 4]")),
        ("rng_bit_generator", "%s, %n", BITS, "tensor<2xui64>, tensor<?x7xui32>", ("ui64[2]", "ui32[a, 7]")),
    ],
)  # fmt: skip
def test_sizes_of_calls_that_jax_exports(name: str, operands: str, types: str, declared: str, found: Any) -> None:
    program = parse(CALLED.format(name=name, operands=operands, types=types, results=declared))
    called = next(op for op in program.main.body.ops if op.name == "stablehlo.custom_call")
    rows, *_ = program.main.args[0].shape.sizes
    for value, want in zip(called.results, found, strict=True):
        element, _, sizes = want.rstrip("]").partition("[")
        assert str(value.shape.dtype) == element
        for size, said in zip(value.shape.sizes, sizes.split(", "), strict=True):
            known = {"d0": rows}.get(said, int(said) if said.isdigit() else None)
            assert size == known if known is not None else not isinstance(size, int)
