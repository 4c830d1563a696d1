"""Equal scans become one: the same outputs, one loop; other operands, bodies or directions stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value, walk
from smelt.ir.interpret import run
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.merge_scans import merge_scans
from smelt.shape import Shape


def scan(
    f: FuncBuilder, x: Value, start: Value, *outputs: str, step: str = "add", reverse: bool = False
) -> list[Value]:
    """Running sums along the first axis; outputs are the element, the carry before or after, and the last carry."""
    row = Shape("f32", 3)
    with f.region(row, row) as r:
        element, carry = r.args
        after = r.op(f"stablehlo.{step}", r.multiply(element, element), carry).result
        made = {"element": element, "before": carry, "after": after}
        r.result(*(made[name] for name in outputs), after)
    return list(f.op("chlo.scan", x, start, dimension=0, is_reverse=reverse, regions=[r.body]).results)


def merged(f: FuncBuilder, results: list[Value], count: int) -> None:
    """`count` scans go, and the results stay, bit for bit."""
    program = Program.of(f.func(*results))
    before = sum(op.name == "chlo.scan" for op in walk(program.main.body))
    after = pipeline.per_function(merge_scans)(program)
    verify(after)
    assert sum(op.name == "chlo.scan" for op in walk(after.main.body)) == before - count
    given = [np.arange(12, dtype=np.float32).reshape(4, 3) - 5, np.ones(3, np.float32), np.full(3, 2, np.float32)]
    for got, want in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_array_equal(got, want)


def build() -> FuncBuilder:
    return FuncBuilder("main", [Shape("f32", 4, 3), Shape("f32", 3), Shape("f32", 3)])


def test_scans_that_differ_in_their_outputs_alone_are_one() -> None:
    f = build()
    x, start, _ = f.args
    merged(f, [*scan(f, x, start, "after"), *scan(f, x, start, "before", "element"), *scan(f, x, start)], 2)


@pytest.mark.parametrize("other", ["start", "step", "direction"])
def test_other_scans_stay(other: str) -> None:
    f = build()
    x, start, second = f.args
    again = scan(
        f, x, second if other == "start" else start, "after",
        step="maximum" if other == "step" else "add", reverse=other == "direction",
    )  # fmt: skip
    merged(f, [*scan(f, x, start, "after"), *again], 0)


def test_groups_are_merged_apart() -> None:
    f = build()
    x, start, second = f.args
    pairs = [scan(f, x, each, name, step=step) for each, step in ((start, "add"), (second, "add"), (start, "minimum"))
             for name in ("after", "before")]  # fmt: skip
    merged(f, [value for pair in pairs for value in pair], 3)
