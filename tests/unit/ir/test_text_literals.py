"""Literals, types and attributes in the text form: every spelling is read, printed back, or refused by name."""

from typing import Any

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.errors import (
    ParseError,
    SmeltError,
    UnsupportedError,
)
from smelt.ir.attributes import (
    DenseArray,
    DialectAttr,
    Float,
    Int,
    Symbol,
    Unit,
)
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Future, Program, Token, Tuple
from smelt.ir.structure import difference
from smelt.ir.text import parse, print_func, print_program
from smelt.shape import Shape
from tests.unit.ir.texts import body, constant, first_op, round_trip

# ---- elements ----

ELEMENTS = [
    ("dense<1.5> : tensor<2xf32>", np.full(2, 1.5, np.float32)),
    ("dense<[[1, -2], [3, 255]]> : tensor<2x2xi8>", np.array([[1, -2], [3, -1]], np.int8)),
    ("dense<[4294967295, 0]> : tensor<2xui32>", np.array([4294967295, 0], np.uint32)),
    ("dense<[0x10, -0x10]> : tensor<2xi64>", np.array([16, -16])),
    ("dense<[18446744073709551615, 0]> : tensor<2xui64>", np.array([2**64 - 1, 0], np.uint64)),
    ("dense<[-9223372036854775808, 9223372036854775807]> : tensor<2xi64>", np.array([-(2**63), 2**63 - 1])),
    ("dense<[true, false]> : tensor<2xi1>", np.array([True, False])),
    ("dense<[1, 0, -1]> : tensor<3xi1>", np.array([True, False, True])),
    ("dense<0x7F800000> : tensor<f32>", np.array(np.inf, np.float32)),
    ("dense<[1.0, 0xFFF0000000000000]> : tensor<2xf64>", np.array([1.0, -np.inf])),
    ("dense<(1.0, -2.5e1)> : tensor<2xcomplex<f32>>", np.full(2, 1 - 25j, np.complex64)),
    (
        "dense<[(1.0,2.0), (0x7F800000, -0.0)]> : tensor<2xcomplex<f32>>",
        np.array([1 + 2j, complex(np.inf, -0.0)], np.complex64),
    ),
    ("dense<> : tensor<2x0xf32>", np.zeros((2, 0), np.float32)),
    ("dense<[[], []]> : tensor<2x0xf32>", np.zeros((2, 0), np.float32)),
    ("dense<3> : tensor<0x4xi8>", np.zeros((0, 4), np.int8)),
    ('dense<"0x0100FFFF"> : tensor<2xi16>', np.array([1, -1], np.int16)),
    ('dense<"0x"> : tensor<0x2xi16>', np.zeros((0, 2), np.int16)),
    ('dense<"0x0100"> : tensor<0x2xi16>', np.zeros((0, 2), np.int16)),
    ('dense<"0x0100"> : tensor<3xi16>', np.ones(3, np.int16)),
    ('dense<"0x000101"> : tensor<3xi1>', np.array([False, True, True])),
    ('dense<"0x0506"> : tensor<11xi1>', np.array([1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1], bool)),
    ("dense<[ // first\n 1, // then\n 2]> : tensor<2xi32>", np.array([1, 2], np.int32)),
    ("dense<0> : tensor<2 x 1 x i32>", np.zeros((2, 1), np.int32)),
]


@pytest.mark.parametrize(("literal", "expected"), ELEMENTS)
def test_elements(literal: str, expected: np.ndarray):
    got = constant(literal)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "literal",
    [
        "dense<1> : tensor<f32>",
        "dense<1.0> : tensor<i32>",
        "dense<-1> : tensor<ui8>",
        "dense<256> : tensor<i8>",
        "dense<-129> : tensor<i8>",
        "dense<-0> : tensor<i8>",
        "dense<2> : tensor<i1>",
        "dense<true> : tensor<i32>",
        "dense<-0x1> : tensor<f32>",
        "dense<0x123456789> : tensor<f32>",
        "dense<+1.0> : tensor<f32>",
        "dense<1_0> : tensor<i32>",
        "dense<nan> : tensor<f32>",
        "dense<(1, 2)> : tensor<complex<f32>>",
        "dense<(1.0)> : tensor<complex<f32>>",
        "dense<[1]> : tensor<2xi8>",
        "dense<[1, 2, 3]> : tensor<2xi8>",
        "dense<[[1, 2]]> : tensor<2xi8>",
        "dense<[1, 2]> : tensor<2x1xi8>",
        "dense<[[1], 2]> : tensor<2xi8>",
        "dense<[1, 2]3]> : tensor<2xi8>",
        "dense<[1, ]> : tensor<2xi8>",
        "dense<> : tensor<2xi8>",
        "dense<[]> : tensor<0x1xi8>",
        'dense<"0x0102"> : tensor<3xi8>',
        'dense<"0x010"> : tensor<3xi8>',
        'dense<"0xZZ"> : tensor<1xi8>',
        "dense<1> : tensor<?xi8>",
    ],
)
def test_elements_that_do_not_fit_are_refused(literal: str):
    with pytest.raises(ParseError):
        constant(literal)


