"""Buffers on a PJRT device, in this process and in a worker: what each method gives, and what is refused afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from smelt.device import pjrt
from smelt.device.pjrt_worker import IsolatedClient
from smelt.errors import RunError, SmeltError
from smelt.shape import Shape

pytest.importorskip("jaxlib")

SHAPE, DATA = Shape("f32", 2, 3), np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module", params=["here", "worker"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = pjrt.client("cpu") if request.param == "here" else IsolatedClient("cpu")
    yield made
    if request.param == "worker":
        made.close()


def test_a_buffer_gives_itself(client: Any) -> None:
    buffer = client.put(DATA, SHAPE)
    assert buffer.wait() is buffer
    assert buffer.shape == SHAPE
    assert buffer.nbytes == 24
    assert not buffer.is_deleted
    np.testing.assert_array_equal(buffer.numpy(), DATA)
    np.testing.assert_array_equal(np.asarray(buffer), DATA)
    np.testing.assert_array_equal(buffer.to_host().numpy(), DATA)
    if hasattr(buffer, "copy_to_host"):
        assert buffer.copy_to_host() is buffer
    with buffer.copy() as other:
        assert other is not buffer
        np.testing.assert_array_equal(other.numpy(), DATA)
    assert other.is_deleted
    np.testing.assert_array_equal(buffer.numpy(), DATA)


def test_a_deleted_buffer_is_refused(client: Any) -> None:
    buffer = client.put(DATA, SHAPE)
    buffer.delete()
    buffer.delete()  # again: nothing happens
    assert buffer.is_deleted
    with pytest.raises(SmeltError, match="deleted"):
        buffer.numpy()
    given = client.put(DATA, SHAPE)
    given.give_away("was donated to a run")
    given.delete()
    with pytest.raises(RunError, match="was donated to a run"):  # the first reason stays
        given.numpy()
