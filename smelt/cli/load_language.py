"""Language models under `smelt bench --url`: streamed completions, the time to the first token and between tokens."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from smelt.cli.open_loop import Streamed, quantiles
from smelt.client.calls import AsyncClient

WORDS = ("of", "to", "and", "in", "is", "it", "was", "for", "on", "are", "as", "with", "they", "at", "be", "this")
EVENT, END = b"data: {", b"data: [DONE]"


def messages(client: AsyncClient, model: str, words: int, tokens: int, seed: int) -> Callable[[int], bytes]:
    """Requests with prompts that differ from the first word on, so that no cache knows them."""

    def message(number: int) -> bytes:
        draw = random.Random(f"{seed} {number}")
        asked = {
            "model": model,
            "prompt": " ".join(draw.choices(WORDS, k=max(1, words))),
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return client.message(
            "POST", "/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )

    return message


def summarise(answers: Sequence[Streamed]) -> tuple[list[float], dict[str, Any]]:
    """Seconds to the first token of each answer, and the statistics of all answers."""
    first, between, tokens = list[float](), list[float](), 0
    for each in answers:
        times = token_times(each)
        first += times[:1]
        between += [later - sooner for sooner, later in itertools.pairwise(times)]
        tokens += _usage(each.content, len(times))
    return first, {"tokens": tokens, "first_token_ms": quantiles(first), "between_tokens_ms": quantiles(between)}


def token_times(answer: Streamed) -> list[float]:
    """When each event with a token came."""
    found, before = list[float](), 0
    for seconds, size in answer.parts:
        events = answer.content.count(EVENT, 0, size)
        found += [seconds] * (events - before)
        before = events
    return found[: len(found) - _without_token(answer.content)]


def _without_token(content: bytes) -> int:
    """Events at the end that hold no token: the usage."""
    return int(_last(content).get("usage") is not None and not _last(content).get("choices"))


def _usage(content: bytes, events: int) -> int:
    """The number of tokens that the server counted, or of events."""
    return int((_last(content).get("usage") or {}).get("completion_tokens", events))


def _last(content: bytes) -> dict[str, Any]:
    """The last event but the end of the stream."""
    text = content[: content.rfind(END)] if END in content else content
    line = text[text.rfind(EVENT) + len(EVENT) - 1 :].partition(b"\n")[0] if EVENT in text else b"{}"
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:  # cut apart by the transfer encoding
        return {}
    return found
