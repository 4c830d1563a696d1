"""MLIR text to a Program: functions, regions and ops of func, stablehlo, chlo, sdy, check and interpreter.

Two passes. The first reads the module's outline: signatures, aliases, meshes and resources, and skips the bodies. The
second reads each body after those of the functions it calls, because a `?` in a callee's result is known only then.
Ops are made by `ir.build.make`, which verifies them. What is wrong becomes a SmeltError that shows the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast

from smelt.dim import Size, symbol
from smelt.errors import Location, ParseError, SmeltError, VerifyError
from smelt.ir.attributes import read_attr
from smelt.ir.build import make
from smelt.ir.core import Func, FuncType, Future, Op, Program, Region, Token, Tuple, Type, Value
from smelt.ir.ops import OPS, definition_of
from smelt.ir.ops.definition import UNKNOWN, Scope
from smelt.ir.text import types as text_types
from smelt.ir.text.assembly import Draft, read_function
from smelt.ir.text.attrs import Attributes
from smelt.ir.text.export import SIZES
from smelt.ir.text.formats import FORMATS
from smelt.ir.text.lexer import CARET, HASH, ID, INTEGER, STRING, VALUE, Cursor
from smelt.ir.text.outline import FuncOutline, Outline
from smelt.ir.text.types import Types
from smelt.shape import Shape

_RETURNS = {"return": "func.return"} | {name: name for name in ("func.return", "stablehlo.return", "sdy.return")}
_ALSO_RETURNS = {("func.return", "stablehlo.return")}  # (expected, as good as that)
_FIXED = {  # ops whose results have known sizes; True: one may be open and bounded
    "stablehlo.constant": False,
    "chlo.constant": False,
    "stablehlo.iota": False,
    "stablehlo.infeed": False,
    "stablehlo.recv": False,
    "stablehlo.reshape": True,
    "stablehlo.broadcast_in_dim": True,
}
_SHORT_NAMES = {"call": "func.call", "return": "func.return"}


def parse(text: str, path: str = "<text>") -> Program:
    """Parse the text of a program; `path` is the file's name in errors and locations."""
    if not isinstance(cast(object, text), str):
        remedy = "smelt.read(path) reads files"
        raise ParseError("this is no text", expected="MLIR text as a str", got=type(text).__name__, remedy=remedy)
    if "\0" in text:
        raise ParseError("this is no text", expected="MLIR text", got="a zero byte", where=Location(path))
    try:
        return Parser(text, path).program()
    except RecursionError:
        raise ParseError("nested too deeply", where=Location(path)) from None


