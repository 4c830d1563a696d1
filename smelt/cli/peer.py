"""A worker that measures one engine on one model; this file runs by itself, in the engine's own Python.

A job comes in as a line of JSON (engine, model, inputs, where to write the outputs, threads, precision), then requests
to call the model for so many seconds; out go lines of JSON. `cli.rounds` starts it. It needs NumPy and the engine,
nothing of ours.
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

Arrays = dict[str, Any]  # by the names of the model's inputs, in their order
Call = Callable[[], Sequence[Any]]  # gives the outputs, in the model's order
Job = dict[str, Any]
NUMPY = "biufcU"  # kinds of element types that NumPy has itself


class MissingError(Exception):
    """The engine, or what it needs for this model, is not here."""


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


Open = Callable[[Job, Arrays], tuple[str, Call]]  # gives the version too
PEERS: dict[str, Open] = {peer.__name__: peer for peer in (onnxruntime, openvino, torch, ncnn)}


def wants(job: Job, suffixes: Sequence[str], precisions: Sequence[str]) -> None:
    """Refuses a job that an engine has no way to do."""
    if Path(job["model"]).suffix not in suffixes:
        raise MissingError(f"{job['engine']} reads {', '.join(suffixes)} files only")
    if job["precision"] not in precisions:
        raise MissingError(f"{job['engine']} has no {job['precision']} mode here")


def beside(model: str, endings: Sequence[str]) -> Path:
    """The file in an engine's own format that has the model's name."""
    stem = Path(model).with_suffix("")
    for ending in endings:
        path = stem.parent / f"{stem.name}{ending}"
        if path.is_file():
            return path
    raise MissingError(f"no {' or '.join(stem.name + ending for ending in endings)} beside the model")


def serve(engines: dict[str, Open]) -> None:
    """Do one job: open the model, call it once, then measure whenever asked. What engines print goes to stderr."""
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
        _reply(replies, {"missing": str(error)})
        return
    except Exception as error:  # whatever an engine does not like about a model is its answer
        _reply(replies, {"error": f"{type(error).__name__}: {error}"[:2000]})
        return
    _reply(replies, {"version": version, "first_ms": first, "outputs": len(outputs)})
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        request = json.loads(line)
        _reply(replies, {"ms": timed(call, request["seconds"], request["least"])})


def timed(call: Call, seconds: float, least: int) -> list[float]:
    """Milliseconds of each call, for about so many seconds, at least so many; those of a first tenth do not count."""
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
        return {name: _typed(file[str(i)], kind) for i, (name, kind) in enumerate(job["names"].items())}


def _typed(array: Any, kind: str) -> Any:
    """An array as it was before it was written: strings as objects, narrow floats from their bits."""
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.name == kind:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, kind))


def _plain(array: Any) -> Any:
    """An output that NumPy can write by itself and that can be compared."""
    if array.dtype.kind == "O":
        return array.astype(str)
    return array if array.dtype.kind in NUMPY else array.astype(np.float32)


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _alone(threads: int) -> None:
    """As many processors as threads, for engines that look; and an end when the parent ends, even while stopped."""
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
