"""Training: structures of parameters → one compiled step → trained parameters.

`Trainer` compiles loss, gradient and update into one program with donated state. Optimisers, losses and metrics are
functions of tensors; checkpoints are safetensors files. See docs/training.md.
"""

from __future__ import annotations

from smelt.train.ctc import ctc
from smelt.train.data import batches
from smelt.train.losses import binary_cross_entropy, contrastive, cross_entropy, huber, mse, triplet
from smelt.train.matrices import adafactor, muon
from smelt.train.metrics import accuracy, confusion, f1, perplexity, top_k_accuracy
from smelt.train.optimisers import Optimiser, adam, adamw, average, clip, lion, rmsprop, sgd
from smelt.train.schedules import cosine, linear, one_cycle, step_decay, warm_up
from smelt.train.trainer import Trainer

__all__ = [
    "Optimiser",
    "Trainer",
    "accuracy",
    "adafactor",
    "adam",
    "adamw",
    "average",
    "batches",
    "binary_cross_entropy",
    "clip",
    "confusion",
    "contrastive",
    "cosine",
    "cross_entropy",
    "ctc",
    "f1",
    "huber",
    "linear",
    "lion",
    "mse",
    "muon",
    "one_cycle",
    "perplexity",
    "rmsprop",
    "sgd",
    "step_decay",
    "top_k_accuracy",
    "triplet",
    "warm_up",
]
