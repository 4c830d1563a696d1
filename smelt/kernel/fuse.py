"""Fusion: a function becomes a plan of few kernels. A value is either stored or pulled into the kernels that use it.

`SINKS` holds the ops that write their results themselves (products, windows, sorts …), `UPDATES` those that change a
part of an operand; every other op is pulled by the rules of `nest.PULLS`. Whether a value that could be pulled is
stored is decided here, from the end to the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from smelt.dim import Size, symbols_in_order
from smelt.dtype import DType, i1
from smelt.ir.core import Func, Op, Region, Token, Value, walk
from smelt.ir.ops import OPS
from smelt.ir.ops.control import ASSERTIONS, PLACEMENT
from smelt.ir.ops.signature import bare_symbol
from smelt.kernel import (  # noqa: F401  their rules
    build_attention,
    build_contract,
    build_conv,
    build_fft,
    build_index,
    build_linear,
    build_map,
    build_pairs,
    build_qdot,
    build_random,
    build_reduce,
    build_scan,
    build_sort,
    build_transpose,
    build_window,
    build_winograd,
)
from smelt.kernel.adjust import EACH, Adjustable
from smelt.kernel.build_contract import strides
from smelt.kernel.build_expand import made_image
from smelt.kernel.build_map import border
from smelt.kernel.choice import Lookup, defaults
from smelt.kernel.demands import DEMANDS, Given, limits
from smelt.kernel.loop import Amount, Expr, Number, add
from smelt.kernel.nest import PULLS, MadeImage, Nest, SplitLoopError, View, flat, tensor, unknown
from smelt.kernel.place import Part, Users, is_whole, parts, row_major, starts
from smelt.kernel.plan import (
    Branch,
    Buffer,
    Check,
    Copy,
    Kernel,
    Launch,
    Measure,
    Plan,
    Repeat,
    Require,
    Requirement,
    Step,
)
from smelt.kernel.schedule import schedule
from smelt.kernel.sinks import ADDRESSED, ANCHORS, IN_RUNS, SINKS, UPDATES, Output
from smelt.passes.split_prepare import DONATED
from smelt.shape import Shape

CONTROL = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case"})
SILENT = frozenset({"stablehlo.after_all", "stablehlo.create_token", "smelt.shape_assertion"})
# Moves cost nothing where they are used: an index.
MOVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "broadcast_in_dim",
        "dynamic_broadcast_in_dim",
        "transpose",
        "reshape",
        "dynamic_reshape",
        "slice",
        "reverse",
        "constant",
        "iota",
        "get_dimension_size",
        "optimization_barrier",
    )
)
# Ops that read their first operand where other tensors say, an element perhaps many times.
SCATTERED = frozenset(
    f"stablehlo.{name}" for name in ("gather", "dynamic_gather", "dynamic_slice", "torch_index_select")
)
# Ops that choose where an element comes from.
GUARDED = frozenset(f"stablehlo.{name}" for name in ("concatenate", "pad", "dynamic_pad"))
# Functions that cost more than a trip to memory.
COSTLY = frozenset(
    f"{dialect}.{name}"
    for dialect, names in {
        "stablehlo": "exponential exponential_minus_one log log_plus_one logistic tanh power cosine sine tan cbrt atan2"
        " divide remainder sqrt rsqrt",
        "chlo": " ".join(name[5:] for name in OPS if name.startswith("chlo.")),
    }.items()
    for name in names.split()
)
LARGEST = 150  # ops that one kernel may hold
FORMULA = 12  # ops of a formula, at most
RECORD = 8  # numbers that an error may tell


def fuse(
    func: Func,
    assumed: Sequence[tuple[Size, Size, str]] = (),
    *,
    telling: bool = False,
    choices: Lookup = defaults,
    adjustable: Adjustable | None = None,
) -> Plan:
    """The plan of a function; an op that kernels do not know yet is refused by name.

    `assumed` are the equalities of sizes that the function takes for granted: the plan checks them at every call.
    `telling`: every launch names the ops that it covers, which keeps them alive as long as the plan.
    `choices` says how a kernel's problem is gone about, where it knows better than the default; with `adjustable` every
    call is told.
    """
    return _Fusion(func, [Check(a, b, True, why) for a, b, why in assumed], telling, choices, adjustable).plan()


@dataclass(slots=True)
class _Use:
    """What becomes of a value that could be pulled."""

    roots: set[Op] = field(default_factory=set)  # the kernels that pull it
    reused: bool = False  # read many times by one of them
    outside: bool = False  # needed by another block, or returned
    signature: tuple[int | None, ...] | None = ()  # the root's axis behind each of its own; () = not known yet
    users: int = 0
    ops: int = 0
    folded: bool = False  # read by a reduction
    path: tuple[Op, ...] | None = ()  # the moves from it to the root; None: not one plain way


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The op whose kernel computes a value at its end; `path` as in `Output`."""

    op: Op
    path: tuple[Op, ...]


