# ruff: noqa: F722, F821  # shapes are no forward references
"""Tracing: arguments and weights from annotations, branches on sizes, declared results, threads, running the result."""

import threading
from typing import Annotated, get_origin

import numpy as np
import pytest

import smelt
from smelt import Shaped, Tensor, TensorError, checked
from smelt.engine.reference import ReferenceEngine
from smelt.errors import ShapeError, SizeError
from smelt.ir.size_ops import slope_of, sources_of
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.shape import Shape
from smelt.size import parse_size
from smelt.tensor import check, trace
from smelt.tensor.shaped import spec_of
from smelt.weights import Weights


class Linear:
    weight: Shaped[Tensor, "f32[d=D, f=F]"]
    bias: Shaped[Tensor, "f32[f=F]"]

    def __call__(self, x: Tensor) -> Tensor:
        return x.dot(self.weight, "d") + self.bias


class Network:
    facts = ["D >= 1"]  # noqa: RUF012
    first: Linear
    scale: Shaped[Tensor, "[F]"]

    def __init__(self) -> None:
        self.rest = [Second(), Second()]

    def forward(self, x: Shaped[Tensor, "f32[b=B, d=D]"]) -> Shaped[Tensor, "f32[b=B, f=F]"]:
        y = self.first(x) * self.scale
        for layer in self.rest:
            y = layer(y)
        return y


class Second:
    weight: Shaped[Tensor, "f32[f=F, g=F]"]

    def __call__(self, x: Tensor) -> Tensor:
        return x.dot(self.weight, "f").rename(g="f").relu()


def test_fields_become_weights_under_their_paths():
    traced = trace(Network().forward)
    names = [leaf.name for leaf in traced.leaves]
    assert names == ["first.weight", "first.bias", "scale", "rest.0.weight", "rest.1.weight", "x"]
    assert [leaf.weight for leaf in traced.leaves] == [True] * 5 + [False]
    attrs = traced.program.main.arg_attrs
    assert attrs[0]["smelt.weight"] == "first.weight"
    assert attrs[-1]["smelt.name"] == "x"


