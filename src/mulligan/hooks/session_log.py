"""Recovery links in a coding agent's session, derived from its log.

A hook sees one call at a time, and most successes only by name. Whether a success corrected an earlier call depends on
all calls of the session. Without a log, only calls with equal arguments are linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mulligan.core.failure import Failure, Remedy
from mulligan.core.links import link_recoveries
from mulligan.core.records import Link, Step
from mulligan.learn.tracker import TrackedFailure

MAX_LOG_BYTES = 32 * 1024 * 1024
"""A longer log is not read: the agent waits for its hook."""


_FORMATS = {"gemini": "gemini-cli"}


def link_success(
    success: Step,
    arguments: Any,
    failures: Iterable[TrackedFailure],
    log_steps: Callable[[], Sequence[Step]],
    redact: Callable[[Step], Step],
) -> tuple[Link, ...]:
    """Return the links from remembered failures to a success of the same tool.

    `success` is redacted, `arguments` are not. `log_steps` reads the session's log.
    """
    candidates = [
        failure
        for failure in failures
        if failure.is_open and failure.step.run == success.run and failure.step.tool_key == success.tool_key
    ]
    if not candidates:
        return ()
    same = [failure for failure in candidates if failure.step.arguments == success.arguments]
    if same:
        return (_link_same(same[-1], success),)
    if not isinstance(arguments, dict):
        return ()
    link_and_step = _link_by_log(success, arguments, log_steps())
    if link_and_step is None:
        return ()
    link, failed = link_and_step
    failed_arguments = redact(failed).arguments
    match = next((failure for failure in reversed(candidates) if failure.step.arguments == failed_arguments), None)
    if match is None:
        return ()
    session_link = msgspec.structs.replace(
        link, run=success.run, failed_call=match.step.call, recovering_call=success.call, provisional=False
    )
    return redact(msgspec.structs.replace(success, links=(session_link,))).links


def _link_same(failure: TrackedFailure, success: Step) -> Link:
    cause = failure.step.failure
    needs_time = cause is not None and cause.remedy is Remedy.RETRY
    tools = () if needs_time else tuple(failure.successes_since)
    return Link(
        run=success.run,
        failed_call=failure.step.call,
        recovering_call=success.call,
        method="prerequisite" if tools else "retry",
        intermediate_tools=tools,
        evidence=("same_arguments",),
    )


def _link_by_log(success: Step, arguments: dict[str, Any], steps: Sequence[Step]) -> tuple[Link, Step] | None:
    """Link the success as the last call of the log. Return its link and the failed step."""
    is_logged = bool(steps) and steps[-1].name == success.name and steps[-1].arguments == arguments
    calls = list(steps)
    if not is_logged or calls[-1].outcome != "success":
        seq = calls[-1].seq + 1 if calls else 1
        run = calls[-1].run if calls else success.run
        last = msgspec.structs.replace(
            success, run=run, seq=seq, call=seq, arguments=arguments, links=(), key=None, started_at=0
        )
        calls = [*(calls[:-1] if is_logged else calls), last]
    by_call = {step.call: step for step in calls}
    link = next((link for link in link_recoveries(calls) if link.recovering_call == calls[-1].call), None)
    return (link, by_call[link.failed_call]) if link is not None and link.failed_call in by_call else None


def read_log(agent: str, path: str, classify: Callable[..., Failure]) -> list[Step]:
    """Read the calls of a session from its log. Return an empty list if the log is unreadable."""
    from mulligan.transcripts.formats import FORMATS  # only after a failure
    from mulligan.transcripts.log_lines import LogLines, UnreadableFileError
    from mulligan.transcripts.run_builder import ReaderState

    steps: list[Step] = []
    try:
        if not path or Path(path).stat().st_size > MAX_LOG_BYTES:
            return []
        with LogLines(Path(path)) as lines:
            for history in FORMATS[_FORMATS.get(agent, agent)].read(lines, ReaderState(classify, keeps_results=True)):
                if history.run.parent is None:  # skips the runs of subagents
                    steps = list(history.steps)
    except (UnreadableFileError, OSError, KeyError):
        return []
    return steps
