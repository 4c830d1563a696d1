"""Ops of the kernels' own dialect in a file: their attributes and sizes are the file's, and kernels take only those of
our passes. What they do not take is refused; what they take has the results of the reference semantics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from smelt.device import cpu, cuda, registry
from smelt.dtype import Array
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError, UnsupportedError
from smelt.ir.interpret import run
from smelt.ir.ops import OPS as ALL_OPS
from smelt.ir.text import parse
from smelt.layout import panels
from smelt.run.executable import NativeExecutable
from smelt.shape import Shape
from smelt.target import Target, tile_shape
from tests.cuda.emulated import EmulatedCuda, compiler
from tests.hostile.internal_ops import OPS, draw

TARGETS: dict[str, Target] = {**cpu.TARGETS, "sm_80": cuda.TARGETS["sm_80"], "sm_90": cuda.TARGETS["sm_90"]}
CHECKED = (
    "smelt.packed_dot",
    "smelt.packed_conv",
    "smelt.winograd_conv",
    "smelt.depthwise_conv",
    "smelt.grouped_dot",
    "smelt.attention",
    "smelt.paged_attention",
)  # kernels take a few forms and sizes
# Kernels use what the operands say twice: sums of integers, and codes that are padded with zeros.
CONSISTENT = ("smelt.packed_block_dot", "smelt.grouped_block_dot", "smelt.round_to_byte", "smelt.paged_attention")


def programs(name: str, seed: int, count: int, columns: Sequence[int] = (64, 16, 8)) -> list[str]:
    each = (np.random.default_rng([seed, number]) for number in range(count))
    texts = (draw(name, random, columns[number % len(columns)]) for number, random in enumerate(each))
    return [text for text in texts if text is not None]


def test_every_op_of_the_dialect_is_drawn() -> None:
    assert {*OPS} == {name for name in ALL_OPS if name.startswith("smelt.")}


@pytest.mark.parametrize("name", OPS)
def test_only_smelt_errors_come_out_of_the_kernel_compiler(name: str, seed: int) -> None:
    texts, planned, refused = programs(name, seed, 90 if name in CHECKED else 20), 0, 0
    assert len(texts) > 8, "inference accepts most of what is drawn"
    for text in texts:
        for target in TARGETS.values():
            try:
                emit_source([plan_program(parse(text), target)]).texts(1)
                planned += 1
            except SmeltError as error:
                refused += isinstance(error, UnsupportedError)
    assert planned > 0
    assert refused > 0 or name not in CHECKED


def sizes_of(shape: Shape) -> tuple[int, ...]:
    """The sizes where open ones are 2."""
    return shape.substitute(dict.fromkeys(shape.symbols, 2)).numbers()


def drawn(shape: Shape, random: np.random.Generator) -> Array:
    """Small numbers."""
    sizes = sizes_of(shape)
    if shape.element.kind == "bool":
        return random.random(sizes) < 0.5
    if shape.element.is_complex or shape.element.is_float:
        return random.standard_normal(sizes).astype(shape.element.numpy)
    return random.integers(0, 3, sizes).astype(shape.element.numpy)


def agree(executable: NativeExecutable, text: str, random: np.random.Generator) -> bool:
    """Whether it ran; its results are the reference's to two digits."""
    program = parse(text)
    if any(np.prod(sizes_of(arg.shape)) > 1 << 20 for arg in program.main.args):
        return False
    arrays = [drawn(arg.shape, random) for arg in program.main.args]
    try:
        wanted = run(program, arrays)
    except SmeltError:  # sizes that two open ones together do not have
        with pytest.raises(SmeltError):
            executable(*arrays)
        return False
    for found, want in zip(executable(*arrays), wanted, strict=True):
        wide = np.asarray(want).astype(np.complex128)
        assert np.shape(found) == wide.shape
        scale = np.abs(wide[np.isfinite(wide)]).max(initial=1)
        np.testing.assert_allclose(np.asarray(found).astype(np.complex128), wide, rtol=0, atol=2e-2 * scale)
    return True


