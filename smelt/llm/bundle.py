"""A bundle → `LanguageModel`, without the modules that compile: the step is a compiled program with its packed weights.

Its files (`stored`) say the rest; what they say is compared with what the program takes and gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from smelt.buffer import parse_bytes
from smelt.bundle.stored import Read
from smelt.callable_package import call_later
from smelt.dtype import i8
from smelt.errors import FileError, UnsupportedError
from smelt.llm.batch import CHUNK
from smelt.llm.cache import SEQUENCES, Pool, pool_sizes
from smelt.llm.config import CACHES, MAX_LAYERS, MAX_SIZE, PAGE, Config
from smelt.llm.engine import Engine
from smelt.llm.language_model import LanguageModel
from smelt.llm.memory import check_sequences, choose_context, limit_sequences, plan_pages
from smelt.llm.native_step import NativeStep
from smelt.llm.pooling import Pooling, pooling_of
from smelt.llm.stored import ENCODER, FORMAT, LANGUAGE, MALFORMED, TOKENIZER, shapes_of
from smelt.llm.tokenizer import Tokenizer, from_text
from smelt.llm.typed_record import from_record
from smelt.mesh import Mesh
from smelt.run import load as bundles
from smelt.run.executable import NativeExecutable
from smelt.run.loaded import LoadedModel

AGAIN = "smelt compile MODEL -o FILE.smelt"

recompile = call_later("smelt.engine.store", "recompile")
read_encoder = call_later("smelt.llm.encoder_bundle", "read_bundle")


@dataclass(frozen=True, slots=True)
class BundleOrigin:
    """What a bundle says about its model."""

    path: Path
    config: Config
    precision: str
    template: str | None
    specials: Mapping[str, str]
    digest: str
    pooling: Any
    files: Mapping[str, Read]
    source: Mapping[str, str]
    kind: str = "bundle"

    @property
    def has_tokenizer(self) -> bool:
        return TOKENIZER in self.files

    def read_tokenizer(self) -> Tokenizer:
        if TOKENIZER not in self.files:
            raise FileError(f"{self.path}: no tokenizer", expected=TOKENIZER, remedy="give tokens, not text")
        return from_text(_utf8(self.path, self.files[TOKENIZER]), f"{self.path}: {TOKENIZER}")

    def read_pooling(self) -> Pooling:
        try:
            return pooling_of(self.pooling, self.files)
        except MALFORMED as error:
            raise FileError(f"{self.path}: its pooling cannot be read", got=error, remedy=AGAIN) from error

    def fingerprint(self) -> str:
        return self.digest

    def provenance(self) -> dict[str, str]:
        return dict(self.source)


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
    verify: bool | None = None,
    keys: Sequence[str] | None = None,
    devices: int | None = None,
    mesh: Mesh | None = None,
) -> LanguageModel:
    """A language model from a bundle; `verify` and `keys` as in `smelt.run.load`."""
    if devices is not None or mesh is not None:
        raise UnsupportedError(
            f"{path}: a bundle runs on the processor", remedy="load the folder or the GGUF file with devices= or mesh="
        )
    if precision is not None or cache is not None:
        raise UnsupportedError(f"{path} is compiled already", got=precision or cache, remedy="no precision= and cache=")
    options = {"device": device, "engine": engine, "memory_limit": memory_limit, "verify": verify, "keys": keys}
    loaded = bundles.load(path, recompile, **options)  # type: ignore[arg-type]
    if LANGUAGE not in loaded.files:
        loaded.close()
        raise UnsupportedError(f"{path} holds no language model", remedy="smelt.load(…), and call what it gives")
    return language_model(loaded, path, context=context, sequences=sequences, memory_limit=memory_limit)


def language_model(
    loaded: LoadedModel,
    path: str | Path,
    *,
    context: int | None = None,
    sequences: int = SEQUENCES,
    memory_limit: int | str | None = None,
) -> LanguageModel:
    """The language model of a loaded bundle, or its encoder."""
    try:
        record = _read_record(Path(path), loaded)
        if record.get("kind") == ENCODER:
            return cast(LanguageModel, read_encoder(loaded, Path(path), record, context))
        origin = _origin(Path(path), loaded, record)
        step = _step(origin, loaded)
        wanted = choose_context(origin.config, context)
        check_sequences(sequences)
        limit = None if memory_limit is None else parse_bytes(memory_limit, "memory_limit")
        work = 0 if limit is None else step.memory(CHUNK, sequences, sequences, -(-wanted // PAGE))
        weights = step.executable.bound_bytes
        if limit is not None:
            sequences = limit_sequences(origin.config, wanted, limit - weights - work, sequences)
        pages = plan_pages(loaded.name, origin.config, wanted, weights, work, limit, sequences=sequences)
    except BaseException:
        loaded.close()
        raise
    pool = Pool(origin.config, step.put, pages, origin.digest.encode(), copies=True, sequences=sequences)
    return LanguageModel(origin, step, Engine(step, pool, sequences), wanted, loaded.name)


def _read_record(path: Path, loaded: LoadedModel) -> Mapping[str, Any]:
    try:
        record = json.loads(_utf8(path, loaded.files[LANGUAGE]))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r} instead of {FORMAT}")
    except MALFORMED as error:
        raise FileError(f"{path}: {LANGUAGE} cannot be read", got=error, remedy=AGAIN) from error
    return dict(record)


def _origin(path: Path, loaded: LoadedModel, record: Mapping[str, Any]) -> BundleOrigin:
    try:
        config = from_record(Config, record["config"])
        _check_config(config)
        template, specials = record["template"], record["specials"]
        texts = [record["precision"], record["fingerprint"], *specials, *specials.values()]
        if not all(isinstance(each, str) for each in texts) or not isinstance(template, str | None):
            raise TypeError("a text is none")
        about = record["precision"], template, specials, record["fingerprint"], record["pooling"]
    except MALFORMED as error:
        raise FileError(f"{path}: {LANGUAGE} cannot be read", got=error, remedy=AGAIN) from error
    return BundleOrigin(path, config, *about, loaded.files, loaded.provenance)


def _check_config(config: Config) -> None:
    """The numbers that running depends on; those of the arithmetic are in the program."""
    sizes = (config.d, config.v, config.kv_heads, config.head_size, config.context)
    windows = [layer.window for layer in config.layers if layer.window is not None]
    if not all(1 <= each <= MAX_SIZE for each in (*sizes, *windows)) or not 1 <= len(config.layers) <= MAX_LAYERS:
        raise ValueError("a size is out of range")
    if config.cache not in CACHES.values() or (config.cache == i8 and not config.fits_int8):
        raise ValueError("keys and values have an unknown type")
    if not all(0 <= each < config.v for each in config.stop):
        raise ValueError("a token that ends a text is not in the vocabulary")


def _step(origin: BundleOrigin, loaded: LoadedModel) -> NativeStep:
    executable = loaded.executable
    if not isinstance(executable, NativeExecutable) or executable.device.has_own_memory:
        raise FileError(f"{origin.path}: a language model is one program for the processor", remedy=AGAIN)
    expected, got = _expected_shapes(origin.config), shapes_of(executable.signature)
    if expected != got:
        differing = (pair for pair in zip(expected, got, strict=False) if pair[0] != pair[1])
        wrong = next(differing, (str(len(expected)), str(len(got))))
        raise FileError(
            f"{origin.path}: the program does not fit the configuration", expected=wrong[0], got=wrong[1], remedy=AGAIN
        )
    return NativeStep(executable, origin.precision, str(loaded.engine))


def _expected_shapes(config: Config) -> list[str]:
    """The shapes of what a step takes and gives."""
    sizes = [", ".join(map(str, each[1:])) for each in pool_sizes(config, 1)]
    kinds = ["Q" if config.is_sliding(i) else "P" for i in range(len(config.layers))]
    pools = [f"{config.cache}[{kind}, {each}]" for kind in kinds for each in sizes]
    tables, places = (1, 4) if config.sliding is None else (2, 5)
    inputs = ["i32[S]", *pools, *["i32[B, M]"] * tables, *["i32[S]"] * places, "i32[R]"]
    return [*inputs, f"f32[R, {config.v}]", f"f32[R, {config.d}]", *pools]


def _utf8(path: Path, read: Read) -> str:
    try:
        return read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: a text is not UTF-8", got=error, remedy=AGAIN) from error
