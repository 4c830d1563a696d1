"""Cases that only `run.py` asks for, by name: making them takes seconds."""

collect_ignore = ["onnx_cases.py"]
