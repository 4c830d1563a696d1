"""Rematerialisation: what a backward pass reads of the forward pass is computed again, where that takes less memory.

A chain of elementwise ops over one large tensor (the norm, activation and mask after a GEMM) would be kept link by
link. Where several links are read far below, each reader gets a copy of the chain: it is fused into the reader's
kernel, and only the tensor at its start is kept. Called by `pipeline` for engines that fuse elementwise ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from smelt.dtype import DType
from smelt.frozen import Frozen
from smelt.ir.clone import clone_op
from smelt.ir.core import Func, Op, Program, Region, Value, find_captures
from smelt.ir.ops import OPS
from smelt.shape import Shape

FAR = 48  # ops between a value and a reader that counts as far
LONGEST = 16  # ops of a chain
SOURCES = 2  # large tensors that a chain starts from, at most
LARGE = 1 << 16  # bytes: smaller tensors are kept as they are
_MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "broadcast_in_dim", "constant", "iota"))
# Functions that cost about as much as storing and loading an element; powers, remainders and special functions more.
_CHEAP = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "negate", "abs", "sign", "maximum", "minimum", "clamp", "select"),
        *("compare", "and", "or", "xor", "not", "convert", "exponential", "logistic", "tanh", "rsqrt", "sqrt"),
    )
) | {"chlo.erf", "chlo.erfc"}


class _Chain(Frozen):
    """How a value is computed again: from large `sources` by a number of ops."""

    sources: frozenset[Value]
    ops: int
    root: Op  # the last op that is no move


def rematerialise(program: Program) -> Program:
    """The program with copies of chains before their far readers in @main."""
    body = program.main.body
    position = {op: i for i, op in enumerate(body.ops)}
    captured = {value for op in body.ops for value in find_captures(*op.regions)}
    kept = _kept_values(body, position, _find_chains(body, captured))
    chains = _find_chains(body, captured | kept)
    chosen = _choose(body, position, chains)
    return program.replace(_with_copies(program.main, chains, chosen)) if chosen else program


def _bytes(value: Value) -> int:
    """The size of a tensor; 0 where it is not known."""
    shape = value.type
    if not isinstance(shape, Shape) or not isinstance(shape.dtype, DType) or not isinstance(shape.count, int):
        return 0
    return shape.count * shape.dtype.numpy.itemsize


def _find_chains(body: Region, ends: set[Value]) -> dict[Value, _Chain]:
    """The values that can be computed again; those in `ends` are where chains start."""
    chains: dict[Value, _Chain] = {}
    for op in body.ops:
        if op.name not in _CHEAP | _MOVES or op.results[0] in ends or not _bytes(op.results[0]):
            continue
        sources: set[Value] = set()
        count, root = 0 if op.name in _MOVES else 1, op
        for operand in op.operands:
            chain = chains.get(operand)
            if chain is not None and _bytes(operand) >= LARGE:
                sources |= chain.sources
                count += chain.ops
                root = chain.root if op.name in _MOVES else op
            elif _bytes(operand) >= LARGE or not _bytes(operand):
                sources.add(operand)
        if count <= LONGEST and len(sources) <= SOURCES:
            chains[op.results[0]] = _Chain(frozenset(sources), count, root)
    return chains


def _far_reads(body: Region, position: dict[Op, int], chains: dict[Value, _Chain]) -> Iterator[tuple[Op, Value]]:
    """(reader, value) where the value's chain is far above."""
    for op in body.ops:
        if op.name not in _MOVES:
            for value in dict.fromkeys(op.operands):
                chain = chains.get(value)
                if chain is not None and chain.ops and position[op] - position[chain.root] > FAR:
                    yield op, value


def _kept_values(body: Region, position: dict[Op, int], chains: dict[Value, _Chain]) -> set[Value]:
    """The ends of chains that must be in memory far below: a GEMM reads them, or a result is made of them."""
    found = {value for op, value in _far_reads(body, position, chains) if not _is_fused(op)}
    found.update(value for value in body.results if value in chains)
    return {result for value in found for result in chains[value].root.results}


def _is_fused(op: Op) -> bool:
    """Whether a kernel computes the operands of an op where it reads them."""
    return OPS[op.name].elementwise or op.name == "stablehlo.reduce"


def _choose(body: Region, position: dict[Op, int], chains: dict[Value, _Chain]) -> dict[Op, list[Value]]:
    """The reads that get a copy: those of chains with the same sources, if the sources are smaller than the links."""
    last = {value: position[op] for op in body.ops for value in op.operands}
    groups: dict[frozenset[Value], list[tuple[Op, Value]]] = {}
    for op, value in _far_reads(body, position, chains):
        if _is_fused(op) and chains[value].sources:
            groups.setdefault(chains[value].sources, []).append((op, value))
    chosen: dict[Op, list[Value]] = {}
    for sources, reads in groups.items():
        end = max(position[op] for op, _ in reads)
        links = {chains[value].root.results[0] for _, value in reads}
        longer = sum(_bytes(source) for source in sources if source.op is not None and last[source] < end)
        if sum(map(_bytes, links)) > longer:
            for op, value in reads:
                chosen.setdefault(op, []).append(value)
    return chosen


def _with_copies(main: Func, chains: dict[Value, _Chain], chosen: dict[Op, list[Value]]) -> Func:
    values: dict[Value, Value] = {}  # the results of readers, which are other ops now
    ops: list[Op] = []
    for op in main.body.ops:
        seen = values
        if op in chosen:
            seen = dict(values)
            for link in _links(chosen[op], chains):
                ops.append(clone_op(link, seen))
        if any(value in seen for value in (*op.operands, *find_captures(*op.regions))):
            ops.append(clone_op(op, seen))
            values.update({result: seen[result] for result in op.results})
        else:
            ops.append(op)
    results = tuple(values.get(value, value) for value in main.body.results)
    return replace(main, body=Region(main.body.args, tuple(ops), results))


def _links(ends: Sequence[Value], chains: dict[Value, _Chain]) -> list[Op]:
    """The ops of the chains that end in some values, in order."""
    found: dict[Op, None] = {}

    def visit(value: Value) -> None:
        if value in chains and value.op is not None and value.op not in found:
            for operand in value.op.operands:
                if _bytes(operand) >= LARGE:
                    visit(operand)
            found[value.op] = None

    for value in ends:
        visit(value)
    return list(found)
