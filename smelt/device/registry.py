"""The devices of the native engine by name. A new kind of device is a class in a file of its own and a line here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from smelt.device.api import Device
from smelt.device.cpu_device import Cpu
from smelt.errors import DeviceError
from smelt.target import Target

HOST = "cpu"  # what `auto` stands for


def _cuda(*number: int) -> Any:
    """Imported on first use: most processes have no GPU."""
    return import_module("smelt.device.cuda").Cuda(*number)


def _has_nvidia_files() -> bool:
    """Whether a driver of NVIDIA shows itself, without opening it."""
    return any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))) or sys.platform == "win32"


KINDS: dict[str, Callable[[], Device]] = {"cpu": Cpu, "cuda": _cuda}  # by name
NUMBERED: dict[str, Callable[[int], Device]] = {"cuda": _cuda}  # kinds with several devices have `NAME:NUMBER` too
SIGNS: dict[str, Callable[[], bool]] = {"cuda": _has_nvidia_files}  # that a device may be here, at no cost


def other_devices() -> list[str]:
    """Devices beside the host's that may be here, by their signs alone."""
    return [name for name, has_signs in SIGNS.items() if has_signs()]


@cache
def find_device(name: str = "auto") -> Device:
    """The device of a name; `auto` is the processor."""
    kind, _, number = name.partition(":")
    if kind in NUMBERED and number.isdecimal():
        return NUMBERED[kind](int(number))
    made = KINDS.get(HOST if name == "auto" else name)
    if made is None:
        raise DeviceError(
            f"the native engine has no device {name}",
            expected=", ".join(KINDS),
            got=name,
            remedy=f'device="{HOST}", or another engine: engine="pjrt"',
        )
    return made()


def is_device(name: str) -> bool:
    kind, _, number = name.partition(":")
    return name == "auto" or name in KINDS or (kind in NUMBERED and number.isdecimal())


def all_targets() -> Mapping[str, Target]:
    """Those of all devices, by name."""
    return {name: target for kind in KINDS for name, target in find_device(kind).targets.items()}


def find_target(name: str) -> Target:
    """The target of a name, for whichever device it is."""
    for kind in KINDS:
        device = find_device(kind)
        if name in device.targets:
            return device.target(name)
    raise DeviceError("unknown target", expected=", ".join(all_targets()), got=name, remedy="targets=[…] with these")


def device_of(target: Target) -> Device:
    """The device that runs a target's code."""
    return find_device(target.device)
