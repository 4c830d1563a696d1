"""The coefficients in `smelt/kernel/math`: polynomials through Chebyshev's points, computed in 50 digits.

python bench/fit_math.py > smelt/kernel/math/tables.py
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 50
Function = Callable[[mp.mpf], mp.mpf]


def series(take: Function, terms: Callable[[int], mp.mpf]) -> Function:
    """`take`, but Taylor's series about 0 where `take` would cancel."""
    return lambda x: take(x) if abs(x) > mp.mpf("1e-4") else mp.fsum(terms(n) * x**n for n in range(14))


def _erfc_scaled(t: mp.mpf, centre: mp.mpf) -> mp.mpf:
    """(1 + 2a) e^(a²) erfc(a) at t = (a - centre) / (a + centre)."""
    a = centre * (1 + t) / (1 - t)
    return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)


HEAD = """Coefficients of the polynomials in `single.py` and `double.py`, lowest power first.

Written by `bench/fit_math.py`.

`_F32`: of functions computed in single precision; `_WIDE`: of f32 functions that are computed in double; `_F64`.
"""

LN2, ROOT = mp.log(2), mp.sqrt(2)
_TANH_SERIES = mp.taylor(mp.tanh, 0, 31)
_EXP = series(lambda r: (mp.expm1(r) - r) / r**2, lambda n: 1 / mp.factorial(n + 2))
_LOG = series(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, lambda n: (-1) ** n / mp.mpf(n + 3))
_ATANH = series(lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z, lambda n: mp.mpf(2) / (2 * n + 3))
_ATANH_TAIL = series(lambda z: (_ATANH(z) - mp.mpf(2) / 3) / z, lambda n: mp.mpf(2) / (2 * n + 5))
_TANH = series(lambda z: (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda n: _TANH_SERIES[2 * n + 3])
_ERF = series(
    lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
    lambda n: 2 / mp.sqrt(mp.pi) * (-1) ** n / (mp.factorial(n) * (2 * n + 1)) - (n == 0),
)
_SIN = series(lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda n: (-1) ** (n + 1) / mp.factorial(2 * n + 3))
_COS = series(lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda n: (-1) ** n / mp.factorial(2 * n + 4))
_ATAN = series(lambda z: (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda n: (-1) ** (n + 1) / mp.mpf(2 * n + 3))
_EXP2 = series(lambda r: (mp.mpf(2) ** r - 1) / r, lambda n: LN2 ** (n + 1) / mp.factorial(n + 1))

# name → (function, from, to, coefficients, type of the coefficients)
TABLES: dict[str, tuple[Function, mp.mpf, mp.mpf, int, type]] = {
    "EXP_F32": (_EXP, -LN2 / 2, LN2 / 2, 5, np.float32),
    "LOG_F32": (_LOG, 1 / ROOT - 1, ROOT - 1, 9, np.float32),
    "TANH_F32": (_TANH, mp.mpf(0), mp.mpf("0.37"), 5, np.float32),
    "ERF_F32": (_ERF, mp.mpf(0), mp.mpf("0.86"), 7, np.float32),
    "LOG_ERFC_F32": (lambda a: mp.log(mp.erfc(a)), mp.mpf("0.92"), mp.mpf(4), 9, np.float32),
    "ERF_WIDE": (_ERF, mp.mpf(0), mp.mpf("0.25"), 7, np.float64),
    "SIN_WIDE": (_SIN, mp.mpf(0), mp.mpf("0.62"), 4, np.float64),
    "COS_WIDE": (_COS, mp.mpf(0), mp.mpf("0.62"), 4, np.float64),
    "ATAN_WIDE": (_ATAN, mp.mpf(0), (ROOT - 1) ** 2, 7, np.float64),
    "ATANH_WIDE": (_ATANH, mp.mpf(0), mp.mpf("0.0295"), 6, np.float64),
    "EXP2_WIDE": (_EXP2, mp.mpf("-0.5"), mp.mpf("0.5"), 7, np.float64),
    "ERFC_WIDE": (lambda t: _erfc_scaled(t, mp.mpf(3)), mp.mpf("-0.72"), mp.mpf("0.56"), 13, np.float64),
    "EXP_F64": (_EXP, -LN2 / 2, LN2 / 2, 11, np.float64),
    "TANH_F64": (_TANH, mp.mpf(0), mp.mpf("0.37"), 13, np.float64),
    "ATANH_F64": (_ATANH, mp.mpf(0), mp.mpf("0.0295"), 8, np.float64),
    "ATANH_TAIL_F64": (_ATANH_TAIL, mp.mpf(0), mp.mpf("0.0295"), 8, np.float64),
    "SIN_F64": (_SIN, mp.mpf(0), mp.mpf("0.62"), 7, np.float64),
    "COS_F64": (_COS, mp.mpf(0), mp.mpf("0.62"), 7, np.float64),
    "ATAN_F64": (_ATAN, mp.mpf(0), (ROOT - 1) ** 2, 14, np.float64),
    "ERF_F64": (_ERF, mp.mpf(0), mp.mpf(1), 14, np.float64),
    "ERFC_F64": (lambda t: _erfc_scaled(t, mp.mpf(3)), mp.mpf("-0.76"), mp.mpf("0.81"), 25, np.float64),
}


def main() -> None:
    print(f'"""{HEAD}"""\n')
    for name, (function, low, high, count, kind) in TABLES.items():
        coefficients, error = mp.chebyfit(function, [low, high], count, error=True)
        values = [float(kind(float(c))) for c in reversed(coefficients)]
        print(f"{name} = (  # off by {mp.nstr(error, 2)} at most, before the coefficients were rounded")
        for value in values:
            print(f"    {value!r},")
        print(")")
        if name == "ERFC_F64":
            print(f"{name}_REST = {float(coefficients[-1] - values[0])!r}  # what rounding took from the first")


if __name__ == "__main__":
    main()
