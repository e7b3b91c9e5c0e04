"""The agent of a framework as mulligan sees it: its runs, tool calls and model calls.

An adapter tells it what the framework does, and how to make one attempt. Recovery itself is the same for all of them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from mulligan import api
from mulligan.capture.call import CallExecution
from mulligan.capture.context import MODES, delegated_tool, strictest
from mulligan.capture.framework_classes import is_control_flow, is_interruption
from mulligan.capture.loop import ToolRequest
from mulligan.capture.player import run_sync
from mulligan.capture.run import (
    ActiveRun,
    CallScope,
    ContextValue,
    Raised,
    current_run,
    current_step,
    retrying_scope,
)
from mulligan.capture.signature import qualified_name_of
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.capture.wrap import build_wrapper
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction, wrapped_of
from mulligan.classify.declared_errors import AgentError
from mulligan.core.failure import SettingsError
from mulligan.learn.session import Session
from mulligan.prompt import DEFAULT_LESSON_TOKENS
from mulligan.recover.plan import RetryLayer
from mulligan.recover.policy import Mode, make_tool_key

MAX_OPEN_RUNS = 1000
"""Runs of an agent that wait for a person or were never ended. The oldest one is ended as abandoned."""
ALL_TOOLS = "*"
"""Options under this name apply to every tool."""

Attempt = Callable[..., Any]
"""Makes one attempt: of a tool with its name and arguments, of a model with its messages. May be async."""
_current_attempt: ContextVar[Attempt] = ContextVar("mulligan_attempt")


_conversation_numbers = itertools.count(1)
REPORTED_ATTRIBUTE = "__mulligan_reported__"


class ReportedError(AgentError):
    """An error that the framework has already turned into an answer for the model. Attempts raise it."""


class ReportedToolError(Exception):
    """An error that a tool has reported as a text, without an exception."""


class ToolDefinition(NamedTuple):
    """A tool as a framework knows it."""

    name: str
    schema: Mapping[str, Any] | None = None
    """The JSON schema of its arguments, without those that the framework injects."""
    function: Callable[..., Any] | None = None
    """The user's function, if the framework has it. Options of `@mulligan.tool` on it apply."""
    mode: Mode | None = None
    """The most that mulligan may do, for example not repair what a person has approved. A stricter mode applies."""


