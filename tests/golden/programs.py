"""Small programs for every kernel family, attribute and element type, whose generated source `test_source.py` keeps.

Programs are drawn with seeds of their own: nothing here depends on the seed of a test run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from smelt.dtype import DTYPES, dtype
from smelt.errors import SmeltError
from smelt.ir.attributes import DotDims, GatherDims, RaggedDotDims
from smelt.ir.blocks import BLOCKS
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.ops import OPS
from smelt.ir.ops.window import window_count
from smelt.ir.text import parse
from smelt.kernel.loops.fold import identity
from smelt.kernel.math import FORMS
from smelt.passes.lower_blocks import round_activations
from smelt.shape import Shape
from smelt.target import Target, tile_shape
from tests.cuda.test_emulated import bf16_product
from tests.property import test_attention as attention
from tests.property.models import MODELS
from tests.property.problems import KINDS, draw, edges
from tests.unit.ir.test_paged_attention_op import CASES as PAGED
from tests.unit.ir.test_paged_attention_op import program as paged
from tests.unit.kernel import test_control_kernels as control
from tests.unit.kernel import test_data_dependent_sizes as sizes_from_data
from tests.unit.kernel.agreement import ELEMENTS, combine
from tests.unit.kernel.test_block_dot import lookups
from tests.unit.kernel.test_block_dot import product as block_product
from tests.unit.kernel.test_gather_scatter import Windows, overwrite
from tests.unit.kernel.test_linalg_kernels import EINSUMS, SIZES
from tests.unit.kernel.test_quantise_kernels import spelled_out
from tests.unit.kernel.test_random_kernels import rng
from tests.unit.kernel.test_small_sizes import CASES as SMALL
from tests.unit.kernel.test_window_kernels import pick_larger, random_window
from tests.unit.kernel.test_winograd import program as winograd

Made = Iterator[tuple[str, Program]]
FLOATS = ("f32", "f64", "complex<f32>", "complex<f64>", "bf16")


def of(f: FuncBuilder, *results: Value) -> Program:
    return Program.of(f.func(*results))


def drawn(target: Target) -> Made:
    for kind, i in product(KINDS, range(8)):
        yield f"{kind} {i}", draw(kind, np.random.default_rng([i, *kind.encode()])).make(False)
    yield from ((each.name, each.make(False)) for each in edges())
    yield from ((f"small sizes: {name}", program) for name, program in SMALL.items())


def models(target: Target) -> Made:
    for name, model in MODELS.items():
        yield f"model {name}, dynamic", model.dynamic_program()
        yield f"model {name}, {model.tried[0]}", model.program(model.tried[0])
    yield "winograd", winograd(1, (24, 20), 64, 48)


def attentions(target: Target) -> Made:
    for i in range(16):
        yield f"attention {i}", attention.draw(np.random.default_rng([9, i])).program()
    for name, case in PAGED.items():
        yield f"paged attention: {name}", paged(case, tile_shape(target).columns)


def products(target: Target) -> Made:
    for name, row in BLOCKS.items():
        yield f"{name}", round_activations(block_product(row, 2, 40))
    few = [BLOCKS[name] for name in ("q4_1", "q6_k", "mxfp4")]
    dims = GatherDims((1,), (0,), (), (), (0,), 1)
    for row in few:
        yield f"{row.name}, groups", round_activations(block_product(row, 1, 20, 2))
        yield f"{row.name}, rows", round_activations(lookups(dims, (1, 2 * row.length), row, row is few[0]))
    for left, rows in product(("bf16", "f32"), ("?", "5", "200")):
        yield f"bf16 weights, {rows} rows of {left}", parse(bf16_product(rows, 96, 300, left))
    numbers = DotDims((), (), (1,), (0,))
    for case in ("i8,i8", "i8,i32", "ui8,f32", "bf16,bf16", "f16,f32", "i1,i1", "i4,i16", "complex<f32>,complex<f32>"):
        left, result = case.split(",")
        f = FuncBuilder("main", [Shape(left, "B", 200), Shape(left, 200, 2)])
        shape = Shape(result, "B", 2)
        yield f"matmul {case}", of(f, f.dot_general(*f.args, dot_dimension_numbers=numbers, result=shape))
    a, b, sizes = Shape("f32", 11, 5), Shape("f32", 3, 5, 7), Shape("i32", 3)
    c, d, more = Shape("f64", 2, 4, 9), Shape("f64", 2, 9, 3), Shape("i64", 2, 3)
    for name, each, shapes in (
        ("rows", RaggedDotDims((), (), (1,), (1,), (0,), (0,)), [a, b, sizes]),
        ("sums", RaggedDotDims((0,), (0,), (2,), (1,), (2,), ()), [c, d, more]),
    ):
        f = FuncBuilder("main", shapes)
        yield f"ragged {name}", of(f, f.op("chlo.ragged_dot", *f.args, ragged_dot_dimension_numbers=each).result)


def transforms(target: Target) -> Made:
    for kind, lengths in product(("FFT", "IFFT", "RFFT", "IRFFT"), ((1,), (2,), (5,), (17,), (60,), (67,), (3, 10))):
        last = lengths[-1] // 2 + 1 if kind == "IRFFT" else lengths[-1]
        element = "f32" if kind == "RFFT" else "complex<f32>" if len(lengths) > 1 else "complex<f64>"
        f = FuncBuilder("main", [Shape(element, 3, *lengths[:-1], last)])
        yield f"{kind} of {lengths}", of(f, f.fft(*f.args, fft_type=kind, fft_length=lengths))
    for kind in ("FFT", "IFFT"):
        f = FuncBuilder("main", [Shape("complex<f64>", "B", "N", 3)])
        yield f"{kind}, dynamic", of(f, f.fft(*f.args, fft_type=kind, fft_length=(8, 3)))


def matrices(target: Target) -> Made:
    for element, lower in product(FLOATS, (True, False)):
        f = FuncBuilder("main", [Shape(element, "B", "N", "N")])
        yield f"cholesky of {element}, lower {lower}", of(f, f.cholesky(*f.args, lower=lower))
    for element, left, transpose in product(FLOATS[:4], (True, False), ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")):
        f = FuncBuilder("main", [Shape(element, 2, 5, 5), Shape(element, 2, *((5, "M") if left else ("M", 5)))])
        every = [
            f.triangular_solve(*f.args, left_side=left, lower=lower, unit_diagonal=unit, transpose_a=transpose)
            for lower, unit in product((True, False), (True, False))
        ]
        yield f"triangular solve of {element}, left {left}, {transpose}", of(f, *every)


def randoms(target: Target) -> Made:
    for algorithm, element in product(("THREE_FRY", "PHILOX", "DEFAULT"), ("i4", "ui8", "f16", "ui32", "f32", "i64")):
        f = FuncBuilder("main", [Shape("ui64", 2), Shape("i1", "A", "B")])
        sizes = (f.args[1].shape.sizes, (3, 5), (4,), ())
        types = [[Shape("ui64", 2), Shape.of(dtype(element), each)] for each in sizes]
        results = [f.rng_bit_generator(f.args[0], rng_algorithm=algorithm, result=each) for each in types]
        yield f"{algorithm} of {element}", of(f, *(value for pair in results for value in pair))
    for element, how in product(("f32", "f64", "bf16", "i8", "i64", "ui32", "i1"), ("UNIFORM", "NORMAL")):
        if how == "UNIFORM" or element in ("f32", "f64"):
            f = FuncBuilder("main", [Shape(element), Shape(element)])
            yield f"rng {how} of {element}", of(f, *(rng(f, f.args[0], f.args[1], each, how) for each in ((3, 5), ())))


def indexed(target: Target) -> Made:
    for i in range(24):
        random = np.random.default_rng([3, i])
        each, kind = Windows.draw(random), ("i32", "i64", "ui32", "ui64")[i % 4]
        f = FuncBuilder("main", [Shape("f32", *each.operand), Shape(kind, *each.indices), Shape("f32", *each.result)])
        operand, indices, update = f.args
        body = overwrite(f, "f32") if i % 2 else combine(f, "add", "f32")
        yield (
            f"gather and scatter {i}",
            of(
                f,
                f.gather(operand, indices, dimension_numbers=each.dims, slice_sizes=tuple(each.slices)),
                f.scatter(operand, indices, update, scatter_dimension_numbers=each.scatter, regions=[body]),
            ),
        )
    shapes: list[tuple[Any, ...]] = [(4, 5, 3), (4, 6)]
    for dim, batch in ((1, 0), (-2, 0), (2, 1), (-1, 1), (-1, -2), (1, 1)):
        f = FuncBuilder("main", [Shape("f32", *shapes[0]), Shape("i32", *shapes[1])])
        yield f"torch_index_select {dim}, {batch}", of(f, f.torch_index_select(*f.args, dim=dim, batch_dims=batch))
    numbers = Shape("i64", 2)
    f = FuncBuilder("main", [Shape("f32", 4, 5), Shape("f32"), *[numbers] * 7])
    x, filler, low, high, interior, starts, ends, strides, shape = f.args
    yield (
        "numbers that data gives",
        of(
            f,
            f.op("stablehlo.dynamic_pad", x, filler, low, high, interior, result=Shape("f32", 6, 4)).result,
            f.op("stablehlo.real_dynamic_slice", x, starts, ends, strides, result=Shape("f32", 2, 2)).result,
            f.op("stablehlo.dynamic_iota", shape, iota_dimension=1, result=Shape("i32", 4, 3)).result,
        ),
    )


def windows(target: Target) -> Made:
    for i in range(24):
        random = np.random.default_rng([4, i])
        rank, name = int(random.integers(1, 4)), ("add", "maximum", "multiply")[i % 3]
        sizes = [int(each) for each in random.integers(0 if i % 5 == 0 else 1, 7, rank)]
        f = FuncBuilder("main", [Shape("f32", *sizes), Shape("f32")])
        window: Any = random_window(random, rank, i % 2 == 0)
        yield f"window {i}", of(f, f.reduce_window(*f.args, regions=[combine(f, name, "f32")], **window))
    for element, name in product(("f32", "bf16", "i32"), ("add", "maximum", "multiply")):
        f = FuncBuilder("main", [Shape(element, 3, 20, 2), Shape(element, "B", 2, "H", "W")])
        results = []
        for edge, first in product(((19, 0), (0, 19)), (identity(name, dtype(element)).value, 1)):
            window = {"window_dimensions": (1, 20, 1), "padding": ((0, 0), edge, (0, 0))}
            body = [combine(f, name, element)]
            results.append(f.reduce_window(f.args[0], f.constant(first, element), regions=body, **window))
        pool: Any = {"window_dimensions": (1, 1, 3, 3), "window_strides": (1, 1, 2, 2)}
        start = f.constant(identity(name, dtype(element)).value, element)
        edges = ((0, 0), (0, 0), (1, 1), (1, 1))
        results.append(f.reduce_window(f.args[1], start, padding=edges, regions=[combine(f, name, element)], **pool))
        yield f"running {name} and pool of {element}", of(f, *results)
    forms = [
        ((2, 2), (2, 2), ((0, 0), (0, 0)), (6, 4)),
        ((3, 2), (1, 2), ((1, 1), (0, 1)), (5, 5)),
        ((2, 2), (1, 1), ((2, 2), (3, 0)), (3, 1)),
        ((2, 3, 1), (1, 2, 1), ((2, 2), (0, 1), (0, 0)), (4, 5, 70)),
    ]
    for (size, strides, padding, shape), (direction, name) in product(forms, (("GE", "add"), ("LT", "subtract"))):
        counts = [
            window_count(length, edge, 1, taps, 1, stride)
            for length, edge, taps, stride in zip(shape, padding, size, strides, strict=True)
        ]
        f = FuncBuilder("main", [Shape("f32", *shape), Shape("f32", *counts), Shape("f32")])
        with f.region(Shape("f32"), Shape("f32")) as r:
            r.result(r.compare(*r.args, comparison_direction=direction))
        made = f.select_and_scatter(
            *f.args, window_dimensions=size, window_strides=strides, padding=padding,
            regions=[r.body, combine(f, name, "f32")],
        )  # fmt: skip
        yield f"select and {name}, {size} of {shape}", of(f, made)


def rows(target: Target) -> Made:
    for element in ELEMENTS:
        real = not element.startswith("complex")
        f = FuncBuilder("main", [Shape(element, "A", "B"), Shape("i32", "A", "B"), Shape(element), Shape("i32")])
        if real:
            every = [f.reduce(*f.args, dimensions=d, regions=[pick_larger(f, element)]) for d in ((1,), (0,), (1, 0))]
            yield f"largest of {element}", of(f, *(value for pair in every for value in pair))
            kind = "TOTALORDER" if dtype(element).is_float else None
            with f.region(Shape(element), Shape(element), Shape("i32"), Shape("i32")) as r:
                r.result(r.compare(r.args[0], r.args[1], comparison_direction="LT", compare_type=kind))
            yield f"sort of {element}", of(f, *f.sort(*f.args[:2], dimension=0, is_stable=True, regions=[r.body]))
        names = ("and", "or", "xor") if element == "i1" else ("add", "multiply", *(["maximum", "minimum"] * real))
        f = FuncBuilder("main", [Shape(element, "A", 40, 7), Shape(element)])
        sums = [
            f.reduce(*f.args, dimensions=d, regions=[combine(f, name, element)])
            for name, d in product(names, ((0,), (1,), (2,), (0, 2)))
        ]
        yield f"reductions of {element}", of(f, *sums)
    for k in (0, 1, 32, 33):
        f = FuncBuilder("main", [Shape(element, "B", "N") for element in ("f32", "bf16", "i8", "ui64")])
        yield f"top {k}", of(f, *(value for arg in f.args for value in f.op("chlo.top_k", arg, k=k).results))

    for length in (5000, 20000):
        f = FuncBuilder("main", [Shape("f32", 3, length), Shape("i32", 3, length), Shape("f32"), Shape("i32")])
        yield f"largest of {length}", of(f, *f.reduce(*f.args, dimensions=(1,), regions=[pick_larger(f, "f32")]))
    for back, dimension in product((True, False), (0, 1)):
        f = FuncBuilder("main", [Shape("f32", "A", 5), Shape("f32", *(("A",) if dimension else (5,)))])
        with f.region(Shape("f32", *f.args[1].shape.sizes), Shape("f32", *f.args[1].shape.sizes)) as r:
            total = r.add(*r.args)
            r.result(r.negate(total), total)
        made = f.op("chlo.scan", *f.args, dimension=dimension, is_reverse=back, regions=[r.body])
        yield f"scan along {dimension}, back {back}", of(f, *made.results)


def loops(target: Target) -> Made:
    for name, body in control.BODIES.items():
        end = "return %r#0, %r#1, %r#2, %w : tensor<i32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>"
        yield f"loop: {name}", parse(control.LOOP.format(results=f"{control.THREE}, tensor<3xf32>", body=body, end=end))
    for name in ("NESTED", "CASE", "TOKENS", "SAME", "TUPLES", "SPLATS"):
        yield f"control: {name.lower()}", parse(getattr(control, name))
    for name in ("IOTA", "SLICE", "RESHAPE", "STRETCH", "CHOICE"):
        yield f"sizes from data: {name.lower()}", parse(getattr(sizes_from_data, name))
    yield "growing", sizes_from_data.growing(("E", "F"))


def converted(target: Target) -> Made:
    """Every type as every other, and as bits where the sizes allow."""
    types = [each for each in DTYPES.values() if each.name not in ("index", "token")]
    for source in types:
        f = FuncBuilder("main", [Shape.of(source, (5,))])
        yield f"convert {source}", of(f, *(f.convert(*f.args, result=Shape.of(to, (5,))) for to in types))


def scalars(target: Target) -> Made:
    """Elementwise ops of one, two and three operands on every type that they take."""
    for name in sorted({function for function, _ in FORMS}):
        types = [
            each for each in DTYPES.values() if each.name != "index" and (not each.is_complex or name != "remainder")
        ]
        definition = next((each for each in (f"stablehlo.{name}", f"chlo.{name}") if each in OPS), None)
        f = FuncBuilder("main", [Shape.of(element, (7,)) for element in types for _ in range(3)])
        results: list[Value] = []
        for i, count in product(range(len(types)), (1, 2, 3) if definition else ()):
            try:
                results += f.op(str(definition), *f.args[3 * i : 3 * i + count]).results
            except SmeltError:
                continue  # another type or number of operands, or an attribute is missing
        if results:
            yield f"{name}, {len(results)} times", of(f, *results)


def attributes(target: Target) -> Made:
    """Elementwise ops with attributes, and those that look at constants."""
    real = [each for each in DTYPES.values() if not each.is_complex and each.name != "index"]
    for element in real:
        f = FuncBuilder("main", [Shape.of(element, (5,))] * 2)
        kinds = (None, "TOTALORDER") if element.is_float else (None,)
        every = [
            f.compare(*f.args, comparison_direction=direction, compare_type=kind)
            for kind, direction in product(kinds, ("EQ", "NE", "GE", "GT", "LE", "LT"))
        ]
        if element.is_float:
            bits = ((5, 10), (8, 7), (2, 1), (11, 52), (4, 3))
            every += [f.reduce_precision(f.args[0], exponent_bits=e, mantissa_bits=m) for e, m in bits]
            every += [f.power(f.args[0], f.full(each, f.args[0].shape)) for each in (0.5, 1, 2, 3, 4, -1)]
        else:
            every += [f.divide(f.args[0], f.full(each, f.args[0].shape)) for each in (1, 0) if element.bits > 1]
        yield f"attributes of {element}", of(f, *every)
    for source, to in product(("i4", "ui8", "f16", "i32", "f32", "f64", "complex<f32>", "complex<f64>"), repeat=2):
        a, b = dtype(source), dtype(to)
        if a.is_complex != b.is_complex:
            continue
        sizes: tuple[Any, ...] = ("N", b.bits // a.bits) if b.bits > a.bits else ("N",)
        f = FuncBuilder("main", [Shape(source, *sizes)])
        result = Shape(to, "N", *((a.bits // b.bits,) if b.bits < a.bits else ()))
        yield f"bits of {source} as {to}", of(f, f.bitcast_convert(*f.args, result=result))
    f = FuncBuilder("main", [Shape("f32", 9)])
    points = product((0.25, 0.0123, 7.5), (("ui8", 0), ("ui8", 131), ("i8", -5)))
    yield "as bytes", of(f, *(spelled_out(f, f.args[0], scale, zero, kind) for scale, (kind, zero) in points))
    for i, config in enumerate(EINSUMS):
        terms = config.partition("->")[0].replace("...", ".").split(",")
        for kind in ("f32", "i32", "complex<f64>"):
            f = FuncBuilder("main", [Shape(kind, *(SIZES[label] for label in term)) for term in terms])
            name = "stablehlo.einsum" if len(terms) == 2 else "stablehlo.unary_einsum"
            yield f"einsum {i} of {kind}", of(f, f.op(name, *f.args, einsum_config=config).result)


FAMILIES: tuple[Callable[[Target], Made], ...] = (
    drawn, models, attentions, products, transforms, matrices, randoms, indexed, windows, rows, loops, converted,
    scalars, attributes,
)  # fmt: skip
BY_TILE = (models, attentions, products)  # those that call micro-kernels
