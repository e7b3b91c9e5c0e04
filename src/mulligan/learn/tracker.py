"""The failures of a session: which are retained, and what the reminder says.

Pure functions of data, without clock, lock or listener: those are in `session.py`. A tracker can be converted to JSON
and back without loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from mulligan.core.call_facts import SAME_ARGUMENTS_ONLY, OpenFailure
from mulligan.core.calls import Call
from mulligan.core.failure import Failure
from mulligan.core.links import MAX_INTERMEDIATE_TOOLS, RunProgress
from mulligan.core.read_only_calls import (
    SHELL_TOOLS,
    find_command,
    is_read_only,
    is_read_only_command,
    may_prepare_command,
)
from mulligan.core.records import Link, Step, decode, digest, encode, failure_identity
from mulligan.core.run_links import link_recoveries
from mulligan.learn.command_effects import changes_state
from mulligan.prompt import Prompt
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.shell_syntax import parse_commands

SESSION_KIND = "session"
"""Kind of the key-value entries with the failures of a session. The key is its id."""
MAX_TRACKED_FAILURES = 30
REPEAT_WINDOW_TURNS = 2
"""Turns within which a repeated failure continues the same count."""
MAX_PENDING_FAILURES = 100
"""Limit of failed calls per turn that may still recover within it."""
MAX_TRACKED_RUNS = 100
"""Limit of runs whose steps are observed, the newest."""


_PROMPT = Prompt()
"""For names and numbers of redacted steps. The output is sanitized again."""


class TrackedFailure(msgspec.Struct, omit_defaults=True):
    step: Step
    """The last failed attempt."""
    turn: int
    """The turn of that attempt."""
    count: int = 1
    """Occurrences without a gap of more than `REPEAT_WINDOW_TURNS` turns."""
    total: int = 1
    """Occurrences in this session."""
    call: str = ""
    """The failed call in words: its command, file or arguments."""
    subject: str = ""
    """The file, address, command, test or error code that the failure is about."""
    recoveries: dict[str, int] = {}
    """Descriptions of what recovered it, with counts."""
    working_calls: dict[str, int] = {}
    """Calls that recovered it, in words, with counts. They quote arguments."""
    is_open: bool = True
    """Whether it has not recovered since its last occurrence."""
    successes_since: list[str] = []
    """Names of the calls that have succeeded since."""
    calls_since: list[str] = []
    """The last of these calls in words, as far as their arguments are known."""
    preparing_tools: list[str] = []
    """Tools of calls since that may be why the same shell command succeeds later."""
    was_reread: bool = False
    """Whether its file was read since."""

    @property
    def tool(self) -> tuple[str, str | None]:
        return self.step.name, self.step.server

    @property
    def identity(self) -> tuple[str, str | None, str, str]:
        """Failures with the same identity are the same failure."""
        return *self.tool, self.failure.fingerprint or self.kind, self.subject

    @property
    def failure(self) -> Failure:
        assert self.step.failure is not None
        return self.step.failure

    @property
    def kind(self) -> str:
        return str(self.failure.kind)


class CompactionInterval(msgspec.Struct, omit_defaults=True):
    """Calls between two compactions, and how many of them failed at the first attempt."""

    calls: int = 0
    failed: int = 0

    @property
    def rate(self) -> float | None:
        """The share of failed calls; None without calls."""
        return self.failed / self.calls if self.calls else None


class Tracker(msgspec.Struct, omit_defaults=True):
    """The failures of one session: at most `MAX_TRACKED_FAILURES`, in the order of their last occurrence."""

    turns: int = 0
    failures: list[TrackedFailure] = []
    pending: list[TrackedFailure] = []
    """Calls that failed in this turn. A call that recovers within its turn is not retained."""
    runs: list[str] = []
    intervals: list[CompactionInterval] = msgspec.field(default_factory=lambda: [CompactionInterval()])
    reminder: str = ""
    """Set at a compaction and constant until the next one, so that the prompt cache remains valid."""
    known_failures: tuple[str, ...] = ()
    """Identities of the failures before that compaction, as built by `failure_identity`."""
    is_reminder_delivered: bool = True
    """Whether a host that can only append messages has received the reminder."""
    has_warned: bool = False
    """Whether the increase of failures after the last compaction was reported."""
    is_turn_counted: bool = False
    """Whether the model response that requests the next tools was already counted as a turn."""
    summary_ids: list[str] = []
    """Digests of the ids of summaries whose compaction was counted."""

    def begin(self, run: str) -> None:
        """Add a run of the session."""
        if run not in self.runs:
            self.runs = [*self.runs[1 - MAX_TRACKED_RUNS :], run]

    def observe_step(self, step: Step) -> None:
        """Process a finished attempt of one of the runs."""
        if step.type in ("run", "reflection"):
            return
        has_failed = step.has_failed and step.failure is not None
        if step.type != "model" and step.attempt == 1 and (has_failed or step.outcome == "success"):
            self.intervals[-1].calls += 1
            self.intervals[-1].failed += has_failed
        if step.outcome == "success":
            self._succeeded(step)
            if step.type == "model":
                self.mark_turn()
                self.is_turn_counted = True
        elif has_failed:
            self._failed(step)

    def mark_turn(self) -> None:
        """Count a model response."""
        self.commit_pending()
        self.turns += 1

    def mark_tools_requested(self) -> None:
        """Count the model response that requested tools, unless it was already counted."""
        if not self.is_turn_counted:
            self.mark_turn()
        self.is_turn_counted = False

    def mark_warned(self) -> None:
        self.has_warned = True

    def become(self, other: Tracker) -> None:
        """Copy all fields from another tracker."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def compact(self, prompt: Prompt = _PROMPT, summary_id: str | None = None) -> bool:
        """Record a compaction. The reminder lists the failures before it from now on.

        Return False if the compaction with this summary was recorded before.
        """
        if summary_id is not None:
            if self.has_summary(summary_id):
                return False
            # Limit of summaries that are remembered as counted, the newest.
            self.summary_ids = [*self.summary_ids[-99:], _hash_id(summary_id)]
        self.commit_pending()
        self.known_failures = tuple(failure_identity(failure.step) for failure in self.failures)
        self.reminder = prompt.reminder([_to_report(failure) for failure in self.failures])
        self.is_reminder_delivered = not self.reminder
        # Limit of intervals between compactions, the newest.
        self.intervals = [*self.intervals[-49:], CompactionInterval()]
        self.has_warned = False
        return True

    def has_summary(self, summary_id: str) -> bool:
        """Return whether the compaction with this summary was recorded."""
        return _hash_id(summary_id) in self.summary_ids

    def take_reminder(self) -> str:
        """Return the reminder once per compaction."""
        reminder = "" if self.is_reminder_delivered else self.reminder
        self.is_reminder_delivered = True
        return reminder

    def summarizer_note(self, prompt: Prompt = _PROMPT) -> str:
        """Return what a summarizer can omit, because the reminder will contain it."""
        failures = [*self.failures, *self.pending]
        return prompt.summarizer_note([(failure.kind, failure.step.name) for failure in failures])

    def rate_increase(self) -> str:
        """Return a warning if more calls fail since the last compaction than before; empty if that may be chance."""
        if len(self.intervals) < 2:
            return ""
        before, after = self.intervals[-2:]
        # Minimum number of calls before and after a compaction for comparing their failure rates.
        if min(before.calls, after.calls) < 10:
            return ""
        overall = (before.failed + after.failed) / (before.calls + after.calls)
        error = math.sqrt(overall * (1 - overall) * (1 / before.calls + 1 / after.calls))
        # Standard errors by which a rate must be higher; chance alone exceeds that in one of twenty cases.
        if after.failed / after.calls - before.failed / before.calls <= 1.64 * error:
            return ""
        return (
            f"Failures rose after the last compaction: {after.failed} of {after.calls} calls failed, "
            f"before it {before.failed} of {before.calls}. The summary may have omitted important facts."
        )

    def _failed(self, step: Step) -> None:
        self.pending = [failure for failure in self.pending if not _is_same_call(failure.step, step)]
        if is_empty_lookup(step):
            return
        failure = TrackedFailure(_strip_step(step), self.turns, call=describe_call(step), subject=find_subject(step))
        self.pending.append(failure)
        if len(self.pending) > MAX_PENDING_FAILURES:
            self._remember(self.pending.pop(0))

    def commit_pending(self) -> None:
        """Retain the failures of the turn, which has ended."""
        pending, self.pending = self.pending, []
        for failure in pending:
            self._remember(failure)

    def _remember(self, new: TrackedFailure) -> None:
        earlier = next((failure for failure in self.failures if failure.identity == new.identity), None)
        if earlier is not None:
            is_again = not _is_same_call(earlier.step, new.step)  # otherwise another attempt of the same call
            is_recent = new.turn - earlier.turn <= REPEAT_WINDOW_TURNS
            new.count = earlier.count + is_again if is_recent else 1
            new.total = earlier.total + is_again
            new.recoveries, new.working_calls = earlier.recoveries, earlier.working_calls
            if earlier.is_open:
                new.preparing_tools = list(dict.fromkeys((*earlier.preparing_tools, *new.preparing_tools)))
            self.failures.remove(earlier)
        elif len(self.failures) >= MAX_TRACKED_FAILURES:
            # Drop the oldest similar failure, else the oldest without side effects, else the oldest.
            similar = [failure for failure in self.failures if (failure.kind, *failure.tool) == (new.kind, *new.tool)]
            harmless = [failure for failure in self.failures if is_read_only(failure.step)]
            self.failures.remove((similar or harmless or self.failures)[0])
        self.failures.append(new)

    def _succeeded(self, step: Step) -> None:
        self.pending = [failure for failure in self.pending if not _link(failure, step)]
        for failure in self.failures:
            if failure.is_open and (link := _link(failure, step)):
                if working_call := _describe_recovery(failure, link, step):
                    count = failure.working_calls.get(working_call, 0)
                    failure.working_calls = {**failure.working_calls, working_call: count + 1}
                elif summary := _PROMPT.recovery_summary(link, was_reread=failure.was_reread):
                    failure.recoveries = {**failure.recoveries, summary: failure.recoveries.get(summary, 0) + 1}
                failure.is_open = False
        if step.type in ("tool", "retrieval", "custom"):
            for failure in (*self.pending, *self.failures):
                _note_success_between(failure, step)


