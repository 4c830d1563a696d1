"""Python files → modules, for `smelt check`: which files to check, and how to import them.

A module is imported under a unique name, relative imports included, with its folder on the path as if it were a script.
Errors are shown at the user's own line.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import itertools
import linecache
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from smelt.errors import FileError, Location, SmeltError
from smelt.tensor.source import find_user_place, locate

_NUMBERS = itertools.count()
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


class ImportFailedError(SmeltError):
    """A module that cannot be imported: the user's code raised an exception, or has a syntax error."""

    advice = "correct the module until Python can import it"


class CrashError(SmeltError):
    """The user's code raised an exception that is no shape error."""

    advice = "correct the line that raises it, or call it only where a model runs"


@dataclass(frozen=True, slots=True)
class Imported:
    """A module that was imported, or why it was not."""

    path: Path
    module: ModuleType | None
    error: SmeltError | None = None


@dataclass(frozen=True, slots=True)
class Defined:
    """A function of a file with tensors in its annotations, and why the module may hide it."""

    name: str
    line: int
    hidden: str


def tensor_functions(file: Path) -> list[Defined]:
    """All functions of a file with tensors in their annotations, except declarations without a body."""
    found: list[Defined] = []
    pending: list[tuple[ast.AST, str, str]] = [(ast.parse(_read_text(file)), "", "")]
    while pending:
        node, within, why = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                if not any(ast.unparse(base).endswith("Protocol") for base in child.bases):
                    pending.append((child, f"{within}{child.name}.", why))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                if _speaks_of_tensors(child) and not _is_declaration(child):
                    first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                    found.append(Defined(within + child.name, first, why or _why_hidden(child)))
                pending.append((child, f"{within}{child.name}.<locals>.", f"it is inside {within}{child.name}"))
            elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
                pending.append((child, within, why))
    return found


def _speaks_of_tensors(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    said = [node.returns, *(each.annotation for each in every if each is not None)]
    texts = [ast.unparse(each) for each in said if each is not None]
    return any(word in text for text in texts for word in ("Shaped", "Tensor"))


def _is_declaration(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has no body to check: `...`, alone or after its docstring."""
    last = node.body[-1]
    return len(node.body) <= 2 and isinstance(last, ast.Expr) and getattr(last.value, "value", None) is Ellipsis


def _why_hidden(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if node.decorator_list:
        return "its decorator hides its annotations, which functools.wraps would keep"
    return "nothing calls it with tensors that have shapes"


# ---- which files ----


def python_files(path: Path) -> list[Path]:
    """The file itself, or all Python files of a folder that mention smelt."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileError(
            "no such file or folder", expected="a Python file, a folder, or a model", got=path, remedy="check the path"
        )
    return [file for file in sorted(_walk_files(path)) if uses_smelt(file)]


def _walk_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED and name[0] != "." and not Path(parent, name, "pyvenv.cfg").exists()
        ]
        python = (Path(parent, name) for name in files if name.endswith(".py"))
        yield from (path for path in python if path.is_file())  # no FIFO: reading it would wait


def uses_smelt(file: Path) -> bool:
    """Whether a file mentions smelt or shapes at all: others are not imported."""
    text = _read_text(file)
    return "smelt" in text or "Shaped" in text


def _read_text(file: Path) -> str:
    try:
        with tokenize.open(file) as stream:  # reads the encoding that the file declares
            return stream.read()
    except (SyntaxError, UnicodeDecodeError, OSError):
        return "smelt"  # importing it reports what is wrong


# ---- importing ----


