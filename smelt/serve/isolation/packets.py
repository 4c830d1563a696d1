"""Messages of any length between the server and the worker of a language model: msgpack over a Unix socket.

A short message is one packet. A long one goes as a sealed memfd, which the receiver copies.
Unlike `channel`, where a call owns the sender's memory until it is answered, messages are many at once.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Annotated, Any, TypeVar

import msgspec

from smelt.serve.isolation.channel import PACKET, ClosedError
from smelt.serve.text_model import Token

T = TypeVar("T")
SHORT, LONG = b"s", b"l"
MOST = 1 << 28  # bytes of a message
MOST_EVENTS = 256  # of a message
MOST_ERROR = 4000  # characters of a part of an error
_ADD_SEALS, _GET_SEALS, _SEALS = 1033, 1034, 1 | 2 | 4 | 8  # seal, shrink, grow, write


Record = Annotated[  # `SmeltError.record`
    dict[str, Annotated[str, msgspec.Meta(max_length=MOST_ERROR)]], msgspec.Meta(max_length=16)
]


class Ask(msgspec.Struct, array_like=True, tag="ask", frozen=True):
    """A method of `TextModel` with its arguments."""

    number: int
    method: str
    given: dict[str, Any]


class Stop(msgspec.Struct, array_like=True, tag="stop", frozen=True):
    """The answer is no longer needed."""

    number: int


class Answered(msgspec.Struct, array_like=True, tag="answered", frozen=True):
    number: int
    result: msgspec.Raw


class Begun(msgspec.Struct, array_like=True, tag="begun", frozen=True):
    """The options of an answer are valid; tokens follow."""

    number: int


class Said(msgspec.Struct, array_like=True, tag="said", frozen=True):
    number: int
    token: Token


class Finished(msgspec.Struct, array_like=True, tag="finished", frozen=True):
    number: int
    finish: Annotated[str, msgspec.Meta(max_length=32)]
    said: Annotated[str, msgspec.Meta(max_length=1 << 24)]


class Wrong(msgspec.Struct, array_like=True, tag="wrong", frozen=True):
    number: int
    error: Record


Event = Answered | Begun | Said | Finished | Wrong
_encode = msgspec.msgpack.Encoder().encode
_ASKED: msgspec.msgpack.Decoder[Ask | Stop] = msgspec.msgpack.Decoder(Ask | Stop)
_EVENTS: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(
    Annotated[list[Event], msgspec.Meta(max_length=MOST_EVENTS)]
)


def encode(message: Ask | Stop | list[Event]) -> bytes:
    """ValueError for what msgpack cannot say: integers beyond 64 bits, texts that are no Unicode, deep nesting."""
    try:
        return _encode(message)
    except (OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error


def to_raw(result: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(result))


class Packets:
    """One end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Ask | Stop | list[Event]) -> None:
        self.send_encoded(encode(message))

    def send_encoded(self, data: bytes, flags: int = 0) -> None:
        """BlockingIOError with MSG_DONTWAIT where the other side is slow."""
        try:
            if len(data) < PACKET:
                self.socket.send(SHORT + data, flags)
            else:
                self._send_long(data, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ClosedError("the other side closed the channel", got=error) from error

    def _send_long(self, data: bytes, flags: int) -> None:
        file = os.memfd_create("smelt-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            fcntl.fcntl(file, _ADD_SEALS, _SEALS)
            socket.send_fds(self.socket, [LONG], [file], flags)
        finally:
            os.close(file)

    def receive_asked(self, flags: int = 0) -> Ask | Stop:
        return _decode(_ASKED, self._receive(flags))

    def receive_events(self, flags: int = 0) -> list[Event]:
        return _decode(_EVENTS, self._receive(flags))

    def _receive(self, flags: int) -> bytes:
        try:
            data, control, _, _ = self.socket.recvmsg(PACKET, 64, flags | socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ClosedError("the other side closed the channel", got=error) from error
        files: list[int] = []
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
        try:
            if data[:1] == SHORT and not files:
                return data[1:]
            if data == LONG and len(files) == 1:
                return _read_sealed(files[0])
            raise ClosedError("the other side closed the channel, or sent a malformed message", got=data[:20])
        finally:
            for file in files:
                os.close(file)


def _read_sealed(file: int) -> bytes:
    """A copy of a memfd that cannot change any more."""
    try:
        size = os.fstat(file).st_size
        if fcntl.fcntl(file, _GET_SEALS) & _SEALS != _SEALS or not 0 < size <= MOST:
            raise ClosedError("a message is not sealed, or too long", got=f"{size} bytes")
        parts, at = [], 0
        while at < size:
            parts.append(os.pread(file, size - at, at))
            at += len(parts[-1])
    except OSError as error:
        raise ClosedError("what was passed is no sealed memory", got=error) from error
    return b"".join(parts)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClosedError("the other side sent a malformed message", got=error) from error
