"""`smelt.vjp` and `smelt.jvp`: of a program (`passes.grad`), or of a function of tensors (`tensor.grad`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from smelt.ir.core import Program
from smelt.passes import grad as of_programs
from smelt.tensor import grad as of_functions


@overload
def vjp(of: Program, /, wrt: Any = None, **options: Any) -> Program: ...
@overload
def vjp(of: Callable[..., Any], /, *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]: ...
def vjp(of: Any, /, *args: Any, **options: Any) -> Any:
    """Reverse mode.

    Of a program: `smelt.vjp(program, wrt=["x"])`, a program that takes inputs and cotangents of the results, and gives
    results and cotangents of the inputs. Of a function: `value, pull = smelt.vjp(function, *arguments)`.

    >>> import smelt
    >>> value, pull = vjp(lambda x: x * x, smelt.tensor([3.0]))
    >>> pull(smelt.tensor([1.0]))[0].tolist()
    [6.0]
    """
    if isinstance(of, Program):
        return of_programs.vjp(of, *args, **options)
    return of_functions.vjp(of, *args, **options)


@overload
def jvp(of: Program, /, wrt: Any = None, **options: Any) -> Program: ...
@overload
def jvp(of: Callable[..., Any], /, primals: Any, tangents: Any) -> tuple[Any, Any]: ...
def jvp(of: Any, /, *args: Any, **options: Any) -> Any:
    """Forward mode: of a program like `smelt.vjp`, or `value, moved = smelt.jvp(function, arguments, tangents)`.

    >>> import smelt
    >>> value, moved = jvp(lambda x: x * x, [smelt.tensor([3.0])], [smelt.tensor([1.0])])
    >>> moved.tolist()
    [6.0]
    """
    if isinstance(of, Program):
        return of_programs.jvp(of, *args, **options)
    return of_functions.jvp(of, *args, **options)
