"""Routes that need the role admin: decisions about fixes, patterns and lessons, and deletion of records.

They follow the rules of the commands: an id may be an unambiguous prefix, deletion previews unless it is confirmed,
and each change is in the audit log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    FixQuery,
    ForgetRequest,
    ListedResource,
    PatternAction,
    PatternCommand,
    PruneResult,
    Revocation,
    Store,
)
from mulligan.core.records import Fix, LessonVerdict
from mulligan.learn.pattern_decisions import MAX_LINK_CHARS, MAX_NOTE_CHARS
from mulligan.report import memory_text
from mulligan.server.app import Server
from mulligan.server.bodies import ApiError, invalid, json_response, not_found, read_json
from mulligan.server.payloads import Name, Payload, Timestamp

MAX_SEARCHED_FIXES = 100_000
MAX_NAMED_IDS = 5
MAX_DECIDED_PATTERNS = 100
Days = Annotated[int, Meta(ge=0, le=100_000)]
Text = Annotated[str, Meta(min_length=1, max_length=10_000)]
Confirmation = Annotated[bool, Meta(description="Without it, the response is a preview and nothing is deleted.")]


class FixDecisionPayload(Payload, frozen=True):
    """Decision about a fix. An approved one is applied whatever its counts, a revoked one never."""

    verdict: Literal["approve", "revoke"]


class LessonDecisionPayload(Payload, frozen=True):
    """Decision about a lesson. `revoke` also revokes the lesson's fix."""

    verdict: LessonVerdict


class PatternDecisionPayload(Payload, frozen=True):
    """Decision about a pattern, or a comment.

    `merge` counts it as part of `into`, `split` undoes that; `note` replaces its note.
    """

    action: PatternAction
    into: Annotated[Name | None, Meta(description="For merge: id of the other pattern.")] = None
    note: Annotated[
        Annotated[str, Meta(max_length=MAX_NOTE_CHARS)] | None,
        Meta(description="For note: the text. Empty removes it."),
    ] = None
    text: Annotated[
        Annotated[str, Meta(max_length=MAX_NOTE_CHARS)],
        Meta(
            description="For assign the owner (`me`: yourself), for link the address of its issue, for comment the "
            f"comment, for resolve the version. Empty removes owner and link. A link has at most {MAX_LINK_CHARS} "
            "characters."
        ),
    ] = ""
    until: Annotated[Timestamp | None, Meta(description="For mute: until this time. UTC milliseconds.")] = None
    max_per_day: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000_000)] | None,
        Meta(description="For mute: while it occurs at most so often per UTC day."),
    ] = None


class PatternDecisionsPayload(PatternDecisionPayload, frozen=True):
    """The same decision about several patterns: all of them, or none if an id is unknown."""

    ids: Annotated[list[Name], Meta(min_length=1, max_length=MAX_DECIDED_PATTERNS)] = msgspec.field(
        default_factory=list
    )


class RevocationPayload(Payload, frozen=True):
    """Trials to exclude from learning, by who recorded them, by tool, by the start of their run."""

    principal: Annotated[Name | None, Meta(description="All trials that this principal recorded.")] = None
    tool: Annotated[Name | None, Meta(description="All trials of fixes for this tool.")] = None
    since: Annotated[Timestamp | None, Meta(description="All trials in runs since this time. UTC milliseconds.")] = None


class ForgetPayload(Payload, frozen=True):
    """Records to delete permanently. Send exactly one of run, tool, session, text and learned."""

    run: Annotated[Text | None, Meta(description="Id of a run, or an unambiguous prefix.")] = None
    tool: Annotated[Text | None, Meta(description="Name of a tool: all its arguments and results.")] = None
    session: Annotated[Text | None, Meta(description="Id of a session: all its runs.")] = None
    text: Annotated[Text | None, Meta(description="Text, wherever it occurs. The records stay without it.")] = None
    learned: Annotated[bool, Meta(description="All fixes and learned lessons. Runs stay.")] = False
    confirm: Confirmation = False


class PrunePayload(Payload, frozen=True):
    """Retention for one deletion of expired runs. Default: the tenant's own."""

    keep_failures: Annotated[Days | None, Meta(description="Days to keep failed runs.")] = None
    keep_successes: Annotated[Days | None, Meta(description="Days to keep successful runs.")] = None
    max_size: Annotated[Days | None, Meta(description="Size of the store in MB, to which the oldest runs go.")] = None
    sample: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="Share of old successful steps to keep.")
    ] = None
    include_imported: Annotated[bool, Meta(description="Whether imported runs are deleted too.")] = False
    confirm: Confirmation = False


