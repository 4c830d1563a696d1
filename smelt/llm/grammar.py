"""Constrained decoding: JSON schemas, regular expressions and grammars, through the package `llguidance`.

`Grammars` compiles one for a model's vocabulary; a `Grammar` follows one answer and says which tokens may come next.
Any failure ends the request with an error: nothing is generated without its constraint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import MissingPackageError, RunError, UnsupportedError
from smelt.llm.tokenizer import Tokenizer

KINDS = ("schema", "regex", "grammar")
MAX_SOURCE = 1 << 20  # characters


class Grammar:
    """The state of an answer in its grammar."""

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._size = size

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> Array:
        """bool[v]: the tokens that may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed: Array = np.unpackbits(bits, bitorder="little").astype(bool)
        found = np.zeros(self._size, bool)
        found[: len(allowed)] = allowed[: self._size]
        if not found.any():
            raise RunError("no token of the model continues the grammar", got=self._matcher.stop_reason())
        return found

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._check()
            raise RunError("a token that the grammar does not allow", got=token)

    def copy(self) -> Grammar:
        return Grammar(self._matcher.deep_copy(), self._size)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RunError("the grammar cannot be followed", got=str(self._matcher.get_error())[:500])


class Grammars:
    """Compiles grammars for one vocabulary of `size` tokens, of which `ends` end a text."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: tuple[int, ...]) -> None:
        package = _package()
        if not ends:
            raise UnsupportedError("the model has no end token, so that an answer cannot end where its form does")
        self._size = size
        try:
            self._tokenizer = package.LLTokenizer(
                tokenizer.to_json(), n_vocab=max(size, tokenizer.size), eos_token=list(ends)
            )
        except Exception as error:  # the package raises plain ValueErrors, and panics of its own
            raise UnsupportedError("constraints do not understand this tokenizer", got=error) from None

    def compile(self, kind: str, source: Any) -> Grammar:
        """`schema` is a JSON schema (a record or its text), `regex` a regular expression, `grammar` one of Lark's."""
        package = _package()
        if kind == "schema" and isinstance(source, Mapping):
            source = json.dumps(source)
        if not isinstance(source, str) or not source or len(source) > MAX_SOURCE:
            raise RunError(f"{kind} is no text", expected=f"up to {MAX_SOURCE} characters", got=repr(source)[:80])
        matcher = package.LLMatcher
        make = {
            # Free white space would let a weak model write nothing else.
            "schema": partial(matcher.grammar_from_json_schema, defaults={"whitespace_flexible": False}),
            "regex": matcher.grammar_from_regex,
            "grammar": matcher.grammar_from_lark,
        }[kind]
        try:
            made = matcher(self._tokenizer, make(source), log_level=0)
            wrong = made.get_error() if made.is_error() else None
        except Exception as error:
            wrong = error
        if wrong is not None:
            raise RunError(f"the {kind} cannot be used", got=str(wrong)[:500])
        return Grammar(made, self._size)


def _package() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingPackageError(
            "schemas, regular expressions and grammars need the package llguidance",
            remedy='pip install "smelt[grammar]"',
        ) from None
    return llguidance
