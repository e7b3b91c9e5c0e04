"""The reflector: the user's own model, asked about a failed call when rules and memory have no suggestion.

It is asked in a thread of its own, within a time limit, budgets and a circuit breaker. Whatever goes wrong with it, the
call ends as it would have ended without it.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import hashlib
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mulligan.capture.call_execution import CallExecution
from mulligan.capture.call_scope import CallScope
from mulligan.capture.context import RunOptions
from mulligan.capture.model_record import usage_fields
from mulligan.capture.player import is_on_event_loop
from mulligan.capture.run import ActiveRun
from mulligan.core import fork_safety
from mulligan.core.calls import is_same_json
from mulligan.core.conversation import get_field
from mulligan.core.failure import Failure, SettingsError, StoreError
from mulligan.core.records import Change, Link, count_tokens
from mulligan.core.token_usage import TokenUsage, read_usage
from mulligan.prompt.reflection_messages import RunCall
from mulligan.recover.plan import select_tellable
from mulligan.recover.policy import Arguments
from mulligan.recover.reflection import (
    CalibratedReflection,
    EvidenceSource,
    Outcomes,
    Reflection,
    confidence_band,
    draft_reflection,
    parse_reflection,
    read_answer,
)
from mulligan.recover.schema import compile_schema
from mulligan.recover.tokens import estimate_tokens
from mulligan.redaction import to_plain_data

CACHE_SECONDS = 3600.0
MAX_PENDING_RUNS = 200
"""Runs whose reflections wait for the end of the run, to see whether they were right."""
MAX_FAILURES = 3
"""Failed requests in a row that open the circuit breaker."""
OPEN_SECONDS = 60.0
ENDPOINT_TIMEOUT_SECONDS = 120.0
EVENT_LOOP_REASON = "the call is not async and runs on the event loop, which a request would block"

LoadEntry = Callable[[str], bytes | None]
"""Returns the stored entry with this key."""
SaveEntry = Callable[[str, bytes | None, bytes], bool]
"""Replaces an entry, given its old value. Returns False if another process has changed it."""


class ReflectionUsage(msgspec.Struct):
    """Requests, tokens and seconds that reflection has taken, in a run or on a day."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, other: ReflectionUsage) -> None:
        self.calls += other.calls
        self.tokens += other.tokens
        self.seconds += other.seconds

    def find_objection(self, request: ReflectionUsage, limit: ReflectionUsage, period: str) -> str:
        """Return why a request would exceed a limit, or an empty string."""
        if self.calls + request.calls > limit.calls:
            return f"the limit of {limit.calls} reflections per {period} is reached"
        if self.tokens + request.tokens > limit.tokens:
            return f"the limit of {limit.tokens} reflection tokens per {period} is reached"
        if self.seconds >= limit.seconds:
            return f"the limit of {limit.seconds:g} s of reflection per {period} is reached"
        return ""


class ReflectorReply(NamedTuple):
    """What came back from the model: the text of its answer, or the error."""

    text: str
    usage: TokenUsage | None
    tokens: int
    seconds: float
    error: str = ""


class PendingReflection(NamedTuple):
    """A reflection whose run has not ended."""

    tool_key: str
    source: EvidenceSource
    band: int
    changes: tuple[Change, ...]
    tools: tuple[str, ...]

    def is_right(self, link: Link) -> bool:
        """Return whether the call that recovered the failure is the one that was suggested."""
        if self.tools:
            return link.method == "prerequisite" and set(self.tools) <= set(link.intermediate_tools)
        return {_identify(change) for change in self.changes} == {_identify(change) for change in link.changes}


def _identify(change: Change) -> str:
    # A clamp, an enum member and a default are the same change under another name.
    operation = change.operation if change.operation in ("rename", "drop") else "set"
    return f"{change.path} {operation} {msgspec.json.encode(change.after, enc_hook=str, order='sorted').decode()}"


