"""Gradients of tensors and of functions of tensors: `grad`, `value_and_grad`, `vjp`, `jvp`, `jacobian`, `hessian`.

No tape: the recorded ops are the graph. Derivatives are ops like any other, recorded in turn, so that axes keep their
names, sizes stay proven, and derivatives have derivatives. The rules are in `ir.grad`. Parameters and results may be
any structure of tensors: models, dictionaries, tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.dim import product
from smelt.ir.build import Builder
from smelt.ir.clone import clone_ops, clone_region
from smelt.ir.core import Func, Op, Region, Type, Value, find_captures
from smelt.ir.grad.rule import Cotangents, Rule, is_differentiable, zeros
from smelt.ir.grad.rule import refuse as forbid
from smelt.ir.grad.sweep import Forward, Reverse
from smelt.ir.grad.table import CUSTOM, Rules
from smelt.ir.rewrite import insert_call
from smelt.ir.structure import fingerprint
from smelt.shape import Shape
from smelt.size import symbol
from smelt.structure import leaves, map_leaves
from smelt.tensor.composite import DECOMPOSITIONS, composite
from smelt.tensor.ops.control import scan
from smelt.tensor.ops.elementwise import leaf
from smelt.tensor.record import (
    Leaf,
    collect,
    data_of,
    emit,
    inside,
    is_tensor,
    operand,
    record,
    region_of,
    tensor_of,
)
from smelt.tensor.source import here, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


class RecordBuilder(Builder):
    """A builder whose ops are recorded in the user's graph. Sizes may be read off `args`."""

    def __init__(self, args: Sequence[Value] = ()) -> None:
        super().__init__()
        self.args = tuple(args)

    def op(
        self,
        name: str,
        /,
        *operands: Value,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region] = (),
        **attrs: Any,
    ) -> Op:
        given = {key: value for key, value in attrs.items() if value is not None}
        declared: Any = result if result is None or isinstance(result, list | tuple) else [result]
        signatures = {name: func.type for name, func in DECOMPOSITIONS.items()} if "composite" in name else {}
        made = record(name, operands, given, tuple(regions), declared, signatures)
        self.ops.append(made)
        return made


# ---- structures ----


def _is_leaf(value: Any) -> bool:
    return is_tensor(value) or isinstance(value, np.ndarray | np.generic)


def _tensors(tree: Any) -> list[tuple[str, Tensor]]:
    """The tensors of a structure with their paths."""
    return list(leaves(tree, is_tensor))


def _replace(tree: Any, tensors: Sequence[Any]) -> Any:
    """The structure with other leaves, in order."""
    rest = iter(tensors)
    return map_leaves(tree, is_tensor, lambda _: next(rest), tied=False)


