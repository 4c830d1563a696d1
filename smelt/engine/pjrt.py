"""The pjrt engine: XLA through jaxlib's PJRT client, for the CPU and every device with a plug-in.

Program → passes → StableHLO text with static sizes → XLA. One program per combination of sizes, in an LRU cache. Calls
are asynchronous and return buffers. With `isolate=True` XLA runs in a worker process: a program that makes XLA abort
raises `DeviceLost`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from smelt.buffer import Buffer, HostBuffer, check_array, check_shape, sizes_of
from smelt.bundle.container import HEAD
from smelt.device import pjrt
from smelt.device.pjrt_worker import IsolatedClient
from smelt.dtype import Quantized
from smelt.engine import pjrt_file
from smelt.engine.pjrt_buckets import Buckets, Cut, check_buckets, padded_to, round_up
from smelt.engine.pjrt_program import Compilation, DeviceClient, Prepare, SizedProgram
from smelt.engine.signature import list_donated, signature_of
from smelt.engine_api import Closing, Cost, KernelUse, Memory, Port, Signature
from smelt.errors import RunError, SmeltError, UnsupportedError
from smelt.ir.core import Func, Program, walk
from smelt.ir.ops.lapack import TARGETS
from smelt.passes import pipeline
from smelt.passes.lower import ON_ONE_DEVICE, SCANS, lower
from smelt.passes.lower_custom_calls import lower_custom_calls
from smelt.passes.lower_quantised_types import lower_quantised_types
from smelt.run.load import Gate
from smelt.shape import Shape
from smelt.stop import Stop, note_donated
from smelt.weights import Stored, Weights

LIMIT = 16  # programs per executable, one per combination of sizes


class PjrtEngine:
    """XLA on one device.

    `isolate=True` runs untrusted programs in a worker process; `timeout` bounds the seconds of one request to it.
    """

    name = "pjrt"

    def __init__(self, device: str = "cpu", *, isolate: bool = False, timeout: float | None = None) -> None:
        platform, _, index = device.partition(":")
        if platform not in pjrt.PLATFORMS or (index and not index.isdecimal()):
            known = ", ".join(pjrt.PLATFORMS)
            expected = f"{known}, or one with a number: cuda:1"
            raise UnsupportedError("unknown device", expected=expected, got=device, remedy="smelt devices lists them")
        self.device = device
        self.isolate = isolate
        self.timeout = timeout
        self._platform, self._index = platform, int(index or 0)
        self._worker: IsolatedClient | None = None
        self._opening = threading.Lock()  # a model may be compiled while its weights are loaded

    def missing(self) -> str | None:
        return pjrt.missing(self._platform)

    @property
    def client(self) -> DeviceClient:
        """The client; a new one after the last was lost."""
        if not self.isolate:
            return pjrt.client(self._platform, self._index)
        with self._opening:
            if self._worker is None or self._worker.lost is not None:
                self._worker = IsolatedClient(self._platform, self._index, self.timeout)
            return self._worker

    def compile(
        self, program: Program, *, donate: Iterable[str] = (), buckets: Buckets | None = None, limit: int = LIMIT
    ) -> PjrtExecutable:
        """Compile a program: now if all sizes are static, else at the first call with each combination of sizes.

        `donate`: inputs whose buffers a call may overwrite. `buckets`: sizes to round up to, by symbol. A program whose
        results padding would change is refused.
        """
        signature = signature_of(program.main)
        main, prepare = _parts(self._without_lapack(_without_quantised(_on_one_device(program))))
        donated = list_donated(signature, tuple(donate))
        padded = check_buckets(main, buckets or {})
        offset = len(main.main.args) - len(signature.inputs)
        client = self.client
        run = SizedProgram.of(main, client, limit, frozenset(offset + i for i in donated))
        first = Prepare.of(prepare, client, limit) if prepare else None
        executable = PjrtExecutable(client, signature, run, first, donated, padded)
        if run.is_static:
            run.find_program(())
        return executable

    def _without_lapack(self, program: Program) -> Program:
        """Decompose LAPACK calls into ops, unless XLA has the LAPACK routines."""
        called = any(
            op.attrs.get("call_target_name") in TARGETS for func in program.funcs.values() for op in walk(func.body)
        )
        return lower_custom_calls(program, TARGETS) if called and not pjrt.has_lapack(self._platform) else program

    def deserialize(self, data: bytes) -> PjrtExecutable:
        """Load the bytes of `serialize`, on the same kind of device with the same versions."""
        Gate().admit("the executable", data[:HEAD])
        client = self.client
        saved = pjrt_file.read(data, client.platform, client.version)
        run = SizedProgram.of(saved.main, client, saved.limit, frozenset(saved.donated_arguments))
        first = Prepare.of(saved.prepare, client, saved.limit) if saved.prepare else None
        for key, blob in saved.main_programs:
            run.restore(key, blob)
        if first is not None:
            for key, blob in saved.prepare_programs:
                first.computed.restore(key, blob)
        return PjrtExecutable(client, saved.signature, run, first, saved.donated, saved.buckets)

    def put(self, buffer: HostBuffer) -> Buffer:
        """Copy an array to the device. A read-only array (a mapped file) is aliased if the device can read it."""
        array = buffer.numpy()
        made: Buffer = self.client.put(array, buffer.shape, shared=not array.flags.writeable)
        return made

    def stage(self, largest: int) -> AbstractContextManager[Callable[[Stored], Buffer]]:
        client = self.client
        if isinstance(client, pjrt.Client) and client.platform != "cpu":
            return pjrt.Stage(client, largest)
        return nullcontext(lambda stored: self.put(HostBuffer(stored.fetch(), stored.shape, owns=False)).wait())

    def stats(self) -> dict[str, float]:
        return self.client.stats()

    def free_memory(self) -> int | None:
        """Free bytes on the device, if known."""
        client = self.client
        if not isinstance(client, pjrt.Client) or client.counts:
            return None
        memory = client.memory()
        return int(memory["bytes_limit"] - memory["bytes_in_use"]) if "bytes_limit" in memory else None


# ---- programs ----


def _on_one_device(program: Program) -> Program:
    """The program without sharding annotations and scans. Running sums over dynamic dimensions wait for the sizes."""
    rules = [*ON_ONE_DEVICE, *SCANS]
    named = {rule.pattern.op for rule in rules}
    if not any(op.name in named for func in program.funcs.values() for op in walk(func.body)):
        return program
    return pipeline.per_function(partial(lower, rules=rules))(program)


def _without_quantised(program: Program) -> Program:
    """Lower quantised types to integers and scales; XLA does not support them."""
    quantised = any(
        isinstance(value.type, Shape) and isinstance(value.type.dtype, Quantized)
        for func in program.funcs.values()
        for op in walk(func.body)
        for value in (*op.operands, *op.results)
    )
    return lower_quantised_types(program) if quantised else program


def _parts(program: Program) -> tuple[Program, Program | None]:
    """Compile @main and, if there are weights, @prepare."""
    optimised, _ = pipeline.run(program)
    others = [func for func in optimised.funcs.values() if func is not optimised.main and func.name != "prepare"]
    main = Program.of(_named_main(optimised.main), *others, declarations=optimised.declarations)
    prepare = optimised.funcs.get("prepare")
    return main, Program.of(_named_main(prepare), *others) if prepare is not None else None


def _named_main(func: Func) -> Func:
    return Func("main", func.body, "public", func.arg_attrs, func.result_attrs, location=func.location)


# ---- executables ----


def _is_of_kind(given: Any, kind: Any, client: DeviceClient) -> bool:
    """Whether an argument is a buffer of a shape, or an array of a kind, that was checked before."""
    if hasattr(given, "client"):
        return given.shape is kind and given.client is client
    return type(given) is np.ndarray and (given.shape, given.dtype) == kind


@dataclass(slots=True)
class _Bound:
    """The prepared weights, shared by clones and freed with the last of them."""

    buffers: tuple[Any, ...]
    owned: tuple[Any, ...]
    held: Any  # the buffers as first arguments of a run
    users: int = 1
    known: frozenset[int] = field(init=False)  # the buffers' identities

    def __post_init__(self) -> None:
        self.known = frozenset(map(id, self.buffers))

    def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            for buffer in self.owned:
                buffer.delete()
            self.held = None


class PjrtExecutable(Closing):
    """A compiled program. `prepare` returns a new executable, bound to its weights."""

    def __init__(
        self,
        client: DeviceClient,
        signature: Signature,
        run: SizedProgram,
        first: Prepare | None,
        donated: frozenset[int],
        buckets: Mapping[str, tuple[int, ...]],
        bound: _Bound | None = None,
    ) -> None:
        self.signature = signature
        self.client = client
        self.donated = donated
        self.buckets = buckets
        self._run: SizedProgram | None = run
        self._first = first
        self._bound = bound if bound is not None or first is not None else _Bound((), (), client.hold(()))
        self._ports = [(port.shape, f"the input {port.name!r}") for port in signature.inputs]
        self._fitting = [
            port.shape for port in signature.inputs
        ]  # the argument shapes of the last call, which were checked
        self._donations = [(i, f"was donated as the input {signature.inputs[i].name!r}") for i in sorted(donated)]
        self._open = not run.is_static
        self._sized: tuple[list[Any], Any] = ([], None)  # the kinds of the last call's arguments, and its program

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """The compiles so far and their reasons; clones and prepared executables share them."""
        return tuple(self._program().compilations)

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """One entry for all ops: XLA does not report its kernels."""
        ops = sorted({op.name for op in walk(self._program().source.main.body)})
        return (KernelUse("xla", tuple(ops), 1),) if ops else ()

    # ---- weights ----

    def prepare(self, weights: Weights | Mapping[str, Any]) -> PjrtExecutable:
        """A new executable, bound to its weights: arrays or buffers. The caller still owns the buffers."""
        run = self._program()
        if self._first is None:
            return PjrtExecutable(self.client, self.signature, run, None, self.donated, self.buckets)
        placed = [self._place(weights[port.name], port) for port in self.signature.weights]
        buffers = self._first([buffer for buffer, _ in placed])
        theirs = {id(buffer) for buffer, made in placed if not made}
        owned = {id(buffer): buffer for buffer in buffers if id(buffer) not in theirs}
        for buffer, made in placed:
            if made and id(buffer) not in owned:
                buffer.delete()  # only @prepare reads it
        bound = _Bound(tuple(buffers), tuple(owned.values()), self.client.hold(buffers))
        return PjrtExecutable(self.client, self.signature, run, self._first, self.donated, self.buckets, bound)

    def _place(self, given: Any, port: Port) -> tuple[Any, bool]:
        """A weight on the device, and whether it was copied there by this call."""
        what = f"the weight {port.name!r}"
        if hasattr(given, "client"):
            pjrt.check_placed(given, self.client, port.shape if port.shape.is_static else given.shape, what)
            return given, False
        array = check_array(given.numpy() if isinstance(given, HostBuffer) else given, port.shape, what)
        shape = Shape.of(port.shape.dtype, array.shape)
        return self.client.put(array, shape, shared=not array.flags.writeable), True

    # ---- calls ----

    def __call__(self, *inputs: Any, keep: bool = False, stop: Stop | None = None) -> tuple[Any, ...]:
        """Run on arrays or buffers. The results are buffers that are filled asynchronously.

        A donated buffer is consumed by the call; with `keep` a copy is consumed instead. XLA cannot end a run early:
        with a `stop` the call waits for the results and may give up waiting while the device continues.
        """
        if stop is None:
            return self._begin(inputs, keep)
        stop.check()
        results = self._begin(inputs, keep)
        try:
            stop.wait_for(results)
        except SmeltError as error:
            error.started = True
            if self._donations and not keep:
                note_donated(error, [self.signature.inputs[place].name for place, _ in self._donations])
            raise
        return results

    def _begin(self, inputs: tuple[Any, ...], keep: bool) -> tuple[Any, ...]:
        bound = self._bound
        if bound is None:
            self._program()
            raise RunError("the weights are not bound", remedy="executable = executable.prepare(weights)")
        if len(inputs) != len(self._ports):
            names = [port.name for port in self.signature.inputs]
            raise RunError("wrong number of inputs", expected=names, got=len(inputs), remedy="one array per input")
        if self._open:
            return self._sized_call(bound, inputs, keep)
        client, fitting = self.client, self._fitting
        arguments = list(inputs)
        for place, given in enumerate(inputs):
            if hasattr(given, "client"):
                if given.client is not client or given.shape is not fitting[place]:
                    pjrt.check_placed(given, client, *self._ports[place])
                    fitting[place] = given.shape
            else:
                shape, what = self._ports[place]
                exact = type(given) is np.ndarray and given.shape == shape.sizes and given.dtype == shape.dtype.numpy
                arguments[place] = client.put(given if exact else check_array(given, shape, what), shape)
        return self._start(self._program().find_program(()), bound, arguments, keep)

    def _sized_call(self, bound: _Bound, inputs: Sequence[Any], keep: bool) -> tuple[Any, ...]:
        run, (kinds, latest) = self._program(), self._sized
        if len(kinds) == len(inputs) and all(map(_is_of_kind, inputs, kinds, repeat(self.client))):
            return self._start(latest, bound, self._put_all(inputs), keep)
        arrays = []
        for given, (shape, what) in zip(inputs, self._ports, strict=True):
            if hasattr(given, "client"):
                pjrt.check_placed(given, self.client, shape if shape.is_static else given.shape, what)
                check_shape(given.shape, shape, what)
                arrays.append(given)
            else:
                arrays.append(check_array(given, shape, what))
        shapes = [sizes_of(each) for each in (*bound.buffers, *arrays)]
        if not self.buckets:
            latest = run.find_program(tuple(shapes))
            self._sized = (
                [each.shape if hasattr(each, "client") else (each.shape, each.dtype) for each in arrays],
                latest,
            )
            return self._start(latest, bound, self._put_all(arrays), keep)
        values = run.values(tuple(shapes))
        rounded = {**values, **{name: round_up(values[name], sizes) for name, sizes in self.buckets.items()}}
        if rounded == values:
            return self._start(run.find_program(tuple(shapes)), bound, self._put_all(arrays), keep)
        padded = [
            padded_to(each, port.shape.numbers(rounded))
            for each, port in zip(arrays, self.signature.inputs, strict=True)
        ]
        key = (*shapes[: len(bound.buffers)], *(each.shape for each in padded))
        results = self._start(run.find_program(key), bound, self._put_all(padded), False)
        wanted = [value.shape.numbers(values) for value in run.source.main.results]
        return tuple(Cut.of(result, sizes) for result, sizes in zip(results, wanted, strict=True))

    def _put_all(self, arrays: Sequence[Any]) -> list[Any]:
        placed = []
        for given, (shape, _) in zip(arrays, self._ports, strict=True):
            if hasattr(given, "client"):
                placed.append(given)
            else:
                placed.append(self.client.put(given, Shape.of(shape.dtype, given.shape)))
        return placed

    def _start(self, loaded: Any, bound: _Bound, arguments: list[Any], keep: bool) -> tuple[Any, ...]:
        run = self._program()
        if not self.donated:
            return run.start(loaded, arguments, bound.held)
        if keep:
            for place, _ in self._donations:
                arguments[place] = arguments[place].copy()
        given = {id(each) for each in arguments}
        if len(given) < len(arguments) or not bound.known.isdisjoint(given):
            self._check_given_once(bound, arguments)
        results = run.start(loaded, arguments, bound.held)
        for place, reason in self._donations:
            arguments[place].give_away(reason)
        return results

    def _check_given_once(self, bound: _Bound, arguments: Sequence[Any]) -> None:
        """Check that no donated buffer is another input or a weight."""
        for place, _ in self._donations:
            if id(arguments[place]) in bound.known or sum(each is arguments[place] for each in arguments) > 1:
                name = self.signature.inputs[place].name
                raise RunError(f"the input {name!r} is donated and given twice", remedy=".copy() one of them")

    # ---- cost, copies, closing ----

    def memory(self) -> Memory:
        """Memory of the program for the latest sizes."""
        found: Memory = self._latest().memory()
        return found

    def cost(self) -> Cost:
        """Cost of the program for the latest sizes."""
        found: Cost = self._latest().cost()
        return found

    def _latest(self) -> Any:
        latest = self._program().latest
        if latest is None:
            raise RunError(
                "nothing is compiled yet", expected="known sizes", remedy="call it once with inputs of these sizes"
            )
        return latest

    def clone(self) -> PjrtExecutable:
        """An independent executable with the same program and weights; each is closed on its own."""
        run = self._program()
        if self._bound is not None:
            self._bound.users += 1
        return PjrtExecutable(self.client, self.signature, run, self._first, self.donated, self.buckets, self._bound)

    def serialize(self) -> bytes:
        """The compiled programs as bytes, without weights, for `PjrtEngine.deserialize`."""
        run = self._program()
        first = self._first
        saved = pjrt_file.Saved(
            signature=self.signature,
            main=run.source,
            prepare=first.source if first else None,
            donated=self.donated,
            donated_arguments=run.donated,
            buckets=self.buckets,
            limit=run.limit,
            main_programs=[(key, each.serialize()) for key, each in run.kept.items()],
            prepare_programs=[(key, each.serialize()) for key, each in first.computed.kept.items()] if first else [],
        )
        return pjrt_file.write(saved, self.client.platform, self.client.version)

    def close(self) -> None:
        if self._bound is not None:
            self._bound.release()
        self._run = self._bound = None

    def __enter__(self) -> PjrtExecutable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _program(self) -> SizedProgram:
        if self._run is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        return self._run
