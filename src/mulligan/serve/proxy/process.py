"""Starts the server's process. Nothing else is imported: the server starts while the rest of us is loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

OURS = "MULLIGAN_"
"""Variables of the environment that stay with the proxy: they may hold the address of a store, or a token for it."""


def environment_for_servers(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(OURS)}


def started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The server's process; its words for people go where ours go."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment_for_servers(environment),
    )
