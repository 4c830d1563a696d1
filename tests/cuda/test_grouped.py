"""Grouped GEMM on a GPU: blocks find the rows of their group in sizes that the device computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.device.host_plan import list_launches
from smelt.dtype import dtype
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import compile_all
from smelt.errors import SmeltError
from smelt.ir.blocks import BLOCKS, TABLE
from smelt.ir.interpret import run
from smelt.passes.lower_blocks import round_activations
from tests.cuda.emulated import EmulatedCuda
from tests.llm_checkpoints import FIXTURE, TOLERANCE, Case, write_checkpoint
from tests.unit.kernel.test_block_dot import random_weights
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
        got = bound(x, np.array(sizes, np.int32)).numpy()
        np.testing.assert_allclose(got, multiply(x, w, sizes), rtol=0, atol=2e-5)


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
    np.testing.assert_allclose(got, multiply(x, w, np.bincount(chosen, minlength=GROUPS).tolist()), rtol=0, atol=2e-5)


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
