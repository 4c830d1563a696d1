"""What the bundle of a language model holds besides its step, as files: `language.json` has the configuration, the chat
template and the pooling, `tokenizer.json` the tokenizer. `bundle` reads them.
"""

from __future__ import annotations

import json
from functools import partial

from smelt.bundle.stored import Read
from smelt.engine_api import Signature
from smelt.llm.origin import Origin
from smelt.llm.pooling import files_of_pooling
from smelt.llm.typed_record import to_record

LANGUAGE, TOKENIZER = "language.json", "tokenizer.json"
FORMAT = 2
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)  # what bad records raise
ENCODER = "encoder"  # the kind in `language.json` of an encoder: `encoder_bundle` reads the rest


def shapes_of(signature: Signature) -> list[str]:
    """The shapes of what a program takes and gives."""
    shapes = [port.shape for port in (*signature.inputs, *signature.outputs)]
    return [f"{shape.dtype}[{', '.join(map(str, shape.sizes))}]" for shape in shapes]


def stored_files(origin: Origin, precision: str) -> dict[str, Read]:
    """The files of a bundle besides its program."""
    pooling_record, arrays = files_of_pooling(origin.read_pooling())
    record = {
        "format": FORMAT,
        "config": to_record(origin.config),
        "precision": precision,
        "template": origin.template,
        "specials": dict(origin.specials),
        "fingerprint": origin.fingerprint(),
        "pooling": pooling_record,
    }
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    found: dict[str, Read] = {LANGUAGE: partial(text.encode, "utf-8"), **arrays}
    if origin.has_tokenizer:
        written = origin.read_tokenizer().to_json()
        found[TOKENIZER] = partial(written.encode, "utf-8")
    return found
