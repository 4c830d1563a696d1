# ruff: noqa: F722  # shapes are no forward references
"""The Open Inference Protocol over HTTP: every path, both encodings, errors with the right status."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import smelt
from smelt import Shaped, Tensor
from smelt.errors import FileError
from smelt.serve.config import KeyConfig
from smelt.serve.grpc import GrpcFront
from smelt.serve.grpc_messages import messages
from smelt.serve.infer_request import MOST_TENSORS
from smelt.serve.problems import RequestError
from tests.unit.serve.client import DIGITS, Client, model, serving


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(model(DIGITS), admin=True, max_body=1 << 20) as found:
        yield found


PIXELS = np.random.default_rng(3).random((2, 64), np.float32)


def ask(data: Any = None, shape: tuple[int, ...] = (2, 64), **more: Any) -> dict[str, Any]:
    tensor = {"name": "pixels", "shape": list(shape), "datatype": "FP32"}
    return {"inputs": [{**tensor, "data": PIXELS.tolist() if data is None else data}], **more}


def want() -> np.ndarray[Any, Any]:
    return smelt.load(DIGITS, engine="reference")(PIXELS)["probabilities"]


def test_json_in_and_out(client: Client) -> None:
    for data in (PIXELS.tolist(), PIXELS.reshape(-1).tolist()):
        reply = client.post("/v2/models/digits/infer", ask(data, id="7"))
        assert reply.status == 200
        (output,) = reply.json["outputs"]
        assert (reply.json["model_name"], reply.json["model_version"], reply.json["id"]) == ("digits", "1", "7")
        assert (output["name"], output["datatype"], output["shape"]) == ("probabilities", "FP32", [2, 10])
        np.testing.assert_array_equal(np.array(output["data"], np.float32).reshape(2, 10), want())


def test_binary_in_and_out(client: Client) -> None:
    raw = PIXELS.tobytes()
    head: dict[str, Any] = {
        "inputs": [
            {"name": "pixels", "shape": [2, 64], "datatype": "FP32", "parameters": {"binary_data_size": len(raw)}}
        ],
    }
    for how in ({"parameters": {"binary_data_output": True}},
                {"outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}]}):  # fmt: skip
        text = json.dumps({**head, **how}).encode()
        reply = client.post("/v2/models/digits/infer", text + raw, Inference_Header_Content_Length=str(len(text)))
        assert reply.status == 200
        at = int(reply.headers["inference-header-content-length"])
        (output,) = json.loads(reply.body[:at])["outputs"]
        assert output["parameters"] == {"binary_data_size": 80}
        np.testing.assert_array_equal(np.frombuffer(reply.body[at:], np.float32).reshape(2, 10), want())


def test_compressed_bodies(client: Client) -> None:
    body = json.dumps(ask()).encode()
    for encoding, data in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        assert client.post("/v2/models/digits/infer", data, Content_Encoding=encoding).status == 200
    bomb = gzip.compress(b" " * (8 << 20))
    assert client.post("/v2/models/digits/infer", bomb, Content_Encoding="gzip").status == 413
    assert client.post("/v2/models/digits/infer", body, Content_Encoding="br").status == 415
    assert client.post("/v2/models/digits/infer", body, Content_Encoding="gzip").status == 400


def test_what_the_server_and_the_model_say(client: Client) -> None:
    assert client.get("/v2").json["extensions"]
    assert client.get("/v2/health/live").status == client.get("/v2/health/ready").status == 200
    meta = client.get("/v2/models/digits").json
    assert meta["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 64]}]
    assert meta["versions"] == ["1"]
    assert client.get("/v2/models/digits/versions/1").json == meta
    assert client.get("/v2/models/digits/ready").json == {"name": "digits", "ready": True}
    config = client.get("/v2/models/digits/config").json
    assert config["input"] == [{"name": "pixels", "data_type": "TYPE_FP32", "dims": [-1, 64]}]
    assert "dynamic_batching" in config
    before = client.get("/v2/models/digits/stats").json["model_stats"][0]
    client.post("/v2/models/digits/infer", ask())
    after = client.get("/v2/models/digits/versions/1/stats").json["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 2, "rows"
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]


def test_metrics(client: Client) -> None:
    client.post("/v2/models/digits/infer", ask())
    client.post("/v2/models/digits/infer", ask([1.0]))
    lines = client.get("/metrics").body.decode().splitlines()
    rows = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    labels = '{model="digits",version="1"}'
    stats = client.get("/v2/models/digits/stats").json["model_stats"][0]["inference_stats"]
    assert int(rows[f"nv_inference_request_success{labels}"]) == stats["success"]["count"] > 0
    buckets = [int(n) for name, n in rows.items() if name.startswith("smelt_request_duration_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == stats["success"]["count"]


PROBLEMS: dict[str, tuple[str, Any, int, str]] = {
    "no such model": ("/v2/models/nothing/infer", ask(), 404, "no model 'nothing'"),
    "no such version": ("/v2/models/digits/versions/9/infer", ask(), 404, "version 9"),
    "no such path": ("/v2/models/digits/guess", ask(), 404, "no such path"),
    "a wrong method": ("/v2/models/digits", ask(), 405, "GET"),
    "no JSON": ("/v2/models/digits/infer", b"{", 400, "the request does not fit"),
    "nested deeply": ("/v2/models/digits/infer", b'{"inputs":' + b"[" * 100000, 400, "request"),
    "no inputs": ("/v2/models/digits/infer", {}, 400, "inputs"),
    "a wrong input": ("/v2/models/digits/infer", {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32",
                      "data": [1]}]}, 400, "no pixels, unknown x"),
    "twice": ("/v2/models/digits/infer", {"inputs": ask()["inputs"] * 2}, 400, "twice"),
    "a wrong rank": ("/v2/models/digits/infer", ask(shape=(128,)), 400, "does not fit"),
    "a wrong size": ("/v2/models/digits/infer", ask([0.0] * 65, (1, 65)), 400, "does not fit"),
    "a wrong type": ("/v2/models/digits/infer", {"inputs": [{"name": "pixels", "shape": [1, 64], "datatype": "INT32",
                     "data": [0] * 64}]}, 400, r"i32\[1, 64\]"),
    "no data": ("/v2/models/digits/infer", {"inputs": [{"name": "pixels", "shape": [1, 64], "datatype": "FP32"}]}, 400,
                "no data"),
    "no such output": ("/v2/models/digits/infer", ask(outputs=[{"name": "z"}]), 400, "no output 'z'"),
    "an output twice": ("/v2/models/digits/infer", ask(outputs=[{"name": "probabilities"}] * 2), 400, "twice"),
    "many inputs": ("/v2/models/digits/infer", {"inputs": [{"name": f"x{i}", "shape": [1], "datatype": "FP32",
                    "data": [1]} for i in range(MOST_TENSORS + 1)]}, 400, f"length <= {MOST_TENSORS}"),
    "many outputs": ("/v2/models/digits/infer", ask(outputs=[{"name": "x"}] * (MOST_TENSORS + 1)), 400, "length <="),
    "too large": ("/v2/models/digits/infer", b" " * ((1 << 20) + 1), 413, "too large"),
    "a wrong timeout": ("/v2/models/digits/infer", ask(parameters={"timeout": "soon"}), 400, "microseconds"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(client: Client, name: str) -> None:
    path, body, status, message = PROBLEMS[name]
    reply = client.post(path, body)
    assert reply.status == status, reply.body
    assert re.search(message, reply.json["error"]), reply.json["error"]
    assert client.post("/v2/models/digits/infer", ask()).status == 200, "and the server goes on"


def test_outputs_and_inputs_over_grpc_are_as_many_as_over_http(client: Client) -> None:
    kinds, front = messages(), GrpcFront(client.app.service, None, client.app.journal)
    tensor = kinds["InferInputTensor"](name="pixels", datatype="FP32", shape=[1, 64])
    output = kinds["InferRequestedOutputTensor"](name="probabilities")
    for inputs, outputs, message in (
        ([tensor], [output] * 2, "twice"),
        ([tensor], [kinds["InferRequestedOutputTensor"](name="z")], "no output 'z'"),
        ([tensor] * (MOST_TENSORS + 1), [output], "too many inputs"),
    ):
        asked = kinds["ModelInferRequest"](
            model_name="digits", inputs=inputs, outputs=outputs, raw_input_contents=[bytes(256)] * len(inputs)
        )
        with pytest.raises(RequestError, match=message):
            client.run(front.infer(asked))


def test_pages_of_other_sites_do_not_administer_a_server_without_keys(client: Client) -> None:
    """A browser sends what a page asks for to 127.0.0.1, too."""
    path, host = "/v2/repository/models/digits/load", "127.0.0.1:8000"
    for origin in ("https://evil.example", "null", "http://["):
        reply = client.post(path, host=host, origin=origin)
        assert (reply.status, "another site" in reply.json["error"]) == (403, True)
    assert client.post(path, host=host, origin=f"http://{host}").status == 200


def test_scripts_of_an_allowed_site_may_send_keys_and_read_tensors() -> None:
    site = "https://app.example"
    with serving(model(DIGITS), allow_origin=site) as client:
        asked = {"origin": site, "access_control_request_headers": "authorization,x-own"}
        preflight = client.run(client.ask("OPTIONS", "/v2/models/digits/infer", headers=asked))
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-headers"] == "authorization,x-own"
        answer = client.get("/v2", origin=site)
        assert answer.headers["access-control-allow-origin"] == site
        assert "inference-header-content-length" in answer.headers["access-control-expose-headers"]
    with serving(model(DIGITS)) as client:
        assert client.run(client.ask("OPTIONS", "/v2")).status == 405
        assert not [name for name in client.get("/v2", origin=site).headers if name.startswith("access-control")]


def test_a_header_length_that_does_not_fit(client: Client) -> None:
    for length in ("-1", "999999", "x"):
        reply = client.post("/v2/models/digits/infer", ask(), Inference_Header_Content_Length=length)
        assert reply.status == 400
        assert "Inference-Header-Content-Length" in reply.json["error"]


def test_random_requests_never_take_it_down(client: Client, seed: int) -> None:
    rng = np.random.default_rng(seed)
    good = json.dumps(ask([0.5] * 64, (1, 64))).encode()
    seen = set[int]()
    for _ in range(400):
        data = bytearray(good)
        for _ in range(rng.integers(1, 6)):
            at, kind = int(rng.integers(len(data))), rng.integers(3)
            if kind == 0:
                data[at] = rng.integers(256)
            elif kind == 1:
                del data[at : at + int(rng.integers(1, 20))]
            else:
                data[at:at] = rng.bytes(int(rng.integers(1, 8)))
            if not data:
                data = bytearray(b"{")
        length = (
            {"Inference_Header_Content_Length": str(rng.integers(-5, len(data) + 5))} if rng.integers(4) == 0 else {}
        )
        seen.add(client.post("/v2/models/digits/infer", bytes(data), **length).status)
    assert seen <= {200, 400, 404, 413}, seen
    assert client.post("/v2/models/digits/infer", ask()).status == 200


def small(path: Path, factor: float) -> None:
    node = helper.make_node("Mul", ["x", "f"], ["y"])
    shape: list[str | int | None] = ["n", 2]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor("f", TensorProto.FLOAT, [], [factor])],
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)


def test_a_repository_with_versions_that_come_and_go(tmp_path: Path) -> None:
    small(tmp_path / "twice" / "1" / "model.onnx", 2)
    (tmp_path / "twice" / "config.toml").write_text('engine = "reference"\nmax_batch = 4\n')
    body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 10]}]}

    def value(found: Client, path: str = "/v2/models/twice/infer") -> Any:
        return found.post(path, body).json["outputs"][0]["data"]

    with serving(model(tmp_path), admin=True) as found:
        assert value(found) == [2, 20]
        small(tmp_path / "twice" / "3" / "model.onnx", 3)
        assert value(found) == [2, 20]
        assert found.post("/v2/repository/models/twice/load").json["version"] == "3"
        assert value(found) == [3, 30]
        index = {row["version"]: row["state"] for row in found.post("/v2/repository/index").json}
        assert index == {"1": "UNAVAILABLE", "3": "READY"}
        assert found.post("/v2/repository/models/twice/unload").status == 200
        reply = found.post("/v2/models/twice/infer", body)
        assert (reply.status, "not ready" in reply.json["error"]) == (503, True)
        assert found.get("/v2/models/twice/ready").status == 503
        assert found.get("/v2/health/ready").status == 200, "a server without a model that was unloaded is ready"
        assert found.post("/v2/repository/models/twice/load").status == 200
        assert value(found, "/v2/models/twice/versions/3/infer") == [3, 30]
        (tmp_path / "twice" / "4").mkdir()
        (tmp_path / "twice" / "4" / "model.onnx").write_bytes(b"no model")
        assert found.post("/v2/repository/models/twice/load").status == 500
        assert value(found) == [3, 30], "the old version goes on where the new one is broken"


def test_a_bundle_says_whether_its_rows_are_independent(tmp_path: Path) -> None:
    smelt.load(DIGITS, engine="native").save(tmp_path / "digits.smelt")
    for trusted in (True, False):
        with serving(model(tmp_path / "digits.smelt", engine="native", trusted=trusted)) as found:
            assert "dynamic_batching" in found.get("/v2/models/digits/config").json
            assert found.post("/v2/models/digits/infer", ask()).status == 200
    rounded = smelt.load(DIGITS, engine="reference", precision="int8")
    assert "independent rows" in rounded.provenance, "every row has a scale of its own"
    together, alone = rounded(PIXELS)["probabilities"], rounded(PIXELS[:1])["probabilities"]
    np.testing.assert_array_equal(together[:1], alone)


MIXING: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "place": ("stablehlo.iota dim = 0 : {x}\n  %r = stablehlo.add %x, %a : {x}", "{x}", lambda x: x),
    "pairs": (
        "stablehlo.transpose %x, dims = [1, 0] : ({x}) -> tensor<2x?xf32, #smelt.sizes<2, B>>\n"
        "  %r = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0] : "
        "({x}, tensor<2x?xf32, #smelt.sizes<2, B>>) -> tensor<?x?xf32, #smelt.sizes<B, B>>",
        "tensor<?x?xf32, #smelt.sizes<B, B>>",
        lambda x: x @ x.T,
    ),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("trusted", [True, False])
def test_programs_that_mix_rows_never_share_a_call(tmp_path: Path, name: str, trusted: bool) -> None:
    """`x + iota(B)` and `x @ x.T`: requests at once are answered as if each were alone."""
    body, result, wanted = MIXING[name]
    kind = "tensor<?x2xf32, #smelt.sizes<B, 2>>"
    text = f"func.func @main(%x: {kind}) -> {result} {{\n  %a = {body}\n  return %r : {result}\n}}"
    (tmp_path / f"{name}.mlir").write_text(text.replace("{x}", kind))
    with serving(model(tmp_path / f"{name}.mlir", trusted=trusted, max_delay_ms=20.0)) as client:
        config = client.get(f"/v2/models/{name}/config").json
        assert "dynamic_batching" not in config
        (port,) = client.get(f"/v2/models/{name}").json["inputs"]

        def ask(number: int) -> Any:
            tensor = {"name": port["name"], "shape": [1, 2], "datatype": "FP32", "data": [number, 1.0]}
            return client.ask("POST", f"/v2/models/{name}/infer", {"inputs": [tensor]})

        async def burst() -> list[Any]:
            return list(await asyncio.gather(*map(ask, range(12))))

        for number, reply in enumerate(client.run(burst())):
            expected = wanted(np.array([[number, 1.0]], np.float32))
            assert reply.json["outputs"][0]["data"] == expected.reshape(-1).tolist()
        assert client.get(f"/v2/models/{name}/stats").json["model_stats"][0]["execution_count"] == 12


def test_names_and_paths_that_cannot_be_served(tmp_path: Path) -> None:
    small(tmp_path / "a b.onnx", 2)
    for path, message in ((tmp_path / "a b.onnx", "no name for a model"), (tmp_path / "absent", "no such file")):
        with pytest.raises(FileError, match=message), serving(model(path)):
            pass
    small(tmp_path / "x" / "m.onnx", 2)
    with pytest.raises(FileError, match="two models are called 'm'"), serving(*[model(tmp_path / "x" / "m.onnx")] * 2):
        pass


def key(name: str, **fields: Any) -> KeyConfig:
    return KeyConfig(name=name, sha256=hashlib.sha256(name.encode()).hexdigest(), **fields)


def test_keys_open_their_models_alone(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    keys = [key("all"), key("other", models=("x*",)), key("boss", admin=True), key("rare", per_minute=2)]
    with serving(model(DIGITS), keys=keys, audit_log=str(log)) as found:
        path = "/v2/models/digits/infer"
        assert found.post(path, ask()).status == 401
        assert found.post(path, ask(), Authorization="Bearer wrong").status == 401
        assert found.post(path, ask(), Authorization="Bearer all").status == 200
        assert found.post(path, ask(), X_Api_Key="all").status == 200
        assert found.post(path, ask(), Authorization="Bearer other").status == 403
        assert found.get("/v2/health/live").status == 200, "for load balancers"
        assert found.get("/metrics").status == 401
        load = "/v2/repository/models/digits/load"
        assert found.post(load, Authorization="Bearer all").status == 403
        assert found.post(load, Authorization="Bearer boss").status == 200
        replies = [found.post(path, ask(), Authorization="Bearer rare") for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert int(replies[-1].headers["retry-after"]) >= 1
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["event"], row["key"]) for row in events] == [
        ("refused", None), ("refused", None), ("refused", "other"), ("refused", None), ("refused", "all"),
        ("load", "boss"),
    ]  # fmt: skip


def test_a_key_sees_its_models_alone() -> None:
    with serving(model(DIGITS), model(DIGITS, name="xyz"), keys=[key("all"), key("some", models=("x*",))]) as found:
        for name, want in (("all", {"digits", "xyz"}), ("some", {"xyz"})):
            said = {"Authorization": f"Bearer {name}"}
            assert {row["name"] for row in found.post("/v2/repository/index", **said).json} == want
            rows = found.get("/v2/models/stats", **said).json["model_stats"]
            assert {row["name"] for row in rows} == want
            assert ('model="digits"' in found.get("/metrics", **said).body.decode()) == (name == "all")
        reply = found.get("/v2/models/xx", Authorization="Bearer some")
        assert reply.status == 404
        assert "digits" not in reply.body.decode()


def test_without_keys_administration_is_closed_by_default() -> None:
    with serving(model(DIGITS)) as found:
        assert found.post("/v2/repository/models/digits/unload").status == 403
        assert found.post("/v2/models/digits/infer", ask()).status == 200


def test_a_python_model_is_served_from_its_bundle(tmp_path: Path) -> None:
    """With the proof that its rows are independent; one that mixes rows has the reason instead."""

    def scale(x: Shaped[Tensor, "f32[b=B, d=2]"]) -> Tensor:
        return x * 3

    def centre(x: Shaped[Tensor, "f32[b=B, d=2]"]) -> Tensor:
        return x - x.mean("b")

    for function, wanted in ((scale, "rows are proven independent"), (centre, "reduce")):
        path = tmp_path / f"{function.__name__}.smelt"
        smelt.compile(function, engine="native").save(path)
        for trusted in (True, False):
            with serving(model(path, engine="native", trusted=trusted)) as found:
                name = function.__name__
                tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 6]}
                answer = found.post(f"/v2/models/{name}/infer", {"inputs": [tensor]}).json["outputs"][0]["data"]
                assert answer == ([3, 6, 9, 18] if name == "scale" else [-1, -2, 1, 2])
                said = found.get(f"/v2/models/{name}/config").json["parameters"]["batching"]["string_value"]
                assert wanted in said
