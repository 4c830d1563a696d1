"""`smelt top` without `--once`: what the screen shows after each interval, until Ctrl-C."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from smelt.cli import top


def metrics(requests: int) -> Any:
    return top.parse_metrics(f'smelt_requests_total{{model="m",version="1",outcome="ok"}} {requests}\n')


def test_each_interval_is_compared_with_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, clock, slept, shown = iter([0, 10, 50]), iter([5.0, 7.0, 11.0]), [], []
    compared: list[tuple[Any, Any, float]] = []

    class Screen:
        def __init__(self, first: Any, **options: Any) -> None:
            assert options["screen"]

        def __enter__(self) -> Screen:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, drawn: Any, refresh: bool) -> None:
            text = io.StringIO()
            Console(file=text, width=100).print(drawn)
            shown.append(text.getvalue())
            assert refresh

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    def rows_between(before: Any, now: Any, seconds: float) -> list[Any]:
        compared.append((before, now, seconds))
        return []

    monkeypatch.setattr(top, "Live", Screen)
    monkeypatch.setattr(top, "fetch", lambda url, key: metrics(next(looks)))
    monkeypatch.setattr(top, "monotonic", lambda: next(clock))
    monkeypatch.setattr(top, "sleep", sleep)
    monkeypatch.setattr(top, "rows_between", rows_between)
    with pytest.raises(KeyboardInterrupt):
        top.top("http://h:1", "", 2.5, False, False)
    assert slept == [2.5] * 3
    first, second, third = (metrics(count) for count in (0, 10, 50))
    assert compared == [(first, first, 1.0), (first, second, 2.0), (second, third, 4.0)]
    assert len(shown) == 2
    assert all(text.startswith("http://h:1") for text in shown)
