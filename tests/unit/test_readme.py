"""The README's Python examples run as they stand."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_python_examples_run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "(1, 10)" in printed
    assert "stablehlo.tanh" in printed
    assert names["y"].shape == (2, 4)
