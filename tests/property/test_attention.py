"""FlashAttention: random shapes, masks and block sizes, against evaluations that materialise the scores.

Operands have any order of axes, heads share keys, masks are added or choose, along any axes; sizes are 0, 1, odd,
prime or large, some of them open. The answer may be off by what rounding of scores and of sums allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.runtime import Runtime, runtime
from smelt.dim import Size, product, symbol
from smelt.dtype import Array, dtype
from smelt.engine import compile as stages
from smelt.engine import native
from smelt.errors import SmeltError
from smelt.ir.attributes import DotDims
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.interpret import run
from smelt.kernel.build.attention_shape import Attention, AttentionSchedule
from smelt.kernel.loops import parallelise
from smelt.kernel.plan import contract
from smelt.passes import pipeline
from smelt.shape import Shape
from smelt.target import TileShape

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

EPSILON = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
FILLS = (-np.inf, -1e9, -1e4, float(np.finfo(np.float32).min), 0.5)
SIZES = (0, 1, 2, 3, 5, 7, 16, 31, 32, 33, 37, 64, 67, 127, 129, 197)


@dataclass(frozen=True)
class Mask:
    """A mask along some of the axes b, h, g, q, k: added, or choosing what stays; `causal` is computed from places."""

    axes: str
    role: str
    fill: float
    causal: bool = False


@dataclass(frozen=True)
class Case:
    """Attention of b x h x g x q queries over b x h x k keys. `layouts` order the axes of q, k, v and the result."""

    sizes: dict[str, int]
    open: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ("bhgqd", "bhkd", "bhke", "bhgqe")
    merged: bool = False  # neighbouring axes h and d (or e) arrive as one
    masks: tuple[Mask, ...] = ()
    softcap: float = 0.0
    element: str = "f32"
    doubled: bool = False  # another op follows
    guarded: bool = False  # rows without a key are zeros

    def size(self, letter: str) -> Size:
        return symbol(letter.upper()) if letter in self.open else self.sizes[letter]

    def shape(self, kind: str, letters: str) -> Shape:
        return Shape(kind, *map(self.size, letters))

    def arrival(self, letters: str) -> list[str]:
        """The axes of an argument: one for each letter, or for heads times elements."""
        for pair in ("hd", "he"):
            if self.merged and pair in letters:
                at = letters.index(pair)
                return [*letters[:at], pair, *letters[at + 2 :]]
        return list(letters)

    def program(self, wide: bool = False) -> Program:
        kind = "f64" if wide else self.element
        shapes = [
            Shape(kind, *(product(map(self.size, axis)) for axis in self.arrival(letters)))
            for letters in self.layouts[:3]
        ]
        given = [mask for mask in self.masks if not mask.causal]
        shapes += [self.shape(kind if mask.role == "add" else "i1", mask.axes) for mask in given]
        shapes += [Shape("i1", letter.upper()) for letter in self.open]
        f = FuncBuilder("main", shapes)
        q, k, v = (
            self.ordered(f, arg, own, wanted)
            for arg, own, wanted in zip(f.args, self.layouts, ("bhgqd", "bhkd", "bhke"), strict=False)
        )
        whole = "bhgqk"
        scores = f.dot_general(
            q, k, dot_dimension_numbers=DotDims((0, 1), (0, 1), (4,), (3,)), result=self.shape(kind, whole)
        )
        scores = f.multiply(scores, f.full(self.sizes["d"] ** -0.5 if self.sizes["d"] else 1.0, scores.shape))
        if self.softcap:
            capped = f.tanh(f.divide(scores, f.full(self.softcap, scores.shape)))
            scores = f.multiply(capped, f.full(self.softcap, scores.shape))
        masks = iter(f.args[3:])
        for mask in self.masks:
            value = self.causal(f) if mask.causal else next(masks)
            scores = self.masked(f, scores, mask, value)
        weights = _softmax(f, scores)
        if self.guarded:
            none = f.compare(weights, weights, comparison_direction="NE")
            weights = f.select(none, f.full(0.0, weights.shape), weights)
        result = f.dot_general(
            weights, v, dot_dimension_numbers=DotDims((0, 1), (0, 1), (4,), (2,)), result=self.shape(kind, "bhgqe")
        )
        order = tuple("bhgqe".index(each) for each in self.layouts[3])
        result = f.transpose(result, permutation=order)
        return Program.of(f.func(f.add(result, result) if self.doubled else result))

    def ordered(self, f: Builder, value: Value, own: str, wanted: str) -> Value:
        apart = f.reshape(value, result=Shape.of(value.shape.dtype, tuple(map(self.size, own))))
        return f.transpose(apart, permutation=tuple(own.index(each) for each in wanted))

    def causal(self, f: Builder) -> Value:
        """Keys up to the query's own place, counted from the end."""
        sizes = self.shape("i64", "qk")
        row, column = (f.iota(iota_dimension=d, result=sizes) for d in (0, 1))
        ends = [f.get_dimension_size(value, dimension=d) for value, d in ((column, 1), (row, 0))]
        wide = [
            f.broadcast_in_dim(f.convert(end, result=Shape("i64")), broadcast_dimensions=(), result=sizes)
            for end in ends
        ]
        return f.compare(column, f.add(row, f.subtract(*wide)), comparison_direction="LE")

    def masked(self, f: Builder, scores: Value, mask: Mask, value: Value) -> Value:
        axes = "qk" if mask.causal else mask.axes
        places = tuple("bhgqk".index(each) for each in axes)
        spread = f.broadcast_in_dim(
            value, broadcast_dimensions=places, result=Shape.of(value.shape.dtype, scores.shape.sizes)
        )
        if mask.role == "add":
            return f.add(scores, spread)
        other = f.full(mask.fill, scores.shape)
        return f.select(spread, *((scores, other) if mask.role == "where" else (other, scores)))

    def arguments(self, random: np.random.Generator) -> list[Array]:
        kind = dtype(self.element).numpy
        made: list[Array] = []
        for letters in self.layouts[:3]:
            sizes = [int(np.prod([self.sizes[each] for each in axis])) for axis in self.arrival(letters)]
            made.append(random.standard_normal(sizes).astype(kind))
        for mask in self.masks:
            if mask.causal:
                continue
            sizes = [self.sizes[each] for each in mask.axes]
            if mask.role == "add":
                values = np.asarray(random.choice([0.0, 0.0, 0.5, mask.fill], sizes))
                if "k" in mask.axes and abs(mask.fill) < np.inf:  # a row where all is large loses its scores
                    values[..., :1] = 0.0
                made.append(np.asarray(values).astype(kind))
            else:
                made.append(np.asarray(random.random(sizes) < 0.6))
        return [*made, *(np.zeros(self.sizes[letter], bool) for letter in self.open)]


