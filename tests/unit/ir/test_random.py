"""Random bits: the published words of both generators, XLA's own bits where JAX is installed, and the verifier."""

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import dtype
from smelt.errors import RunError, VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Token
from smelt.ir.interpret import run
from smelt.ir.ops.definition import UNKNOWN
from smelt.ir.ops.random import philox, threefry
from smelt.shape import Shape


def bits(state, algorithm, output):
    f = FuncBuilder("main", [Shape("ui64", len(state))])
    results = f.rng_bit_generator(*f.args, rng_algorithm=algorithm, result=[f.args[0].type, output])
    return run(Program.of(f.func(*results)), [np.array(state, np.uint64)])


# The known answers that Random123, the authors' library, ships.
THREEFRY = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]
PHILOX = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def word(low, high):
    return np.uint64(low | high << 32)


@pytest.mark.parametrize(("counter", "key", "want"), THREEFRY)
def test_threefry_gives_the_published_words(counter, key, want):
    with np.errstate(over="ignore"):
        got = threefry(word(*key), np.array([word(*counter)]))
    assert tuple(int(x[0]) for x in got) == want


@pytest.mark.parametrize(("counter", "key", "want"), PHILOX)
def test_philox_gives_the_published_words(counter, key, want):
    got = philox(word(*key), np.array([word(*counter[:2])]), np.array([word(*counter[2:])]))
    assert tuple(int(x[0]) for x in got) == want
    state = [word(*key), word(*counter[:2]), word(*counter[2:])]
    assert bits(state, "PHILOX", Shape("ui32", 4))[1].tolist() == list(want)


def test_the_philox_counter_has_128_bits():
    state = [7, 2**64 - 1, 41]
    after, words = bits(state, "PHILOX", Shape("ui32", 8))
    assert after.tolist() == [7, 1, 42]
    _, second = bits([7, 0, 42], "PHILOX", Shape("ui32", 4))
    assert words[4:].tolist() == second.tolist()
    after, _ = bits([7, 2**64 - 1, 2**64 - 1], "PHILOX", Shape("ui32", 4))
    assert after.tolist() == [7, 0, 0]


def test_the_threefry_counter_wraps():
    after, _ = bits([7, 2**64 - 1], "THREE_FRY", Shape("ui64", 3))
    assert after.tolist() == [7, 2]


@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX"])
def test_narrow_outputs_are_the_low_bits_of_words(algorithm):
    _, words = bits([3, 5], algorithm, Shape("ui32", 3, 5))
    for element, mask in (("ui16", 0xFFFF), ("ui8", 0xFF), ("ui4", 0xF)):
        _, narrow = bits([3, 5], algorithm, Shape(element, 3, 5))
        assert narrow.astype(np.int64).tolist() == (words & mask).tolist()
    _, floats = bits([3, 5], algorithm, Shape("f32", 3, 5))
    assert floats.view(np.uint32).tolist() == words.tolist()
    _, signed = bits([3, 5], algorithm, Shape("i8", 3, 5))
    assert signed.view(np.uint8).tolist() == (words & 0xFF).tolist()


def test_no_elements():
    for algorithm in ("THREE_FRY", "PHILOX"):
        after, words = bits([1, 2], algorithm, Shape("ui32", 3, 0))
        assert after.tolist() == [1, 2]
        assert words.shape == (3, 0)


SHAPES = [(), (1,), (5,), (3, 5), (3, 4), (4, 6), (5, 2, 3), (7, 7)]


@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX", "DEFAULT"])
@pytest.mark.parametrize("element", ["ui8", "ui16", "ui32", "ui64"])
def test_bits_are_those_of_xla(algorithm, element):
    jax = pytest.importorskip("jax")
    state = np.array([0x123456789ABCDEF0, 2**64 - 3], np.uint64)
    which = getattr(jax.lax.RandomAlgorithm, f"RNG_{algorithm}")
    for shape in SHAPES:
        with jax.enable_x64(True):
            after, words = jax.lax.rng_bit_generator(
                jax.numpy.asarray(state.view(np.uint32)), shape, dtype=dtype(element).numpy, algorithm=which
            )
            want = np.asarray(after).view(np.uint64), np.asarray(words)
        got = bits(state, algorithm, Shape(element, *shape))
        assert got[0].tolist() == want[0].tolist()
        assert got[1].tolist() == want[1].tolist()


# ---- rng ----


def draw(element, low, high, sizes, distribution="UNIFORM", times=1):
    f = FuncBuilder("main", [Shape(element), Shape(element), Shape("i64", len(sizes))])
    result = Shape(element, *[symbol(f"s{i}") for i in range(len(sizes))])
    values = [f.rng(*f.args, rng_distribution=distribution, result=result) for _ in range(times)]
    of = dtype(element).numpy
    args = [np.array(low).astype(of), np.array(high).astype(of), np.array(sizes, np.int64)]
    return run(Program.of(f.func(*values)), args)


def test_uniform_numbers_lie_between_the_bounds():
    (x,) = draw("f32", -1.0, 3.0, [100, 100])
    assert x.dtype == np.float32
    assert -1 <= x.min() < -0.99
    assert 2.99 < x.max() <= 3
    assert abs(x.mean() - 1) < 0.05
    (i,) = draw("i8", -3, 4, [1000])
    assert sorted(set(i.tolist())) == [-3, -2, -1, 0, 1, 2, 3]
    (b,) = draw("i1", False, True, [100])
    assert set(b.tolist()) == {False, True}
    (same,) = draw("i32", 5, 5, [10])  # an empty range gives its lower end
    assert set(same.tolist()) == {5}


