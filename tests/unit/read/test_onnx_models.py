"""Small models against onnxruntime, at two sizes of every dimension that is not fixed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.core import walk
from smelt.ir.interpret import run
from smelt.read.onnx import StaticError, read
from tests import onnx_oracle

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
F, INT, B = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
RNG = np.random.default_rng(7)


def save(
    path: Path,
    nodes: Any,
    inputs: dict[str, Any],
    outputs: list[str],
    weights: dict[str, Any] | None = None,
    opset: int = 20,
    **more: Any,
) -> Path:
    """A model whose inputs are `name: (type, sizes)`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, sizes) for name, (kind, sizes) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **more)
    onnx.save(model, path)
    return path


def ours(path: Path, feeds: dict[str, Any], static: dict[str, Any] | None = None) -> tuple[Any, ...]:
    program, weights = read(path, static or {})
    args = [
        weights[attrs["smelt.weight"]].numpy() if "smelt.weight" in attrs else feeds[attrs["smelt.name"]]
        for attrs in program.main.arg_attrs
    ]
    return run(program, args)


def agree(path: Path, feeds: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    session = onnx_oracle.session(path)
    expected = session.run(None, feeds)
    for have, want in zip(ours(path, feeds), expected, strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol, atol)


def floats(*sizes: int) -> Any:
    return RNG.standard_normal(sizes).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


# ---- symbolic sizes ----


@pytest.mark.parametrize(("batch", "length"), [(1, 3), (2, 7)])
def test_attention_as_exporters_write_it(tmp_path: Path, batch: int, length: int):
    """Heads are split with shapes computed from Shape, Gather, Concat and Div; nothing is fixed but the width."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "b"), node("Gather", "s one", "t"), node("Gather", "s two", "d"),
        node("Div", "d heads", "k"),
        node("Unsqueeze", "b axis", "b1"), node("Unsqueeze", "t axis", "t1"), node("Unsqueeze", "k axis", "k1"),
        node("Concat", "b1 t1 h1 k1", "split", axis=0),
        node("MatMul", "x wq", "q0"), node("Reshape", "q0 split", "q1"),
        node("Transpose", "q1", "q", perm=[0, 2, 1, 3]),
        node("MatMul", "x wk", "k0"), node("Reshape", "k0 split", "k2"),
        node("Transpose", "k2", "kt", perm=[0, 2, 3, 1]),
        node("MatMul", "q kt", "scores"), node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p q", "o"), node("Transpose", "o", "o1", perm=[0, 2, 1, 3]),
        node("Concat", "b1 minus", "flat", axis=0), node("Reshape", "o1 flat", "y"),
    ]  # fmt: skip
    weights = {
        "zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "heads": np.int64(4), "axis": np.array([0]),
        "h1": np.array([4]), "minus": np.array([-1]), "wq": floats(32, 32), "wk": floats(32, 32),
    }  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["B", "T", 32])}, ["y"], weights)
    agree(path, {"x": floats(batch, length, 32)})
    program, _ = read(path)
    assert str(program.main.args[-1].type) == "f32[B, T, 32]"
    assert str(program.main.results[0].type) == "f32[B, 32*T]"
    assert not any(op.name == "stablehlo.dynamic_reshape" for op in walk(program.main.body))


SHAPE_CODE: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "expand over Where, as torch writes it": (
        [
            node("Shape", "x", "s"),
            node("ConstantOfShape", "n", "ones", value=numpy_helper.from_array(np.array([1]))),
            node("Mul", "ones minus", "m"),
            node("Equal", "want m", "e"),
            node("Where", "e ones want", "shape"),
            node("Expand", "x shape", "y"),
        ],
        {"n": np.array([3]), "minus": np.array([-1]), "want": np.array([5, -1, -1])},
    ),
    "all but the last row and column": (
        [node("Slice", "x start end axes", "y")],
        {"start": np.array([0, 1]), "end": np.array([-1, 2**62]), "axes": np.array([1, 2])},
    ),
    "every second one, backwards": (
        [node("Slice", "x start end axes steps", "y")],
        {"start": np.array([-1]), "end": np.array([-(2**62)]), "axes": np.array([1]), "steps": np.array([-2])},
    ),
    "positions added": (
        [
            node("Shape", "x", "s", start=1, end=2),
            node("Squeeze", "s", "t"),
            node("Range", "zero t one", "r"),
            node("Cast", "r", "f", to=F),
            node("Unsqueeze", "f axes", "u"),
            node("Add", "x u", "y"),
        ],
        {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([1])},
    ),
    "halves of a size": (
        [
            node("Shape", "x", "s", start=1, end=2),
            node("Div", "s two", "h"),
            node("Slice", "x zero h one", "a"),
            node("Slice", "x h big one", "b"),
            node("Concat", "b a", "y", axis=1),
        ],
        {"two": np.array([2]), "zero": np.array([0]), "one": np.array([1]), "big": np.array([2**62])},
    ),
    "tile by a size": (
        [
            node("Shape", "x", "s", start=0, end=1),
            node("Concat", "one s one", "r", axis=0),
            node("Tile", "x r", "y"),
        ],
        {"one": np.array([1])},
    ),
    "mean over a size that is not fixed": ([node("ReduceMean", "x axes", "y", keepdims=0)], {"axes": np.array([1])}),
    "padding, and its mirror": (
        [node("Pad", "x p", "a", mode="reflect"), node("Pad", "a p", "y")],
        {"p": np.array([0, 1, 0, 0, 2, 1])},
    ),
    "running sums": ([node("CumSum", "x axis", "y", reverse=1, exclusive=1)], {"axis": np.int64(1)}),
    "gather with negative indices": ([node("Gather", "x i", "y", axis=1)], {"i": np.array([[0, -1], [-2, 1]])}),
    "the number of elements": ([node("Size", "x", "n"), node("Cast", "n", "f", to=F), node("Div", "x f", "y")], {}),
}  # fmt: skip


@pytest.mark.parametrize("what", SHAPE_CODE)
@pytest.mark.parametrize(("batch", "length"), [(1, 4), (3, 7)])
def test_shape_code(tmp_path: Path, what: str, batch: int, length: int):
    nodes, weights = SHAPE_CODE[what]
    if "expand" in what and batch != 1:
        batch = 5
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["B", "T", 6])}, ["y"], weights)
    agree(path, {"x": floats(batch, length, 6)})


@pytest.mark.parametrize("size", [8, 13])
@pytest.mark.parametrize(
    "nodes",
    [
        [node("Conv", "x w", "y", pads=[1, 1, 1, 1], strides=[2, 2])],
        [node("Conv", "x w", "y", auto_pad="SAME_UPPER", strides=[2, 2])],
        [node("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], dilations=[1, 2])],
        [node("MaxPool", "x", "y", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)],
        [node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        [node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        [node("GlobalAveragePool", "x", "y")],
        [node("InstanceNormalization", "x s s", "y")],
        [node("Resize", "x none scales", "y", mode="nearest")],
        [node("Resize", "x none scales", "y", mode="linear", coordinate_transformation_mode="asymmetric")],
        [node("Resize", "x none shrink", "y", mode="linear", coordinate_transformation_mode="pytorch_half_pixel")],
        [node("Resize", "x none enlarge", "y", mode="cubic")],
        [node("Resize", "x none shrink", "y", mode="cubic", cubic_coeff_a=-0.5)],
        [node("Shape", "x", "size"), node("Resize", "table none none size", "y", mode="cubic")],
        [node("DepthToSpace", "x", "y", blocksize=2, mode="CRD")],
        [node("LRN", "x", "y", size=3)],
    ],
    ids=lambda nodes: nodes[0].op_type + "-" + "-".join(sorted(a.name for a in nodes[0].attribute)),
)
def test_images_of_any_size(tmp_path: Path, nodes: Any, size: int):
    weights = {
        "w": floats(5, 4, 3, 3), "s": floats(4), "none": np.zeros(0, np.float32),
        "scales": np.array([1, 1, 2, 3], np.float32), "shrink": np.array([1, 1, 0.5, 0.5], np.float32),
        "enlarge": np.array([1, 1, 1.5, 2], np.float32), "table": floats(2, 4, 5, 6),
    }  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["B", 4, "H", "W"])}, ["y"], weights)
    agree(path, {"x": floats(2, 4, size, size + 1)})


def test_what_needs_the_sizes_of_its_result_is_read_once_they_are_known(tmp_path: Path):
    """The resized table itself has fixed sizes: only what it is resized to is dynamic, as for position embeddings."""
    nodes = [
        node("Shape", "x", "size"),
        node("Resize", "table none none size", "y", mode="cubic", exclude_outside=1),
    ]
    weights = {"none": np.zeros(0, np.float32), "table": floats(2, 4, 5, 6)}
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["B", 4, "H", "W"])}, ["y"], weights)
    proto = onnx.load(path)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, None))
    onnx.save(proto, path)
    with pytest.raises(StaticError, match="with a size that is not fixed") as caught:
        read(path)
    assert caught.value.sizes
    model = smelt.load(path, engine="reference")
    for size in (3, 8):
        x = floats(2, 4, size, size + 1)
        (want,) = onnx_oracle.session(path).run(None, {"x": x})
        np.testing.assert_allclose(model(x=x)["y"], want, rtol=1e-5, atol=1e-5)


def test_aligned_corners_of_a_size_that_is_rounded_down(tmp_path: Path):
    """The suite's own case (test_resize_downsample_scales_linear_align_corners) with dynamic dimensions."""
    nodes = [node("Resize", "x none scales", "y", mode="linear", coordinate_transformation_mode="align_corners")]
    weights = {"none": np.zeros(0, np.float32), "scales": np.array([1, 1, 0.6, 0.6], np.float32)}
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, [1, 1, "H", "W"])}, ["y"], weights)
    (have,) = ours(path, {"x": np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)})
    np.testing.assert_allclose(have, [[[[1.0, 3.142857]]]], rtol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_half_precision_is_resized_in_single(tmp_path: Path, mode: str):
    """Rounded once: half a unit of the last place from what onnxruntime gives for the same numbers in f32, and as much
    as f32 itself is off."""
    nodes = [node("Resize", "x none scales", "y", mode=mode)]
    weights = {"none": np.zeros(0, np.float32), "scales": np.array([1, 1, 1.7, 2.3], np.float32)}
    x = floats(1, 2, 7, 6).astype(np.float16)
    wide = save(tmp_path / "wide.onnx", nodes, {"x": (F, [1, 2, 7, 6])}, ["y"], weights)
    half = save(tmp_path / "half.onnx", nodes, {"x": (onnx.TensorProto.FLOAT16, [1, 2, 7, 6])}, ["y"], weights)
    (want,) = onnx_oracle.session(wide).run(None, {"x": x.astype(np.float32)})
    (have,) = ours(half, {"x": x})
    assert have.dtype == np.float16
    unit = np.spacing(np.abs(want).astype(np.float16)).astype(np.float32)
    assert (np.abs(have.astype(np.float32) - want) <= 0.5 * unit + 2e-6).all()


# ---- control flow, sequences, functions ----


def branch(name: str, nodes: Any, output: str) -> Any:
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(output)])


