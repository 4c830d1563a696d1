"""Index arithmetic of the loop grammar: quotients and remainders without a division where the terms show the answer."""

from __future__ import annotations

import itertools

import numpy as np

from smelt.dim import Size, evaluate, symbol
from smelt.kernel.loops.grammar import Affine, Amount, Expr, Number, Quotient, Remainder, Var, add, scale, split


def value(expr: Expr, at: dict[str, int], sizes: dict[str, int]) -> int:
    match expr:
        case Var(name):
            return at[name]
        case Number(number):
            assert isinstance(number, int)
            return number
        case Amount(size):
            return evaluate(size, sizes)
        case Affine(terms, constant):
            parts = (value(atom, at, sizes) * evaluate(factor, sizes) for atom, factor in terms)
            return sum(parts) + evaluate(constant, sizes)
        case Quotient(x, size) | Remainder(x, size):
            a, b = value(x, at, sizes), evaluate(size, sizes)
            quotient = abs(a) // b if a >= 0 else -(abs(a) // b)  # as C divides
            return quotient if isinstance(expr, Quotient) else a - quotient * b
    raise AssertionError(expr)


def test_split_is_divmod(seed: int) -> None:
    """Random sums of loop variables, among them some with negative factors and constants, for every x >= 0."""
    random = np.random.default_rng(seed)
    seen = 0
    for _ in range(600):
        n = symbol("N")
        sizes = {"N": int(random.integers(1, 7))}
        choices: list[Size] = [1, 2, 3, 4, 6, 12, n, 2 * n, n * n]
        variables = [
            Var(f"v{i}", extent=choices[int(random.integers(0, 7))] if random.random() < 0.8 else None)
            for i in range(int(random.integers(1, 4)))
        ]
        factors: list[Size] = [choices[int(k)] for k in random.integers(0, len(choices), len(variables))]
        factors = [-each if random.random() < 0.25 else each for each in factors]
        constants: list[Size] = [0, 0, 0, 1, -1, 5, n, n - 1, -n, -1 - n]
        constant = constants[int(random.integers(0, len(constants)))]
        x = add(*(scale(var, factor) for var, factor in zip(variables, factors, strict=True)), constant)
        size = choices[int(random.integers(1, len(choices)))]
        if not evaluate(size, sizes):
            continue
        whole, rest = split(x, size)
        ranges = [range(-2, 9) if var.extent is None else range(evaluate(var.extent, sizes)) for var in variables]
        for point in itertools.product(*ranges):
            at = {var.name: each for var, each in zip(variables, point, strict=True)}
            number = value(x, at, sizes)
            if number >= 0:
                seen += 1
                want = divmod(number, evaluate(size, sizes))
                assert (value(whole, at, sizes), value(rest, at, sizes)) == want, (x, size, at, sizes)
    assert seen > 1000
