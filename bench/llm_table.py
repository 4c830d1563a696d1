"""`python -m bench.llm_table FOLDER --python PEER`: the table of docs/llm.md, model by model beside llama.cpp.

PEER is an interpreter with llama-cpp-python. The folder gets the files that are missing: TinyLlama's shape with random
weights, and SmolLM2 (`--smollm2 FILE.gguf`), each as Q4_0, Q4_K_M, Q8_0 and bf16. Quantised files are written by
llama.cpp itself. Each is a run of `bench.llm`; its records go to FOLDER/table.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import llm
from bench.llm_random import SHAPES, write

FORMATS = ("Q4_0", "Q4_K_M", "Q8_0", "BF16")
# By the peer's interpreter: file, result, format, whether the file is quantised already.
QUANTISE = """
import ctypes, sys
import llama_cpp
given, made, format, again = sys.argv[1:]
options = llama_cpp.llama_model_quantize_default_params()
options.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + format)
options.allow_requantize = again == "1"
options.nthread = 2
sys.exit(llama_cpp.llama_model_quantize(given.encode(), made.encode(), ctypes.byref(options)))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    sources = {"tinyllama-1.1b": None, **({"smollm2-135m": options.smollm2} if options.smollm2 else {})}
    records = []
    for name, source in sources.items():
        for format in options.formats.split(","):
            path = make(options.folder, name, source, format, options.python)
            if path is None:
                print(f"{name} {format}: llama.cpp does not write it", file=sys.stderr)
                continue
            record = options.folder / f"{path.stem}.json"
            given = [str(path), "--python", options.python, "--json", str(record), "--bandwidth"]
            given += ["--concurrent", str(options.concurrent)] if options.concurrent else []
            for each in ("prompt", "new", "rounds", "threads"):
                given += [f"--{each}", str(getattr(options, each))]
            llm.main(given)
            records.append(json.loads(record.read_text()))
            (options.folder / "table.json").write_text(json.dumps(records, indent=1) + "\n")
    show(records)
    return 0


def make(folder: Path, name: str, source: Path | None, format: str, python: str) -> Path | None:
    """The file of a model in a format, written where it is missing."""
    path = folder / f"{name}.{format}.gguf"
    if path.exists():
        return path
    if source is None:
        wide = folder / f"{name}.BF16.gguf"
        if not wide.exists():
            write(wide, SHAPES[name], "bf16")
        if format == "BF16":
            return wide
        source = wide
    part = path.with_suffix(".part")
    again = "0" if source.name.endswith("BF16.gguf") else "1"
    done = subprocess.run([python, "-c", QUANTISE, str(source), str(part), format, again], capture_output=True)
    if done.returncode:
        part.unlink(missing_ok=True)
        return None
    part.rename(path)
    return path


def show(records: Sequence[dict[str, object]]) -> None:
    print("| model | prefill | ratio | decode | ratio | 8 at once |\n|---|---|---|---|---|---|")
    for each in records:
        found: dict[str, dict[str, dict[str, float]]] = each  # type: ignore[assignment]
        ours, ratios = found["engines"]["smelt"], found.get("ratios", {"prefill": 0.0, "decode": 0.0})
        at_once = found.get("concurrent", {}).get("decode", 0.0)
        rates = (f"{ours[of]:.1f} | {ratios[of]:.2f}" for of in ("prefill", "decode"))
        print(f"| {each['model']} | {' | '.join(rates)} | {at_once:.1f} |")


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="bench.llm_table", description=(__doc__ or "").split("\n\n")[0])
    found.add_argument("folder", type=Path)
    found.add_argument("--python", required=True, help="an interpreter with llama-cpp-python")
    found.add_argument("--smollm2", type=Path, help="SmolLM2 as a GGUF file")
    found.add_argument("--formats", default=",".join(FORMATS))
    found.add_argument("--prompt", type=int, default=512)
    found.add_argument("--new", type=int, default=128)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--concurrent", type=int, default=8)
    return found


if __name__ == "__main__":
    sys.exit(main())
