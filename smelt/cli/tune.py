"""`smelt tune`: autotune a model's kernels on this machine. Later compiles use the faster schedules.

A model → a table or JSON. `--export` and `--merge` copy the tuning database between machines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from smelt.activity import progress as compiler_progress
from smelt.cli.outputs import check_output
from smelt.cli.profile import program_of
from smelt.cli.random_inputs import inputs_for
from smelt.cli.tables import Column, open_console, print_table
from smelt.device.cache import compiling_for
from smelt.device.registry import find_device
from smelt.engine.signature import signature_of
from smelt.engine.tune import Finding, Report, Tuning
from smelt.engine.tune import tune as tuned
from smelt.engine.tuned import database
from smelt.errors import DeviceError, SmeltError
from smelt.kernel.tune.schedules import default_schedule, schedule_record, schedule_text

COLUMNS = (
    Column("kernel shape", True),
    Column("% of time", drop=2),
    Column("schedule", True),
    Column("speedup"),
    Column("tried", drop=1),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `tune`."""

    seconds: float = 60.0
    sizes: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    seed: int = 0
    export: Path | None = None
    merge: Path | None = None
    as_json: bool = False
    device: str = "auto"


def tune(file: Path | None, options: Options) -> None:
    """Merge, tune and export, as far as requested, in this order."""
    if file is None and options.export is None and options.merge is None:
        raise SmeltError(
            "nothing to tune", expected="a model, --export FILE or --merge FILE", remedy="smelt tune MODEL"
        )
    if options.seconds <= 0:
        raise SmeltError("--seconds is too small", expected="more than 0", got=options.seconds, remedy="--seconds 60")
    check_output(options.export)
    record: dict[str, Any] = {"database": str(database().path)}
    console = open_console()
    if options.merge is not None:
        record["merged"] = database().merge(options.merge)
        if not options.as_json:
            console.print(f"{escape(str(options.merge))}: {record['merged']} kernel shapes were new or better known")
    if file is not None:
        found = _tune(file, options)
        record |= {"model": str(file), **_record(found)}
        if not options.as_json:
            _print(console, found)
    if options.export is not None:
        record["exported"] = database().export(options.export)
        if not options.as_json:
            console.print(f"{escape(str(options.export))}: {record['exported']} kernel shapes")
    if options.as_json:
        print(json.dumps(record))


def _tune(file: Path, options: Options) -> Tuning:
    program, weights = program_of(file, options.sizes, options.static)
    given = inputs_for(file, options.sizes, options.static, options.seed)
    inputs = [given[port.name] for port in signature_of(program.main).inputs]
    with _bar(options.seconds) as report, compiling_for(f"{file.stem} (tune)"):
        device = find_device(options.device)
        why = device.missing()
        if why is not None:
            raise DeviceError(f"nothing can be tuned on {options.device}", got=why, remedy="smelt devices lists them")
        target = device.target()
        return tuned(program, weights, inputs, options.seconds, seed=options.seed, report=report, target=target)


@contextmanager
def _bar(seconds: float) -> Iterator[Report]:
    """Show the elapsed time on stderr if that is a terminal, in place of the compiler's progress bar."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    token = compiler_progress.set(None)
    try:
        with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("", total=seconds)
            yield lambda spent, what: progress.update(task, completed=min(spent, seconds), description=what)
    finally:
        compiler_progress.reset(token)


# ---- output ----


def _record(found: Tuning) -> dict[str, Any]:
    whole = found.whole
    return {
        "kept": found.kept,
        "speedup": None if whole is None else round(1 / whole.ratio, 4),
        "error": None if whole is None else round(whole.error, 4),
        "seconds": round(found.seconds, 3),
        "tries": found.tries,
        "known": found.known,
        "enough_seconds": found.enough,
        "problems": [
            {
                "problem": str(each.key),
                "share": round(each.share, 4),
                "choice": schedule_record(each.schedule),
                "speedup": round(1 / each.estimate.ratio, 4),
                "tried": each.tried,
                "choices": each.schedules,
            }
            for each in found.findings
        ],
    }


def _print(console: Console, found: Tuning) -> None:
    changed = [each for each in found.findings if each.schedule != default_schedule(each.key)]
    if changed:
        print_table(console, COLUMNS, map(_row, changed))
    if not found.findings:
        console.print("no kernel of this model has schedules worth measuring")
    elif found.known == len(found.findings):
        console.print("all schedules of this model's kernels were measured before")
    elif found.enough is not None:
        console.print(
            f"too short to compare the whole program: {found.tries} schedules were measured in {found.seconds:.0f} s; "
            f"--seconds {found.enough} would do, and a later run goes on from there",
            style="yellow",
        )
    elif found.whole is None:
        console.print(f"no schedule is faster than those in use, of {found.tries} measured in {found.seconds:.0f} s")
    else:
        _say_whole(console, found)


def _row(each: Finding) -> tuple[str, ...]:
    speedup = f"{1 / each.estimate.ratio:.2f} x"
    tried = f"{each.tried} of {each.schedules - 1}"
    return str(each.key), f"{100 * each.share:.1f} %", schedule_text(each.schedule), speedup, tried


def _say_whole(console: Console, found: Tuning) -> None:
    assert found.whole is not None
    speed = f"{1 / found.whole.ratio:.3f} x as fast (± {found.whole.error:.3f})"
    if found.kept:
        console.print(f"[bold]a call is {speed}[/]: every later compile uses these schedules ({found.seconds:.0f} s)")
    else:
        console.print(f"a call would be {speed}, which is not more than the noise: everything stays as it was")
