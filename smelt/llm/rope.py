"""Scaled rotary positions: what configurations call `rope_scaling` or `rope_parameters` → frequencies and a scale.

linear, dynamic, llama3, yarn and longrope, as transformers defines them. Called by `families`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.llm.config import Fields, Rope, rope_frequencies

_HARMLESS = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor"})


def scaled_rope(
    parameters: Mapping[str, Any],
    base: float,
    part: int,
    context: int | None,
    trained: int,
    where: str,
    original: int | None = None,
    interleaved: bool = False,
) -> Rope:
    """`context` is how many positions the caller wants, `trained` what the model's configuration promises, `original`
    the length before an extension where it stands outside of the parameters, which then counts."""
    fields = Fields(parameters, f"{where}: rope", _HARMLESS)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if part < 2 or part % 2:
        fields.refuse("partial_rotary_factor", "an even number of rotated elements", part)
    plain = rope_frequencies(base, part)
    scale, most, long = 1.0, None, None
    match kind:
        case "default":
            found = plain
        case "linear":
            found = plain / fields.positive("factor")
        case "dynamic":
            fields.positive("factor")
            if context is not None and context > trained:
                fields.refuse("dynamic", f"a context of at most {trained}: scaling changes with the length", context)
            found = plain
        case "llama3":
            found = _llama3(plain, fields, trained, original)
        case "yarn":
            found, scale = _yarn(plain, base, part, fields, trained, original)
        case "longrope" | "su":
            found, scale, most, long = _longrope(plain, fields, context, trained, original)
        case _:
            raise UnsupportedError(
                f"{where}: unknown scaling of rotary positions",
                expected="default, linear, dynamic, llama3, yarn, longrope",
                got=kind,
            )
    fields.check_unread()
    return Rope(_floats(found), scale, interleaved, most, None if long is None else _floats(long))


def _floats(array: Array) -> tuple[float, ...]:
    return tuple(float(each) for each in array)


def _llama3(plain: Array, fields: Fields, trained: int, outside: int | None) -> Array:
    """Long waves are slowed down, short ones stay, and those between are mixed."""
    factor = fields.positive("factor")
    low, high = fields.positive("low_freq_factor"), fields.positive("high_freq_factor")
    original = fields.positive("original_max_position_embeddings", trained)
    original = original if outside is None else outside
    if low >= high:
        fields.refuse("low_freq_factor", f"less than {high}", low)
    waves = 2 * math.pi / plain
    smooth = (original / waves - low) / (high - low)
    mixed = (1 - smooth) * plain / factor + smooth * plain
    found = np.where(waves > original / low, plain / factor, np.where(waves < original / high, plain, mixed))
    return found


def _yarn(
    plain: Array, base: float, part: int, fields: Fields, trained: int, outside: int | None
) -> tuple[Array, float]:
    original = fields.positive("original_max_position_embeddings", trained)
    original = original if outside is None else outside
    factor = fields.positive("factor", trained / original)
    fast, slow = fields.positive("beta_fast", 32), fields.positive("beta_slow", 1)
    mscale, mscale_all = fields.maybe("mscale"), fields.maybe("mscale_all_dim")
    given = fields.maybe("attention_factor")
    truncate = fields.flag("truncate", True)

    def place(rotations: float) -> float:
        return part * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = place(fast), place(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, part - 1)
    ramp = np.clip((np.arange(part // 2) - low) / ((high - low) or 0.001), 0, 1)
    found = plain / factor * ramp + plain * (1 - ramp)
    if given is not None:
        scale = given
    elif mscale and mscale_all:
        scale = _mscale(factor, mscale) / _mscale(factor, mscale_all)
    else:
        scale = _mscale(factor, 1.0)
    return found, scale


def _mscale(factor: float, times: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0


def _longrope(
    plain: Array, fields: Fields, context: int | None, trained: int, outside: int | None
) -> tuple[Array, float, int, Array | None]:
    """Short factors for sequences up to the original length, and long ones for those beyond it, where there may be
    such."""
    inner = fields.maybe("original_max_position_embeddings")
    original = int(outside or inner or trained)
    if original < 2:
        fields.refuse("original_max_position_embeddings", "2 or more", original)
    long, short = fields.any("long_factor"), fields.any("short_factor")
    ratio = fields.positive("factor", trained / original)
    given = fields.maybe("attention_factor")
    scale = 1.0 if given is None else given
    if given is None and ratio > 1:
        scale = math.sqrt(1 + math.log(ratio) / math.log(original))
    for given in (short, long):
        numbers = isinstance(given, list) and all(type(each) in (int, float) and 0 < each < 1e30 for each in given)
        if not numbers or len(given) != len(plain):
            fields.refuse("long_factor and short_factor", f"{len(plain)} positive numbers each", given)
    longest = trained if context is None else min(context, trained)
    found, others = (plain / np.asarray(given, np.float64) for given in (short, long))
    return found, scale, min(original, trained), others if longest > original else None
