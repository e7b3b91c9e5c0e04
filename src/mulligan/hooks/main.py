"""mulligan-hook: read one event, write the response, never disturb the agent."""

from __future__ import annotations

import gc
import os
import sys

from mulligan.hooks import fast_filter

TYPE_CHECKING = False  # importing typing or types would slow down the first stage
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

AGENTS = ("claude-code", "codex", "gemini")
MAX_EVENT_BYTES = 32_000_000
"""Limit of an event. A larger one is ignored."""
LAZY_MODULES = ("ipaddress", "textwrap", "msgspec.inspect", "msgspec.toml", "msgspec.yaml")
"""Modules that dependencies import but rarely use: a sixth of the second stage's load time."""


def main() -> None:
    """Process one event. Internal errors are counted but never shown: the agent must continue."""
    agent = sys.argv[1] if len(sys.argv) > 1 else ""
    if agent not in AGENTS:
        os.write(2, b"mulligan-hook claude-code|codex|gemini: hands mulligan an event of that agent, given on stdin.\n")
        os._exit(1)  # not 2, which makes some agents stop
    try:
        data = _read_stdin()
        if should_process(agent, data):
            save_regex_cache = _speed_up_process()
            response = _process_event(agent, data)
            while response:
                response = response[os.write(1, response) :]
            save_regex_cache()
    except BaseException as error:  # noqa: BLE001 - a hook must not fail
        fast_filter.record_internal_error(agent, error)
    os._exit(0)  # skips the interpreter's shutdown, which would double the run time


def handle_event(agent: str, data: bytes) -> bytes:
    """Return the response to an event, empty for most events."""
    return _process_event(agent, data) if should_process(agent, data) else b""


def should_process(agent: str, data: bytes) -> bool:
    """Return whether the second stage must process the event."""
    disabling_values = ("off", "0", "false")
    is_off = any(os.environ.get(name, "").lower() in disabling_values for name in ("MULLIGAN", "MULLIGAN_ENABLED"))
    return not is_off and os.environ.get("MULLIGAN_RECORD") != "off" and fast_filter.needs_processing(agent, data)


def _process_event(agent: str, data: bytes) -> bytes:
    from mulligan.hooks import event_processing  # takes 40 ms

    return event_processing.process_event(agent, data)


def _speed_up_process() -> Callable[[], None]:
    """Apply speed-ups for a process that lives 0.1 seconds. Return the function that saves the regex cache."""
    gc.disable()  # no garbage outlives this process
    _find_packages()
    from mulligan.hooks.regex_cache import RegexCache
    from mulligan.redaction import lazy_regex

    regex_cache = RegexCache()
    lazy_regex.set_compiler(regex_cache)
    return regex_cache.save


class _LazyModule(ModuleType):
    """Module that is imported when an attribute is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # the import system probes for these
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(__import__(self.__name__, fromlist=[name]), name)


def _find_packages() -> None:
    """Make the dependencies importable without the modules that they import and we do not need."""
    if "msgspec" in sys.modules:
        return
    for name in LAZY_MODULES:
        sys.modules.setdefault(name, _LazyModule(name))
    # msgspec imports typing_extensions if it is installed. uuid needs only the name of the system from platform.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    platform: Any = ModuleType("platform")
    platform.system = lambda: os.uname().sysname
    sys.modules.setdefault("platform", platform)
    # pathlib needs one function of urllib.parse, for file URLs, which we do not use.
    parse: Any = ModuleType("urllib.parse")
    parse.quote_from_bytes = _quote_from_bytes
    sys.modules.setdefault("urllib.parse", parse)
    try:
        import pathlib  # noqa: F401 - must happen while the replacements are in place

        try:
            import msgspec
        except ImportError:
            import site  # rarely needed: dependencies are usually installed next to us

            # `site` reads this variable in spite of -E and executes files in that folder, which a repository may
            # control.
            os.environ.pop("PYTHONUSERBASE", None)
            site.main()
            import msgspec  # noqa: F401 - as above
    finally:
        for name, stand_in in (("platform", platform), ("urllib.parse", parse)):
            if sys.modules[name] is stand_in:
                del sys.modules[name]


def _quote_from_bytes(*arguments: Any) -> str:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(*arguments)


def _read_stdin() -> bytes:
    parts = []
    size = 0
    while part := os.read(0, 1_048_576):
        size += len(part)
        if size <= MAX_EVENT_BYTES:
            parts.append(part)
    return b"".join(parts) if size <= MAX_EVENT_BYTES else b""
