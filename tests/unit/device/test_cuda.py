"""`device.cuda.Cuda` on a driver in Python: targets, code in the cache, its format, programs and memory."""

from __future__ import annotations

import json
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt import abi
from smelt.device import cache, cuda, cuda_compile, cuda_driver
from smelt.device.cuda import MAGIC, TARGETS, Cuda, Module, capability_of
from smelt.device.entry import Entry
from smelt.device.pinned import Ring, Staging
from smelt.errors import DeviceError, FileError, UnsupportedError
from smelt.shape import Shape
from tests.unit.device.test_host_plan import HostDriver


class Driver(HostDriver):
    name, capability, memory = "a driver in Python", (8, 6), (30 << 20, 100 << 20)

    def attribute(self, name: str) -> int:
        clocks = {"CLOCK_RATE": 1_695_000, "MEMORY_CLOCK_RATE": 9_751_000, "GLOBAL_MEMORY_BUS_WIDTH": 384}
        sizes = {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 101376, "L2_CACHE_SIZE": 6 << 20}
        return ({"MULTIPROCESSOR_COUNT": 82} | clocks | sizes)[name]

    def load(self, code: bytes) -> Any:
        return code

    def function(self, module: Any, name: str) -> Any:
        return f"{name} of {module.decode()}" if name.encode() in module else None


