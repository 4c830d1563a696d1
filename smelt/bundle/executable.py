"""NativeExecutable: a compiled program as something that can be called, from the native engine or from a bundle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smelt.bundle.stored import StoredModel
from smelt.bundle.write import serialize
from smelt.device import runtime
from smelt.dtype import Array
from smelt.engine_api import KernelUse, Signature
from smelt.errors import RunError, UnsupportedError
from smelt.weights import Weights

ALIGN = 64  # bytes

Arrays: TypeAlias = tuple[Array, ...]
Store: TypeAlias = Callable[[Arrays | None, Sequence[str]], StoredModel]


class NativeExecutable:
    """A compiled program. Weights are bound by `prepare`, which leaves this one as it is.

    `store(bound, targets)` says what a file has to hold; None where the program cannot be saved.
    """

    def __init__(
        self,
        signature: Signature,
        prepare: runtime.Program | None,
        main: runtime.Program,
        bound: Arrays | None,
        kernels: tuple[KernelUse, ...],
        store: Store | None = None,
    ) -> None:
        self.signature = signature
        self.kernels = kernels
        self._prepare = prepare
        self._main: runtime.Program | None = main
        self._arrays = bound
        self._bound = None if bound is None else main.bind(bound)
        self._store = store

    def prepare(self, weights: Weights) -> NativeExecutable:
        main = self._open()
        if self._prepare is None:
            if self.signature.weights:
                raise UnsupportedError("the weights are part of the bundle", remedy="compile the model again")
            return NativeExecutable(self.signature, None, main, (), self.kernels, self._store)
        arrays = [weights[port.name].numpy() for port in self.signature.weights]
        named = self._prepare.bind(())
        values = named(tuple(arrays), _together(self._prepare))
        named.close()
        return NativeExecutable(self.signature, self._prepare, main, values, self.kernels, self._store)

    def __call__(self, *inputs: Array) -> Arrays:
        if self._bound is None:
            self._open()
            raise RunError("the weights are not bound", expected=".prepare(weights) before the first call")
        return self._bound(inputs)

    @property
    def memory(self) -> runtime.Memory | None:
        """Bytes that it holds now; None where the weights are not bound."""
        return None if self._bound is None else self._bound.memory

    def stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """What a bundle has to hold, with code for the named processors."""
        self._open()
        if self._store is None:
            raise UnsupportedError("this program cannot be saved", remedy="compile the model with smelt.load")
        return self._store(self._arrays, targets)

    def serialize(self, *, targets: Sequence[str] = (), private_key: str | Path | None = None) -> bytes:
        """A bundle as bytes; `smelt.deserialize` reads it."""
        return serialize(self.stored(targets), private_key)

    def cancel(self) -> None:
        """Stop the calls that run now, from another thread: they raise RunError. Later calls run."""
        if self._bound is not None:
            self._bound.cancel()

    def close(self) -> None:
        if self._bound is not None:
            self._bound.close()
        self._main = self._bound = self._arrays = self._store = None

    def _open(self) -> runtime.Program:
        if self._main is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        return self._main


def _together(prepare: runtime.Program) -> tuple[Array, ...] | None:
    """Arrays for what `prepare` gives, side by side in one block of memory; None where sizes are open.

    One block can have huge pages though each weight is small, and weights are read from one end to the other.
    """
    arrays: list[tuple[np.dtype[Any], tuple[int, ...], int]] = []
    total = 0
    for shape in prepare.results:
        sizes = tuple(size for size in shape.sizes if isinstance(size, int))
        if len(sizes) < shape.rank:
            return None
        arrays.append((shape.dtype.numpy, sizes, total))
        total += -(-math.prod(sizes) * shape.dtype.numpy.itemsize // ALIGN) * ALIGN
    block = prepare.runtime.empty((total,), np.dtype(np.uint8))
    return tuple(
        block[at : at + math.prod(sizes) * dtype.itemsize].view(dtype).reshape(sizes) for dtype, sizes, at in arrays
    )
