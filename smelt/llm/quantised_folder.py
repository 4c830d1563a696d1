"""Hugging Face folders with a `quantization_config`: GPTQ, AWQ, compressed-tensors and FP8.

In: the tensors of a folder, and that record. Out: the same tensors with one `X.weight` [out, in] in place of the
tensors of each quantised layer, repacked when it is first read, and the form of each. `checkpoint.open` calls it before
names are mapped. One function per method; which layers are quantised, and how, is told by their tensors, and what a
configuration says besides is checked or refused. Quantisation of activations is not applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smelt.dtype import Array, DType, bf16, dtype, f16, f32, i8, i32, i64
from smelt.errors import FileError, SmeltError, UnsupportedError, advise
from smelt.ir.blocks import Block
from smelt.llm.config import Fields
from smelt.llm.quantised_weight import Float8, Form, Grouped, Quantised, as_stored, split_bytes
from smelt.weights import Stored, Weights

FLOAT8 = dtype("f8E4M3FN")
SCALES = (f16, bf16, f32)
DAMAGED = "download or copy the folder again: it may be damaged"
OTHERWISE = "use the model without quantisation, or as a GGUF file; docs/llm.md lists what is read"
MOST_GROUP = 1 << 24


@advise(DAMAGED, FileError)
@advise(OTHERWISE, UnsupportedError)
def read_quantised(
    weights: Weights, record: object, where: str, stacks: Callable[[Iterable[str]], Iterable[list[str]]]
) -> Read:
    """A folder's tensors with `X.weight` for each quantised layer; and the forms of these. `stacks` groups names of
    weights that are stacked: they get the same form, and stay in the order of their inputs."""
    if not isinstance(record, Mapping):
        raise UnsupportedError(f"{where}: quantization_config", expected="a record", got=repr(record)[:80])
    method = record.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        raise UnsupportedError(
            f"{where}: quant_method of quantization_config", expected=", ".join(METHODS), got=repr(method)[:80]
        )
    read, harmless = METHODS[method]
    tensors = _Tensors(weights)
    fields = Fields(record, f"{where}: quantization_config", frozenset(harmless.split()))
    found = {each.name: each for each in read(fields, tensors)}
    if not found:
        raise FileError(f"{weights.source}: no tensor is quantised", expected=f"those of {method}")
    forms: dict[str, Form] = {name: each.form for name, each in found.items()}
    stacked = list(stacks(found))
    for names in stacked:
        if len({forms[name] for name in names}) > 1:
            forms |= {name: found[name].dense for name in names}
    stored = {name: weights.find(name) for name in weights if name not in tensors.used}
    for name, each in stored.items():
        if each.shape.dtype == FLOAT8:
            raise FileError(
                f"{weights.source}: {name} is quantised and has no scale", expected=f"{name}_scale_inv, or {name}_scale"
            )
    if twice := sorted(stored.keys() & found.keys()):
        raise FileError(
            f"{weights.source}: {twice[0]}", expected="a weight, or the tensors of a quantised one", got="both"
        )
    used = (weights.find(name) for name in tensors.used)
    sources = tuple({file: each for each in used for file in each.files}.values())  # one of each file
    stored |= {name: as_stored(each, forms[name], sources) for name, each in found.items()}
    made = Weights(stored, weights.metadata, weights.source, weights.config)
    return Read(made, forms, _sort_inputs(found, {name for names in stacked for name in names}, sources))


class Sorted(NamedTuple):
    """A weight in blocks whose inputs are in another order."""

    stored: Stored
    form: Block
    order: Array  # which input each column is for, i32[in]


class Read(NamedTuple):
    """Tensors, the forms of quantised weights, and those that blocks hold if inputs are sorted."""

    weights: Weights
    forms: dict[str, Form]
    sorted: dict[str, Sorted]


def _sort_inputs(found: Mapping[str, Quantised], stacked: set[str], sources: tuple[Stored, ...]) -> dict[str, Sorted]:
    made: dict[str, Sorted] = {}
    for name, each in found.items():
        if isinstance(each, Float8) or isinstance(each.form, Block) or name in stacked:
            continue
        if (better := each.sort_inputs()) is not None:
            weight, order = better
            assert isinstance(weight.form, Block)
            made[name] = Sorted(as_stored(weight, weight.form, sources), weight.form, order)
    return made


class _Tensors:
    """A folder's tensors; those that make up quantised weights are counted as used."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.used: set[str] = set()

    def layers(self, part: str) -> list[str]:
        """The layers that have a tensor of this name."""
        return [name.removesuffix(f".{part}") for name in self.weights if name.endswith(f".{part}")]

    def has(self, name: str) -> bool:
        return name in self.weights

    def take(self, name: str, elements: Iterable[DType], *sizes: int | None) -> Stored:
        """A tensor with one of these element types and these sizes; None is any."""
        if name not in self.weights:
            raise FileError(f"{self.weights.source}: a tensor of a quantised layer is missing", expected=name)
        stored = self.weights.find(name)
        got, elements = stored.shape.numbers(), tuple(elements)
        fits = len(got) == len(sizes) and all(b > 0 and a in (None, b) for a, b in zip(sizes, got, strict=True))
        if not fits or stored.shape.dtype not in elements:
            shown = ", ".join("…" if size is None else str(size) for size in sizes)
            expected = f"{' or '.join(map(str, elements))}[{shown}]"
            raise FileError(f"{self.weights.source}: {name}", expected=expected, got=stored.shape)
        self.used.add(name)
        return stored

    def refuse(self, name: str, expected: object, got: object) -> SmeltError:
        return FileError(f"{self.weights.source}: {name}", expected=expected, got=got)


