"""A Hugging Face folder or a GGUF file → what its bundle holds. `smelt compile` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smelt.bundle.stored import StoredModel
from smelt.engine.store import store_weights
from smelt.errors import UnsupportedError
from smelt.ir.blocks import check_precision
from smelt.llm import checkpoint as files
from smelt.llm.checkpoint_model import cache_type
from smelt.llm.step import step_program
from smelt.llm.stored import stored_files


def to_stored(
    path: str | Path, targets: Sequence[str], precision: str | None = None, cache: str | None = None
) -> tuple[StoredModel, int]:
    """What a bundle of a model holds, with code for any targets, and the bytes of the checkpoint's weights."""
    if files.encoder_config(path) is not None:
        raise UnsupportedError(f"{path} is an encoder, which has no bundle", remedy="load the folder itself")
    precision = check_precision(precision or "q8")
    found = files.open(path)
    found = found.with_cache(cache or cache_type(found, precision))
    stored = store_weights(step_program(found, precision), found.weights, targets)
    beside = stored_files(found, precision)
    return stored.replace(name=found.name, provenance=found.provenance(), files=beside), found.nbytes
