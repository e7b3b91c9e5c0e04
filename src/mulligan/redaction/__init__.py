"""What may leave the process: plain data, without secrets, presentable.

`plain` copies any value into plain data of bounded size; a `Redactor` takes out what must not be written down; `clean`
and `quote` make what a stranger wrote fit to be shown. Redact before showing: `clean` does not look for secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.redaction.present import FOREIGN, clean, faults, quote
from mulligan.redaction.values import plain

if TYPE_CHECKING:
    from mulligan.redaction.redactor import Finding, Redactor

__all__ = ["FOREIGN", "Finding", "Redactor", "clean", "faults", "plain", "quote"]


def __getattr__(name: str) -> object:
    # The larger half, which a process that only shows what is already written down never needs.
    if name in ("Finding", "Redactor"):
        from mulligan.redaction import redactor

        return getattr(redactor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
