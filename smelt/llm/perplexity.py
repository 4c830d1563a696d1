"""Perplexity of a model on a text: the exponential of the mean negative log-likelihood of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smelt.errors import RunError
from smelt.llm.language_model import LanguageModel

WINDOW = 512  # tokens that are scored together


def perplexity(model: LanguageModel, tokens: Sequence[int], window: int = WINDOW) -> float:
    """Over windows of tokens; the first token of each is given."""
    size = min(window, model.context)
    total, count = 0.0, 0
    for at in range(0, len(tokens) - 1, size):
        part = list(tokens[at : at + size])
        if len(part) < 2:
            break
        logits = model.logits(part)[:-1].astype(np.float64)
        top = logits.max(1)
        logs = top + np.log(np.exp(logits - top[:, None]).sum(1))
        total += float((logs - logits[np.arange(len(part) - 1), part[1:]]).sum())
        count += len(part) - 1
    if not count:
        raise RunError("a text of at least two tokens has a perplexity", got=len(tokens))
    return math.exp(total / count)
