"""Sizes that a program computes are checked before anything runs: negative, too large, divided by zero, not enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import RunError, SizeError, SmeltError
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse, print_program
from smelt.kernel.emit.sizes_c import number_text


def program(*shapes: str, body: str, result: str) -> Program:
    """A program over f32 arguments of these sizes; `f32[N - 1]` stands for a tensor type, `N|M` for a quotient."""

    def types(text: str) -> str:
        while "f32[" in text:
            head, _, rest = text.partition("f32[")
            sizes, _, rest = rest.partition("]")
            each = [size.strip() for size in sizes.split(",") if size.strip()]
            dims = "".join(f"{size}x" if size.isdigit() else "?x" for size in each)
            exact = ", ".join(each).replace("|", " floordiv ")
            text = f"{head}tensor<{dims}f32{f', #smelt.sizes<{exact}>' if '?' in dims else ''}>{rest}"
        return text

    arguments = ", ".join(f"%x{i}: f32[{shape}]" for i, shape in enumerate(shapes))
    return parse(types(f"func.func @main({arguments}) -> f32[{result}] {{\n{body}\n  return %r : f32[{result}]\n}}"))


ZERO = "  %z = stablehlo.constant dense<0.0> : tensor<f32>\n"
FULL = ZERO + "  %f = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> "
SUM = "applies stablehlo.add across dimensions"
CASES: dict[str, tuple[Program, list[tuple[int, ...]], list[tuple[int, ...]], str]] = {
    # name: (program, shapes that are wrong, shapes that are right, what the error says)
    "a part of negative size": (
        program(
            "N", "M",
            body=FULL + "f32[M - N]\n  %a = stablehlo.add %x0, %x0 : f32[N]\n"
            "  %r = stablehlo.concatenate %a, %f, dim = 0 : (f32[N], f32[M - N]) -> f32[M]",
            result="M",
        ),
        [(9,), (2,)], [(2,), (9,)], "M - N >= 0",
    ),
    "two negative sizes": (
        program("N", "N*N - 4*N + 4",
                body="  %r = stablehlo.reshape %x1 : (f32[N*N - 4*N + 4]) -> f32[N - 2, N - 2]", result="N - 2, N - 2"),
        [(1,), (1,)], [(4,), (4,)], "N - 2 >= 0",
    ),
    "a sum over a negative size": (
        program("N", "N*N - 4*N + 4", result="N - 2",
                body=ZERO + "  %s = stablehlo.reshape %x1 : (f32[N*N - 4*N + 4]) -> f32[N - 2, N - 2]\n"
                f"  %r = stablehlo.reduce(%s init: %z) {SUM} = [1] : (f32[N - 2, N - 2], tensor<f32>) -> f32[N - 2]"),
        [(1,), (1,)], [(3,), (1,)], "N - 2 >= 0",
    ),
    "fewer than k": (
        program("N", body="  %r, %i = chlo.top_k(%x0, k = 3) : f32[N] -> (f32[3], tensor<3xi32>)", result="3"),
        [(1,)], [(3,)], "N >= 3",
    ),
    "many more than k": (
        program("N", body="  %r, %i = chlo.top_k(%x0, k = 40) : f32[N] -> (f32[40], tensor<40xi32>)", result="40"),
        [(39,)], [(40,)], "N >= 40",
    ),
    "a slice past the end": (
        program("N", body="  %r = stablehlo.slice %x0 [2:5] : (f32[N]) -> f32[3]", result="3"),
        [(4,)], [(5,)], "N >= 5",
    ),
    "edges that take more than there is": (
        program("N", body=ZERO + "  %r = stablehlo.pad %x0, %z, low = [-2], high = [-1], interior = [0]"
                " : (f32[N], tensor<f32>) -> f32[N - 3]", result="N - 3"),
        [(2,)], [(4,)], "N - 3 >= 0",
    ),
    "a division by zero": (
        program("N", "M", body=FULL + "f32[N|M]\n  %r = stablehlo.add %f, %f : f32[N|M]", result="N|M"),
        [(3,), (0,)], [(3,), (2,)], "M != 0",
    ),
    "a product of sizes that overflows": (
        program("N", result="", body=FULL + "f32[N**5]\n"
                f"  %r = stablehlo.reduce(%f init: %z) {SUM} = [0] : (f32[N**5], tensor<f32>) -> f32[]"),
        [(30_000,)], [(3,)], "4*N**5",
    ),
    "a product that overflows to something small": (
        program("N", result="N**4, 4", body=FULL + "f32[N**4, 4]\n  %r = stablehlo.add %f, %f : f32[N**4, 4]"),
        [(1 << 16,)], [(2,)], "16*N**4",
    ),
}  # fmt: skip


def inputs(shapes: list[tuple[int, ...]]) -> list[Array]:
    return [np.ones(shape, np.float32) for shape in shapes]


@pytest.fixture(scope="module")
def compiled() -> dict[str, object]:
    return dict(zip(CASES, compile_all([case[0] for case in CASES.values()]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_size_is_refused_before_anything_runs(name: str, compiled: dict[str, object]) -> None:
    source, wrong, right, says = CASES[name]
    native = compiled[name]
    assert callable(native), native
    with pytest.raises(RunError) as interpreted:
        run(source, inputs(wrong))
    with pytest.raises(SizeError) as generated:
        native(*inputs(wrong))
    assert says in str(generated.value)
    assert isinstance(interpreted.value, SizeError) or "no memory" in str(interpreted.value)
    for got, want in zip(native(*inputs(right)), run(source, inputs(right)), strict=True):
        np.testing.assert_array_equal(got, want)


BRANCH = """func.func @main(%c: tensor<i1>, %x: tensor<?xf32, #smelt.sizes<N>>) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = "stablehlo.if"(%c) ({
    %a = stablehlo.slice %x [3:5] : (tensor<?xf32, #smelt.sizes<N>>) -> tensor<2xf32>
    %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
    stablehlo.return %s : tensor<f32>
  }, {
    stablehlo.return %z : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return %r : tensor<f32>
}"""


def test_a_block_that_does_not_run_asks_nothing() -> None:
    native = NativeEngine().compile(parse(BRANCH))
    yes, no, few, enough = np.True_, np.False_, np.ones(2, np.float32), np.ones(5, np.float32)
    assert native(np.array(yes), enough) == (2,)
    assert native(np.array(no), few) == (0,)
    with pytest.raises(SizeError, match="slice"):
        native(np.array(yes), few)
    with pytest.raises(SizeError, match="slice"):
        run(parse(BRANCH), [np.array(yes), few])


LATE = """func.func @main(%s: tensor<1xi64>, %x: tensor<4xf32>) -> tensor<?xf32, #smelt.sizes<k>> {
  %i = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi64>) -> tensor<?xf32, #smelt.sizes<k>>
  %t = stablehlo.slice %i [0:3] : (tensor<?xf32, #smelt.sizes<k>>) -> tensor<3xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%t init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
  %b = stablehlo.dynamic_broadcast_in_dim %m, %s, dims = []
    : (tensor<f32>, tensor<1xi64>) -> tensor<?xf32, #smelt.sizes<k>>
  return %b : tensor<?xf32, #smelt.sizes<k>>
}"""


@pytest.mark.parametrize("count", [2, 3, 1 << 40, 1 << 62, (1 << 63) - 1, -1])
def test_data_dependent_sizes_are_checked_too(count: int) -> None:
    native = NativeEngine().compile(parse(LATE))
    args = [np.array([count]), np.ones(4, np.float32)]
    if count == 3:
        np.testing.assert_array_equal(native(*args)[0], run(parse(LATE), args)[0])
        return
    for call in (lambda: native(*args), lambda: run(parse(LATE), args)):
        with pytest.raises(RunError):
            call()


def test_the_reference_asks_for_memory_before_it_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system promises more memory than it has, NumPy's allocation succeeds and the process is killed."""
    monkeypatch.setattr("smelt.ir.ops.shape.machine_memory", lambda: 1 << 20)
    with pytest.raises(RunError, match="dynamic_iota: no memory for the result"):
        run(parse(LATE), [np.array([1 << 18]), np.ones(4, np.float32)])


