"""llama.cpp for `smelt bench`, as a process with the arguments MODEL.gguf CONTEXT THREADS, in an interpreter that has
llama-cpp-python and need not have smelt.

It prints its version when the model is loaded. Then each line [tokens, count] on its input gives a line [seconds until
the first token, seconds for the others], greedy.
"""

import json
import sys
import time
from importlib import import_module
from typing import Any


def main(path: str, context: int, threads: int) -> None:
    package: Any = import_module("llama_cpp")
    numpy: Any = import_module("numpy")
    sizes = {"n_ctx": context, "n_batch": 512, "n_threads": threads, "n_threads_batch": threads}
    model = package.Llama(path, verbose=False, **sizes)

    def best() -> int:
        logits = package.llama_get_logits_ith(model.ctx, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(model.n_vocab(),)).argmax())

    print(json.dumps(package.__version__), flush=True)
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
