"""Compiled programs used from several threads, cancelled, refused and forked: other calls stay right, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.runtime import Runtime, runtime
from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.errors import RunError, ShapeError, SizeError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.run.executable import NativeExecutable
from smelt.shape import Shape
from tests.property.models import MODELS

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

ROUNDS = 40


@pytest.fixture
def pool() -> Iterator[Runtime]:
    found = runtime()
    before = found.threads
    found.set_threads(3)
    yield found
    found.set_threads(before)


def bits(arrays: tuple[Array, ...]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def test_two_models_from_four_threads(seed: int, pool: Runtime) -> None:
    """Each thread goes through calls of both models in its own order; answers are those of a lone run."""
    random = np.random.default_rng(seed)
    work = []
    for name in ("convolutions", "encoder"):
        model = MODELS[name]
        bound = NativeEngine().compile(model.dynamic_program()).prepare(model.values(seed))
        for sizes in model.tried:
            call = model.arguments(random, sizes)
            work.append((bound, call, bits(bound(*call))))

    def use(number: int) -> list[int]:
        order = np.random.default_rng([seed, number]).integers(0, len(work), ROUNDS * len(work))
        return [int(i) for i in order if bits(work[i][0](*work[i][1])) != work[i][2]]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(use, range(4))) == [[]] * 4


def counting() -> Program:
    """Adds 1 to a tensor as often as the second argument says."""
    f = FuncBuilder("main", [Shape("f32", "N"), Shape("i64")])
    x, turns = f.args
    with f.region(Shape("i64"), x.shape) as test:
        test.result(test.compare(test.args[0], turns, comparison_direction="LT"))
    with f.region(Shape("i64"), x.shape) as turn:
        i, value = turn.args
        turn.result(turn.add(i, turn.constant(1, "i64")), turn.add(value, turn.full(1.0, value.shape)))
    loop = f.op("stablehlo.while", f.constant(0, "i64"), x, regions=[test.body, turn.body])
    return Program.of(f.func(loop.results[1]))


def test_a_cancelled_call_ends_and_the_next_one_runs(pool: Runtime) -> None:
    executable = NativeEngine().compile(counting())
    assert isinstance(executable, NativeExecutable)
    ended: list[BaseException] = []

    def endless() -> None:
        try:
            executable(np.zeros(1000, np.float32), np.array(1 << 60))
        except RunError as error:
            ended.append(error)

    callers = [threading.Thread(target=endless) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        while caller.is_alive():
            executable.cancel()
            caller.join(0.02)
    assert ["cancelled" in str(each) for each in ended] == [True, True]
    (result,) = executable(np.zeros(5, np.float32), np.array(7))
    np.testing.assert_array_equal(result, np.full(5, 7, np.float32))


SLOW = """
func.func @main(%x: tensor<4096xf32>) -> tensor<4096xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %at = stablehlo.iota dim = 1 : tensor<4096x1048576xf32>
  %by = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<4096xf32>) -> tensor<4096x1048576xf32>
  %y = stablehlo.multiply %at, %by : tensor<4096x1048576xf32>
  %z = stablehlo.tanh %y : tensor<4096x1048576xf32>
  %sum = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<4096x1048576xf32>, tensor<f32>) -> tensor<4096xf32>
  return %sum : tensor<4096xf32>
}
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_a_long_kernel_is_cancelled_before_its_end(pool: Runtime, threads: int) -> None:
    """One kernel of minutes; it has begun when the first result is there, and most are missing when it ends."""
    pool.set_threads(threads)
    executable = NativeEngine().compile(parse(SLOW))
    assert len(executable.kernels) == 1
    assert executable._bound is not None
    results = np.full(4096, np.nan, np.float32)
    with ThreadPoolExecutor(1) as caller:
        call = caller.submit(executable._bound, (np.ones(4096, np.float32),), (results,))
        while np.isnan(results).all() and not call.done():
            time.sleep(0.001)
        executable.cancel()
        with pytest.raises(RunError, match="cancelled"):
            call.result()
    assert np.isnan(results).any()


def test_a_refused_call_leaves_the_next_one_right(pool: Runtime) -> None:
    """Sizes that do not fit, a wrong type, a wrong count: from the outside and from several threads."""
    f = FuncBuilder("main", [Shape("f32", "M"), Shape("f32", "N")])
    executable = NativeEngine().compile(Program.of(f.func(f.add(*f.args))))
    x = np.arange(1000, dtype=np.float32)

    def use(number: int) -> bool:
        for _ in range(50):
            with pytest.raises(SizeError):
                executable(x, x[:number])
            with pytest.raises(ShapeError):
                executable(x, x.astype(np.float64))
            with pytest.raises(RunError):
                executable(x)
            if not (executable(x, x)[0] == 2 * x).all():
                return False
        return True

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(use, range(3)))


SCRIPT = """
import os
import numpy as np
from smelt.engine.native import NativeEngine
from tests.property.models import MODELS
model = MODELS["perceptron"]
bound = NativeEngine().compile(model.dynamic_program()).prepare(model.values(1))
call = model.arguments(np.random.default_rng(1), {"B": 4000})
want = bound(*call)[0].tobytes()
def right():
    return bound(*call)[0].tobytes() == want
children = []
for _ in range(3):
    children.append(os.fork())
    if not children[-1]:
        os._exit(0 if right() else 1)
assert right()
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
"""


def test_children_of_a_fork_run_programs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, "SMELT_THREADS": "3"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
