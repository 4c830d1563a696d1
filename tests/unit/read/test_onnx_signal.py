"""Fourier transforms, windows and the mel scale in ONNX, against NumPy's transforms and onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.errors import ShapeError
from tests.unit.read.peer import element, node_model, ours, same, theirs


def spectrum(x: Array, axis: int, length: int | None, inverse: bool, onesided: bool) -> Array:
    """NumPy's transform, in the parts that ONNX has."""
    z = x[..., 0].astype(np.float64) if x.shape[-1] == 1 else x[..., 0].astype(np.float64) + 1j * x[..., 1]
    if onesided and inverse:
        return np.fft.irfft(z, length, axis)[..., None].astype(x.dtype)
    made = (np.fft.rfft if onesided else np.fft.ifft if inverse else np.fft.fft)(z, length, axis)
    return np.stack([made.real, made.imag], -1).astype(x.dtype)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("length", [None, 5, 8, 13])
@pytest.mark.parametrize(("inverse", "onesided"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("open_axis", [False, True])
def test_dft(
    tmp_path: Path, seed: int, kind: type, length: int | None, inverse: int, onesided: int, open_axis: bool
) -> None:
    """All lengths: cut off, as it is, filled up; with a batch that is open, and a length that is."""
    random = np.random.default_rng(seed)
    for axis, opset in ((1, 17), (-2, 20), (2, 20)):
        for parts in (1, 2):
            if onesided and (parts == 1) == bool(inverse):
                continue
            x: Array = random.normal(size=(2, 8, 9, parts)).astype(kind)
            place = axis % 4
            attributes: dict[str, Any] = {"inverse": inverse, "onesided": onesided}
            inputs: list[Array | None] = [x, None if length is None else np.array(length)]
            if opset == 17:
                attributes["axis"] = axis
            else:
                inputs.append(np.array(axis))
            symbolic = [(0, place) if open_axis else (0,)]
            model = node_model("DFT", inputs, [element(x)], attributes, "", {"": opset}, symbolic, (1, 2))
            for rows in (x, x[:1]):
                (found,), _ = ours(model, {"x0": rows}, tmp_path)
                expected = spectrum(rows, place, length, bool(inverse), bool(onesided))
                same([found], [expected], rtol=1e-4, atol=1e-4 if kind == np.float32 else 1e-12)


def test_dft_of_open_length_at_several_lengths(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 7, 1)).astype(np.float64)
    for inverse, onesided, parts in ((0, 1, 1), (1, 1, 2), (0, 0, 2)):
        attributes = {"inverse": inverse, "onesided": onesided}
        first = np.repeat(x, parts, axis=2)
        model = node_model("DFT", [first], [11], attributes, "", {"": 20}, [(0, 1)])
        for size in (2, 3, 7, 16):
            given = random.normal(size=(3, size, parts))
            (found,), _ = ours(model, {"x0": given}, tmp_path)
            same([found], [spectrum(given, 1, None, bool(inverse), bool(onesided))], rtol=1e-9, atol=1e-10)


def test_dft_against_onnxruntime(tmp_path: Path, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(2, 12, 1)).astype(np.float32)
    for attributes in ({}, {"inverse": 1}, {"onesided": 1}):
        model = node_model("DFT", [x], [1], {**attributes, "axis": 1}, "", {"": 17})
        same(ours(model, {"x0": x}, tmp_path)[0], theirs(model, {"x0": x}), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("sizes", "attributes", "inputs", "message"),
    [
        ((2, 8, 3), {}, [], "the parts of a complex number"),
        ((2, 8, 2), {"onesided": 1}, [], "'onesided' does not fit"),
        ((2, 8, 1), {"onesided": 1, "inverse": 1}, [], "'onesided' does not fit"),
        ((8,), {}, [], "axis is out of range"),
        ((2, 8, 2), {}, [np.array(0)], "impossible length"),
        ((2, 8, 2), {}, [np.array(-4)], "impossible length"),
        ((2, 8, 2), {}, [np.array(8), np.array(2)], "must not be the last one"),
        ((2, 8, 2), {}, [np.array(8), np.array(-9)], "axis is out of range"),
    ],
)
def test_transforms_that_are_none(
    tmp_path: Path, sizes: tuple[int, ...], attributes: dict[str, Any], inputs: list[Array], message: str
) -> None:
    x = np.zeros(sizes, np.float32)
    model = node_model("DFT", [x, *inputs], [1], attributes, "", {"": 20}, constant=(1, 2))
    with pytest.raises(ShapeError, match=message):
        ours(model, {"x0": x}, tmp_path)


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("open_axis", [False, True])
def test_stft(tmp_path: Path, seed: int, windowed: bool, onesided: int, open_axis: bool) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 31, 1)).astype(np.float32)
    step, length = np.array(5), np.array(8)
    window = random.random(8).astype(np.float32) if windowed else None
    symbolic = [(0, 1) if open_axis else (0,)]
    inputs = [x, step, window, None if windowed else length]
    model = node_model("STFT", inputs, [1], {"onesided": onesided}, "", {"": 17}, symbolic, (1, 3))
    for rows in (x, x[:1], *((x[:, :17],) if open_axis else ())):
        given = {"x0": rows} | ({} if window is None else {"x2": window})
        (found,), _ = ours(model, given, tmp_path)
        frames = np.lib.stride_tricks.sliding_window_view(rows[..., 0], 8, axis=1)[:, ::5].astype(np.float64)
        weighted = frames if window is None else frames * window
        made = np.fft.rfft(weighted) if onesided else np.fft.fft(weighted)
        same([found], [np.stack([made.real, made.imag], -1).astype(np.float32)], rtol=1e-4, atol=1e-5)