@pytest.mark.parametrize("flag", [True, False])
def test_if_on_data(tmp_path: Path, flag: bool):
    then = branch("then", [node("Neg", "x", "a")], "a")
    other = branch("else", [node("Mul", "x x", "b")], "b")
    nodes = [node("If", "c", "y", then_branch=then, else_branch=other)]
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["N"]), "c": (B, [])}, ["y"])
    agree(path, {"x": floats(3), "c": np.array(flag)})


@pytest.mark.parametrize("flag", [True, False])
def test_weights_of_the_same_name_in_two_graphs(tmp_path: Path, flag: bool):
    """Each branch has a `w` of its own, too large to be written into the program."""
    branches = {}
    for name, scale in (("then_branch", 1.0), ("else_branch", -3.0)):
        made = branch(name, [node("Mul", "x w", "a")], "a")
        made.initializer.append(numpy_helper.from_array(scale * np.arange(512, dtype=np.float32), "w"))
        branches[name] = made
    path = save(tmp_path / "m.onnx", [node("If", "c", "y", **branches)], {"x": (F, [512]), "c": (B, [])}, ["y"])
    agree(path, {"x": floats(512), "c": np.array(flag)})


def growing() -> Any:
    """The body of a loop whose state has one axis more after each iteration: no `while` can run it."""
    info = helper.make_tensor_value_info
    return helper.make_graph(
        [node("Unsqueeze", "v zero", "w"), node("Identity", "go", "again")],
        "body",
        [info("i", INT, []), info("go", B, []), info("v", F, None)],
        [info("again", B, []), info("w", F, None)],
    )


