"""Annotated functions → programs, proven for all sizes: the tracer.

`trace(fn)` makes symbolic arguments from annotations (of parameters and of a model's fields), runs the function on
every path through its size-dependent branches, proves the declared result, and returns a `Traced`, which runs on data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

import numpy as np

from smelt.dim import Fact, Facts, Poly, Size, solve, substitute, symbol
from smelt.dtype import Array, f32
from smelt.errors import RunError, ShapeError, SizeError, SmeltError, UnsupportedError
from smelt.frozen import Frozen
from smelt.ir.core import Attrs, Program
from smelt.ir.size_ops import sources_of
from smelt.passes.split_prepare import NAME, WEIGHT
from smelt.shape import Shape
from smelt.structure import CONTAINERS, map_items
from smelt.tensor import tree
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.arguments import Arguments, model_facts, model_symbols, symbolic_model
from smelt.tensor.axes import Dim
from smelt.tensor.composite import callees
from smelt.tensor.facts import ExploredPath, explore, facts_of, parse_facts, refuse_contradiction, substitute_fact
from smelt.tensor.fields import (
    constructor_numbers,
    declared_fields,
    fields_of,
    has_shapes,
    is_model,
    numbers_of,
    size_in,
)
from smelt.tensor.jit.realise import Entry
from smelt.tensor.jit.realise import run as run_entry
from smelt.tensor.proving import bind_names, current_facts, entry_facts, only_facts
from smelt.tensor.record import CHECKS, SOURCES, Leaf, function, is_tensor, place_of
from smelt.tensor.recovery import is_poison
from smelt.tensor.shaped import Spec, annotations_of, declared_spec, lone_symbol, match, signature_specs, spec_of
from smelt.tensor.source import Operand, Place, declaration_of, refuse
from smelt.tensor.symbols import determined_symbols, refuse_unknown, solve_facts

F = TypeVar("F", bound=Callable[..., Any])


# ---- traced functions ----


class Path(Frozen):
    """One path through a function: the sizes it covers, its assumptions, its program and its results."""

    guards: Facts
    assumed: Facts
    program: Program
    results: Any  # the structure that the function returned, of symbolic tensors


@dataclass(frozen=True, slots=True)
class Inputs:
    """The symbolic inputs of a trace: the model whose method the function is, and its arguments."""

    receiver: Any = None
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


class Traced:
    """A function that is proven for all sizes. A call on arrays checks its facts and runs the path for their sizes."""

    def __init__(
        self, name: str, leaves: Sequence[Leaf], facts: Facts, paths: Sequence[Path], inputs: Inputs | None = None
    ) -> None:
        self.name = name
        self.inputs = inputs or Inputs()
        self.facts = facts
        self.paths = tuple(paths)
        self.leaves = tuple(leaves)
        self._entries: dict[int, Entry] = {}

    def __repr__(self) -> str:
        inputs = ", ".join(f"{leaf.name}: {leaf.shape}" for leaf in self.leaves)
        results = ", ".join(str(tensor.shape) for tensor in tree.leaves(self.results))
        more = f", {len(self.paths)} paths" if len(self.paths) > 1 else ""
        return f"<{self.name}({inputs}) → ({results}){more}>"

    @property
    def program(self) -> Program:
        """The program, where no branch depends on sizes."""
        if len(self.paths) != 1:
            guards = [", ".join(map(str, path.guards)) for path in self.paths]
            raise UnsupportedError(
                "a function that branches on sizes has several programs", got=guards, remedy=".paths"
            )
        return self.paths[0].program

    @property
    def results(self) -> Any:
        """The results of the first path: symbolic tensors in the function's own structure."""
        return self.paths[0].results

    def __call__(self, *arrays: Any, engine: str = "auto") -> Any:
        """Run on arrays (or tensors): weights first, in `leaves`' order, then the arguments."""
        given = [_array(array) for array in arrays]
        if len(given) != len(self.leaves):
            names = [leaf.name for leaf in self.leaves]
            raise RunError(f"{self.name}: wrong number of arguments", expected=names, got=len(given))
        patterns: list[Size] = []
        actual: list[int] = []
        for leaf, array in zip(self.leaves, given, strict=True):
            if array.ndim != leaf.shape.rank or array.dtype != leaf.shape.dtype.numpy:
                got = f"{array.dtype}{list(array.shape)}"
                raise ShapeError(f"{self.name}: {leaf.name} does not fit", expected=leaf.shape, got=got)
            patterns += leaf.shape.sizes
            actual += array.shape
        try:
            values = solve(patterns, actual)
        except ShapeError as error:
            raise ShapeError(f"{self.name}: {error.message}", expected=error.expected, got=error.got) from None
        index, path = self._choose_path(values)
        entry = self._entries.get(index)
        if entry is None:
            entry = self._entries[index] = _entry(path.program)
        return tree.replace(path.results, iter(run_entry(entry, given, engine)))

    def _choose_path(self, values: Mapping[str, int]) -> tuple[int, Path]:
        known = dict(values)
        for index, path in enumerate(self.paths):
            if not path.guards.check(known):
                broken = (self.facts | path.assumed).check(known)
                if broken:
                    raise SizeError(f"{self.name}: a fact does not hold", expected=", ".join(broken), got=known)
                return index, path
        raise SizeError(f"{self.name}: no path through the function covers these sizes", got=known)