def test_stft_against_onnxruntime(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, window = random.normal(size=(2, 64, 1)).astype(np.float32), random.random(16).astype(np.float32)
    model = node_model("STFT", [x, np.array(8), window, np.array(16)], [1], {}, "", {"": 17}, constant=(1, 3))
    given = {"x0": x, "x2": window}
    same(ours(model, given, tmp_path)[0], theirs(model, given), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("step", "length"), [(0, 8), (-1, 8), (4, 0), (4, 99)])
def test_frames_that_are_none(tmp_path: Path, step: int, length: int) -> None:
    x = np.zeros((1, 32, 1), np.float32)
    model = node_model("STFT", [x, np.array(step), None, np.array(length)], [1], {}, "", {"": 17}, constant=(1, 3))
    with pytest.raises(ShapeError):
        ours(model, {"x0": x}, tmp_path)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("output", [1, 11])
def test_windows(tmp_path: Path, name: str, periodic: int, output: int) -> None:
    for size in (2, 10, 17):
        attributes = {"periodic": periodic, "output_datatype": output}
        model = node_model(name, [np.array(size)], [output], attributes, "", {"": 17}, constant=(0,))
        same(ours(model, {}, tmp_path)[0], theirs(model, {}), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows_of_dynamic_size(tmp_path: Path, name: str, periodic: int) -> None:
    """As long as an input is."""
    import onnx
    from onnx import helper

    nodes = [
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node(name, ["n"], ["w"], periodic=periodic, output_datatype=11),
    ]
    ports = [helper.make_tensor_value_info("x", 1, ["n"])], [helper.make_tensor_value_info("w", 11, ["n"])]
    model = helper.make_model(helper.make_graph(nodes, "g", *ports), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    assert isinstance(model, onnx.ModelProto)
    for size in (2, 9):
        x = np.zeros(size, np.float32)
        same(ours(model, {"x": x}, tmp_path)[0], theirs(model, {"x": x}), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("bins", "length", "rate", "low", "high"), [(8, 16, 8192, 0.0, 4096.0), (20, 512, 16000, 80.0, 7600.0)]
)
def test_mel_weight_matrix(tmp_path: Path, bins: int, length: int, rate: int, low: float, high: float) -> None:
    inputs: list[Array | None] = [np.array(n) for n in (bins, length, rate)]
    inputs += [np.array(n, np.float32) for n in (low, high)]
    model = node_model("MelWeightMatrix", inputs, [1], {}, "", {"": 17}, constant=range(5))
    same(ours(model, {}, tmp_path)[0], theirs(model, {}))
    beyond = [*inputs[:4], np.array(rate, np.float32)]
    with pytest.raises(ShapeError):
        ours(node_model("MelWeightMatrix", beyond, [1], {}, "", {"": 17}, constant=range(5)), {}, tmp_path)
