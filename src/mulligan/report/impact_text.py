"""The impact page as text for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mulligan.report.impact import CURVE_DAYS, IMPACT_NOTE, ImpactReport, describe_subject
from mulligan.report.impact_cases import HELP_NAMES
from mulligan.report.recovery_costs import ADVICE_COLUMNS, KIND_COLUMNS
from mulligan.report.tables import (
    Fact,
    TableColumn,
    format_count,
    format_duration,
    format_share,
    format_timestamp,
    render_columns,
    render_table,
    style_heading,
    to_line,
    wrap_text,
)

MAX_ATTEMPT_ROWS = 10
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
    for sentence in report.sentences:
        yield from wrap_text(sentence, width, "")
    yield from wrap_text(f"{period}; {describe_sample(report)}.", width, "")
    for help, name in HELP_NAMES.items():
        rows = [row._asdict() for row in report.summary if row.help == help]
        if rows:
            yield from ("", style_heading(name.capitalize(), width))
            yield from render_table(ROW_COLUMNS, rows, width)
    if report.contributions:
        yield from ("", style_heading("What contributed, the most certainly harmful first", width))
        yield from render_table(_contribution_columns(), [row._asdict() for row in report.contributions], width)
        yield "  Disable a fix: mulligan fixes revoke ID. A lesson: mulligan lessons disable ID"
    if report.incomparable:
        yield from ("", style_heading("Cannot be compared", width))
        for text in report.incomparable:
            yield from wrap_text(f"- {text}", width, "  ", "    ")
    for title, columns, attempt_rows in list_attempt_tables(report.model_recovery):
        yield from ("", style_heading(title, width))
        yield from render_table(columns, attempt_rows, width)
    if report.curve:
        yield from ("", style_heading(f"Last {CURVE_DAYS} days", width))
        yield from render_columns(list(_curve_rows(report.curve)), right=(1, 2, 3), width=width)
    if report.summary:
        yield ""
        yield from wrap_text(IMPACT_NOTE, width, "")


def describe_sample(report: ImpactReport) -> str:
    """Return which runs were read, and how many."""
    failures = " with failures" if report.failed_runs_only else ""
    return f"{format_count(report.runs, 'run')}{failures}{'' if report.is_complete else ', the latest ones'}"


def list_attempt_tables(facts: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[TableColumn], list[Fact]]]:
    """Yield title, columns and rows: at which attempt the model fixed failures, by kind and by what it had read."""
    for title, name, columns in (
        ("Fixed by the model, by kind of failure", "by_kind", KIND_COLUMNS),
        ("Fixed by the model, by what it had read", "by_advice", ADVICE_COLUMNS),
    ):
        rows = [row for row in facts[name] if row["recovered_by_model"] or row["unrecovered"]]
        if rows:
            yield title, columns, rows[:MAX_ATTEMPT_ROWS]


def _contribution_columns() -> tuple[TableColumn, ...]:
    def format_name(row: Fact) -> str:
        return to_line(f"repairs of {row['name']}" if row["help"] == "repair" else row["name"], 60)

    subject = TableColumn("id", lambda row: "" if row["help"] == "repair" else row["subject"], False, 8)
    return (TableColumn("help", format_name, priority=9), subject, *ROW_COLUMNS[1:])


def _curve_rows(curve: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
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
    yield f"{period}; {describe_sample(report)}."
    rows = [(f"{HELP_NAMES[row.help]}: {row.name}", row) for row in report.summary]
    rows += [(describe_subject(row, 80), row) for row in report.contributions]
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
