"""mulligan proxy, mulligan proxy accept and mulligan mcp. The proxy must start quickly, so imports are local."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import click

from mulligan.cli import CommandGroup
from mulligan.core.failure import MulliganError, SettingsError
from mulligan.proxy import ServerTarget, start_server_process
from mulligan.proxy.plain_server import run_plain_server

SESSION_VARIABLES = ("CLAUDE_CODE_SESSION_ID", "CODEX_SESSION_ID", "GEMINI_SESSION_ID")
"""Environment variables in which agents pass the session id to their servers."""
RUNNER_PROGRAMS = frozenset(
    {"npx", "uvx", "node", "python", "python3", "uv", "bunx", "bun", "deno", "docker", "pipx", "npm"}
)
"""Programs that only launch the server."""
_store_option = click.option(
    "--store",
    metavar="URL",
    help="Use another store than the settings: a path, postgresql://HOST/DATABASE, or a server's address.",
)


_WORDS_KEY = "mulligan_proxy_words"


class ProxyGroup(CommandGroup):
    """Command group that takes everything after `--` as the server's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.obj = args[at + 1 :]
            args = args[:at]
            if not ctx.obj:
                raise click.UsageError("Missing server command. Put it after --, such as -- npx -y SERVER", ctx)
        ctx.meta[_WORDS_KEY] = tuple(args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.commands:
            words = ctx.meta[_WORDS_KEY]
            options = words[: len(words) - len(args)]
            usage = " ".join(("mulligan", "proxy", *options, "--", *args))
            raise click.UsageError(f"Missing -- before the server's command. Use: {usage}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=ProxyGroup,
    invoke_without_command=True,
    subcommand_metavar="-- COMMAND ARGS...",
    epilog="Examples:\n\n  mulligan proxy -- npx -y @modelcontextprotocol/server-filesystem /tmp\n\n"
    "  mulligan proxy --repair --pin --name git -- uvx mcp-server-git\n\n"
    "  mulligan proxy --url https://example.com/mcp --header 'Authorization: Bearer ${TOKEN}'\n\n"
    "  mulligan proxy --config mcp.json --listen 8000\n\n"
    "  mulligan proxy accept git",
)
@click.option("--url", metavar="URL", help="Server behind a URL, instead of a command: streamable HTTP or SSE.")
@click.option(
    "--header",
    "headers",
    metavar="'NAME: VALUE'",
    multiple=True,
    help="Header for the server; ${NAME} is replaced by the environment.",
)
@click.option(
    "--config",
    metavar="FILE",
    help="All servers of a file with mcpServers, as clients use it, instead of one. Changes are applied at once.",
)
@click.option(
    "--listen", metavar="[HOST:]PORT", help="Serve clients over HTTP on this address, instead of standard input."
)
@click.option("--allow-remote-clients", is_flag=True, help="Allow --listen on an address that is not loopback.")
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the server in records. Default: from its command or URL. With --config: name of the proxy in the "
    "settings of your client.",
)
@click.option("--mode", type=click.Choice(["observe", "suggest", "repair"]), help="Recovery mode.")
@click.option(
    "--repair", is_flag=True, help="Same as --mode repair: apply automatic repairs and tell the model about them."
)
@click.option(
    "--trust-annotations",
    "should_trust_annotations",
    is_flag=True,
    help="Trust the server's annotations of side effects.",
)
@click.option(
    "--pin",
    "should_pin",
    is_flag=True,
    help="Block tools whose definition is new or has changed until you run `mulligan proxy accept`.",
)
@click.option(
    "--inject-lessons",
    "should_inject_lessons",
    is_flag=True,
    help="Add active lessons and promoted fixes to tool descriptions.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    help="Seconds without an answer or progress after which a call fails; 0 for no limit.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="Seconds for the server to answer its first message; 0 for no limit.",
)
@click.option("--no-restart", is_flag=True, help="Exit when the server exits, instead of restarting it.")
@click.option("--session", metavar="ID", envvar=list(SESSION_VARIABLES), help="Session id for the calls.")
@_store_option
@click.pass_context
def proxy(
    ctx: click.Context,
    /,
    mode: Any,
    repair: bool,
    no_restart: bool,
    store: str | None,
    url: str | None,
    headers: tuple[str, ...],
    config: str | None,
    listen: str | None,
    allow_remote_clients: bool,
    name: str | None,
    **proxy_options: Any,
) -> None:
    """Run MCP servers behind a proxy that records, explains and, where it is safe, repairs their tool calls."""
    if ctx.invoked_subcommand is not None:
        return
    if repair and mode not in (None, "repair"):
        raise click.UsageError(
            f"--repair means --mode repair, but --mode {mode} was given too. Remove one of them.", ctx
        )
    target = None if config else _build_target(ctx, url, headers, name)
    if config and (ctx.obj or url or headers):
        raise click.UsageError("--config has all servers. Remove --url, --header and the command.", ctx)
    process = None
    if target is not None and target.command and listen is None:
        try:
            process = start_server_process(target)
        except OSError as error:
            advice = "Put the command that starts the server after --."
            if len(target.command) == 1 and " " in target.command[0]:
                advice = f"Remove the quotes: mulligan proxy -- {target.command[0]}"
            reason = (error.strerror or str(error)).lower()
            raise SettingsError(f"Cannot start {target.command[0]!r}: {reason}. {advice}") from None
    try:
        # Imported after the server's start, so that both load at the same time.
        from mulligan.proxy.relay import ProxyOptions
        from mulligan.proxy.serving import prepare_proxy

        settings = _load_proxy_settings(store)
        options = ProxyOptions(
            **proxy_options,
            name=target.name if target is not None else name or "",
            mode="repair" if repair else mode or settings.mode,
            should_restart=not no_restart,
            rules=settings.tools,
        )
        serve = prepare_proxy(options, settings, _build_serving(target, process, config, listen, allow_remote_clients))
    except MulliganError:
        raise
    except Exception as error:
        if target is None or process is None:
            raise
        sys.exit(run_plain_server(target, error, process))
    sys.exit(serve())


