"""Random programs written as ONNX: onnxruntime gives what the reference gives, for every kind of kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest

from smelt.dim import evaluate
from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.ir.core import Program, walk
from smelt.write.onnx import build, to_model
from tests.property.problems import KINDS, Problem, difference, draw

DRAWS = 5  # per test
HAVE_NO_FORM = ("a sort of more than 1024 elements", "a scatter with a computation other than")
TYPES = ("f32", "f64", "i1", *(f"{kind}{bits}" for kind in ("i", "ui") for bits in (8, 16, 32, 64)))


def onnxruntime_takes(program: Program, args: Sequence[Array]) -> bool:
    """Whether it has the element types, no tensor is empty (its Einsum and Conv fail on those), and no product of many
    integers may overflow (it does not wrap them)."""
    sizes: dict[str, int] = {}
    for value, array in zip(program.main.args, args, strict=True):
        known = zip(value.shape.sizes, array.shape, strict=True)
        sizes |= {str(size): number for size, number in known if str(size).isidentifier()}
    ops = list(walk(program.main.body))
    results = [value for op in ops for value in op.results]
    types = {value.shape.element for value in (*program.main.args, *results)}
    counts = [evaluate(size, sizes) for value in results for size in value.shape.sizes]
    products = any(op.regions and any(each.name == "stablehlo.multiply" for each in op.regions[0].ops) for op in ops)
    return (
        all(counts)
        and all(array.size for array in args)
        and all(each.name in TYPES for each in types)
        and not (products and any(each.is_integer for each in types))
    )


def run(program: Program, args: Sequence[Array]) -> Array:
    model, _ = to_model(build(program), {})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip((port.name for port in model.graph.input), args, strict=True)))
    return np.asarray(found)


def wrong(problem: Problem) -> str:
    program = problem.make(False)
    if not onnxruntime_takes(program, problem.args):
        return ""
    try:
        return difference(problem, run(program, problem.args))
    except UnsupportedError as error:
        return "" if any(each in str(error) for each in HAVE_NO_FORM) else str(error)


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_written_programs_compute_the_same(kind: str, part: int, seed: int):
    random = np.random.default_rng([seed, part, *kind.encode()])
    assert not [text for text in (wrong(draw(kind, random)) for _ in range(DRAWS)) if text]
