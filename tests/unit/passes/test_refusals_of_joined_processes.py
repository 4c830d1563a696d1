"""What joining processes refuses, for every collective: members that bring different types, sizes that do not split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from smelt.errors import RunError, UnsupportedError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Program, Value
from smelt.ir.text import parse
from smelt.passes.join_processes import join_processes
from smelt.shape import Shape
from tests.unit.passes.test_join_processes import on_grid

BOTH = ((0, 1),)


def process(name: str, shape: Shape, op: str, result: Shape | None, **attrs: Any) -> Func:
    f = FuncBuilder(name, [shape])
    regions: Sequence[Any] = ()
    if "reduce" in op:
        scalar = Shape.of(shape.dtype, ())
        with f.region(scalar, scalar) as body:
            body.result(body.add(*body.args))
        regions = (body.body,)
    made: Value = f.op(f"stablehlo.{op}", f.args[0], result=result, regions=regions, **attrs).result
    return f.func(made, visibility="private")


COLLECTIVES: list[tuple[str, dict[str, Any]]] = [
    ("all_gather", {"all_gather_dim": 0, "replica_groups": BOTH}),
    ("all_to_all", {"split_dimension": 0, "concat_dimension": 0, "split_count": 2, "replica_groups": BOTH}),
    ("all_reduce", {"replica_groups": BOTH}),
    ("reduce_scatter", {"scatter_dimension": 0, "replica_groups": BOTH}),
    ("collective_reduce", {"replica_groups": BOTH}),
    ("collective_broadcast", {"replica_groups": BOTH}),
    ("cross-replica-sum", {"replica_groups": BOTH}),
]


@pytest.mark.parametrize(("op", "attrs"), COLLECTIVES, ids=[op for op, _ in COLLECTIVES])
@pytest.mark.parametrize("other", [Shape("f32", 6, 2), Shape("f32", 4), Shape("f64", 4, 2)], ids=str)
def test_members_bring_different_types(op: str, attrs: dict[str, Any], other: Shape) -> None:
    first, second = process("p", Shape("f32", 4, 2), op, None, **attrs), process("q", other, op, None, **attrs)
    with pytest.raises(RunError, match="the processes of a group have different types") as caught:
        join_processes(on_grid(first, (("p",), ("q",)), q=second))
    assert caught.value.message.startswith(f"stablehlo.{op}: ")
    join_processes(on_grid(first, (("p",), ("p",))))


def test_what_is_permuted_has_the_declared_type() -> None:
    pairs = {"source_target_pairs": ((0, 1),)}
    first = process("p", Shape("f32", 4), "collective_permute", None, **pairs)
    second = process("q", Shape("f32", 5), "collective_permute", None, **pairs)
    with pytest.raises(RunError, match="collective_permute: the group does not give the declared size"):
        join_processes(on_grid(first, (("p",), ("q",)), q=second))


def grid(body: str, takes: str = "tensor<4xf32>", gives: str = "tensor<4xf32>") -> Program:
    return parse(f"""
func.func @main(%0: {takes}, %1: {takes}) -> ({gives}, {gives}) {{
  %2:2 = "interpreter.run_parallel"(%0, %1) {{programs = [[@p], [@p]]}} : ({takes}, {takes}) -> ({gives}, {gives})
  func.return %2#0, %2#1 : {gives}, {gives}
}}
func.func private @p(%0: {takes}) -> {gives} {{
{body}
}}
""")


SHARE = """
  %1 = "stablehlo.all_to_all"(%0) {split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64,
    replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (TYPE) -> TYPE
  func.return %1 : TYPE"""


def test_only_numbers_are_split() -> None:
    open_size = "tensor<?xf32>"
    with pytest.raises(UnsupportedError, match="all_to_all: joined processes split sizes that are numbers"):
        join_processes(grid(SHARE.replace("TYPE", open_size), open_size, open_size))
    join_processes(grid(SHARE.replace("TYPE", "tensor<4xf32>")))


def test_a_collective_that_may_not_run() -> None:
    branch = """  %p = stablehlo.constant dense<true> : tensor<i1>
  %1 = "stablehlo.if"(%p) ({
    %2 = "stablehlo.collective_broadcast"(%0) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} :
      (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %2 : tensor<4xf32>
  }, {
    stablehlo.return %0 : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  func.return %1 : tensor<4xf32>"""
    message = "collective_broadcast inside stablehlo.if: whether it runs is not known at compile time"
    with pytest.raises(UnsupportedError, match=message) as caught:
        join_processes(grid(branch))
    assert "outside of loops and branches" in str(caught.value.remedy)
