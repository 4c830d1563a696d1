"""ONNX files that are damaged or mean harm: each is refused with a SmeltError, quickly, and reads no other file."""

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError
from smelt.read.onnx import read

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
DIGITS = Path(__file__).parents[2] / "smelt" / "assets" / "digits.onnx"


def model_with(*tensors: Any, nodes: Any = (), inputs: Any = (), outputs: Any = (), **more: Any) -> Any:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, **more)


def write(path: Path, model: Any) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def external(location: str, **entries: str) -> Any:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=1)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


# ---- external data ----

OUTSIDE = ["../secret.bin", "/etc/hostname", "a/../../secret.bin", "", "..", "sub\\..\\secret.bin", "weights\0.bin"]


@pytest.mark.parametrize("location", OUTSIDE)
def test_external_data_stays_in_the_folder(tmp_path: Path, location: str):
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(FileError, match="outside the model's folder"):
        read(write(folder / "m.onnx", model_with(external(location))))


def test_external_data_behind_links_is_refused(tmp_path: Path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(16))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "soft.bin").symlink_to(secret)
    os.link(secret, folder / "hard.bin")
    (folder / "dir").symlink_to(tmp_path)
    for location, why in (("soft.bin", "a link"), ("hard.bin", "hard links"), ("dir/secret.bin", "a link")):
        with pytest.raises(FileError, match=why):
            read(write(folder / "m.onnx", model_with(external(location))))


def test_external_data_that_is_no_file_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for location, why in (
        *(("pipe", "plain file"), ("folder", "plain file"), (".", "plain file"), ("./.", "plain file")),
        *(("missing.bin", "cannot be read"), ("folder/missing.bin", "cannot be read")),
    ):
        with pytest.raises(FileError, match=why):
            read(write(tmp_path / "m.onnx", model_with(external(location))))


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "8"}, {"offset": "-4"}, {"length": "-16"}, {"length": "12"}, {"offset": "9" * 30},
        {"offset": "0x0"}, {"length": str(2**63)}, {"offset": str(2**62), "length": "16"}, {"offset": "1e3"},
    ],
)  # fmt: skip
def test_external_data_outside_its_file_is_refused(tmp_path: Path, entries: dict[str, str]):
    (tmp_path / "w.bin").write_bytes(bytes(16))
    with pytest.raises((FileError, ParseError)):
        read(write(tmp_path / "m.onnx", model_with(external("w.bin", **entries))))


# ---- tensors ----

TENSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "too short": ("wrong length", {"dims": [5], "raw_data": bytes(16)}),
    "too long": ("wrong length", {"dims": [3], "raw_data": bytes(16)}),
    "a negative size": ("impossible sizes", {"dims": [-4], "raw_data": bytes(16)}),
    "sizes that overflow": ("impossible sizes", {"dims": [2**32, 2**32], "raw_data": b""}),
    "sizes whose product wraps to nothing": ("impossible sizes", {"dims": [2**62, 4], "raw_data": b""}),
    "no data": ("wrong length", {"dims": [4]}),
    "data twice": ("two values", {"dims": [4], "raw_data": bytes(16), "float_data": [0.0] * 4}),
    "data of another type": ("of f32 has int64_data", {"dims": [4], "int64_data": [0] * 4}),
    "a type that does not exist": ("element type 99", {"dims": [4], "data_type": 99, "raw_data": bytes(16)}),
    "half a payload of a big one": ("wrong length", {"dims": [1024], "raw_data": bytes(2048)}),
}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors_that_lie_about_themselves(tmp_path: Path, what: str):
    message, fields = TENSORS[what]
    tensor = onnx.TensorProto(**{"name": "w", "data_type": 1, **fields})
    with pytest.raises((FileError, ParseError, UnsupportedError), match=message):
        read(write(tmp_path / "m.onnx", model_with(tensor)))


