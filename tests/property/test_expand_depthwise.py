"""Fused expand + depthwise gives the bits of the unfused kernels, and the right result.

Random feature maps go through an expanding matmul, an activation and a depthwise convolution. The same program that
returns the image as well has to store it: both must agree bit for bit, and with an evaluation in double. Programs for
dynamic dimensions are built as well, and must give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.device import cpu
from smelt.engine import compile
from smelt.ir.attributes import ConvDims
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.ir.ops.window import window_count
from smelt.kernel.emit.c import Source
from smelt.kernel.loops import parallelise
from smelt.passes.quantise import with_precision
from smelt.shape import Shape
from smelt.target import tile_shape

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

LAST = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
CASES = 16
WAYS = {"alone": (False, False), "open": (False, True), "both": (True, False)}  # (shared, open)


class Case:
    """One expanded image. `shared`: it is returned as well."""

    def __init__(self, random: np.random.Generator) -> None:
        def pick(*choices: int) -> int:
            return int(random.choice(choices))

        self.batch, self.depth, self.channels = (
            pick(1, 1, 3),
            pick(1, 3, 16, 40, 130),
            pick(1, 5, 16, 24, 64, 70, 96, 150),
        )
        self.image = pick(1, 2, 5, 14, 28, 45), pick(1, 3, 7, 14, 28, 56, 75, 130, 1100)
        if self.image[1] > 500:  # lines that do not fit whole
            self.image, self.batch, self.depth = (pick(1, 5), self.image[1]), 1, 3
        self.window, self.strides = (pick(1, 2, 3, 5), pick(1, 3, 5)), (pick(1, 1, 2, 3), pick(1, 1, 2, 3))
        self.holes = pick(1, 1, 2), pick(1, 1, 2)
        reach = [(size - 1) * hole + 1 for size, hole in zip(self.window, self.holes, strict=True)]
        self.edges = tuple(
            (int(max(a, each - size)), int(b))
            for each, size, a, b in zip(
                reach, self.image, random.integers(0, 9, 2), random.integers(0, 4, 2), strict=True
            )
        )
        self.bend = pick(0, 1, 2, 3)
        self.outside = float(random.choice([0.0, -1.5]))
        self.arguments = [
            random.standard_normal(sizes).astype(np.float32)
            for sizes in (
                (self.batch, *self.image, self.depth),
                (1, 1, self.depth, self.channels),
                (self.channels,),
                (*self.window, 1, self.channels),
            )
        ]

    def __str__(self) -> str:
        return str({name: value for name, value in vars(self).items() if name != "arguments"})

    def program(self, shared: bool, kind: str = "f32", open: bool = False, constant: bool = False) -> Program:
        """`open`: the image may have any size. `constant`: weights are constants, not arguments."""
        shapes = [Shape(kind, *each.shape) for each in self.arguments]
        if open:
            shapes[0] = Shape(kind, "B", "H", "W", self.depth)
        f = FuncBuilder("main", shapes[:1] if constant else shapes)
        x, matrix, bias, kernel = (*f.args, *map(f.constant, self.arguments[1:])) if constant else f.args
        batch, *sizes, _ = x.shape.sizes
        wide = Shape.of(x.shape.dtype, (batch, *sizes, self.channels))
        plain: dict[str, Any] = {"dimension_numbers": LAST, "batch_group_count": 1}
        image = f.convolution(x, matrix, **plain, feature_group_count=1, result=wide)
        image = self.bent(f, image, f.broadcast_in_dim(bias, broadcast_dimensions=(3,), result=wide))
        low, high = zip((0, 0), *self.edges, (0, 0), strict=True)
        edge = f.constant(self.outside, kind)
        padded = f.pad(image, edge, edge_padding_low=low, edge_padding_high=high, interior_padding=(0, 0, 0, 0))
        out = [
            window_count(size, (0, 0), 1, window, hole, stride)
            for size, window, hole, stride in zip(
                padded.shape.sizes[1:3], self.window, self.holes, self.strides, strict=True
            )
        ]
        seen = f.convolution(
            padded,
            kernel,
            **plain,
            window_strides=self.strides,
            rhs_dilation=self.holes,
            feature_group_count=self.channels,
            result=Shape.of(x.shape.dtype, (batch, *out, self.channels)),
        )
        return Program.of(f.func(*((f.negate(seen), image) if shared else (f.negate(seen),))))

    def bent(self, f: Builder, x: Value, bias: Value) -> Value:
        """What follows a product in networks."""
        x = f.add(x, bias)
        match self.bend:
            case 1:
                return f.clamp(f.full(0.0, x.shape), x, f.full(6.0, x.shape))
            case 2:
                return f.multiply(x, f.logistic(x))
            case 3:
                return f.maximum(f.add(x, x), bias)
        return x


def test_fused_expand_depthwise_has_the_same_bits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallelise, "ELEMENTS_PER_CORE", 16)  # small kernels go to several cores, too
    random = np.random.default_rng(seed)
    cases = [Case(random) for _ in range(CASES)]
    source = Source(tile_shape(cpu.target()))
    planned = {}
    for i, case in enumerate(cases):
        for way, (shared, open) in WAYS.items():
            planned[i, way] = compile.plan_program(case.program(shared, open=open))
            compile.emit_plan(planned[i, way], source, f"p{i}_{way}")
    library = cpu.build(source.texts(4))
    made = 0
    for i, case in enumerate(cases):
        alone, for_any, both = (compile.link_executable(library, f"p{i}_{way}", planned[i, way]) for way in WAYS)
        kinds = [{problem.kind for problem in planned[i, way].chosen} for way in WAYS]
        made += sum("expand_depthwise" in each for each in kinds[:2])
        assert "expand_depthwise" not in kinds[2]
        (got,), (opened,) = alone(*case.arguments), for_any(*case.arguments)
        want, _ = both(*case.arguments)
        assert got.tobytes() == want.tobytes(), str(case)
        assert opened.tobytes() == want.tobytes(), str(case)
        wide = [each.astype(np.float64) for each in case.arguments]
        (exact,) = run(case.program(shared=False, kind="f64"), wide)
        (size,) = run(case.program(shared=False, kind="f64"), [np.abs(each) for each in wide])
        assert (np.abs(got - exact) <= 64 * np.finfo(np.float32).eps * (np.abs(size) + 1)).all(), str(case)
    assert made > CASES


def test_int8_expansions_are_fused_with_the_same_bits(seed: int) -> None:
    random = np.random.default_rng(seed)
    cases = [case for case in (Case(random) for _ in range(40)) if case.depth >= 16 and case.channels >= 16][:4]
    source = Source(tile_shape(cpu.target()))
    planned = {}
    for i, case in enumerate(cases):
        for way, (shared, open) in WAYS.items():
            program = with_precision(case.program(shared, open=open, constant=True), "int8")
            planned[i, way] = compile.plan_program(program)
            compile.emit_plan(planned[i, way], source, f"p{i}_{way}")
    library = cpu.build(source.texts(4))
    made = 0
    for i, case in enumerate(cases):
        alone, for_any, both = (compile.link_executable(library, f"p{i}_{way}", planned[i, way]) for way in WAYS)
        kinds = [{problem.kind for problem in planned[i, way].chosen} for way in WAYS]
        made += sum("expand_depthwise" in each for each in kinds[:2])
        assert "expand_depthwise" not in kinds[2]
        (got,), (opened,), (want, _) = (each(case.arguments[0]) for each in (alone, for_any, both))
        assert got.tobytes() == opened.tobytes() == want.tobytes(), str(case)
        (exact,) = run(case.program(shared=False, kind="f64"), [each.astype(np.float64) for each in case.arguments])
        assert np.abs(got - exact).max() <= 0.05 * np.abs(exact).max(), str(case)
    assert made > len(cases)
