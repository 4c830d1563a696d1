"""Classical machine learning in ONNX against onnxruntime: single operators, and pipelines that skl2onnx converts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from smelt.dtype import Array
from smelt.errors import ParseError, ShapeError, SmeltError, UnsupportedError
from smelt.ir.attributes import Int
from smelt.read.onnx import StaticError
from smelt.read.onnx.ops import trees
from tests.unit.read.peer import node_model, ours, same, theirs

ML = "ai.onnx.ml"
F32, F64, I64, TEXT = 1, 11, 7, 8
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def check(
    tmp_path: Path,
    op: str,
    inputs: list[Array],
    outputs: list[int],
    attributes: dict[str, Any],
    version: int = 3,
    **tolerance: float,
) -> list[Any]:
    """Both sizes of the batch through one program with an open batch."""
    model = node_model(op, inputs, outputs, attributes, ML, {ML: version}, [(0,)] * len(inputs))
    found: list[Any] = []
    for part in (inputs, [each[:1] for each in inputs]):
        given = {f"x{i}": array for i, array in enumerate(part)}
        result, _ = ours(model, given, tmp_path)
        same(result, theirs(model, given), **tolerance)
        found = found or result
    return found


# ---- trees ----


class Tree:
    """A random tree in the form of opset 3: nodes in random order behind the root."""

    def __init__(
        self, random: np.random.Generator, number: int, depth: int, features: int, modes: tuple[str, ...]
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.leaves: list[int] = []
        self._grow(random, number, depth, features, modes)
        rest = self.rows[1:]
        random.shuffle(rest)
        self.rows[1:] = rest

    def _grow(self, random: np.random.Generator, tree: int, depth: int, features: int, modes: tuple[str, ...]) -> int:
        number = len(self.rows)
        row: dict[str, Any] = {
            "treeids": tree,
            "nodeids": number,
            "featureids": 0,
            "values": 0.0,
            "truenodeids": 0,
            "falsenodeids": 0,
        }
        row |= {"modes": "LEAF", "missing_value_tracks_true": 0}
        self.rows.append(row)
        if depth == 0 or (number and random.random() < 0.2):
            self.leaves.append(number)
            return number
        row["featureids"] = int(random.integers(features))
        row["values"] = float(random.integers(-2, 3)) / 2  # inputs are halves too: equality happens
        row["modes"] = str(random.choice(modes))
        row["missing_value_tracks_true"] = int(random.integers(2))
        row["truenodeids"] = self._grow(random, tree, depth - 1, features, modes)
        row["falsenodeids"] = self._grow(random, tree, depth - 1, features, modes)
        return number


def forest(
    random: np.random.Generator,
    trees: int,
    depth: int,
    features: int,
    modes: tuple[str, ...] = MODES,
    tracks: bool = True,
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The attributes of the nodes, and all leaves as (tree, node)."""
    grown = [Tree(random, i, depth, features, modes) for i in range(trees)]
    rows = [row for tree in grown for row in tree.rows]
    attributes = {f"nodes_{name}": [row[name] for row in rows] for name in rows[0]}
    if not tracks:
        del attributes["nodes_missing_value_tracks_true"]
    return attributes, [(i, leaf) for i, tree in enumerate(grown) for leaf in tree.leaves]


def halves(random: np.random.Generator, rows: int, features: int, nan: float = 0.1) -> Array:
    x = (random.integers(-4, 5, (rows, features)) / 2).astype(np.float32)
    x[random.random(x.shape) < nan] = np.nan
    return x


def weights_of(
    random: np.random.Generator, leaves: list[tuple[int, int]], targets: list[int], prefix: str, low: float = -1.0
) -> dict[str, Any]:
    """A weight for every leaf and target."""
    rows = [(tree, node, target) for tree, node in leaves for target in targets]
    return {
        f"{prefix}_treeids": [row[0] for row in rows],
        f"{prefix}_nodeids": [row[1] for row in rows],
        f"{prefix}_ids": [row[2] for row in rows],
        f"{prefix}_weights": random.uniform(low, 1.0, len(rows)).astype(np.float32).tolist(),
    }


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor_aggregates(tmp_path: Path, seed: int, aggregate: str, targets: int) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 5, 4, 3)
    attributes = nodes | weights_of(random, leaves, list(range(targets)), "target")
    attributes |= {"n_targets": targets, "aggregate_function": aggregate, "base_values": [0.5, -0.25, 2.0][:targets]}
    check(tmp_path, "TreeEnsembleRegressor", [halves(random, 33, 3)], [F32], attributes)


@pytest.mark.parametrize("mode", MODES)
def test_one_mode_for_all_nodes(tmp_path: Path, seed: int, mode: str) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 3, 5, 2, (mode,), tracks=mode != "BRANCH_LEQ")
    attributes = nodes | weights_of(random, leaves, [0], "target") | {"n_targets": 1}
    check(tmp_path, "TreeEnsembleRegressor", [halves(random, 40, 2)], [F32], attributes)


