"""The worker process in which `smelt check` loads and runs the code of a bundle, which may crash.

`cli.bundle` starts it with a path and sizes. It answers with one line of JSON on standard output: a record and errors,
or the error that ended the check. JSON, because the output of this process is not trusted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from smelt.cli.bundle import run_check
from smelt.errors import SmeltError


def main() -> None:
    file, *sizes = sys.argv[1:]
    answer = os.dup(1)
    os.dup2(2, 1)  # other output is not part of the answer
    try:
        record, errors = run_check(Path(file), sizes)
        said = {"record": record, "errors": [error.record() for error in errors]}
    except SmeltError as error:
        said = {"failed": error.record()}
    os.write(answer, json.dumps(said).encode())


if __name__ == "__main__":
    main()
