"""`smelt top`: what a server does now, from its `/metrics`: a table that is drawn again every few seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep, time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from smelt.buffer import bytes_text
from smelt.errors import DeviceError

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Metrics = dict[str, dict[tuple[tuple[str, str], ...], float]]  # name → labels → value


def parse_metrics(text: str) -> Metrics:
    """Prometheus's text format, without its comments."""
    found: Metrics = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.fullmatch(line.strip())
        if match is not None:
            labels = tuple(sorted(_LABEL.findall(match[2] or "")))
            found.setdefault(match[1], {})[labels] = float(match[3])
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One version of a model between two looks."""

    model: str
    version: str
    per_second: float
    failed: float  # per second, with what was refused
    p50_ms: float | None
    p99_ms: float | None
    waiting: int
    running: int
    memory: int
    tokens_per_second: float | None


def rows_between(before: Metrics, now: Metrics, seconds: float) -> list[Row]:
    found = []
    for labels in now.get("nv_inference_request_success", {}):
        names = dict(labels)

        def value(name: str, labels: tuple[tuple[str, str], ...] = labels) -> float:
            return now.get(name, {}).get(labels, 0.0)

        def rate(name: str, labels: tuple[tuple[str, str], ...] = labels) -> float:
            return max(0.0, value(name, labels) - before.get(name, {}).get(labels, 0.0)) / seconds

        language = (("model_name", names["model"]),)
        tokens = "vllm:generation_tokens_total"
        failed = rate("nv_inference_request_failure") + rate("smelt_request_refused")
        found.append(
            Row(
                names["model"],
                names["version"],
                rate("nv_inference_request_success"),
                failed,
                quantile(before, now, labels, 0.5),
                quantile(before, now, labels, 0.99),
                int(value("nv_inference_pending_request_count")),
                int(value("smelt_running_calls")),
                int(value("smelt_model_memory_bytes")),
                rate(tokens, language) if language in now.get(tokens, {}) else None,
            )
        )
    return found


def quantile(before: Metrics, now: Metrics, labels: Sequence[tuple[str, str]], share: float) -> float | None:
    """Of the requests between two looks, in ms; linear inside a bucket; None without requests."""
    name, wanted = "smelt_request_duration_seconds_bucket", set(labels)
    counts: list[tuple[float, float]] = []
    for each, count in now.get(name, {}).items():
        if wanted <= set(each):
            bound = float(dict(each)["le"].replace("+Inf", "inf"))
            counts.append((bound, count - before.get(name, {}).get(each, 0.0)))
    counts.sort()
    total = counts[-1][1] if counts else 0.0
    low, below = 0.0, 0.0
    for bound, count in counts if total > 0 else ():
        if count >= share * total:
            if bound == float("inf"):
                return low * 1000
            return (low + (bound - low) * (share * total - below) / max(count - below, 1e-12)) * 1000
        low, below = bound, count
    return None


def draw(url: str, rows: Sequence[Row], before: Metrics, now: Metrics, seconds: float) -> RenderableType:
    def total(*names: str, metrics: Metrics = now) -> float:
        return sum(sum(metrics.get(name, {}).values()) for name in names)

    spent = "process_cpu_seconds_total", "smelt_worker_cpu_seconds_total"
    cpu = 100 * max(0.0, total(*spent) - total(*spent, metrics=before)) / seconds
    up = int(time() - total("process_start_time_seconds"))
    memory = bytes_text(int(total("process_resident_memory_bytes", "smelt_worker_memory_bytes")))
    head = Text(f"{url}   up {up // 3600}:{up // 60 % 60:02}:{up % 60:02}   CPU {cpu:.0f} %   memory {memory}")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")  # fits 60 columns
    table.add_column("model", overflow="fold")
    for name in ("req/s", "fail/s", "p50", "p99", "queue", "run", "memory", "tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(f"{row.model} v{row.version}"),
            f"{row.per_second:.1f}",
            f"{row.failed:.1f}",
            _number(row.p50_ms),
            _number(row.p99_ms),
            str(row.waiting),
            str(row.running),
            bytes_text(row.memory) if row.memory else "–",
            _number(row.tokens_per_second),
        )
    return Group(head, table, Text("p50 and p99 in ms; queue, run: requests that wait and run", style="dim"))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def top(url: str, key: str, interval: float, once: bool, as_json: bool) -> None:
    """Look at a server until Ctrl-C; `once` prints what happened in one interval."""
    before, at = fetch(url, key), monotonic()
    if once or as_json:
        sleep(interval)
        now, seconds = fetch(url, key), monotonic() - at
        rows = rows_between(before, now, seconds)
        if as_json:
            print(json.dumps([_record(row) for row in rows]))
        else:
            Console(highlight=False).print(draw(url, rows, before, now, seconds))
        return
    start: list[Row] = rows_between(before, before, 1.0)
    with Live(draw(url, start, before, before, 1.0), console=Console(highlight=False), screen=True) as live:
        while True:
            sleep(interval)
            now, later = fetch(url, key), monotonic()
            live.update(draw(url, rows_between(before, now, later - at), before, now, later - at), refresh=True)
            before, at = now, later


def _record(row: Row) -> Mapping[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


def fetch(url: str, key: str) -> Metrics:
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = Request(f"{url.rstrip('/')}/metrics", headers=headers)
        with urlopen(request, timeout=10) as answer:
            return parse_metrics(answer.read().decode())
    except HTTPError as error:
        error.close()
        remedy = "--key KEY" if error.code in (401, 403) else "check the address"
        raise DeviceError(f"{url} answers {error.code}", remedy=remedy) from error
    except (URLError, ValueError, OSError) as error:
        got = error.reason if isinstance(error, URLError) else error
        raise DeviceError(
            f"{url} does not answer", got=got, remedy="smelt serve MODEL, or --url http://HOST:PORT"
        ) from error
