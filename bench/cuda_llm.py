"""`python -m bench.cuda_llm --out FILE.json`: decoding with the sizes of Llama 3.1 8B in bf16 on our own CUDA kernels.

    step    `examples/llama_gpu.py` at batch 1, 8, 32: tokens, caches and logits stay on the device
    twin    the same and the model by hand in JAX, in interleaved rounds; the ratio is to JAX's faster layout
    overlap step, where no kernel begins before the kernel in front of it ends
    wall    a minute of steps, from a cache that is empty until it is full, again and again: kernels' share of the time
    engine  `smelt.llm`: the step of a decoder over pages, each after the token of the last one is on the host, and as
            greedy requests are served (`served`), and requests with a temperature and top-p (`sampled`)
    q4_0    engine with matrices in a block format; q4_0_products: each product alone, in bytes of weights per second
    fp8     engine with precision="fp8"
    moe     engine with the sizes of Qwen3 30B-A3B: 128 experts, of which a token uses 8; moe_q4_0: in blocks

Weights are random. Each case runs in a process of its own with a time limit, few layers first, and is written to FILE
as soon as it is done: seconds of a step, tokens per second, the part of the memory's bandwidth, the longest kernels.
`--device emulated --small` tries the script without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import cuda_twin
from bench.cuda_blocks import random_blocks, run_products
from examples.llama_gpu import SMALL, Llama, Sizes, _random, compiled_step, steps
from smelt.device import host_plan
from smelt.ir.blocks import BLOCKS, Block

ROOT = Path(__file__).resolve().parents[1]
WARM, STEPS = 24, 32  # steps until every graph is recorded, steps that are timed
SERVED = 256  # tokens of a request
MORE = 64  # steps besides, at most: the first, those of graphs alone and of kernels alone
WALL = 60  # seconds of steps whose kernels' share is measured
LARGE = Sizes(layers=80, d=8192, f=28672, heads=64)
MIXED = Sizes(layers=48, d=2048, f=768, heads=16, kv_heads=4, v=151_936)
SEED_SHAPES: dict[tuple[int, ...], Any] = {}


def weights_of(shapes: dict[str, tuple[int, ...]], row: Block | None = None) -> Any:
    """One random array for each shape: layers share it on the host, and each has its own copy on the device.
    `row`: arrays of more than two axes are blocks of this format."""
    from smelt.buffer import HostBuffer
    from smelt.weights import Weights

    for seed, shape in enumerate(sorted({*shapes.values()})):
        if shape in SEED_SHAPES:
            continue
        is_blocks = row is not None and len(shape) > 2
        SEED_SHAPES[shape] = random_blocks(row, shape, seed) if row and is_blocks else _random(shape, seed)
    return Weights.of({name: HostBuffer.of(SEED_SHAPES[shape]) for name, shape in shapes.items()})


def measure(step: Any, wait: Any, count: int, driver: Any, batch: int, moved: int) -> dict[str, Any]:
    """Seconds of a step in a row of steps, and of its kernels."""
    from bench.cuda_check import Timed

    first = time.perf_counter()
    step()
    wait()
    first = time.perf_counter() - first
    for _ in range(WARM):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(count):
        step()
    begun = (time.perf_counter() - start) / count
    wait()
    seconds = (time.perf_counter() - start) / count
    graphs = graph_seconds(step, wait, driver)
    with Timed(driver) as timed:
        step()
        wait()
    kernels = timed.kernels(1000)
    return {
        "first_step": first,
        "seconds": seconds,
        "begun": begun,
        "tokens_per_second": batch / seconds,
        "bytes_per_second": moved / seconds,
        "graphs": graphs,
        "kernels": sum(each["seconds"] for each in kernels),
        "launches": sum(each["launches"] for each in kernels),
        "longest": kernels[:20],
    }


def graph_seconds(step: Any, wait: Any, driver: Any) -> dict[str, Any]:
    """Seconds of each graph of a step on the device, from its start to its end: without the host's share."""
    kind, marks = type(driver.queues.first), []
    plain = kind.replay

    def replay(queue: Any, graph: Any) -> None:
        first = queue.event()
        plain(queue, graph)
        marks.append((first, queue.event()))

    kind.replay = replay
    try:
        for _ in range(4):
            step()
    finally:
        kind.replay = plain
    wait()
    seconds = [driver.seconds(*pair) for pair in marks]
    return {"replays": len(seconds) / 4, "seconds": sum(seconds) / 4}