@pytest.mark.parametrize("name", [name for name in OPS if name not in (*CONSISTENT, "smelt.attention")])
def test_what_kernels_take_has_the_results_of_the_reference(name: str, seed: int) -> None:
    target, random = registry.find_device("cpu").target(), np.random.default_rng(seed)
    texts = programs(name, seed + 1, 90 if name in CHECKED else 30, [tile_shape(target).columns])
    made = compile_all([parse(text) for text in texts], target)
    pairs = [(each, text) for each, text in zip(made, texts, strict=True) if isinstance(each, NativeExecutable)]
    assert sum(agree(each, text, random) for each, text in pairs) > 0


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler: pip install ziglang")
@pytest.mark.parametrize("name", [name for name in OPS if name != "smelt.winograd_conv"])
def test_a_gpu_compiles_what_kernels_take(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedCuda()
    monkeypatch.setitem(registry.KINDS, "cuda", lambda: device)
    registry.find_device.cache_clear()
    try:
        texts = programs(name, seed + 2, 60 if name in CHECKED else 12, [64])
        made = compile_all([parse(text) for text in texts], device.target())
        errors = [str(each) for each in made if isinstance(each, SmeltError) and not isinstance(each, UnsupportedError)]
        assert not errors
        assert any(isinstance(each, NativeExecutable) for each in made)
    finally:
        registry.find_device.cache_clear()


def one_op(name: str, operands: str, result: str, attrs: str) -> str:
    types = [f"tensor<{each}>" for each in operands.split()]
    args = ", ".join(f"%a{i}: {each}" for i, each in enumerate(types))
    values = ", ".join(f"%a{i}" for i in range(len(types)))
    return (
        f"func.func @main({args}) -> tensor<{result}> {{\n"
        f'  %0 = "{name}"({values}) <{{{attrs}}}> : ({", ".join(types)}) -> tensor<{result}>\n'
        f"  return %0 : tensor<{result}>\n}}\n"
    )


TAPS = "window = array<i64: 3>, strides = array<i64: 1>, dilations = array<i64: 1>"
PAGED = (
    "composite_attributes = {{scale = 1.0 : f64, softcap = 0.0 : f64, window = {window} : i64}}, width = {width} : i64"
)
PAGES = "3x4x16xf32 5x2x16x16xf32 5x2x16x16xf32 2x3xi32 3xi32 3xi32"
ATTENTION = (
    'composite_attributes = {operands = "q k v", layout = "qd,kd,ke->qe", scale = 1.0 : f64, softcap = 0.0 : f64,'
    " fill = [], guarded = 0 : i64}, width = "
)
# Each is accepted by inference and has a kernel but for one attribute or size.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a panel of another width": (
        "avx2", {"name": "smelt.packed_dot", "operands": "1x2x3xf32 1x2x3x24xf32", "result": "1x2x40xf32",
                 "attrs": f'layout = "{panels(24)}"'}),
    "a panel for tensor cores": (
        "avx2", {"name": "smelt.packed_dot", "operands": "1x2x8xf16 1x1x1x128xf16", "result": "1x2x16xf32",
                 "attrs": f'layout = "{panels(16, 8)}"'}),
    "a layout of other digits": (
        "sm_90", {"name": "smelt.packed_dot", "operands": "1x2x3xf32 1x3x1x64xf32", "result": "1x2x64xf32",
                  "attrs": 'layout = "gkn->g k n/64 n%64"'}),
    "a frame of zeros on a processor": (
        "avx2", {"name": "smelt.packed_conv", "operands": "1x5x32xf32 1x1x96x16xf32", "result": "1x5x16xf32",
                 "attrs": f'layout = "{panels(16)}", {TAPS}, padding = dense<1> : tensor<1x2xi64>'}),
    "a frame of zeros in f32 on a GPU": (
        "sm_90", {"name": "smelt.packed_conv", "operands": "1x5x32xf32 1x1x96x64xf32", "result": "1x5x64xf32",
                  "attrs": f'layout = "{panels(64)}", {TAPS}, padding = dense<1> : tensor<1x2xi64>'}),
    "fp8 without tensor cores for it": (
        "sm_80", {"name": "smelt.packed_dot", "operands": "1x2x16xf8E5M2 1x1x1x1024xf8E5M2", "result": "1x2x64xf32",
                  "attrs": f'layout = "{panels(64, 16)}"'}),
    "groups of f32 on a GPU": (
        "sm_90", {"name": "smelt.grouped_dot", "operands": "1x2x3xf32 5x1x3x64xf32 5xi32", "result": "1x2x64xf32",
                  "attrs": f'layout = "{panels(64)}"'}),
    "Winograd on a GPU": (
        "sm_90", {"name": "smelt.winograd_conv", "operands": "1x6x6x3xf32 1x16x3x64xf32", "result": "1x4x4x64xf32",
                  "attrs": ""}),
    "a depthwise convolution of f64": (
        "avx2", {"name": "smelt.depthwise_conv", "operands": "1x5x3xf64 2x3xf64", "result": "1x4x3xf64",
                 "attrs": "strides = array<i64: 1>, dilations = array<i64: 1>"}),
    "queries of another block": (
        "avx2", {"name": "smelt.attention", "operands": "2x4xf32 3x4xf32 3x5xf32", "result": "2x5xf32",
                 "attrs": f"{ATTENTION}3 : i64"}),
    "queries without end": (
        "avx2", {"name": "smelt.attention", "operands": "2x4xf32 3x4xf32 3x5xf32", "result": "2x5xf32",
                 "attrs": f"{ATTENTION}1099511627776 : i64"}),
    "attention of f64": (
        "avx2", {"name": "smelt.attention", "operands": "2x4xf64 3x4xf64 3x5xf64", "result": "2x5xf64",
                 "attrs": f"{ATTENTION}64 : i64"}),
    "pages of another width": (
        "avx2", {"name": "smelt.paged_attention", "operands": PAGES, "result": "3x4x16xf32",
                 "attrs": PAGED.format(window=0, width=24)}),
    "a window wider than i32": (
        "avx2", {"name": "smelt.paged_attention", "operands": PAGES, "result": "3x4x16xf32",
                 "attrs": PAGED.format(window=1 << 40, width=16)}),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_pass_makes_has_no_kernel(what: str) -> None:
    target, said = REFUSED[what]
    with pytest.raises(UnsupportedError, match=f"the native engine does not support {said['name']}"):
        plan_program(parse(one_op(**said)), TARGETS[target])


