"""Cold start: from the start of a process to its first result, of a bundle and of onnxruntime with the original file.

    python -m bench.cold_start MODEL.onnx ... [--rounds 10] [--json FILE]

Processes take turns. Each loads its model, runs it once on the same inputs and tells when it was done and how much
memory it had at the most. `imports` is what `import smelt` and loading a bundle import beyond numpy, measured apart.
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
from typing import Any

import numpy as np

from smelt.engine.executable import signature_of
from smelt.model import read

END = """
done, busy = time.time(), time.process_time()
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1]
sys.stdout.write(json.dumps({"done": done, "busy": busy, "peak": 1024 * int(peak)}))
"""
SMELT = (
    """
import json, sys, time
import numpy as np, smelt
model = smelt.load(sys.argv[1])
with np.load(sys.argv[2]) as stored:
    inputs = dict(stored)
model.run(inputs)
"""
    + END
)
ONNXRUNTIME = (
    """
import json, sys, time
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
with np.load(sys.argv[2]) as stored:
    inputs = dict(stored)
session.run(None, inputs)
"""
    + END
)
NUMPY = "import json, sys, time\nimport numpy as np\n" + END
IMPORTS = """
import sys, time, numpy
start = time.process_time()
import smelt, smelt.bundle.load
sys.stdout.write(str(time.process_time() - start))
"""
LOAD = """
import sys, time, numpy as np, smelt, smelt.bundle.load
with np.load(sys.argv[2]) as stored:
    inputs = dict(stored)
start = time.perf_counter()
smelt.load(sys.argv[1]).run(inputs)
sys.stdout.write(str(time.perf_counter() - start))
"""


def environment(folder: Path) -> dict[str, str]:
    """Compiled Python files are kept, as they are where a package is installed."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return given | {"PYTHONPYCACHEPREFIX": str(folder / "pyc")}


def start(script: str, arguments: Sequence[Path], given: dict[str, str]) -> tuple[float, float, float]:
    """Seconds from before the process to its first result, processor seconds of all threads, and peak memory."""
    before = time.time()
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=given)
    record = json.loads(done.stdout)
    return record["done"] - before, record["busy"], record["peak"]


def told(script: str, arguments: Sequence[Path], given: dict[str, str]) -> float:
    """A number that a process tells."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=given).stdout)


def measure(model: Path, folder: Path, rounds: int) -> dict[str, Any]:
    bundle, inputs = folder / f"{model.stem}.smelt", folder / f"{model.stem}.npz"
    command = [sys.executable, "-m", "smelt.cli.main", "compile", str(model), "-o", str(bundle)]
    subprocess.run(command, check=True, capture_output=True)
    ports = signature_of(read(model)[0].main).inputs  # ones: a sensible number, an index and a mask
    shapes = {port.name: port.shape.numbers(dict.fromkeys(port.shape.symbols, 8)) for port in ports}
    arrays = {port.name: np.ones(shapes[port.name], port.shape.dtype.numpy) for port in ports}
    np.savez(inputs, **arrays)
    given = environment(folder)
    runs = {
        "smelt": (SMELT, (bundle, inputs)),
        "onnxruntime": (ONNXRUNTIME, (model, inputs)),
        "numpy alone": (NUMPY, ()),
    }
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in runs}
    running = []
    for turn in range(rounds + 1):
        for name, (script, arguments) in runs.items():
            found = start(script, arguments, given)
            if turn:  # the first turn fills caches
                seen[name].append(found)
        running.append(told(LOAD, (bundle, inputs), given))
    figures: dict[str, Any] = {
        name: {
            "first result, best (ms)": round(1e3 * min(each[0] for each in found), 1),
            "first result, median (ms)": round(1e3 * statistics.median(each[0] for each in found), 1),
            "processor time, best (ms)": round(1e3 * min(each[1] for each in found), 1),
            "peak memory (MiB)": round(max(each[2] for each in found) / (1 << 20), 1),
        }
        for name, found in seen.items()
    }
    figures["load and first result in a running process, best (ms)"] = round(1e3 * min(running), 1)
    figures["bundle (MiB)"] = round(bundle.stat().st_size / (1 << 20), 1)
    return figures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record: dict[str, Any] = {each.stem: measure(each, folder, chosen.rounds) for each in chosen.models}
        imports = min(told(IMPORTS, (), environment(folder)) for _ in range(chosen.rounds))
    record["imports beyond numpy, processor time, best (ms)"] = round(1e3 * imports, 1)
    record["machine"] = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
    }
    print(json.dumps(record, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