class Parser:
    """Reads one text. The names of values are scoped: a region sees those around it and may not define them again."""

    def __init__(self, text: str, path: str) -> None:
        self.cursor = Cursor(text, path)
        self.types = Types(self.cursor)
        self.attributes = Attributes(self.cursor, self.types)
        self.outline = Outline(self.cursor, self.types, self.attributes)
        self.funcs: dict[str, Func] = {}
        self.signatures: dict[str, FuncType] = {}
        self.values: dict[str, tuple[Value, ...]] = {}
        self.scope = Scope()
        self.declared: dict[Value, Type] = {}  # how the text calls values whose sizes it leaves open
        self._defined: list[str] = []

    def program(self) -> Program:
        try:
            self.outline.read()
            for func in self.outline.in_call_order():
                self._body(func)
        except SmeltError as error:
            self._show_line(error)
            raise
        outline = self.outline
        funcs = MappingProxyType({name: self.funcs[name] for name in outline.funcs})
        return Program(funcs, outline.name, MappingProxyType(outline.attrs), tuple(outline.declarations))

    def _show_line(self, error: SmeltError) -> None:
        where = error.where
        if error.source is None and isinstance(where, Location) and where.path == self.cursor.path and where.line:
            last = self.cursor.place(len(self.cursor.text)).line
            if where.line <= last:
                error.source = self.cursor.caret_line(where)

    # ---- the second pass: bodies ----

    def _body(self, outline: FuncOutline) -> None:
        cursor = self.cursor
        self.values, self._defined = {}, []
        cursor.seek(outline.body)
        cursor.expect("{")
        if outline.generic:
            self._generic_names(outline)
        self._read_sizes(outline)
        taken = {name for type in outline.inputs for name in _symbols(type)} - {"?"}
        self.scope = Scope(frozenset(taken))
        types = _named_sizes(outline.inputs, self.scope)
        args = tuple(
            Value(type, None, i, _hint(name)) for i, (type, name) in enumerate(zip(types, outline.names, strict=True))
        )
        for name, arg, type in zip(outline.names, args, outline.inputs, strict=True):
            self._define(name, (arg,), outline.start)
            self.declared[arg] = type
        if cursor.kind == CARET and not outline.generic:
            cursor.fail("a function with several blocks", expected="an op")
        ops, results, returned_at = self._ops("func.return")
        self._check_returned(outline, results, returned_at)
        func = Func(
            outline.name,
            Region(args, tuple(ops), tuple(results)),
            outline.visibility,
            tuple(outline.arg_attrs),
            tuple(outline.result_attrs),
            outline.attrs,
            outline.location,
        )
        self.funcs[func.name] = func
        self.signatures[func.name] = func.type

    def _read_sizes(self, outline: FuncOutline) -> None:
        """Names for sizes that our own export keeps in an attribute."""
        for i, (type, attrs) in enumerate(zip(outline.inputs, outline.arg_attrs, strict=True)):
            text = attrs.get(SIZES)
            if isinstance(type, Shape) and isinstance(text, str):
                outline.inputs[i] = self.types.sizes(type, text, outline.start)
                outline.arg_attrs[i] = MappingProxyType({name: node for name, node in attrs.items() if name != SIZES})

    def _generic_names(self, outline: FuncOutline) -> None:
        """The names of the arguments of a function in generic form, from its block."""
        cursor = self.cursor
        start = cursor.start
        args: list[tuple[str, Type]] = []
        if cursor.kind == CARET:
            args = self._block_arguments()
        if len(args) != len(outline.inputs) or any(a != b for (_, a), b in zip(args, outline.inputs, strict=True)):
            cursor.fail(
                "the block's arguments are not the function's", at=start, expected=len(outline.inputs), got=len(args)
            )
        outline.names = [name for name, _ in args]

    def _check_returned(self, outline: FuncOutline, results: Sequence[Value], at: int) -> None:
        """What a function returns is what its signature says, so far as it says it."""
        if len(results) != len(outline.results):
            self.cursor.fail(
                f"@{outline.name} returns another number of values",
                at=at,
                expected=len(outline.results),
                got=len(results),
            )
        for value, declared in zip(results, outline.results, strict=True):
            if not self._is_called(value, declared):
                raise VerifyError(
                    f"@{outline.name} returns a value of another type than its signature says",
                    expected=text_types.show(declared),
                    got=text_types.show(value.type),
                    where=self.cursor.place(at),
                )

    def _define(self, name: str, values: tuple[Value, ...], at: int) -> None:
        if name in self.values:
            self.cursor.fail("a value is defined twice", at=at, got=name)
        self.values[name] = values
        self._defined.append(name)

    @contextmanager
    def _inner_names(self) -> Iterator[None]:
        outside = self._defined
        self._defined = []
        yield
        for name in self._defined:
            del self.values[name]
        self._defined = outside

    def _ops(self, terminator: str) -> tuple[list[Op], list[Value], int]:
        """Ops up to the closing brace: the ops, the values returned, and where."""
        cursor = self.cursor
        ops: list[Op] = []
        while True:
            if cursor.kind == VALUE:
                ops.append(self._op())
                continue
            word = cursor.token[1:-1] if cursor.kind == STRING else cursor.token if cursor.kind == ID else ""
            found = _RETURNS.get(word)
            if found is None:
                if cursor.token == "}" and cursor.kind != STRING:
                    cursor.fail("a region without a return at its end", expected=terminator)
                if cursor.kind == CARET:
                    cursor.refuse(
                        "a region with several blocks", expected="one block", remedy="use stablehlo.if or while"
                    )
                ops.append(self._op())
                continue
            start = cursor.start
            if found != terminator and (terminator, found) not in _ALSO_RETURNS:
                cursor.fail("the wrong return for this place", expected=terminator)
            values = self._return()
            if cursor.token != "}":
                cursor.fail("text after a return", expected="'}'")
            cursor.advance()
            return ops, values, start

    def _return(self) -> list[Value]:
        cursor = self.cursor
        generic = cursor.kind == STRING
        start = cursor.start
        cursor.advance()
        values: list[Value] = []
        if generic:
            values = [self.operand() for _ in cursor.read_list("(", ")")]
        elif cursor.kind == VALUE:
            values.append(self.operand())
            while cursor.accept(","):
                values.append(self.operand())
        self.attributes.properties()
        if cursor.token == "{":
            self.attributes.dictionary()
        types: Sequence[Type] = ()
        if generic:
            cursor.expect(":")
            types = self.types.function().inputs
        elif values:
            cursor.expect(":")
            types = self.types.row()
        self._check_types(values, types, start)
        self._location()
        return values

    def _location(self) -> Location | None:
        return self.attributes.location() if self.cursor.token == "loc" and self.cursor.kind == ID else None

    # ---- one op ----

    def _op(self) -> Op:
        cursor = self.cursor
        start = cursor.start
        names: list[tuple[str, int]] = []
        if cursor.kind == VALUE:
            names = self._result_names()
        if cursor.kind == STRING:
            at = cursor.start
            draft = self._draft(cursor.string(), start, at)
            self.generic(draft)
        elif cursor.kind == ID:
            name = _SHORT_NAMES.get(cursor.token, cursor.token)
            draft = self._draft(name, start, cursor.start)
            form = FORMATS.get(name)
            if form is None:
                cursor.fail(f"{name} has no short form", expected=f'"{name}"(…)')
            cursor.advance()
            form.read(self, draft)
        else:
            cursor.fail("unexpected text", expected="an op")
        return self._finish(draft, names, start)

    def _draft(self, name: str, start: int, at: int) -> Draft:
        definition = OPS.get(name)
        return Draft(name, definition_of(name, self.cursor.place(at)) if definition is None else definition, start)

    def _result_names(self) -> list[tuple[str, int]]:
        """`%a, %b:2 =`"""
        cursor = self.cursor
        names = []
        while True:
            name = cursor.expect_kind(VALUE, "%name")
            count = 1
            if cursor.accept(":"):
                if (
                    cursor.kind != INTEGER
                    or len(cursor.token) > 6
                    or cursor.token.startswith("0x")
                    or int(cursor.token) < 1
                ):
                    cursor.fail("unexpected text", expected="a number of results")
                count = int(cursor.advance())
            names.append((name, count))
            if not cursor.accept(","):
                break
        cursor.expect("=")
        return names

    def _finish(self, draft: Draft, names: list[tuple[str, int]], start: int) -> Op:
        cursor = self.cursor
        if draft.operand_types is not None:
            self._check_types(draft.operands, draft.operand_types, start)
        place = cursor.place(start)
        if cursor.token == "loc" and cursor.kind == ID:
            place = self.attributes.location() or place
        results = draft.results
        if draft.name in _FIXED:
            self._check_fixed(draft, start)
        if len(names) == 1 and names[0][1] == 1 == len(results):
            hints = [_hint(names[0][0])]
        else:
            hints = self._hints(names, draft, start)
        op = make(
            draft.name,
            draft.operands,
            self._parse_typed(draft, place),
            draft.regions,
            [type if isinstance(type, Shape) else self._value_type(type, start) for type in results],
            scope=self.scope,
            location=place,
            result_names=hints,
            signatures=self.signatures,
        )
        for value, type in zip(op.results, results, strict=True):
            if value.type is not type and value.type != type:
                self.declared[value] = type
        at = 0
        for name, n in names:
            self._define(name, op.results[at : at + n], start)
            at += n
        return op

    def _check_fixed(self, draft: Draft, start: int) -> None:
        """Results whose sizes the text must say; one may stay dynamic where it has a bound and the op allows that."""
        for type in draft.results:
            if isinstance(type, Shape) and UNKNOWN in type.sizes:
                bounded = type.bounds is not None and None not in [
                    bound for bound, size in zip(type.bounds, type.sizes, strict=True) if size == UNKNOWN
                ]
                if not (_FIXED[draft.name] and bounded and type.sizes.count(UNKNOWN) == 1):
                    self.cursor.fail(f"{draft.name} needs a result of known size", at=start, got=text_types.show(type))

    def _hints(self, names: list[tuple[str, int]], draft: Draft, start: int) -> list[str]:
        """Names for printing; results that the text leaves unnamed have none."""
        count = sum(n for _, n in names)
        if names and count != len(draft.results):
            self.cursor.fail(
                f"{draft.name} has another number of results", at=start, expected=len(draft.results), got=count
            )
        return [hint for name, n in names for hint in (_hint(name), *[""] * (n - 1))]

    def _value_type(self, type: Any, start: int) -> Type:
        if isinstance(type, Shape | Token | Tuple | Future):
            return type
        self.cursor.refuse(
            "a value of this type", at=start, expected="a tensor, a token, a tuple or a future", got=type
        )

    def _parse_typed(self, draft: Draft, place: Location) -> dict[str, Any]:
        known = draft.definition.by_name
        attrs = {}
        for name, node in draft.attrs.items():
            declared = known.get(name)
            attrs[name] = node if declared is None else read_attr(declared.kind, node, draft.name, name, place)
        return attrs

    def _check_types(self, values: Sequence[Value], types: Sequence[Type], start: int) -> None:
        """The types that the text gives operands are those they were defined with."""
        if len(values) != len(types):
            self.cursor.fail("wrong number of types", at=start, expected=len(values), got=len(types))
        for i, (value, type) in enumerate(zip(values, types, strict=True)):
            if value.type is not type and not self._is_called(value, type):
                self.cursor.fail(
                    f"operand {i} was defined with another type",
                    at=start,
                    expected=text_types.show(value.type),
                    got=text_types.show(type),
                )

    def _is_called(self, value: Value, type: Type) -> bool:
        """Whether a text may call a value's type `type`: a `?` stays a `?` even where inference found a number."""
        return fits(value.type, type) and has_same_dynamic_sizes(self.declared.get(value, value.type), type)

    # ---- what formats call ----

    def operand(self) -> Value:
        cursor = self.cursor
        token = cursor.token
        if cursor.kind != VALUE:
            cursor.fail("unexpected text", expected="an operand")
        found = self.values.get(token)
        if found is None:
            cursor.fail("a value that is not defined here", got=token)
        cursor.advance()
        if cursor.kind != HASH or not cursor.token[1:].isdigit():
            return found[0]
        index = int(cursor.token[1:8])
        if index >= len(found) or len(cursor.token) > 8:
            cursor.fail(f"{token} has {len(found)} results", got=cursor.token)
        cursor.advance()
        return found[index]

    def argument(self) -> tuple[str, Type]:
        cursor = self.cursor
        name = cursor.expect_kind(VALUE, "%name")
        cursor.expect(":")
        type = self.types.value()
        self._location()
        return name, type

    def dictionary(self, draft: Draft) -> None:
        if self.cursor.token == "{":
            self._add(draft, self.attributes.dictionary())

    def _add(self, draft: Draft, items: Mapping[str, Any]) -> None:
        for name, node in items.items():
            if name in draft.attrs:
                self.cursor.fail("an attribute is given twice", at=draft.start, got=name)
            draft.attrs[name] = node

    def generic(self, draft: Draft) -> None:
        cursor = self.cursor
        draft.operands += [self.operand() for _ in cursor.read_list("(", ")")]
        start = cursor.start
        draft.attrs |= self.attributes.properties()
        if draft.attrs and not draft.definition.attrs and draft.definition.dialect in ("stablehlo", "chlo"):
            cursor.fail(f"{draft.name} has no properties", at=start, got=", ".join(draft.attrs))
        if cursor.token == "(":
            for _ in cursor.read_list("(", ")"):
                draft.regions.append(self.region(draft))
        self.dictionary(draft)
        cursor.expect(":")
        read_function(self, draft)

    def region(self, draft: Draft, args: Sequence[tuple[str, Type]] | None = None) -> Region:
        cursor = self.cursor
        with cursor.deeper(), self._inner_names():
            start = cursor.start
            cursor.expect("{")
            given = list(args or ())
            if cursor.kind == CARET:
                if args is not None:
                    cursor.fail("a block with arguments of its own", expected="an op")
                given = self._block_arguments()
            values = []
            for i, (name, type) in enumerate(given):
                feeding = draft.operands[i].type if i < len(draft.operands) else None
                value = Value(_argument_type(type, feeding, self.scope), None, i, _hint(name))
                self.declared[value] = type
                self._define(name, (value,), start)
                values.append(value)
            ops, results, _ = self._ops("stablehlo.return")
            return Region(tuple(values), tuple(ops), tuple(results))

    def _block_arguments(self) -> list[tuple[str, Type]]:
        """`^bb0(%arg0: type, …):`"""
        cursor = self.cursor
        cursor.advance()
        args = []
        if cursor.token == "(":
            args = [self.argument() for _ in cursor.read_list("(", ")")]
        cursor.expect(":")
        return args

    def one_op_region(self, draft: Draft, name: str, args: Sequence[Type]) -> Region:
        place = self.cursor.place(draft.start)
        values = tuple(Value(type, None, i) for i, type in enumerate(args))
        op = make(name, values, scope=self.scope, location=place, signatures=self.signatures)
        return Region(values, (op,), op.results)


