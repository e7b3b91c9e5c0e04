"""Build a proxy and run it until client or server ends."""

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
"""Switch interval of threads while the proxy runs."""
LAST_WORDS = 2.0
"""Time for pending calls to be answered after the server has ended."""


def serve(
    options: Options,
    settings: Settings,
    command: Sequence[str],
    environment: Mapping[str, str],
    process: subprocess.Popen[bytes],
) -> int:
    """Run the proxy in front of a started server. Return the exit code."""
    # The recorder thread computes for milliseconds at a time. Messages must not wait that long for the GIL.
    sys.setswitchinterval(SWITCH)
    return asyncio.run(_serve(options, settings, command, environment, process))


async def _serve(
    options: Options,
    settings: Settings,
    command: Sequence[str],
    environment: Mapping[str, str],
    process: subprocess.Popen[bytes],
) -> int:
    from mulligan.parts import Parts  # imported while the server starts, which takes longer
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
