"""Settings from a file, the environment and flags; mistakes name the setting. The audit log finds changed lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smelt.errors import FileError, SmeltError, UnsupportedError
from smelt.serve.audit import Audit, verify
from smelt.serve.config import MOST_INSTANCES, Config, KeyConfig, ModelConfig, read_config, read_model_config


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
        ("port = -1", "0 to 65535"),
        ("port = 65536", "0 to 65535"),
        ("grpc_port = 65536", "grpc_port is wrong"),
        ("max_body = 0", "more than 0"),
        ("max_elements = 0", "max_elements is wrong"),
        ("max_connections = 0", "max_connections is wrong"),
        ("body_timeout = 0.0", "body_timeout is wrong"),
        ("keep_alive = 0.0", "keep_alive is wrong"),
        ("drain = 0.0", "drain is wrong"),
        ("workers = 0", "1 to 256"),
        ("workers = 257", "1 to 256"),
        ("workers = 2\nshared_memory = true", "one worker, which has the regions"),
        ('tls_certificate = "c"', "tls_certificate and tls_key"),
        ('tls_client_ca = "c"', "also tls_certificate and tls_key"),
        ('log = "xml"', "text or json"),
        ('tls_key = "k"', "tls_certificate and tls_key"),
        ('[[models]]\npath = "m"\ninstances = 0', "at least 1"),
        (f'[[models]]\npath = "m"\ninstances = {MOST_INSTANCES + 1}', f"at most {MOST_INSTANCES}"),
        ('[[models]]\npath = "m"\nmax_batch = 0', "max_batch is wrong"),
        ('[[models]]\npath = "m"\nmax_delay_ms = -1.0', "max_delay_ms is wrong"),
        ('[[models]]\npath = "m"\nmax_queue = -1', "max_queue is wrong"),
        ('[[models]]\npath = "m"\ntimeout = 0.0', "more than 0 seconds"),
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


BOUNDS = {
    "port": (0, 65535), "grpc_port": (0, 65535), "max_body": (1,), "max_elements": (1,), "max_connections": (1,),
    "body_timeout": (0.001,), "keep_alive": (0.001,), "drain": (0.001,), "workers": (1, 256), "log": ("text", "json"),
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in BOUNDS.items() for value in values])
def test_bounds_themselves_are_allowed(field: str, value: Any) -> None:
    assert getattr(read_config(None, {field: value}, {})[0], field) == value


def test_the_least_and_the_most_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for instances, limit in ((1, 0.001), (MOST_INSTANCES, 60.0)):
        path.write_text(
            f'path = "m"\nname = "a.b-c_1"\ninstances = {instances}\nmax_batch = 1\nmax_queue = 0\ntimeout = {limit}\n'
        )
        found = read_model_config(path)
        assert (found.instances, found.max_batch, found.max_queue, found.timeout) == (instances, 1, 0, limit)
        assert (found.max_delay_ms, found.warm_up, found.trusted) == (0.0, True, False)


def test_variables_are_numbers_words_or_truth_values() -> None:
    said = {"METRICS": "False", "OTEL": "TRUE", "DRAIN": "2.5", "MAX_BODY": "7", "HOST": "h", "MEMORY_BUDGET": "2 MB"}
    found = read_config(None, {}, {f"SMELT_SERVE_{name}": value for name, value in said.items()} | {"OTHER": "1"})[0]
    assert (found.metrics, found.otel, found.drain, found.max_body, found.host) == (False, True, 2.5, 7, "h")
    assert found.budget == 2_000_000
    assert read_config(None, {}, {})[0].budget is None
    with pytest.raises(SmeltError, match="memory_budget is not understood"):
        read_config(None, {"memory_budget": "much"}, {})
    for name in ("MODELS", "KEYS"):
        with pytest.raises(UnsupportedError, match=f"SMELT_SERVE_{name} sets nothing"):
            read_config(None, {}, {f"SMELT_SERVE_{name}": "1"})


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


def settings_of_the_page() -> list[dict[str, str]]:
    """Setting → default, as text, of each table of settings in docs/serving.md."""
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text("utf-8")
    tables = re.findall(r"^\| setting \| default \| \|\n.*?\n((?:\|.*\n)+)", page, re.M)
    return [dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.M)) for table in tables]


@pytest.mark.parametrize(("number", "kind"), [(0, Config), (1, ModelConfig), (2, KeyConfig)])
def test_the_page_lists_every_setting_and_its_default(number: int, kind: Any) -> None:
    def shown(field: Any) -> str:
        if field.required:
            return "required"
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        if default in (None, [], {}) or default == ():
            return "–"
        return f"`{json.dumps(list(default) if isinstance(default, tuple) else default)}`"

    assert settings_of_the_page()[number] == {field.name: shown(field) for field in msgspec.structs.fields(kind)}