# ---- sizes that the text leaves open ----


def fits(type: Type, declared: Type) -> bool:
    """Whether a value of `type` may be called `declared`, which may leave sizes open."""
    if type == declared:
        return True
    match type, declared:
        case Shape(), Shape():
            if type.dtype != declared.dtype or type.rank != declared.rank:
                return False
            return all(want in (have, UNKNOWN) for have, want in zip(type.sizes, declared.sizes, strict=True))
        case Tuple(mine), Tuple(theirs):
            return len(mine) == len(theirs) and all(map(fits, mine, theirs))
        case Future(mine), Future(theirs):
            return len(mine) == len(theirs) and all(map(fits, mine, theirs))
    return False


def has_same_dynamic_sizes(declared: Type, used: Type) -> bool:
    """Whether two texts leave the same sizes open; a formula may be called `?`, a number may not."""
    match declared, used:
        case Shape(), Shape():
            pairs = zip(declared.sizes, used.sizes, strict=True)
            return declared.bounds == used.bounds and all((type(a) is int) == (type(b) is int) for a, b in pairs)
        case Tuple(mine), Tuple(theirs):
            return all(map(has_same_dynamic_sizes, mine, theirs))
        case Future(mine), Future(theirs):
            return all(map(has_same_dynamic_sizes, mine, theirs))
    return True


