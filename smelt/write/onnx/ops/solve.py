"""Cholesky factors and triangular systems, row by row: ONNX has no solver."""

from __future__ import annotations

from smelt.dtype import dtype, i64
from smelt.ir.core import Op
from smelt.write.onnx.graph import Graph, Out, refuse

_MOST = 64  # rows: each is several nodes


def _matrix(g: Graph, value: object) -> Out:
    """A matrix, or a batch of them, in f32 at least."""
    x = g.get(value)  # type: ignore[arg-type]
    x = g.cast(x, dtype("f32")) if x.dtype.bits < 32 else x
    if not isinstance(x.sizes[-1], int) or not isinstance(x.sizes[-2], int):
        refuse("a matrix with dynamic sizes")
    return x


def _rows_of(a: Out) -> int:
    rows = a.sizes[-1]
    assert isinstance(rows, int)
    if rows > _MOST:
        refuse(f"a system of more than {_MOST} equations: ONNX has no solver")
    return rows


def _cut(g: Graph, x: Out, axis: int, start: int, end: int) -> Out:
    """Some rows (axis -2) or columns (axis -1)."""
    at = x.rank + axis
    if (start, end) == (0, x.sizes[at]):
        return x
    return g.slice_axis(x, at, g.constant([start], i64), g.constant([end], i64), end - start)


def _turn(g: Graph, x: Out) -> Out:
    return g.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _flip(g: Graph, x: Out, *axes: int) -> Out:
    return g.flip(x, [x.rank + axis for axis in axes])


def _triangular_solve(g: Graph, op: Op) -> Out:
    """Every form is that of a lower matrix on the left: transposed, or with rows and columns in reverse."""
    element = op.results[0].shape.element
    a, b = (_matrix(g, value) for value in op.operands)
    _rows_of(a)
    lower, left = op.attrs["lower"], op.attrs["left_side"]
    if (op.attrs["transpose_a"] in ("TRANSPOSE", "ADJOINT")) == left:
        a, lower = _turn(g, a), not lower
    if not left:
        b = _turn(g, b)
    if not lower:
        a, b = _flip(g, a, -1, -2), _flip(g, b, -2)
    x = _forward(g, a, b, op.attrs["unit_diagonal"])
    if not lower:
        x = _flip(g, x, -2)
    return g.cast(x if left else _turn(g, x), element)


def _forward(g: Graph, a: Out, b: Out, unit: bool) -> Out:
    """x of a x = b for a lower matrix: forward substitution."""
    rows: list[Out] = []
    for i in range(_rows_of(a)):
        line, x = _cut(g, a, -2, i, i + 1), _cut(g, b, -2, i, i + 1)
        if i:
            known = g.concat(rows, b.rank - 2)
            x = g.call("Sub", x, g.call("MatMul", _cut(g, line, -1, 0, i), known, sizes=x.sizes))
        rows.append(x if unit else g.call("Div", x, _cut(g, line, -1, i, i + 1), sizes=x.sizes))
    return g.concat(rows, b.rank - 2)


def _cholesky(g: Graph, op: Op) -> Out:
    """Column by column; of an upper factor the transpose is computed."""
    element, a = op.results[0].shape.element, _matrix(g, op.operands[0])
    a = a if op.attrs["lower"] else _turn(g, a)
    rows, columns = _rows_of(a), list[Out]()
    for j in range(rows):
        column = _cut(g, _cut(g, a, -2, j, rows), -1, j, j + 1)
        if j:
            known = g.concat(columns, a.rank - 1)
            own = _turn(g, _cut(g, known, -2, j, j + 1))
            column = g.call("Sub", column, g.call("MatMul", _cut(g, known, -2, j, rows), own, sizes=column.sizes))
        root = g.call("Sqrt", _cut(g, column, -2, 0, 1))
        column = g.call("Div", column, root, sizes=column.sizes)
        low = [0] * (column.rank - 2) + [j, 0]
        columns.append(g.pad(column, low, [0] * column.rank, g.like(0, column)))
    factor = g.concat(columns, a.rank - 1)
    return g.cast(factor if op.attrs["lower"] else _turn(g, factor), element)


ROWS = {"stablehlo.cholesky": _cholesky, "stablehlo.triangular_solve": _triangular_solve}