def build_routes(server: Server) -> Iterable[BaseRoute]:
    store = server.store

    async def decide_fix(request: Request) -> Response:
        verdict, tenant, now = (await read_json(request, FixDecisionPayload)).verdict, _tenant(request), server.clock()

        def decide() -> dict[str, Any]:
            fix = find_fix(store, tenant, request.path_params["id"], now)
            store.decide(tenant, fix.id, verdict == "approve", now)
            return memory_text.fix_facts(find_fix(store, tenant, fix.id, now))

        return json_response(await server.run_in_reader(decide))

    async def decide_lesson(request: Request) -> Response:
        verdict, tenant = (await read_json(request, LessonDecisionPayload)).verdict, _tenant(request)

        def decide() -> dict[str, Any]:
            id = find_id(store, tenant, "lessons", request.path_params["id"])
            lesson = store.decide_lesson(tenant, id, verdict, server.clock())
            if lesson is None:
                raise unknown("lesson", id)
            return memory_text.lesson_facts(lesson)

        return json_response(await server.run_in_reader(decide))

    async def decide_pattern(request: Request) -> Response:
        tenant = _tenant(request)
        if one := request.path_params.get("id"):
            payload, prefixes = await read_json(request, PatternDecisionPayload), [one]
        else:
            bulk = await read_json(request, PatternDecisionsPayload)
            payload, prefixes = bulk, bulk.ids
        if not prefixes:
            raise invalid("Send ids, the patterns to change.", "ids")
        if (payload.into is None) == (payload.action == "merge"):
            raise invalid("Send into with the action merge, and only with it.", "into")
        if (payload.note is None) == (payload.action == "note"):
            raise invalid("Send note with the action note, and only with it.", "note")

        def decide() -> list[dict[str, Any]]:
            into = None if payload.into is None else find_id(store, tenant, "patterns", payload.into)
            command = PatternCommand(
                action=payload.action, pattern="", into=into, note=payload.note or "", at=server.clock(),
                text=payload.text, until=payload.until, max_per_day=payload.max_per_day,
            )  # fmt: skip
            facts = []
            for id in [find_id(store, tenant, "patterns", prefix) for prefix in prefixes]:
                pattern = store.update_pattern(tenant, msgspec.structs.replace(command, pattern=id))
                if pattern is None:
                    raise unknown("pattern", id)
                facts.append(memory_text.pattern_facts(pattern))
            return facts

        facts = await server.run_in_reader(decide)
        return json_response(facts[0] if one else {"patterns": facts})

    async def revoke(request: Request) -> Response:
        payload = await read_json(request, RevocationPayload)
        if payload == RevocationPayload():
            raise invalid("Nothing selected. Send principal, tool or since.")
        revocation = Revocation.before(server.clock(), payload.principal, payload.tool, payload.since)
        result = await server.run_in_reader(store.revoke, _tenant(request), revocation)
        return json_response(msgspec.structs.asdict(result))

    async def forget(request: Request) -> Response:
        payload, tenant = await read_json(request, ForgetPayload), _tenant(request)

        def erase() -> dict[str, Any]:
            run = payload.run and find_id(store, tenant, "runs", payload.run)
            learned = server.clock() if payload.learned else None
            forget_request = ForgetRequest(run, payload.tool, payload.session, payload.text, learned)
            forget_records = store.forget if payload.confirm else store.preview_forget
            result = forget_records(tenant, forget_request)
            return {"dry_run": not payload.confirm, **msgspec.structs.asdict(result)}

        return json_response(await server.run_in_reader(erase))

    async def prune(request: Request) -> Response:
        payload, tenant = await read_json(request, PrunePayload), _tenant(request)
        units = {"keep_failures": DAY, "keep_successes": DAY, "max_size": 1_000_000, "sample": 1}
        limits = {name: limit * unit for name, unit in units.items() if (limit := getattr(payload, name)) is not None}
        policy = msgspec.structs.replace(
            server.tenants.settings_for(tenant).retention, include_imported=payload.include_imported, **limits
        )
        result = await server.run_in_reader(store.prune, tenant, policy, server.clock(), not payload.confirm)
        return json_response({"dry_run": not payload.confirm, **msgspec.structs.asdict(hide_size(result, tenant))})

    endpoints = {
        "fixes/{id}": decide_fix, "lessons/{id}": decide_lesson, "patterns/{id}": decide_pattern,
        "patterns": decide_pattern,
        "revocations": revoke, "forget": forget, "prune": prune,
    }  # fmt: skip
    return [server.route(f"/v1/{path}", endpoint, "admin", "POST") for path, endpoint in endpoints.items()]


def _tenant(request: Request) -> str:
    return str(request.state.caller.tenant)


def hide_size(result: PruneResult, tenant: str) -> PruneResult:
    """Return the result without the size of the store, unless the caller is the operator."""
    return result if tenant == DEFAULT_TENANT else msgspec.structs.replace(result, bytes_before=0, bytes_after=0)


def find_id(store: Store, tenant: str, resource: ListedResource, prefix: str) -> str:
    """Return the id that equals this one, or the only one that starts with it. Raise `ApiError` otherwise."""
    ids = store.find_ids(tenant, resource, prefix, MAX_NAMED_IDS + 1) if prefix else []
    return _select_id(ids, resource.removesuffix("s"), prefix)


def find_fix(store: Store, tenant: str, prefix: str, now: int) -> Fix:
    """Return the fix with this id or unambiguous prefix. Raise `ApiError` otherwise."""
    fixes = {fix.id: fix for fix in store.fixes(tenant, FixQuery(now=now, limit=MAX_SEARCHED_FIXES))}
    return fixes[_select_id(sorted(id for id in fixes if prefix and id.startswith(prefix)), "fix", prefix)]


def _select_id(ids: list[str], noun: str, prefix: str) -> str:
    if prefix in ids:
        return prefix
    if not ids:
        raise unknown(noun, prefix)
    if len(ids) > 1:
        named_ids = f"{', '.join(ids[:MAX_NAMED_IDS])}{' and more' if len(ids) > MAX_NAMED_IDS else ''}"
        plural = "fixes" if noun == "fix" else f"{noun}s"
        raise ApiError(409, "ambiguous", f"Several {plural} start with {prefix!r}: {named_ids}. Use more of the id.")
    return ids[0]


def unknown(noun: str, id: str) -> ApiError:
    return not_found(f"No {noun} with the id {id[:200]!r}, and none that starts with it.")
