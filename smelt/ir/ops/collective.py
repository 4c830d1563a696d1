"""Ops that exchange data between the processes of a grid of replicas x partitions, and with the host.

`evaluate` is a generator: it yields one exchange (`Rendezvous`, `Send`, `Receive`) and goes on with what came back. How
processes form groups follows the specification's four strategies, from `channel_handle` and `use_global_device_ids`.
Who meets whom knows nothing of arrays: `passes.join_processes` lets values of a program meet by the same functions.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from smelt.dim import Size, divide_exact
from smelt.dtype import Array, DType, ElementType, dtype
from smelt.errors import RunError
from smelt.ir.attributes import BOOL, CHANNEL, INT, LIST, MATRIX, PAIRS, STRING, UNIT, ChannelHandle
from smelt.ir.core import Op, Token, Type
from smelt.ir.ops.definition import UNKNOWN, Attr, Call, Exchange, Frame, OpDef, Process, Receive, Rendezvous, Send
from smelt.shape import Shape

Steps = Generator[Exchange, Any, tuple[Any, ...]]
Group = tuple[Process, ...]
T = TypeVar("T")

TOKEN = Token()
NO_CHANNEL = ChannelHandle()
DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE = 1, 2, 3

GROUPS = Attr("replica_groups", MATRIX)
CHANNEL_HANDLE = Attr("channel_handle", CHANNEL, None)
GLOBAL_IDS = Attr("use_global_device_ids", UNIT, None)

# ---- who takes part ----


def _channel(attrs: Any) -> int:
    handle: ChannelHandle = attrs.get("channel_handle") or NO_CHANNEL
    return handle.handle


def wide_groups(process: Process, op: Op) -> list[Group]:
    """cross_replica, cross_replica_and_partition or flattened_ids."""
    rows = _rows(op)
    if op.attrs.get("use_global_device_ids"):
        return [tuple(_flat(process, op, id) for id in row) for row in rows]
    if _channel(op.attrs) > 0:
        partitions = range(process.partitions)
        return [tuple(_at(process, op, id, p) for p in partitions for id in row) for row in rows]
    return cross_replica(process, op)


def narrow_groups(process: Process, op: Op) -> list[Group]:
    """cross_replica or cross_partition."""
    rows = _rows(op)
    if _channel(op.attrs) > 0:
        return [tuple(_at(process, op, r, id) for id in row) for r in range(process.replicas) for row in rows]
    return cross_replica(process, op)


def cross_replica(process: Process, op: Op) -> list[Group]:
    return [tuple(_at(process, op, id, p) for id in row) for p in range(process.partitions) for row in _rows(op)]


def _rows(op: Op) -> list[list[int]]:
    """The groups without their padding."""
    return [[id for id in row if id >= 0] for row in op.attrs["replica_groups"]]


def _at(process: Process, op: Op, replica: int, partition: int) -> Process:
    if not (0 <= replica < process.replicas and 0 <= partition < process.partitions):
        raise RunError(
            f"{op.name}: a group names a process that does not exist",
            expected=f"{process.replicas} replicas of {process.partitions} partitions",
            got=f"({replica}, {partition})",
        )
    return Process(replica, partition, process.replicas, process.partitions)


def _flat(process: Process, op: Op, id: int) -> Process:
    return _at(process, op, *divmod(id, process.partitions))


def group_of(process: Process, groups: Sequence[Group]) -> Group | None:
    return next((group for group in groups if process in group), None)


def my_group(process: Process, op: Op, groups: Sequence[Group]) -> Group:
    group = group_of(process, groups)
    if group is None:
        raise RunError(f"{op.name}: process {process} is in no group", got=op.attrs["replica_groups"])
    return group


def meet(op: Op, group: Group, payload: Any) -> Generator[Exchange, Any, list[Any]]:
    """The payloads of all members, in the order of the group."""
    payloads = yield Rendezvous((op.name, _channel(op.attrs), group), group, payload)
    return [payloads[member] for member in group]


def _check_groups(call: Call, label: str, *, ragged: bool = False, complete: bool = True) -> None:
    """Ids are unique and not negative; -1 pads where groups may differ in size; all ids occur where all take part."""
    rows: tuple[tuple[int, ...], ...] = call.attrs["replica_groups"]
    ids = [id for row in rows for id in row]
    call.require(len(ids) > 0, label, "replica_groups must not be empty", got=rows)
    call.require(min(ids) >= (-1 if ragged else 0), label, "a replica id is negative", got=rows)
    real = [id for id in ids if id >= 0]
    call.require(len(set(real)) == len(real), label, "replica ids must be unique", got=rows)
    call.require(
        not complete or set(real) == set(range(len(real))),
        label,
        "replica ids have gaps",
        expected=f"0 to {len(real) - 1}",
        got=rows,
    )


def _check_global_ids(call: Call, label: str) -> None:
    if call.attrs.get("use_global_device_ids"):
        call.require(
            _channel(call.attrs) > 0,
            label,
            "use_global_device_ids needs a channel",
            expected="a positive channel",
            got=_channel(call.attrs),
        )


def _fitting(op: Op, results: Sequence[Array]) -> tuple[Array, ...]:
    """Results whose sizes depend on the grid, held to the sizes that the op promises."""
    for value, array in zip(op.results, results, strict=True):
        want = value.shape
        if array.ndim != want.rank or (want.is_static and array.shape != want.sizes):
            raise RunError(
                f"{op.name}: the group does not give the declared size", expected=want, got=list(array.shape)
            )
    return tuple(results)


def _alike(op: Op, payloads: Sequence[Sequence[Array]]) -> None:
    for payload in payloads[1:]:
        if [(a.shape, a.dtype) for a in payload] != [(a.shape, a.dtype) for a in payloads[0]]:
            raise RunError(
                f"{op.name}: the processes of a group have different types",
                expected=[f"{a.dtype}{list(a.shape)}" for a in payloads[0]],
                got=[f"{a.dtype}{list(a.shape)}" for a in payload],
            )


# ---- all_gather, all_to_all ----


def _group_size(call: Call) -> int | None:
    """How many processes a group has, where the attributes alone say it."""
    if _channel(call.attrs) > 0 and not call.attrs.get("use_global_device_ids"):
        return None  # times the number of partitions
    return len(call.attrs["replica_groups"][0])


def _infer_all_gather(call: Call) -> Sequence[Type]:
    dim: int = call.attrs["all_gather_dim"]
    call.require(len(call.operands) > 0, "all_gather_i1", "there must be an operand")
    for shape in call.shapes:
        call.check_dims([dim], shape.rank, "all_gather_c1", "all_gather_dim")
    _check_groups(call, "all_gather_c2")
    _check_global_ids(call, "all_gather_c5")
    return [_gather(call, i, shape, dim) for i, shape in enumerate(call.shapes)]


def _gather(call: Call, i: int, shape: Shape, dim: int) -> Shape:
    count = _group_size(call)
    before = shape.sizes[dim]
    if count is not None:
        return _with_size(shape, dim, before * count)
    after: Size = call.declared_shape(i).sizes[dim] if call.declared_shape(i).rank == shape.rank else before
    if after == UNKNOWN:
        after = call.scope.new_symbol()
    elif type(before) is int and type(after) is int:
        step = before * len(call.attrs["replica_groups"][0])
        holds = after % step == 0 if step else after == 0
        call.require(
            holds, "all_gather_c6", "the gathered size is no multiple", expected=f"a multiple of {step}", got=after
        )
    return _with_size(shape, dim, after)


def _with_size(shape: Shape, dim: int, size: Size) -> Shape:
    return Shape.of(shape.dtype, [size if i == dim else old for i, old in enumerate(shape.sizes)])


def _all_gather(frame: Frame, op: Op, *operands: Array) -> Steps:
    group = my_group(frame.process, op, wide_groups(frame.process, op))
    payloads = yield from meet(op, group, operands)
    _alike(op, payloads)
    dim: int = op.attrs["all_gather_dim"]
    return _fitting(op, [np.concatenate(parts, axis=dim) for parts in zip(*payloads, strict=True)])


def _infer_all_to_all(call: Call) -> Sequence[Type]:
    split, concat, count = (call.attrs[name] for name in ("split_dimension", "concat_dimension", "split_count"))
    call.require(len(call.operands) > 0, "all_to_all_i1", "there must be an operand")
    call.require(count > 0, "all_to_all_c4", "split_count must be positive", got=count)
    _check_groups(call, "all_to_all_c5")
    groups = call.attrs["replica_groups"]
    call.require(
        len(groups[0]) == count,
        "all_to_all_c8",
        "split_count is not the size of a group",
        expected=len(groups[0]),
        got=count,
    )
    results: list[Type] = []
    for shape in call.shapes:
        call.check_dims([split], shape.rank, "all_to_all_c1", "split_dimension")
        call.check_dims([concat], shape.rank, "all_to_all_c3", "concat_dimension")
        part = _part(call, shape.sizes[split], count, "all_to_all_c2")
        if split != concat:
            shape = _with_size(_with_size(shape, split, part), concat, shape.sizes[concat] * count)
        results.append(shape)
    return results


def _part(call: Call, size: Size, count: int, label: str) -> Size:
    """An equal part of a size. For a symbolic size it is the floor, and a remainder of 0 is assumed."""
    if type(size) is int:
        call.require(
            size % count == 0, label, "a dimension does not split evenly", expected=f"a multiple of {count}", got=size
        )
        return size // count
    exact = divide_exact(size, count)
    if exact is not None:
        return exact
    call.same_size(size, size // count * count, label, "a dimension splits evenly")
    return size // count


def _all_to_all(frame: Frame, op: Op, *operands: Array) -> Steps:
    group = my_group(frame.process, op, narrow_groups(frame.process, op))
    payloads = yield from meet(op, group, operands)
    _alike(op, payloads)
    mine = group.index(frame.process)
    split, concat, count = (op.attrs[name] for name in ("split_dimension", "concat_dimension", "split_count"))
    results = []
    for parts in zip(*payloads, strict=True):
        shares = [_share(op, part, split, count, mine) for part in parts]
        results.append(np.concatenate(shares, axis=concat))
    return _fitting(op, results)


def _share(op: Op, array: Array, dim: int, count: int, which: int) -> Array:
    if array.shape[dim] % count:
        raise RunError(
            f"{op.name}: a dimension does not split evenly", expected=f"a multiple of {count}", got=array.shape[dim]
        )
    return np.split(array, count, axis=dim)[which]


# ---- all_reduce, reduce_scatter, collective_reduce ----


def promotable(a: ElementType, b: ElementType) -> bool:
    """The specification's is_promotable: the same kind of element, at least as wide."""
    if not isinstance(a, DType) or not isinstance(b, DType):
        return a == b
    return a.kind == b.kind and a.bits <= b.bits


