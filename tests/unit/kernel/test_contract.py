"""What keeps the kernel compiler open for other devices: few fields and ops, statements told apart in few files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import smelt
from smelt.ir.ops import OPS
from smelt.kernel.loops import grammar
from smelt.kernel.loops.grammar import Mma

ROOT = Path(smelt.__file__).parent
STATEMENTS = {each.__name__ for each in get_args(grammar.Stmt)}
PRINTERS = {"loops/text.py", "loops/cost.py", "emit/printer.py", "emit/kernel_c.py", "emit/kernel_cuda.py"}


def matched(text: str) -> set[str]:
    """The statements that the `match`es of a file tell apart."""
    patterns = (each.cls for each in ast.walk(ast.parse(text)) if isinstance(each, ast.MatchClass))
    return {each.id for each in patterns if isinstance(each, ast.Name)} & STATEMENTS


def files(folder: str) -> Iterator[tuple[str, str]]:
    return ((str(path.relative_to(ROOT / folder)), path.read_text()) for path in (ROOT / folder).rglob("*.py"))


def test_statements_are_told_apart_by_printers_and_costs_alone() -> None:
    assert matched("match x:\n  case Store(place): pass") == {"Store"} < STATEMENTS
    assert {name for name, text in files("kernel") if matched(text)} == PRINTERS


def test_products_and_packing_stay_small() -> None:
    assert len(Mma.__match_args__) <= 6
    packing = {name for name, row in OPS.items() if any(each.name == "layout" for each in row.attrs)}
    products = ["smelt.grouped_dot", "smelt.packed_conv", "smelt.packed_dot"]
    assert sorted(packing - {"stablehlo.infeed"}) == [*products, "smelt.relayout"]
    assert len((ROOT / "kernel/emit/kernel_c.py").read_text().splitlines()) <= 400


def test_processors_are_known_to_devices_alone() -> None:
    used = [name for name, text in files(".") if "smelt.device import cpu" in text or "smelt.device.cpu import" in text]
    assert all(name.startswith("device/") for name in used), used
