"""The pages of docs/: their Python runs and prints what they say, and their commands exist with these options.

A block of Python is followed by a block of text with what it prints, or prints nothing; `…` stands for anything within
a line. The blocks of a page share names and an empty folder. The miniature compiler of docs/from_scratch.py computes.
"""

import importlib
import importlib.util
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer

from smelt.cli.check_report import VERSION
from smelt.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tensors.md").read_text()
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
TOP = {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")}
PYTHON = r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?"
COMMAND: Any = typer.main.get_command(app)
UsageError: Any = typer.BadParameter.__mro__[1]  # typer has a click of its own


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if "```python" in text])
def test_the_python_of_a_page_prints_what_the_page_says(
    page: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page_of_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    caplog.set_level(logging.getLogger("smelt").level, "smelt")  # a page may set it: pytest puts it back
    for number, (code, printed) in enumerate(re.findall(PYTHON, PAGES[page], re.S)):
        path = tmp_path / f"block{number}.py"  # a file, so that errors find their lines
        path.write_text(code)
        module.__file__ = str(path)
        exec(compile(code, str(path), "exec", dont_inherit=True), vars(module))
        expected = ".*".join(re.escape(part) for part in printed.split("…"))
        assert re.fullmatch(expected, capsys.readouterr().out), code


def test_every_page_begins_with_what_a_reader_can_do():
    told = re.compile(r"# [^\n]+\n\nAfter reading this page")
    assert [name for name, text in PAGES.items() if not told.match(text)] == []


def test_the_messages_of_the_page_on_troubleshooting_are_in_the_package():
    """A message that is reworded is reworded there, too."""
    package = "\n".join(path.read_text("utf-8") for path in (ROOT / "smelt").rglob("*.py"))
    rows = re.findall(r"^\| (`.*?) \|", PAGES["docs/guides/troubleshooting.md"], re.M)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 30
    absent = [message for message in messages for part in message.split("…") if part.strip() not in package]
    assert not absent


LIMIT = re.compile(r"^\| [^|]+ \| ([0-9^]+)(?: ([KMG])iB)? \| `([a-z0-9_/]+)\.py` `(\w+)` \|$", re.M)


def test_the_limits_of_the_page_are_those_of_the_package():
    text = PAGES["docs/limits.md"]
    rows = LIMIT.findall(text)
    assert len(rows) == len(re.findall(r"^\| [^|]+ \| [0-9]", text, re.M)) > 50
    for number, unit, module, name in rows:
        base, _, power = number.partition("^")
        stated = int(base) ** int(power or 1) << 10 * (" KMG".index(unit) if unit else 0)
        found = getattr(importlib.import_module(f"smelt.{module.replace('/', '.')}"), name)
        assert found == stated, f"{module}.py: {name}"


# ---- commands ----


def shell_lines(text: str) -> list[str]:
    """The lines of a page's code blocks, indented or fenced, that are not Python or output."""
    fenced = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.S | re.M)
    outside = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    indented = re.findall(r"(?<=\n)    (.*)", outside)
    return [line.strip().removeprefix("$ ") for line in [*"\n".join(fenced).splitlines(), *indented]]


def parse_command(line: str) -> None:
    """Parse a `smelt` line with the command line's own parser, without running it; a wrong one raises."""
    _, *words = shlex.split(line, comments=True)
    command = COMMAND
    while names := [word for word in words if not word.startswith("-")]:
        if not hasattr(command, "commands"):
            break
        if names[0] not in command.commands:
            raise UsageError(f"no such command: {names[0]}")
        command = command.commands[names[0]]
        words.remove(names[0])
    command.make_context("smelt", words)


def test_a_wrong_command_is_noticed():
    parse_command("smelt compile model.onnx -o model.smelt --target avx2,plain  # a comment")
    for line in ("smelt melt x.onnx", "smelt run x.onnx --sizes batch=1", "smelt compile x.onnx", "smelt cache list"):
        with pytest.raises(UsageError):
            parse_command(line)