def _symbols(type: Type) -> frozenset[str]:
    match type:
        case Shape():
            return type.symbols
        case Tuple() | Future():
            return frozenset().union(*(_symbols(inner) for inner in type.types))
    return frozenset()


def _named_sizes(inputs: Sequence[Type], scope: Scope) -> list[Type]:
    """The types of a function's arguments with a symbol of its own for every `?`: d0, d1, …"""
    count = 0

    def new_symbol() -> Size:
        nonlocal count
        while True:
            name = f"d{count}"
            count += 1
            if name not in scope.taken:
                scope.taken.add(name)
                return symbol(name)

    return [_fill(type, new_symbol) for type in inputs]


def _fill(type: Type, fresh: Any) -> Type:
    match type:
        case Shape() if UNKNOWN in type.sizes:
            sizes = [fresh() if size == UNKNOWN else size for size in type.sizes]
            return Shape.of(type.dtype, sizes, None, type.bounds)
        case Tuple():
            return Tuple(tuple(_fill(inner, fresh) for inner in type.types))
        case Future():
            return Future(tuple(_fill(inner, fresh) for inner in type.types))
    return type


def _argument_type(type: Type, feeding: Type | None, scope: Scope) -> Type:
    """The type of a region's argument: dynamic dimensions are those of its operand, else new symbols."""
    if "?" not in _symbols(type):
        return type
    if feeding is not None and fits(feeding, type):
        return feeding
    return _fill(type, scope.new_symbol)


def _hint(name: str) -> str:
    """The name of a value, where it is more than a number."""
    return "" if name[1:].isdigit() else name[1:]