def _array(given: Any) -> Array:
    array: Array = given.numpy() if is_tensor(given) else np.asarray(given)
    return array


def _entry(program: Program) -> Entry:
    """The program as a plain function of all its arguments: weights are bound by `prepare` elsewhere."""
    main = program.main
    plain = replace(main, arg_attrs=())
    return Entry(program.replace(plain))


# ---- tracing ----


def trace(fn: Callable[..., Any], *args: Any, facts: Sequence[str | Fact] = (), **keywords: Any) -> Traced:
    """Run a function without data, prove its shapes for all sizes, and record what it does.

    Arguments that are not given come from annotations. A Shape or its text stands for a tensor of that shape. The first
    mistake on any path through the function is raised.

    >>> from smelt.tensor import Shaped, Tensor
    >>> def double(x: Shaped[Tensor, "f32[b=B]"]) -> Shaped[Tensor, "f32[b=B]"]:
    ...     return x + x
    >>> trace(double).results.shape
    f32[b=B]
    """
    outcome = _check(fn, args, facts, keywords, None)
    for error in outcome.errors:
        raise error
    assert outcome.traced is not None
    return outcome.traced


class Outcome(Frozen):
    """What checking a function found: its mistakes, and what was recorded where there are none."""

    name: str
    errors: tuple[SmeltError, ...]
    traced: Traced | None
    path_count: int
    taken: tuple[str, ...] = ()  # numbers that no tensor and no fact names: assumed to be at least 0


def check(fn: Callable[..., Any], *args: Any, facts: Sequence[str | Fact] = (), **keywords: Any) -> Outcome:
    """The same, with all mistakes collected instead of raised: what `smelt check` shows.

    The function need not return a tensor. Two tensors stand for any number of arguments (`*xs`), and a Dim for an
    argument that is any number.
    """
    return check_symbolic(fn, args, facts, keywords, ())


def check_symbolic(
    fn: Callable[..., Any],
    args: Sequence[Any],
    facts: Sequence[str | Fact],
    keywords: Mapping[str, Any],
    numbers: Collection[str],
    several: int = 2,
) -> Outcome:
    """The same, for a model in which the symbols `numbers` stand for any numbers, whether a tensor has them or not.

    `several` tensors stand for any number of them: of `*xs`, `list[…]`, `tuple[…, ...]`.
    """
    given = [str(value.size) for value in keywords.values() if isinstance(value, Dim)]
    return _check(fn, args, facts, keywords, {*numbers, *given}, several)


