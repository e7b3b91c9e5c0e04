"""Cases of mulligan's help: failures and runs in which help was given, and those from which it was held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from mulligan.contract.counters import find_repeated_calls
from mulligan.contract.store import RunQuery, Store
from mulligan.core.calls import group_attempts
from mulligan.core.episodes import FailureEpisode, list_episodes
from mulligan.core.holdout import REMINDER, REPAIR
from mulligan.core.records import ANY_FIX, History
from mulligan.core.run_links import derive_status

Help = Literal["fix", "reminder", "repair"]
HELP_NAMES: dict[Help, str] = {"fix": "learned fixes", "repair": "repairs", "reminder": "reminders"}


class ImpactCase(NamedTuple):
    """One case in which help was given or held out, and how it ended."""

    help: Help
    subject: str
    """The id of the fix, or the tool of the repair."""
    has_help: bool
    cluster: str
    started_at: int
    has_ended_well: bool
    is_recovered: bool = False
    model_attempts: int = 0
    seconds: float = 0.0
    tokens: int = 0
    cost_nanos: int | None = None
    repeats: int = 0
    """Failures that had occurred before a compaction."""
    compactions: int = 0


def read_runs(store: Store, tenant: str, query: RunQuery) -> list[History]:
    """Read the runs from which cases come: those with a failed tool call, and all if reminders were held out."""
    histories = store.runs(tenant, msgspec.structs.replace(query, kind="tool/"))
    if any(record.fix == REMINDER and record.held_out for history in histories for record in history.run.advice):
        histories = store.runs(tenant, query)
    return list(histories)


def collect_cases(histories: Iterable[History]) -> list[ImpactCase]:
    """Return the cases of ended runs that can be compared."""
    ended = [history for history in histories if history.run.end_reason is not None]
    return leave_out_earlier([case for history in ended for case in _iter_cases(history)])


def leave_out_earlier(cases: Sequence[ImpactCase]) -> list[ImpactCase]:
    """Leave out cases of help that was never held out, or not yet."""
    first_held_out: dict[tuple[Help, str], int] = {}
    for case in cases:
        if not case.has_help:
            key = case.help, case.subject
            first_held_out[key] = min(case.started_at, first_held_out.get(key, case.started_at))
    return [case for case in cases if case.started_at >= first_held_out.get((case.help, case.subject), 2**63)]


def _iter_cases(history: History) -> Iterator[ImpactCase]:
    run = history.run
    status = derive_status(run, history.steps, history.links)
    facts: dict[str, Any] = {
        "cluster": run.session or run.id,
        "started_at": run.started_at,
        "has_ended_well": status in ("success", "recovered"),
    }
    for record in run.advice:
        if record.fix == REMINDER:
            run_calls = group_attempts(history.steps)
            repeats = len(find_repeated_calls(history, run_calls))
            compactions = max(1, len(history.compactions))
            counts: dict[str, Any] = {"repeats": repeats, "compactions": compactions}
            yield ImpactCase("reminder", REMINDER, not record.held_out, **facts, **counts)
    for episode in list_episodes(history):
        ending = facts | {
            "is_recovered": episode.is_recovered,
            "model_attempts": episode.model_attempts,
            "seconds": episode.seconds,
            "tokens": episode.tokens,
            "cost_nanos": episode.cost_nanos,
        }
        for fixes, has_help in ((episode.fixes, True), (episode.held_out_fixes, False)):
            for fix in fixes:
                if fix not in (ANY_FIX, REPAIR):
                    yield ImpactCase("fix", fix, has_help, **ending)
        if REPAIR in episode.held_out_fixes:
            yield ImpactCase("repair", episode.tool, False, **ending)
        elif _was_repaired(history, episode):
            yield ImpactCase("repair", episode.tool, True, **ending)


def _was_repaired(history: History, episode: FailureEpisode) -> bool:
    return any(
        step.call in episode.calls and step.recovery is not None and bool(step.recovery.changes)
        for step in history.steps
    )
