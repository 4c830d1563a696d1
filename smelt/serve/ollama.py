"""Ollama's API for language models: chat, generate, embed, tags, ps, show, version. Streams are lines of JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from smelt.serve.http import Request, Response, Routes, json_response, read_json
from smelt.serve.language import Generation, Languages, Opened, chat_prompt, check_supported, complete, explain_failure
from smelt.serve.models import Version
from smelt.serve.problems import ForbiddenError, RequestError
from smelt.serve.tool_choice import ToolUse, choose_tools
from smelt.version import __version__

LINES = b"application/x-ndjson"
_dump = msgspec.json.Encoder().encode
# Ollama's options → ours.
_OPTIONS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
}
_IGNORED = ("num_ctx", "num_thread", "num_batch", "num_gpu", "num_keep", "use_mmap", "low_vram", "f16_kv", "numa")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
LONGEST = 1e9  # seconds that a model stays; longer is for ever
FOR_EVER = datetime(9999, 1, 1, tzinfo=UTC)


class OllamaRequest(msgspec.Struct, kw_only=True):
    model: str
    stream: bool = True
    options: dict[str, Any] = {}
    keep_alive: float | str | None = None
    format: Any = None
    tools: list[Any] | None = None
    images: list[Any] | None = None


class OllamaChatRequest(OllamaRequest, kw_only=True):
    messages: list[dict[str, Any]] = []


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    prompt: str = ""
    suffix: str | None = None
    system: str = ""
    raw: bool = False


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    model: str
    input: str | list[str]
    keep_alive: float | str | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    model: str
    prompt: str
    keep_alive: float | str | None = None


class OllamaShowRequest(msgspec.Struct):
    model: str = ""
    name: str = ""


_CHAT, _GENERATE = msgspec.json.Decoder(OllamaChatRequest), msgspec.json.Decoder(OllamaGenerateRequest)
_EMBED, _OLD_EMBED = msgspec.json.Decoder(OllamaEmbedRequest), msgspec.json.Decoder(OllamaEmbeddingsRequest)
_SHOW = msgspec.json.Decoder(OllamaShowRequest)
Form = Callable[[str, list[dict[str, Any]]], dict[str, Any]]  # text, calls of tools → fields of an answer


class Ollama:
    """The paths under /api."""

    def __init__(self, languages: Languages) -> None:
        self.languages, self.config = languages, languages.config

    def add_to(self, routes: Routes) -> None:
        routes.add("POST", "/api/chat", self.chat)
        routes.add("POST", "/api/generate", self.generate)
        routes.add("POST", "/api/embed", self.embed)
        routes.add("POST", "/api/embeddings", self.embeddings)
        routes.add("GET", "/api/tags", self.tags)
        routes.add("GET", "/api/ps", self.list_loaded)
        routes.add("POST", "/api/show", self.show)
        routes.add("GET", "/api/version", self.version)
        for name in ("pull", "push", "create", "copy", "delete"):
            routes.add_absent(f"/api/{name}", "requests do not change which models there are: smelt pull, smelt serve")

    async def _read(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
        return read_json(decoder, await request.body(self.config.max_body, self.config.body_timeout), "the request")

    async def _open(self, request: Request, name: str) -> Opened:
        return await self.languages.open(request, _name(name))

    async def chat(self, request: Request) -> Response:
        asked: OllamaChatRequest = await self._read(request, _CHAT)
        opened = await self._open(request, asked.model)
        if not asked.messages:
            return self._answer_load(request, asked, opened, {"message": _message("", [])})
        tools = choose_tools(opened.texts.about.template, asked.tools)
        if any(message.get("images") for message in asked.messages):
            raise RequestError("images are not supported here", remedy="leave out images")
        prompt = await chat_prompt(opened, asked.messages, tools.offered)
        return await self._answer(request, asked, opened, prompt, lambda *said: {"message": _message(*said)}, tools)

    async def generate(self, request: Request) -> Response:
        """A prompt through the chat template, as Ollama does; `raw` takes it as it is."""
        asked: OllamaGenerateRequest = await self._read(request, _GENERATE)
        check_supported({"suffix": asked.suffix, "tools": asked.tools}, ("suffix", "tools"))
        opened = await self._open(request, asked.model)
        if not asked.prompt:
            return self._answer_load(request, asked, opened, {"response": ""})
        if asked.raw or not opened.texts.about.template:
            (prompt,) = await opened.prepare(opened.texts.encode([asked.system + asked.prompt]))
        else:
            system = [{"role": "system", "content": asked.system}] if asked.system else []
            prompt = await chat_prompt(opened, [*system, {"role": "user", "content": asked.prompt}])
        return await self._answer(request, asked, opened, prompt, lambda text, _: {"response": text}, ToolUse())

    async def _answer(
        self,
        request: Request,
        asked: OllamaRequest,
        opened: Opened,
        prompt: list[int],
        form: Form,
        tools: ToolUse,
    ) -> Response:
        check_supported({"images": asked.images}, ("images",))
        alive = _seconds(asked.keep_alive)
        options = _options(asked.options) | _schema(asked.format)
        (run,) = await self.languages.start(request, opened, [prompt], options, 1, bool(tools))
        started = time.perf_counter()

        def close() -> None:
            run.cancel()
            self._keep(request, opened, asked.keep_alive, alive)

        if asked.stream:
            return Response(kind=LINES, stream=_lines(run, form, tools, started), close=close)
        try:
            await complete(request, [run])
        finally:
            close()
        return json_response({**_head(opened), **_whole(run, form, tools), **_tail(run, started)})

    def _keep(self, request: Request, opened: Opened, given: Any, seconds: float | None) -> bool:
        """Unload a model some time after its last use. Where there are keys, that needs one for administration; with
        another it is not done."""
        if given is None:
            return False
        if self.config.keys:
            try:
                self.languages.keys.check_admin(request.key)
            except ForbiddenError:
                return False
        if seconds == 0:
            self.languages.note("unload", request, model=opened.name)
        self.languages.catalogue.keep_alive(opened.name, seconds)
        return True

    def _answer_load(self, request: Request, asked: OllamaRequest, opened: Opened, fields: dict[str, Any]) -> Response:
        """A request without text loads a model, or unloads it with `keep_alive` 0."""
        seconds = _seconds(asked.keep_alive)
        is_kept = self._keep(request, opened, asked.keep_alive, seconds)
        reason = "unload" if is_kept and seconds == 0 else "load"
        return json_response({**_head(opened), **fields, "done": True, "done_reason": reason})

    async def embed(self, request: Request) -> Response:
        asked: OllamaEmbedRequest = await self._read(request, _EMBED)
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        started = time.perf_counter()
        name, rows, tokens = await self._embed(request, asked, texts)
        spent = round((time.perf_counter() - started) * 1e9)
        return json_response({"model": name, "embeddings": rows, "total_duration": spent, "prompt_eval_count": tokens})

    async def embeddings(self, request: Request) -> Response:
        asked: OllamaEmbeddingsRequest = await self._read(request, _OLD_EMBED)
        _, rows, _ = await self._embed(request, asked, [asked.prompt])
        return json_response({"embedding": rows[0]})

    async def _embed(
        self, request: Request, asked: OllamaEmbedRequest | OllamaEmbeddingsRequest, texts: list[str]
    ) -> tuple[str, Any, int]:
        seconds = _seconds(asked.keep_alive)
        opened = await self.languages.open_encoder(request, _name(asked.model))
        made = await request.while_connected(opened.run(opened.texts.embed(texts)))
        opened.stats.prompt_tokens += made.tokens
        self._keep(request, opened, asked.keep_alive, seconds)
        return opened.name, made.array.tolist(), made.tokens

    async def tags(self, request: Request) -> Response:
        return json_response({"models": [_describe(each) for each in self.languages.list_models(request)]})

    async def list_loaded(self, request: Request) -> Response:
        """The models in memory, and until when they stay there if no one uses them."""
        rows = []
        for each in self.languages.list_models(request):
            if each.loaded is None:
                continue
            left = None if each.keep_alive is None else each.used + each.keep_alive - time.monotonic()
            until = FOR_EVER if left is None else datetime.now(UTC) + timedelta(seconds=max(0.0, left))
            rows.append({**_describe(each), "size_vram": 0, "expires_at": until.isoformat()})
        return json_response({"models": rows})

    async def show(self, request: Request) -> Response:
        asked: OllamaShowRequest = await self._read(request, _SHOW)
        opened = await self.languages.open_any(request, _name(asked.model or asked.name))
        about = opened.texts.about
        info = {"general.architecture": about.family, "context_length": about.context}
        details = {"format": about.format, "family": about.family}
        return json_response({"details": details, "template": about.template, "model_info": info})

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})


def _name(given: str) -> str:
    return given.removesuffix(":latest")


def _seconds(keep_alive: float | str | None) -> float | None:
    """For how long a model stays: seconds, or a duration such as "5m" or "1h30m". None: for ever, as if negative."""
    if keep_alive is None:
        return None
    if isinstance(keep_alive, str):
        text = keep_alive.strip().removeprefix("-")
        is_negative = text != keep_alive.strip()
        parts = _DURATION.findall(text)
        if "".join(number + unit for number, unit in parts) == text and parts:
            found = sum(float(number) * _UNITS[unit] for number, unit in parts)
        elif re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            found = float(text)
        else:
            raise RequestError(
                "keep_alive is no duration", expected='seconds, or "5m", "1h30m", -1 for ever', got=keep_alive[:80]
            )
        return None if is_negative or found > LONGEST else found
    if keep_alive != keep_alive:
        raise RequestError("keep_alive is no duration", got=keep_alive)
    return keep_alive if 0 <= keep_alive <= LONGEST else None


def _schema(form: Any) -> dict[str, Any]:
    """`format`: "json", or a JSON schema that the answer fits."""
    if form in (None, ""):
        return {}
    if form == "json":
        return {"schema": {"type": "object"}}
    if isinstance(form, dict):
        return {"schema": form}
    raise RequestError("unknown format", expected='"json", or a JSON schema', got=form)


def _message(text: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Ollama's defaults: temperature 0.8, top_k 40, top_p 0.9."""
    unknown = given.keys() - _OPTIONS.keys() - {"num_predict", *_IGNORED}
    if unknown:
        raise RequestError(
            "unknown options", expected=", ".join((*_OPTIONS, "num_predict")), got=", ".join(sorted(unknown))
        )
    found: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
    found |= {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS and value is not None}
    most = -1 if given.get("num_predict") is None else given["num_predict"]
    if type(most) is not int:
        raise RequestError("num_predict is a whole number", got=json.dumps(most)[:80])
    found["max_tokens"] = None if most < 0 else most
    return found


