"""What a compiled function expects of its caller, as text: the generated C states it, a bundle's manifest must agree.

`kernel.emit_c` writes it into the code as `NAME_abi`; `bundle.entry` computes it from what a manifest says. A caller
that differs in a count, an element type, a rank, a size or a constant's bytes would make the code read elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dtype import Quantized
from smelt.shape import Shape

# What the compiler says that code may use → how Linux spells it.
MACROS = {
    "__AVX2__": "avx2",
    "__FMA__": "fma",
    "__F16C__": "f16c",
    "__BMI__": "bmi1",
    "__BMI2__": "bmi2",
    "__AVX512F__": "avx512f",
    "__AVX512BW__": "avx512bw",
    "__AVX512CD__": "avx512cd",
    "__AVX512DQ__": "avx512dq",
    "__AVX512VL__": "avx512vl",
    "__AVX512VNNI__": "avx512_vnni",
    "__AVX512BF16__": "avx512_bf16",
}
NEEDS = "needs"  # begins the last line: features of the processor


def describe(
    symbols: Sequence[str],
    arguments: Sequence[Shape],
    results: Sequence[Shape],
    constants: Sequence[int],
    donated: Sequence[int],
    reused: Sequence[tuple[int, int]],
    checks: tuple[int, int],
) -> str:
    """One line for each part: `constants` are bytes, `checks` the numbers of conditions on sizes and on data."""
    lines = {
        "symbols": symbols,
        "arguments": [_shape(shape) for shape in arguments],
        "results": [_shape(shape) for shape in results],
        "constants": constants,
        "donated": donated,
        "reused": [f"{result}={argument}" for result, argument in reused],
        "checks": checks,
    }
    return "".join(f"{name} {'; '.join(map(str, parts))}\n" for name, parts in lines.items())


def c_text(name: str, description: str) -> str:
    """The C of a program's description; the compiler adds what the code needs of a processor."""
    lines = [f'"{_escaped(line)}\\n"' for line in description.splitlines()]
    needs = [line for macro, feature in MACROS.items() for line in (f"#ifdef {macro}", f'" {feature}"', "#endif")]
    return "\n".join([f"const char {name}_abi[] =", *lines, f'"{NEEDS}"', *needs, ";"])


def _shape(shape: Shape) -> str:
    element = shape.dtype.storage if isinstance(shape.dtype, Quantized) else shape.dtype
    return f"{element.name}[{', '.join(map(str, shape.sizes))}]"


def _escaped(line: str) -> str:
    """As C writes it; names may hold anything."""
    plain = "_ ,;=[]()<>+-*/%."
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in plain) else f"\\{byte:03o}"
        for byte in line.encode("utf-8", "surrogatepass")
    )
