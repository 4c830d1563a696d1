"""What the ONNX standard says about operators that have no row of their own: the functions that define them.

Called by `read.onnx.graph`, and by `survey` for the types of results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.read.onnx.file.tensors import element_number
from smelt.read.onnx.items import Item, Tensor


def definition(
    schema: Any, node: Any, version: int, inputs: list[Item | None], attributes: Mapping[str, Any]
) -> Any | None:
    """The function that stands for a node with these inputs; None if the standard has none."""
    import onnx

    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        types = [type_proto(item) for item in inputs]
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        del plain.attribute[:]
        plain.attribute.extend(each for each in attributes.values() if not _is_ignored(node, each))
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        chosen = max(versions, default=min(schema.context_dependent_function_opset_versions))
        text = schema.get_context_dependent_function_with_opset_version(
            chosen, plain.SerializeToString(), [each.SerializeToString() for each in types]
        )
        if not text:
            return None
        function.ParseFromString(text)
        return function
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        chosen = max(versions, default=min(schema.function_opset_versions))
        function.ParseFromString(schema.get_function_with_opset_version(chosen))
        return function
    return None


def _is_ignored(node: Any, attribute: Any) -> bool:
    """Whether implementations leave out what the function would do: onnxruntime and the evaluator of the standard cap
    scores of attention where the cap is positive, the function where it is not 0."""
    return bool(node.op_type == "Attention" and attribute.name == "softcap" and attribute.f <= 0)


def type_proto(item: Item | None) -> Any:
    """The type of an item as the standard writes it; nothing about what is no tensor."""
    import onnx

    from_item = onnx.TypeProto()
    if isinstance(item, Tensor):
        from_item.tensor_type.elem_type = element_number(item.element)
        for size in item.sizes:
            dim = from_item.tensor_type.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            else:
                dim.dim_param = str(size)
    return from_item