class Here(Cuda):
    """The device; kernels are their own text."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.made, self.compiled = Driver(), list[tuple[str, str]]()

    def missing(self) -> str | None:
        return None

    def missing_driver(self) -> str | None:
        return None

    @property
    def driver(self) -> Any:
        return self.made

    def compiler(self) -> str:
        return "a compiler"

    def compile_ptx(self, text: str, machine: str) -> bytes:
        return b"PTX " + text.encode()

    def compile_file(self, text: str, machine: str) -> bytes:
        self.compiled.append((text, machine))
        return text.encode()


def test_names_and_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Here()
    monkeypatch.setattr(cuda_driver, "count", lambda: 4)
    assert (device.name, Here(2).name, Here(2).number) == ("cuda", "cuda:2", 2)
    monkeypatch.setattr(cuda_driver, "version", lambda: 12080)
    monkeypatch.setattr(cuda_compile, "missing", lambda: "no NVRTC")
    facts = device.facts()
    assert (device.count, facts["compute capability"], facts["multiprocessors"]) == (4, "8.6", 82)
    assert facts["memory"].endswith(" free, 936 GB/s")  # of a GeForce RTX 3090, by NVIDIA's data sheet
    assert facts["arithmetic"] == "36 TFLOP/s of f32, 71 of bf16"
    assert (facts["driver"], facts["compiler"]) == ("CUDA 12.8", "no NVRTC")
    assert facts["instructions"] == "mma.sync, cp.async"
    assert device.stats() == {"bytes_in_use": float(70 << 20), "bytes_limit": float(100 << 20)}
    assert (device.default_threads, device.has_own_memory, device.account(7).limit) == (0, True, 7)
    assert device.provenance()["compiler"] == "a compiler"
    with pytest.raises(UnsupportedError, match="no tunables"):
        device.exported_array(None, "x", 1)  # type: ignore[arg-type]


def test_shared_memory_of_the_targets() -> None:
    """KiB that a block may have, by compute capability: the table of the CUDA C++ programming guide."""
    shared = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99}
    assert {name: target.cache_bytes[0] for name, target in TARGETS.items()} == {k: v << 10 for k, v in shared.items()}
    assert {(target.vector_bytes, target.registers) for target in TARGETS.values()} == {(32 * 4, 255)}  # warp, thread


def test_targets() -> None:
    device = Here(1)
    here = device.target()
    assert (here.name, here.device, here.cores, here.cache_bytes) == ("sm_86", "cuda:1", 82, (101376, 6 << 20))
    assert device.target("native") == here
    assert device.target("sm_90") == TARGETS["sm_90"].replace(device="cuda:1")
    assert device.targets is TARGETS
    assert device.default_targets(int8=False, bf16=False) == ("sm_86",)
    others = ("sm_75", "sm_89", "sm_90", "sm_100", "avx2")
    wanted = {"sm_80": "", "sm_86": ""} | {name: f"for {name}, this is sm_86" for name in others}
    wanted |= {
        "sm_90": "for sm_90, this is sm_86",
        "avx2": "for avx2, this is sm_86",
        "sm_100": "for sm_100, this is sm_86",
    }
    assert {name: device.lacks(name, ()) for name in wanted} == wanted
    device.made.capability = (8, 7)
    assert device.default_targets(int8=False, bf16=False) == ("sm_86",)
    device.made.capability = (12, 1)
    assert device.default_targets(int8=False, bf16=False) == ("sm_120",)
    device.missing_driver = lambda: "no driver"  # type: ignore[method-assign]
    assert device.lacks("sm_80", ()) == "no driver"


def test_ptx_runs_on_later_chips() -> None:
    device = Here()
    source = ["first f", json.dumps({"programs": {}})]
    code = device.compile(source, TARGETS["sm_80"])
    assert Module(device.made, code).find("f") == "f of first f"
    device.made.capability = (9, 0)
    assert Module(device.made, code).find("f") == "f of PTX first f"
    assert device.lacks("sm_80", ("sm_80",)) == "for sm_80, this is sm_90"
    assert device.lacks("sm_80", ("ptx", "sm_80")) == device.lacks("sm_90", ("sm_90",)) == ""
    assert device.lacks("sm_100", ("ptx", "sm_100")) == "for sm_100, this is sm_90"
    names = ["sm_86", "sm_90", "sm_80", "sm_89"]
    assert sorted(names, key=lambda name: device.preference(name, ())) == ["sm_80", "sm_86", "sm_89", "sm_90"]
    device.made.capability = (8, 7)
    assert max(names, key=lambda name: device.preference(name, ())) == "sm_86"
    device.made.capability = (9, 0)
    with pytest.raises(DeviceError, match="no PTX for later chips") as caught:
        Module(device.made, device._pack(source, TARGETS["sm_80"], []))
    assert (caught.value.expected, caught.value.got) == ("sm_80", "sm_90")


def test_code_for_a_chip_with_more_shared_memory() -> None:
    device, step = Here(), {"do": "launch", "launches": [{"shared": 101377, "function": "f"}]}
    inner = {"do": "branch", "branches": [[], [{"do": "repeat", "head": [], "body": [step]}]]}
    source = ["f", json.dumps({"programs": {"f": {"steps": [inner]}}})]
    with pytest.raises(DeviceError, match="more shared memory than this GPU has") as caught:
        Module(device.made, device.compile(source, TARGETS["sm_80"]))
    assert "101376" in str(caught.value.expected)
    step["launches"][0]["shared"] = 101376  # type: ignore[index]
    source[1] = json.dumps({"programs": {"f": {"steps": [step]}}})
    Module(device.made, device.compile(source, TARGETS["sm_80"]))


def test_code_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    source = ["first f", "second g", json.dumps({"programs": {"f": {"plan": 1}}})]
    device = Here()
    for again in (False, True):
        module = device.build(source, TARGETS["sm_86"])
        assert device.compiled == [("first f", "sm_86"), ("second g", "sm_86")]
        assert module.programs == {"f": {"plan": 1}}
        assert module.find("f") == "f of first f", again
        assert module.find("g") == "g of second g"
    with pytest.raises(DeviceError, match="lacks"):
        module.find("h")
    device.build(source, TARGETS["sm_80"])
    assert len(device.compiled) == 4
    assert not list(tmp_path.rglob("*.part"))
    assert cache.default() is not None


def code(pieces: list[bytes], magic: bytes = MAGIC, **more: Any) -> bytes:
    head = json.dumps({"programs": {}, "images": [len(each) for each in pieces]} | more).encode()
    return struct.pack("<8sQ", magic, len(head)) + head + b"".join(pieces)


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"smeltgpu", code([b"ab"])[:-1], code([b"ab"]) + b"x", code([b"ab"], b"smeltcpu"),
        code([b"a"], images=[2]),
        struct.pack("<8sQ", MAGIC, 5) + b"{}xxx", struct.pack("<8sQ", MAGIC, 2) + b"{}", code([], images=7),
        code([b"abc"], images=[5, -2]), code([], programs=[]), code([], programs={"f": {"steps": 3}}),
        code([], programs={"f": {"steps": [{"do": "launch", "launches": [{}]}]}}),
        struct.pack("<8sQ", MAGIC, 20000) + b"[" * 20000,
    ],
)  # fmt: skip
def test_damaged_code_is_refused(damaged: bytes) -> None:
    with pytest.raises(DeviceError, match="no code for a GPU") as caught:
        Module(Driver(), damaged)
    assert caught.value.remedy == cuda.REMEDY


@pytest.mark.parametrize(
    "machine", ["sm_", "sm_9", "sm_\u00b2\u00b2", "sm_" + "9" * 5000, "90", "sm_90a", "sm_-90", "sm_90\n"]
)
def test_names_that_no_chip_has(machine: str) -> None:
    assert capability_of(machine) is None
    assert Here().lacks(machine, ("ptx",)).startswith("for ")


def test_programs_say_what_they_expect() -> None:
    shape = Shape("f32", "N")
    entry = Entry("f", (shape,), (shape,), ("N",), ("x",))
    said = abi.describe(entry.symbols, entry.arguments, entry.results, [3], (), (), (0, 0))
    plan = {"abi": said, "steps": [], "sizes": [], "buffers": []}
    device = Here()
    module = Module(device.made, code([], programs={"f": plan}))
    made = device.program(module, entry, [b"abc"])
    assert made.constant_bytes == 3
    assert device.program(module, entry, [np.zeros(3, np.uint8)]).constant_bytes == 3
    with pytest.raises(DeviceError, match="lacks functions of the program") as caught:
        device.program(module, entry.replace(name="g"), [])
    assert caught.value.got == "g"
    with pytest.raises(DeviceError, match="does not match its description") as caught:
        device.program(module, entry, [b"abcd"])
    assert ("3" in str(caught.value.expected), "4" in str(caught.value.got)) == (True, True)
    with pytest.raises(DeviceError, match="does not match its description") as caught:
        device.program(module, entry.replace(arguments=(Shape("f64", "N"),)), [b"abc"])
    assert caught.value.expected != caught.value.got


def test_arrays_share_one_aligned_block() -> None:
    device = Here()
    a, b, c = device.allocate([(np.dtype(np.float32), (3,)), (np.dtype(np.int8), (257,)), (np.dtype(np.float64), ())])
    assert (b.address - a.address, c.address - a.address) == (256, 768)
    assert device.made.allocated == {a.address: 1024}
    assert (a.shape, b.shape, c.shape) == (Shape("f32", 3), Shape("i8", 257), Shape("f64"))


def test_large_copies_go_through_a_ring_of_buffers() -> None:
    sent: list[tuple[int, int]] = []
    waited: list[Any] = []
    memory = np.zeros(1000, np.uint8)

    def send(address: int, part: Any, count: int) -> Any:
        memory[address : address + count] = part
        sent.append((address, count))
        return address

    source = np.random.default_rng(0).integers(0, 256, 730, np.uint8)
    ring = Ring([*np.zeros((3, 100), np.uint8)], waited.append, threads=4)
    for _ in range(2):
        ring.copy(20, 730, lambda part, start: np.copyto(part, source[start : start + part.size]), send)
        assert memory[20:750].tolist() == source.tolist()
    assert memory[:20].sum() == memory[750:].sum() == 0
    assert sorted(sent)[:2] == [(20, 100), (20, 100)]
    assert len(sent) == 16
    assert len(waited) == 13  # a buffer is filled again after its copy has ended

    def fail(part: Any, start: int) -> None:
        if start == 200:
            raise FileError("the file ended")

    with pytest.raises(FileError):
        ring.copy(0, 730, fail, send)
    ring.copy(20, 730, lambda part, start: np.copyto(part, 7), send)  # every buffer came back
    assert memory[20:750].tolist() == [7] * 730


def test_small_copies_take_turns_in_halves_of_pinned_memory() -> None:
    marked, waited = iter(range(10)), list[int]()
    staging = Staging(lambda: next(marked), waited.append, half=256)
    assert [staging.take(count) for count in (1, 64, 65)] == [0, 64, 128]
    assert staging.take(64) == 256  # the first half is left, with a mark behind it
    assert waited == []
    assert staging.take(200) == 0
    assert waited == [0]  # the device has read what was there
    assert staging.take(57) == 256
    assert waited == [0, 1]


def test_an_interrupted_copy_writes_nothing_later() -> None:
    begun, ended = list[int](), list[int]()
    gate = threading.Event()

    def send(address: int, part: Any, count: int) -> None:
        ended.append(address)

    def read(part: Any, start: int) -> None:
        begun.append(start)
        gate.wait(60)

    ring = Ring([*np.zeros((2, 10), np.uint8)], lambda event: None, threads=2)
    submit = ring._pool.submit

    def interrupted(*given: Any) -> Any:
        future = submit(*given)
        if given[1] == 0:

            def exception(timeout: float | None = None) -> None:
                gate.set()
                raise KeyboardInterrupt

            future.exception = exception  # type: ignore[method-assign]
        return future

    ring._pool.submit = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        ring.copy(0, 1000, read, send)
    assert sorted(begun) == sorted(ended)
    ring._pool.shutdown()
    assert sorted(begun) == sorted(ended)
