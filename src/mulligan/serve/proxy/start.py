"""Puts a proxy together and lets it run until one of the two ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from mulligan.serve.proxy.pump import Pump
from mulligan.serve.proxy.rules import Options
from mulligan.settings import Settings

SWITCH = 0.0001
"""Seconds after which a thread that computes lets another one have its turn."""
LAST_WORDS = 2.0
"""Seconds in which calls are still answered when the server is gone for good."""


def serve(
    options: Options,
    settings: Settings,
    command: Sequence[str],
    environment: Mapping[str, str],
    process: subprocess.Popen[bytes],
) -> int:
    """Runs the proxy in front of a server that has just been started; the exit code."""
    # The recorder's thread works for milliseconds at a time, and a message must not wait so long for its turn.
    sys.setswitchinterval(SWITCH)
    return asyncio.run(_serve(options, settings, command, environment, process))


async def _serve(
    options: Options,
    settings: Settings,
    command: Sequence[str],
    environment: Mapping[str, str],
    process: subprocess.Popen[bytes],
) -> int:
    from mulligan.parts import Parts  # while the server starts too: it takes longer than we do
    from mulligan.serve.proxy.calls import Calls

    loop = asyncio.get_running_loop()
    parts = Parts(settings, mode=options.mode)
    pump = Pump(loop, options, command, environment, process)
    calls = pump.calls = Calls(pump, parts, options)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, pump.finish, 128 + number)
    try:
        code = await pump.over
        await calls.close(LAST_WORDS if code == 1 else 0.0)
        await pump.close()
    finally:
        parts.recorder.close()
    return code
