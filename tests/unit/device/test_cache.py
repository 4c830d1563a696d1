"""The cache of compiled programs: damage, limits, several processes at once, folders that take nothing."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.activity import progress
from smelt.device import cpu
from smelt.device.cache import Cache, default, private_folder
from smelt.device.library import load_descriptor
from smelt.device.processor import list_absent
from smelt.device.runtime import runtime
from smelt.engine.compile import emit_source, plan_program
from smelt.engine.native import NativeEngine
from smelt.errors import DeviceError, SmeltError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.kernel.emit import c as emit_c
from smelt.shape import Shape

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

KEY = "0123456789" * 4
ROOT = Path(__file__).resolve().parents[3]


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
    private_folder.cache_clear()  # what an earlier test kept there
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
    assert "not cached" in said
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
    assert "not cached" in said
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
    assert said.count("not cached") == 1


# ---- folders that others can write ----


def planted(folder: Path) -> Path:
    """An entry that is right in every way but what it computes: 62 instead of 63."""
    assert answer(62) == 62
    (other,) = default().entries()
    code = other.path.read_bytes()
    other.path.unlink()
    assert answer(63) == 63
    (entry,) = default().entries()
    entry.path.unlink()
    path = folder / f"{entry.key}-{other.digest}.so"
    path.write_bytes(code)
    path.chmod(0o600)
    gc.collect()  # what is loaded already is not looked for
    return path


def test_a_planted_entry_in_a_folder_of_our_own_is_loaded(folder: Path) -> None:
    """The attack works where it is no attack: the tests below show something."""
    planted(folder)
    assert answer(63) == 62


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_folder_that_others_can_write_is_not_used(folder: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    path = planted(folder)
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "smelt"):
        assert [answer(63), answer(63)] == [63, 63]
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{mode:04o}" in said
    assert list(folder.iterdir()) == [path], "nothing is written there"


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_can_write_is_not_loaded(folder: Path, mode: int) -> None:
    planted(folder).chmod(mode)
    assert answer(63) == 63


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_folders_of_another_user_are_not_used(folder: Path, what: str) -> None:
    path = planted(folder)
    os.chown(path if what == "file" else folder, 12345, 12345)
    assert answer(63) == 63


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    path = planted(folder)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert answer(63) == 63


def test_what_is_checked_is_what_is_loaded(folder: Path) -> None:
    """The path may lead elsewhere by then."""
    assert answer(64) == 64
    gc.collect()
    found = default().open(next(default().entries()).key)
    assert found is not None
    file, entry = found
    entry.path.unlink()
    entry.path.write_bytes(b"something else")
    assert load_descriptor(file, entry.digest).answer() == 64


# ---- users without a home ----

ALONE = """
    import logging, os, shutil, sys
    from smelt.device import cache, cpu
    build = lambda number: cpu.build(f"int answer(void) {{ return {number}; }}").answer()
    os.environ["SMELT_CC"] = shutil.which("gcc")
    build(1)  # imports everything: another user may not be allowed to read the libraries
    for name in ("SMELT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)
    os.chdir("/")
    if USER:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
    print(build(65), build(65), build(66), cache.default().folder)
"""


@pytest.mark.skipif(not (shutil.which("gcc") or "").startswith("/usr"), reason="no compiler that every user can run")
@pytest.mark.parametrize("home", ["none", "/nonexistent", "somebody else's"])
def test_another_user(home: str, tmp_path: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    environment = {} if home == "none" else {"HOME": home if home[0] == "/" else str(tmp_path)}
    code = ALONE.replace("ENVIRONMENT", repr(environment)).replace("USER", "54321")
    output, said = python(code, SMELT_CACHE_DIR=str(tmp_path / "before")).communicate(timeout=120)
    assert output.startswith("65 65 66 "), said
    assert said.count("not cached") == 1, said
    if home == "none":
        left = Path(output.split()[-1])
        assert left.name.startswith("smelt-cache-")
        assert not left.exists(), "the private folder goes with the process"


def test_a_read_only_root(tmp_path: Path) -> None:
    """Everything but shared memory is read-only, as in many containers."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat("/").st_dev:
        pytest.skip("no shared memory of its own")
    code = (
        "import os\nfrom smelt.device import cpu\n"
        "assert not os.access('/tmp', os.W_OK)\n"
        'for i in (67, 67): print(cpu.build(f"int answer(void) {{ return {i}; }}").answer())'
    )
    script = 'mount -o remount,bind,ro / && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-c", code]
    environment = {**os.environ, "SMELT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode and ("mount:" in done.stderr or "unshare:" in done.stderr or "AssertionError" in done.stderr):
        pytest.skip(f"no read-only root here: {done.stderr.strip()[-200:]}")
    assert done.stdout == "67\n67\n", done.stderr
    assert done.stderr.count("not cached") == 1


# ---- the compiler ----


def test_another_version_of_the_compiler_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "cc"
    keys = set()
    monkeypatch.setenv("SMELT_CC", str(fake))
    for version in ("1.0", "1.1", "1.0"):
        fake.write_text(f"#!/bin/sh\necho {version}\n")
        fake.chmod(0o755)
        for each in (cpu.compiler, cpu._version):
            each.cache_clear()
        keys.add(cpu._Work.of(source(1), cpu.target("plain"), ()).key)
    cpu.compiler.cache_clear()
    assert len(keys) == 2


# ---- what stays in memory ----


def held() -> tuple[int, int]:
    """Descriptors and mapped libraries of ours; what other packages have open is not counted."""
    gc.collect()
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    opened = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            opened.append(os.readlink(each))
    files, libraries = (
        [name for name in names if "memfd:smelt" in name or re.search(r"[0-9a-f]{40}-[0-9a-f]{32}\.so", name)]
        for names in (opened, mapped)
    )
    return len(files), len(libraries)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_libraries_go_with_their_last_use(folder: Path) -> None:
    before = held()
    first, second = cpu.build(source(70)), cpu.build(source(71))
    again = cpu.build(source(70))
    assert again is first
    assert held() == (before[0] + 2, before[1] + 2)
    del first
    gc.collect()
    assert again.answer() == 70
    del second
    assert held() == (before[0] + 1, before[1] + 1)
    del again
    assert held() == before
    assert answer(70) == 70, "it can be loaded again"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_closing_an_executable_unloads_its_code(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(sizes).astype(np.float32) for sizes in ((3, 40), (40, 24)))
    runtime()  # stays
    before = held()
    compiled = NativeEngine().compile(waves())
    data = compiled.serialize(targets=["plain"])
    (want,) = compiled(x, w)
    compiled.close()
    assert held() == before
    for _ in range(2):
        loaded = smelt.deserialize(data)
        (found,) = loaded(x, w)
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)
        loaded.close()
        assert held() == before


# ---- targets ----


def waves() -> Program:
    f = FuncBuilder("main", [Shape("f32", "N", 40), Shape("f32", 40, 24)])
    x, w = f.args
    return Program.of(f.func(f.tanh(f.dot(x, w, result=Shape("f32", "N", 24)))))


@pytest.mark.parametrize("name", ["native", "avx512", "avx2", "plain"])
def test_targets_give_right_numbers(name: str, folder: Path, seed: int) -> None:
    target = cpu.target(name)
    if list_absent(target):
        pytest.skip(f"this processor lacks {list_absent(target)}")
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(sizes).astype(np.float32) for sizes in ((37, 40), (40, 24)))
    (result,) = NativeEngine(target).compile(waves())(x, w)
    exact = np.tanh(x.astype(np.float64) @ w.astype(np.float64))
    np.testing.assert_allclose(result, exact, rtol=2e-5, atol=2e-6)


