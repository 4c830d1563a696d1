"""How far smelt and onnxruntime are from a float64 run of the same ONNX model, at ten values spread over its depth.

    python tests/real/accuracy.py [MODEL ...] [--engine reference] [--inputs N] [--seed N]

prints a table for the models named (default: every one that can be had), the benchmark networks of SMELT_MODELS
included. A random deep network varies little with its input, so the mean over the inputs is taken off each value
first: what is compared is how an engine follows its input.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import smelt  # noqa: E402
from smelt.dtype import Array  # noqa: E402
from tests import onnx_oracle  # noqa: E402
from tests.real.double import run_in_double  # noqa: E402

Feed = Mapping[str, Array]
VALUES = 10
ELEMENTS = 64
FACTOR = 4.0
STEP = 2.0**-23  # of f32
MASKED = 1e30  # as large as a mask, or infinite
MOVES = frozenset(("Cast", "Concat", "Constant", "Expand", "Flatten", "Gather", "Identity", "Pad")).union(
    ("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)
SHAPES = frozenset(("Shape", "Size"))


@dataclass(frozen=True)
class Figure:
    """The errors of one value: root mean square and largest, ours and onnxruntime's, against the run in double."""

    value: str
    scale: tuple[float, float]
    ours: tuple[float, float]
    theirs: tuple[float, float]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Our error over theirs; infinite where theirs alone is none."""
        return tuple(
            mine / other if other else (np.inf if mine else 0.0)
            for mine, other in zip(self.ours, self.theirs, strict=True)
        )

    @property
    def is_good(self) -> bool:
        pairs = zip(self.ours, self.theirs, self.scale, strict=True)
        return all(mine <= FACTOR * other + STEP * scale for mine, other, scale in pairs)

    @property
    def is_plausible(self) -> bool:
        """Whether onnxruntime is near the truth at all: if not, the truth is in doubt."""
        return self.theirs[0] <= 1e-3 * self.scale[0] + 1e-7  # onnxruntime's logistic is 0 below about 1e-8

    def __str__(self) -> str:
        errors = "  ".join(f"{self.ours[i]:9.2e} {self.theirs[i]:9.2e} {self.ratios[i]:6.2f}" for i in range(2))
        return f"{self.value[-44:]:44}  {self.scale[1]:9.2e}  {errors}"


PAIR = f"{'ours':>9} {'theirs':>9} {'ratio':>6}"
HEADER = f"{'value':44}  {'scale':>9}  {PAIR}  {PAIR}  (root mean square, then largest)"


def measure(
    model: ModelProto, groups: Sequence[Sequence[Feed]], random: np.random.Generator, engine: str = "reference"
) -> list[list[Figure]]:
    """The errors of ten inner values of a model and of its outputs, for each group of feeds of the same sizes."""
    flat = without_branches(model, groups[0][0])
    if flat is not model and len(groups) > 1:  # another group may take another branch
        return [figures for feeds in groups for figures in measure(model, [feeds], random, engine)]
    feeds = [feed for group in groups for feed in group]
    outputs = [output.name for output in model.graph.output]
    names = [name for name in spread(flat, groups, random) if name not in outputs] + outputs
    runs = [
        run_smelt(flat, names, feeds, engine),
        run_onnxruntime(flat, names, feeds),
        run_in_double(flat, names, feeds),
    ]
    if flat is not model:
        whole = run_smelt(model, outputs, feeds, engine)
        names += [f"{name} (whole)" for name in outputs]
        runs = [[[*row, *row[-len(outputs) :]] for row in run] for run in runs]
        runs[0] = [[*row[: -len(outputs)], *last] for row, last in zip(runs[0], whole, strict=True)]
    figures, begin = [], 0
    for group in groups:
        rows = slice(begin, begin + len(group))
        figures.append([figure(name, *([row[i] for row in run[rows]] for run in runs)) for i, name in enumerate(names)])
        begin = rows.stop
    return figures


def figure(name: str, ours: Sequence[Array], theirs: Sequence[Array], truth: Sequence[Array]) -> Figure:
    """The errors of one value over several inputs, its mean over them taken off. What is masked counts for nothing."""
    exact = np.stack(truth).astype(np.float64)
    masked = np.abs(exact) >= MASKED
    usable = ~masked.any(axis=0)
    mean = exact[:, usable].mean(axis=0)
    errors = []
    for run in (ours, theirs):
        assert [array.shape for array in run] == [array.shape for array in truth], f"{name} has other sizes"
        assert all(array.dtype == np.float32 for array in run), f"{name} is {run[0].dtype}"
        given = np.stack(run).astype(np.float64)
        np.testing.assert_allclose(given[masked], exact[masked], rtol=1e-3, err_msg=f"masked part of {name}")
        error = given[:, usable] - given[:, usable].mean(axis=0) - (exact[:, usable] - mean)
        errors.append(_sizes(error))
    return Figure(name, _sizes(exact[:, usable]), *errors)


def _sizes(array: Array) -> tuple[float, float]:
    """Root mean square and largest."""
    return float(np.sqrt(np.mean(array**2))) if array.size else 0.0, float(np.abs(array).max(initial=0))


# ---- which values ----


def spread(model: ModelProto, groups: Sequence[Sequence[Feed]], random: np.random.Generator) -> list[str]:
    """Ten values that are computed in f32 from the inputs, one drawn from each tenth of the graph's length."""
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {port.name: port.type.tensor_type.elem_type for port in inferred.graph.value_info}
    weights = {tensor.name for tensor in model.graph.initializer}
    follows = {port.name for port in model.graph.input} - weights
    found = []
    for node in model.graph.node:
        if node.op_type in SHAPES or not follows.intersection(node.input):
            continue
        follows.update(name for name in node.output if name)
        if node.op_type not in MOVES and types.get(node.output[0]) == TensorProto.FLOAT:
            found.append(node.output[0])
    found = large_enough(model, found, [group[0] for group in groups])
    return [str(random.choice(part)) for part in np.array_split(found, min(VALUES, len(found))) if len(part)]


