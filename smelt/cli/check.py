"""`smelt check`: verify models and Python code without running them, for all sizes at once.

For model files the assumptions are listed. A model with compile-time inputs is verified for given values or samples,
and the report says which. Bundles go to `bundle`, Python files and folders to `check_entries`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from smelt.cli import bundle, check_report
from smelt.cli.check_entries import check_module
from smelt.cli.check_modules import Importer, python_files
from smelt.cli.check_report import Report
from smelt.cli.fold import ShortNames, fold_list
from smelt.cli.preflight import list_needs, parse_static, read_with_samples
from smelt.engine.signature import signature_of
from smelt.errors import SmeltError
from smelt.ir.assumptions import facts
from smelt.ir.core import Program
from smelt.ir.verify import verify_all
from smelt.model import read
from smelt.passes.pipeline import count_ops
from smelt.read.onnx.declared import declared_facts
from smelt.read.onnx.sample import Preflight
from smelt.read.onnx.survey import UnknownInputError
from smelt.weights import Weights

SHOWN = 3  # facts without --verbose


def check(
    paths: list[Path],
    sizes: list[str],
    static: list[str],
    as_json: bool,
    form: str,
    strict: bool,
    verbose: bool = False,
) -> None:
    """Check all paths; exit code 1 if there are mistakes."""
    code = [path for path in paths if path.is_dir() or path.suffix.lower() == ".py"]
    models = [path for path in paths if path not in code]
    if not code and len(models) == 1:  # one model: one record, errors go to the caller
        _finish([_check_model(models[0], sizes, static)], None, as_json, form, verbose)
    report = _check_python(code, strict) if code else None
    records = []
    for path in models:
        try:
            records.append(_check_model(path, sizes, static))
        except SmeltError as error:
            records.append(({"model": str(path), "ok": False, "errors": [error.record()]}, [error]))
    _finish(records, report, as_json, form, verbose)


def _check_python(paths: list[Path], strict: bool) -> Report:
    report = Report(strict=strict)
    folders = [path for path in paths if path.is_dir()]
    known: set[Path] = set()
    with Importer(folders) as importer:
        for file in (file for path in paths for file in python_files(path)):
            if file.resolve() not in known:
                known.add(file.resolve())
                report.add(file, check_module(importer.module(file)))
    return report


Judged: TypeAlias = tuple[dict[str, Any], list[SmeltError]]


def _finish(models: list[Judged], report: Report | None, as_json: bool, form: str, verbose: bool) -> NoReturn:
    """Print the report and exit."""
    ok = all(record["ok"] for record, _ in models) and (report is None or report.ok)
    if as_json:
        if report is None and len(models) == 1:
            print(json.dumps(models[0][0]))
        else:
            python = check_report.record(report or Report())
            print(json.dumps({**python, "ok": ok, "models": [record for record, _ in models]}))
    else:
        for record, errors in models:
            for error in errors:
                print(error)
            if "targets" in record:
                bundle.print_check(record)
            elif "ops" in record:
                _show(record, verbose)
        if report is not None:
            print(check_report.format_report(report, form))
    sys.exit(0 if ok else 1)


def _check_model(file: Path, sizes: list[str], static: list[str]) -> Judged:
    if bundle.is_bundle(file):
        parse_static(file, static)  # refuses them
        return bundle.check(file, sizes)
    found = read_with_samples(file, sizes, static)
    needs: dict[str, Any] = {"static": {}, "fixed_sizes": None} if found is None else list_needs(found)
    program, weights, errors = _read(file) if found is None else _survey_parts(found)
    if program is not None and not errors:
        errors = verify_all(program)
    assumed = facts(program) if program is not None and not errors else []
    declared = declared_facts(file, program) if program is not None and file.suffix.lower() == ".onnx" else []
    record = {
        "model": str(file),
        "ok": not errors,
        "functions": len(program.funcs) if program is not None else 0,
        "ops": count_ops(program) if program is not None else 0,
        "weights": len(weights),
        "errors": [error.record() for error in errors],
        "assumed": assumed,
        "declared": declared,
        "symbols": _symbols(program),
        **needs,
    }
    return record, errors


def _symbols(program: Program | None) -> list[str]:
    ports = signature_of(program.main).inputs if program is not None else ()
    return sorted({name for port in ports for name in port.shape.symbols})


def _read(file: Path) -> tuple[Program | None, Weights, list[SmeltError]]:
    program, weights = read(file)
    return program, weights, []


def _survey_parts(found: Preflight) -> tuple[Program | None, Weights, list[SmeltError]]:
    """The findings of an ONNX file, without those that follow from others."""
    survey = found.survey
    errors = [each.error for each in (*survey.problems, *survey.unjudged)]
    return survey.program, survey.weights, [each for each in errors if not isinstance(each, UnknownInputError)]


def _show(record: dict[str, Any], verbose: bool) -> None:
    limits = []
    short = ShortNames(() if verbose else record["symbols"])
    for name, need in record["static"].items():
        limits.append(f"{name}={need['value']}")
        print(f"needs the value of {name!r} ({need['source']}: {need['value']}): {need['reason']}")
    fixed = record["fixed_sizes"]
    if fixed:
        shown = [f"{name}={value}" for name, value in fixed["sizes"].items()]
        limits += shown
        print(f"needs fixed sizes ({fixed['source']}: {', '.join(shown)}): {fixed['reason']}")
    for fact in fold_list(record["assumed"], SHOWN, verbose):
        print(f"assumed (checked at run time): {short.shorten(fact)}")
    for fact in fold_list(record["declared"], SHOWN, verbose):
        print(f"declared by the file (not checked): {short.shorten(fact)}")
    if record["assumed"] or record["declared"]:
        print(*short.legend(), sep="\n", end="\n" if short.names else "")
    if record["ok"]:
        scope = f" for {', '.join(limits)}" if limits else ""
        count = len(record["assumed"])
        under = f" under {count} assumption{'s' if count > 1 else ''}" if count else ""
        count = record["functions"]
        what = f"{count} function{'s' if count != 1 else ''}, {record['ops']} ops: every constraint holds{under}{scope}"
        print(f"{record['model']}: {what}")
