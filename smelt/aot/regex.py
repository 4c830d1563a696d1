"""Regular expressions that split texts for tokenizers → code of the small matcher in `tokens.c`.

It knows what `tokenizer.json` files use: alternatives, groups, `(?i:…)`, classes with Unicode categories, `? * +` and
`{n,m}`, and `(?!…)` of one class. Sets of characters become ranges here, so that the matcher has no tables of its own.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from smelt.errors import UnsupportedError

END, SET, SPLIT, JUMP, NOT = range(5)  # instructions: -, set, first second, target, set
Ranges = tuple[tuple[int, int], ...]
_SPACES: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
_FOLDED = {"s": "ſ", "k": "\u212a"}  # other characters that match in (?i:…)


@cache
def _categories() -> dict[str, Ranges]:
    """The characters of every Unicode category, and of the first letters of their names."""
    found: dict[str, list[int]] = {}
    for code in range(sys.maxunicode + 1):
        name = unicodedata.category(chr(code))
        for key in (name, name[0]):
            runs = found.setdefault(key, [])
            if runs and runs[-1] == code - 1:
                runs[-1] = code
            else:
                runs += [code, code]
    return {name: tuple(zip(runs[::2], runs[1::2], strict=True)) for name, runs in found.items()}


def join_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """In order, without overlaps."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def invert(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other characters."""
    found, at = [], 0
    for low, high in join_ranges(ranges):
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    return (*found, (at, sys.maxunicode)) if at <= sys.maxunicode else tuple(found)


@dataclass(slots=True)
class Code:
    """The code of patterns, which share their sets of characters."""

    sets: dict[Ranges, int] = field(default_factory=dict)

    def compile(self, pattern: str) -> list[int]:
        """The instructions of a pattern."""
        return _Parser(pattern, self).compile()

    def set_number(self, ranges: Ranges) -> int:
        return self.sets.setdefault(ranges, len(self.sets))


def _may_be_empty(code: list[int]) -> bool:
    """Whether code can come to its end without taking a character."""
    seen, ahead = set[int](), [0]
    while ahead:
        at = ahead.pop()
        if at == len(code):
            return True
        if at in seen:
            continue
        seen.add(at)
        if code[at] == NOT:
            ahead.append(at + 2)
        elif code[at] != SET:
            targets = code[at + 1 : at + 3] if code[at] == SPLIT else code[at + 1 : at + 2]
            ahead += [at + target for target in targets]
    return False


