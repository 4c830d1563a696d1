"""Time stamps as C: what a program adds to itself so that every step tells when it began and ended.

`emit_c` puts it into programs that are built to be profiled, and into no others. Such a program exports `NAME_clock`
and, about its last call, `NAME_count`, `NAME_log` (step, begin, end for each step that ran) and `NAME_late` (the sizes
that data told).
"""

from __future__ import annotations

LOG = 1 << 20  # steps of one call that are kept; later ones are counted only


def stamp_text(name: str, late: int) -> str:
    """The clock, the log, and what writes to it. Ticks are the processor's own: an engine calibrates them."""
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
i64 {name}_count, {name}_log[3 * {LOG}], {name}_late[{max(late, 1)}];
static void {name}_stamp(i64 step, i64 begin) {{
  const i64 end = {name}_clock();
  if ({name}_count < {LOG}) {{
    i64 *line = {name}_log + 3 * {name}_count;
    line[0] = step; line[1] = begin; line[2] = end;
  }}
  {name}_count++;
}}
"""


def stamped(name: str, step: int, pad: str, lines: list[str]) -> list[str]:
    """The lines of a step, between two looks at the clock."""
    return [f"{pad}{{ const i64 begin = {name}_clock();", *lines, f"{pad}{name}_stamp({step}, begin); }}"]
