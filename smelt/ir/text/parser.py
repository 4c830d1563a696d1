"""MLIR text to a Program: functions, regions and ops of func, stablehlo, chlo, sdy, check and interpreter.

Two passes. The first reads the module's outline: signatures, aliases, meshes and resources, and skips the bodies. The second
reads each body after those of the functions it calls, because a `?` in a callee's result is known only then. Every op is
made by `ir.build.make`, which verifies it. Whatever is wrong with the text becomes a SmeltError that shows the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from smelt.dim import Size, symbol
from smelt.errors import Location, ParseError, SmeltError, VerifyError
from smelt.ir.attributes import DenseArray, DialectAttr, Dict, Float, Int, Kind, Unit, read_attr
from smelt.ir.build import make
from smelt.ir.core import NO_ATTRS, Attrs, Func, FuncType, Future, Op, Program, Region, Tuple, Type, Value
from smelt.ir.ops import OPS, definition_of
from smelt.ir.ops.definition import UNKNOWN, Scope
from smelt.ir.text import types as text_types
from smelt.ir.text.attrs import Attributes
from smelt.ir.text.export import SIZES
from smelt.ir.text.formats import FORMATS, Draft, read_function
from smelt.ir.text.lexer import AT, BANG, CARET, END, HASH, ID, INTEGER, STRING, VALUE, Cursor, unescape
from smelt.ir.text.types import Types
from smelt.shape import Shape

_RETURNS = {"return": "func.return", "func.return": "func.return"} | {
    name: name for name in ("stablehlo.return", "sdy.return")
}
_ALSO_RETURNS = {("stablehlo.return", "sdy.return"), ("func.return", "stablehlo.return")}  # (expected, as good as that)
_SHORT_NAMES = {"call": "func.call", "return": "func.return"}
_REFERENCE = re.compile(
    r'custom_call\s+@(?:[\w$.]+|"(?:[^"\\]|\\.)*")|//[^\n]*+|@([A-Za-z_][\w$.]*+)|@"((?:[^"\\]|\\.)*+)"|"(?:[^"\\\n]|\\.)*+"',
    re.ASCII,
)


def parse(text: str, path: str = "<text>") -> Program:
    """The program that a text says; `path` is the file's name in errors and locations."""
    if "\0" in text:
        raise ParseError("this is no text", expected="MLIR text", got="a zero byte", where=Location(path))
    try:
        return Parser(text, path).program()
    except RecursionError:
        raise ParseError("nested too deeply", where=Location(path)) from None


@dataclass(slots=True)
class _Outline:
    """A function of which the first pass has read all but the body."""

    name: str
    start: int
    body: int  # where its brace opens
    names: list[str]
    inputs: list[Type]
    results: list[Type]
    visibility: str
    arg_attrs: list[Attrs]
    result_attrs: list[Attrs]
    attrs: Attrs
    location: Location | None
    end: int = 0
    generic: bool = False
    calls: list[str] = field(default_factory=list)


