"""`smelt pull` against a stand-in for the hub, and models by name afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.cli.pull import choose
from smelt.cli.pull import pull as download
from smelt.errors import FileError, UnsupportedError
from smelt.llm.store import list_models, resolve
from smelt.serve.config import ModelConfig
from smelt.serve.models import find
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary

pytest.importorskip("huggingface_hub")
ROOT = Path(__file__).resolve().parents[3]
COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """The hub's answers for one model. `broken`: how many bytes of the weights come before the connection ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
        self.broken: int | None = None
        self.commit, self.digest = COMMIT, ""
        self.ranges: list[str] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is nothing to tell."""


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/tiny"):
            self._json(self._about(path))
        elif path.startswith("/api/"):
            self._missing("RepoNotFound")
        elif found := re.fullmatch(rf"/org/tiny/resolve/{self.server.commit}/(.+)", path):
            self._file(found[1])
        else:
            self._missing("EntryNotFound")

    def _about(self, path: str) -> Any:
        rows = [(name, len(data)) for name, data in sorted(self.server.files.items())]
        if "/tree/" in path:
            return [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in rows]
        siblings = [
            {"rfilename": name, "size": size, "blobId": "0" * 40, **self._lfs(name, size)} for name, size in rows
        ]
        about = {"private": False, "tags": [], "downloads": 0, "likes": 0}
        return {"id": "org/tiny", "modelId": "org/tiny", "sha": self.server.commit, "siblings": siblings, **about}

    def _lfs(self, name: str, size: int) -> dict[str, Any]:
        if not name.endswith(".safetensors"):
            return {}
        digest = self.server.digest or hashlib.sha256(self.server.files[name]).hexdigest()
        return {"lfs": {"sha256": digest, "size": size, "pointerSize": 100}}

    def _json(self, record: Any) -> None:
        data = json.dumps(record).encode()
        self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        if self.command == "GET":
            self.wfile.write(data)

    def _missing(self, why: str) -> None:
        self._head(404, {"X-Error-Code": why, "X-Error-Message": why, "Content-Length": "0"})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _file(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self._missing("EntryNotFound")
            return
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        common = {"ETag": tag, "X-Repo-Commit": self.server.commit, "Accept-Ranges": "bytes"}
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.command == "GET":
            self.server.ranges.append(f"{name} {asked[1]}")
            start = int(asked[1])
            common["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            data = data[start:]
        self._head(206 if asked else 200, {**common, "Content-Length": str(len(data))})
        if self.command == "GET":
            cut = self.server.broken if name.endswith(".safetensors") else None
            self.wfile.write(data if cut is None else data[: max(0, cut - start)])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True


@contextmanager
def running(folder: Path) -> Iterator[Hub]:
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    case = Case.load(FIXTURE)[0]
    write_checkpoint(folder, case.config, case.shapes)
    write_vocabulary(folder / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    with running(folder) as server:
        yield server


def pull(hub: Hub, store: Path, *arguments: str, wait: float = 120) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment = kept | {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(store / "hf"), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "SMELT_STORE": str(store),
    }  # fmt: skip
    command = [sys.executable, "-m", "smelt", "pull", *arguments, "--json"]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=wait
    )  # fmt: skip


def test_a_model_comes_and_is_used_by_name(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STORE", str(tmp_path))
    done = pull(hub, tmp_path, "org/tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert (record["commit"], record["downloaded"]) == (COMMIT, True)
    assert record["files"] == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    folder = tmp_path / "org" / "tiny"
    for name in record["files"]:
        assert (folder / name).read_bytes() == hub.files[name]
    assert not (folder / "pytorch_model.bin").exists()
    assert not (folder / "modeling.py").exists()
    again = pull(hub, tmp_path, "org/tiny")
    assert json.loads(again.stdout)["downloaded"] is False
    assert [(row["name"], row["path"]) for row in list_models()] == [("org/tiny", str(folder))]
    # By name: in Python and for the server.
    with smelt.llm.load("org/tiny", engine="reference") as model:
        assert model.generate("w1 w2", max_tokens=2).ids
    (version,) = find(ModelConfig(path="org/tiny"))
    assert (version.name, version.path, version.language) == ("tiny", folder, True)


def test_what_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = tmp_path / "hub", tmp_path / "store"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(6 << 20))
    with running(folder) as hub:
        hub.broken = 5 << 20
        done = pull(hub, store, "org/tiny")
        assert (done.returncode, "could not be pulled" in done.stdout) == (1, True), done.stdout
        monkeypatch.setenv("SMELT_STORE", str(store))
        with pytest.raises(FileError, match="not complete"):
            resolve("org/tiny")
        hub.broken, hub.ranges = None, []
        done = pull(hub, store, "org/tiny")
        assert done.returncode == 0, done.stdout + done.stderr
        begun = [int(each.split(" ")[1]) for each in hub.ranges if each.startswith("model.safetensors")]
        assert len(begun) == 1
        assert min(begun) >= 4 << 20
        assert (store / "org" / "tiny" / "model.safetensors").read_bytes() == bytes(6 << 20)
        # A new commit with other bytes than it says is refused.
        hub.digest, hub.commit = "0" * 64, "d" * 40
        done = pull(hub, store, "org/tiny")
        assert (done.returncode, "does not match the checksum" in done.stdout) == (1, True), done.stdout


def test_mistakes_are_said(hub: Hub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "org/absent")
    assert done.returncode == 1
    assert "no model 'org/absent'" in json.loads(done.stdout)["message"], done.stdout
    for name in ("tiny", "a/../b", "../b", "a/b/c", "/etc/passwd", ""):
        with pytest.raises(FileError, match="no name of a model"):
            download(name, "", "", False)


def test_which_files_are_taken() -> None:
    small = {"config.json": 1, "tokenizer.json": 1, "README.md": 1, "1_Pooling/config.json": 1}
    both = {**small, "model.safetensors": 5, "model.gguf": 5, "model.bin": 5}
    assert set(choose(both, "", "m")) == {
        "config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors",
    }  # fmt: skip
    several = {**small, "a-Q4_0.gguf": 1, "a-Q8_0.gguf": 2}
    assert "a-Q8_0.gguf" in choose(several, "*Q8_0.gguf", "m")
    with pytest.raises(FileError, match="several models"):
        choose(several, "", "m")
    with pytest.raises(FileError, match="no weights like"):
        choose(several, "*Q2*", "m")
    for path in ("../config.json", "/etc/config.json", "a/../../b.json", "a//b.json"):
        with pytest.raises(FileError, match="outside its folder"):
            choose({**both, path: 1}, "", "m")
    with pytest.raises(UnsupportedError, match="no weights"):
        choose({**small, "model.bin": 1}, "", "m")


def test_names_of_files_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STORE", str(tmp_path))
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    for file in ("a.gguf", "b.gguf"):
        (folder / file).write_bytes(b"")
    (folder / "smelt-pull.json").write_text("{}")
    assert resolve("org/name/a.gguf") == folder / "a.gguf"
    with pytest.raises(FileError, match="2 models"):
        resolve("org/name")
    with pytest.raises(FileError, match="no file"):
        resolve("org/name/c.gguf")
    (folder / "b.gguf").unlink()
    assert resolve("org/name") == folder / "a.gguf"
    for path in ("org/other", "nothing.gguf", "a/b/c/d", str(folder)):
        assert resolve(path) == Path(path)
