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
    help="Take any model, prove its shapes, compile it for this machine, run it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    Path, typer.Argument(help="A model: .onnx, .mlir (StableHLO text), .mlirbc (portable bytecode) or .jaxexport.")
]
LanguageModelPath = Annotated[
    Path, typer.Argument(help="A language model: a Hugging Face folder, a .gguf file, or a name that was pulled.")
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
    typer.Option("--memory-limit", help="The most memory the model may take, calls included: 512MB, 2GiB."),
]
Precision = Annotated[str, typer.Option(help="f32; or bf16, int8: weight matmuls and convolutions in 16 or 8 bits.")]
DeviceName = Annotated[str, typer.Option("--device", help="auto, or a device of `smelt devices`: cpu, cuda, cuda:1.")]
EngineName = Annotated[str, typer.Option("--engine", help="auto, native, pjrt or reference.")]


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


@app.command()
def demo(
    chat: Annotated[bool, typer.Option("--chat", help="Talk with a small language model instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Classify real handwritten digits: read, prove, compile, run. Every number shown is computed now."""
    if chat:
        cli.demo_chat.demo_chat()
    else:
        cli.demo.demo(as_json)


@app.command()
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
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
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


@app.command()
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


@app.command()
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
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token each time.")]
TopP = Annotated[float, typer.Option(help="Draw from the likeliest tokens up to this total probability.")]
TopK = Annotated[int, typer.Option(help="Draw from this many of the likeliest tokens; 0: from all.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.")]


@app.command()
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
    engine: EngineName = "auto",
    context: Context = None,
    memory_limit: MemoryLimit = None,
    as_json: AsJson = False,
) -> None:
    """Complete a text with a language model."""
    if (prompt is None) == (not ids):
        raise typer.BadParameter('give either a prompt or --ids: smelt generate MODEL "Once upon"')
    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}
    loading = {"engine": engine, "context": context, "memory_limit": memory_limit}
    more = {"max_tokens": max_tokens, "stop": tuple(stop or ()), "ignore_end": ignore_end}
    cli.generate.generate(model, prompt, ids, {**asked, **more}, loading, as_json)


@app.command()
def chat(
    model: LanguageModelPath,
    system: Annotated[str, typer.Option(help="The system prompt.")] = "",
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    engine: EngineName = "auto",
    context: Context = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Talk with a language model. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends."""
    asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed, "max_tokens": max_tokens}
    loading = {"engine": engine, "context": context, "memory_limit": memory_limit}
    cli.chat.chat(model, system, asked, loading)


@app.command()
def embed(
    model: LanguageModelPath,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; else the lines of the standard input.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the vectors to this .npy file.")] = None,
    prompt: Annotated[str, typer.Option(help="A prompt of the model's own, by name, to put before every text.")] = "",
    engine: EngineName = "auto",
    as_json: AsJson = False,
) -> None:
    """Turn texts into vectors: an encoder (BERT, RoBERTa, MiniLM), or the last layer of a decoder."""
    cli.embed.embed(model, texts or [], output, {"engine": engine}, as_json, prompt)


@app.command()
def quantise(
    model: LanguageModelPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The GGUF file to write.")],
    to: Annotated[str, typer.Option(help="q4_0, q4_1, q5_0, q5_1 or q8_0.")] = "q4_0",
    text: Annotated[Path | None, typer.Option(help="A text file on which the perplexity of both is measured.")] = None,
    engine: EngineName = "auto",
    as_json: AsJson = False,
) -> None:
    """Write a GGUF file or a Hugging Face folder as GGUF with matrices in a smaller format; say what they lost."""
    cli.quantise.quantise(model, output, to, text, {"engine": engine}, as_json)


@app.command()
def bench(
    file: Annotated[Path | None, typer.Argument(help="A model or a bundle; or --url.")] = None,
    against: Annotated[
        str,
        typer.Option(help="Peers, with commas: onnxruntime, openvino, ncnn, torch, jax; of language models llama.cpp."),
    ] = "",
    size: Sizes = None,
    static: StaticValues = None,
    engine: EngineName = "auto",
    precision: Annotated[
        str | None, typer.Option(help="f32, bf16 or int8; of language models f32 or q8. Default: f32, and q8.")
    ] = None,
    memory_limit: MemoryLimit = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, about.")] = 5.0,
    prompt: Annotated[int, typer.Option(help="Tokens of a language model's prompt.")] = 512,
    new: Annotated[int, typer.Option(help="Tokens that a language model generates.")] = 128,
    threads: Annotated[int | None, typer.Option(help="Threads of every engine. Default: one per core.")] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="ENGINE=PATH: the Python that has a peer, if it is not this one.")
    ] = None,
    original: Annotated[
        Path | None, typer.Option(help="The model that a bundle was made of, for the peers to read.")
    ] = None,
    url: Annotated[str, typer.Option(help="A server to load instead: http://HOST:PORT. Open loop.")] = "",
    model: Annotated[str, typer.Option(help="With --url: the model to call. Default: the only one.")] = "",
    rate: Annotated[float, typer.Option(help="With --url: requests per second, Poisson arrivals.")] = 100.0,
    within: Annotated[
        float,
        typer.Option(help="With --url: milliseconds to an answer, or its first token, that count as goodput."),
    ] = 1000.0,
    key: Annotated[str, typer.Option(help="With --url: the API key.", envvar="SMELT_API_KEY")] = "",
    seed: Annotated[int, typer.Option(help="Seed of random inputs and arrivals.")] = 0,
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
        given = {"engine": engine, "precision": precision, "memory_limit": memory_limit}
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
    )


@app.command()
def profile(
    file: File,
    size: Sizes = None,
    static: StaticValues = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, about.")] = 2.0,
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
    """Show each kernel's time, GFLOP/s, GB/s and how near it comes to the device's roofline."""
    chosen = cli.profile.Options(
        tuple(size or ()), tuple(static or ()), seconds, top, each, as_json, trace, svg, peaks_again, device
    )
    cli.profile.profile(file, chosen)


@app.command()
def tune(
    file: Annotated[Path | None, typer.Argument(help="A model: .onnx, .mlir, .mlirbc or .jaxexport.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, about.")] = 60.0,
    size: Sizes = None,
    static: StaticValues = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs and of the search.")] = 0,
    export: Annotated[Path | None, typer.Option(help="Write the tuning database as FILE.jsonl.")] = None,
    merge: Annotated[Path | None, typer.Option(help="Add such a file to the database.")] = None,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Autotune: measure which kernel schedules are fastest here. Later compiles use them; no result changes."""
    chosen = cli.tune.Options(seconds, tuple(size or ()), tuple(static or ()), seed, export, merge, as_json, device)
    cli.tune.tune(file, chosen)


@app.command()
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


@app.command("compile")
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
            help="Targets, with commas: avx512, avx512vnni, avx2, neon, plain. Default: this machine's, and plain. "
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
        str | None, typer.Option(help="f32, bf16 or int8; of language models f32 or q8. Default: f32, and q8.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model into a bundle (program, machine code, packed weights, signature in one file) or a program."""
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


@app.command()
def diff(
    file: File,
    against: Annotated[str, typer.Option(help="onnxruntime, or an engine of ours: reference, native.")] = "reference",
    engine: EngineName = "auto",
    size: Sizes = None,
    static: StaticValues = None,
    tolerance: Annotated[float, typer.Option(help="Largest difference allowed, relative to a value's scale.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare every intermediate value with another engine's or a peer's. Exit code 1 if one differs."""
    cli.diff.diff(file, against, engine, size or [], tolerance, seed, as_json, static or [])


class CheckFormat(StrEnum):
    text = "text"
    github = "github"


@app.command()
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
        bool, typer.Option("--strict", help="Count functions that could not be checked as mistakes.")
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


@app.command()
def devices(as_json: AsJson = False) -> None:
    """List the devices and engines here, and what the others need."""
    cli.devices.devices(as_json)


@app.command()
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
    engine: Annotated[str | None, typer.Option(help="auto, native, pjrt or reference.")] = None,
    precision: Annotated[str | None, typer.Option(help="f32, bf16, int8; for language models f32 or q8.")] = None,
    memory_limit: MemoryLimit = None,
    max_batch: Annotated[int | None, typer.Option(help="Most rows of one call. Default: 32; 1: no batching.")] = None,
    max_delay_ms: Annotated[float | None, typer.Option(help="How long a request may wait for others.")] = None,
    max_queue: Annotated[int | None, typer.Option(help="Most requests that wait for a model. Default: 1024.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for a request. Default: 60.")] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Run these models inside the server, not each in a sandboxed process.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Server processes, each with models of its own. Default: 1.")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Memory for all models at once, e.g. 2GB; idle ones are unloaded.")
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Allow loading and unloading by request, without keys.")
    ] = False,
    audit_log: Annotated[
        Path | None, typer.Option(help="Write a hash-chained log of what is refused or changed.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="text or json.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings and exit.")] = False,
) -> None:
    """Serve models over HTTP: the Open Inference Protocol for tensors, OpenAI's API for language models."""
    flags = {"host": host, "port": port, "grpc_port": grpc_port, "admin": admin or None, "log": log}
    flags |= {"memory_budget": memory_budget, "workers": workers}
    flags["audit_log"] = None if audit_log is None else str(audit_log)
    model = {"engine": engine, "precision": precision, "memory_limit": memory_limit, "timeout": timeout}
    queue = {"max_batch": max_batch, "max_delay_ms": max_delay_ms, "max_queue": max_queue, "trusted": trusted or None}
    cli.serve.serve(models or [], config, flags, {**model, **queue}, print_config)


@app.command()
def pull(
    name: Annotated[str | None, typer.Argument(help="ORGANISATION/NAME. Without it: list what was pulled.")] = None,
    revision: Annotated[str, typer.Option(help="A branch, tag or commit. Default: main.")] = "",
    file: Annotated[str, typer.Option(help="Which weights, if there are several: '*Q4_K_M.gguf'.")] = "",
    as_json: AsJson = False,
) -> None:
    """Download a model from the Hugging Face hub into the local store; chat, generate and serve take its name."""
    if name is None:
        cli.pull.show_store(as_json)
    else:
        cli.pull.pull(name, revision, file, as_json)


@app.command()
def top(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(help="The API key.", envvar="SMELT_API_KEY")] = "",
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a server does: requests, latency, queues and memory of every model. Ctrl-C ends it."""
    cli.top.top(url, key, interval, once, as_json)


audit = typer.Typer(help="Check the log that `smelt serve --audit-log` writes.", no_args_is_help=True)
app.add_typer(audit, name="audit")


@audit.command("verify")
def audit_verify(file: Annotated[Path, typer.Argument(help="The audit log.")], as_json: AsJson = False) -> None:
    """Check that no line of an audit log was changed, removed or put in."""
    cli.serve.verify_audit(file, as_json)


cache = typer.Typer(help="List or clear the compiled programs on this machine.", no_args_is_help=True)
app.add_typer(cache, name="cache")


@cache.command("ls")
def cache_ls(as_json: AsJson = False) -> None:
    """List the models behind the entries, their sizes, and when each was last used."""
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
