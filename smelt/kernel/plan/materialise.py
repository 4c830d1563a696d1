"""Which values are materialised (get a buffer) and which are inlined into the kernels that read them.

`Materialised.decide(region, …)` walks a block from its end to its beginning, before `fuse` builds its steps.
`concat_in_place` decides which values live inside a larger buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields

from smelt.frozen import Frozen
from smelt.ir.blocks import RUN
from smelt.ir.core import Op, Region, Token, Value, find_captures
from smelt.ir.ops import OPS
from smelt.kernel.build.expand_depthwise import find_expansion
from smelt.kernel.build.families import ADDRESSED, ANCHORS, PULLS, SINKS, UPDATES
from smelt.kernel.build.gemm import find_strides
from smelt.kernel.build.pairs import find_pair
from smelt.kernel.build.sinks import is_in_runs
from smelt.kernel.loops.nest import Expansion, Nest, View, tensor, unsupported
from smelt.kernel.plan.concat_in_place import Part, Users, find_parts, is_container, row_major
from smelt.kernel.plan.runtime_checks import RUNTIME_CHECKS
from smelt.layout import Layout
from smelt.shape import Shape

CONTROL = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})
SILENT = frozenset({"stablehlo.after_all", "stablehlo.create_token", "smelt.shape_assertion"})
# Moves are free where they are used: they only change indices.
MOVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "broadcast_in_dim",
        "dynamic_broadcast_in_dim",
        "transpose",
        "reshape",
        "dynamic_reshape",
        "slice",
        "reverse",
        "constant",
        "iota",
        "get_dimension_size",
        "optimization_barrier",
    )
)
# Ops that read their first operand at computed indices, an element perhaps many times.
SCATTERED = frozenset(
    f"stablehlo.{name}" for name in ("gather", "dynamic_gather", "dynamic_slice", "torch_index_select")
)
# Ops that select the source of an element.
GUARDED = frozenset(f"stablehlo.{name}" for name in ("concatenate", "pad", "dynamic_pad"))
# Functions that cost more than a store and a load.
COSTLY = frozenset(
    name
    for name, row in OPS.items()
    if "result_accuracy" in row.by_name
    or row.dialect == "chlo"
    or name in ("stablehlo.atan2", "stablehlo.divide", "stablehlo.power", "stablehlo.remainder")
)
LARGEST = 150  # ops per kernel
FORMULA = 12  # ops of an index formula, at most
ROWWISE = ("smelt.round_blocks", "smelt.round_rows")  # on a GPU their kernels compute what is in front, row by row
# Ops whose kernels may round rows at the end of their epilogue on a GPU.
ROUNDING = frozenset({"smelt.packed_block_dot", "smelt.paged_attention"})
LONGEST_ROW = 8192  # elements of a row behind a reduction, which such a kernel holds


@dataclass(slots=True)
class _Use:
    """The uses of a value that could be inlined."""

    roots: set[Op] = field(default_factory=set)  # the kernels that inline it
    reused: bool = False  # read repeatedly by one of them
    outside: bool = False  # used by another block, or returned
    signature: tuple[int | None, ...] | None = ()  # the root's axis for each axis; () = not known yet
    users: int = 0
    ops: int = 0
    folded: bool = False  # read by a reduction
    path: tuple[Op, ...] | None = ()  # the moves from it to the root; None: not a single path


class Anchor(Frozen):
    """The op whose kernel computes a value in its epilogue; `path` and `pair` as in `Output`."""

    op: Op
    path: tuple[Op, ...]
    pair: tuple[Value, ...] = ()


@dataclass(slots=True)
class Materialised:
    """The decisions about the blocks so far."""

    values: set[Value] = field(default_factory=set)  # those with a buffer
    forced: set[Value] = field(default_factory=set)  # those that must have one
    constants: dict[Op, None] = field(default_factory=dict)  # addressed by an op, in any block
    anchors: dict[Op, Anchor] = field(default_factory=dict)
    views: dict[Value, View] = field(default_factory=dict)  # values inside a larger buffer
    containers: dict[Value, Value] = field(default_factory=dict)  # the value that owns this buffer
    parts: dict[Op, list[Part]] = field(default_factory=dict)  # operands that are computed in place
    expands: bool = True  # a processor: expand + depthwise are fused, rows stay in a core's cache
    expanded: dict[Value, Expansion] = field(
        default_factory=dict
    )  # feature maps that a depthwise convolution computes in bands
    inside: set[Op] = field(default_factory=set)  # the ops that compute them, or factors of a product's rows
    addressed: list[tuple[Value, Value, bool]] = field(default_factory=list)  # (base, value, in runs)

    def decide(self, region: Region, known: set[str]) -> None:
        """Mark the values of a block that get a buffer; `known`: the symbols that are defined before it.

        A value that one op addresses may be a view of one that another op materialises. Where it has no strides there,
        the block is decided again with that value materialised too.
        """
        names = [each.name for each in fields(self) if each.name != "forced"]
        before = {name: copy(getattr(self, name)) for name in names}
        self._decide(region, known)
        while missed := self._without_strides() - self.forced:
            self.forced |= missed
            for name, old in before.items():
                setattr(self, name, copy(old))
            self._decide(region, known)

    def _without_strides(self) -> set[Value]:
        """The values to materialise because addressed values have no strides in the current buffers."""
        missed: set[Value] = set()
        for _, value, in_runs in self.addressed:
            below = value
            while below not in self.values and below.op is not None and _is_move(below.op) and below.op.operands:
                below = below.op.operands[0]
            if below is not value and not _is_strided(Nest({below: 0}, views=self.views), value, in_runs):
                missed.add(_below_reshapes(value))
        return missed

    def _decide(self, region: Region, known: set[str]) -> None:
        uses: dict[Value, _Use] = {result: _Use() for op in region.ops for result in op.results}
        for value in region.results:
            if value in uses:
                uses[value].outside = True
        for op in region.ops:
            for value in find_captures(*op.regions):
                if value in uses:
                    uses[value].outside = True
        users = _users(region)
        if not self.expands:
            self.inside |= _row_factors(region, users)
        for op in reversed(region.ops):
            stored = self._is_materialised(op, uses, users)
            self._leave_expanded(op, users)
            self._force_addressed(op)
            if stored:
                self.values.update(value for value in op.results if not isinstance(value.type, Token))
                self._compute_in_place(op, users, known)
            self._propagate(op, stored, uses)

    def _leave_expanded(self, op: Op, users: Users) -> None:
        """Leave an expanded feature map to its depthwise convolution, if that can compute it in bands."""
        if self.expands and op.name == "smelt.depthwise_conv" and (expansion := find_expansion(op, users)) is not None:
            self.expanded[op.operands[0]] = expansion
            self.inside |= expansion.inside

    def _compute_in_place(self, op: Op, users: Users, known: set[str]) -> None:
        """Have the operands of a concatenation or padding computed in its buffer."""
        if not is_container(op, known) or (not self.expands and op.name == "stablehlo.pad" and _moves_argument(op)):
            return
        view = self.views.get(op.result) or row_major(tensor(op.result).sizes)
        found = find_parts(op, view, users, self._can_use_view)
        if found:
            self.parts[op] = found
        for part in found:
            self.views[part.value], self.containers[part.value] = part.view, op.result
            self.forced.add(part.value)

    def _can_use_view(self, value: Value, view: View) -> bool:
        """Whether a value has no buffer yet and stays addressable through the view."""
        if value in self.views or value in self.values:
            return False
        nest = Nest({value: 0}, views={value: view})
        return all(_is_strided(nest, seen, in_runs) for base, seen, in_runs in self.addressed if base is value)

    def _is_materialised(self, op: Op, uses: dict[Value, _Use], users: Users) -> bool:
        if op in self.inside:
            return False
        if op.name in ANCHORS and len(op.results) == 1:
            pair = () if self.expands else find_pair(op, users)
            if self._ends_elsewhere(op, [uses[value] for value in pair or (op.result,)], pair):
                return False
        if op.name in SINKS or op.name in UPDATES or op.name in CONTROL or op.name == "stablehlo.custom_call":
            return True
        if op.name not in PULLS:
            if op.name in SILENT:
                return False
            raise unsupported(op)
        seen = [uses[value] for value in op.results]
        if op.name == "stablehlo.constant":
            return not op.attrs["value"].is_splat or op.result in self.forced
        if any(use.outside for use in seen) or any(value in self.forced for value in op.results):
            return True
        if _is_move(op):
            return any(use.ops > LARGEST for use in seen)
        if _is_formula(op):
            return False
        if not self.expands and any(use.folded and use.users > 1 for use in seen):
            if _widens(op):
                self.forced.add(op.operands[0])
            elif _reads_several(op):
                return True  # read by a reduction and after it
        if not self.expands and _widens(op) and not any(base is op.result for base, _, _ in self.addressed):
            if any(use.reused for use in seen):
                self.forced.add(op.operands[0])  # read repeatedly, in the narrow type
            return False
        if len({root for use in seen for root in use.roots}) > 1:
            return self.expands or not _is_rounded_twice(op, seen[0])
        if any(use.reused or use.ops > LARGEST for use in seen):
            return True
        smallest = op.name == "smelt.round_to_byte" or (not self.expands and _narrows(op))
        if smallest and any(root in self.anchors for use in seen for root in use.roots):
            return True  # another GEMM ends there: this one stores int8 or bf16, the smallest form
        if op.name == "stablehlo.reduce":
            return len(op.results) > 1 or not _is_row(op, seen[0])
        if op.name in GUARDED or (not self.expands and any(map(_ends_product, seen)) and _follows_product(op)):
            return True
        return op.name in COSTLY and any((use.users > 1 and use.folded) or _is_repeated(use) for use in seen)

    def _ends_elsewhere(self, op: Op, uses: Sequence[_Use], pair: tuple[Value, ...]) -> bool:
        """Whether the only kernel that uses a result, or a pair of parts of it at the same index, can be the epilogue
        of the kernel that computes it."""
        use = uses[0]
        if any(each.outside or each.reused or each.folded or each.ops > LARGEST for each in uses):
            return False
        if len(use.roots) != 1 or any(each.roots != use.roots or not _is_like(each.path, use.path) for each in uses):
            return False
        if any(value in self.values for value in pair):
            return False
        root = next(iter(use.roots))
        if root in self.anchors or use.path is None:
            return False
        if root.name == "smelt.round_blocks":
            if self.expands or not can_round(op, use.path, pair):
                return False
        elif root.name not in PULLS or len(root.results) != 1 or root.name == "stablehlo.reduce":
            return False
        self.anchors[root] = Anchor(op, use.path, pair)
        return True

    def _force_addressed(self, op: Op) -> None:
        """Materialise the operands that an op addresses and that are no strided view of a materialised value."""
        for i in ADDRESSED.get(op.name, ()):
            base = value = op.operands[i]
            if value in self.expanded:
                continue
            while base.op is not None and _is_move(base.op) and base.op.operands:
                base = base.op.operands[0]
            if base.op is not None and base.op.name == "stablehlo.constant":
                self.constants[base.op] = None  # a splat would otherwise have no buffer
            elif base.op is not None and (_is_move(base.op) or _is_formula(base.op)):
                self.forced.add(base)  # an iota or a formula of one has no buffer otherwise
            in_runs = is_in_runs(op, i)
            self.addressed.append((base, value, in_runs))
            if value is base or _is_strided(Nest({base: 0}, views=self.views), value, in_runs):
                continue
            self.forced.add(_below_reshapes(value))

    def _propagate(self, op: Op, stored: bool, uses: dict[Value, _Use]) -> None:
        """Propagate uses to the operands."""
        use = uses[op.results[0]] if op.results else _Use()
        rank = len(op.results[0].type.sizes) if op.results and isinstance(op.results[0].type, Shape) else 0
        signature = tuple(range(rank)) if stored else use.signature
        pulled = op.name in SINKS or (stored and op.name not in PULLS)  # read in the order of the op's own loops
        pulled = pulled and (self.expands or op.name not in ROWWISE)
        for i, operand in enumerate(op.operands):
            if operand not in uses or isinstance(operand.type, Token):
                continue
            mine = uses[operand]
            mine.users += 1
            mine.ops = max(mine.ops, 1 if stored or pulled else use.ops + 1)
            mine.roots |= {op} if stored else use.roots
            mine.folded |= op.name == "stablehlo.reduce"
            once = not self.expands and i > len(op.results) and _places_updates(op)
            mine.reused |= (pulled and not once) or (not stored and use.reused) or (i == 0 and op.name in SCATTERED)
            seen = None if pulled or signature is None else _through(op, i, signature)
            mine.signature = seen if mine.users == 1 else self._merge_signatures(mine.signature, seen)
            mine.path = _common_path(mine, _path(op, i, () if stored else use.path))
            if op.name in CONTROL or op.name == "stablehlo.custom_call" or _gives_size(op, i):
                mine.outside = True

    def _merge_signatures(
        self, one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None
    ) -> tuple[int | None, ...] | None:
        """The axes of the root that two uses of a value have in common. On a GPU a reduction of rows joins the kernel
        of their elements; on a processor the rows stay in a cache between both."""
        if one == other or self.expands or one is None or other is None:
            return one if one == other else None
        return tuple(a if a == b else None for a, b in zip(one, other, strict=True))


def can_round(op: Op, path: Sequence[Op], pair: tuple[Value, ...]) -> bool:
    """Whether the kernel of an op may round the rows at the end of its epilogue (`sinks.Output`) on a GPU: a run of 32
    is in one tile."""
    columns = tensor(op.results[0]).sizes[-1]
    whole = isinstance(columns, int) and columns % ((len(pair) or 1) * RUN) == 0
    return op.name in ROUNDING and whole and all(each.name == "stablehlo.reshape" for each in path)


def _is_rounded_twice(op: Op, use: _Use) -> bool:
    """Whether roundings of the same rows, in several formats, are all that reads a value that is quickly computed from
    one value: the kernel that stores that one may round the rows (`find_roundings`)."""
    rounds = all(root.name == "smelt.round_blocks" for root in use.roots)
    alike = rounds and len({root.operands for root in use.roots}) == 1 and not use.reused and not use.folded
    return alike and op.name not in COSTLY and bool(OPS[op.name].elementwise) and not _reads_several(op)


def _row_factors(region: Region, users: Users) -> set[Op]:
    """The ops that compute factors of rows for products alone, which compute them themselves (`passes.defer_factors`).
    What they read is stored."""
    found = set[Op]()

    def is_factor(value: Value, user: Op) -> bool:
        return user in found or (user.name == "smelt.packed_block_dot" and value not in user.operands[:4])

    for op in reversed(region.ops):
        seen = [(value, users.get(value, ())) for value in op.results]
        alone = all(each and all(is_factor(value, user) for user in each) for value, each in seen)
        if seen and alone and op.name in PULLS and op.name not in GUARDED:
            found.add(op)
    return found


def _places_updates(op: Op) -> bool:
    """Whether an op is a scatter that stores its updates as they are: on a GPU it reads each once, and may compute it,
    unless that reads what it changes."""
    if op.name != "stablehlo.scatter" or op.regions[0].results != op.regions[0].args[len(op.results) :]:
        return False
    changed = {_below_moves(value) for value in op.operands[: len(op.results)]}
    stack, seen = [*op.operands[len(op.results) + 1 :]], set[Value]()
    while stack:
        value = stack.pop()
        if value in changed:
            return False
        if value in seen or value.op is None or value.op.name not in PULLS:
            continue
        seen.add(value)
        stack += value.op.operands
    return True


def _below_moves(value: Value) -> Value:
    while value.op is not None and _is_move(value.op) and value.op.operands:
        value = value.op.operands[0]
    return value


def _moves_argument(op: Op) -> bool:
    """Whether an op moves and converts elements of an argument: on a GPU one map is less than several launches."""
    value = op.operands[0]
    while value.op is not None and (_is_move(value.op) or value.op.name == "stablehlo.convert") and value.op.operands:
        value = value.op.operands[0]
    return value.op is None


def _widens(op: Op) -> bool:
    """Whether an op converts a float to a wider one: it is read from memory in the narrow type."""
    return op.name == "stablehlo.convert" and _is_narrower(op.operands[0], op.result)


def _narrows(op: Op) -> bool:
    return op.name == "stablehlo.convert" and _is_narrower(op.result, op.operands[0])


def _is_narrower(value: Value, other: Value) -> bool:
    """Whether a value is of floats with fewer bits than another one, and at least 16."""
    one, two = tensor(value).element, tensor(other).element
    return one.is_float and two.is_float and 8 < one.bits < two.bits


def _reads_several(op: Op) -> bool:
    """Whether an element is computed from several that are no broadcasts."""
    makers = [value.op for value in op.operands if tensor(value).sizes == tensor(op.results[0]).sizes]
    spread = ("stablehlo.broadcast_in_dim", "stablehlo.constant")
    return sum(maker is None or maker.name not in spread for maker in makers) > 1


def _below_reshapes(value: Value) -> Value:
    """The value below reshapes."""
    while value.op is not None and value.op.name == "stablehlo.reshape":
        value = value.op.operands[0]
    return value


def _is_strided(nest: Nest, value: Value, in_runs: bool) -> bool:
    """Whether a value has strides; with `in_runs`, a contiguous last axis too."""
    found = find_strides(nest, value)
    return found is not None and (not in_runs or dict(found[1].terms).get(found[2][-1]) == 1)


def _users(region: Region) -> dict[Value, list[Op]]:
    """The users of each value of a block; values with uses outside of it are left out."""
    users: dict[Value, list[Op]] = {value: [] for op in region.ops for value in op.results}
    for op in region.ops:
        for value in dict.fromkeys(op.operands):
            if value in users:
                users[value].append(op)
        for value in find_captures(*op.regions):
            users.pop(value, None)
    for value in region.results:
        users.pop(value, None)
    return users


def _gives_size(op: Op, operand: int) -> bool:
    """Whether an operand holds sizes that are checked at run time."""
    return op.name in RUNTIME_CHECKS and (operand > 0 or op.name == "stablehlo.dynamic_iota")


def _is_move(op: Op) -> bool:
    """Whether an op only changes indices."""
    if op.name == "smelt.relayout":
        layout, sizes = Layout.parse(op.attrs["layout"]), tensor(op.operands[0]).sizes
        whole = not any(layout.pads(axis, sizes) for axis in range(len(sizes)))
        return whole and all(len(group) == 1 for group in layout.axes)
    if op.name == "stablehlo.pad":  # cropping only: a slice
        edges = (*op.attrs["edge_padding_low"], *op.attrs["edge_padding_high"])
        return max(edges, default=0) <= 0 and not any(op.attrs["interior_padding"])
    return op.name in MOVES


def _is_formula(op: Op) -> bool:
    """Whether an element is a cheap function of its index (as in a causal mask): faster computed than loaded."""
    seen: set[Op] = set()
    stack = [op]
    while stack:
        each = stack.pop()
        if each in seen or each.name == "stablehlo.iota":
            continue
        seen.add(each)
        splat = each.name == "stablehlo.constant" and each.attrs["value"].is_splat
        cheap = OPS[each.name].elementwise and each.name not in COSTLY
        plain = splat or cheap or (each.name in MOVES and each.name != "stablehlo.constant")
        if not plain or len(seen) > FORMULA or any(operand.op is None for operand in each.operands):
            return False
        stack += [operand.op for operand in each.operands if operand.op is not None]
    return True


def _path(op: Op, operand: int, beyond: tuple[Op, ...] | None) -> tuple[Op, ...] | None:
    """The moves from an operand to the root, given those from the op's result."""
    if op.name == "smelt.round_blocks":
        return beyond
    if beyond is None or len(op.results) != 1:
        return None
    if op.name in ("stablehlo.reshape", "stablehlo.transpose"):
        return (op, *beyond)
    same = OPS[op.name].elementwise and tensor(op.operands[operand]).sizes == tensor(op.result).sizes
    return beyond if same else None


