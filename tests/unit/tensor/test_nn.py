"""Every layer's values against torch's, under the same names of weights, and its shapes over symbols.

torch's weights and results are in tests/fixtures/layers.npz. Each case runs on data, then traced over symbolic sizes
and run at numbers for them; some are compiled natively.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import nn
from smelt.dtype import dtype as dtype_of
from smelt.engine.native import compile_all
from smelt.errors import SizeError, SmeltError
from smelt.ir.interpret import run
from smelt.shape import Shape
from smelt.tensor import engine, trace
from smelt.tensor.axes import parse_shape
from smelt.tensor.model import build, parameters_of
from smelt.weights import Weights

RECORDED = dict(np.load(Path(__file__).parents[2] / "fixtures" / "layers.npz"))


def load_recording(case: str, part: str) -> dict[str, np.ndarray]:
    """What torch had or gave in a case: weights by path, operands by name, or results by number."""
    start = f"{case}/{part}/"
    return {key.removeprefix(start): array for key, array in RECORDED.items() if key.startswith(start)}


@dataclass
class Case:
    """A layer, the shape of what it takes, and how it is called."""

    name: str
    layer: Callable[[], Any]
    shape: str
    call: Callable[[Any, Any], Any] = lambda layer, x: layer(x)
    native: bool = True
    facts: tuple[str, ...] = ()


IMAGE = "f32[b=B, c=4, y=Y, x=X]"
SEQUENCE = "f32[b=B, c=4, t=T]"
TIME = "f32[b=B, t=T, i=4]"

CASES = [
    Case("Linear", lambda: nn.Linear(d=6, f=3), "f32[b=B, s=S, d=6]"),
    Case("Linear, one name", lambda: nn.Linear(d=(6, 3), bias=False), "f32[b=B, d=6]"),
    Case("Embedding", lambda: nn.Embedding(v=11, d=5), "i64[b=B, s=S]"),
    Case("LayerNorm", lambda: nn.LayerNorm(d=6), "f32[b=B, s=S, d=6]"),
    Case("LayerNorm over two axes", lambda: nn.LayerNorm(s=3, d=6, epsilon=1e-3, bias=False), "f32[b=B, s=3, d=6]"),
    Case("RMSNorm", lambda: nn.RMSNorm(d=6, epsilon=1e-5), "f32[b=B, d=6]"),
    Case("GroupNorm", lambda: nn.GroupNorm(2, "y x", c=4), IMAGE),
    Case("InstanceNorm", lambda: nn.GroupNorm(4, "y x", c=4, weight=False), IMAGE),
    Case("BatchNorm", lambda: nn.BatchNorm(c=4), IMAGE),
    Case("BatchNorm of the batch", lambda: nn.BatchNorm(c=4), IMAGE, lambda layer, x: layer(x, *layer.statistics(x))),
    Case("Conv1d", lambda: nn.Conv1d(c=(4, 6), t=3, padding=1), SEQUENCE),
    Case("Conv1d, dilated", lambda: nn.Conv1d(c=4, o=6, t=3, padding=2, dilation=2, bias=False), SEQUENCE),
    Case("Conv2d", lambda: nn.Conv2d(c=(4, 6), y=3, x=3, strides=2, padding=1), IMAGE),
    Case("Conv2d, oblong", lambda: nn.Conv2d(c=(4, 6), y=3, x=1, strides=(2, 1), padding={"y": 1}), IMAGE),
    Case("Conv2d, depthwise", lambda: nn.Conv2d(c=(4, 8), y=3, x=3, padding="same", groups=4), IMAGE),
    Case("Conv3d", lambda: nn.Conv3d(c=(2, 3), z=2, y=2, x=2), "f32[b=B, c=2, z=Z, y=Y, x=X]",
         facts=("Z >= 2", "Y >= 2", "X >= 2")),
    Case("ConvTranspose1d", lambda: nn.ConvTranspose1d(c=(4, 6), t=4, strides=2, padding=1), SEQUENCE),
    Case("ConvTranspose2d",
         lambda: nn.ConvTranspose2d(c=(4, 6), y=3, x=3, strides=2, padding=1, output_padding=1), IMAGE),
    Case("ConvTranspose2d, groups",
         lambda: nn.ConvTranspose2d(c=(4, 6), y=3, x=2, strides=2, groups=2, dilation=2), IMAGE),
    Case("MaxPool", lambda: nn.MaxPool(y=3, x=3, strides=2, padding=1), IMAGE),
    Case("AvgPool", lambda: nn.AvgPool(y=3, x=2, strides=2, padding={"y": 1}), IMAGE, facts=("X >= 2",)),
    Case("AvgPool without padding", lambda: nn.AvgPool(y=3, x=3, strides=1, padding=1, count_padding=False), IMAGE),
    Case("global_avg_pool", lambda: lambda x: nn.global_avg_pool(x, "y x"), IMAGE),
    Case("global_max_pool", lambda: lambda x: nn.global_max_pool(x, "y x"), IMAGE),
    Case("Sequential", lambda: nn.Sequential(nn.Linear(d=6, f=8), nn.gelu, nn.Linear(f=8, c=2)), "f32[b=B, d=6]"),
    Case("RNN", lambda: nn.RNN(i=4, h=3), TIME),
    Case("RNN, relu", lambda: nn.RNN(i=4, h=3, relu=True, bias=False), TIME),
    Case("LSTM", lambda: nn.LSTM(i=4, h=3), TIME),
    Case("LSTM, two layers, both directions, time first", lambda: nn.LSTM(i=4, h=3, layers=2, bidirectional=True),
         "f32[t=T, b=B, i=4]", native=False),
    Case("GRU", lambda: nn.GRU(i=4, h=3), TIME),
    Case("GRU, two layers, both directions", lambda: nn.GRU(i=4, h=3, layers=2, bidirectional=True), TIME,
         native=False),
]  # fmt: skip
ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "gelu", "gelu_new", "quick_gelu", "silu", "hardswish", "hardsigmoid"),
    *("sigmoid", "tanh", "softplus", "mish"),
)


def arrays_for(layer: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random weights for all parameters that a layer declares."""
    return {
        path: rng.standard_normal(each.shape.numbers({})).astype(np.float32)
        for path, each in parameters_of(layer).items()
    }


