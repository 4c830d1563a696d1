"""Collectives on small grids, against what NumPy says each process should get."""

from typing import Any

import numpy as np
import pytest

from smelt.errors import RunError, VerifyError
from smelt.ir.attributes import ChannelHandle
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Token, Type
from smelt.ir.interpret import World, run, run_grid
from smelt.ir.verify import verify
from smelt.shape import Shape

HANDLE = ChannelHandle(1, 0)


def adder(f, element="i64"):
    with f.region(Shape(element), Shape(element)) as r:
        r.result(r.add(*r.args))
    return [r.body]


def data(replicas, partitions, *shape):
    """A different array for every process, the same every time."""
    count = int(np.prod(shape))
    return [[np.arange(count).reshape(shape) + 100 * r + 1000 * p for p in range(partitions)] for r in range(replicas)]


def on_grid(func, inputs):
    verify(Program.of(func))
    world = World(Program.of(func), {})
    return run_grid(world, [[(func, (x,)) for x in row] for row in inputs])


def unary(name, shape, result=None, region=False, **attrs):
    f = FuncBuilder("main", [Shape("i64", *shape)])
    regions = adder(f) if region else ()
    return f.func(f.op(f"stablehlo.{name}", f.args[0], result=result, regions=regions, **attrs).result)


# ---- groups: the four strategies ----


def test_cross_replica():
    x = data(4, 2, 3)
    got = on_grid(unary("all_reduce", (3,), region=True, replica_groups=((0, 2), (1, 3))), x)
    for r in range(4):
        for p in range(2):
            assert got[r][p][0].tolist() == (x[r % 2][p] + x[r % 2 + 2][p]).tolist()


def test_cross_replica_and_partition_goes_by_partition_first():
    x = data(2, 2, 1)
    func = unary("all_gather", (1,), Shape("i64", 4), all_gather_dim=0, replica_groups=((1, 0),), channel_handle=HANDLE)
    got = on_grid(func, x)
    want = np.concatenate([x[1][0], x[0][0], x[1][1], x[0][1]]).tolist()
    assert all(got[r][p][0].tolist() == want for r in range(2) for p in range(2))


