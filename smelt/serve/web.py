"""The web page at `/`: files of the package, sent as they are, with a policy that allows nothing from elsewhere."""

from __future__ import annotations

import hashlib
from importlib import resources

from smelt.serve.http import Request, Response, Routes

_KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # ask again; the answer is 304 as long as the file is the same
]


def _files() -> dict[str, tuple[bytes, bytes, bytes]]:
    """Path → bytes, type, tag."""
    found = {}
    for file in resources.files("smelt.serve").joinpath("page").iterdir():
        kind = _KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            data = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            found[path] = data, kind, f'"{hashlib.sha256(data).hexdigest()[:24]}"'.encode()
    return found


FILES = _files()


class Page:
    """The page holds no data: what it shows comes from /api/v1, with the key that it asks for."""

    def add_to(self, routes: Routes) -> None:
        for path in FILES:
            routes.add("GET", path, self.file)

    async def file(self, request: Request) -> Response:
        data, kind, tag = FILES[request.path]
        headers = [*_HEADERS, (b"etag", tag)]
        if request.headers.get(b"if-none-match") == tag:
            return Response(b"", 304, kind, headers)
        return Response(data, kind=kind, headers=headers)
