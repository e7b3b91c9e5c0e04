"""mulligan fixes: list fixes, show their evidence, approve or revoke them."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli.groups import CommandGroup
from mulligan.cli.lists import item_options, open_store_of, print_list, read_list, resource_options
from mulligan.cli.options import (
    load_settings,
    now_ms,
    parse_time_option,
    print_json,
    print_lines,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, to_builtins
from mulligan.report import memory_text
from mulligan.report.resources import FIX_SPEC
from mulligan.report.run_text import explain_trials
from mulligan.report.tables import format_count
from mulligan.store.base import DEFAULT_TENANT, FixQuery, Revocation, Store

MAX_LISTED_FIXES = 100_000


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    epilog="Examples:\n\n  mulligan fixes --tool search\n\n  mulligan fixes show fix_8f2c\n\n  "
    "mulligan fixes approve fix_8f2c\n\n  mulligan fixes revoke --principal ann --since 2d",
)
@resource_options(FIX_SPEC)
@click.pass_context
def fixes(
    context: click.Context, /, limit: int, as_csv: bool, store: str | None, as_json: bool, **filters: Any
) -> None:
    """List fixes: what turned failures into successes, how often, and whether it is shown to models or applied."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    _, matches = read_list(FIX_SPEC, load_settings(store), limit, filters)
    if not print_list(FIX_SPEC, matches, limit, as_json, as_csv):
        has_filters = any(value is not None for value in filters.values())
        click.echo("No fix matches." if has_filters else "No fixes yet: no failure has recovered.")


def _find_fix(store: Store, id: str) -> Fix:
    all_fixes = store.fixes(DEFAULT_TENANT, FixQuery(now=now_ms(), limit=MAX_LISTED_FIXES))
    matches = [fix for fix in all_fixes if fix.id == id] or [fix for fix in all_fixes if fix.id.startswith(id)]
    if len(matches) != 1:
        raise SettingsError(f"No fix matches {id!r}, or several start with it. List fixes: mulligan fixes")
    return matches[0]


@fixes.command(epilog="Examples:\n\n  mulligan fixes show fix_8f2c --json")
@click.argument("fix")
@item_options
def show(context: click.Context, fix: str, store: str | None, as_json: bool) -> None:
    """Show one fix: its action, whether it is applied and shown to models, its counts, and the runs behind it."""
    existing_store = open_store_of(context, store)
    stored_fix = _find_fix(existing_store, fix)
    evidence = existing_store.evidence(DEFAULT_TENANT, stored_fix.id)
    if as_json:
        print_json(memory_text.fix_facts(stored_fix) | {"evidence": to_builtins(evidence)})
    else:
        reasons = explain_trials(existing_store, DEFAULT_TENANT, stored_fix, evidence)
        print_lines(memory_text.render_fix(stored_fix, evidence, reasons, now_ms(), terminal_width()))


@fixes.command(epilog="Examples:\n\n  mulligan fixes approve fix_8f2c")
@click.argument("fix")
@item_options
def approve(context: click.Context, fix: str, store: str | None, as_json: bool) -> None:
    """Apply a fix automatically from now on, whatever its counts. Safety rules still hold."""
    _decide(open_store_of(context, store), fix, True, as_json)


def _decide(store: Store, id: str, approved: bool, as_json: bool) -> None:
    """Approve or revoke a fix and print it."""
    stored_fix = _find_fix(store, id)
    store.decide(DEFAULT_TENANT, stored_fix.id, approved=approved, at=now_ms())
    fix = _find_fix(store, stored_fix.id)
    if as_json:
        print_json(memory_text.fix_facts(fix))
        return
    reason = memory_text.not_automatic_reason(fix) if fix.state == "approved" else ""
    not_applied = f" (not applied: {reason})" if reason else ""
    click.echo(f"{fix.id} is {fix.state}: {memory_text.describe_action(fix)}{not_applied}")


@fixes.command(
    epilog="Examples:\n\n  mulligan fixes revoke fix_8f2c\n\n  mulligan fixes revoke --principal ann\n\n  "
    "mulligan fixes revoke --tool search --since 2d"
)
@click.argument("fix", required=False)
@click.option("--principal", help="All trials that this principal recorded; it is ignored from now on.")
@click.option("--tool", help="All fixes for this tool.")
@click.option("--since", "past", metavar="2d", help="All trials in runs since this time: 24h, 7d, a date.")
@item_options
def revoke(
    context: click.Context,
    fix: str | None,
    principal: str | None,
    tool: str | None,
    past: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Revoke one fix, or all trials by a principal, for a tool or since a time.

    The runs stay stored; memory ignores the revoked trials.
    """
    is_bulk = any(criterion is not None for criterion in (principal, tool, past))
    if (fix is None) == (not is_bulk):
        raise click.UsageError("Nothing selected. Name one fix, or use --principal, --tool or --since.")
    existing_store = open_store_of(context, store)
    if fix is not None:
        _decide(existing_store, fix, False, as_json)
        return
    since = parse_time_option(past)
    until = None if principal is not None and tool is None and since is None else now_ms() + 1
    revoked = existing_store.revoke(
        DEFAULT_TENANT, Revocation(principal=principal, tool=tool, since=since, until=until)
    )
    if as_json:
        print_json(revoked)
    else:
        trials = f"{format_count(revoked.votes, 'trial')} in {format_count(revoked.runs, 'run')}"
        click.echo(f"Revoked {trials}; {format_count(revoked.fixes, 'fix')} changed.")
