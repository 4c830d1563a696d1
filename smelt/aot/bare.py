"""Parts → one C file and its header, for machines without an operating system: no malloc, no C library.

The file holds the runtime, the tables, the kernels and the weights, which are constant: they stay in flash. All memory
that a call needs is one static array. A compiler computes its size, which the header then gives as a number.
"""

from __future__ import annotations

import re
import struct

from smelt.aot.assemble import Parts
from smelt.aot.describe import CodedVariant, describe_model, write_header
from smelt.aot.targets import Machine
from smelt.device.cross import LANGUAGE, RUNTIME, Unit, Workshop, workshop
from smelt.engine.compile import ABI_TYPES
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen

HEADERS = ("smelt.h", "runtime.h", "model.h")
LIBRARY = ("bare.c", "heap.c", "executable.c", "single.c", "model.c")
STRING_FUNCTIONS = """\
void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int byte, size_t count);
int memcmp(const void *a, const void *b, size_t count);
size_t strlen(const char *text);"""
_INCLUDE = re.compile(r'^#include (?:"[^"]+"|<string\.h>)\n', re.MULTILINE)
_SHT_NOBITS, _SHF_ALLOC, _SHF_WRITE = 8, 2, 1  # of ELF sections


class Sizes(Frozen):
    """Bytes of the compiled file: code and constants; variables, the array of memory among them."""

    flash: int
    ram: int


def write_source(parts: Parts, machine: Machine, optimise: tuple[str, ...]) -> tuple[str, str]:
    """The C file and its header, `NAME.h`."""
    check_static(parts)
    source = _source(parts)
    with workshop() as shop:
        shop.write({"model.c": source.encode()})
        memory = _compile(shop, parts, machine, optimise, "NEEDED").symbol(f"{parts.name}_memory")
        compiled = _compile(shop, parts, machine, optimise, str(memory))
        return source, _header(parts, str(memory), compiled.sizes())


def check_static(parts: Parts) -> None:
    """Refuse what has no size before a call."""
    variants = [variant for program in parts.programs for variant in program.variants]
    if any(variant.peak is None for variant in variants):
        names = sorted({name for variant in variants for name in variant.entry.symbols})
        raise UnsupportedError(
            "without an operating system all memory is known before a call",
            expected="a model whose sizes are numbers",
            got=f"dynamic dimensions: {', '.join(names)}" if names else "data-dependent sizes",
            remedy=" ".join(f"--size {name}=1" for name in names) if names else "a target with an operating system",
        )
    assert len(parts.units) == 1, "one program, one code version, one file"


def _compile(shop: Workshop, parts: Parts, machine: Machine, optimise: tuple[str, ...], memory: str) -> Object:
    shop.write({f"{parts.name}.h": _header(parts, memory).encode()})
    flags = (f"--target={machine.triple}", *machine.flags, "-ffreestanding", "-ffunction-sections", "-fdata-sections")
    unit = Unit("model", shop.folder / "model.c", optimise)
    (name,) = shop.compile([unit], (*flags, "-fno-unwind-tables"))
    return Object((shop.folder / name).read_bytes())


def _header(parts: Parts, memory: str, sizes: Sizes | None = None) -> str:
    api = (RUNTIME / "api.h").read_text()
    measured = (
        f" Compiled for this target by the\n * builder: {sizes.flash} bytes of flash, {sizes.ram} of RAM."
        if sizes
        else ""
    )
    return f"""\
{write_header(parts.name, parts.signature, api)}
/* Bytes of the static array that {parts.name}_create uses where options give no memory: all that calls need beside
 * their inputs and outputs, which are arrays of the caller. It serves one model at a time.{measured} */
#define {parts.name.upper()}_RAM {memory}
"""