def test_the_traced_program_is_right(seed: int):
    traced = trace(Network().forward)
    verify(traced.program)
    assert print_program(parse(print_program(traced.program))) == print_program(traced.program)
    rng = np.random.default_rng(seed)
    for b, d, f in ((2, 3, 4), (0, 1, 2), (1, 5, 0)):
        sizes = [(d, f), (f,), (f,), (f, f), (f, f), (b, d)]
        arrays = [rng.standard_normal(each).astype(np.float32) for each in sizes]
        w, bias, scale, one, two, x = (array.astype(np.float64) for array in arrays)
        want = np.maximum(np.maximum(((x @ w + bias) * scale) @ one, 0) @ two, 0)
        np.testing.assert_allclose(traced(*arrays, engine="reference"), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(SizeError, match="a fact does not hold"):
        traced(
            *(np.zeros(each, np.float32) for each in [(0, 2), (2,), (2,), (2, 2), (2, 2), (3, 0)]), engine="reference"
        )


@pytest.mark.slow
def test_the_traced_program_compiles_once_for_all_sizes(seed: int):
    traced = trace(Network().forward)
    rng = np.random.default_rng(seed)
    for b in (1, 3):
        sizes = [(3, 4), (4,), (4,), (4, 4), (4, 4), (b, 3)]
        arrays = [rng.standard_normal(each).astype(np.float32) for each in sizes]
        want = traced(*arrays, engine="reference")
        np.testing.assert_allclose(traced(*arrays, engine="native"), want, rtol=1e-5, atol=1e-6)


def test_wrong_arrays_are_refused():
    traced = trace(lambda x, y: x + y, Shape("f32", b="B"), Shape("f32", b="B"))
    with pytest.raises(smelt.SmeltError, match="wrong number of arguments"):
        traced(np.zeros(2, np.float32))
    with pytest.raises(smelt.SmeltError, match="does not fit"):
        traced(np.zeros(2, np.float32), np.zeros(3, np.float32))
    for wrong in (np.zeros(2, np.float64), np.zeros((2, 1), np.float32), np.zeros((), np.float32)):
        with pytest.raises(ShapeError, match="x does not fit"):
            traced(wrong, np.zeros(2, np.float32))
        with pytest.raises(ShapeError, match="y does not fit"):
            traced(np.zeros(2, np.float32), wrong)
    assert traced(np.ones(2, np.float32), np.ones(2, np.float32)).tolist() == [2, 2]


def test_more_shapes_than_parameters_are_refused():
    one = Shape("f32", b="B")
    with pytest.raises(TensorError, match="2 more arguments than parameters"):
        trace(lambda x: x + 1, one, one, one)
    assert trace(lambda *xs: xs[0] + xs[2], one, one, one)(*np.eye(3, dtype="f")).tolist() == [1, 0, 1]


def test_sizes_that_no_symbol_gives_are_refused():
    traced = trace(lambda x: x + 1, Shape("f32", b="2*N + 2"))
    assert traced(np.zeros(2, np.float32)).tolist() == [1, 1], "N is 0"
    for size in (0, 1, 3):
        with pytest.raises(ShapeError, match="for some N >= 0"):
            traced(np.zeros(size, np.float32))


def test_shared_layers_are_shared():
    class Tied:
        def __init__(self) -> None:
            self.table = smelt.tensor(np.ones((3, 2), np.float32), "v d")
            self.head = self.table
            self.layers = [layer := Second(), layer]

        def __call__(self, x: Tensor) -> Tensor:
            return x.dot(self.table, "d").dot(self.head, "v")

    traced = trace(Tied(), Shape("f32", b="B", d=2))
    assert [leaf.name for leaf in traced.leaves] == ["table", "layers.0.weight", "x"]


def test_a_class_that_contains_itself():
    class Node:
        weight: Shaped[Tensor, "f32[d=D]"]
        child: "Node"

        def __call__(self, x: Shaped[Tensor, "f32[d=D]"]) -> Tensor:
            return x * self.weight

    assert [leaf.name for leaf in trace(Node()).leaves] == ["weight", "x"]


def test_weights_are_bound_by_prepare():
    traced = trace(Network().forward)
    rng = np.random.default_rng(3)
    sizes = {
        "first.weight": (3, 4),
        "first.bias": (4,),
        "scale": (4,),
        "rest.0.weight": (4, 4),
        "rest.1.weight": (4, 4),
    }
    arrays = {name: rng.standard_normal(each).astype(np.float32) for name, each in sizes.items()}
    x = rng.standard_normal((2, 3)).astype(np.float32)
    executable = ReferenceEngine().compile(traced.program).prepare(Weights.of(arrays))
    assert [port.name for port in executable.signature.inputs] == ["x"]
    np.testing.assert_array_equal(executable(x)[0], traced(*arrays.values(), x, engine="reference"))


def test_closed_over_data_becomes_a_constant():
    table = smelt.tensor([1.0, 2.0, 3.0], "k")
    traced = trace(lambda x: x + table, Shape("f32", b="B", k=3))
    assert traced(np.zeros((2, 3), np.float32), engine="reference").tolist() == [[1, 2, 3]] * 2
    stray = smelt.symbolic("f32[k=K]")
    with pytest.raises(TensorError, match="not an argument of the traced function"):
        trace(lambda x: x + stray, Shape("f32", k="K"))


def test_dims_make_shapes():
    traced = trace(lambda x: smelt.ones(Shape("f32", n=x.size("s") * 2)) + x.sum("s"), Shape("f32", s="S"))
    assert traced(np.ones(3, np.float32), engine="reference").tolist() == [4] * 6


def test_sizes_are_values_too():
    def f(x: Shaped[Tensor, "f32[b=B, s=S]"]) -> Tensor:
        scaled = x * x.size("s") + x.size("b") - 1
        return (scaled / x.count("s", "f32").sqrt()).sum() + 2 / x.count().to("f32")

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    want = ((array * 3 + 2 - 1) / np.sqrt(3)).sum() + 2 / 6
    np.testing.assert_allclose(trace(f)(array, engine="reference"), want, rtol=1e-6)
    np.testing.assert_allclose(f(smelt.tensor(array, "b s")).item(), want, rtol=1e-6)
    assert trace(lambda x: smelt.fori_loop(x.size("s"), lambda i, n: n + i, 0), Shape("f32", s="S"))(
        np.zeros(5, np.float32), engine="reference"
    ) == sum(range(5))
    with pytest.raises(TensorError, match="has no value before"):
        smelt.symbolic("f32[s=S]").size("s") ** -0.5


def test_python_in_the_middle_of_a_traced_function():
    def f(x: Shaped[Tensor, "f32[s=S]"]) -> Tensor:
        return smelt.custom_call(np.cumsum, x.shape, x) + 1.0

    assert trace(f)(np.ones(3, np.float32)).tolist() == [2, 3, 4]
    with pytest.raises(smelt.SmeltError, match="reference engine only"):
        trace(f)(np.ones(3, np.float32), engine="native")


# ---- the annotation ----


def test_the_annotation_is_annotated():
    hint = Shaped[Tensor, "f32[b=B, d=512]"]
    assert get_origin(hint) is Annotated
    spec = spec_of(hint)
    assert spec is not None
    assert str(spec.shape) == "f32[b=B, d=512]"
    assert spec_of(Tensor) is None


def test_the_short_form():
    spec = spec_of(Shaped[Tensor, "[B, S, D]"])
    assert spec is not None
    assert (spec.element, spec.names) == (None, ("b", "s", "d"))
    spec = spec_of(Shaped[Tensor, "bf16[B, 3]"])
    assert spec is not None
    assert (str(spec.element), spec.names) == ("bf16", None)
    spec = spec_of(Shaped[Tensor, "i32[]"])
    assert spec is not None
    assert spec.shape.rank == 0


def test_tuples_are_matched_in_order():
    def f(x: Shaped[Tensor, "[B, D]"]) -> tuple[Shaped[Tensor, "[B]"], Shaped[Tensor, "[D]"]]:
        return x.sum("d"), x.sum("d")

    with pytest.raises(TensorError, match="the result 1: other axes than declared"):
        trace(f)


def test_a_result_may_have_sizes_of_its_own():
    def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "f32[s=T]"]) -> Shaped[Tensor, "f32[s=N]"]:
        return smelt.concatenate([x, y], "s")

    assert str(trace(f).results.shape) == "f32[s=S + T]"