class _Parser:
    """Recursive descent; every part gives instructions whose targets are relative to their own place."""

    def __init__(self, pattern: str, code: Code) -> None:
        self.pattern, self.code, self.at = pattern, code, 0
        self.folds = False

    def compile(self) -> list[int]:
        made = self._alternatives()
        if self.at != len(self.pattern):
            raise self._refusal()
        return [*made, END]

    def _refusal(self) -> UnsupportedError:
        got = f"{self.pattern[: self.at]}⟨here⟩{self.pattern[self.at :]}"
        return UnsupportedError("the tokenizer's way to split texts cannot be compiled", got=got)

    def _peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self.at += len(text) if found else 0
        return found

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise self._refusal()
        self.at += 1
        return self.pattern[self.at - 1]

    def _alternatives(self) -> list[int]:
        made = self._sequence()
        if not self._take("|"):
            return made
        rest = self._alternatives()
        return [SPLIT, 3, 3 + len(made) + 2, *made, JUMP, 2 + len(rest), *rest]

    def _sequence(self) -> list[int]:
        made: list[int] = []
        while self.at < len(self.pattern) and not self._peek("|") and not self._peek(")"):
            made += self._parse_repeat()
        return made

    def _parse_repeat(self) -> list[int]:
        atom = self._atom()
        least, most = self._times()
        if most is None:
            if _may_be_empty(atom):
                raise self._refusal()  # the matcher would stay in the loop
            loop = [SPLIT, 3, 3 + len(atom) + 2, *atom, JUMP, -(3 + len(atom))]
            return [*(atom * least), *loop]
        made: list[int] = []
        for _ in range(most - least):
            made = [SPLIT, 3, 3 + len(atom) + len(made), *atom, *made]
        return [*(atom * least), *made]

    def _times(self) -> tuple[int, int | None]:
        """How often an atom comes, greedily."""
        found: tuple[int, int | None] = (1, 1)
        if self._take("?"):
            found = (0, 1)
        elif self._take("*"):
            found = (0, None)
        elif self._take("+"):
            found = (1, None)
        elif self._take("{"):
            end = self.pattern.find("}", self.at)
            low, comma, high = self.pattern[self.at : end].partition(",")
            if end < 0 or not low.isdigit() or not (high.isdigit() or not high):
                raise self._refusal()
            self.at = end + 1
            found = (int(low), int(high) if high else None if comma else int(low))
        if self._peek("+") or self._peek("?") or (found[1] is not None and not 0 <= found[0] <= found[1] <= 100):
            raise self._refusal()  # possessive, lazy
        return found

    def _atom(self) -> list[int]:
        if self._take("(?!"):
            ranges = self._class()
            if not self._take(")"):
                raise self._refusal()
            return [NOT, self.code.set_number(ranges)]
        if self._peek("("):
            return self._group()
        return [SET, self.code.set_number(self._class())]

    def _group(self) -> list[int]:
        before = self.folds
        if self._take("(?i:"):
            self.folds = True
        elif not self._take("(?:") and (self._peek("(?") or not self._take("(")):
            raise self._refusal()
        made = self._alternatives()
        if not self._take(")"):
            raise self._refusal()
        self.folds = before
        return made

    def _class(self) -> Ranges:
        if self._take("["):
            return self._brackets()
        char = self._next()
        if char == "\\":
            return self._parse_escape()
        if char == ".":
            return invert([(10, 10)])
        if char in "*+?{}^$)":
            self.at -= 1
            raise self._refusal()
        return self._of_character(char)

    def _of_character(self, char: str) -> Ranges:
        if not self.folds:
            return ((ord(char), ord(char)),)
        both = {char.lower(), char.upper(), _FOLDED.get(char.lower(), char)}
        return join_ranges((ord(each), ord(each)) for each in both if len(each) == 1)

    def _parse_escape(self) -> Ranges:
        char = self._next()
        if char in "pP":
            if not self._take("{"):
                raise self._refusal()
            end = self.pattern.find("}", self.at)
            name = self.pattern[self.at : end]
            if end < 0 or name not in _categories():
                raise self._refusal()
            self.at = end + 1
            return _categories()[name] if char == "p" else invert(_categories()[name])
        if char in "sS":
            return _SPACES if char == "s" else invert(_SPACES)
        if char in "dD":
            return _categories()["Nd"] if char == "d" else invert(_categories()["Nd"])
        if char.isalnum() and char not in _LETTERS:
            self.at -= 1
            raise self._refusal()
        return self._of_character(_LETTERS.get(char, char))

    def _brackets(self) -> Ranges:
        negated, folds = self._take("^"), self.folds
        self.folds = False  # ends of ranges are characters; what is between them has another case, too
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            if self._peek("[") or self._peek("&&"):
                raise self._refusal()
            char = self._next()
            ranges = self._parse_escape() if char == "\\" else self._of_character(char)
            if self._peek("-") and not self._peek("-]") and len(ranges) == 1:
                self.at += 1
                last = self._next()
                high = self._parse_escape() if last == "\\" else self._of_character(last)
                ranges = ((ranges[0][0], high[-1][1]),)
            found += ranges
        self.folds = folds
        if folds:
            found = [
                each for low, high in found for code in range(low, high + 1) for each in self._of_character(chr(code))
            ]
        return invert(found) if negated else join_ranges(found)
