"""mulligan patterns: list, show and manage failure patterns."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Literal

import click

from mulligan.cli.groups import CommandGroup
from mulligan.cli.options import (
    as_json,
    csv_option,
    kind_option,
    limit_option,
    load_settings,
    now_ms,
    open_existing_store,
    parse_time_option,
    print_json,
    print_lines,
    require_store,
    store_option,
    store_option_suffix,
    terminal_width,
    warn_if_truncated,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, Pattern, to_builtins
from mulligan.learn import related_patterns as related_patterns_module
from mulligan.report import fix_report, pattern_report
from mulligan.report.tables import format_count, render_columns, render_csv, to_line
from mulligan.store.base import DEFAULT_TENANT, FixQuery, PatternCommand, PatternQuery, RecallQuery, Store

EXAMPLES = """Examples:

  mulligan patterns --since 7d

  mulligan patterns --new --since 1d || echo new failures

  mulligan patterns show pat_8f2c

  mulligan patterns similar pat_8f2c

  mulligan patterns mute pat_8f2c

  mulligan patterns merge pat_8f2c pat_11aa"""


@click.group(cls=CommandGroup, invoke_without_command=True, epilog=EXAMPLES, subcommand_metavar="[COMMAND]")
@click.option(
    "--since",
    "past",
    metavar="7d",
    help="Only patterns that occurred since this time, counted from then: 24h, 7d, a date.",
)
@click.option(
    "--new", is_flag=True, help="Only patterns that first occurred within --since (1d); exits 1 if there are any."
)
@click.option(
    "--state",
    type=click.Choice(["new", "active", "resolved", "muted"]),
    help="Only patterns in this state. Default: all but muted.",
)
@click.option("--tool", help="Only patterns of this tool.")
@kind_option("Only patterns of this kind, such as tool/timeout, or of a type, such as tool.")
@click.option("--agent", help="Only patterns that occurred in runs of this agent.")
@click.option("--text", help="Only patterns with this text in their tool, kind or message.")
@click.option(
    "--order",
    type=click.Choice(["occurrences", "unrecovered", "last_seen", "first_seen"]),
    default="occurrences",
    show_default=True,
)
@limit_option
@csv_option
@store_option
@as_json
@click.pass_context
def patterns(
    context: click.Context,
    /,
    past: str | None,
    new: bool,
    as_comma: bool,
    store: str | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """List patterns: failures with the same cause, counted together."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    settings = load_settings(store)
    since = parse_time_option(past or ("1d" if new else None))
    query = PatternQuery(since=None if new else since, new_since=since if new else None, **filters)
    existing_store = open_existing_store(settings)
    matching_patterns = existing_store.patterns(DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([pattern_report.to_facts(pattern) for pattern in matching_patterns])
    elif as_comma:
        print_lines(
            render_csv((pattern_report.to_facts(pattern) for pattern in matching_patterns), pattern_report.CSV_COLUMNS)
        )
    elif matching_patterns:
        print_lines(pattern_report.render_list(matching_patterns, now_ms(), terminal_width()))
        warn_if_truncated(len(matching_patterns), query.limit)
        click.echo(
            "\n"
            "Show one: mulligan patterns show "
            f"{matching_patterns[0].id[: pattern_report.SHOWN_ID_CHARS]}{store_option_suffix(store)}",
            err=True,
        )
    else:
        click.echo(_explain_missing_patterns(new, past, settings.store_url, existing_store is not None))
    sys.exit(1 if new and matching_patterns else 0)


def _explain_missing_patterns(new: bool, past: str | None, url: str, has_store: bool) -> str:
    if not has_store:
        return (
            f"Store {url} does not exist yet.\nWrap a function with @mulligan.tool and call it, or try: mulligan demo"
        )
    if new:
        return f"No new patterns within {past or '1d'}."
    return "No pattern matches." if past is None else f"No pattern occurred within {past}."


def _open_store(context: click.Context, store: str | None) -> Store:
    return require_store(load_settings(store or context.obj))


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
@store_option
@as_json
@click.pass_context
def similar(
    context: click.Context, pattern: str, embedder: str | None, limit: int, store: str | None, as_json: bool
) -> None:
    """List patterns of any tool that are similar to one, with their fixes.

    A fix of a similar pattern may help: try it, or count both as one with `mulligan patterns merge`.
    """
    existing_store = _open_store(context, store)
    stored_pattern = existing_store.pattern(DEFAULT_TENANT, pattern)
    if stored_pattern is None:
        raise _unknown_pattern_error(pattern)
    related_patterns = related_patterns_module.find_related(
        existing_store,
        DEFAULT_TENANT,
        stored_pattern,
        limit,
        _load_embedder(embedder) if embedder else None,
        embedder or "",
    )
    rows = [
        (similarity, related_pattern, _find_best_fix(existing_store, related_pattern))
        for similarity, related_pattern in related_patterns
    ]
    if as_json:
        print_json(
            [
                {
                    "similarity": round(similarity, 4),
                    **pattern_report.to_facts(related_pattern),
                    "fix": fix_report.to_facts(best) if best else None,
                }
                for similarity, related_pattern, best in rows
            ]
        )
        return
    if not rows:
        click.echo("No similar pattern.")
        return
    click.echo(f"{format_count(len(rows), 'similar pattern')}.\n")
    table = [
        (f"{similarity:.0%}", related_pattern.id[: pattern_report.SHOWN_ID_CHARS], to_line(related_pattern.tool, 30),
         fix_report.describe_action(best) if best else "-",
         to_line(related_pattern.template or related_pattern.message, 80))
        for similarity, related_pattern, best in rows
    ]  # fmt: skip
    print_lines(
        render_columns(
            [("similarity", "pattern", "tool", "fix", "message template"), *table], right=(0,), width=terminal_width()
        )
    )


def _find_best_fix(store: Store, pattern: Pattern) -> Fix | None:
    matching_fixes = store.fixes(
        DEFAULT_TENANT, FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=now_ms(), limit=1)
    )
    return matching_fixes[0] if matching_fixes else None


