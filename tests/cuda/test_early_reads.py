"""What launches read before the launch in front of them ends: flash-decoding finds its keys, if no launch of the
program writes what says where they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.dim import symbol
from smelt.dtype import Array, f32
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine
from smelt.ir.blocks import BLOCKS
from smelt.ir.core import Program
from smelt.passes.lower_blocks import round_activations
from smelt.shape import Shape
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda
from tests.cuda.test_rounded_rows import Model, weights_of
from tests.unit.ir import test_paged_attention_op as paged

CASES: dict[str, tuple[Any, ...]] = {
    "one head each": (4, 4, 32, 32, 16, 0, 0.0, False, "bf16"),
    "shared heads": (8, 2, 64, 32, 32, 0, 0.0, False, "bf16"),
    "window": (8, 2, 64, 32, 32, 40, 0.0, False, "bf16"),
}
DEPTH, FORMAT = 64, "q4_0"


def attention_layer(case: tuple[Any, ...], *, written: bool) -> Program:
    """Attention between two products. `written`: a launch in front of it computes the positions of its queries."""
    (op,) = [each for each in paged.program(case).main.body.ops if each.name == "smelt.paged_attention"]
    heads, _, depth, values, *_ = case
    _, *pools, table, sequence, _ = (each.shape for each in op.operands)
    rows = symbol("N")
    steps = Shape.of(sequence.element, (rows, 600))
    shapes = [weights_of(FORMAT, heads * depth, DEPTH), weights_of(FORMAT, 96, heads * values)]
    places = *pools, table, sequence, steps if written else sequence
    model = Model(Shape.of(f32, (rows, DEPTH)), *places, *shapes, weights=(6, 7))
    f = model.f
    x, keys, tops, pages, which, position, query, out = f.args
    if written:
        position = f.reduce_by("add", position, 0, (1,))
    q = f.reshape(model.multiply(x, query, FORMAT), result=Shape.of(f32, (rows, heads, depth)))
    y = f.op(op.name, q, keys, tops, pages, which, position, **op.attrs).result
    flat = f.reshape(y, result=Shape.of(f32, (rows, heads * values)))
    return round_activations(model.program(model.multiply(flat, out, FORMAT)))


def decoding_launches(program: Program, device: EmulatedCuda) -> list[dict[str, Any]]:
    """Those that are told whether they may begin early."""
    *_, text = emit_source([plan_program(program, device.target())]).texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    return [each for step in steps for each in step.get("launches", ()) if "ahead" in each]


@pytest.mark.races
@pytest.mark.parametrize("name", CASES)
def test_attention_finds_its_keys_early(name: str, emulated: EmulatedCuda, seed: int) -> None:
    """The same bits, whether or not it may read the positions before the launch in front of it ends."""
    case, found = CASES[name], list[list[Array]]()
    heads, _, depth, values, *_ = case
    _, *pools, table, sequence, position = paged.inputs(case, seed)
    random = np.random.default_rng(seed)
    x = random.standard_normal((len(sequence), DEPTH)).astype(np.float32)
    weights = [
        random_weights(columns, rows, random) for columns, rows in ((heads * depth, DEPTH), (96, heads * values))
    ]
    for written in (False, True):
        program = attention_layer(case, written=written)
        launches = decoding_launches(program, emulated)
        assert bool(launches) == (name != "window")  # which would hide what is prefetched
        assert all(each["waits"] and each["ahead"] is not written for each in launches)
        stored = Weights.of({f"w{i}": HostBuffer.of(each) for i, each in enumerate(weights, 6)})
        made = NativeEngine(emulated.target()).compile(program).prepare(stored)
        found.append([])
        for rows in (1, len(x)):
            steps = np.zeros((rows, 600), np.int32)
            steps[:, 0] = position[-rows:]
            where = steps if written else position[-rows:]
            got = made(x[-rows:], *pools, table, sequence[-rows:], where)
            found[-1].append(got[0].numpy())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def random_weights(columns: int, rows: int, random: np.random.Generator) -> Array:
    row = BLOCKS[FORMAT]
    blocks = random.integers(0, 256, (columns, rows // row.length, row.bytes), np.uint8)
    blocks[..., :2] = np.float16(0.01).reshape(1).view(np.uint8)
    return blocks
