"""Dense layers in bf16 on tensor cores, run by the emulator: GEMM and convolution with every size of tile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.buffer import HostBuffer
from smelt.device import cache
from smelt.device.cuda import TARGETS
from smelt.dtype import dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine, compile_all
from smelt.engine.reference import ReferenceEngine
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.integer import reduce_precision
from smelt.ir.text import parse, print_program
from smelt.kernel.build import conv_simt, gemm_simt
from smelt.kernel.build.gemm_simt import TensorSize
from smelt.kernel.loops import simt
from smelt.kernel.loops.form import TENSOR_BF16
from smelt.kernel.tune.schedules import TENSOR_TILES
from smelt.passes.quantise import with_precision
from smelt.weights import Weights
from tests.cuda.emulated import EmulatedCuda, compile_emulated

BF16 = dtype("bf16").numpy
ROUNDING = 2**-8  # of a result in bf16, relative to the largest one


Call = tuple[Program, dict[str, Any], tuple[Any, ...]]  # a program, its weights and its inputs


def run_all(calls: list[Call], machine: str, times: int = 1) -> list[Any]:
    """The result of each call, the same every time. One compilation for all of them: most of the time goes there."""
    found = []
    for (_, weights, inputs), made in zip(
        calls, compile_all([program for program, *_ in calls], TARGETS[machine]), strict=True
    ):
        assert not isinstance(made, SmeltError), made
        ready = made.prepare(Weights.of({name: HostBuffer.of(each) for name, each in weights.items()}))
        first, *others = (ready(*inputs)[0].numpy() for _ in range(times))
        for each in others:
            np.testing.assert_array_equal(each, first)
        found.append(first.astype(np.float64))
    return found


def run_with(program: Program, machine: str, weights: dict[str, Any], *inputs: Any) -> Any:
    (found,) = run_all([(program, weights, inputs)], machine)
    return found


def source(program: Program, machine: str) -> str:
    return emit_source([plan_program(program, TARGETS[machine])]).text()


def convolution(batch: int, side: int, channels: int, features: int, window: int, stride: int, pad: int) -> Program:
    """A convolution of bf16, a residual, and a ReLU."""
    out = (side + 2 * pad - window) // stride + 1
    x, w = f"tensor<{batch}x{side}x{side}x{channels}xbf16>", f"tensor<{window}x{window}x{channels}x{features}xbf16>"
    wide = f"tensor<{batch}x{out}x{out}x{features}xf32>"
    narrow = wide.replace("f32", "bf16")
    return parse(f"""func.func @main(%x: {x}, %y: {narrow}, %w: {w} {{smelt.weight = "w"}}) -> {narrow} {{
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [{stride}, {stride}], pad = [[{pad}, {pad}], [{pad}, {pad}]]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({x}, {w}) -> {wide}
  %1 = stablehlo.convert %y : ({narrow}) -> {wide}
  %2 = stablehlo.add %0, %1 : {wide}
  %z = stablehlo.constant dense<0.0> : {wide}
  %3 = stablehlo.maximum %2, %z : {wide}
  %4 = stablehlo.convert %3 : ({wide}) -> {narrow}
  return %4 : {narrow}
}}""")


def convolve(x: Any, w: Any, y: Any, stride: int, pad: int) -> Any:
    """The same in doubles."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    total = y.astype(np.float64)
    high, wide = ((size - 1) * stride + 1 for size in y.shape[1:3])
    for i, j in np.ndindex(*w.shape[:2]):
        total = total + padded[:, i : i + high : stride, j : j + wide : stride] @ w[i, j].astype(np.float64)
    return np.maximum(total, 0)


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((2, 6, 32, 24, 3, 1, 1), (64, 64)),
        ((1, 9, 64, 72, 3, 2, 1), (128, 64)),
        ((2, 7, 40, 136, 3, 1, 1), (64, 128)),
        ((1, 8, 72, 64, 1, 2, 0), (64, 64)),
        ((1, 5, 32, 136, 5, 1, 2), (128, 128)),
        ((1, 5, 40, 300, 3, 1, 1), (128, 256)),  # whose last columns fill no panel
        ((1, 20, 8, 24, 7, 2, 3), (128, 64)),  # few channels: rows of a window are read together
        ((2, 16, 3, 32, 8, 8, 0), (64, 64)),  # the same without zeros
        ((1, 7, 72, 64, 3, 2, 1), (64, 64, 5)),  # blocks share the 18 stages of K
        ((1, 8, 64, 64, 1, 2, 0), (64, 64, 2)),  # more parts than stages
    ],
)
def test_convolutions(
    machine: str,
    sizes: tuple[int, ...],
    tile: tuple[int, ...],
    emulated: EmulatedCuda,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conv_simt, "choose_tile", lambda *_: TensorSize(*tile))
    stride, pad = sizes[-2:]
    program = convolution(*sizes)
    random = np.random.default_rng(seed)
    x, y, w = (random.standard_normal(arg.shape.numbers(), np.float32).astype(BF16) for arg in program.main.args)
    assert f"smelt_tile<ui16, {tile[0]}, {tile[1]}, " in source(program, machine)
    got, want = run_with(program, machine, {"w": w}, x, y), convolve(x, w, y, stride, pad)
    assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("groups", "dilation"), [(1, 2), (2, 1), (2, 2)])
