"""Grouped GEMM on a GPU: blocks find the rows of their group in sizes that the device computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.device.cuda import TARGETS
from smelt.device.host_plan import list_launches
from smelt.dim import Size, symbol
from smelt.dtype import Array, bf16, dtype, f32, i32
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.attributes import RaggedDotDims
from smelt.ir.blocks import BLOCKS, TABLE
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.passes import merge_dots
from smelt.passes.lower_blocks import round_activations
from smelt.shape import Shape
from smelt.tensor.model import make_parameter
from tests.cuda.emulated import EmulatedCuda, allow_races
from tests.llm_checkpoints import FIXTURE, TOLERANCE, Case, write_checkpoint
from tests.unit.kernel.test_block_dot import Sketch, random_weights
from tests.unit.kernel.test_grouped import GROUPS, SIZES, Experts, grouped_blocks, multiply


@pytest.mark.parametrize("stored", ["f32", "bf16", "f16"])
def test_each_group_multiplies_its_rows(stored: str, emulated: EmulatedCuda, seed: int) -> None:
    random = np.random.default_rng(seed)
    w = random.standard_normal((GROUPS, 70, 96), np.float32).astype(dtype(stored).numpy)
    weights = smelt.Weights.of({"weight": w})
    model = smelt.instantiate(Experts, weights, element=dtype(stored))
    made = smelt.compile(model.__call__, "f32[r=R, d=96]", f"i32[e={GROUPS}]", device="cuda", engine="native")
    if stored == "bf16":
        assert "grouped_dot" in emit_source([plan_program(made.program, emulated.target())]).text()
    bound = made.prepare(weights)
    for rows, sizes in SIZES:
        x = random.standard_normal((rows, 96), np.float32)
        got, want = bound(x, np.array(sizes, np.int32)).numpy(), multiply(x, w, sizes)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max(initial=1))


class Odd(smelt.Model):
    weight: smelt.Tensor

    def __init__(self) -> None:
        self.weight = make_parameter({"e": 98, "f": 66, "d": 21}, bf16)

    def __call__(self, x: smelt.Tensor, sizes: smelt.Tensor) -> smelt.Tensor:
        return x.ragged_dot(self.weight.to("f32"), sizes, "d")


def test_f32_rows_by_bf16_weights(emulated: EmulatedCuda, seed: int) -> None:
    """Rows that do not begin at 16 bytes, by one tile for each group or several; bits do not depend on the batch."""
    random = np.random.default_rng(seed)
    w = random.standard_normal((98, 66, 21), np.float32).astype(bf16.numpy)
    weights = smelt.Weights.of({"weight": w})
    model = smelt.instantiate(Odd, weights)
    made = smelt.compile(model.__call__, "f32[r=R, d=21]", "i32[e=98]", device="cuda", engine="native")
    assert "smelt_stream<f32" in emit_source([plan_program(made.program, emulated.target())]).text()
    bound = made.prepare(weights)
    for rows, behind in ((1, 0), (40, 3), (330, 0)):
        x, sizes = random.standard_normal((rows, 21), np.float32), draw_sizes(random, 98, rows, behind)
        got, want = bound(x, sizes).numpy(), multiply(x, w, sizes.tolist())
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())
        row, last = int(sizes.sum()) - 1, int(np.flatnonzero(sizes)[-1])
        alone = bound(x[row : row + 1], np.eye(98, dtype=np.int32)[last]).numpy()
        np.testing.assert_array_equal(alone[0].view(np.int32), got[row].view(np.int32))


def grouped_bf16(groups: int, columns: int, depth: int, rows: Size) -> Program:
    """x[rows, k] by w[group, column, k], both bf16, with an f32 result."""
    shapes = (bf16, (rows, depth)), (bf16, (groups, columns, depth)), (i32, (groups,))
    sketch = Sketch(*(Shape.of(*each) for each in shapes))
    dims = RaggedDotDims((), (), (1,), (2,), (0,), (0,))
    result = Shape.of(f32, (rows, columns))
    made = sketch.f.op("chlo.ragged_dot", *sketch.f.args, ragged_dot_dimension_numbers=dims, result=result)
    return sketch.program(made.result)


def draw_sizes(random: np.random.Generator, groups: int, rows: int, behind: int) -> Array:
    """Sizes of groups that have all rows but the last ones; about half of the groups have none."""
    chosen = random.integers(0, groups, max(1, groups // 2))
    return np.bincount(random.choice(chosen, rows - behind), minlength=groups).astype(np.int32)


@pytest.mark.parametrize("machine", ["sm_90", "sm_80"])
@pytest.mark.parametrize(("groups", "columns", "depth"), [(5, 64, 200), (5, 70, 21), (128, 64, 64), (130, 24, 8)])
def test_bf16_rows(groups: int, columns: int, depth: int, machine: str, emulated: EmulatedCuda, seed: int) -> None:
    """On sm_90 the copy engine brings the weights of up to 64 rows; a row has the same bits in any batch."""
    random, target = np.random.default_rng(seed), TARGETS[machine]
    program = grouped_bf16(groups, columns, depth, symbol("R"))
    streams = machine == "sm_90"
    assert ("smelt_stream<ui16" in emit_source([plan_program(program, target)]).text()) == streams
    (made,) = compile_all([program], target)
    assert not isinstance(made, SmeltError), made
    w = random.standard_normal((groups, columns, depth), np.float32).astype(bf16.numpy)
    for rows, behind in ((1, 0), (7, 2), (groups, 0), (groups + 9, 1), (300, 0), (0, 0)):
        x, sizes = random.standard_normal((rows, depth), np.float32).astype(bf16.numpy), np.zeros(groups, np.int32)
        if rows:
            sizes = draw_sizes(random, groups, rows, behind)
        got = np.asarray(made(x, w, sizes)[0].numpy())
        want = multiply(x, w, sizes.tolist())
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * depth)
        if rows > 1:
            last = int(np.flatnonzero(sizes)[-1])  # its last row alone
            row = int(sizes.sum()) - 1
            alone = made(x[row : row + 1], w, np.eye(groups, dtype=np.int32)[last])[0].numpy()
            np.testing.assert_array_equal(alone[0].view(np.int32), got[row].view(np.int32))


@pytest.mark.parametrize("groups", [2, 64, 1025])
def test_sizes_that_do_not_fit(groups: int, emulated: EmulatedCuda, seed: int) -> None:
    """Negative sizes and more rows than there are: results are defined for groups in front of them."""
    random = np.random.default_rng(seed)
    (made,) = compile_all([grouped_bf16(groups, 8, 8, symbol("R"))], emulated.target())
    assert not isinstance(made, SmeltError), made
    x, w = (random.standard_normal(each, np.float32).astype(bf16.numpy) for each in ((70, 8), (groups, 8, 8)))
    sizes = np.zeros(groups, np.int32)
    sizes[-1], sizes[0] = 1 << 30, 68
    got = made(x, w, sizes)[0].numpy()
    np.testing.assert_allclose(got, multiply(x, w, sizes.tolist()), rtol=0, atol=1e-5)
    sizes[-1] = -5
    allow_races(emulated)  # some rows are in several groups
    got = made(x, w, sizes)[0].numpy()
    np.testing.assert_allclose(got[:60], multiply(x, w, sizes.tolist())[:60], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [row.name for row in TABLE])
def test_every_format(name: str, emulated: EmulatedCuda, seed: int) -> None:
    """Also many rows in a group, several tiles of it, and K that no share has all of."""
    row, random = BLOCKS[name], np.random.default_rng(seed)
    blocks, columns = (11 if row.length == 32 else 3), 37
    program = round_activations(grouped_blocks(row, blocks, columns))
    assert "grouped_block_dot" in emit_source([plan_program(program, emulated.target())]).text()
    (made,) = compile_all([program], emulated.target())
    assert not isinstance(made, SmeltError), made
    w = random_weights(row, GROUPS, columns, blocks, seed=seed)
    for rows, sizes in SIZES:
        given = [random.standard_normal((rows, blocks * row.length), np.float32), w, np.array(sizes, np.int32)]
        (want,), got = run(program, given), made(*given)[0].numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * np.abs(want).max(initial=0))


class Gated(smelt.Model):
    gate: smelt.Tensor
    up: smelt.Tensor

    def __init__(self) -> None:
        sizes = {"e": GROUPS, "f": 128, "d": 96}
        self.gate, self.up = make_parameter(sizes, bf16), make_parameter(sizes, bf16)

    def __call__(self, x: smelt.Tensor, sizes: smelt.Tensor) -> smelt.Tensor:
        gate, up = (x.ragged_dot(each.to("f32"), sizes, "d") for each in (self.gate, self.up))
        return smelt.nn.silu(gate) * up


@pytest.mark.races
@pytest.mark.parametrize("precision", ["f32", "q8"])
def test_gate_and_up_are_one_launch(
    precision: str, emulated: EmulatedCuda, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of two launches; "q8" rounds rows to bf16."""
    random = np.random.default_rng(seed)
    w = {name: random.standard_normal((GROUPS, 128, 96), np.float32).astype(bf16.numpy) for name in ("gate", "up")}
    weights = smelt.Weights.of(w)
    model = smelt.instantiate(Gated, weights)
    bound = []
    for names in (merge_dots.DOTS, ()):
        monkeypatch.setattr(merge_dots, "DOTS", names)
        shapes = "f32[r=R, d=96]", f"i32[e={GROUPS}]"
        made = smelt.compile(model.__call__, *shapes, device="cuda", engine="native", precision=precision)
        text = emit_source([plan_program(made.program, emulated.target())]).text()
        assert f"smelt_stream<{'f32' if precision == 'f32' else 'ui16'}" in text
        assert text.count("    smelt_stream<") == (1 if names else 2)
        bound.append(made.prepare(weights))
    for rows, sizes in SIZES:
        x = random.standard_normal((rows, 96), np.float32)
        got, want = (each(x, np.array(sizes, np.int32)).numpy() for each in bound)
        np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


