"""Trainer: a loss, parameters and an optimiser → one compiled step with donated state, and checkpoints of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.buffer import Buffer, HostBuffer, bytes_text, parse_bytes
from smelt.dtype import Array
from smelt.engine import platform
from smelt.engine.native import native_engine
from smelt.engine.protocol import Placing, Platform
from smelt.engine.signature import signature_of
from smelt.errors import FileError, MemoryLimitError, RunError, ShapeError, UnsupportedError
from smelt.ir.core import Program
from smelt.mesh import Mesh
from smelt.read import safetensors
from smelt.shape import Shape
from smelt.structure import leaves, map_leaves
from smelt.tensor.axes import shape_of
from smelt.tensor.core import Tensor
from smelt.tensor.data import symbolic, tensor
from smelt.tensor.grad import value_and_grad
from smelt.tensor.jit.compile import compile
from smelt.tensor.jit.realise import realize
from smelt.train.data import Data
from smelt.train.nans import find_nan
from smelt.train.optimisers import AVERAGE, Optimiser
from smelt.train.paths import refuse_dead_paths
from smelt.train.run import Options, Progress, Run
from smelt.train.stepping import find_scale

_KIND = "smelt.train"  # in the metadata of a checkpoint


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_array(value: Any) -> bool:
    """Whether a part of a state, which consists of dictionaries, is an array or a buffer."""
    return not isinstance(value, dict)


class Trainer:
    """Parameters in training.

    `loss(parameters, *batch)` gives a scalar tensor; `parameters` is any structure of tensors with data; `batch` are
    the shapes of a batch, such as "f32[b=32, d=64]". The step is compiled once: it takes the state and a batch, and
    gives the loss and the next state in the memory of the last one. Tensors in `frozen` are not trained: the loss takes
    them after the parameters, in their own structure.

    With a `mesh`, such as `smelt.Mesh(data=4, split={"b": "data"})`, the axis b of a batch is split over the devices
    along "data" (data parallelism). Parameters have no such axis: every device holds them, and XLA adds the gradients
    of all devices up.

    `memory_limit` (bytes, or "2GB") bounds state, batch and what a step needs besides. Activations that do not fit are
    computed again in the backward pass, cheapest first; a step that cannot be made to fit is refused.

    >>> import smelt
    >>> from smelt.train import mse, sgd
    >>> line = {"slope": smelt.tensor([0.0], "d")}
    >>> trainer = Trainer(lambda p, x, y: mse(x.dot(p["slope"], "d"), y), line, sgd(0.1), "f32[b=4, d=1]", "f32[b=4]")
    >>> x = np.arange(4, dtype=np.float32)
    >>> losses = [trainer.step(x[:, None], 3 * x) for _ in range(50)]
    >>> round(trainer.parameters["slope"].item(), 3)
    3.0
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        parameters: Any,
        optimiser: Optimiser,
        *batch: str | Shape,
        device: str = "auto",
        engine: str = "auto",
        debug_nans: bool = False,
        frozen: Any = None,
        mesh: Mesh | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        _check_mesh(mesh, batch)
        found = dict(leaves(parameters, _is_tensor))
        if not found:
            raise ShapeError("there are no parameters to train", expected="a structure of tensors")
        for path, value in found.items():
            if value.dtype.kind != "float":
                remedy = "keep it out of the parameters: Trainer(..., frozen=...)"
                raise ShapeError(f"the parameter {path} has no gradient", got=value.shape, remedy=remedy)
        self._pattern = map_leaves(parameters, _is_tensor, lambda value: symbolic(value.shape), tied=False)
        self._names = {path: value.axes for path, value in found.items()}
        self._debug_nans = debug_nans
        flat = {path or "parameter": value for path, value in found.items()}
        first = {"parameters": flat, "optimiser": optimiser.init(flat)}
        realize(*(value for _, value in leaves(first, _is_tensor)))

        still = {path or "frozen": value for path, value in leaves(frozen, _is_tensor)}
        realize(*still.values())
        extra = () if frozen is None else (still,)

        def advance(state: Any, *given: Any) -> tuple[Tensor, Any]:
            def of(flat: Any) -> Tensor:
                if frozen is None:
                    return loss(self._rebuild(flat), *given)
                kept = iter(given[0].values())
                fixed = map_leaves(frozen, _is_tensor, lambda _: next(kept), tied=False)
                return loss(self._rebuild(flat), fixed, *given[1:])

            factor = find_scale(state["optimiser"])

            def scale_and_keep(flat: Any) -> tuple[Tensor, Tensor]:
                value = of(flat)
                return value if factor is None else value * factor.to(value.dtype), value

            (_, value), slopes = value_and_grad(scale_and_keep, aux=True)(state["parameters"])
            refuse_dead_paths(value, state["parameters"], slopes)
            moved, after = optimiser.update(slopes, state["optimiser"], state["parameters"])
            return value, {"parameters": moved, "optimiser": after}

        self.progress = Progress()
        chosen = None if mesh is None or mesh.count == 1 else platform(device, engine, mesh=mesh)
        if memory_limit is not None:
            held = [value.shape for _, value in leaves((first, *extra), _is_tensor)]
            chosen = _limit_memory(device, engine, chosen, memory_limit, [*held, *map(shape_of, batch)])
        self._step: Any = compile(
            advance, first, *extra, *batch, donate="state", platform=chosen, device=device, engine=engine
        )
        self._frozen = tuple({path: self._place(value.numpy()) for path, value in each.items()} for each in extra)
        self._state: Any = map_leaves(first, _is_tensor, lambda value: value.numpy().copy(), tied=False)

    def _place(self, array: Array) -> Any:
        """The array where the step reads it: on the engine's device, if that is not the host."""
        engine = self._step.platform.engine
        return engine.put(HostBuffer.of(array)) if isinstance(engine, Placing) else array

    def step(self, *batch: Array | Buffer) -> float:
        """One step on a batch; gives the loss before it."""
        before = {path: array.copy() for path, array in self._arrays().items()} if self._debug_nans else {}
        value, self._state = self._step(self._state, *self._frozen, *batch)
        loss = float(value.numpy())
        if self._debug_nans:
            broken = [path for path, array in self._arrays().items() if not _is_finite(array)]
            if broken or not np.isfinite(loss):
                self._explain_nans(loss, before, batch, broken)
        return loss

    def _explain_nans(
        self, loss: float, before: Mapping[str, Array], batch: Sequence[Array | Buffer], broken: list[str]
    ) -> None:
        """Run the step again on the reference, and name the first tensor that is not finite."""
        program = self._step.program
        names = [port.name for port in signature_of(program.main).inputs]
        fixed = [_array(value) for each in self._frozen for value in each.values()]
        arrays = [*before.values(), *fixed, *(np.asarray(each) for each in batch)]
        culprit = find_nan(program, names, arrays)
        wrong = (
            f"the loss of step {self.steps - 1} is {loss}"
            if not np.isfinite(loss)
            else (f"step {self.steps - 1} made {broken[0]} infinite or nan")
        )
        raise RunError(
            wrong,
            got=culprit or f"nan or infinity in {', '.join(broken[:4])}",
            where=None if culprit is None else culprit.where,
            remedy="a smaller learning rate, or smelt.train.clip",
        )

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return int(_array(self._state["optimiser"]["step"]))

    @property
    def parameters(self) -> Any:
        """The parameters as they are now, in the structure that was given."""
        return self._as_given(self._state["parameters"])

    @property
    def loss_scale(self) -> float:
        """The factor of the loss that `smelt.train.scale_loss` keeps; 1 without it."""
        held = find_scale(self._state["optimiser"])
        return 1.0 if held is None else float(_array(held))

    @property
    def averaged(self) -> Any:
        """The moving average of the parameters that `smelt.train.average` keeps, in the structure that was given."""
        held = self._state["optimiser"].get(AVERAGE)
        if held is None:
            raise ShapeError("the optimiser keeps no average", remedy="smelt.train.average(optimiser, decay=0.999)")
        return self._as_given(held)

    def _as_given(self, held: Mapping[str, Any]) -> Any:
        flat = {path: tensor(_array(value).copy()) for path, value in held.items()}
        return self._rebuild({path: _name_axes(value, self._names.get(path, None)) for path, value in flat.items()})

    def _rebuild(self, flat: dict[str, Any]) -> Any:
        rest = iter(flat.values())
        return map_leaves(self._pattern, _is_tensor, lambda _: next(rest), tied=False)

    def fit(
        self,
        data: Data,
        *,
        epochs: int,
        batch: int,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        every: int | None = None,
        report: Callable[[int, float], object] | None = None,
        progress: bool | None = None,
        log: str | Path | None = None,
        validate: Callable[[Any], float] | None = None,
        patience: int | None = None,
    ) -> float:
        """Train for a number of epochs; gives the mean loss of the last one.

        `data` are arrays, paths of `.npy` files, which are mapped, or a function that gives the minibatches of an
        epoch. Minibatches are those of `smelt.train.batches`: the loss takes their weights last.

        With a `checkpoint` the state is saved after each epoch, every `every` steps and when Ctrl-C ends the run, and a
        file that is there already is resumed: to the same bits as a run that was never stopped.

        `report(epoch, mean loss)` is called after each epoch. `progress` shows a line on stderr (None: on a terminal).
        `log` is a folder for TensorBoard's events and curves. `validate(parameters)` gives a number after each epoch,
        smaller is better; the run ends after `patience` epochs without a better one (of the loss, without `validate`),
        and the best state is beside the checkpoint, as NAME.best.safetensors.
        """
        path = None if checkpoint is None else Path(checkpoint)
        if path is not None and path.exists():
            self.load(path)
        folder = None if log is None else Path(log)
        options = Options(epochs, batch, seed, path, every, report, progress, folder, validate, patience)
        return Run(self, options).start(data)

    # ---- checkpoints ----

    def _arrays(self) -> dict[str, Array]:
        held = leaves(self._state, _is_array)
        return {path: _array(value) for path, value in held}

    def save(self, path: str | Path) -> None:
        """Write parameters and optimiser state to a safetensors file, which appears only when it is complete."""
        metadata = {"kind": _KIND, "step": str(self.steps), **self.progress.to_metadata()}
        safetensors.write(path, self._arrays(), metadata)

    def load(self, path: str | Path) -> None:
        """Continue from a file of `save`: of the same parameters and optimiser, or it is refused."""
        held = safetensors.read(path)
        if held.metadata.get("kind") != _KIND:
            raise FileError(f"{path} is no checkpoint of a trainer", expected="a file of Trainer.save")
        wanted = {name: (value.shape, value.dtype) for name, value in self._arrays().items()}
        found = {name: (tuple(held[name].shape.sizes), held[name].shape.dtype.numpy) for name in held}
        if found != wanted:
            wrong = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            raise FileError(
                f"{path} is of other parameters or of another optimiser",
                expected={name: wanted.get(name) for name in wrong[:3]},
                got={name: found.get(name) for name in wrong[:3]},
            )
        arrays = {name: held[name].numpy().copy() for name in wanted}
        rest = iter(arrays[name] for name in wanted)
        self._state = map_leaves(self._state, _is_array, lambda _: next(rest), tied=False)
        self.progress = Progress.of_metadata(held.metadata)


