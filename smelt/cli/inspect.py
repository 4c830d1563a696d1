"""`smelt inspect`: describe a model and list everything in it that is not supported, without compiling it.

Compile-time inputs that were not given get sample values, which are printed. Exit code 1 if a node cannot be read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from smelt.buffer import bytes_text
from smelt.cli import bundle
from smelt.cli.fold import ShortNames, fold_list, fold_text
from smelt.cli.generate import show_language_model
from smelt.cli.preflight import list_needs, read_with_samples
from smelt.cli.random_inputs import given_sizes
from smelt.cli.tables import Column, open_console, print_facts, print_table
from smelt.dim import Size, evaluate, symbols
from smelt.engine.native import NativeEngine
from smelt.engine.signature import signature_of
from smelt.engine_api import Port
from smelt.errors import UnsupportedError
from smelt.ir.assumptions import facts
from smelt.ir.composites import COMPOSITES
from smelt.ir.core import Program
from smelt.ir.cost import memory, operations
from smelt.llm.checkpoint import is_checkpoint
from smelt.llm.report import describe as describe_language_model
from smelt.model import read
from smelt.passes import pipeline
from smelt.passes.recognise import recognise
from smelt.read.onnx.declared import type_text
from smelt.read.onnx.sample import Preflight
from smelt.read.onnx.survey import histogram
from smelt.weights import Weights

COUNTED = 6  # kinds of nodes and ops, without --verbose
ASSUMED = 3  # assumptions


def inspect(file: Path, sizes: list[str], static: list[str], as_json: bool, verbose: bool = False) -> None:
    if bundle.is_bundle(file):
        said = bundle.describe(file)
        if as_json:
            print(json.dumps(said))
        else:
            bundle.print_description(said)
        return
    if is_checkpoint(file):
        record = describe_language_model(file)
        print(json.dumps(record)) if as_json else show_language_model(record)
        sys.exit(1 if record["unsupported"] else 0)
    found = read_with_samples(file, sizes, static)
    if found is None:
        program, weights = read(file)
        chosen = given_sizes(signature_of(program.main), sizes, program)
        record = {"model": str(file), **describe(program, weights, chosen), "assumed": facts(program)}
    else:
        record = {"model": str(file), **describe_file(found, sizes)}
    if as_json:
        print(json.dumps(record))
    else:
        show(record, verbose)
    if record.get("unsupported"):
        sys.exit(1)


def describe(program: Program, weights: Weights, sizes: dict[str, int]) -> dict[str, Any]:
    """The description of a program before compilation, as a JSON record."""
    signature = signature_of(program.main)
    simple, _ = pipeline.run(program, until="simplify")
    marked = recognise(pipeline.run(program, composites=COMPOSITES, until="simplify")[0])
    work = operations(simple)
    return {
        "inputs": _ports(signature.inputs),
        "outputs": _ports(signature.outputs),
        "sizes": sizes,
        "ops": len(program.main.body.ops),
        "histogram": dict(Counter(op.name.partition(".")[2] for op in program.main.body.ops).most_common()),
        "composites": dict(
            Counter(op.attrs["name"] for op in marked.main.body.ops if op.name == "stablehlo.composite").most_common()
        ),
        "parameters": sum(evaluate(port.shape.count, {}) for port in signature.weights),
        "weight_bytes": weights.nbytes,
        "peak_bytes": memory(simple.main, sizes).peak,
        "native": _native(program, sizes),
        "operations": str(work),
        "gflop": _number(work, sizes) / 1e9,
        "metadata": dict(weights.metadata),
    }


def _native(program: Program, sizes: dict[str, int]) -> dict[str, Any]:
    """The memory that the native engine will need with weights bound, or why it does not support the program."""
    try:
        footprint = NativeEngine().footprint(program)
    except UnsupportedError as error:
        return {"unsupported": str(error)}
    return {"peak_bytes": footprint.peak(sizes), "peak": footprint.text(), "parts": footprint.parts(sizes)}


def describe_file(found: Preflight, sizes: Sequence[str] = ()) -> dict[str, Any]:
    """The description of an ONNX file: also its metadata and the nodes that could not be read."""
    survey = found.survey
    message, program, weights = survey.message, survey.program, survey.weights
    whole = not (survey.problems or survey.unjudged)
    chosen = found.sizes
    if program is not None and whole and not found.by_size:
        chosen = given_sizes(signature_of(program.main), sizes, program)
    record = describe(program, weights, chosen) if program is not None else {}
    initialised = {tensor.name for tensor in message.graph.initializer}
    inputs = {port.name: type_text(port.type) for port in message.graph.input if port.name not in initialised}
    outputs = {port.name: type_text(port.type) for port in message.graph.output}
    inferred = record.get("outputs", {}) if whole and not found.by_size else {}
    return {
        "format": f"ONNX, IR version {message.ir_version}",
        "graph": message.graph.name,
        "producer": f"{message.producer_name} {message.producer_version}".strip(),
        "opsets": {each.domain or "ai.onnx": each.version for each in message.opset_import},
        "nodes": histogram(message),
        **record,
        "inputs": inputs | {name: str(shape) for name, shape in found.open.inputs.items()},
        "outputs": outputs | inferred if len(outputs) == len(outputs | inferred) else inferred,
        "sizes": chosen,
        "parameters": sum(evaluate(weights.shape(name).count, {}) for name in weights),
        "weight_bytes": weights.nbytes,
        "metadata": {entry.key: entry.value for entry in message.metadata_props},
        "whole": whole,
        "assumed": facts(program) if program is not None and whole else [],
        **list_needs(found),
        "unsupported": [each.record() for each in survey.problems],
        "unjudged": [each.record() for each in survey.unjudged],
    }


def show(record: Mapping[str, Any], verbose: bool) -> None:
    console = open_console()
    short = ShortNames(() if verbose else record["sizes"])
    size = f"{record.get('ops', 0)} ops, {record['parameters']:,} parameters"
    console.print(f"[bold]{escape(record['model'])}[/]  {size}", soft_wrap=True)
    for what in ("inputs", "outputs"):
        rows = [(name, short.shorten(kind)) for name, kind in record[what].items()]
        print_table(console, (Column(what[:-1], True), Column("type", True)), rows)
    facts = [(name, short.shorten(text)) for name, text in _facts(record, verbose)]
    print_facts(console, [*facts, *(("symbol", line) for line in short.legend())])
    if record.get("unjudged"):
        console.print(f"{len(record['unjudged'])} nodes could not be checked, because their inputs are not known:")
        for line in fold_list([_place(each) for each in record["unjudged"]], 8, verbose):
            console.print(f"  {escape(line)}", soft_wrap=True)
    if record.get("unsupported"):
        console.print(f"[bold red]{len(record['unsupported'])} unsupported[/]")
        for each in record["unsupported"]:
            details = [f"{label} {each[label]}" for label in ("expected", "got", "remedy") if label in each]
            line = "; ".join([each["message"], *details])
            console.print(f"  [bold]{escape(_place(each))}[/] {escape(line)}", soft_wrap=True)


def _facts(record: Mapping[str, Any], verbose: bool) -> list[tuple[str, str]]:
    rows = [(key, str(record[key])) for key in ("format", "graph", "producer") if record.get(key)]
    if "opsets" in record:
        rows.append(("opsets", ", ".join(f"{domain} {version}" for domain, version in record["opsets"].items())))
        rows.append(("nodes", _counts(record["nodes"], verbose)))
    for name, need in record.get("static", {}).items():
        rows.append(("static input", f"{name} = {need['value']} ({need['source']}): {need['reason']}"))
    if record.get("fixed_sizes"):
        need = record["fixed_sizes"]
        rows.append(("fixed sizes", f"{_at(record['sizes'])} ({need['source']}): {need['reason']}"))
    rows.append(("weights", bytes_text(record["weight_bytes"])))
    if "gflop" in record:
        part = "" if record.get("whole", True) else ", for the readable part"
        at = f"at {_at(record['sizes'])}{part}"
        rows.append(("largest working set", f"{bytes_text(record['peak_bytes'])} {at}"))
        native = record["native"]
        peak = f"{bytes_text(native['peak_bytes'])} {at}" if "peak_bytes" in native else native["unsupported"]
        rows.append(("native engine", peak))
        formula = f": {record['operations']}" if verbose else ""
        rows.append(("arithmetic", f"{record['gflop']:.3g} GFLOP {at}{formula}"))
        if record["composites"]:
            rows.append(("recognised", _counts(record["composites"], verbose)))
        rows.append(("ops", _counts(record["histogram"], verbose)))
    rows += [(name, fold_text(text, verbose)) for name, text in record["metadata"].items()]
    return rows + [("assumed", fact) for fact in fold_list(record["assumed"], ASSUMED, verbose)]


def _counts(counts: Mapping[str, int], verbose: bool) -> str:
    return ", ".join(fold_list([f"{count} {name}" for name, count in counts.items()], COUNTED, verbose))


def _place(record: Mapping[str, Any]) -> str:
    place = " / ".join([*record["path"], record["node"]])
    return f"{record['operator']} {place}:".lstrip()


def _ports(ports: tuple[Port, ...]) -> dict[str, str]:
    return {port.name: str(port.shape) for port in ports}


def _number(size: Size, chosen: dict[str, int]) -> int:
    return evaluate(size, dict.fromkeys(symbols(size), 1) | chosen)


def _at(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "its fixed size"
