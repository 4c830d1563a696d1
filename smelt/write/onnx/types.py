"""The element types that each ONNX operator is computed in: what opset 21 allows and ONNX Runtime's CPU kernels have.

An operator on another type is computed in a wider one and cast back, which gives the same bits (`graph.Graph.call`).
`tests/unit/write/test_onnx_types.py` compares the table with both packages.
"""

from __future__ import annotations

from smelt.dtype import DType, dtype

OPSET, IR_VERSION = 21, 10

_FLOATS = "f16 f32 f64"
_INTEGERS = "i8 i16 i32 i64 ui8 ui16 ui32 ui64"
_NUMBERS = f"{_FLOATS} {_INTEGERS}"
_ALL = f"{_NUMBERS} bf16 i1"
_EIGHT = "f8E4M3FN f8E4M3FNUZ f8E5M2 f8E5M2FNUZ"

_TABLE = (
    ("Add Sub Mul Div Mod Less LessOrEqual Greater GreaterOrEqual Abs Sign", _NUMBERS),
    ("Equal Expand", f"{_NUMBERS} i1"),
    ("Neg", f"{_FLOATS} i8 i16 i32 i64"),
    ("Max Min", f"{_FLOATS} i8 i32 i64 ui8 ui32 ui64"),
    ("Pow", f"{_FLOATS} i32 i64"),
    ("Exp Log Sqrt Tanh Sigmoid Sin Cos Floor Ceil Round Reciprocal Softmax Relu", _FLOATS),
    ("Erf Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Gelu HardSwish Conv AveragePool", "f16 f32"),
    ("And Or Xor Not", "i1"),
    ("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", _INTEGERS),
    ("BitShift", "ui8 ui32 ui64"),
    ("IsInf IsNaN", f"{_FLOATS} bf16"),
    ("Where", f"{_FLOATS} i8 i32 i64 ui8 ui32"),
    ("Concat Gather GatherElements GatherND ScatterElements Slice", _ALL),
    ("Transpose Reshape Shape", f"{_ALL} {_EIGHT}"),
    ("Pad", f"{_FLOATS} i1 i8 i32 i64 ui8 ui32 ui64"),
    ("Range", "f32 f64 i16 i32 i64"),
    ("MatMul", f"{_FLOATS} i32 i64 ui32 ui64"),
    ("Einsum ReduceSum ReduceProd CumSum", f"{_FLOATS} i32 i64"),
    ("ConvInteger", "i8 ui8"),
    ("LayerNormalization", f"{_FLOATS} bf16"),
    ("ReduceMax ReduceMin", f"{_FLOATS} i8 i32 i64 ui8"),
    ("MaxPool", "f16 f32 f64 i8 ui8"),
    ("TopK", f"{_FLOATS} i8 i16 i32 i64 ui8"),
)
COMPUTED: dict[str, frozenset[str]] = {
    name: frozenset(types.split()) for names, types in _TABLE for name in names.split()
}

TYPES = frozenset(f"{_ALL} {_EIGHT} i4 ui4".split())  # what opset 21 has; Cast takes them all

# Types that hold every number of a type, narrowest first.
_WIDER = {
    "i1": "ui8 i32", "i4": "i8 i16 i32 i64", "i8": "i16 i32 i64", "i16": "i32 i64", "i32": "i64",
    "ui4": "ui8 i16 i32 i64", "ui8": "i16 i32 i64", "ui16": "i32 i64", "ui32": "i64",
    "f16": "f32 f64", "bf16": "f32 f64", **dict.fromkeys(_EIGHT.split(), "f32 f64"),
}  # fmt: skip
# Operators whose result has the same bits when ui64 is taken for i64.
_MODULAR = "Add Sub Mul MatMul Einsum ReduceSum ReduceProd CumSum Where Expand Pad Concat Slice Transpose".split()  # noqa: SIM905


def type_for(operator: str, element: DType) -> DType:
    """The type to compute an operator in: the element type itself, or a wider one that gives the same result.

    Where no type that runtimes implement would, the element type: a runtime with that kernel computes the model.
    """
    types = COMPUTED[operator]
    if element.name in types:
        return element
    wider = "i64" if element.name == "ui64" and operator in _MODULAR else _WIDER.get(element.name, "")
    return next((dtype(name) for name in wider.split() if name in types), element)
