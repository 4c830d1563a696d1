"""The process that forks workers: it has imported all that they need, and has a single thread.

The server starts it as `python -m smelt.serve.isolation.zygote FD`. For every packet that comes with sockets it forks a
process that uses them, and answers with its pid; it reports which of its processes ended, and how. It ends with the
server, and its workers end with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy.random  # noqa: F401  for the first call of a model

from smelt.serve.isolation import compiler, worker
from smelt.serve.isolation.channel import PACKET
from smelt.serve.isolation.sandbox import end_with_parent

MOST_SOCKETS = 130


class Fork(msgspec.Struct, tag="fork"):
    """Fork a process; the sockets of the packet are its."""

    role: str  # "worker" or "compiler"
    setup: Any


class Forked(msgspec.Struct, tag="forked"):
    pid: int


class Ended(msgspec.Struct, tag="ended"):
    pid: int
    status: int  # an exit code, or minus the number of the signal


decode_answer = msgspec.msgpack.Decoder(Forked | Ended).decode
_decode = msgspec.msgpack.Decoder(Fork).decode
encode = msgspec.msgpack.Encoder().encode
ROLES: dict[str, Callable[[Any, list[socket.socket]], None]] = {"worker": worker.run, "compiler": compiler.run}


def run(control: socket.socket) -> None:
    end_with_parent(signal.SIGKILL)
    gc.freeze()  # collections in a worker leave the pages that it shares with this process alone
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and systemd signal all processes; the server drains first
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    control.send(b"ready")
    while True:
        for file, _ in poll.poll():
            if file == woken:
                os.read(woken, 4096)
                _reap(control)
            elif not _fork(control, [woken, wake]):
                return


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with contextlib.suppress(OSError):  # the server is gone: the next read of the socket ends this process
            control.send(encode(Ended(pid, os.waitstatus_to_exitcode(status))))


def _fork(control: socket.socket, own: list[int]) -> bool:
    data, files, _, _ = socket.recv_fds(control, PACKET, MOST_SOCKETS)
    if not data:
        return False
    asked = _decode(data)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for file in own:
                os.close(file)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            end_with_parent(signal.SIGKILL)
            ROLES[asked.role](asked.setup, [socket.socket(fileno=file) for file in files])
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    for file in files:
        os.close(file)
    control.send(encode(Forked(pid)))
    return True


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
