"""NHWC layout: convolutions of every kind, and the ops after them, keep their results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.device.registry import find_device
from smelt.dtype import dtype
from smelt.engine import engines
from smelt.ir.attributes import ConvDims, GatherDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Op, Program, Value, walk
from smelt.ir.interpret import run
from smelt.ir.rewrite import Edit
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.channels_last import channels_last, channels_last_dims
from smelt.read.onnx.model import read
from smelt.shape import Shape
from tests.onnx_oracle import session

FIRST = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))


def changed(program: Program) -> Program:
    after = pipeline.per_function(channels_last)(program)
    verify(after)
    return after


def convolution(random: np.random.Generator) -> tuple[Program, list[np.ndarray]]:
    """A convolution with random strides, padding (perhaps negative), dilations of both sides and groups."""
    groups = int(random.choice([1, 1, 2]))
    channels, features = groups * int(random.integers(1, 4)), groups * int(random.integers(1, 4))
    window = tuple(int(n) for n in random.integers(1, 5, 2))
    images = (int(random.integers(1, 3)), channels, *(int(n) for n in random.integers(3, 8, 2)))
    kernel = (features, channels // groups, *window)
    attrs: dict[str, Any] = {
        "window_strides": tuple(int(n) for n in random.integers(1, 3, 2)) if random.random() < 0.5 else (1, 1),
        "rhs_dilation": tuple(int(n) for n in random.integers(1, 3, 2)) if random.random() < 0.3 else (1, 1),
        "lhs_dilation": tuple(int(n) for n in random.integers(1, 4, 2)),
        "padding": tuple((int(random.integers(-1, 5)), int(random.integers(-1, 5))) for _ in range(2)),
        "window_reversal": tuple(bool(n) for n in random.integers(0, 2, 2)),
    }
    f = FuncBuilder("main", [Shape("f32", *images), Shape("f32", *kernel)])
    made = f.convolution(*f.args, dimension_numbers=FIRST, feature_group_count=groups, batch_group_count=1, **attrs)
    whole = [random.integers(-4, 5, shape).astype(np.float32) for shape in (images, kernel)]
    return Program.of(f.func(made)), whole


@pytest.mark.parametrize("number", range(60))
def test_convolutions_keep_their_results(number: int, seed: int) -> None:
    random = np.random.default_rng([seed, number])
    program, inputs = convolution(random)
    after = changed(program)
    dims = [op.attrs["dimension_numbers"] for op in walk(after.main.body) if op.name == "stablehlo.convolution"]
    assert dims == [channels_last_dims(4)]
    np.testing.assert_array_equal(run(after, inputs)[0], run(program, inputs)[0])


@pytest.mark.parametrize("element", ["f32", "bf16", "i8", "f64"])
@pytest.mark.parametrize("size", [3, "s"], ids=str)
def test_padding_may_take_away_more_than_there_is(size: int | str, element: str) -> None:
    """The window then has no positions; a `pad` by as much would be rejected."""
    f = FuncBuilder("main", [Shape(element, 1, 2, size, 6), Shape(element, 4, 2, 2, 3)])
    made = f.convolution(
        *f.args,
        dimension_numbers=FIRST,
        feature_group_count=1,
        batch_group_count=1,
        padding=((-2, -3), (1, -2)),
        lhs_dilation=(2, 1) if size == "s" else (1, 1),
    )
    program = Program.of(f.func(made))
    engine = next(engine for engine in engines("cpu") if engine.name == "native")
    call = engine.compile(program)
    for rows in [0, 1, 3, 4, 9] if size == "s" else [3]:
        kind = dtype(element).numpy
        maps, kernel = (np.ones(sizes).astype(kind) for sizes in ((1, 2, rows, 6), (4, 2, 2, 3)))
        (wanted,) = run(program, (maps, kernel))
        assert wanted.shape[2] == max(2 * rows - 1 - 5 - 1 if size == "s" else 0, 0)
        np.testing.assert_array_equal(np.asarray(call(maps, kernel)[0]), wanted)


def test_no_transpose_between_two_convolutions() -> None:
    f = FuncBuilder(
        "main", [Shape("f32", 1, 3, 8, 8), Shape("f32", 4, 3, 3, 3), Shape("f32", 4), Shape("f32", 5, 4, 1, 1)]
    )
    x, w, bias, v = f.args
    attrs: dict[str, Any] = {"dimension_numbers": FIRST, "feature_group_count": 1, "batch_group_count": 1}
    first = f.convolution(x, w, **attrs)
    shifted = f.add(first, f.broadcast_in_dim(bias, broadcast_dimensions=(1,), result=first.shape))
    both = f.concatenate(shifted, first, dimension=2)
    part = f.slice(both, start_indices=(0, 0, 1, 0), limit_indices=(1, 4, 9, 6), strides=(1, 1, 2, 1))
    program = Program.of(f.func(f.convolution(part, v, **attrs)))
    after = changed(program)
    random = np.random.default_rng(1)
    inputs = [random.integers(-4, 5, arg.shape.numbers()).astype(np.float32) for arg in f.args]
    np.testing.assert_array_equal(run(after, inputs)[0], run(program, inputs)[0])
    moved = [op.operands[0] for op in after.main.body.ops if op.name == "stablehlo.transpose"]
    assert sum(value.op is not None and value.op.name == "stablehlo.convolution" for value in moved) == 1, "the result"
    assert len(moved) == 4, "the image, two kernels and the result"


def test_batch_statistics_and_the_gradient_of_pooling_follow() -> None:
    f = FuncBuilder("main", [Shape("f32", 2, 3, 6, 6), Shape("f32", 4, 3, 3, 3), Shape("f32", 2, 4, 2, 2)])
    x, w, g = f.args
    y = f.convolution(x, w, dimension_numbers=FIRST, feature_group_count=1, batch_group_count=1)
    zero, scalar = f.constant(0.0, "f32"), Shape("f32")
    with f.region(scalar, scalar) as ge:
        ge.result(ge.compare(*ge.args, comparison_direction="GE"))
    with f.region(scalar, scalar) as add:
        add.result(add.add(*add.args))
    window: dict[str, Any] = {"window_dimensions": (1, 1, 2, 2), "window_strides": (1, 1, 2, 2)}
    spread = f.select_and_scatter(y, g, zero, regions=[ge.body, add.body], **window)
    with f.region(scalar, scalar) as total:
        total.result(total.add(*total.args))
    program = Program.of(f.func(f.reduce(f.multiply(spread, y), zero, dimensions=(0, 2, 3), regions=[total.body])))
    after = changed(program)
    random = np.random.default_rng(2)
    inputs = [random.integers(-4, 5, arg.shape.numbers()).astype(np.float32) for arg in f.args]
    np.testing.assert_array_equal(run(after, inputs)[0], run(program, inputs)[0])
    moved = [op.operands[0] for op in after.main.body.ops if op.name == "stablehlo.transpose"]
    assert {*moved} == {*after.main.args}, "only the arguments are transposed"


def test_transposes_of_the_model_stay() -> None:
    """Only channels of convolutions move: a transposition of the model's own is no reason to turn what follows."""
    f = FuncBuilder("main", [Shape("f32", 2, 5, 7)])
    turned = f.transpose(f.args[0], permutation=(0, 2, 1))
    program = Program.of(f.func(f.exponential(f.add(turned, turned))))
    assert changed(program) is program


