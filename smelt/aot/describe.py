"""A model as C data: the tables that `smelt_model_create` reads (`smelt/runtime/model.h`), and its header.

In: signature, entries, places of the weights. Out: C text. Names from model files are escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from smelt.device.entry import DataCheck, Entry
from smelt.dtype import DTYPES, Quantized
from smelt.engine_api import Port, Signature
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen
from smelt.shape import Shape

MAX_RANK = 16  # SMELT_MAX_RANK of api.h
_CODES = {name: code for code, name in enumerate(DTYPES, 1)}


class CodedVariant(Frozen):
    """A program for one layout of packed weights: its interface, the layout of `smelt_make`, places in the weights.

    `peak`: bytes of temporaries and of scratch, where they are known before a call.
    """

    entry: Entry
    layout: tuple[int, ...]
    offsets: tuple[int, ...]
    peak: tuple[int, int] | None = None


class CodedVersion(Frozen):
    """Machine code of a variant: the C name of its program, and the features that it needs, as bits."""

    name: str
    program: str
    features: int
    variant: int


class CodedProgram(Frozen):
    """A program: its layouts of packed weights, and machine code from the best version to the baseline."""

    signature: Signature
    variants: tuple[CodedVariant, ...]
    versions: tuple[CodedVersion, ...]


def describe_model(
    name: str, programs: Sequence[CodedProgram], weights: tuple[str, int, int], *, bare: str = ""
) -> str:
    """The C file of a model's tables and of NAME_create. A later program serves sizes that an earlier one refuses.

    `weights`: symbol (none: in a file), bytes, checksum. `bare`: C of the bytes that a model needs; it is then one file
    with its weights, and has a static array of them.
    """
    symbol, count, checksum = weights
    lines = ['#include "model.h"', *([f"extern const unsigned char {symbol}[];"] if symbol and not bare else [])]
    place = f"{symbol}, 0" if symbol else "0, smelt_open_weights"
    for p in reversed(range(len(programs))):
        lines += _program(name, p, programs[p])
        general = f"&description{p + 1}" if p + 1 < len(programs) else "0"
        ports = programs[p].signature
        counts = f"{{{c_string(name)}, {len(ports.inputs)}, {len(ports.outputs)}, ports{p}}}, {general}"
        rest = f"{len(programs[p].versions)}, versions{p}, {place}, {count}, {checksum}ULL"
        lines.append(f"static const Description description{p} = {{{counts}, {rest}}};")
    create = f"SMELT_API int {name}_create(const smelt_options *options, smelt_model **model) {{"
    if bare:
        return "\n".join(
            [*lines, *_static_memory(name, bare), create, *_CREATE_BARE.format(name=name).splitlines(), "}", ""]
        )
    return "\n".join([*lines, create, "  return smelt_model_create(&description0, options, model);", "}", ""])


_CREATE_BARE = """\
  smelt_options own = {{0}};
  if (options) own = *options;
  if (!own.memory) own.memory = {name}_memory, own.memory_bytes = sizeof {name}_memory;
  return smelt_model_create(&description0, &own, model);"""


def _static_memory(name: str, needed: str) -> list[str]:
    """The array of a machine without an allocator. LINES and BLOCK: as `heap.c` rounds."""
    return [
        "#define LINES(bytes) (((bytes) + 63) / 64 * 64)",
        "#define BLOCK(bytes) (LINES(bytes) + sizeof(Block))",
        f"#define NEEDED ({needed})",
        f'_Static_assert({name.upper()}_RAM >= NEEDED, "the memory that was computed when this file was written");',
        f"static _Alignas(64) unsigned char {name}_memory[{name.upper()}_RAM];",
    ]


def _program(name: str, p: int, program: CodedProgram) -> list[str]:
    lines = []
    for version in program.versions:
        lines.append(f"int {version.program}_run(const Runtime *rt, Context *ctx, void **buffers, const i64 *symbols);")
        lines.append(f"int {version.program}_measure(const i64 *symbols, i64 *out);")
    ports = [*program.signature.inputs, *program.signature.outputs]
    for i, port in enumerate(ports):
        numbers = (size if isinstance(size, int) else -1 for size in port.shape.sizes)
        lines.append(_numbers("int64_t", f"sizes{p}_{i}", numbers))
    rows = [
        f"{{{c_string(port.name)}, {c_string(str(port.shape))}, {dtype_code(port.shape)}, {port.shape.rank}, "
        f"{port.shape.dtype.numpy.itemsize}, sizes{p}_{i}}}"
        for i, port in enumerate(ports)
    ]
    lines.append(_table("smelt_port", f"ports{p}", rows))
    for i, variant in enumerate(program.variants):
        lines += _variant(f"{p}_{i}", variant)
    versions = [
        f"{{{c_string(each.name)}, {each.features}, &variant{p}_{each.variant}, "
        f"{each.program}_run, {each.program}_measure}}"
        for each in program.versions
    ]
    return [*lines, _table("Version", f"versions{p}", versions)]


def _variant(i: str, variant: CodedVariant) -> list[str]:
    entry = variant.entry
    sizes = [f"{{{c_string(check.expected)}, {c_string(check.why)}}}" for check in entry.sizes]
    data = [f"{{{c_string(_message(check))}, {int(check.of_sizes)}}}" for check in entry.data]
    return [
        _numbers("i64", f"layout{i}", variant.layout),
        _numbers("i64", f"offsets{i}", variant.offsets),
        _table("char *const", f"symbols{i}", map(c_string, entry.symbols)),
        _table("SizeCheck", f"size_checks{i}", sizes),
        _table("DataCheck", f"data_checks{i}", data),
        f"static const Variant variant{i} = {{layout{i}, {len(variant.layout)}, offsets{i}, symbols{i}, "
        f"size_checks{i}, data_checks{i}}};",
    ]


def _message(check: DataCheck) -> str:
    """With the place in the model's file, without the folder: it is not that of the machine that runs the model."""
    if check.where is None:
        return check.message
    return f"{check.where.replace(path=os.path.basename(check.where.path))}: {check.message}"


