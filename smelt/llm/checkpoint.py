"""A checkpoint on disk as everything a language model needs: `open` reads a Hugging Face folder or a GGUF file.

Out: `Checkpoint` with the decoder's `Config`, weights under our names (mapped, lazy), how each is stored, where the
tokenizer comes from, the chat template, and the tokens that end a text. `engine.load` and `smelt inspect` call it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.bundle.write import source_record
from smelt.dtype import DType, bf16, i32
from smelt.errors import FileError, ParseError, UnsupportedError
from smelt.ir.blocks import Block
from smelt.llm.config import CACHES, EXPERTS, Config
from smelt.llm.families import is_encoder, multimodal_of, read_config, token_ids
from smelt.llm.gguf_config import config_of
from smelt.llm.names import TextPart, canonical, drop_zero_biases, stacked_names, text_part, untie
from smelt.llm.pooling import Pooling
from smelt.llm.quantised_folder import Read, read_quantised
from smelt.llm.sentence_files import read_pooling
from smelt.llm.tokenizer import Tokenizer, from_file, from_gguf
from smelt.read import checkpoint, gguf
from smelt.shape import Shape
from smelt.weights import Stored, Weights

if TYPE_CHECKING:
    from smelt.llm.layers import Formats

MAX_JSON = 100_000_000
MAX_TEMPLATE = 1 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files, read as far as needed."""

    path: Path
    kind: str  # "folder" or "gguf"
    config: Config
    weights: Weights
    formats: Formats
    template: str | None = None
    specials: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, … as text, for templates
    metadata: Mapping[str, Any] = field(default_factory=dict)  # of a GGUF file
    quantised: str = ""  # what a folder's config.json calls its quantisation
    multimodal: str = ""  # the architecture whose text model this is
    left_out: tuple[str, ...] = ()  # tensors of its other parts: no image is ever read
    dequantised: frozenset[str] = frozenset()  # weights that are quantised in the folder, and that no block holds
    sorted: Mapping[str, tuple[Stored, Block | DType]] = field(default_factory=dict)  # of these, in blocks; and orders

    def for_processor(self, precision: str) -> Checkpoint:
        """The same as the native engine computes it: layers with a window have pages of their own, where other layers
        see everything, experts multiply the tokens that chose them, and where blocks stay blocks, inputs are sorted if
        that is what it takes."""
        own = replace(self.config, own_pages=True)
        found = replace(self, config=self.config if own.sliding is None else own)._with_grouped_experts()
        if precision != "q8" or not self.sorted:
            return found
        stored = {name: self.weights.find(name) for name in self.weights}
        stored |= {name: each for name, (each, _) in self.sorted.items()}
        formats = {**self.formats, **{name: form for name, (_, form) in self.sorted.items()}}
        return replace(found, weights=Weights(stored, self.weights.metadata, self.weights.source), formats=formats)

    def for_gpu(self, precision: str) -> Checkpoint:
        """The same as the native engine computes it on a GPU: experts multiply the tokens that chose them where there
        is a grouped GEMM, by bf16 and by weights that stay in blocks."""
        kept = precision in ("q8", "fp8")
        experts = [form for name, form in self.formats.items() if name.endswith(EXPERTS)]
        grouped = all(form == bf16 or (kept and isinstance(form, Block)) for form in experts)
        return self._with_grouped_experts() if grouped else self

    def _with_grouped_experts(self) -> Checkpoint:
        mixed = any(layer.experts is not None for layer in self.config.layers)
        return replace(self, config=replace(self.config, grouped_experts=mixed))

    def with_cache(self, name: str) -> Checkpoint:
        """The same with another type of keys and values in memory."""
        if name not in tuple(CACHES):
            raise UnsupportedError(
                "unknown type of keys and values",
                expected=", ".join(CACHES),
                got=name,
                remedy=f"cache={next(iter(CACHES))!r}",
            )
        if name == "int8" and not self.config.fits_int8:
            raise UnsupportedError(
                "keys and values in int8 are words of four elements",
                expected="a head size that is a multiple of 4",
                got=self.config.head_size,
                remedy="cache='f16'",
            )
        return replace(self, config=replace(self.config, cache=CACHES[name]))

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    @property
    def name(self) -> str:
        return self.path.stem if self.kind == "gguf" else self.path.name

    @property
    def has_tokenizer(self) -> bool:
        if self.kind == "gguf":
            return "tokenizer.ggml.tokens" in self.metadata
        return (self.path / "tokenizer.json").is_file()

    def read_tokenizer(self) -> Tokenizer:
        if self.kind == "gguf":
            return from_gguf(self.metadata, str(self.path))
        if not self.has_tokenizer:
            raise FileError(f"{self.path}: no tokenizer", expected="tokenizer.json", remedy="give tokens, not text")
        return from_file(self.path / "tokenizer.json")

    def read_pooling(self) -> Pooling:
        return read_pooling(self.path) if self.kind == "folder" else Pooling()

    def fingerprint(self) -> str:
        """A hash of the configuration and of all bytes of the weights."""
        found = blake2b(repr(self.config).encode(), digest_size=16)
        for name in sorted(self.weights):
            found.update(name.encode())
            found.update(np.ascontiguousarray(self.weights[name].numpy()).view(np.uint8).data)
        return found.hexdigest()

    def provenance(self) -> dict[str, str]:
        """What a bundle says about its source."""
        return source_record(self.path) if self.kind == "gguf" else {"source": self.path.name}

    def sizes(self, name: str) -> tuple[int, ...]:
        """The sizes of a weight, counted in numbers."""
        form, found = self.formats[name], self.weights.shape(name).numbers()
        return (*found[:-2], found[-2] * form.length) if isinstance(form, Block) else found

    def elements(self, name: str) -> int:
        """How many numbers a weight has."""
        return math.prod(self.sizes(name))


