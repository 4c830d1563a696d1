"""Layers: `from smelt import nn`. Made from names and sizes of axes, with parameters as torch's checkpoints have.

    class MLP(smelt.Model):
        up: nn.Linear = nn.Linear(d=784, f="F")
        down: nn.Linear = nn.Linear(f="F", c=10)

        def forward(self, x: Shaped[Tensor, "f32[b=B, d=784]"]) -> Tensor:
            return self.down(nn.relu(self.up(x)))

A layer has parameters without values until a checkpoint is bound (`smelt.instantiate`, `smelt.tensor.model.build`);
tracing and proving need none. Sizes are numbers or symbols; a symbol is one size in the whole model.
"""

from __future__ import annotations

from smelt.tensor.model import parameter
from smelt.tensor.nn.activations import (
    activation,
    elu,
    gelu,
    gelu_tanh,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log_softmax,
    mish,
    quick_gelu,
    relu,
    relu6,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from smelt.tensor.nn.attention import MultiHeadAttention, RoPE, attention
from smelt.tensor.nn.convolution import (
    AvgPool,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    MaxPool,
    global_avg_pool,
    global_max_pool,
)
from smelt.tensor.nn.layers import Dropout, Embedding, Linear, Sequential
from smelt.tensor.nn.norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from smelt.tensor.nn.recurrent import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AvgPool",
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "MaxPool",
    "MultiHeadAttention",
    "RMSNorm",
    "RoPE",
    "Sequential",
    "activation",
    "attention",
    "elu",
    "gelu",
    "gelu_tanh",
    "global_avg_pool",
    "global_max_pool",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log_softmax",
    "mish",
    "parameter",
    "quick_gelu",
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]
