"""Several server processes behind one socket: they answer as one, and one that ends is started again."""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from smelt.serve.audit import Audit, verify
from smelt.serve.config import Config, KeyConfig
from smelt.serve.fronts import divide, sum_metrics
from tests.unit.serve.client import DIGITS
from tests.unit.serve.test_server import Server, infer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the processes")


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def await_fronts(server: Server, without: int = 0) -> list[int]:
    """The two processes, once the model is ready in both."""
    ready = 'smelt_model_ready{model="digits",version="1"}'
    for _ in range(1200):
        found = children(server.process.pid)
        if len(found) == 2 and without not in found and metrics(server).get(ready) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError("the processes did not come")


def metrics(server: Server) -> dict[str, float]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
    except OSError:  # the connection was that of a process that was killed
        return {}
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def ask(server: Server) -> int:
    return server.ask("POST", "/v2/models/digits/infer", infer())[0]


def test_processes_answer_as_one() -> None:
    server = Server(DIGITS, "--trusted", "--engine", "reference", "--admin", "--workers", "2")
    try:
        fronts = await_fronts(server)
        assert [ask(server) for _ in range(20)] == [200] * 20
        count = 'nv_inference_request_success{model="digits",version="1"}'
        assert metrics(server)[count] == 20, "the sum of both, whichever answers"
        os.kill(fronts[0], signal.SIGKILL)
        again = await_fronts(server, without=fronts[0])
        assert fronts[1] in again
        assert [ask(server) for _ in range(10)] == [200] * 10
        # administration reaches all
        for action, status in (("unload", 503), ("load", 200)):
            assert server.ask("POST", f"/v2/repository/models/digits/{action}")[0] == 200
            assert {ask(server) for _ in range(10)} == {status}
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in again)
    finally:
        server.close()


def test_metrics_are_added() -> None:
    one = '# HELP a b\n# TYPE a counter\na{x="1"} 2\nprocess_start_time_seconds 5.5\n'
    two = '# HELP a b\n# TYPE a counter\na{x="1"} 3\na{x="2"} 1\nprocess_start_time_seconds 4.5\n'
    assert sum_metrics([one, two]) == (
        '# HELP a b\n# TYPE a counter\na{x="1"} 5\nprocess_start_time_seconds 4.5\na{x="2"} 1\n'
    )


def test_limits_are_shared() -> None:
    key = KeyConfig(name="k", sha256="0" * 64, per_minute=60)
    found = divide(Config(workers=4, keys=[key], memory_budget="4GB"))
    assert (found.keys[0].per_minute, found.memory_budget) == (15, 1_000_000_000)


def test_processes_share_an_audit_log(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    logs = [Audit(path), Audit(path)]
    for i in range(6):
        logs[i % 2].write("load", model=f"m{i}")
    for each in logs:
        each.close()
    assert verify(path)[1] == 6
