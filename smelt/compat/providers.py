"""Execution providers: onnxruntime's names for devices, as smelt's devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from smelt.engine import engines
from smelt.errors import DeviceError

log = logging.getLogger("smelt")
DEVICES = {"CUDAExecutionProvider": "cuda", "CPUExecutionProvider": "cpu"}
# onnxruntime's providers that smelt never has: the next one in the list is tried.
OTHERS = (
    *("TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider", "MIGraphXExecutionProvider"),
    *("ROCMExecutionProvider", "OpenVINOExecutionProvider", "DnnlExecutionProvider", "VitisAIExecutionProvider"),
    *("QNNExecutionProvider", "NnapiExecutionProvider", "JsExecutionProvider", "CoreMLExecutionProvider"),
    *("ACLExecutionProvider", "ArmNNExecutionProvider", "DmlExecutionProvider", "WebNNExecutionProvider"),
    *("WebGpuExecutionProvider", "XnnpackExecutionProvider", "CANNExecutionProvider", "AzureExecutionProvider"),
)
Options = dict[str, Any]


def get_all_providers() -> list[str]:
    """The providers that smelt supports, fastest first."""
    return list(DEVICES)


def get_available_providers() -> list[str]:
    """The providers whose device is available."""
    return [name for name, device in DEVICES.items() if _missing(device) is None]


def _missing(device: str) -> str | None:
    """Why no engine runs on a device here; None where one does."""
    reasons = [engine.missing() for engine in engines(device)]
    return None if None in reasons else "; ".join(filter(None, reasons))


def get_device() -> str:
    """`GPU` if smelt can use one, else `CPU`."""
    return "GPU" if "CUDAExecutionProvider" in get_available_providers() else "CPU"


def normalise(providers: Any, provider_options: Any) -> dict[str, Options]:
    """Providers in order of preference with their options, from any of the spellings that onnxruntime takes."""
    if providers is None:
        return {"CPUExecutionProvider": {}}
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(provider_options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(each, str) for each in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
        if not all(isinstance(each, Mapping) for each in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        pairs: list[Any] = list(zip(providers, provider_options, strict=True))
    else:
        pairs = [each if isinstance(each, tuple) else (each, {}) for each in providers]
    for pair in pairs:
        if not (len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Mapping)):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        if pair[0] not in DEVICES and pair[0] not in OTHERS:
            raise ValueError(f"Unknown Provider Type: {pair[0]}; smelt has {', '.join(DEVICES)}")
    return {name: {str(key): value for key, value in options.items()} for name, options in pairs} or {
        "CPUExecutionProvider": {}
    }


def choose(wanted: Mapping[str, Options]) -> tuple[str, str]:
    """The first available provider and its device. Unavailable ones before it cause a warning; none at all, an error.

    A list without the CPU never runs on the CPU.
    """
    reasons: list[str] = []
    for name, options in wanted.items():
        device = DEVICES.get(name)
        reason = "smelt has no such device" if device is None else _missing(device)
        if device is not None and reason is None:
            if reasons:
                log.warning("the session runs on the %s: %s", name, "; ".join(reasons))
            number = options.get("device_id", 0)
            return name, f"{device}:{number}" if device != "cpu" and int(number) else device
        reasons.append(f"{name}: {reason}")
    raise DeviceError(
        "none of the execution providers is available",
        expected=f"one of {', '.join(get_available_providers())}",
        got="; ".join(reasons),
        remedy="add CPUExecutionProvider to providers",
    )
