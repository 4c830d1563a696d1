"""A cursor over MLIR text: the current token, where it stands, and errors that show its line.

In: text and the name of its file. Out: one token at a time, or raw stretches for what is quicker read whole (literals,
bodies of attributes). Everything in `ir.text` that reads goes through a cursor.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from smelt.errors import Location, ParseError, SmeltError, UnsupportedError

# What a token is: the index of its group in the expression below.
ID, VALUE, PUNCTUATION, FLOAT, INTEGER, STRING, HASH, BANG, AT, CARET, END, BAD = range(1, 13)

_SKIP = r"(?:[ \t\r\n]++|//[^\n]*+)*+"
_SUFFIX = r"(?:[0-9]+|[A-Za-z$._-][\w$.-]*+)"
_STRING = r'"(?:[^"\\\n]++|\\(?:[nt"\\]|[0-9a-fA-F]{2}))*+"'
_TOKEN = re.compile(
    _SKIP + r"(?:([A-Za-z_][\w$.]*+)"
    rf"|(%{_SUFFIX})"
    r"|(->|::|\{-\#|\#-\}|[][(){}<>,:=?*+/|-])"
    r"|([0-9]++\.[0-9]*+(?:[eE][-+]?[0-9]++)?)"
    r"|(0x[0-9a-fA-F]++|[0-9]++)"
    rf"|({_STRING})"
    rf"|(\#{_SUFFIX})"
    rf"|(!{_SUFFIX})"
    rf"|(@(?:[A-Za-z_][\w$.]*+|{_STRING}))"
    rf"|(\^{_SUFFIX})"
    r"|(\Z)"
    r"|(.))",
    re.ASCII | re.DOTALL,
)
_NEXT: Callable[[str, int], Any] = _TOKEN.match  # always a match
_BRACKET = re.compile(rf"{_STRING}|//[^\n]*+|->|([<({{\[])|([>)}}\]])", re.ASCII)
_BRACE = re.compile(rf"{_STRING}|//[^\n]*+|([{{}}])", re.ASCII)
_NOISE = re.compile(rf"({_STRING})|(?:[ \t\r\n]++|//[^\n]*+)++", re.ASCII)
_ESCAPE = re.compile(rb'\\(?:([nt"\\])|([0-9a-fA-F]{2}))')
_CLOSING = {"<": ">", "(": ")", "{": "}", "[": "]"}
_PLAIN = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}

MAX_DEPTH = 200  # regions, types and attributes inside each other
MAX_DIGITS = 400  # of one number
MAX_NESTED_ALIASES = 10_000  # aliases expanded inside aliases, which can double at every step
_MAX_SHOWN = 100  # characters of a line in an error


class Cursor:
    """A position in a text: `kind` and `token` are the next token."""

    __slots__ = ("_depth", "_lines", "_match", "end", "kind", "path", "text", "token")

    def __init__(self, text: str, path: str, at: int = 0) -> None:
        self.text = text
        self.path = path
        self._lines: list[int] | None = None
        self._depth = 0
        self._match: Any = None
        self.kind = self.end = 0
        self.token = ""
        self.seek(at)

    # -- going on --

    def seek(self, at: int) -> None:
        """Move to the first token from `at` on."""
        self._match = match = _NEXT(self.text, at)
        self.kind = kind = match.lastindex
        self.token = match[kind]
        self.end = match.end()
        if kind == BAD:
            self.bad_character()

    def advance(self) -> str:
        """Pass the current token and give it."""
        token: str = self.token
        self._match = match = _NEXT(self.text, self.end)
        self.kind = kind = match.lastindex
        self.token = match[kind]
        self.end = match.end()
        if kind == BAD:
            self.bad_character()
        return token

    @property
    def start(self) -> int:
        """Where the current token begins."""
        start: int = self._match.start(self.kind)
        return start

    def accept(self, token: str) -> bool:
        """Pass `token` if it comes next."""
        if self.token == token and self.kind != STRING:
            self.advance()
            return True
        return False

    def expect(self, token: str) -> None:
        """Pass `token`, which must come next."""
        if self.token != token or self.kind == STRING:
            self.fail("unexpected text", expected=repr(token))
        self.advance()

    def expect_kind(self, kind: int, what: str) -> str:
        """Pass a token of a kind and give it."""
        if self.kind != kind:
            self.fail("unexpected text", expected=what)
        return self.advance()

    def read_list(self, opening: str, closing: str) -> Iterator[None]:
        """One iteration for each item of `opening item, item closing`; the caller reads the item."""
        self.expect(opening)
        if self.accept(closing):
            return
        while True:
            yield
            if not self.accept(","):
                break
        self.expect(closing)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Nesting that hostile text cannot make deep enough to end the process."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.fail("nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        yield
        self._depth -= 1

    # -- what a token says --

    def integer(self) -> int:
        """An integer with an optional minus."""
        negative = self.accept("-")
        if self.kind != INTEGER:
            self.fail("unexpected text", expected="an integer")
        value = self.number(self.token)
        self.advance()
        return -value if negative else value

    def number(self, digits: str) -> int:
        """The value of the digits of an integer token."""
        self.check_length(digits)
        return int(digits, 16) if digits.startswith("0x") else int(digits)

    def check_length(self, digits: str) -> None:
        """Numbers that take long to convert are refused."""
        if len(digits) > MAX_DIGITS:
            self.fail("a number has too many digits", expected=f"at most {MAX_DIGITS}")

    def string(self) -> str:
        """A string token, its escapes resolved. Bytes that are no UTF-8 come out as lone surrogates."""
        if self.kind != STRING:
            self.fail("unexpected text", expected="a string")
        return unescape(self.advance()[1:-1])

    def symbol(self) -> str:
        """The name in `@name` or `@"a name"`."""
        if self.kind != AT:
            self.fail("unexpected text", expected="@name")
        token = self.advance()
        return unescape(token[2:-1]) if token[1] == '"' else token[1:]

    def word(self) -> str:
        return self.expect_kind(ID, "a word")

    # -- raw stretches --

    def read_balanced(self) -> str:
        """The text inside the next bracket, which is skipped; runs of blanks become one."""
        opening, begin = self.start, self.end
        if self.token not in _CLOSING or self.kind == STRING:
            self.fail("unexpected text", expected="an opening bracket")
        stack: list[str] = []
        at = opening
        while True:
            match = _BRACKET.search(self.text, at)
            if match is None:
                self.fail("a bracket is never closed", at=opening)
            at = match.end()
            if match[1]:
                stack.append(_CLOSING[match[1]])
            elif match[2]:
                if stack.pop() != match[2]:
                    self.fail("brackets do not match", at=match.start())
                if not stack:
                    break
        body = self.text[begin : at - 1]
        self.seek(at)
        return one_line(body)

    def skip_braces(self) -> int:
        """Pass `{…}` without looking at what is inside, strings and comments aside; give where its brace opens."""
        opening = self.start
        if self.token != "{":
            self.fail("unexpected text", expected="'{'")
        depth, at = 0, opening
        while True:
            match = _BRACE.search(self.text, at)
            if match is None:
                self.fail("a brace is never closed", at=opening)
            at = match.end()
            if match[1]:
                depth += 1 if match[1] == "{" else -1
                if depth == 0:
                    break
        self.seek(at)
        return opening

    def since(self, start: int) -> str:
        """The text from `start` up to the current token, on one line."""
        return one_line(self.text[start : self.start]).rstrip()

    # -- places and errors --

    def place(self, at: int | None = None) -> Location:
        """Line and column of a position, counted from 1."""
        if self._lines is None:
            self._lines = [0, *(match.end() for match in re.finditer("\n", self.text))]
        position = self.start if at is None else at
        line = bisect_right(self._lines, position)
        return Location(self.path, line, position - self._lines[line - 1] + 1)

    def caret_line(self, where: Location) -> str:
        """The line of a place with a caret below it; of a long line the part around the place."""
        assert self._lines is not None
        begin = self._lines[where.line - 1]
        end = self._lines[where.line] - 1 if where.line < len(self._lines) else len(self.text)
        column = where.column - 1
        first = max(0, min(column - _MAX_SHOWN // 2, end - begin - _MAX_SHOWN))
        excerpt = self.text[begin + first : min(end, begin + first + _MAX_SHOWN)]
        visible = "".join(char if char.isprintable() else " " for char in excerpt)
        head = f"{where.line} | " + ("…" if first else "")
        return f"{head}{visible}\n{' ' * (len(head) + column - first)}^"

    def fail(self, message: str, *, at: int | None = None, expected: object = None, got: object = None) -> NoReturn:
        """Refuse the text here."""
        if got is None and at is None:
            got = repr(self.token[:60]) if self.kind != END else "the end of the text"
        raise self.with_location(ParseError(message, expected=expected, got=got), at)

    def refuse(self, message: str, *, at: int | None = None, remedy: str | None = None, **facts: Any) -> NoReturn:
        """Refuse valid text that smelt does not handle."""
        raise self.with_location(UnsupportedError(message, remedy=remedy, **facts), at)

    def with_location(self, error: SmeltError, at: int | None = None) -> SmeltError:
        """The error with the place and the line in question."""
        where = self.place(at)
        error.where, error.source = where, self.caret_line(where)
        return error

    def bad_character(self) -> NoReturn:
        if self.token == '"':
            self.fail("a string is never closed or has a bad escape", at=self.start)
        self.fail("a character that has no place here", at=self.start, got=repr(self.token))


class Aliases:
    """Names for attributes or types (`#map = …`, `!t = …`): where each is defined, and what it was read as."""

    def __init__(self, sigil: str) -> None:
        self.sigil = sigil
        self.places: dict[str, int] = {}
        self._known: dict[tuple[str, str], tuple[Any, int]] = {}  # what it is, and how many aliases it expands to
        self._open: dict[str, int] = {}  # aliases being read, and how many each has expanded to so far

    def define(self, cursor: Cursor, name: str) -> None:
        """`#name =` has been passed; what follows is the definition."""
        if name in self.places:
            cursor.fail("an alias is defined twice", got=self.sigil + name)
        self.places[name] = cursor.start

    def resolve(self, cursor: Cursor, name: str, read: Callable[[], Any]) -> Any:
        """What an alias stands for, which the cursor has just passed."""
        key = (name, read.__name__)
        if key in self._known:
            found, size = self._known[key]
            self._count(cursor, size)
            return found
        back = cursor.start
        if name not in self.places:
            cursor.fail("an alias that is not defined", got=self.sigil + name)
        if name in self._open:
            cursor.fail("an alias that stands for itself", got=self.sigil + name)
        self._open[name] = 1
        cursor.seek(self.places[name])
        found = read()
        cursor.seek(back)
        size = self._open.pop(name)
        self._known[key] = found, size
        self._count(cursor, size)
        return found

    def _count(self, cursor: Cursor, size: int) -> None:
        """Add to what the alias around this one expands to, which can double at every step."""
        if self._open:
            outer = next(reversed(self._open))
            self._open[outer] += size
            if self._open[outer] > MAX_NESTED_ALIASES:
                cursor.fail("an alias that expands to too much", expected=f"at most {MAX_NESTED_ALIASES}", got=outer)


def one_line(text: str) -> str:
    """Comments removed and runs of blanks made one, outside strings."""
    text = text.strip()
    if "\n" not in text and "//" not in text and "  " not in text and "\t" not in text:
        return text
    return _NOISE.sub(lambda match: match[1] or " ", text).strip()


def unescape(text: str) -> str:
    """What stands between the quotes of a string token."""
    if "\\" not in text:
        return text

    def plain(match: re.Match[bytes]) -> bytes:
        return _PLAIN[match[1]] if match[1] else bytes([int(match[2], 16)])

    return _ESCAPE.sub(plain, text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def quote(text: str) -> str:
    """A string token that says `text`: everything but plain printable ASCII is escaped byte by byte."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    raw = text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "replace")
    return '"' + "".join(_escape(byte) for byte in raw) + '"'


def _is_escaped(text: str) -> bool:
    """Whether lone surrogates, if any, all stand for bytes."""
    return not any("\ud800" <= char <= "\udfff" and not "\udc80" <= char <= "\udcff" for char in text)


def _escape(byte: int) -> str:
    if byte == 0x5C:
        return "\\\\"
    return chr(byte) if 0x20 <= byte < 0x7F and byte != 0x22 else f"\\{byte:02X}"
