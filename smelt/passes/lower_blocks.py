"""Products by block-quantised weights: what precision "q8" does to a program, and how native computes it.

`round_activations` is the precision: `dot_general(x, unblock(w))` becomes the composite `smelt.block_dot`, whose
decomposition rounds activations to 8 bits (`ir.block_ops`), so that every engine computes the same numbers. Activations
that multiply weights of bf16 are rounded to bf16.
`lower_blocks` is native's: block_dot becomes `smelt.packed_block_dot` over packed weights, and a row that is looked up
in an unblocked matrix is looked up in the bytes. So weights stay as small as in their file.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import accumulate, pairwise

from smelt.dim import product
from smelt.dtype import DType, bf16, f32, i32
from smelt.ir.attributes import GatherDims
from smelt.ir.block_layout import COLUMNS, Layout, can_pack
from smelt.ir.block_ops import BuildOps, dot_decomposition, grouped_dot_decomposition
from smelt.ir.block_pack import pack, take_columns
from smelt.ir.blocks import BLOCKS, Block, elements
from smelt.ir.build import Builder
from smelt.ir.composites import encode
from smelt.ir.core import Func, Op, Program, Value
from smelt.ir.ops.linear import grouped_axes
from smelt.ir.rewrite import Edit
from smelt.ir.structure import fingerprint
from smelt.passes.crop import crop
from smelt.passes.round_products import is_f32_product, round_product
from smelt.shape import Shape

NARROW = 1024  # columns
COMPOSITES = frozenset({"smelt.unblock", "smelt.block_dot", "smelt.block_ragged_dot"})  # that `lower_blocks` knows


# ---- precision "q8" ----

_Key = tuple[object, ...]  # the name of a composite, the format and the shapes of operands
_PRODUCTS = {"stablehlo.dot_general": "dot_dimension_numbers", "chlo.ragged_dot": "ragged_dot_dimension_numbers"}


def round_activations(program: Program) -> Program:
    """The program with every product by unblocked weights on activations rounded to 8 bits, by bf16 ones to bf16."""
    signatures = {name: func.type for name, func in program.funcs.items()}
    edit, added = Edit(program.main, signatures), dict[_Key, Func]()
    for op in [op for op in edit.ops() if op.name in _PRODUCTS]:
        made = (_block_dot if op.name == "stablehlo.dot_general" else _block_ragged_dot)(edit, op, added)
        if made is None and is_f32_product(op) and _is_widened(edit, op.operands[1]):
            made = round_product(edit, op)
        if made is not None:
            edit.replace(op.result, made)
            edit.erase_if_dead(op)
    return program.replace(edit.freeze(), *added.values()) if edit.changed else program


def _is_widened(edit: Edit, value: Value) -> bool:
    """Whether a value was bf16."""
    maker = edit.maker(value)
    return maker is not None and maker.name == "stablehlo.convert" and edit.operands(maker)[0].shape.dtype == bf16


def _block_dot(edit: Edit, dot: Op, added: dict[_Key, Func]) -> Value | None:
    """The composite for a product of f32 rows by an unblocked matrix, summed over whole blocks."""
    lhs, rhs = edit.operands(dot)
    found = _unblock(edit, rhs)
    dims = dot.attrs["dot_dimension_numbers"]
    kinds = (lhs.shape.dtype, dot.result.shape.dtype)
    last = rhs.shape.rank - 1
    if found is None or kinds != (f32, f32) or dims.rhs_contracting_dimensions != (last,):
        return None
    row, w = found
    if not can_pack(row):
        return None
    b = edit.before(dot)
    batch = dims.lhs_batching_dimensions
    kept = [d for d in range(lhs.shape.rank) if d not in batch and d not in dims.lhs_contracting_dimensions]
    x = _merge(b, lhs, (batch, kept, dims.lhs_contracting_dimensions), 0)
    batch = dims.rhs_batching_dimensions
    columns = [d for d in range(last) if d not in batch]
    w = _merge(b, w, (batch, columns), 2)
    made = _composite(edit, dot, added, "smelt.block_dot", row, x, w)
    return _reshape(edit.before(dot), made, dot.result.shape)


def _block_ragged_dot(edit: Edit, dot: Op, added: dict[_Key, Func]) -> Value | None:
    """The same for a product of which groups of rows have their own matrices."""
    x, rhs, sizes = edit.operands(dot)
    found, groups = _unblock(edit, rhs), grouped_axes(dot)
    if found is None or groups is None or {x.shape.dtype, dot.result.shape.dtype} != {f32}:
        return None
    row, w = found
    if not can_pack(row) or dot.attrs[_PRODUCTS[dot.name]].rhs_contracting_dimensions != (2,):
        return None
    w = _merge(edit.before(dot), w, groups, 2)
    return _composite(edit, dot, added, "smelt.block_ragged_dot", row, x, w, sizes)


def _composite(edit: Edit, dot: Op, added: dict[_Key, Func], name: str, row: Block, *operands: Value) -> Value:
    shapes = [value.shape for value in operands]
    key = name, row.name, *shapes
    if key not in added:
        x, w, *sizes = shapes
        func = grouped_dot_decomposition(row, x, w, *sizes) if sizes else dot_decomposition(row, x, w)
        called = f"{name}.{fingerprint(func).hex()[:24]}"
        added[key] = Func(called, func.body, "private")
        edit.signatures[called] = func.type
    made = edit.before(dot).op(
        "stablehlo.composite",
        *operands,
        name=name,
        composite_attributes=encode(name, {"format": row.name}),
        decomposition=added[key].name,
    )
    return made.result


def _unblock(edit: Edit, value: Value) -> tuple[Block, Value] | None:
    """The format and the bytes of a value that is `smelt.unblock` of something."""
    maker = edit.maker(value)
    if maker is None or maker.name != "stablehlo.composite" or maker.attrs["name"] != "smelt.unblock":
        return None
    row = BLOCKS.get(str(maker.attrs["composite_attributes"].get("format")))
    return None if row is None else (row, edit.operands(maker)[0])


def _merge(b: Builder, value: Value, groups: tuple[tuple[int, ...] | list[int], ...], rest: int) -> Value:
    """The value with each group of axes merged into one, and the last `rest` axes as they are."""
    rank = value.shape.rank
    tail = tuple(range(rank - rest, rank))
    order = (*(d for group in groups for d in group), *tail)
    if order != tuple(range(rank)):
        value = b.transpose(value, permutation=order)
    sizes = iter(value.shape.sizes)
    merged = [product(next(sizes) for _ in group) for group in groups]
    return _reshape(b, value, Shape.of(value.shape.dtype, (*merged, *sizes)))


def _reshape(b: Builder, value: Value, shape: Shape) -> Value:
    return value if value.shape.sizes == shape.sizes else b.reshape(value, result=shape)


# ---- native ----


def lower_blocks(edit: Edit, *, any_zero: bool = True) -> int:
    """Block products as kernels, with `any_zero` of formats whose codes are not centred too; rows looked up in packed
    weights, or in a file's bytes."""
    packed: dict[Value, tuple[Layout, Value]] = {}  # by the bytes that were packed
    names = "smelt.block_dot", "smelt.block_ragged_dot"
    products = [op for op in edit.ops() if _is_composite(op, *names) and (any_zero or _layout_of(op).is_centred)]
    for op in products:
        _replace(edit, op, _packed_dot(edit, op, packed))
    lookups = [op for op in edit.ops() if op.name == "stablehlo.gather"]
    count = len(products)
    for op in lookups:
        made = _lookup(edit, op, packed) if _unblock(edit, op.operands[0]) else _narrow_lookup(edit, op)
        if made is not None:
            _replace(edit, op, made)
            count += 1
    return count


