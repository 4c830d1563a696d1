"""Tool calls in answers: the conventions of chat templates, and the calls that an answer makes by them.

The template says how its model was trained: the first convention whose mark it contains is the one. An answer that is
no well-formed call is text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Convention:
    """Calls stand between `begin` and `end` as JSON: a record, or a list of them. Without an `end`, or where it did
    not come, they go to the end of the answer; without a `begin` the whole answer is a call."""

    mark: str  # what a template of this convention contains
    begin: str
    end: str
    arguments: str = "arguments"


CONVENTIONS = (
    Convention("<tool_call>", "<tool_call>", "</tool_call>"),  # Hermes, Qwen, SmolLM
    Convention("[TOOL_CALLS]", "[TOOL_CALLS]", ""),  # Mistral
    Convention("<|tool_call|>", "<|tool_call|>", "<|/tool_call|>"),  # Phi
    Convention('"parameters":', "", "", "parameters"),  # Llama 3
)


def convention_of(template: str) -> Convention:
    """How a template's model calls tools."""
    if "tools" not in template:
        raise UnsupportedError("the chat template has no place for tools", remedy="describe them in a message")
    found = next((each for each in CONVENTIONS if each.mark in template), None)
    if found is None:
        raise UnsupportedError(
            "the chat template calls tools in a way that is not known",
            expected=", ".join(each.mark for each in CONVENTIONS),
        )
    return found


def parse_calls(text: str, convention: Convention) -> tuple[ToolCall, ...]:
    """The calls of an answer, its special tokens included; none where any of them is not well-formed."""
    found: list[ToolCall] = []
    for part in _parts(text, convention):
        try:
            parsed = json.loads(part)
        except (ValueError, RecursionError):
            return ()
        for each in parsed if isinstance(parsed, list) else [parsed]:
            call = _call(each, convention)
            if call is None:
                return ()
            found.append(call)
    return tuple(found)


def _parts(text: str, convention: Convention) -> Sequence[str]:
    if not convention.begin:
        whole = text.split("<|python_tag|>")[-1]
        for end in ("<|eot_id|>", "<|eom_id|>"):
            whole = whole.removesuffix(end)
        return [whole] if whole.lstrip().startswith("{") else []
    parts = text.split(convention.begin)[1:]
    if convention.end:
        return [part.partition(convention.end)[0] for part in parts]
    return [_json_prefix(part) for part in parts]


def _json_prefix(text: str) -> str:
    """The JSON value that a text begins with; what follows (an end token) is none of it."""
    begin = text.lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(begin)
    except (ValueError, RecursionError):
        return text
    return begin[:end]


def _call(parsed: Any, convention: Convention) -> ToolCall | None:
    if not isinstance(parsed, Mapping) or not isinstance(parsed.get("name"), str):
        return None
    arguments = parsed.get(convention.arguments, parsed.get("arguments", parsed.get("parameters")))
    if isinstance(arguments, str):  # some write the record as a text
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return ToolCall(parsed["name"], arguments) if isinstance(arguments, Mapping) else None