class Reflector:
    """Your own model as the last resort for a failed call: `mulligan.configure(reflect=Reflector(client, name="..."))`.

    `model` is a function that takes a text and returns the model's answer (a text, a dictionary or a provider's
    response), or an OpenAI, Anthropic or LiteLLM client. `name` is the client's model. `timeout` limits one request in
    seconds. `per_run` and `per_day` limit the requests of a run and of a UTC day, by default to
    `{"calls": 3, "tokens": 20_000, "seconds": 60}` and `{"calls": 200, "tokens": 1_000_000, "seconds": 3600}`.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str = "",
        timeout: float = 20.0,
        per_run: Mapping[str, float] | None = None,
        per_day: Mapping[str, float] | None = None,
    ) -> None:
        self.name = name
        self.timeout = _check_limits({"timeout": timeout}, {"timeout": 20.0})["timeout"]
        self._model = _to_function(model, name)
        self._run_limit = ReflectionUsage(**_check_limits(per_run or {}, _RUN_LIMITS))
        self._day_limit = ReflectionUsage(**_check_limits(per_day or {}, _DAY_LIMITS))
        self._load: LoadEntry | None = None
        self._save: SaveEntry | None = None
        self._clock: Callable[[], float] = time.time
        self._entries: dict[str, bytes] = {}
        """The entries of a reflector without a store, and those that could not be stored."""
        self._reset()
        fork_safety.run_in_child(self._reset)

    def _reset(self) -> None:
        """Start without threads, after the start of the process or a fork."""
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[float, Reflection]] = {}
        self._run_usages: dict[str, ReflectionUsage] = {}
        self._pending: dict[str, dict[int, PendingReflection]] = {}
        self._reserved = ReflectionUsage()
        """Requests in progress, with the tokens that they are expected to take."""
        self._running = 0
        self._failures = 0
        self._open_until = 0.0
        self._open_seconds = OPEN_SECONDS

    def connect(self, load: LoadEntry, save: SaveEntry, clock: Callable[[], float]) -> None:
        """Store the usage of each day and the observed outcomes, so that all processes share them."""
        self._load, self._save, self._clock = load, save, clock

    # One failed call

    def reflect(
        self, call: CallExecution, failure: Failure, arguments: Arguments, tried_calls: Sequence[Arguments]
    ) -> CalibratedReflection | None:
        """Ask about a failed call, or take the earlier answer. Record the request. Return None without an answer.

        `arguments` are those of the failed attempt, `tried_calls` those of the attempts before it.
        """
        tool, schema = call.tool, call.tool.schema()
        compiled = compile_schema(schema) if schema else None
        visible_arguments = call.answer.prompt.visible_arguments(arguments)
        digest = compiled.digest if compiled is not None else ""
        identity = [tool.key, failure.fingerprint or failure.message, digest, visible_arguments, tried_calls]
        key = hashlib.blake2b(msgspec.json.encode(to_plain_data(identity), order="sorted"), digest_size=16).hexdigest()
        reflection = self.find_cached(key)
        if reflection is None:
            request = "" if is_on_event_loop() else _build_request(call, failure, arguments, tried_calls)
            reflection = self._ask_about(call, failure, request)
            if reflection is None:
                return None
            self.cache(key, reflection)
        if reflection.abstains:
            return None
        # After the cache: another call may differ in its secrets alone.
        reflection = _restore_secrets(reflection, arguments, visible_arguments)
        calibrated = self.calibrate(tool.key, reflection, call.prepared.tool_names)
        for draft in draft_reflection(calibrated, arguments, compiled, call.run.earlier_calls(), failure.message):
            tools = tuple(prerequisite.tool for prerequisite in draft.prerequisites)
            band = confidence_band(reflection.confidence)
            pending = PendingReflection(tool.key, draft.evidence_source, band, draft.changes, tools)
            self.await_outcome(call.run.id, call.number or 0, pending)
        return calibrated

    def _ask_about(self, execution: CallExecution, failure: Failure, request: str) -> Reflection | None:
        """Return the model's answer to a request, and record it. An unusable answer counts as an abstention.

        Return None if the model was not asked or did not answer: a later call may ask again.
        """
        if not request:
            reason = EVENT_LOOP_REASON if is_on_event_loop() else "the call is too long"
            _note_no_answer(execution, f"not asked: {reason}")
            return None
        started_at = execution.capture.now()
        reply = self.ask(request, execution.run.id, execution.limits.seconds_left(), context=_quiet_context(execution))
        if isinstance(reply, str):
            _note_no_answer(execution, f"not asked: {reply}")
            return None
        answer = reply.error or parse_reflection(reply.text)
        _record_request(execution, failure, reply, answer, started_at, self.name)
        if isinstance(answer, Reflection):
            return answer
        _note_no_answer(execution, answer)
        return None if reply.error else Reflection(confidence=0.0)

    # Requests

    def ask(
        self, text: str, run: str | None = None, seconds: float | None = None, **options: Any
    ) -> ReflectorReply | str:
        """Ask the model within all limits. Return the reason if it is not asked. Never raises.

        `run` is the run whose limits apply; None for the request of a person. `seconds` is the time until the deadline
        of the call. `options` are passed to `_call_model`.
        """
        timeout = self.timeout if seconds is None else min(self.timeout, seconds)
        if timeout < 0.05:  # too little time for an answer
            return "the deadline of the call is too near"
        estimate = ReflectionUsage(1, int(estimate_tokens(text)) + 500)  # tokens that an answer is expected to take
        now = self._clock()
        day = f"usage {int(now // 86_400)}"
        day_usage = self._read(day, ReflectionUsage) or ReflectionUsage()
        with self._lock:
            day_usage.add(self._reserved)
            run_usage = ReflectionUsage() if run is None else self._run_usages.setdefault(run, ReflectionUsage())
            reason = day_usage.find_objection(estimate, self._day_limit, "day")
            if run is not None:
                reason = run_usage.find_objection(estimate, self._run_limit, "run") or reason
            if reason:
                return reason
            if now < self._open_until:
                return "the circuit breaker of the reflector is open after repeated failures"
            # Requests at a time, with those that exceeded their time limit.
            if self._running >= 4:
                return "too many reflections are in progress"
            self._running += 1
            # Reserved at once, so that requests at the same time stay within the limits together.
            run_usage.add(estimate)
            self._reserved.add(estimate)
            while len(self._run_usages) > MAX_PENDING_RUNS:
                del self._run_usages[next(iter(self._run_usages))]
            if self._failures >= MAX_FAILURES:
                self._open_until = now + timeout  # others wait for the outcome of this probe
        try:
            reply = self._call_model(text, timeout, estimate.tokens, **options)
            usage = ReflectionUsage(1, reply.tokens, reply.seconds)
            self._update(day, ReflectionUsage, lambda day_usage: day_usage.add(usage))
        finally:
            with self._lock:
                self._reserved.add(ReflectionUsage(-1, -estimate.tokens))
        with self._lock:
            run_usage.add(ReflectionUsage(0, reply.tokens - estimate.tokens, reply.seconds))
            self._count_outcome(is_failure=bool(reply.error))
        return reply

    def _count_outcome(self, *, is_failure: bool) -> None:
        """Open the circuit breaker after failures in a row, each time for longer; close it after a success."""
        if not is_failure:
            self._failures, self._open_until, self._open_seconds = 0, 0.0, OPEN_SECONDS
            return
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._open_until = self._clock() + self._open_seconds
            self._open_seconds = min(2 * self._open_seconds, 3600.0)

    def _call_model(
        self, text: str, timeout: float, estimate: int, context: contextvars.Context | None = None
    ) -> ReflectorReply:
        """Call the model in a thread. A model that does not return in time keeps its thread, and nothing else."""
        answers: list[tuple[str, TokenUsage | None]] = []
        errors: list[BaseException] = []
        started = time.perf_counter()

        def request() -> None:
            try:
                answer = self._model(text)
                answer = _run_awaitable(answer) if inspect.isawaitable(answer) else answer
                answers.append((read_answer(answer), read_usage(answer)))
            except BaseException as error:  # noqa: BLE001 - reported as the reply
                errors.append(error)
            finally:
                with self._lock:
                    self._running -= 1

        thread = threading.Thread(
            target=(context or contextvars.copy_context()).run, args=(request,), name="mulligan-reflector", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as thread_error:  # no more threads, or the process ends
            with self._lock:
                self._running -= 1
            return ReflectorReply("", None, 0, 0.0, f"RuntimeError: {thread_error}")
        thread.join(timeout)
        seconds = time.perf_counter() - started
        if not answers:
            cause = errors[0] if errors else None
            error = f"{type(cause).__name__}: {cause}" if cause else f"no answer within {timeout:g} s"
            return ReflectorReply("", None, estimate if cause is None else 0, seconds, error)
        answer, usage = answers[0]
        return ReflectorReply(answer, usage, count_tokens(usage.tokens) if usage else estimate, seconds)

    # Cache

    def find_cached(self, key: str) -> Reflection | None:
        """Return the earlier answer about the same call, failure and schema."""
        with self._lock:
            cached = self._cache.get(key)
        return cached[1] if cached is not None and self._clock() - cached[0] < CACHE_SECONDS else None

    def cache(self, key: str, reflection: Reflection) -> None:
        with self._lock:
            while len(self._cache) >= 512:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = self._clock(), reflection

    # Calibration

    def calibrate(self, tool_key: str, reflection: Reflection, tools: Collection[str] = ()) -> CalibratedReflection:
        """Add what became of earlier reflections for this tool with a similar stated confidence.

        `tools` are the names of tools that exist.
        """
        counts = self._read(f"outcomes {tool_key}", dict[str, tuple[int, int]]) or {}
        band = f" {confidence_band(reflection.confidence)}"
        outcomes: Outcomes = {key.removesuffix(band): count for key, count in counts.items() if key.endswith(band)}
        return CalibratedReflection(reflection, outcomes, tools)

    def await_outcome(self, run: str, call: int, pending: PendingReflection) -> None:
        """Remember a reflection until its run ends."""
        with self._lock:
            pending_calls = self._pending.setdefault(run, {})
            # Reflections of one run that await their outcome.
            if len(pending_calls) < 1000:
                pending_calls[call] = pending
            while len(self._pending) > MAX_PENDING_RUNS:
                del self._pending[next(iter(self._pending))]

    def note_failed_repair(self, run: str, call: int) -> None:
        """Count a repair by reflection that failed. Its success would be no evidence, like that of any repair."""
        with self._lock:
            pending = self._pending.get(run, {}).pop(call, None)
        if pending is not None:
            self._save_outcomes([(pending, False)])

    def settle(self, run: str, links: Sequence[Link]) -> None:
        """Compare the reflections of a run that has ended with what recovered its failed calls."""
        with self._lock:
            pending = self._pending.pop(run, {})
        outcomes = [
            (pending[link.failed_call], pending[link.failed_call].is_right(link))
            for link in links
            if link.failed_call in pending and link.failed_call != link.recovering_call
        ]
        if outcomes:
            # The caller does not wait for these few writes. The end of the process does, for a while.
            thread = threading.Thread(
                target=self._save_outcomes, args=(outcomes,), name="mulligan-reflector", daemon=True
            )
            thread.start()
            _writers.add(thread)

    def _save_outcomes(self, outcomes: Sequence[tuple[PendingReflection, bool]]) -> None:
        for pending, is_right in outcomes:
            key = f"{pending.source} {pending.band}"

            def count(counts: dict[str, tuple[int, int]], key: str = key, is_right: bool = is_right) -> None:
                successes, trials = counts.get(key, (0, 0))
                counts[key] = successes + is_right, trials + 1

            self._update(f"outcomes {pending.tool_key}", dict[str, tuple[int, int]], count)

    # Entries

    def _read(self, key: str, entry_type: Any) -> Any:
        data: bytes | None = None
        if self._load is not None:
            with contextlib.suppress(StoreError):  # the recorder reports it too
                data = self._load(key)
        return _decode(data or self._entries.get(key), entry_type)

    def _update(self, key: str, entry_type: Any, change: Callable[[Any], None]) -> None:
        """Change an entry. Without a usable store it is kept in memory."""
        for _ in range(5):  # other processes may write at the same time
            try:
                stored = self._load(key) if self._load is not None else None
                entry = _decode(stored or self._entries.get(key), entry_type) or entry_type()
                change(entry)
                self._entries[key] = msgspec.json.encode(entry)
                if self._save is None or self._save(key, stored, self._entries[key]):
                    return
            except StoreError:  # the recorder reports it too
                entry = _decode(self._entries.get(key), entry_type) or entry_type()
                change(entry)
                self._entries[key] = msgspec.json.encode(entry)
                return


_writers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that store outcomes."""


