"""Training: structures of parameters → one compiled step → trained parameters.

`Trainer` compiles loss, gradient and update into one program with donated state. Optimisers, losses and metrics are
functions of tensors; checkpoints are safetensors files. See docs/training.md.
"""

from __future__ import annotations

from smelt.train.ctc import ctc
from smelt.train.curves import draw_curves
from smelt.train.data import batches, prefetch
from smelt.train.events import EventFile
from smelt.train.imported import Imported
from smelt.train.lora import adapt, lora
from smelt.train.losses import binary_cross_entropy, contrastive, cross_entropy, huber, mse, triplet
from smelt.train.matrices import adafactor, muon
from smelt.train.metrics import accuracy, confusion, f1, perplexity, top_k_accuracy
from smelt.train.mixed import mixed
from smelt.train.optimisers import Optimiser, adam, adamw, average, clip, lion, rmsprop, sgd
from smelt.train.schedules import cosine, linear, one_cycle, step_decay, warm_up
from smelt.train.stepping import accumulate, scale_loss, skip_infinite
from smelt.train.trainer import Trainer

__all__ = [
    "EventFile",
    "Imported",
    "Optimiser",
    "Trainer",
    "accumulate",
    "accuracy",
    "adafactor",
    "adam",
    "adamw",
    "adapt",
    "average",
    "batches",
    "binary_cross_entropy",
    "clip",
    "confusion",
    "contrastive",
    "cosine",
    "cross_entropy",
    "ctc",
    "draw_curves",
    "f1",
    "huber",
    "linear",
    "lion",
    "lora",
    "mixed",
    "mse",
    "muon",
    "one_cycle",
    "perplexity",
    "prefetch",
    "rmsprop",
    "scale_loss",
    "sgd",
    "skip_infinite",
    "step_decay",
    "top_k_accuracy",
    "triplet",
    "warm_up",
]
