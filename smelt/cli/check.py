"""`smelt check`: verify a model without running it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from smelt.ir.verify import verify, verify_all
from smelt.model import read
from smelt.passes.pipeline import count_ops


def check(file: Path, as_json: bool) -> None:
    program, weights = read(file)
    errors = verify_all(program)
    assumed = [] if errors else verify(program)
    if as_json:
        record = {
            "model": str(file),
            "ok": not errors,
            "functions": len(program.funcs),
            "ops": count_ops(program),
            "weights": len(weights),
            "errors": [error.record() for error in errors],
            "assumed": assumed,
        }
        print(json.dumps(record))
    else:
        for error in errors:
            print(error)
        for fact in assumed:
            print(f"assumed (checked at run time): {fact}")
        if not errors:
            print(f"{file}: {len(program.funcs)} functions, {count_ops(program)} ops: every constraint holds")
    if errors:
        sys.exit(1)