def test_convolutions_without_padding(
    machine: str, groups: int, dilation: int, emulated: EmulatedCuda, seed: int
) -> None:
    """Rows of a window whose taps are not adjacent: with holes between them, or other groups' channels."""
    side, channels, features, window = 7, 32, 128, 3
    out = side - dilation * (window - 1)
    left, right = f"tensor<2x{side}x{side}x{channels}xbf16>", f"tensor<3x3x{channels // groups}x{features}xbf16>"
    result = f"tensor<2x{out}x{out}x{features}xf32>"
    program = parse(f"""func.func @main(%x: {left}, %w: {right} {{smelt.weight = "w"}}) -> {result} {{
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{rhs_dilate = [{dilation}, {dilation}]}}
    {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}} : ({left}, {right}) -> {result}
  return %0 : {result}
}}""")
    assert "smelt_tile<ui16" in source(program, machine)
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(arg.shape.numbers(), np.float32).astype(BF16) for arg in program.main.args)
    got = run_with(program, machine, {"w": w}, x)
    here = NativeEngine().compile(program).prepare(Weights.of({"w": HostBuffer.of(w)}))(x)[0]
    wide, want = x.astype(np.float64).reshape(2, side, side, groups, -1), np.zeros((2, out, out, features))
    parts = w.astype(np.float64).reshape(window, window, -1, groups, features // groups)
    for i, j in np.ndindex(window, window):
        rows, columns = (slice(at * dilation, at * dilation + out) for at in (i, j))
        want += np.einsum("bhwgc,cgo->bhwgo", wide[:, rows, columns], parts[i, j]).reshape(want.shape)
    for each in (got, np.asarray(here)):
        assert np.abs(each - want).max() <= 1e-5 * np.abs(want).max()


def test_zeros_around_feature_maps_are_not_stored() -> None:
    """The convolution reads what is there, by one launch."""
    program = convolution(1, 6, 32, 64, 3, 1, 1)
    plan = plan_program(program, TARGETS["sm_90"]).main[0]
    assert len(plan.steps) == 1
    assert "true, true" in source(program, "sm_90")


def product(rows: int, depth: int, columns: int) -> Program:
    """Rows of bf16 by weights, a bias and a conversion."""
    x, w, b = f"tensor<{rows}x{depth}xbf16>", f"tensor<{depth}x{columns}xbf16>", f"tensor<{columns}xf32>"
    wide, narrow = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x{columns}xbf16>"
    return parse(f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}, %b: {b} {{smelt.weight = "b"}})
    -> {narrow} {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {wide}
  %1 = stablehlo.broadcast_in_dim %b, dims = [1] : ({b}) -> {wide}
  %2 = stablehlo.add %0, %1 : {wide}
  %3 = stablehlo.convert %2 : ({wide}) -> {narrow}
  return %3 : {narrow}
}}""")


def choose_tiles(monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int], splits: dict[int, int]) -> None:
    """Of products with so many columns, so many blocks share K."""
    monkeypatch.setattr(gemm_simt, "choose_tile", lambda *given: TensorSize(*tile, splits[given[3]]))


def product_calls(sizes: list[tuple[int, int, int]], random: np.random.Generator) -> tuple[list[Call], list[Any]]:
    """Products of rows, K and columns, and their results in doubles."""
    calls, wanted = list[Call](), []
    for rows, depth, columns in sizes:
        x, w, b = (random.standard_normal(each, np.float32) for each in ((rows, depth), (depth, columns), (columns,)))
        x, w = x.astype(BF16), w.astype(BF16)
        calls.append((product(rows, depth, columns), {"w": w, "b": b}, (x,)))
        wanted.append(x.astype(np.float64) @ w.astype(np.float64) + b)
    return calls, wanted


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize("tile", TENSOR_TILES)
def test_products(
    machine: str, tile: tuple[int, int], emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and columns that fill no tile; columns that are no multiple of 8; blocks that share K."""
    choose_tiles(monkeypatch, tile, {264: 1, 77: 1, 272: 3, 75: 3})
    sizes = [(150, 200, 264), (70, 72, 77), (150, 200, 272), (70, 72, 75)]
    calls, wanted = product_calls(sizes, np.random.default_rng(seed))
    for got, want in zip(run_all(calls, machine, times=2), wanted, strict=True):
        assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


