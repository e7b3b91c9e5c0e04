"""Links and status of whole runs, from their stored steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from mulligan.core.argument_comparison import (
    FORM_OPERATIONS,
    is_long_text,
    root_of,
)
from mulligan.core.call_facts import LOGGED, PossibleCorrection
from mulligan.core.calls import TOOL_NAME_PATH, Call, group_attempts
from mulligan.core.links import CALL_EVIDENCE, STAGES, RunProgress, differs_in
from mulligan.core.records import History, Link, Run, Status, Step


def derive_status(run: Run, steps: Iterable[Step], links: Iterable[Link]) -> Status:
    calls = group_attempts(steps)
    failed = [call for call in calls if call.has_failed]
    links_by_call = {link.failed_call: link for link in links}
    return RunProgress(
        failed=len(failed),
        recovered=sum(call.is_recovered(links_by_call.get(call.id)) for call in failed),
        has_own_failure=any(call.first.type == "run" for call in failed),
        has_success=any(call.has_succeeded and call.first.type not in STAGES for call in calls),
    ).status(run)


def link_recoveries(steps: Iterable[Step], run: Run | None = None, *, is_settled: bool = False) -> list[Link]:
    """Return a link for each recovered call of a whole run, in the order of the failed calls.

    `is_settled` judges a run that has not ended.
    """
    is_final = is_settled or run is None or run.end_reason is not None
    judged_calls = judge_calls(steps, run, is_final=is_final)
    links = [link for _, call, call_links in judged_calls if call.has_succeeded for link in call_links]
    return sorted(links, key=lambda link: link.failed_call)


def find_refuted(steps: Iterable[Step]) -> tuple[int, ...]:
    """Return the calls whose provisional links are refuted by other calls of their run.

    For a run that never ended: its recording process could not store which links it withdrew.
    """
    calls = group_attempts(steps)
    others = [step for call in calls for step in call.steps]
    return tuple(
        call.id
        for call in calls
        if any(differs_in(candidate, others) for candidate in _iter_provisional_corrections(call))
        or any(link.possible for link in call.last.links)  # what supports them was not stored
    )


def _iter_provisional_corrections(call: Call) -> Iterator[PossibleCorrection]:
    intent = tuple(link.failed_call for link in call.last.links)
    for link in call.last.links if call.has_succeeded else ():
        if link.provisional and not link.possible:
            changes = [change for change in link.changes
                       if change.operation not in FORM_OPERATIONS and change.path != TOOL_NAME_PATH]  # fmt: skip
            texts = tuple(change.path for change in changes if all(map(is_long_text, (change.before, change.after))))
            paths = tuple(change.path for change in changes if change.path not in texts)
            is_caused = not CALL_EVIDENCE.isdisjoint(link.evidence)
            replaced = {root_of(change.path): change.before for change in changes}
            yield PossibleCorrection(
                call, LOGGED, paths, texts, intent, link.failed_call, (replaced,) if is_caused else ()
            )


def attach_links(history: History) -> History:
    """Store the links of a whole run in its steps, so that a store need not derive them from redacted values."""
    if any(step.links_decided for step in history.steps) or not any(step.has_failed for step in history.steps):
        return history
    last_steps = {call.id: call.last.seq for call in group_attempts(history.steps)}
    links: dict[int, list[Link]] = {}
    for link in history.links:
        if link.failed_call != link.recovering_call and link.recovering_call in last_steps:
            links.setdefault(last_steps[link.recovering_call], []).append(link)
    steps = [
        replace(step, links_decided=step.has_failed, links=tuple(links.get(step.seq, ())))
        if step.has_failed or step.seq in links
        else step
        for step in history.steps
    ]
    return replace(history, steps=tuple(steps))


def judge_calls(
    steps: Iterable[Step], run: Run | None = None, *, is_final: bool
) -> Iterator[tuple[RunProgress, Call, list[Link]]]:
    """Judge the calls of a run in order. Yield the state of the run before each call, the call and its links."""
    calls = group_attempts(steps)
    others = [step for call in calls for step in call.steps]
    withdrawn = frozenset(run.withdrawn) if run is not None else frozenset()
    progress = RunProgress()
    for call in calls:
        before = progress
        progress, links = before.after(
            call, None, lambda candidate: differs_in(candidate, others), withdrawn, is_final=is_final
        )
        yield before, call, links
