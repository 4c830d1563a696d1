"""`/v1/rerank` (also `/rerank`): which documents are nearest to a query, by a cross-encoder, or by the cosine of
embeddings.

The fields are those that Cohere and Jina have and other servers took over.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np

from smelt.llm import CrossEncoder, EmbeddingModel
from smelt.serve.http import Request, Response, Routes, json_response, read_json
from smelt.serve.language import Languages, encode
from smelt.serve.models import Version
from smelt.serve.problems import RequestError


class Document(msgspec.Struct):
    text: str


class RerankRequest(msgspec.Struct):
    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool = False


_RERANK = msgspec.json.Decoder(RerankRequest)


class Rerank:
    def __init__(self, languages: Languages) -> None:
        self.languages, self.config = languages, languages.config

    def add_to(self, routes: Routes) -> None:
        for path in ("/v1/rerank", "/rerank"):
            routes.add("POST", path, self.rerank)

    async def rerank(self, request: Request) -> Response:
        body = await request.body(self.config.max_body, self.config.body_timeout)
        asked = read_json(_RERANK, body, "the request")
        version = self.languages.open_ranker(request, asked.model)
        texts = [each if isinstance(each, str) else each.text for each in asked.documents]
        if not texts:
            raise RequestError("there are no documents", expected="a list of texts")
        if asked.top_n is not None and asked.top_n < 1:
            raise RequestError("top_n is out of range", expected="at least 1", got=asked.top_n)
        scores, tokens = await asyncio.to_thread(_score, version, asked.query, texts)
        order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: asked.top_n]
        results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
        if asked.return_documents:
            results = [{**row, "document": {"text": texts[row["index"]]}} for row in results]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "model": version.name, "results": results, "usage": usage})


def _score(version: Version, query: str, texts: list[str]) -> tuple[list[float], int]:
    model: EmbeddingModel | CrossEncoder = version.loaded
    if isinstance(model, CrossEncoder):
        logits, tokens = model.score(query, texts)
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).tolist(), tokens
    found = model.embed([query, *texts]).astype(np.float64)
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    tokens = sum(len(encode(version, text)) for text in [query, *texts])
    return (found[1:] @ found[0]).tolist(), tokens
