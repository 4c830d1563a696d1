"""One end of a channel between the server and a worker: small messages in msgpack over a Unix socket, bytes in memory.

Each side writes into a memfd of its own and passes the descriptor once, with the first message that needs it (and
again when it had to grow). The memfd is sealed: it cannot shrink, so reading it never faults, and the other side can
map it for reading only. The receiver checks the seals, and every offset that a message states.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np

from smelt.client.wire import BYTES, NUMPY, datatype_of, split_strings, to_bytes
from smelt.dtype import Array
from smelt.errors import ParseError

ALIGN = 64
LEAST = 1 << 16  # bytes of a first memfd
MOST = 1 << 36  # bytes that a trusted other side may have us map
PACKET = 1 << 16  # bytes of a message
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEAL, _SHRINK, _GROW, _FUTURE_WRITE = 1, 2, 4, 16
HELLO = b"hello"
_PEER = struct.Struct("3i")  # pid, uid, gid


class Tensor(msgspec.Struct, array_like=True, frozen=True):
    """Where a tensor is in the sender's memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    at: int
    size: int


class Call(msgspec.Struct, array_like=True, tag="call", frozen=True):
    number: int
    timeout: float | None
    tensors: list[Tensor]


class Cancelled(msgspec.Struct, array_like=True, tag="cancel", frozen=True):
    number: int


class Done(msgspec.Struct, array_like=True, tag="done", frozen=True):
    number: int
    tensors: list[Tensor]
    compiles: Annotated[int, msgspec.Meta(ge=0)] = 0  # programs that were compiled for the call


class Failed(msgspec.Struct, array_like=True, tag="failed", frozen=True):
    number: int
    error: dict[str, Any]  # `SmeltError.record`
    started: bool = False


class Ready(msgspec.Struct, array_like=True, tag="ready", frozen=True):
    """A worker that has loaded its model, and what it says about it, in JSON."""

    content: Tensor


class Compile(msgspec.Struct, array_like=True, tag="compile", frozen=True):
    """C sources for the compiler process; `runtime`: with the flags of the runtime library."""

    sources: list[Tensor]
    runtime: bool


class Compiled(msgspec.Struct, array_like=True, tag="compiled", frozen=True):
    code: Tensor


class Find(msgspec.Struct, array_like=True, tag="find", frozen=True):
    """Ask the compiler process for an entry that a worker of this model kept. The answer is `Found`."""

    key: str


class Found(msgspec.Struct, array_like=True, tag="found", frozen=True):
    content: Tensor | None


class Keep(msgspec.Struct, array_like=True, tag="keep", frozen=True):
    """Have an entry kept. The answer is `Found` with nothing."""

    key: str
    content: Tensor


Message = Call | Cancelled | Done | Failed | Ready | Compile | Compiled | Find | Found | Keep
_encode = msgspec.msgpack.Encoder().encode
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class ClosedError(ParseError):
    """The other side closed the channel, or broke the protocol."""

    advice = "the server starts the worker again; its log says why it ended"


