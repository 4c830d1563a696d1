"""Errors that answer a request: a `SmeltError` with an HTTP status. `status_of` gives one to every other error."""

from __future__ import annotations

from typing import Any

from smelt.errors import (
    CancelledError,
    MemoryLimitError,
    RunError,
    ShapeError,
    SmeltError,
    TimedOutError,
    UnsupportedError,
)


class RequestError(SmeltError):
    """A request that cannot be answered. `retry_after`: seconds after which it may be."""

    status = 400
    advice = "GET /openapi.json describes every request and its limits"

    def __init__(self, message: str, *, retry_after: float | None = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.retry_after = retry_after


class UnauthorizedError(RequestError):
    """No key, or a wrong one."""

    status = 401
    advice = "send a key of this server: Authorization: Bearer KEY"


class ForbiddenError(RequestError):
    """A key that does not open this."""

    status = 403
    advice = "use a key that opens this model or path (docs/serving.md)"


class NotFoundError(RequestError):
    """A path, model or version that is not there."""

    status = 404
    advice = "POST /v2/repository/index lists the models, GET /openapi.json the paths"


class MethodError(RequestError):
    """A path that is there, asked for with the wrong method."""

    status = 405
    advice = "GET /openapi.json lists the methods of each path"


class TooLargeError(RequestError):
    """A body or a tensor above the limits."""

    status = 413
    advice = "send less at once, or raise the limit in the server's configuration"


class MediaTypeError(RequestError):
    """A content type or encoding that is not spoken here."""

    status = 415
    advice = "send application/json, or what GET /openapi.json lists for this path"


class BusyError(RequestError):
    """A full queue or a rate above the limit."""

    status = 429
    advice = "try again after Retry-After seconds"


class UnavailableError(RequestError):
    """A model that is loading, failed to load, or is being unloaded."""

    status = 503
    advice = "try again later: GET /v2/health/ready says when"


class DeadlineError(RequestError):
    """Work that did not begin, or end, before its deadline."""

    status = 504
    advice = "allow more time, or send fewer requests at once"


class BrokenError(RequestError):
    """A request that failed inside the server: a bug of ours."""

    status = 500
    advice = "the server's log has the reason, with the request's id"


_STATUS: tuple[tuple[type[SmeltError], int], ...] = (
    (TimedOutError, 504),
    (CancelledError, 499),
    (MemoryLimitError, 503),
    (ShapeError, 400),
    (UnsupportedError, 400),
    (RunError, 400),
)


def as_problem(error: BaseException) -> SmeltError:
    """An error that is not ours, without anything of its inside."""
    return error if isinstance(error, SmeltError) else BrokenError("the request failed inside the server")


def status_of(error: SmeltError) -> int:
    """The HTTP status of an error: 500 is a bug of ours or a broken model, all else is the caller's or the load's."""
    if isinstance(error, RequestError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