def flat(result: Any) -> list[Any]:
    return [each for item in result for each in flat(item)] if isinstance(result, tuple) else [result]


def close(got: Any, case: str) -> None:
    """What came is what torch gave."""
    want = load_recording(case, "result")
    assert len(flat(got)) == len(want) > 0
    for i, each in enumerate(flat(got)):
        np.testing.assert_allclose(np.asarray(each), want[str(i)], rtol=1e-5, atol=1e-5)


def shape_of(text: str) -> Shape:
    element, sizes, names = parse_shape(text)
    return Shape.of(dtype_of(element or "f32"), sizes, names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layers_give_what_torch_gives(case: Case):
    layer, weights = case.layer(), load_recording(case.name, "weight")
    assert not isinstance(layer, smelt.Model) or set(parameters_of(layer)) == set(weights)
    bound = build(layer, weights, strict=True) if weights else layer
    with engine("reference"):
        x = smelt.tensor(load_recording(case.name, "operand")["x"], shape_of(case.shape).names)
        close(case.call(bound, x), case.name)


class Called:
    """A layer and the way it is called, as one model."""

    def __init__(self, case: Case) -> None:
        self.layer = case.layer()
        self.case = case

    def __call__(self, x: smelt.Tensor) -> Any:
        return self.case.call(self.layer, x)


def run_traced(case: Case, name: str) -> Any:
    called, weights = Called(case), load_recording(case.name, "weight")
    traced = trace(called.__call__, shape_of(case.shape), facts=case.facts)
    paths = [leaf.name.removeprefix("layer.") for leaf in traced.leaves if leaf.weight]
    assert set(paths) == set(weights)
    x = load_recording(case.name, "operand")["x"]
    return traced(*(weights[path] for path in paths), x, engine=name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layers_are_proven_over_symbols(case: Case):
    close(run_traced(case, "reference"), case.name)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.native], ids=lambda case: case.name)
