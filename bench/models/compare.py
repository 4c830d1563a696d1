"""`python bench/models/compare.py --models FOLDER`: smelt beside its peers on whole models, as a table and as JSON.

`make bench` calls it. How it measures is in `smelt/cli/rounds.py`: interleaved worker processes, all but one stopped,
and outputs compared. Exit code 1: outputs disagree, or smelt could not run a model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.cli.random_inputs import inputs_for, open_sizes
from smelt.cli.rounds import ENGINES, TOLERANCE, Outcome, Setup, measure, python_of
from smelt.cli.sizes import parse_sizes
from smelt.errors import SmeltError

SUFFIXES = (".onnx", ".mlir")


@dataclass(frozen=True, slots=True)
class Case:
    """One model at one choice of sizes."""

    name: str
    path: Path
    sizes: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    setup = Setup(
        threads=options.threads,
        precision=options.precision,
        seconds=options.seconds,
        rounds=options.rounds,
        solo=not options.no_solo,
        pythons=python_of(options.python),
    )
    engines = options.engines.split(",")
    began = machine()
    outcomes: dict[str, Outcome] = {}
    failed: dict[str, str] = {}
    for case in cases(options):
        try:
            outcomes[case.name] = measure(case.path, engines, inputs_for(case.path, case.sizes, options.static), setup)
        except SmeltError as error:
            failed[case.name] = str(error)
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        show(case.name, outcomes[case.name])
    record = {
        **summary(outcomes, failed),
        "machine": {**began, "load_after": load()},
        "settings": {"threads": options.threads, "precision": options.precision, "seconds": options.seconds},
        "command": shlex.join([sys.executable, *sys.argv]) if arguments is None else shlex.join(arguments),
    }
    if record["geomean"] is not None:
        print(f"\nbest peer / smelt, geometric mean over {len(record['ratios'])} models: {record['geomean']:.3f}")
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")
    return 1 if record["errors"] else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="compare.py", description=__doc__.split("\n\n")[0] if __doc__ else "")
    found.add_argument("--models", nargs="+", type=Path, required=True, help="model files, or folders of them")
    found.add_argument("--engines", default="smelt,onnxruntime,openvino", help=f"of {', '.join(ENGINES)}")
    found.add_argument("--precision", choices=tuple(TOLERANCE), default="f32")
    found.add_argument("--threads", type=int, default=2, help="for every engine")
    found.add_argument("--seconds", type=float, default=10.0, help="of measuring each model, over all engines")
    found.add_argument("--rounds", type=int, default=5, help="turns of every engine")
    found.add_argument("--no-solo", action="store_true", help="leave out the runs of each engine alone")
    found.add_argument(
        "--size", action="append", default=[], metavar="SYMBOL=N", help="a dynamic dimension; the others are 1"
    )
    found.add_argument("--static", action="append", default=[], metavar="NAME=VALUE", help="a compile-time input")
    found.add_argument("--batch", default="", metavar="N,…", help="sweep: the dynamic dimension of the first axis")
    found.add_argument("--lengths", default="", metavar="N,…", help="sweep: all other dynamic dimensions at once")
    found.add_argument(
        "--sizes", action="append", default=[], metavar="A=1,B=2", help="sweep: one such choice after the other"
    )
    found.add_argument(
        "--python", action="append", default=[], metavar="ENGINE=PATH", help="the Python that has an engine"
    )
    found.add_argument("--json", metavar="FILE", help="write everything there")
    return found


# ---- what to run ----


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Every model at every choice of sizes."""
    paths = [path for given in options.models for path in _models(given)]
    if not paths:
        raise SmeltError("no models", expected=f"files or folders with {', '.join(SUFFIXES)}", got=options.models)
    for path in paths:
        for choice in _choices(path, options):
            label = f"[{','.join(choice)}]" if choice else ""
            yield Case(path.stem + label, path, choice)


def _models(given: Path) -> list[Path]:
    return sorted(path for path in given.iterdir() if path.suffix in SUFFIXES) if given.is_dir() else [given]