def bind_step(sizes: Sizes, batch: int) -> Callable[[int], Iterator[Any]]:
    """The example's model, whose state stays on the device. A function gives its steps from a position on."""
    import smelt

    where = smelt.platform("cuda", "native")
    weights = weights_of(weight_shapes(sizes))
    model = smelt.instantiate(Llama, weights, sizes=sizes)
    bound = compiled_step(model, sizes, batch, where).prepare(weights)
    return lambda first: steps(bound, where, sizes, np.arange(batch), first)


def start_steps(sizes: Sizes, batch: int, first: int) -> Iterator[Any]:
    return bind_step(sizes, batch)(first)


def weight_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    from smelt.tensor.model import parameters_of

    return {name: tensor.shape.numbers() for name, tensor in parameters_of(Llama, sizes=sizes).items()}


def run_step(sizes: Sizes, batch: int, first: int) -> dict[str, Any]:
    from smelt.device.registry import find_device

    start = time.perf_counter()
    stream = start_steps(sizes, batch, first)
    last: list[Any] = [next(stream)]
    found = {"tokens": last[0].tokens.numpy()[:4, 0].tolist()}
    for _ in range(3):
        last[0] = next(stream)
    digest = hashlib.sha256(last[0].logits.numpy().tobytes()).hexdigest()[:12]  # all kinds must have the same
    found["logits"] = digest
    found["begin"] = time.perf_counter() - start

    def step() -> None:
        last[0] = next(stream)

    moved = sum(2 * int(np.prod(shape)) for name, shape in weight_shapes(sizes).items() if "embed_tokens" not in name)
    driver = find_device("cuda").driver  # type: ignore[attr-defined]
    return found | measure(step, lambda: last[0].tokens.wait(), STEPS, driver, batch, moved)


@dataclass
class EngineStep:
    """The step of a decoder of `smelt.llm` over pages. `state`: pages, position and tokens of the next step."""

    made: Any
    config: Any
    length: int
    pages: list[list[int]]
    moved: int  # bytes of weights that a step reads
    state: dict[str, Any]

    def run(self) -> None:
        from smelt.llm.batch import Batch

        state = self.state
        pairs = zip(state["tokens"], self.pages, strict=True)
        rows, state["pools"] = self.made.run(
            Batch.of([([int(token)], state["at"], each, [0]) for token, each in pairs]), state["pools"]
        )
        state["tokens"], state["at"] = [rows.best(i) or 0 for i in range(len(self.pages))], state["at"] + 1


