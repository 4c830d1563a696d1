"""A mesh of devices of one PJRT client: sharded arrays, and programs that XLA partitions with Shardy.

In: StableHLO text with `sdy.sharding` and NumPy arrays. Out: sharded buffers. `engine.pjrt_mesh` calls it. Like
`pjrt.py` it needs jaxlib, not jax.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from smelt.buffer import HostBuffer, in_thread
from smelt.device import pjrt
from smelt.dtype import Array
from smelt.errors import DeviceError, RunError, UnsupportedError
from smelt.mesh import Mesh, Partition
from smelt.shape import Shape

CPU_DEVICES = 1024  # each takes memory and threads of XLA, and it numbers about twice as many


class MeshClient:
    """A client with the devices of a mesh. The CPU is split into as many devices as the mesh needs."""

    def __init__(self, platform: str, mesh: Mesh) -> None:
        on_cpu = platform == "cpu"
        if on_cpu and mesh.count > CPU_DEVICES:
            raise DeviceError(
                "too many devices for a processor",
                expected=f"at most {CPU_DEVICES}",
                got=f"{mesh.count} for {mesh}",
                remedy="use a smaller mesh",
            )
        jax, xla, hlo = pjrt.modules()
        with pjrt.jaxlib_calls(f"opening {platform}", DeviceError):
            raw = xla.make_cpu_client(num_devices=mesh.count) if on_cpu else pjrt.make_plugin_client(xla, platform)
            devices = raw.local_devices()
        if len(devices) < mesh.count:
            raise DeviceError(
                "not enough devices for the mesh",
                expected=f"{mesh.count} for {mesh}",
                got=len(devices),
                remedy="use a smaller mesh; smelt devices lists the devices",
            )
        self.platform, self.mesh = platform, mesh
        self.lost: str | None = None
        self.watch: pjrt.Watch | None = None  # running calls, counted from the first call of `stats`
        self._used = self._peak = 0  # bytes of buffers on each device
        self._counting = threading.Lock()
        self._raw, self._jax, self._hlo = raw, jax, hlo
        self._devices = tuple(devices[: mesh.count])

        class _One(jax.SingleDeviceSharding):  # type: ignore[misc, name-defined]  # one device, one whole shard
            memory_kind = None

            def _to_xla_hlo_sharding(self, rank: int) -> Any:
                return hlo.HloSharding.replicate()

        class _Split(jax.GSPMDSharding):  # type: ignore[misc, name-defined]  # all devices, one shard each
            memory_kind = None

            def _to_xla_hlo_sharding(self, rank: int) -> Any:
                return self._hlo_sharding

        with pjrt.jaxlib_calls("placing arrays", DeviceError):
            self._list = jax.DeviceList(self._devices)
            self._ones = [_One(device) for device in self._devices]
            self._split = _Split
            semantics = jax.HostBufferSemantics
            self._copied, self._shared = semantics.IMMUTABLE_ONLY_DURING_CALL, semantics.ZERO_COPY

    @property
    def version(self) -> str:
        return f"jaxlib {pjrt.version()}, {self._raw.platform_version}, {self.mesh}"

    def sharding(self, partition: Partition) -> Any:
        """A partition as jaxlib's sharding: tiles in the order of the tensor's axes, replicated along the others."""
        mesh = self.mesh
        used = [along for along in partition if along is not None]
        if not used:
            return self._split(self._list, self._hlo.HloSharding.replicate())
        names = list(mesh.axes)
        rest = [name for name in names if name not in used]
        order = [names.index(name) for name in (*used, *rest)]
        tiles = [1 if along is None else mesh.axes[along] for along in partition]
        repeated = int(np.prod([mesh.axes[name] for name in rest], dtype=np.int64)) if rest else 1
        last = [self._hlo.OpSharding.Type.REPLICATED] if repeated > 1 else []
        with pjrt.jaxlib_calls("a sharding", DeviceError):
            made = self._hlo.HloSharding.iota_tile(
                dims=[*tiles, *([repeated] if repeated > 1 else [])],
                reshape_dims=list(mesh.axes.values()),
                transpose_perm=order,
                subgroup_types=last,
            )
            return self._split(self._list, made)

    def put(self, array: Array, shape: Shape, partition: Partition) -> MeshBuffer:
        """Copy the shards of an array to their devices. Contiguous shards of a read-only array are aliased."""
        pieces = self.mesh.pieces(partition, array.shape)
        return self.assemble([array[piece] for piece in pieces], Shape.of(shape.dtype, array.shape), partition)

    def assemble(self, pieces: Sequence[Array], shape: Shape, partition: Partition) -> MeshBuffer:
        """Make a buffer of one array per device."""
        parts = []
        for piece, device, one in zip(pieces, self._devices, self._ones, strict=True):
            shared = not piece.flags.writeable and piece.flags.c_contiguous
            whole = piece if piece.flags.c_contiguous else np.ascontiguousarray(piece)
            semantics = self._shared if shared else self._copied
            with pjrt.jaxlib_calls("a copy to the device", RunError):
                aval = pjrt.aval(whole.shape, whole.dtype)
                parts.append(self._jax.batched_device_put(aval, one, [whole], [device], True, False, semantics, True))
        aval = pjrt.aval(shape.numbers(), shape.dtype.numpy)
        with pjrt.jaxlib_calls("an array of pieces", DeviceError):
            raw = self._jax.ArrayImpl(aval, self.sharding(partition), parts, True, True)
        return MeshBuffer(raw, shape, partition, self)

    def compile(self, text: str, results: Sequence[tuple[Shape, Partition]]) -> MeshProgram:
        jax, count = self._jax, self.mesh.count
        with pjrt.jaxlib_calls("the program", UnsupportedError):
            options = jax.CompileOptions()
            options.num_replicas, options.num_partitions = 1, count
            build = options.executable_build_options
            build.num_replicas, build.num_partitions = 1, count
            build.use_spmd_partitioning = build.use_shardy_partitioner = True
            numbers = np.array([[device.id for device in self._devices]])
            options.device_assignment = build.device_assignment = jax.DeviceAssignment.create(numbers)
            raw = self._raw.compile_and_load(text, self._list, options)
        return MeshProgram(raw, results, self)

    def count(self, change: int) -> None:
        """Count bytes that a buffer allocates (positive) or frees (negative) on each device."""
        with self._counting:
            self._used += change
            self._peak = max(self._peak, self._used)

    def free_memory(self) -> int | None:
        """Bytes that are free on all devices together, counting the fullest for each; None if unknown."""
        found = [device.memory_stats() or {} for device in self._devices] if self.platform != "cpu" else [{}]
        if not all("bytes_limit" in each for each in found):
            return None
        return len(found) * int(min(each["bytes_limit"] - each["bytes_in_use"] for each in found))

    def stats(self) -> dict[str, float]:
        """Bytes of buffers in total and per device, running calls, and the busy fraction.

        Shards have equal sizes, so every device holds the same. Calls are counted from the first use of this method.
        """
        if self.watch is None:
            self.watch = pjrt.Watch()
        queue, busy = self.watch.activity.sample()
        count = self.mesh.count
        totals = {"bytes_in_use": self._used * count, "peak_bytes_in_use": self._peak * count}
        each = {f"bytes_in_use:{device}": self._used for device in range(count)}
        return {**totals, **each, "queue": queue, "busy": busy}


class MeshBuffer:
    """A sharded array. The run that computes it may be in progress: reading waits for it and gathers the shards."""

    def __init__(self, raw: Any, shape: Shape, partition: Partition, client: MeshClient) -> None:
        self._raw = raw
        self._gone: str | None = None
        self.shape, self.partition, self.client = shape, partition, client
        splits = math.prod(client.mesh.axes[along] for along in partition if along is not None)
        self._share = math.prod(shape.numbers()) * shape.dtype.numpy.itemsize // splits  # bytes on each device
        client.count(self._share)

    def __del__(self) -> None:
        if self._gone is None:
            self.client.count(-self._share)

    @property
    def raw(self) -> Any:
        if self._gone is not None:
            raise RunError(
                f"the buffer {self._gone}", expected=f"{self.shape} in use", got=self._gone, remedy=pjrt.KEEP
            )
        return self._raw

    @property
    def pieces(self) -> list[Array]:
        """The shard of each device."""
        self.wait()
        return [each._single_device_array_to_np_array_did_copy()[0] for each in self.raw._arrays]

    def wait(self) -> MeshBuffer:
        with pjrt.jaxlib_calls("a run", RunError):
            self.raw.block_until_ready()
        return self

    def copy_to_host(self) -> MeshBuffer:
        """Begin to copy the contents to the host, for those who read them later."""
        with pjrt.jaxlib_calls("a copy to the host", RunError):
            self.raw.copy_to_host_async()
        return self

    def __await__(self) -> Generator[Any, Any, MeshBuffer]:
        return in_thread(self.wait).__await__()

    def numpy(self) -> Array:
        """The contents, gathered on the host."""
        mesh, sizes = self.client.mesh, self.shape.numbers()
        pieces, places = self.pieces, mesh.pieces(self.partition, sizes)
        whole: Array = np.empty(sizes, self.shape.dtype.numpy)
        for device in mesh.owners(self.partition, sizes):
            whole[places[device]] = pieces[device]
        return whole

    def to_host(self) -> HostBuffer:
        return HostBuffer(self.numpy(), self.shape, owns=True)

    def copy(self) -> MeshBuffer:
        """Copy to a new buffer with the same sharding."""
        return self.client.assemble([np.array(piece) for piece in self.pieces], self.shape, self.partition)

    @property
    def is_deleted(self) -> bool:
        return self._gone is not None

    def delete(self) -> None:
        if self._gone is None:
            self._raw.delete()
            self.give_away("was deleted")

    def give_away(self, reason: str) -> None:
        if self._gone is None:
            self.client.count(-self._share)
        self._gone, self._raw = reason, None

    def __enter__(self) -> MeshBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=None if copy is False else copy)

    def __repr__(self) -> str:
        split = [along or "whole" for along in self.partition]
        return (
            f"<{self.shape} on {self.client.mesh}, {', '.join(split)}{', which ' + self._gone if self._gone else ''}>"
        )


class MeshProgram:
    """A compiled program on all devices."""

    def __init__(self, raw: Any, results: Sequence[tuple[Shape, Partition]], client: MeshClient) -> None:
        self._raw, self.client, self.results = raw, client, tuple(results)
        make: Callable[..., Any] = client._jax.array_result_handler
        self._handlers = []
        for shape, partition in self.results:
            aval = pjrt.aval(shape.numbers(), shape.dtype.numpy)
            with pjrt.jaxlib_calls("results", DeviceError):
                self._handlers.append(pjrt.result_handler(make, aval, client.sharding(partition)))
        self._lock = threading.Lock()  # two runs that reach a collective in different orders would deadlock

    def __call__(self, arguments: Sequence[MeshBuffer]) -> tuple[MeshBuffer, ...]:
        """Start a run. The results are filled asynchronously."""
        raws, watch = [each.raw for each in arguments], self.client.watch
        with self._lock, pjrt.jaxlib_calls("the run", RunError):
            made = self._raw.execute_sharded(raws).consume_with_handlers(self._handlers)
        if watch is not None:
            watch.activity.begin()
            watch.watch_call(made)
        pairs = zip(made, self.results, strict=True)
        return tuple(MeshBuffer(raw, shape, partition, self.client) for raw, (shape, partition) in pairs)

    def text(self) -> str:
        """The optimised HLO, collectives included."""
        return str(self._raw.get_hlo_text())