def _is_like(path: tuple[Op, ...] | None, other: tuple[Op, ...] | None) -> bool:
    """Whether two paths map an index in the same way."""
    if path is None or other is None:
        return path is other

    def moves(ops: tuple[Op, ...]) -> list[tuple[object, ...]]:
        return [(op.name, tensor(op.result).sizes, op.attrs.get("permutation")) for op in ops]

    return moves(path) == moves(other)


def _common_path(use: _Use, path: tuple[Op, ...] | None) -> tuple[Op, ...] | None:
    return path if use.users == 1 or use.path == path else None


def _through(op: Op, operand: int, signature: tuple[int | None, ...]) -> tuple[int | None, ...] | None:
    """The root's axis for each axis of an operand, if the op maps axes to axes."""
    sizes = tensor(op.operands[operand]).sizes
    match op.name:
        case "stablehlo.broadcast_in_dim":
            dims = op.attrs["broadcast_dimensions"]
            return tuple(None if size == 1 else signature[d] for d, size in zip(dims, sizes, strict=True))
        case "stablehlo.transpose":
            places: list[int | None] = [None] * len(signature)
            for at, source in zip(signature, op.attrs["permutation"], strict=True):
                places[source] = at
            return tuple(places)
        case "stablehlo.reshape":
            full = tensor(op.result).sizes
            ours = [at for at, size in zip(signature, full, strict=True) if size != 1]
            kept = [size for size in full if size != 1]
            if kept != [size for size in sizes if size != 1]:
                return None
            axes = iter(ours)
            return tuple(None if size == 1 else next(axes) for size in sizes)
        case "stablehlo.reduce":
            if operand >= len(op.results):
                return ()
            kept_axes = iter(signature)
            return tuple(None if d in op.attrs["dimensions"] else next(kept_axes) for d in range(len(sizes)))
    if (OPS[op.name].elementwise or op.name in ROWWISE) and len(sizes) == len(signature):
        return signature
    return None if sizes else ()


