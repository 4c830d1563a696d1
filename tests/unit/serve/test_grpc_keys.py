"""Keys and the audit log over gRPC: the same as over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from smelt.serve.app import App
from smelt.serve.audit import Audit, verify
from smelt.serve.config import Config, KeyConfig
from smelt.serve.grpc import start
from smelt.serve.grpc_messages import messages
from smelt.serve.models import Catalogue
from tests.unit.serve.client import DIGITS, model

SERVICE = "inference.GRPCInferenceService"


def key(name: str, **fields: Any) -> KeyConfig:
    return KeyConfig(name=name, sha256=hashlib.sha256(name.encode()).hexdigest(), **fields)


def test_calls_are_checked_and_audited(tmp_path: Path) -> None:
    kinds, log = messages(), tmp_path / "audit.jsonl"
    keys = [key("some", models=("x*",)), key("boss", admin=True)]
    config = Config(models=[model(DIGITS), model(DIGITS, name="xyz")], keys=keys).check("the test")

    async def work() -> None:
        audit, catalogue = Audit(str(log)), Catalogue(config.models)
        app = App(catalogue, config)
        server, port = await start(app.service, audit, app.journal, "127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

            async def call(method: str, secret: str, /, **fields: Any) -> Any:
                stub = channel.unary_unary(
                    f"/{SERVICE}/{method}",
                    request_serializer=kinds[f"{method}Request"].SerializeToString,
                    response_deserializer=kinds[f"{method}Response"].FromString,
                )
                metadata = (("authorization", f"Bearer {secret}"),)
                return await stub(kinds[f"{method}Request"](**fields), metadata=metadata, timeout=60)

            for method, secret, fields, code in (
                ("ModelMetadata", "wrong", {"name": "xyz"}, grpc.StatusCode.UNAUTHENTICATED),
                ("ModelMetadata", "some", {"name": "digits"}, grpc.StatusCode.PERMISSION_DENIED),
                ("RepositoryModelLoad", "some", {"model_name": "xyz"}, grpc.StatusCode.PERMISSION_DENIED),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call(method, secret, **fields)
                assert raised.value.code() == code
            for secret, want in (("some", {"xyz"}), ("boss", {"digits", "xyz"})):
                assert {row.name for row in (await call("RepositoryIndex", secret)).models} == want
                assert {row.name for row in (await call("ModelStatistics", secret)).model_stats} == want
            await call("RepositoryModelLoad", "boss", model_name="xyz")
            await call("RepositoryModelUnload", "boss", model_name="xyz")
        await server.stop(1)
        await catalogue.close(10)
        audit.close()

    asyncio.run(work())
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["event"], row["key"], row.get("model")) for row in rows] == [
        ("refused", None, None),
        ("refused", "some", None),
        ("refused", "some", None),
        ("load", "boss", "xyz"),
        ("unload", "boss", "xyz"),
    ]
    assert rows[-1]["path"] == f"{SERVICE}/RepositoryModelUnload"
    assert rows[-1]["client"].startswith("ipv4:127.0.0.1")
    assert verify(log)[1] == 5
