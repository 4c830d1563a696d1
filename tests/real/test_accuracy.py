"""Real models in f32 against a run in double: at ten values over the depth, an error of at most 4 × onnxruntime's.

Inputs are random and real, at several sizes of each dynamic dimension; tests/real/accuracy.py prints the figures.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from tests.real.accuracy import HEADER, figure, measure
from tests.real.zoo import zoo

ZOO = zoo()
CASES = [pytest.param(name, marks=pytest.mark.slow) if each.is_large else name for name, each in ZOO.items()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_errors_are_at_most_four_times_onnxruntimes(name: str, seed: int) -> None:
    sample = ZOO[name]
    reason = sample.missing()
    if reason is not None:
        pytest.skip(reason)
    random = np.random.default_rng(seed)
    groups = sample.feeds(random)
    assert groups
    for feeds, figures in zip(groups, measure(sample.model(), groups, random), strict=True):
        at = {key: array.shape for key, array in feeds[0].items()}
        doubtful = [str(each) for each in figures if not each.is_plausible]
        assert not doubtful, f"onnxruntime is far from the run in double at {at}:\n" + "\n".join([HEADER, *doubtful])
        bad = [str(each) for each in figures if not each.is_good]
        assert not bad, f"errors of more than 4 × onnxruntime's at {at}:\n" + "\n".join([HEADER, *bad])


def test_an_error_is_seen_where_the_mean_hides_it() -> None:
    """A value of which 1 part in 10⁴ depends on the input: an engine that ignores the input is far off."""
    random = np.random.default_rng(0)
    truth = [1.0 + 1e-4 * random.standard_normal(100) for _ in range(3)]
    theirs = [array.astype(np.float32) for array in truth]
    constant = [np.mean(truth, axis=0).astype(np.float32)] * 3
    assert not figure("value", constant, theirs, truth).is_good
    assert figure("value", theirs, theirs, truth).is_good
    shifted = [array + np.float32(1e-5) for array in theirs]  # the same for every input: no error in how it follows it
    assert figure("value", shifted, theirs, truth).is_good
    assert not figure("value", theirs, [array * 2 for array in theirs], [array * 0 for array in truth]).is_plausible
