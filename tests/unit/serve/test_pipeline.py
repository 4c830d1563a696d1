"""Pipelines: the proof that steps fit, and requests through Python steps and models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.engine_api import Port
from smelt.errors import ShapeError, SmeltError
from smelt.serve.config import ModelConfig, StepConfig
from smelt.serve.pipeline import Called, connect
from smelt.serve.step import ModelStep, PythonStep, parse_value, step, use
from tests.unit.serve.client import DIGITS, Client, model, serving

STEPS = """
import numpy as np
from smelt.serve.step import step, use

@step(image="ui8[B, 8, 8]", returns={"pixels": "f32[B, 64]"})
def prepare(image):
    if image.max(initial=0) > 16:
        raise ValueError("pixels go from 0 to 16")
    return image.reshape(len(image), 64).astype(np.float32)

@step(probabilities="f32[N, C]", returns={"digit": "i64[N]", "names": "str[N]"})
def best(probabilities):
    found = probabilities.argmax(1)
    return {"digit": found, "names": np.array([f"digit {i}" for i in found], object)}

@step(words="str[N]", returns={"pixels": "f32[N, 64]"})
def from_words(words):
    return np.array([[len(word)] * 64 for word in words], np.float32).reshape(-1, 64)

@step(pixels="f32[N, 64]", returns={"out": "f32[N, 64]"})
def lies(pixels):
    return pixels[:, :3]

@step(pixels="f32[N, 64]", returns={"out": "f32[N, 64]"})
def breaks(pixels):
    return {}["nothing"]

PIPELINE = [prepare, "digits", best]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipelines")
    (path / "classify.py").write_text(STEPS)
    for name, lines in {
        "words": '[[steps]]\npython = "steps.py:from_words"\n[[steps]]\nmodel = "digits"',
        "renamed": '[[steps]]\nmodel = "digits"\ninputs = { pixels = "x" }\noutputs = { probabilities = "y" }',
        "lies": '[[steps]]\npython = "steps.py:lies"',
        "breaks": '[[steps]]\npython = "steps.py:breaks"',
    }.items():
        (path / "repository" / name).mkdir(parents=True)
        (path / "repository" / name / "steps.py").write_text(STEPS)
        (path / "repository" / name / "config.toml").write_text(f"trusted = true\n{lines}\n")
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    models = [ModelConfig(path=str(folder / "classify.py")), ModelConfig(path=str(folder / "repository"))]
    with serving(*models, model(DIGITS, trusted=True)) as made:
        yield made


def ask(client: Client, name: str, inputs: Any) -> Any:
    reply = client.post(f"/api/v1/models/{name}/infer", {"inputs": inputs})
    assert reply.status == 200, reply.body
    return reply.json["outputs"]


def test_a_request_goes_through_python_and_a_model(client: Client) -> None:
    images = (np.arange(128, dtype=np.uint8) % 17).reshape(2, 8, 8)
    want = smelt.load(DIGITS, engine="reference")(images.reshape(2, 64).astype(np.float32))["probabilities"]
    got = ask(client, "classify", images.tolist())
    assert got == {"digit": want.argmax(1).tolist(), "names": [f"digit {i}" for i in want.argmax(1)]}
    np.testing.assert_allclose(ask(client, "renamed", {"x": images.reshape(2, 64).tolist()})["y"], want, rtol=1e-6)
    assert np.shape(ask(client, "words", ["a", "bcd"])["probabilities"]) == (2, 10)


