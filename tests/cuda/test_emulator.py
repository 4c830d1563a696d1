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


def test_shared_memory_is_that_of_the_chip() -> None:
    """Static and dynamic shared memory of a block together, also of functions that a kernel calls."""
    called = "inline int *words() {\n  __shared__ int a[1024], b[2][1024];\n  return threadIdx.x ? a : b[1];\n}\n"
    body = "  __shared__ char c[1 << 10];\n  c[threadIdx.x] = words()[threadIdx.x] = 1;\n}\n"
    head = 'extern "C" __global__ void __launch_bounds__(64) NAME(char *const b0) {\n'
    text = "\n".join([called, head.replace("NAME", "fits"), body, head.replace("NAME", "large")])
    text += "  __shared__ int d[36 << 10 >> 2];\n" + body
    driver = EmulatedDriver()
    module = driver.load(compile_emulated(text))
    fits, large = (driver.function(module, name) for name in ("fits", "large"))
    for capability, most in (((8, 0), 163 << 10), ((8, 9), 99 << 10), ((9, 0), 227 << 10)):
        driver.capability = capability
        driver.launch(fits, 2, 64, [0], most - (13 << 10))
        with pytest.raises(AssertionError, match="with what is static"):
            driver.launch(fits, 1, 64, [0], most - (13 << 10) + 1)
        with pytest.raises(AssertionError, match="more shared memory than a block has"):
            driver.launch(fits, 1, 64, [0], most + 1)
    with pytest.raises(AssertionError, match="more static"):
        driver.launch(large, 1, 64, [0])
