"""What the packed products, the kernels' own ops and the LAPACK calls refuse: one program for each constraint."""

from __future__ import annotations

import re

import pytest

from smelt.errors import VerifyError
from smelt.layout import panels
from tests.unit.ir.refused import Q, one_op

Row = tuple[str, str, str, str, str]  # op, operand types, result types, attributes, message


F4, I4 = (f'layout = "{panels(4, k_pack)}"' for k_pack in (1, 4))
TYPES = "operands and result must be of one float type; of floats and narrow floats with f32; or ui8, i8 and i32"


def taps(layout: str, window: str = "1", strides: str = "1", dilations: str = "1") -> str:
    lists = {"window": window, "strides": strides, "dilations": dilations}
    return ", ".join([*([layout] if layout else []), *(f"{name} = array<i64: {of}>" for name, of in lists.items())])


def lapack(name: str, takes: str, gives: str, message: str, config: str = "") -> Row:
    attrs = f'call_target_name = "lapack_{name}_ffi", api_version = 4 : i32, backend_config = {{{config}}}'
    return ("stablehlo.custom_call", takes, gives, attrs, message)


LEFT = "side = 76 : ui8"
TO_E4M3 = 'element = "f8E4M3FN", factor = 1.0 : f32, least = 1.0 : f32'
ROWS, Q4_0 = "1x2x64xi8 1x2x2xf32 1x2x2xi32", 'format = "q4_0"'
PACKED: list[Row] = [
    ("smelt.relayout", "2x3xf32", "1x1x2x4xf32", F4, "the layout must be of a tensor of rank 2"),
    ("smelt.relayout", "2x3xf32", "2x3xf32", 'layout = "ab"', "a layout is `axes->stored axes`"),
    ("smelt.relayout", "2x3xf32", "2x3xf32", 'layout = "ab->a (b"', "is no list of axes"),
    ("smelt.relayout", "2x3xf32", "2x3xf32", 'layout = "ab->a c"', "'c' is no digit of an axis"),
    ("smelt.relayout", "2x3xf32", "2x3xf32", 'layout = "ab->a b/0 b%0"', "'b/0' is no digit of an axis"),
    ("smelt.relayout", "2x3xf32", "2x3xf32", 'layout = "ab->a b/4 b%3"', "the digits of b are not those of one number"),
    ("smelt.packed_dot", "1x2x3xf32 1x1x3x4xf64", "1x2x4xf32", F4, TYPES),
    ("smelt.packed_dot", "1x2x3xi32 1x1x3x4xi32", "1x2x4xi32", F4, TYPES),
    ("smelt.packed_dot", "2x3xf32 1x1x3x4xf32", "1x2x4xf32", F4, "the left operand must be [group, row, k]"),
    ("smelt.packed_dot", "1x2x3xf32 1x3x4xf32", "1x2x4xf32", F4, "the right operand must be in the layout"),
    ("smelt.packed_dot", "1x2x3xf32 1x1x3x4xf32", "1x2x4xf32", 'layout = "kn->k n"', "of a tensor of rank 3"),
    ("smelt.packed_dot", "1x2x3xf32 1x3x4xf32", "1x2x4xf32", 'layout = "gkn->k g n"', "groups are the first"),
    ("smelt.packed_dot", "1x2x3xf32 1x1x3x4xf32", "2x4xf32", F4, "the result must be [group, row, column]"),
    ("smelt.packed_dot", "1x2x3xf32 1x1x2x4xf32", "1x2x4xf32", F4, "the right operand holds k and the columns"),
    ("smelt.packed_dot", "3x2x3xf32 2x1x3x4xf32", "3x2x4xf32", F4, "both operands have the same groups"),
    ("smelt.packed_dot", "1x2x3xf32 1x1x3x4xf32", "1x2x5xf32", F4, "the right operand holds k and the columns"),
    ("smelt.round_rows", "2x3xf64", "2x3xf8E4M3FN 2xf32", TO_E4M3, "the operand must be rows of f32"),
    ("smelt.round_rows", "f32", "f8E4M3FN f32", TO_E4M3, "the operand must be rows of f32"),
    ("smelt.round_rows", "2x3xf32", "2x3xbf16 2xf32", TO_E4M3.replace("f8E4M3FN", "bf16"), "rounded to fp8"),
    ("smelt.grouped_dot", "2x3xf32 5x1x3x4xf32 5xi32", "1x2x4xf32", F4, "the left operand must be [1, row, k]"),
    ("smelt.grouped_dot", "1x2x3xf32 5x1x3x4xf32 5xi32", "2x4xf32", F4, "the result must be [1, row, column]"),
    ("smelt.grouped_dot", "1x2x3xf32 5x1x3x4xf32 5xf32", "1x2x4xf32", F4, "the sizes of groups are integers [group]"),
    ("smelt.grouped_dot", "1x2x3xf32 5x1x3x4xf32 1x5xi32", "1x2x4xf32", F4, "the sizes of groups are integers [group]"),
    ("smelt.grouped_dot", "1x2x3xf32 5x1x3x4xf32 4xi32", "1x2x4xf32", F4, "there is a size for each group"),
    ("smelt.grouped_dot", "2x2x3xf32 5x1x3x4xf32 5xi32", "2x2x4xf32", F4, "the rows of all groups are one matrix"),
    ("smelt.grouped_dot", "1x2x3xf32 5x1x2x4xf32 5xi32", "1x2x4xf32", F4, "the right operand holds k and the columns"),
    ("smelt.grouped_block_dot", f"{ROWS} 5x1x2x288xui8 4xi32", "1x2x9xf32", Q4_0, "there is a size for each group"),
    ("smelt.packed_conv", "1x3xf32 1x1x3x4xf32", "1x4xf32", taps(F4), "images must be [batch, (y,) x, channel]"),
    ("smelt.packed_conv", "1x5x3xf32 1x3x4xf32", "1x5x4xf32", taps(F4), "the right operand must be in the layout"),
    ("smelt.packed_conv", "1x5x3xf32 1x1x3x4xf32", "5x4xf32", taps(F4), "the result has the axes of the images"),
    ("smelt.packed_conv", "1x5x3xf32 1x1x3x4xf32", "1x5x4xf32", taps(F4, "-1"),
     "window: a number of at least 0 for each axis of an image"),
    ("smelt.packed_conv", "1x5x3xf32 1x1x3x4xf32", "1x5x4xf32", taps(F4, "1", "0"),
     "strides: a number of at least 1 for each axis of an image"),
    ("smelt.packed_conv", "1x5x3xf32 1x1x3x4xf32", "1x5x4xf32", taps(F4, "1", "1", "1, 1"),
     "dilations: a number of at least 1 for each axis of an image"),
    ("smelt.packed_conv", "1x5x3xf32 1x1x4x4xf32", "1x5x4xf32", taps(F4), "the right operand holds k and the columns"),
    ("smelt.packed_conv", "1x5x2xf32 4x1x1x4xf32", "1x4x8xf32", taps(F4, "2"),
     "each group has the same number of channels"),
    ("smelt.packed_conv", "1x5x4xf32 2x1x2x4xf32", "1x5x7xf32", taps(F4), "each group has the same number of features"),
    ("smelt.packed_conv", "1x5x3xf32 1x1x3x4xf32", "1x5x5xf32", taps(F4), "the right operand holds k and the columns"),
    ("smelt.depthwise_conv", "1x5x3xf32 2x2x3xf32", "1x4x3xf32", taps(""), "the kernel must be [(y,) x, channel]"),
    ("smelt.depthwise_conv", "1x5x3xf32 2x4xf32", "1x4x3xf32", taps(""), "one filter per channel"),
    ("smelt.depthwise_conv", "1x5x3xf32 ?x3xf32", "1x4x3xf32", taps(""), "the window must be known"),
    ("smelt.round_blocks", "2x32xf32", "2x32xi8 2x1xf32 2x1xi32", "group = 32 : i64, zero = 8 : i64",
     "the operand must be f32[group, row, k]"),
    ("smelt.round_blocks", "1x2x48xf32", "1x2x48xi8 1x2x1xf32 1x2x1xi32", "group = 32 : i64, zero = 8 : i64",
     "k must be a multiple of 32"),
    ("smelt.round_blocks", "1x2x32xf32", "1x2x32xi8 1x2x1xf32 1x2x1xi32", "group = 8 : i64, zero = 8 : i64",
     "groups have 16 or 32 elements"),
    ("smelt.round_blocks", "1x2x32xf32", "1x2x32xi8 1x2x1xf32 1x2x1xi32", "group = 32 : i64, zero = 129 : i64",
     "a zero is a byte"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8", "1x2x9xf32", 'format = "q4_7"', "an unknown format"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8", "1x2x9xf32", 'format = "q4_1"', "an operand must be of f32"),
    ("smelt.packed_block_dot", f"{ROWS} 1x2x288xui8", "1x2x9xf32", Q4_0, "rows are [group, row, k]"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8", "1x2x9xf64", Q4_0, "the result must be f32"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x287xui8", "1x2x9xf32", Q4_0, "a record is as long as its format says"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x3x288xui8", "1x2x9xf32", Q4_0, "both operands have the same k"),
    ("smelt.packed_block_dot", "1x2x64xi8 1x2x1xf32 1x2x2xi32 1x1x2x288xui8", "1x2x9xf32", Q4_0,
     "a number for each 32 elements"),
    ("smelt.packed_block_dot", "1x2x64xi8 1x3x2xf32 1x2x2xi32 1x1x2x288xui8", "1x2x9xf32", Q4_0,
     "rows have the same integers, scales and sums"),
    ("smelt.packed_block_dot", f"{ROWS} 2x1x2x288xui8", "1x2x9xf32", Q4_0, "both operands have the same groups"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8", "1x2x17xf32", Q4_0, "the panels hold the columns"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8 2xf32", "1x2x9xf32", Q4_0, "factors must be f32[group, row]"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8 1x2xf64", "1x2x9xf32", Q4_0, "factors must be f32[group, row]"),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8 1x3xf32", "1x2x9xf32", Q4_0, "each row has a factor"),
    ("smelt.winograd_conv", "1x6x6x3xf32 1x16x3x4xf32", "6x6x4xf32", "", "the result must be [batch, y, x, feature]"),
    ("smelt.winograd_conv", "6x6x3xf32 1x16x3x4xf32", "1x4x4x4xf32", "", "the images must be [batch, y, x, channel]"),
    ("smelt.winograd_conv", "1x6x6x3xf32 1x15x3x4xf32", "1x4x4x4xf32", "", "panels must be of 16 packed matrices"),
    ("smelt.winograd_conv", "1x6x6x3xf32 1x16x2x4xf32", "1x4x4x4xf32", "", "one row for each channel"),
    ("smelt.winograd_conv", "1x6x6x3xf32 1x16x3x4xf32", "1x4x4x5xf32", "", "the panels hold the features"),
    ("smelt.packed_dot", "1x2x4xi8 1x1x1x16xi8", "1x2x4xi32", I4, TYPES),
    ("smelt.packed_dot", "1x2x4xui8 1x1x1x16xui8", "1x2x4xi32", I4, TYPES),
    ("smelt.packed_dot", "1x2x4xui8 1x1x1x16xi8", "1x2x4xf32", I4, TYPES),
    ("smelt.packed_dot", "1x2x4xui8 1x1x16xi8", "1x2x4xi32", I4, "the right operand must be in the layout"),
    ("smelt.packed_dot", "1x2x4xui8 1x1x1x15xi8", "1x2x4xi32", I4, "the right operand holds k and the columns"),
    ("smelt.packed_dot", "1x2x5xui8 1x1x1x16xi8", "1x2x4xi32", I4, "the right operand holds k and the columns"),
    ("smelt.packed_dot", "3x2x4xui8 2x1x1x16xi8", "3x2x4xi32", I4, "both operands have the same groups"),
    ("smelt.packed_conv", "1x5x3xui8 1x1x1x16xi8", "1x5x4xi32", taps(I4), "channels of a group are a multiple of 4"),
    ("smelt.packed_conv", "1x5x4xui8 2x1x1x16xi8", "1x5x4xi32", taps(I4), "channels of a group are a multiple of 4"),
    ("smelt.packed_conv", "1x5x4xui8 1x1x2x16xi8", "1x5x4xi32", taps(I4), "the right operand holds k and the columns"),
    ("smelt.packed_conv", "1x5x4xui8 1x1x1x16xi8", "1x5x5xi32", taps(I4), "the right operand holds k and the columns"),
    lapack("dgetrf", "3xf64", "3xf64 3xi32 i32", "the rank of operand 0"),
    lapack("dtrsm", "3x3xf64", "3x3xf64", "too few operands", LEFT),
    lapack("dgetrf", "3x3xf32", "3x3xf64 3xi32 i32", "the element type of operand 0"),
    lapack("dtrsm", "2x3x3xf64 4x3x1xf64", "4x3x1xf64", "the operands' batches differ", LEFT),
    lapack("dtrsm", "2x3x3xf64 3x1xf64", "3x1xf64", "the rank of operand 1", LEFT),
    lapack("dgetrf", "?x3xf64", "?x3xf64 3xi32 i32", "the sizes of a matrix must be numbers"),
    lapack("dpotrf", "3x4xf64", "3x4xf64 i32", "the matrix must be square"),
    lapack("dtrsm", "3x3xf64 4x3xf64", "4x3xf64", "the matrix does not fit what it is divided into", LEFT),
    lapack("dtrsm", "3x3xf64 3x4xf64", "3x4xf64", "the matrix does not fit what it is divided into", "side = 82 : ui8"),
    lapack("dgeqp3", "3x4xf64 3xi32", "3x4xf64 3xi32 3xf64", "there must be one mark for each column"),
    lapack("dorgqr", "3x4xf64 3xf64", "3x4xf64", "there must be at most as many reflectors as columns, and columns"),
    lapack("dorgqr", "4x3xf64 4xf64", "4x3xf64", "there must be at most as many reflectors as columns, and columns"),
    lapack("dormqr", "4x3xf64 3xf64 3x2xf64", "3x2xf64", "the reflectors do not fit what they are applied to", LEFT),
    lapack("dormqr", "4x3xf64 4xf64 4x2xf64", "4x2xf64", "there must be at most as many reflectors as rows and", LEFT),
    *(lapack("dgehrd", "3x3xf64", "3x3xf64 2xf64 i32", "low and high must be within the matrix",
             f"low = {low} : i32, high = {high} : i32") for low, high in ((0, 3), (1, 4), (3, 2))),
    *(lapack("dgtsv", " ".join("4xf64" if i != wrong else "3xf64" for i in range(3)) + " 4x2xf64",
             "4xf64 4xf64 4xf64 4x2xf64 i32", "diagonals and right side must have the same length")
      for wrong in range(3)),
    lapack("dgtsv", "4xf64 4xf64 4xf64 3x2xf64", "4xf64 4xf64 4xf64 3x2xf64 i32",
           "diagonals and right side must have the same length"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "takes", "gives", "attrs", "message"), PACKED, ids=[f"{row[0]}-{row[-1][:48]}" for row in PACKED]
)
def test_refused(name: str, takes: str, gives: str, attrs: str, message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)) as caught:
        one_op(name, takes, gives, attrs)
    assert caught.value.message.startswith(f"{name}: ")