def _read_group_size(fields: Fields) -> int | None:
    """How many inputs share a scale; None: all."""
    size = fields.any("group_size", 128)
    if type(size) is not int or (size != -1 and not 1 <= size <= MOST_GROUP):
        fields.refuse("group_size", f"-1, or a whole number from 1 to {MOST_GROUP}", size)
    return None if size == -1 else size


def _check_texts(fields: Fields, *names: str) -> None:
    """Lists of layers that are quantised, or not: the tensors say so too."""
    for name in names:
        found = fields.any(name, [])
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            fields.refuse(name, "a list of texts", found)


def _groups_of(depth: int, size: int | None) -> Array:
    """The group of each input where groups are runs."""
    return np.arange(depth, dtype=np.int32) // np.int32(size or depth)


def _load_rows(stored: Stored) -> Array:
    """Words [out, n] as bytes [out, 4 * n]."""
    return np.ascontiguousarray(stored.load()).view(np.uint8)


def _load_columns(stored: Stored) -> Array:
    """Words [n, out] as bytes [out, 4 * n]."""
    return np.ascontiguousarray(stored.load().T).view(np.uint8)


def _load_transposed(stored: Stored) -> Array:
    return stored.load().T


def _load_levels(stored: Stored) -> Array:
    """i8 as codes with a zero point of 128."""
    return stored.load().view(np.uint8) ^ np.uint8(128)


# ---- GPTQ ----

_GPTQ = """
quant_method sym desc_act dynamic damp_percent damp_auto_increment static_groups true_sequential model_name_or_path
model_file_base_name meta lm_head dataset tokenizer exllama_config use_exllama disable_exllama use_cuda_fp16
max_input_length cache_block_outputs modules_in_block_to_quantize batch_size block_name_to_quantize pad_token_id
module_name_preceding_first_block model_seqlen backend act_group_aware mse quantizer method offload_to_disk
offload_to_disk_path v2 v2_alpha v2_memory_device
"""


