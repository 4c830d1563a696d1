"""Plans → CUDA files, and the plans themselves as JSON, which `device.host_plan` runs on the host.

`kernel_cuda` prints the kernels, `plan_json` the steps, `tile_cuda` the micro-kernels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.errors import UnsupportedError
from smelt.kernel import math
from smelt.kernel.emit.kernel_cuda import CudaKernel
from smelt.kernel.emit.plan_json import PlanWriter
from smelt.kernel.emit.rows_cuda import FOLD_ROW
from smelt.kernel.emit.tile_cuda import micro_kernels
from smelt.kernel.emit.vector_cuda import PACK
from smelt.kernel.plan.memory import Memory
from smelt.kernel.plan.plan import Kernel, Launch, Plan, walk
from smelt.target import TileShape

# The scalar functions are C. These definitions make them CUDA; `-default-device` makes them functions of the device.
BUILTINS = ("fma", "fabs", "copysign", "sqrt", "rint", "floor", "trunc")
PRELUDE = "\n".join(
    (
        "#define __FMA__ 1",
        "#define __SSE4_1__ 1",  # rounding takes one instruction
        *(f"#define __builtin_{name}{kind} {name}{kind}" for name in BUILTINS for kind in ("", "f")),
        "#define __builtin_inff() __int_as_float(0x7f800000)",
        "#define __builtin_inf() __longlong_as_double(0x7ff0000000000000LL)",
        "#define __builtin_nanf(x) __int_as_float(0x7fc00000)",
        "#define __builtin_nan(x) __longlong_as_double(0x7ff8000000000000LL)",
        "#define __builtin_clz __clz",
        "#define __builtin_clzll __clzll",
        "#define __builtin_expect(x, y) (x)",
        "#define __builtin_memcpy memcpy",
        "#define LANES",
        "#if __CUDA_ARCH__ >= 900",  # the next launch may begin, if it waits itself for what this one writes
        '#define SMELT_RELEASE() asm volatile("griddepcontrol.launch_dependents;")',
        '#define SMELT_AWAIT() asm volatile("griddepcontrol.wait;" ::: "memory")',  # for what earlier launches write
        # No read through it comes before the wait. The compiler forgets that it points to device memory, and is told.
        '#define SMELT_BEHIND(pointer) asm volatile("" : "+l"(pointer)); __builtin_assume(__isGlobal(pointer))',
        "#define SMELT_PREFETCH(from, bytes)"
        ' asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"((ui32)(bytes)))',
        "#else",
        "#define SMELT_RELEASE()",
        "#define SMELT_AWAIT()",
        "#define SMELT_BEHIND(pointer)",
        "#define SMELT_PREFETCH(from, bytes)",
        "#endif",
        "#ifdef __CUDACC__",  # no load in front of it is put off: the assembler would wait for one after another
        "#define SMELT_READ() __syncwarp(__activemask())",
        "#else",
        "#define SMELT_READ()",
        "#endif",
        "",
    )
)
# A value of any type from another lane of the warp, 32 bits at a time.
SHUFFLE = """\
template <class T, class F> inline T smelt_exchange(T x, F word) {
  ui32 words[(sizeof(T) + 3) / 4] = {0};
  memcpy(words, &x, sizeof(T));
  for (int i = 0; i < (int)(sizeof words / 4); i++) words[i] = word(words[i]);
  memcpy(&x, words, sizeof(T));
  return x;
}
template <class T> inline T smelt_shuffle_down(T x, int by) {
  return smelt_exchange(x, [by](ui32 word) { return __shfl_down_sync(0xffffffffu, word, by); });
}
template <class T> inline T smelt_shuffle_first(T x) {
  return smelt_exchange(x, [](ui32 word) { return __shfl_sync(0xffffffffu, word, 0); });
}
"""
# Weights of a later launch: they come from memory while this one, which reads little, waits for itself.
PREFETCH = """\
inline void smelt_prefetch_pieces(i64 from, i64 pieces, i64 stride, i64 bytes) {
  const i64 first = blockIdx.x + (i64)gridDim.x * threadIdx.x, all = (i64)gridDim.x * blockDim.x;
  for (i64 i = first; i < pieces; i += all) SMELT_PREFETCH(from + i * stride, bytes);
}
"""
KERNELS_PER_FILE = 6


@dataclass(slots=True)
class CudaSource:
    """CUDA files of several programs, which share equal kernels, and their plans."""

    tile: TileShape
    timestamps: bool = False
    shared: int = 48 << 10  # bytes of a block's shared memory
    kernels: dict[Kernel, CudaKernel] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    programs: dict[str, Any] = field(default_factory=dict)

    def add(self, plan: Plan, memory: Memory, name: str) -> None:
        """Add a program. An error leaves the source as it was."""
        if plan.tunables:
            raise UnsupportedError("kernels of a GPU have no tunables of run time", remedy='device="cpu"')
        fresh: dict[Kernel, CudaKernel] = {}
        for step in walk(plan.steps):
            if isinstance(step, Launch) and step.kernel not in self.kernels and step.kernel not in fresh:
                fresh[step.kernel] = CudaKernel(f"{name}_{step.kernel.kind}{len(fresh)}", self.shared)
        parts = [made.emit(kernel) for kernel, made in fresh.items()]
        program = PlanWriter(plan, memory, self.kernels | fresh, self.timestamps).write()
        self.kernels |= fresh
        self.parts += parts
        self.programs[name] = program

    def text(self) -> str:
        """All kernels as one file."""
        return self._file(self.parts)

    def texts(self, most: int) -> list[str]:
        """Files of kernels that compile in parallel, and the plans."""
        count = max(1, min(most, -(-len(self.parts) // KERNELS_PER_FILE)))
        files = [self._file(self.parts[i::count]) for i in range(count)]
        return [*files, json.dumps({"programs": self.programs}, separators=(",", ":"))]

    def _file(self, parts: Sequence[str]) -> str:
        text = "\n".join(parts)
        tiles = micro_kernels(text)
        shuffle = SHUFFLE if "smelt_shuffle_" in text else ""
        prefetch = PREFETCH if "smelt_prefetch_pieces(" in text else ""
        pack = PACK if "smelt_vector<" in text else ""
        fold = FOLD_ROW if "smelt_read_pack<" in text else ""
        return "".join([PRELUDE, math.prelude(tiles + text), prefetch, shuffle, tiles, pack, fold, text, "\n"])
