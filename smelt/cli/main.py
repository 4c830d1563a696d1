"""The commands and their options; each command is implemented in its own file.

Exit codes: 0 done, 1 the input is wrong or cannot be run (the error says why), 2 the command line is wrong, 130
interrupted by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from smelt import cli
from smelt.cli.progress import compiling
from smelt.errors import SmeltError
from smelt.version import __version__

INTERRUPTED = 130

app = typer.Typer(
    name="smelt",
    help="Compile any model to native code and run it: ONNX, StableHLO, GGUF, Hugging Face, Python.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    Path, typer.Argument(help="A model: .onnx, .mlir (StableHLO text), .mlirbc (portable bytecode) or .jaxexport.")
]
LanguageModelPath = Annotated[
    Path,
    typer.Argument(
        help="A language model: a Hugging Face folder, a .gguf file, a bundle, or a name from `smelt pull`."
    ),
]
FileOrBundle = Annotated[
    Path,
    typer.Argument(
        help="A model (.onnx, .mlir, .mlirbc, .jaxexport), or a bundle that `smelt compile` wrote (.smelt)."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show long lists and formulas in full.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size", "-s", help="SYMBOL=NUMBER for a dynamic dimension of the inputs. Default: the least that works."
    ),
]
StaticValues = Annotated[
    list[str] | None,
    typer.Option("--static", help="NAME=VALUE (JSON, or FILE.npy) for a compile-time input."),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option("--memory-limit", help="The most memory the model may take, calls included, e.g. 512MB or 2GiB."),
]
Precision = Annotated[
    str, typer.Option(help="f32; or tf32, bf16, int8, fp8: weight matmuls and convolutions on rounded operands.")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, or a device of `smelt devices`: cpu, cuda, cuda:1.")]
EngineName = Annotated[str, typer.Option("--engine", help="auto, native, pjrt or reference.")]
ModelPrecision = Annotated[
    str | None,
    typer.Option("--precision", help="q8, f32, bf16, tf32 or fp8. Default: q8 on the native engine, else f32 or bf16."),
]
CacheType = Annotated[
    str | None, typer.Option("--cache", help="Keys and values in f32, f16, bf16 or int8. Default: by the precision.")
]


# the sections of `smelt --help`
RUN, LOOK, SHIP, TALK, SERVE = "Run and measure", "Look inside", "Ship", "Language models", "Serve"


def _examples(*lines: str) -> str:
    """The end of a command's help: one example per line."""
    return "\n\n".join(["[bold]Examples[/]", *(line.replace("[", r"\[") for line in lines)])


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"smelt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and check every pass.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if debug:
        os.environ["SMELT_DEBUG"] = ",".join(filter(None, [os.environ.get("SMELT_DEBUG", ""), "traceback", "passes"]))


