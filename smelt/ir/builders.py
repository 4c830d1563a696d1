"""StableHLO ops as methods of a builder: `b.add(x, y)` makes `stablehlo.add` and gives its value.

`builders.pyi` has their signatures. It is generated from the op table: `python -m tests.builder_stub` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OpMethods:
    """One method per StableHLO op, by its bare name (`if_` and `and_` for Python's keywords)."""

    op: Callable[..., Any]  # `Builder.op`

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of an op. It gives the op's value, or a tuple where there is not exactly one."""
        if name.startswith("__"):
            raise AttributeError(name)

        def emit(*operands: Any, **keywords: Any) -> Any:
            made = self.op(f"stablehlo.{name.rstrip('_')}", *operands, **keywords)
            return made.results[0] if len(made.results) == 1 else made.results

        return emit
