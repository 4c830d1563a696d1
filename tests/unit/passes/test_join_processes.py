"""SPMD processes merged into one program: each gets, bit for bit, its results on the grid of the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.engine.native import NativeEngine
from smelt.errors import RunError, SmeltError, UnsupportedError
from smelt.ir.attributes import ChannelHandle
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Func, Program, Region, Token, Type, Value, walk
from smelt.ir.interpret import World, run, run_grid
from smelt.ir.text import parse
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.join_processes import RULES, join_processes
from smelt.shape import Shape
from smelt.target import BASELINE

CHANNEL = ChannelHandle(1, 0)
PEERS = ChannelHandle(3, 1)
GRID = (("p", "p"), ("p", "p"))

Recipe = Callable[[FuncBuilder], Sequence[Value]]


# ---- programs on a grid ----


def on_grid(func: Func, programs: Sequence[Sequence[str]] = GRID, **others: Func) -> Program:
    """A program whose main starts the processes with arguments of its own."""
    funcs = {func.name: func, **others}
    types = [arg.type for row in programs for name in row for arg in funcs[name].args]
    main = FuncBuilder("main", [type for type in types if isinstance(type, Shape)])
    main.signatures.update({name: each.type for name, each in funcs.items()})
    given = iter(main.args)
    token: Value = main.after_all()
    operands = [next(given) if isinstance(type, Shape) else token for type in types]
    started = main.op("interpreter.run_parallel", *operands, programs=tuple(map(tuple, programs)))
    results = [value for value in started.results if isinstance(value.type, Shape)]
    program = Program.of(main.func(*results), *funcs.values())
    verify(program)
    return program


def process(shapes: Sequence[Type], recipe: Recipe, name: str = "p") -> Func:
    f = FuncBuilder(name, shapes)
    return f.func(*recipe(f), visibility="private")


def inputs(program: Program, seed: int, sizes: dict[str, int] | None = None) -> list[Array]:
    random = np.random.default_rng(seed)
    arrays = []
    for arg in program.main.args:
        numbers = random.integers(-40, 40, arg.shape.numbers(sizes or {}))
        scaled = numbers if arg.shape.dtype.kind == "int" else numbers * 0.37 + random.random(numbers.shape)
        arrays.append(np.asarray(scaled).astype(arg.shape.dtype.numpy))
    return arrays


def joined(program: Program) -> Program:
    made = join_processes(program)
    verify(made)
    left = {op.name for func in made.funcs.values() for op in walk(func.body)}
    assert not left & {*RULES, "interpreter.run_parallel", "func.call", "stablehlo.replica_id"}
    return made


def check(program: Program, arrays: Sequence[Array]) -> list[Array]:
    want = run(program, arrays)
    got = run(joined(program), arrays)
    assert len(want) == len(got) > 0
    for a, b in zip(want, got, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return list(want)


# ---- each collective ----


def body(b: Builder, element: str, name: str = "add") -> list[Region]:
    with b.region(Shape(element), Shape(element)) as r:
        x, y = r.args
        r.result(r.subtract(r.multiply(x, r.constant(2, element)), y) if name == "uneven" else r.op(name, x, y).result)
    return [r.body]


def reducing(name: str, element: str, body_name: str, result: Shape | None = None, **attrs: Any) -> Recipe:
    def recipe(f: FuncBuilder) -> Sequence[Value]:
        x = f.add(f.args[0], f.args[0])
        regions = body(f, element, body_name)
        return f.op(f"stablehlo.{name}", x, *f.args[1:], regions=regions, result=result, **attrs).results

    return recipe


def plain(name: str, result: Shape | None = None, **attrs: Any) -> Recipe:
    return lambda f: f.op(f"stablehlo.{name}", *f.args, result=result, **attrs).results


BOTH = ((0, 1),)
SWAPPED = ((1, 0),)
ALONE = ((0,), (1,))
EVERY = ((2, 0, 3, 1),)
F32 = Shape("f32", 4, 2)
GLOBAL = {"channel_handle": CHANNEL, "use_global_device_ids": True}
WIDE: list[dict[str, Any]] = [
    {"replica_groups": SWAPPED},
    {"replica_groups": ALONE},
    {"replica_groups": SWAPPED, "channel_handle": CHANNEL},
    {"replica_groups": EVERY, **GLOBAL},
    {"replica_groups": ((3, 0), (1, 2)), **GLOBAL},
]
NARROW: list[dict[str, Any]] = [{"replica_groups": SWAPPED}, {"replica_groups": BOTH, "channel_handle": CHANNEL}]
ROOTS = Shape("i32", 1)


def members(attrs: dict[str, Any]) -> int:
    """How many processes of the 2 x 2 grid form a group."""
    times = 2 if "channel_handle" in attrs and "use_global_device_ids" not in attrs else 1
    return len(attrs["replica_groups"][0]) * times


@pytest.mark.parametrize("attrs", WIDE)
@pytest.mark.parametrize("element", ["f32", "bf16", "i8", "complex<f32>"])
def test_reductions_follow_the_order_of_the_group(attrs: dict[str, Any], element: str, seed: int) -> None:
    shape = Shape(element, 4, 2)
    for name in ("stablehlo.add", "uneven"):
        program = on_grid(process([shape], reducing("all_reduce", element, name, **attrs)))
        check(program, inputs(program, seed))
        part = Shape(element, 4 // members(attrs), 2)
        program = on_grid(
            process([shape], reducing("reduce_scatter", element, name, part, scatter_dimension=0, **attrs))
        )
        check(program, inputs(program, seed))
        program = on_grid(process([shape], reducing("collective_reduce", element, name, **attrs)))
        check(program, inputs(program, seed))


@pytest.mark.parametrize("attrs", WIDE)
def test_all_gather(attrs: dict[str, Any], seed: int) -> None:
    result = Shape("f32", 4, 2 * members(attrs))
    program = on_grid(process([F32], plain("all_gather", result, all_gather_dim=1, **attrs)))
    check(program, inputs(program, seed))


@pytest.mark.parametrize("attrs", NARROW)
@pytest.mark.parametrize(("split", "concat"), [(0, 1), (1, 0), (0, 0)])
def test_all_to_all(attrs: dict[str, Any], split: int, concat: int, seed: int) -> None:
    recipe = plain("all_to_all", split_dimension=split, concat_dimension=concat, split_count=2, **attrs)
    program = on_grid(process([F32], recipe))
    check(program, inputs(program, seed))


@pytest.mark.parametrize("attrs", [*NARROW, {"replica_groups": ((1,),)}])
def test_collective_broadcast(attrs: dict[str, Any], seed: int) -> None:
    program = on_grid(process([F32], plain("collective_broadcast", **attrs)))
    check(program, inputs(program, seed))


@pytest.mark.parametrize("root", [0, 1])
def test_run_time_roots(root: int, seed: int) -> None:
    attrs: dict[str, Any] = {"replica_groups": SWAPPED, "has_dynamic_root": True}
    recipes = [plain("collective_broadcast", **attrs), reducing("collective_reduce", "f32", "uneven", **attrs)]
    for recipe in recipes:
        program = on_grid(process([F32, ROOTS], recipe))
        arrays = [np.array([root], np.int32) if x.dtype == np.int32 else x for x in inputs(program, seed)]
        check(program, arrays)


@pytest.mark.parametrize("channel", [None, CHANNEL])
@pytest.mark.parametrize("pairs", [((0, 1),), ((0, 1), (1, 0)), ((1, 1),), ()])
def test_collective_permute(channel: ChannelHandle | None, pairs: Any, seed: int) -> None:
    program = on_grid(process([F32], plain("collective_permute", source_target_pairs=pairs, channel_handle=channel)))
    check(program, inputs(program, seed))


@pytest.mark.parametrize("element", ["f16", "bf16", "i8", "f8E4M3FN"])
def test_cross_replica_sum(element: str, seed: int) -> None:
    program = on_grid(process([Shape(element, 5)], plain("cross-replica-sum", replica_groups=SWAPPED)))
    check(program, inputs(program, seed))


def test_elements_are_promoted(seed: int) -> None:
    result = Shape("f32", 4)
    recipe = reducing("all_reduce", "f32", "stablehlo.add", result, replica_groups=BOTH)
    program = on_grid(process([Shape("bf16", 4)], recipe))
    check(program, inputs(program, seed))


def test_reduction_body_without_an_elementwise_op(seed: int) -> None:
    """A branch inside the computation: it is taken for each element on its own."""

    def recipe(f: FuncBuilder) -> Sequence[Value]:
        with f.region(Shape("f32"), Shape("f32")) as r:
            branches = []
            for value in r.args:
                with r.region() as inner:
                    branches.append(inner.result(value))
            less = r.compare(*r.args, comparison_direction="LT")
            r.result(r.op("stablehlo.if", less, regions=branches).result)
        return f.op("stablehlo.all_reduce", f.args[0], regions=[r.body], replica_groups=BOTH).results

    program = on_grid(process([F32], recipe))
    x = inputs(program, seed)
    np.testing.assert_array_equal(check(program, x)[0], np.minimum(x[0], x[2]))


# ---- places, channels, queues ----


def test_process_ids_inside_regions(seed: int) -> None:
    def recipe(f: FuncBuilder) -> Sequence[Value]:
        branches = []
        for name in ("replica_id", "partition_id"):
            with f.region() as r:
                branches.append(r.result(r.op(f"stablehlo.{name}").result))
        first = f.compare(f.args[0], f.constant(0.0, "f32"), comparison_direction="LT")
        return [f.op("stablehlo.if", first, regions=branches).result, f.replica_id(), f.partition_id()]

    program = on_grid(process([Shape("f32")], recipe))
    check(program, inputs(program, seed))


def test_values_arrive_in_order(seed: int) -> None:
    def sending(f: FuncBuilder) -> Sequence[Value]:
        token = f.op("stablehlo.send", *f.args, channel_handle=PEERS).result
        return [f.op("stablehlo.send", f.negate(f.args[0]), token, channel_handle=PEERS).result]

    def receiving(f: FuncBuilder) -> Sequence[Value]:
        types: list[Type] = [F32, Token()]
        a, token = f.op("stablehlo.recv", f.args[0], channel_handle=PEERS, result=types).results
        b, _ = f.op("stablehlo.recv", token, channel_handle=PEERS, result=types).results
        return [f.subtract(a, b), b]

    sender, receiver = process([F32, Token()], sending, "s"), process([Token()], receiving, "r")
    program = on_grid(receiver, (("r",), ("s",)), s=sender)
    check(program, inputs(program, seed))


def test_routes_between_processes(seed: int) -> None:
    keywords: dict[str, Any] = {"channel_handle": ChannelHandle(0, 1), "source_target_pairs": ((0, 1), (1, 2))}

    def recipe(f: FuncBuilder) -> Sequence[Value]:
        token = f.op("stablehlo.send", *f.args, **keywords).result
        return f.op("stablehlo.recv", token, **keywords, result=[F32, Token()]).results

    program = on_grid(process([F32, Token()], recipe), (("p",), ("p",), ("p",)))
    check(program, inputs(program, seed))


QUEUES = """
func.func @main() -> (tensor<2xi64>, tensor<2xi64>) {
  %token = stablehlo.after_all : !stablehlo.token
  %0:4 = "interpreter.run_parallel"(%token, %token) {infeed = [@first, @second], programs = [[@feed, @feed]]}
    : (!stablehlo.token, !stablehlo.token) -> (tensor<2xi64>, !stablehlo.token, tensor<2xi64>, !stablehlo.token)
  return %0#0, %0#2 : tensor<2xi64>, tensor<2xi64>
}
func.func private @feed(%token: !stablehlo.token) -> (tensor<2xi64>, !stablehlo.token) {
  %0:2 = "stablehlo.infeed"(%token) : (!stablehlo.token) -> (tensor<2xi64>, !stablehlo.token)
  %1 = stablehlo.add %0#0, %0#0 : tensor<2xi64>
  %2 = "stablehlo.outfeed"(%1, %0#1) : (tensor<2xi64>, !stablehlo.token) -> !stablehlo.token
  return %0#0, %2 : tensor<2xi64>, !stablehlo.token
}
func.func private @first() -> tensor<2xi64> {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
  return %0 : tensor<2xi64>
}
func.func private @second() -> tensor<2xi64> {
  %0 = stablehlo.constant dense<[3, 4]> : tensor<2xi64>
  return %0 : tensor<2xi64>
}
"""


def test_queues_are_shared_by_all_processes() -> None:
    program = parse(QUEUES)
    assert [x.tolist() for x in check(program, [])] == [[1, 2], [3, 4]]
    world = World(joined(program), {})
    run_grid(world, [[(world.program.main, ())]])
    assert [fed[0].tolist() for fed in world.outfeed] == [[2, 4], [6, 8]]
    with pytest.raises(RunError, match="nothing is left in the queue"):
        join_processes(parse(QUEUES.replace("[@first, @second]", "[@first]")))


# ---- whole programs ----

LAYERS = """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>, %c: tensor<2x3xf32>, %d: tensor<3x4xf32>)
    -> (tensor<2x8xf32>, tensor<2x8xf32>) {
  %0:2 = "interpreter.run_parallel"(%a, %b, %c, %d) {programs = [[@layer], [@layer]]}
    : (tensor<2x3xf32>, tensor<3x4xf32>, tensor<2x3xf32>, tensor<3x4xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>)
  return %0#0, %0#1 : tensor<2x8xf32>, tensor<2x8xf32>
}
func.func private @layer(%x: tensor<2x3xf32>, %w: tensor<3x4xf32>) -> tensor<2x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  %1 = func.call @total(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %future = "stablehlo.async_start"(%1) ({
  ^bb0(%y: tensor<2x4xf32>):
    %4 = "stablehlo.all_gather"(%y) {all_gather_dim = 1 : i64, replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>}
      : (tensor<2x4xf32>) -> tensor<2x8xf32>
    stablehlo.return %4 : tensor<2x8xf32>
  }) : (tensor<2x4xf32>) -> !stablehlo.future<tensor<2x8xf32>>
  %2 = "stablehlo.async_done"(%future) : (!stablehlo.future<tensor<2x8xf32>>) -> tensor<2x8xf32>
  %3 = stablehlo.tanh %2 : tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
func.func private @total(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = "stablehlo.all_reduce"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
"""


def test_calls_and_asynchronous_regions(seed: int) -> None:
    program = parse(LAYERS)
    verify(program)
    check(program, inputs(program, seed))


def test_dynamic_sizes(seed: int) -> None:
    program = parse(LAYERS.replace("<2x", "<?x"))
    verify(program)
    rows = {name: 5 for arg in program.main.args for name in arg.shape.symbols}
    check(program, inputs(program, seed, rows))


def test_nested_grids() -> None:
    inner = process([], lambda f: [f.replica_id(), f.partition_id()], "inner")
    outer = FuncBuilder("p", [])
    outer.signatures["inner"] = inner.type
    made = outer.op("interpreter.run_parallel", programs=(("inner",), ("inner",))).results
    program = on_grid(outer.func(*made, outer.partition_id(), visibility="private"), inner=inner)
    check(program, [])


# ---- the native engine ----


NATIVE: list[tuple[Shape, Recipe]] = [
    (Shape("i64", 4, 2), reducing("all_reduce", "i64", "uneven", replica_groups=SWAPPED)),
    (F32, reducing("all_reduce", "f32", "uneven", **WIDE[3])),
    (F32, plain("all_gather", Shape("f32", 4, 8), all_gather_dim=1, **WIDE[2])),
    (F32, plain("all_to_all", split_dimension=0, concat_dimension=1, split_count=2, **NARROW[1])),
    (F32, reducing("reduce_scatter", "f32", "uneven", Shape("f32", 2, 2), scatter_dimension=0, replica_groups=BOTH)),
    (F32, plain("collective_permute", source_target_pairs=((0, 1),))),
    (F32, plain("collective_broadcast", replica_groups=SWAPPED)),
]


@pytest.mark.parametrize("which", range(len(NATIVE)))
def test_kernels_run_joined_processes(which: int, seed: int) -> None:
    shape, recipe = NATIVE[which]
    program = on_grid(process([shape], recipe))
    arrays = inputs(program, seed)
    for a, b in zip(run(program, arrays), NativeEngine().compile(program)(*arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_engines_of_one_process_join() -> None:
    assert "join_processes" in [each.name for each in pipeline.passes(target=BASELINE)]
    assert "join_processes" not in [each.name for each in pipeline.passes()]


# ---- what is refused ----


def refuse(program: Program, error: type[SmeltError], match: str) -> None:
    with pytest.raises(error, match=match):
        join_processes(program)


def test_deadlock() -> None:
    """The same words at compile time as on the grid."""

    def waiting(handle: int) -> Recipe:
        return lambda f: (
            f.op(
                "stablehlo.all_gather",
                f.args[0],
                all_gather_dim=0,
                replica_groups=BOTH,
                channel_handle=ChannelHandle(handle, 0),
                use_global_device_ids=True,
            ).results
        )

    program = on_grid(process([F32], waiting(1)), (("p",), ("q",)), q=process([F32], waiting(2), "q"))
    words = "the processes wait for each other"
    refuse(program, RunError, words)
    with pytest.raises(RunError, match=words):
        run(program, inputs(program, 0))


def test_members_with_different_types() -> None:
    recipe = plain("collective_broadcast", replica_groups=BOTH)
    other = process([Shape("f32", 3)], recipe, "q")
    program = on_grid(process([F32], recipe), (("p",), ("q",)), q=other)
    refuse(program, RunError, "different types")
    with pytest.raises(RunError, match="different types"):
        run(program, inputs(program, 0))


def test_a_group_of_another_size_than_declared() -> None:
    recipe = plain("all_gather", Shape("f32", 8, 2), all_gather_dim=0, replica_groups=BOTH, channel_handle=CHANNEL)
    program = on_grid(process([F32], recipe))
    refuse(program, RunError, "declared size")
    with pytest.raises(RunError, match="declared size"):
        run(program, inputs(program, 0))


def test_a_process_outside_of_all_groups() -> None:
    program = on_grid(process([F32], plain("all_gather", all_gather_dim=0, replica_groups=((0,),))))
    refuse(program, RunError, "in no group")


def test_collectives_inside_control_flow_are_refused_by_name() -> None:
    def recipe(f: FuncBuilder) -> Sequence[Value]:
        branches = []
        for _ in range(2):
            with f.region() as r:
                branches.append(
                    r.result(r.op("stablehlo.all_gather", f.args[0], all_gather_dim=0, replica_groups=BOTH).result)
                )
        return [f.op("stablehlo.if", f.constant(True, dtype("i1")), regions=branches).result]

    refuse(on_grid(process([F32], recipe)), UnsupportedError, "all_gather inside stablehlo.if")