RANKS = {
    "then_branch": branch("then", [node("Neg", "x", "a")], "a"),
    "else_branch": branch("else", [node("ReduceSum", "x", "b", keepdims=0)], "b"),
}
IN_STEPS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "the condition of branches of different ranks": ([node("If", "c", "y", **RANKS)], {"c": (B, [])}, ("c",)),
    "the number of iterations": ([node("Loop", "m yes x", "y", body=growing())], {"m": (INT, [])}, ("m",)),
    "the condition of a loop": ([node("Loop", "two c x", "y", body=growing())], {"c": (B, [])}, ("c",)),
}


@pytest.mark.parametrize("name", IN_STEPS)
def test_control_flow_names_the_input_that_would_make_it_static(tmp_path: Path, name: str):
    """And given at import it is right."""
    nodes, inputs, wanted = IN_STEPS[name]
    held = {"yes": np.array(True), "two": np.array(2), "zero": np.array([0])}
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, [3]), **inputs}, ["y"], held)
    with pytest.raises(StaticError) as caught:
        read(path)
    assert caught.value.inputs == wanted
    session = onnx_oracle.session(path)
    for value in (np.array(3), np.array(0)) if "m" in wanted else (np.array(True), np.array(False)):
        feeds = {"x": floats(3), wanted[0]: value}
        (want,) = session.run(None, feeds)
        (have,) = ours(path, feeds, {wanted[0]: value})
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_control_flow_that_no_input_makes_static_says_why(tmp_path: Path):
    drawn = [helper.make_node("RandomUniform", [], ["r"], shape=[1]), node("Greater", "r half", "c")]
    held = {"half": np.array(0.5, np.float32)}
    path = save(tmp_path / "if.onnx", [*drawn, node("If", "c", "y", **RANKS)], {"x": (F, [3])}, ["y"], held)
    with pytest.raises(UnsupportedError, match="the branches give different types"):
        read(path)
    endless = helper.make_node("Loop", ["", "", "x"], ["y"], body=growing())
    path = save(tmp_path / "loop.onnx", [endless], {"x": (F, [3])}, ["y"], {"zero": np.array([0])})
    with pytest.raises(UnsupportedError, match="a loop whose values change their types"):
        read(path)


