"""The layers and functions of `smelt.tensor.nn` under their public name: `from smelt import nn`, `import smelt.nn`."""

from smelt.tensor.nn import *  # noqa: F403
