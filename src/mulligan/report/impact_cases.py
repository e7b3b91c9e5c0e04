"""Cases of mulligan's help: failures and runs in which help was given, and those from which it was held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import msgspec

from mulligan.contract.counters import find_repeated_calls
from mulligan.contract.store import RunQuery, Store
from mulligan.core.calls import Call, group_attempts
from mulligan.core.episodes import EpisodesByRun, FailureEpisode
from mulligan.core.holdout import REMINDER, REPAIR, is_lesson_id
from mulligan.core.records import ANY_FIX, History, Lesson
from mulligan.core.run_links import derive_status

Help = Literal["fix", "lesson", "reminder", "repair"]
HELP_NAMES: dict[Help, str] = {
    "fix": "learned fixes",
    "lesson": "lessons",
    "repair": "repairs",
    "reminder": "reminders",
}


class ImpactCase(NamedTuple):
    """One case in which help was given or held out, and how it ended."""

    help: Help
    subject: str
    """The id of the fix or the lesson, or the tool of the repair."""
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
    """Failures that had occurred before a compaction, or that the lesson is about."""
    compactions: int = 0


def read_runs(store: Store, tenant: str, query: RunQuery) -> tuple[list[History], bool]:
    """Read the runs from which cases come: those with a failed tool call; all if reminders or lessons were held out.

    Also return whether they are only those with a failed tool call.
    """
    histories = store.runs(tenant, msgspec.structs.replace(query, kind="tool/"))
    records = [record for history in histories for record in history.run.advice if record.held_out]
    needs_all = any(record.fix == REMINDER or is_lesson_id(record.fix) for record in records)
    return list(store.runs(tenant, query) if needs_all else histories), not needs_all


def read_lessons(store: Store, tenant: str, histories: Iterable[History], now: int) -> dict[str, Lesson]:
    """Return the lessons that were shown in these runs or held out from them, by id."""
    ids = {record.fix for history in histories for record in history.run.advice if is_lesson_id(record.fix)}
    return {id: lesson for id in sorted(ids) if (lesson := store.lesson(tenant, id, now)) is not None}


def collect_cases(
    histories: Iterable[History], episodes: EpisodesByRun, lessons: Mapping[str, Lesson] = {}
) -> list[ImpactCase]:
    """Return the cases of ended runs that can be compared. A lesson that no longer exists has none."""
    ended = [history for history in histories if history.run.end_reason is not None]
    undecided_fixes = find_undecided_fixes(episodes)
    cases = [case for history in ended for case in _iter_cases(history, episodes[history.run.id], lessons)]
    return leave_out_earlier([case for case in cases if case.subject not in undecided_fixes])


def find_undecided_fixes(episodes: EpisodesByRun) -> set[str]:
    """Return the fixes, by id, that rarely have a proven recovery, with or without them: more often a possible one."""
    balance: Counter[str] = Counter()
    for episode in chain.from_iterable(episodes.values()):
        for fix in (*episode.fixes, *episode.held_out_fixes):
            balance[fix] += episode.is_undecided - episode.is_recovered
    return {fix for fix, count in balance.items() if count > 0 and fix not in (ANY_FIX, REPAIR)}


def leave_out_earlier(cases: Sequence[ImpactCase]) -> list[ImpactCase]:
    """Leave out cases of help that was never held out, or not yet."""
    first_held_out: dict[tuple[Help, str], int] = {}
    for case in cases:
        if not case.has_help:
            key = case.help, case.subject
            first_held_out[key] = min(case.started_at, first_held_out.get(key, case.started_at))
    return [case for case in cases if case.started_at >= first_held_out.get((case.help, case.subject), 2**63)]


def _iter_cases(
    history: History, episodes: Iterable[FailureEpisode], lessons: Mapping[str, Lesson]
) -> Iterator[ImpactCase]:
    run = history.run
    repaired_calls = {step.call for step in history.steps if step.recovery is not None and step.recovery.changes}
    if not (run.advice or repaired_calls):
        return
    status = derive_status(run, history.steps, history.links)
    facts: dict[str, Any] = {
        "cluster": run.session or run.id,
        "started_at": run.started_at,
        "has_ended_well": status in ("success", "recovered"),
    }
    run_calls = group_attempts(history.steps) if any(not record.call for record in run.advice) else []
    for record in run.advice:
        if (lesson := lessons.get(record.fix)) is not None:
            repeats = sum(_is_about(lesson, call) for call in run_calls)
            yield ImpactCase("lesson", lesson.id, not record.held_out, **facts, repeats=repeats)
        if record.fix == REMINDER:
            repeats = len(find_repeated_calls(history, run_calls))
            compactions = max(1, len(history.compactions))
            counts: dict[str, Any] = {"repeats": repeats, "compactions": compactions}
            yield ImpactCase("reminder", REMINDER, not record.held_out, **facts, **counts)
    for episode in episodes:
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
        elif repaired_calls.intersection(episode.calls):
            yield ImpactCase("repair", episode.tool, True, **ending)


def _is_about(lesson: Lesson, call: Call) -> bool:
    """Return whether a call had the failure that a lesson warns of."""
    failures = [step.failure for step in call.steps if step.has_failed and step.failure is not None]
    return call.first.name == lesson.tool and lesson.fingerprint in [failure.fingerprint for failure in failures]
