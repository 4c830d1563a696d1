"""ONNX files: `read(path)` gives the program in a file and its weights."""

from smelt.read.onnx.graph import StaticError
from smelt.read.onnx.model import read

__all__ = ["StaticError", "read"]
