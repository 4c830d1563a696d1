"""A row of the op table, and the context of its rules.

`OpDef` is the row. `infer(call)` proves the specification's constraints and gives the result types; it sees a `Call`.
`evaluate(frame, op, *operands)` computes the results on NumPy arrays: the op's reference semantics. `ir.interpret`
provides the `Frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from smelt.dim import Size, at_most, minimum, symbol
from smelt.dtype import Array, ElementType, index
from smelt.errors import Location, VerifyError
from smelt.frozen import Frozen
from smelt.ir.attributes import Kind
from smelt.ir.core import Attrs, Func, FuncType, Program, Region, Tuple, Type, Value, find_captures
from smelt.shape import Shape

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()
_TAKE_INDEX = frozenset(
    f"{dialect}.{name}"
    for dialect in ("stablehlo", "chlo")
    for name in (
        "dynamic_broadcast_in_dim",
        "dynamic_iota",
        "dynamic_pad",
        "dynamic_reshape",
        "real_dynamic_slice",
        "rng",
        "scatter",
    )
)
UNKNOWN = symbol("?")  # in a declared result type: the size is whatever inference says; never in a finished op


class Attr(Frozen):
    """One declared attribute. `default=None` means that it may be absent."""

    name: str
    kind: Kind
    default: Any = REQUIRED


class Process(Frozen):
    """One cell of the grid of replicas x partitions that runs a program."""

    replica: int = 0
    partition: int = 0
    replicas: int = 1
    partitions: int = 1

    def __str__(self) -> str:
        return f"({self.replica}, {self.partition})"


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """Put a payload into a channel's queue and go on."""

    channel: Hashable
    payload: Any

    def describe(self) -> str:
        return f"sends on {self.channel}"


@dataclass(frozen=True, slots=True, eq=False)
class Receive:
    """Wait for a payload in a channel's queue: `payload = yield Receive(channel)`."""

    channel: Hashable

    def describe(self) -> str:
        return f"receives on {self.channel}"


@dataclass(frozen=True, slots=True, eq=False)
class Rendezvous:
    """Wait until all `members` reach the same `key`: `payloads = yield Rendezvous(...)` returns member → payload."""

    key: Hashable
    members: tuple[Process, ...]
    payload: Any

    def describe(self) -> str:
        return f"waits at {self.key} for {', '.join(map(str, self.members))}"


Exchange = Send | Receive | Rendezvous


class Frame(Protocol):
    """What `evaluate` may ask of the interpreter (`ir.interpret.Frame`)."""

    program: Program
    process: Process
    world: Any  # infeed, outfeed, probes, callbacks: ir.interpret.World

    def shape(self, type: Type) -> tuple[int, ...]:
        """The sizes of a tensor type as numbers, with the symbols' present values."""

    def lanes(self, region: Region, *args: Array) -> tuple[Array, ...]:
        """Run a region over scalars once per lane: arguments and results are arrays of one common shape."""

    def is_elementwise(self, region: Region) -> bool:
        """Whether `lanes` runs a region on whole arrays; also stacks of its arguments, along a first dimension."""

    def call(self, region: Region, *args: Any) -> tuple[Any, ...]:
        """Run a region once, on whole tensors; nothing inside it may wait for another process."""

    def steps(self, region: Region, *args: Any) -> Generator[Exchange, Any, tuple[Any, ...]]:
        """Run a region from a generator: `results = yield from frame.steps(region, *args)`."""

    def invoke(self, func: Func, *args: Any) -> Generator[Exchange, Any, tuple[Any, ...]]:
        """Call another function: `results = yield from frame.invoke(func, *args)`."""


