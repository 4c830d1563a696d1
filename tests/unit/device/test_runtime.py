"""The runtime library: the thread pool, calls from Python in the fast and the slow way, their memory and failures.

The programs are hand-written C (`programs.c`); the oracles are NumPy, the operating system and sanitizers.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import smelt
from smelt.device import cpu
from smelt.device.library import load_library
from smelt.device.runtime import SOURCES, Bound, Program, Runtime, runtime
from smelt.dtype import Array
from smelt.errors import DeviceError, RunError, ShapeError, SizeError, SmeltError
from smelt.shape import Shape

HERE = Path(__file__).parent
SOURCE = Path(smelt.__path__[0]) / "runtime"

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")


@cache
def library() -> ctypes.CDLL:
    return cpu.build((SOURCE / "smelt.h").read_text() + (HERE / "programs.c").read_text())


class ReportedError(RunError):
    """What `explain` makes of a status."""


def explain(status: int, record: tuple[int, ...]) -> SmeltError:
    return ReportedError("the program failed", got=(status, record))


def program(
    name: str, arguments: list[Shape], results: list[Shape], *symbols: str, constants: tuple[bytes, ...] = ()
) -> Program:
    names = [f"in{i}" for i in range(len(arguments))]
    return Program(library(), name, arguments, results, symbols, constants, explain=explain, names=names)


def twice() -> Bound:
    return program("twice", [Shape("f32", "N")], [Shape("f32", "N")], "N").bind([])


def cover() -> Bound:
    results = [Shape("i32", "N"), Shape("i32", "N"), Shape("i64", "N")]
    return program("cover", [Shape("i8", "N"), Shape("i64")], results, "N").bind([])


def hold() -> Program:
    return program("hold", [Shape("f32", "N"), Shape("f32")], [Shape("i32")], "N")


@pytest.fixture
def pool() -> Iterator[Runtime]:
    """The runtime; the number of threads is put back afterwards."""
    before = runtime().threads
    yield runtime()
    runtime().set_threads(before)


def floats(seed: int, *sizes: int) -> Array:
    return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


# ------------------------------------------------------------------------------------------------ the pool


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("count", "chunk"), [(0, 1), (1, 1), (7, 1), (1000, 1), (1000, 64), (1000, 999), (5, 64), (97, 8)]
)
def test_every_element_is_visited_once_in_ranges_of_at_least_a_chunk(
    pool: Runtime, threads: int, count: int, chunk: int
) -> None:
    pool.set_threads(threads)
    visits, workers, begin = cover()((np.zeros(count, np.int8), np.array(chunk)))
    np.testing.assert_array_equal(visits, 1)
    assert ((workers >= 0) & (workers < threads)).all()
    starts, sizes = np.unique(begin, return_counts=True)
    assert (starts % chunk == 0).all()
    assert (sizes >= min(chunk, count)).all()
    assert len(starts) <= max(1, threads * 16)
    if threads == 1:
        assert len(starts) == min(count, 1)


def test_the_last_ranges_of_a_worker_are_halves_of_what_is_left(pool: Runtime) -> None:
    """So that workers end at the same time."""
    pool.set_threads(2)
    _, _, begin = cover()((np.zeros(1000, np.int8), np.array(1)))
    starts, sizes = np.unique(begin, return_counts=True)
    for half in (0, 500):
        mine = sizes[(starts >= half) & (starts < half + 500)].tolist()
        assert mine == [62] * 7 + [33, 17, 8, 4, 2, 1, 1]


def test_sums_do_not_depend_on_the_number_of_threads(pool: Runtime, seed: int) -> None:
    random = np.random.default_rng(seed)
    shapes = [Shape("f64", "N"), Shape("f64", "N")]
    constant = np.array(0.25).tobytes()
    for count in (0, 1, 64, 12_345):
        weight, x = random.standard_normal((2, count))
        bound = program("sum", shapes, [Shape("f64")], "N", constants=(constant,)).bind([weight])
        sums = []
        for threads in (1, 2, 5):
            pool.set_threads(threads)
            sums += [bound((x,))[0][()] for _ in range(20)]
        assert len(set(sums)) == 1
        np.testing.assert_allclose(sums[0], (weight * x + 0.25).sum(), rtol=1e-11)


def test_a_parallel_step_inside_another_runs_inline_as_the_same_worker(pool: Runtime) -> None:
    pool.set_threads(3)
    nested = program("nested", [Shape("i8", "N")], [Shape("i64", "N")], "N").bind([])
    (counts,) = nested((np.zeros(500, np.int8),))
    np.testing.assert_array_equal(counts, 100)


def test_a_call_beside_another_one_has_its_own_thread(pool: Runtime) -> None:
    pool.set_threads(2)
    with RunningHold() as (bound, _):
        visits, workers, _ = cover()((np.zeros(1000, np.int8), np.array(1)))
        assert bound.memory.contexts == 1
    assert (visits == 1).all()
    assert not workers.any(), "two threads, two calls"


def test_helpers_start_with_the_first_parallel_step_and_sleep_when_idle(pool: Runtime) -> None:
    pool.set_threads(4)
    assert pool.helpers == 0
    call = cover()
    call((np.zeros(1000, np.int8), np.array(1)))
    assert pool.helpers == 3
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1  # one helper that kept spinning would use 0.3
    pool.set_threads(1)
    assert pool.helpers == 0


def test_the_number_of_threads_is_checked(pool: Runtime) -> None:
    for wrong in (0, -1, 257):
        with pytest.raises(DeviceError, match="1 to 256"):
            pool.set_threads(wrong)


SCRIPT = """
import os, sys
sys.path.insert(0, {folder!r})
import numpy as np
from test_runtime import cover, runtime
inputs = np.zeros(1000, np.int8), np.array(1)
call = cover()
def right():
    return (call(inputs)[0] == 1).all() and runtime().helpers == runtime().threads - 1
