"""The public API: the class `Mulligan`, which delegates to one set of `Components`."""

from __future__ import annotations

import contextvars
import inspect
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_overloads, overload

from mulligan import settings as settings_file
from mulligan.capture.call_origin import find_marked_calls
from mulligan.capture.call_scope import ContextValue
from mulligan.capture.captured_call import KEY_BYTES, find_call
from mulligan.capture.context import LEARNS, MODES, NO_OPTIONS, RECORDINGS, CaptureContext, Recording, RunOptions
from mulligan.capture.player import run_sync
from mulligan.capture.propagation import CarriedFunction
from mulligan.capture.result_checks import Empty
from mulligan.capture.run import ActiveRun, current_run, mark_corrected
from mulligan.capture.wrap import wrap
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction, tool_name, wrapped_of
from mulligan.core import fork_safety
from mulligan.core.events import EventStream, Listener, ListenerThread
from mulligan.core.failure import (
    DetectErrors,
    Failure,
    MulliganError,
    Returns,
    SettingsError,
    ToolCategory,
    require_choice,
)
from mulligan.core.log import get_logger
from mulligan.core.records import AdvisedFix, Effects, StepType
from mulligan.prompt import DEFAULT_LESSON_TOKENS
from mulligan.recover.policy import Learn, Mode, Policy

if TYPE_CHECKING:
    from types import ModuleType

    from mulligan.build import Components
    from mulligan.capture import trace_context
    from mulligan.capture.loop import LoopResult, Messages, Tools, Turns
    from mulligan.capture.suggestions import SuggestionResult
    from mulligan.learn.session import Session
    from mulligan.recover.model import Fallback

log = get_logger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")


def _load_build() -> ModuleType:
    """Return the module that builds the components, with the recorder and redaction: the first call needs it."""
    with fork_safety.import_lock:
        from mulligan import build  # lazy: decorating a function does not need it
    return build