def _reduced_element(call: Call, label: str) -> ElementType:
    """E of the computation (tensor<E>, tensor<E>) -> tensor<E>."""
    (region,) = call.regions
    if len(region.results) != 1 or not isinstance(region.results[0].type, Shape):
        call.fail(label, "the computation must return one tensor", got=[value.type for value in region.results])
    scalar = Shape.of(region.results[0].type.dtype, ())
    call.check_region(region, [scalar, scalar], [scalar], label)
    for shape in call.shapes:
        call.require(
            promotable(shape.dtype, scalar.dtype),
            label,
            "the computation is not for these elements",
            expected=shape.dtype,
            got=scalar.dtype,
        )
    return scalar.dtype


def _infer_all_reduce(call: Call) -> Sequence[Type]:
    call.require(len(call.operands) > 0, "all_reduce_i1", "there must be an operand")
    _check_groups(call, "all_reduce_c1", ragged=True)
    _check_global_ids(call, "all_reduce_c4")
    element = _reduced_element(call, "all_reduce_c5")
    return [Shape.of(element, shape.sizes) for shape in call.shapes]


def _reduce(frame: Frame, op: Op, parts: Sequence[Array], result: int) -> Array:
    """The computation over the group, in the group's order."""
    element = op.results[result].shape.dtype.numpy
    body = op.regions[0]
    return reduce(lambda a, b: frame.lanes(body, a, b)[0], [part.astype(element) for part in parts])


