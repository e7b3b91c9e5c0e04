"""mulligan tenant: manage tenants, retention, quotas and unredacted arguments."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from mulligan.failure import SettingsError
from mulligan.records import builtins
from mulligan.remember.store import DAY, LOCAL, Store
from mulligan.remember.urls import is_remote, open_store
from mulligan.report.alerts import Alerts
from mulligan.report.tables import ago, columns, count, line
from mulligan.serve.api import quotas
from mulligan.serve.api.tenants import KEEPS, MEASURES, NAME, Measure, Tenant, Tenants, unknown, with_keeps, with_quotas
from mulligan.serve.api.tokens import FRESH, Token, Tokens
from mulligan.serve.cli.groups import Group
from mulligan.serve.cli.options import (
    as_json,
    needed,
    now,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    width,
)

F = TypeVar("F", bound=Callable[..., Any])
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@click.group(
    cls=Group,
    epilog="Examples:\n\n  mulligan tenant create acme --records 2m --listed query,path\n\n"
    "  mulligan token create --role ingest --tenant acme\n\n  mulligan tenant set acme --failures 180\n\n"
    "  mulligan tenant remove acme",
)
def tenant() -> None:
    """Tenants of a server: make, list, show, change, remove.

    Tenants see nothing of each other. Whoever can open the store itself, as these commands do, is its owner; over HTTP
    nobody can make or change a tenant.
    """


def _options(function: F) -> F:
    """Add the options that define a tenant."""
    for option in reversed((
        click.option("--note", help="What it is for."),
        click.option("--failures", metavar="DAYS", help="Keep runs that failed so long; `ever`, or `usual` (90)."),
        click.option("--successes", metavar="DAYS", help="Keep runs that worked so long; `ever`, or `usual` (30)."),
        click.option("--hours", metavar="DAYS", help="Keep figures by the hour so long; `ever`, or `usual` (35)."),
        click.option("--requests", metavar="N", help="Requests a day, such as 500k; `any` lifts the limit."),
        click.option("--records", metavar="N", help="Records a day, such as 2m; `any` lifts the limit."),
        click.option("--bytes", "bytes_", metavar="N", help="Bytes sent a day, such as 5g; `any` lifts the limit."),
        click.option("--listed", metavar="NAMES", help="Arguments whose values may be kept, with commas between."),
        click.option("--alert-command", metavar="CMD", help="Tell this command of what its people should know."),
        click.option("--alert-webhook", metavar="URL", help="Post it to this address."),
    )):  # fmt: skip
        function = option(function)
    return function


def _changed(
    tenant: Tenant,
    note: str | None,
    requests: str | None,
    records: str | None,
    bytes_: str | None,
    listed: str | None,
    alert_command: str | None,
    alert_webhook: str | None,
    **kept: str | None,
) -> Tenant:
    """Apply the given options to a tenant. Raise an error for invalid values."""
    ages = {name: text for name in KEEPS if (text := kept.get(name)) is not None}
    usual = [name for name, text in ages.items() if text == "usual"]
    days = {name: _days(name, text) for name, text in ages.items() if text != "usual"}
    asked = dict(zip(MEASURES, (requests, records, bytes_), strict=True))
    limits: dict[Measure, int | None] = {name: _amount(name, text) for name, text in asked.items() if text is not None}
    tenant = with_quotas(with_keeps(tenant, days, usual), limits)
    if note is not None:
        tenant = msgspec.structs.replace(tenant, note=line(note, 200))
    if listed is not None:
        names = tuple(sorted({each.strip() for each in listed.split(",") if each.strip()}))
        tenant = msgspec.structs.replace(tenant, listed=names)
    if alert_command is not None:
        tenant = msgspec.structs.replace(tenant, alert_command=alert_command)
    if alert_webhook is not None:
        tenant = msgspec.structs.replace(tenant, alert_webhook=alert_webhook)
    if tenant.alert_command or tenant.alert_webhook:
        try:
            Alerts(command=tenant.alert_command, webhook=tenant.alert_webhook)
        except ValueError as error:
            raise SettingsError(f"--alert-command {tenant.alert_command!r} is no command ({error}).") from None
    return tenant


def _days(name: str, text: str) -> int | None:
    if text == "ever":
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise SettingsError(f"--{name} takes a number of days, `ever` or `usual`, got {text!r}.")
    return int(text)


def _amount(name: str, text: str) -> int | None:
    if text == "any":
        return None
    match = re.fullmatch(r"([0-9]{1,12})([kmg]?)", text.casefold())
    if match is None:
        raise SettingsError(f"--{name} takes a number a day, such as 500k or 2m, or `any`, got {text!r}.")
    return int(match[1]) * _FACTORS[match[2]]


def _named(name: str) -> str:
    if not NAME.fullmatch(name):
        raise SettingsError(f"a tenant is called by letters, digits and . _ @ : / - only, up to 80, got {name!r}.")
    return name


def _url(store: str | None) -> str:
    url = settings_with(store).store_url
    if is_remote(url):
        raise SettingsError(f"tenants are managed where the store is, not through {url}. Name the store: --store PATH")
    return url


def _opened(store: str | None) -> Store:
    _url(store)
    return needed(settings_with(store))


@tenant.command(epilog="Examples:\n\n  mulligan tenant create acme --records 2m --listed query,path --failures 180")
@click.argument("name")
@_options
@store_option
@as_json
def create(name: str, store: str | None, as_json: bool, **given: Any) -> None:
    """Make a tenant. It comes in by its tokens: mulligan token create --tenant NAME."""
    made = _changed(Tenant(name=_named(name), created=now()), **given)
    url = _url(store)
    if url.startswith("memory:"):
        raise SettingsError("a store in memory is gone when the command ends. Name a file: --store PATH")
    kept = open_store(url)
    try:
        Tenants(kept).create(made)
    finally:
        kept.close()
    if as_json:
        print_json(_facts(made))
    else:
        click.echo(f"{name} is made. Let somebody in: mulligan token create --role ingest --tenant {name}")


@tenant.command("list", epilog="Examples:\n\n  mulligan tenant list --json")
@store_option
@as_json
def list_(store: str | None, as_json: bool) -> None:
    """The tenants there are, and those that only a token names."""
    _url(store)
    kept = opened(settings_with(store))
    made = {each.name: each for each in (Tenants(kept).all() if kept is not None else [])}
    tokens = Tokens(kept).all() if kept is not None else []
    named = {each.tenant for each in tokens}
    found = [made.get(name) or Tenant(name=name) for name in sorted({LOCAL, *made, *named})]
    if as_json:
        print_json([_facts(each) | {"tokens": _good(tokens, each.name)} for each in found])
        return
    rows = [("tenant", "made", "tokens", "a day at most", "note")]
    rows += [
        (line(each.name, 40), ago(each.created, now()) if each.created else "-", str(_good(tokens, each.name)),
         ", ".join(f"{most:,} {name}" for name, most in each.quotas.items()) or "-", line(each.note, 60))
        for each in found
    ]  # fmt: skip
    print_lines(columns(rows, width=width()))


@tenant.command(epilog="Examples:\n\n  mulligan tenant show acme --json")
@click.argument("name")
@store_option
@as_json
def show(name: str, store: str | None, as_json: bool) -> None:
    """One tenant: what holds for it, what it has used today, and how much is kept of it."""
    kept = _opened(store)
    found = Tenants(kept).find(name)
    tokens = [each for each in Tokens(kept).all() if each.tenant == name]
    if found is None and not tokens:
        raise unknown(name)
    found = found or Tenant(name=name)
    used = quotas.usage(kept, name).days.get(quotas.day_of(now()), {})
    health = kept.health(name)
    good = _good(tokens, name)
    if as_json:
        held = {"runs": health.runs, "steps": health.steps}
        print_json(_facts(found) | {"tokens": good, "used_today": used, "kept": held})
        return
    usual = found.retention
    rows = [
        ("kept", f"{count(health.runs, 'run')}, {count(health.steps, 'step')}"),
        ("tokens", f"{good} in force"),
        *((f"{each} a day", f"{found.quotas[each]:,}, {used.get(each, 0):,} taken today") for each in found.quotas),
        *((f"{each} kept", _spoken(getattr(usual, each))) for each in KEEPS),
        ("listed", ", ".join(found.listed) or "-"),
        ("alerts", ", ".join(filter(None, (found.alert_command, found.alert_webhook))) or "-"),
    ]
    click.echo(f"{name}{f': {found.note}' if found.note else ''}\n")
    print_lines(columns([(name, line(told, 200)) for name, told in rows], width=width()))


@tenant.command(
    "set",
    epilog="Examples:\n\n  mulligan tenant set acme --records 5m --failures ever\n\n"
    "  mulligan tenant set acme --listed query,path --alert-webhook https://chat.example.com/hook",
)
@click.argument("name")
@_options
@store_option
@as_json
def set_(name: str, store: str | None, as_json: bool, **given: Any) -> None:
    """Change what holds for a tenant. A server follows within a second."""
    if all(value is None for value in given.values()):
        raise click.UsageError("say what to change, such as --records 2m.")
    after = Tenants(_opened(store)).set(name, lambda before: _changed(before, **given))
    if as_json:
        print_json(_facts(after))
    else:
        click.echo(f"{name} is changed. See it: mulligan tenant show {name}")


@tenant.command(epilog="Examples:\n\n  mulligan tenant remove acme\n\n  mulligan tenant remove acme --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@as_json
def remove(name: str, yes: bool, store: str | None, as_json: bool) -> None:
    """Revoke a tenant's tokens and remove everything that is kept of it. It cannot be undone.

    What people changed stays in the audit log.
    """
    kept = _opened(store)
    if name == LOCAL:
        raise SettingsError("`local` is the store's own, and stays. To remove what is in it: mulligan forget")
    tenants, tokens = Tenants(kept), Tokens(kept)
    is_made = tenants.find(name) is not None
    if not is_made and not any(each.tenant == name for each in tokens.all()):
        raise unknown(name)
    runs = kept.health(name).runs
    if not yes:
        if not sys.stdin.isatty():
            raise SettingsError("this cannot be undone, and there is nobody to ask. Add --yes.")
        click.confirm(f"Remove {name} with {count(runs, 'run')} for ever?", abort=True, err=True)
    revoked = tokens.revoke_all(name, now())
    if revoked:
        time.sleep(FRESH * 1.5)  # until every server has noticed the revocation
    rows = kept.erase(name)
    if is_made:
        tenants.remove(name)
    if as_json:
        print_json({"tenant": name, "runs": runs, "rows": rows, "tokens": len(revoked)})
    else:
        click.echo(f"{name} is removed: {count(runs, 'run')}, {count(len(revoked), 'token')} revoked.")


def _facts(tenant: Tenant) -> dict[str, Any]:
    kept = tenant.retention
    usual = {"note": "", "quotas": {}, "listed": [], "alert_command": "", "alert_webhook": "", "created": 0}
    told: dict[str, Any] = {**usual, **builtins(tenant)}
    ages = {each: None if (age := getattr(kept, each)) is None else age // DAY for each in KEEPS}
    return told | {"keeps": ages}


def _spoken(millis: int | None) -> str:
    return "for ever" if millis is None else f"{millis // DAY} days"


def _good(tokens: list[Token], tenant: str) -> int:
    return sum(each.tenant == tenant and each.state(now()) == "active" for each in tokens)
