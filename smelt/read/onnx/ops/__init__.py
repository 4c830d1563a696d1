"""ONNX operators → StableHLO, one file per family."""
