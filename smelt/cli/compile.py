"""`smelt compile`: a model file or a language model → a bundle, with code for one or several kinds of processors."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from smelt.buffer import bytes_text
from smelt.bundle.stored import StoredModel
from smelt.bundle.write import source_record, write
from smelt.cli.preflight import parse_static, read_fixed
from smelt.cli.sizes import parse_sizes
from smelt.engine.store import store_weights
from smelt.errors import SmeltError
from smelt.files import check_folder
from smelt.llm.checkpoint import is_checkpoint
from smelt.llm.to_bundle import to_stored as language_to_stored
from smelt.model import store_broadcasting
from smelt.passes.independent_rows import describe_batching
from smelt.passes.quantise import with_precision
from smelt.run.load import SUFFIX


def compile_model(
    file: Path,
    output: Path,
    targets: Sequence[str],
    sizes: Sequence[str],
    static: Sequence[str],
    private_key: Path | None,
    as_json: bool,
    precision: str | None = None,
) -> None:
    if output.suffix.lower() != SUFFIX:
        raise SmeltError(
            "a bundle needs its ending",
            expected=f"FILE{SUFFIX}",
            got=output,
            remedy=f"-o {output.with_suffix(SUFFIX)}, or --standalone for an executable or a C library",
        )
    check_folder(output)
    start = time.perf_counter()
    if is_checkpoint(file):
        if sizes or static:
            got = ", ".join([*sizes, *static])
            raise SmeltError("a language model has no sizes to fix", got=got, remedy="leave --size and --static out")
        stored, nbytes = language_to_stored(file, targets, precision)
    else:
        stored, nbytes = _to_stored(file, targets, sizes, static, precision or "f32")
    total = write(output, stored, private_key)
    codes = [code.target for variant in stored.programs[0].variants for code in variant.codes]
    record = {
        "bundle": str(output),
        "bytes": total,
        "targets": codes,
        "weights": nbytes,
        "seconds": round(time.perf_counter() - start, 3),
        "signed": private_key is not None,
    }
    if as_json:
        print(json.dumps(record))
        return
    Console(highlight=False, soft_wrap=True).print(
        f"{escape(str(output))}: {bytes_text(total)}, code for {', '.join(codes)}, in {record['seconds']} s"
    )


def _to_stored(
    file: Path, targets: Sequence[str], sizes: Sequence[str], static: Sequence[str], precision: str
) -> tuple[StoredModel, int]:
    """What the bundle of a model file holds, and the bytes of its weights."""
    read = partial(read_fixed, file, parse_static(file, static), parse_sizes(sizes))
    program, weights = read()
    computed = with_precision(program, precision)
    stored = store_weights(computed, weights, targets)
    if file.suffix.lower() == ".onnx":
        general = store_broadcasting(program, partial(read, runtime_broadcast=True), precision, targets)
        stored = stored.replace(programs=(*stored.programs, *general))
    provenance = source_record(file) | {f"static {item.partition('=')[0]}": item.partition("=")[2] for item in static}
    provenance |= {"precision": precision} if precision != "f32" else {}
    provenance |= describe_batching(computed.main)
    return stored.replace(name=file.stem, metadata=dict(weights.metadata), provenance=provenance), weights.nbytes
