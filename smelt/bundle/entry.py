"""What a compiled function takes, gives and checks, as plain data: everything that running it needs but its code.

The native engine makes an Entry from a plan, a bundle keeps it as JSON; with a library and constants it becomes a
`runtime.Program`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from smelt import abi
from smelt.abi import FAILED, TOO_LARGE, UNFIT
from smelt.device import cpu, runtime
from smelt.dtype import Array
from smelt.errors import DeviceError, Location, RunError, SizeError, SmeltError
from smelt.frozen import Frozen
from smelt.shape import Shape
from smelt.size import assignment

REMEDY = "compile the model again"


class SizeCheck(Frozen):
    """Something about sizes that the program relies on, in words."""

    expected: str
    why: str


class DataCheck(Frozen):
    """What data must fulfil. `{0}` in the message stands for the first of the numbers that the run tells."""

    message: str
    of_sizes: bool
    where: Location | None


class Entry(Frozen):
    """A function of a library: `NAME_run` and `NAME_measure`, with `NAME_abi` that says what it expects."""

    name: str
    arguments: tuple[Shape, ...]
    results: tuple[Shape, ...]
    symbols: tuple[str, ...]  # those that the arguments' sizes decide
    names: tuple[str, ...]  # of the arguments
    sizes: tuple[SizeCheck, ...] = ()
    data: tuple[DataCheck, ...] = ()
    donated: tuple[int, ...] = ()  # arguments that a call uses up
    reused: tuple[tuple[int, int], ...] = ()  # (result, donated argument) that are one array

    def program(self, library: ctypes.CDLL, constants: Sequence[bytes | Array]) -> runtime.Program:
        """The function, after what its code states about itself was compared with what is said here."""
        self._check(library, constants)
        return runtime.Program(
            library,
            self.name,
            self.arguments,
            self.results,
            self.symbols,
            constants,
            explain=self.explain,
            refuse=self.refuse,
            names=self.names,
            donated=self.donated,
            reused=dict(self.reused),
        )

    def _check(self, library: ctypes.CDLL, constants: Sequence[bytes | Array]) -> None:
        try:
            stated = ctypes.string_at(_symbol(library, f"{self.name}_abi")).decode("ascii")
            for part in ("run", "measure"):
                _symbol(library, f"{self.name}_{part}")
        except (AttributeError, ValueError) as error:  # ValueError: a name that cannot be one
            raise DeviceError("the code lacks functions that it should have", got=error, remedy=REMEDY) from error
        stated, _, needs = stated.rpartition(abi.NEEDS)
        lengths = [len(each) if isinstance(each, bytes) else each.nbytes for each in constants]
        checks = len(self.sizes), len(self.data)
        said = abi.describe(self.symbols, self.arguments, self.results, lengths, self.donated, self.reused, checks)
        if stated != said:
            pairs = zip(stated.splitlines(), said.splitlines(), strict=False)
            code, here = next(pair for pair in pairs if pair[0] != pair[1])
            raise DeviceError("the code is not what is said about it", expected=code, got=here, remedy=REMEDY)
        known = cpu.target("native").features
        if known and not known.issuperset(needs.split()):
            absent = ", ".join(name for name in needs.split() if name not in known)
            raise DeviceError("the code needs more than this processor can do", expected=absent, remedy=REMEDY)

    def explain(self, status: int, record: tuple[int, ...]) -> SmeltError:
        """The error behind a status of the program."""
        if status >= UNFIT:
            unfit = self.sizes[status - UNFIT]
            return SizeError(unfit.why, expected=unfit.expected, got=f"{record[0]} and {record[1]}")
        if status >= FAILED:
            broken = self.data[status - FAILED]
            message = broken.message
            for i, number in enumerate(record):
                message = message.replace(f"{{{i}}}", str(number))
            return (SizeError if broken.of_sizes else RunError)(message, where=broken.where)
        return RunError("the compiled program reported a failure", got=status)

    def refuse(self, check: int, symbols: Mapping[str, int]) -> SmeltError:
        """The error behind a size that the program takes for granted."""
        if check + 1 == TOO_LARGE:
            return SizeError("a size is too large for any machine", got=assignment(symbols))
        unfit = self.sizes[check]
        return SizeError(unfit.why, expected=unfit.expected, got=assignment(symbols))


def _symbol(library: ctypes.CDLL, name: str) -> int:
    """The address of something that a library exports."""
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))
