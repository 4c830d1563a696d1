"""OpenAI's Responses API: text, tools and structured output, whole or as events. Nothing is stored between requests."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from smelt.serve.http import EVENTS, Request, Response, Routes, json_response, read_json
from smelt.serve.language import Generation, Languages, chat_prompt, check_supported, complete, explain_failure, form_of
from smelt.serve.problems import RequestError
from smelt.serve.tool_choice import ToolUse, choose_tools

_dump = msgspec.json.Encoder().encode


class ResponsesRequest(msgspec.Struct, kw_only=True):
    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Any = "auto"
    text: dict[str, Any] = {}
    previous_response_id: str | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None


_REQUEST = msgspec.json.Decoder(ResponsesRequest)


class Responses:
    """POST /v1/responses."""

    def __init__(self, languages: Languages) -> None:
        self.languages = languages

    def add_to(self, routes: Routes) -> None:
        routes.add("POST", "/v1/responses", self.create)

    async def create(self, request: Request) -> Response:
        config = self.languages.config
        asked = read_json(_REQUEST, await request.body(config.max_body, config.body_timeout), "the request")
        kept = {"previous_response_id": asked.previous_response_id, "background": asked.background}
        check_supported(kept, ("previous_response_id", "background"))
        opened = await self.languages.open(request, asked.model)
        given = [_tool(each) for each in asked.tools]
        tools = choose_tools(opened.texts.about.template, given, _choice(asked.tool_choice))
        prompt = await chat_prompt(opened, _messages(asked), tools.offered)
        options = {name: getattr(asked, name) for name in ("temperature", "top_p") if getattr(asked, name) is not None}
        options = {"temperature": 1.0, **options, "max_tokens": asked.max_output_tokens, **form_of(_format(asked.text))}
        (run,) = await self.languages.start(request, opened, [prompt], options | tools.options, 1, bool(tools))
        answer = _Answer(asked, run, tools)
        if asked.stream:
            headers = [(b"cache-control", b"no-cache")]
            return Response(kind=EVENTS, stream=answer.events(), headers=headers, close=run.cancel)
        await complete(request, [run])
        return json_response(answer.record())


def _tool(given: Mapping[str, Any]) -> dict[str, Any]:
    """A function as chat templates take it."""
    if given.get("type") != "function" or not isinstance(given.get("name"), str):
        raise RequestError("a tool is no function", expected='{"type": "function", "name": …, "parameters": {…}}')
    return {"type": "function", "function": {key: value for key, value in given.items() if key != "type"}}


def _choice(given: Any) -> Any:
    """A function by its name as chat completions spell it."""
    if isinstance(given, dict) and given.get("type") == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    return given


def _format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form of the text as chat completions spell it."""
    said = text.get("format")
    if not isinstance(said, dict):
        return None
    return {"type": "json_schema", "json_schema": said} if said.get("type") == "json_schema" else said


def _messages(asked: ResponsesRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if asked.instructions:
        found.append({"role": "system", "content": asked.instructions})
    if isinstance(asked.input, str):
        return [*found, {"role": "user", "content": asked.input}]
    for item in asked.input:
        match item.get("type", "message"):
            case "message":
                found.append({"role": item.get("role", "user"), "content": _content(item.get("content"))})
            case "function_call":
                call = {"name": item.get("name"), "arguments": item.get("arguments")}
                calls = [{"id": item.get("call_id"), "type": "function", "function": call}]
                found.append({"role": "assistant", "content": "", "tool_calls": calls})
            case "function_call_output":
                called = {"tool_call_id": item.get("call_id"), "content": str(item.get("output", ""))}
                found.append({"role": "tool", **called})
            case other:
                raise RequestError("unknown input", expected="message, function_call, function_call_output", got=other)
    return found


def _content(content: Any) -> Any:
    """Parts of text under their names in chat completions; `chat_prompt` refuses the others."""
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text", "text")
    return [
        {"type": "text", "text": part.get("text", "")} if isinstance(part, dict) and part.get("type") in texts else part
        for part in content
    ]


class _Answer:
    def __init__(self, asked: ResponsesRequest, run: Generation, tools: ToolUse) -> None:
        self.asked, self.run, self.tools = asked, run, tools
        self.id, self.message = f"resp_{secrets.token_hex(16)}", f"msg_{secrets.token_hex(16)}"
        self.created = int(time.time())

    def record(self, status: str = "") -> dict[str, Any]:
        """The response; before its end without output."""
        run, asked = self.run, self.asked
        cut = run.finish == "length"
        done = {
            "status": status or ("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut and not status else None,
            "output": [] if status else self.output(),
            "usage": None if status else _usage(run),
        }
        return {
            "id": self.id, "object": "response", "created_at": self.created, "model": run.opened.name, "error": None,
            "instructions": asked.instructions, "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {}, "parallel_tool_calls": True, "previous_response_id": None,
            "temperature": 1.0 if asked.temperature is None else asked.temperature, "top_p": asked.top_p or 1.0,
            "text": asked.text or {"format": {"type": "text"}}, "tool_choice": asked.tool_choice, "tools": asked.tools,
            "truncation": "disabled",
            **done,
        }  # fmt: skip

    def output(self) -> list[dict[str, Any]]:
        calls = self.tools.calls(self.run)
        if not calls:
            return [self.message_item(self.run.text, "completed")]
        return [
            {
                "type": "function_call", "id": f"fc_{secrets.token_hex(8)}", "call_id": f"call_{secrets.token_hex(8)}",
                "name": call.name, "arguments": json.dumps(call.arguments), "status": "completed",
            }
            for call in calls
        ]  # fmt: skip

    def message_item(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [_part(text)]
        return {"type": "message", "id": self.message, "status": status, "role": "assistant", "content": content}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Text as it comes; with tools the items come at the end, since a call is no text."""
        number = 0

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            data = _dump({"type": kind, "sequence_number": number, **fields})
            number += 1
            return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

        at: dict[str, Any] = {"item_id": self.message, "output_index": 0, "content_index": 0}
        yield event("response.created", response=self.record("in_progress"))
        yield event("response.in_progress", response=self.record("in_progress"))
        live = not self.tools
        try:
            if live:
                yield event("response.output_item.added", output_index=0, item=self.message_item(None, "in_progress"))
                yield event("response.content_part.added", **at, part=_part(""))
            async for piece in self.run:
                if live and piece.text:
                    yield event("response.output_text.delta", **at, delta=piece.text, logprobs=[])
        except Exception as error:
            failed = explain_failure(error, [self.run])
            yield event("error", code=type(failed).__name__, message=str(failed), param=None)
            return
        record = self.record()
        if live:
            yield event("response.output_text.done", **at, text=self.run.text, logprobs=[])
            yield event("response.content_part.done", **at, part=_part(self.run.text))
        for index, item in enumerate(record["output"]):
            if not live:
                yield event("response.output_item.added", output_index=index, item=item)
            yield event("response.output_item.done", output_index=index, item=item)
        kind = "response.incomplete" if record["status"] == "incomplete" else "response.completed"
        yield event(kind, response=record)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(run: Generation) -> dict[str, Any]:
    given, made = len(run.prompt), run.tokens
    details: Sequence[tuple[str, dict[str, int]]] = (
        ("input_tokens_details", {"cached_tokens": 0}),
        ("output_tokens_details", {"reasoning_tokens": 0}),
    )
    return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made, **dict(details)}
