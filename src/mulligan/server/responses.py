"""HTTP responses: records as JSON, rows as CSV, and errors with a code for programs and a message for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from mulligan.core.records import encode
from mulligan.report.tables import render_csv


def json_response(facts: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    response_headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(encode(facts), status, media_type="application/json", headers=response_headers)


def csv_response(
    rows: Iterable[Mapping[str, Any]], names: Sequence[str], headers: Mapping[str, str] | None = None
) -> Response:
    text = "".join(f"{line}\r\n" for line in render_csv(rows, names))
    response_headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(text, media_type="text/csv; charset=utf-8", headers=response_headers)


class ApiError(Exception):
    """Rejected request, with the reason."""

    def __init__(
        self, status: int, error: str, message: str, field: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message
        self.field = field
        """Path of the invalid field in the request, for example `steps[2].duration_seconds`."""
        self.headers = dict(headers or {})

    @property
    def facts(self) -> dict[str, Any]:
        return {"error": self.error, "message": self.message, **({"field": self.field} if self.field else {})}


def invalid(message: str, field: str = "") -> ApiError:
    return ApiError(400, "invalid", message, field)


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)


def too_large(limit: int, subject: str) -> ApiError:
    return ApiError(413, "too_large", f"{subject} exceeds {limit:,} bytes. Send less at once.")


def body_timeout(seconds: float) -> ApiError:
    message = f"The body was not received within {seconds:g} s. Send less at once."
    return ApiError(408, "too_slow", message, headers={"Connection": "close"})


def rate_limited(seconds: int = 1) -> ApiError:
    message = "Too many records. Retry after the time in Retry-After."
    return ApiError(429, "busy", message, headers={"Retry-After": str(seconds)})


def store_unavailable(message: str) -> ApiError:
    return ApiError(503, "store_unavailable", message, headers={"Retry-After": "2"})


def internal_error(message: str = "Internal server error. See the server's log.") -> ApiError:
    return ApiError(500, "fault", message)
