"""`smelt bench --url`: load on a server. Requests leave at random times of a given rate, whatever the answers do.

Latency counts from the time at which a request should have left, so that a server that falls behind cannot hide it.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from smelt.cli import open_loop
from smelt.cli.open_loop import OpenLoop
from smelt.cli.sizes import parse_sizes
from smelt.client.calls import AsyncClient
from smelt.client.wire import BYTES, HEADER, NUMPY, encode_request
from smelt.dtype import Array
from smelt.errors import RunError, UnsupportedError

PATIENCE = 30.0  # seconds that an answer may take
QUANTILES = (50, 90, 99, 99.9)


def load(
    url: str, model: str, rate: float, seconds: float, sizes: Sequence[str], key: str, seed: int, as_json: bool
) -> None:
    """Load a server and print what its clients saw."""
    if rate <= 0 or seconds <= 0:
        got = f"rate {rate:g}, seconds {seconds:g}"
        raise RunError("rate and seconds must be positive", got=got, remedy="--rate 10 --seconds 10")
    found = open_loop.run(_load(url, model, rate, seconds, parse_sizes(sizes), key, seed))
    if as_json:
        print(json.dumps(found))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{found['model']}: {found['requests']} requests in {found['seconds']:.1f} s, {found['rate']:.0f} a second"
    )
    quantiles = "  ".join(f"p{name} {value:.2f}" for name, value in found["latency_ms"].items())
    console.print(f"latency in ms from the intended time: {quantiles}  most {found['most_ms']:.2f}")
    console.print(f"answered {found['answered']}, refused or failed {found['failed']} {dict(found['errors']) or ''}")


async def _load(
    url: str, model: str, rate: float, seconds: float, sizes: dict[str, int], key: str, seed: int
) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    async with AsyncClient(url, key=key) as client:
        name = model or await _only(client)
        inputs = _inputs(await client.metadata(name), sizes, generator)
        body, length = encode_request(inputs)
        path, headers = f"/v2/models/{name}/infer", {HEADER: str(length)}
        for _ in range(3):  # connections and caches
            await client.send("POST", path, body, headers, PATIENCE)
        times = np.cumsum(generator.exponential(1 / rate, max(1, round(rate * seconds))))
        sender = OpenLoop(client, client.message("POST", path, body, headers), times.tolist())
        gc.collect()
        gc.freeze()  # pauses of this process would be counted as the server's
        try:
            await sender.run(PATIENCE)
        finally:
            gc.unfreeze()
    latencies = np.array(sender.latencies or [float("nan")]) * 1000
    return {
        "model": name,
        "requests": len(times),
        "seconds": sender.sent_after,
        "rate": len(times) / max(sender.sent_after, 1e-9),
        "answered": len(sender.latencies),
        "failed": sum(sender.errors.values()),
        "errors": dict(sender.errors),
        "latency_ms": {f"{each:g}": float(np.percentile(latencies, each)) for each in QUANTILES},
        "most_ms": float(latencies.max()),
    }


async def _only(client: AsyncClient) -> str:
    rows = json.loads(await client.send("POST", "/v2/repository/index", b'{"ready": true}', {}, PATIENCE))
    if len(rows) != 1:
        raise RunError("which model?", expected=", ".join(row["name"] for row in rows), remedy="--model NAME")
    return str(rows[0]["name"])


def _inputs(metadata: dict[str, Any], sizes: dict[str, int], generator: np.random.Generator) -> dict[str, Array]:
    """Random numbers for what the server says; a size that it leaves open is 1, or `--size INPUT.AXIS=N`."""
    found = {}
    for port in metadata["inputs"]:
        name, kind = port["name"], port["datatype"]
        shape = [sizes.get(f"{name}.{axis}", 1) if size < 0 else size for axis, size in enumerate(port["shape"])]
        if kind == BYTES or kind not in NUMPY:
            raise UnsupportedError(f"{name}: no random inputs of {kind}", remedy="load a model with numeric inputs")
        numbers = generator.standard_normal(shape) if NUMPY[kind].kind in "fV" else generator.integers(0, 2, shape)
        found[name] = numbers.astype(NUMPY[kind])
    return found
