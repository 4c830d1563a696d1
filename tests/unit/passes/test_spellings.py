"""Composites in exported files: what is found, that every bit stays, and that the attributes are right.

The files in `tests/fixtures/spellings` are made by `tests/fixtures/make_spellings.py`; spellings of other exporters are
written here by hand. Results are compared with onnxruntime, composites with `composite_references`.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.ir.composites import COMPOSITES, decode
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.structure import same
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.recognise import recognise
from smelt.read.onnx.model import read
from tests import onnx_oracle
from tests.unit.passes.composite_references import Array, check_meanings

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper = onnx.helper

FILES = Path(__file__).parents[2] / "fixtures" / "spellings"
BLOCK = {"smelt.attention": 1}
TRANSFORMER = {"smelt.layer_norm": 3, "smelt.attention": 1, "smelt.gelu": 1}
LLAMA = {"smelt.rms_norm": 3, "smelt.attention": 1, "smelt.silu": 1}
QDQ = {"smelt.qdot": 3, "smelt.quantize": 3, "smelt.dequantize": 4}
EXPECTED: dict[str, dict[str, int]] = {
    "layer_norm": {"smelt.layer_norm": 1},
    "rms_norm": {"smelt.rms_norm": 1},
    "rms_norm_by_hand": {"smelt.rms_norm": 1},
    "gelu": {"smelt.gelu": 1},
    "gelu_tanh": {"smelt.gelu": 1},
    "silu": {"smelt.silu": 1},
    "hard_swish": {"smelt.hard_swish": 1},
    "attention": BLOCK,
    "attention_by_hand": BLOCK,
    "attention_causal": BLOCK,
    "attention_boolean": BLOCK,
    "attention_filled": BLOCK,
    "attention_grouped": BLOCK,
    "attention_cached": BLOCK,
    "encoder": {"smelt.attention": 1, "smelt.layer_norm": 2},
    "bert": TRANSFORMER,
    "gpt2": TRANSFORMER,
    "gpt2_eager": TRANSFORMER,
    "vit": TRANSFORMER,
    "llama": LLAMA,
    "llama_masked": LLAMA,
    "lstm": {"smelt.lstm": 1},
    "lstm_bidirectional": {"smelt.lstm": 2},
    "gru": {"smelt.gru": 1},
    "rnn": {"smelt.rnn": 1},
    "rnn.dynamo16": {},  # this exporter unrolls it
    "rnn.dynamo25": {},
    "quantised.qdq_u8_s8": QDQ,
    "quantised.qdq_u8_s8_channels": QDQ,
    "quantised.qdq_s8_s8_channels": QDQ,
    "quantised.qdq_u8_u8": QDQ,
    "quantised.qoperator_u8_s8": {"smelt.qdot": 3, "smelt.quantize": 1, "smelt.dequantize": 1},
    "quantised.qoperator_u8_s8_channels": {"smelt.qdot": 3, "smelt.quantize": 1, "smelt.dequantize": 1},
    "quantised.qoperator_s8_s8_channels": {"smelt.qdot": 3, "smelt.quantize": 1, "smelt.dequantize": 1},
    "quantised.qoperator_u8_u8": {"smelt.qdot": 3, "smelt.quantize": 1, "smelt.dequantize": 1},
    "quantised.dynamic_s8": {"smelt.qdot": 3, "smelt.quantize": 3},
    "quantised.dynamic_s8_channels": {"smelt.qdot": 3, "smelt.quantize": 3},
    "quantised.dynamic_u8": {"smelt.qdot": 3, "smelt.quantize": 3},
}
NAMES = sorted(path.name.removesuffix(".onnx") for path in FILES.glob("*.onnx"))


def expected(name: str) -> dict[str, int]:
    return EXPECTED[name] if name in EXPECTED else EXPECTED[name.partition(".")[0]]


def inputs_of(path: Path, seed: int) -> dict[str, Array]:
    """Random inputs; whole numbers are 0 or 1, so that they are tokens, masks and places alike."""
    generator = np.random.default_rng(seed)
    found = {}
    for port in onnx_oracle.session(path).get_inputs():
        sizes = [size if isinstance(size, int) else 3 for size in port.shape]
        if "float" in port.type:
            found[port.name] = generator.standard_normal(sizes).astype(np.float32)
        else:
            whole = generator.integers(0, 2, sizes)
            whole[..., 0] = 1
            found[port.name] = whole.astype(bool if "bool" in port.type else np.int64)
    return found


def both(path: Path) -> tuple[Program, Program, Any]:
    """The program without composites, the one with them, and the weights."""
    program, weights = read(path)
    plain, _ = pipeline.run(program, until="simplify")
    marked = recognise(pipeline.run(program, composites=COMPOSITES, until="simplify")[0])
    verify(marked)
    assert same(parse(print_program(marked)), marked)
    return plain, marked, weights


def counted(program: Program) -> dict[str, int]:
    return dict(Counter(op.attrs["name"] for op in program.main.body.ops if op.name == "stablehlo.composite"))


def arguments(program: Program, weights: Any, inputs: dict[str, Array]) -> list[Array]:
    found = []
    for attrs in program.main.arg_attrs:
        found.append(weights[attrs["smelt.weight"]].numpy() if "smelt.weight" in attrs else inputs[attrs["smelt.name"]])
    return found


def check(path: Path, wanted: dict[str, int], seed: int, tolerance: float = 2e-5) -> None:
    plain, marked, weights = both(path)
    assert counted(marked) == wanted
    inputs = inputs_of(path, seed)
    before = run(plain, arguments(plain, weights, inputs))
    after = run(marked, arguments(marked, weights, inputs))
    session = onnx_oracle.session(path)
    for old, new, other in zip(before, after, session.run(None, inputs), strict=True):
        np.testing.assert_array_equal(old, new)
        np.testing.assert_allclose(new, other, rtol=tolerance, atol=tolerance)
    check_meanings(marked, arguments(marked, weights, inputs))


@pytest.mark.parametrize("name", NAMES)
def test_exported_blocks_are_found_and_stay_the_same(name: str, seed: int) -> None:
    # onnxruntime multiplies quantised tensors as integers where the file says floats: a result between two
    # steps, of 0.0056 here, may go to the other one.
    check(FILES / f"{name}.onnx", expected(name), seed, 0.006 if name.startswith("quantised") else 2e-5)


def test_every_expectation_has_a_file() -> None:
    assert set(EXPECTED) <= {*NAMES, *(name.partition(".")[0] for name in NAMES)}
    assert sum(path.stat().st_size for path in FILES.glob("*.onnx")) < 300_000


# ---- spellings of tf2onnx, Paddle and older exporters, written by hand ----

HALF = "half = Constant <value = float {0.5}> ()\n one = Constant <value = float {1.0}> ()"
KERAS_LAYER_NORM = """
 mean = ReduceMean <axes = [2], keepdims = 1> (x)
 centred = Sub (x, mean)
 square = Mul (centred, centred)
 variance = ReduceMean <axes = [2], keepdims = 1> (square)
 epsilon = Constant <value = float {0.001}> ()
 wide = Add (variance, epsilon)
 root = Sqrt (wide)
 inverse = Reciprocal (root)
 factor = Mul (inverse, scale)
 left = Mul (x, factor)
 shift = Mul (mean, factor)
 right = Sub (bias, shift)
 y = Add (left, right)