def large_enough(model: ModelProto, names: Sequence[str], feeds: Sequence[Feed]) -> list[str]:
    """The values with enough elements at every size: over a few, the ratio of two errors is a matter of luck."""
    sized = ModelProto()
    sized.CopyFrom(model)
    sized.graph.node.extend(onnx.helper.make_node("Size", [name], [f"{name} elements"]) for name in names)
    rows = run_onnxruntime(sized, [f"{name} elements" for name in names], feeds)
    return [name for name, *sizes in zip(names, *rows, strict=True) if min(sizes) >= ELEMENTS]


def without_branches(model: ModelProto, feed: Feed) -> ModelProto:
    """The model with each If replaced by the branch that it takes for a feed; the model itself where there is none."""
    while choices := [node for node in model.graph.node if node.op_type == "If"]:
        (taken,) = run_onnxruntime(model, [node.input[0] for node in choices], [feed])
        branches = {node.output[0]: bool(value) for node, value in zip(choices, taken, strict=True)}
        flat = ModelProto()
        flat.CopyFrom(model)
        del flat.graph.node[:]
        for node in model.graph.node:
            if node.op_type == "If":
                flat.graph.node.extend(
                    _branch(flat, node, "then_branch" if branches[node.output[0]] else "else_branch")
                )
            else:
                flat.graph.node.append(node)
        model = flat
    return model


def _branch(flat: ModelProto, node: NodeProto, name: str) -> list[NodeProto]:
    (branch,) = (attribute.g for attribute in node.attribute if attribute.name == name)
    flat.graph.initializer.extend(branch.initializer)
    flat.graph.value_info.extend(branch.value_info)
    ends = zip(branch.output, node.output, strict=True)
    return [*branch.node, *(onnx.helper.make_node("Identity", [inner.name], [outer]) for inner, outer in ends)]


# ---- the engines ----


def with_outputs(model: ModelProto, outputs: Sequence[str]) -> ModelProto:
    """A copy whose outputs are these values."""
    copy = ModelProto()
    copy.CopyFrom(model)
    declared = {port.name: port for port in model.graph.output}
    del copy.graph.output[:]
    copy.graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
    return copy


def run_onnxruntime(model: ModelProto, outputs: Sequence[str], feeds: Sequence[Feed]) -> list[list[Array]]:
    """The named values for each feed, no operator fused or moved."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = with_outputs(model, outputs).SerializeToString()
    session = onnx_oracle.session(data, options)
    return [session.run(list(outputs), dict(feed)) for feed in feeds]


def run_smelt(model: ModelProto, outputs: Sequence[str], feeds: Sequence[Feed], engine: str) -> list[list[Array]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(with_outputs(model, outputs), path)
        loaded = smelt.load(path, engine=engine)
        rows = [loaded.run(feed) for feed in feeds]
        loaded.close()
        return [[row[name] for name in outputs] for row in rows]


# ---- the command ----


def main(argv: Sequence[str] | None = None) -> int:
    from tests.real.zoo import zoo

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--inputs", type=int, help="how many inputs at each size")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    known = zoo()
    bad = 0
    for name in options.models or known:
        began = time.process_time()
        sample = known[name]
        reason = sample.missing()
        if reason is not None:
            print(f"{name}: skipped, {reason}")
            continue
        random = np.random.default_rng(options.seed)
        model = sample.model()
        groups = sample.feeds(random, options.inputs)
        for feeds, figures in zip(groups, measure(model, groups, random, options.engine), strict=True):
            print(f"\n{name} at { ({key: array.shape for key, array in feeds[0].items()}) }\n{HEADER}")
            for each in figures:
                verdict = "" if each.is_good and each.is_plausible else "bad" if each.is_plausible else "truth?"
                bad += bool(verdict)
                print(f"{each}  {verdict}", flush=True)
        print(f"{name}: {time.process_time() - began:.1f} s of processor time")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