@pytest.mark.parametrize("post", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2])
def test_regressor_transforms(tmp_path: Path, seed: int, post: str, targets: int) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 1, 3, 3)
    attributes = nodes | weights_of(random, leaves, list(range(targets)), "target", low=0.05)
    attributes |= {"n_targets": targets, "post_transform": post}
    check(tmp_path, "TreeEnsembleRegressor", [halves(random, 17, 3)], [F32], attributes, rtol=2e-5, atol=2e-6)


def test_targets_that_leaves_do_not_share(tmp_path: Path, seed: int) -> None:
    """Each tree is for one target, as boosting writes them."""
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 6, 3, 3)
    attributes = nodes | {
        "target_treeids": [tree for tree, _ in leaves],
        "target_nodeids": [node for _, node in leaves],
        "target_ids": [tree % 3 for tree, _ in leaves],
        "target_weights": random.normal(size=len(leaves)).astype(np.float32).tolist(),
        "n_targets": 3,
    }
    for aggregate in ("SUM", "MIN", "MAX"):
        chosen = attributes | {"aggregate_function": aggregate}
        check(tmp_path, "TreeEnsembleRegressor", [halves(random, 9, 3)], [F32], chosen)


def test_big_tables_of_targets_are_not_made(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.read.onnx.ops.trees._MOST_DENSE", 0)
    test_targets_that_leaves_do_not_share(tmp_path, seed)


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.int32])
def test_other_inputs(tmp_path: Path, seed: int, kind: type) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 3, 4, 3)
    attributes = nodes | weights_of(random, leaves, [0, 1, 2], "class") | {"classlabels_int64s": [4, 5, 6]}
    x: Array = halves(random, 21, 3, nan=0.0).astype(kind)
    check(tmp_path, "TreeEnsembleClassifier", [x], [I64, F32], attributes)


def test_double_thresholds(tmp_path: Path, seed: int) -> None:
    """Splits that single precision cannot tell apart."""
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 2, 3, 2, ("BRANCH_LEQ",))
    splits = 1.0 + 1e-12 * random.integers(-3, 4, len(nodes.pop("nodes_values")))
    attributes = nodes | weights_of(random, leaves, [0], "target") | {"n_targets": 1}
    attributes["nodes_values_as_tensor"] = onnx.numpy_helper.from_array(splits)
    weights = np.array(attributes.pop("target_weights"), np.float64)
    attributes["target_weights_as_tensor"] = onnx.numpy_helper.from_array(weights)
    x = 1.0 + 1e-12 * random.integers(-4, 5, (50, 2)).astype(np.float64)
    check(tmp_path, "TreeEnsembleRegressor", [x], [F32], attributes)


def test_a_tree_deeper_than_what_is_unrolled(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    depth = 70
    nodes = {
        "nodes_treeids": [0] * (2 * depth + 1),
        "nodes_nodeids": list(range(2 * depth + 1)),
        "nodes_featureids": [0] * (2 * depth + 1),
        "nodes_values": [float(i // 2) for i in range(2 * depth)] + [0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF"] * depth + ["LEAF"],
        "nodes_truenodeids": [i + 1 if i % 2 == 0 else 0 for i in range(2 * depth)] + [0],
        "nodes_falsenodeids": [i + 2 if i % 2 == 0 else 0 for i in range(2 * depth)] + [0],
    }
    leaves = [(0, 2 * i + 1) for i in range(depth)] + [(0, 2 * depth)]
    attributes = nodes | weights_of(random, leaves, [0], "target") | {"n_targets": 1}
    x = random.uniform(-1, depth + 1, (40, 1)).astype(np.float32)
    found = check(tmp_path, "TreeEnsembleRegressor", [x], [F32], attributes)
    assert len(np.unique(found[0])) > 5


def test_a_single_leaf(tmp_path: Path) -> None:
    attributes = {
        "nodes_treeids": [0],
        "nodes_nodeids": [0],
        "nodes_featureids": [0],
        "nodes_values": [0.0],
        "nodes_modes": ["LEAF"],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0],
        "target_treeids": [0],
        "target_nodeids": [0],
        "target_ids": [0],
        "target_weights": [2.5],
        "n_targets": 1,
    }
    check(tmp_path, "TreeEnsembleRegressor", [np.zeros((3, 2), np.float32)], [F32], attributes)


@pytest.mark.parametrize("post", TRANSFORMS)
@pytest.mark.parametrize("base", [0, 4])
@pytest.mark.parametrize("strings", [False, True])
def test_classifier(tmp_path: Path, seed: int, post: str, base: int, strings: bool) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 3, 4, 3)
    attributes = nodes | weights_of(random, leaves, [0, 1, 2, 3], "class", low=0.01) | {"post_transform": post}
    attributes["class_weights"] = [each / 3 for each in attributes["class_weights"]]
    if base:
        attributes["base_values"] = [0.01, 0.02, 0.003, 0.02]
    attributes |= {"classlabels_strings": ["a", "bé", "", "d"]} if strings else {"classlabels_int64s": [5, 7, -1, 2]}
    x = halves(random, 25, 3)
    check(tmp_path, "TreeEnsembleClassifier", [x], [TEXT if strings else I64, F32], attributes, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("post", TRANSFORMS[:4])
@pytest.mark.parametrize("low", [0.0, -1.0])
@pytest.mark.parametrize("base", [(), (0.2,)])
def test_classifier_of_two_by_one_score(
    tmp_path: Path, seed: int, post: str, low: float, base: tuple[float, ...]
) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 2, 4, 3)
    attributes = nodes | weights_of(random, leaves, [0], "class", low) | {"post_transform": post}
    attributes |= {"classlabels_int64s": [5, 7]} | ({"base_values": list(base)} if base else {})
    check(tmp_path, "TreeEnsembleClassifier", [halves(random, 25, 3)], [I64, F32], attributes, rtol=1e-4, atol=1e-5)


def test_classifier_of_two_with_an_offset_for_each(tmp_path: Path, seed: int) -> None:
    """The trees vote for the first class; the second has its offset alone, which onnxruntime leaves out."""
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 2, 4, 3)
    attributes = (
        nodes | weights_of(random, leaves, [0], "class") | {"classlabels_int64s": [5, 7], "base_values": [0.25, -1]}
    )
    x = halves(random, 25, 3)
    model = node_model("TreeEnsembleClassifier", [x], [I64, F32], attributes, ML)
    found, _ = ours(model, {"x0": x}, tmp_path)
    expected = theirs(model, {"x0": x})
    expected[1][:, 1] = -1
    same(found, expected)


