"""Scatter on a GPU, run by the emulator: updates that the kernel computes itself, and several of one element."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.build import scatter_simt, sort_simt
from tests.cuda.emulated import EmulatedCuda

SCATTER = """func.func @main(%y: tensor<9x4xf32>, %at: tensor<5x1xi32>, %x: tensor<5x4xf32>) -> tensor<9x4xf32> {{
  {updates}
  %r = "stablehlo.scatter"(%y, %at, %u) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    {body}
    stablehlo.return %s : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
       scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : (tensor<9x4xf32>, tensor<5x1xi32>, tensor<5x4xf32>) -> tensor<9x4xf32>
  return %r : tensor<9x4xf32>
}}"""
OWN = "%v = stablehlo.multiply %x, %x : tensor<5x4xf32>\n  %u = stablehlo.add %v, %x : tensor<5x4xf32>"
CHANGED = """%v = stablehlo.reshape %y : (tensor<9x4xf32>) -> tensor<36xf32>
  %w = stablehlo.slice %v [8:28] : (tensor<36xf32>) -> tensor<20xf32>
  %p = stablehlo.reshape %w : (tensor<20xf32>) -> tensor<5x4xf32>
  %u = stablehlo.add %p, %x : tensor<5x4xf32>"""
ADD = "%s = stablehlo.add %a, %b : tensor<f32>"


@pytest.mark.parametrize(
    ("updates", "body", "launches"),
    [(OWN, "", 1), (OWN, ADD, 2), (CHANGED, "", 2)],
    ids=["placed", "added", "from what it changes"],
)
def test_scatter_computes_updates_that_it_reads_once(
    updates: str, body: str, launches: int, emulated: EmulatedCuda, seed: int
) -> None:
    """Not where it adds them, and not where they depend on what it changes: other threads change it meanwhile."""
    text = SCATTER.format(updates=updates, body=body)
    program = parse(text if body else text.replace("return %s : tensor<f32>", "return %b : tensor<f32>"))
    random = np.random.default_rng(seed)
    y, x = (random.standard_normal((rows, 4), np.float32) for rows in (9, 5))
    at = np.array([[3], [8], [3], [-1], [4]], np.int32)
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError)
    np.testing.assert_array_equal(made(y, at, x)[0].numpy(), run(program, [y, at, x])[0])
    *_, plan = emit_source([plan_program(program, emulated.target())]).texts(1)
    steps = json.loads(plan)["programs"]["smelt0"]["steps"]
    assert sum(len(each.get("launches", ())) for each in steps) == launches


ONE = "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"  # an index, an element
ROWS = f"update_window_dims = [1], {ONE}"
OVERLAPPING = "update_window_dims = [1, 2], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 1"
BATCHES = """update_window_dims = [2], inserted_window_dims = [1], input_batching_dims = [0],
  scatter_indices_batching_dims = [1], scatter_dims_to_operand_dims = [1], index_vector_dim = 2"""


def scattering(dims: str, sizes: tuple[str, str, str], element: str, body: str, count: int = 1) -> Program:
    """A scatter into `count` operands. `body` makes %s0, %s1 from %a0, %a1 and the updates %b0, %b1;
    without one they replace what was there."""
    operand, indices, update = (
        f"tensor<{size}x{kind}>" for size, kind in zip(sizes, (element, "i32", element), strict=True)
    )
    one, each = f"tensor<{element}>", range(count)

    def join(form: str) -> str:
        return ", ".join(form.format(i=i) for i in each)

    return parse(f"""func.func @main({join("%y{i}: " + operand)}, %at: {indices}, {join("%x{i}: " + update)})
  -> ({join(operand)}) {{
  %r{f":{count}" if count > 1 else ""} = "stablehlo.scatter"({join("%y{i}")}, %at, {join("%x{i}")}) ({{
  ^bb0({join("%a{i}: " + one)}, {join("%b{i}: " + one)}):
    {body}
    stablehlo.return {join("%s{i}" if body else "%b{i}")} : {join(one)}
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<{dims}>}}
    : ({join(operand)}, {indices}, {join(update)}) -> ({join(operand)})
  return {join("%r#{i}") if count > 1 else "%r"} : {join(operand)}
}}""")


def apply(function: str, element: str) -> str:
    return f"%s0 = stablehlo.{function} %a0, %b0 : tensor<{element}>"


def draw(random: np.random.Generator, shape: tuple[int, ...], element: str) -> Array:
    kind = dtype(element)
    if kind.is_integer:
        return random.integers(0, 100, shape).astype(kind.numpy) - (0 if kind.kind == "uint" else 50)
    found: Any = random.standard_normal(shape)
    return np.asarray(found.astype(kind.numpy))


def check(programs: list[Program], inputs: list[list[Array]], device: EmulatedCuda) -> None:
    """The bits of updates in order."""
    for program, given, made in zip(programs, inputs, compile_all(programs, device.target()), strict=True):
        assert not isinstance(made, SmeltError), made
        for got, want in zip(made(*given), run(program, given), strict=True):
            assert got.numpy().tobytes() == want.tobytes()


def source_of(program: Program, device: EmulatedCuda) -> str:
    text, *_ = emit_source([plan_program(program, device.target())]).texts(1)
    return text


def test_integers_are_updated_atomically(emulated: EmulatedCuda, seed: int) -> None:
    random = np.random.default_rng(seed)
    programs, inputs = [], []
    for element in ("i32", "ui32", "i64", "ui64"):
        for function in ("add", "and", "or", "xor", "minimum", "maximum"):
            programs.append(scattering(ONE, ("16", "90x1", "90"), element, apply(function, element)))
            at = random.integers(-2, 18, (90, 1)).astype(np.int32)
            inputs.append([draw(random, (16,), element), at, draw(random, (90,), element)])
            assert "atomic" in source_of(programs[-1], emulated)
    programs.append(scattering(OVERLAPPING, ("7x6", "9x2", "9x2x3"), "i32", apply("add", "i32")))
    at = random.integers(-3, 7, (9, 2)).astype(np.int32)
    inputs.append([draw(random, (7, 6), "i32"), at, draw(random, (9, 2, 3), "i32")])
    check(programs, inputs, emulated)


FORMS = {
    "one": (ONE, ("16", "200x1", "200")),
    "rows": (ROWS, ("16x3", "40x1", "40x3")),
    "overlapping": (OVERLAPPING, ("7x6", "20x2", "20x2x3")),
    "batches": (BATCHES, ("3x5x2", "30x3x1", "30x3x2")),
}


@pytest.mark.parametrize("form", FORMS)
def test_updates_in_order(form: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floats, updates that replace others, and those whose order matters: several of most elements, some
    outside."""
    monkeypatch.setattr(scatter_simt, "MANY", 8)
    random, (dims, sizes) = np.random.default_rng(seed), FORMS[form]
    shapes = [tuple(map(int, size.split("x"))) for size in sizes]
    programs, inputs = [], []
    halve = """%h = stablehlo.add %a0, %a0 : tensor<f32>
    %s0 = stablehlo.subtract %h, %b0 : tensor<f32>"""
    bodies = [(each, apply("add", each)) for each in ("f32", "bf16", "f16", "f64", "i8")]
    for element, body in [*bodies, ("f32", halve), ("f32", "")]:
        programs.append(scattering(dims, sizes, element, body))
        at = random.integers(-2, max(shapes[0]) + 1, shapes[1]).astype(np.int32)
        inputs.append([draw(random, shapes[0], element), at, draw(random, shapes[2], element)])
        text = source_of(programs[-1], emulated)
        assert "_scatter0_1" in text, "updates are sorted by one launch, applied by another"
        assert "atomic" not in text
    check(programs, inputs, emulated)


def test_several_operands_and_dynamic_sizes(emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_simt, "MANY", 8)
    monkeypatch.setattr(sort_simt, "MOST", 1 << 12)
    random = np.random.default_rng(seed)
    swap = "%s0 = stablehlo.add %a1, %b0 : tensor<f32>\n    %s1 = stablehlo.subtract %a0, %b1 : tensor<f32>"
    pair = scattering(ROWS, ("9x4", "50x1", "50x4"), "f32", swap, 2)
    at = random.integers(-1, 10, (50, 1)).astype(np.int32)
    check([pair], [[*draw(random, (2, 9, 4), "f32"), at, *draw(random, (2, 50, 4), "f32")]], emulated)
    program = scattering(ROWS, ("?x4", "?x1", "?x4"), "f32", apply("add", "f32"))
    for rows, count in ((9, 0), (9, 1), (0, 30), (9, 300)):
        at = random.integers(-1, 10, (count, 1)).astype(np.int32)
        check([program], [[draw(random, (rows, 4), "f32"), at, draw(random, (count, 4), "f32")]], emulated)


def test_scatters_share_their_memory(emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the updates of one are sorted in is free after it."""
    monkeypatch.setattr(scatter_simt, "MANY", 8)

    def slots(count: int) -> list[int]:
        updates = [
            f"""%{i + 1} = "stablehlo.scatter"(%{i}, %at, %x) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<{ONE}>}}
    : (tensor<16xf32>, tensor<200x1xi32>, tensor<200xf32>) -> tensor<16xf32>"""
            for i in range(count)
        ]
        program = parse(f"""func.func @main(%y: tensor<16xf32>, %at: tensor<200x1xi32>, %x: tensor<200xf32>)
    -> tensor<16xf32> {{
  %0 = stablehlo.negate %y : tensor<16xf32>
  {chr(10).join(updates)}
  return %{count} : tensor<16xf32>
}}""")
        *_, text = emit_source([plan_program(program, emulated.target())]).texts(1)
        plan = json.loads(text)["programs"]["smelt0"]
        return sorted(plan["sizes"][size] for slot in plan["slots"] for size in slot)

    assert slots(3) == slots(1)
