"""A language model's step with its tokenizer and the texts of its chat template → one executable.

`chat.c` is the program, `tokens.c` its tokenizer. The step is assembled as any other model is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from smelt.aot.assemble import Parts
from smelt.aot.build import DEFAULT, Options, front_flags, link_executable
from smelt.aot.describe import c_string, dtype_code
from smelt.aot.targets import Machine
from smelt.aot.tokens import Tables, make_tables
from smelt.device.cross import Unit
from smelt.dtype import Array
from smelt.frozen import Frozen
from smelt.shape import Shape

HERE = Path(os.path.dirname(__file__))
FRONT = ("chat.c", "tokens.c")
CONTENT = "chat.bin"
TEXTS = ("open", "open_system", "system_user", "user_answer", "user_ask", "answer_user")
COUNTS = {"added": "added", "sorted": "sorted", "pairs": "pair", "characters": "character", "begin": "begin"}
_TYPES = {"u1": "uint8_t", "u4": "uint32_t", "u8": "uint64_t", "i4": "int32_t"}


class ChatModel(Frozen):
    """What the program has to know about a model beside its step: sizes, `tokenizer.json`, tokens that end an answer,
    and the texts between messages (by the names of `TEXTS`; none where the model has no chat template)."""

    tokenizer: str
    stops: tuple[int, ...]
    context: int
    page: int
    chunk: int
    texts: Mapping[str, str | None]
    is_trimmed: bool = False


def build_chat(parts: Parts, model: ChatModel, machine: Machine, options: Options = DEFAULT) -> bytes:
    """The executable of a language model."""
    text, content = chat_unit(parts, model)
    front = [Unit("front_model", text, front_flags(parts))]
    front += [Unit(f"front_{Path(each).stem}", HERE / each, front_flags(parts)) for each in FRONT]
    return link_executable(parts, machine, options, front, {CONTENT: content})


def chat_unit(parts: Parts, model: ChatModel) -> tuple[str, bytes]:
    """The C of a model's tables, and the bytes that it embeds."""
    logits, states, keys, values, *_ = (port.shape for port in parts.signature.outputs)
    tables, content = tokens_unit(make_tables(model.tokenizer, _size(logits, 1)))
    about = {
        "tokens": "&tokens",
        "layers": (len(parts.signature.outputs) - 2) // 2,
        "vocabulary": _size(logits, 1),
        "width": _size(states, 1),
        "page": model.page,
        "chunk": model.chunk,
        "context": model.context,
        "cache_dtype": dtype_code(keys),
        "cache_itemsize": keys.dtype.numpy.itemsize,
        "cache_rank": keys.rank,
        "keys": _page(keys),
        "values": _page(values),
        "stop_count": len(model.stops),
        "stops": f"(const int32_t[]){{{', '.join(map(str, model.stops)) or 0}}}",
        "is_trimmed": int(model.is_trimmed),
        **{name: "0" if text is None else c_string(text) for name, text in model.texts.items()},
    }
    return f"{tables}const Chat chat = {{{_fields(about)}}};\n", content


def tokens_unit(tables: Tables) -> tuple[str, bytes]:
    """The C of a tokenizer, `tokens`, and the bytes that it embeds."""
    arrays = tables.arrays
    content, places = _pack(arrays)
    counts = {f"{short}_count": len(arrays[name]) for name, short in COUNTS.items()}
    sizes = {"size": len(arrays["kinds"]), "program_count": len(arrays["starts"]) - 1}
    embedded = f'_Alignas(64) static const unsigned char content[] = {{\n#embed "{CONTENT}"\n}};'
    fields = _fields({**tables.flags, **sizes, **counts, **places})
    return f'#include "chat.h"\n{embedded}\nstatic const Tokens tokens = {{{fields}}};\n', content


def _fields(values: Mapping[str, object]) -> str:
    return ", ".join(f".{name} = {value}" for name, value in values.items())


def _page(pool: Shape) -> str:
    """The sizes of a page of keys or values."""
    return f"{{{', '.join(str(_size(pool, axis)) for axis in range(1, pool.rank))}}}"


def _size(shape: Shape, axis: int) -> int:
    size = shape.sizes[axis]
    assert isinstance(size, int), "a size of a decoder's step"
    return size


def _pack(arrays: Mapping[str, Array]) -> tuple[bytes, dict[str, str]]:
    """Concatenated arrays, aligned, and C pointers to them."""
    content, places = b"", {}
    for name, array in arrays.items():
        kind = _TYPES[array.dtype.str[1:]]
        places[name] = f"(const {kind} *)(content + {len(content)})"
        content += array.tobytes() + bytes(-array.nbytes % 8)
    return content, places
