"""NativeExecutable: a compiled program that can be called. The native engine and bundles make it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from smelt.buffer import HostBuffer, bytes_text
from smelt.bundle.stored import StoredModel
from smelt.device.api import Arrays
from smelt.dtype import Array
from smelt.engine_api import Closing, KernelUse, Signature
from smelt.errors import FileError, MemoryLimitError, RunError, ShapeError, UnsupportedError
from smelt.size import solve
from smelt.stop import Stop, has_started, note_donated

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.device.api import Device, Memory
    from smelt.device.program import Account, Bound, Program
    from smelt.shape import Shape
    from smelt.weights import Weights

MIN_MOVED = 8 << 20  # bytes of weights
_shares: list[bool] = []  # whether weights stay in their files
CHUNK = 4 << 20  # bytes that are copied at a time

NO_SIZES: Mapping[str, int] = MappingProxyType({})
Store: TypeAlias = Callable[[Arrays | None, Sequence[str]], StoredModel]


class Mapped(Protocol):
    """The file that arrays are views of."""

    def resident(self, array: Array) -> float:
        """The fraction of an array's pages that are in memory."""
        ...

    def release(self, array: Array) -> None:
        """Release the pages; the next access reads them from the file."""
        ...

    def check_size(self) -> None:
        """Raise FileError where the file was truncated after it was mapped."""
        ...