def bind_engine(sizes: Sizes, batch: int, first: int, format: str, mixed: bool = False) -> EngineStep:
    """One step for all sequences, 256 positions long or `first`. `format`: of the matrices, which "fp8" rounds.
    `mixed`: an MLP is a mixture of experts."""
    from smelt.dtype import bf16, dtype
    from smelt.llm.checkpoint import Checkpoint
    from smelt.llm.config import EXPERTS, PAGE, Config, Experts, Layer, Rope
    from smelt.llm.decoder import Decoder
    from smelt.llm.step import make_step
    from smelt.tensor.model import parameters_of

    experts = Experts(128, 8, sizes.f, normalise=True) if mixed else None
    half = sizes.head_size // 2
    rope = Rope(tuple(float(500_000.0 ** (-i / half)) for i in range(half)))
    config = Config(
        "llama",
        (Layer(rope, experts=experts),) * sizes.layers,
        *(sizes.d, sizes.f, sizes.heads, sizes.kv_heads, sizes.head_size, sizes.v, 8192),
        *(1e-5, "silu", sizes.head_size**-0.5),
        cache=dtype("bf16"),
    )
    plain = {name: each.shape.numbers() for name, each in parameters_of(Decoder, config=config, formats={}).items()}
    formats: dict[str, Any] = {
        name: BLOCKS[format] if format in BLOCKS and len(shape) > 1 and "router" not in name else bf16
        for name, shape in plain.items()
    }
    made_of = parameters_of(Decoder, config=config, formats=formats)
    shapes = {name: each.shape.numbers() for name, each in made_of.items()}
    weights = weights_of(shapes, BLOCKS.get(format))
    precision = "fp8" if format == "fp8" else "q8"  # q8: the default
    checkpoint = Checkpoint(Path("random"), "folder", config, weights, formats).for_gpu(precision)
    made = make_step(checkpoint, "cuda", "native", precision)
    length = first or 4 * PAGE
    each = -(-(length + WARM + STEPS + MORE) // PAGE)  # pages of a sequence
    arrays = [
        tuple(made.put(np.zeros((each * batch, config.kv_heads, *tail), bf16.numpy)) for tail in tails)
        for tails in [((config.head_size, PAGE), (PAGE, config.head_size))] * sizes.layers
    ]

    def bytes_read(name: str) -> int:
        whole = weights[name].numpy().nbytes
        if experts is not None and name.endswith(EXPERTS):
            return whole * min(experts.count, batch * experts.used) // experts.count  # at most: tokens may share one
        return whole // 2 if format == "fp8" and name.startswith("layers.") else whole

    return EngineStep(
        made,
        config,
        length,
        [list(range(each * i, each * (i + 1))) for i in range(batch)],
        sum(bytes_read(name) for name in shapes if "embed" not in name),
        {"pools": arrays, "at": length, "tokens": np.arange(batch)},
    )


def run_engine(sizes: Sizes, batch: int, first: int, format: str = "bf16", mixed: bool = False) -> dict[str, Any]:
    """The decoder of `smelt.llm`: steps, a prompt, and requests as they are served."""
    from smelt.device.registry import find_device

    start = time.perf_counter()
    engine = bind_engine(sizes, batch, first, format, mixed)
    found: dict[str, Any] = {"load": time.perf_counter() - start}
    driver = find_device("cuda").driver  # type: ignore[attr-defined]
    found |= measure(engine.run, lambda: None, STEPS, driver, batch, engine.moved)
    found["tokens"] = [int(each) for each in engine.state["tokens"][:4]]  # all kinds must have the same
    found["prefill"] = read_prompt(engine.made, engine.state["pools"], engine.pages[0], driver)
    engine.state.clear()
    served = partial(serve_requests, engine.made, engine.config, batch, engine.length)
    return found | {"served": served(), "sampled": served(temperature=0.8, top_p=0.95)}


def read_prompt(step: Any, pools: Any, pages: list[int], driver: Any) -> dict[str, Any]:
    """Seconds of a step with as many tokens of one prompt as a step may have, and its longest kernels."""
    from bench.cuda_check import Timed
    from smelt.llm.batch import Batch
    from smelt.llm.config import PAGE

    count, seconds = min(step.most(len(pages), 1), len(pages) * PAGE), []
    batch = Batch.of([([7 * i % 251 for i in range(count)], 0, pages, [count - 1])])

    def run() -> None:
        nonlocal pools
        rows, pools = step.run(batch, pools)
        rows.best(0)

    for _ in range(4):  # the third call replays a graph
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    with Timed(driver, 4) as timed:
        run()
    kernels = timed.kernels(1000)
    total = sum(each["seconds"] for each in kernels)
    return {
        "tokens": count,
        "seconds": seconds,
        "kernels": total,
        "launches": sum(each["launches"] for each in kernels),
        "longest": kernels[:14],
    }


def serve_requests(step: Any, config: Any, batch: int, length: int, **options: Any) -> dict[str, Any]:
    """Requests of this length through the engine, until each has its tokens, greedy ones or those of other sampling
    options: seconds of a step in their second half, and the longest one; graphs that were recorded meanwhile."""
    from smelt.device.gpu_program import Recorded
    from smelt.llm.cache import Pool
    from smelt.llm.config import PAGE
    from smelt.llm.engine import Engine
    from smelt.llm.request import Request
    from smelt.llm.sample import Sampler, Sampling

    pages = batch * -(-(length + SERVED + 1) // PAGE)
    engine = Engine(step, Pool(config, step.put, pages, grows=False), max(batch, 1))
    times: list[list[float]] = [[] for _ in range(batch)]
    done, plain, recorded = threading.Semaphore(0), Recorded.__init__, list[float]()

    def record(*given: Any) -> None:
        start = time.perf_counter()
        plain(*given)
        recorded.append(time.perf_counter() - start)

    def emit(i: int, piece: Any) -> None:
        times[i].append(time.perf_counter())
        if piece is None:
            done.release()

    requests = []
    for i in range(batch):
        prompt = [(7 * i + 13 * j) % config.v for j in range(length)]
        sampler = Sampler(Sampling(**options, seed=i), prompt, config.v)
        requests.append(Request(prompt, SERVED, sampler, emit=partial(emit, i)))
    Recorded.__init__ = record  # type: ignore[method-assign, assignment]
    try:
        engine.submit(*requests)
        for _ in requests:
            done.acquire()
    finally:
        Recorded.__init__ = plain  # type: ignore[method-assign]
        engine.close()
    errors = [each.error for each in requests if each.error is not None]
    if errors:
        raise errors[0]
    steps = np.diff(np.array(times)[:, :-1], axis=1)[:, SERVED // 2 :]
    return {
        "seconds": float(steps.mean()),
        "median": float(np.median(steps)),
        "longest": float(steps.max()),
        "graphs": len(recorded),
        "recording": sum(recorded),
        "tokens": requests[0].tokens[length : length + 4],
    }


def run_overlap(sizes: Sizes, batch: int, first: int) -> dict[str, Any]:
    host_plan.OVERLAP = False
    return run_step(sizes, batch, first)


def run_wall(sizes: Sizes, batch: int, first: int) -> dict[str, Any]:
    """The kernels of a step are timed alone where a quarter of the cache is filled, half of it and three quarters."""
    from bench.cuda_check import Timed
    from smelt.device.registry import find_device

    driver = find_device("cuda").driver  # type: ignore[attr-defined]
    start_at, kernels = bind_step(sizes, batch), []
    for quarter in (1, 2, 3):
        stream = start_at(quarter * sizes.places // 4)
        for _ in range(3):
            next(stream).tokens.wait()
        with Timed(driver) as timed:
            next(stream).tokens.wait()
        kernels.append(sum(each["seconds"] for each in timed.kernels(1000)))
    count, wall = 0, 0.0
    while wall < WALL:
        stream = start_at(first)
        next(stream).tokens.wait()  # what begins with an empty cache is not counted
        start = time.perf_counter()
        for made in stream:
            last, count = made, count + 1
        last.tokens.wait()
        wall += time.perf_counter() - start
    share = sum(kernels) / len(kernels) * count / wall
    return {"seconds": wall / count, "steps": count, "kernels": kernels, "share": share}


def run_twins(sizes: Sizes, batches: Sequence[int], first: int) -> dict[str, Any]:
    """`step` beside the twin in JAX, at several batch sizes: the twin's weights are made once."""
    cuda_twin.start_jax()
    twins = cuda_twin.make_twins(sizes)
    found = {}
    for batch in batches:
        found[str(batch)] = run_twin(twins, sizes, batch, first)
        print(f"batch {batch}: {json.dumps(found[str(batch)])}", file=sys.stderr, flush=True)
    return found


def run_twin(twins: dict[str, Any], sizes: Sizes, batch: int, first: int) -> dict[str, Any]:
    stream, last = start_steps(sizes, batch, first), list[Any]()

    def ours(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            last[:] = [next(stream)]
        last[0].tokens.wait()
        return (time.perf_counter() - start) / count

    ours(WARM)
    return cuda_twin.compare(ours, twins, batch, first)


def run_mixture(sizes: Sizes, batch: int, first: int, format: str = "bf16") -> dict[str, Any]:
    mixed = sizes if sizes.d == SMALL.d else replace(MIXED, layers=sizes.layers)
    return run_engine(mixed, batch, first, format, mixed=True)


RUN: dict[str, Callable[[Sizes, int, int], dict[str, Any]]] = {
    "step": run_step,
    "overlap": run_overlap,
    "wall": run_wall,
    "engine": run_engine,
    "fp8": partial(run_engine, format="fp8"),
    "moe": run_mixture,
    "moe_q4_0": partial(run_mixture, format="q4_0"),
    **{format: partial(run_engine, format=format) for format in BLOCKS},
    **{f"{format}_products": partial(run_products, format=format) for format in BLOCKS},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", help="cuda, or emulated")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--large", action="store_true", help="the sizes of Llama 3.1 70B")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--layers", default="2,32")
    parser.add_argument("--start", type=int, default=0, help="positions of the cache that are filled already")
    parser.add_argument("--kinds", default="step,overlap,engine")
    parser.add_argument("--seconds", type=float, default=110, help="the most that one case may take")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = SMALL if options.small else LARGE if options.large else Sizes()
    if options.device == "emulated":
        from tests.cuda.emulated import register

        register()
    if options.case:
        kind, layers, batch = options.case.split(":")
        sizes, batches = replace(sizes, layers=int(layers)), [int(each) for each in batch.split(",")]
        twin = kind == "twin"
        done = run_twins(sizes, batches, options.start) if twin else RUN[kind](sizes, batches[0], options.start)
        print(json.dumps(done))
        return 0
    found: dict[str, Any] = {"command": sys.argv}
    for layers in options.layers.split(","):
        for kind in options.kinds.split(","):
            for batch in [options.batches] if kind == "twin" else options.batches.split(","):
                case = f"{kind}:{layers}:{batch}"
                found[case] = run_case(case, options.seconds)
                options.out.write_text(json.dumps(found, indent=1))
                print(case, json.dumps(found[case])[:400], flush=True)
    return 0


def run_case(case: str, seconds: float) -> dict[str, Any]:
    start = time.perf_counter()
    command = [sys.executable, "-m", "bench.cuda_llm", "--case", case, *sys.argv[1:]]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        told = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else ""
        return {"error": f"not done after {seconds} s", "log": told[-1500:]}
    lines = done.stdout.strip().splitlines()
    told_all = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr[-3000:]}
    return {**told_all, "process": round(time.perf_counter() - start, 1)}


if __name__ == "__main__":
    sys.exit(main())