def _check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    facts: Sequence[str | Fact],
    keywords: Mapping[str, Any],
    numbers: Collection[str] | None,
    several: int = 1,
) -> Outcome:
    """`numbers`: the symbols that a check may use as if they were arguments; None for a program that is to run."""
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    try:
        return _check_paths(name, fn, args, facts, keywords, numbers, several)
    except SmeltError as mistake:  # in the annotations, or in what all paths imply
        return Outcome(name, (mistake,), None, 0)


def _check_paths(
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    facts: Sequence[str | Fact],
    keywords: Mapping[str, Any],
    numbers: Collection[str] | None,
    several: int,
) -> Outcome:
    arguments = Arguments(several)
    for_check = numbers is not None
    bound, self_model = _symbolic_receiver(fn, arguments)
    arguments.bound.update(_number_arguments(bound, args, keywords))
    stated = (*facts, *facts_of(fn), *(model_facts(self_model) if self_model is not None else ()))
    place = declaration_of(type(self_model), "facts") if self_model is not None else None
    place = place or declaration_of(getattr(inspect.unwrap(fn), "__func__", inspect.unwrap(fn)), "facts")
    inputs, named = _make_inputs(bound, args, keywords, arguments, for_check)
    _, result_hint = signature_specs(bound)
    alone = tuple(sorted(set(numbers or ()) - arguments.symbols.keys()))
    for each in alone:
        arguments.add(Shape.of(f32, (symbol(each),)), each, None, each)  # an argument that determines the number
    sources = sources_of(arguments.leaves)
    model_numbers = model_symbols(self_model) if self_model is not None else frozenset[str]()
    known, meanings = _entry_facts(parse_facts(stated, place), arguments, model_numbers, place)
    taken = tuple(name for name in alone if not any(name in fact.symbols for fact in known))
    ambient, _, _ = solve_facts(
        current_facts(), arguments.symbols.keys() | model_numbers
    )  # others are about tensors that are not here
    refuse_contradiction(ambient | known, place)
    itself = {name: symbol(name) for name in model_numbers}
    known_sizes = {**itself, **arguments.symbols, **arguments.bound, **meanings}
    unkept = constructor_numbers(self_model) - known_sizes.keys() if self_model is not None else frozenset()

    def run() -> Any:
        token, checks = SOURCES.set(sources), CHECKS.set({})
        try:
            with bind_names(known_sizes):
                results = bound(*inputs, **named)
                _check_results(name, results, result_hint, inspect.unwrap(bound), known_sizes, unkept)
                return results
        finally:
            SOURCES.reset(token)
            CHECKS.reset(checks)

    with only_facts(ambient):
        explored = explore(run, known)
    errors = _deduplicate([error for path in explored for error in path.errors])
    if errors:
        return Outcome(name, tuple(errors), None, len(explored), taken)
    if for_check and any(next(tree.leaves(path.result), None) is None for path in explored):
        return Outcome(name, (), None, len(explored), taken)  # a size, or nothing at all, is proven as well
    paths = [_to_path(path, arguments) for path in explored]
    given = Inputs(self_model, tuple(inputs), named)
    return Outcome(name, (), Traced(name, arguments.leaves, ambient | known, paths, given), len(explored), taken)


def _entry_facts(
    stated: Facts, arguments: Arguments, numbers: frozenset[str], place: Place | None
) -> tuple[Facts, dict[str, Size]]:
    """The facts that are checked at every call, and formulas for symbols that only facts name.

    `numbers`: symbols for numbers that the model is made with.
    """
    sizes = [size for leaf in arguments.leaves for size in leaf.shape.sizes]
    determined, needed = determined_symbols(sizes)
    determined |= numbers.union(*(leaf.shape.symbols for leaf in arguments.leaves if leaf.weight))
    for leaf in arguments.leaves:
        if strange := sorted(leaf.shape.symbols - determined):
            names = ", ".join(strange)
            remedy = f"give {names} an axis of its own in one of the arguments"
            refuse(
                f"{leaf.name}: its sizes do not determine {names}",
                Operand("declared", leaf.shape),
                remedy=remedy,
                place=leaf.place,
            )
    meant = Facts(substitute_fact(fact, arguments.bound) for fact in stated)
    facts, meanings, unknown = solve_facts(meant, determined)
    for fact in unknown:
        refuse_unknown(fact, determined | arguments.bound.keys(), place)
    return facts | needed | entry_facts(sizes), meanings


