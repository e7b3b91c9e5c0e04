"""POST /v1/lessons/{id}: approve, disable or revoke a lesson."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.core.records import LessonVerdict
from mulligan.report import lesson_report
from mulligan.server import request_bodies
from mulligan.server.access import protected_route
from mulligan.server.app import Server
from mulligan.server.errors import not_found
from mulligan.server.payloads import Payload
from mulligan.server.responses import json_response

PATH = "/v1/lessons/{id}"


class LessonDecisionPayload(Payload, frozen=True):
    """Decision about a lesson. `revoke` also revokes the lesson's fix."""

    verdict: LessonVerdict


def build_routes(server: Server) -> Iterable[BaseRoute]:
    async def decide(request: Request) -> Response:
        payload = request_bodies.parse_json(
            await request_bodies.read_body(request, "application/json"), LessonDecisionPayload
        )
        queries = server.queries_for(request.state.caller)
        lesson = await server.run_in_reader(queries.decide_lesson, request.path_params["id"], payload.verdict)
        if lesson is None:
            raise not_found("No lesson with this id, or several ids start with it. Use the full id.")
        return json_response(lesson_report.to_facts(lesson))

    return [protected_route(server, PATH, decide, "admin", "POST")]
