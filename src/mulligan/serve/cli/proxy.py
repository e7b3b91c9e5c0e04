"""mulligan proxy and mulligan proxy accept."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import click

from mulligan.failure import SettingsError
from mulligan.serve.cli.groups import Group
from mulligan.serve.proxy.process import started

SESSIONS = ("CLAUDE_CODE_SESSION_ID", "CODEX_SESSION_ID", "GEMINI_SESSION_ID")
"""Environment variables in which agents pass the session id to their servers."""
RUNNERS = frozenset({"npx", "uvx", "node", "python", "python3", "uv", "bunx", "bun", "deno", "docker", "pipx", "npm"})
"""Programs that only launch the server."""


class Proxy(Group):
    """Command group that takes everything after `--` as the server's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.obj = args[at + 1 :]
            args = args[:at]
            if not ctx.obj:
                raise click.UsageError("the server's command comes after --, such as -- npx -y SERVER", ctx)
        elif args and args[0] not in self.commands and not args[0].startswith("-"):
            raise click.UsageError(f"put -- before the server's command: mulligan proxy -- {' '.join(args)}", ctx)
        return super().parse_args(ctx, args)


@click.group(
    cls=Proxy,
    invoke_without_command=True,
    subcommand_metavar="-- COMMAND ARGS...",
    epilog="Examples:\n\n  mulligan proxy -- npx -y @modelcontextprotocol/server-filesystem /tmp\n\n"
    "  mulligan proxy --repair --pin --name git -- uvx mcp-server-git\n\n  mulligan proxy accept git",
)
@click.option("--name", metavar="NAME", help="What the server is called in records. Default: from its command.")
@click.option("--mode", type=click.Choice(["observe", "suggest", "repair"]), help="How far recovery goes.")
@click.option("--repair", is_flag=True, help="The same as --mode repair: sure repairs are made, and announced.")
@click.option("--trust-annotations", is_flag=True, help="Believe what the server says of its tools' effects.")
@click.option("--pin", is_flag=True, help="Hold back tools that are new or changed, until you accept them.")
@click.option("--teach", is_flag=True, help="Add what is proven to help to the descriptions of tools.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    help="Seconds without answer or progress after which a call is given up; 0 for never.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="Seconds in which the server must answer its first message; 0 for never.",
)
@click.option("--no-restart", is_flag=True, help="End with the server, instead of starting it again.")
@click.option("--session", metavar="ID", envvar=list(SESSIONS), help="The session that the calls belong to.")
@click.option(
    "--store",
    metavar="URL",
    help="Another store than the settings say: a path, postgresql://HOST/DATABASE, or a server's address.",
)
@click.pass_context
def proxy(ctx: click.Context, /, mode: str | None, repair: bool, store: str | None, **given: Any) -> None:
    """Stand in front of an MCP server: record, explain and, where it is safe, repair its tool calls."""
    if ctx.invoked_subcommand is not None:
        return
    command: list[str] | None = ctx.obj
    if not command:
        raise click.UsageError("the server's command comes after --, such as: mulligan proxy -- npx -y SERVER", ctx)
    if repair and mode not in (None, "repair"):
        raise click.UsageError(f"--repair is --mode repair, and --mode {mode} was given too", ctx)
    sys.exit(_run(command, "repair" if repair else mode, store, given))


def _run(command: list[str], mode: Any, store: str | None, given: dict[str, Any]) -> int:
    if sys.platform == "win32":
        raise SettingsError("mulligan proxy does not run on Windows yet: start it inside WSL.")
    try:
        process = started(command, os.environ)
    except OSError as error:
        raise SettingsError(
            f"{command[0]!r} cannot be started: {(error.strerror or str(error)).lower()}. "
            "What comes after -- is the command that starts the server."
        ) from None
    # Imported after the server's start, so that both load at the same time.
    from mulligan import settings as settings_file
    from mulligan.serve.proxy.rules import Options
    from mulligan.serve.proxy.start import serve

    settings = _settings(store)
    name = given["name"] or named(command)
    if settings is None or settings.off:
        # Without valid settings nothing is recorded: the unreadable file may define redaction rules.
        settings, mode = settings_file.Settings(store="memory:", record="off"), "observe"
    options = Options(
        name=name,
        mode=mode or settings.mode,
        trusts_annotations=given["trust_annotations"],
        pins=given["pin"],
        teaches=given["teach"],
        timeout=given["timeout"],
        start_timeout=given["start_timeout"],
        restarts=not given["no_restart"],
        session=given["session"],
        rules=settings.tools,
    )
    return serve(options, settings, command, os.environ, process)


