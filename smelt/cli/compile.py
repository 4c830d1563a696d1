"""`smelt compile`: a model file → a bundle, with code for one or several kinds of processors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from smelt.buffer import bytes_text
from smelt.bundle.load import SUFFIX
from smelt.bundle.write import source_record, write
from smelt.cli.preflight import said_values
from smelt.cli.sizes import said_sizes
from smelt.engine.store import store_weights
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.model import read
from smelt.passes.quantise import with_precision
from smelt.passes.specialise import specialise
from smelt.read import onnx
from smelt.read.onnx import StaticError
from smelt.read.onnx.declared import declared
from smelt.weights import Weights


def compile_model(
    file: Path,
    output: Path,
    targets: Sequence[str],
    sizes: Sequence[str],
    static: Sequence[str],
    private_key: Path | None,
    as_json: bool,
    precision: str = "f32",
) -> None:
    if output.suffix.lower() != SUFFIX:
        raise SmeltError("a bundle needs its ending", expected=f"FILE{SUFFIX}", got=output)
    start = time.perf_counter()
    program, weights = _read(file, said_values(file, static), said_sizes(sizes))
    stored = store_weights(with_precision(program, precision), weights, targets)
    provenance = source_record(file) | {f"static {item.partition('=')[0]}": item.partition("=")[2] for item in static}
    provenance |= {"precision": precision} if precision != "f32" else {}
    stored = stored.replace(name=file.stem, metadata=dict(weights.metadata), provenance=provenance)
    total = write(output, stored, private_key)
    codes = [code.target for variant in stored.programs[0].variants for code in variant.codes]
    record = {
        "bundle": str(output),
        "bytes": total,
        "targets": codes,
        "weights": weights.nbytes,
        "seconds": round(time.perf_counter() - start, 3),
        "signed": private_key is not None,
    }
    if as_json:
        print(json.dumps(record))
        return
    Console(highlight=False, soft_wrap=True).print(
        f"{escape(str(output))}: {bytes_text(total)}, code for {', '.join(codes)}, in {record['seconds']} s"
    )


def _read(file: Path, static: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Program, Weights]:
    """The program with the values and sizes that were said; what else shapes it has to be said too."""
    try:
        if file.suffix.lower() == ".onnx" and sizes:
            return onnx.read(file, static, _shapes(file, static, sizes))
        program, weights = read(file, static)
    except StaticError as error:
        needed = [f"--static {name}=…" for name in error.inputs if name not in static]
        error.remedy = " ".join([*needed, *(["--size NAME=… for every open size"] if error.sizes else [])])
        raise
    return specialise(program, sizes) if sizes else program, weights


def _shapes(file: Path, static: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs whose sizes are all known now."""
    ports = [port for port in declared(file).inputs if port.name not in static]
    known = {name for port in ports for name in port.shape.symbols}
    unknown = [name for name in sizes if name not in known]
    if unknown:
        expected = ", ".join(sorted(known)) or "none: every size is fixed"
        raise SmeltError("--size is not understood", expected=expected, got=", ".join(unknown))
    return {port.name: port.shape.numbers(sizes) for port in ports if port.shape.symbols <= sizes.keys()}
