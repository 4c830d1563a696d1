"""A command of smelt on a model that is not trusted: `python -m … FOLDER FILES COMMAND…`. The web page's views use it.

It reads the model's files (`FILES`, a JSON list), writes and compiles in a folder of its own, and reaches nothing else.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

from smelt.serve.isolation import sandbox


def run(folder: Path, files: list[str], command: list[str]) -> None:
    scratch = folder / "tmp"
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ |= {"SMELT_CACHE_DIR": str(folder), "XDG_CACHE_HOME": str(folder), "TMPDIR": str(scratch)}
    tempfile.tempdir = str(scratch)
    os.chdir(scratch)
    sandbox.confine_compiler([folder], map(Path, files))
    sys.argv = ["smelt", *command]
    runpy.run_module("smelt", run_name="__main__")


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
