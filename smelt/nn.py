"""`import smelt.nn` is `from smelt import nn`: both give the package smelt.tensor.nn."""

from __future__ import annotations

import sys

from smelt.tensor import nn
from smelt.tensor.nn import *  # noqa: F403  for type checkers

sys.modules[__name__] = nn
