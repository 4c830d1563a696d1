"""Products by block-quantised weights: native gives the bits of the decomposition, for every format and target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device.runtime import runtime
from smelt.dim import symbol
from smelt.dtype import Array, bf16, f32, i32, ui8
from smelt.engine import platform
from smelt.engine.compile import lower
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import DeviceError, UnsupportedError
from smelt.ir.attributes import DotDims, GatherDims
from smelt.ir.block_layout import Layout
from smelt.ir.block_ops import decomposition
from smelt.ir.blocks import BLOCKS, TABLE, Bits, Block, Integers, check_precision, decode
from smelt.ir.build import FuncBuilder
from smelt.ir.composites import encode
from smelt.ir.core import Func, Op, Program, Value, walk
from smelt.ir.interpret import run
from smelt.ir.verify import verify
from smelt.passes.lower_blocks import round_activations
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from tests.unit.kernel.test_int8_gemm import target_of

SPECIAL = np.array([np.inf, -np.inf, np.nan, 1e38, 1e-38, 1e-45, -0.0, 65504], np.float32)


def random_weights(row: Block, *lead: int, seed: int) -> Array:
    """Blocks of any bytes, their scales within reason."""
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, (*lead, row.bytes), np.uint8)
    if row.exponent:
        data[..., row.scale] = random.integers(110, 140, lead)
        return data
    for at in (row.scale, row.minimum):
        if at is not None:
            data[..., at + 1] = data[..., at + 1] & 0x83 | 0x24
    return data


class Sketch:
    """A function under construction in which matrices are unblocked."""

    def __init__(self, *args: Shape, weights: tuple[int, ...] = ()) -> None:
        attrs = [{WEIGHT: f"w{i}"} if i in weights else {} for i in range(len(args))]
        self.f, self.funcs = FuncBuilder("main", args, arg_attrs=attrs), dict[str, Func]()

    def unblock(self, row: Block, w: Value) -> Value:
        func = decomposition(row, w.shape.numbers()[:-1], f"unblock{len(self.funcs)}")
        self.funcs[func.name] = func
        self.f.signatures[func.name] = func.type
        said = encode("smelt.unblock", {"format": row.name})
        attrs: dict[str, Any] = {"composite_attributes": said, "decomposition": func.name}
        return self.f.op("stablehlo.composite", w, name="smelt.unblock", **attrs).result

    def program(self, *results: Value) -> Program:
        made = Program.of(self.f.func(*results), *self.funcs.values())
        verify(made)
        return made


def product(row: Block, blocks: int, columns: int, groups: int | None = None) -> Program:
    """x[R, k] by an unblocked w[column, k]; with groups, x[R, g, k] by w[g, column, k]."""
    rows, depth = symbol("R"), blocks * row.length
    lead = () if groups is None else (groups,)
    sketch = Sketch(Shape.of(f32, (rows, *lead, depth)), Shape.of(ui8, (*lead, columns, blocks, row.bytes)))
    x, w = sketch.f.args
    dense = sketch.unblock(row, w)
    dims = DotDims((), (), (1,), (1,)) if groups is None else DotDims((1,), (0,), (2,), (2,))
    sizes = (rows, columns) if groups is None else (groups, rows, columns)
    return sketch.program(sketch.f.dot_general(x, dense, dot_dimension_numbers=dims, result=Shape.of(f32, sizes)))


def bind(made: Any, w: Array) -> Any:
    return made.prepare({"w1": HostBuffer.of(w)})


def names(program: Program) -> list[str]:
    return [_name(op) for func in program.funcs.values() for op in walk(func.body)]


def _name(op: Op) -> str:
    return op.attrs["name"] if op.name == "stablehlo.composite" else op.name


def same_bits(got: Array, want: Array) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    there = ~np.isnan(want)
    np.testing.assert_array_equal(got[there].view(np.uint32), want[there].view(np.uint32))


@pytest.mark.parametrize("name", ["native", "half", "avx512", "avx2", "plain"])
def test_every_format_gives_the_bits_of_the_decomposition(name: str, seed: int) -> None:
    target = target_of(name)
    cases: list[tuple[Block, int, int, int | None]] = [(row, 3 if row.length == 32 else 2, 21, None) for row in TABLE]
    cases += [(BLOCKS["q4_0"], 5, 40, 3), (BLOCKS["q6_k"], 1, 3, 2)]
    programs = [round_activations(product(*case)) for case in cases]
    random = np.random.default_rng(seed)
    for case, program, made in zip(cases, programs, compile_all(programs, target), strict=True):
        if isinstance(made, DeviceError) and "cannot run code" in str(made):
            pytest.skip(str(made))
        assert not isinstance(made, Exception), made
        row, blocks, columns, groups = case
        assert names(program).count("smelt.block_dot") == 1
        lead = () if groups is None else (groups,)
        w = random_weights(row, *lead, columns, blocks, seed=seed)
        for rows in (0, 1, 2, 5, 9):
            x = random.standard_normal((rows, *lead, blocks * row.length), np.float32)
            if rows:
                x[0, ..., :40] = 0
                x[-1] *= random.choice(np.array([1e-30, 1, 1e20], np.float32), x[-1].shape)
            if rows == 9:
                x[2, ..., 5] = SPECIAL[random.integers(len(SPECIAL))]
            (want,) = run(program, [x, w])
            same_bits(made(x, w)[0], want)
            if rows == 5 and name == "native":
                (exact,) = run(product(*case), [x, w])
                most = np.abs(exact).max() / 30  # activations are rounded to 8 bits
                np.testing.assert_allclose(made(x, w)[0], exact, rtol=0, atol=most)
        for fill in (0, 255):  # the largest sums: whatever adds up fewer bits than it should overflows
            w[...] = fill
            for at in (row.scale, row.minimum):
                if at is not None:
                    w[..., at : at + 2] = [0, 0x3C]  # 1.0
            x = np.ones((3, *lead, blocks * row.length), np.float32)
            x[1] = -1
            same_bits(made(x, w)[0], run(program, [x, w])[0])


@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q8_0"])
def test_activations_round_to_even_and_those_without_a_number_count_zero(format: str, seed: int) -> None:
    row = BLOCKS[format]
    program = round_activations(product(row, 2, 16))
    made = NativeEngine().compile(program)
    w = random_weights(row, 16, 2, seed=seed)
    random = np.random.default_rng(seed)
    x = random.integers(-126, 126, (40, 64)).astype(np.float32) + np.float32(0.5)
    x[:, ::32] = 127  # the scale is 1
    x[30:, 3] = [np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-38, 1e-45, -0.0, 0]
    x[32:34, 9], x[36:, 32:] = np.nan, 1e-40
    same_bits(made(x, w)[0], run(program, [x, w])[0])


@pytest.mark.parametrize("format", ["q4_1", "q6_k"])
def test_a_row_is_the_same_in_any_batch_on_any_threads(format: str, seed: int) -> None:
    row = BLOCKS[format]
    blocks = 6 if row.length == 32 else 1
    made = NativeEngine().compile(round_activations(product(row, blocks, 700)))
    x = np.random.default_rng(seed).standard_normal((131, blocks * row.length), np.float32)
    w = random_weights(row, 700, blocks, seed=seed)
    whole = made(x, w)[0].copy()
    before = runtime().threads
    try:
        for threads in (1, 3):
            runtime().set_threads(threads)
            for first, last in ((0, 1), (3, 5), (7, 20), (31, 131)):
                np.testing.assert_array_equal(made(x[first:last], w)[0], whole[first:last])
    finally:
        runtime().set_threads(before)


def test_products_of_the_same_rows_by_few_columns_are_one(seed: int) -> None:
    """Whole panels of up to 1024 columns are merged, in one format each; the bits stay."""
    random, depth, rows = np.random.default_rng(seed), 192, symbol("R")
    columns = [("q4_0", 48), ("q4_0", 16), ("q4_1", 32), ("q4_0", 21), ("q4_0", 1040), ("q4_1", 64), ("q4_0", 32)]
    stored = [Shape.of(ui8, (count, depth // 32, BLOCKS[name].bytes)) for name, count in columns]
    sketch = Sketch(Shape.of(f32, (rows, depth)), *stored)
    x, *ws = sketch.f.args
    results = [
        sketch.f.dot_general(
            x,
            sketch.unblock(BLOCKS[name], w),
            dot_dimension_numbers=DotDims((), (), (1,), (1,)),
            result=Shape.of(f32, (rows, count)),
        )
        for (name, count), w in zip(columns, ws, strict=True)
    ]
    program = round_activations(sketch.program(*results))
    lowered = lower(program, target_of("native"))
    assert names(lowered).count("smelt.packed_block_dot") == 4
    made = NativeEngine().compile(program)
    weights = [
        random_weights(BLOCKS[name], count, depth // 32, seed=seed + i) for i, (name, count) in enumerate(columns)
    ]
    given = [random.standard_normal((11, depth), np.float32), *weights]
    for got, want in zip(made(*given), run(program, given), strict=True):
        same_bits(got, want)


def lookups(dims: GatherDims, sizes: tuple[int, ...], row: Block, tied: bool) -> Program:
    """Rows of an unblocked matrix at some places; `tied`: and products by the same matrix."""
    count, blocks = 37, 2
    bytes = Shape.of(ui8, (count, blocks, row.bytes))
    sketch = Sketch(Shape.of(i32, (symbol("S"),)), bytes, weights=(1,))
    places, w = sketch.f.args
    table = sketch.unblock(row, w)
    found = sketch.f.gather(table, places, dimension_numbers=dims, slice_sizes=sizes)
    if not tied:
        return sketch.program(found)
    wide = Shape.of(f32, (symbol("S"), count))
    return sketch.program(
        found, sketch.f.dot_general(found, table, dot_dimension_numbers=DotDims((), (), (1,), (1,)), result=wide)
    )


def test_rows_are_looked_up_in_the_bytes(seed: int) -> None:
    dims = GatherDims((1,), (0,), (), (), (0,), 1)
    places = np.array([0, 36, 15, 16, 99, -4, 15], np.int32)
    cases = [(row, tied) for row in TABLE for tied in (False, True)]
    programs = [round_activations(lookups(dims, (1, 2 * row.length), row, tied)) for row, tied in cases]
    for (row, tied), program, made in zip(cases, programs, compile_all(programs), strict=True):
        assert not isinstance(made, Exception), made
        w = random_weights(row, 37, 2, seed=seed)
        found, *dots = bind(made, w)(places)
        same_bits(found, decode(row, w)[places.clip(0, 36)])
        lowered = lower(program)
        (held,) = [value.shape for value in lowered.funcs["prepare"].results]
        most = Layout(row).record * 3 * 2 if tied else w.nbytes  # 37 columns are three panels
        assert held.dtype == ui8
        assert np.prod(held.numbers()) == most
        if tied:
            want = run(program, [places, w])
            same_bits(dots[0], want[1])
            if row.name in ("q4_1", "q2_k"):  # the packed ops have the same semantics in the reference
                prepare = Program.of(Func("main", lowered.funcs["prepare"].body, "public"))
                same_bits(run(lowered, [*run(prepare, [w]), places])[1], want[1])


def test_other_lookups_and_matmuls_are_unchanged(seed: int) -> None:
    """A part of a row, or a sum over another axis: in f32, on opened weights."""
    row = BLOCKS["q4_0"]
    w = random_weights(row, 37, 2, seed=seed)
    program = lookups(GatherDims((1,), (0,), (), (), (0,), 1), (1, 32), row, False)
    (made,) = compile_all([program])
    assert not isinstance(made, Exception)
    places = np.array([3, 36], np.int32)
    same_bits(bind(made, w)(places)[0], decode(row, w)[places, :32])
    sketch = Sketch(Shape.of(f32, (3, 37)), Shape.of(ui8, w.shape))
    x, bytes = sketch.f.args
    dims = DotDims((), (), (1,), (0,))
    other = sketch.program(sketch.f.dot_general(x, sketch.unblock(row, bytes), dot_dimension_numbers=dims))
    assert round_activations(other) is other


def test_activations_are_rounded_to_the_type_of_bf16_weights(seed: int) -> None:
    """A row's bits are the same alone and among others."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((37, 320), np.float32)
    w = random.standard_normal((50, 320), np.float32).astype(bf16.numpy)
    f = FuncBuilder(
        "main", [Shape.of(f32, (symbol("M"), 320)), Shape.of(bf16, w.shape)], arg_attrs=[{}, {WEIGHT: "w1"}]
    )
    wide = f.convert(f.args[1], result=Shape.of(f32, w.shape))
    program = Program.of(f.func(f.dot_general(f.args[0], wide, dot_dimension_numbers=DotDims((), (), (1,), (1,)))))
    (made,) = compile_all([round_activations(program)])
    assert not isinstance(made, Exception)
    bound = bind(made, w)
    got = np.asarray(bound(x)[0])
    expected = x.astype(bf16.numpy).astype(np.float64) @ w.astype(np.float64).T
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    same_bits(bound(x[5:6])[0], got[5:6])


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="precision"):
        check_precision("q4")


