"""Expressions and plain statements in C: what the kernel printers of all C-like languages share.

`kernel_c` prints kernels of loops on cores and vectors with it, `kernel_cuda` kernels of a grid of threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.dim import Size
from smelt.dtype import DType
from smelt.errors import UnsupportedError
from smelt.kernel import math
from smelt.kernel.emit.sizes_c import number_text
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import (
    SHORT,
    Affine,
    Amount,
    Apply,
    Bitcast,
    Convert,
    Declare,
    Expr,
    Fold,
    If,
    Let,
    Load,
    Number,
    Place,
    Quotient,
    Remainder,
    Set,
    Stmt,
    Store,
    Var,
    While,
)


@dataclass(slots=True)
class Printer(ABC):
    """A function of a kernel under construction. `locals` are the pointers and sizes that it uses, declared first."""

    name: str
    sizes: dict[Size, int] = field(default_factory=dict)  # that the kernel takes, numbered
    locals: dict[str, str] = field(default_factory=dict)

    @abstractmethod
    def pointer(self, buffer: int, kind: str) -> str:
        """A pointer to the elements of a buffer."""

    @abstractmethod
    def size_value(self, place: int) -> str:
        """The size of a number."""

    @abstractmethod
    def statement(self, stmt: Stmt, depth: int) -> list[str]:
        """A statement as lines of source."""

    def array(self, place: Place, kind: str) -> str:
        """A pointer to the elements of a buffer or a tile."""
        return place.array if isinstance(place.array, str) else self.pointer(place.array, kind)

    def address(self, place: Place, kind: str) -> str:
        return f"{self.array(place, kind)} + {self.expr(place.index)}"

    def element(self, place: Place, dtype: DType) -> str:
        return f"{self.array(place, math.storage(dtype))}[{self.expr(place.index)}]"

    # -- statements --

    def block(self, statements: Sequence[Stmt], depth: int) -> list[str]:
        return [line for each in statements for line in self.statement(each, depth)]

    def plain(self, stmt: While | If | Let | Declare | Set | Store, depth: int) -> list[str]:
        """A statement that is the same in every language."""
        pad = "  " * depth
        match stmt:
            case While(head, condition, body):
                return [
                    f"{pad}for (;;) {{",
                    *self.block(head, depth + 1),
                    f"{pad}  if (!{self.expr(condition)}) break;",
                    *self.block(body, depth + 1),
                    f"{pad}}}",
                ]
            case If(condition, then, otherwise):
                lines = [f"{pad}if ({self.expr(condition)}) {{", *self.block(then, depth + 1)]
                if otherwise:
                    lines += [f"{pad}}} else {{", *self.block(otherwise, depth + 1)]
                return [*lines, f"{pad}}}"]
            case Let(var, value):
                return [f"{pad}const {math.register(var.dtype)} {var.name} = {self.expr(value)};"]
            case Declare(var, value):
                return [f"{pad}{math.register(var.dtype)} {var.name} = {self.expr(value)};"]
            case Set(var, value):
                return [f"{pad}{var.name} = {self.expr(value)};"]
            case Store(place, value):
                text = self.expr(value)
                stored = text if isinstance(place.array, str) else math.store(value.dtype, text)
                return [f"{pad}{self.element(place, value.dtype)} = {stored};"]

    def fold(self, fold: Fold, depth: int) -> list[str]:
        """In order where it is short; else one total per lane, then a tree of halves."""
        pad, kind = "  " * depth, math.register(fold.total.dtype)
        var, total, extent = fold.var.name, fold.total.name, self.expr(fold.extent)
        function, dtype, wide, lanes = fold.function, fold.total.dtype, fold.accumulator, fold.lanes

        def step(a: str, b: str, of: DType) -> str:
            return apply_text(function, [a, b], [of, of], of)

        value = self.expr(fold.value)
        short = [
            f"{pad}  {kind} sum = {self.expr(fold.start)};",
            f"{pad}  for (i64 {var} = 0; {var} < {extent}; {var}++) {{",
            *self.block(fold.body, depth + 2),
            f"{pad}    sum = {step('sum', value, dtype)};",
            f"{pad}  }}",
            f"{pad}  {total} = sum;",
        ]
        if fold.lanes == 1:
            return [f"{pad}{kind} {total};", f"{pad}{{", *short, f"{pad}}}"]
        nothing = math.literal(identity(function, wide).value, wide)
        body = self.block(fold.body, depth + 3)
        lines = [
            f"{pad}{kind} {total};",
            f"{pad}if ({extent} <= {SHORT}) {{",
            *short,
            f"{pad}}} else {{",
            f"{pad}  {kind} lane[{lanes}];",
            f"{pad}  for (i64 l = 0; l < {lanes}; l++) lane[l] = {nothing};",
            f"{pad}  i64 at = 0;",
            f"{pad}  for (; at + {lanes} <= {extent}; at += {lanes}) {{",
            f"{pad}    LANES for (i64 l = 0; l < {lanes}; l++) {{ const i64 {var} = at + l;",
            *body,
            f"{pad}      lane[l] = {step('lane[l]', value, wide)}; }}",
            f"{pad}  }}",
            f"{pad}  for (i64 l = 0; l < {lanes}; l++) if (at + l < {extent}) {{ const i64 {var} = at + l;",
            *body,
            f"{pad}      lane[l] = {step('lane[l]', value, wide)}; }}",
        ]
        half = lanes // 2
        while half:
            lines.append(
                f"{pad}  for (i64 l = 0; l < {half}; l++) lane[l] = {step('lane[l]', f'lane[l + {half}]', wide)};"
            )
            half //= 2
        lines += [f"{pad}  {total} = {step(self.expr(fold.start), 'lane[0]', dtype)};", f"{pad}}}"]
        return lines

    # -- expressions --

    def size(self, size: Size) -> str:
        if isinstance(size, int):
            return number_text(size) if abs(size) >= 1 << 31 else str(size)
        place = self.sizes.setdefault(size, len(self.sizes))
        return self.size_value(place)

    def divisor(self, size: Size) -> str:
        """A size to divide by. Where it is 0 the quotient is unused, but may be computed before the test for that."""
        text = self.size(size)
        if isinstance(size, int):
            return text if size else "1"
        self.locals[f"{text}_or_1"] = f"  const i64 {text}_or_1 = {text} ? {text} : 1;"
        return f"{text}_or_1"

    def expr(self, expr: Expr) -> str:
        match expr:
            case Var(name):
                return name
            case Number(value, dtype):
                return math.literal(value, dtype)
            case Amount(size):
                return self.size(size)
            case Affine(terms, constant):
                parts = [self._times(atom, coefficient) for atom, coefficient in terms]
                if constant != 0:
                    parts.append(self.size(constant))
                return f"({' + '.join(parts)})"
            case Quotient(x, size):
                return f"({self.expr(x)} / {self.divisor(size)})"
            case Remainder(x, size):
                return f"({self.expr(x)} % {self.divisor(size)})"
            case Load(place, dtype):
                text = self.element(place, dtype)
                return text if isinstance(place.array, str) else math.load(dtype, text)
            case Convert(x, dtype):
                return math.convert(self.expr(x), x.dtype, dtype)
            case Bitcast(x, dtype):
                return math.bitcast(self.expr(x), x.dtype, dtype)
            case Apply("reduce_precision", (x,), dtype, (exponent, mantissa)):
                return math.reduce_precision(self.expr(x), dtype, exponent, mantissa)
            case Apply("maximum" | "minimum" as function, (x, Number(bound)), dtype) if (
                dtype.is_float and bound == bound
            ):
                return self.clamp_text(function, self.expr(x), bound, dtype)
            case Apply(function, args, dtype, _):
                return apply_text(function, [self.expr(arg) for arg in args], [arg.dtype for arg in args], dtype)

    def clamp_text(self, function: str, x: str, bound: float | complex, dtype: DType) -> str:
        """The maximum or minimum of a value and a number as one instruction; NaN propagates, -0 < +0."""
        number = math.literal(bound, dtype)
        sign = ">" if function == "maximum" else "<"
        chosen = f"({number} {sign} {x} ? {number} : {x})"
        if bound != 0:
            return chosen
        if function == "maximum" and str(bound)[0] != "-":
            return f"({chosen} + {number})"  # -0 becomes 0
        return apply_text(function, [x, number], [dtype, dtype], dtype)

    def _times(self, atom: Expr, coefficient: Size) -> str:
        text = self.expr(atom)
        return text if coefficient == 1 else f"{text} * {self.size(coefficient)}"


def apply_text(function: str, args: Sequence[str], operands: Sequence[DType], result: DType) -> str:
    text = math.apply(function, args, operands, result)
    if text is None:
        raise UnsupportedError(
            f"the native engine does not support {function} of {operands[0]}", remedy="engine='reference'"
        )
    return text
