"""Random ONNX graphs with dynamic dimensions: no pass and no kernel builder fails, and what comes out is right.

A program that was read is valid, so every pass must take it and leave a valid one, for every engine and target. Here
nothing is caught: whatever is raised is a bug. onnxruntime is the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smelt.device import cpu
from smelt.dtype import Array
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.ir.core import Program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.read.onnx import StaticError, read
from smelt.weights import Weights
from tests.onnx_nodes import on_onnxruntime
from tests.property.onnx_graphs import Case, random_case

node = helper.make_node

pytest.importorskip("onnxruntime")
TARGETS = ("plain", "avx2", "avx512vnni")


def cases(seed: int, part: int, count: int, folder: Path) -> Iterator[tuple[str, Case, Program, Weights]]:
    """Graphs that read as one program for all sizes; nearly all do."""
    random = np.random.default_rng([seed, part])
    refused = 0
    for i in range(count):
        case = random_case(random, int(random.integers(3, 12)))
        path = folder / f"{i}.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            program, weights = read(path)
        except StaticError:  # a pool that rounds up, say: read again once sizes are there
            refused += 1
            continue
        yield f"seed {seed}, part {part}, graph {i}", case, program, weights
    assert refused <= max(2, count // 20), "most graphs are one program for all sizes"


def test_every_pass_takes_every_program(seed: int, tmp_path: Path) -> None:
    for i, (name, _, program, _) in enumerate(cases(seed, 0, 40, tmp_path)):
        print(name)
        after = program
        for step in pipeline.passes():  # as for an engine with all ops
            after = step.run(after)
            verify(after)
        target = cpu.TARGETS[TARGETS[i % len(TARGETS)]]
        emit_source([plan_program(program, target)]).texts(1)


@pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")
def test_native_agrees_with_onnxruntime(seed: int, tmp_path: Path) -> None:
    """One compiled program for both assignments of the dynamic dimensions."""
    found = list(cases(seed, 1, 8, tmp_path))
    for (name, case, _, weights), made in zip(found, compile_all([each[2] for each in found]), strict=True):
        assert not isinstance(made, Exception), f"{name}: {made}"
        bound = made.prepare(weights)
        for feed in case.feeds:
            got = bound(*(feed[port.name] for port in bound.signature.inputs))
            for mine, other in zip(got, on_onnxruntime(case.model, feed), strict=True):
                assert mine.shape == other.shape, name
                scale = max(1.0, float(np.abs(other).max(initial=0)))
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4 * scale, err_msg=name)
        bound.close()


def of(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def ones(*sizes: int) -> Array:
    return np.ones(sizes, np.float32)


# What broke once: nodes, the sizes of x, weights.
PATTERNS: dict[str, tuple[list[onnx.NodeProto], list[int | str], dict[str, Array]]] = {
    "tokens that a padded convolution and a product read": (
        [
            node("Relu", ["x"], ["a"]),
            node("Reshape", ["a", "image"], ["b"]),
            node("Transpose", ["b"], ["c"], perm=[0, 3, 1, 2]),
            node("Conv", ["c", "k"], ["y"], pads=[1, 1, 1, 1]),
            node("Reshape", ["c", "flat"], ["d"]),
            node("Transpose", ["d"], ["e"], perm=[0, 2, 1]),
            node("MatMul", ["e", "m"], ["z"]),
        ],
        [1, 64, 16],
        {"image": of(1, 8, 8, 16), "flat": of(1, 16, 64), "k": ones(8, 16, 3, 3), "m": ones(16, 4)},
    ),
    "a norm of one group": (
        [node("GroupNormalization", ["x", "s", "t"], ["y"], num_groups=1), node("Relu", ["x"], ["z"])],
        ["n", 4, 6],
        {"s": ones(4), "t": ones(4)},
    ),
    "a norm of as many groups as channels": (
        [node("GroupNormalization", ["x", "s", "t"], ["y"], num_groups=4), node("Relu", ["x"], ["z"])],
        ["n", 4, 6],
        {"s": ones(4), "t": ones(4)},
    ),
    "a transposed convolution of a dynamic batch": (
        [node("ConvTranspose", ["x", "k"], ["y"], strides=[2], pads=[1, 1]), node("Relu", ["x"], ["z"])],
        ["n", 4, 6],
        {"k": ones(4, 2, 3)},
    ),
}


def save_pattern(name: str, folder: Path, random: np.random.Generator) -> tuple[onnx.ModelProto, Path]:
    """A model with random weights where the pattern has ones."""
    nodes, sizes, weights = PATTERNS[name]
    drawn = {each: np.asarray(random.normal(size=array.shape), np.float32) for each, array in weights.items()
             if array.dtype == np.float32}  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "pattern",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, None) for each in ("y", "z")],
        [numpy_helper.from_array(array, each) for each, array in {**weights, **drawn}.items()],
    )
    path = folder / f"{name}.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)
    return model, path


@pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")
def test_patterns_that_broke(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    models, paths = zip(*(save_pattern(name, tmp_path, random) for name in PATTERNS), strict=True)
    programs = [read(path) for path in paths]
    for name, model, (_, weights), made in zip(
        PATTERNS, models, programs, compile_all([program for program, _ in programs]), strict=True
    ):
        assert not isinstance(made, Exception), f"{name}: {made}"
        bound = made.prepare(weights)
        for n in (1, 3):
            sizes = [size if isinstance(size, int) else n for size in PATTERNS[name][1]]
            x = random.normal(size=sizes).astype(np.float32)
            for mine, other in zip(bound(x), on_onnxruntime(model, {"x": x}), strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4, err_msg=name)
