"""What may leave the process: plain data, without secrets, presentable.

`plain` copies any value into plain data of bounded size; a `Redactor` takes out what must not be written down; `clean`
and `quote` make what a stranger wrote fit to be shown. Redact before showing: `clean` does not look for secrets.
"""

from __future__ import annotations

from mulligan.redaction.present import FOREIGN, clean, faults, quote
from mulligan.redaction.redactor import Finding, Redactor
from mulligan.redaction.values import plain

__all__ = ["FOREIGN", "Finding", "Redactor", "clean", "faults", "plain", "quote"]
