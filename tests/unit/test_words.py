"""Private phrases: prose and names use the words that readers of Halide, oneDNN and ONNX Runtime search for.

Functions are verbs, or nouns for what they return: none is a bare participle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# phrase → what to write instead
PRIVATE = {
    r"whoever|whosoever|nobody|somebody": "name the caller, the user or the thread",
    r"so many": "the number itself",
    r"gone about|goes about": "what is done",
    r"in comes?|out goe?s?": "a → b, or In: … Out: …",
    r"under way": "running",
    r"in the midst": "during",
    r"lie|lies|lying": "is (in memory, in the file)",
    r"brings? near|rows pass by": "cache-resident, packed panel",
    r"window for each channel|channel_conv": "depthwise convolution",
    r"products? of bytes|products? by weights": "int8 GEMM, weight matmuls and convolutions",
    r"bytes of the other sign|moved by 128": "uint8 ↔ int8, offset by 128",
    r"open sizes?|open dimensions?": "dynamic dimension",
    r"sizes? that (only )?data tells?|late sizes?": "data-dependent size",
    r"inputs? that shapes? the program": "compile-time input",
    r"made on the way": "fused",
    r"asks for what comes next": "prefetches",
    r"takes? for granted": "assumes",
    r"one after the other": "in order, in sequence, concatenated",
    r"(is|are|was|were) asked for": "requested, given, needed, used",
}  # fmt: skip
BANNED = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in PRIVATE.items()}


def find_private(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, phrase, what to write instead)"""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in BANNED.items():
            for found in pattern.finditer(line):
                yield number, found[0], instead


@pytest.mark.parametrize("place", ["smelt", "docs", "examples", "bench", "README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_no_private_phrases(place: str) -> None:
    root = ROOT / place
    files = (
        [root]
        if root.is_file()
        else [file for file in sorted(root.rglob("*")) if file.suffix in {".py", ".pyi", ".c", ".h", ".md"}]
    )
    found = [
        f"{file.relative_to(ROOT)}:{line}: {phrase!r}: {instead}"
        for file in files
        for line, phrase, instead in find_private(file.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_a_private_phrase_is_found() -> None:
    assert [phrase for _, phrase, _ in find_private("a depthwise convolution\nwhere Whoever lies")] == [
        "Whoever",
        "lies",
    ]
    assert not list(find_private("believe, underway, dynamic dimension"))


IRREGULAR = (
    r"bought|brought|built|caught|chosen|done|drawn|driven|fed|felt|found|given|gone|grown|held|hidden|kept|known|laid|"
    r"left|lost|made|meant|met|paid|said|seen|sent|shown|sold|spent|taken|taught|thought|told|torn|won|written"
)
PARTICIPLE = re.compile(rf"_*(?:{IRREGULAR}|[a-z]+ed)")
VERBS = {"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed"}
# An op's name, an error factory, and public names: `x.named("b s")`, `@checked`, `train.mixed(loss)`.
ALLOWED = {"_infeed", "_outfeed", "unsupported", "named", "unnamed", "checked", "mixed"}


def participles(source: str) -> Iterator[tuple[int, str]]:
    """Functions named by one participle. A property is a value: it may be."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in ALLOWED:
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            if (
                PARTICIPLE.fullmatch(node.name)
                and node.name.strip("_") not in VERBS
                and not re.search("property|setter", decorators)
            ):
                yield node.lineno, node.name


@pytest.mark.parametrize("place", ["smelt", "docs", "examples", "bench"])
def test_functions_are_not_participles(place: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}: a verb, or a noun for what it returns"
        for file in sorted((ROOT / place).rglob("*.py"))
        for line, name in participles(file.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_a_participle_is_found() -> None:
    source = "def joined(): ...\ndef _kept(): ...\ndef join(): ...\n@property\ndef stored(self): ...\ndef open(): ..."
    assert list(participles(source)) == [(1, "joined"), (2, "_kept")]