def test_normal_numbers_have_the_mean_and_the_deviation():
    (x,) = draw("f64", 10.0, 2.0, [100, 100], "NORMAL")
    assert abs(x.mean() - 10) < 0.1
    assert abs(x.std() - 2) < 0.1


def test_two_draws_differ_and_two_runs_agree():
    first, second = draw("f64", 0.0, 1.0, [4], times=2)
    assert first.tolist() != second.tolist()
    assert draw("f64", 0.0, 1.0, [4])[0].tolist() == first.tolist()


def test_negative_size():
    with pytest.raises(RunError, match="rng_c3"):
        draw("f32", 0.0, 1.0, [-1])


def test_a_constant_shape_gives_the_result_type():
    f = FuncBuilder("main", [])
    low, high = f.constant(0.0, "f32"), f.constant(1.0, "f32")
    sizes = f.constant(np.array([2, 3]))
    assert f.rng(low, high, sizes, rng_distribution="UNIFORM").type == Shape("f32", 2, 3)
    wild = f.rng(low, high, sizes, rng_distribution="UNIFORM", result=Shape("f32", UNKNOWN, 3)).type
    assert wild == Shape("f32", 2, 3)
    with pytest.raises(VerifyError):
        f.rng(low, high, sizes, rng_distribution="UNIFORM", result=Shape("f32", 2, 4))
    with pytest.raises(VerifyError, match="rng_c3"):
        f.rng(low, high, f.constant(np.array([-2])), rng_distribution="UNIFORM")


REFUSED = [
    ("rng", [Shape("f32"), Shape("f64"), Shape("i64", 1)], {"rng_distribution": "UNIFORM", "result": Shape("f32", 2)}),
    ("rng", [Shape("i8"), Shape("i8"), Shape("i64", 1)], {"rng_distribution": "NORMAL", "result": Shape("i8", 2)}),
    (
        "rng",
        [Shape("f32", 1), Shape("f32"), Shape("i64", 1)],
        {"rng_distribution": "UNIFORM", "result": Shape("f32", 2)},
    ),
    ("rng", [Shape("f32"), Shape("f32"), Shape("i64")], {"rng_distribution": "UNIFORM", "result": Shape("f32", 2)}),
    ("rng", [Shape("f32"), Shape("f32"), Shape("f32", 1)], {"rng_distribution": "UNIFORM", "result": Shape("f32", 2)}),
    ("rng", [Shape("f32"), Shape("f32"), Shape("i64", 2)], {"rng_distribution": "UNIFORM", "result": Shape("f32", 2)}),
    ("rng", [Shape("complex<f32>")] * 2 + [Shape("i64", 1)], {"rng_distribution": "UNIFORM"}),
    ("rng", [Shape("f32"), Shape("f32"), Shape("i64", symbol("n"))], {"rng_distribution": "UNIFORM"}),
    ("rng", [Token(), Shape("f32"), Shape("i64", 1)], {"rng_distribution": "UNIFORM"}),
    ("rng", [Shape("f32"), Shape("f32"), Shape("i64", 1)], {}),
    ("rng_bit_generator", [Shape("ui64", 2)], {"rng_algorithm": "PHILOX"}),
    (
        "rng_bit_generator",
        [Shape("ui64", 3)],
        {"rng_algorithm": "THREE_FRY", "result": [Shape("ui64", 3), Shape("ui32")]},
    ),
    ("rng_bit_generator", [Shape("ui64", 4)], {"rng_algorithm": "PHILOX", "result": [Shape("ui64", 4), Shape("ui32")]}),
    ("rng_bit_generator", [Shape("ui64")], {"rng_algorithm": "PHILOX", "result": [Shape("ui64"), Shape("ui32")]}),
    ("rng_bit_generator", [Shape("i64", 2)], {"rng_algorithm": "PHILOX", "result": [Shape("i64", 2), Shape("ui32")]}),
    ("rng_bit_generator", [Shape("ui64", 2)], {"rng_algorithm": "PHILOX", "result": [Shape("ui64", 3), Shape("ui32")]}),
    ("rng_bit_generator", [Shape("ui64", 2)], {"rng_algorithm": "PHILOX", "result": [Shape("ui64", 2), Shape("i1")]}),
    ("rng_bit_generator", [Shape("ui64", 2)], {"rng_algorithm": "PHILOX", "result": [Shape("ui64", 2), Token()]}),
    ("rng_bit_generator", [Shape("ui64", 2)], {"rng_algorithm": "PHILOX", "result": [Shape("ui64", 2)]}),
    (
        "rng_bit_generator",
        [Shape("ui64", 2)],
        {"rng_algorithm": "PHILOX", "result": [Shape("ui64", 2), Shape("ui32", UNKNOWN)]},
    ),
]


@pytest.mark.parametrize(("name", "types", "attrs"), REFUSED)
def test_refused(name, types, attrs):
    f = FuncBuilder("main", types)
    with pytest.raises(VerifyError):
        f.op(f"stablehlo.{name}", *f.args, **attrs)
