"""Ollama's API for language models: chat, generate, tags, show, version. Streams are lines of JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from smelt.errors import SmeltError
from smelt.llm import EmbeddingModel, LanguageModel
from smelt.serve.http import Request, Response, Routes, json_response, read_json
from smelt.serve.language import Generation, Languages, check_supported, encode
from smelt.serve.models import Version
from smelt.serve.problems import RequestError
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


class Asked(msgspec.Struct, kw_only=True):
    model: str
    stream: bool = True
    options: dict[str, Any] = {}
    keep_alive: Any = None  # models stay until they are unloaded
    format: Any = None
    tools: list[Any] | None = None
    images: list[Any] | None = None


class ChatAsked(Asked, kw_only=True):
    messages: list[dict[str, Any]] = []


class GenerateAsked(Asked, kw_only=True):
    prompt: str = ""
    suffix: str | None = None
    system: str = ""
    raw: bool = False


class ShowAsked(msgspec.Struct):
    model: str = ""
    name: str = ""


_CHAT, _GENERATE = msgspec.json.Decoder(ChatAsked), msgspec.json.Decoder(GenerateAsked)
_SHOW = msgspec.json.Decoder(ShowAsked)


class Ollama:
    """The paths under /api."""

    def __init__(self, languages: Languages) -> None:
        self.languages, self.config = languages, languages.config

    def add_to(self, routes: Routes) -> None:
        routes.add("POST", "/api/chat", self.chat)
        routes.add("POST", "/api/generate", self.generate)
        routes.add("GET", "/api/tags", self.tags)
        routes.add("POST", "/api/show", self.show)
        routes.add("GET", "/api/version", self.version)

    async def _read(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
        return read_json(decoder, await request.body(self.config.max_body, self.config.body_timeout), "the request")

    def _open(self, request: Request, name: str) -> Version:
        return self.languages.open(request, name.removesuffix(":latest"))

    async def chat(self, request: Request) -> Response:
        asked: ChatAsked = await self._read(request, _CHAT)
        version = self._open(request, asked.model)
        if not asked.messages:
            raise RequestError("there are no messages", expected='[{"role": "user", "content": "…"}]')
        model: LanguageModel = version.loaded
        prompt = await asyncio.to_thread(model.prompt, asked.messages)
        return await self._answer(request, asked, version, prompt, lambda text: {"message": _message(text)})

    async def generate(self, request: Request) -> Response:
        """A prompt through the chat template, as Ollama does; `raw` takes it as it is."""
        asked: GenerateAsked = await self._read(request, _GENERATE)
        check_supported({"suffix": asked.suffix}, ("suffix",))
        version = self._open(request, asked.model)
        model: LanguageModel = version.loaded
        if asked.raw or model.checkpoint.template is None:
            prompt = await asyncio.to_thread(encode, version, asked.system + asked.prompt)
        else:
            system = [{"role": "system", "content": asked.system}] if asked.system else []
            messages = [*system, {"role": "user", "content": asked.prompt}]
            prompt = await asyncio.to_thread(model.prompt, messages)
        return await self._answer(request, asked, version, prompt, lambda text: {"response": text})

    async def _answer(
        self,
        request: Request,
        asked: Asked,
        version: Version,
        prompt: list[int],
        form: Callable[[str], dict[str, Any]],
    ) -> Response:
        check_supported(
            {"format": asked.format, "tools": asked.tools, "images": asked.images}, ("format", "tools", "images")
        )
        (run,) = self.languages.start(request, version, [prompt], _options(asked.options), 1)
        started = time.perf_counter()
        if asked.stream:
            return Response(kind=LINES, stream=_lines(run, version, form, started))
        await request.while_connected(run.complete())
        return json_response({**_head(version), **form(run.text), **_tail(run, started)})

    async def tags(self, request: Request) -> Response:
        rows = [
            {"name": each.name, "model": each.name, "size": _size(each), "details": _details(each)}
            for each in self.languages.names(request)
        ]
        return json_response({"models": rows})

    async def show(self, request: Request) -> Response:
        asked: ShowAsked = await self._read(request, _SHOW)
        version = self._open(request, asked.model or asked.name)
        model: LanguageModel = version.loaded
        info = {"general.architecture": model.config.family, "context_length": model.context}
        return json_response(
            {"details": _details(version), "template": model.checkpoint.template or "", "model_info": info}
        )

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})


def _message(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Ollama's defaults: temperature 0.8, top_k 40, top_p 0.9."""
    unknown = given.keys() - _OPTIONS.keys() - {"num_predict", *_IGNORED}
    if unknown:
        raise RequestError(
            "unknown options", expected=", ".join((*_OPTIONS, "num_predict")), got=", ".join(sorted(unknown))
        )
    found: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
    found |= {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}
    most = given.get("num_predict", -1)
    found["max_tokens"] = None if isinstance(most, int) and most < 0 else most
    return found


def _head(version: Version) -> dict[str, Any]:
    return {"model": version.name, "created_at": datetime.now(UTC).isoformat()}


def _tail(run: Generation, started: float) -> dict[str, Any]:
    spent = round((time.perf_counter() - started) * 1e9)
    counts = {"prompt_eval_count": len(run.prompt), "eval_count": run.tokens}
    return {"done": True, "done_reason": run.finish, "total_duration": spent, **counts}


async def _lines(
    run: Generation, version: Version, form: Callable[[str], dict[str, Any]], started: float
) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in run:
            yield _dump({**_head(version), **form(piece.text), "done": False}) + b"\n"
        yield _dump({**_head(version), **form(""), **_tail(run, started)}) + b"\n"
    except SmeltError as error:
        yield _dump({"error": str(error)}) + b"\n"


def _size(version: Version) -> int:
    path = version.path
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]
    return sum(each.stat().st_size for each in files)


def _details(version: Version) -> dict[str, Any]:
    model: LanguageModel | EmbeddingModel = version.loaded
    kind = model.checkpoint.kind if isinstance(model, LanguageModel) else "safetensors"
    return {"format": "safetensors" if kind == "folder" else kind, "family": model.config.family}
