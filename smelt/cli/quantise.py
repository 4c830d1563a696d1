"""`smelt quantise`: a GGUF file or a folder as a smaller GGUF file, with the error it causes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from smelt.buffer import bytes_text
from smelt.cli.tables import Column, open_console, print_table
from smelt.errors import FileError
from smelt.llm import load
from smelt.llm.perplexity import perplexity
from smelt.llm.quantise import Loss
from smelt.llm.quantise import quantise as write_quantised

SHOWN = 5  # tensors that lost most
MEASURED = 4096  # tokens of a text


def quantise(path: Path, output: Path, to: str, text: Path | None, loading: Mapping[str, Any], as_json: bool) -> None:
    status = Console(stderr=True, highlight=False)
    with status.status("quantising") as shown:
        losses = write_quantised(path, output, to, lambda name: shown.update(name))
    record: dict[str, Any] = {
        "model": str(path),
        "output": str(output),
        "bytes": {"before": _size(path), "after": output.stat().st_size},
        "tensors": [{"name": each.name, "format": each.format, "error": each.error} for each in losses],
    }
    if text is not None:
        record["perplexity"] = {
            "before": _perplexity(path, text, loading),
            "after": _perplexity(output, text, loading),
        }
    if as_json:
        print(json.dumps(record))
    else:
        _show(record, losses)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.glob("*.safetensors"))


def _perplexity(path: Path, text: Path, loading: Mapping[str, Any]) -> float:
    try:
        said = text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {text}", got=error, remedy="--text with a UTF-8 file") from error
    with load(path, **loading) as model:
        return perplexity(model, model.tokenizer.encode(said)[:MEASURED])


def _show(record: Mapping[str, Any], losses: list[Loss]) -> None:
    console = open_console()
    before, after = (bytes_text(record["bytes"][key]) for key in ("before", "after"))
    console.print(f"[bold]{record['output']}[/]: {after}, from {before}; {len(losses)} tensors changed", soft_wrap=True)
    worst = sorted(losses, key=lambda each: -each.error)[:SHOWN]
    rows = [(each.name, each.format, f"{each.error:.2%}") for each in worst]
    if rows:
        print_table(console, (Column("most lost", True), Column("format", True), Column("relative error")), rows)
    if "perplexity" in record:
        before, after = (f"{record['perplexity'][key]:.3f}" for key in ("before", "after"))
        console.print(f"perplexity {before} → {after}")
