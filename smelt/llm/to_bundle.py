"""A Hugging Face folder or a GGUF file → what its bundle holds. `smelt compile` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smelt.bundle.stored import StoredModel
from smelt.engine import platform as platform_of
from smelt.engine.store import store_weights
from smelt.errors import UnsupportedError
from smelt.ir.blocks import check_precision
from smelt.llm import checkpoint as files
from smelt.llm.checkpoint_encoder import EncoderFolder
from smelt.llm.checkpoint_model import cache_type
from smelt.llm.encoder_bundle import encoder_files
from smelt.llm.step import step_program
from smelt.llm.stored import stored_files


def to_stored(
    path: str | Path, targets: Sequence[str], precision: str | None = None, cache: str | None = None
) -> tuple[StoredModel, int]:
    """What a bundle of a model holds, with code for any targets, and the bytes of the checkpoint's weights."""
    if (raw := files.encoder_config(path)) is not None:
        if precision not in (None, "f32"):
            raise UnsupportedError(f"{path} is an encoder, which computes in f32", got=precision, remedy="leave it out")
        return _encoder_to_stored(EncoderFolder.open(Path(path), raw), targets)
    precision = check_precision(precision or "q8")
    found = files.open(path)
    found = found.for_processor(precision)
    found = found.with_cache(cache or cache_type(found, precision))
    stored = store_weights(step_program(found, precision), found.weights, targets)
    beside = stored_files(found, precision)
    return stored.replace(name=found.name, provenance=found.provenance(), files=beside), found.nbytes


def _encoder_to_stored(folder: EncoderFolder, targets: Sequence[str]) -> tuple[StoredModel, int]:
    program = folder.compile(platform_of(engine="reference")).program
    stored = store_weights(program, folder.weights, targets)
    tokenizer = folder.read_tokenizer() if folder.has_tokenizer else None
    beside = encoder_files(folder.config, folder.pooling, folder.head, tokenizer)
    name = folder.path.resolve().name
    return stored.replace(name=name, provenance={"source": name}, files=beside), folder.weights.nbytes
