"""Bundles (`FILE.smelt`) on the command line: their contents, a check of them, and inputs to run them with.

A file → records for JSON and text. `smelt inspect`, `show`, `check` and `bench` call it. Commands that need the
original model refuse a bundle (`smelt.model.check_file`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smelt.buffer import as_array, bytes_text
from smelt.bundle.stored import StoredModel, StoredProgram, Variant
from smelt.bundle.write import source_record
from smelt.cli.random_inputs import given_sizes, random_for
from smelt.cli.rounds import TOLERANCE, differences
from smelt.cli.tables import open_console, print_facts
from smelt.dtype import Array, dtype
from smelt.engine.sample import in_range
from smelt.engine.store import decompress_text, read_program, recompile
from smelt.engine_api import Port
from smelt.errors import RunError, SmeltError, UnsupportedError, error_of
from smelt.ir.assumptions import facts
from smelt.ir.core import Program, walk
from smelt.ir.cost import operations
from smelt.ir.interpret import run
from smelt.ir.text import print_program
from smelt.passes.pipeline import count_ops
from smelt.run import load as bundle
from smelt.run.load import Loaded
from smelt.size import evaluate

STAGES = ("ir", "kernels", "plan")
FEW = 2e8  # operations of a call that the reference engine runs within seconds


def is_bundle(file: Path) -> bool:
    return file.suffix.lower() == bundle.SUFFIX


# ---- inspect ----


def describe(file: Path) -> dict[str, Any]:
    """The description of a bundle, as a record."""
    record = bundle.describe(file)
    signature = record.pop("signature")
    return record | {"inputs": _ports(signature.inputs), "outputs": _ports(signature.outputs)}


def print_description(record: Mapping[str, Any]) -> None:
    facts = []
    for name, value in record.items():
        if value in (None, [], {}):
            continue
        shown = [f"{key}: {each}" for key, each in value.items()] if isinstance(value, dict) else value
        text = "\n".join(map(str, shown)) if isinstance(shown, list) else str(shown)
        facts.append((name, bytes_text(value) if name == "bytes" else text))
    print_facts(open_console(), facts)


def _ports(ports: Sequence[Port]) -> dict[str, str]:
    return {port.name: str(port.shape) for port in ports}


# ---- show ----


def show_stage(file: Path, stage: str, generic: bool, export: bool) -> dict[str, Any]:
    """A stage of compilation as far as a bundle stores it: a record and text."""
    stored = bundle.read_stored(file)
    if stage not in STAGES:
        source = stored.provenance.get("source", "MODEL")
        raise UnsupportedError(
            f"a bundle does not store the stage {stage!r}",
            expected=", ".join(STAGES),
            got=stage,
            remedy=f"smelt show {source} --stage {stage}",
        )
    programs = []
    for number, program in enumerate(stored.programs):
        for variant in program.variants:
            record: dict[str, Any] = {"head": _head(stored, number, program, variant)}
            if stage == "ir":
                record["text"] = _text(variant, generic, export)
            elif stage == "kernels":
                record["kernels"] = [
                    {"kind": use.kind, "count": use.count, "ops": list(use.ops)} for use in program.kernels
                ]
            else:
                record |= _plan(program, variant)
            programs.append(record)
    return {"provenance": {**stored.provenance, **stored.programs[0].provenance}, "programs": programs}


def print_stage(record: Mapping[str, Any]) -> None:
    for name, value in record["provenance"].items():
        print(f"// {name}: {value}")
    for program in record["programs"]:
        print(f"// {program['head']}")
        if "text" in program:
            print(program["text"])
        elif "kernels" in program:
            _print_kernels(program["kernels"])
        else:
            _print_plan(program)


def _head(stored: StoredModel, number: int, program: StoredProgram, variant: Variant) -> str:
    rows, columns, lanes = variant.tile
    made_for = [f"{name}={value.tolist()}" for name, value in program.values.items()]
    made_for += [f"{name} of shape {list(shape)}" for name, shape in program.shapes.items()]
    which = f"program {number + 1} of {len(stored.programs)}" if len(stored.programs) > 1 else "the lowered program"
    targets = ", ".join(code.target for code in variant.codes)
    layout = f"tiles of {rows} by {columns}, {lanes} lanes"
    return ", ".join([f"{which} of {stored.name}", *made_for, layout, f"code for {targets}"])


def _text(variant: Variant, generic: bool, export: bool) -> str:
    if generic or export:
        return print_program(read_program(variant.text()), generic=generic, export=export)
    return decompress_text(variant.text())


def _plan(program: StoredProgram, variant: Variant) -> dict[str, Any]:
    entry, bound = variant.main, variant.bound
    count = len(entry.arguments) - len(program.signature.inputs)
    arguments = [
        {
            "name": name,
            "shape": str(shape),
            "bound": i < count,
            "bytes": bound[i].nbytes if bound is not None and i < count else None,
            "donated": i in entry.donated,
        }
        for i, (name, shape) in enumerate(zip(entry.names, entry.arguments, strict=True))
    ]
    return {
        "arguments": arguments,
        "results": [str(shape) for shape in entry.results],
        "symbols": list(entry.symbols),
        "checks": [f"{check.expected}: {check.why}" for check in entry.sizes] + [check.message for check in entry.data],
        "constant_bytes": sum(array.nbytes for array in variant.constants),
        "launches": sum(use.count for use in program.kernels),
        "codes": [
            {
                "target": code.target,
                "machine": code.machine,
                "features": list(code.features),
                "bytes": len(code.library()),
            }
            for code in variant.codes
        ],
    }


def _print_kernels(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        print(f"{row['count']:5} × {row['kind']:<14} {', '.join(op.partition('.')[2] for op in row['ops'])}")


def _print_plan(plan: Mapping[str, Any]) -> None:
    for i, each in enumerate(plan["arguments"]):
        kind = "bound" if each["bound"] else "donated" if each["donated"] else "input"
        size = "" if each["bytes"] is None else bytes_text(each["bytes"])
        print(f"  %{i:<4} {kind:<8} {size:>10}  {each['shape']}  {each['name']}")
    for i, shape in enumerate(plan["results"]):
        print(f"  result {i}: {shape}")
    for check in plan["checks"]:
        print(f"  check {check}")
    print(f"  {plan['launches']} launches, constants of {bytes_text(plan['constant_bytes'])}")
    for code in plan["codes"]:
        needs = ", ".join(code["features"]) or "the baseline ISA"
        print(f"  {code['target']}: {bytes_text(code['bytes'])} for {code['machine']}, needs {needs}")


# ---- check ----


def check(file: Path, sizes: Sequence[str]) -> tuple[dict[str, Any], list[SmeltError]]:
    """`run_check` in a worker process: it runs the bundle's machine code, which may crash."""
    command = [sys.executable, "-P", "-m", "smelt.cli.bundle_worker", str(file), *sizes]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise RunError(f"{file}: its code crashed the process that ran it", got=name, remedy="compile the model again")
    try:
        said = json.loads(done.stdout)
        if "failed" in said:
            raise error_of(said["failed"])
        return dict(said["record"]), [error_of(each) for each in said["errors"]]
    except (ValueError, KeyError, TypeError) as error:
        got = f"{error}, exit code {done.returncode}"
        raise RunError(
            f"{file}: the process that ran its code did not answer", got=got, remedy="compile the model again"
        ) from error


