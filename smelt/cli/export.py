"""`smelt export`: a model as ONNX, as StableHLO (text or portable bytecode), or its weights alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from smelt.cli.outputs import check_output
from smelt.cli.preflight import read_given
from smelt.errors import SmeltError
from smelt.write.export import SUFFIXES, export_program


def export(
    file: Path, output: Path, plain: bool, as_json: bool, static: Sequence[str] = (), to: str | None = None
) -> None:
    if to is not None and to not in SUFFIXES:
        raise SmeltError("unknown output format", expected=", ".join(SUFFIXES), got=to, remedy="--to onnx")
    if to is not None and output.suffix != SUFFIXES[to]:
        raise SmeltError(
            f"{output.name} does not end like a file of {to}",
            expected=SUFFIXES[to],
            got=output.suffix,
            remedy=f"-o {output.with_suffix(SUFFIXES[to])}",
        )
    if output.suffix not in SUFFIXES.values():
        raise SmeltError(
            "unknown output format",
            expected=", ".join(SUFFIXES.values()),
            got=output.name,
            remedy=f"-o {output.with_suffix('.mlir')}",
        )
    check_output(output)
    program, weights = read_given(file, static)
    made = export_program(program, weights, output, plain=plain, source=file.name)
    if as_json:
        places = {"program": made.program, "weights": made.weights}
        print(json.dumps({"model": str(file), **{key: str(at) if at else None for key, at in places.items()}}))
        return
    parts = [f"{made.program}: {made.ops} {'nodes' if output.suffix == '.onnx' else 'ops'}"] if made.program else []
    if made.weights is not None:
        parts.append(f"{made.weights}: {made.tensors} weights")
    print("; ".join(parts))