def _all_reduce(frame: Frame, op: Op, *operands: Array) -> Steps:
    group = my_group(frame.process, op, wide_groups(frame.process, op))
    payloads = yield from meet(op, group, operands)
    _alike(op, payloads)
    return tuple(_reduce(frame, op, parts, i) for i, parts in enumerate(zip(*payloads, strict=True)))


def _infer_reduce_scatter(call: Call) -> Sequence[Type]:
    shape = call.shape(0)
    dim: int = call.attrs["scatter_dimension"]
    call.check_dims([dim], shape.rank, "reduce_scatter_c2", "scatter_dimension")
    _check_groups(call, "reduce_scatter_c3")
    _check_global_ids(call, "reduce_scatter_c6")
    element = _reduced_element(call, "reduce_scatter_c7")
    count = _group_size(call)
    before = shape.sizes[dim]
    if count is not None:
        after = _part(call, before, count, "reduce_scatter_c1")
    else:
        after = call.declared_shape().sizes[dim] if call.declared_shape().rank == shape.rank else before
        if after == UNKNOWN:
            after = call.scope.new_symbol()
        elif type(before) is int and type(after) is int:
            step = after * len(call.attrs["replica_groups"][0])
            holds = before % step == 0 and before > 0 if step else before == 0
            call.require(
                holds,
                "reduce_scatter_c8",
                "the scattered size is no divisor",
                expected=f"a multiple of {step}",
                got=before,
            )
    return [Shape.of(element, _with_size(shape, dim, after).sizes)]


