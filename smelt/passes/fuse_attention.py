"""Fuse attention: `smelt.attention` composites become the op of one kernel, which never materialises the scores.

Composites that the FlashAttention kernel (`kernel/build/attention.py`) has no form for stay; `inline` decomposes them.
Called by `pipeline` for engines with packed GEMMs.
"""

from __future__ import annotations

from smelt.dim import Size, product
from smelt.dtype import i8
from smelt.ir.core import Value
from smelt.ir.ops.attention import AttentionAxes, AttentionNumbers
from smelt.ir.ops.paged_attention import PagedNumbers
from smelt.ir.rewrite import Match, Rule, op

# The finder of attention needs softmax as a composite, that of quantised matmuls `quantize` and `dequantize`.
COMPOSITES = frozenset(
    {
        *("smelt.attention", "smelt.paged_attention", "smelt.softmax"),
        *("smelt.qdot", "smelt.quantize", "smelt.dequantize"),
    }
)
QUERIES = 64  # of a block: their scores and results stay in L1 and L2
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
    axes = AttentionAxes.of(str(said.get("layout")), [value.shape for value in operands], m.shape)
    if numbers is None or axes is None:
        return None
    floats = [value.shape for value, role in zip(operands, numbers.roles, strict=True) if role in ("q", "k", "v")]
    if any(str(shape.dtype) not in _FLOATS for shape in (*floats, m.shape)):
        return None
    deep = (axes.size(axes.depth), axes.size(axes.value))
    if not all(isinstance(size, int) and size <= DEEPEST for size in deep):
        return None
    width = _block(product(axes.sizes[letter] for letter in axes.rows), columns)
    return m.build.op("smelt.attention", *operands, composite_attributes=said, width=width, result=m.shape).result


def _fuse_paged(m: Match, width: int, has_int8_pages: bool) -> Value | None:
    said = m.op.attrs["composite_attributes"]
    if m.op.attrs["name"] != "smelt.paged_attention" or PagedNumbers.of(said) is None:
        return None
    operands = [m.operand(i) for i in range(len(m.op.operands))]
    q, keys, values = (value.shape for value in operands[:3])
    deep = (q.sizes[2], values.sizes[3])
    static = all(isinstance(size, int) for size in (*q.sizes[1:], *keys.sizes[1:], *values.sizes[1:]))
    if not static or not all(isinstance(size, int) and size <= DEEPEST for size in deep):
        return None
    is_int8 = keys.dtype == i8 and has_int8_pages and keys.sizes[3] % LANES == 0
    if any(str(shape.dtype) not in _FLOATS for shape in ((q,) if is_int8 else (q, keys, values))):
        return None
    return m.build.op("smelt.paged_attention", *operands, composite_attributes=said, width=width).result
