"""What a form sends, read with a bound."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

FORM = 64 * 1024
"""Bytes of a form."""


async def form(request: Request) -> dict[str, str]:
    """The fields of a form, of a bounded size. A browser sends them so without any script."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM:
            return {}
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=50))
    except ValueError:  # more fields than any form of ours has
        return {}
