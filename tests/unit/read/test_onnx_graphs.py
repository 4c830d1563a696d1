"""Sequences, optionals, loops and branches: what small graphs give, beside onnxruntime, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from smelt.engine.reference import ReferenceEngine
from smelt.errors import ParseError, ShapeError, SmeltError, UnsupportedError
from smelt.read.onnx import read
from tests import onnx_oracle

HEAD = '<ir_version: 8, opset_import: ["" : {version}, "ai.onnx.ml" : 3]>\ng ({inputs}) => ({outputs}) {{\n{body}\n}}'
X = "float[4] x"


def save(folder: Path, body: str, inputs: str = X, outputs: str = "float[n] y", version: int = 18) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD.format(version=version, inputs=inputs, outputs=outputs, body=body)), path)
    return path


TWO = "s = SequenceConstruct (x, x)\n"
PLACE = "p = Constant <value_int: int = {}> ()\n"
OUTSIDE = "a place outside the sequence"
JOIN = "\ny = ConcatFromSequence <axis = 0> (t)"
REFUSED: list[tuple[type[SmeltError], str, str, dict[str, Any]]] = [
    *((ShapeError, OUTSIDE, TWO + PLACE.format(at) + "y = SequenceAt (s, p)", {}) for at in (2, -3)),
    *((ShapeError, OUTSIDE, TWO + PLACE.format(at) + "t = SequenceErase (s, p)" + JOIN, {}) for at in (2, -3)),
    *((ShapeError, OUTSIDE, TWO + PLACE.format(at) + "t = SequenceInsert (s, x, p)" + JOIN, {}) for at in (3, -3)),
    (UnsupportedError, "ConcatFromSequence needs a sequence of tensors",
     "s = SequenceEmpty ()\ny = ConcatFromSequence <axis = 0> (s)", {}),
    (UnsupportedError, "ConcatFromSequence needs a sequence of tensors",
     'w = Constant <value_strings: strings = ["a"]> ()\ns = SequenceConstruct (x, w)\n'
     "y = ConcatFromSequence <axis = 0> (s)", {}),
    (UnsupportedError, "CastLike takes tensors", TWO + "y = CastLike (s, x)", {}),
    (UnsupportedError, "CastLike takes tensors", TWO + "y = CastLike (x, s)", {}),
    (UnsupportedError, "Cast takes a tensor", TWO + "y = Cast <to = 1> (s)", {}),
    (UnsupportedError, "Equal compares tensors", TWO + "z = Equal (s, x)\ny = Cast <to = 1> (z)", {}),
    (UnsupportedError, "input 'A' must be a tensor", TWO + "y = Add (s, x)", {}),
    (ParseError, "Scan: attribute 'num_scan_inputs'",
     "y = Scan <num_scan_inputs = 0, body = b (float[1] a) => (float[1] d) { d = Identity (a) }> (x)", {}),
    (ParseError, "Scan: attribute 'num_scan_inputs'",
     "y = Scan <num_scan_inputs = 2, body = b (float[1] a) => (float[1] d) { d = Identity (a) }> (x)", {}),
    (UnsupportedError, "Scan before opset 9: input 'sequence_lens'",
     "n = Constant <value_ints: ints = [1]> ()\ny = Scan <num_scan_inputs = 1, body = b (float a) => (float d) "
     "{ d = Identity (a) }> (n, x)", {"version": 8, "inputs": "float[1,4] x"}),
    (UnsupportedError, "Scan before opset 9 over a batch that is not fixed",
     "y = Scan <num_scan_inputs = 1, body = b (float a) => (float d) { d = Identity (a) }> (, x)",
     {"version": 8, "inputs": "float[N,4] x"}),
    (ParseError, "the model imports no operators of 'com.other'", "y = com.other.Add (x, x)", {}),
    (SmeltError, "unknown operator ai.onnx.Sillu", "y = Sillu (x)", {}),
    (SmeltError, "input 'cond' must be known at compile time",
     "y = If (c) <then_branch = a () => (float[n] p) { p = Identity (x) }, "
     "else_branch = b () => (double[n] q) { q = Cast <to = 11> (x) }>", {"inputs": "float[4] x, bool c"}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "body", "more"), REFUSED, ids=[row[1][-50:] for row in REFUSED])
def test_refused(error: type[SmeltError], message: str, body: str, more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        read(save(tmp_path, body, **more))
    assert caught.value.remedy


SCAN = "body = b (float[m] s, float[m] a) => (float[m] t, float[m] d) { t = Add (s, a)  d = Mul (s, a) }"
RUNS: list[tuple[str, dict[str, Any]]] = [
    *((TWO + PLACE.format(at) + "t = SequenceInsert (s, z, p)\ny = ConcatFromSequence <axis = 0> (t)",
       {"inputs": "float[4] x, float[4] z"}) for at in (0, 1, 2, -1, -2)),
    *(("s = SequenceConstruct (x, z)\n" + PLACE.format(at) + "y = SequenceAt (s, p)",
       {"inputs": "float[4] x, float[4] z"}) for at in (0, 1, -1, -2)),
    *(("s = SequenceConstruct (x, z, x)\n" + PLACE.format(at) +
       "t = SequenceErase (s, p)\ny = ConcatFromSequence <axis = 0, new_axis = 1> (t)",
       {"inputs": "float[4] x, float[4] z"}) for at in (0, 1, -1)),
    ("s = SequenceConstruct (x, z, x)\nt = SequenceErase (s)\ny = ConcatFromSequence <axis = 1, new_axis = 1> (t)",
     {"inputs": "float[4] x, float[4] z"}),
    ("s = SplitToSequence <axis = 0> (x)\nl = SequenceLength (s)\ny = Cast <to = 1> (l)", {}),
    (PLACE.format(3) + "s = SplitToSequence <axis = 0> (x, p)\nl = SequenceLength (s)\nf = Cast <to = 1> (l)\n"
     "z = ConcatFromSequence <axis = 0> (s)\ny = Add (f, z)", {}),
    ("s = SplitToSequence <axis = 1, keepdims = 0> (x)\ny = ConcatFromSequence <axis = 0> (s)",
     {"inputs": "float[2,2] x"}),
    *((f"u, y = Scan <num_scan_inputs = 1, {more}{SCAN}> (z, x)",
       {"inputs": "float[2] z, float[3,2] x", "outputs": "float[n] u, float[n,m] y"})
      for more in ("", "scan_input_directions = [1], ", "scan_output_directions = [1], ", "scan_output_axes = [1], ",
                   "scan_output_axes = [-1], ")),
    (f"u, y = Scan <num_scan_inputs = 1, scan_input_axes = [-1], {SCAN}> (z, x)",
     {"inputs": "float[3] z, float[3,2] x", "outputs": "float[n] u, float[n,m] y"}),
    ("y = If (c) <then_branch = a () => (float[n] p) { p = Identity (x) }, "
     "else_branch = b () => (float[n] q) { q = Neg (x) }>", {"inputs": "float[4] x, bool c"}),
    ("o = Optional (x)\nh = OptionalHasElement (o)\nf = Cast <to = 1> (h)\ng = OptionalGetElement (o)\n"
     "y = Add (f, g)", {}),
    *((f"k = Constant <value_int: int = {count}> ()\n"
       "u, y = Loop <body = b (int64 i, bool g, float[4] s) => (bool h, float[4] r, float[4] d) "
       "{ h = Identity (g)  r = Add (s, s)  f = Cast <to = 1> (i)  d = Mul (r, f) }> (k, , x)",
       {"outputs": "float[n] u, float[n,m] y"}) for count in (0, 1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("body", "more"), RUNS)
def test_as_onnxruntime(body: str, more: dict[str, Any], tmp_path: Path) -> None:
    path = save(tmp_path, body, **more)
    rng = np.random.default_rng(3)
    given: dict[str, Any] = {}
    for port in onnx.load(path).graph.input:
        sizes = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        given[port.name] = np.array(False) if port.name == "c" else rng.integers(-4, 5, sizes).astype(np.float32)
    program, weights = read(path)
    found = ReferenceEngine().compile(program).prepare(weights)(*given.values())
    for have, want in zip(found, onnx_oracle.session(path).run(None, given), strict=True):
        np.testing.assert_array_equal(np.asarray(have), want)
        assert np.asarray(have).shape == np.shape(want)
