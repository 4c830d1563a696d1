"""Modules → findings of `smelt check`: every annotated function and method, proven for all sizes at once.

Models are instantiated without weights; an integer parameter without a value is a symbolic size of that name. What
cannot be checked is reported with the reason. `check_report` formats the result.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, Protocol, get_args, get_origin

from smelt.cli.check_floats import AnyFloat, watch_floats
from smelt.cli.check_modules import Imported, crash, is_foreign, tensor_functions
from smelt.dim import Fact, Facts, parse_size, symbol, symbols
from smelt.errors import ShapeError, SmeltError
from smelt.tensor.axes import Dim
from smelt.tensor.core import Tensor
from smelt.tensor.facts import explore
from smelt.tensor.fields import declaring_class, has_shapes, is_model
from smelt.tensor.jit.trace import check_symbolic
from smelt.tensor.model import Model, make
from smelt.tensor.shaped import annotations_of, declared_spec, signature_specs, spec_of
from smelt.tensor.source import NumberError, TensorError

MAX_VARIANTS = 64  # combinations of flags and of optional arguments that one entry point is checked with
SEVERAL = 2  # stands for a number of layers, steps or tensors, where Python needs one
MORE = 8  # the same for tensors, where Python indexes a later one


@dataclass(slots=True)
class Entry:
    """A checked function or method: its mistakes, its paths, and the numbers used in place of symbolic sizes.

    `limits` are the reasons why the absence of mistakes is no proof: samples and assumptions.
    """

    name: str
    path: str
    line: int
    ways: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    mistakes: list[SmeltError] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    several: int = 2  # tensors that stood for any number of them


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A function or method that could not be checked, and why. `by_calls`: it is covered where others call it."""

    name: str
    path: str
    line: int
    reason: str
    by_calls: bool = False


@dataclass(slots=True)
class Found:
    """The findings of a module: checked entry points, those that could not be checked, and (file, line) of their
    callees.

    A function without annotations is covered if an entry point of any module calls it.
    """

    entries: list[Entry] = field(default_factory=list)
    uncovered: list[Uncovered] = field(default_factory=list)
    reached: set[tuple[str, int]] = field(default_factory=set)
    failure: SmeltError | None = None


class NotCoveredError(Exception):
    """Why an entry point cannot be checked."""


# ---- parameters ----


@dataclass(slots=True)
class Parameters:
    """The parameters that a check must fill: values to enumerate, symbolic numbers, and those that are missing."""

    choices: dict[str, list[Any]] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    several: list[str] = field(default_factory=list)  # those that are any number of tensors
    shaped: bool = False
    of_tensors: bool = False

    def variants(self) -> Iterator[dict[str, Any]]:
        for given in itertools.islice(_combinations(self.choices), MAX_VARIANTS):
            yield {name: value for name, value in given.items() if value is not ...}


