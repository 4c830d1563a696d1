"""The emulator finds races: of threads, of blocks, and of launches that begin early. Tests marked `races` look for them
in generated kernels; with SMELT_CUDA_TESTS=races all tests of this folder do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.emulated import EmulatedDriver, can_find_races, compile_emulated

pytestmark = pytest.mark.skipif(not can_find_races(), reason="no g++, whose instrumentation finds them")
HEAD = """typedef long long i64;
extern "C" __global__ void __launch_bounds__(64) kernel(char *const b0, char *const b1) {
  int *const x = (int *)b0, *const y = (int *)b1, t = threadIdx.x, b = blockIdx.x;
  __shared__ int s[64];
  __shared__ __align__(16) unsigned long long full[1];
  __shared__ __align__(16) int near[64];
"""
THREADS = {
    "nothing between": ("s[t] = t; y[b * 64 + t] = s[t ^ 1];", "written by"),
    "a barrier of a warp": ("s[t] = t; __syncwarp(); y[b * 64 + t] = s[t ^ 1];", ""),
    "a barrier of a warp between two": ("s[t] = t; __syncwarp(); y[b * 64 + t] = s[t ^ 32];", "written by"),
    "a barrier of the block": ("s[t] = t; __syncthreads(); y[b * 64 + t] = s[t ^ 32];", ""),
    "a shuffle, which orders no memory": ("s[t] = t; __shfl_sync(~0u, 1, 0); y[b * 64 + t] = s[t ^ 1];", "written by"),
    "read, then written": (
        "s[t] = t; __syncthreads(); const int z = s[t ^ 32]; __syncwarp(); s[t] = z; y[b * 64 + t] = z;",
        "then written by",
    ),
    "parts of a word": ("((char *)s)[t] = 1; __syncthreads(); y[b * 64 + t] = s[t / 4];", ""),
    "an asynchronous copy of another thread": (
        "if (t < 16) smelt_copy_async(near + 4 * t, x + 4 * t, 16); smelt_copy_commit(); smelt_copy_wait<0>();"
        " __syncwarp(); y[b * 64 + t] = near[t];",
        "written by",
    ),
    "an asynchronous copy to what others read": (
        "near[t] = t; __syncthreads(); y[b * 64 + t] = near[63 - t];"
        " if (t < 16) smelt_copy_async(near + 4 * t, x + 4 * t, 16); smelt_copy_commit(); __syncthreads();"
        " smelt_copy_wait<0>();",
        "then written by a copy",
    ),
    "its barrier": (
        "if (t < 16) smelt_copy_async(near + 4 * t, x + 4 * t, 16); smelt_copy_commit(); smelt_copy_wait<0>();"
        " __syncthreads(); y[b * 64 + t] = near[t];",
        "",
    ),
}
COPY = """
  if (t == 0) smelt_barrier_init(full, 1);
  near[t] = 1;
  PUBLISH
  __syncthreads();
  const int before = READ;
  BETWEEN
  if (t == 0) smelt_bulk_expect(full, 256), smelt_bulk_copy(near, x, 256, full);
  while (!smelt_barrier_passed(full, 0)) {}
  y[b * 64 + t] = before + near[63 - t];
"""
BLOCKS = {
    "the same element": ("y[0] = b;", "written by"),
    "the same element, atomically": ("atomicAdd(y, b);", ""),
    "atomically and otherwise": ("if (b) atomicAdd(y, b); else y[0] = 1;", "written by"),
    "without a counter": ("if (b == 0) y[0] = 1; else y[1] = y[0];", "written by"),
    "with a counter": ("if (b == 0) y[0] = 1; if (smelt_count((unsigned *)y + 8)) y[1] = y[0];", ""),
    "before the counter": ("if (b == 0) smelt_count((unsigned *)y + 8), y[0] = 1; else y[1] = y[0];", "written by"),
}


def run(body: str, *, blocks: int = 1, threads: int = 64, launches: tuple[bool, ...] = (False,)) -> str:
    """What launches of a kernel report; of each, whether it may begin early."""
    driver = EmulatedDriver(races=True)
    module = driver.load(compile_emulated(HEAD + body + "}\n", races=True))
    addresses = [driver.allocate(64 * 4 * blocks) for _ in range(2)]
    for address in addresses:
        driver.clear(address, 64 * 4 * blocks)
    try:
        for overlap in launches:
            driver.launch(driver.function(module, "kernel"), blocks, threads, addresses, overlap=overlap)
    except AssertionError as error:
        return str(error)
    return ""


def check(report: str, expected: str) -> None:
    assert expected in report
    assert bool(expected) == bool(report), report


@pytest.mark.parametrize("name", THREADS)
def test_threads_of_a_block(name: str) -> None:
    check(run(THREADS[name][0]), THREADS[name][1])


@pytest.mark.parametrize(
    ("publish", "read", "between", "expected"),
    [
        ("smelt_publish();", "near[t ^ 32]", "__syncthreads();", ""),
        ("smelt_publish();", "near[t ^ 32]", "", "then written by"),
        ("", "0", "", "not published"),
        ("smelt_publish();", "0", "", ""),
    ],
    ids=["ordered", "still read", "without a fence", "not read"],
)
def test_bulk_copies(publish: str, read: str, between: str, expected: str) -> None:
    """A copy overwrites what threads wrote, and read: they must be done with it."""
    check(run(COPY.replace("PUBLISH", publish).replace("READ", read).replace("BETWEEN", between)), expected)


def test_accesses_that_are_not_aligned() -> None:
    body = "y[b * 64 + t] = *(const int *)(b0 + OFFSET);"
    check(run(body.replace("OFFSET", "4 * t")), "")
    check(run(body.replace("OFFSET", "(t ? 4 * t : 2)")), "an access of 4 bytes")


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_a_launch(name: str) -> None:
    check(run(BLOCKS[name][0], blocks=2, threads=1), BLOCKS[name][1])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("smelt_await(); y[t] = x[t]; x[t] = 1;", ""),
        ("const int z = x[t]; smelt_await(); y[t] = z; x[t] = 1;", "is read"),
        ("const int z = x[t + 32]; smelt_await(); if (t < 32) x[t] = z;", ""),  # which no launch writes
        ("y[t] = 1; smelt_await();", "is written"),
        ("if (b > 0) smelt_await();", "never waits"),
    ],
    ids=["waits", "reads early", "reads what stays", "writes early", "never waits"],
)
def test_launches_that_begin_early(body: str, expected: str) -> None:
    check(run(body, threads=32, launches=(False, True)), expected)


def test_a_report_names_threads_and_places() -> None:
    report = run(THREADS["nothing between"][0])
    assert "emulate_kernel" in report
    assert "shared memory" in report
    assert "by thread 1 of run 1" in report
    assert np.unique([line.split(":")[0] for line in report.splitlines()[1:]]).size > 1
