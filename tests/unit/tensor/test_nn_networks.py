"""Llama, BERT, ViT, U-Net and Whisper written with `nn`: proven whole without data, and right against Hugging Face's.

The networks are in networks.py; weights and results of Hugging Face's models in tests/fixtures/layers.npz.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import dim
from smelt.dtype import dtype
from smelt.ir.core import Program, walk
from smelt.ir.verify import verify
from smelt.passes.recognise import recognise
from smelt.shape import Shape
from smelt.tensor import check, engine, proving, record, trace
from smelt.tensor.model import build, parameters_of
from tests.unit.tensor.networks import Bert, Llama, UNet, ViT, Whisper
from tests.unit.tensor.test_nn import load_recording


def composites(program: Program) -> Counter[str]:
    """How often each composite is recognised."""
    found = recognise(program)
    return Counter(op.attrs["name"] for op in walk(found.main.body) if op.name == "stablehlo.composite")


# ---- proofs ----

NUMBERS: dict[str, Any] = {"llama": Llama(), "bert": Bert(), "vit": ViT(), "unet": UNet(), "whisper": Whisper()}
SYMBOLS: dict[str, Any] = {
    "llama": Llama(v="V", d="D", f="F", heads="H", kv_heads="G", head_size="2*K"),
    "bert": Bert(v="V", d="D", f="F", heads="H", longest="L"),
    "vit": ViT(d="D", f="F", heads="N", n="C"),
    "whisper": Whisper(v="V", d="D", f="F", heads="H"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_networks_are_proven_for_all_batches_and_lengths(name: str):
    outcome = check(NUMBERS[name].forward)
    assert outcome.errors == ()
    assert outcome.path_count == 1
    assert outcome.traced is not None
    verify(outcome.traced.program)
    weights = [leaf.name for leaf in outcome.traced.leaves if leaf.weight]
    assert set(weights) == set(parameters_of(NUMBERS[name]))


@pytest.mark.parametrize("name", SYMBOLS)
def test_networks_are_proven_for_all_widths_too(name: str):
    outcome = check(SYMBOLS[name].forward)
    assert outcome.errors == ()
    assert outcome.traced is not None


def test_results_have_the_shapes_they_should():
    assert str(trace(NUMBERS["llama"].forward).results.shape) == "f32[b=B, s=S, v=32]"
    assert [str(each.shape) for each in trace(NUMBERS["bert"].forward).results] == [
        "f32[b=B, s=S, d=16]",
        "f32[b=B, d=16]",
    ]
    assert str(trace(NUMBERS["vit"].forward).results.shape) == "f32[b=B, n=10]"
    assert str(trace(SYMBOLS["llama"].forward).results.shape) == "f32[b=B, s=S, v=V]"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("llama", "model.layers.1.self_attn.o_proj.weight"),
        ("bert", "encoder.layer.0.output.dense.weight"),
        ("vit", "blocks.1.norm2.weight"),
        ("unet", "up.0.conv1.weight"),
        ("whisper", "decoder.layers.0.encoder_attn.k_proj.weight"),
    ],
)
def test_a_wrong_weight_anywhere_is_refused(name: str, part: str):
    """A size of one weight is changed: the network is not proven any more."""
    model = NUMBERS[name]
    old = model.at(part).shape
    sizes = (
        (*old.sizes[:-1], old.sizes[-1] + 1) if len(old.sizes) < 3 else (old.sizes[0], old.sizes[1] + 1, *old.sizes[2:])
    )
    holder, _, field = part.rpartition(".")
    layer = model.at(holder)
    wrong = object.__new__(type(layer))
    vars(wrong).update(vars(layer) | {field: smelt.symbolic(Shape.of(old.dtype, sizes, old.names))})
    changed = model.replace({holder: wrong})
    assert check(changed.forward).errors


def test_decoding_needs_room_in_the_cache():
    caches = [(Shape("f32", b="B", t="C", g=2, k=4),) * 2] * 2
    outcome = check(NUMBERS["llama"].decode, caches=caches)
    assert {error.missing for error in outcome.errors if isinstance(error, smelt.TensorError)} == {"S <= C"}
    traced = trace(NUMBERS["llama"].decode, caches=caches, facts=["S <= C"])
    logits, after = traced.results
    assert str(logits.shape) == "f32[b=B, s=S, v=32]"
    assert str(after[1][0].shape) == "f32[b=B, t=C, g=2, k=4]"


# ---- what engines recognise ----


def test_composites_are_recognised():
    """Every attention, norm and gelu of two layers is found as one, with dynamic batch and sequence."""
    assert composites(trace(NUMBERS["bert"].forward).program) == Counter(
        {"smelt.layer_norm": 5, "smelt.gelu": 2, "smelt.attention": 2}
    )
    assert composites(trace(NUMBERS["llama"].forward).program) == Counter(
        {"smelt.rms_norm": 5, "smelt.silu": 2, "smelt.attention": 2}
    )
    assert composites(trace(NUMBERS["whisper"].forward).program) == Counter(
        {"smelt.layer_norm": 12, "smelt.gelu": 6, "smelt.attention": 6}
    )
    found = composites(trace(NUMBERS["vit"].forward).program)
    assert (found["smelt.attention"], found["smelt.layer_norm"], found["smelt.gelu"]) == (2, 5, 2)


# ---- values ----


def bert_operands() -> list[np.ndarray]:
    given = load_recording("Bert", "operand")
    names = ("input_ids", "token_type_ids", "attention_mask")
    return [given[name].astype(kind) for name, kind in zip(names, (np.int32, np.int32, np.bool_), strict=True)]


def network(name: str) -> tuple[Any, list[np.ndarray], list[str]]:
    """A network with Hugging Face's weights, its operands and their axes."""
    if name == "Bert":
        return build(Bert, load_recording(name, "weight"), strict=True), bert_operands(), ["b s"] * 3
    given = load_recording(name, "operand")
    if name == "Llama":
        return build(Llama, load_recording(name, "weight"), strict=True), [given["input_ids"].astype(np.int32)], ["b s"]
    model = build(Whisper, load_recording(name, "weight"), strict=True, sound=5, tokens=7)
    return model, [given["input_features"], given["decoder_input_ids"].astype(np.int32)], ["b c s", "b s"]


