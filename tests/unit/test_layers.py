"""The rooms of the package and which may import which: reads every module's imports and fails on one that points up.

Upward means not in BELOW's closure. Our own modules are imported inside a function only in LATE.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import smelt

ROOT = Path(smelt.__path__[0])

BASE = {
    "abi",
    "dtype",
    "shape",
    "layout",
    "dim",
    "frozen",
    "stop",
    "size",
    "theory",
    "errors",
    "files",
    "formats",
    "target",
    "buffer",
    "guard",
    "callable_package",
    "weights",
    "engine_api",
    "structure",
    "activity",
    "mesh",
    "version",
}

# A room may import itself, the rooms named here, and whatever those may import.
BELOW: dict[str, tuple[str, ...]] = {
    "base": (),
    "ir": ("base",),
    "passes": ("ir",),
    "kernel": ("passes",),
    "device": ("base",),
    "bundle": ("device",),
    "run": ("bundle",),  # so that what runs a compiled model needs nothing that compiles
    "engine": ("passes", "kernel", "run"),
    "record": ("ir",),  # tensor but jit: readers may record programs with it
    "tensor": ("record", "engine"),  # its jit, and the public names that its __init__ gathers
    "read": ("passes", "record"),
    "model": ("engine", "tensor", "read"),
    "write": ("model",),
    "compat": ("model",),
    "llm": ("model",),
    "train": ("tensor", "read"),
    "dist": ("model",),
    "aot": ("model",),
    "client": ("base",),
    "serve": ("llm", "dist", "aot", "client"),
    "cli": ("serve", "compat", "train", "write", "smelt"),
    "smelt": (),  # the public names in smelt/__init__.py, which resolve lazily: exempt, and imported by cli alone
}

# Emitters print what the rest of the compiler decided: only these may know one.
EMITTERS, PRINTS = "smelt.kernel.emit", ("smelt.kernel.emit", "smelt.engine")

# Packages that a module may import when it is itself imported; every other one is imported where it is used.
EAGER = {"numpy", "ml_dtypes"}
EAGER_IN = {
    "cli": {"typer", "rich"},
    "serve": {"msgspec", "uvicorn", "grpc", "google"},
}  # extra `serve`; cli loads it late


# What compiles for the processor. Outside `device` there are only devices, as `smelt.device.api` describes them.
PROCESSOR = "smelt.device.cpu"


def reach(room: str) -> set[str]:
    """The room and everything it may import."""
    return {room}.union(*(reach(below) for below in BELOW[room]))


def room_of(module: str) -> str | None:
    """The room of a dotted module name, or None where the house has no such room."""
    parts = module.split(".")
    if len(parts) == 1:
        return "smelt"
    if parts[1] in BASE:
        return "base"
    if parts[1] == "__main__":
        return "cli"
    if parts[1] == "nn" or (parts[1] == "tensor" and len(parts) > 2 and parts[2] != "jit"):
        return "record"
    return parts[1] if parts[1] in BELOW.keys() - {"base", "record", "smelt"} else None


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str, bool, bool]]:
    """(line, dotted name, whether it happens in a function, whether only for the type checker), for every import."""

    def visit(node: ast.AST, local: bool, typing: bool) -> Iterator[tuple[int, str, bool, bool]]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name, local, typing
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                source = ".".join([*above, *([module] if module else [])])
                for alias in names:
                    # `from smelt import dtype` names a module, `from smelt import load` a public name.
                    full = f"{source}.{alias.name}"
                    yield node.lineno, full if is_module(full) else source, local, typing
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name, True, typing
        for child in ast.iter_child_nodes(node):
            inner = local or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, inner, typing or is_type_checking(node))

    return visit(tree, False, False)


def is_module(name: str) -> bool:
    path = ROOT.parent.joinpath(*name.split("."))
    return name.startswith("smelt.") and (path.is_dir() or path.with_suffix(".py").is_file())


# These import modules on demand, so that running a bundle starts fast: a kind of device, the C compiler, what writes a
# bundle, what most bundles do without.
LATE = {
    *("smelt.device.registry", "smelt.device.cpu_device", "smelt.device.runtime"),
    *("smelt.run.load", "smelt.run.loaded", "smelt.run.executable"),
}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one module, a line each."""
    room = room_of(module)
    if room is None:
        return [f"{module}: no room of that name; add it to BASE or BELOW in {Path(__file__).name}"]
    found = []
    for line, name, local, typing in imports(ast.parse(source), module if is_package else module.rpartition(".")[0]):
        where, top = f"{module}:{line}:", name.split(".")[0]
        if top == "smelt":
            other = room_of(name)
            if other is None:
                found.append(f"{where} {name} is in no room")
            elif other not in reach(room):
                found.append(f"{where} {room} may not import {other} ({name})")
            if is_inside(name, EMITTERS) and not any(is_inside(module, each) for each in PRINTS):
                found.append(f"{where} {module} may not import an emitter ({name})")
            if local and module not in LATE:
                found.append(f"{where} {name} is imported inside a function")
            if name == PROCESSOR and room != "device":
                found.append(f"{where} {room} may not import {name}: a device is known by device.registry")
        elif not (local or typing or top in sys.stdlib_module_names | EAGER | EAGER_IN.get(room, set())):
            found.append(f"{where} {name} is imported with the module; import it in the function that needs it")
    return list(dict.fromkeys(found))  # one line may import several names


