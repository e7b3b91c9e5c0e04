"""Start of the server's process. Imports nothing else, so that the server starts while the proxy loads."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

PRIVATE_VARIABLE_PREFIX = "MULLIGAN_"
"""Environment variables that the server must not see: they may contain a store URL or a token."""


def environment_for_servers(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(PRIVATE_VARIABLE_PREFIX)}


def start_server_process(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the server's process. It inherits our standard error."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment_for_servers(environment),
    )
