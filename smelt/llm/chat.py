"""Chat templates: messages → the text of a prompt, by Jinja in a sandbox with limits.

A template comes with a checkpoint, from anybody: it can reach nothing but its arguments, and it ends after a number of
steps and characters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from smelt.errors import MissingPackageError, ParseError, RunError

MAX_STEPS = 2_000_000  # lines that a template may run
MAX_TEXT = 1 << 24  # characters of a result, or of a text on the way
MAX_POWER = 1 << 16  # bits of a number

_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


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
    return _limited(lambda: _gather(compiled.generate(**given)))


def _gather(pieces: Any) -> str:
    found: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_TEXT:
            raise _Limit(f"{MAX_TEXT} characters")
        found.append(piece)
    return "".join(found)


def _compile(template: str) -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingPackageError("chat templates need the package jinja2", remedy="pip install smelt[llm]") from None
    try:
        return _environment().from_string(template)
    except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
        raise ParseError("the chat template cannot be read", got=f"{type(error).__name__}: {error}") from None


def _limited(run: Any) -> str:
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
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """Operators and methods that make long texts or numbers out of short ones are limited."""

        intercepted_binops = frozenset({"*", "**", "+", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, /, *args: Any, **keywords: Any) -> Any:
            _check_call(function, args)
            return super().call(context, function, *args, **keywords)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def now(form: str) -> str:
        from datetime import datetime

        return datetime.now().strftime(form[:200])

    environment.filters["tojson"] = tojson
    for name in ("center", "indent", "format", "wordwrap", "batch", "slice", "urlize"):
        environment.filters[name] = _bounded(environment.filters[name])
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    environment.globals.pop("lipsum", None)
    return environment


def _bounded(function: Any) -> Any:
    """A filter whose numbers are no larger than a text may be."""
    from functools import wraps

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        for value in (*args, *keywords.values()):
            if isinstance(value, int) and abs(value) > MAX_TEXT // 64:
                raise _Limit(f"{MAX_TEXT} characters")
            if isinstance(value, str) and "%" in value and any(part.isdigit() for part in value) and len(value) > 200:
                raise _Limit("a short format")
        found = function(*args, **keywords)
        return found

    return call


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        for text, times in ((left, right), (right, left)):
            if hasattr(text, "__len__") and isinstance(times, int) and len(text) * times > MAX_TEXT:
                raise _Limit(f"{MAX_TEXT} characters")
        if all(isinstance(each, int) and each.bit_length() > MAX_POWER for each in (left, right)):
            raise _Limit(f"{MAX_POWER} bits")
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_POWER:
            raise _Limit(f"{MAX_POWER} bits")
    elif operator == "+":
        if hasattr(left, "__len__") and hasattr(right, "__len__") and len(left) + len(right) > MAX_TEXT:
            raise _Limit(f"{MAX_TEXT} characters")
    elif isinstance(left, str) and _widest(left) > MAX_TEXT // 64:
        raise _Limit(f"{MAX_TEXT} characters")


def _widest(form: str) -> int:
    """The largest number in a format."""
    import re

    return max((int(each) if len(each) < 12 else 1 << 60 for each in re.findall(r"\d+", form)), default=0)


def _check_call(function: Any, args: Sequence[Any]) -> None:
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, str | bytes):
        return
    numbers = [each for each in args if isinstance(each, int)]
    if name in _PADDING and any(abs(each) > MAX_TEXT // 64 for each in numbers):
        raise _Limit(f"{MAX_TEXT} characters")
    if name in ("format", "format_map") and _widest(str(owner)) > MAX_TEXT // 64:
        raise _Limit(f"{MAX_TEXT} characters")
    if name == "replace" and len(args) > 1 and isinstance(args[1], str) and len(owner) * len(args[1]) > MAX_TEXT:
        raise _Limit(f"{MAX_TEXT} characters")
    if name == "join" and args and hasattr(args[0], "__len__") and len(owner) * len(args[0]) > MAX_TEXT:
        raise _Limit(f"{MAX_TEXT} characters")
