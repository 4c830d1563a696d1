"""Fusion: a function → a plan of few kernels. Called by `engine.compile`.

`SINKS` holds the ops with loops of their own (GEMM, convolution, sort …), `UPDATES` those that change a part of an
operand; all other ops are inlined by their rules in `PULLS`. `materialise` decides which values get a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from smelt.dim import Size, symbols_in_order
from smelt.dtype import DType, i1
from smelt.ir.core import Func, Op, Region, Token, Value
from smelt.ir.ops.control import ASSERTIONS, PLACEMENT
from smelt.ir.ops.signature import bare_symbol
from smelt.ir.size_checks import Check
from smelt.kernel.build import columns_simt, reduce_simt
from smelt.kernel.build import reduce as build_reduce
from smelt.kernel.build import transpose as build_transpose
from smelt.kernel.build.elementwise import write_border
from smelt.kernel.build.families import ANCHORS, SINKS, UPDATES
from smelt.kernel.build.sinks import Output, Rounding, find_sink, find_update
from smelt.kernel.loops.grammar import Amount, Expr, Number, add
from smelt.kernel.loops.nest import Nest, SplitLoopError, flat, tensor, unsupported
from smelt.kernel.loops.parallelise import parallelise
from smelt.kernel.plan.concat_in_place import operand_starts
from smelt.kernel.plan.find_roundings import ROUND, find_roundings
from smelt.kernel.plan.materialise import SILENT, Materialised
from smelt.kernel.plan.plan import (
    Branch,
    Buffer,
    Copy,
    Ensure,
    Filling,
    Kernel,
    Launch,
    Measure,
    Plan,
    Repeat,
    Require,
    Requirement,
    Step,
    remap_step,
)
from smelt.kernel.plan.runtime_checks import RUNTIME_CHECKS, SizeValue, region_size_checks
from smelt.kernel.tune.schedules import Lookup, no_schedule
from smelt.kernel.tune.tunables import EACH, Tunables
from smelt.passes.split_prepare import DONATED
from smelt.shape import Shape
from smelt.target import BASELINE, Target

Outputs = dict[Value, int]  # the values that a kernel stores, and their buffers
RECORD = 8  # numbers of an error message


def fuse(
    func: Func,
    *,
    target: Target = BASELINE,
    keep_ops: bool = False,
    schedules: Lookup = no_schedule,
    tunables: Tunables | None = None,
) -> Plan:
    """The plan of a function for a target; an op without a kernel raises UnsupportedError.

    `keep_ops`: every launch lists the ops that it covers, which keeps them alive as long as the plan. `schedules`: the
    lookup of tuned schedules. With `tunables` schedules are set at run time.
    """
    return _Fusion(func, target, keep_ops, schedules, tunables).plan()


@dataclass(slots=True)
class _Fusion:
    func: Func
    target: Target = BASELINE
    keep_ops: bool = False
    schedules: Lookup = no_schedule
    tunables: Tunables | None = None
    stored: dict[Value, int] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    constants: dict[bytes, int] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list)
    materialised: Materialised = field(default_factory=Materialised)
    destinations: dict[Value, int] = field(default_factory=dict)  # buffers of containers
    returned: dict[Value, int] = field(default_factory=dict)  # buffers of the values that blocks return
    partly_written: set[int] = field(default_factory=set)  # those that are partly written already
    converted_copies: dict[Value, list[Value]] = field(default_factory=dict)  # materialised conversions
    roundings: dict[Value, list[Rounding]] = field(default_factory=dict)  # of what is computed from a value
    known: set[str] = field(default_factory=set)  # symbols that are defined by now
    deferred: list[str] = field(default_factory=list)  # the data-dependent ones
    checks: dict[Check, int] = field(default_factory=dict)  # conditions on sizes, numbered
    ensured: set[Check] = field(default_factory=set)  # those that hold in the current block
    pending_checks: list[Check] = field(default_factory=list)  # of the current block: symbols undefined

    def plan(self) -> Plan:
        func = self.func
        self.materialised.expands = self.target.kind == "cpu"
        for arg in func.args:
            self.stored[arg] = self._buffer(tensor(arg), "argument")
        names = symbols_in_order(*(size for arg in func.args for size in tensor(arg).sizes))
        self.known.update(names)
        results = [self._buffer(tensor(value), "result") for value in func.results]
        steps = self._block(func.body, results)
        return Plan(
            tuple(self.buffers),
            tuple(self.constants),
            tuple(steps),
            tuple(self.checks),
            tuple(self.requirements),
            names,
            tuple(self.deferred),
            tuple(i for i, attrs in enumerate(func.arg_attrs) if DONATED in attrs),
            tunables=0 if self.tunables is None else EACH * len(self.tunables.numbers),
        )

    def _nest(self) -> Nest:
        return Nest(
            self.stored,
            self.target,
            views=self.materialised.views,
            expanded=self.materialised.expanded,
            temporary=lambda shape: self._buffer(shape, "temporary"),
            schedules=self.schedules,
            tunables=self.tunables,
        )

    def _buffer(self, shape: Shape, kind: str) -> int:
        index = sum(buffer.kind == kind for buffer in self.buffers) if kind != "temporary" else 0
        self.buffers.append(Buffer(shape, kind, index))  # type: ignore[arg-type]
        return len(self.buffers) - 1

    # -- sizes --

    def _ensure(self) -> list[Step]:
        """Emit the checks of the current block whose symbols are defined by now."""
        ready = [check for check in self.pending_checks if check.symbols <= self.known]
        self.pending_checks = [check for check in self.pending_checks if check not in ready]
        fresh = [check for check in dict.fromkeys(ready) if check not in self.ensured]
        self.ensured.update(fresh)
        numbers = tuple(self.checks.setdefault(check, len(self.checks)) for check in fresh)
        return [Ensure(numbers)] if numbers else []

    # -- blocks --

    def _block(self, region: Region, targets: Sequence[int], *, direct: bool = True) -> list[Step]:
        """The steps of a block whose results go to `targets`; copied there at its end unless `direct`."""
        outer, self.pending_checks, self.ensured = (
            (self.pending_checks, self.ensured),
            region_size_checks(region, self.target),
            set(self.ensured),
        )
        steps = self._ensure()
        if region is self.func.body:
            steps = []  # `NAME_measure` checks these
        if self.target.kind == "simt":
            self.materialised.forced.update(op.result for op in region.ops if build_reduce.is_long_reduction(op))
        self.materialised.decide(region, self.known)
        for op in self.materialised.constants:
            self._constant(op)
        self._pair_up(region)
        if self.target.kind == "simt":
            self.roundings |= find_roundings(region, self.materialised)
        for value, target in zip(region.results, targets, strict=True):
            if (
                direct
                and value.op is not None
                and value in self.materialised.values
                and not self._renamed_sizes(value, target)
            ):
                self.returned.setdefault(value, target)
        for op in region.ops:
            steps += self._step(op)
            steps += self._ensure()
        self.pending_checks, self.ensured = outer
        return steps + self._fill(region.results, targets)

    def _fill(self, values: Sequence[Value], targets: Sequence[int]) -> list[Step]:
        """Copy or compute values into buffers: those in other buffers, arguments, constants and moves."""
        pending: list[Filling] = []
        sizes: dict[str, Size] = {}
        for value, target in zip(values, targets, strict=True):
            if isinstance(value.type, Token):
                continue
            sizes |= self._renamed_sizes(value, target)
            if value in self.stored and self.stored[value] != target:
                pending.append(Copy(self.stored[value], target))
            elif value not in self.stored:
                pending.append(self._map([value], [target]))
        if not sizes:
            return _in_safe_order(pending, lambda shape: self._buffer(shape, "temporary"), self.buffers)
        early, late = self._put_aside(pending, dict(zip(targets, values, strict=True)))
        return [*early, Measure(tuple(sizes), tuple(sizes.values())), *late]

    def _put_aside(self, pending: Sequence[Filling], values: dict[int, Value]) -> tuple[list[Step], list[Step]]:
        """Steps that save values while their target buffers are resized, and steps that copy them there."""
        early: list[Step] = []
        late: list[Step] = []
        for step in pending:
            (target,) = step.writes
            held = self._buffer(tensor(values[target]), "temporary")
            early.append(remap_step(step, {target: held}))
            late.append(Copy(held, target))
        return early, late

    def _renamed_sizes(self, value: Value, target: int) -> dict[str, Size]:
        """The symbols in a buffer's sizes that this value defines, with its sizes."""
        if target < 0:
            return {}
        pairs = zip(self.buffers[target].shape.sizes, tensor(value).sizes, strict=True)
        return {name: size for own, size in pairs if own != size and (name := bare_symbol(own)) in self.deferred}

    def _step(self, op: Op) -> list[Step]:
        if op.name in _WITHOUT_KERNEL:
            return _WITHOUT_KERNEL[op.name](self, op)
        checked = self._check_operands(op)
        if not any(value in self.materialised.values for value in op.results) or op.results[0] in self.stored:
            return checked  # inlined, fused into a later kernel, or computed by an earlier one
        if (copied := self._alias(op)) is not None:
            return [*checked, *copied]
        outputs = {value: self._destination(value) for value in op.results if not isinstance(value.type, Token)}
        written = (write(self, op, outputs) for write in _WRITERS)
        steps = next(steps for steps in written if steps is not None)
        self.stored.update(outputs)
        return [*checked, *steps]

    def _pair_up(self, region: Region) -> None:
        """Find values that are materialised in two element types, so that one kernel writes both."""
        for op in region.ops:
            if (
                op.name != "stablehlo.convert"
                or op.result not in self.materialised.values
                or op in self.materialised.anchors
            ):
                continue
            source = op.operands[0]
            while (
                source not in self.materialised.values
                and source.op is not None
                and source.op.name == "stablehlo.convert"
            ):
                source = source.op.operands[0]
            if source in self.materialised.values:
                self.converted_copies.setdefault(source, []).append(op.result)

    # -- writers: `_WRITERS` lists them in order. Each gives the steps that fill `outputs`, the buffers of an op's
    # results, or None if it does not apply. A writer that stores further values adds them to `outputs`. --

    def _write_container(self, op: Op, outputs: Outputs) -> list[Step] | None:
        """Fill the rest of a concatenated or padded buffer, beside the parts computed in it."""
        if op not in self.materialised.parts:
            return None
        made = {part.operand for part in self.materialised.parts[op]}
        target = outputs[op.result]
        if op.name == "stablehlo.pad":
            nest = self._nest()
            write_border(nest, op, target)
            return [self._launch(nest, "pad", [op], [target])]
        steps: list[Step] = []
        for i, (operand, start) in enumerate(zip(op.operands, operand_starts(op), strict=True)):
            if i not in made:
                nest = self._nest()
                with nest.loops(tensor(operand).sizes) as index:
                    place = tuple(add(at, first) for at, first in zip(index, start, strict=True))
                    nest.store(target, nest.offset(op.result, place), nest.pull(operand, index))
                steps.append(self._launch(nest, "map", [op], [target]))
        return steps

    def _write_update(self, op: Op, outputs: Outputs) -> list[Step] | None:
        """Copy the operands that an op updates to its results; a kernel then writes the changed part.

        `in_place` merges both buffers where the old content is dead.
        """
        if op.name not in UPDATES:
            return None
        steps: list[Step] = []
        for value, (result, target) in zip(op.operands, outputs.items(), strict=False):
            base = self._reshaped_buffer(value)
            if tensor(value).element != tensor(result).element:
                steps.append(self._convert_into(value, tensor(result).element, target))
            else:
                steps.append(self._map([value], [target]) if base is None else Copy(base, target))
        new = op.operands[1 if op.name == "stablehlo.dynamic_update_slice" else -1]
        if tensor(new).count == 0:
            return steps
        targets = tuple(outputs.values())
        nest = self._nest()
        find_update(op.name, self.target)(nest, op, Output(targets))
        launch = self._launch(nest, _kind(op), [op], targets)
        return [*steps, replace(launch, writes=(*targets, *nest.scratches), updates=targets)]

    def _convert_into(self, value: Value, element: DType, target: int) -> Step:
        """A kernel that converts a value into a buffer of another element type."""
        sizes = tensor(value).sizes
        nest = self._nest()
        with nest.loops(sizes) as index:
            nest.store(target, flat(index, sizes), nest.convert(nest.pull(value, index), element))
        return self._launch(nest, "map", [], [target])

    def _write_sink(self, op: Op, outputs: Outputs) -> list[Step] | None:
        """The kernel of an op with loops of its own, and of the epilogue that ends in `op`."""
        anchor = self.materialised.anchors.get(op)
        if op.name not in SINKS and anchor is None:
            return None
        first, last = (op, None) if anchor is None else (anchor.op, op.results[0])
        path, pair = ((), ()) if anchor is None else (anchor.path, anchor.pair)
        targets = list(outputs.values())
        more = self._converted_copies(op.result) if first.name in ANCHORS and len(op.results) == 1 else {}
        outputs.update(more)
        output, build = Output(targets, last, path, tuple(more.items()), pair), find_sink(first.name, self.target)
        if op.name == ROUND and anchor is not None:
            alone = Rounding(op, (), tuple(targets))
            output = output.replace(targets=(), last=op.operands[0], roundings=(alone,))
        elif found := self.roundings.get(op.results[0]):
            made = {each.op: {value: self._destination(value) for value in each.op.results} for each in found}
            there = tuple(each.replace(targets=tuple(made[each.op].values())) for each in found)
            output = output.replace(roundings=there)
            outputs.update({value: target for each in made.values() for value, target in each.items()})
        return [self._launch_variants(first, outputs, lambda nest: build(nest, first, output))]

    def _write_transpose(self, op: Op, outputs: Outputs) -> list[Step] | None:
        if op.name != "stablehlo.transpose" or (rule := build_transpose.find_rule(op)) is None:
            return None
        nest = self._nest()
        rule(nest, op, outputs[op.result])
        return [self._launch(nest, "transpose", [op], [outputs[op.result]])]

    def _write_column_reduction(self, op: Op, outputs: Outputs) -> list[Step] | None:
        if op.name != "stablehlo.reduce" or not build_reduce.is_column_reduction(op):
            return None
        target, rule = outputs[op.result], build_reduce.reduce_columns
        rule = columns_simt.reduce_columns if self.target.kind == "simt" else rule
        return [self._launch_variants(op, outputs, lambda nest: rule(nest, op, target))]

    def _write_long_reduction(self, op: Op, outputs: Outputs) -> list[Step] | None:
        if self.target.kind != "simt" or not build_reduce.is_long_reduction(op):
            return None
        target = outputs[op.result]
        return [self._launch_variants(op, outputs, lambda nest: build_reduce.reduce_long(nest, op, target))]

    def _write_long_selection(self, op: Op, outputs: Outputs) -> list[Step] | None:
        whole = len(outputs) == len(op.results)
        if self.target.kind != "simt" or not whole or not reduce_simt.is_long_selection(op):
            return None
        nest = self._nest()
        reduce_simt.reduce_selection(nest, op, [outputs[value] for value in op.results])
        return [self._launch(nest, "reduce", [op], [*outputs.values()])]

    def _write_map(self, op: Op, outputs: Outputs) -> list[Step]:
        """An elementwise kernel for all results, or one for each if their sizes differ."""
        if len({tensor(value).sizes for value in outputs}) > 1:
            return [self._map([value], [target]) for value, target in outputs.items()]
        outputs.update(self._converted_copies(op.results[0]))
        return [self._map(list(outputs), list(outputs.values()))]

    def _reshaped_buffer(self, value: Value) -> int | None:
        """The buffer with the elements of a reshaped value in order, if there is one."""
        base = value
        while base not in self.stored and base.op is not None and base.op.name == "stablehlo.reshape":
            base = base.op.operands[0]
        late = {*tensor(value).symbols, *tensor(base).symbols}.intersection(self.deferred)
        return None if late or base in self.materialised.views else self.stored.get(base)

    def _alias(self, op: Op) -> list[Step] | None:
        """A reshape without a copy: the value shares the buffer."""
        if op.name != "stablehlo.reshape" or op.result in self.materialised.views:
            return None
        if (base := self._reshaped_buffer(op.result)) is None:
            return None
        target = self.returned.get(op.result)
        self.stored[op.result] = base if target is None else target
        return [] if target is None else [Copy(base, target)]

    def _converted_copies(self, value: Value) -> dict[Value, int]:
        """The materialised conversions of a value, and their buffers."""
        return {each: self._destination(each) for each in self.converted_copies.get(value, ())}

    def _check_operands(self, op: Op) -> list[Step]:
        """Check the runtime conditions of an op; define the data-dependent sizes of its results."""
        born = [name for value in op.results for name in self._undefined_symbols(value)]
        if op.name not in RUNTIME_CHECKS:
            if born:
                raise unsupported(op, "with a data-dependent size")
            return []
        nest = self._nest()
        flag = self._buffer(Shape("i1"), "temporary")
        conditions: list[Expr] = []
        numbers: dict[str, Expr] = {}
        for each in RUNTIME_CHECKS[op.name](nest, op):
            if not isinstance(each, SizeValue):
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
        self._define_symbols(op, born, numbers)
        message = f"{op.name}: the numbers given at run time do not fit the sizes of the program"
        self.requirements.append(Requirement(message, True, op.location))
        writes = [flag, found] if numbers else [flag]
        steps: list[Step] = [self._launch(nest, "check", [op], writes), Require(flag, len(self.requirements) - 1)]
        return [*steps, Measure(tuple(numbers), found), *self._ensure()] if numbers else steps

    def _undefined_symbols(self, value: Value) -> list[str]:
        """The symbols in a value's sizes that are not defined yet."""
        sizes = value.type.sizes if isinstance(value.type, Shape) else ()
        return [name for name in symbols_in_order(*sizes) if name not in self.known]

    def _define_symbols(self, op: Op, born: Sequence[str], numbers: Container[str]) -> None:
        """Mark symbols as defined here."""
        if any(name not in numbers for name in born):
            raise unsupported(op, "with a data-dependent size that is no single symbol")
        self.deferred += dict.fromkeys(born)
        self.known.update(born)

    def _destination(self, value: Value) -> int:
        while value in self.materialised.containers:
            value = self.materialised.containers[value]
        found = self.destinations.get(value, self.returned.get(value))
        if found is None:
            found = self._buffer(tensor(value), "temporary")
        if value.op in self.materialised.parts:
            self.destinations[value] = found
        return found

    def _materialised_constant(self, op: Op) -> list[Step]:
        if op.result in self.materialised.values:
            self._constant(op)
        return []

    def _constant(self, op: Op) -> None:
        if op.result in self.stored:
            return
        data = np.ascontiguousarray(op.attrs["value"].array).tobytes()
        if data not in self.constants:
            self.constants[data] = len(self.constants)
        self.buffers.append(Buffer(tensor(op.result), "constant", self.constants[data]))
        self.stored[op.result] = len(self.buffers) - 1

    def _map(self, values: Sequence[Value], targets: Sequence[int]) -> Launch:
        """An elementwise kernel over a value, or over several of the same sizes."""
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

    def _launch_variants(self, op: Op, outputs: Outputs, write: Callable[[Nest], None]) -> Launch:
        """The kernel that `write` builds; with `tunables`, in all variants."""
        kind, targets = _kind(op), outputs.values()
        nest = self._nest()
        write(nest)
        if self.tunables is None or not nest.chosen:
            return self._launch(nest, kind, [op], [*targets, *nest.scratches])
        (key,) = nest.chosen
        others: list[Nest] = []
        for schedule in self.tunables.variants(key)[1:]:
            other = replace(self._nest(), buffers=nest.buffers, schedules={key: schedule}.get)
            write(other)
            others.append(other)
        scratches = [each for other in (nest, *others) for each in other.scratches]
        usual, *variants = (self._launch(each, kind, [op], [*targets, *scratches]) for each in (nest, *others))
        kernels = tuple(each.kernel for each in variants)
        return replace(usual, kernel=replace(usual.kernel, variants=kernels, number=self.tunables.number(key)))

    def _launch(self, nest: Nest, kind: str, first: Sequence[Op], writes: Sequence[int]) -> Launch:
        empty = all(self.buffers[i].shape.count == 0 for i in writes)
        unrolls = self.target.kind == "cpu"
        # Operands of an empty result may not exist.
        body = () if empty else parallelise(nest.scope.statements, unrolls=unrolls)
        covered = tuple(dict.fromkeys([*first, *nest.covered]))
        names = tuple(dict.fromkeys(op.name for op in covered))
        kernel = Kernel(kind, body, len(nest.buffers), names, tuple(nest.chosen.items()))
        updates = tuple(target for target in writes if target in self.partly_written)
        self.partly_written.update(target for target in writes if target in self.destinations.values())
        return Launch(kernel, tuple(nest.buffers), tuple(writes), covered if self.keep_ops else (), updates)

    # -- control flow --

    def _skip(self, op: Op) -> list[Step]:
        return []

    def _branch(self, op: Op) -> list[Step]:
        targets = self._block_destinations(op)
        selector, filled = self._in_buffer(op.operands[0])
        branches = tuple(tuple(self._block(region, targets)) for region in op.regions)
        self.stored.update({v: t for v, t in zip(op.results, targets, strict=True) if t >= 0})
        return [*([filled] if filled else []), Branch(selector, branches)]

    def _while(self, op: Op) -> list[Step]:
        condition, body = op.regions
        carried = self._block_destinations(op)
        steps = self._fill(op.operands, carried)
        for region in (condition, body):
            self.stored.update({arg: target for arg, target in zip(region.args, carried, strict=True) if target >= 0})
        flag = self._buffer(tensor(condition.results[0]), "temporary")
        head = (*self._enter(op, condition, carried), *self._block(condition, [flag]))
        iteration = (*self._enter(op, body, carried), *self._block(body, carried, direct=False))
        self.stored.update({value: target for value, target in zip(op.results, carried, strict=True) if target >= 0})
        return [*steps, Repeat(head, flag, iteration)]

    def _block_destinations(self, op: Op) -> list[int]:
        """Buffers for the results of control flow, whose sizes may differ by block; -1 for a token."""
        born = [name for value in op.results for name in self._undefined_symbols(value)]
        sizes = [size for value in op.results if isinstance(value.type, Shape) for size in value.type.sizes]
        self._define_symbols(op, born, [name for size in sizes if (name := bare_symbol(size)) is not None])
        return [-1 if isinstance(value.type, Token) else self._destination(value) for value in op.results]

    def _enter(self, op: Op, region: Region, carried: Sequence[int]) -> list[Step]:
        """Define the symbols of a loop's own arguments for this iteration."""
        sizes: dict[str, Size] = {}
        outside = {name for value in op.operands if isinstance(value.type, Shape) for name in value.type.symbols}
        for arg, target in zip(region.args, carried, strict=True):
            if target >= 0:
                born = self._undefined_symbols(arg)
                pairs = zip(tensor(arg).sizes, self.buffers[target].shape.sizes, strict=True)
                for own, size in pairs:
                    name = bare_symbol(own)
                    if (
                        name is not None
                        and own != size
                        and name not in outside
                        and (name in born or name in self.deferred)
                    ):
                        sizes[name] = size
                self._define_symbols(op, born, sizes)
        return [Measure(tuple(sizes), tuple(sizes.values()))] if sizes else []

    def _custom_call(self, op: Op) -> list[Step]:
        target = op.attrs["call_target_name"]
        if target in ASSERTIONS and op.operands and not op.results:
            message = str(op.attrs.get("error_message", "a constraint does not hold"))
            self.requirements.append(Requirement(message, False, op.location))
            flags, *numbers = (self._in_buffer(operand) for operand in op.operands)
            return [
                *(step for _, step in (flags, *numbers) if step is not None),
                Require(flags[0], len(self.requirements) - 1, tuple(number for number, _ in numbers)[:RECORD]),
            ]
        if target in PLACEMENT and [value.type for value in op.operands] == [value.type for value in op.results]:
            steps: list[Step] = []
            for operand, result in zip(op.operands, op.results, strict=True):
                self.stored[result], step = self._in_buffer(operand)
                steps += [step] if step is not None else []
            return steps
        raise unsupported(op, str(target))

    def _in_buffer(self, value: Value) -> tuple[int, Step | None]:
        """The buffer of a value, and the step that fills it if none has."""
        if value in self.stored:
            return self.stored[value], None
        held = self._buffer(tensor(value), "temporary")
        return held, self._map([value], [held])


