"""fp8 matmuls: what stays fp8 on which target, and what is converted."""

from __future__ import annotations

import pytest

from smelt.device.cuda import TARGETS
from smelt.engine.store import layout_of
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.passes.pipeline import run
from smelt.target import BASELINE, Target
from tests.packed import op_names

WIDE = """func.func @main(%x: tensor<40x64xLEFT>, %w: tensor<64x80xRIGHT> {smelt.weight = "w"}) -> tensor<40x80xTO> {
  %0 = stablehlo.convert %x : (tensor<40x64xLEFT>) -> tensor<40x64xTO>
  %1 = stablehlo.convert %w : (tensor<64x80xRIGHT>) -> tensor<64x80xTO>
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]
    : (tensor<40x64xTO>, tensor<64x80xTO>) -> tensor<40x80xTO>
  return %2 : tensor<40x80xTO>
}"""
DIRECT = """func.func @main(%x: tensor<40x64xLEFT>, %w: tensor<64x80xRIGHT> {smelt.weight = "w"}) -> tensor<40x80xTO> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<40x64xLEFT>, tensor<64x80xRIGHT>) -> tensor<40x80xTO>
  return %0 : tensor<40x80xTO>
}"""
PAIRS = BASELINE.replace(has_pairs=True)


def multiplied(text: str, left: str, right: str, to: str, target: Target) -> set[str]:
    program: Program = parse(text.replace("LEFT", left).replace("RIGHT", right).replace("TO", to))
    return {name for name in op_names(run(program, target=target)[0]) if "dot" in name}


@pytest.mark.parametrize("text", [WIDE, DIRECT])
@pytest.mark.parametrize("to", ["f32", "bf16", "f16"])
def test_tensor_cores_multiply_fp8(text: str, to: str) -> None:
    """Widened or not, with any result, two types or one."""
    for left, right in (("f8E4M3FN", "f8E4M3FN"), ("f8E5M2", "f8E4M3FN")):
        for machine in ("sm_89", "sm_90", "sm_120"):
            assert multiplied(text, left, right, to, TARGETS[machine]) == {f"smelt.packed_dot {left}"}


def test_other_targets_and_types() -> None:
    for left in ("f8E4M3FN", "f8E5M2"):
        assert multiplied(DIRECT, left, left, "f32", TARGETS["sm_80"]) == {"smelt.packed_dot bf16"}
        assert multiplied(DIRECT, left, left, "f32", PAIRS) == {"smelt.packed_dot bf16"}
        assert multiplied(DIRECT, left, left, "f32", BASELINE) == {"smelt.packed_dot f32"}
    assert multiplied(DIRECT, "f8E4M3FN", "f8E4M3FN", "f8E5M2", TARGETS["sm_90"]) == {"smelt.packed_dot f8E4M3FN"}
    assert multiplied(DIRECT, "f8E3M4", "f8E4M3FN", "f32", TARGETS["sm_90"]) == {"smelt.packed_dot bf16"}
    assert multiplied(WIDE, "f8E3M4", "f8E3M4", "f32", TARGETS["sm_90"]) == {"smelt.packed_dot f32"}


def test_packed_weights_of_targets() -> None:
    """Bundles pack fp8 weights for targets that multiply them, and once more for the others."""
    eight = parse(DIRECT.replace("LEFT", "f8E5M2").replace("RIGHT", "f8E5M2").replace("TO", "f32"))
    wide = parse(DIRECT.replace("LEFT", "f32").replace("RIGHT", "f32").replace("TO", "f32"))
    for program, layouts in ((eight, 2), (wide, 1)):
        assert len({layout_of(program, TARGETS[name]) for name in ("sm_80", "sm_86", "sm_89", "sm_90")}) == layouts
    assert layout_of(eight, PAIRS) != layout_of(eight, BASELINE)
