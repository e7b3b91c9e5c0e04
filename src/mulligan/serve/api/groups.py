"""Route groups of the API, one per module. The `serve` command adds the dashboard."""

from __future__ import annotations

from mulligan.serve.api import asking, deciding, health, ingest, metrics, openapi, opentelemetry, queries
from mulligan.serve.api.app import RouteGroup

ROUTE_GROUPS: tuple[RouteGroup, ...] = (
    health.build_routes,
    ingest.build_routes,
    opentelemetry.build_routes,
    asking.build_routes,
    queries.build_routes,
    deciding.build_routes,
    metrics.build_routes,
    openapi.build_routes,
)
