"""The options of every command, with their defaults: what scripts rely on. New options may be added.

`pytest tests/golden --update-golden` writes commands.txt again; read the difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

typer_main = pytest.importorskip("typer.main")

from smelt.cli.main import app  # noqa: E402

GOLDEN = Path(__file__).with_name("commands.txt")


def rows(name: str, command: Any) -> list[str]:
    if hasattr(command, "commands"):
        return [row for each in sorted(command.commands) for row in rows(f"{name} {each}", command.commands[each])]
    found = []
    for each in command.params:
        kind = "flag" if getattr(each, "is_flag", False) else "several" if getattr(each, "multiple", False) else "one"
        found.append(f"{name} {'/'.join(each.opts)} = {each.default!r}, {kind}{', required' if each.required else ''}")
    return found


def test_options_keep_their_defaults(request: pytest.FixtureRequest) -> None:
    got = rows("smelt", typer_main.get_command(app))
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text("".join(f"{row}\n" for row in got))
    lost = set(GOLDEN.read_text().splitlines()) - set(got)
    assert not lost, "--update-golden writes the file again"
