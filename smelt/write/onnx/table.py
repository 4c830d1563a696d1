"""The table of writers: for each op of the op table how it is written as ONNX, or why it is not.

`write_op(g, op)` gives the tensors of an op's results. `tests/unit/write/test_onnx_table.py` loops over the op table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.ir.core import Op
from smelt.write.onnx.graph import Graph, Out, refuse, shape_of
from smelt.write.onnx.ops import contract, control, elementwise, reduce, shape, solve

_COMPLEX = "ONNX operators have no complex numbers, and this op no form on pairs of real ones"
_SPECIAL = "ONNX has no such function"
_PROCESSES = "ONNX models run in one process"
_HOST = "ONNX models exchange nothing with the host while they run"
_PACKED = "only engines with packed GEMMs make it, after the program that is written"
_BEFORE = "it is rewritten as other ops first; this form of it could not be"
_TESTS = "it belongs to the test dialects"
_TOKEN = "ONNX has no tokens, tuples and futures"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("stablehlo.complex", "chlo.conj", "stablehlo.fft"), _COMPLEX),
    **{
        f"chlo.{name}": _SPECIAL
        for name in ("bessel_i1e", "digamma", "erf_inv", "lgamma", "polygamma", "zeta", "next_after", "mulhi")
    },
    "chlo.erfc": "ONNX has no erfc, and 1 - erf(x) loses every digit of it for large x",
    **{
        f"stablehlo.{name}": _PROCESSES
        for name in (
            "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "collective_reduce", "collective_broadcast",
            "collective_permute", "cross-replica-sum", "partition_id", "replica_id",
        )
    },
    **{f"stablehlo.{name}": _HOST for name in ("send", "recv", "infeed", "outfeed")},
    **{
        f"smelt.{name}": _PACKED
        for name in (
            "relayout", "packed_dot", "packed_conv", "winograd_conv", "depthwise_conv", "round_blocks", "round_rows",
            "packed_block_dot", "grouped_dot", "grouped_block_dot", "attention", "paged_attention", "round_to_byte",
        )
    },
    "stablehlo.rng": "random numbers of ONNX cannot be repeated",
    "stablehlo.rng_bit_generator": "ONNX has no generator of random bits with a state",
    "chlo.ragged_dot": "ONNX has no products over ragged groups",
    **dict.fromkeys(
        (
            "stablehlo.broadcast", "stablehlo.batch_norm_inference", "stablehlo.batch_norm_training",
            "stablehlo.batch_norm_grad", "chlo.constant_like", "func.call", "stablehlo.uniform_quantize",
            "stablehlo.uniform_dequantize", "sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier",
            "sdy.sharding_group",
        ),
        _BEFORE,
    ),
    **{
        f"stablehlo.{name}": _TOKEN
        for name in ("tuple", "get_tuple_element", "after_all", "create_token", "async_start", "async_done")
    },
    **{
        f"check.expect_{name}": _TESTS
        for name in ("eq", "eq_const", "almost_eq", "almost_eq_const", "close", "serialized_eq")
    },
    **{f"interpreter.{name}": _TESTS for name in ("run_parallel", "print", "probe")},
}  # fmt: skip

Write = Callable[..., Any]
WRITERS: dict[str, Write] = {
    **{
        name: (lambda g, op, row=row: elementwise.write_elementwise(g, op, row))
        for name, row in elementwise.ROWS.items()
    },
    **shape.ROWS,
    **reduce.ROWS,
    **contract.ROWS,
    **control.ROWS,
    **solve.ROWS,
}


def writer_of(name: str) -> Write:
    """The writer of an op, or NoFormError with the reason."""
    found = WRITERS.get(name)
    if found is None:
        reason = REFUSED.get(name)
        if reason is None and name.startswith("chlo.broadcast_"):
            reason = _BEFORE
        refuse(reason or "no writer")
    return found


def write_op(g: Graph, op: Op) -> Sequence[Out]:
    for value in (*op.operands, *op.results):
        shape_of(value)
    made = writer_of(op.name)(g, op)
    return [made] if isinstance(made, Out) else list(made)
