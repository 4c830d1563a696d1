"""The OpenAPI document is true: its paths are those of the server, and real answers fit its records."""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from smelt.serve.openapi import OPERATIONS, Operation, document
from smelt.serve.web import FILES
from tests.unit.serve.client import DIGITS, Client, model, serving
from tests.unit.serve.language_models import write_language_models
from tests.unit.serve.test_server import Server

PIXELS = {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": [0] * 64}
TINY = {"model": "tiny", "max_tokens": 2}
MESSAGES = [{"role": "user", "content": "w1"}]
# What a request that succeeds looks like, by path.
BODIES: dict[str, Any] = {
    "/v2/models/{name}/infer": {"inputs": [PIXELS], "id": "1"},
    "/v2/models/{name}/versions/{version}/infer": {"inputs": [PIXELS]},
    "/v2/repository/index": {},
    "/v2/repository/models/{name}/load": {},
    "/v1/chat/completions": {**TINY, "messages": MESSAGES},
    "/v1/completions": {**TINY, "prompt": "w1"},
    "/v1/responses": {"model": "tiny", "input": "w1", "max_output_tokens": 2},
    "/v1/embeddings": {"model": "encoder", "input": "w1"},
    "/v1/rerank": {"model": "encoder", "query": "w1", "documents": ["w2"], "return_documents": True},
    "/rerank": {"model": "encoder", "query": "w1", "documents": ["w2"]},
    "/tokenize": {"model": "tiny", "prompt": "w1"},
    "/detokenize": {"model": "tiny", "tokens": [1]},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"model": "tiny", "prompt": "w1", "stream": False, "options": {"num_predict": 2}},
    "/api/embed": {"model": "encoder", "input": ["w1", "w2"]},
    "/api/embeddings": {"model": "encoder", "prompt": "w1"},
    "/api/show": {"model": "tiny"},
    "/api/v1/models/{name}/infer": {"inputs": np.zeros((1, 64)).tolist()},
    "/api/v1/models/{name}/infer/batch": {"requests": [{"inputs": np.zeros((1, 64)).tolist()}, {"inputs": [3]}]},
}
LATER = ("/program", "/profile", "/unload")  # seconds of work; the end of the model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with serving(model(DIGITS), model(folder / "tiny"), model(folder / "encoder"), admin=True) as made:
        yield made


def test_every_path_is_described_and_the_other_way_round(client: Client) -> None:
    described = {(each.path.replace("{name}", "{}").replace("{version}", "{}"), each.method) for each in OPERATIONS}
    served = {
        (path, method.lower())
        for path, methods in client.app.routes.paths().items()
        for method in methods
        if path not in FILES
    }
    assert described == served


TRIED = [each for each in OPERATIONS if not each.path.endswith(LATER)]


@pytest.mark.parametrize("each", TRIED, ids=lambda each: f"{each.method} {each.path}")
def test_an_answer_fits_its_record(client: Client, each: Operation) -> None:
    name = "tiny" if each.path == "/v1/models/{name}" else "digits"
    path = each.path.replace("{name}", name).replace("{version}", "1")
    reply = client.get(path) if each.method == "get" else client.post(path, BODIES[each.path])
    assert reply.status == 200, reply.body
    if each.gives is not None:
        msgspec.convert(reply.json, each.gives)
        assert reply.headers["content-type"] == "application/json"
    problem = client.run(client.ask("PUT", path))
    assert problem.status == 405
    assert problem.headers["allow"] == each.method.upper()
    schema = document()["paths"][each.path][each.method]["responses"]["default"]["content"]["application/json"]
    expected = "OpenAIProblem" if each.path.startswith("/v1/") else "Problem"
    assert schema["schema"] == {"$ref": f"#/components/schemas/{expected}"}


def test_the_document_comes_without_a_key_and_is_whole(client: Client) -> None:
    text = client.get("/openapi.json").body.decode()
    made = json.loads(text)
    names = set(made["components"]["schemas"])
    asked = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert asked <= names
    identities = [each["operationId"] for path in made["paths"].values() for each in path.values()]
    assert len(identities) == len(set(identities))


@pytest.mark.slow
def test_schemathesis_finds_nothing(folder: Path, tmp_path: Path) -> None:
    """Requests made from the document itself: none fails with 500, and every answer is one that the document has."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "schemathesis>=4"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=250)
    if done.returncode:
        pytest.skip(f"schemathesis cannot be installed here: {done.stderr[-200:]}")
    made = document()
    for path in [path for path in made["paths"] if path.endswith(LATER)]:
        del made["paths"][path]
    for methods in made["paths"].values():
        for each in methods.values():
            for parameter in each.get("parameters", ()):
                known = ["digits", "tiny", "nothing"] if parameter["name"] == "name" else ["1", "2"]
                parameter["schema"] = {"enum": known}
    for schema in made["components"]["schemas"].values():  # models that are there
        if schema.get("properties", {}).get("model") == {"type": "string"}:
            schema["properties"]["model"] = {"enum": ["tiny", "encoder"]}
    (tmp_path / "openapi.json").write_text(json.dumps(made))
    rows = [f'[[models]]\npath = "{path}"\nengine = "reference"' for path in (DIGITS, folder / "encoder")]
    rows.append(f'[[models]]\npath = "{folder / "tiny"}"\ncontext = 24')
    (tmp_path / "server.toml").write_text("\n".join(["admin = true", *rows]))
    server = Server("--config", str(tmp_path / "server.toml"))
    try:
        command = [str(tmp_path / "venv" / "bin" / "schemathesis"), "run", str(tmp_path / "openapi.json")]
        command += ["--url", f"http://127.0.0.1:{server.http}", "--phases", "examples,coverage,fuzzing"]
        # A request may fit its type and still be refused: a tensor's data must fit its shape, a model must exist.
        command += ["--exclude-checks", "positive_data_acceptance", "--max-examples", "10", "--seed", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-6000:]
    finally:
        server.close()
