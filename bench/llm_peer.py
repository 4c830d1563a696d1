"""llama.cpp for `bench.llm`, as a process: `python llm_peer.py MODEL.gguf CONTEXT THREADS`, in an interpreter that has
llama-cpp-python. It says when the model is loaded; then each line [tokens, count] gives a line [seconds of prefill,
seconds of decode]. Greedy, with the package's defaults but for these sizes."""

import json
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np


def main(path: str, context: int, threads: int) -> None:
    llama_cpp: Any = import_module("llama_cpp")
    size = {"n_ctx": context, "n_batch": 512, "n_threads": threads, "n_threads_batch": threads}
    model = llama_cpp.Llama(path, verbose=False, **size)

    def best() -> int:
        pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return int(np.argmax(np.ctypeslib.as_array(pointer, shape=(model.n_vocab(),))))

    print("loaded", flush=True)
    for line in sys.stdin:
        tokens, count = json.loads(line)
        model.reset()
        start = time.perf_counter()
        model.eval(tokens)
        token = best()
        first = time.perf_counter()
        for _ in range(count - 1):
            model.eval([token])
            token = best()
        print(json.dumps([first - start, time.perf_counter() - first]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
