"""`python -m bench.cuda_networks --models DIR --out FILE.json`: dense networks on a GPU beside XLA and torch.compile.

For each of ResNet-50, BERT-base and ViT-B/16 and each batch, in one interleaved run with inputs on the device:

    f32, bf16, …   smelt, engine="native", in each precision of --precisions; "bf16+overlap": with dependent launches
    xla            the same ONNX graph as a jitted JAX function, weights and activations in bf16, NHWC
    torch          torchvision's and transformers' own network in bf16, torch.compile(mode="reduce-overhead")

A figure is the median over rounds of the time of a call among calls in a row. Errors are relative to the output,
against our f32 on the processor. Every contender is a process of its own; they take turns on the GPU.
The files are those of the model zoo at batch 1; the batch is written into the graph here.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = {"resnet50": "resnet50_b1", "bert": "bertbase128_b1", "vit": "vitb16_b1"}
BATCHES = (1, 32)
PEERS = ("xla", "torch")
CALLS, ROUNDS = 20, 9


# ---- the networks ----


def with_batch(path: Path, batch: int, out: Path) -> Path:
    """The file with another batch: sizes of inputs, targets of reshapes, and rows that are concatenated to each."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(path)
    graph = model.graph
    held = {each.name: each for each in graph.initializer}
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del graph.value_info[:]
    for name in {node.input[1] for node in graph.node if node.op_type == "Reshape"}:
        sizes = numpy_helper.to_array(held[name]).copy()
        if sizes.size and sizes[0] == 1:
            sizes[0] = batch
            held[name].CopyFrom(numpy_helper.from_array(sizes, name))
    nodes = []
    for node in graph.node:
        if node.op_type == "Concat":
            for i, name in enumerate(node.input):
                if name in held and held[name].dims[0] == 1:
                    target = np.array([batch, *held[name].dims[1:]], np.int64)
                    graph.initializer.append(numpy_helper.from_array(target, f"{name}_sizes"))
                    nodes.append(helper.make_node("Expand", [name, f"{name}_sizes"], [f"{name}_batch"]))
                    node.input[i] = f"{name}_batch"
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, out)
    return out


def make_inputs(path: Path, seed: int) -> dict[str, Any]:
    """Random pixels; tokens, with all of them attended to."""
    import onnx

    rng, found = np.random.default_rng(seed), {}
    for value in onnx.load(path).graph.input:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            found[value.name] = rng.standard_normal(sizes, np.float32)
        else:
            most = 30000 if value.name == "input_ids" else 2
            found[value.name] = rng.integers(0, most, sizes) if "mask" not in value.name else np.ones(sizes, np.int64)
    return found


# ---- contenders: each gives a call on the device, what waits for a result, and its numbers ----

Contender = tuple[Callable[[], Any], Callable[[Any], None], Callable[[Any], Any]]


def make_ours(path: Path, inputs: dict[str, Any], precision: str) -> tuple[Contender, Callable[[], dict[str, Any]]]:
    from bench.cuda_check import Timed
    from smelt.buffer import HostBuffer
    from smelt.device import host_plan
    from smelt.device.registry import find_device
    from smelt.engine.native import native_engine
    from smelt.model import read
    from smelt.passes.quantise import with_precision

    program, weights = read(path)[:2]
    engine = native_engine("cuda")
    precision, _, overlap = precision.partition("+")
    executable = engine.compile(with_precision(program, precision)).prepare(weights)
    arrays = [engine.put(HostBuffer.of(each)) for each in inputs.values()]  # type: ignore[attr-defined]
    host_plan.OVERLAP = overlap == "overlap"  # until the graph is recorded
    _warm((lambda: executable(*arrays), lambda result: result[0].wait(), lambda result: result))
    host_plan.OVERLAP = True

    def profile() -> dict[str, Any]:
        with Timed(find_device("cuda").driver) as timed:  # type: ignore[attr-defined]
            last = executable(*arrays)[0].wait()  # it keeps the memory that the kernels write
        kernels = timed.kernels(1000)
        del last
        total, count = sum(each["seconds"] for each in kernels), sum(each["launches"] for each in kernels)
        return {"kernels": total, "launches": count, "longest": kernels[:25]}

    def wait(result: Any) -> None:
        result[0].wait()

    return (lambda: executable(*arrays), wait, lambda result: result[0].numpy()), profile


