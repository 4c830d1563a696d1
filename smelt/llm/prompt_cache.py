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
from smelt.llm.config import LONG, PAGE, Config
from smelt.llm.pages import Pages
from smelt.read import safetensors
from smelt.weights import Weights

FORMAT = "smelt prompt cache 3"


def save(path: Path, tokens: list[int], pool: Pool, config: Config, model: str) -> int:
    """Write the known pages that a prompt begins with, from the window on; how many tokens need not be computed."""
    sequence = pool.pages.match([*tokens, 0], len(tokens))
    rotary = "long" if sequence.is_long else ""
    count = sequence.length
    arrays: dict[str, Array] = {"tokens": np.array(tokens[:count], np.int32)}
    try:
        for layer in range(len(config.layers) if count else 0):
            held = sequence.sliding if config.is_sliding(layer) else sequence
            assert held is not None
            arrays[f"keys.{layer}"], arrays[f"values.{layer}"] = pool.read(layer, held.held)
    finally:
        pool.pages.free(sequence)
    if not count:
        raise RunError("the prompt has no full page", expected=f"{PAGE} tokens or more", got=len(tokens))
    try:
        safetensors.write(path, arrays, {"format": FORMAT, "model": model, "rotary": rotary})
    except OSError as error:
        raise FileError(f"cannot write {path}", got=error) from error
    return count


def load(path: Path, pool: Pool, config: Config, model: str) -> int:
    """Make a file's pages known; how many tokens need not be computed then. Pages that find no room are left out, from
    the end on."""
    weights = safetensors.read(path)
    if weights.metadata.get("format") != FORMAT:
        got = weights.metadata.get("format")
        raise ParseError(
            f"{path}: no prompt cache of this version", expected=FORMAT, got=got, remedy="save_cache again"
        )
    if weights.metadata.get("model") != model:
        raise FileError(
            f"{path}: computed by another model, or with another precision= or cache=",
            remedy="save_cache again with this one",
        )
    tokens = _read_tensor(weights, "tokens", (-1,), np.int32)
    count = len(tokens) // PAGE
    if count * PAGE != len(tokens) or not count or tokens.min() < 0 or tokens.max() >= config.v:
        raise ParseError(f"{path}: not whole pages of tokens", got=len(tokens))
    is_long = weights.metadata.get("rotary") == "long"
    chain = pool.pages.chain(tokens.tolist(), is_long)
    first = {slides: 0 if pages is None else pages.left_window(count) for slides, pages in _kinds(pool)}
    layers = []
    for layer in range(len(config.layers)):
        names = f"keys.{layer}", f"values.{layer}"
        sizes = pool_sizes(config, count - first[config.is_sliding(layer)])  # pages before it are not in the file
        layers.append([_read_tensor(weights, *pair, config.cache.numpy) for pair in zip(names, sizes, strict=True)])
    adopted: dict[bool, dict[int, int]] = {}  # page → its number in the file
    for slides, pages in _kinds(pool):
        adopted[slides] = {} if pages is None else _adopt_pages(pages, chain[first[slides] :])
    pool.write(
        [
            {page: (keys[number], values[number]) for page, number in adopted[config.is_sliding(layer)].items()}
            for layer, (keys, values) in enumerate(layers)
        ]
    )
    known = pool.pages.match([*tokens.tolist(), 0], LONG if is_long else 0)
    length = known.length
    pool.pages.free(known)
    return length


def _adopt_pages(pages: Pages, chain: list[bytes]) -> dict[int, int]:
    """Pages for content with these hashes, each with its number. The beginning comes last: it is what stays where there
    is no room for all of them."""
    adopted: dict[int, int] = {}
    for number in reversed(range(len(chain))):
        if (page := pages.adopt(chain[number])) is not None:
            adopted[page] = number
    return adopted


def _kinds(pool: Pool) -> list[tuple[bool, Pages | None]]:
    return [(slides, pool.pages_of(slides)) for slides in (False, True)]


def _read_tensor(weights: Weights, name: str, sizes: tuple[int, ...], kind: np.dtype[Any] | type) -> Array:
    """A tensor of a file, of these sizes; -1 is any."""
    array = weights[name].numpy() if name in weights else np.zeros((), bool)
    fits = array.dtype == kind and array.ndim == len(sizes)
    if not fits or any(size not in (-1, have) for size, have in zip(sizes, array.shape, strict=True)):
        got = f"{array.dtype}{list(array.shape)}" if name in weights else "nothing"
        raise ParseError(f"{weights.source}: {name}", expected=f"{np.dtype(kind)}{list(sizes)}", got=got)
    return array
