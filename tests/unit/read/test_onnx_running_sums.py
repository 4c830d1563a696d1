"""CumSum and CumProd over static and dynamic dimensions: against NumPy and onnxruntime, with work that is linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import smelt
from smelt.dim import evaluate
from smelt.dtype import Array, dtype
from smelt.engine.native import NativeEngine
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.reference import ReferenceEngine
from smelt.ir.core import Program, walk
from smelt.ir.cost import operations
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.grad import vjp
from smelt.read.onnx import read
from smelt.write.onnx import write

KINDS: dict[str, Any] = {"CumSum": np.cumsum, "CumProd": np.cumprod}
FLAGS: list[dict[str, Any]] = [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}]
ELEMENTS = {
    "f64": TensorProto.DOUBLE, "f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16,
    "i32": TensorProto.INT32, "i64": TensorProto.INT64, "ui32": TensorProto.UINT32, "ui64": TensorProto.UINT64,
}  # fmt: skip


def model(op: str, sizes: list[Any], axis: int, element: str = "f32", **flags: Any) -> Any:
    kind = ELEMENTS[element]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "axis"], ["y"], **flags)],
        "graph",
        [helper.make_tensor_value_info("x", kind, sizes)],
        [helper.make_tensor_value_info("y", kind, sizes)],
        [helper.make_tensor("axis", TensorProto.INT64, [], [axis])],
    )
    version = 26 if op == "CumProd" else 14
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)


def program_of(folder: Path, made: Any) -> Program:
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return read(path)[0]


def draw(random: np.random.Generator, op: str, sizes: tuple[int, ...], element: str) -> Array:
    kind = dtype(element)
    if kind.is_float:
        wide = random.uniform(0.7, 1.3, sizes) if op == "CumProd" else random.uniform(-1, 3, sizes)
        return wide.astype(kind.numpy)
    return random.integers(0, 1 << 31, sizes).astype(kind.numpy)


def expected(op: str, x: Array, axis: int, exclusive: int = 0, reverse: int = 0) -> Array:
    """NumPy's, of floats in f64, rounded once."""
    wide = x if x.dtype.kind in "iu" else x.astype(np.float64)
    wide = np.flip(wide, axis) if reverse else wide
    total: Array = KINDS[op](wide, axis=axis, dtype=wide.dtype)
    if exclusive:
        start = np.full_like(np.take(total, range(min(1, x.shape[axis])), axis), op == "CumProd")
        total = np.concatenate([start, np.take(total, range(max(x.shape[axis] - 1, 0)), axis)], axis)
    return (np.flip(total, axis) if reverse else total).astype(x.dtype)


