"""Ensembles of trees (`ai.onnx.ml`): all trees of all rows walk down together, one level a step.

Attributes become a `Forest`: tables by node, in which a leaf leads to itself, and weights by leaf. The program looks
nodes up in these tables as often as the deepest tree is deep, then joins the weights of the leaves it has reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from smelt.dtype import Array, dtype, f32, f64, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.build import RegionBuilder
from smelt.ir.core import Value
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor
from smelt.read.onnx.ops.control import inner_graph, while_loop
from smelt.read.onnx.ops.scores import (
    ML,
    TRANSFORMS,
    best_class,
    both_classes,
    check_transform,
    flag_above,
    labels_of,
    pick_label,
    rows_of,
    table,
    transform_scores,
)
from smelt.read.onnx.registry import onnx_op

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_DIRECTIONS = ("LE", "LT", "GE", "GT", "EQ", "NE")
_MEMBER = 6
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")  # in the order of TreeEnsemble's numbers
_MOST_UNROLLED = 48  # levels; deeper trees get a loop
_MOST_DENSE = 1 << 20  # elements of a table of leaves by targets


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees as tables. Nodes with a test come first, leaves after them; a place is a number of either."""

    feature: Array  # [tests]
    split: Array  # [tests]
    mode: Array  # [tests]
    yes: Array  # [tests], places
    no: Array  # [tests], places
    nan_yes: Array  # [tests]
    members: Array | None  # [tests, most], filled up with nan
    roots: Array  # [trees], places
    leaf: Array  # [weights], the leaf that a weight belongs to
    target: Array  # [weights]
    weight: Array  # [weights]
    leaves: int
    targets: int

    @property
    def tests(self) -> int:
        return len(self.feature)


def _check(forest: Forest, what: str) -> int:
    """The depth of the deepest tree; all places exist and no tree leads back to itself."""
    places = forest.tests + forest.leaves
    for name, array, bound in (
        ("tree_roots", forest.roots, places),
        ("nodes_truenodeids", forest.yes, places),
        ("nodes_falsenodeids", forest.no, places),
        ("the target of a weight", forest.target, forest.targets),
        ("the leaf of a weight", forest.leaf, forest.leaves),
        ("nodes_featureids", forest.feature, 1 << 31),
    ):
        if array.size and (array.min() < 0 or array.max() >= bound):
            raise ParseError(f"{what}: {name} is out of range", expected=f"0 to {bound - 1}", got=int(array.max()))
    if not forest.roots.size:
        raise ParseError(f"{what}: no tree")
    level, depth = np.unique(forest.roots), 0
    while True:
        level = level[level < forest.tests]
        if not level.size:
            return depth
        depth += 1
        if depth > forest.tests:
            raise ParseError(f"{what}: a tree leads back to itself")
        level = np.unique(np.concatenate([forest.yes[level], forest.no[level]]))


# ---- the walk ----


def _find_leaves(g: Graph, X: Value, forest: Forest, what: str) -> Value:
    """The leaf [batch, trees] that each row ends at in each tree."""
    depth = _check(forest, what)
    rows = rows_of(g, X, what)
    batch, features = rows.shape.sizes
    most = int(forest.feature.max(initial=0))
    if isinstance(features, int) and most >= features:
        raise ShapeError(
            f"{what}: a test of a feature that the input has not", expected=f"at most {features}", got=most
        )
    wide = f64 if f64 in (rows.shape.element, dtype(forest.split.dtype)) else f32
    flat = g.reshape(g.convert(rows, wide), (batch * features,))
    trees = (batch, len(forest.roots))
    first = g.binary("multiply", g.iota(i64, trees, 0), g.size(features))
    at = g.broadcast_in_dim(table(g, forest.roots, "roots"), trees, (1,))
    held = _tables(g, forest, wide.numpy)
    if depth <= _MOST_UNROLLED:
        for _ in range(depth):
            at = _step(g, flat, first, at, forest, held)
    else:
        at = _loop(g, flat, first, at, forest, held, depth)
    return g.plus(at, -forest.tests)