def test_the_environment_names_a_target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_TARGET", raising=False)
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
    cpu.compile_to(tmp_path / "waves.so", emit_source([plan_program(waves(), neon)]).text(), processor=neon)
    head = (tmp_path / "waves.so").read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    assert int.from_bytes(head[18:20], "little") == 183  # EM_AARCH64
    if list_absent(neon):
        with pytest.raises(DeviceError, match="cannot run code"):
            cpu.build(source(1), processor=neon)


def test_a_long_program_in_pieces_gives_the_same_bits(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    x, w = (random.standard_normal(sizes).astype(np.float32) for sizes in ((37, 40), (40, 24)))
    (whole,) = NativeEngine().compile(waves())(x, w)
    monkeypatch.setattr(emit_c, "CHARACTERS_PER_FILE", 1000)
    assert len(emit_source([plan_program(waves())]).texts(3)) == 3
    (pieces,) = NativeEngine().compile(waves())(x, w)
    assert len(list(default().entries())) >= 2
    np.testing.assert_array_equal(whole, pieces)


def test_pieces_compile_to_one_library(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    token = progress.set(lambda done, total: told.append((done, total)))
    try:
        kernel = "\n#define HIDDEN\ntypedef int Runtime;\nHIDDEN int k{}(const Runtime *rt, int x) {{\nreturn x; }}\n"
        pieces = [source(3) + kernel.format(0), "int answer(void); int twice(void) { return 2 * answer(); }"]
        library = cpu.build([*pieces, kernel.format(1).replace("}", "} int other;", 1)])
    finally:
        progress.reset(token)
    assert library.twice() == 6
    assert (told[0], told[-1]) == ((0, 2), (2, 2)), "kernels done, kernels in all"
    assert told == sorted(told)
    with pytest.raises(DeviceError, match="could not compile"):
        cpu.build([source(4), "int twice(void) { return"])
