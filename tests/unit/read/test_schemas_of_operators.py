"""Attributes of the ONNX operators against the schemas of the onnx package: names, defaults, and which are required."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from smelt.model import load
from smelt.read.onnx.registry import REQUIRED, find
from tests.unit.read.peer import node_model, theirs

SCHEMAS = [
    each for each in onnx.defs.get_all_schemas_with_history() if find(each.domain, each.name, each.since_version)
]

# (operator, attribute): what the function takes where none is given, and why that is not what the schema says.
OTHERWISE: dict[tuple[str, str], tuple[Any, str]] = {
    ("Clip", "consumed_inputs"): ((), "an attribute of opset 1 that says nothing"),
    ("Concat", "axis"): (1, "the text of opset 1 has the default, the schema has not"),
    ("ConvInteger", "auto_pad"): (None, "one function reads the attributes of all quantised convolutions"),
    ("ConvInteger", "group"): (None, "one function reads the attributes of all quantised convolutions"),
    ("GridSample", "mode"): ("linear", "opset 20 has another word for bilinear; the function knows both"),
    ("QLinearConv", "auto_pad"): (None, "one function reads the attributes of all quantised convolutions"),
    ("QLinearConv", "group"): (None, "one function reads the attributes of all quantised convolutions"),
    ("RNN", "activations"): (None, "one for each direction"),
    ("RoiAlign", "coordinate_transformation_mode"): (None, "it depends on the opset"),
    ("Selu", "alpha"): (None, "it depends on the opset"),
    ("Selu", "gamma"): (None, "it depends on the opset"),
    ("SequenceEmpty", "dtype"): (1, "the schema's text has the default"),
    ("Split", "axis"): (0, "the text of opset 1 has the default, the schema has not"),
    ("StringNormalizer", "locale"): ("", "the machine's"),
    ("TreeEnsembleRegressor", "n_targets"): (1, "the schema's text has none: one target is the least"),
}
CONVOLUTIONS = ("FusedConv", "NhwcConv", "NhwcFusedConv", "QLinearConv")
OTHERWISE_OF_MICROSOFT: dict[tuple[str, str], Any] = {
    **{(name, attribute): None for name in CONVOLUTIONS for attribute in ("auto_pad", "group")},
    **{("DynamicQuantizeLSTM", attribute): None for attribute in ("direction", "input_forget")},  # LSTM reads them
    ("RotaryEmbedding", "scale"): 1.0,
    **{(name, "axis"): 1 for name in ("DequantizeLinear", "QuantizeLinear")},
}
# Required in some opsets by the schema alone, or by the function alone.
REQUIRED_OTHERWISE = {
    *(("Constant", "value"), ("Pad", "paddings"), ("Pad", "pads")),  # refused with an error of their own
    ("BatchNormalization", "consumed_inputs"),  # says nothing
    *(("RegexFullMatch", "pattern"), ("Reshape", "shape")),  # nothing can be done without it
}


def stated(attribute: Any) -> Any:
    """The default of a schema, as the functions have it; lists that are absent are empty."""
    if not attribute.default_value.name:
        return () if attribute.type.name in ("INTS", "FLOATS", "STRINGS") else None
    value = helper.get_attribute_value(attribute.default_value)
    if isinstance(value, list):
        return tuple(each.decode() if isinstance(each, bytes) else each for each in value)
    return value.decode() if isinstance(value, bytes) else value


def is_same(ours: Any, theirs: Any) -> bool:
    if theirs == ():
        return ours in ((), None)
    if isinstance(theirs, float):
        return ours is not None and np.float32(ours) == np.float32(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.mark.parametrize("schema", SCHEMAS, ids=[f"{each.domain}.{each.name}.{each.since_version}" for each in SCHEMAS])
def test_attributes_are_those_of_the_schema(schema: Any) -> None:
    row = find(schema.domain, schema.name, schema.since_version)
    assert row is not None
    for name, attribute in schema.attributes.items():
        ours, place = row.attributes[name], (schema.name, name)
        assert (ours is REQUIRED) == attribute.required or place in REQUIRED_OTHERWISE, name
        if ours is not REQUIRED and not attribute.required:
            wanted = OTHERWISE[place][0] if place in OTHERWISE else stated(attribute)
            assert is_same(ours, wanted), f"{name}: {ours!r} is not {wanted!r}"


def microsoft_schemas() -> list[Any]:
    """What onnxruntime says about its own operators."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    return [each for each in state.get_all_operator_schema() if each.domain == "com.microsoft"]


def test_attributes_of_microsofts_operators() -> None:
    """Switches that its schemas leave open are off."""
    seen, known = 0, set(OTHERWISE_OF_MICROSOFT)
    for schema in microsoft_schemas():
        row = find(schema.domain, schema.name, schema.since_version)
        for name, attribute in schema.attributes.items() if row is not None else ():
            assert row is not None
            ours, place = row.attributes[name], (schema.name, name)
            assert (ours is REQUIRED) == attribute.required, place
            known.discard(place)
            if ours is REQUIRED:
                continue
            seen += 1
            made = AttributeProto()
            made.ParseFromString(attribute._default_value)
            if place in OTHERWISE_OF_MICROSOFT:
                assert ours == OTHERWISE_OF_MICROSOFT[place], place
            elif made.type:
                theirs = helper.get_attribute_value(made)
                assert is_same(ours, theirs.decode() if isinstance(theirs, bytes) else theirs), place
            else:
                assert ours in (None, (), 0, ""), place
    assert (seen > 100, known) == (True, set())


def test_exceptions_stand_for_something() -> None:
    known = {(each.name, name) for each in SCHEMAS for name in each.attributes}
    assert known >= OTHERWISE.keys() | REQUIRED_OTHERWISE
    assert len(SCHEMAS) > 500


def test_clip_of_opset_6_bounds_infinities(tmp_path: Path) -> None:
    x = np.array([-np.inf, -3e38, 0, 3e38, np.inf], np.float32)
    model = node_model("Clip", [x], [TensorProto.FLOAT], versions={"": 6})
    (want,) = theirs(model, {"x0": x})
    path = tmp_path / "clip.onnx"
    onnx.save(model, path)
    for engine in ("reference", "native"):
        (found,) = load(path, engine=engine)(x).values()
        np.testing.assert_array_equal(found, want)
    assert np.isfinite(want).all()