def _finish_writes() -> None:
    deadline = time.monotonic() + 1.0  # seconds that the end of a process waits until outcomes are stored
    for thread in list(_writers):
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_finish_writes)
_RUN_LIMITS = {"calls": 3, "tokens": 20_000, "seconds": 60.0}
_DAY_LIMITS = {"calls": 200, "tokens": 1_000_000, "seconds": 3600.0}


def _check_limits(limits: Mapping[str, Any], defaults: Mapping[str, float]) -> dict[str, Any]:
    for name, limit in limits.items():
        if name not in defaults:
            raise SettingsError(f"Unknown limit {name!r} of a Reflector. Use {', '.join(defaults)}.")
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < float("inf"):
            raise SettingsError(f"The limit {name} of a Reflector must be a number, 0 or more, got {limit!r}.")
    return {**defaults, **limits}


def _decode(data: bytes | None, entry_type: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=entry_type) if data else None
    except msgspec.DecodeError:
        return None


def _to_function(model: Any, name: str) -> Callable[[str], Any]:
    """Return a function of a text that calls the model of a client, or the function itself."""
    for path, options in _CLIENT_METHODS.items():
        method = model
        for part in path.split("."):
            method = get_field(method, part)
        if callable(method) and not inspect.isfunction(model):
            if not name:
                raise SettingsError("A Reflector needs the name of the client's model: Reflector(client, name=...).")
            create = method
            return lambda text: create(model=name, messages=[{"role": "user", "content": text}], **options)
    if not callable(model):
        raise SettingsError(f"reflect must be a function that takes a text, a client or a Reflector, got {model!r}.")
    function: Callable[[str], Any] = model
    return function


