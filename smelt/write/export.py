"""`export`: a model file, a program, or a model in Python → ONNX, StableHLO or the weights alone, by the file's suffix.

`smelt export` calls `export_program`; `smelt.export` is `export`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.dtype import Array
from smelt.engine.signature import signature_of
from smelt.errors import SmeltError, UnsupportedError
from smelt.files import write_atomically
from smelt.ir.core import Program
from smelt.ir.text import print_program
from smelt.ir.text.bytecode import write_bytecode
from smelt.model import read
from smelt.passes.lift_weights import lift_weights
from smelt.read import safetensors
from smelt.structure import leaves
from smelt.tensor.core import Tensor
from smelt.tensor.jit.compile import compile
from smelt.tensor.record import is_known
from smelt.weights import Weights
from smelt.write import onnx

SUFFIXES = {"onnx": ".onnx", "mlir": ".mlir", "mlirbc": ".mlirbc", "safetensors": ".safetensors"}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: the program's file and how many ops or nodes it has, and the file of the weights."""

    program: Path | None
    ops: int
    weights: Path | None
    tensors: int


def export(
    model: str | Path | Program | Callable[..., Any],
    path: str | Path,
    *args: Any,
    weights: Mapping[str, Any] | None = None,
    plain: bool = False,
    **keywords: Any,
) -> Exported:
    """Write a model as ONNX (`.onnx`), StableHLO (`.mlir`, `.mlirbc`) or its weights alone (`.safetensors`).

    A model is a file, a program with `weights`, or a function or method of a model in Python; `args` and `keywords` are
    then shapes for its arguments, as for `smelt.compile`. An op that ONNX does not have is refused, with all others.

    >>> import smelt, tempfile
    >>> def double(x: smelt.Tensor) -> smelt.Tensor:
    ...     return x + x
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(double, f"{folder}/double.onnx", "f32[b=B, d=3]").ops
    1
    """
    if isinstance(model, str | Path):
        program, found = read(model)
    elif isinstance(model, Program):
        program, found = model, {}  # type: ignore[assignment]
    else:
        program, found = _trace(model, args, keywords)  # type: ignore[assignment]
    return export_program(program, weights if weights is not None else found, path, plain=plain)


def _trace(function: Callable[..., Any], args: Any, keywords: Any) -> tuple[Program, dict[str, Array]]:
    """The program of a function, and the data of the model whose method it is."""
    with compile(function, *args, engine="reference", **keywords) as executable:
        program = executable.program
    owner = getattr(function, "__self__", function)
    held = dict(leaves(owner, lambda value: isinstance(value, Tensor)))
    names = {port.name for port in signature_of(program.main).weights}
    return program, {name: value.numpy() for name, value in held.items() if name in names and is_known(value.value)}


def export_program(
    program: Program, weights: Mapping[str, Any], path: str | Path, *, plain: bool = False, source: str = "smelt"
) -> Exported:
    """The same for a program. The weights of StableHLO go to a safetensors file beside it."""
    path = Path(path)
    if path.suffix == ".onnx" and isinstance(weights, Weights):
        program = lift_weights(program, weights)  # small weights keep their names, too
    names = [port.name for port in signature_of(program.main).weights]
    _check(path, names, weights)
    match path.suffix:
        case ".onnx":
            built = onnx.write(program, weights, path)
            beside = path.with_name(f"{path.name}.data")
            return Exported(path, len(built.nodes), beside if built.is_large else None, len(built.weights))
        case ".mlir":
            write_atomically(path, [print_program(program, export=plain).encode()])
        case ".mlirbc":
            write_atomically(path, [write_bytecode(program)])
    beside = path.with_suffix(".safetensors")
    if names:
        safetensors.write(beside, {name: _array(weights[name]) for name in names}, {"source": source})
    ops = 0 if path == beside else len(program.main.body.ops)
    return Exported(None if path == beside else path, ops, beside if names else None, len(names))


def _check(path: Path, names: list[str], weights: Mapping[str, Any]) -> None:
    if path.suffix not in SUFFIXES.values():
        raise SmeltError(
            "unknown output format",
            expected=".onnx, .mlir (text), .mlirbc (bytecode) or .safetensors (weights)",
            got=path.name,
            remedy=f"-o {path.with_suffix('.onnx')}",
        )
    missing = [name for name in names if name not in weights]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise UnsupportedError(
            f"the model has no data for {', '.join(missing[:4])}{more}",
            expected="a model with weights",
            remedy="smelt.export(..., weights={name: array})",
        )


def _array(value: Any) -> Array:
    array: Array = value.numpy() if hasattr(value, "numpy") else value
    return array
