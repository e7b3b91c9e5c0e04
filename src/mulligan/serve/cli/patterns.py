"""mulligan patterns: list, show and manage failure patterns."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Literal

import click

from mulligan.failure import SettingsError
from mulligan.records import Fix, Pattern, builtins
from mulligan.remember import kin
from mulligan.remember.store import LOCAL, Command, FixQuery, PatternQuery, Question, Store
from mulligan.report import fixes
from mulligan.report import patterns as told
from mulligan.report.tables import as_csv, columns, count, line
from mulligan.serve.cli.groups import Group
from mulligan.serve.cli.options import (
    as_json,
    csv_option,
    kind_option,
    limit_option,
    moment,
    needed,
    now,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    there,
    told_more,
    width,
)

EXAMPLES = """Examples:

  mulligan patterns --since 7d

  mulligan patterns --new --since 1d || echo something new goes wrong

  mulligan patterns show pat_8f2c

  mulligan patterns like pat_8f2c

  mulligan patterns mute pat_8f2c

  mulligan patterns merge pat_8f2c pat_11aa"""


@click.group(cls=Group, invoke_without_command=True, epilog=EXAMPLES, subcommand_metavar="[COMMAND]")
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
    **narrowed: Any,
) -> None:
    """What goes wrong again and again: failures of one cause, counted together."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    settings = settings_with(store)
    since = moment(past or ("1d" if new else None))
    query = PatternQuery(since=None if new else since, new_since=since if new else None, **narrowed)
    kept = opened(settings)
    found = kept.patterns(LOCAL, query) if kept is not None else []
    if as_json:
        print_json([told.facts(pattern) for pattern in found])
    elif as_comma:
        print_lines(as_csv((told.facts(pattern) for pattern in found), told.CSV))
    elif found:
        print_lines(told.listed(found, now(), width()))
        told_more(len(found), query.limit)
        click.echo(f"\nLook at one: mulligan patterns show {found[0].id[: told.ID]}{there(store)}", err=True)
    else:
        click.echo(_nothing(new, past, settings.store_url, kept is not None))
    sys.exit(1 if new and found else 0)


def _nothing(new: bool, past: str | None, url: str, is_there: bool) -> str:
    if not is_there:
        return f"There is no {url} yet.\nWrap a function with @mulligan.tool and call it, or try: mulligan demo"
    if new:
        return f"Nothing new went wrong within {past or '1d'}."
    return "No pattern matches." if past is None else f"No pattern was met within {past}."


def _opened(context: click.Context, store: str | None) -> Store:
    return needed(settings_with(store or context.obj))


def _unknown(id: str) -> SettingsError:
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
    kept = _opened(context, store)
    found = kept.pattern(LOCAL, pattern)
    if found is None:
        raise _unknown(pattern)
    others = kin.like(kept, LOCAL, found, limit, _embedder(embedder) if embedder else None, embedder or "")
    rows = [(likeness, each, _best(kept, each)) for likeness, each in others]
    if as_json:
        print_json(
            [
                {"likeness": round(likeness, 4), **told.facts(each), "fix": fixes.facts(best) if best else None}
                for likeness, each, best in rows
            ]
        )
        return
    if not rows:
        click.echo("Nothing else looks like it.")
        return
    click.echo(f"{count(len(rows), 'pattern')} like it.\n")
    table = [
        (f"{likeness:.0%}", each.id[: told.ID], line(each.tool, 30), fixes.does(best) if best else "-",
         line(each.template or each.message, 80))
        for likeness, each, best in rows
    ]  # fmt: skip
    print_lines(columns([("alike", "pattern", "tool", "what helped", "wording"), *table], right=(0,), width=width()))


def _best(kept: Store, pattern: Pattern) -> Fix | None:
    found = kept.fixes(LOCAL, FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=now(), limit=1))
    return found[0] if found else None


def _embedder(named: str) -> kin.Embedder:
    module, _, function = named.partition(":")
    try:
        sys.path.insert(0, "")  # like `python -m`: allows modules of the working directory
        found = getattr(importlib.import_module(module), function or "embed")
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"--embedder {named!r} cannot be found ({error}). Name it as module:function.") from None
    finally:
        sys.path.remove("")
    if not callable(found):
        raise SettingsError(f"--embedder {named!r} is not a function. Name it as module:function.")
    return found  # type: ignore[no-any-return]


@patterns.command(epilog="Examples:\n\n  mulligan patterns show pat_8f2c --json")
@click.argument("pattern")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, pattern: str, store: str | None, as_json: bool) -> None:
    """One pattern: why its failures are one, when they came, what overcame them.

    PATTERN is an id or any unambiguous beginning of one.
    """
    kept = _opened(context, store)
    found = kept.pattern(LOCAL, pattern)
    if found is None:
        raise _unknown(pattern)
    known = kept.recall(LOCAL, Question(tool=found.tool, fingerprint=found.fingerprint))
    if as_json:
        print_json(told.facts(found) | {"overcome_before": builtins(known)})
    else:
        print_lines(told.shown(found, known, now(), width()))


def _decide(
    context: click.Context,
    do: Literal["mute", "unmute", "resolve", "reopen", "merge", "split"],
    ids: tuple[str, ...],
    store: str | None,
    as_json: bool,
    into: str | None = None,
) -> None:
    kept = _opened(context, store)
    for id in (*ids, *([into] if into else [])):  # check all before any is changed
        if do != "split" and kept.pattern(LOCAL, id) is None:
            raise _unknown(id)
    changed: list[Pattern] = []
    for id in ids:
        after = kept.change(LOCAL, Command(do=do, pattern=id, into=into, at=now()))
        if after is None:
            raise _unknown(id)
        changed.append(after)
    if as_json:
        print_json([told.facts(each) for each in changed])
        return
    for given, each in zip(ids, changed, strict=True):
        click.echo(_said(do, each, given))


def _said(do: str, pattern: Pattern, given: str) -> str:
    if do == "resolve":
        return f"{pattern.id} is resolved. It opens again when it is met again."
    if do == "merge":
        return f"{pattern.id} now counts {count(pattern.count, 'failure')}. To undo: mulligan patterns split {given}"
    if do == "split":
        return f"{pattern.id} stands by itself again, with {count(pattern.count, 'failure')}."
    return f"{pattern.id} is {pattern.state}."


ids = click.argument("pattern", nargs=-1, required=True)


@patterns.command()
@ids
@store_option
@as_json
@click.pass_context
def mute(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Leave patterns out of lists and alerts, however often they are met."""
    _decide(context, "mute", pattern, store, as_json)


@patterns.command()
@ids
@store_option
@as_json
@click.pass_context
def unmute(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """List patterns again that were muted."""
    _decide(context, "unmute", pattern, store, as_json)


@patterns.command()
@ids
@store_option
@as_json
@click.pass_context
def resolve(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Say that patterns are mended; they open again when they are met again."""
    _decide(context, "resolve", pattern, store, as_json)


@patterns.command()
@ids
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
@ids
@store_option
@as_json
@click.pass_context
def split(context: click.Context, pattern: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Make patterns their own again that were merged into others."""
    _decide(context, "split", pattern, store, as_json)
