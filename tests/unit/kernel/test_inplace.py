"""Updates in place and donation: bytes copied and written per loop iteration; results against NumPy's.

Random loops are problems of the kind "loop" (tests/property): fences, sanitizers and threads see them as well.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.buffer import HostBuffer
from smelt.device import cpu
from smelt.dim import evaluate
from smelt.dtype import Array
from smelt.engine.compile import lower, mark_donated, plan_program
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import RunError, ShapeError, SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.loops.grammar import Amount, For, If, Stmt, Store
from smelt.kernel.plan.fuse import fuse
from smelt.kernel.plan.liveness import Liveness, members, read_by, written_by
from smelt.kernel.plan.plan import Branch, Copy, Launch, Measure, Plan, Repeat, Step, walk
from tests.property.problems import difference, draw
from tests.unit.kernel.agreement import disagreement

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")


# ---- what a plan writes ----


def stores(body: Sequence[Stmt], sizes: dict[str, int]) -> int:
    """How many elements a kernel writes."""
    total = 0
    for each in body:
        match each:
            case For(_, Amount(size), inner):
                total += evaluate(size, sizes) * stores(inner, sizes)
            case For(_, _, inner) | If(_, inner):
                total += stores(inner, sizes)
            case Store():
                total += 1
    return total


def written(plan: Plan, steps: Sequence[Step], sizes: dict[str, int]) -> int:
    """Bytes that a run of some steps writes, one iteration per loop."""
    total = 0
    for step in walk(tuple(steps)):
        match step:
            case Launch(kernel, _, writes):
                (width,) = {plan.buffers[i].shape.dtype.numpy.itemsize for i in writes}
                total += width * stores(kernel.body, sizes)
            case Copy(_, target):
                total += evaluate(plan.buffers[target].bytes, sizes)
    return total


def loops(plan: Plan) -> Iterator[Repeat]:
    return (step for step in walk(plan.steps) if isinstance(step, Repeat))


def copies(plan: Plan) -> list[int]:
    """Bytes of every copy, for sizes of 1."""
    found = [step for step in walk(plan.steps) if isinstance(step, Copy)]
    return [evaluate(plan.buffers[step.target].bytes, dict.fromkeys(plan.symbols, 1)) for step in found]


def plan_of(text: str, *donate: str) -> Plan:
    return plan_program(mark_donated(parse(text), donate)).main[0]


# ---- loops ----

LOOP = """func.func @main(%n: tensor<i64>, %x: tensor<{rows}x{columns}xf32>, %v: tensor<{columns}xf32>)
    -> ({results}) {{
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %r:3 = stablehlo.while(%i = %zero, %a = %x, %c = %v) : tensor<i64>, {matrix}, {vector}
  cond {{
    %go = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %j = stablehlo.add %i, %one : tensor<i64>
    %d = stablehlo.add %c, %c : {vector}
    %row = stablehlo.reshape %d : ({vector}) -> tensor<1x{columns}xf32>
    %b = stablehlo.dynamic_update_slice %a, %row, %i, %zero
      : ({matrix}, tensor<1x{columns}xf32>, tensor<i64>, tensor<i64>) -> {matrix}
    {body}
  }}
  return {end}
}}"""


def loop(body: str, end: str = "%r#1", results: int = 1, rows: str = "50", columns: str = "8") -> str:
    matrix, vector = f"tensor<{rows}x{columns}xf32>", f"tensor<{columns}xf32>"
    types = ", ".join([matrix] * results)
    return LOOP.format(
        rows=rows,
        columns=columns,
        matrix=matrix,
        vector=vector,
        results=types,
        body=body.replace("MATRIX", matrix).replace("VECTOR", vector),
        end=f"{end} : {types}",
    )


PLAIN = "stablehlo.return %j, %b, %d : tensor<i64>, MATRIX, VECTOR"


def calls(random: np.random.Generator, rows: int = 50, columns: int = 8) -> list[tuple[Array, ...]]:
    x = random.integers(-4, 5, (rows, columns)).astype(np.float32)
    v = random.integers(-4, 5, columns).astype(np.float32)
    return [(np.asarray(turns), x, v) for turns in (0, 1, 2, 9, rows, rows + 3)]


@pytest.mark.parametrize("rows", [50, 5000])
def test_a_loop_that_writes_a_row_writes_nothing_else(rows: int) -> None:
    """The row, the vector that is carried, the counter and the condition, whatever the number of rows."""
    plan = plan_of(loop(PLAIN, rows=str(rows)))
    (found,) = loops(plan)
    assert written(plan, (*found.head, *found.body), {}) <= 2 * 8 * 4 + 3 * 8
    assert copies(plan) == [rows * 8 * 4, 8 * 4, 8]  # the arguments, which stay as they are; the counter
    assert [step.updates for step in found.body if isinstance(step, Launch) and step.kernel.kind != "map"] != [()]


def test_dynamic_dimensions_are_updated_in_place(seed: int) -> None:
    text = loop(PLAIN, rows="?", columns="?").replace("tensor<1x?xf32>", "tensor<1x?xf32>")
    text = text.replace("tensor<?x?xf32>", "tensor<?x?xf32, #smelt.sizes<R, C>>")
    text = text.replace("tensor<?xf32>", "tensor<?xf32, #smelt.sizes<C>>")
    text = text.replace("tensor<1x?xf32>", "tensor<1x?xf32, #smelt.sizes<1, C>>")
    plan = plan_of(text)
    (found,) = loops(plan)
    assert written(plan, (*found.head, *found.body), {"R": 1000, "C": 8}) <= 2 * 8 * 4 + 3 * 8
    random = np.random.default_rng(seed)
    several = [call for rows, columns in ((5, 3), (1, 1), (3, 0)) for call in calls(random, rows, columns)]
    assert not disagreement(parse(text), several)


HAZARDS = {
    "the old value is used after the update": """
        %old = stablehlo.add %a, %b : MATRIX
        stablehlo.return %j, %old, %d : tensor<i64>, MATRIX, VECTOR""",
    "the old value is read by the update": """
        %s = stablehlo.slice %a [1:2, 0:8] : (MATRIX) -> tensor<1x8xf32>
        %u = stablehlo.dynamic_update_slice %a, %s, %i, %zero
          : (MATRIX, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> MATRIX
        stablehlo.return %j, %u, %d : tensor<i64>, MATRIX, VECTOR""",
    "an update that is not taken": "stablehlo.return %j, %a, %d : tensor<i64>, MATRIX, VECTOR",
    "two updates of one value": """
        %u = stablehlo.dynamic_update_slice %a, %row, %zero, %zero
          : (MATRIX, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> MATRIX
        %s = stablehlo.subtract %u, %b : MATRIX
        stablehlo.return %j, %s, %d : tensor<i64>, MATRIX, VECTOR""",
    "what was there before the loop": """
        %s = stablehlo.add %x, %b : MATRIX
        stablehlo.return %j, %s, %d : tensor<i64>, MATRIX, VECTOR""",
    "a branch": """
        %e = stablehlo.compare EQ, %i, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
        %s = "stablehlo.if"(%e) ({
          %u = stablehlo.dynamic_update_slice %b, %row, %zero, %zero
            : (MATRIX, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> MATRIX
          stablehlo.return %u : MATRIX
        }, {
          stablehlo.return %b : MATRIX
        }) : (tensor<i1>) -> MATRIX
        stablehlo.return %j, %s, %d : tensor<i64>, MATRIX, VECTOR""",
    "a branch that takes the old one": """
        %e = stablehlo.compare EQ, %i, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
        %s = "stablehlo.if"(%e) ({
          stablehlo.return %a : MATRIX
        }, {
          stablehlo.return %b : MATRIX
        }) : (tensor<i1>) -> MATRIX
        stablehlo.return %j, %s, %d : tensor<i64>, MATRIX, VECTOR""",
    "a loop inside": """
        %two = stablehlo.constant dense<2> : tensor<i64>
        %q:2 = stablehlo.while(%k = %zero, %m = %b) : tensor<i64>, MATRIX
        cond {
          %more = stablehlo.compare LT, %k, %two : (tensor<i64>, tensor<i64>) -> tensor<i1>
          stablehlo.return %more : tensor<i1>
        } do {
          %l = stablehlo.add %k, %one : tensor<i64>
          %at = stablehlo.add %k, %i : tensor<i64>
          %u = stablehlo.dynamic_update_slice %m, %row, %at, %zero
            : (MATRIX, tensor<1x8xf32>, tensor<i64>, tensor<i64>) -> MATRIX
          stablehlo.return %l, %u : tensor<i64>, MATRIX
        }
        stablehlo.return %j, %q#1, %d : tensor<i64>, MATRIX, VECTOR""",
    "nothing is written": """
        %none = stablehlo.slice %a [0:0, 0:8] : (MATRIX) -> tensor<0x8xf32>
        %u = stablehlo.dynamic_update_slice %b, %none, %i, %zero
          : (MATRIX, tensor<0x8xf32>, tensor<i64>, tensor<i64>) -> MATRIX
        stablehlo.return %j, %u, %d : tensor<i64>, MATRIX, VECTOR""",
}


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards(name: str, seed: int) -> None:
    assert not disagreement(parse(loop(HAZARDS[name])), calls(np.random.default_rng(seed)))


@pytest.mark.parametrize("name", ["a branch", "a loop inside", "nothing is written"])
def test_updates_behind_branches_and_in_loops_are_in_place(name: str) -> None:
    plan = plan_of(loop(HAZARDS[name]))
    assert sum(copies(plan)) < 50 * 8 * 4 + 200, "the argument is copied once, and numbers"


TWICE = """func.func @main(%n: tensor<i64>, %x: tensor<6x4xf32>)
    -> (tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %y = stablehlo.add %x, %x : tensor<6x4xf32>
  %r:4 = stablehlo.while(%i = %zero, %a = %y, %b = %y, %c = %y)
    : tensor<i64>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>
  cond {
    %go = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i64>
    %row = stablehlo.dynamic_slice %c, %i, %zero, sizes = [1, 4]
      : (tensor<6x4xf32>, tensor<i64>, tensor<i64>) -> tensor<1x4xf32>
    %new = stablehlo.multiply %row, %row : tensor<1x4xf32>
    %u = stablehlo.dynamic_update_slice %a, %new, %i, %zero
      : (tensor<6x4xf32>, tensor<1x4xf32>, tensor<i64>, tensor<i64>) -> tensor<6x4xf32>
    stablehlo.return %j, RETURNED : tensor<i64>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>
  }
  return %r#1, %r#2, %r#3 : tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>
}"""


@pytest.mark.parametrize(
    "returned", ["%u, %b, %c", "%b, %u, %c", "%b, %c, %u", "%u, %u, %u", "%u, %a, %b", "%c, %u, %u"]
)
def test_one_value_carried_three_times(returned: str, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-3, 4, (6, 4)).astype(np.float32)
    program = parse(TWICE.replace("RETURNED", returned))
    assert not disagreement(program, [(np.asarray(turns), x) for turns in (0, 1, 2, 3, 7)])


SCATTER = """func.func @main(%x: tensor<{n}x4xf32>, %at: tensor<3x1xi32>, %u: tensor<3x4xf32>) -> tensor<{n}x4xf32> {{
  %y = stablehlo.negate %x : tensor<{n}x4xf32>
  %r = "stablehlo.scatter"(%y, %at, %u) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
       scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : (tensor<{n}x4xf32>, tensor<3x1xi32>, tensor<3x4xf32>) -> tensor<{n}x4xf32>
  return %r : tensor<{n}x4xf32>
}}"""


def test_a_scatter_leaves_what_it_does_not_change(seed: int) -> None:
    plan = plan_of(SCATTER.format(n=900))
    assert copies(plan) == []
    *_, last = plan.steps
    assert isinstance(last, Launch)
    assert written(plan, [last], {}) == 3 * 4 * 4
    random = np.random.default_rng(seed)
    x, u = random.integers(-4, 5, (9, 4)).astype(np.float32), random.integers(-4, 5, (3, 4)).astype(np.float32)
    places = [np.array([[a], [b], [c]], np.int32) for a, b, c in ((0, 1, 2), (4, 4, 4), (-1, 8, 9))]
    assert not disagreement(parse(SCATTER.format(n=9)), [(x, at, u) for at in places])


# ---- donation ----

CACHE = """func.func @main(%cache: tensor<{n}x4xf32>, %x: tensor<1x4xf32>, %i: tensor<i32>)
    -> (tensor<{n}x4xf32>, tensor<4xf32>) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.dynamic_update_slice %cache, %x, %i, %zero
    : (tensor<{n}x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<{n}x4xf32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%c init: %none) applies stablehlo.add across dimensions = [0]
    : (tensor<{n}x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %c, %s : tensor<{n}x4xf32>, tensor<4xf32>
}}"""


def cache_call() -> tuple[Array, Array, Array]:
    return np.arange(24, dtype=np.float32).reshape(6, 4), np.full((1, 4), -1, np.float32), np.asarray(2, np.int32)


def test_a_donated_cache_is_written_in_place() -> None:
    plan = plan_of(CACHE.format(n=600), "cache")
    assert copies(plan) == []
    assert plan.reused == ((0, 0),)
    assert written(plan, plan.steps[:1], {}) == 4 * 4
    executable = NativeEngine().compile(parse(CACHE.format(n=6)), donate=["cache"])
    cache, x, i = cache_call()
    want = run(parse(CACHE.format(n=6)), [cache.copy(), x, i])
    new, total = executable(cache, x, i)
    assert new is cache
    assert [new.tobytes(), total.tobytes()] == [each.tobytes() for each in want]


def test_without_donation_the_cache_is_copied_and_stays() -> None:
    executable = NativeEngine().compile(parse(CACHE.format(n=6)))
    cache, x, i = cache_call()
    before = cache.copy()
    new, _ = executable(cache, x, i)
    assert np.array_equal(cache, before)
    assert not np.array_equal(new, before)


def test_keep_uses_up_a_copy() -> None:
    executable = NativeEngine().compile(parse(CACHE.format(n=6)), donate=["cache"])
    cache, x, i = cache_call()
    before = cache.copy()
    new, _ = executable(cache, x, i, keep=True)
    assert np.array_equal(cache, before)
    buffer = HostBuffer.of(cache, copy=True)
    again, _ = executable(buffer, x, i, keep=True)
    assert np.array_equal(again.numpy(), new)
    assert np.array_equal(buffer.numpy(), before)


def test_a_donated_buffer_is_gone() -> None:
    executable = NativeEngine().compile(parse(CACHE.format(n=6)), donate=["cache"])
    cache, x, i = cache_call()
    buffer = HostBuffer.of(cache, copy=True)
    place = buffer.numpy().ctypes.data
    new, _ = executable(buffer, x, i)
    assert new.numpy().ctypes.data == place
    with pytest.raises(RunError, match="was donated as the input 'cache'"):
        buffer.numpy()
    with pytest.raises(RunError, match="was donated as the input 'cache'"):
        executable(buffer, x, i)


def test_what_cannot_be_written_is_copied() -> None:
    """Read-only arrays, arrays in another order, buffers on borrowed memory."""
    executable = NativeEngine().compile(parse(CACHE.format(n=6)), donate=["cache"])
    cache, x, i = cache_call()
    before = cache.copy()
    want = executable(cache.copy(), x, i)[0]
    frozen = cache.copy()
    frozen.flags.writeable = False
    turned = np.asfortranarray(cache)
    for given in (frozen, turned, HostBuffer.of(cache)):
        new, _ = executable(given, x, i)
        assert np.array_equal(np.asarray(new), want)
    assert np.array_equal(cache, before)
    assert np.array_equal(frozen, before)
    assert np.array_equal(turned, before)


def test_mistakes_with_donation_raise() -> None:
    program = parse(CACHE.format(n=6))
    with pytest.raises(RunError, match="only inputs can be donated"):
        NativeEngine().compile(program, donate=["cash"])
    executable = NativeEngine().compile(program, donate=["cache"])
    cache, _, i = cache_call()
    with pytest.raises(RunError, match="'cache' is donated and given twice"):
        executable(cache, cache[:1], i)
    buffer = HostBuffer.of(cache, copy=True)
    with pytest.raises(ShapeError):
        executable(buffer, np.zeros((2, 4), np.float32), i)
    assert np.array_equal(buffer.numpy(), cache), "nothing ran, so nothing was used up"


def test_donation_survives_a_bundle() -> None:
    executable = NativeEngine().compile(parse(CACHE.format(n=6)), donate=["cache"])
    again = smelt.deserialize(executable.serialize())
    cache, x, i = cache_call()
    want = executable(cache.copy(), x, i)
    new, _ = again(cache, x, i)
    assert np.array_equal(new, want[0])
    assert new.ctypes.data == cache.ctypes.data


def test_a_donated_argument_serves_as_a_temporary() -> None:
    """exp(x) is needed as a whole before the last step, and x no longer: there is no other memory."""
    text = """func.func @main(%x: tensor<64x32xf32>) -> tensor<64x64xf32> {
      %e = stablehlo.exponential %x : tensor<64x32xf32>
      %r = stablehlo.dot_general %e, %e, contracting_dims = [1] x [1]
        : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x64xf32>
      return %r : tensor<64x64xf32>
    }"""
    kept, given = (plan_program(mark_donated(parse(text), names)).footprint.parts({}) for names in ((), ("x",)))
    assert kept["temporaries"] - given["temporaries"] >= 64 * 32 * 4
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    want = NativeEngine().compile(parse(text))(x)[0]
    assert np.array_equal(NativeEngine().compile(parse(text), donate=["x"])(x)[0], want)


def test_memory_of_one_type_does_not_hold_another() -> None:
    """A condition is a byte, and so is the argument; what a branch looks at is still a condition."""
    text = """func.func @main(%x: tensor<ui8>, %i: tensor<i64>) -> (tensor<ui8>, tensor<i64>) {
      %one = stablehlo.constant dense<1> : tensor<ui8>
      %y = stablehlo.add %x, %one : tensor<ui8>
      %two = stablehlo.constant dense<2> : tensor<i64>
      %c = stablehlo.compare LT, %i, %two : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %r = "stablehlo.if"(%c) ({
        %a = stablehlo.add %i, %two : tensor<i64>
        stablehlo.return %a : tensor<i64>
      }, {
        %b = stablehlo.negate %i : tensor<i64>
        stablehlo.return %b : tensor<i64>
      }) : (tensor<i1>) -> tensor<i64>
      return %y, %r : tensor<ui8>, tensor<i64>
    }"""
    executable = NativeEngine().compile(parse(text), donate=["x", "i"])
    for number in (-1, 1, 2, 7):
        got = executable(np.asarray(3, np.uint8), np.asarray(number))
        want = run(parse(text), [np.asarray(3, np.uint8), np.asarray(number)])
        assert [int(each) for each in got] == [int(each) for each in want]


def test_random_loops_with_donated_arguments(seed: int) -> None:
    """Right answers, and not a byte of any other argument is changed."""
    random = np.random.default_rng([seed, 5])
    problems = [draw("loop", random) for _ in range(20)]
    names = [[f"arg{i}" for i in range(3) if random.random() < 0.6] for _ in problems]
    programs = [mark_donated(each.make(False), given) for each, given in zip(problems, names, strict=True)]
    for problem, given, made in zip(problems, names, compile_all(programs), strict=True):
        assert not isinstance(made, SmeltError), made
        args = [np.array(each) for each in problem.args]
        (got,) = made(*args)
        assert difference(problem, got) == ""
        for i, (arg, before) in enumerate(zip(args, problem.args, strict=True)):
            assert f"arg{i}" in given or np.array_equal(arg, before), f"{problem.name}: argument {i} was written"


READ_ONLY = """
import mmap, sys, numpy as np
from smelt.engine.native import NativeEngine
from smelt.ir.text import parse
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
x = np.frombuffer(pages, np.float32).reshape(50, 8)
executable = NativeEngine().compile(parse(open(sys.argv[2]).read()), donate=["v"])
print(float(executable(np.asarray(50), x, np.ones(8, np.float32))[0].sum()))
"""


def test_an_argument_on_pages_that_cannot_be_written(tmp_path: Path) -> None:
    """A process that writes to them ends."""
    data, text = tmp_path / "x", tmp_path / "loop.mlir"
    data.write_bytes(np.zeros((50, 8), np.float32).tobytes())
    assert data.stat().st_size <= mmap.PAGESIZE
    text.write_text(loop(PLAIN))
    command = [sys.executable, "-W", "ignore", "-c", READ_ONLY, str(data), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    want = run(parse(loop(PLAIN)), [np.asarray(50), np.zeros((50, 8), np.float32), np.ones(8, np.float32)])
    assert float(done.stdout) == float(want[0].sum())


# ---- what a loop need not do again ----

RECURRENT = """func.func @main(%n: tensor<i64>, %h: tensor<1x16xf32>, %w: tensor<16x16xf32> {smelt.weight = "w"})
    -> tensor<1x16xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %r:2 = stablehlo.while(%i = %zero, %a = %h) : tensor<i64>, tensor<1x16xf32>
  cond {
    %go = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i64>
    %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %p = stablehlo.dot_general %a, %t, contracting_dims = [1] x [0]
      : (tensor<1x16xf32>, tensor<16x16xf32>) -> tensor<1x16xf32>
    %b = stablehlo.tanh %p : tensor<1x16xf32>
    stablehlo.return %j, %b : tensor<i64>, tensor<1x16xf32>
  }
  return %r#1 : tensor<1x16xf32>
}"""


def kinds(steps: Sequence[Step]) -> list[str]:
    return [step.kernel.kind for step in walk(tuple(steps)) if isinstance(step, Launch)]


def test_a_recurrent_weight_is_packed_once() -> None:
    made = plan_program(parse(RECURRENT))
    (found,) = loops(made.main[0])
    assert kinds(found.body).count("packed_dot") == 1
    assert len(kinds(found.body)) == 2, "the product with its tanh, and the counter"
    assert made.prepare is not None
    assert "smelt.relayout" in {
        op for step in made.prepare[0].steps if isinstance(step, Launch) for op in step.kernel.ops
    }


def graph(plan: Plan) -> list[tuple[Step, list[int]]]:
    """A plan as a graph: steps and the numbers of those that may come next; the first one is the end."""
    nodes: list[tuple[Step, list[int]]] = [(Measure((), ()), [])]

    def enter(steps: Sequence[Step], after: int) -> int:
        for step in reversed(steps):
            place = len(nodes)
            nodes.append((step, [after]))
            match step:
                case Repeat(head, _, body):
                    first = enter(head, place)
                    nodes[place][1].append(enter(body, first))
                    place = first
                case Branch(_, branches):
                    nodes[place][1][:] = [enter(branch, after) for branch in branches]
            after = place
        return after

    enter(plan.steps, 0)
    return nodes


def test_liveness_is_what_a_walk_over_all_paths_finds(seed: int) -> None:
    """The classical equations, repeated over the graph until nothing changes."""
    random = np.random.default_rng([seed, 3])
    seen = 0
    for _ in range(25):
        plan = fuse(lower(draw("loop", random).make(False)).main)
        nodes = graph(plan)
        needed: list[set[int]] = [{i for i, each in enumerate(plan.buffers) if each.kind == "result"}]
        needed += [set() for _ in nodes[1:]]
        stable = False
        while not stable:
            stable = True
            for place, (step, following) in list(enumerate(nodes))[1:]:
                after = set[int]().union(*(needed[each] for each in following))
                new = set(members(read_by(step))) | (after - set(written_by(step)))
                stable = stable and new == needed[place]
                needed[place] = new
        afters = {id(step): set[int]().union(*(needed[each] for each in following)) for step, following in nodes[1:]}
        for leaf in Liveness.of(plan).leaves:
            assert set(members(leaf.after)) == afters[id(leaf.step)]
            seen += 1
    assert seen > 100


def test_plans_hold_no_branch_that_copies_what_it_returns() -> None:
    """Both arms give the argument's next state; the one that changes nothing does nothing."""
    plan = plan_of(loop(HAZARDS["a branch"]))
    (branch,) = (step for step in walk(plan.steps) if isinstance(step, Branch))
    assert branch.branches[1] == ()


def test_the_programs_here_mean_something() -> None:
    """A loop whose old value is used differs from one whose old value is not."""
    random = np.random.default_rng(0)
    used, unused = (run(_program(name), calls(random)[3])[0] for name in list(HAZARDS)[:2])
    assert not np.array_equal(used, unused)


def _program(name: str) -> Program:
    return parse(loop(HAZARDS[name]))
