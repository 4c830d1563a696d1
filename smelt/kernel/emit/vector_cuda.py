"""Vector loads and stores in CUDA: loops over adjacent elements of one thread (`For.level` `vector`), up to 16 bytes.

`kernel_cuda` calls it. A load or store of adjacent elements from an aligned index is one `smelt_vector` access;
everything else is written once per element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from smelt.dim import Size
from smelt.dtype import DType
from smelt.kernel.loops.grammar import (
    Amount,
    Expr,
    For,
    Let,
    Number,
    Place,
    Stmt,
    Var,
    add,
    affine,
    scale,
    variables,
    walk_statements,
)
from smelt.kernel.loops.simt import static_extent

BYTES = 16  # of an instruction
# A compiler may take a copy of a structure apart: these are whole instructions. Equal reads may become one, and come
# before what a thread stores: it reads no element that it has stored.
PACK = """\
template <class T, int N> struct __align__(sizeof(T) * N < 16 ? sizeof(T) * N : 16) smelt_vector { T x[N]; };
template <class P> inline P smelt_get_pack(const void *from) {
  P to;
#ifdef __CUDACC__
  if (sizeof(P) % 16 == 0) {
    ui32 w[sizeof(P) / 4];
#pragma unroll
    for (int i = 0; i < (int)sizeof(P) / 16; i++)
      asm("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]), "=r"(w[4 * i + 3])
          : "l"((const char *)from + 16 * i));
    memcpy(&to, w, sizeof(P));
    return to;
  }
#endif
  to = *(const P *)from;
  return to;
}
template <class P> inline void smelt_put_pack(void *to, const P &x) {
#ifdef __CUDACC__
  if (sizeof(P) % 16 == 0) {
    ui32 w[sizeof(P) / 4];
    memcpy(w, &x, sizeof(P));
#pragma unroll
    for (int i = 0; i < (int)sizeof(P) / 16; i++)
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
          :: "l"((char *)to + 16 * i), "r"(w[4 * i]), "r"(w[4 * i + 1]), "r"(w[4 * i + 2]), "r"(w[4 * i + 3])
          : "memory");
    return;
  }
#endif
  *(P *)to = x;
}
"""


def find_definitions(statements: Sequence[Stmt]) -> dict[Var, Expr]:
    """What every name of a function stands for."""
    return {each.var: each.value for each in walk_statements(statements) if isinstance(each, Let)}


def first_place(place: Place, loop: For, definitions: Mapping[Var, Expr], dtype: DType) -> Place | None:
    """The place of the loop's first element, if the others follow it and it is aligned."""
    var, count = loop.var, static_extent(loop.extent)
    inner = find_definitions(loop.body)
    if dtype.bits < 8 or not isinstance(count, int):
        return None
    step = min(BYTES, count * dtype.bits // 8) * 8 // dtype.bits
    whole = _resolve(place.index, inner)
    if dict(affine(whole).terms).get(var) != 1:
        return None
    first = add(whole, scale(var, -1))
    if any(each == var or each in inner for each in variables(first)):
        return None
    return Place(place.array, first) if _divisor(first, definitions) % step == 0 else None


def _resolve(index: Expr, inner: Mapping[Var, Expr]) -> Expr:
    """An index with the names of the loop's body replaced by what they stand for, where that is a sum."""
    form = affine(index)
    parts = [
        scale(_resolve(inner[atom], inner) if isinstance(atom, Var) and atom in inner else atom, factor)
        for atom, factor in form.terms
    ]
    return add(*parts, form.constant)


def is_multiple(expr: Expr, number: int, definitions: Mapping[Var, Expr]) -> bool:
    """Whether a number surely divides an expression."""
    return _divisor(expr, definitions) % number == 0


def _divisor(expr: Expr, definitions: Mapping[Var, Expr]) -> int:
    """A number that divides an expression."""
    match expr:
        case Number(value):
            return abs(int(value.real)) or 1 << 30
        case Amount(size):
            return _divisor_of_size(size)
        case Var():
            return _divisor(definitions[expr], definitions) if expr in definitions else 1
    form = affine(expr)
    if form.terms == ((expr, 1),):
        return 1
    parts = (_divisor_of_size(factor) * _divisor(atom, definitions) for atom, factor in form.terms)
    return gcd(_divisor_of_size(form.constant), *parts)


def _divisor_of_size(size: Size) -> int:
    if isinstance(size, int):
        return abs(size) or 1 << 30
    return gcd(*(coefficient for _, coefficient in size.terms))
