"""HTTP responses: records as JSON, rows as CSV."""

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
    return Response(
        text, media_type="text/csv; charset=utf-8", headers={"Cache-Control": "no-store", **(headers or {})}
    )
