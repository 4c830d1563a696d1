"""`smelt devices`: the devices and engines of this machine, and how to get the missing ones."""

from __future__ import annotations

import json
from typing import Any

from smelt.buffer import bytes_text
from smelt.cli.tables import open_console, print_facts
from smelt.device import pjrt
from smelt.device.registry import KINDS, find_device
from smelt.engine import engines
from smelt.errors import SmeltError


def devices(as_json: bool) -> None:
    """Print every device with its engines."""
    found = [_describe(name) for kind in KINDS for name in _names(kind)]
    if as_json:
        print(json.dumps({"devices": found}))
        return
    console = open_console()
    for device in found:
        if "missing" in device:
            console.print(f"[bold]{device['device']}[/]  not here: {_plain(device['missing'])}")
            continue
        console.print(f"[bold]{device['device']}[/]  {_plain(device['kind'])}")
        states = [(name, "ready" if why is None else f"not here: {why}") for name, why in device["engines"].items()]
        facts = [(name, str(value)) for name, value in device["facts"].items()]
        print_facts(console, [(f"  {name}", text) for name, text in (*facts, *states)])


def _names(kind: str) -> list[str]:
    """Every device of a kind: cuda, cuda:1 …"""
    count = 1 if find_device(kind).missing() is not None else find_device(kind).count
    return [kind, *(f"{kind}:{i}" for i in range(1, count))]


def _describe(name: str) -> dict[str, Any]:
    """A device with every engine that runs there, or why none does."""
    device = find_device(name)
    states = {engine.name: engine.missing() for engine in engines(name)}
    if None not in states.values():
        return {"device": name, "missing": "; ".join(f"{engine}: {why}" for engine, why in states.items())}
    if device.missing() is not None:
        return _through_xla(name, states)
    described = {"device": name, "kind": device.model, "facts": dict(device.facts()), "engines": states}
    return {**described, "target": device.target().as_json()}


def _through_xla(name: str, states: dict[str, str | None]) -> dict[str, Any]:
    """A device as XLA sees it. A plug-in that cannot open it is missing something too."""
    try:
        kind, _, number = name.partition(":")
        client = pjrt.client(kind, int(number or 0))
        facts = {"devices": client.devices, "memory": bytes_text(int(client.stats().get("bytes_limit", 0)))}
        return {"device": name, "kind": client.kind, "facts": facts, "engines": states}
    except SmeltError as error:
        return {"device": name, "missing": f"{error.message}: {error.got}"}


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
