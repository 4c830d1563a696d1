from smelt.ir.ops.definition import OpDef

ROWS: list[OpDef] = []
