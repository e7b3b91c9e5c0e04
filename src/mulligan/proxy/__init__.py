"""MCP proxy between a client and its servers: processes and URLs.

Starting the server imports nothing else of the proxy, so that both load at the same time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """Where a server is: the command that starts it, or its URL."""

    name: str = "server"
    """Name of the server in records."""
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    """Working folder of the command."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_sse: bool = False
    """Whether the server is known to speak the first protocol version. Otherwise the first answer tells."""


def start_server_process(target: ServerTarget) -> subprocess.Popen[bytes]:
    """Start the server's process. It inherits our standard error, but not our settings: they may contain a token."""
    environment = {name: value for name, value in target.environment.items() if not name.startswith("MULLIGAN_")}
    return subprocess.Popen(
        target.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment, cwd=target.folder
    )
