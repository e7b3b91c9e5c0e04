"""mulligan stats."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from mulligan.cli.lists import filter_options
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.report import overview
from mulligan.report.resources import STATS_SPEC
from mulligan.report.stats import compare_stats
from mulligan.report.tables import render_csv
from mulligan.store import counters
from mulligan.store.base import DEFAULT_TENANT, Store
from mulligan.store.counters import Stats, StatsQuery
from mulligan.store.urls import redact_password

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
@filter_options(STATS_SPEC)
@click.option(
    "--compare", nargs=2, metavar="A B", help="Compare two versions; with --by, two values of that dimension."
)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), help="Maximum rows with --by. Default: 20; all with --json or --csv."
)
@click.option("--csv", "as_csv", is_flag=True, help="With --by: print the rows as CSV.")
@store_option
@as_json
def stats(
    compare: tuple[str, str] | None,
    limit: int | None,
    as_csv: bool,
    store: str | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Show failure and recovery statistics, with their cost and suggestions.

    Counts are by full hour, or by full UTC day for periods over three days. The output names the period.
    """
    if as_csv and (filters["by"] is None or compare):
        raise SettingsError("--csv needs --by, such as --by tool, and excludes --compare.")
    settings = load_settings(store)
    query = STATS_SPEC.build_query(filters, now=now_ms())
    existing_store = open_existing_store(settings)
    if compare:
        _compare(existing_store, query, compare, as_json)
        return
    answer = _compute_stats(existing_store, query)
    if as_json:
        print_json(overview.build_answer(answer, limit))
    elif as_csv:
        rows = overview.limit_rows(overview.rank_parts(answer.parts, query.by), query.by, limit)
        print_lines(render_csv(rows, [query.by, *STATS_SPEC.csv_columns]))
    elif query.by is None and query.kind is None:
        tools = _compute_stats(existing_store, msgspec.structs.replace(query, by="tool", detail=True))
        agents = _compute_stats(existing_store, msgspec.structs.replace(query, by="agent"))
        series = _compute_stats(existing_store, msgspec.structs.replace(query, by="time"))
        print_lines(overview.render_overview(answer, tools, agents, series, terminal_width()))
    else:
        print_lines(overview.render_headline(answer, query.kind))
        if query.by is None:
            answer = _compute_stats(existing_store, msgspec.structs.replace(query, by="tool"))
        when = "%Y-%m-%d %H:%M" if answer.grain == "hour" else "%Y-%m-%d"
        if answer.parts and (answer.total.calls or answer.total.kinds):
            click.echo("")
            is_single_kind, row_limit = query.kind is not None, limit or DEFAULT_ROW_LIMIT
            print_lines(
                overview.render_by_dimension(
                    answer.parts, answer.by or "", row_limit, terminal_width(), when, is_single_kind
                )
            )
        elif answer.total.calls:
            click.echo(f"No records with a {query.by} in this period.")
    if not (as_json or as_csv or answer.total.calls or answer.total.runs or query.since is None):
        url = redact_password(settings.store_url)
        if existing_store is not None:
            click.echo(f"Store: {url}. For older records: --since all", err=True)
        else:
            advice = "Wrap a function with @mulligan.tool and call it, or try: mulligan demo"
            click.echo(f"Store {url} does not exist yet. {advice}", err=True)


def _compute_stats(store: Store | None, query: StatsQuery) -> Stats:
    return store.stats(DEFAULT_TENANT, query) if store is not None else counters.stats([], query)


def _compare(store: Store | None, query: StatsQuery, values: tuple[str, str], as_json: bool) -> None:
    dimension = query.by or "version"
    if dimension not in COMPARABLE_DIMENSIONS:
        raise SettingsError(
            f"Cannot compare by {dimension}. With --compare, --by takes: {', '.join(COMPARABLE_DIMENSIONS)}."
        )
    first_stats, second_stats = (
        _compute_stats(store, msgspec.structs.replace(query, by=None, **{dimension: value})) for value in values
    )
    for value, answer in zip(values, (first_stats, second_stats), strict=True):
        if not answer.total.calls and not answer.total.runs:
            available_values = sorted(_compute_stats(store, msgspec.structs.replace(query, by=dimension)).parts)
            names = ", ".join(available_values[:10])
            hint = f"Available: {names}." if names else "No run in this period has one."
            raise SettingsError(f"No records with {dimension} {value!r} in this period. {hint}")
    if as_json:
        differences = [difference._asdict() for difference in compare_stats(first_stats.total, second_stats.total)]
        sides = [overview.build_answer(side) for side in (first_stats, second_stats)]
        print_json({"by": dimension, "values": values, "stats": sides, "differences": differences})
    else:
        print_lines(overview.render_comparison(first_stats, second_stats, values, terminal_width()))