def _reduce_scatter(frame: Frame, op: Op, operand: Array) -> Steps:
    group = my_group(frame.process, op, wide_groups(frame.process, op))
    payloads = yield from meet(op, group, (operand,))
    _alike(op, payloads)
    whole = _reduce(frame, op, [payload[0] for payload in payloads], 0)
    mine = _share(op, whole, op.attrs["scatter_dimension"], len(group), group.index(frame.process))
    return _fitting(op, [mine])


def _infer_collective_reduce(call: Call) -> Sequence[Type]:
    shapes = _data_shapes(call)
    _check_groups(call, "collective_reduce_c1", ragged=True, complete=False)
    _check_global_ids(call, "collective_reduce_c2")
    (region,) = call.regions
    for shape in shapes:
        scalar = Shape.of(shape.dtype, ())
        call.check_region(region, [scalar, scalar], [scalar], "collective_reduce_c3")
    return shapes


def _collective_reduce(frame: Frame, op: Op, *operands: Array) -> Steps:
    """As all_reduce, but only the root gets the result; the other members get zeros."""
    group = group_of(frame.process, wide_groups(frame.process, op))
    data, roots = split_roots(op, operands)
    if group is None:
        return tuple(np.zeros_like(array) for array in data)
    payloads = yield from meet(op, group, data)
    _alike(op, payloads)
    results = []
    for i, parts in enumerate(zip(*payloads, strict=True)):
        root = _root(op, group, roots, i)
        results.append(_reduce(frame, op, parts, i) if group[root] == frame.process else np.zeros_like(data[i]))
    return tuple(results)


def _infer_sum(call: Call) -> Sequence[Type]:
    shape = call.shape(0)
    call.require(shape.dtype.kind not in ("bool", "quantized"), "", "only numbers have a sum", got=shape)
    _check_groups(call, "", ragged=True)
    return [shape]


def _cross_replica_sum(frame: Frame, op: Op, operand: Array) -> Steps:
    group = my_group(frame.process, op, cross_replica(frame.process, op))
    payloads = yield from meet(op, group, (operand,))
    _alike(op, payloads)
    element = op.results[0].shape.element
    total = reduce(
        lambda a, b: (a.astype(element.wide) + b.astype(element.wide)).astype(element.numpy), [p[0] for p in payloads]
    )
    return (total,)


