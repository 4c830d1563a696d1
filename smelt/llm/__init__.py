"""Language models: `smelt.llm.load(path)` gives a model that completes text and chats.

In: a Hugging Face folder or a GGUF file. Out: a `LanguageModel` with `logits`, `generate`, `stream` and `chat`.
"""

from __future__ import annotations

from smelt.llm.embedding import EmbeddingModel
from smelt.llm.language_model import LanguageModel
from smelt.llm.load import load
from smelt.llm.request import Answer, Piece
from smelt.llm.sample import Sampling

__all__ = ["Answer", "EmbeddingModel", "LanguageModel", "Piece", "Sampling", "load"]