def write_header(name: str, signature: Signature, api: str) -> str:
    """The header of a model: the C API, and its own function."""
    lines = [api, f"#ifndef SMELT_MODEL_{name.upper()}_H", f"#define SMELT_MODEL_{name.upper()}_H", ""]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    for kind, ports in (("Inputs", signature.inputs), ("Outputs", signature.outputs)):
        lines += [f"/* {kind}, in order:"] if ports else []
        lines += [f" *   {_comment(port)}" for port in ports]
        lines += [" */"] if ports else []
    lines += [f"SMELT_API int {name}_create(const smelt_options *options, smelt_model **model);", ""]
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def c_name(text: str) -> str:
    """A C identifier that resembles a text."""
    made = re.sub(r"\W", "_", text, flags=re.ASCII)
    return made if made and not made[0].isdigit() else f"model_{made}"


def c_string(text: str) -> str:
    """A text as a C string literal of ASCII characters."""
    plain = re.compile(rb"[A-Za-z0-9 _.,:;+\-*/=<>()\[\]{}'!]")
    return '"' + "".join(chr(b) if plain.match(bytes([b])) else f"\\{b:03o}" for b in text.encode()) + '"'


def dtype_code(shape: Shape) -> int:
    """The number of an element type in `smelt_dtype`."""
    element = shape.dtype.storage if isinstance(shape.dtype, Quantized) else shape.dtype
    return _CODES[element.name]


def check_signature(signature: Signature) -> None:
    """Refuse what the C API cannot say."""
    for port in (*signature.inputs, *signature.outputs):
        if port.shape.rank > MAX_RANK:
            raise UnsupportedError(
                f"{port.name!r} has too many axes for the C API", expected=f"at most {MAX_RANK}", got=port.shape
            )


def _comment(port: Port) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", f"{port.name}: {port.shape}").replace("*/", "* /")


def _numbers(kind: str, name: str, numbers: Iterable[int]) -> str:
    return _table(kind, name, [str(number) for number in numbers])


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    listed = list(rows)
    empty = "{{0}}" if kind in ("SizeCheck", "DataCheck", "smelt_port") else "{0}"
    content = "{" + ", ".join(listed) + "}" if listed else empty
    return f"static const {kind} {name}[] = {content};"
