"""Target: what a device can do, as data. Kernel builders and emitters read it; `device` finds it out."""

from __future__ import annotations

from smelt.frozen import Frozen


class TileShape(Frozen):
    """The largest register tile: rows, and columns as whole vectors of `lanes` floats."""

    rows: int
    columns: int
    lanes: int


class Target(Frozen):
    """A processor as the kernel compiler sees it."""

    name: str  # "x86_64", "aarch64", …
    cores: int = 1
    vector_bytes: int = 16
    cache_bytes: tuple[int, ...] = (32 << 10, 256 << 10)  # from the innermost level outwards, per core or shared
    features: frozenset[str] = frozenset()  # "avx512f", "fma", …
    flags: tuple[str, ...] = ()  # C compiler flags for the processor

    @property
    def has_pairs(self) -> bool:
        """Whether an instruction multiplies pairs of bf16 (AVX512-BF16), at least as fast as floats: processors that
        have matrix tiles take four times as long for it as for a multiply-add (0.73 and 0.18 ns on Emerald Rapids)."""
        has = "avx512_bf16" in self.features and "amx_bf16" not in self.features
        return has and self.vector_bytes >= 64


BASELINE = Target("baseline")  # nothing but scalars and the smallest vectors


def tile_shape(target: Target) -> TileShape:
    """The largest tile that fits in the registers."""
    if target.vector_bytes >= 64:
        return TileShape(6, 64, 16)
    if target.vector_bytes >= 32:
        return TileShape(6, 16, 8)
    return TileShape(6, 16, 4) if target.name in ("aarch64", "arm64") else TileShape(4, 8, 4)