Infer = Callable[["Call"], Sequence[Type]]
Evaluate = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class OpDef:
    """One row of the table.

    `operands` names them, in order: `"lhs rhs"`; `"inputs*"` is variadic, `"token?"` optional.
    `evaluate` returns one array, or a tuple with one per result. A generator may `yield` an `Exchange` with others.
    `elementwise`: `evaluate` works on arrays of any common shape, element by element.
    `effect`: the op has side effects, so it is never removed, duplicated or reordered.
    """

    name: str
    operands: str
    infer: Infer
    evaluate: Evaluate
    attrs: tuple[Attr, ...] = ()
    regions: int | None = 0  # None: any number
    elementwise: bool = False
    effect: bool = False
    by_name: Mapping[str, Attr] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", MappingProxyType({attr.name: attr for attr in self.attrs}))

    @property
    def dialect(self) -> str:
        return self.name.partition(".")[0]

    def check_counts(self, call: Call) -> None:
        """Reject a wrong number of operands or regions, and a missing attribute, before a rule reads them."""
        names = self.operands.split()
        least = sum(not name.endswith(("*", "?")) for name in names)
        most = None if "*" in self.operands else len(names)
        count = len(call.operands)
        if count < least or (most is not None and count > most):
            call.fail(
                "",
                f"wrong number of operands ({self.operands})",
                expected=least if most == least else f"{least} or more",
                got=count,
            )
        if self.regions is not None and len(call.regions) != self.regions:
            call.fail("", "wrong number of regions", expected=self.regions, got=len(call.regions))
        for attr in self.attrs:
            if attr.default is REQUIRED and attr.name not in call.attrs:
                call.fail("", f"attribute {attr.name!r} is missing", expected=attr.kind.name)
        if self.dialect in ("stablehlo", "chlo"):
            self._check_elements(call)

    def _check_elements(self, call: Call) -> None:
        """The specification has no `index` elements; MLIR allows them in a few lists of sizes and positions."""
        types = [] if self.name in _TAKE_INDEX else [value.type for value in call.operands]
        pending = [*types, *(call.declared or ())]
        while pending:
            type = pending.pop()
            if isinstance(type, Tuple):
                pending += type.types
            if isinstance(type, Shape) and type.dtype is index:
                call.fail("", "this op takes no tensors of index", expected="i64 or another type", got=type)


