"""The families of decoders, one row each: what Hugging Face and GGUF call them, and how their parts differ.

`read_config` turns a `config.json` into a `Config`. A field that no row reads and that may change the arithmetic is
refused. `names.py` has the families' tensors; a new family of the same parts is one row in each table. A multimodal
architecture (`MULTIMODAL`) is read as its text model: the record `text_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smelt.errors import UnsupportedError
from smelt.llm.config import MAX_LAYERS, Config, Experts, Fields, Layer, Rope
from smelt.llm.rope import scaled_rope

ENCODERS = {"bert": 0, "roberta": 1, "xlm-roberta": 1}  # model_type → whether positions begin behind the padding token
# Fields that do not change the computation of inference.
_HARMLESS = """
_name_or_path _attn_implementation architectures attention_dropout attn_pdrop auto_map begin_suppress_tokens
bos_token_id chunk_size_feed_forward classifier_dropout dtype embd_pdrop eos_token_id finetuning_task
forced_bos_token_id
forced_eos_token_id hidden_dropout id2label initializer_range is_encoder_decoder label2id max_length model_type
num_return_sequences output_attentions output_hidden_states output_router_logits pad_token_id pretraining_tp
problem_type resid_pdrop return_dict return_dict_in_generate router_aux_loss_coef sep_token_id summary_activation
summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params
tokenizer_class torch_dtype torchscript transformers_version unsloth_fixed unsloth_version use_cache use_return_dict
top_k top_p temperature typical_p repetition_penalty length_penalty num_beams num_beam_groups do_sample
diversity_penalty early_stopping min_length no_repeat_ngram_size encoder_no_repeat_ngram_size remove_invalid_values
exponential_decay_length_penalty cross_attention_hidden_size is_decoder n_ctx cache_implementation
transformers.js_config kv_cache_dtype is_llama_config max_sequence_length _attn_implementation_autoset
_flash_attn_2_enabled attn_implementation reorder_and_upcast_attn embedding_dropout residual_dropout _pad_token_id
neftune_noise_alpha perceiver_config pixel_shuffle_factor
"""
HARMLESS = frozenset(_HARMLESS.split())
NEUTRAL: dict[str, Any] = {  # the one value for which a field changes nothing
    "use_bidirectional_attention": False,
    "rope_interleaved": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
# Multimodal architectures whose text model is a family of the table, computed as in the family's own architecture where
# a prompt has no images. `text_config` has its fields.
MULTIMODAL = (
    "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)
_SHARED = ("tie_word_embeddings", "eos_token_id", "bos_token_id")  # beside `text_config`, they hold for the text model
# Fields beside `text_config` that say how images become embeddings.
_IMAGES = """
text_config vision_config boi_token_index eoi_token_index image_token_index boi_token_id eoi_token_id image_token_id
video_token_id image_seq_length mm_tokens_per_image spatial_merge_size multimodal_projector_bias projector_hidden_act
vision_feature_layer vision_feature_select_strategy image_grid_pinpoints use_image_newline_parameter ignore_index
scale_factor vocab_size image_processor_type processor_class
"""


@dataclass(frozen=True, slots=True)
class Family:
    """One row. Where a part is a text, it names the field that says whether the model has it."""

    name: str
    architectures: tuple[str, ...]  # Hugging Face's classes
    gguf: tuple[str, ...]  # GGUF's `general.architecture`
    model_type: str = ""  # of Hugging Face's configuration, where it is not the name
    norm: str = "rms"
    norm_offset: float = 0.0
    gated: bool = True
    pre_norms: bool = True
    post_norms: bool = False
    qk_norm: bool = False
    qk_norm_per_head: bool = True
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    activation: str = "hidden_act"
    positions: bool = False
    scaled_embedding: bool = False  # by sqrt(d)
    softcap: bool = False  # of attention scores
    final_softcap: bool = False  # of logits
    tied: bool = False  # unless the file says otherwise
    partial: bool = False  # unscaled RoPE may rotate a part of each head; scaled RoPE may in every family
    windows: str = ""  # which layers have one; see `_windows`
    scale: str = ""  # a field whose inverse root scales the scores
    gguf_interleaved: bool = False  # GGUF files have rows of Q and K permuted, pairs are neighbours
    extra: Callable[[Fields, list[Layer]], list[Layer]] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # fields that a file need not have; null says nothing
    renamed: Mapping[str, str] = field(default_factory=dict)  # fields of its own → what others call them
    foreign: tuple[str, ...] = ()  # names of others that say nothing in its own files


def _smollm3(fields: Fields, layers: list[Layer]) -> list[Layer]:
    """Some layers have no positions."""
    turned = _rope_layers(fields, len(layers))
    return [Layer(layer.rope if turned[i] else None, layer.window) for i, layer in enumerate(layers)]


def _starcoder2(fields: Fields, layers: list[Layer]) -> list[Layer]:
    """The first files name the kinds of norms and MLPs: transformers has one of each."""
    fields.expect("norm_type", "layer_norm")
    fields.expect("mlp_type", "default")
    return layers


def _rope_layers(fields: Fields, count: int) -> list[Any]:
    """Which of SmolLM3's layers have rotary positions."""
    interval = fields.size("no_rope_layer_interval", 4)
    turned = fields.any("no_rope_layers", [int((i + 1) % interval != 0) for i in range(count)])
    if not isinstance(turned, list) or len(turned) < count or any(each not in (0, 1) for each in turned):
        fields.refuse("no_rope_layers", f"a list of {count} zeros and ones", turned)
    return turned


