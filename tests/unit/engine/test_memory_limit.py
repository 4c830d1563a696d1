"""`memory_limit` as a bound: what a process really takes while a model loads and while several threads call it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.runtime import Account, runtime
from smelt.dtype import Array
from smelt.engine.compile import plan_program
from smelt.engine.native import NativeEngine
from smelt.errors import CancelledError, MemoryLimitError, TimedOutError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.model import load, model_of
from smelt.shape import Shape
from smelt.stop import Cancel, Stop
from smelt.weights import Weights
from tests.unit.engine.test_memory import WEIGHTED
from tests.unit.kernel.test_calls_at_once import counting

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")


def two_layers(path: Path, width: int = 1024) -> None:
    """x → sin(x A) B of few columns; A and B are at unaligned offsets of the file."""
    from onnx import TensorProto, helper, numpy_helper, save

    random = np.random.default_rng(1)
    shapes = {"ab": (width, width), "b": (width, 16)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "ab"], ["y"]),
        helper.make_node("Sin", ["y"], ["t"]),
        helper.make_node("MatMul", ["t", "b"], ["z"]),
    ]
    x, z = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size]) for name, size in (("x", width), ("z", 16))
    )
    graph = helper.make_graph(nodes, "g", [x], [z], weights, doc_string="!" * 33)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


MEASURE = """
import sys, threading
import numpy as np
from smelt.errors import MemoryLimitError
from smelt.model import load

def said(name):
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(name))

path, other, limit, callers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
load(other, engine="native", memory_limit=1 << 30)(np.ones((1, 8), np.float32))  # all modules are imported
before = said("VmRSS")
model = load(path, engine="native", memory_limit=limit)
loading = said("VmHWM") - before
refused = []
def call(number):
    for size in (3000, 40 + number, 700):
        try:
            model(inputs[size])
        except MemoryLimitError as error:
            refused.append(size)
inputs = {size: np.ones((size, 1024), np.float32) for size in {3000, 700, *range(40, 40 + callers)}}
given = sum(array.nbytes for array in inputs.values())
threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(loading, said("VmHWM") - before - given, len(refused))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured by /proc")
@pytest.mark.parametrize("calls_at_once", [1, 2])
def test_a_process_takes_no_more_than_the_limit(tmp_path: Path, calls_at_once: int) -> None:
    """Eight threads want to call at once, each with several sizes; the limit has room for one or two of the largest."""
    path, small = tmp_path / "two.onnx", tmp_path / "small.onnx"
    two_layers(path)
    two_layers(small, 8)
    from smelt.model import read

    footprint = plan_program(read(path)[0]).footprint
    parts = footprint.parts({"N": 3000})
    each = parts["temporaries"] + parts["results"] + (4 << 20)
    limit = footprint.required_bytes({"N": 3000}) + (calls_at_once - 1) * each
    # A cache of its own: the first model is compiled too, so the measured one finds the compiler imported. One malloc
    # arena: glibc gives each thread its own otherwise, which is no memory of the model's.
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, path, small, str(limit), "8"],
        env={**os.environ, "SMELT_CACHE_DIR": str(tmp_path / "cache"), "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    loading, peak, refused = map(int, done.stdout.split())
    callers_own = 8 * (3000 * 16 * 4 + (128 << 10))  # results that were handed over, and the stacks of threads
    assert refused == 0
    assert loading <= limit
    assert peak <= limit + callers_own


def doubling() -> Program:
    """Keeps three large temporaries: x + 1, its square and its sine meet in a sort."""
    f = FuncBuilder("main", [Shape("f32", "N")], ["x"])
    (x,) = f.args
    total = f.add(f.op("stablehlo.sine", x).result, x)
    with f.region(Shape("f32"), Shape("f32")) as order:
        order.result(order.compare(*order.args, comparison_direction="LT"))
    ordered = f.op("stablehlo.sort", total, dimension=0, regions=[order.body]).result
    return Program.of(f.func(f.add(ordered, total)))


def test_calls_wait_for_each_other_and_idle_memory_goes_first() -> None:
    """Room for one large call: eight threads take turns; a large and a small program share one account."""
    program = doubling()
    footprint = plan_program(program).footprint
    account = Account(footprint.required_bytes({"N": 400_000}))
    first, second = (NativeEngine().compile(program).within(account, 0).prepare(Weights({})) for _ in range(2))
    x = np.arange(400_000, dtype=np.float32)
    want = first(x)[0].tobytes()
    before = account.used
    assert before > 0
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: (first, second)[i % 2](x)[0].tobytes() == want, range(16)))
    assert all(found)
    assert account.used <= account.limit
    for each in (first, second):
        each.trim()
    assert account.used == account.fixed
    for each in (first, second):
        each.close()
    assert account.used == 0


