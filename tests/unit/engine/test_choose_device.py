"""`device="auto"`: where a program fits and is predicted to be fastest; the reason is logged."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from smelt import engine, model
from smelt.device import registry
from smelt.device.api import Rates
from smelt.engine import choose_device as choosing
from smelt.engine.choose_device import Work, choose_device
from smelt.errors import DeviceError, UnsupportedError
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.shape import Shape
from smelt.size import parse_size
from smelt.weights import Weights


class Fast:
    """A device with rates of its own."""

    def __init__(self, free: float = 1e11, why: str | None = None) -> None:
        self.free, self.why = free, why

    def missing(self) -> str | None:
        return self.why

    def stats(self) -> dict[str, float]:
        return {"bytes_limit": 2 * self.free, "bytes_in_use": self.free}

    def rates(self) -> Rates:
        return Rates(50_000.0, 900_000.0, 4000.0, 20.0, 4e-6, 20e-6)


class Host(Fast):
    def rates(self) -> Rates:
        return Rates(500.0, 500.0, 50.0, 0.0, 2e-6, 0.0)


def product(rows: int, side: int, element: str = "f32", columns: int | None = None) -> Program:
    x, w = f"tensor<{rows}x{side}x{element}>", f"tensor<{side}x{columns or side}x{element}>"
    y = f"tensor<{rows}x{columns or side}x{element}>"
    return parse(
        f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}) -> {y} {{
          %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {y}
          return %0 : {y}
        }}"""
    )


def place(monkeypatch: pytest.MonkeyPatch, other: Fast) -> None:
    here: dict[str, Any] = {"cpu": Host(), "cuda": other}
    monkeypatch.setattr(choosing, "find_device", here.__getitem__)
    monkeypatch.setattr(choosing, "other_devices", lambda: ["cuda"])


def test_what_a_call_does() -> None:
    work = Work.of(product(3, 5, "bf16", 7))
    assert (work.operations, work.weights, work.moved, work.kernels, work.waits) == (2 * 3 * 5 * 7, 70, 30 + 42, 2, 0)
    assert work.half
    text = "func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {\n %0 = stablehlo.sine %x : tensor<?x4xf32>\n"
    dynamic = parse(text + " return %0 : tensor<?x4xf32>\n}")
    (name,) = dynamic.main.args[0].shape.symbols
    assert [Work.of(dynamic, sizes).moved for sizes in ({}, {name: 10})] == [2 * 16, 2 * 160]


@pytest.mark.parametrize(
    ("program", "chosen"),
    [
        (product(2048, 2048), "cuda"),  # arithmetic
        (product(1, 4096), "cuda"),  # weights that are read
        (product(2, 16), "cpu"),  # a wait costs more
        (product(1 << 20, 8), "cpu"),  # inputs and results are copied
    ],
)
def test_the_faster_device_with_transfers(
    program: Program, chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place(monkeypatch, Fast())
    with caplog.at_level(logging.INFO, "smelt"):
        assert choose_device(program) == chosen
    assert f'device="auto" is {chosen}' in caplog.text
    assert caplog.text.count(" ms") == 2


def test_a_program_that_does_not_fit_or_a_device_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for other, said in ((Fast(free=3e7), "are free"), (Fast(why="no NVIDIA driver"), "cuda: no NVIDIA driver")):
        place(monkeypatch, other)
        with caplog.at_level(logging.INFO, "smelt"):
            assert choose_device(product(2048, 2048)) == "cpu"
        assert said in caplog.text


@pytest.mark.parametrize("asked", ["stats", "rates"])
def test_a_device_that_was_lost(asked: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def lost() -> Any:
        raise DeviceError("the GPU was lost")

    other = Fast()
    monkeypatch.setattr(other, asked, lost)
    place(monkeypatch, other)
    with caplog.at_level(logging.INFO, "smelt"):
        assert choose_device(product(2048, 2048)) == "cpu"
    assert "cuda: the GPU was lost" in caplog.text


def test_a_rate_that_the_driver_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Fast()
    monkeypatch.setattr(other, "rates", lambda: Rates(0.0, 0.0, 0.0, 20.0, 4e-6, 20e-6))
    place(monkeypatch, other)
    assert [choose_device(each) for each in (product(2048, 2048), product(1 << 20, 8))] == ["cuda", "cpu"]


def test_without_signs_of_another_device_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "Work", None)
    monkeypatch.setitem(registry.SIGNS, "cuda", lambda: False)
    assert choose_device(product(2048, 2048)) == "cpu"


def test_a_device_that_refuses_the_program(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []
    plain = engine.compile_with_first

    def compile_with_first(device: str, *given: Any) -> Any:
        asked.append(device)
        if device == "cuda":
            raise UnsupportedError("no kernel for it")
        return plain(device, *given)

    monkeypatch.setattr(model, "choose_device", lambda program: "cuda")
    monkeypatch.setattr("smelt.model.compile_with_first", compile_with_first)
    w = np.eye(4, dtype=np.float32)
    made = model.model_of(product(2, 4), Weights.of({"w": w}), engine="auto")
    assert made(x=np.ones((2, 4), np.float32))[made.signature.outputs[0].name].tolist() == [[1] * 4] * 2
    assert asked == ["cuda", "cpu"]
    assert "because cuda refused: no kernel for it" in caplog.text
    model.model_of(product(2, 4), Weights.of({"w": w}), engine="auto", memory_limit="1GB")
    assert asked[2:] == ["auto"]  # a limit is one of host memory


def test_unknown_sizes_count_as_one() -> None:
    size = parse_size("3*N + M")
    assert [choosing._number(size, known) for known in ({}, {"N": 4}, {"N": 4, "M": 5})] == [4, 13, 17]
    shape = Shape("f16", "N", 5)
    assert [choosing._bytes(shape, known) for known in ({}, {"N": 4}, {"N": 0})] == [10, 40, 0]