def _mixtral(fields: Fields, layers: list[Layer]) -> list[Layer]:
    fields.expect("router_jitter_noise", 0, 0.0)
    experts = _experts(fields, fields.size("num_local_experts", 8), fields.size("intermediate_size"), True)
    return [Layer(layer.rope, layer.window, experts) for layer in layers]


def _qwen3_moe(fields: Fields, layers: list[Layer]) -> list[Layer]:
    count = fields.any("num_local_experts", fields.any("num_experts", 128))
    if type(count) is not int or not 0 <= count <= 1 << 16:
        fields.refuse("num_experts", "a whole number", count)
    step, dense = fields.size("decoder_sparse_step", 1), fields.any("mlp_only_layers", [])
    normalise = fields.flag("norm_topk_prob", False)
    width = fields.size("moe_intermediate_size", 768)
    if not isinstance(dense, list):
        fields.refuse("mlp_only_layers", "a list of numbers", dense)
    fields.any("num_experts_per_tok")  # says nothing where there are no experts
    experts = _experts(fields, count, width, normalise) if count else None
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(len(layers))]
    return [Layer(layer.rope, layer.window, experts if sparse[i] else None) for i, layer in enumerate(layers)]


def _experts(fields: Fields, count: int, f: int, normalise: bool) -> Experts:
    used = fields.size("num_experts_per_tok", 2)
    if used > count:
        fields.refuse("num_experts_per_tok", f"at most {count}", used)
    return Experts(count, used, f, normalise)


_QWEN: dict[str, Any] = {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
}

