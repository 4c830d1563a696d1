"""Chat templates: messages → the text of a prompt, by Jinja in a sandbox with limits.

A template comes with a checkpoint, from anybody: it can reach nothing but its arguments, and it ends after a number of
steps and characters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from smelt.errors import MissingPackageError, ParseError, RunError

MAX_STEPS = 2_000_000  # lines that a template may run
MAX_TEXT = 1 << 24  # characters of a result, or of an intermediate text
MAX_BITS = 1 << 16  # of a number


class _Limit(Exception):  # noqa: N818  # the limit that was reached
    pass


def render(
    template: str,
    messages: Sequence[Any],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Any] | None = None,
    **arguments: Any,
) -> str:
    """The prompt for messages, each with a `role` and `content`."""
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RunError("a message is no record with a role", expected="{'role': …, 'content': …}", got=message)
    compiled = _compile(template)
    given = {"messages": list(messages), "tools": tools, "add_generation_prompt": add_generation_prompt, **arguments}
    return _run_limited(lambda: _gather(compiled.generate(**given)))


def check_template(template: str) -> None:
    """Refuse a template that cannot be read."""
    _compile(template)


def _gather(pieces: Any) -> str:
    found: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_TEXT:
            raise _Limit(f"{MAX_TEXT} characters")
        found.append(piece)
    return "".join(found)


@lru_cache(maxsize=8)
def _compile(template: str) -> Any:
    """A template keeps nothing between its uses."""
    try:
        import jinja2
    except ImportError:
        raise MissingPackageError("chat templates need the package jinja2", remedy='pip install "smelt[llm]"') from None
    try:
        return _environment().from_string(template)
    except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
        raise ParseError("the chat template cannot be read", got=f"{type(error).__name__}: {error}") from None


def _run_limited(run: Any) -> str:
    """Run with a limit on the lines of template code; every mistake of a template is a SmeltError."""
    from jinja2 import TemplateError

    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if steps > MAX_STEPS:
                raise _Limit(f"{MAX_STEPS} steps")
        return count

    def enter(frame: Any, event: str, argument: Any) -> Any:
        return count if frame.f_code.co_filename in ("<template>", "<unknown>") else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        return str(run())
    except _Limit as error:
        raise RunError("the chat template does not end", expected=f"at most {error}") from None
    except (
        TemplateError,
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        IndexError,
        ArithmeticError,
        RecursionError,
        MemoryError,
        LookupError,
    ) as error:
        raise RunError("the chat template refuses these messages", got=f"{type(error).__name__}: {error}") from None
    finally:
        sys.settrace(before)


def _environment() -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """Operators that could make a long text or number from short operands check the operands first."""

        intercepted_binops = frozenset({"*", "**", "+", "%"})
        joins = (_concat, _join, _join)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, /, *args: Any, **keywords: Any) -> Any:
            _check_call(function, args)
            return super().call(context, function, *args, **keywords)

        def _generate(self, *args: Any, **keywords: Any) -> str:
            """The template as Python, which joins texts by our functions."""
            first, _, rest = str(super()._generate(*args, **keywords)).partition("\n")
            return f"{first}\nconcat, str_join, markup_join = environment.joins\n{rest}"

    class Generation(Extension):
        """`{% generation %}` marks what the model says, for training; its inside is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    extensions = ["jinja2.ext.loopcontrols", Generation]
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_check_value)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def now(form: str) -> str:
        from datetime import datetime

        return datetime.now().strftime(form[:200])

    environment.filters["tojson"] = tojson
    environment.filters = {name: _bound_filter(name, filter) for name, filter in environment.filters.items()}
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    environment.globals.pop("lipsum", None)
    return environment


# ---- limits ----


def _weigh(value: Any, left: int = MAX_TEXT) -> int:
    """How many characters a value has as a text, about; counting stops where it is too many."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    total = 1
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            total += _weigh(each, left - total) + 2
            if total > left:
                break
    return total


def _check(characters: int) -> None:
    if characters > MAX_TEXT:
        raise _Limit(f"{MAX_TEXT} characters")


def _check_value(value: Any) -> Any:
    _check(_weigh(value))
    return value


def _concat(pieces: Any) -> str:
    """What the inside of a block gives."""
    found = list(pieces)
    _check(sum(map(len, found)))
    return "".join(found)


def _join(values: Any) -> str:
    """The operator ~"""
    found = list(values)
    _check(sum(map(_weigh, found)))
    return "".join(map(str, found))


def _bound_filter(name: str, function: Any) -> Any:
    """A filter whose operands are no longer than a text may be, and neither is what it makes of them."""
    from functools import wraps

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        given = [*args, *keywords.values()]
        _check(sum(map(_weigh, given)))
        numbers = [abs(each) for each in given if isinstance(each, int)]
        texts = [each for each in given if isinstance(each, str)]
        if any(each > MAX_TEXT // 64 for each in numbers):
            raise _Limit(f"{MAX_TEXT} characters")
        if name == "format":
            _check(sum(64 * _widest(each) for each in texts))
        elif name in ("replace", "join", "indent", "batch", "wordwrap"):
            sizes = [len(each) if hasattr(each, "__len__") else 1 for each in given]
            _check(max(sizes, default=0) * max([*sorted(sizes)[:-1], *numbers, 1]))
        return function(*args, **keywords)

    return call


def _check_operands(operator: str, left: Any, right: Any) -> None:
    match operator:
        case "*":
            for text, times in ((left, right), (right, left)):
                if not isinstance(text, int | float) and isinstance(times, int):
                    _check(_weigh(text) * max(times, 0))
            if all(isinstance(each, int) for each in (left, right)):
                _check_bits(left.bit_length() + right.bit_length())
        case "**":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() * abs(right))
        case "+":
            if not isinstance(left, int | float):
                _check(_weigh(left) + _weigh(right))
        case _:
            if isinstance(left, str):
                _check(64 * _widest(left) + _weigh(right) * max(left.count("%"), 1))


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise _Limit(f"numbers of {MAX_BITS} bits")


def _widest(form: str) -> int:
    """The largest number in a format."""
    import re

    return max((int(each) if len(each) < 12 else MAX_TEXT for each in re.findall(r"\d+", form)), default=0)


def _check_call(function: Any, args: Sequence[Any]) -> None:
    """Methods of texts that make longer ones."""
    function = getattr(function, "__wrapped__", function)  # the sandbox has a format of its own
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, str | bytes):
        return
    numbers = [abs(each) for each in args if isinstance(each, int)]
    weights = [_weigh(each) for each in args]
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _check(64 * max(numbers, default=8))
    elif name in ("format", "format_map"):
        _check(64 * _widest(str(owner)) + sum(weights) * max(str(owner).count("{"), 1))
    elif name in ("replace", "join", "translate"):
        sizes = [len(each) for each in args if hasattr(each, "__len__")]
        _check(sum(weights) + (len(owner) + 1) * max(sizes, default=1))