def test_layers_compile_for_all_sizes(case: Case):
    close(run_traced(case, "native"), case.name)


def test_layers_at_sizes_0_and_1_on_the_native_engine(seed: int):
    """All compiled in one go; dynamic dimensions are 0 together and one by one, and 1. Expected: the interpreter's."""
    cases = [case for case in CASES if case.native]
    traces = [trace(Called(case).__call__, shape_of(case.shape), facts=case.facts) for case in cases]
    rng = np.random.default_rng(seed)
    for case, traced, made in zip(cases, traces, compile_all([each.program for each in traces]), strict=True):
        assert not isinstance(made, SmeltError), f"{case.name}: {made}"
        weights = {leaf.name: RECORDED[f"{case.name}/weight/{leaf.name.removeprefix('layer.')}"]
                   for leaf in traced.leaves if leaf.weight}  # fmt: skip
        bound = made.prepare(Weights.of(weights)) if weights else made
        shape = shape_of(case.shape)
        for numbers in [dict.fromkeys(shape.symbols, 1), *({name: 0} for name in shape.symbols)]:
            sizes = shape.numbers(dict.fromkeys(shape.symbols, 2) | numbers)
            x = rng.integers(0, 11, sizes) if shape.dtype.is_integer else rng.standard_normal(sizes).astype(np.float32)
            want = answer(lambda: run(traced.program, [*weights.values(), x]))  # noqa: B023
            got = answer(lambda: bound(x))  # noqa: B023
            assert isinstance(got, str) == isinstance(want, str), f"{case.name} at {sizes}: {got}, expected {want}"
            for a, b in zip(got, want, strict=True) if not isinstance(got, str) else ():
                assert a.shape == b.shape, case.name
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=f"{case.name} at {sizes}")


def answer(call: Callable[[], Any]) -> Any:
    """The results of a call, or why it refused the sizes."""
    try:
        return call()
    except SizeError as error:
        return str(error)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_by_name(name: str):
    with engine("reference"):
        close(nn.activation(name)(smelt.tensor(load_recording(name, "operand")["x"], "b d")), name)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_and_its_logarithm(name: str):
    with engine("reference"):
        close(getattr(nn, name)(smelt.tensor(load_recording(name, "operand")["x"], "b d"), "d"), name)


# ---- attention ----


@pytest.mark.parametrize("kind", ["plain", "causal", "boolean mask", "added mask", "scale", "fewer heads"])
def test_attention(kind: str):
    given = load_recording(f"attention, {kind}", "operand")
    keys = "b g t k" if kind == "fewer heads" else "b h t k"
    options: dict[str, Any] = {"causal": kind == "causal", "scale": 0.3 if kind == "scale" else None}
    if "mask" in given:
        options["mask"] = smelt.tensor(given["mask"][:, 0], "b s t")
    q, k, v = (smelt.tensor(given[name], axes) for name, axes in (("q", "b h s k"), ("k", keys), ("v", keys)))
    with engine("reference"):
        got = nn.attention(q, k, v, **options)
        assert got.axes == ("b", "h", "s", "k")
        close(got, f"attention, {kind}")


def test_attention_is_cut_at_the_soft_cap(seed: int):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((3, 4)) for _ in range(3))
    scores = 2 * np.tanh(q @ k.T / 2 / 2)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    with engine("reference"):
        got = nn.attention(smelt.tensor(q, "s k"), smelt.tensor(k, "t k"), smelt.tensor(v, "t k"), softcap=2.0)
    np.testing.assert_allclose(got.numpy(), shares @ v, rtol=1e-10)


