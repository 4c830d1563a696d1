"""Device: what builds, loads and runs the native engine's code. One class for each kind; `device.registry` lists them.

The engine, bundles and `smelt.load` know a device by this interface alone. `device.cpu_device` implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from smelt.buffer import HostBuffer
from smelt.dtype import Array
from smelt.frozen import Frozen

if TYPE_CHECKING:
    import numpy as np

    from smelt.buffer import Buffer
    from smelt.device.entry import Entry
    from smelt.device.peak import Peaks
    from smelt.device.program import Account, Program
    from smelt.device.step_log import StepLog
    from smelt.target import Target
    from smelt.weights import Stored

Module: TypeAlias = Any  # loaded code: only its device looks inside
Arrays: TypeAlias = tuple[Any, ...]  # arrays, or buffers of a device that has its own memory


class Memory(Frozen):
    """Bytes that a bound program holds now, and how many contexts share the arenas and the scratch."""

    bound: int
    constants: int
    arenas: int
    scratch: int
    contexts: int


class Rates(Frozen):
    """What a device does at most, by its data, for predictions: GFLOP/s, GB/s, seconds."""

    gflops: float  # f32
    half_gflops: float  # bf16 and f16
    memory: float
    transfer: float  # to and from the host; 0: it works in host memory
    kernel: float  # the least time of a kernel
    wait: float  # until the host has read a result


class Meter(Protocol):
    """Measures a device's peaks in short probes, beside the work that they are compared with."""

    def probe_ends(self) -> None:
        """The probes before the first call and after the last one."""
        ...

    def probe(self) -> None: ...

    def peaks(self) -> Peaks:
        """The best of all probes."""
        ...


class Device(ABC):
    """A device of the native engine.

    Code comes as texts in the language of a `Target`, which is data that the compiler reads. `build` gives a loaded
    module, `program` a function in it; `Program.bind` gives what can be called. Target names differ between devices.
    """

    name: str  # "cpu"; one of several has a number: "cuda:1"
    abi: int  # of the code; bundles record it
    baseline: str | None = None  # the target whose code runs on every device of the kind
    has_tunables: bool = True  # schedules of code that was built to be tuned change between calls
    has_own_memory: bool = False  # then inputs and results may be `Buffer`s, and `copy` uploads arrays

    @property
    def kind(self) -> str:
        """The name without a number."""
        return self.name.partition(":")[0]

    @abstractmethod
    def missing(self) -> str | None:
        """Why nothing can be built here, with the remedy; None where it can."""

    @property
    @abstractmethod
    def model(self) -> str:
        """The manufacturer's name of the device: measurements are recorded under it."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Notable numbers by name, for people."""

    @abstractmethod
    def rates(self) -> Rates:
        """What it does at most, without measuring."""

    @property
    def count(self) -> int:
        """How many devices of the kind are here."""
        return 1

    # ---- targets ----

    @property
    @abstractmethod
    def targets(self) -> Mapping[str, Target]:
        """What code can be compiled for, by name: all of them, whether or not they are here."""

    @abstractmethod
    def target(self, name: str | None = None) -> Target:
        """This machine's device as a target: as SMELT_TARGET or `name` says; `native`: as detected."""

    @abstractmethod
    def default_targets(self, *, int8: bool, bf16: bool) -> tuple[str, ...]:
        """The targets of a bundle that names none: the best one here, and the baseline."""

    @abstractmethod
    def lacks(self, machine: str, features: Sequence[str]) -> str:
        """What this device lacks to run code for a machine with these features; empty where nothing."""

    def preference(self, machine: str, features: Sequence[str]) -> int:
        """Of several codes that run here, the one with the highest number is taken."""
        return len(features)

    # ---- code ----

    @abstractmethod
    def build(self, source: Sequence[str], target: Target) -> Module:
        """Compile texts, or find them compiled already, and load the code."""

    @abstractmethod
    def compile(self, source: Sequence[str], target: Target) -> bytes:
        """Compile texts into code that need not run here."""

    @abstractmethod
    def load(self, code: bytes, digest: str) -> Module:
        """The code that `compile` gave, loaded; once per digest."""

    @abstractmethod
    def provenance(self) -> dict[str, str]:
        """Compiler and flags, as a bundle records them."""

    @abstractmethod
    def program(self, module: Module, entry: Entry, constants: Sequence[bytes | Array]) -> Program:
        """The function that an entry describes, after what the code states about itself was compared with it."""

    @abstractmethod
    def exported_array(self, module: Module, name: str, count: int) -> Array:
        """An exported array of `count` i64, as memory that the code reads and writes: tunables."""

    @abstractmethod
    def step_log(self, module: Module, name: str) -> StepLog:
        """The log of a program that was built with timestamps."""

    @abstractmethod
    def meter(self, *, again: bool = False) -> Meter:
        """What measures the peaks of the device. `again`: without those of earlier runs."""

    # ---- memory and threads ----

    @abstractmethod
    def allocate(self, wanted: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> Arrays:
        """New arrays in one block of the device's memory, contents undefined: for what stays."""

    @abstractmethod
    def copy(self, buffer: HostBuffer) -> Buffer:
        """The contents in the device's memory: the same buffer where that is the host's."""

    def copy_all(self, arrays: Sequence[Array]) -> Sequence[Buffer]:
        """Small arrays in the device's memory: one copy where it has its own."""
        return [self.copy(HostBuffer.of(array)) for array in arrays]

    def copy_stored(self, stored: Stored) -> Buffer:
        """A tensor of a file in the device's memory, of a device that has its own."""
        raise NotImplementedError

    @abstractmethod
    def account(self, limit: int) -> Account: ...

    def stats(self) -> dict[str, float]:
        """What `Platform.stats` says, of a device that has its own memory."""
        raise NotImplementedError

    @property
    @abstractmethod
    def default_threads(self) -> int:
        """Workers of a parallel step unless `set_threads` says otherwise; 0 where a caller cannot choose."""

    @abstractmethod
    def set_threads(self, count: int) -> None:
        """Use that many workers from now on."""