"""
POW_LAYER_NORM = """
 mean = ReduceMean <axes = [-1], keepdims = 1> (x)
 centred = Sub (x, mean)
 two = Constant <value = float {2.0}> ()
 square = Pow (centred, two)
 variance = ReduceMean <axes = [-1], keepdims = 1> (square)
 epsilon = Constant <value = float {0.00001}> ()
 wide = Add (epsilon, variance)
 root = Sqrt (wide)
 normal = Div (centred, root)
 scaled = Mul (scale, normal)
 y = Add (bias, scaled)
"""
TF_GELU = """
 root = Constant <value = float {1.4142135}> ()
 inner = Div (x, root)
 wave = Erf (inner)
 more = Add (one, wave)
 part = Mul (half, x)
 y = Mul (part, more)
"""
OTHER_GELU = """
 root = Constant <value = float {0.70710678}> ()
 inner = Mul (root, x)
 wave = Erf (inner)
 more = Add (wave, one)
 gate = Mul (more, half)
 y = Mul (gate, x)
"""
TF_GELU_TANH = """
 three = Constant <value = float {3.0}> ()
 cubic = Pow (x, three)
 small = Constant <value = float {0.044715}> ()
 part = Mul (small, cubic)
 total = Add (x, part)
 root = Constant <value = float {0.7978846}> ()
 inner = Mul (root, total)
 wave = Tanh (inner)
 more = Add (one, wave)
 gate = Mul (half, more)
 y = Mul (x, gate)
