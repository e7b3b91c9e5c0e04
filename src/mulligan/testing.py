"""Helpers for tests of programs that use mulligan: no waiting, no files, and all events in a list.

with mulligan.testing.sandbox() as sandbox:
    sandbox.script(weather, fail_with=[TimeoutError()])
    assert weather("Oslo") == "rain"
    sandbox.assert_recovered(weather)

The pytest fixture `mulligan_sandbox` is the same sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CellType
from typing import Any, Literal

from mulligan import api, redaction
from mulligan import settings as settings_file
from mulligan.api import Mulligan
from mulligan.build import Components
from mulligan.capture.wrapped_function import WrappedFunction, tool_name, wrapped_of
from mulligan.contract.store import DEFAULT_TENANT, PatternQuery
from mulligan.core.calls import Call, group_attempts
from mulligan.core.events import AnyEvent, FailureRecorded, StepEnded
from mulligan.core.failure import SettingsError
from mulligan.core.prices import PriceTable
from mulligan.core.records import History, Pattern, Step, encode
from mulligan.report.run_text import render_run
from mulligan.report.tables import to_line
from mulligan.store.sqlite import MemoryStore

FLUSH_TIMEOUT_SECONDS = 60.0
"""Maximum wait for the in-memory store. Only a very busy machine needs more than a second."""
START_TIME = 1_700_000_000
"""The fake time at the start of a sandbox, in seconds since 1970."""
DECLARATIONS = ("control_flow", "injected_types", "kinds", "rules", "tools")
"""Settings that describe the code of a program. A sandbox has those of `mulligan.configure`, unless a test passes its
own."""
_REAL_RESULT: Any = object()


class ToolScript:
    """What the attempts of one wrapped function do instead of executing it."""

    def __init__(self, wrapper: Callable[..., Any], entries: Iterator[Any], result: Any) -> None:
        wrapped = wrapped_of(wrapper)
        if wrapped is None:
            raise SettingsError(
                f"{tool_name(wrapper)} is not wrapped. Decorate it with @mulligan.tool or @mulligan.model first."
            )
        self._wrapped: WrappedFunction = wrapped
        self._function = wrapped.function
        self._entries, self._result = entries, result
        # The recovering function holds the original in a closure, which is faster than an attribute.
        self._cells = list(_find_cells(wrapper, self._function))
        self._play(functools.update_wrapper(self._build_replacement(), self._function))

    def _play(self, function: Callable[..., Any]) -> None:
        self._wrapped.function = function
        for cell in self._cells:
            cell.cell_contents = function

    def restore(self) -> None:
        """Execute the function itself again."""
        self._play(self._function)

    def _next_result(self) -> Any:
        """Return the result of this attempt, or `_REAL_RESULT` to execute the function. Raise a scripted exception."""
        entry = next(self._entries, self._result)
        if isinstance(entry, BaseException) or (isinstance(entry, type) and issubclass(entry, BaseException)):
            raise entry
        return _REAL_RESULT if entry is None else entry

    def _build_replacement(self) -> Callable[..., Any]:
        wrapped, execute, next_result = self._wrapped, self._function, self._next_result

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            result = next_result()
            return await execute(*args, **kwargs) if result is _REAL_RESULT else result

        async def stream_async(items: Iterable[Any]) -> Any:
            for item in items:
                yield item

        def call(*args: Any, **kwargs: Any) -> Any:
            result = next_result()
            if result is _REAL_RESULT:
                return execute(*args, **kwargs)
            if wrapped.is_async_stream:
                return stream_async(result)
            return (item for item in result) if wrapped.is_stream else result

        return call_async if wrapped.is_async and not wrapped.is_async_stream else call


def _find_cells(wrapper: Any, function: Callable[..., Any]) -> Iterator[CellType]:
    """Yield the closure cells that hold the function: of its recovering function, and of those that this one calls."""
    pending = [getattr(wrapper, "__func__", wrapper)]
    while pending:
        current = pending.pop()
        for cell in getattr(current, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # an empty cell of another decorator
                continue
            if content is function:
                yield cell
            elif inspect.isfunction(content) and content.__module__ == "mulligan.capture.wrap":
                pending.append(content)
        inner = getattr(current, "__wrapped__", None)
        if wrapped_of(inner) is not None:  # another decorator is around the recovering function
            pending.append(inner)


class Sandbox:
    """A test environment: in-memory store, fake clock, no real waiting, fixed randomness."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[AnyEvent] = []
        self.backoffs: list[float] = []
        self.store = MemoryStore()
        self.should_update_baselines = False
        """Whether `assert_no_new_patterns` adds new patterns to its file instead of failing."""
        self._reads = itertools.count(1)
        self._advanced_seconds = 0.0
        self._scripts: list[ToolScript] = []
        # Ignore files and environment: tests must not depend on the machine.
        read = settings_file.load_settings(
            {"store": "memory:", "holdout": 0.0, **settings}, environment={}, folder=_NOWHERE, user_file=_NOWHERE
        )
        self.mulligan = Mulligan()
        self.components = Components(
            read,
            open_store=lambda: self.store,
            find_tool=lambda name: self.mulligan._find_tool(name) or api.default._find_tool(name),
            clock=lambda: START_TIME + self._now(),
            timer=self._now,
            sleep=self.backoffs.append,
            async_sleep=self._async_sleep,
            random=lambda: 0.0,
        )
        self.components.stream.add_listener(self.events.append, thread="caller")
        self.mulligan._components, self.mulligan._is_off = self.components if read.enabled else None, not read.enabled

    def _now(self) -> float:
        """Return the fake time: each reading adds a millisecond, each backoff its length."""
        return next(self._reads) / 1000 + sum(self.backoffs) + self._advanced_seconds

    def advance(self, seconds: float) -> None:
        """Let time pass, for example until a target that is down is probed."""
        if not seconds >= 0:
            raise SettingsError(f"Invalid seconds {seconds!r}. Time advances by 0 or more.")
        self._advanced_seconds += seconds

    async def _async_sleep(self, seconds: float) -> None:
        self.backoffs.append(seconds)

    @property
    def steps(self) -> list[Step]:
        """Every finished attempt, in order, with its cost."""
        recorded = {(event.run, event.seq): event for event in self.events if isinstance(event, FailureRecorded)}
        prices = PriceTable(self.components.settings.prices)
        steps = [prices.add_cost(event.step) for event in self.events if isinstance(event, StepEnded)]
        return [
            step.with_failure(recorded[step.run, step.seq].failure) if (step.run, step.seq) in recorded else step
            for step in steps
        ]

    @property
    def calls(self) -> list[Call]:
        """The calls of all runs, in order."""
        return [call for history in self.runs for call in group_attempts(history.steps)]

    @property
    def runs(self) -> list[History]:
        """The stored runs, the oldest first."""
        self.components.recorder.flush(FLUSH_TIMEOUT_SECONDS)
        return list(self.store.export(DEFAULT_TENANT))

    @property
    def patterns(self) -> list[Pattern]:
        self.components.recorder.flush(FLUSH_TIMEOUT_SECONDS)
        return self.store.patterns(DEFAULT_TENANT, PatternQuery(limit=1_000_000))

    # Scripted failures

    def script(self, function: Callable[..., Any], fail_with: Any = (), result: Any = None) -> None:
        """Let the next attempts of a wrapped function fail, until the sandbox ends.

        `fail_with` has one entry for each attempt, in order: an exception is raised, None executes the function, and
        any other value is returned, such as `{"error": "rate limited"}`. A single exception is a list of one.
        `itertools.repeat(TimeoutError)` makes every attempt fail. Later attempts return `result`, or execute the
        function if it is None. A stream returns the items of a value.
        """
        is_single = isinstance(fail_with, BaseException | type | str | dict) or not isinstance(fail_with, Iterable)
        entries = iter([fail_with] if is_single else fail_with)
        self._scripts.append(ToolScript(function, entries, result))

    def close(self) -> None:
        """Undo the scripts and close the store."""
        while self._scripts:
            self._scripts.pop().restore()
        self.components.recorder.close()

    # Assertions

    def assert_recovered(self, tool: str | Callable[..., Any] = "") -> None:
        """Fail unless a call failed, and every failed call recovered. `tool` limits this to one tool."""
        __tracebackhide__ = True
        failed_calls = self._find_failed_calls(tool)
        if not failed_calls:
            self._fail(f"No call{_of_tool(tool)} failed, so none recovered.")
        unrecovered = [call for call, is_recovered in failed_calls if not is_recovered]
        if unrecovered:
            self._fail(f"{_count_calls(unrecovered)} did not recover: {_describe_calls(unrecovered)}.")

    def assert_unrecovered(self, kind: str = "", tool: str | Callable[..., Any] = "") -> None:
        """Fail unless a call stayed unrecovered. `kind` and `tool` limit this to one kind and tool."""
        __tracebackhide__ = True
        failed_calls = self._find_failed_calls(tool)
        unrecovered = [call for call, is_recovered in failed_calls if not is_recovered]
        if not any(_has_kind(call.steps[-1:], kind) for call in unrecovered):
            self._fail(
                f"No call{_of_tool(tool)} stayed unrecovered{_with_kind(kind)}. "
                f"{_list_failed_calls([call for call, _ in failed_calls])}"
            )

    def assert_failed(self, kind: str = "", tool: str | Callable[..., Any] = "") -> None:
        """Fail unless an attempt failed, recovered or not. `kind`, such as `tool/timeout`, and `tool` limit this."""
        __tracebackhide__ = True
        failed_calls = [call for call, _ in self._find_failed_calls(tool)]
        if not any(_has_kind(call.steps, kind) for call in failed_calls):
            self._fail(f"No attempt{_of_tool(tool)} failed{_with_kind(kind)}. {_list_failed_calls(failed_calls)}")

    def assert_no_new_patterns(self, baseline: str | Path | None = None) -> None:
        """Fail if a failure has a pattern that is not in the baseline file. Without a file, every pattern is new.

        Commit the file with your tests: each line is a pattern that you accept. `pytest --mulligan-update-baselines`
        adds the new ones.
        """
        __tracebackhide__ = True
        path = None if baseline is None else Path(baseline)
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        accepted_ids = {line.split()[0] for line in lines if line.strip()}
        new_lines = sorted(_pattern_line(pattern) for pattern in self.patterns if pattern.id not in accepted_ids)
        if path is not None and self.should_update_baselines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in [*lines, *new_lines]), encoding="utf-8")
        elif new_lines:
            advice = "" if path is None else f"\nTo accept them in {path}: pytest --mulligan-update-baselines"
            self._fail("New failure patterns:\n" + "\n".join(f"  {line}" for line in new_lines) + advice)

    def _find_failed_calls(self, tool: str | Callable[..., Any]) -> list[tuple[Call, bool]]:
        """Return the failed calls of a tool, or of all, each with whether it recovered."""
        name = tool if isinstance(tool, str) else tool_name(tool)
        return [
            (call, call.is_recovered(history.links_by_call.get(call.id)))
            for history in self.runs
            for call in group_attempts(history.steps)
            if call.has_failed and call.first.type != "run" and name in ("", call.name)
        ]

    def _fail(self, message: str) -> None:
        """Raise an `AssertionError` that shows the latest runs like `mulligan show`."""
        __tracebackhide__ = True
        now = int((START_TIME + self._now()) * 1000)
        # Runs in the message of a failed assertion, the latest.
        runs = ["\n".join(render_run(history, now)) for history in self.runs[-5:]]
        raise AssertionError("\n\n".join([message, *(runs or ["Nothing was recorded."])]))


