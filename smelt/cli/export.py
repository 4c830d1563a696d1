"""`smelt export`: a model as StableHLO text (or portable bytecode) with its weights in a safetensors file beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from smelt.cli.outputs import check_output
from smelt.cli.preflight import read_given
from smelt.engine.signature import signature_of
from smelt.errors import FileError, SmeltError
from smelt.ir.text import print_program
from smelt.ir.text.bytecode import write_bytecode
from smelt.read import safetensors


def export(file: Path, output: Path, plain: bool, as_json: bool, static: Sequence[str] = ()) -> None:
    if output.suffix not in (".mlir", ".mlirbc"):
        raise SmeltError(
            "unknown output format",
            expected=".mlir (text) or .mlirbc (bytecode)",
            got=output.name,
            remedy=f"-o {output.with_suffix('.mlir')}",
        )
    check_output(output)
    program, weights = read_given(file, static)
    names = [port.name for port in signature_of(program.main).weights]
    try:
        if output.suffix == ".mlir":
            output.write_text(print_program(program, export=plain))
        else:
            output.write_bytes(write_bytecode(program))
    except OSError as error:
        raise FileError(f"cannot write {output}", got=error, remedy="-o FILE in another folder") from error
    beside = output.with_suffix(".safetensors")
    if names:
        safetensors.write(beside, {name: weights[name].numpy() for name in names}, {"source": file.name})
    if as_json:
        print(json.dumps({"model": str(file), "program": str(output), "weights": str(beside) if names else None}))
    else:
        print(f"{output}: {len(program.main.body.ops)} ops" + (f"; {beside}: {len(names)} weights" if names else ""))
