"""The typed interface of the builders is the op table's, and it is right about results."""

from collections import defaultdict

import pytest

from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import walk
from smelt.ir.text import parse
from smelt.shape import Shape
from tests import builder_stub
from tests.hostile.samples import SAMPLES


def test_the_stub_is_fresh():
    assert builder_stub.FILE.read_text() == builder_stub.stub(), "run python -m tests.builder_stub"


def test_methods_promise_the_number_of_results_that_ops_have():
    seen = defaultdict(set)
    for text in SAMPLES.values():
        for func in parse(text).funcs.values():
            for op in walk(func.body):
                seen[op.name.removeprefix("stablehlo.")].add((len(op.operands), len(op.results)))
    for name, counts in seen.items():
        if name in builder_stub.VARIADIC:
            alone = builder_stub.ALONE.get(name)
            assert all(results == 1 for operands, results in counts if operands == alone), name
        else:
            assert {results for _, results in counts} == {builder_stub.COUNTS.get(name, 1)} or "." in name, name


def test_a_method_refuses_an_attribute_that_is_missing():
    f = FuncBuilder("main", [Shape("f32", 2, 3)])
    with pytest.raises(VerifyError, match="attribute 'permutation' is missing"):
        f.transpose(*f.args)  # type: ignore[call-arg]
    assert f.transpose(*f.args, permutation=(1, 0)).shape == Shape("f32", 3, 2)
