"""Lowers functions of JAX to StableHLO, runs them here and there, and says where the results differ.

    python tests/conformance/jax_sweep.py [--engine E] [--filter TEXT] [--seed N] [--every N] [--json FILE]

A case passes when its text parses and verifies, comes back the same from our printer, gives JAX's result within the
case's tolerance, and gives the very same bits after the passes and for every memory order of its arguments. The table
is in `jax_cases/`. On the native engine only the results are compared.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import time
import traceback
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import export

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from smelt.errors import SmeltError  # noqa: E402
from smelt.ir.interpret import run  # noqa: E402
from smelt.ir.structure import difference  # noqa: E402
from smelt.ir.text import parse, print_program  # noqa: E402
from smelt.ir.verify import verify  # noqa: E402
from smelt.passes import pipeline  # noqa: E402
from tests.conformance.jax_cases import Arg, Case, Tolerance, cases, kind, oracle  # noqa: E402

Array = Any
GROUP = 40  # cases that the native engine compiles together
NATIVE_ULP = 4  # what kernels may add to a case's tolerance, if it has any: exp, log and others are approximated


@dataclass(frozen=True)
class Outcome:
    """What became of one case: `passed`, or the stage that failed and why."""

    name: str
    status: str
    detail: str = ""


class StageError(Exception):
    """A case failed at a stage."""

    def __init__(self, stage: str, detail: str) -> None:
        super().__init__(f"{stage}: {detail}")
        self.stage, self.detail = stage, detail


# ---- one case ----


@dataclass(frozen=True)
class Trial:
    """A case's program, and what JAX gives for some arguments."""

    program: Any
    calls: list[tuple[list[Array], list[Array]]]


def run_case(case: Case, seed: int, timeout: int = 120) -> Outcome:
    """Lower, parse, print, run, optimise and compare one case; the arguments depend on the seed and the name."""
    try:
        with limit(timeout), oracle():
            trial = lower(case, seed)
            optimised = optimise(trial.program)
            for args, wanted in trial.calls:
                compare(case, trial.program, optimised, args, wanted)
    except StageError as failure:
        return Outcome(case.name, failure.stage, failure.detail)
    return Outcome(case.name, "passed")


def run_natively(chosen: Sequence[Case], seed: int, timeout: int = 120) -> Iterator[Outcome]:
    """The same cases on the native engine, which compiles some of them together."""
    from tests.conformance.native_cases import compile_each

    for first in range(0, len(chosen), GROUP):
        trials: list[tuple[Case, Trial]] = []
        for case in chosen[first : first + GROUP]:
            try:
                with limit(timeout), oracle():
                    trials.append((case, lower(case, seed)))
            except StageError as failure:
                yield Outcome(case.name, failure.stage, failure.detail)
        made = compile_each([trial.program for _, trial in trials])
        for (case, trial), executable in zip(trials, made, strict=True):
            yield judge(case, trial, executable, timeout)
        jax.clear_caches()


def judge(case: Case, trial: Trial, executable: Any, timeout: int) -> Outcome:
    """What the native engine's results are worth."""
    near = case.tolerance
    allowed = near if near == Tolerance() else replace(near, ulp=near.ulp + NATIVE_ULP)

    def call(args: Sequence[Array]) -> Sequence[Array]:
        if isinstance(executable, Exception):
            raise executable
        results: Sequence[Array] = executable(*args)
        return results

    try:
        with limit(timeout):
            for args, wanted in trial.calls:
                results = staged("run", partial(call, args))
                for i, (got, want) in enumerate(zip(results, wanted, strict=True)):
                    if found := far_apart(got, want, allowed):
                        raise StageError("results", f"result {i}: {found}")
    except StageError as failure:
        return Outcome(case.name, failure.stage, failure.detail)
    return Outcome(case.name, "passed")


def lower(case: Case, seed: int) -> Trial:
    random = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    return lower_sizes(case, random) if case.sizes else lower_static(case, random)


