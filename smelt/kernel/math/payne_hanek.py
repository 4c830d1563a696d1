"""Payne–Hanek argument reduction: 2/π to as many bits as the largest argument of sin and cos needs, as C tables.

Computed when the package is loaded, by Machin's formula on Python's integers; `single.py` and `double.py` use them.
"""

from __future__ import annotations

_BITS = 1400


def _inverse_tangent(n: int, one: int) -> int:
    """atan(1/n) in units of 1/one."""
    power = total = one // n
    k = 1
    while power:
        power //= -n * n
        k += 2
        total += power // k
    return total


def _two_over_pi() -> int:
    """2/π in units of 2^-_BITS."""
    guard = 64
    one = 1 << (_BITS + guard)
    pi = 4 * (4 * _inverse_tangent(5, one) - _inverse_tangent(239, one))
    return (2 * one * one // pi) >> guard


TWO_OVER_PI = _two_over_pi()


# 64 zeros and then the bits of 2/π, in words of 32.
_WORDS = [0, 0, *(TWO_OVER_PI >> (_BITS - 32 * (k + 1)) & 0xFFFFFFFF for k in range(42))]


def table() -> str:
    """All words as an array."""
    texts = [", ".join(f"{word:#010x}u" for word in _WORDS[k : k + 8]) for k in range(0, len(_WORDS), 8)]
    return f"static const ui32 smelt_two_over_pi[{len(_WORDS)}] = {{\n  " + ",\n  ".join(texts) + "};"


def select_word(index: str, first: int, count: int) -> str:
    """The word number `first + index`, for an index below `count`, without looking into memory."""
    text = f"{_WORDS[first + count - 1]:#010x}u"
    for k in reversed(range(count - 1)):
        text = f"({index} == {k} ? {_WORDS[first + k]:#010x}u : {text})"
    return text
