"""mulligan token: manage the tokens of a server."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from mulligan.cli.groups import CommandGroup
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import to_builtins
from mulligan.report.tables import format_age, render_columns, to_line
from mulligan.server.tenants import TENANT_NAME_PATTERN, Tenants
from mulligan.server.tokens import ROLES, Role, Token, Tokens
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.urls import open_store

_UNITS = {"h": 3600, "d": 86400, "w": 604800}


@click.group(
    cls=CommandGroup,
    epilog="Examples:\n\n  mulligan token create --role ingest --name ci --expires 90d\n\n  mulligan token list\n\n"
    "  mulligan token revoke tok_8f2c",
)
def token() -> None:
    """Create, list and revoke server tokens.

    The store of the server holds only their hashes.
    """


@token.command(epilog="Examples:\n\n  mulligan token create --role ingest --name ci --expires 90d")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help=("ingest sends records and looks up fixes; read queries; admin may do everything, including decisions."),
)
@click.option("--name", default="", help="Note about its use.")
@click.option("--expires", metavar="90d", help="Lifetime in h, d or w. Default: no expiry.")
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Tenant of the records.")
@click.option(
    "--principal", default="", help="Name under which records are stored; several tokens of one person may share it."
)
@store_option
@as_json
def create(
    role: Role, name: str, expires: str | None, tenant: str, principal: str, store: str | None, as_json: bool
) -> None:
    """Create a token and print it. It is shown only once."""
    for option, text in (("--tenant", tenant), ("--principal", principal or "x"), ("--name", name or "x")):
        if not TENANT_NAME_PATTERN.fullmatch(text):
            raise SettingsError(f"Invalid {option} {text!r}. Use letters, digits and . _ @ : / - only.")
    expires_at = None
    if expires is not None:
        match = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", expires)
        if match is None:
            raise SettingsError(f"Invalid --expires {expires!r}. Use a number and h, d or w, such as 90d.")
        expires_at = now_ms() + int(match[1]) * _UNITS[match[2]] * 1000
    settings = load_settings(store)
    if settings.store_url.startswith("memory:"):
        raise SettingsError("A store in memory is lost when the command ends. Name a file: --store PATH")
    opened_store = open_store(settings.store_url)
    try:
        if Tenants(opened_store).find(tenant) is None:
            raise SettingsError(f"Unknown tenant {tenant!r}. Create it first: mulligan tenant create {tenant}")
        new_token, secret = Tokens(opened_store).create(
            role, now_ms(), name=name, tenant=tenant, principal=principal, expires=expires_at
        )
    finally:
        opened_store.close()
    if as_json:
        print_json({"token": secret, **_facts(new_token)})
        return
    click.echo(secret)
    click.echo(f"{new_token.id}, role {role}, tenant {tenant}. The token is not shown again.", err=True)


@token.command("list", epilog="Examples:\n\n  mulligan token list --json")
@store_option
@as_json
def list_(store: str | None, as_json: bool) -> None:
    """List all tokens, without their secrets."""
    existing_store = open_existing_store(load_settings(store))
    tokens = Tokens(existing_store).load_all() if existing_store is not None else []
    if as_json:
        print_json([_facts(token) for token in tokens])
        return
    if not tokens:
        click.echo("No tokens. Create one: mulligan token create --role ingest")
        return
    rows = [(token.id, token.role, token.state(now_ms()), to_line(token.tenant, 30),
             format_age(token.created_at, now_ms()), _format_expiry(token), to_line(token.name, 60))
            for token in tokens]  # fmt: skip
    titles = ("token", "role", "state", "tenant", "created", "expires (UTC)", "name")
    print_lines(render_columns([titles, *rows], width=terminal_width()))


@token.command(epilog="Examples:\n\n  mulligan token revoke tok_8f2c")
@click.argument("token")
@store_option
@as_json
def revoke(token: str, store: str | None, as_json: bool) -> None:
    """Revoke a token; servers follow within a second. TOKEN is its id, a prefix of it, or its name."""
    existing_store = open_existing_store(load_settings(store))
    if existing_store is None:
        raise SettingsError(f"No token matches {token!r}. List tokens: mulligan token list")
    revoked_token = Tokens(existing_store).revoke(token, now_ms())
    if as_json:
        print_json(_facts(revoked_token))
    else:
        click.echo(f"{revoked_token.id} is revoked.")


def _format_expiry(token: Token) -> str:
    if token.expires_at is None:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(token.expires_at / 1000))


def _facts(token: Token) -> dict[str, Any]:
    token_facts: dict[str, Any] = to_builtins(token)
    token_facts.pop("hash")
    return {**token_facts, "tenant": token.tenant, "state": token.state(now_ms())}