def near(got: Any, case: str) -> None:
    """Within f32's share of the largest element: two layers deep, sums cancel."""
    want = load_recording(case, "result")
    for i, each in enumerate(got if isinstance(got, tuple) else (got,)):
        scale = np.abs(want[str(i)]).max()
        np.testing.assert_allclose(np.asarray(each), want[str(i)], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["Bert", "Llama", "Whisper"])
def test_networks_give_what_hugging_face_gives(name: str):
    model, operands, axes = network(name)
    with engine("reference"):
        near(model.forward(*(smelt.tensor(x, each) for x, each in zip(operands, axes, strict=True))), name)


@pytest.mark.parametrize("name", ["Bert", "Llama", "Whisper"])
def test_traced_networks_give_what_hugging_face_gives(name: str):
    model, operands, _ = network(name)
    traced = trace(model.forward)
    weights = load_recording(name, "weight")
    arrays = [weights[leaf.name] for leaf in traced.leaves if leaf.weight]
    near(traced(*arrays, *operands, engine="reference"), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_compiled_networks_give_what_hugging_face_gives(name: str):
    model, operands, _ = network(name)
    traced = trace(model.forward)
    weights = load_recording(name, "weight")
    arrays = [weights[leaf.name] for leaf in traced.leaves if leaf.weight]
    near(traced(*arrays, *operands, engine="native"), name)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_networks_follow_the_element_type_of_their_weights(kind: str):
    """Rounding to 11 or 8 bits in every op of two layers is all the difference; the result has the weights' type."""
    element = dtype(kind)
    weights = {path: array.astype(element.numpy) for path, array in load_recording("Llama", "weight").items()}
    model = build(Llama, weights, strict=True)
    assert str(trace(model.forward).results.dtype) == kind
    with engine("reference"):
        got = model.forward(smelt.tensor(network("Llama")[1][0], "b s")).numpy().astype(np.float64)
    want = load_recording("Llama", "result")["0"]
    assert np.abs(got - want).max() < 12 * 2.0 ** (-11 if kind == "f16" else -8) * np.abs(want).max()


def test_decoding_step_by_step_gives_what_the_whole_sequence_gives():
    model, (ids,), _ = network("Llama")
    caches = [(np.zeros((2, 8, 2, 4), np.float32),) * 2] * 2
    shapes = [(Shape("f32", b="B", t="C", g=2, k=4),) * 2] * 2
    traced = trace(model.decode, caches=shapes, facts=["S <= C"])
    weights = load_recording("Llama", "weight")
    arrays = [weights[leaf.name] for leaf in traced.leaves if leaf.weight]
    parts = []
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        flat = [array for pair in caches for array in pair]
        place = np.array(start, np.int32)
        logits, caches = traced(*arrays, ids[:, start:stop], *flat, place, engine="reference")
        parts.append(logits)
    near(np.concatenate(parts, 1), "Llama")


# ---- cost ----


def test_proving_costs_the_same_for_every_layer(monkeypatch: pytest.MonkeyPatch):
    """Questions about sizes, and ops, grow by the same number with each layer; no op walks the program again."""
    asked = walked = 0
    decide, collect = dim.Facts._decide, record.collect

    def counted(self: dim.Facts, claim: dim.Fact) -> dim.Answer:
        nonlocal asked
        asked += 1
        return decide(self, claim)

    def counted_walk(*args: Any) -> Any:
        nonlocal walked
        found = collect(*args)
        walked += len(found[0])
        return found

    monkeypatch.setattr(dim.Facts, "_decide", counted)
    monkeypatch.setattr(record, "collect", counted_walk)
    counts = []
    for layers in (1, 2, 3, 6):
        asked = walked = 0
        for module, name in ((dim, "_NO_FACTS"), (proving, "_NONE")):  # answers that other tests or layers left there
            monkeypatch.setattr(module, name, dim.Facts())
        program = trace(Llama(layers, "V", "D", "F", "H", "G", "2*K").forward).program
        ops = len(program.main.body.ops)
        assert walked <= 2 * ops
        counts.append((asked, ops))
    for first, second, *later in zip(*counts, strict=True):  # questions, ops
        assert later == [first + (second - first) * extra for extra in (2, 5)]
    assert counts[1][0] - counts[0][0] <= 8, "questions per layer"
