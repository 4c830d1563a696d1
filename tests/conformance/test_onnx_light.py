"""The suite's light models with random weights, against onnxruntime.

The suite fills every weight of a model with one number, so all channels are alike and a mistake between them shows
nowhere. Here weights are drawn as for training, and what is compared is how the answers to two images differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from tests import onnx_oracle

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
# The others take minutes where nothing compiles the reference's loops; SMALL covers every operator that they use.
SMALL = ("squeezenet", "shufflenet", "inception_v1", "densenet121")


@pytest.mark.parametrize("name", SMALL)
def test_light(name: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    put_weights(model, rng)
    drop_softmax(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnx_oracle.session(path, options)
    port = session.get_inputs()[0]
    images = [rng.standard_normal(port.shape).astype(np.float32) for _ in range(2)]
    wanted = apart([session.run(None, {port.name: image})[0] for image in images])
    loaded = smelt.load(path, engine="reference")
    found = apart([loaded.run({port.name: image})[session.get_outputs()[0].name] for image in images])
    scale = float(np.abs(wanted).max())
    assert scale > 1e-6, "two images gave the same answer: nothing is tested"
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3 * scale)


def apart(answers: list[Array]) -> Array:
    """Answers without what they have in common."""
    whole = np.stack(answers).astype(np.float64)
    return np.asarray(whole - whole.mean(0))


def put_weights(model: Any, rng: np.random.Generator) -> None:
    """Random weights in place of every constant of floats."""
    graph = model.graph
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    sizes = {name: array.shape for name, array in constants.items() if array.dtype == np.float32}
    filled = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in constants]
    sizes |= {node.output[0]: tuple(constants[node.input[0]].tolist()) for node in filled}
    for node in filled:
        graph.node.remove(node)
    needed = {name for node in graph.node for name in node.input}
    kept = [each for each in graph.initializer if each.name not in sizes and each.name in needed]
    images = [port for port in graph.input if port.name not in constants and port.name not in sizes]
    del graph.initializer[:]
    del graph.input[:]
    graph.initializer.extend(kept)
    graph.input.extend(images)
    used = {name: use for node in graph.node for name, use in uses(node, graph)}
    for name, shape in sizes.items():
        if name not in needed:
            continue
        value = draw(used.get(name, ("", 0)), shape, rng)
        graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))


def drop_softmax(model: Any) -> None:
    """Without the last Softmax: random weights drive it into its corners, where all answers are alike."""
    graph = model.graph
    if graph.node[-1].op_type == "Softmax":
        before = graph.node[-1].input[0]
        graph.node.pop()
        del graph.output[:]
        graph.output.append(onnx.helper.make_empty_tensor_value_info(before))


def uses(node: Any, graph: Any) -> list[tuple[str, tuple[str, int]]]:
    """What a node's inputs are to it; through Unsqueeze, to the node behind."""
    if node.op_type == "Unsqueeze":
        behind = [other for other in graph.node if node.output[0] in other.input]
        return [(node.input[0], (other.op_type, list(other.input).index(node.output[0]))) for other in behind]
    return [(name, (node.op_type, place)) for place, name in enumerate(node.input)]


def draw(use: tuple[str, int], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    noise = rng.standard_normal(shape)
    match use:
        case ("Conv" | "Gemm", 1):
            return np.asarray(noise * np.sqrt(2 / max(1, int(np.prod(shape[1:])))))
        case ("BatchNormalization", 4):
            return rng.uniform(0.5, 1.5, shape)
        case ("BatchNormalization", 1) | ("Mul", _):
            return np.asarray(1 + noise / 10)
        case _:
            return np.asarray(noise / 10)
