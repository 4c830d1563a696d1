"""Products by block-quantised weights on a GPU, each alone: bytes of weights per second. `bench.cuda_llm` calls it.

A product is launched many times in a graph, by copies of its weights that the GPU's cache cannot hold together. One
result is compared with the processor's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.llama_gpu import Sizes
from smelt.dtype import Array, f32, ui8
from smelt.ir.attributes import DotDims
from smelt.ir.block_ops import decomposition
from smelt.ir.blocks import BLOCKS, Block
from smelt.ir.build import FuncBuilder
from smelt.ir.composites import encode
from smelt.ir.core import Program
from smelt.passes.lower_blocks import round_activations
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

COPIES = 400 << 20  # bytes of copies of the weights
CHECKED = 1 << 25  # elements of a product that the processor computes as well
LEAST = 8  # launches of a graph


def random_blocks(row: Block, shape: tuple[int, ...], seed: int) -> Array:
    """Blocks of any bytes, their scales within reason."""
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, shape, np.uint8)
    if row.exponent:
        data[..., row.scale] = random.integers(110, 120, shape[:-1])
        return data
    for at in (row.scale, row.minimum):
        if at is not None:
            data[..., at + 1] = data[..., at + 1] & 0x83 | 0x0C  # f16 about 2^-12
    return data


def product(row: Block, rows: int, depth: int, columns: int) -> Program:
    """x[rows, depth] by a weight [columns, depth] in blocks, activations rounded to 8 bits."""
    arguments = [Shape.of(f32, (rows, depth)), Shape.of(ui8, (columns, depth // row.length, row.bytes))]
    f = FuncBuilder("main", arguments, arg_attrs=[{}, {WEIGHT: "w"}])
    x, w = f.args
    func = decomposition(row, w.shape.numbers()[:-1], "unblock")
    f.signatures[func.name] = func.type
    attrs: dict[str, Any] = {
        "name": "smelt.unblock",
        "composite_attributes": encode("smelt.unblock", {"format": row.name}),
        "decomposition": func.name,
    }
    dense = f.op("stablehlo.composite", w, **attrs).result
    dims = DotDims((), (), (1,), (1,))
    made = f.dot_general(x, dense, dot_dimension_numbers=dims, result=Shape.of(f32, (rows, columns)))
    return round_activations(Program.of(f.func(made), func))


def run_products(sizes: Sizes, batch: int, first: int, format: str) -> dict[str, Any]:
    """Seconds and bytes per second of the products of a layer, by name."""
    shapes = {
        "qkv": (sizes.d, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size),
        "o": (sizes.d, sizes.d),
        "gate_up": (sizes.d, 2 * sizes.f),
        "down": (sizes.f, sizes.d),
    }
    return {
        name: measure_product(BLOCKS[format], batch, *each, seed) for seed, (name, each) in enumerate(shapes.items())
    }


def measure_product(row: Block, rows: int, depth: int, columns: int, seed: int) -> dict[str, Any]:
    import smelt
    from bench.cuda_check import Timed
    from smelt.buffer import HostBuffer
    from smelt.device.registry import find_device
    from smelt.engine.native import NativeEngine
    from smelt.weights import Weights

    device = find_device("cuda")
    driver: Any = device.driver  # type: ignore[attr-defined]
    program = product(row, rows, depth, columns)
    w = random_blocks(row, (columns, depth // row.length, row.bytes), seed)
    x = np.random.default_rng(seed).standard_normal((rows, depth), np.float32)
    weights = Weights.of({"w": HostBuffer.of(w)})
    bound = NativeEngine(device.target()).compile(program).prepare(weights)
    with Timed(driver) as timed:
        got = bound(smelt.platform("cuda", "native").put(HostBuffer.of(x)))[0].numpy()
    launches = timed.launches
    found: dict[str, Any] = {}
    if depth * columns <= CHECKED:
        want = np.asarray(NativeEngine().compile(program).prepare(weights)(x)[0])
        found["error"] = float(np.abs(got - want).max() / np.abs(want).max())
    (dot,) = (each for each in launches if "block_dot" in driver.describe(each[0])["name"])
    return found | time_copies(driver, dot, columns * (depth // row.length) * row.bytes)


def time_copies(driver: Any, launch: tuple[Any, ...], count: int) -> dict[str, Any]:
    """A launch again and again, each time by another copy of its weights: the argument that owns the most memory."""
    function, blocks, threads, arguments, *more = launch
    queue, real = driver.queues.current, hasattr(driver, "spare")
    held = driver.spare.sizes if real else {address: size for address, (_, size) in driver.held.items()}
    at = max((i for i, each in enumerate(arguments) if each in held), key=lambda i: held[arguments[i]])
    size = held[arguments[at]]
    copies = [arguments[at]]
    while real and len(copies) * size < COPIES:
        copies.append(queue.allocate(size))
        queue.move(copies[-1], copies[0], size)
    times = max(len(copies), LEAST) if real else 1

    def work() -> None:
        for i in range(times):
            given = [*arguments[:at], copies[i % len(copies)], *arguments[at + 1 :]]
            queue.launch(function, blocks, threads, given, *more)

    graph = queue.record(work)
    seconds = []
    for _ in range(4):
        start = queue.event()
        queue.replay(graph)
        seconds.append(driver.seconds(start, queue.event()) / times)
    queue.forget(graph)
    for each in copies[1:]:
        queue.free(each)
    best = min(seconds[1:])
    return {"us": 1e6 * best, "TB/s": count / best / 1e12 if best else 0.0, "MB": count / 1e6}