def test_structures_go_in_and_out():
    def f(pair: tuple[Shaped[Tensor, "[B]"], Shaped[Tensor, "[B]"]], scale: float = 2.0) -> dict[str, Tensor]:
        return {"sum": pair[0] + pair[1] * scale, "first": pair[0]}

    out = trace(f)(np.ones(2, np.float32), np.ones(2, np.float32), engine="reference")
    assert {name: array.tolist() for name, array in out.items()} == {"sum": [3, 3], "first": [1, 1]}


def test_checked_functions_have_symbols_of_their_own():
    @checked
    @smelt.assume("2 divides N")
    def halves(x: Shaped[Tensor, "f32[n=N]"]) -> Shaped[Tensor, "f32[n=N//2]"]:
        return x[::2] + x[1::2]

    assert halves(smelt.tensor([1.0, 2.0, 3.0, 4.0], "n")).numpy().tolist() == [3, 7]
    assert str(halves(smelt.symbolic("f32[n=2*S]")).shape) == "f32[n=S]"
    with pytest.raises(TensorError, match="needs N % 2 == 0") as caught:
        halves(smelt.symbolic("f32[n=S]"))
    assert caught.value.missing == "S % 2 == 0"
    with pytest.raises(TensorError, match="other axes than declared"):
        halves(smelt.symbolic("f32[m=4]"))


# ---- several mistakes ----


