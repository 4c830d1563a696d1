"""Convolutions whose channels, features or windows are dynamic dimensions, of floats and of bytes, against onnxruntime.

Bytes are small, so that no processor's onnxruntime saturates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.device import cpu
from smelt.engine.native import compile_all
from smelt.engine.reference import ReferenceEngine
from smelt.errors import RunError, ShapeError
from smelt.read.onnx import StaticError, read
from tests.onnx_nodes import Draw, Node, on_onnxruntime

SIZES = {"C": 3, "O": 4, "K": 3, "H": 7, "W": 8, "N": 2}


def small(random: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    return random.integers(0, 16, sizes)


BYTES: dict[str, Draw] = dict.fromkeys(("x", "w", "xz", "wz", "yz"), small)
LINEAR: dict[str, Draw] = {**BYTES, "wz": lambda random, sizes: np.zeros(sizes), "yscale": lambda r, s: np.full(s, 0.5)}


def integer(x: str, w: str, zero: bool, kernel: bool = True, **more: Any) -> Node:
    ports = f"x:ui8[{x}] w:ui8[{w}] xz:ui8[]" + (" wz:ui8[]" if zero else "")
    shape: dict[str, Any] = {"kernel_shape": [3, 3]} if kernel else {}
    return Node("ConvInteger", ports, domain="", draw=BYTES, **shape, **more)


def linear(x: str, w: str) -> Node:
    ports = f"x:ui8[{x}] xscale:f32[] xz:ui8[] w:i8[{w}] wscale:f32[] wz:i8[] yscale:f32[] yz:ui8[]"
    return Node("QLinearConv", ports, domain="", draw=LINEAR, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


NODES = [
    integer("N,C,H,W", "4,3,3,3", False),
    integer("2,C,7,W", "4,3,3,3", True),
    integer("N,C,H,W", "O,C,K,K", True),
    integer("N,3,H,W", "4,3,K,K", True, strides=[2, 1]),
    integer("N,3,H,W", "4,3,3,3", True, pads=[1, 0, 1, 1]),  # a zero point of the weights, and dynamic dimensions
    linear("N,C,H,W", "4,3,3,3"),
    linear("2,3,7,8", "O,3,K,K"),
    Node("Conv", "x:f32[N,C,H,W] w:f32[O,C,K,K]", domain="", kernel_shape=[3, 3]),
    Node("ConvTranspose", "x:f32[N,3,H,W] w:f32[3,4,K,K]", domain="", kernel_shape=[3, 3], strides=[2, 2]),
    Node("ConvTranspose", "x:f32[N,3,7,8] w:f32[3,4,3,3]", domain="", weights="w", strides=[2, 2], pads=[1, 1, 1, 1]),
]


def test_dynamic_convolutions(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [node.arrays(random, SIZES) for node in NODES]
    models = [node.model(each) for node, each in zip(NODES, arrays, strict=True)]
    paths = [tmp_path / f"{i}.onnx" for i in range(len(NODES))]
    for path, model in zip(paths, models, strict=True):
        path.write_bytes(model.SerializeToString())
    read_in = [read(path) for path in paths]
    made = [[ReferenceEngine().compile(program) for program, _ in read_in]]
    if cpu.compiler() is not None:
        made.append(compile_all([program for program, _ in read_in]))  # type: ignore[arg-type]
    for engine in made:
        for node, feed, model, each, (_, weights) in zip(NODES, arrays, models, engine, read_in, strict=True):
            assert not isinstance(each, Exception), f"{node}: {each}"
            bound = each.prepare(weights)
            (got,) = bound(*(feed[port.name] for port in bound.signature.inputs))
            np.testing.assert_allclose(got, on_onnxruntime(model, feed)[0], rtol=1e-4, atol=1e-5, err_msg=str(node))


def test_kernels_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    node = integer("2,3,7,8", "4,3,K,K", False)
    path.write_bytes(node.model({}).SerializeToString())
    program, weights = read(path)
    run = ReferenceEngine().compile(program).prepare(weights)
    for size, said in ((2, "the kernel is smaller than 'kernel_shape': 3 is more than 2"), (5, "larger")):
        arrays = node.arrays(np.random.default_rng(1), {"K": size})
        with pytest.raises(RunError, match=said):
            run(*(arrays[port.name] for port in run.signature.inputs))
    path.write_bytes(integer("2,3,7,8", "4,3,K,K", False, kernel=False).model({}).SerializeToString())
    with pytest.raises(StaticError, match="a kernel whose size is not fixed") as caught:
        read(path)
    assert caught.value.sizes
    path.write_bytes(integer("2,3,7,8", "4,3,2,3", False).model({}).SerializeToString())
    with pytest.raises(ShapeError, match="the kernel does not fit") as wrong:
        read(path)
    assert wrong.value.expected == (3, 3)
