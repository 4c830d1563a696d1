"""`smelt generate`: complete a text or tokens with a language model; also the text of `smelt inspect` for one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from smelt.buffer import bytes_text
from smelt.cli.tables import open_console, print_facts
from smelt.errors import RunError
from smelt.llm import load


def generate(
    path: Path, prompt: str | None, ids: str, options: Mapping[str, Any], loading: Mapping[str, Any], as_json: bool
) -> None:
    start = time.perf_counter()
    given = _tokens(ids) if prompt is None else prompt
    with load(path, **loading) as model:
        loaded = time.perf_counter() - start
        run = model.stream(given, **options)
        pieces = []
        for piece in run:
            pieces.append(piece)
            if not as_json:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
        answer = run.answer(pieces)
    if as_json:
        print(json.dumps({"model": str(path), "load_s": round(loaded, 3), **answer.record()}))
        return
    if answer.ids and not answer.text:
        sys.stdout.write(" ".join(map(str, answer.ids)))
    print()
    Console(stderr=True, highlight=False).print(speed(answer.timings, len(answer.ids), loaded), style="dim")


def _tokens(text: str) -> list[int]:
    try:
        return [int(each) for each in text.replace(",", " ").split()]
    except ValueError:
        raise RunError(
            "--ids are whole numbers", expected="1,2,3", got=text[:80], remedy="--ids 1,2,3, or a prompt"
        ) from None


def speed(timings: Mapping[str, float], count: int, loaded: float | None = None) -> str:
    """The timings of an answer, as text."""
    said = [] if loaded is None else [f"loaded in {loaded:.1f} s"]
    if timings:
        said.append(f"prompt {timings['prompt_tokens_per_s']:.1f} tokens/s")
        said.append(f"{count} tokens at {timings['tokens_per_s']:.1f} tokens/s")
    return ", ".join(said)


def show_language_model(record: Mapping[str, Any]) -> None:
    """The record of `llm.report.describe`, as text."""
    console = open_console()
    console.print(
        f"[bold]{escape(record['model'])}[/]  {escape(record.get('family', 'unknown family'))}", soft_wrap=True
    )
    if record["kind"] == "encoder":
        print_facts(console, _encoder_facts(record))
    elif "family" in record:
        print_facts(console, _facts(record))
    if record["unsupported"]:
        console.print(f"[bold red]{len(record['unsupported'])} unsupported[/]")
    for each in record["unsupported"]:
        details = [
            f"{label} {each[label]}" for label in ("expected", "got", "fields", "tensors", "remedy") if each.get(label)
        ]
        console.print(
            f"  [bold]{escape(each['part'])}:[/] {escape('; '.join([each['message'], *details]))}", soft_wrap=True
        )


def _encoder_facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known about an encoder; a part that could not be read is missing."""
    tokenizer = record["tokenizer"]
    sizes = ", ".join(f"{name} {value}" for name, value in record.get("sizes", {}).items())
    found = [("layers", f"{record.get('layers', '?')}: {sizes}")]
    if "context" in record:
        found.append(("context", f"{record['context']} tokens"))
    if "parameters" in record:
        found.append(("parameters", f"{record['parameters']:,}, {bytes_text(record['weight_bytes'])}"))
    found.append(("pooling", ", ".join(record.get("pooling", ())) or "?"))
    found.append(("tokenizer", "none" if tokenizer is None else f"{tokenizer['tokens']} tokens"))
    return found


def _multimodal_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """That only the text model of a multimodal checkpoint runs, and what is not loaded."""
    if not record["multimodal"]:
        return []
    modules = ", ".join(f"{name} ({count} tensors)" for name, count in record["multimodal"]["left_out"].items())
    said = f"the text model of {record['multimodal']['architecture']}; prompts have text only"
    return [("multimodal", f"{said}; not loaded: {modules}" if modules else said)]


def _quantised_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a folder is quantised, and how many of its numbers no block holds, or only if inputs are sorted."""
    if not record["quantised"]:
        return []
    parts = [record["quantised"]]
    if record["dequantised"]:
        parts.append(f"{record['dequantised']:,} dequantised as they are read")
    if record["sorted"]:
        parts.append(f"{record['sorted']:,} dequantised, or with precision q8 on the CPU in blocks with sorted inputs")
    return [("quantised", ", ".join(parts))]


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    sizes = ", ".join(f"{name} {value}" for name, value in record["sizes"].items())
    tokenizer, place = record["tokenizer"], "as read" if record["quantised"] else "in the file"
    return [
        ("layers", f"{record['layers']}: {sizes}"),
        ("architecture", ", ".join(record["architecture"])),
        ("context", f"{record['context']} tokens"),
        ("parameters", f"{record['parameters']:,}"),
        ("formats", ", ".join(f"{count:,} {name}" for name, count in record["formats"].items())),
        *_multimodal_rows(record),
        *_quantised_rows(record),
        ("weights", f"{bytes_text(record['weight_bytes'])} {place}, {bytes_text(record['f32_bytes'])} in f32"),
        ("cache", f"{bytes_text(record['cache_bytes'])} for a whole context"),
        ("tokenizer", "none" if tokenizer is None else f"{tokenizer['tokens']} tokens"),
        ("chat template", "yes" if record["chat_template"] else "none"),
        ("end tokens", ", ".join(map(str, record["end_tokens"])) or "none"),
    ]