@pytest.mark.parametrize("page", [*TOP, *PAGES])
def test_the_commands_of_a_page_exist_with_their_options(page: str):
    text = (TOP | PAGES)[page]
    lines = shell_lines(text)
    for line in lines:
        if line.startswith("smelt "):
            try:
                parse_command(line)
            except UsageError as error:
                pytest.fail(f"{page}: {line}: {error.format_message()}")
    inline = re.findall(r"`smelt ([a-z]+)([^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    for name, rest in inline:
        command = COMMAND.commands.get(name)
        assert command is not None, f"{page}: smelt {name}"
        known = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"(?<=\s)--[a-z0-9-]+", rest)) <= known | {"--help"}, f"{page}: smelt {name}{rest}"


def test_the_help_of_every_command_ends_with_examples_that_exist():
    for name, command in COMMAND.commands.items():
        if hasattr(command, "commands"):  # of a group, each command has a line
            continue
        _, *lines = (command.epilog or "").split("\n\n")
        assert lines, name
        for line in lines:
            assert line.startswith(f"smelt {name}")
            parse_command(line.replace("\\[", "["))


@pytest.mark.parametrize("page", [*TOP, *PAGES])
def test_the_scripts_and_targets_of_a_page_exist(page: str):
    text = (TOP | PAGES)[page]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in [*shell_lines(text), *re.findall(r"`([^`\n]+)`", text)]:
        if found := re.match(r"make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)", line):
            assert found[1] in targets, f"{page}: {line}"
        if found := re.match(r"(?:\S*/)?python (?:-m (bench[\w.]*)|((?:bench|docs|tests|examples)/\S+\.py))(.*)", line):
            path = ROOT / (found[2] or f"{found[1].replace('.', '/')}.py")
            path = path if path.exists() else path.with_suffix("") / "__main__.py"
            source = path.read_text()
            for option in re.findall(r"(?<=\s)(--[a-z][a-z0-9-]*)", found[3].partition("#")[0]):
                assert f'"{option}"' in source, f"{page}: {line}: {option}"


# ---- the page about tensors ----


