"""Block formats against the `gguf` package, our own against their definition: every row decodes to the same bits, on
NumPy and as StableHLO."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from smelt.engine import platform
from smelt.ir.block_ops import decomposition
from smelt.ir.blocks import BLOCKS, TABLE, Block, decode
from smelt.ir.core import Func, Program
from smelt.tensor.composite import unblock
from smelt.tensor.jit.trace import trace

ROWS = [pytest.param(row, id=row.name) for row in TABLE]
GGML = [pytest.param(row, id=row.name) for row in TABLE if row.kind is not None]


def peer(row: Block, data: Array) -> Array:
    if row.kind is None:
        return zero_point_peer(row, data)
    gguf = pytest.importorskip("gguf")
    with np.errstate(all="ignore"):
        flat = data.reshape(-1, data.shape[-2] * row.bytes)
        made: Array = gguf.quants.dequantize(flat, gguf.GGMLQuantizationType[row.name.upper()])
    return made.reshape(*data.shape[:-2], -1)


def zero_point_peer(row: Block, data: Array) -> Array:
    """An f16, a byte with a factor and the zero point, and 16 bytes for each 32 codes."""
    assert row.name == "u4_128"
    scale = np.ascontiguousarray(data[..., :2]).view("<f2").astype(np.float32)
    factor, zero = data[..., 2:3] % 16, data[..., 2:3] // 16
    runs = data[..., 3:].reshape(*data.shape[:-1], -1, 16)
    codes = np.concatenate([runs % 16, runs // 16], -1).reshape(*data.shape[:-1], row.length)
    with np.errstate(all="ignore"):
        made: Array = scale * factor.astype(np.float32) * codes.astype(np.float32) - scale * zero.astype(np.float32)
    return made.reshape(*data.shape[:-2], -1)


def random_blocks(row: Block, lead: tuple[int, ...], seed: int) -> Array:
    """Random bytes: scales are any f16, infinite ones and those that are not numbers as well."""
    return np.random.default_rng(seed).integers(0, 256, (*lead, row.bytes), np.uint8)


def assert_same_bits(got: Any, want: Array) -> None:
    got = np.asarray(got)
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (got[~same][:4], want[~same][:4])


@pytest.mark.parametrize("row", GGML)
def test_rows_say_what_ggml_says(row: Block) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[row.name.upper()]
    assert kind.value == row.kind
    assert gguf.GGML_QUANT_SIZES[kind] == (row.length, row.bytes)


def test_a_zero_point_is_exact(seed: int) -> None:
    """`scale * (code - zero)`, every bit of it, for every finite scale."""
    row = BLOCKS["u4_128"]
    scales = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    scales = scales[np.isfinite(scales)]
    data = random_blocks(row, (1, scales.size), seed)
    data[0, :, :2] = scales[:, None].view(np.uint8)
    data[0, :, 2] = data[0, :, 2] & 0xF0 | 1
    low = data[0, :, 3:].reshape(scales.size, -1, 16)
    codes = np.concatenate([low & 15, low >> 4], -1).reshape(scales.size, row.length)
    want = scales.astype(np.float64)[:, None] * (codes.astype(int) - (data[0, :, 2:3] >> 4))
    np.testing.assert_array_equal(decode(row, data).reshape(want.shape), want)


@pytest.mark.parametrize("row", ROWS)
def test_decoding_gives_the_same_bits(row: Block, seed: int) -> None:
    data = random_blocks(row, (7, 300), seed)
    assert_same_bits(decode(row, data), peer(row, data))
    every = np.arange(256, dtype=np.uint8)  # every byte in every place of the scale
    low = np.repeat(random_blocks(row, (1, 1), seed), 256, 1)
    low[0, :, row.scale] = every
    assert_same_bits(decode(row, low), peer(row, low))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("engine", ["reference", "native", "pjrt"])
def test_the_decomposition_gives_the_same_bits(row: Block, engine: str, seed: int) -> None:
    if engine == "pjrt":
        pytest.importorskip("jaxlib")
    data = random_blocks(row, (5, 3), seed)
    func = decomposition(row, (5, 3))
    program = Program.of(Func("main", func.body, "public"))
    [made] = platform("cpu", engine).engine.compile(program)(data)
    assert_same_bits(made if isinstance(made, np.ndarray) else made.numpy(), peer(row, data))


def test_the_composite_is_run_by_every_engine(seed: int) -> None:
    row = BLOCKS["q4_k"]
    data = random_blocks(row, (6, 2), seed)
    data[..., [1, 3]] &= 0x3F  # finite scales

    def project(x: smelt.Tensor, w: smelt.Tensor) -> smelt.Tensor:
        return x.dot(unblock(w, "q4_k", "d"), "d")

    x = np.random.default_rng(seed).standard_normal((3, 512), np.float32)
    want = x.astype(np.float64) @ peer(row, data).T.astype(np.float64)
    shapes = "f32[b=B, d=512]", f"ui8[f=6, n=2, bytes={row.bytes}]"
    traced = trace(project, *(smelt.symbolic(each) for each in shapes))
    assert [op.attrs["name"] for op in traced.program.main.body.ops if op.name == "stablehlo.composite"] == [
        "smelt.unblock"
    ]
    assert smelt.parse(smelt.print_program(traced.program))
    for engine in ("reference", "native"):
        made = smelt.compile(project, *shapes, engine=engine)(x, data)
        np.testing.assert_allclose(made.numpy(), want, rtol=1e-4, atol=1e-3 * np.abs(want).max() / 100)
    assert_same_bits(unblock(smelt.tensor(data, "f n bytes"), "q4_k", "d").numpy(), peer(row, data))


def test_unblock_refuses_what_is_no_block() -> None:
    with pytest.raises(smelt.TensorError, match="unknown format"):
        unblock(smelt.symbolic("ui8[f=8, n=2, bytes=18]"), "q4_7")
    for shape in ("ui8[f=8, n=2, bytes=17]", "i8[f=8, n=2, bytes=18]", "ui8[f=F, n=2, bytes=18]"):
        with pytest.raises(smelt.TensorError, match="18 bytes"):
            unblock(smelt.symbolic(shape), "q4_0")
