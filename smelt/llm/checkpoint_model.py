"""A Hugging Face folder or a GGUF file → `LanguageModel`, compiled, its memory planned before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from smelt.bundle.stored import StoredModel
from smelt.engine import platform as platform_of
from smelt.engine.compile import mark_donated
from smelt.engine.footprint import Budget
from smelt.engine.store import store_weights
from smelt.errors import UnsupportedError
from smelt.ir.blocks import Block
from smelt.llm import checkpoint as files
from smelt.llm.batch import CHUNK
from smelt.llm.cache import Pool
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.config import PAGE
from smelt.llm.embedding import load_encoder
from smelt.llm.engine import SEQUENCES, Engine
from smelt.llm.language_model import LanguageModel
from smelt.llm.memory import check_memory, check_sequences, choose_context, plan_pages
from smelt.llm.step import choose_precision, compile_step, make_step
from smelt.llm.stored import stored_files
from smelt.passes.lower_blocks import check_precision


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
    """`smelt.llm.load` for everything but bundles."""
    if (said := files.encoder_config(path)) is not None:
        check_precision(precision or "f32")
        return cast(LanguageModel, load_encoder(Path(path), said, device, engine, context))
    precision = check_precision(precision or choose_precision(device, engine))
    found = files.open(path, context)
    found = found.with_cache(cache or _cache_type(found, precision))
    wanted = choose_context(found.config, context)
    check_sequences(sequences)
    budget = Budget.of(memory_limit, None)
    limit = None if budget is None else budget.bytes
    weights = _weight_bytes(found, precision)
    if limit is not None:
        check_memory(found.path.name, found.config, wanted, weights, 0, limit)
    step = make_step(found, device, engine, precision)
    work = 0 if limit is None else step.memory(CHUNK, sequences, sequences, -(-wanted // PAGE))
    pages = plan_pages(found.path.name, found.config, wanted, weights, work, limit)
    pool = Pool(found.config, step.put, pages, str(found.path.resolve()).encode())
    return LanguageModel(found, step, Engine(step, pool, sequences), wanted)


def to_stored(
    path: str | Path, targets: Sequence[str], precision: str | None = None, cache: str | None = None
) -> tuple[StoredModel, int]:
    """What a bundle of a model holds, with code for any targets, and the bytes of the checkpoint's weights."""
    if files.encoder_config(path) is not None:
        raise UnsupportedError(f"{path} is an encoder, which has no bundle", remedy="load the folder itself")
    precision = check_precision(precision or "q8")
    found = files.open(path)
    found = found.with_cache(cache or _cache_type(found, precision))
    traced = compile_step(found, platform_of(engine="reference"), precision)
    program = mark_donated(traced.program, traced.donated)
    stored = store_weights(program, found.weights, targets)
    beside = stored_files(found, precision)
    return stored.replace(name=found.name, provenance=found.provenance(), files=beside), found.nbytes


def _cache_type(checkpoint: Checkpoint, precision: str) -> str:
    """The default: f16 where products round activations to 8 bits, which is far coarser."""
    return (
        "f16" if precision == "q8" and any(isinstance(each, Block) for each in checkpoint.formats.values()) else "f32"
    )


def _weight_bytes(checkpoint: Checkpoint, precision: str) -> int:
    """With "q8" blocks stay about as large as they are stored."""
    kept = precision == "q8"
    return sum(
        checkpoint.weights.stored(name).nbytes
        if kept and isinstance(checkpoint.formats.get(name), Block)
        else 4 * checkpoint.elements(name)
        for name in checkpoint.weights
    )
