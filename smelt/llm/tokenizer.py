"""Text ↔ tokens: `tokenizer.json` of a folder, or the vocabulary in a GGUF file, through the package `tokenizers`.

`Tokenizer.encode` and `decode` take whole texts; `Detokenizer` decodes a stream of tokens, never half a character.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import FileError, MissingPackageError, ParseError, SmeltError, UnsupportedError

log = logging.getLogger("smelt")

MAX_FILE = 200_000_000
MAX_PIECE = 1024  # characters of a token that SentencePiece merges
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # GGUF's kinds of tokens

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_MARKED = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# How texts are split before byte pairs are merged, and the values of GGUF's `tokenizer.ggml.pre` that say so; several
# patterns apply in order.
_WAYS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((GPT2_SPLIT,), "gpt-2 phi-2 mpt olmo jais exaone4 mellum modern-bert gigachat a.x-4.0 trillion granite-docling"),
    ((r"\p{N}", GPT2_SPLIT), "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    ((_LLAMA3,), "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 smaug-bpe dbrx"),
    ((_QWEN2,), "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo f2llmv2 solar-open grok-2"),
    ((f"{_MARKED}|{_SPACES}",), "qwen35"),
    ((rf"{'|'.join(_CASED)}|\p{{N}}|{_SIGNS}|{_SPACES}",), "tekken"),
    (
        (rf"{'|'.join(f'{each}{_CONTRACTIONS}?' for each in _CASED)}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}",),
        "gpt-4o llama4 kanana2",
    ),
    ((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"), "deepseek-coder"),
    ((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK), "deepseek-v3 hunyuan-dense"),
    ((r"[\p{P}$+<=>^~|`]+", GPT2_SPLIT, "[0-9][0-9][0-9]"), "falcon"),
    ((r"[\p{P}$+<=>^~|]+", GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"), "default"),
)
SPLITS: dict[str, tuple[str, ...]] = {name: patterns for patterns, names in _WAYS for name in names.split()}
# Where a word that is a token stays one, whatever merges say.
WHOLE_WORDS = frozenset(
    ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"]
)


class Tokenizer:
    """A vocabulary with its rules."""

    def __init__(self, inner: Any, source: str) -> None:
        self._inner = inner
        self.source = source
        self.single: dict[int, str] = {}  # texts of single tokens, cached
        self._cutting: tuple[int, Tokenizer] | None = None

    @property
    def size(self) -> int:
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Tokens of a text; with `special` also those that the tokenizer puts before or after it."""
        with _refusing(f"{self.source}: the text cannot be encoded"):
            (found,) = self._inner.encode_batch_fast([text], add_special_tokens=special)
            return list(found.ids)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of tokens; special tokens are left out unless `special`."""
        try:  # not `_refusing`: this runs for every token of every sequence
            return str(self._inner.decode(ids, skip_special_tokens=not special))
        except BaseException as error:
            raise _refuse(error, f"{self.source}: the tokens cannot be decoded") from None

    def encode_up_to(self, text: str, most: int) -> list[int]:
        """The same for at most `most` tokens: the text is truncated, special tokens around it stay."""
        return self._cut_to(most).encode(text)

    def encode_pair(self, first: str, second: str, most: int) -> tuple[list[int], list[int]]:
        """Tokens of two texts, and for each to which text it belongs (0 or 1). The longer text is truncated first."""
        with _refusing(f"{self.source}: the texts cannot be encoded"):
            found = self._cut_to(most)._inner.encode(first, second)
            return list(found.ids), list(found.type_ids)

    def _cut_to(self, most: int) -> Tokenizer:
        package = _package()
        if self._cutting is None or self._cutting[0] != most:
            text_of_self = self.to_json()
            with _refusing(f"{self.source}: no texts of at most {most} tokens"):
                copy = package.Tokenizer.from_str(text_of_self)
                copy.enable_truncation(most)
            self._cutting = (most, Tokenizer(copy, self.source))
        return self._cutting[1]

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`, which neither pads nor truncates."""
        package = _package()
        with _refusing(f"{self.source}: the tokenizer cannot be written"):
            copy = package.Tokenizer.from_str(self._inner.to_str())
            copy.no_padding()
            copy.no_truncation()
            return str(copy.to_str())

    def token(self, text: str) -> int | None:
        found = self._inner.token_to_id(text)
        return None if found is None else int(found)


