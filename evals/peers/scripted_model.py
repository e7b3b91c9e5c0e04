"""The model of all worlds. What it writes next depends only on the messages that it reads: README.md has the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service import EFFECTS, SUCCESS, Goal

DONE = "Done."
GAVE_UP = "I give up"
HOPELESS = ("401 unauthorized", "403 forbidden", '"recoverable":false', '"recoverable": false')
LOST_REPLY = ("timed out", "timeout", "connection reset")
UNKNOWN_OUTCOME = ("may have", "unknown whether", "outcome is unknown", "took effect")
CHANGE_COURSE = (
    "different approach",
    "another approach",
    "different way",
    "another way",
    "different tool",
    "strategy",
    "differently",
)
CALL_ID = re.compile(r"g(\d+)([a-z])(\d+)$")
CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class ToolRequest:
    """One call that the model asks for."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """One answer of the model: calls, or a text that ends the task."""

    text: str = ""
    calls: tuple[ToolRequest, ...] = ()


@dataclass(frozen=True)
class ReadResult:
    """A call that the model made, and the text that it read for it."""

    type: str
    """w: as first written, a: an alternate, r: the right call, l: the lookup, i: the other way."""
    text: str

    @property
    def is_success(self) -> bool:
        return SUCCESS in self.text


@dataclass(frozen=True)
class ScriptedModel:
    """A model without a memory of its own: it goes by the conversation alone."""

    goals: tuple[Goal, ...]
    is_cautious: bool
    """Whether it knows by itself that a call without a reply may have taken effect."""
    is_parallel: bool = False
    """Whether it asks for the calls of all goals in one turn."""
    answer: str = ""
    """The last text as first written, if the task needs one."""
    right_answer: str = ""

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> Reply:
        results = self._read_results(messages)
        everything = "\n".join(read_text(message) for message in messages).lower()
        last_goal = max(results, default=0)
        calls: list[ToolRequest] = []
        for number, goal in enumerate(self.goals):
            if not self.is_parallel and number < last_goal:
                continue  # Its result may have been removed to make the conversation shorter.
            request = self._decide(number, goal, results.get(number, []), everything)
            if request == GAVE_UP:
                return Reply(f"{GAVE_UP}: {goal.tool} failed.")
            if isinstance(request, ToolRequest):
                calls.append(request)
                if not self.is_parallel:
                    break
        if calls:
            return Reply(calls=tuple(calls))
        if not self.answer:
            return Reply(DONE)
        is_asked_again = sum(message["role"] == "user" for message in messages) > 1
        return Reply(self.right_answer if is_asked_again else self.answer)

    def _read_results(self, messages: Sequence[Mapping[str, Any]]) -> dict[int, list[ReadResult]]:
        results: dict[int, list[ReadResult]] = {}
        for message in messages:
            match = CALL_ID.search(message.get("tool_call_id") or "") if message["role"] == "tool" else None
            if match:
                results.setdefault(int(match[1]), []).append(ReadResult(match[2], read_text(message)))
        return results

    def _decide(self, number: int, goal: Goal, results: list[ReadResult], everything: str) -> ToolRequest | str | None:
        """Return the next call for a goal, `GAVE_UP`, or None if the goal is reached."""
        requests = _GoalRequests(number, goal, len(results))
        if not results:
            # A reminder or a note from an earlier conversation may have the words of the cue.
            is_warned = bool(goal.cues) and all(cue.lower() in everything for cue in (goal.tool, *goal.cues))
            return requests.right() if is_warned or not requests.is_mistaken else requests.first()
        last = results[-1]
        if last.type == "l" and last.is_success:
            return None if "paid" in last.text else requests.right()
        if last.is_success:
            return None
        return self._react(goal, results, last, requests)

    def _react(
        self, goal: Goal, results: list[ReadResult], last: ReadResult, requests: _GoalRequests
    ) -> ToolRequest | str:
        text = last.text.lower()
        if goal.right is None:
            return GAVE_UP
        if EFFECTS[goal.tool] == "once" and last.type != "l":
            is_lost = any(word in text for word in LOST_REPLY)
            if any(word in text for word in UNKNOWN_OUTCOME) or (self.is_cautious and is_lost):
                return requests.lookup()
        if any(word in text for word in HOPELESS):
            return GAVE_UP
        if goal.instead and last.type != "i" and any(word in text for word in CHANGE_COURSE):
            return requests.instead()
        if last.type in "wa":
            cues = goal.cues or (goal.tool,) * bool(goal.name)
            names = {*goal.wrong_names, *(("json",) if goal.raw else ())}
            if all(cue.lower() in text for cue in cues) if cues else any(name.lower() in text for name in names):
                return requests.right()
            tried = sum(result.type == "a" for result in results)
            if tried < len(goal.alternates):
                return requests.alternate(tried)
            if goal.instead:
                return requests.instead()
        if sum(result.type != "l" for result in results) > goal.repeats:
            return GAVE_UP
        return requests.again(last.type)


@dataclass(frozen=True)
class _GoalRequests:
    """Writes the calls that a goal can lead to."""

    number: int
    goal: Goal
    count: int

    @property
    def is_mistaken(self) -> bool:
        return bool(self.goal.first is not None or self.goal.name or self.goal.raw or self.goal.right is None)

    def first(self) -> ToolRequest:
        arguments = self.goal.right if self.goal.first is None else self.goal.first
        return self._write("w", self.goal.name or self.goal.tool, arguments or {}, self.goal.raw)

    def right(self) -> ToolRequest:
        return self._write("r", self.goal.tool, self.goal.right or {})

    def alternate(self, index: int) -> ToolRequest:
        arguments = self.goal.alternates[index]
        return self._write("r" if arguments == self.goal.right else "a", self.goal.tool, arguments)

    def instead(self) -> ToolRequest:
        assert self.goal.instead is not None
        return self._write("i", *self.goal.instead)

    def lookup(self) -> ToolRequest | str:
        return self._write("l", *self.goal.lookup) if self.goal.lookup else GAVE_UP

    def again(self, type: str) -> ToolRequest | str:
        if type == "l":
            return self.lookup()
        if type == "i":
            return self.instead()
        if type == "a":
            return self._write("a", self.goal.tool, self.goal.alternates[-1])
        return self.right() if type == "r" else self.first()

    def _write(self, type: str, name: str, arguments: Mapping[str, Any], raw: str = "") -> ToolRequest:
        return ToolRequest(f"g{self.number}{type}{self.count + 1}", name, raw or json.dumps(dict(arguments)))


def read_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message in OpenAI's form."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def count_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """Count a quarter of the characters of messages and of calls in them; declarations of tools do not count."""
    chars = sum(len(read_text(message)) for message in messages)
    calls = (call["function"] for message in messages for call in message.get("tool_calls") or ())
    return (chars + sum(len(call["name"]) + len(call["arguments"] or "") for call in calls)) // CHARS_PER_TOKEN
