"""An encoder's folder → `EmbeddingModel` or `CrossEncoder`, or what its bundle holds. Called by `checkpoint_model` and
`to_bundle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from smelt.buffer import bytes_text
from smelt.dtype import Array
from smelt.engine import platform as platform_of
from smelt.engine.native import NativeEngine
from smelt.engine.protocol import Platform
from smelt.errors import MemoryLimitError
from smelt.ir.core import Program
from smelt.llm.cross_encoder import CrossEncoder, Layer, read_head
from smelt.llm.embedding import EmbeddingModel
from smelt.llm.encoder import Encoder, encoder_weights, read_encoder
from smelt.llm.encoder_bundle import check_context, make_encoder
from smelt.llm.encoder_config import EncoderConfig
from smelt.llm.layers import Formats
from smelt.llm.pooling import Pooling
from smelt.llm.sentence_files import read_pooling
from smelt.llm.text_encoder import TOKENS, CompiledEncoder
from smelt.llm.tokenizer import Tokenizer, from_file
from smelt.read import checkpoint
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile
from smelt.tensor.jit.executable import Executable
from smelt.weights import Weights


@dataclass(frozen=True, slots=True)
class EncoderFolder:
    """What an encoder's folder says. `head`: the layers behind an encoder of pairs."""

    path: Path
    config: EncoderConfig
    pooling: Pooling
    head: tuple[Layer, ...] | None
    weights: Weights
    formats: Formats

    @staticmethod
    def open(path: Path, raw: Mapping[str, Any]) -> EncoderFolder:
        """`raw` is the folder's configuration."""
        config = read_encoder(raw, str(path / "config.json"))
        pooling, stored = read_pooling(path), checkpoint.open(path)
        head = read_head(stored, raw)
        (pooling if head is None else Pooling(("cls",), head)).check(config.d, str(path))
        return EncoderFolder(path, config, pooling, head, *encoder_weights(stored, config))

    @property
    def has_tokenizer(self) -> bool:
        return (self.path / "tokenizer.json").is_file()

    def read_tokenizer(self) -> Tokenizer:
        return from_file(self.path / "tokenizer.json")

    def compile(self, platform: Platform[Program]) -> Executable[..., Any]:
        """The program without its weights."""
        config = self.config
        model = instantiate(Encoder, self.weights, strict=True, config=config, formats=self.formats)
        facts = ("B >= 1", "S >= 1", f"S <= {config.context}")
        compiled = partial(compile, platform=platform, facts=facts)
        if self.head is None:
            return compiled(model.encode, "i32[b=B, s=S]", "i32[b=B]")
        return compiled(model.encode_pair, "i32[b=B, s=S]", "i32[b=B]", "i32[b=B, s=S]")


def load_encoder(
    path: Path, raw: dict[str, Any], device: str, engine: str, context: int | None, limit: int | None = None
) -> EmbeddingModel | CrossEncoder:
    """An encoder's folder; `raw` is its configuration, `limit` bytes that weights and batches may take."""
    folder = EncoderFolder.open(path, raw)
    check_context(folder.config, context)
    compiled_program = folder.compile(platform_of(device, engine))
    if limit is not None:
        _check_memory(folder, compiled_program, context or folder.config.context, limit)
    bound = compiled_program.prepare(folder.weights)

    def run(*arrays: Array) -> Array:
        states: Array = bound(*arrays).numpy()
        return states

    compiled = CompiledEncoder(path.name, run, bound.close, str(bound.platform), folder.read_tokenizer)
    return make_encoder(folder.config, compiled, folder.pooling, folder.head, context)


def _check_memory(folder: EncoderFolder, program: Executable[..., Any], context: int, limit: int) -> None:
    """Refuse an encoder whose weights and largest batch do not fit. Only native knows what a batch takes."""
    weights, work, texts = folder.weights.nbytes, 0, max(1, TOKENS // context)
    if isinstance(program.platform.engine, NativeEngine):
        needed = program.memory(B=texts, S=context)
        work = needed.temporary + needed.outputs
    if weights + work > limit:
        raise MemoryLimitError(
            f"{folder.path.name} needs more memory than the limit",
            expected=f"at most {bytes_text(limit)}",
            got=f"{bytes_text(weights)} of weights, {bytes_text(work)} for {texts} texts of {context} tokens",
            remedy="a smaller context, or a larger limit",
        )