class Channel:
    """One end. `send_*` and `receive` are called by one thread at a time. `most`: bytes of a message's tensors that
    the other side may send; nothing larger is mapped or copied."""

    def __init__(self, end: socket.socket, most: int = MOST) -> None:
        self.socket, self.most = end, most
        self._out: mmap.mmap | None = None
        self._in: mmap.mmap | None = None
        self._view = np.empty(0, np.uint8)  # of the other side's memory
        self._mine = np.empty(0, np.uint8)

    def send(self, message: Message) -> None:
        """A message without bytes beside it."""
        self._send(message, None)

    def send_call(self, number: int, timeout: float | None, batches: Mapping[str, Sequence[Array]]) -> None:
        """Run the model. The arrays of each input are stacked along their first axis."""
        self._send_tensors(batches, lambda tensors: Call(number, timeout, tensors))

    def send_done(self, number: int, outputs: Mapping[str, Array], compiles: int = 0) -> None:
        made = {name: (array,) for name, array in outputs.items()}
        self._send_tensors(made, lambda found: Done(number, found, compiles))

    def send_bytes(self, make: Callable[[Tensor], Message], content: bytes) -> None:
        """A message that names where the bytes are."""
        array = np.frombuffer(content, np.uint8)
        self._send_tensors({"": (array,)}, lambda found: make(found[0]))

    def send_sources(self, sources: Iterable[str], runtime: bool) -> None:
        arrays = {str(i): (np.frombuffer(text.encode(), np.uint8),) for i, text in enumerate(sources)}
        self._send_tensors(arrays, lambda found: Compile(found, runtime))

    def _send_tensors(self, batches: Mapping[str, Sequence[Array]], make: Any) -> None:
        rows = []
        at = 0
        for name, arrays in batches.items():
            first = arrays[0]
            if first.dtype.kind in "OUS":
                joined = np.concatenate(arrays) if len(arrays) > 1 else first
                raw = [np.frombuffer(to_bytes(joined), np.uint8)]
                kind, shape = BYTES, joined.shape
            else:
                raw, kind, shape = list(arrays), datatype_of(first), first.shape
                if len(arrays) > 1:
                    shape = (sum(len(array) for array in arrays), *shape[1:])
            size = sum(array.nbytes for array in raw)
            rows.append((raw, Tensor(name, kind, shape, at, size)))
            at += -(-size // ALIGN) * ALIGN
        passed = self._reserve(at)
        for raw, tensor in rows:
            start = tensor.at
            for array in raw:
                place = self._mine[start : start + array.nbytes]
                place.view(array.dtype).reshape(array.shape)[...] = array
                start += array.nbytes
        self._send(make([tensor for _, tensor in rows]), passed)

    def _reserve(self, size: int) -> int | None:
        """Have memory for `size` bytes; the descriptor to pass where it is new."""
        if size <= len(self._mine) and self._out is not None:
            return None
        room = _room(size)
        file = os.memfd_create("smelt-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, room)
        self._mine = np.empty(0, np.uint8)
        _release(self._out)
        self._out = mmap.mmap(file, room)
        self._mine = np.frombuffer(self._out, np.uint8)
        try:
            fcntl.fcntl(file, _ADD_SEALS, _SEAL | _SHRINK | _GROW | _FUTURE_WRITE)
        except OSError:  # before Linux 5.1: the other side could map it for writing
            fcntl.fcntl(file, _ADD_SEALS, _SEAL | _SHRINK | _GROW)
        return file

    def _send(self, message: Message, passed: int | None) -> None:
        data = _encode(message)
        if len(data) > PACKET:
            raise ParseError("a message is too long", expected=f"at most {PACKET} bytes", got=len(data))
        try:
            if passed is None:
                self.socket.send(data)
            else:
                socket.send_fds(self.socket, [data], [passed])
        except OSError as error:
            raise ClosedError("the other side closed the channel", got=error) from error
        finally:
            if passed is not None:
                os.close(passed)

    def receive(self, flags: int = 0) -> Message:
        """The next message. BlockingIOError with MSG_DONTWAIT and none there; ClosedError at the end."""
        try:
            data, control, _, _ = self.socket.recvmsg(PACKET, 64, flags | socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise ClosedError("the other side closed the channel", got=error) from error
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._map(struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4]))
        if not data:
            raise ClosedError("the other side closed the channel")
        try:
            return _DECODER.decode(data)
        except msgspec.DecodeError as error:
            raise ClosedError("the other side sent a malformed message", got=error) from error

    def _map(self, files: Sequence[int]) -> None:
        """Map what the other side passed, if it is what it must be: one memfd that cannot shrink."""
        try:
            if len(files) != 1:
                raise ClosedError("several descriptors were passed", expected="one", got=len(files))
            size = os.fstat(files[0]).st_size
            seals = fcntl.fcntl(files[0], _GET_SEALS)
            if not seals & _SHRINK or not 0 < size <= 2 * _room(self.most):
                raise ClosedError("the memory is not sealed, or too large", got=f"seals {seals}, {size} bytes")
            self._view = np.empty(0, np.uint8)
            _release(self._in)
            self._in = mmap.mmap(files[0], size, prot=mmap.PROT_READ)
            self._view = np.frombuffer(self._in, np.uint8)
        except OSError as error:
            raise ClosedError("what was passed is no sealed memory", got=error) from error
        finally:
            for file in files:
                os.close(file)

    def tensors(self, said: Sequence[Tensor], copy: bool) -> dict[str, Array]:
        """Arrays in the other side's memory; it is overwritten by its next message unless they are copied."""
        total = sum(each.size for each in said)  # several may state the same bytes
        if total > self.most:
            raise ClosedError("the tensors are too large", expected=f"at most {self.most} bytes", got=total)
        return {each.name: self._array(each, copy) for each in said}

    def _array(self, said: Tensor, copy: bool) -> Array:
        raw = self.content(said)
        if said.datatype == BYTES:
            return split_strings(memoryview(raw.tobytes()), prod(said.shape)).reshape(said.shape)
        numpy = NUMPY.get(said.datatype)
        if numpy is None or min(said.shape, default=0) < 0 or prod(said.shape) * numpy.itemsize != said.size:
            raise ClosedError("a tensor does not fit its shape", got=f"{said.datatype}{list(said.shape)}")
        found = raw.view(numpy).reshape(said.shape)
        return found.copy() if copy else found

    def content(self, said: Tensor) -> Array:
        """The bytes of a tensor."""
        if not 0 <= said.at <= said.at + said.size <= len(self._view) or said.at % ALIGN:
            raise ClosedError("a tensor is outside of the memory", got=f"{said.size} bytes at {said.at}")
        return self._view[said.at : said.at + said.size]

    def close(self) -> None:
        self.socket.close()
        self._view = self._mine = np.empty(0, np.uint8)
        for each in (self._in, self._out):
            _release(each)
        self._in = self._out = None


def _room(size: int) -> int:
    """The size of a memfd for this number of bytes."""
    return max(LEAST, 1 << max(0, size - 1).bit_length())


def _release(mapped: mmap.mmap | None) -> None:
    if mapped is not None:
        with contextlib.suppress(BufferError):  # arrays still use it; it is unmapped with the last of them
            mapped.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Connected Unix sockets that keep messages apart. On the first, the kernel states who sends; see `expect_peer`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PACKET)
    return ours, theirs


def expect_peer(end: socket.socket, pid: int, seconds: float) -> None:
    """Check that the first message comes from a process: the kernel states its pid and user with it."""
    end.settimeout(seconds)
    try:
        data, control, _, _ = end.recvmsg(16, socket.CMSG_SPACE(_PEER.size))
    except OSError as error:
        raise ClosedError("the worker did not start", got=error) from error
    finally:
        end.settimeout(None)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    stated = [_PEER.unpack(content) for _, kind, content in control if kind == socket.SCM_CREDENTIALS]
    if data != HELLO or stated != [(pid, os.getuid(), os.getgid())]:
        raise ClosedError("another process is at the other end", expected=f"process {pid}", got=stated)
