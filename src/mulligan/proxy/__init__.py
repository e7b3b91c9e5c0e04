"""MCP proxy between a client and one stdio server.

Starting the server imports nothing else of the proxy, so that both load at the same time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def start_server_process(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the server's process. It inherits our standard error, but not our settings: they may contain a token."""
    server_environment = {name: value for name, value in environment.items() if not name.startswith("MULLIGAN_")}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=server_environment)
