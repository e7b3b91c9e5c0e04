"""What worked after the same failure in earlier sessions of one folder: the command, the file or the setting.

A hook may say it, because user and folder are the same (LEARNING.md, "Telling"): as what was done, never as a command
to run. The counts are those of sessions in which it was not said. A call between a failure and the success of the same
call may be a coincidence, so it needs a session in which the same call failed again without it, an error that names
it, or more sessions. What worked for another value, such as another missing package, is not said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from mulligan.core.calls import wilson_lower_bound
from mulligan.core.read_only_calls import SHELL_TOOLS, find_command, is_read_only
from mulligan.core.records import Link, Step
from mulligan.learn.command_effects import changes_state
from mulligan.learn.tracker import describe_call, find_subject
from mulligan.redaction.regex import LazyRegex

_QUOTED_NAME = LazyRegex(r"""['"`]([^\s'"`]{1,80})['"`]""")
_WORD = LazyRegex(r"[\w.-]+")
MIN_SUCCESS_RATE = 0.5
"""Lower bound of its share of these sessions: 3 of 3 give 0.65, 3 of 5 give 0.34."""


class PastFailure(msgspec.Struct, frozen=True):
    """A failed call of an earlier session, and what recovered it."""

    step: Step
    link: Link | None = None
    """Its recovery; None if it never recovered."""
    later_steps: Sequence[Step] = ()
    """The steps after it, up to the recovering call."""
    fix: str = ""
    """The fix that this recovery is a vote for, by id."""
    is_approved: bool = False
    """Whether a person approved what recovered it."""
    is_revoked: bool = False


class WorkingCall(msgspec.Struct, frozen=True):
    """A call after or with which a failed call succeeded."""

    failed_call: str
    call: str
    is_before: bool
    """Whether the failed call itself succeeded after it."""
    sessions: int
    fixes: frozenset[str]
    """The fixes that these sessions are votes for."""
    changes_state: bool
    """Whether it changes more than the files of the folder, or skips a check."""


def find_working_call(failed: Step, past_failures: Sequence[PastFailure]) -> WorkingCall | None:
    """Return what worked most often after the same failure about the same subject; None if nothing is certain."""
    subject, failed_call = find_subject(failed), _describe(failed)
    quoted = _find_quoted_names(failed)
    same = [
        past
        for past in past_failures
        if subject and find_subject(past.step) == subject and _find_quoted_names(past.step) == quoted
    ]
    by_run: dict[str, list[PastFailure]] = {}
    for past in same:
        by_run.setdefault(past.step.run, []).append(past)
    # One vote for each session: how its last failure ended.
    lasts = [max(failures, key=lambda past: past.step.seq) for failures in by_run.values()]
    votes = [past for past in lasts if not (past.is_revoked or (past.link is not None and past.link.advice))]
    changed_calls, calls_before = Counter[str](), Counter[str]()
    for past in votes:
        changed_calls.update(filter(None, [_find_changed_call(past)]))
        calls_before.update(_list_calls_between(past))
    approved = {call for past in lasts if past.is_approved for call in _list_working_calls(past)}
    best: WorkingCall | None = None
    for is_before, counts in ((False, changed_calls), (True, calls_before)):
        for call, sessions in counts.items():
            if call == failed_call or _names_other_value(call, failed, same):
                continue
            if not (call in approved or _has_worked(call, sessions, votes, by_run, is_before)):
                continue
            if best is None or sessions > best.sessions:
                fixes = frozenset(past.fix for past in lasts if past.fix and call in _list_working_calls(past))
                best = WorkingCall(failed_call, call, is_before, sessions, fixes, changes_state(call))
    return best


def _has_worked(
    call: str, sessions: int, votes: Sequence[PastFailure], by_run: dict[str, list[PastFailure]], is_before: bool
) -> bool:
    rate = MIN_SUCCESS_RATE
    if is_before:
        if any(past.link is not None and past.link.method == "retry" for past in votes):
            return False  # the same call also succeeded without it
        has_contrast = any(
            call not in _list_calls(earlier.later_steps, later.step.seq, earlier.step)
            for failures in by_run.values()
            for earlier, later in pairwise(failures)
        )
        is_named = any(_names_call(past.step, call) for past in votes)
        # A call without contrast may be a coincidence: 5 of 5 give 0.75
        rate = MIN_SUCCESS_RATE if has_contrast or is_named else 0.75
    # Sessions of the folder in which a call must have worked before it is shown, unless a person approved it
    return sessions >= 3 and wilson_lower_bound(sessions, len(votes)) >= rate


def _list_working_calls(past: PastFailure) -> list[str]:
    return [*filter(None, [_find_changed_call(past)]), *_list_calls_between(past)]


def _find_changed_call(past: PastFailure) -> str:
    """Return the call that recovered a failure with other arguments."""
    link = past.link
    if link is None or not link.changes or not past.later_steps:
        return ""
    call = _describe(past.later_steps[-1])
    return call if call != _describe(past.step) else ""


def _list_calls_between(past: PastFailure) -> list[str]:
    """Return the calls that may be why the same call succeeded."""
    link = past.link
    if link is None or link.changes or link.method == "retry":
        return []
    if past.step.failure is not None and past.step.failure.kind.prepared_by == "edit":
        return []  # another fault in the code each time
    return _list_calls(past.later_steps[:-1], link.recovering_call, past.step)


def _list_calls(steps: Sequence[Step], before: int, failed: Step) -> list[str]:
    needs_reread = failed.failure is not None and failed.failure.kind.needs_reread
    # Calls between a failure and its recovery that may be its cause, the last ones
    calls = [
        _describe(step)
        for step in steps[-20:]
        if step.outcome == "success"
        and failed.seq < step.seq < before
        # Calls that read cause nothing, unless the tool demands it.
        and (not is_read_only(step) or (needs_reread and describe_call(step) == describe_call(failed)))
    ]
    return list(dict.fromkeys(filter(None, calls)))


def _describe(step: Step) -> str:
    """Return a call in words; empty for a command of several lines, of which the first does not say what was done."""
    call = describe_call(step)
    if not call or step.name.casefold() not in SHELL_TOOLS:
        return f"{step.name}({call})" if call else ""
    return call if isinstance(step.arguments, Mapping) and "\n" not in find_command(step.arguments).strip() else ""


def _find_quoted_names(step: Step) -> set[str]:
    """Return the names that an error quotes, such as that of a package. A fingerprint is the same without them."""
    return set(_QUOTED_NAME.findall(step.failure.message)) if step.failure is not None else set()


def _names_other_value(call: str, failed: Step, past_failures: Sequence[PastFailure]) -> bool:
    """Return whether a call has a word of the earlier errors that neither this error nor its command has."""
    here = f"{_error_text(failed)}\n{describe_call(failed)}"
    # Shorter words are options and parts of sentences.
    words = {word for word in _WORD.findall(call) if len(word) >= 3 and word not in here}
    return any(word in _error_text(past.step) for word in words for past in past_failures)


def _error_text(step: Step) -> str:
    return f"{step.failure.message}\n{step.failure.detail}" if step.failure is not None else ""


def _names_call(failed: Step, call: str) -> bool:
    """Return whether an error demands a call: by its script, by its program and first word, or to read the file."""
    assert failed.failure is not None
    if failed.failure.kind.needs_reread:
        return True
    text, words = _error_text(failed), call.split()
    return any(word in text for word in words if "." in word.strip("./")) or " ".join(words[:2]) in text
