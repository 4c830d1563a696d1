"""`/v2/debug/slow` and `smelt top`."""

from __future__ import annotations

import itertools
import json
import math
from hashlib import sha256
from pathlib import Path

import pytest

from smelt.cli import top
from smelt.errors import DeviceError
from smelt.serve.audit import verify
from smelt.serve.config import KeyConfig
from tests.unit.serve.client import DIGITS, model, serving

PIXELS = {"inputs": [{"name": "pixels", "shape": [2, 64], "datatype": "FP32", "data": [0] * 128}]}
KEYS = [
    KeyConfig("admin", sha256(b"admin").hexdigest(), admin=True),
    KeyConfig("team", sha256(b"team").hexdigest()),
]
ADMIN, TEAM = {"authorization": "Bearer admin"}, {"authorization": "Bearer team"}


def test_slow_requests_are_kept_with_their_times() -> None:
    with serving(model(DIGITS, trusted=True), keys=KEYS, slow_ms=0.0) as client:
        assert client.post("/v2/models/digits/infer", PIXELS, x_request_id="mine", **TEAM).status == 200
        assert client.post("/v2/models/nothing/infer", PIXELS, **TEAM).status == 404
        assert client.get("/v2/debug/slow", **TEAM).status == 403
        found = client.get("/v2/debug/slow", **ADMIN).json
        _refused, missing, answered = found["requests"]
        assert (answered["request"], answered["path"]) == ("mine", "/v2/models/digits/infer")
        assert (answered["status"], answered["key"], answered["rows"]) == (200, "team", 2)
        assert 0 <= answered["compute_ms"] <= answered["ms"]
        assert (missing["status"], "no model" in missing["error"]) == (404, True)
        for _ in range(300):
            client.get("/v2", **TEAM)
        assert len(client.get("/v2/debug/slow", **ADMIN).json["requests"]) == 256
    with serving(model(DIGITS), slow_ms=3.6e6 + 0.125, admin=True) as client:
        client.get("/v2")
        assert client.get("/v2/debug/slow").json == {"slow_ms": 3.6e6 + 0.125, "requests": []}


@pytest.mark.parametrize("log", ["text", "json"])
def test_what_clients_wrote_is_shortened_where_it_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, log: str
) -> None:
    long, audit = "x" * 50_000, tmp_path / "audit.jsonl"
    keys = [KEYS[0], KeyConfig("team", sha256(b"team").hexdigest(), models=("digits",))]
    with (
        serving(model(DIGITS), keys=keys, slow_ms=0.0, log=log, audit_log=str(audit)) as client,
        caplog.at_level("INFO", "smelt.serve"),
    ):
        named = {"inputs": [{"name": long, "shape": [1], "datatype": "FP32", "data": ["a"]}]}
        assert client.post("/v2/models/digits/infer", named, **TEAM).status == 400
        assert client.post(f"/v2/models/{long}/infer", **TEAM).status == 403
        assert client.post("/v1/completions", {"model": long, "prompt": "a"}, **TEAM).status == 403
        kept = client.get("/v2/debug/slow", **ADMIN).json["requests"]
    lines = [record.getMessage() for record in caplog.records]
    assert (len(kept), len(lines)) == (3, 3)
    assert verify(audit)[1] == 2
    assert max(map(len, [*map(str, kept), *lines, *audit.read_text().splitlines()])) < 3000


def test_top_shows_what_happened_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(model(DIGITS, trusted=True)) as client:
        texts = [client.get("/metrics").body.decode()]
        for _ in range(8):
            client.post("/v2/models/digits/infer", PIXELS)
        texts.append(client.get("/metrics").body.decode())
    before, now = map(top.parse_metrics, texts)
    (row,) = top.rows_between(before, now, 2.0)
    assert (row.model, row.version, row.per_second, row.failed) == ("digits", "1", 4.0, 0.0)
    assert row.p50_ms is not None
    assert row.p99_ms is not None
    assert 0 < row.p50_ms <= row.p99_ms
    assert row.tokens_per_second is None
    (idle,) = top.rows_between(now, now, 1.0)
    assert (idle.per_second, idle.p50_ms) == (0.0, None)
    looks = [before, now]
    monkeypatch.setattr(top, "fetch", lambda url, key: looks.pop(0))
    monkeypatch.setattr(top, "sleep", lambda seconds: None)
    monkeypatch.setattr(top, "monotonic", itertools.count(0.0, 2.0).__next__)
    top.top("http://server", "", 1.0, True, False)
    printed = capsys.readouterr().out
    assert "digits v1" in printed
    assert "CPU" in printed
    looks = [before, now]
    top.top("http://server", "", 1.0, False, True)
    assert json.loads(capsys.readouterr().out)[0]["model"] == "digits"


def test_quantiles_are_linear_in_their_bucket() -> None:
    labels = (("model", "m"), ("version", "1"))
    name = "smelt_request_duration_seconds_bucket"
    bounds = {"0.1": 0, "0.2": 10, "+Inf": 10}
    now = {name: {tuple(sorted((*labels, ("le", le)))): float(count) for le, count in bounds.items()}}
    assert math.isclose(top.quantile({}, now, labels, 0.5) or 0, 150.0)
    assert top.quantile(now, now, labels, 0.5) is None


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="does not answer"):
        top.fetch("http://127.0.0.1:1", "")
    with pytest.raises(DeviceError, match="does not answer"):
        top.fetch("nonsense", "")
