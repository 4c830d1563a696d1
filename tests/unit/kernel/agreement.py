"""Programs on generated C and on the interpreter: random arrays of any element type, and whether both agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smelt.dtype import Array, dtype, integer_range
from smelt.engine.native import NativeEngine
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Region
from smelt.ir.interpret import run
from smelt.shape import Shape

ELEMENTS = ("f32", "f64", "bf16", "f16", "f8E4M3FN", "i1", "i4", "i8", "i32", "i64", "ui8", "ui64", "complex<f32>")


def draw(random: np.random.Generator, element: str, *sizes: int, few: bool = False) -> Array:
    """Random elements; `few`: so few different ones that many are equal, and sums of them are exact."""
    kind = dtype(element)
    if kind.kind == "bool":
        return random.integers(0, 2, sizes).astype(kind.numpy)
    if kind.is_integer:
        low, high = (max(-4, integer_range(kind)[0]), 4) if few else integer_range(kind)
        return random.integers(low, high, sizes, dtype=np.uint64 if low >= 0 else np.int64).astype(kind.numpy)
    numbers = random.integers(-4, 5, sizes).astype(np.float64) if few else random.standard_normal(sizes)
    if kind.is_complex:
        return (numbers + 1j * random.permutation(numbers.reshape(-1)).reshape(sizes)).astype(kind.numpy)
    return numbers.astype(kind.numpy)


def disagreement(program: Program, calls: Sequence[Sequence[npt.ArrayLike]], rounding: float = 0.0) -> str:
    """The first difference between the two over several calls; `rounding` is relative to the largest element."""
    compiled = NativeEngine().compile(program)
    for call in calls:
        args = [np.asarray(each) for each in call]
        for got, want in zip(compiled(*args), run(program, args), strict=True):
            if got.shape != want.shape or got.dtype != want.dtype:
                return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
            if got.tobytes() == np.ascontiguousarray(want).tobytes():
                continue
            wide = np.complex128 if got.dtype.kind == "c" else np.float64
            a, b = got.astype(wide), want.astype(wide)
            limit = rounding * np.abs(b[np.isfinite(b)]).max(initial=0.0)
            wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= limit))
            if wrong.any() or not rounding:
                return f"{np.count_nonzero(wrong)} of {wrong.size} differ: {got[wrong][:5]}, expected {want[wrong][:5]}"
    return ""


def combine(f: FuncBuilder, name: str, *elements: str) -> Region:
    """A body that applies one op to each pair of arguments: (a0, a1, …, b0, b1, …) → (a0 op b0, …)."""
    count = len(elements)
    with f.region(*(Shape(each) for each in (*elements, *elements))) as r:
        r.result(*(r.op(f"stablehlo.{name}", r.args[i], r.args[count + i]).result for i in range(count)))
    return r.body
