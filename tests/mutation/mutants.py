"""One-line mutants of Python source: every place in a file where a small change should be noticed by some test.

A `Mutant` replaces one piece of text. Left alone is what no test can or should notice:

- annotations, decorators, imports, docstrings, f-strings, `if TYPE_CHECKING`;
- `assert`: it holds in every run of a correct program, so a weaker one cannot be told from it;
- `strict=` of a zip, an assertion of the same kind;
- `return` in place of `return False`: None is as false, and `return True` is a mutant of its own;
- how things look to a person at a terminal or a debugger: `__repr__`, and the keywords in `LOOKS`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip

LOOKS = ("highlight", "markup", "soft_wrap", "no_wrap", "repr")  # keywords of rich, and of dataclass fields


@dataclass(frozen=True)
class Mutant:
    """Text from (line, column) to (end line, end column), columns in UTF-8 bytes, and what stands there instead."""

    line: int
    column: int
    end_line: int
    end_column: int
    kind: str
    before: str
    after: str
    lines: tuple[int, ...] = ()  # a test that runs one of them may notice it; none: any test of the file

    def at(self, lines: tuple[int, ...]) -> Mutant:
        return replace(self, lines=lines)

    def apply(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)
        head, tail = lines[self.line - 1][: self.column], lines[self.end_line - 1][self.end_column :]
        lines[self.line - 1 : self.end_line] = [head, self.after.encode(), tail]
        return b"".join(lines).decode()


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    lines = source.encode().splitlines(keepends=True)
    tree = ast.parse(source)
    found = [each.at(where) for where, node in _walk(tree, _Place((), _uses(tree))) for each in _of_node(node, lines)]
    return sorted(found, key=lambda each: (each.line, each.column, each.kind, each.after))


@dataclass(frozen=True)
class _Place:
    """Where a node is: the lines that run it; `uses`, outside of functions: name → the lines in functions with it."""

    lines: tuple[int, ...]
    uses: dict[str, tuple[int, ...]] | None


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[tuple[int, ...], ast.AST]]:
    """Every node that may change, with the lines that run it.

    What runs on import alone shows where the name that it defines is used, a default where its function begins.
    """
    if isinstance(node, ast.stmt):
        place = replace(place, lines=_header(node) if place.uses is None else _shown_by(node, place.uses))
    yield place.lines, node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        inner = _inside(node, name) or place
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield from _walk(child, inner)


def _inside(node: ast.AST, name: str) -> _Place | None:
    """The place of a function's body, and of its defaults, which tests of its first statement show."""
    if isinstance(node, ast.Lambda):
        return _Place((node.body.lineno,), None)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name in ("args", "body"):
        first = next((each for each in node.body if not _is_left_out(each)), node.body[0])
        return _Place(_header(first), None)
    return None


def _header(node: ast.stmt) -> tuple[int, ...]:
    """The lines of a statement without those of its block: which of them a tracer sees first depends on its parts."""
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return tuple(range(node.lineno, max(last, node.lineno) + 1))


def _shown_by(node: ast.stmt, uses: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)]
    return tuple(line for name in names for line in uses.get(name, ()))


def _uses(tree: ast.AST) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    for statement in (each for function in functions for part in function.body for each in ast.walk(part)):
        if isinstance(statement, ast.Name | ast.Attribute):
            name = statement.id if isinstance(statement, ast.Name) else statement.attr
            found.setdefault(name, set()).add(statement.lineno)
    return {name: tuple(sorted(lines)) for name, lines in found.items()}


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return True
    if isinstance(node, ast.FunctionDef) and node.name == "__repr__":
        return True
    if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
        return node.arg in ("strict", *LOOKS)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _of_node(node: ast.AST, source: list[bytes]) -> Iterator[Mutant]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[i] = COMPARISONS[type(op)]()
            yield _replace(node, changed, "comparison", source)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
        changed_op = copy.deepcopy(node)
        changed_op.op = ARITHMETIC[type(node.op)]()
        yield _replace(node, changed_op, "arithmetic", source)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _replace(node, ast.BoolOp(other, node.values), "and/or", source)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _replace(node, ast.Constant(not node.value), "constant", source)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        for near in (node.value + 1, node.value - 1):
            yield _replace(node, ast.Constant(near), "constant", source)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _replace(node.test, ast.UnaryOp(ast.Not(), node.test), "condition", source)
    elif isinstance(node, ast.Raise):
        yield _replace(node, ast.Pass(), "drop raise", source)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_constant(node.value, None, False):
        yield _replace(node, ast.Return(), "drop return", source)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield _replace(node, ast.Pass(), "drop call", source)


def _is_text(node: ast.BinOp) -> bool:
    """Whether an operator joins strings or types (`int | None`)."""
    sides = (node.left, node.right)
    texts = any(isinstance(each, ast.JoinedStr) or _is_string(each) for each in sides)
    return texts or (isinstance(node.op, ast.BitOr) and any(_is_constant(each, None) for each in sides))


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_constant(node: ast.AST, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(node.value is value for value in values)


def _replace(node: ast.expr | ast.stmt, by: ast.AST, kind: str, source: list[bytes]) -> Mutant:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    text = ast.unparse(by)
    if isinstance(node, ast.expr):
        text = f"({text})"
    before = _text(source, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
    return Mutant(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, kind, before, text)


def _text(source: list[bytes], line: int, column: int, end_line: int, end_column: int) -> str:
    lines = source[line - 1 : end_line]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode()