@dataclass(slots=True)
class _Fusion:
    func: Func
    checks: list[Check]
    telling: bool = False
    choices: Lookup = defaults
    adjustable: Adjustable | None = None
    stored: dict[Value, int] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    constants: dict[bytes, int] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list)
    keep: set[Value] = field(default_factory=set)  # values that get a buffer
    forced: set[Value] = field(default_factory=set)  # values that must be stored whatever they are
    anchors: dict[Op, _Anchor] = field(default_factory=dict)
    views: dict[Value, View] = field(default_factory=dict)  # how values lie that are part of another one
    wholes: dict[Value, Value] = field(default_factory=dict)  # what they are part of
    parts: dict[Op, list[Part]] = field(default_factory=dict)  # of ops whose operands are made in place
    made: dict[Value, MadeImage] = field(default_factory=dict)  # what the one op that uses it makes as it goes
    inside: set[Op] = field(default_factory=set)  # the ops of those
    homes: dict[Value, int] = field(default_factory=dict)  # buffers of wholes
    begun: set[int] = field(default_factory=set)  # those of them that hold something already
    addressed: list[tuple[Value, Value, bool]] = field(default_factory=list)  # (base, value, in runs) that ops address
    rounded: dict[Value, list[Value]] = field(default_factory=dict)  # stored values that are this one converted
    known: set[str] = field(default_factory=set)  # symbols that have a number by now
    late: list[str] = field(default_factory=list)  # those of them that only data tells

    def plan(self) -> Plan:
        func = self.func
        for arg in func.args:
            self.stored[arg] = self._buffer(tensor(arg), "argument")
        names = symbols_in_order(*(size for arg in func.args for size in tensor(arg).sizes))
        self.known.update(names)
        results = [self._buffer(tensor(value), "result") for value in func.results]
        steps = self._block(func.body, results)
        self._check_sizes()
        return Plan(
            tuple(self.buffers),
            tuple(self.constants),
            tuple(steps),
            tuple(self.checks),
            tuple(self.requirements),
            names,
            tuple(self.late),
            tuple(i for i, attrs in enumerate(func.arg_attrs) if DONATED in attrs),
            settings=0 if self.adjustable is None else EACH * len(self.adjustable.numbers),
        )

    def _nest(self) -> Nest:
        return Nest(
            self.stored,
            views=self.views,
            made=self.made,
            temporary=lambda shape: self._buffer(shape, "temporary"),
            choices=self.choices,
            adjustable=self.adjustable,
        )

    def _buffer(self, shape: Shape, kind: str) -> int:
        index = sum(buffer.kind == kind for buffer in self.buffers) if kind != "temporary" else 0
        self.buffers.append(Buffer(shape, kind, index))  # type: ignore[arg-type]
        return len(self.buffers) - 1

    def _check_sizes(self) -> None:
        """What indices rely on and types do not say."""
        for op in walk(self.func.body):
            self.checks += [Check(part, size, False, why) for part, size, why in limits(op)]
            if op.name == "stablehlo.broadcast_in_dim":
                sizes, full = tensor(op.operands[0]).sizes, tensor(op.result).sizes
                for d, size in zip(op.attrs["broadcast_dimensions"], sizes, strict=True):
                    if size not in (1, full[d]):
                        why = "stablehlo.broadcast_in_dim: an open dimension is not repeated"
                        self.checks.append(Check(size, full[d], True, why))

    # -- blocks --

    def _block(self, region: Region, targets: Sequence[int], *, direct: bool = True) -> list[Step]:
        """The steps of a block whose results go to these buffers; at its end only, unless `direct`."""
        self._decide(region)
        self._pair_up(region)
        returned: dict[Value, int] = {}
        for value, target in zip(region.results, targets, strict=True):
            if direct and value.op is not None and value in self.keep and not self._renamed(value, target):
                returned.setdefault(value, target)
        steps: list[Step] = []
        for op in region.ops:
            steps += self._step(op, returned)
        return steps + self._fill(region.results, targets)

    def _fill(self, values: Sequence[Value], targets: Sequence[int]) -> list[Step]:
        """Put values into buffers: those that were stored elsewhere, or are arguments, constants or mere moves."""
        pending: list[Step] = []
        sizes: dict[str, Size] = {}
        for value, target in zip(values, targets, strict=True):
            if isinstance(value.type, Token):
                continue
            sizes |= self._renamed(value, target)
            if value in self.stored and self.stored[value] != target:
                pending.append(Copy(self.stored[value], target))
            elif value not in self.stored:
                pending.append(self._map([value], [target]))
        if not sizes:
            return _in_safe_order(pending, lambda shape: self._buffer(shape, "temporary"), self.buffers)
        early, late = self._put_by(pending, dict(zip(targets, values, strict=True)))
        return [*early, Measure(tuple(sizes), tuple(sizes.values())), *late]

    def _put_by(self, pending: Sequence[Step], values: dict[int, Value]) -> tuple[list[Step], list[Step]]:
        """Steps that put values aside while the buffers that they go to get another size, and those that bring them."""
        early: list[Step] = []
        late: list[Step] = []
        for step in pending:
            target = _filled(step)
            held = self._buffer(tensor(values[target]), "temporary")
            early.append(_redirected(step, target, held))
            late.append(Copy(held, target))
        return early, late

    def _renamed(self, value: Value, target: int) -> dict[str, Size]:
        """The sizes of a buffer that have names of their own there, and what they are for this value."""
        if target < 0:
            return {}
        pairs = zip(self.buffers[target].shape.sizes, tensor(value).sizes, strict=True)
        return {name: size for own, size in pairs if own != size and (name := bare_symbol(own)) in self.late}

    def _step(self, op: Op, returned: dict[Value, int]) -> list[Step]:
        if op.name in SILENT:
            return []
        if op.name in CONTROL:
            return self._control(op, returned)
        if op.name == "stablehlo.custom_call":
            return self._custom_call(op)
        demanded = self._demanded(op)
        if op.name == "stablehlo.constant" and op.result in self.keep:
            self._constant(op)
            return []
        if not any(value in self.keep for value in op.results) or op.results[0] in self.stored:
            return demanded  # pulled, or the beginning of another kernel, or made by one already
        results = [value for value in op.results if not isinstance(value.type, Token)]
        if (
            op.name == "stablehlo.reshape"
            and op.result not in self.views
            and (base := self._viewed(op.result)) is not None
        ):
            return self._view(op.result, base, returned)
        targets = [self._home(value, returned) for value in results]
        anchor = self.anchors.get(op)
        more: dict[Value, int] = {}
        if op in self.parts:
            steps = self._rest(op, targets[0])
        elif op.name in UPDATES:
            steps = self._update(op, targets)
        elif op.name in SINKS or anchor is not None:
            first = op if anchor is None else anchor.op
            more = self._rounded(op.result, returned) if first.name in ANCHORS else {}
            last, path = (None, ()) if anchor is None else (op.result, anchor.path)
            output = Output(targets, last, path, tuple(more.items()))
            steps = [
                self._written(
                    first.name.partition(".")[2],
                    first,
                    [*targets, *more.values()],
                    lambda nest: SINKS[first.name](nest, first, output),
                )
            ]
        elif op.name == "stablehlo.transpose" and (rule := build_transpose.rule_of(op)) is not None:
            nest = self._nest()
            rule(nest, op, targets[0])
            steps = [self._launch(nest, "transpose", [op], targets)]
        elif op.name == "stablehlo.reduce" and build_reduce.goes_by_rows(op):
            steps = [self._written("reduce", op, targets, lambda nest: build_reduce.by_rows(nest, op, targets[0]))]
        elif len({tensor(value).sizes for value in results}) == 1:
            more = self._rounded(results[0], returned)
            steps = [self._map([*results, *more], [*targets, *more.values()])]
        else:
            steps = [self._map([value], [target]) for value, target in zip(results, targets, strict=True)]
        self.stored.update(more)
        self.stored.update(zip(results, targets, strict=True))
        return [*demanded, *steps]

    def _pair_up(self, region: Region) -> None:
        """Find values that are stored as they are and converted as well, so that one kernel writes both."""
        for op in region.ops:
            if op.name != "stablehlo.convert" or op.result not in self.keep or op in self.anchors:
                continue
            source = op.operands[0]
            while source not in self.keep and source.op is not None and source.op.name == "stablehlo.convert":
                source = source.op.operands[0]
            if source in self.keep:
                self.rounded.setdefault(source, []).append(op.result)

    def _rounded(self, value: Value, returned: dict[Value, int]) -> dict[Value, int]:
        """The values that are this one converted, and their buffers."""
        return {each: self._home(each, returned) for each in self.rounded.get(value, ())}

    def _rest(self, op: Op, target: int) -> list[Step]:
        """What a whole holds besides the parts that were made in it."""
        made = {part.operand for part in self.parts[op]}
        if op.name == "stablehlo.pad":
            nest = self._nest()
            border(nest, op, target)
            return [self._launch(nest, "pad", [op], [target])]
        steps: list[Step] = []
        for i, (operand, start) in enumerate(zip(op.operands, starts(op), strict=True)):
            if i not in made:
                nest = self._nest()
                with nest.loops(tensor(operand).sizes) as index:
                    place = tuple(add(at, first) for at, first in zip(index, start, strict=True))
                    nest.store(target, nest.offset(op.result, place), nest.pull(operand, index))
                steps.append(self._launch(nest, "map", [op], [target]))
        return steps

    def _update(self, op: Op, targets: Sequence[int]) -> list[Step]:
        """The operands that an op changes, copied to its results, and a kernel that writes what is new.

        `in_place` makes one buffer of both wherever nobody needs the old content any more.
        """
        steps: list[Step] = []
        for value, result, target in zip(op.operands, op.results, targets, strict=False):
            base = self._viewed(value)
            if tensor(value).element != tensor(result).element:
                steps.append(self._converted(value, tensor(result).element, target))
            else:
                steps.append(self._map([value], [target]) if base is None else Copy(base, target))
        new = op.operands[1 if op.name == "stablehlo.dynamic_update_slice" else -1]
        if tensor(new).count == 0:
            return steps
        nest = self._nest()
        UPDATES[op.name](nest, op, Output(targets))
        launch = self._launch(nest, op.name.partition(".")[2], [op], targets)
        return [*steps, replace(launch, updates=tuple(targets))]

    def _converted(self, value: Value, element: DType, target: int) -> Step:
        """A kernel that puts a value into a buffer of another element type."""
        sizes = tensor(value).sizes
        nest = self._nest()
        with nest.loops(sizes) as index:
            nest.store(target, flat(index, sizes), nest.convert(nest.pull(value, index), element))
        return self._launch(nest, "map", [], [target])

    def _viewed(self, value: Value) -> int | None:
        """The buffer that holds the elements of a reshaped value in their order, where there is one."""
        base = value
        while base not in self.stored and base.op is not None and base.op.name == "stablehlo.reshape":
            base = base.op.operands[0]
        late = {*tensor(value).symbols, *tensor(base).symbols}.intersection(self.late)
        return None if late or base in self.views else self.stored.get(base)

    def _view(self, value: Value, base: int, returned: dict[Value, int]) -> list[Step]:
        """Another shape of what lies in a buffer already."""
        target = returned.get(value)
        self.stored[value] = base if target is None else target
        return [] if target is None else [Copy(base, target)]

    def _demanded(self, op: Op) -> list[Step]:
        """A check of what an op demands of its operands; sizes that are born here get their numbers."""
        born = [name for value in op.results for name in self._unknown(value)]
        if op.name not in DEMANDS:
            if born:
                raise unknown(op, "with a size that only data tells")
            return []
        nest = self._nest()
        flag = self._buffer(Shape("i1"), "temporary")
        conditions: list[Expr] = []
        numbers: dict[str, Expr] = {}
        for each in DEMANDS[op.name](nest, op):
            if not isinstance(each, Given):
                conditions.append(each)
            elif (name := bare_symbol(each.size)) in born and name not in numbers:
                numbers[name] = each.number
                conditions.append(nest.apply("LE", Number(0), each.number, dtype=i1))
            else:
                size = numbers[name] if name in numbers else Amount(each.size)
                conditions.append(nest.apply("EQ", each.number, size, dtype=i1))
        nest.store(flag, Number(0), nest.both(*conditions))
        found = self._buffer(Shape("i64", len(numbers)), "temporary") if numbers else -1
        for i, number in enumerate(numbers.values()):
            nest.store(found, Number(i), number)
        self._bear(op, born, numbers)
        message = f"{op.name}: the numbers given at run time do not fit the sizes of the program"
        self.requirements.append(Requirement(message, True, op.location))
        writes = [flag, found] if numbers else [flag]
        steps: list[Step] = [self._launch(nest, "check", [op], writes), Require(flag, len(self.requirements) - 1)]
        return [*steps, Measure(tuple(numbers), found)] if numbers else steps

    def _unknown(self, value: Value) -> list[str]:
        """The symbols of a value's sizes that have no number yet."""
        sizes = value.type.sizes if isinstance(value.type, Shape) else ()
        return [name for name in symbols_in_order(*sizes) if name not in self.known]

    def _bear(self, op: Op, born: Sequence[str], numbers: Container[str]) -> None:
        """Symbols get their numbers here."""
        if any(name not in numbers for name in born):
            raise unknown(op, "with a size that only data tells and that is no single symbol")
        self.late += dict.fromkeys(born)
        self.known.update(born)

    def _home(self, value: Value, returned: dict[Value, int]) -> int:
        while value in self.wholes:
            value = self.wholes[value]
        found = self.homes.get(value, returned.get(value))
        if found is None:
            found = self._buffer(tensor(value), "temporary")
        if value.op in self.parts:
            self.homes[value] = found
        return found

    def _constant(self, op: Op) -> None:
        data = np.ascontiguousarray(op.attrs["value"].array).tobytes()
        if data not in self.constants:
            self.constants[data] = len(self.constants)
        self.buffers.append(Buffer(tensor(op.result), "constant", self.constants[data]))
        self.stored[op.result] = len(self.buffers) - 1

    def _map(self, values: Sequence[Value], targets: Sequence[int]) -> Step:
        """A kernel that computes every element of a value, or of several with the same sizes."""
        domain: list[Size] = list(tensor(values[0]).sizes)
        inner: dict[int, list[Size]] = {d: [size] for d, size in enumerate(domain)}
        while True:
            nest = self._nest()
            extents = [size for d in inner for size in inner[d]]
            try:
                with nest.loops(extents, splittable=True) as vars:
                    places = iter(vars)
                    index = tuple(flat(tuple(next(places) for _ in sizes), sizes) for sizes in inner.values())
                    elements = [nest.pull(value, index) for value in values]
                    for value, target, element in zip(values, targets, elements, strict=True):
                        nest.store(target, nest.offset(value, index), element)
            except SplitLoopError as wanted:
                at = vars.index(wanted.var)
                _split(inner, at, wanted.inner)
                continue
            kind = "reduce" if any(op.name == "stablehlo.reduce" for op in nest.covered) else "map"
            return self._launch(nest, kind, [], targets)

    def _written(self, kind: str, first: Op, targets: Sequence[int], write: Callable[[Nest], None]) -> Launch:
        """A kernel of a sink, in all forms that it may have where these are to be tried."""
        nest = self._nest()
        write(nest)
        if self.adjustable is None or not nest.chosen:
            return self._launch(nest, kind, [first], [*targets, *nest.scratches])
        (problem,) = nest.chosen
        others: list[Nest] = []
        for choice in self.adjustable.forms(problem)[1:]:
            other = replace(self._nest(), buffers=nest.buffers, choices={problem: choice}.get)
            write(other)
            others.append(other)
        scratches = [each for other in (nest, *others) for each in other.scratches]
        usual, *forms = (self._launch(each, kind, [first], [*targets, *scratches]) for each in (nest, *others))
        kernels = tuple(form.kernel for form in forms)
        return replace(usual, kernel=replace(usual.kernel, forms=kernels, number=self.adjustable.number(problem)))

    def _launch(self, nest: Nest, kind: str, first: Sequence[Op], writes: Sequence[int]) -> Launch:
        empty = all(self.buffers[i].shape.count == 0 for i in writes)
        body = () if empty else schedule(nest.scope.statements)  # what is read for no element may not be there
        covered = tuple(dict.fromkeys([*first, *nest.covered]))
        names = tuple(dict.fromkeys(op.name for op in covered))
        kernel = Kernel(kind, body, len(nest.buffers), names, tuple(nest.chosen.items()))
        updates = tuple(target for target in writes if target in self.begun)
        self.begun.update(target for target in writes if target in self.homes.values())
        return Launch(kernel, tuple(nest.buffers), tuple(writes), covered if self.telling else (), updates)

    # -- control flow --

    def _control(self, op: Op, returned: dict[Value, int]) -> list[Step]:
        if op.name == "stablehlo.while":
            return self._while(op, returned)
        targets = self._joined_homes(op, returned)
        selector, filled = self._at_hand(op.operands[0])
        branches = tuple(tuple(self._block(region, targets)) for region in op.regions)
        self.stored.update({v: t for v, t in zip(op.results, targets, strict=True) if t >= 0})
        if op.name == "stablehlo.case" or len(branches) == 2:
            return [*([filled] if filled else []), Branch(selector, branches)]
        raise unknown(op)

    def _while(self, op: Op, returned: dict[Value, int]) -> list[Step]:
        condition, body = op.regions
        carried = self._joined_homes(op, returned)
        steps = self._fill(op.operands, carried)
        for region in (condition, body):
            self.stored.update({arg: target for arg, target in zip(region.args, carried, strict=True) if target >= 0})
        flag = self._buffer(tensor(condition.results[0]), "temporary")
        head = (*self._enter(op, condition, carried), *self._block(condition, [flag]))
        turn = (*self._enter(op, body, carried), *self._block(body, carried, direct=False))
        self.stored.update({value: target for value, target in zip(op.results, carried, strict=True) if target >= 0})
        return [*steps, Repeat(head, flag, turn)]

    def _joined_homes(self, op: Op, returned: dict[Value, int]) -> list[int]:
        """Buffers for what several blocks may give, perhaps in several sizes; -1 for a token."""
        born = [name for value in op.results for name in self._unknown(value)]
        sizes = [size for value in op.results if isinstance(value.type, Shape) for size in value.type.sizes]
        self._bear(op, born, [name for size in sizes if (name := bare_symbol(size)) is not None])
        return [-1 if isinstance(value.type, Token) else self._home(value, returned) for value in op.results]

    def _enter(self, op: Op, region: Region, carried: Sequence[int]) -> list[Step]:
        """Give the symbols of a loop's own arguments their numbers for this turn."""
        sizes: dict[str, Size] = {}
        outside = {name for value in op.operands if isinstance(value.type, Shape) for name in value.type.symbols}
        for arg, target in zip(region.args, carried, strict=True):
            if target >= 0:
                born = self._unknown(arg)
                pairs = zip(tensor(arg).sizes, self.buffers[target].shape.sizes, strict=True)
                for own, size in pairs:
                    name = bare_symbol(own)
                    if name is not None and own != size and name not in outside and (name in born or name in self.late):
                        sizes[name] = size
                self._bear(op, born, sizes)
        return [Measure(tuple(sizes), tuple(sizes.values()))] if sizes else []

    def _custom_call(self, op: Op) -> list[Step]:
        target = op.attrs["call_target_name"]
        if target in ASSERTIONS and op.operands and not op.results:
            message = str(op.attrs.get("error_message", "a constraint does not hold"))
            self.requirements.append(Requirement(message, False, op.location))
            flags, *numbers = (self._at_hand(operand) for operand in op.operands)
            return [
                *(step for _, step in (flags, *numbers) if step is not None),
                Require(flags[0], len(self.requirements) - 1, tuple(number for number, _ in numbers)[:RECORD]),
            ]
        if target in PLACEMENT and [value.type for value in op.operands] == [value.type for value in op.results]:
            steps: list[Step] = []
            for operand, result in zip(op.operands, op.results, strict=True):
                self.stored[result], step = self._at_hand(operand)
                steps += [step] if step is not None else []
            return steps
        raise unknown(op, str(target))

    def _at_hand(self, value: Value) -> tuple[int, Step | None]:
        """The buffer that holds a value, and the step that fills it where nothing has done so."""
        if value in self.stored:
            return self.stored[value], None
        held = self._buffer(tensor(value), "temporary")
        return held, self._map([value], [held])

    # -- what is stored --

    def _decide(self, region: Region) -> None:
        """Mark the values of a block that get a buffer."""
        uses: dict[Value, _Use] = {result: _Use() for op in region.ops for result in op.results}
        for value in region.results:
            if value in uses:
                uses[value].outside = True
        for op in region.ops:
            for value in _captured(op):
                if value in uses:
                    uses[value].outside = True
        users = _users(region)
        for op in reversed(region.ops):
            stored = self._is_stored(op, uses)
            self._make(op, users)
            self._force(op)
            if stored:
                self.keep.update(value for value in op.results if not isinstance(value.type, Token))
                self._place(op, users)
            self._spread(op, stored, uses)

    def _make(self, op: Op, users: Users) -> None:
        """Leave an image to the op that looks at it, if that can make it."""
        if op.name == "smelt.channel_conv" and (image := made_image(op, users)) is not None:
            self.made[op.operands[0]] = image
            self.inside |= image.inside

    def _place(self, op: Op, users: Users) -> None:
        """Have the operands of a whole made in its buffer."""
        if not is_whole(op, self.known):
            return
        view = self.views.get(op.result) or row_major(tensor(op.result).sizes)
        found = parts(op, view, users, self._may_lie)
        if found:
            self.parts[op] = found
        for part in found:
            self.views[part.value], self.wholes[part.value] = part.view, op.result
            self.forced.add(part.value)

    def _may_lie(self, value: Value, view: View) -> bool:
        """Whether a value has no place yet, and those who address it still can."""
        if value in self.views or value in self.keep:
            return False
        nest = Nest({value: 0}, views={value: view})
        return all(_is_strided(nest, seen, in_runs) for base, seen, in_runs in self.addressed if base is value)

    def _is_stored(self, op: Op, uses: dict[Value, _Use]) -> bool:
        if op in self.inside:
            return False
        if op.name in ANCHORS and len(op.results) == 1 and self._ends_elsewhere(op, uses[op.result]):
            return False
        if op.name in SINKS or op.name in UPDATES or op.name in CONTROL or op.name == "stablehlo.custom_call":
            return True
        if op.name not in PULLS:
            if op.name in SILENT:
                return False
            raise unknown(op)
        seen = [uses[value] for value in op.results]
        if op.name == "stablehlo.constant":
            return not op.attrs["value"].is_splat or op.result in self.forced
        if any(use.outside for use in seen) or any(value in self.forced for value in op.results):
            return True
        if _is_move(op):
            return any(use.ops > LARGEST for use in seen)
        if _is_formula(op):
            return False
        if len({root for use in seen for root in use.roots}) > 1:
            return True
        if any(use.reused or use.ops > LARGEST for use in seen):
            return True
        if op.name == "smelt.round_to_byte" and any(root in self.anchors for use in seen for root in use.roots):
            return True  # another product ends there: bytes are the least that this one can leave behind
        if op.name == "stablehlo.reduce":
            return len(op.results) > 1 or not _is_row(op, seen[0])
        if op.name in GUARDED:
            return True
        return op.name in COSTLY and any((use.users > 1 and use.folded) or _is_repeated(use) for use in seen)

    def _ends_elsewhere(self, op: Op, use: _Use) -> bool:
        """Whether the one kernel that uses a result can be the end of the kernel that makes it."""
        if use.outside or use.reused or use.folded or len(use.roots) != 1 or use.ops > LARGEST:
            return False
        root = next(iter(use.roots))
        if root in self.anchors or root.name not in PULLS or len(root.results) != 1 or root.name == "stablehlo.reduce":
            return False
        if use.path is None:
            return False
        self.anchors[root] = _Anchor(op, use.path)
        return True

    def _force(self, op: Op) -> None:
        """Have operands stored that an op wants to address and that are no plain view of something stored."""
        for i in ADDRESSED.get(op.name, ()):
            base = value = op.operands[i]
            if value in self.made:
                continue
            while base.op is not None and _is_move(base.op) and base.op.operands:
                base = base.op.operands[0]
            if base.op is not None and base.op.name == "stablehlo.constant" and base not in self.stored:
                self._constant(base.op)  # a number that would otherwise lie nowhere
            elif base.op is not None and _is_move(base.op):
                self.forced.add(base)
            in_runs = i in IN_RUNS[op.name]
            self.addressed.append((base, value, in_runs))
            if value is base or _is_strided(Nest({base: 0}, views=self.views), value, in_runs):
                continue
            while value.op is not None and value.op.name == "stablehlo.reshape":
                value = value.op.operands[0]  # a view of what it reshapes
            self.forced.add(value)

    def _spread(self, op: Op, stored: bool, uses: dict[Value, _Use]) -> None:
        """Tell the operands who uses them, and how."""
        use = uses[op.results[0]] if op.results else _Use()
        rank = len(op.results[0].type.sizes) if op.results and isinstance(op.results[0].type, Shape) else 0
        signature = tuple(range(rank)) if stored else use.signature
        pulled = op.name in SINKS or (stored and op.name not in PULLS)  # read as the op's own loops like
        for i, operand in enumerate(op.operands):
            if operand not in uses or isinstance(operand.type, Token):
                continue
            mine = uses[operand]
            mine.users += 1
            mine.ops = max(mine.ops, 1 if stored or pulled else use.ops + 1)
            mine.roots |= {op} if stored else use.roots
            mine.folded |= op.name == "stablehlo.reduce"
            mine.reused |= pulled or (not stored and use.reused) or (i == 0 and op.name in SCATTERED)
            seen = None if pulled or signature is None else _through(op, i, signature)
            mine.signature = seen if mine.users == 1 or mine.signature == seen else None
            mine.path = _joined_path(mine, _path(op, i, () if stored else use.path))
            if op.name in CONTROL or op.name == "stablehlo.custom_call" or _gives_size(op, i):
                mine.outside = True


