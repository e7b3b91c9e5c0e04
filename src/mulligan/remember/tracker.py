"""The failures of a session: which are retained, and what the reminder says.

Pure functions of data, without clock, lock or listener: those are in `session.py`. A tracker can be converted to JSON
and back without loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from mulligan.calls import Call
from mulligan.links import MAX_INTERMEDIATE_TOOLS, SAME_ARGUMENTS_ONLY, OpenFailure, RunProgress, link_recoveries
from mulligan.prompt import Prompt
from mulligan.records import Link, Step, decode, encode, repeated_id
from mulligan.redaction.expressions import Expression
from mulligan.remember import lookups

CAPACITY = 10
RECENT = 2
"""Turns within which a repeated failure continues the same count."""
PENDING = 100
"""Limit of failed calls per turn that may still recover within it."""
RUNS = 100
"""Limit of runs whose steps are observed, the newest."""
STRETCHES = 50
"""Limit of intervals between compactions, the newest."""
ENOUGH = 10
"""Minimum number of calls before and after a compaction for comparing their failure rates."""
SURE = 1.64
"""Standard errors by which a rate must be higher; chance alone exceeds that in one of twenty cases."""


_WORDS = Prompt()
"""For names and numbers of redacted steps. The output is sanitized again."""


class Remembered(msgspec.Struct, omit_defaults=True):
    """One failure of a session."""

    step: Step
    """The last failed attempt."""
    turn: int
    """The turn of that attempt."""
    count: int = 1
    """Occurrences without a gap of more than `REPEAT_WINDOW_TURNS` turns."""
    total: int = 1
    """Occurrences in this session."""
    about: str = ""
    """The file, test or error code that the failure is about."""
    worked: dict[str, int] = {}
    """Descriptions of what recovered it, with counts."""
    is_open: bool = True
    """Whether it has not recovered since its last occurrence."""
    since: list[str] = []
    """Names of the calls that have succeeded since."""
    was_reread: bool = False
    """Whether its file was read since."""

    @property
    def is_of(self) -> tuple[str, str | None, str]:
        """Failures with the same identity are the same failure."""
        failure = self.step.failure
        return self.step.name, self.step.server, (failure.fingerprint or str(failure.kind)) if failure else ""

    @property
    def kind(self) -> str:
        return str(self.step.failure.kind) if self.step.failure else ""

    @property
    def sort(self) -> tuple[str, str, str | None]:
        return self.kind, self.step.name, self.step.server


class Stretch(msgspec.Struct, omit_defaults=True):
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
    failures: list[Remembered] = []
    pending: list[Remembered] = []
    """Calls that failed in this turn. A call that recovers within its turn is not retained."""
    runs: list[str] = []
    stretches: list[Stretch] = msgspec.field(default_factory=lambda: [Stretch()])
    reminder: str = ""
    """Set at a compaction and constant until the next one, so that the prompt cache remains valid."""
    known: tuple[str, ...] = ()
    """Identities of the failures before that compaction, as built by `failure_identity`."""
    is_told: bool = True
    """Whether a host that can only append messages has received the reminder."""
    has_warned: bool = False
    """Whether the increase of failures after the last compaction was reported."""
    is_counted: bool = False
    """Whether the model response that requests the next tools was already counted as a turn."""

    def begin(self, run: str) -> None:
        """Add a run of the session."""
        if run not in self.runs:
            self.runs = [*self.runs[1 - RUNS :], run]

    def hear(self, step: Step) -> None:
        """Process a finished attempt of one of the runs."""
        if step.type == "run":
            return
        has_failed = step.has_failed and step.failure is not None
        if step.type != "model" and step.attempt == 1 and (has_failed or step.outcome == "success"):
            self.stretches[-1].calls += 1
            self.stretches[-1].failed += has_failed
        if step.outcome == "success":
            self._succeeded(step)
            if step.type == "model":
                self.turn()
                self.is_counted = True
        elif has_failed:
            self._failed(step)

    def turn(self) -> None:
        """Count a model response."""
        self._settle()
        self.turns += 1

    def answered(self) -> None:
        """Count the model response that requested tools, unless it was already counted."""
        if not self.is_counted:
            self.turn()
        self.is_counted = False

    def warned(self) -> None:
        self.has_warned = True

    def become(self, other: Tracker) -> None:
        """Copy all fields from another tracker."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def compact(self, words: Prompt = _WORDS) -> None:
        """Record a compaction. The reminder lists the failures before it from now on."""
        self._settle()
        self.known = tuple(repeated_id(each.step) for each in self.failures)
        self.reminder = words.reminder([_told(each) for each in self.failures])
        self.is_told = not self.reminder
        self.stretches = [*self.stretches[1 - STRETCHES :], Stretch()]
        self.has_warned = False

    def injection(self) -> str:
        """Return the reminder once per compaction."""
        said = "" if self.is_told else self.reminder
        self.is_told = True
        return said

    def note(self, words: Prompt = _WORDS) -> str:
        """Return what a summarizer can omit, because the reminder will contain it."""
        known = [*self.failures, *self.pending]
        return words.kept_elsewhere([(each.kind, each.step.name) for each in known])

    def rise(self) -> str:
        """Return a warning if more calls fail since the last compaction than before; empty if that may be chance."""
        if len(self.stretches) < 2:
            return ""
        before, after = self.stretches[-2:]
        if before.calls < ENOUGH or after.calls < ENOUGH:
            return ""
        overall = (before.failed + after.failed) / (before.calls + after.calls)
        error = math.sqrt(overall * (1 - overall) * (1 / before.calls + 1 / after.calls))
        if after.failed / after.calls - before.failed / before.calls <= SURE * error:
            return ""
        return (
            f"Failures rose after the last compaction: {after.failed} of {after.calls} calls failed, "
            f"before it {before.failed} of {before.calls}. The summary may have left out what mattered."
        )

    def _failed(self, step: Step) -> None:
        self.pending = [each for each in self.pending if not _is_same_call(each.step, step)]
        if lookups.is_miss(step):
            return
        self.pending.append(Remembered(_kept(step), self.turns, about=about(step)))
        if len(self.pending) > PENDING:
            self._remember(self.pending.pop(0))

    def _settle(self) -> None:
        pending, self.pending = self.pending, []
        for each in pending:
            self._remember(each)

    def _remember(self, new: Remembered) -> None:
        known = next((each for each in self.failures if each.is_of == new.is_of), None)
        if known is not None:
            is_again = not _is_same_call(known.step, new.step)  # otherwise another attempt of the same call
            is_recent = new.turn - known.turn <= RECENT
            new.count = known.count + is_again if is_recent else 1
            new.total = known.total + is_again
            new.worked = known.worked
            self.failures.remove(known)
        elif len(self.failures) >= CAPACITY:
            self.failures.remove(self._least(new))
        self.failures.append(new)

    def _least(self, new: Remembered) -> Remembered:
        """Return the failure to drop: the oldest similar one, else the oldest without side effects, else the oldest."""
        alike = [each for each in self.failures if each.sort == new.sort]
        harmless = [each for each in self.failures if lookups.only_looks(each.step)]
        return (alike or harmless or self.failures)[0]

    def _succeeded(self, step: Step) -> None:
        self.pending = [each for each in self.pending if not _link(each, step)]
        for each in self.failures:
            if each.is_open and (link := _link(each, step)):
                said = _WORDS.overcame(link, was_reread=each.was_reread)
                if said:
                    each.worked = {**each.worked, said: each.worked.get(said, 0) + 1}
                each.is_open = False
        if step.type in ("tool", "retrieval", "custom"):
            for each in (*self.pending, *self.failures):
                _came_between(each, step)