def test_a_cast_to_the_type_of_text(tmp_path: Path):
    """Numbers become text, text stays text, text becomes numbers; a map from text to numbers shows what it is."""
    words = {"keys_strings": ["1.5", "-0.25", "a"], "values_int64s": [10, 20, 30], "default_int64": -1}
    to_number = {"domain": "ai.onnx.ml", **words}
    nodes = [
        node("CastLike", "numbers text", "printed"), node("LabelEncoder", "printed", "y0", **to_number),
        node("CastLike", "text text", "same"), node("LabelEncoder", "same", "y1", **to_number),
        node("CastLike", "digits x", "parsed"), node("Add", "x parsed", "y2"),
    ]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, [2])}, ["y0", "y1", "y2"])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 4))
    for name, given in (("text", ["a", "b"]), ("digits", ["1.5", "-2e1"])):
        model.graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.STRING, [2], given))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1.5, -0.25], np.float32), "numbers"))
    onnx.save(model, path)
    agree(path, {"x": floats(2)})


@pytest.mark.parametrize(("turns", "stop"), [(5, 100.0), (9, 4.0)])
def test_a_loop_that_may_stop_early(tmp_path: Path, turns: int, stop: float):
    """The state doubles until its sum passes a limit; what is gathered has as many rows as there were turns."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Add", "v v", "w"),
            node("ReduceSum", "w", "s", keepdims=0),
            node("Less", "s stop", "more"),
            node("Identity", "w", "row"),
        ],
        "body",
        [info("i", INT, []), info("go", B, []), info("v", F, [2])],
        [info("more", B, []), info("w", F, [2]), info("row", F, [2])],
    )
    nodes = [node("Loop", "m go x", "last rows", body=body)]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        {"x": (F, [2]), "m": (INT, [])},
        ["last", "rows"],
        {"go": np.array(True), "stop": np.float32(stop)},
    )
    agree(path, {"x": np.array([0.25, 0.5], np.float32), "m": np.array(turns)})


@pytest.mark.parametrize(("batch", "time"), [(1, 3), (4, 6)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_with_lengths(tmp_path: Path, direction: str, batch: int, time: int):
    ways = 2 if direction == "bidirectional" else 1
    weights = {"w": floats(ways, 20, 3), "r": floats(ways, 20, 5), "b": floats(ways, 40)}
    nodes = [node("LSTM", "x w r b n", "y h c", hidden_size=5, direction=direction)]
    inputs = {"x": (F, ["T", "B", 3]), "n": (onnx.TensorProto.INT32, ["B"])}
    path = save(tmp_path / "m.onnx", nodes, inputs, ["y", "h", "c"], weights)
    lengths = RNG.integers(1, time + 1, batch).astype(np.int32)
    agree(path, {"x": floats(time, batch, 3), "n": lengths})


@pytest.mark.parametrize("n", [4, 9])
def test_results_whose_size_depends_on_data(tmp_path: Path, n: int):
    nodes = [
        node("Greater", "x zero", "p"),
        node("NonZero", "p", "at"),
        node("Compress", "x p", "c"),
        node("Unique", "i", "u first back counts", sorted=0),
    ]
    outputs = ["at", "c", "u", "first", "back", "counts"]
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["N"]), "i": (INT, ["N"])}, outputs, {"zero": np.float32(0)})
    agree(path, {"x": floats(n), "i": RNG.integers(0, 4, n)})


def test_a_function_of_the_model(tmp_path: Path):
    """Its attribute is the caller's, its default where the caller says nothing; names inside do not leak."""
    scaled = helper.make_function(
        "own",
        "Scaled",
        ["x"],
        ["y"],
        [
            helper.make_node("Constant", [], ["t"]),
            node("Mul", "x t", "y"),
        ],
        [helper.make_opsetid("", 20)],
        attributes=[],
        attribute_protos=[helper.make_attribute("by", 3.0)],
    )
    reference = onnx.AttributeProto(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="by")
    scaled.node[0].attribute.append(reference)
    nodes = [
        helper.make_node("Scaled", ["x"], ["t"], domain="own"),
        helper.make_node("Scaled", ["t"], ["y"], domain="own", by=0.5),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["N"])}, ["y"], functions=[scaled])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, path)
    agree(path, {"x": floats(4)})