class Scope:
    """Names for the symbols that a function introduces, and what its ops assume about sizes."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self.taken = set(taken)
        self.equalities: dict[tuple[Size, Size], str] = {}  # (a, b) → why a == b
        self.inequalities: dict[tuple[Size, Size], str] = {}  # (a, b) → why a <= b
        self._next = 0

    def new_symbol(self) -> Size:
        """A new symbol for a data-dependent size."""
        while True:
            name = f"n{self._next}"
            self._next += 1
            if name not in self.taken:
                self.taken.add(name)
                return symbol(name)


class Call:
    """An op that is being built or verified, as its rule sees it: operands, attributes, regions, declared types.

    Declared result types may hold `UNKNOWN` sizes. `declared` is None where the rule must infer everything.
    """

    __slots__ = ("attrs", "declared", "location", "name", "operands", "regions", "scope", "signatures")

    def __init__(
        self,
        name: str,
        operands: Sequence[Value],
        attrs: Attrs,
        regions: Sequence[Region] = (),
        declared: Sequence[Type] | None = None,
        *,
        scope: Scope,
        location: Location | None = None,
        signatures: Mapping[str, FuncType] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.operands = operands
        self.attrs = attrs
        self.regions = regions
        self.declared = declared
        self.scope = scope
        self.location = location
        self.signatures = signatures  # the functions a call or composite may name

    # -- operands and results --

    def shape(self, index: int) -> Shape:
        """The type of operand `index`, which must be a tensor."""
        type = self.operands[index].type
        if not isinstance(type, Shape):
            self.fail("", f"operand {index} must be a tensor", got=type)
        return type

    @property
    def shapes(self) -> list[Shape]:
        """The types of all operands, which must be tensors."""
        return [self.shape(i) for i in range(len(self.operands))]

    def declared_shape(self, index: int = 0) -> Shape:
        """The declared type of result `index`: for ops whose operands do not determine it."""
        if self.declared is None or index >= len(self.declared):
            self.fail("", f"the type of result {index} cannot be inferred", expected="a declared result type")
        type = self.declared[index]
        if not isinstance(type, Shape):
            self.fail("", f"result {index} must be a tensor", got=type)
        return type

    # -- constraints --

    def fail(
        self, label: str, message: str, *, expected: object = None, got: object = None, remedy: str | None = None
    ) -> NoReturn:
        """Reject the op. `label` is the specification's name of the constraint, such as `add_c1`."""
        cited = f" ({label})" if label else ""
        raise VerifyError(
            f"{self.name}: {message}{cited}", expected=expected, got=got, where=self.location, remedy=remedy
        )

    def require(self, holds: bool, label: str, message: str, *, expected: object = None, got: object = None) -> None:
        if not holds:
            self.fail(label, message, expected=expected, got=got)

    def same_size(self, a: Size, b: Size, label: str, message: str) -> None:
        """Two sizes are equal: proven, rejected, or (for symbolic sizes) assumed and checked at run time."""
        if type(a) is int and type(b) is int:
            if a != b:
                self.fail(label, message, expected=a, got=b)
        elif a != b:
            difference = a - b
            if type(difference) is int:  # never zero here: canonical forms differ
                self.fail(label, message, expected=a, got=b)
            self.scope.equalities[(a, b)] = f"{self.name}: {message}"

    def same_sizes(self, a: Sequence[Size], b: Sequence[Size], label: str, message: str) -> None:
        if len(a) != len(b):
            self.fail(label, message, expected=f"rank {len(a)}", got=f"rank {len(b)}")
        for x, y in zip(a, b, strict=True):
            self.same_size(x, y, label, message)

    def at_most(self, a: Size, b: Size, label: str, message: str, *, unless_empty: Sequence[Size] = ()) -> None:
        """One size is at most another: rejected where that never holds; what is not proven is checked at run time.

        `unless_empty`: it need not hold in a run where one of these sizes is 0.
        """
        if type(a) is int and type(b) is int:
            if a > b:
                self.fail(label, message, expected=f"at most {b}", got=a)
            return
        if at_most(b + 1, a):
            self.fail(label, message, expected=f"at most {b}", got=a)
        for size in unless_empty:
            if not at_most(1, size):
                a = minimum(a, a * size)
        self.scope.inequalities[(a, b)] = f"{self.name}: {message}"

    def same_dtype(self, a: ElementType, b: ElementType, label: str, message: str) -> None:
        if a != b:
            self.fail(label, message, expected=a, got=b)

    def same_shape(self, a: Shape, b: Shape, label: str, message: str) -> None:
        """Same element type and sizes."""
        if a is not b:
            self.same_dtype(a.dtype, b.dtype, label, message)
            self.same_sizes(a.sizes, b.sizes, label, message)

    def check_dims(
        self, dims: Sequence[int], rank: int, label: str, what: str, *, unique: bool = True, ordered: bool = False
    ) -> None:
        """Dimension numbers are in [0, rank), and unique and sorted where that is required."""
        if any(not 0 <= dim < rank for dim in dims):
            self.fail(label, f"{what} must be in [0, {rank})", got=list(dims))
        if unique and len(set(dims)) != len(dims):
            self.fail(label, f"{what} must be unique", got=list(dims))
        if ordered and list(dims) != sorted(dims):
            self.fail(label, f"{what} must be sorted", got=list(dims))

    def check_isolated(self, region: Region, label: str) -> None:
        """A region uses no value from outside."""
        outer = find_captures(region)
        if outer:
            self.fail(label, "its region uses a value from outside", got=f"%{outer[0].name or outer[0].index}")

    def check_region(self, region: Region, args: Sequence[Type], results: Sequence[Type], label: str) -> None:
        """A region takes and returns exactly these tensor types."""
        for what, have, want in (("takes", region.args, args), ("returns", region.results, results)):
            if len(have) != len(want):
                self.fail(label, f"its region {what} the wrong number of values", expected=len(want), got=len(have))
            for value, type in zip(have, want, strict=True):
                if isinstance(value.type, Shape) and isinstance(type, Shape):
                    self.same_shape(type, value.type, label, f"a value that its region {what} has the wrong type")
                elif value.type != type:
                    self.fail(
                        label, f"a value that its region {what} has the wrong type", expected=type, got=value.type
                    )


def op_attrs(definition: OpDef, given: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with the declared defaults filled in; what is absent and optional stays absent."""
    filled = dict(given)
    for attr in definition.attrs:
        if attr.name not in filled and attr.default is not None and attr.default is not REQUIRED:
            filled[attr.name] = attr.default
    return filled
