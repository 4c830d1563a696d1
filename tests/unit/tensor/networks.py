# ruff: noqa: F722  # shapes are no forward references
"""Whole networks written with `smelt.nn`: Llama, BERT, ViT, U-Net and Whisper, under their checkpoints' own names.

Sizes of batches and sequences are symbols in the annotations; a configuration says the rest, in numbers or symbols.
"""

from typing import Any

import smelt
from smelt import Shaped, Tensor, nn

# ---- Llama ----


class LlamaMLP(smelt.Model):
    def __init__(self, d: Any, f: Any) -> None:
        self.gate_proj = nn.Linear(d=d, f=f, bias=False)
        self.up_proj = nn.Linear(d=d, f=f, bias=False)
        self.down_proj = nn.Linear(f=f, d=d, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(smelt.Model):
    def __init__(self, d: Any, f: Any, heads: Any, kv_heads: Any, head_size: Any) -> None:
        self.input_layernorm = nn.RMSNorm(d=d, epsilon=1e-5)
        self.self_attn = nn.MultiHeadAttention(
            d=d, heads=heads, kv_heads=kv_heads, head_size=head_size, causal=True, rope=nn.RoPE(k=head_size)
        )
        self.post_attention_layernorm = nn.RMSNorm(d=d, epsilon=1e-5)
        self.mlp = LlamaMLP(d, f)

    def __call__(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))

    def step(self, x: Tensor, cache: tuple[Tensor, Tensor], places: Tensor, at: Tensor) -> Any:
        y, cache = self.self_attn(self.input_layernorm(x), positions=places, cache=cache, at=at)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class LlamaBody(smelt.Model):
    def __init__(self, layers: int, v: Any, d: Any, f: Any, heads: Any, kv_heads: Any, head_size: Any) -> None:
        self.embed_tokens = nn.Embedding(v=v, d=d)
        self.layers = [LlamaLayer(d, f, heads, kv_heads, head_size) for _ in range(layers)]
        self.norm = nn.RMSNorm(d=d, epsilon=1e-5)


class Llama(smelt.Model):
    """A decoder with grouped heads and rotary positions; the names are those of Hugging Face's LlamaForCausalLM."""

    def __init__(
        self,
        layers: int = 2,
        v: Any = 32,
        d: Any = 16,
        f: Any = 24,
        heads: Any = 4,
        kv_heads: Any = 2,
        head_size: Any = 4,
    ) -> None:
        self.model = LlamaBody(layers, v, d, f, heads, kv_heads, head_size)
        self.lm_head = nn.Linear(d=d, v=v, bias=False)

    def forward(self, ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Tensor:
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))

    def decode(self, ids: Shaped[Tensor, "i32[b=B, s=S]"], caches: Any, at: Shaped[Tensor, "i32[]"]) -> Any:
        """The same for tokens that follow others, whose keys and values are in caches [b=B, t=C, g, k]; S <= C."""
        x = self.model.embed_tokens(ids)
        places = smelt.arange(ids.size("s"), "s") + at
        after = []
        for layer, cache in zip(self.model.layers, caches, strict=True):
            x, cache = layer.step(x, cache, places, at)
            after.append(cache)
        return self.lm_head(self.model.norm(x)), after


# ---- BERT ----


class BertSelf(smelt.Model):
    def __init__(self, d: Any) -> None:
        self.query = nn.Linear(d=d, e=d)
        self.key = nn.Linear(d=d, e=d)
        self.value = nn.Linear(d=d, e=d)


class BertOutput(smelt.Model):
    def __init__(self, came: dict[str, Any], d: Any) -> None:
        self.dense = nn.Linear(**came, d=d)
        self.LayerNorm = nn.LayerNorm(d=d, epsilon=1e-12)

    def __call__(self, x: Tensor, beside: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + beside)


class BertAttention(smelt.Model):
    def __init__(self, d: Any, heads: Any) -> None:
        self.heads = heads
        self.self = BertSelf(d)
        self.output = BertOutput({"e": d}, d)

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        layers = self.self.query, self.self.key, self.self.value
        q, k, v = (layer(x).split("e", h=self.heads, k=None) for layer in layers)
        y = nn.attention(q, k.rename(s="t"), v.rename(s="t"), mask=mask.rename(s="t"))
        return self.output(y.merge("h k", "e"), x)


class BertIntermediate(smelt.Model):
    def __init__(self, d: Any, f: Any) -> None:
        self.dense = nn.Linear(d=d, f=f)


class BertLayer(smelt.Model):
    def __init__(self, d: Any, f: Any, heads: Any) -> None:
        self.attention = BertAttention(d, heads)
        self.intermediate = BertIntermediate(d, f)
        self.output = BertOutput({"f": f}, d)

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        return self.output(nn.gelu(self.intermediate.dense(x)), x)


