"""`python -m bench.llm_random OUT.gguf --format q4_0`: random weights in the shape of a known model, for `bench.llm`.

Speed does not depend on what weights say, only on their sizes and formats. Blocks are random codes with small scales.
The package `gguf` writes the file; it has no vocabulary, so that prompts are token ids.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from smelt.dtype import Array
from smelt.ir.blocks import BLOCKS

# layers, width, width of the MLP, heads, heads of keys and values, vocabulary
SHAPES = {"tinyllama-1.1b": (22, 2048, 5632, 32, 4, 32_000), "smollm2-135m": (30, 576, 1536, 9, 3, 49_152)}
# Two layers of Qwen3-30B-A3B: the width of an expert, then the number of experts and of those that a token takes.
SHAPES |= {"qwen3-moe-2-layers": (2, 2048, 768, 32, 4, 151_936, 128, 8)}


def main(arguments: Sequence[str] | None = None) -> int:
    found = argparse.ArgumentParser(prog="bench.llm_random", description=(__doc__ or "").split("\n\n")[0])
    found.add_argument("out", type=Path)
    found.add_argument("--shape", choices=SHAPES, default="tinyllama-1.1b")
    found.add_argument("--format", choices=["q4_0", "q4_1", "q8_0", "f16", "bf16", "f32"], default="q4_0")
    options = found.parse_args(arguments)
    write(options.out, SHAPES[options.shape], options.format)
    return 0


def write(path: Path, shape: tuple[int, ...], format: str) -> None:
    import gguf

    layers, d, f, heads, groups, v, *mixture = shape
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(f)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_rope_dimension_count(d // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    if mixture:
        writer.add_expert_count(mixture[0])
        writer.add_expert_used_count(mixture[1])
    writer.add_vocab_size(v)
    writer.add_tokenizer_model("none")
    dice = np.random.default_rng(0)

    def add(name: str, rows: int, columns: int, *experts: int) -> None:
        kind, count = gguf.GGMLQuantizationType[format.upper()], experts[0] if experts else 1
        data = matrix(dice, format, count * rows, columns)
        writer.add_tensor(f"{name}.weight", data.reshape(*experts, rows, -1), raw_dtype=kind)

    narrow = d // heads * groups
    add("token_embd", v, d)
    for i in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(d, np.float32))
        for name, rows, columns in (
            ("attn_q", d, d),
            ("attn_k", narrow, d),
            ("attn_v", narrow, d),
            ("attn_output", d, d),
        ):
            add(f"blk.{i}.{name}", rows, columns)
        for name, rows, columns in (("ffn_gate", f, d), ("ffn_up", f, d), ("ffn_down", d, f)):
            add(f"blk.{i}.{name}_exps" if mixture else f"blk.{i}.{name}", rows, columns, *mixture[:1])
        if mixture:
            router = dice.standard_normal((mixture[0], d), np.float32)
            writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router)
    writer.add_tensor("output_norm.weight", np.ones(d, np.float32))
    add("output", v, d)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def matrix(dice: np.random.Generator, format: str, rows: int, columns: int) -> Array:
    """Random numbers of about 0.02, as the bytes of a format."""
    if format in BLOCKS:
        row = BLOCKS[format]
        codes = dice.integers(0, 256, (rows, columns // row.length, row.bytes), np.uint8)
        codes[..., row.scale : row.scale + 2] = np.array(
            [0.0003 if row.length == 32 and row.bytes > 32 else 0.004], np.float16
        ).view(np.uint8)
        if row.minimum is not None:
            codes[..., row.minimum : row.minimum + 2] = np.array([-0.02], np.float16).view(np.uint8)
        return codes.reshape(rows, -1)
    dense = dice.standard_normal((rows, columns), np.float32) * np.float32(0.02)
    if format == "bf16":
        return dense.astype(ml_dtypes.bfloat16).view(np.uint8).reshape(rows, -1)
    return dense.astype(np.float16 if format == "f16" else np.float32)


if __name__ == "__main__":
    sys.exit(main())
