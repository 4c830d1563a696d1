"""Program, Func, Region, Op and Value: a StableHLO program in memory.

Nodes are frozen and compare by identity; `structure.same` compares what they say. A region keeps the values it
returns instead of a terminator op. Built by `ir.build`, `ir.text` and `ir.rewrite`; read by everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.errors import Location, VerifyError
from smelt.frozen import Frozen
from smelt.shape import Shape


class Token(Frozen):
    """The type of values that only order side effects."""


class Tuple(Frozen):
    """The type of a tuple value."""

    types: tuple[Type, ...]


class Future(Frozen):
    """The type of a value that an asynchronous op promises."""

    types: tuple[Type, ...]


class FuncType(Frozen):
    """Argument and result types of a function; used only inside attributes."""

    inputs: tuple[Type, ...]
    results: tuple[Type, ...]


Type: TypeAlias = Shape | Token | Tuple | Future | FuncType
Attrs: TypeAlias = Mapping[str, Any]

NO_ATTRS: Attrs = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One result of an op, or one argument of a region (`op is None`). `name` is a hint for printing."""

    type: Type
    op: Op | None = field(default=None, repr=False)
    index: int = 0
    name: str = ""

    @property
    def shape(self) -> Shape:
        """The type of a value that is known to be a tensor."""
        assert isinstance(self.type, Shape), f"%{self.name} is a {self.type}, not a tensor"
        return self.type


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A block of ops with arguments; `results` are the values it returns."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Op:
    """One operation. `attrs` holds the attributes the op table declares as typed Python values (defaults filled in);
    attributes it does not declare (`sdy.*`, `mhlo.*`) are kept as `ir.attributes` nodes."""

    name: str
    operands: tuple[Value, ...]
    attrs: Attrs
    regions: tuple[Region, ...]
    results: tuple[Value, ...]
    location: Location | None

    def __init__(
        self,
        name: str,
        operands: Iterable[Value],
        result_types: Sequence[Type],
        attrs: Attrs = NO_ATTRS,
        regions: Iterable[Region] = (),
        location: Location | None = None,
        result_names: Sequence[str] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "name", name)
        put(self, "operands", tuple(operands))
        put(self, "attrs", attrs if isinstance(attrs, MappingProxyType) else MappingProxyType(dict(attrs)))
        put(self, "regions", tuple(regions))
        put(self, "location", location)
        names = result_names or ("",) * len(result_types)
        put(self, "results", tuple(Value(t, self, i, names[i]) for i, t in enumerate(result_types)))

    @property
    def result(self) -> Value:
        """The only result."""
        assert len(self.results) == 1, f"{self.name} has {len(self.results)} results"
        return self.results[0]

    def __repr__(self) -> str:
        return f"<{self.name} -> {', '.join(str(value.type) for value in self.results)}>"


@dataclass(frozen=True, slots=True, eq=False)
class Func:
    """A function: a region with a name. An argument with the attribute `smelt.weight` is bound by `prepare`."""

    name: str
    body: Region
    visibility: str = ""  # "", "public" or "private"
    arg_attrs: tuple[Attrs, ...] = ()
    result_attrs: tuple[Attrs, ...] = ()
    attrs: Attrs = field(default_factory=lambda: NO_ATTRS)
    location: Location | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "arg_attrs", self.arg_attrs or (NO_ATTRS,) * len(self.body.args))
        put(self, "result_attrs", self.result_attrs or (NO_ATTRS,) * len(self.body.results))
        assert len(self.arg_attrs) == len(self.body.args)
        assert len(self.result_attrs) == len(self.body.results)

    @property
    def args(self) -> tuple[Value, ...]:
        return self.body.args

    @property
    def results(self) -> tuple[Value, ...]:
        return self.body.results

    @property
    def type(self) -> FuncType:
        return FuncType(tuple(arg.type for arg in self.args), tuple(value.type for value in self.results))

    def __repr__(self) -> str:
        return f"<func @{self.name}, {len(self.body.ops)} ops>"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A module: functions by name, and the module-level ops that are not functions (`sdy.mesh`)."""

    funcs: Mapping[str, Func]
    name: str = ""
    attrs: Attrs = field(default_factory=lambda: NO_ATTRS)
    declarations: tuple[Op, ...] = ()

    @staticmethod
    def of(*funcs: Func, name: str = "", attrs: Attrs = NO_ATTRS, declarations: tuple[Op, ...] = ()) -> Program:
        return Program(MappingProxyType({func.name: func for func in funcs}), name, attrs, declarations)

    def __repr__(self) -> str:
        return f"<program {self.name} {list(self.funcs.values())}>".replace("  ", " ")

    def _repr_html_(self) -> str:
        """For notebooks: one row for each function, with the types of its arguments and results and its ops."""
        from html import escape

        rows = "".join(
            f"<tr><td>@{escape(func.name)}</td><td><code>{escape(_format_types(func.type))}</code></td>"
            f"<td>{sum(1 for _ in walk(func.body))} ops</td></tr>"
            for func in self.funcs.values()
        )
        return f"<table><caption>{escape(f'program {self.name}'.strip())}</caption>{rows}</table>"

    @property
    def main(self) -> Func:
        """The entry: `@main`, else the only public function, else the first one."""
        if not self.funcs:
            raise VerifyError("the program has no function", expected="func.func @main", got="an empty module")
        if "main" in self.funcs:
            return self.funcs["main"]
        public = [func for func in self.funcs.values() if func.visibility != "private"]
        return public[0] if len(public) == 1 else next(iter(self.funcs.values()))

    def func(self, name: str) -> Func:
        """The function of that name, or an error that lists the names there are."""
        if name not in self.funcs:
            raise VerifyError(f"no function @{name}", expected="one of " + ", ".join(self.funcs), got=f"@{name}")
        return self.funcs[name]

    def replace(self, *funcs: Func) -> Program:
        """The same program with some functions replaced or added, by name."""
        return Program(
            MappingProxyType({**self.funcs, **{func.name: func for func in funcs}}),
            self.name,
            self.attrs,
            self.declarations,
        )


def _format_types(type: FuncType) -> str:
    inputs, results = (", ".join(map(str, types)) for types in (type.inputs, type.results))
    return f"({inputs}) → ({results})"


def walk(region: Region) -> Iterator[Op]:
    """Every op of a region and of the regions inside it, each before what it contains."""
    stack = [iter(region.ops)]
    while stack:
        op = next(stack[-1], None)
        if op is None:
            stack.pop()
            continue
        yield op
        for inner in reversed(op.regions):
            stack.append(iter(inner.ops))


def find_captures(*regions: Region) -> tuple[Value, ...]:
    """Values from outside that regions use, in order of first use."""
    own: set[Value] = set()
    used: dict[Value, None] = {}
    for region in regions:
        own.update(region.args)
        for op in walk(region):
            own.update(op.results)
            used.update(dict.fromkeys(op.operands))
            for inner in op.regions:
                own.update(inner.args)
                used.update(dict.fromkeys(inner.results))
        used.update(dict.fromkeys(region.results))
    return tuple(value for value in used if value not in own)


def used_values(op: Op) -> tuple[Value, ...]:
    """The operands of an op, and what its regions capture."""
    return (*op.operands, *find_captures(*op.regions)) if op.regions else op.operands
