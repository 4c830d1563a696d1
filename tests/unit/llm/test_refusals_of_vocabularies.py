"""What is wrong with a vocabulary, in words: one change to a good one for each check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError
from smelt.llm.tokenizer import from_file, from_gguf

pytest.importorskip("tokenizers")

KEY = "tokenizer.ggml."
PIECES = {
    KEY + "model": "llama",
    KEY + "tokens": ["<unk>", "<s>", "</s>", "a", "b", "ab"],
    KEY + "scores": np.zeros(6, np.float32),
    KEY + "token_type": np.array([2, 3, 3, 1, 1, 1], np.int32),
}
PAIRS = {KEY + "model": "gpt2", KEY + "tokens": ["a", "b", "ab"], KEY + "merges": ["a b"], KEY + "pre": "default"}
TOKENS = "x: no vocabulary"

CASES: list[tuple[dict[str, Any], str, Any, type[SmeltError], str]] = [
    (PIECES, "tokens", None, FileError, TOKENS),
    (PIECES, "tokens", "ab", FileError, TOKENS),
    (PIECES, "tokens", ["a", 1], FileError, TOKENS),
    (PIECES, "token_type", np.zeros(5, np.int32), ParseError, "x: token_type"),
    (PIECES, "model", "rwkv", UnsupportedError, "x: unknown kind of vocabulary"),
    (PIECES, "model", None, UnsupportedError, "x: unknown kind of vocabulary"),
    (PIECES, "scores", None, ParseError, "x: no scores for the tokens"),
    (PIECES, "scores", np.zeros(5, np.float32), ParseError, "x: no scores for the tokens"),
    (PIECES, "scores", [0.0] * 6, ParseError, "x: no scores for the tokens"),
    (PIECES, "tokens", ["<unk>", "<s>", "</s>", "a", "b", "ab" * 513], ParseError, "x: a token is too long"),
    (PAIRS, "merges", None, ParseError, "x: no merges"),
    (PAIRS, "merges", "a b", ParseError, "x: no merges"),
    (PAIRS, "merges", ["ab"], ParseError, "x: a merge is no pair"),
    (PAIRS, "merges", [" b"], ParseError, "x: a merge is no pair"),
    (PAIRS, "merges", ["a "], ParseError, "x: a merge is no pair"),
    (PAIRS, "merges", [7], ParseError, "x: a merge is no pair"),
    (PAIRS, "merges", ["a z"], ParseError, "x: the vocabulary makes no tokenizer"),
    (PAIRS, "pre", "unheard-of", UnsupportedError, "x: unknown way to split texts"),
]


@pytest.mark.parametrize(("good", "key", "value", "error", "message"), CASES)
def test_refused(good: dict[str, Any], key: str, value: Any, error: type[SmeltError], message: str) -> None:
    with pytest.raises(error) as caught:
        from_gguf({**good, KEY + key: value}, "x")
    assert type(caught.value) is error
    assert caught.value.message == message


def test_good_ones_are_taken() -> None:
    assert from_gguf(PAIRS, "x").encode("ab") == [2]
    assert from_gguf({key: value for key, value in PAIRS.items() if key != KEY + "pre"}, "x").encode("ab") == [2]
    assert 5 in from_gguf(PIECES, "x").encode("ab") or from_gguf(PIECES, "x").encode("a")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(FileError, match="cannot read"):
        from_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ParseError, match="not UTF-8"):
        from_file(path)
    path.write_text("{}")
    with pytest.raises(ParseError, match="no tokenizer"):
        from_file(path)
