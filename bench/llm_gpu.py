"""`python -m bench.llm_gpu --out FILE.json`: the engine of language models on a GPU, beside a decoder by hand in JAX.

A decoder of Llama 3.1 8B's sizes with random bf16 weights. Ours: `smelt.llm`'s engine through pjrt, with scheduler,
paged cache and sampling. The twin: `bench.llama_gpu.Twin`, one jitted step with a contiguous cache, in both layouts of
its weights. Rounds are interleaved; the ratio is to the faster layout. The record is written after every batch size.
`step` has a decode step alone, called back to back: device time, the host's time to start it, bytes that it reads;
with `--options` also as compiled with other XLA options. `read` has the step of a prompt alone, `again` a decode step
whose program the cache has. `--dump` writes what XLA made of both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bench.llama_gpu import Twin
from examples.llama_gpu import BASE, EPSILON, Sizes
from smelt.dtype import Array, bf16
from smelt.llm.batch import Batch
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.checkpoint_model import load_checkpoint
from smelt.llm.config import PAGE
from smelt.llm.decode import DecodeRun, SlotPrograms
from smelt.llm.families import read_config
from smelt.llm.language_model import LanguageModel
from smelt.llm.names import canonical
from smelt.llm.pages import Sequence as Pages
from smelt.llm.request import Request
from smelt.llm.sample import Sampler, Sampling
from smelt.shape import Shape
from smelt.weights import Stored, Weights

PROMPT = 2 * PAGE + 1  # the last token of a prompt is all that is left to read where its pages are cached
NEW = PAGE - 2  # so that all steps of a round have the same number of pages
TINY = Sizes(layers=2, d=64, f=96, heads=4, kv_heads=2, v=256, places=4 * PAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two clients share the device's memory
    import jax

    sizes = TINY if options.tiny else Sizes(layers=options.layers, places=4 * PAGE)
    batches = [int(each) for each in options.batches.split(",")]
    record: dict[str, Any] = {"jax": jax.__version__, "devices": str(jax.devices()), "sizes": vars(sizes)}
    record |= {"prompt": PROMPT, "new": NEW, "engine": options.device, "batches": {}, "load_s": {}}
    started = time.perf_counter()

    def note(what: str) -> None:
        print(f"{time.perf_counter() - started:7.1f} s  {what}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n")

    seconds, model = _measure(lambda: open_model(sizes, options.device, max(batches)))
    record["load_s"]["smelt"] = seconds
    note(f"smelt has its weights: {seconds:.1f} s")
    twins: dict[str, RandomTwin] = {}
    for name in () if options.alone else ("as_filed", "turned"):
        seconds, twins[name] = _measure(partial(RandomTwin, sizes, name == "as_filed"))
        record["load_s"][name] = seconds
        note(f"the twin ({name}) has its weights: {seconds:.1f} s")
    for batch in batches:
        if time.perf_counter() - started > options.limit:
            note(f"batch {batch} is left out: no time")
            continue
        until = min(started + options.limit, time.perf_counter() + options.limit_per_batch)
        record["batches"][str(batch)] = found = measure(model, twins, batch, options.rounds, until, note)
        note(f"batch {batch}: {_line(found)}")
        found["step"] = model._engine.between_steps(partial(measure_step, model, _slots(model), batch))
        note(f"batch {batch}: {found['step']}")
        if options.dump:
            dump(options.dump, model, twins, batch)
        if batch == batches[0]:
            found["read"] = model._engine.between_steps(partial(measure_reading, model))
            with _compiled_with(model, "") as slots:  # from the cache of programs
                found["again"] = model._engine.between_steps(partial(measure_step, model, slots, batch))
                if options.draw:
                    asked = Sampling(temperature=0.8, top_k=50, top_p=0.95)
                    act = partial(measure_step, model, slots, batch, asked=asked)
                    found["draw"] = model._engine.between_steps(act)
            note(f"batch {batch}: {found['read']}, again {found['again']}, drawing {found.get('draw')}")
        for given in options.options if batch == batches[0] else ():
            with _compiled_with(model, given) as slots:
                found[given] = model._engine.between_steps(partial(measure_step, model, slots, batch))
            note(f"batch {batch}, {given}: {found[given]}")
    model.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="bench.llm_gpu", description=(__doc__ or "").split("\n\n")[0])
    found.add_argument("--out", type=Path)
    found.add_argument("--device", default="cuda", help="of the pjrt engine: cuda or cpu")
    found.add_argument("--batches", default="1,8,32,128")
    found.add_argument("--layers", type=int, default=32)
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--limit", type=float, default=480.0, help="seconds in all, after which no batch size begins")
    found.add_argument("--limit-per-batch", type=float, default=150.0, help="seconds, after which no round begins")
    found.add_argument("--tiny", action="store_true", help="a small model, for a processor")
    found.add_argument("--alone", action="store_true", help="no twin")
    found.add_argument("--dump", type=Path, help="a folder for XLA's optimised programs")
    found.add_argument("--draw", action="store_true", help="a step that draws tokens, too, for the first batch size")
    found.add_argument("--options", nargs="*", default=[], help="name=value of XLA, each for the first batch size")
    return found


# ---- both sides ----


def open_model(sizes: Sizes, device: str, most: int) -> LanguageModel:
    """Our model with random weights; its cache has room for `most` sequences."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": sizes.d,
        "intermediate_size": sizes.f,
        "vocab_size": sizes.v,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "rms_norm_eps": EPSILON,
        "rope_theta": BASE,
        "max_position_embeddings": 1 << 15,
        "tie_word_embeddings": False,
    }
    read = read_config(config, "config.json")
    weights, _ = canonical(random_weights(sizes), read, False)
    checkpoint = Checkpoint(Path("random"), "folder", read, weights, dict.fromkeys(weights, bf16))
    context = max(1024, most * 4 * PAGE)  # one sequence never has it: this is the room of the cache
    model = load_checkpoint(checkpoint, device, "pjrt", context, "bf16", sequences=most)
    model._engine.pool.reserve(model._engine.pool.pages.limit)
    return model