def _is_strided(nest: Nest, value: Value, in_runs: bool) -> bool:
    """Whether a value lies at regular distances, along its last axis side by side if that is wanted."""
    found = strides(nest, value)
    return found is not None and (not in_runs or dict(found[1].terms).get(found[2][-1]) == 1)


def _users(region: Region) -> dict[Value, list[Op]]:
    """The ops of a block that use its values; those that others use as well are not in it."""
    users: dict[Value, list[Op]] = {value: [] for op in region.ops for value in op.results}
    for op in region.ops:
        for value in dict.fromkeys(op.operands):
            if value in users:
                users[value].append(op)
        for value in _captured(op):
            users.pop(value, None)
    for value in region.results:
        users.pop(value, None)
    return users


def _gives_size(op: Op, operand: int) -> bool:
    """Whether an operand holds numbers that an op demands something of."""
    return op.name in DEMANDS and (operand > 0 or op.name == "stablehlo.dynamic_iota")


def _is_move(op: Op) -> bool:
    """Whether an op only says where its operand's elements are."""
    if op.name == "smelt.pack":
        columns = tensor(op.operands[0]).sizes[2]
        return isinstance(columns, int) and columns % op.attrs["width"] == 0
    return op.name in MOVES


def _is_formula(op: Op) -> bool:
    """Whether an element is a few cheap functions of its place, as those of a causal mask are: sooner computed than
    read."""
    seen: set[Op] = set()
    stack = [op]
    while stack:
        each = stack.pop()
        if each in seen or each.name == "stablehlo.iota":
            continue
        seen.add(each)
        splat = each.name == "stablehlo.constant" and each.attrs["value"].is_splat
        cheap = OPS[each.name].elementwise and each.name not in COSTLY
        plain = splat or cheap or (each.name in MOVES and each.name != "stablehlo.constant")
        if not plain or len(seen) > FORMULA or any(operand.op is None for operand in each.operands):
            return False
        stack += [operand.op for operand in each.operands if operand.op is not None]
    return True


