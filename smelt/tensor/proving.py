"""The facts in force while a function is traced, proofs from them, and the obligations of every size.

For all values of the symbols, a tensor's size is at least 0 and a divisor at least 1. `require_sizes` proves that for
the results of ops, `require_divisors` for computed sizes. `facts` adds facts and explores branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from smelt.dim import Answer, Fact, Facts, Poly, Size, substitute, symbols
from smelt.size import nonneg
from smelt.tensor.source import refuse
from smelt.theory import atoms_in

if TYPE_CHECKING:
    from smelt.shape import Shape

_NONE = Facts()
FACTS: ContextVar[Facts] = ContextVar("smelt.facts", default=_NONE)  # Facts never change
# The sizes of names in texts: None where every name is a symbol of its own, else only these are known.
MEANINGS: ContextVar[Mapping[str, Size] | None] = ContextVar("smelt.meant", default=None)


def current_facts() -> Facts:
    """The facts that hold here."""
    return FACTS.get()


@contextmanager
def only_facts(facts: Facts) -> Iterator[None]:
    """Replace the facts in force in a block."""
    token = FACTS.set(facts)
    try:
        yield
    finally:
        FACTS.reset(token)


def equal(a: Size, b: Size) -> Answer:
    """Whether two sizes are equal under the facts in force."""
    return current_facts().equal(a, b)


def at_most(a: Size, b: Size) -> Answer:
    """Whether a size is at most another under the facts in force."""
    return current_facts().at_most(a, b)


# ---- names in texts ----


@contextmanager
def bind_names(names: Mapping[str, Size]) -> Iterator[None]:
    """In this block, texts may use these names for sizes and no others."""
    token = MEANINGS.set(names)
    try:
        yield
    finally:
        MEANINGS.reset(token)


def resolve_size(size: Size) -> Size:
    """The size with names resolved. In a traced or checked function the arguments must determine every name."""
    names = MEANINGS.get()
    if names is None or isinstance(size, int):
        return size
    unknown = sorted(symbols(size) - names.keys())
    if unknown:
        refuse(
            f"the size {unknown[0]} is not known here: no argument has such an axis",
            details=[("known", ", ".join(sorted(names)) or "none")],
            remedy=f'add an argument that has an axis of size {unknown[0]}, or compute it: x.size("…")',
        )
    return substitute(size, names)


# ---- obligations ----


def divisors_of(sizes: Iterable[Size]) -> list[Poly]:
    """The symbolic divisors in sizes, each once."""
    atoms = atoms_in(*(size for size in sizes if isinstance(size, Poly) and not _is_plain(size)))
    return list(dict.fromkeys(k for atom in atoms if atom.op in ("//", "%") and isinstance(k := atom.args[1], Poly)))


def entry_facts(sizes: Iterable[Size]) -> Facts:
    """What holds because tensors of these sizes exist: they are at least 0, and what divides in them at least 1."""
    own = list(dict.fromkeys(size for size in sizes if isinstance(size, Poly) and not _is_plain(size)))
    least = [Fact("<=", 1, divisor) for divisor in divisors_of(own)]
    return Facts([*least, *(Fact("<=", 0, size) for size in own if not nonneg(size))])


def require_divisors(sizes: Iterable[Size], given: Iterable[Size] = ()) -> None:
    """Refuse divisors that may be 0 (or negative). `given`: sizes of tensors that exist."""
    for divisor in divisors_of(sizes):
        if not (answer := _least(1, divisor, given)):
            refuse(f"the divisor {divisor} may be 0", answer=answer)


def require_sizes(shapes: Sequence[Shape], given: Sequence[Shape]) -> None:
    """Refuse shapes with a size that may be negative or has no value. `given`: shapes of tensors that exist."""
    known: set[Size] | None = None
    for shape in shapes:
        for size in shape.sizes:
            if isinstance(size, Poly):
                if _is_plain(size):
                    continue
                if known is None:
                    known = {each for other in given for each in other.sizes}
                if size in known:
                    continue
                require_divisors((size,), known)
                answer = Facts().at_most(0, size) if nonneg(size) else _least(0, size, known)
            elif size >= 0:
                continue
            else:
                answer = current_facts().at_most(0, size)
            if not answer:
                refuse(f"a size would be {size}, which may be negative", answer=answer)


def _is_plain(size: Poly) -> bool:
    """Whether a size is a sum of products of symbols: it has a value, and is at least 0."""
    return all(c > 0 and all(atom.op == "symbol" for atom in monomial) for monomial, c in size.terms)


def _least(number: int, size: Size, given: Iterable[Size]) -> Answer:
    answer = current_facts().at_most(number, size)
    if not answer and (more := entry_facts(given)):
        return (current_facts() | more).at_most(number, size)
    return answer
