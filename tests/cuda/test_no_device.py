"""`device="cuda"` on a machine without a GPU: what is missing, and the remedy."""

from __future__ import annotations

import sys

import pytest

import smelt
from smelt.device import cuda_compile, cuda_driver, registry
from smelt.errors import DeviceError, UnsupportedError

DIGITS = "smelt/assets/digits.onnx"
needs_none = pytest.mark.skipif(cuda_driver.missing() is None, reason="this machine has a GPU")


@needs_none
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_no_gpu(device: str) -> None:
    with pytest.raises(UnsupportedError, match="native cannot run here") as caught:
        smelt.load(DIGITS, device=device, engine="native")
    assert "NVIDIA" in str(caught.value) or "smelt[cuda]" in str(caught.value)


@needs_none
def test_a_program_that_is_not_asked_for_here() -> None:
    with pytest.raises(DeviceError, match="no CUDA device") as caught:
        registry.find_device("cuda").target()
    assert 'device="cpu"' in str(caught.value)


@needs_none
def test_a_device_that_is_not_there_says_so() -> None:
    assert registry.find_device("cuda").model == "no NVIDIA GPU"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "smelt[cuda]" in str(cuda_driver.missing())
    assert "smelt[cuda]" in str(cuda_compile.missing())
    assert registry.find_target("sm_90").language == "cuda"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('Function "cuInit" not found', "the NVIDIA driver is too old"),
        ("a long story\nof folders", "no NVIDIA driver: "),
    ],
)
def test_a_driver_that_cannot_be_opened(said: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("cuda.bindings.driver")

    def init(flags: int) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(api, "cuInit", init)
    assert str(cuda_driver.missing()).startswith(found)
    assert "story" not in str(cuda_driver.missing())