def _choices(path: Path, options: argparse.Namespace) -> list[tuple[str, ...]]:
    """The sizes of a sweep. A model without such sizes runs once, as it is."""
    base = parse_sizes(options.size)
    if not (options.batch or options.lengths or options.sizes):
        known = open_sizes(path) if base else ()
        return [tuple(f"{name}={value}" for name, value in base.items() if name in {name for name, _ in known})]
    known = open_sizes(path)
    found: dict[tuple[str, ...], None] = {}
    for batch in _numbers(options.batch):
        for length in _numbers(options.lengths):
            for said in [parse_sizes(each.split(",")) for each in options.sizes] or [{}]:
                chosen = {name: batch if first else length for name, first in known} | base | said
                choice = tuple(f"{name}={chosen[name]}" for name, _ in known if chosen[name] is not None)
                found[choice] = None
    return list(found)


def _numbers(text: str) -> list[int | None]:
    return [int(each) for each in text.split(",")] if text else [None]


# ---- what came of it ----


def show(name: str, outcome: Outcome) -> None:
    """One line for each engine."""
    print(f"\n{name}")
    ours = outcome.times.get("smelt")
    for engine, times in outcome.times.items():
        row = times.summary()
        ratio = f"  {row['median_ms'] / ours.median:6.2f} x smelt's" if ours and engine != "smelt" else ""
        spread = f"p10 {row['p10']:.3f}  p90 {row['p90']:.3f}  {row['runs']} runs"
        print(f"  {engine:12} {row['median_ms']:10.3f} ms  {spread}{ratio}")
    for what, engines in (("skipped", outcome.skipped), ("failed", outcome.failed)):
        for engine, reason in engines.items():
            print(f"  {engine:12} {what}: {(reason.splitlines() or [''])[0]}")
    for engine, part in outcome.unsteady.items():
        print(f"  {engine:12} {100 * part:+.0f} % against its run alone: measure again on a quiet machine")
    for each in outcome.differences:
        verdict = "agree" if each.agree else "DISAGREE"
        what = f" ({each.what})" if each.what else ""
        apart = f"at most {each.absolute:.3g}, {each.relative:.3g} of the scale{what}"
        print(f"  {' and '.join(each.engines)} {verdict}: {apart}")
    sys.stdout.flush()


def summary(outcomes: dict[str, Outcome], failed: dict[str, str]) -> dict[str, Any]:
    """Everything that was found, ready for JSON. `ratios`: best peer / smelt; more than 1: smelt is faster."""
    ratios = {name: ratio for name, outcome in outcomes.items() if (ratio := _ratio(outcome)) is not None}
    errors = [f"{name}: {text}" for name, text in failed.items()]
    for name, outcome in outcomes.items():
        errors += [f"{name}: {' and '.join(d.engines)} disagree" for d in outcome.differences if not d.agree]
        if "smelt" in outcome.failed:
            errors.append(f"{name}: smelt: {outcome.failed['smelt']}")
    versions = {engine: times.version for outcome in outcomes.values() for engine, times in outcome.times.items()}
    return {
        "models": {
            name: {engine: times.summary() for engine, times in outcome.times.items()}
            for name, outcome in outcomes.items()
        },
        "ratios": ratios,
        "geomean": math.exp(sum(map(math.log, ratios.values())) / len(ratios)) if ratios else None,
        "differences": {name: [each.record() for each in outcome.differences] for name, outcome in outcomes.items()},
        "skipped": {name: outcome.skipped for name, outcome in outcomes.items() if outcome.skipped},
        "failed": {name: outcome.failed for name, outcome in outcomes.items() if outcome.failed},
        "unsteady": {name: outcome.unsteady for name, outcome in outcomes.items() if outcome.unsteady},
        "errors": errors,
        "versions": versions,
    }


def _ratio(outcome: Outcome) -> float | None:
    peers = [times.median for engine, times in outcome.times.items() if engine != "smelt"]
    return min(peers) / outcome.times["smelt"].median if peers and "smelt" in outcome.times else None


def machine() -> dict[str, Any]:
    """Where this ran."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = (line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line)
        name = next(names, name)
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_before": load(),
    }


def load() -> float | None:
    """How much else ran here in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SmeltError as error:
        sys.exit(f"error: {error}")