def _ends_product(use: _Use) -> bool:
    """Whether only a kernel reads a value that rounds rows, and would compute it twice: a product may end with it."""
    return use.ops == 1 and {root.name for root in use.roots} == {"smelt.round_rows"}


def _follows_product(op: Op) -> bool:
    """Whether a value is computed from a product, element by element."""
    stack, found = [op], False
    seen = set[Op]()
    while stack:
        each = stack.pop()
        if each in seen:
            continue
        seen.add(each)
        found |= each.name in ANCHORS
        if each.name == "stablehlo.reduce" or len(seen) > LARGEST:
            return False
        if each.name not in SINKS:
            stack += [value.op for value in each.operands if value.op is not None]
    return found


def _is_repeated(use: _Use) -> bool:
    """Whether the only kernel that uses a result would recompute it in every iteration of an outer loop although it
    does not depend on that loop."""
    if not use.signature or len(use.roots) != 1:
        return False
    axes = [axis for axis in use.signature if axis is not None]
    sizes = tensor(next(iter(use.roots)).results[0]).sizes
    return any(size != 1 and axis not in axes for axis, size in enumerate(sizes[: max(axes, default=0)]))


def _is_row(op: Op, use: _Use) -> bool:
    """Whether each result of a reduction belongs to one iteration of the outer loops of its only kernel (row-wise)."""
    if use.signature is None or not use.roots or use.signature == ():
        return False
    root = next(iter(use.roots))
    axes = [axis for axis in use.signature if axis is not None]
    sizes = tensor(op.results[0]).sizes
    if any(axis is None and size != 1 for axis, size in zip(use.signature, sizes, strict=True)):
        return False
    whole = tensor(root.results[0]).sizes
    loops, last = [d for d, size in enumerate(whole) if size != 1], (1, *whole)[-1]
    by_rows = root.name in PULLS or (root.name in ROWWISE and isinstance(last, int) and last <= LONGEST_ROW)
    return by_rows and axes == loops[: len(axes)] and len(axes) < len(loops)