def is_checkpoint(path: Path) -> bool:
    """Whether a path looks like a language model: a GGUF file, or a folder with a configuration."""
    return path.suffix.lower() == ".gguf" or (path.is_dir() and (path / "config.json").is_file())


def encoder_config(path: str | Path) -> dict[str, Any] | None:
    """The configuration of a folder with an encoder; None for anything else."""
    file = Path(path) / "config.json"
    raw = _json(file) if Path(path).is_dir() else {}
    return raw if is_encoder(raw) else None


def open(path: str | Path, context: int | None = None) -> Checkpoint:
    """The checkpoint at a path; headers and configurations are read, tensors are not."""
    path = Path(path)
    if path.is_dir():
        return _folder(path, context)
    if not path.is_file():
        raise FileError(
            "no such file or folder",
            expected="a Hugging Face folder or a .gguf file",
            got=path,
            remedy="check the path; smelt pull ORGANISATION/NAME downloads a model, smelt pull lists them",
        )
    if path.suffix.lower() != ".gguf":
        raise UnsupportedError(
            "not a language model",
            expected="a Hugging Face folder or a .gguf file",
            got=path.name,
            remedy=f"smelt run {path} for other models",
        )
    return _gguf(path, context)


# ---- Hugging Face folders ----


def _folder(folder: Path, context: int | None) -> Checkpoint:
    if not (folder / "config.json").is_file():
        inside = sorted(folder.glob("*.gguf"))
        raise FileError(
            f"{folder} is no Hugging Face folder",
            expected="config.json, tokenizer.json and *.safetensors in it",
            got="a folder without config.json",
            remedy=f"give {inside[0]}"
            if inside
            else "smelt pull ORGANISATION/NAME downloads a model, or give a .gguf file",
        )
    raw = _json(folder / "config.json")
    where = str(folder / "config.json")
    quantised = raw.pop("quantization_config", None)
    config = read_config(raw, where, context)
    generation = _json(folder / "generation_config.json")
    stop = (*config.stop, *token_ids(generation.get("eos_token_id")))
    config = replace(config, stop=tuple(dict.fromkeys(stop)))
    whole, multimodal = checkpoint.open(folder), multimodal_of(raw)
    part = TextPart(whole) if multimodal is None else text_part(whole, config)
    read = Read(part.weights, {}, {})
    if quantised is not None:
        read = read_quantised(read.weights, quantised, where, partial(stacked_names, config))
    stored, forms = read.weights, read.forms
    config = untie(stored, config)
    weights, theirs = canonical(stored, config, False)
    if quantised is not None:
        weights = drop_zero_biases(weights, config)
    formats = {name: forms.get(theirs[name]) or _element(weights, name) for name in weights}
    tokenizer = _json(folder / "tokenizer_config.json")
    specials = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _token_text(tokenizer.get(name))) is not None
    }
    return Checkpoint(
        folder,
        "folder",
        config,
        weights,
        formats,
        _template(folder, tokenizer),
        specials,
        quantised="" if quantised is None else quantised["quant_method"],
        multimodal=multimodal or "",
        left_out=part.left_out,
        dequantised=frozenset(name for name in weights if isinstance(forms.get(theirs[name]), DType)),
        sorted=_sorted_layers(read, config),
    )


