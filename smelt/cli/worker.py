"""The worker that measures smelt, and XLA on the same program through the pjrt engine.

`cli.rounds` starts it (`python -m smelt.cli.worker`); the protocol is that of `cli.peer`.
"""

from __future__ import annotations

import importlib.metadata

from smelt.cli.peer import Arrays, Call, Job, MissingError, serve
from smelt.engine import engines
from smelt.model import load
from smelt.version import __version__


def smelt(job: Job, inputs: Arrays) -> tuple[str, Call]:
    asked = {"precision": "bf16"} if job["precision"] == "bf16" else {}  # files for int8 are quantised already
    model = load(job["model"], **{**asked, **job["ours"]})
    return f"{__version__} ({model.engine})", lambda: list(model.run(inputs).values())


def jax(job: Job, inputs: Arrays) -> tuple[str, Call]:
    """jaxlib's XLA on the StableHLO that smelt reads from the model."""
    missing = next(engine.missing() for engine in engines("cpu") if engine.name == "pjrt")
    if missing:
        raise MissingError(missing)
    if job["precision"] == "bf16":
        raise MissingError("XLA runs a model in the precision of its file")
    model = load(job["model"], device="cpu", engine="pjrt")
    return importlib.metadata.version("jaxlib"), lambda: list(model.run(inputs).values())


if __name__ == "__main__":
    serve({"smelt": smelt, "jax": jax})
