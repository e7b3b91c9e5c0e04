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

from mulligan.events import AnyEvent
from mulligan.failure import MissingExtra, SettingsError
from mulligan.parts import classify_of, redactor_of
from mulligan.redaction import Redactor
from mulligan.remember.recording.adoption import adopt
from mulligan.remember.store import DAY, LOCAL, Store
from mulligan.remember.urls import is_remote, journals_of, open_store, place_of, shown
from mulligan.report.alerts import Alerts
from mulligan.serve.api.tenants import Tenant, Tenants
from mulligan.serve.cli.env import DEFAULT
from mulligan.serve.cli.options import now, settings_with, store_option
from mulligan.settings import Level, Settings


@click.command(
    epilog="Examples:\n\n  mulligan serve\n\n  mulligan serve --open\n\n"
    "  mulligan serve --host 0.0.0.0 --allow-host mulligan.example.com"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=4700, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="A name it goes by, beside localhost.")
@click.option("--level", type=click.Choice(["local", "shared"]), help="How much is hidden of what is sent.")
@click.option("--log", "logs", is_flag=True, help="One line a request, on standard error.")
@click.option("--alert-command", metavar="CMD", default="", help="Tell this command of what a person should know.")
@click.option("--alert-webhook", metavar="URL", default="", help="Post it to this address.")
@click.option("--prune/--no-prune", "prunes", default=True, help="Once a day remove what is too old.  [yes]")
@click.option("--no-auth", "open_to_all", is_flag=True, help="Ask nobody for a token or a cookie. Loopback only.")
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
    """Take in what agents send, and answer questions about it, over HTTP.

    On loopback anybody on this machine may send; to look, open the address that is printed, once a browser. Beyond
    loopback everybody needs a token: mulligan token create.
    """
    try:
        import jinja2  # noqa: F401 - needs the server extra: fail before the store is opened
        import uvicorn  # noqa: F401

        from mulligan.serve.api import running
    except ImportError:
        raise MissingExtra("the server needs Starlette, uvicorn and Jinja: pip install 'mulligan[server]'") from None
    is_local = running.is_loopback(host) and not names
    if open_to_all and not is_local:
        raise SettingsError("--no-auth is for loopback alone: beyond it, make tokens with mulligan token create.")
    settings = settings_with(store)
    if is_remote(settings.store_url):
        raise SettingsError(f"{settings.store_url} is a server itself. Name a store of your own: --store PATH")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    alerts = {"command": alert_command, "webhook": alert_webhook}
    _serve(settings, host, port, opens, names, level, logs, open_to_all, is_local, alerts, prunes)


