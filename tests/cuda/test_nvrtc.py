"""Kernels of samples compile to machine code of GPUs: no GPU is needed, only NVRTC."""

from __future__ import annotations

import itertools
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.bundle.write import write
from smelt.device import cuda_compile, cuda_driver
from smelt.device.cuda import TARGETS
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.store import recompile, store_weights
from smelt.errors import DeviceError, UnsupportedError
from smelt.ir.blocks import BLOCKS
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.emit.cuda import CudaSource
from smelt.llm.draw import Draw, draw_tokens
from smelt.model import read
from smelt.passes.lower_blocks import round_activations
from smelt.passes.quantise import with_precision
from smelt.run.load import every_code
from smelt.target import TileShape
from tests.conformance import native_cases
from tests.cuda.test_early_reads import CASES, attention_layer
from tests.cuda.test_rounded_rows import PAGED, layer, rounded_attention
from tests.property.models import MODELS
from tests.property.problems import KINDS, draw
from tests.unit.kernel.test_grouped import grouped_blocks

pytestmark = pytest.mark.skipif(cuda_compile.missing() is not None, reason=str(cuda_compile.missing()))
ROOT = Path(__file__).resolve().parents[2]
FAMILIES = 60  # of the StableHLO programs
ANY_LOAD, GLOBAL_LOAD = 0x980, 0x981  # opcodes of loads from any memory, and from the device's


def sample() -> Iterator[Program]:
    yield read(ROOT / "smelt/assets/digits.onnx")[0]
    yield from (parse(path.read_text()) for path in sorted((ROOT / "tests/golden").glob("*.mlir")))
    yield from (model.dynamic_program() for model in MODELS.values())
    numbers = Draw("f32[s=S]", "i32[s=S]", "f32[s=S]", "f32[s=S]", "f32[s=S]")
    yield smelt.compile(draw_tokens, "f32[s=S, v=5000]", numbers, "i32[s=S]", engine="reference").program
    for kind in KINDS:
        random = np.random.default_rng([1, *kind.encode()])
        yield draw(kind, random).make(False)