assert runtime().threads == 3 and right()
child = os.fork()
if not child:
    os._exit(0 if runtime().helpers == 0 and right() else 1)
assert os.waitpid(child, 0)[1] == 0 and right()
"""


def python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(
        command, env={**os.environ, **environment}, cwd=HERE.parents[2], capture_output=True, text=True, check=False
    )


def test_the_pool_starts_again_after_a_fork() -> None:
    done = python(SCRIPT.format(folder=str(HERE)), SMELT_THREADS="3")
    assert done.returncode == 0, done.stderr


def test_threads_from_the_environment_are_checked() -> None:
    done = python("from smelt.device.runtime import runtime; runtime()", SMELT_THREADS="many")
    assert "invalid SMELT_THREADS" in done.stderr


def test_features_are_those_that_the_kernel_lists() -> None:
    listed = cpu.target().features
    if not listed:
        pytest.skip("no /proc/cpuinfo here")
    found = runtime().features
    assert found <= listed
    assert found >= listed & {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"}


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_pool_and_the_slots_under_a_sanitizer(sanitizer: str, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    flags = ["-g", "-O1", "-std=c11", "-pthread", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    binary = str(tmp_path / "stress")
    if (
        gcc is None
        or subprocess.run([gcc, *flags, str(probe), "-o", binary], capture_output=True, check=False).returncode
        or subprocess.run([binary], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"no gcc whose -fsanitize={sanitizer} works here")
    sources = [str(SOURCE / name) for name in SOURCES if name.endswith(".c") and name != "python.c"]
    subprocess.run([gcc, *flags, "-I", str(SOURCE), *sources, str(HERE / "stress.c"), "-o", binary], check=True)
    steps = [] if sanitizer == "thread" else ["fork"]  # the thread sanitizer follows no fork
    done = subprocess.run([binary, *steps], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------ calls


def test_several_threads_call_one_executable(seed: int) -> None:
    call = twice()
    arrays = [floats(seed + i, 1 + 97 * i) for i in range(20)]

    def use(x: Array) -> bool:
        return all((call((x,))[0] == 2 * x).all() for _ in range(50))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(use, arrays))
    assert 1 <= call.memory.contexts <= 4


def test_repeated_calls_take_no_memory(pool: Runtime, seed: int) -> None:
    pool.set_threads(2)
    shapes = [Shape("f64", "N"), Shape("f64", "N")]
    weight, x = np.random.default_rng(seed).standard_normal((2, 1 << 19))
    bound = program("sum", shapes, [Shape("f64")], "N", constants=(bytes(8),)).bind([weight])
    above = program("above", [Shape("f32", "N")], [Shape("f32", "K"), Shape("i64", 2, "K")], "N").bind([])
    y = floats(seed, 5000)
    out = (np.empty((), np.float64),)
    bound((x,)), above((y,))
    before = pool.allocations
    for _ in range(100):
        bound((x,)), bound((x,), out), above((y,))
    assert pool.allocations == before
    y = np.append(y, np.float32(1))
    above((y,))
    assert pool.allocations > before  # the counter does count


def test_an_arena_that_keeps_growing_is_not_replaced_each_time() -> None:
    shapes = [Shape("f64", "N"), Shape("f64", "N")]
    call = program("sum", shapes, [Shape("f64")], "N", constants=(bytes(8),)).bind([])
    before = runtime().allocations
    for blocks in range(100, 200):
        call((np.ones(64 * blocks), np.ones(64 * blocks)))
    assert 1 < runtime().allocations - before < 12


def test_memory_is_counted_and_given_back(seed: int) -> None:
    weight = np.random.default_rng(seed).standard_normal(1 << 20)
    shapes = [Shape("f64", "N"), Shape("f64", "N")]
    bound = program("sum", shapes, [Shape("f64")], "N", constants=(bytes(8),)).bind([weight])
    held = runtime().allocated
    bound((weight,))
    memory = bound.memory
    assert (memory.bound, memory.constants, memory.contexts) == (8 << 20, 8, 1)
    assert memory.arenas >= (1 << 20) // 64 * 8
    assert memory.scratch >= 8 * runtime().threads
    assert runtime().allocated >= held + memory.arenas + memory.scratch
    bound.trim()
    assert (bound.memory.arenas, bound.memory.contexts) == (0, 0)
    assert runtime().allocated == held
    bound((weight,))


def test_large_arrays_that_stay_are_aligned_and_freed() -> None:
    held = runtime().allocated
    array = runtime().empty((3, 1 << 20), np.dtype(ml_dtypes.bfloat16))
    assert array.ctypes.data % (2 << 20) == 0
    array[...] = 1
    assert runtime().allocated == held + array.nbytes
    part = array[1:, 5:]
    del array
    assert (part == 1).all()
    del part
    assert runtime().allocated == held
    assert runtime().empty((0, 3), np.dtype(np.int8)).shape == (0, 3)


def fast(call: Bound, *inputs: object) -> bool:
    """Whether the C entry serves a call by itself."""
    return isinstance(call._call(inputs, None), tuple)


def test_the_ordinary_case_is_served_in_c(seed: int) -> None:
    x = floats(seed, 9)
    assert fast(twice(), x)
    assert fast(twice(), x.data)
    assert not fast(twice(), floats(seed, 18)[::2])
    assert not fast(twice(), floats(seed, 9).astype(">f4"))
    assert not fast(twice(), 3)


def odd_inputs(seed: int) -> dict[str, object]:
    x = floats(seed, 8)
    return {
        "strided": floats(seed, 24)[::3],
        "backwards": x[::-1],
        "unaligned": np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32),
        "read-only": np.frombuffer(x.tobytes(), np.float32),
        "empty": x[:0],
        "broadcast": np.broadcast_to(x[:1], (5,)),
        "memoryview": x.data,
    }


@pytest.mark.parametrize("kind", list(odd_inputs(0)))
def test_odd_inputs_give_the_same_results(kind: str, seed: int) -> None:
    x = odd_inputs(seed)[kind]
    for inputs in ((x,), [x]):
        (y,) = twice()(inputs)  # type: ignore[arg-type]
        np.testing.assert_array_equal(y, 2 * np.asarray(x))


@pytest.mark.parametrize("element", ["bf16", "f16", "i16", "ui16"])
def test_element_types_with_and_without_a_buffer(element: str) -> None:
    call = program("same", [Shape(element, "N")], [Shape(element, "N")], "N").bind([])
    x = np.arange(-5, 6).astype(call._program.arguments[0].dtype.numpy)
    assert fast(call, x)
    out = (np.empty_like(x),)
    for result in (*call((x,)), *call._slow((x,), None), *call((x,), out), *call((x[::-1],))):
        assert result.dtype == x.dtype
    np.testing.assert_array_equal(call((x,))[0], x)
    np.testing.assert_array_equal(call((x[::-1],))[0], x[::-1])
    np.testing.assert_array_equal(out[0], x)
    with pytest.raises(ShapeError, match="in0"):
        call((x.astype(np.float32),))


@pytest.mark.parametrize(
    ("sizes", "quick"),
    [(("N", "2*M + 1"), True), (("2*M + 1", "N"), True), (("N", "N*M"), False), (("N", "M//1"), True)],
)
def test_sizes_behind_formulas(sizes: tuple[str, str], quick: bool) -> None:
    shapes = [Shape("i8", sizes[0]), Shape("i8", sizes[1])]
    call = program("sizes", shapes, [Shape("i64", 2)], "N", "M").bind([])
    values = {"N": 4, "M": 3}
    arrays = tuple(np.zeros(shape.numbers(values), np.int8) for shape in shapes)
    np.testing.assert_array_equal(call(arrays)[0], [4, 3])
    assert fast(call, *arrays) == quick


def test_sizes_of_bound_arguments_count() -> None:
    call = program("sizes", [Shape("i8", "N"), Shape("i8", "M", "N")], [Shape("i64", 2)], "N", "M").bind(
        [np.zeros(3, np.int8)]
    )
    right, wrong = np.zeros((5, 3), np.int8), np.zeros((5, 4), np.int8)
    assert fast(call, right)
    np.testing.assert_array_equal(call((right,))[0], [3, 5])
    with pytest.raises(ShapeError, match="do not fit together"):
        call((wrong,))


def test_wrong_inputs_are_explained(seed: int) -> None:
    x = floats(seed, 4)
    call = twice()
    with pytest.raises(ShapeError, match=r"the input 'in0' does not fit\n.*f32\[N\]\n.*f64\[4\]"):
        call((x.astype(np.float64),))
    with pytest.raises(ShapeError, match=r"f32\[2, 2\]"):
        call((x.reshape(2, 2),))
    with pytest.raises(ShapeError, match="'in0'"):
        call((x.astype(">f4"),))
    with pytest.raises(RunError, match="wrong number of inputs"):
        call((x, x))
    with pytest.raises(RunError, match="wrong number of inputs"):
        call(())
    pair = program("sizes", [Shape("i8", "N"), Shape("i8", "N", "2*M")], [Shape("i64", 2)], "N", "M").bind([])
    for sizes in ((3, 4), (2, 3)):
        with pytest.raises(ShapeError, match="do not fit together"):
            pair((np.zeros(2, np.int8), np.zeros(sizes, np.int8)))
    sum_of = program("sum", [Shape("f64", "N")] * 2, [Shape("f64")], "N", constants=(bytes(8),)).bind([])
    for first, second in ((4, 5), (5, 4)):
        with pytest.raises(ShapeError, match=r"do not fit together\n.*in0: f64\[N\], in1: f64\[N\]"):
            sum_of((np.ones(first), np.ones(second)))
    np.testing.assert_array_equal(pair((np.zeros(2, np.int8), np.zeros((2, 4), np.int8)))[0], [2, 2])


def test_results_go_to_the_callers_arrays(seed: int) -> None:
    x, y = floats(seed, 6), np.empty(6, np.float32)
    call = twice()
    assert call((x,), (y,))[0] is y
    np.testing.assert_array_equal(y, 2 * x)
    assert call((x[::-1],), [y])[0] is y
    np.testing.assert_array_equal(y, 2 * x[::-1])
    frozen = np.empty(6, np.float32)
    frozen.flags.writeable = False
    for wrong in (np.empty(5, np.float32), np.empty(6), np.empty(12, np.float32)[::2], frozen, x, x.view(), y.tolist()):
        with pytest.raises(ShapeError, match="output array 0"):
            call((x,), (wrong,))  # type: ignore[arg-type]
    with pytest.raises(RunError, match="wrong number of output arrays"):
        call((x,), (y, y))


def test_an_output_array_for_a_reused_argument_must_fit(seed: int) -> None:
    shapes = [Shape("f32", "N")]
    given = (library(), "twice", shapes, shapes, ("N",), ())
    call = Program(*given, explain=explain, names=["x"], donated=(0,), reused={0: 0}).bind([])
    x = floats(seed, 6)
    copy, y = x.copy(), np.empty(6, np.float32)
    for wrong in (np.empty(5, np.float32), np.empty(6), np.empty(12, np.float32)[::2]):
        with pytest.raises(ShapeError, match="output array 0"):
            call((copy,), (wrong,))
    np.testing.assert_array_equal(copy, x)
    assert call((copy,), (y,))[0] is y
    np.testing.assert_array_equal(y, 2 * x)


def test_bytes_of_a_call() -> None:
    """By hand: no arena and no scratch, a result of N floats; a size that is not given counts as 1."""
    assert [twice().call_bytes(sizes) for sizes in ({"N": 5}, {"N": 0}, {})] == [20, 0, 4]


def test_a_donated_input_that_is_given_twice() -> None:
    shapes = [Shape("f64", "N"), Shape("f64", "N")]
    given = (library(), "sum", shapes, [Shape("f64")], ("N",), (bytes(8),))
    call = Program(*given, explain=explain, names=["a", "b"], donated=(1,)).bind([])
    x = np.ones(4)
    for second in (x, x[:], x[::1]):
        with pytest.raises(RunError, match="the input 'b' is donated and given twice"):
            call((x, second))
    assert call((x, x.copy()))[0] > 0


def test_machine_code_that_cannot_be_loaded() -> None:
    with pytest.raises(DeviceError, match="the machine code cannot be loaded") as caught:
        load_library(b"no library", "test_machine_code_that_cannot_be_loaded")
    assert caught.value.remedy == "compile the model again"


def test_bound_arguments_and_outputs_stay_apart() -> None:
    shapes = [Shape("f64", "N"), Shape("f64", "N")]
    weight = np.ones(10)
    call = program("sum", shapes, [Shape("f64")], "N", constants=(bytes(8),)).bind([weight])
    with pytest.raises(ShapeError, match="shares memory"):
        call((np.ones(10),), (weight[3:4].reshape(()),))
    assert (weight == 1).all()


@pytest.mark.parametrize("positive", [0, 1, 700])
def test_results_of_data_dependent_size(positive: int, seed: int) -> None:
    x = -np.abs(floats(seed, 1000))
    x[np.random.default_rng(seed).permutation(1000)[:positive]] = 1.5
    call = program("above", [Shape("f32", "N")], [Shape("f32", "K"), Shape("i64", 2, "K")], "N").bind([])
    values, places = call((x,))
    np.testing.assert_array_equal(values, x[x > 0])
    np.testing.assert_array_equal(places, np.stack([np.flatnonzero(x > 0)] * 2))
    out = np.empty(positive, np.float32), np.empty((2, positive), np.int64)
    assert call((x,), out)[1] is out[1]
    np.testing.assert_array_equal(out[1], places)
    with pytest.raises(ShapeError, match="output array 0"):
        call((x,), (np.empty(positive + 1, np.float32), out[1]))


def test_programs_compute_small_numbers_whatever_the_caller_set() -> None:
    tiny = np.full(4, 1e-40, np.float32)
    if library().flush_to_zero(1) == 2:
        pytest.skip("this processor's mode is not known to the test")
    try:
        (result,) = twice()((tiny,))
        assert library().flush_to_zero(1) == 1
    finally:
        library().flush_to_zero(0)
    assert (result > 1e-40).all()


# ------------------------------------------------------------------------------------------------ failures and the end


def failing() -> Bound:
    return program("fail", [Shape("i64", "N")], [Shape("i64", 1)], "N").bind([])


def test_a_failing_program_is_explained() -> None:
    call = failing()
    for inputs in ((np.array([7, 0]),), (np.array([0, 7])[::-1],)):
        with pytest.raises(ReportedError) as caught:
            call(inputs)
        assert caught.value.got == (7, (70, 11, 0, 0, 0, 0, 0, 0))
    assert call((np.array([0, 0]),))[0] == [5]


def test_a_failed_size_check_is_refused() -> None:
    call = failing()
    with pytest.raises(SizeError, match=r"check 4, \{'N': 1\}"):
        call((np.array([0]),))
    assert call((np.array([0, 0]),))[0] == [5]


def test_more_memory_than_the_machine_has_is_refused() -> None:
    call = program("hungry", [Shape("f32", "N")], [Shape("f32")], "N").bind([])
    call((floats(0, 0),))
    for size in (1000, 1 << 22, 1 << 23):  # 2**50, 2**62 bytes, and a negative number
        with pytest.raises(RunError, match="no memory left"):
            call((floats(0, size),))


class RunningHold:
    """A call that runs in the pool, in another thread, until it is cancelled."""

    def __init__(self, weight: Array | None = None) -> None:
        self.bound = hold().bind([np.zeros(1, np.float32) if weight is None else weight])
        self.begun = np.zeros((), np.int32)
        self.threads = ThreadPoolExecutor(1)

    def __enter__(self) -> tuple[Bound, object]:
        self.future = self.threads.submit(self.bound, (np.zeros((), np.float32),), (self.begun,))
        while not self.begun:
            time.sleep(0.001)
        return self.bound, self.future

    def __exit__(self, *_: object) -> None:
        self.bound.cancel()
        with self.threads, pytest.raises(RunError, match="cancelled"):
            self.future.result(timeout=60)


@pytest.mark.parametrize("threads", [1, 2])
def test_cancelling_stops_the_calls_that_run_and_no_others(pool: Runtime, threads: int) -> None:
    pool.set_threads(threads)
    bounds = []
    for _ in range(2):
        with RunningHold() as (bound, _):
            bounds.append(bound)
    with RunningHold():
        bounds[0].cancel()  # nothing of its own runs
    assert bounds[0].memory.contexts == 1


def test_closing_while_a_call_runs() -> None:
    weight = np.zeros(1 << 20, np.float32)
    alive = weakref.ref(weight)
    holding = RunningHold(weight)
    del weight
    with holding as (bound, _):
        bound.close()
        bound.close()
        gc.collect()
        assert alive() is not None  # the running call reads it
        with pytest.raises(RunError, match="closed"):
            bound((np.zeros((), np.float32),))
    gc.collect()
    assert alive() is None
    assert bound.memory.contexts == 0


def test_a_bound_program_without_references_frees_its_memory() -> None:
    gc.collect()
    held = runtime().allocated
    call = twice()
    call((floats(0, 5),))
    assert runtime().allocated > held
    del call
    gc.collect()
    assert runtime().allocated == held


def test_calls_leave_no_references_behind(seed: int) -> None:
    """Every way through the C entry: results made and given, refused inputs, failures, types seen through another."""
    x = floats(seed, 5)
    brain = x.astype(ml_dtypes.bfloat16)
    same = program("same", [Shape("bf16", "N")], [Shape("bf16", "N")], "N").bind([])
    double, fails = twice(), failing()
    out = (np.empty(5, np.float32),)
    status, wrong = np.array([7, 0]), np.zeros(5)
    watched = (x, brain, out, out[0], status, wrong, np.empty, x.dtype, brain.dtype, brain.dtype.type, np.dtype("u2"))

    def use() -> None:
        double((x,)), double((x,), out), double((x[::-1],)), same((brain,)), same._slow((brain,), None)
        refused = (
            (double, wrong, ShapeError),
            (double, brain, ShapeError),
            (same, x, ShapeError),
            (fails, status, RunError),
        )
        for call, array, refusal in refused:
            with pytest.raises(refusal):
                call((array,))
        with pytest.raises(ShapeError):
            double((x,), (x,))

    use()
    gc.collect()
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(20):
        use()
    gc.collect()
    assert [sys.getrefcount(each) for each in watched] == before
    (result,) = double((x,))
    gone = weakref.ref(result)
    del result
    assert gone() is None