def _settings(store: str | None) -> Any:
    """Read the user settings only: project files and the server may be untrusted."""
    from mulligan import settings as settings_file

    try:
        return settings_file.read({"store": store} if store else {}, of_user=True)
    except SettingsError as error:
        click.echo(f"mulligan: {error} Until that is mended, calls pass through unrecorded.", err=True)
        return None


def named(command: list[str]) -> str:
    """Derive the server's name from its command, for example `git` from `uvx mcp-server-git`."""
    words = [PurePath(each).name for each in command if not each.startswith("-")]
    own = next((word for word in words if word not in RUNNERS and word not in ("run", "exec", "-m")), words[0])
    own = re.sub(r"@[\w.^~-]*$", "", own)
    own = re.sub(r"\.(?:py|js|mjs|cjs|ts|sh|exe|cmd)$", "", own)
    bare = re.sub(r"^(?:mcp[-_])?(?:server[-_])?|(?:[-_]mcp)?(?:[-_]server)?$", "", own)
    return re.sub(r"[^\w-]+", "-", bare or own).strip("-") or "server"


@proxy.command(
    epilog="Examples:\n\n  mulligan proxy accept\n\n  mulligan proxy accept git\n\n  mulligan proxy accept git git_log",
)
@click.argument("server", required=False)
@click.argument("tools", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Accept all that waits.")
@click.option(
    "--store",
    metavar="URL",
    help="Another store than the settings say: a path, postgresql://HOST/DATABASE, or a server's address.",
)
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
def accept(server: str | None, tools: tuple[str, ...], everything: bool, store: str | None, as_json: bool) -> None:
    """What has changed in the tools of a server since they were first seen, and accepting it.

    Without a server: which have changed. With one: what. With tools, or --all: accepts them.
    """
    from mulligan import settings as settings_file  # local imports: the proxy must start quickly
    from mulligan.remember.store import LOCAL
    from mulligan.serve.cli.options import opened, print_json, print_lines
    from mulligan.serve.proxy import pins

    settings = settings_file.read({"store": store} if store else {}, of_user=True)
    kept = opened(settings)
    known = pins.all_of(kept) if kept is not None else {}
    if server is not None and server not in known:
        near = ", ".join(sorted(known)) or "none yet"
        raise SettingsError(f"there is no server {server!r} that was seen through the proxy. Known are: {near}.")
    if kept is not None and server is not None and (tools or everything):
        waiting = known[server].waiting
        chosen = tuple(waiting) if everything else tools
        strange = next((tool for tool in chosen if tool not in waiting), None)
        if strange is not None:
            told = ", ".join(waiting) or "nothing"
            raise SettingsError(f"{strange!r} of {server} does not wait to be accepted. What waits is: {told}.")
        known[server] = pins.accept(known[server], chosen)
        kept.put(LOCAL, pins.SHELF, server, pins.packed(known[server]))
        if not as_json:
            click.echo(f"Accepted {len(chosen)} {'tool' if len(chosen) == 1 else 'tools'} of {server}.")
    shown = {name: each for name, each in known.items() if server in (None, name)}
    if as_json:
        print_json({name: _facts(each) for name, each in shown.items()})
    elif not (tools or everything):
        print_lines(_spoken(shown, is_one=server is not None))


def _facts(known: Any) -> dict[str, Any]:
    return {
        "accepted": sorted(known.accepted),
        "waiting": {
            name: {
                "before": known.accepted[name].definition if name in known.accepted else None,
                "after": pin.definition,
                "seen": pin.seen,
            }
            for name, pin in known.waiting.items()
        },
    }


def _spoken(shown: dict[str, Any], is_one: bool) -> Iterator[str]:
    from mulligan.report.terminal import line

    waiting = {name: each for name, each in shown.items() if each.waiting}
    many = sum(len(each.waiting) for each in waiting.values())
    if not many:
        yield "No tool waits to be accepted."
        return
    yield f"{many} {'tool waits' if many == 1 else 'tools wait'} to be accepted."
    for name, each in waiting.items():
        yield ""
        for tool, pin in each.waiting.items():
            before = each.accepted.get(tool)
            yield f"  {name}  {line(tool, 80)}  {'new' if before is None else 'changed'}"
            if is_one:
                old = before.definition if before is not None else {}
                for part in sorted({*old, *pin.definition}):
                    if part not in ("name", "_meta", "icons") and old.get(part) != pin.definition.get(part):
                        if part in old:
                            yield f"    - {part}: {line(_plainly(old[part]), 2000)}"
                        if part in pin.definition:
                            yield f"    + {part}: {line(_plainly(pin.definition[part]), 2000)}"
        yield ""
        yield f"To accept: mulligan proxy accept {name}{' --all' if is_one else ''}"


def _plainly(value: Any) -> str:
    from mulligan.records import encode

    return value if isinstance(value, str) else encode(value).decode()
