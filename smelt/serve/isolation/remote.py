"""The server's side of workers: `Zygote` starts processes, `RemoteModel` is a model that runs in one.

The server reads nothing of a model file: signature and the rest come from the worker, and are checked like a client's
data. Methods block; the server calls them in threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from smelt.buffer import parse_bytes
from smelt.bundle.record import signature_of
from smelt.device import cache
from smelt.engine_api import Closing, Port, Signature
from smelt.errors import DeviceError, SmeltError, error_of
from smelt.run.executable import shares_weights
from smelt.serve.config import ModelConfig
from smelt.serve.isolation.channel import Cancelled, Channel, ClosedError, Failed, Message, Ready, expect_peer, pair
from smelt.serve.isolation.worker import Loaded
from smelt.serve.isolation.zygote import Ended, Fork, Forked, decode_answer, encode

log = logging.getLogger("smelt.serve")
START = 120.0  # seconds for a process to start
SPARE = 1 << 30  # bytes that a worker may take beyond the model's memory limit: interpreter, stacks, temporaries
MOST_COPIED = 256 << 20  # bytes
MOST_ABOUT = 64 << 20  # bytes that a worker says about its model
_KEPT = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SMELT_CC", "SMELT_TARGET")


def is_supported() -> bool:
    """Whether this system can isolate: Linux, for memfds and descriptors over sockets."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