HUGE = {
    "constant": "%b = stablehlo.constant dense<1> : tensor<{0}xi8>",
    "iota": "%b = stablehlo.iota dim = 0 : tensor<{0}xi8>",
    "broadcast": "%b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<i8>) -> tensor<{0}xi8>",
}


@pytest.mark.parametrize("elements", [1 << 57, 1 << 62, (1 << 63) - 1, 1 << 63, 10**30])
@pytest.mark.parametrize("op", HUGE)
def test_tensors_that_no_machine_holds(elements: int, op: str) -> None:
    """The error is ours, not the C compiler's, and comes at once."""
    text = f"""func.func @main(%x: tensor<?xi8>) -> tensor<i8> {{
  %z = stablehlo.constant dense<0> : tensor<i8>
  {HUGE[op].format(elements)}
  %r = stablehlo.reduce(%b init: %z) applies stablehlo.maximum across dimensions = [0]
    : (tensor<{elements}xi8>, tensor<i8>) -> tensor<i8>
  return %r : tensor<i8>
}}"""
    with pytest.raises(SmeltError) as error:
        NativeEngine().compile(parse(text))(np.ones(2, np.int8))
    assert "no memory" in str(error.value) or "too large" in str(error.value)


@pytest.mark.parametrize("dim", [0, 1])
def test_nothing_is_selected_from_an_empty_axis(dim: int) -> None:
    """Of the axis that is selected from, not of another one; where nothing is asked for, nothing is missing."""
    shape, result = (("M, 2", "K, 2"), ("2, M", "2, K"))[dim]
    source, into = (f"tensor<{text.replace(', ', 'x').replace('M', '?').replace('K', '?')}xf32, #smelt.sizes<{text}>>"
                    for text in (shape, result))  # fmt: skip
    text = f"""func.func @main(%x: {source}, %i: tensor<?xi32, #smelt.sizes<K>>) -> {into} {{
  %r = "stablehlo.torch_index_select"(%x, %i) {{dim = {dim} : i64, batch_dims = 0 : i64}}
    : ({source}, tensor<?xi32, #smelt.sizes<K>>) -> {into}
  return %r : {into}
}}"""
    native = NativeEngine().compile(parse(text))
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    whole, empty = (rows, rows[:0]) if dim == 0 else (rows.T.copy(), rows[:0].T.copy())
    picked = np.array([2, 0], np.int32)
    np.testing.assert_array_equal(native(whole, picked)[0], whole.take(picked, dim))
    assert native(empty, picked[:0])[0].size == 0
    with pytest.raises(SizeError, match="there is something to select from"):
        native(empty, picked)


def test_a_bundle_makes_the_same_checks(tmp_path: Path) -> None:
    """They are part of the generated code: what loads a bundle has no plan."""
    source, wrong, right, says = CASES["a part of negative size"]
    path = tmp_path / "m.smelt"
    file = tmp_path / "m.mlir"
    file.write_text(print_program(source))
    smelt.load(file, engine="native").save(path)
    loaded = smelt.load(path)
    assert [len(each) for each in loaded(*inputs(right)).values()] == [9]
    with pytest.raises(SizeError, match=says):
        loaded(*inputs(wrong))


def test_numbers_that_c_has() -> None:
    assert [number_text(n) for n in (0, -7, 2**63 - 1)] == ["0LL", "-7LL", "9223372036854775807LL"]
    for number in (2**63, -(2**63)):
        with pytest.raises(SizeError, match="a number in a size is too large") as caught:
            number_text(number)
        assert (caught.value.expected, caught.value.got) == ("less than 2**63", number)
