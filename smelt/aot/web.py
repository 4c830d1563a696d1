"""Signature of a model → the JavaScript loader of its WebAssembly module, and the loader's types.

`web.js` is the loader's code; here its tables are written in front of it. `build.py` calls it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from smelt.aot.describe import dtype_code
from smelt.dtype import Quantized
from smelt.engine_api import Port, Signature
from smelt.shape import Shape

LOADER = Path(os.path.dirname(__file__)) / "web.js"
_FLOATS = {"f32": "Float32Array", "f64": "Float64Array", "complex<f32>": "Float32Array", "complex<f64>": "Float64Array"}
_SIGNED = {1: "Int8Array", 2: "Int16Array", 4: "Int32Array", 8: "BigInt64Array"}  # by bytes
_UNSIGNED = {1: "Uint8Array", 2: "Uint16Array", 4: "Uint32Array", 8: "BigUint64Array"}


def array_type(shape: Shape) -> str:
    """The typed array of an element type. Floats that JavaScript lacks go as their bits, booleans as bytes."""
    element = shape.dtype.storage if isinstance(shape.dtype, Quantized) else shape.dtype
    if element.name in _FLOATS:
        return _FLOATS[element.name]
    is_signed = element.name == "index" or (element.name.startswith("i") and element.name != "i1")
    return (_SIGNED if is_signed else _UNSIGNED)[element.numpy.itemsize]


def write_loader(module: str, weights: str | None, signature: Signature) -> str:
    """The ES module that loads `module`, and the file of weights where there is one."""
    return "\n".join(
        [
            "// Loads a compiled model and calls it, in Node.js and browsers. Written by smelt compile --standalone.",
            f"const FILE = {_text(module)};",
            f"const WEIGHTS = {_text(weights)};",
            *(
                f"const {name} = [{', '.join(map(_row, ports))}];"
                for name, ports in (("INPUTS", signature.inputs), ("OUTPUTS", signature.outputs))
            ),
            LOADER.read_text(encoding="utf-8"),
        ]
    )


def write_types(signature: Signature) -> str:
    """The loader's declarations for TypeScript, with the names and element types of the model."""
    return f"""\
/** Written by smelt compile --standalone. */

export type Source = string | URL | Response | ArrayBuffer | ArrayBufferView;

export interface Tensor<T> {{
  data: T;
  shape: number[];
}}

export interface Port {{
  name: string;
  /** Element type and sizes: "f32[batch, 64]". */
  shape: string;
  /** -1 where a size is dynamic. */
  sizes: number[];
}}

export interface Inputs {{
{_fields(signature.inputs, "{0} | {{ data: {0}; shape?: number[] }}")}
}}

export interface Outputs {{
{_fields(signature.outputs, "Tensor<{0}>")}
}}

export interface Options {{
  /** The module; by default the file beside the loader. */
  module?: Source | WebAssembly.Module;
  /** The weights of a model that was built with --weights separate; by default the file beside the loader. */
  weights?: Source;
}}

/** An error of the model: what was expected and what came. */
export class ModelError extends Error {{
  readonly status: number;
}}

export class Model {{
  private constructor();
  readonly inputs: Port[];
  readonly outputs: Port[];
  readonly memoryBytes: number;
  call(inputs: Inputs): Outputs;
}}

export function load(options?: Options): Promise<Model>;
"""


def _row(port: Port) -> str:
    """An input or output as JavaScript; complex numbers take two elements of their array."""
    sizes = [size if isinstance(size, int) else -1 for size in port.shape.sizes]
    width = 2 if port.shape.dtype.name.startswith("complex") else 1
    return (
        f"{{ name: {_text(port.name)}, shape: {_text(str(port.shape))}, dtype: {dtype_code(port.shape)}, "
        f"sizes: {json.dumps(sizes)}, array: {array_type(port.shape)}, width: {width} }}"
    )


def _fields(ports: Sequence[Port], form: str) -> str:
    return "\n".join(
        f"  /** {str(port.shape).replace('*/', '* /')} */\n  {_text(port.name)}: {form.format(array_type(port.shape))};"
        for port in ports
    )


def _text(text: str | None) -> str:
    return json.dumps(text)
