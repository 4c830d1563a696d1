"""The f32 micro-kernel with vectors wider than the processor's registers, by gcc: it has no such instruction."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from smelt.device import cpu
from smelt.kernel.emit.tile_f32 import mma_f32_text
from smelt.target import TileShape

HEAD = """
#include <stdint.h>
typedef float f32; typedef int64_t i64; typedef uint16_t ui16; typedef uint32_t ui32;
#define SMELT_NO_UNROLL
"""
CALL = """
void multiply(i64 rows, i64 depth, const f32 *a, const f32 *b, f32 *tile) {
  smelt_mma_f32(rows, a, depth, 0, 1, b, 16, 1, depth, tile, 0, 0, 1, 0);
}
"""


def test_gcc_compiles_vectors_of_two_registers(seed: int, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None or not {"avx2", "fma"} <= cpu.target("native").features:
        pytest.skip("wants gcc, and a processor with AVX2 and FMA")
    source, library = tmp_path / "wide.c", tmp_path / "wide.so"
    source.write_text(HEAD + mma_f32_text(TileShape(2, 16, 16)) + CALL)
    flags = ["-O1", "-w", "-Wno-psabi", "-mavx2", "-mfma", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([gcc, *flags, str(source), "-o", str(library)], check=True)
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((5, 37), np.float32), random.standard_normal((37, 16), np.float32)
    got = np.zeros((5, 16), np.float32)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (a, b, got)]
    ctypes.CDLL(str(library)).multiply(ctypes.c_int64(5), ctypes.c_int64(37), *pointers)
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)