def _tables(g: Graph, forest: Forest, wide: np.dtype[np.generic]) -> dict[str, Value]:
    """The tests of nodes, by position. Leaves have an arbitrary test, and lead to themselves."""
    own = np.arange(forest.tests, forest.tests + forest.leaves)
    pad = (0, forest.leaves)
    tables = {
        "feature": np.pad(forest.feature, pad),
        "split": np.pad(forest.split.astype(wide), pad),
        "yes": np.concatenate([forest.yes, own]),
        "no": np.concatenate([forest.no, own]),
    }
    if len(set(forest.mode.tolist())) > 1:
        tables["mode"] = np.pad(forest.mode, pad)
    if forest.nan_yes.any():
        tables["nan_yes"] = np.pad(forest.nan_yes, pad)
    if forest.members is not None:
        tables["members"] = np.pad(forest.members.astype(wide), (pad, (0, 0)), constant_values=np.nan)
    return {name: table(g, array, name) for name, array in tables.items()}


def _loop(g: Graph, flat: Value, first: Value, at: Value, forest: Forest, held: dict[str, Value], depth: int) -> Value:
    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        inner = inner_graph(g, r, args)
        return [inner.plus(args[0], 1), _step(inner, flat, first, args[1], forest, held)]

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        return [r.compare(args[0], r.constant(depth, i64), comparison_direction="LT")]

    return while_loop(g, [g.scalar(0, i64), at], test, iterate)[1]


def _step(g: Graph, flat: Value, first: Value, at: Value, forest: Forest, held: dict[str, Value]) -> Value:
    """From each place to the next. A value that is nan goes where its node says."""
    x = g.take(flat, g.binary("add", first, g.take(held["feature"], at, 0)), 0)
    split = g.take(held["split"], at, 0)
    goes: Value | None = None
    mode = g.take(held["mode"], at, 0) if "mode" in held else None
    for kind in sorted(set(forest.mode.tolist())):
        answer = _member(g, x, at, held) if kind == _MEMBER else g.compare(x, split, _DIRECTIONS[kind])
        if goes is None or mode is None:
            goes = answer
        else:
            goes = g.select(g.compare(mode, g.like(kind, mode), "EQ"), answer, goes)
    assert goes is not None
    if "nan_yes" in held:
        lost = g.binary("and", g.take(held["nan_yes"], at, 0), g.compare(x, x, "NE"))
        goes = g.binary("or", goes, lost)
    return g.select(goes, g.take(held["yes"], at, 0), g.take(held["no"], at, 0))


def _member(g: Graph, x: Value, at: Value, held: dict[str, Value]) -> Value:
    members = g.take(held["members"], at, 0)  # [batch, trees, most]
    same = g.compare(g.broadcast_in_dim(x, members.shape.sizes, (0, 1)), members, "EQ")
    return g.reduce(same, (2,), "or", False)


# ---- the sum ----


def _aggregate(g: Graph, reached: Value, forest: Forest, aggregate: str) -> Value:
    """[batch, targets]: the weights of all trees, joined. A target that no tree has a weight for gets 0."""
    extreme = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate)
    single = np.bincount(forest.leaf, minlength=forest.leaves).max(initial=0) <= 1
    if forest.targets > 1 and single and forest.leaves * forest.targets > _MOST_DENSE:
        weights, scored = _spread(g, reached, forest, extreme)
    else:
        weights, scored = _looked_up(g, reached, forest, extreme)
    match aggregate:
        case "MIN" | "MAX":
            total = g.min(weights, (1,)) if aggregate == "MIN" else g.max(weights, (1,))
            if scored is not None:
                total = g.select(g.reduce(scored, (1,), "or", False), total, g.like(0, total))
            return total
        case _:
            total = g.sum(weights, (1,))
            count = g.like(len(forest.roots), total)
            return g.binary("divide", total, count) if aggregate == "AVERAGE" else total


