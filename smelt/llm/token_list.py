"""What a caller gives for tokens → a list of whole numbers. Shared by decoders and encoders."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.errors import RunError


def read_tokens(given: Any) -> list[int]:
    """The tokens that a caller gave; anything but a list of whole numbers, at least one, is refused."""
    try:
        tokens = np.asarray(given)
    except ValueError:  # lists of different lengths
        tokens = np.asarray(None)
    if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
        raise RunError(
            "tokens are a list of whole numbers, at least one",
            got=f"{tokens.dtype}{list(tokens.shape)}",
            remedy="give a text, or the numbers of its tokens",
        )
    found: list[int] = tokens.tolist()
    return found
