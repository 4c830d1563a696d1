# ruff: noqa: E501  # answers stand in one line
"""The parts of `smelt pull` without a network: what is fetched, continued, checked, and how the hub's errors read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smelt.cli import pull
from smelt.errors import DeviceError, FileError, RunError, SmeltError
from smelt.llm.store import RECORD

DATA = b"0123456789" * 3


class GatedRepoError(Exception): ...


class RepositoryNotFoundError(Exception): ...


class RevisionNotFoundError(Exception): ...


class HfHubHTTPError(Exception): ...


class Hub:
    """The functions of huggingface_hub that are used; `status` and `content` of the next answers."""

    errors = SimpleNamespace(
        GatedRepoError=GatedRepoError, RepositoryNotFoundError=RepositoryNotFoundError,
        RevisionNotFoundError=RevisionNotFoundError, HfHubHTTPError=HfHubHTTPError,
    )  # fmt: skip

    def __init__(self, status: int = 200, content: bytes = DATA) -> None:
        self.status, self.content = status, content
        self.asked: list[tuple[str, str, dict[str, str], bool]] = []
        self.read: list[int] = []
        self.utils = SimpleNamespace(
            build_hf_headers=lambda: {"user-agent": "x"}, get_session=lambda: self, hf_raise_for_status=self.check
        )

    def check(self, response: Any) -> None:
        if response.status_code >= 400:
            raise HfHubHTTPError(f"{response.status_code} refused\nmore")

    def hf_hub_url(self, name: str, file: str, revision: str) -> str:
        return f"https://hub/{name}/{revision}/{file}"

    @contextmanager
    def stream(self, method: str, url: str, headers: dict[str, str], follow_redirects: bool) -> Iterator[Any]:
        self.asked.append((method, url, headers, follow_redirects))
        yield SimpleNamespace(
            status_code=self.status, headers={"Content-Length": str(len(self.content))}, read=lambda: self.read.append(1),
            iter_bytes=lambda size: (self.content[i : i + 7] for i in range(0, len(self.content), 7)),
        )  # fmt: skip


class Bar:
    def __init__(self) -> None:
        self.tasks: list[tuple[str, int, int]] = []
        self.done = 0

    def add_task(self, label: str, total: int, completed: int) -> int:
        self.tasks.append((label, total, completed))
        return 5

    def advance(self, task: int, count: int) -> None:
        assert task == 5
        self.done += count


def test_a_file_is_fetched_and_continued(tmp_path: Path) -> None:
    part, bar, hub = tmp_path / "p", Bar(), Hub()
    pull._fetch(hub, "https://u", part, bar, "name")  # type: ignore[arg-type]
    assert part.read_bytes() == DATA
    assert hub.asked == [("GET", "https://u", {"user-agent": "x", "Accept-Encoding": "identity"}, True)]
    assert (bar.tasks, bar.done) == ([("name", 30, 0)], 30)
    part.write_bytes(DATA[:12])
    bar, hub = Bar(), Hub(206, DATA[12:])
    pull._fetch(hub, "https://u", part, bar, "name")  # type: ignore[arg-type]
    assert part.read_bytes() == DATA
    assert hub.asked[0][2]["Range"] == "bytes=12-"
    assert (bar.tasks, bar.done) == ([("name", 30, 12)], 18)
    part.write_bytes(b"x" * 12)
    pull._fetch(Hub(200), "https://u", part, Bar(), "name")  # type: ignore[arg-type]  # a server without ranges
    assert part.read_bytes() == DATA
    pull._fetch(Hub(416, b"unused"), "https://u", part, Bar(), "name")  # type: ignore[arg-type]  # it was whole
    assert part.read_bytes() == DATA
    hub = Hub(404)
    with pytest.raises(HfHubHTTPError):
        pull._fetch(hub, "https://u", part, Bar(), "name")  # type: ignore[arg-type]
    assert hub.read == [1]
    assert part.read_bytes() == DATA


def test_files_are_checked_and_put_in_place(tmp_path: Path) -> None:
    folder, digest = tmp_path / "org" / "m", hashlib.sha256(DATA).hexdigest()
    folder.mkdir(parents=True)
    (folder / RECORD).write_text("{}")
    (folder / "same.bin").write_bytes(DATA)
    hub = Hub()
    files = {"a/b.bin": digest, "config.json": None, "same.bin": digest}
    pull._download(hub, "org/m", "c" * 40, folder, files, Bar())  # type: ignore[arg-type]
    assert [url for _, url, _, _ in hub.asked] == [
        f"https://hub/org/m/{'c' * 40}/{name}" for name in ("a/b.bin", "config.json")
    ]
    assert (folder / "a" / "b.bin").read_bytes() == (folder / "config.json").read_bytes() == DATA
    assert sorted(each.name for each in folder.iterdir()) == ["a", "config.json", "same.bin"]
    (folder / "same.bin").write_bytes(b"old")
    with pytest.raises(FileError, match=r"same.bin does not match the checksum of the hub"):
        pull._download(Hub(content=b"bad"), "org/m", "c" * 40, folder, {"same.bin": digest}, Bar())  # type: ignore[arg-type]
    assert (folder / "same.bin").read_bytes() == b"old"
    assert list((folder / pull.PARTIAL / ("c" * 40)).iterdir()) == []
    assert pull._digest(folder / "config.json") == digest


class OddError(Exception):
    __module__ = "httpx._exceptions"


@pytest.mark.parametrize(
    ("raised", "kind", "says", "got"),
    [
        (GatedRepoError(), DeviceError, "org/m is open only to those who accepted its terms", None),
        (RepositoryNotFoundError(), FileError, "the hub has no model 'org/m'", None),
        (RevisionNotFoundError(), FileError, "org/m has no such revision", None),
        (HfHubHTTPError("line one\nline two"), DeviceError, "org/m could not be pulled", "line one"),
        (OSError("  "), DeviceError, "org/m could not be pulled", "OSError"),
        (OddError("timed out"), DeviceError, "org/m could not be pulled", "timed out"),
    ],
)
def test_errors_of_the_hub(raised: Exception, kind: type[SmeltError], says: str, got: str | None) -> None:
    with pytest.raises(kind) as caught, pull._explain("org/m", Hub()):
        raise raised
    assert (caught.value.message, caught.value.got) == (says, got)


@pytest.mark.parametrize("own", [ValueError("a bug"), RunError("ours", remedy="x")])
def test_other_errors_stay(own: Exception) -> None:
    with pytest.raises(type(own)) as caught, pull._explain("org/m", Hub()):
        raise own
    assert caught.value is own


def test_a_model_is_pulled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sibling = SimpleNamespace
    files = [
        sibling(rfilename="config.json", size=30, lfs=None), sibling(rfilename="m.safetensors", size=None, lfs=SimpleNamespace(sha256=hashlib.sha256(DATA).hexdigest())),
        sibling(rfilename="evil.py", size=3, lfs=None),
    ]  # fmt: skip
    asked: list[Any] = []

    def about(name: str, revision: str | None, files_metadata: bool) -> Any:
        asked.append((name, revision, files_metadata))
        return SimpleNamespace(siblings=files, sha="d" * 40)

    hub: Any = Hub()
    hub.HfApi = lambda: SimpleNamespace(model_info=about)
    monkeypatch.setattr(pull, "_hub", lambda: hub)
    monkeypatch.setattr(pull, "store_folder", lambda: tmp_path)
    folder = tmp_path / "org" / "m"
    pull.pull("org/m", "", "", False)
    assert capsys.readouterr().out == f"org/m is complete: {folder}\nTry: smelt chat org/m\n"
    assert sorted(each.name for each in folder.iterdir()) == ["config.json", "m.safetensors", RECORD]
    record = {"name": "org/m", "revision": "main", "commit": "d" * 40, "files": ["config.json", "m.safetensors"]}
    assert json.loads((folder / RECORD).read_text()) == {**record, "bytes": 30}
    before = len(hub.asked)
    pull.pull("org/m", "", "", False)
    assert capsys.readouterr().out == f"org/m is up to date: {folder}\nTry: smelt chat org/m\n"
    assert len(hub.asked) == before
    pull.pull("org/m", "v1", "", True)
    said = json.loads(capsys.readouterr().out)
    assert said == {**record, "revision": "v1", "path": str(folder), "bytes": 30, "downloaded": True}
    assert asked == [("org/m", None, True)] * 2 + [("org/m", "v1", True)]
    for wrong in ("name", "a/b/c", "../x", "a/.."):
        with pytest.raises(FileError, match="no name of a model"):
            pull.pull(wrong, "", "", False)