def test_a_doc_string_cannot_claim_another_tensors_payload(tmp_path: Path):
    big = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "big")
    for claim in ("0", ":0", "a" * 32 + ":0"):
        thief = onnx.TensorProto(name="thief", data_type=1, dims=[1000], doc_string=claim)
        with pytest.raises(FileError):
            read(write(tmp_path / "m.onnx", model_with(big, thief)))


# ---- bytes ----


def test_bytes_that_are_no_model(tmp_path: Path, seed: int):
    path = tmp_path / "m.onnx"
    noise = random.Random(seed).randbytes(512)
    for data in (b"", b"\0", b"\xff" * 64, b"hello, world", bytes(4096), b"\x3a\xff\xff\xff\xff\x0f", noise):
        path.write_bytes(data)
        with pytest.raises(ParseError, match=r"not an ONNX|truncated or damaged"):
            read(path)
    with pytest.raises(FileError):
        read(tmp_path / "missing.onnx")
    with pytest.raises(FileError):
        read(tmp_path)


def test_every_prefix_of_a_file(tmp_path: Path):
    data = DIGITS.read_bytes()
    path = tmp_path / "m.onnx"
    for end in [*range(0, 200, 7), *range(200, len(data), max(1, len(data) // 60))]:
        path.write_bytes(data[:end])
        with pytest.raises(ParseError, match=r"not an ONNX|truncated or damaged"):
            read(path)


def test_changed_bytes_give_a_program_or_an_error(tmp_path: Path, seed: int):
    """A changed file may still be a model; what it must not do is raise anything but a SmeltError."""
    rng = random.Random(seed)
    samples = [DIGITS.read_bytes(), *(model.SerializeToString() for model in small_models())]
    path = tmp_path / "m.onnx"
    for turn in range(400):
        data = bytearray(rng.choice(samples))
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(min(len(data), 1500))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    data[at] ^= 1 << rng.randrange(8)
                case 2:
                    del data[at : at + rng.randrange(1, 6)]
                case _:
                    data[at:at] = rng.randbytes(rng.randrange(1, 4))
        path.write_bytes(bytes(data))
        try:
            read(path)
        except SmeltError:
            pass
        except Exception as error:
            pytest.fail(f"turn {turn}: {type(error).__name__}: {error}")


def small_models() -> list[Any]:
    """Models with many kinds of attributes, for bytes to be changed in."""
    info = helper.make_tensor_value_info
    x = info("x", 1, ["N", 4, 8, 8])
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [info("a", 1, [4, 8, 8]), info("b", 1, [4, 8, 8])],
        [info("c", 1, [4, 8, 8]), info("d", 1, [4, 8, 8])],
    )
    node, tensor = helper.make_node, numpy_helper.from_array
    conv = [
        node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2], group=2),
        node("MaxPool", ["h"], ["p", "i"], kernel_shape=[2, 2], ceil_mode=1),
        node("Resize", ["p", "", "", "s"], ["r"], mode="linear"),
        node("Reshape", ["r", "t"], ["y"]),
    ]
    weights = [
        tensor(np.zeros((4, 2, 3, 3), np.float32), "w"),
        tensor(np.array([1, 4, 3, 3]), "s"),
        tensor(np.array([0, -1]), "t"),
    ]
    scan = [node("Scan", ["z", "x"], ["last", "y"], body=body, num_scan_inputs=1)]
    shape = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"]),
        node("Slice", ["x", "zero", "n", "axes"], ["a"]),
        node("Pad", ["a", "pads"], ["b"], mode="reflect"),
        node("Split", ["b"], ["c", "d"], axis=1, num_outputs=2),
        node("Tile", ["c", "reps"], ["e"]),
        node("TopK", ["e", "one"], ["y", "i"], axis=-1),
    ]
    held = [
        tensor(np.array([1]), "one"), tensor(np.array([0]), "zero"), tensor(np.array([2]), "axes"),
        tensor(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "pads"), tensor(np.array([1, 2, 1, 1]), "reps"),
    ]  # fmt: skip
    out = helper.make_empty_tensor_value_info("y")
    return [
        model_with(*weights, nodes=conv, inputs=[x], outputs=[out]),
        model_with(tensor(np.zeros((4, 8, 8), np.float32), "z"), nodes=scan, inputs=[x], outputs=[out]),
        model_with(*held, nodes=shape, inputs=[x], outputs=[out]),
    ]


