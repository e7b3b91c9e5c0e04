"""Route groups of the API, one per module. The `serve` command adds the dashboard."""

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
