"""The text behind errors is parsed by several threads at once."""

from __future__ import annotations

import ast
import gc
import sys
import threading
import time

from smelt.tensor import source


class Cycle:
    """Garbage whose collection, wherever it happens, lets another thread run."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_may_parse_at_once() -> None:
    """CPython before 3.11.8 and 3.12.2 counts nested nodes of all threads together, and raises SystemError."""
    text = "".join(f"def f{i}(x):\n    return {'(' * 20}x + {i}{')' * 20}\n" for i in range(100))
    problems: list[BaseException] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            start.wait()
            for turn in range(10):
                for _ in range(20):
                    Cycle()
                tree = source._parse(f"{number} {turn}", f"{text}# {number} {turn}\n")
                assert isinstance(tree, ast.Module)
                assert len(tree.body) == 100
        except BaseException as error:
            problems.append(error)

    before, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(200)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*thresholds)
    assert problems == []
    assert source._parse("wrong", "def f(:\n") is None
