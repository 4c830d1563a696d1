"""`smelt devices`: what is here is listed, and what is missing comes with a remedy."""

from __future__ import annotations

import json
import os

import pytest

from smelt.cli.devices import devices
from smelt.device import pjrt


def test_the_processor_and_its_engines(capsys: pytest.CaptureFixture[str]) -> None:
    devices(True)
    found = {device["device"]: device for device in json.loads(capsys.readouterr().out)["devices"]}
    cpu = found["cpu"]
    assert cpu["facts"]["threads"] == len(os.sched_getaffinity(0))
    assert set(cpu["engines"]) == {"native", "pjrt", "reference"}
    assert cpu["engines"]["reference"] is None
    devices(False)
    assert "threads" in capsys.readouterr().out


def test_what_is_missing_comes_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pjrt, "version", lambda: None)
    devices(True)
    found = {device["device"]: device for device in json.loads(capsys.readouterr().out)["devices"]}
    assert 'pip install "smelt[xla]"' in found["cuda"]["missing"]
    assert 'pip install "smelt[xla]"' in found["cpu"]["engines"]["pjrt"]
    devices(False)
    assert 'pip install "smelt[xla]"' in capsys.readouterr().out
