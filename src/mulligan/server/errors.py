"""API errors: an HTTP status, a code for programs and a message for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
    return ApiError(
        429, "busy", "Too many records. Retry after the time in Retry-After.", headers={"Retry-After": str(seconds)}
    )


def store_unavailable(message: str) -> ApiError:
    return ApiError(503, "store_unavailable", message, headers={"Retry-After": "2"})


def quota_exceeded(measure: str, limit: int, seconds: int) -> ApiError:
    message = f"The daily quota of {limit:,} {measure} is exhausted. It resets at 00:00 UTC."
    return ApiError(429, "quota", message, headers={"Retry-After": str(seconds)})


def request_exceeds_quota(measure: str, limit: int) -> ApiError:
    """Build the error for one request above the daily quota. It is 413, not 429, because a retry can never succeed."""
    return ApiError(413, "too_large", f"The request exceeds the daily quota of {limit:,} {measure}. Send less at once.")