@pytest.mark.parametrize("splits", [1, 3])
def test_weights_by_the_copy_engine(
    splits: int, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number of rows of a stage; K that fills no stage, no run of 8 steps, fewer stages than the ring; columns
    that fill no panel; rows that are not aligned; blocks that share K. A row has the same bits in any batch."""
    monkeypatch.setattr(gemm_simt, "few_and_most", lambda *_: (0, 64))
    monkeypatch.setattr(gemm_simt, "stream_splits", lambda *_: splits)
    wholes, wanted = product_calls([(64, 1224, 130), (64, 333, 64), (64, 96, 200)], np.random.default_rng(seed))
    calls: list[Call] = [
        (product(rows, *weights["w"].shape), weights, (x[:rows],))
        for _, weights, (x,) in wholes
        for rows in (64, 1, 8, 13, 32)
    ]
    for made, _, (some,) in calls:
        high = next(each for each in (8, 16, 32, 64) if len(some) <= each)
        assert f"smelt_stream<ui16, {high}, " in source(made, "sm_90")
    found = run_all(calls, "sm_90", times=2)
    for want, (whole, *others) in zip(wanted, (found[i : i + 5] for i in range(0, len(found), 5)), strict=True):
        assert np.abs(whole - want).max() <= ROUNDING * np.abs(want).max()
        for got in others:
            np.testing.assert_array_equal(got, whole[: len(got)])


def test_code_for_later_chips_without_wgmma(
    emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PTX of sm_90 has no `wgmma`: the same kernels multiply by `mma.sync`, few rows from the copy engine's stages."""
    monkeypatch.setattr(cache, "default", lambda: cache.Cache(tmp_path))  # others have this code with wgmma
    monkeypatch.setattr(EmulatedCuda, "compile_file", lambda _, text, machine: compile_emulated(text, "sm_80"))
    sizes = [(20, 333, 130), (9, 640, 64), (64, 72, 200), (150, 200, 264)]
    calls, wanted = product_calls(sizes, np.random.default_rng(seed))
    for got, want in zip(run_all(calls, "sm_90"), wanted, strict=True):
        assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


def launches(program: Program, machine: str) -> list[dict[str, Any]]:
    """The launches of a program, as its plan has them."""
    *_, text = emit_source([plan_program(program, TARGETS[machine])]).texts(1)
    steps = json.loads(text)["programs"]["smelt0"]["steps"]
    return [each for step in steps for each in step.get("launches", ())]


def chain(rows: int) -> Program:
    """Rows of 512 that are divided by their sums, and a product; twice."""
    wide, narrow, w = f"tensor<{rows}x512xf32>", f"tensor<{rows}x512xbf16>", "tensor<512x512xbf16>"
    lines = []
    for i in range(2):
        lines.append(f"""
  %a{i} = stablehlo.convert %x{i} : ({narrow}) -> {wide}
  %b{i} = stablehlo.reduce(%a{i} init: %z) applies stablehlo.add across dimensions = [1]
    : ({wide}, tensor<f32>) -> tensor<{rows}xf32>
  %c{i} = stablehlo.broadcast_in_dim %b{i}, dims = [0] : (tensor<{rows}xf32>) -> {wide}
  %d{i} = stablehlo.divide %a{i}, %c{i} : {wide}
  %e{i} = stablehlo.convert %d{i} : ({wide}) -> {narrow}
  %f{i} = stablehlo.dot_general %e{i}, %w{i}, contracting_dims = [1] x [0] : ({narrow}, {w}) -> {wide}
  %x{i + 1} = stablehlo.convert %f{i} : ({wide}) -> {narrow}""")
    return parse(f"""func.func @main(%x0: {narrow}, %w0: {w} {{smelt.weight = "w0"}}, %w1: {w} {{smelt.weight = "w1"}})
    -> {narrow} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>{"".join(lines)}
  return %x2 : {narrow}
}}""")


def test_who_reads_the_weights_of_few_rows() -> None:
    """The copy engine; threads on chips without warpgroups."""

    def functions(rows: int, columns: int, machine: str) -> set[str]:
        return {*re.findall(r"smelt_(few|stream|tile)<[^i]*ui16", source(product(rows, 256, columns), machine))} | {
            *re.findall(r"smelt_(stream)<\d", source(product(rows, 256, columns), machine))
        }

    assert functions(1, 32768, "sm_90") == functions(8, 512, "sm_90") == functions(64, 512, "sm_90") == {"stream"}
    assert functions(8, 512, "sm_80") == functions(32, 32768, "sm_80") == {"few"}
    assert functions(65, 512, "sm_90") == functions(33, 512, "sm_80") == {"tile"}


@pytest.mark.parametrize(
    ("columns", "depth", "splits"),
    [(4096, 4096, 4), (6144, 4096, 4), (14336, 4096, 1), (28672, 4096, 1), (512, 4096, 8), (3072, 4096, 5)],
)
def test_blocks_of_few_rows_are_even_and_share_a_multiprocessor(columns: int, depth: int, splits: int) -> None:
    """K is split so that every multiprocessor has two blocks or three, and no more of them fit than each has: they
    spread evenly even if they begin while the launch in front still has some."""
    tiles = columns // 64
    assert gemm_simt.stream_splits(tiles, depth // 64) == splits
    (launch,) = launches(product(8, depth, columns), "sm_90")
    blocks = tiles * splits
    each = min(-(-blocks // 132), 3 if splits > 1 else 4)
    assert launch["shared"] <= (228 << 10) // each - 1024
    assert each == 4 or launch["shared"] > (228 << 10) // (each + 1) - 1024


def test_what_begins_before_the_launch_in_front_of_it_ends() -> None:
    """With few rows all launches but the first: weights come while a norm waits for its row. With many, products."""

    def begun(rows: int) -> list[bool]:
        made = launches(chain(rows), "sm_90")
        return [bool(each["awaits"]) or each["waits"] for each in made]

    assert begun(8) == [True] * 4
    assert begun(100) == [False, True, False, True]


def test_the_tile_that_is_predicted_to_be_fastest() -> None:
    """Large tiles where they fill the GPU, small ones where they would not."""
    target = TARGETS["sm_90"]

    def chosen(rows: int, columns: int, depth: int) -> TensorSize:
        form = TENSOR_BF16
        return gemm_simt.choose_tile(target, form, lambda tall: -(-rows // tall), columns, -(-depth // 64))

    assert chosen(4096, 4096, 4096) == TensorSize(128, 256)
    assert chosen(100352, 64, 576).columns == 64
    few = chosen(49, 512, 4608)
    assert (few.rows, few.splits > 4) == (64, True)


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_f16(machine: str, emulated: EmulatedCuda, seed: int) -> None:
    """Products and convolutions of f16 with results of f16: sums are of f32."""
    random = np.random.default_rng(seed)
    text = """func.func @main(%x: tensor<70x72xf16>, %w: tensor<72x80xf16> {smelt.weight = "w"}) -> tensor<70x80xf16> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<70x72xf16>, tensor<72x80xf16>) -> tensor<70x80xf16>
  return %0 : tensor<70x80xf16>
}"""
    x, w = (random.standard_normal(sizes).astype(np.float16) for sizes in ((70, 72), (72, 80)))
    assert ", 1>(smelt_lane" in source(parse(text), machine)
    got, want = run_with(parse(text), machine, {"w": w}, x), x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(got - want).max() <= 2**-11 * np.abs(want).max()
    program = parse(print_program(convolution(1, 6, 32, 24, 3, 1, 1)).replace("bf16", "f16"))
    x, y, w = (random.standard_normal(arg.shape.numbers()).astype(np.float16) for arg in program.main.args)
    assert ", 1>(smelt_lane" in source(program, machine)
    got, want = run_with(program, machine, {"w": w}, x, y), convolve(x, w, y, 1, 1)
    assert np.abs(got - want).max() <= 2**-11 * np.abs(want).max()


NETWORK = """func.func @main(%x: tensor<1x3x20x20xf32>, %k: tensor<32x3x5x5xf32> {smelt.weight = "k"},
    %w: tensor<32x40xf32> {smelt.weight = "w"}) -> tensor<1x64x40xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x3x20x20xf32>, tensor<32x3x5x5xf32>) -> tensor<1x32x8x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x32x8x8xf32>) -> tensor<1x32x64xf32>
  %2 = stablehlo.transpose %1, dims = [0, 2, 1] : (tensor<1x32x64xf32>) -> tensor<1x64x32xf32>
  %3 = stablehlo.dot_general %2, %w, contracting_dims = [2] x [0]
    : (tensor<1x64x32xf32>, tensor<32x40xf32>) -> tensor<1x64x40xf32>
  return %3 : tensor<1x64x40xf32>
}"""


LARGE_MAPS = {
    "pooling of NHWC": """func.func @main(%x: tensor<2x6x6x16xbf16>) -> tensor<2x3x3x16xbf16> {
  %low = stablehlo.constant dense<0xFF80> : tensor<bf16>
  %0 = "stablehlo.reduce_window"(%x, %low) ({
  ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
    %m = stablehlo.maximum %a, %b : tensor<bf16>
    stablehlo.return %m : tensor<bf16>
  }) {window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>,
      padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>}
    : (tensor<2x6x6x16xbf16>, tensor<bf16>) -> tensor<2x3x3x16xbf16>
  return %0 : tensor<2x3x3x16xbf16>
}""",
    "NCHW to NHWC, with zeros around": """func.func @main(%x: tensor<2x16x3x3xf32>) -> tensor<2x5x5x16xbf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<bf16>
  %0 = stablehlo.transpose %x, dims = [0, 2, 3, 1] : (tensor<2x16x3x3xf32>) -> tensor<2x3x3x16xf32>
  %1 = stablehlo.convert %0 : (tensor<2x3x3x16xf32>) -> tensor<2x3x3x16xbf16>
  %2 = stablehlo.pad %1, %zero, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0]
    : (tensor<2x3x3x16xbf16>, tensor<bf16>) -> tensor<2x5x5x16xbf16>
  return %2 : tensor<2x5x5x16xbf16>
}""",
}


@pytest.mark.parametrize("text", LARGE_MAPS.values(), ids=LARGE_MAPS.keys())
def test_threads_of_large_maps_store_16_bytes(
    text: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether reads are adjacent or not: the reference's bits."""
    program = parse(text)
    assert "smelt_put_pack(" not in source(program, "sm_90")
    monkeypatch.setattr(simt, "MANY_ELEMENTS", 64)
    assert "smelt_put_pack(" in source(program, "sm_90")
    (arg,) = program.main.args
    x = np.random.default_rng(seed).standard_normal(arg.shape.numbers(), np.float32).astype(arg.shape.element.numpy)
    got = NativeEngine(TARGETS["sm_90"]).compile(program).prepare(Weights.of({}))(x)[0].numpy()
    want = ReferenceEngine().compile(program).prepare(Weights.of({}))(x)[0]
    np.testing.assert_array_equal(got, np.asarray(want))


def test_a_network_with_activations_in_bf16(emulated: EmulatedCuda, seed: int) -> None:
    """The first convolution runs on tensor cores as well: zeros fill up its channels."""
    program = with_precision(parse(NETWORK), "bf16_activations")
    assert len(re.findall(r"smelt_(tile|stream)<ui16", source(program, "sm_90"))) >= 2
    random = np.random.default_rng(seed)
    x, k, w = (random.standard_normal(arg.shape.numbers(), np.float32) for arg in program.main.args)
    got = run_with(program, "sm_90", {"k": k, "w": w}, x)
    maps = sum(
        np.einsum("bchw,oc->bohw", x[:, :, i : i + 15 : 2, j : j + 15 : 2].astype(np.float64), k[:, :, i, j])
        for i, j in np.ndindex(5, 5)
    )
    want = maps.reshape(1, 32, 64).transpose(0, 2, 1) @ w.astype(np.float64)
    assert np.abs(got - want).max() <= 4 * ROUNDING * np.abs(want).max()


# ---- tf32 and fp8 ----

TF32_SUM = 2**-20  # of a sum of products that are exact in f32, relative to the sum of their sizes
FP8_SUM = 2**-10  # of sums that tensor cores add with 14 bits, 128 steps at a time


def dot(rows: int, depth: int, columns: int, left: str, right: str = "", result: str = "f32") -> Program:
    """Rows by weights."""
    x, w = f"tensor<{rows}x{depth}x{left}>", f"tensor<{depth}x{columns}x{right or left}>"
    y = f"tensor<{rows}x{columns}x{result}>"
    return parse(f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}) -> {y} {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {y}
  return %0 : {y}
}}""")


def worst_error(got: Any, x: Any, w: Any) -> float:
    """Against doubles, relative to the sum of the sizes of the products."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    return float((np.abs(got - x @ w) / (np.abs(x) @ np.abs(w))).max())


def to_tf32(x: Any) -> Any:
    return reduce_precision(x, 8, 10)


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize("tile", TENSOR_TILES)
def test_tf32(
    machine: str, tile: tuple[int, int], emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands are rounded to nearest even, on every engine; products of them are exact, sums are of f32."""
    random, calls = np.random.default_rng(seed), list[Call]()
    choose_tiles(monkeypatch, tile, {264: 1, 77: 3})
    for rows, depth, columns in ((150, 200, 264), (70, 333, 77)):
        program = with_precision(dot(rows, depth, columns, "f32"), "tf32")
        assert f"smelt_tile<smelt_tf32, {tile[0]}, {tile[1]}, " in source(program, machine)
        x, w = (random.standard_normal(each, np.float32) for each in ((rows, depth), (depth, columns)))
        calls.append((program, {"w": w}, (x,)))
    for (program, weights, (x,)), got in zip(calls, run_all(calls, machine, times=2), strict=True):
        w = weights["w"]
        assert worst_error(got, to_tf32(x), to_tf32(w)) <= TF32_SUM
        here = NativeEngine().compile(program).prepare(Weights.of({"w": HostBuffer.of(w)}))(x)[0]
        assert worst_error(np.asarray(here, np.float64), to_tf32(x), to_tf32(w)) <= TF32_SUM


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("groups", "splits"), [(1, 1), (2, 3)])
def test_convolutions_in_tf32(
    machine: str, groups: int, splits: int, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_simt, "choose_tile", lambda *_: TensorSize(64, 64, splits))
    left, right, result = "tensor<2x7x7x40xf32>", f"tensor<3x3x{40 // groups}x72xf32>", "tensor<2x4x4x72xf32>"
    program = parse(f"""func.func @main(%x: {left}, %w: {right} {{smelt.weight = "w"}}) -> {result} {{
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [2, 2], pad = [[1, 1], [1, 1]]}}
    {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}} : ({left}, {right}) -> {result}
  return %0 : {result}
}}""")
    program = with_precision(program, "tf32")
    assert "smelt_tile<smelt_tf32, 64, 64, " in source(program, machine)
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(arg.shape.numbers(), np.float32) for arg in program.main.args)
    got = run_with(program, machine, {"w": w}, x)
    for i in range(groups):
        maps, kernel = to_tf32(x[..., i * 40 // groups :][..., : 40 // groups]), to_tf32(w[..., i * 72 // groups :])
        kernel = kernel[..., : 72 // groups]
        zero, own = np.zeros((2, 4, 4, 72 // groups)), got[..., i * 72 // groups :][..., : 72 // groups]
        sizes = convolve(np.abs(maps), np.abs(kernel), zero, 2, 1)
        want = convolve(maps, kernel, zero + 1e6, 2, 1) - 1e6  # without the ReLU
        assert np.abs((own - want) / sizes).max() <= TF32_SUM


def test_when_tf32_is_multiplied() -> None:
    """Never unasked; not where few rows wait for memory, nor by an operand that was not rounded."""
    plain, few = dot(64, 128, 128, "f32"), dot(8, 128, 128, "f32")
    assert "smelt_tf32" not in source(plain, "sm_90")
    assert "smelt_tf32" not in source(with_precision(few, "tf32"), "sm_90")
    text = print_program(with_precision(plain, "tf32"))
    assert text.count("reduce_precision") == 2
    assert "smelt_tf32" not in source(parse(text.replace("e8m10", "e8m11", 1)), "sm_90")
    both = parse(text.replace(' {smelt.weight = "w"}', ""))  # by activations, too
    assert "smelt_tf32" in source(both, "sm_90")


def draw_fp8(random: np.random.Generator, sizes: tuple[int, ...], element: str) -> Any:
    return random.standard_normal(sizes, np.float32).astype(dtype(element).numpy)


@pytest.mark.parametrize("machine", ["sm_89", "sm_90"])
@pytest.mark.parametrize("left", ["f8E4M3FN", "f8E5M2"])
@pytest.mark.parametrize("right", ["f8E4M3FN", "f8E5M2"])
def test_types_of_fp8(machine: str, left: str, right: str, emulated: EmulatedCuda, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, w = draw_fp8(random, (70, 200), left), draw_fp8(random, (200, 77), right)
    program = dot(70, 200, 77, left, right)
    assert "smelt_tile<smelt_fp8, " in source(program, machine)
    assert worst_error(run_with(program, machine, {"w": w}, x), x, w) <= FP8_SUM


@pytest.mark.parametrize("tile", [(64, 64), (64, 128), (128, 64), (128, 128), (128, 256)])
def test_tiles_of_fp8(
    tile: tuple[int, int], emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even and odd numbers of blocks of K, and more than a ring holds; K that fills no block, nor 16 bytes."""
    random, kind = np.random.default_rng(seed), "f8E4M3FN"
    choose_tiles(monkeypatch, tile, {136: 1, 77: 1, 144: 3, 75: 3})
    calls = list[Call]()
    for rows, depth, columns in ((140, 1056, 136), (70, 333, 77), (70, 1056, 144), (140, 333, 75)):
        x, w = draw_fp8(random, (rows, depth), kind), draw_fp8(random, (depth, columns), kind)
        calls.append((dot(rows, depth, columns, kind), {"w": w}, (x,)))
    for (_, weights, (x,)), got in zip(calls, run_all(calls, "sm_90", times=2), strict=True):
        assert worst_error(got, x, weights["w"]) <= FP8_SUM


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("instructions", ["sm_90", "sm_89"])
def test_fp8_weights_by_the_copy_engine(
    splits: int,
    instructions: str,
    emulated: EmulatedCuda,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As of bf16: every number of rows of a stage, K that fills no block nor 16 bytes, columns that fill no panel, rows
    that are not aligned, types that differ, blocks that share K, PTX for later chips. A row has the same bits in any
    batch."""
    monkeypatch.setattr(cache, "default", lambda: cache.Cache(tmp_path))
    monkeypatch.setattr(EmulatedCuda, "compile_file", lambda _, text, machine: compile_emulated(text, instructions))
    monkeypatch.setattr(gemm_simt, "stream_splits", lambda *_: splits)
    random, numbers = np.random.default_rng(seed), (64, 1, 8, 13, 32)
    calls = list[Call]()
    for depth, columns, left, right in (
        (2448, 130, "f8E4M3FN", "f8E4M3FN"),
        (333, 64, "f8E4M3FN", "f8E5M2"),
        (96, 200, "f8E5M2", "f8E4M3FN"),
    ):
        x, w = draw_fp8(random, (64, depth), left), draw_fp8(random, (depth, columns), right)
        calls += [(dot(rows, depth, columns, left, right), {"w": w}, (x[:rows],)) for rows in numbers]
    for made, _, (some,) in calls:
        high = next(each for each in (8, 16, 32, 64) if len(some) <= each)
        assert f"smelt_stream<smelt_fp8, {high}, " in source(made, "sm_90")
    found = run_all(calls, "sm_90", times=2)
    for at in range(0, len(found), len(numbers)):
        (_, weights, (x,)), (whole, *others) = calls[at], found[at : at + len(numbers)]
        assert worst_error(whole, x, weights["w"]) <= FP8_SUM
        for got in others:
            np.testing.assert_array_equal(got, whole[: len(got)])


@pytest.mark.parametrize("machine", ["sm_89", "sm_90"])
def test_long_sums_of_fp8(machine: str, emulated: EmulatedCuda, seed: int) -> None:
    """14 bits would not do for a whole sum of numbers with the same sign: it would stop growing."""
    random, kind = np.random.default_rng(seed), "f8E4M3FN"
    x, w = (np.abs(draw_fp8(random, sizes, kind).astype(np.float32)) for sizes in ((64, 8192), (8192, 16)))
    x, w = (each.astype(dtype(kind).numpy) for each in (x, w))
    assert worst_error(run_with(dot(64, 8192, 16, kind), machine, {"w": w}, x), x, w) <= FP8_SUM


def test_fp8_without_instructions(emulated: EmulatedCuda, seed: int) -> None:
    """sm_80 multiplies it as bf16, a processor as bf16 or f32: exactly."""
    random, kind = np.random.default_rng(seed), "f8E4M3FN"
    program = dot(70, 200, 77, kind)
    assert "smelt_tile<ui16, " in source(program, "sm_80")
    x, w = draw_fp8(random, (70, 200), kind), draw_fp8(random, (200, 77), kind)
    assert worst_error(run_with(program, "sm_80", {"w": w}, x), x, w) <= TF32_SUM
    here = NativeEngine().compile(program).prepare(Weights.of({"w": HostBuffer.of(w)}))(x)[0]
    assert worst_error(np.asarray(here, np.float64), x, w) <= TF32_SUM


def test_fp8_that_is_widened_and_scaled(emulated: EmulatedCuda, seed: int) -> None:
    """As QDQ files have it: scales of a row, of a column and of a tensor multiply the sum."""
    kind = "f8E4M3FN"
    program = parse(f"""func.func @main(%x: tensor<70x200x{kind}>, %r: tensor<70xf32>,
    %w: tensor<77x200x{kind}> {{smelt.weight = "w"}}, %c: tensor<77xf32> {{smelt.weight = "c"}}) -> tensor<70x77xf32> {{
  %s = stablehlo.constant dense<0.25> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<70x200x{kind}>
  %0 = stablehlo.convert %x : (tensor<70x200x{kind}>) -> tensor<70x200xf32>
  %1 = stablehlo.convert %z : (tensor<70x200x{kind}>) -> tensor<70x200xf32>
  %2 = stablehlo.subtract %0, %1 : tensor<70x200xf32>
  %3 = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<70xf32>) -> tensor<70x200xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<70x200xf32>
  %5 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<70x200xf32>
  %6 = stablehlo.multiply %4, %5 : tensor<70x200xf32>
  %7 = stablehlo.convert %w : (tensor<77x200x{kind}>) -> tensor<77x200xf32>
  %8 = stablehlo.broadcast_in_dim %c, dims = [0] : (tensor<77xf32>) -> tensor<77x200xf32>
  %9 = stablehlo.multiply %8, %7 : tensor<77x200xf32>
  %10 = stablehlo.dot_general %6, %9, contracting_dims = [1] x [1]
    : (tensor<70x200xf32>, tensor<77x200xf32>) -> tensor<70x77xf32>
  return %10 : tensor<70x77xf32>
}}""")
    assert "smelt_tile<smelt_fp8, " in source(program, "sm_90")
    assert "smelt_fp8" not in source(program, "sm_80")
    random = np.random.default_rng(seed)
    x, w = draw_fp8(random, (70, 200), kind), draw_fp8(random, (77, 200), kind)
    r, c = (random.random(count, np.float32) + 0.5 for count in (70, 77))
    got = run_with(program, "sm_90", {"w": w, "c": c}, x, r)
    assert worst_error(got, x.astype(np.float64) * r[:, None] / 4, w.astype(np.float64).T * c) <= FP8_SUM
    along = print_program(program).replace("dims = [0] : (tensor<77xf32>)", "dims = [1] : (tensor<200xf32>)")
    along = along.replace("tensor<77xf32>", "tensor<200xf32>")
    assert "smelt_fp8" not in source(parse(along), "sm_90")  # scales along K are no factors of a sum
