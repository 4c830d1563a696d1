"""Encoders in bundles: what these hold besides the program, and bundle → `EmbeddingModel` or `CrossEncoder` without the
modules that compile. `bundle` calls `read_bundle`, `to_bundle` `encoder_files`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smelt.bundle.stored import Read
from smelt.dtype import Array
from smelt.errors import FileError, RunError
from smelt.llm.config import MAX_LAYERS, MAX_SIZE
from smelt.llm.cross_encoder import CrossEncoder, Layer
from smelt.llm.embedding import EmbeddingModel
from smelt.llm.encoder_config import EncoderConfig
from smelt.llm.pooling import Pooling, files_of_pooling, pooling_of
from smelt.llm.stored import ENCODER, FORMAT, LANGUAGE, MALFORMED, TOKENIZER, shapes_of
from smelt.llm.text_encoder import CompiledEncoder
from smelt.llm.tokenizer import Tokenizer, from_text
from smelt.llm.typed_record import from_record, to_record
from smelt.run.loaded import LoadedModel

AGAIN = "smelt compile FOLDER -o FILE.smelt"


def make_encoder(
    config: EncoderConfig,
    compiled: CompiledEncoder,
    pooling: Pooling,
    head: tuple[Layer, ...] | None,
    context: int | None,
) -> EmbeddingModel | CrossEncoder:
    """The model of a compiled encoder; `head` are the layers behind one of pairs."""
    if head is not None:
        return CrossEncoder(config, compiled, head, context or config.context)
    return EmbeddingModel(config, compiled, pooling, context or min(pooling.most or config.context, config.context))


def check_context(config: EncoderConfig, context: int | None) -> None:
    if context is not None and (type(context) is not int or not 1 <= context <= config.context):
        raise RunError(
            "the model was not made for such a context",
            expected=f"1 to {config.context}",
            got=context,
            remedy=f"context={config.context}, or less",
        )


def encoder_files(
    config: EncoderConfig, pooling: Pooling, head: tuple[Layer, ...] | None, tokenizer: Tokenizer | None
) -> dict[str, Read]:
    """The files of a bundle besides its program. The layers of a head are stored as those behind a pooling are."""
    pooling_record, arrays = files_of_pooling(pooling if head is None else Pooling(("cls",), head))
    record = {
        "format": FORMAT,
        "kind": ENCODER,
        "config": to_record(config),
        "pairs": head is not None,
        "pooling": pooling_record,
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    found: dict[str, Read] = {LANGUAGE: partial(text.encode, "utf-8"), **arrays}
    if tokenizer is not None:
        found[TOKENIZER] = partial(tokenizer.to_json().encode, "utf-8")
    return found


def read_bundle(
    loaded: LoadedModel, path: Path, record: Mapping[str, Any], context: int | None
) -> EmbeddingModel | CrossEncoder:
    """The encoder of a loaded bundle; `record` is its `language.json`."""
    try:
        config, pairs = from_record(EncoderConfig, record["config"]), record["pairs"] is True
        _check(config)
        pooling = pooling_of(record["pooling"], loaded.files)
    except MALFORMED as error:
        raise FileError(f"{path}: {LANGUAGE} cannot be read", got=error, remedy=AGAIN) from error
    _check_program(loaded, path, config, pairs)
    head = pooling.steps if pairs else None
    width = (pooling if head is None else Pooling(("cls",), head)).check(config.d, str(path))
    if pairs and width != 1:
        raise FileError(f"{path}: a head that scores pairs gives one number", got=width, remedy=AGAIN)
    check_context(config, context)
    compiled = CompiledEncoder(
        loaded.name, _run(loaded.executable), loaded.close, str(loaded.engine), partial(_tokenizer, loaded, path)
    )
    return make_encoder(config, compiled, pooling, head, context)


def _run(executable: Callable[..., tuple[Any, ...]]) -> Callable[..., Array]:
    return lambda *arrays: np.asarray(executable(*arrays)[0])


def _check(config: EncoderConfig) -> None:
    sizes = (config.d, config.v, config.positions, config.types)
    if not all(1 <= each <= MAX_SIZE for each in sizes) or not 1 <= config.layers <= MAX_LAYERS:
        raise ValueError("a size is out of range")
    if not 0 <= config.first < config.positions or not 0 <= config.padding < config.v:
        raise ValueError("a first position, or a padding token, that is not there")


def _check_program(loaded: LoadedModel, path: Path, config: EncoderConfig, pairs: bool) -> None:
    """The program takes tokens and gives states of the configuration's width."""
    got, kinds = shapes_of(loaded.executable.signature), ["i32[B, S]"] if pairs else []
    wanted = ["i32[B, S]", "i32[B]", *kinds, f"f32[B, S, {config.d}]"]
    if got != wanted:
        raise FileError(f"{path}: the program does not fit the configuration", expected=wanted, got=got, remedy=AGAIN)


def _tokenizer(loaded: LoadedModel, path: Path) -> Tokenizer:
    if TOKENIZER not in loaded.files:
        raise FileError(f"{path}: no tokenizer", expected=TOKENIZER, remedy="give tokens, not text")
    try:
        text = loaded.files[TOKENIZER]().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: a text is not UTF-8", got=error, remedy=AGAIN) from error
    return from_text(text, f"{path}: {TOKENIZER}")
