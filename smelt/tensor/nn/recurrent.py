"""Recurrent layers, RNN, LSTM and GRU: scans over a named axis with torch's parameters and gates.

Several layers one on the other, both directions, any batch axes; the axis of time may have any size.
"""

from __future__ import annotations

from smelt.dim import Size
from smelt.dtype import DType
from smelt.shape import Shape
from smelt.tensor.core import Tensor
from smelt.tensor.fields import set_field
from smelt.tensor.model import Model, make_parameter
from smelt.tensor.nn.sizes import Axes, element_of, features
from smelt.tensor.ops.control import scan
from smelt.tensor.ops.move import concatenate, stack, zeros
from smelt.tensor.record import operand
from smelt.tensor.source import refuse

State = tuple[Tensor, ...]  # h, and c of an LSTM; without time


class _Recurrent(Model):
    """The base of recurrent layers: parameters by layer and direction, and the scan over time."""

    _gates = 1
    _states = 1  # tensors that go from one step to the next

    def __init__(
        self,
        *,
        over: str = "t",
        layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        dtype: str | DType | None = None,
        **axes: Axes,
    ) -> None:
        found, _ = features(type(self).__name__, axes)
        if found.in_axis == found.out:
            refuse(f"nn.{type(self).__name__}: the input and the state are two axes", remedy="i=128, h=256")
        element = element_of(dtype)
        size: Size = found.in_size
        for layer in range(layers):
            for suffix in self._suffixes(layer, bidirectional):
                wide: dict[str, Size] = {"n": self._gates * found.out_size}
                set_field(self, f"weight_ih_{suffix}", make_parameter({**wide, found.in_axis: size}, element))
                set_field(self, f"weight_hh_{suffix}", make_parameter({**wide, found.out: found.out_size}, element))
                if bias:
                    set_field(self, f"bias_ih_{suffix}", make_parameter(wide, element))
                    set_field(self, f"bias_hh_{suffix}", make_parameter(wide, element))
            size = found.out_size * (2 if bidirectional else 1)
        self._features = found
        self.over, self.layers, self.bidirectional = over, layers, bidirectional

    @staticmethod
    def _suffixes(layer: int, bidirectional: bool) -> tuple[str, ...]:
        return (f"l{layer}", f"l{layer}_reverse") if bidirectional else (f"l{layer}",)

    def _step(self, from_x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        """The next state, from the gates' input projection of x and the state."""
        raise NotImplementedError

    def _gates_of(self, both: Tensor) -> list[Tensor]:
        return [gate.rename(n=self._features.out) for gate in both.chunk("n", self._gates)]

    def _run_layers(self, x: Tensor, start: State | None) -> tuple[Tensor, State]:
        """All outputs, and the last states along a new first axis `l` of layers and directions."""
        in_axis, out = self._features.in_axis, self._features.out
        order = [out if name == in_axis else name for name in x.shape.names or ()]
        if self.over not in order or in_axis not in (x.shape.names or ()):
            refuse(f'{type(self).__name__}: needs axes "{self.over}" and "{in_axis}"', operand("operand", x))
        last: list[State] = []
        for layer in range(self.layers):
            outputs = []
            for suffix in self._suffixes(layer, self.bidirectional):
                place = len(last)
                first = self._initial_state(x) if start is None else tuple(each.slice(l=place) for each in start)
                y, state = self._run_direction(x, suffix, first)
                outputs.append(y)
                last.append(state)
            y = outputs[0] if len(outputs) == 1 else concatenate(outputs, out)
            x = y.transpose(*order).rename(**{out: in_axis})
        stacked = tuple(stack([state[i] for state in last], "l") for i in range(self._states))
        return x.rename(**{in_axis: out}), stacked

    def _initial_state(self, x: Tensor) -> State:
        in_axis, out = self._features.in_axis, self._features.out
        assert x.shape.names is not None
        kept = [(n, s) for n, s in zip(x.shape.names, x.shape.sizes, strict=True) if n not in (in_axis, self.over)]
        names = (*(name for name, _ in kept), out)
        sizes = (*(size for _, size in kept), self._features.out_size)
        zero = zeros(Shape.of(x.dtype, sizes, names))
        return (zero,) * self._states

    def _run_direction(self, x: Tensor, suffix: str, start: State) -> tuple[Tensor, State]:
        fields = self.fields()
        from_x = x.dot(fields[f"weight_ih_{suffix}"], self._features.in_axis)
        if f"bias_ih_{suffix}" in fields:
            from_x = from_x + fields[f"bias_ih_{suffix}"]
        weight, bias = fields[f"weight_hh_{suffix}"], fields.get(f"bias_hh_{suffix}")

        def step(state: State, row: Tensor) -> tuple[State, Tensor]:
            after = self._step(row, state, weight, bias)
            return after, after[0]

        last, y = scan(step, start, from_x, self.over, reverse=suffix.endswith("reverse"))
        return y, last

    def _from_state(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made = h.dot(weight, self._features.out)
        return made if bias is None else made + bias


class RNN(_Recurrent):
    """h' = tanh(W x + b + U h + c): `nn.RNN(i=128, h=256, over="t")` gives (all h, the last h of each layer).

    >>> import smelt
    >>> y, h = RNN(i=8, h=16, layers=2)(smelt.symbolic("f32[b=B, t=T, i=8]"))
    >>> y.shape, h.shape
    (f32[b=B, t=T, h=16], f32[l=2, b=B, h=16])
    """

    def __init__(
        self,
        *,
        over: str = "t",
        layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        relu: bool = False,
        dtype: str | DType | None = None,
        **axes: Axes,
    ) -> None:
        super().__init__(over=over, layers=layers, bidirectional=bidirectional, bias=bias, dtype=dtype, **axes)
        self.relu = relu

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, (last,) = self._run_layers(x, None if h is None else (h,))
        return y, last

    def _step(self, from_x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        total = (from_x + self._from_state(state[0], weight, bias)).rename(n=self._features.out)
        return (total.relu() if self.relu else total.tanh(),)


class GRU(_Recurrent):
    """A gated recurrent unit: `nn.GRU(i=128, h=256, over="t")` gives (all h, the last h of each layer)."""

    _gates = 3

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, (last,) = self._run_layers(x, None if h is None else (h,))
        return y, last

    def _step(self, from_x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        (h,) = state
        x_reset, x_update, x_new = self._gates_of(from_x)
        h_reset, h_update, h_new = self._gates_of(self._from_state(h, weight, bias))
        reset, update = (x_reset + h_reset).sigmoid(), (x_update + h_update).sigmoid()
        new = (x_new + reset * h_new).tanh()
        return (new + update * (h - new),)


class LSTM(_Recurrent):
    """Long short-term memory: `nn.LSTM(i=128, h=256, over="t")` gives (all h, (the last h, the last c) of each layer).

    >>> import smelt
    >>> y, (h, c) = LSTM(i=8, h=16, bidirectional=True)(smelt.symbolic("f32[b=B, t=T, i=8]"))
    >>> y.shape, c.shape
    (f32[b=B, t=T, h=32], f32[l=2, b=B, h=16])
    """

    _gates = 4
    _states = 2

    def __call__(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, (h, c) = self._run_layers(x, state)
        return y, (h, c)

    def _step(self, from_x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        h, c = state
        gates = self._gates_of(from_x + self._from_state(h, weight, bias))
        into, forget, out = (gates[i].sigmoid() for i in (0, 1, 3))
        c = forget * c + into * gates[2].tanh()
        return out * c.tanh(), c
