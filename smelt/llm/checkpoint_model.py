"""A Hugging Face folder or a GGUF file → `LanguageModel`, compiled, its memory planned before anything is loaded."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import cast

from smelt.buffer import parse_bytes
from smelt.callable_package import call_later
from smelt.device.registry import find_device
from smelt.dtype import bf16, f16
from smelt.errors import RunError, UnsupportedError
from smelt.ir.blocks import Block, check_precision
from smelt.llm import checkpoint as files
from smelt.llm import step_cache
from smelt.llm.batch import CHUNK, Stepping
from smelt.llm.cache import SEQUENCES, Pool, cache_bytes
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.config import EXPERTS, PAGE
from smelt.llm.engine import Engine
from smelt.llm.language_model import LanguageModel
from smelt.llm.memory import check_memory, check_sequences, choose_context, limit_sequences, plan_pages
from smelt.llm.native_step import NativeStep, bind_step
from smelt.llm.parallel import make_mesh
from smelt.mesh import Mesh
from smelt.target import FP8

log = logging.getLogger("smelt")

# What compiles is imported when it is called: a step may be in the cache.
find_platform = call_later("smelt.engine", "platform")
load_encoder = call_later("smelt.llm.checkpoint_encoder", "load_encoder")
make_step, store_step = (call_later("smelt.llm.step", name) for name in ("make_step", "store_step"))


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
    mesh: Mesh | None = None,
    devices: int | None = None,
) -> LanguageModel:
    """`smelt.llm.load` for everything but bundles."""
    _check_mesh(mesh, devices)
    limit = None if memory_limit is None else parse_bytes(memory_limit, "memory_limit")
    if (raw := files.encoder_config(path)) is not None:
        if mesh is not None or devices is not None:
            raise UnsupportedError("an encoder runs on one device", remedy="load it without mesh= and devices=")
        if cache is not None:
            raise UnsupportedError("an encoder keeps no keys and values", got=f"cache={cache!r}", remedy="no cache=")
        check_precision(precision or "f32")
        return cast(LanguageModel, load_encoder(Path(path), raw, device, engine, context, limit))
    found = files.open(path, context)
    mesh = mesh if devices is None else make_mesh(found.config, devices)
    precision = check_precision(precision or _choose_precision(device, engine, mesh))
    check_sequences(sequences)
    return load_checkpoint(found, device, engine, context, precision, cache, limit, sequences, mesh)


def _check_mesh(mesh: Mesh | None, devices: int | None) -> None:
    if mesh is not None and devices is not None:
        raise RunError("mesh and devices both say where a model runs", expected="one of them", remedy="leave one out")
    if mesh is not None and not isinstance(mesh, Mesh):
        raise RunError("the mesh of a model", expected="a smelt.Mesh", got=type(mesh).__name__)


def load_checkpoint(
    found: Checkpoint,
    device: str,
    engine: str,
    context: int | None,
    precision: str,
    cache: str | None = None,
    limit: int | None = None,
    sequences: int = SEQUENCES,
    mesh: Mesh | None = None,
) -> LanguageModel:
    """A checkpoint that is open → its model."""
    if found.multimodal:
        left_out = len(found.left_out)
        log.info("%s: the text model of %s; %d other tensors are not loaded", found.path, found.multimodal, left_out)
    on_processor = mesh is None and _is_native(device, engine)
    if cache == "int8" and not on_processor and engine != "reference":
        raise UnsupportedError(
            "keys and values in int8 need a kernel for them",
            expected="the native engine on a processor",
            got=f"device={device!r}, engine={engine!r}",
            remedy="cache='bf16', or no cache=",
        )
    if on_processor:
        found = found.for_processor(precision)
    elif mesh is None and find_platform(device, engine).engine.name == "native":
        found = found.for_gpu(precision)
    found = found.with_cache(cache or cache_type(found, precision, on_processor, device not in ("auto", "cpu")))
    wanted = choose_context(found.config, context)
    weights = _weight_bytes(found, precision, device)
    if limit is not None:
        check_memory(found.path.name, found.config, wanted, weights, 0, limit)
    step = _make_step(found, device, engine, precision, mesh)
    work = 0 if limit is None else step.memory(CHUNK, sequences, sequences, -(-wanted // PAGE))
    free = step.free_memory
    if limit is not None:
        sequences = limit_sequences(found.config, wanted, limit - weights - work, sequences)
    pages = plan_pages(found.path.name, found.config, wanted, weights, work, limit, free, sequences)
    salt = str(found.path.resolve()).encode()
    pool = Pool(
        found.config,
        step.put,
        pages,
        salt,
        copies=isinstance(step, NativeStep),
        grows=free is None,
        sequences=sequences,
        enlarge=step.enlarge,
    )
    spare = None if limit is None else limit - weights - work - cache_bytes(found.config, pages, sequences)
    return LanguageModel(found, step, Engine(step, pool, sequences, spare), wanted)


def _is_native(device: str, engine: str) -> bool:
    """Whether these names mean the native engine on this processor, where it can compile."""
    return device in ("auto", "cpu") and engine in ("auto", "native") and find_device().missing() is None


def _choose_precision(device: str, engine: str, mesh: Mesh | None) -> str:
    """The default for GEMMs of block-quantised weights: the native engine has kernels for the blocks themselves."""
    if mesh is None and _is_native(device, engine):
        return "q8"
    platform = find_platform(device, engine, mesh=mesh)
    if platform.engine.name == "native":
        return "q8"
    return "f32" if platform.device.partition(":")[0] == "cpu" else "bf16"


def _make_step(checkpoint: Checkpoint, device: str, engine: str, precision: str, mesh: Mesh | None) -> Stepping:
    """The step with its weights: from the cache of compiled programs, else compiled now."""
    if mesh is None and _is_native(device, engine) and (key := step_cache.key_of(checkpoint, precision)) is not None:
        found = step_cache.find(key, partial(store_step, checkpoint, precision))
        if found is not None:
            return bind_step(found, checkpoint, precision, "native on cpu")
    made: Stepping = make_step(checkpoint, device, engine, precision, mesh)
    return made


def cache_type(checkpoint: Checkpoint, precision: str, on_processor: bool = True, on_gpu: bool = False) -> str:
    """The default: int8 where products round activations to 8 bits, f16 where that has no kernel; bf16 where they do to
    that, and for narrow weights on a GPU, whose attention kernels are for it."""
    formats = checkpoint.formats.values()
    has_blocks = any(isinstance(each, Block) for each in formats)
    has_narrow = has_blocks or any(each in (bf16, f16) for each in formats)
    if precision == "bf16" or (on_gpu and (precision == "fp8" or (precision == "q8" and has_narrow))):
        return "bf16"
    if precision not in ("q8", "fp8") or not has_blocks:
        return "f32"
    return "int8" if on_processor and checkpoint.config.fits_int8 else "f16"


def _weight_bytes(checkpoint: Checkpoint, precision: str, device: str) -> int:
    """With "q8" and "fp8" blocks stay about as large as they are stored. The matrices of layers, but for experts, take
    a byte in fp8 where the device multiplies it; elsewhere it is widened."""
    kept, here = precision in ("q8", "fp8"), find_device(device)
    narrow = precision == "fp8" and here.missing() is None and FP8 in here.target().features
    wide = 2 if precision == "bf16" else 4

    def is_fp8(name: str) -> bool:
        return narrow and name.startswith("layers.") and not name.endswith(EXPERTS)

    return sum(
        checkpoint.weights.find(name).nbytes
        if kept and isinstance(checkpoint.formats.get(name), Block)
        else (1 if is_fp8(name) else wide) * checkpoint.elements(name)
        for name in checkpoint.weights
    )