# ---- collective_broadcast, collective_permute ----


def _data_shapes(call: Call) -> list[Shape]:
    """The operands without the tensor of roots that follows them where `has_dynamic_root` is set."""
    shapes = call.shapes
    call.require(len(shapes) > 0, "", "there must be an operand")
    if not call.attrs.get("has_dynamic_root"):
        return shapes
    *data, roots = shapes
    want = Shape.of(dtype("i32"), (len(data),))
    call.require(len(data) > 0, "", "there must be an operand besides the roots")
    call.same_shape(want, roots, "", "the last operand must hold one root for each other operand")
    return data


def split_roots(op: Op, operands: Sequence[T]) -> tuple[tuple[T, ...], T | None]:
    """The data, and the tensor of roots that follows it where `has_dynamic_root` is set."""
    if op.attrs.get("has_dynamic_root"):
        return tuple(operands[:-1]), operands[-1]
    return tuple(operands), None


def _root(op: Op, group: Group, roots: Array | None, i: int) -> int:
    root = 0 if roots is None else int(roots[i])
    if not 0 <= root < len(group):
        raise RunError(f"{op.name}: the root is outside the group", expected=f"0 to {len(group) - 1}", got=root)
    return root


def _infer_broadcast(call: Call) -> Sequence[Type]:
    shapes = _data_shapes(call)
    _check_groups(call, "collective_broadcast_c1", complete=False)
    return shapes


def _collective_broadcast(frame: Frame, op: Op, *operands: Array) -> Steps:
    group = group_of(frame.process, narrow_groups(frame.process, op))
    data, roots = split_roots(op, operands)
    if group is None:
        return tuple(np.zeros_like(array) for array in data)
    payloads = yield from meet(op, group, data)
    _alike(op, payloads)
    return tuple(parts[_root(op, group, roots, i)] for i, parts in enumerate(zip(*payloads, strict=True)))


def _check_pairs(call: Call, label: str) -> None:
    pairs: tuple[tuple[int, ...], ...] = call.attrs["source_target_pairs"]
    call.require(all(len(pair) == 2 for pair in pairs), f"{label}_c1", "a pair has a source and a target", got=pairs)
    for which, name in enumerate(("source", "target")):
        ids = [pair[which] for pair in pairs]
        call.require(len(set(ids)) == len(ids), f"{label}_c{2 + which}", f"each {name} occurs once", got=ids)
        call.require(min(ids, default=0) >= 0, f"{label}_c4", f"a {name} is negative", got=ids)


def _infer_permute(call: Call) -> Sequence[Type]:
    _check_pairs(call, "collective_permute")
    return [call.shape(0)]


def _everyone(process: Process) -> list[Process]:
    return [
        Process(r, p, process.replicas, process.partitions)
        for r in range(process.replicas)
        for p in range(process.partitions)
    ]


def _pairs(process: Process, op: Op) -> list[tuple[Process, Process]]:
    """Source and target of each pair, in every partition (cross_replica) or every replica (cross_partition)."""
    pairs: tuple[tuple[int, int], ...] = op.attrs["source_target_pairs"]
    if _channel(op.attrs) > 0:
        return [(_at(process, op, r, a), _at(process, op, r, b)) for r in range(process.replicas) for a, b in pairs]
    return [(_at(process, op, a, p), _at(process, op, b, p)) for p in range(process.partitions) for a, b in pairs]


def permute(process: Process, op: Op, payload: T) -> Generator[Exchange, Any, T | None]:
    """What the source of this process brings; None where no pair leads here."""
    routes = _pairs(process, op)
    taking_part = {process for route in routes for process in route}
    if process not in taking_part:
        return None
    group = tuple(other for other in _everyone(process) if other in taking_part)
    payloads = yield Rendezvous((op.name, _channel(op.attrs), group), group, payload)
    source = next((a for a, b in routes if b == process), None)
    return None if source is None else payloads[source]


