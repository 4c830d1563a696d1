"""Where a language model comes from: `Origin`, a checkpoint or a bundle, has what a model needs besides its step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from smelt.llm.config import Config
from smelt.llm.pooling import Pooling
from smelt.llm.tokenizer import Tokenizer


class Origin(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def kind(self) -> str:
        """`folder`, `gguf` or `bundle`."""
        ...

    @property
    def config(self) -> Config: ...

    @property
    def template(self) -> str | None:
        """The chat template."""
        ...

    @property
    def specials(self) -> Mapping[str, str]:
        """bos_token, eos_token, … as texts, for templates."""
        ...

    @property
    def has_tokenizer(self) -> bool: ...

    def read_tokenizer(self) -> Tokenizer: ...

    def read_pooling(self) -> Pooling: ...

    def fingerprint(self) -> str:
        """A hash of the configuration and of all weights."""
        ...

    def provenance(self) -> dict[str, str]:
        """What a bundle says about its source."""
        ...
