"""What small programs of every kind compile to: which ops are left, what is fused into which kernels, and memory.

For each program: its ops after all passes, the slots of its plan, and its kernels in the order of their first launch.
An optimisation that no longer applies shows here. What kernels compute is compared in tests/unit/kernel and
tests/property. `pytest tests/golden --update-golden` writes the files again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smelt.cli.show import _launches
from smelt.device import cpu
from smelt.dtype import i32
from smelt.engine.compile import lower, plan_lowered
from smelt.engine.signature import signature_of
from smelt.ir.attributes import ConvDims, DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value, walk
from smelt.ir.text import parse
from smelt.kernel.tune.schedules import no_schedule
from smelt.shape import Shape
from smelt.target import tile_shape
from tests.property.models import MODELS
from tests.property.problems import edges
from tests.property.test_expand_depthwise import Case
from tests.unit.ir.test_paged_attention_op import CASES as PAGED
from tests.unit.ir.test_paged_attention_op import program as paged
from tests.unit.kernel.test_winograd import program as winograd

HERE = Path(__file__).parent


def expand_depthwise(image: tuple[int, int], stride: int, bend: int) -> Case:
    case: Case = Case.__new__(Case)
    case.batch, case.depth, case.channels, case.image = 1, 16, 96, image
    case.window, case.strides, case.holes, case.edges = (3, 3), (stride, stride), (1, 1), ((1, 1), (1, 1))
    case.bend, case.outside = bend, 0.0
    sizes = ((1, *image, 16), (1, 1, 16, 96), (96,), (3, 3, 1, 96))
    case.arguments = [np.zeros(each, np.float32) for each in sizes]
    return case


def int8(left: str, right: str, points: tuple[int, ...]) -> Program:
    """An int8 matmul by constant weights, with zero points: one for the left, one or one per column for the right."""
    f = FuncBuilder("main", [Shape(left, "B", 40)])
    weights = f.constant(np.arange(40 * 24).reshape(40, 24) % 100, right)

    def wide(value: Value, point: int | tuple[int, ...]) -> Value:
        shape = value.shape.with_dtype(i32)
        zero = f.constant(np.asarray(point, np.int32))
        axes = (1,) if zero.shape.rank else ()
        return f.subtract(
            f.convert(value, result=shape), f.broadcast_in_dim(zero, broadcast_dimensions=axes, result=shape)
        )

    dims = DotDims((), (), (1,), (0,))
    x, y = wide(f.args[0], 3), wide(weights, points if len(points) > 1 else points[0])
    return Program.of(f.func(f.dot_general(x, y, dot_dimension_numbers=dims, result=Shape("i32", "B", 24))))


def narrow(kind: str) -> Program:
    """A matmul and a grouped convolution of 16-bit floats."""
    f = FuncBuilder(
        "main", [Shape(kind, 20, 64), Shape(kind, 64, 48), Shape(kind, 1, 8, 10, 10), Shape(kind, 16, 4, 3, 3)]
    )
    a, b, image, kernel = f.args
    matmul = f.dot_general(a, b, dot_dimension_numbers=DotDims((), (), (1,), (0,)), result=Shape(kind, 20, 48))
    dims = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
    shape = Shape(kind, 1, 16, 8, 8)
    more = f.convolution(
        image, kernel, dimension_numbers=dims, feature_group_count=2, batch_group_count=1, result=shape
    )
    return Program.of(f.func(matmul, more))


WINDOWS = """
func.func @main(%x: tensor<4x90xf32>, %n: tensor<3x16xi32>) -> (tensor<4x90xf32>, tensor<4x90xf32>, tensor<3x16xi32>, tensor<2x45xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %i = stablehlo.constant dense<0> : tensor<i32>
  %a = "stablehlo.reduce_window"(%x, %z) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 1, 90>, padding = dense<[[0, 0], [89, 0]]> : tensor<2x2xi64>} : (tensor<4x90xf32>, tensor<f32>) -> tensor<4x90xf32>
  %b = "stablehlo.reduce_window"(%x, %z) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 1, 90>, padding = dense<[[0, 0], [0, 89]]> : tensor<2x2xi64>} : (tensor<4x90xf32>, tensor<f32>) -> tensor<4x90xf32>
  %c = "stablehlo.reduce_window"(%n, %i) ({
  ^bb0(%p: tensor<i32>, %q: tensor<i32>):
    %s = stablehlo.add %p, %q : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) {window_dimensions = array<i64: 1, 16>, padding = dense<[[0, 0], [0, 15]]> : tensor<2x2xi64>} : (tensor<3x16xi32>, tensor<i32>) -> tensor<3x16xi32>
  %d = "stablehlo.reduce_window"(%x, %z) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 3, 2>, window_strides = array<i64: 1, 2>} : (tensor<4x90xf32>, tensor<f32>) -> tensor<2x45xf32>
  return %a, %b, %c, %d : tensor<4x90xf32>, tensor<4x90xf32>, tensor<3x16xi32>, tensor<2x45xf32>
}
"""  # noqa: E501


def programs(target: str) -> Iterator[tuple[str, Program]]:
    columns = tile_shape(cpu.target(target)).columns
    for name, model in MODELS.items():
        yield f"{name}, dynamic", model.dynamic_program()
        yield f"{name}, {model.tried[0]}", model.program(model.tried[0])
    yield from ((each.name, each.make(False)) for each in edges())
    yield "winograd", winograd(1, (24, 20), 64, 48)
    yield from ((f"paged attention: {name}", paged(PAGED[name], columns)) for name in ("grouped", "window, softcap"))
    yield "expand + depthwise", expand_depthwise((28, 56), 1, 1).program(False)
    yield "expand + depthwise, stride 2, dynamic", expand_depthwise((14, 29), 2, 0).program(False, open=True)
    yield "int8, one zero point", int8("ui8", "i8", (0,))
    yield "int8, others", int8("i8", "ui8", (7,))
    yield "int8, one for each column", int8("i8", "i8", tuple(range(24)))
    yield from ((f"{kind}", narrow(kind)) for kind in ("bf16", "f16"))
    yield "windows", parse(WINDOWS)


def describe(name: str, program: Program, target_name: str) -> Iterator[str]:
    target = cpu.target(target_name)
    lowered = lower(program, target)
    made = plan_lowered(lowered, signature_of(program.main), target, schedules=no_schedule)
    ops = Counter(op.name.removeprefix("stablehlo.") for func in lowered.funcs.values() for op in walk(func.body))
    yield f"{name} for {target_name}"
    yield "  ops: " + ", ".join(f"{op} × {count}" for op, count in sorted(ops.items()))
    for function, (plan, memory) in made.plans.items():
        yield f"  {function}: {len(plan.buffers)} buffers, {len(memory.slots)} slots, {len(plan.checks)} checks"
        kernels = [f"{kernel.kind} × {len(launches)}" for kernel, launches in _launches(plan).items()]
        yield f"    {', '.join(kernels) or 'no kernel'}"


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_kernels_are_what_they_were(target: str, request: pytest.FixtureRequest) -> None:
    every = [each for each in programs(target) if target == "avx2" or "dynamic" not in each[0]]
    got, golden = (
        "".join(f"{line}\n" for each in every for line in describe(*each, target)),
        HERE / f"kernels_{target}.txt",
    )
    if request.config.getoption("--update-golden"):
        golden.write_text(got)
    assert got.splitlines() == golden.read_text().splitlines(), "--update-golden writes the file again"