def _check_mesh(mesh: Mesh | None, batch: Sequence[str | Shape]) -> None:
    """Refuse a mesh that splits no axis of the batch, or one unevenly."""
    if mesh is None:
        return
    shapes = [shape_of(each) for each in batch]
    split = [mesh.partition(shape.names) for shape in shapes]
    if not any(any(partition) for partition in split):
        raise ShapeError(
            "the mesh splits no axis of the batch",
            expected=f"one of the axes {', '.join(mesh.split) or 'in Mesh(split=…)'}",
            got=", ".join(map(str, shapes)),
            remedy='smelt.Mesh(data=2, split={"b": "data"}), where b is an axis of the batch',
        )
    for shape, partition in zip(shapes, split, strict=True):
        if shape.is_static and any(partition):
            mesh.pieces(partition, shape.numbers(), f"the batch {shape}")


def _limit_memory(
    device: str, engine: str, chosen: Platform[Program] | None, limit: int | str, held: Sequence[Shape]
) -> Platform[Program]:
    """The native engine with what state and batch leave of a memory limit."""
    if chosen is not None or engine not in ("auto", "native"):
        raise UnsupportedError(
            "only the native engine keeps to a memory limit",
            expected='engine="native" and no mesh',
            got=engine if chosen is None else "a mesh",
            remedy="no memory_limit, or smelt.remat(…) around parts of the model",
        )
    if dynamic := [str(shape) for shape in held if not shape.is_static]:
        raise ShapeError("a memory limit needs static sizes", got=dynamic[0], remedy="a batch such as f32[b=32, d=64]")
    total = parse_bytes(limit, "memory_limit")
    own = sum(shape.element.numpy.itemsize * math.prod(shape.numbers()) for shape in held)
    if own > total:
        raise MemoryLimitError(
            "parameters, optimiser state and batch need more memory than allowed",
            expected=f"at most {bytes_text(total)}",
            got=bytes_text(own),
            remedy="a higher memory_limit, a smaller batch, or an optimiser with less state (sgd, adafactor)",
        )
    return Platform("cpu" if device == "auto" else device, native_engine(device, total - own))


def _is_finite(array: Array) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def _array(value: Any) -> Array:
    return value if isinstance(value, np.ndarray) else np.asarray(value.numpy())


def _name_axes(value: Tensor, names: tuple[str, ...] | None) -> Tensor:
    return value if names is None else value.named(*names)
