"""mulligan-hook: one event in, what the agent is to be told out, and never the failure."""

from __future__ import annotations

import gc
import os
import sys

from mulligan.serve.hooks import first

TYPE_CHECKING = False  # neither typing nor types is for the first stage
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

AGENTS = ("claude-code", "codex", "gemini")
MOST = 32_000_000
"""Bytes of an event. More than that is nothing a tool was called with."""
LATER = ("ipaddress", "textwrap", "msgspec.inspect", "msgspec.toml", "msgspec.yaml")
"""What others import and seldom use: a sixth of all that the second stage takes to be loaded."""


def main() -> None:
    """Whatever happens, the agent goes on: nothing is said of our own faults, but they are counted."""
    agent = sys.argv[1] if len(sys.argv) > 1 else ""
    if agent not in AGENTS:
        os.write(2, b"mulligan-hook claude-code|codex|gemini: hands mulligan an event of that agent, given on stdin.\n")
        os._exit(1)  # not 2, by which some agents stop what they do
    try:
        data = _given()
        if is_wanted(agent, data):
            keep = _hurry()
            said = _told(agent, data)
            while said:
                said = said[os.write(1, said) :]
            keep()
    except BaseException as error:  # noqa: BLE001 - never the failure
        first.count_fault(agent, error)
    os._exit(0)  # nothing is left to be done, and taking the interpreter apart would take as long as all this


def heard(agent: str, data: bytes) -> bytes:
    """What the agent is to be told about this event; mostly nothing."""
    return _told(agent, data) if is_wanted(agent, data) else b""


def is_wanted(agent: str, data: bytes) -> bool:
    """Whether the second stage is."""
    is_off = os.environ.get("MULLIGAN", "").lower() in ("off", "0", "false")
    return not is_off and os.environ.get("MULLIGAN_RECORD") != "off" and first.needs_more(agent, data)


def _told(agent: str, data: bytes) -> bytes:
    from mulligan.serve.hooks import second  # forty milliseconds

    return second.heard(agent, data)


def _hurry() -> Callable[[], None]:
    """What is done because this process lives for a tenth of a second; and what is to be called when all is said."""
    gc.disable()  # nothing that is made from here on lives longer than this process
    _find_packages()
    from mulligan.redaction import expressions
    from mulligan.serve.hooks.expressions import Kept

    kept = Kept()
    expressions.take_from(kept)
    return kept.keep


class _Later(ModuleType):
    """A module that is loaded when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # the machinery of imports asks for such
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(__import__(self.__name__, fromlist=[name]), name)


def _find_packages() -> None:
    """Makes what we depend on importable, without what it would import and we do not need."""
    if "msgspec" in sys.modules:
        return
    for name in LATER:
        sys.modules.setdefault(name, _Later(name))
    # msgspec would import the first where it is there. Of the second uuid wants to know on which system it is, no more.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    platform: Any = ModuleType("platform")
    platform.system = lambda: os.uname().sysname
    sys.modules.setdefault("platform", platform)
    # Of this pathlib wants a function for addresses of files, which nobody here asks for.
    parse: Any = ModuleType("urllib.parse")
    parse.quote_from_bytes = _quoted
    sys.modules.setdefault("urllib.parse", parse)
    try:
        import pathlib  # noqa: F401 - while all this is in place

        try:
            import msgspec
        except ImportError:
            import site  # what we depend on mostly stands beside us, and then it need not be asked

            # `site` reads it in spite of -E, and runs what it finds there: a repository's variables may name a folder.
            os.environ.pop("PYTHONUSERBASE", None)
            site.main()
            import msgspec  # noqa: F401 - as above
    finally:
        for name, stand_in in (("platform", platform), ("urllib.parse", parse)):
            if sys.modules[name] is stand_in:
                del sys.modules[name]


def _quoted(*given: Any) -> str:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(*given)


def _given() -> bytes:
    parts = []
    size = 0
    while part := os.read(0, 1_048_576):
        size += len(part)
        if size <= MOST:
            parts.append(part)
    return b"".join(parts) if size <= MOST else b""