def test_flattened_ids():
    x = data(2, 2, 1)
    keywords = {"replica_groups": ((0, 3), (2, 1)), "channel_handle": HANDLE, "use_global_device_ids": True}
    got = on_grid(unary("all_gather", (1,), all_gather_dim=0, **keywords), x)
    flat = [x[0][0], x[0][1], x[1][0], x[1][1]]
    for me, (a, b) in enumerate([(0, 3), (2, 1), (2, 1), (0, 3)]):
        assert got[me // 2][me % 2][0].tolist() == np.concatenate([flat[a], flat[b]]).tolist()


def test_cross_partition():
    x = data(2, 3, 2)
    got = on_grid(unary("collective_broadcast", (2,), replica_groups=((2, 0),), channel_handle=HANDLE), x)
    for r in range(2):
        assert got[r][0][0].tolist() == x[r][2].tolist()
        assert got[r][2][0].tolist() == x[r][2].tolist()
        assert got[r][1][0].tolist() == [0, 0]


def test_padded_groups():
    x = data(3, 1, 2)
    got = on_grid(unary("all_reduce", (2,), region=True, replica_groups=((0, 2), (1, -1))), x)
    assert got[0][0][0].tolist() == got[2][0][0].tolist() == (x[0][0] + x[2][0]).tolist()
    assert got[1][0][0].tolist() == x[1][0].tolist()


# ---- each op ----


@pytest.mark.parametrize("dim", [0, 1])
def test_all_gather(dim):
    x = data(3, 1, 2, 4)
    got = on_grid(unary("all_gather", (2, 4), all_gather_dim=dim, replica_groups=((2, 0, 1),)), x)
    want = np.concatenate([x[2][0], x[0][0], x[1][0]], dim)
    assert all(np.array_equal(row[0][0], want) for row in got)


@pytest.mark.parametrize(("split", "concat"), [(0, 1), (1, 0), (1, 1)])
def test_all_to_all(split, concat):
    x = data(2, 1, 4, 6)
    attrs = {"split_dimension": split, "concat_dimension": concat, "split_count": 2, "replica_groups": ((1, 0),)}
    got = on_grid(unary("all_to_all", (4, 6), **attrs), x)
    for place, replica in enumerate((1, 0)):
        parts = [np.split(x[r][0], 2, split)[place] for r in (1, 0)]
        assert np.array_equal(got[replica][0][0], np.concatenate(parts, concat))


def test_reduce_scatter():
    x = data(2, 1, 2, 4)
    got = on_grid(unary("reduce_scatter", (2, 4), region=True, scatter_dimension=1, replica_groups=((0, 1),)), x)
    total = x[0][0] + x[1][0]
    assert np.array_equal(got[0][0][0], total[:, :2])
    assert np.array_equal(got[1][0][0], total[:, 2:])


def test_collective_permute():
    x = data(4, 1, 2)
    got = on_grid(unary("collective_permute", (2,), source_target_pairs=((0, 1), (1, 2), (2, 0))), x)
    assert [row[0][0].tolist() for row in got] == [x[2][0].tolist(), x[0][0].tolist(), x[1][0].tolist(), [0, 0]]


def test_collective_reduce_fills_the_root_only():
    x = data(3, 1, 2)
    got = on_grid(unary("collective_reduce", (2,), region=True, replica_groups=((2, 0),)), x)
    assert [row[0][0].tolist() for row in got] == [[0, 0], [0, 0], (x[0][0] + x[2][0]).tolist()]


def test_cross_replica_sum():
    x = data(2, 1, 2)
    got = on_grid(unary("cross-replica-sum", (2,), replica_groups=((0, 1),)), x)
    assert all(row[0][0].tolist() == (x[0][0] + x[1][0]).tolist() for row in got)


def test_ids():
    f = FuncBuilder("main", [])
    func = f.func(f.replica_id(), f.partition_id())
    got = run_grid(World(Program.of(func), {}), [[(func, ())] * 3] * 2)
    assert [[tuple(map(int, cell)) for cell in row] for row in got] == [[(r, p) for p in range(3)] for r in range(2)]
    assert got[0][0][0].dtype == np.uint32


def test_all_reduce_in_a_wider_type():
    f = FuncBuilder("main", [Shape("f16", 2)])
    op = f.op("stablehlo.all_reduce", f.args[0], regions=adder(f, "f32"), replica_groups=((0, 1),))
    assert op.result.type == Shape("f32", 2)
    func = f.func(op.result)
    x = np.array([60000, 1], np.float16)
    got = run_grid(World(Program.of(func), {}), [[(func, (x,))], [(func, (x,))]])
    assert got[1][0][0].tolist() == [2 * float(x[0]), 2.0]


def test_the_group_decides_the_order_of_a_reduction():
    f = FuncBuilder("main", [Shape("i64")])
    with f.region(Shape("i64"), Shape("i64")) as r:
        r.result(r.subtract(*r.args))
    func = f.func(f.op("stablehlo.all_reduce", f.args[0], regions=[r.body], replica_groups=((2, 0, 1),)).result)
    inputs = [[np.array(v, np.int64)] for v in (1, 10, 100)]
    got = on_grid(func, inputs)
    assert [int(row[0][0]) for row in got] == [100 - 1 - 10] * 3


def test_a_collective_inside_control_flow():
    f = FuncBuilder("main", [Shape("i64")])
    with f.region() as yes:
        out = yes.op("stablehlo.all_reduce", f.args[0], regions=adder(f), replica_groups=((0, 1),)).result
        yes.result(out)
    with f.region() as no:
        no.result(f.args[0])
    pred = f.compare(f.args[0], f.constant(50, "i64"), comparison_direction="LT")
    func = f.func(f.op("stablehlo.if", pred, regions=(yes.body, no.body)).result)
    got = on_grid(func, [[np.array(3, np.int64)], [np.array(4, np.int64)]])
    assert [int(row[0][0]) for row in got] == [7, 7]
    with pytest.raises(RunError, match="wait"):
        on_grid(func, [[np.array(3, np.int64)], [np.array(64, np.int64)]])


# ---- channels and feeds ----


def test_send_and_receive_keep_their_order():
    s = FuncBuilder("send", [Shape("i64", 2), Token()])
    channel = ChannelHandle(7, 1)
    x, token = s.args
    for value in (x, s.add(x, x)):
        token = s.op("stablehlo.send", value, token, channel_handle=channel).result
    sender = s.func(token)
    r = FuncBuilder("recv", [Token()])
    types: list[Type] = [Shape("i64", 2), Token()]
    a, token = r.op("stablehlo.recv", r.args[0], channel_handle=channel, result=types).results
    b, _ = r.op("stablehlo.recv", token, channel_handle=channel, result=types).results
    receiver = r.func(a, b)
    program = Program.of(sender, receiver)
    verify(program)
    got = run_grid(World(program, {}), [[(receiver, (None,))], [(sender, (np.array([1, 2], np.int64), None))]])
    assert [x.tolist() for x in got[0][0]] == [[1, 2], [2, 4]]
    with pytest.raises(RunError, match="receives on"):
        run_grid(World(program, {}), [[(receiver, (None,))]])


def test_routed_send_and_receive():
    f = FuncBuilder("main", [Shape("i64"), Token()])
    keywords: dict[str, Any] = {"channel_handle": ChannelHandle(0, 1), "source_target_pairs": ((0, 1), (1, 2))}
    f.op("stablehlo.send", *f.args, **keywords)
    got = f.op("stablehlo.recv", f.args[1], **keywords, result=[Shape("i64"), Token()]).results[0]
    func = f.func(got)
    verify(Program.of(func))
    rows = [[(func, (np.array(10 + i, np.int64), None))] for i in range(3)]
    assert [int(row[0][0]) for row in run_grid(World(Program.of(func), {}), rows)] == [0, 10, 11]


def test_channels_must_fit_the_transfer():
    f = FuncBuilder("main", [Shape("i64"), Token()])
    for kind, host in ((2, False), (3, True), (1, True)):
        with pytest.raises(VerifyError, match="send_c1"):
            f.op("stablehlo.send", *f.args, channel_handle=ChannelHandle(1, kind), is_host_transfer=host)
    with pytest.raises(VerifyError, match="recv_c"):
        f.op("stablehlo.recv", f.args[1], channel_handle=ChannelHandle(1, 1), result=[Shape("i64")])


def test_infeed_and_outfeed():
    q = FuncBuilder("queue", [])
    queue = q.func(q.constant(np.array([1, 2], np.int64)))
    g = FuncBuilder("feed", [Token()])
    x, token = g.op("stablehlo.infeed", g.args[0], result=[Shape("i64", 2), Token()]).results
    feed = g.func(x, g.op("stablehlo.outfeed", x, token).result)
    f = FuncBuilder("main", [])
    f.signatures.update(queue=queue.type, feed=feed.type)
    token = f.op("stablehlo.after_all").result
    out = f.op("interpreter.run_parallel", token, programs=(("feed",),), infeed=("queue",)).results
    program = Program.of(f.func(out[0]), feed, queue)
    verify(program)
    assert run(program)[0].tolist() == [1, 2]
    world = World(program, {})
    run_grid(world, [[(program.main, ())]])
    assert world.outfeed[0][0].tolist() == [1, 2]
    with pytest.raises(RunError, match="queue"):
        run(program, [None], func="feed")


def test_run_parallel_lays_out_arguments_and_results_row_by_row():
    g = FuncBuilder("g", [Shape("i64")])
    id_sum = g.add(g.convert(g.replica_id(), result=Shape("i64")), g.args[0])
    g_func = g.func(id_sum)
    h = FuncBuilder("h", [])
    h_func = h.func(h.partition_id(), h.replica_id())
    f = FuncBuilder("main", [Shape("i64"), Shape("i64")])
    f.signatures.update(g=g_func.type, h=h_func.type)
    op = f.op("interpreter.run_parallel", *f.args, programs=(("g", "h"), ("h", "g")))
    program = Program.of(f.func(*op.results), g_func, h_func)
    verify(program)
    got = run(program, [np.array(10, np.int64), np.array(20, np.int64)])
    assert [int(x) for x in got] == [10, 1, 0, 0, 1, 21]
    for programs in ((), ((),), (("g",), ("g", "g")), (("missing", "g"),), (("g",),), (("g", "g", "g"),)):
        with pytest.raises(VerifyError):
            f.op("interpreter.run_parallel", *f.args, programs=programs)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("all_gather", {"all_gather_dim": 2, "replica_groups": ((0, 1),)}),
        ("all_gather", {"all_gather_dim": -1, "replica_groups": ((0, 1),)}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": ((0, 0),)}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": ((0, 2),)}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": ((0, -1),)}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": ()}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": ((),)}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": ((0, 1),), "use_global_device_ids": True}),
        ("all_gather", {"all_gather_dim": 0, "replica_groups": ((0, 1),), "channel_handle": HANDLE}),
        ("all_to_all", {"split_dimension": 0, "concat_dimension": 1, "split_count": 3, "replica_groups": ((0, 1, 2),)}),
        ("all_to_all", {"split_dimension": 0, "concat_dimension": 1, "split_count": 0, "replica_groups": ((0, 1),)}),
        ("all_to_all", {"split_dimension": 0, "concat_dimension": 1, "split_count": 2, "replica_groups": ((0,),)}),
        ("all_to_all", {"split_dimension": 9, "concat_dimension": 1, "split_count": 2, "replica_groups": ((0, 1),)}),
        ("collective_broadcast", {"replica_groups": ((1, 1),)}),
        ("collective_broadcast", {"replica_groups": ((-1,),)}),
        ("collective_broadcast", {"replica_groups": ((0,),), "has_dynamic_root": True}),
        ("collective_permute", {"source_target_pairs": ((0, 1), (0, 2))}),
        ("collective_permute", {"source_target_pairs": ((0, 1), (2, 1))}),
        ("collective_permute", {"source_target_pairs": ((0, -1),)}),
        ("collective_permute", {"source_target_pairs": ((0, 1, 2),)}),
        ("reduce_scatter", {"scatter_dimension": 0, "replica_groups": ((0, 1, 2),)}),
        ("reduce_scatter", {"scatter_dimension": 7, "replica_groups": ((0, 1),)}),
        ("all_reduce", {"replica_groups": ((0, -2),)}),
    ],
)
def test_constraints(name, attrs):
    f = FuncBuilder("main", [Shape("i64", 4, 4)])
    regions = adder(f) if name in ("reduce_scatter", "all_reduce") else ()
    with pytest.raises(VerifyError):
        f.op(f"stablehlo.{name}", f.args[0], regions=regions, **attrs)


