"""The op table is complete: every op of the specification has a row, and every gap is named here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.engine.native import NativeEngine
from smelt.engine.reference import ReferenceEngine
from smelt.errors import UnsupportedError
from smelt.ir.attributes import Kind
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.ops import FAMILIES, OPS, definition_of
from smelt.ir.ops.definition import REQUIRED
from smelt.ir.ops.elementwise import ANALYTIC, unary
from smelt.ir.text import parse, print_program
from smelt.kernel.build.families import FAMILIES as KERNEL_FAMILIES
from smelt.kernel.build.families import PULLS, SINKS, UPDATES
from smelt.kernel.math import FORMS
from smelt.kernel.plan.materialise import CONTROL, SILENT
from smelt.shape import Shape

STABLEHLO = """
abs add after_all all_gather all_reduce all_to_all and async_done async_start atan2 batch_norm_grad
batch_norm_inference batch_norm_training bitcast_convert broadcast_in_dim case cbrt ceil cholesky clamp
collective_broadcast collective_permute compare complex composite concatenate constant convert convolution cosine
count_leading_zeros custom_call divide dot_general dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota
dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice exponential exponential_minus_one fft floor gather
get_dimension_size get_tuple_element if imag infeed iota is_finite log log_plus_one logistic map maximum minimum
multiply negate not optimization_barrier or outfeed pad partition_id popcnt power real recv reduce reduce_precision
reduce_scatter reduce_window remainder replica_id reshape reverse rng rng_bit_generator round_nearest_afz
round_nearest_even rsqrt scatter select select_and_scatter send shift_left shift_right_arithmetic shift_right_logical
sign sine slice sort sqrt subtract tan tanh transpose triangular_solve tuple uniform_dequantize uniform_quantize while
xor
"""
# In the dialect, though not (or no longer) in the specification; programs in the wild use them.
LEGACY = """
broadcast create_token cross-replica-sum dot einsum real_dynamic_slice set_dimension_size torch_index_select
unary_einsum
"""
CHLO = """
acos acosh asin asinh atan atanh bessel_i1e conj constant constant_like cosh digamma dynamic_reshape erf erf_inv erfc
is_inf is_neg_inf is_pos_inf lgamma mulhi next_after polygamma ragged_dot scan sinh square tan top_k zeta broadcast_add
broadcast_and broadcast_atan2 broadcast_compare broadcast_complex broadcast_divide broadcast_maximum broadcast_minimum
broadcast_multiply broadcast_next_after broadcast_or broadcast_polygamma broadcast_power broadcast_remainder
broadcast_select broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical broadcast_subtract
broadcast_xor broadcast_zeta
"""
# Ops that passes write in terms of others before kernels are made.
LOWERED = """
all_gather all_reduce all_to_all batch_norm_grad batch_norm_inference batch_norm_training broadcast
collective_broadcast collective_permute collective_reduce composite cross-replica-sum dot dynamic_reshape
get_tuple_element partition_id reduce_scatter replica_id rng tuple
"""
# Ops that concern several processes, other devices or the test-bed: one compiled program cannot run them.
ELSEWHERE = """
async_done async_start expect_almost_eq expect_almost_eq_const expect_close expect_eq expect_eq_const
expect_serialized_eq infeed outfeed print probe propagation_barrier recv reshard run_parallel send sharding_constraint
sharding_group
"""
STEPS = {"call", "custom_call"}  # parts of a plan, not kernels


@pytest.mark.parametrize("dialect", ["stablehlo", "chlo"])
def test_every_op_of_the_specification_has_a_row(dialect: str) -> None:
    names = (STABLEHLO + LEGACY if dialect == "stablehlo" else CHLO).split()
    missing = [name for name in names if f"{dialect}.{name}" not in OPS]
    assert missing == []


def test_no_two_families_claim_an_op() -> None:
    names = [row.name for family in FAMILIES for row in family.ROWS]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted(OPS))
def test_rows_are_well_formed(name: str) -> None:
    row = OPS[name]
    assert re.fullmatch(r"[a-z]+\.[a-z0-9_-]+", name)
    assert callable(row.infer)
    assert callable(row.evaluate)
    operands = row.operands.split()
    assert all(re.fullmatch(r"\w+[*?]?", operand) for operand in operands)
    assert sum(operand.endswith("*") for operand in operands) <= 2
    assert len({attr.name for attr in row.attrs}) == len(row.attrs)
    for attr in row.attrs:
        assert isinstance(attr.kind, Kind)
        if attr.default is not None and attr.default is not REQUIRED:
            assert attr.kind.read(attr.kind.write(attr.default)) == attr.default, f"{attr.name} does not survive text"


def test_every_op_has_a_kernel_or_is_named() -> None:
    known = {*PULLS, *SINKS, *UPDATES, *CONTROL, *SILENT}
    lacking = {name.partition(".")[2] for name in OPS if name not in known and not name.startswith("chlo.broadcast_")}
    named = {*LOWERED.split(), *ELSEWHERE.split(), *STEPS}
    assert lacking - named == set(), "no kernel, and no reason why not"
    assert named - lacking == set(), "shrink the lists when a kernel is added"


def test_every_module_with_kernel_rules_is_listed() -> None:
    import smelt.kernel.build as build

    modules = {path.stem: path.read_text() for path in Path(build.__path__[0]).glob("*.py")}
    rule = re.compile(r"^@(pull|sink|simt_sink|update|simt_update)\(", re.MULTILINE)
    with_rules = {name for name, text in modules.items() if rule.search(text)}
    assert with_rules == {family.__name__.rpartition(".")[2] for family in KERNEL_FAMILIES}


# Elementwise ops that no kernel, size or routine of LAPACK is made of: what names them lists elementwise ops.
RARE = """
acos acosh asin asinh atan atanh bessel_i1e cbrt cosh count_leading_zeros digamma erfc exponential_minus_one is_inf
is_neg_inf is_pos_inf lgamma log_plus_one next_after polygamma popcnt sinh tan zeta
"""


def test_only_the_table_and_the_c_of_an_elementwise_op_name_it() -> None:
    """docs/layout.md: a row, a piece of C and a gradient rule. Front ends may offer the op, a pass may match it."""
    package = Path(smelt.__path__[0])
    table = {package / f"ir/{name}.py" for name in ("ops/elementwise", "special", "integer", "grad/elementwise")}
    above = {package / name for name in ("tensor", "read", "write", "passes", "llm")}
    others = [
        path
        for path in package.rglob("*.py")
        if path not in table and not above.intersection(path.parents) and package / "kernel/math" not in path.parents
    ]
    quoted = {name for path in others for name in re.findall(r'"(?:stablehlo\.|chlo\.)?(\w+)"', path.read_text())}
    quoted |= {name for path in others for name in re.findall(r"\b(?:b|r|f|g|build)\.(\w+)\(", path.read_text())}
    rare = set(RARE.split())
    assert rare <= {name.partition(".")[2] for name, row in OPS.items() if row.elementwise}
    assert rare & quoted == set()


def test_a_new_elementwise_op_is_a_row_and_a_line_of_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, builder, reference and native engine know an op that was added as docs/layout.md says."""
    row = unary("chlo.cube", ANALYTIC, lambda x: x * x * x)
    monkeypatch.setitem(OPS, row.name, row)
    monkeypatch.setitem(PULLS, row.name, PULLS["chlo.square"])  # what its module does for every row
    monkeypatch.setitem(FORMS, ("cube", "f32"), "({0} * {0} * {0})")
    f = FuncBuilder("main", [Shape("f32", 3)])
    program = Program.of(f.func(f.op("chlo.cube", f.args[0]).result))
    again = parse(print_program(program))
    x = np.array([-2.0, 0.5, 3.0], np.float32)
    for engine in (ReferenceEngine(), NativeEngine()):
        (found,) = engine.compile(again)(x)
        np.testing.assert_array_equal(np.asarray(found), x**3)


def test_every_op_appears_in_a_unit_test() -> None:
    here = Path(__file__).parent
    text = "\n".join(path.read_text() for path in here.glob("test_*.py") if path.name != Path(__file__).name)
    words = set(re.findall(r"[a-z0-9_-]+", text))
    unnamed = [name for name in OPS if name.partition(".")[2] not in words and "broadcast_" not in name]
    assert unnamed == []


def test_an_unknown_op_gets_the_nearest_one_as_advice() -> None:
    with pytest.raises(UnsupportedError) as caught:
        definition_of("stablehlo.multiplay")
    assert caught.value.remedy == "stablehlo.multiply"