def _combinations(choices: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """One value of each choice, in every combination."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _parameters(function: Callable[..., Any], method: bool) -> Parameters:
    found = Parameters()
    hints, result = signature_specs(function)
    found.shaped = _has_shape(result)
    said = getattr(inspect.unwrap(function), "__annotations__", {}).get("return")
    if said not in (None, "None") and result is None:
        found.of_tensors |= any(word in str(said) for word in ("Tensor", "Shaped"))
        found.missing.append("the annotation of the result cannot be resolved")
    given = list(inspect.signature(inspect.unwrap(function)).parameters.values())
    for each in given[1:] if method else given:
        _classify(each, hints.get(each.name), found)
    return found


def _classify(each: inspect.Parameter, hint: Any, found: Parameters) -> None:
    """Sort one parameter into its group."""
    required = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    if each.kind is each.VAR_POSITIONAL and _has_shape(hint):
        found.several.append(f"*{each.name}")
    elif required and _has_shape(hint) and _is_any_number(hint):
        found.several.append(each.name)
    if each.annotation is not each.empty and hint is None and each.annotation not in (None, "None"):
        found.of_tensors |= any(word in str(each.annotation) for word in ("Tensor", "Shaped"))
        found.missing += [f"the annotation of {each.name} cannot be resolved"] if required else []
    elif _has_shape(hint):
        found.shaped = found.of_tensors = True
        if each.default is None:
            found.choices[each.name] = [..., None]
    elif hint is None or _speaks_of_tensors(hint):
        found.of_tensors = True
        found.missing += [f"{each.name} has no shape"] if required else []
    elif hint is bool:
        found.choices[each.name] = [each.default, not each.default] if isinstance(each.default, bool) else [False, True]
    elif get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        found.choices[each.name] = list(get_args(hint) or hint)
    elif not required:
        return
    elif hint is int:
        found.numbers.append(each.name)
    elif hint is float:
        found.choices[each.name] = [AnyFloat(each.name)]
    else:
        found.missing.append(f"{each.name} has no default, and no value can represent every {_name(hint)}")


def _is_any_number(hint: Any) -> bool:
    return get_origin(hint) is list or (get_origin(hint) is tuple and Ellipsis in get_args(hint))


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _has_shape(hint: Any) -> bool:
    """Whether an annotation has shapes for all tensors in it."""
    try:
        if spec_of(hint) is not None:
            return True
    except ShapeError:  # not a shape: checking the entry point reports it
        return True
    parts = [part for part in get_args(hint) if part is not Ellipsis]
    if get_origin(hint) in (tuple, list, dict):
        return bool(parts) and any(map(_has_shape, parts)) and not any(map(_is_bare_tensor, parts))
    return isinstance(hint, type) and _is_model_class(hint)


def _is_bare_tensor(hint: Any) -> bool:
    return not _has_shape(hint) and _speaks_of_tensors(hint)


def _speaks_of_tensors(hint: Any) -> bool:
    return hint is Tensor or any(_speaks_of_tensors(part) for part in get_args(hint))


def _is_model_class(cls: Any) -> bool:
    return issubclass(cls, Model) or has_shapes(cls)


# ---- candidates ----


@dataclass(slots=True)
class Candidate:
    """A function or method that may be an entry point; a method belongs to a class, or to an object of the module."""

    name: str
    function: Callable[..., Any]
    parameters: Parameters
    owner: Any = None
    of_class: bool = False  # a classmethod

    @property
    def code(self) -> CodeType:
        return inspect.unwrap(self.function).__code__  # type: ignore[no-any-return]

    def bind(self, numbers: Mapping[str, int]) -> Iterator[tuple[Callable[..., Any], tuple[Fact, ...]]]:
        """The callables to check, with their facts: one model for each path through its constructor."""
        if self.owner is None:
            yield self.function, ()
            return
        if self.of_class:
            yield getattr(self.owner, self.name.rpartition(".")[2]), ()
            return
        models = _make_models(self.owner, numbers) if isinstance(self.owner, type) else [(self.owner, ())]
        for model, facts in models:
            yield MethodType(self.function, model), facts

    def limits(self, numbers: Mapping[str, int], several: int) -> list[str]:
        """What is only sampled: numbers that represent others, and combinations that are too many."""
        by_class = isinstance(self.owner, type) and not self.of_class
        fields = _required_fields(self.owner, {}, ()) if by_class else {}
        found = [f"{several} tensors stand for any number of {name}" for name in self.parameters.several]
        found += [f"{name} = {number} stands for any number" for name, number in numbers.items()]
        layers = (name for name, value in fields.items() if type(value) is int)
        found += [f"{SEVERAL} layers stand for any number of {name}" for name in layers]
        for choices in (self.parameters.choices, {n: v for n, v in fields.items() if isinstance(v, Choice)}):
            if (count := math.prod(map(len, choices.values()))) > MAX_VARIANTS:
                found.append(f"{MAX_VARIANTS} of {count} combinations of {', '.join(choices)} were tried")
        return found

    @property
    def symbolic_numbers(self) -> set[str]:
        """The names that stand for numbers: of parameters, and of the model."""
        by_class = isinstance(self.owner, type) and not self.of_class
        fields = _required_fields(self.owner, {}, ()) if by_class else {}
        return {*self.parameters.numbers, *(name for name, value in fields.items() if isinstance(value, Dim))}


def _candidates(module: ModuleType) -> Iterator[Candidate]:
    for name, value in list(vars(module).items()):
        own = getattr(value, "__module__", None) == module.__name__
        if isinstance(value, type):
            if own and not issubclass(value, enum.Enum | BaseException) and not _is_protocol(value):
                yield from _methods(value, value.__qualname__, value)
        elif _is_function(value):
            if own and name == value.__name__:
                yield Candidate(value.__qualname__, value, _parameters(value, False))
        elif is_model(value) and _is_users(type(value)):
            yield from _methods(type(value), name, value)


def _is_protocol(cls: type) -> bool:
    return Protocol in cls.__bases__


def _is_function(value: Any) -> bool:
    plain = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    return isinstance(plain, FunctionType) and plain.__name__ != "<lambda>"


def _is_users(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in ("smelt", "builtins")


def _methods(cls: type, label: str, owner: Any) -> Iterator[Candidate]:
    """The methods of a class and of its base classes, as far as these are the user's."""
    names = dict.fromkeys(name for part in cls.__mro__ if _is_users(part) for name in vars(part))
    for name in names:
        member = inspect.getattr_static(cls, name)
        static, of_class = isinstance(member, staticmethod), isinstance(member, classmethod)
        function = _function_of(member)
        if not _is_function(function) or not _is_users_function(function):
            continue
        if name.startswith("__") and name != "__call__":
            continue
        parameters = _parameters(function, not static)
        if parameters.shaped or _is_model_class(cls):  # else it has nothing to do with tensors
            owned = None if static else cls if of_class else owner
            yield Candidate(f"{label}.{name}", function, parameters, owned, of_class)


def _function_of(member: Any) -> Any:
    """The function behind a member of a class."""
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, cached_property) else member


