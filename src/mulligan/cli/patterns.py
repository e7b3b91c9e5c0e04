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
from mulligan.report import fix_report
from mulligan.report import pattern_report as told
from mulligan.report.tables import format_count, render_columns, render_csv, to_line
from mulligan.store.base import DEFAULT_TENANT, FixQuery, PatternCommand, PatternQuery, RecallQuery, Store

EXAMPLES = """Examples:

  mulligan patterns --since 7d

  mulligan patterns --new --since 1d || echo something new goes wrong

  mulligan patterns show pat_8f2c

  mulligan patterns like pat_8f2c

  mulligan patterns mute pat_8f2c

  mulligan patterns merge pat_8f2c pat_11aa"""


@click.group(cls=CommandGroup, invoke_without_command=True, epilog=EXAMPLES, subcommand_metavar="[COMMAND]")
@click.option("--since", "past", metavar="7d", help="Met within this time, and counted over it: 24h, 7d, a date.")
@click.option("--new", is_flag=True, help="Only those met for the first time within --since (1d); exits 1 if any.")
@click.option("--state", type=click.Choice(["new", "active", "resolved", "muted"]), help="Without: all but muted.")
@click.option("--tool", help="Only this tool's.")
@kind_option("Only of this kind, such as tool/timeout, or of a type (tool).")
@click.option("--agent", help="Only those this agent met.")
@click.option("--text", help="Only those with this text in their tool, kind or message.")
@click.option("--order", type=click.Choice(["count", "given_up", "last", "first"]), default="count", show_default=True)
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
    """What goes wrong again and again: failures of one cause, counted together."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    settings = load_settings(store)
    since = parse_time_option(past or ("1d" if new else None))
    query = PatternQuery(since=None if new else since, new_since=since if new else None, **filters)
    existing_store = open_existing_store(settings)
    matching_patterns = existing_store.patterns(DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([told.to_facts(pattern) for pattern in matching_patterns])
    elif as_comma:
        print_lines(render_csv((told.to_facts(pattern) for pattern in matching_patterns), told.CSV_COLUMNS))
    elif matching_patterns:
        print_lines(told.render_list(matching_patterns, now_ms(), terminal_width()))
        warn_if_truncated(len(matching_patterns), query.limit)
        click.echo(
            f"\nLook at one: mulligan patterns show {matching_patterns[0].id[: told.SHOWN_ID_CHARS]}"
            f"{store_option_suffix(store)}",
            err=True,
        )
    else:
        click.echo(_explain_missing_patterns(new, past, settings.store_url, existing_store is not None))
    sys.exit(1 if new and matching_patterns else 0)


def _explain_missing_patterns(new: bool, past: str | None, url: str, has_store: bool) -> str:
    if not has_store:
        return f"There is no {url} yet.\nWrap a function with @mulligan.tool and call it, or try: mulligan demo"
    if new:
        return f"Nothing new went wrong within {past or '1d'}."
    return "No pattern matches." if past is None else f"No pattern was met within {past}."


def _open_store(context: click.Context, store: str | None) -> Store:
    return require_store(load_settings(store or context.obj))


def _unknown_pattern_error(id: str) -> SettingsError:
    return SettingsError(f"there is no pattern {id!r}, or more than one begins so. See them: mulligan patterns")


@patterns.command(
    epilog="Examples:\n\n  mulligan patterns like pat_8f2c\n\n  mulligan patterns like pat_8f2c --embedder mine:embed"
)
@click.argument("pattern")
@click.option(
    "--embedder",
    metavar="MODULE:FUNCTION",
    help="A function of yours that turns a text into numbers; each pattern is given to it once.",
)
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 1000), help="How many.")
@store_option
@as_json
@click.pass_context
def like(
    context: click.Context, pattern: str, embedder: str | None, limit: int, store: str | None, as_json: bool
) -> None:
    """Patterns that look like one, of whichever tool, and what overcame those.

    What helped one may help the other: try it, or count them together with `mulligan patterns merge`.
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
                    "likeness": round(similarity, 4),
                    **told.to_facts(related_pattern),
                    "fix": fix_report.to_facts(best) if best else None,
                }
                for similarity, related_pattern, best in rows
            ]
        )
        return
    if not rows:
        click.echo("Nothing else looks like it.")
        return
    click.echo(f"{format_count(len(rows), 'pattern')} like it.\n")
    table = [
        (f"{similarity:.0%}", related_pattern.id[: told.SHOWN_ID_CHARS], to_line(related_pattern.tool, 30),
         fix_report.describe_action(best) if best else "-",
         to_line(related_pattern.template or related_pattern.message, 80))
        for similarity, related_pattern, best in rows
    ]  # fmt: skip
    print_lines(
        render_columns(
            [("alike", "pattern", "tool", "what helped", "wording"), *table], right=(0,), width=terminal_width()
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
        raise SettingsError(
            f"--embedder {function_path!r} cannot be found ({error}). Name it as module:function."
        ) from None
    finally:
        sys.path.remove("")
    if not callable(embedder):
        raise SettingsError(f"--embedder {function_path!r} is not a function. Name it as module:function.")
    return embedder  # type: ignore[no-any-return]


@patterns.command(epilog="Examples:\n\n  mulligan patterns show pat_8f2c --json")
@click.argument("pattern")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, pattern: str, store: str | None, as_json: bool) -> None:
    """One pattern: why its failures are one, when they came, what overcame them.

    PATTERN is an id or any unambiguous beginning of one.
    """
    existing_store = _open_store(context, store)
    stored_pattern = existing_store.pattern(DEFAULT_TENANT, pattern)
    if stored_pattern is None:
        raise _unknown_pattern_error(pattern)
    precedents = existing_store.recall(
        DEFAULT_TENANT, RecallQuery(tool=stored_pattern.tool, fingerprint=stored_pattern.fingerprint)
    )
    if as_json:
        print_json(told.to_facts(stored_pattern) | {"overcome_before": to_builtins(precedents)})
    else:
        print_lines(told.render_detail(stored_pattern, precedents, now_ms(), terminal_width()))


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
            DEFAULT_TENANT, PatternCommand(do=do, pattern=id, into=into, at=now_ms())
        )
        if updated_pattern is None:
            raise _unknown_pattern_error(id)
        updated_patterns.append(updated_pattern)
    if as_json:
        print_json([told.to_facts(pattern) for pattern in updated_patterns])
        return
    for pattern_id, pattern in zip(ids, updated_patterns, strict=True):
        click.echo(_describe_decision(do, pattern, pattern_id))


