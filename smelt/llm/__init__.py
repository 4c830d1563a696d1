"""Language models: `smelt.llm.load(path)` gives a model that completes text and chats.

In: a Hugging Face folder, a GGUF file or a bundle. Out: a `LanguageModel` with `logits`, `generate`, `stream` and
`chat`. A bundle is run without the modules that compile, so that names here are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smelt.llm.store import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.llm.cross_encoder import CrossEncoder as CrossEncoder
    from smelt.llm.embedding import EmbeddingModel as EmbeddingModel
    from smelt.llm.language_model import LanguageModel as LanguageModel
    from smelt.llm.request import Answer as Answer
    from smelt.llm.request import Piece as Piece
    from smelt.llm.sample import Sampling as Sampling
    from smelt.mesh import Mesh

__all__ = ["Answer", "CrossEncoder", "EmbeddingModel", "LanguageModel", "Piece", "Sampling", "load"]

_NAMES = {
    "Answer": "request",
    "CrossEncoder": "cross_encoder",
    "EmbeddingModel": "embedding",
    "LanguageModel": "language_model",
    "Piece": "request",
    "Sampling": "sample",
}


def load(
    path: str | Path,
    *,
    device: str = "auto",
    engine: str = "auto",
    context: int | None = None,
    precision: str | None = None,
    cache: str | None = None,
    memory_limit: int | str | None = None,
    sequences: int | None = None,
    devices: int | None = None,
    mesh: Mesh | None = None,
) -> LanguageModel:
    """A language model from a Hugging Face folder, a GGUF file or a bundle, ready to answer.

    `org/name` is a model that `smelt pull` downloaded; nothing is downloaded here.

    `context` is the maximum length of a sequence in tokens, at most what the model was trained for. `precision="q8"`,
    the default of the native engine, keeps block-quantised weights as they are and rounds activations to 8 bits; "f32"
    dequantises the weights once, when they are bound; "fp8" rounds other weights to fp8 once, and what they multiply to
    fp8, for GPUs with such tensor cores. `cache` is the element type of keys and values: "f32", "f16", "bf16" or
    "int8", the default on CPUs where activations are rounded to 8 bits. A bundle has its precision and cache type
    already.

    Weights, steps and cache stay within `memory_limit`; a model that cannot is refused before anything is loaded. Up to
    `sequences` (64) requests are computed at once. With `devices` the model is split over that many devices through
    pjrt (tensor parallelism); `mesh` chooses the axes (docs/llm.md). The folder of an encoder gives an
    `EmbeddingModel`, which has `embed`, or a `CrossEncoder`, which has `score`.
    """
    given: dict[str, Any] = {"device": device, "engine": engine, "context": context, "precision": precision}
    given |= {"cache": cache, "memory_limit": memory_limit, "sequences": sequences, "devices": devices, "mesh": mesh}
    options = {name: value for name, value in given.items() if value not in (None, "auto")}
    path = resolve(path)
    kind = "bundle" if str(path).lower().endswith(".smelt") else "checkpoint_model"
    found: LanguageModel = import_module(f"{__name__}.{kind}").load(path, **options)
    return found


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    return value