def _head(opened: Opened) -> dict[str, Any]:
    return {"model": opened.name, "created_at": datetime.now(UTC).isoformat()}


def _whole(run: Generation, form: Form, tools: ToolUse) -> dict[str, Any]:
    """An answer that has ended: text, or calls of tools."""
    calls = [{"function": {"name": each.name, "arguments": dict(each.arguments)}} for each in tools.calls(run)]
    return form("" if calls else run.text, calls)


def _tail(run: Generation, started: float) -> dict[str, Any]:
    spent = time.perf_counter() - started
    times = {"total_duration": spent, "load_duration": 0.0, "prompt_eval_duration": run.first,
             "eval_duration": max(0.0, spent - run.first)}  # fmt: skip
    counts = {"prompt_eval_count": len(run.prompt), "eval_count": run.tokens}
    nanoseconds = {name: round(seconds * 1e9) for name, seconds in times.items()}
    return {"done": True, "done_reason": run.finish, **nanoseconds, **counts}


async def _lines(run: Generation, form: Form, tools: ToolUse, started: float) -> AsyncGenerator[bytes, None]:
    """Text as it comes; with tools all of it at the end, since a call is no text."""
    try:
        async for piece in run:
            if not tools:
                yield _dump({**_head(run.opened), **form(piece.text, []), "done": False}) + b"\n"
        last = _whole(run, form, tools) if tools else form("", [])
        yield _dump({**_head(run.opened), **last, **_tail(run, started)}) + b"\n"
    except Exception as error:
        yield _dump({"error": str(explain_failure(error, [run]))}) + b"\n"


def _describe(version: Version) -> dict[str, Any]:
    path, about = version.path, version.about
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]
    changed = max((each.stat().st_mtime for each in files), default=0.0)
    return {
        "name": version.name,
        "model": version.name,
        "modified_at": datetime.fromtimestamp(changed, UTC).isoformat(),
        "size": sum(each.stat().st_size for each in files),
        "details": {} if about is None else {"format": about.format, "family": about.family},
    }