def _softmax(f: Builder, x: Value) -> Value:
    def along(value: Value, name: str, start: float) -> Value:
        scalar = Shape.of(value.shape.dtype, ())
        with f.region(scalar, scalar) as r:
            r.result(getattr(r, name)(*r.args))
        reduced = f.reduce(value, f.constant(start, value.shape.dtype), dimensions=(4,), regions=[r.body])
        return f.broadcast_in_dim(reduced, broadcast_dimensions=(0, 1, 2, 3), result=value.shape)

    powers = f.exponential(f.subtract(x, along(x, "maximum", -np.inf)))
    return f.divide(powers, along(powers, "add", 0.0))


def draw(random: np.random.Generator, **fixed: Any) -> Case:
    def pick(choices: Sequence[Any]) -> Any:
        return choices[int(random.integers(len(choices)))]

    def order(letters: str) -> str:
        return "".join(random.permutation(list(letters)))

    sizes = {"b": pick((0, 1, 1, 2, 3)), "h": pick((1, 2, 3)), "g": pick((1, 1, 1, 2, 4))}
    sizes |= {
        "q": pick(SIZES),
        "k": pick((*SIZES, 513, 701)),
        "d": pick((1, 8, 17, 32, 64)),
        "e": pick((1, 7, 16, 33, 64)),
    }
    layouts: tuple[str, ...] = ("bhgqd", "bhkd", "bhke", "bhgqe")
    merged = bool(random.random() < 0.4)
    if merged:
        layouts = ("bqghd", "bkhd", "bkhe", "bqhge")
    elif random.random() < 0.6:
        layouts = tuple(map(order, layouts))
    masks: list[Mask] = []
    for i in range(pick((0, 1, 1, 2))):
        axes = "".join(each for each in "bhgqk" if random.random() < 0.6)
        # A score beside a large number is lost, in f32 but not in double: only the last mask may bring one.
        large = i == 0 and "k" in axes
        masks.insert(0, Mask(axes, pick(("add", "where", "unless")), pick(FILLS if large else FILLS[4:])))
    if random.random() < 0.4:
        masks.append(Mask("qk", "where", pick(FILLS), causal=True))
    open_letters = tuple(each for each in "bqk" if random.random() < 0.3)
    case = Case(sizes, open_letters, layouts, merged, tuple(masks))
    case = replace(case, softcap=pick((0.0, 0.0, 3.0)), doubled=bool(random.random() < 0.3))
    return replace(case, guarded=bool(random.random() < 0.3), **fixed)