class Parser:
    """Reads one text. The names of values are scoped: a region sees those around it and may not define them again."""

    def __init__(self, text: str, path: str) -> None:
        self.cursor = Cursor(text, path)
        self.types = Types(self.cursor)
        self.attributes = Attributes(self.cursor, self.types)
        self.outlines: dict[str, _Outline] = {}
        self.funcs: dict[str, Func] = {}
        self.declarations: list[Op] = []
        self.signatures: dict[str, FuncType] = {}
        self.values: dict[str, tuple[Value, ...]] = {}
        self.scope = Scope()
        self.declared: dict[Value, Type] = {}  # how the text calls values whose sizes it leaves open
        self._defined: list[str] = []

    def program(self) -> Program:
        try:
            name, attrs = self._outline()
            for func in self._in_call_order():
                self._body(func)
        except SmeltError as error:
            self._show_line(error)
            raise
        funcs = MappingProxyType({func: self.funcs[func] for func in self.outlines})
        return Program(funcs, name, MappingProxyType(attrs), tuple(self.declarations))

    def _show_line(self, error: SmeltError) -> None:
        where = error.where
        if error.source is None and isinstance(where, Location) and where.path == self.cursor.path and where.line:
            last = self.cursor.place(len(self.cursor.text)).line
            if where.line <= last:
                error.source = self.cursor.shown(where)

    # ---- the first pass: the outline ----

    def _outline(self) -> tuple[str, dict[str, Any]]:
        cursor = self.cursor
        name, attrs = "", dict[str, Any]()
        modules = 0
        while cursor.kind != END:
            if self._aside():
                continue
            start = cursor.start
            if cursor.token in ("module", "builtin.module") or cursor.token == '"builtin.module"':
                modules += 1
                if modules > 1 or self.outlines or self.declarations:
                    cursor.refuse("several modules in one text", expected="one module")
                name, attrs = self._module()
            elif modules:
                cursor.fail("text after the module", expected="an alias, resources or the end")
            else:
                self._top_level(start)
        self._resolve_aliases()
        self._resolve_locations()
        return name, attrs

    def _aside(self) -> bool:
        """Aliases and resources, which may stand before and after the module."""
        cursor = self.cursor
        if cursor.kind in (HASH, BANG):
            start, kind, name = cursor.start, cursor.kind, cursor.advance()[1:]
            cursor.expect("=")
            if "." in name:
                cursor.fail("an alias may not have a dot in its name", at=start, got=name)
            (self.attributes.aliases if kind == HASH else self.types.aliases).define(cursor, name)
            self._skip_definition(kind)
            return True
        if cursor.token == "{-#":
            self._resources()
            return True
        return False

    def _skip_definition(self, kind: int) -> None:
        """Pass an alias's definition without resolving what it refers to, which may stand further down."""
        cursor = self.cursor
        if cursor.kind in (HASH, BANG) or (cursor.kind == ID and cursor.token not in ("dense", "sparse")):
            cursor.advance()
            while cursor.token in ("<", "(", "[") and cursor.kind != STRING and self._touches():
                cursor.balanced()
            if kind == BANG and cursor.accept("->"):
                self._skip_definition(kind)
            return
        if kind == BANG and cursor.token == "(":
            cursor.balanced()
            cursor.expect("->")
            self._skip_definition(kind)
            return
        self.attributes.any()

    def _touches(self) -> bool:
        return self.cursor.text[self.cursor.start - 1] not in " \t\r\n"

    def _resources(self) -> None:
        """`{-# dialect_resources: { builtin: { name: "0x…" } } #-}`: each blob begins with its alignment."""
        cursor = self.cursor
        cursor.advance()
        while cursor.token != "#-}":
            section = cursor.word()
            cursor.expect(":")
            for _ in cursor.listed("{", "}"):
                cursor.word()
                cursor.expect(":")
                for _ in cursor.listed("{", "}"):
                    self._resource(section)
            if not cursor.accept(","):
                break
        cursor.expect("#-}")

    def _resource(self, section: str) -> None:
        cursor = self.cursor
        start = cursor.start
        name = cursor.string() if cursor.kind == STRING else cursor.word()
        cursor.expect(":")
        if section != "dialect_resources" or cursor.kind != STRING:
            self.attributes.any()
            return
        blob = cursor.advance()[1:-1]
        try:
            raw = bytes.fromhex(blob.removeprefix("0x"))
        except ValueError:
            raw = b""
        if len(raw) < 4 or not blob.startswith("0x"):
            cursor.fail("a resource that is no blob", at=start, expected='"0x" and an alignment of four bytes', got=name)
        self.attributes.resources[name] = raw[4:]

    def _module(self) -> tuple[str, dict[str, Any]]:
        cursor = self.cursor
        name, attrs = "", dict[str, Any]()
        if cursor.advance() == '"builtin.module"':
            return self._generic_module()
        if cursor.kind == AT:
            name = cursor.symbol()
        start = cursor.start
        if cursor.accept("attributes"):
            attrs = self.attributes.dictionary()
        self._prefixed(attrs, start)
        self._module_body()
        self._skip_location()
        return name, attrs

    def _prefixed(self, attrs: Mapping[str, Any], start: int) -> None:
        """Attributes of modules, arguments and results belong to a dialect."""
        for name in attrs:
            if "." not in name:
                self.cursor.fail("an attribute without a dialect", at=start, expected="dialect.name", got=name)

    def _generic_module(self) -> tuple[str, dict[str, Any]]:
        cursor = self.cursor
        start = cursor.start
        cursor.expect("(")
        cursor.expect(")")
        attrs = self._properties()
        cursor.expect("(")
        self._module_body()
        cursor.expect(")")
        if cursor.token == "{":
            attrs |= self.attributes.dictionary()
        cursor.expect(":")
        self.types.function()
        self._skip_location()
        name = attrs.pop("sym_name", "")
        self._prefixed(attrs, start)
        if not isinstance(name, str):
            cursor.fail("a module with this name", at=start, expected="a string", got=name)
        return name, attrs

    def _module_body(self) -> None:
        cursor = self.cursor
        cursor.expect("{")
        if cursor.kind == CARET:
            cursor.advance()
            cursor.expect(":")
        while cursor.token != "}" or cursor.kind == STRING:
            if cursor.kind == END:
                cursor.fail("a module is never closed", expected="'}'")
            self._top_level(cursor.start)
        cursor.advance()

    def _top_level(self, start: int) -> None:
        cursor = self.cursor
        match cursor.token:
            case "func.func" | "func":
                cursor.advance()
                outline = self._signature(start)
            case '"func.func"':
                cursor.advance()
                outline = self._generic_signature(start)
            case "sdy.mesh" | '"sdy.mesh"':
                self._mesh(start)
                return
            case "module" | "builtin.module" | '"builtin.module"':
                cursor.refuse("a module inside a module")
            case _:
                cursor.fail("unexpected text", expected="func.func, sdy.mesh or the end of the module")
        if outline.name in self.outlines:
            cursor.fail("a function is defined twice", at=start, got=f"@{outline.name}")
        self.outlines[outline.name] = outline

    def _mesh(self, start: int) -> None:
        """`sdy.mesh @mesh = <["x"=2]>`, kept as text."""
        cursor = self.cursor
        if cursor.advance().startswith('"'):
            cursor.expect("(")
            cursor.expect(")")
            attrs = self._properties()
            if cursor.token == "{":
                attrs |= self.attributes.dictionary()
            cursor.expect(":")
            self.types.function()
        else:
            attrs = {"sym_name": cursor.symbol()}
            cursor.expect("=")
            attrs["mesh"] = DialectAttr("sdy", "mesh", cursor.balanced())
            if cursor.token == "{":
                attrs |= self.attributes.dictionary()
        if not isinstance(attrs.get("sym_name"), str) or not isinstance(attrs.get("mesh"), DialectAttr):
            cursor.fail("a mesh without a name or axes", at=start, expected='sdy.mesh @mesh = <["x"=2]>')
        self._skip_location()
        self.declarations.append(Op("sdy.mesh", (), (), attrs, location=cursor.place(start)))

    def _signature(self, start: int) -> _Outline:
        """From after `func.func` to the end of the function; its body is skipped."""
        cursor = self.cursor
        visibility = cursor.advance() if cursor.token in ("public", "private", "nested") and cursor.kind == ID else ""
        name = cursor.symbol()
        names: list[str] = []
        inputs: list[Type] = []
        arg_attrs: list[Attrs] = []
        for _ in cursor.listed("(", ")"):
            if cursor.kind == VALUE:
                names.append(cursor.advance())
                cursor.expect(":")
            inputs.append(self.types.value())
            arg_attrs.append(self._optional_dictionary())
            self._skip_location()
        results: list[Type] = []
        result_attrs: list[Attrs] = []
        if cursor.accept("->"):
            if cursor.token == "(":
                for _ in cursor.listed("(", ")"):
                    results.append(self.types.value())
                    result_attrs.append(self._optional_dictionary())
            else:
                results.append(self.types.value())
                result_attrs.append(NO_ATTRS)
        attrs = self.attributes.dictionary() if cursor.accept("attributes") else {}
        if cursor.token != "{" or len(names) != len(inputs):
            cursor.refuse("a function without a body", at=start, got=f"@{name}", remedy="define it in the same text")
        body = cursor.skip_braces()
        end = cursor.start
        outline = _Outline(
            name, start, body, names, inputs, results, visibility, arg_attrs, result_attrs, MappingProxyType(attrs), None, end
        )
        self._skip_location(outline)
        return outline

    def _generic_signature(self, start: int) -> _Outline:
        """`"func.func"() <{function_type = …, sym_name = …}> ({…}) {…} : () -> ()`"""
        cursor = self.cursor
        cursor.expect("(")
        cursor.expect(")")
        attrs = self._properties()
        cursor.expect("(")
        body = cursor.skip_braces()
        end = cursor.start
        cursor.expect(")")
        if cursor.token == "{":
            attrs |= self.attributes.dictionary()
        cursor.expect(":")
        self.types.function()
        name, type = attrs.pop("sym_name", None), attrs.pop("function_type", None)
        visibility = attrs.pop("sym_visibility", "")
        if not isinstance(name, str) or not isinstance(type, FuncType) or not isinstance(visibility, str):
            cursor.fail("a function without a name or type", at=start, expected="sym_name and function_type")
        arg_attrs = self._dictionaries(attrs.pop("arg_attrs", None), len(type.inputs), start)
        result_attrs = self._dictionaries(attrs.pop("res_attrs", None), len(type.results), start)
        inputs, results = list(type.inputs), list(type.results)
        attrs = MappingProxyType(attrs)  # type: ignore[assignment]
        outline = _Outline(
            name, start, body, [], inputs, results, visibility, arg_attrs, result_attrs, attrs, None, end, generic=True
        )
        self._skip_location(outline)
        return outline

    def _dictionaries(self, node: Any, count: int, start: int) -> list[Attrs]:
        if node is None:
            return [NO_ATTRS] * count
        if not isinstance(node, tuple) or len(node) != count or not all(isinstance(item, Dict) for item in node):
            self.cursor.fail("one dictionary for each argument or result", at=start, expected=count, got=node)
        return [MappingProxyType(dict(item.items)) for item in node]

    def _optional_dictionary(self) -> Attrs:
        start = self.cursor.start
        if self.cursor.token != "{":
            return NO_ATTRS
        attrs = self.attributes.dictionary()
        self._prefixed(attrs, start)
        return MappingProxyType(attrs)

    def _properties(self) -> dict[str, Any]:
        """`<{…}>` if it comes next."""
        cursor = self.cursor
        if cursor.token != "<" or cursor.kind == STRING:
            return {}
        cursor.advance()
        found = self.attributes.dictionary()
        cursor.expect(">")
        return found

    def _skip_location(self, outline: _Outline | None = None) -> None:
        """Pass `loc(…)`; aliases in it may be defined further down, so it is not looked at yet."""
        cursor = self.cursor
        if cursor.token == "loc" and cursor.kind == ID:
            if outline is not None:
                outline.end = cursor.start
            cursor.advance()
            cursor.balanced()

    def _resolve_aliases(self) -> None:
        """Read every alias once, so that a broken one is found even where nobody uses it."""
        cursor, end = self.cursor, self.cursor.start
        for name in self.types.aliases.places:
            self.types.aliases.resolve(cursor, name, self.types.any)
        for name, place in self.attributes.aliases.places.items():
            cursor.seek(place)
            is_place = cursor.token == "loc" and cursor.kind == ID
            cursor.seek(end)
            self.attributes.aliases.resolve(cursor, name, self.attributes._aliased_place if is_place else self.attributes.any)

    def _resolve_locations(self) -> None:
        cursor = self.cursor
        for outline in self.outlines.values():
            cursor.seek(outline.end)
            found = self.attributes.location() if cursor.token == "loc" and cursor.kind == ID else None
            outline.location = found or cursor.place(outline.start)

    # ---- the order of the bodies ----

    def _in_call_order(self) -> list[_Outline]:
        """Functions so that each comes after those it refers to; a circle is refused."""
        order: list[_Outline] = []
        state: dict[str, bool] = {}  # False: being looked at, True: done
        for name in self.outlines:
            stack = [(name, iter(self._references(name)))] if name not in state else []
            state.setdefault(name, False)
            while stack:
                current, callees = stack[-1]
                callee = next(callees, None)
                if callee is None:
                    stack.pop()
                    state[current] = True
                    order.append(self.outlines[current])
                elif callee not in state:
                    state[callee] = False
                    stack.append((callee, iter(self._references(callee))))
                elif not state[callee]:
                    self.cursor.refuse(
                        "a function that calls itself",
                        at=self.outlines[callee].start,
                        got=" → ".join(f"@{each}" for each, _ in stack) + f" → @{callee}",
                        remedy="write it as a stablehlo.while",
                    )
        return order

    def _references(self, name: str) -> list[str]:
        outline = self.outlines[name]
        found = dict[str, None]()
        for match in _REFERENCE.finditer(self.cursor.text, outline.body, outline.end):
            callee = match[1] or (unescape(match[2]) if match[2] else "")
            if callee in self.outlines:
                found[callee] = None
        return list(found)

    # ---- the second pass: bodies ----

    def _body(self, outline: _Outline) -> None:
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
        args = tuple(Value(type, None, i, _hint(name)) for i, (type, name) in enumerate(zip(types, outline.names, strict=True)))
        for name, arg, type in zip(outline.names, args, outline.inputs, strict=True):
            self._define(name, (arg,), outline.start)
            self.declared[arg] = type
        if cursor.kind == CARET and not outline.generic:
            cursor.fail("a function with several blocks", expected="an op")
        ops, results, returned_at = self._ops("func.return")
        results = tuple(results)
        self._check_returned(outline, results, returned_at)
        func = Func(
            outline.name,
            Region(args, tuple(ops), results),
            outline.visibility,
            tuple(outline.arg_attrs),
            tuple(outline.result_attrs),
            outline.attrs,
            outline.location,
        )
        self.funcs[func.name] = func
        self.signatures[func.name] = func.type

    def _read_sizes(self, outline: _Outline) -> None:
        """Names for sizes that our own export keeps in an attribute."""
        for i, (type, attrs) in enumerate(zip(outline.inputs, outline.arg_attrs, strict=True)):
            text = attrs.get(SIZES)
            if isinstance(type, Shape) and isinstance(text, str):
                outline.inputs[i] = self.types.sizes(type, text, outline.start)
                outline.arg_attrs[i] = MappingProxyType({name: node for name, node in attrs.items() if name != SIZES})

    def _generic_names(self, outline: _Outline) -> None:
        """The names of the arguments of a function in generic form, from its block."""
        cursor = self.cursor
        start = cursor.start
        args: list[tuple[str, Type]] = []
        if cursor.kind == CARET:
            args = self._block_arguments()
        if len(args) != len(outline.inputs) or any(not fits(a, b) for (_, a), b in zip(args, outline.inputs, strict=True)):
            cursor.fail("the block's arguments are not the function's", at=start, expected=len(outline.inputs), got=len(args))
        outline.names = [name for name, _ in args]

    def _check_returned(self, outline: _Outline, results: Sequence[Value], at: int) -> None:
        """What a function returns is what its signature says, so far as it says it."""
        if len(results) != len(outline.results):
            self.cursor.fail(
                f"@{outline.name} returns another number of values", at=at, expected=len(outline.results), got=len(results)
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
                    cursor.refuse("a region with several blocks", expected="one block", remedy="use stablehlo.if or while")
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
            values = [self.operand() for _ in cursor.listed("(", ")")]
        elif cursor.kind == VALUE:
            values.append(self.operand())
            while cursor.accept(","):
                values.append(self.operand())
        self._properties()
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
                if cursor.kind != INTEGER or len(cursor.token) > 6 or cursor.token.startswith("0x") or int(cursor.token) < 1:
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
        if len(names) == 1 and names[0][1] == 1 == len(results):
            hints = [_hint(names[0][0])]
        else:
            hints = self._hints(names, draft, start)
        op = make(
            draft.name,
            draft.operands,
            self._typed(draft, place),
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

    def _hints(self, names: list[tuple[str, int]], draft: Draft, start: int) -> list[str]:
        """Names for printing; results that the text leaves unnamed have none."""
        count = sum(n for _, n in names)
        if names and count != len(draft.results):
            self.cursor.fail(f"{draft.name} has another number of results", at=start, expected=len(draft.results), got=count)
        return [hint for name, n in names for hint in (_hint(name), *[""] * (n - 1))]

    def _value_type(self, type: Any, start: int) -> Type:
        if isinstance(type, Shape | text_types.Token | Tuple | Future):
            return type
        self.cursor.refuse("a value of this type", at=start, expected="a tensor, a token, a tuple or a future", got=type)

    def _typed(self, draft: Draft, place: Location) -> dict[str, Any]:
        known = draft.definition.by_name
        attrs = {}
        for name, node in draft.attrs.items():
            declared = known.get(name)
            attrs[name] = node if declared is None else self._typed_one(declared.kind, node, draft.name, name, place)
        return attrs

    def _typed_one(self, kind: Kind, node: Any, op: str, name: str, place: Location) -> Any:
        value = read_attr(kind, node, op, name, place)
        wanted = kind.write(value) if isinstance(node, Int | Float | DenseArray) and kind.name != "any" else node
        if isinstance(wanted, Int | Float | DenseArray) and wanted.type != node.type:
            raise ParseError(f"{op}: attribute {name!r} has another type", expected=wanted.type, got=node.type, where=place)
        if isinstance(node, Unit) and kind.name == "bool":
            raise ParseError(f"{op}: attribute {name!r}", expected="true or false", got="no value", where=place)
        return value

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
        return fits(value.type, type) and is_as_open(self.declared.get(value, value.type), type)

    # ---- what formats ask for ----

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
        draft.operands += [self.operand() for _ in cursor.listed("(", ")")]
        draft.attrs |= self._properties()
        if cursor.token == "(":
            for _ in cursor.listed("(", ")"):
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
                value = Value(_fed(type, feeding, self.scope), None, i, _hint(name))
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
            args = [self.argument() for _ in cursor.listed("(", ")")]
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
        case (Tuple(), Tuple()) | (Future(), Future()):
            return len(type.types) == len(declared.types) and all(map(fits, type.types, declared.types))
    return False


def is_as_open(declared: Type, used: Type) -> bool:
    """Whether two texts leave the same sizes open; a formula may be called `?`, a number may not."""
    match declared, used:
        case Shape(), Shape():
            pairs = zip(declared.sizes, used.sizes, strict=True)
            return all((type(a) is int) == (type(b) is int) for a, b in pairs)
        case (Tuple(), Tuple()) | (Future(), Future()):
            return all(map(is_as_open, declared.types, used.types))
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

    def fresh() -> Size:
        nonlocal count
        while True:
            name = f"d{count}"
            count += 1
            if name not in scope.taken:
                scope.taken.add(name)
                return symbol(name)

    return [_filled(type, fresh) for type in inputs]


def _filled(type: Type, fresh: Any) -> Type:
    match type:
        case Shape() if UNKNOWN in type.sizes:
            sizes = [fresh() if size == UNKNOWN else size for size in type.sizes]
            return Shape.of(type.dtype, sizes, None, type.bounds)
        case Tuple():
            return Tuple(tuple(_filled(inner, fresh) for inner in type.types))
        case Future():
            return Future(tuple(_filled(inner, fresh) for inner in type.types))
    return type


def _fed(type: Type, feeding: Type | None, scope: Scope) -> Type:
    """The type of a region's argument: open sizes are those of the operand that feeds it, else symbols of their own."""
    if "?" not in _symbols(type):
        return type
    if feeding is not None and fits(feeding, type):
        return feeding
    return _filled(type, scope.fresh)


def _hint(name: str) -> str:
    """The name of a value, where it is more than a number."""
    return "" if name[1:].isdigit() else name[1:]


