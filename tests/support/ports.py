"""Ports for servers that are told where to listen, and that come back to the same place."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
HANDED_OUT = 32_768
"""From here on systems hand ports out to whoever asks for any, and to both ends of every connection."""


def free_port() -> int:
    """One that nobody is given by chance: free when its server comes, and when that comes again."""
    for port in random.SystemRandom().sample(range(LOWEST, max(_first_handed_out(), 2 * LOWEST)), 100):
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("of a hundred ports none is free")


def _first_handed_out() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return HANDED_OUT
