"""The paths under /api/v1: nested lists in and out, several requests in one body, and who sees what."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import smelt
from smelt.serve import show
from smelt.serve.config import KeyConfig
from tests.unit.serve.client import DIGITS, Client, model, serving

PIXELS = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64)


def kinds(path: Path) -> Path:
    """A model that returns what it gets: half floats, flags, a scalar."""
    types: dict[str, tuple[int, list[str | int | None]]] = {
        "half": (TensorProto.FLOAT16, ["n"]),
        "flags": (TensorProto.BOOL, ["n", 2]),
        "one": (TensorProto.INT64, []),
    }
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in types]
    ports = [
        [helper.make_tensor_value_info(name + end, kind, shape) for name, (kind, shape) in types.items()]
        for end in ("", "_out")
    ]
    graph = helper.make_graph(nodes, "kinds", ports[0], ports[1])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    keys = [
        KeyConfig("all", sha256(b"all").hexdigest(), admin=True),
        KeyConfig("some", sha256(b"some").hexdigest(), models=("dig*",)),
    ]
    other = kinds(tmp_path_factory.mktemp("models") / "kinds.onnx")
    with serving(model(DIGITS), model(other), keys=keys) as made:
        yield made


ALL, SOME = {"authorization": "Bearer all"}, {"authorization": "Bearer some"}


def test_infer_takes_lists_by_name_or_alone(client: Client) -> None:
    want = smelt.load(DIGITS, engine="reference")(PIXELS)["probabilities"]
    for inputs in ({"pixels": PIXELS.tolist()}, PIXELS.tolist()):
        reply = client.post("/api/v1/models/digits/infer", {"inputs": inputs}, **ALL)
        assert reply.status == 200, reply.body
        np.testing.assert_allclose(reply.json["outputs"]["probabilities"], want, rtol=1e-6)
        assert reply.json["version"] == "1"


def test_types_scalars_and_ranges(client: Client) -> None:
    given = {"half": [0.5, 65504], "flags": [[True, False], [False, True]], "one": 7}
    reply = client.post("/api/v1/models/kinds/infer", {"inputs": given}, **ALL)
    assert reply.status == 200, reply.body
    assert reply.json["outputs"] == {f"{name}_out": value for name, value in given.items()}
    overflow = client.post("/api/v1/models/kinds/infer", {"inputs": {**given, "half": [1e9, 0]}}, **ALL)
    assert overflow.status == 400
    assert "out of the range of FP16" in overflow.json["error"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"pixel": [[0] * 64]}, "no such input"),
        ({"pixels": [[0] * 63]}, "does not fit"),
        ({"pixels": [[0] * 64, [0]]}, "ragged"),
        ({"pixels": 3}, "does not fit"),
        ({"pixels": [["a"] * 64]}, "not FP32"),
        ({}, "the inputs do not fit"),
        ("text", "not FP32"),
    ],
)
def test_mistakes_are_refused(client: Client, inputs: object, words: str) -> None:
    reply = client.post("/api/v1/models/digits/infer", {"inputs": inputs}, **ALL)
    assert reply.status == 400
    assert words in reply.json["error"]


def test_a_batch_has_an_answer_or_an_error_for_each(client: Client) -> None:
    rows = [{"inputs": PIXELS[:1].tolist()}, {"inputs": [[1]]}, {"inputs": PIXELS[1:].tolist()}]
    reply = client.post("/api/v1/models/digits/infer/batch", {"requests": rows}, **ALL)
    assert reply.status == 200
    first, wrong, last = reply.json["responses"]
    assert wrong["status"] == 400
    both = client.post("/api/v1/models/digits/infer", {"inputs": PIXELS.tolist()}, **ALL).json["outputs"]
    got = first["outputs"]["probabilities"] + last["outputs"]["probabilities"]
    np.testing.assert_allclose(got, both["probabilities"], rtol=1e-6)
    assert client.post("/api/v1/models/digits/infer/batch", {"requests": rows * 400}, **ALL).status == 400


def test_a_key_sees_its_own_models(client: Client) -> None:
    assert [each["name"] for each in client.get("/api/v1/models", **ALL).json["models"]] == ["digits", "kinds"]
    info = client.get("/api/v1/info", **SOME).json
    assert [each["name"] for each in info["models"]] == ["digits"]
    assert (info["key"], info["admin"]) == ("some", False)
    assert client.get("/api/v1/info", **ALL).json["admin"] is True
    for path in ("/api/v1/models/kinds", "/api/v1/models/digits/program"):
        assert client.get(path, **SOME).status == 403
    assert client.post("/api/v1/models/kinds/infer", {"inputs": {}}, **SOME).status == 403
    assert client.get("/api/v1/models/nothing", **ALL).status == 404


def test_a_model_says_what_it_takes_and_did(client: Client) -> None:
    (version,) = client.get("/api/v1/models/digits", **ALL).json["versions"]
    assert version["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": ["batch", 64]}]
    assert version["state"] == "READY"
    before = version["requests"]["success"]
    client.post("/api/v1/models/digits/infer", {"inputs": PIXELS.tolist()}, **ALL)
    (version,) = client.get("/api/v1/models/digits", **ALL).json["versions"]
    assert version["requests"]["success"] == before + 1
    assert sum(version["latency"]["counts"]) == before + 1


def test_what_a_process_shows_has_a_limit(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    create = asyncio.create_subprocess_exec
    monkeypatch.setattr(show, "MOST", 1 << 20)
    for text, says in (("x" * (2 << 20), b"too much"), ("[]", b"cannot be shown"), ("[" * 200_000, b"cannot be shown")):
        program = f"print({text[:1]!r} * {len(text)})" if len(text) > 2 else f"print({text!r})"
        with monkeypatch.context() as patch:
            said = partial(create, sys.executable, "-S", "-c", program)
            patch.setattr(asyncio, "create_subprocess_exec", lambda *_, said=said, **more: said(**more))
            reply = client.get("/api/v1/models/digits/program", **ALL)
        assert (reply.status, says in reply.body) == (400, True), reply.body


def test_the_plan_of_a_model_comes_from_its_own_process(client: Client) -> None:
    reply = client.get("/api/v1/models/digits/program", **ALL)
    assert reply.status == 200, reply.body
    steps = reply.json["functions"]["main"]["steps"]
    assert len(steps) >= 3
    assert all("step" in each for each in steps)
    assert str(Path(DIGITS).parent) not in json.dumps(reply.json)