def lower_static(case: Case, random: np.random.Generator) -> Trial:
    args = draw(case.args, {}, random)
    function = jax.jit(case.function, keep_unused=True)
    lowered = staged("jax", lambda: function.trace(*args).lower(lowering_platforms=(case.platform,)))
    wanted = staged("jax", lambda: leaves(lowered.compile()(*args) if case.platform == "cpu" else function(*args)))
    program = read(lowered.as_text())
    located = staged("locations", lambda: parse(lowered.as_text(debug_info=True)))
    if found := difference(program, located):
        raise StageError("locations", found)
    return Trial(program, [(args, wanted)])


def lower_sizes(case: Case, random: np.random.Generator) -> Trial:
    """Symbolic sizes: one program for all of them."""
    scope = export.SymbolicScope(case.constraints)
    types = [
        jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(map(str, arg.shape)), scope=scope), arg.dtype)
        for arg in case.args
    ]
    exported = staged("jax", lambda: export.export(jax.jit(case.function))(*types))
    calls = []
    for sizes in case.sizes:
        args = draw(case.args, sizes, random)
        wanted = staged("jax", partial(lambda args: leaves(jax.jit(case.function)(*args)), args))
        calls.append(([args[i] for i in exported.module_kept_var_idx], wanted))
    return Trial(read(exported.mlir_module()), calls)


def draw(args: Sequence[Arg], sizes: dict[str, int], random: np.random.Generator) -> list[Array]:
    """Arguments; a name in a shape is an expression over the symbolic sizes."""
    shapes = [tuple(n if isinstance(n, int) else int(eval(n, {}, sizes)) for n in arg.shape) for arg in args]
    return [np.asarray(arg.draw(random, shape, arg.dtype)) for arg, shape in zip(args, shapes, strict=True)]


def oddly_strided(array: Array) -> Array:
    """The same array in memory that runs backwards, by columns and with gaps: its layout must not matter."""
    if not array.ndim:
        return array
    room = np.zeros([2 * size for size in array.shape], array.dtype, order="F")
    view = room[tuple(slice(None, None, -2) for _ in array.shape)]
    view[...] = array
    return view


def leaves(tree: Any) -> list[Array]:
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


def read(text: str) -> Any:
    program = staged("parse", lambda: parse(text))
    staged("verify", lambda: verify(program))
    again = staged("print", lambda: parse(print_program(program)))
    if found := difference(program, again):
        raise StageError("print", found)
    return program


def optimise(program: Any) -> Any:
    optimised, _ = staged("passes", lambda: pipeline.run(program, until="simplify"))
    staged("passes", lambda: verify(optimised))
    return optimised


def compare(case: Case, program: Any, optimised: Any, args: Sequence[Array], wanted: Sequence[Array]) -> None:
    plain = staged("run", lambda: run(program, args))
    fast = staged("run optimised", lambda: run(optimised, args))
    odd = staged("run on odd strides", lambda: run(program, [oddly_strided(arg) for arg in args]))
    if len(plain) != len(wanted):
        raise StageError("results", f"{len(plain)} instead of {len(wanted)}")
    for i, (got, same, also, want) in enumerate(zip(plain, fast, odd, wanted, strict=True)):
        if found := far_apart(np.asarray(also), np.asarray(got), Tolerance(), flushed=False):
            raise StageError("results on odd strides", f"result {i} changed: {found}")
        if found := far_apart(np.asarray(same), np.asarray(got), Tolerance(), flushed=False):
            raise StageError("optimised results", f"result {i} changed: {found}")
        if found := far_apart(np.asarray(got), want, case.tolerance):
            raise StageError("results", f"result {i}: {found}")


def staged(stage: str, function: Callable[[], Any]) -> Any:
    """Call a function; whatever goes wrong carries the name of the stage. Only our own errors are not crashes."""
    try:
        return function()
    except SmeltError as error:
        raise StageError(stage, f"{type(error).__name__}: {error}") from error
    except (Exception, RecursionError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise StageError(stage, f"crash: {type(error).__name__}: {error} at {where}") from error


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Stop a case that hangs."""

    def stop(*_: Any) -> None:
        raise StageError("timeout", f"{seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- comparing ----


def far_apart(got: Array, want: Array, tolerance: Tolerance, flushed: bool = True) -> str:
    """What is wrong, or nothing. NaNs are equal; zeros are if their signs are, or if the tolerance allows anything."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    wrong = np.zeros(got.shape, np.bool_)
    for a, b in zip(parts(got), parts(want), strict=True):
        wrong |= ~near(a, b, tolerance, scale(want), flushed)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} differ, at {list(at)} {got[at]!r} instead of {want[at]!r}"


