"""Shape refinement: infer all types of a function again, from its arguments on.

After inlining, a size that a callee took from an integer argument traces back to a dimension. The symbol that stood for
the unknown size is replaced by that size. `defer_shape_errors`, after folding, leaves impossible sizes to the run.
Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from smelt.dim import Size, symbol
from smelt.errors import SmeltError, VerifyError
from smelt.ir.build import make
from smelt.ir.clone import clone_args, remake_op, substitution
from smelt.ir.core import Func, FuncType, Op, Program, Region, Type, Value, walk
from smelt.ir.ops.definition import UNKNOWN, Scope
from smelt.ir.ops.signature import bare_symbol
from smelt.ir.rewrite import Edit, symbols_of
from smelt.ir.verify import SIZED_BY_DATA
from smelt.shape import Shape

_SIZED = SIZED_BY_DATA | {"stablehlo.set_dimension_size"}


def refine_shapes(program: Program) -> Program:
    """The same program with every size that inference can find."""
    signatures = {name: func.type for name, func in program.funcs.items()}
    refined = [_refine(func, signatures) for func in program.funcs.values()]
    unchanged = all(new is program.funcs[new.name] for new in refined)
    return program if unchanged else program.replace(*refined)


def _refine(func: Func, signatures: dict[str, FuncType]) -> Func:
    given = _symbols(arg.type for arg in func.args)
    if symbols_of(func) <= given:
        return func  # no symbol is introduced inside
    state = _State({name: symbol(name) for name in given}, Scope(symbols_of(func)), signatures)
    body = state.region(func.body, func.args)
    if all(size == symbol(name) for name, size in state.known.items()):
        return func
    return replace(func, body=body)


@dataclass(slots=True)
class _State:
    """The new sizes of the function's symbols and the new values of its values, so far."""

    known: dict[str, Size]
    scope: Scope
    signatures: dict[str, FuncType]
    values: dict[Value, Value] = field(default_factory=dict)

    def region(self, region: Region, args: Sequence[Value] | None = None) -> Region:
        """A copy of a region. Its arguments have the refined sizes of the operands; its own symbols stay."""
        if args is None:
            self.keep(_symbols(arg.type for arg in region.args))
            retype = substitution(self.known)
            args = clone_args(region.args, retype)
        self.values.update(zip(region.args, args, strict=True))
        ops = tuple(self.op(op) for op in region.ops)
        return Region(tuple(args), ops, tuple(self.values.get(value, value) for value in region.results))

    def op(self, op: Op) -> Op:
        regions = [self.region(region) for region in op.regions]
        operands = [self.values.get(operand, operand) for operand in op.operands]
        born = _symbols(value.type for value in op.results) - set(self.known)
        fresh = self.again(op, operands, regions, born) if born else None
        if fresh is None:
            self.keep(born)
            fresh = remake_op(op, operands, regions, substitution(self.known))
        else:
            _learn(op, fresh, born, self.known)
        self.values.update(zip(op.results, fresh.results, strict=True))
        return fresh

    def keep(self, born: set[str]) -> None:
        self.known |= {name: symbol(name) for name in born if name not in self.known}

    def again(self, op: Op, operands: Sequence[Value], regions: Sequence[Region], born: set[str]) -> Op | None:
        """The op rebuilt without declared dynamic sizes; None where inference finds no more than before."""
        retype = substitution({**self.known, **dict.fromkeys(born, UNKNOWN)})
        declared: list[Type] = [retype(value.type) for value in op.results]
        before = set(self.scope.taken)
        try:
            fresh = make(
                op.name,
                operands,
                op.attrs,
                regions,
                declared,
                scope=self.scope,
                location=op.location,
                result_names=[value.name for value in op.results],
                signatures=self.signatures,
            )
        except SmeltError:
            return None  # a declared size that inference cannot replace
        return None if _symbols(value.type for value in fresh.results) - before else fresh


def defer_shape_errors(edit: Edit) -> int:
    """Hide sizes that an op cannot have behind a barrier; returns the number of ops.

    The program was valid, and the op fails only if the run reaches it. Inference, which sees the sizes now, would
    reject the whole program.
    """
    sized = (op for op in walk(edit.func.body) if op.name in _SIZED)
    impossible = [op for op in sized if not _possible(op, edit.scope)]
    for op in impossible:
        build = edit.before(op)
        operands = [
            build.op("stablehlo.optimization_barrier", operand, result=operand.type).result
            if isinstance(operand.type, Shape) and operand.type.dtype.is_integer
            else operand
            for operand in edit.operands(op)
        ]
        again = build.op(op.name, *operands, result=[value.type for value in op.results], **dict(op.attrs))
        for old, new in zip(op.results, again.results, strict=True):
            edit.replace(old, new)
        edit.erase(op)
    return len(impossible)


def _possible(op: Op, scope: Scope) -> bool:
    try:
        make(op.name, op.operands, op.attrs, op.regions, [value.type for value in op.results], scope=scope)
    except VerifyError:
        return False
    return True


def _symbols(types: Iterable[Type]) -> set[str]:
    found: set[str] = set()
    for type in types:
        if isinstance(type, Shape):
            found |= type.symbols
    return found


def _learn(old: Op, new: Op, born: set[str], known: dict[str, Size]) -> None:
    """Record the sizes of the symbols that an op introduces."""
    for before, after in zip(old.results, new.results, strict=True):
        if isinstance(before.type, Shape) and isinstance(after.type, Shape):
            for name, size in _pairs(before.type.sizes, after.type.sizes):
                if name in born and name not in known:
                    known[name] = size
    for name in born - set(known):
        known[name] = symbol(name)


def _pairs(before: Sequence[Size], after: Sequence[Size]) -> list[tuple[str, Size]]:
    found = ((bare_symbol(old), new) for old, new in zip(before, after, strict=True))
    return [(name, new) for name, new in found if name is not None]
