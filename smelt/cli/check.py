"""`smelt check`: verify a model without running it, for all sizes at once, and say what it takes for granted.

A model that is another program for other values or sizes of its inputs is verified for given ones or samples, and says
which.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from smelt.cli.preflight import looked_at, what_it_needs
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.verify import verify, verify_all
from smelt.model import read
from smelt.passes.pipeline import count_ops
from smelt.read.onnx.sample import Preflight
from smelt.read.onnx.survey import UnknownInputError
from smelt.weights import Weights


def check(file: Path, sizes: list[str], static: list[str], as_json: bool) -> None:
    found = looked_at(file, sizes, static)
    needs: dict[str, Any] = {"static": {}, "fixed_sizes": None} if found is None else what_it_needs(found)
    program, weights, errors = _read(file) if found is None else _parts(found)
    if program is not None and not errors:
        errors = verify_all(program)
    assumed = verify(program) if program is not None and not errors else []
    record = {
        "model": str(file),
        "ok": not errors,
        "functions": len(program.funcs) if program is not None else 0,
        "ops": count_ops(program) if program is not None else 0,
        "weights": len(weights),
        "errors": [error.record() for error in errors],
        "assumed": assumed,
        **needs,
    }
    if as_json:
        print(json.dumps(record))
    else:
        for error in errors:
            print(error)
        _show(record)
    if errors:
        sys.exit(1)


def _read(file: Path) -> tuple[Program | None, Weights, list[SmeltError]]:
    program, weights = read(file)
    return program, weights, []


def _parts(found: Preflight) -> tuple[Program | None, Weights, list[SmeltError]]:
    """What was read, and why it is not everything: what follows from something else is not named."""
    survey = found.survey
    errors = [each.error for each in (*survey.problems, *survey.unjudged)]
    return survey.program, survey.weights, [each for each in errors if not isinstance(each, UnknownInputError)]


def _show(record: dict[str, Any]) -> None:
    limits = []
    for name, need in record["static"].items():
        limits.append(f"{name}={need['value']}")
        print(f"needs the value of {name!r} ({need['source']}: {need['value']}): {need['reason']}")
    fixed = record["fixed_sizes"]
    if fixed:
        shown = [f"{name}={value}" for name, value in fixed["sizes"].items()]
        limits += shown
        print(f"needs fixed sizes ({fixed['source']}: {', '.join(shown)}): {fixed['reason']}")
    for fact in record["assumed"]:
        print(f"assumed (checked at run time): {fact}")
    if record["ok"]:
        scope = f" for {', '.join(limits)}" if limits else ""
        print(f"{record['model']}: {record['functions']} functions, {record['ops']} ops: every constraint holds{scope}")