def _load_proxy_settings(store: str | None) -> Any:
    """Load the user's settings. Without valid ones nothing is recorded."""
    from mulligan.proxy.serving import UNRECORDED
    from mulligan.settings import Settings

    try:
        return _load_user_settings(store)
    except SettingsError as error:
        click.echo(f"mulligan: {error} {UNRECORDED}", err=True)
        return Settings(enabled=False)


def _build_serving(
    target: ServerTarget | None, process: Any, config: str | None, listen: str | None, is_remote_allowed: bool
) -> Any:
    """Build the servers behind the proxy. An invalid file ends the command, and so does one without servers."""
    from mulligan.proxy.config import read_config
    from mulligan.proxy.serving import ServingOptions

    address = None
    if listen is not None:
        from mulligan.proxy.listener import parse_address

        address = parse_address(listen)
    serving = ServingOptions(
        target=target,
        process=process,
        config_path=Path(config) if config else None,
        read_targets=lambda: read_config(Path(config or ""), os.environ),
        address=address,
        is_remote_allowed=is_remote_allowed,
    )
    if config and not serving.read_targets():
        raise SettingsError(f"{config} has no enabled server. Add one to mcpServers.")
    return serving


def _build_target(ctx: click.Context, url: str | None, headers: tuple[str, ...], name: str | None) -> ServerTarget:
    """Build the target of the command line: a command or a URL."""
    command: list[str] = ctx.obj or []
    if url and command:
        raise click.UsageError("Both --url and a server command were given. Remove one of them.", ctx)
    if url:
        from mulligan.proxy.config import check_url, parse_headers, server_name_from_url

        check_url(url, "--url")
        parsed_headers = parse_headers(headers, os.environ)
        return ServerTarget(name=name or server_name_from_url(url), url=url, headers=parsed_headers)
    if headers:
        raise click.UsageError("--header needs --url. A server that is started by a command has no headers.", ctx)
    if not command:
        raise click.UsageError(
            "Missing server. Put its command after --, such as: mulligan proxy -- npx -y SERVER, or pass --url URL", ctx
        )
    return ServerTarget(name=name or server_name_from_command(command), command=command, environment=dict(os.environ))