class NativeExecutable(Closing):
    """A compiled program. `prepare` gives a new executable, bound to its weights.

    `store(bound, targets)` gives the content of a bundle; None where the program cannot be saved.
    """

    def __init__(
        self,
        device: Device,
        signature: Signature,
        prepare: Program | None,
        main: Program,
        bound: Arrays | None,
        kernels: tuple[KernelUse, ...],
        store: Store | None = None,
        sizes: Mapping[str, int] = NO_SIZES,
        account: Account | None = None,
    ) -> None:
        self.device = device
        self.signature = signature
        self.kernels = kernels
        self._prepare = prepare
        self._main: Program | None = main
        self._arrays = bound
        self._bound = None if bound is None else main.bind(bound, sizes, account)
        self._sizes = sizes
        self._account = account
        self._program_bytes = 0
        self._release: Callable[[], object] | None = None  # returns its bytes to the account
        self._store = store
        self._file: Mapped | None = None
        self._moving: Thread | None = None
        first = len(main.arguments) - len(signature.inputs)
        self._donated = tuple(place - first for place in main.donated)
        self._replaced = {result: place - first for result, place in main.reused.items()}

    def with_store(self, store: Store) -> NativeExecutable:
        """The same program, whose bundle `store` makes."""
        bound = (self._open(), self._arrays, self.kernels, store, self._sizes, self._account)
        return NativeExecutable(self.device, self.signature, self._prepare, *bound)

    def within(self, account: Account, program: int) -> NativeExecutable:
        """The same program with its memory counted on an account: calls, and weights once `prepare` has bound them.

        `program`: bytes of the program itself.
        """
        bound = (self._open(), self._arrays, self.kernels, self._store, self._sizes)
        made = NativeExecutable(self.device, self.signature, self._prepare, *bound, account)
        made._program_bytes = program
        return made

    def within_bound(self, account: Account, sizes: Mapping[str, int]) -> NativeExecutable:
        """`limited_to` for weights that are bound already, those of a bundle. A call at these sizes must fit."""
        made = self.within(account, 0)
        if self._arrays is None:
            return made
        made = made._bind(self._open(), self._arrays, self._sizes)
        assert made._bound is not None
        needed = made._bound.call_bytes(sizes)
        if account.fixed + needed > account.limit:
            raise MemoryLimitError(
                "the model needs more memory than allowed",
                expected=f"at most {bytes_text(account.limit)}",
                got=f"{bytes_text(account.fixed)} for the weights, {bytes_text(needed)} for a call",
                remedy="set a higher memory_limit, or use smaller sizes",
            )
        return made

    def prepare(self, weights: Weights) -> NativeExecutable:
        main = self._open()
        if self._prepare is None:
            if self.signature.weights:
                raise UnsupportedError("the weights are part of the bundle", remedy="compile the model again")
            return self._bind(main, (), NO_SIZES)
        with self._count_loading(self._prepare):
            arrays = _weight_arrays(self.device, weights, [port.name for port in self.signature.weights])
            sizes = _solve_sizes(self.signature, arrays)
            named = self._prepare.bind((), account=self._account)
            try:
                values = named(tuple(arrays), _together(self.device, self._prepare))
            finally:
                named.close()
        return self._bind(main, values, sizes)

    @contextmanager
    def _count_loading(self, prepare: Program) -> Iterator[None]:
        """Count the weights and the packed weights while both are in memory."""
        account = self._account
        if account is None:
            yield
            return
        loaded, made = ([each.shape for each in self.signature.weights], prepare.results)
        count = self._program_bytes + sum(account.span(sum(map(_bytes, shapes))) for shapes in (loaded, made))
        account.take(count, "binding the weights")
        try:
            yield
        finally:
            account.give(count)

    def _bind(self, main: Program, values: Arrays, sizes: Mapping[str, int]) -> NativeExecutable:
        """This program with its weights; the memory that stays between calls is counted."""
        account = self._account
        bound = (values, self.kernels, self._store, sizes, account)
        made = NativeExecutable(self.device, self.signature, self._prepare, main, *bound)
        if account is not None:
            constants = main.constant_bytes + (self._prepare.constant_bytes if self._prepare else 0)
            held = account.span(sum(array.nbytes for array in values)) + constants
            account.take(held + self._program_bytes, "the packed weights")
            made._release = weakref.finalize(made, account.give, held + self._program_bytes)
        return made

    def prepared_like(self, other: NativeExecutable) -> NativeExecutable:
        """This program with the packed weights of another one that has the same layout."""
        assert other._arrays is not None, "the other one is bound"
        bound = (other._arrays, self.kernels, self._store, other._sizes)
        return NativeExecutable(self.device, self.signature, None, self._open(), *bound)

    def move_after_first_call(self, file: Mapped) -> None:
        """Copy the weights from the mapped file into huge pages after the first result, and release the file's pages.

        A file is mapped in small pages, which cost TLB misses on large weights. Arrays that the first call hardly reads
        (an embedding table) stay in the file: a copy would only take memory.
        """
        if not shares_weights() and sum(array.nbytes for array in self._arrays or ()) >= MIN_MOVED:
            self._file = file

    def _move(self, main: Program, arrays: Arrays, file: Mapped) -> None:
        """Bind the copied weights. Running calls keep the old binding, which is released after the last of them."""
        try:
            file.check_size()
        except FileError:
            return  # the next call raises it
        read = [i for i, array in enumerate(arrays) if file.resident(array) > 0.5]
        if sum(arrays[i].nbytes for i in read) < MIN_MOVED:
            return
        try:
            places = self.device.allocate([(arrays[i].dtype, arrays[i].shape) for i in read])
        except RunError:
            return  # not enough memory: keep the file's pages
        together = list(arrays)
        for i, place in zip(read, places, strict=True):
            _copy_out(arrays[i], place, file)
            together[i] = place
        bound = main.bind(tuple(together), self._sizes, self._account)
        if self._main is not None and self._bound is not None:
            # Running calls read pages of the file again; these are released after the last of them.
            weakref.finalize(self._bound, _release_all, file, [arrays[i] for i in read]).atexit = False
            self._arrays, self._bound = tuple(together), bound

    def __call__(self, *inputs: Any, keep: bool = False, stop: Stop | None = None) -> tuple[Any, ...]:
        """Run on arrays or buffers.

        Donated inputs are consumed by the call; with `keep` a copy is consumed instead. Afterwards a donated array has
        undefined content and a donated buffer cannot be used. A result that reuses its memory is the same array, or a
        new buffer on it: state is never copied. A call that fails, times out or is cancelled says whether it had
        started; only then are its donated inputs consumed.
        """
        if self._bound is None:
            self._open()
            raise RunError("the weights are not bound", remedy="executable = executable.prepare(weights)")
        if self._file is not None:
            return self._first_call(inputs, keep, stop)
        if not self._donated or len(inputs) != len(self.signature.inputs):
            return self._bound(inputs, None, stop)
        return self._call_donating(self._bound, inputs, keep, stop)

    def _first_call(self, inputs: tuple[Any, ...], keep: bool, stop: Stop | None) -> tuple[Any, ...]:
        file, self._file = self._file, None
        if file is not None:
            file.check_size()
        results = self(*inputs, keep=keep, stop=stop)
        main, arrays = self._main, self._arrays
        if file is not None and main is not None and arrays is not None:
            self._moving = Thread(target=self._move, args=(main, arrays, file), name="smelt weights", daemon=True)
            self._moving.start()
        return results

    def _call_donating(self, run: Bound, inputs: tuple[Any, ...], keep: bool, stop: Stop | None) -> tuple[Any, ...]:
        """A call that may overwrite donated inputs. Buffers that do not own their memory are copied."""
        kinds = {type(inputs[i]) for i in self._donated}
        is_plain = not keep and all(kind is np.ndarray or hasattr(kind, "client") for kind in kinds)
        try:
            results = run(inputs if is_plain else self._own(inputs, keep), None, stop)
        except BaseException as error:
            if not keep:
                note_donated(error, [self.signature.inputs[i].name for i in self._donated])
                if has_started(error):
                    self._consume(inputs)
            raise
        if is_plain:
            return results
        made: list[Any] = list(results)
        for result, i in self._replaced.items():
            if isinstance(inputs[i], HostBuffer):
                made[result] = HostBuffer(made[result], inputs[i].shape, owns=True)
        if not keep:
            self._consume(inputs)
        return tuple(made)

    def _own(self, inputs: tuple[Any, ...], keep: bool) -> tuple[Any, ...]:
        """The inputs, of which the donated ones may be overwritten."""
        given = list(inputs)
        for i in self._donated:
            if type(given[i]) is np.ndarray and not keep:
                continue
            if isinstance(given[i], HostBuffer):
                array, own = given[i].array, given[i].owns
            elif hasattr(given[i], "client"):  # in the device's memory
                array, own = given[i], True
            else:
                array = np.asarray(given[i])
                own = array is given[i]
            given[i] = array if own and not keep else array.copy()
        return tuple(given)

    def _consume(self, inputs: tuple[Any, ...]) -> None:
        for i in self._donated:
            if isinstance(inputs[i], HostBuffer):
                inputs[i].give_away(f"was donated as the input {self.signature.inputs[i].name!r}")

    @property
    def bound_bytes(self) -> int:
        """Bytes of the packed weights."""
        return sum(array.nbytes for array in self._arrays or ())

    def call_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of one call's arena, scratch and results; sizes that are not given count as 1."""
        assert self._bound is not None, "bound"
        return self._bound.call_bytes(sizes)

    @property
    def bound(self) -> Bound | None:
        """The device's program with its weights; None where they are not bound."""
        return self._bound

    @property
    def memory(self) -> Memory | None:
        """Bytes in use now; None where the weights are not bound."""
        return None if self._bound is None else self._bound.memory

    def to_stored(self, targets: Sequence[str] = ()) -> StoredModel:
        """The content of its bundle, with code for these targets."""
        self._open()
        if self._store is None:
            raise UnsupportedError("this program cannot be saved", remedy="compile the model with smelt.load")
        return self._store(self._arrays, targets)

    def serialize(self, *, targets: Sequence[str] = (), private_key: str | Path | None = None) -> bytes:
        """A bundle as bytes; `smelt.deserialize` reads it."""
        from smelt.bundle.write import serialize

        return serialize(self.to_stored(targets), private_key)

    def cancel(self) -> None:
        """End the calls that run now, from another thread: they raise CancelledError. Later calls run."""
        if self._bound is not None:
            self._bound.cancel()

    def trim(self) -> None:
        """Release the memory that no call uses now."""
        if self._bound is not None:
            self._bound.trim()

    def close(self) -> None:
        if self._bound is not None:
            self._bound.close()
        if self._release is not None:
            self._release()
        self._main = self._prepare = self._bound = self._arrays = self._store = None

    def _open(self) -> Program:
        if self._main is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        return self._main