def pooled(f: FuncBuilder, y: Value) -> Value:
    with f.region(Shape("f32"), Shape("f32")) as r:
        r.result(r.maximum(*r.args))
    attrs: dict[str, Any] = {"window_dimensions": (1, 1, 3, 2), "window_strides": (1, 1, 1, 2)}
    padding = ((0, 0), (0, 0), (1, 1), (0, 1))
    return f.op(
        "stablehlo.reduce_window", y, f.constant(-9.0, "f32"), regions=[r.body], padding=padding, **attrs
    ).result


def gathered(
    axes: tuple[int, ...],
    offsets: tuple[int, ...],
    slices: tuple[int, ...],
    indices: list[Any],
    vector: int = 1,
    batching: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> Callable[[FuncBuilder, Value], Value]:
    """A gather of the axes from places that may lie outside, where they are clamped."""
    dims = GatherDims(offsets, axes, *batching, axes, vector)
    return lambda f, y: f.gather(y, f.constant(np.array(indices), "i32"), dimension_numbers=dims, slice_sizes=slices)


# Ops after a convolution to [2, 4, 3, 5]: (the op, whether it works on NHWC).
AFTER: dict[str, tuple[Callable[[FuncBuilder, Value], Value], bool]] = {
    "pool": (pooled, True),
    "pad": (lambda f, y: f.pad(
        y, f.constant(7.0, "f32"), edge_padding_low=(1, 0, 2, -1), edge_padding_high=(0, 3, 0, 1),
        interior_padding=(0, 1, 2, 0)), True),
    "reverse": (lambda f, y: f.reverse(y, dimensions=(1, 3)), True),
    "spatial axes merged": (lambda f, y: f.reshape(y, result=Shape("f32", 2, 4, 15)), True),
    "a spatial axis split": (lambda f, y: f.reshape(y, result=Shape("f32", 2, 4, 3, 5, 1)), True),
    "channels split": (lambda f, y: f.reshape(y, result=Shape("f32", 2, 2, 2, 15)), False),
    "no spatial axis left": (lambda f, y: f.reshape(y, result=Shape("f32", 2, 60)), False),
    "a spatial axis inserted": (lambda f, y: f.broadcast_in_dim(
        y, broadcast_dimensions=(0, 1, 2, 4), result=Shape("f32", 2, 4, 3, 6, 5)), True),
    "a batch inserted": (lambda f, y: f.broadcast_in_dim(
        y, broadcast_dimensions=(1, 2, 3, 4), result=Shape("f32", 3, 2, 4, 3, 5)), False),
    "rows gathered": (gathered((2,), (0, 1, 3), (2, 4, 1, 5), [0, 0, 1, 2, 9, -4, 1]), True),
    "columns gathered": (gathered((3,), (0, 1, 2), (2, 4, 3, 1), [[4], [0], [2], [7]]), True),
    "no columns gathered": (gathered((3,), (0, 1, 2), (2, 4, 3, 1), np.zeros([0]).tolist()), True),
    "channels gathered": (gathered((1,), (0, 2, 3), (2, 1, 3, 5), [3, 0, 0]), False),
    "images gathered": (gathered((0,), (1, 2, 3), (1, 4, 3, 5), [1, 1, 0]), False),
    "parts of rows gathered": (gathered((2,), (0, 1, 3), (2, 4, 1, 3), [2, 0]), False),
    "parts of channels gathered": (gathered((2,), (0, 1, 3), (2, 2, 1, 5), [2, 0]), False),
    "rows gathered to the front": (gathered((2,), (1, 2, 3), (2, 4, 1, 5), [2, 0, 1]), False),
    "rows gathered by a matrix": (gathered((2,), (0, 1, 4), (2, 4, 1, 5), [[2, 0], [1, 1]], 2), False),
    "rows gathered, the vector first": (gathered((2,), (0, 1, 3), (2, 4, 1, 5), [[2, 0, 1]], 0), False),
    "pixels gathered": (gathered((2, 3), (0, 1), (2, 4, 1, 1), [[2, 0], [1, 4]]), False),
    "rows gathered per image": (
        gathered((2,), (1, 3), (1, 4, 1, 5), [[2, 0], [1, 1]], 2, ((0,), (0,))), False),
    "transpose": (lambda f, y: f.transpose(y, permutation=(3, 0, 2, 1)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER)
def test_ops_after_a_convolution(name: str, seed: int) -> None:
    make, follows = AFTER[name]
    f = FuncBuilder("main", [Shape("f32", 2, 3, 4, 6), Shape("f32", 4, 3, 2, 2)])
    y = f.convolution(*f.args, dimension_numbers=FIRST, feature_group_count=1, batch_group_count=1)
    program = Program.of(f.func(make(f, y)))
    after = changed(program)
    random = np.random.default_rng(seed)
    inputs = [random.integers(-4, 5, arg.shape.numbers()).astype(np.float32) for arg in f.args]
    np.testing.assert_array_equal(run(after, inputs)[0], run(program, inputs)[0])
    made = after.main.body.results[0].op
    assert made is not None
    assert (made.name == "stablehlo.transpose" and make is not AFTER["transpose"][0]) == follows
    if name == "transpose":
        (moved,) = (op for op in after.main.body.ops if op.name == "stablehlo.transpose" and op.result is made.result)
        assert moved.operands[0].op is not None
        assert moved.operands[0].op.name == "stablehlo.convolution", "two transposes are one"


def resize(batch: int | str, mode: str, scale: float, coordinates: str) -> bytes:
    """Two convolutions with a Resize, a product and a sum between them."""
    from onnx import TensorProto, helper, numpy_helper

    def weights(name: str, *sizes: int) -> Any:
        numbers = np.random.default_rng(len(name)).standard_normal(sizes) / np.sqrt(np.prod(sizes[1:]))
        return numpy_helper.from_array(numbers.astype(np.float32), name)

    kept = [weights("w", 5, 3, 3, 3), weights("vv", 2, 5, 1, 1)]
    kept.append(numpy_helper.from_array(np.array([1, 1, scale, scale], np.float32), "scales"))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], mode=mode, coordinate_transformation_mode=coordinates),
        helper.make_node("Mul", ["b", "b"], ["c"]),
        helper.make_node("Conv", ["c", "vv"], ["y"]),
    ]
    ends = (
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends, kept), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("batch", [1, 3, "n"], ids=str)
@pytest.mark.parametrize(
    ("mode", "scale", "coordinates"),
    [
        ("nearest", 1.5, "half_pixel"),
        ("nearest", 0.5, "asymmetric"),
        ("linear", 2.0, "half_pixel"),
        ("linear", 1.5, "align_corners"),
        ("cubic", 2.0, "half_pixel"),
    ],
)
def test_a_resized_feature_map_stays_in_nhwc(
    batch: int | str, mode: str, scale: float, coordinates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the image, the kernels, the weights of the taps and the result are transposed; onnxruntime agrees."""
    path, model = tmp_path / "m.onnx", resize(batch, mode, scale, coordinates)
    path.write_bytes(model)
    seen: list[Op] = []

    def watch(edit: Edit) -> int:
        count = channels_last(edit)
        seen.extend(edit.ops())
        return count

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "channels_last", watch)
        pipeline.run(read(path)[0], target=find_device("cpu").target())
    assert {"stablehlo.gather", "stablehlo.dynamic_gather"} & {op.name for op in seen}
    makers = [op.operands[0].op for op in seen if op.name == "stablehlo.transpose"]
    assert {maker.name for maker in makers if maker} <= {"stablehlo.constant", "stablehlo.convolution"}
    x = np.random.default_rng(3).standard_normal((batch if isinstance(batch, int) else 3, 3, 8, 6)).astype(np.float32)
    (wanted,) = session(model).run(None, {"x": x})
    np.testing.assert_allclose(np.asarray(smelt.load(path, device="cpu")(x)["y"]), wanted, rtol=1e-4, atol=1e-5)