def from_json(data: bytes) -> Tracker:
    """Parse the result of `to_json`. Raise `msgspec.MsgspecError` for anything else."""
    tracker = decode(data, Tracker)
    is_complete = all(tracked.step.failure for tracked in (*tracker.failures, *tracker.pending))
    if not tracker.intervals or not is_complete:
        raise msgspec.ValidationError("A tracker needs at least one interval, and a failure for each failed step")
    return tracker


def to_json(tracker: Tracker) -> bytes:
    return encode(tracker)


def _hash_id(summary_id: str) -> str:
    """Return a short form of an id, which may be the text of the summary."""
    return digest(summary_id.encode("utf-8", "replace"), 8).hex()


def _strip_step(step: Step) -> Step:
    """Return a failed attempt without the data that neither linking nor the reminder needs."""
    assert step.failure is not None
    failure = replace(step.failure, detail="", hint="", evidence=(), exception="", trace="")
    return replace(step, result=None, stop=None, metadata=None, failure=failure)


def _to_report(failure: TrackedFailure) -> dict[str, object]:
    recovery, times = max(failure.recoveries.items(), key=lambda item: item[1], default=("", 0))
    working_call, call_times = max(failure.working_calls.items(), key=lambda item: item[1], default=("", 0))
    return {
        "kind": failure.kind,
        "tool": failure.step.name,
        "occurrences": failure.count,
        "turn": failure.turn,
        "call": failure.call,
        "subject": failure.subject,
        "message": failure.failure.message,
        "recovery": recovery,
        "working_call": working_call,
        "times": (times or call_times, failure.total),
        "changes_state": not recovery and changes_state(working_call.partition(_AFTER)[2] or working_call),
        "is_recovered": not failure.is_open,
    }


