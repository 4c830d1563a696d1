"""`make bench`: how long smelt's own steps take, on programs of growing size."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value
from smelt.ir.structure import fingerprint
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.model import read
from smelt.passes import pipeline
from smelt.shape import Shape

SIZES = (10_000, 50_000)


def chain(ops: int) -> Program:
    """A chain of ops that no pass can shorten much: sums, products and moves over one matrix."""
    f = FuncBuilder("main", [Shape("f32", "B", 16), Shape("f32", 16)])
    value, row = f.args
    for i in range(ops // 4):
        other: Value = f.broadcast_in_dim(row, broadcast_dimensions=(1,), result=value.shape)
        value = f.add(value, other) if i % 2 else f.multiply(value, other)
        value = f.tanh(value)
        value = f.maximum(value, f.full(float(i), value.shape))
    return Program.of(f.func(value))


def literals(megabytes: float) -> str:
    """Text with large dense constants."""
    count = int(megabytes * 1e6 / 13 / 4)
    numbers = np.random.default_rng(0).standard_normal(count)
    dense = "[" + ", ".join(f"{number:.6e}" for number in numbers) + "]"
    lines = [f"  %c{i} = stablehlo.constant dense<{dense}> : tensor<{count}xf32>" for i in range(4)]
    return "func.func @main() {\n" + "\n".join(lines) + "\n  return\n}\n"


def onnx_chain(nodes: int, path: Path) -> None:
    """An ONNX file with a long chain of small nodes over an open batch."""
    from onnx import TensorProto, helper

    kinds = ("Relu", "Tanh", "Add", "Mul")
    names = ["x", *(f"v{i}" for i in range(nodes))]
    chain = [
        helper.make_node(kinds[i % 4], [names[i], "x"] if i % 4 > 1 else [names[i]], [names[i + 1]])
        for i in range(nodes)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in ("x", names[-1])]
    graph = helper.make_graph(chain, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def seconds(work: Callable[[], Any], repeat: int = 3) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def import_cost(statement: str, repeat: int = 15) -> float:
    """Seconds that an import adds to numpy + ml_dtypes, in fresh processes."""
    code = f"import numpy, ml_dtypes, time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(repeat)
    ]
    return statistics.median(runs)


def measure() -> dict[str, Any]:
    steps: dict[str, Any] = {"import smelt (ms)": 1e3 * import_cost("import smelt")}
    for ops in SIZES:
        program = chain(ops)
        text = print_program(program)
        steps[f"{ops} ops"] = {
            "text (MB)": len(text) / 1e6,
            "build (s)": seconds(lambda ops=ops: chain(ops), 1),
            "print (s)": seconds(lambda program=program: print_program(program), 1),
            "parse (s)": seconds(lambda text=text: parse(text), 1),
            "verify (s)": seconds(lambda program=program: verify(program), 1),
            "fingerprint (s)": seconds(lambda program=program: fingerprint(program), 1),
            "passes (s)": {report.name: report.milliseconds / 1e3 for report in pipeline.run(program)[1]},
        }
    with tempfile.TemporaryDirectory() as folder:
        for nodes in (2_500, 10_000):
            path = Path(folder) / f"{nodes}.onnx"
            onnx_chain(nodes, path)
            steps[f"ONNX, {nodes} nodes (s)"] = seconds(lambda path=path: read(path), 1)
    text = literals(3)
    steps["3 MB of literals"] = {"text (MB)": len(text) / 1e6, "parse (s)": seconds(lambda: parse(text))}
    return {"machine": platform.processor() or platform.machine(), "python": platform.python_version(), "steps": steps}


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    options.add_argument("--json", metavar="FILE", help="write the figures to a file as well")
    chosen = options.parse_args()
    record = measure()
    print(json.dumps(record, indent=2))
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(record, file, indent=2)


if __name__ == "__main__":
    main()
