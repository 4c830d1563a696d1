"""What confined processes give up, in numbers of the kernel's interface: its headers are the oracle for constants, a
small interpreter of classic BPF for the filters."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from smelt.errors import DeviceError
from smelt.serve.isolation import sandbox, syscalls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux confines processes in this way")
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # linux/audit.h: EM_X86_64, EM_AARCH64 | 64 BIT | LE
ALLOW, KILL, EPERM, ENOSYS = (
    0x7FFF0000,
    0x80000000,
    0x00050000 | errno.EPERM,
    0x00050000 | errno.ENOSYS,
)  # linux/seccomp.h


class Libc:
    """The C library's two functions that are used, which record their calls. Of `prctl` the filter is read at once."""

    def __init__(self, answers: dict[int, list[int]] | None = None, failing: tuple[int, ...] = ()) -> None:
        self.answers, self.failing = answers or {}, failing
        self.prctls: list[tuple[Any, ...]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.code: list[tuple[int, ...]] = []

    def prctl(self, option: int, *given: Any) -> int:
        self.prctls.append((option, *given))
        if option == 22:  # PR_SET_SECCOMP
            count, address = struct.unpack("@HP", given[1])
            raw = ctypes.string_at(address, 8 * count)
            self.code = list(struct.iter_unpack("<HBBI", raw))
        return -1 if option in self.failing else 0

    def syscall(self, number: Any, *given: Any) -> int:
        self.calls.append((number.value, *(each.value if isinstance(each, ctypes.c_long) else each for each in given)))
        return self.answers.get(number.value, [0]).pop(0) if self.answers.get(number.value) else 0


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    return str(request.param)


def use(libc: Libc, monkeypatch: pytest.MonkeyPatch) -> Libc:
    monkeypatch.setattr(sandbox, "_libc", libc)
    return libc


def decide(code: list[tuple[int, ...]], machine: str, number: int, *arguments: int) -> int:
    """What the kernel decides about a call: linux/bpf_common.h has the codes."""
    words = struct.pack("<IIQ6Q", number, MACHINES[machine][1], 0, *(*arguments, *[0] * (6 - len(arguments))))
    at, held = 0, 0
    while True:
        operation, yes, no, k = code[at]
        at += 1
        assert operation in (0x15, 0x35, 0x45) or yes == no == 0
        match operation:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (held,) = struct.unpack_from("<I", words, k)
            case 0x15:  # BPF_JMP | BPF_JEQ
                at += yes if held == k else no
            case 0x35:  # BPF_JGE
                at += yes if held >= k else no
            case 0x45:  # BPF_JSET
                at += yes if held & k else no
            case 0x06:  # BPF_RET
                return k
            case _:
                raise AssertionError(operation)


def filter_of(make: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    libc = use(Libc(), monkeypatch)
    assert sandbox._filter(make) == ["seccomp"]
    (made,) = libc.prctls
    assert (made[0], made[1], made[3:]) == (22, 2, (0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    return libc.code


def test_the_calls_of_a_worker(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = filter_of(sandbox._worker_filter, monkeypatch)
    column = MACHINES[machine][0]

    def says(number: int | None, *arguments: int) -> int | None:
        return None if number is None else decide(code, machine, number, *arguments)

    always = {numbers[column] for numbers in syscalls.WORKER.values()} - {None}
    of = {
        name: getattr(syscalls, name.upper())[column]
        for name in ("open", "openat", "clone", "ioctl", "prctl", "tgkill", "prlimit")
    }
    for number in range(520):
        if number in always:
            assert says(number, 7, 7, 7) == ALLOW
        elif number not in of.values():
            assert says(number) == (ENOSYS if number >= 435 else EPERM)  # clone3 has the number 435
    for name, argument in (("open", 1), ("openat", 2)):
        before = (0,) * argument
        reads = (os.O_RDONLY, os.O_CLOEXEC, os.O_DIRECTORY | os.O_NONBLOCK)
        writes = (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND)
        assert {says(of[name], *before, flags) for flags in reads} <= {ALLOW, None}
        assert {says(of[name], *before, flags) for flags in writes} <= {EPERM, None}
    clone_thread, clone_vm = 0x10000, 0x100  # linux/sched.h
    assert (says(of["clone"], clone_thread | clone_vm), says(of["clone"], clone_vm)) == (ALLOW, EPERM)
    terminal = (0x5401, 0x5421, 0x541B, 0x5450, 0x5451)  # TCGETS, FIONBIO, FIONREAD, FIONCLEX, FIOCLEX
    assert {says(of["ioctl"], 9, request) for request in terminal} == {ALLOW}
    assert {says(of["ioctl"], 9, request + d) for request in terminal for d in (1, -1)} - {ALLOW} == {EPERM}
    assert says(of["ioctl"], 0x5401, 0) == EPERM
    assert {says(of["prctl"], option) for option in (15, 16, 0x53564D41)} == {ALLOW}  # PR_{SET,GET}_NAME, PR_SET_VMA
    assert {says(of["prctl"], option) for option in (0, 1, 14, 17, 22, 38, 0x53564D42)} == {EPERM}
    own = os.getpid()
    assert (says(of["tgkill"], own, 1), says(of["tgkill"], own + 1, own), says(of["tgkill"], 0)) == (
        ALLOW,
        EPERM,
        EPERM,
    )
    assert (says(of["prlimit"], 0), says(of["prlimit"], own), says(of["prlimit"], own + 1)) == (ALLOW, ALLOW, EPERM)


def test_the_calls_of_a_compiler(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = filter_of(sandbox._compiler_filter, monkeypatch)
    harmful = {numbers[MACHINES[machine][0]] for numbers in syscalls.HARMFUL.values()}
    for number in range(520):
        assert decide(code, machine, number) == (EPERM if number in harmful else ALLOW)


def test_other_interfaces_of_the_kernel_end_the_process(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = filter_of(lambda column: [(0x06, 0, 0, ALLOW)], monkeypatch)
    other = next(each for each in MACHINES if each != machine)
    assert decide(code, other, 0) == KILL
    assert decide(code, machine, 0) == ALLOW
    x32 = 1 << 30
    assert decide(code, machine, x32 - 1) == ALLOW
    assert decide(code, machine, x32) == (KILL if machine == "x86_64" else ALLOW)


def test_without_seccomp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    use(Libc(), monkeypatch)
    assert sandbox._filter(sandbox._compiler_filter) == []
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    use(Libc(failing=(22,)), monkeypatch)
    assert sandbox._filter(sandbox._compiler_filter) == []
    use(Libc(), monkeypatch)
    monkeypatch.setattr(sys, "byteorder", "big")
    assert sandbox._filter(sandbox._compiler_filter) == []


@pytest.mark.parametrize(("user", "kept"), [(0, 0b110), (1000, 0)])
def test_privileges(machine: str, user: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """linux/capability.h: version 3, CAP_DAC_OVERRIDE 1, CAP_DAC_READ_SEARCH 2; effective, permitted, inheritable."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    libc = use(Libc(), monkeypatch)
    assert sandbox._drop_privileges() == ["no_new_privs"]
    assert libc.prctls == [(38, 1, 0, 0, 0)]
    ((number, header, data),) = libc.calls
    assert number == {"x86_64": 126, "aarch64": 91}[machine]
    assert struct.unpack("<Ii", header) == (0x20080522, 0)
    assert struct.unpack("<6I", data) == (kept, kept, 0, 0, 0, 0)
    libc = use(Libc(failing=(38,)), monkeypatch)
    assert sandbox._drop_privileges() == []
    assert libc.calls == []


def test_privileges_on_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    libc = use(Libc(), monkeypatch)
    assert sandbox._drop_privileges() == ["no_new_privs"]
    assert libc.calls == []


@pytest.mark.parametrize("memory", [None, 1 << 30])
def test_limits(memory: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = {resource.RLIMIT_CORE: 9, resource.RLIMIT_NOFILE: 100, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    made: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5, hard[which]))
    monkeypatch.setattr(resource, "setrlimit", made.__setitem__)
    sandbox._limit(memory)
    data = {} if memory is None else {resource.RLIMIT_DATA: (memory, memory)}
    assert made == {resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_NOFILE: (100, 100), **data}
    hard[resource.RLIMIT_NOFILE] = resource.RLIM_INFINITY
    sandbox._limit(memory)
    assert made[resource.RLIMIT_NOFILE] == (512, 512)


# Rights on files by the version of Landlock: linux/landlock.h. Execute, write, read, list … make a symlink are 13;
# then refer (2), truncate (3), ioctl (5). Network from 4 on, scopes from 6 on.
HANDLED = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF, 6: 0xFFFF, 7: 0xFFFF}


@pytest.mark.parametrize("version", HANDLED)
def test_rules_for_files(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = tmp_path / "f", tmp_path / "d"
    file.touch()
    folder.mkdir()
    descriptor = os.open(file, os.O_RDONLY)
    libc = use(Libc({444: [version, descriptor]}), monkeypatch)
    allowed = {file: sandbox.CHANGE, folder: sandbox.RUN, tmp_path / "none": sandbox.READ}
    assert sandbox._restrict_files(allowed) == [f"landlock {version}"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    ask, create, first, second, restrict = libc.calls
    assert ask == (444, None, 0, 1)  # LANDLOCK_CREATE_RULESET_VERSION
    size = 8 if version < 4 else 16 if version < 6 else 24
    assert create == (444, struct.pack("<QQQ", HANDLED[version], 3, 3)[:size], size, 0)
    of_files = 0b111 | 1 << 14 | 1 << 15
    for call, rights in ((first, 0x7FFF & of_files & HANDLED[version]), (second, 0b1101)):
        assert (call[:3], call[4]) == ((445, descriptor, 1), 0)  # LANDLOCK_RULE_PATH_BENEATH
        assert struct.unpack("<Qi", call[3])[0] == rights
    assert restrict == (446, descriptor, 0)
    assert (sandbox.READ, sandbox.RUN) == (0b1100, 0b1101)


def test_rules_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for answers in ({444: [0]}, {444: [-1]}, {444: [3, -1]}):
        use(Libc(answers), monkeypatch)
        assert sandbox._restrict_files({tmp_path: sandbox.READ}) == []
    for call, message in ((445, "Landlock refused a rule"), (446, "Landlock refused its rules")):
        use(Libc({444: [3, os.open(tmp_path, os.O_RDONLY)], call: [-1]}), monkeypatch)
        with pytest.raises(DeviceError, match=message):
            sandbox._restrict_files({tmp_path: sandbox.READ})


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the layers are asked for, in place of the layers."""
    seen: dict[str, Any] = {}

    def layer(key: str, name: str) -> Any:
        def ask(given: Any) -> list[str]:
            seen[key] = given
            return [name]

        return ask

    monkeypatch.setattr(sandbox, "_limit", layer("memory", ""))
    monkeypatch.setattr(sandbox, "_drop_privileges", lambda: ["p"])
    monkeypatch.setattr(sandbox, "_restrict_files", layer("allowed", "l"))
    monkeypatch.setattr(sandbox, "_filter", layer("make", "s"))
    return seen


def test_a_worker_reads_its_files(rules: dict[str, Any]) -> None:
    mine = Path("/models/a.onnx")
    assert sandbox.confine_worker([mine], 77) == ["rlimits", "p", "l", "s"]
    assert (rules["memory"], rules["make"], rules["allowed"][mine]) == (77, sandbox._worker_filter, sandbox.READ)
    assert set(rules["allowed"].values()) == {sandbox.READ}
    package = Path(sandbox.__file__).resolve().parents[2]
    assert package.name == "smelt"
    assert {package, Path(sys.prefix), Path("/proc/self")} <= rules["allowed"].keys()
    assert not (rules["allowed"].keys() - {Path(sys.base_prefix)}) & {  # a system's Python is in /usr
        Path("/"),
        Path("/home"),
        Path("/etc"),
        Path("/proc"),
        Path("/tmp"),
        Path("/usr"),
    }


def test_a_compiler_runs_tools(rules: dict[str, Any]) -> None:
    folder = Path("/cache")
    assert sandbox.confine_compiler([folder]) == ["rlimits", "p", "l", "s"]
    assert (rules["memory"], rules["make"]) == (None, sandbox._compiler_filter)
    allowed = rules["allowed"]
    assert {allowed[Path(each)] for each in ("/usr", "/bin", "/opt", "/etc/alternatives", "/lib")} == {0b1101}
    assert {allowed[Path(each)] for each in ("/dev/null", "/dev/zero")} == {0b0110}
    assert allowed[folder] == 0x7FFF


def test_processes_end_with_their_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = use(Libc(), monkeypatch)
    sandbox.end_with_parent(signal.SIGTERM)
    assert libc.prctls == [(1, signal.SIGTERM, 0, 0, 0)]  # PR_SET_PDEATHSIG


def test_packages_are_found_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/a/site-packages", "/b/dist-packages", "/c/lib"])
    assert sandbox._packages() == [Path("/a/site-packages"), Path("/b/dist-packages")]


def test_the_memory_of_a_process_is_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins
    from io import StringIO

    from smelt.serve.isolation import remote

    real = builtins.open
    texts = {
        "/proc/77/smaps_rollup": "Rss:  900 kB\nPss:  12 kB\nPss_Anon: 5 kB\n",
        "/proc/78/smaps_rollup": "Rss: 1 kB\n",
    }

    def read(path: Any, *args: Any, **more: Any) -> Any:
        return StringIO(texts[path]) if path in texts else real(path, *args, **more)

    monkeypatch.setattr(builtins, "open", read)
    assert [remote.proportional_bytes(pid) for pid in (77, 78, 1 << 30)] == [12 << 10, 0, 0]
