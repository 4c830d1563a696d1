"""Checks lifted out of loops and branches find what the checks themselves find: the first failure, with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import smelt
from smelt import Tensor
from smelt.buffer import Buffer, HostBuffer
from smelt.device import pjrt
from smelt.dtype import Array
from smelt.errors import RunError, UnsupportedError
from smelt.ir.core import Program, walk
from smelt.ir.interpret import run
from smelt.ir.ops.control import is_assertion, require
from smelt.ir.text import parse
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.lift_checks import lift_checks
from smelt.tensor import trace
from smelt.tensor.axes import shape_of

CHECK = '{has_side_effect = true, error_message = "MESSAGE: {0}"}'
# Counts to %n; the body requires i < %most, and in the iterations that %branch allows i < %rare.
LOOP = """
func.func @main(%n: tensor<i32>, %most: tensor<i32>, %rare: tensor<2xi32>, %branch: tensor<i1>) -> tensor<i32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %out = stablehlo.while(%i = %zero) : tensor<i32>
  cond {
    %bounded = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    CONDITION
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %bounded = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    BODY
    %chosen = "stablehlo.if"(%branch) ({
      %both = stablehlo.broadcast_in_dim %i, dims = [] : (tensor<i32>) -> tensor<2xi32>
      %holds = stablehlo.compare LT, %both, %rare : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
      stablehlo.custom_call @smelt.check(%holds, %both) RARE : (tensor<2xi1>, tensor<2xi32>) -> ()
      stablehlo.return %i : tensor<i32>
    }, {
      stablehlo.return %i : tensor<i32>
    }) : (tensor<i1>) -> tensor<i32>
    %next = NEXT %chosen, %one : tensor<i32>
    stablehlo.return %next : tensor<i32>
  }
  return %out : tensor<i32>
}
"""
BOUNDED = "stablehlo.custom_call @smelt.check(%bounded, %i, %most) CHECK : (tensor<i1>, tensor<i32>, tensor<i32>) -> ()"


def loop(place: str, step: str = "stablehlo.add") -> Program:
    text = LOOP.replace("NEXT", step).replace(place, BOUNDED.replace("CHECK", CHECK.replace("MESSAGE", "bounded")))
    text = text.replace("RARE", CHECK.replace("MESSAGE", "rare"))
    return parse(text.replace("CONDITION", "").replace("BODY", ""))


def run_lifted(program: Program, args: Sequence[Array]) -> Array:
    lifted, checks = lift_checks(program)
    verify(lifted)
    assert not any(is_assertion(op) for op in walk(lifted.main.body))
    result, *operands = run(lifted, args)
    for check in checks:
        require(check.op, *operands[: len(check.operands)])
        del operands[: len(check.operands)]
    return np.asarray(result)


@pytest.mark.parametrize("place", ["CONDITION", "BODY"])
@pytest.mark.parametrize(
    ("n", "most", "rare", "branch", "failure"),
    [
        (4, 9, (9, 9), True, None),
        (4, 2, (9, 9), True, "(?m)bounded: 2$"),
        (0, 0, (9, 9), True, {"CONDITION": "(?m)bounded: 0$", "BODY": None}),
        (6, 9, (9, 3), True, r"(?m)rare: \[3 3\]$"),
        (6, 9, (0, 0), False, None),
    ],
)
def test_the_first_failure_is_reported(
    place: str, n: int, most: int, rare: tuple[int, int], branch: bool, failure: str | dict[str, str | None] | None
) -> None:
    program = loop(place)
    args = [np.int32(n), np.int32(most), np.array(rare, np.int32), np.bool_(branch)]
    arrays = [np.asarray(arg) for arg in args]
    message = failure[place] if isinstance(failure, dict) else failure
    if message is None:
        assert run_lifted(program, arrays) == run(program, arrays)[0] == n
        return
    for attempt in (lambda: run(program, arrays), lambda: run_lifted(program, arrays)):
        with pytest.raises(RunError, match=message):
            attempt()


def test_a_loop_that_would_not_end_stops_at_the_failure() -> None:
    """The counter counts down from 0, so that i < 4 holds until it overflows: only the check ends the loop."""
    program = loop("BODY", "stablehlo.subtract")
    arrays = [np.array(4, np.int32), np.array(9, np.int32), np.array([9, -3], np.int32), np.array(True)]
    with pytest.raises(RunError, match=r"(?m)rare: \[0 0\]$"):
        run_lifted(program, arrays)


def test_a_counted_loop_keeps_its_condition() -> None:
    """XLA derives the number of iterations from `compare(counter, bound)`."""
    traced = trace(in_fori_loop, shape_of("f32[t=8, d=2]"), *map(shape_of, (NEW, SCALAR, SCALAR)))
    lifted, checks = lift_checks(pipeline.run(traced.program)[0])
    [condition] = [op.regions[0] for op in walk(lifted.main.body) if op.name == "stablehlo.while"]
    assert len(checks) == 1
    assert condition.results[0].op is not None
    assert condition.results[0].op.name == "stablehlo.compare"


def test_a_program_without_checks_stays_as_it_is() -> None:
    program = parse("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}")
    assert lift_checks(program) == (program, ())


# ---- on XLA ----

CACHE, NEW, SCALAR = "f32[t=T, d=2]", "f32[t=1, d=2]", "i32[]"


def in_fori_loop(cache: Tensor, new: Tensor, position: Tensor, steps: Tensor) -> Tensor:
    return smelt.fori_loop(steps, lambda i, c: c.update(new, t=position + i), cache)


def in_while_loop(cache: Tensor, new: Tensor, position: Tensor, steps: Tensor) -> Tensor:
    last = position + steps
    return smelt.while_loop(lambda c, p: p != last, lambda c, p: (c.update(new, t=p), p + 1), cache, position)[0]


def in_scan(cache: Tensor, new: Tensor, position: Tensor, steps: Tensor) -> Tensor:
    def step(carry: Tensor, i: Tensor) -> tuple[Tensor, None]:
        return smelt.cond(i < steps, lambda: carry.update(new, t=position + i), lambda: carry), None

    return smelt.scan(step, cache, smelt.arange(8, "i").to("i32"), "i")[0]


@pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
@pytest.mark.parametrize("function", [in_fori_loop, in_while_loop, in_scan])
def test_an_update_in_a_loop_is_checked_on_xla(function: Callable[..., Tensor]) -> None:
    executable = smelt.compile(function, CACHE, NEW, SCALAR, SCALAR, engine="pjrt", donate="cache", facts=["T >= 1"])
    new = np.ones((1, 2), np.float32)

    def call(size: int, position: int, steps: int) -> tuple[Array, Buffer]:
        cache = executable.platform.put(HostBuffer.of(np.zeros((size, 2), np.float32)))
        return executable(cache, new, np.int32(position), np.int32(steps)).numpy(), cache

    made, given = call(5, 2, 3)
    assert made[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]
    with pytest.raises(RunError, match="was donated"):
        given.numpy()
    assert call(7, 0, 1)[0][:, 1].tolist() == [1.0, 0, 0, 0, 0, 0, 0]
    for position, steps, wrong in ((4, 3, 5), (-1, 2, -1), (40, 1, 40)):
        with pytest.raises(RunError, match=f"starts at {wrong}, and at most at 4"):
            call(5, position, steps)


@pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
def test_a_check_in_a_reduction_is_refused_with_a_remedy() -> None:
    text = """
    func.func @main(%x: tensor<4xi32>) -> tensor<i32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %0 = "stablehlo.reduce"(%x, %zero) <{dimensions = array<i64: 0>}> ({
      ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %holds = stablehlo.compare LE, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.custom_call @smelt.check(%holds) {has_side_effect = true} : (tensor<i1>) -> ()
        %s = stablehlo.add %a, %b : tensor<i32>
        stablehlo.return %s : tensor<i32>
      }) : (tensor<4xi32>, tensor<i32>) -> tensor<i32>
      return %0 : tensor<i32>
    }"""
    with pytest.raises(UnsupportedError, match="inside the body of a reduction") as caught:
        smelt.platform(engine="pjrt").engine.compile(parse(text))
    assert "native" in str(caught.value)
