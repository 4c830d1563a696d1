"""Train the digit classifier of the tests: scikit-learn's 8x8 digits in, an ONNX file and a test set out.

Plain NumPy, one fixed seed, some ten seconds: `.venv/bin/python examples/digits/train.py` makes both files again.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

Array = NDArray[np.float64]

SEED = 7
SIZES = (64, 64, 32, 10)
TEST = 360  # the last images; the rest is for training
PIXEL_MAX = 16  # grey levels run from 0 to 16
# Chosen by cross-validation over contiguous quarters of the training images; the test images took no part in it.
EPOCHS = 300
BATCH = 64
RATE = 5e-3
DECAY = 0.1

ASSETS = Path(__file__).resolve().parents[2] / "smelt" / "assets"


def distort(images: Array, random: np.random.Generator) -> Array:
    """Each image slightly moved, turned, stretched and made noisy, as if more people had written the digits."""
    count = len(images)
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), -1).reshape(64, 2) - 3.5
    matrix = np.eye(2) + random.normal(0, 0.15, (count, 2, 2))
    shift = random.normal(0, 0.5, (count, 1, 2))
    padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    place = np.clip(grid @ matrix.swapaxes(1, 2) + shift + 4.5, 0, 8.999)  # [image, pixel, (row, column)] in `padded`
    corner = place.astype(int)
    part = place - corner
    out = random.normal(0, 0.1, (count, 64))
    for row in (0, 1):
        for column in (0, 1):
            share = np.abs(1 - row - part[..., 0]) * np.abs(1 - column - part[..., 1])
            out += share * padded[np.arange(count)[:, None], corner[..., 0] + row, corner[..., 1] + column]
    return out


def forward(parameters: list[Array], x: Array) -> tuple[list[Array], Array]:
    """The input of every layer, and the class probabilities. Parameters are weight [in, out] and bias [out] in turn."""
    inputs = []
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        inputs.append(x)
        x = x @ weight + bias
        if weight is not parameters[-2]:
            x = np.maximum(x, 0)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return inputs, exponentials / exponentials.sum(axis=1, keepdims=True)


def gradients(parameters: list[Array], x: Array, labels: NDArray[np.int64]) -> list[Array]:
    """The gradient of the mean cross-entropy with respect to every parameter."""
    inputs, probabilities = forward(parameters, x)
    flow = probabilities
    flow[np.arange(len(labels)), labels] -= 1
    flow /= len(labels)
    found: list[Array] = []
    for layer in reversed(range(len(inputs))):
        found[:0] = [inputs[layer].T @ flow, flow.sum(axis=0)]
        flow = (flow @ parameters[2 * layer].T) * (inputs[layer] > 0)
    return found


def train(images: Array, labels: NDArray[np.int64]) -> list[Array]:
    """Adam with decoupled weight decay and a rate that falls to zero along a cosine."""
    random = np.random.default_rng(SEED)
    parameters: list[Array] = []
    for fan_in, fan_out in pairwise(SIZES):
        parameters += [random.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out)), np.zeros(fan_out)]
    mean = [np.zeros_like(p) for p in parameters]
    square = [np.zeros_like(p) for p in parameters]
    batches = len(images) // BATCH
    for step in range(1, EPOCHS * batches + 1):
        if step % batches == 1:
            order = random.permutation(len(images))
        chosen = order[(step - 1) % batches * BATCH :][:BATCH]
        rate = RATE * (1 + np.cos(np.pi * step / (EPOCHS * batches))) / 2
        for i, gradient in enumerate(gradients(parameters, distort(images[chosen], random), labels[chosen])):
            mean[i] = 0.9 * mean[i] + 0.1 * gradient
            square[i] = 0.999 * square[i] + 0.001 * gradient**2
            update = mean[i] / (1 - 0.9**step) / (np.sqrt(square[i] / (1 - 0.999**step)) + 1e-8)
            parameters[i] = parameters[i] - rate * (update + DECAY * parameters[i] * (parameters[i].ndim == 2))
    return parameters


def to_onnx(parameters: list[Array]) -> onnx.ModelProto:
    """The network as ONNX. Each layer is spelt differently on purpose: Gemm with transB, plain Gemm, MatMul and Add."""
    w1, b1, w2, b2, w3, b3 = (p.astype(np.float32) for p in parameters)
    constants = {"w1": np.ascontiguousarray(w1.T), "b1": b1, "w2": w2, "b2": b2, "w3": w3, "b3": b3}
    nodes = [
        helper.make_node("Gemm", ["pixels", "w1", "b1"], ["sum1"], "layer1", transB=1),
        helper.make_node("Relu", ["sum1"], ["hidden1"], "relu1"),
        helper.make_node("Gemm", ["hidden1", "w2", "b2"], ["sum2"], "layer2"),
        helper.make_node("Relu", ["sum2"], ["hidden2"], "relu2"),
        helper.make_node("MatMul", ["hidden2", "w3"], ["product3"], "layer3"),
        helper.make_node("Add", ["product3", "b3"], ["logits"], "bias3"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph, producer_name="smelt-examples", opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder for digits.onnx and digits_test.npz")
    out: Path = parser.parse_args().out
    pixels, labels = load_digits(return_X_y=True)
    images = pixels / PIXEL_MAX

    parameters = train(images[:-TEST], labels[:-TEST])
    correct = forward(parameters, images[-TEST:])[1].argmax(axis=1) == labels[-TEST:]
    print(f"test accuracy {correct.mean():.2%} ({correct.sum()} of {TEST})")

    out.mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(parameters), out / "digits.onnx")
    np.savez_compressed(
        out / "digits_test.npz", images=pixels[-TEST:].astype(np.uint8), labels=labels[-TEST:].astype(np.uint8)
    )
    for name in ("digits.onnx", "digits_test.npz"):
        print(f"{out / name}: {(out / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
