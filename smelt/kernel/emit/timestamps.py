"""Timestamps as C: every step of a profiled program records its begin and end.

`emit.c` adds this to programs that are built to be profiled or tuned. They export `NAME_clock` and, for the last call,
`NAME_count`, `NAME_log` (step, begin, end of each step that ran) and `NAME_deferred` (the data-dependent sizes).
"""

from __future__ import annotations

from smelt.abi import LOG


def timestamp_text(name: str, deferred: int) -> str:
    """The clock, the log and its writer. Ticks are the processor's own; the engine calibrates them."""
    return f"""\
i64 {name}_clock(void) {{
#if defined(__x86_64__) || defined(__i386__)
  return (i64)__builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  i64 ticks; __asm__ volatile("isb\\n\\tmrs %0, cntvct_el0" : "=r"(ticks)); return ticks;
#else
  return (i64)__builtin_readcyclecounter();
#endif
}}
i64 {name}_count, {name}_log[3 * {LOG}], {name}_deferred[{max(deferred, 1)}];
static void {name}_timestamp(i64 step, i64 begin) {{
  const i64 end = {name}_clock();
  if ({name}_count < {LOG}) {{
    i64 *line = {name}_log + 3 * {name}_count;
    line[0] = step; line[1] = begin; line[2] = end;
  }}
  {name}_count++;
}}
"""


def add_timestamps(name: str, step: int, pad: str, lines: list[str]) -> list[str]:
    """The lines of a step between two timestamps."""
    return [f"{pad}{{ const i64 begin = {name}_clock();", *lines, f"{pad}{name}_timestamp({step}, begin); }}"]
