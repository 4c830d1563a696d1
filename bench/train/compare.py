"""`python bench/train/compare.py`: a training step of smelt beside jax.jit and PyTorch, as a table and as JSON.

Rounds of steps are interleaved. Each number is the median with the 10th and 90th percentile, of the time on the clock
and of the processor's. On a busy machine only the latter means anything, with `--threads 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from processes import Worker, pythons


def main() -> None:
    options = parser().parse_args()
    known = pythons(options.python)
    record: dict[str, Any] = {
        "command": shlex.join(sys.argv),
        "machine": {"processor": platform.processor(), "cores": os.cpu_count(), "load_before": os.getloadavg()},
    }
    for model in options.models.split(","):
        job = [model, options.size, str(options.threads), *options.set]
        with ExitStack() as stack:
            workers = []
            for framework in options.frameworks.split(","):
                workers.append(Worker(framework, job, known.get(framework)))
                stack.callback(workers[-1].close)
            record[model] = measure(workers, options.rounds, options.steps)
        show(model, record[model])
    record["machine"]["load_after"] = os.getloadavg()
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--models", default="transformer,resnet")
    found.add_argument("--size", choices=("wide", "small"), default="wide")
    found.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="sizes, such as batch=4")
    found.add_argument("--frameworks", default="smelt,jax,torch,torch.compile")
    found.add_argument("--python", nargs="*", default=[], metavar="FRAMEWORK=PATH", help="the Python that has it")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--steps", type=int, default=3, help="of a round")
    found.add_argument("--json")
    return found


def measure(workers: list[Worker], rounds: int, steps: int) -> dict[str, Any]:
    """Summaries by framework; the first step compiles and does not count."""
    for worker in workers:
        worker.run(2)
    answers: dict[str, list[dict[str, Any]]] = {worker.framework: [] for worker in workers}
    for turn in range(rounds):
        for worker in workers if turn % 2 == 0 else reversed(workers):
            answers[worker.framework].append(worker.run(steps))
    return {
        framework: {
            **{
                unit: summary([time for each in given for time in each[unit]])
                for unit in ("milliseconds", "processor_ms")
            },
            "peak_mib": round(max(each["peak_mib"] for each in given)),
            "loss": given[-1]["losses"][-1],
        }
        for framework, given in answers.items()
    }


def summary(times: list[float]) -> dict[str, float]:
    low, median, high = np.percentile(times, [10, 50, 90])
    return {"median": round(median, 1), "p10": round(low, 1), "p90": round(high, 1), "least": round(min(times), 1)}


def show(model: str, found: dict[str, Any]) -> None:
    print(f"{model:14} {'step, ms':>9} {'p10':>8} {'p90':>8} {'processor':>10} {'peak MiB':>9} {'loss':>9}")
    for framework, each in found.items():
        clock = each["milliseconds"]
        print(
            f"{framework:14} {clock['median']:9.1f} {clock['p10']:8.1f} {clock['p90']:8.1f} "
            f"{each['processor_ms']['median']:10.1f} {each['peak_mib']:9} {each['loss']:9.5f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
