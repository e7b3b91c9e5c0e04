"""What mulligan's help is worth: cases with help compared with cases from which it was held out.

A case is one failure episode with one fix, one episode that a repair was possible for, or one run of a session with a
reminder. Whether it is held out depends on ids alone, so both groups differ by chance and by the help. Runs are the
clusters, or sessions where runs have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mulligan.contract.counters import StatsQuery, find_repeated_calls
from mulligan.contract.store import DAY, FixQuery, RunQuery, Store
from mulligan.core.calls import group_attempts
from mulligan.core.episodes import FailureEpisode, list_episodes
from mulligan.core.holdout import MIN_FOLLOWED_RUNS, REMINDER, REPAIR
from mulligan.core.records import ANY_FIX, Fix, History
from mulligan.core.run_links import derive_status
from mulligan.report import memory_text
from mulligan.report.differences import (
    LOOK_WARNING,
    GroupDifference,
    Rate,
    cases_for_power,
    compare_amounts,
    compare_rates,
    design_effects,
)
from mulligan.report.stats import format_points, percentile_summary
from mulligan.report.tables import (
    Fact,
    TableColumn,
    format_count,
    format_dollars,
    format_duration,
    format_share,
    render_columns,
    render_table,
    style_heading,
    to_line,
    wrap_text,
)

MAX_IMPACT_RUNS = 5000
"""The latest runs that are read."""
MIN_CASES = 10
"""Cases that each group needs for a verdict."""
EXPECTED_EFFECT = 0.2
"""The difference of rates for which the number of missing cases is computed."""
MAX_CONTRIBUTIONS = 50
MAX_FIXES = 1000
CURVE_DAYS = 30
Help = Literal["fix", "reminder", "repair"]
HELP_NAMES: dict[Help, str] = {"fix": "learned fixes", "repair": "repairs", "reminder": "reminders"}
FAMILIES = 2
"""The summary and the list of what contributed divide the permitted error equally."""


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
    histories = store.runs(tenant, _replace(query, kind="tool/"))
    if any(record.fix == REMINDER and record.held_out for history in histories for record in history.run.advice):
        histories = store.runs(tenant, query)
    return list(histories)


def _replace(query: RunQuery, **fields: Any) -> RunQuery:
    return RunQuery(**{name: getattr(query, name) for name in query.__struct_fields__} | fields)


def collect_cases(histories: Iterable[History]) -> list[ImpactCase]:
    """Return the cases of ended runs that can be compared: of help that was held out, since it first was."""
    cases = [case for history in histories if history.run.end_reason is not None for case in _iter_cases(history)]
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


# Comparison


class ImpactRow(NamedTuple):
    """One outcome with help and without it."""

    name: str
    help: Help
    subject: str
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
    is_success: Callable[[ImpactCase], bool] | None = None
    amount: Callable[[ImpactCase], float | None] | None = None
    unit: float = 1.0
    """The smallest amount that matters."""
    format: Callable[[float], str] = str


def _recovered(measure: Callable[[ImpactCase], float | None]) -> Callable[[ImpactCase], float | None]:
    return lambda case: measure(case) if case.is_recovered else None


_RECOVERED = _Outcome("failures recovered", True, lambda case: case.is_recovered)
_ENDED_WELL = _Outcome("runs that ended well", True, lambda case: case.has_ended_well)
_AMOUNTS = (
    _Outcome("time per recovery", False, None, _recovered(lambda case: case.seconds), 0.001, format_duration),
    _Outcome("tokens per recovery", False, None, _recovered(lambda case: case.tokens), 1,
             lambda tokens: f"{tokens:,.0f}"),
    _Outcome("cost per recovery", False, None, _recovered(lambda case: case.cost_nanos), 1000,
             lambda nanos: format_dollars(round(nanos))),
)  # fmt: skip
OUTCOMES: dict[Help, tuple[_Outcome, ...]] = {
    "fix": (
        _RECOVERED,
        _Outcome("fixed at the first attempt", True, lambda case: case.is_recovered and case.model_attempts <= 1),
        _ENDED_WELL,
        *_AMOUNTS,
    ),
    "repair": (_RECOVERED, _ENDED_WELL, *_AMOUNTS),
    "reminder": (
        _ENDED_WELL,
        _Outcome(
            "repeated failures per compaction", False, None,
            lambda case: case.repeats / case.compactions, 0.1, lambda count: f"{count:.2f}",
        ),
    ),
}  # fmt: skip
"""Outcomes by help. The first one decides the conclusion, and the order of what contributed."""


def _split(cases: Iterable[ImpactCase]) -> tuple[list[ImpactCase], list[ImpactCase]]:
    """Return the held-out cases, and those with help."""
    groups: tuple[list[ImpactCase], list[ImpactCase]] = ([], [])
    for case in cases:
        groups[case.has_help].append(case)
    return groups


def _clusters(cases: Iterable[ImpactCase], measure: Callable[[ImpactCase], Any]) -> list[list[Any]]:
    by_cluster: dict[str, list[Any]] = {}
    for case in cases:
        if (value := measure(case)) is not None:
            by_cluster.setdefault(case.cluster, []).append(value)
    return list(by_cluster.values())


def _can_compare(cases: Sequence[ImpactCase], outcome: _Outcome) -> bool:
    """Return whether an outcome could be called different: enough cases of both groups, which are not all equal."""
    measure = outcome.is_success or outcome.amount
    assert measure is not None
    groups = [[value for case in group if (value := measure(case)) is not None] for group in _split(cases)]
    return min(map(len, groups)) >= MIN_CASES and len({value for group in groups for value in group}) > 1


def _compare(cases: Sequence[ImpactCase], outcome: _Outcome, name: str, comparisons: int) -> ImpactRow:
    without_help, with_help = _split(cases)
    first = cases[0]
    row = ImpactRow(
        name=name,
        help=first.help,
        subject=first.subject,
        with_help=_describe(with_help, outcome),
        without_help=_describe(without_help, outcome),
        cases=len(with_help),
        held_out_cases=len(without_help),
        verdict="too few cases",
    )
    if min(len(with_help), len(without_help)) < MIN_CASES:
        return row
    difference: GroupDifference | None
    if outcome.is_success is not None:
        first_rate, second_rate = _rates(without_help, with_help, outcome.is_success)
        difference = compare_rates(first_rate, second_rate, comparisons)
        effect = format_points(difference)
    else:
        assert outcome.amount is not None
        groups = [_clusters(group, outcome.amount) for group in (without_help, with_help)]
        if min(sum(map(len, group)) for group in groups) < MIN_CASES:
            return row
        difference = compare_amounts(groups[0], groups[1], outcome.unit, comparisons)
        if difference is None:
            return row
        effect = "{:+.0f} % ({:+.0f} to {:+.0f})".format(*(100 * share for share in difference))
    verdict: Literal["better", "worse", "no clear difference"] = "no clear difference"
    if difference.is_clear:
        verdict = "better" if (difference.estimate > 0) is outcome.is_higher_better else "worse"
    estimate, low, high = (round(100 * share, 2) for share in difference)
    return row._replace(verdict=verdict, effect=effect, estimate=estimate, low=low, high=high)


def _rates(
    without_help: Sequence[ImpactCase], with_help: Sequence[ImpactCase], is_success: Callable[[ImpactCase], bool]
) -> tuple[Rate, Rate]:
    groups = [_clusters(group, is_success) for group in (without_help, with_help)]
    effects = design_effects(*([(sum(values), len(values)) for values in group] for group in groups))
    counts = [(sum(map(sum, group)), sum(map(len, group))) for group in groups]
    return Rate(*counts[0], effects[0]), Rate(*counts[1], effects[1])


def _describe(cases: Sequence[ImpactCase], outcome: _Outcome) -> str:
    if outcome.is_success is not None:
        return format_share(sum(map(outcome.is_success, cases)), len(cases)) if cases else "-"
    assert outcome.amount is not None
    values = sorted(value for case in cases if (value := outcome.amount(case)) is not None)
    return outcome.format(values[len(values) // 2]) if values else "-"


class ImpactReport(NamedTuple):
    """The impact page."""

    conclusion: str
    summary: list[ImpactRow]
    contributions: list[ImpactRow]
    """What contributed, the most certainly harmful first."""
    incomparable: list[str]
    """What cannot be compared, and why."""
    runs: int
    is_complete: bool
    """Whether all runs of the period were read."""
    curve: list[dict[str, Any]]
    """Failed and recovered calls of each of the last 30 days, with the median time to recovery."""


def analyze(cases: Sequence[ImpactCase], names: Mapping[str, str] = {}) -> tuple[list[ImpactRow], list[ImpactRow], str]:
    """Compare cases. Return the rows of the summary, those of what contributed, and the conclusion.

    `names` describe fixes by id.
    """
    by_help: dict[Help, list[ImpactCase]] = {help: [] for help in HELP_NAMES}
    by_subject: dict[tuple[Help, str], list[ImpactCase]] = {}
    for case in cases:
        by_help[case.help].append(case)
        by_subject.setdefault((case.help, case.subject), []).append(case)
    outcomes = [(group, outcome) for help, group in by_help.items() if group for outcome in OUTCOMES[help]]
    comparisons = FAMILIES * max(1, sum(_can_compare(group, outcome) for group, outcome in outcomes))
    summary = [_compare(group, outcome, outcome.name, comparisons) for group, outcome in outcomes]
    subjects = [(group, OUTCOMES[help][0]) for (help, _), group in by_subject.items() if help != "reminder"]
    comparisons = FAMILIES * max(1, sum(_can_compare(group, outcome) for group, outcome in subjects))
    contributions = [
        _compare(group, outcome, names.get(group[0].subject, group[0].subject), comparisons)
        for group, outcome in subjects
    ]
    contributions.sort(key=lambda row: (row.high is None, row.high or 0.0, -row.cases))
    return summary, contributions[:MAX_CONTRIBUTIONS], _conclude(by_help, summary, comparisons)


def _conclude(by_help: Mapping[Help, Sequence[ImpactCase]], summary: Sequence[ImpactRow], comparisons: int) -> str:
    """Return one sentence for each help that was held out."""
    sentences = []
    for help, cases in by_help.items():
        if cases:
            row = next(row for row in summary if row.help == help)
            sentences.append(_conclude_help(help, cases, row, comparisons))
    return " ".join(sentences) or (
        "Nothing can be compared yet: no help was held out. A learned fix is held out from some runs after models have "
        f"followed it in {MIN_FOLLOWED_RUNS} runs; reminders and repairs are if holdout_reminders and holdout_repairs "
        "are set."
    )


def _conclude_help(help: Help, cases: Sequence[ImpactCase], row: ImpactRow, comparisons: int) -> str:
    name, outcome = HELP_NAMES[help].capitalize(), OUTCOMES[help][0]
    counts = f"{row.with_help} {outcome.name} with them, {row.without_help} without them"
    match row.verdict:
        case "better":
            return f"{name} help: {counts}, {row.effect}."
        case "worse":
            return f"{name} harm: {counts}, {row.effect}."
    without_help, with_help = _split(cases)
    assert outcome.is_success is not None
    part = sum(map(outcome.is_success, cases))
    rate = min(max((part + 1) / (len(cases) + 2), 0.1), 0.9)
    effect = EXPECTED_EFFECT if rate < 0.5 else -EXPECTED_EFFECT
    first_rate, _ = _rates(without_help, with_help, outcome.is_success) if without_help and with_help else (None, None)
    needed_cases = cases_for_power(
        rate,
        effect,
        max(len(without_help), 1) / (len(cases) + 1),
        first_rate.design_effect if first_rate is not None else 1.0,
        comparisons,
    )
    missing = max(needed_cases - len(cases), 2 * MIN_CASES - len(cases))
    if missing > 0:
        sessions = max(1, round(missing * len({case.cluster for case in cases}) / len(cases)))
        return f"{name}: too few cases to tell, about {sessions:,} more sessions needed."
    return f"{name}: no effect that chance would not explain; {counts}, {row.effect}."


# The page


def build_report(store: Store, tenant: str, query: RunQuery, now: int) -> ImpactReport:
    """Compare the cases of the runs that match a query."""
    query = _replace(query, limit=MAX_IMPACT_RUNS)
    histories = read_runs(store, tenant, query)
    cases = collect_cases(histories)
    fixes = {fix.id: fix for fix in store.fixes(tenant, FixQuery(now=now, limit=MAX_FIXES))}
    names = {id: f"{fix.tool}: {memory_text.describe_action(fix)}" for id, fix in fixes.items()}
    summary, contributions, conclusion = analyze(cases, names)
    return ImpactReport(
        conclusion,
        summary,
        contributions,
        list(_list_incomparable(histories, cases, fixes)),
        len(histories),
        len(histories) < MAX_IMPACT_RUNS,
        _build_curve(store, tenant, query, now),
    )


def _list_incomparable(
    histories: Sequence[History], cases: Sequence[ImpactCase], fixes: Mapping[str, Fix]
) -> Iterator[str]:
    """Yield what helped, or may have, without a group to compare it with."""
    compared = {(case.help, case.subject) for case in cases}
    episodes = [episode for history in histories for episode in list_episodes(history)]
    counts: dict[str, int] = {}
    for episode in episodes:
        for fix in episode.fixes:
            if ("fix", fix) not in compared and fix not in (ANY_FIX, REPAIR):
                counts[fix] = counts.get(fix, 0) + 1
    for fix, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_CONTRIBUTIONS]:
        stored_fix = fixes.get(fix)
        followed = f", followed in {stored_fix.followed} of {MIN_FOLLOWED_RUNS} runs" if stored_fix else ""
        tool = f"{to_line(stored_fix.tool, 40)}: {memory_text.describe_action(stored_fix)}, " if stored_fix else ""
        yield f"{tool}{fix}: shown after {format_count(count, 'failure')}, not held out yet{followed}"
    repaired = [episode for episode in episodes if episode.by_mulligan]
    if repaired and not any(help == "repair" for help, _ in compared):
        recovered = format_count(len(repaired), "failed call")
        yield f"{recovered} recovered by mulligan's own attempts: no hold-out (holdout_repairs is 0), so no comparison"
    if not any(help == "reminder" for help, _ in compared) and any(history.compactions for history in histories):
        yield "reminders after compactions: no hold-out (holdout_reminders is 0), so no comparison"


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


# Text


def to_facts(report: ImpactReport) -> dict[str, Any]:
    return {
        **report._asdict(),
        "summary": [row._asdict() for row in report.summary],
        "contributions": [row._asdict() for row in report.contributions],
        "note": IMPACT_NOTE,
    }


IMPACT_NOTE = (
    "With 95 % confidence, all intervals of this page hold together. Amounts are medians; their differences are those "
    f"of geometric means. {LOOK_WARNING}"
)
ROW_COLUMNS = (
    TableColumn("outcome", lambda row: to_line(row["name"], 80), priority=9),
    TableColumn("with", lambda row: row["with_help"], True, 9),
    TableColumn("without", lambda row: row["without_help"], True, 9),
    TableColumn("difference", lambda row: row["effect"] or "-", True, 9),
    TableColumn("verdict", lambda row: row["verdict"], False, 8),
    TableColumn("cases", lambda row: f"{row['cases']:,} and {row['held_out_cases']:,}", True, 7),
)


def render_report(report: ImpactReport, period: str, width: int | None) -> Iterator[str]:
    """Render the page for a terminal."""
    yield from wrap_text(report.conclusion, width, "")
    sample = f"{format_count(report.runs, 'run')} with failures{'' if report.is_complete else ', the latest ones'}"
    yield from wrap_text(f"{period}; {sample}.", width, "")
    for help, name in HELP_NAMES.items():
        rows = [row._asdict() for row in report.summary if row.help == help]
        if rows:
            yield from ("", style_heading(name.capitalize(), width))
            yield from render_table(ROW_COLUMNS, rows, width)
    if report.contributions:
        yield from ("", style_heading("What contributed, the most certainly harmful first", width))
        yield from render_table(_contribution_columns(), [row._asdict() for row in report.contributions], width)
        yield "  Disable a fix: mulligan fixes revoke ID"
    if report.incomparable:
        yield from ("", style_heading("Cannot be compared", width))
        for text in report.incomparable:
            yield from wrap_text(f"  - {text}", width, "    ")
    if report.curve:
        yield from ("", style_heading(f"Last {CURVE_DAYS} days", width))
        yield from render_columns(list(_curve_rows(report.curve)), right=(1, 2, 3), width=width)
    if report.summary:
        yield ""
        yield from wrap_text(IMPACT_NOTE, width, "")


def _contribution_columns() -> tuple[TableColumn, ...]:
    def format_name(row: Fact) -> str:
        return to_line(row["name"] if row["help"] == "fix" else f"repairs of {row['name']}", 60)

    subject = TableColumn("id", lambda row: row["subject"] if row["help"] == "fix" else "", False, 8)
    return (TableColumn("help", format_name, priority=9), subject, *ROW_COLUMNS[1:])


def _curve_rows(curve: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    from mulligan.report.tables import format_timestamp

    yield "day", "failed calls", "recovered", "median time to recovery"
    for day in curve:
        seconds = day["median_seconds"]
        share = format_share(day["recovered"], day["failed"]) if day["failed"] else "-"
        duration = format_duration(seconds) if seconds is not None else "-"
        yield format_timestamp(day["day"])[:10], f"{day['failed']:,}", share, duration


def render_markdown(report: ImpactReport, period: str) -> Iterator[str]:
    """Render the page as Markdown, to paste it into a message."""
    yield f"**{report.conclusion}**"
    yield ""
    yield f"{period}; {format_count(report.runs, 'run')} with failures."
    rows = [(f"{HELP_NAMES[row.help]}: {row.name}", row) for row in report.summary]
    rows += [(f"{row.name} ({row.subject})", row) for row in report.contributions]
    if rows:
        yield from (
            "",
            "| | with | without | difference | verdict | cases |",
            "| --- | ---: | ---: | ---: | --- | ---: |",
        )
    for name, row in rows:
        texts = (name, row.with_help, row.without_help, row.effect or "-", row.verdict)
        cells = [to_line(text, 120).replace("|", "\\|") for text in texts]
        yield f"| {' | '.join(cells)} | {row.cases:,} and {row.held_out_cases:,} |"
    for text in report.incomparable:
        yield f"- Cannot be compared: {to_line(text, 300)}"
    if rows:
        yield from ("", IMPACT_NOTE)
