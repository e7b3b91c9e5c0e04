"""Text rendering of runs.

Untrusted text is sanitized, because terminals execute escape sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from mulligan.contract.counters import model_of, sum_usage
from mulligan.contract.run_facts import RUN_FACTS, compute_facts
from mulligan.contract.store import Store, TrialReport
from mulligan.core import calls
from mulligan.core.episodes import find_causes, list_episodes
from mulligan.core.holdout import REMINDER, is_lesson_id
from mulligan.core.records import EndReason, Fix, History, Link, Status, Step, to_builtins
from mulligan.core.run_links import derive_status
from mulligan.report import call_text, stats
from mulligan.report.call_text import CUT_OFF
from mulligan.report.memory_text import MAX_SHOWN_TRIALS, describe_advice
from mulligan.report.recovery_costs import describe_episodes
from mulligan.report.tables import (
    format_age,
    format_count,
    format_duration,
    format_timestamp,
    render_pairs,
    to_line,
    wrap_text,
)

MAX_LISTED_CALLS = 40
"""In a longer run, successful calls are counted and not listed."""
_NO_FACTS: Mapping[int, Sequence[str]] = {}
_NO_ACTIONS: Mapping[str, str] = {}


def to_facts(history: History) -> dict[str, Any]:
    """Return the fields of a run for lists, CSV and JSON."""
    run, facts = history.run, compute_facts(history)
    return {
        "id": run.id,
        "status": status_of(history),
        "running": run.end_reason is None,
        **{name: getattr(run, name) for name in ("end_reason", "agent", "version", "environment")},
        "calls": len(_group_calls(history)),
        "started_at": run.started_at,
        "worst": _worst_failure(history),
        "suspected": len(list_suspected(history)),
        **{fact.field: facts[name] / fact.scale if fact.unit else facts[name] for name, fact in RUN_FACTS.items()},
        **({} if run.ended_at is not None else {"duration_seconds": None}),
        "models": " ".join(sorted({model_of(run, step) for step in history.steps} - {""})),
        **_to_usage_facts(history),
    }


def to_summary(history: History, facts: Mapping[int, Sequence[str]] = _NO_FACTS) -> dict[str, Any]:
    """Return the JSON summary of a run with the outcome of each call. `facts` are sentences by the id of a call.

    Commands print it with `--json`. Its `calls` is a list since 0.1.0 and a number in `to_facts`, the row of CSV and
    API, so neither can replace the other.
    """
    run = history.run
    links = history.links_by_call
    causes = find_causes(history)
    return {
        "id": run.id,
        "status": status_of(history),
        **{name: getattr(run, name) for name in ("agent", "started_at", "ended_at", "end_reason")},
        **_to_usage_facts(history),
        "calls": [
            {
                "number": number,
                "call": call.id,
                "name": call.name,
                "type": call.first.type,
                "attempts": len(call.steps),
                "outcome": CUT_OFF if call.id in run.cut_off else call.outcome_label,
                "kind": str(call.failure.kind) if call.failure else None,
                "recovered": call.is_recovered(links.get(call.id)) if call.has_failed else None,
                "stop_reason": call.last.stop.reason if call.last.stop else None,
                **({"cause": to_builtins(causes[call.id])} if call.id in causes else {}),
                **({"suspected": str(call.last.suspected.kind)} if call.last.suspected else {}),
                **({"facts": list(facts[call.id])} if call.id in facts else {}),
            }
            for number, call in enumerate(_group_calls(history), start=1)
        ],
        "episodes": to_builtins(list_episodes(history)),
    }


def _to_usage_facts(history: History) -> dict[str, Any]:
    usage = sum_usage(history.steps)
    return {"tokens": usage.tokens, "recovery_tokens": usage.recovery_tokens, **stats.to_cost_facts(usage)}


def _group_calls(history: History) -> list[calls.Call]:
    """Return the calls of a run, without the failure of the run itself and requests to the reflector."""
    return [call for call in calls.group_attempts(history.steps) if call.first.type not in ("run", "reflection")]


def list_suspected(history: History) -> list[Step]:
    """Return the attempts that succeeded with a result that looks like a failure."""
    return [step for step in history.steps if step.suspected is not None]


def status_of(history: History) -> Status | None:
    """Return the status of a run, or `None` before its end."""
    return derive_status(history.run, history.steps, history.links) if history.run.end_reason else None


def format_status(status: Status | None, end: EndReason | None) -> str:
    """Format the status of a run; `running` if it has none yet."""
    return f"{status or 'running'}{', abandoned' if end == 'abandoned' else ''}"


def _worst_failure(history: History) -> str | None:
    """Describe the failure to look at first: an unrecovered one, of these one that may have had an effect.

    If there is none, describe the first call that was cut off, or the first suspected failure.
    """
    links = history.links_by_call
    failed_calls = [call for call in calls.group_attempts(history.steps) if call.has_failed]

    def order(call: calls.Call) -> tuple[bool, bool]:
        failure, effects = call.failure, call.last.effects
        has_unknown_effect = failure is not None and failure.has_unknown_outcome and effects == "once"
        return call.is_recovered(links.get(call.id)), not has_unknown_effect

    worst = min(failed_calls, key=order, default=None)
    if history.run.cut_off and (worst is None or order(worst)[0]):
        names = (step.name for step in history.steps if step.seq in history.run.cut_off)
        return f"{next(names, '') or 'a step'} {CUT_OFF}"
    if worst is None and (suspected := next(iter(list_suspected(history)), None)) is not None:
        assert suspected.suspected is not None
        return f"suspected {suspected.suspected.kind} in {suspected.name}"
    if worst is None or worst.failure is None:
        return None
    kind = str(worst.failure.kind)
    return f"{kind} in {worst.name}" if worst.name else kind  # the failure of a run without an agent has no name


def render_run(
    history: History,
    now: int,
    width: int | None = None,
    is_full: bool = False,
    facts: Mapping[int, Sequence[str]] = _NO_FACTS,
    actions: Mapping[str, str] = _NO_ACTIONS,
) -> Iterator[str]:
    """Render one run: result, details and every attempt of every call.

    Long values are cut, and successful calls of a long run are counted, unless `is_full`. `facts` are sentences about
    successful calls, by the id of the failed call that they explain; `actions` describe learned fixes by id.
    """
    run, run_calls = history.run, _group_calls(history)
    link_by_call = history.links_by_call
    status = format_status(status_of(history), run.end_reason)
    yield from wrap_text(f"{run.id} {status}: {_describe_result(run_calls, link_by_call, history)}", width, "")
    yield ""
    yield from render_pairs(_detail_rows(history, run_calls, now), width)
    # Numbered consecutively: call ids are the step numbers of first attempts and have gaps.
    numbers = {call.id: number for number, call in enumerate(run_calls, start=1)}
    recovering_ids = {link.recovering_call for link in history.links}
    notes = describe_episodes(history)
    for id, sentences in describe_advice(run, actions).items():
        notes.setdefault(id, []).extend(sentences)
    renderer = call_text.CallRenderer(run.started_at, numbers, width, is_full, run.cut_off, notes)
    should_count = not is_full and len(run_calls) > MAX_LISTED_CALLS
    was_detailed = True

    def is_counted(call: calls.Call) -> bool:
        return should_count and call.has_succeeded and not call.has_failed and call.id not in recovering_ids

    for counts, group in groupby(calls.group_attempts(history.steps), is_counted):
        if counts:
            yield ""
            yield renderer.render_count(list(group))
            was_detailed = True
            continue
        for call in group:
            lines = list(renderer.render_call(call, link_by_call.get(call.id), facts.get(call.id, ())))
            if was_detailed or len(lines) > 1:  # calls of one line form a table
                yield ""
            yield from lines
            was_detailed = len(lines) > 1


def _describe_result(run_calls: list[calls.Call], link_by_call: dict[int, Link], history: History) -> str:
    failed_calls = [call for call in run_calls if call.has_failed]
    recovered_count = sum(call.is_recovered(link_by_call.get(call.id)) for call in failed_calls)
    backoff_seconds = sum(call.backoff_seconds for call in run_calls)
    attempt_count = sum(not step.is_skipped for call in run_calls for step in call.steps)
    text = f"{format_count(len(run_calls), 'call')} in {format_count(attempt_count, 'attempt')}"
    if failed_calls:
        text += f", {recovered_count} of {len(failed_calls)} failed calls recovered"
    if history.run.cut_off:
        text += f", {format_count(len(history.run.cut_off), 'call')} {CUT_OFF}"
    if suspected := list_suspected(history):
        text += f", {format_count(len(suspected), 'suspected failure')}"
    return f"{text}, {format_duration(backoff_seconds)} backoff." if backoff_seconds else f"{text}."


def _detail_rows(history: History, run_calls: list[calls.Call], now: int) -> Iterator[tuple[str, str]]:
    run = history.run
    yield "agent", to_line(run.agent or "-")
    for name in ("version", "environment", "session", "context", "parent", "traceparent"):
        if value := getattr(run, name):
            yield "trace" if name == "traceparent" else name, to_line(value)
    if run.metadata:
        yield "metadata", call_text.format_arguments(run.metadata, call_text.MAX_VALUE_CHARS)
    for record in run.advice:
        if record.fix == REMINDER:
            yield "reminder", "not told: held out, to measure its effect" if record.held_out else "told"
        if is_lesson_id(record.fix):
            label = "not shown: held out, to measure its effect" if record.held_out else "shown"
            yield "lesson", f"{to_line(record.fix, 40)} {label}"
    lasted = f", lasted {format_duration((run.ended_at - run.started_at) / 1000)}" if run.ended_at else ""
    yield "started", f"{format_timestamp(run.started_at)} UTC ({format_age(run.started_at, now)}){lasted}"
    steps = [step for step in history.steps if step.type != "run"]
    usage = sum_usage(steps)
    if tokens := call_text.format_tokens(steps):
        yield "tokens", tokens
    if cost := call_text.format_cost(steps):
        yield "cost", cost
    planning_seconds = sum(call.planning_seconds for call in run_calls)
    retry_seconds = sum(call.recovery_seconds - call.backoff_seconds for call in run_calls) - planning_seconds
    if retry_seconds or usage.recovery_tokens:
        backoff = format_duration(sum(call.backoff_seconds for call in run_calls))
        planning = f", planning {format_duration(planning_seconds)}" if planning_seconds else ""
        attempts = f"further attempts {format_duration(retry_seconds)}{planning}{stats.format_recovery_usage(usage)}"
        yield "cost of recovery", f"backoff {backoff}, {attempts}"
    if usage.avoided_turns:
        yield "cost avoided", stats.format_avoided(usage)


# Evidence of recovery links


def explain_trials(store: Store, tenant: str, fix: Fix, trials: Iterable[TrialReport]) -> dict[str, str]:
    """Return the evidence of the links behind a fix, by run. Only the latest runs are read."""
    reasons: dict[str, str] = {}
    for trial in islice(trials, MAX_SHOWN_TRIALS):
        history = store.run(tenant, trial.run)
        if history is not None and (links := _links_of(history, fix)):
            reasons[trial.run] = "; ".join(dict.fromkeys(map(call_text.describe_evidence, links)))
    return reasons


def _links_of(history: History, fix: Fix) -> list[Link]:
    """Return the links whose failed call has the tool and fingerprint of a fix."""
    failed_calls = {
        call.id
        for call in calls.group_attempts(history.steps)
        if call.name == fix.tool
        and any(step.failure is not None and step.failure.fingerprint == fix.fingerprint for step in call.steps)
    }
    return [link for link in history.links if link.failed_call in failed_calls]
