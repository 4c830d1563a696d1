"""Models with state: sequences by correlation id, over REST, in order, each with the state of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from smelt.dtype import dtype
from smelt.engine_api import Port
from smelt.errors import FileError
from smelt.serve import sequences
from smelt.serve.app import App
from smelt.serve.config import Config, KeyConfig
from smelt.serve.grpc import start
from smelt.serve.grpc_messages import messages
from smelt.serve.models import Catalogue
from smelt.serve.problems import DeadlineError
from smelt.serve.queue import ModelQueue
from smelt.serve.text_model import LocalTexts
from smelt.shape import Shape
from tests.unit.serve.client import DIGITS, Client, Reply, model, serving
from tests.unit.serve.language_models import write_language_models

STATE = {"before": "after"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`total` is the sum of all `x` of a sequence."""
    found = tmp_path_factory.mktemp("models") / "sums.onnx"
    shape: list[Any] = ["B", 2]
    ports = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("x", "before", "after", "total")
    }
    nodes = [helper.make_node("Add", ["x", "before"], ["after"]), helper.make_node("Identity", ["after"], ["total"])]
    graph = helper.make_graph(
        nodes, "sums", [ports["x"], ports["before"]], [ports["after"], ports["total"]]
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), found)
    return found


@pytest.fixture(params=[True, False], ids=["trusted", "isolated"], scope="module")
def client(request: pytest.FixtureRequest, path: Path) -> Iterator[Client]:
    with serving(model(path, state=STATE, max_sequences=3, trusted=request.param), admin=True) as found:
        yield found


async def send(client: Client, x: Any, number: Any, *flags: str, **headers: str) -> Reply:
    array = np.asarray(x, np.float32).reshape(-1, 2)
    parameters = {"sequence_id": number, **{f"sequence_{flag}": True for flag in flags}}
    tensor = {"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": array.reshape(-1).tolist()}
    return await client.ask("POST", "/v2/models/sums/infer", {"inputs": [tensor], "parameters": parameters}, headers)


def total(reply: Reply) -> list[float]:
    assert reply.status == 200, reply.body
    (output,) = reply.json["outputs"]
    assert output["name"] == "total"
    found: list[float] = output["data"]
    return found


def test_sequences_have_the_state_of_their_own(client: Client) -> None:
    def say(*given: Any) -> list[float]:
        return total(client.run(send(client, *given)))

    assert say([1, 2], 7, "start") == [1, 2]
    assert say([10, 20, 5, 5], "other", "start") == [10, 20, 5, 5]  # two rows
    assert say([1, 1], 7) == [2, 3]
    assert say([1, 1, 1, 1], "other") == [11, 21, 6, 6]
    assert say([1, 1], 7, "start") == [1, 1], "it begins again"
    assert say([1, 1], 7, "end") == [2, 2]
    assert client.run(send(client, [1, 1], 7)).status == 400
    assert say([0, 0, 0, 0], "other", "end") == [11, 21, 6, 6]
    meta = client.get("/v2/models/sums").json
    assert [[each["name"] for each in meta[side]] for side in ("inputs", "outputs")] == [["x"], ["total"]]


def test_requests_of_a_sequence_run_in_order(client: Client) -> None:
    async def work() -> list[list[float]]:
        numbers = range(1, 21)
        asked = [
            send(client, [n, 0], 1, *(["start"] if n == 1 else []), *(["end"] if n == 20 else [])) for n in numbers
        ]
        return [total(reply) for reply in await asyncio.gather(*asked)]

    assert [row[0] for row in client.run(work())] == np.cumsum(range(1, 21)).tolist()


def test_mistakes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (0, "", None, True, 1.5, "x" * 300):
        assert client.run(send(client, [1, 1], wrong, "start")).status == 400
    assert [client.run(send(client, [1, 1], n, "start")).status for n in (1, 2, 3, 4)] == [200, 200, 200, 429]
    assert client.run(send(client, [1, 1, 1, 1], 1)).status == 400, "other rows than those of its state"
    assert total(client.run(send(client, [1, 1], 1))) == [2, 2], "a mistake leaves the state"
    monkeypatch.setattr(sequences, "IDLE", -1.0)
    assert client.run(send(client, [1, 1], 4, "start")).status == 200
    monkeypatch.undo()
    assert client.run(send(client, [1, 1], 2)).status == 400, "it was idle"
    assert client.run(send(client, [1, 1], 4, "end")).status == 200


def test_a_sequence_whose_first_request_fails_does_not_begin(client: Client) -> None:
    async def work() -> list[int]:
        wrong = [send(client, [1, 1], n, "start") for n in (20, 21)]
        first, after = send(client, [1, 1], 30, "start"), send(client, [1, 1], 30)
        return [reply.status for reply in await asyncio.gather(*wrong, first, after)]

    async def fail(self: ModelQueue, inputs: Any, *options: Any) -> Any:
        await asyncio.sleep(0.01)
        raise DeadlineError("too late")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelQueue, "infer", fail)
        assert client.run(work()) == [504, 504, 504, 400]
    held = client.app.catalogue.get("sums").sequences
    assert held is not None
    assert not [key for key in held._sequences if key[1] in (20, 21, 30)]