def test_a_check_finds_all_mistakes_and_each_once():
    def f(x: Shaped[Tensor, "f32[b=B, s=S, d=D]"], w: Shaped[Tensor, "f32[e=E, f=F]"]) -> Shaped[Tensor, "f32[b=B]"]:
        y = x.dot(w, "d")  # 1
        z = (y.relu() + x).softmax("f").size("f") * x
        first, second = y.chunk("f", 2)
        u = x.sum("t")  # 2
        v = smelt.concatenate([x, w], "s")  # 3
        return smelt.where(u > 0.0, v + z, first * second)

    outcome = check(f)
    lines = [error.source.splitlines()[0].rpartition("#")[2].strip() for error in outcome.errors if error.source]
    assert lines == ["1", "2", "3"]
    with pytest.raises(TensorError, match='dot over "d"'):
        trace(f)


def test_what_follows_from_a_mistake_is_not_reported():
    def f(x: Shaped[Tensor, "f32[b=B, s=S]"]) -> Tensor:
        y = x.sum("t")
        b, s = y.sizes  # a lost tensor has other axes than y would have
        return smelt.while_loop(lambda z: z.sum() < b * s, lambda z: z + 1.0, y)

    [error] = check(f).errors
    assert 'no axis "t"' in error.message

    def g(x: Shaped[Tensor, "f32[b=B, s=S]"]) -> Tensor:
        return smelt.scan(lambda carry, row: (carry + row.sum("q"), None), smelt.zeros("f32[]"), x, "s")

    [error] = check(g).errors
    assert 'no axis "q"' in error.message


def test_an_error_of_the_users_own_is_raised():
    def f(x: Shaped[Tensor, "f32[b=B]"]) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        check(f)


# ---- branches ----


def test_every_path_is_explored_and_runs():
    def f(x: Shaped[Tensor, "[S]"]) -> Tensor:
        if x.size("s") == 0:
            return smelt.zeros("f32[]")
        if x.size("s") % 2 == 0:
            return (x[::2] * x[1::2]).sum()
        return x[0] + x[-1]

    traced = trace(f)
    assert [", ".join(map(str, path.guards)) for path in traced.paths] == [
        "S == 0", "S >= 1, S % 2 == 0", "S >= 1, S % 2 >= 1",
    ]  # fmt: skip
    for array in ([], [3.0], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 5.0]):
        want = 0 if not array else array[0] + array[-1] if len(array) % 2 else sum(np.multiply(array[::2], array[1::2]))
        assert traced(np.array(array, np.float32), engine="reference") == want
    with pytest.raises(smelt.SmeltError, match="several programs"):
        _ = traced.program


def test_a_loop_over_a_size_ends_with_an_error_not_in_a_hang():
    def f(x: Shaped[Tensor, "[S]"]) -> Tensor:
        total, i = x, 0
        while i < x.size("s"):
            i += 1
        return total

    [error] = check(f).errors
    assert "loop over a dynamic dimension" in error.message
    assert "scan" in (error.remedy or "")


def test_decided_branches_do_not_fork():
    def f(x: Shaped[Tensor, "f32[s=S + 2]"]) -> Tensor:
        return x[0] if x.size("s") >= 2 else x[5]

    assert check(f).path_count == 1


def test_comparisons_of_sizes():
    def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[T]"]) -> Tensor:
        s, t = x.size("s"), y.size("t")
        if s != t:
            return x
        return x + y.rename(t="s")

    assert check(f).errors == ()
    assert check(f).path_count == 3  # less, equal, greater


# ---- threads ----


def test_two_threads_trace_different_models():
    problems: list[object] = []
    start = threading.Barrier(2)

    def work(number: int) -> None:
        try:
            start.wait()
            for _ in range(30):
                with smelt.assume(f"{number + 2} divides D"):
                    x = smelt.symbolic("f32[d=D]")
                    assert x.split("d", n=None, k=number + 2).shape.sizes[1] == number + 2
                    try:
                        x.split("d", n=None, k=3 - number)
                        problems.append("the other thread's fact was seen")
                    except TensorError:
                        pass

                def f(x: Tensor) -> Tensor:
                    return x[0] if x.size("s") > number else x.sum("s")

                assert [str(path.guards) for path in trace(f, Shape("f32", s="S")).paths] == [
                    f"Facts.of('S >= {number + 1}')",
                    f"Facts.of('S <= {number}')",
                ]
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_transformer_is_proven_in_time_linear_in_its_depth():
    """The number of ops grows by the same amount with every layer: nothing is traced or kept twice."""
    counts = [
        len(trace(_stack(depth), Shape("f32", b="B", s="S", d="D")).program.main.body.ops) for depth in (1, 2, 4, 8)
    ]
    per_layer = counts[1] - counts[0]
    assert counts == [counts[0] + per_layer * (depth - 1) for depth in (1, 2, 4, 8)]


