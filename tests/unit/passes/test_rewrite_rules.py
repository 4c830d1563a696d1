"""Every rewrite rule, on random programs, against the interpreter: the results must be the same bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.rewrite import Edit, Rule, rewrite
from smelt.ir.verify import verify
from smelt.passes.canonicalise import CANONICALISE
from smelt.passes.simplify import SIMPLIFY
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