TABLE = (
    Family(
        "llama",
        ("LlamaForCausalLM",),
        ("llama",),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        gguf_interleaved=True,
    ),
    Family(
        "mistral",
        ("MistralForCausalLM",),
        (),
        windows="all",
        defaults={"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    ),
    Family(
        "qwen2",
        ("Qwen2ForCausalLM",),
        ("qwen2",),
        qkv_bias=True,
        windows="last",
        defaults={**_QWEN, "num_key_value_heads": 32},
    ),
    Family(
        "qwen3",
        ("Qwen3ForCausalLM",),
        ("qwen3",),
        qk_norm=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        windows="last",
        defaults={**_QWEN, "num_key_value_heads": 32, "head_dim": 128},
    ),
    Family(
        "gemma2",
        ("Gemma2ForCausalLM",),
        ("gemma2",),
        norm_offset=1.0,
        post_norms=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        activation="hidden_activation",
        scaled_embedding=True,
        softcap=True,
        final_softcap=True,
        tied=True,
        windows="even",
        scale="query_pre_attn_scalar",
        defaults={
            **_GEMMA,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    Family(
        "gemma3",
        ("Gemma3ForCausalLM",),
        ("gemma3",),
        model_type="gemma3_text",
        norm_offset=1.0,
        post_norms=True,
        qk_norm=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        activation="hidden_activation",
        scaled_embedding=True,
        final_softcap=True,
        tied=True,
        windows="sixth",
        scale="query_pre_attn_scalar",
        defaults={
            **_GEMMA,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "num_attention_heads": 8,
            "vocab_size": 262208,
        },
    ),
    Family(
        "phi3",
        ("Phi3ForCausalLM",),
        ("phi3",),
        partial=True,
        windows="all",
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
    ),
    Family(
        "smollm3",
        ("SmolLM3ForCausalLM",),
        ("smollm3",),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        tied=True,
        windows="unturned",
        gguf_interleaved=True,
        extra=_smollm3,
        defaults={"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6},
    ),
    Family(
        "gpt2",
        ("GPT2LMHeadModel",),
        ("gpt2",),
        norm="layer",
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation="activation_function",
        positions=True,
        tied=True,
        defaults={"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_positions": 1024},
        renamed={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_positions": "max_position_embeddings",
            "n_inner": "intermediate_size",
            "layer_norm_epsilon": "rms_norm_eps",
        },
        foreign=("rms_norm_eps", "intermediate_size"),
    ),
    Family(
        "starcoder2",
        ("Starcoder2ForCausalLM",),
        ("starcoder2",),
        norm="layer",
        gated=False,
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        tied=True,
        windows="all",
        extra=_starcoder2,
        defaults={
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            "use_bias": True,
        },
        renamed={"norm_epsilon": "rms_norm_eps"},
        foreign=("rms_norm_eps",),
    ),
    Family(
        "olmo2",
        ("Olmo2ForCausalLM",),
        ("olmo2",),
        pre_norms=False,
        post_norms=True,
        qk_norm=True,
        qk_norm_per_head=False,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        defaults={"rms_norm_eps": 1e-5},
    ),
    Family(
        "mixtral",
        ("MixtralForCausalLM",),
        (),
        windows="all",
        extra=_mixtral,
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
        },
    ),
    Family(
        "qwen3moe",
        ("Qwen3MoeForCausalLM",),
        ("qwen3moe",),
        model_type="qwen3_moe",
        qk_norm=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        windows="asked",
        extra=_qwen3_moe,
        defaults={**_QWEN, "num_key_value_heads": 4, "num_experts_per_tok": 8},
    ),
)
FAMILIES: dict[str, Family] = {row.name: row for row in TABLE}
BY_ARCHITECTURE: dict[str, Family] = {name: row for row in TABLE for name in row.architectures}
BY_GGUF: dict[str, Family] = {name: row for row in TABLE for name in row.gguf}
BY_MODEL_TYPE: dict[str, Family] = {row.model_type or row.name: row for row in TABLE}


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """The row for a `config.json`."""
    names = _architectures(config)
    for name in names:
        if name in BY_ARCHITECTURE:
            return BY_ARCHITECTURE[name]
    raise UnsupportedError(
        f"{where}: no family of language models that is known",
        expected=", ".join((*BY_ARCHITECTURE, *MULTIMODAL)),
        got=", ".join(names) if names else f"model_type {config.get('model_type')}",
    )


def _architectures(config: Mapping[str, Any]) -> list[str]:
    stated = config.get("architectures")
    return [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []


def multimodal_of(config: Mapping[str, Any]) -> str | None:
    """The multimodal architecture of a `config.json`; None where the file is one of a text model alone."""
    return next((name for name in _architectures(config) if name in MULTIMODAL), None)


def text_config(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The fields of the text model: those of `text_config` in a multimodal architecture, else all of them."""
    architecture = multimodal_of(config)
    if architecture is None:
        return config
    fields = Fields(config, where, HARMLESS | frozenset(_IMAGES.split()))
    text = fields.record("text_config")
    kind = text.get("model_type")
    family = BY_MODEL_TYPE.get(kind) if isinstance(kind, str) else None
    if family is None:
        fields.refuse("model_type of text_config", ", ".join(BY_MODEL_TYPE), kind)
    shared = {name: found for name in _SHARED if (found := fields.any(name)) is not None}
    fields.check_unread()
    return {**text, **shared, "architectures": [family.architectures[0]]}


def read_config(config: Mapping[str, Any], where: str, context: int | None = None, partial: bool = False) -> Config:
    """What a `config.json` says. `context`: how many positions are wanted, where the scaling depends on it; `partial`:
    RoPE may rotate a part of each head whatever the family."""
    config = text_config(config, where)
    family = family_of(config, where)
    config = _rename({**family.defaults, **config}, family, where)
    fields = Fields(config, where, HARMLESS)
    d, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads, head_size = heads, max(d // heads, 1)
    if not family.positions:
        kv_heads, head_size = fields.size("num_key_value_heads", heads), fields.size("head_dim", head_size)
    trained = fields.size("max_position_embeddings", 2048)
    count = fields.size("num_hidden_layers")
    if count > MAX_LAYERS or heads % kv_heads:
        fields.refuse("num_key_value_heads, num_hidden_layers", "a divisor of the heads", (kv_heads, count))
    layers = _layers(family, fields, count, head_size, trained, context, partial or family.partial)
    if family.extra is not None:
        layers = family.extra(fields, layers)
    for name, allowed in NEUTRAL.items():
        fields.expect(name, allowed)
    scaled_by = fields.positive(family.scale, 256) if family.scale else head_size
    found = Config(
        family=family.name,
        layers=tuple(layers),
        d=d,
        f=fields.size("intermediate_size", 4 * d),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        v=fields.size("vocab_size"),
        context=trained,
        epsilon=fields.positive("rms_norm_eps", 1e-6),
        activation=fields.text(family.activation, "silu"),
        scale=scaled_by**-0.5,
        norm=family.norm,
        norm_offset=family.norm_offset,
        gated=family.gated,
        pre_norms=family.pre_norms,
        post_norms=family.post_norms,
        qk_norm=family.qk_norm,
        qk_norm_per_head=family.qk_norm_per_head,
        qkv_bias=_part(fields, family.qkv_bias),
        out_bias=_part(fields, family.out_bias),
        mlp_bias=_part(fields, family.mlp_bias),
        positions=family.positions,
        embed_scale=d**0.5 if family.scaled_embedding else 1.0,
        softcap=fields.number("attn_logit_softcapping", 0) if family.softcap else 0.0,
        final_softcap=fields.number("final_logit_softcapping", 0) if family.final_softcap else 0.0,
        tied=fields.flag("tie_word_embeddings", family.tied),
        stop=token_ids(config.get("eos_token_id")),
        bos=next(iter(token_ids(config.get("bos_token_id"))), None),
    )
    if family.activation == "hidden_activation":
        fields.any("hidden_act")  # Gemma's older files have both, and this one does not count
    if family.final_softcap and not family.softcap:
        fields.any("attn_logit_softcapping")  # Gemma 3 has the field and no such cap
    fields.check_unread()
    return found


def _rename(config: Mapping[str, Any], family: Family, where: str) -> dict[str, Any]:
    """A family's own fields under the names of others."""
    if strange := sorted(set(family.foreign) & config.keys()):
        own = ", ".join(sorted(theirs for theirs, name in family.renamed.items() if name in family.foreign))
        raise UnsupportedError(f"{where}: fields that {family.name} does not have", expected=own, got=strange)
    return {family.renamed.get(name, name): value for name, value in config.items()}


def _part(fields: Fields, stated: bool | str) -> bool:
    return fields.flag(stated) if isinstance(stated, str) else stated


def token_ids(given: Any) -> tuple[int, ...]:
    """One token, several or none."""
    found = given if isinstance(given, list) else [given]
    return tuple(each for each in found if type(each) is int)


# ---- layers ----


def _layers(
    family: Family, fields: Fields, count: int, head_size: int, trained: int, context: int | None, partial: bool
) -> list[Layer]:
    windows = _windows(family, fields, count)
    if family.positions:
        return [Layer(None, window) for window in windows]

    def rope(parameters: Any, base: float) -> Rope:
        return _rope(fields, parameters, base, head_size, trained, context, partial)

    parameters, old = fields.record("rope_parameters"), fields.record("rope_scaling")
    base = fields.positive("rope_theta", 10_000.0)
    if family.windows != "sixth":
        if any(isinstance(each, Mapping) for each in parameters.values()):
            fields.refuse("rope_parameters", "one record for all layers in this family", parameters)
        return [Layer(rope(old or parameters, base), window) for window in windows]
    if not set(parameters) <= set(_TYPES):
        fields.refuse("rope_parameters", f"those of {' and '.join(_TYPES)}", parameters)
    full, sliding = (parameters.get(each) or {} for each in _TYPES)
    if not isinstance(full, Mapping):
        fields.refuse("rope_parameters", "records", parameters)
    local_base = fields.positive("rope_local_base_freq", 10_000.0)
    full, sliding = rope({**full, **old}, base), rope(sliding, local_base)
    return [Layer(full if window is None else sliding, window) for window in windows]


_TYPES = ("full_attention", "sliding_attention")


def _rope(
    fields: Fields, parameters: Any, base: float, head_size: int, trained: int, context: int | None, partial: bool
) -> Rope:
    if not isinstance(parameters, Mapping):
        fields.refuse("rope_parameters", "a record", parameters)
    base = parameters.get("rope_theta") or base
    share = parameters.get("partial_rotary_factor") or fields.any("partial_rotary_factor", 1.0)
    if type(base) not in (int, float) or not 1 < base < 1e30 or type(share) not in (int, float) or not 0 < share <= 1:
        fields.refuse("rope_theta, partial_rotary_factor", "a number above 1 and one up to 1", (base, share))
    if not partial and (parameters.get("rope_type") or parameters.get("type") or "default") == "default":
        share = 1.0
    outside = "original_max_position_embeddings"
    original = fields.size(outside) if fields.any(outside) is not None else None
    return scaled_rope(parameters, float(base), int(head_size * share), context, trained, fields.where, original)


def _windows(family: Family, fields: Fields, count: int) -> list[int | None]:
    """The window of each layer, by the family's rule. "all": every layer; "asked": every layer where
    `use_sliding_window` says so; "last": then those from `max_window_layers` on; "unturned": then those without rotary
    positions; "even", "sixth": Gemma's patterns. In the last four `layer_types` says it where it is there."""
    types, size = fields.any("layer_types"), fields.any("sliding_window")
    use = fields.flag("use_sliding_window")
    pattern = fields.size("sliding_window_pattern", fields.size("_sliding_window_pattern", 6))
    first = fields.number("max_window_layers", count)
    if not family.windows:
        if size is not None:
            fields.refuse("sliding_window", "none in this family", size)
        return [None] * count
    if family.windows in ("asked", "last", "unturned") and not use:
        size = None
    if family.windows in ("all", "asked"):
        slides = [size is not None] * count
        if types is not None and types != [_TYPES[size is not None]] * count:
            fields.refuse("layer_types", "layers that are all alike in this family", types)
    elif types is not None:
        if not isinstance(types, list) or len(types) != count or any(each not in _TYPES for each in types):
            fields.refuse("layer_types", f"{count} of {', '.join(_TYPES)}", types)
        slides = [each == "sliding_attention" for each in types]
    else:
        turned = _rope_layers(fields, count) if family.windows == "unturned" else []
        rules: dict[str, Callable[[int], bool]] = {
            "last": lambda i: size is not None and i >= first,
            "unturned": lambda i: size is not None and not turned[i],
            "even": lambda i: i % 2 == 0,
            "sixth": lambda i: (i + 1) % pattern != 0,
        }
        slides = [rules[family.windows](i) for i in range(count)]
    if not any(slides):
        return [None] * count
    if type(size) is not int or size < 1:
        fields.refuse("sliding_window", "a whole number", size)
    return [size if slide else None for slide in slides]


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is one of an encoder that is known."""
    name = config.get("model_type")
    return isinstance(name, str) and name in ENCODERS
