"""`vmap`: a function of tensors, for all slices along a named axis at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smelt.ir.batch import Batch
from smelt.ir.rewrite import has_effect
from smelt.shape import Shape
from smelt.structure import leaves, map_leaves
from smelt.tensor.composite import DECOMPOSITIONS
from smelt.tensor.grad import RecordBuilder
from smelt.tensor.proving import equal
from smelt.tensor.record import Leaf, collect, emit, is_tensor, operand, tensor_of
from smelt.tensor.source import here, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


def vmap(function: Callable[..., Any], axis: str) -> Callable[..., Any]:
    """The function for every slice along an axis: it sees tensors without the axis, and its results get it in front.

    Arguments may be structures; a tensor that lacks the axis is the same for all slices. Common ops run on all slices
    at once, any other op on one slice after the other.

    >>> import smelt
    >>> rows = smelt.tensor([[1.0, 2.0], [3.0, 4.0]], "b d")
    >>> vmap(lambda x: x / x.sum(), "b")(rows).shape
    f32[b=2, d=2]
    """

    def call(*args: Any, **keywords: Any) -> Any:
        found = [tensor for _, tensor in leaves((args, keywords), is_tensor) if axis in (tensor.axes or ())]
        if not found:
            refuse(f'vmap: no argument has an axis "{axis}"')
        size = found[0].shape.sizes[(found[0].axes or ()).index(axis)]
        moved: dict[Any, Any] = {}

        def take_slice(tensor: Tensor) -> Tensor:
            if axis not in (tensor.axes or ()):
                return tensor
            slice_, whole = _split(tensor, axis)
            if not (answer := equal(whole.shape.sizes[0], size)):
                shown = operand("first", found[0]), operand("other", tensor)
                refuse(f'vmap: arguments have different sizes along "{axis}"', *shown, answer=answer)
            moved[slice_.value] = whole.value
            return slice_

        given, named = map_leaves((args, keywords), is_tensor, take_slice)
        value = function(*given, **named)
        ops, inputs = collect([tensor.value for _, tensor in leaves(value, is_tensor)])
        batch = Batch(RecordBuilder([each for each in inputs if each not in moved]), size, dict(moved), DECOMPOSITIONS)
        for op in ops:
            if has_effect(op) and any(each in batch.values for each in op.operands):
                remedy = "call the function on one slice, or leave the check out"
                refuse(
                    "vmap: the function checks data or calls Python, which is not done slice by slice", remedy=remedy
                )
            batch.run([op])
        return map_leaves(value, is_tensor, lambda tensor: _join(batch, tensor, axis), tied=False)

    return call


def _split(tensor: Tensor, axis: str) -> tuple[Tensor, Tensor]:
    """A tensor without data for one slice along an axis, and the whole with that axis first."""
    assert tensor.axes is not None
    names = tuple(name for name in tensor.axes if name != axis)
    order = (tensor.axes.index(axis), *(tensor.axes.index(name) for name in names))
    sizes = [tensor.shape.sizes[place] for place in order]
    whole = tensor if order[0] == 0 else emit("transpose", tensor, names=(axis, *names), permutation=order)
    slice_ = tensor_of(Leaf(Shape.of(tensor.dtype, sizes[1:]), place=here()), names or None)
    return slice_, whole


def _join(batch: Batch, tensor: Tensor, axis: str) -> Tensor:
    if tensor.shape.rank and tensor.axes is None:
        return tensor_of(batch.spread(tensor.value), None)
    if axis in (tensor.axes or ()):
        refuse(f'vmap: the result has an axis "{axis}" of its own', operand("result", tensor), remedy=".rename(…)")
    return tensor_of(batch.spread(tensor.value), (axis, *(tensor.axes or ())))
