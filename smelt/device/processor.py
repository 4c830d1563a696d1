"""The processor of this machine and the others that code is compiled for, as targets.

`device.cpu_device` and `device.cpu` read it. `SMELT_TARGET` selects another processor than this one.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Set
from functools import cache

from smelt.errors import DeviceError
from smelt.target import Target

# Features beyond the baseline that code for a target may use. It runs only on processors with all of them.
_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = _AVX512 | {"avx512_bf16", "avx512_vnni"}
_ARM = platform.machine() if platform.machine() in ("aarch64", "arm64") else "aarch64"
_WHOLE = ("x86_64_v4", "-mprefer-vector-width=512")
# Bytes of L1 and L2 of the smallest common processors with these features.
_SMALL, _LARGE = (32 << 10, 512 << 10), (32 << 10, 1 << 20)
TARGETS = {
    "avx512bf16": Target(
        "x86_64", 1, 64, _LARGE, _BF16, (*_WHOLE, "-mavx512bf16", "-mavx512vnni"), registers=32, has_pairs=True
    ),
    "avx512": Target("x86_64", 1, 64, _LARGE, _AVX512, _WHOLE, registers=32),
    "avx512vnni": Target("x86_64", 1, 64, _LARGE, _AVX512 | {"avx512_vnni"}, (*_WHOLE, "-mavx512vnni"), registers=32),
    "avx2": Target("x86_64", 1, 32, _SMALL, _AVX2, ("x86_64_v3",), registers=16),
    "neon": Target(_ARM, 1, 16, _SMALL, flags=("baseline",), registers=32),
    "plain": Target(platform.machine(), 1, 16, _SMALL, flags=("baseline", "-DSMELT_PLAIN"), registers=16),
}


def target(name: str | None = None) -> Target:
    """The target of a name (a key of `TARGETS`), else of `SMELT_TARGET`, else this machine's processor."""
    name = os.environ.get("SMELT_TARGET", "") if name is None else name
    if name in ("", "native"):
        return _native()
    if name not in TARGETS:
        known = ", ".join(["native", *TARGETS])
        raise DeviceError("unknown target", expected=known, got=name, remedy="set SMELT_TARGET to one of these")
    return TARGETS[name].replace(cores=_native().cores)


@cache
def _native() -> Target:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            described = file.read()
    except OSError:
        described = ""  # not Linux: the baseline ISA
    return describe_processor(described, platform.machine(), os.cpu_count() or 1)


def describe_processor(described: str, machine: str, cores: int) -> Target:
    """The target of a processor as /proc/cpuinfo describes it."""
    line = next((line for line in described.splitlines() if line.startswith(("flags", "Features"))), "")
    features = frozenset(line.partition(":")[2].split())
    width = 64 if "avx512f" in features else 32 if "avx2" in features else 16
    flags = ("native", "-mprefer-vector-width=512") if width == 64 else ("native",)
    registers = 32 if width == 64 or machine in ("aarch64", "arm64") else 16
    known = (machine, cores, width, _SMALL, features, flags)
    return Target(*known, registers=registers, has_pairs=has_pairs(features, width))


def has_pairs(features: Set[str], width: int) -> bool:
    """Whether vdpbf16ps is worth using: processors that have matrix tiles take four times as long for it as for a
    multiply-add (0.73 and 0.18 ns on Emerald Rapids)."""
    return "avx512_bf16" in features and "amx_bf16" not in features and width >= 64


def list_absent(processor: Target) -> str:
    """The features of a target that this machine lacks, as text."""
    here = _native()
    if processor.name != here.name:
        return f"a processor of the kind {processor.name}"
    return ", ".join(sorted(processor.features - here.features)) if here.features else ""