def _deduplicate(errors: Sequence[SmeltError]) -> list[SmeltError]:
    """Each mistake once: paths through one line report the same."""
    found: dict[tuple[str, str], SmeltError] = {}
    for error in errors:
        found.setdefault((str(error.where), error.message), error)
    return list(found.values())


def _symbolic_receiver(fn: Callable[..., Any], arguments: Arguments) -> tuple[Callable[..., Any], Any]:
    """The function with a symbolic copy of the model that it is a method of."""
    if not hasattr(fn, "__code__") and not hasattr(fn, "__func__") and is_model(fn):
        fn = type(fn).__call__.__get__(fn)  # a model that is a function itself
    owner = getattr(fn, "__self__", None)
    if owner is None or inspect.ismodule(owner) or isinstance(owner, type):
        return fn, None
    arguments.bound.update(numbers_of(owner))
    model = symbolic_model(owner, arguments)
    return fn.__func__.__get__(model), model  # type: ignore[attr-defined]


def _number_arguments(fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Size]:
    """Parameters that are numbers: their names mean these numbers in the function's texts."""
    parameters = inspect.signature(fn).parameters
    defaults = {name: each.default for name, each in parameters.items()}
    given = {**defaults, **dict(zip(parameters, args, strict=False)), **keywords}
    sizes = {name: size_in(value) for name, value in given.items() if name in parameters}
    return {name: size for name, size in sizes.items() if size is not None and (isinstance(size, Poly) or size >= 0)}