def test_classifier_of_two_by_the_second_score(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 2, 4, 3)
    for post in ("NONE", "LOGISTIC", "SOFTMAX"):
        attributes = nodes | weights_of(random, leaves, [1], "class") | {"classlabels_int64s": [5, 7]}
        attributes["post_transform"] = post
        check(tmp_path, "TreeEnsembleClassifier", [halves(random, 25, 3)], [I64, F32], attributes)


def test_classifier_of_two_by_both_scores(tmp_path: Path, seed: int) -> None:
    """The scores are onnxruntime's. Its labels are not those of the model here: the greater score has it."""
    random = np.random.default_rng(seed)
    nodes, leaves = forest(random, 2, 4, 3)
    attributes = nodes | weights_of(random, leaves, [0, 1], "class", 0.0) | {"classlabels_int64s": [5, 7]}
    x = halves(random, 25, 3)
    model = node_model("TreeEnsembleClassifier", [x], [I64, F32], attributes, ML)
    (label, scores), _ = ours(model, {"x0": x}, tmp_path)
    np.testing.assert_allclose(scores, theirs(model, {"x0": x})[1], rtol=1e-5)
    np.testing.assert_array_equal(label, np.where(scores[:, 1] > scores[:, 0], 7, 5))


def ensemble_5(random: np.random.Generator, kind: Any, member: bool) -> dict[str, Any]:
    """Three small trees in the form of opset 5: a complete tree of depth 2 each."""
    modes, splits, sets = [], [], []
    for _ in range(9):
        mode = int(random.integers(7 if member else 6))
        modes.append(mode)
        splits.append(float(random.integers(-2, 3)) / 2)
        if mode == 6:
            sets += [*(random.choice(9, 3, replace=False) / 2 - 2).tolist(), float("nan")]
    made = onnx.numpy_helper.from_array
    attributes = {
        "tree_roots": [0, 3, 6],
        "nodes_featureids": random.integers(3, size=9).tolist(),
        "nodes_modes": made(np.array(modes, np.uint8)),
        "nodes_splits": made(np.array(splits, kind)),
        "nodes_truenodeids": [n for i in range(3) for n in (3 * i + 1, 4 * i, 4 * i + 2)],
        "nodes_falsenodeids": [n for i in range(3) for n in (3 * i + 2, 4 * i + 1, 4 * i + 3)],
        "nodes_trueleafs": [0, 1, 1] * 3,
        "nodes_falseleafs": [0, 1, 1] * 3,
        "leaf_targetids": random.integers(2, size=12).tolist(),
        "leaf_weights": made(random.uniform(0.05, 0.3, 12).astype(kind)),
        "n_targets": 2,
        "nodes_missing_value_tracks_true": random.integers(2, size=9).tolist(),
    }
    return attributes | ({"membership_values": made(np.array(sets, kind))} if sets else {})


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_ensemble_5(tmp_path: Path, seed: int, kind: Any) -> None:
    random = np.random.default_rng(seed)
    attributes = ensemble_5(random, kind, False)
    x = halves(random, 33, 3).astype(kind)
    for aggregate in range(4):
        outputs = [F32 if kind == np.float32 else F64]
        check(tmp_path, "TreeEnsemble", [x], outputs, attributes | {"aggregate_function": aggregate}, 5)


