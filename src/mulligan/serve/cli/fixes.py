"""mulligan fixes: list fixes, show their evidence, approve or revoke them."""

from __future__ import annotations

import click

from mulligan.failure import SettingsError
from mulligan.records import Fix, FixState, builtins
from mulligan.remember.store import LOCAL, FixQuery, Revocation, Store
from mulligan.report import fixes as told
from mulligan.report.link_evidence import explain_trials
from mulligan.report.tables import count
from mulligan.serve.cli.groups import Group
from mulligan.serve.cli.options import (
    as_json,
    limit_option,
    moment,
    needed,
    now,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    width,
)

EVERY = 100_000
STATES = ("proposed", "promoted", "approved", "demoted", "expired", "paused", "revoked")


@click.group(
    cls=Group,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    epilog="Examples:\n\n  mulligan fixes --tool search\n\n  mulligan fixes show fix_8f2c\n\n  "
    "mulligan fixes approve fix_8f2c\n\n  mulligan fixes revoke --principal ann --since 2d",
)
@click.option("--tool", help="Only this tool's.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@limit_option
@store_option
@as_json
@click.pass_context
def fixes(
    context: click.Context, /, tool: str | None, state: FixState | None, limit: int, store: str | None, as_json: bool
) -> None:
    """What turned failures into successes, how often, and which of it is told to models or applied."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    kept = opened(settings_with(store))
    query = FixQuery(tool=tool, state=state, now=now(), limit=limit)
    found = kept.fixes(LOCAL, query) if kept is not None else []
    if as_json:
        print_json([told.facts(fix) for fix in found])
    elif found:
        print_lines(told.listed(found, now(), width()))
    else:
        click.echo("Nothing is known yet that overcame a failure." if not (tool or state) else "No fix matches.")


def _opened(context: click.Context, store: str | None) -> Store:
    return needed(settings_with(store or context.obj))


def _found(kept: Store, id: str) -> Fix:
    every = kept.fixes(LOCAL, FixQuery(now=now(), limit=EVERY))
    found = [fix for fix in every if fix.id == id] or [fix for fix in every if fix.id.startswith(id)]
    if len(found) != 1:
        raise SettingsError(f"there is no fix {id!r}, or more than one begins so. See them: mulligan fixes")
    return found[0]


@fixes.command(epilog="Examples:\n\n  mulligan fixes show fix_8f2c --json")
@click.argument("fix")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, fix: str, store: str | None, as_json: bool) -> None:
    """One fix: what to do, whether it is applied and told, its record, and each run that it rests on."""
    kept = _opened(context, store)
    found = _found(kept, fix)
    evidence = kept.evidence(LOCAL, found.id)
    if as_json:
        print_json(told.facts(found) | {"evidence": builtins(evidence)})
    else:
        print_lines(told.shown(found, evidence, explain_trials(kept, LOCAL, found, evidence), now(), width()))


@fixes.command(epilog="Examples:\n\n  mulligan fixes approve fix_8f2c")
@click.argument("fix")
@store_option
@as_json
@click.pass_context
def approve(context: click.Context, fix: str, store: str | None, as_json: bool) -> None:
    """Apply a fix automatically from now on, however little it is proven. What safety forbids stays forbidden."""
    kept = _opened(context, store)
    found = _found(kept, fix)
    kept.decide(LOCAL, found.id, approved=True, at=now())
    _tell(_found(kept, found.id), as_json)


def _tell(fix: Fix, as_json: bool) -> None:
    if as_json:
        print_json(told.facts(fix))
    else:
        why = told.why_unapplied(fix) if fix.state == "approved" else ""
        click.echo(f"{fix.id} is {fix.state}: {told.does(fix)}" + (f" (not applied: {why})" if why else ""))


@fixes.command(
    epilog="Examples:\n\n  mulligan fixes revoke fix_8f2c\n\n  mulligan fixes revoke --principal ann\n\n  "
    "mulligan fixes revoke --tool search --since 2d"
)
@click.argument("fix", required=False)
@click.option("--principal", help="Everything that rests on who wrote it; they are not listened to any more.")
@click.option("--tool", help="Everything about this tool.")
@click.option("--since", "past", metavar="2d", help="Everything that rests on runs since then: 24h, 7d, a date.")
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
    """Takes back one fix, or everything that rests on somebody, on a tool or on a time.

    The records stay; memory answers as if it had never seen them.
    """
    is_wide = any(each is not None for each in (principal, tool, past))
    if (fix is None) == (not is_wide):
        raise click.UsageError("name one fix, or some of --principal, --tool and --since.")
    kept = _opened(context, store)
    if fix is not None:
        found = _found(kept, fix)
        kept.decide(LOCAL, found.id, approved=False, at=now())
        _tell(_found(kept, found.id), as_json)
        return
    since = moment(past)
    until = None if principal is not None and tool is None and since is None else now() + 1
    revoked = kept.revoke(LOCAL, Revocation(principal=principal, tool=tool, since=since, until=until))
    if as_json:
        print_json(revoked)
    else:
        rested = f"{count(revoked.fixes, 'fix')} rested".replace("fixs", "fixes")
        click.echo(f"Taken back: {count(revoked.votes, 'trial')} in {count(revoked.runs, 'run')}; {rested} on them.")
