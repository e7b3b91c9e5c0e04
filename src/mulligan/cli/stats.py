"""mulligan stats."""

from __future__ import annotations

from typing import Any, get_args

import click
import msgspec

from mulligan.cli.options import (
    as_json,
    kind_option,
    load_settings,
    now_ms,
    open_existing_store,
    parse_time_option,
    print_json,
    print_lines,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import STEP_TYPES
from mulligan.report import overview
from mulligan.report import stats as questions
from mulligan.report.tables import render_csv
from mulligan.store import counters
from mulligan.store.base import DEFAULT_TENANT, Store
from mulligan.store.counters import By, Stats, StatsQuery
from mulligan.store.urls import redact_password

DIMENSIONS = get_args(By)
DEFAULT_ROW_LIMIT = 20
COMPARABLE_DIMENSIONS = ("agent", "tool", "model", "version", "environment")
"""Dimensions whose values can be compared with each other."""

EXAMPLES = """Examples:

  mulligan stats

  mulligan stats --by tool --since 24h

  mulligan stats --by kind --agent support-agent --csv

  mulligan stats --agent support-agent --compare 1.0 1.1

  mulligan stats --by model --compare small-1 big-1"""


@click.command(epilog=EXAMPLES)
@click.option("--by", type=click.Choice(DIMENSIONS), help="Group the statistics by this dimension.")
@click.option(
    "--since",
    "past",
    default="7d",
    show_default=True,
    metavar="7d",
    help="Start of the period: 30m, 24h, 7d, 2w, a date, or all.",
)
@click.option("--until", metavar="DATE", help="End of the period: a date (2026-01-31), or an age (24h).")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--tool", help="Only calls of this tool.")
@kind_option("Only failures of this kind (tool/timeout), or of a type (tool).", after="")
@click.option("--model", help="Only calls of this model.")
@click.option("--version", "version", help="Only runs of this version of the agent.")
@click.option("--environment", help="Only runs in this environment.")
@click.option("--type", "type", type=click.Choice(STEP_TYPES), help="Only steps of this type.")
@click.option(
    "--compare", nargs=2, metavar="A B", help="Compare two versions; with --by, two values of that dimension."
)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), help="Maximum rows with --by. Default: 20; all with --json or --csv."
)
@click.option("--csv", "as_comma", is_flag=True, help="With --by: print the rows as CSV.")
@store_option
@as_json
def stats(
    by: By | None,
    past: str,
    until: str | None,
    compare: tuple[str, str] | None,
    limit: int | None,
    as_comma: bool,
    store: str | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Show failure and recovery statistics, with their cost and suggestions.

    Counts are by full hour, or by full UTC day for periods over three days. The output names the period.
    """
    if as_comma and (by is None or compare):
        raise SettingsError("--csv needs --by, such as --by tool, and excludes --compare.")
    settings = load_settings(store)
    query = StatsQuery(
        now=now_ms(),
        since=parse_time_option(past, "--since"),
        until=parse_time_option(until, "--until"),
        by=by,
        **filters,
    )
    if query.since is not None and query.until is not None and query.since >= query.until:
        raise SettingsError(f"--since {past} must be before --until {until}. Change one of them.")
    existing_store = open_existing_store(settings)
    if compare:
        _compare(existing_store, query, compare, as_json)
        return
    answer = _compute_stats(existing_store, query)
    if as_json:
        print_json(overview.build_answer(answer, limit))
    elif as_comma:
        names = [query.by or "", *questions.CSV_COLUMNS]
        print_lines(
            render_csv(
                overview.limit_rows(overview.rank_parts(answer.parts, query.by or ""), query.by or "", limit), names
            )
        )
    elif query.by is None and query.kind is None:
        tools = _compute_stats(existing_store, _replace_fields(query, by="tool", detail=True))
        agents = _compute_stats(existing_store, _replace_fields(query, by="agent"))
        series = _compute_stats(existing_store, _replace_fields(query, by="time"))
        print_lines(overview.render_overview(answer, tools, agents, series, terminal_width()))
    else:
        print_lines(overview.render_headline(answer, query.kind))
        if query.by is None:
            answer = _compute_stats(existing_store, _replace_fields(query, by="tool"))
        when = "%Y-%m-%d %H:%M" if answer.grain == "hour" else "%Y-%m-%d"
        if answer.parts and (answer.total.calls or answer.total.kinds):
            click.echo("")
            print_lines(
                overview.render_by_dimension(
                    answer.parts,
                    answer.by or "",
                    limit or DEFAULT_ROW_LIMIT,
                    terminal_width(),
                    when,
                    query.kind is not None,
                )
            )
        elif answer.total.calls:
            click.echo(f"No records with a {query.by} in this period.")
    if not as_json and not as_comma and not answer.total.calls and not answer.total.runs and past != "all":
        if existing_store is not None:
            click.echo(f"Store: {redact_password(settings.store_url)}. For older records: --since all", err=True)
        else:
            advice = "Wrap a function with @mulligan.tool and call it, or try: mulligan demo"
            click.echo(f"Store {redact_password(settings.store_url)} does not exist yet. {advice}", err=True)


def _compute_stats(store: Store | None, query: StatsQuery) -> Stats:
    return store.stats(DEFAULT_TENANT, query) if store is not None else counters.stats([], query)


def _replace_fields(query: StatsQuery, **fields: Any) -> StatsQuery:
    return msgspec.structs.replace(query, **fields)


def _compare(store: Store | None, query: StatsQuery, values: tuple[str, str], as_json: bool) -> None:
    dimension = query.by or "version"
    if dimension not in COMPARABLE_DIMENSIONS:
        raise SettingsError(
            f"Cannot compare by {dimension}. With --compare, --by takes: {', '.join(COMPARABLE_DIMENSIONS)}."
        )
    first_stats, second_stats = (
        _compute_stats(store, _replace_fields(query, by=None, **{dimension: value})) for value in values
    )
    for value, answer in zip(values, (first_stats, second_stats), strict=True):
        if not answer.total.calls and not answer.total.runs:
            available_values = sorted(_compute_stats(store, _replace_fields(query, by=dimension)).parts)
            hint = (
                f"Available: {', '.join(available_values[:10])}."
                if available_values
                else "No run in this period has one."
            )
            raise SettingsError(f"No records with {dimension} {value!r} in this period. {hint}")
    if as_json:
        differences = [
            difference._asdict() for difference in questions.compare_stats(first_stats.total, second_stats.total)
        ]
        sides = [overview.build_answer(side) for side in (first_stats, second_stats)]
        print_json({"by": dimension, "values": values, "stats": sides, "differences": differences})
    else:
        print_lines(overview.render_comparison(first_stats, second_stats, values, terminal_width()))