def test_a_call_that_can_never_fit_is_refused_at_once() -> None:
    account = Account(1 << 20)
    executable = NativeEngine().compile(doubling()).within(account, 0).prepare(Weights({}))
    with pytest.raises(MemoryLimitError, match="the call needs more memory than allowed"):
        executable(np.zeros(1 << 20, np.float32))
    assert account.used == account.fixed
    assert executable(np.zeros(10, np.float32))[0].shape == (10,)


def test_a_call_that_waits_for_memory_can_be_ended() -> None:
    """There is room for either of two calls, and one of them is running."""
    program, x = doubling(), np.zeros(300_000, np.float32)
    parts = [plan_program(each).footprint.parts({"N": x.size}) for each in (program, counting())]
    account = Account(sum(each["temporaries"] + each["results"] for each in parts) - 1)
    executable = NativeEngine().compile(program).within(account, 0).prepare(Weights({}))
    with Holding(account, x):
        with pytest.raises(TimedOutError) as timed_out:
            executable(x, stop=Stop(0.1))
        assert not timed_out.value.started
        token = Cancel()
        threading.Timer(0.1, token.cancel).start()
        with pytest.raises(CancelledError):
            executable(x, stop=Stop(cancel=token))
    assert executable(x)[0].shape == x.shape


class Holding:
    """A call in another thread that holds its memory until the end of the block."""

    def __init__(self, account: Account, x: Array) -> None:
        self.executable = NativeEngine().compile(counting()).within(account, 0).prepare(Weights({}))
        self.account, self.input, self.token = account, x, Cancel()

    def _call(self) -> None:
        with pytest.raises(CancelledError):
            self.executable(self.input, np.array(1 << 60), stop=Stop(cancel=self.token))

    def __enter__(self) -> None:
        before = self.account.used
        self.thread = threading.Thread(target=self._call)
        self.thread.start()
        while self.account.used < before + self.input.nbytes:
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self.token.cancel()
        self.thread.join()
        self.executable.close()


def test_unused_memory_is_freed() -> None:
    """After a large call of each of two programs only small calls of one come: some seconds later the large arena of
    that one is a small one, and the other holds nothing."""
    busy, idle = NativeEngine().compile(doubling()), NativeEngine().compile(doubling())
    large, small = np.zeros(4 << 20, np.float32), np.zeros(1000, np.float32)
    for executable in (busy, idle):
        executable(large)
        assert executable.memory is not None
        assert executable.memory.arenas >= large.nbytes
    assert busy.memory is not None
    assert idle.memory is not None
    deadline = time.monotonic() + 30
    while (busy.memory.arenas >= 1 << 20 or idle.memory.contexts) and time.monotonic() < deadline:
        busy(small)
        time.sleep(0.05)
    assert busy.memory.arenas < 1 << 20
    assert idle.memory.contexts == 0


def test_trim_gives_idle_memory_back() -> None:
    gc.collect()
    model = model_of(parse(WEIGHTED), Weights.of({"w": np.ones((64, 48), np.float32)}))
    held = runtime().allocated
    model(np.ones((5000, 64), np.float32))
    assert runtime().allocated > held
    model.trim()
    assert runtime().allocated == held
    model(np.ones((2, 64), np.float32))


def test_programs_for_several_values_share_one_limit(tmp_path: Path) -> None:
    """Each value of `axes` is a program with weights of its own: the limit holds for all, old programs go."""
    from onnx import TensorProto, helper, numpy_helper, save

    weight = numpy_helper.from_array(np.ones((512, 512), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["z"], keepdims=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 512])
    axes = helper.make_tensor_value_info("axes", TensorProto.INT64, [1])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x, axes], [z], [weight])
    path = tmp_path / "axes.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    model = load(path, engine="native", memory_limit="4MB")
    ones = np.ones((3, 512), np.float32)
    for axis in (0, 1, -1, -2, 0):
        want = np.sum(ones @ np.ones((512, 512), np.float32), axis=axis, keepdims=True)
        np.testing.assert_allclose(model(ones, np.array([axis]))["z"], want)
    assert len(model._executable._programs) < 4  # type: ignore[attr-defined]
