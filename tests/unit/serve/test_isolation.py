"""Models in worker processes: the same answers, no way out, and a worker's end fails its own request alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import DeviceError
from smelt.serve.config import ModelConfig
from smelt.serve.isolation import remote_queue, syscalls
from smelt.serve.isolation.remote import RemoteModel, Zygote, is_supported, proportional_bytes
from smelt.serve.models import Version
from tests.unit.serve.client import DIGITS, Client, Reply, model, serving

pytestmark = pytest.mark.skipif(not is_supported(), reason="isolation needs Linux")
PIXELS = np.random.default_rng(3).random((2, 64), np.float32)


def ask(x: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    array = np.asarray(x, np.float32)
    tensor = {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.reshape(-1).tolist()}
    return {"inputs": [tensor], **more}


def version(client: Client, name: str) -> Version:
    return client.app.catalogue.get(name)


def worker_of(client: Client, name: str) -> RemoteModel:
    loaded = version(client, name).loaded
    assert isinstance(loaded, RemoteModel)
    return loaded


# ---- real models ----


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    models = [model(DIGITS, trusted=False), model(DIGITS, name="native", engine="native", trusted=False, instances=2)]
    with serving(*models, admin=True) as found:
        yield found


def outputs(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    (output,) = reply.json["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.mark.parametrize(("name", "engine"), [("digits", "reference"), ("native", "native")])
def test_a_worker_answers_as_the_model_does(client: Client, name: str, engine: str) -> None:
    want = smelt.load(DIGITS, engine=engine)(PIXELS)["probabilities"]
    reply = client.post(f"/v2/models/{name}/infer", ask(PIXELS, "pixels"))
    np.testing.assert_array_equal(outputs(reply), want)
    meta = client.get(f"/v2/models/{name}").json
    assert meta["platform"] == f"smelt_{engine}"
    assert meta["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, 64]}]
    assert client.post(f"/v2/models/{name}/infer", ask(PIXELS[:, :3], "pixels")).status == 400
    assert worker_of(client, name).pss > 1 << 20
    said = client.get(f"/v2/models/{name}/config").json["parameters"]["isolation"]["string_value"]
    assert said.startswith("rlimits, no_new_privs")


def test_memory_grows_with_requests(client: Client) -> None:
    many = np.random.default_rng(5).random((3000, 64), np.float32)
    want = smelt.load(DIGITS, engine="native")(many)["probabilities"]
    for _ in range(2):
        np.testing.assert_array_equal(outputs(client.post("/v2/models/native/infer", ask(many, "pixels"))), want)


def test_requests_at_once_share_calls_and_get_their_own_rows(client: Client) -> None:
    want = smelt.load(DIGITS, engine="native")(PIXELS)["probabilities"]

    async def burst() -> list[Reply]:
        path = "/v2/models/native/infer"
        return await asyncio.gather(*(client.ask("POST", path, ask(PIXELS[i % 2][None], "pixels")) for i in range(40)))

    for i, reply in enumerate(client.run(burst())):
        np.testing.assert_array_equal(outputs(reply), want[i % 2][None])
    assert version(client, "native").stats.calls < version(client, "native").stats.success


def test_the_server_itself_reads_no_model(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: Any, **named: Any) -> Any:
        raise AssertionError("the server read a model file")

    for place in ("smelt.serve.opening.load", "smelt.serve.opening.read", "smelt.model.load"):
        monkeypatch.setattr(place, read)
    assert client.post("/v2/repository/models/digits/load").status == 200
    assert client.post("/v2/models/digits/infer", ask(PIXELS, "pixels")).status == 200


def test_a_killed_worker_comes_back(client: Client) -> None:
    before = worker_of(client, "native").pid
    os.kill(before, signal.SIGKILL)
    statuses = [client.post("/v2/models/native/infer", ask(PIXELS, "pixels")).status for _ in range(3)]
    assert set(statuses) <= {200, 503}  # whether it was noticed before the first request
    assert statuses[-1] == 200
    assert worker_of(client, "native").pid != before


def test_signals_to_all_processes_leave_workers_to_the_server(client: Client) -> None:
    before = worker_of(client, "digits").pid
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(before, number)
    assert client.post("/v2/models/digits/infer", ask(PIXELS, "pixels")).status == 200
    assert worker_of(client, "digits").pid == before


def test_loading_and_unloading_leaves_nothing_open(client: Client) -> None:
    async def settle() -> None:
        while client.app.catalogue._closing:
            await asyncio.sleep(0.001)

    def cycle() -> int:
        for action in ("unload", "load"):
            assert client.post(f"/v2/repository/models/digits/{action}").status == 200
        client.run(settle())
        return len(os.listdir("/proc/self/fd"))

    before = [cycle() for _ in range(3)][-1]
    assert [cycle() for _ in range(8)][-1] == before


def test_errors_of_loading_are_those_of_the_model(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x07garbage")
    with serving(model(broken, trusted=False), model(DIGITS, trusted=False)) as found:
        reply = found.post("/v2/models/broken/infer", ask([1.0]))
        assert reply.status == 503
        assert str(broken) in reply.json["error"]


def test_a_command_on_a_model_reads_its_files_alone(client: Client, tmp_path: Path) -> None:
    if not any("landlock" in layer for layer in worker_of(client, "digits").layers):
        pytest.skip("the kernel has no Landlock")
    other = tmp_path / "other.onnx"
    other.write_bytes(Path(DIGITS).read_bytes())

    def inspect(path: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "smelt.serve.isolation.confined_command", str(tmp_path / "own")]
        environment = {**os.environ, "PYTHONPATH": str(Path(smelt.__file__).parents[1])}
        return subprocess.run(
            [*command, json.dumps([DIGITS]), "inspect", path, "--json"],
            env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    assert json.loads(inspect(DIGITS).stdout)["inputs"]
    refused = inspect(str(other))
    assert refused.returncode
    assert "Permission denied" in refused.stdout + refused.stderr


@pytest.mark.parametrize("fields", [{"device": "cuda", "engine": "auto"}, {"engine": "pjrt"}])
def test_accelerators_are_for_trusted_models(fields: dict[str, str]) -> None:
    with serving(model(DIGITS, trusted=False, **fields)) as found:
        reply = found.post("/v2/models/digits/infer", ask(PIXELS, "pixels"))
        assert reply.status == 503
        assert "trusted = true" in reply.json["error"]


def test_a_worker_that_ends_before_it_is_asked_is_started_again() -> None:
    with serving(model(DIGITS, trusted=False, warm_up=False)) as found:

        async def work() -> int:
            queue = version(found, "digits").queue
            assert isinstance(queue, remote_queue.RemoteQueue)
            os.kill(queue.model.pid, signal.SIGKILL)
            while not queue.restarts:
                await asyncio.sleep(0.01)
            pixels = {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": [0] * 64}
            return (await found.ask("POST", "/v2/models/digits/infer", {"inputs": [pixels]})).status

        assert found.run(asyncio.wait_for(work(), 60)) == 200


# ---- models that misbehave ----

KINDS = ("escape", "wait", "hang", "crash", "babble", "fail")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("hostile")
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.txt"
    secret.write_text("secret")
    for kind in KINDS:
        does = {"does": kind, "secret": str(secret), "server": os.getpid()}
        (folder / f"{kind}.onnx").write_text(json.dumps(does))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smelt.serve.models.Zygote", partial(Zygote, "tests.unit.serve.hostile_worker"))
        patch.setattr(remote_queue, "GRACE", 0.2)
        models = [model(folder / f"{kind}.onnx", trusted=False, warm_up=False) for kind in KINDS]
        with serving(*models) as found:
            yield found


def test_there_is_no_way_out(hostile: Client) -> None:
    reply = hostile.post("/v2/models/escape/infer", ask([0.0]))
    assert reply.status == 200, reply.body
    report = json.loads(reply.json["outputs"][0]["data"][0])
    layers = " ".join(worker_of(hostile, "escape").layers)
    assert {name for name, outcome in report.items() if outcome == "it worked"} >= {"read itself", "thread"}
    if "seccomp" not in layers or "landlock" not in layers:
        pytest.skip(f"the kernel has only {layers}")
    escaped = {name: outcome for name, outcome in report.items() if outcome == "it worked"}
    assert escaped.keys() == {"read itself", "thread"}
    refused = set(report.values()) - {"it worked", "not allowed to raise maximum limit"}
    assert refused <= {"EPERM", "EACCES", "ENOSYS", "EROFS"}, report


def test_cancellation_reaches_the_worker(hostile: Client) -> None:
    async def leave() -> None:
        call = asyncio.create_task(hostile.ask("POST", "/v2/models/wait/infer", ask([1.0])))
        queue = version(hostile, "wait").queue
        assert queue is not None
        while not queue.running:
            await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    before = worker_of(hostile, "wait").pid
    hostile.run(leave())
    reply = hostile.post("/v2/models/wait/infer", ask([0.0]))  # the worker is free again, and the same one
    assert reply.status == 200
    assert worker_of(hostile, "wait").pid == before


def test_deadlines_reach_the_worker(hostile: Client) -> None:
    before = worker_of(hostile, "wait").pid
    reply = hostile.post("/v2/models/wait/infer", ask([1.0], parameters={"timeout": 20000}))
    assert reply.status == 504
    assert worker_of(hostile, "wait").pid == before


def test_a_worker_that_hangs_is_ended(hostile: Client) -> None:
    reply = hostile.post("/v2/models/hang/infer", ask([1.0], parameters={"timeout": 20000}))
    assert reply.status == 503
    assert hostile.post("/v2/models/hang/infer", ask([0.0])).status == 200


def test_a_crash_fails_its_own_request_alone(hostile: Client) -> None:
    async def burst() -> list[Reply]:
        numbers = [0.0] * 5 + [1.0] + [0.0] * 5
        return await asyncio.gather(*(hostile.ask("POST", "/v2/models/crash/infer", ask([n])) for n in numbers))

    statuses = [reply.status for reply in hostile.run(burst())]
    assert statuses == [200] * 5 + [503] + [200] * 5
    assert hostile.post("/v2/models/fail/infer", ask([0.0])).status == 200  # of another worker


def test_a_worker_that_sends_nonsense_is_ended(hostile: Client) -> None:
    assert hostile.post("/v2/models/babble/infer", ask([1.0])).status >= 400
    assert hostile.post("/v2/models/babble/infer", ask([0.0])).status == 200


def test_a_worker_that_does_not_get_ready_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "stall.onnx"
    path.write_text(json.dumps({"does": "stall"}))
    zygote = Zygote("tests.unit.serve.hostile_worker")
    try:
        with pytest.raises(DeviceError, match="did not load the model in time") as raised:
            RemoteModel(zygote, "stall", path, ModelConfig(load_timeout=0.2))
        assert "load_timeout" in str(raised.value)
    finally:
        zygote.close()


def test_workers_end_with_the_process_that_forked_them() -> None:
    zygote = Zygote()
    try:
        found = RemoteModel(zygote, "digits", Path(DIGITS), ModelConfig())
        before = found.pid
        assert zygote._process is not None
        assert zygote._process.poll() is None
        zygote._process.kill()
        zygote._process.wait()
        assert zygote.ending(before, 60.0) == -signal.SIGKILL
        zygote.start()
        assert zygote.ending(before, 0.0) == -signal.SIGKILL, "the next one never had it"
        found.restart()
        assert found.pid != 0
        assert zygote._alive >= {found.pid}
        assert not zygote._ended
        found.close()
    finally:
        zygote.close()


def test_an_error_of_the_model_arrives_whole(hostile: Client) -> None:
    reply = hostile.post("/v2/models/fail/infer", ask([1.0]))
    assert reply.status == 400
    detail = {"error": "RunError", "message": "it does not like the number", "got": "1.0"}
    assert reply.json["detail"].items() >= detail.items()


def test_the_memory_of_a_process_is_the_sum_of_its_parts() -> None:
    parts = re.findall(r"^Pss: +(\d+) kB$", Path("/proc/self/smaps").read_text(), re.MULTILINE)
    assert proportional_bytes(os.getpid()) == pytest.approx(1024 * sum(map(int, parts)), rel=0.25)
    assert proportional_bytes(-1) == 0


# ---- the numbers of system calls ----


@pytest.mark.parametrize(
    ("column", "header", "pattern"),
    [
        (0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
        (1, "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)"),
    ],
)
def test_the_numbers_of_system_calls_are_the_kernels(column: int, header: str, pattern: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"{header} is not installed")
    known = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    special = {
        name.lower(): getattr(syscalls, name) for name in ("OPEN", "OPENAT", "CLONE", "IOCTL", "PRCTL", "TGKILL")
    }
    rows = {**syscalls.WORKER, **syscalls.HARMFUL, **special, "prlimit64": syscalls.PRLIMIT, "capset": syscalls.CAPSET}
    rows["landlock_create_ruleset"] = (syscalls.LANDLOCK_CREATE,) * 2
    rows["landlock_add_rule"] = (syscalls.LANDLOCK_ADD,) * 2
    rows["landlock_restrict_self"] = (syscalls.LANDLOCK_RESTRICT,) * 2
    rows["clone3"] = (syscalls.NEWER,) * 2
    wrong = {
        name: numbers for name, numbers in rows.items() if name in known and numbers[column] not in (known[name], None)
    }
    assert not wrong
    assert sum(name in known for name in rows) > 100
