"""gRPC uses the certificates of HTTP: a server with TLS speaks nothing in the clear."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from smelt.serve.app import App
from smelt.serve.config import Config
from smelt.serve.grpc import start
from smelt.serve.grpc_messages import messages
from smelt.serve.models import Catalogue
from tests.unit.serve.client import DIGITS, model


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


def test_a_server_with_tls_refuses_calls_in_the_clear(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    kinds = messages()
    config = Config(models=[model(DIGITS)], tls_certificate=str(certificate), tls_key=str(key)).check("the test")

    async def live(channel: grpc.aio.Channel) -> bool:
        async with channel:
            stub = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerLive",
                request_serializer=kinds["ServerLiveRequest"].SerializeToString,
                response_deserializer=kinds["ServerLiveResponse"].FromString,
            )
            return bool((await stub(kinds["ServerLiveRequest"](), timeout=20)).live)

    async def work() -> None:
        app = App(Catalogue(config.models), config)
        server, port = await start(app.service, None, app.journal, "127.0.0.1", 0)
        try:
            trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
            named = [("grpc.ssl_target_name_override", "localhost")]
            assert await live(grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options=named))
            with pytest.raises(grpc.aio.AioRpcError):
                await live(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        finally:
            await server.stop(1)

    asyncio.run(work())
