"""The table of ONNX writers: every op has one or a reason, and types are those that runtimes compute."""

from __future__ import annotations

from collections import defaultdict

import onnx
import pytest

from smelt.dtype import dtype
from smelt.ir.ops import OPS
from smelt.write.onnx.graph import NoFormError
from smelt.write.onnx.table import REFUSED, WRITERS, writer_of
from smelt.write.onnx.types import COMPUTED, OPSET, type_for

NAMES = {
    "f16": "float16", "f32": "float", "f64": "double", "bf16": "bfloat16", "i1": "bool", "f8E4M3FN": "float8e4m3fn",
    "f8E4M3FNUZ": "float8e4m3fnuz", "f8E5M2": "float8e5m2", "f8E5M2FNUZ": "float8e5m2fnuz",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip


def test_every_op_has_a_writer_or_a_reason():
    for name in OPS:
        assert name != "stablehlo.composite" or name not in WRITERS  # written by name, or through its decomposition
        if name in WRITERS or name == "stablehlo.composite":
            assert name not in REFUSED, name
            continue
        with pytest.raises(NoFormError) as caught:
            writer_of(name)
        assert str(caught.value) != "no writer", name
    assert not (WRITERS.keys() | REFUSED.keys()) - OPS.keys()


def test_types_are_those_of_the_operators():
    for operator, types in COMPUTED.items():
        schema = onnx.defs.get_schema(operator, OPSET)
        allowed = {text for constraint in schema.type_constraints for text in constraint.allowed_type_strs}
        assert {f"tensor({NAMES[name]})" for name in types} <= allowed, operator


def test_types_are_those_of_onnxruntime():
    """f16 counts as computed: onnxruntime casts it by itself where it has no kernel."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    kernels: dict[str, set[str]] = defaultdict(set)
    for kernel in state.get_all_opkernel_def():
        low, high = kernel.version_range
        if kernel.domain == "" and kernel.provider == "CPUExecutionProvider" and low <= OPSET <= high:
            for types in kernel.type_constraints.values():
                kernels[kernel.op_name] |= set(types)
    for operator, types in COMPUTED.items():
        if operator in kernels:  # HardSwish is a function of other operators
            missing = {name for name in types - {"f16"} if f"tensor({NAMES[name]})" not in kernels[operator]}
            assert not missing, f"{operator}: {missing}"


def test_a_wider_type_holds_every_number():
    assert type_for("Add", dtype("bf16")).name == "f32"
    assert type_for("Max", dtype("ui16")).name == "i32"
    assert type_for("Where", dtype("ui64")).name == "i64"
    assert type_for("TopK", dtype("ui64")).name == "ui64"  # the order would be another one
    assert type_for("Erf", dtype("f64")).name == "f64"
