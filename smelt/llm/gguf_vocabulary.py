"""A tokenizer → the vocabulary of a GGUF file (keys `tokenizer.ggml.…`), which llama.cpp reads. For `gguf_export`.

Byte pairs over bytes become GGUF's `gpt2`, SentencePiece's byte pairs its `llama`. What was written is read back and
must encode sample texts as the tokenizer does. Where it does not, or GGUF has no name for how texts are split, the
file has the tokens and no rules: llama.cpp refuses it, smelt reads the whole tokenizer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from smelt.errors import SmeltError
from smelt.llm.tokenizer import (
    BYTE,
    CONTROL,
    GPT2_SPLIT,
    NORMAL,
    SPLITS,
    UNUSED,
    USER,
    WHOLE_WORDS,
    Tokenizer,
    from_gguf,
)

log = logging.getLogger("smelt")

PREFIX = "tokenizer.ggml."
SPACE = "▁"  # what SentencePiece writes for a space
SAMPLES = (
    "",
    "Hello, world!",
    " two  spaces\n\n\tand lines \r\n",
    "I'll say it's DON'T, they've 3.14159, 1234567 and x²",
    "naïve Ångström e\u0301 — “quotes” … 中文字 かな 한국어 עברית हिन्दी 🙂👩‍👩‍👧",
    "def f(a_b: int) -> None:\n    return {'k': a_b[0] ** 2}  # done",
    "\u00a0\u2003x\x00\x7f",
)


def vocabulary_of(tokenizer: Tokenizer, size: int, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a vocabulary with `size` tokens; `metadata` are the file's other keys."""
    record = json.loads(tokenizer.to_json())
    found = _tokens(record, size)
    rules = _byte_pairs(record) or _sentence_pieces(record, found)
    if rules is None:
        log.warning("%s: GGUF has no words for its rules: llama.cpp will not read the file", tokenizer.source)
        return found
    ends = tokenizer.encode("")
    for key, at in (("bos", 0), ("eos", -1)):
        rules[f"{PREFIX}add_{key}_token"] = bool(ends) and ends[at] == metadata.get(f"{PREFIX}{key}_token_id")
    whole = {**found, **rules}
    if not _is_same(tokenizer, {**metadata, **whole}):
        log.warning(
            "%s: GGUF's rules would give other tokens, so that llama.cpp will not read the file", tokenizer.source
        )
        return found
    return whole


def _is_same(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> bool:
    try:
        written = from_gguf(metadata, tokenizer.source)
        return all(written.encode(text) == tokenizer.encode(text) for text in SAMPLES)
    except SmeltError:
        return False


def _tokens(record: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Tokens by number, and their kinds."""
    model, added = record["model"], record.get("added_tokens") or []
    vocab = model.get("vocab", {})
    numbers = vocab if isinstance(vocab, Mapping) else {piece: i for i, (piece, _) in enumerate(vocab)}
    tokens, kinds = [f"[unused {i}]" for i in range(size)], np.full(size, UNUSED, np.int32)
    spelt = {f"<0x{byte:02X}>" for byte in range(256)} if model.get("byte_fallback") else set()
    for text, number in numbers.items():
        if 0 <= number < size:
            tokens[number], kinds[number] = text, BYTE if text in spelt else NORMAL
    for each in added:
        if 0 <= each["id"] < size:
            tokens[each["id"]], kinds[each["id"]] = each["content"], CONTROL if each.get("special") else USER
    return {f"{PREFIX}tokens": tokens, f"{PREFIX}token_type": kinds}


def _merges(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = record["model"].get("merges") or []
    return [tuple(each.split(" ", 1)) if isinstance(each, str) else tuple(each) for each in given]  # type: ignore[misc]


# ---- byte pairs over bytes ----


def _byte_pairs(record: Mapping[str, Any]) -> dict[str, Any] | None:
    model, patterns = record["model"], _patterns(record.get("pre_tokenizer"))
    normaliser = (record.get("normalizer") or {}).get("type")
    if patterns is None or normaliser not in (None, "NFC") or not model.get("merges"):
        return None
    for name, each in SPLITS.items():
        composes, whole = name == "qwen2", name in WHOLE_WORDS
        if each == patterns and composes == (normaliser == "NFC") and whole == bool(model.get("ignore_merges")):
            merges = [" ".join(pair) for pair in _merges(record)]
            return {f"{PREFIX}model": "gpt2", f"{PREFIX}pre": name, f"{PREFIX}merges": merges}
    return None


def _patterns(record: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """How texts are split before their bytes are spelt as characters; None where they are not spelt so."""
    steps = [] if record is None else record.get("pretokenizers", [record])
    found = []
    for step in steps:
        match step:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                found.append(pattern)
            case {"type": "Digits", "individual_digits": True}:
                found.append(r"\p{N}")
            case {"type": "ByteLevel", "add_prefix_space": False}:
                return (*found, GPT2_SPLIT) if step.get("use_regex", True) else tuple(found)
            case _:
                return None
    return None


# ---- SentencePiece ----


def _sentence_pieces(record: Mapping[str, Any], vocabulary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Pieces get scores in the order in which their merges apply."""
    model, prefix = record["model"], _has_prefix(record)
    if prefix is None or not model.get("byte_fallback") or not model.get("merges"):
        return None
    tokens = vocabulary[f"{PREFIX}tokens"]
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(_merges(record)):
        ranks.setdefault("".join(pair), rank)
    scores = np.array([-float(ranks.get(token, len(ranks))) for token in tokens], np.float32)
    found: dict[str, Any] = {f"{PREFIX}model": "llama", f"{PREFIX}pre": "default", f"{PREFIX}scores": scores}
    found[f"{PREFIX}add_space_prefix"] = prefix
    unknown = model.get("unk_token")
    if unknown in tokens:
        found[f"{PREFIX}unknown_token_id"] = tokens.index(unknown)
    return found


def _has_prefix(record: Mapping[str, Any]) -> bool | None:
    """Whether a space is put before a text; None where spaces are not written SentencePiece's way."""
    normaliser, splitter = record.get("normalizer") or {}, record.get("pre_tokenizer") or {}
    if splitter.get("type") == "Metaspace" and splitter.get("replacement") == SPACE and not normaliser:
        return bool(splitter.get("prepend_scheme", "always") != "never")
    steps = normaliser.get("normalizers", [normaliser])
    prepends = [step for step in steps if step.get("type") == "Prepend"]
    replaces = [step for step in steps if step.get("type") == "Replace" and step.get("content") == SPACE]
    known = len(prepends) + len(replaces) == len(steps) and len(replaces) == 1
    return bool(prepends) if known and all(step.get("prepend") == SPACE for step in prepends) else None
