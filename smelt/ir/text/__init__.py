"""The text form of programs: MLIR text in, a Program out, and back.

`parse` reads what stablehlo-opt, JAX and we print; `print_program` writes it. Called by the readers, the command line
and every test that shows a program.
"""

from __future__ import annotations

from smelt.ir.text.parser import parse
from smelt.ir.text.printer import print_func, print_op, print_program

__all__ = ["parse", "print_func", "print_op", "print_program"]