@pytest.mark.parametrize(("target", "width"), [("avx2", 16), ("sm_90", 64)])
def test_the_same_with_attributes_of_a_pass_has_one(target: str, width: int) -> None:
    for said in (
        ("smelt.packed_dot", f"1x2x3xf32 1x1x3x{width}xf32", f"1x2x{width}xf32", f'layout = "{panels(width)}"'),
        ("smelt.packed_conv", f"1x7x32xf32 1x1x96x{width}xf32", "1x5x16xf32", f'layout = "{panels(width)}", {TAPS}'),
        ("smelt.attention", "2x4xf32 3x4xf32 3x5xf32", "2x5xf32", f"{ATTENTION}64 : i64"),
        ("smelt.paged_attention", PAGES, "3x4x16xf32", PAGED.format(window=7, width=width)),
    ):
        plan_program(parse(one_op(*said)), TARGETS[target])


@pytest.mark.parametrize("pool", [0, 5])
@pytest.mark.parametrize("table", ["0x3", "2x3", "2x0"])
def test_a_query_without_pages_gives_zeros(pool: int, table: str) -> None:
    """No page is read, whatever the positions say: an index into an empty pool has nowhere to be clamped to."""
    target = registry.find_device("cpu").target()
    pages = PAGES.replace("5x2", f"{pool}x2").replace("2x3xi32", f"{table}xi32")
    text = one_op(
        "smelt.paged_attention", pages, "3x4x16xf32", PAGED.format(window=0, width=tile_shape(target).columns)
    )
    program = parse(text)
    (call,) = compile_all([program], target)
    assert isinstance(call, NativeExecutable)
    arrays = [np.ones(arg.shape.numbers(), arg.shape.element.numpy) for arg in program.main.args]
    arrays[5] = np.array([-(1 << 31), 7, (1 << 31) - 1], np.int32)
    wanted = run(program, arrays)[0]
    np.testing.assert_allclose(np.asarray(call(*arrays)[0]), wanted, rtol=1e-5)
    assert wanted[1:].any() == (pool > 0 and table == "2x3")


# Panels of the target: P of them, of so many columns.
EMPTY = {
    "block dot of no row": ("smelt.packed_block_dot", "1x0x64xi8 1x0x2xf32 1x0x2xi32 1x1x2x288xui8", "1x0x9xf32"),
    "block dot of no column": ("smelt.packed_block_dot", "1x2x64xi8 1x2x2xf32 1x2x2xi32 1x0x2x288xui8", "1x2x0xf32"),
    "block dot of nothing": ("smelt.packed_block_dot", "1x2x0xi8 1x2x0xf32 1x2x0xi32 1x1x0x288xui8", "1x2x9xf32"),
    "groups of no row": (
        "smelt.grouped_block_dot", "1x0x64xi8 1x0x2xf32 1x0x2xi32 3x1x2x288xui8 3xi32", "1x0x9xf32"),
    "no image": ("smelt.packed_conv", "0x7x32xf32 1xPx96xWxf32", "0x5x16xf32"),
    "no place of a window": ("smelt.depthwise_conv", "2x16x8x7xf32 3x1x7xf32", "2x0x8x7xf32"),
    "no row": ("smelt.packed_dot", "1x0x3xf32 1xPx3xWxf32", "1x0x16xf32"),
    "grouped, no row": ("smelt.grouped_dot", "1x0x3xf32 5xPx3xWxf32 5xi32", "1x0x16xf32"),
}  # fmt: skip


@pytest.mark.parametrize("what", EMPTY)
def test_operands_without_elements(what: str) -> None:
    name, operands, result = EMPTY[what]
    target = registry.find_device("cpu").target()
    columns = tile_shape(target).columns
    layout = f'layout = "{panels(columns)}"'
    attrs = {
        "smelt.packed_conv": f"{layout}, {TAPS}",
        "smelt.depthwise_conv": "strides = array<i64: 2, 1>, dilations = array<i64: 9, 1>",
    }.get(name, 'format = "q4_0"' if "block" in name else layout)
    text = one_op(name, operands.replace("W", f"{columns}").replace("P", f"{-(-16 // columns)}"), result, attrs)
    program = parse(text)
    (call,) = compile_all([program], target)
    assert isinstance(call, NativeExecutable), call
    arrays = [np.zeros(arg.shape.numbers(), arg.shape.element.numpy) for arg in program.main.args]
    for found in (call(*arrays)[0], run(program, arrays)[0]):
        assert np.shape(found) == program.main.results[0].shape.numbers()
        assert not np.asarray(found).any()