class FrameworkAgent:
    """The agents that one adapter object serves. Threads, tasks and runs may share it.

    `tools` has options of `mulligan.tool` by tool name, `model` has options of `mulligan.model`. `agent`, `mode`,
    `record` and `learn` are those of `mulligan.run`. `inject_lessons` adds lessons to the system prompt: True, or the
    maximum number of tokens.
    """

    def __init__(
        self,
        mulligan: api.Mulligan | None = None,
        *,
        agent: str = "",
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        model: Mapping[str, Any] | None = None,
        inject_lessons: bool | int = False,
        **run_options: Any,
    ) -> None:
        self.mulligan = api.default if mulligan is None else mulligan
        self.agent = agent
        self._tool_options = {name: dict(options) for name, options in (tools or {}).items()}
        for options in self._tool_options.values():
            self.mulligan.tool(**options)  # raises on an invalid option
        self._run_options = run_options
        self._lesson_tokens = DEFAULT_LESSON_TOKENS if inject_lessons is True else int(inject_lessons)
        wrap_model = self.mulligan.model(**{"name": "model", **(model or {})})
        for fallback in (model or {}).get("fallback_models", ()):
            if isinstance(getattr(fallback, "model", fallback), str):
                raise SettingsError(f"Invalid fallback model {fallback!r} of an agent. Use a function that asks it.")
        self.ask_model: Callable[..., Any] = wrap_model(_ask)
        self.aask_model: Callable[..., Any] = wrap_model(_aask)
        self._tools: dict[tuple[str, bool], tuple[ToolDefinition, Callable[..., Any]]] = {}
        self._definitions: dict[str, tuple[Any, ToolDefinition]] = {}
        self._open_runs: OrderedDict[str, AgentRun] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def is_enabled(self) -> bool:
        """Whether mulligan is on. Otherwise an adapter passes everything through."""
        return self.mulligan.is_enabled

    def start_run(
        self,
        key: str | None,
        *,
        agent: str = "",
        session: str | None = None,
        context: str | None = None,
        has_end_event: bool = False,
    ) -> AgentRun:
        """Return the open run of this key, or start one. Inside `mulligan.run`, calls belong to that run.

        Without a key, the run has one call and ends with it. An exception ends a run, unless `has_end_event` says that
        the framework tells the adapter the end of each run.
        """
        with self._lock:
            if key is not None and (open_run := self._open_runs.get(key)) is not None:
                self._open_runs.move_to_end(key)
                if open_run.run.is_open:
                    return open_run
                del self._open_runs[key]  # the run of the program that it belonged to has ended
        current = current_run(self.mulligan.capture_context())
        # A run of one call needs no reminder, and its session is not read from the store.
        tracked_session = self.mulligan.session(session) if session is not None and key is not None else None
        run = current or self.mulligan.run(
            agent or self.agent, session=tracked_session or session, context=context, **self._run_options
        )
        new_run = AgentRun(self, key, run, is_owner=current is None, session=tracked_session)
        new_run.has_end_event = has_end_event
        forgotten_runs: list[AgentRun] = []
        if key is not None:
            with self._lock:
                if (open_run := self._open_runs.setdefault(key, new_run)) is not new_run:
                    if tracked_session is not None:
                        tracked_session.close()
                    return open_run  # another thread was faster
                while len(self._open_runs) > MAX_OPEN_RUNS:
                    forgotten_runs.append(self._open_runs.popitem(last=False)[1])
        if current is None:
            run.start()
        for forgotten_run in forgotten_runs:
            forgotten_run.end(KeyboardInterrupt())
        return new_run

    def rename_run(self, run: AgentRun, key: str | None, new_key: str) -> None:
        with self._lock:
            self._open_runs.pop(key or "", None)
            replaced_run = self._open_runs.pop(new_key, None)
            self._open_runs[new_key] = run
        if replaced_run is not None:
            replaced_run.end(KeyboardInterrupt())

    def end_run(self, key: str | None, error: BaseException | None = None) -> None:
        """End the open run of this key, if there is one. A paused run ends only with an error."""
        with self._lock:
            open_run = self._open_runs.get(key or "")
        if open_run is not None and (error is not None or not open_run.is_paused):
            open_run.end(error)

    def forget_run(self, key: str | None) -> None:
        with self._lock:
            self._open_runs.pop(key or "", None)

    def define(self, tool: Any, build: Callable[[Any], ToolDefinition]) -> ToolDefinition:
        """Return the definition of a framework's tool. It is built once for each object."""
        cached_tool, definition = self._definitions.get(tool.name, (None, None))
        if definition is None or cached_tool is not tool:
            definition = build(tool)
            self._definitions[tool.name] = tool, definition
        return definition

    def functions(self, definitions: Mapping[str, ToolDefinition], *, is_async: bool) -> dict[str, Callable[..., Any]]:
        """Return the recovering function of each tool."""
        return {name: self._function(definition, is_async) for name, definition in definitions.items()}

    def _function(self, definition: ToolDefinition, is_async: bool) -> Callable[..., Any]:
        cached_definition, function = self._tools.get((definition.name, is_async), (None, None))
        if function is None or cached_definition != definition:
            function = self._build_function(definition, is_async)
            self._tools[definition.name, is_async] = definition, function
        return function

    def _build_function(self, definition: ToolDefinition, is_async: bool) -> Callable[..., Any]:
        inner = wrapped_of(definition.function)
        options = inner.options if inner is not None else ToolOptions()
        settings = self._tool_options.get(ALL_TOOLS, {}) | self._tool_options.get(definition.name, {})
        settings["exclude"] = {*settings.get("exclude", options.exclude), *_find_injected(definition)}
        options = msgspec.structs.replace(options, **settings, name=definition.name, schema=None)
        if definition.mode is not None:
            mode = strictest(MODES, definition.mode, options.mode or self.mulligan.capture_context().mode)
            options = msgspec.structs.replace(options, mode=mode)
        call = _acall if is_async else _call
        function = functools.partial(call, definition.name, inner)
        wrapped = FrameworkTool(function, self.mulligan.capture_context, options)
        wrapped.tool_schema = _close_schema(definition.schema)
        if inner is not None:
            wrapped.key = inner.key
        else:
            qualified_name = "" if definition.function is None else qualified_name_of(definition.function)
            wrapped.key = make_tool_key(definition.name, None, qualified_name)
        return build_wrapper(wrapped)


class FrameworkTool(WrappedFunction):
    """A tool with the interface that recovery expects. Its schema comes from the framework."""

    tool_schema: Mapping[str, Any] | None = None

    def schema(self) -> Mapping[str, Any] | None:
        return self.tool_schema


def _find_injected(definition: ToolDefinition) -> set[str]:
    """Return the parameters that the framework supplies: values that a model makes up for them are dropped."""
    try:
        parameters = set(inspect.signature(definition.function or (lambda: None)).parameters)
    except (TypeError, ValueError):
        return set()
    return parameters - (definition.schema or {}).get("properties", dict.fromkeys(parameters)).keys()


