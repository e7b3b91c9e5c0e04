"""mulligan serve."""

from __future__ import annotations

import ipaddress
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
import msgspec

from mulligan.build import build_classifier, build_redactor
from mulligan.cli.configuration import DEFAULT_URL
from mulligan.cli.options import load_settings, now_ms, store_option
from mulligan.core.events import AnyEvent
from mulligan.core.failure import MissingExtraError, SettingsError
from mulligan.record.journal_import import recover_journals
from mulligan.redaction import Redactor
from mulligan.report.alerts import Alerts
from mulligan.server.tenants import Tenant, Tenants
from mulligan.settings import Level
from mulligan.store.base import DAY, DEFAULT_TENANT, Store
from mulligan.store.urls import is_remote, journals_of, local_path, open_store, redact_password


@click.command(
    epilog="Examples:\n\n  mulligan serve\n\n  mulligan serve --open\n\n"
    "  mulligan serve --host 0.0.0.0 --allow-host mulligan.example.com"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=4700,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in the browser.")
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="Another host name of this server, besides localhost."
)
@click.option("--level", type=click.Choice(["local", "shared"]), help="Redaction level for received records.")
@click.option("--log", "logs", is_flag=True, help="Log one line per request to standard error.")
@click.option("--alert-command", metavar="CMD", default="", help="Run this command for each alert.")
@click.option("--alert-webhook", metavar="URL", default="", help="Post alerts to this URL.")
@click.option("--prune/--no-prune", "prunes", default=True, help="Delete expired records once a day.  [yes]")
@click.option("--no-auth", "open_to_all", is_flag=True, help="Require no token or cookie. Loopback only.")
@store_option
def serve(
    host: str,
    port: int,
    opens: bool,
    names: tuple[str, ...],
    level: Level | None,
    logs: bool,
    alert_command: str,
    alert_webhook: str,
    prunes: bool,
    open_to_all: bool,
    store: str | None,
) -> None:
    """Start the server: ingest API, query API and dashboard over HTTP.

    On loopback, every local program may send records without a token; to open the dashboard, use the printed address
    once per browser. Beyond loopback every request needs a token: mulligan token create.
    """
    try:
        import jinja2  # noqa: F401 - needs the server extra: fail before the store is opened
        import uvicorn  # noqa: F401

        from mulligan.server import http_server
    except ImportError:
        raise MissingExtraError(
            "The server needs Starlette, uvicorn and Jinja. Install them: pip install 'mulligan[server]'"
        ) from None
    from mulligan.dashboard.pages import build_routes as pages
    from mulligan.server.access import ENTRY_PATH, AccessRules
    from mulligan.server.app import Server, build_app
    from mulligan.server.payloads import PayloadConverter
    from mulligan.server.prune_scheduler import Pruner
    from mulligan.server.routes import ROUTE_GROUPS

    is_local = http_server.is_loopback(host) and not names
    if open_to_all and not is_local:
        raise SettingsError(
            "--no-auth works on loopback only. For other addresses, create tokens: mulligan token create"
        )
    settings = load_settings(store)
    if is_remote(settings.store_url):
        raise SettingsError(f"{settings.store_url} is a server itself. Name a store: --store PATH")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    opened_store = open_store(settings.store_url, settings.fsync)
    redaction_level: Level = level or ("shared" if not is_local else settings.level)

    def redactor(key: bytes, tenant: Tenant) -> Redactor:
        """Build a tenant's redactor. A shared store keeps listed arguments only (SAFETY 3), unless --level is set."""
        tenant_settings = msgspec.structs.replace(
            settings, unredacted_arguments=(*settings.unredacted_arguments, *tenant.unredacted_arguments)
        )
        return build_redactor(
            tenant_settings, redaction_level if tenant.name == DEFAULT_TENANT else level or "shared", key
        )

    rules = AccessRules(
        hosts=frozenset({"localhost", host.lower(), *(name.lower() for name in names)}),
        is_local=is_local,
        is_open=open_to_all,
    )
    intake = PayloadConverter(build_classifier(settings), redactor, opened_store)
    server_urls: dict[str, Any] = {}

    def announce(ticket: str) -> None:
        click.echo(f"For another browser, open once: {server_urls['at']}{ENTRY_PATH}/{ticket}", err=True)

    pruner = Pruner(opened_store, log_line=lambda line: click.echo(line, err=True)) if prunes else None
    alerts = {"command": alert_command, "webhook": alert_webhook}
    on_stored = _build_alert_listener(opened_store, alerts, intake.tenants, server_urls)
    server = Server(opened_store, intake, rules=rules, announce=announce, on_stored=on_stored, pruner=pruner)
    if not is_local and not any(token.state(now_ms()) == "active" for token in server.tokens.load_all()):
        server.close()
        raise SettingsError(
            "Beyond loopback every request needs a token, and none exists. Create one first: mulligan token "
            "create --role admin"
        )
    sock = http_server.bind_socket(host, port)
    if not settings.store_url.startswith("memory:"):
        recover_journals(opened_store, DEFAULT_TENANT, journals_of(local_path(settings.store_url, settings.folder)))
    is_on_all_interfaces = ipaddress.ip_address(sock.getsockname()[0]).is_unspecified
    loopback_address = "::1" if ":" in sock.getsockname()[0] else "127.0.0.1"
    name, port = loopback_address if is_on_all_interfaces else host, sock.getsockname()[1]
    server_urls["at"] = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    server_urls["link"] = server_urls["at"] if is_local else ""
    address = f"{server_urls['at']}{ENTRY_PATH}/{server.browser_sessions.ticket}"

    def ready() -> None:
        where = f"all interfaces, port {port}" if is_on_all_interfaces else server_urls["at"]
        click.echo(
            f"Listening on {where} with store {redact_password(settings.store_url)}, redaction level {redaction_level}."
        )
        if is_on_all_interfaces:
            by_name = f" or {' or '.join(names)}" if names else "; to allow a host name: --allow-host NAME"
            click.echo(f"Local address: {server_urls['at']}. From other machines, use its IP address{by_name}.")
        if open_to_all:
            click.echo("Authentication is off (--no-auth): every local user can read, send and change records.")
        else:
            click.echo(f"Dashboard{' from this machine' if is_on_all_interfaces else ''}, open once: {address}")
        url = f"http://{names[0] if names else 'ADDRESS'}:{port}" if is_on_all_interfaces else server_urls["at"]
        option_suffix = ("" if url == DEFAULT_URL else f" --url {url}") + ("" if is_local else " --token TOKEN")
        click.echo(f"OpenTelemetry exporter settings: mulligan env{option_suffix}")
        if pruner is not None:
            pruner.start()
            click.echo(f"Daily pruning: {_describe_retention(intake.tenants)}. To turn it off: --no-prune")
        sys.stdout.flush()
        if opens:
            import webbrowser

            webbrowser.open(address)

    log_request = (lambda line: click.echo(line, err=True)) if logs else None
    http_server.serve(build_app(server, (*ROUTE_GROUPS, pages), log_request), sock, ready, server.stop)


