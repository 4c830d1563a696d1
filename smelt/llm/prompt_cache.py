"""Keys and values of a prompt's full pages on disk: `save` writes them, `load` puts them into a pool.

The file is a safetensors file: the tokens, and keys and values per layer as a pool has them. It holds the
hash of the weights that they were computed with; another model refuses them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import FileError, ParseError, RunError
from smelt.llm.cache import Pool, pool_sizes
from smelt.llm.config import PAGE, Config
from smelt.read import safetensors
from smelt.weights import Weights

FORMAT = "smelt prompt cache 3"


def save(path: Path, tokens: list[int], pool: Pool, model: str) -> int:
    """Write the known pages that a prompt begins with, from the window on; how many tokens need not be computed."""
    sequence = pool.pages.match([*tokens, 0], len(tokens))
    rotary = "long" if sequence.is_long else ""
    try:
        content = [pool.read(page) for page in sequence.held]
    finally:
        count = sequence.length
        pool.pages.free(sequence)
    if not content:
        raise RunError("the prompt has no full page", expected=f"{PAGE} tokens or more", got=len(tokens))
    arrays: dict[str, Array] = {"tokens": np.array(tokens[:count], np.int32)}
    for layer in range(len(content[0])):
        for i, kind in enumerate(("keys", "values")):
            arrays[f"{kind}.{layer}"] = np.stack([page[layer][i] for page in content])
    try:
        safetensors.write(path, arrays, {"format": FORMAT, "model": model, "rotary": rotary})
    except OSError as error:
        raise FileError(f"cannot write {path}", got=error) from error
    return count


def load(path: Path, pool: Pool, config: Config, model: str) -> int:
    """Make a file's pages known; how many tokens they hold. Pages that find no room are left out."""
    weights = safetensors.read(path)
    if weights.metadata.get("format") != FORMAT:
        raise ParseError(f"{path}: no prompt cache", expected=FORMAT, got=weights.metadata.get("format"))
    if weights.metadata.get("model") != model:
        raise FileError(f"{path}: computed by another model", remedy="save_cache again with this one")
    tokens = _read_tensor(weights, "tokens", (-1,), np.int32)
    count = len(tokens) // PAGE
    if count * PAGE != len(tokens) or not count or tokens.min() < 0 or tokens.max() >= config.v:
        raise ParseError(f"{path}: not whole pages of tokens", got=len(tokens))
    is_long = weights.metadata.get("rotary") == "long"
    first = pool.pages.left_window(count)  # pages before it are not in the file
    sizes = pool_sizes(config, count - first)
    layers = []
    for layer in range(len(config.layers)):
        names = f"keys.{layer}", f"values.{layer}"
        layers.append([_read_tensor(weights, *pair, config.cache.numpy) for pair in zip(names, sizes, strict=True)])
    content = {}
    for number, digest in enumerate(pool.pages.chain(tokens.tolist(), is_long)[first:]):
        page = pool.pages.adopt(digest)
        if page is not None:
            content[page] = [(keys[number], values[number]) for keys, values in layers]
    pool.write(content)
    return count * PAGE


def _read_tensor(weights: Weights, name: str, sizes: tuple[int, ...], kind: np.dtype[Any] | type) -> Array:
    """A tensor of a file, of these sizes; -1 is any."""
    array = weights[name].numpy() if name in weights else np.zeros((), bool)
    fits = array.dtype == kind and array.ndim == len(sizes)
    if not fits or any(size not in (-1, have) for size, have in zip(sizes, array.shape, strict=True)):
        got = f"{array.dtype}{list(array.shape)}" if name in weights else "nothing"
        raise ParseError(f"{weights.source}: {name}", expected=f"{np.dtype(kind)}{list(sizes)}", got=got)
    return array
