"""Ending calls early: `timeout=` and `cancel=` of a call become a `Stop`, which every engine polls while it runs.

The native engine polls between steps and between iterations of long loops, the reference engine between ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from smelt.errors import CancelledError, RunError, SmeltError, TimedOutError

LONGEST = 1e9  # seconds

_told: list[Callable[[], object]] = []  # called after a token was cancelled


def on_cancel(wake: Callable[[], object]) -> None:
    """Have `wake` called after a token was cancelled: for a runtime whose calls poll tokens only when woken."""
    _told.append(wake)


class Cancel:
    """A token that ends calls from another thread: the calls that it was passed to.

    >>> import numpy as np, smelt
    >>> token = smelt.Cancel()
    >>> model = smelt.load("smelt/assets/digits.onnx", engine="reference")
    >>> image = np.zeros((1, 64), np.float32)
    >>> list(model(image, cancel=token))
    ['probabilities']
    >>> token.cancel()
    >>> model(image, cancel=token)
    Traceback (most recent call last):
    smelt.errors.CancelledError: the call was cancelled
      try      call again; inputs that were donated must be made again
    """

    __slots__ = ("_address", "_flag")

    def __init__(self) -> None:
        self._flag = np.zeros(1, np.int32)
        self._address: int = self._flag.__array_interface__["data"][0]

    @property
    def cancelled(self) -> bool:
        return bool(self._flag[0])

    @property
    def address(self) -> int:
        """The address of an int that becomes non-zero when the token is cancelled."""
        return self._address

    def cancel(self) -> None:
        """End the calls that have this token, and every call that gets it later. They raise CancelledError."""
        self._flag[0] = 1
        for wake in _told:
            wake()

    def __repr__(self) -> str:
        return f"<Cancel{', cancelled' if self.cancelled else ''}>"


def _is_time(given: object) -> bool:
    return isinstance(given, int | float | np.integer | np.floating) and bool(given >= 0)


class Stop:
    """When a call has to end: at a time, or when a token is cancelled."""

    __slots__ = ("cancel", "deadline", "timeout")

    def __init__(self, timeout: float | None = None, cancel: Cancel | None = None) -> None:
        if cancel is not None and not isinstance(cancel, Cancel):
            raise RunError("cancel is no token", expected="smelt.Cancel()", got=cancel)
        if timeout is not None and (isinstance(timeout, bool) or not _is_time(timeout)):
            raise RunError("timeout is no time", expected="seconds, at least 0", got=timeout)
        self.timeout, self.cancel = timeout, cancel
        self.deadline = None if timeout is None else time.monotonic() + min(float(timeout), LONGEST)

    @staticmethod
    def of(timeout: float | None = None, cancel: Cancel | None = None) -> Stop | None:
        """The Stop of a call; None without a timeout and a token."""
        return None if timeout is None and cancel is None else Stop(timeout, cancel)

    def check(self) -> None:
        """Raise if the call must end now."""
        if self.cancel is not None and self.cancel.cancelled:
            raise CancelledError("the call was cancelled")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.time_out()

    def wait_for(self, buffers: Sequence[Any]) -> None:
        """Wait for asynchronous buffers; raises if the call must end before they are ready."""
        for buffer in buffers:
            while not getattr(buffer, "is_ready", True):
                self.check()
                time.sleep(0.0005)

    def time_out(self) -> NoReturn:
        raise TimedOutError("the call took too long", expected=f"at most {self.timeout} s")

    @property
    def nanoseconds(self) -> int:
        """The remaining time; 0: no limit."""
        return 0 if self.deadline is None else max(int(1e9 * (self.deadline - time.monotonic())), 1)

    @property
    def address(self) -> int:
        """The address of the token's int; 0: no token."""
        return 0 if self.cancel is None else self.cancel.address


def has_started(error: BaseException) -> bool:
    """Whether the program of a call that failed had begun. What is no error of ours (a signal) comes while it runs."""
    return error.started if isinstance(error, SmeltError) else True


def note_donated(error: BaseException, names: Sequence[str]) -> None:
    """Add to a call's error whether its donated inputs were consumed."""
    listed = ", ".join(map(repr, names))
    if has_started(error):
        said = f"what was donated ({listed}) is used up: make it again, or call with keep=True"
    else:
        said = f"nothing has run: what was donated ({listed}) is as it was"
    if isinstance(error, SmeltError):
        error.remedy = f"{error.own_remedy}; {said}" if error.own_remedy else said
    else:
        error.add_note(said)
