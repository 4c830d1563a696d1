"""Target: the properties of a device, as data. `device` detects them; passes, builders and emitters read them."""

from __future__ import annotations

from typing import Any

from smelt.frozen import Frozen

COMPUTED = (  # element types with arithmetic of their own; the others are stored, and widened to be computed with
    *("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f32", "f64"),
    *("complex<f32>", "complex<f64>"),
)


FP8 = "fp8"  # the feature of a GPU whose tensor cores multiply floats of 8 bits
WARPGROUPS = "warpgroups"  # the feature of a GPU whose warps multiply four together, from shared memory


class TileShape(Frozen):
    """The largest register tile: rows, and columns as whole vectors of `lanes` floats."""

    rows: int
    columns: int
    lanes: int

    @property
    def few_rows(self) -> int:
        """Up to this many pass two panels side by side: sums of one are too few for the latency of a multiply-add."""
        return 3 if self.columns <= 2 * self.lanes else 0


class Target(Frozen):
    """A device as the kernel compiler sees it."""

    name: str  # the machine: "x86_64", "aarch64", …
    cores: int = 1
    vector_bytes: int = 16
    cache_bytes: tuple[int, ...] = (32 << 10, 256 << 10)  # from the innermost level outwards, per core or shared
    features: frozenset[str] = frozenset()  # "avx512f", "fma", …
    flags: tuple[str, ...] = ()  # compiler flags
    device: str = "cpu"  # what runs the code: a name of `device.registry`
    kind: str = "cpu"  # "cpu": cores with vectors; "simt": a grid of blocks of threads
    language: str = "c"  # that kernels are emitted in
    index_type: str = "i64"  # of offsets and loop variables
    registers: int = 16  # vector registers
    native_types: tuple[str, ...] = COMPUTED
    has_pairs: bool = False  # an instruction multiplies pairs of bf16, at least as fast as f32

    def as_json(self) -> dict[str, Any]:
        """What code for the target depends on, as plain data: bundles record it."""
        found = self.record()
        del found["cores"], found["flags"]
        listed = {name: list(value) for name, value in found.items() if isinstance(value, tuple)}
        return {**found, **listed, "features": sorted(self.features), "device": self.device.partition(":")[0]}


BASELINE = Target("baseline")  # nothing but scalars and the smallest vectors


def tile_shape(target: Target) -> TileShape:
    """The largest tile that fits in the registers; of a GPU: the tile of a block."""
    if target.kind == "simt":
        return TileShape(64, 64, 32)
    if target.vector_bytes >= 64:
        return TileShape(6, 64, 16)
    if target.vector_bytes >= 32:
        return TileShape(6, 16, 8)
    return TileShape(6, 16, 4) if target.name in ("aarch64", "arm64") else TileShape(4, 8, 4)
