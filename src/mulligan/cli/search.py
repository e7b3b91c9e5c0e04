"""mulligan search: find runs by the words in them."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mulligan.cli.options import CommandContext, command, filter_options, limit_option, show_progress_bar
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.failure import StoreError
from mulligan.report.resources import RUN_SPEC
from mulligan.report.run_search import render_hit, search_runs, to_search_facts
from mulligan.store.sql import DatabaseStore


@command(
    "mulligan search cus_8132", "mulligan search 'customer_id:cus_8132 -refund'",
    "mulligan search '\"card declined\" agent:billing status:failure since:7d'", "mulligan search --rebuild",
)  # fmt: skip
@click.argument("words", nargs=-1)
@filter_options(RUN_SPEC)
@limit_option
@click.option("--rebuild", is_flag=True, help="Build the index of the store again.")
def search(context: CommandContext, words: tuple[str, ...], limit: int, rebuild: bool, **filters: Any) -> None:
    """Find runs by words in arguments, results, errors, messages, context and metadata.

    A word is found where a word begins: cust finds "customer" and "big-customer". "a phrase" finds whole words.
    name:word finds the word in an argument, a key of metadata, or a part of a run (error, result, agent, tool, message,
    user). -word excludes runs. Filters may stand among the words: status:failure since:7d min_cost:0.5.

    The command first indexes the runs that ended since the last search. Searches see what is stored, that is without
    secrets.
    """
    if not words and not rebuild:
        raise click.UsageError("Name the words to search for, for example: mulligan search cus_8132")
    text = " ".join(f'"{word}"' if " " in word and '"' not in word and ":" not in word else word for word in words)
    hits = []
    if (store := context.find_store()) is not None:
        if isinstance(store, DatabaseStore):
            _update_index(store, rebuild)
        if words:
            hits = search_runs(store, DEFAULT_TENANT, text, context.now, limit, filters)
    lines = [line for hit in hits for line in render_hit(hit, context.now, partial(click.style, bold=True))]
    if not hits and words:
        lines = [f"No run in {context.where} contains {text[:100]}."]
    context.print([to_search_facts(hit) for hit in hits], lines)


def _update_index(store: DatabaseStore, rebuild: bool) -> None:
    with show_progress_bar("indexing runs") as report_progress:
        try:
            if rebuild:
                store.clear_search(DEFAULT_TENANT)
            store.update_search(DEFAULT_TENANT, report_progress)
        except StoreError as error:  # read-only, or a full disk: the search reads the runs instead
            click.echo(f"warning: the search index could not be updated: {error}", err=True)