def restored(data: bytes) -> Tracker:
    """Parse the result of `to_json`. Raise `msgspec.MsgspecError` for anything else."""
    tracker = decode(data, Tracker)
    if not tracker.stretches:
        raise msgspec.ValidationError("there is always a stretch that has begun")
    return tracker


def kept(tracker: Tracker) -> bytes:
    """Return a tracker as JSON."""
    return encode(tracker)


def _kept(step: Step) -> Step:
    """Return a failed attempt without the data that neither linking nor the reminder needs."""
    failure = step.failure
    assert failure is not None
    return msgspec.structs.replace(
        step,
        result=None,
        ending=None,
        metadata=None,
        failure=msgspec.structs.replace(failure, detail="", hint="", evidence=()),
    )


def _told(each: Remembered) -> dict[str, object]:
    worked, times = max(each.worked.items(), key=lambda item: item[1], default=("", 0))
    return {
        "kind": each.kind,
        "tool": each.step.name,
        "turn": each.turn,
        "count": each.count,
        "about": each.about,
        "message": each.step.failure.message if each.step.failure else "",
        "worked": worked,
        "times": (times, each.total),
    }


def _is_same_call(one: Step, other: Step) -> bool:
    return one.run == other.run and one.call == other.call


def _link(each: Remembered, success: Step) -> Link | None:
    """Return the link from a tracked failure to a success, if that recovered it.

    The process that recorded both has linked them by all calls of the run. Otherwise only equal arguments link.
    """
    failed = each.step
    if _is_same_call(failed, success):
        links = link_recoveries([failed, success])
        return next((link for link in links if link.failed == failed.call), None)
    if success.run == failed.run:
        linked = next((link for link in success.links if link.failed == failed.call), None)
        if linked is not None or failed.judged:
            return linked
    else:  # another run numbers its steps separately
        success = msgspec.structs.replace(success, run=failed.run, seq=failed.seq + 1, call=failed.seq + 1, after=None)
    progress = RunProgress((OpenFailure(Call(steps=(failed,)), SAME_ARGUMENTS_ONLY, 0, tools_since=tuple(each.since)),))
    _, links = progress.after(Call(steps=(success,)), SAME_ARGUMENTS_ONLY)
    return next((link for link in links if link.failed == failed.call), None)