def _serve(
    settings: Settings, host: str, port: int, opens: bool, names: tuple[str, ...], level: Level | None, logs: bool,
    open_to_all: bool, is_local: bool, alerts: dict[str, Any], prunes: bool,
) -> None:  # fmt: skip
    from mulligan.serve.api import running
    from mulligan.serve.api.app import Server, app
    from mulligan.serve.api.doors import ENTRY, Rules
    from mulligan.serve.api.groups import GROUPS
    from mulligan.serve.api.intake import Intake
    from mulligan.serve.api.pruning import Pruner
    from mulligan.serve.dashboard.pages import group as pages

    kept = open_store(settings.store_url, settings.fsync)
    hides: Level = level or ("shared" if not is_local else settings.level)

    def redactor(key: bytes, tenant: Tenant) -> Redactor:
        """Build a tenant's redactor. A shared store keeps listed arguments only (SAFETY 3), unless --level is set."""
        listed = msgspec.structs.replace(settings, listed=(*settings.listed, *tenant.listed))
        return redactor_of(listed, hides if tenant.name == LOCAL else level or "shared", key)

    rules = Rules(
        hosts=frozenset({"localhost", host.lower(), *(name.lower() for name in names)}),
        is_local=is_local,
        is_open=open_to_all,
    )
    intake = Intake(classify_of(settings), redactor, kept)
    said: dict[str, Any] = {}

    def announce(ticket: str) -> None:
        click.echo(f"For another browser, once: {said['at']}{ENTRY}/{ticket}", err=True)

    pruner = Pruner(kept, says=lambda line: click.echo(line, err=True)) if prunes else None
    heard = _alerting(kept, alerts, intake.tenants, said)
    server = Server(kept, intake, rules=rules, announce=announce, heard=heard, pruner=pruner)
    if not is_local and not any(each.state(now()) == "active" for each in server.tokens.all()):
        server.close()
        raise SettingsError(
            "beyond loopback everybody needs a token, and there is none. "
            "Make one first: mulligan token create --role admin"
        )
    sock = running.bound(host, port)
    if not settings.store_url.startswith("memory:"):
        adopt(kept, LOCAL, journals_of(place_of(settings.store_url, settings.folder)))
    is_everywhere = ipaddress.ip_address(sock.getsockname()[0]).is_unspecified
    own = "::1" if ":" in sock.getsockname()[0] else "127.0.0.1"
    name, port = own if is_everywhere else host, sock.getsockname()[1]
    said["at"] = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    said["link"] = said["at"] if is_local else ""
    address = f"{said['at']}{ENTRY}/{server.browsers.ticket}"

    def ready() -> None:
        where = f"all interfaces, port {port}," if is_everywhere else said["at"]
        click.echo(f"mulligan listens on {where} and keeps in {shown(settings.store_url)}, level {hides}.")
        if is_everywhere:
            by_name = (
                f"or as {' or '.join(names)}" if names else "and by no name, unless you allow it (--allow-host NAME)"
            )
            click.echo(f"From here it is {said['at']}; from elsewhere it answers by its address {by_name}.")
        if open_to_all:
            click.echo("Everybody on this machine may read, send and decide: --no-auth asks nobody who they are.")
        else:
            click.echo(f"To look{' from here' if is_everywhere else ''}, open this once: {address}")
        at = f"http://{names[0] if names else 'ADDRESS'}:{port}" if is_everywhere else said["at"]
        there = ("" if at == DEFAULT else f" --url {at}") + ("" if is_local else " --token TOKEN")
        click.echo(f"To send from OpenTelemetry: mulligan env{there}")
        if pruner is not None:
            pruner.start()
            click.echo(f"Once a day, what is too old goes: {_ages(intake.tenants)}. To keep it: --no-prune")
        sys.stdout.flush()
        if opens:
            import webbrowser

            webbrowser.open(address)

    says = (lambda line: click.echo(line, err=True)) if logs else None
    running.run(app(server, (*GROUPS, pages), says), sock, ready, server.stop)


def _ages(tenants: Tenants) -> str:
    """Describe the retention of the default tenant."""
    kept = next(each.retention for each in tenants.everybody() if each.name == LOCAL)
    ages = {"runs that worked": kept.successes, "runs that failed": kept.failures}
    told = [f"{what} after {age // DAY} days" for what, age in ages.items() if age is not None]
    return " and ".join(told) or "figures by the hour alone"


def _alerting(
    kept: Store, asked: dict[str, Any], tenants: Tenants, said: dict[str, Any]
) -> Callable[[str, Sequence[AnyEvent]], None]:
    """Build the function that sends alerts for stored events, to each tenant's own targets.

    The default tenant falls back to the command line's targets. `server_urls` has the link for alerts, which is empty
    beyond loopback: there, clients use a name that the server does not know.
    """
    known: dict[str, tuple[dict[str, Any], Alerts | None]] = {}

    def heard(tenant: str, events: Sequence[AnyEvent]) -> None:
        settings = tenants.of(tenant)
        own: dict[str, Any] = {"command": settings.alert_command, "webhook": settings.alert_webhook}
        if tenant == LOCAL and not any(own.values()):
            own = asked
        made_for, alerts = known.get(tenant, ({}, None))
        if made_for != own:
            if alerts is not None:
                alerts.close()
            alerts = (
                Alerts(**own, find=partial(kept.pattern, tenant), link=said.get("link", ""))
                if any(own.values())
                else None
            )
            known[tenant] = (dict(own), alerts)
        if alerts is not None:
            alerts.heard(events)

    if any(asked.values()):
        Alerts(**asked)  # raises now for invalid targets, not at the first failure
        if asked["command"] and shutil.which(shlex.split(asked["command"])[0]) is None:
            raise SettingsError(f"there is no program {shlex.split(asked['command'])[0]!r} to be told of alerts.")
    return heard