def _sorted_layers(read: Read, config: Config) -> dict[str, tuple[Stored, Block | DType]]:
    """Weights of layers in blocks, their inputs sorted, and the orders of these; under our names."""
    if not read.sorted:
        return {}
    stored = {name: read.weights.find(name) for name in read.weights}
    stored |= {name: each.stored for name, each in read.sorted.items()}
    weights, theirs = canonical(Weights(stored, source=read.weights.source), config, False)
    found: dict[str, tuple[Stored, Block | DType]] = {}
    for ours, name in theirs.items():
        if ours.startswith("layers.") and (each := read.sorted.get(name)) is not None:
            found[ours] = weights.find(ours), each.form
            shape, order = Shape.of(i32, each.order.shape), each.order
            found[f"{ours.removesuffix('.weight')}.order"] = Stored(shape, lambda order=order: order), i32  # type: ignore[misc]
    return found


def _element(weights: Weights, name: str) -> DType:
    element = weights.shape(name).dtype
    if not isinstance(element, DType) or not element.is_float:
        raise UnsupportedError(f"{weights.source}: {name}", expected="floats", got=element)
    return element


def _token_text(value: Any) -> str | None:
    """A special token: a text, or a record with it."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(folder: Path, tokenizer: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or a field of the tokenizer's configuration; of several the default."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _text(file, MAX_TEMPLATE)
    found = _json(folder / "chat_template.json").get("chat_template") or tokenizer.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _text(path: Path, limit: int) -> str:
    try:
        if path.stat().st_size > limit:
            raise ParseError(f"{path}: too large", expected=f"at most {limit} bytes", got=path.stat().st_size)
        return path.read_text("utf-8")
    except OSError as error:
        raise FileError(f"cannot read {path}", got=error) from error
    except UnicodeDecodeError as error:
        raise ParseError(f"{path}: not UTF-8", got=error) from None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(_text(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path}: not JSON", got=error) from None
    if not isinstance(found, dict):
        raise ParseError(f"{path}: not an object", got=type(found).__name__)
    return found


# ---- GGUF ----


def _gguf(path: Path, context: int | None) -> Checkpoint:
    file = gguf.read(path)
    config = config_of(file, context)
    weights, theirs = canonical(file.packed, config, True)
    formats = {ours: file.formats[name] for ours, name in theirs.items()}
    template = file.metadata.get("tokenizer.chat_template")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    specials = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        number = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if type(number) is int and isinstance(tokens, list) and 0 <= number < len(tokens):
            specials[name] = tokens[number]
    return Checkpoint(
        path, "gguf", config, weights, formats, template if isinstance(template, str) else None, specials, file.metadata
    )