def _describe_retention(tenants: Tenants) -> str:
    """Describe the retention of the default tenant."""
    retention = next(tenant.retention for tenant in tenants.load_all_with_default() if tenant.name == DEFAULT_TENANT)
    ages = {"successful runs": retention.keep_successes, "failed runs": retention.keep_failures}
    phrases = [f"{subject} after {age // DAY} days" for subject, age in ages.items() if age is not None]
    return " and ".join(phrases) or "hourly counters only"


def _build_alert_listener(
    store: Store, server_targets: dict[str, Any], tenants: Tenants, server_urls: dict[str, Any]
) -> Callable[[str, Sequence[AnyEvent]], None]:
    """Build the function that sends alerts for stored events, to each tenant's own targets.

    The default tenant falls back to the command line's targets. `server_urls` has the link for alerts, which is empty
    beyond loopback: there, clients use a name that the server does not know.
    """
    alerts_by_tenant: dict[str, tuple[dict[str, Any], Alerts | None]] = {}

    def on_stored(tenant: str, events: Sequence[AnyEvent]) -> None:
        settings = tenants.settings_for(tenant)
        targets: dict[str, Any] = {"command": settings.alert_command, "webhook": settings.alert_webhook}
        if tenant == DEFAULT_TENANT and not any(targets.values()):
            targets = server_targets
        previous_targets, alerts = alerts_by_tenant.get(tenant, ({}, None))
        if previous_targets != targets:
            if alerts is not None:
                alerts.close()
            alerts = (
                Alerts(**targets, find=partial(store.pattern, tenant), link=server_urls.get("link", ""))
                if any(targets.values())
                else None
            )
            alerts_by_tenant[tenant] = (dict(targets), alerts)
        if alerts is not None:
            alerts.on_stored(events)

    if any(server_targets.values()):
        Alerts(**server_targets)  # raises now for invalid targets, not at the first failure
        if server_targets["command"] and shutil.which(shlex.split(server_targets["command"])[0]) is None:
            raise SettingsError(
                f"Alert command {shlex.split(server_targets['command'])[0]!r} not found. Install it, or change "
                "--alert-command."
            )
    return on_stored