def is_inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def modules() -> list[tuple[str, Path]]:
    """Every module of the package but smelt/__init__.py."""
    named = [(".".join(path.relative_to(ROOT.parent).with_suffix("").parts), path) for path in ROOT.rglob("*.py")]
    return sorted((name.removesuffix(".__init__"), path) for name, path in named if name != "smelt.__init__")


def test_imports_point_one_way():
    assert modules()
    found = [
        line
        for name, path in modules()
        for line in violations(path.read_text("utf-8"), name, is_package=path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


def test_the_table_has_no_way_back():
    for room, below in BELOW.items():
        assert all(room not in reach(other) for other in below), room


UPWARD = [
    ("smelt.ir.core", "import smelt.kernel.plan.plan", "ir may not import kernel"),
    ("smelt.ir.core", "from smelt.passes import pipeline", "ir may not import passes"),
    ("smelt.ir.core", "from smelt import engine", "ir may not import engine"),
    ("smelt.ir.core", "from ..tensor import trace", "ir may not import tensor"),
    ("smelt.ir.core", "from .. import read", "ir may not import read"),
    ("smelt.ir.core", "if TYPE_CHECKING:\n    from smelt.kernel.plan.plan import Plan", "ir may not import kernel"),
    ("smelt.ir.core", "try:\n    import smelt.kernel\nexcept ImportError:\n    pass", "ir may not import kernel"),
    ("smelt.dtype", "from smelt.ir.core import Op", "base may not import ir"),
    ("smelt.device.cpu", "from smelt.ir.core import Op", "device may not import ir"),
    ("smelt.run.load", "from smelt.engine.store import recompile", "run may not import engine"),
    ("smelt.run.load", "from smelt.ir.text import parse", "run may not import ir"),
    ("smelt.read.onnx", "from smelt.engine.native import compile", "read may not import engine"),
    ("smelt.tensor.core", "from smelt.tensor.jit.realise import realize", "record may not import tensor"),
    ("smelt.tensor.ops.move", "from smelt.engine.native import NativeEngine", "record may not import engine"),
    ("smelt.read.onnx", "from smelt.tensor.jit.compile import compile", "read may not import tensor"),
    ("smelt.llm.decode", "from smelt.dist import ring", "llm may not import dist"),
    ("smelt.kernel.build.gemm", "from smelt.kernel.emit.tile_f32 import HEAD", "may not import an emitter"),
    ("smelt.kernel.plan.fuse", "from smelt.kernel.emit import c", "may not import an emitter"),
    ("smelt.kernel.tune.schedules", "import smelt.kernel.emit.kernel_c", "may not import an emitter"),
    ("smelt.engine.native", "from smelt import load", "engine may not import smelt (smelt)"),
    ("smelt.engine.native", "import smelt", "engine may not import smelt (smelt)"),
    ("smelt.engine.native", "from smelt.device import cpu", "known by device.registry"),
    ("smelt.cli.tune", "from smelt.device.cpu import progress", "known by device.registry"),
]


@pytest.mark.parametrize(("module", "source", "expected"), UPWARD)
def test_an_upward_import_is_reported(module: str, source: str, expected: str):
    [found] = violations(source, module)
    assert expected in found


def test_a_relative_import_in_a_package_counts_from_the_package():
    assert violations("from .core import Op", "smelt.ir", is_package=True) == []
    [found] = violations("from ..kernel import plan", "smelt.ir", is_package=True)
    assert "ir may not import kernel" in found


LOCAL = [
    "def f():\n    from smelt.dtype import F32",
    "async def f():\n    import smelt.errors",
    "class C:\n    def f(self):\n        if True:\n            from . import text",
    "def f():\n    return importlib.import_module('smelt.ir.text')",
    "text = import_module('smelt.ir.text')",
]


@pytest.mark.parametrize("source", LOCAL)
def test_an_import_of_our_own_inside_a_function_is_reported(source: str):
    [found] = violations(source, "smelt.ir.core")
    assert "inside a function" in found


def test_some_modules_import_late_but_never_upward():
    source = "def f():\n    return import_module('smelt.{}')"
    assert violations(source.format("device.cuda"), "smelt.device.registry") == []
    assert "device may not import kernel" in violations(source.format("kernel.plan"), "smelt.device.registry")[0]
    assert len(violations(source.format("kernel.plan"), "smelt.device.host")) == 2


def test_unknown_rooms_are_reported():
    assert "no room of that name" in violations("", "smelt.helpers")[0]
    assert "no room of that name" in violations("", "smelt.common.things")[0]
    assert "is in no room" in violations("import smelt.helpers", "smelt.ir.core")[0]


def test_other_packages_are_imported_late():
    assert "imported with the module" in violations("import onnx", "smelt.read.onnx")[0]
    assert "imported with the module" in violations("from rich import table", "smelt.engine.native")[0]
    for source in ("def f():\n    import onnx", "if TYPE_CHECKING:\n    import onnx", "import numpy, json"):
        assert violations(source, "smelt.read.onnx") == []
    assert violations("import typer", "smelt.cli.main") == []


def test_downward_imports_pass():
    source = (
        "from smelt import dtype\nfrom smelt.ir import core\nfrom smelt.kernel.plan import memory\nfrom . import cache"
    )
    assert violations(source, "smelt.engine.native") == []
    assert violations("from smelt.tensor.record import emit", "smelt.read.onnx") == []
    assert violations("import smelt\nfrom smelt.ir.text import parse", "smelt.cli.main") == []