@pytest.mark.parametrize(("post", "function"), [(1, "softmax"), (2, "expit")])
def test_ensemble_5_transforms(tmp_path: Path, seed: int, post: int, function: str) -> None:
    """The standard's numbers; onnxruntime has these two the other way round."""
    special = pytest.importorskip("scipy.special")
    random = np.random.default_rng(seed)
    attributes = ensemble_5(random, np.float64, False)
    x = halves(random, 33, 3).astype(np.float64)
    plain = node_model("TreeEnsemble", [x], [F64], attributes, ML, {ML: 5})
    model = node_model("TreeEnsemble", [x], [F64], attributes | {"post_transform": post}, ML, {ML: 5})
    axis = {"axis": 1} if function == "softmax" else {}
    expected = getattr(special, function)(theirs(plain, {"x0": x})[0], **axis)
    same(ours(model, {"x0": x}, tmp_path)[0], [expected])


def walk_5(attributes: dict[str, Any], x: Array) -> Array:
    """The trees of opset 5, row by row, as the standard says: (rows, trees) of leaves."""
    modes, splits, sets = (
        onnx.numpy_helper.to_array(attributes[name]) if name in attributes else np.zeros(0)
        for name in ("nodes_modes", "nodes_splits", "membership_values")
    )
    members = iter(np.split(sets, np.flatnonzero(np.isnan(sets)) + 1))
    lists = [next(members)[:-1] if mode == 6 else None for mode in modes]
    tests: list[Any] = [np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal]
    found = np.zeros((len(x), len(attributes["tree_roots"])), np.int64)
    for i, row in enumerate(x):
        for j, node in enumerate(attributes["tree_roots"]):
            while True:
                value = row[attributes["nodes_featureids"][node]]
                goes = value in lists[node] if modes[node] == 6 else tests[modes[node]](value, splits[node])
                goes = goes or (np.isnan(value) and attributes["nodes_missing_value_tracks_true"][node])
                side = "true" if goes else "false"
                node, done = (attributes[f"nodes_{side}{name}"][node] for name in ("nodeids", "leafs"))
                if done:
                    found[i, j] = node
                    break
    return found


@pytest.mark.parametrize("kind", [np.float16, np.float64])
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_ensemble_5_by_hand(tmp_path: Path, seed: int, kind: Any, aggregate: int) -> None:
    random = np.random.default_rng(seed)
    attributes = ensemble_5(random, kind, True) | {"aggregate_function": aggregate}
    x = halves(random, 33, 3).astype(kind)
    targets, weights = np.array(attributes["leaf_targetids"]), onnx.numpy_helper.to_array(attributes["leaf_weights"])
    leaves = walk_5(attributes, x)
    expected = np.zeros((33, 2))
    for i, row in enumerate(leaves):
        for target in range(2):
            own = [float(weights[leaf]) for leaf in row if targets[leaf] == target]
            if own:
                expected[i, target] = (sum(own) / 3, sum(own), min(own), max(own))[aggregate]
    model = node_model("TreeEnsemble", [x], [10 if kind == np.float16 else F64], attributes, ML, {ML: 5}, [(0,)])
    (found,), _ = ours(model, {"x0": x}, tmp_path)
    assert found.dtype == kind
    np.testing.assert_allclose(found, expected, rtol=1e-3 if kind == np.float16 else 1e-12)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, ParseError),  # back to itself
        ({"nodes_truenodeids": [9, 0, 0]}, ParseError),
        ({"nodes_featureids": [7, 0, 0]}, ShapeError),
        ({"nodes_featureids": [-1, 0, 0]}, ParseError),
        ({"nodes_modes": ["BRANCH_UP", "LEAF", "LEAF"]}, ParseError),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF"]}, ParseError),
        ({"nodes_values": [0.0]}, ParseError),
        ({"nodes_nodeids": [0, 1, 1]}, ParseError),
        ({"target_ids": [0, 3]}, ParseError),
        ({"target_ids": [0, -1]}, ParseError),
        ({"target_nodeids": [1, 8]}, ParseError),
        ({"target_nodeids": [1, 1]}, ParseError),  # a leaf without a weight
        ({"n_targets": 0}, SmeltError),
        ({"n_targets": -2}, SmeltError),
        ({"base_values": [1.0, 2.0, 3.0]}, UnsupportedError),
        ({"aggregate_function": "PRODUCT"}, ParseError),
        ({"post_transform": "TANH"}, ParseError),
        ({"nodes_treeids": [0]}, ParseError),
    ],
)
def test_trees_that_are_none(tmp_path: Path, change: dict[str, Any], error: type[SmeltError]) -> None:
    attributes: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
        "n_targets": 1,
    }
    x = np.zeros((2, 2), np.float32)
    (found,), _ = ours(node_model("TreeEnsembleRegressor", [x], [F32], attributes, ML), {"x0": x}, tmp_path)
    assert found.tolist() == [[1.0], [1.0]]
    with pytest.raises(error):
        ours(node_model("TreeEnsembleRegressor", [x], [F32], attributes | change, ML), {"x0": x}, tmp_path)