def test_the_computation_must_fit():
    f = FuncBuilder("main", [Shape("f32", 4)])
    for element in ("f16", "i32", "f64"):
        try:
            made = f.op("stablehlo.all_reduce", f.args[0], regions=adder(f, element), replica_groups=((0,),))
        except VerifyError:
            assert element != "f64"
        else:
            assert made.result.type == Shape("f64", 4)
    with f.region(Shape("f32"), Shape("f32")) as r:
        r.result()
    with pytest.raises(VerifyError):
        f.op("stablehlo.all_reduce", f.args[0], regions=[r.body], replica_groups=((0,),))


def test_groups_must_exist_on_the_grid():
    func = unary("all_reduce", (2,), region=True, replica_groups=((0, 1),))
    with pytest.raises(RunError, match="does not exist"):
        on_grid(func, data(1, 1, 2))
    with pytest.raises(RunError, match="no group"):
        on_grid(func, data(3, 1, 2))


def test_a_group_that_gives_another_size_is_an_error():
    func = unary("all_gather", (1,), Shape("i64", 6), all_gather_dim=0, replica_groups=((0,),), channel_handle=HANDLE)
    with pytest.raises(RunError, match="declared"):
        on_grid(func, data(1, 2, 1))


@pytest.mark.parametrize(
    "name",
    [
        "all_gather",
        "all_reduce",
        "all_to_all",
        "reduce_scatter",
        "collective_reduce",
        "collective_broadcast",
        "send",
        "recv",
    ],
)
def test_tokens_instead_of_tensors_raise_our_own_errors(name):
    f = FuncBuilder("main", [Token()])
    attrs: dict[str, Any] = {
        "replica_groups": ((0,),),
        "all_gather_dim": 0,
        "split_dimension": 0,
        "concat_dimension": 0,
        "split_count": 1,
    }
    attrs |= {"scatter_dimension": 0, "channel_handle": ChannelHandle(1, 2)}
    for operands in ([], [f.args[0]], [f.args[0]] * 2):
        refusal = "must be a tensor|there must be an operand|wrong number of operands|the channel's type"
        with pytest.raises(VerifyError, match=f"stablehlo.{name}: .*({refusal})"):
            f.op(f"stablehlo.{name}", *operands, regions=adder(f) if "reduce" in name else (), **attrs)