def _collective_permute(frame: Frame, op: Op, operand: Array) -> Steps:
    came = yield from permute(frame.process, op, operand)
    return _fitting(op, [np.zeros_like(operand) if came is None else came])


# ---- ids, channels, feeds ----


def _infer_id(_: Call) -> Sequence[Type]:
    return [Shape.of(dtype("ui32"), ())]


def _partition_id(frame: Frame, _: Op) -> Array:
    return np.asarray(frame.process.partition, np.uint32)


def _replica_id(frame: Frame, _: Op) -> Array:
    return np.asarray(frame.process.replica, np.uint32)


def _token_last(call: Call, label: str) -> None:
    types = [value.type for value in call.operands]
    call.require(
        bool(types) and types[-1] == TOKEN,
        label,
        "the last operand must be a token",
        expected="!stablehlo.token",
        got=types[-1:],
    )
    for i in range(len(types) - 1):
        call.shape(i)


def _check_channel(call: Call, host: int, label: str) -> None:
    want = host if call.attrs["is_host_transfer"] else DEVICE_TO_DEVICE
    have = call.attrs["channel_handle"].type
    call.require(have == want, label, "the channel's type does not fit is_host_transfer", expected=want, got=have)
    if "source_target_pairs" in call.attrs:
        _check_pairs(call, call.name.rpartition(".")[2])


def _infer_send(call: Call) -> Sequence[Type]:
    _token_last(call, "send_i2")
    _check_channel(call, DEVICE_TO_HOST, "send_c1")
    return [TOKEN]


def _received_types(call: Call, label: str) -> list[Type]:
    if call.declared is None:
        call.fail(label, "the result types cannot be inferred", expected="declared result types")
    call.require(len(call.declared) > 0, f"{label}1", "there must be a result")
    *tensors, token = call.declared
    call.require(token == TOKEN, f"{label}3", "the last result must be a token", expected="!stablehlo.token", got=token)
    types: list[Type] = []
    for type in tensors:
        if not isinstance(type, Shape):
            call.fail(f"{label}2", "all results but the last must be tensors", got=type)
        types.append(
            Shape.of(type.dtype, [call.scope.new_symbol() if size == UNKNOWN else size for size in type.sizes])
        )
    return [*types, TOKEN]


def _infer_recv(call: Call) -> Sequence[Type]:
    _token_last(call, "recv_i1")
    _check_channel(call, HOST_TO_DEVICE, "recv_c1")
    return _received_types(call, "recv_c")


def _infer_infeed(call: Call) -> Sequence[Type]:
    _token_last(call, "infeed_i1")
    types = _received_types(call, "infeed_c")
    layout = call.attrs.get("layout")
    if layout is not None and len(layout) != len(types) - 1:
        call.fail("", "layout needs one entry for each tensor", expected=len(types) - 1, got=len(layout))
    return types


def _infer_outfeed(call: Call) -> Sequence[Type]:
    _token_last(call, "outfeed_i2")
    return [TOKEN]


def post(process: Process, op: Op, payload: Any) -> Generator[Exchange, Any, None]:
    """Send on the channel, or on every route that starts at this process."""
    channel = _channel(op.attrs)
    if not op.attrs.get("source_target_pairs"):
        yield Send(channel, payload)
        return
    for source, target in _pairs(process, op):
        if source == process:
            yield Send((channel, source, target), payload)


def fetch(process: Process, op: Op) -> Generator[Exchange, Any, Any]:
    """What came on the channel, or on the route that ends at this process; None where no route does."""
    channel = _channel(op.attrs)
    if not op.attrs.get("source_target_pairs"):
        return (yield Receive(channel))
    for source, target in _pairs(process, op):
        if target == process:
            return (yield Receive((channel, source, target)))
    return None


def _send(frame: Frame, op: Op, *operands: Any) -> Steps:
    yield from post(frame.process, op, operands[:-1])
    return (None,)


def _recv(frame: Frame, op: Op, _token: None) -> Steps:
    payload = yield from fetch(frame.process, op)
    if payload is None:
        return (*(np.zeros(frame.shape(value.type), value.shape.dtype.numpy) for value in op.results[:-1]), None)
    return _receive(op, payload)