# ---- the form of the program ----


def test_weights_come_first_and_everything_has_its_name(tmp_path: Path):
    weights = {"w": floats(16, 32), "b": floats(32), "unused": floats(64, 64)}
    nodes = [node("MatMul", "x w", "h"), helper.make_node("Add", ["h", "b"], ["y"], name="last one")]
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, ["N", 16])}, ["y"], weights)
    program, held = read(path)
    main = program.main
    assert [dict(attrs) for attrs in main.arg_attrs] == [
        {"smelt.weight": "w", "smelt.name": "w"},
        {"smelt.name": "x"},
    ]
    assert main.result_attrs[0]["smelt.name"] == "y"
    assert set(held) == {"w", "b", "unused"}
    places = {op.location.name for op in walk(main.body) if op.location is not None}
    assert places == {"MatMul/h", "last one"}
    assert all(op.location is None or op.location.path == str(path) for op in walk(main.body))


def test_a_value_that_shapes_the_program_can_be_given_at_import(tmp_path: Path):
    path = save(tmp_path / "m.onnx", [node("Reshape", "x s", "y")], {"x": (F, [2, 6]), "s": (INT, [2])}, ["y"])
    with pytest.raises(StaticError) as caught:
        read(path)
    assert caught.value.inputs == ("s",)
    assert "Reshape/y" in str(caught.value)
    assert "'shape'" in str(caught.value)
    x = floats(2, 6)
    (y,) = ours(path, {"x": x}, {"s": np.array([3, -1])})
    np.testing.assert_array_equal(y, x.reshape(3, 4))
    with pytest.raises(ShapeError):
        read(path, {"s": np.array([3.0, -1.0])})
    with pytest.raises(UnsupportedError, match="no input 'z'"):
        read(path, {"z": np.zeros(2)})


