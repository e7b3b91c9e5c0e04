"""What may leave the process: plain data, without secrets, presentable.

`plain` copies any value into plain data of bounded size; a `Redactor` takes out what must not be written down; `clean`
and `quote` make what a stranger wrote fit to be shown. Redact before showing: `clean` does not look for secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.redaction.present import FOREIGN, clean, faults, quote
from mulligan.redaction.values import plain

if TYPE_CHECKING:
    from mulligan.redaction.redactor import Redactor

__all__ = ["FOREIGN", "Redactor", "clean", "faults", "plain", "quote"]


def __getattr__(name: str) -> object:
    # The larger half, which a process that only shows what is already written down never needs.
    if name == "Redactor":
        from mulligan.redaction.redactor import Redactor

        return Redactor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
