"""`smelt bench --url`: load on a server. Requests leave at random times of a given rate, whatever the answers do.

Latency counts from the time at which a request should have left, so that a server that falls behind cannot hide it.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from smelt.cli import load_language, open_loop
from smelt.cli.open_loop import OpenLoop, Streamed, quantiles
from smelt.cli.sizes import parse_sizes
from smelt.client.calls import AsyncClient, ServerError
from smelt.client.wire import BYTES, HEADER, NUMPY, encode_request
from smelt.dtype import Array
from smelt.errors import RunError, UnsupportedError

PATIENCE = 30.0  # seconds that an answer may take
LANGUAGE = "smelt_language_model"  # the platform of a language model


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: `rate` requests a second for `seconds`, to a model."""

    model: str = ""
    rate: float = 100.0
    seconds: float = 5.0
    sizes: Sequence[str] = ()
    key: str = ""
    seed: int = 0
    within_ms: float = 1000.0  # for goodput
    prompt: int = 512  # words of a language model's prompt
    new: int = 128  # tokens that it generates


def load(url: str, asked: Load, as_json: bool) -> None:
    """Load a server and print what its clients saw."""
    if asked.rate <= 0 or asked.seconds <= 0:
        got = f"rate {asked.rate:g}, seconds {asked.seconds:g}"
        raise RunError("rate and seconds must be positive", got=got, remedy="--rate 10 --seconds 10")
    found = open_loop.run(_load(url, asked))
    if as_json:
        print(json.dumps(found))
    else:
        _print(found, asked.within_ms)


def _print(found: Mapping[str, Any], within: float) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{found['model']}: {found['requests']} requests in {found['seconds']:.1f} s, {found['rate']:.0f} a second"
    )
    named = {"latency_ms": "latency from the intended time", "first_token_ms": "time to the first token"}
    for name, about in {**named, "between_tokens_ms": "time between tokens"}.items():
        if name in found:
            quantiles = "  ".join(f"p{each} {value:.2f}" for each, value in found[name].items())
            console.print(f"{about} in ms: {quantiles}")
    console.print(f"the longest took {found['most_ms']:.2f} ms")
    if "tokens_per_second" in found:
        console.print(f"{found['tokens']} tokens, {found['tokens_per_second']:.1f} a second")
    console.print(f"answered {found['answered']}, refused or failed {found['failed']} {dict(found['errors']) or ''}")
    console.print(f"goodput: {found['goodput']:.1f} a second within {within:g} ms")


async def _load(url: str, asked: Load) -> dict[str, Any]:
    generator = np.random.default_rng(asked.seed)
    async with AsyncClient(url, key=asked.key) as client:
        name = asked.model or await _only(client)
        metadata = await _metadata(client, name)
        language = metadata is None or metadata.get("platform") == LANGUAGE
        message = (
            load_language.messages(client, name, asked.prompt, asked.new, asked.seed)
            if language
            else _message(client, name, _inputs(metadata or {}, parse_sizes(asked.sizes), generator))
        )
        times = np.cumsum(generator.exponential(1 / asked.rate, max(1, round(asked.rate * asked.seconds))))
        streamed: list[Streamed] | None = [] if language else None
        warm = OpenLoop(client, message, [0.0], [] if language else None)  # connections and caches
        await warm.run(PATIENCE)
        sender = OpenLoop(client, message, times.tolist(), streamed)
        gc.collect()
        gc.freeze()  # pauses of this process would be counted as the server's
        try:
            await sender.run(PATIENCE)
        finally:
            gc.unfreeze()
    found = {
        "model": name,
        "requests": len(times),
        "seconds": sender.sent_after,
        "rate": len(times) / max(sender.sent_after, 1e-9),
        "answered": len(sender.latencies),
        "failed": sum(sender.errors.values()),
        "errors": dict(sender.errors),
        "latency_ms": quantiles(sender.latencies),
        "most_ms": 1000 * max(sender.latencies, default=float("nan")),
    }
    judged = sender.latencies
    if streamed is not None:
        judged, about = load_language.summarise(streamed)
        found |= about | {"tokens_per_second": about["tokens"] / max(sender.ended_after, 1e-9)}
    good = sum(1000 * seconds <= asked.within_ms for seconds in judged)
    return found | {"within_ms": asked.within_ms, "goodput": good / max(sender.ended_after, 1e-9)}


def _message(client: AsyncClient, name: str, inputs: dict[str, Array]) -> Callable[[int], bytes]:
    body, length = encode_request(inputs)
    made = client.message("POST", f"/v2/models/{name}/infer", body, {HEADER: str(length)})
    return lambda number: made


async def _metadata(client: AsyncClient, name: str) -> dict[str, Any] | None:
    """What the server says about a model; None: it speaks OpenAI's protocol only."""
    try:
        return await client.metadata(name)
    except ServerError as error:
        if error.status != 404:
            raise
    served = json.loads(await client.send("GET", "/v1/models", b"", {}, PATIENCE))
    if name not in [row["id"] for row in served["data"]]:
        raise RunError(
            f"the server has no model {name!r}",
            expected=", ".join(row["id"] for row in served["data"]),
            remedy="--model with one of these",
        )
    return None


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
