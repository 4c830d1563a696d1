"""Every stage of compilation as text: NAME.mlir is compiled for avx2, NAME.txt holds what each stage prints, and
NAME.cuda.txt kernels for a GPU.

The texts are documentation, too. `pytest tests/golden --update-golden` writes them again; read the difference.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from smelt.cli.show import show
from smelt.device.cuda import TARGETS
from smelt.engine.compile import emit_source, lower, plan_program
from smelt.ir.text import parse, print_program

HERE = Path(__file__).parent
PROGRAMS = sorted(HERE.glob("*.mlir"))


def stages(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    program = parse(path.read_text())

    def shown(stage: str) -> str:
        show(path, stage, [], False, False, False)
        return capsys.readouterr().out

    parts = (part for part in emit_source([plan_program(program)]).parts if not part.startswith("const char"))
    texts = {
        "lowered: the program after all passes": print_program(lower(program)),
        "plan: steps over buffers": shown("plan").partition("\npeak:")[0],  # a sum over threads
        "loops: each kernel in the loop IR": shown("loops"),
        "source: kernels, then the program, without prelude and interface": "\n".join(parts),
    }
    return "\n".join(f"==== {title}\n\n{text.strip()}\n" for title, text in texts.items())


@pytest.mark.parametrize("path", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_stages_print_what_they_did(
    path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_TARGET", "avx2")
    monkeypatch.setenv("SMELT_TUNING", "off")
    check(stages(path, capsys), path.with_suffix(".txt"), request)


def test_kernels_of_a_gpu(request: pytest.FixtureRequest) -> None:
    """CUDA: a row for each warp, reductions by shuffles in the order of a processor's lanes."""
    path = HERE / "softmax.mlir"
    plan = plan_program(parse(path.read_text()), TARGETS["sm_80"])
    check("\n".join(emit_source([plan]).parts), path.with_suffix(".cuda.txt"), request)


def check(got: str, golden: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        golden.write_text(got)
    want = golden.read_text()
    changed = difflib.unified_diff(want.splitlines(), got.splitlines(), golden.name, "now", lineterm="", n=1)
    assert got == want, "\n".join([*changed, "--update-golden writes the file again"])
