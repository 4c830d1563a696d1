"""The interface of `onnx.backend.base.Backend`, for ONNX's test suite and tools that use it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smelt.dtype import Array
from smelt.model import LoadedModel, load


class PreparedModel:
    """The result of `Backend.prepare`: `run(inputs)` takes a list, a mapping or one array."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        if isinstance(inputs, Mapping):
            return tuple(self.model.run(inputs).values())
        given = inputs if isinstance(inputs, list | tuple) else [inputs]
        return tuple(self.model(*given).values())


class Backend:
    """ONNX's backend class on smelt."""

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
