"""Channels between the server and workers: tensors arrive as they were sent, and what is malformed is refused."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from smelt.client.wire import NUMPY
from smelt.errors import ParseError
from smelt.serve.isolation.channel import Channel, ClosedError, Done, Tensor, expect_peer, pair
from smelt.serve.isolation.remote import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="isolation needs Linux")


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = pair()
    found = Channel(ours), Channel(theirs)
    yield found
    for each in found:
        each.close()


def test_tensors_of_every_type_arrive(ends: tuple[Channel, Channel]) -> None:
    server, worker = ends
    sent: dict[str, Any] = {kind: np.arange(6).reshape(2, 3).astype(numpy) for kind, numpy in NUMPY.items()}
    sent |= {"texts": np.array([["a", "ü"], ["", "long" * 99]], object), "empty": np.empty((0, 5), np.float32)}
    sent |= {"scalar": np.array(2.5), "strided": np.arange(20.0)[::3], "large": np.arange(1 << 18)}
    for _ in range(2):  # the second time the memory is there already
        worker.send_done(3, sent)
        said = server.receive()
        assert isinstance(said, Done)
        found = server.tensors(said.tensors, copy=True)
        for name, array in sent.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].shape == array.shape
    rows = [np.full((i, 2), i, np.int32) for i in (1, 3)]
    server.send_call(1, None, {"x": rows})
    call = worker.receive()
    np.testing.assert_array_equal(worker.tensors(call.tensors, copy=False)["x"], np.concatenate(rows))  # type: ignore[union-attr]


def test_a_receiver_cannot_write_and_a_sender_cannot_shrink(ends: tuple[Channel, Channel]) -> None:
    server, worker = ends
    file = Channel(worker.socket)._reserve(100)
    assert file is not None
    with pytest.raises(PermissionError):
        os.ftruncate(file, 10)
    with pytest.raises(PermissionError):
        mmap.mmap(file, 100)  # for writing, too
    with pytest.raises(PermissionError):
        fcntl.fcntl(file, 1033, 8)  # no more seals
    os.close(file)
    worker.send_done(1, {"y": np.zeros(4, np.float32)})
    said = server.receive()
    assert isinstance(said, Done)
    assert not server.tensors(said.tensors, copy=False)["y"].flags.writeable


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("y", "FP32", (4,), 0, 1 << 30),
        Tensor("y", "FP32", (4,), 1 << 30, 16),
        Tensor("y", "FP32", (4,), -64, 16),
        Tensor("y", "FP32", (5,), 0, 16),
        Tensor("y", "FP32", (-2, -2), 0, 16),
        Tensor("y", "FP32", (1 << 40, 1 << 40), 0, 16),
        Tensor("y", "OBJECT", (4,), 0, 16),
        Tensor("y", "FP32", (4,), 3, 16),
    ],
)
def test_tensors_outside_of_the_memory_are_refused(ends: tuple[Channel, Channel], tensor: Tensor) -> None:
    server, worker = ends
    worker.send_done(1, {"y": np.zeros(4, np.float32)})
    server.receive()
    worker.send(Done(2, [tensor]))
    said = server.receive()
    assert isinstance(said, Done)
    with pytest.raises(ClosedError):
        server.tensors(said.tensors, copy=True)


def test_more_than_the_limit_is_neither_mapped_nor_copied() -> None:
    ours, theirs = pair()
    server, worker = Channel(ours, 1 << 20), Channel(theirs)
    worker.send_done(1, {"y": np.zeros(1 << 18, np.float32)})  # just as much
    said = server.receive()
    assert isinstance(said, Done)
    assert server.tensors(said.tensors, copy=True)["y"].nbytes == 1 << 20
    with pytest.raises(ClosedError, match="too large"):
        server.tensors([*said.tensors, Tensor("z", "FP32", (4,), 0, 16)], copy=True)
    with pytest.raises(ParseError, match="end early"):
        server.tensors([Tensor("t", "BYTES", (1 << 60,), 0, 16)], copy=True)
    worker._send(Done(2, [Tensor("y", "UINT8", (1 << 36,), 0, 1 << 36)]), worker._reserve(1 << 36))  # sparse
    mapped = server._in
    with pytest.raises(ClosedError, match="too large"):
        server.receive()
    assert server._in is mapped
    server.close()
    worker.close()


def test_what_is_no_sealed_memory_is_refused(ends: tuple[Channel, Channel], tmp_path: Path) -> None:
    server, worker = ends
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(1000))
    unsealed = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    with open(plain, "rb") as file:
        for files in ([file.fileno()], [unsealed], [unsealed, unsealed]):
            socket.send_fds(worker.socket, [msgspec.msgpack.encode(["done", 1, []])], files)
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(ClosedError):
                server.receive()
            assert len(os.listdir("/proc/self/fd")) <= before  # and none is kept
    os.close(unsealed)


@pytest.mark.parametrize(
    "data", [b"\xc1", b"", msgspec.msgpack.encode(["what", 1]), bytes(range(40, 80)), b"\x80" * 1000]
)
def test_nonsense_is_refused(ends: tuple[Channel, Channel], data: bytes) -> None:
    server, worker = ends
    worker.socket.send(data)
    with pytest.raises(ClosedError):
        server.receive()


def test_the_peer_is_checked() -> None:
    ours, theirs = pair()
    with ours, theirs:
        theirs.send(b"hello")
        expect_peer(ours, os.getpid(), 5)
    ours, theirs = pair()
    with ours, theirs:
        theirs.send(b"hello")
        with pytest.raises(ClosedError, match="another process"):
            expect_peer(ours, 1, 5)