NUMBERS = np.array([0.0, -0.0, 1.0, 0.1, 1e-7, 123456.78, 123456789.0, 3.4e38, 1e-45, np.inf, -np.inf, np.nan, 2 / 3])


@pytest.mark.parametrize(
    "name",
    [
        "f64",
        "f32",
        "f16",
        "bf16",
        "f8E5M2",
        "f8E4M3FN",
        "f8E4M3B11FNUZ",
        "f8E3M4",
        "f8E8M0FNU",
        "f4E2M1FN",
        "complex<f32>",
    ],
)
def test_every_float_prints_to_the_same_bits(name: str):
    kind = dtype(name)
    with np.errstate(all="ignore"):
        array = NUMBERS.astype(np.float32).astype(kind.numpy)
    f = FuncBuilder("f", [])
    func = f.func(f.constant(array, kind))
    again = parse(print_func(func)).funcs["f"].body.ops[0].attrs["value"].array
    assert again.dtype == array.dtype
    nan = np.isnan(array.astype(np.complex128))
    assert again[~nan].tobytes() == array[~nan].tobytes()
    assert np.isnan(again.astype(np.complex128)[nan]).all()


@pytest.mark.parametrize(
    "name", ["i1", "i2", "i4", "ui4", "i8", "ui64", "i64", "f4E2M1FN", "f6E3M2FN", "bf16", "complex<f64>"]
)
def test_large_literals_are_blobs_that_read_back(name: str):
    kind = dtype(name)
    array: np.ndarray = (np.arange(300) % 7 - (3 if kind.kind == "int" else 0)).astype(np.int8)
    array = np.clip(array, -2, 1) if kind.bits == 2 else array
    array = array.astype(kind.numpy).reshape(3, 100)
    f = FuncBuilder("f", [])
    text = print_func(f.func(f.constant(array, kind)))
    assert 'dense<"0x' in text
    assert parse(text).funcs["f"].body.ops[0].attrs["value"].array.tobytes() == array.tobytes()


# ---- types ----


def arg_type(text: str):
    return parse(f"func.func @f(%a: {text}) {{ return }}").funcs["f"].args[0].type


def test_types():
    assert arg_type("tensor<4x8xf8E4M3FN>") == Shape("f8E4M3FN", 4, 8)
    assert arg_type("tensor<complex<f64>>") == Shape("complex<f64>")
    assert arg_type("!stablehlo.token") == Token()
    assert arg_type("tuple<tensor<i1>, tuple<>>") == Tuple((Shape("i1"), Tuple(())))
    assert arg_type("!stablehlo.future<tensor<4xf32>>") == Future((Shape("f32", 4),))
    assert arg_type("tensor<?x4x?xf32>") == Shape("f32", "d0", 4, "d1")
    assert arg_type("tensor<?x3xf32, #smelt.sizes<2*B + 1, 3>>") == Shape("f32", 2 * symbol("B") + 1, 3)
    bounded = arg_type("tensor<?x3xf32, #stablehlo.bounds<4, ?>>")
    assert (bounded.sizes, bounded.bounds) == ((symbol("d0"), 3), (4, None))
    assert arg_type("tensor<?x3xf32, #stablehlo.type_extensions<bounds = [4, ?]>>").bounds == (4, None)


def test_quantised_types():
    per_axis = arg_type("tensor<2x!quant.uniform<i8<-100:100>:f32:0, {0.1:-30, 0.5}>>").dtype
    assert (per_axis.scales, per_axis.zero_points, per_axis.axis) == ((0.1, 0.5), (-30, 0), 0)
    assert (per_axis.storage_min, per_axis.storage_max) == (-100, 100)
    assert arg_type("tensor<!quant.uniform<u8:f32, 2.000000e-02:128>>").dtype.storage == dtype("ui8")
    round_trip(parse("func.func @f(%a: tensor<2x!quant.uniform<u8<1:255>:f32:0, {0.1:30, 0.5:1}>>) { return }"))


