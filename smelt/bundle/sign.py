"""Ed25519 signatures of bundles, through the `cryptography` package where it is installed.

A signature covers the digest in a bundle's head, and so every byte. Where keys are configured (`SMELT_BUNDLE_KEYS`, or
`keys=`), a bundle without a signature by one of them is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smelt.errors import FileError, MissingPackageError, SmeltError
from smelt.files import read_bytes
from smelt.frozen import Frozen

if TYPE_CHECKING:
    from pathlib import Path

_CONTEXT = b"smelt bundle 1\0"
VARIABLE = "SMELT_BUNDLE_KEYS"
LARGEST = 1 << 16  # bytes of a file with a key


class Seal(Frozen):
    """The signature in a bundle's head; its digest covers the file."""

    public_key: bytes
    signature: bytes
    digest: str


def trusted_keys(keys: Sequence[str] | None) -> tuple[bytes, ...]:
    """The public keys from `keys=` or the environment: 64 hexadecimal digits each, or files with them."""
    if keys is None:
        named = os.environ.get(VARIABLE)
        if named is None:
            return ()
        keys = named.split(",")
    if isinstance(keys, str | bytes) or not keys:
        raise SmeltError("no public key", expected="a list of keys, at least one", got=keys, remedy="leave keys= out")
    return tuple(_public(key.strip()) for key in keys)


def verify(name: str, keys: tuple[bytes, ...], seal: Seal | None) -> None:
    """Refuse a bundle that none of the keys signed."""
    if seal is None or seal.signature == bytes(64):
        raise FileError(
            f"{name} is not signed",
            expected="a bundle with a signature by a configured key",
            remedy=f"sign it (smelt compile --sign), or unset {VARIABLE}",
        )
    public_key, signature, header_digest = seal.public_key, seal.signature, seal.digest
    if public_key not in keys:
        raise FileError(
            f"{name} is signed by a key that is not trusted",
            expected=", ".join(key.hex() for key in keys),
            got=public_key.hex(),
            remedy=f"add this key to {VARIABLE} or keys= if you trust who signed it",
        )
    ed25519 = _ed25519("verify the signature of a bundle")
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _message(header_digest))
    except InvalidSignature as error:
        raise FileError(
            f"{name} has a wrong signature",
            expected=f"one by {public_key.hex()}",
            got="a file that was changed after it was signed",
            remedy="get the file from its source again",
        ) from error


def signer(private_key: str | Path) -> Callable[[str], tuple[bytes, bytes]]:
    """A function that signs the digest of a head with a private key file: PEM, or 32 bytes, raw or hexadecimal."""
    ed25519 = _ed25519("sign a bundle")
    key = _private(private_key, ed25519)
    public: bytes = key.public_key().public_bytes_raw()
    return lambda header_digest: (public, key.sign(_message(header_digest)))


def _message(header_digest: str) -> bytes:
    return _CONTEXT + bytes.fromhex(header_digest)


def _private(path: str | Path, ed25519: Any) -> Any:
    data = read_bytes(path, LARGEST)
    try:
        if data.startswith(b"-----BEGIN"):
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            key = load_pem_private_key(data, None)
            if not isinstance(key, ed25519.Ed25519PrivateKey):
                raise ValueError("a key of another type")
            return key
        return ed25519.Ed25519PrivateKey.from_private_bytes(data if len(data) == 32 else bytes.fromhex(data.decode()))
    except (ValueError, TypeError) as error:
        raise FileError(
            f"{path} is no private key",
            expected="an Ed25519 key: PEM without a password, or 32 bytes, raw or hexadecimal",
            got=error,
            remedy="openssl genpkey -algorithm ed25519 -out FILE",
        ) from error


def _public(key: str) -> bytes:
    """A public key of 32 bytes, from hexadecimal text or a file with it."""
    try:
        text = key if len(key) == 64 else read_bytes(key, LARGEST).decode("ascii").strip()
        found = bytes.fromhex(text)
        if len(found) != 32:
            raise ValueError(f"{len(found)} bytes")
        return found
    except (FileError, ValueError) as error:
        raise SmeltError(
            "no public key",
            expected="64 hexadecimal digits, or a file with them",
            got=key,
            remedy=f"keys=[…] or {VARIABLE} with keys in this form, or neither",
        ) from error


def _ed25519(purpose: str) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingPackageError(f"cannot {purpose}", got=str(error), remedy="pip install cryptography") from error
    return ed25519
