"""Build a proxy and run it until client or server ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from mulligan.proxy.proxy_rules import ProxyOptions
from mulligan.proxy.relay import Relay
from mulligan.settings import Settings

SWITCH_INTERVAL_SECONDS = 0.0001
"""Switch interval of threads while the proxy runs."""
FINAL_ANSWER_SECONDS = 2.0
"""Time for pending calls to be answered after the server has ended."""


def serve(
    options: ProxyOptions,
    settings: Settings,
    command: Sequence[str],
    environment: Mapping[str, str],
    process: subprocess.Popen[bytes],
) -> int:
    """Run the proxy in front of a started server. Return the exit code."""
    # The recorder thread computes for milliseconds at a time. Messages must not wait that long for the GIL.
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    return asyncio.run(_serve(options, settings, command, environment, process))


async def _serve(
    options: ProxyOptions,
    settings: Settings,
    command: Sequence[str],
    environment: Mapping[str, str],
    process: subprocess.Popen[bytes],
) -> int:
    from mulligan.build import Components  # imported while the server starts, which takes longer
    from mulligan.proxy.tool_calls import ToolCallRelay

    loop = asyncio.get_running_loop()
    components = Components(settings, mode=options.mode)
    relay = Relay(loop, options, command, environment, process)
    calls = relay.calls = ToolCallRelay(relay, components, options)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, relay.finish, 128 + number)
    try:
        code = await relay.finished
        await calls.close(FINAL_ANSWER_SECONDS if code == 1 else 0.0)
        await relay.close()
    finally:
        components.recorder.close()
    return code
