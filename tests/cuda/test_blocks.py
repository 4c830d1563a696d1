"""Products by block-quantised weights on a GPU, run by the emulator: shares of K, and launches that are merged."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device.cuda import TARGETS
from smelt.device.host_plan import list_launches
from smelt.dim import symbol
from smelt.dtype import f32, ui8
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import SmeltError
from smelt.ir.attributes import DotDims
from smelt.ir.block_layout import can_pack
from smelt.ir.blocks import BLOCKS, Bits, Block, Integers
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import blocks_simt
from smelt.kernel.loops import tensor_tile
from smelt.passes.lower_blocks import round_activations
from smelt.passes.specialise import specialise
from smelt.shape import Shape
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda
from tests.unit.kernel.test_block_dot import TOY, Sketch, product, random_format, random_weights


def launches_of(program: Program, device: EmulatedCuda) -> list[str]:
    """The kinds of the launches of a program, those for other numbers of rows left out."""
    *_, text = emit_source([plan_program(program, device.target())]).texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    names = [each["function"] for step in steps for each in step.get("launches", ())]
    return [name.removeprefix("smelt0_").rstrip("0123456789_") for name in names if name.endswith("_0")]


def most_blocks(program: Program, device: EmulatedCuda) -> int:
    """The blocks of a product of few rows."""
    *_, text = emit_source([plan_program(program, device.target())]).texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    return int(next(each["most"] for step in steps for each in step.get("launches", ()) if "most" in each))


@pytest.mark.parametrize("machine", TARGETS)
def test_every_launch_fits_every_chip(machine: str, emulated: EmulatedCuda) -> None:
    """Sixteen shares of 64 rows take 128 KB: where a block has less, eight of them are added before the others."""
    programs = [round_activations(product(BLOCKS[format], 16, 48)) for format in ("q4_0", "q5_1", "q6_k")]
    target = emulated.target(machine)
    *files, text = emit_source([plan_program(program, target) for program in programs]).texts(1)
    for plan in json.loads(text)["programs"].values():
        assert all(each["shared"] <= target.cache_bytes[0] for each in list_launches(plan["steps"]))
    sizes = re.findall(r"smelt_block_rows<\w+, 64, .*, (\d+)>", "".join(files))
    assert set(sizes) == {"16" if target.cache_bytes[0] >= 128 << 10 else "8"}


@pytest.mark.parametrize("format", ["q4_0", "q5_k"])
def test_shares_are_added_in_rounds_where_memory_is_short(format: str, emulated: EmulatedCuda, seed: int) -> None:
    row, columns = BLOCKS[format], 48
    blocks = 68 if row.length == 32 else 17
    program = round_activations(product(row, blocks, columns))
    w = random_weights(row, columns, blocks, seed=seed)
    x = np.random.default_rng(seed).standard_normal((65, blocks * row.length), np.float32)
    (made,) = compile_all([program], emulated.target("sm_89"))
    assert not isinstance(made, SmeltError)
    (want,) = run(program, [x, w])
    found = made(x, w)[0].numpy()
    np.testing.assert_allclose(found, want, rtol=0, atol=4e-6 * np.abs(want).max())
    np.testing.assert_array_equal(made(x[:8], w)[0].numpy(), found[:8])


@pytest.mark.parametrize("few", [0, blocks_simt.FEW_BLOCKS])
@pytest.mark.parametrize("format", ["q4_0", "q8_0", "q5_1", "q4_k", "q6_k", "q2_k"])
def test_shares_of_k(format: str, few: int, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight and sixteen shares, all of which have as many units as a thread reads ahead, or twice as many."""
    monkeypatch.setattr(blocks_simt, "FEW_BLOCKS", few)
    row, columns = BLOCKS[format], 32
    blocks = (128 if few else 64) if row.length == 32 else 17
    program = round_activations(product(row, blocks, columns))
    w = random_weights(row, columns, blocks, seed=seed)
    x = np.random.default_rng(seed).standard_normal((9, blocks * row.length), np.float32)
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    (want,) = run(program, [x, w])
    found = {rows: made(x[:rows], w)[0].numpy() for rows in (1, 8, 9)}
    for rows, got in found.items():
        np.testing.assert_array_equal(got, found[9][:rows])
    np.testing.assert_allclose(found[9], want, rtol=0, atol=4e-6 * np.abs(want).max())


