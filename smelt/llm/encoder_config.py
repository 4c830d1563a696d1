"""The sizes of an encoder. `encoder` reads them from a `config.json`, `encoder_bundle` from a bundle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    family: str
    layers: int
    d: int
    f: int
    heads: int
    v: int
    positions: int  # rows of the table of positions
    first: int  # the row of the first position
    types: int
    epsilon: float
    activation: str
    padding: int
    norm: str = "layer"
    norm_offset: float = 0.0

    @property
    def context(self) -> int:
        """Tokens of a text."""
        return self.positions - self.first
