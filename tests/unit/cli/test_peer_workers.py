"""The worker that measures a peer, in this process: its jobs, its replies, and how each engine is opened."""

from __future__ import annotations

import io
import json
import signal
import sys
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from smelt.cli import peer

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))
PIXELS = np.random.default_rng(0).integers(0, 99, (2, 64)).astype(np.float32)


def job(model: Path | str = DIGITS, **more: Any) -> dict[str, Any]:
    return {"engine": "onnxruntime", "model": str(model), "threads": 1, "precision": "f32", **more}


def test_files_and_precisions_that_an_engine_does_not_have() -> None:
    peer.wants(job(), (".onnx",), ("f32", "int8"))
    with pytest.raises(peer.MissingError, match=r"^onnxruntime reads .onnx, .xml files only$"):
        peer.wants(job("a.mlir"), (".onnx", ".xml"), ("f32",))
    with pytest.raises(peer.MissingError, match=r"^onnxruntime has no bf16 mode$"):
        peer.wants(job(precision="bf16"), (".onnx",), ("f32",))


def test_files_beside_the_model(tmp_path: Path) -> None:
    model = str(tmp_path / "net.v2.onnx")
    with pytest.raises(peer.MissingError, match=r"^no net.v2.pt2 or net.v2.pt beside the model$"):
        peer.beside(model, (".pt2", ".pt"))
    for ending in (".pt", ".pt2"):
        (tmp_path / f"net.v2{ending}").touch()
        assert peer.beside(model, (".pt2", ".pt")) == tmp_path / f"net.v2{ending}"


