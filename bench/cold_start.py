"""Cold start: from the start of a process to its first result, of a bundle and of onnxruntime with the original file.

    python -m bench.cold_start MODEL.onnx ... [--size length=64] [--rounds 10] [--folder FOLDER] [--json FILE]

Processes take turns. Each loads its model, runs it once on the same inputs and tells when it was done and how much
memory it had at the most; then it runs a little longer and tells again. Beside that stand the bars for memory: the
weights that a call touches, its arena and 60 MiB for Python and NumPy; and half of what onnxruntime needs. `imports` is
what `import smelt` and running a bundle import beyond numpy, measured apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from smelt.cli.sizes import parse_sizes
from smelt.engine.signature import signature_of
from smelt.engine_api import Signature
from smelt.errors import SmeltError
from smelt.model import read

MIB = 1 << 20
ROOM = 60 * MIB  # what Python, NumPy and our own code may take beside weights and arena
LATER = 5  # calls after the first, before memory is looked at again

# Names of figures.
IMPORTED = "imports beyond numpy, processor time, best (ms)"
RUNNING = "load and first result in a running process, best (ms)"
PEAK = "peak memory (MiB)"
AFTER = "peak memory, later calls included (MiB)"

INPUTS = """
import json
def inputs_of(folder):
    with open(folder + "/names.json") as file:
        return {name: np.load(f"{folder}/{i}.npy") for i, name in enumerate(json.load(file))}