class Routed(Experts):
    def __call__(self, x: smelt.Tensor, chosen: smelt.Tensor) -> smelt.Tensor:
        return super().__call__(x, chosen.one_hot(GROUPS, "e", "i32").sum("r"))


def test_sizes_come_from_the_launch_in_front(emulated: EmulatedCuda, seed: int) -> None:
    """No weights are read before it has ended: which ones is known only then."""
    random = np.random.default_rng(seed)
    w = random.standard_normal((GROUPS, 70, 96), np.float32).astype(dtype("bf16").numpy)
    weights = smelt.Weights.of({"weight": w})
    model = smelt.instantiate(Routed, weights, element=dtype("bf16"))
    made = smelt.compile(model.__call__, "f32[r=R, d=96]", "i32[r=R]", device="cuda", engine="native")
    *_, text = emit_source([plan_program(made.program, emulated.target())]).texts(1)
    launches = list_launches(json.loads(text)["programs"]["smelt0"]["steps"])
    assert [each["awaits"] for each in launches if "grouped_dot" in each["function"]] == [[]]
    x = random.standard_normal((20, 96), np.float32)
    chosen = np.sort(random.integers(0, GROUPS, 20)).astype(np.int32)
    got = made.prepare(weights)(x, chosen).numpy()
    want = multiply(x, w, np.bincount(chosen, minlength=GROUPS).tolist())
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_experts_of_language_models(model_type: str, element: str, emulated: EmulatedCuda, tmp_path: Path) -> None:
    """Experts multiply the tokens that chose them by bf16; by f32, for which there is no grouped GEMM, all of them."""
    case = next(each for each in Case.load(FIXTURE) if each.config["model_type"] == model_type)
    write_checkpoint(tmp_path, case.config, case.shapes, element)
    with smelt.llm.load(tmp_path, engine="reference", precision="f32") as model:
        want = model.logits(case.tokens)
    with smelt.llm.load(tmp_path, device="cuda", engine="native", precision="f32", memory_limit="1GB") as model:
        assert model.checkpoint.config.grouped_experts == (element == "bf16")
        logits = model.logits(case.tokens)
    assert np.abs(logits - want).max() <= TOLERANCE * np.abs(want).max()
    if element == "f32":
        assert np.abs(logits - case.logits).max() <= TOLERANCE * np.abs(case.logits).max()