def _describe_recovery(failure: TrackedFailure, link: Link, success: Step) -> str:
    """Return the call that recovered a failure, in words that quote its arguments; empty if they say nothing new."""
    if link.intermediate_tools and not link.changes and not failure.was_reread:
        return f"{_AFTER}{', '.join(failure.calls_since)}" if failure.calls_since else ""
    is_shell = success.name.casefold() in SHELL_TOOLS
    call = describe_call(success) if is_shell and link.method == "agent" and success.outcome == "success" else ""
    return call if call != failure.call else ""


_AFTER = "the same call after "
"""Start of the description of a recovery by other calls."""


def _is_same_call(one: Step, other: Step) -> bool:
    return one.run == other.run and one.call == other.call


def _link(tracked_failure: TrackedFailure, success: Step) -> Link | None:
    """Return the link from a tracked failure to a success, if that recovered it.

    The process that recorded both has linked them by all calls of the run. Otherwise only equal arguments link.
    """
    failed = tracked_failure.step
    links: Sequence[Link] = success.links
    if _is_same_call(failed, success):
        links = link_recoveries([failed, success])
    elif success.run != failed.run or not (failed.links_decided or _find_link(links, failed)):
        if success.run != failed.run:  # another run numbers its steps separately
            number = failed.seq + 1
            success = replace(success, run=failed.run, seq=number, call=number, recovery=None)
        tools, preparing_tools = tuple(tracked_failure.successes_since), tuple(tracked_failure.preparing_tools)
        failed_call = Call(steps=(failed,))
        open_failure = OpenFailure(
            failed_call, SAME_ARGUMENTS_ONLY, 0, changing_tools=tools, preparing_tools=preparing_tools,
            has_lost_answer=failed_call.has_lost_answer,
        )  # fmt: skip
        progress = RunProgress((open_failure,))
        _, links = progress.after(Call(steps=(success,)), SAME_ARGUMENTS_ONLY)
    return _find_link(links, failed)


