"""What operations on tensors refuse, the message and the remedy: one expression for each check."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import TensorError
from smelt.tensor.composite import unblock


def made(sizes: tuple[int, ...], names: str = "", kind: Any = np.float32) -> Any:
    plain = smelt.tensor(np.zeros(sizes, kind))
    return plain.named(names) if names else plain


S, V, W, M = made(()), made((3,)), made((4,)), made((2, 3))
INTS, BOOLS, COMPLEX = (made((2, 3), kind=kind) for kind in (np.int32, np.bool_, np.complex64))
AB, BC, AC = made((2, 3), "a b"), made((3, 4), "b c"), made((2, 4), "a c")
IMAGE, KERNEL = made((1, 2, 6, 6), "b c y x"), made((3, 2, 3, 3), "o c y x")
NAMES, NUMBERS = (
    "name the axes of the other operand, .named(…), or take the names away, .unnamed()",
    'cast first: .to("f32")',
)

Row = tuple[str, str | None, Callable[[], Any]]
ROWS: list[Row] = [
    ("dot: axes with names are given by name", 'say its name: .dot(other, "d")', lambda: AB.dot(BC, (1, 0))),
    ("dot: axes with names are given by name", NAMES, lambda: AB.dot(M, (1, 1))),
    ("dot: axes with names are given by name", NAMES, lambda: M.dot(AB, (1, 1))),
    ("dot: an axis is named twice", None, lambda: AB.dot(BC, "b b")),
    ('dot over "b": the right operand has no such axis', 'if its "j" is "b", say so: .rename(j="b")',
     lambda: AB.dot(made((3, 4), "j c"), "b")),
    ('dot over "b": the left operand has no such axis', 'if its "j" is "b", say so: .rename(j="b")',
     lambda: made((3, 4), "j k").dot(BC, "b")),
    ("dot: axis 1 has size 3, axis 0 of the right operand 4", None, lambda: M.dot(W, (1, 0))),
    ("dot: there is no axis 2", None, lambda: M.dot(V, (2, 0))),
    ("dot: there is no axis 1", None, lambda: M.dot(V, (1, 1))),
    ("@: a scalar has no axis to contract", "x * y", lambda: S @ V),
    ("@: a scalar has no axis to contract", "x * y", lambda: V @ S),
    ("@: named and unnamed axes do not mix", "name the axes of the other operand: .named(…)", lambda: AB @ V),
    ("conv: strides has 1 numbers for 2 axes", None, lambda: IMAGE.conv(KERNEL, "y x", strides=(1,))),
    ("conv: padding is 'valid', 'same' or (before, after) for each axis", None,
     lambda: IMAGE.conv(KERNEL, "y x", padding=[(1, 1)])),
    ("mean_pool: not for i32", NUMBERS, lambda: made((1, 4), "b x", np.int32).mean_pool({"x": 2})),
    ("split: the new axes need names", '.split("d", h=…, k=…)', lambda: AB.split("b", 3, 1)),
    ("merge: no axes to merge", None, lambda: AB.merge((), "c")),
    ("named: 1 names for 2 axes", None, lambda: M.named("a")),
    ("reshape: only one size may be -1", None, lambda: M.reshape(-1, -1)),
    ("reshape: -1 is ambiguous beside an axis of size 0", "give the size itself",
     lambda: made((0, 3)).reshape(-1, 0)),
    ("insert: the new axis needs a name", '.insert("name")', lambda: AB.insert(0)),
    ("insert: named and unnamed axes do not mix", "give the axes names first: .named(…)", lambda: M.insert("c")),
    ("squeeze: axis 0 has size 2, not 1", None, lambda: M.squeeze(0)),
    ("3 indices for 2 axes", None, lambda: M[0, 0, 0]),
    ("only one ... in an index", None, lambda: M[..., ...]),
    ("the new axis needs a name", '.insert("name")', lambda: AB[None]),
    ("an index that is a tensor needs its axis", ".take(index, 0)", lambda: M[INTS]),
    ("an index that is a tensor needs its axis", ".take(index, 1)", lambda: M[0, INTS]),
    ("index 2 is not always inside axis 0 of size 2", None, lambda: M[2]),
    ("index -3 is not always inside axis 0 of size 2", None, lambda: M[-3]),
    ("stack: there is no tensor", None, lambda: smelt.stack([], 0)),
    ("sum: not for i1", NUMBERS, lambda: BOOLS.sum()),
    ("softmax: not for i32", NUMBERS, lambda: INTS.softmax(0)),
    ("max: not for complex<f32>", None, lambda: COMPLEX.max()),
    ("all: not for f32", None, lambda: M.all()),
    ("any: not for f32", None, lambda: M.any()),
    ("sort: not for complex<f32>", None, lambda: COMPLEX.sort(0)),
    ("cummax: not for complex<f32>", None, lambda: COMPLEX.cummax(0)),
    ("var: not for i32", NUMBERS, lambda: INTS.var()),
    ("std: not for i32", NUMBERS, lambda: INTS.std()),
    ("logsumexp: not for i32", NUMBERS, lambda: INTS.logsumexp(0)),
    ("log_softmax: not for i32", NUMBERS, lambda: INTS.log_softmax(0)),
    ("argmax: along which axis?", '.argmax("s")', lambda: M.argmax()),
    ("argmin: along which axis?", '.argmin("s")', lambda: M.argmin()),
    ("/: i32 has no fractions", 'x // y, or cast first: x.to("f32") / y', lambda: INTS / INTS),
    ("item: 6 elements, not one", None, lambda: M.item()),
    ("+: the float 0.5 does not mix with i32", 'cast the tensor first: .to("f32")', lambda: INTS + 0.5),
    ("+: 4294967296 does not fit i32", "cast the tensor to a wider type first", lambda: INTS + (1 << 32)),
    ("+: the number 2 does not mix with booleans", 'cast them first: .to("i32")', lambda: BOOLS + 2),
    ("+: a complex number does not mix with f32", 'cast the tensor first: .to("c64")', lambda: M + 1j),
    ("to: complex numbers do not become f32", None, lambda: COMPLEX.to("f32")),
    ("while_loop: there is no state", "while_loop(condition, body, *state)", lambda: smelt.while_loop(bool, bool)),
    ("concatenate: axes with names are given by name", None, lambda: smelt.concatenate([M, AB], 0)),
    ('concatenate: only one of the operands has an axis "b"', None, lambda: smelt.concatenate([AB, AC], "a")),
    ("concatenate: axis 1 has different sizes, 3 and 4", None, lambda: smelt.concatenate([M, made((2, 4))], 0)),
    ("concatenate: there is no tensor", None, lambda: smelt.concatenate([], 0)),
    ("outer: no such op 'nearly'", None, lambda: smelt.outer("nearly", V, W)),
    ("concatenate: the operands have different numbers of axes", None, lambda: smelt.concatenate([M, V], 0)),
    ("@: the batch axes differ", "name the axes, and use .dot",
     lambda: made((2, 5, 3, 4)) @ made((5, 4, 3))),
    ("@: batch axis 0 has different sizes, 2 and 5", None, lambda: made((2, 3, 4)) @ made((5, 4, 3))),
    ("conv: several batch axes, a, b", 'merge the others into one: .merge("a b", "n")',
     lambda: made((1, 1, 2, 6, 6), "a b c y x").conv(KERNEL, "y x")),
    ("unblock: unknown format 'q9'", None, lambda: unblock(made((2, 18), kind=np.uint8), "q9", "d")),
    ("unblock: q4_0 has blocks of 18 bytes along the last axis", None,
     lambda: unblock(made((2, 2, 17), kind=np.uint8), "q4_0", "d")),
    ("from_dlpack: an object without DLPack", "smelt.tensor(data)", lambda: smelt.from_dlpack(3)),
    ("no activation is called 'bend'", None, lambda: smelt.nn.activation("bend")),
    ("nn.Embedding: how many rows, and of what", "nn.Embedding(v=32000, d=4096)", lambda: smelt.nn.Embedding(v=3)),
    ("nn.LayerNorm: along which axes?", "nn.LayerNorm(d=768)", lambda: smelt.nn.LayerNorm()),
    ("nn.LSTM: the input and the state are two axes", "i=128, h=256", lambda: smelt.nn.LSTM(h=(3, 4))),
    ("scan: the step must return (carry, y)", "return carry, y; y may be None",
     lambda: smelt.scan(lambda carry, x: (carry, x, x), S, V, 0)),  # type: ignore[arg-type, return-value]
    ("scatter: unknown mode 'put'", None, lambda: V.scatter(made((2,), kind=np.int32), made((2,)), 0, how="put")),
    ("scatter: the updates need 1 axes", None, lambda: V.scatter(made((2,), kind=np.int32), M, 0)),
    ("chunk: into 0 chunks", "at least one", lambda: V.chunk(0, 0)),
    ("pad: axis 0 takes (before, after)", None, lambda: V.pad({0: (1, 2, 3, 4)})),
    ("pad: axis 0 takes (before, after)", None, lambda: V.pad({0: (1,)})),
    ("bits: integers hold bits, not f32", None, lambda: smelt.random.bits(smelt.random.key(1), "f32[2]")),
    ("uniform: floats, not i32", "smelt.random.integers", lambda: smelt.random.uniform(smelt.random.key(1), "i32[2]")),
    ("uniform: not for f8E5M2", None, lambda: smelt.random.uniform(smelt.random.key(1), "f8E5M2[2]")),
    ("integers: not for f32", '"i32[…]"', lambda: smelt.random.integers(smelt.random.key(1), "f32[2]", 0, 3)),
    ("integers: [3, 3) is no range of i8", None,
     lambda: smelt.random.integers(smelt.random.key(1), "i8[2]", 3, 3)),
    ("integers: [0, 129) is no range of i8", None,
     lambda: smelt.random.integers(smelt.random.key(1), "i8[2]", 0, 129)),
    ("integers: [-129, 0) is no range of i8", None,
     lambda: smelt.random.integers(smelt.random.key(1), "i8[2]", -129, 0)),
    ("named: '1b' is not a name for an axis", None, lambda: M.named("a 1b")),
    ("jvp: one tangent for each argument", None, lambda: smelt.jvp(lambda x: x, (V,), (V, V))),
    ("jvp: the tangents have another structure than the arguments", None,
     lambda: smelt.jvp(lambda x: x[0], ([V, V],), ([V],))),
    ("full: the value is not a scalar", None, lambda: smelt.full("f32[2]", V)),
    ("grad: the loss must be a real number", '.to("f32") or .real()', lambda: COMPLEX.sum().grad(COMPLEX)),
    ("grad: the loss must be a real number", '.to("f32") or .real()', lambda: V.sum().to("i32").grad(V)),
    ("grad: the loss must be a scalar", ".sum() or .mean(), or smelt.vjp with a cotangent", lambda: (V * 2).grad(V)),
    ("grad: the loss is a int, not a tensor", "return one scalar tensor", lambda: smelt.grad(lambda x: 3)(V)),
    ("nn.Linear: from which axis to which?", None, lambda: smelt.nn.Linear(c=3)),
    ("nn.Linear: from which axis to which?", None, lambda: smelt.nn.Linear()),
    ("nn.Linear: from which axis to which?", None, lambda: smelt.nn.Linear(c=3, o=(4, 5))),
    ("nn.Linear: from which axis to which?", None, lambda: smelt.nn.Linear(c=(3, 4, 5))),  # type: ignore[arg-type]
    ("nn.Linear: 0 axes with numbers follow the features", None, lambda: smelt.nn.Linear(c=3, o=4, y=3)),
]  # fmt: skip


@pytest.mark.parametrize(("message", "remedy", "call"), ROWS, ids=[row[0] for row in ROWS])
def test_refused(message: str, remedy: str | None, call: Callable[[], Any]) -> None:
    with pytest.raises(TensorError) as caught:
        call()
    assert caught.value.message.startswith(message)
    if remedy is not None:
        assert caught.value.remedy == remedy


def test_records_hold_what_the_text_says() -> None:
    """`record()`, which --json prints: operands, notes and the remedy; what is not there has no key."""
    with pytest.raises(TensorError) as caught:
        AB.dot(BC, (1, 0))
    record = caught.value.record()
    assert [each["label"] for each in record["operands"]] == ["left", "right"]
    assert "notes" not in record
    assert "counterexample" not in record
    with pytest.raises(TensorError) as caught:
        unblock(smelt.symbolic("ui8[f=8, n=2, bytes=18]"), "q4_7")
    assert "q4_0" in str(caught.value.record()["notes"])


def test_padding_by_name_leaves_other_axes_alone() -> None:
    image, kernel = made((1, 2, 6, 6), "b c y x"), made((3, 2, 3, 3), "o c y x")
    assert image.conv(kernel, "y x", padding={"y": (1, 1)}).shape.sizes == (1, 3, 6, 4)
    assert image.conv(kernel, "y x", padding={"x": (0, 1)}).shape.sizes == (1, 3, 4, 5)
    assert image.conv(kernel, "y x", strides={"y": 2}).shape.sizes == (1, 3, 2, 4)


def test_features_of_layers() -> None:
    from smelt.tensor.nn.sizes import features

    found, windows = features("Conv", {"c": (3, 8), "y": 5, "x": 7}, 2)
    assert (found.in_axis, found.in_size, found.out, found.out_size, found.inner) == ("c", 3, "c", 8, "c_out")
    assert windows == {"y": 5, "x": 7}
    found, windows = features("Conv", {"c": 3, "o": 8, "y": 5}, -1)
    assert (found.in_axis, found.in_size, found.out, found.out_size, found.inner) == ("c", 3, "o", 8, "o")
    assert windows == {"y": 5}
    with pytest.raises(TensorError, match="2 axes with numbers follow the features") as caught:
        features("Conv", {"c": 3, "o": 8, "y": 5}, 2)
    assert caught.value.remedy == "nn.Conv(c=3, o=64, y=3, x=3)"


def test_a_tensor_from_a_pickle_does_not_change() -> None:
    again = pickle.loads(pickle.dumps(made((2, 3), "a b") + 1))
    assert again.shape == smelt.Shape("f32", a=2, b=3)
    assert not again.numpy().flags.writeable
    assert again.numpy().tolist() == [[1, 1, 1], [1, 1, 1]]


def test_factors_of_rotary_positions() -> None:
    """Position p of pair i is turned by p · factor_i · base^(-2i/4)."""
    factors = (2.0, 0.5)
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    got = smelt.nn.RoPE(k=4, base=100.0, factors=factors)(smelt.tensor(x, "s k")).numpy()
    angles = np.arange(3)[:, None] * np.array(factors) * 100.0 ** (-np.array([0, 2]) / 4)
    a, b = x[:, :2].astype(np.float64), x[:, 2:].astype(np.float64)
    want = np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], 1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_only_axis_need_not_be_named() -> None:
    assert smelt.tensor(np.array([1, 5, 2])).argmax().item() == 1
    assert smelt.tensor(np.array([1, 5, 0])).argmin().item() == 2
    for call in (M.argmax, M.argmin, S.argmax):
        with pytest.raises(TensorError, match="along which axis"):
            call()


def test_remainders_and_quotients_have_the_sign_of_python() -> None:
    pairs = np.array([(x, y) for x in range(-6, 7) for y in (-3, -2, -1, 1, 2, 3)], np.int32)
    for kind in (np.int32, np.float64):
        x, y = (pairs[:, i].astype(kind) for i in (0, 1))
        np.testing.assert_array_equal((smelt.tensor(x) % smelt.tensor(y)).numpy(), np.remainder(x, y))
        np.testing.assert_array_equal((smelt.tensor(x) // smelt.tensor(y)).numpy(), np.floor_divide(x, y))


def test_a_closed_executable_and_the_cost_of_sizes_that_are_not_given() -> None:
    made = smelt.compile(lambda x: x * 2.0, "f32[n=N]", engine="reference")
    one, five = made.cost(), made.cost(N=5)
    assert (one.flops, one.bytes_accessed) == (1.0, 8.0)
    assert (five.flops, five.bytes_accessed) == (5.0, 40.0)
    made.close()
    made.close()
    with pytest.raises(smelt.SmeltError, match="the executable is closed"):
        made(np.zeros(3, np.float32))
