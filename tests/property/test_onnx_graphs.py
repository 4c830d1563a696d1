"""Random ONNX graphs with dynamic dimensions: no pass and no kernel builder fails, and what comes out is right.

A program that was read is valid, so every pass must take it and leave a valid one, for every engine and target. Here
nothing is caught: whatever is raised is a bug. onnxruntime is the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smelt.device import cpu
from smelt.engine.native import compile_all
from smelt.engine.plans import planned, source_of
from smelt.ir.core import Program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.read.onnx import StaticError, read
from smelt.weights import Weights
from tests.onnx_nodes import on_onnxruntime
from tests.property.onnx_graphs import Case, random_case

pytest.importorskip("onnxruntime")
TARGETS = ("plain", "avx2", "avx512vnni")


def cases(seed: int, part: int, count: int, folder: Path) -> Iterator[tuple[str, Case, Program, Weights]]:
    """Graphs that read as one program for all sizes; nearly all do."""
    random = np.random.default_rng([seed, part])
    refused = 0
    for i in range(count):
        case = random_case(random, int(random.integers(3, 12)))
        path = folder / f"{i}.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            program, weights = read(path)
        except StaticError:  # a pool that rounds up, say: read again once sizes are there
            refused += 1
            continue
        yield f"seed {seed}, part {part}, graph {i}", case, program, weights
    assert refused <= max(2, count // 20), "most graphs are one program for all sizes"


def test_every_pass_takes_every_program(seed: int, tmp_path: Path) -> None:
    for i, (name, _, program, _) in enumerate(cases(seed, 0, 40, tmp_path)):
        print(name)
        after = program
        for step in pipeline.passes():  # as for an engine with all ops
            after = step.run(after)
            verify(after)
        target = cpu.TARGETS[TARGETS[i % len(TARGETS)]]
        source_of([planned(program, target)], target).texts(1)


@pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")
def test_native_agrees_with_onnxruntime(seed: int, tmp_path: Path) -> None:
    """One compiled program for both assignments of the dynamic dimensions."""
    found = list(cases(seed, 1, 8, tmp_path))
    for (name, case, _, weights), made in zip(found, compile_all([each[2] for each in found]), strict=True):
        assert not isinstance(made, Exception), f"{name}: {made}"
        bound = made.prepare(weights)
        for feed in case.feeds:
            got = bound(*(feed[port.name] for port in bound.signature.inputs))
            for mine, other in zip(got, on_onnxruntime(case.model, feed), strict=True):
                assert mine.shape == other.shape, name
                scale = max(1.0, float(np.abs(other).max(initial=0)))
                np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4 * scale, err_msg=name)
        bound.close()
