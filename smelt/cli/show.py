"""`smelt show`: a model as it stands after a stage of compilation."""

from __future__ import annotations

import json
from pathlib import Path

from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.text import print_program
from smelt.kernel.emit_c import emit
from smelt.kernel.fuse import fuse
from smelt.kernel.plan import Plan
from smelt.model import read
from smelt.passes import pipeline

STAGES = ("ir", "passes", "kernels", "source")


def show(file: Path, stage: str, generic: bool, export: bool, as_json: bool) -> None:
    if stage not in STAGES:
        raise SmeltError("unknown stage", expected=", ".join(STAGES), got=stage)
    program, _ = read(file)
    reports: list[pipeline.Report] = []
    if stage != "ir":
        program, reports = pipeline.run(program)
    if stage in ("ir", "passes"):
        text = print_program(program, generic=generic, export=export)
    elif stage == "kernels":
        text = "\n".join(_kernels(name, plan) for name, plan in _plans(program))
    else:
        text = "\n".join(f"/* {name} */\n{emit(plan)}" for name, plan in _plans(program))
    if as_json:
        steps = [
            {"pass": report.name, "ms": round(report.milliseconds, 3), "before": report.before, "after": report.after}
            for report in reports
        ]
        print(json.dumps({"model": str(file), "stage": stage, "passes": steps, "text": text}))
        return
    for report in reports:
        print(f"// {report.name}: {report.before} → {report.after} ops in {report.milliseconds:.2f} ms")
    print(text)


def _plans(program: Program) -> list[tuple[str, Plan]]:
    return [(func.name, fuse(func)) for func in program.funcs.values()]


def _kernels(name: str, plan: Plan) -> str:
    lines = [f"// {name}: {len(plan.kernels)} kernels, {len(plan.temporaries)} temporaries"]
    for kernel in plan.kernels:
        short = ", ".join(op.removeprefix("stablehlo.") for op in kernel.ops)
        lines.append(f"{kernel.name} → buffer {kernel.result}: {short or 'copy'}")
    return "\n".join(lines)
