"""`smelt embed`: texts as vectors; JSON, or an .npy file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import FileError, RunError
from smelt.llm import load


def embed(
    path: Path, texts: Sequence[str], output: Path | None, loading: Mapping[str, Any], as_json: bool, prompt: str = ""
) -> None:
    """Vectors of texts, or of the lines of the standard input where there are none."""
    given = list(texts) or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not given:
        raise RunError("nothing to embed", remedy="smelt embed MODEL TEXT…, or lines on the standard input")
    with load(path, **loading) as model:
        vectors = model.embed(given, prompt=prompt or None)
    if output is not None:
        try:
            np.save(output, vectors)
        except OSError as error:
            raise FileError(f"cannot write {output}", got=error, remedy="a file in another folder") from error
    elif as_json:
        print(json.dumps({"model": str(path), "embeddings": vectors.tolist()}))
    else:
        for vector in vectors:
            print(" ".join(f"{number:.6g}" for number in vector))
