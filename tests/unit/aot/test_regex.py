"""Patterns of tokenizers as code: a matcher in Python runs the code, `re` is the oracle."""

from __future__ import annotations

import re
import sys
import unicodedata
from itertools import product

import pytest

from smelt.aot.regex import END, JUMP, NOT, SET, SPLIT, Code, invert, join_ranges
from smelt.errors import UnsupportedError

PATTERNS = [
    *("abc", "a|b", "ab|a", "a|ab", "a?b", "a*b", "a+b", "(?:ab)+", "(ab|c)*a", "a{2}", "a{1,3}b", "a{2,}", "a{0,1}c"),
    *("[abc]+", "[^ab]+", "[a-c]*", "[-a]+", "[a-]+", "[a\\-c]+", "[\\]a]", "[a-b1-2]+", "[^a-b]", ".", ".+", "a.c"),
    *("\\s+", "\\S+", "\\d+", "\\D+", "\\n|\\r|\\t", "[\\s\\d]+", "[^\\s\\d]+", "\\.", "\\?\\*", "\\(\\)", "[.*+?]+"),
    *("(?i:ab)+", "(?i:'s|'T)", "(?i:k)", "(?i:S)+", "x(?i:a)a", "(?i:[a-c])+", "(?i:[^a-c])", "(?i:[x-z\\d])x"),
    *("a(?!b)", "\\s+(?!\\S)|\\s+", "(?!a)b"),
    *("", "a||b", "()", "(?:)a", "(?:a|b)(?:c|)", "a?b?c?", "(a?b)*c", "{".replace("{", "\\{"), "ß", "(?i:ß)", "é+"),
]
TEXTS = [
    *("", "a", "b", "c", "ab", "abc", "aab", "aaab", "aaaab", "ababc", "aaa", "ca", "aa1", "12ab", "-a", "]", "ABab"),
    *("'s", "'T", "  x", " \n\tx", "   ", "x", ".*?", "?*", "()", "éé", "ß", "SS", "ss", "ſS", "\u212a", "٣4", "Kk"),
    *("\u2003 a", "\r", "-", "B", "d", "D", "Z"),
    *("a\nc", "\n", "{", "bc", "abcabc", "acab", "xAa", "xaa", "xaA"),
]  # fmt: skip


def match(code: list[int], sets: list[tuple[tuple[int, int], ...]], text: str) -> int | None:
    """The end of the first match at the beginning, as the matcher in C finds it: the first way of a split first."""
    ahead = [(0, 0)]
    while ahead:
        at, place = ahead.pop()
        if code[at] == END:
            return place
        inside = code[at] in (SET, NOT) and place < len(text) and any(
            low <= ord(text[place]) <= high for low, high in sets[code[at + 1]]
        )  # fmt: skip
        if code[at] == SET and inside:
            ahead.append((at + 2, place + 1))
        elif code[at] == NOT and not inside:
            ahead.append((at + 2, place))
        elif code[at] == SPLIT:
            ahead += [(at + code[at + 2], place), (at + code[at + 1], place)]
        elif code[at] == JUMP:
            ahead.append((at + code[at + 1], place))
    return None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_are_those_of_re(pattern: str) -> None:
    code = Code()
    made = code.compile(pattern)
    sets = list(code.sets)
    for text in TEXTS:
        found = re.match(pattern, text)
        assert match(made, sets, text) == (found and found.end()), text


def test_patterns_share_their_sets() -> None:
    code = Code()
    first, second, other = (code.compile(each) for each in ("[ab]", "a|b|[a-b]", "c"))
    assert first == [SET, 0, END]
    assert second == [SPLIT, 3, 7, SET, 1, JUMP, 11, SPLIT, 3, 7, SET, 2, JUMP, 4, SET, 0, END]
    assert other == [SET, 3, END]
    assert list(code.sets) == [((97, 98),), ((97, 97),), ((98, 98),), ((99, 99),)]


def sets_of(pattern: str) -> tuple[tuple[int, int], ...]:
    code = Code()
    assert code.compile(pattern) == [SET, 0, END]
    return next(iter(code.sets))


@pytest.mark.parametrize("name", ["L", "Lu", "N", "Nd", "M", "P", "Z", "Cn"])
def test_categories_are_those_of_unicode(name: str) -> None:
    ranges = sets_of(rf"\p{{{name}}}")
    assert sets_of(rf"\P{{{name}}}") == invert(ranges)
    assert join_ranges(ranges) == ranges
    edges = {edge + by for low, high in ranges for edge, by in product((low, high), (-1, 0, 1))}
    for point in edges & {*range(sys.maxunicode + 1)}:
        inside = any(low <= point <= high for low, high in ranges)
        assert inside == unicodedata.category(chr(point)).startswith(name), hex(point)


def test_ranges() -> None:
    top = sys.maxunicode
    assert join_ranges([(5, 9), (1, 2), (3, 3), (7, 20), (30, 30), (22, 22)]) == ((1, 3), (5, 20), (22, 22), (30, 30))
    assert join_ranges([(1, 9), (2, 3)]) == ((1, 9),)
    assert invert([(0, 4), (6, 6)]) == ((5, 5), (7, top))
    assert invert([(1, top)]) == ((0, 0),)
    assert invert([(0, top)]) == ()
    assert invert([]) == ((0, top),)
    assert sets_of(r"\s") == tuple(sorted(sets_of(r"\s")))
    assert {chr(c) for low, high in sets_of(r"\s") for c in range(low, high + 1)} == {
        c for c in map(chr, range(top + 1)) if c.isspace() and c not in "\x1c\x1d\x1e\x1f"
    }


@pytest.mark.parametrize(
    ("pattern", "at"),
    [
        *(("a)", 1), ("(a", 2), ("(?=a)", 0), ("(?<a>b)", 0), ("(?!a", 4), ("a**", 2), ("a+?", 2)),
        *(("a{2", 2), ("a{,3}", 2), ("a{x}", 2), ("a{1,x}", 2), ("a{3,2}", 6), ("a{101}", 6), ("a{2}+", 4), ("*a", 0)),
        *(("^a", 0), ("a$", 1), ("[a", 2), ("[[a]]", 1), ("[a&&b]", 2), ("\\w", 1), ("\\b", 1), ("\\p{Greek}", 3)),
        *(("\\p", 2), ("\\pL", 2), ("\\p{L", 3), ("\\", 1), ("[\\w]", 2), ("(?:a*)*", 7), ("(a", 2), ("(?i:a", 5)),
        *(("(?:a|)*", 7), ("(?:(?!a))+", 10), ("}", 0), ("a??", 2), ("a++", 2)),
    ],
)  # fmt: skip
def test_what_the_matcher_lacks_is_refused_where_it_is(pattern: str, at: int) -> None:
    with pytest.raises(UnsupportedError, match="way to split texts cannot be compiled") as caught:
        Code().compile(pattern)
    assert f"{pattern[:at]}⟨here⟩{pattern[at:]}" in str(caught.value)


@pytest.mark.parametrize(("pattern", "least", "most"), [("a{0}", 0, 0), ("a{100}", 100, 100), ("a{0,2}", 0, 2)])
def test_limits_of_repetition(pattern: str, least: int, most: int) -> None:
    code = Code()
    made = code.compile(pattern)
    assert match(made, list(code.sets), "a" * 101) == most
    assert (match(made, list(code.sets), "a" * (least - 1)) is None) == (least > 0)