def wrong(case: Case, args: list[Array], got: Array) -> str:
    """What is wrong with an answer; empty where nothing is."""
    want = run(case.program(True), [each.astype(np.float64) if each.dtype != bool else each for each in args])[0]
    if got.shape != want.shape:
        return f"{case}: shape {got.shape}, expected {want.shape}"
    there = got.astype(np.float64)
    if (np.isnan(there) != np.isnan(want)).any():
        return f"{case}: nan in {np.isnan(there).sum()} places, expected {np.isnan(want).sum()}"
    q, k, v = (np.abs(each.astype(np.float64)).max(initial=0) for each in args[:3])
    depth, keys = case.sizes["d"], case.sizes["k"]
    scores = q * k * max(depth, 1) ** 0.5 + max((abs(m.fill) for m in case.masks if abs(m.fill) < 100), default=0.5)
    step = EPSILON[case.element] if case.element != "f32" else 0.0
    off = 2 * (4 + depth**0.5) * EPSILON["f32"] * scores + (8 + keys**0.5) * EPSILON["f32"]
    if step:  # the wide program takes the same narrow arguments; only the result is rounded
        off += 2 * step
    bad = ~(np.isnan(want) | (np.abs(there - want) <= off * v * (2 if case.doubled else 1)))
    if not bad.any():
        return ""
    at = tuple(int(each) for each in np.argwhere(bad)[0])
    return f"{case}: {bad.sum()} of {bad.size}; at {at} {there[at]}, expected {want[at]} within {off * v}"


def compiled(cases: Sequence[Case]) -> list[Any]:
    found = []
    for case, made in zip(cases, native.compile_all([case.program() for case in cases]), strict=True):
        assert not isinstance(made, SmeltError), (case, made)
        if case.sizes["k"] != 1 and all(case.sizes.values()):  # a softmax of one number is not looked for
            assert "attention" in {use.kind for use in made.kernels}, (case, made.kernels)
        found.append(made)
    return found


def failures(cases: Sequence[Case], random: np.random.Generator) -> list[str]:
    found = []
    for case, made in zip(cases, compiled(cases), strict=True):
        args = case.arguments(random)
        found.append(wrong(case, args, made(*args)[0]))
        made.close()
    return [each for each in found if each]


def test_random_attention(seed: int) -> None:
    random = np.random.default_rng([seed, 1])
    assert failures([draw(random) for _ in range(20)], random) == []


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_narrow_types(element: str, seed: int) -> None:
    """Scores and sums are f32: only the result is rounded."""
    random = np.random.default_rng([seed, 2])
    plain = {"element": element, "softcap": 0.0, "masks": (), "doubled": False}
    assert failures([draw(random, **plain) for _ in range(6)], random) == []


