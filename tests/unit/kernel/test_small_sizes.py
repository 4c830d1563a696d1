"""Every op of the table at sizes 0, 1 and 2, compiled once over dynamic dimensions: generated C and the interpreter.

Several dimensions are empty together and one by one. Ops of the front end and layers: `unit/tensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from smelt.device import pjrt
from smelt.dtype import Array
from smelt.engine.native import compile_all
from smelt.engine.pjrt import PjrtEngine
from smelt.errors import SizeError, SmeltError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.ops import OPS
from smelt.shape import Shape
from tests.unit.kernel.sized import inputs, program

SIZES = [dict(zip("NMK", numbers, strict=True)) for numbers in np.ndindex(3, 3, 3)]
FEW = [{"N": 0, "M": 0, "K": 0}, *({**dict.fromkeys("NMK", 2), name: 0} for name in "NMK"), dict.fromkeys("NMK", 1)]
SUM = "applies stablehlo.add across dimensions"
ZERO = "%z = stablehlo.constant dense<0.0> : f32[]\n"
ADD = "({ ^bb0(%a: f32[], %b: f32[]): %s = stablehlo.add %a, %b : f32[]\n stablehlo.return %s : f32[] })"


def gather(operand: str, indices: str, result: str, slices: str, dims: str) -> Program:
    body = f"""%r = "stablehlo.gather"(%0, %1) {{dimension_numbers = #stablehlo.gather<{dims}>,
      slice_sizes = array<i64: {slices}>}} : ({operand}, {indices}) -> {result}"""
    return program(operand, indices, body=body, results=[result])


def scatter(operand: str, indices: str, updates: str, dims: str) -> Program:
    body = f"""%r = "stablehlo.scatter"(%0, %1, %2) {ADD}
      {{scatter_dimension_numbers = #stablehlo.scatter<{dims}>}} : ({operand}, {indices}, {updates}) -> {operand}"""
    return program(operand, indices, updates, body=body, results=[operand])


def convolution(image: str, kernel: str, result: str, window: str, more: str = "feature_group_count = 1") -> Program:
    body = f"""%r = stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
      window = {{{window}}} {{{more}, batch_group_count = 1 : i64}} : ({image}, {kernel}) -> {result}"""
    return program(image, kernel, body=body, results=[result])


def fft(kind: str, length: str, operand: str, result: str) -> Program:
    body = f"%r = stablehlo.fft %0, type = {kind}, length = [{length}] : ({operand}) -> {result}"
    return program(operand, body=body, results=[result])


CASES: dict[str, Program] = {
    "broadcast_in_dim": program(
        "f32[N]", "f32[M]", results=["f32[M, N]"],
        body="%r = stablehlo.broadcast_in_dim %0, dims = [1] : (f32[N]) -> f32[M, N]"),
    "concatenate": program(
        "f32[N, K]", "f32[M, K]", results=["f32[M + N, K]"],
        body="%r = stablehlo.concatenate %0, %1, dim = 0 : (f32[N, K], f32[M, K]) -> f32[M + N, K]"),
    "concatenate, made in place": program(
        "f32[N, K]", "f32[M, K]", results=["f32[M + N, K]"],
        body="%a = stablehlo.exponential %0 : f32[N, K]\n%b = stablehlo.negate %1 : f32[M, K]\n"
        "%r = stablehlo.concatenate %a, %b, dim = 0 : (f32[N, K], f32[M, K]) -> f32[M + N, K]"),
    "iota": program(
        "f32[N, M]", results=["f32[N, M]"],
        body="%i = stablehlo.iota dim = 1 : f32[N, M]\n%r = stablehlo.add %0, %i : f32[N, M]"),
    "reshape": program(
        "f32[N, M, 3]", results=["f32[M*N, 3]"], body="%r = stablehlo.reshape %0 : (f32[N, M, 3]) -> f32[M*N, 3]"),
    "reverse": program("f32[N, M]", body="%r = stablehlo.reverse %0, dims = [0, 1] : f32[N, M]", results=["f32[N, M]"]),
    "transpose": program(
        "f32[N, M, K]", results=["f32[K, N, M]"],
        body="%r = stablehlo.transpose %0, dims = [2, 0, 1] : (f32[N, M, K]) -> f32[K, N, M]"),
    "slice": program(
        "f32[N, 5]", results=["f32[0, 2]"], body="%r = stablehlo.slice %0 [0:0, 1:4:2] : (f32[N, 5]) -> f32[0, 2]"),
    "pad": program(
        "f32[N, M]", results=["f32[N + 3, M + 2]"],
        body=ZERO + "%r = stablehlo.pad %0, %z, low = [1, 0], high = [2, 2], interior = [0, 0]"
        " : (f32[N, M], f32[]) -> f32[N + 3, M + 2]"),
    "pad between": program(
        "f32[N]", results=["f32[max(3*N - 2, 0)]"],
        body=ZERO + "%r = stablehlo.pad %0, %z, low = [0], high = [0], interior = [2]"
        " : (f32[N], f32[]) -> f32[max(3*N - 2, 0)]"),
    "get_dimension_size": program(
        "f32[N, M]", body="%r = stablehlo.get_dimension_size %0, dim = 1 : (f32[N, M]) -> i32[]", results=["i32[]"]),
    "bitcast_convert": program(
        "f32[N]", body="%r = stablehlo.bitcast_convert %0 : (f32[N]) -> ui8[N, 4]", results=["ui8[N, 4]"]),
    "gather rows": gather("f32[N, K]", "i32[M]", "f32[M, 1]", "1, 1", "offset_dims = [1], collapsed_slice_dims = [0],"
                          " start_index_map = [0], index_vector_dim = 1"),
    "gather of a batch": gather(
        "f32[N, M, 3]", "i32[N, K, 1]", "f32[N, K, 3]", "1, 1, 3",
        "offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0],"
        " start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2"),
    "scatter": scatter("f32[N, K]", "i32[M, 1]", "f32[M, K]", "update_window_dims = [1], inserted_window_dims = [0],"
                       " scatter_dims_to_operand_dims = [0], index_vector_dim = 1"),
    "scatter to a batch": scatter(
        "f32[N, M, 3]", "i32[N, K, 1]", "f32[N, K, 3]",
        "update_window_dims = [2], inserted_window_dims = [1], input_batching_dims = [0],"
        " scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2"),
    "dynamic_slice": program(
        "f32[N, M]", "i32[]", results=["f32[0, 0]"],
        body="%r = stablehlo.dynamic_slice %0, %1, %1, sizes = [0, 0] : (f32[N, M], i32[], i32[]) -> f32[0, 0]"),
    "dynamic_update_slice": program(
        "f32[N + M, K]", "f32[N, K]", "i32[]", results=["f32[N + M, K]"],
        body="%r = stablehlo.dynamic_update_slice %0, %1, %2, %2"
        " : (f32[N + M, K], f32[N, K], i32[], i32[]) -> f32[N + M, K]"),
    "torch_index_select": program(
        "f32[N + 1, K]", "i32[M]", results=["f32[M, K]"],
        body='%r = "stablehlo.torch_index_select"(%0, %1) {dim = 0 : i64, batch_dims = 0 : i64}'
        " : (f32[N + 1, K], i32[M]) -> f32[M, K]"),
    "sort": program(
        "f32[N, M]", results=["f32[N, M]"],
        body='%r = "stablehlo.sort"(%0) ({ ^bb0(%a: f32[], %b: f32[]): %l = stablehlo.compare LT, %a, %b'
        " : (f32[], f32[]) -> i1[]\n stablehlo.return %l : i1[] }) {dimension = 1 : i64, is_stable = true}"
        " : (f32[N, M]) -> f32[N, M]"),
    "top_k": program(
        "f32[N, M + 2]", results=["f32[N, 2]", "i32[N, 2]"],
        body="%r:2 = chlo.top_k(%0, k = 2) : f32[N, M + 2] -> (f32[N, 2], i32[N, 2])"),
    "reduce": program(
        "f32[N, M, K]", results=["f32[N, K]"],
        body=ZERO + f"%r = stablehlo.reduce(%0 init: %z) {SUM} = [1] : (f32[N, M, K], f32[]) -> f32[N, K]"),
    "reduce to a scalar": program(
        "f32[N, M]", results=["f32[]"],
        body=ZERO + f"%r = stablehlo.reduce(%0 init: %z) {SUM} = [0, 1] : (f32[N, M], f32[]) -> f32[]"),
    "reduce_window": program(
        "f32[N, M]", results=["f32[N + 1, M]"],
        body=ZERO + f'%r = "stablehlo.reduce_window"(%0, %z) {ADD} {{window_dimensions = array<i64: 2, 1>,'
        " padding = dense<[[1, 1], [0, 0]]> : tensor<2x2xi64>} : (f32[N, M], f32[]) -> f32[N + 1, M]"),
    "reduce_window that may be larger than what it looks at": program(
        "f32[N]", results=["f32[max(N - 1, 0)]"],
        body=ZERO + f'%r = "stablehlo.reduce_window"(%0, %z) {ADD} {{window_dimensions = array<i64: 2>}}'
        " : (f32[N], f32[]) -> f32[max(N - 1, 0)]"),
    "select_and_scatter": program(
        "f32[N, M]", "f32[N, M]", results=["f32[N, M]"],
        body=ZERO + '%r = "stablehlo.select_and_scatter"(%0, %1, %z) ({ ^bb0(%a: f32[], %b: f32[]):'
        " %l = stablehlo.compare GE, %a, %b : (f32[], f32[]) -> i1[]\n stablehlo.return %l : i1[] }, "
        f"{ADD[1:]} {{window_dimensions = array<i64: 1, 1>}} : (f32[N, M], f32[N, M], f32[]) -> f32[N, M]"),
    "map": program(
        "f32[N, M]", "f32[N, M]", results=["f32[N, M]"],
        body=f'%r = "stablehlo.map"(%0, %1) {ADD} {{dimensions = array<i64: 0, 1>}}'
        " : (f32[N, M], f32[N, M]) -> f32[N, M]"),
    "batch_norm_inference": program(
        "f32[N, 3, M]", "f32[3]", results=["f32[N, 3, M]"],
        body='%v = stablehlo.abs %1 : f32[3]\n%r = "stablehlo.batch_norm_inference"(%0, %1, %1, %1, %v)'
        " {epsilon = 1.0e-3 : f32, feature_index = 1 : i64}"
        " : (f32[N, 3, M], f32[3], f32[3], f32[3], f32[3]) -> f32[N, 3, M]"),
    "convolution": convolution(
        "f32[N, 2, M, K]", "f32[3, 2, 3, 3]", "f32[N, 3, M, K]", "stride = [1, 1], pad = [[1, 1], [1, 1]]",
        "feature_group_count = 1 : i64"),
    "convolution with a stride": convolution(
        "f32[N, 4, M, K]", "f32[8, 4, 2, 2]", "f32[N, 8, M|2, K|2]", "stride = [2, 2]",
        "feature_group_count = 1 : i64"),
    "depthwise convolution": convolution(
        "f32[N, 16, M, K]", "f32[16, 1, 3, 3]", "f32[N, 16, M, K]", "pad = [[1, 1], [1, 1]]",
        "feature_group_count = 16 : i64"),
    "dot_general": program(
        "f32[N, K]", "f32[K, M]", results=["f32[N, M]"],
        body="%r = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : (f32[N, K], f32[K, M]) -> f32[N, M]"),
    "dot_general of a batch": program(
        "f32[N, M, 20]", "f32[N, 20, K]", results=["f32[N, M, K]"],
        body="%r = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1]"
        " : (f32[N, M, 20], f32[N, 20, K]) -> f32[N, M, K]"),
    "attention": program(
        "f32[N, M, 8]", "f32[N, K, 8]", results=["f32[N, M, 8]"],
        body=ZERO + "%o = stablehlo.constant dense<0xFF800000> : f32[]\n"
        "%s = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [2]"
        " : (f32[N, M, 8], f32[N, K, 8]) -> f32[N, M, K]\n"
        "%m = stablehlo.reduce(%s init: %o) applies stablehlo.maximum across dimensions = [2]"
        " : (f32[N, M, K], f32[]) -> f32[N, M]\n"
        "%n = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (f32[N, M]) -> f32[N, M, K]\n"
        "%d = stablehlo.subtract %s, %n : f32[N, M, K]\n%e = stablehlo.exponential %d : f32[N, M, K]\n"
        f"%t = stablehlo.reduce(%e init: %z) {SUM} = [2] : (f32[N, M, K], f32[]) -> f32[N, M]\n"
        "%u = stablehlo.broadcast_in_dim %t, dims = [0, 1] : (f32[N, M]) -> f32[N, M, K]\n"
        "%p = stablehlo.divide %e, %u : f32[N, M, K]\n"
        "%r = stablehlo.dot_general %p, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1]"
        " : (f32[N, M, K], f32[N, K, 8]) -> f32[N, M, 8]"),
    "cholesky": program(
        "f32[N, M]", results=["f32[N, M, M]"],
        body="%i = stablehlo.iota dim = 1 : f32[N, M, M]\n%j = stablehlo.iota dim = 2 : f32[N, M, M]\n"
        "%e = stablehlo.compare EQ, %i, %j : (f32[N, M, M], f32[N, M, M]) -> i1[N, M, M]\n"
        "%c = stablehlo.convert %e : (i1[N, M, M]) -> f32[N, M, M]\n"
        "%r = stablehlo.cholesky %c, lower = true : f32[N, M, M]"),
    "triangular_solve": program(
        "f32[N, M]", "f32[N, M, K]", results=["f32[N, M, K]"],
        body="%i = stablehlo.iota dim = 1 : f32[N, M, M]\n%j = stablehlo.iota dim = 2 : f32[N, M, M]\n"
        "%e = stablehlo.compare GE, %i, %j : (f32[N, M, M], f32[N, M, M]) -> i1[N, M, M]\n"
        "%c = stablehlo.convert %e : (i1[N, M, M]) -> f32[N, M, M]\n"
        '%r = "stablehlo.triangular_solve"(%c, %1) {left_side = true, lower = true, unit_diagonal = false,'
        " transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (f32[N, M, M], f32[N, M, K]) -> f32[N, M, K]"),
    "fft": fft("FFT", "6", "complex<f32>[N, M, 6]", "complex<f32>[N, M, 6]"),
    "rfft": fft("RFFT", "6", "f32[N, 6]", "complex<f32>[N, 4]"),
    "irfft over two axes": fft("IRFFT", "4, 6", "complex<f32>[N, 4, 4]", "f32[N, 4, 6]"),
    "irfft of nothing over two axes": fft("IRFFT", "3, 0", "complex<f32>[N, 3, 0]", "f32[N, 3, 0]"),
    "irfft over two axes, the first empty": fft("IRFFT", "0, 4", "complex<f32>[N, 0, 3]", "f32[N, 0, 4]"),
    "rng_bit_generator": program(
        "ui64[2]", "f32[N, M]", results=["ui32[N, M]"],
        body="%s, %r = stablehlo.rng_bit_generator %0, algorithm = THREE_FRY : (ui64[2]) -> (ui64[2], ui32[N, M])"),
    "if": program(
        "i1[]", "f32[N, M]", results=["f32[N, M]"],
        body='%r = "stablehlo.if"(%0) ({ %a = stablehlo.negate %1 : f32[N, M]\n stablehlo.return %a : f32[N, M] }, {'
        " stablehlo.return %1 : f32[N, M] }) : (i1[]) -> f32[N, M]"),
    "while over rows": program(
        "f32[N, 3]", results=["f32[3]"],
        body="%i = stablehlo.constant dense<0> : i32[]\n%one = stablehlo.constant dense<1> : i32[]\n" + ZERO
        + "%t = stablehlo.broadcast_in_dim %z, dims = [] : (f32[]) -> f32[3]\n"
        "%n = stablehlo.get_dimension_size %0, dim = 0 : (f32[N, 3]) -> i32[]\n"
        "%w:2 = stablehlo.while(%at = %i, %sum = %t) : i32[], f32[3] cond {\n"
        "%l = stablehlo.compare LT, %at, %n : (i32[], i32[]) -> i1[]\nstablehlo.return %l : i1[]\n} do {\n"
        "%g = stablehlo.dynamic_slice %0, %at, %i, sizes = [1, 3] : (f32[N, 3], i32[], i32[]) -> f32[1, 3]\n"
        "%h = stablehlo.reshape %g : (f32[1, 3]) -> f32[3]\n"
        "%s = stablehlo.add %sum, %h : f32[3]\n%k = stablehlo.add %at, %one : i32[]\n"
        "stablehlo.return %k, %s : i32[], f32[3]\n}\n%r = stablehlo.negate %w#1 : f32[3]"),
    "dynamic_reshape": program(
        "f32[N, M]", results=["f32[M, N]"],
        body="%a = stablehlo.get_dimension_size %0, dim = 0 : (f32[N, M]) -> i32[]\n"
        "%b = stablehlo.get_dimension_size %0, dim = 1 : (f32[N, M]) -> i32[]\n"
        "%c = stablehlo.reshape %a : (i32[]) -> i32[1]\n%d = stablehlo.reshape %b : (i32[]) -> i32[1]\n"
        "%s = stablehlo.concatenate %d, %c, dim = 0 : (i32[1], i32[1]) -> i32[2]\n"
        "%r = stablehlo.dynamic_reshape %0, %s : (f32[N, M], i32[2]) -> f32[M, N]"),
}  # fmt: skip


def elementwise() -> Program:
    """One program with every elementwise op of the specification that takes floats, integers or truths alone."""
    f = FuncBuilder("main", [Shape(each, "N", "M") for each in ("f32", "i32", "i1", "complex<f32>")])
    results = []
    for name, row in OPS.items():
        if not row.elementwise or row.dialect not in ("stablehlo", "chlo") or "broadcast" in name:
            continue
        for arg in f.args:
            try:
                results.append(f.op(name, *[arg] * len(row.operands.split())).results[0])
                break
            except SmeltError:
                continue
    assert len(results) > 60
    return Program.of(f.func(*results))


def answer(call: Callable[[], Sequence[Array]]) -> Sequence[Array] | str:
    """The results of a call, or why it refused the sizes."""
    try:
        return [np.asarray(each.numpy() if hasattr(each, "numpy") else each) for each in call()]
    except SizeError as error:
        return str(error)


def differences(source: Program, native: object, seed: int, sizes: list[dict[str, int]]) -> list[str]:
    """What differs at which sizes."""
    assert callable(native), native
    found = []
    for each in sizes:
        args = inputs(source, each, np.random.default_rng(seed))
        got, want = answer(lambda: native(*args)), answer(lambda: run(source, args))  # noqa: B023
        if isinstance(got, str) or isinstance(want, str):
            if not (isinstance(got, str) and isinstance(want, str)):
                found.append(f"{each}: {got}, expected {want}")
            continue
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True):
                found.append(f"{each}, result {i}: {a.tolist()}, expected {b.tolist()}")
    return found


@pytest.fixture(scope="module")
def compiled() -> dict[str, object]:
    programs = {**CASES, "elementwise": elementwise()}
    return dict(zip(programs, compile_all(list(programs.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_an_op_at_small_sizes(name: str, seed: int, compiled: dict[str, object]) -> None:
    assert differences(CASES[name], compiled[name], seed, SIZES) == []


def test_elementwise_ops_at_small_sizes(seed: int, compiled: dict[str, object]) -> None:
    assert differences(elementwise(), compiled["elementwise"], seed, FEW) == []


@pytest.mark.skipif(pjrt.missing() is not None, reason="no jaxlib")
@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.startswith("while")]
)  # no slice of 1 from 0 in XLA
def test_an_op_on_nothing_by_xla(name: str, seed: int) -> None:
    assert differences(CASES[name], PjrtEngine().compile(CASES[name]), seed, FEW[:1]) == []
