"""The description of a compiled function: arguments, results and run-time checks, as plain data without the code.

The native engine makes an Entry from a plan, a bundle keeps it as JSON. `Device.program` makes a function of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.abi import FAILED, TOO_LARGE, UNFIT
from smelt.errors import Location, RunError, ShapeError, SizeError, SmeltError
from smelt.frozen import Frozen
from smelt.shape import Shape
from smelt.size import assignment, solve, substitute


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
    """A function of compiled code. In a library for the processor: `NAME_run`, `NAME_measure`, and `NAME_abi` with the
    ABI that it expects."""

    name: str
    arguments: tuple[Shape, ...]
    results: tuple[Shape, ...]
    symbols: tuple[str, ...]  # solved from the arguments' sizes
    names: tuple[str, ...]  # of the arguments
    sizes: tuple[SizeCheck, ...] = ()
    data: tuple[DataCheck, ...] = ()
    donated: tuple[int, ...] = ()  # arguments that a call may overwrite
    reused: tuple[tuple[int, int], ...] = ()  # (result, donated argument) that share one array

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


def solve_symbols(
    arguments: Sequence[Shape],
    names: Sequence[str],
    given: Sequence[Sequence[int]],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """The values of a function's symbols for arguments with these sizes. `names`: of the last ones, the inputs.

    `sizes`: symbols that are known already.
    """
    patterns = [substitute(size, sizes) for shape in arguments for size in shape.sizes]
    try:
        return {**sizes, **solve(patterns, [size for each in given for size in each])}
    except ShapeError as error:
        first = len(arguments) - len(names)
        expected = ", ".join(f"{name}: {shape}" for name, shape in zip(names, arguments[first:], strict=True))
        got = ", ".join(f"{name}: {list(each)}" for name, each in zip(names, given[first:], strict=True))
        remedy = "give the dimensions that share a name the same size"
        raise ShapeError("the inputs' sizes do not fit together", expected=expected, got=got, remedy=remedy) from error
