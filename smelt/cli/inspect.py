"""`smelt inspect`: what a model is and needs, without compiling or running it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smelt.cli.sizes import given_sizes
from smelt.dim import Size, evaluate, symbols
from smelt.engine.executable import signature_of
from smelt.engine_api import Port
from smelt.ir.core import Program
from smelt.ir.cost import memory, operations
from smelt.ir.verify import verify
from smelt.model import read
from smelt.passes import pipeline
from smelt.passes.recognise import recognise
from smelt.weights import Weights


def inspect(file: Path, sizes: list[str], as_json: bool) -> None:
    program, weights = read(file)
    record = describe(file, program, weights, sizes)
    if as_json:
        print(json.dumps(record))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{file}[/]  {record['ops']} ops, {record['parameters']:,} parameters")
    for what in ("inputs", "outputs"):
        table = Table(what[:-1], "type", box=None, pad_edge=False)
        for name, kind in record[what].items():
            table.add_row(escape(name), escape(kind))
        console.print(table)
    numbers = Table("", "", box=None, pad_edge=False, show_header=False)
    numbers.add_row("weights", _bytes(record["weight_bytes"]))
    numbers.add_row("largest working set", f"{_bytes(record['peak_bytes'])} at {_at(record['sizes'])}")
    numbers.add_row("arithmetic", f"{record['gflop']:.3f} GFLOP at {_at(record['sizes'])}: {record['operations']}")
    if record["composites"]:
        numbers.add_row("recognised", ", ".join(f"{count} {name}" for name, count in record["composites"].items()))
    numbers.add_row("ops", ", ".join(f"{count} {name}" for name, count in record["histogram"].items()))
    for key, value in record["metadata"].items():
        numbers.add_row(escape(key), escape(value))
    for fact in record["assumed"]:
        numbers.add_row("assumed", escape(fact))
    console.print(numbers)


def describe(file: Path, program: Program, weights: Weights, sizes: list[str]) -> dict[str, Any]:
    """Everything about a model that can be said before compiling it, ready for JSON."""
    signature = signature_of(program.main)
    chosen = given_sizes(signature, sizes)
    simple, _ = pipeline.run(program, until="simplify")
    marked = recognise(simple)
    work = operations(simple)
    return {
        "model": str(file),
        "inputs": _ports(signature.inputs),
        "outputs": _ports(signature.outputs),
        "sizes": chosen,
        "ops": len(program.main.body.ops),
        "histogram": dict(Counter(op.name.partition(".")[2] for op in program.main.body.ops).most_common()),
        "composites": dict(
            Counter(op.attrs["name"] for op in marked.main.body.ops if op.name == "stablehlo.composite").most_common()
        ),
        "parameters": sum(evaluate(port.shape.count, {}) for port in signature.weights),
        "weight_bytes": weights.nbytes,
        "peak_bytes": memory(simple.main, chosen).peak,
        "operations": str(work),
        "gflop": _number(work, chosen) / 1e9,
        "assumed": verify(program),
        "metadata": dict(weights.metadata),
    }


def _ports(ports: tuple[Port, ...]) -> dict[str, str]:
    return {port.name: str(port.shape) for port in ports}


def _number(size: Size, chosen: dict[str, int]) -> int:
    return evaluate(size, dict.fromkeys(symbols(size), 1) | chosen)


def _bytes(count: int) -> str:
    number = float(count)
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


def _at(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "its fixed size"
