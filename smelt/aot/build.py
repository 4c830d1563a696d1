"""Parts → an executable, a C library with its header, a WebAssembly module. `smelt compile --standalone` calls it.

A second build of the same inputs gives the same bytes: files have fixed names, nothing records a time or a path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from smelt.aot.assemble import Parts
from smelt.aot.bare import write_source
from smelt.aot.describe import c_name, describe_model, write_header
from smelt.aot.record import CONTENT, recorded_unit
from smelt.aot.targets import Machine
from smelt.aot.web import write_loader, write_types
from smelt.bundle.container import checksum
from smelt.device.cross import RUNTIME, Unit, Workshop, workshop
from smelt.device.runtime import runtime
from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen

HERE = Path(os.path.dirname(__file__))
LIBRARY = ("features.c", "heap.c", "executable.c", "checksum.c", "model.c")
SYSTEM = {"wasi": ("wasm.c", "memory.c")}  # the runtime's files that depend on the system
FILES = ("system.c", "memory.c", "weights.c")  # the same where there is a file system
POOL, SINGLE = ("pool.c", "watch.c"), ("single.c",)
FRONT = ("main.c", "files.c", "json.c", "measure.c", "listen.c")
COMMON = (
    *("-fvisibility=hidden", "-ffunction-sections", "-fdata-sections", "-fno-stack-protector"),
    *("-fno-unwind-tables", "-fno-asynchronous-unwind-tables"),
)
EXPORTS = {"windows": "-DSMELT_API=__declspec(dllexport)"}  # by system
EXPORT = '-DSMELT_API=__attribute__((visibility("default")))'
WEIGHTS = "weights.bin"
# A tenth of a small executable are tables that only exceptions and debuggers read.
SCRIPT, DISCARD = (
    "discard.ld",
    b"SECTIONS { /DISCARD/ : { *(.eh_frame .eh_frame_hdr .comment) } } INSERT AFTER .text;\n",
)
OPTIMISE = {"speed": (), "size": ("-Os", "-DSMELT_SMALL")}
SHARED = (".so", ".dll", ".dylib")
PRODUCTS = {"wasi": (".wasm", ".a"), "none": (".c",)}  # by system, the default first
SOURCES = {".wasm": "wasm32-wasi", ".js": "wasm32-wasi", ".c": "thumbv7em-none"}  # endings that only these targets have
FILE, PROGRAM = 0o666, 0o777  # modes, less the umask


class Options(Frozen):
    """How a model is built. `threads`: whether it has a thread pool; `optimise`: speed or size; `separate`: weights in
    a file of their own; `recorded`: the arrays of a call for `--selftest`."""

    threads: bool = True
    optimise: str = "speed"
    separate: bool = False
    recorded: tuple[Array, ...] = ()


DEFAULT = Options()


def model_name(output: Path) -> str:
    """The name of a model in C: `libdigits.a` and `digits` hold `digits_create`."""
    stem = output.name.partition(".")[0]
    return c_name(stem.removeprefix("lib") if output.suffix in (".a", *SHARED) else stem)


def build(parts: Parts, machine: Machine, name: str, options: Options = DEFAULT) -> dict[str, tuple[bytes, int]]:
    """Files by name, with their modes. The ending of `name` says what: .a, .so, .wasm; else an executable."""
    suffix = Path(name).suffix
    beside = {f"{name}.weights": (parts.weights, FILE)} if options.separate else {}
    if suffix == ".a" or suffix in SHARED:
        header = write_header(parts.name, parts.signature, (RUNTIME / "api.h").read_text())
        code = build_archive(parts, machine, options) if suffix == ".a" else build_shared(parts, machine, name, options)
        return {name: (code, FILE), f"{parts.name}.h": (header.encode(), FILE), **beside}
    if suffix == ".c":
        source, header = write_source(parts, machine, OPTIMISE[options.optimise])
        return {name: (source.encode(), FILE), f"{parts.name}.h": (header.encode(), FILE)}
    if suffix == ".wasm":
        loader = write_loader(name, f"{name}.weights" if options.separate else None, parts.signature)
        texts = {".js": loader, ".d.ts": write_types(parts.signature)}
        written = {name.removesuffix(suffix) + end: (text.encode(), FILE) for end, text in texts.items()}
        return {name: (build_module(parts, machine, options), FILE), **written, **beside}
    return {name: (build_executable(parts, machine, options), PROGRAM), **beside}


def has_front(name: str) -> bool:
    """Whether a product of this name is an executable."""
    return Path(name).suffix not in (".a", *SOURCES, *SHARED)


def check_product(machine: Machine, name: str, *, separate: bool = False) -> None:
    """Refuse an ending that the target has no product for, and weights in a file where there are no files."""
    suffix = Path(name).suffix
    if separate and machine.system == "none":
        raise UnsupportedError(
            "without an operating system there are no files", got="--weights separate", remedy="--weights embedded"
        )
    products = PRODUCTS.get(machine.system)
    is_known = suffix in products if products else suffix not in SOURCES
    if not is_known:
        raise UnsupportedError(
            f"the target {machine.name} has no such product",
            expected=" or ".join(f"-o NAME{each}" for each in products or (machine.suffix, ".a", machine.shared)),
            got=name,
            remedy=f"-o {Path(name).stem}{products[0]}" if products else f"--target {SOURCES[suffix]}",
        )


def build_executable(parts: Parts, machine: Machine, options: Options = DEFAULT) -> bytes:
    """A program that runs the model."""
    text, content = recorded_unit(parts.signature, options.recorded)
    front = [Unit("front_recorded", text, front_flags(parts))]
    front += [Unit(f"front_{Path(each).stem}", HERE / each, front_flags(parts)) for each in FRONT]
    return link_executable(parts, machine, options, front, {CONTENT: content})


def link_executable(
    parts: Parts, machine: Machine, options: Options, front: Sequence[Unit], files: Mapping[str, bytes]
) -> bytes:
    """The program of a front, which embeds `files`."""
    with workshop() as shop:
        flags = (f"--target={machine.triple}", *machine.flags)
        shop.write({**files, SCRIPT: DISCARD})
        objects = _compile(shop, parts, machine, flags, options, front)
        fewer = (f"-Wl,-T,{SCRIPT}", "-Wl,--no-eh-frame-hdr") if machine.system == "linux" else ()
        return shop.link(objects, f"model{machine.suffix}", (*flags, *machine.link, *fewer, *_linker(machine)))


def build_module(parts: Parts, machine: Machine, options: Options = DEFAULT) -> bytes:
    """A WebAssembly module that imports nothing."""
    with workshop() as shop:
        flags = (f"--target={machine.triple}", *machine.flags)
        front = [Unit("front_web", HERE / "web.c", front_flags(parts))]
        objects = _compile(shop, parts, machine, flags, options, front)
        return shop.link(objects, "model.wasm", (*flags, *machine.link, *_linker(machine)))


def build_archive(parts: Parts, machine: Machine, options: Options = DEFAULT) -> bytes:
    """A static library. Two of them in one program share the runtime's thread pool."""
    with workshop() as shop:
        objects = _compile(shop, parts, machine, (f"--target={machine.library}", *machine.flags), options)
        return shop.archive(objects, "model.a")


