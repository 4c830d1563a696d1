"""The head of a request that was parsed → whether the next one on the connection is the same but for its length.

Clients send the same head again and again. Bytes that are equal need no parser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from smelt.serve.http import DirectHead

LONGEST_HEAD = 4096  # bytes
MOST_DIGITS = 18  # of a length
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,18})(?=\r\n)")
_END = b"\r\n\r\n"


class KnownHead(NamedTuple):
    """A head's bytes before and after the number of Content-Length, and what it says."""

    before: bytes
    after: bytes
    says: DirectHead

    def cut_body(self, data: bytes) -> bytes | None:
        """The body of a whole request with this head; None: it has another one, or is not all there, or not alone."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + MOST_DIGITS + 1)
        length = data[start:end]
        if end < 0 or not length.isdigit() or not data.startswith(self.after, end):
            return None
        body = end + len(self.after)
        return data[body:] if len(data) - body == int(length) else None


def learn_head(data: bytes, says: DirectHead) -> KnownHead | None:
    """The head of a request that arrived whole as `data`, and was read as `says`."""
    end = data.find(_END) + len(_END)
    lengths = list(_LENGTH.finditer(data, 0, min(end, LONGEST_HEAD)))
    if end > LONGEST_HEAD or len(lengths) != 1 or not _is_whole(data, end, says.headers, lengths[0][1]):
        return None
    before, after = data[: lengths[0].start(1)], data[lengths[0].end(1) : end]
    del says.headers[b"content-length"]
    return KnownHead(before, after, says)


def _is_whole(data: bytes, end: int, headers: Mapping[bytes, bytes], length: bytes) -> bool:
    is_counted = headers.get(b"content-length") == length and b"transfer-encoding" not in headers
    return is_counted and len(data) == end + int(length)
