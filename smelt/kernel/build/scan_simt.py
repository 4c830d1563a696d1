"""Long scans on a GPU: a thread takes a chunk of a row, in three launches.

The first one reduces every chunk, the second one scans these totals, the third one scans each chunk from the total of
those before it. For that the carry must be a sum, a product, a maximum, a minimum, or the like, of the elements so far;
`scan.py` has the others, and rows of one chunk. Sums of floats are those of chunks, in order.
"""

from __future__ import annotations

from math import isqrt

from smelt.dim import Size, ceildiv
from smelt.dtype import i64
from smelt.ir.core import Op
from smelt.ir.ops.reduce import scan_counts
from smelt.kernel.build.scan import scan as serial_scan
from smelt.kernel.build.scan import step_through
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import Expr, Number, Set, add, scale
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.passes.lower import is_pointwise
from smelt.shape import Shape

CHUNK, LEAST = 1024, 64  # elements of a chunk where the length is dynamic; of a short one
SHORT = 512  # elements of a row that one thread scans
FUNCTIONS = frozenset(("add", "multiply", "maximum", "minimum", "and", "or", "xor"))


@simt_sink("chlo.scan")
def scan(nest: Nest, op: Op, output: Output) -> None:
    dimension, sizes = op.attrs["dimension"], tensor(op.operands[0]).sizes
    length, around = sizes[dimension], [size for d, size in enumerate(sizes) if d != dimension]
    found = find_reduction(op)
    if found is None or (isinstance(length, int) and length <= SHORT):
        serial_scan(nest, op, output)
        return
    function, which = found
    chunk = max(LEAST, 1 << (isqrt(length).bit_length() - 1)) if isinstance(length, int) else CHUNK
    inputs, _ = scan_counts(op)
    init, value = op.operands[inputs], op.operands[which]
    chunks, element = ceildiv(length, chunk), tensor(init).element
    totals, starts = (nest.scratch(Shape.of(element, (*around, chunks))) for _ in range(2))
    kept = (*around, chunks)

    def index_of(outer: tuple[Expr, ...], step: Expr) -> tuple[Expr, ...]:
        at: Expr = add(scale(step, -1), length - 1) if op.attrs["is_reverse"] else step
        return (*outer[:dimension], at, *outer[dimension:])

    with nest.loops(kept) as (*outer, number):
        first, count = _chunk_of(nest, number, chunk, length)
        total = nest.declare(element, Number(identity(function, element).value, element))
        with nest.loop(count, "ordered") as i:
            item = nest.pull(value, index_of(tuple(outer), nest.let(add(first, i))))
            nest.emit(Set(total, nest.apply(function, nest.keep(total), item, dtype=element)))
        nest.store(totals, flat((*outer, number), kept), nest.keep(total))
    with nest.loops(around) as row:
        carry = nest.declare(element, nest.pull(init, row))
        with nest.loop(chunks, "ordered") as number:
            place = flat((*row, number), kept)
            nest.store(starts, place, nest.keep(carry))
            more = nest.read(nest.buffer(totals), place, element)
            nest.emit(Set(carry, nest.apply(function, nest.keep(carry), more, dtype=element)))
        nest.store(output.targets[-1], flat(row, around), nest.keep(carry))
    with nest.loops(kept) as (*outer, number):
        first, count = _chunk_of(nest, number, chunk, length)
        carry = nest.declare(element, nest.read(nest.buffer(starts), flat((*outer, number), kept), element))
        with nest.loop(count, "ordered") as i:
            step_through(nest, op, output, index_of(tuple(outer), nest.let(add(first, i))), [carry])


def _chunk_of(nest: Nest, number: Expr, chunk: int, length: Size) -> tuple[Expr, Expr]:
    """The first element of a chunk, and how many it has."""
    first = nest.let(scale(number, chunk))
    left = nest.let(add(length, scale(first, -1)))
    return first, nest.apply("minimum", Number(chunk), left, dtype=i64)


def find_reduction(op: Op) -> tuple[str, int] | None:
    """The function by which each element of an input changes the only carry, and the number of that input."""
    body, (inputs, inits) = op.regions[0], scan_counts(op)
    if inits != 1 or not is_pointwise(body):
        return None
    maker, carry = body.results[-1].op, body.args[inputs]
    if maker is None or maker.name.removeprefix("stablehlo.") not in FUNCTIONS or len(maker.operands) != 2:
        return None
    one, other = maker.operands if maker.operands[1] is carry else maker.operands[::-1]
    element = tensor(op.operands[inputs]).element
    narrow = element.is_complex or (element.is_float and element.bits < 32)  # totals would be rounded far from them
    if other is not carry or one not in body.args[:inputs] or narrow:
        return None
    return maker.name.removeprefix("stablehlo."), body.args.index(one)
