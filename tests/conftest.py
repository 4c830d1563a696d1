"""What every test may ask for: the public suites, and one hypothesis profile. What it must leave as it was."""

import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before NumPy and JAX are imported, here and in the processes that tests start. Two test processes share the cores, and
# threads of a BLAS that wait for work take the time of the other. XLA compiles what runs once: an oracle.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import numpy as np
import pytest
from hypothesis import settings

ABSENT = "SMELT_SUITES is not set: it names the folder that holds the StableHLO programs (testdata/, interpret/)"
NO_MODELS = "SMELT_MODELS is not set: it names the folder that holds the benchmark networks (*.onnx)"

# The same cases each time, so that a change and not the dice turns a run red; SMELT_SEED=random looks for new ones.
EXPLORE = os.environ.get("SMELT_SEED") == "random"
settings.register_profile("smelt", derandomize=not EXPLORE, deadline=None, print_blob=True)
settings.load_profile("smelt")


def suites_folder() -> Path | None:
    """The folder SMELT_SUITES names, or None where it is not set. A name that leads nowhere is an error, not a skip."""
    name = os.environ.get("SMELT_SUITES")
    if not name:
        return None
    folder = Path(name)
    missing = [part for part in ("testdata", "interpret") if not (folder / part).is_dir()]
    if missing:
        raise pytest.UsageError(f"SMELT_SUITES={name} has no folder {' and no folder '.join(missing)}")
    return folder


def models_folder() -> Path | None:
    """The folder SMELT_MODELS names, or None where it is not set. It may hold a part of the benchmark networks."""
    name = os.environ.get("SMELT_MODELS")
    if name and not any(Path(name).glob("*.onnx")):
        raise pytest.UsageError(f"SMELT_MODELS={name} is no folder with ONNX files")
    return Path(name) if name else None


# A shell that runs the tests in the background has them ignore SIGINT; servers put Python's own handler back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the texts of tests/golden again")


def pytest_report_header() -> list[str]:
    return [
        f"suites: {suites_folder() or f'absent, their tests are skipped ({ABSENT})'}",
        f"models: {models_folder() or f'absent, their tests are skipped ({NO_MODELS})'}",
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    """What all tests share (modules, the tests themselves) is no garbage: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Nor at what a file of tests leaves: modules that it imported, caches of other packages."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def suites() -> Path:
    """The folder with the public suites; skips the test where there is none."""
    folder = suites_folder()
    if folder is None:
        pytest.skip(ABSENT)
    return folder


@pytest.fixture
def seed() -> int:
    """A seed for a randomised test, printed: 1, what SMELT_SEED says, or a new one for SMELT_SEED=random."""
    chosen = secrets.randbelow(1 << 31) if EXPLORE else int(os.environ.get("SMELT_SEED") or 1)
    print(f"SMELT_SEED={chosen} repeats this run")
    return chosen


def process_state() -> dict[str, Any]:
    """What all tests of a process share: whichever file ran before, the next one finds this as it was."""
    watched = ("SMELT_", "XDG_", "HOME", "PATH", "TMPDIR")
    return {
        "environment": {name: value for name, value in os.environ.items() if name.startswith(watched)},
        "folder": os.getcwd(),
        "logging": (logging.root.manager.disable, logging.getLogger("smelt").level, logging.root.level),
        "signals": {each.name: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)},
        "recursion": sys.getrecursionlimit(),
        "trace": None if "SMELT_COVERAGE_MAP" in os.environ else sys.gettrace(),  # coverage has one of its own
        "floating-point errors": np.geterr(),
    }


@pytest.fixture(autouse=True)
def unchanged_process() -> Iterator[None]:
    """A test that changes the process for those after it fails itself."""
    before = process_state()
    yield
    after = process_state()
    left = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not left, f"the test leaves the process changed: {left}"