TAKEN = [
    ("smelt.relayout", "1x2x3xf32", "1x3x2x1xf32", 'layout = "gkn->g n k n%1"'),
    ("smelt.relayout", "6xi8", "2x3xi8", 'layout = "a->a%2 a/2"'),
    ("smelt.packed_dot", "3x2x3xf32 1x2x3x4xf32", "3x2x5xf32", F4),
    ("smelt.packed_dot", "3x2x3xf32 1x5x3xf32", "3x2x5xf32", 'layout = "gkn->g n k"'),
    ("smelt.packed_conv", "1x5x3xf32 1x1x0x4xf32", "1x6x4xf32", taps(F4, "0")),
    ("smelt.packed_conv", "1x5x4xf32 2x1x2x4xf32", "1x5x8xf32", taps(F4)),
    ("smelt.depthwise_conv", "1x5x3xf32 2x3xf32", "1x4x3xf32", taps("")),
    ("smelt.winograd_conv", "1x6x6x3xf32 2x16x3x4xf32", "1x4x4x5xf32", ""),
    ("smelt.packed_dot", "1x2x5xui8 1x1x2x16xi8", "1x2x4xi32", I4),
    ("smelt.packed_dot", "2x2x4xui8 2x2x1x16xi8", "2x2x5xi32", I4),
    ("smelt.packed_conv", "1x5x8xui8 2x1x1x16xi8", "1x5x8xi32", taps(I4)),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8", "1x2x9xf32", Q4_0),
    ("smelt.packed_block_dot", f"{ROWS} 1x1x2x288xui8 1x2xf32", "1x2x9xf32", Q4_0),
    ("smelt.grouped_dot", "1x2x3xf32 5x1x3x4xf32 5xi32", "1x2x4xf32", F4),
    ("smelt.grouped_block_dot", f"{ROWS} 5x1x2x288xui8 5xi64", "1x2x9xf32", Q4_0),
    ("smelt.round_rows", "3x0xf32", "3x0xf8E4M3FN 3xf32", TO_E4M3),
    ("smelt.round_rows", "0x3xf32", "0x3xf8E4M3FN 0xf32", TO_E4M3),
    ("smelt.round_rows", "3xf32", "3xf8E4M3FN f32", TO_E4M3),
    ("smelt.round_blocks", "1x0x32xf32", "1x0x32xi8 1x0x1xf32 1x0x2xf32", "group = 16 : i64, zero = 0 : i64"),
    *(
        lapack("dgehrd", "3x3xf64", "3x3xf64 2xf64 i32", "", f"low = {low} : i32, high = {high} : i32")[:4]
        for low, high in ((1, 3), (1, 1), (2, 2), (3, 3), (1, 0))
    ),
    lapack("dgehrd", "0x0xf64", "0x0xf64 0xf64 i32", "", "low = 1 : i32, high = 0 : i32")[:4],
    lapack("dgtsv", "4xf64 4xf64 4xf64 4x2xf64", "4xf64 4xf64 4xf64 4x2xf64 i32", "")[:4],
    lapack("dorgqr", "3x3xf64 3xf64", "3x3xf64", "")[:4],
    *(lapack("dgetrf", f"{size}xf64", f"{size}xf64 2xi32 i32", "")[:4] for size in ("2x3", "3x2")),
    *(lapack("dgeqrf", f"{size}xf64", f"{size}xf64 2xf64", "")[:4] for size in ("2x3", "3x2")),
    lapack("dgeqp3", "2x3xf64 3xi32", "2x3xf64 3xi32 2xf64", "")[:4],
    lapack("dgeqp3", "3x2xf64 2xi32", "3x2xf64 2xi32 2xf64", "")[:4],
    lapack("dtrsm", "2x3x3xf64 2x3x1xf64", "2x3x1xf64", "", LEFT)[:4],
]


@pytest.mark.parametrize("row", TAKEN, ids=[f"{row[0]}-{row[1][:20]}" for row in TAKEN])
def test_extreme_values_are_accepted(row: tuple[str, str, str, str]) -> None:
    one_op(*row)


def test_matmuls_of_quantised_types_are_not_packed() -> None:
    with pytest.raises(VerifyError, match="operands and result must be of one float type"):
        one_op("smelt.packed_dot", f"1x2x3x{Q} 1x1x3x4x{Q}", f"1x2x4x{Q}", F4)
