"""`smelt.attention` and its layouts: the op means what JAX computes, and nothing that does not fit is accepted."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from smelt.dim import symbol
from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.composites import encode
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.layouts import parse, sizes_of
from smelt.ir.text import parse as parse_program
from smelt.ir.text import print_program
from smelt.shape import Shape

SAID: dict[str, Any] = {
    "operands": "q k v",
    "layout": "bqhgd,bkhd,bkhe->bqhge",
    "scale": 0.5,
    "softcap": 0.0,
    "fill": (),
    "guarded": 0,
}


def program(shapes: list[Shape], result: Shape, **said: Any) -> Program:
    f = FuncBuilder("main", shapes)
    attributes = encode("smelt.attention", SAID | said)
    op = f.op("smelt.attention", *f.args, composite_attributes=attributes, width=8, result=result)
    return Program.of(f.func(op.result))


def test_it_is_attention(seed: int) -> None:
    """Four heads of queries share two of keys."""
    random = np.random.default_rng(seed)
    q, k, v = (random.standard_normal(sizes).astype(np.float32) for sizes in ((2, 3, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8)))
    seen = random.random((2, 1, 3, 5)) < 0.7
    seen[..., 0] = True
    want = jax.nn.dot_product_attention(q, k, v, mask=seen, scale=0.5)
    shapes = [Shape("f32", 2, 3, 2, 2, 8), Shape("f32", 2, 5, 2, 8), Shape("f32", 2, 5, 2, 8), Shape("i1", 2, 1, 3, 5)]
    made = program(
        shapes,
        Shape("f32", 2, 3, 2, 2, 8),
        operands="q k v where",
        layout="bqhgd,bkhd,bkhe,b.qk->bqhge",
        fill=(-np.inf,),
    )
    (got,) = run(parse_program(print_program(made)), [q.reshape(2, 3, 2, 2, 8), k, v, seen])
    np.testing.assert_allclose(got.reshape(q.shape), want, rtol=1e-5, atol=1e-6)


def test_rows_without_a_key() -> None:
    """They are nan, or zeros where that is said; without any key a sum over nothing is zero."""
    shapes = [Shape("f32", 2, 4), Shape("f32", 3, 4), Shape("f32", 3, 4), Shape("f32", 2, 3)]
    masked: dict[str, Any] = {"operands": "q k v add", "layout": "qd,kd,ke,qk->qe"}
    args = [np.ones(sizes, np.float32) for sizes in ((2, 4), (3, 4), (3, 4))]
    mask = np.array([[0, 0, 0], [-np.inf] * 3], np.float32)
    (got,) = run(program(shapes, Shape("f32", 2, 4), **masked), [*args, mask])
    np.testing.assert_array_equal(got, [[1] * 4, [np.nan] * 4])
    (got,) = run(program(shapes, Shape("f32", 2, 4), **masked, guarded=1), [*args, mask])
    np.testing.assert_array_equal(got, [[1] * 4, [0] * 4])
    none = [Shape("f32", 2, 4), Shape("f32", 0, 4), Shape("f32", 0, 4)]
    empty = np.ones((0, 4), np.float32)
    (got,) = run(program(none, Shape("f32", 2, 4), layout="qd,kd,ke->qe"), [args[0], empty, empty])
    np.testing.assert_array_equal(got, np.zeros((2, 4)))


WRONG: dict[str, dict[str, Any]] = {
    "no arrow": {"layout": "qd,kd,ke"},
    "a letter twice": {"layout": "qq,kd,ke->qe"},
    "an open parenthesis": {"layout": "(qd,kd,ke->qe"},
    "too few words": {"layout": "qd,kd->qe"},
    "sizes that differ": {"layout": "qd,dk,ke->qe"},
    "two letters for keys": {"layout": "qd,kd,me->qe"},
    "a depth of values": {"layout": "qd,kd,kd->qe"},
    "two letters for depths": {"layout": "(qc)d,kd,ke->qe"},
    "a depth that keys lack": {"layout": "qd,kc,ke->qe"},
    "keys that the result shows": {"layout": "qd,kd,ke->ke"},
    "values that nothing shows": {"layout": "qd,kd,ke->qd"},
    "one letter for queries and keys": {"layout": "kd,kd,ke->ke"},
    "another role": {"operands": "q v k"},
    "a fill for no mask": {"fill": (1.0,)},
}


@pytest.mark.parametrize("said", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(said: dict[str, Any]) -> None:
    shapes = [Shape("f32", 2, 4), Shape("f32", 3, 4), Shape("f32", 3, 5)]
    program(shapes, Shape("f32", 2, 5), layout="qd,kd,ke->qe")
    with pytest.raises(VerifyError):
        program(shapes, Shape("f32", 2, 5), **{"layout": "qd,kd,ke->qe", **said})


@pytest.mark.parametrize("layout", ["qcd,kcd,ke->qe", "qd,kmd,kme->qe", "qd,kd,kef->qef"])
def test_one_depth_one_key_and_one_value(layout: str) -> None:
    """Sizes fit, but two letters are summed over in the same place, or shown of the values."""
    sizes = {"q": 2, "d": 4, "c": 6, "k": 3, "m": 7, "e": 5, "f": 8}
    *shapes, result = (Shape("f32", *map(sizes.__getitem__, word)) for word in layout.replace("->", ",").split(","))
    with pytest.raises(VerifyError, match="layout"):
        program(shapes, result, layout=layout)


def test_a_mask_that_chooses_is_boolean() -> None:
    shapes = [Shape("f32", 2, 4), Shape("f32", 3, 4), Shape("f32", 3, 5), Shape("f32", 3)]
    with pytest.raises(VerifyError, match="booleans"):
        program(shapes, Shape("f32", 2, 5), layout="qd,kd,ke,k->qe", operands="q k v where", fill=(0.0,))


def test_sizes_of_letters() -> None:
    words, last = parse("(bh)q.d,bh(kd)->qb") or ((), ())
    assert words == (("bh", "q", "", "d"), ("b", "h", "kd"))
    assert last == ("q", "b")
    batch = symbol("B")
    pairs = [(words[0], (3 * batch, 5, 1, 4)), (words[1], (batch, 3, 28)), (last, (5, batch))]
    assert sizes_of(pairs) == {"b": batch, "h": 3, "q": 5, "d": 4, "k": 7}
    assert sizes_of(pairs[:1]) is None, "b and h are not known apart"
    assert sizes_of([*pairs[:2], (last, (5, 7))]) is None
