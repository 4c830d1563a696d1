# ruff: noqa: F722  # shapes are no forward references
"""Models: what classes declare, models from tensors, fields by path, replacing; Model, dataclasses and any class."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import Shaped, Tensor, nn
from smelt.buffer import HostBuffer
from smelt.shape import Shape
from smelt.tensor import engine, trace
from smelt.tensor.model import at, build, parameter, parameters_of, replace, walk


class MLP(smelt.Model):
    up: Shaped[Tensor, "f32[d=784, f=F]"]
    down: Shaped[Tensor, "[f=F, c=10]"]

    def forward(self, x: Shaped[Tensor, "f32[b=B, d=784]"]) -> Shaped[Tensor, "f32[b=B, c=10]"]:
        return x.dot(self.up, "d").relu().dot(self.down, "f")


class Block(smelt.Model):
    norm: nn.RMSNorm = nn.RMSNorm(d="D")
    up: nn.Linear = nn.Linear(d="D", f="F", bias=False)
    down: nn.Linear = nn.Linear(f="F", d="D")
    scale: Shaped[Tensor, "f32[d=D]"] | None = None
    residual: bool = True

    def __call__(self, x: Tensor) -> Tensor:
        y = self.down(self.up(self.norm(x)).relu())
        if self.scale is not None:
            y = y * self.scale
        return x + y if self.residual else y


class Stack(smelt.Model):
    facts = ("F >= D",)
    embed: nn.Embedding = nn.Embedding(v="V", d="D")
    layers: list[Block]
    name: str = "stack"

    def forward(self, ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Shaped[Tensor, "f32[b=B, s=S, d=D]"]:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def shapes(found: dict[str, Any]) -> dict[str, str]:
    return {path: str(each.shape) for path, each in found.items()}


def block_arrays(prefix: str, d: int, f: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    sizes = {"norm.weight": (d,), "up.weight": (f, d), "down.weight": (d, f), "down.bias": (d,)}
    return {f"{prefix}{path}": rng.standard_normal(each).astype(np.float32) for path, each in sizes.items()}


def stack_arrays(rng: np.random.Generator, layers: int = 2, d: int = 3, f: int = 4) -> dict[str, np.ndarray]:
    made = {"embed.weight": rng.standard_normal((7, d)).astype(np.float32)}
    for i in range(layers):
        made |= block_arrays(f"layers.{i}.", d, f, rng)
    return made


# ---- declaring ----


def test_declared_parameters():
    found = parameters_of(MLP)
    assert shapes(found) == {"up": "f32[d=784, f=F]", "down": "f32[f=F, c=10]"}
    assert [str(each.element) for each in found.values()] == ["f32", "None"]
    assert found["up"].place is not None
    assert found["up"].place.path == __file__
    assert shapes(parameters_of(MLP, F=32)) == {"up": "f32[d=784, f=32]", "down": "f32[f=32, c=10]"}
    assert shapes(parameters_of(MLP(F=5))) == shapes(parameters_of(MLP, F=5))


def test_layers_in_the_class_and_lists_of_them():
    found = parameters_of(Stack, layers=2, D=3)
    assert list(found) == [
        "embed.weight",
        *(f"layers.{i}.{path}" for i in (0, 1) for path in ("norm.weight", "up.weight", "down.weight", "down.bias")),
    ]
    assert str(found["layers.1.up.weight"].shape) == "f32[f=F, d=3]"
    assert found["layers.1.up.weight"].element is None
    with pytest.raises(smelt.TensorError, match="how many layers"):
        parameters_of(Stack)


def test_the_checkpoint_determines_the_number_of_layers():
    names = [*stack_arrays(np.random.default_rng(0), 11), "layers.10.scale"]
    found = parameters_of(Stack, names=names)
    assert set(found) == set(names)
    assert found["layers.10.scale"].optional
    assert "layers.9.scale" not in found
    with pytest.raises(smelt.TensorError, match="not numbered in order"):
        parameters_of(Stack, names=["embed.weight", "layers.1.up.weight"])


def test_every_object_has_layers_of_its_own():
    one, two = Stack(layers=2), Stack(layers=2)
    tensors = [id(tensor) for model in (one, two) for _, tensor in walk(model)]
    assert len(set(tensors)) == len(tensors) == 18
    assert all(len(each.paths) == 1 for each in parameters_of(one).values())

    class Plain:
        first: Block = Block()
        second: Block = Block()

        def __call__(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    names = [leaf.name for leaf in trace(Plain(), Shape("f32", d="D")).leaves]
    assert [name for name in names if "norm" in name] == ["first.norm.weight", "second.norm.weight"]


def test_layers_in_the_class_need_no_annotation():
    class Bare(smelt.Model):
        up = nn.Linear(d=4, f=3)
        rows = (nn.RMSNorm(f=3), nn.RMSNorm(f=3))

        def __call__(self, x: Shaped[Tensor, "f32[b=B, d=4]"]) -> Tensor:
            return self.up(x)

    class Plain:
        up = nn.Linear(d=4, f=3)

        def __call__(self, x: Shaped[Tensor, "f32[b=B, d=4]"]) -> Tensor:
            return self.up(x)

    assert list(parameters_of(Bare)) == ["up.weight", "up.bias", "rows.0.weight", "rows.1.weight"]
    assert Bare().up is not Bare().up
    assert list(parameters_of(Plain)) == ["up.weight", "up.bias"]
    assert [leaf.name for leaf in trace(Plain()).leaves] == ["up.weight", "up.bias", "x"]


def test_an_annotation_that_cannot_be_resolved_is_no_hidden_field():
    class Local(smelt.Model):
        layer: "Nowhere"  # type: ignore[name-defined]  # noqa: F821
        up: "Nowhere" = nn.Linear(d=4, f=3)  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(smelt.TensorError, match="the field layer has no value") as caught:
        Local()
    assert "annotation" in str(caught.value)
    assert [path for path, _ in Local(layer=nn.RMSNorm(d=3)).walk()] == ["layer.weight", "up.weight", "up.bias"]


def test_configuration_reaches_plain_fields_everywhere():
    model = Stack(layers=2, residual=False, name="other")
    assert [layer.residual for layer in model.layers] == [False, False]
    assert model.name == "other"
    with pytest.raises(smelt.TensorError, match="has no use for residuals"):
        parameters_of(Stack, layers=1, residuals=False)
    with pytest.raises(smelt.TensorError, match="has no field Z"):
        Stack(layers=1, Z=3)


def test_dataclasses_and_other_classes():
    @dataclass(frozen=True)
    class Data:
        weight: Shaped[Tensor, "f32[d=D]"]
        layers: list[Block]
        sizes: list[int] = field(default_factory=lambda: [1, 2])

    @dataclass(slots=True)
    class Slotted:
        weight: Shaped[Tensor, "f32[d=D]"]

        def __call__(self, x: Shaped[Tensor, "f32[b=B, d=D]"]) -> Tensor:
            return x * self.weight

    class Plain:
        weight: Shaped[Tensor, "f32[d=D]"]

        def __init__(self, count: int) -> None:
            self.data = [Data(parameter("[d=D]"), []) for _ in range(count)]

    assert list(parameters_of(Data, layers=1))[:2] == ["weight", "layers.0.norm.weight"]
    assert list(parameters_of(Plain, count=2)) == ["data.0.weight", "data.1.weight", "weight"]
    with pytest.raises(smelt.TensorError, match="Plain needs count"):
        parameters_of(Plain)
    made = build(Slotted, {"weight": np.full(3, 2, np.float32)})
    assert made(smelt.tensor([[1.0, 2.0, 3.0]], "b d")).tolist() == [[2, 4, 6]]
    assert [leaf.name for leaf in trace(made).leaves] == ["weight", "x"]
    frozen = build(Data, {"weight": np.ones(3, np.float32)}, layers=0)
    assert frozen.sizes == [1, 2]


def test_a_layer_without_sizes_is_refused():
    class Unsaid(smelt.Model):
        up: nn.Linear

    with pytest.raises(smelt.TensorError, match="Linear does not say its sizes"):
        parameters_of(Unsaid)

    class Missing(smelt.Model):
        heads: int

    with pytest.raises(smelt.TensorError, match="the field heads has no value"):
        Missing()
    assert Missing(heads=3).heads == 3


def test_tied_weights_are_one_parameter():
    class Tied(smelt.Model):
        def __init__(self) -> None:
            self.embed = nn.Embedding(v=7, d=3)
            self.head = nn.Linear(d=3, v=7, bias=False)
            self.head.weight = self.embed.weight

    found = parameters_of(Tied)
    assert list(found) == ["embed.weight"]
    assert found["embed.weight"].paths == ("embed.weight", "head.weight")
    array = np.ones((7, 3), np.float32)
    for path in found["embed.weight"].paths:
        made = build(Tied, {path: array}, strict=True)
        assert made.embed.weight is made.head.weight


# ---- building ----


def test_a_model_from_arrays(seed: int):
    rng = np.random.default_rng(seed)
    arrays = stack_arrays(rng)
    model = build(Stack, arrays, strict=True)
    ids = np.array([[1, 2], [0, 6]], np.int32)
    x = arrays["embed.weight"].astype(np.float64)[ids]
    for i in range(2):
        own = {path.removeprefix(f"layers.{i}."): each for path, each in arrays.items()}
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * own["norm.weight"]
        x = x + np.maximum(y @ own["up.weight"].T, 0) @ own["down.weight"].T + own["down.bias"]
    with engine("reference"):
        got = model.forward(smelt.tensor(ids, "b s")).numpy()
    np.testing.assert_allclose(got, x, rtol=1e-5, atol=1e-5)
    assert np.shares_memory(model.layers[1].up.weight.numpy(), arrays["layers.1.up.weight"])


def test_sizes_replace_symbols():
    arrays = stack_arrays(np.random.default_rng(0))
    model = build(Stack, arrays)
    traced = trace(model.forward)
    assert str(traced.results.shape) == "f32[b=B, s=S, d=3]"
    assert {name for leaf in traced.leaves for name in leaf.shape.symbols} == {"B", "S"}
    assert model.facts == ("4 >= 3",)
    mlp = build(MLP, {"up": np.zeros((784, 5), np.float32), "down": Shape("f16", f=5, c=10)})
    assert str(mlp.down.shape) == "f16[f=5, c=10]"
    assert {name for leaf in trace(build(MLP, _mlp(5)).forward).leaves for name in leaf.shape.symbols} == {"B"}


def _mlp(f: int) -> dict[str, np.ndarray]:
    return {"up": np.zeros((784, f), np.float32), "down": np.zeros((f, 10), np.float32)}


def test_symbols_in_texts_mean_the_models_sizes():
    class Heads(smelt.Model):
        weight: Shaped[Tensor, "f32[d=D, e=H*K]"]
        scale: Shaped[Tensor, "f32[h=H]"]

        def __call__(self, x: Shaped[Tensor, "f32[b=B, d=D]"]) -> Shaped[Tensor, "f32[b=B, h=H, k=K]"]:
            return x.dot(self.weight, "d").split("e", h="H", k=None) * self.scale

    assert trace(Heads(), facts=["H >= 1"]).results.shape.names == ("b", "h", "k")
    made = build(Heads, {"weight": np.zeros((5, 6), np.float32), "scale": np.ones(2, np.float32)})
    assert str(trace(made).results.shape) == "f32[b=B, h=2, k=3]"


def test_what_may_be_given():
    array = np.ones((784, 4), np.float32)
    for given in (
        array,
        smelt.tensor(array),
        smelt.tensor(array, "d f"),
        HostBuffer.of(array),
        Shape("f32", d=784, f=4),
    ):
        model = build(MLP, _mlp(4) | {"up": given})
        assert str(model.up.shape) == "f32[d=784, f=4]"
    assert build(MLP, _mlp(4) | {"down": np.zeros((4, 10), np.float16)}).down.dtype.name == "f16"  # open


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"up": np.zeros((783, 4), np.float32)}, "the weight up: a size is 783, not 784"),
        ({"up": np.zeros((784, 4), np.float16)}, "the weight up: the element type is f16"),
        ({"up": np.zeros((784, 4, 1), np.float32)}, "the weight up: of rank 3, not 2"),
        ({"down": np.zeros((5, 10), np.float32)}, "the weight down: a size is 5, not 4"),
        ({"up": smelt.zeros("f32[f=4, d=784]")}, "the weight up: other axes than declared"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(smelt.TensorError, match=message) as caught:
        build(MLP, _mlp(4) | change)
    assert [operand.label for operand in caught.value.operands] == ["declared", "got"]
    assert "test_model.py line" in caught.value.operands[0].origin(None)


def test_formulas_are_checked():
    class Gated(smelt.Model):
        both: Shaped[Tensor, "[f=2*F, d=D]"]
        down: Shaped[Tensor, "[d=D, f=F]"]

    build(Gated, {"both": Shape("f32", f=8, d=3), "down": Shape("f32", d=3, f=4)})
    with pytest.raises(smelt.TensorError, match="the weight down: a size is 5, not 4"):
        build(Gated, {"both": Shape("f32", f=8, d=3), "down": Shape("f32", d=3, f=5)})


def test_missing_strange_and_optional_weights():
    arrays = stack_arrays(np.random.default_rng(0))
    assert build(Stack, arrays).layers[0].scale is None
    scaled = build(Stack, arrays | {"layers.1.scale": np.ones(3, np.float32)})
    assert scaled.layers[0].scale is None
    assert scaled.layers[1].scale is not None
    with pytest.raises(smelt.SmeltError, match="declares weights that are not there") as caught:
        build(Stack, {path: each for path, each in arrays.items() if path != "layers.1.up.weight"})
    assert caught.value.expected == "layers.1.up.weight"
    kept = build(Stack, {"embed.weight": arrays["embed.weight"]}, missing="keep", layers=1)
    assert str(kept.layers[0].up.weight.shape) == "f32[f=F, d=3]"
    with pytest.raises(smelt.SmeltError, match="declares no such weights") as caught:
        build(Stack, arrays | {"head.weight": np.ones(3, np.float32)}, strict=True)
    assert caught.value.got == "head.weight"
    build(Stack, arrays | {"head.weight": np.ones(3, np.float32)})


def test_facts_are_checked():
    with pytest.raises(smelt.SmeltError, match="a fact does not hold") as caught:
        build(Stack, stack_arrays(np.random.default_rng(0), d=5, f=4))
    assert caught.value.got == "D = 5, F = 4"


# ---- looking and replacing ----


def test_fields_by_path():
    model = Stack(layers=2)
    assert list(model.fields()) == ["embed", "layers", "name"]
    assert model.at("layers.1.up") is model.layers[1].up
    assert model.at("layers.1.up.weight") is model.layers[1].up.weight
    assert dict(model.walk())["layers.0.down.bias"] is model.layers[0].down.bias
    assert at({"a": [model]}, "a.0.name") == "stack"
    with pytest.raises(smelt.TensorError, match=r'no "upp" in layers\.1') as caught:
        model.at("layers.1.upp.weight")
    assert caught.value.remedy == 'did you mean "up"?'


def test_replacing_leaves_the_model_as_it_is():
    model = build(Stack, stack_arrays(np.random.default_rng(0)))
    old = model.layers[1].up.weight
    new = smelt.zeros("f32[f=4, d=3]")
    changed = model.replace({"layers.1.up.weight": new}, name="changed")
    assert changed.layers[1].up.weight is new
    assert changed.name == "changed"
    assert model.layers[1].up.weight is old
    assert model.name == "stack"
    assert changed.layers[0] is model.layers[0]
    assert replace(model, {"layers.0": model.layers[1]}).layers[0] is model.layers[1]
    with pytest.raises(smelt.TensorError, match=r"replacing layers\.1\.up\.weight"):
        model.replace({"layers.1.up.weight": smelt.zeros("f32[f=4, d=2]")})
    assert str(Stack(layers=1).replace({"layers.0.up.weight": new}).layers[0].up.weight.shape) == "f32[f=4, d=3]"


def test_models_are_readable():
    assert repr(Block(D=3)) == (
        "Block(norm=RMSNorm(weight=f32[d=3], epsilon=1e-06, offset=0.0), up=Linear(weight=f32[f=F, d=3], bias=None), "
        "down=Linear(weight=f32[d=3, f=F], bias=f32[d=3]), scale=None, residual=True)"
    )
    assert "layers=[12 x Block]" in repr(Stack(layers=12))


def test_fields_that_are_given_are_checked():
    good = smelt.zeros("f32[d=784, f=3]")
    assert MLP(up=good).up is good
    with pytest.raises(smelt.TensorError, match="the field up: a size is 2, not 784"):
        MLP(up=smelt.zeros("f32[d=2, f=3]"))
    with pytest.raises(smelt.TensorError, match="the field down: a size is 4, not 3"):
        trace(MLP(up=good, down=smelt.zeros("f32[f=4, c=10]")).forward)


def test_a_field_that_may_be_none_and_is_none_is_no_weight():
    @dataclass
    class Maybe:
        weight: Shaped[Tensor, "f32[d=D]"]
        bias: Shaped[Tensor, "f32[d=D]"] | None = None

        def __call__(self, x: Shaped[Tensor, "f32[d=D]"]) -> Tensor:
            return x * self.weight if self.bias is None else x * self.weight + self.bias

    without = trace(Maybe(parameter("f32[d=D]")))
    assert [leaf.name for leaf in without.leaves] == ["weight", "x"]
    both = trace(Maybe(parameter("f32[d=D]"), parameter("f32[d=D]")))
    assert [leaf.name for leaf in both.leaves] == ["weight", "bias", "x"]


def test_the_examples_of_the_page_about_models_run(capsys: pytest.CaptureFixture[str]):
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    names: dict[str, Any] = {"__name__": "models_page"}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "docs/models.md", "exec"), names)
    assert capsys.readouterr().out == "f32[f=F, d=D]\n3 f32[f=8, d=4]\n"
    assert names["logits"].shape == (1, 2, 7)
    assert str(names["traced"].results.shape) == "f32[b=B, s=S, v=V]"
    assert names["other"].at("layers.0.norm.weight").tolist() == [0, 0, 0, 0]