def test_what_is_computed_from_constants_alone_is_known(tmp_path: Path):
    """The shape comes out of floats, a sort and a loop over constants: the program computes it at import."""
    nodes = [
        node("Sqrt", "nine", "r"),
        node("Cast", "r", "i", to=INT),
        node("TopK", "i one", "k at", largest=0),
        node("Reshape", "x k", "y"),
    ]
    weights = {"nine": np.array([16.0, 9.0], np.float32), "one": np.array([2])}
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, [12])}, ["y"], weights)
    (y,) = ours(path, {"x": np.arange(12, dtype=np.float32)})
    assert y.shape == (3, 4)


REFUSED = {
    "an operator that does not exist": ([node("Frobnicate", "x", "y")], UnsupportedError, "Frobnicate"),
    "an attribute that does not exist": ([node("Relu", "x", "y", slope=1.0)], UnsupportedError, "'slope'"),
    "an input that no node produces": ([node("Add", "x z", "y")], ParseError, "'z'"),
    "a name made twice": ([node("Relu", "x", "y"), node("Relu", "x", "y")], ParseError, "'y'"),
    "a missing input": ([helper.make_node("Add", ["x"], ["y"])], ParseError, "'B'"),
    "a missing attribute": ([node("Concat", "x x", "y")], ParseError, "'axis'"),
    "too many inputs": ([node("Relu", "x x", "y")], ParseError, "too many"),
    "an axis out of range": ([node("Softmax", "x", "y", axis=5)], ShapeError, "axis"),
    "sizes that do not broadcast": ([node("Slice", "x a b c", "z"), node("Add", "x z", "y")], ShapeError, "broadcast"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path: Path, what: str):
    nodes, kind, words = REFUSED[what]
    weights = {"a": np.array([0]), "b": np.array([2]), "c": np.array([1])}
    path = save(tmp_path / "m.onnx", nodes, {"x": (F, [2, 3])}, ["y"], weights)
    with pytest.raises(kind) as caught:
        read(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("softcap", [0.5, 0.0, -0.5])
def test_scores_of_attention_are_capped_where_the_cap_is_positive(softcap: float, tmp_path: Path) -> None:
    """The function of the standard would cap them by a negative number as well; its implementations do not."""
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], softcap=softcap)
    feeds = {name: RNG.normal(size=(1, 2, 4, 8)).astype(np.float32) for name in "qkv"}
    ports = {name: (F, [1, 2, 4, 8]) for name in feeds}
    agree(save(tmp_path / "attention.onnx", [node], ports, ["y"], opset=23), feeds)
