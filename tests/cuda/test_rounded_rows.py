"""Rows that the kernel in front rounds, and factors of rows behind products, on a GPU run by the emulator."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from smelt.dim import Size, symbol
from smelt.dtype import Array, f32, ui8
from smelt.engine.compile import emit_source, lower, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.attributes import DotDims
from smelt.ir.blocks import BLOCKS
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.kernel.build import blocks_simt, paged_attention_simt
from smelt.passes.lower_blocks import round_activations
from smelt.shape import Shape
from tests.cuda.emulated import EmulatedCuda
from tests.unit.ir import test_paged_attention_op as paged
from tests.unit.kernel.test_block_dot import Sketch, random_weights

ROWS = 1, 2, 8, 9, 33, 70
EPSILON = 1e-5


def kernels_of(program: Program, device: EmulatedCuda, machine: str = "sm_90") -> list[str]:
    """The kinds of the kernels that a program calls, of which those without work have no launch."""
    *_, text = emit_source([plan_program(program, device.target(machine))]).texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    names = [each["launches"][0]["function"] for each in steps if each.get("launches")]
    return [name.removeprefix("smelt0_").rsplit("_", 1)[0].rstrip("0123456789") for name in names]


class Model(Sketch):
    """Products by unblocked weights, and norms."""

    def multiply(self, x: Value, w: Value, format: str) -> Value:
        dims = DotDims((), (), (1,), (1,))
        dense = self.unblock(BLOCKS[format], w)
        shape = Shape.of(f32, (x.shape.sizes[0], w.shape.sizes[0]))
        return self.f.dot_general(x, dense, dot_dimension_numbers=dims, result=shape)

    def norm(self, x: Value, w: Value | None, epsilon: float = EPSILON) -> Value:
        f, depth = self.f, x.shape.sizes[1]
        assert isinstance(depth, int)
        total = f.reduce_by("add", f.multiply(x, x), 0.0, (1,))
        mean = f.multiply(total, f.full(1 / depth, total.shape))
        factor = f.rsqrt(f.add(mean, f.full(epsilon, total.shape)) if epsilon else mean)
        y = f.multiply(x, f.broadcast_in_dim(factor, broadcast_dimensions=(0,), result=x.shape))
        return y if w is None else f.multiply(y, f.broadcast_in_dim(w, broadcast_dimensions=(1,), result=x.shape))


def weights_of(format: str, columns: int, depth: int) -> Shape:
    row = BLOCKS[format]
    return Shape.of(ui8, (columns, depth // row.length, row.bytes))


def normal_product(format: str, depth: int, columns: int, rows: Size, *, weight: bool, epsilon: float) -> Program:
    """norm(x) times weights; x is an argument, so it is stored."""
    model = Model(Shape.of(f32, (rows, depth)), Shape.of(f32, (depth,)), weights_of(format, columns, depth))
    x, scale, w = model.f.args
    y = model.norm(x, scale if weight else None, epsilon)
    return round_activations(model.program(model.multiply(y, w, format)))


def compiled(program: Program, device: EmulatedCuda, machine: str = "sm_90") -> Any:
    (made,) = compile_all([program], device.target(machine))
    assert not isinstance(made, SmeltError), made
    return made


def close(got: Array, want: Array, error: float) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=error * np.abs(want[np.isfinite(want)]).max())


@pytest.mark.parametrize("machine", ["sm_90", "sm_80"])
@pytest.mark.parametrize(("format", "weight"), [("q4_0", True), ("q4_k", False), ("q8_0", True), ("q4_1", True)])
def test_factors_of_rows(format: str, weight: bool, machine: str, emulated: EmulatedCuda, seed: int) -> None:
    """They are computed beside the product of one row, in a launch for several; a row has the same bits among any
    others."""
    depth, columns, random = 512, 48, np.random.default_rng(seed)
    program = normal_product(format, depth, columns, symbol("R"), weight=weight, epsilon=EPSILON)
    lowered = lower(program, emulated.target(machine))
    (dot,) = [op for op in lowered.main.body.ops if op.name == "smelt.packed_block_dot"]
    assert len(dot.operands) == 5
    found = [each for each in kernels_of(program, emulated, machine) if each != "map"]  # which packs
    assert found == ["round_blocks", "packed_block_dot"]
    x, scale = (random.standard_normal(size).astype(np.float32) for size in ((ROWS[-1], depth), (depth,)))
    x *= np.exp(4 * random.standard_normal((ROWS[-1], 1))).astype(np.float32)
    w = random_weights(BLOCKS[format], columns, depth // BLOCKS[format].length, seed=seed)
    (want,), (plain,) = run(lowered, [x, scale, w]), run(program, [x, scale, w])
    made = compiled(program, emulated, machine)
    every = [made(x[:rows], scale, w)[0].numpy() for rows in ROWS]
    close(every[-1], want, 4e-6)
    close(every[-1], plain, 2e-3)  # a step where a quotient is in the middle between two integers
    for rows, got in zip(ROWS, every, strict=True):
        np.testing.assert_array_equal(got, every[-1][:rows])


@pytest.mark.parametrize("rows", [1, 9])
def test_a_number_of_rows_that_is_known(rows: int, emulated: EmulatedCuda, seed: int) -> None:
    depth, columns, random = 2080, 80, np.random.default_rng(seed)
    program = normal_product("q4_0", depth, columns, rows, weight=True, epsilon=EPSILON)
    x, scale = (random.standard_normal(size).astype(np.float32) for size in ((rows, depth), (depth,)))
    w = random_weights(BLOCKS["q4_0"], columns, depth // 32, seed=seed)
    (want,) = run(lower(program, emulated.target()), [x, scale, w])
    close(compiled(program, emulated)(x, scale, w)[0].numpy(), want, 4e-6)


@pytest.mark.parametrize("epsilon", [0.0, EPSILON])
def test_rows_that_are_not_finite(epsilon: float, emulated: EmulatedCuda, seed: int) -> None:
    """A row is NaN where the reference says so; a row of zeros is zero with an epsilon; one whose squares overflow is
    zero."""
    depth, columns, random = 256, 32, np.random.default_rng(seed)
    program = normal_product("q4_0", depth, columns, symbol("R"), weight=True, epsilon=epsilon)
    x, scale = (random.standard_normal(size).astype(np.float32) for size in ((9, depth), (depth,)))
    x[0, 3], x[1, 200], x[2], x[3] = np.inf, np.nan, 0, x[3] * np.float32(1e25)
    x[4], x[5], x[6, 17] = x[4] * np.float32(1e-15), x[5] * np.float32(1e-30), -np.inf
    w = random_weights(BLOCKS["q4_0"], columns, depth // 32, seed=seed)
    (want,) = run(program, [x, scale, w])
    assert np.isnan(want[[0, 1, 6]]).all()
    assert (want[3] == 0).all()
    assert np.isnan(want[2]).all() if epsilon == 0 else (want[2] == 0).all()
    made = compiled(program, emulated)
    for got in (made(x, scale, w)[0].numpy(), np.concatenate([made(row[None], scale, w)[0].numpy() for row in x])):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        for one, other in zip(got, want, strict=True):
            if np.isfinite(other).all():
                np.testing.assert_allclose(one, other, rtol=0, atol=4e-3 * np.abs(other).max())


def rounded_product(format: str, depth: int, columns: int, *, kept: bool) -> Program:
    """y = a by weights + x (`kept`: it is a result) and what `smelt.round_blocks` makes of y * s."""
    rows = symbol("R")
    shapes = Shape.of(f32, (rows, depth)), Shape.of(f32, (rows, columns)), Shape.of(f32, (columns,))
    model = Model(*shapes, weights_of(format, columns, depth))
    a, x, scale, w = model.f.args
    f = model.f
    y = f.add(x, model.multiply(a, w, format))
    spread = f.broadcast_in_dim(scale, broadcast_dimensions=(1,), result=y.shape)
    flat = f.reshape(f.multiply(y, spread), result=Shape.of(f32, (1, rows, columns)))
    group, zero = ROUNDINGS[format]
    rounded = f.op("smelt.round_blocks", flat, group=group, zero=zero).results
    return round_activations(model.program(*([y] if kept else []), *rounded))


ROUNDINGS = {  # by format: groups, and the zero of codes
    "q4_0": (32, 8),
    "q4_k": (32, 0),
    "q8_0": (32, 128),
    "q6_k": (16, 32),
    "q4_1": (32, 0),
}


def same_rounding(format: str, x: Array, got: list[Array]) -> None:
    """Bits of the reference for rows [row, k] of f32."""
    sketch, (group, zero) = Sketch(Shape.of(f32, (1, *x.shape))), ROUNDINGS[format]
    rounded = sketch.f.op("smelt.round_blocks", sketch.f.args[0], group=group, zero=zero).results
    for want, each in zip(run(sketch.program(*rounded), [x[None]]), got, strict=True):
        np.testing.assert_array_equal(each, want)


@pytest.mark.races
@pytest.mark.parametrize("format", ["q4_0", "q4_k", "q8_0", "q4_1", "q6_k"])
def test_a_product_rounds_what_it_stores(format: str, emulated: EmulatedCuda, seed: int) -> None:
    """Of any number of rows, with the bits of a launch of its own; also where there are several tiles, and rows that
    are not finite."""
    depth, columns, random = 512, 160, np.random.default_rng(seed)
    program = rounded_product(format, depth, columns, kept=True)
    found = [each for each in kernels_of(program, emulated) if each != "map"]
    assert found == ["round_blocks", "packed_block_dot"]
    sizes = (ROWS[-1], depth), (ROWS[-1], columns), (columns,)
    a, x, scale = (random.standard_normal(size).astype(np.float32) for size in sizes)
    x[3], x[5, :40], x[6, 70], x[7, 140] = 1e30, 1e-40, np.inf, np.nan
    w = random_weights(BLOCKS[format], columns, depth // BLOCKS[format].length, seed=seed)
    made = compiled(program, emulated)
    every = [[each.numpy() for each in made(a[:rows], x[:rows], scale, w)] for rows in ROWS]
    for rows, (y, *rounded) in zip(ROWS, every, strict=True):
        with np.errstate(all="ignore"):
            same_rounding(format, y * scale, rounded)
        np.testing.assert_array_equal(y, every[-1][0][:rows])
    want = run(program, [a, x, scale, w])[0]
    finite = np.isfinite(want) & (np.abs(want) < 1e20)
    np.testing.assert_allclose(every[-1][0][finite], want[finite], rtol=0, atol=4e-6 * np.abs(want[finite]).max())


@pytest.mark.parametrize("machine", ["sm_90", "sm_80"])
def test_what_is_rounded_alone_is_not_stored(machine: str, emulated: EmulatedCuda, seed: int) -> None:
    depth, columns, random = 256, 96, np.random.default_rng(seed)
    programs = [rounded_product("q4_0", depth, columns, kept=kept) for kept in (True, False)]
    assert kernels_of(programs[0], emulated, machine) == kernels_of(programs[1], emulated, machine)
    held = [plan_program(each, emulated.target(machine)).main[0].buffers for each in programs]
    whole = Shape.of(f32, (symbol("R"), columns))
    assert [sum(each.shape == whole and each.kind != "argument" for each in buffers) for buffers in held] == [1, 0]
    sizes = (ROWS[-1], depth), (ROWS[-1], columns), (columns,)
    a, x, scale = (random.standard_normal(size).astype(np.float32) for size in sizes)
    w = random_weights(BLOCKS["q4_0"], columns, depth // 32, seed=seed)
    made, other = (compiled(each, emulated, machine) for each in programs)
    for rows in ROWS:
        y, *want = (each.numpy() for each in made(a[:rows], x[:rows], scale, w))
        same_rounding("q4_0", y * scale, want)
        for one, two in zip(other(a[:rows], x[:rows], scale, w), want, strict=True):
            np.testing.assert_array_equal(one.numpy(), two)


def test_large_tiles_round_as_small_ones_do(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of them has a part of its columns."""
    depth, columns, random = 512, 160, np.random.default_rng(seed)
    program = rounded_product("q4_0", depth, columns, kept=True)
    arrays = [random.standard_normal(size).astype(np.float32) for size in ((140, depth), (140, columns), (columns,))]
    w = random_weights(BLOCKS["q4_0"], columns, depth // 32, seed=seed)
    found = []
    for enough in (blocks_simt.ENOUGH, 1):
        monkeypatch.setattr(blocks_simt, "ENOUGH", enough)
        assert "smelt_block_tile<" in emit_source([plan_program(program, emulated.target())]).text()
        y, *rounded = (each.numpy() for each in compiled(program, emulated)(*arrays, w))
        same_rounding("q4_0", y * arrays[2], rounded)
        found.append(y)
    np.testing.assert_array_equal(*found)


def layer(depth: int, width: int) -> Program:
    """z = y + down(act(up(norm(y)))) with y = x + out(a): two norms, and two residuals."""
    rows, format = symbol("R"), "q4_0"
    shapes = [weights_of(format, *each) for each in ((depth, depth), (width, depth), (depth, width))]
    model = Model(*[Shape.of(f32, (rows, depth))] * 2, Shape.of(f32, (depth,)), *shapes)
    f = model.f
    a, x, scale, out, up, down = f.args
    y = f.add(x, model.multiply(a, out, format))
    inner = model.multiply(model.norm(y, scale), up, format)
    return round_activations(
        model.program(f.add(y, model.multiply(f.multiply(inner, f.logistic(inner)), down, format)), y)
    )


@pytest.mark.races
def test_a_layer_has_a_launch_for_each_product(emulated: EmulatedCuda, seed: int) -> None:
    depth, width, random = 256, 320, np.random.default_rng(seed)
    program = layer(depth, width)
    found = [each for each in kernels_of(program, emulated) if each != "map"]
    assert found == ["round_blocks", *["packed_block_dot"] * 3]
    a, x = (random.standard_normal((ROWS[-1], depth)).astype(np.float32) for _ in range(2))
    scale = random.standard_normal(depth).astype(np.float32)
    sizes = (depth, depth), (width, depth), (depth, width)
    weights = [random_weights(BLOCKS["q4_0"], one, two // 32, seed=seed + i) for i, (one, two) in enumerate(sizes)]
    want, _ = run(lower(program, emulated.target()), [a, x, scale, *weights])
    plain, _ = run(program, [a, x, scale, *weights])
    made = compiled(program, emulated)
    every = [made(a[:rows], x[:rows], scale, *weights)[0].numpy() for rows in ROWS]
    close(every[-1], want, 2e-3)  # steps where the last bit of a sum moves a quotient
    close(every[-1], plain, 4e-3)
    for rows, got in zip(ROWS, every, strict=True):
        np.testing.assert_array_equal(got, every[-1][:rows])


def test_two_formats_of_the_same_rows(emulated: EmulatedCuda, seed: int) -> None:
    """The kernel in front rounds them for both; each product multiplies its result by the factors."""
    depth, width, random = 512, 96, np.random.default_rng(seed)
    rows = symbol("R")
    formats = {"q4_k": (depth, depth), "q4_0": (width, depth), "q6_k": (width, depth)}
    shapes = [weights_of(format, *size) for format, size in formats.items()]
    model = Model(*[Shape.of(f32, (rows, depth))] * 2, Shape.of(f32, (depth,)), *shapes)
    a, x, scale, *weights = model.f.args
    y = model.f.add(x, model.multiply(a, weights[0], "q4_k"))
    normal = model.norm(y, scale)
    results = [model.multiply(normal, w, format) for w, format in zip(weights[1:], ("q4_0", "q6_k"), strict=True)]
    program = round_activations(model.program(*results, y))
    found = [each for each in kernels_of(program, emulated) if each != "map"]
    assert found == ["round_blocks", *["packed_block_dot"] * 3]
    arrays = [random.standard_normal(size).astype(np.float32) for size in ((9, depth), (9, depth), (depth,))]
    arrays += [
        random_weights(BLOCKS[format], columns, size // BLOCKS[format].length, seed=seed)
        for format, (columns, size) in formats.items()
    ]
    *want, _ = run(program, arrays)
    made = compiled(program, emulated)
    *every, _ = (each.numpy() for each in made(*arrays))
    for got, expected in zip(every, want, strict=True):
        close(got, expected, 4e-3)
    *one, _ = (each.numpy() for each in made(arrays[0][:1], arrays[1][:1], *arrays[2:]))
    for got, expected in zip(one, every, strict=True):
        np.testing.assert_array_equal(got, expected[:1])


# heads, groups, depth, values, page, window, softcap, sinks, element type of the pages
PAGED = {
    "shared heads": (4, 2, 64, 128, 64, 0, 0.0, False, "bf16"),
    "many heads, window, sinks": (20, 1, 32, 64, 16, 50, 2.0, True, "bf16"),
    "f32": (6, 2, 8, 32, 4, 0, 0.0, False, "f32"),
}


def rounded_attention(case: tuple[Any, ...], gated: bool = False) -> Program:
    """The rounded rows of attention, times a number of each element if `gated`."""
    (op,) = [each for each in paged.program(case).main.body.ops if each.name == "smelt.paged_attention"]
    types = [*(each.shape for each in op.operands), op.result.shape]
    f = FuncBuilder("main", types)
    *args, gate = f.args
    x = f.op(op.name, *args, **op.attrs).result
    x = f.multiply(x, f.logistic(gate)) if gated else x
    count, heads, values = x.shape.sizes
    flat = f.reshape(x, result=Shape.of(f32, (1, count, heads * values)))
    return Program.of(f.func(*f.op("smelt.round_blocks", flat, group=32, zero=8).results))


def choose_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for few queries: clusters, a block for each, chunks that a later launch joins."""
    if name == "blocks":
        monkeypatch.setattr(paged_attention_simt, "LEAST_HEADS", 1)
    if name != "clusters":
        monkeypatch.setattr(paged_attention_simt, "CLUSTERS", {8: 0})
    if name == "chunks":
        monkeypatch.setattr(paged_attention_simt, "DECODE_CHUNKS", 1)


@pytest.mark.parametrize("kernels", ["clusters", "blocks", "chunks"])
@pytest.mark.parametrize("name", PAGED)
def test_attention_rounds_its_rows(
    name: str, kernels: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of attention without it, rounded by the reference: of one query, and of a few."""
    choose_kernels(kernels, monkeypatch)
    check_attention(name, [(0, 1), (11, 20)], emulated, seed)


def test_chunks_are_read_together(emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them, each with two numbers and the elements of a thread, before any is used."""
    choose_kernels("chunks", monkeypatch)
    text = emit_source([plan_program(rounded_attention(PAGED["shared heads"]), emulated.target())]).text()
    before, mark, behind = text.rpartition("    SMELT_READ();\n")
    assert mark
    reads = before[before.rindex(" for (") :].splitlines()
    assert sum(" = b" in line for line in reads) == paged_attention_simt.JOINED * (2 + 128 // 32)
    assert " = b" not in behind[: behind.index(" / ")]  # the quotient at the end


@pytest.mark.races
@pytest.mark.parametrize("kernels", ["clusters", "blocks", "chunks"])
def test_attention_puts_its_rows_into_shared_memory(
    kernels: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_kernels(kernels, monkeypatch)
    check_attention("shared heads", [(10, 12)], emulated, seed)


@pytest.mark.parametrize("name", PAGED)
def test_rows_of_many_queries(name: str, emulated: EmulatedCuda, seed: int) -> None:
    """A further launch of the same kernel rounds them."""
    check_attention(name, [(0, 66)], emulated, seed)


def check_attention(name: str, parts: list[tuple[int, int]], emulated: EmulatedCuda, seed: int) -> None:
    case = PAGED[name]
    program = rounded_attention(case)
    assert kernels_of(program, emulated) == ["paged_attention"]
    whole, made = compiled(paged.program(case), emulated), compiled(program, emulated)
    given = paged.inputs(case, seed)
    for start, end in parts:
        some = list(given)
        for i in (0, 4, 5):
            some[i] = np.resize(given[i], (end, *given[i].shape[1:]))[start:]
        x = whole(*some)[0].numpy()
        got = [each.numpy() for each in made(*some, np.zeros(x.shape, np.float32))]
        same_rounding("q4_0", x.reshape(len(x), -1), got)


def test_gated_attention_rounds_its_rows(emulated: EmulatedCuda, seed: int) -> None:
    case = PAGED["shared heads"]
    program = rounded_attention(case, gated=True)
    assert kernels_of(program, emulated) == ["paged_attention"]
    given = paged.inputs(case, seed)
    gate = np.random.default_rng(seed).standard_normal((len(given[0]), case[0], case[3]), np.float32)
    got = [each.numpy() for each in compiled(program, emulated)(*given, gate)]
    want = run(program, [*given, gate])
    assert np.abs(got[0].astype(int) - want[0].astype(int)).max() <= 1
    np.testing.assert_allclose(got[1], want[1], rtol=0, atol=2e-5 * want[1].max())
