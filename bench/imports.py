"""How long ONNX files take to become verified programs, and how much memory that needs.

    python -m bench.imports [FILE.onnx ...]      (default: the files in the folder that SMELT_MODELS names)

Each figure comes from a process of its own: wall-clock and processor seconds of reading and verifying, the peak of the
process as a multiple of the file, and the same after binding the weights. Chains of nodes of growing length come last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.__main__ import onnx_chain

NODES = (2_500, 5_000, 10_000, 20_000)
PROBE = """
import json, resource, sys, time
import smelt.read.onnx
from smelt.ir.verify import verify
from smelt.model import read
import onnx

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

record = {"start": peak()}
wall, cpu = time.perf_counter(), time.process_time()
program, weights = read(sys.argv[1])
verify(program)
record |= {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "read": peak()}
if sys.argv[2] == "bind":
    from smelt.engine.reference import ReferenceEngine
    ReferenceEngine().compile(program).prepare(weights)
    record["bound"] = peak()
print(json.dumps(record))
"""


def probe(path: Path, *, bind: bool) -> dict[str, float]:
    command = [sys.executable, "-c", PROBE, str(path), "bind" if bind else "read"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def of_file(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    runs = [probe(path, bind=True) for _ in range(3)]
    return {
        "file (MB)": size / 1e6,
        "read and verify (s)": min(run["wall"] for run in runs),
        "read and verify, processor (s)": min(run["cpu"] for run in runs),
        "peak before (MB)": runs[0]["start"] / 1e6,
        "peak after reading / file": max(run["read"] for run in runs) / size,
        "peak after binding / file": max(run["bound"] for run in runs) / size,
    }


def of_chains() -> dict[str, Any]:
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for nodes in NODES:
            path = Path(folder) / f"{nodes}.onnx"
            onnx_chain(nodes, path)
            cpu = min(probe(path, bind=False)["cpu"] for _ in range(3))
            figures[f"{nodes} nodes"] = {"processor (s)": cpu, "per node (µs)": 1e6 * cpu / nodes}
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="*", type=Path, metavar="FILE.onnx")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    chosen = options.parse_args(argv)
    folder = os.environ.get("SMELT_MODELS")
    files = chosen.files or (sorted(Path(folder).glob("*.onnx")) if folder else [])
    record = {path.stem: of_file(path) for path in files} | {"chains": of_chains()}
    print(json.dumps(record, indent=2, ensure_ascii=False))
    if chosen.json:
        chosen.json.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