@app.command(rich_help_panel=RUN, epilog=_examples("smelt demo", "smelt demo --chat"))
def demo(
    chat: Annotated[bool, typer.Option("--chat", help="Talk with a small language model instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Classify real handwritten digits: read, prove, compile, run. Every number shown is computed now."""
    if chat:
        cli.demo_chat.demo_chat()
    else:
        cli.demo.demo(as_json)


@app.command(
    rich_help_panel=RUN,
    epilog=_examples(
        "smelt run model.onnx",
        "smelt run model.onnx --input image=cat.png --size batch=1",
        'smelt run model.onnx --input x=x.npy --input "scale=[0.5, 2]" --output-dir results',
        "smelt run model.smelt --json",
    ),
)
def run(
    file: FileOrBundle,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            help="NAME=FILE (.npy, .json, .png, .jpg), NAME=[1, 2, 3] (JSON), or NAME=random. Default: random.",
        ),
    ] = None,
    size: Sizes = None,
    engine: EngineName = "auto",
    device: DeviceName = "auto",
    precision: Precision = "f32",
    memory_limit: MemoryLimit = None,
    static: StaticValues = None,
    seed: Annotated[int, typer.Option(help="Seed for random inputs.")] = 0,
    output_dir: Annotated[Path | None, typer.Option(help="Write each output to this folder as NAME.npy.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a model once and show its outputs."""
    cli.run.run(
        file,
        inputs or ["random"],
        size or [],
        engine,
        device,
        seed,
        output_dir,
        as_json,
        memory_limit,
        precision,
        static or [],
    )


@app.command(
    rich_help_panel=LOOK,
    epilog=_examples(
        "smelt show model.onnx",
        "smelt show model.onnx --stage kernels",
        "smelt show model.onnx --stage source --size batch=1",
    ),
)
def show(
    file: FileOrBundle,
    stage: Annotated[str, typer.Option(help="ir, passes, kernels, loops, source or plan.")] = "ir",
    size: Sizes = None,
    static: StaticValues = None,
    generic: Annotated[bool, typer.Option(help="The generic form of every op.")] = False,
    export: Annotated[bool, typer.Option(help="Standard StableHLO: symbolic sizes as dynamic ops.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a model after a stage of compilation."""
    cli.show.show(file, stage, size or [], generic, export, as_json, static or [])


@app.command(
    rich_help_panel=LOOK,
    epilog=_examples(
        "smelt inspect model.onnx", "smelt inspect model.onnx --size batch=8 --verbose", "smelt inspect model.gguf"
    ),
)
def inspect(
    file: FileOrBundle,
    size: Sizes = None,
    static: StaticValues = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Describe a model and list what is unsupported in it (exit code 1 then). Nothing is compiled."""
    cli.inspect.inspect(file, size or [], static or [], as_json, verbose)


MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="The most tokens to generate.")]
Context = Annotated[int | None, typer.Option(help="Longest sequence in tokens. Default: the model's, up to 32768.")]
Temperature = Annotated[float, typer.Option(help="0: always the most likely token.")]
TopP = Annotated[float, typer.Option(help="Sample from the most likely tokens up to this total probability.")]
TopK = Annotated[int, typer.Option(help="Sample from this many of the most likely tokens; 0: from all.")]
Seed = Annotated[int, typer.Option(help="Seed for sampling.")]


@app.command(
    rich_help_panel=TALK,
    epilog=_examples(
        'smelt generate model.gguf "The capital of France is" --max-tokens 8',
        'smelt generate folder "Once upon a time" --temperature 0.8 --seed 1 --json',
    ),
)
def generate(
    model: LanguageModelPath,
    prompt: Annotated[str | None, typer.Argument(help="A text to complete; or --ids.")] = None,
    ids: Annotated[str, typer.Option(help="Tokens to complete instead of a text: 1,2,3.")] = "",
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text.")] = None,
    ignore_end: Annotated[bool, typer.Option("--ignore-end", help="Go on after the model's end tokens.")] = False,
    device: DeviceName = "auto",
    engine: EngineName = "auto",
    precision: ModelPrecision = None,
    cache: CacheType = None,
    context: Context = None,
    memory_limit: MemoryLimit = None,
    as_json: AsJson = False,
) -> None:
    """Complete a text with a language model."""
    if (prompt is None) == (not ids):
        raise typer.BadParameter('give either a prompt or --ids: smelt generate MODEL "Once upon"')
    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}
    given = {"device": device, "engine": engine, "precision": precision, "cache": cache}
    loading = {**given, "context": context, "memory_limit": memory_limit}
    more = {"max_tokens": max_tokens, "stop": tuple(stop or ()), "ignore_end": ignore_end}
    cli.generate.generate(model, prompt, ids, {**asked, **more}, loading, as_json)


@app.command(
    rich_help_panel=TALK,
    epilog=_examples(
        "smelt chat model.gguf", 'smelt chat org/name --system "Answer in one sentence." --temperature 0.7'
    ),
)
def chat(
    model: LanguageModelPath,
    system: Annotated[str, typer.Option(help="The system prompt.")] = "",
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    device: DeviceName = "auto",
    engine: EngineName = "auto",
    precision: ModelPrecision = None,
    cache: CacheType = None,
    context: Context = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Talk with a language model. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends."""
    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed, "max_tokens": max_tokens}
    given = {"device": device, "engine": engine, "precision": precision, "cache": cache}
    loading = {**given, "context": context, "memory_limit": memory_limit}
    cli.chat.chat(model, system, asked, loading)


@app.command(
    rich_help_panel=TALK,
    epilog=_examples(
        'smelt embed folder "a text" "another" --output vectors.npy', "smelt embed folder < lines.txt --json"
    ),
)
def embed(
    model: LanguageModelPath,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of the standard input.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the vectors to this .npy file.")] = None,
    prompt: Annotated[
        str, typer.Option(help="The name of one of the model's own prompts, put before every text.")
    ] = "",
    device: DeviceName = "auto",
    engine: EngineName = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed texts: with an encoder (BERT, RoBERTa, MiniLM), or the last layer of a decoder."""
    cli.embed.embed(model, texts or [], output, {"device": device, "engine": engine}, as_json, prompt)


@app.command(
    rich_help_panel=TALK,
    epilog=_examples(
        "smelt quantise folder --to q8_0 --output model.gguf",
        "smelt quantise model.gguf --to q4_0 --output small.gguf --text sample.txt",
    ),
)
def quantise(
    model: LanguageModelPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The GGUF file to write.")],
    to: Annotated[str, typer.Option(help="q4_0, q4_1, q5_0, q5_1 or q8_0.")] = "q4_0",
    text: Annotated[Path | None, typer.Option(help="A text file: measure the perplexity before and after.")] = None,
    engine: EngineName = "auto",
    as_json: AsJson = False,
) -> None:
    """Quantise a GGUF file or a Hugging Face folder to a smaller GGUF file, and report the error."""
    cli.quantise.quantise(model, output, to, text, {"engine": engine}, as_json)


@app.command(
    rich_help_panel=RUN,
    epilog=_examples(
        "smelt bench model.onnx --against onnxruntime",
        "smelt bench model.onnx --precision int8 --size batch=8",
        "smelt bench model.gguf --against llama.cpp --prompt 512 --new 128",
        "smelt bench --url http://127.0.0.1:8000 --rate 1000",
    ),
)
def bench(
    file: Annotated[Path | None, typer.Argument(help="A model or a bundle; or --url.")] = None,
    against: Annotated[
        str,
        typer.Option(
            help="Peers, comma-separated: onnxruntime, openvino, ncnn, torch, jax; for language models llama.cpp."
        ),
    ] = "",
    size: Sizes = None,
    static: StaticValues = None,
    device: DeviceName = "auto",
    engine: EngineName = "auto",
    precision: Annotated[
        str | None,
        typer.Option(help="f32, tf32, bf16, int8 or fp8; language models: as for chat. Default: f32; as for chat."),
    ] = None,
    memory_limit: MemoryLimit = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 5.0,
    prompt: Annotated[int, typer.Option(help="Tokens of a language model's prompt.")] = 512,
    new: Annotated[int, typer.Option(help="Tokens that a language model generates.")] = 128,
    threads: Annotated[int | None, typer.Option(help="Threads of every engine. Default: one per core.")] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="ENGINE=PATH: the Python interpreter of a peer, if it is not this one.")
    ] = None,
    original: Annotated[Path | None, typer.Option(help="The original model of a bundle, for the peers.")] = None,
    url: Annotated[str, typer.Option(help="Measure a server instead, with open-loop load: http://HOST:PORT.")] = "",
    model: Annotated[str, typer.Option(help="With --url: the model to call. Default: the only one.")] = "",
    rate: Annotated[float, typer.Option(help="With --url: requests per second, Poisson arrivals.")] = 100.0,
    within: Annotated[
        float,
        typer.Option(help="With --url: milliseconds to an answer, or to its first token, that count as goodput."),
    ] = 1000.0,
    key: Annotated[str, typer.Option(help="With --url: the API key.", envvar="SMELT_API_KEY")] = "",
    seed: Annotated[int, typer.Option(help="Seed for random inputs and arrivals.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure the latency of a call on random inputs, or a language model's tokens per second, interleaved with peers.

    Exit code 1 if outputs differ.
    """
    if (file is None) == (not url):
        raise typer.BadParameter("give either a model or --url")
    if file is None:
        asked = cli.load.Load(model, rate, seconds, size or (), key, seed, within, prompt, new)
        cli.load.load(url, asked, as_json)
        return
    peers = [name for name in against.split(",") if name]
    if cli.bench_language.is_language_model(file):
        given = {"device": device, "engine": engine, "precision": precision, "memory_limit": memory_limit}
        loading = {name: value for name, value in given.items() if value is not None}
        cli.bench_language.bench(file, peers, loading, seconds, threads, python or [], original, (prompt, new), as_json)
        return
    cli.bench.bench(
        file,
        size or [],
        engine,
        peers,
        seconds,
        as_json,
        static or [],
        memory_limit,
        threads,
        python or [],
        precision or "f32",
        original,
        device,
    )


@app.command(
    rich_help_panel=RUN,
    epilog=_examples("smelt profile model.onnx", "smelt profile model.onnx --svg roofline.svg --trace call.json"),
)
def profile(
    file: File,
    size: Sizes = None,
    static: StaticValues = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 2.0,
    top: Annotated[int, typer.Option(help="Rows of the table.")] = 25,
    each: Annotated[bool, typer.Option("--each", help="A row for every launch, not for every kernel.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write one call as FILE.json for Perfetto or chrome://tracing.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the roofline with every kernel on it as FILE.svg.")] = None,
    peaks_again: Annotated[bool, typer.Option("--peaks-again", help="Forget the peaks of earlier runs.")] = False,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Show each kernel's time, GFLOP/s, GB/s and fraction of the device's roofline."""
    chosen = cli.profile.Options(
        tuple(size or ()), tuple(static or ()), seconds, top, each, as_json, trace, svg, peaks_again, device
    )
    cli.profile.profile(file, chosen)


@app.command(
    rich_help_panel=RUN,
    epilog=_examples(
        "smelt tune model.onnx --seconds 120", "smelt tune --export tuned.jsonl", "smelt tune --merge tuned.jsonl"
    ),
)
def tune(
    file: Annotated[Path | None, typer.Argument(help="A model: .onnx, .mlir, .mlirbc or .jaxexport.")] = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 60.0,
    size: Sizes = None,
    static: StaticValues = None,
    seed: Annotated[int, typer.Option(help="Seed for random inputs and for the search.")] = 0,
    export: Annotated[Path | None, typer.Option(help="Write the tuning database as FILE.jsonl.")] = None,
    merge: Annotated[Path | None, typer.Option(help="Add such a file to the database.")] = None,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Autotune: measure which kernel schedules are fastest here. Later compiles use them; no result changes."""
    chosen = cli.tune.Options(seconds, tuple(size or ()), tuple(static or ()), seed, export, merge, as_json, device)
    cli.tune.tune(file, chosen)


@app.command(
    rich_help_panel=SHIP,
    epilog=_examples("smelt export model.onnx --output model.mlir", "smelt export model.mlir --output model.onnx"),
)
def export(
    file: File,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="FILE.onnx, FILE.mlir (text), FILE.mlirbc (bytecode), FILE.safetensors."),
    ],
    to: Annotated[str | None, typer.Option(help="onnx, mlir, mlirbc or safetensors; else by the suffix.")] = None,
    plain: Annotated[bool, typer.Option(help="Standard StableHLO: symbolic sizes as dynamic ops.")] = False,
    static: StaticValues = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as ONNX, or as StableHLO with its weights in a safetensors file beside it."""
    cli.export.export(file, output, plain, as_json, static or [], to)


@app.command(
    "compile",
    rich_help_panel=SHIP,
    epilog=_examples(
        "smelt compile model.onnx --output model.smelt",
        "smelt compile model.onnx --output model.smelt --target avx512,avx2,plain",
        "smelt compile model.onnx --standalone --output model",
        "smelt compile model.onnx --standalone --target wasm32-wasi --output model.wasm",
        "smelt compile model.gguf --standalone --output chat",
    ),
)
def compile_model(
    file: File,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="FILE.smelt: one file that runs without a compiler. With --standalone: a program, FILE.a or FILE.so.",
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            help="Targets, comma-separated: avx512, avx512vnni, avx2, neon, plain (the baseline ISA). Default: this "
            "machine's, and plain. "
            "With --standalone one of x86_64-linux, aarch64-linux, armv7-linux, riscv64-linux, x86_64-windows, "
            "aarch64-macos, wasm32-wasi, thumbv7em-none; default: this machine's."
        ),
    ] = "",
    standalone: Annotated[
        bool,
        typer.Option("--standalone", help="An executable (or, by the ending of -o, a C library) that needs no Python."),
    ] = False,
    optimise: Annotated[str, typer.Option("--optimize", help="With --standalone: speed, or size.")] = "speed",
    threads: Annotated[
        int | None, typer.Option(help="With --standalone: 0 leaves the thread pool out; else counted in the limit.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="With --standalone: embedded, or separate: beside the program, mapped, shared.")
    ] = "embedded",
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", help="With --standalone: refuse a model that needs more: 128MB.")
    ] = None,
    size: Sizes = None,
    static: StaticValues = None,
    sign: Annotated[Path | None, typer.Option(help="A file with an Ed25519 private key that signs the bundle.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="f32, tf32, bf16, int8 or fp8; language models: f32 or q8. Default: f32, or q8.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model into one file: a bundle that runs without a compiler, or an executable without Python."""
    targets = [name for name in target.split(",") if name]
    if standalone:
        if sign is not None:
            raise typer.BadParameter("--sign is for bundles: leave --standalone out")
        cli.standalone.compile_standalone(
            file,
            output,
            targets,
            size or [],
            static or [],
            as_json,
            precision,
            optimise,
            threads,
            weights,
            memory_limit,
        )
        return
    cli.compile.compile_model(file, output, targets, size or [], static or [], sign, as_json, precision)


@app.command(
    rich_help_panel=LOOK,
    epilog=_examples(
        "smelt diff model.onnx --against onnxruntime", "smelt diff model.onnx --against reference --tolerance 1e-4"
    ),
)
def diff(
    file: File,
    against: Annotated[
        str, typer.Option(help="onnxruntime, or another engine of smelt: reference, native.")
    ] = "reference",
    device: DeviceName = "auto",
    engine: EngineName = "auto",
    size: Sizes = None,
    static: StaticValues = None,
    tolerance: Annotated[float, typer.Option(help="Largest difference allowed, relative to a value's scale.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed for random inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare every intermediate value with another engine's or a peer's. Exit code 1 if one differs."""
    cli.diff.diff(file, against, engine, size or [], tolerance, seed, as_json, static or [], device)


class CheckFormat(StrEnum):
    text = "text"
    github = "github"


@app.command(
    rich_help_panel=LOOK,
    epilog=_examples("smelt check model.onnx", "smelt check src/ --strict", "smelt check model.smelt"),
)
def check(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Python files and folders of them, models (.onnx, .mlir, .mlirbc, .jaxexport), bundles."),
    ],
    size: Sizes = None,
    static: StaticValues = None,
    form: Annotated[
        CheckFormat | None,
        typer.Option("--format", help="text, or github: annotations. Default: github under GITHUB_ACTIONS, else text."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Treat functions that could not be checked as errors.")
    ] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Prove the shapes of models and Python code, for all sizes at once. Exit code 1 if something is wrong."""
    if as_json and form is not None:
        raise typer.BadParameter("--json and --format exclude each other")
    several = len(paths) > 1 or paths[0].suffix in (
        "",
        ".py",
    )  # for a single missing model the reader has the better error
    if missing := [str(path) for path in paths if several and not path.exists()]:
        raise typer.BadParameter(f"no such file or folder: {', '.join(missing)}; check the path")
    by_default = CheckFormat.github if os.environ.get("GITHUB_ACTIONS") == "true" else CheckFormat.text
    cli.check.check(paths, size or [], static or [], as_json, (form or by_default).value, strict, verbose)


@app.command(rich_help_panel=RUN, epilog=_examples("smelt devices", "smelt devices --json"))
def devices(as_json: AsJson = False) -> None:
    """List the available devices and engines, and what to install for the rest."""
    cli.devices.devices(as_json)


@app.command(
    rich_help_panel=SERVE,
    epilog=_examples(
        "smelt serve model.onnx chat=model.gguf",
        "smelt serve models/ --port 9000 --memory-budget 8GB",
        "smelt serve --config server.toml",
    ),
)
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models, bundles, language models (folder, .gguf) or repositories NAME/VERSION/model.*; or NAME=PATH."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with the server's settings.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 takes a free one. Default: 8000.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="The port for gRPC. Default: no gRPC.")] = None,
    device: Annotated[
        str | None, typer.Option(help="A device of `smelt devices`; others than cpu need --trusted. Default: auto.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="auto, native, pjrt or reference.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="f32, tf32, bf16, int8, fp8; language models: as for chat.")
    ] = None,
    memory_limit: MemoryLimit = None,
    max_batch: Annotated[int | None, typer.Option(help="Most rows per call. Default: 32; 1: no batching.")] = None,
    max_delay_ms: Annotated[
        float | None, typer.Option(help="How long a request may wait to be batched. Default: 0.")
    ] = None,
    max_queue: Annotated[int | None, typer.Option(help="Most requests queued per model. Default: 1024.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds per request. Default: 60.")] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Run these models inside the server, not each in a sandboxed process.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Server processes; each loads the models itself. Default: 1.")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Memory for all models together, e.g. 2GB; idle models are unloaded.")
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Allow loading and unloading by request, without keys.")
    ] = False,
    audit_log: Annotated[Path | None, typer.Option(help="Write refusals and changes to a hash-chained log.")] = None,
    log: Annotated[str | None, typer.Option(help="text or json.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings and exit.")] = False,
) -> None:
    """Serve models over HTTP: the Open Inference Protocol, and OpenAI's and Ollama's APIs for language models."""
    flags = {"host": host, "port": port, "grpc_port": grpc_port, "admin": admin or None, "log": log}
    flags |= {"memory_budget": memory_budget, "workers": workers}
    flags["audit_log"] = None if audit_log is None else str(audit_log)
    place = {"device": device, "engine": engine, "precision": precision}
    model = {**place, "memory_limit": memory_limit, "timeout": timeout}
    queue = {"max_batch": max_batch, "max_delay_ms": max_delay_ms, "max_queue": max_queue, "trusted": trusted or None}
    cli.serve.serve(models or [], config, flags, {**model, **queue}, print_config)


@app.command(
    rich_help_panel=TALK,
    epilog=_examples(
        "smelt pull HuggingFaceTB/SmolLM2-135M-Instruct", "smelt pull org/name --file '*Q4_K_M.gguf'", "smelt pull"
    ),
)
def pull(
    name: Annotated[str | None, typer.Argument(help="ORGANISATION/NAME. Without it: list the store.")] = None,
    revision: Annotated[str, typer.Option(help="A branch, tag or commit. Default: main.")] = "",
    file: Annotated[str, typer.Option(help="Which weights, if there are several: '*Q4_K_M.gguf'.")] = "",
    as_json: AsJson = False,
) -> None:
    """Download a model from the Hugging Face hub. Other commands then take its name."""
    if name is None:
        cli.pull.show_store(as_json)
    else:
        cli.pull.pull(name, revision, file, as_json)


@app.command(rich_help_panel=SERVE, epilog=_examples("smelt top", "smelt top --url http://127.0.0.1:8000 --once"))
def top(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(help="The API key.", envvar="SMELT_API_KEY")] = "",
    interval: Annotated[float, typer.Option(help="Seconds between updates.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a server: requests, latency, queues and memory of every model. Ctrl-C ends it."""
    cli.top.top(url, key, interval, once, as_json)


audit = typer.Typer(help="Check the log that `smelt serve --audit-log` writes.", no_args_is_help=True)
app.add_typer(audit, name="audit", rich_help_panel=SERVE)


@audit.command("verify")
def audit_verify(file: Annotated[Path, typer.Argument(help="The audit log.")], as_json: AsJson = False) -> None:
    """Check that no line of an audit log was changed, removed or inserted."""
    cli.serve.verify_audit(file, as_json)


cache = typer.Typer(help="List or clear the compiled programs on this machine.", no_args_is_help=True)
app.add_typer(cache, name="cache", rich_help_panel=SHIP)


@cache.command("ls")
def cache_ls(as_json: AsJson = False) -> None:
    """List the cached models, their sizes, and when each was last used."""
    cli.cache.ls(as_json)


@cache.command("clear")
def cache_clear(as_json: AsJson = False) -> None:
    """Remove every entry. Models compile again when they are next used."""
    cli.cache.clear(as_json)


def main() -> None:
    """The entry point. A SmeltError becomes one message; `--debug` shows its traceback."""
    try:
        try:
            with compiling():
                app()
        except SystemExit as done:  # typer's exception for Ctrl-C
            if done.code == INTERRUPTED:
                raise KeyboardInterrupt from done
            raise
    except SmeltError as error:
        if "traceback" in os.environ.get("SMELT_DEBUG", ""):
            traceback.print_exc()
        if "--json" in sys.argv:
            print(json.dumps(error.record()))
        else:
            _print_error(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _print_error(text: str) -> None:
    from rich.console import Console

    escaped = text.replace("[", r"\[")
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error[/] {escaped}")


if __name__ == "__main__":
    main()
