"""Form bodies, read with a size and time limit."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

from starlette.requests import Request

from mulligan.server import request_bodies
from mulligan.server.errors import body_timeout

MAX_FORM_BYTES = 64 * 1024
"""Limit of a form body."""


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a URL-encoded form. Return no fields if it is too large or malformed."""
    body = b""
    try:
        async with asyncio.timeout(request_bodies.BODY_TIMEOUT_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_FORM_BYTES:
                    return {}
    except TimeoutError:
        raise body_timeout(request_bodies.BODY_TIMEOUT_SECONDS) from None
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=50))
    except ValueError:  # More fields than any of our forms has.
        return {}