def test_a_sequence_outlives_a_swap(client: Client) -> None:
    assert total(client.run(send(client, [1, 2], 9, "start"))) == [1, 2]
    assert client.post("/v2/repository/models/sums/load").status == 200
    assert total(client.run(send(client, [1, 2], 9, "end"))) == [2, 4]


def test_a_key_cannot_take_the_sequences_of_another(path: Path) -> None:
    keys = [KeyConfig(name, sha256(name.encode()).hexdigest()) for name in ("a", "b")]
    with serving(model(path, state=STATE, max_sequences=2), keys=keys) as found:

        def begin(number: int, key: str, *flags: str) -> int:
            return found.run(send(found, [1, 1], number, *flags, authorization=f"Bearer {key}")).status

        assert [begin(n, "a", "start") for n in (1, 2, 3, 2)] == [200, 200, 429, 200]
        assert [begin(n, "b", "start") for n in (1, 2, 3)] == [200, 200, 429]
        assert begin(1, "a", "end") == 200
        assert [begin(n, "a", "start") for n in (3, 4)] == [200, 429]


def test_a_sequence_belongs_to_its_key(path: Path) -> None:
    keys = [KeyConfig(name, sha256(name.encode()).hexdigest()) for name in ("a", "b")]
    with serving(model(path, state=STATE), keys=keys) as found:
        assert found.run(send(found, [1, 1], 5, "start", authorization="Bearer a")).status == 200
        assert found.run(send(found, [1, 1], 5, authorization="Bearer b")).status == 400
        assert total(found.run(send(found, [1, 1], 5, authorization="Bearer a"))) == [2, 2]


def test_a_sequence_belongs_to_its_key_over_grpc(path: Path) -> None:
    keys = [KeyConfig(name, sha256(name.encode()).hexdigest()) for name in ("a", "b")]
    config = Config(models=[model(path, state=STATE)], keys=keys).check("the test")
    kinds, method = messages(), "ModelInfer"

    async def work() -> list[str]:
        catalogue = Catalogue(config.models)
        await catalogue.load_all()
        app = App(catalogue, config)
        server, port = await start(app.service, None, app.journal, "127.0.0.1", 0)
        found = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = channel.unary_unary(
                f"/inference.GRPCInferenceService/{method}",
                request_serializer=kinds[f"{method}Request"].SerializeToString,
                response_deserializer=kinds[f"{method}Response"].FromString,
            )
            for key, starts in (("a", True), ("b", False), ("a", False)):
                asked = kinds[f"{method}Request"](
                    model_name="sums", raw_input_contents=[np.ones(2, np.float32).tobytes()]
                )
                asked.inputs.add(name="x", datatype="FP32", shape=[1, 2])
                asked.parameters["sequence_id"].int64_param = 5
                asked.parameters["sequence_start"].bool_param = starts
                try:
                    said = await stub(asked, metadata=(("authorization", f"Bearer {key}"),), timeout=60)
                    found.append(str(np.frombuffer(said.raw_output_contents[0], np.float32).tolist()))
                except grpc.aio.AioRpcError as error:
                    found.append(error.code().name)
        await server.stop(1)
        await catalogue.close(10)
        return found

    assert asyncio.run(work()) == ["[1.0, 1.0]", "INVALID_ARGUMENT", "[2.0, 2.0]"]


def test_a_call_has_the_time_that_waiting_for_its_turn_has_left() -> None:
    asked: list[float | None] = []

    class Queue:
        async def infer(self, inputs: Any, timeout: float | None, priority: int, client: str) -> Any:
            asked.append(timeout)
            return {"y": inputs["x"], "after": inputs["before"]}, None

    queue: Any = Queue()
    ports = [Port(name, Shape.of(dtype("f32"), (1,))) for name in ("x", "before")]
    found = sequences.Sequences("m", STATE, 2)
    given = {"x": np.ones(1, np.float32)}

    async def work() -> None:
        for timeout in (None, 60.0):
            flags = {"sequence_id": 7, "sequence_start": True}
            outputs, _ = await found.infer(queue, ports, given, flags, "", timeout, 0)
            assert outputs.keys() == {"y"}

    asyncio.run(work())
    assert asked[0] is None
    assert asked[1] is not None
    assert 0 < asked[1] <= 60


@pytest.mark.parametrize("state", [{"before": "nothing"}, {"nothing": "after"}, {"before": "after", "x": "total"}])
def test_a_state_that_does_not_fit_is_refused(path: Path, state: dict[str, str]) -> None:
    with serving(model(path, state=state), model(DIGITS)) as found:
        assert found.run(send(found, [1, 1], 5, "start")).status == 503
        assert found.app.catalogue.pick("sums").loaded is None


def test_a_language_model_with_state_is_refused_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    real = LocalTexts.close

    def close(self: LocalTexts) -> None:
        closed.append(self.about.kind)
        real(self)

    monkeypatch.setattr(LocalTexts, "close", close)
    folder = write_language_models(tmp_path)
    with serving(model(folder / "encoder", state=STATE), model(DIGITS)) as found:
        assert found.post("/v1/embeddings", {"model": "encoder", "input": "w1"}).status == 503
        assert found.get("/v1/models").json["data"] == []
    assert closed == ["embedding"]


def test_several_server_processes_have_no_common_state(path: Path) -> None:
    config = Config(models=[model(path, state=STATE)], workers=2)
    with pytest.raises(FileError, match="one server process"):
        App(Catalogue(config.models), config)
