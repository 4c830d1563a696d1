"""What a process gives up before it reads a model file: files, network, other processes, privileges.

`confine_worker` and `confine_compiler` are called once, in a process with a single thread. Each layer works without the
others: rlimits and no_new_privs everywhere on Linux, Landlock and seccomp where the kernel has them. The result names
the layers that hold. Nothing here can be undone, and children inherit all of it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from smelt.errors import DeviceError
from smelt.serve.isolation import syscalls

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _SET_DEATH_SIGNAL = 38, 22, 1
_ALLOW, _KILL, _REFUSE, _ABSENT = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
_MOST_FILES = 512

# Landlock's rights.
_EXECUTE, _WRITE, _READ, _LIST = 1, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
READ, RUN, CHANGE = _READ | _LIST, _READ | _LIST | _EXECUTE, (1 << 15) - 1

_libc = ctypes.CDLL(None, use_errno=True)


def confine_worker(readable: Iterable[Path], memory: int | None) -> list[str]:
    """Read these files and nothing else; no other process, no network, no privileges. `memory`: bytes of data."""
    _limit(memory)
    layers = ["rlimits", *_drop_privileges()]
    layers += _restrict_files({**dict.fromkeys(_system_files(), READ), **dict.fromkeys(readable, READ)})
    return layers + _filter(_worker_filter)


def confine_compiler(writable: Iterable[Path], readable: Iterable[Path] = ()) -> list[str]:
    """Run compilers, write into these folders, read these files; no network, no privileges."""
    _limit(None)
    layers = ["rlimits", *_drop_privileges()]
    tools = dict.fromkeys((*_system_files(), *map(Path, ("/usr", "/bin", "/opt", "/etc/alternatives"))), RUN)
    devices = dict.fromkeys((Path("/dev/null"), Path("/dev/zero")), _READ | _WRITE)
    layers += _restrict_files({**tools, **devices, **dict.fromkeys(readable, READ), **dict.fromkeys(writable, CHANGE)})
    return layers + _filter(_compiler_filter)


def end_with_parent(signal: int) -> None:
    """Have the kernel end this process when its parent ends."""
    _libc.prctl(_SET_DEATH_SIGNAL, signal, 0, 0, 0)


def _system_files() -> list[Path]:
    """The interpreter, its packages, libraries, and what the machine says about itself."""
    package = Path(__file__).resolve().parents[2]
    found = [Path(sys.prefix), Path(sys.base_prefix), package, *_packages()]
    found += map(Path, ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"))
    found += map(Path, ("/etc/ld.so.cache", "/etc/localtime", "/proc/self", "/proc/cpuinfo", "/proc/meminfo"))
    found += map(Path, ("/sys/devices/system", "/dev/null", "/dev/urandom", "/sys/fs/cgroup"))
    return found


def _packages() -> list[Path]:
    return [Path(each) for each in sys.path if each.endswith(("site-packages", "dist-packages"))]


def _limit(memory: int | None) -> None:
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: _MOST_FILES}
    if memory is not None:
        limits[resource.RLIMIT_DATA] = memory
    for which, most in limits.items():
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


def _drop_privileges() -> list[str]:
    """No set-user-id program gives privileges any more, and a worker of root has none of root's but to read files."""
    if _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return []
    column, _ = _ARCHITECTURES.get(platform.machine(), (None, 0))
    if column is not None:
        header = struct.pack("<Ii", 0x20080522, 0)
        kept = 1 << 1 | 1 << 2 if os.geteuid() == 0 else 0  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        number = syscalls.CAPSET[column]
        _libc.syscall(ctypes.c_long(number), header, struct.pack("<6I", kept, kept, 0, 0, 0, 0))
    return ["no_new_privs"]


# ---- Landlock ----


