"""Path and configuration → a loaded model that was called once: in the server, or in a worker process."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from smelt import llm
from smelt.device.api import Memory
from smelt.device.runtime import limit_this_thread
from smelt.dtype import Array
from smelt.engine.sample import default_sizes, random_array, sample_inputs
from smelt.errors import SmeltError, UnsupportedError
from smelt.llm.stored import LANGUAGE
from smelt.model import LoadedModel, load, read
from smelt.passes.independent_rows import BATCHED, NOT_BATCHED
from smelt.read.onnx import StaticError
from smelt.run.load import SUFFIX, has_file
from smelt.serve.config import ModelConfig
from smelt.serve.queue import INLINE
from smelt.serve.tensors import datatype
from smelt.serve.text_model import LocalTexts

log = logging.getLogger("smelt.serve")
LONG = 5e-3  # seconds of a first call, with all that only the first one does, after which later ones are not short


def open_model(path: Path, config: ModelConfig) -> LoadedModel:
    model = load(
        path,
        engine=config.engine,
        device=config.device,
        static=config.static or None,
        memory_limit=config.memory_limit,
        sizes=config.sizes or None,
        precision=config.precision or "f32",
    )
    _check_types(model)
    return model


def is_language(path: Path) -> bool:
    """Whether a path is a language model's. A bundle is opened for it."""
    if path.suffix.lower() == SUFFIX:
        return has_file(path, LANGUAGE)
    return path.is_dir() or path.suffix.lower() == ".gguf"


def open_texts(name: str, path: Path, config: ModelConfig) -> LocalTexts:
    """A language model that was called once."""
    found = LocalTexts(
        llm.load(
            path,
            engine=config.engine,
            device=config.device,
            context=config.context,
            memory_limit=config.memory_limit,
            precision=config.precision or None,
        )
    )
    if config.warm_up:
        try:
            found.warm_up()
        except SmeltError as error:
            log.warning("%s was not warmed up: %s", name, " ".join(str(error).split()))
    return found


def held_bytes(model: Any) -> int:
    """Bytes that a model's weights, constants and calls hold, as its engine counts them; 0 where it does not."""
    memory = getattr(model, "memory", None)
    return memory.bound + memory.constants + memory.arenas + memory.scratch if isinstance(memory, Memory) else 0


def _check_types(model: LoadedModel) -> None:
    for port in (*model.signature.inputs, *model.signature.outputs):
        if datatype(port.shape.dtype, bool(port.labels)) is None:
            raise UnsupportedError(
                f"{port.name}: the protocol has no such element type",
                got=port.shape.dtype,
                remedy="convert it inside the model, e.g. complex to two floats",
            )


def why_not_batched(provenance: Mapping[str, str], config: ModelConfig) -> str:
    """The reason why requests do not share calls of a model; empty where its rows are proven independent."""
    if config.max_batch <= 1:
        return "max_batch is 1"
    if BATCHED in provenance:
        return ""
    return provenance.get(NOT_BATCHED, "it has compile-time inputs, or was saved without a proof")


def warm_up(name: str, path: Path, config: ModelConfig, model: LoadedModel) -> tuple[dict[str, Array], list[float]]:
    """Call the model on random numbers. The inputs, and the CPU seconds of calls on one thread if they are short."""
    inputs = _samples(path, config, model)
    if inputs is None:
        return {}, []
    try:
        if _seconds(model, inputs) > LONG or _seconds(model, inputs) > 10 * INLINE:
            return inputs, []
        limit_this_thread(1)
        return inputs, [_seconds(model, inputs) for _ in range(4)][1:]
    except SmeltError as error:
        log.warning("%s was not warmed up: %s", name, " ".join(str(error).split()))
        return {}, []
    finally:
        limit_this_thread(0)


def _seconds(model: LoadedModel, inputs: Mapping[str, Array]) -> float:
    started = time.thread_time()
    model.run(inputs)
    return time.thread_time() - started


def _samples(path: Path, config: ModelConfig, model: LoadedModel) -> dict[str, Array] | None:
    ports = model.signature.inputs
    if path.suffix.lower() != ".smelt":
        try:
            program = read(path, config.static or None)[0]
        except StaticError:
            return None
        return dict(zip([port.name for port in ports], sample_inputs(program, config.sizes), strict=True))
    if any(port.labels for port in ports):
        return None
    sizes = default_sizes([port.shape for port in ports]) | config.sizes
    generator = np.random.default_rng(0)
    return {port.name: random_array(port.shape, sizes, generator) for port in ports}


def stop_compiling(config: ModelConfig, model: LoadedModel) -> None:
    """Have requests that would compile refused, unless the settings allow them."""
    if not config.compile_on_request:
        model.stop_compiling("compile_on_request = true in the model's settings, or fixed values: static = {…}")
