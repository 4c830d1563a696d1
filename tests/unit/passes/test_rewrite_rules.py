"""Every rewrite rule, on random programs, against the interpreter: the results must be the same bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.ir.build import FuncBuilder
from smelt.ir.cast import cast
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.rewrite import Edit, Rule, rewrite
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.canonicalise import CANONICALISE
from smelt.passes.simplify import SIMPLIFY, _holds
from smelt.shape import Shape
from tests.unit.passes.recipes import RECIPES, Draw

RULES = CANONICALISE + SIMPLIFY
WANTED = 12  # how often each rule must have fired
TRIES = 600


def same_bits(a: Array | None, b: Array | None) -> bool:
    """Equal in every bit, except that one nan is as good as another."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = (a != a) & (b != b)
    width = a.dtype.itemsize
    left = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, width)
    right = np.ascontiguousarray(b).view(np.uint8).reshape(*b.shape, width)
    return bool(((left == right).all(-1) | nan).all())


def rule_id(rule: Rule) -> str:
    return f"{rule.pattern.op.removeprefix('stablehlo.')}: {rule.why}"


def test_every_rule_has_a_recipe() -> None:
    assert {rule.why for rule in RULES} == set(RECIPES)


@pytest.mark.parametrize("index", range(len(RULES)), ids=[rule_id(rule) for rule in RULES])
def test_rule_keeps_every_bit(index: int, seed: int) -> None:
    rule = RULES[index]
    random = np.random.default_rng(seed)
    fired = 0
    for _ in range(TRIES):
        draw = Draw(random, rule.pattern.op)
        build = RECIPES[rule.why][int(random.integers(0, len(RECIPES[rule.why])))]
        program = Program.of(draw.func(build(draw)))
        expected = run(program, draw.args)
        edit = Edit(program.main)
        count = rewrite(edit, [rule], inexact=True)
        if not count:
            continue
        changed = program.replace(edit.freeze())
        verify(changed)
        fired += 1
        actual = run(changed, draw.args)
        for before, after in zip(expected, actual, strict=True):
            if rule.exact:
                assert same_bits(before, after), (before, after)
            else:
                np.testing.assert_array_equal(before.astype(np.float64), after.astype(np.float64))
        if fired >= WANTED:
            return
    assert fired >= WANTED, f"the rule fired {fired} times in {TRIES} programs"


def test_inexact_rules_are_off_unless_asked_for() -> None:
    draw = Draw(np.random.default_rng(0))
    program = Program.of(draw.func(RECIPES["x + 0.0 is x except for -0.0"][0](draw)))
    inexact = [rule for rule in SIMPLIFY if not rule.exact]
    assert inexact
    assert rewrite(Edit(program.main), inexact) == 0
    assert rewrite(Edit(program.main), inexact, inexact=True) == 1


HOLD = "f32>bf16 f32>f16 f64>f32 f32>i16 f32>ui16 f64>i32 bf16>i8 i32>ui16 i16>i8 ui8>i1 f32>i1"
LOSE = "f32>i32 f16>bf16 bf16>f16 i16>ui16 ui16>i8 bf16>i16 f16>f32 i8>i16 i1>i8"


def test_which_types_hold_others():
    """Conversions there and back: the oracle converts every element of a narrow type."""
    narrow = [dtype(name) for name in ("i1", "i8", "ui8", "i16", "ui16", "f16", "bf16")]
    wide = [*narrow, *(dtype(name) for name in ("i32", "ui32", "i64", "f32", "f64"))]
    for source in narrow:
        every = np.arange(1 << max(source.bits, 8), dtype=f"u{max(source.bits, 8) // 8}")
        every = every[:2].astype(bool) if source.name == "i1" else every.view(source.numpy)
        for middle in (each for each in wide if _holds(each, source)):
            with np.errstate(invalid="ignore"):  # signalling nans
                have, want = cast(cast(every, middle), source).astype(float), every.astype(float)
            np.testing.assert_array_equal(have, want, f"{source} in {middle}")
    for pairs, holds in ((HOLD, True), (LOSE, False)):
        for pair in pairs.split():
            assert _holds(*map(dtype, pair.split(">"))) is holds, pair


SLICES = {  # the second slice, after x[0:2] of a vector of 6: (source, start, limit, stride), and whether they are one
    "adjacent": ((0, 2, 5, 1), True),
    "of another value": ((1, 2, 5, 1), False),
    "with a gap": ((0, 3, 5, 1), False),
    "that overlaps": ((0, 1, 5, 1), False),
    "with a stride": ((0, 2, 6, 2), False),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_that_follow_each_other(name: str) -> None:
    (source, start, limit, stride), joined = SLICES[name]
    f = FuncBuilder("main", [Shape("f32", 6), Shape("f32", 6)])
    first = f.slice(f.args[0], start_indices=(0,), limit_indices=(2,), strides=(1,))
    second = f.slice(f.args[source], start_indices=(start,), limit_indices=(limit,), strides=(stride,))
    program = Program.of(f.func(f.concatenate(first, second, dimension=0)))
    after = pipeline.per_function(lambda edit: rewrite(edit, SIMPLIFY))(program)
    given = [np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32) + 10]
    np.testing.assert_array_equal(run(after, given)[0], run(program, given)[0])
    assert ("stablehlo.concatenate" not in {op.name for op in after.main.body.ops}) == joined
