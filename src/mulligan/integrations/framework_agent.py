"""The agent of a framework as mulligan sees it: its runs, tool calls and model calls.

An adapter tells it what the framework does, and how to make one attempt. Recovery itself is the same for all of them.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from mulligan import api
from mulligan.capture.call_execution import CallExecution
from mulligan.capture.call_scope import ContextValue, Raised, current_step, inner_scope, retrying_scope
from mulligan.capture.framework_classes import is_control_flow, is_interruption
from mulligan.capture.loop import ToolRequest
from mulligan.capture.player import run_in_thread, run_sync
from mulligan.capture.run import ActiveRun, current_run
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.capture.wrapped_function import wrapped_of
from mulligan.core.failure import SettingsError
from mulligan.integrations.framework_tools import (
    REPORTED_ATTRIBUTE,
    Attempt,
    FrameworkTool,
    FrameworkTools,
    ToolDefinition,
    current_attempt,
)
from mulligan.learn.session import Session
from mulligan.prompt import DEFAULT_LESSON_TOKENS
from mulligan.recover.plan import RetryLayer

MAX_OPEN_RUNS = 1000
"""Runs of an agent that wait for a person or were never ended. The oldest one is ended as abandoned."""
RUN_OPTIONS = frozenset(("version", "environment", "metadata", "mode", "record", "learn", "traceparent"))
"""Options of `mulligan.run` that an agent may have."""
_conversation_numbers = itertools.count(1)


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
        if isinstance(mulligan, str):
            raise SettingsError(
                f"Invalid mulligan {mulligan!r}. Pass a Mulligan object, or the name as agent={mulligan!r}."
            )
        if mulligan is not None and not isinstance(mulligan, api.Mulligan):
            raise SettingsError(
                f"Invalid mulligan of type {type(mulligan).__name__}. Pass a Mulligan object. To a framework, pass an "
                "instance of the adapter, not its class."
            )
        self.mulligan = api.default if mulligan is None else mulligan
        for name in run_options.keys() - RUN_OPTIONS:
            valid_names = ("agent", "tools", "model", "inject_lessons", *sorted(RUN_OPTIONS))
            raise SettingsError(f"Unknown option {name!r} of an agent. {api.suggest_option(name, valid_names)}")
        self.tools = FrameworkTools(self.mulligan, tools or {})
        if not isinstance(inject_lessons, int) or inject_lessons < 0:
            raise SettingsError(
                f"Invalid inject_lessons {inject_lessons!r}. Use True, False or the maximum number of tokens."
            )
        self.lesson_tokens = DEFAULT_LESSON_TOKENS if inject_lessons is True else int(inject_lessons)
        if not isinstance(agent, str):
            raise SettingsError(f'Invalid agent {agent!r}. Use the name of the agent, for example agent="researcher".')
        self._name = agent
        self._run_options = run_options
        wrap_model = _wrap_model(self.mulligan, {} if model is None else model)
        self.ask_model: Callable[..., Any] = wrap_model(_ask)
        self.aask_model: Callable[..., Any] = wrap_model(_aask)
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
        agent: str | None = None,
        session: str | None = None,
        context: str | None = None,
        ends_on_error: bool = False,
    ) -> AgentRun:
        """Return the open run of this key, or start one. Inside `mulligan.run`, calls belong to that run.

        `agent` is the name that the framework has. Without a key, the run has one call and ends with it.
        `ends_on_error` says that an exception of a call ends the run, because the framework does not tell the end.
        """
        if (open_run := self._find_run(key)) is not None:
            return open_run
        current = current_run(self.mulligan.capture_context())
        # A run of one call needs no reminder, and its session is not read from the store.
        tracked_session = self.mulligan.session(session) if session is not None and key is not None else None
        run = current or self.mulligan.run(
            self._name or agent or "", session=tracked_session or session, context=context or None, **self._run_options
        )
        new_run = AgentRun(self, key, run, is_owner=current is None, session=tracked_session)
        new_run.ends_on_error = ends_on_error
        forgotten_runs: list[AgentRun] = []
        if key is not None:
            with self._lock:
                if (open_run := self._open_runs.setdefault(key, new_run)) is not new_run:
                    new_run.close_session()
                    return open_run  # another thread was faster
                while len(self._open_runs) > MAX_OPEN_RUNS:
                    forgotten_runs.append(self._open_runs.popitem(last=False)[1])
        if current is None:
            run.start()
            if key is not None:
                run.begin_user_request()
        for forgotten_run in forgotten_runs:
            forgotten_run.end(KeyboardInterrupt())
        return new_run

    async def astart_run(self, key: str | None, **description: Any) -> AgentRun:
        """Start a run like `start_run`, in a thread: the session may be read from the store."""
        return await run_in_thread(self.start_run, key, **description)

    def _find_run(self, key: str | None) -> AgentRun | None:
        with self._lock:
            if key is None or (open_run := self._open_runs.get(key)) is None:
                return None
            if open_run.run.is_open:
                self._open_runs.move_to_end(key)
                return open_run
            del self._open_runs[key]  # the run of the program that it belonged to has ended
        open_run.close_session()
        return None

    def rename_run(self, run: AgentRun, key: str | None, new_key: str) -> None:
        self.forget_run(run, key)
        with self._lock:
            replaced_run = self._open_runs.get(new_key)
            self._open_runs[new_key] = run
        if replaced_run is not None and replaced_run is not run:
            replaced_run.end(KeyboardInterrupt())

    def end_run(self, key: str | None, error: BaseException | None = None) -> None:
        """End the open run of this key, if there is one. A paused run ends only with an error."""
        with self._lock:
            open_run = self._open_runs.get(key or "")
        if open_run is not None and (error is not None or not open_run.is_paused):
            open_run.end(error)

    async def aend_run(self, key: str | None, error: BaseException | None = None) -> None:
        """End a run like `end_run`, in a thread: the session is saved in the store."""
        await run_in_thread(self.end_run, key, error)

    def forget_run(self, run: AgentRun, key: str | None) -> None:
        """Remove a run, unless another one has its key meanwhile."""
        with self._lock:
            if self._open_runs.get(key or "") is run:
                del self._open_runs[key or ""]


def _wrap_model(mulligan: api.Mulligan, options: Any) -> Callable[..., Any]:
    """Return the decorator of the model. Raise `SettingsError` if an option is unknown or invalid."""
    if not isinstance(options, Mapping):
        raise SettingsError(f'Invalid model {options!r}. Map options to values, for example model={{"timeout": 60}}.')
    for fallback in options.get("fallback_models", ()):
        if isinstance(getattr(fallback, "model", fallback), str):
            raise SettingsError(f"Invalid fallback model {fallback!r} of an agent. Use a function that asks it.")
    try:
        return mulligan.model(**{"name": "model", **options})
    except (TypeError, SettingsError) as error:
        raise SettingsError(f"Invalid options of the model: {error}") from None


def _ask(messages: Any, **settings: Any) -> Any:
    return current_attempt.get()(messages)


async def _aask(messages: Any, **settings: Any) -> Any:
    return await current_attempt.get()(messages)


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
        self.ends_on_error = False
        self.is_paused = False
        """Whether the run waits for a person, and will continue under the same key."""
        self.requests: dict[str, Any] = {}
        """What the adapter notes about requests of the model, by the id of the call, until the framework makes it."""
        self._turn = 0
        self._has_tool_calls = False
        self._lessons: str | None = None

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
        return await self.acall(tools, name, arguments, _aask)

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
        functions = self._agent.tools.functions(tools, is_async=is_async)
        with _CallOfRun(self), ContextValue(current_attempt, lambda: attempt):
            if self._only_observes(functions.get(name)):
                return await self._observe(functions.get(name), name, arguments, is_async=is_async)
            # The framework has asked for approval under the requested name: a similar tool is named and not called.
            request = ToolRequest(self.run.capture, functions, name, arguments, can_rename=False)
            register_call = functools.partial(self._register_call, is_validated)
            return await request.execute(self.run, register_call, is_async=is_async)

    def only_observes(self, tools: Mapping[str, ToolDefinition], name: str) -> bool:
        """Return whether calls of this tool are only recorded: then the framework answers failures itself."""
        tools = {name: tools[name]} if name in tools else {}
        return self._only_observes(self._agent.tools.functions(tools, is_async=True).get(name))

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
            call = functools.partial(current_attempt.get(), name, arguments)
        try:
            value = call()
            return ToolOutcome(ok=True, value=await value if is_async else value)
        except Exception as error:
            if hasattr(error, REPORTED_ATTRIBUTE):
                return ToolOutcome(ok=True)
            raise

    def _register_call(self, is_validated: bool, execution: CallExecution) -> None:
        if is_validated and isinstance(execution.call.wrapped, FrameworkTool):
            form, tool = execution.prepared.form, execution.call.wrapped
            form.must_check = form.must_check and tool.loses_meaning(execution.prepared.arguments)
        if not self._has_tool_calls:
            self._has_tool_calls = True
            self.run.capture.on_model_turn(self.run.id)
        execution.prepared.turn = (self._conversation, self._turn)
        # The framework's agent may repair the cause by means that mulligan does not see: its calls are always made.
        execution.call.answers_model = True

    # Models

    def ask(self, messages: Any, attempt: Attempt, **settings: Any) -> Any:
        """Make a model call and recover it. `attempt` takes the messages, perhaps compressed.

        `settings` are recorded, and None is left out: `model` is the name of the model.
        """
        with _CallOfRun(self), ContextValue(current_attempt, lambda: attempt):
            return self._agent.ask_model(messages, **self._begin_turn(settings))

    async def aask(self, messages: Any, attempt: Attempt, **settings: Any) -> Any:
        """Make a model call with an async attempt. Otherwise like `ask`."""
        with _CallOfRun(self), ContextValue(current_attempt, lambda: attempt):
            return await self._agent.aask_model(messages, **self._begin_turn(settings))

    def _begin_turn(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        self._turn += 1
        self._has_tool_calls = False
        return {name: value for name, value in settings.items() if value is not None}

    # What the model should know

    def instructions(self, tool_names: list[str], summary_ids: Iterable[str] = ()) -> str:
        """Return what to add to the system prompt: lessons on request, and failures from before a compaction.

        `summary_ids` identify the summaries that the framework has put in place of messages.
        """
        self.note_compactions(summary_ids)
        if self._lessons is None:
            tokens, self._lessons = self._agent.lesson_tokens, ""
            with self.run.capture.guard("Reading lessons"):
                render = self.run.capture.render_lessons
                self._lessons = render(tool_names, tokens, self.run.hold_out_lessons) if tokens else ""
        with self.make_current():
            reminder = self._session.reminder() if self._session is not None else ""
        return "\n\n".join(text for text in (self._lessons, reminder) if text)

    async def ainstructions(self, tool_names: list[str], summary_ids: Iterable[str] = ()) -> str:
        """Return the same as `instructions`. In a thread, if lessons are read from the store."""
        if self._lessons is None and self._agent.lesson_tokens:
            return await run_in_thread(self.instructions, tool_names, summary_ids)
        return self.instructions(tool_names, summary_ids)

    def make_current(self) -> ContextValue:
        capture = self.run.capture
        scope = inner_scope(capture, self.run, current_step(capture, self.run))
        scope.outer = None
        return ContextValue(capture.current_scope, lambda: scope)

    def note_compactions(self, summary_ids: Iterable[str]) -> None:
        """Report that the framework has replaced messages by these summaries. Each counts once in a session."""
        if self._session is not None:
            with self.run.capture.guard("Reporting a compaction"):
                for summary_id in summary_ids:
                    self._session.mark_compacted(summary_id=summary_id)

    def pause(self, key: str) -> None:
        """Continue the run later under this key, which the framework's saved state contains."""
        old_key, self._key = self._key, key
        self._agent.rename_run(self, old_key, key)

    def end(self, error: BaseException | None = None) -> None:
        """End the run. A run that was paused for a person is not ended: it continues under the same key."""
        self._agent.forget_run(self, self._key)
        if self._is_owner and self.run.is_open:
            self.run.finish(error)
        self.close_session()

    async def aend(self) -> None:
        """End the run like `end`, in a thread: the session is saved in the store."""
        await run_in_thread(self.end)

    def close_session(self) -> None:
        if self._session is not None:
            self._session.close()

    def end_after_call(self, error: BaseException | None) -> None:
        """End the run if its call was the only one, or if this exception ends it.

        An interrupt only pauses it, and so does an exception after which a caller retries the call.
        """
        is_end = self.ends_on_error and error is not None and not self._is_pause(error)
        if self._key is None or is_end:
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
        self._agent_run, self._is_inner = agent_run, retrying_scope(agent_run.run.capture) is not None
        self._scope = agent_run.make_current()

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