# ---- formats that are not in the table ----


def _bits(at: int, width: int, shifts: tuple[int, ...], mask: int, up: int = 0) -> Bits:
    return Bits(at, 1, width, shifts, mask, up)


# 64 elements of 3 bits, less 4, in groups of 16: an f16, four 4-bit integers, low bits, high bits.
TOY = Block(
    "toy",
    1000,
    64,
    28,
    Integers(((_bits(4, 16, (0, 2, 4, 6), 3), _bits(20, 8, tuple(range(8)), 1, 2)),), 4),
    0,
    scales=Integers(((_bits(2, 2, (0, 4), 15),),)),
)


def decode_toy(data: Array) -> Array:
    """What the bytes of `TOY` stand for, written down a second time."""
    scale = np.ascontiguousarray(data[..., :2]).view(np.float16).astype(np.float32)
    groups = np.stack([data[..., 2] & 15, data[..., 3] & 15, data[..., 2] >> 4, data[..., 3] >> 4], -1)
    low = np.concatenate([data[..., 4:20] >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    high = np.concatenate([data[..., 20:28] >> shift & 1 for shift in range(8)], -1)
    factor = np.repeat(scale * groups.astype(np.float32), 16, -1)
    return (factor * ((low | high << 2).astype(np.float32) - 4)).reshape(*data.shape[:-2], -1)


def random_format(random: np.random.Generator, number: int) -> Block:
    """Any format: also such that records cannot hold it."""
    bits, length = int(random.integers(1, 9)), int(random.choice([16, 32, 48, 64, 128]))
    at = int(random.integers(0, 3)) + 4
    levels = _bits(at, length, (0,), (1 << bits) - 1)
    codebook = (
        tuple(int(x) for x in random.integers(-127, 128, 1 << bits)) if bits < 6 and random.random() < 0.3 else ()
    )
    zero = 0 if codebook else int(random.choice([0, 1 << bits >> 1, 3]))
    signed = not codebook and zero == 0 and random.random() < 0.3
    end, scales, minimum, minimums = at + length, None, None, None
    if random.random() < 0.6:
        groups = length // int(random.choice([8, 16]))
        wide = int(random.choice([15, 63, 255]))
        scales = Integers(((_bits(end, groups, (0,), wide),),), int(random.choice([0, 0, 5])), signed=wide == 255)
        end += groups
    if random.random() < 0.5:
        minimum = 2
        if scales is not None and random.random() < 0.7:
            minimums = Integers(((_bits(end - scales.count, scales.count, (4,), 15),),))
    return Block(
        f"any{number}",
        1001 + number,
        length,
        end,
        Integers(((levels,),), zero, signed),
        0,
        scales=scales,
        minimum=minimum,
        minimums=minimums,
        codebook=codebook,
    )


def test_a_new_format_is_one_row(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [TOY, *(random_format(random, i) for i in range(8))]
    for row in rows:
        monkeypatch.setitem(BLOCKS, row.name, row)
    cases = [(row, 96 // row.length if row.length == 48 else -(-64 // row.length), 19) for row in rows]
    programs = [form(product(*case)) for case in cases for form in (lambda program: program, round_activations)]
    assert {names(each).count("smelt.block_dot") for each in programs[1::2]} == {0, 1}
    assert names(programs[1]).count("smelt.block_dot") == 1
    for engine in ("native", "pjrt"):
        if engine == "pjrt":
            pytest.importorskip("jaxlib")
            made: list[Any] = [platform("cpu", engine).engine.compile(each) for each in programs[:4]]
        else:
            made = [*compile_all(programs, target_of("native"))]
        for i, each in enumerate(made):
            if isinstance(each, Exception):
                raise each
            row, blocks, columns = cases[i // 2]
            w = random_weights(row, columns, blocks, seed=seed + i)
            x = random.standard_normal((3, blocks * row.length), np.float32)
            (got,), (want,) = each(x, w), run(programs[i], [x, w])
            got = got if isinstance(got, np.ndarray) else got.numpy()
            exact = x.astype(np.float64) @ decode(row, w).astype(np.float64).T
            if i < 2:
                np.testing.assert_array_equal(decode(row, w), decode_toy(w))
            if engine == "native" and names(programs[i]).count("smelt.block_dot"):
                same_bits(got, want)
            rounding = 1e-5 if i % 2 == 0 else 0.02
            most = np.abs(x).astype(np.float64) @ np.abs(decode(row, w)).astype(np.float64).T
            np.testing.assert_array_less(np.abs(got - exact), rounding * most + 1e-30)
            np.testing.assert_array_less(np.abs(want - exact), rounding * most + 1e-30)
