"""Route groups of the API, one per module. The `serve` command adds the dashboard."""

from __future__ import annotations

from mulligan.server import (
    health_routes,
    ingest,
    lesson_routes,
    memory_routes,
    metrics_route,
    openapi,
    opentelemetry,
    queries,
)
from mulligan.server.app import RouteGroup

ROUTE_GROUPS: tuple[RouteGroup, ...] = (
    health_routes.build_routes,
    ingest.build_routes,
    opentelemetry.build_routes,
    memory_routes.build_routes,
    queries.build_routes,
    lesson_routes.build_routes,
    metrics_route.build_routes,
    openapi.build_routes,
)
