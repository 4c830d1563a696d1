"""Programs as ONNX files: `write(program, weights, path)`."""

from smelt.write.onnx.model import build, to_model, write

__all__ = ["build", "to_model", "write"]
