"""ResNet-18 with batch statistics as one loss for smelt, JAX and PyTorch, over one set of weights (NCHW, OIHW)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Classes, channels of the first stage, side of an image, images in a batch."""

    classes: int = 1000
    channels: int = 64
    side: int = 224
    batch: int = 16


WIDE = Sizes()
SMALL = Sizes(classes=10, channels=16, side=64, batch=8)


def blocks(sizes: Sizes) -> Iterator[tuple[str, int, int, int]]:
    """(name, input channels, output channels, stride) of the eight residual blocks."""
    before = sizes.channels
    for stage in range(4):
        after = sizes.channels << stage
        for i in range(2):
            yield f"{stage}.{i}", before, after, 2 if stage and i == 0 else 1
            before = after


def draw_weights(sizes: Sizes, seed: int = 0) -> Arrays:
    """Convolutions drawn as He proposes; norms that start as the identity."""
    rng = np.random.default_rng(seed)
    convolutions = {"first": (sizes.channels, 3, 7, 7)}
    for name, before, after, _ in blocks(sizes):
        convolutions |= {f"{name}.1": (after, before, 3, 3), f"{name}.2": (after, after, 3, 3)}
        if before != after:
            convolutions[f"{name}.down"] = (after, before, 1, 1)
    made: Arrays = {}
    for name, shape in convolutions.items():
        made[f"{name}.weight"] = (rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        made[f"{name}.scale"], made[f"{name}.shift"] = np.ones(shape[0], np.float32), np.zeros(shape[0], np.float32)
    width = sizes.channels * 8
    made["head.weight"] = rng.normal(scale=width**-0.5, size=(width, sizes.classes)).astype(np.float32)
    made["head.bias"] = np.zeros(sizes.classes, np.float32)
    return made


def draw_batch(sizes: Sizes, step: int) -> tuple[np.ndarray, ...]:
    """Noise with a colour that depends on the label."""
    rng = np.random.default_rng([7, step])
    labels = rng.integers(sizes.classes, size=sizes.batch)
    colours = np.stack([np.sin(labels + i) for i in range(3)], 1)[:, :, None, None]
    images = rng.normal(size=(sizes.batch, 3, sizes.side, sizes.side)) + colours
    return images.astype(np.float32), labels.astype(np.int32)


# ---- smelt ----


def axes_of(name: str) -> str:
    if name == "head.weight":
        return "c k"
    return "k" if name == "head.bias" else "o c y x" if name.endswith("weight") else "c"


def smelt_loss(sizes: Sizes) -> tuple[Any, list[str]]:
    from smelt import Tensor, train

    def conv(x: Tensor, p: dict[str, Tensor], name: str, stride: int) -> Tensor:
        w = p[f"{name}.weight"]
        reach = (w.shape.numbers()[-1] - 1) // 2
        pads = {"y": (reach, reach), "x": (reach, reach)}
        y = x.conv(w, "y x", features=("c", "o"), strides=stride, padding=pads).rename(o="c")
        mean = y.mean("b y x")
        centred = y - mean
        scaled = centred * (centred.square().mean("b y x") + 1e-5).rsqrt()
        return scaled * p[f"{name}.scale"] + p[f"{name}.shift"]

    def loss(p: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        x = conv(images, p, "first", 2).relu()
        x = x.max_pool({"y": 3, "x": 3}, {"y": 2, "x": 2}, padding={"y": (1, 1), "x": (1, 1)})
        for name, before, after, stride in blocks(sizes):
            short = x if before == after else conv(x, p, f"{name}.down", stride)
            x = (conv(conv(x, p, f"{name}.1", stride).relu(), p, f"{name}.2", 1) + short).relu()
        logits = x.mean("y x").dot(p["head.weight"], "c") + p["head.bias"]
        return train.cross_entropy(logits, labels, "k")

    return loss, [f"f32[b={sizes.batch}, c=3, y={sizes.side}, x={sizes.side}]", f"i32[b={sizes.batch}]"]


# ---- JAX ----


def jax_loss(sizes: Sizes) -> Any:
    import jax
    import jax.numpy as jnp

    def conv(x: Any, p: Any, name: str, stride: int) -> Any:
        w = p[f"{name}.weight"]
        reach = (w.shape[-1] - 1) // 2
        y = jax.lax.conv_general_dilated(x, w, (stride, stride), ((reach, reach),) * 2)
        centred = y - y.mean((0, 2, 3), keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean((0, 2, 3), keepdims=True) + 1e-5)
        return scaled * p[f"{name}.scale"][:, None, None] + p[f"{name}.shift"][:, None, None]

    def loss(p: Any, images: Any, labels: Any) -> Any:
        x = jax.nn.relu(conv(images, p, "first", 2))
        pads = (0, 0), (0, 0), (1, 1), (1, 1)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)
        for name, before, after, stride in blocks(sizes):
            short = x if before == after else conv(x, p, f"{name}.down", stride)
            x = jax.nn.relu(conv(jax.nn.relu(conv(x, p, f"{name}.1", stride)), p, f"{name}.2", 1) + short)
        logits = x.mean((2, 3)) @ p["head.weight"] + p["head.bias"]
        chosen = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
        return (jax.scipy.special.logsumexp(logits, -1) - chosen).mean()

    return loss


# ---- PyTorch ----


def torch_loss(sizes: Sizes) -> Any:
    import torch.nn.functional as f

    def conv(x: Any, p: Any, name: str, stride: int) -> Any:
        w = p[f"{name}.weight"]
        y = f.conv2d(x, w, stride=stride, padding=(w.shape[-1] - 1) // 2)
        return f.batch_norm(y, None, None, p[f"{name}.scale"], p[f"{name}.shift"], True, 0.0, 1e-5)

    def loss(p: Any, images: Any, labels: Any) -> Any:
        x = f.max_pool2d(f.relu(conv(images, p, "first", 2)), 3, 2, 1)
        for name, before, after, stride in blocks(sizes):
            short = x if before == after else conv(x, p, f"{name}.down", stride)
            x = f.relu(conv(f.relu(conv(x, p, f"{name}.1", stride)), p, f"{name}.2", 1) + short)
        logits = x.mean((2, 3)) @ p["head.weight"] + p["head.bias"]
        return f.cross_entropy(logits, labels.long())

    return loss
