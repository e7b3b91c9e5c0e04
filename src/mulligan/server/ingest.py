"""POST routes of agents and of the HTTP store.

/v1/batch, /v1/runs, /v1/steps and /v1/failures validate records and acknowledge them after the commit. /v1/recall and
/v1/outcomes serve agents, /v1/export and /v1/store/* are the protocol of the HTTP store.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from mulligan.contract.search_terms import parse_search
from mulligan.contract.store import (
    DEFAULT_TENANT,
    IMPORT_PREFIX,
    Batch,
    Health,
    PruneResult,
    TrialReport,
    import_principal,
)
from mulligan.core.events import AnyEvent, FailureRecorded, StepEnded
from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, History, Precedent, Record, Step, StepType, encode
from mulligan.server import bodies, payloads
from mulligan.server.access import Caller
from mulligan.server.app import Endpoint, Server
from mulligan.server.background import FAILURE_WEIGHT, SlicedWork, complete
from mulligan.server.bodies import ApiError, FaultCollector, invalid, json_response, not_found, read_json
from mulligan.server.decisions import hide_size
from mulligan.server.payloads import (
    YEAR_9999,
    BatchPayload,
    check_events,
    check_times,
    find_time_error,
    start_missing_runs,
    weigh_events,
)
from mulligan.store import wire_protocol

T = TypeVar("T")

Converted = tuple[list[AnyEvent], T]
"""Events of a body, and what the response says about them."""
BatchPart = tuple[Callable[[], Batch], int]
"""Part of a large body: a function that builds its batch, and its weight."""
MAX_BODY_FAILURES = 2000
"""Limit of failures in one body: each is classified, which takes milliseconds."""
MAX_INLINE_WEIGHT = 4 * FAILURE_WEIGHT
"""A body up to this weight is converted on the event loop, which is quicker than to wait for a turn."""
MAX_UNNUMBERED_STEPS = 100
"""Limit of steps without a number in one body. They are stored in one transaction, so that none is appended twice."""
MAX_RECALL_RESULTS = 200
"""Limit of precedents and of fixes in one response."""


def build_routes(server: Server) -> Iterable[BaseRoute]:
    return [
        *_build_ingest_routes(server),
        *_build_memory_routes(server),
        *(
            server.route(f"/v1/store/{name}", _store_method_endpoint(server, name), method.required_role, "POST")
            for name, method in wire_protocol.METHODS.items()
        ),
    ]


def _build_ingest_routes(server: Server) -> Iterable[BaseRoute]:
    converter = server.converter

    async def read_payload(request: Request, type: Any) -> tuple[Any, int]:
        data = await bodies.read_body(request, bodies.JSON)
        if len(data) <= bodies.MAX_INLINE_BYTES:
            return bodies.parse_json(data, type), len(data)
        object_type = next(iter(get_args(type)), type)
        parse = bodies.parse_in_slices(data, type, object_type, payloads.ITEM_TYPES.get(object_type, {}))
        with server.committer.holding(len(data)):
            return await server.worker.run(request.state.caller, parse), len(data)

    async def store_events(
        request: Request,
        work: SlicedWork[Converted[T]],
        sizes: BodySize,
        numbered_events: list[AnyEvent] | None = None,
    ) -> tuple[int, T]:
        """Convert a body and store its events. A large one is converted on its own thread and stored in parts.

        `numbered_events` receives the stored events, unless there are several parts.
        """
        numbered_events = [] if numbered_events is None else numbered_events
        caller: Caller = request.state.caller
        if sizes.failures > MAX_BODY_FAILURES:
            message = f"{sizes.failures:,} failures in one body. The limit is {MAX_BODY_FAILURES:,}. Send less at once."
            raise ApiError(413, "too_large", message)
        if sizes.weight <= MAX_INLINE_WEIGHT:
            events, answer = complete(work)
            if not events:
                return 0, answer
            build_batch = partial(converter.build_event_batch, caller.tenant, caller.principal, events, numbered_events)
            return await server.store_batch(caller, build_batch, len(events), sizes.bytes, sizes.weight), answer
        await server.admit(caller, sizes.records, sizes.bytes)
        with server.committer.holding(sizes.bytes):
            events, answer = await server.worker.run(caller, work)
            build_last = partial(number_part, caller, numbered_events)
            return await store_large(caller, events, build_last, is_sent=True), answer

    async def store_large(
        caller: Caller,
        events: Sequence[AnyEvent],
        build_last: Callable[[list[AnyEvent]], BatchPart],
        is_sent: bool = False,
    ) -> int:
        """Store the events of a large body in parts. `is_sent` says that another program sent them, not mulligan."""
        prepare = converter.prepare_parts(caller.tenant, events, is_linked=not is_sent)
        (*parts, last), started_runs = await server.worker.run(caller, prepare)
        stored_runs = await server.run_in_reader(server.store.runs_by_id, caller.tenant, started_runs)
        batches = [number_part(caller, [] if is_sent else None, part) for part in parts]
        new = await server.store_in_parts(caller, [*batches, build_last(last)])
        return new - len(
            set(started_runs) - stored_runs.keys()
        )  # Their start and their end are one record of the body.

    def number_part(caller: Caller, numbered_events: list[AnyEvent] | None, part: list[AnyEvent]) -> BatchPart:
        build_batch = partial(Batch, caller.tenant, part, principal=caller.principal, numbered_events=numbered_events)
        return build_batch, weigh_events(part)

    async def batch(request: Request) -> Response:
        payload: BatchPayload
        payload, size = await read_payload(request, BatchPayload)
        caller: Caller = request.state.caller
        writer = caller
        if payload.journal.startswith(IMPORT_PREFIX):
            writer = caller._replace(principal=import_principal(caller.principal))
        if len(payload.events) <= 1000:  # a batch of a library up to this size is stored in one transaction
            complete(check_events(payload.events))
            build_batch = partial(converter.build_journal_batch, writer.tenant, writer.principal, payload)
            weight = weigh_events(payload.events)
            new = await server.store_batch(caller, build_batch, len(payload.events), size, weight)
            return json_response({"new": new, "offset": payload.offset})
        await server.admit(caller, len(payload.events), size)
        with server.committer.holding(size):
            await server.worker.run(caller, check_events(payload.events))

            def end_journal(part: list[AnyEvent]) -> BatchPart:
                """Store the journal's position with the last part: until then, the client sends all of it again."""
                end = partial(converter.build_journal_end, writer.tenant, writer.principal, payload, part)
                return end, weigh_events(part)

            new = await store_large(writer, payload.events, end_journal)
        return json_response({"new": new, "offset": payload.offset})

    async def runs(request: Request) -> Response:
        items, size = await read_payload(request, payloads.RunPayloads)
        run_payloads = list(_with_path_prefixes(items, payloads.RunPayload))
        now = server.clock()

        def convert() -> SlicedWork[Converted[list[str]]]:
            ids: list[str] = []
            events: list[AnyEvent] = []
            faults = FaultCollector()
            for path_prefix, run_payload in run_payloads:
                with faults:
                    id, run_events = yield from converter.convert_run(run_payload, now, path_prefix)
                    ids.append(id)
                    events += run_events
            faults.raise_all()
            return events, ids

        steps = sum(len(run.steps) for _, run in run_payloads)
        failures = sum(len(run.failures) + sum(map(_has_failed, run.steps)) for _, run in run_payloads)
        new, ids = await store_events(request, convert(), BodySize(size, len(run_payloads) + steps, failures))
        return json_response({"new": new, "runs": ids})

    async def steps(request: Request) -> Response:
        items, size = await read_payload(request, payloads.StepPayloads)
        step_payloads = list(_with_path_prefixes(items, payloads.StepPayload))
        now = server.clock()
        unnumbered = sum(step.seq is None for _, step in step_payloads)
        if unnumbered > MAX_UNNUMBERED_STEPS:
            message = (
                f"{unnumbered:,} steps without seq. The limit is {MAX_UNNUMBERED_STEPS}. Number them, or send less."
            )
            raise ApiError(413, "too_large", message)

        def convert() -> SlicedWork[Converted[None]]:
            steps: list[Step] = []
            faults = FaultCollector()
            for path_prefix, step_payload in step_payloads:
                with faults:
                    steps.append(converter.convert_step(step_payload, now, path_prefix))
                yield
            faults.raise_all()
            return [*start_missing_runs(steps), *map(StepEnded, steps)], None

        failures = sum(_has_failed(step) for _, step in step_payloads)
        sizes = BodySize(size, len(step_payloads), failures)
        numbered_events: list[AnyEvent] = []
        new, _ = await store_events(request, convert(), sizes, numbered_events)
        if not unnumbered:
            return json_response({"new": new})
        seqs = (event.step.seq for event in numbered_events if isinstance(event, StepEnded))
        return json_response({"new": new, "seqs": list(seqs)})

    async def failures(request: Request) -> Response:
        items, size = await read_payload(request, payloads.FailurePayloads)
        caller: Caller = request.state.caller
        failure_payloads: list[tuple[str, payloads.FailurePayload]] = []
        now = server.clock()
        faults = FaultCollector()
        for path_prefix, failure_payload in _with_path_prefixes(items, payloads.FailurePayload):
            with faults:
                failure = failure_payload.resolve_names(path_prefix)
                check_times(failure, now, path_prefix)
                if failure.run is None:
                    raise invalid("Missing run: the id of the run that the failure belongs to.", f"{path_prefix}run")
                converter.check_failure_type(failure, path_prefix)
                failure_payloads.append((path_prefix, failure))
        faults.raise_all()
        run_ids = {failure.run for _, failure in failure_payloads if failure.run is not None}
        histories = {id: await server.run_in_reader(server.store.run, caller.tenant, id) for id in run_ids}

        def convert() -> SlicedWork[Converted[None]]:
            recorded_failures: list[AnyEvent] = []
            failure_steps: list[Step] = []
            for path_prefix, failure in failure_payloads:
                yield
                run, history = failure.run or "", histories[failure.run or ""]
                step = find_stored_step(history, failure.step)
                if step is not None:
                    merged = converter.merge_failure(step, failure, path_prefix)
                    recorded_failures += [FailureRecorded(run, step.seq, merged)] if merged is not None else []
                    continue
                agent = history.run.agent if history is not None else ""
                target: tuple[StepType, str] = ("run", agent) if failure.step is None else ("tool", "")
                failure_steps.append(converter.build_failure_step(failure, run, target, now, path_prefix))
            return [*start_missing_runs(failure_steps), *recorded_failures, *map(StepEnded, failure_steps)], None

        new, _ = await store_events(request, convert(), BodySize(size, len(failure_payloads), len(failure_payloads)))
        return json_response({"new": new})

    def find_stored_step(history: History | None, seq: int | None) -> Step | None:
        """Return the step that a failure belongs to, if it is stored. Without a number, the run itself failed."""
        stored_steps = history.steps if history is not None and seq is not None else ()
        return next((step for step in stored_steps if step.seq == seq), None)

    endpoints = {"batch": batch, "runs": runs, "steps": steps, "failures": failures}
    return [server.route(f"/v1/{name}", endpoint, "ingest", "POST") for name, endpoint in endpoints.items()]