class BertEmbeddings(smelt.Model):
    def __init__(self, v: Any, d: Any, longest: Any) -> None:
        self.word_embeddings = nn.Embedding(v=v, d=d)
        self.position_embeddings = nn.Embedding(p=longest, d=d)
        self.token_type_embeddings = nn.Embedding(n=2, d=d)
        self.LayerNorm = nn.LayerNorm(d=d, epsilon=1e-12)

    def __call__(self, ids: Tensor, types: Tensor) -> Tensor:
        places = self.position_embeddings.weight.slice(p=slice(0, ids.size("s"))).rename(p="s")
        return self.LayerNorm(self.word_embeddings(ids) + self.token_type_embeddings(types) + places)


class BertEncoder(smelt.Model):
    def __init__(self, layers: int, d: Any, f: Any, heads: Any) -> None:
        self.layer = [BertLayer(d, f, heads) for _ in range(layers)]


class BertPooler(smelt.Model):
    def __init__(self, d: Any) -> None:
        self.dense = nn.Linear(d=(d, d))


class Bert(smelt.Model):
    """An encoder with learned positions; the names are those of Hugging Face's BertModel."""

    def __init__(
        self, layers: int = 2, v: Any = 32, d: Any = 16, f: Any = 24, heads: Any = 4, longest: Any = 64
    ) -> None:
        self.embeddings = BertEmbeddings(v, d, longest)
        self.encoder = BertEncoder(layers, d, f, heads)
        self.pooler = BertPooler(d)
        self.facts = [f"S <= {longest}", f"{heads} divides {d}", "S >= 1"]

    def forward(
        self,
        ids: Shaped[Tensor, "i32[b=B, s=S]"],
        types: Shaped[Tensor, "i32[b=B, s=S]"],
        mask: Shaped[Tensor, "i1[b=B, s=S]"],
    ) -> tuple[Tensor, Tensor]:
        x = self.embeddings(ids, types)
        for layer in self.encoder.layer:
            x = layer(x, mask)
        return x, self.pooler.dense(x.slice(s=0)).tanh()


# ---- ViT ----


class ViTBlock(smelt.Model):
    def __init__(self, d: Any, f: Any, heads: Any) -> None:
        self.norm1 = nn.LayerNorm(d=d, epsilon=1e-6)
        self.attn = nn.MultiHeadAttention(d=d, heads=heads, bias=True)
        self.norm2 = nn.LayerNorm(d=d, epsilon=1e-6)
        self.mlp = nn.Sequential(nn.Linear(d=d, f=f), nn.gelu, nn.Linear(f=f, d=d))

    def __call__(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(smelt.Model):
    """Patches of an image of any size as a sequence; positions are learned for rows and for columns."""

    def __init__(self, layers: int = 2, patch: int = 4, d: Any = 16, f: Any = 24, heads: Any = 4, n: Any = 10) -> None:
        self.patch_embed = nn.Conv2d(c=3, d=d, y=patch, x=patch, strides=patch)
        self.row_embed = nn.Embedding(p=32, d=d)
        self.column_embed = nn.Embedding(p=32, d=d)
        self.cls_token = nn.parameter(f"[d={d}]")
        self.blocks = [ViTBlock(d, f, heads) for _ in range(layers)]
        self.norm = nn.LayerNorm(d=d, epsilon=1e-6)
        self.head = nn.Linear(d=d, n=n)
        self.facts = [f"H >= {patch}", f"W >= {patch}", f"H <= {32 * patch}", f"W <= {32 * patch}"]

    def forward(self, image: Shaped[Tensor, "f32[b=B, c=3, y=H, x=W]"]) -> Tensor:
        x = self.patch_embed(image)
        rows = self.row_embed.weight.slice(p=slice(0, x.size("y"))).rename(p="y")
        columns = self.column_embed.weight.slice(p=slice(0, x.size("x"))).rename(p="x")
        x = x + rows + columns
        x = x.transpose("b y x d").merge("y x", "s")
        start = self.cls_token.broadcast(b=x.size("b"), s=1)
        x = smelt.concatenate([start, x], "s")
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).slice(s=0))


# ---- U-Net ----


class UNetBlock(smelt.Model):
    def __init__(self, came: int, out: int) -> None:
        self.conv1 = nn.Conv2d(c=(came, out), y=3, x=3, padding=1)
        self.norm1 = nn.GroupNorm(4, "y x", c=out)
        self.conv2 = nn.Conv2d(c=(out, out), y=3, x=3, padding=1)
        self.norm2 = nn.GroupNorm(4, "y x", c=out)
        self.shortcut = nn.Conv2d(c=(came, out), y=1, x=1) if came != out else None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(nn.silu(self.norm1(self.conv1(x)))))
        return nn.silu(y + (x if self.shortcut is None else self.shortcut(x)))