def random_weights(sizes: Sizes) -> Weights:
    """bf16 under Hugging Face's names: parts of one array, so that the host has little to make."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes.v, sizes.d),
        "lm_head.weight": (sizes.v, sizes.d),
        "model.norm.weight": (sizes.d,),
    }
    wide, narrow = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    for i in range(sizes.layers):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.{name}.weight": (sizes.d,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (narrow, sizes.d) for name in "kv"}
        shapes |= {f"{at}.self_attn.q_proj.weight": (wide, sizes.d), f"{at}.self_attn.o_proj.weight": (sizes.d, wide)}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (sizes.f, sizes.d) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (sizes.d, sizes.f)
    few = np.random.default_rng(0).standard_normal(1 << 20, np.float32) * 0.02
    most = max(int(np.prod(each)) for each in shapes.values())
    noise = np.resize(few.astype(ml_dtypes.bfloat16), most)
    ones = np.ones(sizes.d, ml_dtypes.bfloat16)

    def load(shape: tuple[int, ...]) -> Callable[[], Array]:
        return lambda: ones if len(shape) == 1 else noise[: int(np.prod(shape))].reshape(shape)

    return Weights({name: Stored(Shape("bf16", *shape), load(shape)) for name, shape in shapes.items()})


class RandomTwin(Twin):
    """The twin with weights that the device makes itself."""

    def __init__(self, sizes: Sizes, as_filed: bool) -> None:
        import jax

        self.jax, self.sizes, self.as_filed = jax, sizes, as_filed
        keys = iter(jax.random.split(jax.random.key(0), 8 * sizes.layers + 2))
        make = jax.jit(
            lambda key, shape: jax.random.normal(key, shape, jax.numpy.bfloat16) * jax.numpy.bfloat16(0.02),
            static_argnums=1,
        )

        def matrix(out: int, wide: int) -> Any:
            return make(next(keys), (out, wide) if as_filed else (wide, out)).block_until_ready()

        ones = jax.numpy.ones(sizes.d, jax.numpy.bfloat16)
        d, wide, narrow = sizes.d, sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size

        def layer() -> dict[str, Any]:
            found = {"q": matrix(wide, d), "k": matrix(narrow, d), "v": matrix(narrow, d), "o": matrix(d, wide)}
            found |= {"gate": matrix(sizes.f, d), "up": matrix(sizes.f, d), "down": matrix(d, sizes.f)}
            return {**found, "before": ones, "after": ones}

        self.weights = {
            "table": make(next(keys), (sizes.v, d)),
            "layers": [layer() for _ in range(sizes.layers)],
            "norm": ones,
            "head": matrix(sizes.v, d),
        }
        self.step = jax.jit(self._step, donate_argnums=(2,))

    def decode(self, batch: int, count: int) -> float:
        """Seconds of `count` steps from position PROMPT on."""
        jnp = self.jax.numpy
        tokens, caches = jnp.zeros((batch, 1), jnp.int32), self.empty(batch)
        at = jnp.int32(PROMPT)
        tokens, _, caches, at = self.step(self.weights, tokens, caches, at)
        tokens.block_until_ready()
        start = time.perf_counter()
        for _ in range(count):
            tokens, _, caches, at = self.step(self.weights, tokens, caches, at)
        tokens.block_until_ready()
        return time.perf_counter() - start


# ---- measuring ----


def measure(
    model: LanguageModel,
    twins: dict[str, RandomTwin],
    batch: int,
    rounds: int,
    until: float,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Tokens per second of both, time to the first token of one prompt, time per token."""
    dice = np.random.default_rng(batch)
    times: dict[str, list[float]] = {"smelt": [], **{name: [] for name in twins}}
    first: list[float] = []
    for number in range(rounds + 1):
        if number > 1 and time.perf_counter() > until:
            break
        prompts = dice.integers(0, model.config.v, (batch, PROMPT)).tolist()
        alone = [model.generate(each, max_tokens=1, ignore_end=True).timings["prefill_s"] for each in prompts]
        answers = model.generate_all(prompts, max_tokens=NEW, ignore_end=True)
        mine = min(each.timings["decode_s"] for each in answers)  # of the one that began last
        others = {name: twin.decode(batch, NEW - 1) for name, twin in twins.items()}
        if number == 0:
            note(f"batch {batch}: compiled")
            continue
        first += alone
        for name, seconds in {"smelt": mine, **others}.items():
            times[name].append(seconds)
    found: dict[str, Any] = {"rounds": len(times["smelt"]), "time_to_first_token_s": statistics.median(first)}
    found["tokens_per_s"] = {name: batch * (NEW - 1) / statistics.median(each) for name, each in times.items()}
    found["time_per_token_ms"] = {name: 1e3 * statistics.median(each) / (NEW - 1) for name, each in times.items()}
    if twins:
        best = min(twins, key=lambda name: statistics.median(times[name]))
        found["faster_layout"] = best
        found["ratio"] = statistics.median(a / b for a, b in zip(times[best], times["smelt"], strict=True))
    return found


