"""The perplexity of a language model by precision, on a text that every Python has: the help topics of `pydoc`.

    python -m bench.perplexity MODEL [--tokens 20480] [--precision q8,f32] [--text FILE]

Windows of 512 tokens; the first token of each is given. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import smelt.llm
from smelt.llm.perplexity import WINDOW, perplexity


def pydoc_text() -> str:
    """All topics, in the order of their names."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", type=Path)
    options.add_argument("--tokens", type=int, default=20480)
    options.add_argument("--precision", default="q8,f32")
    options.add_argument("--text", type=Path)
    chosen = options.parse_args()
    text = pydoc_text() if chosen.text is None else chosen.text.read_text("utf-8")
    found: dict[str, Any] = {"model": chosen.model.name, "python": platform.python_version()}
    for precision in chosen.precision.split(","):
        with smelt.llm.load(chosen.model, engine="native", precision=precision, context=WINDOW) as model:
            ids = model.tokenizer.encode(text)[: chosen.tokens]
            start = time.perf_counter()
            measured = perplexity(model, ids)
            found[precision] = {
                "perplexity": measured,
                "tokens": len(ids),
                "seconds": round(time.perf_counter() - start, 1),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
