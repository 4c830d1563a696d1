"""Asks the official verifier (jaxlib's MLIR bindings) and ours about the same programs and lists where they disagree.

    python tests/conformance/verifier_parity.py [FOLDER …] [--count 2000] [--seed 1] [--show 3]

The programs are mutated copies of small samples, and of every single op of the programs in the folders. The official
side runs in a process of its own, because hostile text can end it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.hostile.mutate import mutate, strip_comments  # noqa: E402

CHECK = re.compile(
    r"^\s*(?:check\.expect_\w+\b[^\n]*(?:\n(?!\s*(?:%|\w+\.\w+|return|\"|\}\s*$|call\b))[^\n]*)*)", re.MULTILINE
)
_OUR_SIZES = re.compile(r", #smelt\.sizes<[^<>]*>")
_NUMBER = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d+(?:\.\d+)?|tensor<[^ ]*>|\[[^\]]*\]|\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says about a text; `kind` is `accepted`, `refused`, `unsupported` or `crashed`."""

    kind: str
    message: str = ""

    @property
    def accepted(self) -> bool:
        return self.kind == "accepted"


# Where the two may disagree: a pattern that is found in the message of the side that refuses, and why that may be.
# A refusal of ours that cites a constraint of the specification is the first of them.
WE_REFUSE = {
    r"\((?:\w+_[cio]\d+|scan|einsum)\)": "the specification's text says so",
    r"^chlo\.broadcast_": "CHLO leaves these checks to its lowering, and we run the op as it is",
    r"^stablehlo\.(?:einsum|unary_einsum|torch_index_select|dot|cross-replica-sum):": "deprecated, not specified",
    r"^chlo\.(?:top_k|bessel_i1e|ragged_dot|scan):": "CHLO has no specification; we refuse what has no meaning",
    r"products of lhs and rhs cannot give that result": "an element becomes one of the same kind only",
    r"^stablehlo\.(?:bitcast_convert|rng_bit_generator): .*declared result": "their C1 and C2",
    r"^stablehlo\.(?:all_gather|all_to_all|reduce_scatter): .*declared result": "C6, C9 and C1: the size follows",
    r"^stablehlo\.(?:dynamic_\w+|real_dynamic_slice): .*declared result": "an operand says the rank",
    r"^interpreter\.run_parallel: ": "the results are those of the programs",
    r"another number of elements than its type|not an element of this type": "MLIR reads (1.0, 2.0) as two reals",
    r"a literal too large to address|a tensor with too many axes": "no array can hold it",
    r"this is no text|a character that has no place": "MLIR skips NUL and some control characters",
    r"returns another number of values|returns a value of another type": "func.func does not look at stablehlo.return",
    r"unexpected text \[expected func\.func, sdy\.mesh or the end of the module, got '[%\"]": "a module holds any op",
    r"unexpected text .*(?:stablehlo|func|sdy)\.return|the wrong return": "any return may end a module",
    r"a function without a body|several modules|text after the module|a module inside a module": "unsupported",
    r"a function that calls itself|unknown op|several blocks|a tensor whose rank is unknown": "unsupported",
    r"a value of this type|a tensor of this element type|a tensor with this encoding|bounds that bound": "unsupported",
    r"a result size is not known here": "a dynamic dimension that nothing binds, though it has a bound",
    r"size is larger than its bound|a size must not be negative": "what inference knows is checked at once",
    r"attribute 'channel_handle'": "MLIR reads true as the number 1",
    r"attribute '\w+' .*got DialectAttr\(.*,'\)": "MLIR passes over a comma after an enumeration's word",
    r"one scale per slice of the quantised axis": "our types are checked where they are read",
}
THEY_REFUSE = {
    r"\bsdy\b|\bmesh\b|sharding|axis ref|axis name|identifier expected to start": "attributes of sdy are kept as text",
    r"expected '\['|expected attribute value": "attributes of sdy are kept as text",
    r"cannot be zero": "the specification has no such constraint on all_gather",
    r"must be statically shaped 1-dimensional tensor": "a dynamic dimension that inference has found",
    r"inferred type.*bounds<|is not equal to 1 or size of result dimension": "few ops carry bounds on to their results",
    r"async_done.*per-tensor integer quantized values": "the specification says nothing of quantised futures",
    r"resultSegmentSizes|operandSegmentSizes": "we count the operands and results ourselves",
    r"triangular_solve.* must be ranked tensor": "the specification takes quantised tensors",
    r"dot_algorithm|dot algorithm": "the specification counts the components of a decomposed input",
    r"optimization_barrier.* requires the same type|output_operand_alias attribute": "sizes that are open to us",
    r"collective_reduce|chlo\.dynamic_reshape": "ops that this jaxlib does not know",
    r"unregistered dialect": "attributes of unknown dialects are kept as text",
}

# ---- the official verifier ----


