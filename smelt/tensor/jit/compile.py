"""`compile`: a function or method of the front end → an Executable; `compile_and_load`: the same while weights load.

A function, shapes or examples for its arguments, and a platform → an Executable that takes the function's own
structures. The function is traced and proven, and an engine compiles its program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import numpy as np

from smelt.buffer import Buffer, HostBuffer, in_thread
from smelt.dim import Fact, Facts, Size, solve
from smelt.dtype import dtype
from smelt.engine import compile_with_first, platform
from smelt.engine.pjrt_mesh import SHARDING, MeshEngine
from smelt.engine.protocol import Engine, Placing, Platform
from smelt.engine.reference import ReferenceEngine
from smelt.engine_api import Executable as Compiled
from smelt.errors import RunError, ShapeError, SmeltError, UnsupportedError
from smelt.ir import cost
from smelt.ir.attributes import DialectAttr
from smelt.ir.blocks import check_precision
from smelt.ir.clone import clone_region, substitution
from smelt.ir.core import Attrs, Func, Program
from smelt.ir.verify import verify
from smelt.mesh import Mesh, sharding_text
from smelt.passes.lower_blocks import round_activations
from smelt.passes.round_products import ROUND, round_products
from smelt.passes.split_prepare import NAME, WEIGHT
from smelt.shape import Shape
from smelt.structure import fields_of, items_of, join, leaves, map_leaves, zip_leaves
from smelt.tensor import tree
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import shape_of
from smelt.tensor.core import Tensor
from smelt.tensor.data import symbolic
from smelt.tensor.jit.callbacks import calls_python, compile_around
from smelt.tensor.jit.executable import Executable
from smelt.tensor.jit.function import CompiledPath, Function, Parameter, Slot
from smelt.tensor.jit.outline import Outline
from smelt.tensor.jit.trace import Path, Traced, trace
from smelt.tensor.model import Model
from smelt.tensor.ops.control import CALLBACKS
from smelt.tensor.record import Leaf, is_tensor
from smelt.tensor.symbols import determined_symbols
from smelt.weights import Progress, Weights

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Options:
    """Where a function is compiled for, and how."""

    platform: Platform[Program] | None = None
    device: str = "auto"
    engine: str = "auto"
    donate: tuple[str, ...] = ()
    facts: tuple[str | Fact, ...] = ()
    encode: Callable[..., Any] | None = None
    decode: Callable[[Any], Any] | None = None
    precision: str = "f32"  # of `PRECISIONS`

    @property
    def target(self) -> Platform[Program]:
        """The platform that is meant; for `auto` the one that is tried first."""
        return self.platform or platform(self.device, self.engine)


@overload
def compile(
    function: Callable[P, Any],
    /,
    *args: Any,
    encode: Callable[Q, Any],
    decode: Callable[[Any], S],
    platform: Platform[Program] | None = None,
    device: str = "auto",
    engine: str = "auto",
    donate: str | Iterable[str] = (),
    facts: Sequence[str | Fact] = (),
    precision: str = "f32",
    **keywords: Any,
) -> Executable[Q, S]: ...


@overload
def compile(
    function: Callable[P, Any],
    /,
    *args: Any,
    decode: Callable[[Any], S],
    platform: Platform[Program] | None = None,
    device: str = "auto",
    engine: str = "auto",
    donate: str | Iterable[str] = (),
    facts: Sequence[str | Fact] = (),
    precision: str = "f32",
    **keywords: Any,
) -> Executable[P, S]: ...


@overload
def compile(
    function: Callable[P, Tensor],
    /,
    *args: Any,
    platform: Platform[Program] | None = None,
    device: str = "auto",
    engine: str = "auto",
    donate: str | Iterable[str] = (),
    facts: Sequence[str | Fact] = (),
    precision: str = "f32",
    **keywords: Any,
) -> Executable[P, Buffer]: ...


@overload
def compile(
    function: Callable[P, R],
    /,
    *args: Any,
    platform: Platform[Program] | None = None,
    device: str = "auto",
    engine: str = "auto",
    donate: str | Iterable[str] = (),
    facts: Sequence[str | Fact] = (),
    precision: str = "f32",
    **keywords: Any,
) -> Executable[P, R]: ...


@with_argument_errors
def compile(
    function: Callable[..., Any],
    /,
    *args: Any,
    platform: Platform[Program] | None = None,
    device: str = "auto",
    engine: str = "auto",
    donate: str | Iterable[str] = (),
    facts: Sequence[str | Fact] = (),
    precision: str = "f32",
    encode: Callable[..., Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    **keywords: Any,
) -> Any:
    """Compile a function, or a method of a model, for a platform (`platform=`, or `device=` and `engine=`).

    Arguments that are not given come from annotations. Given are shapes (`Shape` or text such as "f32[b=B, d=784]"),
    or examples whose shapes count: tensors, arrays, buffers; in tuples, lists, dictionaries and dataclasses as well.
    Anything else is part of the program. A model's tensors are weights, which `prepare` binds.

    `donate` names parameters whose buffers a call may reuse. `encode(*args)` converts the arguments of a call to the
    function's, `decode(results)` its results to the call's: for the user's own dataclasses. `precision="q8"` multiplies
    by block-quantised weights on activations that are rounded to 8 bits, 32 to a scale; `"bf16"` and `"tf32"` round the
    operands of every f32 matmul, `"fp8"` those of weight matmuls, with scales.

    >>> from smelt.tensor import nn
    >>> executable = compile(nn.Linear(d=3, f=2, bias=False), "f32[b=B, d=3]", engine="reference")
    >>> bound = executable.prepare({"weight": np.array([[1, 2, 3], [4, 5, 6]], np.float32)})
    >>> bound(np.ones((1, 3), np.float32)).numpy().tolist()
    [[6.0, 15.0]]
    """
    names = (donate,) if isinstance(donate, str) else tuple(donate)
    options = Options(platform, device, engine, names, tuple(facts), encode, decode, check_precision(precision))
    return compile_traced(*_trace_function(function, args, keywords, options.facts), options)


# ---- tracing ----


@dataclass(frozen=True, slots=True)
class TraceArguments:
    """What a function was traced for: its parameters in order, and the values or examples that they had."""

    names: tuple[str, ...]
    patterns: tuple[Any, ...]  # with symbolic tensors
    examples: tuple[Any, ...]  # what the user gave; the pattern itself where nothing was


def _trace_function(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any], facts: Sequence[str | Fact]
) -> tuple[Traced, TraceArguments]:
    examples = [_as_example(value) for value in args]
    named = {name: _as_example(value) for name, value in keywords.items()}
    traced = trace(function, *examples, facts=facts, **named)
    return traced, _parameters(function, traced, examples, named)


def _as_example(value: Any) -> Any:
    """The structure with a symbolic tensor for everything that has a shape."""
    return map_leaves(value, _has_shape, _as_symbolic, tied=False)


def _has_shape(value: Any) -> bool:
    if isinstance(value, str):
        return value.endswith("]") and "[" in value
    return isinstance(value, Shape | np.ndarray | HostBuffer) or (
        not is_tensor(value) and hasattr(value, "numpy") and isinstance(getattr(value, "shape", None), Shape)
    )


def _as_symbolic(value: Any) -> Tensor:
    if isinstance(value, np.ndarray):
        return symbolic(Shape.of(dtype(value.dtype), value.shape))
    if isinstance(value, Shape | str):
        return symbolic(shape_of(value))
    return symbolic(Shape.of(value.shape.dtype, value.shape.sizes))


def _parameters(
    function: Callable[..., Any], traced: Traced, args: Sequence[Any], keywords: Mapping[str, Any]
) -> TraceArguments:
    names: list[str] = []
    patterns: list[Any] = []
    examples: list[Any] = []
    inputs = traced.inputs
    positional = list(inputs.positional)
    given = list(args)
    if inputs.receiver is not None:
        names.append("self")
        patterns.append(inputs.receiver)
        owner = getattr(function, "__self__", None)
        examples.append(function if owner is None else owner)  # a model that is a function itself

    def add(name: str, pattern: Any, example: Any) -> None:
        names.append(name)
        patterns.append(pattern)
        examples.append(example)

    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            for i, pattern in enumerate(positional):
                add(f"{parameter.name}{i}", pattern, given[i] if i < len(given) else pattern)
            positional, given = [], []
        elif parameter.kind is parameter.VAR_KEYWORD:
            continue
        elif parameter.kind is parameter.KEYWORD_ONLY:
            pattern = inputs.named[parameter.name]
            add(parameter.name, pattern, keywords.get(parameter.name, pattern))
        else:
            pattern = positional.pop(0)
            add(parameter.name, pattern, given.pop(0) if given else keywords.get(parameter.name, pattern))
    return TraceArguments(tuple(names), tuple(patterns), tuple(examples))


# ---- from a traced function to an executable ----


def compile_traced(traced: Traced, given: TraceArguments, options: Options) -> Executable[..., Any]:
    index = {leaf: i for i, leaf in enumerate(traced.leaves)}
    parameters = []
    weight_slots: set[int] = set()
    sources: dict[int, str] = {}
    sizes: list[tuple[Shape, Shape]] = []
    for place, (name, pattern, example) in enumerate(zip(given.names, given.patterns, given.examples, strict=True)):
        slots = {id(tensor): index[tensor.value] for _, tensor in leaves(pattern, is_tensor)}
        if _is_weights(example, place, name, options.donate):
            weight_slots |= set(slots.values())
        if example is not pattern and slots:
            for _, tensor, one in zip_leaves(pattern, example, is_tensor, name):
                if is_tensor(one):
                    sizes.append((tensor.shape, one.shape))
                    sources[slots[id(tensor)]] = one.value.name
        parameters.append(Parameter(name, pattern, slots))
    known = _known_sizes(sizes)
    first = {i: f"{given.names[0]}." for i in parameters[0].slots.values() if i in weight_slots} if parameters else {}
    unique = _unique([_slot_name(leaf, i, first.get(i, "")) for i, leaf in enumerate(traced.leaves)])
    names = _axis_names(given.patterns)
    found = tuple(
        Slot(name, _shape(leaf, names, known), i in weight_slots, sources.get(i, ""))
        for i, (leaf, name) in enumerate(zip(traced.leaves, unique, strict=True))
    )
    _check_determined(traced, found, known)
    donated = _donated_slots(parameters, found, options.donate)
    asked = options.platform.engine if options.platform is not None else None
    mesh = asked.mesh if isinstance(asked, MeshEngine) else None
    programs = [_finish_program(path, found, known, mesh) for path in traced.paths]
    if options.precision in ROUND:
        programs = [round_products(program, options.precision) for program in programs]
    if options.precision in ("q8", "fp8"):
        programs = [round_activations(program) for program in programs]
    engine, compiled_paths = _compile_paths(traced.paths, programs, [found[i].name for i in sorted(donated)], options)
    target = options.platform or Platform("cpu" if options.device == "auto" else options.device, engine)
    in_place = bool(donated) and _donates(engine, programs)
    function = Function(
        traced.name,
        target,
        tuple(parameters),
        found,
        _remaining_facts(traced.facts, known),
        known,
        donated,
        in_place,
        not isinstance(engine, Placing),
        options.encode,
        options.decode,
    )
    return Executable.of(function, compiled_paths)


def _is_weights(example: Any, place: int, name: str, donated: Sequence[str]) -> bool:
    """Whether a parameter's tensors are weights: those of a model, or of the object whose method it is."""
    if name in donated or is_tensor(example) or isinstance(example, tuple | list | Mapping):
        return False
    return isinstance(example, Model) or (place == 0 and bool(fields_of(example)))