def test_onnxruntime_with_the_threads_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = onnxruntime.InferenceSession

    def session(path: str, options: Any, providers: list[str]) -> Any:
        made.append((path, options.intra_op_num_threads, options.inter_op_num_threads, providers))
        return real(path, options, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    version, call = peer.onnxruntime(job(threads=2), {"pixels": PIXELS, "other": PIXELS})
    assert version == onnxruntime.__version__
    assert made == [(str(DIGITS), 2, 1, ["CPUExecutionProvider"])]
    (found,) = call()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    with pytest.raises(peer.MissingError, match="has no bf16 mode"):
        peer.onnxruntime(job(precision="bf16"), {})


def save(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


class Namespace(SimpleNamespace):
    """An object that takes any attribute."""


@pytest.mark.parametrize(("precision", "hint"), [("f32", "f32"), ("bf16", "bf16"), ("int8", "f32")])
def test_openvino_is_asked_for_latency(precision: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the same interface: the real one is in another Python."""
    seen: dict[str, Any] = {}
    port = Namespace(get_names=lambda: {"pixels", "alias"})

    def compile_model(model: Any, device: str, settings: dict[str, Any]) -> Any:
        seen.update(device=device, settings=settings)

        def infer(feed: dict[str, Any], **shared: bool) -> dict[str, Any]:
            seen.update(feed=feed, shared=shared)
            return {"b": PIXELS + 1, "a": PIXELS}

        return Namespace(create_infer_request=lambda: Namespace(infer=infer), outputs=["a", "b"])

    model = Namespace(inputs=[port], reshape=lambda shapes: seen.update(shapes=shapes))
    fake = ModuleType("openvino")
    fake.Core = lambda: Namespace(read_model=lambda path: model, compile_model=compile_model)  # type: ignore[attr-defined]
    fake.PartialShape, fake.__version__ = list, "9"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openvino", fake)
    version, call = peer.openvino(job(precision=precision, threads=3), {"pixels": PIXELS, "other": PIXELS})
    first, second = call()
    np.testing.assert_array_equal(second - first, np.ones_like(PIXELS))
    assert (version, seen["device"], list(seen["feed"]), seen["shapes"]) == (
        "9",
        "CPU",
        ["pixels"],
        {"pixels": [2, 64]},
    )
    assert seen["shared"] == {"share_inputs": True, "share_outputs": True}
    assert seen["settings"] == {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": 3,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_ncnn_gets_images_without_a_batch(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.ncnn.param").touch()
    options, given, failing = Namespace(), [], Namespace(param=0, model=0)

    class Extractor:
        def __enter__(self) -> Extractor:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def input(self, name: str, array: Any) -> None:
            given.append((name, array.shape))

        def extract(self, name: str) -> tuple[int, Any]:
            return 7, PIXELS if name == "p" else PIXELS + 1

    net = Namespace(
        opt=options, create_extractor=Extractor, input_names=lambda: ["x", "y", "z"], output_names=lambda: ["p", "q"],
        load_param=lambda path: failing.param, load_model=lambda path: failing.model,
    )  # fmt: skip
    fake = ModuleType("ncnn")
    fake.Net, fake.Mat, fake.__version__ = lambda: net, np.asarray, "1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncnn", fake)
    asked = job(tmp_path / "net.onnx", precision=precision, threads=2)
    inputs = {"a": np.zeros((1, 3, 4)), "b": np.zeros((2, 3)), "c": np.zeros(1)}
    version, call = peer.ncnn(asked, inputs)
    first, second = call()
    np.testing.assert_array_equal(second - first, np.ones_like(PIXELS))
    assert (version, given) == ("1", [("x", (3, 4)), ("y", (2, 3)), ("z", (1,))])
    assert vars(options) == {
        "num_threads": 2, "use_fp16_packed": False, "use_fp16_storage": False, "use_fp16_arithmetic": False,
        "use_bf16_storage": precision == "bf16",
    }  # fmt: skip
    for part in ("param", "model"):
        setattr(failing, part, -1)
        with pytest.raises(RuntimeError, match=r"ncnn cannot read .*net.ncnn.param"):
            peer.ncnn(asked, inputs)
        setattr(failing, part, 0)


def test_calls_are_timed_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only calls move: a tenth of the time warms up, the rest counts."""
    now, calls = [0.0], [0]

    def call() -> list[Any]:
        now[0] += 0.125
        calls[0] += 1
        return []

    monkeypatch.setattr(peer, "time", Namespace(perf_counter=lambda: now[0]))
    assert peer.time_calls(call, 10.0, 1) == [125.0] * 72  # 9 s of 10
    assert calls[0] == 72 + 8
    calls[0] = 0
    assert peer.time_calls(call, 0.0, 3) == [125.0] * 3
    assert calls[0] == 4  # one call warms up


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "f": PIXELS,
        "s": np.array(["a", "bc"], object),
        "b": np.array([1.5, -2], ml_dtypes.bfloat16),
    }
    file = tmp_path / "inputs.npz"
    save(file, {"0": PIXELS, "1": arrays["s"].astype(str), "2": arrays["b"].view(np.uint16)})
    names = {"f": "float32", "s": "object", "b": "bfloat16"}
    found = peer._inputs(job(inputs=str(file), names=names))
    assert list(found) == ["f", "s", "b"]
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert (found[name] == array).all()
    assert peer._plain(arrays["s"]).dtype.kind == "U"
    assert peer._plain(arrays["b"]).dtype == np.float32
    assert peer._plain(PIXELS) is PIXELS


def test_a_worker_is_limited_to_its_cores_and_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    limits, calls = [], []
    system = Namespace(
        sched_getaffinity=lambda pid: {5, 3, 9}, sched_setaffinity=lambda pid, cores: limits.append((pid, cores))
    )
    monkeypatch.setattr(peer, "os", system)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Namespace(prctl=lambda *given: calls.append((name, *given))))
    for threads in (0, 1, 2, 7):
        peer._alone(threads)
    assert limits == [(0, [3]), (0, [3]), (0, [3, 5]), (0, [3, 5, 9])]
    assert set(calls) == ({(None, 1, signal.SIGKILL)} if sys.platform == "linux" else set())


def serve(
    given: dict[str, Any], requests: list[dict[str, Any]], engine: Any, monkeypatch: Any, folder: Path
) -> list[Any]:
    """What a worker replies; its own output is moved to the standard error."""
    replies, moved = folder / "replies", []
    lines = "".join(json.dumps(each) + "\n" for each in (given, *requests))
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    monkeypatch.setattr(peer, "_alone", lambda threads: moved.append(threads))
    with replies.open("w") as file:
        system = Namespace(dup=lambda number: number, dup2=lambda *pair: moved.append(pair))
        system.fdopen = lambda number, mode: file if (number, mode) == (1, "w") else None
        monkeypatch.setattr(peer, "os", system)
        monkeypatch.setattr(peer, "gc", Namespace(collect=lambda: None, disable=lambda: moved.append("no collector")))
        peer.serve({"mine": engine})
    assert moved[:2] == [(2, 1), given["threads"]]
    return [json.loads(line) for line in replies.read_text().splitlines()] + moved[2:]


def test_a_job_and_its_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "in.npz", {"0": PIXELS})
    given = job(
        engine="mine", inputs=str(tmp_path / "in.npz"), names={"x": "float32"}, outputs=str(tmp_path / "out.npz")
    )

    def engine(job: dict[str, Any], inputs: dict[str, Any]) -> tuple[str, Any]:
        return "1.2", lambda: [inputs["x"] * 2, np.array(["a"], object)]

    first, *rest = serve(given, [{"seconds": 0, "least": 3}, {"seconds": 0, "least": 1}], engine, monkeypatch, tmp_path)
    assert (first["version"], first["outputs"]) == ("1.2", 2)
    assert 0 <= first["first_ms"] < 60_000
    assert [len(each["ms"]) for each in rest[:-1]] == [3, 1]
    assert rest[-1] == "no collector"
    with np.load(tmp_path / "out.npz") as found:
        assert (found["0"] == PIXELS * 2).all()
        assert found["1"].tolist() == ["a"]


@pytest.mark.parametrize(
    ("raised", "reply"),
    [
        (ImportError("No module named 'abc'", name="abc"), {"missing": "No module named 'abc': pip install abc"}),
        (peer.MissingError("no file"), {"missing": "no file"}),
        (ValueError("x" * 3000), {"error": "ValueError: " + "x" * 1988}),
    ],
)
def test_engines_that_fail(
    raised: Exception, reply: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "in.npz", {"0": PIXELS})
    given = job(engine="mine", inputs=str(tmp_path / "in.npz"), names={"x": "float32"}, outputs=str(tmp_path / "o.npz"))

    def engine(job: dict[str, Any], inputs: dict[str, Any]) -> Any:
        raise raised

    assert serve(given, [{"seconds": 0, "least": 1}], engine, monkeypatch, tmp_path) == [reply]


def test_the_table_of_peers() -> None:
    assert list(peer.PEERS) == ["onnxruntime", "openvino", "torch", "ncnn"]
