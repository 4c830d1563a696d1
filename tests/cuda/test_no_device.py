"""`device="cuda"` on a machine without a GPU: what is missing, and the remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.device import cuda, cuda_compile, cuda_driver, registry
from smelt.engine import compile_with_first
from smelt.engine.pjrt import PjrtEngine
from smelt.errors import DeviceError, UnsupportedError
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint

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


@needs_none
def test_fp8_without_the_native_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA refuses it; what its weights would take is not asked of a device that cannot be opened."""
    monkeypatch.setattr(PjrtEngine, "missing", lambda self: None)
    case = Case.load(FIXTURE)[0]
    write_checkpoint(tmp_path, case.config, case.shapes, "bf16")
    with pytest.raises(UnsupportedError, match="fp8 needs weights that are rounded once") as caught:
        smelt.llm.load(tmp_path, device="cuda", precision="fp8")
    assert "pjrt on cuda" in str(caught.value)


@pytest.fixture
def chips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver with two GPUs, the first of which is too old."""
    if cuda_compile.missing() is not None:
        pytest.skip(str(cuda_compile.missing()))
    api = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(api, "cuInit", lambda flags: (api.CUresult.CUDA_SUCCESS,))
    monkeypatch.setattr(cuda_driver, "version", lambda: 14_000)
    monkeypatch.setattr(cuda_driver, "count", lambda: 2)
    monkeypatch.setattr(cuda_driver, "capability", lambda number: ((7, 5), (8, 6))[number])


@pytest.mark.usefixtures("chips")
def test_a_gpu_that_is_too_old_or_not_there() -> None:
    found = [cuda.Cuda(number).missing() for number in range(3)]
    assert "the GPU is an sm_75, smelt's kernels need sm_80 or later" in str(found[0])
    assert found[1] is None
    assert "no such CUDA device: there is cuda:1" in str(found[2])
    with pytest.raises(DeviceError, match="sm_75"):
        cuda_driver.CudaDriver()


@pytest.mark.usefixtures("chips")
def test_auto_takes_xla_where_the_gpu_is_too_old(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PjrtEngine, "missing", lambda self: None)
    made: Any = object()
    tried: list[str] = []

    def attempt(engine: Any) -> Any:
        tried.append(engine.name)
        return made

    engine, got = compile_with_first("cuda", "auto", attempt)
    assert (engine.name, got, tried) == ("pjrt", made, ["pjrt"])
    assert "this program runs on the pjrt engine: native: the GPU is an sm_75" in caplog.text


@pytest.mark.usefixtures("chips")
def test_a_refused_program_names_what_else_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference engine is one of the processor alone."""

    def refuse(engine: Any) -> Any:
        raise UnsupportedError("the native engine does not support it", remedy="engine='reference'")

    for name in ("auto", "native"):
        monkeypatch.setattr(PjrtEngine, "missing", lambda self: "no plug-in")
        with pytest.raises(UnsupportedError) as caught:
            compile_with_first("cuda:1", name, refuse)
        assert caught.value.own_remedy == "device='cpu'; or pjrt: no plug-in"
    monkeypatch.setattr(PjrtEngine, "missing", lambda self: None)
    with pytest.raises(UnsupportedError) as caught:
        compile_with_first("cuda:1", "native", refuse)
    assert caught.value.own_remedy == "engine='pjrt'; or device='cpu'"
    with pytest.raises(UnsupportedError) as caught:
        compile_with_first("cpu", "native", refuse)
    assert caught.value.own_remedy == "engine='reference'"


@pytest.mark.skipif(cuda_compile.missing() is not None, reason=str(cuda_compile.missing()))
def test_a_chip_that_the_compiler_does_not_know() -> None:
    assert cuda_compile.missing_chip((8, 0)) is cuda_compile.missing_chip((9, 0)) is None
    assert "makes no code for sm_999" in str(cuda_compile.missing_chip((99, 9)))