class UNet(smelt.Model):
    """Down by halves and up again, with what came before at each size beside it. Sides are multiples of 4."""

    facts = ("H >= 1", "W >= 1")

    def __init__(self, c: int = 3, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        came = (c, *widths[:-1])
        self.down = [UNetBlock(a, b) for a, b in zip(came, widths, strict=True)]
        self.pool = nn.MaxPool(y=2, x=2)
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.widen = [nn.ConvTranspose2d(c=(a, b), y=2, x=2, strides=2) for a, b in pairs]
        self.up = [UNetBlock(2 * b, b) for _, b in pairs]
        self.out = nn.Conv2d(c=(widths[0], c), y=1, x=1)

    def forward(
        self, image: Shaped[Tensor, "f32[b=B, c=3, y=4*H, x=4*W]"]
    ) -> Shaped[Tensor, "f32[b=B, c=3, y=4*H, x=4*W]"]:
        x, beside = image, []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            beside.append(x)
        for widen, block, other in zip(self.widen, self.up, beside[-2::-1], strict=True):
            x = block(smelt.concatenate([widen(x), other], "c"))
        return self.out(x)


# ---- Whisper ----


class WhisperAttention(smelt.Model):
    def __init__(self, d: Any, heads: Any) -> None:
        self.heads = heads
        self.q_proj = nn.Linear(d=d, e=d)
        self.k_proj = nn.Linear(d=d, e=d, bias=False)
        self.v_proj = nn.Linear(d=d, e=d)
        self.out_proj = nn.Linear(e=d, d=d)
        self.facts = [f"{heads} divides {d}"]

    def __call__(self, x: Tensor, context: Tensor | None = None, causal: bool = False) -> Tensor:
        other = x.rename(s="t") if context is None else context
        q = self.q_proj(x).split("e", h=self.heads, k=None)
        k, v = (layer(other).split("e", h=self.heads, k=None) for layer in (self.k_proj, self.v_proj))
        return self.out_proj(nn.attention(q, k, v, causal=causal).merge("h k", "e"))


class WhisperLayer(smelt.Model):
    def __init__(self, d: Any, f: Any, heads: Any, crossed: bool) -> None:
        self.self_attn = WhisperAttention(d, heads)
        self.self_attn_layer_norm = nn.LayerNorm(d=d)
        if crossed:
            self.encoder_attn = WhisperAttention(d, heads)
            self.encoder_attn_layer_norm = nn.LayerNorm(d=d)
        self.fc1 = nn.Linear(d=d, f=f)
        self.fc2 = nn.Linear(f=f, d=d)
        self.final_layer_norm = nn.LayerNorm(d=d)

    def __call__(self, x: Tensor, heard: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), causal=heard is not None)
        if heard is not None:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), heard)
        return x + self.fc2(nn.gelu(self.fc1(self.final_layer_norm(x))))


class WhisperEncoder(smelt.Model):
    def __init__(self, layers: int, mel: Any, d: Any, f: Any, heads: Any, longest: int) -> None:
        self.conv1 = nn.Conv1d(c=mel, d=d, s=3, padding=1)
        self.conv2 = nn.Conv1d(d=(d, d), s=3, strides=2, padding=1)
        self.embed_positions = nn.Embedding(p=longest, d=d)
        self.layers = [WhisperLayer(d, f, heads, crossed=False) for _ in range(layers)]
        self.layer_norm = nn.LayerNorm(d=d)

    def __call__(self, sound: Tensor) -> Tensor:
        x = nn.gelu(self.conv2(nn.gelu(self.conv1(sound)))).transpose("b s d")
        x = x + self.embed_positions.weight.slice(p=slice(0, x.size("s"))).rename(p="s")
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class WhisperDecoder(smelt.Model):
    def __init__(self, layers: int, v: Any, d: Any, f: Any, heads: Any, longest: int) -> None:
        self.embed_tokens = nn.Embedding(v=v, d=d)
        self.embed_positions = nn.Embedding(p=longest, d=d)
        self.layers = [WhisperLayer(d, f, heads, crossed=True) for _ in range(layers)]
        self.layer_norm = nn.LayerNorm(d=d)

    def __call__(self, ids: Tensor, heard: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        x = x + self.embed_positions.weight.slice(p=slice(0, ids.size("s"))).rename(p="s")
        for layer in self.layers:
            x = layer(x, heard)
        return self.layer_norm(x)


class Whisper(smelt.Model):
    """Sound in, what the decoder makes of it out; the names are those of Hugging Face's WhisperModel."""

    def __init__(
        self,
        layers: int = 2,
        mel: int = 8,
        v: Any = 32,
        d: Any = 16,
        f: Any = 24,
        heads: Any = 4,
        sound: int = 1500,
        tokens: int = 448,
    ) -> None:
        self.encoder = WhisperEncoder(layers, mel, d, f, heads, sound)
        self.decoder = WhisperDecoder(layers, v, d, f, heads, tokens)
        self.facts = [f"S <= {tokens}", "T >= 1", f"T <= {2 * sound}"]

    def forward(
        self, sound: Shaped[Tensor, "f32[b=B, c=8, s=T]"], ids: Shaped[Tensor, "i32[b=B, s=S]"]
    ) -> tuple[Tensor, Tensor]:
        heard = self.encoder(sound)
        return heard, self.decoder(ids, heard.rename(s="t"))

    def logits(self, sound: Shaped[Tensor, "f32[b=B, c=8, s=T]"], ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Tensor:
        return self.decoder.embed_tokens.logits(self.forward(sound, ids)[1])