_CLIENT_METHODS: dict[str, dict[str, Any]] = {
    "chat.completions.create": {},
    "messages.create": {"max_tokens": 1000},
    "completion": {},
}
"""Methods of OpenAI, Anthropic and LiteLLM clients, with the options that they require."""


def build_endpoint_model(address: str, key: str = "") -> Callable[[str], Any]:
    """Return a function that asks an OpenAI-compatible endpoint: `https://host/v1#model`. `key` is its API key."""
    base_url, _, name = address.partition("#")
    if not name or not base_url.startswith(("http://", "https://")):
        raise SettingsError(f"Invalid reflect {address!r}. Use the address and the model: https://host/v1#model.")

    def ask(text: str) -> Any:
        import urllib.request  # lazy: only for such endpoints

        class RedirectGuard(urllib.request.HTTPRedirectHandler):
            """Rejects redirects: urllib would send the key to the other address."""

            def redirect_request(self, *details: Any) -> None:
                return None

        body = {"model": name, "messages": [{"role": "user", "content": text}], "temperature": 0}
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(f"{base_url.rstrip('/')}/chat/completions", msgspec.json.encode(body), headers)
        # The thread of the reflector has its own time limit. This one frees the thread.
        opener = urllib.request.build_opener(RedirectGuard)
        with opener.open(request, timeout=ENDPOINT_TIMEOUT_SECONDS) as response:
            return msgspec.json.decode(response.read(1_000_000))

    return ask


