"""What recoveries cost the model: its turns, tokens, seconds and money after a failed tool call, and at which attempt
it fixed it. Derived from the latest runs with a failed tool call, because rollups do not know which turn followed what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import RunQuery, Store
from mulligan.core.episodes import EpisodesByRun, FailureCause, FailureEpisode, find_causes, list_episodes
from mulligan.core.records import History
from mulligan.report.tables import (
    Fact,
    TableColumn,
    format_count,
    format_dollars,
    format_duration,
    format_share,
    to_line,
)

MAX_FAILED_RUNS = 500
"""The latest runs with a failed tool call that are read."""
MAX_DISTINGUISHED_ATTEMPTS = 3
"""Attempts of the model that are counted apart. Later ones are counted together."""
RUN_FILTERS = ("agent", "version", "environment", "model", "since", "until")


class FailedRuns(NamedTuple):
    """The latest runs with a failed tool call, and whether these are all of the period."""

    histories: Sequence[History]
    is_complete: bool


NO_RUNS = FailedRuns((), True)


def read_failed_runs(store: Store, tenant: str, query: StatsQuery) -> FailedRuns:
    """Read the runs with a failed tool call that match a query about runs."""
    fields: dict[str, Any] = {name: getattr(query, name) for name in RUN_FILTERS}
    histories = store.runs(tenant, RunQuery(kind="tool/", limit=MAX_FAILED_RUNS, **fields))
    return FailedRuns(histories, len(histories) < MAX_FAILED_RUNS)


def count_caused_failures(histories: Iterable[History]) -> dict[str, int]:
    """Return how many failed tool calls each model requested."""
    counts: dict[str, int] = {}
    for history in histories:
        for cause in find_causes(history).values():
            counts[cause.model] = counts.get(cause.model, 0) + 1
    return counts


def add_facts(answer: dict[str, Any], runs: FailedRuns) -> None:
    """Add what recoveries cost the model to the answer of `stats`.

    Its tokens also stand beside `recovery_tokens`, which are those of mulligan's own attempts.
    """
    answer["model_recovery"] = facts = to_facts(runs)
    answer["total"]["model_recovery_tokens"] = facts["tokens"]


def to_facts(runs: FailedRuns, by_run: EpisodesByRun | None = None) -> dict[str, Any]:
    """Return what the recoveries of these runs cost the model, in total, by kind, by cause and by what it was told.

    `by_run` has the episodes of the runs, if they are known.
    """
    if by_run is None:
        by_run = {history.run.id: list_episodes(history) for history in runs.histories}
    episodes = [(history, episode) for history in runs.histories for episode in by_run[history.run.id]]
    groups: dict[str, Callable[[FailureEpisode], Mapping[str, str]]] = {
        "by_kind": lambda episode: {"kind": episode.kind},
        "by_cause": _cause_facts,
        "by_advice": lambda episode: {"advice": describe_advice(episode)},
    }
    facts: dict[str, Any] = {"runs": len(runs.histories), "complete": runs.is_complete, **_sum_up(episodes)}
    for name, key_of in groups.items():
        parts: dict[tuple[str, ...], list[tuple[History, FailureEpisode]]] = {}
        for history, episode in episodes:
            parts.setdefault(tuple(key_of(episode).values()), []).append((history, episode))
        rows = [{**key_of(part[0][1]), **_sum_up(part)} for part in parts.values()]
        facts[name] = sorted(rows, key=lambda row: -row["failures"])
    return facts


def describe_advice(episode: FailureEpisode) -> str:
    return "fixes" if episode.fixes else "held out" if episode.held_out_fixes else "none"


def _cause_facts(episode: FailureEpisode) -> dict[str, str]:
    cause = episode.cause
    if cause is None:
        cause = FailureCause(model="")
    return {"model": cause.model, "model_version": cause.version, "prompt_version": cause.prompt_version}


def _sum_up(episodes: Sequence[tuple[History, FailureEpisode]]) -> dict[str, Any]:
    """Sum up episodes. A turn that followed two failures is counted once."""
    turns = {(episode.run, turn) for _, episode in episodes for turn in episode.turns}
    histories = {history.run.id: history for history, episode in episodes if episode.turns}
    steps = [step for run, history in histories.items() for step in history.steps if (run, step.seq) in turns]
    costs = [step.cost_nanos for step in steps if step.cost_nanos is not None]
    by_mulligan = sum(episode.by_mulligan for _, episode in episodes)
    open_episodes = [episode for _, episode in episodes if not (episode.by_mulligan or episode.by_program)]
    fixed = [episode for episode in open_episodes if episode.is_recovered]
    by_attempt = {str(number): 0 for number in range(1, MAX_DISTINGUISHED_ATTEMPTS + 1)} | {"later": 0}
    for episode in fixed:
        number = episode.model_attempts
        by_attempt[str(number) if number <= MAX_DISTINGUISHED_ATTEMPTS else "later"] += 1
    return {
        "failures": len(episodes),
        "recovered_by_mulligan": by_mulligan,
        "recovered_by_program": len(episodes) - len(open_episodes) - by_mulligan,
        "recovered_by_model": len(fixed),
        "unrecovered": len(open_episodes) - len(fixed),
        "by_attempt": by_attempt,
        "turns": len(turns),
        "tokens": sum(step.token_count for step in steps),
        "cost_usd": sum(costs) / 1e9 if costs else None,
        "median_seconds": round(sorted(episode.seconds for episode in fixed)[len(fixed) // 2], 6) if fixed else None,
    }


def render_summary(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text: which failures the model fixed at which attempt, and what that cost."""
    open_count = facts["recovered_by_model"] + facts["unrecovered"]
    if not open_count:
        return
    sample = "" if facts["complete"] else f", of the latest {format_count(facts['runs'], 'run')} with failures"
    first = format_share(facts["by_attempt"]["1"], open_count)
    yield (
        "fixed by the model",
        f"{format_share(facts['recovered_by_model'], open_count)} "
        f"({facts['recovered_by_model']:,} of {open_count:,} left to it), {first} at its first attempt{sample}",
    )
    if facts["turns"]:
        yield "cost to the model", format_cost(facts)