def test_the_message_of_the_page_is_the_message_of_the_command(tmp_path: Path):
    shown = re.search(r"\$ smelt check mlp\.py.*?\n(.*?\n)\n?An entry point", PAGE, re.S)
    assert shown is not None
    text = """from smelt import Shaped, Tensor
class MLP:
    up:   Shaped[Tensor, "f32[d=784, f=F]"]
    down: Shaped[Tensor, "f32[f=F, c=10]"]
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=784]"]):
        return x.dot(self.up, "d").relu().dot(self.down, "d")
"""
    (tmp_path / "mlp.py").write_text(text)
    command = [sys.executable, "-m", "smelt.cli.main", "check", "--format", "text", "mlp.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    expected = [line.removeprefix("    ") for line in shown.group(1).rstrip().splitlines()]
    assert done.stdout.rstrip().splitlines() == expected
    assert f"`version`, `ok`, `files` | {VERSION};" in PAGE


# ---- the miniature ----


@pytest.fixture(scope="module")
def scratch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("from_scratch", ROOT / "docs" / "from_scratch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_miniature_is_short_and_runs(scratch: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert 200 <= len((ROOT / "docs" / "from_scratch.py").read_text().splitlines()) <= 400
    scratch.main()
    printed = capsys.readouterr().out
    assert "void run(float **b, const long *n)" in printed
    assert 'refused before anything ran: dot over "d"' in printed


def test_the_miniature_computes_what_numpy_does(scratch: ModuleType, seed: int):
    rng = np.random.default_rng(seed)
    model = scratch.compile_model(scratch.attention, **scratch.SHAPES)
    for b, s, o in ((2, 3, 5), (1, 9, 2), (0, 2, 3)):
        sizes = {"x": (b, s, 8), "wq": (8, 4), "wk": (8, 4), "wv": (8, o)}
        arrays = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
        wide = {name: array.astype(np.float64) for name, array in arrays.items()}
        scores = np.exp((wide["x"] @ wide["wq"]) @ (wide["x"] @ wide["wk"]).swapaxes(1, 2))
        want = np.maximum(scores / scores.sum(-1, keepdims=True) @ (wide["x"] @ wide["wv"]), 0) + 1
        np.testing.assert_allclose(model(**arrays), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(scratch.ShapeError, match="not"):
        model(**{name: np.zeros((1, 2, 7) if name == "x" else (8, 4), np.float32) for name in sizes})


def test_the_miniature_fuses(scratch: ModuleType):
    """A chain of maps behind a product is one loop; a value that is used twice is kept."""
    one = scratch.compile_model(lambda x, w: (x.dot(w, "d") * 2.0 + 1.0).relu(), x="b=B, d=4", w="d=4, f=3")
    assert len(one.kept) == 1
    two = scratch.compile_model(lambda x, w: (y := x.dot(w, "d")) * y, x="b=B, d=4", w="d=4, f=3")
    assert len(two.kept) == 2
    x, w = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(one(x=x, w=w), x @ w * 2 + 1)
    np.testing.assert_array_equal(two(x=x, w=w), (x @ w) ** 2)
    axes = scratch.compile_model(lambda x: x.rename(b="d", d="b"), x="b=B, d=3")
    np.testing.assert_array_equal(axes(x=x[:, :3]), x[:, :3])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: x + w, "neither"),
        (lambda x, w: x.sum("f"), "no axis"),
        (lambda x, w: x.dot(w, "b"), "the right operand"),
        (lambda x, w: x.rename(d="b"), "rename"),
        (lambda x, w: x + w.sum("f").rename(d="b"), "two sizes"),
    ],
)
def test_the_miniature_refuses(scratch: ModuleType, function, message: str):
    with pytest.raises(scratch.ShapeError, match=message):
        scratch.compile_model(function, x="b=B, d=4", w="d=4, f=4")


QUESTIONS = {
    "depthwise.*int8.*VNNI": "kernel/build/depthwise.py",
    "fused softmax": "passes/recognise/softmax.py",
    "ONNX operator.*new": "read/onnx/ops/",
    "paged KV cache": "llm/pages.py",
    "batches of requests": "llm/scheduler.py",
    "CUDA kernel": "kernel/emit/kernel_cuda.py",
}


def test_the_layout_names_all_files_of_the_package_and_no_others() -> None:
    named = set(re.findall(r"`([\w./]+\.(?:pyi?|c|h|js))`", PAGES["docs/layout.md"]))
    places = [ROOT / place for place in ("smelt", "tests", "bench", "docs")]
    there = [f"/{path.relative_to(ROOT).as_posix()}" for place in places for path in place.rglob("*.*")]
    missing = [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in there)]
    assert len(named) > 300
    assert not missing, f"docs/layout.md names files that are not there: {', '.join(missing)}"
    short = {name.rpartition("/")[2] for name in named} | {"__init__.py"}
    sources = [path for path in there if path.startswith("/smelt/") and path.endswith((".py", ".c"))]
    absent = [path for path in sources if path.rpartition("/")[2] not in short]
    assert not absent, f"docs/layout.md does not name {', '.join(absent)}"


@pytest.mark.parametrize(("question", "file"), QUESTIONS.items())
def test_the_layout_answers_where_something_is(question: str, file: str) -> None:
    rows = PAGES["docs/layout.md"].partition("## Where is")[2].partition("\n## ")[0].splitlines()
    (row,) = [row for row in rows if re.search(question, row.split("|")[1] if row.count("|") > 1 else "")]
    assert f"`{file}`" in row.split("|")[2]
    assert (ROOT / "smelt" / file).exists()