def _run_awaitable(answer: Any) -> Any:
    import asyncio  # lazy: only for async models

    async def wait() -> Any:
        return await answer

    return asyncio.run(wait())


def _build_request(
    execution: CallExecution, failure: Failure, arguments: Arguments, tried_calls: Sequence[Arguments]
) -> str:
    """Build the request about a failed call, with what memory and the run know."""
    calls = [
        *(RunCall(earlier.tool, earlier.arguments, earlier.result, not earlier.has_succeeded)
          for earlier in execution.run.earlier_calls()),
        *(RunCall(execution.tool.name, tried_call, has_failed=True) for tried_call in tried_calls),
    ]  # fmt: skip
    return execution.answer.prompt.reflection_request(
        execution.tool.name,
        arguments,
        failure,
        schema=execution.tool.schema(),
        precedents=select_tellable(execution.memory.find_precedents(failure), execution.tool),
        shareable=execution.call.wrapped.shareable_texts(),
        profiles=execution.memory.find_profiles(),
        calls=calls,
        tools=execution.prepared.tool_names,
    )


def _note_no_answer(execution: CallExecution, reason: str) -> None:
    """Log why there is no reflection, once per tool and reason: a failing reflector costs nothing but this note."""
    reason = execution.answer.prompt.error_message(reason)  # it may contain the text of an error or an answer
    topic = f"reflector {reason[:80]}"
    execution.capture.warn_once(
        execution.tool.key,
        topic,
        "No reflection on a failure of %s: %s.",
        execution.tool.name,
        reason,
    )