def _known_sizes(pairs: Sequence[tuple[Shape, Shape]]) -> dict[str, int]:
    """The values of symbols that examples with static sizes determine."""
    patterns: list[Size] = []
    actual: list[int] = []
    for pattern, example in pairs:
        for size, number in zip(pattern.sizes, example.sizes, strict=True):
            if isinstance(number, int) and not isinstance(size, int):
                patterns.append(size)
                actual.append(number)
    try:
        return solve(patterns, actual)
    except ShapeError as error:
        raise ShapeError(f"the weights do not fit together: {error.message}", expected=error.expected) from error


def _check_determined(traced: Traced, slots: Sequence[Slot], known: Mapping[str, int]) -> None:
    """Refuse a symbol that no argument determines: a number that the model was made without."""
    determined, _ = determined_symbols(size for slot in slots for size in slot.shape.sizes)
    facts = (traced.facts | path.assumed | path.guards for path in traced.paths)
    spoken = {name for known in facts for fact in known for name in fact.symbols}
    unknown = sorted((spoken | {name for slot in slots for name in slot.shape.symbols}) - determined - known.keys())
    if unknown:
        names = ", ".join(unknown)
        remedy = f"make the model with numbers for {names}"
        raise ShapeError(
            f"{traced.name}: no argument determines {names}", got=[str(slot.shape) for slot in slots], remedy=remedy
        )


