"""Not a test: the process that forks workers, with models that misbehave in place of those in files.

The file of a model says how: `python -m tests.unit.serve.hostile_worker FD`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.dtype import Array, dtype
from smelt.engine_api import Port, Signature
from smelt.errors import RunError
from smelt.serve.config import ModelConfig
from smelt.serve.isolation import worker, zygote
from smelt.shape import Shape
from smelt.stop import Cancel, Stop

_libc = ctypes.CDLL(None, use_errno=True)
_X86 = platform.machine() == "x86_64"


def _syscall(number: int, *arguments: Any) -> None:
    if _libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "a system call")


def _raise_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 16, 1 << 16))


def escapes(secret: str, own: str, server: int) -> dict[str, Callable[[], object]]:
    """Ways out of a worker, by name."""
    parent = os.getppid()
    return {
        "read a file": lambda: open(secret, "rb").read(),
        "read /etc/passwd": lambda: open("/etc/passwd", "rb").read(),
        "list a folder": lambda: os.listdir(str(Path(secret).parent)),
        "write the model": lambda: open(own, "ab"),
        "write beside the model": lambda: open(own + ".new", "wb"),
        "remove the model": lambda: os.unlink(own),
        "rename the model": lambda: os.rename(own, own + ".old"),
        "change its mode": lambda: os.chmod(own, 0o777),
        "link to it": lambda: os.symlink(secret, own + ".link"),
        "make a folder": lambda: os.mkdir("/tmp/smelt-escape"),
        "connect over TCP": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        "listen on TCP": lambda: socket.create_server(("127.0.0.1", 0)),
        "send over UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "a Unix socket": lambda: socket.socket(socket.AF_UNIX),
        "netlink": lambda: socket.socket(16, socket.SOCK_RAW),
        "fork": os.fork,
        "spawn": lambda: subprocess.run(["/bin/true"], check=False),
        "execute": lambda: os.execv("/bin/true", ["true"]),
        "ptrace the parent": lambda: _syscall(101 if _X86 else 117, 16, parent, 0, 0),
        "read the parent's memory": lambda: open(f"/proc/{parent}/mem", "rb"),
        "read the server's environment": lambda: open(f"/proc/{server}/environ", "rb").read(),
        "process_vm_readv": lambda: _syscall(310 if _X86 else 270, server, 0, 0, 0, 0, 0),
        "kill the server": lambda: os.kill(server, 0),
        "raise a limit": _raise_limit,
        "unshare": lambda: _syscall(272 if _X86 else 97, 0x10000000),
        "mount": lambda: _syscall(165 if _X86 else 40, 0, 0, 0, 0, 0),
        "chroot": lambda: os.chroot("/"),
        "io_uring": lambda: _syscall(425, 8, 0),
        "bpf": lambda: _syscall(321 if _X86 else 280, 0, 0, 0),
        "user faults": lambda: _syscall(323 if _X86 else 282, 0),
        "clone3": lambda: _syscall(435, 0, 0),
    }


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    except ValueError as error:  # setrlimit
        return str(error)
    return "it worked"


class Hostile:
    """A model with one input and one output, that does what its file says."""

    engine, memory, optional = "hostile", None, ()
    metadata: Mapping[str, str] = MappingProxyType({})
    provenance: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        self.path, self.does = path, json.loads(path.read_text())
        ports = [Port(name, Shape.of(dtype("f32"), (1,))) for name in ("x", "y")]
        self.signature = Signature((ports[0],), (ports[1],))

    def stop_compiling(self, remedy: str) -> None: ...

    def run(
        self, inputs: Mapping[str, Array], *, timeout: float | None = None, cancel: Cancel | None = None
    ) -> dict[str, Any]:
        x = inputs["x"]
        match self.does["does"]:
            case "escape":
                attempts = escapes(self.does["secret"], str(self.path), self.does["server"])
                report = {name: _outcome(attempt) for name, attempt in attempts.items()}
                report["read itself"] = self.path.read_text() and "it worked"
                thread = threading.Thread(target=lambda: report.update(thread="it worked"))
                thread.start()
                thread.join()
                return {"y": np.array([json.dumps(report)], object)}
            case "wait" if x[0] > 0:  # until it is told to stop
                stop = Stop(timeout, cancel)
                while True:
                    stop.check()
                    time.sleep(0.001)
            case "hang" if x[0] > 0:
                while True:
                    time.sleep(1)
            case "crash" if x[0] > 0:
                os.abort()
            case "babble" if x[0] > 0:
                return {"y": Liar(4)}
            case "fail" if x[0] > 0:
                raise RunError("it does not like the number", got=float(x[0]))
        return {"y": x + 1, "pid": np.array([os.getpid()], np.int32)}


class Liar(np.ndarray[Any, Any]):
    """An array that states another number of bytes than it has."""

    def __new__(cls, size: int) -> Liar:
        return np.zeros(size, np.float32).view(cls)

    @property
    def nbytes(self) -> int:
        return 1 << 20


def open_hostile(path: Path, config: ModelConfig) -> Any:
    found = Hostile(path)
    while found.does["does"] == "stall":
        time.sleep(1)
    return found


if __name__ == "__main__":
    setattr(worker, "open_model", open_hostile)  # noqa: B010
    zygote.run(socket.socket(fileno=int(sys.argv[1])))