def _find_link(links: Sequence[Link], failed: Step) -> Link | None:
    return next((link for link in links if link.failed_call == failed.call and not link.possible), None)


def _note_success_between(tracked_failure: TrackedFailure, success: Step) -> None:
    if not tracked_failure.is_open or _is_same_call(tracked_failure.step, success):
        return
    names = tracked_failure.successes_since
    if success.name not in names and len(names) < MAX_INTERMEDIATE_TOOLS:
        tracked_failure.successes_since = [*names, success.name]
    preparing_tools = tracked_failure.preparing_tools
    if success.name not in preparing_tools and may_prepare_command(success, tracked_failure.step):
        tracked_failure.preparing_tools = [*preparing_tools, success.name][:MAX_INTERMEDIATE_TOOLS]
    if (call := describe_call(success)) and not is_read_only(success):
        call = call if success.name.casefold() in SHELL_TOOLS else f"{success.name}({call})"
        calls = [earlier_call for earlier_call in tracked_failure.calls_since if earlier_call != call]
        # Calls since a failure that are described in words, the last ones.
        tracked_failure.calls_since = [*calls[-1:], call]
    path = _path(tracked_failure.step.arguments)
    if path and path == _path(success.arguments) and reads_file(success):
        tracked_failure.was_reread = True


PATHS = ("file_path", "path", "absolute_path", "notebook_path", "target_file", "filename", "file")


MAX_CALL_CHARS = 100
"""Characters of a call in words."""
MAX_COMMANDS, MAX_OPERANDS = 20, 4
"""Commands of a shell call that are read, and words of one that name its subject."""
_SEQUENCE_OPERATORS = frozenset(("", "&&", ";", "\n"))
"""Operators before a command that does not read the output of another."""


def describe_call(step: Step) -> str:
    """Return the command, the file or the first arguments of a call; empty if they are unknown."""
    arguments = step.arguments
    if not isinstance(arguments, Mapping):
        return ""
    if step.name.casefold() in SHELL_TOOLS:
        command = find_command(arguments)
        return command.strip().partition("\n")[0].strip()[:MAX_CALL_CHARS]
    scalars = [
        f"{name}={value}"
        for name, value in arguments.items()
        if isinstance(value, str | int | float) and len(str(value)) <= MAX_CALL_CHARS
    ]
    return (_path(arguments) or ", ".join(scalars[:3]))[:MAX_CALL_CHARS]