def format_cost(facts: Mapping[str, Any]) -> str:
    """Format turns, tokens and money of the model, and the median time of its fixes."""
    cost = "cost unknown" if facts["cost_usd"] is None else format_dollars(round(facts["cost_usd"] * 1e9))
    seconds = facts["median_seconds"]
    duration = f", median {format_duration(seconds)} to the fix" if seconds is not None else ""
    return f"{format_count(facts['turns'], 'turn')}, {format_count(facts['tokens'], 'token')}, {cost}{duration}"


def _attempt_column(title: str, name: str) -> TableColumn:
    def format_rate(fact: Fact) -> str:
        open_count = fact["recovered_by_model"] + fact["unrecovered"]
        return format_share(fact["by_attempt"][name], open_count) if open_count else "-"

    return TableColumn(title, format_rate, True, 7)


KIND_COLUMNS = (
    TableColumn("kind", lambda fact: to_line(fact["kind"], 60), priority=9),
    TableColumn("left to the model", lambda fact: f"{fact['recovered_by_model'] + fact['unrecovered']:,}", True, 9),
    _attempt_column("first attempt", "1"),
    _attempt_column("second", "2"),
    _attempt_column("third", "3"),
    TableColumn("unrecovered", lambda fact: f"{fact['unrecovered']:,}", True, 8),
    TableColumn("turns", lambda fact: f"{fact['turns']:,}", True, 6),
    TableColumn("tokens", lambda fact: f"{fact['tokens']:,}", True, 5),
)
ADVICE_COLUMNS = (TableColumn("advice", lambda fact: str(fact["advice"]), priority=9), *KIND_COLUMNS[1:])


def describe_episode(episode: FailureEpisode) -> str:
    """Return one sentence about the end of an episode and its cost; empty if nothing came after it."""
    if episode.by_mulligan or episode.by_program:
        return ""
    costs = [format_count(len(episode.turns), "model turn")] if episode.turns else []
    costs += [format_count(episode.tokens, "token")] if episode.tokens else []
    costs += [format_dollars(episode.cost_nanos)] if episode.cost_nanos else []
    if episode.is_recovered:
        costs.append(format_duration(episode.seconds))
        attempts = {1: "first", 2: "second", 3: "third"}.get(episode.model_attempts, f"{episode.model_attempts}th")
        return f"recovered by the {attempts} later call: {', '.join(costs)}"
    return f"unrecovered, after {', '.join(costs)}" if costs else ""


def describe_episodes(history: History) -> dict[int, list[str]]:
    """Return which model requested each failed call, and what its recovery cost, by call."""
    notes: dict[int, list[str]] = {}
    for call, cause in find_causes(history).items():
        turn = f" in step {cause.turn}" if cause.turn is not None else ""
        prompt = f", prompt {to_line(cause.prompt_version, 40)}" if cause.prompt_version else ""
        version = f" ({to_line(cause.version, 60)})" if cause.version else ""
        notes[call] = [f"requested by {to_line(cause.model, 60)}{version}{turn}{prompt}"]
    for episode in list_episodes(history):
        if sentence := describe_episode(episode):
            notes.setdefault(episode.calls[0], []).append(sentence)
    return notes