def share_weights() -> None:
    """From now on leave the weights of bundles in their mapped files, whose pages processes share."""
    _shares[:] = [True]


def shares_weights() -> bool:
    return bool(_shares)


def _copy_out(array: Array, place: Array, file: Mapped) -> None:
    """Copy an array out of its file in chunks, so that at most one chunk is in memory twice."""
    source, target = (each.reshape(-1).view(np.uint8) for each in (array, place))
    for start in range(0, source.size, CHUNK):
        np.copyto(target[start : start + CHUNK], source[start : start + CHUNK])
        file.release(source[start : start + CHUNK])
    file.release(array)


def _release_all(file: Mapped, arrays: Sequence[Array]) -> None:
    for array in arrays:
        file.release(array)


def _solve_sizes(signature: Signature, arrays: Sequence[Array]) -> Mapping[str, int]:
    """The symbols that the weights' shapes determine; packed weights no longer have these shapes."""
    pairs = [(port.shape, array) for port, array in zip(signature.weights, arrays, strict=True) if port.shape.symbols]
    if not pairs or any(shape.rank != array.ndim for shape, array in pairs):  # the program reports what is wrong
        return NO_SIZES
    patterns = [size for shape, _ in pairs for size in shape.sizes]
    try:
        return solve(patterns, [size for _, array in pairs for size in array.shape])
    except ShapeError as error:
        expected = ", ".join(f"{port.name}: {port.shape}" for port in signature.weights)
        raise ShapeError(
            "the weights' sizes contradict each other",
            expected=expected,
            got=error.got,
            remedy="give the checkpoint that belongs to the model",
        ) from error


