"""mulligan token: manage the tokens of a server."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from mulligan.failure import SettingsError
from mulligan.records import builtins
from mulligan.remember.store import LOCAL
from mulligan.remember.urls import open_store
from mulligan.report.tables import ago, columns, line
from mulligan.serve.api.tenants import NAME, Tenants
from mulligan.serve.api.tokens import ROLES, Role, Token, Tokens
from mulligan.serve.cli.groups import Group
from mulligan.serve.cli.options import as_json, now, opened, print_json, print_lines, settings_with, store_option, width

_UNITS = {"h": 3600, "d": 86400, "w": 604800}


@click.group(
    cls=Group,
    epilog="Examples:\n\n  mulligan token create --role ingest --name ci --expires 90d\n\n  mulligan token list\n\n"
    "  mulligan token revoke tok_8f2c",
)
def token() -> None:
    """Tokens of a server: make, list, revoke.

    They are kept as hashes, in the store that the server uses.
    """


@token.command(epilog="Examples:\n\n  mulligan token create --role ingest --name ci --expires 90d")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="ingest sends and asks what helped; read asks; admin does all, and decides.",
)
@click.option("--name", default="", help="What it is for.")
@click.option("--expires", metavar="90d", help="After so many h, d or w. Without it, never.")
@click.option("--tenant", default=LOCAL, show_default=True, help="Whose records: tenants see nothing of others.")
@click.option("--principal", default="", help="Who writes with it, where several tokens are one person's.")
@store_option
@as_json
def create(
    role: Role, name: str, expires: str | None, tenant: str, principal: str, store: str | None, as_json: bool
) -> None:
    """Make a token, and print it. It is shown this once."""
    for option, text in (("--tenant", tenant), ("--principal", principal or "x"), ("--name", name or "x")):
        if not NAME.fullmatch(text):
            raise SettingsError(f"{option} takes letters, digits and . _ @ : / - only, got {text!r}.")
    until = None
    if expires is not None:
        match = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", expires)
        if match is None:
            raise SettingsError(f"--expires takes a number and h, d or w, such as 90d, got {expires!r}.")
        until = now() + int(match[1]) * _UNITS[match[2]] * 1000
    settings = settings_with(store)
    if settings.store_url.startswith("memory:"):
        raise SettingsError("a store in memory is gone when the command ends. Name a file: --store PATH")
    kept = open_store(settings.store_url)
    try:
        if Tenants(kept).find(tenant) is None:
            raise SettingsError(f"there is no tenant {tenant!r}. Make it first: mulligan tenant create {tenant}")
        made, secret = Tokens(kept).create(role, now(), name=name, tenant=tenant, principal=principal, expires=until)
    finally:
        kept.close()
    if as_json:
        print_json({"token": secret, **_facts(made)})
        return
    click.echo(secret)
    click.echo(f"{made.id}, role {role}, tenant {tenant}. It is not shown again.", err=True)


@token.command("list", epilog="Examples:\n\n  mulligan token list --json")
@store_option
@as_json
def list_(store: str | None, as_json: bool) -> None:
    """The tokens there are; never what they are."""
    kept = opened(settings_with(store))
    found = Tokens(kept).all() if kept is not None else []
    if as_json:
        print_json([_facts(each) for each in found])
        return
    if not found:
        click.echo("There are no tokens. Make one: mulligan token create --role ingest")
        return
    rows = [("token", "role", "state", "tenant", "made", "good until (UTC)", "name")]
    rows += [
        (
            each.id,
            each.role,
            each.state(now()),
            line(each.tenant, 30),
            ago(each.created, now()),
            _until(each),
            line(each.name, 60),
        )
        for each in found
    ]
    print_lines(columns(rows, width=width()))


@token.command(epilog="Examples:\n\n  mulligan token revoke tok_8f2c")
@click.argument("token")
@store_option
@as_json
def revoke(token: str, store: str | None, as_json: bool) -> None:
    """Make a token worthless, within a second. TOKEN is its id, the beginning of it, or its name."""
    kept = opened(settings_with(store))
    if kept is None:
        raise SettingsError(f"there is no token {token!r}. See them: mulligan token list")
    gone = Tokens(kept).revoke(token, now())
    if as_json:
        print_json(_facts(gone))
    else:
        click.echo(f"{gone.id} is revoked.")


def _until(token: Token) -> str:
    if token.expires is None:
        return "ever"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(token.expires / 1000))


def _facts(token: Token) -> dict[str, Any]:
    told: dict[str, Any] = builtins(token)
    told.pop("hash")
    return {**told, "tenant": token.tenant, "state": token.state(now())}
