"""Training: structures of parameters → one compiled step → trained parameters.

`Trainer` compiles loss, gradient and update into one program with donated state. Optimisers and losses are functions of
tensors; checkpoints are safetensors files. See docs/training.md.
"""

from __future__ import annotations

from smelt.train.data import batches
from smelt.train.losses import binary_cross_entropy, cross_entropy, huber, mse
from smelt.train.optimisers import Optimiser, adam, adamw, clip, cosine, lion, rmsprop, sgd
from smelt.train.trainer import Trainer

__all__ = [
    "Optimiser",
    "Trainer",
    "adam",
    "adamw",
    "batches",
    "binary_cross_entropy",
    "clip",
    "cosine",
    "cross_entropy",
    "huber",
    "lion",
    "mse",
    "rmsprop",
    "sgd",
]