def _receive(op: Op, payload: Sequence[Any]) -> tuple[Any, ...]:
    types = [value.shape for value in op.results[:-1]]
    fits = len(types) == len(payload) and all(
        array.dtype == type.dtype.numpy
        and array.ndim == type.rank
        and (not type.is_static or array.shape == type.sizes)
        for type, array in zip(types, payload, strict=True)
    )
    if not fits:
        raise RunError(
            f"{op.name}: what came has another type", expected=types, got=[f"{a.dtype}{list(a.shape)}" for a in payload]
        )
    return (*payload, None)


def _infeed(frame: Frame, op: Op, _token: None) -> tuple[Any, ...]:
    if not frame.world.infeed:
        raise RunError(f"{op.name}: nothing is left in the queue", expected=[value.type for value in op.results[:-1]])
    return _receive(op, frame.world.infeed.popleft())


def _outfeed(frame: Frame, _op: Op, *operands: Any) -> tuple[None]:
    frame.world.outfeed.append(operands[:-1])
    return (None,)


def _row(name: str, operands: str, infer: Any, evaluate: Any, *attrs: Attr, regions: int = 0) -> OpDef:
    return OpDef(f"stablehlo.{name}", operands, infer, evaluate, attrs, regions, effect=True)


_DYNAMIC_ROOT = Attr("has_dynamic_root", UNIT, None)
_HOST = Attr("is_host_transfer", BOOL, False)
_ROUTES = Attr("source_target_pairs", PAIRS, None)

ROWS: list[OpDef] = [
    _row(
        "all_gather",
        "operands*",
        _infer_all_gather,
        _all_gather,
        Attr("all_gather_dim", INT),
        GROUPS,
        CHANNEL_HANDLE,
        GLOBAL_IDS,
    ),
    _row("all_reduce", "operands*", _infer_all_reduce, _all_reduce, GROUPS, CHANNEL_HANDLE, GLOBAL_IDS, regions=1),
    _row(
        "all_to_all",
        "operands*",
        _infer_all_to_all,
        _all_to_all,
        Attr("split_dimension", INT),
        Attr("concat_dimension", INT),
        Attr("split_count", INT),
        GROUPS,
        CHANNEL_HANDLE,
    ),
    _row(
        "reduce_scatter",
        "operand",
        _infer_reduce_scatter,
        _reduce_scatter,
        Attr("scatter_dimension", INT),
        GROUPS,
        CHANNEL_HANDLE,
        GLOBAL_IDS,
        regions=1,
    ),
    _row(
        "collective_reduce",
        "operands*",
        _infer_collective_reduce,
        _collective_reduce,
        GROUPS,
        CHANNEL_HANDLE,
        GLOBAL_IDS,
        _DYNAMIC_ROOT,
        regions=1,
    ),
    _row(
        "collective_broadcast",
        "operands*",
        _infer_broadcast,
        _collective_broadcast,
        GROUPS,
        CHANNEL_HANDLE,
        _DYNAMIC_ROOT,
    ),
    _row(
        "collective_permute",
        "operand",
        _infer_permute,
        _collective_permute,
        Attr("source_target_pairs", PAIRS),
        CHANNEL_HANDLE,
    ),
    _row("cross-replica-sum", "operand", _infer_sum, _cross_replica_sum, GROUPS),
    OpDef("stablehlo.partition_id", "", _infer_id, _partition_id),
    OpDef("stablehlo.replica_id", "", _infer_id, _replica_id),
    _row("send", "inputs* token", _infer_send, _send, Attr("channel_handle", CHANNEL), _HOST, _ROUTES),
    _row("recv", "token", _infer_recv, _recv, Attr("channel_handle", CHANNEL), _HOST, _ROUTES),
    _row("infeed", "token", _infer_infeed, _infeed, Attr("infeed_config", STRING, ""), Attr("layout", LIST, None)),
    _row("outfeed", "inputs* token", _infer_outfeed, _outfeed, Attr("outfeed_config", STRING, "")),
]