def _path(arguments: object) -> str:
    if not isinstance(arguments, Mapping):
        return ""
    candidates = (arguments.get(name) for name in PATHS)
    return next((value for value in candidates if isinstance(value, str) and value), "")


# Names that test runners and compilers print, in the message or the detail of a failure.
_TESTS = LazyRegex(
    r"^(?:FAILED|ERROR) (\S{1,200}::\S{1,200})"  # pytest
    r"|^\s{0,12}--- FAIL: (\S{1,200})"  # go test
    r"|^test (\S{1,200}) \.\.\. FAILED"  # cargo test
    r"|^\s{0,8}(?:FAIL|not ok \d{1,6} -?)\s{1,4}(\S{1,200})",  # jest and vitest; TAP
    re.MULTILINE,
)
_CODE = LazyRegex(r"\b(?:error(?:\[|:? )|fatal error )?((?:TS|CS|E|C|LNK|F)\d{3,5})\b")
_LOCATION = LazyRegex(r"(?<![\w./-])((?:[\w.-]{1,80}/){0,12}[\w.-]{1,80}\.[a-zA-Z]\w{0,9}):\d{1,7}\b")
MAX_SEARCHED_CHARS = 8000
"""Characters of an output that are searched for a name."""


def find_subject(step: Step) -> str:
    """Return the file, address, command, test or error code that a failure is about; empty if unknown."""
    failure = step.failure
    if failure is None:
        return ""
    text = f"{failure.message}\n{failure.detail[:MAX_SEARCHED_CHARS]}"[: 2 * MAX_SEARCHED_CHARS]
    if failure.kind.is_about_tests and (match := _TESTS.search(text)):
        return str(next(filter(None, match.groups())))
    if failure.kind.is_about_code and (match := _LOCATION.search(text) or _CODE.search(text)):
        return str(match[1])
    return _path(step.arguments) or _find_command_subject(step) or _find_address(step.arguments) or failure.code


def _find_command_subject(step: Step) -> str:
    """Return the last command of a shell call without options: `pytest a.py` of `cd app && pytest -x a.py`."""
    if step.name.casefold() not in SHELL_TOOLS or not isinstance(step.arguments, Mapping):
        return ""
    commands = islice(parse_commands(find_command(step.arguments)[:MAX_SEARCHED_CHARS]), MAX_COMMANDS)
    words = [command.words for command in commands if command.operator in _SEQUENCE_OPERATORS]
    operands = [word.text for word in (words[-1] if words else ()) if not word.text.startswith("-")]
    return " ".join(operands[:MAX_OPERANDS])[:MAX_CALL_CHARS]


def _find_address(arguments: object) -> str:
    url = arguments.get("url") if isinstance(arguments, Mapping) else None
    return url.partition("?")[0][:MAX_CALL_CHARS] if isinstance(url, str) else ""


# Lookups without a result


_SILENT_EXIT = LazyRegex(r"(?:command failed with )?exit (?:code|status):? 1\.?", re.IGNORECASE)
_WORD = LazyRegex(r"[a-z]+|[A-Z]+[a-z]*")


def is_empty_lookup(step: Step) -> bool:
    """Return whether a failed call was a lookup without a result. That is an answer, not a mistake to avoid."""
    failure = step.failure
    if failure is None or not is_read_only(step):
        return False
    # grep, diff and test report "no" by a silent exit code 1.
    is_silent = failure.kind.has_no_cause and bool(_SILENT_EXIT.fullmatch(failure.message))
    return failure.kind.is_empty_lookup or (is_silent and is_read_only_command(step))


def reads_file(step: Step) -> bool:
    """Return whether a call reads a file, judged by its tool name."""
    return any(word.casefold() in ("read", "view", "open", "cat") for word in _WORD.findall(step.name[:200]))