def make_xla(path: Path, inputs: dict[str, Any]) -> Contender:
    import jax
    import jax.numpy as jnp
    import onnx

    model = onnx.load(path)
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    floats = {name: jnp.asarray(each, jnp.bfloat16) for name, each in weights.items() if each.dtype == np.float32}
    fixed = {name: each for name, each in weights.items() if name not in floats}
    kernels = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    floats = {name: each.transpose(2, 3, 1, 0) if name in kernels else each for name, each in floats.items()}

    def network(params: dict[str, Any], given: dict[str, Any]) -> Any:
        return interpret(model.graph, {**fixed, **params, **given})

    arrays = {name: jnp.asarray(each) for name, each in inputs.items()}
    run = jax.jit(network)
    return (
        lambda: run(floats, arrays),
        lambda result: result.block_until_ready(),
        lambda result: np.asarray(result, np.float32),
    )


def interpret(graph: Any, values: dict[str, Any]) -> Any:
    """An ONNX graph in JAX. Feature maps are NHWC from the first convolution on; sums and norms are f32 inside."""
    import jax
    import jax.numpy as jnp
    from onnx import helper

    last: set[str] = set()  # values in NHWC
    wide = jnp.float32

    def narrow(x: Any) -> Any:
        return x.astype(jnp.bfloat16)

    for node in graph.node:
        attrs = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        given = [values[name] for name in node.input]
        x = given[0]
        is_last = node.input[0] in last
        match node.op_type:
            case "Conv":
                x = x if is_last else jnp.transpose(narrow(x), (0, 2, 3, 1))
                top, left, bottom, right = attrs["pads"]
                dims = ("NHWC", "HWIO", "NHWC")
                found = jax.lax.conv_general_dilated(
                    x, given[1], attrs["strides"], ((top, bottom), (left, right)), dimension_numbers=dims
                )
                found = found + given[2] if len(given) > 2 else found
            case "MaxPool":
                top, left, bottom, right = attrs["pads"]
                pads = ((0, 0), (top, bottom), (left, right), (0, 0))
                window, steps = (1, *attrs["kernel_shape"], 1), (1, *attrs["strides"], 1)
                found = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, steps, pads)
            case "Relu":
                found = jnp.maximum(x, 0)
            case "ReduceMean":
                axes = tuple(given[1].tolist()) if len(given) > 1 else tuple(attrs["axes"])
                axes = tuple({2: 1, 3: 2, -1: 2, -2: 1}[axis] for axis in axes) if is_last else axes
                found = narrow(jnp.mean(x.astype(wide), axes, keepdims=bool(attrs.get("keepdims", 1))))
            case "Reshape":
                x = jnp.transpose(x, (0, 3, 1, 2)) if is_last else x
                found = x.reshape(given[1].tolist())
            case "Gemm":
                found = x @ (given[1].T if attrs.get("transB") else given[1]) + given[2]
            case "MatMul":
                found = x @ given[1]
            case "Add":
                found = x + given[1]
            case "Sub":
                found = x - given[1]
            case "Mul":
                found = x * given[1]
            case "Div":
                found = x / given[1]
            case "Erf":
                found = jax.lax.erf(x)
            case "Softmax":
                found = narrow(jax.nn.softmax(x.astype(wide), axis=attrs["axis"]))
            case "LayerNormalization":
                centred = x.astype(wide) - jnp.mean(x.astype(wide), -1, keepdims=True)
                scale = jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + attrs["epsilon"])
                found = narrow(centred * scale * given[1].astype(wide) + given[2].astype(wide))
            case "Transpose":
                found = jnp.transpose(x, attrs["perm"])
            case "Gather":
                found = jnp.take(x, given[1], axis=attrs["axis"])
            case "Slice":
                begin, end, axes = (each.tolist() for each in given[1:4])
                cut = [slice(None)] * x.ndim
                for first, after, axis in zip(begin, end, axes, strict=True):
                    cut[axis] = slice(first, after)
                found = x[tuple(cut)]
            case "Unsqueeze":
                found = jnp.expand_dims(x, given[1].tolist())
            case "Cast":
                found = narrow(x)
            case "Concat":
                found = jnp.concatenate(given, attrs["axis"])
            case "Expand":
                found = jnp.broadcast_to(x, given[1].tolist())
            case other:
                raise ValueError(f"the bench has no {other}")
        values[node.output[0]] = found
        spatial = getattr(found, "ndim", 0) == 4 and (node.op_type == "Conv" or is_last)
        last |= {node.output[0]} if spatial else set()
    return values[graph.output[0].name].astype(wide)


