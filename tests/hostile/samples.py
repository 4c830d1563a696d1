"""Small valid programs, at least one for every op of the table: what the mutations start from.

`SAMPLES` maps a name to a text. Most are one op in generic form on the arguments of a function, made from a line of
`programs/single_ops.txt` and the regions in `programs/bodies.txt`; the others are whole files beside them.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).with_name("programs")
_GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_USED = {"stablehlo.if": 1, "stablehlo.case": 1, "stablehlo.while": 2}  # operands; the other arguments are captured

# Ops with one row for many, by element type.
_UNARY = {
    "f32": "stablehlo.cbrt stablehlo.ceil stablehlo.cosine stablehlo.exponential_minus_one stablehlo.floor "
    "stablehlo.log stablehlo.log_plus_one stablehlo.logistic stablehlo.negate stablehlo.round_nearest_afz "
    "stablehlo.round_nearest_even stablehlo.rsqrt stablehlo.sign stablehlo.sine stablehlo.sqrt stablehlo.tan "
    "stablehlo.tanh chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.bessel_i1e chlo.conj "
    "chlo.cosh chlo.digamma chlo.erf chlo.erf_inv chlo.erfc chlo.lgamma chlo.sinh chlo.square chlo.tan",
    "i32": "stablehlo.count_leading_zeros stablehlo.not stablehlo.popcnt stablehlo.abs",
}
_BINARY = {
    "f32": "stablehlo.atan2 stablehlo.divide stablehlo.maximum stablehlo.minimum stablehlo.multiply stablehlo.power "
    "stablehlo.remainder stablehlo.subtract chlo.next_after chlo.polygamma chlo.zeta",
    "i32": "stablehlo.add stablehlo.and stablehlo.or stablehlo.xor stablehlo.shift_left chlo.mulhi "
    "stablehlo.shift_right_arithmetic stablehlo.shift_right_logical",
}
_SPREAD = {
    "f32": "add atan2 divide maximum minimum multiply power remainder subtract next_after polygamma zeta",
    "i32": "and or xor shift_left shift_right_arithmetic shift_right_logical",
}


def _rows() -> list[str]:
    lines = (FOLDER / "single_ops.txt").read_text().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    for element, names in _UNARY.items():
        rows += [f"{name} | tensor<2x3x{element}> | | | tensor<2x3x{element}>" for name in names.split()]
    for element, names in _BINARY.items():
        type = f"tensor<2x3x{element}>"
        rows += [f"{name} | {type}; {type} | | | {type}" for name in names.split()]
    for element, names in _SPREAD.items():
        types = f"tensor<3x{element}>; tensor<2x3x{element}>"
        more = f"broadcast_dimensions = array<i64: 1> | | tensor<2x3x{element}>"
        rows += [f"chlo.broadcast_{name} | {types} | {more}" for name in names.split()]
    return rows


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
