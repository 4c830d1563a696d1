"""TensorBoard's event files: scalars by step, as records with masked CRC-32C checksums. Nothing else is needed."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from smelt.errors import FileError

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _mask(data: bytes) -> bytes:
    """A checksum as TFRecord stores it: rotated, and moved by a constant."""
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    """A record: length, its checksum, the data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + _mask(length) + data + _mask(data)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _event(when: float, step: int, body: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", when) + b"\x10" + _varint(step & (1 << 64) - 1) + body


class EventFile:
    """One run's file in a folder. Each scalar is flushed: what a killed run logged can be read."""

    def __init__(self, folder: str | Path) -> None:
        now = time.time()
        self.path = Path(folder) / f"events.out.tfevents.{int(now)}.{os.getpid()}.smelt"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        except OSError as error:
            raise FileError(f"cannot write {self.path}", got=error) from error
        self._put(_event(now, 0, _field(3, b"brain.Event:2")))

    def add(self, step: int, **scalars: float) -> None:
        """Log scalars of a step, such as `loss=0.5`; `/` in a tag is written as `__`."""
        values = b"".join(
            _field(1, _field(1, tag.replace("__", "/").encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in scalars.items()
        )
        self._put(_event(time.time(), step, _field(5, values)))

    def _put(self, data: bytes) -> None:
        self._file.write(frame(data))
        self._file.flush()

    def close(self) -> None:
        self._file.close()
