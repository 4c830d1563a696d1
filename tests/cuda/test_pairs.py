"""Two products that are read together, as gate and up, on a GPU: one launch computes both and what reads them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device.cuda import TARGETS
from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.kernel.build import gemm_simt
from smelt.passes import merge_dots
from smelt.shape import Shape
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda

DEPTH, COLUMNS = 300, 192
CASES = [  # machine, kind, rows, the most of them whose weights threads read themselves
    *(("sm_90", "silu", 1, 8), ("sm_90", "silu", 13, 8), ("sm_90", "gelu", 5, 0), ("sm_90", "wide", 32, 0)),
    *(("sm_90", "bias", 8, 8), ("sm_80", "silu", 13, 8), ("sm_80", "wide", 1, 8)),
]


def gated(kind: str, rows: int | str, element: str, columns: int = COLUMNS) -> Program:
    """`act(x @ gate) * (x @ up)` of rows. `wide`: stored in f32, and not in the type of the rows; `both`: with the
    first product as a second result; `down`: times the gate's weights again, transposed."""
    types = [Shape(element, rows, DEPTH), *[Shape(element, DEPTH, columns)] * 2, Shape("f32", columns)]
    attrs: list[Any] = [{}, {"smelt.weight": "gate"}, {"smelt.weight": "up"}, {}]
    f = FuncBuilder("main", types, arg_attrs=attrs)
    x, gate, up, bias = f.args
    size = symbol(rows) if isinstance(rows, str) else rows
    wide = Shape.of(dtype("f32"), (size, columns))

    def multiply(w: Value) -> Value:
        return f.dot_general(x, w, dot_dimension_numbers=DotDims((), (), (1,), (0,)), result=wide)

    first = left = multiply(gate)
    right = multiply(up)
    if kind == "bias":
        left = f.add(left, f.broadcast_in_dim(bias, broadcast_dimensions=(1,), result=wide))
    if kind == "gelu":
        inner = f.multiply(left, f.add(f.multiply(left, left), f.full(22.0, wide)))
        left = f.multiply(left, f.add(f.tanh(inner), f.full(1.0, wide)))
    else:
        left = f.multiply(left, f.logistic(left))
    made = f.multiply(left, right)
    made = made if kind == "wide" else f.convert(made, result=wide.with_dtype(dtype(element)))
    if kind == "down":
        back = Shape.of(dtype("f32"), (size, DEPTH))
        made = f.dot_general(made, gate, dot_dimension_numbers=DotDims((), (), (1,), (1,)), result=back)
    return Program.of(f.func(made, *([first] if kind == "both" else [])))


def launches(program: Program, machine: str) -> list[dict[str, Any]]:
    *_, text = emit_source([plan_program(program, TARGETS[machine])]).texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    return [each for step in steps for each in step.get("launches", ())]


def compute(program: Program, machine: str, weights: dict[str, Any], inputs: list[Any]) -> Any:
    held = Weights.of({name: HostBuffer.of(each) for name, each in weights.items()})
    return NativeEngine(TARGETS[machine]).compile(program).prepare(held)(*inputs)[0].numpy()


def arrays(rows: int, element: str, seed: int) -> tuple[dict[str, Any], list[Any]]:
    random, kind = np.random.default_rng(seed), dtype(element).numpy
    gate, up = (random.standard_normal((DEPTH, COLUMNS), np.float32).astype(kind) for _ in range(2))
    x = (0.1 * random.standard_normal((rows, DEPTH), np.float32)).astype(kind)
    return {"gate": gate, "up": up}, [x, random.standard_normal(COLUMNS, np.float32)]


@pytest.mark.parametrize(("machine", "kind", "rows", "few"), CASES)
def test_what_reads_both_is_their_epilogue(
    machine: str, kind: str, rows: int, few: int, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch less, and the bits of products whose columns do not alternate."""
    if machine == "sm_90":
        monkeypatch.setattr(gemm_simt, "few_and_most", lambda *_: (few, 64))
    check(gated(kind, rows, "bf16"), machine, "bf16", [rows], seed, monkeypatch)


@pytest.mark.parametrize("rows", [3, 20, 300, "R"])
def test_products_of_f32(rows: int | str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, blocks that share K, and a dynamic number of rows."""
    several = [rows] if isinstance(rows, int) else [1, 9]
    check(gated("silu", rows, "f32"), "sm_90", "f32", several, seed, monkeypatch)


@pytest.mark.parametrize("machine", ["sm_90", "sm_80"])
def test_a_dynamic_number_of_bf16_rows(
    machine: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be few rows, or tiles of many: decoding and prefill."""
    check(gated("silu", "R", "bf16"), machine, "bf16", [1, 9, 70], seed, monkeypatch)


@pytest.mark.parametrize(("kind", "products"), [("silu", 1), ("both", 2)])
def test_many_columns_by_a_dynamic_number_of_rows(
    kind: str, products: int, emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are merged where one epilogue reads both."""
    monkeypatch.setattr(merge_dots, "MANY_COLUMNS", COLUMNS)
    found = launches(gated(kind, "R", "bf16"), "sm_90")
    assert len({each["function"].rsplit("_", 1)[0] for each in found if "packed_dot" in each["function"]}) == products


def check(
    program: Program, machine: str, element: str, rows: list[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [arrays(each, element, seed) for each in rows]
    got, count = [compute(program, machine, *each) for each in given], len(launches(program, machine))
    monkeypatch.setattr(merge_dots, "_are_paired", lambda *_: False)
    assert len(launches(program, machine)) == count + 1
    for one, each in zip(got, given, strict=True):
        np.testing.assert_array_equal(one, compute(program, machine, *each))


def test_products_that_stay_apart(emulated: EmulatedCuda) -> None:
    """Columns that fill no panel, and a product that is a result itself."""
    paired = len(launches(gated("silu", 8, "bf16"), "sm_90"))
    assert len(launches(gated("silu", 8, "bf16", 100), "sm_90")) == paired + 1
    assert len(launches(gated("both", 8, "bf16"), "sm_90")) > paired


@pytest.mark.parametrize(("machine", "streams"), [("sm_90", True), ("sm_80", False)])
def test_a_product_behind_one_of_few_rows(emulated: EmulatedCuda, machine: str, streams: bool) -> None:
    """It begins early where the copy engine brings its weights. Blocks whose threads read them would not be spread
    evenly over the multiprocessors while the blocks in front of them end."""
    first, second = launches(gated("down", 8, "bf16"), machine)
    assert first["early"]
    assert first["awaits"]
    assert second["early"]
    assert second["streams"] == bool(second["awaits"]) == streams
