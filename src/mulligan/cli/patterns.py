"""mulligan patterns: list, show and manage failure patterns."""

from __future__ import annotations

import sys
from typing import Any, Literal

import click

from mulligan.cli.groups import CommandGroup
from mulligan.cli.lists import import_function, item_options, open_store_of, print_list, read_list, resource_options
from mulligan.cli.options import (
    load_settings,
    now_ms,
    print_json,
    print_lines,
    store_option_suffix,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, Pattern, to_builtins
from mulligan.learn.similar import find_related
from mulligan.report import memory_text
from mulligan.report.resources import PATTERN_SPEC
from mulligan.report.tables import SHOWN_ID_CHARS, format_count, render_columns, to_line
from mulligan.store.base import DAY, DEFAULT_TENANT, FixQuery, PatternCommand, RecallQuery, Store

EXAMPLES = """Examples:

  mulligan patterns --since 7d

  mulligan patterns --new --since 1d || echo new failures

  mulligan patterns show pat_8f2c

  mulligan patterns similar pat_8f2c

  mulligan patterns mute pat_8f2c

  mulligan patterns merge pat_8f2c pat_11aa"""


@click.group(cls=CommandGroup, invoke_without_command=True, epilog=EXAMPLES, subcommand_metavar="[COMMAND]")
@click.option("--new", is_flag=True, help="Only patterns first seen within --since (1d); exits 1 if there are any.")
@resource_options(PATTERN_SPEC)
@click.pass_context
def patterns(
    context: click.Context, /, new: bool, limit: int, as_csv: bool, store: str | None, as_json: bool, **filters: Any
) -> None:
    """List patterns: failures with the same cause, counted together."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    settings = load_settings(store)
    since = filters["since"]
    if new:
        filters |= {"since": None, "new_since": since if since is not None else now_ms() - DAY}
    existing_store, matches = read_list(PATTERN_SPEC, settings, limit, filters)
    if not print_list(PATTERN_SPEC, matches, limit, as_json, as_csv):
        if existing_store is None:
            click.echo(f"Store {settings.store_url} does not exist yet.")
            click.echo("Wrap a function with @mulligan.tool and call it, or try: mulligan demo")
        elif new:
            click.echo("No new patterns in this period.")
        else:
            click.echo("No pattern matches." if since is None else "No pattern occurred in this period.")
    elif not (as_json or as_csv):
        id = matches[0].id[:SHOWN_ID_CHARS]
        click.echo(f"\nShow one: mulligan patterns show {id}{store_option_suffix(store)}", err=True)
    sys.exit(1 if new and matches else 0)


def _find_pattern(store: Store, id: str) -> Pattern:
    pattern = store.pattern(DEFAULT_TENANT, id)
    if pattern is None:
        raise _unknown_pattern_error(id)
    return pattern


def _unknown_pattern_error(id: str) -> SettingsError:
    return SettingsError(f"No pattern matches {id!r}, or several start with it. List patterns: mulligan patterns")


@patterns.command(
    epilog="Examples:\n\n  mulligan patterns similar pat_8f2c\n\n"
    "  mulligan patterns similar pat_8f2c --embedder mine:embed"
)
@click.argument("pattern")
@click.option(
    "--embedder",
    metavar="MODULE:FUNCTION",
    help="Your function that turns a text into a vector; it gets each pattern once.",
)
@click.option(
    "--limit", default=10, show_default=True, type=click.IntRange(1, 1000), help="Maximum number of patterns."
)
@item_options
def similar(
    context: click.Context, pattern: str, embedder: str | None, limit: int, store: str | None, as_json: bool
) -> None:
    """List patterns of any tool that are similar to one, with their fixes.

    A fix of a similar pattern may help: try it, or count both as one with `mulligan patterns merge`.
    """
    existing_store = open_store_of(context, store)
    stored_pattern = _find_pattern(existing_store, pattern)
    embed = import_function("--embedder", embedder, "embed") if embedder else None
    rows = [
        (similarity, related, _find_best_fix(existing_store, related))
        for similarity, related in find_related(
            existing_store, DEFAULT_TENANT, stored_pattern, limit, embed, embedder or ""
        )
    ]
    if as_json:
        print_json(
            [
                {"similarity": round(similarity, 4), **memory_text.pattern_facts(related)}
                | {"fix": memory_text.fix_facts(fix) if fix else None}
                for similarity, related, fix in rows
            ]
        )
        return
    if not rows:
        click.echo("No similar pattern.")
        return
    click.echo(f"{format_count(len(rows), 'similar pattern')}.\n")
    table = [("similarity", "pattern", "tool", "fix", "message template")]
    table += [
        (
            f"{similarity:.0%}",
            related.id[:SHOWN_ID_CHARS],
            to_line(related.tool, 30),
            memory_text.describe_action(fix) if fix else "-",
            to_line(related.template or related.message, 80),
        )
        for similarity, related, fix in rows
    ]
    print_lines(render_columns(table, right=(0,), width=terminal_width()))


def _find_best_fix(store: Store, pattern: Pattern) -> Fix | None:
    query = FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=now_ms(), limit=1)
    return next(iter(store.fixes(DEFAULT_TENANT, query)), None)


@patterns.command(epilog="Examples:\n\n  mulligan patterns show pat_8f2c --json")
@click.argument("pattern")
@item_options
def show(context: click.Context, pattern: str, store: str | None, as_json: bool) -> None:
    """Show one pattern: its message template, its occurrences and its fixes.

    PATTERN is an id or any unambiguous prefix.
    """
    existing_store = open_store_of(context, store)
    stored_pattern = _find_pattern(existing_store, pattern)
    precedents = existing_store.recall(
        DEFAULT_TENANT, RecallQuery(tool=stored_pattern.tool, fingerprint=stored_pattern.fingerprint)
    )
    if as_json:
        print_json(memory_text.pattern_facts(stored_pattern) | {"precedents": to_builtins(precedents)})
    else:
        print_lines(memory_text.render_pattern(stored_pattern, precedents, now_ms(), terminal_width()))


PatternAction = Literal["mute", "unmute", "resolve", "reopen", "merge", "split"]


def _decide(store: Store, action: PatternAction, ids: tuple[str, ...], as_json: bool, into: str | None = None) -> None:
    for id in (*ids, *([into] if into else [])):  # check all before any is changed
        if action != "split":
            _find_pattern(store, id)
    updated_patterns: list[Pattern] = []
    for id in ids:
        command = PatternCommand(action=action, pattern=id, into=into, at=now_ms())
        updated_pattern = store.update_pattern(DEFAULT_TENANT, command)
        if updated_pattern is None:
            raise _unknown_pattern_error(id)
        updated_patterns.append(updated_pattern)
    if as_json:
        print_json(list(map(memory_text.pattern_facts, updated_patterns)))
        return
    for id, pattern in zip(ids, updated_patterns, strict=True):
        click.echo(_describe_decision(action, pattern, id))


def _describe_decision(action: PatternAction, pattern: Pattern, id: str) -> str:
    occurrences = format_count(pattern.occurrences, "occurrence")
    match action:
        case "resolve":
            return f"{pattern.id} is resolved. It reopens at the next occurrence."
        case "merge":
            return f"{pattern.id} now has {occurrences}. To undo: mulligan patterns split {id}"
        case "split":
            return f"{pattern.id} is separate again, with {occurrences}."
    return f"{pattern.id} is {pattern.state}."


@patterns.command()
@click.argument("pattern")
@click.argument("into")
@item_options
def merge(context: click.Context, pattern: str, into: str, store: str | None, as_json: bool) -> None:
    """Count PATTERN as part of INTO from now on, including earlier occurrences."""
    _decide(open_store_of(context, store), "merge", (pattern,), as_json, into)


def _add_decision_command(action: PatternAction, help: str) -> None:
    """Register the command that applies this decision to patterns."""

    @patterns.command(action, help=help)
    @click.argument("pattern", nargs=-1, required=True)
    @item_options
    def command(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
        _decide(open_store_of(context, store), action, pattern, as_json)


_add_decision_command("mute", "Hide patterns from lists and alerts.")
_add_decision_command("unmute", "Show muted patterns in lists and alerts again.")
_add_decision_command("resolve", "Mark patterns as resolved; they reopen at the next occurrence.")
_add_decision_command("reopen", "Reopen resolved patterns.")
_add_decision_command("split", "Separate patterns that were merged into others.")