def _restrict_files(allowed: Mapping[Path, int]) -> list[str]:
    """Deny every file but these, and TCP, abstract sockets and signals to others where the kernel knows how."""
    version = _landlock(syscalls.LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return []
    handled = (1 << 13) - 1
    handled |= (1 << 13 if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0) | (_IOCTL if version >= 5 else 0)
    attributes = struct.pack("<QQQ", handled, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = _landlock(syscalls.LANDLOCK_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        return []
    try:
        for path, rights in allowed.items():
            _add_rule(ruleset, path, rights & handled)
        if _landlock(syscalls.LANDLOCK_RESTRICT, ruleset, 0):
            raise DeviceError("Landlock refused its rules", got=os.strerror(ctypes.get_errno()))
    finally:
        os.close(ruleset)
    return [f"landlock {version}"]


def _add_rule(ruleset: int, path: Path, rights: int) -> None:
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this system
        return
    try:
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            rights &= _OF_FILES
        if _landlock(syscalls.LANDLOCK_ADD, ruleset, 1, struct.pack("<Qi", rights, file), 0):
            raise DeviceError("Landlock refused a rule", got=os.strerror(ctypes.get_errno()), where=path)
    finally:
        os.close(file)


def _landlock(number: int, *arguments: int | bytes | None) -> int:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *given))


# ---- seccomp: classic BPF over (number, architecture, instruction pointer, arguments) ----

_Program = list[tuple[int, int, int, int]]
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def _filter(make: Callable[[int], _Program]) -> list[str]:
    column, architecture = _ARCHITECTURES.get(platform.machine(), (None, 0))
    if column is None or sys.byteorder != "little":
        return []
    program: _Program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if column == 0:  # x32's numbers
        program += [(_AT_LEAST, 0, 1, 1 << 30), (_RETURN, 0, 0, _KILL)]
    program += make(column)
    code = b"".join(struct.pack("<HBBI", *each) for each in program)
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(program), ctypes.addressof(held))
    return [] if _libc.prctl(_SET_SECCOMP, 2, described, 0, 0) else ["seccomp"]


def _worker_filter(column: int) -> _Program:
    """The calls of a list, some with some arguments only; all others fail with EPERM."""
    made: _Program = []
    for numbers in syscalls.WORKER.values():
        made += _when(numbers[column], [(_RETURN, 0, 0, _ALLOW)])
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    made += _when(syscalls.OPEN[column], _unless_any_bit(1, writing))
    made += _when(syscalls.OPENAT[column], _unless_any_bit(2, writing))
    made += _when(syscalls.CLONE[column], _if_any_bit(0, 0x10000))  # CLONE_THREAD: threads, and no processes
    made += _when(syscalls.IOCTL[column], _if_one_of(1, (0x5401, 0x5421, 0x541B, 0x5450, 0x5451)))
    made += _when(syscalls.PRCTL[column], _if_one_of(0, (15, 16, 0x53564D41)))  # names of threads and mappings
    made += _when(syscalls.TGKILL[column], _if_one_of(0, (os.getpid(),)))  # abort()
    made += _when(syscalls.PRLIMIT[column], _if_one_of(0, (0, os.getpid())))
    # clone3 is among the newer ones: libc falls back to clone, whose arguments can be checked
    return [*made, (_AT_LEAST, 0, 1, syscalls.NEWER), (_RETURN, 0, 0, _ABSENT), (_RETURN, 0, 0, _REFUSE)]


def _compiler_filter(column: int) -> _Program:
    """Everything but the calls of a list."""
    made: _Program = []
    for numbers in syscalls.HARMFUL.values():
        made += _when(numbers[column], [(_RETURN, 0, 0, _REFUSE)])
    return [*made, (_RETURN, 0, 0, _ALLOW)]


def _when(number: int | None, then: _Program) -> _Program:
    """Run `then`, which ends in returns, for one system call."""
    return [] if number is None else [(_EQUAL, 0, len(then), number), *then]


def _argument(index: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, 16 + 8 * index)  # the lower half


def _if_any_bit(index: int, bits: int) -> _Program:
    return [_argument(index), (_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]


def _unless_any_bit(index: int, bits: int) -> _Program:
    return [_argument(index), (_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]


def _if_one_of(index: int, values: Iterable[int]) -> _Program:
    checks: _Program = []
    for value in values:
        checks += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [_argument(index), *checks, (_RETURN, 0, 0, _REFUSE)]