@pytest.mark.parametrize(
    ("format", "blocks", "held"),
    [("q4_0", 66, 40 << 10), ("q8_0", 64, 8 << 10), ("q5_1", 5, 0), ("q4_k", 9, 8 << 10), ("q2_k", 17, 40 << 10)],
)
def test_blocks_with_several_tiles(
    format: str, blocks: int, held: int, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread block goes on with the chunks of its next tile, whose second panel may be missing. Shared memory holds
    all rows, one or none."""
    monkeypatch.setattr(tensor_tile, "HELD_ROWS", held)
    row, columns = BLOCKS[format], 32 * 6 + 16
    program = round_activations(product(row, blocks, columns))
    w = random_weights(row, columns, blocks, seed=seed)
    x = np.random.default_rng(seed).standard_normal((8, blocks * row.length), np.float32)
    (want,) = run(program, [x, w])
    monkeypatch.setattr(blocks_simt, "FEW_BLOCKS", 0)
    found = []
    for alone in (tensor_tile.ALONE, 1):  # multiprocessors: a tile for each block, several tiles
        monkeypatch.setattr(tensor_tile, "ALONE", alone)
        assert (most_blocks(program, emulated) < 7) == (alone == 1)
        (made,) = compile_all([program], emulated.target())
        assert not isinstance(made, SmeltError)
        found += [made(x[:rows], w)[0].numpy() for rows in (1, 8)]
    for got in found:
        np.testing.assert_array_equal(got, found[1][: len(got)])
    np.testing.assert_allclose(found[1], want, rtol=0, atol=4e-6 * np.abs(want).max())


def feed_forward(depth: int, width: int, format: str = "q4_0") -> Program:
    """x + down(silu(gate(n)) * up(n)) with n = x / rms(x), for any number of rows."""
    row, rows = BLOCKS[format], symbol("R")
    sizes = (width, depth), (width, depth), (depth, width)
    shapes = [Shape.of(ui8, (a, b // row.length, row.bytes)) for a, b in sizes]
    sketch = Sketch(Shape.of(f32, (rows, depth)), *shapes, weights=(1, 2, 3))
    f = sketch.f
    x, gate, up, down = f.args

    def multiply(left: Value, w: Value, columns: int) -> Value:
        dims = DotDims((), (), (1,), (1,))
        dense = sketch.unblock(row, w)
        return f.dot_general(left, dense, dot_dimension_numbers=dims, result=Shape.of(f32, (rows, columns)))

    total = f.reduce_by("add", f.multiply(x, x), 0.0, (1,))
    factor = f.rsqrt(f.multiply(total, f.full(1 / depth, total.shape)))
    normal = f.multiply(x, f.broadcast_in_dim(factor, broadcast_dimensions=(0,), result=x.shape))
    left = multiply(normal, gate, width)
    inner = f.multiply(f.multiply(left, f.logistic(left)), multiply(normal, up, width))
    return round_activations(sketch.program(f.add(x, multiply(inner, down, depth))))


@pytest.mark.races
@pytest.mark.parametrize("depth", [96, 8224])
def test_norms_and_rounding_are_one_launch(depth: int, emulated: EmulatedCuda, seed: int) -> None:
    """Gate and up are one product as well, and what follows them is computed and rounded in its epilogue. The norm's
    factor is found beside the product, however long rows are."""
    launches = ["round_blocks", "packed_block_dot", "packed_block_dot"]
    width, random = 64, np.random.default_rng(seed)
    program = feed_forward(depth, width)
    sizes = (width, depth), (width, depth), (depth, width)
    weights: list[Any] = [random_weights(BLOCKS["q4_0"], a, b // 32, seed=seed + i) for i, (a, b) in enumerate(sizes)]
    x = random.standard_normal((3, depth), np.float32)
    stored = Weights.of({f"w{i + 1}": HostBuffer.of(each) for i, each in enumerate(weights)})
    made = NativeEngine(emulated.target()).compile(program).prepare(stored)
    assert [each for each in launches_of(program, emulated) if each != "relayout"] == launches
    (want,) = run(program, [x, *weights])
    for rows in (1, 3):
        got = made(x[:rows])[0].numpy()
        np.testing.assert_allclose(got, want[:rows], rtol=0, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize("depth", [512, 2080, 8192])
@pytest.mark.parametrize(("group", "zero"), [(32, 8), (16, 0)])
def test_rounding_of_rows_has_the_bits_of_the_reference(
    depth: int, group: int, zero: int, emulated: EmulatedCuda, seed: int
) -> None:
    """Also where a quotient is zero, tiny, huge or infinite; terms of the reduction are where the row is later."""
    rows, random = symbol("R"), np.random.default_rng(seed)
    sketch = Sketch(Shape.of(f32, (1, rows, depth)))
    f, (x,) = sketch.f, sketch.f.args
    most = f.reduce_by("maximum", f.abs(x), 0.0, (2,))
    factor = f.minimum(most, f.full(1.0, most.shape))
    y = f.multiply(x, f.broadcast_in_dim(factor, broadcast_dimensions=(0, 1), result=x.shape))
    program = sketch.program(*f.op("smelt.round_blocks", y, group=group, zero=zero).results)
    data = random.standard_normal((1, 3, depth)).astype(np.float32)
    data *= np.repeat(random.choice([0, 1e-42, 1e-38, 1e-32, 1e-28, 1, 1e28, 1e34], (1, 3, depth // 32)), 32, -1)
    data[0, 1, 40] = np.inf
    data[0, 2, 31] = data[0, 2, 32] = 3e38
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    for want, got in zip(run(program, [data]), made(data), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


def test_a_new_format_is_one_row(emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Any format that records can hold, also short blocks with integers of their groups; several chunks of each share,
    the last one shorter."""
    random = np.random.default_rng(seed)
    nibbles = Integers(((Bits(3, 1, 16, (0, 4), 15),),))
    own = Integers(((Bits(2, 1, 1, (0,), 15),),)), Integers(((Bits(2, 1, 1, (4,), 15),),))
    short = Block("short", 1000, 32, 19, nibbles, 0, scales=own[0], minimum=0, minimums=own[1])
    drawn = (random_format(random, i) for i in range(80))
    rows = [short, TOY, *(row for row in drawn if can_pack(row))][:8]
    assert {row.length for row in rows} >= {32, 64}
    for row in rows:
        monkeypatch.setitem(BLOCKS, row.name, row)
    cases = [(row, -(-2080 // row.length), 37) for row in rows]
    programs = [round_activations(product(*case)) for case in cases]
    for (row, blocks, columns), program, made in zip(
        cases, programs, compile_all(programs, emulated.target()), strict=True
    ):
        assert not isinstance(made, SmeltError), made
        w = random_weights(row, columns, blocks, seed=seed)
        x = random.standard_normal((9, blocks * row.length), np.float32)
        (want,) = run(program, [x, w])
        for count in (1, 5, 9):
            got = made(x[:count], w)[0].numpy()
            np.testing.assert_allclose(got, want[:count], rtol=0, atol=1e-5 * np.abs(want).max(), err_msg=row.name)


def test_a_single_row_leaves_shared_memory(emulated: EmulatedCuda) -> None:
    """Warps of its blocks have roles. Its kernel holds one row and its sums, so its ring has more stages; but no more
    than its block's tile has."""
    few = 16 * 4 * 2  # blocks of K: two turns of a tile whose shares are sixteen
    stages = {}
    for columns in (32 * 128, 32 * 800):  # a multiprocessor has one block, or two with several tiles
        program = round_activations(product(BLOCKS["q4_0"], few, columns))
        text = emit_source([plan_program(program, emulated.target())]).text()
        (single,) = re.findall(r"smelt_block_single<smelt_blocks_q4_0, (\d), (\d+), 1", text)
        (several,) = re.findall(r"smelt_block_stream<smelt_blocks_q4_0, 8, (\d), (\d+)", text)
        stages[columns // 32] = {most: tuple(map(int, each)) for most, each in ((1, single), (8, several))}
    assert stages == {128: {1: (2, 16), 8: (2, 16)}, 800: {1: (5, 8), 8: (3, 8)}}


def test_short_launches_in_front_of_block_products_begin_early(emulated: EmulatedCuda) -> None:
    """They wait themselves for the launch in front of them, before they read anything. The blocks of these products
    have a multiprocessor each, or half of one; those of others would crowd, so nothing before them begins early."""
    source = emit_source([plan_program(feed_forward(96, 64), emulated.target())])
    *files, text = source.texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    launches = [each for step in steps for each in step.get("launches", ())]
    products = [each for each in launches if "block_dot" in each["function"]]
    assert [bool(each["awaits"]) for each in products] == [each["streams"] for each in products]
    short = [each for each in launches if each not in products]
    assert [each["function"] for each in short if not each["waits"]] == []
    for each in short:
        body = "".join(files).split(f" {each['function']}(")[1].split("\n}")[0]
        start, _, rest = body.partition("SMELT_AWAIT();")
        assert rest, each["function"]
        assert "_ui" not in start, each["function"]  # no pointer is there yet
        assert "SMELT_RELEASE();" in start  # the launch behind it waits itself
        assert "SMELT_BEHIND(b" in rest
    plain = parse(CHAIN)
    *_, text = emit_source([plan_program(plain, emulated.target())]).texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    assert not any(each["waits"] for step in steps for each in step.get("launches", ()))


CHAIN = """func.func @main(%x: tensor<256x512xbf16>, %w: tensor<512x128xbf16> {smelt.weight = "w"})
    -> tensor<256x128xf32> {
  %y = stablehlo.add %x, %x : tensor<256x512xbf16>
  %z = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
    : (tensor<256x512xbf16>, tensor<512x128xbf16>) -> tensor<256x128xf32>
  return %z : tensor<256x128xf32>
}"""


@pytest.mark.parametrize("format", ["q4_0", "q8_0", "q5_1", "q4_k", "q6_k", "q2_k", "iq4_nl", "mxfp4"])
def test_many_rows_have_the_bits_of_few(
    format: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large tiles, of which the last one of rows and of columns is not full; fewer chunks of K than shares, or more."""
    monkeypatch.setattr(blocks_simt, "ENOUGH", 1)
    row, columns = BLOCKS[format], 128 + 48
    for blocks in (16, 36) if format == "q4_0" else (4 if row.length == 32 else 1,):
        program = round_activations(product(row, blocks, columns))
        w = random_weights(row, columns, blocks, seed=seed)
        x = np.random.default_rng(seed).standard_normal((130, blocks * row.length), np.float32)
        (made,) = compile_all([program], emulated.target())
        assert not isinstance(made, SmeltError)
        text = emit_source([plan_program(program, emulated.target())]).text()
        assert "smelt_block_tile<" in text
        assert "smelt_block_some<" in text
        found = made(x, w)[0].numpy()
        for rows in (5, 21):  # few; some, which come through shared memory
            np.testing.assert_array_equal(found[130 - rows :], made(x[130 - rows :], w)[0].numpy())
        (want,) = run(program, [x, w])
        np.testing.assert_allclose(found, want, rtol=0, atol=4e-6 * np.abs(want).max())


@pytest.mark.races
@pytest.mark.parametrize("columns", [32 * 7, 32 * 7 + 8])
@pytest.mark.parametrize(("format", "blocks"), [("q4_0", 165), ("q5_1", 99), ("q4_k", 18), ("q8_0", 100)])
def test_a_single_row_by_several_tiles_of_a_block(
    format: str, blocks: int, columns: int, emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Blocks take one tile after another: rings of weights and sets of sums go round several times. The last tile may
    have one panel, the last turn not all shares. A row has the same bits among others."""
    monkeypatch.setattr(tensor_tile, "ALONE", 1)
    monkeypatch.setattr(blocks_simt, "FEW_BLOCKS", 0)  # eight shares, whose chunks find room twice
    row = BLOCKS[format]
    program = round_activations(product(row, blocks, columns))
    assert "smelt_block_single<" in emit_source([plan_program(program, emulated.target())]).text()
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    w = random_weights(row, columns, blocks, seed=seed)
    x = np.random.default_rng(seed).standard_normal((2, blocks * row.length), np.float32)
    (want,) = run(program, [x, w])
    got = made(x[:1], w)[0].numpy()
    np.testing.assert_allclose(got, want[:1], rtol=0, atol=4e-6 * np.abs(want).max())
    np.testing.assert_array_equal(got, made(x, w)[0].numpy()[:1])


@pytest.mark.races
@pytest.mark.parametrize("format", ["q4_0", "q4_k"])
def test_gate_and_up_of_several_tiles(
    format: str, emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Both parts of a tile come one after the other; rows have the same bits alone and among others."""
    monkeypatch.setattr(tensor_tile, "ALONE", 1)
    monkeypatch.setattr(blocks_simt, "FEW_BLOCKS", 0)
    row, depth, width = BLOCKS[format], 512, 160 if format == "q4_0" else 256
    program = feed_forward(depth, width, format)
    text = emit_source([plan_program(program, emulated.target())]).text()
    assert re.search(rf"smelt_block_single<smelt_blocks_{format}, \d, \d+, 2,", text)
    check_rows(program, row, depth, width, emulated, seed)


def test_what_several_rows_need_beside_a_pair(emulated: EmulatedCuda, seed: int) -> None:
    """A block finds the factor of each row from vectors of it, and a thread of the epilogue reads four adjacent sums of
    both parts before it computes. Rows have the bits of a single one."""
    depth, width = 2048, 160
    program = feed_forward(depth, width)
    *files, text = emit_source([plan_program(program, emulated.target())]).texts(1)
    launches = list_launches(json.loads(text)["programs"]["smelt0"]["steps"])
    kernel = next(each["function"] for each in launches if "block_dot" in each["function"]).rsplit("_", 1)[0]
    first, *_, last = (each for each in launches if each["function"].startswith(f"{kernel}_"))
    assert (first["threads"], first["per_block"]) == (depth // 4, 1)
    bodies = ["".join(files).split(f" {each['function']}(")[1].split("\n}")[0] for each in (first, last)]
    assert "smelt_fold_row<2048>(" in bodies[0]
    assert bodies[1].count(" = smelt_get_pack<smelt_vector<f32, 4>>(") == 2
    check_rows(program, BLOCKS["q4_0"], depth, width, emulated, seed)


def check_rows(program: Program, row: Block, depth: int, width: int, device: EmulatedCuda, seed: int) -> None:
    """Rows of `feed_forward` are close to the reference, and have the same bits alone and among others."""
    sizes = (width, depth), (width, depth), (depth, width)
    weights: list[Any] = [random_weights(row, a, b // row.length, seed=seed + i) for i, (a, b) in enumerate(sizes)]
    stored = Weights.of({f"w{i + 1}": HostBuffer.of(each) for i, each in enumerate(weights)})
    made = NativeEngine(device.target()).compile(program).prepare(stored)
    x = np.random.default_rng(seed).standard_normal((9, depth), np.float32)
    (want,) = run(program, [x, *weights])
    found = {rows: made(x[:rows])[0].numpy() for rows in (1, 2, 9)}
    np.testing.assert_allclose(found[9], want, rtol=0, atol=2e-3 * np.abs(want).max())
    for rows, got in found.items():
        np.testing.assert_array_equal(got, found[9][:rows])


@pytest.mark.parametrize("columns", [8, 32])
def test_a_single_row_by_one_tile(columns: int, emulated: EmulatedCuda, seed: int) -> None:
    """There is no loop over tiles where the number of rows is known."""
    program = specialise(round_activations(product(BLOCKS["q4_1"], 33, columns)), {"R": 1})
    assert "smelt_block_single<" in emit_source([plan_program(program, emulated.target())]).text()
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    w = random_weights(BLOCKS["q4_1"], columns, 33, seed=seed)
    x = np.random.default_rng(seed).standard_normal((1, 33 * 32), np.float32)
    (want,) = run(program, [x, w])
    np.testing.assert_allclose(made(x, w)[0].numpy(), want, rtol=0, atol=4e-6 * np.abs(want).max())