def _show_options(method: F) -> F:
    """Make `help` and `inspect.signature` show the options of the last overload, which names them."""
    signature, options = (inspect.signature(function) for function in (method, get_overloads(method)[-1]))
    parameters = [*list(signature.parameters.values())[:2], *list(options.parameters.values())[1:]]
    setattr(method, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 - unknown to type checkers
    return method


def _require_options(method: Any, options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in method.__signature__.parameters:
            problem = f"{method.__name__}() got an unexpected keyword argument {name!r}"
            raise TypeError(f"{problem}. {suggest_option(name, method.__signature__.parameters)}")


def suggest_option(name: str, options: Iterable[str]) -> str:
    """Return the sentence about a misspelled option: the similar one, or all of them."""
    import difflib  # lazy: needed for mistakes only

    options = [option for option in options if option not in ("self", "function")]
    if "policy" in options and name in Policy.__struct_fields__:
        return f"Use policy=mulligan.Policy({name}=...)."
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.7)
    return f"Did you mean {near[0]!r}?" if near else f"Valid options: {', '.join(options)}."


class Mulligan:
    """One independent instance of mulligan, without module-level defaults: `Mulligan(store="memory:")`.

    Files and environment variables are read, and components built, on first use. Keyword settings are checked here: a
    misspelled name would otherwise only log a warning at the first call and switch recording off.
    """

    def __init__(self, **settings: Any) -> None:
        settings_file.check_overrides(settings, "Mulligan")
        self._overrides = settings
        self._components: Components | None = None
        self._is_off = False
        self._noop_context: CaptureContext | None = None
        self._lock = threading.Lock()
        self._tools: dict[str, weakref.WeakSet[WrappedFunction]] = {}
        """The wrapped functions, by tool name."""
        _instances.add(self)

    def configure(self, **settings: Any) -> None:
        """Change the default settings. Call it before the first recorded call, `run`, `add_listener` and `session`.

        Later changes raise `SettingsError`: calls of one process would follow different rules.
        """
        with self._lock:
            if self._components is not None:
                if self._components.is_sandbox:
                    return  # in a sandbox, the settings of the test take precedence over those of the code under test
                raise SettingsError(
                    "configure was called after the first recorded call, run, add_listener or session. Move it to the "
                    "start of your program."
                )
            overrides = {**self._overrides, **settings}
            read = settings_file.load_settings(overrides)
            _load_build().Components(read)  # raises here on invalid settings, not at the first call
            self._overrides, self._is_off = overrides, not read.enabled

    def _capture(self) -> CaptureContext | None:
        """Return the capture context, or None while mulligan is off.

        Wrapped functions call this on every call. It never raises: they must work with any settings.
        """
        parts = self._components
        if parts is not None:
            return parts.capture
        return None if self._is_off else self._build_components()

    def _build_components(self, stream: EventStream | None = None) -> CaptureContext | None:
        with self._lock:
            if self._components is None and not self._is_off:
                try:
                    read = settings_file.load_settings(self._overrides)
                    if read.enabled:
                        self._components = _load_build().Components(read, stream=stream, find_tool=self._find_tool)
                except Exception as error:  # noqa: BLE001 - a missing folder or a locked file must not fail the call
                    message = str(error) if isinstance(error, MulliganError) else f"{type(error).__name__}: {error}"
                    # Pass calls through unrecorded: the unreadable settings may contain redaction rules.
                    log.warning("%s Until this is fixed, calls run without recording and recovery.", message)
                self._is_off = self._components is None
            return self._components.capture if self._components is not None else None

    @property
    def is_enabled(self) -> bool:
        """Whether calls are recorded and recovered. The setting `enabled`, or an invalid setting, switches that off."""
        return self._capture() is not None

    def capture_context(self) -> CaptureContext:
        """Return the capture context, or one that publishes nothing while mulligan is off.

        Runs, steps and turns then work as usual, but nothing is recorded.
        """
        capture = self._capture()
        if capture is None:
            with self._lock:
                if self._noop_context is None:
                    self._noop_context = CaptureContext(
                        publish=lambda event: None,
                        put_success=lambda success, journal_form: None,
                        classify=_load_build().classify_lazily,
                        mode="observe",
                    )
                capture = self._noop_context
        return capture

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        *,
        name: str = "",
        type: StepType = "tool",
        effects: Effects = "once",
        mode: Mode | None = None,
        record: Recording | None = None,
        category: ToolCategory | None = None,
        returns: Returns | None = None,
        detect_errors: DetectErrors = True,
        empty_result: Empty = "success",
        schema: Mapping[str, Any] | None = None,
        privileged: Iterable[str] = (),
        unprivileged: Iterable[str] = (),
        clamp: Iterable[str] = (),
        destructive: bool = False,
        verify: Callable[..., Any] | None = None,
        rejection_statuses: Iterable[int] = (),
        timeout: float | None = None,
        policy: Policy | None = None,
        items: Iterable[str] = (),
        exclude: Iterable[str] = (),
        learn: Learn | None = None,
        holdout: bool = True,
        fresh_arguments: bool = False,
        target: str | Iterable[str] | Callable[..., object] | None = None,
        circuit_breaker: bool = False,
    ) -> Callable[[F], F]: ...

    @_show_options
    def tool(self, function: Any = None, **options: Any) -> Any:
        """Wrap a tool so that its calls are recorded, and recovered where that is safe.

        `effects` declares the side effects: "none", "idempotent" or "once" (the default). A call that may have executed
        is repeated only for "none" and "idempotent". `schema` is the JSON schema of the arguments, checked before each
        call. Without it, the schema is derived from the signature and used after a failure only.

        `privileged` names arguments that are never changed automatically, in addition to those recognized by name.
        `unprivileged` exempts arguments that were recognized by name. `destructive=True` protects all arguments.
        `clamp` names numbers that are changed to a bound instead of failing, also in calls of a program.

        `verify` is called with the same arguments when it is unknown whether a call took effect. It returns the result
        if the call executed, False if it did not, and None if it cannot tell. `rejection_statuses` are HTTP statuses
        which prove that the call did not execute. `timeout` limits the whole call in seconds. Async calls are cancelled
        at the limit; for other calls only backoffs and retries are limited.

        `fresh_arguments=True` passes a deep copy of the arguments to each attempt, so that a tool may modify them and
        still be retried. Clients and other resources are not copied.

        `items` names the arguments that identify one item of a loop: a call for one item never counts as the correction
        of a call for another. `exclude` names parameters that are not arguments, because the program or a framework
        supplies them: they are not recorded, not changed and not shown to a model.

        `target` names the arguments that tell what an outage affects, such as a shard, or is a function that reads it
        from the arguments. By default these are hosts, databases, tenants and the like, or the object of a method.
        `circuit_breaker=True` lets calls fail at once while their target is down. Otherwise only their retries wait.

        `learn` is "off", "tell" or "repair" and limits how memory is used for this tool. `holdout=False` excludes it
        from the cases in which help is withheld to measure its effect.

        `mode` is "observe", "suggest" or "repair". `record` is "full", "shape" (types and lengths, no text) or "off".
        `category` says what the tool is: "shell", "file", "fetch", "search", "sql", "browser", "code", "message",
        "action", "model" or "other". By default its name, its parameters and its type decide. Results of a file, a page
        or a search are content, whatever they say; `returns="content"` or "status" decides otherwise.

        `detect_errors="text"` takes words that look like an error for a failure, and `detect_errors=False` treats every
        returned value as a success. `empty_result="failure"`, for type "retrieval",
        treats an empty result as a failure.
        """
        _require_options(self.tool, options)
        return self._decorate(function, ToolOptions(**options))

    @overload
    def model(self, function: F, /) -> F: ...

    @overload
    def model(
        self,
        *,
        name: str = "",
        mode: Mode | None = None,
        record: Recording | None = None,
        compress: Callable[..., Any] | Literal["model"] | None = None,
        fallback: Callable[..., Any] | None = None,
        fallback_models: Iterable[str | Callable[..., Any] | Fallback] = (),
        refresh_auth: Callable[..., Any] | None = None,
        max_compressions: int = 1,
        compress_above_chars: int = 2000,
        max_summary_calls: int = 10,
        max_summary_tokens: int = 100_000,
        timeout: float | None = None,
        policy: Policy | None = None,
        exclude: Iterable[str] = (),
        circuit_breaker: bool = False,
    ) -> Callable[[F], F]: ...

    @_show_options
    def model(self, function: Any = None, **options: Any) -> Any:
        """Wrap a model call: compress overlong conversations, retry rate limits, use fallbacks.

        `compress` shortens one text, or a whole conversation if its argument is named `messages`. `"model"` asks the
        model itself for summaries, with at most `max_summary_calls` requests and `max_summary_tokens` tokens per call.
        `max_compressions` limits how often one call is compressed, and texts up to `compress_above_chars` characters
        stay as they are.

        `fallback` returns an answer when recovery fails. `fallback_models` are names or functions of models to use
        after a failure. `refresh_auth` is called once after an authentication failure.

        Of the conversation, mulligan records the sizes of the messages and the last user message. `record="full"`
        records the messages themselves, each once.
        """
        from mulligan.capture.model_calls import ModelOptions  # lazy: programs that wrap only tools do not need it

        _require_options(self.model, options)
        names = [name for name in options if name in ModelOptions.__dataclass_fields__]
        model_options = ModelOptions(**{name: options.pop(name) for name in names})
        return self._decorate(function, ToolOptions(type="model", effects="none", model=model_options, **options))

    def wrap_client(self, client: C, **options: Any) -> C:
        """Return a copy of an OpenAI or Anthropic client, or of the LiteLLM module, with recovering model calls.

        `options` are those of `model`. The retries of the client are switched off, so that only one layer retries.
        """
        from mulligan.capture import client as clients  # lazy: programs that wrap only functions do not need it

        original_options = options
        if callable(refresh := options.get("refresh_auth")):
            options = {**original_options, "refresh_auth": clients.make_key_refresher(refresh, lambda: wrapped_client)}
        wrapped_client: C = clients.wrap_client(
            client, self.model(**options), lambda copy: self.wrap_client(copy, **original_options)
        )
        return wrapped_client

    def _decorate(self, function: Any, options: ToolOptions) -> Any:
        if function is None:
            return lambda function: self._wrap(function, options)
        return self._wrap(function, options)

    def _wrap(self, function: Any, options: ToolOptions) -> Any:
        wrapper = wrap(function, self._capture, options)
        wrapped = wrapped_of(wrapper)
        if wrapped is not None and not wrapped.signature.is_method:
            self._tools.setdefault(wrapped.name, weakref.WeakSet()).add(wrapped)
        return wrapper

    def _find_tool(self, name: str) -> WrappedFunction | None:
        """Return the wrapped tool with this name, or None if there are several or none."""
        matching_tools = tuple(self._tools.get(name, ()))
        return matching_tools[0] if len(matching_tools) == 1 else None

    def idempotency_key(self) -> str:
        """Return a key for the request of the current tool, to pass to a server that ignores repeated requests.

        It is the same for all attempts of one call with equal arguments. A repair gets another one, and so does
        another call with equal arguments. Call it inside a wrapped function. While mulligan is off, each key is new.
        """
        capture = self._capture()
        if capture is None:
            return os.urandom(KEY_BYTES).hex()
        call = find_call(capture.current_scope.get())
        if call is None:
            raise SettingsError(
                "idempotency_key was called outside a wrapped call. Call it inside a function with @mulligan.tool; in "
                "another thread, run the function with mulligan.carry_run."
            )
        return call.idempotency_key()

    def run(
        self,
        agent: str = "",
        *,
        version: str | None = None,
        environment: str | None = None,
        context: str | None = None,
        session: Session | str | None = None,
        metadata: dict[str, Any] | None = None,
        user: str | None = None,
        tags: Iterable[str] = (),
        mode: Mode | None = None,
        record: Recording | None = None,
        learn: Learn | None = None,
        holdout: bool = True,
        traceparent: str | trace_context.Headers | None = None,
    ) -> ActiveRun:
        """Record a run: `with mulligan.run("support-agent") as run:`. `context` describes its task.

        `mode`, `record` and `learn` apply to every call in the run. If a tool has its own value, the stricter one wins.
        With `holdout=False` no help is withheld from the run to measure its effect.
        `user` and `tags` are stored in the metadata. `run.metadata`, `run.user` and `run.tags` can change until the
        run ends.
        `session` is a `mulligan.session()` or its id. `traceparent` continues a trace of another program: pass the
        header, or all headers of the request. Send `run.headers` with outgoing requests.
        """
        for name, value, choices in (
            ("mode", mode, MODES),
            ("record", record, RECORDINGS[::-1]),
            ("learn", learn, LEARNS),
        ):
            if value is not None:
                require_choice(name, value, choices)
        if session is not None and not isinstance(session, str):
            with fork_safety.import_lock:
                from mulligan.learn.session import Session  # lazy: few programs track sessions

            if not isinstance(session, Session):
                raise SettingsError(f"session must be a mulligan.session() or its id, got {session!r}.")
        capture = self.capture_context()
        record_fields: dict[str, Any] = {"version": version, "context": context, "metadata": metadata}
        if environment is not None:
            record_fields["environment"] = environment
        if session is not None:
            record_fields["session"] = (
                self._event_stream().redact_session_id(session) if isinstance(session, str) else session.id
            )
        if traceparent is not None:
            with fork_safety.import_lock:
                from mulligan.capture import trace_context  # lazy: few runs continue a trace

            origin = trace_context.parse_trace_headers(traceparent)
            record_fields["traceparent"] = origin.traceparent
            if origin.parent is not None:
                record_fields["parent"] = origin.parent
        facts = {"user": user, "tags": [tags] if isinstance(tags, str) else [str(tag) for tag in tags]}
        if named_facts := {name: fact for name, fact in facts.items() if fact}:
            record_fields["metadata"] = {**(metadata or {}), **named_facts}
        return ActiveRun(
            capture,
            agent,
            RunOptions(mode, record, learn, holdout) if mode or record or learn or not holdout else NO_OPTIONS,
            **record_fields,
        )

    def turns(self, limit: int = 10, *, block_loops: bool = True) -> Turns:
        """Limit an agent loop: `for turn in mulligan.turns(limit=10):`.

        `block_loops=False` is for an agent that also acts by means that mulligan does not see: a call that failed the
        same way before is then made, and a note tells the model how often it failed.
        """
        with fork_safety.import_lock:
            from mulligan.capture.loop import Turns  # lazy: most programs have their own loop

        return Turns(self.capture_context, limit, block_loops=block_loops)

    @overload
    def loop(
        self,
        model: Callable[..., Awaitable[Any]],
        tools: Tools,
        messages: Messages,
        limit: int = 10,
        *,
        style: Literal["openai", "anthropic"] | None = None,
        inject_lessons: bool | int = False,
    ) -> Awaitable[LoopResult]: ...

    @overload
    def loop(
        self,
        model: Callable[..., Any],
        tools: Tools,
        messages: Messages,
        limit: int = 10,
        *,
        style: Literal["openai", "anthropic"] | None = None,
        inject_lessons: bool | int = False,
    ) -> LoopResult: ...

    def loop(
        self,
        model: Any,
        tools: Tools,
        messages: Messages,
        limit: int = 10,
        *,
        style: Any = None,
        inject_lessons: Any = False,
    ) -> Any:
        """Run an agent loop until the model makes no more calls or `limit` turns have passed.

        `model` takes the messages, and `tools` if it has a parameter of that name. It returns a text, an OpenAI
        completion or message, or an Anthropic message. With an async model, await the result.

        `inject_lessons` starts the conversation with the lessons about these tools (see `render_lessons`): pass True or
        the maximum number of tokens.

        An `InfraError` of a tool, and a model error that recovery cannot handle, are raised.
        """
        with fork_safety.import_lock:
            from mulligan.capture.loop import Loop  # lazy: most programs have their own loop

        if not isinstance(inject_lessons, int) or inject_lessons < 0:
            raise SettingsError(f"inject_lessons must be True or the maximum number of tokens, got {inject_lessons!r}.")
        max_lesson_tokens = DEFAULT_LESSON_TOKENS if inject_lessons is True else int(inject_lessons)
        loop = Loop(self.capture_context(), model, tools, messages, limit, style, max_lesson_tokens)
        return loop.play() if loop.is_async else run_sync(loop.play())

    def correcting(self, error: BaseException) -> ContextValue:
        """Link the next successful call to the one that raised `error`: `with mulligan.correcting(error):`.

        Use it where a program corrects a call outside the handler of its exception, or by another tool.
        """
        return mark_corrected(error)

    def settle(self, tool: str | Callable[..., Any] | None = None, arguments: Mapping[str, Any] | None = None) -> int:
        """Say that you know the outcome of calls whose answer was lost, so that a model may ask for them again.

        It settles the lost answers of the current run and its session: all of them, those of one tool, or those of
        calls with these arguments. Return how many were settled.
        """
        capture = self._capture()
        run = current_run(capture) if capture is not None else None
        if run is None or not run.lost_answers:
            return 0
        from mulligan.recover.lost_answers import encode_arguments  # lazy: few answers are lost

        name = tool if tool is None or isinstance(tool, str) else tool_name(tool)
        encoded_arguments = encode_arguments(arguments or {})
        return run.settle(lambda answer: answer.is_named(name, encoded_arguments))

    def carry_run(self, function: F) -> F:
        """Bind a function to the current run: `pool.map(mulligan.carry_run(search), queries)`.

        In another thread, its calls become steps of the run. In another process, each of its calls is a run of its
        own, and the current run is the parent. Outside any run, the function is returned as it is.
        """
        if inspect.iscoroutinefunction(function):
            raise SettingsError(
                f"{tool_name(function)} is async, and tasks inherit the run. Carry the function that starts the event "
                "loop in the other thread or process."
            )
        run = current_run(self.capture_context())
        if run is None:
            return function
        mode, record, learn, holdout = run.options
        run_options = {
            "agent": run.record.agent,
            "version": run.record.version,
            "environment": run.record.environment,
            "session": run.record.session,
            "mode": mode,
            "record": record,
            "learn": learn,
            "holdout": holdout,
            "traceparent": run.headers,
        }
        restore = _restore_carried if self is default else None
        carried: Any = CarriedFunction(function, self.run, run_options, restore, contextvars.copy_context())
        return cast("F", carried)

    def session(self, id: str | None = None) -> Session:
        """Track failures across compactions of one conversation: `with mulligan.session() as session:`.

        It covers the runs started with `mulligan.run(..., session=session)`. With the `id` of an earlier session it
        continues that session, also in another process.
        """
        if id is not None and not isinstance(id, str):
            raise SettingsError(f"The id of a session must be a string, got {id!r}.")
        with fork_safety.import_lock:
            from mulligan.learn.session import Session  # lazy: few programs track sessions

        stream = self._event_stream()
        key_value_store = self._components.key_value_store if self._components is not None else None
        capture = self.capture_context()
        return Session(
            stream,
            None if id is None else stream.redact_session_id(id),
            key_value_store,
            capture.prompt,
            capture.clock,
            self._note_reminder,
            self._components.settings.holdout_reminders if self._components is not None else 0.0,
        )

    def _note_reminder(self, tools: Iterable[str], is_held_out: bool) -> bool:
        """Note a reminder about these tools, or that the run does not read it. Return whether it does not.

        Without a run that can record it, a reminder is not held out: that would measure nothing.
        """
        run = current_run(self.capture_context())
        if run is None:
            return False
        is_withheld = is_held_out and run.allows_holdout
        run.judge.note_reminder(tools, is_withheld)
        return is_withheld

    def _event_stream(self) -> EventStream:
        self._capture()
        if self._components is not None:
            return self._components.stream
        from mulligan.redaction import Redactor  # lazy: needed while mulligan is off only

        return EventStream(Redactor())

    def drain_notes(self) -> list[str]:
        """Return the notes about repairs in the current run, for the model, and clear them."""
        capture = self._capture()
        run = current_run(capture) if capture is not None else None
        return run.drain_notes() if run is not None else []

    def classify_error(self, error: object = None, **evidence: Any) -> Failure:
        """Classify an error: an exception, response, result or text. Return a `Failure`. Never raises."""
        self._capture()
        parts = self._components
        failure: Failure = (_load_build().classify_lazily if parts is None else parts.classify)(error, **evidence)
        return failure

    def suggest(
        self,
        tool: str | Callable[..., Any],
        arguments: Mapping[str, Any],
        error: object,
        *,
        schema: Mapping[str, Any] | None = None,
        tools: Mapping[str, Mapping[str, Any] | None] | None = None,
        run: Iterable[Any] = (),
        privileged: Iterable[str] = (),
        unprivileged: Iterable[str] = (),
        clamp: Iterable[str] = (),
        effects: Effects | None = None,
        destructive: bool = False,
        mode: Mode = "repair",
        memory: bool = True,
    ) -> SuggestionResult:
        """Suggest repairs for a failed call, without calling anything.

        Return `suggestions`, the most likely first, and the `reason` why there is no better one. `tool` is a name, or a
        wrapped function, which supplies its schema and options. `run` holds the earlier calls of the same run as
        dictionaries with tool, arguments, outcome, and result or error. `memory=False` ignores fixes from earlier runs.
        """
        with fork_safety.import_lock:
            from mulligan.capture.suggestions import suggest_repairs  # lazy: few programs ask for suggestions

        self._capture()
        parts = self._components
        wrapped = wrapped_of(tool)
        if wrapped is not None:
            schema = wrapped.schema() if schema is None else schema
            privileged = (*privileged, *wrapped.options.privileged)
            unprivileged = (*unprivileged, *wrapped.options.unprivileged)
            clamp = (*clamp, *wrapped.options.clamp)
            effects = effects or wrapped.options.effects
            destructive = destructive or wrapped.options.destructive
        name = tool if isinstance(tool, str) else tool_name(tool)
        suggested = suggest_repairs(
            name,
            arguments,
            error,
            classify=self.classify_error,
            schema=schema,
            tools=tools,
            run=run,
            privileged=privileged,
            unprivileged=unprivileged,
            clamp=clamp,
            effects=effects,
            destructive=destructive,
            mode=mode,
            policy=parts.settings.policy if parts is not None else None,
            recall=parts.recall.read_fixes if parts is not None and memory else None,
            match=parts.recall.match if parts is not None and memory else None,
            lookup_facts=parts.recall.facts if parts is not None and memory else None,
            key=wrapped.key if wrapped is not None else "",
        )
        active_run = current_run(self.capture_context())
        if active_run is not None:
            marked_calls = find_marked_calls(error) if isinstance(error, BaseException) else ()
            calls = [call for id, call in marked_calls if id == active_run.id] or [0]
            fixes = dict.fromkeys(suggestion.fix_id for suggestion in suggested.suggestions if suggestion.fix_id)
            active_run.judge.note_advice(name, [AdvisedFix(calls[0], fix) for fix in fixes])
        return suggested

    def render_lessons(
        self,
        tools: str | Callable[..., Any] | Iterable[str | Callable[..., Any]] = (),
        *,
        max_tokens: int = DEFAULT_LESSON_TOKENS,
        include_proposed: bool = False,
    ) -> str:
        """Render the lessons about these tools for a system prompt, within `max_tokens`.

        `tools` are names or functions; without any, all tools that have lessons. The text starts with an explanation of
        mulligan's notes. Active lessons come first, then seed lessons, which are marked as such. `include_proposed`
        adds proposed lessons, marked as data. Inside a run, a lesson may be held out from it (setting `holdout`).
        """
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise SettingsError(f"max_tokens must be an integer of 1 or more, got {max_tokens!r}.")
        requested_tools = [tools] if isinstance(tools, str) or callable(tools) else tools
        names = [tool if isinstance(tool, str) else tool_name(tool) for tool in requested_tools]
        self._capture()
        if self._components is None:
            return ""
        run = current_run(self.capture_context())
        hold_out = run.hold_out_lessons if run is not None else None
        return self._components.render_lessons(names, max_tokens, hold_out, include_proposed=include_proposed)

    def add_listener(self, listener: Listener, thread: ListenerThread = "recorder") -> Callable[[], None]:
        """Call `listener` with every event. Return a function that removes it.

        `thread` is "recorder", the background thread (the default), or "caller", the thread that makes the call.
        """
        if not callable(listener):
            raise SettingsError(f"A listener must be a function that takes an event, got {listener!r}.")
        if thread not in get_args(ListenerThread):
            raise SettingsError(f'thread must be "recorder" or "caller", got {thread!r}.')
        return self._event_stream().add_listener(listener, thread)

    def flush(self, timeout: float = 2.0) -> bool:
        """Block until all records so far are stored or the timeout expires. Return whether all were stored."""
        return self._components is None or self._components.recorder.flush(timeout)

    def close(self) -> None:
        """Store the remaining records and close the store."""
        if self._components is not None:
            self._components.recorder.close()


_instances: weakref.WeakSet[Mulligan] = weakref.WeakSet()


def _reset_locks_in_child() -> None:
    for instance in tuple(_instances):
        instance._lock = threading.Lock()


# Hold the locks during a fork: a thread that builds the components, and imports modules meanwhile, would leave the
# child with both locks taken.
fork_safety.hold_locks(lambda: [instance._lock for instance in tuple(_instances)])
fork_safety.run_in_child(_reset_locks_in_child)


def _restore_carried(function: Callable[..., Any], run_options: Mapping[str, Any]) -> CarriedFunction:
    """Restore a function that another process sent."""
    return CarriedFunction(function, default.run, run_options, _restore_carried)


default: Mulligan = Mulligan()
"""The instance behind the module-level functions of `import mulligan`."""
