"""POST /v1/lessons/{id}: approve, disable or revoke a lesson."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.records import LessonVerdict
from mulligan.report import lessons as lessons_told
from mulligan.serve.api import bodies
from mulligan.serve.api.answers import answer
from mulligan.serve.api.app import Server
from mulligan.serve.api.doors import route
from mulligan.serve.api.errors import unknown
from mulligan.serve.api.sent import Sent

PATH = "/v1/lessons/{id}"


class SentVerdict(Sent, frozen=True):
    """Decision about a lesson. `revoke` also revokes the lesson's fix."""

    verdict: LessonVerdict


def group(server: Server) -> Iterable[BaseRoute]:
    async def decide(request: Request) -> Response:
        said = bodies.parsed(await bodies.read(request, "application/json"), SentVerdict)
        questions = server.questions(request.state.caller)
        lesson = await server.ask(questions.decide_lesson, request.path_params["id"], said.verdict)
        if lesson is None:
            raise unknown("there is no such lesson, or several begin so.")
        return answer(lessons_told.facts(lesson))

    return [route(server, PATH, decide, "admin", "POST")]
