"""`smelt compile MODEL.gguf --standalone`: a language model → one program that converses (docs/edge.md)."""

from __future__ import annotations

from pathlib import Path

from smelt.aot.assemble import assemble
from smelt.aot.build import Options, has_front, model_name
from smelt.aot.chat import TEXTS, ChatModel, build_chat
from smelt.aot.limit import check_limit
from smelt.aot.targets import Machine
from smelt.engine.compile import ProgramPlan
from smelt.errors import FileError, UnsupportedError
from smelt.ir.blocks import check_precision
from smelt.llm import checkpoint as files
from smelt.llm.batch import CHUNK
from smelt.llm.chat_form import reduce_template
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.checkpoint_model import cache_type
from smelt.llm.config import PAGE
from smelt.llm.step import step_program

CONTEXT = 4096  # DEFAULT_CONTEXT of chat.c


def is_language_model(file: Path) -> bool:
    """A GGUF file or a folder."""
    return file.suffix.lower() == ".gguf" or file.is_dir()


def compile_chat(
    file: Path,
    output: Path,
    machine: Machine,
    precision: str | None,
    options: Options,
    limit: int | None,
    threads: int,
) -> tuple[dict[str, tuple[bytes, int]], list[str], int]:
    """The files of a program with their modes, its code versions, and the bytes of its weights."""
    if not machine.has_threads:
        raise UnsupportedError(
            "a language model is a program for an operating system", got=machine.name, remedy="--target x86_64-linux"
        )
    if not has_front(output.name):
        raise UnsupportedError("a language model is built as a program", got=output.name, remedy=f"-o {output.stem}")
    if files.encoder_config(file) is not None:
        raise UnsupportedError(f"{file} is an encoder, which does not converse", remedy="export it to ONNX")
    precision = check_precision(precision or "q8")
    found = open_checkpoint(file)
    found = found.with_cache(cache_type(found, precision))
    model = describe_chat(found)
    source = step_program(found, precision), found.weights
    pages = -(-min(model.context, CONTEXT) // PAGE)
    sizes = {"S": CHUNK, "R": 1, "B": 1, "M": pages, "P": pages}

    def admit(plan: ProgramPlan) -> None:
        if limit is not None:
            check_limit(plan, limit, machine, threads, sizes, lambda: None)

    parts = assemble([source], model_name(output), machine, small=options.optimise == "size", admit=admit)
    made = {output.name: (build_chat(parts, model, machine, options), 0o777)}
    if options.separate:
        made[f"{output.name}.weights"] = (parts.weights, 0o666)
    return made, [version.name for version in parts.versions], len(parts.weights)


def open_checkpoint(file: Path) -> Checkpoint:
    """A checkpoint whose sequences keep their rotary positions: they end where others would begin."""
    found = files.open(file)
    return found if found.config.switch is None else files.open(file, found.config.switch)


def describe_chat(found: Checkpoint) -> ChatModel:
    """What the program has to know beside the step."""
    if not found.has_tokenizer:
        raise FileError(f"{found.path}: no tokenizer", remedy="a model with tokenizer.json")
    texts: dict[str, str | None] = dict.fromkeys(TEXTS)
    is_trimmed = False
    if found.template is not None:
        form = reduce_template(found.template, found.specials)
        texts = {name: getattr(form, name) for name in TEXTS}
        is_trimmed = form.is_trimmed
    config = found.config
    tokenizer = found.read_tokenizer().to_json()
    return ChatModel(tokenizer, tuple(config.stop), config.longest, PAGE, CHUNK, texts, is_trimmed)