def _load_user_settings(store: str | None) -> Any:
    """Read the user settings only: a project's settings file is part of untrusted code."""
    from mulligan.settings import load_settings

    return load_settings({"store": store} if store else {}, of_user=True)


def server_name_from_command(command: list[str]) -> str:
    """Derive the server's name from its command, for example `git` from `uvx mcp-server-git`."""
    words = [PurePath(word).name for word in command if not word.startswith("-")]
    server_word = next(
        (word for word in words if word not in RUNNER_PROGRAMS and word not in ("run", "exec", "-m")), words[0]
    )
    server_word = re.sub(r"@[\w.^~-]*$", "", server_word)
    server_word = re.sub(r"\.(?:py|js|mjs|cjs|ts|sh|exe|cmd)$", "", server_word)
    short_name = re.sub(r"^(?:mcp[-_])?(?:server[-_])?|(?:[-_]mcp)?(?:[-_]server)?$", "", server_word)
    return re.sub(r"[^\w-]+", "-", short_name or server_word).strip("-") or "server"


@proxy.command(epilog="Examples:\n\n  mulligan proxy login https://example.com/mcp")
@click.argument("url")
def login(url: str) -> None:
    """Sign in to the remote server behind URL with OAuth, in your browser.

    The proxy signs in by itself too, but a client may not wait that long.
    """
    import asyncio

    from mulligan.proxy.config import check_url
    from mulligan.proxy.http_transport import hide_secrets
    from mulligan.proxy.sign_in import SIGN_IN_ERRORS, sign_in

    target = ServerTarget(url=check_url(url, "the argument"))
    try:
        has_signed_in = asyncio.run(sign_in(target, _load_user_settings(None).folder))
    except SIGN_IN_ERRORS as error:
        raise SettingsError(f"Cannot sign in to {hide_secrets(url)}: {error}") from None
    click.echo(f"Signed in to {hide_secrets(url)}." if has_signed_in else "This server needs no sign-in.")


