"""Products of the same rows by several weights become one product, where a GPU would have too few blocks for each.

The packed panels of the weights are concatenated in `prepare`; each product is a slice of the columns. A sum has the
same terms in the same order as before. Products of many rows on tensor cores are merged where what follows them can be
merged as well: a bias and a conversion, as of query, key and value. A dynamic number of rows may be small. The columns
of two products that are read together, as gate and up, alternate: then one block of a GPU has both, for its epilogue.
Called by `pipeline`, after `pack_weights`.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import accumulate, pairwise

from smelt.dim import Size
from smelt.dtype import DType, bf16
from smelt.frozen import Frozen
from smelt.ir.block_layout import COLUMNS
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Region, Value, find_captures
from smelt.ir.ops import OPS
from smelt.ir.ops.packed import FP8, PAIRED
from smelt.ir.rewrite import Edit, has_effect
from smelt.layout import Layout
from smelt.passes.crop import crop
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

DOTS = ("smelt.packed_dot", "smelt.packed_block_dot", "smelt.grouped_dot")
PAIRS = ("smelt.packed_dot", "smelt.grouped_dot")  # that may alternate
MANY_COLUMNS = 8192  # a product with as many has enough blocks, and keeps its epilogue,
FEW_ROWS = 32  # unless it has few rows: then a launch costs more than the epilogue's results in memory
MEET = 32  # ops of one product until it meets another one


def merge_dots(edit: Edit) -> int:
    """Merge packed products of the same rows; returns the number of products removed."""
    count, regions = 0, [edit.func.body]
    while regions:
        region = regions.pop()
        count += _merge_in(edit, region)
        regions += [inner for op in edit.ops(region) for inner in op.regions]
    return count


def _merge_in(edit: Edit, region: Region) -> int:
    weights = {arg for arg, attrs in zip(edit.func.args, edit.func.arg_attrs, strict=True) if WEIGHT in attrs}
    groups: dict[Hashable, list[Op]] = {}
    for op in edit.ops(region):
        if op.name in DOTS and _can_merge(edit, op, weights):
            left, panels = _sides(edit, op)
            rows = tuple((_source(edit, each), each.type) for each in left)
            key = (op.name, rows, panels.shape.dtype, op.result.shape.dtype, _is_wide(op), *op.attrs.values())
            groups.setdefault(key, []).append(op)
    count = 0
    for ops in groups.values():
        ends = [_find_end(edit, op, weights) for op in ops]
        alike = all(end is not None and ends[0] is not None and end.is_like(ends[0]) for end in ends)
        if len(ops) > 1 and (alike or not _keep_epilogues(edit, ops)):
            _merge(edit, ops, [end for end in ends if end is not None] if alike else [])
            count += len(ops) - 1
    return count


class _End(Frozen):
    """What follows a product: a reshape that keeps its columns, a bias for each of them, a conversion."""

    sizes: tuple[Size, ...]
    bias: Value
    dtype: DType
    last: Op

    def is_like(self, other: _End) -> bool:
        return self.sizes[:-1] == other.sizes[:-1] and self.dtype == other.dtype


def _find_end(edit: Edit, op: Op, weights: set[Value]) -> _End | None:
    value, columns = op.result, op.result.shape.sizes[-1]
    user = _only_user(edit, value)
    if user is not None and user.name == "stablehlo.reshape" and user.result.shape.sizes[-1] == columns:
        value, user = user.result, _only_user(edit, user.result)
    if user is None or user.name != "stablehlo.add":
        return None
    others = [each for each in edit.operands(user) if each is not value]
    spread = edit.maker(others[0]) if len(others) == 1 else None
    if spread is None or spread.name != "stablehlo.broadcast_in_dim":
        return None
    (bias,) = edit.operands(spread)
    along = spread.attrs["broadcast_dimensions"] == (value.shape.rank - 1,) and bias.shape.sizes == (columns,)
    last = _only_user(edit, user.result)
    rounds = last is not None and last.name == "stablehlo.convert" and last.result.shape.dtype == bf16
    if not along or last is None or not rounds or not _depends_on(edit, bias, weights):
        return None
    return _End(value.shape.sizes, bias, bf16, last)


def _only_user(edit: Edit, value: Value) -> Op | None:
    users = edit.users(value)
    return users[0] if len(users) == 1 and not edit.is_returned(value) else None


def _keep_epilogues(edit: Edit, ops: list[Op]) -> bool:
    """Whether each product is better off with its own epilogue: many rows on tensor cores, or many columns that do not
    alternate."""
    rows = ops[0].result.shape.sizes[1]
    many = isinstance(rows, int) and rows > FEW_ROWS and ops[0].operands[0].shape.dtype in (bf16, *FP8)
    if ops[0].name == "smelt.grouped_dot":  # each has enough blocks
        return not _are_paired(edit, ops)
    return many or (_is_wide(ops[0]) and not _are_paired(edit, ops))


def _is_wide(op: Op) -> bool:
    """Whether a product has enough blocks of its own: many columns, and not few rows."""
    *_, rows, columns = op.result.shape.sizes
    few = op.name == "smelt.packed_block_dot" or (isinstance(rows, int) and rows <= FEW_ROWS)
    return not few and isinstance(columns, int) and columns >= MANY_COLUMNS


def _source(edit: Edit, value: Value) -> Value:
    """The value that was reshaped."""
    while (maker := edit.maker(value)) is not None and maker.name == "stablehlo.reshape":
        value = maker.operands[0]
    return edit.value(value)


def _can_merge(edit: Edit, op: Op, weights: set[Value]) -> bool:
    """Whether whole panels of weights are multiplied, of few columns or by what may be few rows."""
    (_, panels), columns = _sides(edit, op), op.result.shape.sizes[2]
    count = panels.shape.sizes[1]
    width = _columns_of_panel(op)
    is_dynamic = not isinstance(op.result.shape.sizes[1], int)
    whole = isinstance(columns, int) and columns == count * width and (is_dynamic or not _is_wide(op))
    alone = op.name == "smelt.grouped_dot" or panels.shape.sizes[0] == 1
    return whole and alone and _depends_on(edit, panels, weights)


def _sides(edit: Edit, op: Op) -> tuple[list[Value], Value]:
    """(Rows, and the sizes of their groups where there are some; panels)."""
    operands = edit.operands(op)
    panels = operands.pop(1 if op.name == "smelt.grouped_dot" else -1)
    return operands, panels


def _depends_on(edit: Edit, value: Value, weights: set[Value]) -> bool:
    """Whether a value depends on weights and on nothing else but constants, through ops that may be repeated."""
    stack, seen = [edit.value(value)], set[Value]()
    while stack:
        each = stack.pop()
        if each in seen:
            continue
        seen.add(each)
        if each.op is None:
            if each not in weights:
                return False
        elif find_captures(*each.op.regions) or has_effect(each.op) or len(each.op.results) > 1:
            return False
        else:
            stack += edit.operands(each.op)
    return any(each in weights for each in seen)


def _merge(edit: Edit, ops: list[Op], followed: list[_End]) -> None:
    first = ops[0]
    build = edit.before(first)
    copies: dict[Value, Value] = {}

    def copy(value: Value) -> Value:
        """The value in front of the first product; other weights may come after it."""
        value = edit.value(value)
        if value.op is None:
            return value
        if value not in copies:
            operands = [copy(each) for each in value.op.operands]
            regions = [clone_region(each, {}) for each in value.op.regions]
            made = build.op(value.op.name, *operands, result=value.type, regions=regions, **value.op.attrs)
            copies[value] = made.result
        return copies[value]

    each = [copy(_sides(edit, op)[1]) for op in ops]
    pairs = not followed and _are_paired(edit, ops)
    panels = _alternate(build, each, _columns_of_panel(first)) if pairs else build.concatenate(*each, dimension=1)
    left, _ = _sides(edit, first)
    given = [left[0], panels, *left[1:]] if first.name == "smelt.grouped_dot" else [*left, panels]
    ends = [*accumulate(size for op in ops if isinstance(size := op.result.shape.sizes[2], int))]
    total = Shape.of(first.result.shape.dtype, (*first.result.shape.sizes[:2], ends[-1]))
    whole = build.op(first.name, *given, result=total, **first.attrs).result
    if followed:
        shape = Shape.of(total.dtype, (*followed[0].sizes[:-1], ends[-1]))
        bias = build.concatenate(*(copy(each.bias) for each in followed), dimension=0)
        whole = whole if shape.sizes == total.sizes else build.reshape(whole, result=shape)
        spread = build.broadcast_in_dim(bias, broadcast_dimensions=(shape.rank - 1,), result=shape)
        whole = build.convert(build.add(whole, spread), result=shape.with_dtype(followed[0].dtype))
    if pairs:
        sizes = (*total.sizes[:2], ends[0])
        apart = build.reshape(whole, result=total.with_sizes((*sizes[:2], ends[0] // PAIRED, 2, PAIRED)))
        halves = [crop(build, apart, {3: (part, part + 1)}) for part in range(2)]
        parts = [build.reshape(part, result=total.with_sizes(sizes)) for part in halves]
    else:
        parts = [crop(build, whole, {whole.shape.rank - 1: pair}) for pair in pairwise([0, *ends])]
    for op, part in zip([each.last for each in followed] or ops, parts, strict=True):
        edit.replace(op.result, part)
        edit.erase(op)


def _columns_of_panel(op: Op) -> int:
    return Layout.parse(op.attrs["layout"]).axes[-1][0].size if "layout" in op.attrs else COLUMNS


def _are_paired(edit: Edit, ops: list[Op]) -> bool:
    """Whether these are two products of equally many columns, and all that reads them reads both at the same index."""
    one, *others = (op.result for op in ops)
    if len(others) != 1 or ops[0].name not in PAIRS or others[0].type != one.type:
        return False
    layout = Layout.parse(ops[0].attrs["layout"])
    plain = len(layout.axes) == 4 and layout.axes[1][0].axis == layout.axes[-1][0].axis == 2
    reached = [_follow(edit, value) for value in (one, others[0])]
    return plain and _columns_of_panel(ops[0]) % (2 * PAIRED) == 0 and not reached[0].isdisjoint(reached[1])


def _follow(edit: Edit, value: Value) -> set[Op]:
    """The first elementwise ops that a value goes through, reshapes left out; none where it goes elsewhere too."""
    found: set[Op] = set()
    stack = [value]
    while stack and len(found) < MEET:
        each = stack.pop()
        users = edit.users(each)
        if edit.is_returned(each) or any(
            user.name != "stablehlo.reshape" and not OPS[user.name].elementwise for user in users
        ):
            return set() if each is value else found
        found.update(user for user in users if user.name != "stablehlo.reshape")
        stack = [*(user.result for user in users), *stack]
    return found


def _alternate(build: Builder, panels: list[Value], width: int) -> Value:
    """Two packed matrices as one: of every 2 * PAIRED columns, PAIRED are of each."""
    apart = []
    for each in panels:
        group, count, steps, line = each.shape.sizes
        sizes = (group, count, steps, 2, width // (2 * PAIRED), 1, line * PAIRED // width)
        cut = build.reshape(each, result=each.shape.with_sizes(sizes))
        apart.append(build.transpose(cut, permutation=(0, 1, 3, 2, 4, 5, 6)))
    both = build.concatenate(*apart, dimension=5)
    return build.reshape(both, result=panels[0].shape.with_sizes((group, 2 * count, steps, line)))