def check(got: Array, want: Array) -> None:
    """Integers to the bit, floats but for one rounding in f64."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
    else:
        rtol = 1e-12 if want.dtype == np.float64 else 0
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("op", KINDS)
def test_lengths_that_a_call_tells(op: str, flags: dict[str, Any], tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    cases: list[tuple[list[Any], int]] = [(["N"], 0), (["B", "N"], -1), (["N", 3], 0)]
    for sizes, axis in cases:
        program = program_of(tmp_path, model(op, sizes, axis, **flags))
        engines = [engine.compile(program) for engine in (ReferenceEngine(), NativeEngine())]
        for length in (0, 1, 2, 1000):
            x = draw(random, op, tuple({"N": length, "B": 2}.get(size, 3) for size in sizes), "f32")
            for compiled in engines:
                check(compiled(x)[0], expected(op, x, axis, **flags))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("op", KINDS)
def test_element_types(op: str, element: str, tmp_path: Path, seed: int) -> None:
    """Narrow floats are carried in a wide type: a sum of 1000 of them is rounded once. Static lengths give the same."""
    random = np.random.default_rng(seed)
    x = draw(random, op, (2, 1000), element)
    cases: list[list[Any]] = [[2, "N"], [2, 1000]]
    for sizes in cases:
        program = program_of(tmp_path, model(op, sizes, 1, element))
        for engine in (ReferenceEngine(), NativeEngine()):
            check(engine.compile(program)(x)[0], expected(op, x, 1))


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_narrow_floats_in_a_few_steps(element: str, tmp_path: Path, seed: int) -> None:
    x = draw(np.random.default_rng(seed), "CumSum", (50,), element)
    program = program_of(tmp_path, model("CumSum", [50], 0, element))
    check(NativeEngine().compile(program)(x)[0], expected("CumSum", x, 0))


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("element", ["f32", "f64", "i32", "i64"])
def test_against_onnxruntime(element: str, flags: dict[str, Any], tmp_path: Path, seed: int) -> None:
    made = model("CumSum", ["N", 2], 0, element, **flags)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = NativeEngine().compile(program_of(tmp_path, made))
    for length in (0, 1, 2, 1000):
        x = draw(np.random.default_rng(seed), "CumSum", (length, 2), element)
        (want,) = session.run(None, {"x": x})
        np.testing.assert_allclose(compiled(x)[0], want, rtol=0 if element[0] == "i" else 1e-5, atol=1e-3)


@pytest.mark.parametrize("sizes", [["N"], ["N", 3]], ids=str)
@pytest.mark.parametrize("op", KINDS)
def test_work_is_linear(op: str, sizes: list[Any], tmp_path: Path) -> None:
    """Operations and elements of every value, as they are read and after the passes of the native engine."""
    program = program_of(tmp_path, model(op, sizes, 0))
    elements = 3 if len(sizes) == 2 else 1
    for each in (program, pipeline.run(program)[0]):
        for length in (1000, 100_000):
            symbols = {"N": length}
            assert evaluate(operations(each), symbols) <= 4 * elements * length
            for inner in walk(each.main.body):
                assert all(evaluate(value.shape.count, symbols) <= elements * length for value in inner.results)


def test_work_is_linear_over_known_lengths(tmp_path: Path) -> None:
    program = program_of(tmp_path, model("CumSum", [1_000_000], 0))
    assert operations(program) <= 4_000_000


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("op", KINDS)
def test_xla(op: str, flags: dict[str, Any], tmp_path: Path, seed: int) -> None:
    compiled = PjrtEngine().compile(program_of(tmp_path, model(op, ["N", 2], 0, **flags)))
    for length in (0, 1, 2, 77):
        x = draw(np.random.default_rng(seed), op, (length, 2), "f32")
        np.testing.assert_allclose(np.asarray(compiled(x)[0]), expected(op, x, 0, **flags), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("op", KINDS)
def test_as_text_and_as_onnx_again(op: str, flags: dict[str, Any], tmp_path: Path, seed: int) -> None:
    """CumSum is written as CumSum, a running product as Loop."""
    cases: list[tuple[str, list[Any]]] = [("f32", ["N"]), ("i64", ["B", "N"]), ("f16", ["N", 3])]
    for element, sizes in cases:
        axis = sizes.index("N")
        program = program_of(tmp_path, model(op, sizes, axis, element, **flags))
        verify(program)
        text = print_program(program)
        assert print_program(parse(text)) == text
        path = tmp_path / "again.onnx"
        write(program, {}, path)
        operators = [node.op_type for node in onnx.load(path).graph.node]
        assert ("CumSum" in operators) == (op == "CumSum")
        assert ("Loop" in operators) == (op == "CumProd")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        again = smelt.load(path, engine="reference")
        for length in (0, 1, 2, 70):
            x = draw(np.random.default_rng(seed), op, tuple({"N": length, "B": 2}.get(s, 3) for s in sizes), element)
            (theirs,) = session.run(None, {"x": x})
            check(theirs, expected(op, x, axis, **flags))
            check(again.run({"x": x})["y"], expected(op, x, axis, **flags))


@pytest.mark.parametrize("reverse", [0, 1])
def test_gradients(reverse: int, tmp_path: Path, seed: int) -> None:
    """The gradient of a running sum is one that runs the other way."""
    program = program_of(tmp_path, model("CumSum", ["N"], 0, "f64", reverse=reverse))
    compiled = NativeEngine().compile(vjp(program))
    for length in (1, 2, 300):
        x, g = np.random.default_rng(seed).normal(size=(2, length))
        np.testing.assert_allclose(compiled(x, g)[-1], expected("CumSum", g, 0, reverse=1 - reverse), rtol=1e-9)