def _source(parts: Parts) -> str:
    name = parts.name
    described = describe_model(name, parts.programs, (f"{name}_weights", len(parts.weights), 0), bare=_heap_size(parts))
    return "\n".join(
        [
            f"/* The model {name}, written by smelt compile --standalone. A program needs it and {name}.h alone.",
            f" * Compile it with {' '.join(LANGUAGE)}. */",
            '#pragma GCC diagnostic ignored "-Wunused-function"',
            '#ifdef __clang__\n#pragma clang diagnostic ignored "-Wpass-failed"\n#endif',
            f'#include "{name}.h"',
            "#define SMELT_SINGLE",
            "#define SMELT_BARE",
            "#include <stddef.h>",
            STRING_FUNCTIONS,
            *(_read(each) for each in (*HEADERS, *LIBRARY)),
            f"static const _Alignas(64) unsigned char {name}_weights[] = {{",
            _numbers(parts.weights),
            "};",
            *(_kernels(str(unit.text)) for unit in parts.units),
            _INCLUDE.sub("", described),
        ]
    )


def _heap_size(parts: Parts) -> str:
    """C of the bytes that all allocations of a model take from its heap."""
    (program,) = parts.programs
    (variant,) = program.variants
    return " + ".join(
        [
            "LINES(sizeof(Heap))",
            "BLOCK(sizeof(smelt_model))",
            *_program_blocks(variant),
        ]
    )


def _program_blocks(variant: CodedVariant) -> list[str]:
    """The blocks of `make` in model.c, of `smelt_make`, `create_slot` and `reserve_all` in executable.c."""
    assert variant.peak is not None
    symbols, bound, inputs, results, constants = variant.layout[:5]
    buffers, ports = bound + inputs + results + constants, inputs + results
    dims = sum(shape.rank for shape in variant.entry.results)
    slot = f"LINES(sizeof(Slot)) + 2 * LINES({8 * symbols}) + 2 * LINES({8 * (2 + dims)})"
    tables = f"LINES({buffers} * sizeof(void *)) + LINES({ports}) + LINES({results} * sizeof(void *))"
    arena, scratch = variant.peak
    return [
        f"BLOCK({2 + bound + constants} * sizeof(void *))",
        f"BLOCK(sizeof(Executable) + {8 * len(variant.layout)} + {ports} * sizeof(Port) + {buffers} * sizeof(void *))",
        f"BLOCK({slot} + {tables})",
        *(f"BLOCK({each})" for each in (arena, scratch) if each),
    ]


def _read(file: str) -> str:
    """A file of the runtime, without the files that it includes: they are here already."""
    return _INCLUDE.sub("", (RUNTIME / file).read_text())


def _kernels(text: str) -> str:
    """A program, without its copy of the declarations in smelt.h."""
    assert ABI_TYPES in text
    return text.replace(ABI_TYPES, "")


def _numbers(content: bytes) -> str:
    rows = (content[i : i + 32] for i in range(0, len(content), 32))
    return "\n".join(",".join(map(str, row)) + "," for row in rows)


class Object:
    """A relocatable ELF file of a 32-bit machine: the sizes of its sections and symbols."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        (start,) = struct.unpack_from("<I", content, 32)
        size, count, _ = struct.unpack_from("<HHH", content, 46)
        self.sections = [struct.unpack_from("<10I", content, start + i * size) for i in range(count)]

    def sizes(self) -> Sizes:
        """Sections that are loaded: those that can be written take RAM, initialised ones flash as well."""
        loaded = [each for each in self.sections if each[2] & _SHF_ALLOC and b"ARM.exidx" not in self._name(each)]
        ram = sum(each[5] for each in loaded if each[2] & _SHF_WRITE)
        return Sizes(sum(each[5] for each in loaded if each[1] != _SHT_NOBITS), ram)

    def symbol(self, name: str) -> int:
        """The bytes of a variable."""
        for each in self.sections:
            if each[1] == 2:  # SHT_SYMTAB
                names = self.sections[each[6]][4]
                for at in range(each[4], each[4] + each[5], 16):
                    label, _, size = struct.unpack_from("<III", self.content, at)
                    if self._text(names + label) == name.encode():
                        return int(size)
        raise KeyError(name)

    def _name(self, section: tuple[int, ...]) -> bytes:
        (table,) = struct.unpack_from("<H", self.content, 50)
        return self._text(self.sections[table][4] + section[0])

    def _text(self, at: int) -> bytes:
        return self.content[at : self.content.index(b"\0", at)]