def official_context() -> tuple[Any, Any]:
    """jaxlib's bindings and a context with every dialect that our programs use."""
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    context.enable_multithreading(False)
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    stablehlo.register_interpreter_dialect(context)
    stablehlo.register_stablehlo_passes()
    with context:  # a pass that depends on the dialect of quantised types brings it along
        pipeline = passmanager.PassManager.parse("builtin.module(vhlo-legalize-to-stablehlo)")
        pipeline.run(ir.Module.parse("module {}").operation)
    return ir, context


def serve() -> None:
    """Answer texts with verdicts, one JSON line each; with the canonical text where it is asked for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ir, context = official_context()
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {"kind": "accepted", "message": ""}
        try:
            with context:
                module = ir.Module.parse(request["text"])
                if request.get("canonical"):
                    answer["canonical"] = module.operation.get_asm(print_generic_op_form=True)
        except ir.MLIRError as error:
            found = error.error_diagnostics
            message = found[0].message if found else str(error)
            answer = {"kind": "refused", "message": message}
        except Exception as error:
            answer = {"kind": "refused", "message": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Official:
    """The official verifier in a process that is replaced when a text ends it."""

    def __init__(self, timeout: float = 20.0) -> None:
        self.timeout = timeout
        self.process: subprocess.Popen[str] | None = None

    def ask(self, text: str, **more: Any) -> dict[str, Any]:
        if self.process is None:
            command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"text": text, **more}) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], self.timeout)
            line = self.process.stdout.readline() if ready else ""
        except OSError:
            line = ""
        if not line:
            self.close()
            return {"kind": "crashed", "message": "the official verifier ended or hung"}
        found: dict[str, Any] = json.loads(line)
        return found

    def judge(self, text: str) -> Verdict:
        found = self.ask(text)
        return Verdict(found["kind"], found["message"])

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def __enter__(self) -> Official:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- ours ----


def ours(text: str) -> Verdict:
    """What our parser and verifier say; anything but a SmeltError is a crash."""
    from smelt.errors import SmeltError, UnsupportedError
    from smelt.ir.text import parse
    from smelt.ir.verify import verify

    try:
        verify(parse(text))
    except UnsupportedError as error:
        return Verdict("unsupported", error.message)
    except SmeltError as error:
        return Verdict("refused", f"{error.message} [expected {error.expected}, got {error.got}]")
    except Exception as error:
        return Verdict("crashed", f"{type(error).__name__}: {error}")
    return Verdict("accepted")


# ---- programs ----


def without_checks(text: str) -> str:
    """A program of the suites without its `check` ops, whose dialect jaxlib does not have."""
    return CHECK.sub("", strip_comments(text))


def single_ops(text: str) -> Iterator[tuple[str, str]]:
    """For each op of a program a program of that op alone, in generic form, with its operands as arguments."""
    from smelt.ir.core import Func, Program, Region, walk
    from smelt.ir.text import parse, print_program

    program = parse(text)
    for func in program.funcs.values():
        for op in walk(func.body):
            if op.name.startswith(("check.", "interpreter.", "func.")) or "called_computations" in op.attrs:
                continue
            inputs = list(dict.fromkeys([*op.operands, *_captured(op)]))
            called = any(inner.name.startswith("func.") for region in op.regions for inner in walk(region))
            if called or op.name == "stablehlo.composite":
                continue
            alone = _alone(op, inputs)
            body = Region(alone[0], (alone[1],), alone[1].results)
            yield op.name, _OUR_SIZES.sub("", print_program(Program.of(Func("main", body)), generic=True))


def _captured(op: Any) -> list[Any]:
    from smelt.ir.core import walk

    own, used = set(op.operands), []
    for region in op.regions:
        inner = [*walk(region)]
        own.update(region.args)
        for each in inner:
            own.update(each.results)
            own.update(arg for r in each.regions for arg in r.args)
        used += [value for each in inner for value in each.operands]
        used += [value for r in (region, *(r for each in inner for r in each.regions)) for value in r.results]
    return [value for value in used if value not in own]


def _alone(op: Any, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    from smelt.ir.core import Op, Region, Value

    values: dict[Any, Any] = {value: Value(value.type, None, i, f"a{i}") for i, value in enumerate(inputs)}

    def copy(old: Any) -> Any:
        regions = []
        for region in old.regions:
            args = tuple(Value(arg.type, None, arg.index, arg.name) for arg in region.args)
            values.update(zip(region.args, args, strict=True))
            ops = tuple(copy(inner) for inner in region.ops)
            regions.append(Region(args, ops, tuple(values[value] for value in region.results)))
        new = Op(old.name, [values[v] for v in old.operands], [v.type for v in old.results], old.attrs, regions)
        values.update(zip(old.results, new.results, strict=True))
        return new

    made = copy(op)
    return tuple(values[value] for value in inputs), made


def sources(folders: Sequence[Path], *, largest: int = 6000, whole: bool = True) -> list[str]:
    """Whole programs of folders and their single ops, each once; nothing of more than `largest` characters."""
    from smelt.errors import SmeltError

    found: dict[str, None] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.mlir")):
            text = path.read_text()
            if whole and len(text) <= largest:
                found[without_checks(text)] = None
            try:
                found |= dict.fromkeys(each for _, each in single_ops(text) if len(each) <= largest)
            except SmeltError:
                continue
    return list(found)


# ---- printing ----

# What the official printer tells although it is the default, and ours leaves out.
_DEFAULTS = re.compile(
    r"(?:indices_are_sorted|unique_indices|is_reverse|has_side_effect|is_stable|is_host_transfer) = false, |"
    r"api_version = 1 : i32, |called_computations = \[\], |backend_config = \"\", |version = 0 : i32, "
)


def same_meaning(text: str, printed: str, official: Official) -> str | None:
    """None where the official parser reads the same from both texts, else what differs."""
    first, second = official.ask(text, canonical=True), official.ask(printed, canonical=True)
    if second["kind"] != "accepted":
        return f"what we print is refused: {second['message']}"
    left, right = (_without_defaults(each["canonical"]) for each in (first, second))
    pairs = zip(left.splitlines(), right.splitlines(), strict=False)
    return None if left == right else next((f"{a}\n{b}" for a, b in pairs if a != b), "another number of lines")


def _without_defaults(canonical: str) -> str:
    """Attributes in braces, each with a comma after it, so that those at their default can be cut out alike."""
    return _DEFAULTS.sub("", canonical.replace("}>", ", }>")).replace("<{, }>", "").replace(" <{}>", "")


# ---- comparing ----


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A text on which the verdicts differ."""

    text: str
    done: tuple[str, ...]
    official: Verdict
    ours: Verdict

    @property
    def excuse(self) -> str | None:
        """Why the verdicts may differ, if they may."""
        excuses, message = (
            (THEY_REFUSE, self.official.message) if self.ours.accepted else (WE_REFUSE, self.ours.message)
        )
        if self.ours.kind == "crashed":
            return None
        return next((why for pattern, why in excuses.items() if re.search(pattern, message)), None)

    @property
    def reason(self) -> str:
        """The same for disagreements of the same class."""
        message = self.official.message if self.ours.accepted else self.ours.message.partition(" [expected")[0]
        side = "we accept" if self.ours.accepted else f"we {self.ours.kind}"
        return f"{side}: {_NUMBER.sub('_', message)[:150]}"