def _is_users_function(function: Callable[..., Any]) -> bool:
    plain = inspect.unwrap(function)
    own = getattr(plain, "__module__", "").partition(".")[0] != "smelt"
    return own and not is_foreign(plain.__code__.co_filename)


# ---- models without weights ----


def _make_models(cls: type, numbers: Mapping[str, int]) -> list[tuple[Any, tuple[Fact, ...]]]:
    """Instances of a model class, one for each path through its constructor, with the facts of that path.

    Numbers are symbolic sizes; a list of layers is checked with two of them.
    """
    if inspect.isabstract(cls):
        raise NotCoveredError(f"{cls.__name__} is abstract")
    for name, hint in annotations_of(cls).items():
        declared_spec(hint, declaring_class(cls, name), name)
    fields = {name: numbers.get(name, value) for name, value in _required_fields(cls, {}, ()).items()}
    choices = {name: value if isinstance(value, Choice) else (value,) for name, value in fields.items()}
    made: list[tuple[Any, tuple[Fact, ...]]] = []
    for given in itertools.islice(_combinations(choices), MAX_VARIANTS):
        try:
            ways = explore(partial(_make_model, cls, given), Facts())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise NotCoveredError(f"{cls.__name__} cannot be made with symbolic sizes ({said})") from error
        for mistake in (mistake for way in ways for mistake in way.errors):
            if isinstance(mistake, TensorError) and mistake.place and mistake.place.code:
                raise mistake  # in the user's own line
            raise NotCoveredError(f"{cls.__name__} cannot be made without weights: {mistake.message}") from mistake
        made += [(way.result, way.guards) for way in ways]
    return made


def _make_model(cls: type, given: dict[str, Any]) -> Any:
    return make(cls, given) if _is_model_class(cls) or given else cls()


class Choice(tuple[Any, ...]):
    """A field with few possible values; all of them are tried."""


