"""scikit-learn pipelines on real data, converted by skl2onnx: errors against scikit-learn itself, which runs in double.

Weights are rounded to f32 before they are used, so that both sides compute with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from tests.real.accuracy import HEADER, figure, run_onnxruntime

pytest.importorskip("onnxruntime")
pytest.importorskip("sklearn")
skl2onnx = pytest.importorskip("skl2onnx")
pytestmark = pytest.mark.filterwarnings("ignore")


def pipelines() -> dict[str, Callable[[], Any]]:
    from sklearn import ensemble, linear_model, neural_network, svm
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    return {
        "logistic": lambda: make_pipeline(StandardScaler(), linear_model.LogisticRegression(max_iter=200)),
        "network": lambda: make_pipeline(PCA(20), neural_network.MLPClassifier((32, 16), max_iter=40, random_state=0)),
        "vectors": lambda: make_pipeline(MinMaxScaler(), svm.SVR()),
        "forest": lambda: ensemble.RandomForestClassifier(20, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=20, random_state=0),
        "ridge": lambda: make_pipeline(StandardScaler(), linear_model.Ridge()),
    }


def rounded(estimator: Any) -> Any:
    """The same estimator with weights that f32 holds exactly; trees keep theirs."""
    for step in [each for _, each in estimator.steps] if hasattr(estimator, "steps") else [estimator]:
        for name, value in vars(step).items():
            if isinstance(value, np.ndarray) and value.dtype == np.float64:
                setattr(step, name, value.astype(np.float32).astype(np.float64))
            elif isinstance(value, list) and all(isinstance(each, np.ndarray) for each in value):
                setattr(step, name, [each.astype(np.float32).astype(np.float64) for each in value])
    return estimator


@pytest.mark.parametrize("name", ["logistic", "network", "vectors", "forest", "boosting", "ridge"])
def test_errors_are_at_most_four_times_onnxruntimes(name: str, tmp_path: Path, seed: int) -> None:
    from sklearn.datasets import load_digits

    random = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    estimator = rounded(pipelines()[name]().fit(images[:500], digits[:500]))
    is_classifier = hasattr(estimator, "predict_proba")
    options = {"zipmap": False} if is_classifier else None
    model = skl2onnx.to_onnx(
        estimator, images[:1].astype(np.float32), target_opset={"": 18, "ai.onnx.ml": 3}, options=options
    )
    output = model.graph.output[-1].name
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    loaded = smelt.load(tmp_path / "model.onnx", engine="reference")
    for rows in (1, 7, 40):
        feeds = [{"X": images[random.choice(len(images), rows)].astype(np.float32)} for _ in range(2 + 24 // rows)]
        truth = [_truth(estimator, feed["X"].astype(np.float64), is_classifier) for feed in feeds]
        theirs = [row[0] for row in run_onnxruntime(model, [output], feeds)]
        ours = [loaded.run(feed)[output] for feed in feeds]
        result = figure(output, ours, theirs, truth)
        assert result.is_plausible, f"{HEADER}\n{result}"
        assert result.is_good, f"{HEADER}\n{result}"
        if is_classifier:
            labels = [loaded.run(feed)[model.graph.output[0].name] for feed in feeds]
            np.testing.assert_array_equal(
                np.concatenate(labels), estimator.predict(np.concatenate([f["X"] for f in feeds]))
            )


def _truth(estimator: Any, x: Array, is_classifier: bool) -> Array:
    return estimator.predict_proba(x) if is_classifier else estimator.predict(x).reshape(-1, 1)
