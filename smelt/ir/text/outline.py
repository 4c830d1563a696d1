"""The outline of a text: everything at the top level of a module but the bodies of its functions, which are skipped.

In: a cursor at the beginning. Out: signatures, aliases, meshes, resources and the module's attributes, and the order in
which the bodies can be read: each after those of the functions it refers to. The parser's first pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from smelt.errors import Location
from smelt.ir.attributes import DialectAttr, Dict
from smelt.ir.core import NO_ATTRS, Attrs, FuncType, Op, Type
from smelt.ir.text.attrs import Attributes
from smelt.ir.text.lexer import AT, BANG, CARET, END, HASH, ID, STRING, VALUE, Cursor, unescape
from smelt.ir.text.types import Types

_REFERENCE = re.compile(
    r'custom_call\s+@(?:[\w$.]+|"(?:[^"\\]|\\.)*")'
    r'|//[^\n]*+|@([A-Za-z_][\w$.]*+)|@"((?:[^"\\]|\\.)*+)"|"(?:[^"\\\n]|\\.)*+"',
    re.ASCII,
)


@dataclass(slots=True)
class FuncOutline:
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


class Outline:
    """Reads the top level of one text."""

    def __init__(self, cursor: Cursor, types: Types, attributes: Attributes) -> None:
        self.cursor = cursor
        self.types = types
        self.attributes = attributes
        self.name = ""
        self.attrs: dict[str, Any] = {}
        self.funcs: dict[str, FuncOutline] = {}
        self.declarations: list[Op] = []
        self.names: set[str] = set()  # of functions and meshes

    def read(self) -> None:
        cursor = self.cursor
        name, attrs = "", dict[str, Any]()
        modules = 0
        while cursor.kind != END:
            if self._aside():
                continue
            start = cursor.start
            if cursor.token in ("module", "builtin.module") or cursor.token == '"builtin.module"':
                modules += 1
                if modules > 1 or self.funcs or self.declarations:
                    cursor.refuse("several modules in one text", expected="one module")
                name, attrs = self._module()
            elif modules:
                cursor.fail("text after the module", expected="an alias, resources or the end")
            else:
                self._top_level(start)
        self._resolve_aliases()
        self._resolve_locations()
        self.name, self.attrs = name, attrs

    def _aside(self) -> bool:
        """Aliases and resources, which may be before and after the module."""
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
                cursor.read_balanced()
            if kind == BANG and cursor.accept("->"):
                self._skip_definition(kind)
            return
        if kind == BANG and cursor.token == "(":
            cursor.read_balanced()
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
            for _ in cursor.read_list("{", "}"):
                cursor.word()
                cursor.expect(":")
                for _ in cursor.read_list("{", "}"):
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
            cursor.fail(
                "a resource that is no blob", at=start, expected='"0x" and an alignment of four bytes', got=name
            )
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
        self._prefix(attrs, start)
        self._module_body()
        self._skip_location()
        return name, attrs

    def _prefix(self, attrs: Mapping[str, Any], start: int) -> None:
        """Attributes of modules, arguments and results belong to a dialect."""
        for name in attrs:
            if "." not in name:
                self.cursor.fail("an attribute without a dialect", at=start, expected="dialect.name", got=name)

    def _generic_module(self) -> tuple[str, dict[str, Any]]:
        cursor = self.cursor
        start = cursor.start
        cursor.expect("(")
        cursor.expect(")")
        attrs = self.attributes.properties()
        cursor.expect("(")
        self._module_body(generic=True)
        cursor.expect(")")
        if cursor.token == "{":
            attrs |= self.attributes.dictionary()
        cursor.expect(":")
        self.types.function()
        self._skip_location()
        name = attrs.pop("sym_name", "")
        self._prefix(attrs, start)
        if not isinstance(name, str):
            cursor.fail("a module with this name", at=start, expected="a string", got=name)
        return name, attrs

    def _module_body(self, *, generic: bool = False) -> None:
        cursor = self.cursor
        cursor.expect("{")
        if generic and cursor.token == "}":  # in generic form no block is there unless something is in it
            cursor.fail("a module without a block", expected="^bb0:")
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
        self._name(outline.name, start)
        self.funcs[outline.name] = outline

    def _name(self, name: str, start: int) -> None:
        """Functions and meshes share their names."""
        if name in self.names:
            self.cursor.fail("a function or mesh is defined twice", at=start, got=f"@{name}")
        self.names.add(name)

    def _mesh(self, start: int) -> None:
        """`sdy.mesh @mesh = <["x"=2]>`, kept as text."""
        cursor = self.cursor
        if cursor.advance().startswith('"'):
            cursor.expect("(")
            cursor.expect(")")
            attrs = self.attributes.properties()
            if cursor.token == "{":
                attrs |= self.attributes.dictionary()
            cursor.expect(":")
            self.types.function()
        else:
            attrs = {"sym_name": cursor.symbol()}
            cursor.expect("=")
            attrs["mesh"] = DialectAttr("sdy", "mesh", cursor.read_balanced())
            if cursor.token == "{":
                attrs |= self.attributes.dictionary()
        if not isinstance(attrs.get("sym_name"), str) or not isinstance(attrs.get("mesh"), DialectAttr):
            cursor.fail("a mesh without a name or axes", at=start, expected='sdy.mesh @mesh = <["x"=2]>')
        self._skip_location()
        self._name(attrs["sym_name"], start)
        self.declarations.append(Op("sdy.mesh", (), (), attrs, location=cursor.place(start)))

    def _signature(self, start: int) -> FuncOutline:
        """From after `func.func` to the end of the function; its body is skipped."""
        cursor = self.cursor
        visibility = cursor.advance() if cursor.token in ("public", "private", "nested") and cursor.kind == ID else ""
        name = cursor.symbol()
        names: list[str] = []
        inputs: list[Type] = []
        arg_attrs: list[Attrs] = []
        for _ in cursor.read_list("(", ")"):
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
                for _ in cursor.read_list("(", ")"):
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
        outline = FuncOutline(
            name,
            start,
            body,
            names,
            inputs,
            results,
            visibility,
            arg_attrs,
            result_attrs,
            MappingProxyType(attrs),
            None,
            end,
        )
        self._skip_location(outline)
        return outline

    def _generic_signature(self, start: int) -> FuncOutline:
        """`"func.func"() <{function_type = …, sym_name = …}> ({…}) {…} : () -> ()`"""
        cursor = self.cursor
        cursor.expect("(")
        cursor.expect(")")
        attrs = self.attributes.properties()
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
        outline = FuncOutline(
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
        self._prefix(attrs, start)
        return MappingProxyType(attrs)

    def _skip_location(self, outline: FuncOutline | None = None) -> None:
        """Pass `loc(…)`; aliases in it may be defined further down, so it is not looked at yet."""
        cursor = self.cursor
        if cursor.token == "loc" and cursor.kind == ID:
            if outline is not None:
                outline.end = cursor.start
            cursor.advance()
            cursor.read_balanced()

    def _resolve_aliases(self) -> None:
        """Read every alias once, so that a broken one is found even where it is not used."""
        cursor, end = self.cursor, self.cursor.start
        for name in self.types.aliases.places:
            self.types.aliases.resolve(cursor, name, self.types.any)
        for name, place in self.attributes.aliases.places.items():
            cursor.seek(place)
            is_place = cursor.token == "loc" and cursor.kind == ID
            cursor.seek(end)
            self.attributes.aliases.resolve(
                cursor, name, self.attributes.aliased_place if is_place else self.attributes.any
            )

    def _resolve_locations(self) -> None:
        cursor = self.cursor
        for outline in self.funcs.values():
            cursor.seek(outline.end)
            found = self.attributes.location() if cursor.token == "loc" and cursor.kind == ID else None
            outline.location = found or cursor.place(outline.start)

    # ---- the order of the bodies ----

    def in_call_order(self) -> list[FuncOutline]:
        """Functions so that each comes after those it refers to; a circle is refused."""
        order: list[FuncOutline] = []
        state: dict[str, bool] = {}  # False: being looked at, True: done
        for name in self.funcs:
            stack = [(name, iter(self._references(name)))] if name not in state else []
            state.setdefault(name, False)
            while stack:
                current, callees = stack[-1]
                callee = next(callees, None)
                if callee is None:
                    stack.pop()
                    state[current] = True
                    order.append(self.funcs[current])
                elif callee not in state:
                    state[callee] = False
                    stack.append((callee, iter(self._references(callee))))
                elif not state[callee]:
                    self.cursor.refuse(
                        "a function that calls itself",
                        at=self.funcs[callee].start,
                        got=" → ".join(f"@{each}" for each, _ in stack) + f" → @{callee}",
                        remedy="write it as a stablehlo.while",
                    )
        return order

    def _references(self, name: str) -> list[str]:
        outline = self.funcs[name]
        found = dict[str, None]()
        for match in _REFERENCE.finditer(self.cursor.text, outline.body, outline.end):
            callee = match[1] or (unescape(match[2]) if match[2] else "")
            if callee in self.funcs:
                found[callee] = None
        return list(found)