class Zygote:
    """The process that forks workers, started on first use, and again if it has died."""

    def __init__(self, module: str = "smelt.serve.isolation.zygote") -> None:
        self._module = module
        self._lock = threading.Lock()  # one fork at a time
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._forked: list[int] = []
        self._alive: set[int] = set()
        self._ended: dict[int, int] = {}
        self._forgotten: set[int] = set()  # that are alive

    def fork(self, role: str, setup: Any, sockets: Sequence[socket.socket]) -> int:
        """The pid of a new process that has these sockets, which are closed here."""
        data = encode(Fork(role, setup))
        try:
            with self._lock:
                control = self._running()
                socket.send_fds(control, [data], [each.fileno() for each in sockets])
                with self._changed:
                    if not self._changed.wait_for(lambda: self._forked or self._socket is not control, START):
                        raise DeviceError("the process that starts workers does not answer")
                    if not self._forked:
                        raise DeviceError("the process that starts workers has ended")
                    return self._forked.pop()
        except OSError as error:
            raise DeviceError("a worker process cannot be started", got=error) from error
        finally:
            for each in sockets:
                each.close()

    def start(self) -> None:
        """Start the process, so that it is ready when it is needed."""
        with self._lock:
            self._running()

    def _running(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        ours, theirs = pair()
        command = [sys.executable, "-m", self._module, str(theirs.fileno())]
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": _import_path()}  # a fork needs a single thread
        self._process = subprocess.Popen(
            command, env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        theirs.close()
        ours.settimeout(START)
        if ours.recv(16) != b"ready":
            self._process.wait()
            raise DeviceError("the process that starts workers did not start", got=f"exit {self._process.returncode}")
        ours.settimeout(None)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        self._socket = ours
        threading.Thread(target=self._listen, args=(ours,), name="smelt-zygote", daemon=True).start()
        return ours

    def _listen(self, control: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                data = control.recv(256)
                if data:
                    said = decode_answer(data)
                    with self._changed:
                        if isinstance(said, Forked):
                            self._forked.append(said.pid)
                            self._alive.add(said.pid)
                            self._ended.pop(said.pid, None)  # of a process that had the number before
                        elif isinstance(said, Ended):
                            self._note_end(said.pid, said.status)
                        self._changed.notify_all()
                    continue
            with self._changed:
                for pid in list(self._alive):  # they end with the process that forked them
                    self._note_end(pid, -signal.SIGKILL)
                if self._socket is control:
                    self._socket = None
                self._changed.notify_all()
            control.close()
            return

    def _note_end(self, pid: int, status: int) -> None:
        self._alive.discard(pid)
        if pid in self._forgotten:
            self._forgotten.discard(pid)
        else:
            self._ended[pid] = status

    def ending(self, pid: int, seconds: float) -> int | None:
        """How a process ended: its exit code, or minus the number of a signal; None while it runs."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._ended or self._socket is None, seconds)
            return self._ended.get(pid)

    def kill(self, pid: int) -> None:
        """End a process that was not reported to have ended."""
        with self._changed:
            if pid in self._alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def forget(self, pid: int) -> None:
        """Drop the record of how a process ended."""
        with self._changed:
            self._ended.pop(pid, None)
            if pid in self._alive:
                self._forgotten.add(pid)

    def close(self) -> None:
        with self._lock:
            control, process = self._socket, self._process
            if control is not None:
                with contextlib.suppress(OSError):
                    control.shutdown(socket.SHUT_RDWR)
            if process is not None:
                process.wait()
                self._process = None
            if control is not None:
                with self._changed:
                    self._changed.wait_for(lambda: self._socket is None, 10)
                control.close()


class RemoteModel(Closing):
    """A model in a worker process. `slots` are its channels, one for each call at once."""

    def __init__(self, zygote: Zygote, name: str, path: Path, config: ModelConfig) -> None:
        self.name, self.path, self.config = name, path, config
        self._zygote = zygote
        self._closed = False
        self.pid = 0  # 0: there is no worker
        self.start()

    def start(self) -> None:
        """Start a worker and wait until it has loaded and warmed up the model."""
        begun = time.perf_counter()
        sockets = [pair() for _ in range(1 + self.config.instances)]
        ours, theirs = [each[0] for each in sockets], [each[1] for each in sockets]
        for_worker, for_compiler = pair()
        try:
            self.pid = self._zygote.fork("worker", self._setup(), [theirs[0], for_worker, *theirs[1:]])
            compiler = {"folder": str(code_folder()), "owner": state_of(self.path)}
            self._zygote.forget(self._zygote.fork("compiler", compiler, [for_compiler]))
        except BaseException:
            for each in (*ours, *theirs, for_worker, for_compiler):
                each.close()
            raise
        self.control = Channel(ours[0], MOST_ABOUT)
        self.slots = [Channel(each, self.config.output_limit) for each in ours[1:]]
        try:
            expect_peer(ours[0], self.pid, START)
            self._adopt(self._hear_first())
        except TimeoutError as error:
            self._stop()
            raise DeviceError(
                f"the worker of {self.name} did not load the model in time",
                expected=f"load_timeout = {self.config.load_timeout:g} seconds at most",
                remedy="raise load_timeout in the model's settings, or save the model as a bundle",
            ) from error
        except ClosedError as error:
            how = self.explain_end()
            self._stop()
            raise DeviceError(f"the worker of {self.name} ended while it loaded the model", got=how) from error
        except BaseException:
            self._stop()
            raise
        for each in ours[1:]:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        spent = 1e3 * (time.perf_counter() - begun)
        log.debug("%s: worker %d after %.0f ms, %s", self.name, self.pid, spent, ", ".join(self.layers))

    def _hear_first(self) -> Message:
        """What a new worker says. TimeoutError where it takes too long."""
        self.control.socket.settimeout(self.config.load_timeout)
        try:
            return self.control.receive()
        finally:
            self.control.socket.settimeout(None)

    def _setup(self) -> dict[str, Any]:
        limit = self.config.memory_limit
        memory = None if limit is None else parse_bytes(limit, "memory_limit") + SPARE
        readable = [str(each) for each in files_of(self.path)]
        config = msgspec.to_builtins(self.config)
        made = {"name": self.name, "path": str(self.path), "config": config, "readable": readable, "memory": memory}
        return made | {"shares": shares_weights()}

    def _adopt(self, said: Message) -> None:
        if isinstance(said, Failed):
            raise error_of(said.error)
        if not isinstance(said, Ready) or said.content.size > MOST_ABOUT:
            raise ClosedError("the worker did not report that it is ready")
        try:
            loaded = msgspec.json.decode(self.control.content(said.content).tobytes(), type=Loaded)
            ports = Signature((), ()) if loaded.about is not None else signature_of(loaded.signature)
        except (msgspec.DecodeError, ValueError, TypeError, KeyError, SmeltError) as error:
            raise ClosedError("the worker described the model in a malformed message", got=error) from error
        self.loaded = loaded
        self.signature = Signature(ports.inputs, ports.outputs)
        self.optional: tuple[Port, ...] = ports.weights
        self.engine, self.provenance, self.metadata = loaded.engine, loaded.provenance, loaded.metadata

    @property
    def layers(self) -> Sequence[str]:
        """The layers of the sandbox that hold."""
        return self.loaded.layers

    @property
    def pss(self) -> int:
        """Bytes of memory of the worker; pages that several processes share count in parts."""
        return proportional_bytes(self.pid)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the worker that runs now."""
        return process_seconds(self.pid)

    def cancel(self, number: int) -> None:
        with contextlib.suppress(ClosedError):
            self.control.send(Cancelled(number))

    def kill(self) -> None:
        """End the worker at once; its channels close."""
        if self.pid:
            self._zygote.kill(self.pid)

    def explain_end(self) -> str:
        """How the worker ended, for people."""
        status = self._zygote.ending(self.pid, 1.0)
        if status is None:
            return "it hung up"
        if status >= 0:
            return f"exit code {status}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"

    def restart(self) -> None:
        """A new worker for the same model. The server attaches to its channels afterwards."""
        self._stop()
        if not self._closed:
            self.start()
        if self._closed:  # meanwhile, in another thread
            self._stop()

    def _stop(self) -> None:
        for channel in (self.control, *self.slots):
            channel.close()
        pid = self.pid
        if pid:
            self.kill()
            self._zygote.ending(pid, 10.0)
            self.pid = 0  # before the system may give the number to another process
            self._zygote.forget(pid)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stop()


def files_of(path: Path) -> list[Path]:
    """What a worker may read of a model: its file and those that begin with its name; in a repository the folder of
    the version; of a language model its folder."""
    path = path.resolve()
    if path.is_dir():
        return [path, *_linked_files(path)]
    if path.parent.name.isdecimal():
        return [path.parent]
    return [path, *(each for each in path.parent.glob(f"{_escape(path.stem)}*") if each.is_file() and each != path)]


def state_of(path: Path) -> str:
    """A model's path, and a hash that changes with its files: their names, sizes, times and inodes."""
    found = hashlib.blake2b(digest_size=20)
    for each in files_of(path):
        below = sorted(each.rglob("*")) if each.is_dir() else [each]
        for file in below:
            with contextlib.suppress(OSError):
                known = file.stat()
                found.update(f"{file}\0{known.st_size} {known.st_mtime_ns} {known.st_ino} {known.st_dev}\0".encode())
    return f"{path.resolve()} {found.hexdigest()}"


def _linked_files(folder: Path) -> list[Path]:
    """The files behind the links of a snapshot in the hub's cache. Links to anything else are not followed."""
    if folder.parent.name != "snapshots":
        return []
    found = [each.resolve() for each in folder.rglob("*") if each.is_symlink()]
    return [each for each in found if each.parent == folder.parent.parent / "blobs"]


def _escape(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def proportional_bytes(pid: int) -> int:
    """The proportional set size of a process; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("Pss:")), 0)
    except (OSError, ValueError):
        return 0


def process_seconds(pid: int) -> float:
    """CPU time of a process; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _import_path() -> str:
    """Where Python found this package, and what the user named."""
    package = str(Path(__file__).resolve().parents[3])
    return os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))


def code_folder(name: str = "isolated") -> Path:
    """Compiled code of isolated models: apart from that of others, which they must not be able to change."""
    folder = cache.default().folder / name
    if not folder.exists():
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError:  # a read-only home
            folder = (cache.private_folder() or folder.parent) / name
            folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(OSError, shutil.Error):
            home = cache.cache_home()
            if home is not None and _bytes_below(home / "zig") <= MOST_COPIED:
                shutil.copytree(home / "zig", folder / "zig", symlinks=True)  # zig's own libraries compile slowly
    return folder


def _bytes_below(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
