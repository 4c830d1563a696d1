"""What the compiler and the linker are given for a standalone model: files, flags and tables as text.

A workshop that only records takes the place of the compiler. `test_executable.py` and its neighbours run what real
compilers make of the same; the text is in tests/golden/standalone.txt, `--update-golden` writes it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.aot import build as building
from smelt.aot.assemble import Blob, Parts, assemble, choose_versions, plan_for
from smelt.aot.bare import check_static
from smelt.aot.build import Options, build, check_product, has_front, model_name
from smelt.aot.describe import c_name, c_string, check_signature
from smelt.aot.limit import check_limit, parts
from smelt.aot.record import record_call, recorded_unit
from smelt.aot.targets import MACHINES, find_machine
from smelt.device.cross import RUNTIME, Unit, Workshop
from smelt.device.processor import target
from smelt.device.runtime import FEATURES
from smelt.engine.native import NativeEngine
from smelt.engine.signature import signature_of
from smelt.errors import MemoryLimitError, UnsupportedError
from smelt.ir.attributes import DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.shape import Shape
from smelt.weights import Weights

GOLDEN = Path(__file__).parents[2] / "golden" / "standalone.txt"


def program(rows: int | str = "B", element: str = "f32") -> Program:
    """Rows by a constant matrix, and a few numbers of another type."""
    f = FuncBuilder("main", [Shape(element, rows, 4), Shape("complex<f64>", 2)])
    weights = f.constant(np.arange(12).reshape(4, 3) % 5, element)
    result = Shape("i32" if element == "i8" else element, rows, 3)
    matmul = f.dot_general(f.args[0], weights, dot_dimension_numbers=DotDims((), (), (1,), (0,)), result=result)
    return Program.of(f.func(matmul, f.imag(f.args[1])))


class Recorder:
    """Takes the place of `Workshop`: says what it is asked for."""

    folder = Path("folder")

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, files: Mapping[str, bytes]) -> None:
        self.lines += [f"write {name}: {len(content)} bytes" for name, content in files.items()]

    def compile(self, units: Sequence[Unit], flags: Sequence[str]) -> list[str]:
        self.lines.append(f"compile {' '.join(flags)}")
        for unit in units:
            file = f" {unit.text.name}" if isinstance(unit.text, Path) else ""
            self.lines.append(f"  {unit.name}{file}: {' '.join(unit.flags)}")
            if unit.name.endswith(("_tables", "_weights", "_recorded")):
                self.lines += [f"    | {line}" for line in str(unit.text).splitlines()]
        return [f"{unit.name}.o" for unit in units]

    def link(self, objects: Sequence[str], name: str, flags: Sequence[str]) -> bytes:
        self.lines.append(f"link {name} of {len(objects)} objects: {' '.join(flags)}")
        return b"linked"

    def archive(self, objects: Sequence[str], name: str) -> bytes:
        self.lines.append(f"archive {name} of {len(objects)} objects")
        return b"archived"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()

    @contextlib.contextmanager
    def workshop() -> Iterator[Recorder]:
        yield made

    monkeypatch.setattr(building, "workshop", workshop)
    monkeypatch.setattr(building, "checksum", lambda runtime, parts: 4711)
    return made


def weights() -> Weights:
    return Weights.of({})


def assembled(machine: str, **options: Any) -> Parts:
    return assemble([(program(2), weights()), (program(), weights())], "2 models", MACHINES[machine], **options)


BUILDS: dict[str, tuple[str, str, Options]] = {
    "an executable": ("x86_64-linux", "digits", Options(recorded=(np.ones((2, 4), np.float32), np.zeros(2, complex)))),
    "without threads, small": ("aarch64-linux", "digits", Options(threads=False, optimise="size")),
    "weights in a file": ("x86_64-windows", "digits.exe", Options(separate=True)),
    "an archive": ("riscv64-linux", "libdigits.a", Options()),
    "a shared library": ("aarch64-macos", "libdigits.dylib", Options()),
    "a shared library of Linux": ("armv7-linux", "libdigits.so", Options()),
    "a module": ("wasm32-wasi", "digits.wasm", Options(separate=True)),
}


def test_what_is_compiled_and_linked(recorder: Recorder, request: pytest.FixtureRequest) -> None:
    for title, (machine, name, options) in BUILDS.items():
        recorder.lines.append(f"== {title}: {name} for {machine}")
        files = build(assembled(machine), MACHINES[machine], name, options)
        for file, (content, mode) in files.items():
            recorder.lines.append(f"file {file}: mode {mode:o}, {len(content)} bytes")
            if file.endswith((".h", ".js", ".d.ts")):
                text = content.decode()
                for shared in ((RUNTIME / "api.h").read_text(), (Path(building.HERE) / "web.js").read_text()):
                    text = text.replace(shared, "")
                recorder.lines[-1] = f"file {file}: mode {mode:o}"
                recorder.lines += [f"    | {line}" for line in text.splitlines()]
    folders = {str(RUNTIME): "RUNTIME", str(building.HERE): "HERE"}
    got = "\n".join(recorder.lines) + "\n"
    for folder, short in folders.items():
        got = got.replace(folder, short)
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(got)
    assert got.splitlines() == GOLDEN.read_text().splitlines(), "--update-golden writes the file again"


def test_versions_share_weights_where_their_layout_is_one() -> None:
    x86 = MACHINES["x86_64-linux"]
    floats = assembled("x86_64-linux").programs[0]
    assert [(each.name, each.variant) for each in floats.versions] == [("avx512", 0), ("avx2", 1), ("baseline", 0)]
    assert [each.features for each in floats.versions] == [each.bits for each in x86.versions[1:]]
    small = assembled("x86_64-linux", small=True).programs[0]
    assert [(each.name, each.variant) for each in small.versions] == [("avx2", 0), ("baseline", 0)]
    int8 = [each.name for each in choose_versions(program(2, "i8"), x86, small=False)]
    assert int8 == ["avx512vnni", "avx512", "avx2", "baseline"]
    assert [each.name for each in choose_versions(program(2), x86, small=False)] == int8[1:]
    names = {name for machine in MACHINES.values() for each in machine.versions for name in each.target.features}
    assert names <= {*FEATURES}
    first, second = x86.versions[0].bits, x86.versions[1].bits
    assert first ^ second == 1 << FEATURES.index("avx512_vnni")


def test_plans_may_be_refused_before_they_are_packed() -> None:
    seen: list[str] = []
    made = assemble(
        [(program(2), weights())], "m", MACHINES["x86_64-linux"], admit=lambda plan: seen.append(plan.target.name)
    )
    assert seen == ["x86_64"] * 2
    assert made.signature == made.programs[0].signature
    assert made.versions == made.programs[0].versions


def test_equal_arrays_are_stored_once_and_aligned() -> None:
    blob = Blob()
    assert blob.bytes() == bytes(64)
    assert [blob.add(each) for each in (b"ab", b"c" * 64, b"ab", b"d" * 65, b"e", b"")] == [0, 64, 0, 128, 256, 320]
    assert blob.bytes() == b"ab" + bytes(62) + b"c" * 64 + b"d" * 65 + bytes(63) + b"e" + bytes(63)
    assert blob.size == len(blob.bytes()) == 320


@pytest.mark.parametrize(
    ("name", "wanted", "front"),
    [
        ("libdigits.a", "digits", False), ("libdigits.so", "digits", False), ("libdigits", "libdigits", True),
        ("liba.tar.dll", "a", False), ("digits-2.wasm", "digits_2", False), ("2.c", "model_2", False), ("é", "_", True),
        ("digits.exe", "digits", True), ("d.js", "d", False), ("d.dylib", "d", False),
    ],
)  # fmt: skip
def test_names(name: str, wanted: str, front: bool) -> None:
    assert has_front(name) == front
    assert model_name(Path(name)) == wanted


def test_c_text() -> None:
    assert [c_name(each) for each in ("a b", "", "1", "ä", "_x9")] == ["a_b", "model_", "model_1", "_", "_x9"]
    assert c_string('a"\\\n?é %{x}') == '"a\\042\\134\\012\\077\\303\\251 \\045{x}"'


@pytest.mark.parametrize(
    ("machine", "name", "separate", "expected", "remedy"),
    [
        ("wasm32-wasi", "m.so", False, "-o NAME.wasm or -o NAME.a", "-o m.wasm"),
        ("thumbv7em-none", "m.a", False, "-o NAME.c", "-o m.c"),
        ("thumbv7em-none", "m.c", True, None, "--weights embedded"),
        ("x86_64-linux", "m.wasm", False, "-o NAME or -o NAME.a or -o NAME.so", "--target wasm32-wasi"),
        ("x86_64-windows", "m.c", False, "-o NAME.exe or -o NAME.a or -o NAME.dll", "--target thumbv7em-none"),
    ],
)
def test_products_that_a_target_lacks(
    machine: str, name: str, separate: bool, expected: str | None, remedy: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_product(MACHINES[machine], name, separate=separate)
    assert (caught.value.expected, caught.value.remedy) == (expected, remedy)


def test_products_that_a_target_has() -> None:
    for machine, names in {"wasm32-wasi": ("m.wasm", "m.a"), "thumbv7em-none": ("m.c",)}.items():
        for name in names:
            check_product(MACHINES[machine], name, separate=machine == "wasm32-wasi")
    for name in ("m", "m.exe", "m.a", "m.so"):
        check_product(MACHINES["x86_64-linux"], name, separate=True)
    with pytest.raises(UnsupportedError, match="unknown target of a standalone model"):
        find_machine("x86_64-plan9")
    assert find_machine("wasm32-wasi") is MACHINES["wasm32-wasi"]


def test_memory_is_counted_before_anything_is_built() -> None:
    """Bytes by hand: 7 rows of four f32, seven of three, constants, two complex numbers and their imaginary parts."""
    linux, board = MACHINES["x86_64-linux"], MACHINES["thumbv7em-none"]
    plan = plan_for(program(), linux.versions[-1].target)
    found = parts(plan, linux, 3, {"B": 7})
    assert found["inputs and outputs"] == 7 * 4 * 4 + 7 * 3 * 4 + 2 * 16 + 2 * 8
    assert parts(plan, linux, 3, {})["inputs and outputs"] == 4 * 4 + 3 * 4 + 2 * 16 + 2 * 8
    assert found["runtime"] == linux.base_bytes + 2 * (2 << 20)
    assert parts(plan, linux, 1, {})["runtime"] == parts(plan, linux, 0, {})["runtime"] == linux.base_bytes
    assert found["scratch"] == 3 * parts(plan, linux, 0, {})["scratch"] == 3 * parts(plan, board, 5, {})["scratch"]
    assert found["weights"] >= 48
    assert parts(plan, board, 5, {})["weights"] == 0
    assert parts(plan, board, 5, {})["runtime"] == board.base_bytes
    total = sum(found.values())
    check_limit(plan, total, linux, 3, {"B": 7}, lambda: None)
    with pytest.raises(MemoryLimitError) as caught:
        check_limit(plan, total - 1, linux, 3, {"B": 7}, lambda: None)
    assert str(caught.value.remedy).startswith("--threads 0: ")
    assert " at B=7 (weights " in str(caught.value.got)
    with pytest.raises(MemoryLimitError) as caught:
        check_limit(plan, 1000, linux, 3, {"B": 7}, lambda: ("--precision int8", plan))
    assert caught.value.remedy == f"--memory-limit {-(-total // 1000)}KB"
    least = sum(parts(plan, board, 0, {}).values())
    with pytest.raises(MemoryLimitError) as caught:
        check_limit(plan, least - 1, board, 3, {}, lambda: None)
    assert caught.value.remedy == f"--memory-limit {-(-least // 1000)}KB"
    other = plan_for(program(1), linux.versions[-1].target)
    between = sum(parts(other, linux, 3, {}).values())
    with pytest.raises(MemoryLimitError) as caught:
        check_limit(plan, between + 1, linux, 3, {"B": 1 << 30}, lambda: ("--precision int8", other))
    assert str(caught.value.remedy).startswith("--precision int8: ")
    with pytest.raises(MemoryLimitError) as caught:
        check_limit(plan, between - 1, linux, 3, {"B": 1 << 30}, lambda: ("--precision int8", other))
    assert str(caught.value.remedy).startswith("--precision int8 --threads 0: ")


def test_sizes_that_are_not_known_before_a_call() -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_static(assemble([(program(), weights())], "m", MACHINES["thumbv7em-none"]))
    assert (caught.value.got, caught.value.remedy) == ("dynamic dimensions: B", "--size B=1")
    check_static(assemble([(program(2), weights())], "m", MACHINES["thumbv7em-none"]))


def test_a_call_is_recorded_with_the_rounding_of_the_machine() -> None:
    """Without FMA by the code of the target `plain`, which has none either."""
    assert {name for name, machine in MACHINES.items() if machine.has_fma} == {
        name for name in MACHINES if name.startswith(("x86_64-", "aarch64-"))
    }
    f = FuncBuilder("main", [Shape("f32", 3, 64), Shape("f32", 64, 5)])
    sums = f.dot_general(*f.args, dot_dimension_numbers=DotDims((), (), (1,), (0,)), result=Shape("f32", 3, 5))
    dot = Program.of(f.func(sums))
    for has_fma, engine in ((True, NativeEngine()), (False, NativeEngine(target("plain")))):
        *inputs, output = record_call(dot, Weights({}), {}, has_fma)
        (wanted,) = engine.compile(dot)(*inputs)
        np.testing.assert_array_equal(output, wanted)


def test_a_recorded_call() -> None:
    signature = signature_of(program(2).main)
    text, content = recorded_unit(signature, (np.ones((2, 4), np.float32), np.zeros(2, complex)))
    assert content == np.ones(8, np.float32).tobytes() + bytes(32) + bytes(64)
    assert "{{28, 2, {2, 4}, (void *)(content + 0), 32}, {31, 1, {2}, (void *)(content + 64), 32}}" in text
    assert text.endswith("const Sample recorded = {2, tensors};\n")
    assert recorded_unit(signature, ()) == ('#include "front.h"\nconst Sample recorded = {0, 0};\n', bytes(64))
    scalar = signature_of(Program.of(_scalar()).main)
    assert "0, {0}, (void *)(content + 0), 4}" in recorded_unit(scalar, (np.zeros((), np.float32),))[0]


def _scalar() -> Any:
    f = FuncBuilder("main", [Shape("f32")])
    return f.func(f.negate(*f.args))


def test_axes_that_the_c_api_lacks() -> None:
    for rank in (16, 17):
        f = FuncBuilder("main", [Shape("f32", *[1] * rank)])
        signature = signature_of(Program.of(f.func(f.negate(*f.args))).main)
        if rank == 16:
            check_signature(signature)
            continue
        with pytest.raises(UnsupportedError, match="too many axes for the C API") as caught:
            check_signature(signature)
        assert caught.value.expected == "at most 16"


def test_files_beside_the_code_are_written_into_the_workshop(tmp_path: Path) -> None:
    Workshop(("cc",), tmp_path).write({"a.h": b"first", "b.bin": b"\0second"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {
        "a.h": b"first", "b.bin": b"\0second",
    }  # fmt: skip
