"""Commands on bundles: bench, check and show take them, the others refuse; compile-time inputs are named."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import smelt
from smelt import abi
from smelt.bundle.write import write
from smelt.cli.main import app
from smelt.device import cpu
from smelt.errors import FileError, RunError, SmeltError, UnsupportedError
from smelt.run.load import read_stored

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))
TEXT = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %factor = stablehlo.constant dense<{}.0> : tensor<4xf32>
  %y = stablehlo.multiply %x, %factor : tensor<4xf32>
  return %y : tensor<4xf32>
}}
"""


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def smelt_json(*arguments: object) -> Any:
    done = command(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "digits.smelt"
    smelt_json("compile", DIGITS, "-o", path)
    return path


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """A model whose second input says over which axes it adds."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info("x", kind.FLOAT, [3, 4]),
        helper.make_tensor_value_info("axes", kind.INT64, [1]),
    ]
    outputs = [helper.make_tensor_value_info("y", kind.FLOAT, ["n"])]
    graph = helper.make_graph([helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)], "sum", inputs, outputs)
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def test_inspect_leaves_out_what_a_bundle_has_not(bundle: Path) -> None:
    lines = command("inspect", bundle).output.splitlines()
    assert [line for line in lines if line.startswith("inputs")]
    assert not [line for line in lines if line.split()[-1:] == ["None"] or line.split() in (["static"], ["files"])]


# ---- check ----


def test_check_compares_digests_and_runs_all_code_beside_the_reference(bundle: Path) -> None:
    record = smelt_json("check", bundle, "--size", "batch=3")
    assert (record["ok"], record["signed"], record["errors"]) == (True, None, [])
    (program,) = record["programs"]
    runs = [code["target"] for code in program["codes"] if code["absent"] is None]
    assert program["compared"] == ["reference", *runs]
    assert "plain" in runs
    assert "every digest is right" in command("check", bundle).stdout


def test_check_finds_a_changed_byte(bundle: Path, tmp_path: Path, seed: int) -> None:
    data = bytearray(bundle.read_bytes())
    data[np.random.default_rng(seed).integers(len(data))] ^= 1
    damaged = tmp_path / "damaged.smelt"
    damaged.write_bytes(data)
    with pytest.raises(FileError):
        command("check", damaged)
    done = command("check", damaged, bundle, "--json")  # beside others it is one line of the report
    assert done.exit_code == 1
    assert [each["ok"] for each in json.loads(done.stdout)["models"]] == [False, True]


def test_check_finds_code_that_computes_something_else(tmp_path: Path) -> None:
    """Every digest of such a file is right: only a run shows it."""
    for factor in (2, 3):
        (tmp_path / f"times{factor}.mlir").write_text(TEXT.format(factor))
        smelt_json("compile", tmp_path / f"times{factor}.mlir", "-o", tmp_path / f"times{factor}.smelt")
    twice, thrice = (read_stored(tmp_path / f"times{factor}.smelt") for factor in (2, 3))
    (program,), (other,) = twice.programs, thrice.programs
    (variant,) = program.variants
    codes = (variant.codes[0], other.variants[0].codes[-1])  # plain code of the other program
    forged = tmp_path / "forged.smelt"
    write(forged, twice.replace(programs=(program.replace(variants=(variant.replace(codes=codes),)),)))
    done = command("check", forged, "--json")
    record = json.loads(done.stdout)
    assert (done.exit_code, record["ok"], len(record["errors"])) == (1, False, 1)
    assert "plain gives other results than reference" in record["errors"][0]["message"]


CRASH = """
int {name}_measure(const long long *n, long long *out) {{ out[0] = out[1] = 0; {sizes} return 0; }}
int {name}_run(void) {{ {what} }}
"""


@pytest.mark.parametrize(
    ("what", "why"), [("*(volatile int *)8 = 1; return 0;", "SIGSEGV"), ("__builtin_trap();", "SIGILL|SIGTRAP")]
)
def test_check_survives_code_that_crashes(bundle: Path, tmp_path: Path, what: str, why: str) -> None:
    """Such code says of itself what the manifest says: only a run shows what it does."""
    model = read_stored(bundle)
    (program,) = model.programs
    variant = program.variants[0]
    main = variant.main
    lengths = [constant.nbytes for constant in variant.constants]
    checks = len(main.sizes), len(main.data)
    said = abi.describe(main.symbols, main.arguments, main.results, lengths, main.donated, main.reused, checks)
    ranks = sum(shape.rank for shape in main.results)
    sizes = " ".join(f"out[{2 + i}] = 1;" for i in range(ranks))
    text = CRASH.format(name=main.name, sizes=sizes, what=what) + abi.c_text(main.name, said)
    cpu.compile_to(tmp_path / "code.so", text)
    code = variant.codes[-1].replace(library=(tmp_path / "code.so").read_bytes)
    forged = program.replace(variants=(variant.replace(codes=(code,)),))
    write(tmp_path / "crash.smelt", model.replace(programs=(forged,)))
    with pytest.raises(RunError, match="crashed the process") as caught:
        command("check", tmp_path / "crash.smelt")
    assert re.fullmatch(why, str(caught.value.got))


def test_check_asks_for_a_signature_where_keys_are_configured(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_BUNDLE_KEYS", "00" * 32)
    with pytest.raises(FileError, match="not signed"):
        command("check", bundle)


# ---- show and bench ----


def test_show_prints_the_program_that_the_bundle_holds(bundle: Path, tmp_path: Path) -> None:
    text = command("show", bundle).stdout
    assert "// source: digits.onnx" in text
    record = smelt_json("show", bundle)
    for each in record["programs"]:
        assert each["text"] in text
        smelt.verify(smelt.parse(each["text"]))
    assert "smelt.packed_dot" in record["programs"][0]["text"]


def test_show_lists_kernels_and_arguments_of_the_code(bundle: Path) -> None:
    kernels = smelt_json("show", bundle, "--stage", "kernels")["programs"][0]["kernels"]
    assert [(use.kind, use.count, list(use.ops)) for use in smelt.load(bundle).kernels] == [
        (row["kind"], row["count"], row["ops"]) for row in kernels
    ]
    plan = smelt_json("show", bundle, "--stage", "plan")["programs"][0]
    given = [each for each in plan["arguments"] if not each["bound"]]
    assert [(each["name"], each["shape"]) for each in given] == [("pixels", "f32[batch, 64]")]
    assert [code["target"] for code in plan["codes"]][-1] == "plain"
    assert "pixels" in command("show", bundle, "--stage", "plan").stdout


@pytest.mark.parametrize("stage", ["passes", "loops", "source"])
def test_show_says_what_a_bundle_does_not_keep(bundle: Path, stage: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        command("show", bundle, "--stage", stage)
    assert caught.value.remedy == f"smelt show digits.onnx --stage {stage}"


def test_bench_measures_a_bundle_beside_a_peer_with_the_original(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    alone = smelt_json("bench", bundle, "--seconds", "0.1", "--size", "batch=2")
    assert alone["inputs"] == {"pixels": [2, 64]}
    assert list(alone["engines"]) == ["smelt (native)"]
    peers = ("--against", "onnxruntime")
    both = smelt_json("bench", bundle, "--seconds", "0.1", *peers, "--original", DIGITS)
    assert list(both["engines"]) == ["smelt (native)", "onnxruntime"]
    assert [each["agree"] for each in both["differences"]] == [True]
    with pytest.raises(UnsupportedError) as caught:
        command("bench", bundle, *peers)
    assert caught.value.remedy == "--original digits.onnx"
    changed = tmp_path / "digits.onnx"
    changed.write_bytes(DIGITS.read_bytes() + b"\0")
    with pytest.raises(SmeltError, match="was not compiled from"):
        command("bench", bundle, *peers, "--original", changed)
    with pytest.raises(SmeltError, match="belongs to a bundle"):
        command("bench", DIGITS, "--original", DIGITS)


# ---- what needs the model ----


@pytest.mark.parametrize("name", ["profile", "diff", "tune", "export", "compile"])
def test_commands_that_need_the_model_refuse_a_bundle(bundle: Path, tmp_path: Path, name: str) -> None:
    more = {"export": ("-o", tmp_path / "a.mlir"), "compile": ("-o", tmp_path / "a.smelt")}.get(name, ())
    with pytest.raises(UnsupportedError, match="is compiled already") as caught:
        command(name, bundle, *more)
    assert "give the model that it was made of" in str(caught.value.remedy)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run", "show", "check", "bench"])
def test_compile_time_inputs_of_a_bundle_are_fixed(bundle: Path, name: str) -> None:
    with pytest.raises(UnsupportedError, match="are fixed"):
        command(name, bundle, "--static", "axes=[1]")


# ---- values that shape a program ----


def test_run_show_and_export_take_compile_time_inputs(sums: Path, tmp_path: Path, seed: int) -> None:
    x = np.random.default_rng(seed).random((3, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    given = f"x={tmp_path / 'x.npy'}"
    for axis in (0, 1):
        smelt_json("run", sums, "--input", given, "--static", f"axes=[{axis}]", "--output-dir", tmp_path)
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), x.sum(axis), rtol=1e-6)
    text = smelt_json("show", sums, "--static", "axes=[1]")["text"]
    assert "tensor<3xf32>" in text
    smelt_json("export", sums, "-o", tmp_path / "sum.mlir", "--static", "axes=[1]")
    (y,) = smelt.load(tmp_path / "sum.mlir")(x).values()
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-6)
    for name, more in (("show", ()), ("export", ("-o", tmp_path / "other.mlir"))):
        with pytest.raises(SmeltError) as caught:
            command(name, sums, *more)
        assert caught.value.remedy == "--static axes=…"
    with pytest.raises(SmeltError, match="only inputs of ONNX models"):
        command("show", tmp_path / "sum.mlir", "--static", "axes=[1]")
