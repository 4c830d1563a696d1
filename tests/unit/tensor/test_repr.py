"""Tensors, programs and functions as text and in notebooks: shapes and first values, without computing anything."""

import numpy as np
import pytest

import smelt
from smelt import Tensor
from smelt.tensor import trace
from smelt.tensor.axes import shape_of


def tensor(values: np.ndarray, names: str) -> Tensor:
    return smelt.tensor(values.astype(np.float32), names)


@pytest.mark.parametrize(
    ("made", "text", "rows"),
    [
        (tensor(np.arange(12).reshape(2, 6), "b d"), "Tensor(f32[b=2, d=6], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, …])", 2),
        (tensor(np.arange(90).reshape(3, 3, 10), "a b c"), "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, …])", 7),
        (tensor(np.arange(6).reshape(2, 3).T, "a b"), "Tensor(f32[a=3, b=2], [0.0, 3.0, 1.0, 4.0, 2.0, 5.0])", 3),
        (smelt.tensor(True), "Tensor(i1[], [True])", 1),
        (tensor(np.zeros((0, 3)), "a b"), "Tensor(f32[a=0, b=3], [])", 0),
        (tensor(np.zeros((3, 0)), "a b"), "Tensor(f32[a=3, b=0], [])", 0),
        (smelt.symbolic("f32[b=B]"), "Tensor(f32[b=B], lazy)", 0),
        (smelt.ones("f32[n=3]") + 1, "Tensor(f32[n=3], lazy)", 0),
    ],
)
def test_a_tensor_shows_its_shape_and_first_values(made: Tensor, text: str, rows: int):
    assert repr(made).endswith(text)
    page = made._repr_html_()
    assert page.count("<tr>") == rows
    assert page.startswith("<table><caption>Tensor(")
    assert ("lazy" in repr(made)) == ("lazy" in text), "showing a tensor does not compute it"


def test_names_are_escaped():
    executable = smelt.compile(lambda x: x * 2, "f32[n=2]", engine="reference")
    assert "&lt;lambda&gt; on reference" in executable._repr_html_()
    assert "<td>result</td><td><code>f32[2]</code></td>" in executable._repr_html_()


def test_a_traced_function_and_its_program():
    traced = trace(lambda x: x.exp() + 1, shape_of("f32[b=B]"))
    assert repr(traced).endswith("<lambda>(x: f32[B]) → (f32[b=B])>")
    assert repr(traced.program) == "<program [<func @main, 4 ops>]>"
    assert "<td>@main</td><td><code>(f32[B]) → (f32[B])</code></td><td>4 ops</td>" in traced.program._repr_html_()


def test_a_program_in_a_notebook():
    page = trace(lambda x: x.exp() + 1, shape_of("f32[b=B]")).program._repr_html_()
    assert page.startswith("<table><caption>program")
    assert "<td>@main</td>" in page
    assert "ops</td></tr></table>" in page