def test_it_looks_like_a_model(client: Client) -> None:
    meta = client.get("/v2/models/classify").json
    assert meta["platform"] == "smelt_pipeline"
    assert meta["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 8, 8]}]
    assert {row["name"]: row["datatype"] for row in meta["outputs"]} == {"digit": "INT64", "names": "BYTES"}
    (version,) = client.get("/api/v1/models/classify").json["versions"]
    assert version["inputs"][0]["shape"] == ["B", 8, 8]
    assert client.get("/api/v1/models/classify/program").status in (400, 403)


def test_whose_mistake_it_is(client: Client) -> None:
    high = client.post("/api/v1/models/classify/infer", {"inputs": [[[17] * 8] * 8]})
    assert (high.status, "pixels go from 0 to 16" in high.json["error"]) == (400, True)
    assert client.post("/api/v1/models/classify/infer", {"inputs": [[[1] * 7] * 8]}).status == 400
    for name, words in (("lies", "'out' does not fit"), ("breaks", "KeyError")):
        reply = client.post(f"/api/v1/models/{name}/infer", {"inputs": [[0] * 64]})
        assert (reply.status, words in reply.json["error"]) == (500, True), reply.body


def test_a_model_that_is_gone_or_changed_is_said(folder: Path) -> None:
    with serving(ModelConfig(path=str(folder / "classify.py")), model(DIGITS, trusted=True), admin=True) as client:
        assert ask(client, "classify", [[[0] * 8] * 8])
        client.post("/v2/repository/models/digits/unload")
        assert client.post("/api/v1/models/classify/infer", {"inputs": [[[0] * 8] * 8]}).status == 503
        client.post("/v2/repository/models/digits/load")
        assert ask(client, "classify", [[[0] * 8] * 8])
    with serving(ModelConfig(path=str(folder / "classify.py")), model(DIGITS, name="other")) as client:
        reply = client.post("/api/v1/models/classify/infer", {"inputs": []})
        assert (reply.status, "no model 'digits'" in reply.json["error"]) == (503, True)


def test_a_model_that_was_unloaded_to_save_memory_comes_back(folder: Path) -> None:
    models = [ModelConfig(path=str(folder / "classify.py")), model(DIGITS, trusted=True)]
    with serving(*models, model(DIGITS, name="other", trusted=True), memory_budget="500MB") as client:
        client.run(client.app.catalogue.unload("digits"))
        client.app.catalogue.pick("digits").on_demand = True
        assert ask(client, "classify", [[[0] * 8] * 8])


# ---- the proof ----


class Model:
    """A model as steps see it."""

    queue, sequences = object(), None

    def __init__(self, inputs: dict[str, str], outputs: dict[str, str]) -> None:
        self.inputs, self.outputs = (
            tuple(Port(name, parse_value(text).shape) for name, text in side.items()) for side in (inputs, outputs)
        )


MODELS: dict[str, Called] = {
    "halves": Model({"x": "f32[batch, 2*H]"}, {"y": "f32[batch, H]"}),
    "square": Model({"x": "f32[n, n]"}, {"y": "f32[n]"}),
    "fixed": Model({"x": "f32[batch, 64]"}, {"y": "f32[batch, 10]"}),
    "pair": Model({"a": "f32[m, k]", "b": "f32[k, n]"}, {"y": "f32[m, n]"}),
}


def made(takes: dict[str, str], gives: dict[str, str]) -> PythonStep:
    declare = step(returns=gives, **takes)
    return declare(lambda **arrays: None)


def shapes(*steps: PythonStep | ModelStep) -> tuple[dict[str, str], dict[str, str]]:
    _, inputs, outputs = connect([(each, StepConfig()) for each in steps], MODELS)
    return tuple({name: str(value) for name, value in side.items()} for side in (inputs, outputs))  # type: ignore[return-value]


def test_sizes_follow_through_the_joints() -> None:
    before = made({"image": "ui8[B, H, W, 3]"}, {"x": "f32[B, 64]"})
    assert shapes(before, ModelStep("fixed")) == ({"image": "ui8[B, H, W, 3]"}, {"y": "f32[B, 10]"})
    flat = made({"image": "f32[B, H, W]"}, {"x": "f32[B, H*W]"})
    after = made({"x": "f32[N, M]"}, {"z": "f32[N, 2*M + 1]"})
    assert shapes(flat, after)[1] == {"z": "f32[B, 2*H*W + 1]"}
    # The second input of a product is the request's; its rows are those columns.
    assert shapes(flat, use("pair", inputs={"a": "x"})) == (
        {"image": "f32[B, H, W]", "b": "f32[H*W, n]"},
        {"y": "f32[B, n]"},
    )
    # The same symbol in two steps means two sizes, unless a value joins them.
    first, second = made({"p": "f32[B]"}, {"q": "f32[B]"}), made({"r": "f32[B]"}, {"s": "f32[B]"})
    assert shapes(first, second)[0] == {"p": "f32[B]", "r": "f32[B2]"}


@pytest.mark.parametrize(
    ("gives", "model", "words"),
    [
        ("f64[B, 64]", "fixed", "element types"),
        ("f32[64]", "fixed", "ranks"),
        ("f32[B, 63]", "fixed", "axis 1: 64 = 63"),
        ("f32[B, D]", "fixed", "axis 1: 64 = D"),
        ("f32[B, B + 1]", "square", "axis 1: B = B + 1"),
        ("f32[B, 4*K]", "halves", "does not say what its symbols are"),
        ("str[B, 64]", "fixed", "element types"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_shapes(gives: str, model: str, words: str) -> None:
    with pytest.raises(ShapeError) as caught:
        shapes(made({"image": "f32[B, D, K]"}, {"x": gives}), ModelStep(model))
    assert words in str(caught.value)
    assert f"step 2 ({model})" in str(caught.value)
    assert gives.replace("K*4", "4*K") in str(caught.value)
    assert "from step 1" in str(caught.value)


def test_mistakes_in_files_are_said(tmp_path: Path) -> None:
    def load(text: str) -> str:
        (tmp_path / "p.py").write_text(text)
        with serving(ModelConfig(path=str(tmp_path / "p.py")), model(DIGITS, trusted=True)) as client:
            return str(client.get("/api/v1/models/p").json["versions"][0]["reason"])

    assert "has no steps" in load("x = 1")
    assert "cannot be imported" in load("1 / 0")
    assert "is no step" in load("PIPELINE = [len]")
    assert "no model 'nothing'" in load("PIPELINE = ['nothing']")
    assert "has no input 'y'" in load("from smelt.serve.step import use\nPIPELINE = [use('digits', inputs={'y': 'x'})]")
    (tmp_path / "s.py").write_text(STEPS)
    untrusted = ModelConfig(name="p", path=str(tmp_path), steps=(StepConfig(python="s.py:prepare"),))
    with serving(untrusted, model(DIGITS)) as client:
        assert "trusted = true" in client.get("/api/v1/models/p").json["versions"][0]["reason"]
    with pytest.raises(SmeltError, match="no shape"):
        parse_value("f32")
