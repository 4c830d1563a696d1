"""What a processor can do, from its description; the peaks of a roofline, computed from intervals by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.device import cache, cpu, peak, processor
from smelt.device.peak import FOOTPRINTS, SLICE, UNROLL, Peaks
from smelt.device.processor import describe_processor, has_pairs, list_absent
from smelt.errors import DeviceError


@pytest.mark.parametrize(
    ("machine", "features", "width", "registers", "pairs"),
    [
        ("x86_64", "fpu sse2", 16, 16, False),
        ("x86_64", "avx2 fma", 32, 16, False),
        ("x86_64", "avx2 avx512f", 64, 32, False),
        ("x86_64", "avx2 avx512f avx512_bf16", 64, 32, True),
        ("x86_64", "avx2 avx512f avx512_bf16 amx_bf16", 64, 32, False),
        ("x86_64", "avx2 avx512_bf16", 32, 16, False),
        ("aarch64", "asimd", 16, 32, False),
        ("arm64", "", 16, 32, False),
    ],
)
def test_a_processor_by_its_features(machine: str, features: str, width: int, registers: int, pairs: bool) -> None:
    word = "Features" if machine == "aarch64" else "flags"
    text = f"processor : 0\nmodel name : x\n{word}\t\t: {features}\nbugs : y\n\n{word}\t: other\n" if features else ""
    made = describe_processor(text, machine, 12)
    assert (made.name, made.cores, made.vector_bytes, made.registers) == (machine, 12, width, registers)
    assert made.features == {*features.split()}
    assert made.flags == (("native", "-mprefer-vector-width=512") if width == 64 else ("native",))
    assert made.has_pairs == pairs == has_pairs(made.features, width)
    assert made.cache_bytes == (32 << 10, 512 << 10)


def test_features_that_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    here = describe_processor("flags : avx2 fma", "x86_64", 2)
    monkeypatch.setattr(processor, "_native", lambda: here)
    assert list_absent(here.replace(features=frozenset({"zzz", "avx2", "amx"}))) == "amx, zzz"
    assert list_absent(here) == ""
    assert list_absent(here.replace(name="riscv64")) == "a processor of the kind riscv64"
    assert processor.target("avx512").cores == processor.target("").cores == 2
    assert processor.target("native") is here
    monkeypatch.setattr(processor, "_native", lambda: here.replace(features=frozenset()))
    assert list_absent(here) == ""
    with pytest.raises(DeviceError, match="unknown target") as caught:
        processor.target("avx3")
    assert str(caught.value.expected).startswith("native, avx512bf16, ")


def test_the_roofline_of_peaks() -> None:
    made = Peaks(2, 100.0, ((1 << 10, 80.0), (1 << 20, 20.0)))
    assert made.memory_bandwidth == 20.0
    assert made.bandwidth_for(1 << 15) == pytest.approx(50.0)
    assert (made.bandwidth_for(0), made.bandwidth_for(1 << 30)) == (80.0, 20.0)
    assert made.seconds(1e9, 1 << 10) == pytest.approx(0.01)
    assert made.seconds(1.0, 1 << 20) == pytest.approx((1 << 20) / 20e9)


def test_the_best_moment_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads of 4 × 2.5 units for an interval; the second one has a long wait in its last interval."""
    begins, ends = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]), np.array([[1.0, 2.0, 3.0], [1.0, 1.5, 6.0]])
    monkeypatch.setattr(peak._Work, "_intervals", lambda self, count: (begins, ends))
    work = peak._Work(lambda thread, count: None, 2, 2.5, 4)
    assert work.measure() == 20.0  # at 0.5 both run; at 1.5 the second has just ended; at 2.5 it is slow
    assert peak._rate_at(begins[1], ends[1], np.array([1.0, 2.0, 4.0]), 1.5) == 0.0
    assert peak._rate_at(begins[1], ends[1], np.array([1.0, 2.0, 4.0]), 1.0) == 2.0


def test_counts_grow_until_an_interval_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    work = peak._Work(lambda thread, count: None, 1, 1.0)
    seen: list[int] = []

    def intervals(self: Any, count: int) -> tuple[Any, Any]:
        seen.append(self.count)
        return np.zeros((1, count)), np.full((1, count), self.count * peak.SPAN / 1024)

    monkeypatch.setattr(peak._Work, "_intervals", intervals)
    work._calibrate()
    assert seen == [1, 1024]
    seen.clear()
    monkeypatch.setattr(peak._Work, "_intervals", lambda self, count: (intervals(self, count)[0], np.ones((1, count))))
    work._calibrate()
    assert (seen, work.count) == ([1], 1)


