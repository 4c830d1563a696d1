"""What a new user meets: tables that fit, remedies, output folders found early, folded lists, sizes that work."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from socket import socket

import numpy as np
import pytest
from typer.testing import CliRunner

from smelt.buffer import check_array
from smelt.cli import main, tables
from smelt.cli.fold import ShortNames, fold_list, fold_text
from smelt.cli.main import app
from smelt.cli.random_inputs import given_sizes
from smelt.cli.tables import Column, layout
from smelt.device import cache
from smelt.dim import Size, symbol
from smelt.dtype import Array, f32
from smelt.engine.signature import signature_of
from smelt.errors import FileError, ShapeError, SmeltError
from smelt.ir.text import parse
from smelt.model import load
from smelt.shape import Shape

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))
COMMANDS = {
    "run": ("native engine", "probabilities"),
    "inspect": ("recognised", "probabilities"),
    "bench --seconds 0.01": ("median", "calls"),
    "profile --seconds 0.01": ("of best", "layer1"),
    "diff": ("relative", "sum1"),
    "show --stage kernels": ("writes", "launches"),
    "check": ("every constraint holds",),
}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Runs a command on 60 columns, with the model in the current folder."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(tmp_path)
    Path("digits.onnx").write_bytes(DIGITS.read_bytes())

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exception is None or done.exit_code == 0, done.output
        return done.output

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_fit_sixty_columns(command: str, narrow: Callable[..., str]) -> None:
    name, *options = command.split()
    text = narrow(name, "digits.onnx", *options)
    flat = " ".join(text.split())
    for word in COMMANDS[command]:
        assert word in flat, text
    long = [line for line in text.splitlines() if len(line.rstrip()) > 60]
    assert not long or name == "check", long
    assert "…" not in text.replace("… and", "").replace("… (", ""), "nothing is cut"


def test_the_cache_names_models_on_sixty_columns(
    narrow: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", "kept")
    made = tmp_path / "made.so"
    made.write_bytes(b"code")
    with cache.compiling_for("a model with a name that is longer than a narrow terminal"):
        cache.default().put("a" * 40, made)
    cache.default().put("b" * 40, made)
    (entry,) = (each for each in cache.default().entries() if each.name)
    assert entry.key == "a" * 40
    text = narrow("cache", "ls")
    assert max(map(len, text.splitlines())) <= 60
    assert "a model with a name" in text
    narrow("cache", "clear")
    assert list(Path("kept").iterdir()) == [], "names go with their entries"


def test_layout_drops_columns_and_wraps_text() -> None:
    columns = (Column("name", True), Column("least", drop=2), Column("number"), Column("note", True))
    rows = [("name", "least", "number", "note"), ("a name", "1" * 9, "2" * 9, "some words that wrap")]
    assert list(layout(columns, rows, 60))[1] == f"a name  {'1' * 9}  {'2' * 9}  some words that wrap"
    narrow = "\n".join(layout(columns, rows, 26))
    assert "1" * 9 not in narrow
    assert "2" * 9 in narrow
    assert max(map(len, narrow.splitlines())) <= 26


def test_a_file_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert tables.open_console().width == tables.WIDE


# ---- errors ----


FIRST_MET = ("cli/*", "compat/*", "serve/*", "files", "engine_api", "model", "formats", "run/load")
OF_LANGUAGE_MODELS = ("memory", "options", "pooling", "quantise", "store")


@pytest.mark.parametrize("files", [*FIRST_MET, *(f"llm/{name}" for name in OF_LANGUAGE_MODELS)])
def test_every_error_of_a_command_has_a_remedy(files: str) -> None:
    """Errors that a class of its own turns into a note need none."""
    bare = []
    for path in Path(main.__file__).parents[1].glob(f"{files}.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                named = {keyword.arg for keyword in node.keywords}
                if node.func.id in ERRORS and not named & {"remedy", None}:
                    bare.append(f"{path.name}:{node.lineno}")
    assert bare == []


ERRORS = ("SmeltError", "FileError", "ShapeError", "RunError", "UnsupportedError", "MissingPackageError")


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "{model}", "-o", "{file}.smelt"],
        ["export", "{model}", "-o", "{file}.mlir"],
        ["profile", "{model}", "--trace", "{file}.json"],
        ["profile", "{model}", "--svg", "{file}.svg"],
        ["tune", "{model}", "--export", "{file}.jsonl"],
    ],
)
def test_missing_output_folders_are_found_before_the_model_is_read(arguments: list[str], tmp_path: Path) -> None:
    filled = [each.format(model=tmp_path / "no_model.onnx", file=tmp_path / "no" / "file") for each in arguments]
    done = CliRunner().invoke(app, filled)
    assert isinstance(done.exception, FileError)
    assert done.exception.remedy == f"mkdir -p {tmp_path / 'no'}"


@pytest.mark.parametrize(
    ("sizes", "given", "element"),
    [
        ((None, 64), (64,), np.float32),
        ((None, 64), (64, 3), np.float32),
        ((None, 3, 8, 9), (2, 8, 9, 3), np.float32),
        ((None, 8, 9, 3), (2, 3, 8, 9), np.float32),
        ((5, 1), (5,), np.float32),
        ((5,), (1, 5), np.float32),
        ((4, 4), (4, 4), np.float64),
        ((2, 7), (3, 3), np.float32),
    ],
)
def test_the_remedy_of_a_wrong_array_mends_it(
    sizes: tuple[int | None, ...], given: tuple[int, ...], element: type
) -> None:
    known: list[Size] = [parse_symbol() if size is None else size for size in sizes]
    shape = Shape.of(f32, known)
    wrong: Array = np.ones(given, element)
    with pytest.raises(ShapeError) as error:
        check_array(wrong, shape, "the input")
    remedy = str(error.value.remedy).removeprefix("an array such as ")
    mended = eval(f"array{remedy}" if remedy.startswith(".") else remedy, {"array": wrong, "numpy": np})
    check_array(mended, shape, "the input")


def parse_symbol() -> Size:

    return symbol("batch")


def test_inputs_by_a_wrong_name_get_a_call_that_works() -> None:
    model = load(DIGITS, engine="reference")
    with pytest.raises(Exception, match="do not fit") as error:
        model.run({"pixel": np.ones((1, 64), np.float32)})
    assert error.value.remedy == "model.run({'pixels': …})"  # type: ignore[attr-defined]


# ---- folding, sizes ----


def test_long_lists_and_names_are_folded() -> None:
    many = [f"{i} ops" for i in range(9)]
    assert fold_list(many, 3, False) == ["0 ops", "1 ops", "2 ops", "… and 6 more (--verbose shows all)"]
    assert fold_list(many, 3, True) == many
    assert fold_list(many[:4], 3, False) == many[:4], "one more is not worth a line about it"
    assert fold_text("a\nb\nc", False).startswith("a … (3 lines")
    assert fold_text("a\nb\nc", True) == "a\nb\nc"
    names = ShortNames(["p2o.DynamicDimension.1", "p2o.DynamicDimension.10", "batch", "d0"])
    assert names.shorten("(p2o.DynamicDimension.1 + 3)//p2o.DynamicDimension.10*batch") == "(d1 + 3)//d2*batch"
    assert names.legend() == ["d1 = p2o.DynamicDimension.1", "d2 = p2o.DynamicDimension.10"]


def test_default_sizes_are_large_enough_for_the_program() -> None:
    program = parse(
        """func.func @main(%x: tensor<?xf32>) -> tensor<40xf32> {
          %0 = stablehlo.slice %x [0:40] : (tensor<?xf32>) -> tensor<40xf32>
          return %0 : tensor<40xf32>
        }"""
    )
    signature = signature_of(program.main)
    (name,) = given_sizes(signature, [])
    assert given_sizes(signature, [], program)[name] == 64
    assert given_sizes(signature, [f"{name}=3"], program)[name] == 3, "what the user said stays"


def test_a_server_that_is_not_running_is_an_error_with_a_remedy() -> None:
    with socket() as free:  # bound, and nothing listens: connections are refused
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        for command in (["bench", "--url", url], ["top", "--once", "--url", url]):
            error = CliRunner().invoke(app, command).exception
            assert isinstance(error, SmeltError), error
            assert "does not answer" in error.message
            assert (error.remedy or "").startswith("smelt serve MODEL")


def test_the_peers_of_diff_are_named() -> None:
    error = CliRunner().invoke(app, ["diff", str(DIGITS), "--against", "abacus"]).exception
    assert isinstance(error, SmeltError)
    assert str(error.expected).startswith("onnxruntime, ")