@proxy.command(
    epilog="Examples:\n\n  mulligan proxy accept\n\n  mulligan proxy accept git\n\n  mulligan proxy accept git git_log"
)
@click.argument("server", required=False)
@click.argument("tools", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Accept all pending tools.")
@_store_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def accept(server: str | None, tools: tuple[str, ...], everything: bool, store: str | None, as_json: bool) -> None:
    """Review and accept tool definitions that are new or have changed since they were pinned.

    Without SERVER, lists pending tools of all servers; with SERVER, shows their changes; with tools or --all, accepts
    them.
    """
    from mulligan.cli.options import CommandContext, open_existing_store
    from mulligan.contract.store import DEFAULT_TENANT
    from mulligan.proxy import pins

    existing_store = open_existing_store(_load_user_settings(store))
    pins_by_server = pins.load_all_pins(existing_store) if existing_store is not None else {}
    if server is not None and server not in pins_by_server:
        server_names = ", ".join(sorted(pins_by_server)) or "none yet"
        raise SettingsError(f"The proxy has not seen a server named {server!r}. Known servers: {server_names}.")
    text: str | None = None
    if existing_store is not None and server is not None and (tools or everything):
        waiting = pins_by_server[server].waiting
        accepted_tools = tuple(waiting) if everything else tools
        unknown_tool = next((tool for tool in accepted_tools if tool not in waiting), None)
        if unknown_tool is not None:
            waiting_names = ", ".join(waiting) or "none"
            raise SettingsError(f"Tool {unknown_tool!r} of {server} is not pending. Pending tools: {waiting_names}.")
        pins_by_server[server] = pins.accept_tools(pins_by_server[server], accepted_tools)
        existing_store.put(DEFAULT_TENANT, pins.PINS_KIND, server, pins.encode_pins(pins_by_server[server]))
        text = f"Accepted {len(accepted_tools)} {'tool' if len(accepted_tools) == 1 else 'tools'} of {server}."
    selected_pins = {name: server_pins for name, server_pins in pins_by_server.items() if server in (None, name)}
    facts = {name: _facts(server_pins) for name, server_pins in selected_pins.items()}
    CommandContext(store, as_json).print(facts, text or _describe_waiting(facts, has_one_server=server is not None))


def _facts(server_pins: Any) -> dict[str, Any]:
    waiting = {}
    for name, pin in server_pins.waiting.items():
        before = server_pins.accepted.get(name)
        definitions = {"before": before.definition if before is not None else None, "after": pin.definition}
        waiting[name] = {**definitions, "seen_at": pin.seen_at}
    return {"accepted": sorted(server_pins.accepted), "waiting": waiting}


def _describe_waiting(facts: dict[str, Any], has_one_server: bool) -> Iterator[str]:
    from mulligan.report.tables import to_line

    waiting_count = sum(len(server["waiting"]) for server in facts.values())
    if not waiting_count:
        yield "No pending tools."
        return
    yield f"{waiting_count} pending {'tool' if waiting_count == 1 else 'tools'}."
    for name, server in facts.items():
        if not server["waiting"]:
            continue
        yield ""
        for tool, change in server["waiting"].items():
            yield f"  {name}  {to_line(tool, 80)}  {'new' if change['before'] is None else 'changed'}"
            if has_one_server:
                yield from _describe_change(change["before"] or {}, change["after"])
        yield ""
        yield f"To accept: mulligan proxy accept {name}{' --all' if has_one_server else ''}"


def _describe_change(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    from mulligan.core.records import encode
    from mulligan.report.tables import to_line

    for part in sorted({*old, *new} - {"name", "_meta", "icons"}):
        for sign, definition, compared in (("-", old, new), ("+", new, old)):
            if part in definition and definition[part] != compared.get(part):
                value = definition[part]
                text = value if isinstance(value, str) else encode(value).decode()
                yield f"    {sign} {part}: {to_line(text, 2000)}"


@click.command(
    epilog="Examples:\n\n  mulligan mcp\n\n  mulligan install mcp-server --client claude-code\n\n"
    "  claude mcp add mulligan -- mulligan mcp"
)
@_store_option
def mcp(store: str | None) -> None:
    """Run an MCP server on stdio that answers an agent's questions about failures.

    Its tools are known_failures, suggest_fix, recent_failures and record_outcome. An MCP client starts it, and it exits
    with the client.
    """
    from mulligan.mcp.mcp_server import serve  # needs the mcp extra: fail before the store is opened

    # isort: split
    from mulligan.build import build_classifier, build_redactor
    from mulligan.cli.options import now_ms, open_existing_store
    from mulligan.core.records import new_id
    from mulligan.mcp.knowledge import Knowledge
    from mulligan.prompt import Prompt

    settings = _load_user_settings(store)
    opened_store: Any = None

    def current_store() -> Any:
        """Return the store as soon as it exists. A read must not create files."""
        nonlocal opened_store
        if opened_store is None and settings.enabled:
            opened_store = open_existing_store(settings)
        return opened_store

    answers = Prompt(build_redactor(settings, "local", personal=False))
    session = next((os.environ[name] for name in SESSION_VARIABLES if os.environ.get(name)), new_id("mcp"))
    knowledge = Knowledge(
        current_store, answers, build_classifier(settings), now=now_ms, session=session[:200], policy=settings.policy
    )
    serve(knowledge, answers.instructions())