def _describe_decision(do: str, pattern: Pattern, pattern_id: str) -> str:
    if do == "resolve":
        return f"{pattern.id} is resolved. It opens again when it is met again."
    if do == "merge":
        counted = f"{pattern.id} now counts {format_count(pattern.count, 'failure')}."
        return f"{counted} To undo: mulligan patterns split {pattern_id}"
    if do == "split":
        return f"{pattern.id} stands by itself again, with {format_count(pattern.count, 'failure')}."
    return f"{pattern.id} is {pattern.state}."


patterns_argument = click.argument("pattern", nargs=-1, required=True)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def mute(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Leave patterns out of lists and alerts, however often they are met."""
    _decide(context, "mute", pattern, store, as_json)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def unmute(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """List patterns again that were muted."""
    _decide(context, "unmute", pattern, store, as_json)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def resolve(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Say that patterns are mended; they open again when they are met again."""
    _decide(context, "resolve", pattern, store, as_json)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def reopen(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Take back that patterns are resolved."""
    _decide(context, "reopen", pattern, store, as_json)


@patterns.command()
@click.argument("pattern")
@click.argument("into")
@store_option
@as_json
@click.pass_context
def merge(context: click.Context, pattern: str, into: str, store: str | None, as_json: bool) -> None:
    """Count PATTERN as part of INTO, now and from now on: they are the same trouble."""
    _decide(context, "merge", (pattern,), store, as_json, into)


@patterns.command()
@patterns_argument
@store_option
@as_json
@click.pass_context
def split(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Make patterns their own again that were merged into others."""
    _decide(context, "split", pattern, store, as_json)
