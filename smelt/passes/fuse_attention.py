"""Fuse attention: `smelt.attention` composites become the op of one kernel, which never materialises the scores.

Composites that the FlashAttention kernel (`kernel/build/attention.py`) has no form for stay; `inline` decomposes them.
Called by `pipeline` for engines with packed GEMMs.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import Size, product
from smelt.dtype import i8
from smelt.ir.core import Value
from smelt.ir.ops.attention import AttentionAxes, AttentionNumbers
from smelt.ir.ops.paged_attention import PagedNumbers
from smelt.ir.rewrite import Match, Rule, op
from smelt.shape import Shape

# The finder of attention needs softmax as a composite, that of quantised matmuls `quantize` and `dequantize`.
COMPOSITES = frozenset(
    {
        *("smelt.attention", "smelt.paged_attention", "smelt.softmax"),
        *("smelt.qdot", "smelt.quantize", "smelt.dequantize"),
    }
)
QUERIES = 64  # of a block: their scores and results stay in L1 and L2
WIDEST = 1 << 30  # window: differences of positions are of i32
LANES = 16  # positions of a page of i8 are whole vectors
DEEPEST = 512  # elements of a query or value row that a kernel keeps cache-resident

_FLOATS = ("f32", "f16", "bf16")


def attention_rules(columns: int, has_int8_pages: bool = True) -> list[Rule]:
    """The rules that fuse attention, for a register tile of `columns` columns. Without a kernel for pages of i8 these
    are decomposed."""

    def attention(m: Match) -> Value | None:
        return _fuse(m, columns)

    def fuse_paged(m: Match) -> Value | None:
        return _fuse_paged(m, columns, has_int8_pages)

    return [
        Rule(op("stablehlo.composite"), attention, "attention is one kernel"),
        Rule(op("stablehlo.composite"), fuse_paged, "attention over pages is one kernel"),
    ]


def suits_attention(axes: AttentionAxes, shapes: Sequence[Shape]) -> bool:
    """Whether the kernel has a form for these axes, and for the types of queries, keys, values and the result."""
    deep = (axes.size(axes.depth), axes.size(axes.value))
    known = all(isinstance(size, int) and 0 < size <= DEEPEST for size in deep)
    return known and all(str(shape.dtype) in _FLOATS for shape in shapes)


def suits_paged_attention(numbers: PagedNumbers, shapes: Sequence[Shape], has_int8_pages: bool) -> bool:
    """Whether the kernel has a form for these queries and pages of keys and of values."""
    q, keys, values = shapes
    if numbers.window > WIDEST:
        return False
    if not all(isinstance(size, int) and size > 0 for size in (*q.sizes[1:], *keys.sizes[1:], *values.sizes[1:])):
        return False
    if not all(isinstance(size, int) and size <= DEEPEST for size in (q.sizes[2], values.sizes[3])):
        return False
    is_int8 = keys.dtype == i8 and has_int8_pages and keys.sizes[3] % LANES == 0
    return all(str(shape.dtype) in _FLOATS for shape in ((q,) if is_int8 else (q, keys, values)))


def _block(queries: Size, columns: int) -> int:
    """Queries of a block: keys and values are read once for each, whatever the register tile; fewer if there are."""
    most = max(QUERIES, columns)
    return min(most, max(1, -(-queries // columns)) * columns) if isinstance(queries, int) else most


def _fuse(m: Match, columns: int) -> Value | None:
    if m.op.attrs["name"] != "smelt.attention":
        return None
    said = m.op.attrs["composite_attributes"]
    numbers = AttentionNumbers.of(said)
    operands = [m.operand(i) for i in range(len(m.op.operands))]
    shapes = [value.shape for value in operands]
    axes = AttentionAxes.of(str(said.get("layout")), shapes, m.shape)
    if numbers is None or axes is None or not suits_attention(axes, (*shapes[:3], m.shape)):
        return None
    width = _block(product(axes.sizes[letter] for letter in axes.rows), columns)
    return m.build.op("smelt.attention", *operands, composite_attributes=said, width=width, result=m.shape).result


def _fuse_paged(m: Match, width: int, has_int8_pages: bool) -> Value | None:
    said = m.op.attrs["composite_attributes"]
    numbers = PagedNumbers.of(said)
    if m.op.attrs["name"] != "smelt.paged_attention" or numbers is None:
        return None
    operands = [m.operand(i) for i in range(len(m.op.operands))]
    if not suits_paged_attention(numbers, [value.shape for value in operands[:3]], has_int8_pages):
        return None
    return m.build.op("smelt.paged_attention", *operands, composite_attributes=said, width=width).result