def _looked_up(g: Graph, reached: Value, forest: Forest, extreme: float | None) -> tuple[Value, Value | None]:
    """The weights [batch, trees, targets], and which of them there are unless it is all."""
    sizes = (forest.leaves, forest.targets)
    dense = np.full(sizes, 0.0 if extreme is None else extreme, forest.weight.dtype)
    there = np.zeros(sizes, np.bool_)
    join = {None: np.add, np.inf: np.minimum, -np.inf: np.maximum}[extreme]
    join.at(dense, (forest.leaf, forest.target), forest.weight)
    there[forest.leaf, forest.target] = True
    weights = g.take(table(g, dense, "weights"), reached, 0)
    if extreme is None or there.all():
        return weights, None
    return weights, g.take(table(g, there, "scored"), reached, 0)


def _spread(g: Graph, reached: Value, forest: Forest, extreme: float | None) -> tuple[Value, Value | None]:
    """The same where each leaf has one target, without a table of leaves by targets."""
    weight, target = np.zeros(forest.leaves, forest.weight.dtype), np.full(forest.leaves, -1)
    weight[forest.leaf], target[forest.leaf] = forest.weight, forest.target
    sizes = (*reached.shape.sizes, forest.targets)
    wanted = g.broadcast_in_dim(g.take(table(g, target, "targets"), reached, 0), sizes, (0, 1))
    scored = g.compare(wanted, g.iota(i64, sizes, 2), "EQ")
    value = g.broadcast_in_dim(g.take(table(g, weight, "weights"), reached, 0), sizes, (0, 1))
    return g.select(scored, value, g.like(0.0 if extreme is None else extreme, value)), scored


def _scores(g: Graph, X: Value, forest: Forest, aggregate: str, base: Array, what: str) -> Value:
    if aggregate not in _AGGREGATES:
        raise ParseError(f"{what}: attribute 'aggregate_function'", expected=", ".join(_AGGREGATES), got=aggregate)
    total = _aggregate(g, _find_leaves(g, X, forest, what), forest, aggregate)
    if not base.size:
        return total
    if base.size != forest.targets:
        raise UnsupportedError(f"{what}: attribute 'base_values'", expected=f"{forest.targets} numbers", got=base.size)
    return g.binary("add", total, table(g, base.astype(forest.weight.dtype), "base"))


# ---- trees whose nodes are named by tree and number ----


def _numbers(g: Graph, plain: Sequence[float], tensor: Tensor | None, what: str) -> Array:
    """An attribute that is either a list of floats or a tensor."""
    if plain and tensor is not None:
        raise ParseError(f"{what}: the same attribute as a list and as a tensor")
    return np.array(plain, np.float32) if tensor is None else g.numbers(tensor, what).reshape(-1)


class NodeAttributes(TypedDict, total=False):
    """What operators say about the nodes of their trees, a column each."""

    nodes_falsenodeids: tuple[int, ...]
    nodes_featureids: tuple[int, ...]
    nodes_hitrates: tuple[float, ...]
    nodes_hitrates_as_tensor: Tensor
    nodes_missing_value_tracks_true: tuple[int, ...]
    nodes_modes: tuple[str, ...]
    nodes_nodeids: tuple[int, ...]
    nodes_treeids: tuple[int, ...]
    nodes_truenodeids: tuple[int, ...]
    nodes_values: tuple[float, ...]
    nodes_values_as_tensor: Tensor


_COLUMNS = (
    *("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids"),
    "nodes_missing_value_tracks_true",
)


