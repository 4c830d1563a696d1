"""Random numbers: bits are XLA's Threefry, one key gives the same numbers, and distributions have their moments."""

from statistics import NormalDist

import jax
import numpy as np
import pytest

import smelt
from smelt import random
from smelt.tensor import engine


@pytest.mark.parametrize("sizes", [(6,), (3, 5), (4, 1, 3), (0, 3)])
def test_bits_are_those_of_the_pinned_algorithm(sizes: tuple[int, ...], seed: int):
    shape = smelt.Shape("ui32", *sizes)
    got = random.bits(random.key(seed), shape).numpy()
    with jax.enable_x64(True):
        state = jax.numpy.array([seed, 0], jax.numpy.uint64)
        _, want = jax.lax.rng_bit_generator(state, sizes, "uint32", jax.lax.RandomAlgorithm.RNG_THREE_FRY)
    assert got.tolist() == np.asarray(want).tolist()


def test_the_same_key_gives_the_same_numbers():
    first, again = (random.normal(random.key(3), "f32[a=4, b=5]") for _ in range(2))
    assert first.numpy().tolist() == again.numpy().tolist()
    assert first.shape.names == ("a", "b")
    other = random.normal(random.key(4), "f32[a=4, b=5]")
    assert first.numpy().tolist() != other.numpy().tolist()


def test_split_keys_differ():
    keys = random.split(random.key(0), 8)
    drawn = {tuple(random.bits(key, "ui32[n=4]").numpy().tolist()) for key in keys}
    assert len(drawn) == 8
    assert all(key.shape == random.key(0).shape for key in keys)


def test_uniform():
    for element in ("f32", "f64", "f16", "bf16"):
        x = random.uniform(random.key(1), f"{element}[n=4096]").numpy().astype(np.float64)
        assert x.min() >= 0
        assert x.max() < 1
        assert abs(x.mean() - 0.5) < 0.03
    y = random.uniform(random.key(2), "f32[n=4096]", -2.0, 6.0).numpy()
    assert (y.min() < -1.9, y.max() > 5.9, y.min() >= -2) == (True, True, True)


def test_normal():
    x = random.normal(random.key(5), "f32[n=16384]", mean=1.0, std=2.0).numpy().astype(np.float64)
    assert np.isfinite(x).all()
    assert abs(x.mean() - 1) < 0.06
    assert abs(x.std() - 2) < 0.06
    assert abs(np.mean((x - 1) ** 4) / 2**4 - 3) < 0.3  # the fourth moment of a normal distribution


def test_integers_and_booleans():
    x = random.integers(random.key(6), "i8[n=4096]", -3, 4).numpy()
    assert sorted(set(x.tolist())) == [-3, -2, -1, 0, 1, 2, 3]
    counts = np.bincount(x.astype(int) + 3)
    assert counts.min() > 4096 / 7 * 0.8
    truth = random.bernoulli(random.key(7), "i1[n=4096]", 0.25).numpy()
    assert truth.dtype == bool
    assert abs(truth.mean() - 0.25) < 0.03


def test_categorical():
    logits = smelt.tensor(np.log([0.5, 0.25, 0.25]).astype(np.float32), "k").broadcast(n=4096)
    places = random.categorical(random.key(8), logits, "k").numpy()
    shares = np.bincount(places, minlength=3) / 4096
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.03)


def test_what_is_refused():
    for run, message in (
        (lambda: random.bits(smelt.tensor([1, 2]), "ui32[n=2]"), "not a key"),
        (lambda: random.bits(random.key(1), "f32[n=2]"), "integers hold bits"),
        (lambda: random.uniform(random.key(1), "i32[n=2]"), "floats, not i32"),
        (lambda: random.integers(random.key(1), "ui8[n=2]", 0, 300), "no range of ui8"),
    ):
        with pytest.raises(smelt.TensorError, match=message):
            run()


@pytest.mark.slow
def test_engines_agree_bit_for_bit():
    for element in ("ui32", "ui64"):
        with engine("reference"):
            want = random.bits(random.key(9), f"{element}[a=3, b=5]").numpy()
        with engine("native"):
            assert random.bits(random.key(9), f"{element}[a=3, b=5]").numpy().tolist() == want.tolist()


def test_normal_numbers_are_the_inverse_of_the_integral_at_the_middle_of_intervals():
    unit = random.uniform(random.key(6), "f64[n=64]").numpy()
    want = [NormalDist(1.0, 2.0).inv_cdf(float(each) + 2.0**-54) for each in unit]
    got = random.normal(random.key(6), "f64[n=64]", mean=1.0, std=2.0).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)
    narrow = random.uniform(random.key(6), "f32[n=64]").numpy().astype(np.float64)
    want = [NormalDist().inv_cdf(float(each) + 2.0**-25) for each in narrow]
    np.testing.assert_allclose(random.normal(random.key(6), "f32[n=64]").numpy(), want, rtol=2e-5, atol=2e-6)
