"""Settings from a file, the environment and flags; mistakes name the setting. The audit log finds changed lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smelt.errors import FileError, UnsupportedError
from smelt.serve.audit import Audit, verify
from smelt.serve.config import read_config


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('host = "::1"\nport = 1\nmax_body = 5\n[[models]]\npath = "m.onnx"\nmax_batch = 8\n')
    found, where = read_config(
        str(path), {"port": 3, "host": None}, {"SMELT_SERVE_PORT": "2", "SMELT_SERVE_MAX_BODY": "6"}
    )
    assert (found.host, found.port, found.max_body, found.models[0].max_batch) == ("::1", 3, 6, 8)
    assert where == str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "prot"),
        ("port = 70000", "0 to 65535"),
        ('port = "x"', "port"),
        ("max_body = 0", "more than 0"),
        ('log = "xml"', "text or json"),
        ('tls_key = "k"', "tls_certificate and tls_key"),
        ('[[models]]\npath = "m"\ninstances = 0', "at least 1"),
        ('[[models]]\npath = "m"\nname = "../x"', "letters, digits"),
        ('[[keys]]\nname = "k"\nsha256 = "secret"', "64 hexadecimal digits"),
        ("port = ", "no TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=r"server\.toml") as raised:
        read_config(str(path), {}, {})
    assert message in str(raised.value)


def test_an_unknown_variable_is_a_mistake() -> None:
    with pytest.raises(UnsupportedError, match="SMELT_SERVE_PROT sets nothing"):
        read_config(None, {}, {"SMELT_SERVE_PROT": "1"})


def changed(lines: list[str], at: int, **fields: Any) -> list[str]:
    return [*lines[:at], json.dumps({**json.loads(lines[at]), **fields}), *lines[at + 1 :]]


def test_the_audit_log_finds_what_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for start in (0, 3):  # the second continues the first
        audit = Audit(str(path))
        for i in range(start, start + 3):
            audit.write("load", model=f"m{i}", client="ä")
        audit.close()
    lines = path.read_text().splitlines()
    assert verify(path)[1] == 6
    for wrong, message in (
        (changed(lines, 2, model="other"), "line 3 was changed"),
        (lines[:2] + lines[3:], "broken at line 3"),
        ([lines[1], lines[0], *lines[2:]], "broken at line 1"),
        ([*lines[:4], "{}", *lines[4:]], "line 5 is no record"),
    ):
        path.write_text("\n".join(wrong) + "\n")
        with pytest.raises(FileError, match=message):
            verify(path)
        with pytest.raises(FileError, match=message):
            Audit(str(path))
