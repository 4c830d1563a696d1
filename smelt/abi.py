"""The ABI of a compiled function, as text: in the generated C, and computed from a bundle's manifest to compare.

`kernel.emit` writes it into the code as `NAME_abi`; `bundle.entry` computes it from a manifest. If they differ in a
count, an element type, a rank, a size or a constant's bytes, the code would read out of bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.dtype import Quantized
from smelt.shape import Shape
from smelt.size import Size, substitute, symbol, symbols_in_order

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
    "__ARM_FEATURE_DOTPROD": "asimddp",
    "__ARM_FEATURE_MATMUL_INT8": "i8mm",
}
# What a compiled function returns besides 0: failures, and numbers of checks added to these.
CANCELLED, NO_MEMORY, FAILED, UNFIT = -1, -2, 1 << 20, 1 << 21
TOO_LARGE = 1 << 22  # a size overflows 64 bits
LOG = 1 << 20  # steps that a program with timestamps records in a call; later ones are only counted
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
    """One line for each part: `constants` are bytes, `checks` the numbers of conditions on sizes and on data.

    Symbols are numbered: a model's own names never get into C.
    """
    late = symbols_in_order(*(size for shape in results for size in shape.sizes))
    places = {name: symbol(f"late{i}") for i, name in enumerate(name for name in late if name not in symbols)}
    places |= {name: symbol(f"n{i}") for i, name in enumerate(symbols)}
    lines: dict[str, Sequence[object]] = {
        "symbols": [len(symbols)],
        "arguments": [_shape(shape, places) for shape in arguments],
        "results": [_shape(shape, places) for shape in results],
        "constants": constants,
        "donated": donated,
        "reused": [f"{result}={argument}" for result, argument in reused],
        "checks": checks,
    }
    return "".join(f"{name} {'; '.join(map(str, parts))}\n" for name, parts in lines.items())


def c_text(name: str, description: str) -> str:
    """The C of a program's description; the compiler adds what the code needs of a processor."""
    lines = [f'"{line}\\n"' for line in description.splitlines()]
    needs = [line for macro, feature in MACROS.items() for line in (f"#ifdef {macro}", f'" {feature}"', "#endif")]
    return "\n".join([f"const char {name}_abi[] =", *lines, f'"{NEEDS}"', *needs, ";"])


def _shape(shape: Shape, places: Mapping[str, Size]) -> str:
    element = shape.dtype.storage if isinstance(shape.dtype, Quantized) else shape.dtype
    sizes = (size if isinstance(size, int) else substitute(size, places) for size in shape.sizes)
    return f"{element.name}[{', '.join(map(str, sizes))}]"
