"""Winograd F(2×2, 3×3) convolutions are within a bound of a float64 run."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.device import cpu
from smelt.dtype import Array
from smelt.engine.native import compile_all
from smelt.engine_api import Executable
from smelt.errors import SmeltError
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.build import winograd
from smelt.passes import pack_weights
from smelt.weights import Weights

WORST = 4.0  # times the error that a plain sum of floats makes


def program(batch: int, size: tuple[int, int], channels: int, features: int, *, weight: bool = True) -> Program:
    high, wide = size
    mark = ' {smelt.weight = "w"}' if weight else ""
    image, result = f"{batch}x{high}x{wide}x{channels}xf32", f"{batch}x{high}x{wide}x{features}xf32"
    window = "window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}"
    dims = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    groups = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
    kernel = f"3x3x{channels}x{features}xf32"
    return parse(f"""
func.func @main(%x: tensor<{image}>, %w: tensor<{kernel}>{mark}) -> tensor<{result}> {{
  %r = stablehlo.convolution(%x, %w) {dims}, {window} {groups} : (tensor<{image}>, tensor<{kernel}>) -> tensor<{result}>
  return %r : tensor<{result}>
}}""")


def made(*programs: Program, target: str = "native") -> list[Executable]:
    found: list[Executable] = []
    for each in compile_all(programs, cpu.target(target)):
        assert not isinstance(each, SmeltError), each
        found.append(each)
    return found


def exact(x: Array, w: Array) -> Array:
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    _, high, wide, _ = x.shape
    total: Array = np.zeros((*x.shape[:3], w.shape[3]))
    for i, j in np.ndindex(3, 3):
        total += padded[:, i : i + high, j : j + wide] @ w[i, j].astype(np.float64)
    return total


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(w: Array) -> Weights:
    return Weights.of({"w": w})


@pytest.mark.parametrize("size", [(8, 8), (9, 11), (14, 14), (31, 8)])
@pytest.mark.parametrize(("channels", "features"), [(32, 32), (40, 70), (200, 33)])
def test_close_to_the_exact_convolution(size: tuple[int, int], channels: int, features: int, seed: int) -> None:
    x, w = drawn(seed, 2, *size, channels), drawn(seed + 1, 3, 3, channels, features)
    (fast, plain) = made(program(2, size, channels, features), program(2, size, channels, features, weight=False))
    assert [use.kind for use in fast.kernels if "conv" in use.kind] == ["winograd_conv"]
    assert [use.kind for use in plain.kernels if "conv" in use.kind] == ["packed_conv"]
    (ours,), (simple,) = fast.prepare(weights(w))(x), plain(x, w)
    truth = exact(x, w)
    assert np.sqrt(np.mean((ours - truth) ** 2)) <= WORST * np.sqrt(np.mean((simple - truth) ** 2))
    assert np.abs(ours - truth).max() <= WORST * np.abs(simple - truth).max()


def test_a_kernel_that_changes_is_transformed_where_pixels_are_many(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = drawn(seed, 4, 14, 13, 40), drawn(seed + 1, 3, 3, 40, 70)
    changing = program(4, (14, 13), 40, 70, weight=False)
    (fast,) = made(changing)
    monkeypatch.setattr(pack_weights, "MANY", 4 * 14 * 13 + 1)
    (plain,) = made(changing)
    assert [use.kind for use in fast.kernels if "conv" in use.kind] == ["winograd_conv"]
    assert [use.kind for use in plain.kernels if "conv" in use.kind] == ["packed_conv"]
    (ours,), (simple,), truth = fast(x, w), plain(x, w), exact(x, w)
    assert np.sqrt(np.mean((ours - truth) ** 2)) <= WORST * np.sqrt(np.mean((simple - truth) ** 2))
    assert np.abs(ours - truth).max() <= WORST * np.abs(simple - truth).max()


def test_batch_size_changes_no_bit(seed: int) -> None:
    x, w = drawn(seed, 3, 10, 13, 32), drawn(seed + 1, 3, 3, 32, 48)
    three, one = (each.prepare(weights(w)) for each in made(program(3, (10, 13), 32, 48), program(1, (10, 13), 32, 48)))
    (together,) = three(x)
    for i in range(3):
        np.testing.assert_array_equal(one(x[i : i + 1])[0], together[i : i + 1])


@pytest.mark.parametrize("target", ["avx2", "plain"])
def test_other_processors(target: str, seed: int) -> None:
    if not cpu.TARGETS[target].features <= cpu.target("native").features:
        pytest.skip(f"this processor has no {target}")
    x, w = drawn(seed, 1, 9, 8, 33), drawn(seed + 1, 3, 3, 33, 40)
    (fast,) = made(program(1, (9, 8), 33, 40), target=target)
    np.testing.assert_allclose(fast.prepare(weights(w))(x)[0], exact(x, w), rtol=1e-4, atol=1e-4)


def test_panels_taken_together_change_no_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tiles do not fit in a cache, they pass several narrow panels at once."""
    x, w = drawn(seed, 2, 9, 11, 32), drawn(seed + 1, 3, 3, 32, 90)
    found = []
    for fits in (True, False):
        monkeypatch.setattr(winograd, "_tiles_fit", lambda target, count, channels, fits=fits: fits)
        (fast,) = made(program(2, (9, 11), 32, 90), target="plain")
        found.append(fast.prepare(weights(w))(x)[0])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], exact(x, w), rtol=1e-4, atol=1e-4)