def _close_schema(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a schema that rejects unknown arguments, unless it says something about them.

    Frameworks drop unknown arguments silently, and the call then does something else than the model has asked for.
    """
    return {"additionalProperties": False, **schema} if schema and "properties" in schema else schema


def _call(name: str, inner: WrappedFunction | None, /, **arguments: Any) -> Any:
    with ContextValue(delegated_tool, lambda: inner):
        return _current_attempt.get()(name, arguments)


async def _acall(name: str, inner: WrappedFunction | None, /, **arguments: Any) -> Any:
    with ContextValue(delegated_tool, lambda: inner):
        return await _current_attempt.get()(name, arguments)


def _ask(messages: Any, **settings: Any) -> Any:
    return _current_attempt.get()(messages)


async def _aask(messages: Any, **settings: Any) -> Any:
    return await _current_attempt.get()(messages)


class AgentRun:
    """One run of an agent, from the user's request to the answer, also across interrupts."""

    def __init__(
        self, agent: FrameworkAgent, key: str | None, run: ActiveRun, *, is_owner: bool, session: Session | None
    ) -> None:
        self._agent = agent
        self._key = key
        self.run = run
        self._is_owner = is_owner
        self._session = session
        self._conversation = next(_conversation_numbers)
        self.has_end_event = False
        self.is_paused = False
        """Whether the run waits for a person, and will continue under the same key."""
        self._turn = 0
        self._has_tool_calls = False
        self._lessons: str | None = None
        self.known_summaries: set[str] = set()
        """Summaries of compactions that are reported, or that were made before this run."""

    # Tools

    def call(
        self,
        tools: Mapping[str, ToolDefinition],
        name: str,
        arguments: Any,
        attempt: Attempt,
        *,
        is_validated: bool = False,
    ) -> ToolOutcome:
        """Make a tool call that a model requested, and recover it. Only control flow and `InfraError` are raised.

        `is_validated` says that the framework accepts the arguments. Otherwise they must match the schema.
        """
        return run_sync(self._call(tools, name, arguments, attempt, is_validated, is_async=False))

    async def acall(
        self,
        tools: Mapping[str, ToolDefinition],
        name: str,
        arguments: Any,
        attempt: Attempt,
        *,
        is_validated: bool = False,
    ) -> ToolOutcome:
        """Make a tool call with an async attempt. Otherwise like `call`."""
        return await self._call(tools, name, arguments, attempt, is_validated, is_async=True)

    async def reject(self, tools: Mapping[str, ToolDefinition], name: str, arguments: Any) -> ToolOutcome | None:
        """Answer a request of a tool that the framework does not know. The nearest one is named and not called.

        Return None if calls are only recorded: the framework answers.
        """
        if self.only_observes({}, name):
            return None
        uncalled_tools = {tool.name: tool._replace(mode="suggest") for tool in tools.values()}
        return await self.acall(uncalled_tools, name, arguments, _aask)

    async def _call(
        self,
        tools: Mapping[str, ToolDefinition],
        name: str,
        arguments: Any,
        attempt: Attempt,
        is_validated: bool,
        *,
        is_async: bool,
    ) -> ToolOutcome:
        functions = self._agent.functions(tools, is_async=is_async)
        with _CallOfRun(self), ContextValue(_current_attempt, lambda: attempt):
            if self._only_observes(functions.get(name)):
                return await self._observe(functions.get(name), name, arguments, is_async=is_async)
            request = ToolRequest(self.run.capture, functions, name, arguments)
            register_call = functools.partial(self._register_call, is_validated)
            return await request.execute(self.run, register_call, is_async=is_async)

    def only_observes(self, tools: Mapping[str, ToolDefinition], name: str) -> bool:
        """Return whether calls of this tool are only recorded: then the framework answers failures itself."""
        tools = {name: tools[name]} if name in tools else {}
        return self._only_observes(self._agent.functions(tools, is_async=True).get(name))

    def _only_observes(self, function: Callable[..., Any] | None) -> bool:
        wrapped = wrapped_of(function)
        if wrapped is None:
            return (self.run.options.mode or self.run.capture.mode) == "observe"
        return wrapped.rules(self.run.capture, self.run.options).mode == "observe"

    async def _observe(
        self, function: Callable[..., Any] | None, name: str, arguments: Any, *, is_async: bool
    ) -> ToolOutcome:
        """Make and record the call as the framework would make it. Its errors stay the framework's."""
        if function is not None and isinstance(arguments, dict):
            call = functools.partial(function, **arguments)
        else:
            call = functools.partial(_current_attempt.get(), name, arguments)
        try:
            value = call()
            return ToolOutcome(ok=True, value=await value if is_async else value)
        except Exception as error:
            if isinstance(error, ReportedError) or hasattr(error, REPORTED_ATTRIBUTE):
                return ToolOutcome(ok=True)
            raise

    def _register_call(self, is_validated: bool, call: CallExecution) -> None:
        call.must_check = call.must_check and not is_validated
        if not self._has_tool_calls:
            self._has_tool_calls = True
            self.run.capture.on_model_turn(self.run.id)
        call.turn = (self._conversation, self._turn)
        call.answers_model = call.limits.can_block = True

    # Models

    def ask(self, messages: Any, attempt: Attempt, **settings: Any) -> Any:
        """Make a model call and recover it. `attempt` takes the messages, perhaps compressed.

        `settings` are recorded, and None is left out: `model` is the name of the model.
        """
        with _CallOfRun(self), ContextValue(_current_attempt, lambda: attempt):
            return self._agent.ask_model(messages, **self._begin_turn(settings))

    async def aask(self, messages: Any, attempt: Attempt, **settings: Any) -> Any:
        """Make a model call with an async attempt. Otherwise like `ask`."""
        with _CallOfRun(self), ContextValue(_current_attempt, lambda: attempt):
            return await self._agent.aask_model(messages, **self._begin_turn(settings))

    def _begin_turn(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        self._turn += 1
        self._has_tool_calls = False
        return {name: value for name, value in settings.items() if value is not None}

    # What the model should know

    def instructions(self, tool_names: list[str]) -> str:
        """Return what to add to the system prompt: lessons on request, and failures from before a compaction."""
        if self._lessons is None:
            tokens, self._lessons = self._agent._lesson_tokens, ""
            with self.run.capture.guard("Reading lessons"):
                self._lessons = self.run.capture.render_lessons(tool_names, tokens) if tokens else ""
        reminder = self._session.reminder() if self._session is not None else ""
        return "\n\n".join(text for text in (self._lessons, reminder) if text)

    def note_compaction(self, summary_id: str) -> None:
        """Report that the framework has replaced messages by this summary. Each summary counts once."""
        if self._session is not None and summary_id not in self.known_summaries:
            self.known_summaries.add(summary_id)
            with self.run.capture.guard("Reporting a compaction"):
                self._session.mark_compacted()

    def pause(self, key: str) -> None:
        """Continue the run later under this key, which the framework's saved state contains."""
        old_key, self._key = self._key, key
        self._agent.rename_run(self, old_key, key)

    def end(self, error: BaseException | None = None) -> None:
        """End the run. A run that was paused for a person is not ended: it continues under the same key."""
        self._agent.forget_run(self._key)
        if self._is_owner and self.run.is_open:
            self.run.finish(error)
        if self._session is not None:
            self._session.close()

    def end_after_call(self, error: BaseException | None) -> None:
        """End the run if its call was the only one, or if this exception ends it.

        An interrupt only pauses it, and so does an exception after which a caller retries the call.
        """
        if self._key is None or not (self.has_end_event or error is None or self._is_pause(error)):
            self.end(error)

    def _is_pause(self, error: BaseException) -> bool:
        control_flow = self.run.capture.control_flow
        if is_control_flow(error, control_flow):
            return not is_interruption(error, control_flow)
        with self.run.capture.guard("Looking for other retries of a call"):
            from mulligan.capture import retry_layers  # lazy: needed after a failure only

            layer = retry_layers.find_layer_above(error)
            return layer is not None and (layer.limit is None or layer.calls < layer.limit)
        return False


class _CallOfRun:
    """Makes the run of an agent the current one during a call.

    If the agent is a tool of another one, both recover: the outer agent does not see the failures of this one, and
    does not retry an exception of its model again.
    """

    __slots__ = ("_agent_run", "_is_inner", "_scope")

    def __init__(self, agent_run: AgentRun) -> None:
        capture = agent_run.run.capture
        self._agent_run, self._is_inner = agent_run, retrying_scope(capture) is not None
        call_scope = CallScope(agent_run.run, current_step(capture, agent_run.run), None, is_retrying=False)
        self._scope = ContextValue(capture.current_scope, lambda: call_scope)

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self._scope.__exit__(kind, error, trace)
        if self._is_inner and error is not None:
            mark_retried(error, "an agent")
        self._agent_run.end_after_call(error)


def mark_retried(error: BaseException, layer_name: str, attempts: int = 0, *, is_above: bool = False) -> None:
    """Note on an exception that a part of the framework retries the call, so that mulligan does not.

    `attempts` is 0 if their number is unknown. `is_above` says that it will retry; otherwise it has done so.
    """
    from mulligan.capture import retry_layers  # lazy: needed after a failure only

    retry_layers.set_layer(error, RetryLayer(layer_name, attempts, is_above=is_above))


def mark_reported(error: BaseException) -> BaseException:
    """Note on an exception that the framework has already turned it into an answer for the model, and return it."""
    with contextlib.suppress(Exception):  # an exception may refuse attributes
        setattr(error, REPORTED_ATTRIBUTE, True)
    return error