def _read_gptq(fields: Fields, tensors: _Tensors) -> Iterator[Quantised]:
    """qweight i32[in / 8, out], qzeros i32[group, out / 8], scales [group, out], g_idx i32[in], at 4 bits."""
    bits = fields.any("bits")
    if bits not in (4, 8) or type(bits) is not int:
        fields.refuse("bits", "4 or 8", bits)
    form = fields.text("checkpoint_format", fields.text("format", "gptq"))
    if form not in ("gptq", "gptq_v2"):
        fields.refuse("checkpoint_format", "gptq or gptq_v2", form)
    fields.expect("pack_dtype", "int32")
    fields.expect("is_marlin_format", False)
    size = _read_group_size(fields)
    fields.check_unread()
    packed, less = 32 // bits, form == "gptq"
    for name in tensors.layers("qweight"):
        weight = tensors.take(f"{name}.qweight", [i32], None, None)
        words, rows = weight.shape.numbers()
        depth = words * packed
        scales = tensors.take(f"{name}.scales", SCALES, None, rows)
        groups = scales.shape.numbers()[0]
        if rows % packed:
            raise tensors.refuse(f"{name}.qweight", f"columns that are a multiple of {packed}", rows)
        zeros = tensors.take(f"{name}.qzeros", [i32], groups, rows // packed)
        if tensors.has(f"{name}.g_idx"):
            group_of = tensors.take(f"{name}.g_idx", [i32, i64], depth).load()
        else:
            group_of = _groups_of(depth, size)
        yield Grouped(
            f"{name}.weight",
            rows,
            depth,
            bits,
            partial(_load_columns, weight),
            partial(_load_transposed, scales),
            partial(_load_gptq_zeros, zeros, bits, less),
            _check_groups(tensors, name, group_of, groups),
            scales.shape.dtype == f16,
        )


def _load_gptq_zeros(stored: Stored, bits: int, less: bool) -> Array:
    """Zero points [out, group]. `less`: words were written with one less in each place, as one subtraction of 32 bits,
    so that a zero point of 0 borrows from its neighbour; one addition undoes it."""
    words = np.ascontiguousarray(stored.load()).view(np.uint32)
    if less:
        words = words + np.uint32(0x11111111 if bits == 4 else 0x01010101)
    return split_bytes(words.view(np.uint8), bits).T


def _check_groups(tensors: _Tensors, name: str, group_of: Array, groups: int) -> Array:
    if int(group_of.min()) < 0 or int(group_of.max()) >= groups:
        got = f"{group_of.min()} to {group_of.max()}"
        raise tensors.refuse(f"{name}: groups of inputs", f"0 to {groups - 1}, for which there are scales", got)
    return group_of.astype(np.int32)


# ---- AWQ ----

_AWQ = """
quant_method do_fuse fuse_max_seq_len modules_to_fuse exllama_config zero_point desc_act sym meta true_sequential
cache_block_outputs batch_size act_group_aware damp_percent tokenizer dataset
"""
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # of the eight columns in a word, where each is


def _read_awq(fields: Fields, tensors: _Tensors) -> Iterator[Quantised]:
    """qweight i32[in, out / 8], qzeros i32[group, out / 8], scales [group, out]."""
    fields.expect("bits", 4)
    fields.expect("w_bit", 4)
    version = fields.text("version", fields.text("format", "gemm"))
    if version.lower() != "gemm":
        fields.refuse("version", "gemm", version)
    if (backend := fields.text("backend", "auto")) == "llm-awq":
        fields.refuse("backend", "one whose files have the order of AutoAWQ", backend)
    _check_texts(fields, "modules_to_not_convert")
    size = _read_group_size(fields)
    fields.check_unread()
    for name in tensors.layers("qweight"):
        weight = tensors.take(f"{name}.qweight", [i32], None, None)
        depth, words = weight.shape.numbers()
        group_of = _groups_of(depth, size)
        groups, rows = int(group_of[-1]) + 1, words * 8
        scales = tensors.take(f"{name}.scales", SCALES, groups, rows)
        zeros = tensors.take(f"{name}.qzeros", [i32], groups, words)
        yield Grouped(
            f"{name}.weight",
            rows,
            depth,
            4,
            partial(_load_awq_codes, weight),
            partial(_load_transposed, scales),
            partial(_load_awq_zeros, zeros),
            group_of,
            scales.shape.dtype == f16,
        )


def _unpack_awq(words: Array) -> Array:
    """i32[n, out / 8] → ui8[n, out]."""
    places = split_bytes(np.ascontiguousarray(words).view(np.uint8), 4).reshape(len(words), -1, 8)
    return places[..., _AWQ_ORDER].reshape(len(words), -1)


def _load_awq_zeros(stored: Stored) -> Array:
    return _unpack_awq(stored.load()).T


def _load_awq_codes(stored: Stored) -> Array:
    """ui8[out, in / 2], two inputs in a byte; an odd last one has no neighbour."""
    words = stored.load()
    made = np.empty((words.shape[1] * 8, -(-len(words) // 2)), np.uint8)
    step = 256  # inputs at a time, so that what is transposed stays in the cache
    for at in range(0, len(words), step):
        codes = _unpack_awq(words[at : at + step])
        pairs = codes[0::2].copy()
        pairs[: len(codes) // 2] |= codes[1::2] << 4
        made[:, at // 2 : at // 2 + len(pairs)] = pairs.T
    return made


# ---- compressed-tensors ----

_COMPRESSED = "quant_method version global_compression_ratio"
_SCHEME = "actorder observer observer_kwargs scale_dtype zp_dtype"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
_STRATEGIES = ("tensor", "channel", "group", "block")


def _read_compressed(fields: Fields, tensors: _Tensors) -> Iterator[Quantised]:
    """weight_packed i32[out, in / 8], or weight in i8 or f8E4M3FN; weight_scale, and more by the scheme."""
    schemes = _read_schemes(fields)
    widths = {scheme.number("num_bits") for scheme in schemes if scheme.any("type") != "float"}
    asymmetric = all(scheme.any("symmetric", True) is False for scheme in schemes)
    tiled = all(scheme.any("strategy") == "block" for scheme in schemes)
    tiles = {_read_tile(scheme, "block_structure") for scheme in schemes if scheme.any("strategy") == "block"}
    for name in tensors.layers("weight_packed"):
        weight = tensors.take(f"{name}.weight_packed", [i32], None, None)
        rows, words = weight.shape.numbers()
        shape = tensors.take(f"{name}.weight_shape", [i32, i64], 2).load().tolist()
        depth = shape[1]
        bits = next((each for each in (4, 8) if each in widths and -(-depth * each // 32) == words), None)
        if shape[0] != rows or depth < 1 or bits is None:
            raise tensors.refuse(f"{name}.weight_shape", f"that of {words} words per row in {rows} rows", shape)
        yield _take_integers(tensors, name, rows, depth, bits, partial(_load_rows, weight), asymmetric)
    for name in tensors.layers("weight_scale"):
        if f"{name}.weight_scale" in tensors.used:
            continue
        weight = tensors.take(f"{name}.weight", [i8, FLOAT8], None, None)
        rows, depth = weight.shape.numbers()
        if weight.shape.dtype == i8:
            levels = partial(_load_levels, weight)
            yield _take_integers(tensors, name, rows, depth, 8, levels, asymmetric)
        else:
            yield _take_floats(tensors, name, "weight_scale", weight, tiles, tiled)


def _read_schemes(fields: Fields) -> list[Fields]:
    """The quantisation of weights in each group of layers; all else is checked."""
    form = fields.text("format", "")
    if form not in _FORMATS:
        fields.refuse("format", ", ".join(_FORMATS), form)
    if fields.any("kv_cache_scheme") is not None:
        fields.refuse("kv_cache_scheme", "none", fields.any("kv_cache_scheme"))
    fields.expect("quantization_status", "compressed", "frozen")
    if (sparsity := fields.record("sparsity_config")).get("format", "dense") != "dense":
        fields.refuse("sparsity_config", "none", dict(sparsity))
    _check_texts(fields, "ignore")
    groups = fields.record("config_groups")
    fields.check_unread()
    found = []
    for name, group in groups.items():
        where = f"{fields.where}: {name}"
        if not isinstance(group, Mapping):
            raise UnsupportedError(where, expected="a record", got=repr(group)[:80])
        parts = Fields(group, where, frozenset())
        _check_texts(parts, "targets")
        parts.expect("format", *_FORMATS)
        inputs, weights = parts.record("input_activations"), parts.record("weights")
        parts.check_unread()
        if inputs and inputs.get("dynamic") is not True:
            raise UnsupportedError(
                f"{where}: input_activations are quantised with stored scales",
                expected="dynamic: true, or none",
                got=f"dynamic: {inputs.get('dynamic')!r}"[:80],
            )
        found.append(_read_scheme(weights, where))
    if not found:
        fields.refuse("config_groups", "at least one group", dict(groups))
    return found


def _read_scheme(weights: Mapping[str, Any], where: str) -> Fields:
    scheme = Fields(weights, f"{where}: weights", frozenset(_SCHEME.split()))
    kind, bits = scheme.text("type", "int"), scheme.size("num_bits", 8)
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        scheme.refuse("type, num_bits", "int 4, int 8 or float 8", (kind, bits))
    scheme.flag("symmetric", True)
    scheme.flag("dynamic")
    scheme.expect("dynamic", False)
    scheme.expect("strategy", *_STRATEGIES)
    if scheme.any("group_size") is not None:
        _read_group_size(scheme)
    if scheme.any("strategy") == "block":
        _read_tile(scheme, "block_structure")
    elif scheme.any("block_structure") is not None:
        scheme.refuse("block_structure", "none without the strategy block", scheme.any("block_structure"))
    scheme.check_unread()
    return scheme


def _take_integers(
    tensors: _Tensors,
    name: str,
    rows: int,
    depth: int,
    bits: int,
    codes: Callable[[], Array],
    asymmetric: bool,
) -> Grouped:
    scales, groups = _take_scales(tensors, f"{name}.weight_scale", SCALES, rows)
    zeros = None
    if asymmetric or tensors.has(f"{name}.weight_zero_point"):
        zeros = _take_zeros(tensors, f"{name}.weight_zero_point", rows, groups, bits)
    group_of = _groups_of(depth, -(-depth // groups))
    if tensors.has(f"{name}.weight_g_idx"):
        stated = tensors.take(f"{name}.weight_g_idx", [i32, i64], depth).load()
        group_of = group_of if bool((stated == -1).all()) else stated
    elif depth % groups:
        raise tensors.refuse(f"{name}.weight_scale", f"groups that divide {depth} inputs", groups)
    element = tensors.weights.shape(f"{name}.weight_scale").dtype
    group_of = _check_groups(tensors, name, group_of, groups)
    return Grouped(f"{name}.weight", rows, depth, bits, codes, scales, zeros, group_of, element == f16)


def _take_scales(tensors: _Tensors, name: str, elements: Iterable[DType], rows: int) -> tuple[Callable[[], Array], int]:
    """What loads [out, group], and how many groups there are: of [out, group], [out] or one for all."""
    sizes = tensors.weights.shape(name).numbers() if tensors.has(name) else ()
    groups = sizes[1] if len(sizes) == 2 else 1
    wanted = sizes if sizes in ((), (1,), (1, 1), (rows,)) else (rows, groups)
    stored = tensors.take(name, elements, *wanted)

    def load() -> Array:
        return np.broadcast_to(stored.load().reshape(-1, groups), (rows, groups))

    return load, groups


def _take_zeros(tensors: _Tensors, name: str, rows: int, groups: int, bits: int) -> Callable[[], Array]:
    """What loads ui8[out, group]: packed along the outputs, or signed bytes as they are."""
    half = 1 << (bits - 1)
    if tensors.has(name) and tensors.weights.shape(name).dtype == i32:
        words = tensors.take(name, [i32], -(-rows * bits // 32), groups)
        return lambda: split_bytes(_load_columns(words), bits)[:, :rows].T
    load, _ = _take_scales(tensors, name, [i8], rows)

    def add_half() -> Array:
        signed = load().astype(np.int16) + half
        if signed.min() < 0 or signed.max() >= 2 * half:
            raise tensors.refuse(name, f"zero points of {bits} bits", f"{signed.min() - half} to {signed.max() - half}")
        return np.broadcast_to(signed.astype(np.uint8), (rows, groups))

    return add_half


# ---- FP8 ----

_FP8 = "quant_method fmt scale_fmt dequantize"


def _read_fp8(fields: Fields, tensors: _Tensors) -> Iterator[Quantised]:
    """weight f8E4M3FN[out, in]; weight_scale_inv (or weight_scale), one per tile, or one for all."""
    fields.expect("fmt", "e4m3")
    fields.expect("scale_fmt", "float", "ue8m0")
    fields.expect("activation_scheme", "dynamic")
    fields.expect("expert_dtype", "fp8")
    _check_texts(fields, "modules_to_not_convert", "ignored_layers", "modules_to_convert")
    tiles = set() if fields.any("weight_block_size") is None else {_read_tile(fields, "weight_block_size")}
    fields.check_unread()
    for part in ("weight_scale_inv", "weight_scale"):
        for name in tensors.layers(part):
            weight = tensors.take(f"{name}.weight", [FLOAT8], None, None)
            yield _take_floats(tensors, name, part, weight, tiles, bool(tiles))


def _read_tile(fields: Fields, name: str) -> tuple[int, int]:
    tile = fields.any(name)
    if (
        not isinstance(tile, list)
        or len(tile) != 2
        or any(type(n) is not int or not 1 <= n <= MOST_GROUP for n in tile)
    ):
        fields.refuse(name, "two sizes of a tile", tile)
    return tile[0], tile[1]


def _take_floats(
    tensors: _Tensors, name: str, part: str, weight: Stored, tiles: Iterable[tuple[int, int]], tiled: bool
) -> Quantised:
    """A weight whose scales are for tiles or, unless all weights are `tiled`, for outputs or for all."""
    rows, depth = weight.shape.numbers()
    full = f"{name}.{part}"
    sizes = tensors.weights.shape(full).numbers() if tensors.has(full) else ()
    for tile in tiles:
        if sizes == (-(-rows // tile[0]), -(-depth // tile[1])):
            scales = tensors.take(full, [*SCALES, dtype("f8E8M0FNU")], *sizes)
            return Float8(f"{name}.weight", rows, depth, weight.load, scales.load, tile)
    if tiled:
        raise tensors.refuse(full, " or ".join(f"a scale per tile of {a} by {b}" for a, b in tiles), list(sizes))
    load, groups = _take_scales(tensors, full, SCALES, rows)
    if groups != 1:
        raise tensors.refuse(full, "a scale per output, or one", list(sizes))
    return Float8(f"{name}.weight", rows, depth, weight.load, load, (1, depth))


METHODS: dict[str, tuple[Callable[[Fields, _Tensors], Iterator[Quantised]], str]] = {
    "gptq": (_read_gptq, _GPTQ),
    "awq": (_read_awq, _AWQ),
    "compressed-tensors": (_read_compressed, _COMPRESSED),
    "fp8": (_read_fp8, _FP8),
}