def _path(op: Op, operand: int, beyond: tuple[Op, ...] | None) -> tuple[Op, ...] | None:
    """The moves from an operand to the root, given those from the op's result on."""
    if beyond is None or len(op.results) != 1:
        return None
    if op.name in ("stablehlo.reshape", "stablehlo.transpose"):
        return (op, *beyond)
    same = OPS[op.name].elementwise and tensor(op.operands[operand]).sizes == tensor(op.result).sizes
    return beyond if same else None


def _joined_path(use: _Use, path: tuple[Op, ...] | None) -> tuple[Op, ...] | None:
    return path if use.users == 1 or use.path == path else None


def _through(op: Op, operand: int, signature: tuple[int | None, ...]) -> tuple[int | None, ...] | None:
    """The root's axes behind an operand's axes, if they are plain."""
    sizes = tensor(op.operands[operand]).sizes
    match op.name:
        case "stablehlo.broadcast_in_dim":
            dims = op.attrs["broadcast_dimensions"]
            return tuple(None if size == 1 else signature[d] for d, size in zip(dims, sizes, strict=True))
        case "stablehlo.transpose":
            places: list[int | None] = [None] * len(signature)
            for at, source in zip(signature, op.attrs["permutation"], strict=True):
                places[source] = at
            return tuple(places)
        case "stablehlo.reshape":
            full = tensor(op.result).sizes
            ours = [at for at, size in zip(signature, full, strict=True) if size != 1]
            kept = [size for size in full if size != 1]
            if kept != [size for size in sizes if size != 1]:
                return None
            axes = iter(ours)
            return tuple(None if size == 1 else next(axes) for size in sizes)
        case "stablehlo.reduce":
            if operand >= len(op.results):
                return ()
            kept_axes = iter(signature)
            return tuple(None if d in op.attrs["dimensions"] else next(kept_axes) for d in range(len(sizes)))
    if OPS[op.name].elementwise and len(sizes) == len(signature):
        return signature
    return None if sizes else ()


