"""`python -m bench.cuda_interop [--out FILE.json]`: smelt's buffers and those of torch, JAX and CuPy on one GPU.

For each library that is here: its array as an input (the same address, no copy), our result as its array (the same
address), many rounds of both without waiting for the GPU, each checked at the end. Then donation and calls that are not
waited for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 1 << 22  # elements
ROUNDS = 100
TEXT = f"""func.func @main(%x: tensor<{SIDE}xf32>) -> tensor<{SIDE}xf32> {{
  %one = stablehlo.constant dense<1.0> : tensor<{SIDE}xf32>
  %0 = stablehlo.add %x, %one : tensor<{SIDE}xf32>
  return %0 : tensor<{SIDE}xf32>
}}"""


def compile_add(*donate: str) -> tuple[Any, Any]:
    from smelt.engine.native import native_engine
    from smelt.ir.text import parse
    from smelt.weights import Weights

    engine = native_engine("cuda")
    return engine, engine.compile(parse(TEXT), donate=donate).prepare(Weights.of({}))


def exchange(give: Callable[[Any], Any], zeros: Callable[[], Any], address: Callable[[Any], int]) -> dict[str, Any]:
    """Arrays to and fro. `give`: our buffer as the library's array."""
    _, made = compile_add()
    theirs = zeros()
    ours = made(theirs)[0]
    back = give(ours)
    found: dict[str, Any] = {"result has our address": address(back) == ours.address}
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        back = give(made(back)[0]) + 1  # their work on our result, ours on theirs, in turns
    found["microseconds of a round until it is enqueued"] = 1e6 * (time.perf_counter() - begin) / ROUNDS
    found["right"] = bool((np.asarray(back.get() if hasattr(back, "get") else _host(back)) == 1 + 2 * ROUNDS).all())
    return found


def _host(array: Any) -> Any:
    return array.cpu().numpy() if hasattr(array, "cpu") else np.asarray(array)


def with_torch() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"skipped": "torch has no CUDA here"}
    return exchange(torch.from_dlpack, lambda: torch.zeros(SIDE, device="cuda"), lambda array: array.data_ptr())


def with_torch_streams() -> dict[str, Any]:
    """The same on a stream of torch's own."""
    import torch

    if not torch.cuda.is_available():
        return {"skipped": "torch has no CUDA here"}
    with torch.cuda.stream(torch.cuda.Stream()):
        return with_torch()


def with_jax() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        return {"skipped": "jax has no GPU here"}
    return exchange(jax.dlpack.from_dlpack, lambda: jnp.zeros(SIDE), lambda array: array.unsafe_buffer_pointer())


def with_cupy() -> dict[str, Any]:
    cupy = import_module("cupy")
    return exchange(cupy.from_dlpack, lambda: cupy.zeros(SIDE, cupy.float32), lambda array: array.data.ptr)


def calls_that_nobody_waits_for() -> dict[str, Any]:
    from smelt.buffer import HostBuffer

    engine, made = compile_add()
    x = engine.put(HostBuffer.of(np.zeros(SIDE, np.float32)))
    made(x)[0].wait()
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        x = made(x)[0]
    asked = time.perf_counter() - begin
    x.wait()
    done = time.perf_counter() - begin
    return {"asked": asked, "done": done, "right": bool((x.numpy() == ROUNDS).all())}


def donate_in_turns() -> dict[str, Any]:
    """A chain of calls in one buffer's memory."""
    from smelt.buffer import HostBuffer
    from smelt.engine.signature import signature_of
    from smelt.ir.text import parse

    (port,) = signature_of(parse(TEXT).main).inputs
    engine, made = compile_add(port.name)
    x = engine.put(HostBuffer.of(np.zeros(SIDE, np.float32)))
    first, addresses = x, {x.address}
    for _ in range(ROUNDS):
        (x,) = made(x)
        addresses.add(x.address)
    right = bool((x.numpy() == ROUNDS).all())
    return {"addresses": len(addresses), "used up": first.is_deleted, "right": right}


CASES = (with_torch, with_torch_streams, with_jax, with_cupy, donate_in_turns, calls_that_nobody_waits_for)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for case in CASES:
        try:
            found[case.__name__] = case()
        except ImportError as error:
            found[case.__name__] = {"skipped": str(error)}
        except Exception as error:
            found[case.__name__] = {"error": f"{type(error).__name__}: {error}"[:1000]}
        print(case.__name__, json.dumps(found[case.__name__]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
