"""`load`: a path → `LanguageModel`, with its memory planned before anything is loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

from smelt.buffer import bytes_text, machine_memory
from smelt.engine.footprint import Budget
from smelt.errors import MemoryLimitError, RunError
from smelt.ir.blocks import Block
from smelt.llm import checkpoint as files
from smelt.llm.cache import Pool, page_bytes
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.embedding import load_encoder
from smelt.llm.engine import SEQUENCES, Engine
from smelt.llm.language_model import LanguageModel
from smelt.llm.paged import PAGE
from smelt.llm.step import CHUNK, Step, choose_precision
from smelt.passes.lower_blocks import check_precision

DEFAULT_CONTEXT = 1 << 15  # tokens, where a model allows more
CONTEXTS = 4  # whole contexts that the cache has room for, where the machine's memory allows it


def load(
    path: str | Path,
    *,
    device: str = "auto",
    engine: str = "auto",
    context: int | None = None,
    precision: str | None = None,
    cache: str | None = None,
    memory_limit: int | str | None = None,
    sequences: int = SEQUENCES,
) -> LanguageModel:
    """A language model from a Hugging Face folder or a GGUF file, ready to answer.

    `context` is how many tokens a sequence may have, at most what the model was made for. With `precision="f32"`
    everything is computed in f32: block-quantised weights are opened once, when they are bound. With "q8", the default
    of the native engine, they stay as they are and multiply activations that are rounded to 8 bits. `cache` is the type
    of keys and values in memory: "f32", "f16" or "bf16"; "f16" by default where activations are rounded.
    Weights, steps and cache stay within `memory_limit`; a model that cannot is refused before anything is loaded. Up to
    `sequences` requests are computed at once. The folder of an encoder gives an `EmbeddingModel`, which has `embed`.
    """
    if (said := files.encoder_config(path)) is not None:
        check_precision(precision or "f32")
        return cast(LanguageModel, load_encoder(Path(path), said, device, engine, context))
    precision = check_precision(precision or choose_precision(device, engine))
    found = files.open(path, context)
    found = found.with_cache(cache or _cache_type(found, precision))
    most = found.config.context
    wanted = min(most, DEFAULT_CONTEXT) if context is None else context
    if not 1 <= wanted <= most:
        raise RunError("the model was not made for such a context", expected=f"1 to {most} tokens", got=context)
    if type(sequences) is not int or not 1 <= sequences <= CHUNK:
        raise RunError("sequences that are computed at once", expected=f"1 to {CHUNK}", got=sequences)
    budget = Budget.of(memory_limit, None)
    if budget is not None:
        _check_memory(found, precision, wanted, 0, budget.bytes)
    step = Step(found, device, engine, precision)
    limit = _pages(found, step, precision, wanted, sequences, None if budget is None else budget.bytes)
    pool = Pool(found.config, step.put, limit, str(found.path.resolve()).encode())
    return LanguageModel(found, step, Engine(step, pool, sequences), wanted)


def _cache_type(checkpoint: Checkpoint, precision: str) -> str:
    """The default: f16 where products round activations to 8 bits, which is far coarser."""
    return (
        "f16" if precision == "q8" and any(isinstance(each, Block) for each in checkpoint.formats.values()) else "f32"
    )


def _pages(found: Checkpoint, step: Step, precision: str, context: int, sequences: int, limit: int | None) -> int:
    """How many pages the cache may have."""
    whole, each = math.ceil(context / PAGE), page_bytes(found.config)
    weights = _weight_bytes(found, precision)
    if limit is None:
        return max(whole, min(CONTEXTS * whole, (machine_memory() // 2 - weights) // each))
    work = step.memory(CHUNK, sequences, sequences, whole)
    _check_memory(found, precision, context, work, limit)
    return max(whole, min(CONTEXTS * whole, (limit - weights - work) // each))


def _weight_bytes(checkpoint: Checkpoint, precision: str) -> int:
    """With "q8" blocks stay about as large as they are stored."""
    kept = precision == "q8"
    return sum(
        checkpoint.weights.stored(name).nbytes
        if kept and isinstance(checkpoint.formats.get(name), Block)
        else 4 * checkpoint.elements(name)
        for name in checkpoint.weights
    )


def _check_memory(checkpoint: Checkpoint, precision: str, context: int, work: int, limit: int) -> None:
    weights = _weight_bytes(checkpoint, precision)
    cache = math.ceil(context / PAGE) * page_bytes(checkpoint.config)
    if weights + cache + work > limit:
        raise MemoryLimitError(
            f"{checkpoint.path.name} needs more memory than the limit",
            expected=f"at most {bytes_text(limit)}",
            got=f"{bytes_text(weights)} of weights, {bytes_text(cache)} of cache for {context} tokens"
            + (f", {bytes_text(work)} for a step" if work else ""),
            remedy="a smaller context, or a larger limit",
        )
