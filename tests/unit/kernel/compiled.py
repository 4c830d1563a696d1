"""C expressions of `smelt.kernel.math` as functions of NumPy arrays, for the tests.

In: name → (expression over register values `x0`, `x1`, …, operand types, result type). Out: one compiled library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.device import cpu
from smelt.dtype import Array, DType
from smelt.kernel import math

Case = tuple[str, Sequence[DType], DType]


class Compiled:
    """A library with one loop per case. `fast=False`: functions are compiled once, not into every loop."""

    def __init__(self, cases: Mapping[str, Case], *, fast: bool = True, plain: bool = False) -> None:
        self.cases = dict(cases)
        body = "\n".join(self._function(name, fast) for name in self.cases)
        define = "#define SMELT_PLAIN 1\n" if plain else ""
        self.library = cpu.build(define + math.prelude(body) + body)

    def _function(self, name: str, fast: bool) -> str:
        text, operands, result = self.cases[name]
        arrays = [f"const {math.storage(of)} *restrict a{k}" for k, of in enumerate(operands)]
        reads = [f"{math.register(of)} x{k} = {math.load(of, f'a{k}[i]')};" for k, of in enumerate(operands)]
        once = "" if fast else "__attribute__((optnone, noinline)) "
        head = f"{once}void {name}({', '.join([*arrays, f'{math.storage(result)} *restrict out'])}, i64 n)"
        write = f"{math.register(result)} value = {text}; out[i] = {math.store(result, 'value')};"
        return f"{head} {{ for (i64 i = 0; i < n; i++) {{ {' '.join(reads)} {write} }} }}"

    def __call__(self, name: str, *arrays: Array) -> Array:
        _, operands, result = self.cases[name]
        given = [np.ascontiguousarray(array, of.numpy) for array, of in zip(arrays, operands, strict=True)]
        out = np.empty(given[0].shape, result.numpy)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*given, out)]
        self.library[name](*pointers, ctypes.c_int64(given[0].size))
        return out


def of_op(function: str, operands: Sequence[DType], result: DType | None = None) -> Case:
    """The case of an op; it must be known."""
    to = operands[-1] if result is None else result
    text = math.apply(function, [f"x{k}" for k in range(len(operands))], operands, to)
    assert text is not None, f"{function} of {operands[0]}"
    return text, operands, to
