"""`open`: a checkpoint on disk as Weights: safetensors, shards with an index, a folder, `.npz`, GGUF.

In: a path. Out: names, shapes and lazy, mapped arrays; only headers are read. `smelt.open` calls it. The files of an
index must be in its own folder.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smelt.errors import FileError, ParseError, UnsupportedError, advise
from smelt.files import read_bytes
from smelt.read import gguf, npz, safetensors
from smelt.weights import Stored, Weights

INDEX = ".safetensors.index.json"
MAX_JSON = 100_000_000  # bytes of an index or a configuration
FORMS = "a .safetensors file, an index of shards (.safetensors.index.json), a folder with them, an .npz or a .gguf file"


@advise("download or copy the file again: it may be damaged", ParseError)
@advise("smelt.open takes such a file or folder; check the path", FileError, UnsupportedError)
def open(path: str | Path) -> Weights:
    """The weights at a path: `smelt.open("model.safetensors")["embed.weight"].shape`. No tensor is read."""
    path = Path(path)
    if os.path.isdir(path):  # Path.is_dir raises for names that are too long
        return _folder(path)
    if not os.path.isfile(path):
        raise FileError("no such file or folder", expected=FORMS, got=path)
    if path.name.endswith(INDEX):
        return _shards(path)
    if path.suffix == ".safetensors":
        return _with_config(safetensors.read(path), path.parent)
    if path.suffix == ".npz":
        return npz.read(path)
    if path.suffix == ".gguf":
        return gguf.read(path).dense
    raise UnsupportedError("unknown form of weights", expected=FORMS, got=path.name, where=path)


def _folder(folder: Path) -> Weights:
    """A folder as the Hugging Face hub lays it out: an index if there is one, else a file, else all files."""
    indices = sorted(folder.glob(f"*{INDEX}"))
    if len(indices) == 1:
        return _shards(indices[0])
    files = sorted(folder.glob("*.safetensors"))
    if len(indices) > 1 or not files:
        archives = sorted(folder.glob("*.npz"))
        if not indices and len(archives) == 1:
            return _with_config(npz.read(archives[0]), folder)
        found = ", ".join(path.name for path in (indices or archives)) or "none of them"
        raise FileError("a folder without one set of weights", expected=FORMS, got=found, where=folder)
    named = next((path for path in files if path.name == "model.safetensors"), None)
    if named is not None or len(files) == 1:
        return _with_config(safetensors.read(named or files[0]), folder)
    return _together({path.name: safetensors.read(path) for path in files}, folder)


def _together(parts: Mapping[str, Weights], folder: Path) -> Weights:
    """Files without an index: every name must be in one of them only."""
    stored: dict[str, Stored] = {}
    owner: dict[str, str] = {}
    for file, weights in parts.items():
        for name in weights:
            if name in stored:
                got = f"{owner[name]} and {file}"
                raise ParseError(f"{folder}: tensor {name!r} is in two files", expected="one", got=got)
            stored[name], owner[name] = weights.find(name), file
    return Weights(stored, _metadata(parts), str(folder), _config(folder))


def _shards(index: Path) -> Weights:
    record = _json(index)
    places = record.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ParseError(f"{index}: no weight_map of names to files", got=type(places).__name__)
    names: dict[str, list[str]] = defaultdict(list)
    for name, file in places.items():
        names[file].append(name)
    stored: dict[str, Stored] = {}
    parts: dict[str, Weights] = {}
    for file, inside in names.items():
        if Path(file).name != file or file in (".", ".."):
            raise ParseError(f"{index}: a shard is in another folder", expected="a file beside the index", got=file)
        parts[file] = shard = safetensors.read(index.parent / file)
        missing = [name for name in inside if name not in shard]
        if missing:
            raise ParseError(f"{index}: {file} lacks tensors of the index", got=", ".join(missing[:5]))
        stored |= {name: shard.find(name) for name in inside}
    return Weights({name: stored[name] for name in places}, _metadata(parts), str(index), _config(index.parent))


def _metadata(parts: Mapping[str, Weights]) -> dict[str, str]:
    """The merged metadata of all files; of different values the first."""
    merged: dict[str, str] = {}
    for weights in parts.values():
        merged = {**weights.metadata, **merged}
    return merged


def _with_config(weights: Weights, folder: Path) -> Weights:
    config = _config(folder)
    if not config:
        return weights
    return Weights({name: weights.find(name) for name in weights}, weights.metadata, weights.source, config)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_bytes(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path}: not JSON", got=error) from None
    if not isinstance(record, dict):
        raise ParseError(f"{path}: not an object", got=type(record).__name__)
    return record