def parts(array: Array) -> tuple[Array, ...]:
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)


def scale(want: Array) -> float:
    """The largest finite magnitude."""
    if kind(want.dtype) not in ("float", "complex"):
        return 0
    magnitude = np.abs(want.astype(np.complex128 if want.dtype.kind == "c" else np.float64))
    return float(magnitude.max(initial=0, where=np.isfinite(magnitude)))


def near(got: Array, want: Array, tolerance: Tolerance, largest: float, flushed: bool = True) -> Array:
    """Element by element. JAX's arithmetic on the CPU gives zero for what would be subnormal: `flushed` allows it."""
    if kind(want.dtype) != "float":
        return got == want
    info = ml_dtypes.finfo(want.dtype)
    a, b = got.astype(np.float64), want.astype(np.float64)
    exact = tolerance == Tolerance()
    same = (a == b) & ((np.signbit(a) == np.signbit(b)) | (not exact)) | np.isnan(a) & np.isnan(b)
    if flushed:
        same |= (b == 0) & (a != 0) & (np.abs(a) < float(info.tiny))
    if exact:
        return same
    with np.errstate(all="ignore"):
        close = (steps(got, want) <= tolerance.ulp) | (np.abs(a - b) <= tolerance.scaled * float(info.eps) * largest)
    return same | np.isfinite(a) & np.isfinite(b) & close


def steps(a: Array, b: Array) -> Array:
    """How many representable values two floats are apart."""
    x, y = ordinal(a), ordinal(b)
    return np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)


def ordinal(array: Array) -> Array:
    """Floats as whole numbers in the same order, one apart where the floats are neighbours."""
    bits = np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}").reshape(array.shape).astype(np.int64)
    lowest = np.int64(-(1 << (8 * array.dtype.itemsize - 1)))
    return np.where(bits < 0, lowest - bits, bits)


# ---- the whole table ----


def chosen(text: str, every: int, seed: int) -> list[Case]:
    """The cases whose names contain a text; of each group one in `every`, which ones depends on the seed."""
    found = [case for case in cases() if text in case.name]
    if every == 1:
        return found
    return [case for case in found if zlib.crc32(f"{seed} {case.name}".encode()) % every == 0]


def run_all(table: Sequence[Case], seed: int) -> Iterator[Outcome]:
    for i, case in enumerate(table, 1):
        if i % 200 == 0:
            jax.clear_caches()  # compiled programs pile up otherwise
        yield run_case(case, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--engine", default="reference", choices=("reference", "native"))
    parser.add_argument("--filter", default="", help="only cases whose names contain this")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--every", type=int, default=1, help="only one case in this many")
    parser.add_argument("--platform", help="take this platform's lowering for every case: cpu, tpu, cuda")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    started = time.perf_counter()
    table = [
        replace(case, platform=options.platform or case.platform)
        for case in chosen(options.filter, options.every, seed)
    ]
    outcomes = []
    for outcome in run_natively(table, seed) if options.engine == "native" else run_all(table, seed):
        outcomes.append(outcome)
        if outcome.status != "passed":
            print(f"{outcome.status} {outcome.name}\n    {outcome.detail}", flush=True)
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        groups[outcome.name.split("/")[0]][outcome.status] += 1
    for group, counts in groups.items():
        print(f"{group:<12} {counts['passed']:>4} / {counts.total()}")
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    print(f"{'all':<12} {passed:>4} / {len(outcomes)}, {time.perf_counter() - started:.1f} s, seed {seed}")
    if options.json:
        record = {"seed": seed, "passed": passed, "outcomes": [asdict(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if passed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