@pytest.mark.parametrize(
    ("type", "error"),
    [
        ("tensor<*xf32>", UnsupportedError),
        ("tensor<4xsi32>", UnsupportedError),
        ("tensor<4xcomplex<i32>>", UnsupportedError),
        ("tensor<4xf32, #foo.bar>", UnsupportedError),
        ("i32", UnsupportedError),
        ("memref<4xf32>", UnsupportedError),
        ("tensor<4x!quant.uniform<i8:f32:{0:2}, {0.1, 0.2}>>", UnsupportedError),
        ("tensor<4x!quant.uniform<i8:f32:0, {0.1, 0.2}>>", ParseError),
        ("tensor<4x!quant.uniform<i8:f32:1, {0.1, 0.2}>>", ParseError),
        ("tensor<!quant.uniform<i8:f32, -0.1>>", ParseError),
        ("tensor<!quant.uniform<i8:f32, 0.1:300>>", ParseError),
        ("tensor<!quant.uniform<i8<-300:1>:f32, 0.1>>", ParseError),
        ("tensor<!quant.uniform<i8:i32, 0.1>>", ParseError),
        ("tensor<4xf32, #stablehlo.bounds<3>>", ParseError),
        ("tensor<?xf32, #stablehlo.bounds<3, 4>>", ParseError),
        ("tensor<?x3xf32, #smelt.sizes<B>>", ParseError),
        ("tensor<?x3xf32, #smelt.sizes<B, 4>>", ParseError),
        ("tensor<-1xf32>", SmeltError),
        ("tensor<9223372036854775808xf32>", ParseError),
        ("!undefined", ParseError),
    ],
)
def test_types_that_are_refused(type: str, error: type[SmeltError]):
    with pytest.raises(error):
        arg_type(type)


# ---- attributes ----


def test_attributes_become_nodes_and_typed_values():
    op = first_op(
        """  %0 = "stablehlo.pad"(%a, %z) <{edge_padding_low = array<i64: 1>, edge_padding_high = array<i64: 0>,
          interior_padding = array<i64: 0>}> {x.a = [1, 2.5, "s"], x.b = @m::@n, x.c, x.d = -7 : i8,
          x.e = 0x3F800000 : f32, x.f = #sdy.sharding<@mesh, [{"x"}, {?}]>, x.g = array<i8: 1, -1>}
          : (tensor<2xf32>, tensor<f32>) -> tensor<3xf32>""",
        "%a: tensor<2xf32>, %z: tensor<f32>",
    )
    assert op.attrs["edge_padding_low"] == (1,)
    assert op.attrs["x.a"] == (Int(1), Float(2.5), "s")
    assert op.attrs["x.b"] == Symbol(("m", "n"))
    assert op.attrs["x.c"] == Unit()
    assert op.attrs["x.d"] == Int(-7, dtype("i8"))
    assert op.attrs["x.e"] == Float(1.0, dtype("f32"))
    assert op.attrs["x.f"] == DialectAttr("sdy", "sharding", '@mesh, [{"x"}, {?}]')
    assert op.attrs["x.g"] == DenseArray(dtype("i8"), (1, -1))


@pytest.mark.parametrize(
    "attrs",
    [
        "{a = 1, a = 2}",
        "{a = }",
        "{a = 300 : i8}",
        "{a = 1.0 : i8}",
        "{a = -0x1 : f32}",
        "{a = array<i8: 300>}",
        "{a = array<complex<f32>: 1>}",
        "{a = [1, ]}",
        '{a = "x}',
        '{a = "\\q"}',
        "{a = #undefined}",
        "{a = #sdy.sharding<[}>}",
        "{a = @}",
    ],
)
def test_attributes_that_are_refused(attrs: str):
    with pytest.raises(ParseError):
        parse(
            body(
                f'  %0 = "stablehlo.add"(%a, %a) {attrs} : (tensor<f32>, tensor<f32>) -> tensor<f32>', "%a: tensor<f32>"
            )
        )


@pytest.mark.parametrize("text", ["plain", 'a"b\\c', "tab\tnew\nline\0", "é 漢字 😀", "\udcff\udc80 bytes", "-->}]>//"])
def test_strings_come_back_as_they_were(text: str):
    f = FuncBuilder("f", [Shape("f32")])
    attrs: dict[str, Any] = {"x.s": text, text: Unit()}
    func = f.func(f.op("stablehlo.add", f.args[0], f.args[0], **attrs).result)
    program = Program.of(func, name=text, attrs={"x." + text: text})
    printed = print_program(program)
    assert printed.isascii()
    assert difference(program, parse(printed)) is None
    assert parse(printed).attrs["x." + text] == text


@pytest.mark.parametrize("name", ["x y", "%0", "0", "", "a\nb", "arg0", 'q"', "1x", "é", "a:2", "x#1", "-", "c_0"])
def test_names_of_values_cannot_break_the_text(name: str):
    f = FuncBuilder("f", [Shape("f32"), Shape("f32")], [name, name])
    value = f.op("stablehlo.add", *f.args).result
    object.__setattr__(value, "name", name)
    program = Program.of(f.func(f.op("stablehlo.multiply", value, f.args[1]).result))
    assert difference(program, parse(print_program(program))) is None
