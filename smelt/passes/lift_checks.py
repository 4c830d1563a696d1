"""Lift run-time checks out of loops and branches: program → program without assertions, and its `LiftedCheck`s.

For engines whose programs cannot stop at an assertion (XLA). A check's operands become results of the function. A loop
carries them and keeps the values of its first failing iteration; a branch that has no such check returns "holds".
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.frozen import Frozen
from smelt.ir.build import Builder
from smelt.ir.clone import clone_args, clone_op
from smelt.ir.core import Func, Op, Program, Region, Value, walk
from smelt.ir.ops.control import is_assertion
from smelt.ir.rewrite import Edit
from smelt.passes.lower import CHECKED_SCANS, lower
from smelt.shape import Shape

BRANCHES = ("stablehlo.if", "stablehlo.case")


class LiftedCheck(Frozen):
    """An assertion, and its operands where it was lifted to: the condition, then the numbers for its message."""

    op: Op
    operands: tuple[Value, ...]


def lift_checks(program: Program) -> tuple[Program, tuple[LiftedCheck, ...]]:
    """The program whose main function returns the operands of its checks after its own results.

    A check inside another kind of region (a reduction's body), or one of dynamic shape in a loop, stays.
    """
    main = program.main
    if not any(is_assertion(op) for op in walk(main.body)):
        return program, ()
    edit = Edit(main, {name: func.type for name, func in program.funcs.items()})
    lower(edit, CHECKED_SCANS)
    main = edit.freeze()
    values: dict[Value, Value] = {}
    ops, checks = _lift_ops(main.body.ops, values)
    results = [values.get(value, value) for value in main.results]
    results += [value for check in checks for value in check.operands]
    body = Region(main.args, tuple(ops), tuple(results))
    lifted = program.replace(Func("main", body, "public", main.arg_attrs, location=main.location))
    return lifted, tuple(checks)


def _lift_ops(ops: Sequence[Op], values: dict[Value, Value]) -> tuple[list[Op], list[LiftedCheck]]:
    """Copies of ops without assertions, and the checks as values next to them; `values` as for `clone_op`."""
    made: list[Op] = []
    checks: list[LiftedCheck] = []
    for op in ops:
        if is_assertion(op):
            checks.append(LiftedCheck(op, tuple(values.get(value, value) for value in op.operands)))
        elif op.name == "stablehlo.while" and _can_lift(op):
            checks += _lift_while(op, values, made)
        elif op.name in BRANCHES and _can_lift(op):
            checks += _lift_branches(op, values, made)
        else:
            made.append(clone_op(op, values))
    return made, checks


def _can_lift(op: Op) -> bool:
    """Whether an op has checks inside, and all that a loop or branch has to return for them is of known size."""
    inner = [each for region in op.regions for each in walk(region) if is_assertion(each)]
    return bool(inner) and all(
        isinstance(value.type, Shape) and value.type.is_static for each in inner for value in each.operands
    )


def _lift_while(op: Op, values: dict[Value, Value], made: list[Op]) -> list[LiftedCheck]:
    """Append the loop with its checks as further state.

    A condition returns nothing but its boolean, so its checks run before the loop and after each iteration instead.
    """
    condition, body = op.regions
    state = [values.get(value, value) for value in op.operands]
    before: list[LiftedCheck] = []
    if any(map(is_assertion, walk(condition))):
        values.update(zip(condition.args, state, strict=True))
        ops, before = _lift_ops(condition.ops, values)
        made += ops

    args = _copy_args(body, values)
    ops, checks = _lift_ops(body.ops, values)
    results = [values.get(value, value) for value in body.results]
    if before:
        values.update(zip(condition.args, results, strict=True))
        after, again = _lift_ops(condition.ops, values)
        ops += after
        checks += again

    start, carry = Builder(), Builder()
    initial = _passing(start, checks)
    carried = [Value(value.type, None, len(args) + i) for i, value in enumerate(initial)]
    results += _keep_first_failure(carry, checks, carried)
    new_body = Region((*args, *carried), (*ops, *carry.ops), tuple(results))
    types = [value.type for value in (*op.results, *initial)]
    regions = [_extend_condition(op, checks, values), new_body]
    loop = Op(op.name, [*state, *initial], types, op.attrs, regions, op.location)
    made += [*start.ops, loop]
    values.update(zip(op.results, loop.results, strict=False))
    return [*before, *_take_results(checks, loop, len(op.results))]


def _copy_args(region: Region, values: dict[Value, Value]) -> list[Value]:
    args = list(clone_args(region.args))
    values.update(zip(region.args, args, strict=True))
    return args


def _passing(b: Builder, checks: Sequence[LiftedCheck]) -> list[Value]:
    """The operands of checks that hold: all true, numbers zero."""
    return [b.full(i == 0, value.shape) for check in checks for i, value in enumerate(check.operands)]


def _keep_first_failure(b: Builder, checks: Sequence[LiftedCheck], carried: Sequence[Value]) -> list[Value]:
    """An iteration's operands where the check has held so far, else the ones that failed."""
    kept: list[Value] = []
    for check in checks:
        old = carried[len(kept) : len(kept) + len(check.operands)]
        so_far = _all_true(b, old[0])
        kept += [b.select(so_far, new, former) for new, former in zip(check.operands, old, strict=True)]
    return kept


def _all_true(b: Builder, holds: Value) -> Value:
    """One boolean: whether every element is true."""
    shape = holds.shape
    if not shape.rank:
        return holds
    return b.reduce_by("and", holds, True, range(shape.rank))


def _extend_condition(op: Op, checks: Sequence[LiftedCheck], values: dict[Value, Value]) -> Region:
    """The condition over the longer state.

    A loop of unknown length also ends at the first failure: after one it may never end. A counted loop keeps its
    condition, from which XLA derives the number of iterations.
    """
    condition = op.regions[0]
    args = _copy_args(condition, values)
    ops, _ = _lift_ops(condition.ops, values)
    [goes_on] = (values.get(value, value) for value in condition.results)
    b = Builder()
    for check in checks:
        carried = [Value(value.type, None, len(args) + i) for i, value in enumerate(check.operands)]
        args += carried
        if not _is_counted(op):
            goes_on = b.and_(goes_on, _all_true(b, carried[0]))
    return Region(tuple(args), (*ops, *b.ops), (goes_on,))


def _is_counted(op: Op) -> bool:
    """Whether a loop compares a counter with a bound, and its body adds a constant to that counter."""
    condition, body = op.regions
    test = condition.results[0].op
    if test is None or test.name != "stablehlo.compare" or test.attrs["comparison_direction"] not in ("LT", "GT"):
        return False
    counter, bound = test.operands
    if counter not in condition.args or bound in condition.args:
        return False
    place = condition.args.index(counter)
    step = body.results[place].op
    return (
        step is not None
        and step.name == "stablehlo.add"
        and step.operands[0] is body.args[place]
        and step.operands[1].op is not None
        and step.operands[1].op.name == "stablehlo.constant"
    )


def _lift_branches(op: Op, values: dict[Value, Value], made: list[Op]) -> list[LiftedCheck]:
    """Append the branch with its checks as further results: those of the branches in order."""
    lifted = []
    for region in op.regions:
        ops, checks = _lift_ops(region.ops, values)
        lifted.append((ops, [values.get(value, value) for value in region.results], checks))
    regions = []
    for place, (ops, results, checks) in enumerate(lifted):
        b = Builder()
        for other, (_, _, theirs) in enumerate(lifted):
            results += [v for check in checks for v in check.operands] if other == place else _passing(b, theirs)
        regions.append(Region((), (*ops, *b.ops), tuple(results)))
    all_checks = [check for _, _, checks in lifted for check in checks]
    types = [value.type for value in (*op.results, *(v for check in all_checks for v in check.operands))]
    branch = Op(op.name, [values.get(v, v) for v in op.operands], types, op.attrs, regions, op.location)
    made.append(branch)
    values.update(zip(op.results, branch.results, strict=False))
    return _take_results(all_checks, branch, len(op.results))


def _take_results(checks: Sequence[LiftedCheck], op: Op, first: int) -> list[LiftedCheck]:
    """The checks, each on the results that an op returns for it from `first` on."""
    taken = []
    for check in checks:
        taken.append(LiftedCheck(check.op, op.results[first : first + len(check.operands)]))
        first += len(check.operands)
    return taken