# ---- linear models and support vectors ----


@pytest.mark.parametrize("post", TRANSFORMS)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.int32])
def test_linear_models(tmp_path: Path, seed: int, post: str, kind: type) -> None:
    random = np.random.default_rng(seed)
    x: Array = random.integers(-3, 4, (13, 3)).astype(kind)
    close: Any = {"rtol": 2e-5, "atol": 2e-6}
    for count in (1, 2, 4):
        shared = {
            "coefficients": random.uniform(-0.1, 0.1, 3 * count).astype(np.float32).tolist(),
            "intercepts": random.uniform(0.4, 0.6, count).astype(np.float32).tolist(),
            "post_transform": post,
        }
        if kind == np.float32:
            check(tmp_path, "LinearRegressor", [x], [F32], shared | {"targets": count}, **close)
        labels = [f"c{i}" for i in range(max(count, 2))]
        if count > 1 or post != "PROBIT":
            check(tmp_path, "LinearClassifier", [x], [TEXT, F32], shared | {"classlabels_strings": labels}, **close)
        numbers = list(range(3, 3 + max(count, 2)))
        if count > 1 or post != "PROBIT":
            check(tmp_path, "LinearClassifier", [x], [I64, F32], shared | {"classlabels_ints": numbers}, **close)


def machine(random: np.random.Generator, classes: int, kernel: str, features: int = 3) -> dict[str, Any]:
    per_class = random.integers(1, 5, classes).tolist()
    total = sum(per_class)
    return {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.2, 3.0],
        "support_vectors": random.normal(size=total * features).astype(np.float32).tolist(),
        "vectors_per_class": per_class,
        "coefficients": random.normal(size=(classes - 1) * total).astype(np.float32).tolist(),
        "rho": random.normal(size=classes * (classes - 1) // 2).astype(np.float32).tolist(),
        "classlabels_ints": list(range(4, 4 + classes)),
    }


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("likely", [False, True])
def test_support_vectors(tmp_path: Path, seed: int, kernel: str, classes: int, likely: bool) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(12, 3)).astype(np.float32)
    pairs = classes * (classes - 1) // 2
    for post in TRANSFORMS[:4]:
        attributes = machine(random, classes, kernel) | {"post_transform": post}
        if likely:
            attributes |= {name: random.normal(size=pairs).astype(np.float32).tolist() for name in ("prob_a", "prob_b")}
        check(tmp_path, "SVMClassifier", [x], [I64, F32], attributes, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_planes(tmp_path: Path, seed: int, classes: int, low: float) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(12, 3)).astype(np.float32)
    attributes = {
        "kernel_type": "RBF",  # without vectors it is linear whatever this says
        "kernel_params": [0.3, 0.2, 3.0],
        "coefficients": random.uniform(low, 1.0, 3 * classes).astype(np.float32).tolist(),
        "rho": [0.25],
        "classlabels_strings": ["x", "y", "z"][:classes],
    }
    check(tmp_path, "SVMClassifier", [x], [TEXT, F32], attributes)


@pytest.mark.parametrize(("weights", "limit"), [([1.0, 0.5], 0.5), ([1.0, -0.5], 0.0)])
def test_the_score_at_which_the_second_of_two_planes_wins(tmp_path: Path, weights: list[float], limit: float) -> None:
    x = np.array([[limit], [limit + 2**-20], [limit - 2**-20]], np.float32)
    attributes = {"coefficients": weights, "rho": [0.0], "kernel_params": [0.0, 0.0, 1.0], "classlabels_ints": [3, 4]}
    check(tmp_path, "SVMClassifier", [x], [I64, F32], attributes)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vector_regressor(tmp_path: Path, seed: int, kernel: str, one_class: int) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(12, 3)).astype(np.float32)
    for count in (0, 5):
        attributes = {
            "kernel_type": kernel,
            "kernel_params": [0.3, 0.2, 2.0],
            "support_vectors": random.normal(size=count * 3).astype(np.float32).tolist(),
            "n_supports": count,
            "coefficients": random.normal(size=count or 3).astype(np.float32).tolist(),
            "rho": [0.1],
            "one_class": one_class,
        }
        if not count:
            del attributes["support_vectors"]
        check(tmp_path, "SVMRegressor", [x], [F32], attributes, rtol=1e-4, atol=1e-5)