def compare(texts: Sequence[str], count: int, seed: int, official: Official) -> tuple[Counter[str], list[Disagreement]]:
    """Mutate programs at random and ask both sides."""
    choose = Random(seed)
    counts: Counter[str] = Counter()
    disagreements = []
    for _ in range(count):
        mutant = mutate(choose.choice(texts), choose)
        if "#smelt." in mutant.text:
            continue
        theirs, mine = official.judge(mutant.text), ours(mutant.text)
        counts[f"official {theirs.kind}, ours {mine.kind}"] += 1
        if mine.kind == "crashed" or (theirs.kind != "crashed" and theirs.accepted != mine.accepted):
            disagreements.append(Disagreement(mutant.text, mutant.done, theirs, mine))
    return counts, disagreements


def main(arguments: Sequence[str]) -> int:
    if "--serve" in arguments:
        serve()
        return 0
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("folders", nargs="*", type=Path)
    reader.add_argument("--count", type=int, default=2000)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--show", type=int, default=1, help="texts to show for each class of disagreement")
    given = reader.parse_args(arguments)
    from tests.hostile.samples import SAMPLES

    texts = [*SAMPLES.values(), *sources(given.folders)]
    with Official() as official:
        texts = [text for text in texts if official.judge(text).accepted]
        for text in texts:
            if not ours(text).accepted:
                print(f"---- not mutated, and we refuse it: {ours(text)}\n{text}")
        counts, disagreements = compare(texts, given.count, given.seed, official)
    classes: dict[str, list[Disagreement]] = defaultdict(list)
    unexcused = [each for each in disagreements if each.excuse is None]
    for each in unexcused:
        classes[each.reason].append(each)
    for reason, members in sorted(classes.items(), key=lambda item: len(item[1])):
        print(f"---- {len(members)} × {reason}")
        for each in sorted(members, key=lambda member: len(member.text))[: given.show]:
            print(f"     {', '.join(each.done)}\n     official: {each.official}\n     ours: {each.ours}\n{each.text}")
    print(f"{len(texts)} programs, seed {given.seed}: {1 - len(disagreements) / given.count:.2%} agree")
    for why, number in Counter(each.excuse for each in disagreements).most_common():
        print(f"  {number:6} {why or 'NO EXCUSE'}")
    for kinds, number in counts.most_common():
        print(f"  {number:6} {kinds}")
    return bool(unexcused)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