class Importer:
    """Imports the modules of one check; a package that several of them belong to is imported once.

    In a `with` block, folders of the modules are on the path as they are for scripts. No bytecode is kept: Python would
    take it for a file that is saved again within a second with the same length.
    """

    def __init__(self, beside: Sequence[Path] = ()) -> None:
        self._beside = [str(folder.resolve()) for folder in beside]
        self._tops: dict[Path, str] = {}  # the unique name of a package
        self._path: list[str] = []
        self._keeps_none = False

    def __enter__(self) -> Importer:
        self._path, self._keeps_none = list(sys.path), sys.dont_write_bytecode
        sys.dont_write_bytecode = True
        return self

    def __exit__(self, *_: object) -> None:
        sys.path[:] = self._path
        sys.dont_write_bytecode = self._keeps_none

    def module(self, file: Path) -> Imported:
        """Import the module of a file; errors become part of the result."""
        path = file.resolve()
        root, parts = _find_root(path)
        for folder in (str(root), *self._beside):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return Imported(file, self._import(path, root, parts))
        except SmeltError as error:
            return Imported(file, None, error)
        except (Exception, SystemExit) as error:
            return Imported(file, None, _failure(error, path))

    def _import(self, path: Path, root: Path, parts: list[str]) -> ModuleType:
        fresh = f"smelt_check_{next(_NUMBERS)}"
        if len(parts) == 1 and path.name != "__init__.py":
            return _load(f"{fresh}_{parts[0]}" if parts[0].isidentifier() else fresh, path)
        package = root / parts[0]  # the outermost package gets a name of its own, its modules keep their names
        top = self._tops.get(package)
        if top is None:
            if (package / "__init__.py").exists():
                _load(fresh, package / "__init__.py", [str(package)])
            else:
                sys.modules[fresh] = ModuleType(fresh)
                sys.modules[fresh].__path__ = [str(package)]
            top = self._tops[package] = fresh
        return importlib.import_module(".".join([top, *parts[1:]]))


def import_file(file: Path) -> Imported:
    """The module of one file."""
    with Importer() as importer:
        return importer.module(file)


def _find_root(path: Path) -> tuple[Path, list[str]]:
    """The folder that holds the outermost package of a file, and the names that lead from there to the file."""
    parts, folder = [path.stem], path.parent
    depth = _relative_depth(path)
    while (folder / "__init__.py").exists() or depth > 0:
        parts.insert(0, folder.name)
        folder, depth = folder.parent, depth - 1
    return folder, parts[:-1] if path.name == "__init__.py" else parts


def _relative_depth(path: Path) -> int:
    """How many folders up the relative imports of a file reach."""
    try:
        tree = ast.parse(_read_text(path))
    except SyntaxError:
        return 0
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


def _load(name: str, path: Path, inside: list[str] | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


# ---- errors ----


def _failure(error: BaseException, path: Path) -> SmeltError:
    if isinstance(error, SyntaxError) and error.filename:
        return _syntax_failure(error)
    return crash(error, "cannot be imported: ", path, ImportFailedError)


def _syntax_failure(error: SyntaxError) -> SmeltError:
    path, line = str(error.filename), error.lineno or 1
    text = linecache.getline(path, line).rstrip("\n")
    column = max(error.offset or 1, 1)
    indent = len(text) - len(text.lstrip())
    wide = max((error.end_offset or 0) - column, 1) if error.end_lineno in (None, line) else 1
    margin = " " * len(str(line))
    carets = f"{margin} |  {' ' * max(column - 1 - indent, 0)}{'^' * wide}"
    source = f"{line} |  {text[indent:]}\n{carets}" if text.strip() else None
    where = Location(_shorten(path), line, column)
    return ImportFailedError(f"cannot be imported: {type(error).__name__}: {error.msg}", where=where, source=source)


def crash(error: BaseException, what: str, path: Path, kind: type[SmeltError] = CrashError) -> SmeltError:
    """An exception of the user's code as an error that shows the last line of the user's own."""
    place = find_user_place(error.__traceback__, is_foreign) or find_user_place(error.__traceback__)
    said = str(error) or "(without a message)"
    message = f"{what}{type(error).__name__}: {said}"
    if place is None:
        return kind(message, where=Location(_shorten(str(path))))
    where, source = locate(place)
    return kind(message, where=where, source=source)


_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib", "platlib")})
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_foreign(path: str) -> bool:
    """Whether a file is smelt's, Python's or a library's, and not the user's."""
    return path.startswith("<") or os.path.realpath(path).startswith((*_LIBRARIES, _OURS))


def _shorten(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
