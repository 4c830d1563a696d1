"""What every test may ask for: the public suites, and one hypothesis profile."""

import os
import secrets
from pathlib import Path

import pytest
from hypothesis import settings

ABSENT = "SMELT_SUITES is not set: it names the folder that holds the StableHLO programs (testdata/, interpret/)"

# Random on purpose; a failure prints the line that reproduces it.
settings.register_profile("smelt", derandomize=False, deadline=None, print_blob=True)
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


def pytest_report_header() -> str:
    return f"suites: {suites_folder() or f'absent, their tests are skipped ({ABSENT})'}"


@pytest.fixture(scope="session")
def suites() -> Path:
    """The folder with the public suites; skips the test where there is none."""
    folder = suites_folder()
    if folder is None:
        pytest.skip(ABSENT)
    return folder


@pytest.fixture
def seed() -> int:
    """A seed for a randomised test: new each time, printed, and taken from SMELT_SEED where that is set."""
    chosen = int(os.environ.get("SMELT_SEED") or secrets.randbelow(1 << 31))
    print(f"SMELT_SEED={chosen} repeats this run")
    return chosen
