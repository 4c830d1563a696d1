"""The cache of compiled programs: damage, limits, several processes at once, folders that take nothing."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.cache import Cache, default
from smelt.engine.native import NativeEngine
from smelt.engine.plans import planned, source_of
from smelt.errors import DeviceError, SmeltError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.kernel import emit_c
from smelt.shape import Shape

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

KEY = "0123456789" * 4


def source(number: int) -> str:
    return f"int answer(void) {{ return {number}; }}"


def answer(number: int) -> int:
    library = cpu.build(source(number))
    assert isinstance(library, ctypes.CDLL)
    return int(library.answer())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "made.so"
    path.write_bytes(content)
    return path


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ---- one process ----


def test_a_second_build_finds_the_first(folder: Path) -> None:
    assert answer(41) == 41
    (entry,) = default().entries()
    before = entry.path.stat().st_ino
    assert answer(41) == 41
    (entry,) = default().entries()
    assert entry.path.stat().st_ino == before
    assert [path for path in folder.iterdir() if path != entry.path] == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "longer"])
def test_a_damaged_entry_is_replaced(folder: Path, damage: str) -> None:
    assert answer(42) == 42
    (entry,) = default().entries()
    good = entry.path.read_bytes()
    middle = len(good) // 2
    bad = {
        "truncated": good[:middle],
        "flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        "empty": b"",
        "longer": good + b"\0",
    }[damage]
    entry.path.unlink()  # the loaded library is mapped from the old file
    entry.path.write_bytes(bad)
    assert answer(42) == 42
    (entry,) = default().entries()
    assert entry.path.read_bytes() != bad


def test_foreign_files_are_left_alone(folder: Path) -> None:
    folder.mkdir()
    foreign = [folder / "notes.txt", folder / f"{KEY}.so", folder / "abc-def.so", folder / f"{KEY}-{'g' * 32}.so"]
    for path in foreign:
        path.write_text("not ours")
    (folder / f"{KEY}-{'0' * 32}.so").mkdir()
    assert answer(43) == 43
    store = Cache(folder, limit=1 << 30)
    assert len(list(store.entries())) == 1
    assert store.clear()[0] == 1
    assert [path.read_text() for path in foreign] == ["not ours"] * 4


def test_a_file_under_our_name_with_other_content_is_removed(folder: Path) -> None:
    folder.mkdir()
    path = folder / f"{KEY}-{'0' * 32}.so"
    path.write_text("not what its name says")
    assert Cache(folder).find(KEY) is None
    assert not path.exists()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache", limit=350)
    keys = [f"{i:040d}" for i in range(4)]
    for i, key in enumerate(keys[:3]):
        path = store.put(key, made(tmp_path, bytes([i]) * 100))
        assert path is not None
        os.utime(path, (1000 + i, 1000 + i))
    assert store.find(keys[0]) is not None  # used now: the second is the oldest
    assert store.put(keys[3], made(tmp_path, b"x" * 100)) is not None
    assert [store.find(key) is not None for key in keys] == [True, False, True, True]


def test_what_is_larger_than_the_limit_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_LIMIT", "1KB")
    assert answer(44) == 44
    assert list(default().entries()) == []


@pytest.mark.parametrize("text", ["many", "-1", "5 parsecs"])
def test_a_limit_that_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_LIMIT", text)
    with pytest.raises(SmeltError, match="SMELT_CACHE_LIMIT"):
        default()


def test_what_killed_processes_left_goes_after_an_hour(tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    store.folder.mkdir()
    old, young = (store.folder / f"{KEY}-{name}.part" for name in ("old", "young"))
    for path in (old, young):
        path.write_text("half")
    os.utime(old, (1000, 1000))
    store.put(KEY, made(tmp_path, b"whole"))
    assert (old.exists(), young.exists()) == (False, True)


# ---- several processes ----


def test_processes_compile_the_same_thing_at_once(folder: Path) -> None:
    code = f"from smelt.device import cpu; print(cpu.build({source(45)!r}).answer())"
    children = [python(code) for _ in range(4)]
    outputs = [child.communicate(timeout=120) for child in children]
    assert outputs == [("45\n", "")] * 4
    store = default()
    assert store.find(next(store.entries()).key) is not None
    assert not list(folder.glob("*.part"))


def test_processes_that_evict_each_others_entries(folder: Path) -> None:
    answer(46)
    (entry,) = default().entries()
    code = """
        from smelt.device import cpu
        for turn in range(3):
            for i in range(3):
                number = 1000 + i
                assert cpu.build(f"int answer(void) {{ return {number}; }}").answer() == number
    """
    children = [python(code, SMELT_CACHE_LIMIT=str(entry.bytes * 3 // 2)) for _ in range(3)]
    assert [child.communicate(timeout=120)[1] for child in children] == [""] * 3
    assert not list(folder.glob("*.part"))


# ---- folders that take nothing ----


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(blocked / "cache"))
    with caplog.at_level(logging.WARNING, "smelt"):
        assert [answer(47), answer(48)] == [47, 48]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "not kept" in said
    assert str(blocked) in said


def test_a_disk_that_is_full_leaves_nothing_half(tmp_path: Path) -> None:
    code = """
        import resource
        from pathlib import Path
        from smelt.device.cache import Cache
        folder = Path(FOLDER)
        big = folder / "big"
        big.write_bytes(bytes(100_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        print(Cache(folder / "cache").put("0" * 40, big))
    """
    child = python(code.replace("FOLDER", repr(str(tmp_path))))
    output, said = child.communicate(timeout=60)
    assert output == "None\n"
    assert "not kept" in said
    assert list((tmp_path / "cache").iterdir()) == []


def mounted(tmp_path: Path, options: str, code: str) -> tuple[str, str]:
    """Run code in a process that sees a small file system of its own at `tmp_path / "disk"`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && shift && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(disk), sys.executable, "-c", code]
    environment = {**os.environ, "SMELT_CACHE_DIR": str(disk / "cache")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode and ("mount:" in done.stderr or "unshare:" in done.stderr):
        pytest.skip(f"no file systems of our own here: {done.stderr.strip()}")
    return done.stdout, done.stderr


@pytest.mark.parametrize("options", ["ro", "size=8k"])
def test_disks_that_are_read_only_or_full(tmp_path: Path, options: str) -> None:
    code = (
        "from smelt.device import cpu\n"
        'for i in (49, 50): print(cpu.build(f"int answer(void) {{ return {i}; }}").answer())'
    )
    output, said = mounted(tmp_path, options, code)
    assert output == "49\n50\n", said
    assert said.count("not kept") == 1


# ---- targets ----


def waves() -> Program:
    f = FuncBuilder("main", [Shape("f32", "N", 40), Shape("f32", 40, 24)])
    x, w = f.args
    return Program.of(f.func(f.tanh(f.dot(x, w, result=Shape("f32", "N", 24)))))


@pytest.mark.parametrize("name", ["native", "avx512", "avx2", "plain"])
def test_targets_give_right_numbers(name: str, folder: Path, seed: int) -> None:
    target = cpu.target(name)
    if cpu._absent(target):
        pytest.skip(f"this processor lacks {cpu._absent(target)}")
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(sizes).astype(np.float32) for sizes in ((37, 40), (40, 24)))
    (result,) = NativeEngine(target).compile(waves())(x, w)
    exact = np.tanh(x.astype(np.float64) @ w.astype(np.float64))
    np.testing.assert_allclose(result, exact, rtol=2e-5, atol=2e-6)


def test_the_environment_names_a_target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(51) == 51
    monkeypatch.setenv("SMELT_TARGET", "plain")
    assert cpu.target() == cpu.target("plain")
    assert answer(51) == 51
    assert len(list(default().entries())) == 2
    monkeypatch.setenv("SMELT_TARGET", "abacus")
    with pytest.raises(DeviceError, match="unknown target"):
        cpu.target()


@pytest.mark.skipif(
    cpu.compiler() != (sys.executable, "-m", "ziglang", "cc"), reason="only ziglang compiles for others"
)
def test_code_for_another_processor(tmp_path: Path) -> None:
    neon = cpu.target("neon")
    cpu.compile_to(tmp_path / "waves.so", source_of([planned(waves(), neon)], neon).text(), processor=neon)
    head = (tmp_path / "waves.so").read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    assert int.from_bytes(head[18:20], "little") == 183  # EM_AARCH64
    if cpu._absent(neon):
        with pytest.raises(DeviceError, match="cannot run code"):
            cpu.build(source(1), processor=neon)


def test_a_long_program_in_pieces_gives_the_same_bits(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(sizes).astype(np.float32) for sizes in ((37, 40), (40, 24)))
    (whole,) = NativeEngine().compile(waves())(x, w)
    monkeypatch.setattr(emit_c, "WORTHWHILE", 1000)
    assert len(source_of([planned(waves())]).texts(3)) == 3
    (pieces,) = NativeEngine().compile(waves())(x, w)
    assert len(list(default().entries())) >= 2
    np.testing.assert_array_equal(whole, pieces)


def test_pieces_compile_to_one_library(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    token = cpu.progress.set(lambda done, total: told.append((done, total)))
    try:
        library = cpu.build([source(3), "int answer(void); int twice(void) { return 2 * answer(); }"])
    finally:
        cpu.progress.reset(token)
    assert library.twice() == 6
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    with pytest.raises(DeviceError, match="could not compile"):
        cpu.build([source(4), "int twice(void) { return"])
