"""mulligan-hook: one event in, what the agent is to be told out, and never the failure."""

from __future__ import annotations

import os
import sys

from mulligan.serve.hooks import first

AGENTS = ("claude-code", "codex", "gemini")
MOST = 32_000_000
"""Bytes of an event. More than that is nothing a tool was called with."""


def main() -> None:
    """Whatever happens, the agent goes on: nothing is said of our own faults, but they are counted."""
    agent = sys.argv[1] if len(sys.argv) > 1 else ""
    if agent not in AGENTS:
        os.write(2, b"mulligan-hook claude-code|codex|gemini: hands mulligan an event of that agent, given on stdin.\n")
        os._exit(1)  # not 2, by which some agents stop what they do
    try:
        said = heard(agent, _given())
        while said:
            said = said[os.write(1, said) :]
    except BaseException as error:  # noqa: BLE001 - never the failure
        first.count_fault(agent, error)
    os._exit(0)  # nothing is left to be done, and taking the interpreter apart would take as long as all this


def heard(agent: str, data: bytes) -> bytes:
    """What the agent is to be told about this event; mostly nothing."""
    is_off = os.environ.get("MULLIGAN", "").lower() in ("off", "0", "false")
    if is_off or os.environ.get("MULLIGAN_RECORD") == "off" or not first.needs_more(agent, data):
        return b""
    if sys.flags.no_site:
        _find_packages()
    from mulligan.serve.hooks import second  # fifty milliseconds

    return second.heard(agent, data)


def _find_packages() -> None:
    """Makes what we depend on importable. It mostly stands beside us, and then `site` need not be asked."""
    # msgspec would import it where it is there, and it would be a sixth of all this.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401 - the import is the question
    except ImportError:
        import site

        site.main()


def _given() -> bytes:
    parts = []
    size = 0
    while part := os.read(0, 1_048_576):
        size += len(part)
        if size <= MOST:
            parts.append(part)
    return b"".join(parts) if size <= MOST else b""
