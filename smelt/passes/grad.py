"""Programs that compute derivatives: `vjp` (reverse mode) and `jvp` (forward mode) of a program's entry.

Not in the pipeline: callers run it before an engine compiles. Calls are inlined and legacy forms replaced first,
so that most programs meet few rules. The rules are in `ir.grad`; the result is an ordinary program, verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from smelt.errors import UnsupportedError
from smelt.ir.build import Builder
from smelt.ir.core import NO_ATTRS, Attrs, Func, Op, Program, Region, Value
from smelt.ir.grad.control import most_trips, while_as_scan
from smelt.ir.grad.rule import Rule, is_differentiable, zeros
from smelt.ir.grad.sweep import Forward, Reverse
from smelt.ir.grad.table import Rules, kept_composites
from smelt.ir.ops.definition import Scope
from smelt.ir.rewrite import Edit, Match, has_effect, op, rewrite, symbols_of
from smelt.ir.rewrite import Rule as Rewrite
from smelt.ir.verify import verify
from smelt.passes.canonicalise import CANONICALISE
from smelt.passes.inline import inline
from smelt.passes.lower import LOWER, lower
from smelt.passes.merge_scans import merge_scans
from smelt.passes.refine_shapes import refine_shapes
from smelt.passes.split_prepare import NAME, WEIGHT

_DECOMPOSED = ("batch_norm_inference", "batch_norm_training", "batch_norm_grad", "get_tuple_element", "async_done")
_FIRST = [rule for rule in LOWER if rule.pattern.op.removeprefix("stablehlo.") in (*_DECOMPOSED, "chlo.ragged_dot")]


def _loop_as_scan(m: Match) -> Sequence[Value] | None:
    """A loop whose trip count or its maximum is a size is a scan: the gradient keeps the states of its steps."""
    live = any(is_differentiable(value.type) for value in m.op.results) and not has_effect(m.op)
    return while_as_scan(m.build, m.op) if live and most_trips(m.op) is not None else None


_LOOPS = [Rewrite(op("while"), _loop_as_scan, "a loop over a known number of steps, or at most that many, is a scan")]
_NO_RULES: Mapping[str, Rule] = MappingProxyType({})


def vjp(program: Program, wrt: Sequence[int | str] | None = None, *, rules: Mapping[str, Rule] = _NO_RULES) -> Program:
    """A program that takes the inputs and a cotangent for each floating-point result, and gives the results and a
    cotangent for each input in `wrt`: names or positions of arguments, by default all that have a derivative.

    `rules` are the caller's own: by the name of an op, a composite, or a custom call's target.

    >>> import numpy as np
    >>> from smelt.ir.interpret import run
    >>> from smelt.ir.text import parse
    >>> square = parse(
    ...     "func.func @main(%x: tensor<f32>) -> tensor<f32> {"
    ...     " %0 = stablehlo.multiply %x, %x : tensor<f32> return %0 : tensor<f32> }"
    ... )
    >>> [float(each) for each in run(vjp(square), [np.array(3.0, "f"), np.array(1.0, "f")])]
    [9.0, 6.0]
    """
    program, main, b = _open(program, rules, [*_FIRST, *_LOOPS])
    wanted = _find_arguments(main, wrt)
    seeded = [i for i, value in enumerate(main.results) if is_differentiable(value.type)]
    seeds = [
        Value(main.results[i].type, None, len(main.args) + j, f"{_result_name(main, i)}_cotangent")
        for j, i in enumerate(seeded)
    ]
    sweep = Reverse(b, Rules(program.funcs, rules), [main.args[i] for i in wanted], main.body.ops)
    for i, seed in zip(seeded, seeds, strict=True):
        sweep.add(main.results[i], seed)
    sweep.run(main.body.ops)
    found = [sweep.cotangent(main.args[i]) for i in wanted]
    names = [f"{_argument_name(main, i)}_cotangent" for i in wanted]
    return _close(program, main, b, seeds, found, names)


def jvp(program: Program, wrt: Sequence[int | str] | None = None, *, rules: Mapping[str, Rule] = _NO_RULES) -> Program:
    """A program that takes the inputs and a tangent for each input in `wrt`, and gives the results and a tangent for
    each floating-point result. The arguments are those of `vjp`."""
    program, main, b = _open(program, rules, _FIRST)
    wanted = _find_arguments(main, wrt)
    tangents = [
        Value(main.args[i].type, None, len(main.args) + j, f"{_argument_name(main, i)}_tangent")
        for j, i in enumerate(wanted)
    ]
    sweep = Forward(b, Rules(program.funcs, rules), dict(zip((main.args[i] for i in wanted), tangents, strict=True)))
    sweep.run(_needed_ops(main))
    made = [i for i, value in enumerate(main.results) if is_differentiable(value.type)]
    found = []
    for i in made:
        tangent = sweep.tangent(main.results[i])
        found.append(zeros(b, main.results[i].type) if tangent is None else tangent)
    names = [f"{_result_name(main, i)}_tangent" for i in made]
    return _close(program, main, b, tangents, found, names)


class _Continued(Builder):
    """A builder that continues a function; sizes may be read off its arguments."""

    def __init__(self, func: Func) -> None:
        super().__init__(Scope(symbols_of(func)))
        self.args = func.args
        self.ops = list(func.body.ops)


def _open(program: Program, rules: Mapping[str, Rule], first: Sequence[Rewrite]) -> tuple[Program, Func, Builder]:
    """The program in few forms, its entry, and a builder that continues the entry."""
    program = refine_shapes(inline(program, {*kept_composites(), *rules}))
    signatures = {name: func.type for name, func in program.funcs.items()}
    edit = Edit(program.main, signatures)
    rewrite(edit, CANONICALISE)
    lower(edit, first)
    main = edit.freeze()
    b = _Continued(main)
    b.signatures = signatures
    return program, main, b


def _needed_ops(main: Func) -> list[Op]:
    """The ops that results depend on: what else there is need have no derivative."""
    edit = Edit(main)
    rewrite(edit, [])
    kept = set(edit.ops())
    return [each for each in main.body.ops if each in kept]


def _close(
    program: Program, main: Func, b: Builder, more: Sequence[Value], found: Sequence[Value], names: Iterable[str]
) -> Program:
    """The entry with further arguments and results, without dead ops."""
    region = Region((*main.args, *more), tuple(b.ops), (*main.results, *found))
    arg_attrs = (*main.arg_attrs, *({NAME: value.name} for value in more))
    result_attrs: tuple[Attrs, ...] = (*_name_results(main), *({NAME: name} for name in names))
    func = Func(main.name, region, main.visibility, arg_attrs, result_attrs, main.attrs, main.location)
    edit = Edit(func, {name: each.type for name, each in program.funcs.items()})
    rewrite(edit, [])
    merge_scans(edit)
    program = program.replace(edit.freeze())
    verify(program)
    return program


def _name_results(main: Func) -> list[Attrs]:
    return [{**attrs, NAME: _result_name(main, i)} for i, attrs in enumerate(main.result_attrs)]


def _argument_name(main: Func, i: int) -> str:
    attrs = main.arg_attrs[i] or NO_ATTRS
    return str(attrs.get(WEIGHT) or attrs.get(NAME) or main.args[i].name or f"arg{i}")


def _result_name(main: Func, i: int) -> str:
    return str(main.result_attrs[i].get(NAME) or f"result{i}")


def _find_arguments(main: Func, wrt: Sequence[int | str] | None) -> list[int]:
    """The positions of arguments by name or position; each must have a derivative."""
    able = [i for i, arg in enumerate(main.args) if is_differentiable(arg.type)]
    if wrt is None:
        return able
    names = [_argument_name(main, i) for i in range(len(main.args))]
    found = []
    for each in wrt:
        if isinstance(each, str) and each in names:
            each = names.index(each)
        if isinstance(each, str) or not -len(names) <= each < len(names):
            raise UnsupportedError(f"@{main.name} has no argument {each!r}", expected=", ".join(names), got=each)
        place = each % len(names)
        if place not in able:
            raise UnsupportedError(
                f"the argument {names[place]} has no derivative",
                expected="a floating-point or complex tensor",
                got=main.args[place].type,
                remedy="wrt=[…] with " + (", ".join(names[i] for i in able) or "no argument: none has a derivative"),
            )
        found.append(place)
    return found
