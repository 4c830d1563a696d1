"""Small valid programs, at least one for every op of the table: what the mutations start from.

`SAMPLES` maps a name to a text. Most are one op in generic form on the arguments of a function, made from a line of
`programs/single_ops.txt` and the regions in `programs/bodies.txt`; the others are whole files beside them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import OpDef
from smelt.shape import Shape

FOLDER = Path(__file__).with_name("programs")
_GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_USED = {"stablehlo.if": 1, "stablehlo.case": 1, "stablehlo.while": 2}  # operands; the other arguments are captured


def _rows() -> list[str]:
    lines = (FOLDER / "single_ops.txt").read_text().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    written = {row.partition("|")[0].strip() for row in rows}
    return rows + [_elementwise(row) for name, row in OPS.items() if row.elementwise and name not in written]


def _elementwise(row: OpDef) -> str:
    """A row for an elementwise op on one element type: f32, or i32 where the op takes integers alone."""
    spread = row.name.startswith("chlo.broadcast_")
    count = len(row.operands.split())
    sizes = [[3], [2, 3]] if spread else [[2, 3]] * count
    attributes: dict[str, Any] = {"broadcast_dimensions": (1,)} if spread else {}
    for element in ("f32", "i32"):
        f = FuncBuilder("main", [Shape(element, *each) for each in sizes])
        with suppress(VerifyError):
            f.op(row.name, *f.args, **attributes)
            types = "; ".join(f"tensor<{'x'.join(map(str, each))}x{element}>" for each in sizes)
            more = "broadcast_dimensions = array<i64: 1>" if spread else ""
            return f"{row.name} | {types} | {more} | | tensor<2x3x{element}>"
    raise AssertionError(f"{row.name} needs a row in single_ops.txt")


def _bodies() -> dict[str, str]:
    parts = re.split(r"^--- (\w+)\n", (FOLDER / "bodies.txt").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (body.rstrip() for body in parts[2::2]), strict=True))


def _single(row: str, bodies: dict[str, str]) -> str:
    """A program of one op from a row of the table."""
    name, operands, attributes, regions, results = (part.strip() for part in row.split("|"))
    inputs = [each.strip() for each in operands.split(";") if each.strip()]
    outputs = [each.strip() for each in results.split(";")]
    used = _USED.get(name, len(inputs))
    attributes = attributes.replace("GROUPS", _GROUPS).replace("CHANNEL", _CHANNEL)
    arguments = ", ".join(f"%a{i}: {type}" for i, type in enumerate(inputs))
    values = ", ".join(f"%a{i}" for i in range(used))
    properties = f" <{{{attributes}}}>" if attributes else ""
    inner = [f"{{\n    {bodies[each.strip()]}\n  }}" for each in regions.split(",") if each.strip()]
    inside = f" ({', '.join(inner)})" if inner else ""
    left = "%r" if len(outputs) == 1 else f"%r:{len(outputs)}"
    types = ", ".join(outputs)
    returned = "%r" if len(outputs) == 1 else ", ".join(f"%r#{i}" for i in range(len(outputs)))
    return (
        f"func.func @main({arguments}) -> ({types}) {{\n"
        f'  {left} = "{name}"({values}){properties}{inside} : ({", ".join(inputs[:used])}) -> ({types})\n'
        f"  return {returned} : {types}\n}}\n"
    )


def _samples() -> dict[str, str]:
    bodies = _bodies()
    found = {f"{row.partition('|')[0].strip()} {i}": _single(row, bodies) for i, row in enumerate(_rows())}
    return found | {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.mlir"))}


SAMPLES: dict[str, str] = _samples()
