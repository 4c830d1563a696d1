"""A memory budget for the whole server: what was not used for longest goes, what is asked for comes back."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.model import LoadedModel
from smelt.serve.config import Config, ModelConfig
from smelt.serve.models import Version
from smelt.serve.opening import open_model
from tests.unit.serve.client import DIGITS, Client, model, serving

SIZE = os.path.getsize(DIGITS)
PIXELS = np.zeros((1, 64), np.float32)
NAMES = ("a", "b", "c")


def infer(client: Client, name: str) -> int:
    tensor = {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": PIXELS.reshape(-1).tolist()}
    return client.post(f"/v2/models/{name}/infer", {"inputs": [tensor]}).status


def loaded(client: Client) -> set[str]:
    return {each.name for each in client.app.catalogue.every() if each.state == "READY"}


def version(client: Client, name: str) -> Version:
    return client.app.catalogue.pick(name)


@pytest.fixture
def client() -> Iterator[Client]:
    """Three models, and room for two."""
    with serving(*(model(DIGITS, name=name) for name in NAMES), memory_budget=5 * SIZE // 2, admin=True) as found:
        yield found


def held(client: Client) -> int:
    return sum(each.bytes for each in client.app.catalogue.every())


def test_models_come_and_go_within_the_budget(client: Client) -> None:
    assert loaded(client) == {"a", "b"}
    assert client.get("/v2/health/ready").status == 200
    assert client.get("/v2/models/c/ready").status == 200  # without loading it
    assert loaded(client) == {"a", "b"}
    for name, left in (("c", {"b", "c"}), ("b", {"b", "c"}), ("a", {"a", "b"}), ("c", {"a", "c"})):
        assert infer(client, name) == 200
        assert loaded(client) == left
        assert 2 * SIZE <= held(client) <= 5 * SIZE // 2
    assert client.get("/v2/models/b").json["inputs"][0]["name"] == "pixels"  # metadata loads it, too
    assert "b" in loaded(client)


def test_what_runs_stays(client: Client) -> None:
    def run(name: str, calls: int) -> None:
        queue: Any = version(client, name).queue
        queue._running = calls

    for name in ("a", "b"):
        run(name, 1)
    assert infer(client, "c") == 503
    run("b", 0)
    assert infer(client, "c") == 200
    assert loaded(client) == {"a", "c"}
    run("a", 0)


def test_many_requests_load_a_model_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()

    def count(path: Path, config: ModelConfig) -> LoadedModel:
        opened.append(config.name)
        return open_model(path, config)

    monkeypatch.setattr("smelt.serve.models.open_model", count)
    tensor = {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": PIXELS.reshape(-1).tolist()}

    async def burst() -> list[int]:
        asked = [client.ask("POST", "/v2/models/c/infer", {"inputs": [tensor]}) for _ in range(8)]
        return [reply.status for reply in await asyncio.gather(*asked)]

    assert client.run(burst()) == [200] * 8
    assert opened == ["c"]


def test_an_unloaded_model_stays_unloaded(client: Client) -> None:
    assert client.post("/v2/repository/models/a/unload").status == 200
    assert infer(client, "a") == 503
    assert client.post("/v2/repository/models/a/load").status == 200
    assert infer(client, "a") == 200


def test_a_model_larger_than_the_budget_is_refused() -> None:
    with serving(model(DIGITS), memory_budget=SIZE - 1) as found:
        reply = found.post("/v2/models/digits/infer", {"inputs": []})
        assert reply.status == 503
        assert "raise memory_budget" in reply.json["error"]
    with pytest.raises(SmeltError, match="memory_budget"):
        Config(memory_budget="many").check("the test")


def test_the_memory_of_a_worker_is_that_of_its_process() -> None:
    with serving(model(DIGITS, trusted=False, instances=2), memory_budget="10GB") as found:
        if not version(found, "digits").isolated:
            pytest.skip("isolation needs Linux")
        assert held(found) > 1 << 20
        metrics = found.get("/metrics").body.decode()
        assert 'smelt_worker_memory_bytes{model="digits",version="1"} ' in metrics
        memory = re.search(r'smelt_model_memory_bytes\{model="digits",version="1"\} (\d+)', metrics)
        assert memory is not None
        assert int(memory[1]) > 1 << 20, "that of its worker"
        assert 'smelt_worker_restarts{model="digits",version="1"} 0' in metrics
