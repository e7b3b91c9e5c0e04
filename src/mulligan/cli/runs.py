"""mulligan runs, mulligan search, mulligan show, mulligan tail and mulligan stats."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from msgspec.structs import replace

from mulligan import logging
from mulligan.cli.options import (
    CommandContext,
    command,
    filter_options,
    find_run,
    has_filters,
    limit_option,
    list_options,
    print_lines,
    show_progress_bar,
)
from mulligan.contract import counters
from mulligan.contract.counters import Stats, StatsQuery
from mulligan.contract.run_facts import RUN_FACTS
from mulligan.contract.store import DEFAULT_TENANT, HASH_KEY, FixQuery, Store
from mulligan.core.calls import group_attempts
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import History, to_builtins
from mulligan.prompt import Prompt
from mulligan.record.memory_lookup import find_facts
from mulligan.report import conversation_text, impact_text, memory_text, overview, recovery_costs, run_text
from mulligan.report import impact as impact_report
from mulligan.report.resources import IMPACT_SPEC, RUN_SPEC, STATS_SPEC, STEP_SPEC, ResourceSpec
from mulligan.report.run_search import SEARCH_SPEC, describe_facets, render_hit, search_runs, to_search_facts
from mulligan.report.run_table import (
    RUN_GROUPS,
    compare_runs,
    format_fact,
    group_runs,
    render_comparison,
    render_groups,
)
from mulligan.report.stats import compare_groups, count_older_runs, list_undeclared_kinds, started_runs
from mulligan.report.tables import (
    SHOWN_ID_CHARS,
    TableColumn,
    format_count,
    format_timestamp,
    render_csv,
    render_table,
    to_line,
    truncate,
)
from mulligan.report.tail_reader import START_LOOKBACK_MS, TailReader
from mulligan.store.sql import DatabaseStore
from mulligan.store.urls import is_networked, sqlite_path

POLL_INTERVAL_SECONDS = 0.5
"""Interval between two reads of the store by `mulligan tail`."""
MAX_LISTED_FIXES = 1000
"""Fixes of a tool among which `mulligan show` looks for those that a model read."""
_BARE_PHRASE = re.compile(r'[^\s":-][^\s":]*(\s+[^\s":-][^\s":]*)+')
FIRST_STEPS = "Wrap a function with @mulligan.tool and call it, or try: mulligan demo"


@command(
    "mulligan runs --since 24h",
    "mulligan runs --status failure --agent helper --json",
    "mulligan runs --tool search --kind tool/timeout",
    "mulligan runs --order cost --min-cost 0.5 --since 7d",
    "mulligan runs --by user --since 7d",
    "mulligan runs --columns id,agent,cost_usd --csv",
)
@list_options(RUN_SPEC)
@click.option("--by", type=click.Choice(RUN_GROUPS), help="Group the runs: their number, failures, cost and tokens.")
def runs(context: CommandContext, limit: int, as_csv: bool, order: str, by: str | None, **filters: Any) -> None:
    """List runs with their status and cost, the newest first unless --order says otherwise."""
    names = _choose_columns(filters.pop("columns"))
    store = context.find_store()
    if filters["pattern"] is not None and store is not None:
        pattern = store.pattern(DEFAULT_TENANT, filters["pattern"])
        if pattern is None:
            raise SettingsError(
                f"No pattern matches {filters['pattern']!r}, or several start with it. List patterns: mulligan patterns"
            )
        filters["pattern"] = pattern.id
    if by is not None and store is not None:
        groups = group_runs(store, DEFAULT_TENANT, RUN_SPEC.build_query(filters, order=order), by)
        csv_lines = render_csv(groups.rows, list(groups.rows[0]) if groups.rows else [by])
        context.print(groups.to_facts(), csv_lines if as_csv else render_groups(groups, context.now, context.width))
        if groups.is_cut and (as_csv or context.as_json):
            click.echo(f"warning: {groups.note}", err=True)
        return
    histories = []
    if store is not None:
        histories = RUN_SPEC.read(store, DEFAULT_TENANT, RUN_SPEC.build_query(filters, order=order, limit=limit))
    if names and histories:
        rows = [{name: facts.get(name) for name in names} for facts in map(run_text.to_facts, histories)]
        columns = [TableColumn(name, partial(_format_cell, name), priority=1) for name in names]
        context.print(rows, render_csv(rows, names) if as_csv else render_table(columns, rows, context.width))
        return
    total = 0
    if store is not None and len(histories) == limit and order == "started" and not has_filters(filters):
        total = started_runs(store.stats(DEFAULT_TENANT, StatsQuery(now=context.now)).total)
    if not context.print_list(_show_order(order), histories, limit, as_csv, run_text.to_summary, total):
        if store is None:
            click.echo(f"Store {context.where} does not exist yet.")
        else:
            click.echo(f"No run{' matches' if has_filters(filters) else 's'} in {context.where}.")
        if not has_filters(filters):
            click.echo(FIRST_STEPS)
    elif not (context.as_json or as_csv):
        click.echo(f"\nShow one: mulligan show {histories[0].run.id[:SHOWN_ID_CHARS]}{context.suffix}", err=True)


def _show_order(order: str) -> ResourceSpec:
    """Return the list of runs with a column for the fact by which they are sorted."""
    fact = RUN_FACTS.get(order)
    if fact is None or fact.name in [column.title for column in RUN_SPEC.columns]:
        return RUN_SPEC

    def render_cell(row: Mapping[str, Any]) -> str:
        return "-" if row[fact.field] is None else format_fact(fact, row[fact.field])

    column = TableColumn(fact.label.lower(), render_cell, True, 7)
    return replace(RUN_SPEC, columns=(*RUN_SPEC.columns[:2], column, *RUN_SPEC.columns[2:]))


def _choose_columns(text: str | None) -> tuple[str, ...]:
    try:
        return RUN_SPEC.choose_columns(text) if text is not None else ()
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _format_cell(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if value is None:
        return "-"
    return format_timestamp(value) if name == "started_at" else to_line(str(value), 80)


@command(
    "mulligan search cus_8132", "mulligan search 'customer_id:cus_8132 -refund'",
    "mulligan search '\"card declined\" agent:billing status:failure since:7d'", "mulligan search --rebuild",
)  # fmt: skip
@click.argument("words", nargs=-1)
@filter_options(SEARCH_SPEC)
@limit_option
@click.option("--rebuild", is_flag=True, help="Build the index of the store again.")
def search(context: CommandContext, words: tuple[str, ...], limit: int, rebuild: bool, **filters: Any) -> None:
    """Find runs by words in arguments, results, errors, messages, context and metadata.

    A word is found where a word begins: cust finds "customer" and "big-customer". "a phrase" finds whole words.
    name:word finds the word in an argument, a key of metadata, or a part of a run (error, result, agent, tool, message,
    user). -word excludes runs: quote the whole text, or put -- before it. Filters may stand among the words:
    status:failure since:7d min_cost:0.5.

    The command first indexes the runs that ended since the last search. Searches see what is stored, that is without
    secrets.
    """
    is_search = bool(words) or has_filters(filters)
    if not is_search and not rebuild:
        raise click.UsageError("Name the words to search for, for example: mulligan search cus_8132")
    # The shell removes the quotation marks around a phrase.
    text = " ".join(f'"{word}"' if _BARE_PHRASE.fullmatch(word) else word for word in words)
    answer = key = None
    if (store := context.find_store()) is not None:
        if isinstance(store, DatabaseStore):
            _update_index(store, rebuild)
            key = store.get(DEFAULT_TENANT, *HASH_KEY)
        if is_search:
            answer = search_runs(store, DEFAULT_TENANT, text, context.now, limit, filters, key=key)
    hits = answer.hits if answer is not None else []
    lines = [line for hit in hits for line in render_hit(hit, context.now, partial(click.style, bold=True))]
    if answer is not None and hits:
        lines += ["", answer.total, *describe_facets(answer), *answer.notes]
    elif is_search:
        lines = [f"No run in {context.where} matches.", *(answer.notes if answer is not None else ())]
    context.print([to_search_facts(hit) for hit in hits], lines)
    if answer is not None and answer.next_position is not None:
        more = min(10 * limit, 10_000)
        click.echo(f"\nListed: the newest {format_count(limit, 'hit')}. For more: --limit {more}", err=True)


def _update_index(store: DatabaseStore, rebuild: bool) -> None:
    with show_progress_bar("indexing runs") as report_progress:
        try:
            if rebuild:
                store.clear_search(DEFAULT_TENANT)
            store.update_search(DEFAULT_TENANT, report_progress)
        except StoreError as error:  # read-only, or a full disk: the search reads the runs instead
            click.echo(f"warning: the search index could not be updated: {error}", err=True)


@command(
    "mulligan show last", "mulligan show run_8f2c --full", "mulligan show last --conversation",
    "mulligan show support-agent --json", "mulligan show run_8f2c run_91ab",
)  # fmt: skip
@click.argument("run", default="last")
@click.argument("other", required=False)
@click.option("--full", "is_full", is_flag=True, help="Print values, messages and stack traces whole, as stored.")
@click.option("--conversation", is_flag=True, help="Print the recorded messages, with failures at their place.")
def show(context: CommandContext, run: str, other: str | None, is_full: bool, conversation: bool) -> None:
    """Show one run: every attempt with its arguments, result, error, tokens and cost. Show two runs side by side.

    RUN is an id or the start of one, `last` for the newest run (the default), or an agent for its newest run. Values
    are printed as stored, that is without secrets. Long ones are cut; --full prints them whole. Models record their
    messages with record="full".
    """
    store = context.find_store()
    if store is None:
        raise SettingsError(f"No runs in {context.where} yet. Name another store with --store, or try: mulligan demo")
    history = find_run(store, run, context.now)
    if other is not None:
        comparison = compare_runs(history, find_run(store, other, context.now))
        context.print(comparison.to_facts(), render_comparison(comparison, context.width))
        return
    if conversation:
        entries = conversation_text.build_conversation([history])
        facts: dict[str, Any] = {"run": history.run.id, "entries": to_builtins(entries)}
        context.print(facts, conversation_text.render_conversation(history, context.width, is_full))
        return
    value_facts = _find_value_facts(store, history)
    facts = run_text.to_summary(history, value_facts) | to_builtins(history)
    actions = _describe_fixes(store, history, context.now)
    context.print(facts, run_text.render_run(history, context.now, context.width, is_full, value_facts, actions))


def _describe_fixes(store: Store, history: History, now: int) -> dict[str, str]:
    """Describe the learned fixes that a model of the run read, by id."""
    ids = {advised_fix.fix for advised_fix in history.run.advice}
    tools = sorted({call.name for call in group_attempts(history.steps) if call.has_failed}) if ids else ()
    queries = (FixQuery(tool=tool, now=now, limit=MAX_LISTED_FIXES) for tool in tools)
    fixes = (fix for query in queries for fix in store.fixes(DEFAULT_TENANT, query))
    return {fix.id: memory_text.describe_action(fix) for fix in fixes if fix.id in ids}


def _find_value_facts(store: Store, history: History) -> dict[int, list[str]]:
    """Return what successful calls have in common and unrecovered calls of a run have not, by the id of the call."""
    facts: dict[int, list[str]] = {}
    recovered_ids = {link.failed_call for link in history.links}
    failed_calls = [
        call for call in group_attempts(history.steps) if call.last.failure and call.id not in recovered_ids
    ]
    # Unrecovered calls of a run for which `mulligan show` looks up facts about successful calls, the latest.
    for call in failed_calls[-20:]:
        step, failure = call.last, call.last.failure
        if failure is not None and isinstance(step.arguments, dict):
            profiles = find_facts(store, DEFAULT_TENANT, call.name, step.tool_key, failure, step.arguments)
            if sentences := Prompt().for_arguments(step.arguments).facts(profiles):
                facts[call.id] = sentences
    return facts


@command("mulligan tail --failures", "mulligan tail --tool search --json | jq .step.name")
@filter_options(STEP_SPEC)
@click.option(
    "--lines",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    help="Number of attempts of the last hour to print first.",
)
def tail(context: CommandContext, lines: int, **filters: Any) -> NoReturn:
    """Print every attempt as it ends, until you press Ctrl-C. With --json, one JSON object per line."""
    store = context.find_store(may_be_missing=True)
    if store is None:
        click.echo(f"Store {context.where} does not exist yet; waiting for it.", err=True)
    url = context.settings.store_url
    path = None if url.startswith("memory:") or is_networked(url) else sqlite_path(url)
    reader = TailReader(STEP_SPEC.build_query(filters), context.now - START_LOOKBACK_MS)
    previous_stamp: object = None
    shown_count: int | None = lines
    while True:
        store = store or context.find_store(may_be_missing=True)
        stamp = _file_stamp(path) if path is not None else None
        if store is not None and (stamp is None or stamp != previous_stamp):
            previous_stamp = stamp
            events = reader.poll(store)
            for event, agent in events if shown_count is None else events[max(0, len(events) - shown_count) :]:
                text, columns = logging.format_event(event, agent), context.width
                context.print(event, text if columns is None else truncate(text, columns))
            shown_count = None
        time.sleep(POLL_INTERVAL_SECONDS)


def _file_stamp(path: Path) -> list[tuple[int, int]]:
    """Return a value that changes with every write, so that an idle store is not read."""
    stamps = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            stamps.append((status.st_mtime_ns, status.st_size))
    return stamps


@command(
    "mulligan stats",
    "mulligan stats --by tool --since 24h",
    "mulligan stats --by kind --agent support-agent --csv",
    "mulligan stats --agent support-agent --compare 1.0 1.1",
    "mulligan stats --by model --compare small-1 big-1",
)
@filter_options(STATS_SPEC)
@click.option(
    "--compare", nargs=2, metavar="A B", help="Compare two versions; with --by, two values of that dimension."
)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), help="Maximum rows with --by. Default: 20; all with --json or --csv."
)
@click.option("--csv", "as_csv", is_flag=True, help="With --by: print the rows as CSV.")
def stats(
    context: CommandContext, compare: tuple[str, str] | None, limit: int | None, as_csv: bool, **filters: Any
) -> None:
    """Show failure and recovery statistics, with their cost and suggestions.

    Counts are by full hour, or by full UTC day for periods over three days. The output names the period.
    """
    if as_csv and (filters["by"] is None or compare):
        raise SettingsError("--csv needs --by, such as --by tool, and excludes --compare.")
    query = STATS_SPEC.build_query(filters, now=context.now)
    store = context.find_store()
    if compare:
        _compare(context, store, query, compare)
        return
    answer = _compute_stats(store, query)
    if as_csv or context.as_json:
        by = query.by or ""
        answer_facts = overview.build_answer(answer, limit, caused=_count_caused(store, query))
        rows = answer_facts.get("parts", [])
        csv_lines = render_csv(rows, [by, *STATS_SPEC.csv_columns])
        undeclared_kinds = list_undeclared_kinds(answer.total, context.settings.kinds)
        if query.by is None and query.kind is None:
            recovery_costs.add_facts(answer_facts, _read_failed_runs(store, query))
        context.print(answer_facts | {"undeclared_kinds": undeclared_kinds}, csv_lines)
        return
    if query.by is None and query.kind is None:
        tools, agents, series = (
            _compute_stats(store, replace(query, by=by, detail=by == "tool")) for by in ("tool", "agent", "time")
        )
        model_recovery = recovery_costs.to_facts(_read_failed_runs(store, query))
        print_lines(overview.render_overview(answer, tools, agents, series, context.width, model_recovery))
        if undeclared_kinds := list_undeclared_kinds(answer.total, context.settings.kinds):
            click.echo(f"\nNot declared: {', '.join(map(to_line, undeclared_kinds[:10]))}.")
            click.echo(f'To give one a remedy and a hint: [kinds."{to_line(undeclared_kinds[0])}"] in mulligan.toml.')
    else:
        _print_by_dimension(context, store, query, answer, limit or 20)  # rows of `mulligan stats --by` as text
    if not (answer.total.calls or started_runs(answer.total) or query.since is None):
        if store is not None:
            older = count_older_runs(store, DEFAULT_TENANT, query.now, query.since)
            count = f" has {format_count(older, 'older run')}: --since all" if older else " has no older runs."
            click.echo(f"Store {context.where}{count}", err=True)
        else:
            click.echo(f"Store {context.where} does not exist yet. {FIRST_STEPS}", err=True)


def _print_by_dimension(
    context: CommandContext, store: Store | None, query: StatsQuery, answer: Stats, limit: int
) -> None:
    print_lines(overview.render_headline(answer, query.kind))
    if query.by is None:
        answer = _compute_stats(store, replace(query, by="tool"))
    if answer.parts and (answer.total.calls or answer.total.kinds):
        when = "%Y-%m-%d %H:%M" if answer.grain == "hour" else "%Y-%m-%d"
        click.echo("")
        by, is_single_kind = answer.by or "", query.kind is not None
        caused = _count_caused(store, query) if query.by == by else None
        print_lines(
            overview.render_by_dimension(answer.parts, by, limit, context.width, when, is_single_kind, caused=caused)
        )
    elif answer.total.calls:
        click.echo(f"No records with a {query.by} in this period.")


def _read_failed_runs(store: Store | None, query: StatsQuery) -> recovery_costs.FailedRuns:
    return (
        recovery_costs.read_failed_runs(store, DEFAULT_TENANT, query) if store is not None else recovery_costs.NO_RUNS
    )


def _count_caused(store: Store | None, query: StatsQuery) -> dict[str, int] | None:
    """Return the failed tool calls that each model requested; None unless the query is by model."""
    if store is None or query.by != "model":
        return None
    return recovery_costs.count_caused_failures(recovery_costs.read_failed_runs(store, DEFAULT_TENANT, query).histories)


def _compute_stats(store: Store | None, query: StatsQuery) -> Stats:
    return store.stats(DEFAULT_TENANT, query) if store is not None else counters.stats([], query)


def _compare(context: CommandContext, store: Store | None, query: StatsQuery, values: tuple[str, str]) -> None:
    dimension = query.by or "version"
    if dimension not in overview.COMPARABLE_DIMENSIONS:
        raise SettingsError(
            f"Cannot compare by {dimension}. With --compare, --by takes: {', '.join(overview.COMPARABLE_DIMENSIONS)}."
        )
    queries = replace(query, by=None, **{dimension: values[0]}), replace(query, by=None, **{dimension: values[1]})
    for value, side_query in zip(values, queries, strict=True):
        side = _compute_stats(store, side_query).total
        if store is None or not (side.calls or started_runs(side)):
            names = ", ".join(sorted(_compute_stats(store, replace(query, by=dimension)).parts)[:10])
            hint = f"Available: {names}." if names else "No run in this period has one."
            raise SettingsError(f"No records with {dimension} {value!r} in this period. {hint}")
    if store is not None:
        comparison = compare_groups(store, DEFAULT_TENANT, values, queries)
        facts = {"by": dimension, **overview.comparison_facts(comparison)}
        context.print(facts, overview.render_comparison(comparison, context.width))


@command("mulligan impact", "mulligan impact --agent support-agent --since 30d", "mulligan impact --markdown")
@filter_options(IMPACT_SPEC)
@click.option("--markdown", is_flag=True, help="Print Markdown to paste into a message.")
def impact(context: CommandContext, markdown: bool, **filters: Any) -> None:
    """Show whether mulligan helps your agents: failures with its help compared with those without.

    From a share of runs, help is held out: settings `holdout`, `holdout_reminders` and `holdout_repairs`. Exits 1 if
    something harms.
    """
    store = context.find_store()
    if store is None:
        raise SettingsError(f"No runs in {context.where} yet. Name another store with --store, or try: mulligan demo")
    query = IMPACT_SPEC.build_query(filters)
    report = impact_report.build_report(store, DEFAULT_TENANT, query, context.now)
    period = f"Since {format_timestamp(query.since)} UTC" if query.since is not None else "All time"
    if markdown:
        print_lines(impact_text.render_markdown(report, period))
    else:
        context.print(impact_report.to_facts(report), impact_text.render_report(report, period, context.width))
    if any(row.verdict == "worse" for row in (*report.summary, *report.contributions)):
        raise SystemExit(1)
