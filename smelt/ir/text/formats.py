"""The assembly formats of ops: a line of parts each, or a class where a format says more.

In and out: what stands after an op's name; reading and printing are side by side. An op without a format is written
generically. Called by the parser and the printer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.dtype import DType, dtype, i64
from smelt.ir.attributes import PRECISION, Constant, DenseArray, DialectAttr, Int, print_conv_dims
from smelt.ir.core import Op, Value
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import OpDef
from smelt.ir.ops.reduce import scan_counts
from smelt.ir.text import attrs as text_attrs
from smelt.ir.text.assembly import (
    Draft,
    Line,
    Operands,
    Part,
    Reader,
    Writer,
    bracket,
    is_printed,
    read_function,
    read_list,
    read_pairwise,
    read_same,
    show_row,
    show_same,
)
from smelt.ir.text.lexer import ID, STRING, VALUE, Cursor
from smelt.shape import Shape


class _ConstantFormat:
    """`{…} dense<…> : type`, or the generic form where the result is of another type than the literal."""

    def read(self, reader: Reader, draft: Draft) -> None:
        if reader.cursor.token == "(":
            reader.generic(draft)
            return
        reader.dictionary(draft)
        value = draft.attrs["value"] = reader.attributes.any()
        if not isinstance(value, Constant):
            reader.cursor.fail("unexpected attribute", at=draft.start, expected="dense<…>", got=value)
        draft.operand_types, draft.results = [], [value.shape]

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        value = op.attrs["value"]
        if not isinstance(value.dtype, DType) or op.results[0].type != value.shape:
            return writer.generic(op)
        return f"{writer.dictionary(op, ('value',))} {text_attrs.show(value)}"


class _OptionalOperands:
    """`%a, %b : a, b`, or `()` for none."""

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        reader.dictionary(draft)
        if cursor.accept("("):
            cursor.expect(")")
            draft.operand_types = []
            return
        Operands(0, True, False).read(reader, draft)
        cursor.expect(":")
        read_pairwise(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        head = writer.dictionary(op, ())
        if not op.operands:
            return f"{head}()"
        return f"{head} {', '.join(map(writer.name, op.operands))} : {show_row(writer, op)}"


class _Slice:
    """`%0 [0:4, 1:8:2] : …`"""

    NAMES = ("start_indices", "limit_indices", "strides")

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands.append(reader.operand())
        ranges = []
        for _ in cursor.read_list("[", "]"):
            start = cursor.integer()
            cursor.expect(":")
            limit = cursor.integer()
            ranges.append((start, limit, cursor.integer() if cursor.accept(":") else 1))
        for i, name in enumerate(self.NAMES):
            draft.attrs[name] = DenseArray(i64, tuple(each[i] for each in ranges))
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        bounds = zip(*(op.attrs[name] for name in self.NAMES), strict=True)
        ranges = ", ".join(
            f"{start}:{limit}" + (f":{stride}" if stride != 1 else "") for start, limit, stride in bounds
        )
        head = f" {writer.name(op.operands[0])} [{ranges}]{writer.dictionary(op, self.NAMES)}"
        return f"{head} : {writer.function_type(op)}"


class _ReducePrecision:
    """`%0, format = e5m10 : …`"""

    NAMES = ("exponent_bits", "mantissa_bits")
    WORD = re.compile(r"e([0-9]{1,9})m([0-9]{1,9})", re.ASCII)

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands.append(reader.operand())
        for literal in (",", "format", "="):
            cursor.expect(literal)
        start = cursor.start
        match = self.WORD.fullmatch(cursor.word())
        if match is None:
            cursor.fail("unexpected text", at=start, expected="a format such as e5m10")
        for name, digits in zip(self.NAMES, match.groups(), strict=True):
            draft.attrs[name] = Int(int(digits), dtype("i32"))
        reader.dictionary(draft)
        cursor.expect(":")
        read_same(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        exponent, mantissa = (op.attrs[name] for name in self.NAMES)
        head = f" {writer.name(op.operands[0])}, format = e{exponent}m{mantissa}{writer.dictionary(op, self.NAMES)}"
        return f"{head} : {show_same(writer, op)}"


class _DotGeneral:
    """`%0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : …`"""

    NAMES = ("dot_dimension_numbers", "precision_config", "algorithm")

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands.append(reader.operand())
        cursor.expect(",")
        draft.operands.append(reader.operand())
        numbers: dict[str, Sequence[Any]] = {}
        while cursor.accept(","):
            start, word = cursor.start, cursor.word()
            cursor.expect("=")
            if word in numbers or _DOT_PARTS.get(word, "") in draft.attrs:
                cursor.fail("given twice", at=start, got=word)
            if word in ("batching_dims", "contracting_dims"):
                left = read_list(reader).values
                cursor.expect("x")
                numbers[word] = (left, read_list(reader).values)
            elif word == "precision":
                draft.attrs["precision_config"] = PRECISION.write(read_list(reader, words=True))
            elif word == "algorithm":
                draft.attrs["algorithm"] = DialectAttr("stablehlo", "dot_algorithm", cursor.read_balanced())
            else:
                cursor.fail("unexpected text", at=start, expected="contracting_dims, precision or algorithm")
        if "contracting_dims" not in numbers:
            cursor.fail("unexpected text", expected="contracting_dims = [] x []")
        draft.attrs["dot_dimension_numbers"] = DialectAttr("stablehlo", "dot", _dot_body(numbers))
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        dims = op.attrs["dot_dimension_numbers"]
        text = f" {writer.name(op.operands[0])}, {writer.name(op.operands[1])}"
        if dims.lhs_batching_dimensions or dims.rhs_batching_dimensions:
            text += f", batching_dims = {bracket(dims.lhs_batching_dimensions)} x "
            text += bracket(dims.rhs_batching_dimensions)
        text += f", contracting_dims = {bracket(dims.lhs_contracting_dimensions)} x "
        text += bracket(dims.rhs_contracting_dimensions)
        if is_printed(op, definition, "precision_config"):
            text += f", precision = [{', '.join(op.attrs['precision_config'])}]"
        if is_printed(op, definition, "algorithm"):
            text += f", algorithm = <{definition.by_name['algorithm'].kind.write(op.attrs['algorithm']).body}>"
        return f"{text}{writer.dictionary(op, self.NAMES)} : {writer.function_type(op)}"


_DOT_PARTS = {"precision": "precision_config", "algorithm": "algorithm"}


def _dot_body(numbers: dict[str, Sequence[Any]]) -> str:
    fields = []
    for word, name in (("batching_dims", "batching"), ("contracting_dims", "contracting")):
        for side, values in zip(("lhs", "rhs"), numbers.get(word, ((), ())), strict=True):
            fields.append(f"{side}_{name}_dimensions = {bracket(values)}")
    return ", ".join(fields)


class _Convolution:
    """`(%0, %1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[0, 0]]} {…} : …`"""

    WINDOW = (
        ("stride", "window_strides"),
        ("pad", "padding"),
        ("lhs_dilate", "lhs_dilation"),
        ("rhs_dilate", "rhs_dilation"),
        ("reverse", "window_reversal"),
    )
    NAMES = ("dimension_numbers", *(name for _, name in WINDOW))

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        cursor.expect("(")
        Operands(0, True, False).read(reader, draft)
        for literal in (")", "dim_numbers", "="):
            cursor.expect(literal)
        start = cursor.start
        cursor.read_balanced()
        cursor.expect("x")
        cursor.read_balanced()
        cursor.expect("->")
        cursor.read_balanced()
        draft.attrs["dimension_numbers"] = DialectAttr("stablehlo", "conv", cursor.since(start))
        for literal in (",", "window", "="):
            cursor.expect(literal)
        names = dict(self.WINDOW)
        for _ in cursor.read_list("{", "}"):
            start, word = cursor.start, cursor.word()
            name = names.get(word)
            if name is None or name in draft.attrs:
                cursor.fail("unexpected text", at=start, expected="one of " + ", ".join(names))
            cursor.expect("=")
            draft.attrs[name] = self._window_value(reader, word)
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)

    def _window_value(self, reader: Reader, word: str) -> Any:
        cursor = reader.cursor
        if word == "reverse":
            return DenseArray(dtype("i1"), tuple([_truth(cursor) for _ in cursor.read_list("[", "]")]))
        if word != "pad":
            return read_list(reader)
        start = cursor.start
        rows = [read_list(reader).values for _ in cursor.read_list("[", "]")]
        if any(len(row) != 2 or any(abs(n) >= 1 << 63 for n in row) for row in rows):
            cursor.fail("unexpected padding", at=start, expected="[[low, high], …]", got=rows)
        return Constant.of(np.array(rows, np.int64).reshape(len(rows), 2), i64)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        window = []
        for word, name in self.WINDOW:
            if is_printed(op, definition, name):
                window.append(f"{word} = {self._show_window(word, op.attrs[name])}")
        operands = ", ".join(map(writer.name, op.operands))
        dims = print_conv_dims(op.attrs["dimension_numbers"])
        head = f"({operands}) dim_numbers = {dims}, window = {{{', '.join(window)}}}"
        return f"{head}{writer.dictionary(op, self.NAMES)} : {writer.function_type(op)}"

    @staticmethod
    def _show_window(word: str, value: Sequence[Any]) -> str:
        if word == "reverse":
            return "[" + ", ".join("true" if each else "false" for each in value) + "]"
        if word == "pad":
            return "[" + ", ".join(bracket(row) for row in value) + "]"
        return bracket(value)


def _truth(cursor: Cursor) -> bool:
    if cursor.token in ("true", "false") and cursor.kind == ID:
        return cursor.advance() == "true"
    return bool(cursor.integer())


class _Reduce:
    """`(%0 init: %1) applies stablehlo.add across dimensions = [0] : …`, or with `reducer(…) {…}` at the end."""

    COMMUTATIVE = frozenset(
        f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor")
    )

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        inits: list[Value] = []
        while cursor.accept("("):
            draft.operands.append(reader.operand())
            cursor.expect("init")
            cursor.expect(":")
            inits.append(reader.operand())
            cursor.expect(")")
            if not cursor.accept(","):
                break
        inputs = len(inits)
        draft.operands += inits
        inner = ""
        if cursor.accept("applies"):
            start = cursor.start
            inner = cursor.string() if cursor.kind == STRING else cursor.word()
            if inner not in self.COMMUTATIVE or inputs != 1:
                cursor.fail("unexpected reduction", at=start, expected="one commutative op of two operands", got=inner)
        for literal in ("across", "dimensions", "="):
            cursor.expect(literal)
        draft.attrs["dimensions"] = read_list(reader)
        reader.dictionary(draft)
        cursor.expect(":")
        read_function(reader, draft)
        if inner:
            first = draft.operands[0].type
            scalar = Shape.of(first.dtype, ()) if isinstance(first, Shape) else first
            draft.regions.append(reader.one_op_region(draft, inner, [scalar, scalar]))
            return
        cursor.expect("reducer")
        args, accumulators = [], []
        while cursor.accept("("):
            args.append(reader.argument())
            cursor.expect(",")
            accumulators.append(reader.argument())
            cursor.expect(")")
        draft.regions.append(reader.region(draft, [*args, *accumulators]))

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        half = len(op.operands) // 2
        pairs = zip(op.operands[:half], op.operands[half:], strict=False)
        text = ", ".join(f"({writer.name(value)} init: {writer.name(init)})" for value, init in pairs)
        inner = self._inner(op)
        if inner:
            text += f" applies {inner}"
        text += f" across dimensions = {bracket(op.attrs['dimensions'])}{writer.dictionary(op, ('dimensions',))}"
        text += f" : {writer.function_type(op)}"
        if inner:
            return text
        body = op.regions[0]
        writer.enter(body)
        count = len(body.args) // 2
        args = zip(body.args[:count], body.args[count:], strict=False)
        reducer = " ".join(f"({writer.argument(value)}, {writer.argument(accumulator)})" for value, accumulator in args)
        return f"{text}{writer.newline()} reducer{reducer}  {writer.region(body, args=False)}"

    def _inner(self, op: Op) -> str:
        """The op that the body consists of, where the short form says it all."""
        body = op.regions[0]
        if len(body.ops) != 1 or len(op.operands) != 2 or not isinstance(op.operands[0].type, Shape):
            return ""
        inner, scalar = body.ops[0], Shape.of(op.operands[0].type.dtype, ())
        plain = inner.name in self.COMMUTATIVE and inner.operands == body.args and body.results == inner.results
        types = [value.type for value in (*body.args, *inner.results)]
        return inner.name if plain and not inner.attrs and all(type == scalar for type in types) else ""


class _While:
    """`(%iter = %0, …) : types cond {…} do {…}`"""

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        names = []
        for _ in cursor.read_list("(", ")"):
            names.append(cursor.expect_kind(VALUE, "%name"))
            cursor.expect("=")
            draft.operands.append(reader.operand())
        draft.operand_types = []
        if names:
            cursor.expect(":")
            read_pairwise(reader, draft)
        if cursor.accept("attributes"):
            reader.dictionary(draft)
        args = list(zip(names, draft.results, strict=True))
        for word in ("cond", "do"):
            cursor.expect(word)
            draft.regions.append(reader.region(draft, args))

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        cond, body = op.regions
        writer.enter(body, cond)
        args = zip(body.args, op.operands, strict=True)
        text = "(" + ", ".join(f"{writer.name(arg)} = {writer.name(operand)}" for arg, operand in args) + ")"
        if op.operands:
            text += f" : {show_row(writer, op)}"
        text += writer.dictionary(op, (), "attributes ")
        head = f"{text}{writer.newline()}cond {writer.region(cond, args=False)}"
        return f"{head} do {writer.region(body, args=False)}"


class _Scan:
    """`(%0) inits (%1) dimension=0 attributes {…} {…} : …`"""

    SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
    NAMES = ("dimension", *SEGMENTS)

    def read(self, reader: Reader, draft: Draft) -> None:
        cursor = reader.cursor
        draft.operands += [reader.operand() for _ in cursor.read_list("(", ")")]
        inputs = len(draft.operands)
        cursor.expect("inits")
        draft.operands += [reader.operand() for _ in cursor.read_list("(", ")")]
        cursor.expect("dimension")
        cursor.expect("=")
        draft.attrs["dimension"] = Int(cursor.integer())
        if cursor.accept("attributes"):
            reader.dictionary(draft)
        draft.regions.append(reader.region(draft))
        cursor.expect(":")
        read_function(reader, draft)
        inits = len(draft.operands) - inputs
        counts = ((inputs, inits), (len(draft.results) - inits, inits))
        for name, sizes in zip(self.SEGMENTS, counts, strict=True):
            draft.attrs[name] = DenseArray(dtype("i32"), sizes)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        count, _ = scan_counts(op)
        writer.enter(op.regions[0])
        inputs = ", ".join(map(writer.name, op.operands[:count]))
        inits = ", ".join(map(writer.name, op.operands[count:]))
        attrs = writer.dictionary(op, self.NAMES, "attributes ")
        text = f"({inputs}) inits ({inits}) dimension={op.attrs['dimension']}{attrs}"
        return f"{text} {writer.region(op.regions[0], args=True)} : {writer.function_type(op)}"


class _Sharded:
    """`%0 <@mesh, [{"x"}]> : type`"""

    def read(self, reader: Reader, draft: Draft) -> None:
        draft.operands.append(reader.operand())
        draft.attrs["sharding"] = DialectAttr("sdy", "sharding", reader.cursor.read_balanced())
        reader.dictionary(draft)
        reader.cursor.expect(":")
        read_same(reader, draft)

    def show(self, writer: Writer, op: Op, definition: OpDef) -> str:
        sharding = op.attrs["sharding"]
        if not isinstance(sharding, DialectAttr):
            return writer.generic(op)
        head = f" {writer.name(op.operands[0])} <{sharding.body}>{writer.dictionary(op, ('sharding',))}"
        return f"{head} : {show_same(writer, op)}"


def _elementwise(row: OpDef) -> Line:
    """`stablehlo.add %x, %y : type`: the format of an elementwise op that has none of its own below."""
    operands = " , ".join("%" for _ in row.operands.split())
    types = ":function" if ".broadcast_" in row.name else ":same" if row.dialect == "stablehlo" else ":arrow"
    return Line(f"{operands} {{}} {types}")


FORMATS: dict[str, Part] = {
    **{
        name: _elementwise(row)
        for name, row in OPS.items()
        if row.elementwise and row.dialect in ("stablehlo", "chlo") and name != "chlo.constant_like"
    },
    "chlo.constant": _ConstantFormat(),
    "chlo.scan": _Scan(),
    "chlo.top_k": Line("( % , k = $k ) {} :arrow"),
    "stablehlo.after_all": Line("%* {} :same"),
    "stablehlo.bitcast_convert": Line("%* {} :function"),
    "stablehlo.broadcast": Line("% , sizes = $broadcast_sizes {} :function"),
    "stablehlo.broadcast_in_dim": Line("% , dims = $broadcast_dimensions {} :function"),
    "stablehlo.cholesky": Line("% (?lower , lower = $lower ?) {} :same"),
    "stablehlo.clamp": Line("% , % , % {} :same"),
    "stablehlo.compare": Line("$comparison_direction , % , % (?compare_type , $compare_type ?) {} :function"),
    "stablehlo.complex": Line("% , % {} :complex"),
    "stablehlo.composite": Line("$name %* {} :function"),
    "stablehlo.concatenate": Line("%*, dim = $dimension {} :function"),
    "stablehlo.constant": _ConstantFormat(),
    "stablehlo.convolution": _Convolution(),
    "stablehlo.create_token": Line("{} :result"),
    "stablehlo.custom_call": Line("@call_target_name ( %* ) {} :function"),
    "stablehlo.dot": Line("% , % (?precision_config , precision = $precision_config ?) {} :function"),
    "stablehlo.dot_general": _DotGeneral(),
    "stablehlo.dynamic_broadcast_in_dim": Line("% , % , dims = $broadcast_dimensions {} :function"),
    "stablehlo.dynamic_iota": Line("% , dim = $iota_dimension {} :function"),
    "stablehlo.dynamic_pad": Line("%* {} :function"),
    "stablehlo.dynamic_reshape": Line("%* {} :function"),
    "stablehlo.dynamic_slice": Line("% , %*, sizes = $slice_sizes {} :function"),
    "stablehlo.dynamic_update_slice": Line("%* {} :function"),
    "stablehlo.einsum": Line("% , % , config = $einsum_config {} :function"),
    "stablehlo.fft": Line("% , type = $fft_type , length = $fft_length {} :function"),
    "stablehlo.get_dimension_size": Line("% , dim = $dimension {} :function"),
    "stablehlo.get_tuple_element": Line("% [ $index ] {} :function"),
    "stablehlo.iota": Line("dim = $iota_dimension {} :result"),
    "stablehlo.is_finite": Line("% {} :function"),
    "stablehlo.optimization_barrier": _OptionalOperands(),
    "stablehlo.pad": Line(
        "% , % , low = $edge_padding_low , high = $edge_padding_high , interior = $interior_padding {} :function"
    ),
    "stablehlo.partition_id": Line("{} :result"),
    "stablehlo.real_dynamic_slice": Line("%* {} :function"),
    "stablehlo.reduce": _Reduce(),
    "stablehlo.reduce_precision": _ReducePrecision(),
    "stablehlo.replica_id": Line("{} :result"),
    "stablehlo.reshape": Line("%* {} :function"),
    "stablehlo.reverse": Line("% , dims = $dimensions {} :same"),
    "stablehlo.rng": Line("% , % , % , distribution = $rng_distribution {} :function"),
    "stablehlo.rng_bit_generator": Line("% , algorithm = $rng_algorithm {} :function"),
    "stablehlo.select": Line("% , % , % {} :select"),
    "stablehlo.set_dimension_size": Line("% , % , dim = $dimension {} :function"),
    "stablehlo.slice": _Slice(),
    "stablehlo.transpose": Line("% , dims = $permutation {} :function"),
    "stablehlo.tuple": Line("%* {} :tuple"),
    "stablehlo.unary_einsum": Line("% , config = $einsum_config {} :function"),
    "stablehlo.while": _While(),
    "func.call": Line("@callee ( %* ) {} :function"),
    "check.expect_eq": Line("% , % {} :operand"),
    "check.expect_eq_const": Line("% , $value {}"),
    "check.expect_almost_eq": Line("% , % (?tolerance , tolerance = $tolerance ?) {} :operand"),
    "check.expect_almost_eq_const": Line("% , $value {}"),
    "check.expect_close": Line(
        "% , % (?max_ulp_difference , max_ulp_difference = $max_ulp_difference ?) "
        "(?min_ulp_difference , min_ulp_difference = $min_ulp_difference ?) {} :operands"
    ),
    "check.expect_serialized_eq": Line(
        "% , probe_id = $probe_id (?iter , iter = $iter ?) (?iteration , iteration = $iteration ?) {} :operand"
    ),
    "interpreter.print": Line("% {} :operand"),
    "interpreter.probe": Line("% , probe_id = $probe_id {} :same"),
    "sdy.propagation_barrier": Line("% allowed_direction = $allowed_direction {} :same"),
    "sdy.reshard": _Sharded(),
    "sdy.sharding_constraint": _Sharded(),
    "sdy.sharding_group": Line("% group_id = $group_id {} :operand"),
}