def build_shared(parts: Parts, machine: Machine, name: str, options: Options = DEFAULT) -> bytes:
    """A shared library."""
    with workshop() as shop:
        flags = (f"--target={machine.library}", *machine.flags)
        objects = _compile(shop, parts, machine, flags, options)
        return shop.link(
            objects, f"model{machine.shared}", (*flags, "-shared", *_soname(machine, name), *_linker(machine))
        )


def _soname(machine: Machine, name: str) -> tuple[str, ...]:
    """How programs will look for a shared library."""
    named = {"linux": (f"-Wl,-soname,{name}",), "macos": (f"-Wl,-install_name,@rpath/{name}",)}
    return named.get(machine.system, ())


def front_flags(parts: Parts) -> tuple[str, ...]:
    """Of the C files that call the model."""
    return (f"-I{RUNTIME}", f"-I{HERE}", "-Os", f"-DMODEL_CREATE={parts.name}_create")


def _compile(
    shop: Workshop,
    parts: Parts,
    machine: Machine,
    flags: tuple[str, ...],
    options: Options,
    front: Sequence[Unit] = (),
) -> list[str]:
    """The objects of the model, the runtime and the front."""
    symbol = "" if options.separate else f"{parts.name}_weights"
    shop.write({} if options.separate else {WEIGHTS: parts.weights})
    embedded = [Unit(symbol, f'_Alignas(64) const unsigned char {symbol}[] = {{\n#embed "{WEIGHTS}"\n}};\n')]
    place = (symbol, len(parts.weights), checksum(runtime(), [memoryview(parts.weights)]) if options.separate else 0)
    described = describe_model(parts.name, parts.programs, place)
    pool = POOL if options.threads and machine.has_threads else SINGLE
    library = (*LIBRARY, *SYSTEM.get(machine.system, FILES), *pool)
    units = [
        *(Unit(each.name, each.text, (*each.flags, *OPTIMISE[options.optimise])) for each in parts.units),
        Unit(f"{parts.name}_tables", described, (f"-I{RUNTIME}",)),
        *([] if options.separate else embedded),
        *(Unit(f"smelt_{Path(each).stem}", RUNTIME / each, ("-Os", *OPTIMISE[options.optimise])) for each in library),
        *front,
    ]
    return shop.compile(units, (*flags, *COMMON, *_threads(machine, options), EXPORTS.get(machine.system, EXPORT)))


def _threads(machine: Machine, options: Options) -> tuple[str, ...]:
    """Flags of C files: with a pool; without, but for callers with threads; without any."""
    if not machine.has_threads:
        return ("-DSMELT_SINGLE",)
    return ("-pthread", *(() if options.threads else ("-DSMELT_SINGLE", "-DSMELT_LOCKS")))


def _linker(machine: Machine) -> tuple[str, ...]:
    dead = "-Wl,-dead_strip" if machine.system == "macos" else "-Wl,--gc-sections"
    return ("-s", dead, *(("-pthread",) if machine.has_threads else ()))
