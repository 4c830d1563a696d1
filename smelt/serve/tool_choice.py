"""Tools of a request → what the prompt offers, the form that an answer must have, and the calls that it makes.

By default the model decides, by the convention of its chat template. A `tool_choice` that demands a call becomes a JSON
schema, so that the answer is one for sure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from smelt.llm.tools import Convention, ToolCall, convention_of, parse_calls
from smelt.serve.problems import RequestError

EXPECTED = '"none", "auto", "required", or a function by its name'


class Answer(Protocol):
    """An answer that has ended. `said`: its text with special tokens."""

    @property
    def text(self) -> str: ...

    @property
    def said(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`offered` tools stand in the prompt; `schema` and `name` are there where one of them must be called."""

    offered: Sequence[Any] = ()
    convention: Convention | None = None
    schema: Mapping[str, Any] | None = None
    name: str = ""  # of the only one that may be called: the answer is its arguments

    def __bool__(self) -> bool:
        return self.convention is not None

    @property
    def options(self) -> dict[str, Any]:
        """For the engine."""
        return {} if self.schema is None else {"schema": self.schema}

    def calls(self, answer: Answer) -> Sequence[ToolCall]:
        """The calls of an answer; none where it is text, or was cut off."""
        if self.convention is None:
            return ()
        if self.schema is None:
            return parse_calls(answer.said, self.convention)
        try:
            made = json.loads(answer.text)
        except ValueError:
            return ()
        return (ToolCall(self.name, made) if self.name else ToolCall(made["name"], made["arguments"]),)


def choose_tools(template: str, tools: Sequence[Any] | None, choice: Any = None) -> ToolUse:
    """`tools` and `choice` as chat completions have them."""
    if not tools or choice == "none":
        if choice not in (None, "none", "auto"):
            raise RequestError("tool_choice demands a call, and there are no tools", expected="tools")
        return ToolUse()
    convention = convention_of(template)
    if choice in (None, "auto"):
        return ToolUse(tools, convention)
    functions = [_function(each) for each in tools]
    if choice != "required":
        wanted = _wanted_name(choice)
        functions = [each for each in functions if each["name"] == wanted]
        if not functions:
            raise RequestError("tool_choice names no tool of the request", got=wanted)
    if len(functions) == 1:
        return ToolUse(tools, convention, _parameters(functions[0]), functions[0]["name"])
    return ToolUse(tools, convention, _any_call(functions))


def _function(tool: Any) -> Mapping[str, Any]:
    found = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise RequestError("a tool is no function", expected='{"type": "function", "function": {"name": …}}')
    return found


def _wanted_name(choice: Any) -> str:
    found = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(name, str):
        raise RequestError("unknown tool_choice", expected=EXPECTED, got=repr(choice)[:80])
    return name


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    found = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(found, dict):
        raise RequestError(f"{function['name']}: the parameters are no JSON schema", got=repr(found)[:80])
    return found


def _any_call(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A call of any of these. Definitions move to the schema's root, with names of their own."""
    calls: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for i, function in enumerate(functions):
        prefix = f"{i}."
        moved = _prefix_references(_parameters(function), prefix)
        definitions |= {prefix + name: each for name, each in (moved.pop("$defs", None) or {}).items()}
        fields = {"name": {"const": function["name"]}, "arguments": moved}
        calls.append({"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False})
    return {"anyOf": calls, "$defs": definitions}


def _prefix_references(schema: Any, prefix: str) -> Any:
    if isinstance(schema, dict):
        return {
            key: each.replace("#/$defs/", f"#/$defs/{prefix}", 1)
            if key == "$ref" and isinstance(each, str)
            else _prefix_references(each, prefix)
            for key, each in schema.items()
        }
    return [_prefix_references(each, prefix) for each in schema] if isinstance(schema, list) else schema
