"""From a path to something that can be called: `load` reads a model, compiles it and binds its weights.

The one place where files meet engines; `smelt.load` and the command line call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smelt.dtype import Array
from smelt.engine import ENGINES, platform
from smelt.engine_api import Executable, Signature
from smelt.errors import FileError, RunError, UnsupportedError
from smelt.ir.core import Program
from smelt.read import onnx, stablehlo
from smelt.weights import Weights

FORMATS: dict[str, Callable[[Path], tuple[Program, Weights]]] = {
    ".onnx": onnx.read,
    ".mlir": stablehlo.read,
    ".stablehlo": stablehlo.read,
    ".mlirbc": stablehlo.read,
}


def read(path: str | Path) -> tuple[Program, Weights]:
    """A model file as a program and its weights; nothing is compiled and no weight is loaded."""
    path = Path(path)
    if not path.is_file():
        raise FileError("no such file", expected="a path to a model", got=path)
    reader = FORMATS.get(path.suffix.lower())
    if reader is None:
        raise UnsupportedError(
            "unknown model format", expected=", ".join(FORMATS), got=path.suffix or path.name, where=path
        )
    return reader(path)


def load(path: str | Path, *, device: str = "auto", engine: str = "auto") -> Model:
    """Read, compile and bind a model: `smelt.load("model.onnx")(pixels=x)["probabilities"]`."""
    program, weights = read(path)
    return Model.of(program, weights, device=device, engine=engine, name=Path(path).stem)


class Model:
    """A model that can be called by its own input names, NumPy in and NumPy out."""

    def __init__(self, name: str, engine: str, executable: Executable, metadata: Mapping[str, str]) -> None:
        self.name = name
        self.engine = engine
        self.metadata = metadata
        self._executable = executable

    @staticmethod
    def of(
        program: Program, weights: Weights, *, device: str = "auto", engine: str = "auto", name: str = "model"
    ) -> Model:
        """Compile a program and bind its weights. `auto` takes the first engine that can run the program."""
        candidates = list(ENGINES) if engine == "auto" else [platform(device, engine).engine]
        refused: UnsupportedError | None = None
        for candidate in candidates:
            if candidate.missing() is not None and len(candidates) > 1:
                continue
            try:
                executable = candidate.compile(program)
            except UnsupportedError as error:
                refused = refused or error
                if candidate is candidates[-1]:
                    raise
                continue
            return Model(name, candidate.name, executable.prepare(weights), weights.metadata)
        raise refused or UnsupportedError("no engine can run here")

    @property
    def signature(self) -> Signature:
        return self._executable.signature

    def __call__(self, *positional: Any, **named: Any) -> dict[str, Array]:
        """Run it. Inputs go by position or by name; outputs come back by name."""
        ports = self.signature.inputs
        given: dict[str, Any] = dict(zip([port.name for port in ports], positional, strict=False))
        if len(positional) > len(ports) or set(given) & set(named):
            raise RunError(f"{self.name}: inputs given twice, or too many", expected=[port.name for port in ports])
        given |= named
        missing = [port.name for port in ports if port.name not in given]
        unknown = sorted(set(given) - {port.name for port in ports})
        if missing or unknown:
            raise RunError(
                f"{self.name}: the inputs do not fit",
                expected={port.name: port.shape for port in ports},
                got=", ".join([*(f"no {name}" for name in missing), *(f"unknown {name}" for name in unknown)]),
            )
        outputs = self._executable(*(given[port.name] for port in ports))
        return {port.name: array for port, array in zip(self.signature.outputs, outputs, strict=True)}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The same for inputs whose names are no Python names."""
        return self(**inputs)

    def close(self) -> None:
        self._executable.close()

    def __repr__(self) -> str:
        ports = ", ".join(f"{port.name}: {port.shape}" for port in self.signature.inputs)
        return f"<{self.name}({ports}) on {self.engine}>"