def test_the_attention_layer_against_torch():
    """torch keeps the three projections of its MultiheadAttention in one matrix."""
    theirs, given = load_recording("attention, layer", "weight"), load_recording("attention, layer", "operand")
    weights = {f"o_proj.{part}": theirs[f"out_proj.{part}"] for part in ("weight", "bias")}
    for part in ("weight", "bias"):
        for name, array in zip("qkv", np.split(theirs[f"in_proj_{part}"], 3), strict=True):
            weights[f"{name}_proj.{part}"] = array
    layer = build(nn.MultiHeadAttention(d=8, heads=2, bias=True), weights, strict=True)
    with engine("reference"):
        x = smelt.tensor(given["x"], "b s d")
        close((layer(x), layer(x, smelt.tensor(given["y"], "b t d"))), "attention, layer")


def rotate(x: np.ndarray, positions: np.ndarray, base: float, interleaved: bool) -> np.ndarray:
    """Pairs as complex numbers, multiplied by exp(i angle): x is [b, s, h, k]."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * base ** (-np.arange(half) / half)
    turn = np.exp(1j * angles)[..., None, :]
    if interleaved:
        pairs = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)
    pairs = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([pairs.real, pairs.imag], -1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions(interleaved: bool, seed: int):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, 2, 8)).astype(np.float32)
    positions = rng.integers(0, 50, (2, 3)).astype(np.int32)
    rope = nn.RoPE(k=8, base=500.0, interleaved=interleaved)
    with engine("reference"):
        given = smelt.tensor(x, "b s h k")
        from_zero = rope(given).numpy()
        anywhere = rope(given, smelt.tensor(positions, "b s")).numpy()
    np.testing.assert_allclose(from_zero, rotate(x, np.arange(3), 500.0, interleaved), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(anywhere, rotate(x, positions, 500.0, interleaved), rtol=1e-4, atol=1e-4)
    symbolic = trace(nn.RoPE(k="K", base=500.0, interleaved=interleaved), Shape("f32", b="B", s="S", h="H", k="2*K"))
    got = symbolic(x, engine="reference")
    np.testing.assert_allclose(got, rotate(x, np.arange(3), 500.0, interleaved), rtol=1e-4, atol=1e-5)


def test_rope_rotates_part_of_the_depth(seed: int):
    x = np.random.default_rng(seed).standard_normal((1, 4, 2, 8)).astype(np.float32)
    with engine("reference"):
        got = nn.RoPE(k=8, part=4)(smelt.tensor(x, "b s h k")).numpy()
    np.testing.assert_allclose(got[..., :4], rotate(x[..., :4], np.arange(4), 10000.0, False), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])


def test_a_cache_gives_what_the_whole_sequence_gives(seed: int):
    """Token by token, and the first three at once: each step attends to everything before it."""
    rng = np.random.default_rng(seed)
    rope = nn.RoPE(k=4)
    layer = nn.MultiHeadAttention(d=8, heads=4, kv_heads=2, head_size=4, causal=True, rope=rope)
    layer = build(layer, arrays_for(layer, rng))
    x = rng.standard_normal((2, 5, 8)).astype(np.float32)
    with engine("reference"):
        whole = layer(smelt.tensor(x, "b s d")).numpy()
        cache = smelt.zeros("f32[b=2, t=6, g=2, k=4]"), smelt.zeros("f32[b=2, t=6, g=2, k=4]")
        parts = []
        for start, stop in ((0, 3), (3, 4), (4, 5)):
            at = smelt.tensor(start)
            places = smelt.arange(stop - start, "s") + at
            part = smelt.tensor(x[:, start:stop], "b s d")
            first = {} if start == 0 else {"at": at}  # a cache is filled from its first position
            y, cache = layer(part, positions=places, cache=cache, **first)
            parts.append(y.numpy())
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=1e-5)


def test_a_cache_write_needs_room():
    layer = nn.MultiHeadAttention(d=8, heads=2)
    shapes = [Shape("f32", b="B", s="S", d=8), Shape("f32", b="B", t="C", h=2, k=4)]

    given = (shapes[0], shapes[1], shapes[1], Shape("i32"))

    class Step:
        def __init__(self) -> None:
            self.layer = layer

        def __call__(self, x: smelt.Tensor, keys: smelt.Tensor, values: smelt.Tensor, at: smelt.Tensor) -> Any:
            return self.layer(x, cache=(keys, values), at=at)

    with pytest.raises(smelt.TensorError) as caught:
        trace(Step(), *given)
    assert caught.value.missing == "S <= C"
    y, cache = trace(Step(), *given, facts=["S <= C"]).results
    assert str(y.shape) == "f32[b=B, s=S, d=8]"
    assert str(cache[0].shape) == "f32[b=B, t=C, h=2, k=4]"


# ---- the rest ----


def test_dropout_needs_a_key(seed: int):
    x = smelt.ones("f32[n=4000]")
    drop = nn.Dropout(0.25)
    assert drop(x) is x
    with engine("reference"):
        got = drop(x, smelt.random.key(seed)).numpy()
    assert set(np.unique(got)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((got == 0).mean() - 0.25) < 0.05  # 7 deviations
    with pytest.raises(smelt.TensorError, match="not a probability"):
        nn.Dropout(1.0)


def test_narrow_floats_are_normalised_in_f32(seed: int):
    x = np.random.default_rng(seed).standard_normal((4, 512)).astype(np.float16) * 100
    with engine("reference"):
        given = smelt.tensor(x, "b d")
        layer = build(nn.RMSNorm(d=512), {"weight": np.ones(512, np.float16)})
        got = layer(given)
    assert str(got.dtype) == "f16"
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=2**-10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(d=3),
        lambda: nn.Conv2d(c=(3, 4), y=3),
        lambda: nn.RMSNorm(),
        lambda: nn.LayerNorm(),
        lambda: nn.Embedding(v=3),
        lambda: nn.MultiHeadAttention(d=10, heads=4),
        lambda: nn.LSTM(h=(3, 4)),
        lambda: nn.activation("nothing"),
    ],
)
def test_a_layer_names_its_missing_arguments(make: Callable[[], Any]):
    with pytest.raises(smelt.TensorError) as caught:
        make()
    assert caught.value.remedy or caught.value.details


def test_a_linear_layer_does_not_take_its_result_for_a_batch():
    x = smelt.symbolic("f32[f=8, d=3]")
    with pytest.raises(smelt.TensorError, match="already"):
        nn.Linear(d=3, f=8)(x)


def test_what_attention_and_positions_do_not_take():
    q, k = smelt.symbolic("f32[b=B, s=S, k=8]"), smelt.symbolic("f32[b=B, t=T, g=2, k=8]")
    with pytest.raises(smelt.TensorError, match='k has an axis "g" that q lacks'):
        nn.attention(q, k, k)
    with pytest.raises(smelt.TensorError, match='q has no axis "k"'):
        nn.attention(q.rename(k="d"), k, k)
    with pytest.raises(smelt.TensorError, match="2 does not always divide"):
        nn.attention(smelt.symbolic("f32[b=B, s=S, h=3, k=8]"), k, k)
    with pytest.raises(smelt.TensorError, match='"k" has the size 8, not 16'):
        nn.RoPE(k=16)(q)


def test_indices_do_not_share_the_depth_of_a_table():
    with pytest.raises(smelt.TensorError, match="already"):
        nn.Embedding(v=7, d=3)(smelt.symbolic("i32[d=3]"))


def test_mistakes_with_layers_are_shown_at_the_users_line():
    with pytest.raises(smelt.TensorError) as caught:
        nn.Linear(d=4, f=8)(smelt.symbolic("f32[b=B, d=5]"))
    assert caught.value.source is not None
    assert "nn.Linear(d=4, f=8)(smelt" in caught.value.source
