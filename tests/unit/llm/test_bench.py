"""The harness that measures language models: it runs, and tells what it measured; no demands on speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import llm
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint


def test_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path, case.config, case.shapes)
    given = [str(tmp_path), "--prompt", "9", "--new", "4", "--rounds", "2", "--engine", "reference", "--alone"]
    assert llm.main([*given, "--concurrent", "3", "--json", str(tmp_path / "out.json")]) == 0
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["engines"]["smelt"]["decode"] > 0
    assert record["concurrent"]["requests"] == 3
    assert 0 < record["concurrent"]["least"] <= record["concurrent"]["decode"] <= record["concurrent"]["most"]
    assert "at once" in capsys.readouterr().out