def _is_repeated(use: _Use) -> bool:
    """Whether the one kernel that uses a result would compute it anew in every turn of a loop that does not change it,
    because a loop inside that does."""
    if not use.signature or len(use.roots) != 1:
        return False
    axes = [axis for axis in use.signature if axis is not None]
    sizes = tensor(next(iter(use.roots)).results[0]).sizes
    return any(size != 1 and axis not in axes for axis, size in enumerate(sizes[: max(axes, default=0)]))


def _is_row(op: Op, use: _Use) -> bool:
    """Whether each result of a reduction belongs to one turn of the outer loops of the one kernel that uses it."""
    if use.signature is None or not use.roots or use.signature == ():
        return False
    root = next(iter(use.roots))
    axes = [axis for axis in use.signature if axis is not None]
    sizes = tensor(op.results[0]).sizes
    if any(axis is None and size != 1 for axis, size in zip(use.signature, sizes, strict=True)):
        return False
    loops = [d for d, size in enumerate(tensor(root.results[0]).sizes) if size != 1]
    return root.name in PULLS and axes == loops[: len(axes)] and len(axes) < len(loops)


def _split(inner: dict[int, list[Size]], position: int, size: Size) -> None:
    """Replace one loop by two, the inner one of `size` steps."""
    for sizes in inner.values():
        if position < len(sizes):
            whole = sizes[position]
            count = whole // size
            sizes[position : position + 1] = [count, size]
            return
        position -= len(sizes)
    raise AssertionError("no such loop")


