"""Matching a call with the function it names: operands against argument types, and the result types that follow.

`func.call`, `stablehlo.composite` and `interpreter.run_parallel` infer their types here. A function's symbols are its
own: each call gives them values, so one function serves many sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.dim import Size, divide_exact, substitute, symbol, symbols
from smelt.ir.core import FuncType, Type
from smelt.ir.ops.definition import UNKNOWN, Call
from smelt.shape import Shape


def call_types(
    call: Call, name: str, operands: Sequence[Type], declared: Sequence[Type] | None, label: str
) -> list[Type]:
    """The result types of a call of @name: the callee's symbols take the values that the operands give them.

    Symbols that its body introduces are new ones here, or the declared types name them.
    """
    signature = call.signatures.get(name)
    if signature is None:
        call.fail(label, f"no function @{name}", expected="one of " + ", ".join(call.signatures), got=f"@{name}")
    values = _unify(call, name, signature, operands, label)
    if declared is not None and len(declared) != len(signature.results):
        call.fail(label, f"@{name} has another number of results", expected=len(signature.results), got=len(declared))
    wanted: Sequence[Type | None] = [None] * len(signature.results) if declared is None else declared
    pairs = list(zip(signature.results, wanted, strict=True))
    for type, want in pairs:
        if isinstance(type, Shape) and not type.is_static:
            _name_births(call, type, want, values)
    return [
        type if not isinstance(type, Shape) or type.is_static else _result(call, type, want, values)
        for type, want in pairs
    ]


def _name_births(call: Call, type: Shape, want: Type | None, values: dict[str, Size]) -> None:
    """Symbols that the body introduces as sizes of results: named by the declared type, else new ones."""
    for pattern, size in zip(type.sizes, _declared_sizes(type, want), strict=True):
        bare = bare_symbol(pattern)
        if bare is not None and bare not in values:
            values[bare] = call.scope.new_symbol() if size == UNKNOWN else size


def _result(call: Call, type: Shape, want: Type | None, values: dict[str, Size]) -> Shape:
    """A result's type at the call. A size of which only the body knows the parts is a new symbol as a whole."""
    sizes = []
    for pattern, size in zip(type.sizes, _declared_sizes(type, want), strict=True):
        if symbols(pattern) <= values.keys():
            sizes.append(substitute(pattern, values))
        else:
            sizes.append(call.scope.new_symbol() if size == UNKNOWN else size)
    return Shape.of(type.dtype, sizes)


def _declared_sizes(type: Shape, want: Type | None) -> Sequence[Size]:
    """The declared sizes of a result, unknown where nothing (or nonsense, which is refused later) is declared."""
    return want.sizes if isinstance(want, Shape) and want.rank == type.rank else [UNKNOWN] * type.rank


def _unify(call: Call, name: str, signature: FuncType, operands: Sequence[Type], label: str) -> dict[str, Size]:
    if len(operands) != len(signature.inputs):
        call.fail(
            label, f"@{name} takes another number of arguments", expected=len(signature.inputs), got=len(operands)
        )
    values: dict[str, Size] = {}
    open_sizes: list[tuple[Size, Size]] = []
    for i, (want, have) in enumerate(zip(signature.inputs, operands, strict=True)):
        if not isinstance(want, Shape) or not isinstance(have, Shape):
            call.require(want == have, label, f"argument {i} of @{name} has another type", expected=want, got=have)
            continue
        if want.dtype != have.dtype or want.rank != have.rank:
            call.fail(label, f"argument {i} of @{name} has another type", expected=want, got=have)
        for pattern, size in zip(want.sizes, have.sizes, strict=True):
            bare = bare_symbol(pattern)
            if bare is not None and bare not in values:
                values[bare] = size
            else:
                open_sizes.append((pattern, size))
    for pattern, size in open_sizes:
        if not symbols(pattern) <= values.keys():
            _bind(call, name, pattern, size, values, label)
        call.same_size(
            substitute(pattern, values), size, label, f"a size of an argument of @{name} is not what it takes"
        )
    return values


def _bind(call: Call, name: str, pattern: Size, size: Size, values: dict[str, Size], label: str) -> None:
    """Give the last open symbol of a size its value, where it occurs as a multiple."""
    found = solve_multiple(pattern, size, values)
    if found is not None:
        values.update([found])
        return
    missing = sorted(symbols(pattern) - values.keys())
    call.fail(
        label,
        f"the size {pattern} of an argument of @{name} leaves {', '.join(missing)} open",
        expected=pattern,
        got=size,
    )


def solve_multiple(pattern: Size, size: Size, values: Mapping[str, Size]) -> tuple[str, Size] | None:
    """The only symbol of a size that has no value, and the value that makes it another size, where the size is a
    multiple of it: `2*N` against `6*M`."""
    missing = sorted(symbols(pattern) - values.keys())
    if len(missing) != 1 or substitute(pattern, {**values, missing[0]: 0}) != 0:
        return None
    value = divide_exact(size, substitute(pattern, {**values, missing[0]: 1}))
    if value is None or substitute(pattern, {**values, missing[0]: value}) != size:
        return None
    return missing[0], value


def bare_symbol(size: Size) -> str | None:
    """The name of a size that is just one symbol."""
    if type(size) is int:
        return None
    names = symbols(size)
    if len(names) != 1:
        return None
    (name,) = names
    return name if size == symbol(name) else None