def _load_embedder(function_path: str) -> related_patterns_module.Embedder:
    module, _, function = function_path.partition(":")
    try:
        sys.path.insert(0, "")  # like `python -m`: allows modules of the working directory
        embedder = getattr(importlib.import_module(module), function or "embed")
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"Cannot import --embedder {function_path!r} ({error}). Use MODULE:FUNCTION.") from None
    finally:
        sys.path.remove("")
    if not callable(embedder):
        raise SettingsError(f"--embedder {function_path!r} is not a function. Use MODULE:FUNCTION.")
    return embedder  # type: ignore[no-any-return]


@patterns.command(epilog="Examples:\n\n  mulligan patterns show pat_8f2c --json")
@click.argument("pattern")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, pattern: str, store: str | None, as_json: bool) -> None:
    """Show one pattern: its message template, its occurrences and its fixes.

    PATTERN is an id or any unambiguous prefix.
    """
    existing_store = _open_store(context, store)
    stored_pattern = existing_store.pattern(DEFAULT_TENANT, pattern)
    if stored_pattern is None:
        raise _unknown_pattern_error(pattern)
    precedents = existing_store.recall(
        DEFAULT_TENANT, RecallQuery(tool=stored_pattern.tool, fingerprint=stored_pattern.fingerprint)
    )
    if as_json:
        print_json(pattern_report.to_facts(stored_pattern) | {"precedents": to_builtins(precedents)})
    else:
        print_lines(pattern_report.render_detail(stored_pattern, precedents, now_ms(), terminal_width()))


def _decide(
    context: click.Context,
    do: Literal["mute", "unmute", "resolve", "reopen", "merge", "split"],
    ids: tuple[str, ...],
    store: str | None,
    as_json: bool,
    into: str | None = None,
) -> None:
    existing_store = _open_store(context, store)
    for id in (*ids, *([into] if into else [])):  # check all before any is changed
        if do != "split" and existing_store.pattern(DEFAULT_TENANT, id) is None:
            raise _unknown_pattern_error(id)
    updated_patterns: list[Pattern] = []
    for id in ids:
        updated_pattern = existing_store.update_pattern(
            DEFAULT_TENANT, PatternCommand(action=do, pattern=id, into=into, at=now_ms())
        )
        if updated_pattern is None:
            raise _unknown_pattern_error(id)
        updated_patterns.append(updated_pattern)
    if as_json:
        print_json([pattern_report.to_facts(pattern) for pattern in updated_patterns])
        return
    for pattern_id, pattern in zip(ids, updated_patterns, strict=True):
        click.echo(_describe_decision(do, pattern, pattern_id))


def _describe_decision(do: str, pattern: Pattern, pattern_id: str) -> str:
    if do == "resolve":
        return f"{pattern.id} is resolved. It reopens at the next occurrence."
    if do == "merge":
        summary = f"{pattern.id} now has {format_count(pattern.occurrences, 'occurrence')}."
        return f"{summary} To undo: mulligan patterns split {pattern_id}"
    if do == "split":
        return f"{pattern.id} is separate again, with {format_count(pattern.occurrences, 'occurrence')}."
    return f"{pattern.id} is {pattern.state}."


patterns_argument = click.argument("pattern", nargs=-1, required=True)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def mute(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Hide patterns from lists and alerts."""
    _decide(context, "mute", pattern, store, as_json)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def unmute(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Show muted patterns in lists and alerts again."""
    _decide(context, "unmute", pattern, store, as_json)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def resolve(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Mark patterns as resolved; they reopen at the next occurrence."""
    _decide(context, "resolve", pattern, store, as_json)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def reopen(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Reopen resolved patterns."""
    _decide(context, "reopen", pattern, store, as_json)


@patterns.command()
@click.argument("pattern")
@click.argument("into")
@store_option
@as_json
@click.pass_context
def merge(context: click.Context, pattern: str, into: str, store: str | None, as_json: bool) -> None:
    """Count PATTERN as part of INTO from now on, including earlier occurrences."""
    _decide(context, "merge", (pattern,), store, as_json, into)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def split(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Separate patterns that were merged into others."""
    _decide(context, "split", pattern, store, as_json)
