"""`smelt show`: print a model after a stage of compilation. Nothing is compiled to machine code.

ir → passes → kernels (a table), loops (the loop IR of each distinct kernel), source (C), plan (steps, buffers, memory).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smelt.buffer import bytes_text
from smelt.cli import bundle
from smelt.cli.preflight import parse_static, read_given
from smelt.cli.random_inputs import given_sizes
from smelt.cli.tables import Column, open_console, print_table
from smelt.dim import symbols
from smelt.engine.compile import ProgramPlan, emit_source, plan_program
from smelt.engine.footprint import largest_text
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.text import print_program
from smelt.kernel.loops.text import kernel_text
from smelt.kernel.plan.cost import step_cost
from smelt.kernel.plan.memory import Memory
from smelt.kernel.plan.plan import Branch, Copy, Ensure, Kernel, Launch, Measure, Plan, Repeat, Require, Step, walk
from smelt.passes import pipeline

STAGES = ("ir", "passes", "kernels", "loops", "source", "plan")
COLUMNS = (
    Column("function", True, drop=4),
    Column("kind", True),
    Column("count"),
    Column("ops", True),
    Column("reads", True, drop=3),
    Column("writes", True),
    Column("MFLOP", drop=1),
    Column("moves", drop=2),
)
SHOWN = 3  # ops of a kernel in a table


def show(
    file: Path,
    stage: str,
    sizes: Sequence[str],
    generic: bool,
    export: bool,
    as_json: bool,
    static: Sequence[str] = (),
) -> None:
    if stage not in STAGES:
        raise SmeltError("unknown stage", expected=", ".join(STAGES), got=stage, remedy="--stage ir")
    if bundle.is_bundle(file):
        parse_static(file, static)  # refuses them
        kept = bundle.show_stage(file, stage, generic, export)
        if as_json:
            print(json.dumps({"model": str(file), "stage": stage, **kept}))
        else:
            bundle.print_stage(kept)
        return
    program, _ = read_given(file, static, sizes)
    if stage in ("ir", "passes"):
        record = _program(program, stage, generic, export)
    else:
        made = plan_program(program, keep_ops=True)
        record = {"kernels": _kernels, "loops": _loops, "source": _source, "plan": _plan}[stage](
            made, program, given_sizes(made.signature, sizes, program)
        )
    if as_json:
        print(json.dumps({"model": str(file), "stage": stage, **record}))
        return
    if "text" in record:
        print(record["text"])
    else:
        {"kernels": _print_kernels, "loops": _print_loops, "plan": _print_plan}[stage](record)


def _program(program: Program, stage: str, generic: bool, export: bool) -> dict[str, Any]:
    reports: list[pipeline.Report] = []
    if stage == "passes":
        program, reports = pipeline.run(program)
    steps = [
        {"pass": report.name, "ms": round(report.milliseconds, 3), "before": report.before, "after": report.after}
        for report in reports
    ]
    head = [f"// {each['pass']}: {each['before']} → {each['after']} ops in {each['ms']:.2f} ms" for each in steps]
    return {"passes": steps, "text": "\n".join([*head, print_program(program, generic=generic, export=export)])}


# ---- kernels and loops ----


def _launches(plan: Plan) -> dict[Kernel, list[Launch]]:
    found: dict[Kernel, list[Launch]] = {}
    for step in walk(plan.steps):
        if isinstance(step, Launch):
            found.setdefault(step.kernel, []).append(step)
    return found


def _kernels(made: ProgramPlan, program: Program, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Each distinct kernel: the buffers of its first launch, and the cost of one launch at the given sizes."""
    rows = []
    for function, (plan, _) in made.plans.items():
        for kernel, launches in _launches(plan).items():
            first = launches[0]
            cost = step_cost(first, plan, program, sizes)
            inputs = [str(plan.buffers[i].shape) for i in first.buffers if i not in first.writes]
            rows.append(
                {
                    "function": function,
                    "kind": kernel.kind,
                    "count": len(launches),
                    "ops": list(kernel.ops),
                    "reads": inputs,
                    "writes": [str(plan.buffers[i].shape) for i in first.writes],
                    "operations": cost.operations,
                    "bytes": cost.bytes,
                }
            )
    return {"sizes": dict(sizes), "kernels": rows}


def _print_kernels(record: Mapping[str, Any]) -> None:
    rows = []
    for row in record["kernels"]:
        operations = "" if row["operations"] is None else f"{row['operations'] / 1e6:.4g}"
        moved = "" if row["bytes"] is None else bytes_text(row["bytes"])
        reads, writes = (" ".join(row[side]) for side in ("reads", "writes"))
        rows.append(
            (row["function"], row["kind"], str(row["count"]), _short(row["ops"]), reads, writes, operations, moved)
        )
    console = open_console()
    print_table(console, COLUMNS, rows)
    count = sum(row["count"] for row in record["kernels"])
    console.print(f"{count} launches of {len(record['kernels'])} kernels; costs of one launch{_at(record['sizes'])}")


def _short(ops: Sequence[str]) -> str:
    names = [op.partition(".")[2] for op in ops]
    more = f" +{len(names) - SHOWN}" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more or "copy"


def _loops(made: ProgramPlan, program: Program, sizes: Mapping[str, int]) -> dict[str, Any]:
    rows = []
    for function, (plan, _) in made.plans.items():
        for kernel, launches in _launches(plan).items():
            shapes = [str(plan.buffers[i].shape) for i in launches[0].buffers]
            rows.append(
                {
                    "function": function,
                    "kind": kernel.kind,
                    "count": len(launches),
                    "ops": list(kernel.ops),
                    "buffers": shapes,
                    "loops": kernel_text(kernel),
                }
            )
    return {"kernels": rows}