def _build_memory_routes(server: Server) -> Iterable[BaseRoute]:
    def find_memories(tenant: str, request: wire_protocol.RecallRequest) -> wire_protocol.RecallResponse:
        question, query = request.question, request.fixes
        precedents: tuple[Precedent, ...] = ()
        fixes: tuple[Fix, ...] = ()
        if question is not None:
            question = msgspec.structs.replace(question, limit=min(question.limit, MAX_RECALL_RESULTS))
            precedents = tuple(server.store.recall(tenant, question))
        if query is not None:
            now = query.now if 0 < query.now <= YEAR_9999 else server.clock()
            query = msgspec.structs.replace(query, now=now, limit=min(query.limit, MAX_RECALL_RESULTS))
            fixes = tuple(server.store.fixes(tenant, query))
        return wire_protocol.RecallResponse(precedents=precedents, fixes=fixes)

    async def recall(request: Request) -> Response:
        recall_request = await read_json(request, wire_protocol.RecallRequest)
        return json_response(await server.run_in_reader(find_memories, request.state.caller.tenant, recall_request))

    async def outcomes(request: Request) -> Response:
        report = await read_json(request, wire_protocol.OutcomeReport)
        reason = "it is negative." if report.at < 0 else find_time_error(report.at, server.clock())
        if reason:
            raise invalid(f"Invalid time {report.at}: {reason}", "at")
        if not 0 < len(report.run) <= 200:
            raise invalid("Invalid run id. Use 1 to 200 characters.", "run")
        caller: Caller = request.state.caller
        trial = TrialReport(
            run=report.run, principal=caller.principal, agent=report.agent[:200], at=report.at or server.clock(),
            successful=report.successful, automatic=report.automatic,
        )  # fmt: skip
        if not await server.run_in_reader(server.store.record_outcome, caller.tenant, report.fix_id, trial):
            raise not_found("No fix with this id.")
        return json_response({"stored": True})

    async def export(request: Request) -> Response:
        since = (await read_json(request, ExportRequest)).since
        histories = iter(server.store.export(request.state.caller.tenant, max(0, min(since, YEAR_9999))))

        async def lines() -> AsyncIterator[bytes]:
            # Runs read from the store per chunk of an export.
            while batch := await server.run_in_reader(lambda: list(itertools.islice(histories, 20))):
                yield b"".join(encode(history) + b"\n" for history in batch)

        return StreamingResponse(
            lines(), media_type=wire_protocol.EXPORT_CONTENT_TYPE, headers={"Cache-Control": "no-store"}
        )

    return [
        server.route("/v1/recall", recall, "lookup", "POST"),
        server.route("/v1/outcomes", outcomes, "ingest", "POST"),
        server.route("/v1/export", export, "read", "POST"),
    ]