"""
HARD_SWISH = """
 three = Constant <value = float {3.0}> ()
 zero = Constant <value = float {0.0}> ()
 six = Constant <value = float {6.0}> ()
 shifted = Add (x, three)
 held = Clip (shifted, zero, six)
 product = Mul (x, held)
 y = Div (product, six)
"""
HARD_SWISH_RELU = """
 three = Constant <value = float {3.0}> ()
 six = Constant <value = float {6.0}> ()
 shifted = Add (three, x)
 positive = Relu (shifted)
 held = Min (positive, six)
 sixth = Constant <value = float {0.16666667}> ()
 gate = Mul (held, sixth)
 y = Mul (gate, x)
"""
HARD_SWISH_SIGMOID = " gate = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)\n y = Mul (x, gate)"
SILU = " gate = Sigmoid (x)\n y = Mul (gate, x)"
SILU_DIVIDED = " minus = Neg (x)\n power = Exp (minus)\n total = Add (power, one)\n y = Div (x, total)"
SOFTMAX = """
 most = ReduceMax <axes = [-1], keepdims = 1> (x)
 less = Sub (x, most)
 powers = Exp (less)
 axes = Constant <value = int64[1] {-1}> ()
 total = ReduceSum <keepdims = 1> (powers, axes)
 y = Div (powers, total)
"""
SOFTMAX_RECIPROCAL = SOFTMAX.replace("y = Div (powers, total)", "part = Reciprocal (total)\n y = Mul (part, powers)")
ACTIVATIONS: dict[str, tuple[str, str, dict[str, int]]] = {
    "Keras' layer norm": (KERAS_LAYER_NORM, "float[8] scale, float[8] bias", {"smelt.layer_norm": 1}),
    "layer norm by powers": (POW_LAYER_NORM, "float[8] scale, float[8] bias", {"smelt.layer_norm": 1}),
    "tf.nn.gelu": (TF_GELU, "", {"smelt.gelu": 1}),
    "gelu, half last": (OTHER_GELU, "", {"smelt.gelu": 1}),
    "tf.nn.gelu, approximate": (TF_GELU_TANH, "", {"smelt.gelu": 1}),
    "hard swish by clip": (HARD_SWISH, "", {"smelt.hard_swish": 1}),
    "hard swish by relu": (HARD_SWISH_RELU, "", {"smelt.hard_swish": 1}),
    "hard swish by hard sigmoid": (HARD_SWISH_SIGMOID, "", {"smelt.hard_swish": 1}),
    "swish": (SILU, "", {"smelt.silu": 1}),
    "swish, divided": (SILU_DIVIDED, "", {"smelt.silu": 1}),
    "softmax": (SOFTMAX, "", {"smelt.softmax": 1}),
    "softmax by a reciprocal": (SOFTMAX_RECIPROCAL, "", {"smelt.softmax": 1}),
}


def written(folder: Path, inputs: str, body: str, opset: int = 13) -> Path:
    text = f'<ir_version: 7, opset_import: ["" : {opset}]>\nblock ({inputs}) => (float[] y) {{\n{HALF}\n{body}\n}}'
    model = onnx.parser.parse_model(text)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = folder / "block.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_blocks_written_by_hand(name: str, seed: int, tmp_path: Path) -> None:
    body, more, wanted = ACTIVATIONS[name]
    inputs = ", ".join(each for each in ("float[2, 3, 8] x", more) if each)
    check(written(tmp_path, inputs, body), wanted, seed)


HEADS = "float[2, 3, 2, 4] q, float[2, 5, 2, 4] k, float[2, 5, 2, 6] v"
EINSUM = """
 scores = Einsum <equation = "btnh,bfnh->bnft"> (k, q)
 size = Constant <value = float {0.5}> ()
 scaled = Mul (scores, size)
 weights = Softmax <axis = -1> (scaled)
 y = Einsum <equation = "bnft,btnh->bfnh"> (weights, v)
"""
KERAS = """
 size = Constant <value = float {0.5}> ()
 scaled = Mul (q, size)
 scores = Einsum <equation = "aecd,abcd->acbe"> (k, scaled)
 tall = Unsqueeze (mask, axis)
 less = Sub (one, tall)
 low = Constant <value = float {-1000000000.0}> ()
 added = Mul (less, low)
 masked = Add (scores, added)
 weights = Softmax <axis = 3> (masked)
 y = Einsum <equation = "acbe,aecd->abcd"> (weights, v)