def _layout_of(op: Op) -> Layout:
    return Layout.of(str(op.attrs["composite_attributes"].get("format")))


def _is_composite(op: Op, *names: str) -> bool:
    return op.name == "stablehlo.composite" and op.attrs["name"] in names


def _replace(edit: Edit, op: Op, made: Value) -> None:
    makers = [maker for value in op.operands if (maker := edit.maker(value)) is not None]
    edit.replace(op.result, made)
    edit.erase_if_dead(op)
    for maker in makers:  # an unblocked matrix that nothing uses any more
        if maker in edit:
            edit.erase_if_dead(maker)


def _packed_dot(edit: Edit, op: Op, packed: dict[Value, tuple[Layout, Value]]) -> Value:
    x, w, *sizes = edit.operands(op)
    layout = _layout_of(op)
    source = w
    while (maker := edit.maker(source)) is not None and maker.name == "stablehlo.reshape":
        source = edit.operands(maker)[0]
    if source not in packed:
        top = next(edit.ops())  # above every use: a lookup may come first
        b = edit.before(top if edit.maker(source) is None else op)
        packed[source] = layout, pack(b, layout, BuildOps(b).reshape(source, *w.shape.sizes))
    _, panels = packed[source]
    b = edit.before(op)
    if sizes:
        x = _reshape(b, x, Shape.of(x.shape.dtype, (1, *x.shape.sizes)))
    rounded = b.op("smelt.round_blocks", x, group=layout.group, zero=layout.zero).results
    if not sizes:
        return b.op("smelt.packed_block_dot", *rounded, panels, format=layout.row.name, result=op.result.shape).result
    result = Shape.of(f32, (1, *op.result.shape.sizes))
    made = b.op("smelt.grouped_block_dot", *rounded, panels, *sizes, format=layout.row.name, result=result).result
    return _reshape(b, made, op.result.shape)