def _of_tool(tool: str | Callable[..., Any]) -> str:
    name = tool if isinstance(tool, str) else tool_name(tool)
    return f" of {name}" if name else ""


def _with_kind(kind: str) -> str:
    return f" with the kind {kind!r}" if kind else ""


def _has_kind(steps: Iterable[Step], kind: str) -> bool:
    return any(step.failure is not None and kind in ("", str(step.failure.kind)) for step in steps)


def _count_calls(failed_calls: list[Call]) -> str:
    return f"{len(failed_calls)} call{'' if len(failed_calls) == 1 else 's'}"


def _describe_calls(failed_calls: list[Call]) -> str:
    phrases = [f"{call.name} ({call.failure.kind})" for call in failed_calls if call.failure is not None]
    return ", ".join(dict.fromkeys(phrases))


def _list_failed_calls(failed_calls: list[Call]) -> str:
    return f"Failed calls: {_describe_calls(failed_calls)}." if failed_calls else "No call failed."


def _pattern_line(pattern: Pattern) -> str:
    return to_line(f"{pattern.id} {pattern.tool} {pattern.kind} {pattern.template}", 300)


@contextlib.contextmanager
def sandbox(**settings: Any) -> Iterator[Sandbox]:
    """Run the code inside it with an in-memory store and a fake clock.

    Applies to everything wrapped with `mulligan.tool` and `mulligan.model`. `settings` are those of
    `mulligan.configure`; environment and files are ignored. What the program declared about its code with
    `mulligan.configure` applies here too: see `DECLARATIONS`.
    """
    default = api.default
    declared = {name: value for name, value in default._overrides.items() if name in DECLARATIONS}
    active_sandbox = Sandbox(**{**declared, **settings})
    previous = default._components, default._is_off
    is_off = not active_sandbox.components.settings.enabled
    default._components, default._is_off = None if is_off else active_sandbox.components, is_off
    try:
        yield active_sandbox
    finally:
        default._components, default._is_off = previous
        active_sandbox.close()