"""
FLAT = """
 qt = Transpose <perm = [0, 2, 1, 3]> (q)
 kt = Transpose <perm = [0, 2, 1, 3]> (k)
 vt = Transpose <perm = [0, 2, 1, 3]> (v)
 qs = Constant <value = int64[3] {4, 3, 4}> ()
 ks = Constant <value = int64[3] {4, 5, 4}> ()
 vs = Constant <value = int64[3] {4, 5, 6}> ()
 qf = Reshape (qt, qs)
 kf = Reshape (kt, ks)
 vf = Reshape (vt, vs)
 kx = Transpose <perm = [0, 2, 1]> (kf)
 product = MatMul (qf, kx)
 apart = Constant <value = int64[4] {2, 2, 3, 5}> ()
 four = Reshape (product, apart)
 two = Constant <value = float {2.0}> ()
 scaled = Div (four, two)
 masked = Add (mask, scaled)
 together = Constant <value = int64[3] {4, 3, 5}> ()
 three = Reshape (masked, together)
 weights = Softmax <axis = 2> (three)
 product2 = MatMul (weights, vf)
 ys = Constant <value = int64[4] {2, 2, 3, 6}> ()
 heads = Reshape (product2, ys)
 turned = Transpose <perm = [0, 2, 1, 3]> (heads)
 last = Constant <value = int64[3] {2, 3, 12}> ()
 y = Reshape (turned, last)
"""
TWO_MASKS = """
 qt = Transpose <perm = [0, 2, 1, 3]> (q)
 kt = Transpose <perm = [0, 2, 3, 1]> (k)
 vt = Transpose <perm = [0, 2, 1, 3]> (v)
 scores = MatMul (qt, kt)
 two = Constant <value = float {2.0}> ()
 scaled = Div (scores, two)
 low = Constant <value = float {-10000.0}> ()
 hidden = Where (seen, scaled, low)
 masked = Add (hidden, mask)
 weights = Softmax <axis = -1> (masked)
 y = MatMul (weights, vt)
"""
ATTENTIONS: dict[str, tuple[str, str, int]] = {
    "einsums": (EINSUM, HEADS, 13),
    "Keras' MultiHeadAttention": (
        f"axis = Constant <value = int64[2] {{1, 2}}> ()\n{KERAS}",
        f"{HEADS}, float[2, 5] mask",
        13,
    ),
    "batches of heads, apart for the mask": (FLAT, f"{HEADS}, float[2, 1, 3, 5] mask", 13),
    "a mask selected and one added": (TWO_MASKS, f"{HEADS}, bool[1, 1, 3, 5] seen, float[2, 1, 1, 5] mask", 13),
    "a softmax over what was flattened": (EINSUM.replace("axis = -1", "axis = 3"), HEADS, 12),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_written_by_hand(name: str, seed: int, tmp_path: Path) -> None:
    body, inputs, opset = ATTENTIONS[name]
    check(written(tmp_path, inputs, body, opset), {"smelt.attention": 1}, seed)


def test_a_scale_that_others_use_stays_outside(seed: int, tmp_path: Path) -> None:
    body = EINSUM.replace("(k, q)", "(k, more)").replace("scaled)", "scores)").replace("y =", "z =")
    body = f"more = Mul (q, half)\n{body}\n sum = ReduceSum <keepdims = 0> (more)\n y = Add (z, sum)"
    check(written(tmp_path, HEADS, body), {"smelt.attention": 1}, seed)


# ---- quantised products written by hand ----

DYNAMIC = """
 bytes, scale, zero = DynamicQuantizeLinear (x)
 product = MatMulInteger (bytes, w, zero, point)
 real = Cast <to = 1> (product)
 both = Mul (scale, factor)
 scaled = Mul (real, both)
 y = Add (bias, scaled)
"""
SHARED = """
 zero = Constant <value = uint8 {128}> ()
 small = Constant <value = float {0.02}> ()
 bytes = QuantizeLinear (x, small, zero)
 real = DequantizeLinear (bytes, small, zero)
 left = DequantizeLinear <axis = 1> (w, factor, point)
 right = DequantizeLinear <axis = 0> (u, factor2, point2)
 turned = Transpose <perm = [1, 0]> (right)
 a = MatMul (real, left)
 b = MatMul (real, turned)
 y = Add (a, b)
