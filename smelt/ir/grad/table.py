"""THE table of gradients: one row for every op of the op table, a rule or a reason why there is none.

`Rules` looks rules up: a user's own first, then those of composites and calls, which are differentiated through their
bodies, then the table's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from smelt.errors import UnsupportedError
from smelt.ir.build import Builder
from smelt.ir.core import Func, Op, Value
from smelt.ir.grad import collective, contract, control, convolution, elementwise, index, linear, reduce, shape, window
from smelt.ir.grad.attention import attention_rule
from smelt.ir.grad.rule import Rule, linear_in_first, no_derivative, repeat, zero
from smelt.ir.grad.softmax import divide_rule
from smelt.ir.ops import OPS
from smelt.ir.ops.control import ASSERTIONS, PLACEMENT
from smelt.ir.rewrite import insert_call

_DECOMPOSED = "passes.grad decomposes it first"
_PASSES = "a kernel for inference: differentiate the program that the front end gave, before passes make it"
_QUANTISED = "quantised values are steps: differentiate before quantising"
_OUTSIDE = "only the bodies of its functions have derivatives"


def _custom_call(op: Op) -> Rule:
    target = op.attrs["call_target_name"]
    if target in ASSERTIONS:
        return zero("a check has no results")
    if target in PLACEMENT and len(op.operands) == 1:
        return linear_in_first(lambda b, op, g: repeat(b, op, [g])[0])
    return no_derivative(f"@{target} is code that the compiler cannot see")


_OTHERS: dict[str, Rule | Callable[[Op], Rule]] = {
    **{f"stablehlo.batch_norm_{name}": no_derivative(_DECOMPOSED) for name in ("inference", "training", "grad")},
    "stablehlo.set_dimension_size": no_derivative("the number of valid elements is data"),
    "stablehlo.custom_call": _custom_call,
    "stablehlo.after_all": zero("a token has no derivative"),
    "stablehlo.create_token": zero("a token has no derivative"),
    "stablehlo.async_start": no_derivative(_DECOMPOSED),
    "stablehlo.async_done": no_derivative(_DECOMPOSED),
    "sdy.sharding_group": zero("it has no results"),
    "stablehlo.rng": zero("random numbers"),
    "stablehlo.rng_bit_generator": zero("random numbers"),
    "stablehlo.uniform_quantize": no_derivative(_QUANTISED),
    "stablehlo.uniform_dequantize": no_derivative(_QUANTISED),
    **{name: no_derivative(_PASSES) for name in OPS if name.startswith("smelt.")},
    **{
        f"check.{name}": zero("it has no results")
        for name in (
            *("expect_eq", "expect_eq_const", "expect_almost_eq", "expect_almost_eq_const"),
            *("expect_close", "expect_serialized_eq"),
        )
    },
    "interpreter.run_parallel": no_derivative(_OUTSIDE),
    "interpreter.print": zero("it has no results"),
    "interpreter.probe": zero("it has no results"),
    "func.call": no_derivative("its function is not known here"),  # `Rules` knows it
    "stablehlo.composite": no_derivative("its decomposition is not known here"),
}

TABLE: Mapping[str, Rule | Callable[[Op], Rule]] = MappingProxyType(
    {
        **elementwise.RULES,
        **elementwise.BROADCAST,
        "stablehlo.divide": partial(divide_rule, elementwise.RULES["stablehlo.divide"]),
        **shape.RULES,
        **index.RULES,
        **reduce.RULES,
        **window.RULES,
        **convolution.RULES,
        **contract.RULES,
        "stablehlo.dot_general": partial(attention_rule, contract.RULES["stablehlo.dot_general"]),
        **linear.RULES,
        **control.RULES,
        **collective.RULES,
        **_OTHERS,
    }
)

# Composites with rules of their own; every other one is differentiated through its decomposition.
COMPOSITES: Mapping[str, Rule] = MappingProxyType({"smelt.stop_gradient": zero("smelt.stop_gradient stops it")})
REMAT = "smelt.remat"  # its decomposition is computed again in the backward pass
# Rules that users stated in Python (`smelt.custom_gradient`), by the names of their composites. Never forgotten: a
# program may outlive the code that recorded it.
CUSTOM: dict[str, Rule] = {}


def kept_composites() -> frozenset[str]:
    """The composites that must not be inlined before differentiation."""
    return frozenset({*COMPOSITES, *CUSTOM, REMAT})


class Rules:
    """The rules for one program: its functions give calls and composites their meaning.

    `own` are a user's: by the name of an op, of a composite, or of a custom call's target.
    """

    def __init__(self, functions: Mapping[str, Func], own: Mapping[str, Rule] = MappingProxyType({})) -> None:
        self.functions = functions
        self.own = own

    def __call__(self, op: Op) -> Rule:
        name = name_of(op)
        if name in self.own:
            return self.own[name]
        if op.name == "stablehlo.composite":
            return COMPOSITES.get(name) or CUSTOM.get(name) or Rule(expand=self._expand)
        if op.name == "func.call":
            return Rule(expand=self._expand)
        row = TABLE[op.name]
        return row if isinstance(row, Rule) else row(op)

    def _expand(self, b: Builder, op: Op) -> Sequence[Value]:
        """The body of a callee or a decomposition, on the operands."""
        name = op.attrs["callee" if op.name == "func.call" else "decomposition"]
        callee = self.functions.get(name)
        if callee is None:
            raise UnsupportedError(f"{op.name}: there is no function @{name}", where=op.location)
        operands = op.operands
        if name_of(op) == REMAT:  # behind a barrier, so that no pass takes what was computed before
            operands = tuple(b.optimization_barrier(value) for value in operands)
        return insert_call(b, callee, operands, op)


def name_of(op: Op) -> str:
    """What a user's rule calls an op: a composite by its name, a custom call by its target."""
    if op.name == "stablehlo.composite":
        return str(op.attrs["name"])
    return str(op.attrs["call_target_name"]) if op.name == "stablehlo.custom_call" else op.name
