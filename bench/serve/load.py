"""Load on a server, and what it costs: a closed loop with `wrk`, and the CPU time of a process tree.

CPU time a request is the number to compare: it hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Closed:
    """A closed loop: `connections` clients that ask again as soon as they have an answer."""

    requests: int
    errors: int
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float  # of the server, a request

    def record(self) -> dict[str, Any]:
        return asdict(self)


def processes(root: int) -> list[int]:
    """A process and its descendants."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                queue += [int(each) for each in task.read_text().split()]
            except OSError:
                continue
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of a process and its descendants so far."""
    return sum(_ticks(Path(f"/proc/{pid}/stat")) for pid in processes(root)) / _TICK


def cpu_by_thread(root: int) -> dict[str, float]:
    """The same of each thread that runs, by the process and the thread's name."""
    found: dict[str, float] = {}
    for pid in processes(root):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                name = "main" if task.name == str(pid) else (task / "comm").read_text().strip()
            except OSError:
                continue
            key = f"{pid} {name}"
            found[key] = found.get(key, 0.0) + _nanoseconds(task / "schedstat") / 1e9
    return found


def _nanoseconds(schedstat: Path) -> int:
    try:
        return int(schedstat.read_text().split()[0])
    except OSError:
        return 0


def _ticks(stat: Path) -> int:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def closed_loop(
    pid: int, url: str, body: bytes, headers: Mapping[str, str], seconds: float, connections: int = 8
) -> Closed:
    """`wrk` on one thread."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt install wrk")
    with tempfile.TemporaryDirectory() as folder:
        payload, script = Path(folder) / "body", Path(folder) / "post.lua"
        payload.write_bytes(body)
        lines = ['wrk.method = "POST"', f'local file = io.open("{payload}", "rb")', 'wrk.body = file:read("*a")']
        lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
        lines += [
            "done = function(summary, latency, requests)",
            '  io.write(string.format("SMELT %d %d %.6f %.6f %.6f\\n", summary.requests,',
            "    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status"
            " + summary.errors.timeout,",
            "    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1000,"
            " latency:percentile(99) / 1000))",
            "end",
        ]
        script.write_text("\n".join(lines))
        before = cpu_seconds(pid)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script), url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        spent = cpu_seconds(pid) - before
    found = re.search(r"SMELT (\d+) (\d+) (\S+) (\S+) (\S+)", done.stdout)
    if found is None:
        raise SystemExit(f"wrk failed: {done.stdout}{done.stderr}")
    requests = max(1, int(found[1]))
    return Closed(int(found[1]), int(found[2]), *(float(found[i]) for i in (3, 4, 5)), 1e6 * spent / requests)