def _print_loops(record: Mapping[str, Any]) -> None:
    for row in record["kernels"]:
        print(f"{row['function']} / {row['kind']} × {row['count']}: {_short(row['ops'])}")
        for i, shape in enumerate(row["buffers"]):
            print(f"  b{i}: {shape}")
        print("\n".join(f"  {line}" for line in row["loops"].splitlines()), end="\n\n")


def _source(made: ProgramPlan, program: Program, sizes: Mapping[str, int]) -> dict[str, Any]:
    return {"text": emit_source([made]).text()}


# ---- the plan ----


def _plan(made: ProgramPlan, program: Program, sizes: Mapping[str, int]) -> dict[str, Any]:
    footprint = made.footprint
    functions = {
        name: {
            "symbols": list(plan.symbols),
            "buffers": [_buffer(plan, memory, i) for i in range(len(plan.buffers))],
            "slots": [largest_text(slot) for slot in memory.slots],
            "steps": _steps(plan.steps),
            "checks": [check.text for check in plan.checks],
        }
        for name, (plan, memory) in made.plans.items()
    }
    return {
        "functions": functions,
        "peak": footprint.text(),
        "peak_bytes": footprint.peak(sizes),
        "parts": footprint.parts(sizes),
        "sizes": dict(sizes),
    }


def _buffer(plan: Plan, memory: Memory, number: int) -> dict[str, Any]:
    buffer = plan.buffers[number]
    size: int | str = buffer.bytes if not symbols(buffer.bytes) else str(buffer.bytes)  # type: ignore[assignment]
    return {
        "kind": buffer.kind,
        "shape": str(buffer.shape),
        "bytes": size,
        "slot": memory.slot_of.get(number),
        "late": plan.is_deferred(*buffer.shape.sizes),
        "donated": buffer.kind == "argument" and buffer.index in plan.donated,
        "reuses": dict(plan.reused).get(buffer.index) if buffer.kind == "result" else None,
    }


def _steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in steps:
        match step:
            case Launch(kernel, buffers, writes):
                reads = [i for i in buffers if i not in writes]
                row = {"step": kernel.kind, "reads": reads, "writes": list(writes), "ops": list(kernel.ops)}
                rows.append(row | ({"in_place": list(step.updates)} if step.updates else {}))
            case Copy(source, target):
                rows.append({"step": "copy", "reads": [source], "writes": [target]})
            case Repeat(head, flag, body):
                rows.append({"step": "repeat", "flag": flag, "head": _steps(head), "body": _steps(body)})
            case Branch(selector, branches):
                rows.append({"step": "branch", "selector": selector, "branches": [_steps(each) for each in branches]})
            case Require(flags, check):
                rows.append({"step": "require", "reads": [flags], "check": check})
            case Ensure(checks):
                rows.append({"step": "ensure", "checks": list(checks)})
            case Measure(names, source):
                told = [source] if isinstance(source, int) else []
                rows.append({"step": "measure", "symbols": list(names), "reads": told})
    return rows


def _print_plan(record: Mapping[str, Any]) -> None:
    for name, function in record["functions"].items():
        print(f"{name}: {len(function['buffers'])} buffers, {len(function['slots'])} slots")
        for i, buffer in enumerate(function["buffers"]):
            place = "grows" if buffer["late"] else "" if buffer["slot"] is None else f"slot {buffer['slot']}"
            place = "donated" if buffer["donated"] else place if buffer["reuses"] is None else f"in %{buffer['reuses']}"
            print(f"  %{i:<4} {buffer['kind']:<9} {place:<8} {buffer['bytes']!s:>12} bytes  {buffer['shape']}")
        for i, slot in enumerate(function["slots"]):
            print(f"  slot {i}: {slot} bytes")
        for check in function["checks"]:
            print(f"  check {check}")
        _print_steps(function["steps"], "  ")
        print()
    parts = ", ".join(f"{name} {bytes_text(count)}" for name, count in record["parts"].items() if count)
    print(f"peak: {bytes_text(record['peak_bytes'])}{_at(record['sizes'])} ({parts})")
    if record["sizes"]:
        print(f"      {record['peak']} bytes")


def _print_steps(steps: Sequence[Mapping[str, Any]], pad: str) -> None:
    for step in steps:
        match step["step"]:
            case "repeat":
                print(f"{pad}repeat:")
                _print_steps(step["head"], pad + "  ")
                print(f"{pad}  while %{step['flag']}:")
                _print_steps(step["body"], pad + "    ")
            case "branch":
                print(f"{pad}branch on %{step['selector']}:")
                for i, branch in enumerate(step["branches"]):
                    print(f"{pad}  {i}:")
                    _print_steps(branch, pad + "    ")
            case kind:
                reads, writes = (" ".join(f"%{i}" for i in step.get(side, ())) for side in ("reads", "writes"))
                ops = f": {_short(step['ops'])}" if "ops" in step else ""
                names = " ".join(step.get("symbols", ()))
                where = ", in place" if step.get("in_place") else ""
                print(f"{pad}{writes or names or '-':<8} ← {kind} {reads}{ops}{where}")


def _at(sizes: Mapping[str, int]) -> str:
    return f" at {', '.join(f'{name}={value}' for name, value in sizes.items())}" if sizes else ""