"""
TELL = """
def peak():
    return 1024 * int([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
def tell(again):
    record = {"done": time.time(), "busy": time.process_time(), "peak": peak()}
    again()
    sys.stdout.write(json.dumps(record | {"later": peak()}))
"""
SMELT = f"""
import json, sys, time
import numpy as np, smelt
{INPUTS}{TELL}
model = smelt.load(sys.argv[1])
inputs = inputs_of(sys.argv[2])
model.run(inputs)
def again():
    import threading
    for thread in threading.enumerate():
        if thread.name == "smelt weights":
            thread.join()
    for _ in range({LATER}):
        model.run(inputs)
tell(again)
"""
ONNXRUNTIME = f"""
import json, sys, time
import numpy as np, onnxruntime
{INPUTS}{TELL}
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
inputs = inputs_of(sys.argv[2])
session.run(None, inputs)
tell(lambda: [session.run(None, inputs) for _ in range({LATER})])
"""
NUMPY = f"import json, sys, time\nimport numpy as np\n{TELL}\ntell(lambda: None)"
IMPORTS = """
import sys, time, numpy
start = time.process_time()
import smelt, smelt.run.load
sys.stdout.write(str(time.process_time() - start))
"""
LOAD = f"""
import sys, time, numpy as np, smelt, smelt.run.load
{INPUTS}
inputs = inputs_of(sys.argv[2])
start = time.perf_counter()
smelt.load(sys.argv[1]).run(inputs)
sys.stdout.write(str(time.perf_counter() - start))
"""
# What a call needs: the pages of the mapped file that it touched, and what it works in. The weights do not move.
NEEDS = f"""
import json, os, sys, numpy as np, smelt
{INPUTS}
from smelt.run.executable import NativeExecutable
NativeExecutable.move_after_first_call = lambda self, release: None
model = smelt.load(sys.argv[1])
model.run(inputs_of(sys.argv[2]))
touched, ours = 0, False
for line in open("/proc/self/smaps"):
    if not line.split()[0].endswith(":"):
        ours = line.rstrip().endswith(os.path.realpath(sys.argv[1]))
    elif ours and line.startswith("Rss:"):
        touched += 1024 * int(line.split()[1])
memory = model.memory
sys.stdout.write(json.dumps([touched, memory.constants + memory.arenas + memory.scratch]))
"""


class Start(NamedTuple):
    """One process: seconds to its first result, processor seconds, bytes at most by then and after more calls."""

    seconds: float
    busy: float
    peak: int
    later: int


def environment(folder: Path) -> dict[str, str]:
    """Compiled Python files are kept, as they are where a package is installed."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return given | {"PYTHONPYCACHEPREFIX": str(folder / "pyc")}


def run_script(script: str, arguments: Sequence[Path], given: dict[str, str]) -> Any:
    """What a process tells, as JSON."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def start(script: str, arguments: Sequence[Path], given: dict[str, str]) -> Start:
    before = time.time()
    record = run_script(script, arguments, given)
    return Start(record["done"] - before, record["busy"], record["peak"], record["later"])


def make_bundle(model: Path, folder: Path) -> Path:
    """The bundle of a model: the one that is in the folder if it is newer, else compiled now."""
    bundle = folder / f"{model.stem}.smelt"
    if not bundle.exists() or bundle.stat().st_mtime < model.stat().st_mtime:
        command = [sys.executable, "-m", "smelt.cli.main", "compile", str(model), "-o", str(bundle)]
        subprocess.run(command, check=True, capture_output=True)
    return bundle


def store_inputs(signature: Signature, sizes: dict[str, int], folder: Path) -> dict[str, list[int]]:
    """Ones for every input, in files: a sensible number, an index and a mask. Gives their shapes."""
    folder.mkdir(exist_ok=True)
    shapes = {port.name: port.shape.numbers(dict.fromkeys(port.shape.symbols, 1) | sizes) for port in signature.inputs}
    for i, port in enumerate(signature.inputs):
        np.save(folder / f"{i}.npy", np.ones(shapes[port.name], port.shape.dtype.numpy))
    (folder / "names.json").write_text(json.dumps(list(shapes)), "utf-8")
    return {name: list(shape) for name, shape in shapes.items()}


def measure(model: Path, signature: Signature, sizes: dict[str, int], folder: Path, rounds: int) -> dict[str, Any]:
    bundle, inputs = make_bundle(model, folder), folder / f"{model.stem}-inputs"
    shapes = store_inputs(signature, sizes, inputs)
    given = environment(folder)
    runs = {
        "smelt": (SMELT, (bundle, inputs)),
        "onnxruntime": (ONNXRUNTIME, (model, inputs)),
        "numpy alone": (NUMPY, ()),
    }
    seen: dict[str, list[Start]] = {name: [] for name in runs}
    running = []
    for turn in range(rounds + 1):
        for name, (script, arguments) in runs.items():
            found = start(script, arguments, given)
            if turn:  # the first turn fills caches
                seen[name].append(found)
        running.append(run_script(LOAD, (bundle, inputs), given))
    touched, arena = run_script(NEEDS, (bundle, inputs), given)
    return {
        "inputs": shapes,
        **{name: summary(found) for name, found in seen.items()},
        "bars": bars(touched, arena, seen["smelt"], seen["onnxruntime"]),
        RUNNING: round(1e3 * min(running), 1),
        "bundle (MiB)": mib(bundle.stat().st_size),
    }


def summary(found: Sequence[Start]) -> dict[str, float]:
    return {
        "first result, best (ms)": round(1e3 * min(each.seconds for each in found), 1),
        "first result, median (ms)": round(1e3 * statistics.median(each.seconds for each in found), 1),
        "processor time, best (ms)": round(1e3 * min(each.busy for each in found), 1),
        PEAK: mib(max(each.peak for each in found)),
        AFTER: mib(max(each.later for each in found)),
    }


def bars(touched: int, arena: int, ours: Sequence[Start], theirs: Sequence[Start]) -> dict[str, Any]:
    """What memory is held against; of onnxruntime the lowest peak counts, of ours the highest."""
    most, allowed = max(each.peak for each in ours), touched + arena + ROOM
    half = min(each.peak for each in theirs) / 2
    return {
        "weights touched (MiB)": mib(touched),
        "arena (MiB)": mib(arena),
        "touched + arena + 60 (MiB)": mib(allowed),
        "half of onnxruntime (MiB)": mib(half),
        "within touched + arena + 60": most <= allowed,
        "within half of onnxruntime": most <= half,
    }


def mib(count: float) -> float:
    return round(count / MIB, 1)


def show(record: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # a file has no edge
    console.print(_times(record["models"]))
    console.print()
    console.print(_memory(record["models"]))
    console.print(f"\n{IMPORTED}: {record[IMPORTED]}", style="dim")


def _times(models: dict[str, Any]) -> Table:
    table = Table(
        "first result (ms)", "smelt", "onnxruntime", "ratio", "in a running process", box=None, pad_edge=False
    )
    for name, found in models.items():
        best, other = (found[engine]["first result, best (ms)"] for engine in ("smelt", "onnxruntime"))
        table.add_row(name, f"{best}", f"{other}", f"{best / other:.2f}", f"{found[RUNNING]}")
    return table


def _memory(models: dict[str, Any]) -> Table:
    table = Table("peak memory (MiB)", "smelt", "may be: touched + arena + 60", "", box=None, pad_edge=False)
    for column in ("half of onnxruntime's", "", "smelt, later", "onnxruntime, later"):
        table.add_column(column)
    for name, found in models.items():
        held = found["bars"]
        parts = " + ".join(f"{held[part]}" for part in ("weights touched (MiB)", "arena (MiB)"))
        allowed = f"{parts} + 60 = {held['touched + arena + 60 (MiB)']}"
        marks = [
            "kept" if held[f"within {bar}"] else "missed" for bar in ("touched + arena + 60", "half of onnxruntime")
        ]
        later = [f"{found[engine][AFTER]}" for engine in ("smelt", "onnxruntime")]
        half = f"{held['half of onnxruntime (MiB)']}"
        table.add_row(name, f"{found['smelt'][PEAK]}", allowed, marks[0], half, marks[1], *later)
    return table


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    options.add_argument(
        "--size", action="append", default=[], metavar="NAME=NUMBER", help="a dynamic dimension; default: 1"
    )
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--folder", type=Path, help="folder that keeps the bundles; default: a temporary folder")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    chosen = options.parse_args()
    signatures = {model: signature_of(read(model)[0].main) for model in chosen.models}
    open_sizes = {name for each in signatures.values() for port in each.inputs for name in port.shape.symbols}
    try:
        sizes = parse_sizes(chosen.size, sorted(open_sizes))
    except SmeltError as error:
        raise SystemExit(str(error)) from error
    with tempfile.TemporaryDirectory() as name:
        folder = chosen.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        models = {
            model.stem: measure(model, signature, sizes, folder, chosen.rounds)
            for model, signature in signatures.items()
        }
        imports = min(run_script(IMPORTS, (), environment(folder)) for _ in range(chosen.rounds))
    record: dict[str, Any] = {"models": models}
    record[IMPORTED] = round(1e3 * imports, 1)
    record["machine"] = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
    }
    show(record)
    if chosen.json:
        chosen.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
