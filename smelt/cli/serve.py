"""`smelt serve`: models over HTTP. Flags, environment and a TOML file become one configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from smelt.errors import SmeltError, UnsupportedError


def serve(
    paths: Sequence[str], config: Path | None, flags: Mapping[str, Any], model: Mapping[str, Any], show: bool
) -> None:
    """Serve models until the process is asked to stop. `model`: how every model named on the command line is loaded."""
    settings = _part("config")
    said = dict(flags)
    if paths:
        said["models"] = [{**_parse_named(text), **{k: v for k, v in model.items() if v is not None}} for text in paths]
    found, _ = settings.read_config(None if config is None else str(config), said)
    if show:
        import msgspec

        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    if not found.models:
        raise UnsupportedError("there is nothing to serve", remedy="smelt serve MODEL…, or --config FILE with models")
    _part("server").serve(found)


def verify_audit(path: Path, as_json: bool) -> None:
    """Check the hash chain of an audit log."""
    last, count = _part("audit").verify(path)
    if as_json:
        print(json.dumps({"lines": count, "last": last}))
    else:
        print(f"{path}: {count} lines, the chain holds; last hash {last}")


def _parse_named(text: str) -> dict[str, str]:
    """`NAME=PATH`, or a path."""
    name, separator, path = text.partition("=")
    return {"name": name, "path": path} if separator and not Path(text).exists() else {"path": text}


def _part(name: str) -> Any:
    """A module of the server: what it needs comes with the extra `serve`."""
    try:
        return import_module(f"smelt.serve.{name}")
    except ImportError as error:
        if isinstance(error, SmeltError) or (error.name or "").startswith("smelt"):
            raise
        raise UnsupportedError(
            f"the server needs the package {error.name}", remedy='pip install "smelt[serve]"'
        ) from error
