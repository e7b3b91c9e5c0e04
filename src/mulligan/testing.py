"""Helpers for tests of programs that use mulligan: no waiting, no files, and all events in a list.

with mulligan.testing.sandbox() as sandbox:
    assert weather("Oslo") == "rain"
    assert sandbox.backoffs == [2.0]
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from mulligan import api, redaction
from mulligan import settings as settings_file
from mulligan.api import Mulligan
from mulligan.build import Components
from mulligan.core import calls
from mulligan.core.events import AnyEvent, StepEnded
from mulligan.core.records import History, Step, encode
from mulligan.store.base import DEFAULT_TENANT, RunQuery
from mulligan.store.sqlite import MemoryStore

FLUSH_TIMEOUT_SECONDS = 60.0
"""Maximum wait for the in-memory store. Only a very busy machine needs more than a second."""


class Sandbox:
    """A test environment: in-memory store, fake clock, no real waiting, fixed randomness."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[AnyEvent] = []
        self.backoffs: list[float] = []
        self.store = MemoryStore()
        self._reads = itertools.count(1)
        # Ignore files and environment: tests must not depend on the machine.
        read = settings_file.load_settings(
            {"store": "memory:", **settings}, environment={}, folder=_NOWHERE, user_file=_NOWHERE
        )
        self.mulligan = Mulligan()
        self.components = Components(
            read,
            open_store=lambda: self.store,
            find_tool=lambda name: self.mulligan._find_tool(name) or api.default._find_tool(name),
            clock=lambda: 1_700_000_000 + self._now(),
            timer=self._now,
            sleep=self.backoffs.append,
            async_sleep=self._async_sleep,
            random=lambda: 0.0,
        )
        self.components.stream.add_listener(self.events.append, thread="caller")
        self.mulligan._components, self.mulligan._is_off = self.components if read.enabled else None, not read.enabled

    def _now(self) -> float:
        """Return the fake time: each reading adds a millisecond, each backoff its length."""
        return next(self._reads) / 1000 + sum(self.backoffs)

    async def _async_sleep(self, seconds: float) -> None:
        self.backoffs.append(seconds)

    @property
    def steps(self) -> list[Step]:
        """Every finished attempt, in order."""
        return [event.step for event in self.events if isinstance(event, StepEnded)]

    @property
    def calls(self) -> list[calls.Call]:
        """The calls of all runs, in order."""
        return [call for history in self.runs for call in calls.group_attempts(history.steps)]

    @property
    def runs(self) -> list[History]:
        """The stored runs, the oldest first."""
        self.components.recorder.flush(FLUSH_TIMEOUT_SECONDS)
        return list(reversed(self.store.runs(DEFAULT_TENANT, RunQuery(limit=1_000_000))))


@contextlib.contextmanager
def sandbox(**settings: Any) -> Iterator[Sandbox]:
    """Run the code inside it with an in-memory store and a fake clock.

    Applies to everything wrapped with `mulligan.tool` and `mulligan.model`. `settings` are those of
    `mulligan.configure`; environment and files are ignored.
    """
    active_sandbox = Sandbox(**settings)
    default = api.default
    previous = default._components, default._is_off
    is_off = not active_sandbox.components.settings.enabled
    default._components, default._is_off = None if is_off else active_sandbox.components, is_off
    try:
        yield active_sandbox
    finally:
        default._components, default._is_off = previous
        active_sandbox.components.recorder.close()


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