def _required_fields(cls: type, found: dict[str, Any], within: tuple[type, ...]) -> dict[str, Any]:
    """The values that a class needs: its constructor's parameters, or its fields, without defaults."""
    if _has_constructor(cls):
        for name, each in inspect.signature(cls).parameters.items():
            if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
                hint = annotations_of(cls.__init__).get(name, int)  # type: ignore[misc]
                if (value := _make_up(name, hint)) is not None:
                    found[name] = value
        return found
    factories = {each.name for each in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name, hint in annotations_of(cls).items():
        if hasattr(cls, name) or (name in factories and _has_factory(cls, name)) or _has_shape_text(hint):
            continue
        item = next(iter(get_args(hint)), None)
        if get_origin(hint) in (list, tuple) and isinstance(item, type) and _is_model_class(item):
            found[name] = SEVERAL
            hint = item
        elif (value := _make_up(name, hint)) is not None:
            found[name] = value
        if isinstance(hint, type) and hint not in (*within, cls) and _is_model_class(hint):
            _required_fields(hint, found, (*within, cls))
    return found


def _has_constructor(cls: type) -> bool:
    generated = dataclasses.is_dataclass(cls) and "__init__" in vars(cls)
    return cls.__init__ not in (object.__init__, Model.__init__) and not generated  # type: ignore[misc]


def _has_factory(cls: Any, name: str) -> bool:
    return any(
        each.name == name and each.default_factory is not dataclasses.MISSING for each in dataclasses.fields(cls)
    )


def _has_shape_text(hint: Any) -> bool:
    try:
        return spec_of(hint) is not None
    except ShapeError:
        return True


def _make_up(name: str, hint: Any) -> Any:
    """A representative of a type; a record is made of representatives. None if there is none."""
    if get_origin(hint) is Literal:
        return Choice(get_args(hint))
    if not isinstance(hint, type):
        return None
    if dataclasses.is_dataclass(hint) and not _is_model_class(hint):
        hints = annotations_of(hint)
        needed = [
            each.name
            for each in dataclasses.fields(hint)
            if each.init and each.default is dataclasses.MISSING and not _has_factory(hint, each.name)
        ]
        values = {each: _make_up(each, hints.get(each)) for each in needed}
        if any(value is None for value in values.values()):
            return None
        choices = {each: value if isinstance(value, Choice) else (value,) for each, value in values.items()}
        made = [hint(**given) for given in itertools.islice(_combinations(choices), MAX_VARIANTS)]
        return made[0] if len(made) == 1 else Choice(made)
    if issubclass(hint, enum.Enum):
        return Choice(hint)
    return {int: Dim(symbol(name)), float: AnyFloat(name), bool: Choice((False, True))}.get(hint)


# ---- checking ----


def check_module(found: Imported) -> Found:
    """Check all entry points of a module."""
    if found.module is None:
        return Found(failure=found.error)
    path = str(found.path)
    out = Found()
    candidates = list(_candidates(found.module))
    done: set[CodeType] = set()
    failed: list[tuple[Candidate, str]] = []
    made: set[type] = {type(each.owner) for each in candidates if not isinstance(each.owner, type)}
    left_out = [each for each in candidates if _is_left_out(each, made)]  # an object is more specific than its class
    candidates = [each for each in candidates if not _is_left_out(each, made)]
    with _record_calls(out.reached), redirect_stdout(sys.stderr):
        for each in candidates:
            if each.parameters.missing or not each.parameters.shaped:
                continue
            try:
                out.entries.append(_check_candidate(each, path))
                done.add(each.code)
            except NotCoveredError as reason:
                failed.append((each, str(reason)))
    out.uncovered = [
        Uncovered(each.name, path, each.code.co_firstlineno, "; ".join(each.parameters.missing), True)
        for each in candidates
        if each.parameters.missing and each.parameters.of_tensors
    ]
    out.uncovered += [
        Uncovered(each.name, path, each.code.co_firstlineno, why) for each, why in failed if each.code not in done
    ]
    seen = {each.line for each in out.entries} | {each.line for each in out.uncovered}
    seen |= {each.code.co_firstlineno for each in left_out}
    out.uncovered += [
        Uncovered(each.name, path, each.line, each.hidden, True)
        for each in tensor_functions(found.path)
        if each.line not in seen
    ]
    return out


def _is_left_out(candidate: Candidate, made: set[type]) -> bool:
    return isinstance(candidate.owner, type) and candidate.owner in made and not candidate.of_class


def find_uncovered(found: Iterable[Found]) -> list[Uncovered]:
    """The functions that no check covered."""
    every = list(found)
    reached = set().union(*(each.reached for each in every))
    return [
        item
        for each in every
        for item in each.uncovered
        if not (item.by_calls and (os.path.realpath(item.path), item.line) in reached)
    ]


@contextmanager
def _record_calls(found: set[tuple[str, int]]) -> Iterator[None]:
    """Record the functions that are called in this block."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        found.update((os.path.realpath(code.co_filename), code.co_firstlineno) for code in codes)


def _check_candidate(candidate: Candidate, path: str) -> Entry:
    """Check an entry point with all its flags, for all sizes."""
    entry = Entry(candidate.name, path, candidate.code.co_firstlineno)
    if inspect.isgeneratorfunction(candidate.function) or inspect.isasyncgenfunction(candidate.function):
        raise NotCoveredError("it is a generator, whose body a call does not run")
    if inspect.iscoroutinefunction(candidate.function):
        raise NotCoveredError("it is a coroutine, whose body a call does not run")
    with watch_floats() as compared:
        for variant in candidate.parameters.variants():
            entry.mistakes += _find_mistakes(candidate, variant, entry)
    entry.mistakes = deduplicate(entry.mistakes)
    entry.limits = list(dict.fromkeys([*entry.limits, *candidate.limits(entry.numbers, entry.several)]))
    entry.limits += [f"{name} = 1.0 stands for any float, and something depends on it" for name in sorted(compared)]
    return entry


def deduplicate(errors: Iterable[SmeltError]) -> list[SmeltError]:
    """Remove duplicate mistakes: the same op at the same line is one mistake for all sizes."""
    found: dict[tuple[str, str], SmeltError] = {}
    for error in errors:
        found.setdefault((str(error.where), error.message.partition(":")[0]), error)
    return list(found.values())


def _find_mistakes(candidate: Candidate, variant: Mapping[str, Any], entry: Entry) -> list[SmeltError]:
    """The mistakes of one variant. A symbolic number that Python needs as an int becomes a small one."""
    while True:
        values = {name: entry.numbers.get(name, Dim(symbol(name))) for name in candidate.parameters.numbers}
        errors: list[SmeltError] = []
        taken: list[str] = []
        ways = 0
        try:
            for function, facts in candidate.bind(entry.numbers):
                outcome = check_symbolic(
                    function, (), facts, {**values, **variant}, candidate.symbolic_numbers, entry.several
                )
                errors += outcome.errors
                ways += outcome.path_count
                taken += outcome.taken
        except NotImplementedError as error:
            raise NotCoveredError(f"it is not implemented ({error})") from error
        except SmeltError as error:
            errors.append(error)
        except NotCoveredError:
            raise
        except IndexError as error:
            if entry.several == SEVERAL and candidate.parameters.several:
                entry.several = MORE
                continue
            errors.append(crash(error, f"{candidate.name} raises ", Path(entry.path)))
        except Exception as error:
            if (lacking := _find_declaring_subclass(error)) is not None:
                raise NotCoveredError(lacking) from error
            errors.append(crash(error, f"{candidate.name} raises ", Path(entry.path)))
        needed = {name for error in errors if isinstance(error, NumberError) for name in _symbols_in(error)}
        needed &= candidate.symbolic_numbers - entry.numbers.keys()
        if not needed:
            entry.ways += ways
            entry.limits += [f"{name} >= 0 is assumed: state it as a fact" for name in taken]
            return errors
        entry.numbers |= dict.fromkeys(needed, SEVERAL)


def _find_declaring_subclass(error: Exception) -> str | None:
    """Why a class is no complete model: it uses a field that only its subclasses declare."""
    if not isinstance(error, AttributeError) or error.name is None:
        return None
    below: list[Any] = type(error.obj).__subclasses__()
    while below:
        cls = below.pop()
        if hasattr(cls, error.name) or error.name in annotations_of(cls):
            return f"it uses {error.name}, which {cls.__name__} declares"
        below += cls.__subclasses__()
    return None


def _symbols_in(error: NumberError) -> frozenset[str]:
    return symbols(parse_size(dict(error.details)["size"]))
