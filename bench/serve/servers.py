"""Servers under test: smelt with and without isolation, and peers in virtual environments of their own.

Every peer computes the same MLP with NumPy and answers the same JSON, so that what differs is the server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.serve import mlp
from bench.serve.load import processes

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).with_name("peers")


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    url: str  # of inference


def smelt_server(model: Path, *flags: str) -> AbstractContextManager[Running]:
    return _serve(f"{mlp.NAME}={model}", *flags)


def configured_server(settings: Path) -> AbstractContextManager[Running]:
    return _serve("--config", str(settings))


@contextmanager
def _serve(*arguments: str) -> Iterator[Running]:
    with running_server(*arguments) as (pid, url):
        yield Running(pid, f"{url}/v2/models/{mlp.NAME}/infer")


@contextmanager
def running_server(*arguments: str) -> Iterator[tuple[int, str]]:
    """`smelt serve` with its models ready: its process and address."""
    command = [sys.executable, "-m", "smelt", "serve", *arguments, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    assert process.stdout is not None
    url = ""
    try:
        for line in process.stdout:
            found = re.search(r"listens on (\S+)", line)
            url = found[1] if found else url
            if line.startswith("Try it"):
                break
        else:
            raise SystemExit("smelt serve did not start")
        yield process.pid, url
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of another project: its packages, its command, and where it takes requests."""

    name: str
    packages: Sequence[str]
    command: Sequence[str]  # {python}, {bin}, {port} and {folder} are filled in
    path: str


PEER_SERVERS = (
    Peer("mlserver", ("mlserver", "setuptools<81"), ("{bin}/mlserver", "start", "{folder}"), "/v2/models/mlp/infer"),
    Peer(
        "kserve",
        ("kserve",),
        ("{python}", "{peers}/kserve_mlp.py", "--http_port", "{port}", "--enable_grpc", "false"),
        "/v2/models/mlp/infer",
    ),
    Peer("litserve", ("litserve",), ("{python}", "{peers}/litserve_mlp.py", "{port}"), "/predict"),
    Peer(
        "bentoml",
        ("bentoml",),
        ("{bin}/bentoml", "serve", "bentoml_mlp:Mlp", "--port", "{port}", "--working-dir", "{peers}"),
        "/infer",
    ),
)


def install(peer: Peer, cache: Path) -> Path:
    """The Python of a peer's virtual environment, made when it is not there."""
    folder = cache / peer.name
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *peer.packages,
            "numpy",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        if ran.returncode:
            raise RuntimeError(f"{peer.name} cannot be installed: {ran.stderr.strip()[-300:]}")
        done.touch()
    return python


@contextmanager
def peer_server(peer: Peer, cache: Path) -> Iterator[Running]:
    python = install(peer, cache)
    port = _free_port()
    folder = _folder(peer, cache, port)
    np.savez(folder / "mlp.npz", **mlp.weights())
    places = {
        "python": str(python),
        "bin": str(python.parent),
        "port": str(port),
        "folder": str(folder),
        "peers": str(PEERS),
    }
    command = [part.format(**places) for part in peer.command]
    environment = {**os.environ, "MLP_WEIGHTS": str(folder / "mlp.npz"), "PYTHONPATH": str(PEERS)}
    environment["BENTOML_DO_NOT_TRACK"] = "true"
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}{peer.path}"
        _await(process, url, folder / "log.txt")
        yield Running(process.pid, url)
    finally:
        for pid in processes(process.pid):  # some have process groups of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _folder(peer: Peer, cache: Path, port: int) -> Path:
    folder = cache / f"{peer.name}-run"
    folder.mkdir(parents=True, exist_ok=True)
    if peer.name == "mlserver":
        ports = {"http_port": port, "grpc_port": _free_port(), "metrics_port": _free_port()}
        (folder / "settings.json").write_text(json.dumps({**ports, "parallel_workers": 0}))
        (folder / "model-settings.json").write_text('{"name": "mlp", "implementation": "mlserver_mlp.Mlp"}')
    return folder


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    body, headers = mlp.json_request()
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-600:]}")