@contextmanager
def _refusing(message: str) -> Iterator[None]:
    """Exceptions of the package, which raises plain ones and panics of its own, as an error of ours."""
    try:
        yield
    except BaseException as error:
        raise _refuse(error, message) from None


def _refuse(error: BaseException, message: str) -> BaseException:
    foreign = isinstance(error, Exception) or type(error).__name__ == "PanicException"
    return ParseError(message, got=error) if foreign and not isinstance(error, SmeltError) else error


class Detokenizer:
    """The text of tokens that come one by one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # tokens before this one are context
        self._shown = 0  # tokens whose text is out
        self._before = ""  # the text of the context that is out

    def add(self, token: int) -> str:
        """The text that is certain now."""
        self._ids.append(token)
        whole = self._tokenizer.decode(self._ids[self._start :])
        if len(whole) <= len(self._before) or whole.endswith("\ufffd"):
            return ""
        text = whole[len(self._before) :]
        self._start, self._shown = self._shown, len(self._ids)
        self._before = self._decode_context()
        return text

    def _decode_context(self) -> str:
        ids, known = self._ids[self._start : self._shown], self._tokenizer.single
        if len(ids) != 1:
            return self._tokenizer.decode(ids)
        if ids[0] not in known:
            known[ids[0]] = self._tokenizer.decode(ids)
        return known[ids[0]]

    def finish(self) -> str:
        """What is left: bytes that are no whole character."""
        whole = self._tokenizer.decode(self._ids[self._start :])
        text, self._before = whole[len(self._before) :], ""
        self._start = self._shown = len(self._ids)
        return text


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingPackageError(
            "text needs the package tokenizers", remedy='pip install "smelt[llm]", or give tokens'
        ) from None
    return tokenizers


def from_file(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`."""
    _package()
    try:
        if path.stat().st_size > MAX_FILE:
            raise ParseError(f"{path}: too large", expected=f"at most {MAX_FILE} bytes", got=path.stat().st_size)
        text = path.read_text("utf-8")
    except OSError as error:
        raise FileError(f"cannot read {path}", got=error) from error
    except UnicodeDecodeError as error:
        raise ParseError(f"{path}: not UTF-8", got=error) from None
    return from_text(text, str(path))