class BodySize(NamedTuple):
    """What a body costs before it is converted."""

    bytes: int
    records: int
    failures: int

    @property
    def weight(self) -> int:
        return self.records + FAILURE_WEIGHT * self.failures


def _has_failed(step: payloads.StepPayload) -> bool:
    return step.failure is not None or step.outcome == "failure"


class ExportRequest(Record, frozen=True):
    since: int = 0


def _with_path_prefixes(payloads: Any, type: type[T]) -> Iterable[tuple[str, T]]:
    """Return one payload or the payloads of a list, each with the path prefix for error messages."""
    if isinstance(payloads, type):
        return [("", payloads)]
    return [(f"[{number}].", payload) for number, payload in enumerate(payloads)]


def _store_method_endpoint(server: Server, name: str) -> Endpoint:
    """Build the endpoint for one method of the HTTP store. The tenant is always the caller's."""

    async def call_store(request: Request) -> Response:
        data = await bodies.read_body(request, wire_protocol.CONTENT_TYPE)
        try:
            args = wire_protocol.decode_arguments(name, data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise invalid(f"Invalid arguments for {name}: {error}.") from None
        tenant, args = request.state.caller.tenant, _check_arguments(name, args)
        result = await server.run_in_reader(getattr(server.store, name), tenant, *args)
        if name == "journals":
            result = [journal for journal in result if journal.startswith(wire_protocol.REMOTE_JOURNAL_PREFIX)]
        if tenant != DEFAULT_TENANT:  # Only the operator may see the store's location and its total size.
            if isinstance(result, Health):
                result = msgspec.structs.replace(result, where="")
            elif isinstance(result, PruneResult):
                result = hide_size(result, tenant)
        return Response(wire_protocol.encode_value(result), media_type=wire_protocol.CONTENT_TYPE)

    return call_store


def _check_arguments(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name in ("get", "put", "compare_and_set", "keys") and args[0] in wire_protocol.SERVER_ONLY_KINDS:
        raise ApiError(403, "forbidden", f"Entries of kind {args[0]!r} are reserved for the server.")
    if name in ("offset", "release"):
        for journal in args[0] if name == "release" else args:
            if not journal.startswith(wire_protocol.REMOTE_JOURNAL_PREFIX):
                raise ApiError(403, "forbidden", f"Journal {journal[:80]!r} is reserved for the server.")
    if name == "runs" and args[0].text is not None:
        try:
            parse_search(args[0].text)
        except SettingsError as error:
            raise invalid(str(error), "text") from None
    if name in ("runs", "lessons", "recall", "fixes"):
        return (msgspec.structs.replace(args[0], limit=min(args[0].limit, 10_000)),)
    return args
