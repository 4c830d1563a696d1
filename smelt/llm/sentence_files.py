"""The files of sentence-transformers → `Pooling`: `modules.json` and the configurations that it names. Pooling, dense
layers and normalisation; anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import FileError, ParseError, UnsupportedError
from smelt.llm.pooling import ACTIVATIONS, MODES, Dense, Normalise, Pooling
from smelt.read import checkpoint

MAX_JSON = 1 << 20
# `pooling_mode_…` of older files → the mode; several are concatenated in this order
_OLD = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}


def read_pooling(folder: Path) -> Pooling:
    """What a folder's files say; the mean over tokens where they say nothing."""
    modules = _json(folder / "modules.json")
    record = _record(folder / "sentence_bert_config.json")
    talks = _record(folder / "config_sentence_transformers.json")
    modes: tuple[str, ...] = ("mean",)
    steps: list[Normalise | Dense] = []
    for module in modules if isinstance(modules, list) else []:
        is_record = isinstance(module, Mapping) and all(isinstance(module.get(key), str) for key in ("path", "type"))
        if not is_record or "\0" in module["path"]:
            raise ParseError(f"{folder}: modules.json", expected="records with a path and a type", got=module)
        inside = (folder / module["path"]).resolve()
        if folder.resolve() not in (inside, *inside.parents):
            raise ParseError(f"{folder}: modules.json leads out of the folder", got=module["path"])
        match module["type"].rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling":
                modes = _modes(_record(inside / "config.json"), str(inside))
            case "Normalize":
                steps.append(Normalise())
            case "Dense":
                steps.append(_dense(inside))
            case other:
                raise UnsupportedError(f"{folder}: unknown module", expected="Pooling, Dense, Normalize", got=other)
    prompts, default = talks.get("prompts") or {}, talks.get("default_prompt_name")
    if not isinstance(prompts, Mapping) or not all(isinstance(each, str) for each in prompts.values()):
        raise ParseError(f"{folder}: prompts are texts", got=prompts)
    most = record.get("max_seq_length")
    return Pooling(
        modes,
        tuple(steps),
        most if type(most) is int and most > 0 else None,
        record.get("do_lower_case") is True,
        dict(prompts),
        default if isinstance(default, str) and default in prompts else None,
    )


def _modes(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if record.get("include_prompt") is False:
        raise UnsupportedError(f"{where}: include_prompt=false, prompts that are left out of the vector")
    given = record.get("pooling_mode")
    if given is None:
        found: Sequence[Any] = [mode for key, mode in _OLD.items() if record.get(f"pooling_mode_{key}") is True]
    else:
        found = given if isinstance(given, list) else [given]
    found = found or ["mean"]
    if unknown := [each for each in found if not isinstance(each, str) or each not in MODES]:
        raise UnsupportedError(f"{where}: unknown pooling", expected=", ".join(MODES), got=unknown)
    return tuple(found)


def _dense(folder: Path) -> Dense:
    record = _record(folder / "config.json")
    name = str(record.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{folder}: unknown activation", expected=", ".join(ACTIVATIONS), got=name)
    weights = checkpoint.open(folder)
    matrix = weights["linear.weight"].numpy().astype(np.float64)
    bias = weights["linear.bias"].numpy() if "linear.bias" in weights else np.zeros(matrix.shape[:1])
    return Dense(matrix, bias.astype(np.float64), name)


def _record(path: Path) -> Mapping[str, Any]:
    found = _json(path)
    if found is not None and not isinstance(found, Mapping):
        raise ParseError(f"{path}: not an object", got=type(found).__name__)
    return found or {}


def _json(path: Path) -> Any:
    """What a file says; None where there is none."""
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_JSON:
        raise ParseError(f"{path}: too large", expected=f"at most {MAX_JSON} bytes", got=path.stat().st_size)
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}", got=error) from error
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path}: not JSON", got=error) from None
