"""`smelt bench` for language models: rates, a peer in a process of its own (here one that counts), and mistakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from smelt.cli import bench_language
from smelt.cli.bench_language import bench, is_language_model
from smelt.errors import RunError, UnsupportedError
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_gguf

CASE = Case.load(FIXTURE)[0]
WORKER = """
import json, sys
if sys.argv[2] == "39":
    raise SystemExit("cannot load")
print(json.dumps("9.9"), flush=True)
for line in sys.stdin:
    tokens, count = json.loads(line)
    print(json.dumps([len(tokens) / 100, (count - 1) / 10]), flush=True)
"""


@pytest.fixture(autouse=True)
def _keep_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Runtime:
        def set_threads(self, count: int) -> None:
            pass

    monkeypatch.setattr(bench_language, "runtime", Runtime)
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(bench_language, "WORKER", tmp_path / "worker.py")


def test_rates_beside_a_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, CASE)
    assert is_language_model(path)
    loading = {"engine": "reference"}
    bench(path, ["llama.cpp"], loading, 0, 1, [f"llama.cpp={sys.executable}"], None, (9, 4), True)
    record = json.loads(capsys.readouterr().out)
    assert (record["rounds"], record["prompt"], record["new"]) == (3, 9, 4)
    theirs = record["engines"]["llama.cpp"]
    assert (theirs["prefill_tokens_per_s"], theirs["decode_tokens_per_s"]) == (pytest.approx(100), pytest.approx(10))
    assert theirs["version"] == "9.9"
    ours = record["engines"]["smelt"]
    assert ours["prefill_ratio"] == ours["decode_ratio"] == 1
    bench(path, [], loading, 0, 1, [], None, (3, 2), False)
    assert "3 tokens read, 2 generated" in capsys.readouterr().out
    with pytest.raises(RunError, match="does not load the model"):
        bench(path, ["llama.cpp"], loading, 0, 1, [], None, (30, 8), True)
    with pytest.raises(RunError, match="than the context holds"):
        bench(path, [], loading, 0, 1, [], None, (160, 8), True)
    with pytest.raises(RunError, match="too small"):
        bench(path, [], loading, 0, 1, [], None, (0, 8), True)
    with pytest.raises(UnsupportedError, match="no peer"):
        bench(path, ["onnxruntime"], loading, 0, 1, [], None, (3, 2), True)


def test_peers_read_gguf_files(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "folder", CASE.config, CASE.shapes)
    with pytest.raises(UnsupportedError, match="reads GGUF files"):
        bench(tmp_path / "folder", ["llama.cpp"], {}, 0, 1, [], None, (3, 2), True)