_WITHOUT_KERNEL: dict[str, Callable[[_Fusion, Op], list[Step]]] = {
    **dict.fromkeys(SILENT, _Fusion._skip),
    "stablehlo.constant": _Fusion._materialised_constant,
    "stablehlo.while": _Fusion._while,
    "stablehlo.if": _Fusion._branch,
    "stablehlo.case": _Fusion._branch,
    "stablehlo.custom_call": _Fusion._custom_call,
}

_WRITERS: tuple[Callable[[_Fusion, Op, Outputs], list[Step] | None], ...] = (
    _Fusion._write_container,
    _Fusion._write_update,
    _Fusion._write_sink,
    _Fusion._write_transpose,
    _Fusion._write_column_reduction,
    _Fusion._write_long_reduction,
    _Fusion._write_long_selection,
    _Fusion._write_map,
)


def _kind(op: Op) -> str:
    return op.name.partition(".")[2]


def _split(inner: dict[int, list[Size]], position: int, size: Size) -> None:
    """Split one loop into two, the inner one of `size` iterations."""
    for sizes in inner.values():
        if position < len(sizes):
            whole = sizes[position]
            count = whole // size
            sizes[position : position + 1] = [count, size]
            return
        position -= len(sizes)
    raise AssertionError("no such loop")


def _in_safe_order(pending: list[Filling], temporary: Callable[[Shape], int], buffers: list[Buffer]) -> list[Step]:
    """Order steps that fill one buffer each so that none reads a buffer that another has overwritten."""
    left = list(pending)
    done: list[Step] = []
    last: list[Step] = []
    while left:
        free = next((i for i, step in enumerate(left) if not _is_awaited(step, left)), None)
        step = left.pop(free or 0)
        if free is None:  # a cycle: save one in a temporary
            (target,) = step.writes
            held = temporary(buffers[target].shape)
            last.append(Copy(held, target))
            done.append(remap_step(step, {target: held}))
        else:
            done.append(step)
    return done + last


def _is_awaited(step: Filling, left: Sequence[Filling]) -> bool:
    """Whether another step still reads the buffer that a step overwrites."""
    return any(target in other.reads for target in step.writes for other in left if other is not step)
