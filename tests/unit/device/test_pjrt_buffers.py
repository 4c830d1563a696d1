"""Buffers on a PJRT device, in this process and in a worker: what each method gives, and what is refused afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.device import pjrt, pjrt_cache
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


def test_compiled_programs_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU. Another option of XLA is another program; what cannot be loaded is compiled again."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(pjrt, "WORTH", 0.0)
    made = pjrt.Client("cpu")
    monkeypatch.setattr(made, "caches", True)
    compiled: list[str] = []

    def compile_now(text: str, results: Any) -> Any:
        compiled.append(text)
        return pjrt.Client._compile(made, text, results)

    monkeypatch.setattr(made, "_compile", compile_now)
    kind = "tensor<2x3xf32>"
    body = f"%0 = stablehlo.add %a, %a : {kind}\n  return %0 : {kind}"
    text = f"func.func public @main(%a: {kind}) -> {kind} {{\n  {body}\n}}"

    def double() -> None:
        (found,) = made.compile(text, [SHAPE])([made.put(DATA, SHAPE)])
        np.testing.assert_array_equal(found.numpy(), 2 * DATA)

    for _ in range(3):
        double()
    assert len(compiled) == 1
    made.options = {"xla_backend_optimization_level": "1"}
    double()
    assert len(compiled) == 2
    made.options = {"xla_backend_optimization_level": "2"}
    key = pjrt_cache.key_of(text, made.version, made.options)
    pjrt_cache.keep(key, lambda: b"of another driver")
    for _ in range(2):
        double()
    assert len(compiled) == 3, "what can be loaded has taken the place of what cannot"


def test_every_byte_of_a_buffer_is_counted_once() -> None:
    """Where the device does not count: those alive; not again when a buffer that was deleted or given away ends."""
    client: Any = pjrt.client("cpu")
    if not client.counts:
        pytest.skip("this version of jaxlib counts by itself")
    changes: list[int] = []

    class Counting:
        counts, platform, count = True, client.platform, changes.append

    raw = client.put(DATA, SHAPE).raw
    made = [pjrt.PjrtBuffer(raw, SHAPE, Counting) for _ in range(3)]  # type: ignore[arg-type]
    assert changes == [24] * 3
    made[0].delete()
    made[1].give_away("was donated")
    assert changes[3:] == [-24] * 2
    made.clear()
    assert changes[5:] == [-24], "the one that was left"
