"""`/v1/rerank` (also `/rerank`): which documents are nearest to a query, by a cross-encoder, or by the cosine of
embeddings.

The fields are those that Cohere and Jina have and other servers took over.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from smelt.serve.http import Request, Response, Routes, json_response, read_json
from smelt.serve.language import Languages
from smelt.serve.problems import RequestError
from smelt.serve.text_model import RANKING, TextModel


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
        opened = await self.languages.open_ranker(request, asked.model)
        texts = [each if isinstance(each, str) else each.text for each in asked.documents]
        if not texts:
            raise RequestError("there are no documents", expected="a list of texts")
        if asked.top_n is not None and asked.top_n < 1:
            raise RequestError("top_n is out of range", expected="at least 1", got=asked.top_n)
        scores, tokens = await request.while_connected(opened.run(_score(opened.texts, asked.query, texts)))
        opened.stats.prompt_tokens += tokens
        order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: asked.top_n]
        results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
        if asked.return_documents:
            results = [{**row, "document": {"text": texts[row["index"]]}} for row in results]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "model": opened.name, "results": results, "usage": usage})


async def _score(model: TextModel, query: str, texts: list[str]) -> tuple[list[float], int]:
    if model.about.kind == RANKING:
        made = await model.score(query, texts)
        logits = np.array(made.logits, np.float64)
        return (1 / (1 + np.exp(-logits))).tolist(), made.tokens
    vectors = await model.embed([query, *texts])
    found = vectors.array.astype(np.float64)
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return np.clip(found[1:] @ found[0], -1.0, 1.0).tolist(), vectors.tokens
