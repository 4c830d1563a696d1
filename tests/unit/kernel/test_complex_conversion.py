"""Complex numbers to booleans: the imaginary part does not count, on any engine."""

import numpy as np
import pytest

from smelt.ir.text import parse
from smelt.model import model_of
from smelt.weights import Weights


@pytest.mark.parametrize("engine", ["reference", "native", "pjrt"])
@pytest.mark.parametrize("part", ["f32", "f64"])
def test_only_the_real_part_becomes_a_boolean(engine: str, part: str):
    if engine == "pjrt":
        pytest.importorskip("jaxlib")
    text = """func.func @main(%x: tensor<5xcomplex<T>>) -> tensor<5xi1> {
      %0 = stablehlo.convert %x : (tensor<5xcomplex<T>>) -> tensor<5xi1>
      return %0 : tensor<5xi1>
    }""".replace("<T>", f"<{part}>")
    x = np.array([1j, 0, 1, 1 + 1j, complex(np.nan, 0)], np.complex64 if part == "f32" else np.complex128)
    (found,) = model_of(parse(text), Weights({}), engine=engine).run({"x": x}).values()
    assert found.tolist() == (x.real != 0).tolist() == [False, False, True, True, True]