def reset_instances() -> None:
    """Give every `Mulligan` outside a sandbox new components: empty memory, no target is down.

    Settings are read again. Listeners stay.
    """
    for instance in tuple(api._instances):
        components = instance._components
        if components is not None and components.is_sandbox:
            continue
        instance._components, instance._is_off = None, False
        if components is not None:
            components.recorder.close()
            if components.stream.listeners:
                instance._build_components(components.stream)


class ScriptedModel:
    """A fake model that plays back a script, for `mulligan.loop` or your own loop.

    A text is an answer. `call("search", query="fish")`, or a list of calls, requests tools. An exception is raised. A
    function is called with the messages and returns one of these.
    """

    def __init__(self, *script: Any, style: Literal["openai", "anthropic"] = "openai") -> None:
        self.requests: list[list[Any]] = []
        """The messages of each request."""
        self._script = list(script)
        self._style = style
        self._ids = itertools.count(1)

    def __call__(self, messages: list[Any]) -> dict[str, Any]:
        self.requests.append(list(messages))
        assert self._script, f"the script of the model has ended, but request {len(self.requests)} was made"
        now = self._script.pop(0)
        if callable(now) and not isinstance(now, call | type):
            now = now(messages)
        if isinstance(now, BaseException):
            raise now
        if isinstance(now, str):
            return self._reply(now, [])
        return self._reply("", [now] if isinstance(now, call) else list(now))

    async def awaited(self, messages: list[Any]) -> dict[str, Any]:
        """Async variant: `mulligan.loop(model.awaited, ...)`."""
        return self(messages)

    def _reply(self, text: str, calls: list[call]) -> dict[str, Any]:
        identified_calls = [(f"call_{next(self._ids)}", requested_call) for requested_call in calls]
        if self._style == "anthropic":
            blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
            blocks += [
                {"type": "tool_use", "id": id, "name": requested_call.name, "input": requested_call.arguments}
                for id, requested_call in identified_calls
            ]
            return {"role": "assistant", "content": blocks, "stop_reason": "tool_use" if calls else "end_turn"}
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": requested_call.name, "arguments": requested_call.arguments_json},
                }
                for id, requested_call in identified_calls
            ]
        return {"choices": [{"message": message, "finish_reason": "tool_calls" if calls else "stop"}]}


class call:  # noqa: N801 - lower case: reads like a call in scripts
    """A tool call of a scripted model: `call("search", query="fish")`, or `call("search", '{"query": '})`."""

    def __init__(self, name: str, arguments: Any = None, /, **keywords: Any) -> None:
        self.name = name
        self.arguments = keywords if arguments is None else arguments

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text, as some providers send them."""
        return self.arguments if isinstance(self.arguments, str) else encode(self.arguments).decode()


def assert_sanitized(text: str) -> None:
    """Fail unless a text is safe to show to a model: no control characters, untrusted text quoted and bounded."""
    problems = redaction.find_unsafe_text(text)
    assert not problems, f"unsafe text: {'; '.join(problems)}"


_NOWHERE = Path("/nonexistent/mulligan/sandbox")
