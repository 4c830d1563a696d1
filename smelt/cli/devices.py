"""`smelt devices`: the devices and engines of this machine, and how to get the missing ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from smelt.buffer import bytes_text
from smelt.cli.tables import open_console, print_facts
from smelt.device import cpu, pjrt
from smelt.engine import ENGINES, engines
from smelt.errors import SmeltError

NOTABLE = ("sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile")
NOTABLE_ARM = ("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2")


def devices(as_json: bool) -> None:
    """Print every device with its engines."""
    found = [_processor(), _cuda()]
    if as_json:
        print(json.dumps({"devices": found}))
        return
    console = open_console()
    for device in found:
        if "missing" in device:
            console.print(f"[bold]{device['device']}[/]  not here: {_plain(device['missing'])}")
            continue
        console.print(f"[bold]{device['device']}[/]  {_plain(device['kind'])}")
        states = [(name, "ready" if why is None else f"not here: {why}") for name, why in device["engines"].items()]
        facts = [(name, str(value)) for name, value in device["facts"].items()]
        print_facts(console, [(f"  {name}", text) for name, text in (*facts, *states)])


def _processor() -> dict[str, Any]:
    target = cpu.target()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    notable = [name for name in (*NOTABLE, *NOTABLE_ARM) if name in target.features]
    facts: dict[str, Any] = {
        "threads": usable,
        "vectors": f"{8 * target.vector_bytes} bits",
        "features": " ".join(notable) or "none that kernels use",
        "caches": ", ".join(_caches()) or "unknown",
        "memory": _memory(),
    }
    states = {engine.name: engine.missing() for engine in ENGINES}
    return {"device": "cpu", "kind": _model() or target.name, "facts": facts, "engines": states}


def _cuda() -> dict[str, Any]:
    """The first GPU as XLA sees it. A plug-in that cannot open it is missing something too."""
    reason = pjrt.missing("cuda")
    if reason is not None:
        return {"device": "cuda", "missing": reason}
    try:
        client = pjrt.client("cuda")
        facts = {"devices": client.devices, "memory": bytes_text(int(client.stats().get("bytes_limit", 0)))}
        states = {engine.name: engine.missing() for engine in engines("cuda")}
        return {"device": "cuda", "kind": client.kind, "facts": facts, "engines": states}
    except SmeltError as error:
        return {"device": "cuda", "missing": f"{error.message}: {error.got}"}


def _model() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""


def _caches() -> list[str]:
    """The caches of the first core: `32K L1d`."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        told = {name: "".join(_lines(folder / name)) for name in ("level", "type", "size")}
        letter = {"Data": "d", "Instruction": "i"}.get(told["type"], "")
        found.append(f"{told['size']} L{told['level']}{letter}")
    return found


def _memory() -> str:
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemTotal"):
            return bytes_text(int(line.split()[1]) * 1024)
    return "unknown"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not Linux, or hidden in a container
        return []


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