def _unique(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def _axis_names(patterns: Sequence[Any]) -> dict[Any, tuple[str, ...] | None]:
    return {tensor.value: tensor.shape.names for pattern in patterns for _, tensor in leaves(pattern, is_tensor)}


def _shape(leaf: Leaf, names: Mapping[Any, tuple[str, ...] | None], known: Mapping[str, int]) -> Shape:
    """With the axes' names, and numbers for the sizes that are known."""
    return Shape.of(leaf.shape.dtype, leaf.shape.substitute(known).sizes, names.get(leaf))


def _slot_name(leaf: Leaf, place: int, model: str) -> str:
    """A tensor's path. Weights of the first parameter are named from within the model, as in its file."""
    return leaf.name.removeprefix(model) or f"argument{place}"


def _remaining_facts(facts: Facts, known: Mapping[str, int]) -> Facts:
    """The facts that a call still has to check: the weights' sizes decided the others."""
    broken = [str(fact) for fact in facts if fact.symbols <= known.keys() and not fact.holds(known)]
    if broken:
        raise ShapeError("a fact does not hold for the weights", expected=", ".join(broken), got=dict(known))
    return Facts(fact for fact in facts if not fact.symbols <= known.keys())


def _donated_slots(parameters: Sequence[Parameter], slots: Sequence[Slot], names: Sequence[str]) -> frozenset[int]:
    known = {parameter.name: parameter for parameter in parameters}
    for name in names:
        if name not in known or not known[name].slots:
            usable = [p.name for p in parameters if p.slots and not any(slots[i].weight for i in p.slots.values())]
            raise RunError("only parameters with tensors can be donated", expected=", ".join(usable), got=name)
    return frozenset(slot for name in names for slot in known[name].slots.values())


def _finish_program(path: Path, slots: Sequence[Slot], known: Mapping[str, int], mesh: Mesh | None) -> Program:
    """The program of one path with names (and shardings) for arguments and results, and numbers for known sizes."""
    main = path.program.main
    attrs: tuple[Attrs, ...] = tuple(
        MappingProxyType({(WEIGHT if slot.weight else NAME): slot.name, **_sharding_attrs(slot.shape, mesh)})
        for slot in slots
    )
    tensors = zip(_result_names(path.results), tree.leaves(path.results), strict=True)
    results: tuple[Attrs, ...] = tuple(
        MappingProxyType({NAME: name, **_sharding_attrs(tensor.shape, mesh)}) for name, tensor in tensors
    )
    sizes: dict[str, Size] = dict(known)
    body = clone_region(main.body, {}, substitution(sizes)) if known else main.body
    program = path.program.replace(Func("main", body, "public", attrs, results, main.attrs, main.location))
    if known:
        verify(program)
    return program


def _sharding_attrs(shape: Shape, mesh: Mesh | None) -> dict[str, Any]:
    """The sharding attribute of a tensor; empty where it is replicated."""
    partition = mesh.partition(shape.names) if mesh is not None and shape.names else ()
    return {SHARDING: DialectAttr("sdy", "sharding", sharding_text(partition))} if any(partition) else {}


def _result_names(results: Any) -> list[str]:
    if is_tensor(results):
        return ["result"]
    names: list[str] = []

    def visit(value: Any, path: str) -> None:
        if is_tensor(value):
            names.append(path)
        for key, item in items_of(value).items():
            visit(item, join(path, key) if path or not isinstance(key, int) else f"result{key}")

    visit(results, "")
    assert len(names) == len(list(tree.leaves(results)))
    return _unique(names)


def _compile_paths(
    paths: Sequence[Path], programs: Sequence[Program], donate: Sequence[str], options: Options
) -> tuple[Engine[Program], list[CompiledPath]]:
    """Every path on the same engine: the platform's, or the first that can run them all."""
    made: list[Compiled] = []

    def attempt(engine: Engine[Program]) -> Compiled:
        made[:] = []
        for program in programs:
            made.append(_compile_one(engine, program, donate))
        return made[0]

    if options.platform is not None:
        engine = options.platform.engine
        attempt(engine)
    else:
        engine, _ = compile_with_first(options.device, options.engine, attempt)
    compiled_paths = [
        CompiledPath(
            path.guards, path.assumed, program, compiled, path.results, _operations(program), Outline.of(path.results)
        )
        for path, program, compiled in zip(paths, programs, made, strict=True)
    ]
    return engine, compiled_paths


def _compile_one(engine: Engine[Program], program: Program, donate: Sequence[str]) -> Compiled:
    if isinstance(engine, ReferenceEngine):
        return engine.compile(program, callbacks=CALLBACKS)
    if calls_python(program):
        return compile_around(program, engine.compile)
    return engine.compile(program, donate=donate)


def _donates(engine: Engine[Program], programs: Sequence[Program]) -> bool:
    """Whether an engine makes use of donated memory. Where it does not, donated buffers are used up all the same."""
    return not isinstance(engine, ReferenceEngine) and not any(map(calls_python, programs))


def _operations(program: Program) -> Size:
    return cost.operations(program)


# ---- compiling while weights load ----


@overload
def compile_and_load(
    function: Callable[P, Tensor], weights: Weights, /, *args: Any, progress: Progress | None = None, **options: Any
) -> tuple[Executable[Concatenate[object, P], Buffer], object]: ...


@overload
def compile_and_load(
    function: Callable[P, R], weights: Weights, /, *args: Any, progress: Progress | None = None, **options: Any
) -> tuple[Executable[Concatenate[object, P], R], object]: ...


@with_argument_errors
def compile_and_load(
    function: Callable[..., Any], weights: Weights, /, *args: Any, progress: Progress | None = None, **options: Any
) -> tuple[Any, Any]:
    """Compile a method of a model and load the model's weights at the same time; gives the executable and the model
    with buffers on its device, for `prepare`. The options are those of `compile`.

        mlp = smelt.instantiate(MLP, weights)
        executable, buffers = smelt.compile_and_load(mlp.forward, weights)
        y = executable.prepare(buffers)(x).numpy()
    """
    from concurrent.futures import ThreadPoolExecutor

    model = getattr(function, "__self__", None)
    if model is None or not any(True for _ in leaves(model, is_tensor)):
        raise UnsupportedError(
            "only a method of a model has weights to load", got=function, remedy="compile, and weights.to_device"
        )
    where = {name: options[name] for name in ("platform", "device", "engine") if name in options}
    with ThreadPoolExecutor(1, "smelt-compile") as thread:
        compiling = thread.submit(compile, function, *args, **options)
        target = Options(**where).target
        try:
            buffers = weights.to_device(model, target, progress=progress)
        except BaseException:
            _close(compiling)
            raise
        try:
            return compiling.result(), buffers
        except SmeltError:
            for _, buffer in leaves(buffers, lambda value: hasattr(value, "delete")):
                buffer.delete()
            raise


def _close(compiling: Any) -> None:
    """Close the executable of weights that could not be loaded; errors of that are ignored."""
    if compiling.exception() is None:
        compiling.result().close()


async def compile_and_load_async(
    function: Callable[P, R], weights: Weights, /, *args: Any, progress: Progress | None = None, **options: Any
) -> tuple[Executable[Concatenate[object, P], Any], object]:
    """The same for coroutines: the event loop keeps running."""
    return await in_thread(lambda: compile_and_load(function, weights, *args, progress=progress, **options))
