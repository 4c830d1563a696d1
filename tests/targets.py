"""Tests again, with kernels for other processors: `SMELT_TARGET` for each target that this machine can run.

`make test` runs SAMPLES of the kernel, property and conformance tests for avx2 and plain. `make test-all` runs
everything for every target, and the tests of int8 products on an emulated processor without VNNI where qemu-user is
installed and this one has VNNI. Neither repeats the target that this processor is: all other tests ran its kernels.
(Code for NEON runs under qemu-aarch64 in tests/unit/kernel/test_memory_bounds.py, in every run.)
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from smelt.device import cpu  # noqa: E402

SAMPLED = ("avx2", "plain")
SAMPLES = (
    "tests/unit/kernel/test_linalg_kernels.py",
    "tests/unit/engine/test_quantised_models.py",
    "tests/property/test_kernels.py",
    "tests/conformance/test_stablehlo.py::test_native_sample[interpret]",
)
# What multiplies int8, by us or by onnxruntime; kernels are for avx2, which is what the emulated processor has.
INT8 = ("tests/unit/engine/test_quantised_models.py", "tests/unit/read/test_onnx_quant.py")
EMULATED = "Haswell"
VNNI = frozenset({"avx512_vnni", "avx_vnni"})


def missing(name: str) -> str:
    """What this machine lacks to run code for a target; "" where it lacks nothing."""
    target, here = cpu.TARGETS[name], cpu.target("native")
    if target.name != here.name:
        return f"this is {here.name}"
    return ", ".join(sorted(target.features - here.features))


def is_own(name: str) -> bool:
    """Whether kernels for this processor are those for a target: of the features that kernels use it has the same."""
    used = frozenset[str]().union(*(each.features for each in cpu.TARGETS.values()))
    return not missing(name) and cpu.TARGETS[name].features == cpu.target("native").features & used


def run(title: str, command: Sequence[str], **environment: str) -> bool:
    print(f"\n==== {title}", flush=True)
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="everything, for every target")
    options, more = parser.parse_known_args()
    failed = []
    for name in cpu.TARGETS if options.all else SAMPLED:
        lacks = missing(name)
        if lacks:
            print(f"\n==== {name}: left out, this machine cannot run it ({lacks})", flush=True)
            continue
        if is_own(name):
            print(f"\n==== {name}: left out, it is what this machine's own kernels are for", flush=True)
            continue
        parts = () if options.all else SAMPLES
        if not run(name, [sys.executable, "-m", "pytest", *parts, *more], SMELT_TARGET=name):
            failed.append(name)
    here = cpu.target("native")
    emulator = shutil.which("qemu-x86_64") if here.name == "x86_64" else None
    if options.all and not here.features & VNNI:
        print("\n==== int8 on a processor without VNNI: left out, this is one", flush=True)
    elif options.all and emulator:
        command = [emulator, "-cpu", EMULATED, sys.executable, "-m", "pytest", "-n0", "--timeout=1800", *INT8]
        if not run(f"int8 on an emulated {EMULATED}", command, SMELT_TARGET="avx2"):
            failed.append(EMULATED)
    elif options.all:
        print("\n==== int8 on a processor without VNNI: left out, wants qemu-x86_64 (apt-get install qemu-user)")
    print(f"\n==== other targets: {'failed for ' + ', '.join(failed) if failed else 'passed'}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
