"""`smelt diff`: compare every intermediate value of a model between two engines or with a peer.

An ONNX model is compared node by node under its own names, any other program op by op, on the same random inputs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.markup import escape

from smelt.cli.preflight import draw_inputs, read_with_samples, require_readable
from smelt.cli.random_inputs import random_for
from smelt.cli.tables import Column, open_console, print_table
from smelt.dtype import Array, dtype
from smelt.engine import ENGINES
from smelt.engine.signature import signature_of
from smelt.errors import MissingPackageError, SmeltError
from smelt.ir.core import Program, Region
from smelt.model import model_of, read
from smelt.passes.split_prepare import NAME
from smelt.read import onnx as onnx_reader
from smelt.shape import Shape
from smelt.weights import Weights

COLUMNS = (
    Column("value", True),
    Column("made by", True, drop=2),
    Column("type", True, drop=1),
    Column("largest difference"),
    Column("relative"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two arrays of one name; `worst` is the index of the element that differs most."""

    name: str
    made_by: str
    type: str
    largest: float
    relative: float
    worst: tuple[int, ...]
    values: tuple[str, str]
    same: bool


def diff(
    file: Path,
    against: str,
    engine: str,
    sizes: list[str],
    tolerance: float,
    seed: int,
    as_json: bool,
    static: Sequence[str] = (),
    device: str = "auto",
) -> None:
    found = read_with_samples(file, sizes, static)
    with tempfile.TemporaryDirectory() as folder:
        if found is None:
            shown, values = file, {}
            program, weights = read(file)
            program, makers = _every_result(program)
            inputs = random_for(signature_of(program.main), sizes, seed, program)
        else:
            require_readable(found)
            shown, values = _all_outputs(file, Path(folder)), found.static
            makers = _makers(shown)
            program, weights = onnx_reader.read(shown, values, found.shapes)
            inputs = draw_inputs(found, seed)
        ours = model_of(program, weights, device=device, engine=engine)
        left = ours.run(inputs)
        right = _other(against, shown, program, weights, inputs, values)
    pairs = [compare(name, makers.get(name, ""), left[name], right[name], tolerance) for name in left if name in right]
    first = next((each for each in pairs if not each.same), None)
    if as_json:
        record = {"model": str(file), "engine": ours.engine, "against": against, "compared": len(pairs)}
        print(json.dumps(record | {"first": asdict(first) if first else None, "all": [asdict(each) for each in pairs]}))
    else:
        show(file, ours.engine, against, pairs, first)
    if first is not None:
        sys.exit(1)


def compare(name: str, made_by: str, ours: Array, theirs: Array, tolerance: float) -> Difference:
    """Compare two arrays. They are equal if they differ by at most `tolerance`, relative to the largest magnitude."""
    kind = str(Shape.of(dtype(ours.dtype), ours.shape))
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        other = f"{theirs.dtype}{list(theirs.shape)}"
        return Difference(name, made_by, kind, np.inf, np.inf, (), (kind, other), False)
    element = dtype(ours.dtype)
    wide = np.int64 if element.is_integer and element.bits < 64 else element.wide
    a, b = (array.astype(wide) for array in (ours, theirs))
    with np.errstate(all="ignore"):
        apart = _distance(a, b)
    apart = np.where((a == b) | ((a != a) & (b != b)), 0.0, np.where(np.isnan(apart), np.inf, apart))
    if not apart.size:
        return Difference(name, made_by, kind, 0.0, 0.0, (), ("", ""), True)
    worst = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
    finite = [np.abs(x[np.isfinite(x)].astype(np.complex128)) for x in (a, b)]
    scale = max((float(x.max()) for x in finite if x.size), default=0.0)
    largest = float(apart.max())
    relative = largest / scale if scale else largest
    return Difference(
        name, made_by, kind, largest, relative, worst, (str(a[worst]), str(b[worst])), relative <= tolerance
    )


def _distance(a: Array, b: Array) -> Array:
    """|a - b| in f64. The distance of two integers is exact before it is rounded: nothing wraps."""
    if a.dtype.kind == "b":
        return np.asarray(a != b, np.float64)
    if a.dtype.kind in "iu":
        larger, smaller = (x.astype(np.uint64) for x in (np.maximum(a, b), np.minimum(a, b)))
        return np.asarray(larger - smaller, np.float64)  # modulo 2^64, where every distance fits
    return np.asarray(np.abs(a - b), np.float64)


def show(file: Path, engine: str, against: str, found: list[Difference], first: Difference | None) -> None:
    console = open_console()
    worst = sorted(found, key=lambda each: -each.relative)[:8]
    rows = [(each.name, each.made_by, each.type, f"{each.largest:.3g}", f"{each.relative:.3g}") for each in worst]
    console.print(f"{len(found)} values of {file}, {engine} against {against}; the largest differences:")
    print_table(console, COLUMNS, rows)
    if first is None:
        console.print("no value differs by more than the tolerance")
        return
    console.print(
        f"[bold red]first difference[/] {escape(first.name)} made by {escape(first.made_by)} {escape(first.type)}: "
        f"{first.largest:.6g} ({first.relative:.3g} of its scale) at {escape(str(list(first.worst)))}, "
        f"{engine} {first.values[0]}, {against} {first.values[1]}"
    )


def _other(
    against: str,
    path: Path,
    program: Program,
    weights: Weights,
    inputs: Mapping[str, Array],
    static: Mapping[str, Any],
) -> Mapping[str, Array]:
    """The outputs of the peer, which takes compile-time inputs like any other."""
    if against != "onnxruntime":
        known = ["onnxruntime", "auto", *(engine.name for engine in ENGINES)]
        if against not in known:
            remedy = "--against onnxruntime"
            raise SmeltError("unknown engine", expected=", ".join(known), got=against, remedy=remedy)
        return model_of(program, weights, engine=against).run(inputs)
    if path.suffix != ".onnx":
        raise SmeltError("onnxruntime runs ONNX files only", got=path.name, remedy="--against reference")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError("onnxruntime is not installed", remedy="pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {**inputs, **static}), strict=True))


def _all_outputs(file: Path, folder: Path) -> Path:
    """A copy of an ONNX model with every intermediate tensor as an output."""
    import onnx

    model = onnx.load(str(file))
    given = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in given:
                given.add(name)
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    order = {name: i for i, name in enumerate(name for node in model.graph.node for name in node.output)}
    outputs = sorted(model.graph.output, key=lambda output: order.get(output.name, -1))
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    path = folder / "every_value.onnx"
    onnx.save(model, str(path), save_as_external_data=model.ByteSize() > 1 << 30)
    return path


def _makers(path: Path) -> dict[str, str]:
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    return {name: f"{node.op_type} {node.name}".strip() for node in graph.node for name in node.output}


def _every_result(program: Program) -> tuple[Program, dict[str, str]]:
    """A program that returns the value of every op of its entry function."""
    main = program.main
    makers: dict[str, str] = {}
    values, attrs = [], []
    for i, op in enumerate(main.body.ops):
        for j, value in enumerate(op.results):
            if isinstance(value.type, Shape):
                name = f"{value.name or i}" + (f"#{j}" if len(op.results) > 1 else "")
                name = f"{name}@{i}" if name in makers else name
                makers[name] = op.name
                values.append(value)
                attrs.append(MappingProxyType({NAME: name}))
    body = Region(main.args, main.body.ops, tuple(values))
    shown = replace(main, body=body, result_attrs=tuple(attrs))
    return program.replace(shown), makers
