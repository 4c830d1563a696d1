"""A `tokenizer.json` → the tables of `tokens.c`: vocabulary, merges, ways to split texts.

Byte pairs over bytes (GPT-2's way) and over characters with a byte fallback (SentencePiece's) are known; what a file
asks for beyond that is refused with its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.aot.regex import Code
from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NORMAL, ADDED, SPECIAL = 0, 1, 2  # kinds of tokens; special ones have no text in an answer
SPACE = "▁"


class Tables(Frozen):
    """The tokenizer as arrays and flags, with the names of `Tokens` in chat.h."""

    arrays: dict[str, Array]
    flags: dict[str, int]


def byte_characters() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def make_tables(text: str, size: int) -> Tables:
    """The tables of a tokenizer.json for a model with `size` logits."""
    given = json.loads(text)
    model = given["model"]
    if model.get("type") != "BPE":
        raise _refusal("model", model.get("type"))
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise _refusal(name, model[name])
    splits, is_byte_level = _splits(given.get("pre_tokenizer"))
    normal = _normaliser(given.get("normalizer"))
    vocabulary: dict[str, int] = model["vocab"]
    added = given.get("added_tokens") or []
    for token in added:
        if token["lstrip"] or token["rstrip"] or token["single_word"] or (token["normalized"] and normal["replace"]):
            raise _refusal("a token that takes its surroundings", token["content"])
    code = Code()
    programs = [code.compile(pattern) for pattern in splits]
    arrays = {
        **_texts(vocabulary, added, size, is_byte_level),
        **_merges(model["merges"], vocabulary),
        **_first_symbols(vocabulary, is_byte_level, model),
        **_code(programs, code),
        **_ends(given.get("post_processor"), vocabulary, added),
    }
    unknown = vocabulary.get(model.get("unk_token") or "", -1)
    flags = {
        "is_byte_level": int(is_byte_level),
        "is_whole": int(bool(model.get("ignore_merges"))),
        "fuses_unknown": int(bool(model.get("fuse_unk"))),
        "unknown": unknown,
        "strips": int("Strip" in json.dumps(given.get("decoder"))),
        **normal,
    }
    return Tables(arrays, flags)


def _refusal(what: str, got: object) -> UnsupportedError:
    return UnsupportedError(
        "the tokenizer cannot be compiled",
        expected="byte pairs over bytes or characters, split by regular expressions",
        got=f"{what}: {got}",
        remedy="smelt compile without --standalone: a bundle runs any tokenizer",
    )


def _steps(given: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """A part of a tokenizer as the list of its steps."""
    if given is None:
        return []
    return [step for each in given[inner] for step in _steps(each, inner)] if given["type"] == "Sequence" else [given]


def _splits(given: Mapping[str, Any] | None) -> tuple[list[str], bool]:
    """The patterns, in order, and whether bytes are spelt as characters."""
    found: list[str] = []
    is_byte_level = False
    for step in _steps(given, "pretokenizers"):
        match step:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                found.append(pattern)
            case {"type": "Digits", "individual_digits": each}:
                found.append(r"\p{N}" if each else r"\p{N}+")
            case {"type": "ByteLevel", "add_prefix_space": False}:
                found += [GPT2] if step.get("use_regex", True) else []
                is_byte_level = True
            case _:
                raise _refusal("pre_tokenizer", json.dumps(step)[:200])
    if found and not is_byte_level:
        raise _refusal("pre_tokenizer", "splits without bytes")
    return found, is_byte_level


def _normaliser(given: Mapping[str, Any] | None) -> dict[str, int]:
    """Whether a space is put before texts, and spaces are spelt as ▁. Texts are taken to be in NFC."""
    found = {"prepend": 0, "replace": 0}
    for step in _steps(given, "normalizers"):
        match step:
            case {"type": "NFC"}:
                pass
            case {"type": "Prepend", "prepend": "▁"} if not found["replace"]:
                found["prepend"] = 1
            case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
                found["replace"] = 1
            case _:
                raise _refusal("normalizer", json.dumps(step)[:200])
    return found


def _texts(vocabulary: Mapping[str, int], added: Sequence[Any], size: int, is_byte_level: bool) -> dict[str, Array]:
    """The bytes of all tokens, concatenated, and their kinds."""
    size = max([size, *(number + 1 for number in vocabulary.values()), *(token["id"] + 1 for token in added)])
    texts, kinds = [b""] * size, np.zeros(size, np.uint8)
    for text, number in vocabulary.items():
        texts[number] = _spell_bytes(text) if is_byte_level else _piece(text)
    for token in added:
        texts[token["id"]] = token["content"].encode()
        kinds[token["id"]] = SPECIAL if token["special"] else ADDED
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.uint32)
    found = [
        token["id"] for token in sorted(added, key=lambda each: -len(each["content"].encode())) if token["content"]
    ]
    ordered = sorted(range(size), key=lambda number: texts[number]) if is_byte_level else []
    return {
        "offsets": offsets,
        "bytes": np.frombuffer(b"".join(texts), np.uint8),
        "kinds": kinds,
        "added": np.array(found, np.int32),
        "sorted": np.array([each for each in ordered if texts[each] and kinds[each] == NORMAL], np.int32),
    }


def _spell_bytes(text: str) -> bytes:
    known = byte_characters()
    return b"".join(bytes([known[char]]) if char in known else char.encode() for char in text)


def _piece(text: str) -> bytes:
    is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
    return bytes([int(text[3:5], 16)]) if is_byte else text.replace(SPACE, " ").encode()


def _merges(merges: Sequence[Any], vocabulary: Mapping[str, int]) -> dict[str, Array]:
    """Pairs of tokens in order, each with the rank of its merge and the token that it makes."""
    rows: dict[int, tuple[int, int]] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        rows[vocabulary[left] << 32 | vocabulary[right]] = (rank, vocabulary[left + right])
    ordered = sorted(rows)
    return {
        "pairs": np.array(ordered, np.uint64),
        "ranks": np.array([rows[key][0] for key in ordered], np.uint32),
        "results": np.array([rows[key][1] for key in ordered], np.int32),
    }


def _first_symbols(vocabulary: Mapping[str, int], is_byte_level: bool, model: Mapping[str, Any]) -> dict[str, Array]:
    """The tokens of single bytes, -1 where there is none, and those of single characters."""
    single = np.full(256, -1, np.int32)
    if is_byte_level:
        for char, byte in byte_characters().items():
            single[byte] = vocabulary.get(char, -1)
    elif model.get("byte_fallback"):
        for byte in range(256):
            single[byte] = vocabulary.get(f"<0x{byte:02X}>", -1)
    characters = sorted((ord(text), number) for text, number in vocabulary.items() if len(text) == 1)
    return {
        "single": single,
        "characters": np.array([code for code, _ in characters], np.uint32),
        "character_tokens": np.array([number for _, number in characters], np.int32),
    }


def _code(programs: Sequence[Sequence[int]], code: Code) -> dict[str, Array]:
    """The matcher's programs, concatenated, and its sets as ranges."""
    ranges = [edge for each in code.sets for pair in each for edge in pair]
    return {
        "starts": np.cumsum([0, *map(len, programs)]).astype(np.int32),
        "code": np.array([word for program in programs for word in program], np.int32),
        "set_starts": np.cumsum([0, *map(len, code.sets)]).astype(np.int32),
        "ranges": np.array(ranges, np.uint32),
    }


def _ends(given: Mapping[str, Any] | None, vocabulary: Mapping[str, int], added: Sequence[Any]) -> dict[str, Array]:
    """The tokens before a text that is no chat; those after it end a text and have no place before an answer."""
    known = {**vocabulary, **{token["content"]: token["id"] for token in added}}
    begin: list[int] = []
    for step in _steps(given, "processors"):
        match step:
            case {"type": "ByteLevel"}:
                pass
            case {"type": "TemplateProcessing", "single": [*parts]}:
                place = next((i for i, part in enumerate(parts) if "Sequence" in part), 0)
                begin += [known[part["SpecialToken"]["id"]] for part in parts[:place]]
            case _:
                raise _refusal("post_processor", json.dumps(step)[:200])
    return {"begin": np.array(begin, np.int32)}
