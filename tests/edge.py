"""Every model for every Linux target: build it as an executable, run its selftest there or under qemu-user.

    python tests/edge.py [--models mlp_b1,vad] [--targets aarch64-linux] [--json FILE]

Models: the ONNX files in SMELT_MODELS, the demo model, and silero-vad where it is installed. `make test-all` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EMULATORS = {"x86_64-linux": "x86_64", "aarch64-linux": "aarch64", "armv7-linux": "arm", "riscv64-linux": "riscv64"}
VAD = ("--static", "sr=16000", "-s", "n0=1", "-s", "n1=576", "-s", "n2=1")


def find_models() -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Files by name, with the options that their compilation needs."""
    found: dict[str, tuple[Path, tuple[str, ...]]] = {"digits": (Path(str(files("smelt") / "assets/digits.onnx")), ())}
    package = find_spec("silero_vad")  # importing it would import torch
    if package is not None and package.origin is not None:
        found["vad"] = (Path(package.origin).parent / "data" / "silero_vad.onnx", VAD)
    folder = Path(os.environ.get("SMELT_MODELS", ""))
    if os.environ.get("SMELT_MODELS"):
        found |= {path.stem: (path, ()) for path in sorted(folder.glob("*.onnx"))}
    return found


def emulator_of(target: str) -> list[str] | None:
    """The command in front of a program; None where there is no emulator."""
    if EMULATORS[target] == platform.machine():
        return []
    found = shutil.which(f"qemu-{EMULATORS[target]}-static")
    return None if found is None else [found]


def try_model(model: Path, options: tuple[str, ...], target: str, folder: Path, emulator: list[str]) -> dict[str, Any]:
    """Build and selftest; the record of both."""
    program = folder / "model"
    command = [sys.executable, "-m", "smelt", "compile", str(model), "--standalone", "--target", target]
    start = time.perf_counter()
    built = subprocess.run(
        [*command, "-o", str(program), *options, "--json"], capture_output=True, text=True, check=False
    )
    record: dict[str, Any] = {"built_s": round(time.perf_counter() - start, 1)}
    if built.returncode:
        return {**record, "failed": (built.stdout + built.stderr)[-500:]}
    record |= {key: value for key, value in json.loads(built.stdout).items() if key in ("versions", "weights")}
    record["bytes"] = program.stat().st_size
    start = time.perf_counter()
    done = subprocess.run([*emulator, str(program), "--selftest"], capture_output=True, text=True, check=False)
    record |= {"ran_s": round(time.perf_counter() - start, 1), "said": done.stdout.split("\n")[:-1]}
    unrecorded = "no call was recorded" in done.stderr
    return record if done.returncode == 0 or unrecorded else {**record, "failed": done.stderr[-500:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="")
    parser.add_argument("--targets", default=",".join(EMULATORS))
    parser.add_argument("--precision", default="f32,int8")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    models = find_models()
    rows = []
    for name in given.models.split(",") if given.models else models:
        for target in given.targets.split(","):
            emulator = emulator_of(target)
            if emulator is None:
                print(f"{target}: no emulator (apt-get install qemu-user-static)")
                continue
            for precision in given.precision.split(","):
                path, options = models[name]
                with tempfile.TemporaryDirectory() as folder:
                    record = try_model(path, (*options, "--precision", precision), target, Path(folder), emulator)
                rows.append({"model": name, "target": target, "precision": precision, **record})
                print(json.dumps(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