def test_intervals_of_every_thread() -> None:
    calls: list[tuple[int, int]] = []
    work = peak._Work(lambda thread, count: calls.append((thread, count)), 2, 1.0, 7)
    begins, ends = work._intervals(3)
    assert begins.shape == ends.shape == (2, 3)
    assert sorted(calls) == [(0, 7)] * 3 + [(1, 7)] * 3
    assert (begins > 0).all()
    assert (ends >= begins).all()
    assert (begins[:, 1:] >= ends[:, :-1]).all()


class Reads:
    """A library that says what it is asked to read, as (first float, floats, times)."""

    def __init__(self, data: Any) -> None:
        self.first, self.calls = data.__array_interface__["data"][0], list[tuple[int, int, int]]()

    def smelt_peak_read(self, times: int, address: int, count: int, out: int) -> None:
        self.calls.append(((address - self.first) // 4, count, times))


@pytest.mark.parametrize("part", [256, SLICE // 4, SLICE // 4 + 64, 3 * SLICE // 4])
def test_threads_read_parts_of_their_own(part: int) -> None:
    data, sinks = np.zeros(2 * part, np.float32), [np.zeros(8, np.float32)] * 2
    library = Reads(data)
    work = peak._reader(library, data, sinks, part)  # type: ignore[arg-type]
    slice_ = min(part, SLICE // 4)
    assert (work.amount, work.threads) == (4.0 * slice_, 2)
    for _ in range(3):
        work.run(1, 2)
    assert sum(times for _, _, times in library.calls) == 6
    for start, count, _ in library.calls:
        assert count == slice_
        assert part <= start
        assert start + count <= 2 * part
        assert (start - part) % (8 * UNROLL) == 0
    far = [0, slice_, 2 * slice_, slice_ - 64, 2 * slice_ - 64, slice_ - 128]
    assert {start - part for start, _, _ in library.calls} == ({*far} if part == 3 * slice_ else {0})


def test_peaks_are_kept_unless_they_are_damaged(tmp_path: Path) -> None:
    rates = {"flops": 3.0, **{str(each): 2.0 for each in FOOTPRINTS}}
    path = tmp_path / "folder" / "peaks.json"
    assert peak._read_kept(path) == {}
    peak._keep(path, rates)
    assert peak._read_kept(path) == rates
    every: list[Any] = [
        {**rates, "flops": 0.0},
        {**rates, "flops": math.inf},
        {"flops": 1.0},
        [],
        {**rates, "flops": "x"},
    ]
    for damaged in every:
        path.write_text(json.dumps(damaged))
        assert peak._read_kept(path) == {}
    path.write_text("{")
    assert peak._read_kept(path) == {}
    (tmp_path / "file").write_text("")
    peak._keep(tmp_path / "file" / "peaks.json", rates)  # no folder can be made there


def test_probes_take_the_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = iter([4e9, 1e9, 8e9, 3e9] + [2e9] * 40)

    class Work:
        def measure(self) -> float:
            return next(numbers)

    class Folder:
        folder = tmp_path

    names = ("flops", *map(str, FOOTPRINTS))
    monkeypatch.setattr(peak, "_make_works", lambda threads: {"flops": Work()})
    monkeypatch.setattr(cache, "default", lambda: Folder)
    meter = peak.Meter(3, again=True)
    for _ in range(3):
        meter.probe()
    meter._best |= dict.fromkeys(names[1:], 5.0)
    found = meter.peaks()
    assert (found.threads, found.gflops, found.steadiness) == (3, 8.0, 0.5)
    assert found.bandwidth == tuple((each, 5.0) for each in FOOTPRINTS)
    for again, probes in ((False, peak.AGAIN), (True, peak.FIRST)):
        later = peak.Meter(3, again=again)
        later.probe_ends()
        assert (len(later._flops), later._best["flops"]) == (probes, 2.0 if again else 8.0)
    assert peak._key(3) != peak._key(4)


def test_caches_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local one is in the temporary folder; the global one only where the user's cannot be written."""
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    monkeypatch.setenv("KEPT", "yes")
    monkeypatch.setattr(cache, "cache_home", lambda: tmp_path / "home")
    made = cpu.zig_environment(tmp_path)
    assert made["ZIG_LOCAL_CACHE_DIR"] == str(tmp_path / "local")
    assert "ZIG_GLOBAL_CACHE_DIR" not in made
    assert made["KEPT"] == "yes"
    monkeypatch.setattr(cache, "cache_home", lambda: None)
    assert cpu.zig_environment(tmp_path)["ZIG_GLOBAL_CACHE_DIR"] == str(tmp_path / "global")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "chosen")
    assert cpu.zig_environment(tmp_path)["ZIG_GLOBAL_CACHE_DIR"] == "chosen"
