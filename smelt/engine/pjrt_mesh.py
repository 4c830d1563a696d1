"""The pjrt engine on several devices: sharded programs through Shardy and XLA.

Program with `sdy.sharding` → passes → StableHLO text with a mesh → XLA, one program per combination of sizes. Weights
are loaded shard by shard. `smelt.platform(mesh=…)` makes it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

from smelt.buffer import Buffer, HostBuffer, check_array
from smelt.device import pjrt
from smelt.device.pjrt_mesh import MeshBuffer, MeshClient, MeshProgram
from smelt.dim import solve
from smelt.engine.pjrt_program import lower_scans
from smelt.engine.signature import list_donated, signature_of
from smelt.engine_api import Closing, KernelUse, Signature
from smelt.errors import DeviceError, RunError, ShapeError, SizeError, UnsupportedError
from smelt.ir.attributes import DialectAttr
from smelt.ir.core import Attrs, Func, Op, Program, walk
from smelt.ir.text import print_program
from smelt.mesh import Mesh, Partition, sharding_text
from smelt.passes import pipeline
from smelt.passes.specialise import specialise
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from smelt.stop import Stop
from smelt.weights import Stored, Weights

SHARDING = "sdy.sharding"


class MeshEngine:
    """XLA on a mesh of devices."""

    name = "pjrt"

    def __init__(self, device: str, mesh: Mesh) -> None:
        if device not in pjrt.PLATFORMS:
            known = ", ".join(pjrt.PLATFORMS)
            raise UnsupportedError("unknown device", expected=known, got=device, remedy="smelt devices lists them")
        self.device, self.mesh = device, mesh
        self._client: MeshClient | None = None
        self._opening = threading.Lock()  # a model may be compiled while its weights are loaded

    def missing(self) -> str | None:
        return pjrt.missing(self.device)

    @property
    def client(self) -> MeshClient:
        with self._opening:
            if self._client is None or self._client.lost is not None:
                self._client = MeshClient(self.device, self.mesh)
            return self._client

    def compile(self, program: Program, *, donate: Iterable[str] = ()) -> MeshExecutable:
        """Compile a program. `donate`: inputs whose shards a call may overwrite."""
        return MeshExecutable(self.client, program, list_donated(signature_of(program.main), tuple(donate)))

    def put(self, buffer: HostBuffer) -> Buffer:
        """A sharded buffer. The sharding is given by the names of its axes."""
        return self.client.put(buffer.numpy(), buffer.shape, self._partition(buffer.shape))

    def stage(self, largest: int) -> AbstractContextManager[Callable[[Stored], Buffer]]:
        """Load weights: each device gets its shard of the mapped file, so no device holds a whole tensor."""
        client = self.client

        def place(stored: Stored) -> Buffer:
            return client.put(stored.fetch(), stored.shape, self._partition(stored.shape)).wait()

        return nullcontext(place)

    def _partition(self, shape: Shape) -> Partition:
        return self.mesh.partition(shape.names) if shape.names else (None,) * shape.rank

    def stats(self) -> dict[str, float]:
        return self.client.stats()

    def free_memory(self) -> int | None:
        """Bytes that are free on all devices together, if known: as many on each as on the fullest."""
        return self.client.free_memory()


def partition_of(attrs: Attrs, rank: int) -> Partition:
    """The partition of an argument or result from its attribute; replicated if there is none."""
    sharding = attrs.get(SHARDING)
    if not isinstance(sharding, DialectAttr):
        return (None,) * rank
    inside = sharding.body.partition("[")[2].rpartition("]")[0]
    found = tuple(part.strip().strip('{}"') or None for part in inside.split(",")) if inside else ()
    assert len(found) == rank, f"{sharding.body} for {rank} axes"
    return found


class MeshExecutable(Closing):
    """A compiled program on a mesh. `prepare` returns a new executable, bound to its weights."""

    def __init__(
        self,
        client: MeshClient,
        program: Program,
        donated: frozenset[int] = frozenset(),
        programs: dict[tuple[tuple[int, ...], ...], MeshProgram] | None = None,
        bound: Sequence[MeshBuffer] | None = None,
        owned: Sequence[MeshBuffer] = (),
    ) -> None:
        main = program.main
        self.client, self.program = client, program
        self.signature: Signature = signature_of(main)
        self.donated = donated  # among the inputs
        self._inputs = [place for place, attrs in enumerate(main.arg_attrs) if WEIGHT not in attrs]
        self._partitions = [
            partition_of(each, arg.shape.rank) for arg, each in zip(main.args, main.arg_attrs, strict=True)
        ]
        self._programs = {} if programs is None else programs
        self._bound = tuple(bound) if bound is not None else None if self.signature.weights else ()
        self._owned = tuple(owned)
        self._closed = False
        if all(arg.shape.is_static for arg in main.args):
            self._load(tuple(arg.shape.numbers() for arg in main.args))

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        ops = sorted({op.name for op in walk(self.program.main.body)})
        return (KernelUse("xla", tuple(ops), 1),) if ops else ()

    def prepare(self, weights: Weights | Mapping[str, Any]) -> MeshExecutable:
        self._open()
        main = self.program.main
        places = [i for i, attrs in enumerate(main.arg_attrs) if WEIGHT in attrs]
        owned: list[MeshBuffer] = []
        bound = []
        for place, port in zip(places, self.signature.weights, strict=True):
            bound.append(self._place(weights[port.name], port.shape, place, f"the weight {port.name!r}", owned))
        return MeshExecutable(self.client, self.program, self.donated, self._programs, bound, owned)

    def _place(self, given: Any, shape: Shape, place: int, what: str, owned: list[MeshBuffer]) -> MeshBuffer:
        partition = self._partitions[place]
        if isinstance(given, MeshBuffer):
            if given.client is not self.client:
                raise DeviceError(f"{what} is on another mesh", expected=self.client.mesh, got=given.client.mesh)
            if given.partition == partition:
                return given
            given = given.numpy()  # sharded differently
        array = check_array(given.numpy() if isinstance(given, HostBuffer) else given, shape, what)
        made = self.client.put(array, shape, partition)
        owned.append(made)
        return made

    def __call__(self, *inputs: Any, stop: Stop | None = None) -> tuple[MeshBuffer, ...]:
        """Run on arrays or buffers. XLA cannot end a run early: `stop` is checked before it starts."""
        self._open()
        if stop is not None:
            stop.check()
        if self._bound is None:
            raise RunError("the weights are not bound", remedy="executable = executable.prepare(weights)")
        ports = self.signature.inputs
        if len(inputs) != len(ports):
            names = [port.name for port in ports]
            raise RunError("wrong number of inputs", expected=names, got=len(inputs), remedy="one array per input")
        bound, rest = iter(self._bound), iter(zip(inputs, ports, strict=True))
        arguments: list[MeshBuffer] = []
        for place, attrs in enumerate(self.program.main.arg_attrs):
            if WEIGHT in attrs:
                arguments.append(next(bound))
            else:
                given, port = next(rest)
                arguments.append(self._place(given, port.shape, place, f"the input {port.name!r}", []))
        times = Counter(map(id, arguments)) if self.donated else Counter[int]()
        for i in self.donated:
            if times[id(arguments[self._inputs[i]])] > 1:
                raise RunError(f"the input {ports[i].name!r} is donated and given twice", remedy=".copy() one of them")
        results = self._load(tuple(each.shape.numbers() for each in arguments))(arguments)
        for i in self.donated:
            for each in (inputs[i], arguments[self._inputs[i]]):  # the same, unless it was sharded differently
                if isinstance(each, MeshBuffer):
                    each.give_away(f"was donated as the input {ports[i].name!r}")
        return results

    def _load(self, key: tuple[tuple[int, ...], ...]) -> MeshProgram:
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = self._compile(key)
        return found

    def _compile(self, key: tuple[tuple[int, ...], ...]) -> MeshProgram:
        main = self.program.main
        try:
            values = solve([size for arg in main.args for size in arg.shape.sizes], [n for sizes in key for n in sizes])
        except ShapeError as error:
            raise SizeError(error.message, expected=[str(arg.shape) for arg in main.args], got=list(key)) from error
        plain = self.program.replace(Func("main", main.body, "public", location=main.location))
        optimised, _ = pipeline.run(plain)
        fixed = lower_scans(specialise(optimised, values))
        results = [
            (value.shape, partition_of(attrs, value.shape.rank))
            for value, attrs in zip(fixed.main.results, main.result_attrs, strict=True)
        ]
        for shape, partition in results:
            self.client.mesh.pieces(partition, shape.numbers(), "a result")
        donated = {self._inputs[i] for i in self.donated}
        attrs = tuple(_attribute(partition, i in donated) for i, partition in enumerate(self._partitions))
        entry = Func("main", fixed.main.body, "public", attrs, tuple(_attribute(each) for _, each in results))
        mesh = Op("sdy.mesh", (), (), {"sym_name": "mesh", "mesh": DialectAttr("sdy", "mesh", self.client.mesh.text)})
        others = [func for func in fixed.funcs.values() if func is not fixed.main]
        text = print_program(Program.of(entry, *others, declarations=(mesh,)), export=True)
        return self.client.compile(text, results)

    def partitioned_hlo(self) -> str:
        """XLA's optimised HLO of the program for the latest sizes, collectives included."""
        if not self._programs:
            raise RunError(
                "nothing is compiled yet", expected="known sizes", remedy="call it once with inputs of these sizes"
            )
        return list(self._programs.values())[-1].text()

    def close(self) -> None:
        for buffer in self._owned:
            buffer.delete()
        self._owned, self._bound, self._closed = (), None, True

    def _open(self) -> None:
        if self._closed:
            raise RunError("the executable is closed", remedy="compile or load the model again")


def _attribute(partition: Partition, is_donated: bool = False) -> Attrs:
    sharding = {SHARDING: DialectAttr("sdy", "sharding", sharding_text(partition))}
    return MappingProxyType({**sharding, "jax.buffer_donor": True} if is_donated else sharding)