def _make_inputs(
    fn: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], arguments: Arguments, for_check: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Values for all parameters: given ones, symbolic ones from annotations, defaults."""
    hints, _ = signature_specs(fn)
    code_owner = inspect.unwrap(fn)
    code_owner = getattr(code_owner, "__func__", code_owner)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    rest = list(args)
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            if for_check and not rest and (hint := hints.get(parameter.name)) is not None:
                names = [f"{parameter.name}{i}" for i in range(arguments.several)]
                any_number = [_from_annotation(hint, name, arguments, code_owner) for name in names]
                positional += [value for value in any_number if value is not None]
            positional += [
                _make_argument(value, f"{parameter.name}{i}", arguments, code_owner) for i, value in enumerate(rest)
            ]
            rest = []
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if rest and parameter.kind is not parameter.KEYWORD_ONLY:
            value = _make_argument(rest.pop(0), parameter.name, arguments, code_owner)
        elif parameter.name in keywords:
            value = _make_argument(keywords[parameter.name], parameter.name, arguments, code_owner)
        else:
            hint = hints.get(parameter.name)
            value = _from_annotation(hint, parameter.name, arguments, code_owner)
            if value is None:
                if parameter.default is parameter.empty:
                    refuse(
                        f"{parameter.name} has no shape",
                        place=declaration_of(code_owner, parameter.name),
                        remedy=f'{parameter.name}: Shaped[Tensor, "f32[…]"], or pass a Shape to trace',
                    )
                value = parameter.default
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    if rest:
        refuse(f"{len(rest)} more arguments than parameters", place=declaration_of(code_owner, ""))
    return positional, named


def _make_argument(value: Any, name: str, arguments: Arguments, owner: object) -> Any:
    if isinstance(value, Shape):
        return arguments.add(value, name, owner, name)
    if is_tensor(value):
        return arguments.add(value.shape, name, owner, name)
    if isinstance(value, CONTAINERS):
        return map_items(value, lambda key, item: _make_argument(item, f"{name}.{key}", arguments, owner))
    return symbolic_model(value, arguments, name) if is_model(value) else value


def _from_annotation(hint: Any, name: str, arguments: Arguments, owner: object) -> Any:
    """Symbolic arguments for an annotation; None where it has no shape."""
    spec = declared_spec(hint, owner, name.partition(".")[0])
    if spec is not None:
        return arguments.add(spec.substitute(arguments.bound).shape, name, owner, name)
    if get_origin(hint) in (tuple, list) and get_args(hint):
        hints = get_args(hint)
        if len(hints) == 1 + (Ellipsis in hints) and (get_origin(hint) is list or Ellipsis in hints):
            hints = (hints[0],) * arguments.several
        parts = [_from_annotation(part, f"{name}.{i}", arguments, owner) for i, part in enumerate(hints)]
        return None if any(part is None for part in parts) else get_origin(hint)(parts)
    if isinstance(hint, type) and issubclass(hint, tuple) and has_shapes(hint):
        fields = annotations_of(hint).items()
        return hint(**{key: _from_annotation(part, f"{name}.{key}", arguments, owner) for key, part in fields})
    if isinstance(hint, type) and has_shapes(hint):
        return symbolic_model(hint, arguments, name)
    return None


def _check_results(
    what: str,
    results: Any,
    hint: Any,
    fn: Callable[..., Any],
    known: Mapping[str, Size],
    unkept: Collection[str],
) -> None:
    """Prove that the results are as declared, under the facts of this path. New symbols are bound to their sizes.

    `unkept`: numbers that the constructor takes and the model does not keep.
    """
    owner = getattr(fn, "__func__", fn)
    bound = dict(known)
    declared_spec(hint, owner, "return")
    _check_count(what, results, hint, owner)
    place = declaration_of(owner, "return")
    pairs = [pair for pair in _pair_results(results, hint, "") if not is_poison(pair[1])]
    for label, value, spec in pairs:
        if not is_tensor(value):
            refuse(f"{what}: result{label} is not a tensor", place=place)
        for name in sorted(spec.shape.symbols.intersection(unkept)):
            message = f"{what}: the result{label} names {name}, which the constructor takes and the model does not keep"
            refuse(message, place=place, remedy=f"self.{name} = {name} in the constructor")
    for last in (False, True):  # a later result may determine a symbol of an earlier one
        for label, value, spec in pairs:
            at = _made_inside(owner, value) or place
            match(f"{what}: the result{label}", value, spec, bound, place, at, complete=last)


def _made_inside(owner: object, value: Any) -> Place | None:
    """The line of a function that made a value; None where it comes from elsewhere."""
    made = place_of(value.value)
    return made if made is not None and made.code is getattr(owner, "__code__", None) else None


def _check_count(what: str, results: Any, hint: Any, owner: object) -> None:
    parts = get_args(hint)
    if get_origin(hint) is not tuple or not parts or Ellipsis in parts or is_poison(results):
        return
    if not isinstance(results, tuple | list):
        refuse(f"{what}: {len(parts)} results are declared, one was returned", place=declaration_of(owner, "return"))
    if len(results) != len(parts):
        message = f"{what}: {len(results)} results were returned, {len(parts)} are declared"
        refuse(message, place=declaration_of(owner, "return"))


def _pair_results(results: Any, hint: Any, label: str) -> Iterator[tuple[str, Any, Spec]]:
    spec = spec_of(hint)
    if spec is not None:
        yield label, results, spec
    elif isinstance(results, dict) and get_origin(hint) is dict:
        for key, value in results.items():
            yield from _pair_results(value, get_args(hint)[1], f"{label} {key!r}")
    elif isinstance(hint, type) and not is_tensor(results):  # a record with annotated fields
        for name, part in annotations_of(hint).items():
            value = results.get(name) if isinstance(results, dict) else getattr(results, name, None)
            if value is not None:
                yield from _pair_results(value, part, f"{label} {name}")
    elif get_origin(hint) in (tuple, list) and isinstance(results, tuple | list):
        parts = get_args(hint)
        if len(parts) == 1 or (len(parts) == 2 and parts[1] is Ellipsis):
            parts = (parts[0],) * len(results)
        for i, (value, part) in enumerate(zip(results, parts, strict=False)):
            yield from _pair_results(value, part, f"{label} {i}")


def _to_path(path: ExploredPath[Any], arguments: Arguments) -> Path:
    results = [tensor.value for tensor in tree.leaves(path.result)]
    if not results:
        refuse("the function returns no tensor")
    attrs: list[Attrs] = [
        MappingProxyType({(WEIGHT if leaf.weight else NAME): leaf.name}) if leaf.name else MappingProxyType({})
        for leaf in arguments.leaves
    ]
    func, inputs = function("main", results, arguments.leaves, arg_attrs=attrs)
    strange = [leaf for leaf in inputs if leaf not in arguments.leaves]
    assert not strange
    return Path(Facts(path.guards), Facts(path.assumed), Program.of(func, *callees(func.body)), path.result)


# ---- checking calls ----


@with_argument_errors
def checked(fn: F) -> F:
    """A function whose annotations are proven whenever it is called: arguments, facts and result.

    Its symbols are its own: they are bound to the sizes of the caller's tensors.
    """
    hints, result_hint = signature_specs(fn)
    signature = inspect.signature(fn)
    specs = {name: spec for name, hint in hints.items() if (spec := spec_of(hint)) is not None}

    @wraps(fn)
    def call(*args: Any, **keywords: Any) -> Any:
        given = signature.bind(*args, **keywords).arguments
        tensors = {name: value for name, value in given.items() if is_tensor(value)}
        bound = _names_of(next(iter(given.values()), None))
        for last in (False, True):  # a symbol in a formula may be bound by a later argument
            for name in (name for name in tensors if name in specs):
                what = f"{fn.__qualname__}: {name}"
                match(what, tensors[name], specs[name], bound, declaration_of(fn, name), complete=last)
        facts, meanings, unknown = solve_facts(parse_facts(facts_of(fn)), bound.keys())
        for fact in unknown:
            refuse_unknown(fact, bound.keys())
        bound |= {name: substitute(size, bound) for name, size in meanings.items()}
        for fact in facts:
            if not (answer := _prove(meant := substitute_fact(fact, bound))):
                shown = [Operand(name, value.shape) for name, value in tensors.items()]
                refuse(f"{fn.__qualname__}: needs {fact}, which is {meant} here", *shown, answer=answer)
        with bind_names(bound):
            results = fn(*args, **keywords)
        pairs = [pair for pair in _pair_results(results, result_hint, "") if is_tensor(pair[1])]
        stated = declaration_of(fn, "return")
        for last in (False, True):
            for label, value, spec in pairs:
                at = _made_inside(fn, value) or stated  # the mistake is the function's, not its caller's
                match(f"{fn.__qualname__}: the result{label}", value, spec, bound, stated, at, complete=last)
        return results

    call.facts = list(facts_of(fn))  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _names_of(receiver: Any) -> dict[str, Size]:
    """What names mean in the methods of a model: its numbers, and the sizes of its fields."""
    if receiver is None or is_tensor(receiver) or not is_model(receiver):
        return {}
    bound = numbers_of(receiver)
    values = fields_of(receiver)
    cls: Any = type(receiver)
    for name, annotation in declared_fields(cls).items():
        if (spec := spec_of(annotation)) is not None and is_tensor(value := values.get(name)):
            for pattern, size in zip(spec.sizes, value.shape.sizes, strict=False):
                if (alone := lone_symbol(pattern)) is not None:
                    bound.setdefault(alone, size)
    return bound


def _prove(fact: Fact) -> Any:
    facts = current_facts()
    return facts.equal(fact.left, fact.right) if fact.relation == "==" else facts.at_most(fact.left, fact.right)