def _check_parameters(what: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
    if not tensors:
        refuse(f"{what}: there is nothing to differentiate by", remedy="pass tensors, or a structure that holds some")
    for path, tensor in tensors:
        if not is_differentiable(tensor.value.type):
            name = f" {path}" if path else ""
            refuse(
                f"{what}: the parameter{name} has no derivative: its elements are {tensor.dtype}",
                operand("parameter", tensor),
                remedy='.to("f32"), or leave it out of the parameters',
            )


# ---- gradients of what was recorded ----


def grad_of(loss: Tensor, parameters: Any) -> Any:
    """The gradient of a scalar by every tensor of a structure, in the same structure: `loss.grad(model)`."""
    found = _tensors(parameters)
    _check_parameters("grad", found)
    _check_loss(loss)
    one = RecordBuilder().full(1, Shape.of(loss.dtype, ()))
    return _replace(parameters, _pull([loss], [one], [tensor for _, tensor in found]))


def _check_loss(loss: Any) -> None:
    if not is_tensor(loss):
        refuse(f"grad: the loss is a {type(loss).__name__}, not a tensor", remedy="return one scalar tensor")
    if not is_differentiable(loss.value.type) or loss.dtype.is_complex:
        refuse("grad: the loss must be a real number", operand("loss", loss), remedy='.to("f32") or .real()')
    if loss.shape.rank:
        remedy = ".sum() or .mean(), or smelt.vjp with a cotangent"
        refuse("grad: the loss must be a scalar", operand("loss", loss), remedy=remedy)
    if isinstance(loss.value, Leaf):
        refuse(
            "grad: the loss has been computed, and the ops it came from are forgotten",
            operand("loss", loss),
            remedy="call grad before .numpy() or .item(), or use smelt.value_and_grad",
        )


def _pull(results: Sequence[Tensor], seeds: Sequence[Value], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents of parameters from those of results."""
    ops, leaves = collect([result.value for result in results])
    values = _find_values(ops, parameters)
    b = RecordBuilder([leaf for leaf in leaves if leaf.home is None])
    sweep = Reverse(b, Rules(DECOMPOSITIONS), values, ops)
    for result, seed in zip(results, seeds, strict=True):
        sweep.add(result.value, seed)
    sweep.run(ops)
    return [
        tensor_of(sweep.cotangent(value), parameter.shape.names)
        for value, parameter in zip(values, parameters, strict=True)
    ]


def _push(results: Sequence[Tensor], parameters: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor | None]:
    """Tangents of results from those of parameters; None for integers."""
    ops, leaves = collect([result.value for result in results])
    values = _find_values(ops, parameters)
    b = RecordBuilder([leaf for leaf in leaves if leaf.home is None])
    given = {value: tangent.value for value, tangent in zip(values, tangents, strict=True)}
    sweep = Forward(b, Rules(DECOMPOSITIONS), given)
    sweep.run(ops)
    moved: list[Tensor | None] = []
    for result in results:
        if not is_differentiable(result.value.type):
            moved.append(None)
            continue
        tangent = sweep.tangent(result.value)
        zero = b.full(0, Shape.of(result.dtype, result.shape.sizes)) if tangent is None else tangent
        moved.append(tensor_of(zero, result.shape.names))
    return moved


def _find_values(ops: Sequence[Op], parameters: Sequence[Tensor]) -> list[Value]:
    """The values of parameters in a graph. A parameter that was computed since is found again by its array."""
    arrays = {id(array): value for op in ops for value in op.results if (array := data_of(value)) is not None}
    return [
        arrays.get(id(parameter.value.data), parameter.value)
        if isinstance(parameter.value, Leaf) and parameter.value.data is not None
        else parameter.value
        for parameter in parameters
    ]


# ---- gradients of functions ----


def _same(tensor: Tensor) -> Tensor:
    """The tensor as a value of its own, so that two arguments that are one tensor have two gradients."""
    return emit("reshape", tensor, names=tensor.shape.names, result=tensor.shape)


def _arguments(what: str, args: tuple[Any, ...], wrt: int | Sequence[int]) -> tuple[list[Any], list[int]]:
    """The arguments with tensors of their own where they are differentiated by, and those places."""
    given = [wrt] if isinstance(wrt, int) else list(wrt)
    places = []
    changed = list(args)
    for place in given:
        if not -len(args) <= place < len(args):
            refuse(f"{what}: there is no argument {place}", details=[("arguments", str(len(args)))])
        place %= len(args)
        value = changed[place]
        if isinstance(value, float | complex):
            value = leaf(value)
        lifted = map_leaves(value, _is_leaf, lambda each: each if is_tensor(each) else leaf(each), tied=False)
        _check_parameters(what, _tensors(lifted))
        changed[place] = map_leaves(lifted, is_tensor, _same)
        places.append(place)
    return changed, places


def value_and_grad(
    function: Callable[..., Any], wrt: int | Sequence[int] = 0, *, aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the value and the gradient of a scalar function by its arguments `wrt`.

    With `aux` the function returns `(loss, anything)`, and so does the value.

    >>> import smelt
    >>> value, slope = value_and_grad(lambda x: (x * x).sum())(smelt.tensor([1.0, 2.0]))
    >>> value.item(), slope.tolist()
    (5.0, [2.0, 4.0])
    """

    def call(*args: Any, **keywords: Any) -> Any:
        changed, places = _arguments("value_and_grad", args, wrt)
        value = function(*changed, **keywords)
        loss = value[0] if aux else value
        parameters = tuple(changed[place] for place in places)
        slopes = grad_of(loss, parameters)
        return value, slopes[0] if isinstance(wrt, int) else slopes

    return call


def grad(function: Callable[..., Any], wrt: int | Sequence[int] = 0, *, aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of a scalar function by its arguments `wrt`, in their structure.

    >>> import smelt
    >>> grad(lambda x: (x * x * x).sum())(smelt.tensor([1.0, 2.0])).tolist()
    [3.0, 12.0]
    """
    both = value_and_grad(function, wrt, aux=aux)

    def call(*args: Any, **keywords: Any) -> Any:
        value, slopes = both(*args, **keywords)
        return (slopes, value[1]) if aux else slopes

    return call


def vjp(function: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The value of a function, and a function from cotangents of the value to those of all arguments."""
    changed, places = _arguments("vjp", args, range(len(args)))
    value = function(*changed)
    # Copies: a tensor that is computed forgets the ops it came from.
    results = [(path, _copy(tensor)) for path, tensor in _tensors(value) if is_differentiable(tensor.value.type)]
    parameters = map_leaves(tuple(changed[place] for place in places), is_tensor, _copy)

    def pull(cotangents: Any) -> tuple[Any, ...]:
        given = [leaf(each) if not is_tensor(each) else each for _, each in leaves(cotangents, _is_leaf)]
        given = given or [leaf(cotangents)]
        floats = [each for each in given if is_differentiable(each.value.type)]
        _check_seeds(results, floats)
        found = _pull(
            [tensor for _, tensor in results], [each.value for each in floats], [t for _, t in _tensors(parameters)]
        )
        made: tuple[Any, ...] = _replace(parameters, found)
        return made

    return value, pull


def _copy(tensor: Tensor) -> Tensor:
    return tensor_of(tensor.value, tensor.shape.names)


def _check_seeds(results: Sequence[tuple[str, Tensor]], given: Sequence[Tensor]) -> None:
    if len(results) != len(given):
        details = [("expected", f"{len(results)} tensors"), ("got", f"{len(given)}")]
        refuse("vjp: the cotangents have another structure than the value", details=details)
    for (path, result), seed in zip(results, given, strict=True):
        if result.dtype is not seed.dtype or result.shape.sizes != seed.shape.sizes:
            shown = operand("value", result), operand("cotangent", seed)
            refuse(f"vjp: the cotangent{f' {path}' if path else ''} has another shape than the value", *shown)


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The value of a function, and how it changes along tangents of its arguments.

    >>> import smelt
    >>> value, moved = jvp(lambda x: x.sin(), [smelt.tensor(0.0)], [smelt.tensor(2.0)])
    >>> moved.item()
    2.0
    """
    if len(primals) != len(tangents):
        refuse("jvp: one tangent for each argument", details=[("got", f"{len(primals)} and {len(tangents)}")])
    changed, _ = _arguments("jvp", tuple(primals), range(len(primals)))
    given = [leaf(each) if not is_tensor(each) else each for tree in tangents for _, each in leaves(tree, _is_leaf)]
    places = [tensor for _, tensor in _tensors(tuple(changed))]
    if len(given) != len(places):
        details = [("expected", f"{len(places)} tensors"), ("got", f"{len(given)}")]
        refuse("jvp: the tangents have another structure than the arguments", details=details)
    value = function(*changed)
    results = [tensor for _, tensor in _tensors(value)]
    return value, _replace(value, _push(results, places, given))


# ---- jacobians ----


def jacobian(function: Callable[..., Any], wrt: int = 0) -> Callable[..., Any]:
    """A function that gives all partial derivatives: axes of the result, then axes of the argument.

    Structures nest: that of the result, in it that of the argument. An axis of the argument whose name the result has,
    too, is called `…_wrt`. One step of reverse mode per element of the result.

    >>> import smelt
    >>> jacobian(lambda x: x * x)(smelt.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    def call(*args: Any, **keywords: Any) -> Any:
        changed, (place,) = _arguments("jacobian", args, wrt)
        value = function(*changed, **keywords)
        parameters = _tensors(changed[place])
        results = _tensors(value)
        for _, result in results:
            if not is_differentiable(result.value.type) or result.dtype.is_complex:
                refuse("jacobian: the result must be real numbers", operand("result", result))
        found = [_replace(changed[place], _rows(result, [tensor for _, tensor in parameters])) for _, result in results]
        return _replace(value, found)

    return call


def _rows(result: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The derivatives of one result: a scan over one cotangent per element."""
    count = product(result.shape.sizes)
    b = RecordBuilder()
    square = Shape.of(result.dtype, (count, count))
    rows, columns = (b.iota(iota_dimension=d, result=Shape.of(square.dtype, square.sizes)) for d in (0, 1))
    same = b.compare(rows, columns, comparison_direction="EQ")
    units = tensor_of(b.convert(same, result=square), None)

    def step(carry: Any, unit: Tensor) -> tuple[Any, Any]:
        inner = RecordBuilder()
        seed = inner.reshape(unit.value, result=Shape.of(result.dtype, result.shape.sizes))
        pulled = _pull([result], [seed], parameters)
        return carry, tuple(tensor_of(each.value, None) for each in pulled)

    _, stacked = scan(step, (), units, 0)
    made = []
    for tensor, parameter in zip(stacked, parameters, strict=True):
        sizes = (*result.shape.sizes, *parameter.shape.sizes)
        whole = emit("reshape", tensor, result=Shape.of(parameter.dtype, sizes))
        made.append(tensor_of(whole.value, _join_names(result, parameter)))
    return made


def _join_names(result: Tensor, parameter: Tensor) -> tuple[str, ...] | None:
    left, right = (shape.names if shape.rank else () for shape in (result.shape, parameter.shape))
    if left is None or right is None:
        return None
    names = list(left)
    for name in right:
        while name in names:
            name += "_wrt"
        names.append(name)
    return tuple(names) or None


def hessian(function: Callable[..., Any], wrt: int = 0) -> Callable[..., Any]:
    """A function that gives all second derivatives of a scalar function: the jacobian of its gradient.

    >>> import smelt
    >>> hessian(lambda x: (x * x * x).sum())(smelt.tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacobian(grad(function, wrt), wrt)


# ---- what a user says about gradients ----


def stop_gradient(tree: Any) -> Any:
    """The same tensors, as constants: no gradient goes through them.

    >>> import smelt
    >>> grad(lambda x: (x * stop_gradient(x)).sum())(smelt.tensor([3.0])).tolist()
    [3.0]
    """
    return map_leaves(tree, is_tensor, _stop)


def _stop(tensor: Tensor) -> Tensor:
    arg = Value(Shape.of(tensor.dtype, [symbol(f"s{i}") for i in range(tensor.rank)]))
    body = Func("stop_gradient", Region((arg,), (), (arg,)), "private")
    return composite("smelt.stop_gradient", (tensor,), {}, body, tensor.shape.names)


def remat(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose inner values are computed again in the backward pass instead of kept for it.

    >>> import smelt
    >>> grad(lambda x: remat(lambda y: y.sin().exp())(x).sum())(smelt.tensor([0.0])).tolist()
    [1.0]
    """

    def call(*args: Any, **keywords: Any) -> Any:
        body = _Body("remat", function, args, keywords)
        return body.record("smelt.remat")

    return call


def custom_gradient(function: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a gradient of the user's own.

    `backward(arguments, value, cotangents)` takes the tuple of arguments, the value and the cotangents of the value (in
    its structure), and gives the tuple of cotangents of the arguments. Tensors that the function takes from around it
    have no gradient. Forward mode is refused: the rule says nothing about it.

    >>> import smelt
    >>> straight = custom_gradient(lambda x: x.round(), lambda args, value, slope: (slope,))
    >>> grad(lambda x: straight(x).sum())(smelt.tensor([0.4])).tolist()
    [1.0]
    """

    def call(*args: Any) -> Any:
        body = _Body("custom_gradient", function, args, {})
        key, rule = _custom_rule(body, backward)
        name = f"smelt.custom_gradient.{body.key}.{key}"
        CUSTOM.setdefault(name, rule)
        return body.record(name)

    return call


class _Body:
    """A function traced on tensors of its own, as the decomposition of a composite. What it uses from around it comes
    in as further operands."""

    def __init__(
        self, what: str, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self.what = what
        self.args, self.tensors = args, [tensor for _, tensor in _tensors((args, keywords))]
        with inside() as home:
            leaves = [_leaf_like(tensor, home) for tensor in self.tensors]
            given, named = _replace((args, keywords), leaves)
            self.value = function(*given, **named)
            self.results = [tensor for _, tensor in _tensors(self.value)]
            formal = [leaf.value for leaf in leaves]
            region = region_of(home, formal, [result.value for result in self.results])
        found = find_captures(region)
        constants = [value.op for value in found if value.op is not None and value.op.name == "stablehlo.constant"]
        self.captured = [value for value in found if value.op is None or value.op not in constants]
        outside: dict[Value, Value] = {value: Value(value.type) for value in self.captured}
        first = clone_ops(constants, outside)
        inner = clone_region(region, outside)
        args = (*inner.args, *(outside[value] for value in self.captured))
        closed = Region(args, (*first, *inner.ops), inner.results)
        func = Func(what, closed, "private")
        self.key = f"smelt.{what}.{fingerprint(func).hex()[:24]}"
        self.func = DECOMPOSITIONS.setdefault(self.key, Func(self.key, closed, "private"))

    def record(self, name: str) -> Any:
        """The composite, and the function's value in its own structure."""
        if not self.results:
            refuse(f"{self.what}: the function gives no tensors")
        operands = (*(tensor.value for tensor in self.tensors), *self.captured)
        attrs = {"name": name, "decomposition": self.key}
        made = record("stablehlo.composite", operands, attrs, (), None, {self.key: self.func.type})
        pairs = zip(made.results, self.results, strict=True)
        return _replace(self.value, [tensor_of(value, result.shape.names) for value, result in pairs])


def _leaf_like(tensor: Tensor, home: object) -> Tensor:
    return tensor_of(Leaf(Shape.of(tensor.dtype, tensor.shape.sizes), home=home, place=here()), tensor.shape.names)


def _custom_rule(body: _Body, backward: Callable[..., Any]) -> tuple[str, Rule]:
    """The rule of a composite from a user's function, and a key that differs between functions and their data."""
    count = len(body.tensors)

    def check_backward(args: Any, value: Any, cotangents: Any) -> Any:
        found = backward(args, value, cotangents)
        tensors = [tensor for _, tensor in _tensors(found)]
        wanted = [(tensor.dtype, tensor.shape.sizes) for tensor in body.tensors]
        if [(tensor.dtype, tensor.shape.sizes) for tensor in tensors] != wanted:
            details = [
                ("expected", ", ".join(str(tensor.shape) for tensor in body.tensors)),
                ("got", ", ".join(str(tensor.shape) for tensor in tensors)),
            ]
            refuse("custom_gradient: backward gives one cotangent for each argument, in its shape", details=details)
        return tuple(tensors)

    back = _Body("backward", check_backward, (body.args, body.value, body.value), {})
    if any(not isinstance(value, Leaf) or value.data is None for value in back.captured):
        refuse(
            "custom_gradient: backward uses a tensor from around it", remedy="pass it as an argument of the function"
        )

    def jvp(sweep: Forward, op: Op) -> None:
        forbid(op, "its gradient is the user's own, and that has no forward mode")

    def vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
        for value in op.operands[count:]:
            if sweep.wants(value):
                forbid(op, "it uses a tensor from around it, for which the user's gradient says nothing")
        seeds = [
            zeros(sweep.b, value.type) if g is None else g for value, g in zip(op.results, cotangents, strict=True)
        ]
        data = [_constant(sweep.b, value) for value in back.captured]
        made = insert_call(sweep.b, back.func, [*op.operands[:count], *op.results, *seeds, *data], op)
        for value, g in zip(op.operands[:count], made, strict=True):
            sweep.add(value, g)

    held = [np.ascontiguousarray(value.data) for value in back.captured if isinstance(value, Leaf)]
    data = blake2b(b"".join(array.tobytes() for array in held), digest_size=12).hexdigest() if held else ""
    return f"{back.key}{data}", Rule(jvp, vjp)


def _constant(b: Builder, value: Value) -> Value:
    """Data that a user's function found around it."""
    assert isinstance(value, Leaf)
    assert value.data is not None
    return b.constant(value.data, value.shape.element)
