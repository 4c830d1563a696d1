"""ONNX Runtime's session and ONNX's backend class on smelt, so that a user can change one import.

from smelt.compat import InferenceSession

session = InferenceSession("model.onnx")
outputs = session.run(None, {"image": x})
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.dtype import Array, DType
from smelt.engine_api import Port
from smelt.errors import RunError
from smelt.model import Model, load

# ONNX Runtime's spelling of element types.
_TYPES = {
    "i1": "bool",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float",
    "f64": "double",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
} | {
    f"{ours}{bits}": f"{theirs}{bits}"
    for ours, theirs in (("i", "int"), ("ui", "uint"))
    for bits in (2, 4, 8, 16, 32, 64)
}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its type as `tensor(float)`, and its sizes, open ones as text."""

    name: str
    type: str
    shape: list[int | str]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model says about itself."""

    graph_name: str
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """`onnxruntime.InferenceSession` as far as running a model goes. Options of ONNX Runtime are taken and ignored."""

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        sess_options: object = None,
        providers: object = None,
        *,
        engine: str = "auto",
    ) -> None:
        if isinstance(path_or_bytes, bytes):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                path.write_bytes(path_or_bytes)
                self._model = load(path, engine=engine)
        else:
            self._model = load(path_or_bytes, engine=engine)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None
    ) -> list[Array]:
        """The outputs of these names, in order; all of them for None."""
        outputs = self._model.run(input_feed)
        unknown = [name for name in output_names or () if name not in outputs]
        if unknown:
            raise RunError("the model has no such output", expected=", ".join(outputs), got=", ".join(unknown))
        return [outputs[name] for name in (output_names or outputs)]

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(port) for port in self._model.signature.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(port) for port in self._model.signature.outputs]

    def get_providers(self) -> list[str]:
        """The engine that runs it."""
        return [f"smelt.{self._model.engine}"]

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(self._model.name, dict(self._model.metadata))


def _node_arg(port: Port) -> NodeArg:
    element = port.shape.dtype
    name = _TYPES.get(element.name, element.name.lower()) if isinstance(element, DType) else str(element)
    return NodeArg(port.name, f"tensor({name})", [s if isinstance(s, int) else str(s) for s in port.shape.sizes])


class PreparedModel:
    """What `prepare` of an ONNX backend gives: `run(inputs)` takes a list, a mapping or one array."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        if isinstance(inputs, Mapping):
            return tuple(self.model.run(inputs).values())
        given = inputs if isinstance(inputs, list | tuple) else [inputs]
        return tuple(self.model(*given).values())


class Backend:
    """The interface of `onnx.backend.base.Backend`, for the official test suite and tools that speak it."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **_: Any) -> bool:
        return cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> PreparedModel:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            return PreparedModel(load(path, engine=options.get("engine", "auto")))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Array, ...]:
        return cls.prepare(model, device, **options).run(inputs)
