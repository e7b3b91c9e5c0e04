"""What mulligan's help is worth: cases with help compared with cases from which it was held out.

A case is one failure episode with one fix, one episode that a repair was possible for, or one run of a session with a
reminder. Whether it is held out depends on ids alone, so both groups differ by chance and by the help. Runs are the
clusters, or sessions where runs have one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import msgspec

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, FixQuery, RunQuery, Store
from mulligan.core.episodes import EpisodesByRun, list_episodes
from mulligan.core.holdout import MIN_FOLLOWED_RUNS, REPAIR
from mulligan.core.records import ANY_FIX, Fix, History
from mulligan.report import memory_text, recovery_costs
from mulligan.report.differences import (
    ERROR_RATE,
    GroupDifference,
    Rate,
    cases_for_power,
    compare_amounts,
    compare_rates,
    design_effects,
    error_of_look,
)
from mulligan.report.impact_cases import (
    HELP_NAMES,
    Help,
    ImpactCase,
    collect_cases,
    find_undecided_fixes,
    read_lessons,
    read_runs,
)
from mulligan.report.stats import format_points, percentile_summary
from mulligan.report.tables import format_count, format_dollars, format_duration, format_share, to_line

MAX_IMPACT_RUNS = 5000
"""The latest runs that are read."""
MIN_CASES = 10
"""Cases that each group needs for a verdict."""
EXPECTED_EFFECT = 0.2
"""The difference of rates for which the number of missing cases is computed."""
MAX_CONTRIBUTIONS = 50
MAX_FIXES = 1000
CURVE_DAYS = 30
CONTRIBUTIONS_ERROR = ERROR_RATE / 2
MAIN_OUTCOMES_ERROR = OTHER_OUTCOMES_ERROR = ERROR_RATE / 4
"""The permitted error is divided among the list of what contributed, the outcomes that decide the conclusion, and the
other outcomes."""


# Comparison


class ImpactRow(NamedTuple):
    """One outcome with help and without it."""

    name: str
    help: Help
    subject: str
    """The fix or lesson by id, or the tool of repairs; empty in the summary."""
    with_help: str
    without_help: str
    cases: int
    """Cases with help, and without it."""
    held_out_cases: int
    verdict: Literal["better", "worse", "no clear difference", "too few cases"]
    effect: str = ""
    """The difference with its interval, in words."""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    """The difference in percentage points, or in percent for amounts."""


class _Outcome(NamedTuple):
    """One way to measure cases: a rate, or an amount of recovered cases."""

    name: str
    is_higher_better: bool
    measure: Callable[[ImpactCase], float | None]
    unit: float = 0.0
    """The smallest amount that matters; 0 for a rate."""
    format: Callable[[float], str] = str


def _recovered(measure: Callable[[ImpactCase], float | None]) -> Callable[[ImpactCase], float | None]:
    return lambda case: measure(case) if case.is_recovered else None


_RECOVERED = _Outcome("failures recovered", True, lambda case: case.is_recovered)
_ENDED_WELL = _Outcome("runs that ended well", True, lambda case: case.has_ended_well)
_AMOUNTS = (
    _Outcome("time per recovery", False, _recovered(lambda case: case.seconds), 0.001, format_duration),
    _Outcome("tokens per recovery", False, _recovered(lambda case: case.tokens), 1, lambda tokens: f"{tokens:,.0f}"),
    _Outcome(
        "cost per recovery", False, _recovered(lambda case: case.cost_nanos), 1000,
        lambda nanos: format_dollars(round(nanos)),
    ),
)  # fmt: skip
OUTCOMES: dict[Help, tuple[_Outcome, ...]] = {
    "fix": (
        _RECOVERED,
        _Outcome("fixed at the first attempt", True, lambda case: case.is_recovered and case.model_attempts <= 1),
        _ENDED_WELL,
        *_AMOUNTS,
    ),
    "lesson": (_Outcome("runs without the failure", True, lambda case: not case.repeats), _ENDED_WELL),
    "repair": (_RECOVERED, _ENDED_WELL, *_AMOUNTS),
    "reminder": (
        _ENDED_WELL,
        _Outcome(
            "repeated failures per compaction", False,
            lambda case: case.repeats / case.compactions, 0.1, lambda count: f"{count:.2f}",
        ),
    ),
}  # fmt: skip
"""Outcomes by help. The first one decides the conclusion, and the order of what contributed."""
_MAIN_OUTCOME_WORDS: dict[Help, tuple[str, str]] = {
    "fix": ("of failures recovered", "sessions with such failures"),
    "lesson": ("of runs did not have the failure", "sessions with lessons"),
    "repair": ("of failures recovered", "sessions with such failures"),
    "reminder": ("of runs ended well", "sessions with reminders"),
}
"""Words of the conclusion: the first outcome after its share, and where cases come from."""
MAX_NAMED_HARMS = 3
"""Harmful fixes and lessons that the conclusion names. All are in the list of what contributed."""


class _Measurement(NamedTuple):
    """One outcome of cases, by cluster: of the held-out cases, and of those with help."""

    outcome: _Outcome
    first_case: ImpactCase
    held_out_cases: int
    cases: int
    clusters: tuple[list[list[float]], list[list[float]]]

    @property
    def values(self) -> tuple[list[float], list[float]]:
        first, second = (list(chain.from_iterable(group)) for group in self.clusters)
        return first, second

    @property
    def has_enough_cases(self) -> bool:
        return min(map(len, self.values)) >= MIN_CASES

    @property
    def can_differ(self) -> bool:
        """Whether the outcome could be called different: enough cases of both groups, which are not all equal."""
        return self.has_enough_cases and len(set(chain(*self.values))) > 1

    @property
    def rates(self) -> tuple[Rate, Rate]:
        counts = [[(int(sum(values)), len(values)) for values in group] for group in self.clusters]
        effects = design_effects(*counts)
        first, second = (
            Rate(sum(part for part, _ in group), sum(total for _, total in group), effect)
            for group, effect in zip(counts, effects, strict=True)
        )
        return first, second

    def compare(self, error: float) -> GroupDifference | None:
        """Return the difference of help; None if there are too few cases to tell."""
        if not self.has_enough_cases:
            return None
        if self.outcome.unit:
            first, second = self.clusters
            return compare_amounts(first, second, self.outcome.unit, error_of_look(error, len(first), len(second)))
        rates = self.rates
        return compare_rates(*rates, error_of_look(error, *(rate.effective_total for rate in rates)))


def _measure(cases: Sequence[ImpactCase], outcome: _Outcome) -> _Measurement:
    groups: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    for case in cases:
        if (value := outcome.measure(case)) is not None:
            groups[case.has_help].setdefault(case.cluster, []).append(value)
    with_help = sum(case.has_help for case in cases)
    clusters = list(groups[False].values()), list(groups[True].values())
    return _Measurement(outcome, cases[0], len(cases) - with_help, with_help, clusters)


def _build_row(measurement: _Measurement, name: str, error: float, subject: str = "") -> ImpactRow:
    outcome, first = measurement.outcome, measurement.first_case
    without_help, with_help = (_describe(values, outcome) for values in measurement.values)
    counts = measurement.cases, measurement.held_out_cases
    row = ImpactRow(name, first.help, subject, with_help, without_help, *counts, verdict="too few cases")
    difference = measurement.compare(error)
    if difference is None:
        return row
    effect = (
        "{:+.0f} % ({:+.0f} to {:+.0f})".format(*(100 * share for share in difference))
        if outcome.unit
        else format_points(difference)
    )
    verdict: Literal["better", "worse", "no clear difference"] = "no clear difference"
    if difference.is_clear:
        verdict = "better" if (difference.estimate > 0) is outcome.is_higher_better else "worse"
    estimate, low, high = (round(100 * share, 2) for share in difference)
    return row._replace(verdict=verdict, effect=effect, estimate=estimate, low=low, high=high)


def _describe(values: list[float], outcome: _Outcome) -> str:
    if not values:
        return "-"
    return (
        outcome.format(sorted(values)[len(values) // 2])
        if outcome.unit
        else format_share(int(sum(values)), len(values))
    )


IMPACT_NOTE = (
    "With 95 % confidence, all intervals of this page hold together, also if you look every day. Amounts are medians; "
    "their differences are those of geometric means."
)


class ImpactReport(NamedTuple):
    conclusion: str
    summary: list[ImpactRow]
    contributions: list[ImpactRow]
    """What contributed, the most certainly harmful first."""
    incomparable: list[str]
    """What cannot be compared, and why."""
    runs: int
    """The runs that were read."""
    failed_runs_only: bool
    """Whether only runs with a failed tool call were read: all are if lessons or reminders were held out."""
    is_complete: bool
    """Whether all runs of the period were read."""
    model_recovery: dict[str, Any]
    """At which attempt the model fixed failures, by kind and by what it had read, and what that cost."""
    curve: list[dict[str, Any]]
    """Failed and recovered calls of each of the last 30 days, with the median time to recovery."""

    @property
    def sentences(self) -> list[str]:
        """The sentences of the conclusion."""
        return re.split(r"(?<=\.) (?=[A-Z])", self.conclusion)


def analyze(cases: Sequence[ImpactCase], names: Mapping[str, str] = {}) -> tuple[list[ImpactRow], list[ImpactRow], str]:
    """Compare cases. Return the rows of the summary, those of what contributed, and the conclusion.

    `names` describe fixes and lessons by id.
    """
    by_help: dict[Help, list[ImpactCase]] = {help: [] for help in HELP_NAMES}
    by_subject: dict[tuple[Help, str], list[ImpactCase]] = {}
    for case in cases:
        by_help[case.help].append(case)
        by_subject.setdefault((case.help, case.subject), []).append(case)
    main = [_measure(group, OUTCOMES[help][0]) for help, group in by_help.items() if group]
    others = [_measure(group, outcome) for help, group in by_help.items() if group for outcome in OUTCOMES[help][1:]]
    others = [measurement for measurement in others if any(measurement.values)]  # without a price no case has a cost
    main_error, other_error = _divide(MAIN_OUTCOMES_ERROR, main), _divide(OTHER_OUTCOMES_ERROR, others)
    summary = [_build_row(measurement, measurement.outcome.name, main_error) for measurement in main]
    results = list(zip(main, summary, strict=True))
    summary += [_build_row(measurement, measurement.outcome.name, other_error) for measurement in others]
    summary.sort(key=lambda row: list(HELP_NAMES).index(row.help))
    subjects = [_measure(group, OUTCOMES[help][0]) for (help, _), group in by_subject.items() if help != "reminder"]
    error = _divide(CONTRIBUTIONS_ERROR, subjects)
    contributions = [
        _build_row(measurement, names.get(subject := measurement.first_case.subject, subject), error, subject)
        for measurement in subjects
    ]
    contributions.sort(key=lambda row: (row.high is None, row.high or 0.0, -row.cases))
    conclusion = _conclude(by_help, results, summary, contributions, main_error)
    return summary, contributions[:MAX_CONTRIBUTIONS], conclusion


def _divide(error: float, measurements: Sequence[_Measurement]) -> float:
    """Return the error of each measurement. Those that cannot differ cause none (Tarone, Biometrics 46, 1990)."""
    return error / max(1, sum(measurement.can_differ for measurement in measurements))


def _conclude(
    by_help: Mapping[Help, Sequence[ImpactCase]],
    results: Sequence[tuple[_Measurement, ImpactRow]],
    summary: Sequence[ImpactRow],
    contributions: Sequence[ImpactRow],
    error: float,
) -> str:
    """Return one sentence for each help that was held out, after one that names what harms."""
    sentences = [
        f"{_conclude_help(by_help[row.help], measurement, row, error)}{_list_exceptions(row, summary)}."
        for measurement, row in results
    ]
    if harms := [row for row in contributions if row.verdict == "worse"]:
        names = [f"{describe_subject(row, 60)}, {row.effect}" for row in harms[:MAX_NAMED_HARMS]]
        names += [f"{len(harms) - MAX_NAMED_HARMS:,} more"] * (len(harms) > MAX_NAMED_HARMS)
        sentences.insert(0, f"Harmful: {'; '.join(names)}.")
    return " ".join(sentences) or (
        "Nothing can be compared yet: no help was held out. A learned fix is held out from some runs after models have "
        f"followed it in {MIN_FOLLOWED_RUNS} runs, and so is its lesson; reminders and repairs are if "
        "holdout_reminders and holdout_repairs are set."
    )


def _conclude_help(cases: Sequence[ImpactCase], measurement: _Measurement, row: ImpactRow, error: float) -> str:
    name = HELP_NAMES[row.help].capitalize()
    words, sessions_words = _MAIN_OUTCOME_WORDS[row.help]
    result = f"{row.with_help} {words} with them, {row.without_help} without them, {row.effect}"
    match row.verdict:
        case "better":
            return f"{name} help: {result}"
        case "worse":
            return f"{name} harm: {result}"
    part = sum(map(sum, measurement.values))
    rate = min(max((part + 1) / (len(cases) + 2), 0.1), 0.9)
    effect = EXPECTED_EFFECT if rate < 0.5 else -EXPECTED_EFFECT
    design_effect = measurement.rates[0].design_effect
    share = max(row.held_out_cases, 1) / (len(cases) + 1)
    missing = max(cases_for_power(rate, effect, share, design_effect, error), 2 * MIN_CASES) - len(cases)
    if missing > 0:
        sessions = max(1, round(missing * len({case.cluster for case in cases}) / len(cases)))
        return f"{name}: too few cases to tell, about {sessions:,} more {sessions_words} needed"
    return f"{name} have no clear effect: {result}"


def describe_subject(row: ImpactRow, limit: int) -> str:
    """Return what contributed: a fix or a lesson with its id, or the repairs of a tool."""
    name = to_line(row.name, limit)
    if row.help == "repair":
        return f"repairs of {name}"
    return name if row.name == row.subject else f"{name} ({to_line(row.subject, 40)})"


def _list_exceptions(main: ImpactRow, summary: Sequence[ImpactRow]) -> str:
    """Return the outcomes of a help with another clear verdict than the main one, after a semicolon."""
    exceptions = [
        f"{row.name} {row.effect.partition(' (')[0]} ({row.verdict})"
        for row in summary
        if row.help == main.help and row.verdict in ("better", "worse") and row.verdict != main.verdict
    ]
    return f"; however, {', '.join(exceptions)}" if exceptions else ""


# The page


def build_report(store: Store, tenant: str, query: RunQuery, now: int) -> ImpactReport:
    """Compare the cases of the runs that match a query."""
    query = msgspec.structs.replace(query, limit=MAX_IMPACT_RUNS)
    histories, failed_runs_only = read_runs(store, tenant, query)
    is_complete = len(histories) < MAX_IMPACT_RUNS
    lessons = read_lessons(store, tenant, histories, now)
    episodes = {history.run.id: list_episodes(history) for history in histories}
    failed_runs = [history for history in histories if episodes[history.run.id]]
    cases = collect_cases(histories, episodes, lessons)
    fixes = {fix.id: fix for fix in store.fixes(tenant, FixQuery(now=now, limit=MAX_FIXES))}
    names = {id: f"{fix.tool}: {memory_text.describe_action(fix)}" for id, fix in fixes.items()}
    names |= {id: f"{lesson.tool}: {lesson.correction}" for id, lesson in lessons.items()}
    summary, contributions, conclusion = analyze(cases, names)
    return ImpactReport(
        conclusion,
        summary,
        contributions,
        list(_list_incomparable(histories, episodes, cases, fixes)),
        len(histories),
        failed_runs_only,
        is_complete,
        recovery_costs.to_facts(recovery_costs.FailedRuns(failed_runs, is_complete), episodes),
        _build_curve(store, tenant, query, now),
    )


def _list_incomparable(
    histories: Sequence[History], episodes: EpisodesByRun, cases: Sequence[ImpactCase], fixes: Mapping[str, Fix]
) -> Iterator[str]:
    """Yield what helped, or may have, without a group to compare it with."""
    compared = {(case.help, case.subject) for case in cases}
    undecided_fixes = find_undecided_fixes(episodes)
    counts: dict[str, int] = {}
    for episode in chain.from_iterable(episodes.values()):
        for fix in episode.fixes:
            if ("fix", fix) not in compared and fix not in (ANY_FIX, REPAIR):
                counts[fix] = counts.get(fix, 0) + 1
    for fix, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_CONTRIBUTIONS]:
        stored_fix = fixes.get(fix)
        followed_runs = stored_fix.followed if stored_fix else MIN_FOLLOWED_RUNS
        reason = "not held out yet"
        if fix in undecided_fixes:
            reason = "of most of them it is not proven whether a later call with another value recovered them"
        elif followed_runs < MIN_FOLLOWED_RUNS:
            reason += f", followed in {followed_runs} of {MIN_FOLLOWED_RUNS} runs"
        tool = f"{to_line(stored_fix.tool, 40)}: {memory_text.describe_action(stored_fix)}, " if stored_fix else ""
        yield f"{tool}{fix}: shown after {format_count(count, 'failure')}, {reason}"
    repaired = sum(episode.by_mulligan for episode in chain.from_iterable(episodes.values()))
    if repaired and not any(help == "repair" for help, _ in compared):
        recovered = format_count(repaired, "failed call")
        yield f"{recovered} recovered by mulligan's own attempts: none held out yet (setting holdout_repairs)"
    if not any(help == "reminder" for help, _ in compared) and any(history.compactions for history in histories):
        yield "reminders after compactions: none held out yet (setting holdout_reminders)"


def _build_curve(store: Store, tenant: str, query: RunQuery, now: int) -> list[dict[str, Any]]:
    fields: dict[str, Any] = {name: getattr(query, name) for name in ("agent", "version", "environment")}
    since = now - CURVE_DAYS * DAY
    days = store.stats(tenant, StatsQuery(now=now, since=since, by="time", **fields)).parts
    return [
        {
            "day": int(day),
            "failed": cell.recovered + cell.unrecovered,
            "recovered": cell.recovered,
            "median_seconds": percentile_summary(cell.to_repair)["p50"],
        }
        for day, cell in sorted(days.items(), key=lambda item: int(item[0]))
    ]


def to_facts(report: ImpactReport) -> dict[str, Any]:
    return {
        **report._asdict(),
        "summary": [row._asdict() for row in report.summary],
        "contributions": [row._asdict() for row in report.contributions],
        "note": IMPACT_NOTE,
    }