def _bytes(shape: Shape) -> int:
    """The bytes of a static shape. Packed weights with dynamic dimensions are counted once they are bound."""
    return math.prod(shape.numbers()) * shape.dtype.numpy.itemsize if shape.is_static else 0


def _weight_arrays(device: Device, weights: Weights, names: Sequence[str]) -> list[Any]:
    """The weights as `prepare` takes them: aligned, where they are read in place.

    Unaligned ones are read from their file into one block of memory: their mapped pages are never touched, and nothing
    is in memory twice.
    """
    buffers: list[Any] = [weights[name] for name in names]
    if device.has_own_memory:
        return [each.numpy() if isinstance(each, HostBuffer) else each for each in buffers]
    arrays = [each.numpy() for each in buffers]
    odd = [i for i, array in enumerate(arrays) if not (array.flags.aligned and array.flags.c_contiguous)]
    places = device.allocate([(arrays[i].dtype, arrays[i].shape) for i in odd])
    for i, place in zip(odd, places, strict=True):
        stored = getattr(weights, "stored", None)
        if stored is not None and place.nbytes:
            stored(names[i]).read_into(place.reshape(-1).view(np.uint8), 0)
        else:
            np.copyto(place, arrays[i])
        arrays[i] = place
    return arrays


def _together(device: Device, prepare: Program) -> Arrays | None:
    """Arrays for the results of `prepare`, contiguous in one block of memory; None if a size is dynamic.

    One block can use huge pages though each weight is small, and is read sequentially.
    """
    arrays: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    for shape in prepare.results:
        sizes = tuple(size for size in shape.sizes if isinstance(size, int))
        if len(sizes) < shape.rank:
            return None
        arrays.append((shape.dtype.numpy, sizes))
    return device.allocate(arrays)
