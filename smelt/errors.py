"""The one error form of the package.

A user's mistake raises a `SmeltError`: what was expected, what was given, where, and the remedy. An error without a
remedy of its own has its class's. The command line, the server and Python show the same record. An `assert` marks a bug
of smelt, never a user's mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smelt.frozen import Frozen


class Location(Frozen):
    """A place in a user's file: path, line and column (counted from 1), and a node's name if it has one."""

    path: str
    line: int = 0
    column: int = 0
    name: str = ""

    def __str__(self) -> str:
        place = ":".join([self.path, *(str(n) for n in (self.line, self.column) if n)])
        return f"{place} ({self.name})" if self.name and place else place or self.name


class SmeltError(Exception):
    """A mistake in a file, a shape, a request or a set-up; never a bug of smelt itself.

    >>> print(SmeltError("dot over 'd'", expected="axis d", got="f32[f=4]", remedy=".dot(w, 'f')"))
    dot over 'd'
      expected axis d
      got      f32[f=4]
      try      .dot(w, 'f')
    """

    advice = "docs/guides/troubleshooting.md lists the usual causes"  # the remedy of errors that have none of their own
    started = False  # whether the program had started: then donated inputs are consumed

    def __init__(
        self,
        message: str,
        *,
        expected: object = None,
        got: object = None,
        where: object = None,
        remedy: str | None = None,
        source: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.got = got
        self.where = where
        self.own_remedy = remedy
        self.source = source  # the offending line of the user's file, carets below it

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.own_remedy or self.advice

    @remedy.setter
    def remedy(self, text: str) -> None:
        self.own_remedy = text

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.message}" if self.where else self.message]
        if self.source:
            lines += ["  " + line for line in self.source.splitlines()]
        for label, value in (("expected", self.expected), ("got", self.got), ("try", self.remedy)):
            if value is not None:
                lines.append(f"  {label:<8} {value}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """The same error for machines: what `--json` and the server print."""
        fields = {
            "error": type(self).__name__,
            "message": self.message,
            "expected": self.expected,
            "got": self.got,
            "where": self.where,
            "remedy": self.remedy,
        }
        return {name: value if name == "error" else str(value) for name, value in fields.items() if value is not None}


@contextmanager
def advise(remedy: str, *kinds: type[SmeltError]) -> Iterator[None]:
    """Give this remedy to errors of these kinds that have none. Also a decorator: for a whole reader."""
    try:
        yield
    except kinds as error:
        error.own_remedy = error.own_remedy or remedy
        raise


def error_of(record: dict[str, Any]) -> SmeltError:
    """The error behind a record that another process wrote."""
    fields = {name: record.get(name) for name in ("expected", "got", "where", "remedy")}
    kind = globals().get(str(record.get("error")))
    if not (isinstance(kind, type) and issubclass(kind, SmeltError)):
        kind = SmeltError
    return kind(str(record.get("message", "it failed in another process")), **fields)


class ParseError(SmeltError):
    """Text or bytes that are not in the format they claim."""

    advice = "correct it there; if a program wrote it, write, export or download it again"


class VerifyError(SmeltError):
    """A program that breaks a constraint of the specification."""

    advice = "correct the program there; if a program wrote it, export it again"


class ShapeError(SmeltError):
    """Sizes, axes or element types that do not fit together."""

    advice = "pass the sizes, axes and element types that are expected; smelt inspect shows those of a model"


class UnsupportedError(SmeltError):
    """Valid input that smelt, this engine or this device cannot handle."""

    advice = 'another engine may support it (engine="pjrt" or "reference"); docs/engines.md compares them'


class RunError(SmeltError):
    """A failure while a program runs: a check that did not hold, a bound exceeded, no memory left."""

    advice = 'check the arguments of the call; with engine="reference" the error names the op that failed'


class SizeError(RunError):
    """Sizes of a call break an assumption of the program."""

    advice = "call it with sizes that the program allows: smelt check lists its assumptions"


class CancelledError(RunError):
    """A call that was cancelled: through `smelt.Cancel`, or `cancel()` of an executable."""

    advice = "call again; inputs that were donated must be made again"


class TimedOutError(RunError):
    """A call that took longer than its `timeout`."""

    advice = "give the call more time: timeout=…"


class MemoryLimitError(SmeltError):
    """A model that needs more memory than the user allows."""

    advice = "allow more memory, or use a smaller batch or smaller sizes"


class FileError(SmeltError):
    """A file that is missing, unreadable, damaged or cannot be written."""

    advice = "check the path, its permissions and the free space; write or download a damaged file again"


class DeviceError(SmeltError):
    """A device or compiler that is missing, lost, or refused."""

    advice = "smelt devices lists the devices here and what the others need"


class DeviceLost(DeviceError):  # noqa: N818  # the name says what happened
    """A device that stopped working. Its buffers are lost; make a new platform."""

    advice = "make a new platform and load the model again"


class MissingPackageError(SmeltError):
    """An optional package that the request needs and that is not installed."""

    advice = "install the package that is named"
