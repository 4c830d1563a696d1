"""What launches read before the launch in front of them ends: flash-decoding finds its keys, if no launch of the
program writes what says where they are. In the machine code are loads that only bring data nearer, and none that the
compiler does not know to be of device memory."""

from __future__ import annotations

import json
import struct
from collections import Counter
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device import cuda_compile
from smelt.dim import symbol
from smelt.dtype import Array, f32
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine
from smelt.ir.blocks import BLOCKS
from smelt.ir.core import Program
from smelt.kernel.emit.cuda import CudaSource
from smelt.passes.lower_blocks import round_activations
from smelt.shape import Shape
from smelt.target import TileShape
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda
from tests.cuda.test_rounded_rows import Model, weights_of
from tests.unit.ir import test_paged_attention_op as paged

CASES: dict[str, tuple[Any, ...]] = {
    "one head each": (4, 4, 32, 32, 16, 0, 0.0, False, "bf16"),
    "shared heads, window": (8, 2, 64, 32, 32, 40, 0.0, False, "bf16"),
}
DEPTH, FORMAT = 64, "q4_0"
ANY_LOAD, GLOBAL_LOAD = 0x980, 0x981  # opcodes of loads from any memory, and from the device's


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
        assert launches
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


@pytest.mark.skipif(cuda_compile.missing() is not None, reason=str(cuda_compile.missing()))
def test_loads_that_bring_data_nearer_are_in_the_machine_code() -> None:
    """NVRTC leaves out loads whose results are not used, whatever the source says."""
    counts = []
    for statement in ("", "smelt_touched(smelt_touch(from + threadIdx.x));"):
        kernel = f'extern "C" __global__ void kernel(const char *from) {{ {statement} }}\n'
        source = CudaSource(TileShape(64, 64, 32))
        source.parts.append(f"// smelt_block_stream<smelt_blocks_{FORMAT}, \n{kernel}")
        counts.append(count_instructions(cuda_compile.compile_cuda(source.text(), "sm_90"))[GLOBAL_LOAD])
    assert counts == [0, 1]


@pytest.mark.skipif(cuda_compile.missing() is not None, reason=str(cuda_compile.missing()))
def test_loads_are_those_of_device_memory(emulated: EmulatedCuda) -> None:
    """Also behind the wait for the launch in front, where the compiler cannot see what pointers point to: loads from
    any memory might be of shared memory, and stores might change it."""
    program = attention_layer(CASES["one head each"], written=False)
    text = emit_source([plan_program(program, emulated.target())]).text()
    assert "SMELT_BEHIND(b0)" in text
    counts = count_instructions(cuda_compile.compile_cuda(text, "sm_90"))
    assert counts[GLOBAL_LOAD] > 100
    assert counts[ANY_LOAD] == 0


def count_instructions(code: bytes) -> Counter[int]:
    """How often machine code has each opcode: the first twelve of the 128 bits of an instruction."""
    (sections,) = struct.unpack_from("<Q", code, 0x28)
    size, count, names = struct.unpack_from("<3H", code, 0x3A)
    heads = [struct.unpack_from("<2I4Q", code, sections + i * size) for i in range(count)]
    name_table, found = heads[names][4], Counter[int]()
    for name, _, _, _, start, length in heads:
        if code[name_table + name :].startswith(b".text."):
            words = np.frombuffer(code, np.uint16, length // 2, start)[::8]
            found.update(int(each) & 0xFFF for each in words)
    return found