"""


def test_dynamic_quantised_matmul_with_channel_scales_and_bias(seed: int, tmp_path: Path) -> None:
    inputs = "float[3, 8] x, int8[8, 5] w, int8[5] point, float[5] factor, float[5] bias"
    path = written(tmp_path, inputs, DYNAMIC)
    plain, marked, weights = both(path)
    assert counted(marked) == {"smelt.quantize": 1, "smelt.qdot": 1}
    (op,) = (each for each in marked.main.body.ops if each.attrs.get("name") == "smelt.qdot")
    assert decode(op)["operands"] == "lhs rhs lhs_zero rhs_zero scale bias"
    assert decode(op)["layout"] == "mk,kn,,n,n,n->mn"
    generator = np.random.default_rng(seed)
    given: dict[str, Array] = {
        "x": generator.standard_normal((3, 8)).astype(np.float32),
        "w": generator.integers(-128, 128, (8, 5)).astype(np.int8),
        "point": generator.integers(-9, 9, 5).astype(np.int8),
        "factor": generator.uniform(0.01, 0.1, 5).astype(np.float32),
        "bias": generator.standard_normal(5).astype(np.float32),
    }
    args = arguments(marked, weights, given)
    np.testing.assert_array_equal(run(plain, args)[0], run(marked, args)[0])
    check_meanings(marked, args)


def test_one_quantised_tensor_in_two_matmuls(seed: int, tmp_path: Path) -> None:
    inputs = (
        "float[3, 8] x, int8[8, 5] w, int8[5] point, float[5] factor, int8[5, 8] u, int8[5] point2, float[5] factor2"
    )
    path = written(tmp_path, inputs, SHARED)
    plain, marked, weights = both(path)
    assert counted(marked) == {"smelt.quantize": 1, "smelt.qdot": 2}
    generator = np.random.default_rng(seed)
    given: dict[str, Array] = {
        "x": generator.standard_normal((3, 8)).astype(np.float32),
        **{
            name: generator.integers(-128, 128, sizes).astype(np.int8) for name, sizes in (("w", (8, 5)), ("u", (5, 8)))
        },
        **{name: generator.integers(-9, 9, 5).astype(np.int8) for name in ("point", "point2")},
        **{name: generator.uniform(0.01, 0.1, 5).astype(np.float32) for name in ("factor", "factor2")},
    }
    args = arguments(marked, weights, given)
    np.testing.assert_array_equal(run(plain, args)[0], run(marked, args)[0])
    check_meanings(marked, args)
    session = onnx_oracle.session(path)
    np.testing.assert_allclose(run(marked, args)[0], session.run(None, given)[0], rtol=2e-5, atol=2e-5)


# ---- Paddle's files, with dynamic dimensions ----

PADDLE = {
    "ch_PP-OCRv4_det_infer": {"smelt.hard_swish": 24},
    "ch_PP-OCRv4_rec_infer": {
        "smelt.hard_swish": 28,
        "smelt.silu": 7,
        "smelt.layer_norm": 5,
        "smelt.attention": 2,
        "smelt.softmax": 1,
    },
    "ch_ppocr_mobile_v2.0_cls_infer": {"smelt.hard_swish": 18, "smelt.softmax": 1},
}


def paddle_file(name: str) -> Path:
    """A model inside a package that need not be importable."""
    found = find_spec("rapidocr_onnxruntime")
    if found is None or found.origin is None:
        pytest.skip("rapidocr-onnxruntime is not installed")
    return Path(found.origin).parent / "models" / f"{name}.onnx"


@pytest.mark.parametrize("name", PADDLE)
def test_paddle_exports(name: str) -> None:
    _, marked, _ = both(paddle_file(name))
    assert counted(marked) == PADDLE[name]


def test_symbolic_size_expressions_keep_every_bit(seed: int) -> None:
    plain, marked, weights = both(paddle_file("ch_PP-OCRv4_rec_infer"))
    image = np.random.default_rng(seed).standard_normal((1, 3, 48, 32)).astype(np.float32)
    (name,) = (attrs["smelt.name"] for attrs in plain.main.arg_attrs if "smelt.weight" not in attrs)
    before, after = (run(each, arguments(each, weights, {name: image})) for each in (plain, marked))
    np.testing.assert_array_equal(before[0], after[0])
    check_meanings(marked, arguments(marked, weights, {name: image}))


# ---- onnxruntime's own operators ----


def contributed(folder: Path, operator: str, inputs: dict[str, tuple[int, list[int]]], **attributes: Any) -> Path:
    node = helper.make_node(operator, list(inputs), ["y"], domain="com.microsoft", **attributes)
    ports = [helper.make_tensor_value_info(name, kind, sizes) for name, (kind, sizes) in inputs.items() if name]
    graph = helper.make_graph([node], "block", ports, [helper.make_tensor_value_info("y", 1, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "block.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


CONTRIBUTED: dict[str, tuple[dict[str, tuple[int, list[int]]], dict[str, Any]]] = {
    "Attention": (
        {"x": (1, [2, 3, 8]), "w": (1, [8, 24]), "b": (1, [24]), "mask": (6, [2, 3])},
        {"num_heads": 2, "unidirectional": 1},
    ),
    "MultiHeadAttention": (
        {"q": (1, [2, 3, 8]), "k": (1, [2, 5, 8]), "v": (1, [2, 5, 8]), "b": (1, [24])},
        {"num_heads": 2},
    ),
}


@pytest.mark.parametrize("operator", CONTRIBUTED)
def test_attention_of_onnxruntime(operator: str, seed: int, tmp_path: Path) -> None:
    inputs, attributes = CONTRIBUTED[operator]
    path = contributed(tmp_path, operator, inputs, **attributes)
    generator = np.random.default_rng(seed)
    given: dict[str, Array] = {}
    for name, (kind, sizes) in inputs.items():
        floats = generator.standard_normal(sizes).astype(np.float32)
        given[name] = floats if kind == 1 else np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    plain, marked, weights = both(path)
    assert counted(marked) == {"smelt.attention": 1}
    before, after = (run(each, arguments(each, weights, given))[0] for each in (plain, marked))
    np.testing.assert_array_equal(before, after)
    check_meanings(marked, arguments(marked, weights, given))
    session = onnx_oracle.session(path)
    np.testing.assert_allclose(after, session.run(None, given)[0], rtol=2e-5, atol=2e-5)


RECURRENT: dict[str, tuple[int, dict[str, Any], list[str]]] = {
    "LSTM": (4, {"activations": ["Sigmoid", "Tanh", "Relu"], "clip": 0.7, "direction": "reverse"}, ["h", "c", "p"]),
    "GRU": (3, {"linear_before_reset": 1, "direction": "reverse"}, ["h"]),
    "RNN": (1, {"activations": ["Relu"]}, ["h"]),
}


@pytest.mark.parametrize("operator", RECURRENT)
@pytest.mark.parametrize("lengths", [False, True])
def test_recurrence_with_every_input(operator: str, lengths: bool, seed: int, tmp_path: Path) -> None:
    gates, attributes, states = RECURRENT[operator]
    sizes = {"x": [5, 2, 3], "w": [1, gates * 4, 3], "r": [1, gates * 4, 4], "b": [1, gates * 8]}
    sizes |= {"n": [2], "h": [1, 2, 4], "c": [1, 2, 4], "p": [1, 12]}
    names = ["x", "w", "r", "b", "n" if lengths else "", *states]
    node = helper.make_node(operator, names, ["y"], hidden_size=4, **attributes)
    kept = [name for name in names if name]
    ports = [helper.make_tensor_value_info(name, 6 if name == "n" else 1, sizes[name]) for name in kept]
    graph = helper.make_graph([node], "block", ports, [helper.make_tensor_value_info("y", 1, None)])
    path = tmp_path / "block.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    generator = np.random.default_rng(seed)
    given = {name: generator.standard_normal(sizes[name]).astype(np.float32) for name in kept}
    if lengths:
        given["n"] = np.array([5, 3], np.int32)
    plain, marked, weights = both(path)
    assert counted(marked) == {f"smelt.{operator.lower()}": 1}
    before, after = (run(each, arguments(each, weights, given))[0] for each in (plain, marked))
    np.testing.assert_array_equal(before, after)
    check_meanings(marked, arguments(marked, weights, given))
    session = onnx_oracle.session(path)
    np.testing.assert_allclose(after, session.run(None, given)[0], rtol=2e-5, atol=2e-5)