def make_torch(name: str, inputs: dict[str, Any]) -> Contender:
    import torch

    given = [torch.from_numpy(each).cuda() for each in inputs.values()]
    if name == "bert":
        from transformers import BertConfig, BertModel

        network = BertModel(BertConfig(), add_pooling_layer=False)
        ids, mask, kinds = given

        def call(model: Any) -> Any:
            return model(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
    else:
        import torchvision

        network = {"resnet50": torchvision.models.resnet50, "vit": torchvision.models.vit_b_16}[name](weights=None)
        (pixels,) = given
        pixels = pixels.to(torch.bfloat16)
        if name == "resnet50":
            network, pixels = (
                network.to(memory_format=torch.channels_last),
                pixels.contiguous(memory_format=torch.channels_last),
            )

        def call(model: Any) -> Any:
            return model(pixels)

    network = network.to(torch.bfloat16).cuda().eval()
    compiled = torch.compile(network, mode="reduce-overhead")

    def run() -> Any:
        with torch.inference_mode():
            return call(compiled)

    return run, lambda result: torch.cuda.synchronize(), lambda result: result.float().cpu().numpy()


# ---- the run ----


@contextmanager
def alone(folder: Path, lock: str) -> Iterator[None]:
    """One process at a time."""
    with (folder / f"{lock}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(options: argparse.Namespace, name: str, batch: int, what: str) -> dict[str, Any]:
    """One contender: compile, wait until all have, then take turns."""
    folder = options.work
    path = folder / f"{name}_{batch}.onnx"
    inputs, found = make_inputs(path, options.seed), dict[str, Any]()
    start, profile = time.perf_counter(), None
    if what == "reference":
        np.save(folder / f"{name}_{batch}_{what}.npy", _reference(path, inputs))
        return found
    if what == "torch":
        made = make_torch(name, inputs)
        _warm(made)
    elif what == "xla":
        made = make_xla(path, inputs)
        with alone(folder, "xla"):  # it times its own candidates
            _warm(made)
    else:
        made, profile = make_ours(path, inputs, what)
        _warm(made)
    found["compile"] = time.perf_counter() - start
    (folder / f"ready_{name}_{batch}_{what}").touch()
    while len([*folder.glob("ready_*")]) < options.processes and time.time() < options.deadline:
        time.sleep(0.1)
    times = []
    for _ in range(ROUNDS):
        with alone(folder, "gpu"):
            times.append(_per_call(made))
        time.sleep(0.01)  # another one's turn
    found |= {"call": statistics.median(times), "least": min(times)}
    if profile is not None:
        with alone(folder, "gpu"):
            found |= profile()
    np.save(folder / f"{name}_{batch}_{what}.npy", made[2](made[0]()))
    return found


def _warm(contender: Contender) -> None:
    call, wait, _ = contender
    for _ in range(5):
        wait(call())


def _per_call(contender: Contender) -> float:
    call, wait, _ = contender
    wait(call())
    start = time.perf_counter()
    for _ in range(CALLS):
        result = call()
    wait(result)
    return (time.perf_counter() - start) / CALLS


def _reference(path: Path, inputs: dict[str, Any]) -> Any:
    import smelt

    with smelt.load(path, device="cpu", engine="native") as model:
        return next(iter(model(**inputs).values()))


def _off(got: Any, want: Any) -> dict[str, float]:
    """The root mean square of the difference relative to that of the output, and the largest to the largest."""
    wide, right = (np.asarray(each).astype(np.float64) for each in (got, want))
    there = wide - right
    return {
        "rms": float(np.sqrt((there**2).mean() / (right**2).mean())),
        "max": float(np.abs(there).max() / np.abs(right).max()),
    }


def _log(*parts: object) -> None:
    print(*(f"{each:.1f}" if isinstance(each, float) else each for each in parts), file=sys.stderr, flush=True)


def table(found: dict[str, Any]) -> str:
    lines = []
    for what, each in found.items():
        rows = each.get("rows", {})
        parts = [
            f"{name} {1e3 * row['call']:.3f}"
            + (f" (k {1e3 * row['kernels']:.3f}, {row['launches']})" if "kernels" in row else "")
            + (f" off {row['off']['rms']:.1e}" if "off" in row else "")
            if "call" in row
            else f"{name} {row.get('error', '')[:160]}"
            for name, row in rows.items()
        ]
        lines.append(f"{what:12} ms: " + " | ".join(parts) + (each.get("error", "") and f" {each['error'][-300:]}"))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="the folder with the ONNX files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--errors", action="store_true", help="compare with f32 on the processor")
    parser.add_argument("--seconds", type=float, default=110, help="processes that compile longer are not waited for")
    parser.add_argument("--work", type=Path, default=Path("build/cuda_networks"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help="of the inputs; 0: the time")
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.one:
        name, batch, what = options.one.split(":")
        print(json.dumps(measure(options, name, int(batch), what)))
        return 0
    found = run_all(options, [*(arguments or sys.argv[1:])])
    options.out.write_text(json.dumps(found, indent=1))
    print(table(found))
    return 0


def run_all(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """All contenders in processes: a lost device ends one of them."""
    for old in (*options.work.glob("ready_*"), *options.work.glob("*.npy")):
        old.unlink()
    whats = [each for each in f"{options.precisions},{options.peers}".split(",") if each]
    configurations = [(name, int(n)) for n in options.batches.split(",") for name in options.networks.split(",")]
    for name, batch in configurations:
        with_batch(options.models / f"{NETWORKS[name]}.onnx", batch, options.work / f"{name}_{batch}.onnx")
    seed, begin = options.seed or int(time.time()), time.time()
    count = len(configurations) * len(whats)
    more = ["--seed", str(seed), "--processes", str(count), "--deadline", str(begin + 0.7 * options.seconds)]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    running: dict[str, Any] = {}
    for name, batch in configurations:
        for what in (*whats, *(["reference"] if options.errors else [])):
            each = f"{name}:{batch}:{what}"
            command = [sys.executable, "-m", "bench.cuda_networks", *arguments, *more, "--one", each]
            output = [(options.work / f"{each}.{kind}").open("w") for kind in ("json", "log")]
            running[each] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output[0], stderr=output[1])
    found: dict[str, Any] = {f"{name}:{batch}": {"seed": seed, "rows": {}} for name, batch in configurations}
    for each, process in running.items():
        try:
            process.wait(max(1.0, begin + options.seconds - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
        text, log = ((options.work / f"{each}.{kind}").read_text().strip() for kind in ("json", "log"))
        where, _, what = each.rpartition(":")
        if what != "reference":
            found[where]["rows"][what] = json.loads(text.splitlines()[-1]) if text else {"error": log[-900:]}
    for (name, batch), what in itertools.product(configurations, whats):
        got, want = (options.work / f"{name}_{batch}_{each}.npy" for each in (what, "reference"))
        if what != "torch" and got.exists() and want.exists():  # torch has weights of its own
            found[f"{name}:{batch}"]["rows"][what]["off"] = _off(np.load(got), np.load(want))
    return found


if __name__ == "__main__":
    sys.exit(main())
