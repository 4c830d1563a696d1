"""Workers (`worker.py`) as objects, one process each. All but one are stopped, so that none disturbs another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Worker:
    """A framework in training, in a process of its own."""

    def __init__(self, framework: str, job: Sequence[str], python: str | None = None) -> None:
        self.framework = framework
        script, root = Path(__file__).with_name("worker.py"), Path(__file__).parents[2]
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [python or sys.executable, str(script), framework, *job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._process.send_signal(signal.SIGSTOP)

    def run(self, steps: int) -> dict[str, Any]:
        """The answer to a request for steps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.framework}: the worker ended")
        self._process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def pythons(given: Sequence[str]) -> dict[str, str]:
    """`--python torch=PATH` → the Python of a framework; `torch.compile` has that of `torch`."""
    found = dict(each.split("=", 1) for each in given)
    return found | ({"torch.compile": found["torch"]} if "torch" in found else {})