def run_check(file: Path, sizes: Sequence[str]) -> tuple[dict[str, Any], list[SmeltError]]:
    """Compare every byte with its digest, verify every program, and run all code for this machine once.

    The results are compared with the reference engine's if that takes seconds, else with each other. If keys are
    configured, the signature is checked.
    """
    about = bundle.describe(file)
    codes = bundle.every_code(file, recompile)
    errors: list[SmeltError] = []
    programs = []
    for program in {id(each.program): each.program for each in codes}.values():
        own = [each for each in codes if each.program is program]
        record, wrong = _try_codes(file, program, own, sizes)
        programs.append(record)
        errors += wrong
    record = {
        "model": str(file),
        "ok": not errors,
        "bytes": about["bytes"],
        "signed": about["signed"],
        "targets": about["targets"],
        "programs": programs,
        "errors": [error.record() for error in errors],
    }
    return record, errors


def _try_codes(
    file: Path, program: StoredProgram, codes: Sequence[Loaded], sizes: Sequence[str]
) -> tuple[dict[str, Any], list[SmeltError]]:
    text = read_program(codes[0].variant.text())
    record: dict[str, Any] = {"ops": count_ops(text), "assumed": facts(text)}
    rows = [{"target": each.code.target, "absent": each.absent or None} for each in codes]
    record["codes"] = rows
    if program.signature.weights and codes[0].variant.bound is None:
        return record | {"compared": None, "why": "its weights are bound later"}, []
    inputs = _random(text, program, sizes)
    outputs = _reference_results(text, program, codes[0].variant, inputs, sizes)
    for each in codes:
        if each.executable is not None:
            outputs[each.code.target] = [_wide(as_array(result)) for result in each.executable(*inputs.values())]
    if any(op.name == "stablehlo.rng" for func in text.funcs.values() for op in walk(func.body)):
        return record | {"compared": None, "why": "its results are random"}, []
    errors: list[SmeltError] = [
        RunError(
            f"the code for {each.engines[1]} gives other results than {each.engines[0]}",
            expected=f"at most {TOLERANCE['f32']:g} of an output's scale apart",
            got=f"{each.relative:.3g} {each.what}".strip(),
            where=file,
            remedy="compile the model again",
        )
        for each in differences(outputs, TOLERANCE["f32"])
        if not each.agree
    ]
    return record | {"compared": list(outputs)}, errors