def test_the_models_that_are_changed_are_good_ones(tmp_path: Path):
    for model in small_models():
        read(write(tmp_path / "m.onnx", model))


# ---- models that grow ----


def test_functions_that_call_each_other_twice_end(tmp_path: Path):
    """Forty levels, each calling the next twice: 2**40 nodes, refused long before that."""
    functions = []
    for i in range(40):
        inner = "Relu" if i == 39 else f"f{i + 1}"
        domain = "" if i == 39 else "own"
        nodes = [
            helper.make_node(inner, ["x"], ["t"], domain=domain),
            helper.make_node(inner, ["t"], ["y"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", f"f{i}", ["x"], ["y"], nodes, opsets))
    model = model_with(
        nodes=[helper.make_node("f0", ["x"], ["y"], domain="own")],
        inputs=[helper.make_tensor_value_info("x", 1, [2])],
        outputs=[helper.make_empty_tensor_value_info("y")],
        functions=functions,
    )
    with pytest.raises(SmeltError, match="too many nodes"):
        read(write(tmp_path / "m.onnx", model))


def test_a_function_that_calls_itself_is_refused(tmp_path: Path):
    again = helper.make_node("f", ["x"], ["y"], domain="own")
    opsets = [helper.make_opsetid("own", 1)]
    model = model_with(
        nodes=[again],
        inputs=[helper.make_tensor_value_info("x", 1, [2])],
        outputs=[helper.make_empty_tensor_value_info("y")],
        functions=[helper.make_function("own", "f", ["x"], ["y"], [again], opsets)],
    )
    with pytest.raises(SmeltError, match="too deep"):
        read(write(tmp_path / "m.onnx", model))


BOMBS: dict[str, list[tuple[str, list[str], str, dict[str, Any]]]] = {
    "a constant of 2**60 elements": [("ConstantOfShape", ["big"], "y", {})],
    "its sum as a shape": [
        ("ConstantOfShape", ["big"], "a", {}), ("ReduceSum", ["a"], "b", {}), ("Reshape", ["x", "b"], "y", {}),
    ],
    "a range without end": [("Range", ["zero", "huge", "one"], "y", {})],
    "a resize": [("Resize", ["x", "", "", "sizes"], "y", {"mode": "linear"})],
    "a mirror": [("Pad", ["x", "pads"], "y", {"mode": "reflect"})],
    "a tile": [("Tile", ["x", "sizes"], "y", {})],
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.timeout(60)
def test_small_files_that_ask_for_much_memory(tmp_path: Path, what: str):
    """Read or refused, but never computed at import."""
    tensor = numpy_helper.from_array
    held = [
        tensor(np.array([2**30, 2**30]), "big"), tensor(np.int64(0), "zero"), tensor(np.int64(2**62), "huge"),
        tensor(np.int64(1), "one"), tensor(np.array([2**40, 2**20]), "sizes"),
        tensor(np.array([0, 2**50, 0, 0]), "pads"),
    ]  # fmt: skip
    model = model_with(
        *held,
        nodes=[helper.make_node(op, inputs, [output], **attributes) for op, inputs, output, attributes in BOMBS[what]],
        inputs=[helper.make_tensor_value_info("x", 1, [4, 4])],
        outputs=[helper.make_empty_tensor_value_info("y")],
    )
    with contextlib.suppress(SmeltError):
        read(write(tmp_path / "m.onnx", model))