@pytest.mark.parametrize(
    "shape", [TileShape(6, 16, 8), TileShape(4, 8, 4)], ids=lambda shape: f"{shape.rows}x{shape.columns}"
)
def test_any_tile_is_right(shape: TileShape, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (stages, pipeline, contract):  # packing, printing and what may be printed
        monkeypatch.setattr(each, "tile_shape", lambda target: shape)
    random = np.random.default_rng([seed, shape.rows])
    assert failures([draw(random) for _ in range(8)], random) == []


@pytest.mark.slow
def test_any_schedule_is_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng([seed, 3])

    def chosen(problem: Attention) -> AttentionSchedule:
        queries = int(random.integers(1, problem.width + 1))
        keys, chunk, few = (int(random.choice(each)) for each in ((1, 5, 32, 200), (3, 64, 700), (0, 1, 40)))
        return AttentionSchedule(queries, keys, chunk, few)

    monkeypatch.setattr(AttentionSchedule, "of", staticmethod(chosen))
    assert failures([draw(random) for _ in range(12)], random) == []


@pytest.mark.slow
def test_the_queries_of_a_block_change_no_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng([seed, 4])
    cases = [draw(random) for _ in range(6)]
    calls = [case.arguments(random) for case in cases]
    found: list[list[bytes]] = []
    for queries in (8, 5):
        monkeypatch.setattr(
            AttentionSchedule, "of", staticmethod(lambda problem, queries=queries: AttentionSchedule(queries))
        )
        found.append([made(*call)[0].tobytes() for made, call in zip(compiled(cases), calls, strict=True)])
    assert found[0] == found[1]


@pytest.fixture
def pool() -> Iterator[Runtime]:
    """The runtime, with its number of threads restored afterwards."""
    found = runtime()
    before = found.threads
    yield found
    found.set_threads(before)


def test_threads_and_batch_change_no_bit(seed: int, pool: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops are split into far smaller chunks than usual, so that small shapes run on several threads."""
    monkeypatch.setattr(parallelise, "ELEMENTS_PER_CORE", 16)
    random = np.random.default_rng([seed, 5])
    causal, window = Mask("qk", "where", -np.inf, causal=True), Mask("bk", "add", -1e9)
    sizes = {"b": 3, "h": 2, "g": 2, "q": 67, "k": 131, "d": 16, "e": 33}
    base = Case(sizes, ("b",), merged=False, masks=(causal, window))
    few = replace(base, sizes=sizes | {"q": 1, "k": 1100}, masks=(window,))
    cases = [base, few, replace(few, open=("b", "q", "k")), replace(base, open=("b", "q", "k"))]
    for case, made in zip(cases, compiled(cases), strict=True):
        args = case.arguments(random)
        pool.set_threads(1)
        (want,) = made(*args)
        assert wrong(case, args, want) == ""
        for threads in (2, 5):
            pool.set_threads(threads)
            assert made(*args)[0].tobytes() == want.tobytes(), (case, threads)
        rows = 5  # queries, keys, values, the mask over keys, and what tells the batch
        for i in range(3):
            alone = [*(each[i : i + 1] for each in args[:rows]), *args[rows:]]
            assert made(*alone)[0].tobytes() == want[i : i + 1].tobytes(), (case, i)


def test_dynamic_sizes_change_no_bit(seed: int) -> None:
    """Neither do sizes that are known: the same blocks of keys, whatever is known before."""
    random = np.random.default_rng([seed, 6])
    mask = (Mask("qk", "where", -np.inf, causal=True),)
    for queries, keys in ((1, 600), (4, 31), (5, 300), (40, 129)):
        sizes = {"b": 1, "h": 2, "g": 1, "q": queries, "k": keys, "d": 16, "e": 8}
        fixed, free = compiled([Case(sizes, masks=mask), Case(sizes, ("q", "k"), masks=mask)])
        args = Case(sizes, ("q", "k"), masks=mask).arguments(random)
        assert fixed(*args[:3])[0].tobytes() == free(*args)[0].tobytes(), (queries, keys)


def test_masked_keys_may_hold_any_finite_value(seed: int) -> None:
    """Whole blocks and the ends of others are left out: the greatest numbers there change no bit."""
    random = np.random.default_rng([seed, 7])
    sizes = {"b": 1, "h": 2, "g": 1, "q": 40, "k": 300, "d": 16, "e": 8}
    case = Case(sizes, masks=(Mask("k", "add", -np.inf),))
    (made,) = compiled([case])
    q, k, v, mask = case.arguments(random)
    mask[:] = 0.0
    mask[100:270] = -np.inf
    want = made(q, k, v, mask)[0].tobytes()
    v[:, :, 100:270] = np.finfo(np.float32).max
    k[:, :, 100:270] *= -7
    assert made(q, k, v, mask)[0].tobytes() == want
    k[:, :, 150] = np.nan  # what is added to nan is nan
    assert np.isnan(made(q, k, v, mask)[0]).all()


def test_the_comparison_finds_what_is_wrong(seed: int) -> None:
    random = np.random.default_rng([seed, 8])
    case = Case({"b": 1, "h": 2, "g": 1, "q": 5, "k": 40, "d": 16, "e": 8})
    args = case.arguments(random)
    right = run(case.program(), args)[0]
    assert wrong(case, args, right) == ""
    off = right.copy()
    off.reshape(-1)[-1] += 0.005
    assert wrong(case, args, off) != ""
    off.reshape(-1)[-1] = np.nan
    assert wrong(case, args, off) != ""
