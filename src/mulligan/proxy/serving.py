"""Proxy process: opens the connections to clients and servers and runs them until they end."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mulligan.build import Components
from mulligan.core.failure import SettingsError
from mulligan.proxy import ServerTarget, start_server_process
from mulligan.proxy.relay import ClientConnection, ProxyOptions, Relay, ServerConnection
from mulligan.proxy.server import ServerProcess, StandardStreams, handle_signals
from mulligan.proxy.tool_calls import ToolCallRelay
from mulligan.proxy.tools import MAX_STORE_DELAY_SECONDS
from mulligan.settings import Settings

if TYPE_CHECKING:
    from mulligan.proxy.server_group import ServerGroup

UNRECORDED = "Until this is fixed, calls are forwarded without being recorded."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Servers behind the proxy, and where it listens."""

    target: ServerTarget | None = None
    """One server. None for all servers of `config_path`."""
    process: subprocess.Popen[bytes] | None = None
    """Process of that server, if it was started in advance."""
    config_path: Path | None = None
    read_targets: Callable[[], Mapping[str, ServerTarget]] = dict
    address: tuple[str, int] | None = None
    """Host and port for clients over HTTP. None for standard input and output."""
    is_remote_allowed: bool = False


def build_connect(
    target: ServerTarget, settings: Settings, process: subprocess.Popen[bytes] | None = None
) -> Callable[[Relay], ServerConnection]:
    """Return the function that connects a relay to a server. `process` is one that was started in advance."""
    if target.url:
        from mulligan.proxy.remote import RemoteServer
        from mulligan.proxy.sign_in import build_auth

        return lambda relay: RemoteServer(relay, target, build_auth(target, settings.folder))
    started_processes = [process] if process is not None else []

    def connect(relay: Relay) -> ServerConnection:
        server_process = started_processes.pop() if started_processes else start_server_process(target)
        return ServerProcess(relay.loop, server_process, relay.from_server, relay.restart, relay.client)

    return connect


def prepare_proxy(options: ProxyOptions, settings: Settings, serving: ServingOptions) -> Callable[[], int]:
    """Return the function that runs the proxy and returns its exit code. So far, no message has been read."""
    if serving.address is not None:
        from mulligan.core.listening import is_loopback

        if not serving.is_remote_allowed and not is_loopback(serving.address[0]):
            raise SettingsError(
                f"{serving.address[0]!r} is not a loopback address. Everyone who reaches it could use the servers with "
                "your credentials. If you want that, add --allow-remote-clients."
            )
    options, components = _build_components(options, settings)
    components.recall.open_early()
    connect = build_connect(serving.target, settings, serving.process) if serving.target is not None else None
    # The recorder thread computes for milliseconds at a time. Messages must not wait that long for the GIL.
    # Switch interval of threads while the proxy runs
    sys.setswitchinterval(0.0001)
    return lambda: asyncio.run(_serve(options, settings, serving, components, connect))


def _build_components(options: ProxyOptions, settings: Settings) -> tuple[ProxyOptions, Components]:
    """Build the parts that record and recover. Settings that they refuse, or that disable us, record nothing."""
    try:
        if settings.enabled:
            return options, Components(settings, max_lookup_seconds=MAX_STORE_DELAY_SECONDS, mode=options.mode)
    except SettingsError as error:
        print(f"mulligan: {error} {UNRECORDED}", file=sys.stderr, flush=True)
    # Without valid settings nothing is recorded: those that cannot be read may define redaction rules.
    options = dataclasses.replace(options, mode="observe")
    return options, Components(Settings(store="memory:", record="off"), mode="observe")


async def _serve(
    options: ProxyOptions,
    settings: Settings,
    serving: ServingOptions,
    components: Components,
    connect: Callable[[Relay], ServerConnection] | None,
) -> int:
    """Run the proxy until its client or server ends, or until a signal arrives. Return the exit code."""
    loop = asyncio.get_running_loop()

    def open_endpoint(client: ClientConnection) -> Relay | ServerGroup:
        if connect is None:
            from mulligan.proxy.server_group import ServerGroup

            assert serving.config_path is not None
            return ServerGroup(
                loop, options, components, client, serving.config_path, serving.read_targets,
                lambda target: build_connect(target, settings),
            )  # fmt: skip
        relay = Relay(loop, options, client, connect)
        relay.calls = ToolCallRelay(relay, components)
        return relay

    try:
        if serving.address is None:
            return await serve_standard_streams(loop, open_endpoint)
        from mulligan.proxy.listener import Listener

        return await Listener(*serving.address, open_endpoint, is_remote_allowed=serving.is_remote_allowed).serve()
    finally:
        # Time to store the last records at exit. Those that are not stored stay in the journal.
        components.close(1.0)


async def serve_standard_streams(
    loop: asyncio.AbstractEventLoop, open_endpoint: Callable[[ClientConnection], Relay | ServerGroup]
) -> int:
    """Serve the client at our standard input and output."""
    client = StandardStreams(loop)
    endpoint = open_endpoint(client)
    client.start(endpoint.from_client, lambda: endpoint.finish(0))
    handle_signals(loop, lambda number: endpoint.finish(128 + number))
    code = await endpoint.finished
    await endpoint.close()
    return code
