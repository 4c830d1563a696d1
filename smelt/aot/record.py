"""One call of a model, recorded at build time for `--selftest` and `--bench`: random inputs and their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.aot.describe import dtype_code
from smelt.device.processor import target
from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.engine.sample import sample_inputs
from smelt.engine_api import Signature
from smelt.errors import RunError
from smelt.ir.core import Program
from smelt.weights import Weights

MOST = 1 << 20  # bytes of a recorded call
CONTENT = "recorded.bin"


def record_call(
    program: Program, weights: Weights, sizes: Mapping[str, int], has_fma: bool = True
) -> tuple[Array, ...]:
    """Inputs and outputs; nothing where they are large, or where random inputs break a check of the model.

    For machines without FMA they are computed without: where activations are quantised, a number that is rounded
    differently in its last bit may become the next int8, and layers after it differ by much more than floats do.
    """
    inputs = sample_inputs(program, sizes)
    if sum(each.nbytes for each in inputs) > MOST:
        return ()
    engine = NativeEngine() if has_fma else NativeEngine(target("plain"))
    bound = engine.compile(program).prepare(weights)
    try:
        outputs = bound(*inputs)
    except RunError:
        return ()
    finally:
        bound.close()
    arrays = (*inputs, *outputs)
    return arrays if sum(each.nbytes for each in arrays) <= MOST else ()


def recorded_unit(signature: Signature, arrays: Sequence[Array]) -> tuple[str, bytes]:
    """The C of a recorded call, and the bytes that it embeds."""
    lines = ['#include "front.h"']
    content = b""
    rows = []
    ports = (*signature.inputs, *signature.outputs)
    for port, array in zip(ports, arrays, strict=False):
        sizes = ", ".join(map(str, array.shape)) or "0"
        place = f"(void *)(content + {len(content)})"
        rows.append(f"{{{dtype_code(port.shape)}, {array.ndim}, {{{sizes}}}, {place}, {array.nbytes}}}")
        content += array.tobytes() + bytes(-array.nbytes % 64)
    if rows:
        lines.append(f'_Alignas(64) static const unsigned char content[] = {{\n#embed "{CONTENT}"\n}};')
        lines.append(f"static const smelt_tensor tensors[] = {{{', '.join(rows)}}};")
    lines.append(f"const Sample recorded = {{{len(rows)}, {'tensors' if rows else '0'}}};\n")
    return "\n".join(lines), content or bytes(64)
