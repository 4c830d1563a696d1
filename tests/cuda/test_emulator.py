"""The emulator itself: barriers, shuffles, and what is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array
from tests.cuda.emulated import EmulatedDriver, compile_emulated, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler: pip install ziglang")
KERNEL = """typedef long long i64;
extern "C" __global__ void __launch_bounds__(64) NAME(char *const b0, const i64 s0, char *const memory) {
  __shared__ int x[64];
  x[threadIdx.x] = 2 * threadIdx.x;
  BARRIER
  ((int *)b0)[blockIdx.x * 64 + threadIdx.x + s0] = x[63 - threadIdx.x];
}
"""


def run(driver: EmulatedDriver, name: str, barrier: str, offset: int = 0) -> Array:
    module = driver.load(compile_emulated(KERNEL.replace("NAME", name).replace("BARRIER", barrier)))
    address = driver.allocate(512)
    driver.launch(driver.function(module, name), 2, 64, [address, offset, 0])
    found = np.empty(128, np.int32)
    driver.download(found, address)
    return found


def test_barriers_are_needed_and_writes_outside_are_noticed() -> None:
    driver = EmulatedDriver()
    right = np.tile(2 * np.arange(64)[::-1], 2)
    np.testing.assert_array_equal(run(driver, "with_barrier", "__syncthreads();"), right)
    assert not np.array_equal(run(driver, "without_barrier", "(void)__syncthreads;"), right)
    with pytest.raises(AssertionError, match="outside"):
        run(driver, "outside", "__syncthreads();", 1)