# ---- features ----


def test_scaler_normalizer_binarizer(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(-3, 4, (9, 4)).astype(np.float32)
    x[2] = 0
    for kind in (np.float32, np.float64, np.int64, np.int32):
        given = x.astype(kind)
        for offset, scale in (([0.5], [2.0]), ([1.0, 2.0, 3.0, 4.0], [0.5, 0.25, -1.0, 3.0])):
            check(tmp_path, "Scaler", [given], [F32], {"offset": offset, "scale": scale})
        for norm in ("MAX", "L1", "L2"):
            check(tmp_path, "Normalizer", [given], [F32], {"norm": norm})
    check(tmp_path, "Binarizer", [x], [F32], {"threshold": 0.5})


def test_imputer(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(0, 3, (9, 3)).astype(np.float32)
    x[random.random(x.shape) < 0.3] = np.nan
    for values in ([7.0], [7.0, 8.0, 9.0]):
        for lost in (float("nan"), 1.0):
            check(tmp_path, "Imputer", [x], [F32], {"imputed_value_floats": values, "replaced_value_float": lost})
    whole = np.nan_to_num(x).astype(np.int64)
    check(tmp_path, "Imputer", [whole], [I64], {"imputed_value_int64s": [5, 6, 7], "replaced_value_int64": 2})


def test_array_feature_extractor(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    for sizes in ((5,), (3, 5), (2, 3, 5)):
        x = random.normal(size=sizes).astype(np.float32)
        for places in (np.array([3]), np.array([[4, 0, 1]]), np.array([[1], [2]])):
            model = node_model("ArrayFeatureExtractor", [x, places], [F32], {}, ML, symbolic=[(0,)])
            given = {"x0": x, "x1": places}
            same(ours(model, given, tmp_path)[0], theirs(model, given))


def test_labels_picked_from_text(tmp_path: Path) -> None:
    words, places = np.array(["no", "yes", "maybe"], object), np.array([2, 0, 0, 1])
    model = node_model("ArrayFeatureExtractor", [words, places], [TEXT], {}, ML, symbolic=[(), (0,)], constant=(0,))
    found, notes = ours(model, {"x1": places}, tmp_path)
    same(found, theirs(model, {"x1": places}))
    assert notes[0]["smelt.labels"] == ("no", "yes", "maybe")


def test_feature_vectorizer(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(4, 2)).astype(np.float32), random.integers(9, size=(4, 3))
    single = random.normal(size=(4, 1))
    for widths in ([2, 2, 1], [1, 2, 1], [4, 2, 1]):
        # Integers and floats cannot meet in one node: T1 is one type.
        check(tmp_path, "FeatureVectorizer", [x, x, x], [F32], {"inputdimensions": widths})
    check(tmp_path, "FeatureVectorizer", [y], [F32], {"inputdimensions": [3]})
    check(tmp_path, "FeatureVectorizer", [single], [F32], {"inputdimensions": [1]})


def test_one_hot_encoder(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    for kind in (np.int64, np.float32, np.float64):
        for sizes in ((7,), (4, 3)):
            x = random.integers(0, 6, sizes).astype(kind)
            check(tmp_path, "OneHotEncoder", [x], [F32], {"cats_int64s": [3, 0, 5], "zeros": 1})


def test_one_hot_encoder_of_text(tmp_path: Path) -> None:
    x = np.array(["a", "b", "?", "a"], object)
    model = node_model("OneHotEncoder", [x], [F32], {"cats_strings": ["b", "a"], "zeros": 1}, ML)
    with pytest.raises(StaticError) as caught:
        ours(model, {}, tmp_path)
    assert caught.value.inputs == ("x0",)
    same(ours(model, {}, tmp_path, {"x0": x})[0], theirs(model, {"x0": x}))


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_label_encoder_of_numbers(tmp_path: Path, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    keys = random.choice(100, count, replace=False) - 50
    x = random.integers(-60, 60, (30, 2))
    x[:count, 0] = keys[:30]
    values = random.normal(size=count).astype(np.float32).tolist()
    check(tmp_path, "LabelEncoder", [x], [F32], {"keys_int64s": keys.tolist(), "values_floats": values}, 2)
    floats = {"keys_floats": (keys / 4).tolist(), "values_int64s": keys.tolist(), "default_int64": 1000}
    check(tmp_path, "LabelEncoder", [(x / 4).astype(np.float32)], [I64], floats, 2)
    words = {"keys_int64s": keys.tolist(), "values_strings": [f"w{key}" for key in keys], "default_string": "none"}
    check(tmp_path, "LabelEncoder", [x], [TEXT], words, 2)


def test_label_encoder_of_nan(tmp_path: Path) -> None:
    x = np.array([1.0, np.nan, 2.0, -np.inf], np.float32)
    attributes = {"keys_floats": [1.0, float("nan"), -np.inf], "values_floats": [4.0, 5.0, 6.0], "default_float": 9.0}
    check(tmp_path, "LabelEncoder", [x], [F32], attributes, 4)
    check(tmp_path, "LabelEncoder", [x], [F32], attributes, 2)


def test_label_encoder_of_tensors(tmp_path: Path) -> None:
    made = onnx.numpy_helper.from_array
    x = np.array([[3.0, 1.0], [7.0, 1.0]], np.float64)
    attributes = {
        "keys_tensor": made(np.array([1.0, 3.0], np.float64)),
        "values_tensor": made(np.array([10.5, 30.5], np.float64)),
        "default_tensor": made(np.array([-1.0], np.float64)),
    }
    check(tmp_path, "LabelEncoder", [x], [F64], attributes, 4)


def test_last_of_equal_keys(tmp_path: Path) -> None:
    """The standard's word from opset 4 on; onnxruntime takes the first."""
    x = np.array([1, 2, 1], np.int64)
    attributes = {"keys_int64s": [1, 2, 1], "values_int64s": [10, 20, 30]}
    model = node_model("LabelEncoder", [x], [I64], attributes, ML, {ML: 4})
    assert ours(model, {"x0": x}, tmp_path)[0][0].tolist() == [30, 20, 30]


def test_category_mapper_and_the_first_label_encoder(tmp_path: Path) -> None:
    x, text = np.array([[3, 9], [1, 3]]), np.array(["b", "?", "a"], object)
    mapper = {"cats_int64s": [3, 1], "cats_strings": ["a", "b"], "default_int64": -7, "default_string": "?"}
    check(tmp_path, "CategoryMapper", [x], [TEXT], mapper)
    model = node_model("CategoryMapper", [text], [I64], mapper, ML)
    same(ours(model, {}, tmp_path, {"x0": text})[0], theirs(model, {"x0": text}))
    encoder = {"classes_strings": ["a", "b"], "default_int64": -7, "default_string": "?"}
    check(tmp_path, "LabelEncoder", [x - 1], [TEXT], encoder, 1)


def test_maps(tmp_path: Path, seed: int) -> None:
    x = np.random.default_rng(seed).random((4, 3)).astype(np.float32)
    for keys in ({"classlabels_strings": ["a", "b", "c"]}, {"classlabels_int64s": [5, 6, 7]}):
        model = node_model("ZipMap", [x], [F32], keys, ML, symbolic=[(0,)])
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name="y0"))
        (found,), notes = ours(model, {"x0": x}, tmp_path)
        names = [key.value if isinstance(key, Int) else key for key in notes[0]["smelt.keys"]]
        assert [dict(zip(names, row, strict=True)) for row in found] == theirs(model, {"x0": x})[0]
    with pytest.raises(ShapeError):
        ours(node_model("ZipMap", [x], [F32], {"classlabels_int64s": [5, 6]}, ML), {"x0": x}, tmp_path)
    for op in ("DictVectorizer", "CastMap"):
        with pytest.raises(UnsupportedError, match="map"):
            ours(node_model(op, [x], [F32], {}, ML), {"x0": x}, tmp_path)


def test_labels_move_with_their_indices(tmp_path: Path) -> None:
    """Reshape and Cast behind a classifier, as converters write them; arithmetic on labels is refused."""
    from onnx import helper

    def model(*behind: Any) -> Any:
        first = helper.make_node(
            "LabelEncoder",
            ["x"],
            ["a"],
            domain=ML,
            keys_int64s=[0, 1],
            values_strings=["no", "yes"],
            default_string="?",
        )
        port = helper.make_tensor_value_info("x", I64, ["n", 1])
        shape = onnx.numpy_helper.from_array(np.array([-1]), "shape")
        result = helper.make_value_info("z", helper.make_tensor_type_proto(TEXT, None))
        graph = helper.make_graph([first, *behind], "g", [port], [result], [shape])
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    x = np.array([[1], [0], [5]])
    moved = model(helper.make_node("Reshape", ["a", "shape"], ["b"]), helper.make_node("Identity", ["b"], ["z"]))
    same(ours(moved, {"x": x}, tmp_path)[0], theirs(moved, {"x": x}))
    with pytest.raises(UnsupportedError, match="input 'A' must be a tensor"):
        ours(model(helper.make_node("Add", ["a", "a"], ["z"])), {"x": x}, tmp_path)


# ---- pipelines ----


def pipelines() -> dict[str, Any]:
    """Estimators by name, each with the kind of target it is for."""
    pytest.importorskip("sklearn")
    from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network, pipeline, svm, tree
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import Binarizer, Normalizer, StandardScaler

    steady = {"random_state": 0}
    return {
        "logistic": (linear_model.LogisticRegression(max_iter=300), "names"),
        "logistic two": (linear_model.LogisticRegression(max_iter=300), "two"),
        "forest": (ensemble.RandomForestClassifier(6, max_depth=5, **steady), "names"),
        "forest two": (ensemble.RandomForestClassifier(6, max_depth=5, **steady), "two"),
        "boosting": (ensemble.GradientBoostingClassifier(n_estimators=4, **steady), "names"),
        "boosting two": (ensemble.GradientBoostingClassifier(n_estimators=4, **steady), "two"),
        "tree": (tree.DecisionTreeClassifier(**steady), "numbers"),
        "vectors": (svm.SVC(), "numbers"),
        "vectors two": (svm.SVC(), "two"),
        "planes": (svm.LinearSVC(), "names"),
        "network": (neural_network.MLPClassifier((5,), max_iter=30, **steady), "names"),
        "network two": (neural_network.MLPClassifier((5,), max_iter=30, **steady), "two"),
        "bayes": (naive_bayes.GaussianNB(), "names"),
        "neighbours": (neighbors.KNeighborsClassifier(), "names"),
        "bagging": (ensemble.BaggingClassifier(n_estimators=3, **steady), "names"),
        "adaboost": (ensemble.AdaBoostClassifier(n_estimators=3, **steady), "names"),
        "prepared": (
            pipeline.make_pipeline(
                SimpleImputer(), StandardScaler(), Normalizer(), linear_model.LogisticRegression(max_iter=300)
            ),
            "names",
        ),
        "binarized": (
            pipeline.make_pipeline(Binarizer(threshold=2.0), tree.DecisionTreeClassifier(**steady)),
            "numbers",
        ),
        "forest regressor": (ensemble.RandomForestRegressor(5, max_depth=6, **steady), "regress"),
        "extra trees": (ensemble.ExtraTreesRegressor(4, max_depth=6, **steady), "regress two"),
        "boosting regressor": (ensemble.GradientBoostingRegressor(n_estimators=6, **steady), "regress"),
        "vector regressor": (svm.SVR(), "regress"),
        "ridge": (linear_model.Ridge(), "regress two"),
        "isolation": (ensemble.IsolationForest(n_estimators=4, **steady), "numbers"),
        "one class": (svm.OneClassSVM(), "numbers"),
    }


NAMES = (
    "logistic", "logistic two", "forest", "forest two", "boosting", "boosting two", "tree", "vectors", "vectors two",
    "planes", "network", "network two", "bayes", "neighbours", "bagging", "adaboost", "prepared", "binarized",
    "forest regressor", "extra trees", "boosting regressor", "vector regressor", "ridge", "isolation", "one class",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_pipelines(tmp_path: Path, seed: int, name: str) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.datasets import load_iris

    random = np.random.default_rng(seed)
    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    estimator, kind = pipelines()[name]
    targets = {
        "names": np.array(["setosa", "versicolor", "virginica"])[y],
        "two": (y > 0).astype(np.int64),
        "numbers": y,
        "regress": x[:, 0] * 2,
        "regress two": x[:, :2],
    }
    estimator.fit(x, targets[kind])
    model = skl2onnx.to_onnx(estimator, x[:1], target_opset={"": 18, ML: 3})
    (port,) = model.graph.input
    for rows in (1, 11):
        given = x[random.choice(len(x), rows)] + random.normal(size=(rows, 4)).astype(np.float32) * 0.05
        found, notes = ours(model, {port.name: given}, tmp_path)
        expected = theirs(model, {port.name: given})
        for i, note in enumerate(notes):
            if "smelt.keys" in note:
                keys = [key.value if isinstance(key, Int) else key for key in note["smelt.keys"]]
                expected[i] = np.array([[row[key] for key in keys] for row in expected[i]], np.float32)
        same(found, expected, rtol=5e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("given", "lists"),
    [([1, 2, np.nan, 5], [[1, 2], [5, np.nan]]), ([1, np.nan, 5, np.nan], [[1], [5]]), ([np.nan, 5], [[np.nan], [5]]),
     ([1, np.nan], None), ([1, 2], None)],
)  # fmt: skip
def test_lists_of_members_end_with_a_nan_but_the_last(given: list[float], lists: list[list[float]] | None) -> None:
    graph: Any = SimpleNamespace(numbers=lambda values, what: np.array(values))
    modes = np.array([0, trees._MEMBER, 2, trees._MEMBER])
    values: Any = given
    if lists is None:
        with pytest.raises(ParseError, match="'membership_values'") as caught:
            trees._members(graph, values, modes, "TreeEnsemble")
        assert caught.value.expected == "2 lists"
        return
    found = trees._members(graph, values, modes, "TreeEnsemble")
    assert found is not None
    np.testing.assert_array_equal(found[[1, 3]], np.array(lists))
    assert np.isnan(found[[0, 2]]).all()