def _reference_results(
    text: Program, program: StoredProgram, variant: Variant, inputs: Mapping[str, Array], sizes: Sequence[str]
) -> dict[str, list[Array]]:
    """The reference engine's results of the stored program; None if a call has too many operations."""
    if evaluate(operations(text), given_sizes(program.signature, sizes, text)) > FEW:
        return {}
    return {"reference": [_wide(array) for array in run(text, [*(variant.bound or ()), *inputs.values()])]}


def _wide(array: Array) -> Array:
    return array if array.dtype.kind in "biufc" else array.astype(dtype(array.dtype).wide)


def print_check(record: Mapping[str, Any]) -> None:
    for program in record["programs"]:
        for fact in program["assumed"]:
            print(f"assumed (checked at run time): {fact}")
        for code in program["codes"]:
            if code["absent"]:
                print(f"the code for {code['target']} cannot run here: {code['absent']}")
    if not record["ok"]:
        return
    seal = f"signed by {record['signed']}" if record["signed"] else "not signed"
    ops = sum(program["ops"] for program in record["programs"])
    print(f"{record['model']}: {bytes_text(record['bytes'])}, every digest is right, {seal}")
    count = len(record["programs"])
    print(f"{count} program{'s' if count != 1 else ''}, {ops} ops: every constraint holds")
    for program in record["programs"]:
        same = program["compared"]
        if same is None:
            print(f"results were not compared: {program['why']}")
        elif len(same) > 1:
            print(f"{', '.join(same[1:])}: the same results as {same[0]}")


# ---- inputs ----


def random_inputs(file: Path, sizes: Sequence[str], seed: int = 0) -> dict[str, Array]:
    """Random inputs of a bundle by name; compile-time inputs have the values of its first program."""
    stored = bundle.read_stored(file)
    program = stored.programs[0]
    made = _random(read_program(program.variants[0].text()), program, sizes, seed)
    given = {**made, **program.values}
    return {port.name: given[port.name] for port in stored.signature.inputs}


def _random(text: Program, program: StoredProgram, sizes: Sequence[str], seed: int = 0) -> dict[str, Array]:
    return in_range(text.main, random_for(program.signature, sizes, seed, text), seed)


def check_original(file: Path, original: Path | None, against: Sequence[str]) -> None:
    """Check that `--original` is the file that a bundle was compiled from: peers read that file."""
    source = bundle.read_stored(file).provenance
    if original is None:
        if against:
            raise UnsupportedError(
                "a bundle runs on smelt only; peers need the model that it was compiled from",
                got=", ".join(against),
                remedy=f"--original {source.get('source', 'MODEL')}",
            )
        return
    found = source_record(original)
    if source.get("source_blake2b", found["source_blake2b"]) != found["source_blake2b"]:
        raise SmeltError(
            f"{file.name} was not compiled from {original}",
            expected=f"{source.get('source', 'a file')} with the digest {source['source_blake2b']}",
            got=found["source_blake2b"],
            remedy=f"smelt compile {original} -o {file.name}, or --original with the model that it was compiled from",
        )
