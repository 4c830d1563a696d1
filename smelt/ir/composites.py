"""Composites: computations with a name of their own, that an engine may know as one kernel.

The one table of names, attributes and formulas. `passes.recognise` finds them in what exporters have taken apart and
keeps the ops it found as the decomposition, front ends may emit them; an engine that does not know a name runs the
decomposition. Attributes are written with `encode` and read with `decode`.

A *layout* names the axes of operands and results as einsum does, `(bh)qd,bhkd,bhke->bqhe`: one letter for an axis,
letters in parentheses for an axis that is their product (the first varies slowest), `.` for an axis of size one. An
operand that lacks a letter is the same along it. *Operands* says what each operand is, in the order they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.frozen import Frozen
from smelt.ir.attributes import Dict, Float, Int
from smelt.ir.core import Op


class Composite(Frozen):
    """A name, the attributes that say which variant it is, and the formula."""

    name: str
    attributes: tuple[str, ...]
    formula: str
    optional: tuple[str, ...] = ()


# Sums are of integers less their zero points, real numbers otherwise; a zero point that is not there is zero.
_QDOT = """sum (lhs - lhs_zero) (rhs - rhs_zero) over letters that the result lacks, or over a window.
An integer bias without bias_scale is added to the sum. Then the sum is multiplied by every scale, and
bias * bias_scale, or a bias of floats, is added. A narrow integer result is that divided by result_scale, rounded to
even, moved by result_zero and held inside its type; an i32 result without scales is the sum itself. With a window the
letters are b, f (features), i (features of a group) and o (features of the result), and x, y, z ... (places)."""
_ATTENTION = """softmax over the keys of (sum q k * scale), times v; operands q, k, v, then masks in the order they
apply: `add` is added to the scores, `where` keeps scores where it is true, `unless` where it is false, and puts its
number of `fill` elsewhere. With softcap c > 0 scores are c * tanh(score / c) before masks. Keys are the letters of k
and v that the result and q lack. guarded = 1: a row in which no key is left (nan) counts as zeros."""
_PAGED = """softmax of (sum q k * scale) over keys at positions 0 … position[n], times v. Operands q [n, h, k], keys
[p, g, k, s], values [p, s, g, e], table [b, m], sequence [n], position [n], sinks [h]?: key j of query n is in page
table[sequence[n], j / s] at j % s, of head h / (heads / g). With softcap c > 0 scores are c * tanh(score / c); with
window w > 0 only the last w positions count; a sink is one more score, without a value. Pages of i8 have scales
(`ir.ops.paged_attention`), and queries are rounded to 8 bits."""
_WINDOW = ("strides", "padding", "lhs_dilation", "rhs_dilation", "groups", "batch_groups")
_RECURRENT = """one direction of one layer over time: operands x [time, batch, input], w [gates * hidden, input],
r [gates * hidden, hidden], b [2 * gates * hidden]?, lengths [batch]?, h [batch, hidden]"""

TABLE = (
    Composite("smelt.softmax", ("axis",), "exp(x - max x) / sum exp(x - max x), along one axis"),
    Composite("smelt.layer_norm", ("axes", "epsilon"), "(x - mean) / sqrt(variance + epsilon) [* scale [+ bias]]"),
    Composite("smelt.rms_norm", ("axes", "epsilon"), "x / sqrt(mean x^2 + epsilon) [* scale]"),
    Composite("smelt.gelu", ("approximate",), "x * Phi(x), by erf or by tanh"),
    Composite("smelt.silu", (), "x * logistic(x)"),
    Composite("smelt.hard_swish", (), "x * clamp(x / 6 + 1 / 2, 0, 1)"),
    Composite("smelt.stop_gradient", (), "x, as a constant: no gradient goes through it"),
    Composite("smelt.attention", ("operands", "layout", "scale", "softcap", "fill", "guarded"), _ATTENTION),
    Composite("smelt.paged_attention", ("scale", "softcap", "window"), _PAGED),
    Composite("smelt.quantize", ("operands", "layout"), "x / scale, rounded to even, + zero?, held inside the type"),
    Composite("smelt.dequantize", ("operands", "layout"), "(x - zero?) * scale"),
    Composite(
        "smelt.unblock", ("format",), "ui8[..., n, bytes] → f32[..., n * length]: blocks of `ir.blocks` as numbers"
    ),
    Composite(
        "smelt.block_dot",
        ("format",),
        "f32[group, row, k], ui8[group or 1, column, n, bytes] → f32[group, row, column]: unblocked columns times rows"
        " that are rounded to 8 bits per 32 elements (`ir.block_ops` has every step)",
    ),
    Composite(
        "smelt.block_ragged_dot",
        ("format",),
        "f32[row, k], ui8[group, column, n, bytes], i32[group] → f32[row, column]: the same where rows are sorted by"
        " group and each group has its own columns; rows behind the last group are zeros",
    ),
    Composite("smelt.qdot", ("operands", "layout"), _QDOT, optional=_WINDOW),
    Composite(
        "smelt.lstm",
        ("operands", "reverse", "activations", "clip", "input_forget"),
        f"{_RECURRENT}, c [batch, hidden], p [3 * hidden]?; gates i, o, f, c; results y [time, batch, hidden], h, c",
    ),
    Composite(
        "smelt.gru",
        ("operands", "reverse", "activations", "clip", "linear_before_reset"),
        f"{_RECURRENT}; gates z, r, h; results y [time, batch, hidden], h",
    ),
    Composite(
        "smelt.rnn",
        ("operands", "reverse", "activations", "clip"),
        f"{_RECURRENT}; one gate; results y [time, batch, hidden], h",
    ),
)
COMPOSITES: dict[str, Composite] = {row.name: row for row in TABLE}


def window_attributes(convolution: Op) -> dict[str, Any]:
    """What `smelt.qdot` says of a convolution: `padding` alternates low and high for each spatial axis."""
    attrs = convolution.attrs
    places = len(attrs["dimension_numbers"].input_spatial_dimensions)
    ones = (1,) * places
    return {
        "strides": tuple(attrs.get("window_strides") or ones),
        "padding": tuple(amount for pair in attrs.get("padding") or ((0, 0),) * places for amount in pair),
        "lhs_dilation": tuple(attrs.get("lhs_dilation") or ones),
        "rhs_dilation": tuple(attrs.get("rhs_dilation") or ones),
        "groups": attrs["feature_group_count"],
        "batch_groups": attrs["batch_group_count"],
    }


def encode(name: str, attributes: Mapping[str, Any]) -> Dict:
    """Attributes of a composite from numbers, strings and tuples of numbers; they must be the table's."""
    row = COMPOSITES[name]
    assert set(row.attributes) <= set(attributes) <= {*row.attributes, *row.optional}, (name, sorted(attributes))
    return Dict(tuple((key, _node(value)) for key, value in attributes.items()))


def decode(op: Op) -> dict[str, Any]:
    """The attributes of a composite as numbers, strings and tuples of numbers."""
    return {key: _value(node) for key, node in op.attrs["composite_attributes"].items}


def _node(value: Any) -> Any:
    match value:
        case tuple():
            return tuple(_node(item) for item in value)
        case float():
            return Float(value)
        case int():
            return Int(value)
    return value


def _value(node: Any) -> Any:
    match node:
        case Int() | Float():
            return node.value
        case tuple() | list():
            return tuple(_value(item) for item in node)
    return node
