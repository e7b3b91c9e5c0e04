"""For users' tests: no waiting, no files, and every event in a list.

with mulligan.testing.rehearsal() as rehearsal:
    assert weather("Oslo") == "rain"
    assert rehearsal.waits == [2.0]
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from mulligan import assembly, calls, redaction
from mulligan import settings as settings_file
from mulligan.assembly import Mulligan
from mulligan.events import AnyEvent, StepEnded
from mulligan.parts import Parts
from mulligan.records import History, Step, encode
from mulligan.remember.memory import MemoryStore
from mulligan.remember.store import LOCAL, RunQuery

PATIENCE = 60.0
"""Seconds until what happened is in the store: it is in memory, and only a very busy machine takes longer than one."""


class Rehearsal:
    """What happened while waiting took no time and chance was always the same."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[AnyEvent] = []
        self.waits: list[float] = []
        self.store = MemoryStore()
        self._reads = itertools.count(1)
        # Given settings only: a test must not change with the machine's environment and files.
        read = settings_file.read({"store": "memory:", **settings}, environment={}, folder=_NOWHERE, user_file=_NOWHERE)
        self.mulligan = Mulligan()
        self.parts = Parts(
            read,
            opening=lambda: self.store,
            tools=lambda name: self.mulligan._tool(name) or assembly.default._tool(name),
            clock=lambda: 1_700_000_000 + self._now(),
            timer=self._now,
            sleep=self.waits.append,
            asleep=self._asleep,
            chance=lambda: 0.0,
        )
        self.parts.stream.listen(self.events.append, when="caller")
        self.mulligan._parts, self.mulligan._is_off = None if read.off else self.parts, read.off

    def _now(self) -> float:
        """Seconds since the beginning: to look at the clock takes a millisecond, to wait as long as was asked for."""
        return next(self._reads) / 1000 + sum(self.waits)

    async def _asleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    @property
    def steps(self) -> list[Step]:
        """Every attempt that has ended, in order."""
        return [event.step for event in self.events if isinstance(event, StepEnded)]

    @property
    def calls(self) -> list[calls.Call]:
        """The calls of the only run there was, or of all of them, one after the other."""
        return [call for history in self.runs for call in calls.group_attempts(history.steps)]

    @property
    def runs(self) -> list[History]:
        """What the store has, the oldest first."""
        self.parts.recorder.flush(PATIENCE)
        return list(reversed(self.store.runs(LOCAL, RunQuery(limit=1_000_000))))


@contextlib.contextmanager
def rehearsal(**settings: Any) -> Iterator[Rehearsal]:
    """Inside it, everything that is wrapped with `mulligan.tool` and `mulligan.model` is rehearsed.

    `settings` are those of `mulligan.configure`; environment and files are not read.
    """
    played = Rehearsal(**settings)
    default = assembly.default
    before = default._parts, default._is_off
    is_off = played.parts.settings.off
    default._parts, default._is_off = None if is_off else played.parts, is_off
    try:
        yield played
    finally:
        default._parts, default._is_off = before
        played.parts.recorder.close()


class ScriptedModel:
    """A model that says what a test wrote down, in order: for `mulligan.loop`, or for a loop of your own.

    A text is an answer. `call("search", query="fish")`, or a list of them, asks for tools. An exception is raised. A
    function is called with the messages, and says which of these it is to be.
    """

    def __init__(self, *script: Any, style: Literal["openai", "anthropic"] = "openai") -> None:
        self.asked: list[list[Any]] = []
        """The messages of each time that it was asked."""
        self._script = list(script)
        self._style = style
        self._ids = itertools.count(1)

    def __call__(self, messages: list[Any]) -> dict[str, Any]:
        self.asked.append(list(messages))
        assert self._script, f"the script is over, and the model was asked a {len(self.asked)}th time"
        now = self._script.pop(0)
        if callable(now) and not isinstance(now, call | type):
            now = now(messages)
        if isinstance(now, BaseException):
            raise now
        if isinstance(now, str):
            return self._reply(now, [])
        return self._reply("", [now] if isinstance(now, call) else list(now))

    async def awaited(self, messages: list[Any]) -> dict[str, Any]:
        """The same model, async: `mulligan.loop(model.awaited, ...)`."""
        return self(messages)

    def _reply(self, text: str, calls: list[call]) -> dict[str, Any]:
        wanted = [(f"call_{next(self._ids)}", each) for each in calls]
        if self._style == "anthropic":
            blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
            blocks += [{"type": "tool_use", "id": id, "name": each.name, "input": each.given} for id, each in wanted]
            return {"role": "assistant", "content": blocks, "stop_reason": "tool_use" if calls else "end_turn"}
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": each.name, "arguments": each.written}}
                for id, each in wanted
            ]
        return {"choices": [{"message": message, "finish_reason": "tool_calls" if calls else "stop"}]}


class call:  # noqa: N801 - it reads as what a model does
    """A tool call as a model asks for it: `call("search", query="fish")`, or `call("search", '{"query": '})`."""

    def __init__(self, name: str, arguments: Any = None, /, **named: Any) -> None:
        self.name = name
        self.given = named if arguments is None else arguments

    @property
    def written(self) -> str:
        """The arguments as a text, as some providers have them."""
        return self.given if isinstance(self.given, str) else encode(self.given).decode()


def assert_presentable(text: str) -> None:
    """Fails unless a text may be shown to a model: no control characters, no unmarked or overlong foreign text."""
    faults = redaction.faults(text)
    assert not faults, f"not presentable: {'; '.join(faults)}"


_NOWHERE = Path("/nonexistent")
