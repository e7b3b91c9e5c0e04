"""mulligan fixes: list fixes, show their evidence, approve or revoke them."""

from __future__ import annotations

import click

from mulligan.cli.groups import CommandGroup
from mulligan.cli.options import (
    as_json,
    limit_option,
    load_settings,
    now_ms,
    open_existing_store,
    parse_time_option,
    print_json,
    print_lines,
    require_store,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, FixState, to_builtins
from mulligan.report import fix_report
from mulligan.report.link_evidence import explain_trials
from mulligan.report.tables import format_count
from mulligan.store.base import DEFAULT_TENANT, FixQuery, Revocation, Store

MAX_LISTED_FIXES = 100_000
STATES = ("proposed", "promoted", "approved", "demoted", "expired", "paused", "revoked")


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    epilog="Examples:\n\n  mulligan fixes --tool search\n\n  mulligan fixes show fix_8f2c\n\n  "
    "mulligan fixes approve fix_8f2c\n\n  mulligan fixes revoke --principal ann --since 2d",
)
@click.option("--tool", help="Only fixes for this tool.")
@click.option("--state", type=click.Choice(STATES), help="Only fixes in this state.")
@limit_option
@store_option
@as_json
@click.pass_context
def fixes(
    context: click.Context, /, tool: str | None, state: FixState | None, limit: int, store: str | None, as_json: bool
) -> None:
    """List fixes: what turned failures into successes, how often, and whether it is shown to models or applied."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    existing_store = open_existing_store(load_settings(store))
    query = FixQuery(tool=tool, state=state, now=now_ms(), limit=limit)
    matching_fixes = existing_store.fixes(DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([fix_report.to_facts(fix) for fix in matching_fixes])
    elif matching_fixes:
        print_lines(fix_report.render_list(matching_fixes, now_ms(), terminal_width()))
    else:
        click.echo("No fixes yet: no failure has recovered." if not (tool or state) else "No fix matches.")


def _open_store(context: click.Context, store: str | None) -> Store:
    return require_store(load_settings(store or context.obj))


def _find_fix(store: Store, id: str) -> Fix:
    all_fixes = store.fixes(DEFAULT_TENANT, FixQuery(now=now_ms(), limit=MAX_LISTED_FIXES))
    matches = [fix for fix in all_fixes if fix.id == id] or [fix for fix in all_fixes if fix.id.startswith(id)]
    if len(matches) != 1:
        raise SettingsError(f"No fix matches {id!r}, or several start with it. List fixes: mulligan fixes")
    return matches[0]


@fixes.command(epilog="Examples:\n\n  mulligan fixes show fix_8f2c --json")
@click.argument("fix")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, fix: str, store: str | None, as_json: bool) -> None:
    """Show one fix: its action, whether it is applied and shown to models, its counts, and the runs behind it."""
    existing_store = _open_store(context, store)
    stored_fix = _find_fix(existing_store, fix)
    evidence = existing_store.evidence(DEFAULT_TENANT, stored_fix.id)
    if as_json:
        print_json(fix_report.to_facts(stored_fix) | {"evidence": to_builtins(evidence)})
    else:
        print_lines(
            fix_report.render_detail(
                stored_fix,
                evidence,
                explain_trials(existing_store, DEFAULT_TENANT, stored_fix, evidence),
                now_ms(),
                terminal_width(),
            )
        )


@fixes.command(epilog="Examples:\n\n  mulligan fixes approve fix_8f2c")
@click.argument("fix")
@store_option
@as_json
@click.pass_context
def approve(context: click.Context, fix: str, store: str | None, as_json: bool) -> None:
    """Apply a fix automatically from now on, whatever its counts. Safety rules still hold."""
    existing_store = _open_store(context, store)
    stored_fix = _find_fix(existing_store, fix)
    existing_store.decide(DEFAULT_TENANT, stored_fix.id, approved=True, at=now_ms())
    _print_decision(_find_fix(existing_store, stored_fix.id), as_json)


def _print_decision(fix: Fix, as_json: bool) -> None:
    if as_json:
        print_json(fix_report.to_facts(fix))
    else:
        reason = fix_report.not_automatic_reason(fix) if fix.state == "approved" else ""
        click.echo(
            f"{fix.id} is {fix.state}: {fix_report.describe_action(fix)}"
            + (f" (not applied: {reason})" if reason else "")
        )


@fixes.command(
    epilog="Examples:\n\n  mulligan fixes revoke fix_8f2c\n\n  mulligan fixes revoke --principal ann\n\n  "
    "mulligan fixes revoke --tool search --since 2d"
)
@click.argument("fix", required=False)
@click.option("--principal", help="All trials that this principal recorded; it is ignored from now on.")
@click.option("--tool", help="All fixes for this tool.")
@click.option("--since", "past", metavar="2d", help="All trials in runs since this time: 24h, 7d, a date.")
@store_option
@as_json
@click.pass_context
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
    existing_store = _open_store(context, store)
    if fix is not None:
        stored_fix = _find_fix(existing_store, fix)
        existing_store.decide(DEFAULT_TENANT, stored_fix.id, approved=False, at=now_ms())
        _print_decision(_find_fix(existing_store, stored_fix.id), as_json)
        return
    since = parse_time_option(past)
    until = None if principal is not None and tool is None and since is None else now_ms() + 1
    revoked = existing_store.revoke(
        DEFAULT_TENANT, Revocation(principal=principal, tool=tool, since=since, until=until)
    )
    if as_json:
        print_json(revoked)
    else:
        changed_fixes = f"{format_count(revoked.fixes, 'fix')} changed".replace("fixs", "fixes")
        click.echo(
            f"Revoked {format_count(revoked.votes, 'trial')} in {format_count(revoked.runs, 'run')}; {changed_fixes}."
        )
