"""placeholder"""
from smelt.ir.core import Program
def lower(program: Program) -> Program:
    return program