def from_text(text: str, source: str) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`'s text."""
    tokenizers = _package()
    with _refusing(f"{source}: no tokenizer"):
        inner = tokenizers.Tokenizer.from_str(text)
        inner.no_padding()  # what a file says about batches is not for single texts
        inner.no_truncation()
        return Tokenizer(inner, source)


# ---- GGUF ----


def from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer whose vocabulary a GGUF file holds."""
    if isinstance(text := metadata.get("tokenizer.huggingface.json"), str):
        return from_text(text, f"{source}: tokenizer.huggingface.json")
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise FileError(f"{source}: no vocabulary", expected="tokenizer.ggml.tokens", remedy="give tokens, not text")
    kinds = metadata.get("tokenizer.ggml.token_type")
    types = kinds.tolist() if isinstance(kinds, np.ndarray) else [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ParseError(f"{source}: token_type", expected=len(tokens), got=len(types))
    makers = {"gpt2": _byte_pairs, "llama": _sentence_pieces}
    if kind not in makers:
        raise UnsupportedError(f"{source}: unknown kind of vocabulary", expected=", ".join(makers), got=kind)
    with _refusing(f"{source}: the vocabulary makes no tokenizer"):
        made = makers[kind](metadata, tokens, types, source)
        _add_specials(made, tokens, types)
        _add_ends(made, metadata, tokens)
    return Tokenizer(made, source)


def _merges(metadata: Mapping[str, Any], source: str) -> list[tuple[str, str]]:
    given = metadata.get("tokenizer.ggml.merges")
    if not isinstance(given, list):
        raise ParseError(f"{source}: no merges", expected="tokenizer.ggml.merges", got=given)
    found = []
    for merge in given:
        left, space, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
        if not space or not left or not right:
            raise ParseError(f"{source}: a merge is no pair", got=merge)
        found.append((left, right))
    return found


def _byte_pairs(metadata: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> Any:
    """Byte pairs over bytes that are spelt as characters, GPT-2's way."""
    tokenizers = _package()
    pre = metadata.get("tokenizer.ggml.pre")
    if pre is None:
        log.warning("%s does not say how texts are split (tokenizer.ggml.pre): tokens may differ", source)
        pre = "default"
    if not isinstance(pre, str) or pre not in SPLITS:
        raise UnsupportedError(f"{source}: unknown way to split texts", expected=", ".join(SPLITS), got=pre)
    vocab = _vocabulary(tokens)
    model = tokenizers.models.BPE(vocab=vocab, merges=_merges(metadata, source), ignore_merges=pre in WHOLE_WORDS)
    made = tokenizers.Tokenizer(model)
    *first, last = SPLITS[pre]
    split = tokenizers.pre_tokenizers.Split
    regex = tokenizers.Regex
    steps = [split(regex(pattern), "isolated") for pattern in first]
    steps.append(split(regex(last), "isolated"))
    steps.append(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    made.decoder = tokenizers.decoders.ByteLevel()
    if pre == "qwen2":
        made.normalizer = tokenizers.normalizers.NFC()
    return made


def _sentence_pieces(metadata: Mapping[str, Any], tokens: list[str], types: list[int], source: str) -> Any:
    """SentencePiece's byte pairs: the pair whose piece has the best score merges first, unknown bytes are spelt out."""
    tokenizers = _package()
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.shape != (len(tokens),):
        raise ParseError(f"{source}: no scores for the tokens", expected=len(tokens))
    longest = max((len(token) for token, kind in zip(tokens, types, strict=True) if kind == NORMAL), default=0)
    if longest > MAX_PIECE:  # finding its parts takes the square of it
        raise ParseError(f"{source}: a token is too long", expected=f"at most {MAX_PIECE} characters", got=longest)
    vocab = _vocabulary(tokens)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", next((i for i, t in enumerate(types) if t == UNKNOWN), 0))
    name = tokens[unknown] if type(unknown) is int and 0 <= unknown < len(tokens) else None
    merges = scored_merges(vocab, scores.tolist(), types)
    model = tokenizers.models.BPE(
        vocab=vocab, merges=merges, unk_token=name, fuse_unk=True, byte_fallback=BYTE in types
    )
    made = tokenizers.Tokenizer(model)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    normal = tokenizers.normalizers
    steps = [normal.Prepend("▁")] if prefix else []
    made.normalizer = normal.Sequence([*steps, normal.Replace(" ", "▁")])
    decode = tokenizers.decoders
    ends = [decode.Strip(" ", 1, 0)] if prefix else []
    made.decoder = decode.Sequence([decode.Replace("▁", " "), decode.ByteFallback(), decode.Fuse(), *ends])
    return made


def scored_merges(vocab: Mapping[str, int], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, the best score first."""
    found: list[tuple[float, int, int, str, str]] = []
    for piece, number in vocab.items():
        if types[number] != NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                found.append((-scores[number], vocab[left], vocab[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _vocabulary(tokens: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, token in enumerate(tokens):
        found.setdefault(token, number)
    return found


def _add_specials(made: Any, tokens: list[str], types: list[int]) -> None:
    """Control tokens are never made of text that spells them otherwise; user-defined ones are found in any text."""
    tokenizers = _package()
    special = [tokens[i] for i, kind in enumerate(types) if kind == CONTROL and tokens[i]]
    user = [tokens[i] for i, kind in enumerate(types) if kind == USER and tokens[i]]
    made.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in special])
    made.add_tokens([tokenizers.AddedToken(text, special=False, normalized=False) for text in user])


def _add_ends(made: Any, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """The tokens before and after every text."""
    default = metadata.get("tokenizer.ggml.model") == "llama"
    template: list[str] = ["$A"]
    used: list[tuple[str, int]] = []
    for key, first in (("bos", True), ("eos", False)):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        wanted = metadata.get(f"tokenizer.ggml.add_{key}_token", default and first)
        if wanted is True and type(number) is int and 0 <= number < len(tokens):
            template.insert(0 if first else len(template), tokens[number])
            used.append((tokens[number], number))
    if used:
        made.post_processor = _package().processors.TemplateProcessing(single=template, special_tokens=used)