def _restore_secrets(reflection: Reflection, arguments: Arguments, visible_arguments: Mapping[str, Any]) -> Reflection:
    """Put back the call's own values where the reflector saw and returned a placeholder."""
    if reflection.arguments is None:
        return reflection
    return msgspec.structs.replace(reflection, arguments=_restore(reflection.arguments, arguments, visible_arguments))


def _restore(value: Any, original: Any, visible: Any) -> Any:
    if is_same_json(value, visible):
        return original
    if not all(isinstance(part, Mapping) for part in (value, original, visible)):
        return value
    return {
        name: _restore(member, original[name], visible[name]) if name in original and name in visible else member
        for name, member in value.items()
    }


def _quiet_context(execution: CallExecution) -> contextvars.Context:
    """Return a context in which a wrapped client records nothing: the reflection step has its tokens."""
    context = contextvars.copy_context()
    run = ActiveRun(execution.capture, "", RunOptions("observe", "off"), is_standalone=True)
    context.run(execution.capture.current_scope.set, CallScope(run, None, None, False, is_in_progress=False))
    return context


def _record_request(
    execution: CallExecution,
    failure: Failure,
    reply: ReflectorReply,
    answer: Reflection | str,
    started_at: int,
    model: str,
) -> None:
    """Record the request as a step of its own. One that failed is cancelled: it is no failure of the agent."""
    if execution.call.is_left_out:
        return
    result = msgspec.to_builtins(answer) if isinstance(answer, Reflection) else {"error": answer}
    usage = reply.usage or TokenUsage({"input": reply.tokens} if reply.tokens else {}, model or None)
    arguments = {"tool": execution.tool.name, "call": execution.number, "kind": str(failure.kind)}
    with execution.capture.guard("Recording a reflection"):
        step = execution.run.start_step(
            type="reflection", name="reflection", arguments=arguments, parent=execution.number
        )
        ended_step = msgspec.structs.replace(
            step,
            started_at=started_at,
            outcome="success" if isinstance(answer, Reflection) else "cancelled",
            result=execution.call.rules.value_recorder.result(result),
            duration_seconds=reply.seconds,
            **usage_fields(usage, None, None),
        )
        execution.capture.publish_safely(execution.run.end_step(ended_step))