# ---- a step alone ----


def measure_reading(model: LanguageModel, count: int = 8) -> dict[str, float]:
    """The step that reads a prompt of `PROMPT` tokens, called `count` times in a row."""
    pool = model._engine.pool
    pages = list(range(-(-PROMPT // PAGE)))
    batch = Batch.of([([0] * PROMPT, 0, pages, [PROMPT - 1])])
    start = 0.0
    for i in range(count + 2):
        if i == 2:
            start = time.perf_counter()
        made, arrays = model._step.run(batch, pool.take())
        pool.give(arrays)
        if i == 1:
            made.best(0)
    made.best(0)
    return {"device_ms": 1e3 * (time.perf_counter() - start) / count}


def measure_step(
    model: LanguageModel, slots: SlotPrograms, batch: int, count: int = 24, asked: Sampling | None = None
) -> dict[str, float]:
    """A decode step over slots, called `count` times in a row: milliseconds, and what it moves. The pages are garbage:
    the model's own are forgotten."""
    model._engine.pool.pages.forget()
    pool = model._engine.pool
    pools = pool.take()
    pool.give(pools)
    pages = -(-PROMPT // PAGE)
    requests = [
        Request([0] * (PROMPT + 1), count, Sampler(asked or Sampling(), [], model.config.v)) for _ in range(batch)
    ]
    for request in requests:
        request.sequence = Pages(list(range(pages)), PROMPT)
    seconds, run = _measure(lambda: DecodeRun(slots, requests, pools))
    first, _ = _measure(lambda: run.step().best(0))  # compiles
    for _ in range(4):
        made = run.step()
    made.best(0)
    start = time.perf_counter()
    for i in range(count):
        made = run.step()
        if i == 7:
            begun = time.perf_counter() - start
    made.best(0)
    each = (time.perf_counter() - start) / count
    moved = model_bytes(model) + slots.nbytes(batch, PROMPT)
    memory = (slots.greedy if asked is None else slots.drawing).memory()
    return {
        "device_ms": 1e3 * each,
        "start_ms": 1e3 * begun / 8,
        "first_s": first,
        "fill_ms": 1e3 * seconds,
        "token": made.best(0) or 0,  # the same from the cache of programs
        "read_gb": moved / 1e9,
        "gb_per_s": moved / 1e9 / each,
        "in_place_gb": memory.aliased / 1e9,
        "temporaries_gb": memory.temporary / 1e9,
    }


def model_bytes(model: LanguageModel) -> int:
    """Bytes of the weights that a step reads: all but the table of embeddings."""
    buffers = _step(model).placed.buffers
    return sum(buffer.nbytes for name, buffer in buffers.items() if name != "embed.weight")


def _step(model: LanguageModel) -> Any:
    return model._step


def _slots(model: LanguageModel) -> SlotPrograms:
    found: SlotPrograms = _step(model).slots
    return found


@contextmanager
def _compiled_with(model: LanguageModel, given: str) -> Iterator[SlotPrograms]:
    """The programs again, compiled with an option of XLA, or none."""
    step = _step(model)
    platform = step._bound.platform
    client = platform.engine.client
    before = client.options
    client.options = {**before, **dict([given.split("=", 1)] if given else [])}
    made = SlotPrograms(step.placed, model.config, platform, step.precision)
    try:
        yield made
    finally:
        client.options = before
        made.close()


def dump(folder: Path, model: LanguageModel, twins: dict[str, RandomTwin], batch: int) -> None:
    """What XLA made of the latest steps of both, as text."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = _slots(model).greedy.compiled._program().latest._raw
    (folder / f"smelt{batch}.txt").write_text(raw.hlo_modules()[0].to_string())
    for twin in list(twins.values())[:1]:  # its client has the programs of all
        modules = [each.hlo_modules()[0] for each in twin.jax.devices()[0].client.live_executables()]
        texts = [module.to_string() for module in modules if "step" in module.name]
        for i, text in enumerate(text for text in texts if f"s32[{batch},1]" in text):
            (folder / f"jax{batch}_{i}.txt").write_text(text)


def _line(found: dict[str, Any]) -> str:
    rates = ", ".join(f"{name} {rate:.1f} tokens/s" for name, rate in found["tokens_per_s"].items())
    ratio = f", ratio {found['ratio']:.3f}" if "ratio" in found else ""
    return f"{rates}{ratio}, first token {1e3 * found['time_to_first_token_s']:.1f} ms"


def _measure(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


if __name__ == "__main__":
    sys.exit(main())