def _named_forest(
    g: Graph,
    given: NodeAttributes,
    weights: dict[str, Sequence[int]],
    weight: Array,
    targets: int,
    what: str,
) -> Forest:
    """The tests of trees whose nodes have numbers; the first node of each tree is its root."""
    nodes: dict[str, Sequence[int]] = {name: given.get(name, ()) for name in _COLUMNS}  # type: ignore[misc]
    modes = given.get("nodes_modes", ())
    splits = _numbers(g, given.get("nodes_values", ()), given.get("nodes_values_as_tensor"), what)
    count = len(modes)
    for name, column in (*nodes.items(), ("nodes_values", splits)):
        if len(column) != count and (len(column) or name != "nodes_missing_value_tracks_true"):
            raise ParseError(f"{what}: attribute {name!r} has another length", expected=count, got=len(column))
    for name, column in weights.items():
        if len(column) != len(weight):
            raise ParseError(f"{what}: attribute {name!r} has another length", expected=len(weight), got=len(column))
    unknown = set(modes) - {*_MODES[:_MEMBER], "LEAF"}
    if unknown:
        raise ParseError(f"{what}: attribute 'nodes_modes'", expected=", ".join(_MODES[:_MEMBER]), got=unknown.pop())
    leaf = np.array([mode == "LEAF" for mode in modes], np.bool_)
    place = np.where(leaf, np.cumsum(leaf) - 1 + np.count_nonzero(~leaf), np.cumsum(~leaf) - 1)
    trees = list(nodes["nodes_treeids"])
    index = {key: i for i, key in enumerate(zip(trees, nodes["nodes_nodeids"], strict=True))}
    if len(index) != count:
        raise ParseError(f"{what}: two nodes of one tree have the same number")
    tests = np.flatnonzero(~leaf)

    def children(name: str) -> Array:
        column = nodes[name]
        found = [index.get((trees[i], column[i]), -1) for i in tests.tolist()]
        if -1 in found:
            raise ParseError(f"{what}: attribute {name!r} leads to a node that does not exist")
        return place[np.array(found, np.int64)].astype(np.int64)

    tree_column, node_column, target_column = weights.values()
    owners = np.array([index.get(key, -1) for key in zip(tree_column, node_column, strict=True)], np.int64)
    if (owners < 0).any():
        raise ParseError(f"{what}: a weight of a node that does not exist")
    kept = leaf[owners] if count else np.zeros(0, np.bool_)  # old converters gave weights to other nodes too
    first: dict[int, int] = {}
    for i, tree in enumerate(trees):
        first.setdefault(tree, i)
    tracks = nodes["nodes_missing_value_tracks_true"]
    forest = Forest(
        feature=np.array(nodes["nodes_featureids"], np.int64)[tests],
        split=splits[tests],
        mode=np.array([_MODES.index(modes[i]) for i in tests.tolist()], np.int64),
        yes=children("nodes_truenodeids"),
        no=children("nodes_falsenodeids"),
        nan_yes=np.array(tracks or (0,) * count, np.int64)[tests] == 1,
        members=None,
        roots=place[np.array(list(first.values()), np.int64)].astype(np.int64),
        leaf=place[owners[kept]] - len(tests),
        target=np.array(target_column, np.int64)[kept],
        weight=weight[kept],
        leaves=int(np.count_nonzero(leaf)),
        targets=targets,
    )
    if len(np.unique(forest.leaf)) != forest.leaves:
        raise ParseError(f"{what}: a leaf has no weight")
    return forest


@onnx_op("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    g: Graph,
    X: Value,
    *,
    aggregate_function: str = "SUM",
    base_values: tuple[float, ...] = (),
    base_values_as_tensor: Tensor | None = None,
    n_targets: int = 1,
    post_transform: str = "NONE",
    target_ids: tuple[int, ...] = (),
    target_nodeids: tuple[int, ...] = (),
    target_treeids: tuple[int, ...] = (),
    target_weights: tuple[float, ...] = (),
    target_weights_as_tensor: Tensor | None = None,
    **nodes: Unpack[NodeAttributes],
) -> Value:
    what = "TreeEnsembleRegressor"
    check_transform(post_transform, what)
    forest = _named_forest(
        g,
        nodes,
        {"target_treeids": target_treeids, "target_nodeids": target_nodeids, "target_ids": target_ids},
        _numbers(g, target_weights, target_weights_as_tensor, what),
        n_targets,
        what,
    )
    base = _numbers(g, base_values, base_values_as_tensor, what)
    return g.convert(transform_scores(g, _scores(g, X, forest, aggregate_function, base, what), post_transform), f32)