def _stack(depth: int):
    def f(x: Tensor) -> Tensor:
        for _ in range(depth):
            scores = (x.dot(x.rename(s="t"), "d") * 0.125).softmax("t")
            x = x + scores.dot(x.rename(s="t"), "t")
        return x

    return f


class Wide(smelt.Model):
    weight: Shaped[Tensor, "f32[d=width, f=4]"]

    def __init__(self, width: int, depth: int) -> None:
        self.width = width
        self.up = smelt.nn.Linear(d=depth, d2=depth)

    def forward(self, x: Shaped[Tensor, "f32[b=B, d=width]"]) -> Shaped[Tensor, "f32[b=B, f=4]"]:
        return x.dot(self.weight, "d")

    def twice(self, x: Shaped[Tensor, "f32[d=12]"]) -> Shaped[Tensor, "f32[d=width]"]:
        return smelt.concatenate([x, x], "d")

    def lost(self, x: Shaped[Tensor, "f32[d=12]"]) -> Shaped[Tensor, "f32[d=depth]"]:
        return smelt.concatenate([x, x], "d")


def test_annotations_mean_the_numbers_that_a_model_keeps():
    (x,) = [leaf for leaf in trace(Wide(12, 3).forward).leaves if leaf.name == "x"]
    assert x.shape.sizes[1] == 12
    assert trace(Wide(24, 3).twice).results.shape == Shape("f32", d=24)
    (error,) = check(Wide(12, 3).twice).errors
    assert "a size is 24, not 12" in error.message
    (error,) = check(Wide(12, 24).lost).errors
    assert "names depth, which the constructor takes" in error.message
    assert error.remedy == "self.depth = depth in the constructor"


@pytest.mark.parametrize(
    ("size", "slopes"),
    [
        ("2*N + 3*M + 1", {"N": 2, "M": 3, "K": 0}),
        ("N*M + 2*K", {"N": 0, "M": 0, "K": 2}),
        ("N + N*M", {"N": 0, "M": 0}),
        ("N + M//2", {"N": 1, "M": 0}),
        ("N + N//2", {"N": 0}),
        ("M - N", {"N": 0, "M": 1}),
        ("7", {"N": 0}),
    ],
)
def test_the_slope_of_one_symbol_among_several(size: str, slopes: dict[str, int]):
    """What an axis tells about a symbol: `k*N` plus what does not depend on N."""
    assert {name: slope_of(parse_size(size), name) for name in slopes} == slopes


def test_an_axis_determines_a_symbol_beside_known_ones():
    both = [smelt.symbolic("f32[a=2*N + 3*M + 1]").value, smelt.symbolic("f32[m=M]").value]
    assert sources_of(both) == {"M": (both[1], 0), "N": (both[0], 0)}
    assert sources_of(both[:1]) == {}


def test_operands_of_one_shape_are_not_broadcast():
    """Nothing is emitted for axes that are as they should be; an axis of size 1, or one that is missing, is spread."""
    for shapes, ops in (
        (("f32[n=N, m=3]", "f32[n=N, m=3]"), ["add"]),
        (("f32[n=N, m=3]", "f32[m=3]"), ["broadcast_in_dim", "add"]),
        (("f32[N, 3]", "f32[1, 3]"), ["broadcast_in_dim", "add"]),
        (("f32[3]", "f32[1]"), ["broadcast_in_dim", "add"]),
    ):
        body = trace(lambda x, y: x + y, *(smelt.symbolic(each).shape for each in shapes)).program.main.body
        assert [op.name.partition(".")[2] for op in body.ops] == ops, shapes
