"""ONNX files with dynamic dimensions through `smelt.load`: one compiled program is right for every size.

onnxruntime is the oracle. Counted: how often the C compiler is asked once the model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.device import cpu
from smelt.device.runtime import runtime
from smelt.dtype import Array
from tests import onnx_oracle
from tests.real import minilm
from tests.real.zoo import MINILM

pytest.importorskip("onnxruntime")
safetensors = pytest.importorskip("safetensors.numpy")
pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

CONFIG = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "layer_norm_eps": 1e-12}
Feed = Callable[..., dict[str, Array]]


def tiny_encoder(folder: Path, seed: int) -> onnx.ModelProto:
    """MiniLM's graph with two layers of 64 and random weights."""
    random = np.random.default_rng(seed)
    width = 64
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (100, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.position_embeddings.weight": (128, width),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(2):
        layer = f"encoder.layer.{i}."
        dense = {f"attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        dense |= {"attention.output.dense": (width, width), "intermediate.dense": (4 * width, width)}
        dense |= {"output.dense": (width, 4 * width)}
        for name, sizes in dense.items():
            shapes |= {f"{layer}{name}.weight": sizes, f"{layer}{name}.bias": sizes[:1]}
        norms += [f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    weights = {name: random.standard_normal(sizes).astype(np.float32) / 8 for name, sizes in shapes.items()}
    for name in norms:
        weights |= {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    safetensors.save_file(weights, folder / "model.safetensors")
    return minilm.build(folder)


def tiny_images(folder: Path, seed: int) -> onnx.ModelProto:
    """Convolutions with normalisation, a residual, pools and a head; batch, height and width are dynamic."""
    random = np.random.default_rng(seed)
    weights: list[TensorProto] = []

    def weight(name: str, *sizes: int, positive: bool = False) -> str:
        array = random.standard_normal(sizes) / np.sqrt(np.prod(sizes[1:]) or 1)
        array = np.abs(array) + 0.5 if positive else array
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], **attributes)

    def normal(source: str, output: str, width: int) -> onnx.NodeProto:
        parts = [weight(f"{output}.{part}", width, positive=part == "variance") for part in ("scale", "bias", "mean")]
        return node("BatchNormalization", [source, *parts, weight(f"{output}.variance", width, positive=True)], output)

    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["image", weight("stem", 16, 3, 3, 3)], "a", strides=[2, 2], **same),
        normal("a", "b", 16),
        node("Relu", ["b"], "c"),
        node("MaxPool", ["c"], "d", kernel_shape=[3, 3], strides=[1, 1], **same),
        node("Conv", ["d", weight("deep", 16, 1, 3, 3), weight("deep.bias", 16)], "e", group=16, **same),
        node("Conv", ["e", weight("point", 16, 16, 1, 1)], "f"),
        normal("f", "g", 16),
        node("Add", ["g", "c"], "h"),
        node("Relu", ["h"], "features"),
        node("GlobalAveragePool", ["features"], "i"),
        node("Flatten", ["i"], "j"),
        node("Gemm", ["j", weight("head", 10, 16), weight("head.bias", 10)], "k", transB=1),
        node("Softmax", ["k"], "chances", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [
            helper.make_tensor_value_info("chances", TensorProto.FLOAT, ["batch", 10]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, None),
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def words(random: np.random.Generator, batch: int, length: int) -> dict[str, Array]:
    return {
        "input_ids": random.integers(0, 100, (batch, length)),
        "attention_mask": (np.arange(length) < random.integers(1, length + 1, (batch, 1))).astype(np.int64),
        "token_type_ids": random.integers(0, 2, (batch, length)),
    }


def images(random: np.random.Generator, *sizes: int) -> dict[str, Array]:
    batch, height, width = sizes
    return {"image": random.standard_normal((batch, 3, height, width)).astype(np.float32)}


MODELS: dict[str, tuple[Callable[[Path, int], onnx.ModelProto], Feed, list[tuple[int, ...]]]] = {
    "encoder": (tiny_encoder, words, [(1, 1), (1, 7), (3, 7), (7, 3), (2, 32), (2, 33), (1, 128), (16, 16), (3, 7)]),
    "images": (
        tiny_images,
        images,
        [(1, 8, 8), (2, 17, 5), (1, 1, 1), (5, 32, 33), (1, 64, 9), (2, 17, 5), (3, 2, 40)],
    ),
}


def near(mine: Mapping[str, Array], other: list[Array]) -> None:
    for a, b in zip(mine.values(), other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(np.abs(b).max(initial=0), 1e-30))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every call of the C compiler's door from now on."""
    real, seen = cpu.build, list[object]()

    def build(*given: Any, **more: Any) -> Any:
        seen.append(given)
        return real(*given, **more)

    runtime()
    monkeypatch.setattr(cpu, "build", build)
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_one_program_answers_every_size(name: str, seed: int, tmp_path: Path, builds: list[object]) -> None:
    make, feed, sizes = MODELS[name]
    path = tmp_path / "model.onnx"
    onnx.save(make(tmp_path, seed), path)
    model = smelt.load(path, engine="native")
    session = onnx_oracle.session(path)
    assert len(builds) == 1
    random = np.random.default_rng(seed)
    for each in sizes:
        inputs = feed(random, *each)
        near(model.run(inputs), session.run(None, inputs))
    assert len(builds) == 1
    before = runtime().allocations
    for i in range(100):
        model.run(feed(random, *sizes[i % len(sizes)]))
    assert runtime().allocations == before


def test_minilm_answers_every_size(tmp_path: Path, builds: list[object]) -> None:
    folder = MINILM()
    if isinstance(folder, str):
        pytest.skip(folder)
    path = tmp_path / "minilm.onnx"
    onnx.save(minilm.build(folder), path)
    model = smelt.load(path, engine="native")
    session = onnx_oracle.session(path)
    assert len(builds) == 1
    for sentences, length in ((minilm.SENTENCES[:1], None), (minilm.SENTENCES, None), (minilm.SENTENCES[4:5], 5)):
        inputs = minilm.tokens(folder, sentences, length)
        near(model.run(inputs), session.run(None, inputs))
    assert len(builds) == 1