def families(folder: Path) -> Iterator[Program]:
    """One program of each family, evenly chosen, with its constants as arguments."""
    found = {re.sub(r"[\d_].*", "", path.stem): path for path in sorted(folder.glob("*/*.mlir"))}
    for path in list(found.values())[:: max(1, len(found) // FAMILIES)]:
        program = parse(path.read_text())
        try:
            yield native_cases.recast(program, program.main.name, []).program
        except (UnsupportedError, ValueError):
            continue  # a check inside a region, or a program with arguments


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_every_kernel_of_a_sample_compiles(machine: str) -> None:
    plans = [plan_program(program, TARGETS[machine]) for program in sample()]
    *files, _ = emit_source(plans).texts(1)
    for text in files:
        assert len(cuda_compile.compile_cuda(text, machine)) > 10_000


@pytest.mark.parametrize("machine", ["sm_80", "sm_89", "sm_90", "sm_120"])
def test_tf32_and_fp8_compile(machine: str) -> None:
    """On chips without instructions for fp8 it is multiplied as bf16."""
    text = """func.func @main(%x: tensor<500x512xf32>, %w: tensor<512x640xf32> {smelt.weight = "w"})
    -> tensor<500x640xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<500x512xf32>, tensor<512x640xf32>) -> tensor<500x640xf32>
  return %0 : tensor<500x640xf32>
}"""
    programs = [with_precision(parse(text), "tf32")]
    for left, right in itertools.product(("f8E4M3FN", "f8E5M2"), repeat=2):
        narrow = text.replace("500x512xf32", f"500x512x{left}").replace("512x640xf32", f"512x640x{right}")
        programs += [parse(narrow), parse(narrow.replace("500x", "40x"))]  # few rows: weights by the copy engine
    plans = [plan_program(program, TARGETS[machine]) for program in programs]
    *files, _ = emit_source(plans).texts(1)
    assert ("smelt_tile<smelt_fp8, " in "".join(files)) == (machine != "sm_80")
    assert ("smelt_stream<smelt_fp8, " in "".join(files)) == (machine == "sm_90")
    for source in files:
        assert len(cuda_compile.compile_cuda(source, machine)) > 10_000


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_grouped_products_compile(machine: str) -> None:
    dense = """func.func @main(%x: tensor<40x128xf32>, %w: tensor<5x128x96xbf16> {smelt.weight = "w"},
    %s: tensor<5xi32>) -> tensor<40x96xf32> {
  %0 = stablehlo.convert %w : (tensor<5x128x96xbf16>) -> tensor<5x128x96xf32>
  %1 = "chlo.ragged_dot"(%x, %0, %s) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1],
    rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}>
    : (tensor<40x128xf32>, tensor<5x128x96xf32>, tensor<5xi32>) -> tensor<40x96xf32>
  return %1 : tensor<40x96xf32>
}"""
    programs = [parse(dense), round_activations(grouped_blocks(BLOCKS["q4_0"], 4, 64))]
    *files, _ = emit_source([plan_program(program, TARGETS[machine]) for program in programs]).texts(1)
    assert all(name in "".join(files) for name in ("smelt0_grouped_dot", "smelt1_grouped_block_dot"))
    for text in files:
        assert len(cuda_compile.compile_cuda(text, machine)) > 5_000


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_rounded_rows_compile(machine: str) -> None:
    """In epilogues of products and attention, with the factors of norms beside a product."""
    cases = [rounded_attention(case) for case in PAGED.values()]
    *files, _ = emit_source([plan_program(each, TARGETS[machine]) for each in (layer(1024, 2048), *cases)]).texts(1)
    beside = "smelt_block_single<" if machine == "sm_90" else "smelt_aside"
    assert all(name in "".join(files) for name in ("smelt_round_rows<", beside, "smelt_decode<"))
    for text in files:
        assert len(cuda_compile.compile_cuda(text, machine)) > 5_000


def test_the_stablehlo_families_compile(suites: Path) -> None:
    plans = [plan_program(program, TARGETS["sm_80"]) for program in families(suites)]
    *files, _ = emit_source(plans).texts(1)
    for text in files:
        assert len(cuda_compile.compile_cuda(text, "sm_80")) > 10_000


def test_bundles_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    """The processor packs the weights; the bundle has code for both."""
    program, weights = read(ROOT / "smelt/assets/digits.onnx")
    path = tmp_path / "digits.smelt"
    write(path, store_weights(program, weights, ["sm_90", "plain"]))
    with smelt.load(path) as model:
        assert model(np.zeros((2, 64), np.float32))["probabilities"].shape == (2, 10)
    found = {each.code.target: each.absent for each in every_code(path, recompile)}
    assert found.keys() == {"sm_90", "plain"}
    assert not found["plain"]
    if cuda_driver.missing() is not None:
        assert "NVIDIA" in found["sm_90"]
    (code,) = [each.code for each in every_code(path, recompile) if each.code.target == "sm_90"]
    assert "ptx" in code.features
    content = code.library()
    assert b".target sm_90\n" in content
    assert b".target sm_90a" not in content  # for later chips too


def test_what_cannot_be_compiled_says_why() -> None:
    with pytest.raises(DeviceError, match="could not compile") as caught:
        cuda_compile.compile_cuda("__global__ void f() { g(); }", "sm_90")
    assert "identifier" in str(caught.value)
    with pytest.raises(DeviceError, match="sm_1"):
        cuda_compile.compile_cuda("", "sm_1")


def test_loads_that_bring_data_nearer_are_in_the_machine_code() -> None:
    """NVRTC leaves out loads whose results are not used, whatever the source says."""
    counts = []
    for statement in ("", "smelt_touched(smelt_touch(from + threadIdx.x));"):
        kernel = f'extern "C" __global__ void kernel(const char *from) {{ {statement} }}\n'
        source = CudaSource(TileShape(64, 64, 32))
        source.parts.append(f"// smelt_block_stream<smelt_blocks_q4_0, \n{kernel}")
        counts.append(count_instructions(cuda_compile.compile_cuda(source.text(), "sm_90"))[GLOBAL_LOAD])
    assert counts == [0, 1]


def test_loads_are_those_of_device_memory() -> None:
    """Also behind the wait for the launch in front, where the compiler cannot see what pointers point to: loads from
    any memory might be of shared memory, and stores might change it."""
    program = attention_layer(CASES["one head each"], written=False)
    text = emit_source([plan_program(program, TARGETS["sm_90"])]).text()
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
