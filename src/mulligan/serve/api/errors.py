"""API errors: an HTTP status, a code for programs and a message for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refused(Exception):
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


def invalid(message: str, field: str = "") -> Refused:
    return Refused(400, "invalid", message, field)


def unknown(what: str) -> Refused:
    return Refused(404, "not_found", what)


def too_large(limit: int, what: str) -> Refused:
    return Refused(413, "too_large", f"{what} may have {limit:,} bytes. Send less at once.")


def too_slow(seconds: float) -> Refused:
    told = f"the body did not come within {seconds:g} s. Send less at once."
    return Refused(408, "too_slow", told, headers={"Connection": "close"})


def busy(seconds: int = 1) -> Refused:
    return Refused(
        429, "busy", "more came in than could be kept. Try again later.", headers={"Retry-After": str(seconds)}
    )


def away(told: str) -> Refused:
    return Refused(503, "store_unavailable", told, headers={"Retry-After": "2"})


def used_up(measure: str, most: int, seconds: int) -> Refused:
    told = f"the quota of {most:,} {measure} a day is used up. It begins anew at 00:00 UTC."
    return Refused(429, "quota", told, headers={"Retry-After": str(seconds)})


def too_much(measure: str, most: int) -> Refused:
    """Build the error for one request above the daily quota. It is 413, not 429, because a retry can never succeed."""
    return Refused(413, "too_large", f"{most:,} {measure} a day may come, and this is more. Send less at once.")
