from __future__ import annotations

import ipaddress
import logging
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import click
import msgspec

from mulligan.build import build_classifier, build_kinds, build_redactor
from mulligan.cli.configuration import DEFAULT_URL
from mulligan.cli.options import CommandContext, command, now_ms
from mulligan.contract.store import DAY, DEFAULT_TENANT, Retention
from mulligan.core.failure import INSTALL_EXTRA, MissingExtraError, SettingsError
from mulligan.core.listening import bind_socket, is_loopback
from mulligan.core.prices import PriceTable
from mulligan.record.journal_import import recover_journals
from mulligan.redaction import Redactor
from mulligan.report.alerts import parse_alert_settings
from mulligan.server.tenants import Tenant
from mulligan.settings import Level
from mulligan.store.urls import is_postgres, is_remote, journals_of, local_path, open_store


@command(
    "mulligan serve",
    "mulligan serve --open",
    "mulligan serve --host 0.0.0.0 --allow-host mulligan.example.com",
    has_json=False,
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
@click.option(
    "--forwarded-allow-ips",
    "proxies",
    metavar="LIST",
    default="",
    help="Reverse proxies whose X-Forwarded-For is trusted: addresses and networks, separated by commas.",
)
@click.option("--level", type=click.Choice(["local", "shared"]), help="Redaction level for received records.")
@click.option("--log", "logs", is_flag=True, help="Log one line per request to standard error.")
@click.option("--alert-command", metavar="CMD", default="", help="Run this command for each alert.  [alert_command]")
@click.option(
    "--alert-webhook", metavar="URL", default="", help="Post alerts to this URL, as to Slack.  [alert_webhook]"
)
@click.option("--prune/--no-prune", "prunes", default=True, help="Delete expired records once a day.  [yes]")
@click.option("--index/--no-index", "indexes", default=True, help="Index runs for searches.  [yes]")
@click.option(
    "--drain",
    "drain_seconds",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=0.0,
    show_default=True,
    help="After SIGTERM, keep serving while /readyz answers 503, until a balancer has noticed.",
)
@click.option("--no-auth", "open_to_all", is_flag=True, help="Require no token or cookie. Loopback only.")
def serve(
    context: CommandContext,
    host: str,
    port: int,
    opens: bool,
    names: tuple[str, ...],
    proxies: str,
    level: Level | None,
    logs: bool,
    alert_command: str,
    alert_webhook: str,
    prunes: bool,
    indexes: bool,
    drain_seconds: float,
    open_to_all: bool,
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
            f"The server needs Starlette, uvicorn and Jinja. {INSTALL_EXTRA.format('server')}"
        ) from None
    from mulligan.dashboard.pages import build_routes as pages
    from mulligan.server.access import ENTRY_PATH, TLS_REASON, AccessRules
    from mulligan.server.app import Server, build_app
    from mulligan.server.background import BackgroundWork, Pruner
    from mulligan.server.payloads import PayloadConverter
    from mulligan.server.routes import ROUTE_GROUPS
    from mulligan.server.search_indexing import SearchIndexer
    from mulligan.server.tenant_alerts import TenantAlerts
    from mulligan.store.sql import DatabaseStore

    trusted_proxies = _parse_proxies(proxies)
    is_local = is_loopback(host) and not names
    if open_to_all and not is_local:
        raise SettingsError(
            "--no-auth works on loopback only. For other addresses, create tokens: mulligan token create"
        )
    settings = context.settings
    if is_remote(settings.store_url):
        raise SettingsError(f"{settings.store_url} is a server itself. Name a store: --store PATH")
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    opened_store = open_store(settings.store_url, settings.fsync)
    if is_postgres(settings.store_url):
        from mulligan.store.postgres.postgres_diagnostics import find_isolation_problems  # needs the postgres extra

        for problem in find_isolation_problems(settings.store_url):
            click.echo(f"Warning: {problem}", err=True)
    redaction_level: Level = level or ("shared" if not is_local else settings.level)

    def redactor(key: bytes, tenant: Tenant) -> Redactor:
        """Build a tenant's redactor. A shared store keeps listed arguments only (SAFETY 3), unless --level is set."""
        tenant_settings = msgspec.structs.replace(
            settings, unredacted_arguments=(*settings.unredacted_arguments, *tenant.unredacted_arguments)
        )
        default_level = redaction_level if tenant.name == DEFAULT_TENANT else "shared"
        return build_redactor(tenant_settings, level or default_level, key)

    hosts = frozenset(name.lower() for name in ("localhost", host, *names))
    rules = AccessRules(hosts=hosts, is_local=is_local, is_open=open_to_all)
    prices = PriceTable(settings.prices)
    intake = PayloadConverter(build_classifier(settings), redactor, opened_store, build_kinds(settings), prices)
    alert_targets = {
        "command": alert_command or settings.alert_command, "webhook": alert_webhook or settings.alert_webhook,
    }  # fmt: skip
    alert_settings = parse_alert_settings(settings.alerts)
    alerts = TenantAlerts(
        opened_store, intake.tenants, alert_settings, alert_targets["command"], alert_targets["webhook"]
    )
    if program := alerts.find_missing_program():
        raise SettingsError(f"Alert command {program!r} not found. Install it, or change alert_command.")
    server_url = ""

    def announce(ticket: str) -> None:
        click.echo(f"For another browser, open once: {server_url}{ENTRY_PATH}/{ticket}", err=True)

    log = partial(click.echo, err=True)
    pruner = Pruner(opened_store, log_line=log) if prunes else None
    background_work: list[BackgroundWork] = [alerts, pruner] if pruner is not None else [alerts]
    if indexes and isinstance(opened_store, DatabaseStore):
        background_work.append(SearchIndexer(opened_store, intake.tenants))
    server = Server(
        opened_store, intake, rules=rules, announce=announce, on_stored=alerts.on_stored,
        background_work=background_work,
    )  # fmt: skip
    server.alert_targets = alert_targets
    server.alerts = alerts
    server.on_quota_exhausted = alerts.on_quota_exhausted
    alerts.check_health = server.find_problem
    if not is_local and not any(token.state(now_ms()) == "active" for token in server.tokens.load_all()):
        server.close()
        raise SettingsError(
            "Beyond loopback every request needs a token, and none exists. Create one first: mulligan token "
            "create --role admin"
        )
    sock = bind_socket(host, port, "--port")
    if not settings.store_url.startswith("memory:"):
        journals = journals_of(local_path(settings.store_url, settings.folder))
        recover_journals(opened_store, DEFAULT_TENANT, journals, prices.add_costs)
    address = _find_address(sock, host)
    server_url = address.url
    alerts.link = settings.base_url or (server_url if is_local else "")
    entry_url = f"{server_url}{ENTRY_PATH}/{server.browser_sessions.ticket}"

    def ready() -> None:
        click.echo(f"Listening on {address.description} with store {context.where}, redaction level {redaction_level}.")
        if redaction_level == "shared":
            click.echo(
                "Level shared hides the values of arguments, and hidden values are never suggested; sizes and timeouts "
                f"stay. To store others: mulligan tenant set {DEFAULT_TENANT} --unredacted-arguments +NAME"
            )
        if not is_loopback(host):
            click.echo(
                "Plain HTTP: tokens and records cross the network unencrypted. To encrypt them, put a reverse proxy "
                "with TLS before the server (docs/server.md)."
            )
        for line in _describe_access(address, names, is_local, "" if open_to_all else entry_url):
            click.echo(line)
        for work in background_work:
            work.start()
        if pruner is not None:
            tenant = intake.tenants.find(DEFAULT_TENANT) or Tenant(DEFAULT_TENANT)
            click.echo(f"Daily pruning: {_describe_retention(tenant.retention)}. To turn it off: --no-prune")
        sys.stdout.flush()
        if opens:
            import webbrowser

            webbrowser.open(entry_url)

    app = build_app(server, (*ROUTE_GROUPS, pages), log if logs else None)
    on_tls = partial(server.rejections.add, TLS_REASON)
    listening = http_server.build_server(
        app, ready, on_stopping=server.stop, trusted_proxies=trusted_proxies, drain_seconds=drain_seconds, on_tls=on_tls
    )
    http_server.serve(listening, sock)


def _parse_proxies(text: str) -> list[str]:
    proxies = [proxy.strip() for proxy in text.split(",") if proxy.strip()]
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError:
            raise SettingsError(
                f"Invalid proxy {proxy!r}. Use addresses or networks, for example: --forwarded-allow-ips 10.0.0.5,"
                "10.1.0.0/16"
            ) from None
    return proxies


class ServerAddress(NamedTuple):
    """Port of a server, its URL on this machine, and whether it listens on all interfaces."""

    url: str
    port: int
    is_on_all_interfaces: bool

    @property
    def description(self) -> str:
        return f"all interfaces, port {self.port}" if self.is_on_all_interfaces else self.url


def _find_address(sock: socket.socket, host: str) -> ServerAddress:
    bound_host, port = sock.getsockname()[:2]
    is_on_all_interfaces = ipaddress.ip_address(bound_host).is_unspecified
    loopback_address = "::1" if ":" in bound_host else "127.0.0.1"
    name = loopback_address if is_on_all_interfaces else host
    return ServerAddress(f"http://{f'[{name}]' if ':' in name else name}:{port}", port, is_on_all_interfaces)


def _describe_access(address: ServerAddress, names: Sequence[str], is_local: bool, entry_url: str) -> Iterator[str]:
    """Yield how to reach the server and its dashboard. Without `entry_url`, authentication is off."""
    if address.is_on_all_interfaces:
        by_name = f" or {' or '.join(names)}" if names else "; to allow a host name: --allow-host NAME"
        yield f"Local address: {address.url}. From other machines, use its IP address{by_name}."
    if entry_url:
        yield f"Dashboard{' from this machine' if address.is_on_all_interfaces else ''}, open once: {entry_url}"
    else:
        yield "Authentication is off (--no-auth): every local user can read, send and change records."
    url = f"http://{names[0] if names else 'ADDRESS'}:{address.port}" if address.is_on_all_interfaces else address.url
    option_suffix = ("" if url == DEFAULT_URL else f" --url {url}") + ("" if is_local else " --token TOKEN")
    yield f"OpenTelemetry exporter settings: mulligan env{option_suffix}"


def _describe_retention(retention: Retention) -> str:
    ages = {"successful runs": retention.keep_successes, "failed runs": retention.keep_failures}
    phrases = [f"{subject} after {age // DAY} days" for subject, age in ages.items() if age is not None]
    return " and ".join(phrases) or "hourly counters only"
