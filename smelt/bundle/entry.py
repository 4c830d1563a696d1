"""The description of a compiled function: arguments, results and run-time checks, as plain data without the code.

The native engine makes an Entry from a plan; a bundle stores it as JSON. With a library and constants it becomes a
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
    """An assumption about sizes, as text."""

    expected: str
    why: str


class DataCheck(Frozen):
    """A check of data at run time. `{0}` in the message is the first number of the failure record."""

    message: str
    of_sizes: bool
    where: Location | None


class Entry(Frozen):
    """A function of a library: `NAME_run`, `NAME_measure`, and `NAME_abi` with the ABI that it expects."""

    name: str
    arguments: tuple[Shape, ...]
    results: tuple[Shape, ...]
    symbols: tuple[str, ...]  # solved from the arguments' sizes
    names: tuple[str, ...]  # of the arguments
    sizes: tuple[SizeCheck, ...] = ()
    data: tuple[DataCheck, ...] = ()
    donated: tuple[int, ...] = ()  # arguments that a call may overwrite
    reused: tuple[tuple[int, int], ...] = ()  # (result, donated argument) that share one array

    def program(self, library: ctypes.CDLL, constants: Sequence[bytes | Array]) -> runtime.Program:
        """The function, after a comparison of the code's own ABI record with this description."""
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
        except (AttributeError, ValueError) as error:  # ValueError: not a symbol name
            raise DeviceError("the code lacks functions of the program", got=error, remedy=REMEDY) from error
        stated, _, needs = stated.rpartition(abi.NEEDS)
        lengths = [len(each) if isinstance(each, bytes) else each.nbytes for each in constants]
        checks = len(self.sizes), len(self.data)
        said = abi.describe(self.symbols, self.arguments, self.results, lengths, self.donated, self.reused, checks)
        if stated != said:
            pairs = zip(stated.splitlines(), said.splitlines(), strict=False)
            code, here = next(pair for pair in pairs if pair[0] != pair[1])
            raise DeviceError("the code does not match its description", expected=code, got=here, remedy=REMEDY)
        known = cpu.target("native").features
        if known and not known.issuperset(needs.split()):
            absent = ", ".join(name for name in needs.split() if name not in known)
            raise DeviceError("the code needs CPU features that this processor lacks", expected=absent, remedy=REMEDY)

    def explain(self, status: int, record: tuple[int, ...]) -> SmeltError:
        """The error for a status of the program."""
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
        """The error for a failed check of sizes."""
        if check + 1 == TOO_LARGE:
            return SizeError("a size is too large for any machine", got=assignment(symbols))
        unfit = self.sizes[check]
        return SizeError(unfit.why, expected=unfit.expected, got=assignment(symbols))


def _symbol(library: ctypes.CDLL, name: str) -> int:
    """The address of an exported symbol."""
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))
