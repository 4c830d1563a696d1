"""Every error says what to do: where the place that raises it names no remedy, its class does."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.errors import ParseError, SmeltError, UnsupportedError, advise, error_of

ROOT = Path(smelt.__path__[0])


def kinds(base: type[SmeltError] = SmeltError) -> Iterator[type[SmeltError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def defining_modules() -> list[str]:
    """Modules with a class that is named like an error."""
    names = []
    for found in pkgutil.walk_packages(smelt.__path__, "smelt."):
        path = ROOT.parent.joinpath(*found.name.split("."))
        source = (path / "__init__.py" if found.ispkg else path.with_suffix(".py")).read_text("utf-8")
        classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
        if any(each.name.endswith("Error") for each in classes):
            names.append(found.name)
    return names


def test_every_class_of_errors_says_what_to_do() -> None:
    for name in defining_modules():
        importlib.import_module(name)
    found = [kind for kind in kinds() if kind.__module__.startswith("smelt.")]
    assert len(found) > 30
    for kind in found:
        assert kind.advice, kind
    # What is right for a whole branch is said once; a class of the base form alone has advice of its own.
    for kind in found:
        if kind is not SmeltError and SmeltError in kind.__bases__:
            assert "advice" in vars(kind), kind


def test_the_remedy_of_a_place_goes_before_its_readers_and_its_class() -> None:
    def raised(remedy: str | None) -> ParseError:
        with pytest.raises(ParseError) as caught, advise("get the file again", ParseError):
            raise ParseError("a field ends early", remedy=remedy)
        return caught.value

    assert raised("write 4 bytes").remedy == "write 4 bytes"
    assert raised(None).remedy == "get the file again"
    error = ParseError("a field ends early")
    assert error.remedy == ParseError.advice
    assert str(error).endswith(f"try      {ParseError.advice}")
    again = error_of(error.record())
    assert (type(again), again.remedy, str(again)) == (ParseError, error.remedy, str(error))
    error.remedy = "write 4 bytes"
    assert error.record()["remedy"] == "write 4 bytes"


def test_mistakes_of_users_end_with_what_to_do(tmp_path: Path) -> None:
    """One of each kind, as a user meets them; none of these places names a remedy."""
    text = tmp_path / "wrong.mlir"
    text.write_text("func.func @main(%x: tensor<3xf32>) -> tensor<4xf32> { return %x : tensor<3xf32> }")
    with pytest.raises(SmeltError) as parsed:
        smelt.load(text)
    x = smelt.tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(SmeltError) as shaped:
        x.named("b")
    with pytest.raises(UnsupportedError) as unsupported:
        raise UnsupportedError("an op without a kernel")
    for caught in (parsed, shaped, unsupported):
        assert str(caught.value).splitlines()[-1].split()[0] == "try", caught.value
