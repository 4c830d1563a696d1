"""A worker that measures one peer engine on one model. The file runs as a script in the engine's own Python.

In: a job as a line of JSON (engine, model, inputs, path of the outputs, threads, precision), then requests to call the
model for a number of seconds. Out: lines of JSON. `cli.rounds` starts it. It imports NumPy and the engine, not smelt.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

Arrays = dict[str, Any]  # by the names of the model's inputs, in order
Call = Callable[[], Sequence[Any]]  # returns the outputs, in the model's order
Job = dict[str, Any]
NUMPY = "biufcU"  # kinds of NumPy's own dtypes


class MissingError(Exception):
    """The engine, or a file that it needs for this model, is missing."""


def onnxruntime(job: Job, inputs: Arrays) -> tuple[str, Call]:
    import onnxruntime as peer

    wants(job, (".onnx",), ("f32", "int8"))
    options = peer.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job["threads"], 1
    session = peer.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    known = {port.name for port in session.get_inputs()}
    feed = {name: array for name, array in inputs.items() if name in known}
    return peer.__version__, lambda: session.run(None, feed)


def openvino(job: Job, inputs: Arrays) -> tuple[str, Call]:
    import openvino as peer  # type: ignore[import-not-found, unused-ignore]

    wants(job, (".onnx",), ("f32", "bf16", "int8"))
    core = peer.Core()
    model = core.read_model(job["model"])
    ports = {name: port for port in model.inputs for name in port.get_names()}
    feed = {name: array for name, array in inputs.items() if name in ports}
    model.reshape({name: peer.PartialShape(list(array.shape)) for name, array in feed.items()})
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if job["precision"] == "bf16" else "f32",
        "INFERENCE_NUM_THREADS": job["threads"],
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    outputs = compiled.outputs

    def call() -> Sequence[Any]:
        found = request.infer(feed, share_inputs=True, share_outputs=True)
        return [found[port] for port in outputs]

    return peer.__version__, call


def torch(job: Job, inputs: Arrays) -> tuple[str, Call]:
    """`MODEL.pt2` (torch.export) or `MODEL.pt` (TorchScript), beside the model."""
    import torch as peer  # type: ignore[import-not-found, unused-ignore]

    path = beside(job["model"], (".pt2", ".pt"))
    peer.set_num_threads(job["threads"])
    module = peer.export.load(path).module() if path.suffix == ".pt2" else peer.jit.load(str(path))
    arguments = [peer.from_numpy(array) for array in inputs.values()]
    narrow = job["precision"] == "bf16"

    def call() -> Sequence[Any]:
        with peer.inference_mode(), peer.autocast("cpu", dtype=peer.bfloat16, enabled=narrow):
            found = module(*arguments)
        each = found if isinstance(found, tuple | list) else (found,)
        return [value.float().numpy() if value.dtype == peer.bfloat16 else value.numpy() for value in each]

    return peer.__version__, call


def ncnn(job: Job, inputs: Arrays) -> tuple[str, Call]:
    """`MODEL.ncnn.param` and `MODEL.ncnn.bin`, beside the model. Images come one at a time: a batch of 1 is dropped."""
    import ncnn as peer  # type: ignore[import-not-found, unused-ignore]

    wants(job, (".onnx",), ("f32", "bf16"))
    path = beside(job["model"], (".ncnn.param",))
    net = peer.Net()
    net.opt.num_threads = job["threads"]
    narrow = job["precision"] == "bf16"
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = narrow
    if net.load_param(str(path)) or net.load_model(str(path.with_suffix(".bin"))):
        raise RuntimeError(f"ncnn cannot read {path}")
    images = [array[0] if array.ndim > 1 and array.shape[0] == 1 else array for array in inputs.values()]
    feed = list(zip(net.input_names(), images, strict=True))

    def call() -> Sequence[Any]:
        with net.create_extractor() as extractor:
            for name, array in feed:
                extractor.input(name, peer.Mat(array))
            return [np.array(extractor.extract(name)[1]) for name in net.output_names()]

    return peer.__version__, call


Open = Callable[[Job, Arrays], tuple[str, Call]]  # for the version
PEERS: dict[str, Open] = {peer.__name__: peer for peer in (onnxruntime, openvino, torch, ncnn)}


def wants(job: Job, suffixes: Sequence[str], precisions: Sequence[str]) -> None:
    """Refuse a file type or precision that an engine does not support."""
    if Path(job["model"]).suffix not in suffixes:
        raise MissingError(f"{job['engine']} reads {', '.join(suffixes)} files only")
    if job["precision"] not in precisions:
        raise MissingError(f"{job['engine']} has no {job['precision']} mode")


def beside(model: str, endings: Sequence[str]) -> Path:
    """The file with the model's name in an engine's own format."""
    stem = Path(model).with_suffix("")
    for ending in endings:
        path = stem.parent / f"{stem.name}{ending}"
        if path.is_file():
            return path
    raise MissingError(f"no {' or '.join(stem.name + ending for ending in endings)} beside the model")


def serve(engines: dict[str, Open]) -> None:
    """Do one job: load the model, call it once, then measure on request. The engines' own output goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    _alone(job["threads"])
    try:
        version, call = engines[job["engine"]](job, _inputs(job))
        start = time.perf_counter()
        outputs = [np.array(output) for output in call()]
        first = 1e3 * (time.perf_counter() - start)
        named: dict[str, Any] = {str(i): _plain(output) for i, output in enumerate(outputs)}
        np.savez(job["outputs"], **named)
    except (ImportError, MissingError) as error:
        package = getattr(error, "name", None)  # of a package that is not installed
        _reply(replies, {"missing": f"{error}: pip install {package}" if package else str(error)})
        return
    except Exception as error:  # any error of an engine is reported
        reply: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        if hasattr(error, "record"):  # smelt's own
            reply["record"] = error.record()
        _reply(replies, reply)
        return
    _reply(replies, {"version": version, "first_ms": first, "outputs": len(outputs)})
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        request = json.loads(line)
        _reply(replies, {"ms": time_calls(call, request["seconds"], request["least"])})


def time_calls(call: Call, seconds: float, least: int) -> list[float]:
    """Milliseconds of each call during `seconds`, at least `least` calls, after a warm-up of a tenth of the time."""
    clock = time.perf_counter
    start = clock()
    call()
    while clock() - start < seconds / 10:
        call()
    times: list[float] = []
    end = clock() + 0.9 * seconds
    while len(times) < least or clock() < end:
        begin = clock()
        call()
        times.append(1e3 * (clock() - begin))
    return times


def _inputs(job: Job) -> Arrays:
    with np.load(job["inputs"]) as file:
        return {name: _restore_type(file[str(i)], kind) for i, (name, kind) in enumerate(job["names"].items())}


def _restore_type(array: Any, kind: str) -> Any:
    """An array as it was before it was saved: strings as objects, narrow floats from their bits."""
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.name == kind:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, kind))


def _plain(array: Any) -> Any:
    """An output as an array that NumPy can save without pickle."""
    if array.dtype.kind == "O":
        return array.astype(str)
    return array if array.dtype.kind in NUMPY else array.astype(np.float32)


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _alone(threads: int) -> None:
    """Limit the process to as many cores as threads, and end it with its parent, even while it is stopped."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[: max(1, min(threads, len(allowed)))])
    if sys.platform == "linux":
        import ctypes
        import signal

        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    serve(PEERS)