@onnx_op("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    g: Graph,
    X: Value,
    *,
    base_values: tuple[float, ...] = (),
    base_values_as_tensor: Tensor | None = None,
    class_ids: tuple[int, ...] = (),
    class_nodeids: tuple[int, ...] = (),
    class_treeids: tuple[int, ...] = (),
    class_weights: tuple[float, ...] = (),
    class_weights_as_tensor: Tensor | None = None,
    classlabels_int64s: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    post_transform: str = "NONE",
    **nodes: Unpack[NodeAttributes],
) -> tuple[Item, Value]:
    what = "TreeEnsembleClassifier"
    check_transform(post_transform, what)
    labels = labels_of(classlabels_int64s, classlabels_strings, what)
    forest = _named_forest(
        g,
        nodes,
        {"class_treeids": class_treeids, "class_nodeids": class_nodeids, "class_ids": class_ids},
        _numbers(g, class_weights, class_weights_as_tensor, what),
        len(labels),
        what,
    )
    base = _numbers(g, base_values, base_values_as_tensor, what)
    voted = set(class_ids)
    if len(labels) == 2 and len(voted) == 1:
        place, scores = _binary(g, X, forest, base, post_transform, voted.pop(), what)
    else:
        raw = _scores(g, X, forest, "SUM", base, what)
        if len(labels) == 1:
            if isinstance(labels[0], str):
                raise UnsupportedError(f"{what}: one class with a text label", got=labels[0])
            labels, place = (0, 1), flag_above(g, raw, 0.0)
        else:
            place = best_class(g, raw)
        scores = transform_scores(g, raw, post_transform)
    return pick_label(g, place, labels), g.convert(scores, f32)


def _binary(g: Graph, X: Value, forest: Forest, base: Array, post: str, voted: int, what: str) -> tuple[Value, Value]:
    """Two classes, of which the trees vote for one alone: the place of the label, and the scores of both."""
    positive = bool((forest.weight >= 0).all())
    total = _scores(g, X, forest, "SUM", np.zeros(0), what)
    score = g.slice_axis(total, 1, voted, voted + 1)
    offsets = [float(each) for each in base]
    if len(offsets) > 2 or (len(offsets) == 1 and voted == 1):
        raise UnsupportedError(f"{what}: attribute 'base_values' of trees for one of two classes", got=offsets)
    if offsets:
        score = g.plus(score, offsets[voted] if len(offsets) == 2 else offsets[0])
    place = flag_above(g, score, 0.5 if positive else 0.0)
    if voted == 0 and len(offsets) < 2:
        return place, both_classes(g, score, post, positive)
    other = g.like(offsets[1 - voted] if offsets else 0.0, score)
    return place, transform_scores(g, g.concat([score, other] if voted == 0 else [other, score], 1), post)


# ---- trees whose nodes are places ----


