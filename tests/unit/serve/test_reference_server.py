"""Exchanges of the Open Inference Protocol agree in structure with those of a reference server, MLServer."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.unit.serve.test_rest import small
from tests.unit.serve.test_server import Server

HERE = Path(__file__).parent
PORTS = ("http_port", "grpc_port", "metrics_port")


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_until_ready(process: subprocess.Popen[str], port: int) -> None:
    for _ in range(600):
        assert process.poll() is None, process.communicate()[0][-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError("MLServer does not get ready")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exchanges_have_the_structure_of_a_reference_servers(tmp_path: Path) -> None:
    """In an environment of its own: it pins other versions of what we use."""
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    packages = ["mlserver", "setuptools<81"]
    install = [str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(f"mlserver cannot be installed here: {done.stderr[-200:]}")
    folder = tmp_path / "theirs"
    folder.mkdir()
    shutil.copy(HERE / "reference_model.py", folder)
    ports = dict(zip(PORTS, free_ports(3), strict=True))
    tensors = {
        way: [{"name": name, "datatype": "FP32", "shape": [-1, 2]}] for way, name in (("inputs", "x"), ("outputs", "y"))
    }
    settings = {"name": "twice", "implementation": "reference_model.Twice", "platform": "numpy", **tensors}
    (folder / "settings.json").write_text(json.dumps({**ports, "host": "127.0.0.1", "parallel_workers": 0}))
    (folder / "model-settings.json").write_text(json.dumps({**settings, "parameters": {"version": "1"}}))
    small(tmp_path / "ours" / "twice" / "1" / "model.onnx", 2)
    theirs = subprocess.Popen(
        [str(programs / "mlserver"), "start", str(folder)],
        cwd=folder,
        env={"PATH": str(programs), "PYTHONPATH": str(folder), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        ours = Server(str(tmp_path / "ours"), "--engine", "reference", "--admin")
        try:
            wait_until_ready(theirs, ports["http_port"])
            addresses = [ports["http_port"], ports["grpc_port"], ours.http, ours.grpc]
            tour = [
                str(programs / "python"),
                str(HERE / "reference_tour.py"),
                *(f"127.0.0.1:{each}" for each in addresses),
            ]
            done = subprocess.run(tour, capture_output=True, text=True, check=False, timeout=200)
            assert done.stdout == "the tour is over\n", done.stderr
        finally:
            ours.close()
    finally:
        theirs.kill()
        theirs.communicate()