def _came_between(each: Remembered, success: Step) -> None:
    if not each.is_open or _is_same_call(each.step, success):
        return
    if success.name not in each.since and len(each.since) < MAX_INTERMEDIATE_TOOLS:
        each.since = [*each.since, success.name]
    path = _path(each.step.arguments)
    if path and path == _path(success.arguments) and lookups.is_reading(success):
        each.was_reread = True


PATHS = ("file_path", "path", "absolute_path", "notebook_path", "target_file", "filename", "file")


def _path(arguments: object) -> str:
    if not isinstance(arguments, Mapping):
        return ""
    named = (arguments.get(name) for name in PATHS)
    return next((value for value in named if isinstance(value, str) and value), "")


# Names that test runners and compilers print, in the message or the detail of a failure.
_TESTS = Expression(
    r"^(?:FAILED|ERROR) (\S{1,200}::\S{1,200})"  # pytest
    r"|^\s{0,12}--- FAIL: (\S{1,200})"  # go test
    r"|^test (\S{1,200}) \.\.\. FAILED"  # cargo test
    r"|^\s{0,8}(?:FAIL|not ok \d{1,6} -?)\s{1,4}(\S{1,200})",  # jest and vitest; TAP
    re.MULTILINE,
)
_CODE = Expression(r"\b(?:error(?:\[|:? )|fatal error )?((?:TS|CS|E|C|LNK|F)\d{3,5})\b")
_PLACE = Expression(r"(?<![\w./-])((?:[\w.-]{1,80}/){0,12}[\w.-]{1,80}\.[a-zA-Z]\w{0,9}):\d{1,7}\b")
READ = 8000
"""Characters of an output that are searched for a name."""


def about(step: Step) -> str:
    """Return the file, test or error code that a failure is about; empty if unknown."""
    failure = step.failure
    if failure is None:
        return ""
    said = f"{failure.message}\n{failure.detail[:READ]}"[: 2 * READ]
    if failure.kind.code == "test_failure" and (found := _TESTS.search(said)):
        return str(next(filter(None, found.groups())))
    if failure.kind.code in ("build_failure", "test_failure") and (found := _PLACE.search(said) or _CODE.search(said)):
        return str(found[1])
    return _path(step.arguments) or failure.code