@onnx_op("TreeEnsemble", since=5, domain=ML)
def tree_ensemble(
    g: Graph,
    X: Value,
    *,
    aggregate_function: int = 1,
    leaf_targetids: tuple[int, ...],
    leaf_weights: Tensor,
    membership_values: Tensor | None = None,
    n_targets: int | None = None,
    nodes_falseleafs: tuple[int, ...],
    nodes_falsenodeids: tuple[int, ...],
    nodes_featureids: tuple[int, ...],
    nodes_hitrates: Tensor | None = None,
    nodes_missing_value_tracks_true: tuple[int, ...] = (),
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_trueleafs: tuple[int, ...],
    nodes_truenodeids: tuple[int, ...],
    post_transform: int = 0,
    tree_roots: tuple[int, ...],
) -> Value:
    what = "TreeEnsemble"
    tests, leaves = len(nodes_featureids), len(leaf_targetids)
    modes = g.numbers(nodes_modes, "nodes_modes").reshape(-1).astype(np.int64)
    splits = g.numbers(nodes_splits, "nodes_splits").reshape(-1)
    weight = g.numbers(leaf_weights, "leaf_weights").reshape(-1)
    for name, column, length in (
        ("nodes_modes", modes, tests),
        ("nodes_splits", splits, tests),
        ("nodes_truenodeids", nodes_truenodeids, tests),
        ("nodes_trueleafs", nodes_trueleafs, tests),
        ("nodes_falsenodeids", nodes_falsenodeids, tests),
        ("nodes_falseleafs", nodes_falseleafs, tests),
        ("nodes_missing_value_tracks_true", nodes_missing_value_tracks_true or modes, tests),
        ("leaf_weights", weight, leaves),
    ):
        if len(column) != length:
            raise ParseError(f"{what}: attribute {name!r} has another length", expected=length, got=len(column))
    if tests and (modes.min() < 0 or modes.max() > _MEMBER):
        raise ParseError(f"{what}: attribute 'nodes_modes'", expected=f"0 to {_MEMBER}", got=int(modes.max()))
    if not 0 <= aggregate_function < len(_AGGREGATES) or not 0 <= post_transform < len(TRANSFORMS):
        raise ParseError(
            f"{what}: attributes 'aggregate_function' and 'post_transform'",
            expected="0 to 3 and 0 to 4",
            got=[aggregate_function, post_transform],
        )
    small = weight.dtype.itemsize < 4  # half precision is joined in single
    forest = Forest(
        feature=np.array(nodes_featureids, np.int64),
        split=splits.astype(np.float32) if small else splits,
        mode=modes,
        yes=_places(nodes_truenodeids, nodes_trueleafs, tests, what),
        no=_places(nodes_falsenodeids, nodes_falseleafs, tests, what),
        nan_yes=np.array(nodes_missing_value_tracks_true or (0,) * tests, np.int64) != 0,
        members=_members(g, membership_values, modes, what),
        roots=np.array(tree_roots, np.int64),
        leaf=np.arange(leaves),
        target=np.array(leaf_targetids, np.int64),
        weight=weight.astype(np.float32) if small else weight,
        leaves=leaves,
        targets=max(leaf_targetids, default=0) + 1 if n_targets is None else n_targets,
    )
    if len(tree_roots) and max(tree_roots) >= tests:
        raise ParseError(f"{what}: attribute 'tree_roots'", expected=f"0 to {tests - 1}", got=max(tree_roots))
    total = _scores(g, X, forest, _AGGREGATES[aggregate_function], np.zeros(0), what)
    return g.convert(transform_scores(g, total, TRANSFORMS[post_transform]), X.shape.element)


def _places(nodes: Sequence[int], are_leaves: Sequence[int], tests: int, what: str) -> Array:
    found = np.array(nodes, np.int64)
    inner = found[np.array(are_leaves, np.int64) == 0]
    if inner.size and inner.max() >= tests:
        raise ParseError(f"{what}: a node that does not exist", expected=f"0 to {tests - 1}", got=int(inner.max()))
    return found + np.where(np.array(are_leaves, np.int64) == 0, 0, tests)


def _members(g: Graph, values: Tensor | None, modes: Array, what: str) -> Array | None:
    """The values that each membership test accepts, [tests, most], filled up with nan. Lists end with a nan."""
    owners = np.flatnonzero(modes == _MEMBER).tolist()
    if not owners:
        return None
    given = np.zeros(0) if values is None else g.numbers(values, "membership_values").reshape(-1).astype(np.float64)
    ends = np.flatnonzero(np.isnan(given)).tolist()
    if len(ends) < len(owners) and (not given.size or not np.isnan(given[-1])):  # the last list may be open
        ends.append(given.size)
    if len(ends) != len(owners):
        raise ParseError(f"{what}: attribute 'membership_values'", expected=f"{len(owners)} lists", got=len(ends))
    lists = [given[begin:end] for begin, end in zip([0, *(end + 1 for end in ends)], ends, strict=False)]
    rows = np.full((len(modes), max(len(each) for each in lists) or 1), np.nan)
    for owner, each in zip(owners, lists, strict=True):
        rows[owner, : len(each)] = each
    return rows
