"""The worker that measures smelt itself (and XLA on the same program, through our PJRT engine): `python -m smelt.cli.worker`.

The same protocol as `cli.peer`, which holds it.
"""

from __future__ import annotations

import importlib.metadata

from smelt.cli.peer import Arrays, Call, Job, MissingError, serve
from smelt.engine import ENGINES
from smelt.model import load


def smelt(job: Job, inputs: Arrays) -> tuple[str, Call]:
    if job["precision"] == "bf16":
        raise MissingError("smelt runs a model in the precision of its file")
    model = load(job["model"], engine=job.get("ours", "auto"))
    version = f"{importlib.metadata.version('smelt')} ({model.engine})"
    return version, lambda: list(model.run(inputs).values())


def jax(job: Job, inputs: Arrays) -> tuple[str, Call]:
    """XLA, as jaxlib brings it, on the StableHLO that smelt reads from the model."""
    engine = next((engine for engine in ENGINES if engine.name == "pjrt"), None)
    missing = "this smelt has no pjrt engine" if engine is None else engine.missing()
    if missing:
        raise MissingError(missing)
    if job["precision"] == "bf16":
        raise MissingError("XLA runs a model in the precision of its file")
    model = load(job["model"], engine="pjrt")
    return importlib.metadata.version("jaxlib"), lambda: list(model.run(inputs).values())


if __name__ == "__main__":
    serve({"smelt": smelt, "jax": jax})
