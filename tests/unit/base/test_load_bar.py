"""The line that shows how far a load is: after a second, on a terminal, and gone at the end."""

from __future__ import annotations

import io

import pytest

from smelt import weights


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    now = [10.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bar = weights._Bar()
    bar.report(10, 30)
    assert seen.getvalue() == ""
    now[0] = 12.0
    bar.report(10, 30)
    assert seen.getvalue().startswith("\rloading [##########....................] 10 ")
    assert "5 B/s" in seen.getvalue()
    bar.report(30, 30)
    assert seen.getvalue().endswith("\r\x1b[K")


def test_no_bar_for_a_quick_load(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bar = weights._Bar()
    now[0] = 5.0
    bar.report(7, 7)
    assert seen.getvalue() == ""