def _captured(op: Op) -> Iterator[Value]:
    """What the regions of an op use from outside, and more."""
    for region in op.regions:
        yield from region.results
        for inner in walk(region):
            yield from inner.operands
            for nested in inner.regions:
                yield from nested.results


def _in_safe_order(pending: list[Step], temporary: Callable[[Shape], int], buffers: list[Buffer]) -> list[Step]:
    """Steps that fill results from other buffers, so that none reads what another has already overwritten."""
    left = [(_filled(step), step) for step in pending]
    done: list[Step] = []
    last: list[Step] = []
    while left:
        needed = [_sources(step) - {target} for target, step in left]
        free = next((i for i, (target, _) in enumerate(left) if not any(target in each for each in needed)), None)
        target, step = left.pop(free or 0)
        if free is None:  # each waits for another: one is put aside
            held = temporary(buffers[target].shape)
            step = _redirected(step, target, held)
            last.append(Copy(held, target))
        done.append(step)
    return done + last


def _filled(step: Step) -> int:
    """The one buffer that a step fills."""
    assert isinstance(step, Copy | Launch)
    return step.target if isinstance(step, Copy) else step.writes[0]


def _sources(step: Step) -> set[int]:
    """The buffers that a step reads, and the one that it fills."""
    assert isinstance(step, Copy | Launch)
    return {step.source} if isinstance(step, Copy) else set(step.buffers)


def _redirected(step: Step, target: int, held: int) -> Step:
    """A step that fills another buffer instead."""
    if isinstance(step, Copy):
        return Copy(step.source, held)
    assert isinstance(step, Launch)
    return Launch(step.kernel, tuple(held if i == target else i for i in step.buffers), (held,), step.covers)
