"""Which routes there are: a group a file. Pages for people are mounted beside them, by whoever starts the server."""

from __future__ import annotations

from mulligan.serve.api import asking, deciding, health, ingest, metrics, openapi, opentelemetry, queries
from mulligan.serve.api.app import Group

GROUPS: tuple[Group, ...] = (
    health.group,
    ingest.group,
    opentelemetry.group,
    asking.group,
    queries.group,
    deciding.group,
    metrics.group,
    openapi.group,
)