def merge_block_dots(edit: Edit) -> int:
    """Products of the same rows by few columns each become one; a sum has the same terms in the same order. Called
    after equal roundings were merged."""
    order = {op: i for i, op in enumerate(edit.ops())}
    groups: dict[Hashable, list[Op]] = {}
    for op in order:
        if op.name == "smelt.packed_block_dot" and _is_narrow(op):
            *rows, panels = edit.operands(op)
            maker, ops = edit.maker(panels), groups.setdefault((*rows, op.attrs["format"]), [])
            if maker is not None and order[maker] < order[(*ops, op)[0]]:
                ops.append(op)
    several = [ops for ops in groups.values() if len(ops) > 1]
    for ops in several:
        first, b = ops[0], edit.before(ops[0])
        *rows, _ = edit.operands(first)
        panels = b.concatenate(*(edit.operands(op)[-1] for op in ops), dimension=1)
        ends = [0, *accumulate(size for op in ops if isinstance(size := op.result.shape.sizes[2], int))]
        shape = Shape.of(f32, (*first.result.shape.sizes[:2], ends[-1]))
        whole = b.op("smelt.packed_block_dot", *rows, panels, format=first.attrs["format"], result=shape).result
        parts = [crop(b, whole, {2: part}) for part in pairwise(ends)]
        for op, part in zip(ops, parts, strict=True):
            edit.replace(op.result, part)
            edit.erase(op)
    return sum(len(ops) - 1 for ops in several)


def _is_narrow(op: Op) -> bool:
    """Whether a product has so few columns, in whole panels of one matrix, that starting cores for it costs much."""
    panels, columns = op.operands[-1].shape.sizes, op.result.shape.sizes[2]
    return panels[0] == 1 and isinstance(columns, int) and columns % COLUMNS == 0 and columns <= NARROW


def _lookup(edit: Edit, op: Op, packed: dict[Value, tuple[Layout, Value]]) -> Value | None:
    """Rows of an unblocked matrix, from its bytes; None where a gather does something else."""
    found = _unblock(edit, op.operands[0])
    table, places = edit.operands(op)
    dims, rank = op.attrs["dimension_numbers"], places.shape.rank
    sizes = table.shape.sizes
    plain = (
        len(sizes) == 2
        and dims.collapsed_slice_dims == dims.start_index_map == (0,)
        and not dims.operand_batching_dims
        and dims.index_vector_dim == rank
        and dims.offset_dims == (rank,)
        and tuple(op.attrs["slice_sizes"]) == (1, sizes[1])
    )
    if found is None or not plain:
        return None
    row, w = found
    b = edit.before(op)
    if places.shape.element.bits < 32:  # places in a record need more
        places = b.convert(places, result=places.shape.with_dtype(i32))
    if w in packed and packed[w][1].shape.sizes[0] == 1:
        low, high = b.constant(0, places.shape.element), b.constant(w.shape.numbers()[0] - 1, places.shape.element)
        return take_columns(b, packed[w][0], packed[w][1], b.clamp(low, places, high))
    made = elements(row, w, _Looked(b, places))
    return BuildOps(b).reshape(made, *op.result.shape.sizes)


def _narrow_lookup(edit: Edit, op: Op) -> Value | None:
    """What is looked up in widened numbers, widened after it: numbers of 16 bits are bound as they are."""
    table, places = edit.operands(op)
    maker = edit.maker(table)
    if maker is None or maker.name != "stablehlo.convert":
        return None
    narrow = edit.operands(maker)[0]
    if not isinstance(narrow.shape.dtype, DType) or not isinstance(table.shape.dtype, DType):
        return None
    if not narrow.shape.dtype.is_float or narrow.shape.dtype.bits >= table.shape.dtype.bits:
        return None
    b = edit.before(op)
    found = b.op(op.name, narrow, places, result=op.result.shape.with_dtype(narrow.shape.dtype), **op.attrs).result
    return b.convert(found, result=op.result.shape)


class _Looked(BuildOps):
    """Decoding of some rows: a part of their bytes is looked up in the whole, so that this is what is bound."""

    def __init__(self, builder: Builder, places: Value) -> None:
        super().__init__(builder)
        self.places = places

    def cut(self, x: Value, at: int, count: int) -> Value:
        rank = self.places.shape.rank
        lead = (*self.places.shape.sizes, 1)
        row = self.reshape(self.places, *lead)
        places = self.b.concatenate(row, self.full(at, row), dimension=rank)
        dims = GatherDims(
            offset_dims=(rank, rank + 1),
            collapsed_slice_dims=(0,),
            operand_batching_dims=(),
            start_indices_batching_dims=(),
            start_index_map=(0, 2),
            index_vector_dim=rank,
        )
        sizes = (1, x.shape.numbers()[1], count)
        return self.b.gather(x, places, dimension_numbers=dims, slice_sizes=sizes)
