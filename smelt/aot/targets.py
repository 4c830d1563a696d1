"""The machines that models are built for, one row each: the compiler's triple, and the code versions in one binary.

A version is code for some processors of the machine; the binary picks the first that this processor can run.
"""

from __future__ import annotations

import platform
import sys

from smelt.device.runtime import FEATURES
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen
from smelt.target import Target

_SMALL, _LARGE = (32 << 10, 512 << 10), (32 << 10, 1 << 20)  # bytes of L1 and L2 of common processors
_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_WIDE = ("-mcpu=x86_64_v4", "-mprefer-vector-width=512")
CORES = 4  # that schedules assume


class CodeVersion(Frozen):
    """Code for processors with the features of `target`; `target.flags` are the compiler's."""

    name: str
    target: Target
    int8: bool = False  # only int8 programs gain from it

    @property
    def bits(self) -> int:
        """Its features as bits of `smelt_features`."""
        return sum(1 << FEATURES.index(name) for name in self.target.features)


class Machine(Frozen):
    """One row. Versions come from the best to the baseline."""

    name: str
    triple: str  # of the compiler, for executables
    library: str  # the same for libraries, which are linked with the system's C library
    versions: tuple[CodeVersion, ...]
    flags: tuple[str, ...] = ()  # of every C file
    system: str = "linux"  # "linux", "windows", "macos", "wasi", "none"
    link: tuple[str, ...] = ("-static",)
    suffix: str = ""  # of executables
    shared: str = ".so"  # of shared libraries
    base_bytes: int = 512 << 10  # memory of the runtime, code and tables; measured, rounded up
    has_memory_for_weights: bool = True  # else they stay in flash

    @property
    def has_fma(self) -> bool:
        """Whether its best code rounds a product and a sum once: where `kernel.emit.tile_f32` has an instruction."""
        return self.versions[0].target.name in ("x86_64", "aarch64")

    @property
    def has_threads(self) -> bool:
        return self.system in ("linux", "windows", "macos")


def _baseline(machine: str, *flags: str, registers: int = 16) -> tuple[CodeVersion, ...]:
    target = Target(machine, CORES, 16, _SMALL, flags=flags, registers=registers)
    return (CodeVersion("baseline", target),)


_X86_64 = (
    CodeVersion(
        "avx512vnni",
        Target("x86_64", CORES, 64, _LARGE, _AVX512 | {"avx512_vnni"}, (*_WIDE, "-mavx512vnni"), registers=32),
        int8=True,
    ),
    CodeVersion("avx512", Target("x86_64", CORES, 64, _LARGE, _AVX512, _WIDE, registers=32)),
    CodeVersion("avx2", Target("x86_64", CORES, 32, _SMALL, _AVX2, ("-mcpu=x86_64_v3",), registers=16)),
    CodeVersion("baseline", Target("x86_64", CORES, 16, _SMALL, flags=("-mcpu=x86_64",), registers=16)),
)

_AARCH64 = (
    CodeVersion(
        "i8mm",
        Target(
            *("aarch64", CORES, 16, _SMALL, frozenset({"asimddp", "i8mm"}), ("-mcpu=generic+dotprod+i8mm",)),
            registers=32,
        ),
        int8=True,
    ),
    CodeVersion(
        "dotprod",
        Target("aarch64", CORES, 16, _SMALL, frozenset({"asimddp"}), ("-mcpu=generic+dotprod",), registers=32),
        int8=True,
    ),
    *_baseline("aarch64", registers=32),
)

_RISCV64 = (
    CodeVersion(
        "rvv", Target("riscv64", CORES, 16, _SMALL, frozenset({"riscv_v"}), ("-mcpu=baseline_rv64+v",), registers=32)
    ),
    *_baseline("riscv64", registers=32),
)

MACHINES = {
    row.name: row
    for row in (
        Machine("x86_64-linux", "x86_64-linux-musl", "x86_64-linux-gnu.2.17", _X86_64, ("-mcpu=x86_64",)),
        Machine("aarch64-linux", "aarch64-linux-musl", "aarch64-linux-gnu.2.17", _AARCH64),
        Machine(
            "armv7-linux", "arm-linux-musleabihf", "arm-linux-gnueabihf.2.17", _baseline("arm"), ("-mcpu=cortex_a7",)
        ),
        Machine("riscv64-linux", "riscv64-linux-musl", "riscv64-linux-gnu.2.27", _RISCV64),
        Machine(
            "x86_64-windows",
            "x86_64-windows-gnu",
            "x86_64-windows-gnu",
            _X86_64,
            ("-mcpu=x86_64",),
            "windows",
            suffix=".exe",
            shared=".dll",
        ),
        Machine(
            "aarch64-macos",
            "aarch64-macos",
            "aarch64-macos",
            _baseline("aarch64", "-mcpu=apple_m1", registers=32),
            (),
            "macos",
            (),
            shared=".dylib",
        ),
        Machine(
            "wasm32-wasi",
            "wasm32-wasi",
            "wasm32-wasi",
            _baseline("wasm32", "-mcpu=generic+simd128+bulk_memory+sign_ext+nontrapping_fptoint"),
            ("-mcpu=generic+simd128+bulk_memory+sign_ext+nontrapping_fptoint",),
            "wasi",
            ("-mexec-model=reactor", "-Wl,-z,stack-size=1048576"),
            suffix=".wasm",
            shared="",
            base_bytes=5 << 18,  # 1 MiB of it is the stack
        ),
        Machine(
            "thumbv7em-none",
            "thumb-freestanding-eabihf",
            "thumb-freestanding-eabihf",
            _baseline("thumb"),
            ("-mcpu=cortex_m4",),
            "none",
            (),
            suffix=".c",
            shared="",
            base_bytes=3 << 10,
            has_memory_for_weights=False,
        ),
    )
}


def host_machine() -> str:
    """The name of the row of this machine, known or not."""
    system = {"linux": "linux", "win32": "windows", "darwin": "macos"}.get(sys.platform, sys.platform)
    machine = {"AMD64": "x86_64", "arm64": "aarch64", "armv7l": "armv7"}.get(platform.machine(), platform.machine())
    return f"{machine}-{system}"


def find_machine(name: str) -> Machine:
    """The row of a name."""
    if name not in MACHINES:
        raise UnsupportedError(
            "unknown target of a standalone model",
            expected=", ".join(MACHINES),
            got=name,
            remedy="--target x86_64-linux",
        )
    return MACHINES[name]
