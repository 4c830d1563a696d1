"""A training run: epochs of minibatches, with checkpoints, logs, early stopping, and Ctrl-C between two steps.

`Trainer.fit` makes one. What a run must remember to go on (`Progress`) is in the metadata of its checkpoints.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from smelt.dtype import Array
from smelt.errors import ShapeError
from smelt.train.curves import Curve, draw_curves
from smelt.train.data import Data, batches, generate, open_data, prefetch
from smelt.train.events import EventFile
from smelt.train.progress import ProgressBar


@dataclass(slots=True)
class Progress:
    """How far a run is: whole epochs, minibatches of the present one, and what early stopping has seen."""

    epoch: int = 0
    taken: int = 0
    total: float = 0.0  # of the losses of the present epoch
    best: float = math.inf
    waited: int = 0  # epochs since the best one

    def to_metadata(self) -> dict[str, str]:
        return {name: repr(getattr(self, name)) for name in self.__slots__}

    @staticmethod
    def of_metadata(metadata: Mapping[str, str]) -> Progress:
        kinds = {"epoch": int, "taken": int, "total": float, "best": float, "waited": int}
        return Progress(**{name: kind(metadata[name]) for name, kind in kinds.items() if name in metadata})


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `Trainer.fit`."""

    epochs: int
    batch: int
    seed: int
    checkpoint: Path | None = None
    every: int | None = None  # steps between two checkpoints; None: one after each epoch
    report: Callable[[int, float], object] | None = None
    progress: bool | None = None
    log: Path | None = None
    validate: Callable[[Any], float] | None = None
    patience: int | None = None


class Trained(Protocol):
    """What a run drives: a Trainer."""

    progress: Progress

    @property
    def steps(self) -> int: ...

    @property
    def parameters(self) -> Any: ...

    def step(self, *batch: Array) -> float: ...

    def save(self, path: str | Path) -> None: ...


@dataclass(slots=True)
class Run:
    """One call of `fit`."""

    trainer: Trained
    options: Options
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    interrupted: bool = False

    def start(self, data: Data) -> float:
        """Train; gives the mean loss of the last epoch."""
        _check(self.options)
        opened, progress = open_data(data), self.trainer.progress
        count = None if callable(opened) else -(-len(opened[0]) // self.options.batch) if opened else 0
        if (
            count and progress.epoch * count + progress.taken != self.trainer.steps
        ):  # steps that were taken by hand count
            progress.epoch, progress.taken = divmod(self.trainer.steps, count)
        events = None if self.options.log is None else EventFile(self.options.log)
        bar = ProgressBar(self.options.epochs, self.options.batch, self.options.progress)
        mean = math.nan
        try:
            with self._stop_between_steps():
                while progress.epoch < self.options.epochs and not self._is_over():
                    mean = self._epoch(opened, count, bar, events)
        finally:
            bar.close()
            if events is not None:
                events.close()
                self._draw()
        return mean

    def _epoch(self, opened: Any, count: int | None, bar: ProgressBar, events: EventFile | None) -> float:
        progress, options = self.trainer.progress, self.options
        with closing(prefetch(self._batches(opened))) as ready:
            for batch in ready:
                loss = self.trainer.step(*batch)
                progress.taken += 1
                progress.total += loss
                self._note(events, loss=loss)
                bar.step(progress.epoch, progress.taken, count, loss)
                self._save_if(options.every is not None and self.trainer.steps % options.every == 0)
        mean = progress.total / progress.taken if progress.taken else math.nan
        epoch = progress.epoch
        progress.epoch, progress.taken, progress.total = epoch + 1, 0, 0.0
        self._judge(mean, events)
        self._save_if(True)
        if options.report is not None:
            options.report(epoch, mean)
        return mean

    def _batches(self, opened: Any) -> Iterator[tuple[Array, ...]]:
        size, at = self.options.batch, {"epoch": self.trainer.progress.epoch, "start": self.trainer.progress.taken}
        if callable(opened):
            return generate(opened, size, **at)
        return batches(opened, size, seed=self.options.seed, **at)

    def _judge(self, mean: float, events: EventFile | None) -> None:
        """Early stopping: keep the best epoch's state beside the checkpoint, count the epochs since."""
        progress, value = self.trainer.progress, mean
        if self.options.validate is not None:
            value = float(self.options.validate(self.trainer.parameters))
            self._note(events, validation=value)
        better = value < progress.best
        progress.best, progress.waited = (value, 0) if better else (progress.best, progress.waited + 1)
        if better and self.options.checkpoint is not None and self.options.validate is not None:
            self.trainer.save(best_path(self.options.checkpoint))

    def _is_over(self) -> bool:
        return self.options.patience is not None and self.trainer.progress.waited >= self.options.patience

    def _save_if(self, due: bool) -> None:
        if self.options.checkpoint is not None and (due or self.interrupted):
            self.trainer.save(self.options.checkpoint)
        if self.interrupted:
            raise KeyboardInterrupt

    def _note(self, events: EventFile | None, **scalars: float) -> None:
        if events is not None:
            events.add(self.trainer.steps, **scalars)
            for name, value in scalars.items():
                self.curves.setdefault(name, []).append((self.trainer.steps, value))

    def _draw(self) -> None:
        curves: Mapping[str, Curve] = self.curves
        assert self.options.log is not None
        for suffix in (".svg", ".png"):
            draw_curves(self.options.log / f"curves{suffix}", curves)

    @contextmanager
    def _stop_between_steps(self) -> Iterator[None]:
        """Ctrl-C ends the run after the present step, when the state is whole; a second one ends it at once."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:  # in the background
            yield
            return

        def stop(number: int, frame: Any) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            with suppress(TypeError):  # a handler that was not installed from Python cannot be put back
                signal.signal(signal.SIGINT, before)


def best_path(checkpoint: Path) -> Path:
    """Where the best epoch's state is kept."""
    return checkpoint.with_name(f"{checkpoint.stem}.best{checkpoint.suffix}")


def _check(options: Options) -> None:
    for name, least in (("epochs", 0), ("batch", 1), ("every", 1), ("patience", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ShapeError(f"fit: {name} is out of range", expected=f"at least {least}", got=value)
