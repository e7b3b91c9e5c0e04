"""Loggers of mulligan's modules, without importing `logging` before something is logged: that would double the import
time of a hook and take a tenth of a first call (benchmarks/imports.py)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import logging


LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})


class LazyLogger:
    """A stand-in for the logger of this name, which it looks up at each use.

    Where the program configures no logging, Python prints a bare message: then it begins with "mulligan: ".

    Handlers and filters belong to the program. If one raises, the record is dropped: a call of a tool must not fail
    because mulligan logs something.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import logging

        logger = logging.getLogger(self._name)
        target = getattr(logger, attribute)
        if attribute not in LOG_METHODS:
            return target

        def log_safely(*values: Any, **options: Any) -> None:
            if attribute != "log" and not logger.hasHandlers():
                values = (f"mulligan: {values[0]}", *values[1:])
            options["stacklevel"] = options.get("stacklevel", 1) + 1  # names the caller's line, not this one
            with contextlib.suppress(Exception):
                target(*values, **options)

        return log_safely


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module: `log = get_logger(__name__)`."""
    return cast("logging.Logger", LazyLogger(name))
