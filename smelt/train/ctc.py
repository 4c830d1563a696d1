"""The CTC loss: -log of the probability that frames spell a sequence of labels, over all alignments.

The forward algorithm in logarithms: a scan over time, so that gradients are those of the scan.
"""

from __future__ import annotations

from smelt.tensor.axes import Axis
from smelt.tensor.core import Tensor
from smelt.tensor.ops.control import scan
from smelt.tensor.ops.elementwise import where
from smelt.tensor.ops.move import arange, concatenate, full
from smelt.tensor.record import operand
from smelt.tensor.source import refuse

_NEVER = -1e30  # the logarithm of a probability that counts as zero; -inf would make gradients nan


def ctc(
    logits: Tensor,
    labels: Tensor,
    frames: Tensor,
    lengths: Tensor,
    axes: tuple[Axis, Axis, Axis] = (0, 1, 2),
    *,
    blank: int = 0,
    weights: Tensor | None = None,
) -> Tensor:
    """The mean over a batch of -log p(labels), each over its number of labels.

    `logits` have the axes batch, time and classes, which `axes` names; `labels` are integers [batch, label], of which
    the first `lengths` count, and of the frames the first `frames`. Where there are fewer frames than an alignment
    needs the loss is about 1e30. A class `blank` stands between labels and is no label itself.
    """
    if logits.rank != 3 or labels.rank != 2 or not labels.dtype.is_integer:
        shown = operand("logits", logits), operand("labels", labels)
        refuse("ctc: logits [batch, time, class] and integer labels [batch, label]", *shown)
    x = logits.transpose(*axes).unnamed().log_softmax(2)
    count = labels.size(1)
    if isinstance(count, int) and count == 0:
        refuse("ctc: at least one label", operand("labels", labels))
    marks, frames, lengths = labels.unnamed(), frames.unnamed(), lengths.unnamed()
    total = _log_probability(x, marks, frames, lengths, blank)
    each = -total / lengths.maximum(1).to(x.dtype)
    if weights is None:
        return each.mean()
    given = weights.unnamed().to(x.dtype)
    return (each * given).sum() / given.sum()


def _log_probability(x: Tensor, labels: Tensor, frames: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """log p of each row. States are blanks at even places and labels at odd ones; a path may skip a blank."""
    states = _with_blanks(labels, blank)
    count = states.size(1)
    wide = states.insert(1).broadcast(x.size(0), x.size(1), count)
    spoken = x.take_along(wide, 2)  # log p of the class of each state at each time
    place = states * 0 + arange(count)
    two_back = concatenate([full(states[:, :2].shape, blank - 1), states[:, :-2]], 1) if count != 1 else states
    may_skip = (place % 2 == 1) & (place >= 2) & (states != two_back)
    valid = place <= 2 * lengths.insert(1)
    start = where((place <= 1) & valid, spoken[:, 0], _NEVER)

    def step(carry: Tensor, given: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        now, time = given
        one = _shift(carry, 1)
        two = where(may_skip, _shift(carry, 2), _NEVER)
        after = where(valid, _add(_add(carry, one), two) + now, _NEVER)
        return where((time < frames).insert(1), after, carry), None

    times = arange(x.size(1))
    last, _ = scan(step, start, (spoken.transpose(1, 0, 2)[1:], times[1:]), 0)
    ends = [last.take_along((2 * lengths - back).maximum(0).insert(1), 1)[:, 0] for back in (0, 1)]
    return where(lengths > 0, _add(*ends), ends[0])


def _with_blanks(labels: Tensor, blank: int) -> Tensor:
    """blank, first, blank, second, … blank."""
    rows, count = labels.size(0), labels.size(1)
    blanks = (labels * 0 + blank).insert(2)
    pairs = concatenate([blanks, labels.insert(2)], 2).reshape(rows, 2 * count)
    return concatenate([pairs, labels[:, :1] * 0 + blank], 1)


def _shift(x: Tensor, by: int) -> Tensor:
    """Each state's predecessor `by` places before it."""
    return x.pad({1: (by, 0)}, value=_NEVER)[:, :-by]


def _add(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b)."""
    high = a.maximum(b)
    return high + ((a - high).exp() + (b - high).exp()).log()
