"""The README's Python examples run as they stand, and what it shows of `smelt check` is what the command says."""

import re
import tomllib
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_python_examples_run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "(1, 10)" in printed
    up, up_bias, down, down_bias = (np.asarray(names["weights"][name], np.float64) for name in names["sizes"])
    scores = np.exp(np.maximum(names["image"] @ up.T + up_bias, 0) @ down.T + down_bias)
    np.testing.assert_allclose(names["probabilities"], scores / scores.sum(-1, keepdims=True), rtol=1e-5)


def test_the_message_is_that_of_the_page_on_tensors():
    """Which `test_docs` compares with what the command prints."""
    shown = re.search(r"    \$ smelt check mlp\.py\n((?:    .*\n)+)", README)
    assert shown is not None
    assert shown.group(1).startswith("    mlp.py:")
    assert shown.group(1) in (ROOT / "docs" / "tensors.md").read_text()


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert [name for name in extras if name != "dev" and f"`{name}` (" not in README] == []
